"""An assistant (load(mtp=path); Gemma 4) must guess as transformers' assistant does. That its guesses change no tokens is tested in
test_guessed_tokens.py."""

from __future__ import annotations

import os
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import assistants
import numpy as np
import pytest
import random_gguf
import random_models
from guesses import DEVICE, EXACT, NEW, PLACES, WAYS, load, prompts, start
from op_cases import kept_open

import pumice
from pumice import _core
from pumice.gguf.changes import part_of

CPU = PLACES["cpu"]


@pytest.fixture(scope="module", autouse=True)
def opened() -> Iterator[None]:
    yield from kept_open(DEVICE)


@pytest.fixture(scope="module", params=assistants.MODELS)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def folder(name: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return assistants.write_folder(name, tmp_path_factory.mktemp("assisted"))


# ---------------------------------------------------------------- the guesses
def check_counts(model: pumice.Model, name: str) -> None:
    """Compares the texts, the numbers of guesses and those of right ones with transformers', for each prompt by itself."""
    known = assistants.golden(name)
    for prompt, text, counts in zip(known["prompts"], known["texts"], known["counts"], strict=True):
        for most, wanted in zip(assistants.MOST, counts, strict=True):
            found = start(model, [np.array(prompt, np.int32)], WAYS["greedy"], mtp="on", always=True, guesses=most)[0]
            assert found.ids.tolist() == text
            assert [found.timings["drafted_tokens"], found.timings["accepted_tokens"]] == wanted, (len(prompt), most)


@pytest.mark.parametrize("place", PLACES)
def test_guesses_are_those_of_transformers(place: str, folder: Path, name: str) -> None:
    with load(folder, **PLACES[place]) as model:
        check_counts(model, name)


def test_some_guesses_are_right_and_some_wrong(name: str) -> None:
    for n in range(len(assistants.MOST)):
        guessed, right = np.sum([counts[n] for counts in assistants.golden(name)["counts"]], 0)
        assert 0.03 * guessed < right < 0.95 * guessed


def gguf_parts(name: str, folder: Path) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Returns the keys and tensors of an assistant's GGUF file, as llama.cpp's converter writes them."""
    known = assistants.golden(name)
    tensors = assistants.assistant_tensors(name, known["shapes"])
    file = _core.open_file(str(assistants.write_assistant(name, folder, tensors)))
    head, becomes = _core.gguf_head(file), _core.gguf_parts(file)
    keys = {key: value.tolist() if isinstance(value, np.ndarray) else value for key, value in head["keys"].items()}
    assert keys["gemma4-assistant.embedding_length_out"] == known["config"]["backbone_hidden_size"]
    parts = {part["name"]: part_of(values, part) for tensor, values in tensors.items() for part in becomes[tensor]}
    return {"general.architecture": head["architecture"]} | keys, parts | head["tensors"]


def test_guesses_of_a_gguf_file(folder: Path, name: str, tmp_path: Path) -> None:
    path = random_gguf.write(tmp_path / "assistant.gguf", *gguf_parts(name, tmp_path / "assistant"))
    with load(folder, mtp=path, **CPU) as model:
        check_counts(model, name)


# ---------------------------------------------------------------- the same tokens
def test_a_prefix_from_a_file(folder: Path, tmp_path: Path) -> None:
    """An assistant changes no pages, so a file that was made without it counts with it, and guesses are those of a text that was computed
    at once."""
    ids = np.concatenate(prompts(3)).astype(np.int32)
    with load(folder, **CPU) as model:
        wanted = start(model, [ids], WAYS["greedy"], mtp="on", always=True)[0]
    with load(folder, mtp=False, **CPU) as model:
        model.save_prefix(tmp_path / "prefix", ids[:40])
    with load(folder, **CPU) as model:
        model.load_prefix(tmp_path / "prefix")
        found = start(model, [ids], WAYS["greedy"], mtp="on", always=True)[0]
        assert found.reused_tokens >= 32 and found.ids.tolist() == wanted.ids.tolist()
        for key in ("drafted_tokens", "accepted_tokens"):
            assert found.timings[key] == wanted.timings[key]


def test_generate_uses_it_and_a_fork_keeps_it(folder: Path) -> None:
    ids = prompts(1)[0]
    with load(folder, **CPU) as model:
        wanted = model.generate(ids, max_new_tokens=NEW, temperature=0, speculate="off").ids.tolist()
        found = model.generate(ids, max_new_tokens=NEW, temperature=0, speculate="mtp")
        assert found.ids.tolist() == wanted and found.timings["drafted_tokens"] > 0
        if (child := os.fork()) == 0:
            same = model.generate(ids, max_new_tokens=NEW, temperature=0, speculate="mtp").ids.tolist() == wanted
            os._exit(0 if same else 1)
        assert os.waitpid(child, 0)[1] == 0
        with pickle.loads(pickle.dumps(model)) as again:
            assert again.generate(ids, max_new_tokens=NEW, temperature=0, speculate="mtp").ids.tolist() == wanted


@pytest.mark.parametrize("quantize", ["q8_0", "q4_0"])
def test_a_quantized_assistant(folder: Path, quantize: str) -> None:
    with load(folder, quantize=quantize, kv_dtype=None, compute="auto", **CPU) as model:
        texts = prompts(8)
        plain = start(model, texts, WAYS["greedy"], mtp="off")
        found = start(model, texts, WAYS["greedy"], mtp="on", always=True)
        assert [r.ids.tolist() for r in found] == [r.ids.tolist() for r in plain]
        assert found[0].timings["accepted_tokens"] > 0


# ---------------------------------------------------------------- memory and errors
@pytest.mark.parametrize("place", PLACES)
def test_memory_counts_the_assistant(place: str, folder: Path, name: str) -> None:
    with_it, without = (pumice.plan(folder, mtp=mtp, **PLACES[place]) for mtp in (folder / "assistant", True))
    rows = [row for row in with_it.rows if row["name"] == "assistant"]
    assert len(rows) == 1 and rows[0]["weights"] > 0
    # The last layer of the model does not have the keys and values of the last layer with a window.
    assert (rows[0]["kv"] > 0) == (place == "last layer")
    assert "assistant" in str(with_it) and not any(row["name"] == "assistant" for row in without.rows)
    assert sum(row["weights"] for row in with_it.rows) - rows[0]["weights"] == sum(row["weights"] for row in without.rows)
    assert sum(row["kv"] for row in with_it.rows) - rows[0]["kv"] == sum(row["kv"] for row in without.rows)
    with load(folder, **PLACES[place]) as model:
        placement, memory = model._core.placement(), model._core.memory()
        assert memory["weights"] == sum(row["weights"] for row in placement["rows"])
        assert "assistant" in str(model.summary())


def test_parameters_of_an_assistant_are_counted_apart(folder: Path, name: str) -> None:
    written = assistants.assistant_tensors(name, assistants.golden(name)["shapes"])
    with load(folder, **CPU) as model, load(folder, mtp=False, **CPU) as alone:
        assert model.info["parameters"] == alone.info["parameters"] > 0
        assert alone.info["assistant_parameters"] == 0
        assert model.info["assistant_parameters"] == sum(tensor.size for tensor in written.values())


def test_experts_on_another_device(tmp_path: Path) -> None:
    """Then the keys and values of the model's last stage are in several stores, and the assistant is not used."""
    folder = random_models.make_folder("gemma4_26b", tmp_path)
    assistant = assistants.write_assistant("gemma4_31b", tmp_path / "assistant")  # the small model of the 26B has the same heads
    ids = np.array([5, 6, 7], np.int32)
    for place in (CPU, {"device": DEVICE}):
        with pumice.load(folder, mtp=assistant, **EXACT, **place) as model:
            found = start(model, [ids], WAYS["greedy"], mtp="on", always=True)[0]
            assert found.timings["drafted_tokens"] > 0
            assert found.ids.tolist() == start(model, [ids], WAYS["greedy"], mtp="off")[0].ids.tolist()
    with pumice.load(folder, device=DEVICE, gpu_experts=0, mtp=assistant, progress=False) as model:
        assert any("the assistant is not used" in note for note in model.summary().notes)
        with pytest.raises(pumice.UnsupportedTaskError, match="experts"):
            model.generate(ids, max_new_tokens=3, speculate="mtp")
        assert model.generate(ids, max_new_tokens=3).timings["drafted_tokens"] == 0


def test_an_assistant_that_does_not_fit(tmp_path: Path) -> None:
    name = "gemma4_31b"
    folder = assistants.write_folder(name, tmp_path)
    tensors = assistants.assistant_tensors(name, assistants.golden(name)["shapes"])
    ropes = assistants.golden(name)["config"]["text_config"]["rope_parameters"]
    other_rope = ropes | {"sliding_attention": {"rope_theta": 5000.0, "rope_type": "default"}}
    wider = {"pre_projection.weight": np.zeros((48, 160), np.float32), "post_projection.weight": np.zeros((80, 48), np.float32)}
    fewer = {"model.embed_tokens.weight": tensors["model.embed_tokens.weight"][:500].copy()}
    more_heads = {f"model.layers.{i}.self_attn.q_norm.weight": np.ones(24, np.float32) for i in range(3)}
    more_heads |= {f"model.layers.{i}.self_attn.q_proj.weight": np.zeros((96, 48), np.float32) for i in range(3)}
    more_heads |= {f"model.layers.{i}.self_attn.o_proj.weight": np.zeros((48, 96), np.float32) for i in range(3)}
    cases: list[tuple[dict[str, np.ndarray], dict[str, Any], str]] = [
        (wider, {"backbone_hidden_size": 80}, "takes rows of 80"),
        (fewer, {"text_config": {"vocab_size": 500}}, "vocabulary of 500"),
        (more_heads, {"text_config": {"head_dim": 24}}, "2 heads of 24"),
        ({}, {"text_config": {"sliding_window": 20}}, "window of 20"),
        ({}, {"text_config": {"rope_parameters": other_rope}}, "frequencies of rope"),
        ({}, {"text_config": {"num_kv_shared_layers": 2}}, "num_kv_shared_layers"),
        ({}, {"text_config": {"hidden_size_per_layer_input": 16}}, "hidden_size_per_layer_input"),
        ({}, {"text_config": {"enable_moe_block": True}}, "enable_moe_block"),
        ({}, {"model_type": "gemma4_text"}, "no assistant"),
    ]
    for number, (changed, config, says) in enumerate(cases):
        path = assistants.write_assistant(name, tmp_path / str(number), tensors | changed, **config)
        with pytest.raises(pumice.UnsupportedModelError, match=says) as caught:
            pumice.load(folder, device="cpu", progress=False, mtp=path)
        assert str(path) in str(caught.value)
    other = random_models.make_folder("gemma3", tmp_path)
    with pytest.raises(pumice.UnsupportedModelError, match="does not fit|it is one for a gemma4"):
        pumice.load(other, device="cpu", progress=False, mtp=folder / "assistant")
    with pytest.raises(pumice.UnsupportedModelError, match="does not run alone"):
        pumice.load(folder / "assistant", device="cpu", progress=False)
    with pytest.raises(FileNotFoundError):
        pumice.load(folder, device="cpu", progress=False, mtp=tmp_path / "nothing")


def test_an_assistant_that_lacks_a_tensor(tmp_path: Path) -> None:
    name = "gemma4_31b"
    folder = assistants.write_folder(name, tmp_path)
    tensors = assistants.assistant_tensors(name, assistants.golden(name)["shapes"])
    for number, tensor in enumerate(tensors):
        path = assistants.write_assistant(name, tmp_path / str(number), {k: v for k, v in tensors.items() if k != tensor})
        with pytest.raises(pumice.ModelFormatError, match=tensor):
            pumice.load(folder, device="cpu", progress=False, mtp=path)
        if tensors[tensor].ndim < 2 and len(tensors[tensor]) == 1:
            continue
        narrow = tensors | {tensor: tensors[tensor][..., 1:].copy()}
        with pytest.raises(pumice.ModelFormatError, match=tensor):
            pumice.load(folder, device="cpu", progress=False, mtp=assistants.write_assistant(name, tmp_path / f"n{number}", narrow))


def test_broken_files(tmp_path: Path) -> None:
    """A file that ends early, or with other bytes in its head, is an error and nothing else."""
    name = "gemma4_31b"
    folder = assistants.write_folder(name, tmp_path)
    whole = random_gguf.write(tmp_path / "assistant.gguf", *gguf_parts(name, tmp_path / "assistant")).read_bytes()
    rng = np.random.default_rng(3)
    broken = tmp_path / "broken.gguf"
    for size in rng.integers(0, len(whole), 12):
        broken.write_bytes(whole[:size])
        with pytest.raises(pumice.PumiceError):
            pumice.load(folder, device="cpu", progress=False, mtp=broken)
    for at in rng.integers(0, 2500, 60):
        broken.write_bytes(whole[:at] + bytes([int(rng.integers(0, 256))]) + whole[at + 1 :])
        try:
            pumice.load(folder, device="cpu", progress=False, mtp=broken).close()
        except (pumice.PumiceError, OSError):
            pass


def test_an_assistant_without_a_head(tmp_path: Path) -> None:
    """A classifier's matrix, or tensors whose names lack a decoder's prefix, make the file one of an encoder."""
    name = "gemma4_31b"
    folder = assistants.write_folder(name, tmp_path)
    tensors = assistants.assistant_tensors(name, assistants.golden(name)["shapes"])
    width = tensors["model.norm.weight"].shape[0]
    bare = {key.removeprefix("model."): tensor for key, tensor in tensors.items()}
    for changed, config in (
        (tensors | {"score.weight": np.ones((2, width), np.float32)}, {}),
        (bare, {"tie_word_embeddings": False}),
    ):
        path = assistants.write_assistant(name, tmp_path / "headless", changed, **config)
        for call in (pumice.load, pumice.plan):
            with pytest.raises(pumice.UnsupportedModelError, match="it has no output head"):
                call(folder, mtp=path, device="cpu")


def test_what_is_wrong_with_an_assistants_file_names_the_file(tmp_path: Path) -> None:
    name = "gemma4_31b"
    folder = assistants.write_folder(name, tmp_path)
    tensors = assistants.assistant_tensors(name, assistants.golden(name)["shapes"])
    path = assistants.write_assistant(name, tmp_path / "more", tensors | {"model.layers.0.mystery.weight": np.ones((2, 2), np.float32)})
    with pytest.raises(pumice.ModelFormatError, match="more: tensor model.layers.0.mystery.weight of the layers"):
        pumice.load(folder, mtp=path, **EXACT)
    with pytest.warns(pumice.IncompleteModelWarning, match="its assistant .*more.*mystery"):
        pumice.load(folder, mtp=path, unread_tensors="warn", **EXACT).close()
    holes = {key: tensor * np.nan if key.endswith("layers.0.mlp.up_proj.weight") else tensor for key, tensor in tensors.items()}
    path = assistants.write_assistant(name, tmp_path / "holes", holes)
    with pytest.raises(pumice.NumericError, match="holes.*up_proj"):
        pumice.load(folder, mtp=path, **EXACT)


def test_the_path_may_be_relative(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = assistants.write_folder("gemma4_31b", tmp_path)
    monkeypatch.chdir(folder)
    with pumice.load(".", mtp="assistant", **EXACT) as model:
        monkeypatch.chdir(tmp_path)
        with pickle.loads(pickle.dumps(model)) as copy:
            assert copy.generate([5, 6, 7], max_new_tokens=3, speculate="mtp").finish_reason


def test_strange_numbers_in_the_configuration(tmp_path: Path) -> None:
    """Each is an error with a class, or counts for nothing."""
    name = "gemma4_31b"
    folder = assistants.write_folder(name, tmp_path)
    known = assistants.golden(name)["config"]
    keys = [(key, None) for key, value in known.items() if not isinstance(value, (dict, list))]
    keys += [(key, "text_config") for key in known["text_config"]]
    loaded = 0
    for key, inside in keys:
        for value in (-1, 0, 2**40, 1e300, "x", None, [], {}, [7, -7]):
            config = {inside: {key: value}} if inside else {key: value}
            path = assistants.write_assistant(name, tmp_path / "strange", **config)
            try:
                pumice.plan(folder, device="cpu", mtp=path)
                loaded += 1
            except pumice.PumiceError:
                pass
    assert loaded > 0


def test_a_list_of_centroids_is_not_used(tmp_path: Path) -> None:
    name = "gemma4_e2b"
    folder = assistants.write_folder(name, tmp_path)
    tensors = assistants.assistant_tensors(name, assistants.golden(name)["shapes"])
    tensors["masked_embedding.centroids.weight"] = np.ones((8, 48), np.float32)
    path = assistants.write_assistant(name, tmp_path / "ordered", tensors, use_ordered_embeddings=True, num_centroids=8)
    with load(folder, mtp=path, **CPU) as model:
        assert any("chosen among all tokens" in note for note in model.summary().notes)
        check_counts(model, name)


def test_checks(folder: Path) -> None:
    with pytest.raises(TypeError, match="mtp"):
        pumice.load(folder, mtp=1)  # type: ignore[arg-type]
