"""Python imports this file when it starts (`make sanitize` puts its folder on PYTHONPATH). Under AddressSanitizer, it has the process look
for leaked memory when it ends, before Python destroys its modules: later, what they still hold looks like leaks."""

import atexit
import ctypes


def look_for_leaks() -> None:
    check = getattr(ctypes.CDLL(None), "__lsan_do_recoverable_leak_check", None)
    if check is not None:  # under ThreadSanitizer there is none
        check()


atexit.register(look_for_leaks)
