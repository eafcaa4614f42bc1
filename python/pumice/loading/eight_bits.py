"""Checks how well load(quantize="q8_0") preserves an encoder's vectors, by comparing them with the vectors of the file's own weights. The
texts are random tokens of the tokenizer's vocabulary, so that they suit a model of any language."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from .. import _core
from ..errors import PumiceError

if TYPE_CHECKING:
    from ..tokens.tokenizers import TokenBatch, Tokenizer

_LENGTHS = (1, 2, 4, 8, 16, 24)  # numbers of tokens of the first six random texts, without special tokens; then the lengths repeat
_TEXTS = 36
# 8 bits are used if the vectors of _TEXTS random texts with and without them are similar. Each cosine must be at least LEAST_COSINE, and
# the mean of 1 - cosine at most MOST_DISTANCE. Then thousands of texts will keep a cosine of 0.999, because the largest 1 - cosine is a few
# times the mean: 4.4 times over 15,000 texts of all-MiniLM-L6-v2, and 4.0 times over 5,000 of all-mpnet-base-v2.
LEAST_COSINE = 0.9995
MOST_DISTANCE = 2e-4


class Comparison(NamedTuple):
    """How near the vectors of two engines are. worst: the smallest cosine between the two vectors of a text.  distance: the mean of 1 -
    cosine."""

    worst: float
    distance: float

    @property
    def fine(self) -> bool:
        """Whether thousands of texts are expected to keep a cosine of 0.999."""
        return self.worst >= LEAST_COSINE and self.distance <= MOST_DISTANCE


def applies(file: _core.ModelFile, options: Mapping[str, Any], engine: _core.Model) -> bool:
    """Returns whether the model is an encoder, and load(quantize="q8_0") has packed some of its matrices."""
    if options["quantize"] != "q8_0" or "generate" in engine.info["tasks"]:
        return False
    return bool(engine.info["formats"].get("Q8_0", 0) > sum(size for _, kind, _, size in file.tensors if kind == "Q8_0"))


def may_apply(options: Mapping[str, Any], placement: Mapping[str, Any]) -> bool:
    """Returns whether load() may call keep_promise() for the model of a plan(). It does so for encoders only, which are the models that
    need no memory for keys and values."""
    packed = any("Q8_0" in row["formats"] for row in placement["rows"])
    return options["quantize"] == "q8_0" and packed and not placement.get("kv_budget")


def probe_texts(tokenizer: Tokenizer, vocab_size: int, n_ctx: int, typed: bool) -> TokenBatch:
    """Returns texts of 1 to 24 random tokens, which are the same at each call. vocab_size, n_ctx: those of the model.  typed: whether the
    model has embeddings of token types."""
    from dataclasses import replace

    draw = random.Random(8).random  # Python's documentation promises the same sequence in every version
    known = [i for i in range(min(vocab_size, tokenizer.vocab_size)) if i not in tokenizer.special_ids] or [0]
    ids = ([known[int(draw() * len(known))] for _ in range(_LENGTHS[text % len(_LENGTHS)])] for text in range(_TEXTS))
    batch = tokenizer.encode_batch([tokenizer.decode(text) or "a" for text in ids], truncate_to=n_ctx)
    return batch if typed else replace(batch, types=None)


def compare(packed: _core.Model, floats: _core.Model, texts: TokenBatch, cancel: _core.Cancel | None) -> Comparison:
    """Compares the pooled vectors that two engines compute for the same texts. Raises what `_core.Model.encode` raises."""

    def vectors(engine: _core.Model) -> npt.NDArray[np.float64]:
        out = np.empty((len(texts), int(engine.info["vector_size"])), np.float32)
        engine.encode(texts.ids, texts.offsets, texts.types, out, True, 0, cancel=cancel)
        return out.astype(np.float64)

    a, b = vectors(packed), vectors(floats)
    lengths = np.sqrt((a * a).sum(1) * (b * b).sum(1))
    same = (a == b).all(1).astype(np.float64)  # the cosine for vectors that are zero or not finite: 1 if both are equal, else 0
    cosines = np.divide((a * b).sum(1), lengths, out=same, where=lengths > 0)
    return Comparison(float(cosines.min()), float((1 - cosines).mean()))


def keep_promise(
    packed: _core.Model, load_floats: Callable[[], _core.Model], make_texts: Callable[[], TokenBatch], cancel: _core.Cancel | None
) -> tuple[_core.Model, str]:
    """Returns an engine for the model, and a note about it for summary(). The engine is `packed`, unless 8 bits change the vectors too
    much; then it is the engine of the file's own weights. Closes the other engine. If the two cannot be compared, returns `packed`. This
    happens if there is too little memory, or if the file's weights cannot be loaded without rounding."""
    floats = None
    try:
        texts = make_texts()
        floats = load_floats()
        found = compare(packed, floats, texts, cancel)
    except (MemoryError, PumiceError) as error:
        if floats is not None:
            floats.close()
        return packed, f'quantize="q8_0" was not compared with the file\'s weights: {error}'
    except BaseException:
        if floats is not None:
            floats.close()
        raise
    about = f"{len(texts)} texts of random tokens keep a cosine of {found.worst:.5f} or more, on average 1 - {found.distance:.1e}"
    if found.fine:
        floats.close()
        return packed, f'quantize="q8_0": {about}'
    packed.close()
    needed = f"{LEAST_COSINE} and 1 - {MOST_DISTANCE:.0e} are needed"
    return floats, f'quantize="q8_0" is left out, and the matrices stay as the file has them: with it {about}; {needed}'
