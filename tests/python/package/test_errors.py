"""The error classes: their bases, the positions that they hold, pickling, and a class for each kind of error that the engine has."""

from __future__ import annotations

import pickle
import re
from typing import Any

import pytest
from fake_core import ERRORS, fake  # noqa: F401
from paths import ROOT


@pytest.mark.parametrize(
    ("name", "bases"),
    [
        ("ModelFormatError", ["ValueError"]),
        ("UnsupportedModelError", []),
        ("TokenizerError", []),
        ("ChatTemplateError", []),
        ("ContextLengthError", ["ValueError"]),
        ("GrammarError", ["ValueError"]),
        ("GrammarBusyError", []),
        ("IncompleteCallError", ["ValueError"]),
        ("DeviceError", []),
        ("DeviceNotFoundError", ["DeviceError"]),
        ("DeviceLostError", ["DeviceError"]),
        ("ForkedDeviceError", ["DeviceError"]),
        ("OutOfDeviceMemoryError", ["DeviceError", "MemoryError"]),
        ("NumericError", []),
        ("OverloadedError", []),
        ("EventLoopError", ["RuntimeError"]),
        ("UnsupportedTaskError", ["TypeError"]),
    ],
)
def test_tree(pumice: Any, name: str, bases: list[str]) -> None:
    found = {base.__name__ for base in getattr(pumice, name).__mro__}
    assert {"PumiceError", *bases} <= found
    extra = {"ValueError", "TypeError", "MemoryError", "DeviceError"} - set(bases) - {name}
    assert not extra & found


def test_warnings_are_user_warnings(pumice: Any) -> None:
    assert issubclass(pumice.TruncationWarning, UserWarning)
    assert issubclass(pumice.FallbackWarning, UserWarning)


def test_every_kind_of_the_engine_has_a_class(pumice: Any) -> None:
    header = (ROOT / "cpp" / "core" / "error.h").read_text()
    kinds = re.findall(r"^  (\w+),", header.partition("enum class ErrorKind {")[2].partition("};")[0], re.MULTILINE)
    assert len(kinds) > 10
    assert set(ERRORS) == {"base", *kinds}
    assert ERRORS["base"] is pumice.PumiceError
    assert ERRORS["invalid_argument"] is ValueError
    assert ERRORS["cancelled"] is KeyboardInterrupt
    assert ERRORS["io"] is OSError


def test_model_format_error(pumice: Any) -> None:
    error = pumice.ModelFormatError("tensor is too long", file="m.gguf", field="n_dims", offset=24)
    assert (error.file, error.field, error.offset) == ("m.gguf", "n_dims", 24)
    assert str(error) == "tensor is too long (m.gguf, field n_dims, byte 24)"
    whole = pumice.ModelFormatError("m.gguf: n_dims is 9 at byte 24", file="m.gguf", field="n_dims", offset=24)
    assert str(whole) == "m.gguf: n_dims is 9 at byte 24"
    assert str(pumice.ModelFormatError("bad")) == "bad"
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), again.file, again.offset) == (str(error), "m.gguf", 24)


def test_each_has_a_place_on_the_page_of_errors(pumice: Any) -> None:
    page = (ROOT / "docs" / "python" / "errors.md").read_text(encoding="utf-8")
    classes = {name: each for name, each in vars(pumice.errors).items() if isinstance(each, type) and each.__module__ == "pumice.errors"}
    assert len(classes) == 22
    assert [name for name in classes if f"\n### {name}\n" not in page] == []
    assert [name for name, each in classes.items() if f"docs/python/errors.md#{name.lower()}" not in (each.__doc__ or "")] == []
