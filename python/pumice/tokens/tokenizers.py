"""Converts texts to token ids and back, with the `tokenizers` package."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
from tokenizers import AddedToken, models
from tokenizers import Tokenizer as Backend

from ..common.address_space import check_memory
from ..common.exits import exit_waits
from ..common.forks import cached_property
from ..errors import TokenizerError
from . import gguf_tokenizer
from .backends import check_template, copy_of, ends_at_spaces, ids_of, no_panic, threads, unknown_id
from .control_tokens import ControlTokens, with_own_tokens
from .decoding import DecodeStream, Decoding, Int32
from .fill_in_middle import ROLES, Gaps, form_of

Int64 = npt.NDArray[np.int64]
T = TypeVar("T")

TEXT_MEMORY = 256  # maximum number of bytes that the tokenizers package uses per character of a text
WORDS = 1 << 16  # maximum number of words whose ids a tokenizer caches, about 16 MB
WORD = 32  # maximum number of characters of a cached word


@dataclass(frozen=True)
class TokenBatch:
    """Tokenized texts in the engine's form. Text i is ids[offsets[i]:offsets[i + 1]]."""

    ids: Int32
    offsets: Int64
    types: Int32 | None  # token types (segment ids), or None if all are 0
    lengths_before_cut: Int64  # number of tokens of each text before it was cut, including special tokens
    # The positions in the text at which each token begins and ends, or (-1, -1) for special tokens that were added. Only encode_placed()
    # returns them.
    places: Int32 | None = None

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def cut(self) -> npt.NDArray[np.bool_]:
        """Which texts were cut."""
        return self.lengths_before_cut > np.diff(self.offsets)


@dataclass(frozen=True)
class _Layout:
    """The special tokens around a text or a pair, and the token types of all parts. They are derived from the backend's post-processor."""

    parts: tuple[tuple[int, ...], ...]  # tokens before the first text, between the texts of a pair, and after the last text
    part_types: tuple[tuple[int, ...], ...]
    text_types: tuple[int, ...]

    @property
    def count(self) -> int:
        return sum(map(len, self.parts))

    @property
    def typed(self) -> bool:
        return any(self.text_types) or any(map(any, self.part_types))


