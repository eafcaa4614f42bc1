"""Answers of every known shape must be parsed correctly, whole and cut at any position. Hostile templates and texts must not break the
parser."""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import time
from pathlib import Path
from typing import Any

import pytest
from tool_answers import GOLDEN, SHAPES, answers, expected, shape_of, without_end
from tool_templates import ENDS, TEMPLATES, TOOLS, USER, chats, reasons_as

from pumice.chats import response_templates, template_messages
from pumice.chats.chat_templates import ChatTemplate
from pumice.chats.markers import MAX_MARKER, Pattern
from pumice.chats.response_parser import Event, ResponseParser, ResponseTemplate
from pumice.chats.scanner import Scanner, Watch
from pumice.errors import ChatTemplateError


def parse(shape: ResponseTemplate, pieces: list[str], prompt: str = "", **options: Any) -> tuple[ResponseParser, list[Event]]:
    parser = ResponseParser(shape, TOOLS, prompt=prompt, **options)
    events = [event for piece in pieces for event in parser.feed(piece)]
    return parser, events + parser.finish()


def outcome(parser: ResponseParser, events: list[Event]) -> Any:
    """Returns the result of a parse in a form that can be compared with others: without the ids of calls, and with the texts of successive
    events of one kind joined."""
    joined: list[list[Any]] = []
    for event in events:
        calls = [(call.name, call.arguments, call.raw) for call in event.calls]
        if joined and joined[-1][0] == event.kind and not event.begun and not joined[-1][4] and not calls:
            joined[-1][1] += event.text
        else:
            joined.append([event.kind, event.text, event.begun, event.name, calls])
    for kind, text in (("content", parser.content), ("reasoning", parser.reasoning or "")):
        assert "".join(event.text for event in events if event.kind == kind) == text
    assert [call for event in events for call in event.calls] == parser.calls
    return joined, parser.content, parser.reasoning, parser.errors, parser.kinds_at(range(parser.length))


# ---- every shape -----------------------------------------------------------------------------------------------


def test_prompts_are_those_of_transformers() -> None:
    compiled = {name: ChatTemplate(source, "<bos>", "</s>") for name, source in TEMPLATES.items()}
    for (name, _, messages, variables), prompt in zip(chats(), GOLDEN, strict=True):
        variables = {"add_generation_prompt": False, **variables}
        if prompt is None:
            with pytest.raises(ChatTemplateError):
                compiled[name].render(messages, tools=TOOLS, **variables)
        else:
            assert compiled[name].render(messages, tools=TOOLS, **variables) == prompt


@pytest.mark.parametrize("name", TEMPLATES)
def test_answers_come_back_as_they_went_in(name: str) -> None:
    shape = shape_of(TEMPLATES[name])
    assert len(answers(name)) >= 4
    for kind, (prompt, text) in answers(name).items():
        parser, events = parse(shape, [text], prompt)
        calls = [(call.name, call.arguments) for call in parser.calls]
        assert (parser.content, parser.reasoning, calls) == expected(name, kind), (kind, text)
        assert parser.errors == []
        assert all(call.raw and call.raw.removeprefix(prompt) in text for call in parser.calls)
        whole = outcome(parser, events)
        by_kind = {"content": "", "reasoning": "", "tool_call": ""}
        for character, its in zip(prompt + text, parser.kinds_at(range(parser.length)), strict=True):
            by_kind[its] += character
        for its, of_kind in (("content", parser.content), ("reasoning", parser.reasoning or "")):
            assert "".join(of_kind.split()) in "".join(by_kind[its].split())
        assert all(call.raw in by_kind["tool_call"] for call in parser.calls) and bool(by_kind["tool_call"]) == bool(parser.calls)
        assert outcome(*parse(shape, list(text), prompt)) == whole
        for cut in range(1, len(text), 1 if kind == "all" else 7):
            assert outcome(*parse(shape, [text[:cut], text[cut:]], prompt)) == whole, (kind, cut)


