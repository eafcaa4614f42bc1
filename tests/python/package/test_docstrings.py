"""Every public name must have a docstring, which explains each argument or field, and a place in the reference of the documentation's
site."""

from __future__ import annotations

import ast
import inspect
import re
import sys
from collections.abc import Iterator
from typing import Any

from paths import ROOT

import pumice
import pumice.arrow
import pumice.serve

sys.path.insert(0, str(ROOT / "docs" / "site"))

import docstrings  # noqa: E402

PACKAGE = ROOT / "python" / "pumice"


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


def public() -> dict[str, Any]:
    """Returns the classes and functions that users name, by their full names."""
    found = {f"pumice.{name}": getattr(pumice, name) for name in pumice.__all__}
    found |= {f"pumice.arrow.{name}": getattr(pumice.arrow, name) for name in ("Encode", "Generate")}
    found |= {f"pumice.serve.{name}": getattr(pumice.serve, name) for name in pumice.serve.__all__}
    return {name: value for name, value in found.items() if callable(value)}


def members(value: type) -> dict[str, Any]:
    """Returns the public methods and properties of a class, also those that it inherits from a class of pumice."""
    found = {}
    for name in dir(value):
        given = inspect.getattr_static(value, name)
        function = getattr(given, "fget", None) or getattr(given, "__func__", given)
        if not name.startswith("_") and inspect.isfunction(function) and function.__module__.startswith("pumice"):
            found[name] = function
    return found


def explained(value: Any) -> set[str]:
    """Returns the arguments or fields that the docstring of an object explains, or that of the call to which it refers."""
    texts = [inspect.getdoc(value) or ""]
    if inspect.isclass(value):
        texts += [inspect.getdoc(base) or "" for base in value.__mro__[1:] if base.__module__.startswith("pumice")]
    names = docstrings.names_of(value)
    found = {told for text in texts for block in docstrings.parse(text, names) for told in block.names}
    for other in re.findall(r"(?:Like|All other keywords are those of) (?:pumice\.)?(\w+)\(\)", texts[0]):
        found |= explained(getattr(pumice if f"pumice.{other}" in texts[0] or not hasattr(pumice.Model, other) else pumice.Model, other))
    return found


def test_docstrings_are_parsed() -> None:
    text = "Does it.\n\none, two (0: off): the text,\n    and more.\nthree: text.\nRaises: no item.\n\n    some = code\n\nThe end."
    blocks = docstrings.parse(text, ["one", "two", "three"])
    assert [(block.names, block.text) for block in blocks] == [
        ((), "Does it."),
        (("one", "two"), "the text, and more."),
        (("three",), "text."),
        ((), "Raises: no item."),
        ((), "    some = code\n"),
        ((), "The end."),
    ]
    assert [block.code for block in blocks] == [False, False, False, False, True, False]


def test_every_argument_and_field_is_explained() -> None:
    named = {name: value for name, value in public().items() if value is not pumice.serve.Settings}  # docs/serving.md explains its fields
    named |= {
        f"{name}.{member}": each for name, value in public().items() if inspect.isclass(value) for member, each in members(value).items()
    }
    missing, counted = [], 0
    for name, value in named.items():
        assert inspect.getdoc(value), f"{name} has no docstring"
        told, wanted = explained(value), docstrings.names_of(value)
        if inspect.isclass(value):  # a property has a docstring of its own
            wanted = [each for each in wanted if not isinstance(inspect.getattr_static(value, each, None), property)]
        else:  # what a call takes as ** are keywords of another one, to which its docstring refers
            kinds = inspect.signature(value).parameters
            wanted = [each for each in wanted if kinds[each].kind is not inspect.Parameter.VAR_KEYWORD]
        missing += [f"{name}: {each}" for each in wanted if each not in told]
        counted += 1 + len(wanted)
    assert counted > 650
    assert missing == []


def test_the_reference_has_every_public_name_once() -> None:
    pages = "".join(path.read_text() for path in (ROOT / "docs" / "reference").glob("*.rst"))
    listed = re.findall(r"^\.\. auto\w+:: ([\w.]+)$", pages, re.MULTILINE)
    assert sorted(listed) == sorted([*public(), *(f"pumice.Model.{name}" for name in members(pumice.Model))])
