"""The page of `pumice serve` in a real browser, against fake_server.py. `make test-page` runs these tests and brings what they need.

Every test fails if the page logs an error, throws, or violates the Content-Security-Policy. PUMICE_PAGE_SHOTS=FOLDER keeps screenshots."""

from __future__ import annotations

import json
import re
import shlex
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
from looks import Look, Server, ask, button, check, ended, last, press, reach
from patience import PATIENCE, wait_until
from playwright.sync_api import Browser, Page, expect

HERE = Path(__file__).parent
PAGE = HERE.parents[1] / "python" / "pumice" / "serve" / "page"


class StandIn(Server):
    """fake_server.py."""

    def command(self) -> list[str]:
        return [sys.executable, str(HERE / "fake_server.py"), str(self.port)]

    def post(self, path: str, body: dict[str, Any]) -> None:
        request = urllib.request.Request(self.url + path, json.dumps(body).encode(), {"content-type": "application/json"})
        with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
            answer.read()

    def log(self) -> list[dict[str, Any]]:
        log: list[dict[str, Any]] = self.get("fake/log")
        return log

    def chats(self) -> list[dict[str, Any]]:
        return [entry["body"] for entry in self.log() if entry["path"] == "/v1/chat/completions"]


@pytest.fixture
def server() -> Iterator[StandIn]:
    server = StandIn()
    yield server
    server.kill()


class Work:
    """Processor time of a page's main thread, in milliseconds. Other processes of the machine do not count in it."""

    def __init__(self, page: Page) -> None:
        self.session = page.context.new_cdp_session(page)
        self.session.send("Performance.enable", {"timeDomain": "threadTicks"})
        self.begin = self.now()

    def now(self) -> float:
        metrics = {m["name"]: m["value"] for m in self.session.send("Performance.getMetrics")["metrics"]}
        return 1000 * float(metrics["TaskDuration"])

    def since(self) -> float:
        before, self.begin = self.begin, self.now()
        return self.begin - before


# Chat


def test_every_function_by_keyboard(each_look: Look) -> None:
    page = each_look.open()
    check(page, "empty")
    ask(page, "sample please")
    answer = last(page)
    expect(answer.locator("strong").first).to_have_text("volcanic rock")
    expect(answer.locator("ol > li")).to_have_count(2)
    expect(answer.locator("td")).to_have_count(6)
    expect(answer.locator("pre code")).to_contain_text("return density < 1.0")
    expect(page.locator("#status")).to_contain_text("has answered")
    expect(page.locator("#context")).to_contain_text("of 8,192 tokens of context")
    expect(answer.locator(".meta")).to_contain_text("48.5 tokens/s")
    check(page, "answer")

    # Edit the question: a second version, and back to the first.
    press(page, page.locator(".message.user").get_by_label("Edit and send again"), back=True)
    page.keyboard.press("Control+A")
    page.keyboard.type("hello")
    page.keyboard.press("Control+Enter")
    expect(last(page)).to_contain_text("chat says: hello")
    ended(page)
    expect(page.locator(".message.user .place")).to_have_text("2 of 2")
    press(page, page.locator(".message.user").get_by_label("Earlier version"), back=True)
    expect(page.locator(".message.user .plain")).to_have_text("sample please")
    press(page, page.locator(".message.user").get_by_label("Later version"), back=True)

    # Answer again: a second version of the answer.
    press(page, last(page).get_by_label("Answer again"))
    ended(page)
    expect(last(page).locator(".place")).to_have_text("2 of 2")

    # Edit the answer without asking the model.
    requests = len(each_look.server.chats())
    press(page, last(page).get_by_label("Edit as another version"), back=True)
    page.keyboard.press("Control+A")
    page.keyboard.type("It's my own answer")
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    expect(last(page).locator(".text")).to_have_text("It's my own answer")
    expect(last(page).locator(".place")).to_have_text("3 of 3")
    assert len(each_look.server.chats()) == requests

    # The title, and the request as curl.
    reach(page, page.locator("#title"), back=True)
    page.keyboard.press("Control+A")
    page.keyboard.type("Stones")
    page.keyboard.press("Tab")
    press(page, button(page, "As curl"))
    expect(page.locator("#request-text")).to_contain_text("curl -N")
    words = shlex.split(page.locator("#request-text").inner_text())  # as a shell reads it
    assert words[:3] == ["curl", "-N", f"{each_look.server.url}v1/chat/completions"]
    assert json.loads(words[-1])["messages"][-1] == {"role": "assistant", "content": "It's my own answer"}
    check(page, "curl")
    press(page, button(page, "Show the prompt"))
    expect(page.locator("#request-text")).to_contain_text("<|assistant|>")
    page.keyboard.press("Escape")
    expect(button(page, "As curl")).to_be_focused()

    # A new conversation, and back through the list.
    narrow = page.evaluate("innerWidth < 896")
    if narrow:
        press(page, page.locator("#side-open"), back=True)
        check(page, "list")
        page.keyboard.press("Enter")
    else:
        press(page, page.locator("#new"), back=True)
    expect(page.locator("#empty")).to_be_visible()
    expect(page.locator("#draft")).to_be_focused()
    if narrow:
        press(page, page.locator("#side-open"), back=True)
        press(page, page.locator("#conversations .open").first)
        expect(page.locator("#thread")).to_be_focused()
    else:
        press(page, page.locator("#conversations .open").first, back=True)
        press(page, page.locator("#side-open"))
        expect(page.locator("#side")).to_be_hidden()
        page.keyboard.press("Enter")
        expect(page.locator("#new")).to_be_focused()
    expect(page.locator("#title")).to_have_value("Stones")


