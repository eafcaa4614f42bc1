"""Measures what quantize(texts=) and quantize(importance=) gain on a whole model, SmolLM2-135M or Gemma 3 270M. Compares the quantized
files with the float weights, and with the files that llama.cpp makes of these weights, without and with an importance matrix of the same
texts.
    python bench/calibrated.py q4_k_m --codes llama.cpp imatrix search importance texts --llama .venv-bench/bin/python --tokens 8192
    python bench/calibrated.py q3_k_m --tokens 4096 --scored 512

The importance matrix has, for each matrix, the mean squares of its input columns, as llama-imatrix collects them. The mean squares are the
diagonals of the sums of products that texts= uses, for the same windows of tokens. --llama is a Python that has llama-cpp-python.

The sample files are Q4_1 and Q4_K_M. Their weights, written as F32, serve as the float model. The texts are Python's manual (pydoc's
topics), sources and docstrings of its standard library, and pumice's own pages. Half of the texts of each kind is for calibration, the
other half for the comparison. A row of the table is the result of Model.compare() for one file: the mean Kullback-Leibler divergence from
the float model with its standard error, the 99th percentile of the divergence, and how often both models find the same token most likely.
The first command line gives the table of docs/python/gguf.md."""

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
import numpy.typing as npt

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "examples")]

import demo  # noqa: E402
import samples  # noqa: E402

import pumice  # noqa: E402
from pumice import _core  # noqa: E402
from pumice.gguf.calibration import read_windows  # noqa: E402
from pumice.gguf.container import file_bytes  # noqa: E402

WINDOW = 512
Floats = npt.NDArray[np.float32]
PEERS = ("llama.cpp", "imatrix")
FTYPES = {"q2_k": 10, "q3_k_m": 12, "q4_k_m": 15, "q5_k_m": 17}  # values of llama_ftype in llama.h
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


def squares(source: Path, calibration: list[str], tokens: int) -> dict[str, Floats]:
    """Returns, for each matrix of a model's layers, the mean squares of its input columns, as llama-imatrix collects them."""
    file = _core.open_file(str(source))
    windows = read_windows(file, calibration, tokens)
    wanted = [(name, "Q4_0") for name, _, shape, _ in file.tensors if name.startswith("blk.") and len(shape) == 2]
    inputs = _core.Calibration(file, windows.seen, windows.held, wanted)
    return {
        name: np.concatenate([np.diag(seen) + np.diag(held) for _, seen, held in inputs.products(name)]) / np.float32(windows.tokens)
        for name in inputs.places
    }


def importance_matrix(target: Path, means: dict[str, Floats]) -> Path:
    """Writes the file of an importance matrix in the format of llama-imatrix."""
    found = {f"{name}.in_sum2": mean for name, mean in means.items()}
    found |= {f"{name}.counts": np.ones(1, np.float32) for name in means}
    target.write_bytes(file_bytes({"general.type": "imatrix"}, found))
    return target


def texts() -> tuple[list[str], list[str]]:
    """Returns the texts for calibration and the texts for the comparison. In both lists, the kinds of texts alternate."""
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
    """Returns beginnings of texts that have at least WINDOW tokens, so many that `tokens` tokens are scored (half of each window). Leaves
    out a text if more than a tenth of it also occurs in `seen`, because the manual repeats itself and sources contain docstrings."""
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
    """Writes the model quantized to a mix, with the codes chosen as `how` names it (a value of --codes)."""
    means = squares(source, calibration, tokens) if how in ("imatrix", "importance") else {}
    if how in PEERS:
        assert llama, f"--codes {how} needs --llama PYTHON"
        given = source.parent / "squares.npz"
        np.savez(given, **means)
        command = [llama, "-c", PEER, str(source), str(target), str(FTYPES[mix]), str(given) if means else ""]
        subprocess.run(command, check=True, capture_output=True)
        return
    matrix = importance_matrix(source.parent / "imatrix.gguf", means) if how == "importance" else None
    texts = calibration if how == "texts" else None
    pumice.quantize(source, target, to=mix, texts=texts, importance=matrix, tokens=tokens, force=True, progress=False)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("mixes", nargs="+", choices=sorted(FTYPES), metavar="MIX")
    parser.add_argument("--codes", nargs="+", choices=(*PEERS, "search", "importance", "texts"), default=("search", "texts"))
    parser.add_argument("--model", choices=("smollm2", "gemma3"), default="smollm2")
    parser.add_argument("--llama", metavar="PYTHON", help="a Python that has llama-cpp-python")
    parser.add_argument("--tokens", type=int, default=16_384, help="tokens of calibration")
    parser.add_argument("--scored", type=int, default=4_096, help="tokens that are compared")
    given = parser.parse_args()
    calibration, others = texts()
    with tempfile.TemporaryDirectory() as target:
        reference, output = Path(target) / "float.gguf", Path(target) / "mixed.gguf"
        pumice.quantize(getattr(samples, given.model)(), reference, to="f32", progress=False)
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
