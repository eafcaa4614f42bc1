"""run_tools() and arun_tools(): what is run, what the model is told of it, and how runs end. A scripted model says what a real one would
say only now and then; SmolLM2 runs the whole way."""

from __future__ import annotations

import asyncio
import contextvars
import dataclasses
import json
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any

import numpy as np
import pydantic
import pytest
from patience import PATIENCE, until, wait_until

import pumice
from pumice.chats.argument_checks import mismatch
from pumice.chats.results import ChatResult
from pumice.chats.tool_runs import MOST_ERROR
from pumice.chats.tool_schemas import schema_of
from pumice.generate.settings import SamplingParams


def call(name: str, cut: str | None = None, /, **arguments: Any) -> pumice.ToolCall:
    return pumice.ToolCall(f"id-{name}", name, arguments, cut=cut)


class Script:
    """A model that gives these answers, one after another. An answer is a text or a list of calls; errors are raised."""

    def __init__(self, *answers: Any, finish_reason: str = "eos", tool_errors: tuple[str, ...] = ()) -> None:
        self.answers, self.asked = list(answers), []
        self._more = {"finish_reason": finish_reason, "tool_errors": tool_errors}

    def chat(self, messages: list[dict[str, Any]], *, stream: bool = False, **options: Any) -> Any:
        self.asked.append(([dict(message) for message in messages], options))
        answer = self.answers.pop(0)
        if isinstance(answer, BaseException):
            raise answer
        given = {"content": answer} if isinstance(answer, str) else answer if isinstance(answer, dict) else {"tool_calls": tuple(answer)}
        empty: dict[str, Any] = dict.fromkeys(("logprobs", "top_ids", "top_logprobs"))
        ids, more = np.zeros(0, np.int32), self._more if given.get("tool_calls") or not self.answers else {"finish_reason": "eos"}
        known = {"text": "", "ids": ids, "prompt_tokens": 1, "reused_tokens": 0, "seed": 0, "params": SamplingParams()}
        result = ChatResult(**{**known, "timings": {}, "device": "", **empty, **more, **given})
        return _Stream(result) if stream else result

    async def achat(self, messages: list[dict[str, Any]], **options: Any) -> Any:
        await asyncio.sleep(0)
        return self.chat(messages, **options)


class _Stream:
    """An answer whose only chunk is its content."""

    def __init__(self, result: ChatResult) -> None:
        self.result = result

    def chunks(self) -> Iterator[pumice.Chunk]:
        yield pumice.Chunk(self.result.content, self.result.ids, 0, self.result.finish_reason, None, None, None)

    __iter__ = chunks

    async def __aiter__(self) -> AsyncIterator[pumice.Chunk]:
        for chunk in self.chunks():
            yield chunk

    def close(self) -> None:
        pass

    async def aclose(self) -> None:
        pass

    def __enter__(self) -> _Stream:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    async def __aenter__(self) -> _Stream:
        return self

    async def __aexit__(self, *_: object) -> None:
        pass


def run(way: str, model: Any, tools: Any, messages: Any = "Hi", **options: Any) -> pumice.ToolRun:
    """Runs to the end in one of the ways: "plain", "in turn", "stream" and their async forms."""
    more = {"in_turn": "turn" in way, "stream": "stream" in way, **options}

    async def awaited() -> Any:
        found = await pumice.arun_tools(model, messages, tools=tools, **more)
        if "stream" in way:
            async with found:
                steps = [step async for step in found]
            return steps, found.result
        return found

    found = asyncio.run(awaited()) if way.startswith("async") else pumice.run_tools(model, messages, tools=tools, **more)
    if "stream" not in way:
        return found
    if isinstance(found, pumice.ToolStream):
        with found:
            steps = list(found)
        found = steps, found.result
    assert {id(step) for step in found[0] if isinstance(step, pumice.ToolResult)} == {id(each) for each in found[1].calls}
    assert "".join(step.text for step in found[0] if isinstance(step, pumice.Chunk)).endswith(found[1].content)
    return found[1]


WAYS = ["plain", "in turn", "stream", "async", "async in turn", "async stream"]


def add(a: int, b: int = 0) -> int:
    """Adds."""
    return a + b


