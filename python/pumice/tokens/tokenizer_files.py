"""Finds and loads a model's tokenizer: from the files of a folder, from the metadata of a GGUF file, or from the argument tokenizer= of
load()."""

from __future__ import annotations

import base64
import json
import os
import re
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from tokenizers import AddedToken, models, normalizers
from tokenizers import Tokenizer as Backend

from ..common.address_space import check_memory
from ..common.arguments import plain, shown, shown_path, warn
from ..common.side_files import field, read_bytes, read_object, read_text
from ..errors import IncompleteModelWarning, ModelFormatError, TokenizerError
from . import gguf_tokenizer
from .backends import check_template, copy_of, no_panic, unknown_id
from .gguf_tokenizer import BYTE, Built, Vocabulary, end_ids
from .tokenizers import Tokenizer, layouts_of
from .word_splits import SPLITS

if TYPE_CHECKING:
    from .._core import ModelFile

MAX_TOKENIZER_BYTES = 256 << 20  # maximum size of a tokenizer file; the largest known tokenizer.json has 33 MB
FILE_MEMORY = 24  # maximum number of bytes that the tokenizers package uses per byte of a tokenizer.json
NO_LENGTH = 1 << 30  # a maximum length of at least this value means "no limit"; transformers writes 10^30 for that


def load_tokenizer(file: ModelFile, override: Any = None) -> Tokenizer:
    """Returns the tokenizer of a model. override: a tokenizer.json, a folder with a tokenizer.json, a tokenizers.Tokenizer or a pumice
    Tokenizer."""
    given = None if override is None else check_given(override)
    if isinstance(given, Tokenizer):
        return given
    if isinstance(given, Backend):
        return _with_files(copy_of(given), _folder_of(file), file)
    if given is not None:
        folder = given if given.is_dir() else given.parent
        return _of_folder(folder, None if given.is_dir() else given, file)
    if file.kind == "gguf":
        check_memory(0, f"building the tokenizer of {shown_path(file.path)}")
        with no_panic("building the tokenizer"), _typed(shown_path(file.path)):
            built = gguf_tokenizer.build(file.get, shown_path(file.path))
        # As in llama.cpp, tokenizer.ggml.add_bos_token is also for prompts of chats. In transformers, the chat template alone decides.
        return Tokenizer(built.backend, bos_id=built.bos_id, eos_ids=built.eos_ids, special=built.special, bos_in_chats=True)
    return _of_folder(_folder_of(file), None, file)


def check_given(override: Any) -> Tokenizer | Backend | Path:
    """Converts the argument tokenizer= of load() to one of three types. Raises TypeError, ValueError, FileNotFoundError and
    TokenizerError."""
    if isinstance(override, Tokenizer):
        return override
    if not isinstance(override, str | os.PathLike):
        backend = getattr(override, "backend_tokenizer", override)  # transformers' fast tokenizers contain a tokenizers.Tokenizer
        if not isinstance(backend, Backend):
            raise TypeError(f"tokenizer must be a path, a tokenizers.Tokenizer or a pumice Tokenizer, found {type(override).__name__}")
        return backend
    given = plain(os.fsdecode(override))
    if not given:
        raise ValueError('tokenizer="" is no path; None takes the model\'s own')
    path = Path(given)
    if not path.exists():
        raise FileNotFoundError(f"tokenizer={shown(given)}: there is no such file or folder")
    if not path.is_dir() and not path.is_file():
        raise TokenizerError(f"tokenizer={shown(given)} is neither a regular file nor a folder")
    return path


def _folder_of(file: ModelFile) -> Path:
    path = Path(file.path)
    return path if path.is_dir() else path.parent