def test_settings_by_keyboard(each_look: Look) -> None:
    page = each_look.open()
    press(page, page.locator("#settings-open"), back=True)
    for name, text in {"System prompt": "Be short.", "Temperature": "0.7", "Top k": "40", "Seed": "3", "Stop at": "END"}.items():
        reach(page, page.get_by_label(name, exact=True))
        page.keyboard.type(text)
    reach(page, page.get_by_label("Top p", exact=True), back=True)
    page.keyboard.type("2")
    expect(page.locator("#set-top_p-problem")).to_have_text("Top p must be 0 to 1, not 2.")
    check(page, "settings")
    page.keyboard.press("Escape")
    expect(page.locator("#settings-open")).to_be_focused()
    page.locator("#draft").focus()
    page.keyboard.type("hello")
    page.keyboard.press("Enter")
    expect(page.locator("#set-top_p")).to_be_focused()  # what is wrong is shown, nothing is sent, the text stays
    assert each_look.server.chats() == []
    page.keyboard.press("Control+A")
    page.keyboard.type("0.9")
    page.keyboard.press("Escape")
    expect(page.locator("#draft")).to_have_value("hello")
    page.locator("#draft").focus()
    page.keyboard.press("Enter")
    expect(last(page)).to_contain_text("says")
    ended(page)
    (body,) = each_look.server.chats()
    assert body["messages"] == [{"role": "system", "content": "Be short."}, {"role": "user", "content": "hello"}]
    wanted = {"temperature": 0.7, "top_k": 40, "top_p": 0.9, "seed": 3, "stop": ["END"]}
    assert {name: body.get(name) for name in wanted} == wanted
    assert not {"min_p", "max_tokens", "logprobs", "tools", "response_format"} & set(body)


def test_schema_and_ignored_fields(look: Look) -> None:
    page = look.open()
    page.click("#settings-open")
    page.locator(".field", has=page.locator("#set-schema")).get_by_role("button", name="Example").click()
    page.select_option("#set-reasoning_effort", "low")
    ask(page, "a book")
    body = look.server.chats()[0]
    assert body["response_format"]["type"] == "json_schema"
    assert body["response_format"]["json_schema"]["schema"]["required"] == ["title", "year"]
    expect(last(page)).to_contain_text('"year": 79')
    expect(last(page).locator(".note")).to_have_text("This model does not use: reasoning_effort.")
    page.fill("#set-schema", "{")
    expect(page.locator("#set-schema")).to_have_attribute("aria-invalid", "true")
    page.fill("#set-schema", "")
    page.fill("#set-extra", '{"stream": false}')
    expect(page.locator("#set-extra-problem")).to_contain_text("which the page sets itself")


def test_calls_and_typed_results(each_look: Look) -> None:
    page = each_look.open()
    press(page, page.locator("#settings-open"), back=True)
    press(page, page.locator(".field", has=page.locator("#set-tools")).get_by_role("button", name="Example"))
    page.keyboard.press("Escape")
    ask(page, "How is the weather in Naples?")
    expect(last(page).locator(".call h4")).to_have_text("get_weather")
    expect(last(page).locator(".call pre")).to_have_text('{\n  "city": "Naples"\n}')
    check(page, "call")
    reach(page, page.get_by_label("Result of get_weather"), back=True)
    page.keyboard.type("sunny")
    press(page, button(page, "Send result"))
    expect(last(page)).to_contain_text("The result was sunny.")
    ended(page)
    told = each_look.server.chats()[-1]["messages"]
    assert told[1]["content"] is None and told[1]["tool_calls"][0]["id"] == "call_1"
    assert told[2] == {"role": "tool", "tool_call_id": "call_1", "content": "sunny"}
    expect(page.locator(".message.tool")).to_contain_text("sunny")
    check(page, "result")


def test_reasoning_stands_apart(look: Look) -> None:
    page = look.open()
    ask(page, "reason about it")
    expect(last(page).locator(".text")).to_have_text("So the answer is 42.")
    details = last(page).locator("details")
    expect(details.locator(".md")).to_be_hidden()
    press(page, details.locator("summary"), back=True)
    expect(details.locator(".md p")).to_have_text(["First I think.", "Then I think again."])
    ask(page, "and now?")
    assert look.server.chats()[-1]["messages"][1]["reasoning_content"] == "First I think.\n\nThen I think again."


def test_tokens_and_going_on_from_another(each_look: Look) -> None:
    page = each_look.open()
    page.click("#settings-open")
    page.check("#probabilities")
    page.keyboard.press("Escape")
    ask(page, "one two three")
    assert each_look.server.chats()[0]["top_logprobs"] > 0
    press(page, last(page).get_by_label("Tokens and their probabilities"), back=True)
    tokens = last(page).locator(".token")
    expect(tokens).to_have_count(6)  # "chat", " says", ":", " one", " two", " three"
    check(page, "tokens")
    reach(page, tokens.first, back=True)
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    expect(tokens.nth(3)).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.get_by_role("dialog")).to_contain_text("part of a character")
    check(page, "alternatives")
    page.keyboard.press("Escape")
    expect(tokens.nth(3)).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator("dialog.alternatives li button").first).to_be_focused()
    page.keyboard.press("Enter")
    expect(last(page).locator(".tokens")).to_have_text("chat says: other and goes on from there.")
    expect(button(page, "Stop").or_(button(page, "Send"))).to_be_focused()
    ended(page)
    body = each_look.server.chats()[-1]
    assert body["continue_final_message"] is True
    assert body["messages"][-1] == {"role": "assistant", "content": "chat says: other"}
    expect(last(page).locator(".place")).to_have_text("2 of 2")


