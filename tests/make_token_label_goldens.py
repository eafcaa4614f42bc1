"""Makes tests/goldens/token_labels: small tokenizers, and the spans that transformers' pipeline("token-classification") finds with them and
small models of tests/random_models.

    python tests/make_token_label_goldens.py

Needs torch, transformers and tokenizers. The tests need only tokenizers.
"""

from __future__ import annotations

import json
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests" / "python" / "support")]

import token_label_models  # noqa: E402
from token_label_models import AGGREGATIONS, GOLDENS, MODELS, TOKENIZERS  # noqa: E402

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
SIZE = 400  # of the vocabularies; the models' tables have 512 rows
MARGIN = 1e-3  # minimum difference between the two largest probabilities of a token or a word; with less, engines may choose other labels
# Texts for all models: several scripts, spaces of all kinds, characters of several bytes and of several code points, unknown characters.
TEXTS = [
    "Angela Merkel met Emmanuel Macron in Paris.",
    "my e-mail is jane.doe@example.org, my number +1 555 0100",
    "  two  spaces\tand a tab, a line\nand the end  ",
    "Die Straßenbahn fährt über die große Brücke.",
    "l'été à Orléans, n'est-ce pas?",
    "Сегодня утром поезд опоздал.",
    "東京と大阪へ行きます。",
    "हिन्दी में लिखा",
    "a 👩‍👩‍👧 family, e\u0301te\u0301 and ﬁne ligatures…",
    "UPPER lower MiXeD C3PO ₿",
    "x",
    "",
    " ",
    "don't-stop/me_now (really?) [yes] {no}",
    "İstanbul'da ılık bir rüzgâr",
]


def train() -> None:
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

    corpus = json.loads((ROOT / "tests" / "goldens" / "tokenizers" / "corpus.json").read_text())
    lines = [line for line in corpus if isinstance(line, str)][:120]
    around = {"single": "[CLS] $A [SEP]", "special_tokens": [("[CLS]", 2), ("[SEP]", 3)]}

    wordpiece = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    wordpiece.normalizer = normalizers.BertNormalizer(lowercase=True)
    wordpiece.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    wordpiece.decoder = decoders.WordPiece()
    wordpiece.train_from_iterator(
        lines, trainers.WordPieceTrainer(vocab_size=SIZE, special_tokens=SPECIAL, limit_alphabet=120, show_progress=False)
    )
    wordpiece.post_processor = processors.TemplateProcessing(**around)

    def byte_bpe() -> Tokenizer:
        made = Tokenizer(models.BPE(unk_token=None))
        made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        made.decoder = decoders.ByteLevel()
        alphabet = pre_tokenizers.ByteLevel.alphabet()
        made.train_from_iterator(
            lines, trainers.BpeTrainer(vocab_size=SIZE, special_tokens=SPECIAL, initial_alphabet=alphabet, show_progress=False)
        )
        return made

    trimmed, plain = byte_bpe(), byte_bpe()
    trimmed.post_processor = processors.RobertaProcessing(("[SEP]", 3), ("[CLS]", 2), trim_offsets=True, add_prefix_space=False)

    unigram = Tokenizer(models.Unigram())
    unigram.normalizer = normalizers.NFKC()
    unigram.pre_tokenizer = pre_tokenizers.Metaspace()
    unigram.decoder = decoders.Metaspace()
    latin = [line for line in lines if all(ord(c) < 0x180 for c in line)]  # because the vocabulary must hold every character
    unigram.train_from_iterator(
        latin, trainers.UnigramTrainer(vocab_size=SIZE, special_tokens=SPECIAL, unk_token="[UNK]", show_progress=False)
    )
    unigram.post_processor = processors.TemplateProcessing(**around)
    GOLDENS.mkdir(exist_ok=True)
    for name, made in {"wordpiece": wordpiece, "trimmed": trimmed, "plain": plain, "unigram": unigram}.items():
        assert name in TOKENIZERS
        (GOLDENS / f"{name}.json").write_text(made.to_str(pretty=False))


def spans(found: list[dict[str, Any]]) -> list[list[Any]]:
    return [[each.get("entity_group", each.get("entity")), round(float(each["score"]), 6), each["start"], each["end"]] for each in found]


def clear(pipe: Any, text: str) -> bool:
    """Returns whether no token, and no word with "average" and "max", has two labels that are nearly as probable."""
    gaps = []

    def gap(row: np.ndarray) -> float:
        best = np.sort(row)
        return float(best[-1] - best[-2])

    original = type(pipe).gather_pre_entities

    def gather(self: Any, *args: Any, **more: Any) -> list[dict[str, Any]]:
        found = original(self, *args, **more)
        words: list[list[np.ndarray]] = []
        for each in found:
            gaps.append(gap(each["scores"]))
            if each["is_subword"] and words:
                words[-1].append(each["scores"])
            else:
                words.append([each["scores"]])
        for word in words:
            gaps.append(gap(np.mean(word, axis=0)))
            if len(word) > 1:
                gaps.append(gap(np.array([row.max() for row in word])))
        return found

    type(pipe).gather_pre_entities = gather
    try:
        pipe(text, aggregation_strategy="first")
    finally:
        type(pipe).gather_pre_entities = original
    return min(gaps, default=1.0) > MARGIN


def make(name: str) -> None:
    import torch
    from transformers import AutoModelForTokenClassification, AutoTokenizer, pipeline

    with tempfile.TemporaryDirectory() as target:
        folder = token_label_models.make_folder(name, Path(target))
        model = AutoModelForTokenClassification.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
        pipe = pipeline("token-classification", model=model, tokenizer=AutoTokenizer.from_pretrained(folder), device="cpu")
        texts = [text for text in TEXTS if text.strip() or name != "openai_privacy_filter"]  # the model runs no text without tokens
        kept = [text for text in texts if clear(pipe, text)]
        found = {how: [spans(pipe(text, aggregation_strategy=how)) for text in kept] for how in AGGREGATIONS}
        every = [spans(pipe(text, aggregation_strategy="simple", ignore_labels=[])) for text in kept]
    (GOLDENS / f"{name}.golden.json").write_text(
        json.dumps({"texts": kept, "spans": found, "all": every}, ensure_ascii=False, separators=(",", ":")) + "\n"
    )
    print(f"{name}: {len(kept)} of {len(texts)} texts, {sum(map(len, found['simple']))} spans", flush=True)


def main() -> None:
    import transformers

    transformers.logging.set_verbosity_error()
    warnings.simplefilter("ignore")
    if "--keep-tokenizers" not in sys.argv:
        train()
    for name in MODELS:
        make(name)


if __name__ == "__main__":
    main()
