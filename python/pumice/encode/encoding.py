"""encode(), predict(), rank() and label_tokens(), which convert texts to arrays with a tokenizer and an engine."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypedDict, TypeVar

import numpy as np
import numpy.typing as npt

from .. import _core
from ..common.arguments import DIRECT_CHARACTERS, choice, flag, integer, listed
from ..common.cancels import current_cancel
from ..errors import ContextLengthError, NumericError, UnsupportedTaskError
from .engine import Engine, Piece
from .progress import Progress
from .rows import (
    ACTIVATIONS,
    PRECISIONS,
    Precision,
    Rows,
    activate,
    check_out,
    check_ranges,
    code_rows,
    empty_rows,
    normalize_rows,
    quantize_rows,
)
from .sentence_config import SentenceConfig
from .sparse import SparseVectors, joined
from .token_labels import TokenLabels
from .windows import TOKENS_PER_CALL, Cuts, Reading, Render, Tokens, WindowTokenizer, items_of

if TYPE_CHECKING:
    from ..tokens.tokenizers import Tokenizer

Int32 = npt.NDArray[np.int32]
Float32 = npt.NDArray[np.float32]
R = TypeVar("R")
Output = Literal["sentence", "tokens", "both", "sparse"]

MOST_TOKENS = 1 << 20  # maximum number of tokens in a micro-batch; the engine checks this limit too
OUTPUTS = ("sentence", "tokens", "both", "sparse")
FEW_TEXTS = 64  # maximum number of texts for EncodeOptions.takes_few(); a small encoder takes about 0.1 s for so many

_LOGITS_PER_CALL = 1 << 24  # maximum number of logits (tokens x labels) in one call of label_tokens(); they take 64 MiB


@dataclass(frozen=True, eq=False)
class Encoded:
    """The result of encode(details=True): the vectors, and how many tokens the texts have.

    vectors: what encode() returns without details.
    tokens: int32 (n,), the number of tokens of each text that the model got, special tokens and prompt included. It does not include tokens
        that were cut off.
    cut: int32 (n,), the number of tokens of each text that were cut off because the text was too long. It is 0 for a whole text.

    For one string, `tokens` and `cut` are of type int."""

    vectors: Any
    tokens: Any
    cut: Any


@dataclass(frozen=True)
class RankHit:
    """One document in the result of rank().

    index: its index in the list of documents that was given, from 0 on.
    score: the cross-encoder's score, as predict() returns it. Larger is better.
    document: its text."""

    index: int
    score: float
    document: str


@dataclass(frozen=True, eq=False)
class Ranked:
    """The result of rank(details=True): the documents, and how many tokens the pairs have.

    hits: what rank() returns without details.
    tokens: int32 (n,), the number of tokens of each pair that the model got, special tokens and the query included, in the order in which
        the documents were given. It does not include tokens that were cut off.
    cut: int32 (n,), the number of tokens of each pair that were cut off, also by max_document_tokens. It is 0 for a whole pair."""

    hits: list[RankHit]
    tokens: Int32
    cut: Int32


@dataclass(frozen=True, eq=False)
class Predicted:
    """The result of predict(details=True): the scores, and how many tokens the pairs or texts have.

    scores: what predict() returns without details.
    tokens, cut: int32 (n,), as in Ranked. For one pair or text, both are of type int."""

    scores: Any
    tokens: Any
    cut: Any


@dataclass(frozen=True)
class Prediction:
    """A classifier's answer for one text or pair.

    label: the name of the label with the largest probability.
    probability: the probability of this label, 0 to 1.
    probabilities: the probabilities of all labels, by name."""

    label: str
    probability: float
    probabilities: dict[str, float]


# ---------------------------------------------------------------- one call
class EncodeKeywords(TypedDict, total=False):
    """The keywords of encode(), encode_query(), encode_document() and their asynchronous forms."""

    prompt: str | None
    prompt_name: str | None
    batch_size: int | None
    token_budget: int | None
    normalize: bool | None
    truncate_dim: int | None
    precision: Precision
    precision_ranges: npt.ArrayLike | None
    output: Output
    max_active_dims: int | None
    truncate: Literal[True, "error"] | int
    show_progress_bar: bool | None
    out: Float32 | None
    details: bool
    parse_special: bool | None


@dataclass(frozen=True, eq=False)
class EncodeOptions:
    """The keywords of one encode() call, with the caller's values, before they are checked."""

    prompt: str | None = None
    prompt_name: str | None = None
    batch_size: int | None = None
    token_budget: int | None = None
    normalize: bool | None = None
    truncate_dim: int | None = None
    precision: Precision = "float32"
    precision_ranges: npt.ArrayLike | None = None
    output: Output = "sentence"
    max_active_dims: int | None = None
    truncate: Literal[True, "error"] | int = True
    show_progress_bar: bool | None = None
    out: Float32 | None = None
    details: bool = False
    parse_special: bool | None = None

    def takes_few(self, inputs: Any) -> bool:
        """Returns whether Encoder.prepare() accepts these inputs. It accepts a short list of short texts if the call wants one vector per
        text and sets no batch size, token budget or progress bar."""
        texts = [inputs] if isinstance(inputs, str) else inputs
        if not isinstance(texts, (list, tuple)) or not 0 < len(texts) <= FEW_TEXTS or not all(isinstance(text, str) for text in texts):
            return False
        plain = (
            self.batch_size is None and self.token_budget is None and (self.show_progress_bar is None or self.show_progress_bar is False)
        )
        return plain and isinstance(self.output, str) and self.output == "sentence" and sum(map(len, texts)) <= DIRECT_CHARACTERS


