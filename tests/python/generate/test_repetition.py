"""Texts that only repeat themselves end with the finish_reason "repetition"."""

from __future__ import annotations

import asyncio
import json
import random
from typing import Any

import pytest

import pumice
from pumice.generate.repetition import LONGEST_PHRASE, repeats

TALK = [{"role": "user", "content": "Hi"}]
random.seed(1)
RANDOM = [random.randrange(1000) for _ in range(512)]
PHRASE = list(range(LONGEST_PHRASE))


@pytest.mark.parametrize(
    ("ids", "expected"),
    [
        ([7] * 512, True),
        ([7] * 528, True),
        ([7] * 511, False),
        ([1, 2] * 256, True),
        ([1, 2, 3] * 171 + [1, 2, 3, 1, 2, 3, 1, 2][:-1], False),  # 520 tokens, a number at which no text is examined
        ([1, 2, 3] * 176, True),
        ([1, 1, 2] * 176, True),
        (PHRASE * 16, True),
        (RANDOM[:5] + PHRASE * 16 + PHRASE[:11], True),
        ([*PHRASE, 99] * 16, False),  # the phrase is too long
        ([7] * 256 + [8] + [7] * 255, False),
        ([8] + [7] * 511, False),
        ([7] * 511 + [8], False),
        (RANDOM, False),
        ([token for number in range(256) for token in (number, 5)], False),  # a list of different numbers
        ([token for row in range(16) for token in (*[0] * 31, 1000 + row)], False),  # rows of zeros with their numbers
        ([], False),
    ],
)
def test_only_one_phrase_over_and_over_is_a_repetition(ids: list[int], expected: bool) -> None:
    assert repeats(ids, 512) is expected


@pytest.fixture(scope="module")
def stuck(smollm2: pumice.Model) -> dict[str, Any]:
    """Options with which the model writes the same token for ever."""
    return {"logit_bias": {" the": 1000.0}, "temperature": 0, "max_new_tokens": 100, "max_repeated_tokens": 64}


def test_whole_answers_and_streams_end(smollm2: pumice.Model, stuck: dict[str, Any]) -> None:
    with smollm2.chat(TALK, stream=True, **stuck) as stream:
        chunks = list(stream)
    assert [chunk.finish_reason for chunk in chunks if chunk.finish_reason] == ["repetition"]
    found = [smollm2.chat(TALK, **stuck), stream.result, asyncio.run(smollm2.achat(TALK, **stuck)), smollm2.generate("Hi", **stuck)]
    found += smollm2.chat(TALK, n=2, **stuck)
    assert {(each.finish_reason, len(each.ids), each.text) for each in found} == {("repetition", 64, " the" * 64)}
    assert found[0].to_openai()["choices"][0]["finish_reason"] == "length"
    with pytest.raises(ValueError, match="not complete: it only repeated itself after 64 tokens"):
        found[0].parsed  # noqa: B018


@pytest.mark.parametrize(
    ("change", "reason", "tokens"),
    [
        ({"max_repeated_tokens": 0}, "length", 100),
        ({"max_repeated_tokens": None, "ignore_eos": True}, "length", 100),
        ({"max_repeated_tokens": 90}, "repetition", 96),
        ({"min_new_tokens": 80}, "repetition", 80),
        ({"max_new_tokens": 64}, "repetition", 64),
        ({"max_new_tokens": 63}, "length", 63),
        ({"stop": [" the the the"]}, "stop", 0),
        (
            {"logit_bias": {" the": 1000.0, " a": 1000.0}, "presence_penalty": 100.0, "frequency_penalty": 1.0},
            "repetition",
            64,
        ),  # two tokens in turn
    ],
)
def test_other_ends(smollm2: pumice.Model, stuck: dict[str, Any], change: dict[str, Any], reason: str, tokens: int) -> None:
    found = smollm2.chat(TALK, **stuck | change)
    assert (found.finish_reason, len(found.ids)) == (reason, tokens), found.text


def test_generate_does_not_look_for_repetitions(smollm2: pumice.Model, stuck: dict[str, Any]) -> None:
    options = {**stuck, "max_new_tokens": 600, "max_repeated_tokens": None}
    assert (smollm2.generate("Hi", **options).finish_reason, smollm2.chat(TALK, **options).finish_reason) == ("length", "repetition")


def test_async_answers_are_sampled_and_texts_are_not(smollm2: pumice.Model) -> None:
    answer, text = asyncio.run(smollm2.achat(TALK, max_tokens=1)), asyncio.run(smollm2.agenerate("Hi", max_new_tokens=1))
    assert (round(answer.params.temperature, 3), answer.params.top_k, text.params.temperature, text.params.top_k) == (0.8, 40, 0.0, 0)


def test_a_prompt_of_a_batch_has_its_own_limit(smollm2: pumice.Model, stuck: dict[str, Any]) -> None:
    found = smollm2.generate(["Hi", "Hi"], sampling=[None, {"max_repeated_tokens": 0}], **stuck)
    assert [each.finish_reason for each in found] == ["repetition", "length"]


def test_an_answer_that_repeats_itself_is_a_value_of_json(smollm2: pumice.Model, stuck: dict[str, Any]) -> None:
    assert json.loads(json.dumps(smollm2.chat(TALK, **stuck).to_openai()))["usage"]["completion_tokens"] == 64
