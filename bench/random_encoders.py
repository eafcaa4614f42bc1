"""Makes encoders of published sizes with random weights. Each is a folder that pumice and sentence-transformers can load, and that also has
an ONNX file.

    python bench/random_encoders.py FOLDER NAME TOKENIZER   # needs torch and transformers; bench/compare.py runs it with the peers' Python

The sizes come from the config.json of microsoft/mpnet-base, FacebookAI/xlm-roberta-base, nomic-ai/nomic-embed-text-v1.5,
answerdotai/ModernBERT-base, ibm-granite/granite-embedding-small-english-r2 (granite-small), google-bert/bert-base-uncased (labels) and
cross-encoder/ms-marco-MiniLM-L6-v2 (reranker). All models get the tokenizer of MiniLM, so that all engines compute the same ids for all
families, and no id in the middle of a text means padding.
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

BASE: dict[str, Any] = dict(hidden_size=768, num_hidden_layers=12, num_attention_heads=12, intermediate_size=3072)
NAMES = ["O", *(f"{at}-{kind}" for kind in ("PER", "ORG", "LOC", "MISC") for at in "BI")]
SHAPES: dict[str, tuple[str, dict[str, Any]]] = {
    "mpnet": ("MPNetConfig", dict(**BASE, vocab_size=30527, max_position_embeddings=514)),
    "xlm-r": ("XLMRobertaConfig", dict(**BASE, vocab_size=250002, max_position_embeddings=514, type_vocab_size=1)),
    "nomic": ("NomicBertConfig", dict(**BASE, vocab_size=30528, max_position_embeddings=2048)),
    "modernbert": ("ModernBertConfig", dict(max_position_embeddings=8192)),
    "granite-small": (
        "ModernBertConfig",
        dict(hidden_size=384, num_hidden_layers=12, num_attention_heads=12, intermediate_size=1536, max_position_embeddings=8192),
    ),
    "labels": ("BertConfig", dict(**BASE, vocab_size=30522, id2label=dict(enumerate(NAMES)), label2id={n: i for i, n in enumerate(NAMES)})),
    "reranker": (
        "BertConfig",
        dict(hidden_size=384, num_hidden_layers=6, num_attention_heads=12, intermediate_size=1536, vocab_size=30522, num_labels=1),
    ),
}


def write(folder: Path, name: str, tokenizer: Path) -> None:
    import torch
    import transformers

    torch.manual_seed(7)
    kind, sizes = SHAPES[name]
    config = getattr(transformers, kind)(**sizes)
    config._attn_implementation = "eager"
    task = {"reranker": "ForSequenceClassification", "labels": "ForTokenClassification"}.get(name, "")
    model = getattr(transformers, "AutoModel" + task).from_config(config).eval()
    folder.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(folder)
    for file in ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "vocab.txt"):
        if (tokenizer / file).exists():
            shutil.copy(tokenizer / file, folder / file)
    if name == "reranker":
        return
    positions = config.max_position_embeddings
    longest = positions - (2 if name in ("mpnet", "xlm-r") else 0)  # the positions of these two begin at 2
    (folder / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": longest, "do_lower_case": False}))
    if not task:
        describe(folder, config.hidden_size)
    export(model, folder / "model.onnx")


def describe(folder: Path, size: int) -> None:
    """Writes the files from which sentence-transformers learns the modules that follow the model."""
    parts = [("", "sentence_transformers.models.Transformer"), ("1_Pooling", "sentence_transformers.models.Pooling")]
    modules = [{"idx": at, "name": str(at), "path": path, "type": kind} for at, (path, kind) in enumerate(parts)]
    modules.append({"idx": 2, "name": "2", "path": "2_Normalize", "type": "sentence_transformers.models.Normalize"})
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling").mkdir(exist_ok=True)
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({"word_embedding_dimension": size, "pooling_mode_mean_tokens": True}))


def export(model: Any, file: Path) -> None:
    """Writes the ONNX file of a model. Its output is the model's first output: hidden rows, or logits."""
    import torch

    class Hidden(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, input_ids: Any, attention_mask: Any) -> Any:
            return self.model(input_ids=input_ids, attention_mask=attention_mask)[0]

    ids = torch.ones((2, 7), dtype=torch.long)
    axes = {key: {0: "batch", 1: "length"} for key in ("input_ids", "attention_mask", "hidden")}
    torch.onnx.export(
        Hidden(), (ids, ids), str(file), input_names=["input_ids", "attention_mask"], output_names=["hidden"],
        dynamic_axes=axes, dynamo=False, opset_version=17,
    )  # fmt: skip


if __name__ == "__main__":
    target, chosen, words = Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3])
    if not (target / "made").exists():
        write(target, chosen, words)
        (target / "made").write_text("yes")