def test_two_models_side_by_side(each_look: Look) -> None:
    page = each_look.open()
    ask(page, "first")
    reach(page, page.locator("#second"), back=True)
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowDown")
    expect(page.locator("#second")).to_have_value("small")
    ask(page, "second")
    expect(page.locator(".message.user")).to_have_count(2)  # shown once for both
    expect(page.locator(".pair .text")).to_have_text(["chat says: second", "small says: second"])
    ask(page, "third")
    for model in ("chat", "small"):
        (body,) = [b for b in each_look.server.chats() if b["model"] == model and b["messages"][-1]["content"] == "third"]
        assert body["messages"][3] == {"role": "assistant", "content": f"{model} says: second"}  # each goes on with its own
    check(page, "pair")
    page.select_option("#second", "")
    expect(page.locator(".message .text")).to_have_text(["chat says: first", "chat says: second", "chat says: third"])


def test_editing_and_versions_side_by_side(look: Look) -> None:
    page = look.open()
    page.select_option("#second", "small")
    ask(page, "first")
    page.locator(".message.user").get_by_label("Edit and send again").click()
    page.keyboard.press("Control+A")
    page.keyboard.type("other")
    page.keyboard.press("Control+Enter")
    expect(page.locator(".pair .text")).to_have_text(["chat says: other", "small says: other"])
    ended(page)
    # An answer again is a version of its own column.
    page.locator(".column").last.get_by_label("Answer again").click()
    expect(page.locator(".column").last.locator(".place")).to_have_text("2 of 2")
    ended(page)
    expect(page.locator(".column").first.locator(".place")).to_have_count(0)
    page.locator(".message.user").get_by_label("Earlier version").click()
    expect(page.locator(".pair .text")).to_have_text(["chat says: first", "small says: first"])
    page.locator(".message.user").get_by_label("Later version").click()
    expect(page.locator(".pair .text")).to_have_text(["chat says: other", "small says: other"])
    page.reload()
    expect(page.locator(".pair .text")).to_have_text(["chat says: other", "small says: other"])


def test_the_list_by_keyboard(each_look: Look, tmp_path: Path) -> None:
    page = each_look.open()
    ask(page, "keep this")
    press(page, last(page).get_by_label("Copy", exact=True), back=True)
    expect(page.locator("#status")).to_have_text("Text copied.")
    assert page.evaluate("navigator.clipboard.readText()") == "chat says: keep this"
    with page.expect_download() as one:
        press(page, button(page, "Export this conversation"), back=True)
    assert one.value.suggested_filename == "keep-this.json"
    narrow = page.evaluate("innerWidth < 896")
    if narrow:
        press(page, page.locator("#side-open"), back=True)
        expect(page.locator("#new")).to_be_focused()
    with page.expect_download() as download:
        press(page, button(page, "Export all"), back=not narrow)
    path = tmp_path / "all.json"
    download.value.save_as(path)
    press(page, button(page, "Delete keep this"), back=True)
    expect(page.locator("#conversations .open")).to_have_count(0)
    expect(page.locator("#empty")).to_be_visible()
    press(page, button(page, "Undo"))
    expect(page.locator("#conversations .open")).to_have_text(["keep this"])
    expect(last(page)).to_contain_text("chat says: keep this")
    with page.expect_file_chooser() as chooser:
        press(page, button(page, "Import"), back=True)
    chooser.value.set_files(path)
    expect(page.locator("#conversations .open")).to_have_count(2)
    check(page, "imported")


def test_text_before_an_alternative(look: Look) -> None:
    """Characters of several tokens, and an answer whose first part came without probabilities."""
    page = look.open()
    told = page.evaluate(
        """async () => {
          const { beginning } = await import("/page/tokens.js");
          const token = (text, bytes) => ({ text, bytes, logprob: -1 });
          const tokens = [token("a", [97]), token("", [0xc3]), token("", [0xa9]), token("!", [33])];
          return [
            beginning({ tokens }, 3, token("?", [63])).content,
            beginning({ tokens }, 2, token("", [0xbc])).content,
            beginning({ tokens }, 2, token("x", [120])).content,
            beginning({ tokens }, 1, token("", [0xc3])).content,
            beginning({ tokens }, 1, token("", null)).content,
            beginning({ tokens, head: "Well, " }, 1, token("b", null)).content,
          ];
        }"""
    )
    # Half a character, and a token without text, which ends an answer, cannot be gone on from.
    assert told == ["aé?", "aü", None, None, None, "Well, ab"]
    page.locator("#draft").fill("slow please")
    page.keyboard.press("Enter")
    expect(last(page)).to_contain_text("word3")
    page.keyboard.press("Escape")
    ended(page)
    begun = last(page).locator(".text").inner_text()
    page.click("#settings-open")
    page.check("#probabilities")
    last(page).get_by_label("Go on").click()
    ended(page)
    last(page).get_by_label("Tokens and their probabilities").click()
    expect(last(page).locator(".tokens")).to_have_text(f"{begun} and goes on from there.")
    last(page).locator(".token").nth(1).click()
    page.locator("dialog.alternatives li button").first.click()
    expect(last(page).locator(".tokens")).to_have_text(f"{begun} and other and goes on from there.")
    ended(page)
    assert look.server.chats()[-1]["messages"][-1]["content"] == f"{begun} and other"