async def later(text: str) -> str:
    """Says a text later."""
    await asyncio.sleep(0.001)
    return text


def breaks(how: str) -> None:
    """Raises."""
    raise KeyError(how)


class Point(pydantic.BaseModel):
    x: int


@dataclasses.dataclass
class Pair:
    a: int


def makes(kind: str) -> Any:
    """Returns a value of a kind."""
    values: dict[str, Any] = {"none": None, "dict": {"ä": [1.5]}, "model": Point(x=1), "pair": Pair(2), "nan": float("nan"), "set": {3}}
    return values[kind]


SUM = {"name": "sum", "parameters": {"type": "object", "properties": {"x": {"type": "array", "items": {"type": "number"}}}}}


@pytest.mark.parametrize("way", WAYS)
def test_calls_are_run_and_told(way: str) -> None:
    model = Script([call("add", a=1, b=2), call("later", text="é")], [call("sum", x=[1, 2.5])], "Done.")
    given = [{"role": "user", "content": "Go."}]
    tools = [add, later, (SUM, lambda x: sum(x))]
    found = run(way, model, tools, given, tool_choice="required", temperature=0, max_tokens=7)
    assert (found.finish, found.content, str(found), len(found.answers)) == ("answer", "Done.", "Done.", 3)
    assert found.answer is found.answers[-1]
    assert [(each.name, each.arguments, each.round, each.result, each.error, each.content) for each in found.calls] == [
        ("add", {"a": 1, "b": 2}, 0, 3, None, "3"),
        ("later", {"text": "é"}, 0, "é", None, "é"),
        ("sum", {"x": [1, 2.5]}, 1, 3.5, None, "3.5"),
    ]
    assert [message["role"] for message in found.messages] == ["user", "assistant", "tool", "tool", "assistant", "tool", "assistant"]
    assert found.messages[2] == {"role": "tool", "tool_call_id": "id-add", "name": "add", "content": "3"}
    assert len(given) == 1 and [len(messages) for messages, _ in model.asked] == [1, 4, 6]
    assert [options["tool_choice"] for _, options in model.asked] == ["required", None, None]  # or the run would never end
    assert all(options["temperature"] == 0 and options["max_tokens"] == 7 and options["tools"][2] is SUM for _, options in model.asked)
    assert all(0 < options["max_seconds"] <= 600 for _, options in model.asked)
    assert found.seconds > 0 and all(each.seconds > 0 for each in found.calls)


@pytest.mark.parametrize("way", WAYS)
def test_the_model_is_told_what_went_wrong(way: str) -> None:
    wrong = [
        (call("breaks", how="so"), KeyError, "error: KeyError: 'so'"),
        (call("nothing"), LookupError, "error: there is no tool 'nothing' (the tools are: add, breaks, sum)"),
        (call("add", b=1), TypeError, "error: the arguments do not fit add: a is missing"),
        (call("add", a="1"), TypeError, "error: the arguments do not fit add: a must be integer, not '1'"),
        (call("add", a=1, c=1), TypeError, "error: the arguments do not fit add: there is no argument 'c' (the arguments are: a, b)"),
        (call("sum", x=[1, "2"]), TypeError, "error: the arguments do not fit sum: x[1] must be number, not '2'"),
        (call("add", '{"a": 1, "b', a=1), pumice.IncompleteCallError, "error: the call of 'add' is not complete"),
    ]
    model = Script([each for each, _, _ in wrong], "Sorry.", finish_reason="length")
    found = run(way, model, [add, breaks, (SUM, sum)])
    assert [type(each.error) for each in found.calls] == [kind for _, kind, _ in wrong]
    for each, (_, _, text), message in zip(found.calls, wrong, found.messages[2:], strict=False):
        assert each.content.startswith(text) and message["content"] == each.content and each.result is None
    assert found.finish == "answer" and found.content == "Sorry."
    assert found.messages[1]["tool_calls"][-1]["function"]["arguments"] == {"a": 1}  # what templates can render


