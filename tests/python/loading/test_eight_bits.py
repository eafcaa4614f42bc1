"""load(quantize="q8_0") of encoders: vectors keep a cosine of 0.999 with those of the file's weights, or the weights stay as they are."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import random_models

import pumice
from pumice.loading import eight_bits

DRAW = random.Random(3)
TEXTS = [" ".join(f"w{DRAW.randrange(1, 512)}" for _ in range(DRAW.choice((1, 2, 4, 8, 16, 40)))) for _ in range(120)]


def vectors(folder: Path, **options: Any) -> tuple[np.ndarray, str]:
    """Returns the vectors of TEXTS, and the summary of the model that made them."""
    with pumice.load(folder, device="cpu", threads=1, pooling="mean", **options) as model:
        found = model.encode(TEXTS, normalize=True, show_progress_bar=False)
        assert isinstance(found, np.ndarray)
        return found.astype(np.float64), str(model.summary())


def worst(folder: Path) -> tuple[float, str]:
    """Returns the worst cosine with float32 of a model with 8-bit weights, and its summary."""
    ours, about = vectors(folder, quantize="q8_0")
    return float((ours * vectors(folder, compute="float32")[0]).sum(1).min()), about


def change(folder: Path, part: str, factor: float) -> None:
    """Multiplies some weights of a "bert" folder: every 64th column of matrices with this part in their name."""
    tensors = random_models.tensors("bert")
    for name, values in tensors.items():
        if part in name and values.ndim == 2:
            values[:, ::64] *= factor
    random_models.write_safetensors(folder / "model.safetensors", tensors)


def test_an_ordinary_encoder_is_packed(tmp_path: Path) -> None:
    cosine, about = worst(random_models.make_folder("bert", tmp_path))
    assert cosine >= 0.999
    assert 'note: quantize="q8_0": 36 texts' in about and "Q8_0" in about
    # Three layers of six matrices; values have no 8-bit codes.
    assert "a CPU multiplies 15 of the 18 matrices in Q8_0 as 8-bit codes and 3 as 13-bit codes" in about


def test_the_summary_says_that_a_causal_encoder_has_no_8_bit_codes(tmp_path: Path) -> None:
    folder = random_models.make_folder("clip_text", tmp_path)
    ours, about = vectors(folder, quantize="q8_0")
    assert "a CPU multiplies 0 of the " in about and np.array_equal(ours, vectors(folder)[0])


# Attention in 8 bits does not survive outliers among the columns of queries and keys, which make it choose one token.
@pytest.mark.parametrize("name", ["outliers", "embeddinggemma", "nomic_bert_moe", "t5"])
def test_an_encoder_that_needs_its_floats_keeps_them(name: str, tmp_path: Path) -> None:
    folder = random_models.make_folder("bert" if name == "outliers" else name, tmp_path)
    if name == "outliers":
        change(folder, "attention.self", 30)
    cosine, about = worst(folder)
    print(f"{name}: {cosine:.6f}")
    assert cosine >= 0.999
    assert 'quantize="q8_0" is left out, and the matrices stay as the file has them' in about
    assert np.array_equal(vectors(folder, quantize="q8_0")[0], vectors(folder)[0])


def test_only_the_last_eight_layers_are_in_bytes(tmp_path: Path) -> None:
    folder = random_models.make_folder("bert", tmp_path)
    tensors = random_models.tensors("bert")
    first = {name: values for name, values in tensors.items() if ".layer.0." in name}
    for layer in range(1, 10):
        tensors |= {name.replace(".layer.0.", f".layer.{layer}."): values for name, values in first.items()}
    random_models.write_safetensors(folder / "model.safetensors", tensors)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"num_hidden_layers": 10}))
    rows = [row for row in pumice.plan(folder, device="cpu", quantize="q8_0").rows if row["name"].startswith("layer")]
    weights = [row["weights"] for row in rows]
    assert len(weights) == 10 and len(set(weights[:2])) == len(set(weights[2:])) == 1
    assert weights[0] > 1.2 * weights[2]


def test_plan_says_what_the_floats_take(tmp_path: Path) -> None:
    folder = random_models.make_folder("bert", tmp_path)
    plan = pumice.plan(folder, device="cpu", quantize="q8_0")
    assert any(note.startswith("weights are at most ") for note in plan.notes)
    assert not any("at most" in note for note in pumice.plan(folder, device="cpu").notes)
    decoder = random_models.make_folder("llama3", tmp_path)
    assert not any("at most" in note for note in pumice.plan(decoder, device="cpu", quantize="q8_0").notes)


class Engine:
    """Returns the same vectors at each call."""

    info = {"vector_size": 2}

    def __init__(self, *rows: tuple[float, float]) -> None:
        self.rows, self.closed = rows, False

    def encode(self, ids: Any, offsets: Any, types: Any, out: Any, *_: Any, **__: Any) -> None:
        out[:] = self.rows

    def close(self) -> None:
        self.closed = True


class TwoTexts:
    ids = offsets = types = None

    def __len__(self) -> int:
        return 2


@pytest.mark.parametrize(
    ("angles", "kept"),
    [((0, 0), True), ((0, 0.0281), True), ((0, 0.0317), False), ((0.0206, 0.0206), False), ((0, 3.0), False)],
    ids=["equal", "mean of 1.97e-4", "worst below 0.9995", "mean of 2.1e-4", "opposite"],
)
def test_limits(angles: tuple[float, float], kept: bool) -> None:
    floats = Engine((1, 0), (1, 0))
    packed = Engine(*((float(np.cos(a)), float(np.sin(a))) for a in angles))
    engine, note = eight_bits.keep_promise(packed, lambda: floats, TwoTexts, None)  # type: ignore[arg-type,return-value]
    assert (engine is packed) == kept
    assert (packed.closed, floats.closed) == (not kept, kept)
    assert ("left out" in note) != kept


@pytest.mark.parametrize(
    "error", [MemoryError("no room"), pumice.OutOfDeviceMemoryError("no room"), pumice.UnsupportedModelError("no room")]
)
def test_without_room_for_the_floats_the_packed_weights_stay(error: Exception) -> None:
    packed = Engine((1, 0), (1, 0))

    def load() -> Any:
        raise error

    engine, note = eight_bits.keep_promise(packed, load, TwoTexts, None)  # type: ignore[arg-type]
    assert engine is packed and not packed.closed
    assert note == 'quantize="q8_0" was not compared with the file\'s weights: no room'


def test_without_room_for_the_texts_the_packed_weights_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_room(*given: object) -> None:
        raise MemoryError("no room")

    monkeypatch.setattr(eight_bits, "probe_texts", no_room)
    _, about = vectors(random_models.make_folder("bert", tmp_path), quantize="q8_0")
    assert "was not compared with the file's weights: no room" in about and "Q8_0" in about
