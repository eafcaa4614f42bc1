"""The files of answers. Each line of a file says which line of the input it answers, so that a run that was stopped goes on from them."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import secrets
import stat
from array import array
from collections.abc import Callable, Iterable, Iterator
from itertools import groupby
from typing import NamedTuple

from ..common.arguments import shown_path
from ..common.forks import Lock
from ..common.stdio import OutputError
from .line_reader import Line

_BEGIN = b'{"id":"batch_req_'
# The end of each line of answers. Groups: number of the line of the input, hash of that line, fingerprint of the run.
_END = re.compile(rb',"pumice":\{"line":(\d{1,12}),"input":"([0-9a-f]{16})","run":"([\w.+!-]{1,200})"\}\}\Z')
_LONGEST_END = 320  # maximum number of bytes of what _END matches
_BLOCK = 1 << 20


class Failure(NamedTuple):
    """The error of a line that was no request."""

    code: str
    message: str


class Reply(NamedTuple):
    """The answer to a request. status: its HTTP status. body: JSON without line breaks. request_id: its id in the log."""

    status: int
    body: bytes
    request_id: str


def answer_line(line: Line, custom_id: str | int | None, answer: Reply | Failure, run: str) -> bytes:
    """Returns the line of an answer in the form of OpenAI's batches. run: the fingerprint of the run."""
    if isinstance(answer, Failure):
        response, error = b"null", json.dumps({"code": answer.code, "message": f"line {line.number}: {answer.message}"}).encode()
    else:
        response = b'{"status_code":%d,"request_id":"%s","body":%s}' % (answer.status, answer.request_id.encode(), answer.body)
        error = b"null"
    return b'%s%s","custom_id":%s,"response":%s,"error":%s,"pumice":{"line":%d,"input":"%016x","run":"%s"}}\n' % (
        _BEGIN,
        secrets.token_hex(12).encode(),
        json.dumps(custom_id).encode(),
        response,
        error,
        line.number,
        line.digest,
        run.encode(),
    )


