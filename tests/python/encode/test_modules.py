"""Folders of sentence-transformers and model2vec must give the results of these packages (make_module_goldens.py). Broken files must be
refused."""

from __future__ import annotations

import ast
import asyncio
import json
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import module_models
import numpy as np
import pytest
import random_models
from module_models import PAIRS, TEXTS, golden, make_folder
from paths import ROOT

import pumice
from pumice.encode.known_keys import KNOWN
from pumice.encode.sentence_config import KNOWN_MODULES
from pumice.encode.windows import Cuts, Reading

LIMIT = 2e-4


def loaded(name: str, folder: Path, **options: Any) -> pumice.Model:
    return pumice.load(make_folder(name, folder), **{"device": "cpu", "compute": "float32", **options})


def cut_silently(call: Callable[[], Any]) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", pumice.TruncationWarning)
        return call()


MESSAGES = ["messages", "messages_in_parts"]
EMBEDDERS = [
    *MESSAGES,
    "dense",
    "poolings",
    "residual",
    "static",
    "model2vec",
    "model2vec_mapped",
    "model2vec_short",
    "prompt",
    "decoder",
    "clip",
]
LATE = ["late", "late_attended", "pylate"]


@pytest.mark.parametrize("name", EMBEDDERS)
def test_vectors_equal_their_packages(name: str, tmp_path: Path) -> None:
    wanted = golden(name)["vectors"]
    with loaded(name, tmp_path) as model:
        assert cut_silently(lambda: model.encode("a")).shape == wanted.shape[1:]
        together = cut_silently(lambda: model.encode(TEXTS))
        assert np.abs(together - wanted).max() <= LIMIT
        alone = [cut_silently(lambda text=text: model.encode(text)) for text in TEXTS]
        np.testing.assert_array_equal(np.stack(alone), together)  # the same bits
    with loaded(name, tmp_path, compute="auto") as model:
        rows = cut_silently(lambda: model.encode(TEXTS)).astype(np.float64)
        lengths = np.linalg.norm(rows, axis=1) * np.linalg.norm(wanted, axis=1)
        some = lengths > 0
        assert ((rows * wanted).sum(1)[some] / lengths[some]).min() >= 0.99999


def test_a_decoder_encodes_as_it_is_told_to_pool(tmp_path: Path) -> None:
    folder = make_folder("logit_score", tmp_path)
    as_text = {"text": {"method": "forward", "method_output_name": "logits"}}  # texts without the chat template
    edit(folder, "sentence_bert_config.json", modality_config=as_text)
    with pumice.load(
        folder, device="cpu", compute="float32"
    ) as model:  # without pooling=: the last row, because only it has seen the whole text
        last = model.hidden_states("one two", layers=-1)[-1]
        np.testing.assert_allclose(model.encode("one two", prompt="", normalize=False), last, atol=1e-5)
    with pumice.load(folder, device="cpu", compute="float32", pooling=["last", "mean"]) as model:
        assert model.info["tasks"] == ["encode", "generate", "classify"]
        rows = model.hidden_states("one two three", layers=-1)
        wanted = np.concatenate([rows[-1], rows.mean(axis=0)])
        np.testing.assert_allclose(model.encode("one two three", prompt=""), wanted, atol=1e-5)
        assert len(model.generate("one two", max_new_tokens=3, temperature=0).ids) <= 3


@pytest.mark.parametrize("name", MESSAGES)
def test_the_chat_template_writes_each_text(name: str, tmp_path: Path) -> None:
    """A prompt is the message of a system. A text that is too long loses its end, and the template's text behind it stays."""
    wanted = golden(name)
    with loaded(name, tmp_path) as model:
        for role, encode in (("query", model.encode_query), ("document", model.encode_document)):
            rows = cut_silently(lambda encode=encode: encode(TEXTS))
            assert np.abs(rows - wanted[role]).max() <= LIMIT, role
            np.testing.assert_array_equal(asyncio.run(together(model, role)), rows)
        if name == "messages_in_parts":
            assert np.abs(cut_silently(lambda: model.encode(TEXTS, truncate_dim=32))[:, :24] - wanted["vectors"]).max() <= LIMIT
            assert model.info["max_tokens"] == 20


async def together(model: pumice.Model, role: str) -> np.ndarray:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", pumice.TruncationWarning)
        return await (model.aencode_query if role == "query" else model.aencode_document)(TEXTS)


def test_a_template_without_the_role_of_a_text_is_an_error(tmp_path: Path) -> None:
    folder = make_folder("messages", tmp_path)
    (folder / "chat_template.jinja").write_text("{% for m in messages if m.role == 'system' %}{{ m.content }}{% endfor %} no")
    with (
        pumice.load(folder, device="cpu") as model,
        pytest.raises(pumice.ChatTemplateError, match='leaves out messages of the role "user"'),
    ):
        model.encode("one")


def test_a_prompt_stands_before_the_first_text_of_a_pair(tmp_path: Path) -> None:
    with loaded("prompted", tmp_path) as model:
        scores = cut_silently(lambda: model.predict(PAIRS))
        assert np.abs(scores - golden("prompted")["scores"]).max() <= LIMIT
        written = cut_silently(lambda: model.predict([("one two " + query, document) for query, document in PAIRS], prompt=""))
        np.testing.assert_array_equal(cut_silently(lambda: model.predict(PAIRS, prompt_name="ask")), written)
        np.testing.assert_array_equal(cut_silently(lambda: model.predict(PAIRS, prompt="one two ")), written)
        query, document = PAIRS[0]
        assert model.rank(query, [document])[0].score == pytest.approx(float(scores[0]), abs=1e-6)
        assert model.rank(query, [document], prompt="", activation="none")[0].score != pytest.approx(float(scores[0]), abs=1e-3)
        with pytest.raises(ValueError, match="prompt_name='x' is not a prompt"):
            model.predict(PAIRS, prompt_name="x")


