"""Makes the metadata keys of a tokenizer from a folder's tokenizer. The keys are accepted only if the tokenizer that pumice makes from them
converts texts of all kinds to the ids of the folder's tokenizer."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import numpy as np

from ..errors import TokenizerError
from ..tokens.gguf_tokenizer import BYTE, CONTROL, NORMAL, SPACE, UNKNOWN, UNUSED, USER_DEFINED, Built, build
from ..tokens.tokenizers import Tokenizer
from ..tokens.word_splits import SPLITS

Keys = dict[str, Any]

# Names of splits (tokenizer.ggml.pre) that are tried first, because most programs know them.
_FIRST = (
    "llama-bpe", "qwen2", "gpt-2", "smollm", "tekken", "gpt-4o", "deepseek-v3", "qwen35", "falcon3", "llama4", "starcoder", "command-r",
    "stablelm2", "dbrx", "glm4", "olmo", "kimi-k2", "superbpe", "default",
)  # fmt: skip
# Texts that known tokenizers split and normalise differently.
PROBES = (
    "Hello world", " leading", "trailing ", "  two  spaces   three", 'tab\tnew\nline\r\nreturn\n\n\nmore',
    "don't WON'T I'm you'll we've he'd", "1 12 123 1234 12345 1234567.89", "3.14e-10 0x1F 1,000,000",
    'caf\xe9 cafe\u0301 na\xefve \xc5ngstr\xf6m', '\u4eca\u5929\u65e9\u4e0a\u6cb3\u8fb9',
    '\u65e5\u672c\u8a9e\u306e\u30c6\u30ad\u30b9\u30c8\u3067\u3059\u3002',
    '\u0421\u0435\u0433\u043e\u0434\u043d\u044f \u043f\u043e\u0435\u0437\u0434',
    '\u0627\u0644\u0642\u0645\u0631 \u0628\u062f\u0631\u064b\u0627', '\u0906\u091c \u0938\u0941\u092c\u0939',
    "snake_case camelCase HTTPServer iPhone15", 'a.b,c;d:e!f?g (h) [i] {j} <k> "l" \'m\' `n`', 'def f(x):\n    return x ** 2  # y\n',
    '\U0001f642\U0001f643 \U0001f468\u200d\U0001f469', '$100 \u20ac50 50% #tag @name a/b\\c a|b a&b a^b a~b a=b a+b',
    '\xbd \xb2 \u2168 \u0663\u0664', '\u201cquoted\u201d \u2018so\u2019 \u2013 \u2014 \u2026',
    '\u0e27\u0e31\u0e19\u0e19\u0e35\u0e49\u0e1d\u0e19\u0e15\u0e01', '\ud55c\uad6d\uc5b4 \ubb38\uc7a5',
    "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx                 y", '\u2581 \xa0 \u3000', "", " ", '\n', '\ufeffBOM \u200b',
    'A\u030a \u212b \ufb01 \uff26\uff55\uff4c\uff4c', 'word\nword \n word', "3rd 1st v1.2.3-rc4 192.168.0.1", "THE END. The End's",
)  # fmt: skip


def tokenizer_keys(tokenizer: Tokenizer, rows: int, where: str, template: str | None, first: str = "") -> Keys:
    """Returns the keys tokenizer.* of a tokenizer, and its chat template. rows: number of rows of the model's embedding.  first: the kind
    of tokenizer that is tried first.

    Raises TokenizerError if no kind of tokenizer that GGUF has produces the same ids."""
    spec = json.loads(tokenizer.backend.to_str())
    reasons: list[str] = []
    last = max(tokenizer.backend.get_vocab(with_added_tokens=True).values(), default=-1)
    if last >= rows:
        raise TokenizerError(f"{where}: the tokenizer has a token {last}, and the model's embedding {rows} rows")
    for keys in sorted(_candidates(spec, tokenizer, rows), key=lambda keys: keys["tokenizer.ggml.model"] != first):
        try:
            found = build(keys.get, where)
        except TokenizerError as error:
            reasons.append(str(error))
            continue
        differs = _difference(tokenizer, found)
        if differs is None:
            return keys | _more_ends(tokenizer, found) | ({"tokenizer.chat_template": template} if template else {})
        reasons.append(f"{keys.get('tokenizer.ggml.pre', keys['tokenizer.ggml.model'])}: {differs}")
    kind = spec["model"].get("type")
    raise TokenizerError(
        f"{where}: no tokenizer that GGUF has gives the ids of this one ({kind}). The nearest: {reasons[0] if reasons else 'none'}. "
        f'tokenizer="none" writes the file without a tokenizer; load() then needs tokenizer= with this folder.'
    )


def _difference(tokenizer: Tokenizer, found: Built) -> str | None:
    """Returns a description of the first difference between two tokenizers, or None if all probes have the same ids."""
    special = " ".join(token.content for token in tokenizer.added.values())[:2000]
    for text in (*PROBES, f"a {special} b"):
        for add_special in (True, False):
            wanted = tokenizer.backend.encode(text, add_special_tokens=add_special).ids
            given = found.backend.encode(text, add_special_tokens=add_special).ids
            if wanted != given:
                return f"{text[:40]!r} becomes {given[:12]} and not {wanted[:12]}"
    return None


def _tokens(tokenizer: Tokenizer, rows: int) -> tuple[list[str], np.ndarray[Any, Any]]:
    """Returns the text and the type of each token. An id without a token gets a token of the type UNUSED, because llama.cpp needs a token
    for each row of the embedding."""
    tokens, types = [f"[PAD{i}]" for i in range(rows)], np.full(rows, UNUSED, np.int32)
    for token, i in tokenizer.backend.get_vocab(with_added_tokens=True).items():
        tokens[i], types[i] = token, NORMAL
    for i, added in tokenizer.added.items():
        tokens[i], types[i] = added.content, CONTROL if added.special else USER_DEFINED
    return tokens, types


def _special_keys(tokenizer: Tokenizer) -> Keys:
    """Returns the keys for the ids of special tokens, and the keys that say whether special tokens are added before and after a text. If
    the folder names no bos or eos token, those that its tokenizer adds around a text are used."""
    names = {"bos": "bos", "eos": "eos", "unk": "unknown", "sep": "seperator", "pad": "padding", "cls": "cls", "mask": "mask"}
    special, around = dict(tokenizer.special), tokenizer.backend.encode("").ids
    if tokenizer.bos_id is not None:
        special["bos"] = tokenizer.bos_id
    if len(around) > 1:
        special.setdefault("bos", around[0])
    if around and around[-1] != special.get("bos") and "sep" not in special:
        special.setdefault("eos", around[-1])
    before = bool(around) and around[0] == special.get("bos")
    after = len(around) > before and around[-1] in (special.get("eos"), special.get("sep"))
    edges = {"tokenizer.ggml.add_bos_token": before, "tokenizer.ggml.add_eos_token": after}
    return {f"tokenizer.ggml.{names[role]}_token_id": i for role, i in special.items() if role in names} | edges


def _more_ends(tokenizer: Tokenizer, found: Built) -> Keys:
    """Returns keys for the end tokens that the file would lack otherwise. GGUF has two such keys."""
    missing = sorted(set(tokenizer.eos_ids) - set(found.eos_ids))
    return dict(zip(("tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id"), missing, strict=False))


def _candidates(spec: dict[str, Any], tokenizer: Tokenizer, rows: int) -> Iterator[Keys]:
    tokens, types = _tokens(tokenizer, rows)
    model = spec["model"]
    common = _special_keys(tokenizer)
    kind = model.get("type")
    if kind is None:
        kind = "BPE" if "merges" in model else "Unigram" if isinstance(model.get("vocab"), list) else "WordPiece"
    if kind == "WordPiece":
        yield _word_piece(spec, tokens, types, common)
    elif kind == "Unigram":
        yield from _unigram(spec, tokens, types, common)
    elif kind == "BPE":
        yield from _bpe(spec, tokens, types, common)


def _keys(model: str, tokens: list[str], types: np.ndarray[Any, Any], more: Keys) -> Keys:
    return {"tokenizer.ggml.model": model, "tokenizer.ggml.tokens": tokens, "tokenizer.ggml.token_type": types} | more


def _word_piece(spec: dict[str, Any], tokens: list[str], types: np.ndarray[Any, Any], common: Keys) -> Keys:
    """Converts the spelling of WordPiece tokens: GGUF marks the beginning of a word with U+2581, and does not mark its later tokens with
    ##."""
    marked = [
        token if kind in (CONTROL, UNUSED) or (token[:1] == "[" and token[-1:] == "]" and len(token) > 2)
        else token[2:] if token.startswith("##") and len(token) > 2
        else SPACE + token
        for token, kind in zip(tokens, types.tolist(), strict=True)
    ]  # fmt: skip
    normalizer = spec.get("normalizer") or {}
    steps = normalizer.get("normalizers", [normalizer])
    bert: dict[str, Any] = next((step for step in steps if step.get("type") == "BertNormalizer"), {})
    lowercase = bool(bert.get("lowercase")) or any(step.get("type") == "Lowercase" for step in steps)
    strip = bert.get("strip_accents")
    said = {"tokenizer.ggml.normalizer.lowercase": lowercase}
    if strip is not None:
        said["tokenizer.ggml.normalizer.strip_accents"] = bool(strip)
    return _keys("bert", marked, types, {"tokenizer.ggml.pre": "default"} | common | said)