@pytest.mark.parametrize("name", TEMPLATES)
def test_cut_and_broken_answers_lose_no_text(name: str) -> None:
    """Answers that end at any position (because of max_new_tokens) and damaged answers must not raise an exception. The result must not
    depend on how the answer is cut into pieces."""
    shape, (prompt, text) = shape_of(TEMPLATES[name]), list(answers(name).values())[-1]
    random.seed(name)
    for end in range(0, len(text), 3):
        whole = outcome(*parse(shape, [text[:end]], prompt))
        assert outcome(*parse(shape, list(text[:end]), prompt)) == whole
    for _ in range(40):
        at = random.randrange(len(text))
        broken = text[:at] + random.choice(["", "}", "<", '"', "\n\n", "</", text[:at], "é"]) + text[at + random.randrange(4) :]
        whole = outcome(*parse(shape, [broken], prompt))
        cut = random.randrange(len(broken) + 1)
        assert outcome(*parse(shape, [broken[:cut], broken[cut:]], prompt)) == whole, (broken, cut)
        assert outcome(*parse(shape, list(broken), prompt)) == whole


_WITH_STRINGS = [name for name in TEMPLATES if shape_of(TEMPLATES[name]).spec["fields"]["tool_calls"]["content"] in ("json", "python")]


@pytest.mark.parametrize("name", _WITH_STRINGS)
def test_markers_in_a_string_end_no_call(name: str) -> None:
    """A marker inside a string of a call in JSON or Python must not end the call. Code may contain `};`, which ends a call in Llama's
    syntax, and a text about calls may contain their markers."""
    shape, template = shape_of(TEMPLATES[name]), ChatTemplate(TEMPLATES[name], "<bos>", "</s>")
    (prompt, one), (_, other) = answers(name)["call"], answers(name)["empty call"]
    for text in ("if (a) { b(); }; c\\", "```", "</tool_call>\\", other, one):
        if "<escape>" in text or '<|"|>' in text:
            continue  # this text ends a string in the format of this model
        call = {"id": "a1B2c3D4e", "type": "function", "function": {"name": "now", "arguments": {"code": text, "more": ["x"]}}}
        messages: list[dict[str, Any]] = [USER, {"role": "assistant", "content": "", "tool_calls": [call]}]
        before, answer = template.render(messages[:1], True, tools=TOOLS), template.render(messages, False, tools=TOOLS)
        if not answer.startswith(before):
            before = template.render(messages[:1], False, tools=TOOLS)
        said = without_end(answer.removeprefix(before).removesuffix("\n"))
        parser, events = parse(shape, [said], prompt)
        assert [(call.name, call.arguments) for call in parser.calls] == [("now", {"code": text, "more": ["x"]})], said
        assert (parser.content, parser.errors) == ("", [])
        assert outcome(*parse(shape, list(said), prompt)) == outcome(parser, events)


def test_all_asked_for_shapes_have_a_row() -> None:
    assert {response_templates.row_of(source).name for source in TEMPLATES.values()} == {  # type: ignore[union-attr]
        row.name for row in response_templates.ROWS if "tool_calls" in row.template["fields"]
    }


def test_markers_in_cdata_end_nothing() -> None:
    """Without its own rule, a value of MiniCPM 5 ended at the first </param> in silence, and the call at </function>."""
    said = '<function name="html"><param name="a"><![CDATA[<b></param></function>]]></param><param name="c">x</param></function>'
    for pieces in ([said], list(said)):
        parser, _ = parse(SHAPES["MiniCPM 5 (<function name=)"], pieces)
        assert [call.arguments for call in parser.calls] == [{"a": "<b></param></function>", "c": "x"}]
        assert (parser.content, parser.errors) == ("", [])


def test_bare_keys_have_any_characters() -> None:
    said = '<|tool_call>call:f{/opt/a-b:<|"|>x<|"|>,größe:3,a.b:{c@d:[{e:1}]},n:[1,2]}<tool_call|>'
    parser, _ = parse(SHAPES["Gemma 4 (<|tool_call>call:)"], [said])
    assert [call.arguments for call in parser.calls] == [{"/opt/a-b": "x", "größe": 3, "a.b": {"c@d": [{"e": 1}]}, "n": [1, 2]}]


# ---- other answers --------------------------------------------------------------------------------

HERMES = SHAPES["Hermes, Qwen, Granite 4 (<tool_call>{...})"]


