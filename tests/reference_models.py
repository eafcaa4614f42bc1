"""Reference implementations, in numpy and float64, of models whose code is not in transformers but beside the weights on the hub:
InternLM2, MiniCPM, Jina BERT 2, voyage-4-nano, Maincoder, Nanbeige 4.2, NeoBERT, Ling and nomic-embed-text v2. They are written from the
papers and facts below. So agreement with a golden made here proves agreement with these sources, and not with the original code.

InternLM2 (Cai et al. 2024, arXiv 2403.17297, section 2.1) has the block of Llama. For each key head, `attention.wqkv` has the rows of its
query heads, then those of its key, then those of its value. `attention.wo` is the output projection. `feed_forward.w1` is the gate, w3 the
up projection, and w2 the down projection. The norms are `attention_norm`, `ffn_norm` and `norm`. `tok_embeddings` is the embedding, and
`output` the head. With `bias` in config.json, wqkv and wo have biases.

MiniCPM (Hu et al. 2024, arXiv 2404.06395, appendix A.1) has the block and the names of Llama. The embedding is multiplied by `scale_emb`,
the output of each branch by scale_depth / sqrt(layers). The input rows of the head are divided by hidden_size / dim_model_base. MiniCPM 4
has longrope.

Jina BERT 2 (Günther et al. 2023, arXiv 2310.19923, section 2) is a BERT without a table of positions. It has ALiBi (Press et al. 2022) in
both directions: -slope · |i - j| is added to the scaled scores. `mlp.gated_layers` has no bias; its first half are the rows to which GELU
is applied, and its second half the rows that are multiplied by the result. `mlp.wo` has a bias. `mlp.layernorm` follows the sum.

The models of `jina-bert-v2-qk-post-norm` (for code) normalise q and k over all heads (`attention.self.layer_norm_q`, `layer_norm_k`), and
add the layer's input a second time, followed by `layer_norm_1`. Their other names are `mlp.up_gated_layer`, `mlp.down_layer` and
`layer_norm_2`. In `up_gated_layer`, the rows to which GELU is applied come second. Sources: llama.cpp (`jina-bert-v2`, and its converter of
2024) and text-embeddings-inference (`jina_code.rs`).

voyage-4-nano (2026) is a Qwen 3 (Yang et al. 2025: norms of each head of q and k before rope) without a causal mask. `linear`, without a
bias, maps each row after the final norm. Source: vLLM (`voyage.py`).

Maincoder (2026) has the block and the names of Llama, but `feed_forward` for `mlp` and `intermediate_size_mlp` for its width. Rope rotates
neighbouring columns, and norms of each head of q and k follow rope. Sources: mlx-lm (`maincoder.py`) and llama.cpp (`maincoder.cpp`).

Nanbeige 4.2 (2026) has the block and the names of Llama. Its rows go through all layers `num_loops` times. Between two times they are
normalised with `norm`, unless `skip_loop_final_norm` is set. Source: llama.cpp (`nanbeige.cpp`, and its converter).

NeoBERT (Le Breton et al. 2025, arXiv 2502.19587, table 1) has RMS norms before attention and network, no biases, and rope on neighbouring
columns. For each head, `qkv` has the rows of its query, its key and its value. `ffn.w12` has the rows to which SiLU is applied, then those
that are multiplied by the result; their number is 2/3 of `intermediate_size`, rounded up to a multiple of 8. Sources: the paper, and the
names and the order of rows in the released file, as other engines read it (gguf-py's `tensor_mapping.py` has the names, too).

Ling and Ring (Ling Team 2025, arXiv 2503.05139) have the block of Llama. `attention.query_key_value` has all queries, then all keys, then
all values. The layers after the first `first_k_dense_replace` have experts, chosen by a softmax, and a shared expert that takes every row.
The weights of the chosen experts are divided by their sum if there is more than one and `norm_topk_prob` is set. With `norm_head` each
column of the head's matrix is divided by its length plus 1e-7. Version 2 (Ling-mini-2.0; arXiv 2510.22115, section 2.1) normalises each
head of q and k before rope, which turns only the first columns of a head. A sigmoid scores its experts, and `mlp.gate.expert_bias` is added
to the scores for the choice alone: of `n_group` groups those `topk_group` remain whose two best experts have the largest sum. The weights
are divided by their sum plus 1e-20 and multiplied by `routed_scaling_factor`. Layers after `num_hidden_layers` predict draft tokens.
Sources: the code in inclusionAI/Ling and inclusionAI/Ling-V2 on GitHub, and llama.cpp (`bailingmoe.cpp`, `bailingmoe2.cpp`).

nomic-embed-text v2 (Nussbaum and Duderstadt 2025, arXiv 2502.07972) is a BERT with rope on all columns of a head. Layers i with
i mod `moe_every_n_layers` = 1 have experts in place of `mlp.fc1`, GELU and `mlp.fc2`. A softmax of `router.layer` over all experts gives
weights, of which the `moe_top_k` largest are used as they are. Rows e · n_inner to (e + 1) · n_inner of `experts.mlp.w1` and `w2` belong to
expert e, which computes GELU(x w1ᵀ) w2. `experts.bias` is added once to the weighted sum. Sources: vLLM (`bert_with_rope.py`), and
llama.cpp (`nomic-bert-moe`, and its converter) for all but the bias.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]


def head_dim(config: dict[str, Any]) -> int:
    return config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]


def shapes(config: dict[str, Any]) -> dict[str, list[int]]:
    return {
        "internlm2": internlm2_shapes,
        "minicpm": minicpm_shapes,
        "bert": jina2_shapes,
        "qwen3": voyage_shapes,
        "maincoder": llama_shapes,
        "nanbeige": llama_shapes,
        "neobert": neobert_shapes,
        "bailing_moe": bailing_shapes,
        "bailing_moe_v2": bailing_shapes,
        "nomic_bert": nomic_moe_shapes,
    }[config["model_type"]](config)


def llama_shapes(config: dict[str, Any]) -> dict[str, list[int]]:
    """Names and shapes as those of Llama, with norms of q and k for Qwen 3 and Maincoder."""
    hidden, vocab, width = config["hidden_size"], config["vocab_size"], head_dim(config)
    inner = config.get("intermediate_size_mlp") or config["intermediate_size"]
    q, kv = config["num_attention_heads"] * width, config["num_key_value_heads"] * width
    network = "feed_forward" if config["model_type"] == "maincoder" else "mlp"
    normed = config["model_type"] == "qwen3" or config.get("use_qk_norm", config["model_type"] == "maincoder")
    found = {"model.embed_tokens.weight": [vocab, hidden], "model.norm.weight": [hidden]}
    if not config["tie_word_embeddings"]:
        found["lm_head.weight"] = [vocab, hidden]
    for layer in range(config["num_hidden_layers"]):
        at = f"model.layers.{layer}."
        for name, rows, columns in (
            ("self_attn.q_proj", q, hidden),
            ("self_attn.k_proj", kv, hidden),
            ("self_attn.v_proj", kv, hidden),
            ("self_attn.o_proj", hidden, q),
            (f"{network}.gate_proj", inner, hidden),
            (f"{network}.up_proj", inner, hidden),
            (f"{network}.down_proj", hidden, inner),
        ):
            found[f"{at}{name}.weight"] = [rows, columns]
        found |= {f"{at}{name}.weight": [hidden] for name in ("input_layernorm", "post_attention_layernorm")}
        if normed:
            found |= {f"{at}self_attn.{name}.weight": [width] for name in ("q_norm", "k_norm")}
    return found


def voyage_shapes(config: dict[str, Any]) -> dict[str, list[int]]:
    return llama_shapes(config) | {"linear.weight": [config["num_labels"], config["hidden_size"]]}


def neobert_shapes(config: dict[str, Any]) -> dict[str, list[int]]:
    hidden, inner = config["hidden_size"], neobert_width(config)
    found = {"model.encoder.weight": [config["vocab_size"], hidden], "model.layer_norm.weight": [hidden]}
    for layer in range(config["num_hidden_layers"]):
        at = f"model.transformer_encoder.{layer}."
        found |= {
            f"{at}attention_norm.weight": [hidden],
            f"{at}qkv.weight": [3 * hidden, hidden],
            f"{at}wo.weight": [hidden, hidden],
            f"{at}ffn_norm.weight": [hidden],
            f"{at}ffn.w12.weight": [2 * inner, hidden],
            f"{at}ffn.w3.weight": [hidden, inner],
        }
    if "num_labels" in config:
        found |= {"dense.weight": [hidden, hidden], "dense.bias": [hidden]}
        found |= {"classifier.weight": [config["num_labels"], hidden], "classifier.bias": [config["num_labels"]]}
    return found


def neobert_width(config: dict[str, Any]) -> int:
    return (int(2 * config["intermediate_size"] / 3) + 7) // 8 * 8


def has_experts(config: dict[str, Any], layer: int) -> bool:
    return bool(layer % config["moe_every_n_layers"] == 1)


def nomic_moe_shapes(config: dict[str, Any]) -> dict[str, list[int]]:
    hidden, inner = config["n_embd"], config["n_inner"]
    found = {
        "embeddings.word_embeddings.weight": [config["vocab_size"], hidden],
        "embeddings.token_type_embeddings.weight": [config["type_vocab_size"], hidden],
        "emb_ln.weight": [hidden],
        "emb_ln.bias": [hidden],
    }

    def linear(name: str, rows: int, cols: int, bias: bool) -> None:
        found[f"{name}.weight"] = [rows, cols]
        if bias:
            found[f"{name}.bias"] = [rows]

    for layer in range(config["n_layer"]):
        at = f"encoder.layers.{layer}."
        linear(f"{at}attn.Wqkv", 3 * hidden, hidden, config["qkv_proj_bias"])
        linear(f"{at}attn.out_proj", hidden, hidden, config["qkv_proj_bias"])
        for norm in ("norm1", "norm2"):
            found |= {f"{at}{norm}.weight": [hidden], f"{at}{norm}.bias": [hidden]}
        if has_experts(config, layer):
            experts = config["num_experts"]
            linear(f"{at}mlp.router.layer", experts, hidden, False)
            found |= {f"{at}mlp.experts.mlp.{w}": [experts * inner, hidden] for w in ("w1", "w2")}
            found[f"{at}mlp.experts.bias"] = [hidden]
        else:
            linear(f"{at}mlp.fc1", inner, hidden, config["mlp_fc1_bias"])
            linear(f"{at}mlp.fc2", hidden, inner, config["mlp_fc2_bias"])
    return found


def internlm2_shapes(config: dict[str, Any]) -> dict[str, list[int]]:
    hidden, inner, vocab = config["hidden_size"], config["intermediate_size"], config["vocab_size"]
    width = head_dim(config)
    found = {"model.tok_embeddings.weight": [vocab, hidden], "model.norm.weight": [hidden]}
    if not config["tie_word_embeddings"]:
        found["output.weight"] = [vocab, hidden]
    for layer in range(config["num_hidden_layers"]):
        rows = {
            "attention.wqkv": (config["num_attention_heads"] + 2 * config["num_key_value_heads"]) * width,
            "attention.wo": hidden,
        }
        for name, count in rows.items():
            found[f"model.layers.{layer}.{name}.weight"] = [count, hidden]
            if config["bias"]:
                found[f"model.layers.{layer}.{name}.bias"] = [count]
        found |= {
            f"model.layers.{layer}.feed_forward.w1.weight": [inner, hidden],
            f"model.layers.{layer}.feed_forward.w2.weight": [hidden, inner],
            f"model.layers.{layer}.feed_forward.w3.weight": [inner, hidden],
            f"model.layers.{layer}.attention_norm.weight": [hidden],
            f"model.layers.{layer}.ffn_norm.weight": [hidden],
        }
    return found


def is_bailing2(config: dict[str, Any]) -> bool:
    return config["architectures"] == ["BailingMoeV2ForCausalLM"]


def bailing_shapes(config: dict[str, Any]) -> dict[str, list[int]]:
    hidden, vocab, width, layers = config["hidden_size"], config["vocab_size"], head_dim(config), config["num_hidden_layers"]
    rows = (config["num_attention_heads"] + 2 * config["num_key_value_heads"]) * width
    found = {"model.word_embeddings.weight": [vocab, hidden], "model.norm.weight": [hidden]}
    if not config["tie_word_embeddings"]:
        found["lm_head.weight"] = [vocab, hidden]

    def network(at: str, inner: int) -> dict[str, list[int]]:
        return {f"{at}.{name}_proj.weight": [hidden, inner] if name == "down" else [inner, hidden] for name in ("gate", "up", "down")}

    for layer in range(layers + config.get("num_nextn_predict_layers", 0)):
        at = f"model.layers.{layer}."
        draft = ("enorm", "hnorm", "final_layernorm") if layer >= layers else ()
        found |= {f"{at}{name}.weight": [hidden] for name in ("input_layernorm", "post_attention_layernorm", *draft)}
        if draft:
            found[f"{at}eh_proj.weight"] = [hidden, 2 * hidden]
        found[f"{at}attention.query_key_value.weight"] = [rows, hidden]
        found[f"{at}attention.dense.weight"] = [hidden, config["num_attention_heads"] * width]
        if config["use_qkv_bias"]:
            found[f"{at}attention.query_key_value.bias"] = [rows]
        if config["use_bias"]:
            found[f"{at}attention.dense.bias"] = [hidden]
        if config.get("use_qk_norm"):
            found |= {f"{at}attention.{name}_layernorm.weight": [width] for name in ("query", "key")}
        if layer < config["first_k_dense_replace"]:
            found |= network(f"{at}mlp", config["intermediate_size"])
            continue
        inner = config["moe_intermediate_size"]
        found[f"{at}mlp.gate.weight"] = [config["num_experts"], hidden]
        if config.get("moe_router_enable_expert_bias"):
            found[f"{at}mlp.gate.expert_bias"] = [config["num_experts"]]
        for expert in range(config["num_experts"]):
            found |= network(f"{at}mlp.experts.{expert}", inner)
        if config["num_shared_experts"]:
            found |= network(f"{at}mlp.shared_experts", inner * config["num_shared_experts"])
    return found


def minicpm_shapes(config: dict[str, Any]) -> dict[str, list[int]]:
    hidden, inner, vocab = config["hidden_size"], config["intermediate_size"], config["vocab_size"]
    keys = config["num_key_value_heads"] * head_dim(config)
    found = {"model.embed_tokens.weight": [vocab, hidden], "model.norm.weight": [hidden]}
    if not config["tie_word_embeddings"]:
        found["lm_head.weight"] = [vocab, hidden]
    for layer in range(config["num_hidden_layers"]):
        found |= {
            f"model.layers.{layer}.self_attn.q_proj.weight": [hidden, hidden],
            f"model.layers.{layer}.self_attn.k_proj.weight": [keys, hidden],
            f"model.layers.{layer}.self_attn.v_proj.weight": [keys, hidden],
            f"model.layers.{layer}.self_attn.o_proj.weight": [hidden, hidden],
            f"model.layers.{layer}.mlp.gate_proj.weight": [inner, hidden],
            f"model.layers.{layer}.mlp.up_proj.weight": [inner, hidden],
            f"model.layers.{layer}.mlp.down_proj.weight": [hidden, inner],
            f"model.layers.{layer}.input_layernorm.weight": [hidden],
            f"model.layers.{layer}.post_attention_layernorm.weight": [hidden],
        }
    return found


JINA2 = {"up": "mlp.gated_layers", "down": "mlp.wo", "norm": "mlp.layernorm"}
JINA2_CODE = {"up": "mlp.up_gated_layer", "down": "mlp.down_layer", "norm": "layer_norm_2"}


def is_code(config: dict[str, Any]) -> bool:
    return "qk-post-norm" in config["_name_or_path"]


def jina2_shapes(config: dict[str, Any]) -> dict[str, list[int]]:
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    found = {
        "embeddings.word_embeddings.weight": [config["vocab_size"], hidden],
        "embeddings.token_type_embeddings.weight": [config["type_vocab_size"], hidden],
        "embeddings.LayerNorm.weight": [hidden],
        "embeddings.LayerNorm.bias": [hidden],
    }
    code = is_code(config)
    names = JINA2_CODE if code else JINA2
    for layer in range(config["num_hidden_layers"]):
        at = f"encoder.layer.{layer}."
        for name in ("attention.self.query", "attention.self.key", "attention.self.value", "attention.output.dense"):
            found |= {f"{at}{name}.weight": [hidden, hidden], f"{at}{name}.bias": [hidden]}
        norms = ["attention.output.LayerNorm", names["norm"]]
        if code:
            norms += ["attention.self.layer_norm_q", "attention.self.layer_norm_k", "layer_norm_1"]
        for name in norms:
            found |= {f"{at}{name}.weight": [hidden], f"{at}{name}.bias": [hidden]}
        found |= {
            f"{at}{names['up']}.weight": [2 * inner, hidden],
            f"{at}{names['down']}.weight": [hidden, inner],
            f"{at}{names['down']}.bias": [hidden],
        }
    return found


def rms_norm(x: Array, weight: Array, eps: float) -> Array:
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * weight


def silu(x: Array) -> Array:
    return x / (1 + np.exp(-x))


def angles(config: dict[str, Any], length: int) -> tuple[Array, float]:
    """Returns the angles of rope, (length, head_dim / 2), and the factor by which their cosines and sines are multiplied."""
    width = head_dim(config)
    frequencies = config["rope_theta"] ** (-np.arange(0, width, 2) / width)
    scaling = config.get("rope_scaling") or {}
    magnitude = 1.0
    kind = scaling.get("rope_type", scaling.get("type"))
    if kind == "longrope":
        trained = scaling["original_max_position_embeddings"]
        factors = scaling["long_factor" if length > trained else "short_factor"]
        frequencies = frequencies / np.array(factors)
        magnitude = np.sqrt(1 + np.log(config["max_position_embeddings"] / trained) / np.log(trained))
    else:
        assert kind is None, kind
    return np.arange(length)[:, None] * frequencies, float(magnitude)


def rotate_neighbours(x: Array, turn: Array) -> Array:
    """Applies rope to x, (T, heads, head_dim). Columns 2j and 2j + 1 of a head are a pair."""
    a, b, cos, sin = x[..., ::2], x[..., 1::2], np.cos(turn)[:, None], np.sin(turn)[:, None]
    return np.stack([a * cos - b * sin, b * cos + a * sin], -1).reshape(x.shape)


def rotate(x: Array, turn: Array, magnitude: float) -> Array:
    """Applies rope to x, (T, heads, head_dim). Columns j and j + head_dim / 2 of a head are a pair."""
    half = x.shape[-1] // 2
    a, b = x[..., :half], x[..., half:]
    cos, sin = magnitude * np.cos(turn)[:, None], magnitude * np.sin(turn)[:, None]
    return np.concatenate([a * cos - b * sin, b * cos + a * sin], -1)


def layer_norm(x: Array, weight: Array, bias: Array, eps: float) -> Array:
    x = x - x.mean(-1, keepdims=True)
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * weight + bias


def gelu(x: Array) -> Array:
    return x * 0.5 * (1 + np.vectorize(math.erf)(x / math.sqrt(2)))


def alibi_slopes(heads: int) -> Array:
    """Returns the slopes of ALiBi. If `heads` is a power of two, they are a geometric sequence. Otherwise they are the sequence for the
    next lower power of two, followed by every second slope of the sequence for the next higher power."""
    below = 2 ** int(math.log2(heads))
    slopes = 2.0 ** (-8 / below * np.arange(1, below + 1))
    between = 2.0 ** (-4 / below * np.arange(1, 2 * below + 1))[::2]
    return np.concatenate([slopes, between])[:heads]


def attend(q: Array, k: Array, v: Array, causal: bool = True) -> Array:
    """Computes attention of q, (T, heads, d), over k and v, (T, key heads, d). Returns (T, heads · d)."""
    group = q.shape[1] // k.shape[1]
    k, v = k.repeat(group, 1), v.repeat(group, 1)
    scores = np.einsum("ihd,jhd->hij", q, k) / np.sqrt(q.shape[-1])
    if causal:
        scores = np.where(np.tri(len(q), dtype=bool), scores, -np.inf)
    weight = np.exp(scores - scores.max(-1, keepdims=True))
    weight /= weight.sum(-1, keepdims=True)
    return np.einsum("hij,jhd->ihd", weight, v).reshape(len(q), -1)


def decoder(config: dict[str, Any], tensors: dict[str, npt.NDArray[np.float32]]) -> Callable[[npt.NDArray[Any]], Array]:
    """Returns a function that computes logits (T, vocabulary) from ids (T,)."""
    wide = {name: tensor.astype(np.float64) for name, tensor in tensors.items()}
    run = {
        "internlm2": internlm2,
        "minicpm": minicpm,
        "maincoder": maincoder,
        "nanbeige": maincoder,
        "bailing_moe": bailing,
        "bailing_moe_v2": bailing,
    }[config["model_type"]]
    return lambda ids: run(config, wide, ids)


def internlm2(config: dict[str, Any], w: dict[str, Array], ids: npt.NDArray[Any]) -> Array:
    heads, keys, width, eps = config["num_attention_heads"], config["num_key_value_heads"], head_dim(config), config["rms_norm_eps"]
    turn, magnitude = angles(config, len(ids))
    x = w["model.tok_embeddings.weight"][ids]
    for layer in range(config["num_hidden_layers"]):
        at = f"model.layers.{layer}."

        def linear(y: Array, name: str, at: str = at) -> Array:
            return y @ w[at + name + ".weight"].T + w.get(at + name + ".bias", np.zeros(1))

        y = linear(rms_norm(x, w[at + "attention_norm.weight"], eps), "attention.wqkv").reshape(len(ids), keys, heads // keys + 2, width)
        q, k, v = y[:, :, :-2].reshape(len(ids), heads, width), y[:, :, -2], y[:, :, -1]
        x = x + linear(attend(rotate(q, turn, magnitude), rotate(k, turn, magnitude), v), "attention.wo")
        y = rms_norm(x, w[at + "ffn_norm.weight"], eps)
        x = x + linear(silu(linear(y, "feed_forward.w1")) * linear(y, "feed_forward.w3"), "feed_forward.w2")
    return rms_norm(x, w["model.norm.weight"], eps) @ w.get("output.weight", w["model.tok_embeddings.weight"]).T


def minicpm(config: dict[str, Any], w: dict[str, Array], ids: npt.NDArray[Any]) -> Array:
    heads, keys, width, eps = config["num_attention_heads"], config["num_key_value_heads"], head_dim(config), config["rms_norm_eps"]
    turn, magnitude = angles(config, len(ids))
    depth = config["scale_depth"] / np.sqrt(config["num_hidden_layers"])
    x = config["scale_emb"] * w["model.embed_tokens.weight"][ids]
    for layer in range(config["num_hidden_layers"]):
        at = f"model.layers.{layer}."
        y = rms_norm(x, w[at + "input_layernorm.weight"], eps)
        q = (y @ w[at + "self_attn.q_proj.weight"].T).reshape(len(ids), heads, width)
        k = (y @ w[at + "self_attn.k_proj.weight"].T).reshape(len(ids), keys, width)
        v = (y @ w[at + "self_attn.v_proj.weight"].T).reshape(len(ids), keys, width)
        y = attend(rotate(q, turn, magnitude), rotate(k, turn, magnitude), v)
        x = x + depth * (y @ w[at + "self_attn.o_proj.weight"].T)
        y = rms_norm(x, w[at + "post_attention_layernorm.weight"], eps)
        y = silu(y @ w[at + "mlp.gate_proj.weight"].T) * (y @ w[at + "mlp.up_proj.weight"].T)
        x = x + depth * (y @ w[at + "mlp.down_proj.weight"].T)
    x = rms_norm(x, w["model.norm.weight"], eps) / (config["hidden_size"] / config["dim_model_base"])
    return x @ w.get("lm_head.weight", w["model.embed_tokens.weight"]).T


def bailing(config: dict[str, Any], w: dict[str, Array], ids: npt.NDArray[Any]) -> Array:
    heads, keys, width, eps = config["num_attention_heads"], config["num_key_value_heads"], head_dim(config), config["rms_norm_eps"]
    turned = int(width * config.get("partial_rotary_factor", 1.0))  # columns of a head
    turn, magnitude = angles(config | {"head_dim": turned}, len(ids))
    x = w["model.word_embeddings.weight"][ids]
    for layer in range(config["num_hidden_layers"]):
        at = f"model.layers.{layer}."

        def linear(y: Array, name: str, at: str = at) -> Array:
            return np.asarray(y @ w[f"{at}{name}.weight"].T + w.get(f"{at}{name}.bias", np.zeros(1)))

        def network(y: Array, name: str, linear: Callable[[Array, str], Array] = linear) -> Array:
            return linear(silu(linear(y, f"{name}.gate_proj")) * linear(y, f"{name}.up_proj"), f"{name}.down_proj")

        y = linear(rms_norm(x, w[at + "input_layernorm.weight"], eps), "attention.query_key_value").reshape(len(ids), -1, width)
        q, k, v = np.split(y, [heads, heads + keys], 1)
        if config.get("use_qk_norm"):
            q = rms_norm(q, w[at + "attention.query_layernorm.weight"], eps)
            k = rms_norm(k, w[at + "attention.key_layernorm.weight"], eps)
        q, k = (np.concatenate([rotate(y[..., :turned], turn, magnitude), y[..., turned:]], -1) for y in (q, k))
        x = x + linear(attend(q, k, v), "attention.dense")
        y = rms_norm(x, w[at + "post_attention_layernorm.weight"], eps)
        if layer < config["first_k_dense_replace"]:
            x = x + network(y, "mlp")
            continue
        weights = bailing_weights(config, linear(y, "mlp.gate"), w.get(at + "mlp.gate.expert_bias", np.zeros(1)))
        each = np.stack([network(y, f"mlp.experts.{expert}") for expert in range(config["num_experts"])], 1)
        x = x + np.einsum("te,teh->th", weights, each)
        if config["num_shared_experts"]:
            x = x + network(y, "mlp.shared_experts")
    head = w.get("lm_head.weight", w["model.word_embeddings.weight"])
    if config.get("norm_head"):
        head = head / (np.linalg.norm(head, axis=0) + 1e-7)
    return np.asarray(rms_norm(x, w["model.norm.weight"], eps) @ head.T)


def bailing_weights(config: dict[str, Any], logits: Array, bias: Array) -> Array:
    """Returns the weight of each expert for each row, (T, experts), from the router's logits. It is 0 if the expert is not chosen."""
    count, experts = logits.shape
    chosen = config["num_experts_per_tok"]
    if is_bailing2(config):
        scores = 1 / (1 + np.exp(-logits))
        by_group = (scores + bias).reshape(count, config["n_group"], -1)
        best = np.sort(by_group, -1)[..., -2:].sum(-1)
        kept = np.argsort(-best, -1)[:, : config["topk_group"]]
        mask = np.zeros(best.shape, bool)
        np.put_along_axis(mask, kept, True, -1)
        choice = np.where(mask[..., None], by_group, -np.inf).reshape(count, experts)
    else:
        scores = np.exp(logits - logits.max(-1, keepdims=True))
        choice = scores = scores / scores.sum(-1, keepdims=True)
    best_experts = np.argsort(-choice, -1)[:, :chosen]
    weights = np.take_along_axis(scores, best_experts, -1)
    if chosen > 1 and (is_bailing2(config) or config["norm_topk_prob"]):
        weights = weights / (weights.sum(-1, keepdims=True) + 1e-20)
    found = np.zeros(logits.shape)
    np.put_along_axis(found, best_experts, weights * config.get("routed_scaling_factor", 1.0), -1)
    return found


