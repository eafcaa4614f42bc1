"""Makes tests/goldens/modules: model folders as sentence-transformers 6.2 and model2vec write them, and the results of these packages for a
few texts, each of which is encoded by itself.

    python tests/make_module_goldens.py [name ...]

Needs torch, transformers, sentence-transformers and safetensors, and model2vec for the models model2vec and model2vec_mapped. The tests
need none of them.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT / "tests" / "python" / "support")]

from module_models import GOLDENS, PAIRS, TEXTS, make_folder  # noqa: E402

WIDTH = 32
PROMPTS = {"query": "query: ", "passage": "a long passage: "}
KEPT = ("config.json", "modules.json", "config_sentence_transformers.json", "sentence_bert_config.json", "router_config.json",
        "tokenizer_config.json", "tokenizer.json", "chat_template.jinja", "preprocessor_config.json", "processor_config.json")  # fmt: skip


def make_tokenizer() -> Any:
    """Returns a WordPiece tokenizer whose vocabulary has a few words and all characters of the texts."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

    words = [
        "a",
        "stone",
        "that",
        "float",
        "##s",
        "one",
        "two",
        "three",
        "four",
        "five",
        "six",
        "seven",
        "eight",
        "nine",
        "ten",
        "rate",
        "pumice",
        "on",
        "water",
        "query",
        "passage",
        "long",
        "yes",
        "no",
    ]
    characters = sorted(
        {c for text in [*TEXTS, *(t for pair in PAIRS for t in pair), *PROMPTS.values()] for c in text.lower() if not c.isspace()}
    )
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words, *characters[:-3], *("##" + c for c in characters if c.isalpha())]
    vocabulary = {token: i for i, token in enumerate(dict.fromkeys(tokens))}
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    return tokenizer


def transformer(folder: Path, kind: str = "BertModel", **more: Any) -> str:
    """Writes a small model of transformers and the tokenizer to a folder. Returns the folder."""
    import transformers

    tokenizer = make_tokenizer()
    fast = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token="[UNK]", pad_token="[PAD]", cls_token="[CLS]", sep_token="[SEP]", mask_token="[MASK]",
        model_max_length=48,
        model_input_names=["input_ids", "token_type_ids", "attention_mask"],
    )  # fmt: skip
    size = {
        "hidden_size": WIDTH,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "vocab_size": len(tokenizer.get_vocab()),
    }
    if kind.startswith("Bert"):
        config: Any = transformers.BertConfig(**size, max_position_embeddings=64, **more)
    else:
        config = transformers.Qwen3Config(
            **size, num_key_value_heads=2, head_dim=8, max_position_embeddings=128, tie_word_embeddings=kind == "Qwen3Model", **more
        )
        if kind == "Qwen3ForCausalLM":  # not for an embedder, because sentence-transformers would render each of its texts by the template
            fast.chat_template = TEMPLATE
    getattr(transformers, kind)(config).save_pretrained(folder)
    fast.save_pretrained(folder)
    return str(folder)


# Templates of embedders, by the form in which sentence-transformers passes the content of a message.
MESSAGES = {
    "flat": "{%- for m in messages %}[CLS] {{ m.role }} {{ m.content }} [SEP]{%- endfor %}{% if add_generation_prompt %} yes{% endif %} no",
    "structured": "{%- for m in messages %}{{ m.role }}{% for part in m.content %}{% if part.type == 'text' %} {{ part.text }}{% endif %}"
    "{% endfor %} [SEP]{%- endfor %}{{ ending }} no",
}
TEMPLATE = (
    "{%- for m in messages %}{%- if m.role == 'system' %}query: {{ m.content }} {% elif m.role == 'query' %}one {{ m.content }}"
    "{% elif m.role == 'document' %} two {{ m.content }}{% endif %}{%- endfor %} yes no"
)


def embedder(
    *modules: Callable[[], Any],
    prompts: dict[str, str] | None = None,
    kind: str = "BertModel",
    template: str | None = None,
    reading: dict[str, Any] | None = None,
    **more: Any,
) -> Callable[[Path], Any]:
    """template: a chat template for the tokenizer.  reading: keyword arguments of the module Transformer."""

    def make(folder: Path) -> Any:
        from sentence_transformers import SentenceTransformer
        from sentence_transformers.sentence_transformer.modules import Transformer

        source = transformer(folder / "source", kind)
        if template is not None:
            Path(source, "chat_template.jinja").write_text(template)
        first = Transformer(source, **(reading or {}))
        return SentenceTransformer(modules=[first, *(module() for module in modules)], prompts=prompts, device="cpu", **more)

    return make


