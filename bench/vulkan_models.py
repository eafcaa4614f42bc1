"""Decode and prefill of a model of 7B shape and random weights, and MiniLM's sentences/s, on one device: lines for docs/results.

python bench/vulkan_models.py --device vulkan:0 --minilm FOLDER [--folder build/bench] [--tiny]
"""

from __future__ import annotations

import argparse
import os
import struct
import time
from pathlib import Path

import numpy as np

import pumice
from pumice.__main__ import BENCH_TEXT

# Q4_K_M of Mistral 7B: Q6_K for the head, and for attn_v and ffn_down of half the layers; Q4_K else.
SHAPE = dict(layers=32, hidden=4096, ffn=14336, heads=32, kv_heads=8, vocabulary=32_000)
TINY = dict(layers=2, hidden=256, ffn=512, heads=4, kv_heads=2, vocabulary=30_600)  # MiniLM's tokenizer has 30,522 ids
TYPES = {"F32": (0, 1, 4, ()), "Q4_K": (12, 256, 144, (0, 2)), "Q6_K": (14, 256, 210, (208,))}  # GGUF id, block, its bytes, its f16 scales


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value)) + value.encode()


def random_tensor(kind: str, count: int, random: np.random.Generator) -> bytes:
    """Random codes under one scale: speed does not look at them, and the text means nothing."""
    _, block, size, scales = TYPES[kind]
    if kind == "F32":
        return np.ones(count, "<f4").tobytes()
    blocks = np.frombuffer(random.bytes(count // block * size), np.uint8).reshape(-1, size).copy()
    for at in scales:
        blocks[:, at : at + 2] = np.frombuffer(np.float16(1e-5).tobytes(), np.uint8)
    return bytes(blocks)


def write_gguf(path: Path, layers: int, hidden: int, ffn: int, heads: int, kv_heads: int, vocabulary: int) -> None:
    numbers = {"block_count": layers, "embedding_length": hidden, "feed_forward_length": ffn, "context_length": 4096}
    numbers |= {"attention.head_count": heads, "attention.head_count_kv": kv_heads}
    floats = {"attention.layer_norm_rms_epsilon": 1e-5, "rope.freq_base": 1e4}
    keys = [text("general.architecture") + struct.pack("<I", 8) + text("llama")]
    keys += [text(f"llama.{name}") + struct.pack("<II", 4, value) for name, value in numbers.items()]
    keys += [text(f"llama.{name}") + struct.pack("<If", 6, value) for name, value in floats.items()]
    kv = hidden // heads * kv_heads
    tensors = {"token_embd": ("Q4_K", vocabulary, hidden), "output_norm": ("F32", 1, hidden), "output": ("Q6_K", vocabulary, hidden)}
    for i in range(layers):
        more = "Q6_K" if i % 2 == 0 else "Q4_K"
        rows = {"attn_q": ("Q4_K", hidden, hidden), "attn_k": ("Q4_K", kv, hidden), "attn_v": (more, kv, hidden)}
        rows |= {"attn_output": ("Q4_K", hidden, hidden), "ffn_gate": ("Q4_K", ffn, hidden), "ffn_up": ("Q4_K", ffn, hidden)}
        rows |= {"ffn_down": (more, hidden, ffn), "attn_norm": ("F32", 1, hidden), "ffn_norm": ("F32", 1, hidden)}
        tensors |= {f"blk.{i}.{name}": tensor for name, tensor in rows.items()}
    infos, offset = b"", 0
    for name, (kind, rows_, cols) in tensors.items():
        number, block, size, _ = TYPES[kind]
        dims = (cols,) if rows_ == 1 else (cols, rows_)
        infos += text(f"{name}.weight") + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, number, offset)
        offset += -(-rows_ * cols // block * size // 32) * 32
    header = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(keys)) + b"".join(keys) + infos
    random = np.random.default_rng(1)
    unfinished = path.with_suffix(".part")
    with unfinished.open("wb") as file:
        file.write(header.ljust(-(-len(header) // 32) * 32, b"\0"))
        for kind, rows_, cols in tensors.values():
            data = random_tensor(kind, rows_ * cols, random)
            file.write(data.ljust(-(-len(data) // 32) * 32, b"\0"))
    os.replace(unfinished, path)


def line(work: str, value: float, unit: str) -> None:
    print(f"| {work} | {value:,.1f} | {unit} |", flush=True)


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--device", default="vulkan")
    arguments.add_argument("--minilm", required=True, help="the sample package's model folder; its tokenizer serves the 7B shape, too")
    arguments.add_argument("--folder", default="build/bench")
    arguments.add_argument("--tiny", action="store_true", help="small shapes, to try this program on software Vulkan")
    given = arguments.parse_args()
    folder = Path(given.folder)
    folder.mkdir(parents=True, exist_ok=True)
    name, shape = ("tiny", TINY) if given.tiny else ("7b", SHAPE)
    path = folder / f"random-{name}-q4_k_m.gguf"
    if not path.exists():
        write_gguf(path, **shape)
    prompt, new, sentences = (40, 4, 4) if given.tiny else (512, 128, 20_000)

    print("| work | speed | unit |\n|---|---|---|")
    started = time.perf_counter()
    with pumice.load(path, device=given.device, gpu_layers="all", tokenizer=given.minilm, n_ctx=prompt + new + 8, progress=False) as model:
        line(f"load of {path.stat().st_size / 2**30:.2f} GiB, {name} shape", time.perf_counter() - started, "s")
        ids = np.arange(prompt, dtype=np.int32) + 1000
        model.generate(ids[:10], max_new_tokens=2, temperature=0)
        model.generate(ids + 1, max_new_tokens=2, temperature=0)
        timings = model.generate(ids, max_new_tokens=new, temperature=0).timings
        line(f"prefill of {prompt}, {name} shape, Q4_K_M", timings["prefill_tokens_per_second"], "tokens/s")
        line(f"decode of {timings['decode_tokens']:.0f} after it", timings["decode_tokens_per_second"], "tokens/s")
    if not given.tiny:
        path.unlink()
    with pumice.load(given.minilm, device=given.device, progress=False) as model:
        words = BENCH_TEXT.split()
        texts = [" ".join(words[: 4 + i * 7 % (len(words) - 4)]) for i in range(sentences)]
        model.encode(texts[: sentences // 4])
        started = time.perf_counter()
        model.encode(texts)
        line(f"MiniLM, {sentences:,} sentences of 4 to {len(words) - 1} words", sentences / (time.perf_counter() - started), "sentences/s")


if __name__ == "__main__":
    main()