@contextmanager
def _typed(where: str) -> Iterator[None]:
    """Converts errors of the `tokenizers` package to TokenizerError. The package raises plain Exception, and TypeError for text that is not
    Unicode."""
    try:
        yield
    except (TokenizerError, ModelFormatError, OSError, MemoryError):
        raise
    except Exception as error:
        raise TokenizerError(f"{where}: the tokenizer cannot be built: {error}. {gguf_tokenizer.FIX}") from error


def _of_folder(folder: Path, named: Path | None, file: ModelFile) -> Tokenizer:
    """Returns the tokenizer of a folder's files. named: the file that the user has passed, or None."""
    source = _read_backend(folder, named)
    if isinstance(source, Backend):
        _mend_tekken(source, folder)
    return _with_files(source, folder, file)


# Models that may have Mistral's tokenizer Tekken, and the size that a vocabulary of Tekken exceeds.
_TEKKEN_TYPES = ("mistral", "mistral3", "voxtral", "ministral", "pixtral")
_TEKKEN_SIZE = 100_000


def _mend_tekken(backend: Backend, folder: Path) -> None:
    """Gives a tokenizer.json of Mistral's Tekken the right split of words, if fix_mistral_regex in tokenizer_config.json says so. Before
    version 5, transformers wrote Llama 3's split into such files. If the key is missing, that split stays, as in transformers, with a
    warning."""
    config = read_object(folder / "config.json")
    old_writer = re.match(r"[0-4]\.", str(config.get("transformers_version") or "0."))
    if backend.pre_tokenizer is None or config.get("model_type") not in _TEKKEN_TYPES or not old_writer:
        return
    spec = json.loads(backend.pre_tokenizer.__getstate__())
    first: dict[str, Any] = next(iter(spec.get("pretokenizers") or ()), {})
    if (first.get("pattern") or {}).get("Regex") != SPLITS["llama3"].patterns[0] or backend.get_vocab_size() <= _TEKKEN_SIZE:
        return
    path = folder / "tokenizer_config.json"
    mends = field(read_object(path), "fix_mistral_regex", bool, path)
    if mends:
        first["pattern"] = {"Regex": SPLITS["tekken"].patterns[0]}
        whole = json.loads(Backend(models.BPE()).to_str()) | {"pre_tokenizer": spec}
        backend.pre_tokenizer = Backend.from_str(json.dumps(whole)).pre_tokenizer
    elif mends is None:
        warn(
            IncompleteModelWarning,
            f"{shown_path(folder)}: its tokenizer.json splits words as Llama 3 does, and the model was trained with the split of Mistral's "
            f'Tekken. Some texts get other ids than in training. "fix_mistral_regex": true in tokenizer_config.json takes the right split, '
            f"as in transformers, and false keeps this one without a warning",
        )


def _read_backend(folder: Path, named: Path | None) -> Backend | Built:
    path = named or folder / "tokenizer.json"
    with no_panic(f"reading {shown_path(path)}"), _typed(shown_path(path)):
        if named is not None and named.suffix == ".model":
            return _sentencepiece(_read_bytes(named, given=True), named)
        if named is not None and named.suffix == ".txt":
            return _bert(named, folder, given=True)
        # A file that exists but cannot be read is an error, because the next file in the list might make a different tokenizer.
        if os.path.lexists(path):
            return _cased(_backend_of(_read_bytes(path, named is not None), path), folder)
        if os.path.lexists(folder / "vocab.txt"):
            return _bert(folder / "vocab.txt", folder)
        if os.path.lexists(folder / "tokenizer.model"):
            return _sentencepiece(_read_bytes(folder / "tokenizer.model"), folder / "tokenizer.model")
        if os.path.lexists(folder / "vocab.json") and os.path.lexists(folder / "merges.txt"):
            return _byte_level(folder)
        for name in _FILES_OF_ENCODERS:
            if os.path.lexists(folder / name):
                return _encoder_pieces(folder / name, folder)
    raise TokenizerError(
        f"{shown_path(folder)} has no tokenizer.json, nor a vocab.txt, a SentencePiece file or a vocab.json with merges.txt. "
        f"{gguf_tokenizer.FIX}"
    )


