"""The draft head of Qwen 3.5 and 3.6 (multi-token prediction) in numpy and float64. transformers does not have it. Written from vLLM
(`qwen3_5_mtp.py`), llama.cpp (`qwen35.cpp`, `graph_mtp`) and the names of tensors on the hub.

The row of position i is fc [norm(embedding of id i), norm(final row of position i - 1)]. It goes through a layer with attention, which sees
the rows up to its own, then through a norm and the model's head. The result are the logits of id i + 1. A further guess takes the
normalised row of the guess before in place of the model's final row. Row 0 has no row before it and takes zeros, as in pumice; vLLM has no
such row."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float32]
Wide = npt.NDArray[np.float64]


def shapes(model: Mapping[str, list[int]]) -> dict[str, list[int]]:
    """Returns the shapes of the head's tensors for a model whose tensors have the given shapes."""
    hidden = model["model.norm.weight"]
    layer = next(name for name in sorted(model) if name.endswith("self_attn.q_proj.weight")).removesuffix("self_attn.q_proj.weight")
    own = {name.replace(layer, "mtp.layers.0."): shape for name, shape in model.items() if name.startswith(layer)}
    names = ("mtp.norm.weight", "mtp.pre_fc_norm_embedding.weight", "mtp.pre_fc_norm_hidden.weight")
    return own | dict.fromkeys(names, hidden) | {"mtp.fc.weight": [hidden[0], 2 * hidden[0]]}


def agreeing(tensors: Mapping[str, Array], branches: float = 0.003) -> dict[str, Array]:
    """Returns tensors of a model in which the last id nearly decides the next one, and whose head knows this: its guesses are often right.
    The results of all branches are multiplied by `branches`."""
    changed = dict(tensors)
    for name, tensor in tensors.items():
        if re.search(r"(out_proj|o_proj|down_proj)\.weight$", name):
            changed[name] = tensor * np.float32(branches)
    hidden = len(tensors["mtp.norm.weight"])
    changed["mtp.fc.weight"] = tensors["mtp.fc.weight"] * np.float32(0.1)
    changed["mtp.fc.weight"][:, :hidden] += np.eye(hidden, dtype=np.float32)
    changed["mtp.pre_fc_norm_embedding.weight"] = np.zeros(hidden, np.float32)
    changed["mtp.norm.weight"] = tensors["model.norm.weight"]
    return changed


