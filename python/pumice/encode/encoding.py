"""encode(), predict() and rank(): any number of texts through a window of a few thousand, tokenised while the last one computes."""

from __future__ import annotations

import functools
import itertools
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from .. import _core
from ..arguments import DIRECT_CHARACTERS, check_text, choice, did_you_mean, flag, integer, is_masked, length, listed, plain, shown, warn
from ..errors import ContextLengthError, TruncationWarning, UnsupportedModelError, UnsupportedTaskError
from ..interruptible import Task
from .late_interaction import Reader
from .sentence_config import SentenceConfig

if TYPE_CHECKING:
    from ..tokens.tokenizers import Tokenizer

logger = logging.getLogger("pumice")

Float32 = npt.NDArray[np.float32]
Precision = Literal["float32", "int8", "uint8", "binary", "ubinary"]
Pair = tuple[str, str]

# A window bounds memory (ids, strings) and is large enough to sort by length and to keep every thread busy.
WINDOW_TEXTS = 4096
WINDOW_CHARACTERS = 4 << 20
MOST_TOKENS = 1 << 20  # of a micro-batch; the engine's, too
PRECISIONS = ("float32", "int8", "uint8", "binary", "ubinary")
OUTPUTS = ("sentence", "tokens", "both")
ACTIVATIONS = ("none", "sigmoid", "softmax", "tanh")  # of predict()


@dataclass(frozen=True)
class RankHit:
    """One document of rank(): its place in the list given, its score, its text."""

    index: int
    score: float
    document: str


@dataclass(frozen=True)
class Prediction:
    """What a classifier says of one text or pair: its likeliest label, that label's probability, and those of all by name."""

    label: str
    probability: float
    probabilities: dict[str, float]


@dataclass(frozen=True)
class Tokens:
    """A window as the engine takes it: text i is ids[offsets[i]:offsets[i + 1]]."""

    ids: npt.NDArray[np.int32]
    offsets: npt.NDArray[np.int64]
    types: npt.NDArray[np.int32] | None
    unseen: npt.NDArray[np.int32] | None = None  # of each text: its last tokens, to which nobody attends
    kept: npt.NDArray[np.bool_] | None = None  # of each token: whether it has a vector in the result

    def __len__(self) -> int:
        return len(self.offsets) - 1


class Cuts:
    """What truncation did to a call's texts."""

    def __init__(self, limit: int, truncate: bool | str, what: str = "text") -> None:
        if isinstance(truncate, np.bool_):
            truncate = bool(truncate)
        if truncate is not True and not (isinstance(truncate, str) and truncate == "error"):
            raise ValueError(f'truncate={shown(truncate)} is neither True (cut and warn) nor "error"')
        self.limit, self.fail, self.what = limit, truncate == "error", what
        self.cut = self.longest = self.seen = 0

    def see(self, lengths: npt.NDArray[Any], first: int) -> None:
        self.seen += len(lengths)
        if not len(lengths) or lengths.max() <= self.limit:
            return
        long = np.flatnonzero(lengths > self.limit)
        if self.fail:
            i = int(long[0])
            raise ContextLengthError(
                f"{self.what} {first + i} has {int(lengths[i])} tokens and this model takes {self.limit}. "
                f"Split it, or pass truncate=True to cut it (with a warning)"
            )
        self.cut += int(long.size)
        self.longest = max(self.longest, int(lengths.max()))

    def warn(self) -> None:
        if self.cut:
            warn(
                TruncationWarning,
                f"{self.cut} of {self.seen} {self.what}s were cut to the model's {self.limit} tokens; the longest has {self.longest}. "
                f'truncate="error" raises instead',
            )


