"""The asynchronous calls of every kind of encoder must give the bits, errors and warnings of their blocking twins. Cancelled calls must
stop."""

from __future__ import annotations

import asyncio
import itertools
import json
import threading
import time
import warnings
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from module_models import PAIRS, TEXTS, make_folder
from patience import PATIENCE, Elapsed, Watch, report, until, wait_until

import pumice
from pumice.event_loops.waits import Waits
from pumice.event_loops.workers import Pools

Call = Coroutine[Any, Any, Any]
# Models of tests/goldens/modules. Those in TOKENS have one vector per token and none for a whole text.
SENTENCES = ["dense", "poolings", "residual", "prompt", "decoder", "clip", "static", "model2vec", "model2vec_mapped", "router"]
TOKENS = ["colbert", "late", "late_attended", "pylate"]
RANKERS = ["tanh", "logit_score"]


def loaded(name: str, folder: Path, **options: Any) -> pumice.Model:
    return pumice.load(make_folder(name, folder), **{"device": "cpu", "threads": 2, "progress": False, **options})


def together(*calls: Call) -> list[Any]:
    async def gather() -> list[Any]:
        return list(await asyncio.gather(*calls, return_exceptions=True))

    return asyncio.run(gather())


def outcome(call: Callable[[], Any]) -> tuple[Any, list[str]]:
    """Returns the result or the error of a call, and its warnings."""
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        try:
            value: Any = call()
        except Exception as error:
            value = error
    return value, [f"{warning.category.__name__}: {warning.message}" for warning in seen]


def assert_same(found: Any, wanted: Any) -> None:
    if isinstance(wanted, Exception):
        assert (type(found), str(found).removeprefix("a")) == (type(wanted), str(wanted).removeprefix("a"))
    elif isinstance(wanted, (list, tuple)):
        assert len(found) == len(wanted)
        for a, b in zip(found, wanted, strict=True):
            assert_same(a, b)
    elif isinstance(wanted, np.ndarray):
        assert found.dtype == wanted.dtype and found.shape == wanted.shape and np.array_equal(found, wanted)
    else:
        assert found == wanted


def assert_twins(call: Callable[[], Any], awaited: Callable[[], Call]) -> None:
    """Asserts that a call and its asynchronous twin give the same bits or the same error, and the same warnings."""
    (wanted, told), (found, told_too) = outcome(call), outcome(lambda: together(awaited())[0])
    assert_same(found, wanted)
    assert sorted(set(told_too)) == sorted(set(told))


def encode_twins(model: pumice.Model, inputs: Any, **given: Any) -> None:
    assert_twins(lambda: model.encode(inputs, **given), lambda: model.aencode(inputs, **given))


def rank_twins(model: pumice.Model, documents: Any, **given: Any) -> None:
    mine, other = itertools.tee(documents) if isinstance(documents, Iterator) else (documents, documents)
    assert_twins(lambda: model.rank("a stone", mine, **given), lambda: model.arank("a stone", other, **given))


MANY = TEXTS * 20  # too many texts to be computed together with other calls
PLAIN: list[dict[str, Any]] = [{}]
OPTIONS: list[dict[str, Any]] = [
    *PLAIN,
    {"normalize": False},
    {"truncate_dim": 8},
    {"precision": "ubinary"},
    {"precision": "int8"},
    {"precision": "uint8", "precision_ranges": [[-1] * 32, [1] * 32]},
    {"batch_size": 2},
    {"token_budget": 20},
    {"output": "both"},
    {"prompt": "about "},
    {"show_progress_bar": False},
]
WRONG: list[dict[str, Any]] = [
    {"precison": "int8"},
    {"prompt_name": "none of them"},
    {"truncate_dim": 10**6},
    {"truncate": "error"},
    {"truncate": "no"},
    {"batch_size": 2, "token_budget": 20},
    {"output": "words"},
    {"normalize": 1},
]


@pytest.mark.parametrize("name", SENTENCES)
def test_vectors_of_texts(name: str, tmp_path: Path) -> None:
    with loaded(name, tmp_path) as model:
        for given in OPTIONS + WRONG:
            for inputs in (TEXTS[0], TEXTS[:1], tuple(TEXTS), MANY if given in PLAIN else TEXTS):
                encode_twins(model, inputs, **given)
        for inputs in ([TEXTS[0], None], [b"bytes"], 7, ["a lone surrogate \ud800"], {"a": 1}, [], np.array(TEXTS)):
            encode_twins(model, inputs)
        encode_twins(model, TEXTS, output="tokens")
        assert_twins(lambda: model.encode(iter(TEXTS)), lambda: model.aencode(iter(TEXTS)))


