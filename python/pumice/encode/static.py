"""Embedders without layers: tables of vectors (StaticEmbedding of sentence-transformers, model2vec), where a text's vector is the mean of
the table rows of its tokens, and tables of weights (SparseStaticEmbedding), where a text's sparse vector has the weights of its tokens."""

from __future__ import annotations

import contextlib
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from .. import _core
from ..common.address_space import check_memory
from ..common.arguments import shown, shown_path
from ..common.side_files import field as json_field
from ..common.side_files import read_object
from ..errors import ModelFormatError, UnsupportedModelError, UnsupportedTaskError
from .engine import Float32, Int32, Int64, Piece

if TYPE_CHECKING:
    from ..tokens.tokenizers import Tokenizer

TEXTS = 256  # number of texts that are summed together; 256 sums of 256 columns take 256 KiB and fit into the processor's cache
STEPS = 2048  # the first STEPS tokens of a text are added one by one, and the rest in blocks of STEPS tokens
N_CTX = 2**31 - 1  # no limit in practice, because models without positions accept texts of any length
_DTYPES = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "I8": "|i1", "U8": "|u1", "I32": "<i4", "I64": "<i8"}


def weights_file(folder: Path) -> Path:
    """Returns the path of the model.safetensors in a folder. If there is none, raises ModelFormatError. Its message names a pickle of
    weights if the folder has one."""
    if folder.is_file():
        return folder
    file = folder / "model.safetensors"
    if file.exists():
        return file
    pickle = folder / "pytorch_model.bin"
    why = f"the weights are a pickle ({pickle.name}), which can run any code; convert them" if pickle.exists() else "complete the download"
    raise ModelFormatError(f"{shown_path(file)} is not there: {why}", file=str(file))


class ListedWeights:
    """The JSON file of a SparseStaticEmbedding that contains {token: weight} instead of tensors (idf.json). This class has the attributes
    of `_core.ModelFile` that a model without layers needs."""

    kind = "safetensors"
    architecture = "static"
    tensors: tuple[Any, ...] = ()

    def __init__(self, source: Path, folder: Path) -> None:
        """source: the JSON file.  folder: the module's folder, which has the tokenizer. The attribute `path` is a path in this folder, even
        if `source` is in another folder."""
        self.source, self.path, self.size = source, str(folder / source.name), source.stat().st_size

    def get(self, key: str) -> None:
        """Returns None, because the file has no metadata."""


def open_static(folder: Path, sparse: bool) -> Any:
    """Opens the file of a table: a `_core.ModelFile`, or ListedWeights if `sparse` is true and the module's config.json names a JSON file.
    The JSON file is in the module's folder, or in the folder that contains it."""
    if sparse and folder.is_dir():
        named = json_field(read_object(folder / "config.json"), "path", str, folder / "config.json")
        if named is not None and named.endswith(".json"):
            places = [place / Path(named).name for place in (folder, folder.parent)]
            found = next((place for place in places if place.is_file()), None)
            if found is None:
                raise ModelFormatError(
                    f"{folder / 'config.json'} names {shown(named)}, which is neither in this folder nor beside it: complete the download",
                    file=str(folder / "config.json"),
                    field="path",
                )
            return ListedWeights(found, folder)
    return _core.open_weights(str(weights_file(folder)))


