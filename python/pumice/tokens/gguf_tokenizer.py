"""Builds tokenizers from the metadata of a GGUF file or from a SentencePiece file, with the `tokenizers` package.

The keys, kinds of tokenizers and token types have the names of the GGUF specification (ggml-org/ggml, docs/gguf.md).
"""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, processors
from tokenizers import Tokenizer as Backend

from .. import _core
from ..common.forks import cached_property
from ..errors import TokenizerError
from .fill_in_middle import ROLES, form_of
from .word_splits import SPLITS, Split

log = logging.getLogger("pumice")

SPACE = "\u2581"  # SentencePiece writes a space as LOWER ONE EIGHTH BLOCK
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
FIX = "Pass tokenizer= with the path of the model's tokenizer.json."

# ---- end of generation ---------------------------------------------------------------------------

# Texts of the tokens that end an answer. Such tokens are also found by their text, as in llama.cpp, because many files name only one of
# several end tokens.
END_TOKENS = (
    "<|eot_id|>", "<|im_end|>", "<|end|>", "<|return|>", "<|call|>", "<|flush|>", "<|calls|>", "<end_of_turn>", "<|endoftext|>", "</s>",
    "<|eom_id|>", "<EOT>", "_<EOT>", "[EOT]", "[EOS]", "<|end_of_text|>", "<end_of_utterance>", "<eos>", "<turn|>", "<|tool_response>",
    "<\uff5cend\u2581of\u2581sentence\uff5c>", "[e~[",
    # Padding tokens, and separators of repositories and files in code models.
    "<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]", "<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>",
    "<|file_sep|>",
)  # fmt: skip
_END_KEYS = ("eos", "eot", "eom", "fim_pad", "fim_rep", "fim_sep")


def end_ids(id_of: Callable[[str], int | None], named: Iterable[int]) -> tuple[int, ...]:
    """Returns the ids of the tokens that end an answer. named: the end tokens that the file names. Tokens whose text is in END_TOKENS are
    added to these."""
    by_text = {text: i for text in END_TOKENS if (i := id_of(text)) is not None}
    # In two cases a text of END_TOKENS does not end an answer: in the harmony and solar formats, <|end|> ends a message but not the turn,
    # and in Gemma 4, </s> is plain text.
    if "<|end|>" in by_text and (
        {"<|return|>", "<|call|>"} <= by_text.keys() or ({"<|call|>", "<|calls|>"} & by_text.keys() and "<|flush|>" in by_text)
    ):
        del by_text["<|end|>"]
    if "<|tool_response>" in by_text:
        by_text.pop("</s>", None)
    return tuple(sorted({*named, *by_text.values()}))


# ---- vocabularies --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Built:
    """A tokenizer, and the special tokens that its file names."""

    backend: Backend
    bos_id: int | None
    eos_ids: tuple[int, ...]
    special: dict[str, int] = field(default_factory=dict)  # role (bos, eos, unk, sep, pad, cls, mask) -> id


@dataclass(frozen=True)
class Vocabulary:
    """The tokens of a file, each with its score and type."""

    tokens: list[str]
    scores: npt.NDArray[np.float32] | None
    types: npt.NDArray[np.int32]

    @cached_property
    def ids(self) -> dict[str, int]:
        """A dict from token to id. Raises TokenizerError if two tokens have the same text."""
        ids = dict(zip(self.tokens, range(len(self.tokens)), strict=True))
        if len(ids) != len(self.tokens):
            first = next((i, ids[t]) for i, t in enumerate(self.tokens) if ids[t] != i)
            raise TokenizerError(f"the tokens {first[0]} and {first[1]} are both {self.tokens[first[0]]!r}. {FIX}")
        return ids

    def added(self, masks: Collection[str] = ()) -> list[AddedToken]:
        """Returns the tokens that are matched as a whole before the text is split into words. Control and unknown tokens are special, and
        user-defined tokens are not.

        masks: the texts of mask tokens that also match the space before them."""
        return [
            AddedToken(self.tokens[i], special=bool(self.types[i] != USER_DEFINED), normalized=False, lstrip=self.tokens[i] in masks)
            for i in np.flatnonzero(np.isin(self.types, (UNKNOWN, CONTROL, USER_DEFINED)))
        ]

    def of_type(self, *types: int) -> npt.NDArray[np.bool_]:
        """Returns a bool for each token: whether it has one of these types, which are numbers as in tokenizer.ggml.token_type."""
        return np.isin(self.types, types)


