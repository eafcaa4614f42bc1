"""Compares pumice with llama.cpp on hybrid models and mixtures of experts. The models have published shapes and random weights.

    python bench/shapes.py --python .venv/bin/python [--rounds 5] [--threads 2] [--only SHAPE ...] [--layers 8] [--prompts 256 512]

The formats are those of Q4_K_M (gpt-oss: MXFP4 experts, everything else Q8_0). For each shape it measures prefill, decoding, and decoding
of a batch of 8, with the engines in turn on the same file. Beside decoding it prints the bytes that each token reads (the weights that the
router chooses, and the state), and the speed as a percentage of a plain read of memory. A large model has fewer layers here than the
published one, so that the file fits. The speeds of all layers are then extrapolated and marked so. Each file is removed after its
measurements, unless --keep is given.
"""

from __future__ import annotations

import math
import statistics
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import compare
from compare import MOST_READ
from random_weights import Tensor, metadata, vector, write_gguf, written
from turns import WORK, Seen, Works, in_turn, table

Tensors = dict[str, Tensor]


class Model(NamedTuple):
    architecture: str
    keys: dict[str, Any]
    tensors: Tensors
    chosen: float = 1  # fraction of the experts that a token uses
    state: int = 0  # bytes of a sequence's recurrent state in all layers, in float32
    cache: int = 0  # bytes of keys and values of one position in all layers, in float16

    def share(self, name: str) -> float:
        """Returns which fraction of a tensor's weights a token reads. For an embedding that is not also the head this is 0, as a token
        reads one row."""
        if name == "token_embd.weight" and "output.weight" in self.tensors:
            return 0
        return self.chosen if "_exps." in name else 1

    @property
    def weights(self) -> float:
        """The bytes of weights that a token reads."""
        return sum(self.share(name) * tensor.size for name, tensor in self.tensors.items())

    @property
    def products(self) -> float:
        """The number of multiply-adds per prompt token in products with weights, without those of the head."""
        outer = ("token_embd.weight", "output.weight")
        return sum(self.share(name) * math.prod(t.shape) for name, t in self.tensors.items() if name not in outer)

    def write(self, file: BinaryIO) -> None:
        write_gguf(file, metadata(self.architecture, self.keys), self.tensors)


# ---------------------------------------------------------------- parts of layers
def better(i: int) -> str:
    """Returns the format of attn_v and ffn_down in layer i. Q4_K_M keeps these matrices in Q6_K in half of the layers."""
    return "Q6_K" if i % 2 == 0 else "Q4_K"


def outer(hidden: int, vocabulary: int, norm: str = "output_norm", tied: bool = True, format: str = "Q6_K", table: str = "Q4_K") -> Tensors:
    tensors = {"token_embd.weight": Tensor(format if tied else table, (vocabulary, hidden)), f"{norm}.weight": vector(hidden)}
    return tensors | ({} if tied else {"output.weight": Tensor(format, (vocabulary, hidden))})


def of_layer(i: int, tensors: Tensors) -> Tensors:
    return {f"blk.{i}.{name}": tensor for name, tensor in tensors.items()}


def matrices(**shapes: tuple[str, int, int]) -> Tensors:
    return {f"{name}.weight": Tensor(format, (rows, cols)) for name, (format, rows, cols) in shapes.items()}


def vectors(**sizes: int) -> Tensors:
    return {f"{name}.weight": vector(size) for name, size in sizes.items()}


def network(i: int, hidden: int, ffn: int) -> Tensors:
    return matrices(ffn_gate=("Q4_K", ffn, hidden), ffn_up=("Q4_K", ffn, hidden), ffn_down=(better(i), hidden, ffn))


def experts(down: str, hidden: int, ffn: int, count: int, format: str = "Q4_K") -> Tensors:
    tensors = {f"ffn_{name}_exps.weight": Tensor(format, (count, ffn, hidden)) for name in ("gate", "up")}
    tensors["ffn_down_exps.weight"] = Tensor(down, (count, hidden, ffn))
    return tensors | {"ffn_gate_inp.weight": Tensor("F32", (count, hidden))}


