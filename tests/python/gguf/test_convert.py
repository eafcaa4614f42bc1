"""convert() must write the tensors and keys that llama.cpp's converter writes, or refuse the folder. A file appears whole or not at
all, and an interrupted call goes on with the same bytes."""

from __future__ import annotations

import errno
import json
import os
import re
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import packed_models
import pytest
import random_models
import samples
from random_gguf import WITHOUT, WRITTEN
from random_models import VARIANTS

import pumice
from pumice import _core
from pumice.__main__ import main
from pumice.gguf.packing import pack_rows
from pumice.gguf.vocabulary import tokenizer_keys

RUN = [v for v in VARIANTS.values() if not v.pending and v.family in WRITTEN and v.kind in ("decoder", *random_models.ENCODERS)]
CHECKSUMS = {"F16": 2930758552, "BF16": 1430369615, "Q8_0": 4220384390}
# Variants of which llama.cpp's converter drops something, and pumice's does not.
KEPT = ("bailing_moe_plain", "falcon_h1_bias", "internlm2_bias")
PLAIN: dict[str, Any] = {"tokenizer": "none", "progress": False}


# Multimodal folders, whose text half is written.
HALVES = [name for name, why in WITHOUT.items() if "text half" in why]


@pytest.mark.parametrize("family", sorted({VARIANTS[name].family for name in WITHOUT}))
def test_what_gguf_cannot_say_is_refused(family: str, tmp_path: Path) -> None:
    for name in [v.name for v in RUN if v.family == family and v.name in WITHOUT and v.name not in (*KEPT, *HALVES)]:
        with pytest.raises((pumice.UnsupportedModelError, pumice.ModelFormatError)) as error:
            pumice.convert(random_models.make_folder(name, tmp_path), tmp_path / "m.gguf", to="f32", **PLAIN)
        assert "GGUF" in str(error.value) or "convert()" in str(error.value), (name, error.value)
    assert not list(tmp_path.glob("m.gguf*"))


@pytest.mark.parametrize("name", [*KEPT, *HALVES])
def test_what_the_converter_drops_is_kept(name: str, tmp_path: Path) -> None:
    folder, ids = random_models.make_folder(name, tmp_path), random_models.golden(name)["ids"]
    pumice.convert(folder, tmp_path / "m.gguf", **PLAIN)
    logits = []
    for path in (folder, tmp_path / "m.gguf"):
        with pumice.load(path, device="cpu", compute="float32", tokenizer=folder, progress=False) as model:
            logits.append(model.logits(ids, positions="all"))
    assert np.abs(logits[0] - logits[1]).max() <= 3e-4


@pytest.mark.parametrize(
    ("name", "key", "said", "value"),
    [
        ("bert", "layer_norm_eps", "bert.attention.layer_norm_epsilon", 1e-12),
        ("glm", "rms_norm_eps", "chatglm.attention.layer_norm_rms_epsilon", 1.5625e-7),
        ("exaone4", "sliding_window", "exaone4.attention.sliding_window", 4096),
        ("gemma4_31b", "sliding_window", "gemma4.attention.sliding_window", 512),
        ("glm4_moe", "routed_scaling_factor", "glm4moe.expert_weights_scale", 1.0),
    ],
)
def test_a_key_that_is_left_out_has_the_default_of_the_engine(name: str, key: str, said: str, value: float, tmp_path: Path) -> None:
    folder, output = random_models.make_folder(name, tmp_path), tmp_path / "m.gguf"
    config = json.loads((folder / "config.json").read_text())
    del config[key]
    (folder / "config.json").write_text(json.dumps(config))
    pumice.convert(folder, output, **PLAIN)
    assert _core.open_file(str(output)).get(said) == pytest.approx(value)


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("deepseek_v2", "n_group"),
        ("deepseek_v2", "topk_group"),
        ("minicpm3", "num_key_value_heads"),
        ("granite_hybrid", "rope_theta"),
        ("qwen3_vl", "vision_config.deepstack_visual_indexes"),
    ],
)
def test_a_strange_value_that_only_gguf_needs_is_no_error_of_load(name: str, key: str, tmp_path: Path) -> None:
    folder = random_models.make_folder(name, tmp_path)
    config = json.loads((folder / "config.json").read_text())
    *above, last = key.split(".")
    within = config
    for part in above:
        within = within.setdefault(part, {})
    within[last] = "strange"
    (folder / "config.json").write_text(json.dumps(config))
    pumice.load(folder, device="cpu", tokenizer=folder, progress=False).close()
    with pytest.raises(pumice.PumiceError, match=last):
        pumice.convert(folder, tmp_path / "m.gguf", **PLAIN)


