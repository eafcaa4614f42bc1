"""Models with one vector per token (ColBERT: Khattab and Zaharia 2020, arXiv:2004.12832). This module reads from a model's files how
queries and documents are tokenized, and which tokens have a vector in the result. It also tokenizes texts accordingly. The settings are in
files of sentence-transformers 6 (sentence_bert_config.json, the module MultiVectorMask) or of PyLate (config_sentence_transformers.json).
See https://sbert.net/docs/package_reference/multi_vector_encoder."""

from __future__ import annotations

import string
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ..common.arguments import check_text, shown, shown_path, warn
from ..common.side_files import field as json_field
from ..errors import FallbackWarning, ModelFormatError

if TYPE_CHECKING:
    from ..tokens.tokenizers import TokenBatch, Tokenizer

Int32 = npt.NDArray[np.int32]

MOST_LENGTH = 1 << 20
_PYLATE_KEYS = (
    "query_length",
    "document_length",
    "query_expansion",
    "do_query_expansion",
    "attend_to_expansion_tokens",
    "attend_to_mask_tokens",
    "query_prefix",
    "document_prefix",
    "skiplist_words",
)


@dataclass(frozen=True)
class Expansion:
    """Mask tokens that are appended to a query. If their vectors are in the result, similarities use them like the vectors of the query's
    own tokens."""

    length: int  # number of tokens of the expanded query, mask tokens included
    fixed: bool = True  # whether longer queries are cut to `length`
    attend: bool = False  # whether tokens attend to the mask tokens; in any case, mask tokens attend to the query's own tokens
    token: str | None = None  # None means the tokenizer's mask token, or its end token if it has no mask token
    implied: bool = False  # True if no file has a `query_expansion`, so that this is PyLate's default


@dataclass(frozen=True)
class LateInteraction:
    """The settings in a model's files for tokenizing queries and documents, if the model has one vector per token."""

    query_length: int | None = None  # maximum number of tokens of a query, special ones included; None means the model's own limit
    document_length: int | None = None  # maximum number of tokens of a document, special ones included; None means the model's own limit
    expansion: Expansion | None = None
    # Whether the model has a MultiVectorMask module. Without it, mask tokens to which no token attends have no vector in the result.
    masked: bool = False
    skipped: tuple[str, ...] = ()  # tokens that have no vector in the result
    skipped_in: tuple[str, ...] = ("document",)  # roles of the texts ("query", "document") to which `skipped` applies
    kept_ids: tuple[int, ...] = ()  # if not empty, only these token ids have vectors in documents
    # Prefixes of prompts. A prefix that is in the vocabulary becomes one token, even if the tokenizer would split it.
    prefixes: tuple[str, ...] = ()


def of_folder(values: dict[str, Any], file: Path) -> LateInteraction | None:
    """Returns the settings in config_sentence_transformers.json, where PyLate writes all of them, or None if the file has none of them.

    Models of PyLate 3 ("model_type": "ColBERT") list no MultiVectorMask, but are treated as if they had one that leaves out the vectors of
    skiplist_words in documents (by default, of punctuation)."""
    if values.get("model_type") != "ColBERT" and not any(key in values for key in _PYLATE_KEYS):
        return None
    late = _lengths(LateInteraction(), values, file)
    expansion = _expansion(values, file)
    if "query_expansion" not in values and json_field(values, "do_query_expansion", bool, file, True):
        attends = [json_field(values, key, bool, file) for key in ("attend_to_expansion_tokens", "attend_to_mask_tokens")]
        attend = next((said for said in attends if said is not None), False)
        expansion = Expansion(late.query_length or 32, attend=attend, implied=True)
    if expansion is not None and expansion.fixed:
        late = replace(late, query_length=None)
    prefixes = tuple(json_field(values, key, str, file, "") for key in ("query_prefix", "document_prefix"))
    late = replace(late, expansion=expansion, prefixes=tuple(prefix for prefix in prefixes if prefix))
    if values.get("model_type") != "ColBERT":
        return late
    return replace(late, masked=True, skipped=_words(values, "skiplist_words", file, tuple(string.punctuation)))


def with_prefixes(prompts: dict[str, str], values: dict[str, Any], file: Path) -> dict[str, str]:
    """Returns the prompts as PyLate uses them: the prompt of each role begins with PyLate's prefix for the role, if there is one."""
    prompts = dict(prompts)
    for role in ("query", "document"):
        prefix = json_field(values, f"{role}_prefix", str, file, "")
        if prefix:
            prompts[role] = prefix + prompts.get(role, "").removeprefix(prefix)
    return prompts


