"""Builds tokenizers from the metadata of a GGUF file or from a SentencePiece file, with the `tokenizers` package.

The names of keys, the kinds of tokenizers and the token types are those of the GGUF specification (ggml-org/ggml, docs/gguf.md). A split
pattern is the one in the tokenizer.json of the model that gave the split its name, as listed in ggml-org/llama.cpp, src/llama-vocab.cpp.
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

log = logging.getLogger("pumice")

SPACE = "\u2581"  # SentencePiece writes a space as LOWER ONE EIGHTH BLOCK
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
FIX = "Pass tokenizer= with the path of the model's tokenizer.json."

# ---- splitting before byte-level BPE --------------------------------------------------------------------------------------------------

_CONTRACTION = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_TAIL = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_CASED = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+%s"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*%s"
)
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
# Each digit is a word, and the texts between digits are split as GPT-2's. Two patterns, r"\p{N}" and then _GPT2, give the same words in 1.8
# times the time: 1.2 s for a mebibyte of digits.
_GPT2_DIGITS = r"\p{N}|'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?[^\s\p{L}\p{N}]+|\s+(?![^\s\p{N}])|\s+"
_LLAMA3 = _CONTRACTION + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|" + _TAIL
_QWEN2 = _CONTRACTION + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|" + _TAIL
_QWEN35 = _CONTRACTION + r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|" + _TAIL
_TEKKEN = _CASED % ("", "") + r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|" + _TAIL
_GPT4O = _CASED % (_CONTRACTION + "?", _CONTRACTION + "?") + r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|" + _TAIL
_SEED_CODER = _CONTRACTION + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1}| ?[^\s\p{L}\p{N}\r\n]+|" + _TAIL
_MINICPM5 = _CONTRACTION + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}+| ?[^\s\p{L}\p{N}]+[\r\n]*|" + _TAIL
# Without _CONTRACTION, because Turkish suffixes stay with their apostrophe.
_UFAKZEKA = r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|" + _TAIL
_EXAONE_MOE = (
    _CONTRACTION + r"|[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+"
)
_LINES = r"[^\n]+|\n+"
_BAILING = r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+"
_JAIS2_SPACES = "|".join(rf"\s{{{n}}}(?!\S)" for n in (512, 256, 128, 64, 32, 16, 8, 4)) + r"|\s{1,2}(?!\S)|\s{1}"
_JAIS2 = _CONTRACTION + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|" + _JAIS2_SPACES
_CJK = "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"
_WORDS_AND_SIGNS = r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+"""
_DEEPSEEK3_WORDS = _WORDS_AND_SIGNS + r"[\r\n]*|" + _TAIL
_SPARK_WORDS = _WORDS_AND_SIGNS + r"|[\r\n]|\s+(?!\S)|\s+"
# Matches digits in groups of three, counted from the right. If every group looked ahead to the end of the number, long numbers would take
# quadratic time. So only the first group looks ahead, if it has one or two digits.
_THREES = r"(?<!\p{N})\p{N}{1,2}(?=(?:\p{N}{3})++(?!\p{N}))|\p{N}{1,3}"
_ASCII_THREES = r"(?<!\d)\d{1,2}(?=(?:\d{3})++(?!\d))|\d{3}(?=\d)"
_AYA_THREES = r"(?<!\d)\d{1,3}(?=(?:\d{3})*+\b)|(?<=\d)\G\d{3}"  # splits only numbers that no letter follows
_ASIAN = (
    "[\u4e00-\u9fff\u3400-\u4dbf\uf900-\ufaff\u3040-\u309f\u30a0-\u30ff\uff65-\uff9f\u2f00-\u2fdf\u0e00-\u0e7f\u0e80-\u0eff"
    "\u1780-\u17ff\u1000-\u109f\uaa60-\uaa7f\ua9e0-\ua9ff\uac00-\ud7af\u1100-\u11ff]+"
)
_YOUTU_SCRIPTS = (
    "[\uac00-\ud7a3\u3131-\u318e]+|[\uff01\u2026\u201c\u201d\u2018\u2019\u2014\uff1a\uff1b\uff0c\u3001-\u303f\ufe30-\ufe4f]+|"
    "[\u3105-\u312f]+|" + _CJK
)
_YOUTU_WORDS = _CASED % (_CONTRACTION + "?", _CONTRACTION + "?") + r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|" + _TAIL
# Kimi: a run of Han characters is one word, and one rule covers the words of all other scripts.
_KIMI = r"[\p{Han}]+|" + _CASED.replace(r"\p{M}]", r"\p{M}&&[^\p{Han}]]") % (_CONTRACTION + "?", _CONTRACTION + "?")
_KIMI += r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|" + _TAIL
_CHAMELEON = ("<sentinel:[0-9]+>", "(IMGIMG)((A|B|C|D|E|F|G|H|I){1,4})Z", r"([\t\n]|    |  )", r"\p{N}", r"[\p{P}!-/:-@\[-`{-~]", _GPT2)
_DEEPSEEK_LETTERS = (
    (  # Unicode's letters with case, as deepseek-llm's tokenizer.json lists them
        r"\s?[A-Za-z\u00b5\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u01ba\u01bc-\u01bf\u01c4-\u0293\u0295-\u02af\u0370-\u0373\u0376\u0377\u037b-\u037d"
        r"\u037f\u0386\u0388-\u038a\u038c\u038e-\u03a1\u03a3-\u03f5\u03f7-\u0481\u048a-\u052f\u0531-\u0556\u10a0-\u10c5\u13a0-\u13f5\u13f8-\u13fd"
        r"\u1c90-\u1cba\u1cbd-\u1cbf\u1d00-\u1d2b\u1d6b-\u1d77\u1d79-\u1d9a\u1e00-\u1f15\u1f18-\u1f1d\u1f20-\u1f45\u1f48-\u1f4d\u1f50-\u1f57\u1f59"
        r"\u1f5b\u1f5d\u1f5f-\u1f7d\u1f80-\u1fb4\u1fb6-\u1fbc\u1fbe\u1fc2-\u1fc4\u1fc6-\u1fcc\u1fd0-\u1fd3\u1fd6-\u1fdb\u1fe0-\u1fec\u1ff2-\u1ff4"
        r"\u1ff6-\u1ffc\u2102\u2107\u210a-\u2113\u2115\u2119-\u211d\u2124\u2126\u2128\u212a-\u212d\u212f-\u2134\u2139\u213c-\u213f\u2145-\u2149"
        r"\u214e\u2183\u2184\u2c00-\u2c7b\u2c7e-\u2ce4\u2ceb-\u2cee\u2cf2\u2cf3\ua640-\ua66d\ua680-\ua69b\ua722-\ua76f\ua771-\ua787\ua78b-\ua78e"
        r"\uab70-\uabbf\ufb00-\ufb06\ufb13-\ufb17\uff21-\uff3a\uff41-\uff5a\U00010400-\U0001044f\U000104b0-\U000104d3\U000104d8-\U000104fb"
        r"\U00010c80-\U00010cb2\U00010cc0-\U00010cf2\U000118a0-\U000118df\U0001e900-\U0001e943]+"
    )
    .encode("ascii")
    .decode("raw_unicode_escape")
)
_DEEPSEEK_PUNCTUATION = "\\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+"
_DEEPSEEK_CJK = "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"
_BLOOM = " ?[^(\\s|.,!?\u2026\u3002\uff0c\u3001\u0964\u06d4\u060c)]+"


