"""Finds out whether a generated text only repeats itself."""

from __future__ import annotations

from collections.abc import Sequence

LONGEST_PHRASE = 32  # maximum number of tokens of the phrase that is repeated
_EVERY = 16  # a text is only examined when its number of tokens is a multiple of this, which makes the cost per token small


def repeats(ids: Sequence[int], most: int) -> bool:
    """Returns whether the last `most` tokens are one phrase of at most LONGEST_PHRASE tokens over and over. Returns False for a number of
    tokens at which no text is examined."""
    if len(ids) < most or len(ids) % _EVERY:
        return False
    last = ids[-most:]
    return any(last[-1] == last[-1 - n] and last[n:] == last[:-n] for n in range(1, LONGEST_PHRASE + 1))