def test_the_activation_of_a_saved_classifier(tmp_path: Path) -> None:
    """config_sentence_transformers.json comes first: a folder that was saved again has the first activation still in its config.json."""
    folder = make_folder("tanh", tmp_path)
    with pumice.load(folder, device="cpu", compute="float32") as model:
        raw = cut_silently(lambda: model.predict(PAIRS, activation="none"))
    sigmoid = "torch.nn.modules.activation.Sigmoid"
    for key, value in (("sentence_transformers", {"activation_fn": "torch.nn.modules.linear.Identity"}), ("sentence_transformers", ...)):
        edit(folder, "config.json", **{key: value, "sbert_ce_default_activation_function": "torch.nn.modules.linear.Identity"})
        edit(folder, "config_sentence_transformers.json", activation_fn=sigmoid)
        with pumice.load(folder, device="cpu", compute="float32") as model:
            np.testing.assert_allclose(cut_silently(lambda m=model: m.predict(PAIRS)), 1 / (1 + np.exp(-raw)), atol=1e-6)
        edit(folder, "config_sentence_transformers.json", activation_fn=...)
        with pumice.load(folder, device="cpu", compute="float32") as model:
            np.testing.assert_allclose(cut_silently(lambda m=model: m.predict(PAIRS)), raw, atol=1e-6)


def test_the_order_is_that_of_the_logits(tmp_path: Path) -> None:
    """The sigmoid of each of these logits is 1 in float32."""
    with loaded("tanh", tmp_path) as model:
        documents = [document for _, document in PAIRS]
        logits = np.array([[40.0], [21.0], [30.0], [25.0]], np.float32)
        model._encoder._engine = SimpleNamespace(info=model._core.info, classify=lambda *_: logits)
        hits = cut_silently(lambda: model.rank("a", documents, activation="sigmoid"))
        assert [hit.index for hit in hits] == [0, 2, 3, 1]
        assert {hit.score for hit in hits} == {1.0}


@pytest.mark.parametrize(
    ("values", "found"),
    [
        ({"processing_kwargs": {"text": {"max_length": 9}}}, 9),
        ({"processing_kwargs": {"common": {"max_length": 9}}}, 9),
        ({"processing_kwargs": {"common": {"max_length": 12}, "text": {"max_length": 9}}, "max_seq_length": 7}, 9),
        ({"tokenizer_args": {"model_max_length": 9}, "max_seq_length": 7}, 9),
        ({"processor_kwargs": {"model_max_length": 9}}, 9),
        ({"max_seq_length": 7}, 7),
        ({}, 48),
    ],
)
@pytest.mark.parametrize("file", ["sentence_bert_config.json", "sentence_roberta_config.json", "sentence_xlnet_config.json"])
def test_the_length_stands_in_one_of_several_places(values: dict[str, Any], found: int, file: str, tmp_path: Path) -> None:
    folder = make_folder("dense", tmp_path)
    (folder / "sentence_bert_config.json").unlink()
    (folder / file).write_text(json.dumps(values))
    assert pumice.encode.sentence_config.read_layout(folder).config.max_seq_length == found


def test_a_table_of_vectors_is_cut_as_its_package_cuts(tmp_path: Path) -> None:
    """model2vec cuts by max_length of config.json, to characters first; sentence-transformers by the truncation in tokenizer.json."""
    with loaded("model2vec_short", tmp_path) as model:
        assert model.info["max_tokens"] == 4
        with pytest.warns(pumice.TruncationWarning, match="of 1 texts were cut to the model's 4 tokens; the longest has 10"):
            model.encode("one two three four five six seven eight nine ten")
        long = "passage passage passage passage"  # 4 tokens, and more characters than 4 times the median length of a token
        with pytest.raises(pumice.ContextLengthError, match="this model takes 4"):
            model.encode(long, truncate="error")
    folder = make_folder("model2vec_short", tmp_path / "whole")
    edit(folder, "config.json", max_length=None)
    with pumice.load(folder, device="cpu") as model:
        assert model.info["max_tokens"] > 1 << 20
    edit(folder, "config.json", max_length=0)
    with pytest.raises(pumice.ModelFormatError, match="max_length is 0"):
        pumice.load(folder, device="cpu")
    folder = make_folder("static", tmp_path / "static")
    with pumice.load(folder, device="cpu") as model:
        wanted = model.encode("one two three")
    (file,) = folder.rglob("tokenizer.json")
    cut = {"direction": "Right", "max_length": 3, "strategy": "LongestFirst", "stride": 0}
    file.write_text(json.dumps(json.loads(file.read_text()) | {"truncation": cut}))
    with pumice.load(folder, device="cpu") as model:
        np.testing.assert_array_equal(cut_silently(lambda: model.encode("one two three four five")), wanted)


@pytest.mark.parametrize(("split", "given", "plain"), [(False, None, False), (True, None, True), (False, False, True), (True, True, False)])
def test_control_tokens_that_texts_spell(split: bool, given: bool | None, plain: bool, tmp_path: Path) -> None:
    """split_special_tokens of tokenizer_config.json makes them plain text, and so does parse_special=False."""
    text = "a stone [SEP] one [MASK] two"
    folder = make_folder("dense", tmp_path)
    edit(folder, "tokenizer_config.json", split_special_tokens=split)
    with pumice.load(folder, device="cpu") as model:
        lengths = [
            model.encode(text, parse_special=given, details=True).tokens,
            *model.encode([text], parse_special=given, details=True).tokens,
        ]
        assert lengths == [14 if plain else 8] * 2  # as transformers counts them
        assert model.count_tokens(text) == (14 if split else 8)
        assert (len(model.encode(text, parse_special=given, output="tokens")) > 9) is plain
    folder = make_folder("tanh", tmp_path / "classifier")
    edit(folder, "tokenizer_config.json", split_special_tokens=split)
    with pumice.load(folder, device="cpu") as model:
        pair = model.predict([(text, text)], parse_special=given, details=True).tokens[0]
        one = model.predict([text], parse_special=given, details=True).tokens[0]
        assert one == lengths[0]
        assert pair == 2 * (one - 2) + 3
        assert model.rank(text, [text], parse_special=given, details=True).tokens[0] == pair


def test_an_adapter_beside_whole_weights_is_named(tmp_path: Path) -> None:
    folder = make_folder("dense", tmp_path)
    (folder / "adapter_config.json").write_text("{}")
    with pytest.warns(pumice.IncompleteModelWarning, match="has an adapter beside its weights .*lora= with this folder"):
        pumice.load(folder, device="cpu").close()


