"""The smallest valid files of each kind: the folder of an encoder, and the GGUF file of a decoder."""

from __future__ import annotations

import base64
import json
import struct
from pathlib import Path
from typing import Any

import random_models

LETTERS = [chr(i) for i in range(97, 123)]
SPACE = "\u2581"
TOKENS: dict[str, list[str]] = {
    "gpt2": ["<unk>", "<s>", "</s>", *LETTERS, "\u0120", "ab", "\u0120a"],
    "llama": ["<unk>", "<s>", "</s>", *LETTERS, SPACE, "ab", SPACE + "a"],
    "t5": ["<unk>", "<s>", "</s>", *LETTERS, SPACE, "ab", SPACE + "a"],
    "bert": ["[UNK]", "[CLS]", "[SEP]", *[SPACE + c for c in LETTERS], "b", "c", SPACE + "ab"],
}


class File:
    """Stands in for ModelFile, with what load_tokenizer() uses of it."""

    def __init__(self, values: dict[str, Any], path: str = "model.gguf", kind: str = "gguf") -> None:
        self.values, self.path, self.kind = values, path, kind

    def get(self, key: str) -> Any:
        return self.values.get(key)

    def metadata(self) -> dict[str, Any]:
        return self.values

    def keys(self) -> list[str]:
        return list(self.values)


def wordlevel() -> dict[str, Any]:
    vocabulary = {f"w{i}": i for i in range(20)} | {"<s>": 508, "</s>": 509, "[CLS]": 510, "[SEP]": 511}
    special = [
        {"id": i, "content": t, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
        for t, i in (("<s>", 508), ("</s>", 509))
    ]
    return {
        "version": "1.0",
        "truncation": {"direction": "Right", "max_length": 64, "strategy": "LongestFirst", "stride": 0},
        "padding": {
            "strategy": {"Fixed": 8},
            "direction": "Right",
            "pad_to_multiple_of": None,
            "pad_id": 0,
            "pad_type_id": 0,
            "pad_token": "w0",
        },
        "added_tokens": special,
        "normalizer": {
            "type": "Sequence",
            "normalizers": [{"type": "NFC"}, {"type": "Replace", "pattern": {"String": "q"}, "content": "w"}],
        },
        "pre_tokenizer": {"type": "Whitespace"},
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {"<s>": {"id": "<s>", "ids": [508], "tokens": ["<s>"]}},
        },
        "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": True},
        "model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": "w0"},
    }


def other_tokenizers() -> dict[str, dict[str, Any]]:
    """Returns, for each kind of tokenizer model other than WordLevel, the parts of tokenizer.json that such a model needs."""
    zeros = base64.b64encode(struct.pack("<I", 1024) + bytes(1024)).decode()  # a trie without entries
    space = {"type": "Metaspace", "replacement": SPACE, "prepend_scheme": "always", "split": True}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    split = {"type": "Split", "pattern": {"Regex": "\\\\s+"}, "behavior": "Isolated", "invert": False}
    words = {f"w{i}": i for i in range(10)}
    return {
        "Unigram": {
            "normalizer": {"type": "Precompiled", "precompiled_charsmap": zeros}, "pre_tokenizer": space, "decoder": space,
            "model": {"type": "Unigram", "unk_id": 0, "vocab": [["w0", -1.0], ["w1", -2.0], [SPACE, -3.0]], "byte_fallback": False},
        },
        "BPE": {
            "normalizer": None, "pre_tokenizer": {"type": "Sequence", "pretokenizers": [split, byte_level]}, "decoder": byte_level,
            "model": {
                "type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None, "end_of_word_suffix": None,
                "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
                "vocab": {"w": 0, "1": 1, "w1": 2, "2": 3}, "merges": [["w", "1"]],
            },
        },
        "WordPiece": {
            "normalizer": {
                "type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True, "strip_accents": None, "lowercase": True,
            },
            "pre_tokenizer": {"type": "BertPreTokenizer"}, "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": True},
            "model": {
                "type": "WordPiece", "unk_token": "w0", "continuing_subword_prefix": "##", "max_input_chars_per_word": 100, "vocab": words,
            },
        },
        "SentencePiece": {
            "decoder": {"type": "Sequence", "decoders": [
                {"type": "Replace", "pattern": {"String": SPACE}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"},
                {"type": "Strip", "content": " ", "start": 1, "stop": 0},
            ]},
        },
    }  # fmt: skip