@pytest.mark.parametrize(
    ("name", "key", "value", "field"),
    [
        *(("llama3", "vocab_size", value, "vocab_size") for value in ("strange", 2**40, 1e300, [1], 0, True)),
        *(("bert_classifier", "id2label", value, "id2label") for value in ("strange", [1], {"a": 1}, ["x", {}])),
        # numbers in GGUF metadata have 32 bits
        ("deepseek_v2", "n_group", 2**40, "deepseek2.expert_group_count"),
        ("llama4", "interleave_moe_layer_step", 2**40, "llama4.interleave_moe_layer_step"),
    ],
    ids=str,
)
def test_a_strange_value_is_named(name: str, key: str, value: Any, field: str, tmp_path: Path) -> None:
    folder = random_models.make_folder(name, tmp_path)
    config = json.loads((folder / "config.json").read_text()) | {key: value}
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(pumice.ModelFormatError, match=field) as error:
        pumice.convert(folder, tmp_path / "m.gguf", **PLAIN)
    assert error.value.field == field
    assert not list(tmp_path.glob("m.gguf*"))


def test_the_text_half_of_gemma3(tmp_path: Path) -> None:
    folder, ids = random_models.make_folder("gemma3_multimodal", tmp_path), random_models.golden("gemma3_multimodal")["ids"]
    config = json.loads((folder / "config.json").read_text())
    config["text_config"]["query_pre_attn_scalar"] = config["text_config"]["head_dim"]  # as in all sizes but one
    (folder / "config.json").write_text(json.dumps(config))
    pumice.convert(folder, tmp_path / "m.gguf", **PLAIN)
    logits = []
    for path in (folder, tmp_path / "m.gguf"):
        with pumice.load(path, device="cpu", compute="float32", tokenizer=folder, progress=False) as model:
            logits.append(model.logits(ids, positions="all"))
    assert np.abs(logits[0] - logits[1]).max() <= 5e-5


# One variant of each family that has no form, because llama.cpp has no architecture for it.
FORMLESS = {v.family: v.name for v in VARIANTS.values() if not v.pending and v.kind != "refused" and v.family not in WRITTEN}


@pytest.mark.parametrize("family", FORMLESS)
def test_families_without_a_form_are_named(family: str, tmp_path: Path) -> None:
    folder = random_models.make_folder(FORMLESS[family], tmp_path)
    config = json.loads((folder / "config.json").read_text())
    kind = config.get("text_config", config)["model_type"]
    with pytest.raises(pumice.UnsupportedModelError, match=f"llama.cpp has no architecture for '{kind}'"):
        pumice.convert(folder, tmp_path / "m.gguf")
    assert not list(tmp_path.glob("m.gguf*"))


# ---------------------------------------------------------------- modules behind the layers
def with_modules(variant: str, folder: Path, *modules: dict[str, Any]) -> Path:
    """Writes a small encoder with mean pooling, the Dense modules whose settings are given, and Normalize."""
    path = random_models.make_folder(variant, folder)
    kinds = ["Transformer", "Pooling", *["Dense"] * len(modules), "Normalize"]
    names = ["", *(f"{i + 1}_{kind}" for i, kind in enumerate(kinds[1:]))]
    listed = [
        {"idx": i, "name": str(i), "path": name, "type": f"sentence_transformers.models.{kind}"}
        for i, (name, kind) in enumerate(zip(names, kinds, strict=True))
    ]
    (path / "modules.json").write_text(json.dumps(listed))
    for name in names[1:]:
        (path / name).mkdir()
        (path / name / "config.json").write_text("{}")
    (path / names[1] / "config.json").write_text(json.dumps({"pooling_mode_mean_tokens": True}))
    for name, settings in zip(names[2:], modules, strict=False):
        values = {"bias": False, "activation_function": "torch.nn.modules.linear.Identity"} | settings
        (path / name / "config.json").write_text(json.dumps(values))
        weights = {"linear.weight": random_models.weights(name, (settings["out_features"], settings["in_features"]))}
        if values["bias"]:
            weights["linear.bias"] = random_models.weights(f"{name}.bias", (settings["out_features"],))
        random_models.write_safetensors(path / name / "model.safetensors", weights)
    return path


WIDER = {"in_features": 64, "out_features": 192}
NARROWER = {"in_features": 192, "out_features": 64}


