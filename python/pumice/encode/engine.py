"""The interface of the engine that an Encoder computes with. `_core.Model` and `static.StaticEngine` implement it, and tests have fakes."""

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
    """Texts that are computed by one call: text i is ids[offsets[i]:offsets[i + 1]], and its vector becomes row i of `out`."""

    ids: Int32
    offsets: Int64
    types: Int32 | None
    out: Float32  # (texts, d), C-contiguous
    normalize: bool
    prompt: int  # number of first tokens per text that are left out of the text's vector


class Engine(Protocol):
    """The parts of `_core.Model` that every engine has; `_core.pyi` says what they do and raise.

    Another thread can stop a call through `cancel`. The call then raises KeyboardInterrupt. Calls with `cancel` may be computed together
    with other calls."""

    @property
    def info(self) -> dict[str, Any]:
        """What the engine says of its model."""

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
        """Computes several small encode() calls as one. Returns which of them are done."""

    def encode_tokens(
        self, ids: Int32, offsets: Int64, types: Int32 | None, unseen: Int32 | None = None, cancel: _core.Cancel | None = None
    ) -> Float32:
        """The vector of every token, float32 (tokens, d)."""

    def classify(self, ids: Int32, offsets: Int64, types: Int32 | None, cancel: _core.Cancel | None = None) -> Float32:
        """Logits, float32 (texts, labels)."""

    def placement(self) -> dict[str, Any]:
        """Returns where the weights lie, in the form of _core.plan()."""

    def memory(self) -> dict[str, int]:
        """Bytes by use."""

    def cache_stats(self) -> dict[str, int]:
        """Counts of the prefix cache."""

    def close(self) -> None:
        """Frees the memory. Later calls raise ValueError."""
