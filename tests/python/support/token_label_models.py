"""Folders of small classifiers of tokens: models of random_models.py with names of labels, and with a tokenizer that splits texts."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import paths
import random_models

GOLDENS = paths.GOLDENS / "token_labels"
AGGREGATIONS = ("none", "simple", "first", "average", "max")
TOKENIZERS = ("wordpiece", "trimmed", "plain", "unigram")
MODELS = {  # name in random_models -> its tokenizer
    "bert_tokens": "wordpiece",
    "distilbert_tokens": "wordpiece",
    "electra_tokens": "wordpiece",
    "roberta_tokens": "trimmed",
    "deberta_v3_tokens": "unigram",
    "modernbert_tokens": "trimmed",
    "openai_privacy_filter": "plain",
}
LABELS = ["O", "B-PER", "I-PER", "B-LOC", "I-LOC"]


def make_folder(name: str, target: Path) -> Path:
    folder = random_models.make_folder(name, target)
    config: dict[str, Any] = json.loads((folder / "config.json").read_text())
    if name != "openai_privacy_filter":
        config |= {"id2label": {str(i): label for i, label in enumerate(LABELS)}, "label2id": {label: i for i, label in enumerate(LABELS)}}
    (folder / "config.json").write_text(json.dumps(config))
    shutil.copy(GOLDENS / f"{MODELS[name]}.json", folder / "tokenizer.json")
    special = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": 120}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings | (special if MODELS[name] != "plain" else {"pad_token": "[PAD]"})))
    return folder
