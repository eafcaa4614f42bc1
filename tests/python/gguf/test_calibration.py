"""quantize(texts=) must choose codes by what matrices are multiplied with, and be better for it on other texts."""

from __future__ import annotations

import contextlib
import json
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import random_gguf
import random_models
from random_gguf import gguf_parts

import pumice
from pumice import _core
from pumice.__main__ import main
from pumice.gguf.calibration import read_windows

QUIET: dict[str, Any] = {"progress": False}
Int32 = npt.NDArray[np.int32]


def texts(seed: int, count: int, length: int = 64) -> list[Int32]:
    return list(np.random.default_rng(seed).integers(1, 512, (count, length), dtype=np.int32))


@pytest.fixture(name="source")
def _source(tmp_path: Path) -> Path:
    return random_gguf.make_gguf("llama_wide", tmp_path)


def test_products_are_those_of_what_matrices_are_multiplied_with(source: Path) -> None:
    """Texts of one token attend to themselves alone, so each head gives its values."""
    keys, tensors = gguf_parts("llama_wide")
    eps = keys["llama.attention.layer_norm_rms_epsilon"]

    def norm(x: Any, name: str) -> Any:
        return x / np.sqrt((x * x).mean(axis=1, keepdims=True) + eps) * tensors[name]

    seen, held = np.arange(1, 400, dtype=np.int32), np.arange(400, 500, dtype=np.int32)
    names = [name for name in tensors if name.startswith("blk.") and tensors[name].ndim == 2]
    calibration = _core.Calibration(
        _core.open_file(str(source)), list(seen[:, None]), list(held[:, None]), [(name, "Q4_K") for name in names], threads=2
    )
    assert set(calibration.places) == set(names)
    x = tensors["token_embd.weight"].astype(np.float64)[np.concatenate([seen, held])]
    for layer in range(4):
        weight = {name.split(".")[2]: tensor.astype(np.float64) for name, tensor in tensors.items() if name.startswith(f"blk.{layer}.")}
        inputs = {"attn_q": norm(x, f"blk.{layer}.attn_norm.weight")}
        inputs["attn_k"] = inputs["attn_v"] = inputs["attn_q"]
        values = (inputs["attn_v"] @ weight["attn_v"].T).reshape(len(x), 2, 1, -1)
        inputs["attn_output"] = np.broadcast_to(values, (len(x), 2, 4, values.shape[3])).reshape(len(x), -1)
        x = x + inputs["attn_output"] @ weight["attn_output"].T
        inputs["ffn_gate"] = inputs["ffn_up"] = norm(x, f"blk.{layer}.ffn_norm.weight")
        gate = inputs["ffn_gate"] @ weight["ffn_gate"].T
        inputs["ffn_down"] = gate / (1 + np.exp(-gate)) * (inputs["ffn_up"] @ weight["ffn_up"].T)
        x = x + inputs["ffn_down"] @ weight["ffn_down"].T
        for name, rows in inputs.items():
            ((first, *found),) = calibration.products(f"blk.{layer}.{name}.weight")
            assert first == 0
            for sums, part in zip(found, (rows[:399], rows[399:]), strict=True):
                expected = np.tril(part.T @ part)
                assert np.abs(np.tril(sums) - expected).max() < 1e-4 * np.diag(expected).max(), (layer, name)
        places = {name: calibration.places[f"blk.{layer}.{name}.weight"] for name in inputs}
        assert places["attn_q"] == places["attn_k"] == places["attn_v"] and places["ffn_gate"] == places["ffn_up"]
        assert len(set(places.values())) == 4


