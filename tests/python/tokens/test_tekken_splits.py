"""Folders of Mistral whose tokenizer.json has Llama 3's split of words: the ids are those of transformers, which warns, and which takes the
right split if tokenizer_config.json has fix_mistral_regex."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import pytest
from small_files import File
from tokenizers import Regex, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as Backend

from pumice.errors import IncompleteModelWarning, ModelFormatError
from pumice.tokens import tokenizer_files
from pumice.tokens.tokenizer_files import load_tokenizer
from pumice.tokens.word_splits import SPLITS

LETTERS = "'ABTabcht12"
TOKENS = [*LETTERS, "12", "'t", "aB"]  # Llama 3 splits after 't and not within 12 and aB, Tekken the other way round
TEXT = "a'tb12aB"
WRONG, RIGHT = ["a", "'t", "b", "12", "aB"], ["a", "'t", "b", "1", "2", "a", "B"]


@pytest.fixture(autouse=True)
def small_vocabularies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokenizer_files, "_TEKKEN_SIZE", len(TOKENS) - 1)


def folder_of(target: Path, config: Any, settings: Any, split: str = "llama3") -> Path:
    merges = [("1", "2"), ("'", "t"), ("a", "B")]
    backend = Backend(models.BPE({token: i for i, token in enumerate(TOKENS)}, merges))
    words = pre_tokenizers.Split(Regex(SPLITS[split].patterns[0]), "isolated")
    backend.pre_tokenizer = pre_tokenizers.Sequence([words, pre_tokenizers.ByteLevel(False, use_regex=False)])
    backend.decoder = decoders.ByteLevel()
    backend.save(str(target / "tokenizer.json"))
    (target / "config.json").write_text(json.dumps(config))
    (target / "tokenizer_config.json").write_text(json.dumps(settings))
    return target


def tokens(folder: Path, override: Any = None) -> tuple[list[str], list[str]]:
    """Returns the tokens of TEXT, and the messages of the warnings."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        tokenizer = load_tokenizer(File({}, str(folder), "safetensors"), override)  # type: ignore[arg-type]
    assert all(each.category is IncompleteModelWarning for each in caught)
    return [tokenizer.token(i) for i in tokenizer.encode(TEXT).tolist()], [str(each.message) for each in caught]


@pytest.mark.parametrize(
    ("config", "settings", "split", "expected", "warns"),
    [
        ({"model_type": "mistral", "transformers_version": "4.57.2"}, {}, "llama3", WRONG, True),
        ({"model_type": "mistral3", "transformers_version": "4.50.0.dev0"}, {}, "llama3", WRONG, True),
        ({"model_type": "voxtral"}, {}, "llama3", WRONG, True),
        ({"model_type": "mistral", "transformers_version": "4.57.6"}, {"fix_mistral_regex": True}, "llama3", RIGHT, False),
        ({"model_type": "mistral", "transformers_version": "4.57.6"}, {"fix_mistral_regex": False}, "llama3", WRONG, False),
        ({"model_type": "mistral", "transformers_version": "5.1.0"}, {}, "llama3", WRONG, False),
        ({"model_type": "mistral", "transformers_version": "4.57.2"}, {}, "tekken", RIGHT, False),
        ({"model_type": "llama", "transformers_version": "4.57.2"}, {}, "llama3", WRONG, False),
    ],
)
def test_which_split_a_folder_gets(tmp_path: Path, config: Any, settings: Any, split: str, expected: list[str], warns: bool) -> None:
    found, said = tokens(folder_of(tmp_path, config, settings, split))
    assert found == expected
    assert len(said) == warns and all("fix_mistral_regex" in each and tmp_path.name in each for each in said)
    assert tokens(tmp_path, tmp_path / "tokenizer.json") == (found, said)  # the same for tokenizer=
    assert tokens(tmp_path, Backend.from_file(str(tmp_path / "tokenizer.json")))[1] == []  # an object is taken as it is


def test_small_vocabularies_are_no_tekken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokenizer_files, "_TEKKEN_SIZE", len(TOKENS))
    config = {"model_type": "mistral", "transformers_version": "4.57.2"}
    assert tokens(folder_of(tmp_path, config, {"fix_mistral_regex": True})) == (WRONG, [])


def test_a_setting_that_is_no_flag(tmp_path: Path) -> None:
    folder_of(tmp_path, {"model_type": "mistral"}, {"fix_mistral_regex": "yes"})
    with pytest.raises(ModelFormatError, match="fix_mistral_regex"):
        tokens(tmp_path)