def module(name: str, *arguments: Any, **more: Any) -> Callable[[], Any]:
    def make() -> Any:
        import torch
        from sentence_transformers.sentence_transformer import modules

        given = dict(more)
        if "activation_function" in given:
            given["activation_function"] = getattr(torch.nn, given["activation_function"])()
        return getattr(modules, name)(*arguments, **given)

    return make


def static(folder: Path) -> Any:
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Normalize, StaticEmbedding

    return SentenceTransformer(modules=[StaticEmbedding(make_tokenizer(), embedding_dim=WIDTH), Normalize()], device="cpu")


def router(folder: Path) -> Any:
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Normalize, Pooling, Router, StaticEmbedding, Transformer

    routes = Router.for_query_document(
        query_modules=[StaticEmbedding(make_tokenizer(), embedding_dim=WIDTH)],
        document_modules=[Transformer(transformer(folder / "source")), Pooling(WIDTH, "mean")],
    )
    return SentenceTransformer(modules=[routes, Normalize()], prompts=PROMPTS, device="cpu")


def splade(activation: str) -> Callable[[Path], list[Any]]:
    """Returns a function that makes modules for sparse vectors: a transformer with an MLM head, and the pooling of its logits."""

    def make(folder: Path) -> list[Any]:
        from sentence_transformers.sentence_transformer.modules import Transformer
        from sentence_transformers.sparse_encoder.modules import SpladePooling

        source = Transformer(transformer(folder / "source", "BertForMaskedLM"), transformer_task="fill-mask")
        return [source, SpladePooling("max", activation_function=activation)]

    return make


def sparse(activation: str, routed: bool = False, **more: Any) -> Callable[[Path], Any]:
    """Makes a SparseEncoder. With `routed`, queries have weights of their tokens without a transformer."""

    def make(folder: Path) -> Any:
        import torch
        from sentence_transformers import SparseEncoder
        from sentence_transformers.sentence_transformer.modules import Router
        from sentence_transformers.sparse_encoder.modules import SparseStaticEmbedding
        from transformers import AutoTokenizer

        modules = splade(activation)(folder)
        if routed:
            tokenizer = AutoTokenizer.from_pretrained(str(folder / "source"))
            weights = SparseStaticEmbedding(tokenizer, torch.ones(len(tokenizer.get_vocab())))
            modules = [Router.for_query_document(query_modules=[weights], document_modules=modules)]
        return SparseEncoder(modules=modules, device="cpu", **more)

    return make


def classifier(given: dict[str, Any] | None = None, **more: Any) -> Callable[[Path], Any]:
    """given: keyword arguments of CrossEncoder."""

    def make(folder: Path) -> Any:
        from sentence_transformers import CrossEncoder

        return CrossEncoder(transformer(folder / "source", "BertForSequenceClassification", **more), device="cpu", **(given or {}))

    return make


def reranker(folder: Path) -> Any:
    from sentence_transformers import CrossEncoder
    from sentence_transformers.cross_encoder.modules import LogitScore
    from sentence_transformers.sentence_transformer.modules import Transformer

    source = Transformer(transformer(folder / "source", "Qwen3ForCausalLM"), transformer_task="text-generation")
    ids = make_tokenizer().get_vocab()
    return CrossEncoder(
        modules=[source, LogitScore(ids["yes"], ids["no"])], prompts={"rerank": "rate"}, default_prompt_name="rerank", device="cpu"
    )


def late(*modules: Callable[[], Any], **reading: Any) -> Callable[[Path], Any]:
    def make(folder: Path) -> Any:
        from sentence_transformers import MultiVectorEncoder
        from sentence_transformers.sentence_transformer.modules import Transformer

        first = Transformer(transformer(folder / "source"), **reading)
        return MultiVectorEncoder(modules=[first, *(module() for module in modules)], prompts=PROMPTS, device="cpu")

    return make


