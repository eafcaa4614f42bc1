"""min_new_tokens, ignore_eos, bad_words, settings of each prompt, logits processors and samplers. Where possible, the tokens are compared
with those of a plain loop over logits()."""

from __future__ import annotations

import json
import math
import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import random_models

import pumice

TEXT = "One, two, three, four,"
Loop = Callable[[list[int], np.ndarray], None]


def greedy(model: pumice.Model, prompt: str, tokens: int, change: Loop) -> list[int]:
    """Returns greedy tokens from one row of logits() at a time. change(ids, row) gets all ids so far and may change the row."""
    ids = model.tokenize(prompt).tolist()
    said: list[int] = []
    for _ in range(tokens):
        row = model.logits(np.array(ids, np.int32)).copy()
        change(ids, row)
        said.append(int(row.argmax()))
        ids.append(said[-1])
    return said


def test_min_new_tokens(smollm2: pumice.Model) -> None:
    free = smollm2.generate(TEXT, max_new_tokens=12, temperature=0).ids.tolist()
    stop = free[3]
    assert smollm2.generate(TEXT, max_new_tokens=12, temperature=0, stop=[stop]).ids.tolist() == free[: free.index(stop)]

    def change(ids: list[int], row: np.ndarray) -> None:
        row[[stop, *smollm2._tokenizer.eos_ids]] = -math.inf

    held = smollm2.generate(TEXT, max_new_tokens=12, min_new_tokens=12, temperature=0, stop=[stop])
    assert held.ids.tolist() == greedy(smollm2, TEXT, 12, change)
    assert held.finish_reason == "length"
    assert held.params.min_new_tokens == 12
    with pytest.raises(ValueError, match="min_new_tokens=9 is more than max_new_tokens=8"):
        smollm2.generate(TEXT, max_new_tokens=8, min_new_tokens=9)
    with pytest.raises(ValueError, match="min_new_tokens=-1"):
        smollm2.generate(TEXT, min_new_tokens=-1)
    with pytest.raises(TypeError, match=r"no argument 'min_tokens'; here it is min_new_tokens"):
        smollm2.generate(TEXT, min_tokens=1)


def test_ends(smollm2: pumice.Model) -> None:
    question = [{"role": "user", "content": "Say hi."}]
    plain = smollm2.chat(question, temperature=0, max_new_tokens=60)
    assert plain.finish_reason == "eos"
    n = len(plain.ids)
    on = smollm2.chat(question, temperature=0, max_new_tokens=n + 5, ignore_eos=True)
    assert on.finish_reason == "length"
    assert on.ids[:n].tolist() == plain.ids.tolist()
    assert on.ids[n] in smollm2._tokenizer.eos_ids
    longer = smollm2.chat(question, temperature=0, max_new_tokens=n + 30, min_new_tokens=n + 5)
    assert len(longer.ids) >= n + 5
    assert not set(longer.ids[: n + 5].tolist()) & set(smollm2._tokenizer.eos_ids)
    with pytest.raises(TypeError, match="ignore_eos must be True or False"):
        smollm2.generate(TEXT, ignore_eos="yes")


def test_bad_words(smollm2: pumice.Model) -> None:
    free = smollm2.generate(TEXT, max_new_tokens=10, temperature=0)
    words = [free.ids[:1].tolist(), free.ids[2:4].tolist(), [int(smollm2.tokenize(TEXT)[-1]), int(free.ids[1])]]

    def change(ids: list[int], row: np.ndarray) -> None:  # as in transformers' NoBadWordsLogitsProcessor
        for word in words:
            if len(word) == 1 or ids[-len(word) + 1 :] == word[:-1]:
                row[word[-1]] = -math.inf

    found = smollm2.generate(TEXT, max_new_tokens=20, temperature=0, bad_words=words)
    assert found.ids.tolist() == greedy(smollm2, TEXT, 20, change)
    assert found.params.bad_words == tuple(map(tuple, words))
    guessed = smollm2.generate(TEXT, max_new_tokens=20, temperature=0, bad_words=words, speculate={"lookup": 1, "guesses": 4})
    assert guessed.ids.tolist() == found.ids.tolist()
    assert " five" in smollm2.generate(TEXT, max_new_tokens=10, temperature=0).text
    said = smollm2.generate(TEXT, max_new_tokens=20, temperature=0, bad_words=["five", "six"], n=2, seed=1)
    assert not any(word in r.text for r in said for word in (" five", " six"))
    for given, error, match in (
        ([""], ValueError, r"bad_words\[0\] is ''"),
        ([[]], ValueError, r"bad_words\[0\] is \[\], which has no tokens"),
        ([[1, 10**9]], ValueError, r"a token id in bad_words\[0\]=1000000000"),
        ([[True]], TypeError, "must be an integer"),
        (7, TypeError, "bad_words must be a list"),
        ([7], TypeError, r"bad_words\[0\] is int 7"),
        (["x"] * 10_001, ValueError, "10000 are the most"),
    ):
        with pytest.raises(error, match=match):
            smollm2.generate(TEXT, bad_words=given)