@pytest.mark.parametrize("to", ["auto", "q8_0"])
def test_dense_modules_of_embeddinggemma(to: str, tmp_path: Path) -> None:
    folder, output = with_modules("embeddinggemma", tmp_path, WIDER, NARROWER), tmp_path / "m.gguf"
    plan = pumice.convert(folder, output, to=to, **PLAIN)
    kinds = {name: (kind, shape) for name, kind, shape, _ in plan.tensors if name.startswith("dense")}
    kind = "F32" if to == "auto" else "Q8_0"
    assert kinds == {"dense_2.weight": (kind, (192, 64)), "dense_3.weight": (kind, (64, 192))}
    file = _core.open_file(str(output))
    for key, size in {"dense_2_feat_in": 64, "dense_2_feat_out": 192, "dense_3_feat_in": 192, "dense_3_feat_out": 64}.items():
        assert file.get(f"gemma-embedding.{key}") == size
    vectors = []
    for path in (folder, output):
        with pumice.load(path, device="cpu", compute="float32", tokenizer=folder, progress=False) as model:
            vectors.append(model.encode(["w1", "w5 w6", "w17 w4 w200 w31"]))
    assert np.abs(vectors[0] - vectors[1]).max() <= (1e-5 if to == "auto" else 0.02)


def test_an_interrupted_call_does_not_go_on_with_other_dense_modules(tmp_path: Path) -> None:
    folder, output = with_modules("embeddinggemma", tmp_path, WIDER, NARROWER), tmp_path / "m.gguf"

    def stop(done: int, total: int) -> None:
        if done == total:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pumice.convert(folder, output, to="f32", **{**PLAIN, "progress": stop})
    random_models.write_safetensors(folder / "3_Dense" / "model.safetensors", {"linear.weight": np.ones((64, 192), np.float32)})
    pumice.convert(folder, output, to="f32", **PLAIN)
    assert _core.open_file(str(output)).read("dense_3.weight") == np.ones((64, 192), np.float32).tobytes()


@pytest.mark.parametrize(
    ("variant", "modules", "why"),
    [
        ("bert", [WIDER], r"dense behind the layers; GGUF has Dense modules for gemma-embedding \(EmbeddingGemma\) alone"),
        ("embeddinggemma", [WIDER], "GGUF can say 2 Dense modules before Normalize"),
        ("embeddinggemma", [WIDER, NARROWER, WIDER], "GGUF can say 2 Dense modules before Normalize"),
        ("embeddinggemma", [WIDER | {"bias": True}, NARROWER], "without bias, residual and activation"),
        ("embeddinggemma", [WIDER, NARROWER | {"activation_function": "torch.nn.modules.activation.Tanh"}], "without bias, residual"),
    ],
)
def test_modules_that_gguf_cannot_say(variant: str, modules: list[dict[str, Any]], why: str, tmp_path: Path) -> None:
    with pytest.raises(pumice.UnsupportedModelError, match=f"modules.json has .*{why}"):
        pumice.convert(with_modules(variant, tmp_path, *modules), tmp_path / "m.gguf", **PLAIN)
    assert not list(tmp_path.glob("m.gguf*"))


def test_a_dense_module_without_its_matrix(tmp_path: Path) -> None:
    folder = with_modules("embeddinggemma", tmp_path, WIDER, NARROWER)
    random_models.write_safetensors(folder / "2_Dense" / "model.safetensors", {"other.weight": np.ones((192, 64), np.float32)})
    with pytest.raises(pumice.ModelFormatError, match=r"linear\.weight is missing; the module's config\.json needs \[192, 64\]"):
        pumice.convert(folder, tmp_path / "m.gguf", **PLAIN)
    random_models.write_safetensors(folder / "2_Dense" / "model.safetensors", {"linear.weight": np.ones((64, 64), np.float32)})
    with pytest.raises(pumice.ModelFormatError, match=r"linear\.weight has the shape \[64, 64\]; the module's"):
        pumice.convert(folder, tmp_path / "m.gguf", **PLAIN)


# ---------------------------------------------------------------- formats
def test_rounding_is_that_of_ggml() -> None:
    """The checksums are those of gguf-py 0.17.1 (gguf.quants.quantize) for the same numbers."""
    rng = np.random.default_rng(5)
    rows = (rng.standard_normal((64, 96)) * np.exp(rng.uniform(-9, 3, (64, 1)))).astype(np.float32)
    rows[3] = 0
    rows[4, :32] = np.float32(0.5) * np.arange(32)
    found = {name: zlib.crc32(pack_rows(name, rows, "w")) for name in ("F16", "BF16", "Q8_0")}
    assert found == CHECKSUMS