AS_TEXT = {"method": "forward", "method_output_name": "last_hidden_state"}
REFUSED = [
    ({"modality_config": {"text": {**AS_TEXT, "method_output_name": "pooler_output"}}}, "output 'pooler_output'"),
    ({"modality_config": {"text": {**AS_TEXT, "method_output_name": ["hidden_states", -2]}}}, "output \\['hidden_states', -2\\]"),
    ({"modality_config": {"text": {"method": "get_text_features", "method_output_name": "pooler_output"}}}, "'get_text_features'"),
    ({"modality_config": {"image": AS_TEXT}}, "'image', and no text"),
    ({"modality_config": {"message": {**AS_TEXT, "format": "odd"}}}, "format of messages 'odd'"),
    ({"modality_config": {"text": AS_TEXT}, "module_output_name": "sentence_embedding"}, "as 'sentence_embedding'"),
    ({"modality_config": {"message": AS_TEXT}, "do_lower_case": True}, "do_lower_case with texts in the form of messages"),
    ({"modality_config": {"message": AS_TEXT}, "query_length": 8}, "lengths or expansions of queries"),
    ({"transformer_task": "any-to-any"}, "transformer_task 'any-to-any'"),
    ({"processing_kwargs": {"text": {"truncation": "only_second"}}}, "text.truncation 'only_second'"),
    ({"processing_kwargs": {"chat_template": {"restore_suffix": False}}}, "restore_suffix False"),
]


@pytest.mark.parametrize(("values", "message"), REFUSED)
def test_what_changes_vectors_is_refused_by_name(values: dict[str, Any], message: str, tmp_path: Path) -> None:
    folder = make_folder("dense", tmp_path)
    edit(folder, "sentence_bert_config.json", **{"modality_config": ..., "module_output_name": ..., **values})
    with pytest.raises(pumice.UnsupportedModelError, match=message):
        pumice.load(folder, device="cpu")


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ({"processing_kwargs": {"text": {"max_length": 0}}}, "max_length is 0"),
        ({"processing_kwargs": {"text": []}}, "text is \\[\\], not dict"),
        ({"processing_kwargs": 3}, "processing_kwargs is 3, not dict"),
        ({"tokenizer_args": {"model_max_length": "x"}}, "model_max_length is 'x'"),
        ({"modality_config": "text"}, "modality_config is 'text'"),
        ({"transformer_task": 1}, "transformer_task is 1"),
    ],
)
def test_settings_of_a_wrong_type(values: dict[str, Any], kind: str, tmp_path: Path) -> None:
    folder = make_folder("dense", tmp_path)
    edit(folder, "sentence_bert_config.json", **values)
    with pytest.raises(pumice.ModelFormatError, match=kind):
        pumice.load(folder, device="cpu")


@pytest.mark.parametrize(
    ("file", "values", "named"),
    [
        ("sentence_bert_config.json", {"odd": 1}, "'odd'"),
        ("sentence_bert_config.json", {"tokenizer_args": {"add_eos": True}}, "'tokenizer_args.add_eos'"),
        ("sentence_bert_config.json", {"config_kwargs": {"num_hidden_layers": 1}}, "'config_kwargs.num_hidden_layers'"),
        ("sentence_bert_config.json", {"processing_kwargs": {"text": {"stride": 2}}}, "'processing_kwargs.text.stride'"),
        ("sentence_bert_config.json", {"tokenizer_name_or_path": "other/model"}, "'tokenizer_name_or_path'"),
        ("config_sentence_transformers.json", {"odd": 1, "even": 2}, "'odd', 'even'"),
        ("1_Pooling/config.json", {"odd": 1}, "'odd'"),
        ("2_Dense/config.json", {"odd": 1}, "'odd'"),
    ],
)
def test_an_unknown_key_is_named(file: str, values: dict[str, Any], named: str, tmp_path: Path) -> None:
    folder = make_folder("dense", tmp_path)
    edit(folder, file, **values)
    with pytest.warns(pumice.IncompleteModelWarning, match=rf"{Path(file).name}.*\({named}\): results may differ") as said:
        pumice.load(folder, device="cpu").close()
    assert len(said) == 1


def test_every_key_of_sentence_transformers_is_known() -> None:
    """The classes that a folder names in modules.json, in the source of the package: their `config_keys`."""
    (wheel,) = (ROOT / "build" / "suites").glob("sentence_transformers-*.whl")
    found: dict[str, set[str]] = {}
    with zipfile.ZipFile(wheel) as package:
        for name in package.namelist():
            if "/modules/" in name and name.endswith(".py"):
                for node in ast.walk(ast.parse(package.read(name))):
                    for keys in [each for each in node.body if keys_of(each) is not None] if isinstance(node, ast.ClassDef) else ():
                        found[node.name] = {str(key) for key in keys_of(keys) or ()}
    assert len(found) >= 18, sorted(found)
    not_run = {"LSTM", "CNN", "BoW", "WordEmbeddings", "WordWeights", "WeightedLayerPooling", "SparseAutoEncoder", "Module"}
    not_run |= {name for name in found if "TokenPooling" in name}  # fewer vectors for a document: not read by this version
    for name in found.keys() - not_run:
        known = KNOWN[name]
        parameters = {"route_mappings"} if name == "Router" else set()  # at `parameters` of router_config.json
        assert not found[name] - known.read - known.idle - parameters, name
    assert not not_run & KNOWN.keys()
    assert not (not_run - {"Module"}) & set(KNOWN_MODULES)  # a folder with one of them is refused


def keys_of(node: ast.stmt) -> list[str] | None:
    """Returns the value of `config_keys` if the statement sets it, else None."""
    target = node.target if isinstance(node, ast.AnnAssign) else node.targets[0] if isinstance(node, ast.Assign) else None
    if not isinstance(target, ast.Name) or target.id != "config_keys" or getattr(node, "value", None) is None:
        return None
    return list(ast.literal_eval(node.value))  # type: ignore[attr-defined]


