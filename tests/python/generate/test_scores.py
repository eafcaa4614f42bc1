"""score(top=k) must give the log-probabilities of a text and the likeliest tokens at each place, as numpy computes them from logits()."""

from __future__ import annotations

import asyncio
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from patience import until
from random_models import make_folder

import pumice

TEXT = "Pumice is a stone that floats on water, because it is full of small bubbles. " * 9


def assert_scores(model: Any, ids: Any, found: Any, k: int) -> None:
    """Asserts that `found` has what numpy computes from the logits of `ids`: the same ids, and log-probabilities that differ by less than
    1e-5."""
    n = len(ids) - 1
    assert type(found) is pumice.Scores
    assert found.ids.dtype == found.top_ids.dtype == np.int32 and found.logprobs.dtype == found.top_logprobs.dtype == np.float32
    assert found.logprobs.shape == (n,) and found.top_ids.shape == found.top_logprobs.shape == (n, k)
    assert found.ids.tolist() == list(ids[1:])
    logits = model.logits(ids, positions="all")[:-1].astype(np.float64)
    largest = logits.max(axis=1, keepdims=True)
    logprobs = logits - largest - np.log(np.exp(logits - largest).sum(axis=1, keepdims=True))
    wanted = np.argsort(-logits, axis=1, kind="stable")[:, :k]
    assert np.array_equal(found.top_ids, wanted)
    assert np.abs(found.top_logprobs - np.take_along_axis(logprobs, wanted, 1)).max(initial=0) < 1e-5
    assert np.abs(found.logprobs - logprobs[np.arange(n), ids[1:]]).max(initial=0) < 1e-5
    row, column = np.nonzero(found.top_ids == found.ids[:, None])
    assert np.array_equal(found.top_logprobs[row, column], found.logprobs[row])


@pytest.mark.parametrize("name", ["llama3", "gemma2", "mamba2", "mixtral"])
def test_against_numpy(name: str, tmp_path: Path) -> None:
    with pumice.load(make_folder(name, tmp_path), device="cpu", threads=2, progress=False) as model:
        vocab = model.info["vocab_size"]
        rng = np.random.default_rng(7)
        for length in (1, 2, 140):
            ids = rng.integers(0, vocab, length).astype(np.int32)
            for k in (1, 5, vocab):
                assert_scores(model, ids, model.score(ids, top=k), k)
            assert np.abs(model.score(ids, top=1).logprobs - model.score(ids)).max(initial=0) < 1e-5


def test_a_text(smollm2: pumice.Model) -> None:
    ids = smollm2.tokenize(TEXT)
    found = smollm2.score(TEXT, top=20)
    assert_scores(smollm2, ids, found, 20)
    best = smollm2.score(ids.tolist(), top=1)
    assert np.array_equal(best.top_ids[:, 0], found.top_ids[:, 0]) and np.array_equal(best.logprobs, found.logprobs)


def test_generated_tokens_have_the_same_log_probabilities(smollm2: pumice.Model) -> None:
    prompt = smollm2.tokenize("Pumice is a stone that")
    answer = smollm2.generate(prompt, max_new_tokens=12, temperature=0, logprobs=5, ignore_eos=True)
    found = smollm2.score([*prompt, *answer.ids], top=5)
    n = len(answer.ids)
    assert np.array_equal(found.logprobs[-n:], answer.logprobs)
    assert np.array_equal(found.top_ids[-n:], answer.top_ids) and np.array_equal(found.top_logprobs[-n:], answer.top_logprobs)


def test_the_same_bits_beside_other_calls(smollm2: pumice.Model) -> None:
    texts = [TEXT, TEXT[100:], "a stone floats"]
    alone = [smollm2.score(text, top=3) for text in texts]
    answer = smollm2.generate("One, two,", max_new_tokens=30, temperature=0)
    wrong: list[str] = []

    def score(i: int) -> None:
        found = smollm2.score(texts[i], top=3)
        for name in ("ids", "logprobs", "top_ids", "top_logprobs"):
            if not np.array_equal(getattr(found, name), getattr(alone[i], name)):
                wrong.append(f"{name} of text {i}")

    def generate() -> None:
        if smollm2.generate("One, two,", max_new_tokens=30, temperature=0).text != answer.text:
            wrong.append("generate()")

    threads = [threading.Thread(target=score, args=(i % 3,)) for i in range(6)] + [threading.Thread(target=generate) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_wrong_arguments(smollm2: pumice.Model, minilm: pumice.Model) -> None:
    for top in (0, -1, smollm2.info["vocab_size"] + 1, 2.5, True, "3"):
        with pytest.raises((TypeError, ValueError), match="top"):
            smollm2.score("a stone", top=top)  # type: ignore[arg-type]
    with pytest.raises(pumice.UnsupportedTaskError, match=r"score\(\) needs"):
        minilm.score("a stone", top=3)
    with pytest.raises(pumice.ContextLengthError):
        smollm2.score([1] * (smollm2.info["n_ctx"] + 1), top=3)


def test_ascore(smollm2: pumice.Model, minilm: pumice.Model) -> None:
    async def main() -> None:
        wanted, plain = smollm2.score(TEXT, top=3), smollm2.score(TEXT)
        found, others = await asyncio.gather(smollm2.ascore(TEXT, top=3), smollm2.ascore(TEXT))
        assert np.array_equal(found.top_ids, wanted.top_ids) and np.array_equal(found.top_logprobs, wanted.top_logprobs)
        assert np.array_equal(found.logprobs, wanted.logprobs) and np.array_equal(others, plain)
        with pytest.raises(pumice.UnsupportedTaskError, match=r"score\(\) needs"):
            await minilm.ascore("a stone")
        with pytest.raises(ValueError, match="top"):
            await smollm2.ascore("a stone", top=0)

    asyncio.run(main())
    with pytest.raises(pumice.EventLoopError):
        smollm2.ascore("a stone").send(None)


def test_a_cancelled_ascore_stops_and_the_loop_goes_on(smollm2: pumice.Model) -> None:
    """A text of the whole context takes seconds. Meanwhile the loop must run, and after the cancellation no pages may be in use."""
    ids = np.arange(smollm2.info["n_ctx"]) * 7 % 40_000 + 1
    longest = 0.0

    async def ticks() -> None:
        nonlocal longest
        while True:
            before = time.monotonic()
            await asyncio.sleep(0.001)
            longest = max(longest, time.monotonic() - before)

    async def main() -> float:
        ticking = asyncio.create_task(ticks())
        task = asyncio.create_task(smollm2.ascore(ids, top=3))
        await until(lambda: smollm2.stats()["running"])
        await asyncio.sleep(0.05)
        assert not task.done()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        begin = time.monotonic()
        await until(lambda: not smollm2.stats()["pages_in_use"])
        ticking.cancel()
        return time.monotonic() - begin

    took = asyncio.run(main())
    print(f"pages free after {took:.3f} s; longest tick {longest:.3f} s")
    assert_scores(smollm2, smollm2.tokenize("a stone floats"), smollm2.score("a stone floats", top=2), 2)
