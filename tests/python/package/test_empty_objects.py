"""Objects of the compiled module's classes that were made by __new__() alone have no C++ object. Each use is a TypeError,
or pybind11's own RuntimeError where a function takes a shared_ptr of the class."""

from __future__ import annotations

import subprocess
import sys

SCRIPT = """
import inspect, re
from pumice import _core

modules = [_core, *(value for value in vars(_core).values() if inspect.ismodule(value))]
classes = {name: value for module in modules for name, value in vars(module).items() if inspect.isclass(value)}
base = next(iter(classes.values())).__mro__[1]
refused, tried = 0, 0

def attempt(where, call, self):
    global refused, tried
    tried += 1
    print(where, flush=True)  # if the process ends, the last line says where
    try:
        call()
    except TypeError as error:
        refused += "made by __new__() alone" in str(error)
    except RuntimeError as error:  # of pybind11, for a parameter that is a shared_ptr
        assert not self and "non-held" in str(error), (where, error)
    else:
        raise AssertionError(f"{where}: no error")

def empty(name):
    return classes[name].__new__(classes[name])

# What each type in a signature is called with. An object of a class is an empty one.
VALUES = {"int": 1, "float": 1.0, "str": "x", "bool": True, "bytes": b"x", "dict": {}, "list": [], "tuple": ()}

def arguments(function):
    first = function.__doc__.splitlines()[0]
    found = []
    for part in re.findall(r"\\b\\w+: ((?:[^,\\[\\]()]|\\[[^\\]]*\\])+)", first.partition("(")[2]):
        kind = part.partition("=")[0].strip()
        name = next((name for name in classes if re.search(rf"\\b{name}\\b", kind)), None)
        simple = next((value for word, value in VALUES.items() if re.search(rf"\\b{word}\\b", kind)), None)
        found.append(empty(name) if name else simple)
    return found

for name, made in classes.items():
    for where, new in ((name, made.__new__), (f"{name} by its base", base.__new__)):
        item = new(made)
        for member, value in vars(made).items():
            if isinstance(value, property):
                attempt(f"{where}.{member}", lambda: getattr(item, member), True)
                if value.fset:
                    attempt(f"{where}.{member} =", lambda: setattr(item, member, 1), True)
            elif not member.startswith("_"):  # the others are of Python and pybind11
                attempt(f"{where}.{member}()", lambda: value(item, *arguments(value)[1:]), True)
        repr(item), hash(item), item == item, dir(item)
        del item
for module in modules:
    for name, value in vars(module).items():
        if inspect.isbuiltin(value) and any(type(a).__name__ in classes for a in arguments(value)):
            attempt(f"{name}()", lambda: value(*arguments(value)), False)
print(len(classes), tried, refused)
"""


def test_every_class_refuses_what_new_made() -> None:
    ended = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=120)
    assert ended.returncode == 0, (ended.returncode, ended.stdout[-300:], ended.stderr[-1000:])
    classes, tried, refused = map(int, ended.stdout.splitlines()[-1].split())
    assert classes >= 15 and tried > 250
    assert refused > tried * 0.9  # the other methods find another argument wrong first
