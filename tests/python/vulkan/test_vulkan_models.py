"""Whole models on Vulkan, and models split between Vulkan and the CPU, compared with the CPU in float32.

The device is vulkan:0, or the one whose number PUMICE_TEST_VULKAN gives. Without such a device, the tests fail. Software Vulkan computes
one gigaflop per second, so the tests have few tokens. PUMICE_TEST_ALL=1 (make test-vulkan-all) runs all tests, with more tokens."""

from __future__ import annotations

import os
import re
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import corpus
import numpy as np
import numpy.typing as npt
import pytest
import random_models
import samples
import small_files
from op_cases import BLOCKS, FILE, PLAIN, kept_open
from paths import GOLDENS

import pumice

DEVICE = f"vulkan:{os.environ.get('PUMICE_TEST_VULKAN', '0')}"
ALL = os.environ.get("PUMICE_TEST_ALL") == "1"
DECODERS = GOLDENS / "decoders"
Logits = npt.NDArray[np.float32]


def whole(test: Any) -> Any:
    """Marks a test that takes minutes on software Vulkan, so that it runs only with PUMICE_TEST_ALL=1."""
    return test if ALL else None


@pytest.fixture(scope="module", autouse=True)
def opened() -> Iterator[None]:
    yield from kept_open(DEVICE)


def cosines(found: Logits, expected: Logits) -> npt.NDArray[np.float64]:
    a, b = found.astype(np.float64), expected.astype(np.float64)
    return (a * b).sum(1) / np.sqrt((a * a).sum(1) * (b * b).sum(1))


def agreement(found: Logits, expected: Logits) -> float:
    return float((found.argmax(1) == expected.argmax(1)).mean())


# ---------------------------------------------------------------- MiniLM
@pytest.fixture(scope="module")
def encoder() -> Iterator[pumice.Model]:
    with pumice.load(samples.minilm(), device=DEVICE) as model:
        yield model


@pytest.mark.filterwarnings("ignore::pumice.TruncationWarning")
def test_vectors_equal_those_of_the_cpu(minilm: pumice.Model, encoder: pumice.Model) -> None:
    assert encoder.info["device"] == DEVICE
    # The texts are few and short, because software Vulkan computes only 19 tokens per second on one core.
    short = [text for text in corpus.sentences(6000) if len(text) < 200]
    texts = [*short[: 2000 if ALL else 10], "", "stone " * (240 if ALL else 60)]
    found, expected = encoder.encode(texts, show_progress_bar=False), minilm.encode(texts, show_progress_bar=False)
    cosine = cosines(found, expected)
    print(f"worst cosine of {len(texts)} with the CPU: {cosine.min():.9f}")
    assert cosine.min() >= 0.99999


def test_token_vectors_equal_those_of_the_cpu(minilm: pumice.Model, encoder: pumice.Model) -> None:
    texts = ["A stone that floats.", "Interest rates rose again."]
    for found, expected in zip(encoder.encode(texts, output="tokens"), minilm.encode(texts, output="tokens"), strict=True):
        assert cosines(found, expected).min() >= 0.99999


def resident() -> int:
    """Returns the anonymous and shared memory of this process in bytes. It includes what software Vulkan uses as the memory of the
    device."""
    with open("/proc/self/smaps_rollup", encoding="ascii") as file:
        return sum(int(line.split()[1]) * 1024 for line in file if line.startswith(("Anonymous:", "SwapPss:", "Pss_Shmem:")))


@whole
def test_ten_thousand_sentences_in_one_call(minilm: pumice.Model, encoder: pumice.Model) -> None:
    words = ["granite", "basalt", "pumice", "obsidian", "marble", "slate", "chalk", "flint", "quartz", "mica"]
    texts = [f"{words[i % 10]} {words[i // 10 % 10]} {i}" for i in range(10_000)]
    encoder.encode(texts[:1000], show_progress_bar=False)
    before = resident()
    found = encoder.encode(texts, show_progress_bar=False)
    growth = resident() - before - found.nbytes
    print(f"10,000 texts: {growth / 2**20:.0f} MiB more than after 1,000")
    assert growth < 100 * 2**20
    assert cosines(found, minilm.encode(texts, show_progress_bar=False)).min() >= 0.99999