class Table:
    """The table of vectors, with one row per token id. It is `embedding.weight`, or model2vec's `embeddings[mapping] * weights`. The
    tensors `mapping` and `weights` may be absent."""

    def __init__(self, file: _core.ModelFile) -> None:
        self._file = file
        self._about = {name: (kind, shape) for name, kind, shape, _ in file.tensors}
        name = "embedding.weight" if "embedding.weight" in self._about else "embeddings"
        check_memory(4 * int(np.prod(self._shape(name, 2), dtype=object)), f"the table of {shown_path(file.path)}")
        rows = self._read(name, 2).astype(np.float32)
        if name == "embeddings":
            rows = self._per_token(rows)
        wrong = np.flatnonzero(~np.isfinite(rows).all(axis=1))
        if wrong.size:
            raise ModelFormatError(
                f"{shown_path(file.path)}: row {int(wrong[0])} of {name} holds a NaN or an infinity", file=file.path, field=name
            )
        self.rows: Float32 = np.ascontiguousarray(rows, np.float32)

    def _per_token(self, rows: Float32) -> Float32:
        if "mapping" in self._about:
            mapping = self._read("mapping", 1)
            if mapping.dtype.kind not in "iu" or (mapping.size and not (mapping.min() >= 0 and mapping.max() < len(rows))):
                self._wrong("mapping", f"names rows outside of the {len(rows)} in embeddings")
            rows = rows[mapping]
        if "weights" in self._about:
            weights = self._read("weights", 1)
            if len(weights) != len(rows):
                self._wrong("weights", f"has {len(weights)} values for {len(rows)} tokens")
            rows = rows * weights.astype(np.float32)[:, None]
        return rows

    def _shape(self, name: str, dims: int) -> tuple[int, ...]:
        if name not in self._about:
            found = ", ".join(list(self._about)[:5])
            self._wrong("embedding.weight", f"is missing, and so is embeddings (of model2vec); the file has {shown(found)}")
        shape = self._about[name][1]
        if len(shape) != dims or 0 in shape:
            self._wrong(name, f"has shape {list(shape)}; {dims} dimensions without a 0 are needed")
        return shape

    def _read(self, name: str, dims: int) -> npt.NDArray[Any]:
        shape, kind = self._shape(name, dims), self._about[name][0]
        if kind == "BF16":
            upper = np.frombuffer(self._file.read(name), "<u2").astype(np.uint32) << np.uint32(16)
            return upper.view(np.float32).reshape(shape)
        if kind not in _DTYPES:
            raise UnsupportedModelError(
                f"{shown_path(self._file.path)}: {name} is {kind}; this version reads {', '.join([*_DTYPES, 'BF16'])}"
            )
        return np.frombuffer(self._file.read(name), _DTYPES[kind]).reshape(shape)

    def _wrong(self, field: str, what: str) -> None:
        raise ModelFormatError(f"{shown_path(self._file.path)}: {field} {what}", file=self._file.path, field=field)


def token_weights(file: _core.ModelFile) -> Float32:
    """Returns the weight of each token id: the tensor `weight` of a SparseStaticEmbedding. Raises ModelFormatError."""
    about = {name: (kind, shape) for name, kind, shape, _ in file.tensors}
    kind, shape = about.get("weight", ("", ()))
    what = ""
    if len(shape) != 1 or 0 in shape:
        what = f"has shape {list(shape)}; one dimension without a 0 is needed" if "weight" in about else "is missing"
    elif kind not in ("F64", "F32", "F16"):
        raise UnsupportedModelError(f"{shown_path(file.path)}: weight is {kind}; this version reads F64, F32 and F16")
    if what:
        raise ModelFormatError(f"{shown_path(file.path)}: weight {what}", file=file.path, field="weight")
    check_memory(8 * shape[0], f"the weights of {shown_path(file.path)}")
    return _finite_weights(np.frombuffer(file.read("weight"), _DTYPES[kind]).astype(np.float32), file.path)


def listed_weights(path: Path, tokenizer: Tokenizer) -> Float32:
    """Returns the weight of each token id from a JSON file of {token: weight} (idf.json). Tokens that the file does not name have the
    weight 0. If the tokenizer lacks a token of the file, its weight goes to the unknown token, as in sentence-transformers. Raises
    ModelFormatError."""
    weights = np.zeros(tokenizer.vocab_size, np.float32)
    for token, weight in read_object(path).items():
        if isinstance(weight, bool) or not isinstance(weight, (int, float)):
            raise ModelFormatError(
                f"{shown_path(path)}: the weight of {shown(token)} is {shown(weight)}; a number is needed", file=str(path), field=token
            )
        index = tokenizer.backend.token_to_id(token)
        index = tokenizer.unknown_id if index is None else index
        if index is not None:
            weights[index] = weight
    return _finite_weights(weights, str(path))


def _finite_weights(weights: Float32, path: str) -> Float32:
    wrong = np.flatnonzero(~np.isfinite(weights))
    if wrong.size:
        raise ModelFormatError(
            f"{shown_path(path)}: the weight of token {int(wrong[0])} is {weights[wrong[0]]}, not a finite number", file=path
        )
    return weights


