"""quantize(importance=) must weight the errors of columns by an importance matrix, matrix by matrix, and refuse files that are none."""

from __future__ import annotations

import logging
import os
import re
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
from pumice.gguf import weights

QUIET: dict[str, Any] = {"progress": False}
KEYS: dict[str, Any] = {
    "general.type": "imatrix",
    "imatrix.datasets": ["texts.txt"],
    "imatrix.chunk_count": 2,
    "imatrix.chunk_size": 512,
}
Tensors = dict[str, npt.NDArray[np.float32]]


def entries(source: Path, seed: int = 7, counts: int | None = None) -> Tensors:
    """Returns an importance matrix for all matrices of the layers, in which some columns count thousands of times more than others.
    counts: how many counts each has. By default, one for each matrix of the tensor."""
    random, found = np.random.default_rng(seed), {}
    for name, _, shape, _ in _core.open_file(str(source)).tensors:
        if name.startswith("blk.") and len(shape) >= 2:
            matrices = int(np.prod(shape[:-2]))
            squares = np.exp(2 * random.normal(size=(matrices, shape[-1])))
            found[f"{name}.in_sum2"] = squares.astype(np.float32)
            found[f"{name}.counts"] = np.full((counts or matrices, 1), 1024, np.float32)
    return found


@pytest.fixture(name="source")
def _source(tmp_path: Path) -> Path:
    return random_gguf.make_gguf("llama_wide", tmp_path)


def floats(path: Path, name: str) -> npt.NDArray[np.float64]:
    file = _core.open_file(str(path))
    shape = next(shape for each, _, shape, _ in file.tensors if each == name)
    found: npt.NDArray[np.float64] = _core.ops.unpack(file.format(name), file.read(name)).reshape(shape).astype(np.float64)
    return found


@pytest.mark.parametrize("to", ["q2_k", "q3_k_m", "q4_k_m", "q5_0", "iq4_xs"])
def test_columns_that_count_more_have_smaller_errors(to: str, source: Path, tmp_path: Path) -> None:
    given = entries(source)
    matrix = random_gguf.write(tmp_path / "imatrix.gguf", KEYS, given)
    plain = pumice.quantize(source, tmp_path / "plain.gguf", to=to, **QUIET)
    plan = pumice.quantize(source, tmp_path / "q.gguf", to=to, importance=matrix, **QUIET)
    assert plan.tensors == plain.tensors and plan.bytes == plain.bytes and not plain.weighted
    assert set(plan.weighted) == {name.removesuffix(".in_sum2") for name in given if name.endswith(".in_sum2")}
    for name in plan.weighted:
        before = floats(source, name)
        by = [((floats(tmp_path / f"{each}.gguf", name) - before) ** 2 * given[f"{name}.in_sum2"]).sum() for each in ("plain", "q")]
        assert by[1] < 0.95 * by[0], name
    files = [_core.open_file(str(tmp_path / f"{each}.gguf")) for each in ("plain", "q")]
    for name, _, _, _ in files[0].tensors:  # the embedding and the head have no entry
        assert (files[0].read(name) == files[1].read(name)) == (name not in plan.weighted)


