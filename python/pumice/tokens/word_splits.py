"""How byte-level BPE splits texts into words: one row for each split, with the names that tokenizer.ggml.pre may have for it.

The patterns come from the tokenizer.json of the model that gave the split its name, as listed in ggml-org/llama.cpp, src/llama-vocab.cpp.
"""

from __future__ import annotations

from dataclasses import dataclass

_CONTRACTION = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_TAIL = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_CASED = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+%s"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*%s"
)
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
# Each digit is a word, and GPT-2's pattern splits the text between digits. One pattern does both. The two patterns r"\p{N}" and _GPT2, one
# after the other, would take 1.8 times as long (1.2 s for a mebibyte of digits).
_GPT2_DIGITS = r"\p{N}|'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?[^\s\p{L}\p{N}]+|\s+(?![^\s\p{N}])|\s+"
_LLAMA3 = _CONTRACTION + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|" + _TAIL
_QWEN2 = _CONTRACTION + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|" + _TAIL
_QWEN35 = _CONTRACTION + r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|" + _TAIL
_TEKKEN = _CASED % ("", "") + r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|" + _TAIL
_GPT4O = _CASED % (_CONTRACTION + "?", _CONTRACTION + "?") + r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|" + _TAIL
_SEED_CODER = _CONTRACTION + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1}| ?[^\s\p{L}\p{N}\r\n]+|" + _TAIL
_MINICPM5 = _CONTRACTION + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}+| ?[^\s\p{L}\p{N}]+[\r\n]*|" + _TAIL
# The pattern has no _CONTRACTION, because Turkish suffixes stay in one word with their apostrophe.
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
# Matches groups of three digits, counted from the right. If every group looked ahead to the end of the number, long numbers would take
# quadratic time. So only a first group of one or two digits looks ahead.
_THREES = r"(?<!\p{N})\p{N}{1,2}(?=(?:\p{N}{3})++(?!\p{N}))|\p{N}{1,3}"
_ASCII_THREES = r"(?<!\d)\d{1,2}(?=(?:\d{3})++(?!\d))|\d{3}(?=\d)"
_AYA_THREES = r"(?<!\d)\d{1,3}(?=(?:\d{3})*+\b)|(?<=\d)\G\d{3}"  # splits only numbers that are not followed by a letter
_ASIAN = (
    "[\u4e00-\u9fff\u3400-\u4dbf\uf900-\ufaff\u3040-\u309f\u30a0-\u30ff\uff65-\uff9f\u2f00-\u2fdf\u0e00-\u0e7f\u0e80-\u0eff"
    "\u1780-\u17ff\u1000-\u109f\uaa60-\uaa7f\ua9e0-\ua9ff\uac00-\ud7af\u1100-\u11ff]+"
)
_YOUTU_SCRIPTS = (
    "[\uac00-\ud7a3\u3131-\u318e]+|[\uff01\u2026\u201c\u201d\u2018\u2019\u2014\uff1a\uff1b\uff0c\u3001-\u303f\ufe30-\ufe4f]+|"
    "[\u3105-\u312f]+|" + _CJK
)
_YOUTU_WORDS = _CASED % (_CONTRACTION + "?", _CONTRACTION + "?") + r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|" + _TAIL
# The pattern of Kimi: a run of Han characters is one word, and one rule covers the words of all other scripts.
_KIMI = r"[\p{Han}]+|" + _CASED.replace(r"\p{M}]", r"\p{M}&&[^\p{Han}]]") % (_CONTRACTION + "?", _CONTRACTION + "?")
_KIMI += r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|" + _TAIL
_CHAMELEON = ("<sentinel:[0-9]+>", "(IMGIMG)((A|B|C|D|E|F|G|H|I){1,4})Z", r"([\t\n]|    |  )", r"\p{N}", r"[\p{P}!-/:-@\[-`{-~]", _GPT2)
_DEEPSEEK_LETTERS = (
    (  # Unicode's letters that have case, as deepseek-llm's tokenizer.json lists them
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
    ignore_merges: bool = False  # whether a word that is a token stays whole, even if no merges produce it
    add_bos: bool = False  # whether texts begin with a bos token if the file has no tokenizer.ggml.add_bos_token
    nfc: bool = False  # whether texts are normalised to NFC, as in the model's tokenizer.json; GGUF has no key for it
    bos: bool = True  # whether the tokenizer has a bos token if the file names none
    double_separator: bool = False  # whether a separator follows the end token between the texts of a pair, unless add_sep_token is false
    ranked: bool = False  # whether this is a tiktoken vocabulary, whose ids are merge ranks; the ranks are used if a file has no merges
    raw: bool = False  # whether tokens are plain UTF-8 with U+2581 for a space and <0x..> for bytes, instead of GPT-2's alphabet
    drop_spaces: bool = False  # whether characters between words are dropped
    force_bos: bool = False  # whether a bos token is added even if the file forbids it, because the model needs it


_ROWS: tuple[tuple[str, Split], ...] = (
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
# Maps tokenizer.ggml.pre to a Split. To add a name for a known split, add a word to its row above. To add a new split, add a row.
SPLITS: dict[str, Split] = {name: split for names, split in _ROWS for name in names.split()}
