"""What run_tools() does between the answers of a model, without threads and event loops: which tools it has (RunnableTools), which calls of
an answer are run (Job), what the model is told of them (ToolResult), and how a run ends (Run, ToolRun)."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import inspect
import math
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from ..common.arguments import argument, flag, integer, shown
from ..generate.answers import ToolCall, json_text
from ..generate.settings import SAMPLING_DEFAULTS, Sampling, check_setting
from .argument_checks import mismatch
from .questions import check_choice, check_messages
from .results import ChatResult
from .tool_schemas import check_tools, is_strict

MOST_AT_ONCE = 16  # number of calls that run at the same time in threads
MOST_ERROR = 2000  # number of characters of an error that the model is told
_NOT_RUN = "the call was not run, because the run was ended before"
_TOO_LATE = "the call did not end in the time that the run had"


class RunKeywords(Sampling, total=False):
    """The keywords of run_tools() and arun_tools()."""

    max_rounds: int
    in_turn: bool
    stream: bool
    response_format: Any
    tool_choice: str | Mapping[str, Any] | None
    parallel_tool_calls: bool
    template_kwargs: Mapping[str, Any] | None
    parse_special: bool
    max_tokens: int | None


# Keywords of a run and their defaults. The others are keywords of chat(), for each answer.
_OWN: Mapping[str, Any] = {"max_rounds": 10, "max_seconds": 600.0, "in_turn": False, "stream": False, "tool_choice": None}
_OF_CHAT: Mapping[str, Any] = {"response_format": None, "parallel_tool_calls": True, "template_kwargs": None, "parse_special": False}
RUN_DEFAULTS: dict[str, Any] = {**SAMPLING_DEFAULTS, **_OWN, **_OF_CHAT, "max_tokens": None}
del RUN_DEFAULTS["n"]  # a run continues one answer

RunFinish = Literal["answer", "max_rounds", "max_seconds", "cancelled"]


@dataclass(frozen=True, eq=False)
class ToolResult:
    """A call of a tool in run_tools(), and what came of it.

    call: the model's ToolCall.
    round: the number of the answer that asks for the call, from 0 on.
    content: the text that the model was told: the result, or "error: " and the error.
    seconds: how long the tool ran; 0 if it was not run.
    result: what the function returned, or None.
    error: None, or why there is no result. It is the exception of the function, a LookupError (there is no tool of this name), a TypeError
        (the arguments do not match the tool's schema), an IncompleteCallError (the answer ended inside the call), or a TimeoutError (the
        time of the run was over)."""

    call: ToolCall
    round: int
    content: str
    seconds: float
    result: Any = None
    error: Exception | None = None

    @property
    def name(self) -> str:
        """The name of the tool."""
        return self.call.name

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments by name. If the answer ended inside the call, the later ones are missing."""
        return self.call.known


@dataclass(frozen=True, eq=False, repr=False)
class ToolRun:
    """The result of run_tools(). str() of a ToolRun is the text of its last answer.

    finish: how the run ended. "answer": the last answer asks for no calls; its finish_reason says whether it is complete. "max_rounds": so
        many answers were made, and the last one still asked for calls, which were run. "max_seconds": the time was over, in an answer
        (which has the finish_reason "cancelled") or in a call (whose error is a TimeoutError). "cancelled": the run was interrupted, or its
        stream was closed.
    messages: the whole conversation: the messages that were given, the answers, and the results of all calls. However a run ends, each
        call has a result here, so that a chat() or run_tools() can go on with the list.
    calls: a ToolResult for each call, in the order of the messages.
    answers: the ChatResult of each answer.
    seconds: how long the run took."""

    finish: RunFinish
    messages: list[dict[str, Any]]
    calls: tuple[ToolResult, ...]
    answers: tuple[ChatResult, ...]
    seconds: float

    @property
    def answer(self) -> ChatResult | None:
        """The last answer. None if the run was interrupted before it had one."""
        return self.answers[-1] if self.answers else None

    @property
    def content(self) -> str:
        """The text of the last answer without reasoning and calls."""
        return self.answers[-1].content if self.answers else ""

    def __str__(self) -> str:
        return self.content

    def __repr__(self) -> str:
        return f"ToolRun({shown(self.content)}, finish={self.finish!r}, answers={len(self.answers)}, calls={len(self.calls)})"


# ---------------------------------------------------------------- tools
@dataclass(frozen=True)
class _Tool:
    function: Callable[..., Any]
    parameters: Mapping[str, Any]
    strict: bool  # whether the schema names all arguments