def test_the_prompt_stays_out_of_the_pool(tmp_path: Path) -> None:
    wanted = golden("prompt")
    with loaded("prompt", tmp_path) as model:
        texts = [text for text in TEXTS if text]  # the empty text, which pools only its end token, is compared below
        kept = [i for i, text in enumerate(TEXTS) if text]
        for route, encode in (("query", model.encode_query), ("document", model.encode_document)):
            rows = cut_silently(lambda encode=encode: encode(texts))
            assert np.abs(rows - wanted[route][kept]).max() <= LIMIT
            assert np.abs(encode("") - wanted[route][TEXTS.index("")]).max() <= LIMIT
        assert model.info["pooling"] == "mean+cls+weighted_mean+max"
        with pytest.raises(pumice.ContextLengthError, match="no tokens behind its prompt"), warnings.catch_warnings():
            warnings.simplefilter("ignore", pumice.TruncationWarning)
            model.encode("a", prompt="one " * 100)


def test_vectors_of_tokens_pass_through_dense(tmp_path: Path) -> None:
    wanted = golden("colbert")
    with loaded("colbert", tmp_path) as model:
        rows = cut_silently(lambda: model.encode(TEXTS, output="tokens"))
        assert [len(r) for r in rows] == np.diff(wanted["offsets"]).tolist()
        assert np.abs(np.concatenate(rows) - wanted["tokens"]).max() <= LIMIT
        with pytest.raises(pumice.UnsupportedTaskError, match="no Pooling"):
            model.encode(TEXTS[0])
        scores = pumice.maxsim(rows[0], rows)
        assert scores.shape == (len(TEXTS),)
        assert int(scores.argmax()) == 0
    with loaded("colbert", tmp_path, pooling="cls") as model:
        assert model.encode(TEXTS[0]).shape == (12,)


@pytest.mark.parametrize("name", LATE)
def test_late_interaction(name: str, tmp_path: Path) -> None:
    """The vectors of tokens must equal the golden for plain texts, queries and documents. The models have a length and a prefix for each of
    these, leave out some tokens, and append mask tokens to a query. Either all tokens attend to the mask tokens or none does."""
    wanted = golden(name)
    with loaded(name, tmp_path) as model:
        for role, encode in (("plain", model.encode), ("query", model.encode_query), ("document", model.encode_document)):
            rows = cut_silently(lambda encode=encode: encode(TEXTS, output="tokens"))
            assert [len(r) for r in rows] == np.diff(wanted[f"{role}_offsets"]).tolist(), role
            assert np.abs(np.concatenate(rows) - wanted[role]).max() <= LIMIT, role
            for i, text in enumerate(TEXTS):
                np.testing.assert_array_equal(cut_silently(lambda encode=encode, text=text: encode(text, output="tokens")), rows[i])
        queries = cut_silently(lambda: model.encode_query(TEXTS[:3], output="tokens"))
        documents = cut_silently(lambda: model.encode_document(TEXTS, output="tokens"))
        scores = model.similarity(queries, documents)
        assert np.abs(scores - wanted["scores"]).max() <= 20 * LIMIT  # a score is a sum over up to 30 tokens
        np.testing.assert_allclose(model.similarity_pairwise(queries, documents[:3]), np.diag(scores), rtol=1e-6)
        assert model.info["similarity"] == "maxsim"
        with pytest.raises(ValueError, match="search.. compares one vector a text"):
            model.search(np.ones((1, 12)), np.ones((2, 12)))
        with pytest.raises(pumice.ContextLengthError, match="this model takes 16" if name != "late_attended" else "this model takes 30"):
            model.encode_query(TEXTS[2], output="tokens", truncate="error")
    with loaded(name, tmp_path / "pooled", pooling="mean") as model:
        assert model.info["similarity"] == "cosine"
        assert model.encode_query("a").shape == (12,)


def test_lengths_of_roles_hold_for_pooled_vectors(tmp_path: Path) -> None:
    """As in sentence-transformers, encode_query() must cut texts to the length for queries, encode_document() to the length for documents,
    and encode() to the length of the model."""
    text = "one two three four five six seven"
    folder = make_folder("dense", tmp_path)
    with pumice.load(folder, device="cpu") as model:
        whole = model.encode(text)
    edit(folder, "sentence_bert_config.json", query_length=5, document_length=6)
    with pumice.load(folder, device="cpu") as model:
        cut = [cut_silently(lambda call=call: call(text)) for call in (model.encode_query, model.encode_document)]
        for call, length in ((model.encode_query, 5), (model.encode_document, 6)):
            rows, both = (cut_silently(lambda call=call, o=o: call(text, output=o)) for o in ("tokens", "both"))
            assert len(rows) == length
            np.testing.assert_array_equal(both[1], rows)
        np.testing.assert_array_equal(model.encode(text), whole)
    for length, row in ((5, cut[0]), (6, cut[1])):
        edit(folder, "sentence_bert_config.json", query_length=..., document_length=..., max_seq_length=length)
        with pumice.load(folder, device="cpu") as model:
            np.testing.assert_array_equal(cut_silently(lambda model=model: model.encode(text)), row)


def test_the_share_of_maxsim(tmp_path: Path) -> None:
    folder = make_folder("late", tmp_path)
    file = folder / "config_sentence_transformers.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"similarity_fn_name": "meanmaxsim"}))
    with pumice.load(folder, device="cpu", compute="float32") as model:
        query, documents = model.encode_query("a stone", output="tokens"), model.encode_document(["one", "two"], output="tokens")
        np.testing.assert_allclose(model.similarity(query, documents), pumice.maxsim(query, documents) / len(query), rtol=1e-6)
        np.testing.assert_allclose(model.similarity([query, query[:2]], documents)[1], pumice.maxsim(query[:2], documents) / 2, rtol=1e-6)


def test_routes(tmp_path: Path) -> None:
    wanted = golden("router")
    with loaded("router", tmp_path) as model:
        assert np.abs(model.encode_query(TEXTS) - wanted["query"]).max() <= LIMIT
        assert np.abs(cut_silently(lambda: model.encode_document(TEXTS)) - wanted["document"]).max() <= LIMIT
        np.testing.assert_array_equal(model.encode(TEXTS[0]), model.encode_document(TEXTS[0]))  # "document" is the default route
        with pytest.raises(TypeError, match="precison.*did you mean 'precision'"):
            model.encode_document(TEXTS, precison="int8")
        assert "routes: document (bert, 32), query (static, 32)" in str(model.summary())
        query = model._routes["query"]
    with pytest.raises(ValueError, match="closed"):
        query.encode("a")