def test_nothing_left(smollm2: pumice.Model) -> None:
    every = [[i] for i in range(10_000)]
    with pytest.raises(ValueError, match="sequence 0, position .*nothing that the token filters allow is left"):
        smollm2.generate(TEXT, logits_processor=lambda ids, row: row.fill(-math.inf))
    assert smollm2.generate(TEXT, bad_words=every, max_new_tokens=5, temperature=1, seed=3).ids.min() >= 10_000


def test_each_prompt_has_its_settings(smollm2: pumice.Model) -> None:
    prompts = [TEXT, "The sea is", "A cat", "Once upon a time"]
    settings: list[dict[str, Any] | None] = [
        {"temperature": 0, "max_new_tokens": 5},
        {"temperature": 1.0, "seed": 7, "logprobs": 2, "top_k": 40},
        None,
        {"temperature": 0.8, "seed": 3, "stop": ".", "bad_words": [" a"], "repetition_penalty": 1.2},
    ]
    together = smollm2.generate(prompts, sampling=settings, max_new_tokens=12, seed=5, temperature=1.0)
    for prompt, own, found in zip(prompts, settings, together, strict=True):
        alone = smollm2.generate(prompt, **{"max_new_tokens": 12, "seed": 5, "temperature": 1.0, **(own or {})})
        assert found.ids.tolist() == alone.ids.tolist()
        assert (found.text, found.finish_reason, found.seed, found.params) == (alone.text, alone.finish_reason, alone.seed, alone.params)
        assert (found.logprobs is None) == (alone.logprobs is None)
        if found.logprobs is not None:
            assert np.array_equal(found.top_logprobs, alone.top_logprobs)
    with smollm2.stream(prompts, sampling=settings, max_new_tokens=12, seed=5, temperature=1.0) as stream:
        texts = [""] * 4
        for chunk in stream:
            texts[chunk.index] += chunk.text
    assert texts == [r.text for r in together]
    twice = smollm2.generate(prompts, sampling=settings, max_new_tokens=12, seed=5, temperature=1.0, n=2)
    assert [r.ids.tolist() for r in twice[::2]] == [r.ids.tolist() for r in together]


