"""Tokenizes texts in windows of a few thousand texts. While the engine computes one window, the next window is tokenized."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from .. import _core
from ..common.arguments import DIRECT_CHARACTERS, check_text, did_you_mean, integer, length, listed, plain, shown, warn
from ..common.interruptible import POLL_SECONDS, Task
from ..errors import ContextLengthError, TruncationWarning
from .late_interaction import Reader
from .sentence_config import SentenceConfig

if TYPE_CHECKING:
    from ..tokens.tokenizers import TokenBatch, Tokenizer

Int32 = npt.NDArray[np.int32]
Pair = tuple[str, str]
# (texts, prompt, parse_special) -> the ids of one text, or of a pair of query and document, as a chat template writes them
Render = Callable[[Sequence[str], str, bool], Int32]

# Maximum size of a window, which is a group of texts that are tokenized together and sorted by length. A larger window would take more
# memory, and in a smaller one the lengths of neighbouring texts would differ more and some threads would have no work.
WINDOW_TEXTS = 4096
WINDOW_CHARACTERS = 4 << 20
MOST_TAILS = 64  # maximum number of prompts for which the end of the template is remembered
TOKENS_PER_CALL = 1 << 16  # maximum number of tokens in one call of the engine; so many rows of 384 columns take 96 MiB


@dataclass(frozen=True)
class Tokens:
    """A window of texts for the engine: text i is ids[offsets[i]:offsets[i + 1]]."""

    ids: Int32
    offsets: npt.NDArray[np.int64]
    types: Int32 | None
    unseen: Int32 | None = None  # for each text, the number of tokens at its end to which no token attends
    kept: npt.NDArray[np.bool_] | None = None  # for each token, whether it has a vector in the result
    places: Int32 | None = None  # start and end of each token in its text, as in TokenBatch
    cut: Int32 | None = None  # for each text, the number of tokens that were cut off; None if no text was cut

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def batches(self, most: int = TOKENS_PER_CALL) -> Iterator[Tokens]:
        """Yields groups of successive texts of this window, with at most `most` tokens per group. A text with more tokens is a group of its
        own."""
        offsets, first = self.offsets, 0
        while first < len(self):
            last = int(np.searchsorted(offsets, offsets[first] + most, side="right")) - 1
            last = max(last, first + 1)
            a, b = int(offsets[first]), int(offsets[last])
            yield Tokens(
                self.ids[a:b],
                offsets[first : last + 1] - a,
                None if self.types is None else self.types[a:b],
                None if self.unseen is None else self.unseen[first:last],
                None if self.kept is None else self.kept[a:b],
                None if self.places is None else self.places[a:b],
            )
            first = last

    def without(self, unwanted: int) -> Tokens:
        """Returns these texts without the tokens whose id is `unwanted`."""
        kept = self.ids != unwanted
        before = np.concatenate([[0], np.cumsum(kept)])
        return Tokens(self.ids[kept], before[self.offsets].astype(np.int64), None, cut=self.cut)


@dataclass(frozen=True)
class Reading:
    """How the texts of a call become tokens.

    prompt: a text before each text.
    role: "query", "document" or None. If a model has one vector per token, it may tokenize queries differently from documents.
    parse_special: whether control tokens that the texts spell are control tokens. None means what the tokenizer's files say, or false if a
        chat template writes the texts."""

    prompt: str = ""
    role: str | None = None
    parse_special: bool | None = None


class Cuts:
    """Counts the texts of a call that are too long. They are cut, or with truncate="error" raise an error. If `details` is true, also
    stores the number of tokens of each text. limit: the maximum number of tokens of a text."""

    def __init__(self, limit: int, truncate: bool | str | int, what: str = "text", details: bool = False) -> None:
        if isinstance(truncate, np.bool_):
            truncate = bool(truncate)
        self.fail, self.what, self._wanted = isinstance(truncate, str) and truncate == "error", what, False
        if truncate is not True and not self.fail:
            if isinstance(truncate, bool) or not isinstance(truncate, (int, np.integer)):
                raise ValueError(f'truncate={shown(truncate)} is none of True (cut and warn), "error" and a number of tokens')
            limit, self._wanted = integer("truncate", truncate, 1, limit), True
        self.limit = limit
        self.cut = self.longest = self.seen = 0
        # For each window, the number of tokens of each text, and how many tokens of each text were cut. None if no details are wanted.
        self._details: list[tuple[Int32, Int32]] | None = [] if details else None

    def see(self, lengths: npt.NDArray[Any], first: int) -> bool:
        """Counts these texts, and those of them that are too long. Returns whether any text is too long. lengths: the number of tokens of
        each text before the text is cut.  first: the index of the first of these texts in the call. With truncate="error", raises
        ContextLengthError if a text is too long."""
        self.seen += len(lengths)
        if not len(lengths) or lengths.max() <= self.limit:
            return False
        long = np.flatnonzero(lengths > self.limit)
        if self.fail:
            i = int(long[0])
            raise ContextLengthError(
                f"{self.what} {first + i} has {int(lengths[i])} tokens and this model takes {self.limit}. "
                f"Split it, or pass truncate=True to cut it (with a warning)"
            )
        self.cut += int(long.size)
        self.longest = max(self.longest, int(lengths.max()))
        return True

    def keep(self, tokens: Tokens) -> Tokens:
        """Stores the numbers of tokens of a window if the call has details=True. Returns the window."""
        if self._details is not None:
            counts = np.diff(tokens.offsets).astype(np.int32)
            self._details.append((counts, np.zeros_like(counts) if tokens.cut is None else tokens.cut))
        return tokens

    def details(self) -> tuple[Int32, Int32]:
        """Returns for each text its number of tokens, and the number of tokens that were cut off. `details` must be true."""
        none = np.empty(0, np.int32)
        tokens, cut = zip((none, none), *(self._details or ()), strict=True)
        return np.concatenate(tokens), np.concatenate(cut)

    def warn(self) -> None:
        """Issues one TruncationWarning if texts were cut. With details=True it does not, because the details tell it for each text, and
        neither if the caller wants texts of so many tokens."""
        if self.cut and self._details is None and not self._wanted:
            warn(
                TruncationWarning,
                f"{self.cut} of {self.seen} {self.what}s were cut to the model's {self.limit} tokens; the longest has {self.longest}. "
                f'truncate="error" raises instead',
            )


def windows(items: Iterable[Any], characters: Callable[[Any], int]) -> Iterator[list[Any]]:
    """Yields the items in windows. A window ends after 4096 items, or after the item with which it reaches 4 Mi characters."""
    window: list[Any] = []
    size = 0
    for item in items:
        window.append(item)
        size += characters(item)
        if len(window) == WINDOW_TEXTS or size >= WINDOW_CHARACTERS:
            yield window
            window, size = [], 0
    if window:
        yield window


def items_of(inputs: Any, what: str) -> tuple[Iterable[Any], int | None]:
    """Returns an iterable of the items in `inputs`, and the number of items (None if unknown). Raises TypeError or ValueError. The message
    names the inputs `what`."""
    if hasattr(inputs, "columns"):  # a table of pandas, polars or Arrow, for which iteration would yield the names of the columns
        names = [str(name) for name in itertools.islice(getattr(inputs, "column_names", inputs.columns), 20)]
        raise TypeError(f"{what} is a {type(inputs).__name__} with the columns {', '.join(names)}: pass the column that has the texts")
    if isinstance(inputs, (bytes, bytearray, memoryview, Mapping)) or not isinstance(inputs, Iterable):
        raise TypeError(f"{what} must be a string or an iterable of strings, not {type(inputs).__name__}")
    if isinstance(inputs, np.ndarray) and (inputs.ndim != 1 or inputs.dtype.kind not in "UTO"):
        raise TypeError(f"{what} is an array of {inputs.dtype} with shape {inputs.shape}; it must be one row of strings")
    if hasattr(inputs, "to_pylist"):  # iterating over an Arrow array yields Arrow scalars, which are not strings
        return _arrow_items(inputs, what), length(inputs, what)
    return inputs, length(inputs, what)


def _arrow_items(array: Any, what: str) -> Iterator[Any]:
    """Yields the values of an Arrow array (pyarrow or nanoarrow) as Python objects. If the array can be sliced, it is converted window by
    window. Otherwise it is converted as a whole."""
    if not hasattr(array, "slice"):
        yield from arrow_values(array, what)
        return
    for first in range(0, len(array), WINDOW_TEXTS):
        yield from arrow_values(array.slice(first, WINDOW_TEXTS), what, first)


def arrow_values(array: Any, what: str, first: int = 0) -> list[Any]:
    """Returns the values of an Arrow array as Python objects. If a string is not UTF-8, which Arrow does not check, raises ValueError with
    its row. what: the name of the array in the message. first: the row of the array's first value."""
    try:
        values: list[Any] = array.to_pylist()
        return values
    except UnicodeDecodeError as error:
        if len(array) > 1 and hasattr(array, "slice"):
            for row in range(len(array)):
                arrow_values(array.slice(row, 1), what, first + row)
        where = f" in row {first}" if len(array) == 1 else ""
        raise ValueError(
            f"{what} has text that is not UTF-8{where}: byte 0x{error.object[error.start]:02x} at place {error.start} of the text"
        ) from None


