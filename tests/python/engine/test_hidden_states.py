"""hidden_states() must return the rows of a text after any layer. They are checked against the weights and the logits. attentions() must
work for every layer."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import random_models

import pumice

IDS = [int(i) for i in np.random.RandomState(3).randint(3, 500, 40)]


@pytest.fixture(scope="module", name="llama")
def _llama(tmp_path_factory: pytest.TempPathFactory):
    with pumice.load(random_models.make_folder("llama3", tmp_path_factory.mktemp("models")), device="cpu", compute="float32") as model:
        yield model, random_models.tensors("llama3")


def test_the_first_rows_are_embeddings_and_the_last_give_the_logits(llama) -> None:
    model, weights = llama
    rows = model.hidden_states(IDS)
    assert rows.shape == (model.info["layers"] + 1, len(IDS), model.info["hidden_size"])
    assert rows.dtype == np.float32
    assert np.array_equal(rows[0], weights["model.embed_tokens.weight"][IDS])
    logits = rows[-1] @ weights["lm_head.weight"].T  # the last rows come after the final norm
    assert np.abs(logits - model.logits(IDS, positions="all")).max() <= 1e-4
    assert all(np.abs(a - b).max() > 1e-2 for a, b in zip(rows[:-1], rows[1:], strict=True))


def test_any_layers_in_any_order(llama) -> None:
    model, _ = llama
    rows = model.hidden_states(IDS)
    assert np.array_equal(model.hidden_states(IDS, layers=2), rows[2])
    assert np.array_equal(model.hidden_states(IDS, layers=-1), rows[-1])
    assert np.array_equal(model.hidden_states(IDS, layers=[3, 0, -2]), rows[[3, 0, -2]])
    assert model.hidden_states(IDS, layers=[]).shape == (0, len(IDS), model.info["hidden_size"])
    shorter = model.hidden_states(IDS[:7])  # in a causal model, later tokens do not change earlier rows
    assert np.array_equal(shorter, rows[:, :7])


@pytest.mark.parametrize(
    ("ids", "layers", "kind", "match"),
    [
        (IDS, 4, ValueError, "layers=4 is out of range"),
        (IDS, [-5], ValueError, "layers=-5 is out of range"),
        (IDS, True, TypeError, "layers must be an integer"),
        ([1, 512], None, ValueError, "ids of this model are 0 to 511"),
        ([], None, ValueError, "no ids"),
        ([5] * 513, None, pumice.ContextLengthError, "513 tokens; this model takes 512"),
    ],
)
def test_wrong_arguments(llama, ids, layers, kind, match) -> None:
    with pytest.raises(kind, match=match):
        llama[0].hidden_states(ids, layers=layers)


def test_an_encoder_s_last_rows_are_its_token_vectors(tmp_path: Path) -> None:
    folder, golden = random_models.make_folder("bert", tmp_path), random_models.golden("bert")
    first, end = int(golden["offsets"][0]), int(golden["offsets"][1])
    with pumice.load(folder, device="cpu", compute="float32") as model:
        rows = model.hidden_states(golden["ids"][first:end])
    assert rows.shape[1] == end - first
    assert np.isfinite(rows).all()
    if "types" not in golden or not golden["types"][first:end].any():
        assert np.abs(rows[-1][:, :: int(golden["stride"])] - golden["hidden"][first:end]).max() <= 2e-4


def test_attentions_of_layers_of_several_widths_that_share_keys(tmp_path: Path) -> None:
    """attentions() must work for Gemma 4, whose last layers attend over the keys of an earlier layer, and whose heads do not have the same
    width in all layers."""
    with pumice.load(random_models.make_folder("gemma4_e2b", tmp_path), device="cpu", compute="float32") as model:
        for layer in range(1, model.info["layers"] + 1):
            found = model.attentions(IDS[:7], layer=layer)
            assert found.shape[1:] == (7, 7)
            assert np.abs(found.sum(-1) - 1).max() < 1e-6, layer
            assert not np.triu(found, 1).any(), layer
            assert np.abs(found[:, -1] - 1 / 7).max() > 1e-3, layer  # attention is not uniform