class Rows:
    """The result array: the caller's, or our own that grows when the number of texts is not known."""

    def __init__(self, width: int, expected: int | None, out: Float32 | None) -> None:
        self._out: Float32 | None = out
        self._array: Float32 = np.asarray(out) if out is not None else self._empty(expected or 0, width)
        self.filled = 0

    @staticmethod
    def _empty(count: int, width: int) -> Float32:
        try:
            return np.empty((count, width), np.float32)
        except (ValueError, MemoryError):
            raise MemoryError(f"there is no room for {count} vectors of {width} numbers, as many as len() of inputs promises") from None

    def next(self, count: int) -> Float32:
        end = self.filled + count
        if end > len(self._array):
            if self._out is not None:
                raise ValueError(f"out has {len(self._array)} rows and there are more texts than that")
            # realloc moves pages instead of copying; no view of ours is alive here.
            self._array.resize((max(end, len(self._array) * 3 // 2), self._array.shape[1]), refcheck=False)
        view: Float32 = self._array[self.filled : end]
        return view

    def done(self) -> Float32:
        if self._out is not None:
            if self.filled < len(self._array):
                raise ValueError(f"out has {len(self._array)} rows and only {self.filled} texts came (they are in its first rows)")
            return self._out
        if self.filled < len(self._array):
            self._array.resize((self.filled, self._array.shape[1]), refcheck=False)
        result: Float32 = self._array
        return result

    def partial(self) -> Float32:
        result: Float32 = self._array[: self.filled].copy()
        return result


def windows(items: Iterable[Any], length: Callable[[Any], int]) -> Iterator[list[Any]]:
    """Up to 4096 items or 4 Mi characters at a time."""
    window: list[Any] = []
    characters = 0
    for item in items:
        window.append(item)
        characters += length(item)
        if len(window) == WINDOW_TEXTS or characters >= WINDOW_CHARACTERS:
            yield window
            window, characters = [], 0
    if window:
        yield window


def items_of(inputs: Any, what: str) -> tuple[Iterable[Any], int | None]:
    """What to iterate, and how many there will be if that is known."""
    if isinstance(inputs, (bytes, bytearray, memoryview, Mapping)) or not isinstance(inputs, Iterable):
        raise TypeError(f"{what} must be a string or an iterable of strings, not {type(inputs).__name__}")
    if isinstance(inputs, np.ndarray) and (inputs.ndim != 1 or inputs.dtype.kind not in "UTO"):
        raise TypeError(f"{what} is an array of {inputs.dtype} with shape {inputs.shape}; it must be one row of strings")
    if hasattr(inputs, "to_pylist"):  # Arrow: its scalars are no strings
        return _arrow_items(inputs), length(inputs, what)
    return inputs, length(inputs, what)


def _arrow_items(array: Any) -> Iterator[Any]:
    """The values of an Arrow array (pyarrow's Array or ChunkedArray, nanoarrow's) as Python's, a window at a time where it can be cut."""
    if not hasattr(array, "slice"):
        yield from array.to_pylist()
        return
    for first in range(0, len(array), WINDOW_TEXTS):
        yield from array.slice(first, WINDOW_TEXTS).to_pylist()


def ahead(jobs: Iterable[tuple[int, Callable[[], Any]]]) -> Iterator[Any]:
    """The results of jobs (weight, work) in order; each runs in the background while the one before is used.

    The caller's iterable is advanced in the caller's thread. Light jobs are run at once."""

    def start(job: tuple[int, Callable[[], Any]]) -> Callable[[], Any]:
        weight, work = job
        return work if weight <= DIRECT_CHARACTERS else Task(work).result

    source = iter(jobs)
    job = next(source, None)
    running = start(job) if job else None
    while running:
        following = next(source, None)  # read while the job runs
        result = running()
        running = start(following) if following else None
        yield result


def progress_bar(show: bool | None, total: int | None, unit: str) -> Any:
    """A tqdm bar when `show` is True, or None and the logger `pumice` is at INFO or below (never for one text by itself)."""
    if not isinstance(show, (bool, np.bool_, type(None))):
        raise TypeError(f"show_progress_bar must be True, False or None, not {shown(show)}")
    if not show and not (show is None and total != 1 and logger.getEffectiveLevel() <= logging.INFO):
        return None
    from tqdm.auto import tqdm

    return tqdm(total=total, unit=f" {unit}", dynamic_ncols=True)


class Encoder:
    """Texts to arrays with one loaded model."""

    def __init__(
        self,
        engine: _core.Model,
        tokenizer: Tokenizer,
        config: SentenceConfig,
        activation: str | None,
        typed: bool = True,
        render: Callable[[str, str], npt.NDArray[np.int32]] | None = None,
    ) -> None:
        self.engine, self.tokenizer, self.config = engine, tokenizer, config
        self.typed = typed  # whether the model tells token types apart: tokenizers of DistilBERT and ModernBERT name some all the same
        self.vector_size = int(engine.info["vector_size"])  # of a pooled row; not hidden_size where the model projects it (CLIP)
        self.static = engine.info["architecture"] == "static"  # takes no special tokens, and texts without any token
        self.unknown = tokenizer.unknown_id if config.drop_unknown else None
        self.render = render  # a causal reranker: the ids of (query, document), by its template
        self._suffix: npt.NDArray[np.int32] | None = None  # of them, behind the document
        context = int(engine.info["n_ctx"])
        self.max_tokens = min(config.max_seq_length or context, context)
        self.late = Reader(config.late, tokenizer, self.max_tokens, context) if config.late is not None else None
        self.activation = activation  # of predict(), as the model's file names it

    # ------------------------------------------------------------ arguments
    def prompt_text(self, prompt: str | None, prompt_name: str | None) -> str:
        if prompt is not None and prompt_name is not None:
            raise ValueError("prompt and prompt_name were both given; one of them says what to put before each text")
        if prompt is None:
            name = prompt_name if prompt_name is not None else self.config.default_prompt
            if name is None:
                return ""
            if not isinstance(name, str):
                raise TypeError(f"prompt_name must be a string, not {type(name).__name__} {shown(name)}")
            name = plain(name)
            if name not in self.config.prompts:
                known = ", ".join(map(repr, self.config.prompts)) or "none: load(prompts={...}) gives it some"
                hint = did_you_mean(name, self.config.prompts)
                raise ValueError(f"prompt_name={shown(name)} is not a prompt of this model ({known}){hint}")
            prompt = self.config.prompts[name]
        return check_text(prompt, "prompt")

    def prompt_tokens(self, prompt: str) -> int:
        """How many of each text's first tokens stay out of its vector: the prompt's, and those before it (include_prompt: false)."""
        if not prompt or self.config.pool_prompt:
            return 0
        text = prompt.lower() if self.config.lower_case else prompt
        return len(self.tokenizer.encode(text, add_special=True)) - len(self.tokenizer.around[1])

    def budget(self, batch_size: int | None, token_budget: int | None) -> int:
        if batch_size is not None and token_budget is not None:
            raise ValueError("batch_size and token_budget were both given; token_budget (tokens per micro-batch) is the exact one")
        if token_budget is not None:
            return integer("token_budget", token_budget, 1, MOST_TOKENS)
        return 0 if batch_size is None else min(integer("batch_size", batch_size, 1) * self.max_tokens, MOST_TOKENS)

    def width(self, truncate_dim: int | None) -> int:
        return self.vector_size if truncate_dim is None else integer("truncate_dim", truncate_dim, 1, self.vector_size)

    @staticmethod
    def check_out(out: Any, shape: tuple[int | None, int]) -> Float32:
        wanted = f"({'n' if shape[0] is None else shape[0]}, {shape[1]})"
        if not isinstance(out, np.ndarray):
            raise TypeError(f"out must be a numpy array, not {type(out).__name__}")
        if is_masked(out):
            raise TypeError("out is a masked array; out=out.data takes its numbers alone")
        if out.dtype != np.float32:
            raise TypeError(f"out has dtype {out.dtype}; it must be float32")
        if out.ndim != 2 or out.shape[1] != shape[1] or (shape[0] is not None and out.shape[0] != shape[0]):
            raise ValueError(f"out has shape {out.shape}; it must be {wanted}")
        if not out.flags.c_contiguous or not out.flags.writeable or not out.flags.aligned or not out.dtype.isnative:
            raise ValueError("out must be a writable, C-contiguous, aligned array in this machine's byte order")
        rows: Float32 = out
        return rows

    # ------------------------------------------------------------ tokens
    def tokenised(self, texts: Iterable[Any], prompt: str, cuts: Cuts, role: str | None = None) -> Iterator[Tokens]:
        def jobs() -> Iterator[tuple[int, Callable[[], Tokens]]]:
            first = 0
            for window in windows(texts, lambda t: len(t) if isinstance(t, str) else 0):
                weight = sum(len(t) + len(prompt) for t in window if isinstance(t, str))
                yield weight, functools.partial(self._tokenise, window, first, prompt, cuts, role)
                first += len(window)

        return ahead(jobs())

    def _tokenise(self, window: list[Any], first: int, prompt: str, cuts: Cuts, role: str | None = None) -> Tokens:
        if self.late is not None:
            texts = [check_text(text, f"text {first + i}") for i, text in enumerate(window)]
            read = self.late.read(texts, prompt, role, self.config.lower_case)
            return replace(self._checked(read.batch, first, cuts), unseen=read.unseen, kept=read.kept)
        texts = [prompt + check_text(text, f"text {first + i}") for i, text in enumerate(window)]
        if self.config.lower_case:
            texts = [text.lower() for text in texts]
        batch = self.tokenizer.encode_batch(texts, add_special=not self.static, truncate_to=self.max_tokens)
        tokens = self._checked(batch, first, cuts)
        return tokens if self.unknown is None else _without(tokens, self.unknown)

    def _tokenise_pairs(self, window: list[Any], first: int, cuts: Cuts) -> Tokens:
        if all(isinstance(text, str) for text in window) and self.render is None:
            return self._tokenise(window, first, "", cuts)
        pairs: list[Pair] = []
        for i, pair in enumerate(window):
            parts = listed(itertools.islice(pair, 3)) if isinstance(pair, Sequence) and not isinstance(pair, str) else []
            if len(parts) != 2:
                raise TypeError(f"pair {first + i} is {shown(pair)}; it must be two strings (query, document), or each of all one string")
            query, document = (check_text(text, f"text {k} of pair {first + i}") for k, text in enumerate(parts))
            pairs.append((query, document))
        if self.config.lower_case:
            pairs = [(a.lower(), b.lower()) for a, b in pairs]
        if self.render is not None:
            return self._rendered(pairs, first, cuts)
        return self._checked(self.tokenizer.encode_pairs(pairs, truncate_to=self.max_tokens), first, cuts)

    def _rendered(self, pairs: list[Pair], first: int, cuts: Cuts) -> Tokens:
        """Pairs by the template of a causal reranker. What is too long loses its end, not what the template writes behind it."""
        assert self.render is not None
        rows = [self.render(query, document) for query, document in pairs]
        cuts.see(np.array([len(row) for row in rows]), first)
        if any(len(row) > self.max_tokens for row in rows):
            tail = self._template_tail()
            keep = max(0, self.max_tokens - len(tail))
            rows = [row if len(row) <= self.max_tokens else np.concatenate([row[:keep], tail])[-self.max_tokens :] for row in rows]
        offsets = np.concatenate([[0], np.cumsum([len(row) for row in rows])]).astype(np.int64)
        return Tokens(np.concatenate(rows).astype(np.int32), offsets, None)

    def _template_tail(self) -> npt.NDArray[np.int32]:
        """The ids with which two renderings of different documents end alike."""
        if self._suffix is None:
            assert self.render is not None
            a, b = (self.render("a", text)[::-1] for text in ("x", "0"))
            same = min(len(a), len(b))
            differ = np.flatnonzero(a[:same] != b[:same])
            self._suffix = a[: int(differ[0]) if differ.size else same][::-1]
        return self._suffix

    def _checked(self, batch: Any, first: int, cuts: Cuts) -> Tokens:
        tokens = Tokens(batch.ids, batch.offsets, batch.types if self.typed else None)
        empty = tokens.offsets[1:] == tokens.offsets[:-1]
        if empty.any() and not self.static:
            raise ValueError(
                f"{cuts.what} {first + int(empty.argmax())} is empty and this model's tokenizer adds no special tokens: nothing to encode"
            )
        cuts.see(np.asarray(batch.lengths_before_cut), first)
        return tokens

    # ------------------------------------------------------------ calls
    def encode(
        self,
        inputs: Any,
        *,
        prompt: str | None,
        prompt_name: str | None,
        batch_size: int | None,
        token_budget: int | None,
        normalize: bool | None,
        truncate_dim: int | None,
        precision: str,
        precision_ranges: Any = None,
        output: str,
        truncate: bool | str,
        show_progress_bar: bool | None,
        out: Float32 | None,
        role: str | None = None,
    ) -> Any:
        """Model.encode(). role: "query" or "document", which a model of token vectors may read in different ways."""
        if normalize is not None:
            normalize = flag("normalize", normalize)
        choice("output", output, OUTPUTS)
        choice("precision", precision, PRECISIONS)
        if output != "tokens" and not self.config.pools:
            raise UnsupportedTaskError(
                'modules.json of this model has no Pooling: it gives one vector for each token. Use output="tokens" (maxsim() compares '
                'them), or say how to pool: load(pooling="mean")'
            )
        if out is not None and (output != "sentence" or precision != "float32"):
            raise ValueError(
                f'out= takes float32 sentence vectors; with output="{output}" or another precision the result is returned only'
            )
        if output != "sentence" and precision != "float32":
            raise ValueError(f'output="{output}" gives float32; precision="{precision}" works with output="sentence"')
        if isinstance(inputs, np.ndarray) and inputs.ndim == 0:
            inputs = inputs.item()
        single = isinstance(inputs, str)
        width = self.width(truncate_dim)
        ranges = check_ranges(precision_ranges, precision, width)
        if single and precision in ("int8", "uint8") and ranges is None:
            raise ValueError(
                f'precision="{precision}" takes its ranges from the call, and one text has none. Use precision_ranges=, or "binary"'
            )
        texts, expected = ([inputs], 1) if single else items_of(inputs, "inputs")
        if output == "both":
            texts = listed(texts)  # they are read twice
        if out is not None:
            rows_out = out[None] if single and isinstance(out, np.ndarray) and out.ndim == 1 else out
            rows = Rows(width, expected, self.check_out(rows_out, (expected, width)))
        else:
            rows = Rows(width, 0 if output == "tokens" else expected, None)
        budget = self.budget(batch_size, token_budget)
        cuts = Cuts(self.max_tokens if self.late is None else self.late.limit(role), truncate)
        before = self.prompt_text(prompt, prompt_name)
        skipped = self.prompt_tokens(before)
        windowed = self.tokenised(texts, before, cuts, role)
        bar = progress_bar(show_progress_bar, expected, "text")
        result: Any
        try:
            if output != "tokens":
                norm = self.config.normalize if normalize is None else bool(normalize)
                result = self._pooled_rows(windowed, rows, norm, budget, bar, skipped)
            if output != "sentence":
                if output == "both":
                    windowed = self.tokenised(texts, before, Cuts(self.max_tokens, truncate))
                norm = self.config.normalize_tokens if normalize is None else bool(normalize)
                hidden = self._token_rows(windowed, truncate_dim, norm, bar if output == "tokens" else None)
        finally:
            if bar is not None:
                bar.close()
        cuts.warn()
        if output == "tokens":
            return hidden[0] if single else hidden
        if precision != "float32":
            result = quantize_rows(result, precision, ranges)
        if single:
            result = out if out is not None else result[0]
        return result if output == "sentence" else (result, hidden[0] if single else hidden)

    def _pooled_rows(self, windowed: Iterator[Tokens], rows: Rows, normalize: bool, budget: int, bar: Any, prompt: int) -> Float32:
        try:
            for tokens in windowed:
                target = rows.next(len(tokens))
                update = None if bar is None else functools.partial(_advance_to, bar, rows.filled)
                if prompt:
                    self._check_prompt(tokens, rows.filled, prompt)
                self.engine.encode(tokens.ids, tokens.offsets, tokens.types, target, normalize, budget, update, prompt)
                del target
                rows.filled += len(tokens)
                if bar is not None:
                    _advance_to(bar, rows.filled, 0)
        except KeyboardInterrupt as interrupt:
            interrupt.partial = rows.partial()  # type: ignore[attr-defined]
            raise
        return rows.done()

    @staticmethod
    def _check_prompt(tokens: Tokens, first: int, prompt: int) -> None:
        short = np.flatnonzero(np.diff(tokens.offsets) <= prompt)
        if short.size:
            raise ContextLengthError(
                f"text {first + int(short[0])} has no tokens behind its prompt of {prompt} (as many as this model takes, or no text), and "
                f"the prompt stays out of the vector (include_prompt=false). Give a text, or a shorter prompt"
            )

    def _token_rows(self, windowed: Iterator[Tokens], width: int | None, normalize: bool, bar: Any) -> list[Float32]:
        result: list[Float32] = []
        try:
            for tokens in windowed:
                for part in _token_batches(tokens):
                    hidden = self.engine.encode_tokens(part.ids, part.offsets, part.types, part.unseen)[:, :width]
                    if normalize:
                        hidden = hidden / np.maximum(np.linalg.norm(hidden, axis=1, keepdims=True), 1e-12)
                    kept = part.kept
                    for a, b in itertools.pairwise(part.offsets):
                        result.append(np.ascontiguousarray(hidden[a:b] if kept is None else hidden[a:b][kept[a:b]]))
                    if bar is not None:
                        bar.update(len(part))
        except KeyboardInterrupt as interrupt:
            interrupt.partial = result  # type: ignore[attr-defined]
            raise
        return result

    def classify(
        self, pairs: Iterable[Any], truncate: bool | str, show_progress_bar: bool | None, activation: str | None = None
    ) -> Float32:
        """(n, labels) float32 scores of text pairs, or of texts."""
        if activation is not None:
            choice("activation", activation, ACTIVATIONS)
        items, expected = items_of(pairs, "pairs")
        cuts = Cuts(self.max_tokens, truncate, "pair")

        def jobs() -> Iterator[tuple[int, Callable[[], Tokens]]]:
            first = 0
            for window in windows(items, _pair_length):
                yield sum(map(_pair_length, window)), functools.partial(self._tokenise_pairs, window, first, cuts)
                first += len(window)

        bar = progress_bar(show_progress_bar, expected, "pair")
        scores: list[Float32] = []
        try:
            for tokens in ahead(jobs()):
                for part in _token_batches(tokens):
                    scores.append(self.engine.classify(part.ids, part.offsets, part.types))
                    if bar is not None:
                        bar.update(len(part))
        finally:
            if bar is not None:
                bar.close()
        cuts.warn()
        labels = int(self.engine.info["labels"])
        logits: Float32 = np.concatenate(scores) if scores else np.empty((0, labels), np.float32)
        if len(self.config.score_ids) == 2:
            logits = logits[:, :1] - logits[:, 1:]
        return activate(logits, activation or self.activation)


def _without(tokens: Tokens, unwanted: int) -> Tokens:
    kept = tokens.ids != unwanted
    before = np.concatenate([[0], np.cumsum(kept)])
    return Tokens(tokens.ids[kept], before[tokens.offsets].astype(np.int64), None)


def _advance_to(bar: Any, before: int, done: int) -> None:
    bar.update(before + done - bar.n)


def _pair_length(pair: Any) -> int:
    if isinstance(pair, str):
        return len(pair)
    return sum(len(text) for text in pair if isinstance(text, str)) if isinstance(pair, (tuple, list)) else 0


TOKENS_PER_CALL = 1 << 16  # hidden rows of one call: 96 MiB at 384 columns


def _token_batches(tokens: Tokens) -> Iterator[Tokens]:
    """Runs of texts with at most 65,536 tokens together (one longer text alone)."""
    offsets = tokens.offsets
    first = 0
    while first < len(tokens):
        last = int(np.searchsorted(offsets, offsets[first] + TOKENS_PER_CALL, side="right")) - 1
        last = max(last, first + 1)
        a, b = int(offsets[first]), int(offsets[last])
        types, unseen, kept = tokens.types, tokens.unseen, tokens.kept
        yield Tokens(
            tokens.ids[a:b],
            offsets[first : last + 1] - a,
            None if types is None else types[a:b],
            None if unseen is None else unseen[first:last],
            None if kept is None else kept[a:b],
        )
        first = last


def activate(logits: Float32, name: str | None) -> Float32:
    """The activation that a cross-encoder's config names; by default a sigmoid for one label and nothing for more (CrossEncoder's rule)."""
    kind = ("Sigmoid" if logits.shape[1] == 1 else "Identity") if name is None else name.rsplit(".", 1)[-1]
    kind = {"none": "Identity", "sigmoid": "Sigmoid", "softmax": "Softmax", "tanh": "Tanh"}.get(kind, kind)
    if kind == "Identity":
        return logits
    if kind == "Tanh":
        return np.tanh(logits)
    if kind == "Sigmoid":
        with np.errstate(over="ignore"):  # exp(-x) of a very negative logit is infinity, and 1 / infinity is the 0 that is meant
            return np.asarray(1 / (1 + np.exp(-logits)), np.float32)
    if kind == "Softmax":
        shifted = np.exp(logits - logits.max(axis=1, keepdims=True))
        return np.asarray(shifted / shifted.sum(axis=1, keepdims=True), np.float32)
    raise UnsupportedModelError(f"The model's config names the activation {name!r}; this version knows Identity, Sigmoid, Softmax and Tanh")


def check_ranges(given: Any, precision: str, width: int) -> Float32 | None:
    """precision_ranges: (2, width), the lowest and the highest value of each column."""
    if given is None:
        return None
    if precision not in ("int8", "uint8"):
        raise ValueError(f'precision_ranges= are the ranges of "int8" and "uint8"; precision="{precision}" has none')
    ranges = _numbers(given, "precision_ranges")
    if ranges.shape != (2, width):
        raise ValueError(f"precision_ranges has shape {ranges.shape}; it must be (2, {width}): the lowest and the highest of each column")
    wrong = np.flatnonzero(ranges[0] > ranges[1])
    if wrong.size:
        raise ValueError(f"precision_ranges: column {int(wrong[0])} has a lowest value above its highest one")
    return ranges


def quantize_rows(rows: Float32, precision: str, ranges: Float32 | None = None) -> npt.NDArray[Any]:
    """float32 rows as sentence-transformers packs them: int8 and uint8 in 255 steps of each column's range, over this call or as given
    (what lies outside becomes the first or the last step); binary and ubinary as the signs, eight to a byte."""
    if precision in ("binary", "ubinary"):
        bits = np.packbits(rows > 0, axis=-1)
        return bits if precision == "ubinary" else (bits.astype(np.int16) - 128).astype(np.int8)  # the int8 range of the same bytes
    if len(rows) == 0:
        return rows.astype(precision)
    if len(rows) < 2 and ranges is None:
        raise ValueError(
            f'precision="{precision}" takes its ranges from the call, and one text has none. Use precision_ranges=, or "binary"'
        )
    low, high = (rows.min(axis=0), rows.max(axis=0)) if ranges is None else ranges
    step = (high - low) / np.float32(255)
    step[step == 0] = 1
    steps = np.clip(np.floor((rows - low) / step), 0, 255)
    packed: npt.NDArray[Any] = steps.astype(np.uint8) if precision == "uint8" else (steps - 128).astype(np.int8)
    return packed


def similarity(a: Any, b: Any, kind: str = "cosine") -> Float32:
    """(n, m) float32: every row of `a` against every row of `b`; larger is nearer (distances come negated)."""
    left, right = _numbers(a, "a"), _numbers(b, "b")
    if left.shape[1] != right.shape[1]:
        raise ValueError(f"a has shape {left.shape} and b {right.shape}; both must be rows of the same width")
    if kind == "cosine":
        left, right = _unit_rows(left), _unit_rows(right)
        return np.asarray(left @ right.T, np.float32)
    with np.errstate(over="ignore", under="ignore"):  # what is beyond float32 is infinite, or 0
        if kind == "dot":
            extreme = any(x.size and np.abs(x).max() > 1e15 for x in (left, right))  # products may pass 3e38 and come back
            return np.asarray(left.astype(np.float64) @ right.T.astype(np.float64) if extreme else left @ right.T, np.float32)
        result = np.empty((len(left), len(right)), np.float32)
        wide = right.astype(np.float64)  # squares of float32 numbers
        for row, values in enumerate(left):  # row by row: differences, no cancellation, no n x m x d array
            result[row] = -np.linalg.norm(wide - values, ord=2 if kind == "euclidean" else 1, axis=1)
        return result


def _numbers(given: Any, name: str) -> Float32:
    """Rows of finite float32 numbers."""
    if is_masked(given):
        raise TypeError(f"{name} is a masked array, and masked numbers have no distance; {name}.filled(0) gives them a value")
    try:
        array = np.asarray(given)
    except ValueError as error:
        raise ValueError(f"{name} is no array of numbers: {error}") from None
    if array.dtype in (np.uint8, np.int8):
        raise TypeError(
            f"{name} holds {array.dtype}: packed signs and quantized columns are no vectors to measure. Unpack signs with "
            f"2.0 * np.unpackbits({name}.view(np.uint8) ^ (0x80 if {name}.dtype == np.int8 else 0), axis=-1) - 1"
        )
    if array.dtype.kind not in "fiu":
        raise TypeError(f"{name} must be rows of numbers, not {shown(given)} ({array.dtype})")
    rows = np.atleast_2d(array)
    if rows.ndim != 2:
        raise ValueError(f"{name} has shape {rows.shape}; it must be rows of numbers")
    with np.errstate(over="ignore", under="ignore"):
        values: Float32 = rows.astype(np.float32)
    wrong = np.argwhere(~np.isfinite(values))
    if wrong.size:
        i, k = wrong[0].tolist()
        raise ValueError(f"{name}: number {k} of row {i} is {rows[i, k]}; finite float32 numbers have a distance")
    return values


def _unit_rows(rows: Float32) -> Float32:
    """Of length 1; rows of zeros stay so. Divided by their largest number first: squares of 1e19 or 1e-30 are none in float32."""
    largest = np.abs(rows).max(axis=1, keepdims=True, initial=0)
    scaled = rows.astype(np.float64) / np.where(largest > 0, largest, 1)
    return np.asarray(scaled / np.maximum(np.linalg.norm(scaled, axis=1, keepdims=True), 1e-300), np.float32)
