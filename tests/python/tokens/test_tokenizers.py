"""Tokenizers must give the ids of llama-cpp-python and transformers (goldens: make_tokenizer_goldens.py), and must withstand hostile files
and texts."""

from __future__ import annotations

import _thread
import contextlib
import ctypes
import itertools
import json
import os
import random
import string
import struct
import time
import warnings
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import samples
from paths import GOLDENS
from small_files import File
from soak import heap_in_use
from spm_reference import spm_merges_reference
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, processors
from tokenizers import Tokenizer as Backend

from pumice.errors import ModelFormatError, TokenizerError
from pumice.generate.prompts import check_ids
from pumice.tokens import backends, gguf_tokenizer
from pumice.tokens import tokenizers as tokenizers_module
from pumice.tokens.backends import copy_of
from pumice.tokens.gguf_tokenizer import spm_merges
from pumice.tokens.tokenizer_files import load_tokenizer
from pumice.tokens.tokenizers import Tokenizer, _longest_first
from pumice.tokens.word_splits import SPLITS

TOKENIZERS = GOLDENS / "tokenizers"
LINES: list[str] = json.loads((TOKENIZERS / "corpus.json").read_text())
SPACE = "\u2581"


def gguf_metadata(path: Path) -> dict[str, Any]:
    """Returns the keys and values of a GGUF file (ggml-org/ggml, docs/gguf.md). This second reader makes the tests independent of pumice's
    own."""
    scalars = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
    data = path.read_bytes()
    at = 24

    def read(kind: int) -> Any:
        nonlocal at
        if kind == 8:
            (size,) = struct.unpack_from("<Q", data, at)
            at += 8 + size
            return data[at - size : at].decode()
        if kind == 9:
            item, count = struct.unpack_from("<IQ", data, at)
            at += 12
            if item == 8:
                return [read(8) for _ in range(count)]
            array = np.frombuffer(data, np.dtype(scalars[item]).newbyteorder("<"), count, at)
            at += array.nbytes
            return array
        (value,) = struct.unpack_from("<" + scalars[kind], data, at)
        at += struct.calcsize(scalars[kind])
        return value

    values = {}
    for _ in range(struct.unpack_from("<Q", data, 16)[0]):
        key = read(8)
        (kind,) = struct.unpack_from("<I", data, at)
        at += 4
        values[key] = read(kind)
    return values


def golden(name: str) -> dict[str, Any]:
    return json.loads((TOKENIZERS / f"{name}.json").read_text())


@pytest.fixture(scope="module")
def smol_file() -> File:
    return File(gguf_metadata(samples.smollm2()))


@pytest.fixture(scope="module")
def gemma_file() -> File:
    return File(gguf_metadata(samples.gemma3()))


@pytest.fixture(scope="module")
def smol(smol_file: File) -> Tokenizer:
    return load_tokenizer(smol_file)


@pytest.fixture(scope="module")
def gemma(gemma_file: File) -> Tokenizer:
    return load_tokenizer(gemma_file)


@pytest.fixture(scope="module")
def minilm() -> Tokenizer:
    return load_tokenizer(File({}, str(samples.minilm()), "safetensors"))


def with_keys(file: File, **changes: Any) -> File:
    return File({**file.values, **{f"tokenizer.ggml.{key.replace('__', '.')}": value for key, value in changes.items()}})


def checksum(ids: np.ndarray) -> int:
    return zlib.crc32(ids.astype("<i4").tobytes())


def differing(tokenizer: Tokenizer, expected: list[list[int]], parse_special: bool = True, add_special: bool = False) -> list[str]:
    assert len(expected) == len(LINES) > 300
    return [line for line, ids in zip(LINES, expected, strict=True) if tokenizer.encode(line, add_special, parse_special).tolist() != ids]


# ---- the same ids as other packages

# Gemma's vocabulary has the HTML tag </s> as a word. llama.cpp takes it for an end token because of its name. pumice does so only if the
# file says that it is a control token.
GEMMA_WORD = "</s>"


def test_smollm2_ids_are_those_of_llama_cpp(smol: Tokenizer) -> None:
    ids = golden("smollm2")
    assert differing(smol, ids["special"]) == []
    assert differing(smol, ids["plain"], parse_special=False) == []


def test_gemma3_ids_are_those_of_llama_cpp(gemma: Tokenizer) -> None:
    ids = golden("gemma3")
    assert differing(gemma, ids["special"]) == []
    assert all(GEMMA_WORD in line for line in differing(gemma, ids["plain"], parse_special=False))
    assert gemma.encode("x").tolist()[0] == gemma.bos_id == 2


def test_gemma3_with_a_space_before_every_text(gemma_file: File) -> None:
    tokenizer = load_tokenizer(with_keys(gemma_file, add_space_prefix=True))
    sums = golden("gemma3_prefix")
    for mode in ("special", "plain"):
        wrong = [
            line
            for line, expected in zip(LINES, sums[mode], strict=True)
            if checksum(tokenizer.encode(line, add_special=False, parse_special=mode == "special")) != expected
        ]
        assert all(GEMMA_WORD in line and mode == "plain" for line in wrong)
    assert tokenizer.decode(tokenizer.encode("one two")) == "one two"


@pytest.mark.parametrize("name", sorted(golden("splits")))
def test_words_are_split_as_llama_cpp_does(smol_file: File, name: str) -> None:
    tokenizer = load_tokenizer(with_keys(smol_file, pre=name))
    wrong = [
        line for line, expected in zip(LINES, golden("splits")[name], strict=True) if checksum(tokenizer.encode(line, False)) != expected
    ]
    # With `nfc`, pumice composes the text first, as the tokenizer.json of these models does. llama.cpp does not.
    if SPLITS[name].nfc:
        import unicodedata

        assert wrong
        assert all(unicodedata.normalize("NFC", line) != line for line in wrong)
    else:
        assert wrong == []


def test_minilm_ids_are_those_of_transformers(minilm: Tokenizer) -> None:
    expected = golden("minilm")
    assert differing(minilm, expected["ids"], add_special=True) == []
    batch = minilm.encode_batch(LINES, truncate_to=16)
    assert [batch.ids[a:b].tolist() for a, b in zip(batch.offsets, batch.offsets[1:], strict=False)] == expected["cut"]
    assert batch.lengths_before_cut.tolist() == [len(ids) for ids in expected["ids"]]
    assert batch.cut.tolist() == [len(ids) > 16 for ids in expected["ids"]]
    assert batch.types is None
    assert [minilm.decode(ids) for ids in expected["ids"][:60]] == expected["decoded"]


def test_pairs_are_those_of_transformers(minilm: Tokenizer) -> None:
    expected = golden("minilm")
    batch = minilm.encode_pairs([tuple(pair) for pair in expected["pairs"]], truncate_to=24)
    assert batch.types is not None
    rows = list(zip(batch.offsets, batch.offsets[1:], strict=False))
    assert [batch.ids[a:b].tolist() for a, b in rows] == expected["pair_ids"]
    assert [batch.types[a:b].tolist() for a, b in rows] == expected["pair_types"]
    assert (np.diff(batch.offsets) <= 24).all()
    whole = minilm.encode_pairs([tuple(pair) for pair in expected["pairs"]])
    assert np.array_equal(np.diff(whole.offsets), batch.lengths_before_cut)


def test_longest_first_never_wastes_room() -> None:
    for first in range(12):
        for second in range(12):
            for room in range(1, 26):
                a, b = _longest_first(first, second, room)
                assert a <= first
                assert b <= second
                assert a + b == min(first + second, room)


def test_unigram_ids_are_those_of_llama_cpp() -> None:
    expected = golden("unigram")
    file = File(
        {
            "tokenizer.ggml.model": "t5",
            "tokenizer.ggml.tokens": expected["tokens"],
            "tokenizer.ggml.scores": np.array(expected["scores"], np.float32),
            "tokenizer.ggml.token_type": np.array(expected["types"], np.int32),
            "tokenizer.ggml.add_space_prefix": True,
            "tokenizer.ggml.add_eos_token": False,
        }
    )
    tokenizer = load_tokenizer(file)
    # SentencePiece and pumice put a leading space before every text, even before one of spaces alone. llama.cpp puts it before the first
    # character that is neither a space nor part of a special token, so some lines differ.
    wrong = differing(tokenizer, expected["special"])
    assert all(line.strip(" ") == "" or any(token in line for token in ("<pad>", "</s>", "<unk>")) for line in wrong)
    assert len(wrong) < 10


# ---- vocabularies made here


