"""copy_openblas.py SOURCE TARGET: copies OpenBLAS under a SONAME of our own, so that the loader never gives it to a module that needs the
original."""

import pathlib
import sys

OLD = b"\0libscipy_openblas.so\0"
NEW = b"\0libpumiceopenblas.so\0"  # as long as the old one, so nothing in the file moves

source, target = map(pathlib.Path, sys.argv[1:])
library = source.read_bytes()
found = library.count(OLD)
if found != 1:
    sys.exit(f"{source}: its SONAME libscipy_openblas.so was found {found} times instead of once; is this the pinned scipy-openblas32?")
target.parent.mkdir(parents=True, exist_ok=True)
target.write_bytes(library.replace(OLD, NEW))