def encoder(config: dict[str, Any], tensors: dict[str, npt.NDArray[np.float32]]) -> Callable[[npt.NDArray[Any], npt.NDArray[Any]], Array]:
    """Returns a function that computes hidden rows (T, hidden) from ids and types (T,)."""
    wide = {name: tensor.astype(np.float64) for name, tensor in tensors.items()}
    run = {"bert": jina2, "qwen3": voyage, "neobert": neobert, "nomic_bert": nomic_moe}[config["model_type"]]
    return lambda ids, types: run(config, wide, ids, types)


def classifier(config: dict[str, Any], tensors: dict[str, npt.NDArray[np.float32]]) -> Callable[[Array], Array]:
    """Returns a function that computes a NeoBERT's logits (labels,) from the hidden rows (T, hidden)."""
    w = {name: tensor.astype(np.float64) for name, tensor in tensors.items()}

    def logits(rows: Array) -> Array:
        row = np.tanh(rows[0] @ w["dense.weight"].T + w["dense.bias"])
        return np.asarray(row @ w["classifier.weight"].T + w["classifier.bias"])

    return logits


def llama_layer(config: dict[str, Any], w: dict[str, Array], at: str, x: Array) -> Array:
    """One layer of a Qwen 3, a Maincoder or a Nanbeige."""
    kind = config["model_type"]
    heads, keys, width, eps = config["num_attention_heads"], config["num_key_value_heads"], head_dim(config), config["rms_norm_eps"]
    turn, _ = angles(config, len(x))
    y = rms_norm(x, w[at + "input_layernorm.weight"], eps)
    q, k, v = (y @ w[f"{at}self_attn.{name}_proj.weight"].T for name in "qkv")
    q, k, v = q.reshape(len(x), heads, width), k.reshape(len(x), keys, width), v.reshape(len(x), keys, width)

    def normed(y: Array, name: str) -> Array:
        return rms_norm(y, w[f"{at}self_attn.{name}.weight"], eps)

    if kind == "qwen3":
        q, k = normed(q, "q_norm"), normed(k, "k_norm")
    q, k = (rotate_neighbours(y, turn) if kind == "maincoder" else rotate(y, turn, 1.0) for y in (q, k))
    if kind == "maincoder" and config.get("use_qk_norm", True):
        q, k = normed(q, "q_norm"), normed(k, "k_norm")
    x = x + attend(q, k, v, kind != "qwen3") @ w[at + "self_attn.o_proj.weight"].T
    y = rms_norm(x, w[at + "post_attention_layernorm.weight"], eps)
    gate, up, down = (w[f"{at}{'feed_forward' if kind == 'maincoder' else 'mlp'}.{name}_proj.weight"].T for name in ("gate", "up", "down"))
    return np.asarray(x + (silu(y @ gate) * (y @ up)) @ down)