@pytest.mark.parametrize("room", [1 << 16, 40])
def test_words_looked_up_have_the_ids_of_whole_texts(minilm: Tokenizer, monkeypatch: pytest.MonkeyPatch, room: int) -> None:
    monkeypatch.setattr(tokenizers_module, "WORDS", room)  # with 40, the cache is often full and begins anew
    rng = random.Random(5)
    odd = [
        " ",
        "\t",
        "\n",
        "\r\n",
        "\x0b",
        "\x0c",
        "\x1c",
        "\x85",
        "\xa0",
        "\u2028",
        "\u3000",
        "\u200b",
        "\u0301",
        "\u4e2d",
        "\u03a3",
        "\u00c5",
    ]
    odd += [
        "[MASK]",
        "[ MASK]",
        "#",
        "##",
        "\ufffd",
        "\0",
        "a" * 300,
        "I\u0307",
        "\u0e33",
        "\U0001f468\u200d\U0001f469",
        "don't",
        "e\u0301",
    ]
    texts = LINES + ["".join(rng.choice(odd) + rng.choice(["", " ", "  ", "x"]) for _ in range(20)) for _ in range(2000)]
    expected = [e.ids for e in minilm.backend.encode_batch_fast(texts, add_special_tokens=False)]
    before = list(minilm._words or [])
    try:
        for step in (len(texts), 7):  # all in one call, then seven per call, with words that are already in the cache
            found = [ids for at in range(0, len(texts), step) for ids in minilm._bodies(texts[at : at + step])]
            assert [i for i in range(len(texts)) if found[i] != expected[i]] == []
            assert len(minilm._words or ()) <= max(room, len(before))
    finally:
        minilm._words = {}


def test_only_tokenizers_whose_words_end_at_spaces_look_words_up(minilm: Tokenizer, smol: Tokenizer, gemma: Tokenizer) -> None:
    assert minilm._words is not None and smol._words is None and gemma._words is None
    backend = copy_of(minilm.backend)
    backend.add_tokens(["two words"])
    assert Tokenizer(backend)._words is None
    backend = copy_of(minilm.backend)
    backend.normalizer = normalizers.Sequence([normalizers.Replace(Regex(" x"), "y"), normalizers.BertNormalizer()])
    assert Tokenizer(backend)._words is None


def bert_gguf(**more: Any) -> File:
    """Returns a file with MiniLM's vocabulary as GGUF spells it. `more` are further keys of the tokenizer."""
    words = (samples.minilm() / "vocab.txt").read_text(encoding="utf-8").splitlines()
    special = {"[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"}
    tokens = [w if w in special else w[2:] if w.startswith("##") and len(w) > 2 else SPACE + w for w in words]
    types = np.array([3 if w in special else 1 for w in words], np.int32)
    values = {"model": "bert", "tokens": tokens, "token_type": types, "cls_token_id": 101, "seperator_token_id": 102, **more}
    return File({f"tokenizer.ggml.{key}": value for key, value in values.items()})


def test_bert_from_gguf_equals_its_tokenizer_json(minilm: Tokenizer) -> None:
    tokenizer = load_tokenizer(bert_gguf())
    assert differing(tokenizer, golden("minilm")["ids"], add_special=True) == []
    assert tokenizer.vocab_size == minilm.vocab_size
    pair = tokenizer.encode_pairs([("a cat", "the dog")])
    assert pair.types is not None
    assert pair.types.tolist() == minilm.encode_pairs([("a cat", "the dog")]).types.tolist()  # type: ignore[union-attr]


def test_bert_case_and_accents_follow_the_file() -> None:
    tokenizer = load_tokenizer(bert_gguf(**{"normalizer.lowercase": False, "normalizer.strip_accents": False}))
    lower = load_tokenizer(bert_gguf())
    assert tokenizer.encode("HELLO").tolist() != lower.encode("HELLO").tolist()
    assert tokenizer.encode("hello").tolist() == lower.encode("hello").tolist()


def test_bert_from_vocab_txt(tmp_path: Path, minilm: Tokenizer) -> None:
    for name in ("vocab.txt", "tokenizer_config.json", "special_tokens_map.json"):
        (tmp_path / name).write_bytes((samples.minilm() / name).read_bytes())
    tokenizer = load_tokenizer(File({}, str(tmp_path), "safetensors"))
    assert differing(tokenizer, golden("minilm")["ids"], add_special=True) == []
    assert tokenizer.max_length == minilm.max_length == 512


# Class and settings in tokenizer_config.json, model type -> whether the normalizer lowers case, strips accents and spaces Chinese
# characters, with a tokenizer.json that says (False, False, False). These are the results of transformers 5.24.
CASED = [
    ({"tokenizer_class": "BertTokenizer"}, "bert", (True, None, True)),
    ({"tokenizer_class": "BertTokenizerFast", "do_lower_case": False}, "bert", (False, None, True)),
    (
        {"tokenizer_class": "BertTokenizer", "do_lower_case": True, "strip_accents": False, "tokenize_chinese_chars": False},
        "bert",
        (True, False, False),
    ),
    ({"tokenizer_class": "MPNetTokenizer", "strip_accents": True}, "mpnet", (True, True, True)),
    ({"tokenizer_class": "DistilBertTokenizerFast", "strip_accents": None}, "distilbert", (True, None, True)),
    ({"do_lower_case": False}, "electra", (False, None, True)),
    (None, "bert", (True, None, True)),
    ({"tokenizer_class": "BertTokenizer"}, None, (True, None, True)),
    ({"tokenizer_class": "PreTrainedTokenizerFast", "do_lower_case": True}, "bert", (False, False, False)),
    ({"tokenizer_class": "TokenizersBackend", "do_lower_case": True}, "bert", (False, False, False)),
    ({"tokenizer_class": "BertTokenizer", "do_lower_case": True}, "modernbert", (False, False, False)),
    ({"do_lower_case": True}, "unknown", (False, False, False)),
]


@pytest.mark.parametrize(("config", "kind", "expected"), CASED)
def test_case_and_accents_are_those_of_tokenizer_config(tmp_path: Path, config: Any, kind: str | None, expected: Any) -> None:
    words = ["[UNK]", "[CLS]", "[SEP]", "é", "e", "É", "E", "中", "中a", "##a", "a", "[MASK]"]
    backend = gguf_tokenizer.word_piece({word: i for i, word in enumerate(words)}, "[UNK]", False, False, False)
    backend.add_tokens([AddedToken("Éa", normalized=True)])
    backend.save(str(tmp_path / "tokenizer.json"))
    for name, values in (("tokenizer_config.json", config), ("config.json", kind and {"model_type": kind})):
        if values is not None:
            (tmp_path / name).write_text(json.dumps(values))
    tokenizer = load_tokenizer(File({}, str(tmp_path), "safetensors"))
    found = tokenizer.backend.normalizer
    assert (found.lowercase, found.strip_accents, found.handle_chinese_chars) == expected
    lowered, stripped, spaced = expected
    stripped = lowered if stripped is None else stripped
    letter = ("e" if lowered else "E") if stripped else ("é" if lowered else "É")
    pieces = [tokenizer.token(i) for i in tokenizer.encode("É 中a").tolist()]
    assert pieces == [letter, *(["中", "a"] if spaced else ["中a"])]
    # An added token is matched after both it and the text are normalized.
    assert tokenizer.encode("éa" if lowered else "Éa").tolist() == [len(words)]


def test_settings_of_case_that_are_no_flags_are_named(tmp_path: Path) -> None:
    gguf_tokenizer.word_piece({"[UNK]": 0, "a": 1}, "[UNK]", True, None).save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "BertTokenizer", "do_lower_case": "false"}')
    with pytest.raises(ModelFormatError, match="tokenizer_config.json: do_lower_case is 'false', not bool"):
        load_tokenizer(File({}, str(tmp_path), "safetensors"))


@pytest.mark.parametrize(
    ("config", "kind", "expected"),
    [
        ({"tokenizer_class": "BertTokenizer"}, "bert", 0),
        ({}, "bert", 0),
        ({"tokenizer_class": "PreTrainedTokenizerFast"}, "bert", None),
        ({"tokenizer_class": "TokenizersBackend"}, "bert", None),
        ({"tokenizer_class": "TokenizersBackend", "unk_token": "[UNK]"}, "bert", 0),
        ({}, "modernbert", None),
    ],
)
def test_which_folders_name_an_unknown_token(tmp_path: Path, config: Any, kind: str, expected: int | None) -> None:
    """As `unk_token_id` in transformers 5.24."""
    gguf_tokenizer.word_piece({"[UNK]": 0, "a": 1}, "[UNK]", True, None).save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    (tmp_path / "config.json").write_text(json.dumps({"model_type": kind}))
    tokenizer = load_tokenizer(File({}, str(tmp_path), "safetensors"))
    assert tokenizer.special.get("unk") == expected and tokenizer.unknown_id == 0