def _read_bytes(path: Path, given: bool = False) -> bytes:
    found = read_bytes(path, MAX_TOKENIZER_BYTES, given)
    if found is None:
        raise TokenizerError(f"{shown_path(path)} is not there. {gguf_tokenizer.FIX}")
    return found


_CHARSMAP = re.compile(rb'"precompiled_charsmap"\s*:\s*("(?:[^"\\]|\\.)*")', re.DOTALL)
# Matches a letter of the key "precompiled_charsmap" that is written as a JSON escape such as \u0070. _CHARSMAP does not match a key with
# escapes, so the file is then written anew without them.
_SPELT_OTHERWISE = re.compile(rb"\\u00(?:5f|6[134569cdf]|7[02])", re.IGNORECASE)


def _backend_of(data: bytes, path: Path) -> Backend:
    """Returns the tokenizer of a tokenizer.json. An invalid charsmap, or a token that is too long, would make the tokenizers package end
    the process, so both are checked first."""
    if _SPELT_OTHERWISE.search(data):
        data = json.dumps(json.loads(data), ensure_ascii=False).encode()
    charsmaps = set()
    for found in _CHARSMAP.finditer(data):
        try:
            charsmap = base64.b64decode(json.loads(found[1]), validate=True)
        except ValueError:
            raise TokenizerError(f"{shown_path(path)}: precompiled_charsmap is not base64. {gguf_tokenizer.FIX}") from None
        gguf_tokenizer.check_charsmap(charsmap, shown_path(path))
        charsmaps.add(found.start(1))
    # Finds strings that are too long for tokens. A string is the text between two quotes that have no backslash before them. This takes 0.3
    # s for 33 MB.
    text = np.frombuffer(data, np.uint8)
    quotes = np.flatnonzero(text == ord('"'))
    quotes = quotes[(quotes == 0) | (text[quotes - 1] != ord("\\"))]
    for i in np.flatnonzero(np.diff(quotes) > gguf_tokenizer.LONGEST_TOKEN):
        if int(quotes[i]) not in charsmaps:
            raise TokenizerError(
                f"{shown_path(path)}: what begins at byte {quotes[i]} has {quotes[i + 1] - quotes[i]} bytes; a token has at most "
                f"{gguf_tokenizer.LONGEST_TOKEN}. {gguf_tokenizer.FIX}"
            )
    check_memory(FILE_MEMORY * len(data), f"building the tokenizer of {shown_path(path)}")
    return Backend.from_buffer(data)


# _CASED_CLASSES has tokenizer classes of transformers, without the suffix "Fast". For these classes, the settings of tokenizer_config.json
# replace those in tokenizer.json (see _cased()). _CASED_TYPES has the model types that have such a class if no file names a class.
_CASED_CLASSES = frozenset(
    f"{name}Tokenizer"
    for name in ("Bert", "DistilBert", "Electra", "Funnel", "LayoutLM", "Lxmert", "MPNet", "MobileBert", "Splinter", "SqueezeBert")
)
_CASED_TYPES = frozenset(
    ["bert", "convbert", "distilbert", "electra", "funnel", "layoutlm", "lxmert", "megatron-bert", "mobilebert", "mpnet", "nomic_bert"]
)
# _PLAIN_CLASSES has tokenizer classes that get all settings from tokenizer.json. _PLAIN_TYPES has the model types whose tokenizer has such
# a class, even if a file names another class.
_PLAIN_CLASSES = frozenset(["PreTrainedTokenizer", "TokenizersBackend"])
_PLAIN_TYPES = frozenset(["modernbert", "modernbert-decoder", "nystromformer"])


