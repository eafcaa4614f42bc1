"""Breaks the files of every family, one value or one tensor at a time. A broken file must raise a typed error that says where the error is,
what was found and what is needed. It may give results only if they equal those of the whole file, or if the tables below allow the new
value.

The families of a batch run in one subprocess, so that a crash, a hang or an exit is noticed and the case that caused it is known. `make
test` tries every second case; PUMICE_TEST_ALL=1 (`make test-faults`) tries all of them, which takes four minutes of one processor."""

from __future__ import annotations

import copy
import itertools
import json
import os
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import children
import numpy as np
import pytest
import random_gguf
import random_models
from random_models import VARIANTS
from sanitized import SLOWER

IDS = np.arange(3, 43, dtype=np.int32) * 7 % 512  # more tokens than any window has
MISSING = object()
HOSTILE: list[Any] = [0, -1, 2**31, 1.5, "x", [], {}, [{}], None, MISSING]
GGUF_HOSTILE: list[Any] = [0, -1, 2**31, 1.5, "x", [], True, MISSING]
NOT_A_FLAG: list[Any] = [1, "x", [], {}, [{}]]
BATCHES = 6
ALL = os.environ.get("PUMICE_TEST_ALL") == "1"

COUNTS_LAYERS = re.compile(r"block_count$|num_hidden_layers$|\bn_layers?$|num_layers$")

# Keys of config.json that inference does not depend on. All such keys of a file are broken at once, and the results must not change. Ids of
# padding and end tokens are not among them, because RoBERTa counts positions from the padding token's id, and CLIP's texts end at the end
# token.
IGNORED = re.compile(
    r"^(architectures|(?!pad_|eos_)\w+_token_id|dtype|torch_dtype|transformers_version|use_cache|initializer_range|\w*dropout\w*|\w+_pdrop"
    r"|summary_\w+|vocab_size|pretraining_tp|type_vocab_size|reorder_and_upcast_attn|expansion_ratio)$"
)


def ignored(place: str, keys: dict[str, Any]) -> bool:
    """Returns whether inference does not depend on a key. Only DeBERTa depends on type_vocab_size, which says whether it has token
    types."""
    return bool(IGNORED.match(place)) and (place, keys.get("model_type")) != ("type_vocab_size", "deberta-v2")


