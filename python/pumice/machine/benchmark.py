"""Measures one model, alone or in turn with a peer (another engine), for `pumice bench`."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from ..common.arguments import shown
from ..errors import PumiceError
from .peer_worker import PEERS

if TYPE_CHECKING:
    from ..model.model import Model

TEXT = (
    "The quick brown fox jumps over the lazy dog while the band plays on, and nobody in the old town by the river "
    "can say for certain whether the bridge was built before or after the great flood of the last century. "
)
UNITS = {"encode": "sentences/s", "prefill": "tokens/s", "decode": "tokens/s"}


@dataclass(frozen=True)
class Load:
    """The amount of work of a round: `sentences` for an encoder; a prompt of `prompt_tokens` and then `tokens` new ones for a decoder."""

    sentences: int
    prompt_tokens: int
    tokens: int


@dataclass(frozen=True)
class Compared:
    """The figures of pumice and of a peer: what was measured ("encode", "prefill" or "decode") -> one figure per round, in order."""

    name: str
    versions: tuple[str, ...]
    ours: dict[str, list[float]]
    theirs: dict[str, list[float]]

    def __str__(self) -> str:
        """Returns a table: medians with the lowest and highest figure of the rounds, and the median of the rounds' ratios."""
        lines = [f"{'':10}{'pumice':>26}{self.name:>26}   times as fast"]
        for what, mine in self.ours.items():
            other = self.theirs[what]
            ratio = median(a / b for a, b in zip(mine, other, strict=True))
            lines.append(f"{what:10}{_spread(mine):>26}{_spread(other):>26}{ratio:>12.2f}   {UNITS[what]}")
        return "\n".join(lines)


def _spread(figures: list[float]) -> str:
    return f"{median(figures):.1f} ({min(figures):.1f} to {max(figures):.1f})"


def sentences(count: int) -> list[str]:
    """Returns texts of 4 to 38 words."""
    words = TEXT.split()
    return [" ".join(words[: 4 + i * 7 % (len(words) - 4)]) for i in range(count)]


def _ticks() -> tuple[int, int]:
    """Returns two times since the system's start, in ticks: how long all processors have worked, and how long they have been idle. Raises
    OSError on systems without /proc/stat."""
    user, nice, system, idle, waiting, *_ = map(int, Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:])
    return user + nice + system, idle + waiting


def busy(seconds: float = 0.3) -> str | None:
    """Watches the processors for `seconds`. Returns a warning if other programs keep more than a quarter of them busy. Otherwise returns
    None, also on systems without /proc/stat."""
    try:
        worked, idle = _ticks()
        time.sleep(seconds)
        worked_after, idle_after = _ticks()
    except (OSError, ValueError):
        return None
    share = (worked_after - worked) / max(1, worked_after - worked + idle_after - idle)
    if share <= 0.25:
        return None
    return (
        f"other programs keep {100 * share:.0f} % of the processors busy. Speeds are then lower, and ratios say little: programs that give "
        "each thread a fixed share of the work lose most"
    )