def test_stop_and_go_on(look: Look) -> None:
    page = look.open()
    page.locator("#draft").focus()
    page.keyboard.type("slow please")
    page.keyboard.press("Enter")
    expect(last(page)).to_contain_text("word3")
    expect(last(page)).to_have_attribute("aria-busy", "true")
    expect(page.locator("#thread")).to_have_attribute("aria-busy", "true")
    expect(button(page, "Stop")).to_be_visible()
    page.keyboard.press("Escape")
    ended(page)
    expect(page.locator("#status")).to_have_text("Stopped.")
    text = last(page).locator(".text").inner_text()
    assert "word3" in text and "word199" not in text
    wait_until(lambda: 'pumice_running{model="chat"} 0' in look.server.read("metrics"))  # else the server still writes
    press(page, last(page).get_by_label("Go on"), back=True)
    expect(last(page)).to_contain_text("and goes on from there.")
    assert last(page).locator(".text").inner_text().startswith(text)


def test_conversations_stay_and_travel(look: Look, tmp_path: Path) -> None:
    page = look.open()
    page.click("#settings-open")
    page.check("#probabilities")
    page.fill("#set-seed", "3")
    ask(page, "reason first")
    page.locator(".message.user").get_by_label("Edit and send again").click()
    page.keyboard.press("Control+A")
    page.keyboard.type("keep this")
    page.keyboard.press("Control+Enter")
    expect(last(page)).to_contain_text("chat says: keep this")
    ended(page)
    page.locator("#title").fill("keep this")
    page.keyboard.press("Enter")
    page.locator("#draft").fill("half a thou")
    page.wait_for_timeout(500)
    page.reload()
    expect(last(page)).to_contain_text("chat says: keep this")
    expect(page.locator("#draft")).to_have_value("half a thou")
    with page.expect_download() as download:
        button(page, "Export all").click()
    path = tmp_path / "all.json"
    download.value.save_as(path)
    button(page, re.compile("^Delete")).click()
    expect(page.locator("#conversations .open")).to_have_count(0)
    button(page, "Undo").click()
    expect(page.locator("#conversations .open")).to_have_text(["keep this"])
    # Imported beside the one that is there: nothing is overwritten.
    page.set_input_files("#file", path)
    expect(page.locator("#conversations .open")).to_have_text(["keep this", "keep this"])
    expect(last(page)).to_contain_text("chat says: keep this")
    with page.expect_download() as download:
        button(page, "Export all").click()
    download.value.save_as(path)
    one, two = json.loads(path.read_text())["conversations"]
    assert one.pop("id") != two.pop("id") and one == two  # nothing was lost on the way
    assert {"tokens", "usage", "speed", "seed", "finish"} <= {name for node in one["nodes"].values() for name in node}
    file = '{"format": "pumice.conversations", "version": 1, "conversations": [{"nodes": {"a": {"role": "%s", "parent": %s}}}]}'
    for text, told in {
        "not json": "The file is not JSON.",
        '{"format": "other"}': "is not an export of this page",
        '{"format": "pumice.conversations", "version": 2}': "has version 2",
        file % ("user", '"b"'): "parent is missing",
        file % ("user", '"a"'): "a circle",
        file % ("root", "null"): "known role",
    }.items():
        path.write_text(text)
        page.set_input_files("#file", path)
        expect(page.locator("#status")).to_contain_text(told)
    expect(page.locator("#conversations .open")).to_have_count(2)


def test_two_tabs(look: Look) -> None:
    first, second = look.open(), look.open()
    ask(first, "from the first")
    expect(second.locator("#conversations .open")).to_have_text(["from the first"])
    second.locator("#conversations .open").click()
    expect(last(second)).to_contain_text("chat says: from the first")
    ask(second, "from the second")
    expect(last(first)).to_contain_text("chat says: from the second")
    ask(first, "and on")
    assert [m["content"] for m in look.server.chats()[-1]["messages"] if m["role"] == "user"] == [
        "from the first",
        "from the second",
        "and on",
    ]


def test_a_page_closed_in_mid_answer(look: Look) -> None:
    page = look.open()
    page.locator("#draft").fill("slow please")
    page.keyboard.press("Enter")
    expect(last(page)).to_contain_text("word50")
    page.reload()
    expect(last(page)).to_contain_text("The page was closed before the answer was whole.")
    expect(last(page)).to_contain_text("word10")


# What goes wrong


def test_errors_say_what_is_wrong(look: Look) -> None:
    page = look.open()
    ask(page, "busy now")
    expect(last(page).locator(".note.wrong")).to_contain_text("256 requests wait already. The server asks to try again in 3 s.")
    ask(page, "break off")
    expect(last(page).locator(".note.wrong")).to_contain_text("The device was lost.")
    page.click("#settings-open")
    page.fill("#set-extra", '{"typical": 1}')
    ask(page, "hello")
    expect(last(page).locator(".note.wrong")).to_contain_text("typical is not a field of this endpoint")
    page.fill("#set-extra", "")
    last(page).get_by_role("button", name="Try again").click()
    expect(last(page)).to_contain_text("chat says: hello")
    ended(page)
    # Failed answers, which hold nothing, are not told to the model.
    assert [m["role"] for m in look.server.chats()[-1]["messages"]] == ["user", "user", "assistant", "user"]