def words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# Last parts of keys for which any positive number is as valid as the value in the file.
ANY_POSITIVE = words(
    """
    rms_norm_eps layer_norm_eps layer_norm_epsilon layer_norm_rms_epsilon norm_eps norm_epsilon
    rope_theta freq_base freq_base_swa rope_local_base_freq factor high_freq_factor low_freq_factor beta_fast beta_slow mscale
    mscale_all_dim yarn_beta_fast yarn_beta_slow yarn_log_multiplier attn_factor attention_factor original_max_position_embeddings alpha
    attention_multiplier embedding_multiplier residual_multiplier logits_scaling logit_scale embedding_scale residual_scale scale
    attn_logit_softcapping final_logit_softcapping query_pre_attn_scalar scale_depth scale_emb dim_model_base
    alibi_bias_max max_alibi_bias pad_token_id eos_token_id relative_attention_max_distance rotary_emb_base
    llama_4_scaling_beta temperature_scale sliding_window_pattern swiglu_limit original_context_length
    lm_head_multiplier key_multiplier attention_in_multiplier attention_out_multiplier ssm_in_multiplier ssm_out_multiplier
    routed_scaling_factor moe_routed_scaling_factor route_scale expert_weights_scale moe_router_logit_softcapping
    """
)
# Last parts of keys for which 0 is valid, too. In most of them it means "none".
ZERO_IS_NONE = words(
    """
    attn_logit_softcapping final_logit_softcapping sliding_window mscale mscale_all_dim llama_4_scaling_beta temperature_scale attn_factor
    pad_token_id eos_token_id shared_intermediate_size expert_shared_feed_forward_length
    expert_weights_scale n_shared_experts num_shared_experts moe_num_shared_experts expert_shared_count expert_gating_func
    moe_router_logit_softcapping
    """
)
# Keys and tensors that may be absent, null or an empty object, even if the results change because the file's value is not the default:
# - keys with a default in the family's configuration class (test_family_switches.py checks these defaults) or, for GGUF, in llama.cpp;
# - the output head, because the embedding then takes its place;
# - in GGUF, the dense layer before a classifier (the model then reports that it lacks this layer) and token types (DistilBERT has none);
# - the frequency factors of Llama 3.
MAY_BE_ABSENT = words(
    """
    rms_norm_eps norm_epsilon layer_norm_eps layer_norm_epsilon layer_norm_rms_epsilon hidden_act sliding_window
    rope_parameters full_attention rope_scaling rope_theta rope_type freq_base dimension_count partial_rotary_factor type factor alpha
    yarn_log_multiplier mscale mscale_all_dim original_max_position_embeddings llama_4_scaling_beta temperature_scale
    attention_multiplier embedding_multiplier residual_multiplier logits_scaling logit_scale embedding_scale residual_scale scale
    attn_logit_softcapping final_logit_softcapping query_pre_attn_scalar scale_depth dim_model_base
    local_attention use_bidirectional_attention classifier_pooling
    lm_head_multiplier key_multiplier attention_in_multiplier attention_out_multiplier ssm_in_multiplier ssm_out_multiplier
    mlp_multipliers ssm_multipliers mlp_hidden_act mamba_hidden_act num_experts_per_tok norm_topk_prob swiglu_limit truncate
    original_context_length shared_intermediate_size expert_shared_feed_forward_length leading_dense_block_count
    routed_scaling_factor route_scale expert_weights_scale topk_group expert_group_used_count use_qk_norm mup_enabled moe_k moe_topk
    n_shared_experts num_shared_experts expert_shared_count sliding_attention expert_gating_func expert_selection_fn
    moe_routed_scaling_factor moe_router_logit_softcapping dimension_count_swa freq_base_swa
    window_size norm_rel_ebd relative_attention share_att_key position_biased_input
    lm_head.weight output.weight cls.weight token_types.weight rope_freqs.weight
    """
)
# Last parts of keys that say which layers have a feed-forward network in place of experts, or whether all have.
FIRST_DENSE = words(
    "first_k_dense_replace num_dense_layers moe_layer_start_index moe_layer_end_index mlp_layer_types leading_dense_block_count"
    " expert_count num_local_experts moe_layers interleave_moe_layer_step moe_every_n_layers"
)
ANY_ROWS = re.compile(
    r"embed_tokens|token_embd|backbone\.embeddings|wte|word_embeddings\.|embed_in|tok_embeddings|position_emb|embed_positions|wpe|token_type"
    r"|token_embedding|classifier|^score|^text_projection"
)


def first_variants(gguf: bool = False) -> dict[str, str]:
    """Returns the first variant of each family that runs (and, with `gguf`, has a GGUF form). In a family of encoders, a classifier comes
    before a projection, and a projection before a plain encoder."""
    found: dict[str, str] = {}
    for kind in ("decoder", "classifier", "projection", "encoder"):
        for variant in VARIANTS.values():
            if variant.kind != kind or variant.pending:
                continue
            if not gguf or (variant.family in random_gguf.WRITTEN and variant.name not in random_gguf.WITHOUT):
                found.setdefault(variant.family, variant.name)
    return found


CLASSIFIER = re.compile(r"^(classifier|classifier\.out_proj|cls\.output|score|text_projection)\.weight")

Keys = dict[str, Any]
Tensors = dict[str, np.ndarray]
# (name, the key or tensor that the error must name, the new value, all keys of the broken file, all tensors of the broken file)
Case = tuple[str, str, Any, Keys, Tensors]


