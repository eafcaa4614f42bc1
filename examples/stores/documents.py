"""What the examples of this folder store and ask: 2,000 short sentences and some questions, and the neighbours that numpy finds."""

from __future__ import annotations

import itertools
import sys
from pathlib import Path

import numpy as np
import numpy.typing as npt

import pumice

sys.path.insert(0, str(Path(__file__).parent.parent))  # where samples.py is

THINGS = ("stone", "river", "bank", "cloud", "piano", "letter", "bridge", "garden", "engine", "planet")
STATES = ("floats on the water", "is older than the town", "costs more each year", "was painted at night", "breaks without a sound")
PLACES = ("in the north", "near the harbour", "behind the school", "under the hill")
TIMES = (
    "since spring",
    "for a week",
    "in winter",
    "on Sundays",
    "this year",
    "at noon",
    "after the rain",
    "before the war",
    "of late",
    "as ever",
)
TEXTS = [f"The {thing} {place} {state} {time}." for thing, place, state, time in itertools.product(THINGS, PLACES, STATES, TIMES)]
QUESTIONS = ("Which instrument was decorated in the dark?", "prices of money houses are rising", "a rock that swims")


def load() -> pumice.Model:
    """Loads MiniLM, whose vectors have length 1 and 384 numbers."""
    import samples

    return pumice.load(samples.minilm())


def nearest(vectors: npt.NDArray[np.float32], query: npt.NDArray[np.float32], count: int = 5) -> list[int]:
    """Returns the rows of `vectors` that are nearest to a query, best first. All vectors have length 1."""
    return [int(i) for i in np.argsort(-(vectors @ query), kind="stable")[:count]]