def voyage(config: dict[str, Any], w: dict[str, Array], ids: npt.NDArray[Any], types: npt.NDArray[Any]) -> Array:
    x = w["model.embed_tokens.weight"][ids]
    for layer in range(config["num_hidden_layers"]):
        x = llama_layer(config, w, f"model.layers.{layer}.", x)
    return rms_norm(x, w["model.norm.weight"], config["rms_norm_eps"]) @ w["linear.weight"].T


def maincoder(config: dict[str, Any], w: dict[str, Array], ids: npt.NDArray[Any]) -> Array:
    """Maincoder and Nanbeige."""
    x = w["model.embed_tokens.weight"][ids]
    for loop in range(config.get("num_loops", 1)):
        if loop > 0 and not config.get("skip_loop_final_norm", False):
            x = rms_norm(x, w["model.norm.weight"], config["rms_norm_eps"])
        for layer in range(config["num_hidden_layers"]):
            x = llama_layer(config, w, f"model.layers.{layer}.", x)
    return rms_norm(x, w["model.norm.weight"], config["rms_norm_eps"]) @ w.get("lm_head.weight", w["model.embed_tokens.weight"]).T


def neobert(config: dict[str, Any], w: dict[str, Array], ids: npt.NDArray[Any], types: npt.NDArray[Any]) -> Array:
    heads, eps = config["num_attention_heads"], config["norm_eps"]
    turn, _ = angles(config | {"rope_theta": 10000.0}, len(ids))
    x = w["model.encoder.weight"][ids]
    for layer in range(config["num_hidden_layers"]):
        at = f"model.transformer_encoder.{layer}."
        y = rms_norm(x, w[at + "attention_norm.weight"], eps) @ w[at + "qkv.weight"].T
        q, k, v = np.split(y.reshape(len(ids), heads, -1), 3, -1)
        x = x + attend(rotate_neighbours(q, turn), rotate_neighbours(k, turn), v, False) @ w[at + "wo.weight"].T
        gate, up = np.split(rms_norm(x, w[at + "ffn_norm.weight"], eps) @ w[at + "ffn.w12.weight"].T, 2, -1)
        x = x + (silu(gate) * up) @ w[at + "ffn.w3.weight"].T
    return rms_norm(x, w["model.layer_norm.weight"], eps)