def clip(folder: Path) -> Any:
    """Returns a model as before sentence-transformers 5.4. Its only module is a whole CLIP, whose text half gives one vector per text
    without a Pooling."""
    import transformers
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import CLIPModel

    source, ids = folder / "source", make_tokenizer().get_vocab()
    size = {"hidden_size": WIDTH, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
    text = size | {"vocab_size": len(ids), "max_position_embeddings": 48, "eos_token_id": ids["[SEP]"], "bos_token_id": ids["[CLS]"]}
    config = transformers.CLIPConfig(
        text_config=text, vision_config=size | {"image_size": 8, "patch_size": 4, "projection_dim": 24}, projection_dim=24
    )
    transformers.CLIPModel(config).save_pretrained(source)
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=make_tokenizer(), unk_token="[UNK]", pad_token="[PAD]", eos_token="[SEP]", bos_token="[CLS]", model_max_length=48
    )
    images = transformers.CLIPImageProcessor(size={"shortest_edge": 8}, crop_size={"height": 8, "width": 8})
    transformers.CLIPProcessor(images, tokenizer).save_pretrained(source)
    return SentenceTransformer(modules=[CLIPModel(str(source))], device="cpu")


def mask(**given: Any) -> Callable[[], Any]:
    def make() -> Any:
        from sentence_transformers.multi_vector_encoder.modules import MultiVectorMask

        return MultiVectorMask(**given)

    return make


class PyLate:
    """A model that is saved as PyLate 1.3 does it. The modules are Transformer and Dense, and all other settings are in
    config_sentence_transformers.json."""

    def __init__(self, folder: Path) -> None:
        self.source = embedder(
            module("Dense", WIDTH, 12, bias=False, activation_function="Identity", module_input_name="token_embeddings")
        )(folder)

    def save_pretrained(self, folder: str, **more: Any) -> None:
        self.source.save_pretrained(folder, **more)
        file = Path(folder) / "modules.json"
        modules = json.loads(file.read_text())
        modules[1]["type"] = "pylate.models.Dense.Dense"
        file.write_text(json.dumps(modules))
        file = Path(folder) / "1_Dense" / "config.json"
        values = json.loads(file.read_text())
        for key in ("module_input_name", "module_output_name"):
            values.pop(key, None)
        file.write_text(json.dumps(values))
        file = Path(folder) / "config_sentence_transformers.json"
        values = json.loads(file.read_text()) | {"model_type": "ColBERT", "similarity_fn_name": "MaxSim", "prompts": {}}
        values |= {"query_prefix": "one ", "document_prefix": "[MASK] ", "query_length": 16, "document_length": 40}
        values |= {"attend_to_expansion_tokens": False, "skiplist_words": [".", ",", "!", "a"]}
        file.write_text(json.dumps(values))