# Families with different layers, and the matrices of theirs that several operations or experts share.
@pytest.mark.parametrize(
    ("name", "without"),
    [
        ("gpt2", ""),
        ("phi3", ""),
        ("gemma2", ""),
        ("bloom", ""),
        ("bert", ""),
        ("modernbert", ""),
        ("t5", ""),
        ("mixtral", "_exps"),
        ("qwen2_moe", "_exps"),
        ("deepseek_v3", "_exps|attn_[kv]_b|attn_kv_b"),
        ("lfm2", ""),
        ("qwen3_next", "_exps"),
        ("mamba2", ""),
    ],
)
def test_matrices_of_layers_have_a_place(name: str, without: str, tmp_path: Path) -> None:
    path = random_gguf.make_gguf(name, tmp_path)
    file = _core.open_file(str(path))
    wide = [(name, "Q4_0", shape) for name, _, shape, _ in file.tensors if len(shape) >= 2 and shape[-1] > 1 and "blk." in name]
    calibration = _core.Calibration(file, texts(1, 1), texts(2, 1), [each[:2] for each in wide])
    missing = {each for each, _, _ in wide} - set(calibration.places)
    vectors = r"norm|conv1d|shortconv\.conv|rel_b|exp_probs"
    assert {each for each in missing if not re.search(f"{vectors}|{without}" if without else vectors, each)} == set()
    assert calibration.places and calibration.memory > 0


def test_quantize_is_better_with_texts(source: Path, tmp_path: Path) -> None:
    errors = []
    ids = texts(9, 1, 200)[0]
    folder = random_models.make_folder("llama_wide", tmp_path)
    for name, options in (("plain", {}), ("texts", {"texts": texts(1, 48)})):
        plan = pumice.quantize(source, tmp_path / f"{name}.gguf", to="q3_k_s", **options, **QUIET)
        logits = []
        for path in (source, tmp_path / f"{name}.gguf"):
            with pumice.load(path, device="cpu", tokenizer=folder, progress=False) as model:
                logits.append(model.logits(ids, positions="all").astype(np.float64))
        errors.append(((logits[0] - logits[1]) ** 2).sum())
    assert errors[1] < 0.9 * errors[0]
    assert (tmp_path / "plain.gguf").stat().st_size == (tmp_path / "texts.gguf").stat().st_size
    assert plan.tokens == 48 * 64 and plan.memory > 0
    assert set(plan.calibrated) == {each for each, kind, _, _ in plan.tensors if kind == "Q3_K" and each.startswith("blk.")}
    assert re.search(r"blk\.\*\.ffn_up\.weight +Q3_K +texts +4 ", str(plan)) and re.search(r"token_embd\.weight +\w+ +1 ", str(plan))
    before, after = (_core.open_file(str(tmp_path / f"{name}.gguf")) for name in ("plain", "texts"))
    assert before.read("output.weight") == after.read("output.weight")
    assert before.read("blk.0.ffn_up.weight") != after.read("blk.0.ffn_up.weight")


KILLED = """
import os, signal, sys
import numpy as np
import pumice
from pumice.gguf import job

def kill(done, total):
    if done > 0.7 * total:
        os.kill(os.getpid(), signal.SIGKILL)

job._JOURNAL_SECONDS = 0
source, output = sys.argv[1:]
texts = list(np.random.default_rng(1).integers(1, 512, (20, 64), dtype=np.int32))
pumice.quantize(source, output, to="q4_k_m", texts=texts, progress=kill)
"""


def test_an_interrupted_or_killed_call_goes_on(source: Path, tmp_path: Path) -> None:
    options: dict[str, Any] = {"to": "q4_k_m", "texts": texts(1, 20)}
    pumice.quantize(source, tmp_path / "whole.gguf", **options, **QUIET)
    output, part = tmp_path / "q.gguf", tmp_path / "q.gguf.part"

    def stop(done: int, total: int) -> None:
        if done > 0.7 * total:
            raise KeyboardInterrupt

    again: list[int] = []
    for killed in (False, True):
        if killed:
            child = subprocess.run([sys.executable, "-c", KILLED, str(source), str(output)], check=False)
            assert child.returncode == -signal.SIGKILL
        else:
            with pytest.raises(KeyboardInterrupt):
                pumice.quantize(source, output, **options, progress=stop)
        said = json.loads((tmp_path / "q.gguf.journal").read_text())
        assert said.get("written", said["units"]) > 10 and part.is_file() and not output.exists()
        again.clear()
        pumice.quantize(source, output, **options, progress=lambda done, total: again.append(done))
        assert again[0] > 0.5 * again[-1]  # what is in the journal is not computed again
        assert output.read_bytes() == (tmp_path / "whole.gguf").read_bytes() and not part.exists()
        output.unlink()