class Counts:
    """Counts what a StaticEngine computes. Any number of threads may use it."""

    _all: weakref.WeakSet[Counts] = weakref.WeakSet()

    def __init__(self) -> None:
        self._texts = self._tokens = self._runs = 0
        # Number of seconds in which at least one call was running. If a call is running now, the time since `_since` is not included.
        self._busy = 0.0
        self.forget()
        Counts._all.add(self)

    def forget(self) -> None:
        """Resets the lock and forgets running calls in the child of a fork, because they belong to threads of the parent process."""
        self._lock = threading.Lock()
        self._active, self._since = 0, 0.0

    @classmethod
    def forget_all(cls) -> None:
        """Calls forget() of all objects of this class. Called in the child of a fork."""
        for each in list(cls._all):
            each.forget()

    @contextlib.contextmanager
    def run(self, texts: int, tokens: int) -> Iterator[None]:
        """Counts a run of this size, unless it raises. Its duration counts in any case."""
        done = False
        with self._lock:
            if self._active == 0:
                self._since = time.monotonic()
            self._active += 1
        try:
            yield
            done = True
        finally:
            with self._lock:
                self._active -= 1
                if self._active == 0:
                    self._busy += time.monotonic() - self._since
                if done:
                    self._texts, self._tokens, self._runs = self._texts + texts, self._tokens + tokens, self._runs + 1

    def stats(self) -> dict[str, Any]:
        """Returns the counts, in the form of _core.Model.encode_stats()."""
        with self._lock:
            busy = self._busy + (time.monotonic() - self._since if self._active else 0.0)
            return {"waiting": 0, "texts": self._texts, "tokens": self._tokens, "runs": self._runs, "busy_seconds": busy}


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=Counts.forget_all)


class StaticEngine:
    """The Engine of a table of vectors. It adds up a text's table rows in the order of the tokens, in float32, so that the bits of the
    result do not depend on the batch."""

    def __init__(self, file: _core.ModelFile) -> None:
        self._start(file, Table(file).rows)

    def _start(self, file: Any, rows: Float32) -> None:
        self._table: Float32 | None = rows  # None after close()
        self._counts = Counts()
        count, width = self._rows().shape
        self._device = next(device for device in _core.devices() if device["id"] == "cpu")
        self.info: dict[str, Any] = {
            "architecture": "static",
            "tasks": ["encode"],
            "parameters": count * width,
            "assistant_parameters": 0,
            "layers": 0,
            "hidden_size": width,
            "vector_size": width,
            "vocab_size": count,
            "heads": 0,
            "kv_heads": 0,
            "head_dim": 0,
            "n_ctx": N_CTX,
            "n_ctx_model": N_CTX,
            "formats": {"F32": self._rows().nbytes},
            "file_bytes": file.size,
            "labels": 0,
            "pooling": "mean",
            "isa": _core.build_info()["isa"],
            "threads": 1,
            "device": "cpu",
            "devices": [{"id": "cpu", "name": self._device["name"], "layers": 0}],
            "gpu_layers": 0,
            "gpu_experts": 0,
        }

    def encode(
        self,
        ids: Int32,
        offsets: Int64,
        types: Int32 | None,
        out: Float32,
        normalize: bool,
        token_budget: int,
        progress: Callable[[int], None] | None = None,
        prompt: int = 0,
        cancel: _core.Cancel | None = None,
    ) -> None:
        """Like _core.Model.encode(). The vector of a text without tokens is a row of zeros."""
        table = self._rows(ids)
        lengths, width = np.diff(offsets), out.shape[1]
        order = np.argsort(-lengths, kind="stable")  # so that texts of similar length are summed together
        for first in range(0, len(order), TEXTS):
            if cancel is not None:
                cancel.check()
                cancel.begin()
            texts = order[first : first + TEXTS]
            with self._counts.run(len(texts), int(lengths[texts].sum())):
                out[texts] = _means(table, ids, offsets[texts], lengths[texts])[:, :width]
        if normalize:
            norms = np.sqrt(np.einsum("ij,ij->i", out, out, dtype=np.float64))
            out /= np.where(norms > 0, norms, 1).astype(np.float32)[:, None]
        if progress is not None:
            progress(len(lengths))

    def encode_several(self, calls: Sequence[Piece], cancels: Sequence[_core.Cancel]) -> list[bool]:
        """Like _core.Model.encode_several()."""
        done = []
        for call, cancel in zip(calls, cancels, strict=True):
            try:
                self.encode(call.ids, call.offsets, call.types, call.out, call.normalize, 0, prompt=call.prompt, cancel=cancel)
            except (KeyboardInterrupt, ValueError):  # the call was cancelled, or the model is closed
                done.append(False)
            else:
                done.append(True)
        return done

    def encode_tokens(
        self, ids: Int32, offsets: Int64, types: Int32 | None, unseen: Int32 | None = None, cancel: _core.Cancel | None = None
    ) -> Float32:
        """Like _core.Model.encode_tokens()."""
        if cancel is not None:
            cancel.check()
            cancel.begin()
        with self._counts.run(len(offsets) - 1, len(ids)):
            return self._rows(ids)[ids]

    def encode_sparse(
        self,
        ids: Int32,
        offsets: Int64,
        types: Int32 | None,
        most: int = 0,
        logs: int = 1,
        token_budget: int = 0,
        progress: Callable[[int], None] | None = None,
        cancel: _core.Cancel | None = None,
    ) -> tuple[Int32, Float32, Int64]:
        """Raises UnsupportedTaskError, because a table of vectors has no weights of tokens. SparseStaticEngine has them."""
        raise UnsupportedTaskError("a table of vectors (static) has no sparse vectors")

    def classify(self, ids: Int32, offsets: Int64, types: Int32 | None, cancel: _core.Cancel | None = None) -> Float32:
        """Raises UnsupportedTaskError, because a table of vectors has no classifier head."""
        raise UnsupportedTaskError("a table of vectors (static) has no classifier head")

    def label_tokens(self, ids: Int32, offsets: Int64, types: Int32 | None, cancel: _core.Cancel | None = None) -> Float32:
        """Raises UnsupportedTaskError, because a table of vectors has no classifier head."""
        raise UnsupportedTaskError("a table of vectors (static) has no classifier head")

    def _rows(self, ids: Int32 | None = None) -> Float32:
        """Returns the table. Raises ValueError if an id has no row, or if the model is closed."""
        table = self._table
        if table is None:
            raise ValueError("this model is closed; load it again")
        if ids is not None and ids.size and int(ids.max()) >= len(table):
            raise ValueError(f"token id {int(ids.max())}: the table has rows for 0 to {len(table) - 1}; the tokenizer is another model's")
        return table

    def placement(self) -> dict[str, Any]:
        """Like _core.Model.placement(). The result has only one row, for the table, which is on the CPU."""
        return placement(self._rows().nbytes, self._device)

    def memory(self) -> dict[str, int]:
        """Like _core.Model.memory(). "weights" is the number of bytes of the table, and "scratch" is an upper bound of the bytes of the
        sums and rows in one run."""
        table = self._rows()
        return {"weights": table.nbytes, "kv_budget": 0, "kv_reserved": 0, "kv_used": 0, "scratch": 8 * STEPS * table.shape[1]}

    def cache_stats(self) -> dict[str, int]:
        """Like _core.Model.cache_stats(). All counts are 0, because nothing is cached."""
        pages = ("prompt_tokens", "reused_tokens", "pages_in_use", "pages_cached", "pages_evicted", "states_in_use", "states_cached")
        return dict.fromkeys((*pages, "expert_hits", "expert_reads"), 0)

    def encode_stats(self) -> dict[str, Any]:
        """Like _core.Model.encode_stats(). "waiting" is 0, because calls run side by side. A run computes up to 256 texts."""
        self._rows()
        return self._counts.stats()

    def close(self) -> None:
        """Frees the table's memory. Later calls raise ValueError."""
        self._table = None