# ---------------------------------------------------------------- sample decoders
def prose(name: str, tokens: int) -> list[npt.NDArray[np.int32]]:
    """Returns windows of English prose from the golden, which have `tokens` tokens in total."""
    windows = [np.asarray(w, np.int32) for w in np.load(DECODERS / f"{name}.npz")["windows"]]
    taken: list[npt.NDArray[np.int32]] = []
    for window in windows:
        left = tokens - sum(map(len, taken))
        if left > 0:
            taken.append(window[:left])
    return taken


def logits_of(model: pumice.Model, windows: list[npt.NDArray[np.int32]]) -> Logits:
    return np.concatenate([model.logits(window, positions="all") for window in windows])


def near_float32(source: Path, windows: list[npt.NDArray[np.int32]], gpu_layers: list[Any], **options: Any) -> None:
    with pumice.load(source, device="cpu", compute="float32", kv_dtype="f32", n_ctx=512) as model:
        expected = logits_of(model, windows)
    for layers in gpu_layers:
        with pumice.load(source, device=DEVICE, gpu_layers=layers, n_ctx=512, **options) as model:
            assert model.info["gpu_layers"] == (model.info["layers"] if layers == "all" else layers)
            found = logits_of(model, windows)
        mean, top1 = cosines(found, expected).mean(), agreement(found, expected)
        print(f"{source.name}, gpu_layers={layers}, {options}: {len(found)} tokens, mean cosine {mean:.8f}, top-1 {top1:.4f}")
        assert mean >= 0.9999, layers
        assert top1 >= (0.99 if len(found) >= 500 else 1 - 1 / len(found)), layers


def test_smollm2_whole_and_split() -> None:
    near_float32(samples.smollm2(), prose("smollm2", 500 if ALL else 24), [0, 10, 20, "all"], compute="float32")


@whole
def test_smollm2_split_at_every_third_layer() -> None:
    near_float32(samples.smollm2(), prose("smollm2", 24), list(range(1, 30, 3)), compute="float32")


@whole
@pytest.mark.parametrize(("name", "source"), [("smollm2", samples.smollm2), ("gemma3", samples.gemma3)])
def test_compute_auto_is_no_further_off_than_on_the_cpu(name: str, source: Any) -> None:
    """On Vulkan, the logits must not be further from the float32 run than on the CPU (5 % more are allowed). A device with an integer dot
    product uses int8 activations, as the CPU does, and one without it uses float activations."""
    windows = prose(name, 500)
    with pumice.load(source(), device="cpu", compute="float32", kv_dtype="f32", n_ctx=512) as model:
        expected = logits_of(model, windows)
    with pumice.load(source(), device="cpu", n_ctx=512) as model:
        ours = logits_of(model, windows)
    with pumice.load(source(), device=DEVICE, n_ctx=512) as model:
        found = logits_of(model, windows)
    print(f"{name}: cosine {cosines(found, expected).mean():.8f} (CPU {cosines(ours, expected).mean():.8f})")
    assert 1 - cosines(found, expected).mean() <= 1.05 * (1 - cosines(ours, expected).mean())
    assert agreement(found, expected) >= agreement(ours, expected) - 0.005


@whole
def test_gemma3_whole_and_split() -> None:
    near_float32(samples.gemma3(), prose("gemma3", 500), ["all"], compute="float32")
    near_float32(samples.gemma3(), prose("gemma3", 24), [0, 3, 6, 9, 12, 15], compute="float32")


# ---------------------------------------------------------------- generation
@pytest.mark.parametrize("name", ["llama3", "mistral", "gemma3"])
def test_greedy_text_of_random_float32_models_equals_the_cpu(name: str, tmp_path: Path) -> None:
    folder = random_models.make_folder(name, tmp_path)
    ids = random_models.golden(name)["ids"]
    prompts = [ids[:20].tolist(), ids[5:41].tolist(), ids[3:4].tolist()]  # the sliding windows have 24 positions
    answers = []
    for device in ("cpu", DEVICE):
        with pumice.load(folder, device=device, compute="float32", kv_dtype="f32") as model:
            logits = model.logits(ids[:40], positions="all")
            together = model.generate(prompts, max_new_tokens=32, temperature=0)
            alone = model.generate(prompts[0], max_new_tokens=32, temperature=0)
            assert alone.ids.tolist() == together[0].ids.tolist()
            assert alone.reused_tokens > 0  # its prompt is still in the cache
            answers.append((logits, [result.ids.tolist() for result in together]))
    (expected, texts), (found, same) = answers
    assert np.abs(found - expected).max() <= 2e-4
    assert same == texts
    assert all(len(text) > 0 for text in same)