# ---------------------------------------------------------------- configuration


def places(keys: Keys, before: str = "") -> Iterator[str]:
    for key, value in keys.items():
        yield before + key
        if isinstance(value, dict):
            yield from places(value, before + key + ".")


def at(keys: Keys, place: str) -> tuple[Keys, str]:
    *outer, last = place.split(".")
    for part in outer:
        keys = keys[part]
    return keys, last


def replaced(keys: Keys, place: str, value: Any, flat: bool) -> Keys:
    """Returns a copy of `keys` with one value replaced. With `flat` (GGUF), dots are part of a key. Otherwise they lead into nested
    objects."""
    changed = copy.deepcopy(keys)
    inner, last = (changed, place) if flat else at(changed, place)
    inner[last] = value
    if value is MISSING:
        del inner[last]
    return changed


def hostile_values(value: Any, gguf: bool) -> list[Any]:
    if isinstance(value, bool):
        return [each for each in NOT_A_FLAG if not (gguf and each in ({}, [{}]))]
    if isinstance(value, list):
        found = [value[:-1], [*value, *(value[-1:] or [7])], value[:1], [], "x", 7, ["x"] * len(value)]
        return found if gguf else [*found, [*value[:-1], None], [{}], {"0": 1}]
    if isinstance(value, dict):
        return [0, "x", [], ["x"], [None], ["x", 1], [{}]]
    return GGUF_HOSTILE if gguf else HOSTILE


def config_cases(keys: Keys, tensors: Tensors, gguf: bool) -> Iterator[Case]:
    for place in list(keys) if gguf else list(places(keys)):
        value = keys[place] if gguf else (lambda inner, last: inner[last])(*at(keys, place))
        if ignored(place, keys) or place.startswith(("id2label", "label2id")) or value is None:
            continue
        # All layers of ALBERT share their tensors, so any number of layers is valid.
        one_for_all = any("albert_layer_groups" in name for name in tensors)
        fewer = [value - 1] if COUNTS_LAYERS.search(place) and not one_for_all else []
        for hostile in hostile_values(value, gguf) + fewer:
            if hostile != value or type(hostile) is not type(value):
                yield f"{place} = {shown(hostile)}", place, hostile, replaced(keys, place, hostile, gguf), tensors
    if not gguf:
        for junk in (0, "x", [], {}, [{}], None):
            yield f"ignored keys = {shown(junk)}", "", junk, {k: junk if ignored(k, keys) else v for k, v in keys.items()}, tensors


def shown(value: Any) -> str:
    return "missing" if value is MISSING else json.dumps(value)


# ---------------------------------------------------------------- tensors


def tensor_cases(keys: Keys, tensors: Tensors, gguf: bool) -> Iterator[Case]:
    names = [name for name in tensors if not (layer := re.search(r"\.(\d+)\.", name)) or layer[1] == "0"]
    names = [name for name in names if not re.search(r"\.experts\.([2-9]|\d\d)\.", name)]  # two of a layer's experts are enough
    for name in names:
        tensor = tensors[name]
        others = {key: value for key, value in tensors.items() if key != name}
        yield f"{name} missing", name, MISSING, keys, others
        yield f"{name} renamed", name, MISSING, keys, others | {name + "x": tensor}
        yield f"{name} flat", name, "shape", keys, others | {name: tensor.reshape(*tensor.shape, 1)}
        if tensor.ndim > 0 and not ANY_ROWS.search(name):
            yield f"{name} one row more", name, "shape", keys, others | {name: np.concatenate([tensor, tensor[:1]])}
        if tensor.ndim == 2:
            yield f"{name} one column more", name, "shape", keys, others | {name: np.concatenate([tensor, tensor[:, :1]], 1)}
            if tensor.shape[0] != tensor.shape[1]:
                yield f"{name} transposed", name, "shape", keys, others | {name: np.ascontiguousarray(tensor.T)}
        neighbour = next((each for each in names if tensors[each].shape != tensor.shape and not ANY_ROWS.search(each)), None)
        if neighbour:
            yield f"{name} and {neighbour} swapped", "", "shape", keys, tensors | {name: tensors[neighbour], neighbour: tensor}
    for name in tensors:  # a tensor that layer 0 has and layer 1 lacks
        if re.search(r"\.1\.", name) and not re.search(r"\.experts\.([2-9]|\d\d)\.", name):
            yield f"{name} missing", name, MISSING, keys, {key: value for key, value in tensors.items() if key != name}