@pytest.mark.parametrize("to", ["f16", "bf16", "q8_0", "q4_0"])
def test_matrices_have_the_format_that_is_asked_for(to: str, tmp_path: Path) -> None:
    folder = random_models.make_folder("qwen2", tmp_path)
    plan = pumice.convert(folder, tmp_path / "m.gguf", to=to, **PLAIN)
    kinds = {name: kind for name, kind, _, _ in plan.tensors}
    assert kinds["blk.0.attn_q.weight"] == to.upper() and kinds["blk.0.attn_norm.weight"] == kinds["blk.0.attn_q.bias"] == "F32"
    file = _core.open_file(str(tmp_path / "m.gguf"))
    assert file.get("general.file_type") == {"f16": 1, "bf16": 32, "q8_0": 7, "q4_0": 2}[to]
    assert f"{to.upper()}" in str(plan) and plan.bytes == (tmp_path / "m.gguf").stat().st_size
    tensor = random_models.tensors("qwen2")["model.layers.0.mlp.up_proj.weight"]
    assert file.read("blk.0.ffn_up.weight") == pack_rows(to.upper(), tensor, "w")


@pytest.mark.parametrize("name", ["llama_wide", "mixtral", "falcon_11b", "bert", "gemma3"])
def test_a_mix_is_that_of_quantize(name: str, tmp_path: Path) -> None:
    """A mix in one call must give the bytes of quantize() behind convert()."""
    folder, exact, two, one = (random_models.make_folder(name, tmp_path), *(tmp_path / f"{each}.gguf" for each in ("exact", "two", "one")))
    pumice.convert(folder, exact, **PLAIN)
    for to in ("q4_k_m", "iq4_xs", "q5_1"):
        pumice.quantize(exact, two, to=to, force=True, progress=False)
        plan = pumice.convert(folder, one, to=to, force=True, **PLAIN)
        assert one.read_bytes() == two.read_bytes(), to
        assert [tuple(each[:2]) for each in plan.tensors] == [(each, kind) for each, kind, _, _ in _core.open_file(str(one)).tensors]


CALIBRATED: dict[str, Any] = {"to": "q4_k_m", "texts": list(np.random.default_rng(1).integers(1, 512, (20, 64), dtype=np.int32))}


@pytest.mark.parametrize("options", [CALIBRATED, {"to": "5.5bpw"}, {**CALIBRATED, "to": "4.75bpw"}], ids=["mix", "size", "both"])
def test_texts_and_sizes_are_those_of_quantize(options: dict[str, Any], tmp_path: Path) -> None:
    folder, exact = random_models.make_folder("llama_wide", tmp_path), tmp_path / "exact.gguf"
    pumice.convert(folder, exact, **PLAIN)
    pumice.quantize(exact, tmp_path / "two.gguf", progress=False, **options)
    given = {**options, "texts": iter(options["texts"])} if "texts" in options else options  # texts may be read only once
    plan = pumice.convert(folder, tmp_path / "one.gguf", **given, **PLAIN)
    assert (tmp_path / "one.gguf").read_bytes() == (tmp_path / "two.gguf").read_bytes()
    assert plan.files == (tmp_path / "one.gguf",) and bool(plan.calibrated) == ("texts" in options)
    assert sorted(path.name for path in tmp_path.glob("*.gguf*")) == ["exact.gguf", "one.gguf", "two.gguf"]
    with pytest.raises(FileExistsError, match="force"):
        pumice.convert(folder, tmp_path / "one.gguf", **options, **PLAIN)


def test_an_interrupted_call_with_texts_goes_on(tmp_path: Path) -> None:
    """It is interrupted in the file of the folder's own formats, in the output, and then not."""
    folder, output = random_models.make_folder("llama_wide", tmp_path), tmp_path / "m.gguf"
    plan = pumice.convert(folder, output, **CALIBRATED, **PLAIN, dry_run=True)
    assert not list(tmp_path.glob("m.*"))
    pumice.convert(folder, tmp_path / "whole.gguf", **CALIBRATED, **PLAIN)
    first = sum(size for *_, size in pumice.convert(folder, output, **PLAIN, dry_run=True).tensors)
    seen: list[tuple[int, int]] = []
    names = []
    for in_output in (False, True):

        def stop(done: int, total: int, in_output: bool = in_output) -> None:
            if (total != first) == in_output and done > 0.7 * total:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            pumice.convert(folder, output, **CALIBRATED, **{**PLAIN, "progress": stop})
        names.append({re.sub("[0-9a-f]{12}", "KEY", path.name) for path in tmp_path.glob("m.*")})
    assert names == [
        {"m.exact-KEY.gguf.part", "m.exact-KEY.gguf.journal"},
        {"m.exact-KEY.gguf", "m.gguf.part", "m.gguf.journal"},
    ]
    found = pumice.convert(folder, output, **CALIBRATED, **{**PLAIN, "progress": lambda *both: seen.append(both)})
    assert seen[0][0] > 0.5 * seen[0][1] and len({total for _, total in seen}) == 1  # it goes on in the output
    assert output.read_bytes() == (tmp_path / "whole.gguf").read_bytes() and [path.name for path in tmp_path.glob("m.*")] == ["m.gguf"]
    assert (found.tensors, found.calibrated, found.tokens) == (plan.tensors, plan.calibrated, plan.tokens)