def _checked_vocabulary(tokens: Any, scores: Any, types: Any, where: str) -> Vocabulary:
    if not isinstance(tokens, list) or not tokens or set(map(type, tokens)) != {str}:
        raise TokenizerError(f"{where}: tokenizer.ggml.tokens is missing or no list of strings. {FIX}")
    if "" in tokens:
        tokens = [t or f"[EMPTY_{i}]" for i, t in enumerate(tokens)]
    count = len(tokens)
    kinds = np.full(count, NORMAL, np.int32) if types is None else _numbers(types, count, np.int32, where, "tokenizer.ggml.token_type")
    return Vocabulary(tokens, None if scores is None else _numbers(scores, count, np.float32, where, "tokenizer.ggml.scores"), kinds)


def _numbers(values: Any, count: int, dtype: type, where: str, name: str) -> Any:
    try:
        array = np.asarray(values)
    except ValueError:
        array = np.empty(0, object)
    if array.ndim != 1 or array.dtype.kind not in "iuf" or len(array) != count:
        raise TokenizerError(f"{where}: {name} must hold {count} numbers, one per token; found {array.dtype} {array.shape}. {FIX}")
    return array.astype(dtype)


# ---- SentencePiece BPE ---------------------------------------------------------------------------


def spm_merges(tokens: Sequence[str], scores: npt.NDArray[np.float32], mergeable: npt.NDArray[np.bool_]) -> npt.NDArray[np.int32]:
    """Returns the merges as pairs of token ids (m, 2), in order of priority. cpp/text/spm_merges.h explains why one merge per token is
    enough.

    This takes 0.15 s for Gemma's 262,144 tokens. tests/python/support/spm_reference.py has the same algorithm in Python, as an explanation
    and for tests."""
    return np.asarray(_core.spm_merges(tokens, scores, mergeable), np.int32).reshape(-1, 2)