def attention(i: int, hidden: int, q: int, kv: int, rows: int = 1) -> Tensors:
    """Returns the matrices of attention in layer i. `rows`: number of rows of attn_q per query row. It is 2 if attn_q also has the rows of
    a gate."""
    return matrices(
        attn_q=("Q4_K", rows * q, hidden), attn_k=("Q4_K", kv, hidden), attn_v=(better(i), kv, hidden), attn_output=("Q4_K", hidden, q)
    )


def attention_keys(hidden: int, heads: int, kv_heads: int | list[int], head: int, eps: float, theta: float) -> dict[str, Any]:
    return {
        "context_length": 32768, "embedding_length": hidden, "attention.head_count": heads, "attention.head_count_kv": kv_heads,
        "attention.key_length": head, "attention.value_length": head, "attention.layer_norm_rms_epsilon": eps,
        "rope.freq_base": theta,
    }  # fmt: skip


# ---------------------------------------------------------------- families
def qwen35(layers: int, hidden: int, ffn: int, heads: int, kv_heads: int, value_heads: int, draft: bool = False) -> Model:
    """Returns a model of the family Qwen 3.5. Three of four layers are delta rules with 16 key heads. With `draft`, a layer for draft
    tokens follows, which has full attention."""
    vocabulary, head, key_heads, width, taps = 248_320, 256, 16, 128, 4
    inner, q, kv = value_heads * width, heads * head, kv_heads * head
    channels = 2 * key_heads * width + inner
    tensors = outer(hidden, vocabulary)
    recurrent = 0
    for i in range(layers + draft):
        more = network(i, hidden, ffn) | vectors(attn_norm=hidden, post_attention_norm=hidden)
        if i == layers:
            more |= matrices(**{"nextn.eh_proj": ("Q4_K", hidden, 2 * hidden)})
            more |= vectors(**{f"nextn.{name}": hidden for name in ("enorm", "hnorm", "shared_head_norm")})
        if i % 4 == 3 or i == layers:
            more |= attention(i, hidden, q, kv, 2) | vectors(attn_q_norm=head, attn_k_norm=head)
        else:
            recurrent += 1
            more |= matrices(
                attn_qkv=("Q5_K", channels, hidden), attn_gate=("Q4_K", inner, hidden), ssm_out=("Q4_K", hidden, inner),
                ssm_alpha=("Q4_K", value_heads, hidden), ssm_beta=("Q4_K", value_heads, hidden), ssm_conv1d=("F32", channels, taps),
            )  # fmt: skip
            more |= {"ssm_dt.bias": vector(value_heads), "ssm_a": vector(value_heads, -1), "ssm_norm.weight": vector(width)}
        tensors |= of_layer(i, more)
    keys = attention_keys(hidden, heads, kv_heads, head, 1e-6, 1e7) | {
        "block_count": layers + draft, "feed_forward_length": ffn,
        "rope.dimension_count": head // 4, "rope.dimension_sections": [11, 11, 10, 0],
        "ssm.conv_kernel": taps, "ssm.state_size": width, "ssm.group_count": key_heads, "ssm.time_step_rank": value_heads,
        "ssm.inner_size": inner, "full_attention_interval": 4, "vocab_size": vocabulary,
    }  # fmt: skip
    keys |= {"nextn_predict_layers": 1} if draft else {}
    state = recurrent * 4 * (value_heads * width * width + (taps - 1) * channels)
    return Model("qwen35", keys, tensors, state=state, cache=(layers - recurrent) * 2 * 2 * kv)