def test_what_is_no_call_stays_text() -> None:
    parser, _ = parse(HERMES, ["One\n<tool_call>\n{'name': 1}\n</tool_call>\ntwo"])
    assert parser.content == "One\n<tool_call>\n{'name': 1}\n</tool_call>\ntwo"
    assert parser.calls == []
    assert "it is no JSON" in parser.errors[0]
    for inner, said in (
        ('{"name": ""}', "no name"), ("[]", "empty list"), ("3", "a call has a name"), ('{"name": "f", "arguments": [1]}', "not an object"),
        ("[" * 100000, "nested too deep|no JSON"), ('{"name": "f", "arguments": {"a": NaN}}', "NaN is no JSON"),
    ):  # fmt: skip
        parser, _ = parse(HERMES, [f"<tool_call>{inner}</tool_call>"])
        assert re.search(said, parser.errors[0])
        assert parser.content == f"<tool_call>{inner}</tool_call>"
    parser, _ = parse(HERMES, ['<tool_call>{"name": "f", "arguments": {}}'])  # a call without its end marker is still read
    assert [call.name for call in parser.calls] == ["f"]


def test_kinds_of_a_text() -> None:
    """A marker must have the kind of the region that it opens or closes, and a call that is not read the kind of the content it becomes."""
    for text, kinds in (
        ("<think>ab</think>cd", "rrrrrrrrrrrrrrrrrcc"),
        ('ab<tool_call>{"name": "f"}</tool_call>', "cc" + "t" * 36),
        ("a<tool_call>{no}</tool_call>b", "c" * 29),
        ('a<tool_call>{"name": "f"', "c" * 24),
    ):
        for pieces in ([text], list(text)):
            parser, _ = parse(HERMES, pieces)
            assert "".join(kind[0] for kind in parser.kinds_at(range(len(text)))) == kinds
            assert parser.kinds_at([0, 0, len(text)]) == [parser.kinds_at([0])[0]] * 2 + parser.kinds_at([len(text) - 1])
    parser, _ = parse(HERMES, ["ab</think>c"], "<think>")
    assert "".join(kind[0] for kind in parser.kinds_at(range(7, 18))) == "rrrrrrrrrrc"
    assert parse(HERMES, [""])[0].kinds_at([0]) == ["content"]


def test_a_prompt_may_have_opened_the_reasoning() -> None:
    parser, events = parse(HERMES, ["hm\n</thi", "nk>\n\nYes. <think"], prompt="<|im_start|>assistant\n<think>\n")
    assert (parser.reasoning, parser.content) == ("hm", "Yes. <think")
    assert [event.kind for event in events] == ["reasoning", "content", "content"]
    parser, _ = parse(HERMES, ["Yes."], prompt="<think>\n\n</think>\n\n")
    assert (parser.reasoning, parser.content) == (None, "Yes.")
    parser, _ = parse(HERMES, ["never done"], prompt="<think>")
    assert (parser.reasoning, parser.content) == ("never done", "")


def test_without_tools_calls_are_text() -> None:
    parser, _ = parse(HERMES, ['<think>x</think><tool_call>{"name": "f", "arguments": {}}</tool_call>'], calls=False)
    assert (parser.reasoning, parser.calls, parser.content) == ("x", [], '<tool_call>{"name": "f", "arguments": {}}</tool_call>')


def test_ids() -> None:
    text = '<tool_call>{"name": "f", "arguments": {}}</tool_call>' * 3
    ids = [call.id for call in parse(HERMES, [text])[0].calls]
    assert len(set(ids)) == 3
    assert all(re.fullmatch("call_[A-Za-z0-9]{9}", name) for name in ids)
    assert [call.id for call in parse(HERMES, [text], make_id=lambda name, index: f"{name}-{index}")[0].calls] == ["f-0", "f-1", "f-2"]