def test_texts_of_a_command(minilm: pumice.Model, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "some.txt").write_text("Granite and basalt are hard rocks; pumice floats on water. " * 120)
    folder, output = samples.minilm(), tmp_path / "m.gguf"
    asked = ["convert", str(folder), str(output), "--to", "q4_0", "--texts", str(tmp_path / "some.txt"), "--tokens", "1024"]
    assert main([*asked, "--plan"]) == 0 and not list(tmp_path.glob("m.*"))
    assert re.search(r"ffn_up\.weight +Q4_0 +texts ", capsys.readouterr().out)
    assert main(["convert", str(folder), str(output), "--to", "4.5bpw", "--plan"]) == 1
    assert "depend on the weights" in capsys.readouterr().err


def test_numbers_that_a_format_does_not_hold_are_named(tmp_path: Path) -> None:
    folder = random_models.make_folder("llama3", tmp_path)
    tensors = random_models.tensors("llama3")
    tensors["model.layers.1.mlp.up_proj.weight"][3, 4] = 1e5
    random_models.write_safetensors(folder / "model.safetensors", tensors)
    with pytest.raises(pumice.NumericError, match=r"blk\.1\.ffn_up\.weight holds 100000, and F16 holds numbers up to 65504"):
        pumice.convert(folder, tmp_path / "m.gguf", to="f16", **PLAIN)
    assert not (tmp_path / "m.gguf").exists()


@pytest.mark.parametrize("library", ["gptq", "awq"])
def test_packed_folders_keep_their_codes(library: str, tmp_path: Path) -> None:
    """The file must hold the same blocks, so that its logits have the bits of the folder's (q and k are permuted in Llama, not in Qwen)."""
    packing = next(
        name for name, each in packed_models.PACKINGS.items() if each.library.lower() == library and each.becomes and not each.shuffled
    )
    folder, _ = packed_models.packed_folder("qwen2", packing, tmp_path)
    plan = pumice.convert(folder, tmp_path / "m.gguf", **PLAIN)
    assert packed_models.PACKINGS[packing].becomes in {kind for _, kind, _, _ in plan.tensors}
    ids = random_models.golden("qwen2")["ids"]
    with (
        pumice.load(folder, device="cpu", progress=False) as model,
        pumice.load(tmp_path / "m.gguf", device="cpu", tokenizer=folder) as other,
    ):
        assert np.array_equal(model.logits(ids, positions="all"), other.logits(ids, positions="all"))


def test_packed_folders_are_not_rounded_a_second_time(tmp_path: Path) -> None:
    folder, _ = packed_models.packed_folder("llama_wide", "gptq_4_sym", tmp_path)
    for options in ({"to": "q3_k_m"}, {**CALIBRATED, "to": "q3_k_m"}):
        with pytest.raises(ValueError, match="second rounding"):
            pumice.convert(folder, tmp_path / "m.gguf", **options, **PLAIN)
    assert not list(tmp_path.glob("m.*"))


@pytest.mark.parametrize("variant", ["qwen2_wide", "mixtral_wide"])
def test_a4_is_written_as_q5_0(variant: str, tmp_path: Path) -> None:
    """GGUF files have no A4. Q5_0 holds the same weights, and its products have the same bits."""
    folder, _ = packed_models.packed_folder(variant, "awq_128", tmp_path)
    pumice.convert(folder, tmp_path / "m.gguf", **PLAIN)
    pumice.convert(folder, tmp_path / "floats.gguf", to="f32", **PLAIN)
    read, floats = (_core.open_file(str(tmp_path / name)) for name in ("m.gguf", "floats.gguf"))
    kinds = {name: kind for name, kind, _, _ in read.tensors}
    packed = [name for name, kind in kinds.items() if kind not in ("F32", "F16", "BF16")]
    assert len(packed) > 10
    for name in packed:
        assert kinds[name] == "Q5_0", name
        assert np.array_equal(_core.ops.unpack("Q5_0", read.read(name)), np.frombuffer(floats.read(name), np.float32)), name
    if variant == "mixtral_wide":
        return  # rows of q and k are permuted, so that attention sums in another order
    ids = random_models.golden("qwen2")["ids"]
    with (
        pumice.load(folder, device="cpu", progress=False) as model,
        pumice.load(tmp_path / "m.gguf", device="cpu", tokenizer=folder) as other,
    ):
        assert np.array_equal(model.logits(ids, positions="all"), other.logits(ids, positions="all"))


