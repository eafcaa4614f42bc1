"""MiniLM from its safetensors folder: vectors must equal those of sentence-transformers and have the same bits in any batch, and the memory
that encode() takes must be bounded."""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import subprocess
import sys
from pathlib import Path

import corpus
import numpy as np
import pytest
import random_models
import samples
from op_trials import runnable
from paths import GOLDENS

import pumice

GOLDEN = GOLDENS / "minilm" / "sentences.npz"


@pytest.fixture(scope="module")
def sentences() -> list[str]:
    return corpus.sentences()


@pytest.fixture(scope="module")
def vectors(minilm: pumice.Model, sentences: list[str]) -> np.ndarray:
    with pytest.warns(pumice.TruncationWarning):
        return minilm.encode(sentences, show_progress_bar=False)


@pytest.mark.filterwarnings("ignore::pumice.TruncationWarning")
def test_every_sentence_equals_sentence_transformers(vectors: np.ndarray) -> None:
    theirs = np.load(GOLDEN)["vectors"].astype(np.float64)
    assert vectors.shape == theirs.shape == (2000, 384) and vectors.dtype == np.float32
    cosine = (vectors * theirs).sum(1) / np.sqrt((vectors.astype(np.float64) ** 2).sum(1) * (theirs**2).sum(1))
    print(f"worst cosine of 2,000 with sentence-transformers: {cosine.min():.8f}")
    assert cosine.min() >= 0.99999
    assert np.abs((vectors.astype(np.float64) ** 2).sum(1) - 1).max() < 1e-6  # the vectors are normalised


@pytest.mark.filterwarnings("ignore::pumice.TruncationWarning")
def test_same_bits_alone_in_any_batch_and_order(minilm: pumice.Model, sentences: list[str], vectors: np.ndarray) -> None:
    rng = random.Random(3)
    for i in rng.sample(range(2000), 60):
        assert np.array_equal(minilm.encode(sentences[i]), vectors[i])
    order = list(range(2000))
    rng.shuffle(order)
    for size in (2, 3, 17, 64, 200):
        part = [order.pop() for _ in range(size)]
        assert np.array_equal(minilm.encode([sentences[i] for i in part], show_progress_bar=False), vectors[part])
    part = rng.sample(range(2000), 100)
    for budget in (16, 100, 4096):
        assert np.array_equal(minilm.encode([sentences[i] for i in part], token_budget=budget), vectors[part])


@pytest.mark.filterwarnings("ignore::pumice.TruncationWarning")
@pytest.mark.parametrize("threads", [1, 2, 5])
def test_same_bits_with_any_number_of_threads(threads: int, sentences: list[str], vectors: np.ndarray) -> None:
    with pumice.load(samples.minilm(), device="cpu", threads=threads) as model:
        assert np.array_equal(model.encode(sentences[:150], show_progress_bar=False), vectors[:150])


def rss() -> int:
    """Returns the anonymous memory of this process in bytes, resident or swapped out. Mapped files do not count."""
    with open("/proc/self/smaps_rollup", encoding="ascii") as file:
        return sum(int(line.split()[1]) * 1024 for line in file if line.startswith(("Anonymous:", "SwapPss:")))


def test_memory_is_bounded(minilm: pumice.Model) -> None:
    check_memory(minilm, 10_000)


def test_memory_is_bounded_with_many_texts(tmp_path: Path) -> None:
    """Encodes by the first layer of MiniLM alone, because the number of layers changes the time and not what encode() keeps of a text."""
    folder = tmp_path / "one layer"
    shutil.copytree(samples.minilm(), folder, ignore=shutil.ignore_patterns("*.safetensors"))
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"num_hidden_layers": 1}))
    content = (samples.minilm() / "model.safetensors").read_bytes()
    begin = 8 + int.from_bytes(content[:8], "little")
    tensors = {}
    for name, told in json.loads(content[8:begin]).items():
        if name != "__metadata__" and "position_ids" not in name and not re.search(r"layer\.[1-9]", name):
            assert told["dtype"] == "F32"
            first, last = told["data_offsets"]
            tensors[name] = np.frombuffer(content[begin + first : begin + last], np.float32).reshape(told["shape"])
    random_models.write_safetensors(folder / "model.safetensors", tensors)
    with pumice.load(folder, device="cpu", progress=False) as model:
        assert model.info["layers"] == 1
        check_memory(model, 30_000)