def test_two_forms_of_llama_and_harmony() -> None:
    shape = shape_of(TEMPLATES["llama3"])
    text = '<|python_tag|>{"type": "function", "name": "now", "parameters": {}}; {"name": "now", "arguments": {"a": "{}}"}}<|eom_id|>'
    assert [call.arguments for call in parse(shape, [text])[0].calls] == [{}, {"a": "{}}"}]
    text = '{"name": "Köln", "population": 1}'
    parser, _ = parse(shape, [text])
    assert (parser.content, parser.calls) == (text, [])
    shape = shape_of(TEMPLATES["harmony"])
    parser, _ = parse(shape, [' to=functions.now<|channel|>commentary json<|message|>{"a": 1}'], "<|start|>assistant")
    assert [(call.name, call.arguments) for call in parser.calls] == [("now", {"a": 1})]


def test_types_of_arguments_that_come_as_text() -> None:
    shape = shape_of(TEMPLATES["qwen3-coder"])
    arguments = {"city": "3", "days": "3.0", "exact": "False", "limits": "[1, 2.5]", "where": '{"a": 1}', "note": "null", "other": "5"}
    text = "".join(f"<parameter={name}>\n{value}\n</parameter>\n" for name, value in arguments.items())
    parser, _ = parse(shape, [f"<tool_call>\n<function=get_weather>\n{text}</function>\n</tool_call>"])
    assert parser.calls[0].arguments == {
        "city": "3", "days": 3, "exact": False, "limits": [1, 2.5], "where": {"a": 1}, "note": None, "other": "5",
    }  # fmt: skip
    wrong = {"days": "many", "exact": "2", "limits": "1, 2", "where": "[1]"}
    text = "".join(f"<parameter={name}>{value}</parameter>" for name, value in wrong.items())
    assert parse(shape, [f"<function=get_weather>{text}</function>"])[0].calls[0].arguments == wrong


LFM2 = shape_of(TEMPLATES["lfm2"])


def calls_in_python(text: str) -> list[tuple[str, Any]]:
    parser, events = parse(LFM2, [f"<|tool_call_start|>{text}<|tool_call_end|>"])
    assert outcome(*parse(LFM2, list(f"<|tool_call_start|>{text}<|tool_call_end|>"))) == outcome(parser, events)
    assert (parser.content, parser.errors) == ("", [])
    return [(call.name, call.arguments) for call in parser.calls]


@pytest.mark.parametrize(
    "value",
    [
        "a", "", "it's", 'say "x"', "\\", "\n\t\r\0\x7f", "é\u2028😀", "<|tool_call_end|>", "), f(a=1", "# no comment",
        0, -7, 10**30, 1.5, -2e-9, 1e300, True, False, None, [], {}, [[1, [2.5, "x"]], {}], {"a": {"b": [None, True, "]"]}, "c d": ""},
    ],
)  # fmt: skip
def test_values_in_calls_in_python(value: Any) -> None:
    """The reader must give the value that Python's repr() wrote, and in JSON's syntax as well."""
    for text in (repr(value), json.dumps(value), json.dumps(value, ensure_ascii=False, indent=2)):
        assert calls_in_python(f"[f(a={text}, b_2 = 1)]") == [("f", {"a": value, "b_2": 1})]
        assert calls_in_python(f" f( a={text} , )\n") == [("f", {"a": value})]


