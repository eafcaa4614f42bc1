"""save_prefix() and load_prefix(): the same bits with and without, on any device and in any format; broken files are typed errors."""

from __future__ import annotations

import os
import random
import shutil
import struct
import threading
from pathlib import Path

import numpy as np
import pytest
import random_models

import pumice

DEVICE = f"vulkan:{os.environ.get('PUMICE_TEST_VULKAN', '0')}"
PLACES = [{"device": "cpu"}, {"device": DEVICE, "gpu_layers": "all"}, {"device": DEVICE, "gpu_layers": 1}]


def text(count: int, vocab: int, seed: int = 3) -> np.ndarray:
    return np.random.default_rng(seed).integers(5, vocab - 1, count).astype(np.int32)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return random_models.make_folder("gemma2", tmp_path_factory.mktemp("gemma2"))  # sliding windows in every second layer


def load(folder: Path, **options: object) -> pumice.Model:
    return pumice.load(folder, progress=False, **({"device": "cpu"} | options))  # type: ignore[arg-type]


@pytest.mark.parametrize("place", PLACES, ids=["cpu", "vulkan", "split"])
@pytest.mark.parametrize("kv_dtype", ["f16", "f32", "q8_0"])
def test_same_bits_with_and_without(folder: Path, tmp_path: Path, place: dict[str, object], kv_dtype: str) -> None:
    file = tmp_path / "prefix"
    with load(folder, **place, kv_dtype=kv_dtype) as model:
        ids = text(150, model.info["vocab_size"])
        assert np.array_equal(model.save_prefix(file, ids[:140]), ids[:140])
        wanted = model.generate(ids, max_new_tokens=8, logprobs=3, temperature=0)
        assert wanted.reused_tokens == 140
    with load(folder, **place, kv_dtype=kv_dtype) as model:
        assert model.generate(ids[::-1], max_new_tokens=1).reused_tokens == 0
        assert np.array_equal(model.load_prefix(file), ids[:140])
        assert model.cache_stats()["pages_in_use"] == 0
        found = model.generate(ids, max_new_tokens=8, logprobs=3, temperature=0)
    assert found.reused_tokens == 140 and found.ids.tolist() == wanted.ids.tolist()
    assert np.array_equal(found.top_logprobs, wanted.top_logprobs)
    assert [path.name for path in tmp_path.iterdir()] == ["prefix"]


def test_an_answer_is_that_without_the_file(folder: Path, tmp_path: Path) -> None:
    with load(folder) as model:
        ids = text(100, model.info["vocab_size"])
        wanted = model.generate(ids, max_new_tokens=8, logprobs=2, temperature=1, seed=3)
    with load(folder) as model:
        model.save_prefix(tmp_path / "p", ids[:64])
    with load(folder) as model:
        model.load_prefix(str(tmp_path / "p"))
        found = model.generate(ids, max_new_tokens=8, logprobs=2, temperature=1, seed=3)
    assert found.reused_tokens == 64 and np.array_equal(found.ids, wanted.ids) and np.array_equal(found.logprobs, wanted.logprobs)


OTHERS = [
    ({"kv_dtype": "f32"}, "kv_dtype f32"),
    ({"quantize": "q8_0"}, "weights"),
    ({"compute": "float32", "kv_dtype": "f16"}, "compute float32"),
]


@pytest.mark.parametrize(("options", "says"), OTHERS, ids=["kv_dtype", "quantize", "compute"])
def test_made_otherwise_is_computed_again(folder: Path, tmp_path: Path, options: dict[str, object], says: str) -> None:
    file = tmp_path / "p"
    with load(folder) as model:
        ids = text(70, model.info["vocab_size"])
        model.save_prefix(file, ids)
    with load(folder, **options) as model:
        wanted = model.logits(ids)
    with load(folder, **options) as model:
        with pytest.warns(pumice.FallbackWarning, match=f"70 tokens were computed again.*{says}"):
            assert np.array_equal(model.load_prefix(file), ids)
        assert np.array_equal(model.logits(ids), wanted)
        assert model.generate(ids, max_new_tokens=1).reused_tokens == 69


def test_another_model_is_refused(folder: Path, tmp_path: Path) -> None:
    file = tmp_path / "p"
    with load(folder) as model:
        model.save_prefix(file, text(40, 100))
    other = random_models.make_folder("mistral", tmp_path / "mistral")
    with load(other) as model, pytest.raises(pumice.ModelFormatError, match="another model") as error:
        model.load_prefix(file)
    assert error.value.field == "model"
    changed = tmp_path / "changed"
    shutil.copytree(folder, changed)
    weights = changed / "model.safetensors"
    data = bytearray(weights.read_bytes())
    data[-2:] = struct.pack("<H", 0x2E00 if len(data) % 2 == 0 else 0x2D00)
    weights.write_bytes(data)
    with load(changed) as model, pytest.raises(pumice.ModelFormatError, match="another model"):
        model.load_prefix(file)


