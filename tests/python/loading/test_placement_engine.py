"""plan() of a file with 70 billion weights, of which only the metadata is read; missing devices; the placement of a model on the CPU."""

from __future__ import annotations

import re
import struct
from pathlib import Path

import pytest
import samples

import pumice


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value)) + value.encode()


def seventy_billion(path: Path) -> Path:
    """Writes a GGUF file of Llama 3 with 70 billion weights in Q4_K. The 37 GiB of weights are a hole in the file. The shapes are those of
    Meta-Llama-3-70B (transformers' LlamaConfig)."""
    layers, hidden, kv, ffn, vocab = 80, 8192, 1024, 28672, 128256
    numbers = {"block_count": layers, "embedding_length": hidden, "feed_forward_length": ffn, "context_length": 8192}
    numbers |= {"attention.head_count": 64, "attention.head_count_kv": 8}
    keys = [text("general.architecture") + struct.pack("<I", 8) + text("llama")]
    keys += [text(f"llama.{name}") + struct.pack("<II", 4, value) for name, value in numbers.items()]
    floats = {"attention.layer_norm_rms_epsilon": 1e-5, "rope.freq_base": 5e5}
    keys += [text(f"llama.{name}") + struct.pack("<If", 6, value) for name, value in floats.items()]
    shapes: dict[str, tuple[int, ...]] = {"token_embd": (hidden, vocab), "output": (hidden, vocab), "output_norm": (hidden,)}
    for i in range(layers):
        shapes |= {f"blk.{i}.attn_norm": (hidden,), f"blk.{i}.ffn_norm": (hidden,)}
        shapes |= {f"blk.{i}.attn_q": (hidden, hidden), f"blk.{i}.attn_k": (hidden, kv), f"blk.{i}.attn_v": (hidden, kv)}
        shapes |= {f"blk.{i}.attn_output": (hidden, hidden)}
        shapes |= {f"blk.{i}.ffn_gate": (hidden, ffn), f"blk.{i}.ffn_up": (hidden, ffn), f"blk.{i}.ffn_down": (ffn, hidden)}
    tensors, offset = [], 0
    for name, shape in shapes.items():
        matrix = len(shape) == 2
        tensors.append(text(f"{name}.weight") + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, 12 if matrix else 0, offset))
        offset += shape[0] * shape[1] // 256 * 144 if matrix else shape[0] * 4
    header = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(keys)) + b"".join(keys) + b"".join(tensors)
    with path.open("wb") as file:
        file.write(header.ljust(-(-len(header) // 32) * 32, b"\0"))
        file.truncate(file.tell() + offset)
    return path


def test_a_plan_of_seventy_billion_weights(tmp_path: Path) -> None:
    path = seventy_billion(tmp_path / "seventy.gguf")
    plan = pumice.plan(path, device="cpu")
    assert [row["name"] for row in plan.rows] == ["embedding", *(f"layer {i}" for i in range(80)), "head"]
    assert {row["device"] for row in plan.rows} == {"cpu"}
    assert 36 << 30 < plan.totals["cpu"]["weights"] < 40 << 30
    assert plan.rows[1]["kv"] == plan.n_ctx * 8 * 128 * 2 * 2
    assert "70.6 B parameters" in str(plan)
    assert "layer 0-79" in str(plan)
    free = pumice.devices()[0].memory_free
    assert (plan.problem is None) == (free > plan.totals["cpu"]["weights"] + plan.scratch) or plan.kv_budget > 0
    # load() must raise the problem that plan() shows, before it takes any memory.
    if free < 36 << 30:
        assert "MiB of memory is free" in plan.problem
        with pytest.raises(MemoryError, match=re.escape(plan.problem.split(";")[0])):
            pumice.load(path, device="cpu", tokenizer=samples.minilm(), progress=False)


def test_devices_that_cannot_be_had() -> None:
    path = samples.minilm()
    with pytest.raises(pumice.DeviceNotFoundError, match=r'device "vulkan:9999": .+'):
        pumice.load(path, device="vulkan:9999")
    with pytest.raises(pumice.DeviceNotFoundError, match='device "vulkan:9999"'):
        pumice.plan(path, device="vulkan:9999")
    for layers, shown in ((3, "3"), ("all", '"all"')):
        with pytest.raises(ValueError, match=f'gpu_layers={shown} with device="cpu"'):
            pumice.load(path, device="cpu", gpu_layers=layers)
    assert pumice.devices()[0].id == "cpu"
    if not any(d.usable and d.type != "software" for d in pumice.devices()[1:]):
        with pytest.raises(pumice.DeviceNotFoundError, match="gpu_layers=3 asks for a GPU: .+Leave gpu_layers out"):
            pumice.load(path, gpu_layers=3)


def test_everything_on_the_cpu() -> None:
    for options in ({"device": "cpu"}, {"device": "cpu", "gpu_layers": 0}, {"gpu_layers": 0}):
        with pumice.load(samples.minilm(), **options) as model:
            assert model.info["device"] == "cpu"
            assert model.info["gpu_layers"] == 0
            assert [device["layers"] for device in model.info["devices"]] == [6]
            assert {row["device"] for row in model.summary().rows} == {"cpu"}
            assert model.summary().problem is None