# ---------------------------------------------------------------- one process per batch


def logits(core: Any, source: Path) -> np.ndarray:
    options = core.LoadOptions(device="cpu", compute="float32", kv_dtype="f32", threads=1)
    model = core.load(core.open_file(str(source)), options)
    try:
        if "generate" in model.info["tasks"]:
            return model.logits(IDS, True)
        offsets = np.array([0, len(IDS)], np.int64)
        ends = np.empty((1, model.info["vector_size"]), np.float32)
        if model.info["labels"]:
            ends = random_models.classes(model, IDS, offsets, None)
        else:
            model.encode(IDS, offsets, None, ends, False, 0)
        return np.concatenate([model.encode_tokens(IDS, offsets, None).ravel(), ends.ravel()])
    finally:
        model.close()


SAYS_NEEDED = re.compile(r"need|must|is not run|are not run|not known|has no |is missing|cannot")


def judge(pumice: Any, source: Path, case: Case, whole: np.ndarray) -> str | None:
    """Loads and runs a broken file. Returns what is wrong with the outcome, or None if it is right."""
    _, place, value, _, _ = case
    key = last = place.split(".")[-1]
    if last in ("weight", "bias"):
        # The error need not name the prefix that all tensors of a model have.
        last = ".".join(place.split(".")[-3:-1] if place.count(".") > 2 else place.split(".")[-2:-1])
    absent = value is MISSING or value is None or value in ([], {})
    try:
        found = logits(pumice._core, source)
    except pumice.UnsupportedTaskError:
        return "the model has lost what it can do"
    except (pumice.ModelFormatError, pumice.UnsupportedModelError, pumice.NumericError) as error:
        text = str(error)
        if str(source) not in text:
            return f"names no file: {text}"
        if absent and key in MAY_BE_ABSENT and " is missing; the nearest name is " in text:
            return None  # with the default, the model needs a tensor that the file lacks, and the error names this tensor
        if (absent or value == 0) and ": this version does not read " in text:
            return None  # the model that the file now describes does not have this part, whose first tensor the error names
        if last == "expert_gating_func" and "groups of experts are not run in this family" in text:
            return None  # without the key, a file of DeepSeek V3 is taken for one of V2, which has no groups
        if last in FIRST_DENSE and re.search(r"(layers|blk)\.\d+\.\S+ is missing", text):
            return None  # the error names the first tensor of a layer that has a feed-forward network in place of experts, or the reverse
        if place == "layers_block_type" and isinstance(value, list) and re.search(r"layers\.\d+\.\S+ is missing", text):
            return None  # this list alone says how many layers there are, and the error names the first tensor of one too many
        # Instead of the key, the error may name a tensor whose shape does not fit a size, or a list whose length does not fit the number of
        # layers.
        if last not in text and not (value != "shape" and re.search(" has shape | entries for ", text)):
            return f"does not name {last}: {text}"
        return None if SAYS_NEEDED.search(text) else f"does not say what is needed: {text}"
    except BaseException as error:
        return f"{type(error).__name__}: {str(error)[:300]}"
    if found.shape == whole.shape and np.array_equal(found, whole):
        return None
    if key == "pos_att_type" and value == ["p2c"]:
        return None  # valid: one of the two terms that the file asks for
    if absent and CLASSIFIER.search(place):
        return None  # without this tensor, the model says that it has no classifier or projection
    if absent and (key in MAY_BE_ABSENT or place in MAY_BE_ABSENT):
        return None
    if type(value) in (int, float) and (value > 0 and key in ANY_POSITIVE or value == 0 and key in ZERO_IS_NONE):
        return None
    return "gives other logits and says nothing"