def test_broken_files(folder: Path, tmp_path: Path) -> None:
    """Every number of the head, bytes anywhere, every length: ModelFormatError (or what its words say), and the model is as before."""
    good, bad = tmp_path / "good", tmp_path / "bad"
    draw = random.Random(5)
    with load(folder, kv_budget=1 << 22) as model:
        ids = text(75, model.info["vocab_size"])
        model.save_prefix(good, ids)
        data = good.read_bytes()
        pages = model.cache_stats()["pages_in_use"] + model.cache_stats()["pages_cached"]
        wanted = model.logits(ids)
        tried = 0

        def refused(broken: bytes, *also: type[BaseException]) -> None:
            nonlocal tried
            tried += 1
            bad.write_bytes(broken)
            with pytest.raises((pumice.ModelFormatError, *also)):
                model.load_prefix(bad)

        for length in [*range(70), *sorted(draw.sample(range(70, len(data)), 60)), len(data) - 1]:
            refused(data[:length])
        refused(data + b"\0")
        for at in range(0, 64, 4):
            for value in (0, 1, 2, 31, 2**16, 2**31 - 1, 2**31, 2**32 - 1):
                changed = data[:at] + struct.pack("<I", value) + data[at + 4 :]
                if changed != data:
                    refused(changed, pumice.ContextLengthError, MemoryError)
        for _ in range(400):
            at = draw.randrange(len(data))
            refused(data[:at] + bytes([data[at] ^ 1 << draw.randrange(8)]) + data[at + 1 :])
        for _ in range(50):
            refused(bytes(draw.randrange(256) for _ in range(draw.randrange(300))))
        assert tried > 600
        stats = model.cache_stats()
        assert stats["pages_in_use"] == 0 and stats["pages_cached"] >= pages
        assert np.array_equal(model.load_prefix(good), ids) and np.array_equal(model.logits(ids), wanted)


def test_paths(folder: Path, tmp_path: Path) -> None:
    with load(folder) as model:
        ids = text(40, model.info["vocab_size"])
        for wrong in (tmp_path, tmp_path / "no" / "p", "", "a\0b"):
            with pytest.raises((OSError, ValueError)):
                model.save_prefix(wrong, ids)
            with pytest.raises((OSError, ValueError)):
                model.load_prefix(wrong)
        with pytest.raises(TypeError, match="path"):
            model.load_prefix(3)  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="one prefix"):
            model.save_prefix(tmp_path / "p", [ids, ids])
        with pytest.raises(TypeError, match="conversation"):
            model.save_prefix(tmp_path / "p", ids, tools=[])
        assert not list(tmp_path.iterdir())
        file = tmp_path / "é 中"
        file.write_text("what was there")
        model.save_prefix(file, ids)
        assert np.array_equal(model.load_prefix(file), ids)


def test_bounded_memory(folder: Path, tmp_path: Path) -> None:
    """A prefix takes pages of kv_budget as any prompt does: what is larger is refused before anything is taken, others go first."""
    with load(folder) as model:
        page = model._core.placement()["kv_page"]
        vocab = model.info["vocab_size"]
        for i in range(6):
            model.save_prefix(tmp_path / str(i), text(128, vocab, i))
        model.save_prefix(tmp_path / "long", text(400, vocab))
    with load(folder, kv_budget=8 * page) as model:
        with pytest.raises((MemoryError, pumice.ContextLengthError), match="kv_budget|n_ctx"):
            model.load_prefix(tmp_path / "long")
        for i in range(6):
            model.load_prefix(tmp_path / str(i))
            assert model.memory()["kv_used"] <= 8 * page
        assert model.generate(text(129, vocab, 5)[:129], max_new_tokens=1).reused_tokens == 128
        assert model.cache_stats()["pages_in_use"] == 0
    with load(folder, n_ctx=100) as model, pytest.raises(pumice.ContextLengthError, match="n_ctx"):
        model.load_prefix(tmp_path / "0")


def test_beside_running_calls(folder: Path, tmp_path: Path) -> None:
    with load(folder) as model:
        vocab = model.info["vocab_size"]
        for i in range(4):
            model.save_prefix(tmp_path / str(i), text(90, vocab, i))
        wanted = [model.generate(text(60, vocab, 20 + i), max_new_tokens=40, temperature=0).ids.tolist() for i in range(4)]
    with load(folder, kv_budget=40 * page_bytes(folder)) as model:
        found: dict[int, list[int]] = {}

        def answer(i: int) -> None:
            found[i] = model.generate(text(60, vocab, 20 + i), max_new_tokens=40, temperature=0).ids.tolist()

        threads = [threading.Thread(target=answer, args=(i,)) for i in range(4)]
        threads += [threading.Thread(target=model.load_prefix, args=(tmp_path / str(i),)) for i in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert [found[i] for i in range(4)] == wanted and model.cache_stats()["pages_in_use"] == 0


def page_bytes(folder: Path) -> int:
    with load(folder) as model:
        return int(model._core.placement()["kv_page"])


def test_conversations(smollm2: pumice.Model, tmp_path: Path) -> None:
    system = {"role": "system", "content": "You answer in one word. " * 12}
    smollm2.save_prefix(tmp_path / "p", [system])
    with pumice.load(smollm2.path, device="cpu") as model:
        ids = model.load_prefix(tmp_path / "p")
        asked = [system, {"role": "user", "content": "What is the capital of France?"}]
        answer = model.chat(asked, max_tokens=8, temperature=0)
        assert 60 < answer.reused_tokens < len(ids)  # all but the beginning of an answer
        assert answer.text == smollm2.chat(asked, max_tokens=8, temperature=0).text