def test_the_order_of_calls_changes_nothing(source: Path) -> None:
    names = [f"blk.{layer}.{name}.weight" for layer in range(4) for name in ("attn_q", "attn_k", "ffn_down")]
    found = []
    for order, threads in ((names, 2), (names[::-1], 1)):
        calibration = _core.Calibration(
            _core.open_file(str(source)), texts(1, 9), texts(2, 2), [(name, "Q4_K") for name in names], threads=threads
        )
        found.append({name: calibration.pack(name, "Q4_K") for name in order})
    assert found[0] == found[1]


def test_a_cancelled_call_starts_anew(source: Path) -> None:
    name = "blk.3.ffn_down.weight"
    calibration = _core.Calibration(_core.open_file(str(source)), texts(1, 40), texts(2, 2), [(name, "Q4_K")])
    stopped = _core.Cancel()
    stopped.request()
    with pytest.raises(KeyboardInterrupt):
        calibration.pack(name, "Q4_K", stopped)
    later = _core.Cancel()
    threading.Timer(0.05, later.request).start()
    with contextlib.suppress(KeyboardInterrupt):
        calibration.pack(name, "Q4_K", later)
    again = _core.Calibration(_core.open_file(str(source)), texts(1, 40), texts(2, 2), [(name, "Q4_K")])
    assert calibration.pack(name, "Q4_K") == again.pack(name, "Q4_K")


def test_windows_are_spread_over_all_texts(source: Path) -> None:
    file = _core.open_file(str(source))
    given = [np.full(5000, i + 1) for i in range(8)]
    windows = read_windows(file, given, 16_384)
    assert {len(window) for window in (*windows.seen, *windows.held)} == {512} and 15_000 < windows.tokens <= 16_384
    assert {int(window[0]) for window in windows.seen} == set(range(1, 9)) and len(windows.held) == 3
    few = read_windows(file, iter(given), 1024)
    assert [int(window[0]) for window in (*few.seen, *few.held)] == [1, 5]
    assert few.key() != windows.key() == read_windows(file, given, 16_384).key()


def test_wrong_texts(source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "bad.txt").write_bytes(b"ab\xff")
    for options, error, message in (
        ({"texts": texts(1, 3)}, ValueError, r"texts have 192 tokens, of which 192 are in whole windows; calibration needs at least 1024"),
        ({"texts": np.ones(600, np.int32)}, ValueError, "texts have 600 tokens, of which 512"),
        ({"texts": []}, ValueError, "texts have 0 tokens"),
        ({"texts": [np.full(600, 512), *texts(1, 20)]}, ValueError, r"texts\[0\]: token 0 is 512; ids of this model are 0 to 511"),
        ({"texts": [1.5]}, TypeError, r"texts\[0\]"),
        ({"texts": 3}, TypeError, "texts must be"),
        ({"texts": texts(1, 20), "tokens": 1000}, ValueError, "tokens"),
        ({"texts": "abc"}, pumice.TokenizerError, "llama_wide.gguf"),
        ({"texts": tmp_path / "bad.txt"}, ValueError, r"bad\.txt is not UTF-8 text: byte 0xff at place 2"),
        ({"texts": [tmp_path / "none.txt"]}, FileNotFoundError, "none.txt"),
    ):
        with pytest.raises(error, match=message):
            pumice.quantize(source, tmp_path / "q.gguf", to="q4_k_m", **options, **QUIET)  # type: ignore[arg-type]
    assert main(["quantize", str(source), str(tmp_path / "q.gguf"), "--to", "q4_0", "--texts", str(tmp_path / "bad.txt")]) == 1
    assert "is not UTF-8" in capsys.readouterr().err
    assert not list(tmp_path.glob("q.gguf*"))


def test_weights_that_are_not_numbers_are_named(tmp_path: Path) -> None:
    keys, tensors = gguf_parts("llama_wide")
    tensors["blk.1.ffn_up.weight"][3, 4] = np.nan
    path = random_gguf.write(tmp_path / "n.gguf", keys, tensors)
    with pytest.raises((pumice.NumericError, ValueError), match=r"blk\.|NaN|product of columns"):
        pumice.quantize(path, tmp_path / "q.gguf", to="q4_k_m", texts=texts(1, 20), **QUIET)