@pytest.mark.parametrize("how", ["modelopt", "fbgemm"])
def test_packed_experts_in_one_tensor(how: str, tmp_path: Path) -> None:
    """They are turned already when they are read (Llama 4)."""
    folder, plain = packed_models.packed_folder("llama4_wide", how, tmp_path)
    for name, source in (("packed", folder), ("plain", plain)):
        pumice.convert(source, tmp_path / f"{name}.gguf", to="f32", **PLAIN)
    files = [_core.open_file(str(tmp_path / f"{name}.gguf")) for name in ("packed", "plain")]
    assert [tensor[:3] for tensor in files[0].tensors] == [tensor[:3] for tensor in files[1].tensors]
    for name, _, _, _ in files[0].tensors:
        assert np.array_equal(*(np.frombuffer(file.read(name), np.float32) for file in files)), name  # but for the sign of 0


# ---------------------------------------------------------------- files
def finished(journal: Path) -> int:
    """Returns how many units a journal says are finished, as long as the system runs."""
    said = json.loads(journal.read_text())
    return int(said.get("written", said["units"]))


def test_after_a_crash_of_the_system_what_is_on_the_disk_counts(tmp_path: Path) -> None:
    """An interrupted call does not wait for the disk. If the system then ends, what it had not written is lost."""
    folder, whole, output = random_models.make_folder("mixtral", tmp_path), tmp_path / "whole.gguf", tmp_path / "m.gguf"
    pumice.convert(folder, whole, to="q8_0", **PLAIN)

    def stop(done: int, total: int) -> None:
        if done > total // 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pumice.convert(folder, output, to="q8_0", **{**PLAIN, "progress": stop})
    journal, part = tmp_path / "m.gguf.journal", tmp_path / "m.gguf.part"
    said = json.loads(journal.read_text())
    if "boot" not in said:  # the system has no text for it, so the call waited for the disk
        assert said["units"] > 3
        return
    assert said["units"] == 0 < said["written"]
    journal.write_text(json.dumps(said | {"boot": "another"}))
    part.write_bytes(bytes(part.stat().st_size))  # what was not on the disk
    pumice.convert(folder, output, to="q8_0", **PLAIN)
    assert output.read_bytes() == whole.read_bytes()


def test_names_that_are_no_utf8(tmp_path: Path) -> None:
    folder = random_models.make_folder("mixtral", tmp_path)
    plain, named = tmp_path / "m.gguf", os.fsdecode(os.fsencode(tmp_path) + b"/\xff.gguf")
    pumice.convert(folder, plain, **PLAIN)
    other = folder.rename(os.fsdecode(os.fsencode(tmp_path) + b"/\xfe"))
    assert "33 tensors" in str(pumice.convert(other, named, dry_run=True, **PLAIN))
    pumice.convert(other, named, **PLAIN)
    pumice.quantize(named, tmp_path / "q.gguf", to="q8_0", progress=False)
    assert pumice.plan(named, n_ctx=32).totals == pumice.plan(plain, n_ctx=32).totals


def test_an_interrupted_call_goes_on(tmp_path: Path) -> None:
    folder, whole, output = random_models.make_folder("mixtral", tmp_path), tmp_path / "whole.gguf", tmp_path / "m.gguf"
    pumice.convert(folder, whole, to="q8_0", **PLAIN)
    part, journal = tmp_path / "m.gguf.part", tmp_path / "m.gguf.journal"
    written = []

    def stop(done: int, total: int) -> None:
        written.append(done)
        if done > total // 2:
            raise KeyboardInterrupt

    options = {**PLAIN, "progress": stop}
    with pytest.raises(KeyboardInterrupt):
        pumice.convert(folder, output, to="q8_0", **options)
    assert part.is_file() and finished(journal) > 3 and not output.exists()
    again: list[int] = []
    pumice.convert(folder, output, to="q8_0", **{**PLAIN, "progress": lambda done, total: again.append(done)})
    assert again[0] > written[-1] * 0.7  # it did not begin anew
    assert not part.exists() and not journal.exists()
    assert output.read_bytes() == whole.read_bytes()


