"""Answers the lines of an input: some at a time, each once, also over several runs."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from ..errors import OverloadedError
from .answers import Answers, Failure, Reply, answer_line
from .line_reader import Line, LineReader
from .requests import BadLine, Ids, LineForm, Request

Ask = Callable[[Request], Awaitable[Reply]]
Aside = Callable[..., Awaitable[Any]]  # calls a function with arguments in a thread, and returns its result

BUSY = (429, 503, 529)  # statuses of a server that cannot answer now
TRIES = 8  # how often a busy server is asked again while no other line gets an answer; the pauses take 16 s together
# Maximum number of lines at work and of answers that wait to be written, which, in order, wait for those of earlier lines. As a
# multiple of the lines at work.
_HELD = 4


@dataclass
class Counts:
    """Numbers of lines. total: those of the input that are not blank, or None if it is not known. earlier: those that earlier runs have
    answered. done, failed: those that this run has answered, and those of them whose answers are errors."""

    total: int | None = None
    earlier: int = 0
    done: int = 0
    failed: int = 0


@dataclass
class _Work:
    """A line that needs an answer. place: its number among such lines."""

    place: int
    line: Line
    custom_id: str | int | None
    asked: Request | BadLine


def scan(reader: LineReader, answers: Answers) -> int:
    """Returns the number of lines that are not blank. Raises ValueError if they do not fit to the answers of earlier runs."""
    found = 0
    for line in reader:
        found += not line.blank
        if not line.blank:
            answers.has(line)
    answers.check_end(reader.number)
    return found


class Run:
    """Answers all lines of an input that have no answer yet. Memory: the lines at work, 256 KiB of the input beyond them, and 8 bytes for
    each custom_id."""

    def __init__(
        self,
        reader: LineReader,
        form: LineForm,
        answers: Answers,
        ask: Ask,
        aside: Aside,
        *,
        at_once: int,
        most_bytes: int,
        gives_up: bool = True,
        told: Callable[[], None] = lambda: None,
    ) -> None:
        """ask: sends a request and returns its answer. An exception that it raises ends the run, and its line stays without an answer.
        aside: calls a function in a thread.
        at_once: maximum number of lines at work. most_bytes: maximum number of bytes of lines at work, where there are several.
        gives_up: whether the run fails if the server stays busy.
        told: a function that is called after answers were written."""
        self._reader, self._form, self._answers, self._ask, self._aside, self._told = reader, form, answers, ask, aside, told
        self._at_once, self._most_bytes, self._gives_up = at_once, most_bytes, gives_up
        self.counts = Counts(earlier=answers.earlier)
        self._ids = Ids()
        self._tasks: set[asyncio.Task[None]] = set()
        self._bytes = 0  # number of bytes of the lines at work
        self._begun = self._written = 0  # numbers of lines that were begun, and whose answers were written
        self._ready: dict[int, tuple[bytes, bool]] = {}  # place of a line -> its answer, which is to be written
        self._changed, self._to_write = asyncio.Event(), asyncio.Event()
        self._error: BaseException | None = None
        self._over = False  # whether no more answers will come

    async def run(self) -> None:
        """Answers all lines. If it is cancelled or fails, each line either has its whole answer or none. Raises OSError, ValueError, and
        the exceptions of `ask`."""
        writer = asyncio.create_task(self._write())
        try:
            while works := await self._aside(self._next):
                for work in works:
                    await self._room(work.line.size)
                    self._begin(work)
            while self._tasks:
                await self._changes()
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            self._over = True
            self._to_write.set()
            await writer
        if self._error is not None:
            raise self._error
        await self._aside(self._answers.sync)

    # ---------------------------------------------------------------- lines
    def _next(self) -> list[_Work]:
        """Returns the next lines that need an answer, or an empty list at the end. Called in a thread."""
        found: list[_Work] = []
        while not found and (lines := self._reader.some()):
            for line in lines:
                if line.blank:
                    continue
                custom_id, asked = self._form.read(line)
                if custom_id is not None and not self._ids.add(custom_id):
                    asked = BadLine("duplicate_custom_id", "an earlier line has this custom_id")
                if not self._answers.has(line):
                    found.append(_Work(0, line._replace(data=None), custom_id, asked))
        if not found:
            self._answers.check_end(self._reader.number)
        return found

    def _begin(self, work: _Work) -> None:
        work.place = self._begun
        self._begun += 1
        self._bytes += work.line.size
        task = asyncio.create_task(self._answer(work))
        self._tasks.add(task)
        task.add_done_callback(lambda done: self._ended(done, work.line.size))

    def _ended(self, task: asyncio.Task[None], size: int) -> None:
        self._tasks.discard(task)
        self._bytes -= size
        if not task.cancelled() and (error := task.exception()) is not None:
            self._error = self._error or error
        self._changed.set()

    async def _room(self, size: int) -> None:
        """Waits until another line may be begun."""
        while (
            len(self._tasks) >= self._at_once
            or (self._tasks and self._bytes + size > self._most_bytes)
            or self._begun - self._written >= self._at_once * _HELD
        ):
            await self._changes()

    async def _changes(self) -> None:
        """Waits until a line or a write has ended. Raises their error."""
        await self._changed.wait()
        self._changed.clear()
        if self._error is not None:
            raise self._error

    # ---------------------------------------------------------------- answers
    async def _answer(self, work: _Work) -> None:
        answer: Reply | Failure
        if isinstance(work.asked, BadLine):
            answer, failed = Failure(work.asked.code, str(work.asked)), True
        else:
            answer = await self._asked(work.line, work.asked)
            failed = answer.status != 200
        self._ready[work.place] = answer_line(work.line, work.custom_id, answer, self._answers.run), failed
        self._to_write.set()

    async def _asked(self, line: Line, request: Request) -> Reply:
        """Returns the answer to a request. A server that is busy is asked again. Raises OverloadedError if it stays busy."""
        tries, seen = 0, self._written
        while (reply := await self._ask(request)).status in BUSY:
            tries, seen = (tries + 1 if self._written == seen else 1), self._written
            if tries > TRIES and self._gives_up:
                raise OverloadedError(
                    f"line {line.number} could not be answered now, and no line beside it was: status {reply.status}, "
                    f"{reply.body[:500].decode(errors='replace')}"
                )
            await asyncio.sleep(min(0.1 * 2 ** min(tries, 10), 5.0))
        return reply

    async def _write(self) -> None:
        while True:
            if not self._over:
                await self._to_write.wait()
                self._to_write.clear()
            places = sorted(self._ready)
            if self._answers.in_order:  # only answers before which none is missing
                places = [place for i, place in enumerate(places) if place == self._written + i]
            if not places:
                if self._over:  # in order, an answer may be missing before those that are ready
                    return
                continue
            lines = [self._ready.pop(place) for place in places]
            try:
                await self._aside(self._answers.write, lines)
            except BaseException as error:
                self._error = self._error or error
                self._changed.set()
                return
            self._written += len(lines)
            self.counts.done += len(lines)
            self.counts.failed += sum(failed for _, failed in lines)
            self._changed.set()
            with contextlib.suppress(Exception):  # a progress bar that fails must not stop the run
                self._told()
