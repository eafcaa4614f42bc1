"""Small random models, in folders as transformers writes them, must give the results of transformers in float32
(tests/make_random_model_goldens.py)."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import random_models
from random_models import VARIANTS

import pumice

RUN = [variant for variant in VARIANTS.values() if not variant.pending]
DECODERS = [variant.name for variant in RUN if variant.kind == "decoder"]
ENCODERS = [variant.name for variant in RUN if variant.kind in random_models.ENCODERS]
REFUSED = [variant.name for variant in RUN if variant.kind == "refused"]
PENDING = [variant.name for variant in VARIANTS.values() if variant.pending]


def check_logits(model: pumice.Model, golden: dict[str, np.ndarray]) -> None:
    ids, stride = golden["ids"], int(golden["stride"])
    logits = model.logits(ids, positions="all")
    assert logits.shape == (len(ids), len(golden["last"])) and logits.dtype == np.float32
    assert np.abs(logits[:, ::stride] - golden["logits"]).max() <= 2e-4
    assert np.abs(logits[-1] - golden["last"]).max() <= 2e-4
    wide = logits.astype(np.float64)
    peak = wide.max(1)
    assert np.abs(peak + np.log(np.exp(wide - peak[:, None]).sum(1)) - golden["log_sum_exp"]).max() <= 2e-4
    assert np.array_equal(model.logits(ids), logits[-1])


def check_greedy(model: pumice.Model, golden: dict[str, np.ndarray], name: str) -> None:
    result = model.generate(golden["ids"][:20], max_new_tokens=64, temperature=0)
    # transformers was told to go on after an end token, but generate() stops there.
    expected = golden["greedy"].tolist()
    config = json.loads(random_models.golden_file(name, "config.json").read_text())
    eos = config.get("eos_token_id", config.get("text_config", {}).get("eos_token_id"))
    ends = [expected.index(end) for end in (eos if isinstance(eos, list) else [eos]) if end in expected]
    assert len(expected) == 64
    assert result.ids.tolist() == expected[: min(ends, default=64)]


def check_scores(model: pumice.Model, golden: dict[str, np.ndarray]) -> None:
    """score() must return the log-probability of each next token."""
    expected = golden["targets"].astype(np.float64) - golden["log_sum_exp"][:-1]
    scores = model.score(golden["ids"])
    assert scores.shape == (len(golden["ids"]) - 1,)
    assert np.abs(scores - expected).max() <= 4e-4


def check_encoder(folder: Path, golden: dict[str, np.ndarray], compute: str) -> None:
    """All texts in one ragged batch must give the rows of the golden, and each text alone the same bits as in the batch."""
    from pumice import _core

    model = _core.load(_core.open_file(str(folder)), _core.LoadOptions(device="cpu", compute=compute))
    ids, offsets = golden["ids"], golden["offsets"]
    types = golden.get("types", np.zeros_like(ids))
    hidden = model.encode_tokens(ids, offsets, types)
    check_rows(hidden[:, :: int(golden["stride"])], golden["hidden"], compute)
    for first, last in zip(offsets[:-1], offsets[1:], strict=True):  # a text's bits do not depend on its batch
        alone = model.encode_tokens(ids[first:last], np.array([0, last - first]), types[first:last])
        assert np.array_equal(alone, hidden[first:last])
    if "logits" in golden:
        assert model.info["labels"] == golden["logits"].shape[1]
        logits = random_models.classes(model, ids, offsets, types)
        check_rows(logits, golden["logits"], compute)
        if len(logits) == len(ids):  # a classifier of tokens: a token's bits do not depend on the batch
            last = slice(offsets[-2], offsets[-1])
            alone = model.label_tokens(ids[last], np.array([0, offsets[-1] - offsets[-2]]), types[last])
            assert np.array_equal(alone, logits[last])
    if "sparse" in golden:
        rows = random_models.sparse(model, ids, offsets, types)
        check_rows(rows, golden["sparse"], compute)
        for i, (first, last) in enumerate(zip(offsets[:-1], offsets[1:], strict=True)):
            alone = random_models.sparse(model, ids[first:last], np.array([0, last - first]), types[first:last])
            assert np.array_equal(alone[0], rows[i])
    if "embeddings" in golden:
        vectors = np.empty((len(offsets) - 1, model.info["vector_size"]), np.float32)
        model.encode(ids, offsets, types, vectors, False, 0)
        check_rows(vectors, golden["embeddings"], compute)


def check_rows(found: np.ndarray, expected: np.ndarray, compute: str) -> None:
    assert found.shape == expected.shape
    if compute == "float32":
        assert np.abs(found - expected).max() <= 2e-4
        return
    # With compute="auto", products are computed in fixed point, so only the direction is compared.
    a, b = found.astype(np.float64).ravel(), expected.astype(np.float64).ravel()
    assert (a * b).sum() / np.sqrt((a * a).sum() * (b * b).sum()) >= 0.99999


@pytest.fixture(scope="module", params=DECODERS)
def decoder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory):
    folder = random_models.make_folder(request.param, tmp_path_factory.mktemp("models"))
    with pumice.load(folder, device="cpu", compute="float32", kv_dtype="f32") as model:
        yield model, random_models.golden(request.param), request.param


def test_logits_equal_transformers(decoder) -> None:
    model, golden, _ = decoder
    check_logits(model, golden)


def test_greedy_ids_equal_transformers(decoder) -> None:
    check_greedy(*decoder)


def test_score_is_the_log_probability_of_each_next_token(decoder) -> None:
    model, golden, _ = decoder
    check_scores(model, golden)


@pytest.mark.parametrize("name", ["phi3_longrope_long", "llama_dynamic_long"])
def test_hidden_states_turn_by_the_length_of_the_text(name: str, tmp_path: Path) -> None:
    ids, head = random_models.golden(name)["ids"], random_models.tensors(name)["lm_head.weight"]
    with pumice.load(random_models.make_folder(name, tmp_path), device="cpu", compute="float32") as model:
        for length in (10, len(ids)):
            logits = model.hidden_states(ids[:length], layers=-1) @ head.T
            assert np.abs(logits - model.logits(ids[:length], positions="all")).max() <= 2e-4


def test_a_prompt_computed_in_parts_and_one_computed_anew_give_the_same_text(tmp_path: Path) -> None:
    """Prompts must give the same text alone, together, and again with the prefixes that are then in the cache. Some sequences stay within
    the original context length of the model, some cross it, and some begin beyond it."""
    options = {"max_new_tokens": 40, "temperature": 0}
    for name in ("phi3_longrope_crossing", "llama_dynamic_crossing"):
        ids = random_models.golden(name)["ids"].tolist()
        prompts = [ids[:20], ids[:47], ids[:49], ids[:90], ids[:5]]
        folder = random_models.make_folder(name, tmp_path)
        with pumice.load(folder, device="cpu") as model:
            together = [result.ids.tolist() for result in model.generate(prompts, **options)]
            again = [result.ids.tolist() for result in model.generate(prompts, **options)]
        alone = []
        for prompt in prompts:
            with pumice.load(folder, device="cpu") as model:
                alone.append(model.generate(prompt, **options).ids.tolist())
        assert together == alone and again == alone, name


@pytest.mark.parametrize("compute", ["float32", "auto"])
@pytest.mark.parametrize("name", ENCODERS)
def test_encoder_equals_transformers(name: str, compute: str, tmp_path: Path) -> None:
    check_encoder(random_models.make_folder(name, tmp_path), random_models.golden(name), compute)


def check_refusal(name: str, folder: Path) -> None:
    with pytest.raises(pumice.UnsupportedModelError, match=VARIANTS[name].reason):
        pumice.load(folder, device="cpu")


def test_settings_that_are_not_run_are_refused_by_name(tmp_path: Path) -> None:
    for name in REFUSED:
        check_refusal(name, random_models.make_folder(name, tmp_path))


def compare(name: str, folder: Path) -> None:
    kind = VARIANTS[name].kind
    if kind == "refused":
        check_refusal(name, folder)
        return
    golden = random_models.golden(name)
    if kind in random_models.ENCODERS:
        check_encoder(folder, golden, "float32")
        return
    with pumice.load(folder, device="cpu", compute="float32", kv_dtype="f32") as model:
        check_logits(model, golden)
        check_greedy(model, golden, name)


def test_pending_variants_do_not_run_yet(tmp_path: Path) -> None:
    """A variant that is marked "pending" in tests/random_models must fail. When it passes, remove the mark, so that it is compared as the
    others are."""
    for name in PENDING:
        folder = random_models.make_folder(name, tmp_path)
        with pytest.raises((pumice.PumiceError, AssertionError)):
            compare(name, folder)


def test_quantized_at_load(tmp_path: Path) -> None:
    folder, ids = random_models.make_folder("llama_wide", tmp_path), np.arange(3, 43)
    with pumice.load(folder, device="cpu", compute="float32") as model:
        whole = model.logits(ids, positions="all").astype(np.float64)
    found = {}
    for name in pumice.build_info()["pack_formats"]:
        with pumice.load(folder, device="cpu", quantize=name.lower()) as model:
            assert name in model.info["formats"]
            logits = model.logits(ids, positions="all").astype(np.float64)
        found[name.lower()] = ((logits - whole) ** 2).sum() / (whole**2).sum()
    print({name: f"{error:.2e}" for name, error in found.items()})
    limits = {
        "q8_0": 2e-3, "q6_k": 1e-2, "q5_k": 3e-2, "q5_0": 3e-2, "q5_1": 3e-2, "q4_k": 0.15, "q4_0": 0.15, "q4_1": 0.15, "iq4_nl": 0.15,
        "iq4_xs": 0.15, "q3_k": 0.5, "q2_k": 1,
    }  # fmt: skip
    assert all(1e-6 < error < limits[name] for name, error in found.items())


def test_rows_that_are_no_whole_blocks_stay_as_they_are(tmp_path: Path) -> None:
    with pumice.load(random_models.make_folder("llama3", tmp_path), device="cpu", quantize="q4_k") as model:
        assert set(model.info["formats"]) == {"F32"}  # rows have 64 or 160 columns
        assert "do not divide into blocks of 256 for Q4_K" in str(model.summary())


# ---------------------------------------------------------------- the weights themselves
@pytest.mark.parametrize(
    ("name", "centre", "reach"),
    [
        ("model.layers.0.input_layernorm.weight", 1.0, 0.2),
        ("transformer.h.0.ln_1.weight", 1.0, 0.2),
        ("transformer.h.0.ln_attn.weight", 1.0, 0.2),
        ("transformer.ln_f.weight", 1.0, 0.2),
        ("emb_ln.weight", 1.0, 0.2),
        ("model.layers.0.layer_scalar", 1.0, 0.2),
        ("transformer.h.0.ln_1.bias", 0.0, 0.2),
        ("model.layers.0.self_attn.q_proj.bias", 0.0, 0.2),
        ("model.layers.0.linear_attn.A_log", 1.35, 1.35),
        ("model.layers.0.mamba.D", 1.0, 0.5),
        ("model.layers.0.self_attn.sinks", 0.0, 4.0),
    ],
)
def test_vectors_lie_where_their_names_say(name: str, centre: float, reach: float) -> None:
    values = random_models.weights(name, (4096,)) - centre
    assert 0.99 * reach < np.abs(values).max() <= reach * 1.0001
    assert abs(values.mean()) < 0.1 * reach


def test_weights_are_the_bytes_of_the_goldens() -> None:
    """The weights of a tensor come from splitmix64, with the CRC-32 of the tensor's name as the seed. If they change, every golden must be
    made again."""
    assert random_models.weights("model.norm.weight", (2,)).tobytes().hex() == "3b4f8e3fea904e3f"
    assert random_models.weights("model.embed_tokens.weight", (1, 2)).tobytes().hex() == "7e625cbfd5dcd4bc"


def test_every_variant_has_its_files_and_they_are_small() -> None:
    for name, variant in VARIANTS.items():
        ends = ["config.json", "shapes.json"] + (["npz"] if variant.kind not in ("refused", *random_models.MIXES) else [])
        sizes = {end: random_models.golden_file(name, end).stat().st_size for end in ends}
        assert max(sizes.values()) <= 40 << 10, (name, sizes)
    known = {random_models.golden_file(name, end) for name in VARIANTS for end in ("config.json", "shapes.json", "npz")}
    assert {path for path in random_models.GOLDENS.rglob("*") if not path.is_dir()} <= known