def _class_of(folder: Path) -> str:
    """Returns the class that transformers uses for the folder's tokenizer, without "Fast". If no file names a class, the model type implies
    it: BertTokenizer for those of _CASED_TYPES, and "" for others."""
    config = read_object(folder / "config.json")
    kind = str(config.get("model_type"))
    if kind in _PLAIN_TYPES:
        return "TokenizersBackend"
    for each in (read_object(folder / "tokenizer_config.json"), config):
        if isinstance(name := each.get("tokenizer_class"), str):
            return name.removesuffix("Fast")
    return "BertTokenizer" if kind in _CASED_TYPES else ""


def _cased(backend: Backend, folder: Path) -> Backend:
    """Returns the tokenizer. If transformers uses the settings of tokenizer_config.json for case, accents and Chinese characters, the
    returned tokenizer has these settings. Settings that the file lacks have transformers' defaults."""
    old = backend.normalizer
    if not isinstance(old, normalizers.BertNormalizer) or _class_of(folder) not in _CASED_CLASSES:
        return backend
    lowercase, strip_accents, chinese_characters = _case_settings(folder)
    if (old.lowercase, old.strip_accents, old.handle_chinese_chars) == (lowercase, strip_accents, chinese_characters):
        return backend
    backend.normalizer = normalizers.BertNormalizer(old.clean_text, chinese_characters, strip_accents, lowercase)
    return copy_of(backend)  # because only in a copy does the new normalizer also apply to the added tokens


def _case_settings(folder: Path) -> tuple[bool, bool | None, bool]:
    """Returns do_lower_case, strip_accents and tokenize_chinese_chars of tokenizer_config.json."""
    path = folder / "tokenizer_config.json"
    config = read_object(path)
    return (
        field(config, "do_lower_case", bool, path, True),
        field(config, "strip_accents", bool, path),
        field(config, "tokenize_chinese_chars", bool, path, True),
    )


def _bert(vocabulary: Path, folder: Path, given: bool = False) -> Backend:
    text = read_text(vocabulary, given)
    config = read_object(folder / "tokenizer_config.json")
    tokens = (text or "").removesuffix("\n").replace("\r\n", "\n").split("\n")
    ids = {token: i for i, token in enumerate(tokens)}
    names = {role: _content(config.get(f"{role}_token")) or f"[{role.upper()}]" for role in ("unk", "cls", "sep", "pad", "mask")}
    backend = gguf_tokenizer.word_piece(ids, names["unk"], *_case_settings(folder))
    for role in ("cls", "sep"):
        if names[role] not in ids:
            raise TokenizerError(f"{vocabulary} has no token {names[role]!r}. {gguf_tokenizer.FIX}")
    backend.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in names.values() if t in ids])
    gguf_tokenizer.bert_template(backend, ids[names["cls"]], ids[names["sep"]])
    return backend


def _byte_level(folder: Path) -> Backend:
    """Returns the tokenizer in vocab.json and merges.txt, which OPT and older folders of GPT-2 and RoBERTa have instead of a
    tokenizer.json."""
    config = read_object(folder / "tokenizer_config.json")
    kind = str(config.get("tokenizer_class") or read_object(folder / "config.json").get("model_type") or "").lower()
    vocab = read_object(folder / "vocab.json")
    tokens = sorted(vocab, key=lambda token: vocab[token] if type(vocab[token]) is int else -1)
    if [vocab[token] for token in tokens] != list(range(len(tokens))):
        raise TokenizerError(f"{folder / 'vocab.json'}: its {len(tokens)} ids are not 0 to {len(tokens) - 1}. {gguf_tokenizer.FIX}")
    lines = (read_text(folder / "merges.txt") or "").replace("\r\n", "\n").split("\n")
    merges = [line for line in lines if line and not line.startswith("#version")]
    vocabulary = Vocabulary(tokens, None, np.full(len(tokens), gguf_tokenizer.NORMAL, np.int32))
    if kind.startswith("clip"):
        return _clip(vocabulary, merges, config, folder)
    split = SPLITS["qwen2" if kind.startswith("qwen2") else "gpt-2"]
    backend = gguf_tokenizer.byte_bpe(vocabulary, merges, split, shown_path(folder), bool(config.get("add_prefix_space", False)))
    if kind.startswith(_ROBERTA_KINDS):
        first, last = (
            backend.token_to_id(_content(config.get(f"{role}_token")) or name) for role, name in (("cls", "<s>"), ("sep", "</s>"))
        )
        if first is None or last is None:
            raise TokenizerError(f"{folder / 'vocab.json'} lacks the tokens <s> and </s> that stand around a text. {gguf_tokenizer.FIX}")
        names = {"<s>", "</s>", "<unk>", "<pad>"} & vocab.keys()
        backend.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in sorted(names)])
        if "<mask>" in vocab:
            backend.add_special_tokens([AddedToken("<mask>", special=True, normalized=False, lstrip=True)])
        gguf_tokenizer.set_template(backend, [first], [last, last], [last])
    return backend