@pytest.mark.parametrize(
    ("prompts", "sampling", "error", "match"),
    [
        ("a", [{}], TypeError, "this is one prompt"),
        (["a", "b"], [{}], ValueError, "sampling has 1 entries for 2 prompts"),
        (["a", "b"], {"top_k": 1}, TypeError, "sampling must be a list"),
        (["a", "b"], [{}, 3], TypeError, r"sampling\[1\] must be a dict"),
        (["a", "b"], [{}, {"n": 2}], ValueError, r"sampling\[1\] has 'n', which is the same for all"),
        (["a", "b"], [{}, {"tempratur": 2}], TypeError, r"sampling\[1\] has no setting 'tempratur'; did you mean 'temperature'"),
        (["a", "b"], [{}, {"top_p": 2}], ValueError, r"sampling\[1\]: top_p=2 is out of range: it must be more than 0 and at most 1"),
    ],
)
def test_settings_are_checked(smollm2: pumice.Model, prompts: Any, sampling: Any, error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        smollm2.generate(prompts, sampling=sampling)


# ---------------------------------------------------------------- logits processors
def test_a_processor_changes_the_row(smollm2: pumice.Model) -> None:
    seen: list[tuple[int, str, int]] = []

    def even(ids: np.ndarray, row: np.ndarray) -> None:
        seen.append((len(ids), f"{ids.dtype} {row.dtype}", len(row)))
        row[1::2] = -math.inf
        row[0] += 1

    def change(ids: list[int], row: np.ndarray) -> None:
        row[1::2] = -math.inf
        row[0] += 1

    found = smollm2.generate(TEXT, logits_processor=even, max_new_tokens=15, temperature=0)
    assert found.ids.tolist() == greedy(smollm2, TEXT, 15, change)
    first = found.prompt_tokens
    assert seen == [(first + i, "int32 float32", smollm2.info["vocab_size"]) for i in range(15)]
    # A processor must also work with other settings, several samples and several prompts. The log-probabilities must stay those of the
    # model's own logits.
    ways: dict[str, Any] = {
        "temperature": 0.9,
        "top_k": 30,
        "seed": 2,
        "repetition_penalty": 1.1,
        "n": 2,
        "logprobs": 1,
        "max_new_tokens": 12,
    }
    several = smollm2.generate([TEXT, "The sea"], logits_processor=even, bad_words=[" two"], **ways)
    alone = smollm2.generate("The sea", logits_processor=even, bad_words=[" two"], **ways)
    assert [r.ids.tolist() for r in several[2:]] == [r.ids.tolist() for r in alone]
    ids = np.concatenate([smollm2.tokenize("The sea"), alone[0].ids])
    assert np.allclose(smollm2.score(ids)[-len(alone[0].ids) :], alone[0].logprobs, atol=1e-3)
    assert all(r.ids.tolist() == [t for t in r.ids.tolist() if t % 2 == 0] for r in several)
    same = smollm2.generate(TEXT, logits_processor=lambda ids, row: None, temperature=0.7, seed=4, max_new_tokens=20)
    assert same.ids.tolist() == smollm2.generate(TEXT, temperature=0.7, seed=4, max_new_tokens=20).ids.tolist()


def test_a_processor_of_one_prompt(smollm2: pumice.Model) -> None:
    calls: list[int] = []

    def processor(ids: np.ndarray, row: np.ndarray) -> None:
        calls.append(len(ids))

    found = smollm2.generate([TEXT, TEXT + " five"], sampling=[{"logits_processor": processor}, None], temperature=0, max_new_tokens=6)
    assert [len(r.ids) for r in found] == [6, 6]
    assert calls == [found[0].prompt_tokens + i for i in range(6)]
    stream = smollm2.stream(TEXT, logits_processor=processor, temperature=0, max_new_tokens=6)
    assert "".join(chunk.text for chunk in stream) == found[0].text


def test_what_a_processor_does_wrong(smollm2: pumice.Model) -> None:
    class OwnError(Exception):
        pass

    def fails(ids: np.ndarray, row: np.ndarray) -> None:
        if len(ids) > 12:
            raise OwnError("my own")

    def nan(ids: np.ndarray, row: np.ndarray) -> None:
        row[17] = math.nan

    for processor, error, match in (
        (fails, OwnError, "my own"),
        (nan, ValueError, "the logit of token 17 was made nan"),
        (lambda ids, row: row.__setitem__(3, math.inf), ValueError, "the logit of token 3 was made inf"),
        (lambda ids, row: row * 2, TypeError, "must change the row of logits in place"),
        (lambda ids: None, TypeError, "argument"),
        (3, TypeError, "logits_processor must be a function"),
    ):
        with pytest.raises(error, match=match):
            smollm2.generate(TEXT, logits_processor=processor, max_new_tokens=30)
    assert smollm2.cache_stats()["pages_in_use"] == 0


def test_a_slow_processor_holds_up_nobody_else(smollm2: pumice.Model) -> None:
    inside, done = threading.Event(), threading.Event()

    def waits(ids: np.ndarray, row: np.ndarray) -> None:
        inside.set()
        assert done.wait(60)

    result: list[Any] = []
    thread = threading.Thread(target=lambda: result.append(smollm2.generate(TEXT, logits_processor=waits, max_new_tokens=2, temperature=0)))
    thread.start()
    assert inside.wait(60)
    other = smollm2.generate("The sea is", max_new_tokens=20, temperature=0)
    assert len(other.ids) == 20
    assert not result
    done.set()
    thread.join(60)
    assert result[0].ids.tolist() == smollm2.generate(TEXT, max_new_tokens=2, temperature=0).ids.tolist()


def test_an_interrupt_in_a_processor(smollm2: pumice.Model) -> None:
    def interrupts(ids: np.ndarray, row: np.ndarray) -> None:
        if len(ids) == first + 4:
            raise KeyboardInterrupt

    first = len(smollm2.tokenize(TEXT))
    with pytest.raises(KeyboardInterrupt) as caught:
        smollm2.generate(TEXT, logits_processor=interrupts, temperature=0)
    assert caught.value.partial.finish_reason == "cancelled"  # type: ignore[attr-defined]
    assert len(caught.value.partial.ids) <= 4  # type: ignore[attr-defined]


# ---------------------------------------------------------------- DRY, XTC, top-n-sigma, Mirostat
def dry(ids: list[int], multiplier: float, base: float, allowed: int, breakers: set[int]) -> dict[int, float]:
    """Returns the penalty that DRY gives to each token. Follows the definition: tries every position and every length."""
    taken: dict[int, float] = {}
    for n in range(allowed, 51):
        if n > len(ids) or breakers & set(ids[-n:]):
            break
        for first in range(len(ids) - n):
            if ids[first : first + n] == ids[-n:] and ids[first + n] not in breakers:
                taken[ids[first + n]] = multiplier * base ** (n - allowed)
    return taken


def test_dry(smollm2: pumice.Model) -> None:
    text = "the cat sat on the mat. the cat sat on the mat. the cat sat"
    plain = smollm2.generate(text, temperature=0, max_new_tokens=12)
    assert plain.text.startswith(" on the mat. the cat sat on")

    def change(ids: list[int], row: np.ndarray) -> None:
        for token, penalty in dry(ids, 0.8, 1.75, 2, breakers).items():
            row[token] -= penalty

    breakers = {int(smollm2.tokenize("a" + s)[-1]) for s in ("\n", ":", '"', "*")}
    found = smollm2.generate(text, temperature=0, max_new_tokens=12, dry_multiplier=0.8)
    assert found.ids.tolist() == greedy(smollm2, text, 12, change) != plain.ids.tolist()
    assert set(found.params.dry_breakers) == breakers
    breakers |= {int(smollm2.tokenize(" on")[-1])}
    other = smollm2.generate(text, temperature=0, max_new_tokens=12, dry_multiplier=0.8, dry_breakers=sorted(breakers))
    assert other.ids.tolist() == greedy(smollm2, text, 12, change)
    for given, error, match in (
        ({"dry_breakers": "x"}, TypeError, "dry_breakers must be a list"),
        ({"dry_breakers": [""]}, ValueError, r"dry_breakers\[0\] is an empty"),
        ({"dry_breakers": [-1]}, ValueError, r"dry_breakers\[0\]=-1"),
        ({"dry_base": 0.5}, ValueError, "dry_base=0.5"),
        ({"dry_allowed_length": 0}, ValueError, "dry_allowed_length=0"),
        ({"dry_range": -1}, ValueError, "dry_range=-1"),
        ({"dry_multiplier": 101}, ValueError, "dry_multiplier=101"),
    ):
        with pytest.raises(error, match=match):
            smollm2.generate(text, **{"dry_multiplier": 0.8, **given})


@pytest.mark.parametrize(
    "way",
    [
        {"top_n_sigma": 1.0},
        {"xtc_probability": 0.6, "xtc_threshold": 0.05, "min_p": 0.01},
        {"mirostat_tau": 3.0, "mirostat_eta": 0.2},
        {"dry_multiplier": 1.0, "top_n_sigma": 2.0, "top_k": 40, "xtc_probability": 0.3, "mirostat_tau": 2.0, "temperature": 1.3},
    ],
    ids=["sigma", "xtc", "mirostat", "all"],
)
def test_samplers_draw_the_same_in_any_batch(smollm2: pumice.Model, way: dict[str, Any]) -> None:
    prompts = [TEXT, "The sea is", "la la la la la la"]
    together = smollm2.generate(prompts, seed=11, max_new_tokens=24, **way)
    assert together[0].params.temperature == way.get("temperature", 1.0)
    for prompt, found in zip(prompts, together, strict=True):
        assert found.ids.tolist() == smollm2.generate(prompt, seed=11, max_new_tokens=24, **way).ids.tolist()
        guessed = smollm2.generate(prompt, seed=11, max_new_tokens=24, speculate={"lookup": 1, "guesses": 4}, **way)
        assert found.ids.tolist() == guessed.ids.tolist()


@pytest.mark.parametrize(
    ("name", "value"), [("top_n_sigma", -1), ("xtc_probability", 1.1), ("xtc_threshold", 2), ("mirostat_tau", -1), ("mirostat_eta", 5)]
)
def test_samplers_are_checked(smollm2: pumice.Model, name: str, value: float) -> None:
    with pytest.raises(ValueError, match=name):
        smollm2.generate(TEXT, **{name: value})


@pytest.mark.parametrize(
    ("given", "switch"),
    [
        ({"dry_base": 2.0}, "dry_multiplier"),
        ({"dry_allowed_length": 3}, "dry_multiplier"),
        ({"dry_range": 100}, "dry_multiplier"),
        ({"dry_breakers": ["."]}, "dry_multiplier"),
        ({"xtc_threshold": 0.2}, "xtc_probability"),
        ({"mirostat_eta": 0.2}, "mirostat_tau"),
    ],
)
def test_a_setting_of_what_is_off_is_told(smollm2: pumice.Model, given: dict[str, Any], switch: str) -> None:
    for prompt, settings in (("a", given), (["a", "b"], {"sampling": [{}, given]})):
        with pytest.raises(ValueError, match=f"{next(iter(given))}=.* does nothing without {switch}"):
            smollm2.generate(prompt, max_new_tokens=1, **settings)
    assert smollm2.generate("a", max_new_tokens=1, **given, **{switch: 0.0}).ids.size == 1  # no error if the switch is off on purpose


def test_bad_words_of_a_folder(tmp_path: Path) -> None:
    folder = random_models.make_folder("gemma2", tmp_path)
    free = pumice.load(folder, device="cpu").generate([5, 6, 7], temperature=0, max_new_tokens=8)
    first = int(free.ids[0])
    (folder / "generation_config.json").write_text(json.dumps({"bad_words_ids": [[first], [2, 3], [1]], "eos_token_id": 1}))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = pumice.load(folder, device="cpu")
    found = model.generate([5, 6, 7], temperature=0, max_new_tokens=8)
    assert found.params.bad_words == ((2, 3), (first,))  # the end token 1 does not become a bad word, as in transformers
    assert first not in found.ids
    assert model.generate([5, 6, 7], temperature=0, max_new_tokens=8, bad_words=[]).ids.tolist() == free.ids.tolist()
    for wrong in (7, [7], [["a"]], {"a": 1}):
        (folder / "generation_config.json").write_text(json.dumps({"bad_words_ids": wrong}))
        if wrong == [7]:  # valid, because a word may be one id
            continue
        with pytest.raises(pumice.ModelFormatError, match="bad_words_ids"):
            pumice.load(folder, device="cpu")


def test_a_time_that_a_float_takes_for_nothing_is_no_time(smollm2: pumice.Model) -> None:
    """0 means no limit, and so did 1e-46, which a float32 cannot tell from 0."""
    for seconds in (1e-3, 1e-44, 1e-46, 1e-300):
        assert smollm2.generate(TEXT, max_new_tokens=100, max_seconds=seconds).finish_reason == "cancelled"
    assert smollm2.generate(TEXT, max_new_tokens=4, max_seconds=0).finish_reason == "length"
    greedy = smollm2.generate(TEXT, max_new_tokens=8, temperature=0).text
    assert {smollm2.generate(TEXT, max_new_tokens=8, temperature=t, seed=1).text for t in (1e-300, 1e-44)} == {greedy}


def test_each_of_several_answers_has_a_seed_of_its_own(smollm2: pumice.Model) -> None:
    """Asked for alone with its seed, an answer must be the same again. A prompt that is given twice counts as two answers."""
    settings: dict[str, Any] = {"max_new_tokens": 8, "temperature": 1.0}
    for answers in (smollm2.generate(TEXT, n=4, seed=11, **settings), smollm2.generate([TEXT] * 4, seed=11, **settings)):
        seeds = [answer.seed for answer in answers]
        assert seeds[0] == 11 and len({*seeds}) == 4 and max(seeds) < 2**53
        assert len({answer.text for answer in answers}) > 1
        for answer in answers:
            assert smollm2.generate(TEXT, seed=answer.seed, **settings).ids.tolist() == answer.ids.tolist()
    chat = smollm2.chat("Name a stone.", n=2, **settings)
    assert chat[0].seed != chat[1].seed
    assert smollm2.chat("Name a stone.", seed=chat[1].seed, **settings).text == chat[1].text
