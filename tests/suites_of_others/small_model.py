"""A part of SmolLM2 as a GGUF file: its first layers, and the first tokens of its vocabulary. It says nothing of sense, and is loaded in a
tenth of the time. Suites that start a server for each test use it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pumice import _core
from pumice.gguf.container import Tensor, head_bytes, padded, raw_metadata

TOKENS, LAYERS = 4096, 2
BOS = 1  # as in llama.cpp's models, whose texts begin with this token
NAMES = "tokenizer.ggml.tokens"


def write(source: Path, target: Path) -> None:
    """Writes the part of the file `source` to `target`."""
    file = _core.open_file(str(source))
    keys: dict[str, Any] = dict(raw_metadata(source))
    tokens = file.get(NAMES)[:TOKENS]
    kept = set(tokens)
    merges = [pair for pair in file.get("tokenizer.ggml.merges") if pair.replace(" ", "") in kept]
    keys |= {NAMES: tokens, "tokenizer.ggml.merges": merges, "tokenizer.ggml.token_type": file.get("tokenizer.ggml.token_type")[:TOKENS]}
    keys |= {
        "llama.block_count": LAYERS,
        "llama.vocab_size": TOKENS,
        "tokenizer.ggml.add_bos_token": True,
        "tokenizer.ggml.bos_token_id": BOS,
    }
    keys.pop("tokenizer.ggml.scores", None)
    tensors, contents = [], []
    for name, form, shape, _ in file.tensors:
        if name.startswith("blk.") and int(name.split(".")[1]) >= LAYERS:
            continue
        cut = (TOKENS, *shape[1:]) if name in ("token_embd.weight", "output.weight") else shape
        tensor = Tensor(name, form, cut)
        tensors.append(tensor)
        contents.append(file.read(name, 0, tensor.bytes).ljust(padded(tensor.bytes), b"\0"))
    target.write_bytes(head_bytes(keys, tensors) + b"".join(contents))