def _clip(vocabulary: Vocabulary, merges: list[str], config: dict[str, Any], folder: Path) -> Backend:
    names = [
        _content(config.get(f"{role}_token")) or otherwise
        for role, otherwise in (("bos", "<|startoftext|>"), ("eos", "<|endoftext|>"), ("unk", "<|endoftext|>"))
    ]
    for name in names:
        if name not in vocabulary.ids:
            raise TokenizerError(f"{folder / 'vocab.json'} lacks the token {name} that CLIP needs. {gguf_tokenizer.FIX}")
    backend = gguf_tokenizer.clip_bpe(vocabulary, merges, names[2], shown_path(folder))
    backend.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in dict.fromkeys(names)])
    first, last = vocabulary.ids[names[0]], vocabulary.ids[names[1]]
    gguf_tokenizer.set_template(backend, [first], [last, last], [last])
    return backend


_ROBERTA_KINDS = ("roberta", "longformer", "bart")

# The roles that tokenizer_config.json and special_tokens_map.json may assign to a special token.
_ROLES = ("bos", "eos", "unk", "sep", "pad", "cls", "mask")


def _with_files(source: Backend | Built, folder: Path, file: ModelFile) -> Tokenizer:
    """Returns a tokenizer with the special tokens, maximum length and end tokens that the files beside it name."""
    built = source if isinstance(source, Built) else Built(source, None, ())
    backend = built.backend
    config = read_object(folder / "tokenizer_config.json")
    names = {**read_object(folder / "special_tokens_map.json"), **config}
    with no_panic("adding special tokens"), _typed(shown_path(folder)):
        special = {**built.special, **_add_special(backend, names)}
        _add_ends(backend, config, special)
        # If the files name no unknown token, the tokenizer gets a default one, as in transformers. _PLAIN_CLASSES have no default.
        if "unk" not in special and _class_of(folder) not in _PLAIN_CLASSES and (unknown := unknown_id(backend)) is not None:
            special["unk"] = unknown
    ends = set(built.eos_ids)
    if "eos" in special:
        ends.add(special["eos"])
    for name in ("generation_config.json", "config.json"):
        stated = read_object(folder / name).get("eos_token_id")
        ends.update(i for i in (stated if isinstance(stated, list) else [stated]) if type(i) is int and i >= 0)
    bos = special.get("bos", built.bos_id)
    # If the model is a GGUF file, the user has passed this tokenizer in place of the one in the GGUF file. Both have the same ids, so the
    # special tokens that the GGUF file names are added.
    if file.kind == "gguf":
        for role in ("bos", "eos", "eot", "eom"):
            stated = file.get(f"tokenizer.ggml.{role}_token_id")
            if isinstance(stated, int | np.integer) and 0 <= int(stated) < backend.get_vocab_size():
                special.setdefault(role, int(stated))
                if role != "bos":
                    ends.add(int(stated))
        bos = special.get("bos", bos)
        ends.update(end_ids(backend.token_to_id, ()))
    length = config.get("model_max_length")
    limited = isinstance(length, int | float) and not isinstance(length, bool) and 0 < length < NO_LENGTH
    return Tokenizer(
        backend,
        bos_id=bos,
        eos_ids=ends,
        special=special,
        max_length=int(length) if limited else None,  # type: ignore[arg-type]
        truncate_left=config.get("truncation_side") == "left",
        split_special=config.get("split_special_tokens") is True,
    )


