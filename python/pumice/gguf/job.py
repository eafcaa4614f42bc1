"""Writes GGUF files under temporary names (NAME.part), and gives them their names when all are complete. A job that was stopped continues
where it stopped."""

from __future__ import annotations

import collections
import contextlib
import errno
import fcntl
import hashlib
import json
import logging
import numbers
import os
import re
import shutil
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .. import _core
from ..common.arguments import shown
from ..common.display import size as shown_size
from ..common.interruptible import Work, interruptible
from ..common.pools import Pool
from ..common.progress import LateBar, Progress
from .container import ALIGNMENT, Tensor, head_bytes, padded, tensor_bytes
from .weights import Part, Unit

log = logging.getLogger("pumice")

# Maximum time in seconds between two saves. A save writes the finished units to the disk and then records them in the journal.
_JOURNAL_SECONDS = 2.0
_WAITING = 2  # number of pieces per worker that may wait to be written


@dataclass(frozen=True)
class _File:
    """One file of the result. first: the index of the file's first unit."""

    path: Path
    head: bytes
    offsets: tuple[tuple[int, ...], ...]  # for each unit, the position of each of its tensors in the file
    first: int
    bytes: int

    @property
    def part(self) -> Path:
        return self.path.with_name(self.path.name + ".part")


def split_size(given: str | int | None) -> int | None:
    """Returns the largest size of a file in bytes, from "4G", "500M", "20K" or a number. Raises ValueError for other values."""
    if given is None:
        return None
    match = re.fullmatch(r"(\d+)([KMG]?)B?", str(given).strip().upper()) if isinstance(given, (str, numbers.Integral)) else None
    count = int(match[1]) * {"": 1, "K": 10**3, "M": 10**6, "G": 10**9}[match[2]] if match and len(match[1]) < 16 else 0
    if count < 1:
        raise ValueError(f'split is {shown(given)}; a size is needed, such as "4G" or "500M"')
    return count


def _grouped(keys: Mapping[str, Any], units: Sequence[Unit], most: int | None) -> list[list[Unit]]:
    """Returns the units of each file. Raises ValueError if a single unit needs a file larger than `most`."""
    if most is None:
        return [list(units)]
    # heads: the size in bytes of the first file's head, and that of each other file's head
    heads = [len(head_bytes({**each, **_split_keys(0, 0, 0)}, [])) + ALIGNMENT for each in (keys, {})]
    sizes = [sum(padded(tensor.bytes) + len(tensor_bytes(tensor, 0)) for tensor in unit.tensors) for unit in units]
    alone = [heads[number > 0] + size for number, size in enumerate(sizes)]
    if alone and max(alone) > most:
        largest = units[alone.index(max(alone))].tensors[0].name
        raise ValueError(f"split is {most} bytes; the file with {largest} needs {max(alone)}, because a tensor is not divided")
    groups: list[list[Unit]] = [[]]
    used = heads[0]
    for unit, size in zip(units, sizes, strict=True):
        if groups[-1] and used + size > most:
            groups.append([])
            used = heads[1]
        groups[-1].append(unit)
        used += size
    return groups


def _split_keys(number: int, files: int, tensors: int) -> dict[str, int]:
    """Returns the metadata that each part of a split model has (gguf-split.cpp in llama.cpp)."""
    return {"split.no": number, "split.count": files, "split.tensors.count": tensors}


def _files(path: Path, keys: Mapping[str, Any], units: Sequence[Unit], most: int | None) -> list[_File]:
    """Assigns the tensors to files. The first file has all metadata, and the others have only the number of the file."""
    groups = _grouped(keys, units, most)
    count = sum(len(unit.tensors) for unit in units)
    files: list[_File] = []
    first = 0
    for number, group in enumerate(groups):
        name, said = path, dict(keys)
        if len(groups) > 1:
            name = path.with_name(f"{path.stem}-{number + 1:05}-of-{len(groups):05}.gguf")
            said = (dict(keys) if number == 0 else {}) | _split_keys(number, len(groups), count)
        tensors = [tensor for unit in group for tensor in unit.tensors]
        head = head_bytes(said, tensors)
        offsets, at = [], len(head)
        for unit in group:
            begins = []
            for tensor in unit.tensors:
                begins.append(at)
                at += padded(tensor.bytes)
            offsets.append(tuple(begins))
        files.append(_File(name, head, tuple(offsets), first, at))
        first += len(group)
    return files


def refuse_existing(paths: Iterable[Path], force: bool) -> None:
    """Raises FileExistsError if a file exists at one of the paths, unless `force` is true. Raises OSError for something else than a
    file."""
    for path in paths:
        if path.exists() and not path.is_file():
            raise OSError(errno.EEXIST, "there is something other than a file", str(path))
        if path.exists() and not force:
            raise FileExistsError(errno.EEXIST, "the file is there already; --force (force=True) replaces it", str(path))


