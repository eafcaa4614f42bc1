"""Converts the label probabilities of a token classifier to labelled spans of the text. The ways to join tokens to spans have the names and
the rules of aggregation_strategy in transformers' pipeline("token-classification"). "viterbi" is an exception: it is the decoder of
openai/privacy-filter (opf/_core/decoding.py in its repository)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from ..tokens.tokenizers import Tokenizer

Float32 = npt.NDArray[np.float32]
Int32 = npt.NDArray[np.int32]
Indices = npt.NDArray[np.intp]
Bool = npt.NDArray[np.bool_]
Aggregation = Literal["none", "simple", "first", "average", "max", "viterbi"]

AGGREGATIONS = ("none", "simple", "first", "average", "max", "viterbi")
MOST_ON_A_PATH = 2048  # maximum number of labels for "viterbi", which takes memory for the square of this number
OUTSIDE = "O"  # the label of tokens outside of all spans
# The steps from a token's tag to the next token's tag that are allowed. Key in viterbi_calibration.json -> (tags before the step, tags
# after it), where each letter is a tag. If a path takes the step, "viterbi" adds the file's number for the key to the path's score.
STEPS = {
    "transition_bias_background_stay": ("O", "O"),
    "transition_bias_background_to_start": ("O", "BS"),
    "transition_bias_inside_to_continue": ("BI", "I"),
    "transition_bias_inside_to_end": ("BI", "E"),
    "transition_bias_end_to_background": ("ES", "O"),
    "transition_bias_end_to_start": ("ES", "BS"),
}


@dataclass(frozen=True)
class LabeledSpan:
    """A part of a text to which a token classifier gives a label.

    label: the label's name, one of info["labels"]. If tokens were joined, it is the part of the name after the first "-".
    score: its probability, 0 to 1. docs/python/labels.md explains how the probabilities of several tokens are joined.
    start, end: the position in the caller's text, in characters.
    text: text[start:end] of the caller's text."""

    label: str
    score: float
    start: int
    end: int
    text: str


@dataclass(frozen=True, eq=False)
class TokenLabels:
    """The probabilities of all labels for the tokens of one text, without the special tokens around it.

    ids: int32 (tokens,).
    offsets: int32 (tokens, 2). Token i is text[offsets[i, 0] : offsets[i, 1]].
    probabilities: float32 (tokens, labels), in the order of info["labels"]. Each row adds up to 1."""

    ids: Int32
    offsets: Int32
    probabilities: Float32


@dataclass(frozen=True, eq=False)
class _Units:
    """Tokens, words or groups of words, in the order of the text."""

    labels: Indices  # for each unit, the index of its label in SpanReader.labels
    scores: Float32
    places: Int32  # (units, 2): start and end of each unit in the text, in characters


