"""The space that SentencePiece puts before a text. A decoder drops it at the beginning of a text, and nowhere else: the text that continues
a prompt keeps it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import random_models
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, processors
from tokenizers import Tokenizer as Backend

import pumice
from pumice.generate.generation import Continuation
from pumice.generate.settings import SamplingParams
from pumice.tokens.tokenizers import Tokenizer

SPACE = "\u2581"
BOS, EOS = 510, 511
SPELLING = [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
# Decoders that drop the space at the beginning of a text, and the sign with which their vocabularies write a space.
DECODERS = {
    "Strip": (decoders.Sequence([*SPELLING, decoders.Strip(" ", 1, 0)]), SPACE),
    "Metaspace, always": (decoders.Metaspace(SPACE, "always"), SPACE),
    "Metaspace, first": (decoders.Metaspace(SPACE, "first"), SPACE),
    "Metaspace, another sign": (decoders.Metaspace("_", "always"), "_"),
    "Metaspace in a sequence": (decoders.Sequence([decoders.Metaspace(SPACE, "always"), decoders.Fuse()]), SPACE),
    "Strip of another order": (decoders.Sequence([decoders.Fuse(), decoders.Replace(SPACE, " "), decoders.Strip(" ", 1, 0)]), SPACE),
}


def backend(decoder: Any, sign: str = SPACE) -> Backend:
    """Returns a tokenizer whose token i is the word w<i> with a space before it. <s> begins each text."""
    words = {f"{sign}w{i}": i for i in range(BOS)} | {"<s>": BOS, "</s>": EOS}
    made = Backend(models.WordLevel(words, f"{sign}w0"))
    made.add_special_tokens([AddedToken("<s>", normalized=False), AddedToken("</s>", normalized=False)])
    made.normalizer = normalizers.Replace(" ", sign)
    made.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Metaspace(sign, "always"), pre_tokenizers.Split(Regex(f"{sign}w[0-9]+"), "isolated")]
    )
    made.decoder = decoder
    made.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", BOS)])
    return made


@pytest.mark.parametrize(
    ("before", "text"),
    [
        ([], "w7 w8"),
        ([BOS], "w7 w8"),
        ([BOS, EOS, BOS], "w7 w8"),
        ([BOS, 5], " w7 w8"),
        ([5], " w7 w8"),
        ([5, EOS], " w7 w8"),
        ([BOS, 5, 6, EOS, BOS], " w7 w8"),
        ([511, 600, 5], " w7 w8"),  # 600 is no token
    ],
)
@pytest.mark.parametrize("name", DECODERS)
def test_a_text_that_continues_another_keeps_its_space(name: str, before: list[int], text: str) -> None:
    tokenizer = Tokenizer(backend(*DECODERS[name]))
    assert tokenizer.encode("w7 w8").tolist() == [BOS, 7, 8]
    for steps in ([[7, 8]], [[7], [8]], [[BOS], [7], [], [8]]):
        stream = tokenizer.decode_stream(after=np.array(before, np.int32))
        assert "".join(map(stream.step, steps)) + stream.flush() == text
    for stop, said in ((" w7", ""), ("w7", text[: text.index("w7")]), ("w7 w8", text[: text.index("w7")])):
        found = Continuation(tokenizer, SamplingParams(stop=(stop,)), before)
        found.push({"ids": [7, 8], "finish_reason": "eos"})
        assert (found.text, found.stopped_by) == ((said, stop) if stop in text else (text, None))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[pumice.Model]:
    """A random model with such a tokenizer and a template that writes the messages one after the other."""
    folder = random_models.make_folder("llama_wide", tmp_path_factory.mktemp("spaces"))
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"bos_token_id": BOS, "eos_token_id": EOS}))
    template = "{{ '<s>' }}{% for m in messages %}{{ m.content }}{% endfor %}"
    decoder, sign = DECODERS["Strip"]
    with pumice.load(folder, device="cpu", tokenizer=backend(decoder, sign), chat_template=template) as found:
        yield found


FREE: Any = {"max_new_tokens": 4, "temperature": 0, "ignore_eos": True, "logit_bias": {BOS: float("-inf"), EOS: float("-inf")}}


def test_generated_texts_keep_their_space(model: pumice.Model) -> None:
    result = model.generate("w1 w2", **FREE)
    assert result.text == "".join(f" w{i}" for i in result.ids) == "".join(result.pieces)
    assert model.detokenize([*model.tokenize("w1 w2"), *result.ids]) == "w1 w2" + result.text
    with model.stream("w1 w2", **FREE) as stream:
        assert "".join(chunk.text for chunk in stream) == result.text == stream.result.text
    first = f" w{result.ids[0]}"
    assert model.generate("w1 w2", **FREE, stop=first).stopped_by == first
    assert [each.text for each in model.generate(["w1 w2", ""], **FREE)][0] == result.text
    alone = model.generate("", **FREE)
    assert alone.text == "".join(f" w{i}" for i in alone.ids)[1:]


def test_grammars_see_the_space(model: pumice.Model) -> None:
    pytest.importorskip("llguidance")
    grammar = pumice.Grammar.regex(" w[0-9] w[0-9]")
    result = model.generate("w1 w2", grammar=grammar, temperature=0, max_new_tokens=4)
    assert result.text == "".join(f" w{i}" for i in result.ids) and len(result.ids) == 2


def test_chats_keep_their_space(model: pumice.Model) -> None:
    talk = [{"role": "user", "content": "w1 w2"}]
    result = model.chat(talk, **FREE)
    assert result.text == "".join(f" w{i}" for i in result.ids)
    with model.chat(talk, stream=True, **FREE) as stream:
        assert "".join(chunk.text for chunk in stream) == result.text
    goes_on = model.chat([*talk, {"role": "assistant", "content": " w3"}], continue_final=True, **FREE)
    assert goes_on.prompt.endswith("w2 w3") and goes_on.text == "".join(f" w{i}" for i in goes_on.ids)
