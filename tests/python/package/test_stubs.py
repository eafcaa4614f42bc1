"""python/pumice/_core.pyi must declare exactly what the compiled module has: names, parameters, their kinds and their defaults."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import fake_core
import pytest
from paths import ROOT

from pumice import _core
from pumice.encode.engine import Engine
from pumice.encode.static import StaticEngine

STUB = ast.parse((ROOT / "python" / "pumice" / "_core.pyi").read_text())
Names = dict[str, ast.AST]


def public(name: str) -> bool:
    return not name.startswith("_") or name in ("__version__", "__init__")


def stub_names(body: list[ast.stmt]) -> Names:
    names: Names = {}
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names[node.name] = node
        elif isinstance(node, ast.AnnAssign):
            names[ast.unparse(node.target)] = node
        elif isinstance(node, ast.Assign):
            names |= {ast.unparse(target): node for target in node.targets}
    return {name: node for name, node in names.items() if public(name)}


def module_names(of: Any) -> dict[str, Any]:
    """Returns the public names of a module or class. A class counts as having __init__ only if Python code may create objects of it."""
    return {name: value for name, value in vars(of).items() if public(name) and type(value).__name__ != "wrapper_descriptor"}


def parameters(function: ast.FunctionDef) -> list[tuple[str, str, str | None]]:
    """Returns (name, kind, default) for each parameter of a function in the stub."""
    a = function.args
    assert a.vararg is None
    assert a.kwarg is None
    positional = [(arg, "positional") for arg in a.posonlyargs + a.args]
    defaults: list[ast.expr | None] = [None] * (len(positional) - len(a.defaults)) + list(a.defaults)
    pairs = list(zip(positional + [(arg, "keyword") for arg in a.kwonlyargs], defaults + a.kw_defaults, strict=True))
    return [(arg.arg, kind, None if default is None else ast.unparse(default)) for (arg, kind), default in pairs]


def bound_parameters(function: Any) -> list[tuple[str, str, str | None]]:
    """Returns the parameters of a function of the compiled module. They are read from the first line of its docstring, which pybind11
    writes as a Python signature. (The return type in it may not be valid Python.)"""
    line = function.__doc__.splitlines()[0]
    signature = re.fullmatch(r"\w+(\(.*\)) -> .*", line)
    assert signature is not None, line
    [definition] = ast.parse(f"def f{signature[1]}: ...").body
    assert isinstance(definition, ast.FunctionDef)
    return parameters(definition)


def functions() -> Iterator[Any]:
    for name, node in stub_names(STUB.body).items():
        if isinstance(node, ast.FunctionDef):
            yield pytest.param(node, _core, id=name)
        elif isinstance(node, ast.ClassDef):
            for method, definition in stub_names(node.body).items():
                if isinstance(definition, ast.FunctionDef) and not definition.decorator_list:
                    yield pytest.param(definition, getattr(_core, name, None), id=f"{name}.{method}")


def test_module_has_the_names_of_the_stub() -> None:
    assert stub_names(STUB.body).keys() == module_names(_core).keys()


@pytest.mark.parametrize("name", [name for name, node in stub_names(STUB.body).items() if isinstance(node, ast.ClassDef)])
def test_class_has_the_names_of_the_stub(name: str) -> None:
    node = stub_names(STUB.body)[name]
    assert isinstance(node, ast.ClassDef)
    stub, bound = stub_names(node.body), module_names(getattr(_core, name))
    assert stub.keys() == bound.keys()
    for member, definition in stub.items():
        value = not isinstance(definition, ast.FunctionDef) or bool(definition.decorator_list)
        assert value == isinstance(bound[member], property), f"{name}.{member} is a {type(bound[member]).__name__}"


@pytest.mark.parametrize(("node", "owner"), list(functions()))
def test_function_has_the_parameters_of_the_stub(node: ast.FunctionDef, owner: Any) -> None:
    assert parameters(node) == bound_parameters(getattr(owner, node.name))


@pytest.mark.parametrize("name", [name for name, node in stub_names(STUB.body).items() if isinstance(node, ast.AnnAssign)])
def test_values_are_what_the_stub_says(name: str) -> None:
    node = stub_names(STUB.body)[name]
    assert isinstance(node, ast.AnnAssign)
    types = {"str": str, "ModuleType": ModuleType}
    assert isinstance(getattr(_core, name), types[ast.unparse(node.annotation)])


def written_parameters(function: Any) -> list[tuple[str, str, str | None]]:
    """Returns the parameters of a function that is written in Python."""
    empty = inspect.Parameter.empty
    return [
        (p.name, "keyword" if p.kind is p.KEYWORD_ONLY else "positional", None if p.default is empty else repr(p.default))
        for p in inspect.signature(function).parameters.values()
    ]


@pytest.mark.parametrize("name", [name for name in vars(Engine) if not name.startswith("_") and name != "info"])
def test_every_engine_has_the_parameters_of_the_protocol(name: str) -> None:
    """Each engine must have the parameters of the protocol Engine. mypy checks only _core.Model (from the stub) and StaticEngine, because
    it does not read the tests."""
    model = stub_names(STUB.body)["Model"]
    assert isinstance(model, ast.ClassDef)
    node = stub_names(model.body)[name]
    assert isinstance(node, ast.FunctionDef)
    wanted = written_parameters(getattr(Engine, name))
    assert parameters(node) == wanted
    for engine in (StaticEngine, fake_core.Model):
        assert written_parameters(getattr(engine, name)) == wanted, engine