@pytest.mark.parametrize("gpu_layers", [1, 2])
def test_split_random_models_say_the_same(gpu_layers: int, tmp_path: Path) -> None:
    folder = random_models.make_folder("mistral", tmp_path)
    golden = random_models.golden("mistral")
    stride = int(golden["stride"])
    with pumice.load(folder, device=DEVICE, gpu_layers=gpu_layers, compute="float32", kv_dtype="f32") as model:
        assert model.info["device"] == f"cpu + {DEVICE}"
        assert np.abs(model.logits(golden["ids"][:40], positions="all")[:, ::stride] - golden["logits"][:40]).max() <= 2e-4
        assert model.generate(golden["ids"][:20], max_new_tokens=32, temperature=0).ids.tolist() == golden["greedy"][:32].tolist()


@pytest.mark.parametrize("gpu_layers", [1, "all"])
def test_likeliest_tokens_are_those_of_the_logits(gpu_layers: Any, tmp_path: Path) -> None:
    ids = random_models.golden("mistral")["ids"]
    with pumice.load(
        random_models.make_folder("mistral", tmp_path), device=DEVICE, gpu_layers=gpu_layers, compute="float32", kv_dtype="f32"
    ) as model:
        found, logits = model.score(ids, top=5), model.logits(ids, positions="all")[:-1].astype(np.float64)
        logprobs = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
        assert np.abs(np.take_along_axis(logprobs, found.top_ids, 1) - found.top_logprobs).max() <= 1e-4
        assert np.abs(-np.sort(-logprobs, axis=1)[:, :5] - found.top_logprobs).max() <= 1e-4
        assert np.abs(logprobs[np.arange(len(logprobs)), ids[1:]] - found.logprobs).max() <= 1e-4
        assert np.abs(model.score(ids) - found.logprobs).max() <= 1e-4


@pytest.fixture(scope="module")
def decoder() -> Iterator[pumice.Model]:
    with pumice.load(samples.smollm2(), device=DEVICE, n_ctx=512) as model:
        yield model


def test_text_comes_in_pieces_and_prefixes_are_reused(decoder: pumice.Model) -> None:
    prompt = "One, two, three,"
    first = decoder.generate(prompt, max_new_tokens=6, temperature=0)
    assert first.text == " four, five, six,"
    assert first.device == DEVICE
    again = decoder.generate(prompt, max_new_tokens=6, temperature=0)
    assert again.text == first.text
    assert again.reused_tokens > 0
    pieces = [chunk.text for chunk in decoder.stream(prompt, max_new_tokens=6, temperature=0)]
    assert "".join(pieces) == first.text
    assert len([piece for piece in pieces if piece]) > 1


def test_a_stream_and_an_encode_take_turns(decoder: pumice.Model, encoder: pumice.Model, minilm: pumice.Model) -> None:
    texts = ["A stone that floats.", "A stone that sinks."]
    pieces = []
    with decoder.stream("One, two, three,", max_new_tokens=4, temperature=0) as stream:
        for chunk in stream:
            pieces.append(chunk.text)
            assert cosines(encoder.encode(texts), minilm.encode(texts)).min() >= 0.99999
    assert "".join(pieces) == " four, five,"


# ---------------------------------------------------------------- memory
PROBE = """
import pumice, sys
path, device, layers = sys.argv[1:]
try:
    pumice.load(path, device=device, gpu_layers="all" if layers == "all" else int(layers), n_ctx=256, progress=False)
except pumice.OutOfDeviceMemoryError as error:
    print("does not fit:", error)
else:
    print("fits")
"""