def _scores(spec: dict[str, Any], tokens: list[str]) -> np.ndarray[Any, Any]:
    scores: np.ndarray[Any, Any] = np.full(len(tokens), -10000, np.float32)
    pieces = spec["model"]["vocab"]
    scores[: len(pieces)] = [score for _, score in pieces]
    return scores


def _byte_types(tokens: list[str], types: np.ndarray[Any, Any], unk: str | None) -> np.ndarray[Any, Any]:
    changed: np.ndarray[Any, Any] = types.copy()
    for i, token in enumerate(tokens):
        if len(token) == 6 and token.startswith("<0x") and token.endswith(">"):
            changed[i] = BYTE
        elif token == unk:
            changed[i] = UNKNOWN
    return changed


def _unigram(spec: dict[str, Any], tokens: list[str], types: np.ndarray[Any, Any], common: Keys) -> Iterator[Keys]:
    unk = spec["model"].get("unk_id")
    kinds = _byte_types(tokens, types, tokens[unk] if isinstance(unk, int) else None)
    steps = (spec.get("normalizer") or {}).get("normalizers", [spec.get("normalizer") or {}])
    charsmap = next((step.get("precompiled_charsmap") for step in steps if step.get("type") == "Precompiled"), None)
    said: Keys = {"tokenizer.ggml.scores": _scores(spec, tokens)}
    if isinstance(unk, int):
        said["tokenizer.ggml.unknown_token_id"] = unk
    if charsmap:
        import base64

        said["tokenizer.ggml.precompiled_charsmap"] = np.frombuffer(base64.b64decode(charsmap), np.uint8)
    for prefix in (True, False):
        for collapse in (True, False):
            flags = {"tokenizer.ggml.add_space_prefix": prefix, "tokenizer.ggml.remove_extra_whitespaces": collapse}
            yield _keys("t5", tokens, kinds, common | said | flags)