def of_transformer(late: LateInteraction | None, values: dict[str, Any], file: Path) -> LateInteraction | None:
    """Returns `late`, overridden by the settings in the sentence_bert_config.json of the first module."""
    if not any(values.get(key) is not None for key in ("query_length", "document_length", "query_expansion")):
        return late
    late = _lengths(late or LateInteraction(), values, file)
    expansion = _expansion(values, file)
    return late if expansion is None else replace(late, expansion=expansion)


def of_mask(late: LateInteraction | None, values: dict[str, Any], file: Path) -> LateInteraction:
    """Returns `late`, overridden by the settings in the config.json of a MultiVectorMask."""
    ids = values.get("keep_only_token_ids") or []
    if not isinstance(ids, list) or not all(isinstance(i, int) and not isinstance(i, bool) and 0 <= i < 2**31 for i in ids):
        raise ModelFormatError(
            f"{shown_path(file)}: keep_only_token_ids is no list of token ids", file=str(file), field="keep_only_token_ids"
        )
    return replace(
        late or LateInteraction(),
        masked=True,
        skipped=_words(values, "skiplist_words", file, ()),
        skipped_in=_words(values, "skiplist_tasks", file, ("document",)),
        kept_ids=tuple(ids),
    )


def _lengths(late: LateInteraction, values: dict[str, Any], file: Path) -> LateInteraction:
    def length(key: str, default: int | None) -> int | None:
        said = json_field(values, key, int, file)
        return default if said is None else _in_range(said, key, file)

    return replace(
        late,
        query_length=length("query_length", late.query_length),
        document_length=length("document_length", late.document_length),
    )


def _in_range(length: int, key: str, file: Path) -> int:
    if not 1 <= length <= MOST_LENGTH:
        raise ModelFormatError(f"{shown_path(file)}: {key} is {str(length)[:50]}; it must be 1 to {MOST_LENGTH}", file=str(file), field=key)
    return length


def _expansion(values: dict[str, Any], file: Path) -> Expansion | None:
    said = json_field(values, "query_expansion", dict, file)
    if said is None:
        return None
    strategy, length = said.get("strategy"), said.get("length")
    if strategy not in ("fixed", "min") or isinstance(length, bool) or not isinstance(length, int):
        raise ModelFormatError(
            f'{shown_path(file)}: query_expansion is {shown(said)}; it needs a strategy ("fixed" or "min") and a length', file=str(file),
            field="query_expansion",
        )  # fmt: skip
    attend, token = json_field(said, "attend", bool, file, False), json_field(said, "token", str, file)
    return Expansion(_in_range(length, "query_expansion.length", file), strategy == "fixed", attend, token)


def _words(values: dict[str, Any], key: str, file: Path, default: tuple[str, ...]) -> tuple[str, ...]:
    said = values.get(key)
    if said is None:
        return default
    words = [said] if isinstance(said, str) else said
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
        raise ModelFormatError(f"{shown_path(file)}: {key} is no list of strings", file=str(file), field=key)
    try:
        return tuple(check_text(word, f"{key}[{i}]") for i, word in enumerate(words))
    except ValueError as error:
        raise ModelFormatError(f"{shown_path(file)}: {error}", file=str(file), field=key) from None


@dataclass(frozen=True)
class Read:
    """Tokenized texts for the engine, and which of their tokens have a vector in the result."""

    batch: TokenBatch
    unseen: Int32  # for each text, the number of tokens at its end to which no token attends
    kept: npt.NDArray[np.bool_]  # for each token, whether it has a vector in the result


