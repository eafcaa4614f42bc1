"""Measures what quantize(texts=) and quantize(importance=) gain on a whole model: SmolLM2-135M in a mix, beside its float weights and what
llama.cpp makes of these, without and with an importance matrix of the same texts.

    python bench/calibrated.py q4_k_m --codes llama.cpp imatrix search importance texts --llama .venv-bench/bin/python --tokens 8192
    python bench/calibrated.py q3_k_m --tokens 4096 --scored 512

The importance matrix is what llama-imatrix collects: for each matrix the mean squares of its inputs, for the same windows of tokens that
quantize(texts=) takes. For llama.cpp, transformers computes the inputs, so the Python of --llama needs torch, transformers, accelerate and
gguf, too. For importance=, they are on the diagonals of the sums of products that texts= uses.

The sample file is Q4_1, so its weights, written as F32, count as the float model. Texts are Python's manual (pydoc's topics), sources and
docstrings of its standard library, and pumice's own pages. Half of each kind is for calibration, and half for the comparison. Each row
is what Model.compare() says of a file: the mean Kullback-Leibler divergence from the float model with its standard error, its 99th
percentile, and how often both models find the same token likeliest. The first line gives docs/python/gguf.md's table."""

from __future__ import annotations

import argparse
import itertools
import platform
import subprocess
import sys
import tempfile
from pathlib import Path
from pydoc_data.topics import topics

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "examples")]

import demo  # noqa: E402
import samples  # noqa: E402

import pumice  # noqa: E402
from pumice import _core  # noqa: E402
from pumice.gguf.calibration import read_windows  # noqa: E402
from pumice.gguf.container import Tensor, head_bytes, padded  # noqa: E402

WINDOW = 512
PEERS = ("llama.cpp", "imatrix")
FTYPES = {"q2_k": 10, "q3_k_m": 12, "q4_k_m": 15, "q5_k_m": 17}  # llama_ftype in llama.h
PEER = """
import ctypes, sys, llama_cpp, numpy
source, target, ftype, squares = sys.argv[1:]
settings = llama_cpp.llama_model_quantize_default_params()
settings.ftype = int(ftype)
if squares:
    kept = {name: numpy.ascontiguousarray(values, numpy.float32) for name, values in numpy.load(squares).items()}
    pointer = ctypes.POINTER(ctypes.c_float)
    data = [llama_cpp.llama_model_imatrix_data(n.encode(), v.ctypes.data_as(pointer), v.size) for n, v in kept.items()]
    data.append(llama_cpp.llama_model_imatrix_data(None, None, 0))
    settings.imatrix = (llama_cpp.llama_model_imatrix_data * len(data))(*data)
sys.exit(llama_cpp.llama_model_quantize(source.encode(), target.encode(), ctypes.byref(settings)))
"""
SQUARES = """
import sys, numpy, torch, transformers
source, windows, target = sys.argv[1:]
folder, _, file = source.rpartition("/")
model = transformers.AutoModelForCausalLM.from_pretrained(folder, gguf_file=file, dtype=torch.float32)
names = {"self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output",
         "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down"}
sums, count = {}, 0
def watch(name):
    def hook(module, given):
        rows = given[0].reshape(-1, given[0].shape[-1]).double()
        sums[name] = sums.get(name, 0) + (rows * rows).sum(0)
    return hook
for i, layer in enumerate(model.model.layers):
    for name, short in names.items():
        layer.get_submodule(name).register_forward_pre_hook(watch(f"blk.{i}.{short}.weight"))
with torch.inference_mode():
    for window in numpy.load(windows).values():
        model(input_ids=torch.from_numpy(window.astype(numpy.int64))[None])
        count += len(window)
numpy.savez(target, **{name: (total / count).numpy() for name, total in sums.items()})
"""


def importance_matrix(source: Path, target: Path, calibration: list[str], tokens: int) -> Path:
    """Writes the importance matrix of the matrices of a model's layers, as llama-imatrix does."""
    file = _core.open_file(str(source))
    windows = read_windows(file, calibration, tokens)
    wanted = [(name, "Q4_0") for name, _, shape, _ in file.tensors if name.startswith("blk.") and len(shape) == 2]
    inputs = _core.Calibration(file, windows.seen, windows.held, wanted)
    found = {}
    for name in inputs.places:
        squares = [np.diag(seen) + np.diag(held) for _, seen, held in inputs.products(name)]
        found[f"{name}.in_sum2"], found[f"{name}.counts"] = np.concatenate(squares), np.array([windows.tokens], np.float32)
    with target.open("wb") as written:
        written.write(head_bytes({"general.type": "imatrix"}, [Tensor(name, "F32", each.shape) for name, each in found.items()]))
        written.writelines(each.tobytes().ljust(padded(each.nbytes), b"\0") for each in found.values())
    return target


