"""Shows which files of convert() llama.cpp reads, and how near its results are. Each small model of tests/random_models that has a GGUF
form is converted to F32, and llama.cpp and pumice compute the same ids of the same file. A line of the table has the normalised mean
squared error of llama.cpp's logits, or of an encoder's rows.

    python tests/check_llama_cpp.py             # all models; takes minutes
    python tests/check_llama_cpp.py MODEL ...

The exit code is 1 if llama.cpp does not read a file, or the error is above 1e-3. Needs the package and llama-cpp-python."""

from __future__ import annotations

import os
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parent / "python" / "support")]

import llama_cpp  # noqa: E402
import make_mix_table  # noqa: E402, F401  (it turns off packed weights, with which small matrices crash)
import random_gguf  # noqa: E402
import random_models  # noqa: E402
from random_gguf import WITHOUT, WRITTEN  # noqa: E402
from random_models import VARIANTS, Variant  # noqa: E402

import pumice  # noqa: E402
from pumice import _core  # noqa: E402
from pumice.gguf.container import raw_metadata  # noqa: E402

LIMIT = 1e-3
LENGTH = 48  # ids
LOADED = [
    v for v in VARIANTS.values() if not v.pending and v.family in WRITTEN and v.name not in WITHOUT and v.kind in ("decoder", "encoder")
]


def with_vocabulary(path: Path, encoder: bool) -> Path:
    """Adds the keys of a vocabulary, without which llama.cpp reads no file, to a file that convert() wrote without one."""
    file = _core.open_file(str(path))
    tensors = {name: np.frombuffer(file.read(name), np.float32).reshape(shape) for name, _, shape, _ in file.tensors}
    keys: dict[str, Any] = {key: file.get(key) for key in raw_metadata(path)}
    keys = {key: value.tolist() if isinstance(value, np.ndarray) else value for key, value in keys.items()}
    rows = tensors["token_embd.weight"].shape[0]
    types = len(tensors["token_types.weight"]) if "token_types.weight" in tensors else 1
    if encoder:
        vocabulary = {"model": "bert", "tokens": [f"[unused{i}]" for i in range(rows)], "token_type_count": types}
        added: dict[str, Any] = {f"tokenizer.ggml.{key}": value for key, value in vocabulary.items()}
    else:
        added = {"tokenizer.ggml.model": "no_vocab", f"{file.architecture}.vocab_size": rows}
    return random_gguf.write(path.with_name("vocabulary.gguf"), keys | added, tensors)


Rows = npt.NDArray[np.float32]
Ids = npt.NDArray[np.int32]
SIZE = {"n_ctx": LENGTH, "n_batch": LENGTH, "n_ubatch": LENGTH, "n_threads": 1, "n_threads_batch": 1}


def logits_of(path: Path, ids: Ids) -> Rows:
    model = llama_cpp.Llama(str(path), logits_all=True, type_k=0, type_v=0, **SIZE)  # type 0 is F32
    model.eval(ids.tolist())
    return np.array(model.scores[: len(ids)], np.float32)


def rows_of_encoder(path: Path, ids: Ids) -> Rows:
    model = llama_cpp.Llama(str(path), embedding=True, pooling_type=llama_cpp.LLAMA_POOLING_TYPE_NONE, **SIZE)
    batch = llama_cpp.llama_batch_init(len(ids), 0, 1)
    batch.n_tokens = len(ids)
    for i, token in enumerate(ids):
        batch.token[i], batch.pos[i], batch.n_seq_id[i], batch.seq_id[i][0], batch.logits[i] = int(token), i, 1, 0, 1
    assert llama_cpp.llama_decode(model.ctx, batch) == 0, "llama_decode() fails"
    return np.stack([np.ctypeslib.as_array(llama_cpp.llama_get_embeddings_ith(model.ctx, i), (model.n_embd(),)) for i in range(len(ids))])


def error_of(variant: Variant, folder: Path) -> float:
    """Returns the normalised mean squared error of llama.cpp's results."""
    encoder = variant.kind == "encoder"
    pumice.convert(random_models.make_folder(variant.name, folder), folder / "m.gguf", to="f32", tokenizer="none", progress=False)
    path = with_vocabulary(folder / "m.gguf", encoder)
    ids = random_models.golden(variant.name)["ids"][:LENGTH].astype(np.int32)
    model = _core.load(_core.open_file(str(folder / "m.gguf")), _core.LoadOptions(device="cpu", threads=1, compute="float32"))
    if encoder:
        ours, theirs = model.encode_tokens(ids, np.array([0, len(ids)]), None), rows_of_encoder(path, ids)
    else:
        ours, theirs = model.logits(ids, True), logits_of(path, ids)
    a, b = ours.astype(np.float64), theirs.astype(np.float64)[:, : ours.shape[1]]
    return float(((a - b) ** 2).sum() / (a**2).sum())


def apart(variant: Variant) -> str:
    """Compares in a process of its own, because llama.cpp ends the process at some files. Returns the error or what went wrong."""
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryFile("w+") as said:
        child = os.fork()
        if child == 0:
            os.dup2(said.fileno(), 2)
            try:
                os.write(2, f"\nerror {error_of(variant, Path(folder)):.1e}\n".encode())
            except BaseException as error:
                os.write(2, f"\nfailed {type(error).__name__}: {error}\n".encode())
            os._exit(0)
        _, status = os.waitpid(child, 0)
        said.seek(0)
        text = said.read()
    found = re.search(r"^error (\S+)$", text, re.MULTILINE)
    if found:
        return found[1]
    reasons = re.findall(r"error loading model: (.*)|(GGML_ASSERT.*)|^failed (.*)$", text, re.MULTILINE)
    return next(("".join(reason) for reason in reasons), f"ended with status {status}")[:200]


def main(names: list[str]) -> int:
    os.environ["GGML_NO_BACKTRACE"] = "1"
    wrong = 0
    print("| family | small model | NMSE, or why llama.cpp does not read the file |\n|---|---|---|")
    for variant in LOADED:
        if not names or variant.name in names:
            result = apart(variant)
            print(f"| {variant.family} | {variant.name} | {result} |", flush=True)
            wrong += not re.fullmatch(r"\d\S+", result) or not float(result) <= LIMIT
    print(f"{wrong} files are not read, or their results differ")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