class AnswerFile:
    """One file of answers. It is locked until close(), so that a second run cannot write to it.

    Each line is written whole: if the disk is full, the beginning of the line that does not fit is removed. If the process is killed within
    a line, the next run removes the beginning that was written."""

    def __init__(self, path: str | None, write: Callable[[bytes], object] | None = None) -> None:
        """path: the path of a file, which is made if it is missing. write: a function that is called for each line in place of writing to a
        path, which is then None."""
        self.path, self._write, self._size, self._fd = path, write, 0, -1
        self.regular = False  # whether the file keeps what is written to it
        if path is None:
            return
        try:
            kind = stat.S_IFMT(os.stat(path).st_mode)
        except OSError:
            kind = stat.S_IFREG
        try:
            # A pipe or a terminal is opened for writing alone, so that the end of a pipe's reader is an error.
            how = os.O_RDWR | os.O_CREAT if kind == stat.S_IFREG else os.O_WRONLY
            self._fd = os.open(path, how | os.O_CLOEXEC, 0o666)
        except OSError as error:
            raise OSError(f"cannot write {shown_path(path)}: {error.strerror}") from None
        self.regular = stat.S_ISREG(os.fstat(self._fd).st_mode)
        if self.regular:
            try:
                fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(self._fd)
                raise OSError(f"another run writes {shown_path(path)} at this moment") from None
            except OSError:  # a file system without locks
                pass

    def clear(self) -> None:
        """Removes all that the file has."""
        if self.regular:
            os.ftruncate(self._fd, 0)

    def earlier(self) -> Iterator[tuple[int, int, str]]:
        """Yields (number of the line of the input, its hash, fingerprint of the run) for each line of the file. Removes what follows the
        last end of a line. Raises ValueError if the file is no file of answers."""
        if not self.regular:
            return
        at = self._size = 0  # of all bytes that were read; of those up to the last end of a line
        number, head, tail = 1, b"", b""
        while block := os.pread(self._fd, _BLOCK, at):
            begin = 0
            while (end := block.find(b"\n", begin)) >= 0:
                head, tail = _ends(head, tail, block[begin:end])
                found = _END.search(tail)
                if found is None or head != _BEGIN:
                    raise ValueError(
                        f"line {number} of {shown_path(self.path)} is no answer that a run has written: name another file for the answers, "
                        f"or allow this one to be replaced (--overwrite)"
                    )
                yield int(found[1]), int(found[2], 16), found[3].decode()
                begin, head, tail, number = end + 1, b"", b"", number + 1
                self._size = at + begin
            head, tail = _ends(head, tail, block[begin:])
            at += len(block)
        if at > self._size:
            if head[: len(_BEGIN)] != _BEGIN[: len(head)] and head.strip(b"\0"):
                raise ValueError(
                    f"{shown_path(self.path)} is no file of answers: name another one, or allow this one to be replaced (--overwrite)"
                )
            os.ftruncate(self._fd, self._size)

    def write(self, data: bytes) -> None:
        """Writes whole lines. Raises OSError if not all fit, and OutputError if the reader of a pipe has exited. What a file has then are
        whole lines."""
        if self._write is not None:
            self._write(data)
            return
        left = memoryview(data)
        try:
            while left:
                left = left[os.pwrite(self._fd, left, self._size + len(data) - len(left)) if self.regular else os.write(self._fd, left) :]
        except BrokenPipeError as error:
            raise OutputError(error) from None
        except OSError as error:
            written = len(data) - len(left)
            self._size += data.rfind(b"\n", 0, written) + 1
            if self.regular:
                with contextlib.suppress(OSError):
                    os.ftruncate(self._fd, self._size)
            raise OSError(f"cannot write {shown_path(self.path)}: {error.strerror}") from None
        self._size += len(data)

    def sync(self) -> None:
        """Waits until the disk has what was written."""
        if self.regular:
            os.fsync(self._fd)

    def close(self) -> None:
        """Closes the file."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def _ends(head: bytes, tail: bytes, part: bytes) -> tuple[bytes, bytes]:
    """Returns the first and the last bytes of a line that is continued by `part`."""
    return head + part[: len(_BEGIN) - len(head)], (tail + part[-_LONGEST_END:])[-_LONGEST_END:]


# Parts of a run's fingerprint, in their order -> what an error says if a file has another one.
_MEANING = ("other models", "other options", "another version of pumice")


class Answers:
    """All files of answers of a run: one file, or a second one for the errors. Knows which lines of the input have an answer. Memory: 8
    bytes for each line of the input up to the last one that was answered before this run."""

    def __init__(self, file: AnswerFile, errors: AnswerFile | None, run: str, in_order: bool = False) -> None:
        """run: the fingerprint of this run, of parts that are joined by "_" (see _MEANING). in_order: whether the answers in each file are
        in the order of the lines."""
        self._files, self.run, self.in_order = [file, *([errors] if errors else [])], run, in_order
        self._digests = array("Q", [0])  # number of a line of the input -> its hash when it was answered, or 0
        self.earlier = self.earlier_errors = 0  # numbers of answers of earlier runs, and of those in the file of errors
        self._writes = Lock()  # held while answers are written

    def read_earlier(self, mixed: bool) -> None:
        """Reads which lines have an answer. mixed: whether the answers may be of a run with other models or options. Raises ValueError if
        the files do not fit to this run."""
        runs: set[str] = set()
        for file in self._files:
            before = 0
            for number, digest, run in file.earlier():
                if run != self.run and not mixed and run not in runs:
                    self._refuse(file, run)
                runs.add(run)
                if number > _MOST_LINES:
                    raise ValueError(
                        f"{shown_path(file.path)} answers line {number}, which no input has: it was changed since a run wrote it"
                    )
                if number >= len(self._digests):
                    self._digests.frombytes(bytes(8 * (number + 1 - len(self._digests))))
                if self._digests[number]:
                    raise ValueError(f"{shown_path(file.path)} answers line {number} twice: it was changed since a run wrote it")
                if self.in_order and number < before:
                    raise ValueError(f"{shown_path(file.path)} has {_OTHER_ORDER}")
                self._digests[number] = digest
                self.earlier, before = self.earlier + 1, number
                self.earlier_errors += file is not self._files[0]

    def _refuse(self, file: AnswerFile, run: str) -> None:
        theirs, own = run.split("_"), self.run.split("_")
        different = [what for what, a, b in zip(_MEANING, theirs, own, strict=False) if a != b] or ["another run"]
        raise ValueError(
            f"{shown_path(file.path)} has answers of {' and '.join(different)}: name another file, go on in this one nevertheless "
            f"(--mixed), or replace it (--overwrite)"
        )

    def has(self, line: Line) -> bool:
        """Returns whether a line of the input has an answer of an earlier run. Raises ValueError if it was another line then, or if it has
        none and the answers must be in order, and a later line has one."""
        digest = self._digests[line.number] if line.number < len(self._digests) else 0
        if digest and digest != line.digest:
            raise ValueError(f"line {line.number} of the input has changed since it was answered: {_OTHER_INPUT}")
        if not digest and self.in_order and line.number < len(self._digests):
            raise ValueError(f"{shown_path(self._files[0].path)} has {_OTHER_ORDER}")
        return digest != 0

    def check_end(self, number: int) -> None:
        """Raises ValueError if a line has an answer that comes after the last one of the input. number: that of the last line."""
        if number < len(self._digests) - 1:
            raise ValueError(
                f"{shown_path(self._files[0].path)} answers line {len(self._digests) - 1}, and the input has {number} lines: {_OTHER_INPUT}"
            )

    @property
    def regular(self) -> bool:
        """Whether a later run can go on from the files."""
        return all(file.regular for file in self._files)

    def clear(self) -> None:
        """Removes all answers."""
        for file in self._files:
            file.clear()

    def write(self, lines: Iterable[tuple[bytes, bool]]) -> None:
        """Writes answers. lines: (the line, whether it is an error)."""
        places = [(self._files[-1 if failed else 0], data) for data, failed in lines]
        if not self.in_order:
            places.sort(key=lambda each: self._files.index(each[0]))
        # In order, a line is written after all before it, whichever their files are, so that a kill leaves no line out.
        with self._writes():
            for file, group in groupby(places, key=lambda each: each[0]):
                file.write(b"".join(data for _, data in group))

    def hold(self, seconds: float) -> None:
        """Prevents further writes, because the process ends. Waits at most so long for one that is under way."""
        self._writes().acquire(timeout=seconds)

    def sync(self) -> None:
        """Waits until the disk has all answers."""
        for file in self._files:
            file.sync()

    def close(self) -> None:
        """Closes the files."""
        for file in self._files:
            file.close()


_MOST_LINES = 10**9
_OTHER_ORDER = "answers that are not in the order of the lines: go on without --in-order, or begin anew (--overwrite)"
_OTHER_INPUT = "give the input of the first run, to which lines may have been added, or another file for the answers"
