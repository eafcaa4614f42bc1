"""The page of `pumice serve` in a real browser, against the real server with SmolLM2 and MiniLM: what a stand-in could have otherwise.

PUMICE_PYTHON is a Python with pumice, its extra [serve] and the sample models. `make test-page` gives that of its virtual environment."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from looks import Look, Server, ask, button, check, ended, last, press, reach
from patience import PATIENCE, wait_until
from playwright.sync_api import Page, expect

EXAMPLES = Path(__file__).parents[2] / "examples"
# Starts `pumice serve` with the sample models, whose paths only that Python knows. SmolLM2 gets a template with a place for tools.
SERVE = """
import sys
sys.path.insert(0, sys.argv[1])
import samples
from pumice.__main__ import main
models = [f"chat={samples.smollm2()}", f"embed={samples.minilm()}", "--load", f"chat.chat-template={samples.tools_template()}"]
sys.exit(main(["serve", *models, "--device", "cpu", "--grace", "0.5", "--log-level", "warning", "--port", sys.argv[2]]))
"""
ENDLESS = '{"ignore_eos": true}'  # so that an answer lasts until it is stopped, or the context is full


class RealServer(Server):
    """`pumice serve`."""

    READY = "ready"

    def command(self) -> list[str]:
        return [os.environ.get("PUMICE_PYTHON", sys.executable), "-c", SERVE, str(EXAMPLES), str(self.port)]

    def stop(self) -> None:
        """Stops it as service managers do. It ends after its grace."""
        assert self.process
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(PATIENCE) == 0

    def figure(self, line: str) -> float:
        """Returns a figure of /metrics."""
        return next(float(each.rpartition(" ")[2]) for each in self.read("metrics").splitlines() if each.startswith(line + " "))


@pytest.fixture(scope="module")
def server() -> Iterator[RealServer]:
    server = RealServer()
    yield server
    server.kill()


def settings(page: Page, **fields: str) -> None:
    """Fills fields of the open conversation's settings."""
    page.click("#settings-open")
    for name, text in fields.items():
        page.locator(f"#set-{name}").fill(text)
    page.keyboard.press("Escape")


def text_of(page: Page) -> str:
    """Returns the text of the last answer as it is shown, with one space between words."""
    return " ".join(last(page).locator(".text").inner_text().split())


def begin(page: Page, text: str) -> None:
    """Sends a message, and waits until its answer has begun."""
    page.locator("#draft").fill(text)
    page.keyboard.press("Enter")
    expect(last(page)).to_have_attribute("aria-busy", "true")
    grown(page, 80)


def grown(page: Page, characters: int) -> None:
    """Waits until the last answer has so many characters."""
    expect(last(page).locator(".text")).to_have_text(re.compile(rf"^[\s\S]{{{characters},}}"), timeout=PATIENCE * 1000)


def test_send(each_look: Look) -> None:
    page = each_look.open()
    settings(page, temperature="0", max_tokens="48", system="You answer in English.")
    ask(page, "Why does pumice float on water?")
    expect(last(page).locator(".meta")).to_contain_text("tokens/s")
    expect(page.locator("#context")).to_contain_text("of 8,192 tokens of context")
    expect(page.locator("#status")).to_contain_text("has answered")
    whole = text_of(page)
    assert len(whole) > 20
    ask(page, "And basalt?")
    expect(last(page).locator(".meta")).to_contain_text("read from cache")  # the second turn goes on from the first
    check(page, "real-answer")
    page.get_by_label("Answer again").first.click()
    ended(page)
    assert text_of(page) == whole  # temperature 0
    page.click("#curl")
    button(page, "Show the prompt").click()
    expect(page.locator("#request-text")).to_contain_text("<|im_start|>user\nWhy does pumice float on water?<|im_end|>")
    page.keyboard.press("Escape")


def test_stop_and_go_on(look: Look, server: RealServer) -> None:
    page = look.open()
    settings(page, temperature="0", extra=ENDLESS)
    begin(page, "Tell me a story.")
    assert server.figure('pumice_requests_running{model="chat"}') == 1
    page.keyboard.press("Escape")
    ended(page)
    expect(page.locator("#status")).to_have_text("Stopped.")
    wait_until(lambda: server.figure('pumice_requests_running{model="chat"}') == 0)  # else the server still writes
    before = text_of(page)
    last(page).get_by_label("Go on").click()
    grown(page, len(before) + 80)
    page.keyboard.press("Escape")
    ended(page)
    assert text_of(page).startswith(before)


def test_tokens_and_going_on_from_another(each_look: Look) -> None:
    page = each_look.open()
    page.click("#settings-open")
    page.check("#probabilities")
    page.keyboard.press("Escape")
    settings(page, temperature="0", max_tokens="12")
    ask(page, "Name three colours.")
    press(page, last(page).get_by_label("Tokens and their probabilities"), back=True)
    tokens = last(page).locator(".token")
    assert 3 <= tokens.count() <= 12
    check(page, "real-tokens")
    kept = tokens.nth(0).inner_text() + tokens.nth(1).inner_text()
    reach(page, tokens.first, back=True)
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Enter")
    expect(page.locator("dialog.alternatives li")).to_have_count(8)
    check(page, "real-alternatives")
    other = page.locator("dialog.alternatives li button").first
    chosen = other.locator(".alternative").inner_text()
    other.click()
    ended(page)
    expect(last(page).locator(".place")).to_have_text("2 of 2")
    shown = last(page).locator(".tokens").inner_text()
    assert shown.replace("\n", "").startswith((kept + chosen).replace("\n", "")), (shown, kept, chosen)
    assert len(shown) > len(kept + chosen)