def nomic_moe(config: dict[str, Any], w: dict[str, Array], ids: npt.NDArray[Any], types: npt.NDArray[Any]) -> Array:
    heads, width, eps = config["n_head"], config["n_embd"] // config["n_head"], config["layer_norm_epsilon"]
    turn, _ = angles({"head_dim": width, "rope_theta": config["rotary_emb_base"]}, len(ids))

    def norm(y: Array, name: str) -> Array:
        return layer_norm(y, w[name + ".weight"], w[name + ".bias"], eps)

    def linear(y: Array, name: str) -> Array:
        return y @ w[name + ".weight"].T + w.get(name + ".bias", np.zeros(1))

    def experts(y: Array, at: str) -> Array:
        scores = linear(y, at + "router.layer")
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        weights /= weights.sum(-1, keepdims=True)
        out = np.tile(w[at + "experts.bias"], (len(y), 1))
        first, second = (w[at + f"experts.mlp.{name}"].reshape(config["num_experts"], config["n_inner"], -1) for name in ("w1", "w2"))
        for row, each in enumerate(weights):
            for expert in np.argsort(-each)[: config["moe_top_k"]]:
                out[row] += each[expert] * (gelu(y[row] @ first[expert].T) @ second[expert])
        return out

    kinds = types if config["type_vocab_size"] > 1 else np.zeros_like(types)
    x = norm(w["embeddings.word_embeddings.weight"][ids] + w["embeddings.token_type_embeddings.weight"][kinds], "emb_ln")
    for layer in range(config["n_layer"]):
        at = f"encoder.layers.{layer}."
        q, k, v = (y.reshape(len(ids), heads, width) for y in np.split(linear(x, at + "attn.Wqkv"), 3, -1))
        y = attend(rotate(q, turn, 1.0), rotate(k, turn, 1.0), v, False)
        x = norm(x + linear(y, at + "attn.out_proj"), at + "norm1")
        mlp = at + "mlp."
        y = experts(x, mlp) if has_experts(config, layer) else linear(gelu(linear(x, mlp + "fc1")), mlp + "fc2")
        x = norm(x + y, at + "norm2")
    return x


