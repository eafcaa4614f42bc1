"""chat() with tools, on a toy engine: the prompt that the engine gets, and the parsed answer, whole and as a stream."""

from __future__ import annotations

import enum
import json
import pickle
from pathlib import Path
from typing import Any, Literal

import fake_core as toy
import numpy as np
import pydantic
import pytest
from fake_core import fake, fake_core, fake_model, write_model  # noqa: F401

GREEDY = {"general.sampling.temp": 0.0}  # the toy engine adds a letter to an answer that it samples
SHOWN = "toy: <tool_call> arguments, reasoning_content"  # a template with the markers that select the Hermes row
THOUGHT_AND_CALLS = (
    '<think>\nhm\n</think>\n\nI look.\n<tool_call>\n{"name": "weather", "arguments": {"city": "Köln"}}\n</tool_call>\n'
    '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'
)


def weather(city: str, days: int = 1) -> str:
    """The weather of a place.

    Args:
        city: Its name.
        days: How many.
    """
    return f"{days} dry days in {city}"


def now() -> str:
    """The time."""
    return "noon"


@pytest.fixture
def tooled(pumice: Any, tmp_path: Path) -> Any:
    with pumice.load(write_model(tmp_path / "tools.gguf", **{"tokenizer.chat_template": SHOWN}, **GREEDY), progress=False) as model:
        yield model


def says(monkeypatch: pytest.MonkeyPatch, model: Any, text: str, messages: Any = "Hi", **options: Any) -> None:
    """Makes the toy engine answer the conversation `messages` with `text`."""
    monkeypatch.setattr(toy, "CONTEXT", 4096)
    monkeypatch.setitem(toy.CONTINUATIONS, model.chat(messages, dry_run=True, **options).prompt, text)


def test_calls_reasoning_and_content(monkeypatch: pytest.MonkeyPatch, pumice: Any, tooled: Any) -> None:
    says(monkeypatch, tooled, THOUGHT_AND_CALLS, tools=[weather, now])
    answer = tooled.chat("Hi", tools=[weather, now])
    assert (answer.content, answer.reasoning, answer.text, answer.tool_errors) == ("I look.", "hm", THOUGHT_AND_CALLS, ())
    assert [(call.name, call.arguments) for call in answer.tool_calls] == [("weather", {"city": "Köln"}), ("now", {})]
    assert isinstance(answer.tool_calls[0], pumice.ToolCall)
    first = answer.tool_calls[0]
    assert first.raw == '<tool_call>\n{"name": "weather", "arguments": {"city": "Köln"}}\n</tool_call>'
    assert answer.message["reasoning_content"] == "hm"
    assert answer.message["tool_calls"][0] == {
        "id": first.id,
        "type": "function",
        "function": {"name": "weather", "arguments": {"city": "Köln"}},
    }
    reply = answer.to_openai()["choices"][0]
    assert reply["finish_reason"] == "tool_calls"
    assert reply["message"]["content"] == "I look."
    assert reply["message"]["reasoning_content"] == "hm"
    assert json.loads(reply["message"]["tool_calls"][0]["function"]["arguments"]) == {"city": "Köln"}
    said = {"role": "tool", "tool_call_id": first.id, "name": "weather", "content": weather(**first.arguments)}
    again = tooled.chat([{"role": "user", "content": "Hi"}, answer.message, said], tools=[weather, now], dry_run=True)
    assert again.prompt.startswith("<user>Hi<assistant>I look.<tool>1 dry days in Köln[tools=")


def test_a_stream_says_what_its_text_is(monkeypatch: pytest.MonkeyPatch, tooled: Any) -> None:
    says(monkeypatch, tooled, THOUGHT_AND_CALLS, tools=[weather, now])
    stream = tooled.chat("Hi", tools=[weather, now], stream=True, logprobs=2)
    chunks = list(stream)
    result = stream.result
    text = {kind: "".join(c.text for c in chunks if c.kind == kind) for kind in ("content", "reasoning", "tool_call")}
    assert (text["content"], text["reasoning"]) == ("I look.", "hm") == (result.content, result.reasoning)
    assert '{"name": "now", "arguments": {}}' in text["tool_call"]
    assert tuple(call for c in chunks for call in c.calls) == result.tool_calls
    assert len(result.tool_calls) == 2
    assert np.concatenate([c.ids for c in chunks]).tolist() == result.ids.tolist() == list(THOUGHT_AND_CALLS.encode())
    assert sum(len(c.logprobs) for c in chunks if c.logprobs is not None) == len(result.ids)
    assert [c.finish_reason for c in chunks if c.finish_reason] == ["eos"] == [chunks[-1].finish_reason]