@contextmanager
def _no_collection() -> Iterator[None]:
    """Pauses the garbage collector. Otherwise it would visit all objects of the process several times while 236,000 tuples are made."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def spm_bpe(vocabulary: Vocabulary, unk: str | None, add_space_prefix: bool) -> Backend:
    """Returns a tokenizer for SentencePiece BPE. The whole text is one word, spaces are written as U+2581, and an unknown character becomes
    byte tokens."""
    if vocabulary.scores is None:
        raise TokenizerError(f"tokenizer.ggml.scores is missing: they order the merges. {FIX}")
    if not np.isfinite(vocabulary.scores).all():
        raise TokenizerError(f"the score of token {int(np.argmin(np.isfinite(vocabulary.scores)))} is no finite number. {FIX}")
    ids = vocabulary.ids
    pairs = spm_merges(vocabulary.tokens, vocabulary.scores, vocabulary.of_type(NORMAL, UNUSED))
    text_of = vocabulary.tokens.__getitem__
    with _no_collection():
        merges = list(zip(map(text_of, pairs[:, 0].tolist()), map(text_of, pairs[:, 1].tolist()), strict=True))
        backend = Backend(models.BPE(ids, merges, unk_token=unk, fuse_unk=True, byte_fallback=True))
    spell = normalizers.Replace(" ", SPACE)
    backend.normalizer = normalizers.Sequence([normalizers.Prepend(SPACE), spell]) if add_space_prefix else spell
    steps = [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    backend.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)] if add_space_prefix else steps)
    return backend


# Maximum length of a token in bytes. The tokenizers package keeps a unigram vocabulary as a tree with one level per byte and frees the tree
# recursively, so that a token of a megabyte overflows the stack. The longest known tokens have a few hundred bytes.
LONGEST_TOKEN = 4096


def check_charsmap(charsmap: bytes, where: str) -> None:
    """Checks SentencePiece's table of normalisations, which consists of the size of a trie, the trie, and texts. The tokenizers package
    allocates memory of the stated size before it checks anything else, and ends the process if the allocation fails."""
    size = int.from_bytes(charsmap[:4], "little")
    if len(charsmap) < 8 or size % 4 != 0 or not 4 <= size <= len(charsmap) - 4:
        raise TokenizerError(f"{where}: precompiled_charsmap has {len(charsmap)} bytes, and its trie is to have {size} of them. {FIX}")


def unigram(
    vocabulary: Vocabulary, unk_id: int, charsmap: bytes, add_space_prefix: bool, remove_extra_spaces: bool, byte_fallback: bool
) -> Backend:
    """Returns a tokenizer for SentencePiece's unigram model, which chooses the most likely segmentation by the scores of the tokens."""
    if vocabulary.scores is None:
        raise TokenizerError(f"tokenizer.ggml.scores is missing: a unigram tokenizer is nothing without them. {FIX}")
    if (longest := max(map(len, vocabulary.tokens))) > LONGEST_TOKEN // 4:
        raise TokenizerError(f"the vocabulary has a token of {longest} characters; at most {LONGEST_TOKEN // 4} are read. {FIX}")
    scores = vocabulary.scores.astype(np.float64)
    scores[vocabulary.of_type(USER_DEFINED)] = 0.0
    backend = Backend(models.Unigram(list(zip(vocabulary.tokens, scores.tolist(), strict=True)), unk_id, byte_fallback))
    if charsmap:
        check_charsmap(charsmap, "the tokenizer's normaliser")
    steps: list[normalizers.Normalizer] = [normalizers.Precompiled(charsmap)] if charsmap else []
    if remove_extra_spaces:
        steps += [normalizers.Strip(), normalizers.Replace(Regex(" {2,}"), " ")]
    # The text is segmented as a whole, as in SentencePiece. The Metaspace pre-tokenizer is not used, because it adds no space before a text
    # that already begins with a space.
    steps += [normalizers.Prepend(SPACE)] if add_space_prefix else []
    backend.normalizer = normalizers.Sequence([*steps, normalizers.Replace(" ", SPACE)])
    backend.decoder = decoders.Metaspace(SPACE, "always" if add_space_prefix else "never")
    return backend


def word_piece(ids: dict[str, int], unk: str, lowercase: bool, strip_accents: bool | None, chinese_characters: bool = True) -> Backend:
    """Returns BERT's tokenizer. In its vocabulary, tokens that continue a word begin with ##."""
    backend = Backend(models.WordPiece(ids, unk_token=unk, continuing_subword_prefix="##", max_input_chars_per_word=100))
    backend.normalizer = normalizers.BertNormalizer(
        clean_text=True, handle_chinese_chars=chinese_characters, strip_accents=strip_accents, lowercase=lowercase
    )
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece("##", cleanup=True)
    return backend


def _merge_pairs(vocabulary: Vocabulary, merges: Any, ranked: bool, where: str) -> list[tuple[str, str]]:
    if merges is None and ranked:  # the merge whose result has the smallest id comes first
        order = -np.arange(len(vocabulary.tokens), dtype=np.float32)
        pairs = spm_merges(vocabulary.tokens, order, vocabulary.of_type(NORMAL)).tolist()
        return [(vocabulary.tokens[a], vocabulary.tokens[b]) for a, b in pairs]
    if not isinstance(merges, list) or not all(isinstance(m, str) for m in merges):
        raise TokenizerError(f"{where}: tokenizer.ggml.merges is missing or no list of strings. {FIX}")
    parted = ((merge, *merge[1:].partition(" ")) for merge in merges)  # a token may begin with a space, but contains no other space
    return [(merge[0] + left, right) for merge, left, space, right in parted if space]


