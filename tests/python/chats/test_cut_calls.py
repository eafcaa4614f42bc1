"""Calls in which the answer ends, for every known shape and at every position. An answer that a limit cuts has the beginning of the call.
An answer that a stop id ends has no call. The markup of calls never becomes content."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from tool_answers import SHAPES, answers, shape_of
from tool_templates import TEMPLATES, TOOLS

import pumice
from pumice.chats.call_readers import whole_members
from pumice.chats.response_parser import End, ResponseParser, ResponseTemplate

# The shapes whose calls have no arguments in plain JSON. The text of their cut arguments is made of the arguments that were read.
NO_JSON = {
    "gemma4", "functiongemma", "minicpm 5", "minimax", "glm", "qwen3-coder", "seed-oss", "deepseek v3.2", "lfm2", "pythonic",
    "kimi k3", "muse glimmer", "minimax m3",
}  # fmt: skip


def parsed(shape: ResponseTemplate, pieces: Sequence[str], prompt: str = "", end: End = "limit", after: str = "") -> ResponseParser:
    """Returns the parser of an answer. The deltas of the answer must say what its calls say."""
    parser, said = ResponseParser(shape, TOOLS, prompt=prompt), dict[str, str]()
    events = [*(event for piece in pieces for event in parser.feed(piece)), *parser.finish(end, after)]
    ids = {}
    for event in events:
        for delta in event.deltas:
            ids[delta.index] = delta.id
            said[delta.id] = said.get(delta.id, "") + delta.arguments
        for index, _ in event.failed:
            del said[ids[index]]
    assert list(said) == [call.id for call in parser.calls]
    for call, text in zip(parser.calls, said.values(), strict=True):
        assert json.loads(text) == call.arguments if call.complete else text == call.cut
    return parser


def outcome(parser: ResponseParser) -> Any:
    calls = [(call.name, call.known, call.cut) for call in parser.calls]
    return calls, parser.content, parser.reasoning, parser.errors, parser.kinds_at(range(parser.length))


def has_markup(text: str) -> bool:
    return re.search(r"[^\w\s]", text) is not None


def cut_at_each(name: str, end: End) -> Iterator[tuple[ResponseParser, str]]:
    """Yields the parser of an answer with calls alone that ends at each position, and the text of its calls. The result must not depend on
    the pieces in which the answer arrives."""
    prompt, text = answers(name).get("calls") or answers(name)["call"]
    shape = shape_of(TEMPLATES[name])
    begin = text.index(parsed(shape, [text], prompt).calls[0].raw.removeprefix(prompt))
    for size in range(begin + 1, len(text)):
        parser, pieces = parsed(shape, [text[:size]], prompt, end), [text[: size // 2], text[size // 2 : size]]
        for others in (pieces, list(text[:size])) if size % 9 == 0 else (pieces,):
            assert outcome(parsed(shape, others, prompt, end)) == outcome(parser), text[:size]
        assert not has_markup(parser.content), text[:size]
        assert parser.calls or parser.errors or not has_markup(text[begin:size]), text[:size]
        yield parser, text[begin:size]


def whole_calls(name: str) -> list[pumice.ToolCall]:
    prompt, text = answers(name).get("calls") or answers(name)["call"]
    calls = parsed(shape_of(TEMPLATES[name]), [text], prompt, "end").calls
    assert calls and all(call.complete for call in calls)
    return calls


@pytest.mark.parametrize("name", TEMPLATES)
def test_a_limit_leaves_the_beginning_of_a_call(name: str) -> None:
    calls, most = whole_calls(name), 0
    for parser, _ in cut_at_each(name, "limit"):
        assert len(parser.calls) >= most, "a call that was there stays there"
        most = len(parser.calls)
        for call, whole in zip(parser.calls, calls, strict=False):
            assert call.name == whole.name and call.known.items() <= whole.known.items()
            assert call.complete or call is parser.calls[-1], "only the last call is cut"
            if call.complete:
                assert call.arguments == whole.arguments
                continue
            with pytest.raises(pumice.IncompleteCallError, match=f"(?s){call.name}.*not complete.*max_new_tokens"):
                _ = call.arguments
            assert call.to_openai()["function"] == {"name": call.name, "arguments": call.cut}
            assert call.cut is not None and whole_members(call.cut).items() <= call.known.items()
            assert (call.cut in call.raw) or name in NO_JSON
            with pytest.raises(ValueError, match="."):
                json.loads(call.cut)
    assert most == len(calls)


@pytest.mark.parametrize("name", TEMPLATES)
def test_a_stop_id_leaves_no_call(name: str) -> None:
    calls = [(call.name, call.arguments) for call in whole_calls(name)]
    for parser, text in cut_at_each(name, "stop"):
        assert [(call.name, call.arguments) for call in parser.calls] == calls[: len(parser.calls)]
        assert all("stop id" in error for error in parser.errors), text


@pytest.mark.parametrize("name", TEMPLATES)
def test_a_cut_call_takes_nothing_from_the_text_before_it(name: str) -> None:
    kind = "all" if "all" in answers(name) else "thought and calls" if "thought and calls" in answers(name) else "call"
    (prompt, text), shape = answers(name)[kind], shape_of(TEMPLATES[name])
    whole = parsed(shape, [text], prompt)
    for end in range(text.index(whole.calls[0].name), len(text)):
        parser = parsed(shape, [text[:end]], prompt)
        assert (parser.content, parser.reasoning) == (whole.content, whole.reasoning), text[:end]


TOKEN = re.compile(r"<[|｜][^<>|｜\n]*[|｜]>")  # how control tokens are spelt


@pytest.mark.parametrize("name", [name for name in TEMPLATES if any(TOKEN.search(text) for _, text in answers(name).values())])
def test_a_control_token_in_a_cut_marker_is_no_text(name: str) -> None:
    """An answer that is cut in "<|channel|>fin" has no such content."""
    prompt, text = max(answers(name).values(), key=lambda each: len(TOKEN.findall(each[1])))
    tokens = list(TOKEN.finditer(text))
    control = {token[0] for token in tokens}
    inner = {i for token in tokens for i in range(token.start() + 1, token.end())}
    for size in sorted({token.end() + more for token in tokens for more in (0, 1, 5)} - inner):
        for end, pieces in (("limit", [text[:size]]), ("stop", [text[: size - 1], text[size - 1 : size]])):
            parser = ResponseParser(shape_of(TEMPLATES[name]), TOOLS, prompt=prompt, control=control)
            events = [*(event for piece in pieces for event in parser.feed(piece)), *parser.finish(end)]
            said = "".join(event.text for event in events if event.kind != "tool_call")
            assert not any(token in f"{parser.content}{parser.reasoning}{said}" for token in control), text[:size]
            assert len(parser.kinds_at(range(parser.length))) == parser.length


@pytest.mark.parametrize(
    ("end", "control", "content"),
    [("limit", True, "a"), ("stop", True, "a"), ("end", True, "a<|channel|>fin"), ("limit", False, "a<|channel|>fin")],
)
def test_a_cut_marker_is_text_unless_that_is_certain(end: End, control: bool, content: str) -> None:
    """The beginning of a marker may be text if no control token is in it, or if the model itself has ended the answer."""
    template = {"fields": {"content": {}, "reasoning": {"open": "<|channel|>final", "close": "<|end|>"}}}
    parser = ResponseParser(ResponseTemplate(template), control=("<|channel|>",) if control else ())
    parser.feed("a<|channel|>fin")
    parser.finish(end)
    assert (parser.content, parser.reasoning) == (content, None)


QWEN, GLM, HERMES = (
    SHAPES["Qwen3-Coder (<function=name><parameter=)"], SHAPES["GLM (<tool_call>name<arg_key>)"],
    SHAPES["Hermes, Qwen, Granite 4 (<tool_call>{...})"],
)  # fmt: skip
MINIMAX, SEED = SHAPES["MiniMax (<invoke name=)"], SHAPES["Seed-OSS (<seed:tool_call><function=name>)"]
MINICPM, DSML = SHAPES["MiniCPM 5 (<function name=)"], SHAPES["DeepSeek V3.2, V4 (<｜DSML｜invoke name=)"]
APERTUS, PYTHON = SHAPES["Apertus (<|tools_prefix|>[{name: ...}])"], SHAPES["Llama 3.2 and 4, Gemma 3, ToolACE in Python ([f(a=1)])"]
MINIMAX_3 = SHAPES["MiniMax M3 (<mm:think>, <invoke name=)"]
LINES = ResponseTemplate({"fields": {"content": {}, "tool_calls": {
    "open_pattern": r"<call (?P<name>\w+)>", "close": "</call>", "content": "kv-lines",
    "transform": {"name": "{name}", "arguments": "{content}"},
}}})  # fmt: skip


@pytest.mark.parametrize(
    ("shape", "text", "name", "known"),
    [
        (QWEN, "<tool_call>\n<function=write>\n<parameter=path>\n/etc/conf\n</parameter>\n<parameter=content>\nthe first line", "write",
         {"path": "/etc/conf"}),
        (QWEN, "<function=write>", "write", {}),
        (QWEN, "<function=wri", None, {}),
        (GLM, "<tool_call>wri", None, {}),
        (GLM, "<tool_call>write\n<arg_key>path</arg_key>\n<arg_value>/etc", "write", {}),
        (MINIMAX, '<invoke name="write">\n<parameter name="path">/etc</parameter>\n<para', "write", {"path": "/etc"}),
        (SEED, "<seed:tool_call>\n<function=write>\n<parameter=path>/etc</parameter>\n</function", "write", {"path": "/etc"}),
        (MINICPM, '<function name="write"><param name="a"><![CDATA[</param>]]></param><param name="b"><![CDATA[x', "write",
         {"a": "</param>"}),
        (DSML, '<｜DSML｜invoke name="write"><｜DSML｜parameter name="path" string="true">/etc</｜DSML｜parameter>', "write",
         {"path": "/etc"}),
        (LINES, "<call write>\npath: /etc\ncontent: the first", "write", {}),
        (HERMES, '<tool_call>{"name": "write", "arguments": {"n": 12', "write", {}),
        (HERMES, '<tool_call>{"name": "write", "arguments": {"n": 12, "text": "a <', "write", {"n": 12}),
        (HERMES, '<tool_call>{"name": "write"', "write", {}),
        (HERMES, '<tool_call>{"arguments": {"n": 12}, "name": "wri', None, {}),
        (APERTUS, '<|tools_prefix|>[{"write": {"n": 12, "text": "a } <', "write", {"n": 12}),
        (APERTUS, '<|tools_prefix|>[{"write": ', "write", {}),
        (APERTUS, '<|tools_prefix|>[{"wri', None, {}),
        (MINIMAX_3, '*<invoke name="write">*<path>/etc*</path>*<lines>*<item>1*</item>*<item>2*</item>*</lines>*<a>*<b>x*</b>'.replace(
            "*", "]<]minimax[>["), "write", {"path": "/etc", "lines": ["1", "2"]}),
        (PYTHON, '[write(n=12, text="a) <', "write", {"n": 12}),
    ],
)  # fmt: skip
def test_forms_of_cut_calls(shape: ResponseTemplate, text: str, name: str | None, known: dict[str, Any]) -> None:
    for pieces in ([text], list(text)):
        parser = parsed(shape, pieces)
        assert [(call.name, call.known, call.complete) for call in parser.calls] == ([] if name is None else [(name, known, False)])
        assert parser.content == ""
        assert [bool(re.search("cut .*before the call's name", error)) for error in parser.errors] == ([True] if name is None else [])


@pytest.mark.parametrize(
    ("shape", "text"),
    [
        (QWEN, '<function=now>\n{"a": 1}\n</function>'),
        (QWEN, "<function=now>\n<parameter=a>\n1\n</parameter>\n<param=b>2</param>\n</function>\n</tool_call>"),
        (QWEN, "<function=now>\n<parameter=a>\n1\n</function>"),
        (QWEN, "<function=now>\nI call it.\n<parameter=a>\n1\n</parameter>\n</function>"),
        (QWEN, "<function=now>\n<parameter=a>\n1\n</parameter>\n<parameter=b>\nthe model ends here"),
        (GLM, '<tool_call>now\n{"a": 1}\n</tool_call>'),
        (GLM, "<tool_call>now\n<arg_key>a</arg_key>\n<arg_key>b</arg_key>\n</tool_call>"),
        (MINIMAX, '<invoke name="now">{"a": 1}</invoke>'),
        (SEED, "<function=now>a=1</function>"),
        (MINICPM, '<function name="now"><param name="a">1</param>, <param name="b">2</param></function>'),
        (DSML, '<｜DSML｜invoke name="now">{"a": 1}</｜DSML｜invoke>'),
        (LINES, "<call now>\na: 1\nand b\n</call>"),
    ],
)  # fmt: skip
def test_what_stands_outside_of_whole_parameters(shape: ResponseTemplate, text: str) -> None:
    """It belongs to no argument, so the text is no call."""
    for pieces in ([text], list(text)):
        parser = parsed(shape, pieces, end="end")
        assert (parser.calls, parser.content, len(parser.errors)) == ([], text, 1)
        assert "outside of whole parameters" in parser.errors[0] or "has no ':'" in parser.errors[0]


@pytest.mark.parametrize(
    ("after", "content"),
    [("b", "a <"), ("_call>", "a <"), ("tool_call>", "a"), ("tool", "a"), ("tool_call>\n{", "a")],
)
def test_a_stop_string_decides_what_a_marker_can_be(after: str, content: str) -> None:
    parser = parsed(HERMES, ["a <"], end="stop", after=after)
    assert parser.content == content and bool(parser.errors) == (content == "a")


@pytest.mark.parametrize("text", ["a <", "a <tool", "{x", "Action"])
def test_an_answer_that_the_model_ends_loses_nothing(text: str) -> None:
    for shape in SHAPES.values():
        parser = parsed(shape, [text], end="end")
        assert (parser.content, parser.errors, parser.calls) == (text, [], [])