def encoder_folder(target: Path) -> Path:
    folder = random_models.make_folder("bert_classifier", target)
    files: dict[str, Any] = {
        "tokenizer.json": wordlevel(),
        "tokenizer_config.json": {"cls_token": "[CLS]", "sep_token": "[SEP]", "model_max_length": 100, "do_lower_case": True},
        "modules.json": [
            {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
            {"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
            {"idx": 2, "name": "2", "path": "2_Normalize", "type": "sentence_transformers.models.Normalize"},
        ],
        "1_Pooling/config.json": {
            "word_embedding_dimension": 64, "pooling_mode_cls_token": False, "pooling_mode_mean_tokens": True,
            "pooling_mode_max_tokens": False, "include_prompt": True,
        },
        "sentence_bert_config.json": {"max_seq_length": 64, "do_lower_case": False},
        "config_sentence_transformers.json": {"prompts": {"query": "w1 "}, "default_prompt_name": None, "similarity_fn_name": "cosine"},
    }  # fmt: skip
    (folder / "1_Pooling").mkdir()
    for name, value in files.items():
        (folder / name).write_text(json.dumps(value))
    return folder


class Typed:
    """A value with a given GGUF type: `kind` is the id of the type, and `code` its format for struct.pack()."""

    def __init__(self, kind: int, code: str, value: Any) -> None:
        self.kind, self.code, self.value = kind, code, value

    def __repr__(self) -> str:
        return f"type {self.kind} {self.value!r}"


def gguf_string(text: str | bytes) -> bytes:
    data = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text
    return struct.pack("<Q", len(data)) + data


def gguf_value(value: Any) -> bytes:
    """Returns the type and the value as bytes. A value is a str, a bool, an int (uint32), a float (float32), a list of these, or a
    Typed."""
    if isinstance(value, Typed):
        return struct.pack("<I" + value.code, value.kind, value.value)
    if isinstance(value, (str, bytes)):
        return struct.pack("<I", 8) + gguf_string(value)
    if isinstance(value, bool):
        return struct.pack("<I?", 7, value)
    if isinstance(value, int):
        return struct.pack("<II", 4, value)
    if isinstance(value, float):
        return struct.pack("<If", 6, value)
    items = [gguf_value(v) for v in value]
    kind = items[0][:4] if items else struct.pack("<I", 8)
    return struct.pack("<I", 9) + kind + struct.pack("<Q", len(items)) + b"".join(item[4:] for item in items)


def gguf_file(keys: dict[str, Any]) -> bytes:
    hidden, ffn, vocabulary = 32, 64, len(TOKENS["gpt2"])
    shapes: dict[str, tuple[int, ...]] = {"token_embd.weight": (vocabulary, hidden), "output_norm.weight": (hidden,)}
    for part, shape in {
        "attn_norm": (hidden,), "ffn_norm": (hidden,), "attn_q": (hidden, hidden), "attn_k": (hidden, hidden), "attn_v": (hidden, hidden),
        "attn_output": (hidden, hidden), "ffn_gate": (ffn, hidden), "ffn_up": (ffn, hidden), "ffn_down": (hidden, ffn),
    }.items():  # fmt: skip
        shapes[f"blk.0.{part}.weight"] = shape
    infos, data = b"", b""
    for name, shape in shapes.items():
        infos += gguf_string(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *reversed(shape), 0, len(data))
        data += random_models.weights(name, shape).tobytes()
    head = b"GGUF" + struct.pack("<IQQ", 3, len(shapes), len(keys))
    head += b"".join(gguf_string(key) + gguf_value(value) for key, value in keys.items()) + infos
    return head + bytes(-len(head) % 32) + data


def gguf_keys(kind: str) -> dict[str, Any]:
    tokens = TOKENS[kind]
    keys: dict[str, Any] = {
        "general.architecture": "llama", "general.name": "tiny", "general.sampling.temp": 0.5, "llama.block_count": 1,
        "llama.context_length": 128,
        "llama.embedding_length": 32, "llama.feed_forward_length": 64, "llama.attention.head_count": 4, "llama.attention.head_count_kv": 4,
        "llama.attention.layer_norm_rms_epsilon": 1e-5, "llama.rope.freq_base": 1e4, "llama.rope.dimension_count": 8,
        "tokenizer.ggml.model": kind, "tokenizer.ggml.pre": "default", "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [2, 3, 3] + [1] * (len(tokens) - 3),
        "tokenizer.ggml.bos_token_id": 1, "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.eot_token_id": 2, "tokenizer.ggml.unknown_token_id": 0, "tokenizer.ggml.add_bos_token": True,
        "tokenizer.ggml.add_eos_token": False, "tokenizer.ggml.add_space_prefix": True,
        "tokenizer.chat_template": "{% for m in messages %}{{ m.content }}{% endfor %}",
    }  # fmt: skip
    if kind == "gpt2":
        keys["tokenizer.ggml.merges"] = ["a b", "\u0120 a"]
    if kind in ("llama", "t5"):
        keys["tokenizer.ggml.scores"] = [-float(i) for i in range(len(tokens))]
    if kind == "t5":
        keys["tokenizer.ggml.remove_extra_whitespaces"] = True
    if kind == "bert":
        keys |= {"tokenizer.ggml.cls_token_id": 1, "tokenizer.ggml.seperator_token_id": 2, "tokenizer.ggml.padding_token_id": 0}
        keys["tokenizer.ggml.token_type_count"] = 2
    return keys