def _content(token: Any) -> str | None:
    """Returns the text of a token in tokenizer_config.json, which is a string or an object with the key `content`. Returns None for any
    other value."""
    if isinstance(token, dict):
        token = token.get("content")
    return token if isinstance(token, str) else None


def _add_special(backend: Backend, names: dict[str, Any]) -> dict[str, int]:
    """Adds the special tokens that the files name to the backend, so that each is matched as a whole. Returns a dict from role to id. A
    name that is not in the vocabulary gets no id, because the model has no embedding for it."""
    known = {token.content: token for token in backend.get_added_tokens_decoder().values()}
    spec = names.get("added_tokens_decoder")
    decoder = spec if isinstance(spec, dict) else {}
    missing = []
    for key, value in sorted(decoder.items(), key=lambda item: int(item[0]) if item[0].isdecimal() else -1):
        content = _content(value)
        if content is not None and content not in known and isinstance(value, dict) and backend.token_to_id(content) == _as_id(key):
            flags = {f: bool(value.get(f)) for f in ("single_word", "lstrip", "rstrip", "normalized", "special")}
            missing.append(AddedToken(content, **flags))
    roles: dict[str, int] = {}
    for role in _ROLES:
        content = _content(names.get(f"{role}_token"))
        index = backend.token_to_id(content) if content is not None else None
        if content is None or index is None:
            continue
        roles[role] = index
        if content not in known and content not in decoder:
            missing.append(AddedToken(content, special=True, normalized=False))
    extra = names.get("additional_special_tokens")
    for content in filter(None, map(_content, extra if isinstance(extra, list) else [])):
        if content not in known and backend.token_to_id(content) is not None:
            missing.append(AddedToken(content, special=True, normalized=False))
    if missing:
        backend.add_tokens(missing)
    return roles


def _add_ends(backend: Backend, config: dict[str, Any], special: dict[str, int]) -> None:
    """Applies add_bos_token and add_eos_token of tokenizer_config.json, if the tokenizer's own template has no token at that end.

    For example, the tokenizer.json of e5-mistral only adds <s> before a text, but the model also needs </s> after it. A template that ends
    with another special token is not changed: Qwen3-Embedding's template ends with <|endoftext|>, which is not its eos token."""
    wanted = {role: [special[role]] for role in ("bos", "eos") if config.get(f"add_{role}_token") is True and role in special}
    if not wanted:
        return
    check_template(backend)
    backend.no_truncation()
    backend.no_padding()
    single, pair = layouts_of(backend)
    before, after = map(list, single.parts)
    first = wanted.get("bos", []) if not before else []
    last = wanted.get("eos", []) if not after else []
    if first or last:
        between = [*last, *pair.parts[1]] if pair.parts[1] else [*last, *first]
        gguf_tokenizer.set_template(backend, [*first, *before], between, [*after, *last], pair.text_types[1])


def _as_id(text: str) -> int | None:
    return int(text) if text.isdecimal() else None


# ---- SentencePiece files -------------------------------------------------------------------------


