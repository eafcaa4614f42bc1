"""save_prefix() and load_prefix(): a loaded prefix must not change a bit of the results, on any device and with any kv_dtype. A broken file
must raise a typed error."""

from __future__ import annotations

import importlib
import os
import random
import shutil
import socket
import stat
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import random_models
from quantised_adapters import quantised

import pumice

DEVICE = f"vulkan:{os.environ.get('PUMICE_TEST_VULKAN', '0')}"
PLACES = [{"device": "cpu"}, {"device": DEVICE, "gpu_layers": "all"}, {"device": DEVICE, "gpu_layers": 1}]


def text(count: int, vocab: int, seed: int = 3) -> np.ndarray:
    return np.random.default_rng(seed).integers(5, vocab - 1, count).astype(np.int32)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return random_models.make_folder("gemma2", tmp_path_factory.mktemp("gemma2"))  # a model with a sliding window in every second layer


def load(folder: Path, **options: object) -> pumice.Model:
    return pumice.load(folder, **({"device": "cpu", "progress": False} | options))  # type: ignore[arg-type]


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
    ({"quantize": "q8_0"}, "quantize Q8_0"),
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


def test_a_file_that_is_overwritten_after_the_load(folder: Path, tmp_path: Path) -> None:
    """A saved prefix must belong to the weights that were loaded, even if their file was overwritten after the load."""
    path = tmp_path / "model"
    shutil.copytree(folder, path)
    weights = path / "model.safetensors"
    old = weights.read_bytes()
    new = old[:-64] + bytes(b ^ 1 for b in old[-64:])
    with load(path) as model:
        ids = text(95, model.info["vocab_size"])
        with weights.open("r+b") as file:
            file.write(new)
        model.save_prefix(tmp_path / "p", ids)
    with load(path) as model, pytest.raises(pumice.ModelFormatError, match="another model"):
        model.load_prefix(tmp_path / "p")
    weights.write_bytes(old)
    with load(path) as model:
        assert np.array_equal(model.load_prefix(tmp_path / "p"), ids)