@pytest.mark.parametrize("name", TOKENS)
def test_vectors_of_tokens(name: str, tmp_path: Path) -> None:
    with loaded(name, tmp_path) as model:
        for inputs in (TEXTS[0], TEXTS, MANY):
            for given in ({"output": "tokens"}, {"output": "tokens", "truncate_dim": 4}, {}, {"output": "both"}):
                encode_twins(model, inputs, **given)


@pytest.mark.parametrize("name", ["dense", "static", "model2vec"])
def test_an_array_of_the_callers_is_filled(name: str, tmp_path: Path) -> None:
    with loaded(name, tmp_path) as model:
        width = model.info["vector_size"]
        for inputs, shape in ((TEXTS, (len(TEXTS), width)), (TEXTS[0], (width,)), (TEXTS[:1], (1, width))):
            out = np.zeros(shape, np.float32)
            [found] = together(model.aencode(inputs, out=out))
            assert found is out
            assert_same(out, outcome(lambda inputs=inputs: model.encode(inputs))[0])
        for out in (np.zeros((1, width + 1), np.float32), np.zeros((len(TEXTS), width)), [0.0]):
            encode_twins(model, TEXTS, out=out)


def test_routes(tmp_path: Path) -> None:
    """aencode() must do what encode() does. encode() takes the default route (here the query route, a table of vectors), or raises an error
    if there is no default route."""
    folder = make_folder("router", tmp_path)
    file = folder / "router_config.json"
    values = json.loads(file.read_text())
    for default in ("query", None):
        values["parameters"]["default_route"] = default
        file.write_text(json.dumps(values))
        with pumice.load(folder, device="cpu") as model:
            for inputs in (TEXTS[0], TEXTS, MANY):
                encode_twins(model, inputs)


@pytest.mark.parametrize("name", [*RANKERS, "labels"])
def test_rank(name: str, tmp_path: Path) -> None:
    documents = [document for _, document in PAIRS]
    with loaded(name, tmp_path) as model:
        for given in ({}, {"top_k": 2}, {"top_k": 0}, {"truncate": "error"}, {"truncat": True}):
            for texts in (documents, documents[:1], [], documents * 40, iter(documents), ["a", None]):
                rank_twins(model, texts, **given)
        wanted = outcome(lambda: model.rank("a stone", documents))[0]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", pumice.TruncationWarning)
            for found in together(*(model.arank("a stone", documents) for _ in range(8))):
                assert_same(found, wanted)


@pytest.mark.parametrize("name", ["dense", "prompt", "static", "decoder", "router", "late"])
def test_queries_and_documents(name: str, tmp_path: Path) -> None:
    with loaded(name, tmp_path) as model:
        output: Any = "tokens" if name == "late" else "sentence"
        for inputs in (TEXTS[0], TEXTS, MANY, 7):
            for given in ({}, {"prompt": "about "}, {"normalize": True}, {"prompt_name": "none of them"}, {"truncat": True}):
                keywords = {"output": output, **given}
                assert_twins(
                    lambda i=inputs, k=keywords: model.encode_query(i, **k), lambda i=inputs, k=keywords: model.aencode_query(i, **k)
                )
                assert_twins(
                    lambda i=inputs, k=keywords: model.encode_document(i, **k), lambda i=inputs, k=keywords: model.aencode_document(i, **k)
                )
        cases = [(i % 2, TEXTS[i % 3 : i % 3 + 2]) for i in range(30)]
        wanted = [outcome(lambda d=d, t=t: (model.encode_document if d else model.encode_query)(t, output=output))[0] for d, t in cases]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", pumice.TruncationWarning)
            found = together(*((model.aencode_document if d else model.aencode_query)(t, output=output) for d, t in cases))
        assert_same(found, wanted)


@pytest.mark.parametrize("name", [*RANKERS, "labels"])
def test_predict(name: str, tmp_path: Path) -> None:
    with loaded(name, tmp_path) as model:
        for given in ({}, {"activation": "tanh"}, {"output": "labels"}, {"truncate": "error"}, {"output": "words"}, {"truncat": True}):
            for pairs in (PAIRS, PAIRS[0], [], PAIRS * 40, "a stone", ["a", None], 7):
                assert_twins(lambda p=pairs, g=given: model.predict(p, **g), lambda p=pairs, g=given: model.apredict(p, **g))