class Job:
    """Writes units and metadata as one GGUF file, or as several files."""

    def __init__(
        self,
        path: Path,
        keys: Mapping[str, Any],
        units: Sequence[Unit],
        source: str,
        split: int | None = None,
        force: bool = False,
        cancel: _core.Cancel | None = None,
        unchanged: Callable[[], bool] = lambda: True,
    ) -> None:
        """source: a text that changes whenever the bytes of the source may have changed.  force: whether existing files with the names of
        the result are replaced.  cancel: stops long work on units when the job is interrupted.  unchanged: a function that returns, when
        everything is written, whether the source files are still those that `source` describes."""
        self._units, self._force, self._cancel, self._unchanged = units, force, cancel, unchanged
        self._on_disk = 0  # number of units that are on the disk according to the journal
        self.files = _files(path, keys, units, split)
        self._journal = path.with_name(path.name + ".journal")
        heads = hashlib.sha256()
        for file in self.files:
            heads.update(file.head)
        # A hash of everything that determines the bytes of the result. The result's paths are not part of it.
        self.key = hashlib.sha256(f"{source}\n{heads.hexdigest()}\n{_core.__version__}".encode("utf-8", "surrogatepass")).hexdigest()

    @property
    def tensors(self) -> list[Tensor]:
        """All tensors, in order."""
        return [tensor for unit in self._units for tensor in unit.tensors]

    @property
    def bytes(self) -> int:
        """The size of all files."""
        return sum(file.bytes for file in self.files)

    def _refuse_existing(self) -> None:
        refuse_existing((file.path for file in self.files), self._force)

    def run(self, progress: Progress = None) -> None:
        """Writes all that is not written yet. If it is interrupted, the .part files and the journal remain, and the next run of the same
        job continues from there. Raises FileExistsError if a file exists at one of the names, unless `force` is true."""
        self._refuse_existing()
        with contextlib.ExitStack() as open_files:
            handles = [_locked(file.part, open_files) for file in self.files]
            self._refuse_existing()  # another process may have finished before this one locked the files
            done = self._finished()
            self._on_disk = done
            if done == 0:
                self._begin(handles)
            try:
                self._write(handles, done, progress)
                interruptible(self._sync)
            except OSError as error:
                raise self._explained(error, "what is written stays in .part files, and with more room the same call goes on") from None
            if not self._unchanged():
                raise OSError(
                    errno.EBUSY, "not finished: the files that it is made of were changed meanwhile. Run it again", str(self.files[0].path)
                )
            # The first file gets its name last, because a split model is opened by its first file. The files stay locked until all have
            # their names.
            for file in reversed(self.files):
                os.replace(file.part, file.path)
            self._journal.unlink(missing_ok=True)

    def _begin(self, handles: Sequence[int]) -> None:
        """Gives all files their sizes and heads, and begins the journal. If that fails, removes all .part files, because there is nothing
        from which to continue."""
        try:
            for handle, file in zip(handles, self.files, strict=True):
                _begin(handle, file)
            self._save(0)
        except OSError as error:
            for left in (*(file.part for file in self.files), self._journal):
                left.unlink(missing_ok=True)
            raise self._explained(error, "nothing is written") from None

    def _explained(self, error: OSError, left: str) -> OSError:
        """Returns the error. If it is about missing disk space, adds the needed and the free size.  left: a text about what remains on the
        disk."""
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            return error
        path = self.files[0].path
        free = shown_size(shutil.disk_usage(path.parent).free)
        return OSError(error.errno, f"{error.strerror}: {shown_size(self.bytes)} are needed in all, and {free} are free; {left}", str(path))

    def _finished(self) -> int:
        """Returns how many units an earlier run of the same job has written."""
        try:
            journal = json.loads(self._journal.read_bytes())
            units = journal["written"] if journal.get("boot") and journal["boot"] == _boot() else journal["units"]
            done = int(units) if journal["job"] == self.key else 0
        except FileNotFoundError:
            return 0
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            done = 0
        sizes = [file.part.stat().st_size if file.part.is_file() else 0 for file in self.files]
        if not 0 <= done <= len(self._units) or sizes != [file.bytes for file in self.files]:
            done = 0
        if done == 0:
            log.warning("%s is of another conversion, which is not continued", self._journal)
        return done

    def _sync(self) -> None:
        """Waits until everything that was written is on the disk. This may take seconds and continue after the call was interrupted. So the
        files are opened a second time here: those of run() are closed and unlocked as soon as the call ends."""
        for file in self.files:
            handle = os.open(file.part, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                with _named(file.part):
                    os.fsync(handle)
            finally:
                os.close(handle)

    def _save(self, done: int) -> None:
        """Writes the finished units to the disk, and then to the journal."""
        interruptible(self._sync)
        self._on_disk = done
        self._note({"units": done})

    def _save_interrupted(self, done: int) -> None:
        """Records in the journal how many units are finished, without waiting for the disk. These units count until the system is
        restarted, because until then the system keeps in memory what is not yet on the disk. After a crash, only the units that are on the
        disk count."""
        if boot := _boot():
            self._note({"units": self._on_disk, "written": done, "boot": boot})
        else:
            self._sync()
            self._note({"units": done})

    def _note(self, said: Mapping[str, Any]) -> None:
        new = self._journal.with_name(self._journal.name + ".new")
        try:
            with _named(new):
                new.write_text(json.dumps({"job": self.key, **said}))
            os.replace(new, self._journal)
        except OSError:
            new.unlink(missing_ok=True)
            raise

    def _write(self, handles: Sequence[int], done: int, progress: Progress) -> None:
        total = sum(tensor.bytes for tensor in self.tensors)
        written = sum(tensor.bytes for unit in self._units[:done] for tensor in unit.tensors)
        bar = LateBar(progress, "write", unit="B", unit_scale=True, unit_divisor=1024)
        saved = time.monotonic()
        try:
            with contextlib.closing(self._made(done)) as made:
                for unit, ends, parts in made:
                    number = max(i for i, file in enumerate(self.files) if file.first <= unit)
                    file = self.files[number]
                    for part in parts:
                        _write_at(handles[number], file.offsets[unit - file.first][part.tensor] + part.offset, part.data, file.part)
                        written += len(part.data)
                    if bar.update is not None:
                        bar.update(written, total)
                    if ends:
                        done = unit + 1
                        if time.monotonic() - saved > _JOURNAL_SECONDS:
                            self._save(done)
                            saved = time.monotonic()
        except BaseException:
            with contextlib.suppress(OSError):  # if the disk is full, the journal of the last save remains
                self._save_interrupted(done)
            raise
        finally:
            bar.close()

    def _made(self, first: int) -> Generator[tuple[int, bool, list[Part]], None, None]:
        """Yields (unit, whether this is the unit's last piece, parts) in order. Several threads make the pieces. If the caller's loop ends
        early, nothing waits for these threads, and they drop their results."""
        workers = max(1, int(_core.build_info()["threads"]))
        pieces = ((number, piece, unit) for number, unit in enumerate(self._units[first:], first) for piece in range(unit.pieces))
        waiting: collections.deque[tuple[int, bool, Work[list[Part]]]] = collections.deque()
        pool = Pool(workers)
        try:
            for number, piece, unit in pieces:
                waiting.append((number, piece + 1 == unit.pieces, pool.submit(_parts, unit, piece)))
                if len(waiting) >= _WAITING * workers:
                    at, ends, made = waiting.popleft()
                    yield at, ends, made.result()
            while waiting:
                at, ends, made = waiting.popleft()
                yield at, ends, made.result()
        finally:
            if self._cancel is not None:
                self._cancel.request()
            pool.end()


def _boot() -> str:
    """Returns a text that changes when the system is restarted, or "" if the system does not have such a text."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
    except OSError:
        return ""


def _parts(unit: Unit, piece: int) -> list[Part]:
    return list(unit.make(piece))


def _locked(part: Path, stack: contextlib.ExitStack) -> int:
    """Opens a file and locks it, so that no other process writes it."""
    # Links are not followed, because a link could make this overwrite a file of another name.
    handle = os.open(part, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)
    stack.callback(os.close, handle)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # true if another process has finished the file and renamed it before this process got the lock
        busy = not part.exists() or not os.path.samestat(os.fstat(handle), os.stat(part))
    except OSError:
        busy = True
    if busy:
        raise OSError(errno.EBUSY, "another process writes this file", str(part))
    return handle


def _begin(handle: int, file: _File) -> None:
    """Gives a file its size and its head."""
    with _named(file.part):
        os.truncate(handle, 0)
        if hasattr(os, "posix_fallocate"):  # raises an error before the work if the disk is too small
            os.posix_fallocate(handle, 0, file.bytes)
        os.truncate(handle, file.bytes)
    _write_at(handle, 0, file.head, file.part)


@contextlib.contextmanager
def _named(path: Path) -> Iterator[None]:
    """Adds the path to an OSError that has none."""
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from None


def _write_at(handle: int, at: int, data: bytes, path: Path) -> None:
    view = memoryview(data)
    with _named(path):
        while view:
            count = os.pwrite(handle, view, at)
            view, at = view[count:], at + count


def source_key(file: _core.ModelFile, more: Sequence[Path] = ()) -> str:
    """Returns a text that changes whenever the bytes of a model's files may have changed. It has their names, sizes and times of the last
    change."""
    path = Path(file.path)
    beside = sorted(path.glob("*.safetensors")) if path.is_dir() else [path]
    found = [f"{each.name} {each.stat().st_size} {each.stat().st_mtime_ns}" for each in (*beside, *more) if each.is_file()]
    return "\n".join([str(path.resolve()), *found, shown_size(file.size), json.dumps([list(map(str, t)) for t in file.tensors])])