def test_each_expert_has_its_own_row(tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    source = random_gguf.make_gguf("mixtral", tmp_path)
    given = entries(source)
    given["blk.0.ffn_up_exps.weight.counts"][2] = 0
    given["blk.0.ffn_up_exps.weight.in_sum2"][2] = 0
    matrix = random_gguf.write(tmp_path / "imatrix.gguf", KEYS, given)
    pumice.quantize(source, tmp_path / "plain.gguf", to="q4_0", **QUIET)
    with caplog.at_level(logging.WARNING, "pumice"):
        plan = pumice.quantize(source, tmp_path / "q.gguf", to="q4_0", importance=matrix, **QUIET)
    assert "no input of 1 matrices in 1 tensors (blk.0.ffn_up_exps.weight, ...)" in caplog.text
    stacks = [name for name in plan.weighted if "_exps" in name]
    assert len(stacks) == 3 * 3
    for name in stacks:
        before, plain, weighted = (floats(path, name) for path in (source, tmp_path / "plain.gguf", tmp_path / "q.gguf"))
        for expert, row in enumerate(given[f"{name}.in_sum2"]):
            if (name, expert) == ("blk.0.ffn_up_exps.weight", 2):
                assert np.array_equal(plain[expert], weighted[expert])
            else:
                assert ((weighted[expert] - before[expert]) ** 2 * row).sum() < 0.95 * ((plain[expert] - before[expert]) ** 2 * row).sum()
    # Neither the size of the pieces nor the scale of a matrix's numbers changes anything; one count may stand for all matrices.
    del given["blk.0.ffn_up_exps.weight.counts"]
    scaled = {name: each * 512 if name.endswith(".in_sum2") else each[:1] for name, each in given.items()}
    scaled["blk.0.ffn_up_exps.weight.counts"] = np.ones(1, np.float32)
    monkeypatch.setattr(weights, "PIECE", 999)
    pumice.quantize(source, tmp_path / "s.gguf", to="q4_0", importance=random_gguf.write(tmp_path / "scaled.gguf", KEYS, scaled), **QUIET)
    assert (tmp_path / "s.gguf").read_bytes() == (tmp_path / "q.gguf").read_bytes()


def test_logits_are_nearer_with_importance(tmp_path: Path) -> None:
    """A model in which few columns of the layers' inputs are large, as in trained ones: the norms' weights spread over three decades."""
    keys, tensors = gguf_parts("llama_wide")
    random = np.random.default_rng(3)
    for name, tensor in tensors.items():
        if name.endswith("_norm.weight"):
            tensor *= np.exp(1.5 * random.normal(size=tensor.shape)).astype(np.float32)
    source = random_gguf.write(tmp_path / "llama_wide.gguf", keys, tensors)
    texts = list(random.integers(1, 512, (4, 256), dtype=np.int32))
    file = _core.open_file(str(source))
    calibration = _core.Calibration(
        file, texts[:3], texts[3:], [(name, "Q3_K") for name, _, shape, _ in file.tensors if name.startswith("blk.") and len(shape) == 2]
    )
    given = {}
    for name in calibration.places:
        given[f"{name}.in_sum2"] = np.concatenate([np.diag(seen) for _, seen, _ in calibration.products(name)])
        given[f"{name}.counts"] = np.full(1, 768, np.float32)
    matrix = random_gguf.write(tmp_path / "imatrix.gguf", KEYS, given)
    ids, folder = random.integers(1, 512, 200), random_models.make_folder("llama_wide", tmp_path)
    errors = []
    for importance in (None, matrix):
        pumice.quantize(source, tmp_path / "q.gguf", to="q3_k_s", importance=importance, force=True, **QUIET)
        logits = []
        for path in (source, tmp_path / "q.gguf"):
            with pumice.load(path, device="cpu", tokenizer=folder, progress=False) as model:
                logits.append(model.logits(ids, positions="all").astype(np.float64))
        errors.append(((logits[0] - logits[1]) ** 2).sum())
    assert errors[1] < 0.9 * errors[0]


def test_q8_0_is_as_without(source: Path, tmp_path: Path) -> None:
    matrix = random_gguf.write(tmp_path / "imatrix.gguf", KEYS, entries(source))
    options: dict[str, Any] = {"to": "q4_k_m", "keep": {"ffn_down": "q8_0", "attn_q": "f16"}, **QUIET}
    pumice.quantize(source, tmp_path / "plain.gguf", **options)
    plan = pumice.quantize(source, tmp_path / "q.gguf", importance=matrix, **options)
    for name, kind, _, _ in plan.tensors:
        same = _core.open_file(str(tmp_path / "q.gguf")).read(name) == _core.open_file(str(tmp_path / "plain.gguf")).read(name)
        assert same == (name not in plan.weighted) and (name not in plan.weighted or kind not in ("Q8_0", "F16"))
    for to in ("q8_0", "f16"):
        with pytest.raises(ValueError, match="has no numbers for a tensor whose codes are searched, so it would change nothing"):
            pumice.quantize(source, tmp_path / "n.gguf", to=to, importance=matrix, **QUIET)


def test_an_interrupted_call_goes_on_with_the_same_numbers_alone(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pumice.gguf.job, "_JOURNAL_SECONDS", 0)
    given = entries(source)
    matrix = random_gguf.write(tmp_path / "imatrix.gguf", KEYS, given)
    options: dict[str, Any] = {"to": "q4_k_m", "importance": matrix}
    pumice.quantize(source, tmp_path / "whole.gguf", **options, **QUIET)
    output = tmp_path / "q.gguf"

    def stop(done: int, total: int) -> None:
        if done > 0.6 * total:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pumice.quantize(source, output, **options, progress=stop)
    os.utime(matrix, (1, 1))  # a copy of the same file
    began: list[int] = []
    pumice.quantize(source, output, **options, progress=lambda done, total: began.append(done))
    assert began[0] > 0.4 * began[-1] and output.read_bytes() == (tmp_path / "whole.gguf").read_bytes()
    output.unlink()
    with pytest.raises(KeyboardInterrupt):
        pumice.quantize(source, output, **options, progress=stop)
    given["blk.0.attn_q.weight.in_sum2"][0, 5] *= 3
    random_gguf.write(matrix, KEYS, given)
    began.clear()
    pumice.quantize(source, output, **options, progress=lambda done, total: began.append(done))
    assert began[0] < 0.4 * began[-1]
    pumice.quantize(source, tmp_path / "other.gguf", **options, **QUIET)
    assert output.read_bytes() == (tmp_path / "other.gguf").read_bytes() != (tmp_path / "whole.gguf").read_bytes()


def test_a_matrix_that_changes_while_it_is_read_is_noticed(source: Path, tmp_path: Path) -> None:
    matrix = random_gguf.write(tmp_path / "imatrix.gguf", KEYS, entries(source))

    def change(done: int, total: int) -> None:
        os.utime(matrix, (1, 1))

    with pytest.raises(OSError, match="the files that it is made of were changed meanwhile"):
        pumice.quantize(source, tmp_path / "q.gguf", to="q4_0", importance=matrix, progress=change)
    assert not (tmp_path / "q.gguf").exists()


def test_the_command_and_convert(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = random_models.make_folder("llama_wide", tmp_path)
    exact, output = tmp_path / "exact.gguf", tmp_path / "q.gguf"
    pumice.convert(folder, exact, tokenizer="none", **QUIET)
    matrix = random_gguf.write(tmp_path / "imatrix.gguf", KEYS, entries(exact))
    words = [str(output), "--to", "q4_k_m", "--importance", str(matrix)]
    assert main(["quantize", str(exact), *words, "--plan"]) == 0
    text = capsys.readouterr().out
    assert re.search(r"blk\.\*\.ffn_up\.weight +Q4_K +importance +4 ", text) and re.search(r"token_embd\.weight +\w+ +1 ", text)
    assert "28 of them by an importance matrix" in text and not output.exists()
    assert main(["quantize", str(exact), *words]) == 0
    quantized = output.read_bytes()
    assert main(["convert", str(folder), *words, "--no-tokenizer", "--force"]) == 0
    assert output.read_bytes() == quantized and sorted(tmp_path.glob("q.*")) == [output]
    assert main(["quantize", str(exact), str(tmp_path / "n.gguf"), "--to", "q4_0", "--importance", str(tmp_path / "no.gguf")]) == 1
    assert "no.gguf" in capsys.readouterr().err
    with pytest.raises(ValueError, match="texts and importance have nothing to choose"):
        pumice.convert(folder, output, to="f16", importance=matrix, **QUIET)


def broken(given: Tensors, **changes: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns the keys and tensors of a file with changes: keys with points, and tensors of blk.1.attn_q.weight."""
    keys, tensors = dict(KEYS), dict(given)
    for name, value in changes.items():
        target: dict[str, Any] = keys if name.startswith("general") else tensors
        full = name.replace("_type", ".type") if name.startswith("general") else f"blk.1.attn_q.weight.{name}"
        target.pop(full, None)
        if value is not None:
            target[full] = value
    return keys, tensors


SQUARES = np.ones((1, 256), np.float32)


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"general_type": "model"}, pumice.ModelFormatError, "general.type' is 'model'; that of an importance matrix is 'imatrix'"),
        ({"general_type": None}, pumice.ModelFormatError, "general.type' is None"),
        ({"counts": None}, pumice.ModelFormatError, "in_sum2' has no 'blk.1.attn_q.weight.counts' beside it"),
        ({"in_sum2": None}, pumice.ModelFormatError, "counts' has no 'blk.1.attn_q.weight.in_sum2' beside it"),
        ({"counts": np.array([np.nan])}, pumice.ModelFormatError, "counts' holds nan at place 0"),
        ({"counts": np.array([-1])}, pumice.ModelFormatError, "counts' holds -1 at place 0"),
        ({"in_sum2": np.where(np.arange(256) == 9, np.nan, SQUARES)}, pumice.ModelFormatError, "in_sum2' holds nan at place 9"),
        ({"in_sum2": np.where(np.arange(256) == 9, np.inf, SQUARES)}, pumice.ModelFormatError, "in_sum2' holds inf at place 9"),
        ({"in_sum2": np.where(np.arange(256) == 9, -1e-9, SQUARES)}, pumice.ModelFormatError, "in_sum2' holds -1e-09 at place 9"),
        ({"in_sum2": random_gguf.Packed(1, (1, 256), bytes(512))}, pumice.ModelFormatError, "in_sum2' has the format F16"),
        ({"in_sum2": SQUARES[:, :128]}, ValueError, r"in_sum2' is \[1, 128\] with 1 counts; .* of another model"),
        ({"in_sum2": np.ones((2, 256))}, ValueError, r"in_sum2' is \[2, 256\] with 1 counts; the model's tensor is \[256, 256\]"),
        ({"in_sum2": np.ones((256, 1))}, ValueError, r"in_sum2' is \[256, 1\]"),
        ({"counts": np.ones((2, 1))}, ValueError, r"in_sum2' is \[1, 256\] with 2 counts"),
    ],
)
def test_broken_and_foreign_files_are_named(
    changes: dict[str, Any], error: type[Exception], message: str, source: Path, tmp_path: Path
) -> None:
    matrix = random_gguf.write(tmp_path / "imatrix.gguf", *broken(entries(source), **changes))
    with pytest.raises(error, match=message) as caught:
        pumice.quantize(source, tmp_path / "q.gguf", to="q4_0", importance=matrix, **QUIET)
    assert isinstance(caught.value, pumice.ModelFormatError) == (error is pumice.ModelFormatError)
    assert "imatrix.gguf" in str(caught.value) and not list(tmp_path.glob("q.gguf*"))


def test_other_sums_of_a_matrix_are_left_out(source: Path, tmp_path: Path) -> None:
    """Newer versions of llama-imatrix also write NAME.in_sum."""
    given = entries(source)
    plain = random_gguf.write(tmp_path / "a.gguf", KEYS, given)
    more = random_gguf.write(tmp_path / "b.gguf", KEYS, {"blk.0.attn_q.weight.in_sum": np.full((1, 256), -3, np.float32), **given})
    for matrix in (plain, more):
        pumice.quantize(source, tmp_path / f"q-{matrix.name}", to="q4_0", importance=matrix, **QUIET)
    assert (tmp_path / "q-a.gguf").read_bytes() == (tmp_path / "q-b.gguf").read_bytes()


def test_wrong_arguments(source: Path, tmp_path: Path) -> None:
    given = entries(source)
    unknown = random_gguf.write(
        tmp_path / "u.gguf", KEYS, {**given, "blk.9.x.weight.in_sum2": SQUARES, "blk.9.x.weight.counts": np.ones(1)}
    )
    name = b"blk.0.attn_q.weight"
    old = tmp_path / "imatrix.dat"
    old.write_bytes(b"\1\0\0\0" + len(name).to_bytes(4, "little") + name + b"\2\0\0\0\0\1\0\0" + SQUARES.tobytes())
    garbage = tmp_path / "garbage"
    garbage.write_bytes(b"garbage" * 99)
    folder = random_models.make_folder("llama3", tmp_path)
    for importance, error, message in (
        (unknown, ValueError, "u.gguf: the model has no tensor 'blk.9.x.weight', so it is of another model"),
        (
            old,
            pumice.ModelFormatError,
            r"has the binary form of llama-imatrix before GGUF.*llama-imatrix --in-file .*imatrix\.dat -o .*\.gguf",
        ),
        (garbage, pumice.ModelFormatError, "garbage: is not a model"),
        (folder, pumice.ModelFormatError, "is no GGUF file of llama-imatrix"),
        (source, pumice.ModelFormatError, "general.type' is "),
        (tmp_path / "none.gguf", FileNotFoundError, "none.gguf"),
        (3, TypeError, "importance must be the path of a GGUF file of llama-imatrix, not int"),
        ("a\0b", ValueError, "null"),
    ):
        with pytest.raises(error, match=message):
            pumice.quantize(source, tmp_path / "q.gguf", to="q4_0", importance=importance, **QUIET)  # type: ignore[arg-type]
    matrix = random_gguf.write(tmp_path / "q.gguf", KEYS, given)
    with pytest.raises(ValueError, match="is a file that is read; the output needs another name"):
        pumice.quantize(source, matrix, to="q4_0", importance=matrix, force=True, **QUIET)
    with pytest.raises(ValueError, match="importance: texts are given, too"):
        pumice.quantize(source, tmp_path / "t.gguf", to="q4_0", importance=matrix, texts=np.ones(2048, np.int32), **QUIET)
    assert not list(tmp_path.glob("*.part"))