def check_memory(model: pumice.Model, count: int) -> None:
    words = ["granite", "basalt", "pumice", "obsidian", "marble", "slate", "chalk", "flint", "quartz", "mica"]
    texts = (f"{words[i % 10]} {words[i // 10 % 10]} {i}" for i in range(count))  # a generator, so that only encode() holds texts
    model.encode("warm up")
    out = np.zeros((count, 384), np.float32) + 1  # written, so that all of it is in memory; without out= a result grows by halves
    before = rss()
    peak = before

    import threading

    stop = threading.Event()

    def watch() -> None:
        nonlocal peak
        while not stop.wait(0.1):
            peak = max(peak, rss())

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        result = model.encode(texts, show_progress_bar=False, out=out)
    finally:
        stop.set()
        watcher.join()
    assert result is out
    growth = peak - before
    print(f"{count} texts: {growth / 2**20:.0f} MiB over the model and the result")
    assert growth < 80 * 2**20  # 22 to 26 MiB; with 30,000 texts, 2 KB for each text are too much


def test_empty_texts_and_empty_lists(minilm: pumice.Model) -> None:
    both = minilm.encode(["", "stone"])
    assert np.array_equal(both[0], minilm.encode(""))
    assert np.isfinite(both).all()
    assert minilm.encode([]).shape == (0, 384)


def test_out_array_and_truncated_dimensions(minilm: pumice.Model, tmp_path: Path) -> None:
    texts = ["one stone", "two stones", "a river"]
    full = minilm.encode(texts)
    out = np.memmap(tmp_path / "vectors.f32", dtype=np.float32, shape=(3, 384), mode="w+")
    assert minilm.encode(texts, out=out) is out
    assert np.array_equal(np.asarray(out), full)
    short = minilm.encode(texts, truncate_dim=64)
    assert short.shape == (3, 64)
    assert np.allclose(short, full[:, :64] / np.linalg.norm(full[:, :64], axis=1, keepdims=True), atol=1e-6)


def test_long_texts_warn_or_raise(minilm: pumice.Model) -> None:
    long = "stone " * 600
    with pytest.warns(pumice.TruncationWarning, match="1 of 2"):
        minilm.encode(["short", long])
    with pytest.raises(pumice.ContextLengthError, match="602"):
        minilm.encode(["short", long], truncate="error")


def test_search_by_meaning_finds_the_right_sentence(minilm: pumice.Model) -> None:
    documents = [
        "Return the absolute value of the argument.",
        "Open a network connection to a server.",
        "Sort the items of the list in place.",
    ]
    scores = minilm.similarity(minilm.encode_query("how far is a number from zero"), minilm.encode_document(documents))
    assert np.argmax(scores) == 0


@pytest.mark.parametrize(("quantize", "worst", "count"), [("q8_0", 0.999, 2000), ("q4_0", 0.88, 300)])
def test_quantized_encoder(quantize: str, worst: float, count: int, sentences: list[str], vectors: np.ndarray) -> None:
    with pumice.load(samples.minilm(), device="cpu", quantize=quantize) as model:
        ours = model.encode(sentences[:count], truncate=True, show_progress_bar=False)
        assert model.memory()["weights"] < 60 * 2**20
        assert ('note: quantize="q8_0": 36 texts' in str(model.summary())) == (quantize == "q8_0")
    cosine = (ours * vectors[:count]).sum(1)
    print(f"{quantize}: worst cosine with float32 {cosine.min():.5f}")
    assert cosine.min() >= worst


SOME = 12  # sentences for each instruction set; one of 256 tokens takes 2 s with scalar code


@pytest.mark.filterwarnings("ignore::pumice.TruncationWarning")
def test_quantized_bits_depend_on_nothing_else(sentences: list[str], tmp_path: Path) -> None:
    """The vectors of a q8_0 model must have the same bits in any batch and with any instruction set, although each instruction set has its
    own kernels for q8_0 and its own layout of the codes."""
    with pumice.load(samples.minilm(), device="cpu", quantize="q8_0") as model:
        whole = model.encode(sentences[:SOME], show_progress_bar=False)
        for i in (0, 7, SOME - 1):
            assert np.array_equal(model.encode(sentences[i]), whole[i])
        assert np.array_equal(model.encode(sentences[5:9], token_budget=64, show_progress_bar=False), whole[5:9])
    program = (
        "import sys, numpy, pumice, corpus, samples\n"
        "with pumice.load(samples.minilm(), device='cpu', quantize='q8_0', threads=1) as model:\n"
        f"    numpy.save(sys.argv[1], model.encode(corpus.sentences()[:{SOME}], show_progress_bar=False))"
    )
    for isa in runnable():
        file = tmp_path / f"{isa}.npy"
        environment = os.environ | {"PUMICE_ISA": isa, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        subprocess.run([sys.executable, "-W", "ignore", "-c", program, str(file)], env=environment, timeout=300, check=True)
        assert np.array_equal(np.load(file), whole), isa


def test_pickle_reopens_the_model(minilm: pumice.Model) -> None:
    import pickle

    with pickle.loads(pickle.dumps(minilm)) as again:
        assert np.array_equal(again.encode("stone"), minilm.encode("stone"))