def output_of(script: str, model: Path, *more: str, memory: int | None = None) -> str:
    """Runs a script in a process of its own and returns its output. `memory` limits the memory of the device, in bytes."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    if memory is not None:
        environment["PUMICE_VULKAN_LIMITS"] = f"memory={memory}"
    command = [sys.executable, "-c", script, str(model), DEVICE, *more]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def load_in(memory: int, layers: str) -> str:
    return output_of(PROBE, samples.smollm2(), layers, memory=memory)


def test_too_many_layers_are_refused_with_the_number_that_fits() -> None:
    memory = 80 << 20
    answer = load_in(memory, "all")
    found = re.search(r"does not fit: 30 of 30 layers need .*: (\d+) layers would fit\. Give gpu_layers=(\d+)", answer)
    assert found is not None, answer
    fits = int(found[1])
    assert 0 < fits < 30
    assert int(found[2]) == fits
    assert load_in(memory, str(fits)) == "fits"
    assert load_in(memory, str(fits + 1)).startswith(f"does not fit: {fits + 1} of 30 layers need")


FITS = """
import sys, threading
import numpy as np, pumice
path, device = sys.argv[1:]
options = dict(device=device, gpu_layers="all", compute="float32", kv_dtype="f32", progress=False)
assert pumice.plan(path, **{k: v for k, v in options.items() if k != "progress"}).problem is None
with pumice.load(path, **options) as model:
    ids = np.arange(500) * 7 % 500 + 1
    model.score(ids), model.logits(ids, positions="all"), model.logits(ids[::-1])
    errors = []
    def generate(k):
        try:
            model.generate(ids[k:k + 300], max_new_tokens=2, temperature=0)
        except BaseException as error:
            errors.append(error)
    threads = [threading.Thread(target=generate, args=(k,)) for k in range(4)]
    [t.start() for t in threads], [t.join() for t in threads]
    assert not errors, errors
    with pumice.load(path, device="cpu", compute="float32", kv_dtype="f32", progress=False) as cpu:
        assert np.abs(model.logits(ids) - cpu.logits(ids)).max() < 2e-4
    print("ran")
"""


def test_what_plan_says_fits_runs(tmp_path: Path) -> None:
    """A model must run on a device with exactly the bytes that plan() says for weights, keys and values, and scratch."""
    folder = random_models.make_folder("llama3", tmp_path)
    with pumice.load(folder, device=DEVICE, gpu_layers="all", compute="float32", kv_dtype="f32", progress=False) as model:
        planned = model.memory()
    assert output_of(FITS, folder, memory=planned["weights"] + planned["kv_budget"] + planned["scratch"]) == "ran"


FORKED = """
import os, sys, time, pumice
decoder, device, encoder = sys.argv[1:]
model, vectors = pumice.load(decoder, device=device, progress=False), pumice.load(encoder, device=device, progress=False)
def next_ids():
    return model.generate([5, 6, 7], max_new_tokens=3, temperature=0).ids.tolist()
before, stream = next_ids(), model.stream([5, 6, 7], max_new_tokens=30, temperature=0)
next(stream)
calls = {
    "load": lambda: pumice.load(decoder, device=device, progress=False),
    "generate": next_ids,
    "stream": lambda: list(stream),
    "score": lambda: model.logits([5, 6, 7]),
    "encode": lambda: vectors.encode("w1 w2"),
    "many": lambda: vectors.encode(["w1 w2"] * 50),
}
for name, call in calls.items():
    child = os.fork()
    if child == 0:
        begun = time.process_time()
        try:
            call()
        except pumice.ForkedDeviceError as error:
            os._exit(5 if time.process_time() - begun < 5 and "spawn" in str(error) else 6)
        except BaseException as error:
            print(name, repr(error), flush=True)
        os._exit(1)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if code != 5:
        print(name, code)
list(stream)
print(next_ids() == before)
"""


def test_a_model_on_the_device_in_a_forked_child_says_so(tmp_path: Path) -> None:
    """Each call of a model that the parent loaded raises ForkedDeviceError in the child, at once; the parent's model still works."""
    decoder = random_models.make_folder("mistral", tmp_path)
    assert output_of(FORKED, decoder, str(small_files.encoder_folder(tmp_path))) == "True"


# ---------------------------------------------------------------- 7B shapes
def text(value: str) -> bytes:
    return struct.pack("<Q", len(value)) + value.encode()