def test_the_server_dies_in_mid_answer(look: Look) -> None:
    page = look.open()
    page.locator("#draft").focus()
    page.keyboard.type("slow please")
    page.keyboard.press("Enter")
    expect(last(page)).to_contain_text("word5")
    look.server.kill()
    ended(page)
    expect(last(page)).to_contain_text("The connection ended before the answer was whole.")
    expect(last(page)).to_contain_text("word5")
    expect(page.locator("#health")).to_have_text("no server")
    # The page goes on without it: conversations can be read, and what is typed stays.
    page.locator("#draft").focus()
    page.keyboard.type("my kept text")
    page.keyboard.press("Enter")
    expect(page.locator("#status")).to_contain_text("Your text is kept.")
    expect(page.locator("#draft")).to_have_value("my kept text")
    expect(page.locator(".message.user")).to_have_count(1)
    check(page, "down")
    page.click("#new")
    page.locator("#conversations .open").first.click()
    expect(last(page)).to_contain_text("word5")
    expect(page.locator("#draft")).to_have_value("my kept text")
    look.server.start()
    expect(page.locator("#health")).to_have_text("ready")
    expect(page.locator("#status")).to_have_text("The server is back.")
    last(page).get_by_role("button", name="Go on").last.click()
    expect(last(page)).to_contain_text("and goes on from there.")
    ended(page)
    page.locator("#draft").focus()
    page.keyboard.press("Enter")
    expect(last(page)).to_contain_text("chat says: my kept text")


def test_the_stream_is_cut(look: Look) -> None:
    page = look.open()
    ask(page, "cut it")
    expect(last(page).locator(".note.wrong")).to_contain_text("The connection ended before the answer was whole.")
    expect(last(page)).to_contain_text("word5")


def test_key(each_look: Look) -> None:
    each_look.server.post("fake/key", {"key": "a-secret"})
    page = each_look.open(ready=False)
    expect(page.locator("#notice")).to_contain_text("asks for a key")
    check(page, "key-needed")
    press(page, page.locator("#key-open"), back=True)
    check(page, "key")
    expect(page.locator("#key")).to_be_focused()
    page.keyboard.type("a-secret")
    page.keyboard.press("Enter")
    expect(page.locator("#health")).to_have_text("ready")
    ask(page, "hello")
    expect(last(page)).to_contain_text("chat says: hello")
    page.click("#curl")
    expect(page.locator("#request-text")).to_contain_text("$PUMICE_API_KEY")
    expect(page.locator("#request-text")).not_to_contain_text("a-secret")
    page.keyboard.press("Escape")
    everywhere = "JSON.stringify([{...localStorage}, {...sessionStorage}])"
    assert "a-secret" not in page.evaluate(everywhere)
    page.reload()
    expect(page.locator("#health")).to_have_text("key needed")
    page.click("#key-open")
    page.keyboard.type("a-secret")
    page.check("#key-keep")
    page.keyboard.press("Enter")
    expect(page.locator("#health")).to_have_text("ready")
    page.reload()
    expect(page.locator("#health")).to_have_text("ready")
    assert "a-secret" in page.evaluate("JSON.stringify({...sessionStorage})")
    page.click("#key-open")
    button(page, "Forget").click()
    expect(page.locator("#health")).to_have_text("key needed")
    assert "a-secret" not in page.evaluate(everywhere)


LINKS = ["?q=hello", "?prompt=hello&send=1&model=chat", "?settings=%7B%7D#q=hello", "#texts", "?view=figures#figures"]


@pytest.mark.parametrize("link", LINKS)
def test_a_link_sends_nothing(look: Look, link: str) -> None:
    page = look.open(link)
    page.wait_for_timeout(700)
    asked = {(entry["method"], entry["path"], entry["query"]) for entry in look.server.log()}
    asked.discard(("GET", "/health", ""))  # the page asks now and then whether the server is there
    assert asked == {("GET", "/v1/models", "")}
    expect(page.locator("#draft")).to_have_value("")
    expect(page.locator("#empty")).to_be_visible()


def test_html_in_answers_stays_text(look: Look) -> None:
    page = look.open()
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    ask(page, "html <b>now</b><img src=x onerror='window.broken=1'>")
    text = last(page).locator(".text")
    expect(text).to_contain_text("<script>window.broken = 1</script>")
    expect(text).to_contain_text("<b>not bold</b> &amp;")
    expect(text.locator("strong")).to_have_text("bold")
    assert page.locator("#messages").locator("script, img, b, iframe, object, style").count() == 0
    assert page.evaluate("window.broken") is None
    # Of the links only those of http and https are links; a picture is one, too, so that it asks for nothing.
    expect(text.locator("a")).to_have_text(["picture", "https://example.com/ok"])
    for link in text.locator("a").all():
        assert link.get_attribute("rel") == "noopener noreferrer" and (link.get_attribute("href") or "").startswith("https://")
    expect(text).to_contain_text("[bad](javascript:alert(1))")
    expect(page.locator(".message.user .plain")).to_have_text("html <b>now</b><img src=x onerror='window.broken=1'>")
    assert all(url.startswith(look.server.url) for url in asked)
    ask(page, "links")
    links = last(page).locator(".text a")
    expect(links).to_have_text(["the docs", "http://example.com/x"])
    assert links.first.get_attribute("href") == "https://example.com/a?b=(c)"


EVENTS = """async (parts) => {
  const { events } = await import("/page/api.js");
  const real = window.fetch;
  const body = new ReadableStream({
    start(stream) {
      for (const byte of new TextEncoder().encode(parts)) stream.enqueue(Uint8Array.of(byte));
      stream.close();
    },
  });
  window.fetch = async () => new Response(body);
  const seen = [];
  try {
    for await (const event of events("v1/chat/completions", {})) seen.push(event);
    seen.push("done");
  } catch (error) {
    seen.push(error.message);
  }
  window.fetch = real;
  return seen;
}"""


