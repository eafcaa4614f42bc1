"""The perplexity of a model on texts, and how much its predictions differ from those of another model (Model.perplexity(), compare())."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ..common.arguments import check_text, integer
from ..common.display import text_table
from ..common.progress import LateBar, Progress
from ..errors import ContextLengthError, NumericError, TokenizerError
from ..tokens.windows import WINDOW, windows_of

if TYPE_CHECKING:
    from .. import _core
    from ..tokens.tokenizers import Tokenizer

Int32 = npt.NDArray[np.int32]
Float64 = npt.NDArray[np.float64]

_LEAST_WINDOW = 4
_BLOCK = 1 << 21  # number of logits that are converted to double at a time: 16 MB


def _with_error(value: float, error: float) -> str:
    return f"{value:.4f} ± {error:.4f}"


@dataclass(frozen=True)
class Perplexity:
    """The perplexity of a model on texts: e to the power of the mean negative log-probability of their tokens.

    perplexity, error: the perplexity and its standard error. The error treats tokens as independent of each other, as llama-perplexity
        does.
    nll, nll_error: the mean negative natural log-probability of a token and its standard error.
    tokens: number of tokens whose log-probabilities were averaged.
    windows, window: number of windows, and number of tokens of a window."""

    perplexity: float
    error: float
    nll: float
    nll_error: float
    tokens: int
    windows: int
    window: int

    def __str__(self) -> str:
        found = f"perplexity {_with_error(self.perplexity, self.error)}"
        return f"{found} ({self.tokens} tokens in {self.windows} windows of {self.window})"


@dataclass(frozen=True)
class Comparison:
    """How much a model's predictions differ from those of a reference model on the same tokens of the same texts.

    The Kullback-Leibler divergence at a token is sum(p * log(p / q)) over the vocabulary, in nats, where p are the probabilities of the
    reference and q those of the model. 0 means that both are equal.

    model, reference: the perplexity of each.
    kl, kl_error: mean divergence and its standard error.
    kl_median, kl_99, kl_max: the median, the 99 % quantile and the maximum of the divergence.
    same_first, same_first_error: fraction of the tokens for which both models find the same token most likely, and its standard error."""

    model: Perplexity
    reference: Perplexity
    kl: float
    kl_error: float
    kl_median: float
    kl_99: float
    kl_max: float
    same_first: float
    same_first_error: float

    def __str__(self) -> str:
        rows = [
            ("perplexity", _with_error(self.model.perplexity, self.model.error)),
            ("perplexity of the reference", _with_error(self.reference.perplexity, self.reference.error)),
            ("mean KL divergence", _with_error(self.kl, self.kl_error)),
            ("median KL divergence", f"{self.kl_median:.6f}"),
            ("99 % quantile", f"{self.kl_99:.6f}"),
            ("maximum", f"{self.kl_max:.6f}"),
            ("same first token", f"{100 * self.same_first:.2f} ± {100 * self.same_first_error:.2f} %"),
            ("tokens", f"{self.model.tokens} in {self.model.windows} windows of {self.model.window}"),
        ]
        return text_table(["figure", "value"], rows)


@dataclass(frozen=True, eq=False)
class Window:
    """Tokens of a text that the model computes as one sequence.

    ids: int32 (n,).
    place: the window's name in error messages: its text, and its first token if that is not the first token of the text."""

    ids: Int32
    place: str


@contextmanager
def _about(place: str) -> Iterator[None]:
    """A context manager. If a text causes an error in the block, `place` is put before the error's message."""
    try:
        yield
    except (NumericError, TokenizerError, ValueError) as error:
        if not str(error).startswith(place):
            error.args = (f"{place}: {error}",)
        raise


def first_scored(window: Int32) -> int:
    """Returns the index of the first token that is scored in a window. It is in the middle, as in llama-perplexity, so that every scored
    token follows at least half a window."""
    return len(window) // 2 + 1


def read_windows(texts: Iterable[str], tokenizer: Tokenizer, size: int, to_ids: Callable[[str, str], Int32]) -> list[Window]:
    """Returns, for all texts together, the windows in which at least one token is scored. Raises ValueError if fewer than two tokens are
    scored in all windows together."""
    given = [texts] if isinstance(texts, str) else texts
    found: list[Window] = []
    read = 0
    for number, text in enumerate(given):
        name = "texts" if isinstance(texts, str) else f"texts[{number}]"
        with _about(name):
            ids = to_ids(check_text(text, name), name)
        read += len(ids)
        bos = tokenizer.bos_id if len(ids) and ids[0] == tokenizer.bos_id else None
        for index, window in enumerate(windows_of(ids, size, bos)):
            if first_scored(window) < len(window):
                found.append(Window(window, f"{name}, tokens counted from token {index * size}" if index else name))
    if sum(len(window.ids) - first_scored(window.ids) for window in found) < 2:
        raise ValueError(f"texts have {read} tokens, and a perplexity with its error needs at least 5 tokens of one text")
    return found