def test_a_stream_has_calls_while_they_are_written(monkeypatch: pytest.MonkeyPatch, tooled: Any) -> None:
    says(monkeypatch, tooled, THOUGHT_AND_CALLS, tools=[weather, now])
    stream = tooled.chat("Hi", tools=[weather, now], stream=True)
    chunks = list(stream)
    deltas = [delta for chunk in chunks for delta in chunk.call_deltas]
    assert [(delta.index, delta.name) for delta in deltas if delta.name] == [(0, "weather"), (1, "now")]
    assert {chunk.kind for chunk in chunks if chunk.call_deltas} == {"tool_call"}
    for i, call in enumerate(stream.result.tool_calls):
        assert json.loads("".join(delta.arguments for delta in deltas if delta.index == i)) == call.arguments
        assert {delta.id for delta in deltas if delta.index == i} == {call.id}
    assert len(deltas) > 10
    assert not any(chunk.call_errors for chunk in chunks)
    begun = THOUGHT_AND_CALLS.split("ln")[0]
    cut = tooled.chat("Hi", tools=[weather, now], max_tokens=len(begun.encode()), stream=True)
    chunks = list(cut)
    assert any(delta.index == 0 for chunk in chunks for delta in chunk.call_deltas)
    assert not any(chunk.call_errors for chunk in chunks)
    (call,) = cut.result.tool_calls
    assert "".join(delta.arguments for chunk in chunks for delta in chunk.call_deltas) == call.cut == '{"city": "K\u00f6'
    assert [call for chunk in chunks for call in chunk.calls] == [call]
    assert cut.result.content == "".join(chunk.text for chunk in chunks if chunk.kind == "content") == "I look."


def test_a_closed_stream_and_a_short_answer(monkeypatch: pytest.MonkeyPatch, tooled: Any) -> None:
    says(monkeypatch, tooled, THOUGHT_AND_CALLS, tools=[weather])
    with tooled.chat("Hi", tools=[weather], stream=True) as stream:
        for chunk in stream:
            if chunk.kind == "content" and chunk.text:
                break
    assert (stream.result.reasoning, stream.result.tool_calls, stream.result.finish_reason) == ("hm", (), "cancelled")
    assert stream.result.content.startswith("I")
    cut = tooled.chat("Hi", tools=[weather], max_tokens=len(THOUGHT_AND_CALLS.encode()) - 90)
    assert cut.finish_reason == "length"
    (call,) = cut.tool_calls
    assert (call.name, call.complete, cut.content, cut.tool_errors) == ("weather", False, "I look.", ())
    with pytest.raises(ValueError, match="'weather' is not complete.*max_new_tokens"):
        _ = call.arguments
    assert cut.message["tool_calls"][0]["function"] == {"name": "weather", "arguments": call.cut}
    reply = cut.to_openai()["choices"][0]
    assert (reply["finish_reason"], reply["message"]["tool_calls"][0]["function"]["arguments"]) == ("length", call.cut)
    whole = tooled.chat("Hi", tools=[weather], stop='"city"')  # a stop string inside of a call does not end the answer
    assert (whole.finish_reason, whole.tool_errors, whole.tool_calls[0].complete) == ("eos", (), True)
    stopped = tooled.chat("Hi", tools=[weather], stop="look")
    assert (stopped.content, stopped.reasoning, stopped.text) == ("I", "hm", "<think>\nhm\n</think>\n\nI ")
    tooled._core.interrupt_after = 3
    with pytest.raises(KeyboardInterrupt) as caught:
        tooled.chat("Hi", tools=[weather])
    assert caught.value.partial.reasoning == "hm"  # type: ignore[attr-defined]
    assert caught.value.partial.message["role"] == "assistant"  # type: ignore[attr-defined]


def test_samples_are_read_apart(monkeypatch: pytest.MonkeyPatch, tooled: Any) -> None:
    says(monkeypatch, tooled, THOUGHT_AND_CALLS, tools=[weather])
    both = tooled.chat("Hi", tools=[weather], n=2)
    assert [len(answer.tool_calls) for answer in both] == [2, 2]
    assert len({call.id for answer in both for call in answer.tool_calls}) == 4