def random_spm(rng: random.Random, size: int) -> tuple[list[str], np.ndarray]:
    tokens = list("abcd" + SPACE)
    while len(tokens) < size:
        word = rng.choice(tokens) + rng.choice(tokens)
        if word not in tokens and len(word) < 12:
            tokens.append(word)
    scores = np.arange(size, dtype=np.float32) * -1.0
    rng.shuffle(scores)  # so that a word may also rank before its parts
    return tokens, scores.astype(np.float32)


def queue_bpe(text: str, tokens: list[str], scores: np.ndarray) -> list[str]:
    """Returns the pieces of a text by the BPE in SentencePiece's paper. It joins the two neighbours whose union has the best score, and
    among equal scores the leftmost."""
    known = {t: float(s) for t, s in zip(tokens, scores, strict=True)}
    symbols = list(text)
    while True:
        joins = [(-known[a + b], i) for i, (a, b) in enumerate(zip(symbols, symbols[1:], strict=False)) if a + b in known]
        if not joins:
            return symbols
        i = min(joins)[1]
        symbols[i : i + 2] = [symbols[i] + symbols[i + 1]]


@pytest.mark.parametrize("seed", range(12))
def test_spm_merges_give_what_the_scores_say(seed: int) -> None:
    rng = random.Random(seed)
    tokens, scores = random_spm(rng, rng.choice([30, 80, 200]))
    pairs = spm_merges_reference(tokens, scores, np.ones(len(tokens), bool))
    assert np.array_equal(spm_merges(tokens, scores, np.ones(len(tokens), bool)), pairs)
    backend = Backend(models.BPE({t: i for i, t in enumerate(tokens)}, [(tokens[a], tokens[b]) for a, b in pairs]))
    for _ in range(150):
        text = "".join(rng.choice("abcd" + SPACE) for _ in range(rng.randrange(1, 40)))
        assert backend.encode(text).tokens == queue_bpe(text, tokens, scores)


def test_compiled_and_python_merges_agree_on_gemma(gemma_file: File) -> None:
    tokens, types = gemma_file.get("tokenizer.ggml.tokens"), gemma_file.get("tokenizer.ggml.token_type")
    arguments = tokens, gemma_file.get("tokenizer.ggml.scores"), types == 1
    pairs = spm_merges(*arguments)
    assert len(pairs) > 236_000
    assert np.array_equal(pairs, spm_merges_reference(*arguments))


def test_gemma_tokenizer_is_built_in_a_second(gemma_file: File, gemma: Tokenizer) -> None:
    """Loading takes 0.5 to 0.9 s on a free core, and took 0.9 to 1.6 s within one minute on a shared core. The goal is 1 s, and the test
    allows five times that, as for every latency. It also compares with the time in which the tokenizers package loads a ready
    tokenizer.json (the measured ratio is 1.0, and 1.5 is allowed). A busy machine slows both down, but merges made in Python would slow
    down only pumice."""
    ready = gemma.backend.to_str().encode()
    ours, package = [], []
    for _ in range(5):
        for seconds, load in ((ours, lambda: load_tokenizer(gemma_file)), (package, lambda: Backend.from_buffer(ready))):
            start = time.process_time()  # CPU time, so that other processes on the same core do not count
            load()
            seconds.append(time.process_time() - start)
    assert min(ours) < 5.0, (ours, package)
    assert min(ours) < 1.5 * min(package), (ours, package)


def protobuf(fields: list[tuple[int, Any]]) -> bytes:
    def varint(n: int) -> bytes:
        out = b""
        n &= (1 << 64) - 1
        while n > 127:
            out += bytes([n & 127 | 128])
            n >>= 7
        return out + bytes([n])

    out = b""
    for number, value in fields:
        if isinstance(value, float):
            out += varint(number << 3 | 5) + struct.pack("<f", value)
        elif isinstance(value, int):
            out += varint(number << 3) + varint(value)
        else:
            value = value.encode() if isinstance(value, str) else value
            out += varint(number << 3 | 2) + varint(len(value)) + value
    return out


def sentencepiece(tokens: list[str], scores: list[float], types: list[int], model_type: int, prefix: bool) -> bytes:
    pieces = [(1, protobuf([(1, t), (2, float(s)), (3, k)])) for t, s, k in zip(tokens, scores, types, strict=True)]
    trainer = protobuf([(3, model_type), (40, 0), (41, 1), (42, 2), (43, -1)])
    return protobuf([*pieces, (2, trainer), (3, protobuf([(3, int(prefix)), (4, 0)]))])


@pytest.mark.parametrize("prefix", [True, False])
def test_sentencepiece_file_equals_the_gguf_of_the_same_vocabulary(tmp_path: Path, prefix: bool) -> None:
    words, word_scores = random_spm(random.Random(3), 150)
    bytes_ = [f"<0x{b:02X}>" for b in range(256)]
    tokens = ["<unk>", "<s>", "</s>", *bytes_, *words]
    scores = [0.0] * 259 + word_scores.tolist()
    types = [2, 3, 3] + [6] * 256 + [1] * len(words)
    (tmp_path / "tokenizer.model").write_bytes(sentencepiece(tokens, scores, types, 2, prefix))
    from_file = load_tokenizer(File({}, str(tmp_path), "safetensors"))
    values = {"model": "llama", "tokens": tokens, "scores": np.array(scores), "token_type": np.array(types), "add_space_prefix": prefix}
    from_gguf = load_tokenizer(File({f"tokenizer.ggml.{k}": v for k, v in values.items()}))
    assert from_file.eos_ids == from_gguf.eos_ids == (2,)
    for text in ("abcd abba", "  a b", "x\u00e9\U0001f642 dad", "<s>ab</s>", ""):
        assert from_file.encode(text).tolist() == from_gguf.encode(text).tolist()
        assert from_file.decode(from_file.encode(text)) == text.replace("<s>", "").replace("</s>", "")


UNIGRAM_PIECES = [(w, s) for w, s in golden("sentencepiece")["t5"]["file"]["model"]["vocab"] if w[0] != "<"]
# Model type -> (file, tokens before the learnt pieces, tokens after them, template for one text, template for two texts).
ENCODER_FILES = {
    "xlm-roberta": ("sentencepiece.bpe.model", "<s> <pad> </s> <unk>", "<mask>", "<s> $A </s>", "<s> $A </s> </s> $B </s>"),
    "camembert": (
        "sentencepiece.bpe.model", "<s>NOTUSED <pad> </s>NOTUSED <unk> <unk>NOTUSED <s> </s>", "<mask>",
        "<s> $A </s>", "<s> $A </s> </s> $B </s>",
    ),
    "t5": ("spiece.model", "<pad> </s> <unk>", " ".join(f"<extra_id_{i}>" for i in range(99, -1, -1)), "$A </s>", "$A </s> $B </s>"),
    "deberta-v2": ("spm.model", "[PAD] [CLS] [SEP] [UNK]", "[MASK]", "[CLS] $A [SEP]", "[CLS] $A [SEP] $B:1 [SEP]:1"),
}  # fmt: skip


@pytest.mark.parametrize("kind", ENCODER_FILES)
def test_sentencepiece_files_of_encoders(tmp_path: Path, kind: str) -> None:
    """From a folder without a tokenizer.json, pumice must make the vocabulary that transformers' converters make
    (convert_slow_tokenizer.py)."""
    name, before, after, single, pair = ENCODER_FILES[kind]
    front, tail = before.split(), after.split()
    of_file = front if kind in ("t5", "deberta-v2") else ["<unk>", "<s>", "</s>"]
    words, scores = [w for w, _ in UNIGRAM_PIECES], [s for _, s in UNIGRAM_PIECES]
    types = [2 if token in ("<unk>", "[UNK]") else 3 for token in of_file] + [1] * len(words)
    (tmp_path / name).write_bytes(sentencepiece([*of_file, *words], [0.0] * len(of_file) + scores, types, 1, True))
    (tmp_path / "config.json").write_text(json.dumps({"model_type": kind}))
    tokenizer = load_tokenizer(File({}, str(tmp_path), "safetensors"))
    vocab = [(token, 0.0) for token in front] + list(UNIGRAM_PIECES) + [(token, 0.0) for token in tail]
    truth = Backend(models.Unigram(vocab, front.index("[UNK]" if kind == "deberta-v2" else "<unk>")))
    truth.normalizer = normalizers.Sequence([normalizers.Strip(), normalizers.Replace(Regex(" {2,}"), " ")])
    truth.pre_tokenizer = pre_tokenizers.Metaspace()
    special = [token for token in [*front, *tail] if not token.endswith("NOTUSED")]
    truth.add_special_tokens([AddedToken(t, special=True, normalized=False, lstrip=t == "<mask>") for t in special])
    ids = {token: i for i, (token, _) in enumerate(vocab)}
    around = [(token, ids[token]) for token in ("<s>", "</s>", "[CLS]", "[SEP]") if token in single]
    truth.post_processor = processors.TemplateProcessing(single=single, pair=pair, special_tokens=around)
    assert tokenizer.vocab_size == len(vocab)
    # Lines with SPACE are left out, because the normalisation tables in these files turn it into a space.
    lines = [line for line in LINES if SPACE not in line]
    assert [line for line in lines if tokenizer.encode(line).tolist() != truth.encode(line).ids] == []
    both, expected = tokenizer.encode_pairs([("a b", "c")]), truth.encode("a b", "c")
    assert both.ids.tolist() == expected.ids
    assert ([0] * len(expected.ids) if both.types is None else both.types.tolist()) == expected.type_ids