class SparseStaticEngine(StaticEngine):
    """The Engine of a table of weights, one for each token. The sparse vector of a text has the weight of each token that occurs in the
    text, no matter how often."""

    def __init__(self, file: Any, weights: Float32) -> None:
        """file: the file from which the weights come, a `_core.ModelFile` or ListedWeights."""
        self._start(file, weights[:, None])
        self.info |= {"tasks": ["encode", "sparse"], "hidden_size": len(weights), "vector_size": len(weights), "pooling": "sparse"}

    def encode_sparse(
        self,
        ids: Int32,
        offsets: Int64,
        types: Int32 | None,
        most: int = 0,
        logs: int = 1,
        token_budget: int = 0,
        progress: Callable[[int], None] | None = None,
        cancel: _core.Cancel | None = None,
    ) -> tuple[Int32, Float32, Int64]:
        """Like _core.Model.encode_sparse(). `logs` and `token_budget` have no effect."""
        weights = self._rows(ids)[:, 0]
        columns: list[Int32] = []
        for first in range(0, len(offsets) - 1, TEXTS):
            if cancel is not None:
                cancel.check()
                cancel.begin()
            ends = offsets[first : first + TEXTS + 1].tolist()
            with self._counts.run(len(ends) - 1, ends[-1] - ends[0]):
                columns.extend(self._columns(weights, np.unique(ids[a:b]), most) for a, b in zip(ends[:-1], ends[1:], strict=True))
        if progress is not None:
            progress(len(offsets) - 1)
        indices = np.concatenate([np.empty(0, np.int32), *columns])
        return indices, weights[indices], np.cumsum([0, *map(len, columns)], dtype=np.int64)

    @staticmethod
    def _columns(weights: Float32, ids: Int32, most: int) -> Int32:
        """Returns the columns of a sparse vector. They are those of the ascending `ids` whose weight is not 0. If `most` is not 0, only the
        `most` ids with the largest absolute weights are returned."""
        ids = ids[weights[ids] != 0]
        if most and len(ids) > most:
            ids = np.sort(ids[np.argsort(-np.abs(weights[ids]), kind="stable")[:most]])
        return ids

    def encode(
        self,
        ids: Int32,
        offsets: Int64,
        types: Int32 | None,
        out: Float32,
        normalize: bool,
        token_budget: int,
        progress: Callable[[int], None] | None = None,
        prompt: int = 0,
        cancel: _core.Cancel | None = None,
    ) -> None:
        """Raises UnsupportedTaskError, because a table of weights has only sparse vectors."""
        raise UnsupportedTaskError('a table of weights (SparseStaticEmbedding) gives sparse vectors: output="sparse"')

    def encode_tokens(
        self, ids: Int32, offsets: Int64, types: Int32 | None, unseen: Int32 | None = None, cancel: _core.Cancel | None = None
    ) -> Float32:
        """Raises UnsupportedTaskError, because a table of weights has only sparse vectors."""
        raise UnsupportedTaskError('a table of weights (SparseStaticEmbedding) gives sparse vectors: output="sparse"')


