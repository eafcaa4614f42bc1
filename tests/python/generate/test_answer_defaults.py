"""The sampling of answers where the call does not say it: chat() samples, generate() and stream() are greedy. On a toy engine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from fake_core import fake, fake_core, fake_model, write_model  # noqa: F401

SAMPLED = {"temperature": 0.8, "top_k": 40, "top_p": 0.95, "min_p": 0.05}
GREEDY = {"temperature": 0.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}


def chosen_by(params: Any) -> dict[str, float]:
    return {name: pytest.approx(getattr(params, name)) for name in SAMPLED}


@pytest.mark.parametrize(
    ("gguf", "folder", "call", "expected"),
    [
        ({}, None, {}, SAMPLED),
        ({}, None, {"temperature": None, "top_k": None}, SAMPLED),
        ({}, None, {"temperature": 0}, SAMPLED | {"temperature": 0.0}),
        ({}, None, {"top_p": 0.5}, SAMPLED | {"top_p": 0.5}),
        ({}, None, {"temperature": 1.5, "top_k": 0, "top_p": 1, "min_p": 0}, GREEDY | {"temperature": 1.5}),
        ({"temp": 0.5}, None, {}, GREEDY | {"temperature": 0.5}),
        ({"temp": 0.5}, None, {"min_p": 0.25}, GREEDY | {"temperature": 0.5, "min_p": 0.25}),
        ({"top_k": 7}, None, {}, GREEDY | {"temperature": 1.0, "top_k": 7}),
        ({"mirostat": 2}, None, {}, GREEDY | {"temperature": 1.0}),
        ({"penalty_repeat": 1.5}, None, {}, SAMPLED),
        (None, {}, {}, SAMPLED),
        (None, {"do_sample": True, "top_p": 0.5}, {}, {"temperature": 1.0, "top_k": 50, "top_p": 0.5, "min_p": 0.0}),
        (None, {"do_sample": True}, {"temperature": 0}, {"temperature": 0.0, "top_k": 50, "top_p": 1.0, "min_p": 0.0}),
        (None, {"do_sample": False}, {}, GREEDY),
        (None, {"repetition_penalty": 1.5}, {}, SAMPLED),
    ],
)
def test_a_value_comes_from_the_call_or_the_files_or_the_defaults(
    pumice: Any, tmp_path: Path, gguf: Any, folder: Any, call: Any, expected: Any
) -> None:
    if folder is None:
        path = write_model(tmp_path / "m.gguf", **{f"general.sampling.{name}": value for name, value in gguf.items()})
    else:
        path = write_model(tmp_path / "m")
        (path / "generation_config.json").write_text(json.dumps(folder))
    with pumice.load(path) as model:
        with model.chat("Hi", stream=True, **call) as stream:
            list(stream)
        found = [stream.result, model.chat("Hi", **call), model.chat("Hi", dry_run=True, **call)]
        assert [chosen_by(result.params) for result in found] == [expected] * 3


def test_generate_stays_greedy(model: Any) -> None:
    with model.stream("Hi") as stream:
        list(stream)
    for params in (model.generate("Hi").params, stream.result.params):
        assert chosen_by(params) == GREEDY and params.max_repeated_tokens == 0


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        ({}, 512),
        ({"max_repeated_tokens": None}, 512),
        ({"max_repeated_tokens": 64}, 64),
        ({"max_repeated_tokens": 0}, 0),
        ({"ignore_eos": True}, 0),
        ({"ignore_eos": True, "max_repeated_tokens": 100}, 100),
    ],
)
def test_answers_end_when_they_repeat_themselves(model: Any, call: Any, expected: int) -> None:
    assert model.chat("Hi", max_new_tokens=3, **call).params.max_repeated_tokens == expected


@pytest.mark.parametrize(
    ("value", "error"),
    [(63, ValueError), (1, ValueError), (-1, ValueError), (2**31, ValueError), ("64", TypeError), (True, TypeError), (64.0, TypeError)],
)
def test_a_wrong_number_of_repeated_tokens_is_named(model: Any, value: Any, error: type[Exception]) -> None:
    for call in (model.generate, model.chat):
        with pytest.raises(error, match="max_repeated_tokens"):
            call("Hi", max_repeated_tokens=value)


def test_the_summary_tells_how_answers_are_sampled(model: Any, pumice: Any, tmp_path: Path) -> None:
    assert "sampling: greedy, chat() temperature 0.8, top_k 40, top_p 0.95, min_p 0.05; chat template: yes" in str(model.summary())
    with pumice.load(write_model(tmp_path / "m.gguf", **{"general.sampling.temp": 0.5})) as other:
        assert "sampling: temperature 0.5; chat template: yes" in str(other.summary())
    with pumice.load(write_model(tmp_path / "n.gguf", **{"tokenizer.chat_template": None})) as other:
        assert "sampling: greedy; chat template: none" in str(other.summary())