def test_a_part_of_another_conversion_is_written_anew(tmp_path: Path) -> None:
    folder, output = random_models.make_folder("llama3", tmp_path), tmp_path / "m.gguf"

    def stop(done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pumice.convert(folder, output, to="f32", **{**PLAIN, "progress": stop})
    pumice.convert(folder, tmp_path / "whole.gguf", to="f16", **PLAIN)
    pumice.convert(folder, output, to="f16", **PLAIN)
    assert output.read_bytes() == (tmp_path / "whole.gguf").read_bytes()
    output.unlink()
    (tmp_path / "m.gguf.part").write_bytes(b"x" * 10)
    (tmp_path / "m.gguf.journal").write_text("[1]")
    pumice.convert(folder, output, to="f16", **PLAIN)
    assert output.read_bytes() == (tmp_path / "whole.gguf").read_bytes()


def test_files_are_replaced_only_on_demand(tmp_path: Path) -> None:
    folder, output = random_models.make_folder("llama3", tmp_path), tmp_path / "m.gguf"
    output.write_bytes(b"precious")
    with pytest.raises(FileExistsError, match="force"):
        pumice.convert(folder, output, **PLAIN)
    assert output.read_bytes() == b"precious"
    pumice.convert(folder, output, dry_run=True, **PLAIN)
    assert output.read_bytes() == b"precious" and not list(tmp_path.glob("*.part"))
    pumice.convert(folder, output, force=True, **PLAIN)
    assert output.read_bytes()[:4] == b"GGUF"
    link = tmp_path / "link.gguf"
    link.symlink_to(output)
    output.write_bytes(b"old")
    pumice.convert(folder, link, force=True, **PLAIN)
    assert link.is_symlink() and output.read_bytes()[:4] == b"GGUF"


def test_split_files_load(tmp_path: Path) -> None:
    folder = random_models.make_folder("qwen2", tmp_path)
    plan = pumice.convert(folder, tmp_path / "m.gguf", split=200_000, **PLAIN)
    assert len(plan.files) > 2 and plan.files[0].name == f"m-00001-of-{len(plan.files):05}.gguf"
    assert all(path.stat().st_size <= 200_000 for path in plan.files) and not (tmp_path / "m.gguf").exists()
    ids = random_models.golden("qwen2")["ids"]
    with pumice.load(folder, device="cpu", progress=False) as model, pumice.load(plan.files[0], device="cpu", tokenizer=folder) as other:
        assert np.array_equal(model.logits(ids), other.logits(ids))


def test_files_are_not_larger_than_split(tmp_path: Path) -> None:
    folder = random_models.make_folder("qwen2", tmp_path)
    with pytest.raises(ValueError, match=r"split is 20000 bytes; the file with output\.weight needs \d+, because") as refused:
        pumice.convert(folder, tmp_path / "m.gguf", split="20K", **PLAIN)
    least = int(re.findall(r"needs (\d+)", str(refused.value))[0])
    files = pumice.convert(folder, tmp_path / "m.gguf", split=least, **PLAIN).files
    assert max(path.stat().st_size for path in files) <= least < 1.01 * max(path.stat().st_size for path in files)


def test_a_disk_without_room_is_told_before_the_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, allocated = random_models.make_folder("qwen2", tmp_path), []

    def allocate(*given: int) -> None:
        allocated.append(given)
        if len(allocated) > 1:
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", allocate)
    with pytest.raises(
        OSError, match=r"No space left on device: 6\d\d KiB are needed in all, and [\d.]+ \wiB are free; nothing is written"
    ):
        pumice.convert(folder, tmp_path / "m.gguf", split=200_000, **PLAIN)
    assert len(allocated) == 2 and not list(tmp_path.glob("m*.gguf*"))


def test_a_disk_that_becomes_full_keeps_what_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, output, write = random_models.make_folder("qwen2", tmp_path), tmp_path / "m.gguf", os.pwrite
    pumice.convert(folder, tmp_path / "whole.gguf", **PLAIN)
    room = [300_000]

    def full(handle: int, data: memoryview, at: int) -> int:
        room[0] -= len(data)
        if room[0] < 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(handle, data, at)

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", full)
        with pytest.raises(OSError, match=r"what is written stays in \.part files, and with more room the same call goes on"):
            pumice.convert(folder, output, **PLAIN)
    assert finished(tmp_path / "m.gguf.journal") > 0 and (tmp_path / "m.gguf.part").is_file()
    pumice.convert(folder, output, **PLAIN)
    assert output.read_bytes() == (tmp_path / "whole.gguf").read_bytes() and not list(tmp_path.glob("m.gguf.*"))


def test_wrong_arguments(tmp_path: Path) -> None:
    folder = random_models.make_folder("llama3", tmp_path)
    for options, message in (
        ({"to": "q3"}, "to='q3' is not one of 'auto', 'f32'"),
        ({"split": "4X"}, "split is '4X'; a size is needed"),
        ({"tokenizer": "other"}, "tokenizer='other' is not one of"),
        ({"dry_run": 1}, "dry_run"),
        ({"to": "4.5bpw", "dry_run": True}, "depend on the weights"),
        ({"to": "0.5bpw", "tokenizer": "none"}, r"0\.5"),
        ({"texts": "some"}, "rounds no weights to codes"),
        ({"to": "q4_k_m", "texts": [1.5], "tokenizer": "none"}, r"texts\[0\]"),
        ({"to": "q4_k_m", "texts": 7, "tokenizer": "none"}, "texts must be a text"),
        ({"to": "q4_k_m", "texts": [[1] * 64], "tokens": 3, "tokenizer": "none"}, "tokens"),
    ):
        with pytest.raises((ValueError, TypeError), match=message):
            pumice.convert(folder, tmp_path / "m.gguf", **options)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"must end in \.gguf"):
        pumice.convert(folder, tmp_path / "m.bin")
    with pytest.raises(FileNotFoundError, match="none"):
        pumice.convert(folder, tmp_path / "none" / "m.gguf")
    config = json.loads((folder / "config.json").read_text())
    del config["num_hidden_layers"]
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(pumice.PumiceError):
        pumice.convert(folder, tmp_path / "m.gguf", **PLAIN)
    assert [path.name for path in tmp_path.iterdir()] == ["llama3"]