def _means(table: Float32, ids: Int32, starts: Int64, lengths: Int64) -> Float32:
    """Returns the mean of each text's table rows. The texts must be sorted from the longest to the shortest. Step k adds the table row of
    token k to the sum of every text that has a token k. The tokens from STEPS on are added in blocks. The blocks begin at the same token
    positions in every batch, so that the bits of a sum do not depend on the batch."""
    sums = np.zeros((len(lengths), table.shape[1]), np.float32)
    steps = min(int(lengths[0]), STEPS)
    counts = np.searchsorted(-lengths, -np.arange(steps))  # counts[k] is the number of texts with more than k tokens
    rows = np.empty_like(sums)  # the table rows of one step; a new array for each step would double the time
    for step, count in enumerate(counts.tolist()):
        # mode="clip" changes no id here, because all ids are in the table. The default mode would copy the rows a second time.
        np.take(table, ids[starts[:count] + step], axis=0, out=rows[:count], mode="clip")
        sums[:count] += rows[:count]
    for i in range(int(np.searchsorted(-lengths, -STEPS))):
        for begin in range(STEPS, int(lengths[i]), STEPS):
            sums[i] += table[ids[starts[i] + begin : starts[i] + min(begin + STEPS, lengths[i])]].sum(axis=0)
    return np.asarray(sums / np.maximum(lengths, 1).astype(np.float32)[:, None], np.float32)


def placement(weights: int, device: dict[str, Any]) -> dict[str, Any]:
    """Returns the placement of a table of vectors on the CPU, in the form of _core.plan(). weights: the bytes of the table.  device: the
    CPU's entry in _core.devices()."""
    row = {"name": "embedding", "device": "cpu", "weights": weights, "kv": 0, "formats": "F32", "why": ""}
    return {
        "rows": [row],
        "devices": [
            {
                "id": "cpu",
                "name": device["name"],
                "weights": weights,
                "scratch": 0,
                "kv_page": 0,
                "state": 0,
                "memory_free": device["memory_free"],
            }
        ],
        "weights": weights,
        "scratch": 0,
        "memory_free": device["memory_free"],
        "notes": [],
        "incomplete": [],
    }


def plan(file: _core.ModelFile | ListedWeights) -> dict[str, Any]:
    """Like _core.plan(), for a table of vectors or weights. Reads only the shapes of the tensors, not the weights."""
    shapes = {name: shape for name, _, shape, _ in file.tensors}
    # Weights in a JSON file count as 0 bytes, because their number is unknown until the file is read.
    if (weights := shapes.get("weight")) or isinstance(file, ListedWeights):
        return placement(4 * int(np.prod(weights or (0,))), next(device for device in _core.devices() if device["id"] == "cpu"))
    width = next((shape[-1] for name in ("embedding.weight", "embeddings") if (shape := shapes.get(name))), 0)
    tokens = next((shapes[name][0] for name in ("mapping", "embedding.weight", "embeddings") if shapes.get(name)), 0)
    return placement(4 * tokens * width, next(device for device in _core.devices() if device["id"] == "cpu"))
