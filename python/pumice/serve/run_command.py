"""`pumice run`: answers a file of requests with the models of a server that has no connections."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import hashlib
import json
import os
import signal
import stat
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields
from itertools import chain
from pathlib import Path
from typing import Any

import pumice

from ..common.arguments import refuse_to_replace
from ..common.progress import LateBar
from ..common.stdio import OutputError, complain, finish, is_output, say
from ..lines.answers import AnswerFile, Answers
from ..lines.line_reader import LineReader
from ..lines.requests import LineForm
from ..lines.run import Counts, Run, scan
from ..loading.files import files_of
from .application import PATHS
from .in_process import InProcess
from .server import Server
from .settings import Settings

WRITE_SECONDS = 0.05  # how long Ctrl-C waits for a write that is under way
SPEED_SECONDS = 20.0  # the tokens/s of the progress bar are those of this many seconds
_SAMPLE = 1 << 20  # number of bytes at the beginning and at the end of a model's file by which the file is known again


def run(
    arguments: argparse.Namespace, models: Mapping[str, str], load: Mapping[str, Mapping[str, Any]], settings: Settings, seed: int
) -> int:
    """Answers the lines. Returns 0. After Ctrl-C and SIGTERM, ends the process with exit code 1. Raises an error if the run cannot begin or
    go on.

    models: name -> source. load: name -> keywords of load(). seed: changes the seeds of lines that give none."""
    used = {name: [each for each in files_of(source) if each.is_file()] for name, source in models.items()}
    outputs = [path for path in (arguments.output, arguments.errors) if path is not None]
    for path in outputs:
        refuse_to_replace(path, [arguments.input, *chain.from_iterable(used.values())])
    if len(outputs) == 2 and os.path.realpath(outputs[0]) == os.path.realpath(outputs[1]):
        raise ValueError(f"{outputs[0]} is the file of the answers and that of the errors: they are two files")
    with contextlib.ExitStack() as files:
        source = files.enter_context(_opened(arguments.input))
        run = _fingerprint(models, used, load, settings, seed)
        answers = Answers(*_answer_files(arguments.output, arguments.errors, files), run, arguments.in_order)
        work = _Job(source, answers, arguments, seed, settings)
        return work.run(lambda: Server(models, load, settings, PATHS))


@contextlib.contextmanager
def _opened(path: str) -> Iterator[tuple[str, int | None, Callable[[int], bytes]]]:
    """Opens the input. Returns (its name in errors, its file descriptor if it can be read twice, a function that reads)."""
    if path == "-":
        if sys.stdin is None:
            raise ValueError("standard input is closed, and the lines were to come from there")
        try:
            fd = sys.stdin.fileno()
        except (OSError, ValueError):  # in a test, standard input may have no file descriptor
            yield "standard input", None, sys.stdin.buffer.read
        else:
            yield "standard input", None, lambda size: os.read(fd, size)  # not sys.stdin, whose lock the end of Python would wait for
        return
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        again = fd if stat.S_ISREG(os.fstat(fd).st_mode) else None
        yield path, again, lambda size: os.read(fd, size)
    finally:
        os.close(fd)


def _answer_files(output: str, errors: str | None, files: contextlib.ExitStack) -> tuple[AnswerFile, AnswerFile | None]:
    def opened(path: str) -> AnswerFile:
        file = AnswerFile(None, _to_output) if path == "-" or is_output(path) else AnswerFile(path)
        files.callback(file.close)
        return file

    return opened(output), None if errors is None else opened(errors)


def _to_output(data: bytes) -> None:
    try:
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()
    except OSError as error:
        raise OutputError(error) from None


def _fingerprint(
    models: Mapping[str, str], used: Mapping[str, list[Path]], load: Mapping[str, Mapping[str, Any]], settings: Settings, seed: int
) -> str:
    """Returns a text that is equal for runs that give equal answers: of the models, of the options, and the version of pumice.

    used: name of a model -> its files. A model that is named by an id of the hub may have none."""
    known = {name: [_sample(path) for path in sorted(used[name])] or models[name] for name in models}
    options = {
        each.name: getattr(settings, each.name) for each in fields(settings) if each.metadata.get("group") not in ("load", "batches")
    }
    del options["max_bodies"]
    loading = {name: {key: value for key, value in given.items() if key != "threads"} for name, given in load.items()}
    parts = [
        _hash(known),
        _hash([options, loading, seed]),
        pumice.__version__.replace("_", "-"),
    ]
    return "_".join(parts)


def _sample(path: Path) -> tuple[str, int, str]:
    """Returns the name and the size of a file, and a hash of its ends."""
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        begin = file.read(_SAMPLE)
        file.seek(max(len(begin), size - _SAMPLE))
        return path.name, size, hashlib.sha256(begin + file.read()).hexdigest()


def _hash(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()[:12]


class _Job:
    """One call of the command, once its files are open."""

    def __init__(
        self,
        source: tuple[str, int | None, Callable[[int], bytes]],
        answers: Answers,
        arguments: argparse.Namespace,
        seed: int,
        settings: Settings,
    ) -> None:
        self._name, self._again, self._read = source
        self._answers, self._arguments, self._seed, self._settings = answers, arguments, seed, settings
        self._bar = LateBar(None, "run", unit=" lines")
        self._speed = _Speed()
        self._run: Run | None = None

    def run(self, make: Callable[[], Server]) -> int:
        """Runs the event loop until all lines are answered. Returns 0."""
        try:
            asyncio.run(self._main(make))
        finally:
            self._bar.close()
        self._tell()
        return 0

    def _leave(self) -> None:
        """Ends the process after a signal. Cancelling all requests and freeing the models would take seconds of a busy processor."""
        self._answers.hold(WRITE_SECONDS)
        self._bar.close()
        complain(f"pumice: interrupted: {self._left()}")
        finish()
        os._exit(1)

    def _left(self) -> str:
        """Returns how far the run is, and how to go on."""
        counts = self._run.counts if self._run is not None else Counts()
        of, where = "" if counts.total is None else f" of {counts.total}", self._arguments.output
        if self._answers.regular:
            return f"{counts.done + self._answers.earlier}{of} lines are answered in {where}; the same command goes on with the others"
        return f"{counts.done}{of} lines are answered; a run into a file (-o FILE) could go on"

    def _tell(self) -> None:
        """Prints what the run has done."""
        counts, where = self._run.counts if self._run is not None else Counts(), self._arguments.output
        parts = [f"{counts.done + self._answers.earlier} answers"]
        if counts.failed:
            parts.append(f"{counts.failed} of them errors")
        if self._answers.earlier:
            parts.append(f"{self._answers.earlier} of them from an earlier run")
        if self._speed.tokens:
            parts.append(f"{self._speed.tokens} tokens, {self._speed.whole():.0f} tokens/s")
        output = where == "-" or is_output(where)
        (complain if output else say)(f"{'standard output' if output else where}: {', '.join(parts)}")

    async def _main(self, make: Callable[[], Server]) -> None:
        with contextlib.suppress(RuntimeError, ValueError):  # this is not the main thread
            for each in (signal.SIGINT, signal.SIGTERM):
                asyncio.get_running_loop().add_signal_handler(each, self._leave)
        server = make()
        ticks: asyncio.Task[None] | None = None
        try:
            total = await self._scanned(server)
            idle = total is not None and total == self._answers.earlier
            if not idle:
                await server.start()
                while server.not_ready is not None:
                    if server.failed is not None:
                        raise server.failed
                    await asyncio.sleep(0.01)
            if self._arguments.overwrite:  # not before, so that a model that cannot be loaded leaves the answers
                self._answers.clear()
            if not idle:
                ticks = asyncio.create_task(self._watch(server))
                await self._answered(server, total)
        finally:
            if ticks is not None:
                self._speed.look(server)
                ticks.cancel()
            await server.stop()

    async def _scanned(self, server: Server) -> int | None:
        """Reads the answers of earlier runs, and compares them with the input if it can be read twice. Returns the number of its lines, or
        None if it is not known yet."""
        if not self._arguments.overwrite:
            await server.aside(self._answers.read_earlier, self._arguments.mixed)
        if self._again is None:
            return None
        fd = self._again

        def work() -> int:
            found = scan(self._reader(), self._answers)
            os.lseek(fd, 0, os.SEEK_SET)
            return found

        return await server.aside(work)

    def _reader(self) -> LineReader:
        return LineReader(self._read, self._settings.max_body, self._name)

    async def _answered(self, server: Server, total: int | None) -> None:
        ask = InProcess(server)
        self._run = Run(
            self._reader(),
            LineForm(ask.fields, seed=self._seed),
            self._answers,
            ask,
            server.aside,
            at_once=self._arguments.at_once,
            most_bytes=self._settings.max_bodies // 2,
            told=self._show,
        )
        self._run.counts.total = total
        await self._run.run()

    def _show(self) -> None:
        if self._run is not None and self._bar.update is not None:
            counts = self._run.counts
            self._bar.update(counts.done, None if counts.total is None else counts.total - counts.earlier, self._speed.text)

    async def _watch(self, server: Server) -> None:
        """Keeps the speed up to date."""
        while True:
            self._speed.look(server)
            await asyncio.sleep(0.5)
            self._show()


class _Speed:
    """Tokens per second, by the models' own counts of the tokens that they have read and generated."""

    _COUNTED = ("prompt_tokens", "decoded_tokens", "tokens")

    def __init__(self) -> None:
        self.tokens = 0
        self.text = ""
        self._seen: deque[tuple[float, int]] = deque()
        self._began: float | None = None

    def look(self, server: Server) -> None:
        """Reads the counts of the server's models."""
        tokens = 0
        for served in server.models:
            if served.model is not None:
                known = served.model.stats()
                tokens += sum(int(known.get(name, 0)) for name in self._COUNTED)
        now = time.monotonic()
        if self._began is None:
            self._began = now
        self.tokens = tokens
        self._seen.append((now, tokens))
        while len(self._seen) > 2 and now - self._seen[0][0] > SPEED_SECONDS:
            self._seen.popleft()
        (first, before), (last, after) = self._seen[0], self._seen[-1]
        self.text = f"{(after - before) / (last - first):.0f} tokens/s" if last > first else ""

    def whole(self) -> float:
        """Returns the tokens per second of the whole run."""
        if self._began is None or not self._seen:
            return 0.0
        return self.tokens / max(self._seen[-1][0] - self._began, 1e-9)
