"""Right and hostile arguments to everything public: a short run of abuse.py (`make soak` is the long one)."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path

import numpy as np
import pytest
import samples
from abuse import abuse, public_calls, without_values

import pumice

CALLS = int(os.environ.get("PUMICE_TEST_CALLS", "20000"))


def test_every_public_call_has_values() -> None:
    """A new call, or a new parameter of one, must get right values in abuse.py."""
    assert without_values() == []
    assert {"load", "aload", "plan", "Model.encode", "Model.achat", "Stream.close", "Grammar.lark", "SparseVectors"} <= set(public_calls())


def test_no_argument_ends_the_process() -> None:
    made, wrong, counts, slowest = abuse(CALLS, seed=1)
    print(made, counts, slowest)
    assert not wrong, "\n".join(wrong[:10])
    assert made == CALLS
    assert counts["result"] > made / 4 and counts["TypeError"] > made / 10 and counts["ValueError"] > made / 20


@pytest.mark.parametrize("character", ["a", "7", " ", "\0", "é", "\u0301", "漢", "😀", "(", "<s>"])
def test_a_mebibyte_of_one_character(character: str, minilm: pumice.Model, smollm2: pumice.Model) -> None:
    """Tokenizing takes at most a second of a processor (5 are allowed)."""
    text = character * ((1 << 20) // len(character.encode()))
    for model in (minilm, smollm2):
        begin = time.process_time()
        ids = model.tokenize(text)
        took = time.process_time() - begin
        print(f"{model.path.name}: {character!r}: {len(ids)} tokens in {took:.2f} s")
        assert took < 5


def test_sizes_that_only_a_range_can_have() -> None:
    """A range of a billion numbers takes no memory. Its copy takes so much that the system would end the process."""
    many = range(10**9)
    with pumice.load(samples.smollm2(), device="cpu", n_ctx=64, progress=False) as model:
        for call in (
            lambda: model.generate(many), lambda: model.detokenize(many), lambda: model.chat(many),
            lambda: model.generate("a", bad_words=[many]),
            lambda: pumice.search(many, [[1.0]]), lambda: pumice.search([many], [[1.0]]), lambda: model.similarity(many, [1.0]),
            lambda: pumice.quantize_vectors(many, "int8"), lambda: pumice.maxsim([many], [[[1.0]]]), lambda: model.generate([many]),
        ):  # fmt: skip
            with pytest.raises((TypeError, ValueError)):
                call()


def test_sparse_vectors_are_no_ids(smollm2: pumice.Model) -> None:
    """numpy took their rows one by one, which raised an IndexError."""
    sparse = pumice.SparseVectors(np.array([1], np.int32), np.array([0.5], np.float32), np.array([0, 1], np.int64), (1, 35))
    for call in (smollm2.score, smollm2.logits, smollm2.hidden_states, smollm2.generate, np.asarray):
        with pytest.raises(TypeError, match="to_dense|not SparseVectors"):
            call(sparse)


def test_what_a_million_calls_found(smollm2: pumice.Model, tmp_path: Path) -> None:
    """A list that is nested too deep to be shown, an empty array of complex numbers, and a dry_run that is no flag."""
    nested: list[object] = []
    for _ in range(5000):
        nested = [nested]
    with pytest.raises(ValueError, match="split is a list; a size is needed"):
        pumice.convert(samples.minilm(), tmp_path / "m.gguf", split=nested)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="vectors must be rows of numbers"):
        pumice.quantize_vectors(np.zeros((0, 5), np.complex64), "int8")
    with pytest.raises(TypeError, match="dry_run"):
        asyncio.run(smollm2.achat("a", dry_run=NotImplemented))  # type: ignore[arg-type]
