"""stats() of encoders must count exactly what their calls compute, whichever call and whichever engine it is."""

from __future__ import annotations

import asyncio
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import token_label_models
from module_models import PAIRS, TEXTS, make_folder
from patience import PATIENCE, until, wait_until

import pumice

KEYS = {"waiting", "texts", "tokens", "runs", "busy_seconds"}


@pytest.fixture(autouse=True)
def _silent() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", pumice.TruncationWarning)
        yield


def loaded(name: str, folder: Path) -> pumice.Model:
    return pumice.load(make_folder(name, folder), device="cpu", threads=2, progress=False)


def assert_counted(model: pumice.Model, texts: int, tokens: int) -> None:
    """Asserts the totals of a model at rest."""
    stats = model.stats()
    assert (stats["waiting"], stats["texts"], stats["tokens"]) == (0, texts, tokens)
    assert (0 < stats["runs"] <= texts) if texts else stats["runs"] == 0
    assert (stats["busy_seconds"] > 0) == (texts > 0)


@pytest.mark.parametrize("name", ["dense", "prompt", "static", "model2vec", "router"])
def test_encoders(name: str, tmp_path: Path) -> None:
    with loaded(name, tmp_path) as model:
        assert set(model.stats()) == KEYS
        assert_counted(model, 0, 0)
        query, document = (call(TEXTS, details=True).tokens.sum() for call in (model.encode_query, model.encode_document))
        assert_counted(model, 2 * len(TEXTS), query + document)
        asyncio.run(model.aencode_query(TEXTS))
        asyncio.run(model.aencode_document(TEXTS * 20))
        assert_counted(model, 23 * len(TEXTS), 2 * query + 21 * document)
        model.encode([])
        with pytest.raises(ValueError, match="truncate"):
            model.encode_query(TEXTS, truncate="no")  # type: ignore[arg-type]
        assert_counted(model, 23 * len(TEXTS), 2 * query + 21 * document)


def test_tokens_and_labels_and_scores(tmp_path: Path) -> None:
    with loaded("late", tmp_path) as model:
        tokens = model.encode(TEXTS, output="tokens", details=True).tokens.sum()
        assert_counted(model, len(TEXTS), tokens)
    with loaded("dense", tmp_path / "dense") as model:
        tokens = model.encode(TEXTS, output="both", details=True).tokens.sum()
        assert_counted(model, 2 * len(TEXTS), 2 * tokens)
    with pumice.load(token_label_models.make_folder("bert_tokens", tmp_path), device="cpu", progress=False) as model:
        model.label_tokens(["a stone", "one two three"])
        assert_counted(model, 2, sum(len(model.tokenize(text)) for text in ("a stone", "one two three")))
    for name in ("tanh", "logit_score"):
        with loaded(name, tmp_path / name) as model:
            tokens = model.predict(PAIRS, details=True).tokens.sum()
            asyncio.run(model.arank("a stone", [document for _, document in PAIRS] * 30))
            stats = model.stats()
            assert stats["texts"] == 31 * len(PAIRS) and stats["tokens"] > tokens


def test_many_threads(minilm: pumice.Model) -> None:
    texts = ["one two three", "a stone"] * 3
    before, tokens = minilm.stats(), sum(len(minilm.tokenize(text)) for text in texts)
    threads = [threading.Thread(target=lambda: [minilm.encode(texts) for _ in range(5)]) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    after = minilm.stats()
    assert after["texts"] - before["texts"] == 30 * len(texts) and after["tokens"] - before["tokens"] == 30 * tokens


@pytest.mark.parametrize("name", ["dense", "static"])
def test_small_calls_that_wait(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls of aencode() that wait for the thread that tokenizes them must count as waiting."""
    with loaded(name, tmp_path) as model:
        go, inside = threading.Event(), threading.Event()
        prepare = model._encoder.prepare

        def slow(*args: Any) -> Any:
            inside.set()
            assert go.wait(PATIENCE)
            return prepare(*args)

        monkeypatch.setattr(model._encoder, "prepare", slow)

        async def main() -> None:
            tasks = [asyncio.create_task(model.aencode("a stone"))]
            while not inside.is_set():
                await asyncio.sleep(0.001)
            tasks += [asyncio.create_task(model.aencode("a stone")) for _ in range(3)]
            await until(lambda: model.stats()["waiting"] == 3)
            go.set()
            await asyncio.gather(*tasks)

        asyncio.run(main())
        stats = model.stats()
        assert stats["waiting"] == 0 and stats["texts"] == 4


def test_a_decoder_gives_both_sets(tmp_path: Path) -> None:
    with loaded("decoder", tmp_path) as model:
        both = model.stats()
        assert set(both) > KEYS | {"running", "steps", "pages_in_use", "decoded_tokens"}
        assert both["texts"] == both["tokens"] == both["busy_seconds"] == 0
        tokens = model.encode(TEXTS, details=True).tokens.sum()
        assert (model.stats()["texts"], model.stats()["tokens"], model.stats()["steps"]) == (len(TEXTS), tokens, 0)
        encoded = model.stats()["busy_seconds"]
        model.generate([1, 2, 3], max_new_tokens=3, temperature=0)
        wait_until(lambda: model.stats()["busy_seconds"] > encoded)  # a step is counted after its tokens are given
        after = model.stats()
        assert after["steps"] > 0 and after["texts"] == len(TEXTS)


def test_a_closed_model(tmp_path: Path) -> None:
    for name in ("dense", "static", "decoder"):
        model = loaded(name, tmp_path / name)
        model.close()
        with pytest.raises(ValueError, match="is closed"):
            model.stats()