def test_events_however_they_are_cut(look: Look) -> None:
    page = look.open()
    text = ': comment\r\n\r\ndata: {"a":\r\ndata: "é🌋"}\r\n\r\nevent: x\ndata:{"b": 1}\n\n'
    cut = "The connection ended before the answer was whole."
    assert page.evaluate(EVENTS, text + "data: [DONE]\n\n") == [{"a": "é🌋"}, {"b": 1}, "done"]
    assert page.evaluate(EVENTS, text) == [{"a": "é🌋"}, {"b": 1}, cut]  # an end without [DONE] is no end
    assert page.evaluate(EVENTS, 'data: {"c": 1}') == [cut]
    assert page.evaluate(EVENTS, 'data: {"error": {"message": "lost"}}\n\ndata: [DONE]\n\n') == ["lost"]


# Markdown, read in the page by its own modules

MARKDOWN = {
    "*a* **b** ***c*** ~~d~~ `e`": "<p><em>a</em> <strong>b</strong> <em><strong>c</strong></em> <s>d</s> <code>e</code></p>",
    "snake_case_name 2*3*4 ** x": "<p>snake_case_name 2<em>3</em>4 ** x</p>",
    "**open *and `tick": "<p>**open *and `tick</p>",
    "\\*no\\* `` a`b ``": "<p>*no* <code>a`b</code></p>",
    "# One #\n## Two\ntext": '<h3 class="level-1">One</h3><h4 class="level-2">Two</h4><p>text</p>',
    "Title\n===\nOther\n---\n": '<h3 class="level-1">Title</h3><h4 class="level-2">Other</h4>',
    "- a\n  - b\n- c": "<ul><li>a<ul><li>b</li></ul></li><li>c</li></ul>",
    "3. x\n4. y": '<ol start="3"><li>x</li><li>y</li></ol>',
    "In\n1998. A year": "<p>In\n1998. A year</p>",
    "- [x] done": '<ul><li class="task">☑ done</li></ul>',
    "> a\n> > b": "<blockquote><p>a</p><blockquote><p>b</p></blockquote></blockquote>",
    "***": "<hr>",
    "<b>x</b> &amp;": "<p>&lt;b&gt;x&lt;/b&gt; &amp;amp;</p>",
}


def render(page: Page, text: str, step: int) -> str:
    """Returns the HTML of what the page's Markdown shows of `text`, which grows by `step` characters a time."""
    result: str = page.evaluate(
        """async ([text, step]) => {
          const { Markdown } = await import("/page/markdown.js");
          const box = document.createElement("div");
          const markdown = new Markdown(box);
          for (let i = step; i < text.length; i += step) markdown.show(text.slice(0, i), false);
          markdown.show(text);
          return box.innerHTML;
        }""",
        [text, step],
    )
    return result


def test_markdown(look: Look) -> None:
    page = look.open()
    for source, wanted in MARKDOWN.items():
        assert render(page, source, 10**9) == wanted
    sys.path.insert(0, str(HERE))
    from fake_server import HTML, SAMPLE

    fences = ["```\na\n```\nb\n~~~x\n`c`\n~~~\n", "a\n\n```py\nx = '`'\n\n```` \n```\n- l\n\n  m\n- n\n\nend"]
    for source in [*MARKDOWN, SAMPLE, HTML, *fences]:
        whole = render(page, source, 10**9)
        for step in (1, 3, 7):
            assert render(page, source, step) == whole, (source, step)  # a text that grew shows the same as one that was whole


PARTS = [
    "a", "word ", " ", "  ", "    ", "\n", "\n\n", "*", "**", "_", "~~", "`", "``", "```", "~~~", "# ", "## ", "- ", "1. ", "2) ", "> ",
    "|", "|-|-|", "---", "===", "[x](https://e.com)", "https://e.com/", "<", "!", "\\", "\t", "- [ ] ", "é", "\U0001f30b",
]  # fmt: skip


def test_random_markdown_shows_the_same_however_it_comes(look: Look) -> None:
    page = look.open()
    random = Random(1)
    texts = ["".join(random.choice(PARTS) for _ in range(random.randint(1, 40))) for _ in range(1500)]
    differing: list[str] = page.evaluate(
        """async (texts) => {
          const { Markdown } = await import("/page/markdown.js");
          const show = (text, step) => {
            const box = document.createElement("div");
            const markdown = new Markdown(box);
            for (let i = step; i < text.length; i += step) markdown.show(text.slice(0, i));
            markdown.show(text);
            return box;
          };
          const seen = (text) => [show(text, 1e9).innerHTML, show(text, 1).innerHTML, show(text, 5).innerHTML];
          return texts.filter((text) => new Set(seen(text)).size > 1 || show(text, 1e9).querySelector("script, img, b"));
        }""",
        texts,
    )
    assert differing == []


PIECES = [
    "*", "*a ", "_a_b", "a*b_", "**a*", "~", "[", "[a](", "[a](b", "![", "(", "`a", "``a`", "\\", "<http://", "http://[", "http://a.",
    "> ", "- ", "  - ", "1. ", "#", " ", "\t", "|a", "|-",
]  # fmt: skip