@pytest.mark.parametrize("calls", [(), (call("add", a=1),)])
def test_calls_that_cannot_be_read_are_told(calls: tuple[pumice.ToolCall, ...]) -> None:
    unread = {"content": "<tool_call>{", "tool_calls": calls, "tool_errors": ("a call is no JSON",)}
    found = pumice.run_tools(Script(unread, "Sorry."), "Hi", tools=[add])
    told = found.messages[-2]
    assert told["role"] == ("tool" if calls else "user") and "error: a call is no JSON. Write the call again" in told["content"]
    assert told["content"].startswith("1\n\n" if calls else "error")
    assert (found.finish, found.content, len(found.calls)) == ("answer", "Sorry.", len(calls))


@pytest.mark.parametrize(
    ("kind", "text"), {"none": "null", "dict": '{"ä": [1.5]}', "model": '{"x":1}', "pair": '{"a": 2}', "nan": "nan", "set": "{3}"}.items()
)
def test_results_become_text(kind: str, text: str) -> None:
    assert pumice.run_tools(Script([call("makes", kind=kind)], "."), "Hi", tools=[makes]).calls[0].content == text


def test_long_and_broken_errors() -> None:
    class Broken(Exception):
        def __str__(self) -> str:
            raise ValueError

    def raises(long: bool) -> None:
        """Raises."""
        raise ValueError("x" * 10**6) if long else Broken

    found = pumice.run_tools(Script([call("raises", long=True), call("raises", long=False)], "."), "Hi", tools=[raises])
    assert len(found.calls[0].content) == MOST_ERROR + 3 and found.calls[1].content == "error: Broken"


class _Odd:
    """A value whose methods raise errors."""

    @property
    def model_dump_json(self) -> Any:
        raise RuntimeError

    def __deepcopy__(self, memo: Any) -> Any:
        raise RuntimeError

    def __str__(self) -> str:
        return "odd"

    __repr__ = __str__


@pytest.mark.parametrize("way", WAYS)
def test_odd_results_end_no_run(way: str) -> None:
    values = {"odd": _Odd(), "pair": Pair(_Odd()), "half": "caf\udce9", "halves": ["\udce9"]}  # type: ignore[arg-type]

    def gives(kind: str) -> Any:
        """Gives a value."""
        if kind == "raised":
            raise ValueError("\udce9")
        return values[kind]

    found = run(way, Script([call("gives", kind=kind) for kind in (*values, "raised")], "."), [gives])
    assert [each.content for each in found.calls] == ["odd", "Pair(a=odd)", "caf\\udce9", '["\\udce9"]', "error: ValueError: \\udce9"]
    assert [type(each.error) for each in found.calls] == [type(None)] * 4 + [ValueError]


@pytest.mark.parametrize("way", WAYS)
def test_max_rounds(way: str) -> None:
    found = run(way, Script(*[[call("add", a=1)]] * 9), [add], max_rounds=3)
    assert (found.finish, len(found.answers), len(found.calls)) == ("max_rounds", 3, 3)
    assert found.messages[-1]["role"] == "tool"  # so that the conversation can go on
    assert run(way, Script("Done."), [add], found.messages).content == "Done."


@pytest.mark.parametrize("way", [way for way in WAYS if way != "in turn"])
@pytest.mark.parametrize("is_async", [False, True])
def test_max_seconds_in_a_call(way: str, is_async: bool) -> None:
    end, ended = threading.Event(), []

    def waits() -> None:
        """Waits."""
        end.wait(PATIENCE)

    async def awaits() -> None:
        """Waits."""
        try:
            await asyncio.sleep(PATIENCE)
        finally:
            ended.append(True)

    tool = awaits if is_async else waits
    try:
        found = run(way, Script([call("add", a=1), call(tool.__name__), call("add", a=2)]), [add, tool], max_seconds=0.2)
    finally:
        end.set()
    assert found.finish == "max_seconds" and len(found.messages) == 5
    late = [each for each in found.calls if each.error is not None]
    assert all(isinstance(each.error, TimeoutError) for each in late) and found.calls[1] in late
    assert found.calls[1].content == "error: the call did not end in the time that the run had"
    assert found.calls[1].seconds > 0.1 and found.calls[0].result == 1
    if "turn" in way:
        assert found.calls[2].content == "error: the call was not run, because the run was ended before" and found.calls[2].seconds == 0
    if is_async:
        wait_until(lambda: ended)