def _bpe_model(ids: dict[str, int], pairs: list[tuple[str, str]], **options: Any) -> models.BPE:
    try:
        return models.BPE(ids, pairs, **options)
    # A merge of tokens that are not in the vocabulary can never be applied. If models.BPE refuses such merges, they are left out.
    except Exception:
        return models.BPE(ids, [(a, b) for a, b in pairs if a in ids and b in ids and a + b in ids], **options)


def raw_bpe(vocabulary: Vocabulary, merges: Any, split: Split, unk: str | None, lowercase: bool, where: str) -> Backend:
    """Returns a tokenizer for BPE over plain UTF-8 (Gemma 4). Spaces are written as U+2581, and a character without a token becomes byte
    tokens."""
    pairs = _merge_pairs(vocabulary, merges, split.ranked, where)
    options = {"unk_token": unk, "fuse_unk": True, "byte_fallback": bool(vocabulary.of_type(BYTE).any())}
    backend = Backend(_bpe_model(vocabulary.ids, pairs, ignore_merges=split.ignore_merges, **options))
    steps: list[normalizers.Normalizer] = [normalizers.Lowercase()] if lowercase else []
    if not split.drop_spaces:
        steps.append(normalizers.Replace(" ", SPACE))
    backend.normalizer = normalizers.Sequence(steps)
    how = "removed" if split.drop_spaces else "isolated"
    backend.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(p), how) for p in split.patterns])
    backend.decoder = decoders.Sequence([decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()])
    return backend


def byte_bpe(vocabulary: Vocabulary, merges: Any, split: Split, where: str, add_prefix_space: bool = False) -> Backend:
    """Returns a tokenizer for byte-level BPE (GPT-2). add_prefix_space: whether a space is added to a text that does not begin with one."""
    pairs = _merge_pairs(vocabulary, merges, split.ranked, where)
    backend = Backend(_bpe_model(vocabulary.ids, pairs, ignore_merges=split.ignore_merges))
    if split.nfc:
        backend.normalizer = normalizers.NFC()
    cuts: list[pre_tokenizers.PreTokenizer] = [pre_tokenizers.Split(Regex(p), "isolated") for p in split.patterns]
    if add_prefix_space:  # ByteLevel adds the space only if it also splits the text by GPT-2's pattern
        cuts = [pre_tokenizers.ByteLevel(add_prefix_space=True, use_regex=True)]
    else:
        cuts.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False))
    backend.pre_tokenizer = pre_tokenizers.Sequence(cuts)
    backend.decoder = decoders.ByteLevel()
    return backend


_CLIP = r"'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+"


def clip_bpe(vocabulary: Vocabulary, merges: Any, unk: str, where: str) -> Backend:
    """Returns CLIP's tokenizer: byte-level BPE over lowercase text without spaces. The last token of a word ends in </w>."""
    pairs = _merge_pairs(vocabulary, merges, False, where)
    backend = Backend(_bpe_model(vocabulary.ids, pairs, unk_token=unk, end_of_word_suffix="</w>", fuse_unk=False))
    backend.normalizer = normalizers.Sequence([normalizers.NFC(), normalizers.Replace(Regex(r"\s+"), " "), normalizers.Lowercase()])
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(_CLIP), "removed", invert=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    backend.decoder = decoders.ByteLevel()
    return backend


# ---- GGUF ----------------------------------------------------------------------------------------