def jina2(config: dict[str, Any], w: dict[str, Array], ids: npt.NDArray[Any], types: npt.NDArray[Any]) -> Array:
    heads, width, eps, inner = config["num_attention_heads"], head_dim(config), config["layer_norm_eps"], config["intermediate_size"]
    code = is_code(config)
    names = JINA2_CODE if code else JINA2
    distance = np.abs(np.subtract.outer(np.arange(len(ids)), np.arange(len(ids))))
    bias = -alibi_slopes(heads)[:, None, None] * distance

    def norm(y: Array, name: str) -> Array:
        return layer_norm(y, w[name + ".weight"], w[name + ".bias"], eps)

    def linear(y: Array, name: str) -> Array:
        return y @ w[name + ".weight"].T + w.get(name + ".bias", np.zeros(1))

    x = norm(w["embeddings.word_embeddings.weight"][ids] + w["embeddings.token_type_embeddings.weight"][types], "embeddings.LayerNorm")
    for layer in range(config["num_hidden_layers"]):
        at = f"encoder.layer.{layer}."
        q, k, v = (linear(x, at + "attention.self." + name) for name in ("query", "key", "value"))
        if code:
            q, k = norm(q, at + "attention.self.layer_norm_q"), norm(k, at + "attention.self.layer_norm_k")
        q, k, v = (y.reshape(len(ids), heads, width) for y in (q, k, v))
        weight = np.exp(np.einsum("ihd,jhd->hij", q, k) / np.sqrt(width) + bias)
        weight /= weight.sum(-1, keepdims=True)
        y = np.einsum("hij,jhd->ihd", weight, v).reshape(len(ids), -1)
        y = norm(linear(y, at + "attention.output.dense") + x, at + "attention.output.LayerNorm")
        if code:
            y = norm(y + x, at + "layer_norm_1")
        first, second = np.split(linear(y, at + names["up"]), [inner], -1)
        gated = first * gelu(second) if code else gelu(first) * second
        x = norm(linear(gated, at + names["down"]) + y, at + names["norm"])
    return x