MODELS: dict[str, Callable[[Path], Any]] = {
    "dense": embedder(
        module("Pooling", WIDTH, "mean"),
        module("Dense", WIDTH, 48),
        module("Dense", 48, 16, bias=False, activation_function="Identity"),
        module("Normalize"),
    ),
    "poolings": embedder(
        module("Pooling", WIDTH, ("cls", "mean", "max", "lasttoken", "weightedmean", "mean_sqrt_len_tokens")),
        module("Normalize"),
        module("LayerNorm", 6 * WIDTH),
        module("Dense", 6 * WIDTH, 40, activation_function="GELU", use_residual=True),
    ),
    "residual": embedder(
        module("Pooling", WIDTH, "max"),
        module("Normalize"),
        module("Dense", WIDTH, WIDTH, activation_function="ReLU", use_residual=True),
        module("Dense", WIDTH, 24, activation_function="SiLU"),
        module("Dense", 24, 24, activation_function="Sigmoid"),
    ),
    "prompt": embedder(
        module("Pooling", WIDTH, ("mean", "cls", "weightedmean", "max"), include_prompt=False), module("Normalize"), prompts=PROMPTS
    ),
    "colbert": embedder(
        module("Dense", WIDTH, 12, bias=False, activation_function="Identity", module_input_name="token_embeddings"),
        module("Normalize", module_input_name="token_embeddings"),
    ),
    "late": late(
        module("Dense", WIDTH, 12, bias=False, activation_function="Identity", module_input_name="token_embeddings"),
        mask(skiplist_words=[".", ",", "a"]),
        module("Normalize", module_input_name="token_embeddings"),
        document_length=24,
        query_expansion={"strategy": "fixed", "length": 16},
    ),
    "late_attended": late(
        module("Dense", WIDTH, 12, module_input_name="token_embeddings"),
        mask(skiplist_words=["a"], skiplist_tasks=["query", "document"], keep_only_token_ids=[2, 3, *range(5, 60)]),
        query_length=30,
        query_expansion={"strategy": "min", "length": 12, "attend": True, "token": "[SEP]"},
    ),
    "pylate": PyLate,
    "clip": clip,
    "decoder": embedder(module("Pooling", WIDTH, "lasttoken"), module("Normalize"), prompts=PROMPTS, kind="Qwen3Model"),
    "messages": embedder(
        module("Pooling", WIDTH, "lasttoken"), module("Normalize"), prompts=PROMPTS, kind="Qwen3Model", template=MESSAGES["flat"]
    ),
    "messages_in_parts": embedder(
        module("Pooling", WIDTH, "mean", include_prompt=False),
        prompts=PROMPTS,
        kind="Qwen3Model",
        template=MESSAGES["structured"],
        reading={"processing_kwargs": {"text": {"max_length": 20}, "chat_template": {"ending": " yes yes"}}},
        truncate_dim=24,
    ),
    "static": static,
    "router": router,
    "splade": sparse("relu", prompts=PROMPTS),
    "splade_logs": sparse("log1p_relu", max_active_dims=20),
    "splade_router": sparse("relu", routed=True),
    "labels": classifier(num_labels=3, id2label={0: "contradiction", 1: "entailment", 2: "neutral"}),
    "tanh": classifier(num_labels=1, sentence_transformers={"activation_fn": "torch.nn.modules.activation.Tanh"}),
    "prompted": classifier({"prompts": {"ask": "one two "}, "default_prompt_name": "ask"}, num_labels=1),
    "logit_score": reranker,
}


SPARSE = ("splade", "splade_logs", "splade_router")
LATE = ("late", "late_attended", "pylate")


def stored(folder: Path) -> dict[str, Any]:
    """Returns the contents of the text files in a saved folder, and the shapes of its tensors."""
    from safetensors import safe_open

    files: dict[str, Any] = {}
    tensors: dict[str, Any] = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if path.name == "tokenizer.json":
            files[name] = "tokenizer"
        elif path.name.endswith(".jinja"):
            files[name] = path.read_text()
        elif path.name in KEPT:
            files[name] = json.loads(path.read_text())
        elif path.suffix == ".safetensors":
            with safe_open(path, "np") as file:
                tensors[name] = {key: list(file.get_slice(key).get_shape()) for key in sorted(file.keys())}
    return {"files": files, "tensors": tensors}


def say(name: str, folder: Path) -> dict[str, np.ndarray]:
    from sentence_transformers import CrossEncoder, SentenceTransformer

    if name in ("labels", "tanh", "prompted", "logit_score"):
        model = CrossEncoder(str(folder), device="cpu")
        golden = {"scores": np.stack([model.predict([pair], batch_size=1)[0] for pair in PAIRS])}
        if name == "logit_score":
            rows = [model.preprocess([pair], prompt="rate")["input_ids"][0].numpy() for pair in PAIRS]
            golden |= {"ids": np.concatenate(rows).astype(np.int32), "offsets": np.cumsum([0, *map(len, rows)])}
        return golden
    if name in LATE:
        from sentence_transformers import MultiVectorEncoder

        late = MultiVectorEncoder(str(folder), device="cpu")
        golden = {}
        for role, encode in (("plain", late.encode), ("query", late.encode_query), ("document", late.encode_document)):
            rows = [encode(text, convert_to_numpy=True) for text in TEXTS]
            golden |= {role: np.concatenate(rows), f"{role}_offsets": np.cumsum([0, *map(len, rows)])}
        return golden | {"scores": late.similarity(late.encode_query(TEXTS[:3]), late.encode_document(TEXTS)).numpy()}
    if name in SPARSE:
        from sentence_transformers import SparseEncoder

        encoder = SparseEncoder(str(folder), device="cpu")
        golden = {}
        for role, encode in (("plain", encoder.encode), ("query", encoder.encode_query), ("document", encoder.encode_document)):
            golden[role] = np.stack([encode(text, convert_to_sparse_tensor=False).numpy() for text in TEXTS])
        return golden
    model = SentenceTransformer(str(folder), device="cpu")
    if name == "colbert":
        rows = [model.encode(text, output_value="token_embeddings").cpu().numpy() for text in TEXTS]
        return {"tokens": np.concatenate(rows), "offsets": np.cumsum([0, *map(len, rows)])}
    golden = {}
    if name != "router":
        golden["vectors"] = np.stack([model.encode(text) for text in TEXTS])
    if name in ("router", "prompt", "messages", "messages_in_parts"):
        golden["query"] = np.stack([model.encode_query(text) for text in TEXTS])
        golden["document"] = np.stack([model.encode_document(text) for text in TEXTS])
    return golden


