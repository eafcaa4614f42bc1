"""A small model of random weights whose vocabulary is bytes, and tokens that mark a gap in the spelling of any family."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

import random_models
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, processors
from tokenizers import Tokenizer as Backend

END = "<|endoftext|>"
QWEN = ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>", "<|fim_pad|>", "<|repo_name|>", "<|file_sep|>")


def backend(tokens: Iterable[str], bos: bool = False, special: bool = True, spaced: bool = False) -> Backend:
    """Returns a tokenizer whose tokens are bytes and `tokens`. bos: whether a text begins with <s>. special: whether `tokens` are special.
    spaced: whether a text begins with a space, as in SentencePiece; its space is U+2581."""
    names = ["<s>", END, *tokens]
    if spaced:
        letters = {f"<0x{i:02X}>": i for i in range(256)} | {"\u2581": 256} | {chr(c): 225 + c for c in range(32, 127)}
        made = Backend(models.BPE(letters, [], byte_fallback=True, unk_token="<0x00>"))
        made.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
        made.decoder = decoders.Sequence(
            [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
        )
    else:
        made = Backend(models.BPE({letter: i for i, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}, []))
        made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        made.decoder = decoders.ByteLevel()
    made.add_tokens([AddedToken(name, normalized=False, special=special or name in ("<s>", END)) for name in names])
    if bos:
        made.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", made.token_to_id("<s>"))])
    return made


def folder(target: Path, tokens: Iterable[str] = QWEN, **options: bool) -> Path:
    """Makes the folder of a model with such a tokenizer."""
    made = random_models.make_folder("llama_wide", target)
    tokenizer = backend(tokens, **options)
    tokenizer.save(str(made / "tokenizer.json"))
    config = json.loads((made / "config.json").read_text())
    (made / "config.json").write_text(json.dumps(config | {"bos_token_id": None, "eos_token_id": tokenizer.token_to_id(END)}))
    return made
