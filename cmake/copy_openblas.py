"""copy_openblas.py SOURCE TARGET: copies the OpenBLAS library and changes the SONAME inside the copy.

The loader identifies a library by its SONAME. With the original SONAME, the loader could use our copy for another module that needs the
original library.
"""

import pathlib
import sys

OLD = b"\0libscipy_openblas.so\0"
NEW = b"\0libpumiceopenblas.so\0"  # has the length of OLD, so that nothing in the file moves

source, target = map(pathlib.Path, sys.argv[1:])
library = source.read_bytes()
found = library.count(OLD)
if found != 1:
    sys.exit(f"{source}: its SONAME libscipy_openblas.so was found {found} times instead of once; is this the pinned scipy-openblas32?")
target.parent.mkdir(parents=True, exist_ok=True)
target.write_bytes(library.replace(OLD, NEW))
