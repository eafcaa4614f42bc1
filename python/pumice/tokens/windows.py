"""Divides texts into windows of token ids, for perplexity(), compare() and calibration."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

Int32 = npt.NDArray[np.int32]

WINDOW = 512  # number of tokens in a window, as in llama.cpp's llama-perplexity


def windows_of(ids: Int32, size: int, bos: int | None) -> Iterator[Int32]:
    """Yields the windows of a text: successive pieces of `size` tokens. The tokens after the last whole window are left out. A text that is
    shorter than a window is a window.

    bos: the id that replaces the first token of each window, or None if the model's texts begin without a bos token. llama-perplexity does
    the same (llama.cpp, tools/perplexity/perplexity.cpp)."""
    if len(ids) < size:
        yield ids
        return
    for first in range(0, len(ids) - size + 1, size):
        window = ids[first : first + size].copy()
        if bos is not None:
            window[0] = bos
        yield window
