"""The interface of the engine that an Encoder computes with. `_core.Model` and `static.StaticEngine` implement it, as do fakes in tests."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from .. import _core

Int32 = npt.NDArray[np.int32]
Int64 = npt.NDArray[np.int64]
Float32 = npt.NDArray[np.float32]


class Piece(NamedTuple):
    """Texts that one call computes. Text i is ids[offsets[i]:offsets[i + 1]], and its vector becomes row i of `out`."""

    ids: Int32
    offsets: Int64
    types: Int32 | None
    out: Float32  # float32 (texts, d), C-contiguous
    normalize: bool
    prompt: int  # number of tokens at the beginning of each text that are left out of the text's vector


class Engine(Protocol):
    """The methods of `_core.Model` that every engine has. `_core.pyi` documents them.

    Another thread can stop a call through `cancel`. The stopped call raises KeyboardInterrupt. The engine may compute calls that have a
    `cancel` together with other calls."""

    @property
    def info(self) -> dict[str, Any]:
        """Returns a description of the model, with the keys of `_core.Model.info`."""

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
        """Computes one vector per text. Text i is ids[offsets[i]:offsets[i + 1]], and its vector is out[i]."""

    def encode_several(self, calls: Sequence[Piece], cancels: Sequence[_core.Cancel]) -> list[bool]:
        """Computes several small encode() calls together. Returns for each call whether it succeeded."""

    def encode_tokens(
        self, ids: Int32, offsets: Int64, types: Int32 | None, unseen: Int32 | None = None, cancel: _core.Cancel | None = None
    ) -> Float32:
        """Returns one vector per token, float32 (tokens, d)."""

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
        """Returns the sparse vectors of all texts as CSR rows: (indices, values, offsets). Keeps the `most` largest values of each text; 0
        means all."""

    def classify(self, ids: Int32, offsets: Int64, types: Int32 | None, cancel: _core.Cancel | None = None) -> Float32:
        """Returns the logits of each text, float32 (texts, labels)."""

    def label_tokens(self, ids: Int32, offsets: Int64, types: Int32 | None, cancel: _core.Cancel | None = None) -> Float32:
        """Returns the logits of each token, float32 (tokens, labels)."""

    def placement(self) -> dict[str, Any]:
        """Returns on which device each part of the model is, in the form of _core.plan()."""

    def memory(self) -> dict[str, int]:
        """Returns the number of bytes for each use of memory."""

    def cache_stats(self) -> dict[str, int]:
        """Returns counts of the prefix cache."""

    def encode_stats(self) -> dict[str, Any]:
        """Returns counts of all calls of the methods above: waiting, texts, tokens, runs and busy_seconds."""

    def close(self) -> None:
        """Frees the memory. Later calls raise ValueError."""