def ahead(jobs: Iterable[tuple[int, Callable[[], Any]]], cancel: _core.Cancel | None = None) -> Iterator[Any]:
    """Runs jobs and yields their results in order. A job is (number of characters, function). Each job runs in the background while the
    caller uses the previous result.

    The iterable `jobs` is consumed in the caller's thread. Jobs of at most DIRECT_CHARACTERS run there, too. When `cancel` is requested,
    raises KeyboardInterrupt and drops the result of a job that is still running."""

    def start(job: tuple[int, Callable[[], Any]]) -> Callable[[], Any]:
        weight, work = job
        return work if weight <= DIRECT_CHARACTERS else functools.partial(finish, Task(work))

    def finish(task: Task[Any]) -> Any:
        while cancel is not None and not task.wait(POLL_SECONDS):
            cancel.check()
        return task.result()

    source = iter(jobs)
    job = next(source, None)
    running = start(job) if job else None
    while running:
        following = next(source, None)  # reads the caller's next texts while the job is running
        result = running()
        running = start(following) if following else None
        yield result


def _characters(item: Any) -> int:
    """Returns the number of characters of a text, or of both texts of a pair together. Returns 0 for other objects."""
    if isinstance(item, str):
        return len(item)
    return sum(len(text) for text in item if isinstance(text, str)) if isinstance(item, (tuple, list)) else 0


