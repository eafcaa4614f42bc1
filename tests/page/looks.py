"""What the tests of the page share: pages that note what goes wrong in them, and how a test works on them."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import time
import urllib.request
from pathlib import Path
from typing import Any

from axe_playwright_python.sync_playwright import Axe
from patience import PATIENCE
from playwright.sync_api import Browser, BrowserContext, Locator, Page, expect

SIZES = {"narrow": (320, 640), "wide": (1280, 800)}
EACH_LOOK = [(scheme, size) for scheme in ("light", "dark") for size in SIZES]
expect.set_options(timeout=PATIENCE * 1000)
# Chromium logs these for answers that are errors, and for a server that is down. The page shows both to the user.
EXPECTED = re.compile(r"Failed to load resource: (the server responded with a status of (400|401|404|429|503)|net::ERR_)")
WATCH = """
window.violations = [];
document.addEventListener("securitypolicyviolation", (e) => window.violations.push(`${e.violatedDirective} ${e.blockedURI}`));
"""


class Server:
    """A server of the page as a process, which can be killed and started again on its port."""

    READY = "health"  # the path that answers 200 once the page can be used

    def __init__(self) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port: int = free.getsockname()[1]
        self.process: subprocess.Popen[bytes] | None = None
        self.url = f"http://127.0.0.1:{self.port}/"
        self.start()

    def command(self) -> list[str]:
        """Returns the command line that serves at self.port."""
        raise NotImplementedError

    def start(self) -> None:
        self.process = subprocess.Popen(self.command())
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end and self.process.poll() is None:
            try:
                self.read(self.READY)
                return
            except OSError:
                time.sleep(0.05)
        raise TimeoutError(f"the server did not start within {PATIENCE} s: {self.command()}")

    def kill(self) -> None:
        assert self.process
        self.process.kill()
        self.process.wait()

    def read(self, path: str) -> str:
        with urllib.request.urlopen(self.url + path, timeout=PATIENCE) as answer:
            return str(answer.read(), "utf-8")

    def get(self, path: str) -> Any:
        return json.loads(self.read(path))


class Look:
    """Opens pages in a window of some size and colours, and notes what goes wrong in them."""

    def __init__(self, browser: Browser, server: Any, scheme: str = "light", size: str = "wide", **more: Any) -> None:
        """server: a Server. Tests know its class."""
        width, height = SIZES[size]
        self.server = server
        self.context: BrowserContext = browser.new_context(viewport={"width": width, "height": height}, color_scheme=scheme, **more)  # type: ignore[arg-type]
        self.context.grant_permissions(["clipboard-read", "clipboard-write"], origin=server.url)
        self.context.add_init_script(WATCH)
        self.context.set_default_timeout(PATIENCE * 1000)
        self.wrong: list[str] = []
        self.pages: list[Page] = []

    def open(self, path: str = "", ready: bool = True) -> Page:
        page = self.context.new_page()
        page.on("pageerror", lambda error: self.wrong.append(f"thrown: {error}"))
        page.on("console", lambda m: m.type in ("error", "warning") and not EXPECTED.search(m.text) and self.wrong.append(m.text))
        page.on("dialog", lambda dialog: self.wrong.append(f"dialog: {dialog.message}"))
        self.pages.append(page)
        page.goto(self.server.url + path)
        if ready:
            page.wait_for_selector('#health[data-state="ready"]')
            page.wait_for_selector("#draft:focus")
        return page

    def close(self) -> None:
        for page in self.pages:
            if not page.is_closed():
                self.wrong += page.evaluate("window.violations")
        self.context.close()
        assert self.wrong == []


def shot(page: Page, name: str) -> None:
    folder = os.environ.get("PUMICE_PAGE_SHOTS")
    if folder:
        Path(folder).mkdir(parents=True, exist_ok=True)
        size = page.viewport_size or {"width": 0}
        dark = page.evaluate("matchMedia('(prefers-color-scheme: dark)').matches")
        page.screenshot(path=str(Path(folder) / f"{name}-{size['width']}-{'dark' if dark else 'light'}.png"))


def check(page: Page, name: str) -> None:
    """Asserts that axe finds nothing serious and that nothing is wider than the window."""
    shot(page, name)
    found = Axe().run(page).response["violations"]
    serious = [v for v in found if v["impact"] in ("serious", "critical")]
    assert [(v["id"], [n["html"][:200] for n in v["nodes"]][:3]) for v in serious] == []
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def reach(page: Page, target: Locator, back: bool = False) -> None:
    """Moves the focus to `target` with the tab key alone, and checks that the focus can be seen there."""
    expect(target).to_be_visible()
    for _ in range(150):
        page.keyboard.press("Shift+Tab" if back else "Tab")
        if target.evaluate("(node) => node === document.activeElement"):
            seen = target.evaluate("(n) => n.id === 'draft' || getComputedStyle(n).outlineStyle !== 'none'")
            assert seen, "the focus cannot be seen"
            return
    raise AssertionError(f"the tab key does not reach {target}")


def press(page: Page, target: Locator, back: bool = False, key: str = "Enter") -> None:
    reach(page, target, back)
    page.keyboard.press(key)


def ask(page: Page, text: str) -> None:
    """Types a message, sends it with Enter, and waits for the answer's end."""
    page.locator("#draft").focus()
    page.keyboard.type(text)
    page.keyboard.press("Enter")
    ended(page)


def ended(page: Page) -> None:
    # Not expect(): while it waits, it describes the element again and again, which for a long thread takes longer than the answer.
    page.wait_for_selector('#thread[aria-busy="false"]')


def last(page: Page) -> Locator:
    return page.locator(".message.assistant").last


def button(page: Page, name: str | re.Pattern[str]) -> Locator:
    return page.get_by_role("button", name=name, exact=isinstance(name, str))