class RunnableTools:
    """The tools argument of run_tools()."""

    def __init__(self, given: Any) -> None:
        """Raises TypeError or ValueError if a tool is neither a function nor a pair of a schema and a function."""
        if isinstance(given, (str, bytes, Mapping)) or callable(given) or not isinstance(given, Iterable):
            raise TypeError(f"tools must be a list of functions, or of pairs of a schema and a function, not {type(given).__name__}")
        self.given: list[Any] = []  # the tools as chat() takes them
        functions = []
        for i, tool in enumerate(given):
            described, function = tool if isinstance(tool, (tuple, list)) and len(tool) == 2 else (tool, tool)
            if not callable(function):
                raise TypeError(
                    f"tools[{i}] is {shown(tool)}, which cannot be run. A tool is a function, or a pair (schema, function) of a dict in "
                    f"OpenAI's format and what runs its calls"
                )
            self.given.append(described)
            functions.append(function)
        self._tools = {
            known["function"]["name"]: _Tool(function, known["function"].get("parameters", {}), is_strict(known["function"]))
            for known, function in zip(check_tools(self.given), functions, strict=True)
        }

    def check_choice(self, tool_choice: Any) -> None:
        """Raises ValueError if tool_choice is none that chat() takes with these tools."""
        check_choice(tool_choice, [{"function": {"name": name}} for name in self._tools])

    def job(self, call: ToolCall, round_: int) -> Job:
        """Returns the Job for a call of an answer. A call that cannot be run becomes a Job that fails."""
        try:
            arguments = call.arguments  # raises IncompleteCallError
            if (tool := self._tools.get(call.name)) is None:
                names = ", ".join(self._tools) or "none"
                raise LookupError(f"there is no tool {shown(call.name, 80)} (the tools are: {names})")
            if (wrong := mismatch(arguments, tool.parameters, tool.strict)) is not None:
                raise TypeError(f"the arguments do not fit {call.name}: {wrong}")
        except (ValueError, LookupError, TypeError) as error:
            return Job(call, round_, refused=error)
        return Job(call, round_, tool.function)


def _is_async(function: Any) -> bool:
    while isinstance(function, functools.partial):
        function = function.func
    called = inspect.getattr_static(type(function), "__call__", None)
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(called)


@dataclass(eq=False)
class Job:
    """A call that is to be run. `result` is None until it has ended.

    refused: why the call is not run, or None."""

    call: ToolCall
    round: int
    function: Callable[..., Any] | None = None
    refused: Exception | None = None
    result: ToolResult | None = None
    _begun: float | None = field(default=None, init=False)

    @property
    def is_async(self) -> bool:
        """Whether the function is a coroutine function, which is called in the thread of the event loop."""
        return _is_async(self.function)

    def begin(self) -> Any:
        """Calls the function. Returns what it returns, which may be an awaitable."""
        if self.refused is not None:
            raise self.refused
        if self.function is None or self.result is not None:  # the call was given up before a thread was free for it
            raise TimeoutError(_NOT_RUN)
        self._begun = time.perf_counter()
        return self.function(**self.call.arguments)

    def ended(self, value: Any = None, error: Exception | None = None) -> ToolResult:
        """Sets the result. An earlier result stays, so that a function which ends too late changes nothing."""
        if self.result is None:
            seconds = 0.0 if self._begun is None else time.perf_counter() - self._begun
            content = _content(value) if error is None else _told(error, self.refused is not None)
            # No model reads halves of surrogate pairs, which Python has in names of files that are not UTF-8.
            content = content.encode("utf-8", "backslashreplace").decode()
            self.result = ToolResult(self.call, self.round, content, seconds, value, error)
        return self.result

    def run(self, await_: Callable[[Any], Any]) -> ToolResult:
        """Calls the function to its end, and returns the result. await_: a function that waits for the end of an awaitable."""
        try:
            value = self.begin()
            return self.ended(await_(value) if inspect.isawaitable(value) else value)
        except Exception as error:
            return self.ended(error=error)

    def too_late(self) -> ToolResult:
        """Gives the call up, because the time of the run is over."""
        return self.ended(error=TimeoutError(_NOT_RUN if self._begun is None else _TOO_LATE))


def _content(value: Any) -> str:
    """Returns the text of a function's result: strings as they are, other values as JSON, and what JSON has no words for as str().
    Methods of the value that raise errors count as missing."""
    if isinstance(value, str):
        return str.__str__(value)
    with contextlib.suppress(Exception):
        if callable(dump := getattr(value, "model_dump_json", None)) and not isinstance(value, type):  # a pydantic model
            return str(dump())
    with contextlib.suppress(Exception):
        return json_text(dataclasses.asdict(value) if dataclasses.is_dataclass(value) and not isinstance(value, type) else value)
    try:
        return str(value)
    except Exception as error:
        return _told(error, False)


def _told(error: Exception, ours: bool) -> str:
    """Returns an error as the text that the model is told. ours: whether it is an error of this file, whose message says all."""
    try:
        text = str(error)
    except Exception:
        text = ""
    kind = "" if ours or isinstance(error, TimeoutError) else type(error).__name__
    said = f"error: {': '.join(part for part in (kind, text) if part)}"
    return said if len(said) <= MOST_ERROR else f"{said[:MOST_ERROR]}..."