def write_folder(folder: Path, keys: Keys, tensors: Tensors) -> None:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(keys))
    random_models.write_safetensors(folder / "model.safetensors", tensors)


def run_form(pumice: Any, label: str, source: Path, keys: Keys, tensors: Tensors, write: Callable[[Keys, Tensors], Any]) -> None:
    write(keys, tensors)
    whole = logits(pumice._core, source)
    gguf = source.suffix == ".gguf"
    cases = itertools.chain(config_cases(keys, tensors, gguf), tensor_cases(keys, tensors, gguf))
    for case in itertools.islice(cases, 0, None, 1 if ALL else 2):  # neighbours are values of the same key, or faults of the same tensor
        name = f"{label}: {case[0]}"
        print(json.dumps({"begins": name}), flush=True)
        write(case[3], case[4])
        print(json.dumps({"ends": name, "wrong": judge(pumice, source, case, whole)}), flush=True)
    write(keys, tensors)
    assert np.array_equal(logits(pumice._core, source), whole)  # the broken files have done no harm to the process


def run_batch(batch: int, scratch: Path) -> None:
    import pumice

    for family, name in list(first_variants().items())[batch::BATCHES]:
        keys = json.loads(random_models.golden_file(name, "config.json").read_text())
        folder, file = scratch / family, scratch / f"{family}.gguf"
        tensors = random_models.tensors(name)
        run_form(pumice, f"{family} folder", folder, keys, tensors, lambda k, t, to=folder: write_folder(to, k, t))
        if gguf := first_variants(gguf=True).get(family):
            keys, tensors = random_gguf.gguf_parts(gguf)
            run_form(pumice, f"{family} gguf", file, keys, tensors, lambda k, t, to=file: random_gguf.write(to, k, t))


@pytest.mark.parametrize("batch", range(BATCHES))
def test_broken(batch: int, tmp_path: Path) -> None:
    done = children.cases(__file__, batch, tmp_path, timeout=1200 * SLOWER)
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    names = [line["begins"] for line in lines if "begins" in line]
    results = [line for line in lines if "ends" in line]
    assert done.returncode == 0, f"the process died ({done.returncode}) in {names[-1] if names else 'its start'}:\n{done.stderr[-3000:]}"
    assert len(results) == len(names) >= (1000 if ALL else 500)
    bad = [f"{line['ends']}: {line['wrong']}" for line in results if line["wrong"]]
    assert not bad, f"{len(bad)} of {len(names)} cases:\n" + "\n".join(bad[:40])


# ---------------------------------------------------------------- cases found by reading the code of each family


def error_of(source: Path) -> str:
    import pumice

    with pytest.raises((pumice.ModelFormatError, pumice.UnsupportedModelError)) as error:
        logits(pumice._core, source)
    return str(error.value)


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("cohere", "command-r.logit_scale"),
        ("cohere2", "cohere2.logit_scale"),
        ("granite", "granite.logit_scale"),
        ("gpt_neox", "gptneox.use_parallel_residual"),
    ],
)
def test_a_gguf_key_without_a_default_must_be_there(name: str, key: str, tmp_path: Path) -> None:
    keys, tensors = random_gguf.gguf_parts(name)
    del keys[key]
    assert f"has no {key}" in error_of(random_gguf.write(tmp_path / "x.gguf", keys, tensors))