def test_markdown_takes_time_in_proportion(look: Look) -> None:
    page = look.open()
    work = Work(page)
    slow = []
    for piece in PIECES:
        many = piece * (100_000 // len(piece))
        lines = (piece * 200 + "\n") * (100_000 // (200 * len(piece)))
        for form, text in {"many": many, "heading": f"# {many}x", "lines": lines}.items():
            work.since()
            render(page, text, 10**9)
            if (spent := work.since()) > 5 * 400:
                slow.append((piece, form, spent))
    assert slow == []


# Size


COUNT_FRAMES = """() => {
  window.frames_seen = [];
  let last = performance.now();
  const frame = (now) => { window.frames_seen.push(now - last); last = now; requestAnimationFrame(frame); };
  requestAnimationFrame(frame);
}"""


def report(what: str, gaps: list[float], work: float) -> float:
    """Prints and returns the milliseconds of work in a frame."""
    gaps = sorted(gaps)
    p50, p95 = gaps[len(gaps) // 2], gaps[int(len(gaps) * 0.95)]
    print(f"{what}: {len(gaps)} frames, {p50:.1f} ms apart, p95 {p95:.1f} ms; work of a frame {work / len(gaps):.1f} ms")
    return work / len(gaps)


def scroll(page: Page, top: str, what: str) -> float:
    """Scrolls the thread for two seconds, before frame i to the place `top`. Returns the milliseconds of work in a frame."""
    work = Work(page)
    gaps: list[float] = page.evaluate(
        """([top, what]) => new Promise((resolve) => {
          const thread = document.getElementById("thread");
          const place = eval(`(i) => ${top}`);
          const gaps = [];
          const begin = performance.now();
          let last = begin;
          const frame = (now) => {
            gaps.push(now - last);
            last = now;
            if (now - begin > 2000) return resolve(gaps);
            thread.scrollTop = place(gaps.length);
            requestAnimationFrame(frame);
          };
          requestAnimationFrame(frame);
        })""",
        [top, what],
    )
    return report(what, gaps, work.since())


@pytest.mark.parametrize("kind", ["long", "fence"])
def test_an_answer_of_100000_characters(look: Look, kind: str) -> None:
    page = look.open()
    page.evaluate(COUNT_FRAMES)
    work = Work(page)
    page.locator("#draft").fill(kind)
    page.keyboard.press("Enter")
    expect(page.locator("#status")).to_contain_text("answers.")
    ended(page)
    spent = work.since()
    characters = last(page).locator(".text").evaluate("(n) => n.textContent.length")
    assert characters > 100_000
    growing = report(f"{kind}, {characters} characters, while it grows", page.evaluate("frames_seen"), spent)
    assert page.locator("#thread").evaluate("(t) => t.scrollHeight - t.scrollTop - t.clientHeight") < 48  # it followed
    # A frame has 16.7 ms. The limits are five times what a frame may take.
    assert growing < 5 * 16.7
    assert scroll(page, "(i * 700) % 40000", f"{kind}, while it scrolls") < 5 * 16.7
    work.since()
    page.locator("#draft").focus()
    page.keyboard.type("twenty characters ok")
    typing = work.since() / 20
    print(f"{kind}, a key typed beside it: {typing:.1f} ms of work")
    assert typing < 5 * 16.7


def test_a_conversation_of_1000_messages(look: Look, tmp_path: Path) -> None:
    nodes = {
        f"n{i}": {"role": "assistant" if i % 2 else "user", "parent": f"n{i - 1}" if i else None, "at": i, "state": "done", "model": "chat",
                  "content": f"Message **{i}** " + "with some words " * 20}
        for i in range(1000)
    }  # fmt: skip
    conversation = {"id": "c", "title": "Many", "lanes": [{"model": "chat", "leaf": "n999"}], "settings": {}, "nodes": nodes}
    path = tmp_path / "many.json"
    path.write_text(json.dumps({"format": "pumice.conversations", "version": 1, "conversations": [conversation]}))
    page = look.open()
    work = Work(page)
    page.set_input_files("#file", path)
    expect(page.locator(".message")).to_have_count(1000)
    expect(last(page)).to_be_in_viewport()
    print(f"1,000 messages opened: {work.since():.0f} ms of work")
    assert scroll(page, "200000 - i * 900", "1,000 messages, while they scroll") < 5 * 16.7
    work.since()
    ask(page, "hello")
    spent = work.since()
    print(f"1,000 messages, one more asked and answered: {spent:.0f} ms of work")
    assert spent < 5 * 300
    expect(last(page).locator(".text")).to_have_text("chat says: hello")


def test_files_are_small_and_plain() -> None:
    files = [path for path in PAGE.iterdir() if path.is_file()]
    assert sum(path.stat().st_size for path in files) < 200_000
    for path in files:
        assert path.suffix in (".html", ".css", ".js", ".svg"), path
        text = path.read_text(encoding="utf-8")
        assert len(text.splitlines()) < 600, path
        addresses = set(re.findall(r"https?://[^\s\"'`<>)]+", text))
        assert addresses <= {"http://www.w3.org/2000/svg", "https?:\\/\\/[^\\s"}, (path, addresses)
        assert "innerHTML" not in text and "eval(" not in text and "location.search" not in text and "location.hash" not in text
    html = (PAGE / "index.html").read_text(encoding="utf-8")
    assert not re.search(r"\sstyle=|\son\w+=|<style|<script(?![^>]*src=)", html)


# Texts and figures


def test_texts_by_keyboard(each_look: Look) -> None:
    page = each_look.open()
    reach(page, page.locator("#tab-chat"), back=True)
    page.keyboard.press("ArrowRight")
    expect(page.locator("#view-texts")).to_be_visible()
    check(page, "texts-empty")
    reach(page, page.locator("#similarity-texts"))
    page.keyboard.type("a red cat\na red dog\nthe moon\na red cat")
    press(page, button(page, "Compare"))
    cells = page.locator(".matrix td")
    expect(cells).to_have_count(1 + 16)
    expect(page.locator(".matrix tbody tr").first.locator("td").last).to_have_text("1.00")
    expect(page.locator(".pairs li").first).to_contain_text("1.000")
    reach(page, page.locator(".map-box"))
    page.keyboard.press("ArrowRight")
    expect(page.locator(".map-text")).to_have_text("1. a red cat")
    reach(page, page.locator("#rerank-query"))
    page.keyboard.type("what floats?")
    page.keyboard.press("Tab")
    page.keyboard.type("stone\nwood")
    press(page, button(page, "Rank"))
    expect(page.locator(".ranks li")).to_have_count(2)
    scores = [float(text) for text in page.locator(".ranks .figure").all_inner_texts()]
    assert scores == sorted(scores, reverse=True)
    reach(page, page.locator("#tokens-text"))
    page.keyboard.type("Pumice floats.")
    press(page, button(page, "Show tokens"))
    expect(page.locator(".cut .piece")).to_have_text(["Pumice", " floats", "."])
    check(page, "texts")
    asked = {entry["path"]: entry["body"] for entry in each_look.server.log() if entry["method"] == "POST"}
    assert asked["/v1/embeddings"]["input"] == ["a red cat", "a red dog", "the moon", "a red cat"]
    assert asked["/v1/rerank"]["documents"] == ["stone", "wood"]
    each_look.server.kill()
    page.get_by_role("button", name="Compare").click()
    expect(page.locator(".bench .problem").first).to_have_text("The server does not answer. Your text is kept.")


def test_principal_components(look: Look) -> None:
    page = look.open()
    points, shares = page.evaluate(
        """async () => {
          const { components } = await import("/page/math.js");
          const { points, shares } = components([[3, 0, 0], [-3, 0, 0], [0, 1, 0], [0, -1, 0]].map((v) => Float32Array.from(v)));
          return [points, shares];
        }"""
    )
    assert shares == pytest.approx([0.9, 0.1])
    assert [abs(x) for x, _ in points] == pytest.approx([3, 3, 0, 0], abs=1e-6)
    assert [abs(y) for _, y in points] == pytest.approx([0, 0, 1, 1], abs=1e-6)
    same = page.evaluate("""async () => (await import("/page/math.js")).components([[1, 2], [1, 2], [1, 2]])""")
    assert same["shares"] == [0, 0] and all(p == pytest.approx([0, 0]) for p in same["points"])


def test_figures(each_look: Look) -> None:
    page = each_look.open()
    ask(page, "hello")
    reach(page, page.locator("#tab-chat"), back=True)
    page.keyboard.press("End")
    tokens = page.locator(".chart", has_text="Tokens by kind.")
    expect(tokens.locator("polyline")).to_have_count(2)
    expect(page.locator(".chart", has_text="Requests that run.").locator(".legend li").first).to_contain_text("0")
    check(page, "figures")
    # A counter is shown as its rate, a histogram as the mean of what came in between: each answer's first token takes 0.05 s there.
    each_look.server.post("v1/chat/completions", {"model": "chat", "messages": [{"role": "user", "content": "hello"}]})
    expect(page.locator(".chart", has_text="Time to the first token.").locator(".legend .figure")).to_have_text("0.05")
    assert float(tokens.locator(".most").inner_text()) > 0
    press(page, button(page, "Pause"))
    before = len([e for e in each_look.server.log() if e["path"] == "/metrics"])
    page.wait_for_timeout(2500)
    assert len([e for e in each_look.server.log() if e["path"] == "/metrics"]) <= before + 1


def test_prometheus_text(look: Look) -> None:
    page = look.open()
    counter = '# HELP a_total Help, here.\n# TYPE a_total counter\na_total{x="1 \\"q\\"",y="}"} 3\n'
    text = counter + '# TYPE h histogram\nh_bucket{le="+Inf"} 2\nh_sum 1.5\nh_count 2\nodd line\n'
    read = page.evaluate("""async (text) => [...(await import("/page/figures.js")).readMetrics(text).values()]""", text)
    assert [(f["name"], f["type"], f["help"]) for f in read] == [("a_total", "counter", "Help, here."), ("h", "histogram", "")]
    assert read[0]["samples"] == [{"name": "a_total", "labels": {"x": '1 "q"', "y": "}"}, "value": 3}]
    assert [s["value"] for s in read[1]["samples"]] == [2, 1.5, 2]


# Looks


def test_colours_and_motion(browser: Browser, server: StandIn) -> None:
    look = Look(browser, server, "dark", "wide", reduced_motion="reduce")
    page = look.open()
    colour = "getComputedStyle(document.body).backgroundColor"
    dark = page.evaluate(colour)
    press(page, page.locator("#theme"), back=True)
    light = page.evaluate(colour)
    assert page.locator("#theme").get_attribute("aria-label") == "Colours: light" and light != dark
    page.reload()
    page.wait_for_selector("#draft:focus")
    assert page.evaluate(colour) == light
    page.locator("#draft").fill("slow please")
    page.keyboard.press("Enter")
    expect(last(page)).to_contain_text("word2")
    assert page.evaluate("document.getAnimations().filter((a) => a.playState === 'running').length") == 0
    look.close()


def test_one_status_line(look: Look) -> None:
    """A screen reader hears the begin and the end of an answer and nothing of what is between."""
    page = look.open()
    page.evaluate(
        """() => {
          window.said = [];
          new MutationObserver(() => window.said.push(document.getElementById("status").textContent))
            .observe(document.getElementById("status"), { childList: true, characterData: true, subtree: true });
        }"""
    )
    ask(page, "sample please")
    assert page.evaluate("window.said") == ["chat answers.", "chat has answered. 160 tokens, 48.5 tokens/s."]
    assert page.locator("[aria-live]:not([aria-live=off]), [role=status], [role=log]").count() == 1