def texts() -> tuple[list[str], list[str]]:
    """Returns the texts for calibration and those for the comparison, each one kind after the other in turn."""
    library = Path(argparse.__file__).parent
    sentences = list(demo.docstrings(4000))
    kinds = [
        [text for _, text in sorted(topics.items()) if len(text) > 2000],
        [(library / f"{name}.py").read_text("utf-8") for name in ("argparse", "ast", "bisect", "cmd", "csv", "enum", "glob", "shutil")],
        [" ".join(sentences[at : at + 100]) for at in range(0, len(sentences), 100)],
        [path.read_text("utf-8") for path in sorted((ROOT / "docs" / "python").glob("*.md"))],
    ]
    halves = [[kind[first::2] for kind in kinds] for first in (0, 1)]
    seen, other = ([text for text in itertools.chain.from_iterable(itertools.zip_longest(*half)) if text is not None] for half in halves)
    return seen, other


def of_windows(model: pumice.Model, given: list[str], seen: list[str], tokens: int) -> list[str]:
    """Returns beginnings of texts that have a window of tokens or more, so many that `tokens` tokens are scored (half of each window).
    Leaves out those of which more than a tenth also stands in `seen`: the manual repeats itself, and sources have docstrings."""
    known, found = " ".join(" ".join(seen).split()), []
    for text in (each[: 6 * WINDOW] for each in given):
        if len(found) * WINDOW // 2 >= tokens:
            break
        words = " ".join(text.split())
        passages = [words[at : at + 60] for at in range(0, len(words) - 60, 60)]
        if sum(passage in known for passage in passages) <= len(passages) / 10 and model.count_tokens(text) >= WINDOW:
            found.append(text)
    return found


def quantized(source: Path, target: Path, mix: str, how: str, calibration: list[str], tokens: int, llama: str | None) -> None:
    """Writes a file in a mix, with the codes that `how` says."""
    if how in PEERS:
        assert llama, f"--codes {how} needs --llama PYTHON"
        squares = ""
        if how == "imatrix":
            found = read_windows(_core.open_file(str(source)), calibration, tokens)
            windows, squares = source.parent / "windows.npz", str(source.parent / "squares.npz")
            np.savez(windows, *found.seen, *found.held)
            subprocess.run([llama, "-c", SQUARES, str(source), str(windows), squares], check=True, capture_output=True)
        subprocess.run([llama, "-c", PEER, str(source), str(target), str(FTYPES[mix]), squares], check=True, capture_output=True)
        return
    matrix = importance_matrix(source, source.parent / "imatrix.gguf", calibration, tokens) if how == "importance" else None
    texts = calibration if how == "texts" else None
    pumice.quantize(source, target, to=mix, texts=texts, importance=matrix, tokens=tokens, force=True, progress=False)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("mixes", nargs="+", choices=sorted(FTYPES), metavar="MIX")
    parser.add_argument("--codes", nargs="+", choices=(*PEERS, "search", "importance", "texts"), default=("search", "texts"))
    parser.add_argument("--llama", metavar="PYTHON", help="a Python that has llama-cpp-python")
    parser.add_argument("--tokens", type=int, default=16_384, help="tokens of calibration")
    parser.add_argument("--scored", type=int, default=4_096, help="tokens that are compared")
    given = parser.parse_args()
    calibration, others = texts()
    with tempfile.TemporaryDirectory() as target:
        reference, output = Path(target) / "float.gguf", Path(target) / "mixed.gguf"
        pumice.quantize(samples.smollm2(), reference, to="f32", progress=False)
        with pumice.load(reference, device="cpu", progress=False) as model:
            compared = of_windows(model, others, calibration, given.scored)
            print(f"{pumice.build_info()['isa']}, Python {platform.python_version()}, {given.tokens} tokens of calibration")
            print("| mix | codes by | MB | tokens compared | KL, mean | KL, 99 % | same first token | perplexity | float |")
            print("|---|---|---|---|---|---|---|---|---|")
            for mix, how in itertools.product(given.mixes, given.codes):
                quantized(reference, output, mix, how, calibration, given.tokens, given.llama)
                with pumice.load(output, device="cpu", progress=False) as mixed:
                    found = mixed.compare(model, compared, window=WINDOW, progress=False)
                print(
                    f"| {mix} | {how} | {output.stat().st_size / 1e6:.1f} | {found.model.tokens} | {found.kl:.4f} ± {found.kl_error:.4f} | "
                    f"{found.kl_99:.3f} | {found.same_first:.1%} ± {found.same_first_error:.1%} | {found.model.perplexity:.2f} | "
                    f"{found.reference.perplexity:.2f} |",
                    flush=True,
                )


if __name__ == "__main__":
    main()
