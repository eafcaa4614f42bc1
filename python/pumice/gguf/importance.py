"""Importance matrices for quantize(). For each column of a model's matrices, they have the sum of the squares of the inputs that this
column got in texts. llama.cpp's llama-imatrix writes them, and people publish them beside models."""

from __future__ import annotations

import hashlib
import logging
import math
import os
import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from .. import _core
from ..common.arguments import shown, shown_path
from ..errors import ModelFormatError
from .container import Tensor
from .packing import Float32

log = logging.getLogger("pumice")

# A file has two tensors for each matrix NAME of the model (save_imatrix() in llama.cpp's tools/imatrix/imatrix.cpp). NAME.in_sum2 has, for
# each column of the matrix, the sum of the squares of the activations that were multiplied by the column. NAME.counts has the number of
# these activations. If NAME is a stack of experts, both tensors have a row for each expert.
_SUMS, _COUNTS = ".in_sum2", ".counts"
_LARGEST = 3e38  # largest accepted sum (as in pack_rows() in cpp/core/formats_pack.cpp)
_LONGEST_NAME = 256


class Importance:
    """An importance matrix, checked against the model for which it is used."""

    def __init__(self, path: str | os.PathLike[str], model: _core.ModelFile) -> None:
        """Reads the whole file once. Raises TypeError, OSError, ModelFormatError if it is no importance matrix or is damaged, and
        ValueError if it belongs to another model."""
        if not isinstance(path, (str, os.PathLike)):
            raise TypeError(f"importance must be the path of a GGUF file of llama-imatrix, not {type(path).__name__}")
        self.path = Path(path).expanduser()
        self._file = _opened(self.path)
        if self._file.get("general.type") != "imatrix":
            raise self._broken("general.type", f"is {shown(self._file.get('general.type'))}; that of an importance matrix is 'imatrix'")
        entries = {name: (kind, tuple(shape)) for name, kind, shape, _ in self._file.tensors}
        shapes = {name: tuple(shape) for name, _, shape, _ in model.tensors}
        digest = hashlib.sha256()
        self._columns: dict[str, int] = {}  # name of a tensor -> number of its columns
        # Name of a tensor -> for each matrix in it, whether the matrix's count is not 0. The list has only one element if the file has one
        # count for all matrices.
        self._counts: dict[str, list[bool]] = {}
        for name in sorted(entries):
            base = name.rpartition(".")[0]
            sums, counts = base + _SUMS, base + _COUNTS
            if sums not in entries or counts not in entries:
                raise self._broken(name, f"has no {shown(counts if sums in entries else sums)} beside it")
            if name != sums:
                continue  # NAME.counts is handled together with NAME.in_sum2, and other tensors such as NAME.in_sum are not used
            self._columns[base] = self._check_shape(base, entries[sums][1], entries[counts][1], shapes.get(base))
            for each in (sums, counts):
                values = self._numbers(each, entries[each][0])
                digest.update(f"{each} {len(values)}\n".encode("utf-8", "surrogateescape") + values.tobytes())
            self._counts[base] = [bool(value) for value in values > 0]
        self._digest = digest.hexdigest()

    def key(self) -> str:
        """Returns a hash of the numbers in the file."""
        return self._digest

    def columns(self, name: str, matrix: int) -> Float32 | None:
        """Returns the weight of each column of a matrix. `matrix` is its index in a stack of experts. Returns None if the file has no sums
        for it."""
        counts = self._counts.get(name)
        if counts is None or not counts[matrix % len(counts)]:
            return None
        # Returns the sums without dividing them by the counts, because only the ratios of the columns' weights matter.
        size = self._columns[name] * np.dtype(np.float32).itemsize
        return np.frombuffer(self._file.read(name + _SUMS, matrix * size, size), np.float32)

    def used(self, tensors: Sequence[Tensor]) -> tuple[str, ...]:
        """Returns the names of the tensors for which the file has sums of inputs. Warns if these sums are missing for some experts. Raises
        ValueError if the file has sums for none of the tensors."""
        found = tuple(tensor.name for tensor in tensors if any(self._counts.get(tensor.name, ())))
        if not found:
            raise ValueError(
                f"importance: {shown_path(self.path)} has no numbers for a tensor whose codes are searched, so it would change nothing; "
                "leave it out"
            )
        without = {name: self._counts[name].count(False) for name in found if not all(self._counts[name])}
        if without:
            log.warning(
                "%s: no input of %d matrices in %d tensors (%s, ...), whose codes are searched as without it",
                self.path, sum(without.values()), len(without), next(iter(without)),
            )  # fmt: skip
        return found

    def _numbers(self, name: str, kind: str) -> Float32:
        if kind != "F32":
            raise self._broken(name, f"has the format {kind}; that of an importance matrix is F32")
        values = np.frombuffer(self._file.read(name), np.float32)
        fine = (values >= 0) & (values <= _LARGEST)
        if not fine.all():
            at = int(np.argmin(fine))
            raise self._broken(name, f"holds {values[at]:g} at place {at}; sums of squares and counts are from 0 to {_LARGEST:g}")
        return values

    def _check_shape(self, base: str, sums: tuple[int, ...], counts: tuple[int, ...], shape: tuple[int, ...] | None) -> int:
        """Compares the shape of an entry with that of the model's tensor. Returns the number of the tensor's columns."""
        if shape is None:
            raise ValueError(f"importance: {shown_path(self.path)}: the model has no tensor {shown(base)}, so it is of another model")
        matrices, columns = math.prod(shape[:-2]), shape[-1] if shape else 1
        if math.prod(sums) != matrices * columns or sums[-1:] != shape[-1:] or math.prod(counts) not in (1, matrices):
            raise ValueError(
                f"importance: {shown_path(self.path)}: {shown(base + _SUMS)} is {list(sums)} with {math.prod(counts)} counts; the model's "
                f"tensor is {list(shape)}, which needs {matrices} x {columns} and 1 count or {matrices}; so it is of another model"
            )
        return columns

    def _broken(self, name: str, what: str) -> ModelFormatError:
        return ModelFormatError(f"importance: {shown_path(self.path)}: {shown(name)} {what}", file=os.fspath(self.path), field=name)


def _opened(path: Path) -> _core.ModelFile:
    path.stat()  # raises FileNotFoundError if there is no file; the engine would raise another OSError
    try:
        file = _core.open_file(os.fspath(path))
    except ModelFormatError:
        if not _is_old(path):
            raise
        raise ModelFormatError(
            f"importance: {shown_path(path)} has the binary form of llama-imatrix before GGUF. llama-imatrix writes it as GGUF: "
            f"llama-imatrix --in-file {shown_path(path)} -o {shown_path(path.with_suffix('.gguf'))}",
            file=os.fspath(path),
        ) from None
    if file.kind != "gguf":
        raise ModelFormatError(f"importance: {shown_path(path)} is no GGUF file of llama-imatrix", file=os.fspath(path))
    return file


def _is_old(path: Path) -> bool:
    """Returns whether a file begins as those of save_imatrix_legacy() do: the number of entries, then the length and the name of the first
    matrix."""
    with path.open("rb") as file:
        head = file.read(8 + _LONGEST_NAME)
    length = int.from_bytes(head[4:8], "little")
    return 0 < length <= _LONGEST_NAME and re.fullmatch(rb"[\w.]+\.weight", head[8 : 8 + length]) is not None