ENCODE_DEFAULTS: dict[str, Any] = {field.name: field.default for field in fields(EncodeOptions)}


class Prepared(NamedTuple):
    """An encode() call of few texts, which are already tokenized. Once `engine` has computed `piece`, finish() returns the result of the
    call."""

    engine: Engine
    piece: Piece
    finish: Callable[[], Any]


@dataclass(frozen=True, eq=False)
class _Call:
    """An encode() call after its arguments were checked."""

    texts: Iterable[Any]
    expected: int | None  # number of texts, from len() of the input, or None if unknown
    single: bool  # whether the input is one string
    output: Output
    precision: Precision
    ranges: Float32 | None
    codes: bool  # whether the vectors become codes of 8 bits (SentenceConfig.codes)
    normalize: bool | None
    truncate_dim: int | None
    width: int
    out: Any  # the argument out=, not checked
    rows: Float32 | None  # the argument out=, checked and in the shape (texts, width); None if it was not given
    reading: Reading
    skipped: int  # number of tokens of the prompt, which are left out of the vector
    budget: int  # maximum number of tokens per micro-batch; 0 lets the engine choose
    details: bool
    cuts: Cuts
    most: int  # maximum number of values per sparse vector; 0 means all

    def result(self, vectors: Any) -> Any:
        """Returns the result of the call: `vectors`, or an Encoded with them. Unless `details` is true, warns about texts that were cut."""
        if not self.details:
            self.cuts.warn()
            return vectors
        tokens, cut = self.cuts.details()
        return Encoded(vectors, int(tokens[0]), int(cut[0])) if self.single else Encoded(vectors, tokens, cut)

    def packed(self, rows: Float32) -> Any:
        """Returns one vector per text, packed if the call wants another precision than float32."""
        if self.out is not None:
            return self.out
        if self.codes and self.precision == "int8":
            packed: Any = rows.astype(np.int8)
        else:
            packed = rows if self.precision == "float32" else quantize_rows(rows, self.precision, self.ranges)
        return packed[0] if self.single else packed

    def code(self, rows: Float32) -> None:
        """Rounds vectors to codes in place, if the model does so. For "binary" and "ubinary" does nothing, because bits come from unrounded
        vectors."""
        if not self.codes or self.precision in ("binary", "ubinary"):
            return
        code_rows(rows)
        if self.normalize and self.precision == "float32":
            normalize_rows(rows)


_OF_TEXT = re.compile(r"^the result of text (\d+) ")


