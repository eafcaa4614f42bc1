"""The weights of a file that is written: the format of each tensor, and the pieces in which its bytes are made, so that only few pieces are
in memory."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from .. import _core
from ..errors import ModelFormatError, UnsupportedModelError
from .changes import Array, moves_columns, part_of
from .container import IDS, Tensor
from .packing import PLAIN, Float32, fits, pack_rows, q5_0_of_a4, unpack_rows

Choose = Callable[[str, tuple[int, ...], str], str]  # (name, shape, format in the source) -> format to write
Columns = Callable[[str, int], Float32 | None]  # (name, index of a matrix in it) -> the argument `columns` of pack_rows()
PIECE = 1 << 18  # number of values of a piece; packing so many takes less than 0.1 s, so that Ctrl-C takes effect soon
_DTYPES = {"F32": np.float32, "F16": np.uint16, "BF16": np.uint16}
# Matches tensors of the other parts of a multimodal model, which convert() leaves out.
_OTHER_PARTS = re.compile(
    r"(model\.)?(vision_tower|vision_model|visual|multi_modal_projector|audio_tower|embed_vision|embed_audio|vision_embedder)\."
)
# Matches tensors that convert() leaves out, even if GGUF files of the family have a name for them.
_LEFT_OUT = re.compile(r"(^|\.)pooler\.|\.experts\.bias$")
_EXPERT = re.compile(r"(?<=\.experts)\.(\d+)(?=\.)")


@dataclass(frozen=True)
class Part:
    """Some bytes of a tensor that is written."""

    tensor: int  # index in Unit.tensors
    offset: int
    data: bytes


@dataclass(frozen=True)
class Unit:
    """Tensors that are made from the same tensors of the source, in pieces that do not depend on each other."""

    tensors: tuple[Tensor, ...]
    pieces: int
    make: Callable[[int], Iterator[Part]]  # yields the parts of the piece with this number
    copied: bool = False  # whether all bytes are those of the source, perhaps in another order


@dataclass(frozen=True)
class _Source:
    """A tensor of the folder, or the matrices of a layer's experts, which become one tensor. shape: that of the tensor, or of one expert's
    matrix."""

    name: str
    files: tuple[str, ...]
    format: str
    shape: tuple[int, ...]

    @property
    def stacked(self) -> bool:
        return len(self.shape) == 3 and bool(re.search(r"experts?\b", self.name)) and "mlp.w" not in self.name

    @property
    def experts(self) -> bool:
        return self.files != (self.name,)


class _Tensors:
    """The tensors of a folder. Tensors in A4, a format that GGUF files do not have, are Q5_0 here, which holds the same weights."""

    def __init__(self, file: _core.ModelFile) -> None:
        self.path = file.path
        self._file = file
        self._a4 = {name for name, kind, _, _ in file.tensors if kind == "A4"}
        self.tensors = [(name, "Q5_0" if name in self._a4 else kind, shape) for name, kind, shape, _ in file.tensors]

    def read(self, name: str, offset: int = 0, count: int | None = None) -> bytes:
        """Returns `count` bytes of a tensor from `offset` on (None: all bytes after `offset`). For A4, the bytes must be whole rows."""
        if name not in self._a4:
            return self._file.read(name, offset, count)
        theirs, ours = _bytes_of("A4", 128), _bytes_of("Q5_0", 128)
        return q5_0_of_a4(self._file.read(name, offset // ours * theirs, None if count is None else count // ours * theirs))


def _sources(file: _Tensors) -> list[_Source]:
    """Returns the tensors of a folder. The matrices experts.0.w1, experts.1.w1, ... are one _Source."""
    found: dict[str, _Source] = {}
    for name, kind, shape in sorted(file.tensors, key=lambda tensor: _by_numbers(tensor[0])):
        match = _EXPERT.search(name)
        base = name if match is None else name[: match.start()] + name[match.end() :]
        known = found.get(base)
        if known is None:
            found[base] = _Source(base, (name,), kind, tuple(shape))
        elif (known.shape, len(known.files)) != (tuple(shape), int(match[1]) if match else 0):
            raise ModelFormatError(
                f"{file.path}: {name} has the shape {shape}; that of expert 0 is {known.shape}", file=file.path, field=name
            )
        else:
            kind = kind if kind == known.format else "F32"  # F32 if the experts have different formats
            found[base] = _Source(base, (*known.files, name), kind, known.shape)
    return list(found.values())


def _by_numbers(name: str) -> list[Any]:
    """Returns a key that sorts names by the numbers in them, so that layer 2 comes before layer 10."""
    return [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", name)]


class Folder:
    """The tensors of a safetensors folder, converted to their GGUF form."""

    def __init__(self, file: _core.ModelFile, classifies: bool, choose: Choose) -> None:
        self._file, self._classifies, self._choose = _Tensors(file), classifies, choose
        self._parts = _core.gguf_parts(file)
        self._formats = {name: kind for name, kind, _ in self._file.tensors}

    @property
    def pairs(self) -> bool:
        """Whether the GGUF form reorders the rows of the weights of q and k, because its rope rotates columns (2 j, 2 j + 1) as a pair."""
        return any(part["pairs"] for parts in self._parts.values() for part in parts)

    def units(self) -> Iterator[Unit]:
        """Yields the units of all tensors that the GGUF form has. Raises ModelFormatError for a tensor that has no name in GGUF, and
        UnsupportedModelError for a tensor of integers."""
        for source in _sources(self._file):
            other = ".act_fn." in source.name or source.name.endswith((".inv_freq", ".masked_bias", "position_ids"))
            if not other and not _OTHER_PARTS.match(source.name):
                unit = self._unit(source)
                if unit.tensors:
                    yield unit
                elif self._matters(source):
                    raise UnsupportedModelError(f"{self._file.path}: a GGUF file of this family has no place for {source.name}")

    def _matters(self, source: _Source) -> bool:
        """Returns whether a tensor that the GGUF form leaves out changes results: the dense layer of a classifier, or a bias that is not
        0."""
        if source.name.endswith(".experts.bias"):
            return bool(self._read(source.name, source.shape, raw=False).any())
        return "pooler." in source.name and self._classifies

    def _changed(self, source: _Source, values: Array) -> dict[str, Array]:
        """Returns the GGUF tensors, by name, that a tensor of the folder (or one matrix of its stack) becomes."""
        if _LEFT_OUT.search(source.name):
            return {}
        try:
            if source.files[0] not in self._parts:
                raise ValueError(f"{source.name} has no name in GGUF")
            return {part["name"]: part_of(values, part) for part in self._parts[source.files[0]]}
        except (ValueError, IndexError) as error:
            raise ModelFormatError(
                f"{self._file.path}: the tensor {source.name} {list(values.shape)} has no GGUF form: {error}",
                file=self._file.path,
                field=source.name,
            ) from None

    def _unit(self, source: _Source) -> Unit:
        if source.format not in _core.build_info()["formats"]:
            raise UnsupportedModelError(
                f"{self._file.path}: {source.name} is {source.format}, which is no format of weights, and config.json does not say how "
                "they are packed"
            )
        one = (1, *source.shape) if source.experts else (1, *source.shape[1:]) if source.stacked else source.shape
        count = len(source.files) if source.experts else source.shape[0] if source.stacked else 1
        # An array of zeros that takes no memory. It is converted to find the names and shapes of the tensors that the source becomes.
        given = np.broadcast_to(np.float32(0), one)
        parts = self._changed(source, given)
        tensors = []
        for name, values in parts.items():
            shape = (values.shape[0] * count, *values.shape[1:]) if source.experts or source.stacked else values.shape
            tensors.append(Tensor(name, self._choose(name, shape, source.format), shape))
        same = len(parts) == 1 and next(iter(parts.values())) is given
        raw = self._keeps_bytes(source, one, tensors, count)
        if same and not (source.experts or source.stacked) and len(source.shape) == 2:
            return self._by_rows(source, tensors[0], raw)
        return self._whole(source, tuple(tensors), one, count, raw)

    def _keeps_bytes(self, source: _Source, shape: tuple[int, ...], tensors: list[Tensor], count: int) -> bool:
        """Returns whether all tensors have the source's format and its values are only moved. If so, the bytes can be moved without being
        unpacked."""
        if any(tensor.format != source.format for tensor in tensors) or any(self._formats[name] != source.format for name in source.files):
            return False
        if source.format not in PLAIN and any(map(moves_columns, self._parts[source.files[0]])):
            return False
        try:
            found = self._changed(source, np.broadcast_to(self._raw_dtype(source.format)(0), self._raw_shape(source.format, shape)))
        except ModelFormatError:
            return False  # the tensor cannot be converted while its rows are packed, because packed rows have another shape
        return all(
            values.dtype == self._raw_dtype(source.format) and values.nbytes * count == tensor.bytes
            for values, tensor in zip(found.values(), tensors, strict=True)
        )

    @staticmethod
    def _raw_dtype(format: str) -> Any:
        return _DTYPES.get(format, np.uint8)

    @staticmethod
    def _raw_shape(format: str, shape: tuple[int, ...]) -> tuple[int, ...]:
        return shape if format in PLAIN else (*shape[:-1], int(_core.ops.row_bytes(format, shape[-1])))

    def _read(self, name: str, shape: tuple[int, ...], raw: bool, offset: int = 0, count: int | None = None) -> Array:
        """Returns values of a tensor from byte `offset` on: in the form of the file if `raw`, otherwise as floats."""
        data, format = self._file.read(name, offset, count), self._formats[name]
        if format not in PLAIN and format not in _core.build_info()["formats"]:
            raise ModelFormatError(f"{self._file.path}: {name} is {format}, which has no GGUF form", file=self._file.path, field=name)
        if raw:
            return np.frombuffer(data, self._raw_dtype(format)).reshape(self._raw_shape(format, shape))
        return unpack_rows(format, data, shape[-1] if shape else 1).reshape(shape)

    def _bytes(self, tensor: Tensor, values: Array, raw: bool) -> bytes:
        return np.ascontiguousarray(values).tobytes() if raw else pack_rows(tensor.format, _floats(values), tensor.name)

    def _by_rows(self, source: _Source, tensor: Tensor, raw: bool) -> Unit:
        rows, columns = source.shape
        step = max(1, PIECE // columns)
        width = _bytes_of(source.format, columns)

        def make(piece: int) -> Iterator[Part]:
            first = piece * step
            count = min(step, rows - first)
            values = self._read(source.name, (count, columns), raw, first * width, count * width)
            yield Part(0, first * tensor.row_bytes, self._bytes(tensor, values, raw))

        return Unit((tensor,), -(-rows // step), make, raw)

    def _whole(self, source: _Source, tensors: tuple[Tensor, ...], one: tuple[int, ...], count: int, raw: bool) -> Unit:
        def make(piece: int) -> Iterator[Part]:
            if source.experts:
                values = self._read(source.files[piece], one, raw)
            elif source.stacked:
                width = _bytes_of(source.format, one[-1]) * int(np.prod(one[:-1]))
                values = self._read(source.name, one, raw, piece * width, width)
            else:
                values = self._read(source.name, one, raw)
            for index, (tensor, changed) in enumerate(zip(tensors, self._changed(source, values).values(), strict=True)):
                yield Part(index, piece * (tensor.bytes // count), self._bytes(tensor, changed, raw))

        return Unit(tensors, count, make, raw)


def _floats(values: Array) -> npt.NDArray[np.float32]:
    return np.ascontiguousarray(values, np.float32)


def _bytes_of(format: str, columns: int) -> int:
    return int(_core.ops.row_bytes(format, columns))


def small_tensors(found: dict[str, Array]) -> Iterator[Unit]:
    """Yields a unit for each tensor that is not made from a tensor of the folder."""
    for name, values in found.items():
        data = _floats(values).tobytes()

        def make(piece: int, data: bytes = data) -> Iterator[Part]:
            yield Part(0, 0, data)

        yield Unit((Tensor(name, "F32", values.shape),), 1, make, True)


def matrices(found: Mapping[str, tuple[_core.ModelFile, str]], choose: Choose) -> Iterator[Unit]:
    """Yields a unit for each matrix that lies in another file than the model's. found: name in GGUF -> (file, name in this file)."""
    for name, (file, source) in found.items():
        _, kind, shape, size = next(tensor for tensor in file.tensors if tensor[0] == source)
        yield _by_pieces(file, source, kind, Tensor(name, choose(name, tuple(shape), kind), tuple(shape)), size)