def lfm2(layers: int) -> Model:
    """LFM2-1.2B."""
    hidden, ffn, heads, kv_heads, vocabulary, taps = 2048, 8192, 32, 8, 65_536, 3
    head, attends = hidden // heads, [i for i in (2, 5, 8, 10, 12, 14) if i < layers]
    tensors = outer(hidden, vocabulary, "token_embd_norm")
    for i in range(layers):
        more = network(i, hidden, ffn) | vectors(attn_norm=hidden, ffn_norm=hidden)
        if i in attends:
            more |= attention(i, hidden, hidden, kv_heads * head) | vectors(attn_q_norm=head, attn_k_norm=head)
        else:
            more |= {f"shortconv.{name}": tensor for name, tensor in matrices(
                in_proj=("Q4_K", 3 * hidden, hidden), out_proj=("Q4_K", hidden, hidden), conv=("F32", hidden, taps),
            ).items()}  # fmt: skip
        tensors |= of_layer(i, more)
    keys = attention_keys(hidden, heads, [kv_heads if i in attends else 0 for i in range(layers)], head, 1e-5, 1e6) | {
        "block_count": layers, "feed_forward_length": ffn, "rope.dimension_count": head, "shortconv.l_cache": taps,
        "vocab_size": vocabulary,
    }  # fmt: skip
    state = (layers - len(attends)) * 4 * (taps - 1) * hidden
    return Model("lfm2", keys, tensors, state=state, cache=len(attends) * 2 * 2 * kv_heads * head)


def granite_tiny(layers: int) -> Model:
    """Granite 4 H Tiny: Mamba-2 layers, attention in layers 5, 15, 25 and 35, and in all layers experts beside a shared expert. In the
    published model the embedding is also the head; here the head is a matrix of its own. With random weights, a model whose embedding is
    also the head would repeat its input token, and so always choose the experts of that token."""
    hidden, heads, kv_heads, vocabulary, count, chosen, ffn, shared = 1536, 12, 4, 100_352, 64, 6, 512, 1024
    ssm_heads, width, state_size, taps = 48, 64, 128, 4
    head, inner, attends = hidden // heads, ssm_heads * width, [i for i in (5, 15, 25, 35) if i < layers]
    channels = inner + 2 * state_size
    tensors = outer(hidden, vocabulary, tied=False)
    for i in range(layers):
        more = experts(better(i), hidden, ffn, count) | vectors(attn_norm=hidden, ffn_norm=hidden)
        more |= matrices(
            ffn_gate_shexp=("Q4_K", shared, hidden), ffn_up_shexp=("Q4_K", shared, hidden), ffn_down_shexp=(better(i), hidden, shared)
        )
        if i in attends:
            more |= attention(i, hidden, hidden, kv_heads * head)
        else:
            more |= matrices(
                ssm_in=("Q4_K", inner + channels + ssm_heads, hidden), ssm_out=("Q4_K", hidden, inner), ssm_conv1d=("F32", channels, taps)
            )
            more |= {
                "ssm_conv1d.bias": vector(channels, 0), "ssm_dt.bias": vector(ssm_heads), "ssm_a": Tensor("F32", (ssm_heads, 1), -1),
                "ssm_d": Tensor("F32", (ssm_heads, 1), 1), "ssm_norm.weight": Tensor("F32", (1, inner), 1),
            }  # fmt: skip
        tensors |= of_layer(i, more)
    keys = attention_keys(hidden, heads, [kv_heads if i in attends else 0 for i in range(layers)], head, 1e-5, 1e4) | {
        "block_count": layers, "feed_forward_length": ffn, "expert_feed_forward_length": ffn, "rope.dimension_count": head,
        "expert_shared_feed_forward_length": shared, "expert_count": count, "expert_used_count": chosen, "rope.scaling.finetuned": False,
        "attention.scale": 0.0078125, "embedding_scale": 12.0, "residual_scale": 0.22, "logit_scale": 6.0, "vocab_size": vocabulary,
        "ssm.conv_kernel": taps, "ssm.inner_size": inner, "ssm.state_size": state_size, "ssm.time_step_rank": ssm_heads,
        "ssm.group_count": 1,
    }  # fmt: skip
    state = (layers - len(attends)) * 4 * (ssm_heads * width * state_size + (taps - 1) * channels)
    return Model("granitehybrid", keys, tensors, chosen / count, state, len(attends) * 2 * 2 * kv_heads * head)


