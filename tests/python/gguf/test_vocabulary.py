"""The metadata of a tokenizer must give the ids of the folder's tokenizer, for the tokenizers of all families."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import paths
import pytest

import pumice
from pumice.gguf.vocabulary import tokenizer_keys
from pumice.tokens.gguf_tokenizer import build
from pumice.tokens.tokenizer_files import load_tokenizer
from pumice.tokens.tokenizers import Tokenizer

GOLDENS = paths.GOLDENS / "tokenizers"
LINES = json.loads((GOLDENS / "corpus.json").read_text())
BYTE_BPE = json.loads((GOLDENS / "byte_bpe.json").read_text())
SENTENCEPIECE = json.loads((GOLDENS / "sentencepiece.json").read_text())


def tokenizer_of(folder: Path, spec: dict[str, Any], **config: str) -> Tokenizer:
    (folder / "tokenizer.json").write_text(json.dumps(spec))
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    file: Any = SimpleNamespace(path=str(folder), kind="safetensors", get=lambda key: None, metadata=dict)
    return load_tokenizer(file, None)


def check(tokenizer: Tokenizer, first: str = "") -> dict[str, Any]:
    keys = tokenizer_keys(tokenizer, tokenizer.vocab_size, "test", None, first)
    backend = build(keys.get, "test").backend
    for line in LINES:
        for special in (True, False):
            wanted = tokenizer.backend.encode(line, add_special_tokens=special).ids
            assert backend.encode(line, add_special_tokens=special).ids == wanted, (keys.get("tokenizer.ggml.pre"), line)
    return keys


@pytest.mark.parametrize("pre", sorted(BYTE_BPE["files"]))
def test_byte_bpe(pre: str, tmp_path: Path) -> None:
    spec = json.loads(json.dumps(BYTE_BPE["files"][pre]))
    spec["model"] |= {"vocab": {token: i for i, token in enumerate(BYTE_BPE["tokens"])}, "merges": BYTE_BPE["merges"]}
    tokens = dict(zip(("bos_token", "eos_token", "pad_token"), BYTE_BPE["tokens"], strict=False))
    assert check(tokenizer_of(tmp_path, spec, **tokens))["tokenizer.ggml.model"] == "gpt2"


@pytest.mark.parametrize("name", sorted(SENTENCEPIECE))
def test_sentencepiece(name: str, tmp_path: Path) -> None:
    keys = SENTENCEPIECE[name]["gguf"]
    names = {
        "bos": "bos_token_id",
        "eos": "eos_token_id",
        "unk": "unknown_token_id",
        "pad": "padding_token_id",
        "sep": "seperator_token_id",
    }
    tokens = {f"{role}_token": keys["tokens"][keys[key]] for role, key in names.items() if keys.get(key) is not None}
    found = check(tokenizer_of(tmp_path, SENTENCEPIECE[name]["file"], **tokens), name)
    assert found["tokenizer.ggml.model"] == keys["model"]


def test_a_model_needs_a_row_for_each_token(tmp_path: Path) -> None:
    tokenizer = tokenizer_of(tmp_path, SENTENCEPIECE["t5"]["file"])
    with pytest.raises(pumice.TokenizerError, match=r"the tokenizer has a token \d+, and the model's embedding 100 rows"):
        tokenizer_keys(tokenizer, 100, "test", None)