class Reader:
    """Tokenizes texts as a model's LateInteraction settings say."""

    def __init__(self, late: LateInteraction, tokenizer: Tokenizer, max_tokens: int, context: int) -> None:
        self._late, self._tokenizer, self._max_tokens, self._context = late, tokenizer, max_tokens, context
        self._expansion_id = self._find_expansion() if late.expansion else -1
        found = {word: tokenizer.backend.token_to_id(word) for word in late.skipped}
        missing = [word for word, id_ in found.items() if id_ is None]
        # There is no warning about PyLate's default list, because a vocabulary may well lack some of its tokens. Another list was made for
        # this model, so a missing token is worth a warning.
        if missing and late.skipped != tuple(string.punctuation):
            warn(
                FallbackWarning,
                f"skiplist_words {shown(missing)} are no tokens of this model's vocabulary: tokens that spell them keep their vectors",
            )
        self._skipped = np.array([id_ for id_ in found.values() if id_ is not None], np.int32)
        if late.kept_ids and not any(tokenizer.backend.id_to_token(id_) is not None for id_ in late.kept_ids):
            raise ModelFormatError(
                "keep_only_token_ids names no token of this model's vocabulary, so no token of a document would have a vector",
                field="keep_only_token_ids",
            )

    def _find_expansion(self) -> int:
        assert self._late.expansion is not None
        token, known = self._late.expansion.token, self._tokenizer
        if token is None:
            id_ = known.special.get("mask", next(iter(known.eos_ids), None))
        else:
            id_ = known.backend.token_to_id(token)
        if id_ is None:
            what = "it has no mask token and no end token" if token is None else f"{shown(token)} is no token of its vocabulary"
            raise ModelFormatError(f"queries are made longer by a token that the tokenizer lacks: {what}", field="query_expansion")
        return int(id_)

    def limit(self, role: str | None) -> int:
        """Returns the maximum number of tokens of a text in a role ("query", "document" or None), special ones included."""
        late = self._late
        length = {"query": late.query_length, "document": late.document_length}.get(role or "") or self._max_tokens
        if role == "query" and late.expansion is not None:
            length = late.expansion.length if late.expansion.fixed else max(length, late.expansion.length)
        return min(length, self._context)

    def read(self, texts: Sequence[str], prompt: str, role: str | None, lower: bool = False, parse_special: bool | None = None) -> Read:
        """Prepends the prompt to each text, tokenizes the result, and cuts it to the maximum length of the role ("query", "document" or
        None). lower: whether to convert the prompt and the text to lower case before that.  parse_special: as in windows.Reading."""
        token = self._own_token(prompt)
        before = token[1] if token else prompt
        texts = [(before + text).lower() if lower else before + text for text in texts]
        if token:
            batch = self._inserted(texts, role, token[0], parse_special)
        else:
            batch = self._tokenizer.encode_batch(texts, truncate_to=self.limit(role), parse_special=parse_special)
        skip = self._skipped if (role or "document") in self._late.skipped_in else self._skipped[:0]
        kept = ~np.isin(batch.ids, skip)
        if role != "query" and self._late.kept_ids:
            kept &= np.isin(batch.ids, np.array(self._late.kept_ids))
        unseen = np.zeros(len(batch.offsets) - 1, np.int32)
        return self._expanded(batch, unseen, kept) if role == "query" and self._late.expansion else Read(batch, unseen, kept)

    def _own_token(self, prompt: str) -> tuple[int, str] | None:
        """If the prompt begins with a prefix that is one token of the vocabulary ("[Q] ", "[unused0]"), returns the token's id and the rest
        of the prompt. Otherwise returns None."""
        for prefix in self._late.prefixes:
            if prompt.startswith(prefix):
                for text in (prefix, prefix.split(maxsplit=1)[0] if prefix.strip() else prefix):
                    id_ = self._tokenizer.backend.token_to_id(text)
                    if id_ is not None:
                        return int(id_), prompt[len(text) :]
        return None

    def _inserted(self, texts: Sequence[str], role: str | None, id_: int, parse_special: bool | None) -> TokenBatch:
        """Tokenizes the texts, and inserts the token `id_` after the special tokens at the beginning of each text."""
        room = max(1 + sum(map(len, self._tokenizer.around)), self.limit(role) - 1)
        batch = self._tokenizer.encode_batch(texts, truncate_to=room, parse_special=parse_special)
        at = batch.offsets[:-1] + len(self._tokenizer.around[0])
        types = None if batch.types is None else np.insert(batch.types, at, 0)
        offsets = batch.offsets + np.arange(len(batch.offsets))
        return type(batch)(np.insert(batch.ids, at, id_).astype(np.int32), offsets, types, batch.lengths_before_cut + 1)

    def _expanded(self, batch: TokenBatch, unseen: Int32, kept: npt.NDArray[np.bool_]) -> Read:
        expansion = self._late.expansion
        assert expansion is not None
        lengths = np.diff(batch.offsets)
        more = np.maximum(0, min(expansion.length, self._context) - lengths)
        ends = np.repeat(batch.offsets[1:], more)
        offsets = np.concatenate([[0], np.cumsum(lengths + more)]).astype(np.int64)
        longer = type(batch)(
            np.insert(batch.ids, ends, self._expansion_id).astype(np.int32),
            offsets,
            None if batch.types is None else np.insert(batch.types, ends, 0).astype(np.int32),
            batch.lengths_before_cut + more,
        )
        counts = self._late.masked or expansion.attend
        return Read(longer, unseen if expansion.attend else more.astype(np.int32), np.insert(kept, ends, counts))