def test_without_a_default_route(tmp_path: Path) -> None:
    folder = make_folder("router", tmp_path)
    file = folder / "router_config.json"
    values = json.loads(file.read_text())
    values["parameters"]["default_route"] = None
    file.write_text(json.dumps(values))
    with pumice.load(folder, device="cpu", compute="float32") as model:
        with pytest.raises(ValueError, match=r"routes \(document, query\).*encode_query"):
            model.encode(TEXTS)
        assert np.abs(model.encode_query(TEXTS) - golden("router")["query"]).max() <= LIMIT
        assert model.encode_document(TEXTS[0]).shape == (32,)


def test_a_default_route(tmp_path: Path) -> None:
    folder = make_folder("router", tmp_path)
    file = folder / "router_config.json"
    values = json.loads(file.read_text())
    values["parameters"]["default_route"] = "query"
    file.write_text(json.dumps(values))
    with pumice.load(folder, device="cpu", compute="float32") as model:
        assert np.abs(model.encode(TEXTS, prompt="query: ") - golden("router")["query"]).max() <= LIMIT


def test_static_vectors_of_texts_of_any_length(tmp_path: Path) -> None:
    with loaded("static", tmp_path) as model:
        long = "one two " * 5000
        together = model.encode([*TEXTS, long])
        np.testing.assert_array_equal(together[-1], model.encode(long))
        assert abs(np.linalg.norm(together[-1]) - 1) < 1e-6
        np.testing.assert_allclose(together[-1], model.encode("one two"), atol=1e-5)
        assert [rows.shape for rows in model.encode(["one two", ""], output="tokens")] == [(2, 32), (0, 32)]
        assert model.info["layers"] == 0
        assert "of any length" in str(model.summary())
        with pytest.raises(pumice.UnsupportedTaskError):
            model.generate("a")
        with pytest.raises(pumice.UnsupportedTaskError, match=r"hidden_states\(\) needs a model with layers"):
            model.hidden_states(np.array([1]), layers=0)
    folder = make_folder("static", tmp_path)
    plan = pumice.plan(folder, device="cpu")
    with pumice.load(folder) as model:
        assert plan.totals["cpu"]["weights"] == model.memory()["weights"] > 0
    with pytest.raises(ValueError, match="table of vectors"):
        pumice.load(folder, quantize="q8_0")


def test_scores_and_labels(tmp_path: Path) -> None:
    wanted = golden("labels")["scores"]
    with loaded("labels", tmp_path) as model:
        assert model.info["labels"] == ("contradiction", "entailment", "neutral")
        scores = cut_silently(lambda: model.predict(PAIRS))
        assert np.abs(scores - wanted).max() <= LIMIT
        found = cut_silently(lambda: model.predict(PAIRS, output="labels"))
        soft = np.exp(wanted) / np.exp(wanted).sum(1, keepdims=True)
        for prediction, row in zip(found, soft, strict=True):
            assert prediction.label == model.info["labels"][row.argmax()]
            assert prediction.probability == pytest.approx(row.max(), abs=1e-4)
            assert list(prediction.probabilities) == list(model.info["labels"])
            assert sum(prediction.probabilities.values()) == pytest.approx(1, abs=1e-5)
        one = model.predict("one two three")
        assert one.shape == (3,)
        np.testing.assert_array_equal(model.predict(["one two three", "x", "a"])[0], one)
        np.testing.assert_allclose(model.predict(PAIRS[0], activation="softmax"), soft[0], atol=1e-4)
        with pytest.raises(ValueError, match="activation='relu'"):
            model.predict(PAIRS, activation="relu")
        with pytest.raises(TypeError, match="pair 1"):
            model.predict([("a", "b"), "c"])
    with loaded("tanh", tmp_path) as model:
        scores = cut_silently(lambda: model.predict(PAIRS))
        assert np.abs(scores - golden("tanh")["scores"]).max() <= LIMIT
        raw = cut_silently(lambda: model.predict(PAIRS, activation="none"))
        np.testing.assert_allclose(np.tanh(raw), scores, atol=1e-6)
        assert model.predict("x", output="labels").label == "LABEL_0"


def test_a_causal_reranker_reads_two_logits(tmp_path: Path) -> None:
    wanted = golden("logit_score")
    with loaded("logit_score", tmp_path) as model:
        assert "classify" in model.info["tasks"]
        assert model.info["labels"] == ("score",)
        short = [
            i
            for i, (a, b) in enumerate(zip(wanted["offsets"][:-1], wanted["offsets"][1:], strict=True))
            if b - a < model.info["max_tokens"]
        ]
        assert len(short) >= 3
        for i in short:
            assert model._message_ids(PAIRS[i], "rate").tolist() == wanted["ids"][wanted["offsets"][i] : wanted["offsets"][i + 1]].tolist()
        with pytest.warns(pumice.TruncationWarning, match=r"1 of 4 pairs were cut"):
            scores = model.predict(PAIRS)
        assert np.abs(scores - wanted["scores"])[short].max() <= LIMIT
        (cut,) = {*range(4)} - {*short}
        ids = model._encoder._windows.rendered(model._message_ids, [PAIRS[cut]], Reading("rate"), 0, Cuts(48, True)).ids
        assert ids.tolist() == wanted["ids"][wanted["offsets"][cut] :][:48].tolist()
        hits = cut_silently(lambda: model.rank("a stone", [document for _, document in PAIRS]))
        assert sorted(hit.index for hit in hits) == [0, 1, 2, 3]