def qwen3_moe(layers: int) -> Model:
    """Qwen3-30B-A3B."""
    hidden, heads, kv_heads, head, vocabulary, count, chosen, ffn = 2048, 32, 4, 128, 151_936, 128, 8, 768
    tensors = outer(hidden, vocabulary, tied=False)
    for i in range(layers):
        more = attention(i, hidden, heads * head, kv_heads * head) | experts(better(i), hidden, ffn, count)
        tensors |= of_layer(i, more | vectors(attn_norm=hidden, ffn_norm=hidden, attn_q_norm=head, attn_k_norm=head))
    keys = attention_keys(hidden, heads, kv_heads, head, 1e-6, 1e6) | {
        "block_count": layers, "feed_forward_length": 6144, "expert_feed_forward_length": ffn, "expert_count": count,
        "expert_used_count": chosen, "rope.dimension_count": head, "vocab_size": vocabulary,
    }  # fmt: skip
    return Model("qwen3moe", keys, tensors, chosen / count, cache=layers * 2 * 2 * kv_heads * head)


def gpt_oss(layers: int) -> Model:
    """gpt-oss-20b. Every second layer attends to a window of 128 positions."""
    hidden, heads, kv_heads, head, vocabulary, count, chosen, ffn = 2880, 64, 8, 64, 201_088, 32, 4, 2880
    q, kv = heads * head, kv_heads * head
    tensors = outer(hidden, vocabulary, tied=False, format="Q8_0", table="Q8_0")
    for i in range(layers):
        more = matrices(
            attn_q=("Q8_0", q, hidden), attn_k=("Q8_0", kv, hidden), attn_v=("Q8_0", kv, hidden), attn_output=("Q8_0", hidden, q)
        )
        more |= experts("MXFP4", hidden, ffn, count, "MXFP4") | vectors(attn_norm=hidden, post_attention_norm=hidden, attn_sinks=heads)
        biases = {"attn_q": (q,), "attn_k": (kv,), "attn_v": (kv,), "attn_output": (hidden,), "ffn_gate_inp": (count,)}
        biases |= {"ffn_gate_exps": (count, ffn), "ffn_up_exps": (count, ffn), "ffn_down_exps": (count, hidden)}
        tensors |= of_layer(i, more | {f"{name}.bias": Tensor("F32", shape, 0.01) for name, shape in biases.items()})
    keys = attention_keys(hidden, heads, kv_heads, head, 1e-5, 150000.0) | {
        "block_count": layers, "feed_forward_length": ffn, "expert_feed_forward_length": ffn, "expert_count": count,
        "expert_used_count": chosen, "attention.sliding_window": 128, "rope.dimension_count": head, "rope.scaling.type": "yarn",
        "rope.scaling.factor": 32.0, "rope.scaling.original_context_length": 4096, "vocab_size": vocabulary,
    }  # fmt: skip
    return Model("gpt-oss", keys, tensors, chosen / count, cache=layers * 2 * 2 * kv)


@dataclass(frozen=True)
class Shape:
    title: str
    layers: int  # number of layers of the published model
    measured: int  # number of layers that are measured by default
    model: Callable[[int], Model]


# The numbers come from the published config.json files.
SHAPES = {
    "qwen3.5-0.8b": Shape("Qwen3.5-0.8B", 24, 24, lambda n: qwen35(n, 1024, 3584, 8, 2, 16)),
    "qwen3.5-2b": Shape("Qwen3.5-2B", 24, 24, lambda n: qwen35(n, 2048, 6144, 8, 2, 16)),
    "qwen3.5-4b": Shape("Qwen3.5-4B", 32, 12, lambda n: qwen35(n, 2560, 9216, 16, 4, 32)),
    "lfm2-1.2b": Shape("LFM2-1.2B", 16, 16, lfm2),
    "granite-4-h-tiny": Shape("Granite 4 H Tiny", 40, 20, granite_tiny),
    "qwen3-30b-a3b": Shape("Qwen3-30B-A3B", 48, 8, qwen3_moe),
    "gpt-oss-20b": Shape("gpt-oss-20b", 24, 6, gpt_oss),
}


# ---------------------------------------------------------------- measuring
def extrapolated(seen: Seen, key: str, factor: float) -> str:
    return ", ".join(f"{name} {statistics.median(values[key]) / factor:.3g}" for name, values in seen.items() if key in values)


