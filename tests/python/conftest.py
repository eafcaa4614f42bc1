from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

# A shell starts background jobs with Ctrl-C (SIGINT) ignored. These tests send SIGINT, so they need Python's handler.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Processes that the tests start must have Python's default streams. On one machine, PYTHONUNBUFFERED hid an exit code of 120.
for variable in ("PYTHONUNBUFFERED", "PYTHONIOENCODING"):
    os.environ.pop(variable, None)

ROOT = Path(__file__).parent.parent.parent
sys.path[:0] = [str(ROOT / "examples"), str(ROOT / "tests"), str(ROOT / "tests" / "python" / "support")]

import samples  # noqa: E402

import pumice  # noqa: E402
from pumice.model import chat_calls, generate_calls  # noqa: E402


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "callers" in item.path.parts and item.path.name != "test_abuse.py":  # its limits are of processor time
            item.add_marker(pytest.mark.alone)


@pytest.fixture
def always_guesses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Guesses of later tokens are made even where they save no time (on a fast machine, or beside other processes)."""
    real = generate_calls.speculation
    for module in (chat_calls, generate_calls):
        monkeypatch.setattr(module, "speculation", lambda *given: {**real(*given), "always": True})


@pytest.fixture(scope="session")
def minilm() -> Iterator[pumice.Model]:
    with pumice.load(samples.minilm(), device="cpu") as model:
        yield model


@pytest.fixture(scope="session")
def smollm2() -> Iterator[pumice.Model]:
    with pumice.load(samples.smollm2(), device="cpu") as model:
        yield model


@pytest.fixture(scope="session")
def caller() -> Iterator[pumice.Model]:
    """SmolLM2 with a chat template that has a place for tools."""
    with pumice.load(samples.smollm2(), chat_template=samples.tools_template(), device="cpu") as model:
        yield model


@pytest.fixture(scope="session")
def gemma3() -> Iterator[pumice.Model]:
    with pumice.load(samples.gemma3(), device="cpu") as model:
        yield model