class Task:
    """The work of a round. A peer receives it as JSON."""

    def __init__(self, model: Model, load: Load) -> None:
        self._model, self._load = model, load
        self.encodes = "encode" in model.info["tasks"] and "generate" not in model.info["tasks"]
        if self.encodes:
            self._texts = sentences(load.sentences)
        else:
            self._ids = [int(i) for i in model.tokenize(TEXT * (1 + load.prompt_tokens // 8))[: load.prompt_tokens]]

    def warm_up(self) -> None:
        """Does a small part of the work, so that the first round is not slower than the others."""
        if self.encodes:
            self._model.encode(self._texts[:32], show_progress_bar=False)
        else:
            self._model.generate(self._ids[:8], max_new_tokens=2, temperature=0)

    def asked(self, round_: int) -> dict[str, Any]:
        """Returns the work of one round. Each round's prompt has the same tokens in another order, so that no cached prefix applies to
        it."""
        if self.encodes:
            return {"texts": self._texts}
        at = round_ % len(self._ids)
        return {"ids": self._ids[at:] + self._ids[:at], "tokens": self._load.tokens}

    def run(self, asked: Mapping[str, Any]) -> dict[str, float]:
        """Does the work of one round. Returns its figures."""
        if self.encodes:
            begin = time.perf_counter()
            self._model.encode(asked["texts"], show_progress_bar=False)
            return {"encode": len(asked["texts"]) / (time.perf_counter() - begin)}
        tokens = asked["tokens"]
        timings = self._model.generate(asked["ids"], max_new_tokens=tokens, ignore_eos=True, temperature=0).timings
        return {phase: timings[f"{phase}_tokens_per_second"] for phase in ("prefill", "decode")}


@contextmanager
def _peer(name: str, model: str, threads: int, python: str) -> Iterator[Callable[[Mapping[str, Any] | None], dict[str, Any]]]:
    """Runs a peer. Yields a function that sends work to it and returns its answer. If the work is None, the function only waits for the
    first answer."""
    script = Path(__file__).with_name("peer_worker.py")
    # OMP_NUM_THREADS keeps the peer from using more threads than it was given. PYTHONPATH and PYTHONHOME are removed if the peer has
    # another Python, because they would make the peer import the packages of pumice's Python.
    environment = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "PYTHONHOME")}
    environment |= {"OMP_NUM_THREADS": str(threads), "TOKENIZERS_PARALLELISM": "true", "HF_HUB_OFFLINE": "1"}
    if python == sys.executable:
        environment |= {key: os.environ[key] for key in ("PYTHONPATH", "PYTHONHOME") if key in os.environ}
    words = [python, str(script), name, model, str(threads)]
    process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment)

    def ask(work: Mapping[str, Any] | None) -> dict[str, Any]:
        assert process.stdin is not None and process.stdout is not None
        try:
            if work is not None:
                process.stdin.write(json.dumps(work) + "\n")
                process.stdin.flush()
            line = process.stdout.readline()
        except OSError:
            line = ""
        if not line:
            raise PumiceError(f"{name} ended with exit code {process.wait()} and without an answer; {python} -m pip list shows what it has")
        found: dict[str, Any] = json.loads(line)
        if "error" in found:
            missing = f". Install {PEERS[name][1][0]} for {python}, or name a Python that has it by --peer-python"
            raise PumiceError(f"{name}: {found['error']}{missing if found['error'].startswith('ModuleNotFoundError') else ''}")
        return found

    try:
        yield ask
    finally:
        process.kill()
        process.wait()


def compare(
    model: Model, load: Load, peer: str, python: str | None, rounds: int, progress: Callable[[int, int], None] | None = None
) -> Compared:
    """Measures pumice and a peer in turn, `rounds` times, after one round of each that does not count. Both get the same number of threads,
    and run on the CPU.
    python: a Python that has the peer. None means this Python.
    progress: a function that is called with the number of finished rounds and of all rounds, which include the round that does not count.
    Raises PumiceError if the peer cannot do the work."""
    task = Task(model, load)
    if peer not in PEERS:
        raise ValueError(f"--against is one of {', '.join(PEERS)}, not {shown(peer)}")
    if task.encodes != (peer == "sentence-transformers"):
        raise ValueError(
            f"{peer} is compared for {'vectors' if peer == 'sentence-transformers' else 'text'}, and this model gives "
            f"{'vectors' if task.encodes else 'text'}"
        )
    if any(device["id"] != "cpu" for device in model.info["devices"]):
        raise ValueError("the peers run on the CPU: give --device cpu, so that both use the same processor")
    found = python or sys.executable
    if shutil.which(found) is None:
        raise FileNotFoundError(f"--peer-python {found} is no program")
    ours: dict[str, list[float]] = {}
    theirs: dict[str, list[float]] = {}
    with _peer(peer, str(model.info["path"]), int(model.info["threads"]), found) as ask:
        versions = ask(None)["versions"]
        for i in range(rounds + 1):
            asked = task.asked(i)
            for figures, all_figures in ((task.run(asked), ours), (ask(asked), theirs)):
                for what, figure in figures.items():
                    all_figures.setdefault(what, []).append(figure)
            if i == 0:  # the first round is the warm-up, so it does not count
                ours.clear()
                theirs.clear()
            if progress is not None:
                progress(i + 1, rounds + 1)
    return Compared(peer, tuple(versions), ours, theirs)