def test_without_tools_only_reasoning_is_apart(monkeypatch: pytest.MonkeyPatch, tooled: Any, model: Any) -> None:
    says(monkeypatch, tooled, THOUGHT_AND_CALLS)
    answer = tooled.chat("Hi")
    assert (answer.reasoning, answer.tool_calls) == ("hm", ())
    assert answer.content == THOUGHT_AND_CALLS.split("</think>\n\n")[1]
    says(monkeypatch, model, THOUGHT_AND_CALLS)
    answer = model.chat("Hi", temperature=0)  # the template of this model has no markers
    assert (answer.content, answer.reasoning) == (THOUGHT_AND_CALLS, None)
    assert answer.message == {"role": "assistant", "content": THOUGHT_AND_CALLS}


def test_tool_choice(monkeypatch: pytest.MonkeyPatch, pumice: Any, tooled: Any) -> None:
    plain = tooled.chat("Hi", dry_run=True).prompt
    assert tooled.chat("Hi", tools=[weather], tool_choice="none", dry_run=True).prompt == plain
    assert tooled.chat("Hi", tools=[weather], tool_choice="auto", dry_run=True).prompt != plain
    assert tooled.chat("Hi", tools=[], dry_run=True).prompt == plain
    for forced in ({"tool_choice": "required"}, {"tool_choice": "weather"}, {"parallel_tool_calls": False}):
        assert tooled.chat("Hi", tools=[weather], dry_run=True, **forced).prompt != plain
        with pytest.raises(ImportError, match=r'pip install "pumice\[grammar\]"'):  # the toy engine has no grammars
            tooled.chat("Hi", tools=[weather], **forced)
    with pytest.raises(ValueError, match=r"tool_choice='wether' is neither .* nor one of the tools \(weather\)"):
        tooled.chat("Hi", tools=[weather], tool_choice="wether")


def test_templates_that_cannot_have_tools(pumice: Any, tmp_path: Path, model: Any, tooled: Any) -> None:
    with pytest.raises(pumice.ChatTemplateError, match=r"none of the known ways to call tools \(gpt-oss .*Llama 3.*response_template="):
        model.chat("Hi", tools=[weather])
    path = write_model(tmp_path / "deaf.gguf", **{"tokenizer.chat_template": f"{SHOWN} deaf"})
    with pumice.load(path) as deaf, pytest.raises(pumice.ChatTemplateError, match="leaves tools out"):
        deaf.chat("Hi", tools=[weather])
    with pytest.raises(TypeError, match="tools was given twice"):
        tooled.chat("Hi", tools=[weather], template_kwargs={"tools": []})


OWN = {
    "start_anchor": "<assistant>",
    "fields": {
        "content": {},
        "reasoning": {"open": "(", "close": ")"},
        "tool_calls": {"open": "CALL ", "close": ";", "content": "json", "repeats": True},
    },
}


def test_response_template_of_load_and_of_the_model(monkeypatch: pytest.MonkeyPatch, pumice: Any, tmp_path: Path) -> None:
    path = write_model(tmp_path / "m.gguf", **GREEDY)
    (tmp_path / "own.json").write_text(json.dumps(OWN))
    folder = write_model(tmp_path / "folder")
    (folder / "generation_config.json").write_text('{"do_sample": false}')
    (folder / "tokenizer_config.json").write_text(json.dumps({"response_template": OWN}))
    for source, given in ((path, OWN), (path, str(tmp_path / "own.json")), (path, folder / "tokenizer_config.json"), (folder, None)):
        with pumice.load(source, response_template=given) as model:
            says(monkeypatch, model, '(x) y CALL {"name": "now"}; z', tools=[now])
            answer = model.chat("Hi", tools=[now])
            assert (answer.content, answer.reasoning, answer.tool_calls[0].name) == ("y\nz", "x", "now")
            assert answer.kind_tokens == {"content": 5, "reasoning": 3, "tool_call": len(answer.ids) - 8}
            assert model.chat("Hi", dry_run=True).kind_tokens == {"content": 0, "reasoning": 0, "tool_call": 0}
            with model.chat("Hi", tools=[now], stream=True) as stream:
                assert list(stream) and stream.result.kind_tokens == answer.kind_tokens
            assert pickle.loads(pickle.dumps(model)).chat("Hi", tools=[now]).content == "y\nz"
    with pumice.load(folder, response_template=False) as model:
        says(monkeypatch, model, '(x) y CALL {"name": "now"}; z', tools=[now])
        answer = model.chat("Hi", tools=[now])
        assert answer.content == '(x) y CALL {"name": "now"}; z'
        assert answer.kind_tokens == {"content": len(answer.ids), "reasoning": 0, "tool_call": 0}
    (folder / "tokenizer_config.json").write_text(json.dumps({"response_template": {"fields": {"content": {"open_pattern": "(a+)+"}}}}))
    with (
        pumice.load(folder) as model,
        pytest.raises(pumice.ModelFormatError, match=r"repetition without end.*load\(response_template=\)"),
    ):
        model.chat("Hi")
    for wrong, error, said in (
        ({"fields": {}}, ValueError, "at least one field"),
        (3, TypeError, "response_template must be a dict, a path"),
        ("none.json", FileNotFoundError, "is no file"),
    ):
        with pytest.raises(error, match=said):
            pumice.load(path, response_template=wrong)


