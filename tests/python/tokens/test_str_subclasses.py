"""The results of a model must not depend on whether a text is a subclass of str, or on what a user does to its tokenizer."""

from __future__ import annotations

import enum
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import samples
import tokenizers

import pumice


class Colour(str, enum.Enum):
    RED = "red"


class Loud(str):
    """A str whose overridden methods return something else than its characters say."""

    def __str__(self) -> str:
        return "LOUD"

    def isascii(self) -> bool:
        return True

    def encode(self, *_: Any, **__: Any) -> bytes:
        return b"LOUD"


SPELLINGS = [Colour.RED, Loud("red"), np.str_("red")]


@pytest.mark.parametrize("text", SPELLINGS, ids=lambda text: type(text).__name__)
def test_an_encoder_takes_the_characters(minilm: pumice.Model, text: str) -> None:
    expected = minilm.encode("red")
    assert (minilm.encode(text) == expected).all()
    assert (minilm.encode([text])[0] == expected).all()
    assert (minilm.encode("dish", prompt=text) == minilm.encode("reddish")).all()
    assert minilm.tokenize(text).tolist() == minilm.tokenize("red").tolist()
    prompts = pumice.load(samples.minilm(), device="cpu", prompts={text: text})
    assert (prompts.encode("dish", prompt_name=text) == minilm.encode("reddish")).all()


@pytest.mark.parametrize("text", SPELLINGS, ids=lambda text: type(text).__name__)
def test_a_decoder_takes_the_characters(smollm2: pumice.Model, text: str) -> None:
    def ids(prompt: Any, **sampling: Any) -> list[int]:
        return smollm2.generate(prompt, max_new_tokens=3, temperature=0, **sampling).ids.tolist()

    expected = ids("red")
    assert ids(text) == expected
    assert smollm2.generate([text], max_new_tokens=3, temperature=0)[0].ids.tolist() == expected
    assert (smollm2.score(text + " blue") == smollm2.score("red blue")).all()
    stops = smollm2.generate("a", stop=[text], logit_bias={text: -1.0}, max_new_tokens=1).params
    assert stops.stop == ("red",)
    assert list(stops.logit_bias) == smollm2.tokenize("red", add_special=False).tolist()
    for spelt in ([{"role": "user", "content": text}], [{"role": "user", "content": [{"type": "text", "text": text}]}]):
        assert smollm2.chat(spelt, dry_run=True).prompt == smollm2.chat("red", dry_run=True).prompt
    asked = smollm2.chat([{"role": text, "content": "x"}], dry_run=True).prompt
    assert asked == smollm2.chat([{"role": "red", "content": "x"}], dry_run=True).prompt


def test_paths_that_are_subclasses_of_str(tmp_path: Path) -> None:
    class Place(str, enum.Enum):
        MODEL = str(samples.minilm())
        TOKENIZER = str(samples.minilm() / "tokenizer.json")
        TEMPLATE = str(tmp_path / "chat.jinja")

    (tmp_path / "chat.jinja").write_text("{{ messages[0].content }}")
    with pumice.load(Place.MODEL, device="cpu", tokenizer=Place.TOKENIZER, chat_template=Place.TEMPLATE) as model:
        assert model.path == samples.minilm()


# ---------------------------------------------------------------- tokenizers in users' hands
CHANGES: dict[str, Callable[[tokenizers.Tokenizer], Any]] = {
    "padding": lambda t: t.enable_padding(length=64),
    "truncation": lambda t: t.enable_truncation(2),
    "added tokens": lambda t: t.add_tokens(["stone wall"]),
    "post-processor": lambda t: setattr(t, "post_processor", tokenizers.processors.TemplateProcessing(single="$A", special_tokens=[])),
    "normalizer": lambda t: setattr(t.normalizer, "lowercase", False),
    "pre-tokenizer": lambda t: setattr(t, "pre_tokenizer", tokenizers.pre_tokenizers.Whitespace()),
    "model": lambda t: setattr(t.model, "continuing_subword_prefix", "@@"),
    "decoder": lambda t: setattr(t, "decoder", tokenizers.decoders.Fuse()),
    "special tokens": lambda t: setattr(t, "encode_special_tokens", True),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_user_changes_the_tokenizer(change: str) -> None:
    text = "The Stone wall's unbelievable [SEP] whitewashing."
    with pumice.load(samples.minilm(), device="cpu") as model:
        vector, ids = model.encode(text), model.tokenize(text)
        CHANGES[change](model.tokenizer)
        assert (model.encode([text, text]) == vector).all()
        assert model.tokenize(text).tolist() == ids.tolist()
        assert "whitewashing" in model.detokenize(ids)


def test_the_tokenizer_is_one_and_keeps_its_changes(minilm: pumice.Model) -> None:
    before = len(minilm.tokenizer.encode("a").ids)
    minilm.tokenizer.enable_padding(length=16)
    assert (before, len(minilm.tokenizer.encode("a").ids)) == (3, 16)
    minilm.tokenizer.no_padding()


def test_a_tokenizer_that_was_given_changes_afterwards(minilm: pumice.Model) -> None:
    given = tokenizers.Tokenizer.from_file(str(samples.minilm() / "tokenizer.json"))
    with pumice.load(samples.minilm(), device="cpu", tokenizer=given) as model:
        given.enable_padding(length=64)
        given.normalizer.lowercase = False
        assert (model.encode("A Stone") == minilm.encode("A Stone")).all()
