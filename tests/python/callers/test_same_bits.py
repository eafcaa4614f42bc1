"""On the CPU, results must have the same bits from run to run, with any number of threads, in any batch and order, and in each way to call.
On Vulkan another number of rows may be computed by another kernel, so numbers may differ by the documented 1e-4. There is a model of every
kind."""

from __future__ import annotations

import asyncio
import os
import random
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import random_models
from soak import DECODERS

import pumice

SPLITS = int(os.environ.get("PUMICE_TEST_SPLITS", "200"))  # for each model; `make soak` tries more
ENCODERS = {
    "encoder": "bert",
    "encoder with rope": "nomic_bert",
    "encoder with windows": "modernbert",
    "encoder with relative positions": "mpnet",
}
SAMPLED: dict[str, Any] = {"max_new_tokens": 6, "temperature": 0.9, "seed": 4, "logprobs": 2, "ignore_eos": True}


def texts(count: int) -> list[str]:
    rng = random.Random(5)
    return [" ".join(f"w{rng.randrange(3, 500)}" for _ in range(rng.choice([1, 2, 5, 17, 33, 60]))) for _ in range(count)]


def prompts(count: int) -> list[list[int]]:
    rng = random.Random(6)
    return [[rng.randrange(3, 300) for _ in range(rng.choice([1, 4, 31, 32, 33, 70]))] for _ in range(count)]


def load(folder: Path, threads: int, **options: Any) -> pumice.Model:
    return pumice.load(folder, device="cpu", threads=threads, progress=False, **options)


def variant(name: str) -> str:
    kinds = ("decoder", "encoder", "masked")
    return next(n for n, each in random_models.VARIANTS.items() if n.startswith(name) and each.kind in kinds and not each.pending)


@pytest.fixture(scope="module", params=[*DECODERS.values(), *ENCODERS.values()])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return random_models.make_folder(variant(request.param), tmp_path_factory.mktemp("models"))


def test_vectors_of_random_batches(folder: Path) -> None:
    """SPLITS random choices, orders and packings of texts give the vectors that each text has alone, with 1, 2 and 8 threads."""
    rng, given = random.Random(1), texts(40)
    with load(folder, 2, pooling="mean") as model:
        alone = np.stack([model.encode(text) for text in given])
        assert np.isfinite(alone).all()
        assert np.array_equal(np.stack([model.encode(text) for text in given]), alone)
        assert np.array_equal(asyncio.run(together(model, given)), alone)
        for _ in range(SPLITS):
            part = rng.sample(range(40), rng.randint(2, 16))
            found = model.encode([given[i] for i in part], token_budget=rng.choice([None, 1, 50, 300]))
            assert np.array_equal(found, alone[part])
    for threads in (1, 8):
        with load(folder, threads, pooling="mean") as model:
            assert np.array_equal(model.encode(given), alone)


async def together(model: pumice.Model, given: list[str]) -> np.ndarray:
    return np.stack(await asyncio.gather(*(model.aencode(text) for text in given)))


def bits(found: pumice.Generation) -> tuple[bytes, bytes, bytes]:
    assert found.logprobs is not None and found.top_logprobs is not None
    return found.ids.tobytes(), found.logprobs.tobytes(), found.top_logprobs.tobytes()


def ids_of(found: pumice.Generation) -> bytes:
    return found.ids.tobytes()


@pytest.fixture(scope="module", params=DECODERS.values(), ids=DECODERS.keys())
def decoder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return random_models.make_folder(request.param, tmp_path_factory.mktemp("decoders"))


def test_tokens_of_every_way_to_call(decoder: Path, tmp_path: Path) -> None:
    """Alone, again from the cache, in batches, as a stream, in an event loop, from threads, with guesses, from a prefix on disk, and with
    another number of threads, a prompt gives the same tokens and log-probabilities."""
    given = prompts(10)
    with load(decoder, 2) as model:
        alone = [bits(model.generate(ids, **SAMPLED)) for ids in given]
        assert [bits(model.generate(ids, **SAMPLED)) for ids in given] == alone
        assert [bits(each) for each in model.generate(given, **SAMPLED)] == alone
        rng = random.Random(2)
        for _ in range(SPLITS // 20):
            part = rng.sample(range(10), rng.randint(2, 10))
            assert [bits(each) for each in model.generate([given[i] for i in part], **SAMPLED)] == [alone[i] for i in part]
        for ids, wanted in zip(given[:4], alone):
            stream = model.stream(ids, **SAMPLED)
            chunks = list(stream)
            assert b"".join(chunk.ids.tobytes() for chunk in chunks) == wanted[0]
            assert b"".join(chunk.logprobs.tobytes() for chunk in chunks if chunk.logprobs is not None) == wanted[1]
        assert [bits(each) for each in asyncio.run(at_once(model, given))] == alone
        with ThreadPoolExecutor(10) as pool:
            assert list(pool.map(lambda ids: bits(model.generate(ids, **SAMPLED)), given)) == alone
        longest = max(range(10), key=lambda i: len(given[i]))
        model.save_prefix(tmp_path / "prefix", given[longest][:40])
    with load(decoder, 2) as model:  # nothing is cached
        guessed = [model.generate(ids, **SAMPLED, speculate={"lookup": 1, "guesses": 4}) for ids in given]
        assert [ids_of(each) for each in guessed] == [wanted[0] for wanted in alone]
    with load(decoder, 2) as model:
        model.load_prefix(tmp_path / "prefix")
        found = model.generate(given[longest], **SAMPLED)
        assert bits(found) == alone[longest] and found.reused_tokens == 40
    for threads in (1, 8):
        with load(decoder, threads) as model:
            assert [bits(each) for each in model.generate(given, **SAMPLED)] == alone


async def at_once(model: pumice.Model, given: list[list[int]]) -> list[pumice.Generation]:
    return list(await asyncio.gather(*(model.agenerate(ids, **SAMPLED) for ids in given)))


@pytest.mark.parametrize("name", ["llama3", "bert"])
def test_vectors_on_vulkan(name: str, tmp_path: Path) -> None:
    made = random_models.make_folder(variant(name), tmp_path)
    if not any(each.id.startswith("vulkan") and each.usable for each in pumice.devices()):
        pytest.skip("not run: there is no Vulkan device")
    given, rng = texts(12), random.Random(3)
    with pumice.load(made, device="vulkan", pooling="mean", progress=False) as model, load(made, 2, pooling="mean") as cpu:
        alone = model.encode(given)
        assert np.abs(alone - cpu.encode(given)).max() <= 1e-2  # the CPU's products have 8 or 13 bits
        for _ in range(6):
            part = rng.sample(range(12), rng.randint(1, 6))
            assert np.abs(model.encode([given[i] for i in part]) - alone[part]).max() <= 1e-4
