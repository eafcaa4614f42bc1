"""Writes docs/mixes.md. A small model of every family that has a GGUF form is quantized by llama.cpp to the mixes that people use. The page
says how far the results of pumice and of llama.cpp are from those of the float32 weights: the distributions of next tokens, or an encoder's
rows.

    python tests/make_mix_table.py                       # takes minutes
    python tests/make_mix_table.py encoders              # writes only the encoders' table; the decoders' table stays as it is
    python tests/make_mix_table.py MODEL ...             # only prints the rows of these small models, and does not write docs/mixes.md

Needs the package and llama-cpp-python. tests/python/families/test_mixes.py checks that the numbers on the page are within their limits, and
runs every family on quantized tensors without llama.cpp.
"""

from __future__ import annotations

import ctypes
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import llama_cpp
import numpy as np
import numpy.typing as npt

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT / "tests" / "python" / "support")]

import random_gguf  # noqa: E402
import random_models  # noqa: E402
from mixes import (  # noqa: E402
    COLUMNS,
    COMPARED,
    ENCODERS,
    ENCODERS_RATIO,
    ENCODERS_TITLE,
    ENTROPY,
    MIXES,
    MORE_TEXTS,
    RATIO,
    SAME,
    TEXTS,
    TEXTS_OF_MIXTURES,
    TOKENS,
    WIDE,
    is_mixture,
)

import pumice  # noqa: E402
from pumice import _core  # noqa: E402

PAGE = ROOT / "docs" / "mixes.md"
HEAD = """# Quantized files, as they were compared
Each row is a small model of one family with random weights, whose matrices have {columns} columns or a multiple of that. It is written as
GGUF in F32 as llama.cpp's converter would write it, and quantized by llama.cpp (llama-cpp-python {version}, `llama_model_quantize`) to the
mixes that people download. Made by `python tests/make_mix_table.py`.

A cell has two numbers, pumice's and llama.cpp's, both from the same file as loaded by default on one CPU. Each is the Kullback-Leibler
divergence of the next token's distribution from that of the F32 weights in float32, in nats, as the mean of {tokens} positions in
{texts} texts. Most of it is the error of the quantized weights, the same for both engines; the rest is what each rounds while it runs.

The last norm is multiplied so that the distributions have an entropy of {entropy:.0f} nats, about that of a language model on prose.
Distributions of random weights alone are nearly flat, and would hide the error. Random weights lose more than trained ones in fewer
bits, so compare only the two numbers of a cell.

- **F32** is the divergence of llama.cpp's float32 run from pumice's, which equals the original's (docs/families.md). It shows that
  llama.cpp computes the same model in every row. Rows of about 1e-6 are families with GELU, which llama.cpp looks up in a table of
  half floats.
- Three models are made to suit llama.cpp. Phi-3's window, which llama.cpp does not apply, is longer than the texts. EXAONE 4 has no
  window, because llama.cpp gives windows to the 32B alone. StarCoder2 has all its biases, without which llama.cpp does not load it.
- NeoBERT has no row: its file has q, k and v of each head side by side in `attn_qkv`, which llama.cpp takes for all q, all k and all v.
- The limit of a cell (tests/python/families/test_mixes.py) is {ratio} times llama.cpp's number. Both round activations to 8 bits in
  blocks of 32, but they differ at the head, in keys and in sums. So either may be ahead by chance: with three texts in place of
  {texts} the ratios of Q8_0 lay between 0.88 and 1.11. Mixtures of experts have {texts_of_mixtures} texts, because the few rows that
  choose other experts once they are rounded make up most of a cell.

| family | small model | F32 | {mixes} |
|---|---|---|{rule}|
"""
ENCODERS_HEAD = """
{title}An encoder gives rows. A cell is 1 - cosine between these rows and those of the F32 weights in float32: the mean of the
{tokens} rows of the same texts, behind the last norm and before any pooling, pumice's number and then llama.cpp's.
F32 compares llama.cpp's float32 run with pumice's. Where it is above 1e-10, the family has GELU,
which llama.cpp computes by tanh and from a table of half floats.

The limit is {ratio} times llama.cpp's number. In F16 pumice rounds weights to 13 bits and activations to 14 (docs/numerics.md), and
llama.cpp rounds activations to half floats, which is nearly as exact: nomic-bert's ratio in F16 was 0.99 on 2,304 other positions.

| family | small model | F32 | {mixes} |
|---|---|---|{rule}|
"""


default_params = llama_cpp.llama_cpp.llama_model_default_params


def plain_params() -> llama_cpp.llama_model_params:
    """Returns parameters with which llama.cpp does not pack weights for AMX. Its products on AMX crash with matrices as small as these
    (llama-cpp-python 0.3.36)."""
    params = default_params()
    params.use_extra_bufts = False
    return params