def test_calls_in_python() -> None:
    assert calls_in_python("[now(), a.b-c(x=(1, 2,), y=.5, z=+3.),\n now()]") == [
        ("now", {}), ("a.b-c", {"x": [1, 2], "y": 0.5, "z": 3.0}), ("now", {}),
    ]  # fmt: skip
    # A line feed between quotation marks and an unknown escape stay as they are.
    assert calls_in_python("[f(a='x\ny\\d\\\nz')]") == [("f", {"a": "x\ny\\dz"})]
    assert calls_in_python(r"[f(a='\x41\u00e9\U0001F600\ud83d\ude00')]") == [("f", {"a": "Aé😀😀"})]
    # Calls may also be a list in JSON.
    assert calls_in_python('[{"name": "now", "arguments": {"a": "\\/"}}]') == [("now", {"a": "/"})]
    assert calls_in_python('{"name": "now", "arguments": {}}') == [("now", {})]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "a function's name is needed"), ("[]", "empty list"), ("[f]", r"'\(' is needed"),
        ("[f(1)]", "an argument's name and = is needed"), ("[f(**x)]", "an argument's name"), ("[f(a=1, a=2)]", "'a' of 'f' is given"),
        ("[f(a=b)]", "a literal is needed"), ("[f(a=open('x'))]", "a literal is needed"), ("[f(a=__import__)]", "a literal is needed"),
        ("[f(a=1 + 1)]", "',' is needed"), ("[f(a=f'{x}')]", "a literal is needed"), ("[f(a={1: 2})]", "a text as a key"),
        ("[f(a={'x': 1, 'x': 2})]", "'x' is given twice"), ("[f(a='x)]", "the end of a text is needed"), ("[f(a=1)", "',' is needed"),
        ("[f(a=1)] or 1", "the end is needed"), ("[f(a=1e999)]", "too large"), ("[f(a=nan)]", "a literal is needed"),
        ("[f(a=0x10)]", "a literal is needed"), ("[f(a=1j)]", "a literal is needed"), ("[f(a=" + "[" * 100000, "nested deeper than 64"),
        ("[f(a=" + "{'a':" * 100000, "nested deeper than 64"), ("[f(a=" + "9" * 5000 + ")]", "5000 digits"),
        ("[" + "f()," * 2000 + "]", "more than 1024 calls"), ("[f(a='\\U00110000')]", "no character"),
    ],
)  # fmt: skip
def test_what_is_no_call_in_python_stays_text(text: str, says: str) -> None:
    parser, _ = parse(LFM2, [f"Well <|tool_call_start|>{text}<|tool_call_end|>"])
    assert parser.calls == [] and re.search(says, parser.errors[0])
    assert parser.content == f"Well\n<|tool_call_start|>{text}<|tool_call_end|>"


def test_long_calls_in_python_take_linear_time() -> None:
    for text in (
        "f(a='" + "x\\n" * 300_000 + "')",
        "f(a=[" + "1," * 300_000 + "])",
        "f(a='" + "\\'" * 300_000,
        "f" * 600_000,
        "f(" + "a" * 600_000,
    ):
        start = time.thread_time()
        parse(LFM2, [f"<|tool_call_start|>[{text}]<|tool_call_end|>"])
        assert time.thread_time() - start < 5


# ---- response templates of models --------------------------------------------------------------------------------


def test_transformers_form() -> None:
    """A response template in the form of transformers must work even with features that no row of ROWS uses: kv-lines, join, several
    anchors, and other names of fields."""
    shape = ResponseTemplate(
        {
            "version": 1,
            "start_anchor": ["<bot>", "<again>"],
            "fields": {
                "thinking": {"open": ["[think]", "[thinking]"], "close": "[/think]", "repeats": True, "join": " | "},
                "content": {"close_pattern": r"\s*<end>"},
                "tool_calls": {
                    "open_pattern": r"<call name='(?P<name>\w{1,20}?)'>",
                    "close": "</call>",
                    "repeats": True,
                    "content": "kv-lines",
                    "content_args": {"kv_sep": "="},
                    "transform": {"function": {"name": "{name}", "arguments": "{content}"}},
                },
            },
        }
    )
    text = "[thinking]a[/think]b[think]c[/think]\n<call name='get_weather'>\ncity = Bonn=1\ndays=2\n</call> d <end>"
    whole = parse(shape, [text])
    assert (whole[0].content, whole[0].reasoning) == ("b\nd", "a | c")
    assert whole[0].calls[0].arguments == {"city": "Bonn=1", "days": 2}
    assert outcome(*parse(shape, list(text))) == outcome(*whole)
    assert shape.last_part("<bot>[think]x<again>[thinking]") == "[thinking]"
    assert shape.last_part("none") == ""