def _bpe(spec: dict[str, Any], tokens: list[str], types: np.ndarray[Any, Any], common: Keys) -> Iterator[Keys]:
    model = spec["model"]
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in model["merges"]]
    if model.get("byte_fallback"):
        kinds = _byte_types(tokens, types, model.get("unk_token"))
        # Each token gets minus its id as its score. SentencePiece merges the pair with the highest score first, so tokens of early merges,
        # which have low ids, are still merged first.
        scores = -np.arange(len(tokens), dtype=np.float32)
        for prefix in (True, False):
            said: Keys = {"tokenizer.ggml.scores": scores, "tokenizer.ggml.add_space_prefix": prefix, "tokenizer.ggml.pre": "default"}
            yield _keys("llama", tokens, kinds, common | said)
        yield _keys("gemma4", tokens, kinds, common | {"tokenizer.ggml.merges": merges, "tokenizer.ggml.scores": scores})
        return
    names = sorted(_likely(spec), key=lambda name: _FIRST.index(name) if name in _FIRST else len(_FIRST))
    for name in names:
        yield _keys("gpt2", tokens, types, {"tokenizer.ggml.pre": name} | common | {"tokenizer.ggml.merges": merges})


def _likely(spec: dict[str, Any]) -> list[str]:
    """Returns the names of splits that have the same patterns as the tokenizer's split. If there are none, returns all names."""
    cuts = spec.get("pre_tokenizer") or {}
    cuts = cuts.get("pretokenizers", [cuts])
    patterns = tuple(cut["pattern"].get("Regex", cut["pattern"].get("String")) for cut in cuts if cut.get("type") == "Split")
    ignore = bool(spec["model"].get("ignore_merges"))
    same = [name for name, split in SPLITS.items() if split.patterns == patterns and split.ignore_merges == ignore]
    return same or list(dict.fromkeys((*_FIRST, *SPLITS)))