def test_max_seconds_in_an_answer(caller: pumice.Model) -> None:
    options: dict[str, Any] = {"max_seconds": 0.3, "max_tokens": 4000, "ignore_eos": True, "temperature": 0, "max_repeated_tokens": 0}
    for way in ("plain", "async stream"):
        found = run(way, caller, [], "Count to a thousand.", **options)
        assert (
            found.finish == "max_seconds" and found.answers[-1].finish_reason == "cancelled" and found.messages[-1]["role"] == "assistant"
        )


def test_calls_run_at_the_same_time_or_in_turn() -> None:
    state, seen = contextvars.ContextVar("state", default=0), []
    both = threading.Barrier(2, timeout=PATIENCE)

    def meets(name: str) -> str:
        """Waits for the other call."""
        both.wait()
        return f"{name} {state.get()}"

    def here(name: str) -> None:
        """Says where it runs."""
        seen.append((name, threading.current_thread() is threading.main_thread()))

    state.set(7)
    calls = [call("meets", name="a"), call("meets", name="b")]
    for way in ("plain", "async"):
        assert [each.result for each in run(way, Script(calls, "."), [meets]).calls] == ["a 7", "b 7"]
    run("in turn", Script([call("here", name="a"), call("here", name="b")], "."), [here])
    assert seen == [("a", True), ("b", True)]  # a connection to SQLite can be used there


def test_coroutines_of_a_run_share_an_event_loop() -> None:
    loops = []

    async def where() -> None:
        """Keeps the event loop."""
        loops.append(asyncio.get_running_loop())

    pumice.run_tools(Script([call("where")] * 40, [call("where")], "."), "Hi", tools=[where])
    assert len(loops) == 41 and len(set(loops)) == 1
    wait_until(loops[0].is_closed)

    async def main() -> None:
        await pumice.arun_tools(Script([call("where")], "."), "Hi", tools=[where])
        assert loops[-1] is asyncio.get_running_loop()

    asyncio.run(main())


@pytest.mark.parametrize("way", ["plain", "in turn", "stream", "async"])
def test_errors_carry_what_was_done(way: str) -> None:
    def leaves() -> None:
        """Is no Exception."""
        raise SystemExit(3)

    with pytest.raises(pumice.ContextLengthError) as long:
        run(way, Script([call("add", a=1)], pumice.ContextLengthError("too long")), [add])
    assert [each.result for each in long.value.partial.calls] == [1] and long.value.partial.finish == "cancelled"
    assert long.value.partial.messages[-1]["role"] == "tool"
    if way != "async":  # an event loop itself ends by a SystemExit
        with pytest.raises(SystemExit) as left:
            run(way, Script([call("leaves"), call("add", a=1)]), [leaves, add])
        assert [message["role"] for message in left.value.partial.messages] == ["user", "assistant", "tool", "tool"]


@pytest.mark.parametrize("way", ["plain", "in turn", "stream"])
def test_coroutines_that_exit_leave_no_one_waiting(way: str) -> None:
    async def leaves(kind: str) -> None:
        """Exits."""
        if kind == "in a task":
            await asyncio.ensure_future(leaves(""))
        raise SystemExit(3)

    for kind in ("", "in a task"):
        with pytest.raises(SystemExit) as left:
            run(way, Script([call("later", text="a"), call("leaves", kind=kind)]), [leaves, later], max_seconds=PATIENCE)
        assert left.value.partial.finish == "cancelled"


def test_results_of_a_closed_stream_are_kept() -> None:
    async def main() -> None:
        stream = await pumice.arun_tools(Script([call("now"), call("now")]), "Hi", tools=[now], stream=True)
        async for step in stream:
            if isinstance(step, pumice.ToolResult):
                break
        await stream.aclose()
        assert [each.result for each in stream.result.calls] == [1, 1]

    async def now() -> int:
        """Is ready at once."""
        return 1

    asyncio.run(main())