@pytest.mark.parametrize("name", ["dense", "logit_score"])
def test_attentions_equal_transformers(name: str, tmp_path: Path) -> None:
    wanted = golden(name)
    with loaded(name, tmp_path) as model:
        ids = wanted["attention_ids"]
        for layer in (1, 2):
            found = model.attentions(ids, layer)
            assert np.abs(found - wanted["attentions"][layer - 1]).max() <= 1e-5
            np.testing.assert_allclose(found.sum(-1), 1, atol=1e-5)
        np.testing.assert_array_equal(model.attentions(ids), found)
        np.testing.assert_array_equal(model.attentions(ids, -2), model.attentions(ids, 1))
        assert model.attentions("one two").shape[1:] == (model.count_tokens("one two"),) * 2
        for wrong, message in ((0, "layer=0 are the embeddings"), (3, "layer=3"), (-3, "layer=-3")):
            with pytest.raises(ValueError, match=message):
                model.attentions(ids, wrong)
        with pytest.raises(pumice.ContextLengthError):
            model.attentions(np.full(5000, 5))
        with pytest.raises(ValueError):
            model.attentions([])


# ---------------------------------------------------------------- every file broken in turn
def edit(folder: Path, file: str, **values: Any) -> None:
    path = folder / file
    content = json.loads(path.read_text())
    content.update(values)
    path.write_text(json.dumps({key: value for key, value in content.items() if value is not ...}))


def modules(folder: Path, change: Callable[[list[dict[str, Any]]], Any]) -> None:
    path = folder / "modules.json"
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