# Role of a special token -> KEY in tokenizer.ggml.KEY_token_id. ("seperator" is the spelling in GGUF.)
_ROLE_KEYS = {
    "bos": "bos", "eos": "eos", "eot": "eot", "eom": "eom", "unk": "unknown", "sep": "seperator", "pad": "padding", "cls": "cls",
    "mask": "mask", "fim_pad": "fim_pad", "fim_rep": "fim_rep", "fim_sep": "fim_sep",
    "fim_pre": "fim_pre", "fim_suf": "fim_suf", "fim_mid": "fim_mid",
}  # fmt: skip
# Roles of tokens that mark a gap -> KEY in older files.
_OLD_KEYS = {"fim_pre": "prefix", "fim_suf": "suffix", "fim_mid": "middle"}
# Kind of tokenizer -> ids of the special tokens, for roles whose key in _ROLE_KEYS is missing in the file.
_DEFAULT_IDS: dict[str, dict[str, int]] = {
    "llama": {"bos": 1, "eos": 2, "unk": 0},
    "bert": {"bos": 101, "unk": 100, "sep": 102, "pad": 0, "mask": 103},
    "gpt2": {"bos": 11, "eos": 11},
    "gemma4": {},
    "t5": {"eos": 1, "unk": 2, "pad": 0},
}
# The first tokens of the vocabularies of XLM-R and similar models. These models are recognised by the tokens, because they have the same
# kind of tokenizer in GGUF as T5.
_XLMR_TOKENS = ["<s>", "<pad>", "</s>", "<unk>"]
_XLMR_IDS = {"bos": 0, "cls": 0, "pad": 1, "eos": 2, "sep": 2, "unk": 3}


def build(get: Callable[[str], Any], where: str) -> Built:
    """Returns the tokenizer of a GGUF file. get(key) returns a metadata value or None. Raises TokenizerError if the tokenizer is unknown or
    invalid."""
    kind = get("tokenizer.ggml.model")
    if kind not in _DEFAULT_IDS:
        found = "has no tokenizer (tokenizer.ggml.model is missing)" if kind is None else f"has a tokenizer of kind {kind!r}"
        raise TokenizerError(f"{where} {found}; known kinds: {', '.join(_DEFAULT_IDS)}. {FIX}")
    vocabulary = _checked_vocabulary(get("tokenizer.ggml.tokens"), get("tokenizer.ggml.scores"), get("tokenizer.ggml.token_type"), where)
    split = SPLITS["gemma4"] if kind == "gemma4" else _split(get("tokenizer.ggml.pre"), where) if kind == "gpt2" else Split(())
    defaults = _XLMR_IDS if kind == "t5" and _is_xlmr(vocabulary) else _DEFAULT_IDS[kind]
    if not split.bos:
        defaults = {role: i for role, i in defaults.items() if role != "bos"}
    special = _special_ids(get, defaults, len(vocabulary.tokens), where)
    ends = _ends(vocabulary, special)
    # Makes all end tokens control tokens, because in some files <|im_end|> and similar tokens have the type of plain text. The same holds
    # for tokens that mark a gap.
    gaps = form_of(vocabulary.ids.get, {role: vocabulary.tokens[special[role]] for role in ROLES if role in special})
    control = [*ends, *(vocabulary.ids[token] for token in (() if gaps is None else gaps.needed))]
    if (vocabulary.types[control] != CONTROL).any():
        types = vocabulary.types.copy()
        types[control] = CONTROL
        vocabulary = replace(vocabulary, types=types)

    def flag(name: str, default: bool) -> bool:
        value = get(f"tokenizer.ggml.{name}")
        return default if value is None else bool(value)

    def text(role: str) -> str | None:
        return vocabulary.tokens[special[role]] if role in special else None

    edges = _Edges()
    if kind == "llama":
        backend = spm_bpe(vocabulary, text("unk"), flag("add_space_prefix", True))
        edges = _Edges(bos=True, repeat_bos=True)
    elif kind in ("gpt2", "gemma4"):
        merges = get("tokenizer.ggml.merges")
        if split.raw:
            backend = raw_bpe(vocabulary, merges, split, text("unk"), flag("normalizer.lowercase", False), where)
        else:
            backend = byte_bpe(vocabulary, merges, split, where)
        edges = _Edges(bos=split.add_bos, sep=split.double_separator)
    elif kind == "bert":
        lowercase = flag("normalizer.lowercase", True)
        backend = word_piece(_hash_spelling(vocabulary), text("unk") or "[UNK]", lowercase, flag("normalizer.strip_accents", lowercase))
    elif "unk" not in special:
        raise TokenizerError(f"{where}: a unigram tokenizer needs an unknown token (tokenizer.ggml.unknown_token_id). {FIX}")
    else:
        charsmap = get("tokenizer.ggml.precompiled_charsmap")
        if charsmap is not None and (isinstance(charsmap, str) or np.asarray(charsmap).dtype.kind not in "iu"):
            raise TokenizerError(f"{where}: tokenizer.ggml.precompiled_charsmap is not a list of bytes. {FIX}")
        # Encoders with this kind of tokenizer have the tokenizer of XLM-R. It adds <s> and </s> around a text, also for old files without
        # keys for that. It always collapses spaces, whatever the key remove_extra_whitespaces says, because converters took the key's value
        # from a setting for decoding (clean_up_tokenization_spaces).
        encoder = _is_xlmr(vocabulary) or get("general.architecture") == "bert"
        backend = unigram(
            vocabulary,
            special["unk"],
            np.asarray([] if charsmap is None else charsmap).astype(np.uint8).tobytes(),
            flag("add_space_prefix", True),
            encoder or flag("remove_extra_whitespaces", False),
            bool(vocabulary.of_type(BYTE).any()),
        )
        edges = _Edges(bos=encoder, eos=True, sep=encoder)
    # `masks` has the mask token if this also matches the space before it, as in RoBERTa and similar models. Gemma's <mask> does not do so.
    masks = {"<mask>"} if kind in ("bert", "t5") or split.double_separator else set()
    if kind in ("gpt2", "t5") and "mask" in special:
        masks.add(vocabulary.tokens[special["mask"]])
    backend.add_tokens(_added(vocabulary, kind, masks))

    if kind == "bert":
        bert_template(backend, special.get("cls", special.get("bos")), special.get("sep"))
    else:
        edges = edges.as_said(flag, bos=split.force_bos)
        _edge_template(backend, edges, special, where)
    return Built(backend, special.get("bos"), ends, special)