def checked_window(window: int | None, n_ctx: int) -> int:
    """Returns the number of tokens in a window. If `window` is None, it is 512, or the model's context if that is smaller."""
    if window is None:
        return min(WINDOW, n_ctx)
    size = integer("window", window, _LEAST_WINDOW)
    if size > n_ctx:
        raise ContextLengthError(f"window={size} does not fit into the context of {n_ctx} tokens; load(n_ctx=) sets it")
    return size


def _mean(values: Float64) -> tuple[float, float]:
    """Returns the mean of the values, and the standard error of the mean."""
    count = len(values)
    return float(values.mean()), float(values.std() / math.sqrt(count - 1))


def _perplexity(nll: Float64, windows: list[Window], size: int) -> Perplexity:
    mean, error = _mean(nll)
    value = math.exp(mean) if mean < 700 else math.inf  # exp() overflows a double for numbers above 709
    return Perplexity(value, value * error, mean, error, len(nll), len(windows), size)


def measure(engine: _core.Model, windows: list[Window], size: int, progress: Progress) -> Perplexity:
    """Returns the perplexity of a model on windows of read_windows()."""
    found: list[Float64] = []
    for window in _shown(windows, progress):
        with _about(window.place):
            found.append(-engine.score(window.ids)[first_scored(window.ids) - 1 :].astype(np.float64))
    return _perplexity(np.concatenate(found), windows, size)


def _shown(windows: list[Window], progress: Progress) -> Iterator[Window]:
    bar = LateBar(progress, "perplexity", unit=" windows")
    try:
        for done, window in enumerate(windows):
            yield window
            if bar.update is not None:
                bar.update(done + 1, len(windows))
    finally:
        bar.close()


def log_probs(logits: npt.NDArray[np.float32]) -> Float64:
    """Returns the natural log-probabilities of rows of logits, in double."""
    wide: Float64 = logits.astype(np.float64)
    wide -= wide.max(axis=1, keepdims=True)
    wide -= np.log(np.exp(wide).sum(axis=1, keepdims=True))
    return wide


def compare_windows(model: _core.Model, reference: _core.Model, windows: list[Window], size: int, progress: Progress) -> Comparison:
    """Compares two models that have the same vocabulary, window by window. Memory: the logits of one window from both models."""
    columns: list[Any] = []
    for window in _shown(windows, progress):
        ids, first, rows = window.ids, first_scored(window.ids), []
        for engine, whose in ((model, ""), (reference, " (of the reference)")):
            with _about(window.place + whose):
                rows.append(engine.logits(ids, True)[first - 1 : -1])
        step = max(1, _BLOCK // rows[0].shape[1])
        for at in range(0, len(ids) - first, step):
            columns.append(_differences(rows[0][at : at + step], rows[1][at : at + step], ids[first + at : first + at + step]))
    nll, reference_nll, kl, same = np.concatenate(columns, axis=1)
    mean, error = _mean(kl)
    share, share_error = _mean(same)
    return Comparison(
        _perplexity(nll, windows, size),
        _perplexity(reference_nll, windows, size),
        kl=mean,
        kl_error=error,
        kl_median=float(np.median(kl)),
        kl_99=float(np.quantile(kl, 0.99)),
        kl_max=float(kl.max()),
        same_first=share,
        same_first_error=share_error,
    )


def _differences(logits: npt.NDArray[np.float32], reference: npt.NDArray[np.float32], targets: Int32) -> Float64:
    """Returns for each row: both models' negative log-probabilities of the row's target, the divergence, and whether both models have the
    largest logit at the same index (1 or 0)."""
    q, p = log_probs(logits), log_probs(reference)
    at = np.arange(len(targets))
    kl = np.maximum((np.exp(p) * (p - q)).sum(axis=1), 0.0)  # rounding may make a divergence of 0 negative
    return np.stack([-q[at, targets], -p[at, targets], kl, logits.argmax(axis=1) == reference.argmax(axis=1)])