# ---------------------------------------------------------------- tokenizers and encoders
def test_an_encoder_with_its_tokenizer(minilm: pumice.Model, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "minilm.gguf"
    assert main(["convert", str(samples.minilm()), str(output), "--to", "f32"]) == 0
    assert "token_embd.weight" in capsys.readouterr().out
    texts = ["Pumice floats.", "Ein Stein, der auf dem Wasser schwimmt?", ""]
    with pumice.load(output, device="cpu", progress=False) as model:
        assert model.info["pooling"] == minilm.info["pooling"]
        assert [model.tokenize(text).tolist() for text in texts] == [minilm.tokenize(text).tolist() for text in texts]
        assert np.abs(model.encode(texts) - minilm.encode(texts)).max() < 1e-6
    assert main(["convert", str(samples.minilm()), str(output)]) == 1
    assert "--force" in capsys.readouterr().err


def test_a_model_with_its_tokenizer_and_template(smollm2: pumice.Model) -> None:
    rows = smollm2.info["vocab_size"] + 2
    keys = tokenizer_keys(smollm2._tokenizer, rows, "test", "{{ messages }}")
    assert keys["tokenizer.ggml.tokens"][:-2] == smollm2._file.get("tokenizer.ggml.tokens") and len(keys["tokenizer.ggml.tokens"]) == rows
    for name in ("model", "pre", "bos_token_id", "eos_token_id", "add_bos_token"):
        assert keys[f"tokenizer.ggml.{name}"] == smollm2._file.get(f"tokenizer.ggml.{name}")
    assert keys["tokenizer.chat_template"] == "{{ messages }}"


def test_a_tokenizer_that_gguf_does_not_have_is_an_error(tmp_path: Path) -> None:
    folder = random_models.make_folder("llama3", tmp_path)  # words of spaces
    with pytest.raises(
        pumice.TokenizerError, match=r'no tokenizer that GGUF has gives the ids of this one \(WordLevel\).*tokenizer="none"'
    ):
        pumice.convert(folder, tmp_path / "m.gguf")


def test_packed_weights_of_an_unknown_packing_are_named(tmp_path: Path) -> None:
    folder, _ = packed_models.packed_folder("llama_wide", "gptq_4_sym", tmp_path)
    config = json.loads((folder / "config.json").read_text())
    del config["quantization_config"]
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(pumice.UnsupportedModelError, match=r"g_idx is I32, which is no format of weights, and config\.json does not say"):
        pumice.convert(folder, tmp_path / "o.gguf", tokenizer="none", progress=False)