def test_sentencepiece_files_of_others_are_errors(tmp_path: Path) -> None:
    words = sentencepiece(["<unk>", "<s>", "</s>", "a"], [0.0] * 4, [2, 3, 3, 1], 1, True)
    (tmp_path / "spiece.model").write_bytes(words)
    for kind, said in (("albert", "'albert' makes its"), ([1], "makes its vocabulary"), ("deberta-v2", r"lacks the token '\[UNK\]'")):
        (tmp_path / "config.json").write_text(json.dumps({"model_type": kind}))
        with pytest.raises(TokenizerError, match=said):
            load_tokenizer(File({}, str(tmp_path), "safetensors"))


@pytest.mark.parametrize("cut", range(0, 400, 7))
def test_a_broken_sentencepiece_file_is_an_error(tmp_path: Path, cut: int) -> None:
    words, scores = random_spm(random.Random(3), 20)
    data = sentencepiece(["<unk>", "<s>", "</s>", *words], [0.0] * 3 + scores.tolist(), [2, 3, 3] + [1] * 20, 2, True)
    assert len(data) > 250
    (tmp_path / "tokenizer.model").write_bytes(data[: cut % len(data)])
    # If the file is cut between two pieces, it is a valid file with a smaller vocabulary. Any other error fails this test.
    with contextlib.suppress(TokenizerError):
        load_tokenizer(File({}, str(tmp_path), "safetensors"))


# ---- every kind of tokenizer: a folder and a GGUF file of it must give the ids of the tokenizers package (make_tokenizer_goldens.py)


def of_kind(keys: dict[str, Any], **more: Any) -> File:
    return File({**{f"tokenizer.ggml.{key}": value for key, value in keys.items()}, **more})


def folder_of(path: Path, spec: dict[str, Any]) -> Tokenizer:
    (path / "tokenizer.json").write_text(json.dumps(spec))
    return load_tokenizer(File({}, str(path), "safetensors"))


def same_as(spec: dict[str, Any], tokenizer: Tokenizer, pairs: bool = True, types: bool = True) -> list[str]:
    """Returns the lines whose ids differ from those of the tokenizers package: alone with and without special tokens, and in pairs."""
    backend = Backend.from_str(json.dumps(spec))
    wrong = [line for line in LINES if tokenizer.encode(line).tolist() != backend.encode(line).ids]
    wrong += [
        line for line in LINES if tokenizer.encode(line, add_special=False).tolist() != backend.encode(line, add_special_tokens=False).ids
    ]
    for first, second in zip(LINES[:40], LINES[40:80], strict=True) if pairs else ():
        batch, expected = tokenizer.encode_pairs([(first, second)]), backend.encode(first, second)
        given = [0] * len(batch.ids) if batch.types is None else batch.types.tolist()
        if batch.ids.tolist() != expected.ids or (types and given != expected.type_ids):
            wrong.append(f"{first} | {second}")
    return wrong


BYTE_BPE = golden("byte_bpe")
ROLES = {"bos_token_id": 0, "eos_token_id": 1, "padding_token_id": 2}
# Keys that a converter writes in addition to the vocabulary. In modern-bert, "add_sep_token": False means that only one separator is
# between two texts.
SAID = {"modern-bert": {"add_bos_token": True, "add_eos_token": True, "add_sep_token": False, "seperator_token_id": 1}}
SAID["roberta-bpe"] = {"add_bos_token": True, "add_eos_token": True, "seperator_token_id": 1}


@pytest.mark.parametrize("pre", sorted(BYTE_BPE["files"]))
def test_byte_bpe_of_every_family(tmp_path: Path, pre: str) -> None:
    tokens, merges = BYTE_BPE["tokens"], BYTE_BPE["merges"]
    spec = json.loads(json.dumps(BYTE_BPE["files"][pre]))
    spec["model"] |= {"vocab": {token: i for i, token in enumerate(tokens)}, "merges": merges}
    folder = folder_of(tmp_path, spec)
    sums = [i for line in LINES for i in folder.encode(line, add_special=False).tolist()]
    assert checksum(np.array(sums)) == BYTE_BPE["sums"][pre]
    assert same_as(spec, folder) == []
    keys = {"model": "gpt2", "pre": pre, "tokens": tokens, "merges": merges, "token_type": np.array([3] * 3 + [1] * (len(tokens) - 3))}
    gguf = load_tokenizer(of_kind(keys | ROLES | SAID.get(pre, {})))
    # ModernBERT's tokenizer.json gives the second text type 1, although the model has no types. From GGUF, all types are 0.
    assert same_as(spec, gguf, types=pre != "modern-bert") == []


def test_every_name_of_a_split_can_be_built() -> None:
    keys = {"model": "gpt2", "tokens": BYTE_BPE["tokens"], "merges": BYTE_BPE["merges"]} | ROLES
    names = ["afmoe", "chameleon", "exaone-moe", "glm5", "kimi-k2", "laguna", "minicpm5", "spark2_5", "superbpe", "ufakzeka", "youtu"]
    assert {*names, "whitespace"} <= SPLITS.keys()
    for pre in SPLITS:
        tokenizer = load_tokenizer(of_kind({**keys, "pre": pre}))
        assert len(tokenizer.encode("Hello 12345 world", add_special=False)) > 2, pre


def test_one_pattern_finds_the_words_between_digits() -> None:
    """StarCoder's and SmolLM's tokenizer.json have two steps for this."""
    (pattern,) = SPLITS["starcoder"].patterns
    one = pre_tokenizers.Split(Regex(pattern), "isolated")
    two = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)])
    draw = random.Random(0)
    for _ in range(20000):
        text = "".join(
            draw.choices(["1", "\u0663", "\u00bd", "a", "\u00e9", "\u0301", " ", "\n", "\u3000", "'", "'s", "'ll", ".", "<"], k=12)
        )
        assert [place for _, place in one.pre_tokenize_str(text)] == [place for _, place in two.pre_tokenize_str(text)], text


def test_glm_has_no_first_token_of_its_own() -> None:
    keys = {"model": "gpt2", "tokens": BYTE_BPE["tokens"], "merges": BYTE_BPE["merges"]}
    assert load_tokenizer(of_kind({**keys, "pre": "gpt-2"})).bos_id == 11
    for pre in ("glm4", "glm5", "chatglm-bpe"):
        assert load_tokenizer(of_kind({**keys, "pre": pre})).bos_id is None


def test_a_vocabulary_of_ranks_needs_no_merges() -> None:
    tokens = BYTE_BPE["tokens"][3:1500]
    keys = {"model": "gpt2", "pre": "kimi-k2", "tokens": tokens, "eos_token_id": 0xFFFFFFFF, "bos_token_id": 0xFFFFFFFF}
    with_merges = load_tokenizer(of_kind({**keys, "merges": BYTE_BPE["merges"]}))
    ranked = load_tokenizer(of_kind(keys))
    assert all(ranked.encode(line).tolist() == with_merges.encode(line).tolist() for line in LINES)


@pytest.mark.parametrize("pre", ["afmoe", "superbpe", "tiny_aya", "kimi-k2", "exaone-moe", "youtu", "chameleon"])
@pytest.mark.parametrize("text", ["7", "a ", "\u4e00", "1a"])
def test_cutting_is_linear(pre: str, text: str) -> None:
    keys = {"model": "gpt2", "pre": pre, "tokens": BYTE_BPE["tokens"], "merges": []} | ROLES
    tokenizer = load_tokenizer(of_kind(keys))

    def seconds(size: int) -> float:
        start = time.process_time()
        tokenizer.encode(text * size)
        return time.process_time() - start

    seconds(10)
    small, large = seconds(1 << 12), seconds(1 << 15)
    # For 8 times the text, a lookahead from every group of digits once took 25 times as long.
    assert large < 8 * 3 * small + 0.1, (small, large)