def test_granite_without_a_scale_of_scores_takes_the_root_of_a_head(tmp_path: Path) -> None:
    import pumice

    keys, tensors = random_gguf.gguf_parts("granite")
    head_dim = keys["granite.embedding_length"] // keys["granite.attention.head_count"]
    said = random_gguf.write(tmp_path / "said.gguf", keys | {"granite.attention.scale": head_dim**-0.5}, tensors)
    del keys["granite.attention.scale"]
    silent = random_gguf.write(tmp_path / "silent.gguf", keys, tensors)
    assert np.abs(logits(pumice._core, silent) - logits(pumice._core, said)).max() <= 1e-5


def with_key(name: str, key: str, value: Any, target: Path) -> Path:
    folder = random_models.make_folder(name, target)
    keys = json.loads((folder / "config.json").read_text())
    inner = keys.get("text_config", keys)
    inner[key] = value
    (folder / "config.json").write_text(json.dumps(keys))
    return folder


@pytest.mark.parametrize(("name", "key"), [("bert_classifier", "is_decoder"), ("bert_classifier", "add_cross_attention")])
def test_other_masks_are_refused_by_name(name: str, key: str, tmp_path: Path) -> None:
    assert key in error_of(with_key(name, key, True, tmp_path))


# Decoders that read use_bidirectional_attention. All others must refuse it, because it would change their results.
SEE_BOTH_WAYS = ("gemma3", "qwen3")


@pytest.mark.parametrize(
    ("family", "name"), [pair for pair in first_variants().items() if VARIANTS[pair[1]].kind == "decoder" and pair[0] not in SEE_BOTH_WAYS]
)
@pytest.mark.parametrize("value", [True, "all"])
def test_attention_in_both_directions_is_refused_by_name(family: str, name: str, value: Any, tmp_path: Path) -> None:
    assert "use_bidirectional_attention" in error_of(with_key(name, "use_bidirectional_attention", value, tmp_path))


@pytest.mark.parametrize("value", [False, None, "vision"])
def test_a_causal_model_that_says_so_is_run(value: Any, tmp_path: Path) -> None:
    """ "vision" is attention in both directions among the tokens of a picture, and a text has none."""
    import pumice

    name = "llama32"
    folder = with_key(name, "use_bidirectional_attention", value, tmp_path)
    assert np.array_equal(logits(pumice._core, folder), logits(pumice._core, random_models.make_folder(name, tmp_path / "plain")))


@pytest.mark.parametrize("family", SEE_BOTH_WAYS)
def test_attention_in_both_directions_is_run(family: str, tmp_path: Path) -> None:
    import pumice

    name = first_variants()[family]
    folder = with_key(name, "use_bidirectional_attention", True, tmp_path)
    model = pumice._core.load(pumice._core.open_file(str(folder)), pumice._core.LoadOptions(device="cpu", compute="float32"))
    rows = [model.encode_tokens(np.int32([5, 6, last]), np.array([0, 3]), None) for last in (7, 8)]
    assert "generate" not in model.info["tasks"]
    assert np.abs(rows[0][0] - rows[1][0]).max() > 1e-3  # the first token sees the last one


def test_a_decoder_with_a_window_that_sees_both_ways_is_refused_by_name(tmp_path: Path) -> None:
    """A decoder with a window and with attention in both directions must be refused, because it is not known where such a window ends."""
    folder = random_models.make_folder("qwen2_window", tmp_path)
    keys = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(keys | {"is_causal": False}))
    assert "is_causal false beside a window" in error_of(folder)


def test_a_bias_that_one_layer_has_must_be_in_all(tmp_path: Path) -> None:
    keys, tensors = random_gguf.gguf_parts("llama3")
    tensors["blk.1.attn_q.bias"] = np.zeros(tensors["blk.1.attn_q.weight"].shape[0], np.float32)
    assert "blk.0.attn_q.bias is missing" in error_of(random_gguf.write(tmp_path / "x.gguf", keys, tensors))


if __name__ == "__main__":
    run_batch(int(sys.argv[1]), Path(sys.argv[2]))