@dataclass(frozen=True)
class Split:
    """How byte-level BPE splits a text into words. Each pattern splits the pieces that the previous pattern made."""

    patterns: tuple[str, ...]
    ignore_merges: bool = False  # a word that is a token stays whole, even if no merges lead to it
    add_bos: bool = False  # the default if the file has no tokenizer.ggml.add_bos_token
    nfc: bool = False  # normalise to NFC, because the model's tokenizer.json does so and GGUF has no key for it
    bos: bool = True  # whether there is a bos token if the file names none
    double_separator: bool = False  # a separator follows the end token between the texts of a pair, unless add_sep_token is false
    ranked: bool = False  # a tiktoken vocabulary, whose ids are merge ranks; the ranks are used if a file has no merges
    raw: bool = False  # tokens are plain UTF-8 with U+2581 for a space and <0x..> for bytes, not GPT-2's alphabet
    drop_spaces: bool = False  # characters between words are dropped
    force_bos: bool = False  # add a bos token even if the file says no, because the model needs it


_FAMILIES: tuple[tuple[str, Split], ...] = (
    ("default", Split((r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", r"[0-9][0-9][0-9]"))),
    (
        "gpt-2 phi-2 jina-es jina-de jina-v2-es jina-v2-de gigachat a.x-4.0 mellum modern-bert mpt "
        "olmo jais trillion granite-docling exaone4",
        Split((_GPT2,)),
    ),
    ("roberta-bpe jina-v1-en jina-v2-code", Split((_GPT2,), double_separator=True)),
    ("starcoder refact command-r smollm codeshell exaone minerva-7b mellum2", Split((_GPT2_DIGITS,))),
    (
        "llama3 llama-v3 llama-bpe falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano",
        Split((_LLAMA3,), ignore_merges=True, add_bos=True),
    ),
    ("dbrx smaug-bpe", Split((_LLAMA3,))),
    ("glm4 glm5", Split((_LLAMA3,), ignore_merges=True, bos=False)),
    ("chatglm-bpe", Split((_LLAMA3,), bos=False)),
    ("minicpm5", Split((r"\p{N}{1,3}", _MINICPM5), ignore_merges=True)),
    ("qwen2 deepseek-r1-qwen", Split((_QWEN2,), nfc=True)),
    ("kormo f2llmv2 megrez stablelm2 hunyuan solar-open grok-2", Split((_QWEN2,))),
    ("laguna", Split((_LINES, _QWEN2))),
    ("ufakzeka", Split((_UFAKZEKA,))),
    ("qwen35", Split((_QWEN35,), nfc=True)),
    ("tekken", Split((_TEKKEN,), ignore_merges=True, add_bos=True)),
    ("gpt-4o llama4 kanana2 talkie minimax-m2", Split((_GPT4O,))),
    ("granite-embed-multi-97m", Split((_GPT4O,), ignore_merges=True)),
    ("deepseek-llm", Split(("[\r\n]", _DEEPSEEK_LETTERS, _DEEPSEEK_PUNCTUATION, r"\s+$", _DEEPSEEK_CJK, r"\p{N}+"))),
    ("deepseek-coder", Split(("[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _DEEPSEEK_CJK, r"\p{N}"))),
    ("deepseek-v3 hunyuan-dense joyai-llm hy_v4", Split((r"\p{N}{1,3}", _CJK, _DEEPSEEK3_WORDS))),
    ("spark2_5", Split((r"\p{N}{1,3}", _CJK, _SPARK_WORDS, r"\p{N}"))),
    ("afmoe", Split((_THREES, _ASIAN, _DEEPSEEK3_WORDS))),
    ("superbpe", Split((r"\p{N}+", _ASCII_THREES))),
    ("kimi-k2", Split((_KIMI,), ignore_merges=True, ranked=True)),
    ("youtu", Split((_YOUTU_SCRIPTS, _YOUTU_WORDS), ignore_merges=True)),
    ("exaone-moe", Split((_EXAONE_MOE,))),
    ("chameleon", Split(_CHAMELEON, add_bos=True)),
    ("falcon", Split((r"[\p{P}\$\+<=>\^~\|`]+", _GPT2, r"[0-9][0-9][0-9]"))),
    ("poro-chat bloom gpt3-finnish", Split((_BLOOM,))),
    ("viking", Split((_BLOOM, r"\p{N}"))),
    ("tiny_aya cohere2moe", Split((_AYA_THREES, _GPT4O))),
    ("bailingmoe bailingmoe2 llada-moe", Split((_BAILING,))),
    ("seed-coder", Split((_SEED_CODER,))),
    ("jais-2", Split((_JAIS2,))),
    ("gemma4 granite-embed-multi-311m", Split((_LINES,), raw=True, force_bos=True)),
    ("sarvam-moe", Split((_LINES,), raw=True)),
    ("whitespace", Split((r"\s+",), raw=True, drop_spaces=True)),
)
# Maps tokenizer.ggml.pre to a Split. To add another name for a known split, add a word to its row above. To add a new split, add a row.
SPLITS: dict[str, Split] = {name: split for names, split in _FAMILIES for name in names.split()}

# ---- end of generation ---------------------------------------------------------------------------

# Texts of the tokens that end an answer. llama.cpp also finds such tokens by their text, because many files name only one of several end
# tokens.
END_TOKENS = (
    "<|eot_id|>", "<|im_end|>", "<|end|>", "<|return|>", "<|call|>", "<|flush|>", "<|calls|>", "<end_of_turn>", "<|endoftext|>", "</s>",
    "<|eom_id|>", "<EOT>", "_<EOT>", "[EOT]", "[EOS]", "<|end_of_text|>", "<end_of_utterance>", "<eos>", "<turn|>", "<|tool_response>",
    "<\uff5cend\u2581of\u2581sentence\uff5c>", "[e~[",
    # padding tokens, and separators of repositories and files in code models
    "<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]", "<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>",
    "<|file_sep|>",
)  # fmt: skip
_END_KEYS = ("eos", "eot", "eom", "fim_pad", "fim_rep", "fim_sep")


def end_ids(id_of: Callable[[str], int | None], named: Iterable[int]) -> tuple[int, ...]:
    """Returns the ids of the tokens that end an answer. named: the end tokens that the file names. Tokens with a text in END_TOKENS are
    added to them."""
    by_text = {text: i for text in END_TOKENS if (i := id_of(text)) is not None}
    # In the harmony and solar formats, <|end|> ends a message but not the turn. Gemma 4 has </s> as plain text.
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
        """Returns the tokens that are matched as a whole in a text, before the text is split into words. Control and unknown tokens are
        special, and user-defined tokens are not.

        masks: the texts of mask tokens that also match the space before them."""
        return [
            AddedToken(self.tokens[i], special=bool(self.types[i] != USER_DEFINED), normalized=False, lstrip=self.tokens[i] in masks)
            for i in np.flatnonzero(np.isin(self.types, (UNKNOWN, CONTROL, USER_DEFINED)))
        ]

    def of_type(self, *types: int) -> npt.NDArray[np.bool_]:
        """Returns a bool for each token: whether it has one of these types. The types are the numbers in tokenizer.ggml.token_type."""
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
    """Returns the merges as pairs of token ids (m, 2), in order of priority. cpp/text/spm_merges.h says why one merge per token is enough.

    This takes 0.15 s for Gemma's 262,144 tokens. tests/python/support/spm_reference.py has the same algorithm in Python, for reading and
    for tests."""
    return np.asarray(_core.spm_merges(tokens, scores, mergeable), np.int32).reshape(-1, 2)


@contextmanager
def _no_collection() -> Iterator[None]:
    """Pauses the garbage collector. Otherwise it would walk all objects of the process several times while 236,000 tuples are made."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def spm_bpe(vocabulary: Vocabulary, unk: str | None, add_space_prefix: bool) -> Backend:
    """Returns a tokenizer for SentencePiece BPE. The whole text is one word, a space is written as U+2581, and an unknown character becomes
    bytes."""
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


# Maximum length of a token in bytes. The tokenizers package keeps a unigram vocabulary as a tree with one level per byte and frees it
# recursively, so that a token of a megabyte overflows the stack. The longest known tokens have a few hundred bytes.
LONGEST_TOKEN = 4096


def check_charsmap(charsmap: bytes, where: str) -> None:
    """Checks SentencePiece's table of normalisations, which consists of the size of a trie, the trie, and texts. The tokenizers package
    allocates memory of the stated size before it checks anything else, and if the allocation fails, the process ends."""
    size = int.from_bytes(charsmap[:4], "little")
    if len(charsmap) < 8 or size % 4 != 0 or not 4 <= size <= len(charsmap) - 4:
        raise TokenizerError(f"{where}: precompiled_charsmap has {len(charsmap)} bytes, and its trie is to have {size} of them. {FIX}")


def unigram(
    vocabulary: Vocabulary, unk_id: int, charsmap: bytes, add_space_prefix: bool, remove_extra_spaces: bool, byte_fallback: bool
) -> Backend:
    """Returns a tokenizer for SentencePiece's unigram model, which finds the most likely segmentation according to the scores."""
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
    # The text is segmented as a whole, as SentencePiece does. The Metaspace pre-tokenizer is not used, because it adds no space before a
    # text that already begins with one.
    steps += [normalizers.Prepend(SPACE)] if add_space_prefix else []
    backend.normalizer = normalizers.Sequence([*steps, normalizers.Replace(" ", SPACE)])
    backend.decoder = decoders.Metaspace(SPACE, "always" if add_space_prefix else "never")
    return backend


def word_piece(ids: dict[str, int], unk: str, lowercase: bool, strip_accents: bool | None, chinese_characters: bool = True) -> Backend:
    """Returns BERT's tokenizer. In its vocabulary, pieces that continue a word begin with ##."""
    backend = Backend(models.WordPiece(ids, unk_token=unk, continuing_subword_prefix="##", max_input_chars_per_word=100))
    backend.normalizer = normalizers.BertNormalizer(
        clean_text=True, handle_chinese_chars=chinese_characters, strip_accents=strip_accents, lowercase=lowercase
    )
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece("##", cleanup=True)
    return backend


def _merge_pairs(vocabulary: Vocabulary, merges: Any, ranked: bool, where: str) -> list[tuple[str, str]]:
    if merges is None and ranked:  # the merge that makes the token with the smallest id comes first
        order = -np.arange(len(vocabulary.tokens), dtype=np.float32)
        pairs = spm_merges(vocabulary.tokens, order, vocabulary.of_type(NORMAL)).tolist()
        return [(vocabulary.tokens[a], vocabulary.tokens[b]) for a, b in pairs]
    if not isinstance(merges, list) or not all(isinstance(m, str) for m in merges):
        raise TokenizerError(f"{where}: tokenizer.ggml.merges is missing or no list of strings. {FIX}")
    parted = ((merge, *merge[1:].partition(" ")) for merge in merges)  # a token may begin with a space, but has no other space
    return [(merge[0] + left, right) for merge, left, space, right in parted if space]


def _bpe_model(ids: dict[str, int], pairs: list[tuple[str, str]], **options: Any) -> models.BPE:
    try:
        return models.BPE(ids, pairs, **options)
    # A merge of tokens that are not in the vocabulary can never be applied, so such merges are left out.
    except Exception:
        return models.BPE(ids, [(a, b) for a, b in pairs if a in ids and b in ids and a + b in ids], **options)


def raw_bpe(vocabulary: Vocabulary, merges: Any, split: Split, unk: str | None, lowercase: bool, where: str) -> Backend:
    """Returns a tokenizer for BPE over plain UTF-8 (Gemma 4). A space is written as U+2581, and a character without a token becomes
    bytes."""
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
    """Returns a tokenizer for byte-level BPE (GPT-2). add_prefix_space: whether a text that does not begin with a space gets one."""
    pairs = _merge_pairs(vocabulary, merges, split.ranked, where)
    backend = Backend(_bpe_model(vocabulary.ids, pairs, ignore_merges=split.ignore_merges))
    if split.nfc:
        backend.normalizer = normalizers.NFC()
    cuts: list[pre_tokenizers.PreTokenizer] = [pre_tokenizers.Split(Regex(p), "isolated") for p in split.patterns]
    if add_prefix_space:  # ByteLevel adds the space only if it also does GPT-2's own splits
        cuts = [pre_tokenizers.ByteLevel(add_prefix_space=True, use_regex=True)]
    else:
        cuts.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False))
    backend.pre_tokenizer = pre_tokenizers.Sequence(cuts)
    backend.decoder = decoders.ByteLevel()
    return backend


_CLIP = r"'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+"


def clip_bpe(vocabulary: Vocabulary, merges: Any, unk: str, where: str) -> Backend:
    """Returns CLIP's tokenizer: byte-level BPE over lowercase text without spaces, where the last piece of a word ends in </w>."""
    pairs = _merge_pairs(vocabulary, merges, False, where)
    backend = Backend(_bpe_model(vocabulary.ids, pairs, unk_token=unk, end_of_word_suffix="</w>", fuse_unk=False))
    backend.normalizer = normalizers.Sequence([normalizers.NFC(), normalizers.Replace(Regex(r"\s+"), " "), normalizers.Lowercase()])
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(_CLIP), "removed", invert=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    backend.decoder = decoders.ByteLevel()
    return backend


# ---- GGUF ----------------------------------------------------------------------------------------

# Maps the role of a special token to the key tokenizer.ggml.<key>_token_id. ("seperator" is spelled like this in GGUF.)
_ROLE_KEYS = {
    "bos": "bos", "eos": "eos", "eot": "eot", "eom": "eom", "unk": "unknown", "sep": "seperator", "pad": "padding", "cls": "cls",
    "mask": "mask", "fim_pad": "fim_pad", "fim_rep": "fim_rep", "fim_sep": "fim_sep",
}  # fmt: skip
# For each kind of tokenizer, the ids of the special tokens in files that do not have these keys.
_DEFAULT_IDS: dict[str, dict[str, int]] = {
    "llama": {"bos": 1, "eos": 2, "unk": 0},
    "bert": {"bos": 101, "unk": 100, "sep": 102, "pad": 0, "mask": 103},
    "gpt2": {"bos": 11, "eos": 11},
    "gemma4": {},
    "t5": {"eos": 1, "unk": 2, "pad": 0},
}
# XLM-R and similar models also have the kind t5. Their vocabularies begin with these tokens.
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
    # Some files give <|im_end|> and similar tokens the type of plain text.
    if (vocabulary.types[list(ends)] != CONTROL).any():
        types = vocabulary.types.copy()
        types[list(ends)] = CONTROL
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
        # Encoders with this kind of tokenizer use XLM-R's. It puts <s> and </s> around a text, even if an old file does not say so. It
        # always collapses spaces. The key remove_extra_whitespaces is ignored, because converters took its value from
        # clean_up_tokenization_spaces, which is about decoding.
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
    # The mask token of RoBERTa and similar models also matches the space before it. Gemma's token of the same name does not.
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
    """Which special tokens are added around a text and between the texts A and B of a pair: A [eos] [sep] [bos] B."""

    bos: bool = False
    eos: bool = False
    sep: bool = False
    # If true, B always begins with bos. If false, bos is between the texts only if neither eos nor sep is.
    repeat_bos: bool = False

    def as_said(self, flag: Callable[[str, bool], bool], bos: bool) -> _Edges:
        """Returns a copy of these settings, changed by the keys of the file. bos: whether to add a bos token even if the file says no."""
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
    between the texts and only token type 0, like RoBERTa."""
    if first is not None and last is not None and backend.id_to_token(first) == "<s>":
        set_template(backend, [first], [last, last], [last])
    else:
        set_template(backend, _present(first), _present(last), _present(last), second_type=1)


def _ends(vocabulary: Vocabulary, special: dict[str, int]) -> tuple[int, ...]:
    def id_of(text: str) -> int | None:
        i = vocabulary.ids.get(text)
        # Gemma has the HTML tag </s> as a word, so </s> ends a text only if it is a control token.
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
        if value is None:
            continue
        if isinstance(value, int | np.integer) and int(value) in (-1, 0xFFFFFFFF):  # some converters write these for "none"
            ids.pop(role, None)
        elif isinstance(value, int | np.integer) and 0 <= int(value) < count:
            ids[role] = int(value)
        else:
            raise TokenizerError(f"{where}: {name} is {value!r}; the vocabulary has {count} tokens. {FIX}")
    return ids


def _hash_spelling(vocabulary: Vocabulary) -> dict[str, int]:
    """Returns a dict from token to id, with the tokens in WordPiece's spelling. In this spelling, a token inside a word begins with ##, and
    a token at the start of a word has no mark. In GGUF files, a token at the start of a word begins with U+2581, and a token inside a word
    has no mark."""
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
    # These bracketed names are special in every BERT vocabulary, even if a file gives them the normal type.
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