def _fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Yields the fields of a protocol buffer as (field number, value). The format is described in protobuf's documentation (Encoding)."""
    at = 0

    def varint() -> int:
        nonlocal at
        value = 0
        for shift in range(0, 70, 7):
            if at >= len(data):
                break
            byte = data[at]
            at += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
        raise TokenizerError(f"the SentencePiece file ends inside a number at byte {at}")

    while at < len(data):
        tag = varint()
        kind = tag & 7
        if kind == 0:
            yield tag >> 3, varint()
            continue
        size = varint() if kind == 2 else {1: 8, 5: 4}.get(kind)
        if size is None or size > len(data) - at:
            raise TokenizerError(f"the SentencePiece file has a broken field {tag >> 3} at byte {at}")
        yield tag >> 3, data[at : at + size]
        at += size


@dataclass(frozen=True)
class _Pieces:
    """The contents of a SentencePiece file."""

    tokens: list[str]
    scores: list[float]
    types: list[int]
    trainer: dict[int, int | bytes]
    normalizer: dict[int, int | bytes]

    @property
    def charsmap(self) -> bytes:
        value = self.normalizer.get(2, b"")
        return value if isinstance(value, bytes) else b""


def _pieces(data: bytes, path: Path) -> _Pieces:
    """Parses a SentencePiece file. The field numbers come from src/sentencepiece_model.proto of google/sentencepiece: pieces 1 (text 1,
    score 2, type 3), trainer_spec 2, normalizer_spec 3."""
    tokens: list[str] = []
    scores: list[float] = []
    types: list[int] = []
    trainer: dict[int, int | bytes] = {}
    normalizer: dict[int, int | bytes] = {}
    for number, value in _fields(data):
        if not isinstance(value, bytes):
            continue
        if number == 1:
            piece = dict(_fields(value))
            text, score, kind = piece.get(1, b""), piece.get(2, b"\0\0\0\0"), piece.get(3, gguf_tokenizer.NORMAL)
            if not isinstance(text, bytes) or not isinstance(score, bytes) or len(score) != 4 or not isinstance(kind, int):
                raise TokenizerError(f"{shown_path(path)}: piece {len(tokens)} is broken")
            tokens.append(text.decode())
            scores.append(struct.unpack("<f", score)[0])
            types.append(kind)
        elif number == 2:
            trainer = dict(_fields(value))
        elif number == 3:
            normalizer = dict(_fields(value))
    if not tokens:
        raise TokenizerError(f"{shown_path(path)} is no SentencePiece model: it has no pieces. {gguf_tokenizer.FIX}")
    return _Pieces(tokens, scores, types, trainer, normalizer)


@dataclass(frozen=True)
class _Form:
    """How a family of encoders makes its vocabulary from a SentencePiece file. front and tail are the tokens before and after the file's
    pieces. before, between and after are the special tokens before, between and after texts."""

    front: tuple[str, ...] = ()
    skipped: int = 0  # number of pieces that `front` replaces at the beginning of the file's list
    tail: tuple[str, ...] = ()
    unk: str = "<unk>"
    before: tuple[str, ...] = ()
    between: tuple[str, ...] = ("</s>",)
    after: tuple[str, ...] = ("</s>",)
    second_type: int = 0


_ROBERTA = _Form(tail=("<mask>",), before=("<s>",), between=("</s>", "</s>"))
_FORMS: dict[str, _Form] = {  # model_type -> form
    "xlm-roberta": replace(_ROBERTA, front=("<s>", "<pad>", "</s>", "<unk>"), skipped=3),
    "camembert": replace(_ROBERTA, front=("<s>NOTUSED", "<pad>", "</s>NOTUSED", "<unk>", "<unk>NOTUSED"), skipped=1),
    "t5": _Form(tail=tuple(f"<extra_id_{i}>" for i in reversed(range(100)))),
    "deberta-v2": _Form(tail=("[MASK]",), unk="[UNK]", before=("[CLS]",), between=("[SEP]",), after=("[SEP]",), second_type=1),
}
_FILES_OF_ENCODERS = {"sentencepiece.bpe.model": "xlm-roberta", "spm.model": "deberta-v2", "spiece.model": "t5"}