# ---------------------------------------------------------------- a run
class Run:
    """The state of one run: its messages, answers and calls so far. While goes_on() is true, whoever drives the run calls chat() with
    `messages` and question(), then heard() with the answer, runs the jobs that this returns, and calls told()."""

    def __init__(self, model: Any, messages: Any, tools: Any, options: Mapping[str, Any]) -> None:
        """options: the keywords of run_tools() that were given."""
        if not callable(getattr(model, "chat", None)):
            raise TypeError(f"model must be a loaded Model, not {type(model).__name__} {shown(model)}")
        own = {name: options.get(name, value) for name, value in _OWN.items()}
        with argument("messages"):
            self.messages = check_messages(messages)
        with argument("tools"):
            self.tools = RunnableTools(tools)
        self._choice = own["tool_choice"]
        self.tools.check_choice(self._choice)
        self._most = integer("max_rounds", own["max_rounds"], 1)
        check_setting("max_seconds", own["max_seconds"], "max_seconds")
        self.in_turn, self.streams = flag("in_turn", own["in_turn"]), flag("stream", own["stream"])
        self._options = {name: value for name, value in options.items() if name not in _OWN}
        self._begun, self._seconds = time.monotonic(), float(own["max_seconds"]) or math.inf
        self._answers: list[ChatResult] = []
        self._calls: list[ToolResult] = []
        self._jobs: list[Job] = []  # those of the last answer, until told()
        self.finish: RunFinish | None = None
        self.closed = False  # set by another thread or task to end the run

    def left(self) -> float:
        """Returns the number of seconds that are left, inf if there is no limit."""
        return self._seconds - (time.monotonic() - self._begun)

    def goes_on(self) -> bool:
        """Returns whether the model must be asked again. Sets `finish` if not."""
        if self.finish is None:
            if self.closed:
                self.finish = "cancelled"
            elif self.left() <= 0:
                self.finish = "max_seconds"
            elif len(self._answers) == self._most:
                self.finish = "max_rounds"
        return self.finish is None

    def question(self) -> dict[str, Any]:
        """Returns the keywords of chat() for the next answer. tool_choice other than "none" holds for the first answer alone: an answer
        that must call a tool never ends the run."""
        choice = self._choice if not self._answers or self._choice == "none" else None
        left = 0.0 if self._seconds == math.inf else max(self.left(), 0.001)  # 0 means no limit
        return {**self._options, "tools": self.tools.given, "tool_choice": choice, "max_seconds": left}

    def heard(self, answer: ChatResult) -> list[Job]:
        """Adds an answer to the run, once. Returns a Job for each of its calls, or none if the answer was cancelled."""
        if self._answers and self._answers[-1] is answer:
            return []
        message, round_ = answer.message, len(self._answers)
        for call, said in zip(answer.tool_calls, message.get("tool_calls", ()), strict=True):
            said["function"]["arguments"] = call.known  # `cut` is no JSON, and chat templates need an object
        self.messages.append(message)
        self._answers.append(answer)
        self._jobs = [self.tools.job(call, round_) for call in answer.tool_calls]
        if answer.finish_reason == "cancelled":
            for job in self._jobs:
                job.too_late()
            self.finish = "cancelled" if self.closed or self.left() > 0 else "max_seconds"
        elif not answer.tool_calls and not answer.tool_errors:
            self.finish = "answer"
        return [job for job in self._jobs if job.result is None]

    def told(self) -> None:
        """Adds the results of the last answer's calls to the messages. Calls without a result are given up."""
        jobs, self._jobs = self._jobs, []
        results = [job.result or job.too_late() for job in jobs]
        self._calls += results
        self.messages += [{"role": "tool", "tool_call_id": r.call.id, "name": r.name, "content": r.content} for r in results]
        if not self._answers or self.finish is not None or not (unread := self._answers[-1].tool_errors):
            return
        said = "error: " + "; ".join(unread)
        said = f"{said[:MOST_ERROR]}. Write the call again, or answer without a call."
        if results:  # not a message of its own, because many chat templates want messages of users and assistants in turn
            self.messages[-1] = {**self.messages[-1], "content": f"{self.messages[-1]['content']}\n\n{said}"}
        else:
            self.messages.append({"role": "user", "content": said})

    def outcome(self) -> ToolRun:
        """Ends the run where it is, and returns its result."""
        if self._jobs:
            self.told()
        self.finish = self.finish or "cancelled"
        return ToolRun(self.finish, self.messages, tuple(self._calls), tuple(self._answers), time.monotonic() - self._begun)

    def broken(self, error: BaseException) -> ToolRun:
        """Returns the result of a run that an error ends, which is also set as the error's attribute `partial`."""
        partial = getattr(error, "partial", None)
        if isinstance(partial, ChatResult):  # Ctrl-C in an answer
            self.heard(partial)
        found = self.outcome()
        with contextlib.suppress(AttributeError, TypeError):
            error.partial = found  # type: ignore[attr-defined]
        return found