SENTENCEPIECE = golden("sentencepiece")


@pytest.mark.parametrize("name", sorted(SENTENCEPIECE))
def test_sentencepiece_of_every_family(tmp_path: Path, name: str) -> None:
    spec, keys = SENTENCEPIECE[name]["file"], SENTENCEPIECE[name]["gguf"]
    folder = folder_of(tmp_path, spec)
    sums = [i for line in LINES for i in folder.encode(line, add_special=False).tolist()]
    assert checksum(np.array(sums)) == SENTENCEPIECE[name]["sum"]
    assert same_as(spec, folder) == []
    arrays = {key: np.array(keys[key]) for key in ("scores", "token_type", "precompiled_charsmap") if key in keys}
    gguf = load_tokenizer(of_kind({**keys, **arrays}))
    assert same_as(spec, gguf) == []


def test_old_xlmr_files_say_nothing_of_their_edges() -> None:
    """The tokenizer must add both ends and join spaces, even if an old file such as bge-m3 of 2024 does not ask for it. That file has no
    add_bos_token and no add_eos_token, and its remove_extra_whitespaces is false."""
    keys = SENTENCEPIECE["bge-m3"]["gguf"]
    assert not keys.keys() & {"add_bos_token", "add_eos_token", "bos_token_id", "add_sep_token"} and not keys["remove_extra_whitespaces"]
    tokenizer = load_tokenizer(of_kind(keys))
    assert tokenizer.encode("a").tolist()[0] == tokenizer.id("<s>") == 0
    assert tokenizer.encode("a").tolist()[-1] == tokenizer.id("</s>") == 2
    assert tokenizer.encode("a    b").tolist() == tokenizer.encode("a b").tolist()
    between = tokenizer.encode_pairs([("a", "b")])
    assert between.ids.tolist().count(2) == 3
    assert between.types is None
    said = load_tokenizer(of_kind({**keys, "add_sep_token": False}))
    assert said.encode_pairs([("a", "b")]).ids.tolist().count(2) == 2


def test_t5_ends_with_one_token() -> None:
    tokenizer = load_tokenizer(of_kind(SENTENCEPIECE["t5"]["gguf"]))
    ids = tokenizer.encode("a b").tolist()
    assert ids[-1] == 1 and ids.count(1) == 1 and 0 not in ids
    # In a file with the architecture bert, the same vocabulary gets a token at both ends.
    both = load_tokenizer(of_kind({**SENTENCEPIECE["t5"]["gguf"], "bos_token_id": 0}, **{"general.architecture": "bert"}))
    assert both.encode("a b").tolist() == [0, *ids]


def test_gemma4_always_begins_with_its_first_token() -> None:
    keys = SENTENCEPIECE["gemma4"]["gguf"]
    assert keys["add_bos_token"] is False
    tokenizer = load_tokenizer(of_kind(keys))
    assert tokenizer.encode("x").tolist()[0] == 1
    for line in LINES:
        assert tokenizer.decode(tokenizer.encode(line, add_special=False), skip_special=False) == line.replace(SPACE, " ")
    same = load_tokenizer(of_kind({**keys, "model": "gpt2", "pre": "granite-embed-multi-311m"}))
    assert all(same.encode(line).tolist() == tokenizer.encode(line).tolist() for line in LINES)
    sarvam = load_tokenizer(of_kind({**keys, "model": "gpt2", "pre": "sarvam-moe"}))
    assert sarvam.encode("x").tolist() == tokenizer.encode("x").tolist()[1:]


def test_mpnet_pairs_and_specials(tmp_path: Path) -> None:
    words = ["<s>", "<pad>", "</s>", "<unk>", "hello", "world", "##s", "[UNK]", "<mask>"]
    (tmp_path / "vocab.txt").write_text("\n".join(words))
    names = {"cls_token": "<s>", "sep_token": "</s>", "pad_token": "<pad>", "mask_token": "<mask>", "unk_token": "[UNK]"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(names))
    tokenizer = load_tokenizer(File({}, str(tmp_path), "safetensors"))
    assert tokenizer.encode("Hello worlds x").tolist() == [0, 4, 5, 6, 7, 2]
    pair = tokenizer.encode_pairs([("hello", "world")])
    assert pair.ids.tolist() == [0, 4, 2, 2, 5, 2]
    assert pair.types is None
    spelt = [w[2:] if w.startswith("##") else w if w[0] in "<[" else SPACE + w for w in words]
    keys = {"model": "bert", "tokens": spelt, "token_type": np.array([3, 3, 3, 3, 1, 1, 1, 3, 3])}
    ids = {"cls_token_id": 0, "seperator_token_id": 2, "unknown_token_id": 7, "padding_token_id": 1, "mask_token_id": 8}
    gguf = load_tokenizer(of_kind(keys | ids))
    assert gguf.encode("Hello worlds x").tolist() == [0, 4, 5, 6, 7, 2]
    assert gguf.encode_pairs([("hello", "world")]).ids.tolist() == [0, 4, 2, 2, 5, 2]


def test_the_mask_takes_the_space_before_it() -> None:
    spec, keys = SENTENCEPIECE["xlmr"]["file"], SENTENCEPIECE["xlmr"]["gguf"]
    backend, tokenizer = Backend.from_str(json.dumps(spec)), load_tokenizer(of_kind(keys))
    for text in ("a <mask> b", "a<mask>b", "a  <mask>"):
        assert tokenizer.encode(text).tolist() == backend.encode(text).ids
    assert tokenizer.encode("a <mask>").tolist() == tokenizer.encode("a<mask>").tolist()


@pytest.mark.parametrize("prefix", [False, True])
@pytest.mark.parametrize("kind", ["RobertaTokenizer", "GPT2Tokenizer", "OPT", "Qwen2Tokenizer"])
def test_vocabulary_and_merges_alone(tmp_path: Path, kind: str, prefix: bool) -> None:
    """From a folder with vocab.json and merges.txt but no tokenizer.json, pumice must make the tokenizer that transformers makes."""
    tokens, merges = [*BYTE_BPE["tokens"], "<mask>"], BYTE_BPE["merges"]
    (tmp_path / "vocab.json").write_text(json.dumps({token: i for i, token in enumerate(tokens)}))
    (tmp_path / "merges.txt").write_text("#version: 0.2\n" + "\n".join(merges) + "\n")
    names = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>"}
    config: dict[str, Any] = {"tokenizer_class": kind, **names, "add_prefix_space": prefix}
    if kind == "OPT":
        config |= {"tokenizer_class": "GPT2Tokenizer", "bos_token": "</s>", "add_bos_token": True}
    if kind == "RobertaTokenizer":  # old files have only the model type in config.json
        del config["tokenizer_class"]
        (tmp_path / "config.json").write_text('{"model_type": "roberta"}')
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    truth = Backend(models.BPE({token: i for i, token in enumerate(tokens)}, [tuple(m.split(" ")) for m in merges]))
    truth.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=prefix)
    if kind == "Qwen2Tokenizer":
        if prefix:
            return
        spec = json.loads(truth.to_str()) | {k: v for k, v in BYTE_BPE["files"]["qwen2"].items() if k in ("normalizer", "pre_tokenizer")}
        truth = Backend.from_str(json.dumps(spec))
    named = ["</s>", "<pad>", *([] if kind == "OPT" else ["<s>"]), *(["<mask>"] if kind == "RobertaTokenizer" else [])]
    truth.add_special_tokens([AddedToken(t, special=True, normalized=False, lstrip=t == "<mask>") for t in named])
    if kind == "RobertaTokenizer":
        truth.post_processor = processors.RobertaProcessing(("</s>", 1), ("<s>", 0), True, prefix)
    elif kind == "OPT":
        truth.post_processor = processors.TemplateProcessing(single="</s> $A", pair="</s> $A $B", special_tokens=[("</s>", 1)])
    tokenizer = load_tokenizer(File({}, str(tmp_path), "safetensors"))
    for line in LINES:
        assert tokenizer.encode(line).tolist() == truth.encode(line).ids, line
    if kind == "RobertaTokenizer":
        pair = tokenizer.encode_pairs([(LINES[0], LINES[1])])
        assert pair.ids.tolist() == truth.encode(LINES[0], LINES[1]).ids
        assert pair.types is None


