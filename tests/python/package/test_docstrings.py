"""Every public name must have a docstring, and every argument that a user can give must be explained in a docstring or in
docs/python."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from typing import Any

from paths import API_PAGES, ROOT

import pumice

PACKAGE = ROOT / "python" / "pumice"
PAGE = "\n".join(path.read_text() for path in API_PAGES)


def without(tree: ast.Module | ast.ClassDef, before: str) -> Iterator[str]:
    """Yields the names of the public classes, functions and methods that have no docstring."""
    for node in tree.body:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)) and not node.name.startswith("_"):
            if not ast.get_docstring(node):
                yield f"{before}{node.name}"
            if isinstance(node, ast.ClassDef):
                yield from without(node, f"{before}{node.name}.")


def test_every_public_name_has_a_docstring() -> None:
    assert list(without(ast.parse("class A:\n  '''.'''\n  def f(self): pass\n  def _g(self): pass\ndef h(): pass"), "")) == ["A.f", "h"]
    trees = [(path.name, ast.parse(path.read_text())) for path in sorted(PACKAGE.rglob("*.py"))]
    assert [each for name, tree in trees for each in without(tree, f"{name}: ")] == []
    assert all(ast.get_docstring(tree) for _, tree in trees)


def reachable() -> Iterator[tuple[str, Any, str]]:
    """Yields (name, object, docstring) for each callable that `pumice` exports, and (name, function, docstring of the class) for the
    methods and properties of its classes."""
    for name in pumice.__all__:
        value = getattr(pumice, name)
        if not callable(value):
            continue
        about = inspect.getdoc(value) or ""
        yield name, value, about
        if not inspect.isclass(value):
            continue
        for base in value.__mro__:
            if not base.__module__.startswith("pumice"):
                continue
            for member, given in vars(base).items():
                function = getattr(given, "fget", None) or getattr(given, "__func__", given)
                if not member.startswith("_") and inspect.isfunction(function):
                    yield f"{name}.{member}", function, about


def test_what_a_user_reaches_is_explained() -> None:
    found = list(reachable())
    assert len(found) > 90
    assert [name for name, value, _ in found if not inspect.getdoc(value)] == []
    told = []
    for name, value, about in found:
        if inspect.isclass(value):  # classes are results and errors, which users do not construct
            continue
        text = f"{about} {inspect.getdoc(value)}"
        for parameter in inspect.signature(value).parameters.values():
            if parameter.name in ("self", "cls") or parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
                continue
            if not re.search(rf"\b{parameter.name}\b", text) and not re.search(rf"[`(, ]{parameter.name}[`,=()]", PAGE):
                told.append(f"{name}({parameter.name})")
    assert told == []