def _encoder_pieces(path: Path, folder: Path) -> Backend:
    """Returns the tokenizer of an encoder that has a SentencePiece file. Its token ids differ from those in the file."""
    kind = read_object(folder / "config.json").get("model_type") or _FILES_OF_ENCODERS[path.name]
    form = _FORMS.get(kind) if isinstance(kind, str) else None
    if form is None:
        raise TokenizerError(f"{shown_path(path)}: how {shown(kind)} makes its vocabulary of it is not known. {gguf_tokenizer.FIX}")
    pieces = _pieces(_read_bytes(path), path)
    kept = slice(form.skipped, None)
    tail = [token for token in form.tail if token not in pieces.tokens]
    front, back = len(form.front), len(tail)
    vocabulary = Vocabulary(
        [*form.front, *pieces.tokens[kept], *tail],
        np.array([0.0] * front + pieces.scores[kept] + [0.0] * back, np.float32),
        np.array([gguf_tokenizer.CONTROL] * front + pieces.types[kept] + [gguf_tokenizer.CONTROL] * back, np.int32),
    )
    ids = vocabulary.ids
    missing = [name for name in (form.unk, *form.before, *form.after) if name not in ids]
    if missing:
        raise TokenizerError(f"{shown_path(path)} lacks the token {missing[0]!r} that {kind} needs. {gguf_tokenizer.FIX}")
    backend = gguf_tokenizer.unigram(vocabulary, ids[form.unk], pieces.charsmap, True, True, False)
    backend.add_tokens(vocabulary.added(("<mask>",)))
    before, between, after = ([ids[name] for name in part] for part in (form.before, form.between, form.after))
    gguf_tokenizer.set_template(backend, before, between, after, form.second_type)
    return backend


def _sentencepiece(data: bytes, path: Path) -> Built:
    """Returns the tokenizer of a decoder that has a SentencePiece file."""
    pieces = _pieces(data, path)
    tokens, trainer, normalizer = pieces.tokens, pieces.trainer, pieces.normalizer

    def number_of(fields: dict[int, int | bytes], key: int, default: int) -> int:
        value = fields.get(key, default)
        if not isinstance(value, int):
            raise TokenizerError(f"{shown_path(path)}: field {key} is no number")
        # Negative numbers are stored as 64-bit two's complement. An id of -1 means "none".
        return value - (1 << 64) if value >= 1 << 63 else value

    vocabulary = Vocabulary(tokens, np.array(pieces.scores, np.float32), np.array(pieces.types, np.int32))
    ids = {
        role: number_of(trainer, key, default) for role, key, default in (("unk", 40, 0), ("bos", 41, 1), ("eos", 42, 2), ("pad", 43, -1))
    }
    special = {role: i for role, i in ids.items() if 0 <= i < len(tokens)}
    if "unk" not in special:
        raise TokenizerError(f"{shown_path(path)} names no unknown token. {gguf_tokenizer.FIX}")
    prefix = bool(number_of(normalizer, 3, 1))
    kind = number_of(trainer, 3, 1)
    if kind == 2:
        backend = gguf_tokenizer.spm_bpe(vocabulary, tokens[special["unk"]], prefix)
    elif kind == 1:
        backend = gguf_tokenizer.unigram(
            vocabulary, special["unk"], pieces.charsmap, prefix, bool(number_of(normalizer, 4, 1)),
            bool(vocabulary.of_type(BYTE).any()),
        )  # fmt: skip
    else:
        raise TokenizerError(
            f"{shown_path(path)} is a SentencePiece model of type {kind}; known are 1 (unigram) and 2 (BPE). {gguf_tokenizer.FIX}"
        )
    backend.add_tokens(vocabulary.added())
    bos = [special["bos"]] if "bos" in special else []
    gguf_tokenizer.set_template(backend, bos, bos, [])
    ends = (special["eos"],) if "eos" in special else ()
    return Built(backend, special.get("bos"), ends, special)