class SpanReader:
    """Joins the tokens of texts to spans, for one model."""

    def __init__(self, labels: Sequence[str], tokenizer: Tokenizer, biases: Mapping[str, float]) -> None:
        """biases: key of STEPS -> number to add. Missing keys count as 0."""
        self.labels = tuple(labels)
        self._tokenizer = tokenizer
        model = tokenizer.backend.model
        # whether the vocabulary marks tokens that continue a word, as WordPiece does with "##"
        self._marks_subwords = bool(getattr(model, "continuing_subword_prefix", None))
        self._unknown = tokenizer.special.get("unk")
        self._steps = _steps(self.labels, biases)
        # A stem is a label without B- and I-. Neighbouring tokens with equal stems are joined, unless the label of the second one begins a
        # span. _stems[i] is the index of the first label with the same stem as label i, and _begins[i] is whether label i begins a span.
        stems = [label[2:] if label.startswith(("B-", "I-")) else label for label in self.labels]
        first = {stem: i for i, stem in reversed(list(enumerate(stems)))}
        self._stems = np.array([first[stem] for stem in stems])
        self._begins = np.array([label.startswith("B-") for label in self.labels])
        self._names = tuple(label.split("-", 1)[-1] for label in self.labels)  # _names[i] is the name of a span with label i

    @property
    def default(self) -> Aggregation:
        """The aggregation for aggregation=None: "viterbi" if the labels mark where spans end, and otherwise "simple"."""
        return "simple" if self._steps is None else "viterbi"

    def names(self, aggregation: Aggregation) -> tuple[str, ...]:
        """Returns the labels that spans can have."""
        return self.labels if aggregation == "none" else tuple(dict.fromkeys(self._names))

    def check(self, aggregation: str) -> None:
        """Raises ValueError if the model's labels are not suitable for the aggregation."""
        if aggregation == "viterbi" and self._steps is None:
            shown = ", ".join(self.labels[:5]) + (", ..." if len(self.labels) > 5 else "")
            raise ValueError(
                f'aggregation="viterbi" needs labels that begin with B-, I-, E- or S-, and the label O, {MOST_ON_A_PATH} at most; this '
                f'model has {len(self.labels)}: {shown}. Use "simple", "first", "average" or "max"'
            )

    def read(self, text: str, tokens: TokenLabels, aggregation: Aggregation) -> Iterator[LabeledSpan]:
        """Yields the spans of a text in their order. Except with "viterbi", spans with the label O are included."""
        if len(tokens.ids) == 0:
            return
        if aggregation == "viterbi":
            units = self._path(text, tokens)
        elif aggregation in ("none", "simple"):
            units = _labelled(tokens.probabilities, tokens.offsets)
        else:
            units = self._words(text, tokens, aggregation)
        names = self.labels if aggregation == "none" else self._names
        if aggregation not in ("none", "viterbi"):
            units = self._grouped(units)
        for label, score, (start, end) in zip(units.labels.tolist(), units.scores.tolist(), units.places.tolist(), strict=True):
            yield LabeledSpan(names[label], score, start, end, text[start:end])

    def _words(self, text: str, tokens: TokenLabels, aggregation: Aggregation) -> _Units:
        """Returns the words, each with one label for all its tokens."""
        begins = ~self._continues(text, tokens)
        first = np.flatnonzero(begins)
        if aggregation == "first":
            rows = tokens.probabilities[first]
        elif aggregation == "average":
            rows = _means(tokens.probabilities, first)
        else:  # the row of the word's token that has the largest probability; the first of equal ones
            best, word = tokens.probabilities.max(1), np.cumsum(begins) - 1
            largest = np.flatnonzero(best == np.maximum.reduceat(best, first)[word])
            rows = tokens.probabilities[largest[np.unique(word[largest], return_index=True)[1]]]
        return _labelled(rows, _joined(tokens.offsets, first))

    def _grouped(self, units: _Units) -> _Units:
        """Joins neighbours with the same label. A label that begins with B- begins a new span."""
        stems = self._stems[units.labels]
        begins = self._begins[units.labels]
        begins[1:] |= stems[1:] != stems[:-1]
        begins[0] = True
        first = np.flatnonzero(begins)
        return _Units(units.labels[first], _means(units.scores, first), _joined(units.places, first))

    def _continues(self, text: str, tokens: TokenLabels) -> Bool:
        """Returns for each token whether it continues the word of the previous token.

        The rules are those of transformers' pipeline. If the vocabulary marks tokens that continue a word, a token continues a word if its
        spelling, with the mark, has another length than its part of the text. If the vocabulary has no such marks, a word begins after a
        space or with a space. An unknown token is a word of its own."""
        starts, ends = tokens.offsets.T
        if self._marks_subwords:
            lengths = np.array([len(self._tokenizer.token(i)) for i in tokens.ids.tolist()])
            continues = lengths != ends - starts
        else:
            continues = np.array([start > 0 and " " not in text[start - 1 : start + 1] for start in starts.tolist()], np.bool_)
        if self._unknown is not None:
            continues = continues & (tokens.ids != self._unknown)
        continues[0] = False
        return np.asarray(continues, np.bool_)

    def _path(self, text: str, tokens: TokenLabels) -> _Units:
        """Returns the spans of the most probable sequence of labels in which each span is B I ... I E, or a single S. The score of a span
        is the mean of the probabilities of its labels. Whitespace at both ends of a span is left out."""
        assert self._steps is not None
        path = _viterbi(tokens.probabilities, self._steps)
        scores = tokens.probabilities[np.arange(len(path)), path]
        found: list[tuple[int, Any, int, int]] = []
        first = 0
        for i, label in enumerate(path):
            tag = self.labels[label][:1]
            if tag in "BS":
                first = i
            if tag not in "ES":
                continue
            start, end = int(tokens.offsets[first, 0]), int(tokens.offsets[i, 1])
            part = text[start:end]
            start, end = start + len(part) - len(part.lstrip()), end - len(part) + len(part.rstrip())
            # Tokens that are single bytes may be parts of one character. If the previous span already ends with this character, this span
            # is dropped.
            if start < end and (not found or start >= found[-1][-1]):
                found.append((label, scores[first : i + 1].mean(), start, end))
        labels, means, *places = zip(*found, strict=True) if found else ((), (), (), ())
        return _Units(np.array(labels, np.intp), np.array(means, np.float32), np.array(places, np.int32).T)


