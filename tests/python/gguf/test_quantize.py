"""quantize() must write a GGUF file with the formats that are asked for, the same metadata, and weights near the originals."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import random_gguf
import random_models
from quantize_cases import CASES, GOLDEN, short, write
from random_gguf import gguf_parts

import pumice
from pumice import _core
from pumice.__main__ import main
from pumice.gguf import job
from pumice.gguf.mixes import MIXES
from pumice.gguf.packing import PLAIN

QUIET: dict[str, Any] = {"progress": False}


@pytest.fixture(name="source")
def _source(tmp_path: Path) -> Path:
    keys, tensors = gguf_parts("llama_wide")
    keys |= {"test.text": "\u00e9", "test.list": ["a", "b"], "test.number": -5, "test.flag": True, "general.file_type": 0}
    return random_gguf.write(tmp_path / "f32.gguf", keys, tensors)


def formats(path: Path) -> dict[str, str]:
    return {name: kind for name, kind, _, _ in _core.open_file(str(path)).tensors}


@pytest.mark.parametrize("to", [name for name in MIXES if name not in ("f32",)])
def test_weights_are_near_and_metadata_stay(to: str, source: Path, tmp_path: Path) -> None:
    output = tmp_path / "q.gguf"
    plan = pumice.quantize(source, output, to=to, **QUIET)
    before, after = _core.open_file(str(source)), _core.open_file(str(output))
    for key in before.keys():
        assert np.array_equal(after.get(key), MIXES[to].file_type if key == "general.file_type" else before.get(key)), key
    assert after.get("general.quantization_version") == 2
    worst = {
        "F32": 0, "F16": 1e-6, "BF16": 1e-5, "Q8_0": 1e-4, "Q6_K": 6e-4, "Q5_K": 3e-3, "Q5_0": 3e-3, "Q5_1": 3e-3, "Q4_K": 1e-2,
        "Q4_0": 1e-2, "Q4_1": 1e-2, "IQ4_NL": 1e-2, "IQ4_XS": 1e-2, "Q3_K": 5e-2, "Q2_K": 2e-1,
    }  # fmt: skip
    for name, kind, shape, _ in after.tensors:
        a = np.frombuffer(before.read(name), np.float32).astype(np.float64)
        b = _core.ops.unpack(kind, after.read(name)).astype(np.float64)
        assert ((a - b) ** 2).sum() <= worst[kind] * (a**2).sum(), (name, kind)
        assert (kind == "F32") == (len(shape) == 1)
    assert plan.bytes == output.stat().st_size and MIXES[to].base in {kind for _, kind, _, _ in plan.tensors}


@pytest.mark.parametrize("name", CASES)
def test_mixes_are_those_of_llama_quantize(name: str, tmp_path: Path) -> None:
    golden = json.loads(GOLDEN.read_text())[name]
    path = write(CASES[name], tmp_path / "f32.gguf")
    assert set(golden) == {to for to, mix in MIXES.items() if mix.base not in PLAIN}
    for to, expected in golden.items():
        plan = pumice.quantize(path, tmp_path / "q.gguf", to=to, dry_run=True, **QUIET)
        assert short({tensor: kind for tensor, kind, _, _ in plan.tensors}) == expected, to


def test_every_format_that_can_be_packed_is_offered() -> None:
    can = []
    for name in _core.build_info()["formats"]:
        with contextlib.suppress(ValueError):
            _core.ops.pack(name, np.zeros((1, 256), np.float32))
            can.append(name)
    assert can == [*PLAIN, *pumice.build_info()["pack_formats"]] and {mix.base for mix in MIXES.values()} <= set(can)


def test_tensors_that_are_kept(source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = [
        "quantize",
        str(source),
        str(tmp_path / "q.gguf"),
        "--to",
        "q4_0",
        "--keep",
        r"attn_[qk]\.weight=q8_0",
        "--keep",
        "ffn_up=bf16",
    ]
    assert main([*words, "--plan"]) == 0
    assert "blk.*.attn_q.weight" in capsys.readouterr().out and not (tmp_path / "q.gguf").exists()
    assert main(words) == 0
    found = formats(tmp_path / "q.gguf")
    assert found["blk.0.attn_q.weight"] == "Q8_0" and found["blk.1.ffn_up.weight"] == "BF16" and found["blk.0.attn_v.weight"] == "Q4_0"
    assert main([*words[:-1], "ffn_up", "--force"]) == 1
    assert "it must be REGEX=FORMAT" in capsys.readouterr().err


def test_a_quantized_file_gives_near_results(source: Path, tmp_path: Path) -> None:
    folder, ids = random_models.make_folder("llama_wide", tmp_path), np.arange(3, 43)
    pumice.quantize(source, tmp_path / "q.gguf", to="q6_k", **QUIET)
    logits = []
    for path in (source, tmp_path / "q.gguf"):
        with pumice.load(path, device="cpu", tokenizer=folder, progress=False) as model:
            logits.append(model.logits(ids, positions="all").astype(np.float64).ravel())
    a, b = logits
    assert (a * b).sum() / np.sqrt((a * a).sum() * (b * b).sum()) > 0.995


def test_tensors_in_their_format_keep_their_bytes(source: Path, tmp_path: Path) -> None:
    pumice.quantize(source, tmp_path / "a.gguf", to="q4_k_m", **QUIET)
    pumice.quantize(tmp_path / "a.gguf", tmp_path / "b.gguf", to="q4_k_m", **QUIET)
    assert (tmp_path / "a.gguf").read_bytes() == (tmp_path / "b.gguf").read_bytes()


def test_quantized_weights_are_not_quantized_again(source: Path, tmp_path: Path) -> None:
    pumice.quantize(source, tmp_path / "a.gguf", to="q4_0", **QUIET)
    with pytest.raises(ValueError, match=r"is Q4_0 already, and quantizing it to Q4_K would add a second rounding"):
        pumice.quantize(tmp_path / "a.gguf", tmp_path / "b.gguf", to="q4_k_m", **QUIET)
    pumice.quantize(tmp_path / "a.gguf", tmp_path / "b.gguf", to="f16", **QUIET)
    assert main(["quantize", str(tmp_path / "a.gguf"), str(tmp_path / "c.gguf"), "--to", "q4_k_m", "--requantize"]) == 0
    floats = pumice.quantize(tmp_path / "a.gguf", tmp_path / "plain.gguf", to="f32", **QUIET).files[0]
    pumice.quantize(floats, tmp_path / "d.gguf", to="q4_k_m", **QUIET)
    c, d = (_core.open_file(str(tmp_path / f"{name}.gguf")) for name in "cd")
    assert formats(tmp_path / "c.gguf") == formats(tmp_path / "d.gguf")
    assert c.read("blk.0.ffn_up.weight") == d.read("blk.0.ffn_up.weight") and c.format("blk.0.ffn_up.weight") == "Q4_K"


def test_split_files(source: Path, tmp_path: Path) -> None:
    first = pumice.quantize(source, tmp_path / "s.gguf", to="f16", split=500_000, **QUIET).files
    assert len(first) > 2
    whole = pumice.quantize(first[1], tmp_path / "w.gguf", to="f16", **QUIET)
    pumice.quantize(source, tmp_path / "one.gguf", to="f16", **QUIET)
    assert whole.files[0].read_bytes() == (tmp_path / "one.gguf").read_bytes()


def test_no_part_of_the_source_is_replaced(source: Path, tmp_path: Path) -> None:
    parts = pumice.quantize(source, tmp_path / "s.gguf", to="f16", split=500_000, **QUIET).files
    before = [part.read_bytes() for part in parts]
    for output, split in ((parts[0], None), (parts[2], None), (tmp_path / "s.gguf", 500_000)):
        with pytest.raises(ValueError, match="is a file that is read; the output needs another name"):
            pumice.quantize(parts[1], output, to="f16", split=split, force=True, **QUIET)
    assert [part.read_bytes() for part in parts] == before and sorted(tmp_path.glob("s*")) == sorted(parts)


@pytest.mark.parametrize(("number", "name"), [(24, "I8"), (28, "F64"), (31, "Q4_0_4_4")])
def test_types_that_are_no_weights_are_named(number: int, name: str, tmp_path: Path) -> None:
    keys, tensors = gguf_parts("llama_wide")
    tensors["blk.1.ffn_up.weight"] = random_gguf.Packed(number, tensors["blk.1.ffn_up.weight"].shape, bytes(2**20))
    path = random_gguf.write(tmp_path / "f.gguf", keys, tensors)
    for keep in (None, {"ffn_up": "q8_0"}):
        with pytest.raises(pumice.UnsupportedModelError, match=rf"blk\.1\.ffn_up\.weight.* has the format {name}, which"):
            pumice.quantize(path, tmp_path / "q.gguf", to="q4_0", keep=keep, **QUIET)


def test_odd_outputs(source: Path, tmp_path: Path) -> None:
    loop, file, victim = tmp_path / "loop.gguf", tmp_path / "file", tmp_path / "victim"
    loop.symlink_to(loop)
    file.write_text("")
    victim.write_text("kept")
    (tmp_path / "q.gguf.part").symlink_to(victim)
    for output, error, message in (
        (loop, OSError, "the link leads back to itself"),
        (file / "q.gguf", NotADirectoryError, "is no folder"),
        (tmp_path / "none" / "q.gguf", FileNotFoundError, "does not exist"),
        (tmp_path / "q.gguf", OSError, r"q\.gguf\.part"),
    ):
        with pytest.raises(error, match=message):
            pumice.quantize(source, output, to="q4_0", force=True, **QUIET)
    assert victim.read_text() == "kept" and not (tmp_path / "q.gguf").exists()


def test_a_process_that_finishes_meanwhile(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    output, locked = tmp_path / "q.gguf", job._locked

    def late(part: Path, stack: contextlib.ExitStack) -> int:
        monkeypatch.setattr(job, "_locked", locked)
        pumice.quantize(source, output, to="q4_0", **QUIET)
        return locked(part, stack)

    monkeypatch.setattr(job, "_locked", late)
    with pytest.raises(FileExistsError):
        pumice.quantize(source, output, to="f16", **QUIET)
    assert "Q4_0" in formats(output).values()


def test_a_file_that_gets_its_name_before_it_is_locked(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    output, part = tmp_path / "q.gguf", tmp_path / "q.gguf.part"
    part.write_text("whole")
    monkeypatch.setattr(job.fcntl, "flock", lambda handle, operation: part.replace(output))
    with pytest.raises(OSError, match="another process writes this file"):
        pumice.quantize(source, output, to="q4_0", force=True, **QUIET)
    assert output.read_text() == "whole"


def test_wrong_arguments(source: Path, tmp_path: Path) -> None:
    for options, error, message in (
        ({"to": "q9"}, ValueError, "to='q9' is not one of 'f32'"),
        ({"to": "Q4_K_M"}, ValueError, "did you mean 'q4_k_m'"),
        ({"to": "q4_0", "keep": {"(": "q8_0"}}, ValueError, "is no regular expression"),
        ({"to": "q4_0", "keep": {"attn": "q9"}}, ValueError, "keep='q9' is not one of"),
        ({"to": "q4_0", "keep": {"nothing": "q8_0"}}, ValueError, "'nothing' fits the name of no tensor"),
        ({"to": "q4_0", "keep": ["a"]}, TypeError, "keep must be a dict"),
    ):
        with pytest.raises(error, match=message):
            pumice.quantize(source, tmp_path / "q.gguf", **options, **QUIET)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="is a file that is read"):
        pumice.quantize(source, source, to="q4_0", force=True, **QUIET)
    with pytest.raises(ValueError, match="convert"):
        pumice.quantize(random_models.make_folder("llama3", tmp_path), tmp_path / "q.gguf", to="q4_0", **QUIET)
    assert not list(tmp_path.glob("q.gguf*"))