def test_control_tokens_are_read_and_not_shown() -> None:
    """The control token [TOOL_CALLS] must not appear in the text, but the parser must take it as the start of a call. Other control tokens
    must be ignored."""
    from pumice.chats.response_parser import ResponseParser, ResponseTemplate
    from pumice.chats.response_templates import ROWS
    from pumice.chats.results import Answer
    from pumice.generate.settings import SamplingParams

    words = {1: "Hi", 2: " there", 3: '[{"name": "now",', 4: ' "arguments": {}}]', 8: "", 9: ""}

    class Words:
        pending = False

        def step(self, ids: list[int]) -> str:
            return words[ids[0]]

        def flush(self) -> str:
            return ""

        def decode_stream(self, after: Any = ()) -> Words:
            return self

    shape = ResponseTemplate(next(row.template for row in ROWS if row.name.startswith("Mistral, old")))
    assert shape.hears("[TOOL_CALLS]", calls=True)
    assert not shape.hears("[TOOL_CALLS]", calls=False)
    assert not shape.hears("<pad>", calls=True)
    for step in (1, 6):
        heard = {9: "[TOOL_CALLS]"}
        answer = Answer(Words(), SamplingParams(), [], lambda: ResponseParser(shape), heard)  # type: ignore[arg-type]
        ids = [1, 8, 2, 9, 3, 4]
        chunks = []
        for i in range(0, 6, step):
            answer.push({"ids": ids[i : i + step], "finish_reason": "eos" if i + step >= 6 else None})
            chunks += answer.chunks(0)
        assert answer.text == 'Hi there[{"name": "now", "arguments": {}}]'
        assert [i for chunk in chunks for i in chunk.ids] == ids
        assert [piece for chunk in chunks for piece in chunk.pieces] == [words[i] for i in ids]
        assert "".join(chunk.text for chunk in chunks if chunk.kind == "content") == "Hi there" == answer.parsed().content
        assert [call.name for call in answer.parsed().calls] == ["now"]
        assert answer.kind_tokens() == {"content": 3, "reasoning": 0, "tool_call": 3}


# ---- functions as tools ------------------------------------------------------------------------------------------


class Unit(enum.Enum):
    C = "celsius"
    F = "fahrenheit"


def forecast(
    city: str,
    days: int | None = None,
    limits: list[float] = [],  # noqa: B006
    unit: Unit = Unit.C,
    how: Literal["short", "long"] = "short",
    more: dict[str, int] | None = None,
    any_of: int | str = 0,
) -> str:
    """Tells the weather.

    It may be wrong.

    :param city: the place,
        as people call it
    :param days: how many
    """
    return city


def test_schema_of_a_function() -> None:
    from pumice.chats.tool_schemas import schema_of

    function = schema_of(forecast)["function"]
    assert (function["name"], function["description"]) == ("forecast", "Tells the weather.\n\nIt may be wrong.")
    assert function["parameters"] == {
        "type": "object",
        "properties": {
            "city": {"type": "string", "description": "the place, as people call it"},
            "days": {"type": "integer", "nullable": True, "description": "how many"},
            "limits": {"type": "array", "items": {"type": "number"}},
            "unit": {"type": "string", "enum": ["celsius", "fahrenheit"]},
            "how": {"type": "string", "enum": ["short", "long"]},
            "more": {"type": "object", "additionalProperties": {"type": "integer"}, "nullable": True},
            "any_of": {"type": ["integer", "string"]},
        },
        "required": ["city"],
    }
    assert schema_of(weather)["function"]["parameters"] == {
        "type": "object",
        "properties": {"city": {"type": "string", "description": "Its name."}, "days": {"type": "integer", "description": "How many."}},
        "required": ["city"],
    }