def test_a_call_and_its_result(look: Look) -> None:
    page = look.open()
    page.click("#settings-open")
    page.locator(".field", has=page.locator("#set-tools")).get_by_role("button", name="Example").click()
    page.select_option("#set-tool_choice", "required")
    page.fill("#set-max_tokens", "60")
    page.fill("#set-temperature", "0")
    page.fill("#set-extra", '{"parallel_tool_calls": false}')
    ask(page, "How is the weather in Naples?")
    expect(last(page).locator(".call h4")).to_have_text("get_weather")
    [city] = json.loads(last(page).locator(".call pre").inner_text()).values()  # of the tool's schema
    assert isinstance(city, str)
    check(page, "real-call")
    page.select_option("#set-tool_choice", "none")
    page.get_by_label("Result of get_weather").fill("sunny, 21 degrees")
    button(page, "Send result").click()
    ended(page)
    expect(page.locator(".message.tool")).to_contain_text("sunny")
    assert len(text_of(page)) > 5 and last(page).locator(".note.wrong").count() == 0


def test_the_schema_box(look: Look) -> None:
    page = look.open()
    page.click("#settings-open")
    page.locator(".field", has=page.locator("#set-schema")).get_by_role("button", name="Example").click()
    page.select_option("#set-reasoning_effort", "low")
    page.fill("#set-max_tokens", "80")
    ask(page, "Name a book.")
    answer = json.loads(text_of(page))
    assert set(answer) == {"title", "year"} and isinstance(answer["year"], int)
    expect(last(page).locator(".note")).to_have_text("This model does not use: reasoning_effort.")
    page.fill("#set-schema", '{"type": "object", "properties": {"a": {"$ref": "#/nowhere"}}}')
    ask(page, "And now?")
    expect(last(page).locator(".note.wrong")).to_contain_text("nowhere")  # the server says what is wrong with it


def test_texts(each_look: Look) -> None:
    page = each_look.open()
    page.click("#tab-texts")
    page.fill(
        "#similarity-texts", "A cat sleeps on the sofa.\nA kitten naps on the couch.\nThe stock market fell today.\nShares lost value."
    )
    button(page, "Compare").click()
    expect(page.locator(".matrix td")).to_have_count(1 + 16)
    expect(page.locator(".pairs li").first).to_contain_text("A kitten naps on the couch.")
    page.fill("#rerank-query", "Where do kittens sleep?")
    page.fill("#rerank-documents", "The stock market fell today.\nA kitten naps on the couch.\nParis is the capital of France.")
    button(page, "Rank").click()
    expect(page.locator(".ranks li").first).to_contain_text("A kitten naps on the couch.")
    page.fill("#tokens-text", "Größe 🪨")
    button(page, "Show tokens").click()
    expect(page.locator(".cut .piece").last).to_have_text("a8")  # the last byte of a character that several tokens share
    expect(page.locator("#view-texts")).to_contain_text("for 7 characters")
    check(page, "real-texts")


def test_figures(each_look: Look) -> None:
    page = each_look.open()
    settings(page, max_tokens="8")
    page.click("#tab-figures")
    tokens = page.locator(".chart", has=page.get_by_role("heading", name="generation tokens"))
    expect(tokens.locator(".legend li").first).to_contain_text("chat")
    page.click("#tab-chat")
    ask(page, "Hello")
    page.click("#tab-figures")
    # The rate of the time in which the answer was written, read from the server's own count.
    expect(tokens.locator(".most")).not_to_have_text("0")
    expect(page.locator(".chart", has=page.get_by_role("heading", name="first token seconds")).locator("polyline")).to_have_count(1)
    check(page, "real-figures")


@pytest.mark.parametrize("way", ["killed", "stopped"])
def test_the_server_ends_in_mid_answer_and_comes_back(look: Look, server: RealServer, way: str) -> None:
    page = look.open()
    settings(page, temperature="0", extra=ENDLESS)
    begin(page, "Tell me a story.")
    server.kill() if way == "killed" else server.stop()
    ended(page)
    said = {"killed": "The connection ended before the answer was whole.", "stopped": "this server stops"}[way]
    expect(last(page).locator(".note.wrong")).to_contain_text(said)
    before = text_of(page)
    expect(page.locator("#health")).to_have_text("no server")
    check(page, f"real-{way}")
    server.start()
    expect(page.locator("#health")).to_have_text("ready")
    last(page).get_by_role("button", name="Go on").last.click()
    grown(page, len(before) + 80)
    page.keyboard.press("Escape")
    ended(page)
    assert text_of(page).startswith(before)
