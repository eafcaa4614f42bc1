"""Makes calls on files fail: the Nth read, write, rename or sync below a folder ends as an errno, is cut short or interrupted, kills the
process, or finds the file changed. Each N has a forked child of its own.

A process that starts with file_faults.c in LD_PRELOAD runs this file as a script. Its arguments are an empty folder, the part ("writers" or
"readers") and the stride of N. It prints a line of JSON for each row of the table that test_file_faults.py checks."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from patience import PATIENCE

SUPPORT = Path(__file__).parent
OPEN, READ, WRITE, NAME, SYNC = 1, 2, 4, 8, 16  # kinds of calls, as in file_faults.c
ACTIONS = {
    "killed before": -1,
    "killed after": -2,
    "short": -3,
    "interrupted": -4,
    "cut": -5,
    "removed": -6,
    "replaced": -7,
    "rewritten": -8,
    "killed within": -9,
}
CHANGES = ("cut", "removed", "replaced", "rewritten")  # of the file that is read; the other actions are those of a writer, too
ERRNO = {"ENOSPC": errno.ENOSPC, "EIO": errno.EIO}
MOST = 20  # calls of a reader that fail, in a sample; a writer of so few calls has all of them fail
KILLS = 100  # points at which a writer is killed, if all are tried


def library(folder: Path) -> Path:
    """Compiles file_faults.c. Raises FileNotFoundError if there is no C compiler."""
    made = folder / "file_faults.so"
    command = ["cc", "-O1", "-shared", "-fPIC", str(SUPPORT / "file_faults.c"), "-o", str(made), "-ldl"]
    subprocess.run(command, check=True, capture_output=True)
    return made


@dataclass
class Row:
    """What happened when one action was tried at many calls of one piece of work."""

    work: str
    action: str
    calls: int = 0  # that an undisturbed run makes
    tried: int = 0
    errors: dict[str, int] = field(default_factory=dict)  # name of the exception's class -> how often it was raised
    right: int = 0  # runs that had the result of an undisturbed one
    killed: int = 0
    problems: list[str] = field(default_factory=list)


class Faults:
    def __init__(self) -> None:
        self._library = ctypes.CDLL(None)
        self._library.file_faults_calls.restype = ctypes.c_long

    def watch(self, folder: Path, kinds: int, call: int, action: int, other: Path | str = "", percent: int = 0) -> None:
        self._library.file_faults_watch(os.fsencode(folder), kinds, ctypes.c_long(call), action, os.fsencode(other), percent)

    def calls(self) -> int:
        return int(self._library.file_faults_calls())


def forked(work: Callable[[], str]) -> str:
    """Runs work() in a child. Returns its result; "killed"; or what went wrong, in a text that begins with "!"."""
    receives, sends = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(receives)
        try:
            said = work()
        except BaseException as error:
            said = f"!{type(error).__name__}: {error}"
        os.write(sends, said.encode("utf-8", "replace"))
        os._exit(0)
    os.close(sends)
    end = time.monotonic() + PATIENCE
    status = None
    while status is None and time.monotonic() < end:
        found, ended = os.waitpid(child, os.WNOHANG)
        status = ended if found else time.sleep(0.002)
    if status is None:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    with open(receives, "rb") as file:
        said = file.read().decode()
    if status is None:
        return f"!it hangs: no result in {PATIENCE} s"
    if os.WIFSIGNALED(status):
        return "killed" if os.WTERMSIG(status) == signal.SIGKILL else f"!died of signal {os.WTERMSIG(status)}"
    return said


def named(error: BaseException, folder: Path) -> str:
    """Returns the class of a typed error that names a file. Raises other errors again."""
    import pumice

    if not isinstance(error, (pumice.PumiceError, OSError)):
        raise error
    said = f"{error} {getattr(error, 'filename', '')}"
    if not any(path.name in said for path in (folder, *folder.rglob("*"))):
        raise ValueError(f"the error names no file: {type(error).__name__}: {error}") from error
    return type(error).__name__


class Campaign:
    """Tries actions at the calls of pieces of work, and collects the rows."""

    def __init__(self, scratch: Path, stride: int) -> None:
        self.faults, self.scratch, self.stride, self.rows = Faults(), scratch, stride, list[Row]()
        self.other = scratch / "other"

    def fresh(self, source: Path | None = None) -> Path:
        folder = self.scratch / "area"
        shutil.rmtree(folder, ignore_errors=True)
        if source is None:
            folder.mkdir()
        else:
            shutil.copytree(source, folder)
        return folder

    def guarded(self, work: Callable[[], str], folder: Path, kinds: int, call: int, action: int, percent: int = 0) -> str:
        def child() -> str:
            self.faults.watch(folder, kinds, call, action, self.other, percent)
            try:
                return work()
            except Exception as error:
                self.faults.watch(folder, 0, 0, 0)
                return named(error, folder)

        self.other.write_bytes(bytes(100))
        return forked(child)

    def count(self, work: Callable[[], str], folder: Path, kinds: int) -> int:
        def child() -> str:
            self.faults.watch(folder, kinds, -1, 0)
            work()
            return str(self.faults.calls())

        return int(forked(child))

    # ---------------------------------------------------------------- writers
    def write(self, name: str, make: Callable[[Path], None], target: str, cache: bool = False) -> None:
        """make(folder) writes the file `target`. Whatever happens, the folder has under that name what was there before, or the whole new
        file, and the next undisturbed call leaves the whole new file alone. cache: whether make() may also leave what was there before
        without an error."""

        def written(at: Path) -> str:
            make(at)
            return "right"

        folder = self.fresh()
        assert (said := forked(lambda: written(folder))) == "right", said
        new, names = (folder / target).read_bytes(), sorted(path.name for path in folder.iterdir())
        changes = WRITE | NAME | SYNC

        def tried(row: Row, call: int, code: int, kinds: int, percent: int = 0) -> str:
            """Tries one call. Returns what the child said."""
            folder, old = self.fresh(), call % 2 == 1
            if old:
                (folder / target).write_bytes(b"old")
            said = self.guarded(lambda: written(folder), folder, kinds, call, code, percent)
            found = (folder / target).read_bytes() if (folder / target).exists() else None
            where = f"call {call} of {row.calls}" + (f", {percent} % of its bytes" if percent else "")
            row.tried += 1
            if said == "right":
                row.right += 1
            elif said == "killed":
                row.killed += 1
            elif said.startswith("!"):
                row.problems.append(f"{where}: {said}")
            else:
                row.errors[said] = row.errors.get(said, 0) + 1
            if found != new and ((said == "right" and not cache) or found != (b"old" if old else None)):
                row.problems.append(f"{where}: {said}, and {target} has {'nothing' if found is None else f'{len(found)} bytes'}")
            after = forked(lambda: written(folder))
            left = sorted(path.name for path in folder.iterdir())
            if after != "right" or (folder / target).read_bytes() != new or left != names:
                row.problems.append(f"{where}: {said}; the next call: {after}, which left {left}")
            return said

        calls = self.count(lambda: written(self.fresh()), self.scratch / "area", changes)
        assert calls > 0, f"{name} makes no call on a file below {self.scratch}"
        kills = 0
        for action, code in [*ACTIONS.items(), *ERRNO.items()]:
            if action in CHANGES or action == "killed within":
                continue
            row = Row(name, action, calls)
            once = code in (ACTIONS["short"], ACTIONS["interrupted"])
            killing, sample = "killed" in action, self.stride > 1
            stride = 1 if not sample or (calls <= MOST and not killing) else 2 if killing else self.stride
            # In a sample, a process is killed before every even call and after every odd one.
            for call in range(int(action == "killed after" and sample), 1 if once else calls, stride):
                said = tried(row, call, code, changes)
                if once and said != "right":
                    row.problems.append(f"call {call} of {calls}: {said}")
            kills += row.killed
            self.finished(row)
        # The kernel may end a process in the middle of a write. The shares of bytes differ from round to round.
        row = Row(name, "killed within", self.count(lambda: written(self.fresh()), self.scratch / "area", WRITE))
        for i in range(3 if self.stride > 1 else 2 * KILLS):
            if kills + row.killed < KILLS:
                tried(row, i % row.calls, ACTIONS["killed within"], WRITE, 1 + (i * 37 + i // row.calls) % 99)
        self.finished(row)

    def finished(self, row: Row) -> None:
        self.rows.append(row)
        print(json.dumps(row.__dict__), flush=True)

    # ---------------------------------------------------------------- readers
    def read(self, name: str, source: Path, get: Callable[[Path], str], actions: Iterator[str] | list[str] | None = None) -> None:
        """get(folder) reads files of a copy of `source`. Whatever happens to them meanwhile, it returns the right result or raises a typed
        error."""
        expected = forked(lambda: get(self.fresh(source)))
        assert not expected.startswith("!"), f"{name}: {expected}"
        calls = self.count(lambda: get(self.fresh(source)), self.scratch / "area", READ)
        for action, code in [*ACTIONS.items(), ("EIO", errno.EIO)]:
            if "killed" in action or (actions is not None and action not in actions):
                continue
            row = Row(name, action, calls)
            once = code in (ACTIONS["short"], ACTIONS["interrupted"])
            stride = max(self.stride, calls // MOST) if self.stride > 1 else 1
            for call in range(0, 1 if once else calls, stride):
                folder = self.fresh(source)
                said = self.guarded(lambda at=folder: get(at), folder, READ, call, code)
                row.tried += 1
                if said == expected:
                    row.right += 1
                elif said.startswith(("!", "result")) or said == "killed" or once:
                    row.problems.append(f"call {call} of {calls}: {said[:300]}")
                else:
                    row.errors[said] = row.errors.get(said, 0) + 1
            self.finished(row)


QUIET: dict[str, Any] = {"device": "cpu", "progress": False}
IDS = [i * 37 % 96 for i in range(40)]


def digest(array: Any) -> str:
    import hashlib

    return "result " + hashlib.sha256(array.tobytes()).hexdigest()[:32]


def run_on_vulkan() -> None:
    """Runs a small program on vulkan:0 and closes the device, which then writes its cache of pipelines."""
    import numpy as np

    from pumice import _core

    program = {
        "slots": [("tokens", 64), ("selected", 64)],
        "input": 0,
        "output": 1,
        "ops": [{"op": "select", "in": (0, 0, 64), "out": (1, 0, 64)}],
    }
    runner = _core.ops.Runner(program, [], [], device="vulkan:0")
    rows = np.arange(128, dtype=np.float32).reshape(2, 64)
    assert (runner.run(2, selected=[1], input=rows) == rows[1:]).all()


def cache_of_pipelines(folder: Path) -> str:
    """Returns the name of the file that a device of Vulkan writes, or "" if there is no device."""
    from pumice import _core

    os.environ["PUMICE_CACHE_DIR"] = str(folder)
    if not any(device["id"] == "vulkan:0" and device["usable"] for device in _core.devices()):
        return ""
    run_on_vulkan()
    return next(folder.iterdir()).name


def writers(campaign: Campaign, scratch: Path) -> None:
    import numpy as np
    import random_models
    import small_files

    import pumice
    from pumice.common.vector_file import VectorFile

    llama, encoder = random_models.make_folder("llama32", scratch), small_files.encoder_folder(scratch)
    gguf = scratch / "llama.gguf"
    assert forked(lambda: pumice.convert(llama, gguf, to="f32", tokenizer="none", progress=False) and "right") == "right"

    def prefix(folder: Path) -> None:
        with pumice.load(llama, n_ctx=128, **QUIET) as model:
            model.save_prefix(folder / "p", IDS)

    def parquet(folder: Path) -> None:
        from pumice.arrow import Encode
        from pumice.arrow.parquet import ParquetEncoder

        with pumice.load(encoder, **QUIET) as model:
            list(ParquetEncoder(Encode(model), [scratch / "t.parquet"], folder, rows=16, overwrite=True).run(None))

    def pipelines(folder: Path) -> None:
        os.environ["PUMICE_CACHE_DIR"] = str(folder)
        run_on_vulkan()

    vectors = np.arange(3000, dtype=np.float32).reshape(300, 10)
    campaign.write("save_prefix", prefix, "p")
    campaign.write("encode -o x.npy", lambda folder: VectorFile(str(folder / "x.npy")).save(vectors), "x.npy")
    campaign.write(
        "convert", lambda folder: pumice.convert(llama, folder / "m.gguf", to="f16", tokenizer="none", force=True, progress=False), "m.gguf"
    )
    campaign.write("quantize", lambda folder: pumice.quantize(gguf, folder / "m.gguf", to="q8_0", force=True, progress=False), "m.gguf")
    found = forked(lambda: cache_of_pipelines(campaign.fresh()))
    assert not found.startswith("!"), found
    if found:
        campaign.write("cache of pipelines", pipelines, found, cache=True)
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError:
        return
    pq.write_table(pa.table({"text": [f"w{i % 20} w{i % 7}" for i in range(40)]}), scratch / "t.parquet")
    campaign.write("encode a.parquet", parquet, "t.parquet")


def readers(campaign: Campaign, scratch: Path) -> None:
    import numpy as np
    import random_models
    import small_files
    from paths import GOLDENS

    import pumice

    def loads(path: str, ids: list[int]) -> Callable[[Path], str]:
        def get(folder: Path) -> str:
            adapters = {"lora": folder / "adapter"} if (folder / "adapter").exists() else {}
            with pumice.load(folder / path, n_ctx=64, **QUIET, **adapters) as model:
                return digest(model.logits(ids, positions="all"))

        return get

    def encodes(folder: Path) -> str:
        with pumice.load(folder, **QUIET) as model:
            return digest(model.encode(["w1 w2", "w3 w17 w4"]))

    encoder = small_files.encoder_folder(scratch)
    campaign.read("load a folder and encode", encoder, encodes)
    gguf = scratch / "gguf"
    gguf.mkdir()
    (gguf / "m.gguf").write_bytes(small_files.gguf_file(small_files.gguf_keys("gpt2")))
    campaign.read("load a GGUF file", gguf, loads("m.gguf", list(range(20))))
    both = scratch / "both"
    random_models.make_folder("llama32", both)
    (both / "adapter").mkdir()
    config = GOLDENS / "lora" / "llama.adapter_config.json"
    shutil.copy(config, both / "adapter" / "adapter_config.json")
    shapes = json.loads((GOLDENS / "lora" / "llama.shapes.json").read_text())
    factors = {name: random_models.weights(name, tuple(shape)) for name, shape in shapes.items()}
    random_models.write_safetensors(both / "adapter" / "adapter_model.safetensors", factors)
    campaign.read("load with an adapter", both, loads("llama32", IDS[:20]))
    saved = scratch / "saved"
    saved.mkdir()
    llama = both / "llama32"
    ids = list(range(80))

    def save() -> str:
        with pumice.load(llama, n_ctx=128, **QUIET) as model:
            model.save_prefix(saved / "p", ids)
        return "right"

    assert forked(save) == "right"

    def restores(folder: Path) -> str:
        with pumice.load(llama, n_ctx=128, **QUIET) as model:
            error = None
            try:
                model.load_prefix(folder / "p")
            except Exception as raised:
                error = raised
            said = digest(model.logits([*ids, 1]))  # right in any case: the model computes what the file did not give
            if error is None:
                return said
            assert said == computed, "the logits are wrong after a prefix was refused"
            raise error

    computed = forked(lambda: restores(saved))
    campaign.read("load_prefix", saved, restores)

    def converts(folder: Path) -> str:
        out = scratch / "out"
        shutil.rmtree(out, ignore_errors=True)
        out.mkdir()
        pumice.convert(folder / "llama32", out / "llama32.gguf", to="f32", tokenizer="none", progress=False)
        return digest(np.fromfile(out / "llama32.gguf", np.uint8))

    shutil.rmtree(both / "adapter")
    campaign.read("convert", both, converts)


if __name__ == "__main__":
    sys.path[:0] = [str(SUPPORT), str(SUPPORT.parents[2] / "examples")]
    # Imports what the children need, because a forked child would import it anew.
    import tokenizers  # noqa: F401

    import pumice.__main__
    import pumice.gguf.conversion
    import pumice.gguf.quantization
    import pumice.model.load

    with contextlib.suppress(ImportError):
        import pumice.arrow.parquet  # noqa: F401
    root = Path(sys.argv[1])
    {"writers": writers, "readers": readers}[sys.argv[2]](Campaign(root, int(sys.argv[3])), root)
