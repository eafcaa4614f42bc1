"""quantize(to="4.5bpw") must write a file that is as large as was asked, in formats that suit the errors of its matrices."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import random_gguf
from random_gguf import gguf_parts

import pumice
from pumice import _core
from pumice.__main__ import main
from pumice.gguf.sizes import Matrix, bits_asked, choose, slope

QUIET: dict[str, Any] = {"progress": False}


@pytest.mark.parametrize(
    ("to", "bits"), [("4.5bpw", 4.5), ("3BPW", 3.0), ("bpw", None), ("4.5", None), ("-4bpw", None), ("q4_k_m", None), (4.5, None)]
)
def test_bits_asked(to: Any, bits: float | None) -> None:
    assert bits_asked(to) == bits


@pytest.mark.parametrize("seed", range(20))
def test_the_choice_is_nearly_the_best(seed: int) -> None:
    """Compares with all choices of five small matrices. Errors fall by a random factor from size to size."""
    random = np.random.default_rng(seed)
    matrices = []
    for number in range(5):
        sizes = np.cumsum(random.integers(5, 40, 4))
        found = np.exp(-np.cumsum(random.uniform(0.2, 2, 4)))
        choices = tuple((int(size), float(error), f"f{i}") for i, (size, error) in enumerate(zip(sizes, found, strict=True)))
        matrices.append(Matrix(f"m{number}", float(random.uniform(1, 20)), choices))
    sums = [
        (sum(c[0] for c in every), sum(each.slope * c[1] for each, c in zip(matrices, every, strict=True)))
        for every in itertools.product(*(each.choices for each in matrices))
    ]
    smallest, largest = min(sums)[0], max(sums)[0]
    assert choose(matrices, smallest - 1) is None
    for most in np.linspace(smallest, largest, 9).astype(int):
        formats = choose(matrices, int(most))
        assert formats is not None
        chosen = [next(c for c in each.choices if c[2] == formats[each.name]) for each in matrices]
        assert sum(c[0] for c in chosen) <= most
        best = min(divergence for size, divergence in sums if size <= most)
        assert sum(each.slope * c[1] for each, c in zip(matrices, chosen, strict=True)) <= 1.5 * best


def test_slopes_are_of_kinds() -> None:
    assert slope("blk.3.ffn_down.weight", 10, True) == slope("blk.7.ffn_down_exps.weight", 10, True) == 2
    assert slope("blk.0.attn_q.weight", 10, True) < slope("blk.0.attn_v.weight", 10, True) < slope("blk.0.attn_qkv.weight", 10, True)
    assert slope("token_embd.weight", 10, False) < slope("token_embd.weight", 10, True) == slope("output.weight", 10, False)


def test_tensors_with_formats_of_their_own_count(tmp_path: Path) -> None:
    source = random_gguf.write(tmp_path / "f32.gguf", *gguf_parts("gemma4_e2b_wide"))
    plan = pumice.quantize(source, tmp_path / "q.gguf", to="6bpw", dry_run=True, **QUIET)
    kinds = {name: kind for name, kind, _, _ in plan.tensors}
    assert kinds["per_layer_model_proj.weight"] == kinds["output_norm.weight"] == "F32" != kinds["per_layer_token_embd.weight"]
    assert 0.97 * 6 < plan.bits <= 6


def test_files_are_as_large_as_asked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = random_gguf.write(tmp_path / "f32.gguf", *gguf_parts("llama_wide"))
    for bits in (3, 4.5, 7.25):
        plan = pumice.quantize(source, tmp_path / f"{bits}.gguf", to=f"{bits}bpw", keep={r"blk\.0\.attn_q\.": "q8_0"}, **QUIET)
        assert 0.97 * bits < plan.bits <= bits and f"{plan.bits:.2f} bits per weight" in str(plan)
        assert {name: kind for name, kind, _, _ in plan.tensors}["blk.0.attn_q.weight"] == "Q8_0"
    file = _core.open_file(str(tmp_path / "4.5.gguf"))
    assert {kind for _, kind, shape, _ in file.tensors if len(shape) == 1} == {"F32"} and file.get("general.file_type") > 1
    again = pumice.quantize(source, tmp_path / "4.5.gguf", to="4.5bpw", keep={r"blk\.0\.attn_q\.": "q8_0"}, force=True, **QUIET)
    assert [each[1] for each in again.tensors] == [kind for _, kind, _, _ in file.tensors]
    assert main(["quantize", str(source), str(tmp_path / "no.gguf"), "--to", "2bpw", "--plan"]) == 1
    assert "2 bits per weight are fewer than the tensors can have, which is 2.6" in capsys.readouterr().err
