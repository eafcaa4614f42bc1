"""Folders of published models without their weights: config.json, and a safetensors file with the header of the real one and a hole for the
data, so that a folder of 140 GB takes some kilobytes on the disk. pumice.plan() reads no more than that."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from paths import TESTS

Shapes = dict[str, tuple[int, ...]]

MODELS: dict[str, dict[str, Any]] = json.loads((TESTS / "published_models.json").read_text(encoding="utf-8"))


def _linear(name: str, rows: int, cols: int) -> Shapes:
    return {f"{name}.weight": (rows, cols), f"{name}.bias": (rows,)}


def _norm(name: str, size: int) -> Shapes:
    return {f"{name}.weight": (size,), f"{name}.bias": (size,)}


def _bert(c: dict[str, Any]) -> Shapes:
    hidden, inner = c["hidden_size"], c["intermediate_size"]
    shapes: Shapes = {
        "embeddings.word_embeddings.weight": (c["vocab_size"], hidden),
        "embeddings.position_embeddings.weight": (c["max_position_embeddings"], hidden),
        "embeddings.token_type_embeddings.weight": (c["type_vocab_size"], hidden),
    }
    shapes |= _norm("embeddings.LayerNorm", hidden)
    for i in range(c["num_hidden_layers"]):
        at = f"encoder.layer.{i}."
        for part in ("query", "key", "value"):
            shapes |= _linear(f"{at}attention.self.{part}", hidden, hidden)
        shapes |= _linear(f"{at}attention.output.dense", hidden, hidden) | _norm(f"{at}attention.output.LayerNorm", hidden)
        shapes |= _linear(f"{at}intermediate.dense", inner, hidden) | _linear(f"{at}output.dense", hidden, inner)
        shapes |= _norm(f"{at}output.LayerNorm", hidden)
    return shapes | _linear("pooler.dense", hidden, hidden)


def _decoder(c: dict[str, Any]) -> Shapes:
    kind, hidden, heads = c["model_type"], c["hidden_size"], c["num_attention_heads"]
    head = c.get("head_dim", hidden // heads)
    q, kv = heads * head, c["num_key_value_heads"] * head
    shapes: Shapes = {"model.embed_tokens.weight": (c["vocab_size"], hidden), "model.norm.weight": (hidden,)}
    if not c["tie_word_embeddings"]:
        shapes["lm_head.weight"] = (c["vocab_size"], hidden)
    norms = ["input_layernorm", "post_attention_layernorm"]
    norms += ["pre_feedforward_layernorm", "post_feedforward_layernorm"] if kind == "gemma3_text" else []
    for i in range(c["num_hidden_layers"]):
        layer: Shapes = {f"{name}.weight": (hidden,) for name in norms}
        if kind == "phi3":
            layer |= {"self_attn.qkv_proj.weight": (q + 2 * kv, hidden), "mlp.gate_up_proj.weight": (2 * c["intermediate_size"], hidden)}
            layer["mlp.down_proj.weight"] = (hidden, c["intermediate_size"])
        else:
            layer |= {f"self_attn.{name}_proj.weight": (rows, hidden) for name, rows in (("q", q), ("k", kv), ("v", kv))}
            layer |= {} if "num_experts" in c else _network("mlp", hidden, c["intermediate_size"])
        layer["self_attn.o_proj.weight"] = (hidden, q)
        if kind in ("gemma3_text", "qwen3", "qwen3_moe"):
            layer |= {"self_attn.q_norm.weight": (head,), "self_attn.k_norm.weight": (head,)}
        if "num_experts" in c:
            layer["mlp.gate.weight"] = (c["num_experts"], hidden)
            for e in range(c["num_experts"]):
                layer |= _network(f"mlp.experts.{e}", hidden, c["moe_intermediate_size"])
        shapes |= {f"model.layers.{i}.{name}": shape for name, shape in layer.items()}
    return shapes


def _network(name: str, hidden: int, inner: int) -> Shapes:
    shapes: Shapes = {f"{name}.{part}_proj.weight": (inner, hidden) for part in ("gate", "up")}
    return shapes | {f"{name}.down_proj.weight": (hidden, inner)}


def shapes_of(name: str) -> Shapes:
    """Returns the shapes of a published model's tensors, by their names."""
    config = MODELS[name]["config"]
    return _bert(config) if "type_vocab_size" in config else _decoder(config)


def make_folder(name: str, target: Path) -> Path:
    """Writes the folder of a published model. Its weights are a hole in the file."""
    model = MODELS[name]
    size = {"BF16": 2, "F32": 4}[model["dtype"]]
    header, end = {}, 0
    for tensor, shape in shapes_of(name).items():
        begin, end = end, end + size * math.prod(shape)
        header[tensor] = {"dtype": model["dtype"], "shape": shape, "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    target.mkdir(parents=True)
    (target / "config.json").write_text(json.dumps(model["config"]))
    with (target / "model.safetensors").open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + end)
    return target