def test_wrong_tools(tooled: Any) -> None:
    def untyped(x):  # type: ignore[no-untyped-def]
        return x

    def strange(x: complex) -> None:
        pass

    def many(*x: int) -> None:
        pass

    for tools, error, said in (
        (weather, TypeError, "tools must be a list"),
        ({"name": "f"}, TypeError, "tools must be a list"),
        ([3], TypeError, r"tools\[0\] is int 3"),
        ([{"type": "function"}], ValueError, r"tools\[0\] has no name"),
        ([{"type": "retrieval", "function": {"name": "f"}}], ValueError, 'a tool is {"type": "function"'),
        ([{"name": "f", "parameters": []}], ValueError, "must be a JSON schema"),
        ([{"name": "f", "parameters": {"type": "array"}}], ValueError, "a schema of type 'array'; a call's arguments are an object"),
        ([{"name": 'a"b\n</tool_call>'}], ValueError, r"tools\[0\]: the name .* could not be told"),
        ([{"name": "x" * 129}], ValueError, "128 at most"),
        ([now, now], ValueError, "'now' twice"),
        ([untyped], TypeError, "'x' of the tool untyped has no type annotation"),
        ([strange], TypeError, "JSON has no word for"),
        ([many], TypeError, "cannot be given by name"),
        ([lambda: 1], TypeError, "a lambda is no tool"),
    ):
        with pytest.raises(error, match=said):
            tooled.chat("Hi", tools=tools)


# ---- numbers that JSON can write and no double can hold -----------------------------------------------------------

BEYOND = ["1e999", "-1e999", "1" + "0" * 400 + ".5", "NaN", "Infinity", "-Infinity"]


@pytest.mark.parametrize("number", BEYOND)
def test_a_call_with_a_number_beyond_a_double_is_an_error(
    number: str, monkeypatch: pytest.MonkeyPatch, pumice: Any, tooled: Any, tmp_path: Path
) -> None:
    """JSON has no infinity and no NaN, so neither the arguments of a call nor the result of to_openai() may contain them."""
    text = f'<tool_call>\n{{"name": "weather", "arguments": {{"city": "Rome", "days": {number}}}}}\n</tool_call>'
    says(monkeypatch, tooled, text, tools=[weather])
    answer = tooled.chat("Hi", tools=[weather])
    assert answer.tool_calls == () and len(answer.tool_errors) == 1, answer.tool_calls
    assert "no JSON" in answer.tool_errors[0] or "larger than a double" in answer.tool_errors[0]
    json.loads(json.dumps(answer.to_openai(), allow_nan=False))
    # The arguments of the call may also be a JSON text in a string.
    inner = json.dumps(f'{{"days": {number}}}')
    says(monkeypatch, tooled, f'<tool_call>\n{{"name": "weather", "arguments": {inner}}}\n</tool_call>', tools=[weather])
    assert tooled.chat("Hi", tools=[weather]).tool_calls == ()


@pytest.mark.parametrize("number", BEYOND)
def test_arguments_that_come_as_text_stay_text(number: str) -> None:
    from pumice.chats.tool_schemas import typed

    for kind in ("number", "integer", "array", "object"):
        text = {"array": f"[{number}]", "object": f'{{"a": {number}}}'}.get(kind, number)
        assert typed({"x": text}, {"properties": {"x": {"type": kind}}}) == {"x": text}


def test_to_openai_is_json(pumice: Any) -> None:
    call = pumice.ToolCall("call_1", "f", {"a": 2**70, "b": [1.5, None], "c": "\ud800 \u00fc"})
    arguments = call.to_openai()["function"]["arguments"]
    assert json.loads(arguments.encode()) == call.arguments
    with pytest.raises(ValueError, match="the arguments of 'f' have inf, which is no JSON"):
        pumice.ToolCall("call_1", "f", {"a": [float("inf")]}).to_openai()


