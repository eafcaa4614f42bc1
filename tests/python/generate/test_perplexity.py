"""perplexity() and compare() must give what numpy computes from the logits of the windows that llama-perplexity would read."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from random_models import make_folder, tensors, write_safetensors

import pumice
from pumice.__main__ import main

WORDS = [f"w{i}" for i in np.random.default_rng(3).integers(0, 512, 150)]
TEXT = " ".join(WORDS)


@pytest.fixture(name="model")
def _model(tmp_path: Path) -> Any:
    with pumice.load(make_folder("llama3", tmp_path), device="cpu", threads=2, progress=False) as model:
        yield model


@pytest.fixture(name="rounded")
def _rounded(tmp_path: Path) -> Any:
    with pumice.load(make_folder("llama3", tmp_path), device="cpu", threads=2, quantize="q4_0", progress=False) as model:
        yield model


def expected_log_probs(model: pumice.Model, windows: list[list[int]]) -> tuple[np.ndarray, np.ndarray]:
    """Returns the log-probabilities of all tokens of the vocabulary at each scored place, and the ids of the tokens there."""
    rows, targets = [], []
    for window in windows:
        middle = len(window) // 2
        logits = model.logits(window, positions="all")[middle:-1].astype(np.float64)
        largest = logits.max(axis=1, keepdims=True)
        rows.append(logits - largest - np.log(np.exp(logits - largest).sum(axis=1, keepdims=True)))
        targets += window[middle + 1 :]
    return np.concatenate(rows), np.array(targets)


def windows_of(ids: list[int], size: int) -> list[list[int]]:
    return [ids[i : i + size] for i in range(0, len(ids) - size + 1, size)]


def test_perplexity_against_numpy(model: pumice.Model) -> None:
    ids = model.tokenize(TEXT).tolist()
    assert len(ids) == 150
    windows = windows_of(ids, 32)
    assert len(windows) == 4  # the last 22 tokens are left out
    rows, targets = expected_log_probs(model, windows)
    nll = -rows[np.arange(len(targets)), targets]
    found = model.perplexity(TEXT, window=32)
    assert (found.windows, found.window, found.tokens) == (4, 32, 4 * 15)
    assert math.isclose(found.nll, nll.mean(), rel_tol=1e-5)
    assert math.isclose(found.perplexity, math.exp(nll.mean()), rel_tol=1e-4)
    # The formulas of llama-perplexity: the error of the mean is sqrt((mean of squares - square of mean) / (count - 1)).
    error = math.sqrt(((nll**2).mean() - nll.mean() ** 2) / (len(nll) - 1))
    assert math.isclose(found.error, error * math.exp(nll.mean()), rel_tol=1e-3)
    assert str(found).startswith(f"perplexity {found.perplexity:.4f} ± ")


def test_several_texts(model: pumice.Model) -> None:
    """Each text has windows of its own, and a text that is shorter than a window is one."""
    texts = [" ".join(WORDS[:70]), " ".join(WORDS[70:80]), "w1 w2", ""]
    ids = [model.tokenize(text).tolist() for text in texts[:2]]
    rows, targets = expected_log_probs(model, [*windows_of(ids[0], 32), ids[1]])
    with pytest.raises(ValueError, match=r"texts\[3\] has no tokens"):
        model.perplexity(texts, window=32)
    found = model.perplexity(iter(texts[:3]), window=32)
    assert found.windows == 3 and found.tokens == 15 + 15 + 4
    assert math.isclose(found.nll, -rows[np.arange(len(targets)), targets].mean(), rel_tol=1e-5)


def test_comparison_against_numpy(model: pumice.Model, rounded: pumice.Model) -> None:
    windows = windows_of(model.tokenize(TEXT).tolist(), 50)
    p, targets = expected_log_probs(model, windows)
    q, _ = expected_log_probs(rounded, windows)
    kl = (np.exp(p) * (p - q)).sum(axis=1)
    same = (p.argmax(axis=1) == q.argmax(axis=1)).mean()
    seen: list[tuple[int, int]] = []
    found = rounded.compare(model, TEXT, window=50, progress=lambda done, total: seen.append((done, total)))
    assert seen == [(1, 3), (2, 3), (3, 3)]
    assert math.isclose(found.kl, kl.mean(), rel_tol=1e-6) and found.kl > 1e-4
    assert math.isclose(found.kl_error, kl.std() / math.sqrt(len(kl) - 1), rel_tol=1e-6)
    assert math.isclose(found.kl_99, np.quantile(kl, 0.99), rel_tol=1e-6) and math.isclose(found.kl_max, kl.max(), rel_tol=1e-6)
    assert found.same_first == same and 0 < same < 1
    at = np.arange(len(targets))
    assert math.isclose(found.model.nll, -q[at, targets].mean(), rel_tol=1e-6)
    assert math.isclose(found.reference.nll, -p[at, targets].mean(), rel_tol=1e-6)
    assert found.model.tokens == len(targets) == 3 * 24
    assert "99 % quantile" in str(found)


def test_a_model_does_not_differ_from_itself(model: pumice.Model) -> None:
    found = model.compare(model, TEXT)  # the text is one window of 150 tokens, because 512 are more than it has
    assert found.kl == found.kl_max == 0 and found.same_first == 1 and found.model == found.reference
    assert found.model.windows == 1 and found.model.tokens == 74
    assert math.isclose(found.model.nll, model.perplexity(TEXT).nll, rel_tol=1e-5)


def test_windows_begin_with_the_bos_token(gemma3: pumice.Model) -> None:
    text = "Pumice is a stone that floats on water, because it is full of small bubbles. " * 4
    ids = gemma3.tokenize(text, add_special=True).tolist()
    bos = ids[0]
    assert gemma3.info["special_tokens"]["before"] == ("<bos>",)
    windows = [[bos, *window[1:]] for window in windows_of(ids, 24)]
    rows, targets = expected_log_probs(gemma3, windows)
    found = gemma3.perplexity(text, window=24)
    assert math.isclose(found.nll, -rows[np.arange(len(targets)), targets].mean(), rel_tol=1e-4)


def test_wrong_arguments(model: pumice.Model, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"window=3 is out of range: it must be at least 4"):
        model.perplexity(TEXT, window=3)
    with pytest.raises(pumice.ContextLengthError, match="window=100000 does not fit"):
        model.perplexity(TEXT, window=100000)
    with pytest.raises(ValueError, match="texts have 3 tokens, and a perplexity with its error needs at least 5"):
        model.perplexity("w1 w2 w3")
    with pytest.raises(TypeError, match=r"texts\[1\] is a int, not a string"):
        model.perplexity([TEXT, 5])  # type: ignore[list-item]
    with pytest.raises(TypeError, match="reference must be a loaded model"):
        model.compare("path", TEXT)  # type: ignore[arg-type]
    folder = make_folder("llama3", tmp_path / "other")
    words = json.loads((folder / "tokenizer.json").read_text())
    words["model"]["vocab"] = {f"w{511 - i}": i for i in range(512)}
    (folder / "tokenizer.json").write_text(json.dumps(words))
    with (
        pumice.load(folder, device="cpu", progress=False) as other,
        pytest.raises(ValueError, match="reference turns the texts into other token ids"),
    ):
        model.compare(other, TEXT)


def test_an_error_names_its_text(model: pumice.Model, tmp_path: Path) -> None:
    """A matrix of 3e38 makes a row overflow, unless it is zeros. Only the row of w5 is not."""
    folder, weights = make_folder("llama3", tmp_path / "bad"), {name: values.copy() for name, values in tensors("llama3").items()}
    weights["model.embed_tokens.weight"][np.arange(512) != 5] = 0
    weights["model.layers.0.mlp.down_proj.weight"][:] = 3e38
    write_safetensors(folder / "model.safetensors", weights)
    texts, late = ["w1 w2 " * 16, "w3 " * 12, "w5 w1 " * 8], "w1 w2 " * 16 + "w5 " * 16
    with pumice.load(folder, device="cpu", threads=2, progress=False) as bad:
        calls = (
            (lambda: bad.perplexity(texts, window=16), r"^texts\[2\]: the log-probability after token 0 is NaN.*at token 0$"),
            (lambda: bad.perplexity([texts[0], late], window=16), r"^texts\[1\], tokens counted from token 32: the log-prob.*at token 0$"),
            (lambda: bad.perplexity(late, window=16), "^texts, tokens counted from token 32: the log-probability"),
            (lambda: bad.compare(model, texts, window=16), r"^texts\[2\]: the logit after token 0 is NaN"),
            (lambda: model.compare(bad, texts, window=16), r"^texts\[2\] \(of the reference\): the logit after token 0 is NaN"),
        )
        for call, message in calls:
            with pytest.raises(pumice.NumericError, match=message):
                call()
        assert bad.perplexity(texts[:2], window=16).windows == 3


def test_command_line(model: pumice.Model, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, texts = str(model.path), tmp_path / "texts.txt"
    texts.write_text(TEXT)
    assert main(["perplexity", path, "--texts", str(texts), "--window", "32", "--device", "cpu"]) == 0
    assert capsys.readouterr().out == f"{model.perplexity(TEXT, window=32)}\n"
    words = ["perplexity", path, "--texts", str(texts), "--against", path, "--quantize", "q4_0", "--device", "cpu", "--json"]
    assert main(words) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["kl"] > 1e-4 and found["reference"]["nll"] < found["model"]["nll"] * 1.5
    assert found["model"]["tokens"] == 74
    assert main(["perplexity", path, "--texts", str(tmp_path / "none.txt")]) == 1
    assert "none.txt" in capsys.readouterr().err
