"""Batches in the form of https://platform.openai.com/docs/api-reference/batch: files of requests that are answered beside those of clients,
with the lowest priority. A batch goes on after the server was started again."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time

from ..lines.answers import AnswerFile, Answers
from ..lines.line_reader import LineReader
from ..lines.requests import LineForm
from ..lines.run import Run, scan
from .calls import Call, dumped
from .failures import Refused, new_id
from .fields import OBJECT, TEXT, Field, Fields
from .files import FileStore, Record, found, key_of, own, owner_of, page_of, shown_record, store_of
from .in_process import InProcess
from .server import Server
from .settings import Settings

logger = logging.getLogger("pumice.serve")

# Fields of lines that do not give them: the lowest priority, and no place among the responses that are kept for the server's clients.
DEFAULTS = {"priority": -1000, "store": False}
MOST_METADATA = 16 << 10  # maximum number of bytes of a batch's metadata as JSON, which stay in memory
MOST_AT_WORK = 1000  # maximum number of batches that are not over


def fields(settings: Settings) -> Fields:
    """Returns the table of the fields of POST /v1/batches."""
    return Fields(
        (
            Field("input_file_id", TEXT, "A file with a request on each line.", needed=True),
            Field("endpoint", TEXT, "The path that all lines name.", needed=True),
            Field("completion_window", {"enum": ["24h"]}, "Taken, but no batch expires here.", needed=True),
            Field("metadata", {**OBJECT, "maxProperties": 16}, "Given back."),
        ),
        refused={"output_expires_after": "files stay until they are deleted"},
    )


class Batches:
    """Works on the batches of a server, one after another in the order in which they were made."""

    def __init__(self, server: Server, store: FileStore) -> None:
        self._server, self._store = server, store
        self._ask = InProcess(server)
        self._news = asyncio.Event()
        self._worker: asyncio.Task[None] | None = None
        self._running: asyncio.Task[None] | None = None
        self._at_work: Record | None = None

    @property
    def paths(self) -> list[str]:
        """The paths that a batch may be for."""
        return [*self._ask.fields]

    def start(self) -> None:
        """Begins to work on the batches that are not over."""
        self._worker = asyncio.create_task(self._work())

    async def stop(self) -> None:
        """Stops the work. A later server goes on with it."""
        if self._worker is not None:
            self._worker.cancel()
            await asyncio.wait((self._worker,))

    async def add(self, record: Record) -> None:
        """Adds a batch."""
        self._store.batches.hold(record)  # at once, because a file that a batch uses cannot be deleted
        try:
            await self._save(record)
        except OSError:
            self._store.batches.remove(record["id"])
            raise
        self._news.set()

    async def cancel(self, record: Record) -> None:
        """Ends a batch. The answers that it has so far stay."""
        if record["_over"]:
            raise Refused(409, f"the batch {record['id']} is {record['status']}, and cannot be cancelled", code="batch_over")
        if record["status"] != "cancelling":
            await self._change(record, "cancelling")
        if self._at_work is record and self._running is not None:
            self._running.cancel()
        self._news.set()

    # ---------------------------------------------------------------- work
    async def _work(self) -> None:
        while True:
            self._news.clear()
            for record in [each for each in self._store.batches if not each["_over"]]:
                try:
                    await self._one(record)
                except Exception:  # the other batches must go on
                    logger.exception("the work on the batch %s ended", record["id"])
            await self._news.wait()

    async def _one(self, record: Record) -> None:
        while self._server.not_ready is not None and record["status"] != "cancelling":
            await asyncio.sleep(0.1)
        try:
            if record["status"] != "cancelling":
                self._at_work, self._running = record, asyncio.create_task(self._answered(record))
                try:
                    await asyncio.wait((self._running,))
                finally:  # this task may be cancelled, because the server stops
                    if not self._running.done():
                        self._running.cancel()
                        await asyncio.wait((self._running,))
                    self._at_work = None
                if not self._running.cancelled():
                    self._running.result()
            await self._end(record, "cancelled" if record["status"] == "cancelling" else "completed")
        except Exception as error:
            if self._server.lost is not None:  # another start of the server goes on
                logger.error("the batch %s waits: %s", record["id"], error)
                return
            logger.error("the batch %s failed: %s", record["id"], error)
            record["errors"] = {
                "object": "list",
                "data": [{"code": type(error).__name__, "message": str(error), "param": None, "line": None}],
            }
            with contextlib.suppress(OSError):  # a full disk; the batch is tried again by the next start
                await self._end(record, "failed")

    async def _answered(self, record: Record) -> None:
        """Answers the lines that have no answer."""
        aside, settings, files = self._server.aside, self._server.settings, self._store.files
        self._ask.key = key_of(record, self._server)
        if record["status"] == "validating":
            await self._change(record, "in_progress")
        with contextlib.ExitStack() as opened:
            output, errors = (AnswerFile(str(files.content(record[which]))) for which in ("_output", "_errors"))
            for file in (output, errors):
                opened.callback(file.close)
            answers = Answers(output, errors, record["id"])
            try:
                source = opened.enter_context(open(files.content(record["input_file_id"]), "rb", buffering=0))
            except OSError as error:  # without the path, which is no client's business
                raise type(error)(f"the file {record['input_file_id']} cannot be read: {error.strerror}") from None

            def reader() -> LineReader:
                os.lseek(source.fileno(), 0, os.SEEK_SET)
                return LineReader(source.read, settings.max_body, record["input_file_id"])

            def prepared() -> int:
                answers.read_earlier(mixed=False)
                return scan(reader(), answers)

            total = await aside(prepared)
            counts = record["request_counts"]
            counts |= {"total": total, "completed": answers.earlier - answers.earlier_errors, "failed": answers.earlier_errors}
            before = dict(counts)

            def told() -> None:
                counts["failed"] = before["failed"] + run.counts.failed
                counts["completed"] = before["completed"] + run.counts.done - run.counts.failed

            run = Run(
                reader(),
                LineForm(self._ask.fields, defaults=DEFAULTS, only=record["endpoint"]),
                answers,
                self._ask,
                aside,
                at_once=settings.batch_lines,
                most_bytes=settings.max_bodies // 4,
                gives_up=False,
                told=told,
            )
            await run.run()

    async def _end(self, record: Record, status: str) -> None:
        """Makes the files of the answers, and sets the last status of a batch."""
        if record["status"] == "in_progress":
            await self._change(record, "finalizing")
        store = self._store
        for which, name, what in (("_output", "output_file_id", "output"), ("_errors", "error_file_id", "error")):
            path = store.files.content(record[which])
            if path.exists() and path.stat().st_size and store.files.get(record[which]) is None:
                await self._server.aside(store.add, record[which], f"{record['id']}_{what}.jsonl", "batch_output", record["_owner"])
            if store.files.get(record[which]) is not None:
                record[name] = record[which]
            else:
                path.unlink(missing_ok=True)
        record["_over"] = True
        await self._change(record, status)

    async def _change(self, record: Record, status: str) -> None:
        record["status"], record[f"{status}_at"] = status, int(time.time())
        await self._save(record)

    async def _save(self, record: Record) -> None:
        await self._server.aside(self._store.batches.save, record)


# ---------------------------------------------------------------- handlers
async def create(call: Call) -> None:
    """Makes a batch: answers the requests in the lines of a file, with the lowest priority."""
    store, read = store_of(call.server), await call.read()
    store.batches.check_room()
    batches = call.server.batches
    assert batches is not None
    if read["endpoint"] not in batches.paths:
        raise Refused(400, f"endpoint must be one of {', '.join(batches.paths)}", param="endpoint")
    if sum(not each["_over"] for each in store.batches) >= MOST_AT_WORK:
        raise Refused(429, f"{MOST_AT_WORK} batches wait already, the most that this server takes", code="overloaded", retry_after=60)
    if len(dumped(read["metadata"])) > MOST_METADATA:
        raise Refused(400, f"metadata has more than {MOST_METADATA} bytes as JSON", param="metadata")
    if await call.server.aside(store.size) > call.server.settings.max_files:
        raise Refused(413, "the files of this server have as many bytes as it keeps: delete some", code="storage_full")
    # From here to add() nothing waits, so that the file is not deleted meanwhile.
    file = store.files.get(read["input_file_id"])
    if file is not None and file["_owner"] != owner_of(call):
        file = None
    if file is None or file["purpose"] != "batch":
        what = "there is no file" if file is None else "the answers to a batch are no input:"
        raise Refused(400, f"{what} {read['input_file_id'][:80]!r}", param="input_file_id", code="not_found")
    times = ("in_progress", "expires", "finalizing", "completed", "failed", "expired", "cancelling", "cancelled")
    record: Record = {
        "id": new_id("batch_"),
        "object": "batch",
        "endpoint": read["endpoint"],
        "errors": None,
        "input_file_id": file["id"],
        "completion_window": "24h",
        "status": "validating",
        "output_file_id": None,
        "error_file_id": None,
        "created_at": int(time.time()),
        **{f"{each}_at": None for each in times},
        "request_counts": {"total": 0, "completed": 0, "failed": 0},
        "metadata": read["metadata"],
        "order": time.time_ns(),
        "_output": new_id("file-"),
        "_errors": new_id("file-"),
        "_over": False,
        "_owner": owner_of(call),
    }
    await batches.add(record)
    await call.answer_small(shown_record(record))


async def listed(call: Call) -> None:
    """Lists the batches."""
    await call.answer(page_of(call, own(store_of(call.server).batches, call), 100))


async def one(call: Call) -> None:
    """Describes a batch."""
    await call.answer_small(shown_record(found(store_of(call.server).batches, call, "batch")))


async def cancel(call: Call) -> None:
    """Cancels a batch. Answers to lines that ended before are kept."""
    record, batches = found(store_of(call.server).batches, call, "batch"), call.server.batches
    assert batches is not None
    await batches.cancel(record)
    await call.answer_small(shown_record(record))