@contextmanager
def _counted_from(first: int, numbers: npt.NDArray[np.intp] | None = None) -> Iterator[None]:
    """Corrects the text index in the message of a NumericError. The engine counts only the texts that it gets, and the caller may have
    passed more texts. first: the index of the engine's first text among the caller's texts. numbers: if some of the caller's texts are left
    out, the distance of each text of the engine from `first`, in the caller's texts."""
    try:
        yield
    except NumericError as error:

        def index(found: re.Match[str]) -> str:
            number = int(found[1])
            return f"the result of text {first + (number if numbers is None else int(numbers[number]))} "

        raise NumericError(_OF_TEXT.sub(index, str(error))) from None


def parse_special(given: bool | None) -> bool | None:
    """Checks the argument parse_special= of a call."""
    return None if given is None else flag("parse_special", given)


class Encoder:
    """Converts texts to arrays of vectors or scores with one loaded model."""

    def __init__(
        self,
        engine: Engine,
        tokenizer: Tokenizer,
        config: SentenceConfig,
        activation: str | None,
        typed: bool = True,
        render: Render | None = None,
    ) -> None:
        """activation: the activation that the model's files name for predict(), or None.  typed, render: see WindowTokenizer."""
        self._engine, self._config, self._activation = engine, config, activation
        static = engine.info["architecture"] == "static"
        self._windows = WindowTokenizer(tokenizer, config, int(engine.info["n_ctx"]), typed, static, render)
        self.max_tokens = self._windows.max_tokens
        # The width of a pooled vector. It differs from the width of the hidden rows if the model projects the pooled vector (CLIP).
        self.vector_size = int(engine.info["vector_size"])

    # ------------------------------------------------------------ vectors
    def encode(self, inputs: Any, options: EncodeOptions, role: str | None = None) -> Any:
        """Implements Model.encode(). role: "query", "document" or None. If a model has one vector per token, it may tokenize queries
        differently from documents."""
        call, cancel = self._checked(inputs, options, role), current_cancel()
        if call.output == "sparse":
            with Progress(options.show_progress_bar, call.expected, "text") as bar:
                vectors = self._sparse_vectors(call, bar, cancel)
            return call.result(vectors[0] if call.single else vectors)
        rows: Any = None
        hidden: Any = None
        with Progress(options.show_progress_bar, call.expected, "text") as bar:
            if call.output != "tokens":
                rows = self._sentence_rows(call, bar, cancel)
            if call.output != "sentence":
                hidden = self._token_rows(call, options.truncate, bar, cancel)
        if call.output != "tokens":
            rows = call.packed(rows)
        if call.output != "sentence" and call.single:
            hidden = hidden[0]
        return call.result(rows if call.output == "sentence" else hidden if call.output == "tokens" else (rows, hidden))

    def prepare(self, inputs: Any, options: EncodeOptions, role: str | None = None) -> Prepared:
        """Checks the arguments and tokenizes the texts of a call. Requires `options.takes_few(inputs)`."""
        call = self._checked(inputs, options, role)
        texts = listed(call.texts)
        rows = empty_rows(len(texts), call.width) if call.rows is None else call.rows
        tokens = self._windows.window(texts, 0, call.reading, call.cuts)

        def finish() -> Any:
            call.code(rows)
            return call.result(call.packed(rows))

        return Prepared(self._engine, self._piece(call, tokens, 0, rows), finish)

    def _checked(self, inputs: Any, options: EncodeOptions, role: str | None) -> _Call:
        output, precision, out = options.output, options.precision, options.out
        normalize = None if options.normalize is None else flag("normalize", options.normalize)
        details = flag("details", options.details)
        choice("output", output, OUTPUTS)
        choice("precision", precision, PRECISIONS)
        if output == "sparse":
            self._check_sparse(options)
        elif options.max_active_dims is not None:
            raise ValueError(
                f'max_active_dims is for output="sparse"; output="{output}" gives vectors of all columns (truncate_dim cuts them)'
            )
        if output in ("sentence", "both") and not self._config.pools:
            if self._config.sparse.head == "always":
                pool = "" if self._engine.info["architecture"] == "static" else ', or say how to pool: load(pooling="mean")'
                raise UnsupportedTaskError(
                    f'modules.json of this model has {self._config.sparse.module}: it gives sparse vectors. Use output="sparse"{pool}'
                )
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
        width = self._width(options.truncate_dim)
        ranges = check_ranges(options.precision_ranges, precision, width)
        if self._config.codes and precision == "int8" and ranges is not None:
            raise ValueError('precision_ranges= with precision="int8": the vectors of this model are codes of 8 bits already')
        most = self._most(options.max_active_dims) if output == "sparse" else 0
        needs_ranges = precision == "uint8" or (precision == "int8" and not self._config.codes)
        if single and needs_ranges and ranges is None:
            raise ValueError(
                f'precision="{precision}" takes its ranges from the call, and one text has none. Use precision_ranges=, or "binary"'
            )
        texts, expected = ([inputs], 1) if single else items_of(inputs, "inputs")
        prompt = self._windows.prompt_text(options.prompt, options.prompt_name)
        return _Call(
            texts=listed(texts) if output == "both" else texts,  # "both" iterates over the texts twice
            expected=expected,
            single=single,
            output=output,
            precision=precision,
            ranges=ranges,
            codes=self._config.codes,
            normalize=normalize,
            truncate_dim=options.truncate_dim,
            width=width,
            out=out,
            rows=None if out is None else check_out(out, expected, width, single),
            reading=Reading(prompt, role, parse_special(options.parse_special)),
            skipped=self._windows.prompt_tokens(prompt),
            budget=self._budget(options.batch_size, options.token_budget),
            details=details,
            cuts=self._windows.cuts(role, options.truncate, details),
            most=most,
        )

    def _check_sparse(self, options: EncodeOptions) -> None:
        if "sparse" not in self._engine.info["tasks"]:
            raise UnsupportedTaskError(
                f'output="sparse" needs an encoder with a head that predicts masked tokens (SPLADE): a folder of a class ...ForMaskedLM, '
                f"or of sentence-transformers' SparseEncoder. This model is {self._engine.info['architecture']!r} without such a head"
            )
        for name in ("normalize", "truncate_dim", "out"):
            if getattr(options, name) is not None:
                raise ValueError(
                    f'{name}= is for vectors of all columns; output="sparse" has no use for it (max_active_dims= cuts sparse vectors)'
                )

    def _most(self, max_active_dims: int | None) -> int:
        """Returns the maximum number of values in a sparse vector, or 0 for all."""
        given = self._config.sparse.most if max_active_dims is None else integer("max_active_dims", max_active_dims, 1)
        return 0 if given is None else min(given, int(self._engine.info["vocab_size"]))

    def _width(self, truncate_dim: int | None) -> int:
        """Returns the number of columns of a call's vectors."""
        if truncate_dim is None:
            return min(self._config.truncate_dim or self.vector_size, self.vector_size)
        return integer("truncate_dim", truncate_dim, 1, self.vector_size)

    def _budget(self, batch_size: int | None, token_budget: int | None) -> int:
        if batch_size is not None and token_budget is not None:
            raise ValueError("batch_size and token_budget were both given; token_budget (tokens per micro-batch) is the exact one")
        if token_budget is not None:
            return integer("token_budget", token_budget, 1, MOST_TOKENS)
        return 0 if batch_size is None else min(integer("batch_size", batch_size, 1) * self.max_tokens, MOST_TOKENS)

    def _piece(self, call: _Call, tokens: Tokens, first: int, rows: Float32) -> Piece:
        """Returns the engine's input for a window of texts. first: the index of the window's first text among all texts of the call.  rows:
        the array to which the engine writes the vectors."""
        short = np.flatnonzero(np.diff(tokens.offsets) <= call.skipped) if call.skipped else np.empty(0)
        if short.size:
            raise ContextLengthError(
                f"text {first + int(short[0])} has no tokens behind its prompt of {call.skipped} (as many as this model takes, or no "
                f"text), and the prompt stays out of the vector (include_prompt=false). Give a text, or a shorter prompt"
            )
        normalize = self._config.normalize if call.normalize is None else call.normalize and not call.codes
        return Piece(tokens.ids, tokens.offsets, tokens.types, rows, normalize, call.skipped)

    def _compute(self, piece: Piece, budget: int, progress: Callable[[int], None] | None, cancel: _core.Cancel | None) -> None:
        ids, offsets, types, out, normalize, prompt = piece
        self._engine.encode(ids, offsets, types, out, normalize, budget, progress, prompt, cancel)

    def _sentence_rows(self, call: _Call, bar: Progress, cancel: _core.Cancel | None) -> Float32:
        rows = Rows(empty_rows(call.expected or 0, call.width)) if call.rows is None else Rows(call.rows, given=True)

        def compute(tokens: Tokens, target: Float32) -> None:
            with _counted_from(rows.filled):
                self._compute(self._piece(call, tokens, rows.filled, target), call.budget, bar.reached(rows.filled), cancel)
            call.code(target)

        try:
            for tokens in self._windows.texts(call.texts, call.reading, call.cuts, cancel):
                rows.fill(len(tokens), functools.partial(compute, tokens))
                bar.reach(rows.filled)
        except KeyboardInterrupt as interrupt:
            interrupt.partial = rows.partial()  # type: ignore[attr-defined]
            raise
        return rows.done()

    def _sparse_vectors(self, call: _Call, bar: Progress, cancel: _core.Cancel | None) -> SparseVectors:
        columns, logs = int(self._engine.info["vocab_size"]), self._config.sparse.logs
        parts: list[SparseVectors] = []
        done = 0
        try:
            for tokens in self._windows.texts(call.texts, call.reading, call.cuts, cancel):
                with _counted_from(done):
                    indices, values, offsets = self._engine.encode_sparse(
                        tokens.ids, tokens.offsets, tokens.types, call.most, logs, call.budget, bar.reached(done), cancel
                    )
                parts.append(SparseVectors(indices, values, offsets, (len(tokens), columns)))
                done += len(tokens)
                bar.reach(done)
        except KeyboardInterrupt as interrupt:
            interrupt.partial = joined(parts, columns)  # type: ignore[attr-defined]
            raise
        return joined(parts, columns)

    def _token_rows(self, call: _Call, truncate: bool | str | int, bar: Progress, cancel: _core.Cancel | None) -> list[Float32]:
        normalize = self._config.normalize_tokens if call.normalize is None else call.normalize
        # With "both", _sentence_rows() has already counted the cut texts in call.cuts. So they are counted here in another Cuts object,
        # which is dropped.
        both = call.output == "both"
        cuts = self._windows.cuts(call.reading.role, truncate) if both else call.cuts
        result: list[Float32] = []
        try:
            for tokens in self._windows.texts(call.texts, call.reading, cuts, cancel):
                for part in tokens.batches():
                    with _counted_from(len(result)):
                        result += list(self._vectors_of_tokens(part, call.truncate_dim, normalize, cancel))
                    bar.add(0 if both else len(part))
        except KeyboardInterrupt as interrupt:
            interrupt.partial = result  # type: ignore[attr-defined]
            raise
        return result

    def _vectors_of_tokens(self, texts: Tokens, width: int | None, normalize: bool, cancel: _core.Cancel | None) -> Iterator[Float32]:
        hidden = self._engine.encode_tokens(texts.ids, texts.offsets, texts.types, texts.unseen, cancel)[:, :width]
        if normalize:
            hidden = hidden / np.maximum(np.linalg.norm(hidden, axis=1, keepdims=True), 1e-12)
        for a, b in zip(texts.offsets[:-1], texts.offsets[1:], strict=True):
            yield np.ascontiguousarray(hidden[a:b] if texts.kept is None else hidden[a:b][texts.kept[a:b]])

    # ------------------------------------------------------------ scores
    def classify(
        self,
        pairs: Iterable[Any],
        truncate: bool | str | int,
        show_progress_bar: bool | None,
        activation: str | None = None,
        details: bool = False,
        document_tokens: int | None = None,
        prompt: str | None = None,
        prompt_name: str | None = None,
        special: bool | None = None,
    ) -> tuple[Float32, Cuts]:
        """Returns the logits of text pairs or of single texts, float32 (n, labels), and the Cuts, which contain the numbers of tokens if
        `details` is true.

        activation: the one that scores() will get, which is checked here.  document_tokens: the number of tokens to which the second text
        of each pair is cut first.  prompt, prompt_name: as in encode(), for the first text of each pair.  special: parse_special, as in
        encode()."""
        reading = Reading(self._windows.prompt_text(prompt, prompt_name), None, parse_special(special))
        if activation is not None:
            choice("activation", activation, ACTIVATIONS)
        items, expected = items_of(pairs, "pairs")
        cuts, cancel = Cuts(self.max_tokens, truncate, "pair", details), current_cancel()
        scores: list[Float32] = []
        done = 0
        with Progress(show_progress_bar, expected, "pair") as bar:
            for tokens in self._windows.pairs(items, reading, cuts, cancel, document_tokens):
                for part in tokens.batches():
                    with _counted_from(done):
                        scores.append(self._engine.classify(part.ids, part.offsets, part.types, cancel))
                    done += len(part)
                    bar.add(len(part))
        cuts.warn()
        labels = int(self._engine.info["labels"])
        logits: Float32 = np.concatenate(scores) if scores else np.empty((0, labels), np.float32)
        if len(self._config.score_ids) == 2:
            logits = logits[:, :1] - logits[:, 1:]
        return logits, cuts

    def scores(self, logits: Float32, activation: str | None = None) -> Float32:
        """Returns the scores for logits. activation: as in Model.predict()."""
        return activate(logits, activation or self._activation)

    # ------------------------------------------------------------ labels of tokens
    def label_tokens(
        self,
        texts: Any,
        truncate: bool | str | int,
        show_progress_bar: bool | None,
        read: Callable[[str, TokenLabels], R],
        special: bool | None = None,
    ) -> list[R]:
        """Returns read(text, its token labels) for each text. If a KeyboardInterrupt is raised, its attribute `partial` has the results so
        far. special: parse_special, as in encode()."""
        items, expected = items_of(texts, "texts")
        cuts, cancel = Cuts(self.max_tokens, truncate), current_cancel()
        most = max(1, min(TOKENS_PER_CALL, _LOGITS_PER_CALL // max(1, int(self._engine.info["labels"]))))
        result: list[R] = []
        try:
            with Progress(show_progress_bar, expected, "text") as bar:
                for window, tokens in self._windows.placed(items, parse_special(special), cuts, cancel):
                    waiting = iter(window)
                    for part in tokens.batches(most):
                        with _counted_from(len(result)):
                            found = list(self._labels_of_tokens(part, cancel))
                        result.extend(read(text, labels) for labels, text in zip(found, waiting, strict=False))
                        bar.add(len(part))
        except KeyboardInterrupt as interrupt:
            interrupt.partial = result  # type: ignore[attr-defined]
            raise
        cuts.warn()
        return result

    def _labels_of_tokens(self, texts: Tokens, cancel: _core.Cancel | None) -> Iterator[TokenLabels]:
        assert texts.places is not None
        empty = np.diff(texts.offsets) == 0  # texts without tokens are left out, because the engine does not accept them
        filled = np.concatenate([texts.offsets[:1], texts.offsets[1:][~empty]])
        with _counted_from(0, np.flatnonzero(~empty)):
            logits = self._engine.label_tokens(texts.ids, filled, texts.types, cancel)
        probabilities = activate(logits, "softmax")
        own = texts.places[:, 0] >= 0
        for a, b in zip(texts.offsets[:-1], texts.offsets[1:], strict=True):
            kept = own[a:b]
            yield TokenLabels(texts.ids[a:b][kept], texts.places[a:b][kept], probabilities[a:b][kept])