def test_a_cancelled_task_ends_its_calls(caller: pumice.Model) -> None:
    begun, ended = [], []

    async def waits() -> None:
        """Waits."""
        begun.append(True)
        try:
            await asyncio.sleep(PATIENCE)
        finally:
            ended.append(True)

    async def main() -> None:
        for stream in (False, True):
            made = await pumice.arun_tools(Script([call("waits")]), "Hi", tools=[waits], stream=True) if stream else None
            task = asyncio.ensure_future(_read(made) if made else pumice.arun_tools(Script([call("waits")]), "Hi", tools=[waits]))
            await until(lambda: begun)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert ended
            assert made is None or (made.result is not None and made.result.finish == "cancelled")
            begun.clear()
            ended.clear()
        long = {"max_tokens": 4000, "ignore_eos": True, "temperature": 0, "max_repeated_tokens": 0}
        task = asyncio.ensure_future(pumice.arun_tools(caller, "Count.", tools=[], **long))
        await until(lambda: caller.stats()["running"])
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await until(lambda: not caller.stats()["running"])

    async def _read(stream: pumice.AsyncToolStream) -> None:
        async for _ in stream:
            pass

    asyncio.run(main())


def test_streams_are_closed(caller: pumice.Model) -> None:
    long: dict[str, Any] = {"max_tokens": 4000, "ignore_eos": True, "temperature": 0, "max_repeated_tokens": 0, "stream": True}
    stream = pumice.run_tools(caller, "Count.", tools=[], **long)
    next(stream)
    stream.close()
    stream.close()
    assert stream.result.finish == "cancelled" and stream.result.answer.finish_reason == "cancelled" and list(stream) == []
    stream, read = pumice.run_tools(caller, "Count.", tools=[], **long), []
    reader = threading.Thread(target=lambda: read.extend(stream))
    reader.start()
    wait_until(lambda: read or caller.stats()["running"])
    stream.close()  # while another thread reads
    reader.join(PATIENCE)
    assert not reader.is_alive() and stream.result is not None and stream.result.finish == "cancelled"

    async def main() -> None:
        stream = await pumice.arun_tools(caller, "Count.", tools=[], **long)
        async for _ in stream:
            break
        await stream.aclose()
        await stream.aclose()
        assert (
            stream.result.finish == "cancelled"
            and stream.result.answer.finish_reason == "cancelled"
            and [step async for step in stream] == []
        )
        stream = await pumice.arun_tools(Script([call("waits")]), "Hi", tools=[waits], stream=True)
        task = asyncio.ensure_future(_all(stream))
        await until(lambda: begun)
        await stream.aclose()  # while another task reads
        await task
        assert stream.result.finish == "cancelled" and isinstance(stream.result.calls[0].error, TimeoutError)

    async def _all(stream: pumice.AsyncToolStream) -> list[Any]:
        return [step async for step in stream]

    begun = []

    async def waits() -> None:
        """Waits."""
        begun.append(True)
        await asyncio.sleep(PATIENCE)

    asyncio.run(main())


@pytest.mark.parametrize("way", ["plain", "async stream"])
def test_a_real_model(way: str, caller: pumice.Model) -> None:
    asked = []

    def population(city: str) -> int:
        """How many people live in a city."""
        asked.append(city)
        return 700_000

    talk = [{"role": "user", "content": "How many people live in Oslo?"}]
    options: dict[str, Any] = {"tool_choice": "required", "parallel_tool_calls": False, "temperature": 0, "max_tokens": 60}
    found = run(way, caller, [population], talk, max_rounds=2, **options)
    assert asked == ["Oslo"] and [each.content for each in found.calls] == ["700000"]
    first = caller.chat(talk, tools=[population], **options)
    called = found.messages[1]["tool_calls"][0]["function"]
    assert called == {"name": "population", "arguments": {"city": "Oslo"}} == first.message["tool_calls"][0]["function"]
    assert (
        found.answer is not None
        and caller.chat(found.messages[:3], tools=[population], temperature=0, max_tokens=60).content == found.content
    )


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"tools": add}, "tools must be a list"),
        ({"tools": [SUM]}, "tools[0] is"),
        ({"tools": [(SUM, "sum")]}, "tools[0] is"),
        ({"tools": [lambda x: x]}, "a lambda is no tool"),
        ({"tools": [add, add]}, "'add' twice"),
        ({"tool_choice": "sub"}, "tool_choice='sub'"),
        ({"max_rounds": 0}, "max_rounds=0"),
        ({"max_seconds": -1}, "max_seconds"),
        ({"in_turn": 1}, "in_turn"),
        ({"n": 2}, "no argument 'n'"),
        ({"dry_run": True}, "no argument 'dry_run'"),
        ({"model": "a/path"}, "model must be a loaded Model"),
        ({"max_round": 2}, "did you mean 'max_rounds'"),
    ],
)
def test_wrong_arguments(options: dict[str, Any], text: str) -> None:
    for way in ("plain", "async"):
        with pytest.raises((TypeError, ValueError)) as wrong:
            run(way, **{"model": Script(), "tools": [add], **options})
        assert text in str(wrong.value)


