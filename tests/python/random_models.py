"""Small model folders with weights made from their names: the same bytes on every machine, so that goldens need no weights in git."""

from __future__ import annotations

import json
import struct
import zlib
from pathlib import Path

import numpy as np
import numpy.typing as npt

GOLDENS = Path(__file__).parent.parent / "goldens" / "random_models"

# transformers configurations; vocabularies are small, text is ids.
CONFIGS: dict[str, tuple[str, dict[str, object]]] = {
    "llama3": (
        "LlamaConfig",
        dict(
            vocab_size=512,
            hidden_size=64,
            intermediate_size=160,
            num_hidden_layers=3,
            num_attention_heads=8,
            num_key_value_heads=2,
            max_position_embeddings=512,
            rope_theta=500000.0,
            rms_norm_eps=1e-5,
            tie_word_embeddings=False,
        ),
    ),
    "llama32": (
        "LlamaConfig",
        dict(
            vocab_size=512,
            hidden_size=64,
            intermediate_size=160,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=32,
            max_position_embeddings=2048,
            rope_theta=500000.0,
            rms_norm_eps=1e-5,
            tie_word_embeddings=True,
            rope_scaling=dict(
                rope_type="llama3", factor=32.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=64
            ),
        ),
    ),
    "mistral": (
        "MistralConfig",
        dict(
            vocab_size=512,
            hidden_size=64,
            intermediate_size=128,
            num_hidden_layers=3,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=512,
            sliding_window=24,
            rms_norm_eps=1e-5,
            tie_word_embeddings=False,
        ),
    ),
    "gemma3": (
        "Gemma3TextConfig",
        dict(
            vocab_size=512,
            hidden_size=64,
            intermediate_size=128,
            num_hidden_layers=7,
            num_attention_heads=4,
            num_key_value_heads=1,
            head_dim=32,
            max_position_embeddings=512,
            sliding_window=24,
            query_pre_attn_scalar=32,
            rope_theta=1000000.0,
        ),
    ),
    "yarn": (
        "LlamaConfig",
        dict(
            vocab_size=512,
            hidden_size=64,
            intermediate_size=160,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=4,
            max_position_embeddings=512,
            rope_theta=10000.0,
            rms_norm_eps=1e-5,
            tie_word_embeddings=False,
            attention_bias=True,
            rope_scaling=dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=128),
        ),
    ),
    "bert_classifier": (
        "BertConfig",
        dict(
            vocab_size=512,
            hidden_size=64,
            intermediate_size=128,
            num_hidden_layers=2,
            num_attention_heads=4,
            max_position_embeddings=128,
            num_labels=3,
        ),
    ),
}


def weights(name: str, shape: tuple[int, ...]) -> npt.NDArray[np.float32]:
    """Uniform values seeded by the tensor's name; norms lie around 1 (or 0, where a norm weight is an offset)."""
    count = int(np.prod(shape))
    with np.errstate(over="ignore"):
        z = (np.uint64(zlib.crc32(name.encode())) << np.uint64(32)) + np.arange(1, count + 1, dtype=np.uint64) * np.uint64(
            0x9E3779B97F4A7C15
        )
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)  # splitmix64 (Steele, Lea and Flood 2014)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    uniform = ((z ^ (z >> np.uint64(31))) >> np.uint64(40)).astype(np.float64) / 2**23 - 1.0
    if len(shape) == 1:
        scale, centre = 0.2, (1.0 if "norm" in name.lower() and not name.endswith("bias") else 0.0)
    else:
        scale, centre = 2.0 / np.sqrt(shape[-1]), 0.0
    return (centre + scale * uniform).astype(np.float32).reshape(shape)


def write_safetensors(path: Path, tensors: dict[str, npt.NDArray[np.float32]]) -> None:
    header: dict[str, object] = {}
    offset = 0
    for name, tensor in tensors.items():
        header[name] = {"dtype": "F32", "shape": list(tensor.shape), "data_offsets": [offset, offset + tensor.nbytes]}
        offset += tensor.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for tensor in tensors.values():
            file.write(tensor.tobytes())


def make_folder(name: str, target: Path) -> Path:
    """Writes the folder that the goldens of `name` were made with: config.json as transformers wrote it, weights made here."""
    folder = target / name
    folder.mkdir(parents=True, exist_ok=True)
    words = {
        "model": {"type": "WordLevel", "vocab": {f"w{i}": i for i in range(512)}, "unk_token": "w0"},
        "pre_tokenizer": {"type": "Whitespace"},
    }
    (folder / "tokenizer.json").write_text(json.dumps({"version": "1.0", "added_tokens": [], **words}))
    (folder / "config.json").write_bytes((GOLDENS / f"{name}.config.json").read_bytes())
    shapes = json.loads((GOLDENS / f"{name}.shapes.json").read_text())
    write_safetensors(folder / "model.safetensors", {tensor: weights(tensor, tuple(shape)) for tensor, shape in shapes.items()})
    return folder