llama_cpp.llama_cpp.llama_model_default_params = plain_params  # because the class Llama has no argument for this parameter


def log_softmax(logits: npt.NDArray[np.float32]) -> npt.NDArray[np.float64]:
    wide = logits.astype(np.float64)
    wide -= wide.max(1, keepdims=True)
    return np.asarray(wide - np.log(np.exp(wide).sum(1, keepdims=True)))


def entropy(logits: npt.NDArray[np.float32]) -> float:
    p = log_softmax(logits)
    return float(-(np.exp(p) * p).sum(1).mean())


def divergence(truth: npt.NDArray[np.float32], found: npt.NDArray[np.float32]) -> float:
    p = log_softmax(truth)
    return float((np.exp(p) * (p - log_softmax(found))).sum(1).mean())


def texts(count: int = TEXTS) -> list[npt.NDArray[np.int32]]:
    draws = np.random.RandomState(12)
    return [draws.randint(3, 500, TOKENS).astype(np.int32) for _ in range(count)]


def texts_of(name: str) -> list[npt.NDArray[np.int32]]:
    return texts(MORE_TEXTS.get(name, TEXTS_OF_MIXTURES if is_mixture(name) else TEXTS))


def pumice_logits(path: Path, folder: Path, given: list[npt.NDArray[np.int32]], **options: str) -> npt.NDArray[np.float32]:
    with pumice.load(path, device="cpu", tokenizer=folder, progress=False, threads=1, **options) as model:  # type: ignore[arg-type]
        return np.concatenate([model.logits(ids, positions="all") for ids in given])


def llama_cpp_logits(path: Path, given: list[npt.NDArray[np.int32]], **options: int) -> npt.NDArray[np.float32]:
    model = llama_cpp.Llama(str(path), n_ctx=2 * TOKENS, logits_all=True, verbose=False, n_threads=1, n_threads_batch=1, **options)
    rows = []
    for ids in given:
        model.reset()
        model.eval(ids.tolist())
        rows.append(np.array(model.scores[: len(ids)], np.float32))
    model.close()
    return np.concatenate(rows)


def quantized(source: Path, mix: str) -> Path:
    target = source.with_name(f"{mix}.gguf")
    settings = llama_cpp.llama_model_quantize_default_params()
    settings.ftype, settings.nthread = MIXES[mix], 1
    failed = llama_cpp.llama_model_quantize(str(source).encode(), str(target).encode(), ctypes.byref(settings))
    assert failed == 0, f"{source}: llama.cpp does not quantize it to {mix}"
    return target


def write(name: str, folder: Path, gain: float) -> Path:
    """Writes the F32 file of a model whose logits are multiplied by `gain`."""
    keys, tensors = random_gguf.gguf_parts(name)
    keys |= {"tokenizer.ggml.model": "no_vocab", f"{keys['general.architecture']}.vocab_size": 512}
    # The last norm is multiplied, which is called token_embd_norm in LFM2's files, or the head if the norms have no weights (OLMo).
    last = next(
        found for begin in ("output_norm.", "token_embd_norm.", "output.") if (found := [k for k in tensors if k.startswith(begin)])
    )
    tensors |= {key: tensors[key] * np.float32(gain) for key in last}
    return random_gguf.write(folder / "f32.gguf", keys, tensors)


def sharpened(name: str, folder: Path) -> tuple[Path, npt.NDArray[np.float32]]:
    """Writes the F32 file, with a gain that gives its distributions the mean entropy ENTROPY. Returns its path and its logits."""
    given = texts_of(name)
    plain = pumice_logits(write(name, folder, 1), folder, given, compute="float32")
    low, high = 0.01, 100.0
    for _ in range(40):
        middle = (low * high) ** 0.5
        low, high = (middle, high) if entropy(middle * plain) > ENTROPY else (low, middle)
    path = write(name, folder, low)
    logits = pumice_logits(path, folder, given, compute="float32")
    assert abs(entropy(logits) - ENTROPY) < 0.5, (name, entropy(logits))  # not exact, because biases and soft caps do not scale
    return path, logits


def row(name: str, target: Path) -> str:
    folder = random_models.make_folder(name, target)
    path, truth = sharpened(name, folder)
    given = texts_of(name)
    apart = divergence(truth, llama_cpp_logits(path, given, type_k=0, type_v=0))  # type 0 is F32, like pumice's cache in float32
    assert apart <= SAME, f"{name}: llama.cpp's float32 run is {apart:.1e} nats from ours, so that it says nothing of quantized ones"
    cells = []
    for mix in MIXES:
        file = quantized(path, mix)
        cells.append(
            f"{divergence(truth, pumice_logits(file, folder, given)):.2e} / {divergence(truth, llama_cpp_logits(file, given)):.2e}"
        )
        file.unlink()
    return f"| {random_models.VARIANTS[name].family} | {name} | {apart:.0e} | {' | '.join(cells)} |\n"