def _schema(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "$defs": {"day": {"enum": ["mon", "tue"]}}}


@pytest.mark.parametrize(
    ("schema", "fits", "breaks_", "says"),
    [
        ({"type": "number"}, [1, 1.5], [True, "1", None], "a must be number"),
        ({"type": "integer"}, [1, 2.0], [1.5, True], "a must be integer"),
        ({"type": ["string", "null"]}, ["", None], [1], "a must be string or null"),
        ({"type": "string", "nullable": True}, ["", None], [1], "a must be string"),
        ({"enum": [1, "b"]}, [1, "b"], [True, "c"], "a must be one of 1, 'b'"),
        ({"const": 3}, [3], [4], "a must be 3"),
        ({"$ref": "#/$defs/day"}, ["mon"], ["sun"], "a must be one of 'mon', 'tue'"),
        ({"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "integer"}}]}, ["x", [1]], [[1, "x"], {}], "a fits none"),
        ({"allOf": [{"minimum": 2}, {"exclusiveMaximum": 4}]}, [2, 3.9], [1, 4], "a must be"),
        ({"minLength": 2, "maxLength": 3}, ["ab", "abc", 5], ["a", "abcd"], "a must be of a length"),
        ({"type": "array", "prefixItems": [{"type": "string"}, {"type": "boolean"}]}, [["a", True]], [["a", 1]], "a[1] must be boolean"),
        ({"type": "object", "additionalProperties": {"type": "integer"}}, [{"b": 1}], [{"b": "1"}], "a.b must be integer"),
        ({"type": "object", "properties": {"b": {}}, "additionalProperties": False}, [{"b": 1}, {}], [{"c": 1}], "a must not have 'c'"),
        ({"anyOf": [{"$ref": "#/properties/a"}, {"$ref": "#/properties/a"}]}, [1], [], ""),  # leads back to itself
    ],
)
def test_arguments_are_compared_with_schemas(schema: dict[str, Any], fits: list[Any], breaks_: list[Any], says: str) -> None:
    for value in fits:
        assert mismatch({"a": value}, _schema(a=schema), False) is None, value
    for value in breaks_:
        assert str(mismatch({"a": value}, _schema(a=schema), False)).startswith(says), value


def test_arguments_agree_with_jsonschema() -> None:
    jsonschema = pytest.importorskip("jsonschema")

    def tool(a: int, b: list[dict[str, float]], c: str | None = None, d: tuple[int, str] = (1, "")) -> None:
        """Takes much."""

    schema = schema_of(tool)["function"]["parameters"]
    values = [1, 1.5, "1", None, True, [], [{}], [{"x": 1}], [{"x": "1"}], [1, "a"], ["a", 1], {}, "a"]
    compared = 0
    for name in "abd":
        for value in values:
            arguments = {"a": 1, "b": [], name: value}
            right = jsonschema.Draft202012Validator(schema).is_valid(arguments)
            assert (mismatch(arguments, schema, True) is None) == right, json.dumps(arguments)
            compared += right
    assert 3 < compared < 30


def test_branches_that_lead_back_end() -> None:
    tree = {"type": "object", "properties": {"l": {"$ref": "#"}, "op": {"const": "x"}}}
    value: dict[str, Any] = {}
    for _ in range(60):
        value = {"l": value, "op": "y"}
    assert mismatch({"l": value}, {"anyOf": [tree, tree, tree]}, False) is None  # 3 ** 60 comparisons are too many


def test_nested_arguments_end() -> None:
    value: Any = 1
    for _ in range(5000):
        value = [value]
    schema = {"type": "object", "properties": {"a": {"type": ["array", "integer"], "items": {"$ref": "#/properties/a"}}}}
    assert mismatch({"a": value}, schema, True) == "they are nested too deeply"