def test_clip_has_lowercase_words_that_say_where_they_end(tmp_path: Path) -> None:
    """From vocab.json and merges.txt as in OpenAI's folders, pumice must make the tokenizer that transformers' CLIPConverter makes."""
    letters = list(pre_tokenizers.ByteLevel.alphabet())
    merges = ["h e", "l l", "he ll", "hell o</w>", "t h", "th e</w>", "1 2</w>", ". .</w>"]
    tokens = sorted(letters) + [f"{letter}</w>" for letter in sorted(letters)]
    tokens += [merge.replace(" ", "") for merge in merges] + ["<|startoftext|>", "<|endoftext|>"]
    ids = {token: i for i, token in enumerate(tokens)}
    (tmp_path / "vocab.json").write_text(json.dumps(ids))
    (tmp_path / "merges.txt").write_text("#version: 0.2\n" + "\n".join(merges) + "\n")
    (tmp_path / "config.json").write_text('{"model_type": "clip_text_model"}')
    pattern = Regex(r"'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+")
    truth = Backend(
        models.BPE(ids, [tuple(m.split(" ")) for m in merges], end_of_word_suffix="</w>", unk_token="<|endoftext|>", fuse_unk=False)
    )
    truth.normalizer = normalizers.Sequence([normalizers.NFC(), normalizers.Replace(Regex(r"\s+"), " "), normalizers.Lowercase()])
    truth.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(pattern, "removed", invert=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    start, end = ids["<|startoftext|>"], ids["<|endoftext|>"]
    truth.post_processor = processors.RobertaProcessing(("<|endoftext|>", end), ("<|startoftext|>", start), False, False)
    truth.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in ("<|startoftext|>", "<|endoftext|>")])
    tokenizer = load_tokenizer(File({}, str(tmp_path), "safetensors"))
    assert tokenizer.encode("Hello  the").tolist() == [start, ids["hello</w>"], ids["the</w>"], end]
    for line in [*LINES, "", " HELLO\tthe 12 .. don't"]:
        assert tokenizer.encode(line).tolist() == truth.encode(line).ids, line
    assert tokenizer.encode_pairs([("hello", "the")]).ids.tolist() == truth.encode("hello", "the").ids
    (tmp_path / "vocab.json").write_text(json.dumps({token: i for token, i in ids.items() if i < start}))
    with pytest.raises(TokenizerError, match="startoftext"):
        load_tokenizer(File({}, str(tmp_path), "safetensors"))


@pytest.mark.parametrize(
    ("vocab", "said"),
    [
        ("[]", "object"),
        ('{"a": 1}', "are not 0 to 0"),
        ('{"a": "x"}', "are not 0 to 0"),
        ('{"a": 0, "b": 0}', "are not 0 to 1"),
        ("{}", "tokenizer="),
    ],
)
def test_a_broken_vocabulary_file_is_an_error(tmp_path: Path, vocab: str, said: str) -> None:
    (tmp_path / "vocab.json").write_text(vocab)
    (tmp_path / "merges.txt").write_text("")
    (tmp_path / "config.json").write_text('{"model_type": "roberta"}')
    with pytest.raises((TokenizerError, ModelFormatError), match=said):
        load_tokenizer(File({}, str(tmp_path), "safetensors"))


def test_wordpiece_strips_accents_as_its_file_says() -> None:
    lower = load_tokenizer(bert_gguf(**{"normalizer.lowercase": True, "normalizer.strip_accents": False}))
    both = load_tokenizer(bert_gguf())
    assert both.encode("caf\u00e9").tolist() == both.encode("cafe").tolist()
    assert lower.encode("caf\u00e9").tolist() != lower.encode("cafe").tolist()
    assert lower.encode("CAF\u00c9").tolist() == lower.encode("caf\u00e9").tolist()


# ---- what files say


def test_unknown_split_is_an_error_that_names_the_fix(smol_file: File) -> None:
    with pytest.raises(TokenizerError, match=r"'martian'.*tokenizer="):
        load_tokenizer(with_keys(smol_file, pre="martian"))


def test_unknown_and_missing_kind(smol_file: File) -> None:
    with pytest.raises(TokenizerError, match=r"kind 'rwkv'.*tokenizer="):
        load_tokenizer(with_keys(smol_file, model="rwkv"))
    with pytest.raises(TokenizerError, match=r"has no tokenizer.*tokenizer="):
        load_tokenizer(File({}))
    with pytest.raises(TokenizerError, match=r"no tokenizer.json.*tokenizer="):
        load_tokenizer(File({}, str(Path(__file__).parent), "safetensors"))


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallinfo2"), reason="not run: asks glibc 2.33 or later for its heap")
def test_a_dropped_tokenizer_leaves_no_words() -> None:
    """With the word cache of the tokenizers package, each of these tokenizers left 0.8 MB."""
    backend = Backend(models.BPE({letter: i for i, letter in enumerate("abc")}, []))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    text = " ".join(map("".join, itertools.islice(itertools.product("abc", repeat=7), 1000)))

    def use() -> None:
        tokenizer = Tokenizer(copy_of(backend))
        assert len(tokenizer.encode(text)) == 7000
        assert len(tokenizer.encode_batch([text, text])) == 2
        assert len(tokenizer.encode(text, parse_special=False)) == 7000

    use()
    before = heap_in_use()
    for _ in range(20):
        use()
    assert heap_in_use() - before < 1 << 20


def test_ends_of_generation(smol: Tokenizer, gemma: Tokenizer) -> None:
    assert {smol.token(i) for i in smol.eos_ids} == {"<|im_end|>", "<|endoftext|>", "<reponame>"}  # the same as in llama.cpp
    assert {gemma.token(i) for i in gemma.eos_ids} == {"<eos>", "<end_of_turn>"}
    harmony = {"<|end|>": 5, "<|return|>": 6, "<|call|>": 7}
    assert gguf_tokenizer.end_ids(harmony.get, ()) == (6, 7)
    assert gguf_tokenizer.end_ids({"<|end|>": 5}.get, ()) == (5,)
    assert gguf_tokenizer.end_ids({}.get, (9, 3, 9)) == (3, 9)


def test_a_folder_collects_the_ends_of_all_its_files(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text(tiny_backend().to_str())
    (tmp_path / "config.json").write_text('{"eos_token_id": 3}')
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [3, 4]}')
    (tmp_path / "tokenizer_config.json").write_text('{"eos_token": {"content": "d"}, "bos_token": "a", "model_max_length": 1e30}')
    tokenizer = load_tokenizer(File({}, str(tmp_path), "safetensors"))
    assert tokenizer.eos_ids == (tokenizer.id("d"), 3, 4) or set(tokenizer.eos_ids) == {3, 4, tokenizer.id("d")}
    assert tokenizer.bos_id == tokenizer.id("a")
    assert tokenizer.max_length is None
    assert tokenizer.id("a") in tokenizer.special_ids
    assert tokenizer.decode([0, 1]) == "b"


def test_ends_that_only_the_config_names(tmp_path: Path) -> None:
    """tokenizer_config.json may ask for end tokens that tokenizer.json does not add: in e5-mistral, tokenizer.json adds only <s>. An end
    token that tokenizer.json does add must stay, as in Qwen3-Embedding."""
    backend = tiny_backend()
    backend.add_special_tokens(["a", "b", "c"])
    config = {"bos_token": "a", "eos_token": "b", "add_bos_token": True, "add_eos_token": True}
    tokens = [("a", 0), ("b", 1), ("c", 2)]
    for single, said, around in (
        ("a $A", config, (("a",), ("b",))),
        ("$A", config, (("a",), ("b",))),
        ("$A", {**config, "add_eos_token": False}, (("a",), ())),
        ("a $A b", config, (("a",), ("b",))),
        ("$A c", {**config, "add_bos_token": False}, ((), ("c",))),
    ):
        backend.post_processor = processors.TemplateProcessing(single=single, pair=f"{single} $B:1", special_tokens=tokens)
        (tmp_path / "tokenizer.json").write_text(backend.to_str())
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(said))
        tokenizer = load_tokenizer(File({}, str(tmp_path), "safetensors"))
        assert tokenizer.around == around
        ids = [tokenizer.id(token) for token in (*around[0], "d", "e", *around[1])]
        assert tokenizer.encode("de").tolist() == ids
        assert tokenizer.backend.encode("de").ids == ids  # the tokenizer that users get gives the same
        assert tokenizer.encode_batch(["de"]).ids.tolist() == ids