@pytest.mark.parametrize("name", ["dense", "prompt", "static", "model2vec", "router"])
def test_calls_of_one_moment(name: str, tmp_path: Path) -> None:
    """Of calls that are made at the same moment, each must get the results or the error of its own texts and options, even if every third
    call is cancelled."""
    with loaded(name, tmp_path) as model:
        given = [{}, {"normalize": False}, {"truncate_dim": 8}, {"truncate_dim": 0}, {"prompt": "of "}, {"precision": "binary"}]
        cases = [(TEXTS[i % 2 : i % 5 + 1] or TEXTS[0], given[i % len(given)]) for i in range(60)]
        wanted = [outcome(lambda inputs=inputs, o=o: model.encode(inputs, **o))[0] for inputs, o in cases]

        async def main() -> None:
            tasks = [asyncio.create_task(model.aencode(inputs, **o)) for inputs, o in cases]
            await asyncio.sleep(0.001)
            for task in tasks[::3]:
                task.cancel()
            for found, expected in zip(await asyncio.gather(*tasks, return_exceptions=True), wanted, strict=True):
                if not isinstance(found, asyncio.CancelledError):
                    assert_same(found, expected)

        with warnings.catch_warnings():
            warnings.simplefilter("ignore", pumice.TruncationWarning)
            asyncio.run(main())


def idle(model: pumice.Model) -> bool:
    """Returns whether no thread encodes for an event loop."""
    workers = Pools.of(model).encode
    return workers._free == workers._threads


@pytest.mark.parametrize("name", ["dense", "static", "model2vec", "late", "decoder", "router"])
def test_a_cancelled_aencode_reads_no_more_texts(name: str, tmp_path: Path) -> None:
    output = "tokens" if name == "late" else "sentence"
    with loaded(name, tmp_path) as model:
        wanted = model.encode("a stone", output=output)
        read = 0

        def endless() -> Iterator[str]:
            nonlocal read
            while True:
                read += 1
                yield "one two three"

        async def main() -> None:
            task = asyncio.create_task(model.aencode(endless(), output=output))
            while read < 10_000 and not task.done():
                await asyncio.sleep(0.005)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            wait_until(lambda: idle(model))

        asyncio.run(main())
        assert_same(model.encode("a stone", output=output), wanted)


@pytest.mark.parametrize("name", RANKERS)
def test_a_cancelled_arank_stops(name: str, tmp_path: Path) -> None:
    documents = [f"stone {i}" for i in range(100_000)]
    with loaded(name, tmp_path) as model:

        async def main() -> Elapsed:
            task = asyncio.create_task(model.arank("a stone", documents))
            await until(lambda: not idle(model))
            await asyncio.sleep(0.3)
            watch = Watch()
            assert not idle(model)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            wait_until(lambda: idle(model))
            return watch.elapsed()

        report("a cancelled arank()", [asyncio.run(main())], 0.5)
        assert len(model.rank("a stone", documents[:3])) == 3


@pytest.mark.parametrize("name", ["dense", "static"])
def test_a_closed_model(name: str, tmp_path: Path) -> None:
    model = loaded(name, tmp_path)
    model.close()
    encode_twins(model, "a")
    encode_twins(model, MANY)


def test_a_model_without_the_task(minilm: pumice.Model) -> None:
    rank_twins(minilm, ["b"])


def test_waits_sees_calls_that_have_not_begun(minilm: pumice.Model) -> None:
    """Calls of other tasks, and calls that have begun, failed or been cancelled do not count."""
    over, begun = threading.Event(), threading.Semaphore(0)

    def job() -> None:
        begun.release()
        over.wait(PATIENCE)

    async def main() -> None:
        with Waits() as waits:
            assert waits.longest() == 0.0
            await minilm.aencode("a stone")
            with pytest.raises(TypeError):
                await minilm.aencode([1])
            assert waits.longest() == 0.0
            pools = Pools.of(minilm)
            for workers, threads in ((pools.together, 1), (pools.encode, 64)):
                for _ in range(threads):
                    workers.run(job)
                    assert begun.acquire(timeout=PATIENCE)
            start = time.monotonic()
            tasks = [asyncio.create_task(minilm.aencode(some)) for some in ("a stone", MANY)]
            await asyncio.sleep(0.2)
            assert 0.1 < waits.longest() < time.monotonic() - start
            tasks[0].cancel()
            tasks[1].cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            assert waits.longest() == 0.0
            with Waits() as inner:
                task = asyncio.create_task(minilm.aencode("a stone"))
                await asyncio.sleep(0.1)
                assert inner.longest() > 0.0 == waits.longest()
                over.set()
                await task
                assert inner.longest() == 0.0

    try:
        asyncio.run(main())
    finally:
        over.set()
