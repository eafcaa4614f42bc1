"""Converts token ids to text, all at once or as they arrive."""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Container, Iterable
from typing import Literal

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer as Backend

from .backends import no_panic
from .gguf_tokenizer import SPACE

Int32 = npt.NDArray[np.int32]


def _byte_of_character() -> dict[str, int]:
    """Returns GPT-2's alphabet as a dict from character to byte. A printable Latin-1 character stands for its own byte. The characters from
    U+0100 on stand for the other 68 bytes."""
    themselves = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = (b for b in range(256) if b not in themselves)
    return {**{chr(b): b for b in themselves}, **{chr(256 + i): b for i, b in enumerate(others)}}


_BYTES = _byte_of_character()
_BYTE_TOKEN = re.compile("<0x([0-9A-Fa-f]{2})>")
UNKNOWN = "\ufffd"


class Decoding:
    """Converts ids to bytes. If the bytes of a token do not depend on its neighbours, a table stores the bytes of each token. With the few
    other decoders (such as WordPiece's), each token is decoded together with the previous token."""

    def __init__(
        self, backend: Backend, added: Container[int], kind: Literal["bytes", "pieces", "other"], strip_first: bool, fallback: bool
    ) -> None:
        self.backend, self.added = backend, added
        self.kind, self.strip_first, self.fallback = kind, strip_first, fallback
        self._cache: dict[int, bytes] = {}

    @staticmethod
    def of(backend: Backend, added: Container[int]) -> Decoding:
        """Returns the Decoding of `backend`. `added` contains the ids of its added tokens, whose bytes are their own text."""
        decoder = backend.decoder
        spec = json.loads(decoder.__getstate__()) if decoder is not None else {}
        steps = spec.get("decoders", []) if spec.get("type") == "Sequence" else [spec]
        kinds = [s.get("type") for s in steps]
        if kinds == ["ByteLevel"]:
            return Decoding(backend, added, "bytes", False, False)
        if kinds == ["Metaspace"] and steps[0].get("replacement") == SPACE:
            return Decoding(backend, added, "pieces", steps[0].get("prepend_scheme", "always") != "never", False)
        spelling = {"type": "Replace", "pattern": {"String": SPACE}, "content": " "}
        if kinds[:3] == ["Replace", "ByteFallback", "Fuse"] and steps[0] == spelling:
            if len(steps) == 3:
                return Decoding(backend, added, "pieces", False, True)
            if steps[3:] == [{"type": "Strip", "content": " ", "start": 1, "stop": 0}]:
                return Decoding(backend, added, "pieces", True, True)
        return Decoding(backend, added, "other", False, False)

    def piece(self, index: int, strict: bool) -> bytes:
        """Returns the bytes of a token. For an id without a token, raises ValueError if `strict` is true, and otherwise returns U+FFFD."""
        known = self._cache.get(index)
        if known is None:
            if not strict and self.backend.id_to_token(index) is None:
                return UNKNOWN.encode()
            known = self._cache[index] = self._make_piece(index)
        return known

    def _make_piece(self, index: int) -> bytes:
        text = self.backend.id_to_token(index)
        if text is None:
            raise ValueError(f"there is no token {index}: the vocabulary has {self.backend.get_vocab_size()}")
        if self.kind == "bytes":
            if index not in self.added and all(c in _BYTES for c in text):
                return bytes(_BYTES[c] for c in text)
            return text.encode()
        if self.fallback and (byte := _BYTE_TOKEN.fullmatch(text)):
            return bytes([int(byte[1], 16)])
        return text.replace(SPACE, " ").encode()


class DecodeStream:
    """Decodes ids to text while they arrive."""

    def __init__(self, decoding: Decoding, skip: Container[int], strict: bool = False, after: Iterable[int] | Int32 = ()) -> None:
        """skip: ids that are left out of the text.  strict: whether an id without a token is an error.  after: the ids before the
        stream's first id. Their text decides about the space at the beginning, and is not returned."""
        self._decoding, self._skip, self._strict = decoding, skip, strict
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")
        before, known = _id_list(after), decoding.backend.id_to_token
        # The last id that was decoded, or [], because the space before the next token may depend on it.
        self._neighbour = [i for i in before if i not in skip and known(i) is not None][-1:] if decoding.kind == "other" else []
        self._at_start = not (decoding.strip_first and any(i not in skip and decoding.piece(i, False) for i in before))

    def step(self, ids: Iterable[int] | Int32 | int) -> str:
        """Returns the text that these ids complete. Bytes of an incomplete character wait for the next call."""
        new = [i for i in _id_list(ids) if i not in self._skip]
        if not new:
            return ""
        if self._decoding.kind == "other":
            return self._step_together(new)
        piece = self._decoding.piece
        data = b"".join([piece(i, self._strict) for i in new])
        if self._at_start and data:
            self._at_start = False
            if self._decoding.strip_first and data[:1] == b" ":
                data = data[1:]
        return self._utf8.decode(data)

    @property
    def pending(self) -> bool:
        """Whether bytes of an incomplete character are waiting."""
        return bool(self._utf8.getstate()[0])

    def flush(self) -> str:
        """Returns U+FFFD if bytes of an incomplete character are still waiting, else "". Must be called after the last id."""
        text = self._utf8.decode(b"", final=True)
        self._at_start, self._neighbour = True, []
        self._utf8.reset()
        return text

    def _step_together(self, new: list[int]) -> str:
        backend = self._decoding.backend
        unknown = {i for i in new if backend.id_to_token(i) is None}
        if unknown and self._strict:
            raise ValueError(f"there is no token {min(unknown)}: the vocabulary has {backend.get_vocab_size()}")
        if unknown:
            return "".join(UNKNOWN if i in unknown else self._step_together([i]) for i in new)
        with no_panic("decoding"):
            known = backend.decode(self._neighbour, skip_special_tokens=False) if self._neighbour else ""
            text = backend.decode(self._neighbour + new, skip_special_tokens=False)
        self._neighbour = new[-1:]
        return text[len(known) :]


def _id_list(ids: Iterable[int] | Int32 | int) -> list[int]:
    array = np.asarray(ids if isinstance(ids, np.ndarray | int | np.integer) else list(ids))
    if array.size == 0:
        return []
    if array.ndim > 1 or array.dtype.kind not in "iu":
        raise TypeError(f"ids must be whole numbers in one row, found {array.dtype} {array.shape}")
    flat: list[int] = array.reshape(-1).tolist()
    if min(flat) < 0 or max(flat) >= 1 << 31:
        raise ValueError(f"there is no token {min(flat) if min(flat) < 0 else max(flat)}")
    return flat