def measure(b: compare.Bench, name: str, layers: int | None, prompts: list[int], new: int, batch: int, keep: bool) -> None:
    shape = SHAPES[name]
    count = layers or shape.measured
    model, whole = shape.model(count), shape.model(shape.layers)
    path = written(WORK / f"random-{name}-{count}.gguf", model.write)
    read = model.weights + model.state
    print(
        f"\n{shape.title}, {count} of {shape.layers} layers: a file of {path.stat().st_size / 1e9:.2f} GB; a token reads "
        f"{model.weights / 1e6:.0f} MB of weights and {model.state / 1e6:.1f} MB of state (all layers: {whole.weights / 1e6:.0f} and "
        f"{whole.state / 1e6:.1f})",
        flush=True,
    )
    workers = {engine: b.worker(engine, "generate", path) for engine in ("pumice", "llama.cpp")}
    reader = b.worker("plain-read", "read", Path())
    reading: dict[str, tuple[Works, dict[str, Any]]] = {"plain read": (reader, {"bytes": int(min(read, MOST_READ))})}

    def turns(more: dict[str, tuple[Works, dict[str, Any]]], **go: Any) -> Seen:
        return in_turn({engine: (worker, go) for engine, worker in workers.items()} | more, b.rounds)

    for prompt in prompts:
        decodes = prompt == prompts[0]
        seen = turns(reading if decodes else {}, prompt=prompt, new=new if decodes else 1)
        table(f"{shape.title}, prompt of {prompt}", seen, "prefill tokens/s")
        if count != shape.layers:
            print(f"  extrapolated to {shape.layers} layers: {extrapolated(seen, 'prefill tokens/s', whole.products / model.products)}")
        if not decodes:
            continue
        reads = seen["plain read"]["GB/s"]

        def note(name: str, values: dict[str, list[float]], prompt: int = prompt, reads: list[float] = reads) -> str:
            token = read + model.cache * (prompt + new / 2)
            rates = [speed * token * 1e-9 for speed in values["decode tokens/s"]]
            shares = [100 * rate / most for rate, most in zip(rates, reads)]
            return f"   {statistics.median(rates):.1f} GB/s, {statistics.median(shares):.0f} % of the plain read"

        print(
            f"\nplain read of {min(read, MOST_READ) / 1e6:.0f} MB: {statistics.median(reads):.1f} GB/s "
            f"({min(reads):.1f} to {max(reads):.1f})"
        )
        table(f"{shape.title}, {new} tokens after it", seen, "decode tokens/s", note)
        if count != shape.layers:
            factor = (whole.weights + whole.state) / read
            print(f"  extrapolated to {shape.layers} layers: {extrapolated(seen, 'decode tokens/s', factor)}")
    if batch:
        table(f"{shape.title}, batch of {batch} prompts", turns({}, prompt=16, new=max(2, new // 2), batch=batch), "decode tokens/s")
    for worker in (*workers.values(), reader):
        worker.close()
    if not keep:
        path.unlink()


def main() -> None:
    parser = compare.parser_of(__doc__, only=list(SHAPES))
    parser.add_argument("--layers", type=int, help="measure so many layers of each shape")
    parser.add_argument("--prompts", type=int, nargs="*", default=[256, 512], help="lengths of prompts; decoding follows the first one")
    parser.add_argument("--batch", type=int, default=8, help="number of prompts that are decoded together; 0 leaves this out")
    parser.add_argument("--new", type=int, default=24, help="number of tokens that are decoded; half as many in the batch")
    parser.add_argument("--keep", action="store_true", help="leave the files in build/bench")
    given = parser.parse_args()
    if given.quick:
        given.layers, given.prompts, given.new = 4, [32], 4
    b = compare.bench_of(given)
    print(compare.first_line(b), flush=True)
    for name in given.only or SHAPES:
        measure(b, name, given.layers, given.prompts, given.new, given.batch, given.keep)


if __name__ == "__main__":
    sys.exit(main())