class Tokenizer:
    """One model's tokenizer. It never changes after it is made, so any number of threads may use it."""

    def __init__(
        self,
        backend: Backend,
        *,
        bos_id: int | None = None,
        eos_ids: Iterable[int] = (),
        special: dict[str, int] | None = None,
        max_length: int | None = None,
        truncate_left: bool = False,
        bos_in_chats: bool = False,
        split_special: bool = False,
    ) -> None:
        """bos_in_chats: whether the rule that texts begin with the bos token also holds for prompts that a chat template renders.
        split_special: whether control tokens that a text spells are plain text, unless a call says otherwise (split_special_tokens in
        transformers)."""
        # The number of tokens to which tokenizer.json cuts a text, or None. It holds for tables of vectors alone, because their packages
        # use tokenizer.json as it is.
        self.truncation: int | None = backend.truncation["max_length"] if backend.truncation else None
        backend.no_truncation()
        backend.no_padding()
        # Switches off the cache of the tokenizers package, which has no public method for this. In tokenizers 0.23, each thread caches up
        # to 10,000 words of each BPE vocabulary and never frees them, so a closed model left 3.2 MB. Without the cache, tokenizing takes
        # 1.2 to 1.3 times as long.
        if isinstance(backend.model, models.BPE) and (resize := getattr(backend.model, "_resize_cache", None)):
            resize(0)
        self.backend = backend
        self.bos_id = bos_id
        self.eos_ids = tuple(sorted(set(eos_ids)))
        self.special = dict(special or {})  # role (bos, eos, unk, sep, pad, cls, mask) -> id
        self.max_length = max_length  # maximum length in the tokenizer's own files; the model may accept fewer tokens
        self.truncate_left = truncate_left
        self.split_special = split_special
        self.vocab_size: int = backend.get_vocab_size(with_added_tokens=True)
        self.added: dict[int, AddedToken] = backend.get_added_tokens_decoder()
        self.special_ids = frozenset(i for i, token in self.added.items() if token.special)
        check_template(backend)
        with no_panic("trying the tokenizer"):
            self._single, self._pair = layouts_of(backend)
        # The id with which every prompt of a chat begins, whether or not the chat template writes it, or None.
        self.chat_bos = bos_id if bos_in_chats and bos_id in self._single.parts[0] else None
        self._decoding = Decoding.of(backend, self.added)
        # The cache (word -> ids) that _by_words() fills. It is None if a token may contain a space, because texts are then not tokenized
        # word by word.
        self._words: dict[str, tuple[int, ...]] | None = {} if ends_at_spaces(backend) else None

    @property
    def around(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """The special tokens before and after a text, as the vocabulary spells them. An id that the vocabulary lacks is shown in the form
        "#508"."""

        def spelt(part: tuple[int, ...]) -> tuple[str, ...]:
            return tuple(self.token(i) if 0 <= i < self.vocab_size else f"#{i}" for i in part)

        before, after = self._single.parts
        return spelt(before), spelt(after)

    @property
    def around_ids(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The ids of the special tokens before and after a text."""
        before, after = self._single.parts
        return before, after

    # ---- text to ids

    def encode(self, text: str, add_special: bool = True, parse_special: bool | None = None) -> Int32:
        """Returns the ids of a text. parse_special: if False, control tokens that the text spells are tokenized as plain text (for texts
        from users). None means what the tokenizer's files say (split_special)."""
        _check_text(text)
        check_memory(TEXT_MEMORY * len(text), "tokenising a text")
        with no_panic("tokenising"):
            plain = self.split_special if parse_special is None else not parse_special
            ids = self._plain_ids(text) if plain else ids_of(self.backend, text)
        if add_special:
            before, after = self._single.parts
            ids = [*before, *ids, *after]
        return _int32(ids)

    def encode_parts(self, parts: Iterable[tuple[str, bool]], add_special: bool = True) -> Int32:
        """Returns the ids of one text that is passed in parts. Each part has its own parse_special, which can be True for a template's part
        and False for a user's part."""
        parts = list(parts)
        for text, _ in parts:
            _check_text(text)
        if all(parse for _, parse in parts):
            return self.encode("".join(text for text, _ in parts), add_special, parse_special=True)
        check_memory(TEXT_MEMORY * sum(len(text) for text, _ in parts), "tokenising a text")
        prefix = self._plain[1]
        named = "".join(self._with_prefix(text, prefix) if parse else text for text, parse in parts)
        with no_panic("tokenising"):
            ids = self._plain_ids(named)
        before, after = self._single.parts if add_special else ((), ())
        return _int32([*before, *ids, *after])

    def _plain_ids(self, text: str) -> list[int]:
        plain, _, id_of = self._plain
        return [id_of.get(i, i) for i in ids_of(plain, text)]

    def _with_prefix(self, text: str, prefix: str) -> str:
        pieces, at = [], 0
        for start, token in self.control.find(text):
            pieces += [text[at:start], prefix, token]
            at = start + len(token)
        return "".join([*pieces, text[at:]])

    def encode_batch(
        self, texts: Sequence[str], add_special: bool = True, truncate_to: int | None = None, parse_special: bool | None = None
    ) -> TokenBatch:
        """Returns the ids of many texts. truncate_to: the maximum number of tokens to keep per text, special ones included.  parse_special:
        as in encode(); None means not split_special."""
        return self._batch(self._bodies(texts, parse_special), self._single if add_special else _NOTHING, truncate_to)

    def encode_placed(self, texts: Sequence[str], truncate_to: int | None = None, parse_special: bool | None = None) -> TokenBatch:
        """Like encode_batch(), but also returns the position of each token in its text."""
        texts = self._checked(texts)
        backend, of = self._reader(parse_special)
        with no_panic("tokenising"):
            if threads.run():
                encodings = backend.encode_batch(texts, add_special_tokens=False)
            else:
                encodings = [backend.encode(text, add_special_tokens=False) for text in texts]
        layout = self._single
        room = _room(truncate_to, layout.count)
        before, after = ([(-1, -1)] * len(part) for part in layout.parts)
        places: list[tuple[int, int]] = []
        for encoding in encodings:
            places += [*before, *self._cut(encoding.offsets, room), *after]
        batch = self._batch([of(encoding.ids) for encoding in encodings], layout, truncate_to)
        return replace(batch, places=np.array(places, np.int32).reshape(-1, 2))

    def _batch(self, bodies: list[list[int]], layout: _Layout, truncate_to: int | None) -> TokenBatch:
        lengths = np.fromiter(map(len, bodies), np.int64, len(bodies)) + layout.count
        room = _room(truncate_to, layout.count)
        before, after = layout.parts
        flat: list[int] = []
        # The ends of the texts are collected in a list, because numpy is slower. While an engine uses the processor's caches, each call of
        # numpy takes microseconds, a twentieth of the whole time for one sentence.
        ends = [0]
        for body in bodies:
            flat.extend(before)
            flat.extend(self._cut(body, room))
            flat.extend(after)
            ends.append(len(flat))
        offsets = np.array(ends, np.int64)
        types = None
        if layout.typed:
            first, last = (_int32(t) for t in layout.part_types)
            types = np.concatenate(
                [np.concatenate([first, np.repeat(_int32(layout.text_types), n - layout.count), last]) for n in np.diff(offsets)]
                or [np.empty(0, np.int32)]
            )
        return TokenBatch(_int32(flat), offsets, types, lengths)

    def encode_pairs(
        self, pairs: Sequence[tuple[str, str]], truncate_to: int | None = None, parse_special: bool | None = None
    ) -> TokenBatch:
        """Returns the ids of pairs of texts, for a cross-encoder. If a pair is too long, the longer text is cut first.
        parse_special: as in encode_batch()."""
        pairs = list(pairs)
        for i, pair in enumerate(pairs):
            if isinstance(pair, str) or not isinstance(pair, Sequence) or len(pair) != 2:
                raise TypeError(f"pairs[{i}] must be two texts, found {type(pair).__name__}")
        layout = self._pair
        texts = list(chain.from_iterable(pairs))
        unique = list(dict.fromkeys(texts))  # each text once, because a query is in a pair with each of its documents
        body_of = dict(zip(unique, self._bodies(unique, parse_special), strict=True))
        bodies = [body_of[text] for text in texts]
        room = _room(truncate_to, layout.count)
        flat: list[int] = []
        types: list[int] = []
        kept, lengths = np.empty(len(pairs), np.int64), np.empty(len(pairs), np.int64)
        for i in range(len(pairs)):
            first, second = bodies[2 * i], bodies[2 * i + 1]
            lengths[i] = len(first) + len(second) + layout.count
            if room is not None:
                most_first, most_second = _longest_first(len(first), len(second), room)
                first, second = self._cut(first, most_first), self._cut(second, most_second)
            flat += [*layout.parts[0], *first, *layout.parts[1], *second, *layout.parts[2]]
            if layout.typed:
                types += [
                    *layout.part_types[0], *[layout.text_types[0]] * len(first), *layout.part_types[1],
                    *[layout.text_types[1]] * len(second), *layout.part_types[2],
                ]  # fmt: skip
            kept[i] = len(first) + len(second) + layout.count
        return TokenBatch(_int32(flat), _offsets(kept), _int32(types) if layout.typed else None, lengths)

    def count(self, text: str, add_special: bool = True) -> int:
        """Returns the number of tokens of a text."""
        return len(self.encode(text, add_special))

    # ---- ids to text

    def decode(self, ids: Iterable[int] | Int32, skip_special: bool = True) -> str:
        """Returns the text of ids. Bytes that are not valid UTF-8 become U+FFFD."""
        stream = self._stream(skip_special, strict=True)
        return stream.step(ids) + stream.flush()

    def decode_stream(self, skip_special: bool = True, after: Iterable[int] | Int32 = ()) -> DecodeStream:
        """Returns a stream that decodes ids while they arrive. Each step() returns the text that its ids complete. The results of all steps
        and of flush(), joined, are the text that decode() returns.

        after: the ids whose text the stream continues, such as a prompt. SentencePiece puts a space before each text, and decoding drops
        it. If `after` has text, the stream's first token does not begin the text, so its space stays.

        An id without a token becomes U+FFFD. A model can generate such an id if its output has more rows than its tokenizer has tokens."""
        return self._stream(skip_special, after=after)

    def _stream(self, skip_special: bool, strict: bool = False, after: Iterable[int] | Int32 = ()) -> DecodeStream:
        return DecodeStream(self._decoding, self.special_ids if skip_special else frozenset(), strict, after)

    def token(self, index: int) -> str:
        """Returns a token as the vocabulary spells it."""
        text = self.backend.id_to_token(index) if 0 <= index < 1 << 32 else None
        if text is None:
            raise ValueError(f"there is no token {index}: the vocabulary has {self.vocab_size}")
        return text

    @property
    def unknown_id(self) -> int | None:
        """The id of the token for text that no other token matches, or None if this kind of tokenizer has no such token."""
        return unknown_id(self.backend)

    @property
    def has_bytes(self) -> bool:
        """Whether the bytes of a token do not depend on its neighbours."""
        return self._decoding.kind != "other"

    def piece(self, index: int) -> bytes | None:
        """Returns the bytes of a token, or None if there is no token with this id. has_bytes must be true."""
        return None if self.backend.id_to_token(index) is None else self._decoding.piece(index, strict=True)

    def token_bytes(self, index: int) -> bytes:
        """Returns the bytes that a token adds to a text when it follows another token. If there is no token with this id, returns the bytes
        of U+FFFD."""
        if index in self.special_ids:
            return self.added[index].content.encode()
        if self.has_bytes:
            return self._decoding.piece(index, strict=False)
        stream = self.decode_stream()
        stream.step([index])  # the token is decoded twice, because its bytes may differ at the beginning of a text
        return stream.step([index]).encode()

    def id(self, token: str) -> int | None:
        """Returns the id of a token, spelled as in the vocabulary, or None if the vocabulary has no such token."""
        return self.backend.token_to_id(token)

    def __len__(self) -> int:
        return self.vocab_size

    def __repr__(self) -> str:
        return f"Tokenizer({type(self.backend.model).__name__}, {self.vocab_size} tokens, bos {self.bos_id}, eos {list(self.eos_ids)})"

    # ---- internals

    @cached_property
    def control(self) -> ControlTokens:
        """An object that finds the special tokens in texts."""
        return ControlTokens(self.added)

    @cached_property
    def gaps(self) -> Gaps | None:
        """An object that makes prompts with a gap, or None if the vocabulary has no tokens for one."""
        form = form_of(self.id, {role: self.token(self.special[role]) for role in ROLES if role in self.special})
        return None if form is None else Gaps(self, form, gguf_tokenizer.END_TOKENS)

    @cached_property
    def shared_copy(self) -> Backend:
        """A copy of the tokenizers.Tokenizer, which the caller may change."""
        return copy_of(self.backend)

    @cached_property
    def _plain(self) -> tuple[Backend, str, dict[int, int]]:
        """A tokenizer with the same model (shared, not copied) that tokenizes control tokens in a text as plain text.

        In this tokenizer, the control tokens have other names, which begin with random characters. The value is (tokenizer, these random
        characters, a dict from the tokenizer's ids to the original ids)."""
        with exit_waits:
            plain = Backend(self.backend.model)
            for part in ("normalizer", "pre_tokenizer"):
                if (value := getattr(self.backend, part)) is not None:
                    setattr(plain, part, value)
            return plain, *with_own_tokens(self.added, plain)

    def _checked(self, texts: Sequence[str]) -> list[str]:
        """Returns the texts as a list. Raises TypeError or ValueError if an element is not a valid text."""
        for i, text in enumerate(texts):
            _check_text(text, f"texts[{i}]")
        check_memory(TEXT_MEMORY * sum(map(len, texts)), f"tokenising {len(texts)} texts")
        return list(texts)

    def _reader(self, parse_special: bool | None) -> tuple[Backend, Callable[[list[int]], list[int]]]:
        """Returns the backend that tokenizes texts, and a function that turns its ids into those of the model."""
        if self.split_special if parse_special is None else not parse_special:
            plain, _, id_of = self._plain
            return plain, lambda ids: [id_of.get(i, i) for i in ids]
        return self.backend, lambda ids: ids

    def _bodies(self, texts: Sequence[str], parse_special: bool | None = None) -> list[list[int]]:
        if isinstance(texts, str):
            raise TypeError("texts must be a sequence of str, found one str")
        texts = list(texts)
        check_memory(TEXT_MEMORY * sum(len(text) for text in texts if isinstance(text, str)), f"tokenising {len(texts)} texts")
        try:
            backend, of = self._reader(parse_special)
            if backend is not self.backend:
                return [of(ids) for ids in _ids_of_all(backend, texts)]
            return _ids_of_all(backend, texts) if self._words is None else self._by_words(texts, self._words)
        except (TypeError, UnicodeError):
            for i, text in enumerate(texts):
                _check_text(text, f"texts[{i}]")
            raise

    def _by_words(self, texts: list[str], known: dict[str, tuple[int, ...]]) -> list[list[int]]:
        """Tokenizes texts word by word, for tokenizers in which no token contains a space. Each word is tokenized once and then looked up.
        If all words are known, 10,000 sentences take 0.31 of the time of whole texts. If all words are new, they take the same time. Two
        threads may store the same word, which does no harm, because the ids are equal."""
        words = [str.split(text, " ") for text in texts]
        different = set(chain.from_iterable(words))
        new = [word for word in different if word not in known]
        ids_of = known
        if new:
            ids_of = {word: known[word] for word in different if word in known}
            spelt = dict(zip(new, map(tuple, _ids_of_all(self.backend, new)), strict=True))
            ids_of.update(spelt)
            kept = {word: ids for word, ids in spelt.items() if len(word) <= WORD}
            if len(known) + len(kept) <= WORDS:
                known.update(kept)
            elif len(kept) <= WORDS:
                self._words = kept  # the cache was full, so it is replaced by the words of this call
        return [list(chain.from_iterable(map(ids_of.__getitem__, each))) for each in words]

    def _cut(self, ids: list[T], most: int | None) -> list[T]:
        if most is None or len(ids) <= most:
            return ids
        return ids[len(ids) - most :] if self.truncate_left else ids[:most]


def layouts_of(backend: Backend) -> tuple[_Layout, _Layout]:
    """Returns the special tokens around a single text, and those around the two texts of a pair."""
    probe = next((t for t in ("a", "1", ".", "\u4e00") if backend.encode(t, add_special_tokens=False).ids), None)
    if probe is None:
        return _NOTHING, _Layout(((), (), ()), ((), (), ()), (0, 0))
    layouts = []
    for texts in ((probe,), (probe, probe)):
        encoding = backend.encode(*texts)
        parts: list[list[int]] = [[]]
        part_types: list[list[int]] = [[]]
        text_types: list[int] = []
        previous = None
        for token, kind, of in zip(encoding.ids, encoding.type_ids, encoding.sequence_ids, strict=True):
            if of is None:
                parts[-1].append(token)
                part_types[-1].append(kind)
            elif of != previous:
                text_types.append(kind)
                parts.append([])
                part_types.append([])
            previous = of if of is not None else previous
        layouts.append(_Layout(tuple(map(tuple, parts)), tuple(map(tuple, part_types)), tuple(text_types)))
    return layouts[0], layouts[1]


def _int32(ids: Sequence[int]) -> Int32:
    """Returns ids as int32. Raises TokenizerError if an id is too large, because the tokenizers package uses unsigned 32-bit numbers."""
    try:
        return np.array(ids, np.int32)
    except OverflowError:
        raise TokenizerError(f"the tokenizer gives the id or type {max(ids)}; they end at 2^31 - 1. {gguf_tokenizer.FIX}") from None


_NOTHING = _Layout(((), ()), ((), ()), (0,))


def _offsets(lengths: Int64) -> Int64:
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return offsets


def _ids_of_all(backend: Backend, texts: list[str]) -> list[list[int]]:
    """Returns the ids of texts, without special tokens around them."""
    with no_panic("tokenising"):
        if threads.run():
            return [e.ids for e in backend.encode_batch_fast(texts, add_special_tokens=False)]
        return [backend.encode(text, add_special_tokens=False).ids for text in texts]


def _room(truncate_to: int | None, special: int) -> int | None:
    if truncate_to is None:
        return None
    if truncate_to < special + 1:
        raise ValueError(
            f"a text may have {truncate_to} tokens here, and the {special} special ones around it leave no room for its own; n_ctx=, or "
            f"max_seq_length (query_length, document_length) in the model's files, must be at least {special + 1}"
        )
    return truncate_to - special


def _longest_first(first: int, second: int, room: int) -> tuple[int, int]:
    """Returns the number of tokens to keep of each text in a pair. First the longer text is cut, at most to the length of the shorter one.
    If this is not enough, both texts are cut to equal lengths. If `room` is odd, the longer text keeps one token more."""
    if first + second <= room:
        return first, second
    short = min(first, second)
    longer = max(short, room - short) if short <= room else short
    if short + longer > room:
        short, longer = room // 2, room - room // 2
    return (longer, short) if first > second else (short, longer)


def _check_text(text: Any, name: str = "text") -> None:
    if not isinstance(text, str):
        raise TypeError(f"{name} must be str, found {type(text).__name__}")
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise ValueError(
                f"{name} has a lone surrogate U+{ord(text[error.start]):04X} at character {error.start}: no Unicode text. "
                "Drop such characters with text.encode('utf-8', 'ignore').decode()."
            ) from None


# ---- decoding ------------------------------------------------------------------------------------
