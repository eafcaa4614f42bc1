"""ConversionPlan, which describes what convert() and quantize() write, and the paths of their files."""

from __future__ import annotations

import errno
import math
import os
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from .. import _core
from ..common.arguments import shown, shown_path
from ..common.display import count, duration, text_table
from ..common.display import size as shown_size
from .calibration import Calibration
from .job import Job


@dataclass(frozen=True)
class ConversionPlan:
    """What convert() or quantize() writes. It prints as a table with a row for each kind of tensor.

    tensors: (name, format, shape, bytes) of each tensor.
    files: the paths of the files.
    bytes: the size of all files together.
    calibrated: the names of the tensors whose codes are chosen by texts.
    tokens: number of tokens that the model computes for this choice, including those that are held back.
    memory: the maximum number of bytes that this choice takes, in addition to the pieces of other tensors.
    weighted: the names of the tensors whose codes are searched with an importance matrix.
    seconds: with dry_run, the approximate duration of the call on this machine if little else runs, without the time for disk access. Small
        pieces of the same work are timed for this. None after a call that wrote the file."""

    tensors: tuple[tuple[str, str, tuple[int, ...], int], ...]
    files: tuple[Path, ...]
    bytes: int
    calibrated: tuple[str, ...] = ()
    tokens: int = 0
    memory: int = 0
    weighted: tuple[str, ...] = ()
    seconds: float | None = None

    def __str__(self) -> str:
        rows: dict[tuple[str, str, str], tuple[int, int, int]] = {}
        by = dict.fromkeys(self.calibrated, "texts") | dict.fromkeys(self.weighted, "importance")
        for name, kind, shape, used in self.tensors:
            layerless = ".".join(part if not part.isdigit() else "*" for part in name.split("."))
            key = layerless, kind, by.get(name, "")
            number, values, bytes_ = rows.get(key, (0, 0, 0))
            rows[key] = (number + 1, values + int(np.prod(shape, dtype=np.int64)), bytes_ + used)
        lines = [(name, kind, how, n, count(values), shown_size(used)) for (name, kind, how), (n, values, used) in rows.items()]
        headers = ["tensor", "format", "codes by", "tensors", "weights", "size"]
        if not by:
            headers.remove("codes by")
        cells = [line if by else (*line[:2], *line[3:]) for line in lines]
        table = text_table(headers, cells, right=["tensors", "weights", "size"])
        names = ", ".join(shown_path(path) for path in self.files[:3]) + (", ..." if len(self.files) > 3 else "")
        text = f"{table}\n{names}: {shown_size(self.bytes)}, {len(self.tensors)} tensors, {self.bits:.2f} bits per weight"
        if self.weighted:
            text += f"\n{len(self.weighted)} of them by an importance matrix"
        if self.calibrated:
            memory = shown_size(self.memory)
            text += f"\n{len(self.calibrated)} of them by {self.tokens} tokens of texts, which takes up to {memory} of memory"
        if self.seconds is not None:
            text += f"\nabout {duration(self.seconds)} on {_core.build_info()['threads']} threads, beside the time of the disk"
        return text

    @property
    def bits(self) -> float:
        """Number of bits per weight, on average over all tensors."""
        weights = sum(math.prod(shape) for _, _, shape, _ in self.tensors)
        return 8 * sum(used for _, _, _, used in self.tensors) / max(weights, 1)


def plan_of(
    job: Job, calibration: Calibration | None = None, weighted: tuple[str, ...] = (), seconds: float | None = None
) -> ConversionPlan:
    """Returns the plan that describes what a job writes."""
    plan = ConversionPlan(
        tuple((tensor.name, tensor.format, tensor.shape, tensor.bytes) for tensor in job.tensors),
        tuple(file.path for file in job.files),
        job.bytes,
        weighted=weighted,
        seconds=seconds,
    )
    if calibration is None:
        return plan
    return replace(plan, calibrated=calibration.tensors, tokens=calibration.windows.tokens, memory=calibration.memory)


def target_path(output: str | os.PathLike[str]) -> Path:
    """Returns the path of the file to be written. Raises ValueError or OSError if no file can be written there."""
    path = Path(output)
    if path.is_symlink():  # the file to which the link leads is replaced, and not the link
        try:
            path = path.resolve()
        except RuntimeError:  # Python up to 3.12 raises this for a loop of links
            raise OSError(errno.ELOOP, "the link leads back to itself; remove it, or give another name", str(path)) from None
    if path.suffix != ".gguf":
        raise ValueError(f"output {shown(os.fspath(output))} must end in .gguf")
    if path.parent.exists() and not path.parent.is_dir():
        raise NotADirectoryError(f"{shown_path(path.parent)}, in which the output would be, is no folder")
    if not path.parent.is_dir():
        raise FileNotFoundError(f"the folder {shown_path(path.parent)} of the output does not exist")
    return path
