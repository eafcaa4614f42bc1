"""symbols.py MODULE...: checks compiled modules for macOS (Mach-O files), and fails with a line for each fault.

A linker for macOS takes undefined symbols of a Python module for functions of the Python that will load it. So it does not find a function
that pumice declares, and that no file for macOS defines. This program does: an undefined symbol must be one of the system's C library,
which the linker has found there, or have a name of the C++ library or of Python. Layouts: <mach-o/loader.h> and <mach-o/nlist.h>.
"""

from __future__ import annotations

import re
import struct
import sys
from pathlib import Path

MAGIC = 0xFEEDFACF  # 64 bits, little endian
SYMTAB, LOAD_DYLIB = 0x2, 0xC  # load commands
STAB, TYPE, EXTERNAL = 0xE0, 0x0E, 0x01  # bits of n_type. An undefined symbol has type 0
MOST_LIBRARIES = 253  # the upper byte of n_desc is the number of the library that has the symbol, from 1, or another value if none has
LIBRARIES = {"/usr/lib/libSystem.B.dylib"}
START = "PyInit__core"

# Names that the module may look up when it is loaded: those of Python, and those of the C++ library. These are std and its members, types,
# tables and virtual thunks, and new and delete, as the Itanium C++ ABI writes them; functions of that ABI; and those of unwinding.
MAY_BE_ABSENT = re.compile(
    r"_?Py[A-Z_]\w+"
    r"|_Z(T[ISTV]|Tv0_n\d+_)?N?[KVRO]*(S[tabsiod]|10__cxxabiv1)\w+|_ZT[ISV][KP]*[a-z]|_Z(n[wa]|d[la])\w+"
    r"|__cxa_\w+|__dynamic_cast|__gxx_personality_v0"
    r"|_Unwind_\w+"
)


def text(data: bytes, start: int) -> str:
    return data[start : data.index(b"\0", start)].decode()


def faults(data: bytes) -> list[str]:
    magic, _, _, _, commands = struct.unpack_from("<5I", data)
    if magic != MAGIC:
        return ["is no Mach-O file of 64 bits"]
    found = []
    absent, defined = set(), set()
    at = 32
    for _ in range(commands):
        command, size = struct.unpack_from("<2I", data, at)
        if command == LOAD_DYLIB:
            library = text(data, at + struct.unpack_from("<I", data, at + 8)[0])
            if library not in LIBRARIES:
                found.append(f"needs {library}")
        elif command == SYMTAB:
            symbols, count, names, _ = struct.unpack_from("<4I", data, at + 8)
            for name, kind, _, description, _ in struct.iter_unpack("<IBBHQ", data[symbols : symbols + 16 * count]):
                if kind & STAB or not kind & EXTERNAL:
                    continue
                symbol = text(data, names + name).removeprefix("_")  # which each name of C has in front
                if kind & TYPE:
                    defined.add(symbol)
                elif not 1 <= description >> 8 <= MOST_LIBRARIES:
                    absent.add(symbol)
        at += size
    if START not in defined or not any(symbol.startswith("Py") for symbol in absent):
        found.append(f"is no module of Python: it must define {START}, and look up functions of Python when it is loaded")
    return found + [f"lacks {symbol}, which nothing else has" for symbol in sorted(absent) if not MAY_BE_ABSENT.fullmatch(symbol)]


if __name__ == "__main__":
    wrong = [f"{name} {fault}" for name in sys.argv[1:] for fault in faults(Path(name).read_bytes())]
    print(*wrong, sep="\n", end="\n" if wrong else "")
    sys.exit(bool(wrong))