def random_rows(name: str, rows: int, cols: int, seed: int) -> npt.NDArray[Any]:
    """Returns packed weights with a variance of 1 / cols. Their codes are random, and their scales are like those of the weights in
    op_cases.json."""
    random = np.random.default_rng(seed)
    block, size = BLOCKS[name]
    if name in PLAIN:
        return PLAIN[name](random.uniform(0.8, 1.2, rows * cols).astype(np.float32))
    blocks = np.frombuffer(random.bytes(rows * cols // block * size), np.uint8).reshape(-1, size).copy()
    scales = random.uniform(0.5, 1.5, len(blocks)) / np.sqrt(cols)
    for offset, factor in FILE["halves"][name]:
        blocks[:, offset : offset + 2] = (factor * scales).astype("<f2").view(np.uint8).reshape(-1, 2)
    return blocks


def write_random_gguf(path: Path, vocabulary: int, ffn: int, kv: int, base: float) -> Path:
    """Writes two layers of a Llama of full width in the formats of Q4_K_M: Q6_K for the head, and for attn_v and ffn_down of half of the
    layers, and Q4_K for all other matrices."""
    hidden, layers = 4096, 2
    numbers = {"block_count": layers, "embedding_length": hidden, "feed_forward_length": ffn, "context_length": 8192}
    numbers |= {"attention.head_count": 32, "attention.head_count_kv": kv // 128}
    keys = [text("general.architecture") + struct.pack("<I", 8) + text("llama")]
    keys += [text(f"llama.{name}") + struct.pack("<II", 4, value) for name, value in numbers.items()]
    floats = {"attention.layer_norm_rms_epsilon": 1e-5, "rope.freq_base": base}
    keys += [text(f"llama.{name}") + struct.pack("<If", 6, value) for name, value in floats.items()]
    tensors: dict[str, tuple[str, int, int]] = {"token_embd": ("Q4_K", vocabulary, hidden), "output_norm": ("F32", 1, hidden)}
    tensors["output"] = ("Q6_K", vocabulary, hidden)
    for i in range(layers):
        more = "Q6_K" if i == 0 else "Q4_K"
        tensors |= {f"blk.{i}.attn_norm": ("F32", 1, hidden), f"blk.{i}.ffn_norm": ("F32", 1, hidden)}
        tensors |= {
            f"blk.{i}.attn_q": ("Q4_K", hidden, hidden),
            f"blk.{i}.attn_k": ("Q4_K", kv, hidden),
            f"blk.{i}.attn_v": (more, kv, hidden),
        }
        tensors |= {f"blk.{i}.attn_output": ("Q4_K", hidden, hidden), f"blk.{i}.ffn_gate": ("Q4_K", ffn, hidden)}
        tensors |= {f"blk.{i}.ffn_up": ("Q4_K", ffn, hidden), f"blk.{i}.ffn_down": (more, hidden, ffn)}
    ids = {"F32": 0, "Q4_K": 12, "Q6_K": 14}
    infos, offset = [], 0
    for name, (kind, rows, cols) in tensors.items():
        dims = (cols,) if rows == 1 else (cols, rows)
        infos.append(text(f"{name}.weight") + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, ids[kind], offset))
        offset += -(-rows * cols // BLOCKS[kind][0] * BLOCKS[kind][1] // 32) * 32
    header = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(keys)) + b"".join(keys) + b"".join(infos)
    with path.open("wb") as file:
        file.write(header.ljust(-(-len(header) // 32) * 32, b"\0"))
        for seed, (kind, rows, cols) in enumerate(tensors.values()):
            data = random_rows(kind, rows, cols, seed).tobytes()
            file.write(data.ljust(-(-len(data) // 32) * 32, b"\0"))
    return path


@pytest.mark.parametrize(
    "shape",
    [dict(vocabulary=32_000, ffn=14336, kv=1024, base=1e4), dict(vocabulary=128_256, ffn=14336, kv=1024, base=5e5)],
    ids=["mistral", "llama3"],
)
def test_two_layers_of_full_7b_width_equal_the_cpu(shape: dict[str, Any], tmp_path: Path) -> None:
    path = write_random_gguf(tmp_path / "wide.gguf", **shape)
    options: dict[str, Any] = dict(tokenizer=samples.minilm(), n_ctx=64, progress=False)
    ids = np.array([1, shape["vocabulary"] - 1, 7, 2024], np.int32)
    with pumice.load(path, device="cpu", compute="float32", kv_dtype="f32", **options) as model:
        expected = model.logits(ids, positions="all")
        following = model.generate(ids, max_new_tokens=2, temperature=0).ids.tolist()
    with pumice.load(path, device=DEVICE, gpu_layers="all", compute="float32", **options) as model:
        found = model.logits(ids, positions="all")
        assert model.generate(ids, max_new_tokens=2, temperature=0).ids.tolist() == following
    path.unlink()
    assert found.shape == (4, shape["vocabulary"])
    cosine = cosines(found, expected)
    print(f"{shape}: worst cosine {cosine.min():.9f}")
    assert cosine.min() >= 0.9999
    assert found.argmax(1).tolist() == expected.argmax(1).tolist()