def _alike(name: str, matrix: int) -> None:
    """Returns None for every matrix, so that the errors of all columns count the same."""


def _packed(tensor: Tensor, first: int, rows: Float32, columns: Columns) -> bytes:
    """Returns the bytes of some rows of a tensor, from row `first` on. Each row is packed with the column weights of its matrix."""
    # `height` is the number of rows of each matrix. If there is only one matrix, any number that is not less than this will do.
    height = tensor.shape[-2] if len(tensor.shape) > 2 else tensor.values
    found, at = [], 0
    while at < len(rows):
        matrix, row = divmod(first + at, height)
        count = min(len(rows) - at, height - row)
        found.append(pack_rows(tensor.format, rows[at : at + count], tensor.name, columns(tensor.name, matrix)))
        at += count
    return b"".join(found)


def _by_pieces(file: _core.ModelFile, source: str, kind: str, tensor: Tensor, size: int, columns: Columns = _alike) -> Unit:
    """Returns the unit of a tensor that has the same rows as a file's tensor, which has the format `kind` and `size` bytes."""
    rows = tensor.values // tensor.shape[-1] if tensor.shape else 1
    width, step = size // max(rows, 1), max(1, PIECE // max(tensor.shape[-1], 1) if tensor.shape else 1)

    def make(piece: int) -> Iterator[Part]:
        first = piece * step
        count = min(step, rows - first)
        data = file.read(source, first * width, count * width)
        if tensor.format != kind:
            data = _packed(tensor, first, unpack_rows(kind, data, tensor.shape[-1] if tensor.shape else 1), columns)
        yield Part(0, first * tensor.row_bytes, data)

    return Unit((tensor,), -(-rows // step), make, tensor.format == kind)


def file_units(file: _core.ModelFile, choose: Choose, columns: Columns = _alike) -> Iterator[Unit]:
    """Yields a unit for each tensor of a GGUF file. A tensor that keeps its format keeps its bytes. If a format is loaded as another one
    (IQ2_XXS), the unit has that other format, which holds the same weights.  columns: returns the column weights for the search of codes.

    Raises UnsupportedModelError for a tensor that holds no weights."""
    for name, _, shape, size in file.tensors:
        kind = file.format(name)
        yield _by_pieces(file, name, kind, Tensor(name, choose(name, tuple(shape), kind), tuple(shape)), size, columns)


def searched(units: Sequence[Unit]) -> list[Tensor]:
    """Returns the tensors whose codes are searched. These are all tensors in quantized formats, except those in Q8_0, which is rounded as
    llama.cpp rounds it, and those that keep their bytes."""
    formats = {*_core.build_info()["pack_formats"]} - {"Q8_0"}
    return [tensor for unit in units if not unit.copied for tensor in unit.tensors if tensor.format in formats]


# Matches the names of matrices that llama.cpp only accepts as F32, by the end of the name in GGUF (ModelBase.prepare_tensors() in
# llama.cpp's conversion/base.py).
ALWAYS_F32 = re.compile(
    r"(_norm|ffn_gate_inp(_shexp)?|position_embd|token_types|ssm_conv1d|shortconv\.conv|attn_rel_b)\.weight$|(?<!\.weight)$"
)


def plain_choice(to: str) -> Choose:
    """Returns a function that chooses formats as llama.cpp's converter does for --outtype `to`: matrices get this format, vectors and some
    small matrices F32. A matrix whose rows are not whole blocks gets F16. "auto" keeps the source's format, or uses BF16 if GGUF does not
    have it."""

    def choose(name: str, shape: tuple[int, ...], source: str) -> str:
        if len(shape) <= 1 or ALWAYS_F32.search(name):
            return "F32"
        wanted = (source if source in IDS else "BF16") if to == "auto" else to
        if wanted in PLAIN or fits(wanted, shape[-1]):
            return wanted
        return "F16"

    return choose