def test_added_tokens_of_the_config_match_whole(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text(tiny_backend().to_str())
    (tmp_path / "tokenizer_config.json").write_text(
        json.dumps({"added_tokens_decoder": {"2": {"content": "c", "special": True}, "99": {"content": "new", "special": True}, "x": 1}})
    )
    tokenizer = load_tokenizer(File({}, str(tmp_path), "safetensors"))
    assert tokenizer.special_ids == {2}
    assert tokenizer.id("new") is None  # the model has no row for the id 99


def tiny_backend() -> Backend:
    backend = Backend(models.BPE({c: i for i, c in enumerate("abcdef")}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.enable_truncation(3)
    backend.enable_padding(length=10)
    return backend


def test_truncation_and_padding_of_the_file_are_off(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_text(tiny_backend().to_str())
    for override in (path, tmp_path, tiny_backend()):
        tokenizer = load_tokenizer(File({}), override)
        assert tokenizer.encode("abcdef").tolist() == [0, 1, 2, 3, 4, 5]
        assert tokenizer.encode_batch(["a", "abcdef"]).offsets.tolist() == [0, 1, 7]


def test_overrides(minilm: Tokenizer, tmp_path: Path, smol_file: File) -> None:
    assert load_tokenizer(File({}), minilm) is minilm
    with pytest.raises(FileNotFoundError, match="tokenizer="):
        load_tokenizer(File({}), tmp_path / "none.json")
    with pytest.raises(TypeError, match="found int"):
        load_tokenizer(File({}), 3)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(TokenizerError, match="tokenizer="):
        load_tokenizer(File({}), tmp_path)
    given = load_tokenizer(smol_file, str(samples.minilm() / "tokenizer.json"))
    assert given.encode("hello").tolist() == [101, 7592, 102]
    assert 2 in given.eos_ids  # the end token of the GGUF file, with its id in that file


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"tokens": None}, "tokens is missing"),
        ({"tokens": [1, 2]}, "list of strings"),
        ({"tokens": []}, "missing"),
        ({"tokens": ["a", "b", "a"], "token_type": None}, "both 'a'"),
        ({"tokens": ["a", "\udcff"], "token_type": None}, "tokenizer="),
        ({"token_type": np.zeros(3, np.int32)}, "one per token"),
        ({"token_type": "x"}, "one per token"),
        ({"token_type": [[1], [2, 3]]}, "one per token"),
        ({"merges": None}, "merges is missing"),
        ({"merges": [3]}, "list of strings"),
        ({"pre": 7}, "tokenizer="),
        ({"eos_token_id": 10**9}, "vocabulary has 49152"),
        ({"eos_token_id": -5}, "vocabulary has 49152"),
        ({"eos_token_id": "x"}, "vocabulary has 49152"),
        ({"add_bos_token": True, "bos_token_id": 0xFFFFFFFF}, "bos token is to be added"),
        ({"model": "llama"}, "scores is missing"),
        ({"model": "llama", "scores": np.full(49152, np.nan, np.float32)}, "no finite number"),
        ({"model": "t5", "unknown_token_id": 0xFFFFFFFF}, "needs an unknown token"),
        ({"model": "t5"}, "scores is missing"),
        ({"model": ["gpt2"]}, "tokenizer="),
        ({"model": "gemma4", "merges": None}, "merges is missing"),
        ({"model": "gemma4", "bos_token_id": 0xFFFFFFFF}, "bos token is to be added"),
        ({"pre": "kimi-k2", "merges": [1]}, "list of strings"),
        ({"add_sep_token": True, "eos_token_id": 0xFFFFFFFF}, "sep token is to be added"),
        ({"add_sep_token": np.zeros(3)}, "tokenizer="),
    ],
)
def test_broken_metadata_is_a_tokenizer_error(smol_file: File, changes: dict[str, Any], said: str) -> None:
    with pytest.raises(TokenizerError, match=said) as caught:
        load_tokenizer(with_keys(smol_file, **changes))
    assert "tokenizer=" in str(caught.value)


def test_merges_of_tokens_that_do_not_exist_are_left_out(smol_file: File, smol: Tokenizer) -> None:
    merges = [*smol_file.get("tokenizer.ggml.merges"), "zzzz qqqq", "nospace", "", " "]
    assert load_tokenizer(with_keys(smol_file, merges=merges)).encode("some words").tolist() == smol.encode("some words").tolist()


@pytest.mark.parametrize("text", ["{", "[]", '{"version": "1.0"}', '{"model": {"type": "Unigram", "vocab": []}}', "\x00", '{"a":' * 3000])
def test_broken_tokenizer_json(tmp_path: Path, text: str) -> None:
    (tmp_path / "tokenizer.json").write_text(text)
    with pytest.raises(TokenizerError, match="tokenizer="):
        load_tokenizer(File({}, str(tmp_path), "safetensors"))


def test_a_panic_inside_tokenizers_is_a_tokenizer_error(tmp_path: Path) -> None:
    # A character map of zeros makes the tokenizers package panic (huggingface/tokenizers issues 1627 and 1645).
    (tmp_path / "tokenizer.json").write_text(
        json.dumps({**json.loads(tiny_backend().to_str()), "normalizer": {"type": "Precompiled", "precompiled_charsmap": "AAAAAA=="}})
    )
    with pytest.raises(TokenizerError, match="tokenizer="):
        load_tokenizer(File({}, str(tmp_path), "safetensors"))


# ---- texts


def test_control_tokens_in_a_text_are_text_when_asked(smol: Tokenizer, gemma: Tokenizer) -> None:
    for tokenizer, text in ((smol, "<|im_end|>"), (gemma, "<end_of_turn>")):
        index = tokenizer.id(text)
        assert index in tokenizer.encode(f"a{text}b").tolist()
        plain = tokenizer.encode(f"a{text}b", add_special=False, parse_special=False)
        assert not set(plain.tolist()) & tokenizer.special_ids
        assert tokenizer.decode(plain, skip_special=False) == f"a{text}b"
    mixed = smol.encode_parts([("<|im_start|>user\n", True), ("<|im_end|>", False), ("<|im_end|>\n", True)])
    assert mixed.tolist().count(smol.id("<|im_end|>")) == 1
    assert smol.decode(mixed, skip_special=False) == "<|im_start|>user\n<|im_end|><|im_end|>\n"


@pytest.mark.parametrize("bad", [3, None, b"bytes", ["list"], 1.5])
def test_texts_that_are_none(minilm: Tokenizer, bad: Any) -> None:
    with pytest.raises(TypeError, match="must be str"):
        minilm.encode(bad)
    with pytest.raises(TypeError, match=r"texts\[1\] must be str"):
        minilm.encode_batch(["fine", bad])


def test_wrong_batches(minilm: Tokenizer) -> None:
    with pytest.raises(TypeError, match="one str"):
        minilm.encode_batch("one text")
    with pytest.raises(TypeError, match=r"pairs\[1\]"):
        minilm.encode_pairs([("a", "b"), "ab"])  # type: ignore[list-item]
    with pytest.raises(TypeError, match=r"pairs\[0\]"):
        minilm.encode_pairs([("a", "b", "c")])  # type: ignore[list-item]
    with pytest.raises(ValueError, match="at least 3"):
        minilm.encode_batch(["a"], truncate_to=2)
    empty = minilm.encode_batch([])
    assert len(empty) == 0
    assert empty.ids.dtype == np.int32
    assert empty.offsets.tolist() == [0]
    assert len(minilm.encode_pairs([])) == 0


@pytest.mark.parametrize("bad", ["\ud800", "fine \udfff not", "x" * 50 + "\udbff"])
def test_lone_surrogates(minilm: Tokenizer, gemma: Tokenizer, bad: str) -> None:
    for tokenizer in (minilm, gemma):
        with pytest.raises(ValueError, match=r"lone surrogate U\+D"):
            tokenizer.encode(bad)
        with pytest.raises(ValueError, match=r"texts\[1\] has a lone surrogate"):
            tokenizer.encode_batch(["fine", bad])


def test_batches_equal_single_texts(minilm: Tokenizer, gemma: Tokenizer, smol: Tokenizer) -> None:
    for tokenizer in (minilm, gemma, smol):
        for add_special in (True, False):
            batch = tokenizer.encode_batch(LINES, add_special)
            assert batch.ids.tolist() == [i for line in LINES for i in tokenizer.encode(line, add_special).tolist()]
            assert batch.lengths_before_cut.tolist() == np.diff(batch.offsets).tolist() == [tokenizer.count(t, add_special) for t in LINES]


# ---- decoding


def all_ids(tokenizer: Tokenizer) -> list[list[int]]:
    rng = random.Random(5)
    random_ids = [[rng.randrange(tokenizer.vocab_size) for _ in range(30)] for _ in range(60)]
    return [*(tokenizer.encode(line).tolist() for line in LINES), *random_ids]


