"""encode(details=True) and its kin must give the results of the same calls without details, and the exact numbers of tokens."""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from module_models import TEXTS, make_folder

import pumice
from pumice.encode.windows import Reading

SENTENCES = ["dense", "poolings", "residual", "prompt", "decoder", "clip", "static", "model2vec", "model2vec_mapped", "router"]
TOKENS = ["colbert", "late", "late_attended", "pylate"]
LONG = "one two three four five six " * 30
SOME = [*TEXTS[:3], LONG, "a stone"]


@pytest.fixture(autouse=True)
def _silent() -> Iterator[None]:
    """Turns each TruncationWarning into an error, because a call with details must issue none."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", pumice.TruncationWarning)
        yield


def loaded(name: str, folder: Path, **options: Any) -> pumice.Model:
    return pumice.load(make_folder(name, folder), **{"device": "cpu", "threads": 2, "progress": False, **options})


def quietly(call: Any, *args: Any, **options: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", pumice.TruncationWarning)
        return call(*args, **options)


def whole_lengths(model: Any, texts: list[str], prompt: str = "") -> list[int]:
    """Returns the numbers of tokens of texts that are not cut. A table of vectors gets no special tokens, and leaves out unknown ones if
    its files say so."""
    static, unknown = model.info["architecture"] == "static", model._encoder._windows._unknown
    lower = model._config.lower_case
    rows = [model.tokenize((prompt + text).lower() if lower else prompt + text, add_special=not static) for text in texts]
    return [int((row != unknown).sum()) if unknown is not None else len(row) for row in rows]


def assert_details(found: Any, vectors: Any, whole: list[int], limit: int) -> None:
    assert type(found) is pumice.Encoded
    assert np.array_equal(found.vectors, vectors) and found.vectors.dtype == vectors.dtype
    assert found.tokens.dtype == found.cut.dtype == np.int32
    assert found.tokens.tolist() == [min(n, limit) for n in whole]
    assert found.cut.tolist() == [max(0, n - limit) for n in whole]


@pytest.mark.parametrize("name", SENTENCES)
def test_vectors_of_texts(name: str, tmp_path: Path) -> None:
    with loaded(name, tmp_path) as model:
        for role in ("query", "document") if name == "router" else ("",):
            route: Any = model._routes[role] if role else model
            call: Any = getattr(model, f"encode_{role}") if role else model.encode
            limit = route.info["max_tokens"]
            default = route.info["prompts"].get(role or route._config.default_prompt or "", "")
            for prompt, given in ((default, {}), ("of ", {"prompt": "of "})):
                whole = whole_lengths(route, SOME, prompt)
                wanted = quietly(call, SOME, **given)
                assert_details(call(SOME, details=True, **given), wanted, whole, limit)
                assert_details(call(iter(SOME), details=True, **given), wanted, whole, limit)
                one = call(LONG, details=True, **given)
                assert np.array_equal(one.vectors, wanted[3]) and (one.tokens, one.cut) == (min(whole[3], limit), max(0, whole[3] - limit))
                assert type(one.tokens) is type(one.cut) is int
            packed = call(SOME, details=True, precision="ubinary")
            assert_details(packed, quietly(call, SOME, precision="ubinary"), whole_lengths(route, SOME, default), limit)
            out = np.zeros((len(SOME), route.info["vector_size"]), np.float32)
            assert call(SOME, details=True, out=out).vectors is out
            nothing = call([], details=True)
            assert nothing.vectors.shape == (0, route.info["vector_size"]) and nothing.tokens.shape == nothing.cut.shape == (0,)


@pytest.mark.parametrize("name", TOKENS)
def test_vectors_of_tokens(name: str, tmp_path: Path) -> None:
    with loaded(name, tmp_path) as model:
        for call, role in ((model.encode, None), (model.encode_query, "query"), (model.encode_document, "document")):
            found, wanted = call(SOME, details=True, output="tokens"), quietly(call, SOME, output="tokens")
            assert all(np.array_equal(a, b) for a, b in zip(found.vectors, wanted, strict=True))
            windows = model._encoder._windows
            prompt = windows.prompt_text(None, role if role in model.info["prompts"] else None)
            cuts = windows.cuts(role, True)
            tokens = [windows.window([text], 0, Reading(prompt, role), cuts) for text in SOME]
            assert found.tokens.tolist() == [len(window.ids) for window in tokens]
            # A text that is doubled loses twice its own words, and the special tokens around it only once.
            twice = call([f"{LONG} {LONG}"], details=True, output="tokens")
            words = len(model.tokenize(LONG, add_special=False))
            assert found.cut[3] > 0 and twice.cut[0] - found.cut[3] == words
            assert found.cut[4] == 0 and twice.tokens[0] == found.tokens[3]


def test_both_outputs_count_once(minilm: pumice.Model) -> None:
    found = minilm.encode(TEXTS[:3], output="both", details=True)
    rows, hidden = found.vectors
    assert np.array_equal(rows, minilm.encode(TEXTS[:3]))
    assert found.tokens.tolist() == [len(row) for row in hidden] and found.cut.tolist() == [0, 0, 0]


def test_many_windows(minilm: pumice.Model) -> None:
    texts = ["a " * (i % 5 + 1) for i in range(9000)]
    found = minilm.encode(iter(texts), details=True, truncate_dim=8)
    assert found.tokens.tolist() == [i % 5 + 3 for i in range(9000)] and not found.cut.any()
    assert found.vectors.shape == (9000, 8)


def test_wrong_arguments(minilm: pumice.Model) -> None:
    with pytest.raises(TypeError, match="details must be True or False"):
        minilm.encode("a", details="yes")  # type: ignore[arg-type]
    with pytest.raises(pumice.ContextLengthError, match="text 0 has"):
        minilm.encode(LONG * 20, details=True, truncate="error")


@pytest.mark.parametrize("name", ["dense", "prompt", "static", "model2vec", "decoder", "late"])
def test_calls_of_one_moment(name: str, tmp_path: Path) -> None:
    """Each call that is computed together with others must count its own texts."""
    output: Any = "tokens" if name == "late" else "sentence"
    with loaded(name, tmp_path) as model:
        cases = [SOME[i % 5 : i % 5 + 1 + i % 3] for i in range(40)] + [LONG, "a stone", SOME * 40]
        wanted = [model.encode(inputs, details=True, output=output) for inputs in cases]

        async def main() -> list[Any]:
            return await asyncio.gather(*(model.aencode(inputs, details=True, output=output) for inputs in cases))

        for found, expected in zip(asyncio.run(main()), wanted, strict=True):
            assert np.array_equal(found.tokens, expected.tokens) and np.array_equal(found.cut, expected.cut)
            if output == "sentence":
                assert np.array_equal(found.vectors, expected.vectors)


# ---------------------------------------------------------------- pairs
DOCUMENTS = ["six five four three two", "", LONG, "a stone", "one two three", "one two three four"]


@pytest.mark.parametrize("name", ["tanh", "logit_score"])
def test_rank_and_predict(name: str, tmp_path: Path) -> None:
    with loaded(name, tmp_path) as model:
        limit, pairs = model.info["max_tokens"], [("a stone", document) for document in DOCUMENTS]
        found = model.rank("a stone", DOCUMENTS, 3, details=True)
        assert type(found) is pumice.Ranked
        assert found.hits == quietly(model.rank, "a stone", DOCUMENTS, 3)
        whole = [len(ids) for ids in _pair_ids(model, pairs)]
        assert max(whole) > limit > min(whole)
        assert found.tokens.tolist() == [min(n, limit) for n in whole] and found.tokens.dtype == np.int32
        assert found.cut.tolist() == [max(0, n - limit) for n in whole] and found.cut.dtype == np.int32
        scores = model.predict(pairs, details=True)
        assert type(scores) is pumice.Predicted
        assert np.array_equal(scores.scores, quietly(model.predict, pairs))
        assert np.array_equal(scores.tokens, found.tokens) and np.array_equal(scores.cut, found.cut)
        one = model.predict(pairs[2], details=True)
        assert one.scores == scores.scores[2] and (one.tokens, one.cut) == (limit, whole[2] - limit)
        labels = model.predict(pairs, output="labels", details=True)
        assert labels.scores == quietly(model.predict, pairs, output="labels")
        nothing = model.rank("a stone", [], details=True)
        assert nothing.hits == [] and nothing.tokens.shape == nothing.cut.shape == (0,)
        with pytest.raises(TypeError, match="details must be True or False"):
            model.rank("a", ["b"], details=1)
        with pytest.raises(pumice.ContextLengthError, match="pair 2 has"):
            model.rank("a stone", DOCUMENTS, truncate="error", details=True)


def _pair_ids(model: Any, pairs: list[tuple[str, str]]) -> list[Any]:
    """Returns the ids of pairs that are not cut."""
    if model._config.score_ids:
        return [model._message_ids(pair, "rate") for pair in pairs]
    batch = model._tokenizer.encode_pairs(pairs)
    return np.split(batch.ids, batch.offsets[1:-1])


@pytest.mark.parametrize("name", ["tanh", "logit_score"])
def test_max_document_tokens(name: str, tmp_path: Path) -> None:
    with loaded(name, tmp_path) as model:
        own = [len(model.tokenize(document, add_special=False)) for document in DOCUMENTS]
        for most in (1, 3, 4, 1000):
            found = model.rank("a stone", DOCUMENTS, max_document_tokens=most, truncate="error" if most < 9 else True, details=True)
            shorter = [" ".join(document.split()[:most]) if n > most else document for document, n in zip(DOCUMENTS, own, strict=True)]
            same = quietly(model.rank, "a stone", shorter, details=True)
            assert [(hit.index, hit.score) for hit in found.hits] == [(hit.index, hit.score) for hit in same.hits]
            assert found.tokens.tolist() == same.tokens.tolist()
            assert found.cut.tolist() == [max(0, n - most) + int(cut) for n, cut in zip(own, same.cut, strict=True)]
            assert all(hit.document == DOCUMENTS[hit.index] for hit in found.hits)
        for wrong in (0, -1, 2.5, "3"):
            with pytest.raises((TypeError, ValueError), match="max_document_tokens"):
                model.rank("a", ["b"], max_document_tokens=wrong)


def test_characters_of_several_tokens_are_cut_as_a_whole(smollm2: pumice.Model) -> None:
    """A tokenizer of bytes writes some characters as several tokens. A document that would end inside of such a character ends before
    it."""

    def count(text: str) -> int:
        return len(smollm2.tokenize(text, add_special=False))

    text, windows = "a stone 𒀀𒀁 ཉིན་ end", smollm2._encoder._windows
    assert count("𒀀") > 2
    for most in range(1, count(text) + 2):
        ((_, short),), lost = windows._shortened([("q", text)], most)
        assert text.startswith(short) and count(short) <= most and count(short) + lost[0] == count(text)
        assert most - count(short) < count("𒀀")