@pytest.mark.parametrize("kind", ["safetensors", "gguf"])
def test_every_weight_counts(folder: Path, tmp_path: Path, kind: str) -> None:
    """A model in which one bit of one weight differs, in any tensor, must count as another model and refuse the prefix."""
    path = tmp_path / "model.gguf"
    if kind == "gguf":
        path, _, _ = quantised("llama_wide", "q4_k", tmp_path)
        tokenizer = random_models.make_folder("llama_wide", tmp_path / "tokenizer")
        options: dict[str, object] = {"tokenizer": tokenizer, "n_ctx": 128}
        weights = path
    else:
        path = tmp_path / "model"
        shutil.copytree(folder, path)
        options, weights = {"n_ctx": 128}, path / "model.safetensors"
    with load(path, **options) as model:
        ids = text(40, model.info["vocab_size"])
        model.save_prefix(tmp_path / "p", ids)
        data = weights.read_bytes()
        tensors = model._file.tensors
    end = len(data)
    lengths = {name: size for name, _, _, size in tensors}
    # The tensors are stored one after another at the end of the file. In GGUF, each begins at a multiple of 32 bytes.
    starts, at = {}, end - sum(-(-size // 32) * 32 if kind == "gguf" else size for size in lengths.values())
    for name, size in lengths.items():
        starts[name] = at
        at += -(-size // 32) * 32 if kind == "gguf" else size
    draw, accepted, fields = random.Random(3), [], set()
    for name, start in starts.items():
        for place in (0, draw.randrange(lengths[name] // 4) * 4, lengths[name] - 4):
            changed = bytearray(data)
            changed[start + place] ^= 1  # the lowest bit of a float32, or one bit of a quantised block
            weights.write_bytes(changed)
            with load(path, **options) as model:
                try:
                    model.load_prefix(tmp_path / "p")
                    accepted.append((name, place))
                except pumice.ModelFormatError as error:
                    fields.add(error.field)
    assert accepted == [] and fields == {"model"} and len(starts) > 20


def test_a_file_that_changes_while_it_is_loaded(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """load() must raise OSError if the contents of the file change after it is opened and before its weights are read. If another file
    takes its name, the open file is unchanged, and load() must use it."""
    path = tmp_path / "model"
    shutil.copytree(folder, path)
    weights = path / "model.safetensors"
    data = weights.read_bytes()
    module = importlib.import_module("pumice.model.load")
    open_layout = module.open_layout

    def overwrite() -> None:
        with weights.open("r+b") as file:
            file.seek(len(data) - 64)
            file.write(bytes(64))

    def replace() -> None:
        (path / "new").write_bytes(bytes(len(data)))
        (path / "new").replace(weights)

    def cut() -> None:
        os.truncate(weights, len(data) // 2)

    def load_changed(change: Callable[[], None]) -> pumice.Model:
        def opened(layout: object) -> object:
            file = open_layout(layout)
            change()
            return file

        # Sets the time of the last change far back, because a file system with coarse times could give the change the same time.
        os.utime(weights, (1, 1))
        with monkeypatch.context() as patch:
            patch.setattr(module, "open_layout", opened)
            return load(path)

    for change, said in ((overwrite, "was changed after"), (cut, "was changed|ends here now")):
        with pytest.raises(OSError, match=said):
            load_changed(change)
        weights.write_bytes(data)
    with load_changed(replace) as model:  # the open file is unchanged
        ids = text(40, model.info["vocab_size"])
        model.save_prefix(tmp_path / "p", ids)
    with load(folder) as model:
        assert np.array_equal(model.load_prefix(tmp_path / "p"), ids)


def test_broken_files(folder: Path, tmp_path: Path) -> None:
    """A broken file must be refused with ModelFormatError and leave the model as it was. The test cuts the file at many lengths, changes
    bits anywhere in it, and replaces each number of its header. A replaced number may also ask for too many tokens or too much memory, and
    then the error says so."""
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
        for wrong in (tmp_path, tmp_path / "no" / "p", "a\0b"):
            with pytest.raises((OSError, ValueError)):
                model.save_prefix(wrong, ids)
            with pytest.raises((OSError, ValueError)):
                model.load_prefix(wrong)
        with pytest.raises(ValueError, match="path is empty"):
            model.save_prefix("", ids)
        with pytest.raises(ValueError, match="path is empty"):
            model.load_prefix("")
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


def test_what_is_no_plain_file_stays(folder: Path, tmp_path: Path) -> None:
    """save_prefix() must refuse to write to a pipe, a socket, a device or a folder before it computes anything, and must not change them.
    It must follow a symbolic link and keep the link."""
    os.mkfifo(tmp_path / "pipe")
    kinds = {"pipe": "a pipe", "socket": "a socket", "folder": "a folder"}
    (tmp_path / "folder").mkdir()
    if os.getuid() == 0:
        os.mknod(tmp_path / "device", 0o600 | stat.S_IFCHR, os.makedev(1, 3))  # the numbers of /dev/null
        kinds["device"] = "a device"
    (tmp_path / "link").symlink_to("folder/p")
    with load(folder) as model, socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "socket"))
        ids = text(40, model.info["vocab_size"])
        before = {path.name: path.stat().st_mode for path in tmp_path.iterdir() if path.name != "link"}
        for name, kind in kinds.items():
            with pytest.raises(OSError, match=f"{name}: is {kind}"):
                model.save_prefix(tmp_path / name, ids)
        assert model.cache_stats()["pages_cached"] == 0
        assert {path.name: path.stat().st_mode for path in tmp_path.iterdir() if path.name != "link"} == before
        model.save_prefix(tmp_path / "link", ids)
        assert (tmp_path / "link").is_symlink() and (tmp_path / "folder" / "p").is_file()
        assert np.array_equal(model.load_prefix(tmp_path / "link"), ids)


def test_a_killed_save_leaves_nothing(folder: Path, tmp_path: Path) -> None:
    code = (
        "import sys, pumice\n"
        "with pumice.load(sys.argv[1], device='cpu', progress=False) as model:\n"
        "    print(flush=True)\n"
        "    while True:\n"
        "        model.save_prefix(sys.argv[2], [5 + i % 60 for i in range(200)])\n"
    )
    target = tmp_path / "saved" / "p"
    target.parent.mkdir()
    for i in range(6):
        with subprocess.Popen([sys.executable, "-c", code, folder, target], stdout=subprocess.PIPE) as child:
            assert child.stdout and child.stdout.read(1)
            time.sleep(0.05 + 0.013 * i)
            child.kill()
    with load(folder) as model:
        ids = [5 + i % 60 for i in range(200)]
        if target.exists():  # on a busy machine, all six may have been killed before their first save
            assert model.load_prefix(target).tolist() == ids
        model.save_prefix(target, ids)
    assert [path.name for path in target.parent.iterdir()] == ["p"]


def test_a_full_disk(folder: Path, tmp_path: Path) -> None:
    """A full disk must give a typed error and leave the old file as it was."""
    code = (
        "import resource, sys, pumice\n"
        "with pumice.load(sys.argv[1], device='cpu', progress=False) as model:\n"
        "    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))\n"
        "    try:\n"
        "        model.save_prefix(sys.argv[2], [5 + i % 60 for i in range(200)])\n"
        "    except OSError as error:\n"
        "        print(error)\n"
    )
    (tmp_path / "p").write_text("what was there")
    done = subprocess.run([sys.executable, "-c", code, folder, tmp_path / "p"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and "p: cannot be written: File too large" in done.stdout, done.stderr
    assert [path.read_text() for path in tmp_path.iterdir()] == ["what was there"]


def test_bounded_memory(folder: Path, tmp_path: Path) -> None:
    """A loaded prefix takes pages of kv_budget, as a prompt does. A prefix that is too long must be refused before it takes a page. If
    there is no room for a prefix that fits, it must replace older ones."""
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
        # The last saved tokens begin an answer. They are not reused, because the user's message comes in their place.
        assert 60 < answer.reused_tokens < len(ids)
        assert answer.text == smollm2.chat(asked, max_tokens=8, temperature=0).text