def _is_xlmr(vocabulary: Vocabulary) -> bool:
    return vocabulary.tokens[: len(_XLMR_TOKENS)] == _XLMR_TOKENS


@dataclass(frozen=True)
class _Edges:
    """The special tokens that are added around a text, and between the texts A and B of a pair: A [eos] [sep] [bos] B."""

    bos: bool = False
    eos: bool = False
    sep: bool = False
    # If true, the second text of a pair always has a bos before it. If false, it has one only if no eos and no sep is between the texts.
    repeat_bos: bool = False

    def as_said(self, flag: Callable[[str, bool], bool], bos: bool) -> _Edges:
        """Returns a copy of these settings, changed by the keys of the file. bos: whether to add a bos token even if the file forbids
        it."""
        said = {name: flag(f"add_{name}_token", getattr(self, name)) for name in ("bos", "eos", "sep")}
        return replace(self, **{**said, "bos": bos or said["bos"]})


def _edge_template(backend: Backend, edges: _Edges, special: dict[str, int], where: str) -> None:
    special = {"sep": special["eos"], **special} if "eos" in special else special
    for role in ("bos", "eos", "sep"):
        if getattr(edges, role) and role not in special:
            raise TokenizerError(f"{where}: a {role} token is to be added (tokenizer.ggml.add_{role}_token) but none is named. {FIX}")
    first, last, sep = (special[role] if getattr(edges, role) else None for role in ("bos", "eos", "sep"))
    between = [last, sep, first if edges.repeat_bos or last is sep is None else None]
    set_template(backend, _present(first), _present(*between), _present(last))


def _present(*ids: int | None) -> list[int]:
    return [i for i in ids if i is not None]


def bert_template(backend: Backend, first: int | None, last: int | None) -> None:
    """Sets the template [CLS] A [SEP] B [SEP], with token type 1 for the second text. MPNet, whose first token is <s>, has two separators
    between the texts and only token type 0, as RoBERTa has."""
    if first is not None and last is not None and backend.id_to_token(first) == "<s>":
        set_template(backend, [first], [last, last], [last])
    else:
        set_template(backend, _present(first), _present(last), _present(last), second_type=1)