BROKEN: list[tuple[str, Callable[[Path], Any], type[Exception] | tuple[type[Exception], ...], str]] = [
    ("dense", lambda f: edit(f, "2_Dense/config.json", in_features=31), pumice.ModelFormatError, "2_Dense.*in_features is 31.* gives 32"),
    ("dense", lambda f: edit(f, "2_Dense/config.json", out_features=47), pumice.ModelFormatError, r"has shape \[48, 32\].*\[47, 32\]"),
    ("dense", lambda f: edit(f, "2_Dense/config.json", out_features="48"), pumice.ModelFormatError, "out_features is '48', not int"),
    ("dense", lambda f: edit(f, "2_Dense/config.json", out_features=...), pumice.ModelFormatError, "out_features is missing"),
    ("dense", lambda f: edit(f, "2_Dense/config.json", out_features=10**30), pumice.ModelFormatError, "out_features is 1000"),
    ("dense", lambda f: edit(f, "2_Dense/config.json", use_residual=True), pumice.ModelFormatError, "2_Dense.*residual.weight is missing"),
    ("dense", lambda f: edit(f, "3_Dense/config.json", bias=True), pumice.ModelFormatError, "3_Dense.*linear.bias is missing"),
    ("dense", lambda f: edit(f, "2_Dense/config.json", activation_function="torch.nn.modules.activation.Softmax"),
     pumice.UnsupportedModelError, "2_Dense.*Softmax.*Identity, Tanh"),
    ("dense", lambda f: edit(f, "2_Dense/config.json", activation_function="os.system"), pumice.UnsupportedModelError, "os.system"),
    ("dense", lambda f: edit(f, "2_Dense/config.json", module_input_name="logits"), pumice.UnsupportedModelError, "reads 'logits'"),
    ("dense", lambda f: (f / "2_Dense/config.json").unlink(), pumice.ModelFormatError, "2_Dense.*config.json is missing"),
    ("dense", lambda f: (f / "2_Dense/model.safetensors").rename(f / "2_Dense/pytorch_model.bin"), pumice.ModelFormatError, "pickle"),
    ("dense", lambda f: (f / "2_Dense/model.safetensors").unlink(), pumice.ModelFormatError, "2_Dense/model.safetensors is not there"),
    ("dense", lambda f: (f / "2_Dense/model.safetensors").write_bytes(b"\0" * 9), pumice.ModelFormatError, "2_Dense/model.safetensors"),
    ("dense", lambda f: (f / "modules.json").write_text("[{"), pumice.ModelFormatError, "modules.json"),
    ("dense", lambda f: (f / "modules.json").write_text("{}"), pumice.ModelFormatError, "modules.json is not a list of modules"),
    ("dense", lambda f: (f / "modules.json").write_text("[]"), pumice.ModelFormatError, "modules.json names no modules"),
    ("dense", lambda f: (f / "modules.json").write_text('[{"idx": 0}]'), pumice.ModelFormatError, 'modules.json.*with a "type"'),
    ("dense", lambda f: modules(f, lambda m: m[0].update(type=7)), pumice.ModelFormatError, 'modules.json.*with a "type"'),
    ("dense", lambda f: modules(f, lambda m: m[0].update(path="../secret")), pumice.ModelFormatError, "not the name of a folder beside it"),
    ("dense", lambda f: modules(f, lambda m: m[0].update(path=3)), pumice.ModelFormatError, "modules.json: 3 is not the name of a folder"),
    ("dense", lambda f: modules(f, lambda m: m[0].update(path="\ud800")), pumice.ModelFormatError, r"ud800' is not the name of"),
    ("dense", lambda f: modules(f, lambda m: m[0].update(type="a.b.WordWeights")), pumice.UnsupportedModelError, "'WordWeights'.*runs T"),
    ("dense", lambda f: modules(f, lambda m: m[2].update(type="a.b.CNN")), pumice.UnsupportedModelError, "'?CNN"),
    ("dense", lambda f: (f / "1_Pooling/config.json").unlink(), pumice.ModelFormatError, "1_Pooling.*config.json is missing"),
    ("dense", lambda f: (f / "1_Pooling/config.json").write_text("[]"), pumice.ModelFormatError, "1_Pooling.*config.json"),
    ("dense", lambda f: (f / "2_Dense/config.json").write_text('{"in_features"'), pumice.ModelFormatError, "2_Dense.*config.json"),
    ("dense", lambda f: edit(f, "2_Dense/config.json", bias="yes"), pumice.ModelFormatError, "bias is 'yes', not bool"),
    ("dense", lambda f: edit(f, "2_Dense/config.json", in_features=0), pumice.ModelFormatError, "in_features is 0; it must be 1 to"),
    ("dense", lambda f: (f / "tokenizer.json").unlink(), pumice.TokenizerError, "tokenizer"),
    ("dense", lambda f: (f / "tokenizer.json").write_text("{"), pumice.TokenizerError, "tokenizer.json"),
    ("dense", lambda f: (f / "tokenizer.json").write_text('{"model": {"type": "Mystery"}}'), pumice.TokenizerError, "tokenizer.json"),
    ("dense", lambda f: edit(f, "tokenizer.json", added_tokens=7), pumice.TokenizerError, "tokenizer.json"),
    ("dense", lambda f: edit(f, "config.json", hidden_size="32"), pumice.ModelFormatError, "config.json.*hidden_size"),
    ("dense", lambda f: (f / "config.json").write_text("[1]"), pumice.ModelFormatError, "config.json"),
    ("dense", lambda f: (f / "config.json").unlink(), (OSError, pumice.ModelFormatError), "config.json"),
    ("dense", lambda f: (f / "model.safetensors").unlink(), (OSError, pumice.ModelFormatError), "safetensors"),
    ("dense", lambda f: (f / "sentence_bert_config.json").write_text('{"max_seq_length": 0}'), pumice.ModelFormatError,
     "max_seq_length is 0; it must be at least 1"),
    ("dense", lambda f: (f / "config_sentence_transformers.json").write_text('{"similarity_fn_name": "near"}'),
     pumice.UnsupportedModelError, "similarity_fn_name 'near' is not one of"),
    ("dense", lambda f: (f / "config_sentence_transformers.json").write_text('{"prompts": {"query": 7}}'), pumice.ModelFormatError,
     "prompt 'query' is 7, not a string"),
    ("dense", lambda f: (f / "config_sentence_transformers.json").write_text('{"default_prompt_name": "x"}'), pumice.ModelFormatError,
     "default_prompt_name 'x' is not among the prompts"),
    ("poolings", lambda f: edit(f, "3_LayerNorm/config.json", dimension=191), pumice.ModelFormatError, "dimension is 191.* gives 192"),
    ("poolings", lambda f: edit(f, "1_Pooling/config.json", pooling_mode=["cls", 7]), pumice.UnsupportedModelError, r"pooling cls \+ 7"),
    ("poolings", lambda f: edit(f, "1_Pooling/config.json", pooling_mode=[]), pumice.UnsupportedModelError, "asks for pooling"),
    ("late", lambda f: edit(f, "2_MultiVectorMask/config.json", skiplist_words=7), pumice.ModelFormatError, "skiplist_words is no list"),
    ("late", lambda f: edit(f, "2_MultiVectorMask/config.json", skiplist_words=["\ud800"]), pumice.ModelFormatError, "lone surrogate"),
    ("late", lambda f: edit(f, "2_MultiVectorMask/config.json", keep_only_token_ids=[-1]), pumice.ModelFormatError, "keep_only_token_ids"),
    ("late", lambda f: edit(f, "2_MultiVectorMask/config.json", keep_only_token_ids=[10**6, 2**31 - 1]), pumice.ModelFormatError,
     "keep_only_token_ids names no token"),
    ("late", lambda f: edit(f, "sentence_bert_config.json", query_expansion={"strategy": "x"}), pumice.ModelFormatError, "a strategy"),
    ("late", lambda f: edit(f, "sentence_bert_config.json", query_expansion={"strategy": "fixed", "length": 0}), pumice.ModelFormatError,
     "query_expansion.length is 0; it must be 1 to"),
    ("late", lambda f: edit(f, "sentence_bert_config.json", query_expansion={"strategy": "fixed", "length": 8, "token": "[NONE]"}),
     pumice.ModelFormatError, "queries are made longer by a token that the tokenizer lacks.*NONE"),
    ("late", lambda f: edit(f, "sentence_bert_config.json", document_length="x"), pumice.ModelFormatError, "document_length is 'x', not"),
    ("dense", lambda f: edit(f, "sentence_bert_config.json", query_expansion={"strategy": "fixed", "length": 8}),
     pumice.UnsupportedModelError, "mask tokens behind queries whose vectors are pooled"),
    ("late", lambda f: modules(f, lambda m: m.append({"type": "sentence_transformers.models.Pooling", "path": "1_Dense"})),
     pumice.UnsupportedModelError, "Pooling behind MultiVectorMask"),
    ("pylate", lambda f: edit(f, "config_sentence_transformers.json", query_length=-3), pumice.ModelFormatError, "query_length is -3"),
    ("pylate", lambda f: edit(f, "config_sentence_transformers.json", document_prefix=3), pumice.ModelFormatError, "document_prefix is 3"),
    ("router", lambda f: edit(f, "router_config.json", types=...), pumice.ModelFormatError, "router_config.json: types is missing"),
    ("router", lambda f: edit(f, "router_config.json", structure={"query": ["gone"]}), pumice.ModelFormatError, "route .query. is not"),
    ("router", lambda f: edit(f, "router_config.json", parameters={"default_route": "x"}), pumice.ModelFormatError, "default_route 'x'"),
    ("router", lambda f: edit(f, "router_config.json", types={"../x": "a.Transformer"}, structure={"query": ["../x"]}),
     pumice.ModelFormatError, "not the name of a folder"),
    ("static", lambda f: [p.unlink() for p in f.rglob("model.safetensors")], pumice.ModelFormatError, "model.safetensors is not there"),
    ("model2vec_mapped", lambda f: module_models.write_tensors(f / "model.safetensors", {"embeddings": np.ones((3, 4), np.float32),
     "mapping": np.array([0, 3])}), pumice.ModelFormatError, "mapping names rows outside of the 3"),
    ("model2vec_mapped", lambda f: module_models.write_tensors(f / "model.safetensors", {"embeddings": np.ones((3, 4), np.float32),
     "weights": np.ones(2, np.float32)}), pumice.ModelFormatError, "weights has 2 values for 3 tokens"),
    ("model2vec", lambda f: module_models.write_tensors(f / "model.safetensors", {"other": np.ones((3, 4), np.float32)}),
     pumice.ModelFormatError, "embedding.weight is missing.*other"),
    ("model2vec", lambda f: module_models.write_tensors(f / "model.safetensors", {"embeddings": np.full((3, 4), np.nan, np.float32)}),
     pumice.ModelFormatError, "row 0 of embeddings holds a NaN"),
    ("logit_score", lambda f: edit(f, "1_LogitScore/config.json", true_token_id=10**6), ValueError, "token id 1000000 of the score"),
    ("logit_score", lambda f: edit(f, "1_LogitScore/config.json", true_token_id=...), pumice.ModelFormatError, "true_token_id is missing"),
    ("logit_score", lambda f: edit(f, "1_LogitScore/config.json", false_token_id=-1), pumice.ModelFormatError, "false_token_id is -1"),
]  # fmt: skip


