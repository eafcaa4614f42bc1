"""The browser, and pages of the server that each file of tests brings (its fixture `server`)."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, sync_playwright

sys.path.append(str(Path(__file__).parents[1] / "python" / "support"))  # patience.py
pytest.register_assert_rewrite("looks")  # so that its assertions say what they compared
from looks import EACH_LOOK, Look, Server  # noqa: E402

CHROMIUM = os.environ.get("PUMICE_CHROMIUM") or shutil.which("chromium-headless-shell")


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    assert CHROMIUM, "chromium-headless-shell is missing: apt-get install chromium-headless-shell, or set PUMICE_CHROMIUM"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"] if os.geteuid() == 0 else [])
        yield browser
        browser.close()


@pytest.fixture
def look(browser: Browser, server: Server) -> Iterator[Look]:
    look = Look(browser, server)
    yield look
    look.close()


@pytest.fixture(params=EACH_LOOK, ids="-".join)
def each_look(browser: Browser, server: Server, request: pytest.FixtureRequest) -> Iterator[Look]:
    scheme, size = request.param
    look = Look(browser, server, scheme, size)
    yield look
    look.close()