_CALLS = {"open": "<c>", "close": "</c>", "content": "json"}


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ([], "must be a dict"),
        ({}, "at least one field"),
        ({"version": 2, "fields": {"content": {}}}, "version 1 is read"),
        ({"field": {}}, "unknown key 'field'; did you mean 'fields'"),
        ({"fields": {"citations": {}}}, "'citations': this version reads"),
        ({"fields": {"content": {}, "thinking": {}}}, "content and thinking both have no open"),
        ({"fields": {"content": {"opened": "x"}}}, "unknown key 'opened'; did you mean 'open'"),
        ({"fields": {"tool_calls": {}}}, "tool_calls needs open"),
        ({"fields": {"tool_calls": {**_CALLS, "content": "yaml"}}}, "'yaml'; it can be text, json"),
        ({"fields": {"tool_calls": {**_CALLS, "open_pattern": "x"}}}, "both open and open_pattern"),
        ({"fields": {"tool_calls": {**_CALLS, "open": []}}}, "open: it must be a text or a list"),
        ({"fields": {"tool_calls": {**_CALLS, "transform": "a {content}"}}}, "stands alone or not at all"),
        ({"fields": {"tool_calls": {**_CALLS, "content": "xml-inline"}}}, "needs content_args.tag_pattern"),
        ({"fields": {"tool_calls": {**_CALLS, "content": "xml-inline", "content_args": {"tag_pattern": "a"}}}}, "needs the groups"),
        ({"fields": {"content": {"close_pattern": "(a+)+"}}}, "a repetition without end of another one at character"),
        ({"fields": {"content": {"close_pattern": "a*"}}}, "matches an empty text"),
        ({"fields": {"content": {"close_pattern": ""}}}, "matches an empty text"),
        ({"fields": {"content": {"close_pattern": "()"}}}, "matches an empty text"),
        ({"fields": {"content": {"close_pattern": "(?=a)b"}}}, r"something behind a \(\?="),
        ({"fields": {"content": {"close_pattern": r"a\b"}}}, r"has \\b at character 1"),
        ({"fields": {"content": {"close_pattern": "(?<=a)b"}}}, r"the group \(\?<"),
        ({"fields": {"content": {"close_pattern": "(a"}}}, r"a \( without its \)"),
        ({"fields": {"content": {"close_pattern": "[a"}}}, r"a \[ without its \]"),
        ({"fields": {"content": {"close_pattern": "a{2000}{2}"}}}, "two quantifiers"),
        ({"fields": {"content": {"close_pattern": "(?:a{900}){900}"}}}, "repeats too much"),
        ({"fields": {"content": {"close_pattern": "a" * 2000}}}, "at most 1024"),
        ({"fields": {"content": {"close_pattern": "(" * 600 + "a" + ")" * 400}}}, "groups more than 50 deep"),
    ],
)
def test_templates_that_are_refused(spec: Any, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        ResponseTemplate(spec)


# ---- markers -----------------------------------------------------------------------------------------------------

PATTERNS = [
    "ab", "a|ab", "ab|a", "a+b", "a*?b", "(?:ab)+c", "[^a]b?", r"a(?=b)", r"a(?=b|$)", r"\s*a", r"a\s*$", "a{2,3}", "a{2}?b", "(?P<x>a|b)c",
    "a.?b", r"(?:a|\s)+?b", "ba?$", r"\s*(?:a|ab)", r"[\s]*b\s*a?",
    "(?:a|a)*c|a*b", "(?:a?){3}a{3}", "(?P<x>a*)(?P<y>[ab]*)c", "(?:(?P<x>a)|(?P<y>b))+c", "(?P<x>a??)(?P<y>b+?)(?=b|$)", "a*(?P<x>a|b)",
    r"\s*\s*b", "(?P<x>(?:a|b)*?)(?P<y>b{1,2})c?", "a(?:b|(?P<x>a)){2}", ]  # fmt: skip


@pytest.mark.parametrize("source", PATTERNS)
def test_markers_are_what_re_finds(source: str) -> None:
    pattern, regex = Pattern(source), re.compile(source.replace("$", r"\Z"), re.DOTALL)
    random.seed(source)
    for _ in range(150):
        text = "".join(random.choice("aab c\n") for _ in range(random.randrange(14)))
        spans = [found.group() for found in regex.finditer(text) if found.group()]
        groups = [{k: v for k, v in found.groupdict().items() if v is not None} for found in regex.finditer(text) if found.group()]
        assert [found for _, _, found in pattern.find_all(text)] == groups, text
        for pieces in ([text], list(text)):
            scanner, found, rest = Scanner(), [], ""
            scanner.watch(Watch([("m", pattern)]))
            for i in range(len(pieces) + 1):
                scanner.feed("".join(pieces[i : i + 1]))
                while True:
                    before, marker = scanner.next(final=i == len(pieces))
                    rest += before
                    if marker is None:
                        break
                    found.append(marker.text)
                    rest += marker.text
            assert rest == text
            assert found == spans, (text, pieces)


@pytest.mark.filterwarnings("error")
def test_signs_in_a_class_are_characters() -> None:
    for sign in "[&~|":
        assert [end for _, end, _ in Pattern(rf"[{sign}{sign}\]x]b").find_all(f"{sign}b ]b xb")] == [2, 5, 8]


def test_a_marker_ends_somewhere() -> None:
    scanner = Scanner()
    scanner.watch(Watch([("m", Pattern("<[^>]*>"))]))
    scanner.feed("<" + "a" * (MAX_MARKER - 2))
    assert scanner.next(False) == ("", None)
    scanner.feed("a" * 10)
    assert len(scanner.next(False)[0]) == MAX_MARKER + 9


# ---- hostile texts and patterns ---------------------------------------------------------------------------------------------------


def test_hostile_texts_take_linear_time() -> None:
    """Parsing a text that is full of almost-markers must take linear time in every shape. 256 Ki characters must take less than a second of
    CPU time."""
    for name, shape in SHAPES.items():
        markers = re.findall(r"[<\[{|A-Za-z_│▁｜:>\]}\"` ]{3,}", json.dumps(shape.spec["fields"], ensure_ascii=False).replace("\\", ""))
        for unit in ("\n ", "<", max(markers, key=len), '{"name": "f", "parameters": {'):
            text = unit * ((1 << 18) // len(unit))
            started = time.process_time()
            parser, _ = parse(shape, [text])
            assert time.process_time() - started < 1.0, (name, unit)
            assert len(parser.content) + len(parser.reasoning or "") + sum(len(c.raw) for c in parser.calls) <= 2 * len(text)


# Patterns, each with a text. Building the pattern or searching the text once took minutes or longer, or raised RecursionError.
HOSTILE = {
    "(?:a|a){24}x": "a" * 24 + "x",
    "(?:.|.|.|.){20}x": "a" * 500,
    "x(?:(?:(?:){9999}){9999}){9999}": "xx",
    "a" + "$" * 1000: "aaa",
    "(?:a?){300}b": "a" * 3000,
    "(?:a?){1000}b": "a" * 3000,
    "(?:(?:(?:a?){7}){7}){7}b": "a" * 3000,
    "(?:(?:a|a)*c|a*b)": "a" * 400 + "b",
    "(?:a?){30}a{30}": "a" * 30,
    "(?P<x>(?:a|a)*c|a*b)": "a" * 400 + "b",
    r"\s*(?:\s|\s)*x": " " * 3000,
    r"(?:\s|\s)*x": " " * 3000,
    "(?:.{0,500})y": "ab" * 2000,
    "(?:(?:){0,9999}){9999}b": "bb",
}


def test_hostile_patterns_take_no_time() -> None:
    for source, text in HOSTILE.items():
        started = time.process_time()
        pattern = Pattern(source)
        scanner = Scanner()
        scanner.watch(Watch([("m", pattern)]))
        scanner.feed(text)
        while scanner.next(True)[1] is not None:
            pass
        with contextlib.suppress(ValueError):  # find_all() gives up if it reads the same text again and again
            list(pattern.find_all(text))
        assert time.process_time() - started < 2.0, source
    for source in (
        "(?:a{9999}){9999}",
        "(?:a?){2000}b",
        "(" * 60 + "a" + ")" * 60,
        "(?:a(?=b))c",
        "(?P<x>a)(?P<x>b)",
    ):
        with pytest.raises(ValueError, match="pattern"):
            Pattern(source)


def test_a_pattern_that_is_too_slow_takes_nothing_apart() -> None:
    """A random text leads the pattern's automaton to new states again and again. The parser must give up, return the whole answer as
    content, and say why."""
    field = {"open_pattern": "(?:a|b)*a(?:a|b){200}c", "close": "</t>", "content": "json"}
    shape = ResponseTemplate({"fields": {"tool_calls": field, "content": {}}})
    random.seed(3)
    text = "".join(random.choice("ab") for _ in range(20000))
    started = time.process_time()
    parser, _ = parse(shape, [text[:7000], text[7000:]])
    assert time.process_time() - started < 10
    assert parser.content == text
    assert len(parser.errors) == 1 and "takes too long over this answer" in parser.errors[0]


def test_a_template_that_is_nested_deep() -> None:
    inner: Any = {"name": "text"}
    for _ in range(2000):
        inner = {"name": "kv-lines", "args": {"value_parser": inner}}
    field = {"open": "<t>", "close": "</t>", "content": "kv-lines"}
    for more in ({"content_args": {"value_parser": inner}}, {"transform": json.loads("[" * 900 + "]" * 900)}):
        with contextlib.suppress(ValueError):
            ResponseTemplate({"fields": {"tool_calls": {**field, **more}}})


def test_random_texts_are_read_without_an_exception() -> None:
    random.seed(5)
    parts = [
        "<think>",
        "</think>",
        "<tool_call>",
        "</tool_call>",
        '{"name": "f", "arguments": {}}',
        "\n",
        " ",
        "é",
        "x",
        "[",
        "]",
        "{",
        '"',
    ]
    for shape in SHAPES.values():
        literal = [m for m in re.findall(r'"(?:open|close)": "([^"]*)"', json.dumps(shape.spec, ensure_ascii=False)) if "\\" not in m]
        for _ in range(int(os.environ.get("PUMICE_TEST_TEXTS", "60"))):
            pieces = random.choices(parts + literal, k=random.randrange(20))
            assert outcome(*parse(shape, pieces)) == outcome(*parse(shape, ["".join(pieces)]))


if FOLDER := os.environ.get("PUMICE_TEMPLATES"):  # a folder of chat templates from other sources

    def test_templates_of_a_folder() -> None:
        """For 90 % of the *.jinja files that write a call into the prompt, the parser must read the same call back."""
        good, bad = [], []
        for path in sorted(Path(FOLDER).rglob("*.jinja")):
            source = path.read_text()
            found = _round_trip(source)
            if found is not None:
                (good if found else bad).append(path.stem)
        print(f"{len(good)} of {len(good) + len(bad)}; not: {', '.join(bad)}")
        assert len(good) >= 0.9 * (len(good) + len(bad))


def _round_trip(source: str) -> bool | None:
    """Returns whether the parser reads back a call that the template has written, or None if the template writes no call."""
    given = TOOLS[0]["function"]["parameters"]["properties"]
    simple = {**TOOLS[0]["function"], "parameters": {"type": "object", "properties": {name: given[name] for name in ("city", "days")}}}
    tools = [{"type": "function", "function": simple}]  # only two parameters, because Hermes' templates know few types
    call = {"id": "a1B2c3D4e", "type": "function", "function": {"name": "get_weather", "arguments": {"city": "Xanadu", "days": 3}}}
    try:
        template = ChatTemplate(source, "<bos>", "</s>")
    except ChatTemplateError:
        return None
    for content in ("", None, "I look."):
        answer = {"role": "assistant", "content": content, "tool_calls": [call]}
        try:
            full = template.render([USER, answer], False, tools=tools)
            prompt = template.render([USER], True, tools=tools)
            before = template.render([USER], False, tools=tools)
        except ChatTemplateError:
            continue
        if "Xanadu" not in full:
            continue
        if (row := response_templates.row_of(source)) is None or "tool_calls" not in row.template["fields"]:
            return False
        common = len(os.path.commonprefix([full, prompt]))
        opened = prompt[len(before) : common] if prompt.startswith(before) else ""
        text = full[common:].rstrip()
        for end in ENDS:
            text = text.removesuffix(end).rstrip()
        parser, _ = parse(SHAPES[row.name], [text], opened)
        return [(c.name, c.arguments) for c in parser.calls] == [("get_weather", {"city": "Xanadu", "days": 3})]
    return None


def test_reasoning_is_called_what_the_template_calls_it() -> None:
    assert {name: template_messages.reasoning_key(source) for name, source in TEMPLATES.items()} == {
        name: reasons_as(name) for name in TEMPLATES
    }