@pytest.mark.parametrize("case", range(len(BROKEN)))
def test_broken_files_are_named(case: int, tmp_path: Path) -> None:
    name, damage, error, message = BROKEN[case]
    folder = make_folder(name, tmp_path)
    damage(folder)
    with pytest.raises(error, match=message):
        pumice.load(folder, device="cpu")


def test_a_module_may_lie_in_the_folder_itself(tmp_path: Path) -> None:
    """The path of a module may name the folder itself. sentence-transformers writes this path as "", and model2vec as "."."""
    folder = make_folder("static", tmp_path)
    expected = pumice.load(folder).encode("a text")
    file = folder / "modules.json"
    modules = json.loads(file.read_text())
    modules[0]["path"] = "."
    for name in ("model.safetensors", "tokenizer.json"):
        source = next(folder.rglob(name))
        if source.parent != folder:
            source.rename(folder / name)
    file.write_text(json.dumps(modules))
    np.testing.assert_array_equal(pumice.load(folder).encode("a text"), expected)


def test_every_golden_is_small_and_used() -> None:
    sparse = {"splade", "splade_logs", "splade_router"}  # test_sparse.py
    used = {*EMBEDDERS, *LATE, *sparse, "colbert", "router", "labels", "tanh", "prompted", "logit_score"}
    assert used == set(module_models.names())
    for path in module_models.GOLDENS.iterdir():
        assert path.stat().st_size <= 40 << 10, path


@pytest.mark.parametrize(
    ("name", "said"), [("static", "static: a table"), ("model2vec", "static: a table"), ("router", "bert"), ("dense", "bert")]
)
def test_info_of_the_command_line(name: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from pumice.__main__ import main

    assert main(["info", str(make_folder(name, tmp_path))]) == 0
    assert said in capsys.readouterr().out


# ---------------------------------------------------------------- Qwen 3 with attention in both directions
TRANSFORMER = {"path": "", "type": "sentence_transformers.models.Transformer"}
POOLING = {"path": "1_Pooling", "type": "sentence_transformers.models.Pooling"}
QUANTIZER = {"path": "", "type": "st_quantize.FlexibleQuantizer"}
NORMALIZE = {"path": "2_Normalize", "type": "sentence_transformers.models.Normalize"}
WORDS = ["w1 w2 w3", "w5", "w9 w4 w200 w31 w7"]


def embedder(name: str, chain: list[dict[str, str]], target: Path) -> Path:
    """The small model `name` as a folder of sentence-transformers, with mean pooling."""
    folder = random_models.make_folder(name, target)
    (folder / "modules.json").write_text(json.dumps(chain))
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode_mean_tokens": True}))
    return folder


def means(model: pumice.Model) -> np.ndarray:
    return np.stack([rows.mean(0, dtype=np.float64) for rows in model.encode(WORDS, output="tokens")])


def test_voyage_projects_each_row(tmp_path: Path) -> None:
    with pumice.load(embedder("qwen3_voyage", [TRANSFORMER, POOLING, NORMALIZE], tmp_path), device="cpu", compute="float32") as model:
        assert model.info["vector_size"] == 96 and model.encode(WORDS, output="tokens")[1].shape == (1, 96)
        pooled = means(model)
        assert np.abs(model.encode(WORDS) - pooled / np.linalg.norm(pooled, axis=1, keepdims=True)).max() <= 1e-6


def test_codes_of_pplx_embed(tmp_path: Path) -> None:
    """The formula is that of st_quantize.py: the vectors are 127 tanh(x), rounded."""
    with pumice.load(embedder("qwen3_pplx", [TRANSFORMER, POOLING, QUANTIZER], tmp_path), device="cpu", compute="float32") as model:
        pooled = means(model)
        exact = 127 * np.tanh(pooled)
        codes = model.encode(WORDS)
        assert codes.dtype == np.float32 and np.array_equal(codes, np.rint(codes)) and np.abs(codes).max() > 20
        assert np.abs(codes - exact).max() <= 0.5 + 1e-3
        assert np.array_equal(model.encode(WORDS, precision="int8"), codes.astype(np.int8))
        assert np.array_equal(model.encode(WORDS[0], precision="int8"), codes[0].astype(np.int8))
        assert np.array_equal(model.encode(WORDS, precision="ubinary"), np.packbits(pooled > 0, axis=1))
        assert np.array_equal(model.encode(WORDS, truncate_dim=16), codes[:, :16])
        out = np.empty_like(codes)
        assert model.encode(WORDS, out=out) is out and np.array_equal(out, codes)
        unit = codes / np.linalg.norm(codes, axis=1, keepdims=True)
        assert np.abs(model.encode(WORDS, normalize=True) - unit).max() <= 1e-6
        assert np.array_equal(asyncio.run(model.aencode(WORDS)), codes)
        with pytest.raises(ValueError, match="codes of 8 bits already"):
            model.encode(WORDS, precision="int8", precision_ranges=np.stack([codes.min(0), codes.max(0)]))


@pytest.mark.parametrize(
    ("chain", "said"),
    [
        ([TRANSFORMER, POOLING, {"path": "", "type": "other.FlexibleQuantizer"}], "also needs 'other.FlexibleQuantizer'"),
        ([TRANSFORMER, QUANTIZER, POOLING], "FlexibleQuantizer is run right behind Pooling alone"),
        ([TRANSFORMER, POOLING, QUANTIZER, NORMALIZE], "'Normalize' behind FlexibleQuantizer is not run"),
        ([TRANSFORMER, POOLING, NORMALIZE, QUANTIZER], "FlexibleQuantizer is run right behind Pooling alone"),
    ],
)
def test_other_quantizers_are_refused(chain: list[dict[str, str]], said: str, tmp_path: Path) -> None:
    with pytest.raises(pumice.UnsupportedModelError, match=said):
        pumice.load(embedder("qwen3_pplx", chain, tmp_path), device="cpu")