def _ends(vocabulary: Vocabulary, special: dict[str, int]) -> tuple[int, ...]:
    def id_of(text: str) -> int | None:
        i = vocabulary.ids.get(text)
        # In Gemma, </s> is also an HTML tag in the vocabulary, so </s> counts as an end token only if it is a control token.
        return None if i is None or (text == "</s>" and vocabulary.types[i] != CONTROL) else i

    return end_ids(id_of, [special[role] for role in _END_KEYS if role in special])


def _split(name: Any, where: str) -> Split:
    if name is None or name == "":
        log.warning("%s: tokenizer.ggml.pre is missing, so how words are split is a guess ('default'). %s", where, FIX)
        name = "default"
    if name not in SPLITS:
        raise TokenizerError(
            f"{where}: its tokenizer splits words as {name!r} (tokenizer.ggml.pre), which this version does not know. {FIX} "
            f"Known: {', '.join(sorted(SPLITS))}."
        )
    return SPLITS[name]


def _special_ids(get: Callable[[str], Any], defaults: dict[str, int], count: int, where: str) -> dict[str, int]:
    ids = {role: i for role, i in defaults.items() if i < count}
    for role, key in _ROLE_KEYS.items():
        name = f"tokenizer.ggml.{key}_token_id"
        value = get(name)
        if value is None and role in _OLD_KEYS:
            name = f"tokenizer.ggml.{_OLD_KEYS[role]}_token_id"
            value = get(name)
        if value is None:
            continue
        if isinstance(value, int | np.integer) and int(value) in (-1, 0xFFFFFFFF):  # some converters write these numbers for "none"
            ids.pop(role, None)
        elif isinstance(value, int | np.integer) and 0 <= int(value) < count:
            ids[role] = int(value)
        else:
            raise TokenizerError(f"{where}: {name} is {value!r}; the vocabulary has {count} tokens. {FIX}")
    return ids


def _hash_spelling(vocabulary: Vocabulary) -> dict[str, int]:
    """Returns a dict from token to id, with the tokens in WordPiece's spelling: a token that continues a word begins with ##, and a token
    that begins a word has no mark. In GGUF files, a token that begins a word begins with U+2581, and a token that continues a word has no
    mark."""
    tokens = []
    for token, kind in zip(vocabulary.tokens, vocabulary.types.tolist(), strict=True):
        if token.startswith(SPACE):
            tokens.append(token[1:])
        elif kind in (CONTROL, UNKNOWN, USER_DEFINED) or (token[0] == "[" and token[-1] == "]" and len(token) > 2):
            tokens.append(token)
        else:
            tokens.append("##" + token)
    return Vocabulary(tokens, None, vocabulary.types).ids


def _added(vocabulary: Vocabulary, kind: str, masks: Collection[str]) -> list[AddedToken]:
    if kind != "bert":
        return vocabulary.added(masks)
    # These bracketed names are special in every BERT vocabulary, even if their type in the file is normal.
    return [
        AddedToken(token, special=True, normalized=False, lstrip=token in masks)
        for token, t in zip(vocabulary.tokens, vocabulary.types.tolist(), strict=True)
        if t in (CONTROL, UNKNOWN) or token in ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
    ]


def set_template(backend: Backend, before: list[int], between: list[int], after: list[int], second_type: int = 0) -> None:
    """Makes the tokenizer add tokens before and after a text, and between the texts of a pair. second_type: the token type of the second
    text and of the tokens after it."""
    if not before and not after and not between:
        return
    named = {f"token{i}": i for i in [*before, *between, *after]}
    head, middle, tail = ([f"token{i}" for i in part] for part in (before, between, after))
    backend.post_processor = processors.TemplateProcessing(
        single=[*head, "$A", *tail],
        pair=[*head, "$A", *middle, f"$B:{second_type}", *(f"{name}:{second_type}" for name in tail)],
        special_tokens=[{"id": name, "ids": [i], "tokens": [backend.id_to_token(i)]} for name, i in named.items()],
    )