def attentions(folder: Path) -> dict[str, np.ndarray]:
    """Returns some ids, and their attention weights as transformers computes them (layers, heads, ids, ids)."""
    import torch
    from transformers import AutoModel

    ids = np.arange(5, 25, dtype=np.int32)
    model = AutoModel.from_pretrained(folder, attn_implementation="eager")
    with torch.no_grad():
        found = model(torch.from_numpy(ids.astype(np.int64))[None], output_attentions=True).attentions
    return {"attention_ids": ids, "attentions": torch.stack(found)[:, 0].numpy()}


def make(name: str) -> None:
    with tempfile.TemporaryDirectory() as target:
        saved = Path(target) / "saved"
        MODELS[name](Path(target)).save_pretrained(str(saved), create_model_card=False)
        (GOLDENS / f"{name}.json").write_text(json.dumps(stored(saved), indent=1, sort_keys=True) + "\n")
        folder = make_folder(name, Path(target))
        golden = say(name, folder)
        if name in ("dense", "logit_score"):
            golden |= attentions(folder)
    assert all(np.isfinite(value).all() for value in golden.values())
    np.savez_compressed(GOLDENS / f"{name}.npz", **golden)
    print(name, {key: value.shape for key, value in golden.items()}, flush=True)


def make_model2vec(name: str, mapped: bool, length: int | None) -> None:
    """Makes the golden of a model2vec folder. If `mapped`, its file has embeddings with fewer rows than tokens, a mapping and weights, as
    after vocabulary quantization. Otherwise it has only embeddings.  length: max_length in config.json, or None if it lacks the key."""
    from model2vec import StaticModel

    tokens = len(make_tokenizer().get_vocab())
    shapes: dict[str, Any] = {"embeddings": [40 if mapped else tokens, WIDTH]}
    if mapped:
        shapes |= {"mapping": ["below", 40, tokens], "weights": [tokens]}
    config = {
        "model_type": "model2vec",
        "architectures": ["StaticModel"],
        "tokenizer_name": "none",
        "hidden_dim": WIDTH,
        "normalize": mapped,
    } | ({} if length is None else {"max_length": length})
    files = {"config.json": config, "tokenizer.json": "tokenizer"}
    (GOLDENS / f"{name}.json").write_text(json.dumps({"files": files, "tensors": {"model.safetensors": shapes}}, indent=1) + "\n")
    with tempfile.TemporaryDirectory() as target:
        model = StaticModel.from_pretrained(str(make_folder(name, Path(target))))
        vectors = np.stack([model.encode([text])[0] for text in TEXTS]).astype(np.float32)
    np.savez_compressed(GOLDENS / f"{name}.npz", vectors=vectors)
    print(name, vectors.shape, flush=True)


def main(chosen: list[str]) -> None:
    GOLDENS.mkdir(parents=True, exist_ok=True)
    make_tokenizer().save(str(GOLDENS / "tokenizer.json"))
    for name in MODELS:
        if not chosen or name in chosen:
            make(name)
    for name, mapped, length in (("model2vec", False, None), ("model2vec_mapped", True, None), ("model2vec_short", False, 4)):
        if not chosen or name in chosen:
            make_model2vec(name, mapped, length)


if __name__ == "__main__":
    main(sys.argv[1:])