class DraftHead:
    """`tensors` and `config` are those of a small model's folder (random_models)."""

    def __init__(self, tensors: Mapping[str, Array], config: Mapping[str, Any]) -> None:
        self.t = {name: tensor.astype(np.float64) for name, tensor in tensors.items()}
        self.dim, self.heads, self.kv_heads = config["head_dim"], config["num_attention_heads"], config["num_key_value_heads"]
        self.eps, self.chosen = config.get("rms_norm_eps", 1e-6), config.get("num_experts_per_tok", 0)
        rope = config["rope_parameters"]
        rotated = int(self.dim * rope["partial_rotary_factor"])
        self.frequencies = rope["rope_theta"] ** (-np.arange(0, rotated, 2) / rotated)
        self.head = self.t.get("lm_head.weight", self.t["model.embed_tokens.weight"])
        self.keys = self.values = np.zeros((0, self.kv_heads, self.dim))

    def norm(self, x: Wide, name: str) -> Wide:
        result: Wide = x / np.sqrt((x**2).mean(-1, keepdims=True) + self.eps) * (1 + self.t[name + ".weight"])
        return result

    def turned(self, x: Wide, position: int) -> Wide:
        half = len(self.frequencies)
        cos, sin = np.cos(position * self.frequencies), np.sin(position * self.frequencies)
        a, b = x[:, :half], x[:, half : 2 * half]
        return np.concatenate([a * cos - b * sin, b * cos + a * sin, x[:, 2 * half :]], -1)

    def step(self, token: int, before: Wide, position: int) -> Wide:
        """Computes the row of a position, keeps its keys and values, and returns it after the last norm."""
        layer = "mtp.layers.0."
        both = [
            self.norm(self.t["model.embed_tokens.weight"][token], "mtp.pre_fc_norm_embedding"),
            self.norm(before, "mtp.pre_fc_norm_hidden"),
        ]
        x = self.t["mtp.fc.weight"] @ np.concatenate(both)
        h = self.norm(x, layer + "input_layernorm")
        attention = layer + "self_attn."
        q, gate = (self.t[attention + "q_proj.weight"] @ h).reshape(self.heads, 2, self.dim).swapaxes(0, 1)
        k = (self.t[attention + "k_proj.weight"] @ h).reshape(self.kv_heads, self.dim)
        v = (self.t[attention + "v_proj.weight"] @ h).reshape(self.kv_heads, self.dim)
        q = self.turned(self.norm(q, attention + "q_norm"), position)
        k = self.turned(self.norm(k, attention + "k_norm"), position)
        self.keys = np.concatenate([self.keys[:position], k[None]])
        self.values = np.concatenate([self.values[:position], v[None]])
        group = self.heads // self.kv_heads
        scores = np.einsum("hd,tgd->hgt", q, self.keys)[np.arange(self.heads), np.arange(self.heads) // group] / np.sqrt(self.dim)
        shares = np.exp(scores - scores.max(-1, keepdims=True))
        shares /= shares.sum(-1, keepdims=True)
        seen = np.einsum("ht,thd->hd", shares, np.repeat(self.values, group, 1))
        x = x + self.t[attention + "o_proj.weight"] @ (seen / (1 + np.exp(-gate))).ravel()
        h = self.norm(x, layer + "post_attention_layernorm")
        return self.norm(x + (self.mixture if layer + "mlp.gate.weight" in self.t else self.dense)(layer + "mlp.", h), "mtp.norm")

    def dense(self, name: str, h: Wide) -> Wide:
        opened = self.t[name + "gate_proj.weight"] @ h
        wide = opened / (1 + np.exp(-opened)) * (self.t[name + "up_proj.weight"] @ h)
        result: Wide = self.t[name + "down_proj.weight"] @ wide
        return result

    def mixture(self, name: str, h: Wide) -> Wide:
        """The experts that the router chooses, with weights whose sum is 1, and the expert of all tokens."""
        logits = self.t[name + "gate.weight"] @ h
        chosen = np.argsort(-logits, kind="stable")[: self.chosen]
        weights = np.exp(logits[chosen] - logits.max())
        found = [w * self.dense(f"{name}experts.{e}.", h) for w, e in zip(weights / weights.sum(), chosen.tolist(), strict=True)]
        open_share = 1 / (1 + np.exp(-self.t[name + "shared_expert_gate.weight"] @ h))
        result: Wide = np.sum(found, 0) + open_share * self.dense(name + "shared_expert.", h)
        return result

    def guesses(self, last: int, before: Wide, position: int, count: int, ends: tuple[int, ...]) -> list[int]:
        """Returns the guesses that follow the id `last` at `position`. The rows of all positions before must have been computed."""
        found: list[int] = []
        token, row = last, before
        while len(found) < count:
            row = self.step(token, row, position + len(found))
            token = int((self.head @ row).argmax())
            if token in ends:
                break
            found.append(token)
        return found

    def told(self, rows: Array, ids: list[int], prompt: int, most: int, ends: tuple[int, ...]) -> tuple[int, int]:
        """Returns how many guesses are made and how many of them are right, if each step has as many as it may, at most `most`. `rows` are
        the model's final rows of `ids`, which are the prompt and the generated ids."""
        guessed = right = 0
        size, computed = prompt + 1, 0  # the first generated id has no guesses
        before = np.concatenate([np.zeros((1, rows.shape[1])), rows]).astype(np.float64)
        while size < len(ids):
            for position in range(computed, size - 1):
                self.step(ids[position], before[position], position)
            computed = size - 1
            found = self.guesses(ids[computed], before[computed], computed, min(most, len(ids) - size - 1), ends)
            taken = 0
            while taken < len(found) and found[taken] == ids[size + taken]:
                taken += 1
            guessed, right, size = guessed + len(found), right + taken, size + taken + 1
        return guessed, right