def test_numbers_of_tools_are_json(tooled: Any) -> None:
    """A tool's schema with NaN or infinity must be refused, because a template would write them into the prompt."""
    infinite = float("inf")
    tool = {"name": "f", "parameters": {"type": "object", "properties": {"a": {"type": "number", "maximum": infinite}}}}
    with pytest.raises(ValueError, match=r"tools\[0\] \(f\): inf at /parameters/properties/a/maximum is no JSON"):
        tooled.chat("Hi", tools=[tool], dry_run=True)


class Price(pydantic.BaseModel):
    amount: float


@pytest.mark.parametrize("number", BEYOND)
def test_parsed_is_json(number: str, pumice: Any) -> None:
    from pumice.chats.answer_grammars import check_response_format, json_of

    for kind in ({"type": "json_object"}, Price, pydantic.TypeAdapter(dict[str, float])):
        form = check_response_format(kind)
        assert form is not None
        with pytest.raises(ValueError, match="the answer cannot be read as JSON .*(is no JSON|a number that is larger than a double)"):
            form.parse(f'{{"amount": {number}}}')
    form = check_response_format(Price)
    assert form is not None and form.parse('{"amount": 1e300}') == Price(amount=1e300)
    assert pickle.loads(pickle.dumps(form.parse))('{"amount": 0}') == Price(amount=0)
    for deep in ("[" * 100_000, "1" * 5000):
        with pytest.raises(ValueError, match="the answer"):
            json_of(deep)


# ---- continue_final -------------------------------------------------------------------------------------------------


def talk(**last: Any) -> list[dict[str, Any]]:
    return [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "", **last}]


def test_chat_goes_on(monkeypatch: pytest.MonkeyPatch, tooled: Any) -> None:
    monkeypatch.setattr(toy, "CONTEXT", 4096)
    monkeypatch.setitem(toy.CONTINUATIONS, "<user>Hi<assistant>It is", " fine.\n")
    monkeypatch.setitem(toy.CONTINUATIONS, "<user>Hi<assistant><think>Well", ", yes.</think>\nFine.")
    asked = tooled.chat(talk(content="It is"), continue_final=True, dry_run=True)
    assert (asked.prompt, asked.prompt_tokens, asked.text) == ("<user>Hi<assistant>It is", len("<user>Hi<assistant>It is"), "")
    answer = tooled.chat(talk(content="It is"), continue_final=True)
    assert (answer.content, answer.reasoning, answer.text) == (" fine.", None, " fine.\n")
    assert answer.prompt == asked.prompt
    both = tooled.chat(talk(content="It is"), continue_final=True, n=2)
    assert [one.content for one in both] == [" fine.", " fine."]
    stream = tooled.chat(talk(content="It is"), continue_final=True, stream=True)
    assert "".join(chunk.text for chunk in stream if chunk.kind == "content") == " fine." == stream.result.content
    stream = tooled.chat(talk(reasoning_content="Well"), continue_final=True, stream=True)
    said = [(chunk.kind, chunk.text) for chunk in stream if chunk.text]
    assert "".join(text for kind, text in said if kind == "reasoning") == ", yes." == stream.result.reasoning
    assert "".join(text for kind, text in said if kind == "content") == "Fine." == stream.result.content


def test_what_cannot_be_continued(pumice: Any, tooled: Any) -> None:
    def tool() -> None:
        """Nothing."""

    call = {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    for messages, options, says in (
        ("Hi", {}, "which must be the assistant's; its role is 'user'"),
        (talk()[:1], {}, "which must be the assistant's"),
        (talk(content="It is", tool_calls=[call]), {}, "has tool_calls"),
        (talk(content=None, tool_calls=[call]), {}, "has tool_calls"),
        (talk(content="It is"), {"response_format": {"type": "json_object"}}, "and response_format were both given"),
        (talk(content="It is"), {"grammar": pumice.Grammar.regex("a")}, "and grammar were both given"),
        (talk(content="It is"), {"tools": [tool], "tool_choice": "required"}, "and tool_choice were both given"),
        (talk(content="It is"), {"tools": [tool], "parallel_tool_calls": False}, "and parallel_tool_calls were both given"),
    ):
        with pytest.raises(ValueError, match="continue_final=True") as caught:
            tooled.chat(messages, continue_final=True, **options)
        assert says in str(caught.value)
    with pytest.raises(TypeError, match="continue_final"):
        tooled.chat(talk(content="It is"), continue_final="yes")
    asked = tooled.chat(talk(content="It is"), continue_final=True, tools=[tool], dry_run=True)
    assert json.dumps("tool") in asked.prompt.replace("'", '"')