@pytest.mark.parametrize("name", ["smol", "gemma", "gemma_prefix", "minilm"])
@pytest.mark.parametrize("skip_special", [True, False])
def test_steps_of_a_stream_make_the_whole(name: str, skip_special: bool, gemma_file: File, request: pytest.FixtureRequest) -> None:
    tokenizer = load_tokenizer(with_keys(gemma_file, add_space_prefix=True)) if name == "gemma_prefix" else request.getfixturevalue(name)
    rng = random.Random(9)
    for ids in all_ids(tokenizer):
        stream = tokenizer.decode_stream(skip_special)
        pieces, at = [], 0
        while at < len(ids):
            size = rng.choice([1, 1, 1, 2, 5])
            pieces.append(stream.step(np.array(ids[at : at + size], np.int32)))
            at += size
        pieces.append(stream.flush())
        assert "".join(pieces) == tokenizer.decode(ids, skip_special)
        assert all(piece.encode() is not None for piece in pieces)  # every piece is valid UTF-8


@pytest.mark.parametrize("name", ["smol", "gemma"])
def test_decoding_gives_the_text_back(name: str, request: pytest.FixtureRequest) -> None:
    tokenizer = request.getfixturevalue(name)
    for line in LINES:
        back = tokenizer.decode(tokenizer.encode(line, add_special=False), skip_special=False)
        assert back == (line.replace(SPACE, " ") if name == "gemma" else line)  # Gemma writes a space as SPACE


@pytest.mark.parametrize("name", ["smol", "gemma"])
def test_bytes_of_tokens_make_the_text(name: str, request: pytest.FixtureRequest) -> None:
    tokenizer = request.getfixturevalue(name)
    split = 0
    for line in [*LINES, "🦩🪨 naïve 日本", "a" + "\U0001fae8" * 3]:
        pieces = [tokenizer.token_bytes(i) for i in tokenizer.encode(line, add_special=False).tolist()]
        text = line if name == "smol" else line.replace(SPACE, " ")
        assert b"".join(pieces).decode() == text
        split += sum(piece.decode(errors="replace").encode() != piece for piece in pieces)
    assert split > 10  # parts of characters were among them
    for i in tokenizer.special_ids:
        assert tokenizer.token_bytes(i) == tokenizer.added[i].content.encode()
    assert tokenizer.token_bytes(tokenizer.vocab_size + 5) == "\ufffd".encode()


def test_bytes_of_wordpiece_tokens(minilm: Tokenizer) -> None:
    ids = minilm.encode("pumice floats, unknown🦩 1.5").tolist()
    pieces = [minilm.token_bytes(i) for i in ids]
    assert pieces[0] == b"[CLS]" and pieces[-1] == b"[SEP]"
    assert pieces[1:5] == [b" pu", b"mic", b"e", b" floats"]
    assert minilm.token_bytes(minilm.id("##ing") or 0) == b"ing" and minilm.token_bytes(minilm.id("hello") or 0) == b" hello"
    assert minilm.token_bytes(minilm.vocab_size) == "\ufffd".encode()


def test_decoding_is_that_of_the_backend(smol: Tokenizer, gemma: Tokenizer, minilm: Tokenizer) -> None:
    for tokenizer in (smol, gemma, minilm):
        for line in LINES:
            ids = tokenizer.encode(line).tolist()
            assert tokenizer.decode(ids) == tokenizer.backend.decode(ids, skip_special_tokens=True)


def test_unfinished_characters_wait(smol: Tokenizer) -> None:
    ids = smol.encode("🦩", add_special=False).tolist()
    assert len(ids) > 1
    stream = smol.decode_stream()
    assert [stream.step([i]) for i in ids] == [""] * (len(ids) - 1) + ["🦩"]
    assert stream.step(ids[:1]) == ""
    assert stream.flush() == "\ufffd"


@pytest.mark.parametrize("ids", [[-1], [1 << 31], [10**12], [49152]])
def test_ids_that_do_not_exist(smol: Tokenizer, ids: list[int]) -> None:
    with pytest.raises(ValueError, match="no token"):
        smol.decode(ids)


@pytest.mark.parametrize("dtype", [np.float64, np.complex64, np.bool_, "datetime64[s]", object, "<U3"])
def test_no_ids_of_any_dtype(dtype: Any) -> None:
    """Fuzzing found that numpy warned of a cast of no complex numbers."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = check_ids(np.zeros(0, dtype), 100, "ids")
    assert found.dtype == np.int32 and found.shape == (0,)


def test_ids_of_the_wrong_kind(smol: Tokenizer, minilm: Tokenizer) -> None:
    for bad in ([1.5], [[1, 2]], ["a"]):
        with pytest.raises(TypeError, match="whole numbers"):
            smol.decode(bad)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="no token 999999"):
        minilm.decode([999999])
    assert smol.decode([]) == ""
    assert smol.decode(np.array([], np.int32)) == ""


# ---- time


HOSTILE = {
    "one letter": "a",
    "spaces": " ",
    "newlines": "\n",
    "digits": "7",
    "one ideograph": "\u4e00",
    "accents": "e\u0301",
    "combining marks": "\u0301",
    "emoji": "\U0001f642",
    "punctuation": "!?",
    "apostrophes": "'",
    "tabs and spaces": " \t",
    "capitals": "A",
}


# The size of the texts: at most 1 s for 1 MiB is promised. PUMICE_TEST_ALL=1 takes 8 MiB.
SIZE = 8 << 20 if os.environ.get("PUMICE_TEST_ALL") == "1" else 1 << 19


@pytest.fixture(scope="module")
def unigram() -> Tokenizer:
    """A vocabulary of 16,000 random words, because no sample model has a tokenizer of this kind."""
    draw = random.Random(1)
    words = {mark + "".join(draw.choices(string.ascii_lowercase, k=draw.randrange(2, 7))) for mark in ("", SPACE) for _ in range(8000)}
    tokens = ["<unk>", "<s>", "</s>", SPACE, *map(chr, range(33, 127)), *sorted(words)]
    scores = np.linspace(-10, -20, len(tokens)).astype(np.float32)
    keys = {"model": "t5", "tokens": tokens, "scores": scores, "token_type": np.asarray([2, 3, 3] + [1] * (len(tokens) - 3), np.int32)}
    ids = {"unknown_token_id": 0, "eos_token_id": 2}
    return load_tokenizer(File({f"tokenizer.ggml.{key}": value for key, value in (keys | ids).items()}))


@pytest.mark.parametrize("what", [*HOSTILE, "random letters"])
def test_time_is_linear_in_a_text_of_anything(what: str, smol: Tokenizer, gemma: Tokenizer, minilm: Tokenizer, unigram: Tokenizer) -> None:
    """At most 1 s for 1 MiB, and 2.3 times as long for twice the text. Both are asserted at 5 times as much, over 16 times the text: a
    tokenizer whose time is quadratic takes 256 times as long for that, and 2.3 to the fourth is 28."""

    def seconds(tokenizer: Tokenizer, size: int) -> float:
        text = HOSTILE[what] * (size // len(HOSTILE[what].encode())) if what in HOSTILE else letters[:size]
        start = time.process_time()
        tokenizer.encode(text)
        return time.process_time() - start

    letters = "".join(random.Random(3).choices(string.ascii_lowercase, k=SIZE)) if what not in HOSTILE else ""
    for tokenizer in (smol, gemma, minilm, unigram):
        small, large = seconds(tokenizer, SIZE // 16), seconds(tokenizer, SIZE)
        assert large < 5 * SIZE / (1 << 20), (tokenizer, small, large)
        assert large < 5 * 28 * small + 0.1, (tokenizer, small, large)


def test_batches_without_threads(minilm: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    """The package `tokenizers` panics for the rest of the process if its threads cannot be started at the first batch (a limit on
    processes). So such a batch does not reach its threads, and a later one does."""
    texts = ["a stone", "two rivers, and a stone", ""]
    expected = minilm.encode_batch(texts), minilm.encode_placed(texts)
    threads = backends.Threads()
    for module in (backends, tokenizers_module):
        monkeypatch.setattr(module, "threads", threads)
    start, allowed = _thread.start_new_thread, 1

    def limited(*arguments: Any) -> int:
        nonlocal allowed
        allowed -= 1
        if allowed < 0:
            raise RuntimeError("can't start new thread")
        return start(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(_thread, "start_new_thread", limited)
        patch.setattr(Tokenizer, "_words", None, raising=False)
        found = minilm.encode_batch(texts), minilm.encode_placed(texts)
        assert not threads.run()
    for mine, theirs in zip(found, expected, strict=True):
        assert np.array_equal(mine.ids, theirs.ids)
        assert np.array_equal(mine.offsets, theirs.offsets)
    assert np.array_equal(found[1].places, expected[1].places)
    assert threads.run()