class WindowTokenizer:
    """Tokenizes texts and pairs by the settings in the model's files: prompts, maximum length, case, token types, roles."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        config: SentenceConfig,
        context: int,
        typed: bool = True,
        static: bool = False,
        render: Render | None = None,
    ) -> None:
        """context: the maximum number of tokens of a text in the engine.  typed: whether the model uses token type ids (DistilBERT and
        ModernBERT do not, although their tokenizers produce them).  static: whether the model is a table of vectors. If so, its texts get
        no special tokens, and may have no tokens at all.  render: a function that returns the ids of texts which the chat template
        writes, or None if texts are tokenized as they are."""
        self._tokenizer, self._config, self._typed, self._static, self._render = tokenizer, config, typed, static, render
        limit = config.max_seq_length or (tokenizer.truncation if static and not config.drop_unknown else None) or context
        self.max_tokens = min(limit, context)
        self._late = Reader(config.late, tokenizer, self.max_tokens, context) if config.late is not None else None
        self._unknown = tokenizer.unknown_id if config.drop_unknown else None
        # model2vec first cuts a text to this number of characters: the length times the median length of the vocabulary's tokens.
        self._characters: int | None = None
        if config.drop_unknown and self.max_tokens < context:
            self._characters = self.max_tokens * int(np.median([len(token) for token in tokenizer.backend.get_vocab()]))
        # (number of texts, prompt) -> the ids that follow the last text in a rendered item
        self._tails: dict[tuple[int, str], Int32] = {}

    # ------------------------------------------------------------ prompts and lengths
    def prompt_text(self, prompt: str | None, prompt_name: str | None) -> str:
        """Returns the prompt that is prepended to each text of a call. Raises TypeError or ValueError; the message names prompt= or
        prompt_name=."""
        if prompt is not None and prompt_name is not None:
            raise ValueError("prompt and prompt_name were both given; one of them says what to put before each text")
        if prompt is None:
            name = prompt_name if prompt_name is not None else self._config.default_prompt
            if name is None:
                return ""
            if not isinstance(name, str):
                raise TypeError(f"prompt_name must be a string, not {type(name).__name__} {shown(name)}")
            name = plain(name)
            if name not in self._config.prompts:
                known = ", ".join(map(repr, self._config.prompts)) or "none: load(prompts={...}) gives it some"
                hint = did_you_mean(name, self._config.prompts)
                raise ValueError(f"prompt_name={shown(name)} is not a prompt of this model ({known}){hint}")
            prompt = self._config.prompts[name]
        return check_text(prompt, "prompt")

    def prompt_tokens(self, prompt: str) -> int:
        """Returns the number of tokens at the beginning of each text that are left out of the text's vector. If the model's Pooling has
        "include_prompt": false, these are the prompt's tokens and the special tokens before them. Otherwise the number is 0."""
        if not prompt or self._config.pool_prompt or self._render is not None:  # a message of the system has no end in the ids
            return 0
        text = prompt.lower() if self._config.lower_case else prompt
        return len(self._tokenizer.encode(text, add_special=True)) - len(self._tokenizer.around[1])

    def cuts(self, role: str | None, truncate: bool | str | int, details: bool = False) -> Cuts:
        """Returns a new Cuts object for a call in this role."""
        if self._late is not None and not isinstance(truncate, (bool, np.bool_, str)):
            raise ValueError("truncate is a number, and the files of this model say how many tokens its queries and documents have")
        return Cuts(self.max_tokens if self._late is None else self._late.limit(role), truncate, details=details)

    # ------------------------------------------------------------ texts
    def texts(self, texts: Iterable[Any], reading: Reading, cuts: Cuts, cancel: _core.Cancel | None = None) -> Iterator[Tokens]:
        """Yields the tokens of an iterable of texts, window by window."""

        def jobs() -> Iterator[tuple[int, Callable[[], Tokens]]]:
            first = 0
            for window in windows(texts, _characters):
                yield (
                    sum(map(_characters, window)) + len(reading.prompt) * len(window),
                    functools.partial(self.window, window, first, reading, cuts),
                )
                first += len(window)

        return ahead(jobs(), cancel)

    def placed(
        self, texts: Iterable[Any], parse_special: bool | None, cuts: Cuts, cancel: _core.Cancel | None = None
    ) -> Iterator[tuple[list[str], Tokens]]:
        """Yields texts and their tokens with `places`, window by window. The texts get no prompt and keep their case, because the places
        refer to the caller's characters. A text may have no tokens."""

        def jobs() -> Iterator[tuple[int, Callable[[], tuple[list[str], Tokens]]]]:
            first = 0
            for window in windows(texts, _characters):
                yield sum(map(_characters, window)), functools.partial(self._placed, window, first, parse_special, cuts)
                first += len(window)

        return ahead(jobs(), cancel)

    def _placed(self, window: Sequence[Any], first: int, parse_special: bool | None, cuts: Cuts) -> tuple[list[str], Tokens]:
        texts = [check_text(text, f"text {first + i}") for i, text in enumerate(window)]
        batch = self._tokenizer.encode_placed(texts, cuts.limit, parse_special)
        cuts.see(np.asarray(batch.lengths_before_cut), first)
        return texts, Tokens(batch.ids, batch.offsets, batch.types if self._typed else None, places=batch.places)

    def window(self, window: Sequence[Any], first: int, reading: Reading, cuts: Cuts) -> Tokens:
        """Returns the tokens of one window. first: the index of the window's first text among all texts of the call."""
        return cuts.keep(self._window(window, first, reading, cuts))

    def _window(self, window: Sequence[Any], first: int, reading: Reading, cuts: Cuts) -> Tokens:
        if self._late is not None:
            texts = [check_text(text, f"text {first + i}") for i, text in enumerate(window)]
            read = self._late.read(texts, reading.prompt, reading.role, self._config.lower_case, reading.parse_special)
            return replace(self._checked(read.batch, first, cuts), unseen=read.unseen, kept=read.kept)
        if self._render is not None:
            checked = [(check_text(text, f"text {first + i}"),) for i, text in enumerate(window)]
            return self.rendered(self._render, checked, reading, first, cuts)
        texts = [reading.prompt + check_text(text, f"text {first + i}") for i, text in enumerate(window)]
        if self._config.lower_case:
            texts = [text.lower() for text in texts]
        whole = texts
        if self._characters is not None:
            texts = [text[: self._characters] for text in texts]
        batch = self._tokenizer.encode_batch(texts, not self._static, cuts.limit, reading.parse_special)
        tokens = self._checked(self._counted(batch, whole, cuts.limit), first, cuts)
        return tokens if self._unknown is None else tokens.without(self._unknown)

    def _counted(self, batch: TokenBatch, texts: Sequence[str], limit: int) -> TokenBatch:
        """Returns the tokens of texts that were first cut to a number of characters, with the lengths of the whole texts. A text that lost
        characters counts as longer than the limit, even if its tokens would fit."""
        if self._characters is None or not any(len(text) > self._characters for text in texts):
            return batch
        lengths, kept = batch.lengths_before_cut.copy(), np.diff(batch.offsets)
        for i, text in enumerate(texts):
            if len(text) > self._characters:
                length = len(self._tokenizer.encode(text, add_special=False))
                lengths[i] = length if length > limit else limit + max(1, length - kept[i])
        return replace(batch, lengths_before_cut=lengths)

    def _checked(self, batch: TokenBatch, first: int, cuts: Cuts) -> Tokens:
        tokens = Tokens(batch.ids, batch.offsets, batch.types if self._typed else None)
        empty = tokens.offsets[1:] == tokens.offsets[:-1]
        if empty.any() and not self._static:
            raise ValueError(
                f"{cuts.what} {first + int(empty.argmax())} is empty and this model's tokenizer adds no special tokens: nothing to encode"
            )
        if cuts.see(np.asarray(batch.lengths_before_cut), first):
            tokens = replace(tokens, cut=(batch.lengths_before_cut - np.diff(batch.offsets)).astype(np.int32))
        return tokens

    # ------------------------------------------------------------ pairs
    def pairs(
        self, pairs: Iterable[Any], reading: Reading, cuts: Cuts, cancel: _core.Cancel | None = None, document_tokens: int | None = None
    ) -> Iterator[Tokens]:
        """Yields the tokens of an iterable of pairs, or of texts, window by window. The prompt stands before the first text of
        each pair. document_tokens: the number of tokens to which the second text of each pair is cut before the pair is tokenized."""

        def jobs() -> Iterator[tuple[int, Callable[[], Tokens]]]:
            first = 0
            for window in windows(pairs, _characters):
                yield sum(map(_characters, window)), functools.partial(self._window_of_pairs, window, first, reading, cuts, document_tokens)
                first += len(window)

        return ahead(jobs(), cancel)

    def _window_of_pairs(self, window: list[Any], first: int, reading: Reading, cuts: Cuts, document_tokens: int | None) -> Tokens:
        if all(isinstance(text, str) for text in window) and not self._config.score_ids:
            return self.window(window, first, reading, cuts)
        pairs = self._checked_pairs(window, first)
        if document_tokens is None:
            return cuts.keep(self._pairs(pairs, reading, first, cuts))
        pairs, lost = self._shortened(pairs, document_tokens)
        tokens = self._pairs(pairs, reading, first, cuts)
        return cuts.keep(replace(tokens, cut=lost if tokens.cut is None else lost + tokens.cut))

    def _checked_pairs(self, window: list[Any], first: int) -> list[Pair]:
        pairs: list[Pair] = []
        for i, pair in enumerate(window):
            parts = listed(itertools.islice(pair, 3)) if isinstance(pair, Sequence) and not isinstance(pair, str) else []
            if len(parts) != 2:
                raise TypeError(f"pair {first + i} is {shown(pair)}; it must be two strings (query, document), or each of all one string")
            query, document = (check_text(text, f"text {k} of pair {first + i}") for k, text in enumerate(parts))
            pairs.append((query, document))
        return [(a.lower(), b.lower()) for a, b in pairs] if self._config.lower_case else pairs

    def _shortened(self, pairs: list[Pair], most: int) -> tuple[list[Pair], Int32]:
        """Cuts off the end of each second text that has more than `most` tokens, without special tokens. Returns the pairs, and for each
        pair the number of tokens that its second text has lost.

        The text is cut and not its ids, because a template may be rendered around the text. If only some tokens of a character would
        remain, the whole character is cut off. The tokens that remain are the first tokens of the whole text."""
        documents = list(dict.fromkeys(document for _, document in pairs))  # without repeats, because a document may be in several pairs
        batch = self._tokenizer.encode_placed(documents)
        assert batch.places is not None
        short: dict[str, tuple[str, int]] = {}  # document -> (text that remains, number of tokens that are lost)
        for document, a, b in zip(documents, batch.offsets[:-1], batch.offsets[1:], strict=True):
            starts, ends = (places := batch.places[a:b])[places[:, 0] >= 0].T
            if len(ends) <= most:
                short[document] = document, 0
                continue
            end = min(int(ends[most - 1]), int(starts[most]))
            short[document] = document[:end], int((ends > end).sum())
        lost = np.array([short[document][1] for _, document in pairs], np.int32)
        return [(query, short[document][0]) for query, document in pairs], lost

    def _pairs(self, pairs: list[Pair], reading: Reading, first: int, cuts: Cuts) -> Tokens:
        if self._render is not None:
            return self.rendered(self._render, pairs, reading, first, cuts)
        pairs = [(reading.prompt + query, document) for query, document in pairs] if reading.prompt else pairs
        return self._checked(self._tokenizer.encode_pairs(pairs, cuts.limit, reading.parse_special), first, cuts)

    def rendered(self, render: Render, items: Sequence[Sequence[str]], reading: Reading, first: int, cuts: Cuts) -> Tokens:
        """Returns the tokens of texts or pairs that the chat template writes. If an item is too long, the end of its last text is cut off,
        and the template's text after it remains."""
        rows = [render(item, reading.prompt, bool(reading.parse_special)) for item in items]
        lengths = np.array([len(row) for row in rows])
        if long := cuts.see(lengths, first):
            tail = self._template_tail(render, len(items[0]), reading.prompt)
            keep = max(0, cuts.limit - len(tail))
            rows = [row if len(row) <= cuts.limit else np.concatenate([row[:keep], tail])[-cuts.limit :] for row in rows]
        offsets = np.concatenate([[0], np.cumsum([len(row) for row in rows])]).astype(np.int64)
        cut = (lengths - np.diff(offsets)).astype(np.int32) if long else None
        return Tokens(np.concatenate(rows).astype(np.int32), offsets, None, cut=cut)

    def _template_tail(self, render: Render, count: int, prompt: str) -> Int32:
        """Returns the ids that follow the last text in a rendered item of `count` texts. They are the longest common suffix of the ids of
        two items with different texts, the ones with which sentence-transformers finds it."""
        key = count, prompt
        if key not in self._tails:
            a, b = (render([text] * count, prompt, False)[::-1] for text in ("0", "1 2 3 4"))
            same = min(len(a), len(b))
            differ = np.flatnonzero(a[:same] != b[:same])
            if len(self._tails) >= MOST_TAILS:
                self._tails.clear()
            self._tails[key] = a[: int(differ[0]) if differ.size else same][::-1]
        return self._tails[key]