# ---------------------------------------------------------------- encoders
def pumice_rows(path: Path, compute: str = "auto") -> npt.NDArray[np.float32]:
    model = _core.load(_core.open_file(str(path)), _core.LoadOptions(device="cpu", threads=1, compute=compute))
    return model.encode_tokens(np.concatenate(texts()), np.arange(TEXTS + 1) * TOKENS, None)


def llama_cpp_rows(path: Path) -> npt.NDArray[np.float32]:
    none = llama_cpp.LLAMA_POOLING_TYPE_NONE
    size = {"n_ctx": TOKENS, "n_batch": TOKENS, "n_ubatch": TOKENS, "n_threads": 1, "n_threads_batch": 1}
    model = llama_cpp.Llama(str(path), embedding=True, pooling_type=none, verbose=False, **size)
    rows = []
    for ids in texts():
        batch = llama_cpp.llama_batch_init(TOKENS, 0, 1)
        batch.n_tokens = TOKENS
        for i, token in enumerate(ids):
            batch.token[i], batch.pos[i], batch.n_seq_id[i], batch.seq_id[i][0], batch.logits[i] = int(token), i, 1, 0, 1
        failed = llama_cpp.llama_encode(model.ctx, batch)
        assert failed == 0, f"{path}: llama_encode() says {failed}"
        width = model.n_embd()
        rows += [np.ctypeslib.as_array(llama_cpp.llama_get_embeddings_ith(model.ctx, i), (width,)).copy() for i in range(TOKENS)]
        llama_cpp.llama_batch_free(batch)
    model.close()
    return np.stack(rows)


def angle(truth: npt.NDArray[np.float32], found: npt.NDArray[np.float32]) -> float:
    """Returns the mean of 1 - cosine over all rows. It is computed as half the squared distance of the unit rows, to avoid cancellation."""
    a, b = (rows.astype(np.float64) / np.linalg.norm(rows.astype(np.float64), axis=1, keepdims=True) for rows in (truth, found))
    return float(((a - b) ** 2).sum(axis=1).mean() / 2)


def encoder_row(name: str, target: Path) -> str:
    keys, tensors = random_gguf.gguf_parts(name)
    words = [f"[unused{i}]" for i in range(512)]
    vocabulary = {"model": "bert", "tokens": words, "token_type_count": len(tensors.get("token_types.weight", [0]))}
    path = random_gguf.write(target / "f32.gguf", keys | {f"tokenizer.ggml.{key}": value for key, value in vocabulary.items()}, tensors)
    truth = pumice_rows(path, "float32")
    apart = angle(truth, llama_cpp_rows(path))
    assert apart <= SAME, f"{name}: llama.cpp's float32 rows are {apart:.1e} from ours, so that they say nothing of quantized ones"
    cells = []
    for mix in MIXES:
        file = quantized(path, mix)
        cells.append(f"{angle(truth, pumice_rows(file)):.2e} / {angle(truth, llama_cpp_rows(file)):.2e}")
        file.unlink()
    return f"| {random_models.VARIANTS[name].family} | {name} | {apart:.0e} | {' | '.join(cells)} |\n"


TABLE = {
    "mixes": " | ".join(MIXES),
    "rule": "|".join(["---"] * len(MIXES)),
    "texts": TEXTS,
    "texts_of_mixtures": TEXTS_OF_MIXTURES,
    "tokens": TEXTS * TOKENS,
}


def made(names: list[str], make: Callable[[str, Path], str]) -> str:
    rows = []
    for name in names:
        with tempfile.TemporaryDirectory() as target:
            rows.append(make(name, Path(target)))
        print(rows[-1], end="", flush=True)
    return "".join(rows)


def main(names: list[str]) -> None:
    if names and names != ["encoders"]:
        made([name for name in names if name in WIDE], row)
        made([name for name in names if name in ENCODERS], encoder_row)
        return
    if names:
        decoders = PAGE.read_text().split("\n" + ENCODERS_TITLE)[0]
    else:
        head = HEAD.format(columns=COLUMNS, version=llama_cpp.__version__, entropy=ENTROPY, ratio=RATIO, **TABLE)
        decoders = head + made(COMPARED, row)
    PAGE.write_text(decoders + ENCODERS_HEAD.format(title=ENCODERS_TITLE, ratio=ENCODERS_RATIO, **TABLE) + made(ENCODERS, encoder_row))


if __name__ == "__main__":
    main(sys.argv[1:])