def _labelled(probabilities: Float32, places: Int32) -> _Units:
    labels = probabilities.argmax(1)
    return _Units(labels, probabilities[np.arange(len(labels)), labels], places)


def _means(values: Float32, first: Indices) -> Float32:
    """Returns the mean of each run of values or rows. `first` has the index at which each run begins."""
    counts = np.diff(first, append=len(values)).astype(np.float32)
    sums: Float32 = np.add.reduceat(values, first)
    return sums / counts.reshape(-1, *[1] * (values.ndim - 1))


def _joined(places: Int32, first: Indices) -> Int32:
    """Returns the positions (start, end) of runs of units. `first` has the index at which each run begins."""
    last = np.append(first[1:], len(places)) - 1
    return np.stack([places[first, 0], places[last, 1]], axis=1)


@dataclass(frozen=True)
class _Steps:
    """The scores of the steps of a path of labels: what each step adds to the score of the path, or -inf if the step is not allowed."""

    start: Float32  # (labels,)
    end: Float32  # (labels,)
    between: Float32  # (labels after the step, labels before it)


def _steps(labels: Sequence[str], biases: Mapping[str, float]) -> _Steps | None:
    """Returns the scores of steps. Returns None if the labels are not O and labels with the tags B, I, E and S, or are more than
    MOST_ON_A_PATH."""
    tags = [label if label == OUTSIDE else label[:1] if label[1:2] == "-" else "" for label in labels]
    if len(tags) > MOST_ON_A_PATH or not set(tags) <= {"O", "B", "I", "E", "S"} or OUTSIDE not in tags or not {"E", "S"} & set(tags):
        return None
    between = np.full((len(labels), len(labels)), -np.inf, np.float32)
    kinds, names = np.array(tags), np.array([label[2:] for label in labels])
    # fits[i, j]: whether label i may follow label j, as far as their names decide. Inside a span, the name must not change.
    fits = ~np.isin(kinds, ["I", "E"])[:, None] | (names[:, None] == names)
    for key, (before, after) in STEPS.items():
        between[np.isin(kinds, [*after])[:, None] & np.isin(kinds, [*before]) & fits] = biases.get(key, 0.0)

    def only(allowed: str) -> Float32:
        return np.array([0 if tag in allowed else -np.inf for tag in tags], np.float32)

    return _Steps(only("OBS"), only("OES"), between)


def _viterbi(probabilities: Float32, steps: _Steps) -> list[int]:
    """Returns the sequence of labels with the largest sum of log-probabilities and scores of steps (Viterbi 1967)."""
    # A probability that float32 rounds to 0 counts as the smallest float32 number, because log(0) would make the sums of different paths
    # equal.
    rows = np.log(np.maximum(probabilities, np.float32(1e-45)))
    labels = np.arange(rows.shape[1])
    scores = rows[0] + steps.start
    before = np.empty(rows.shape, np.intp)
    for i in range(1, len(rows)):
        paths = scores + steps.between
        before[i] = paths.argmax(1)
        scores = paths[labels, before[i]] + rows[i]
    path = [int((scores + steps.end).argmax())]
    for i in range(len(rows) - 1, 0, -1):
        path.append(int(before[i, path[-1]]))
    return path[::-1]
