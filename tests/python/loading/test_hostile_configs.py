"""Puts hostile values into every field of every file beside the weights. Each value must give a typed error that names the field or the
file, or a correct result.

Each batch of cases runs in a process of its own, so that a test detects a crash, a hang or an exit and names the case that caused it."""

from __future__ import annotations

import copy
import json
import math
import os
import resource
import shutil
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import children
import numpy as np
import pytest
import random_models
from patience import Watch
from sanitized import SLOWER, limit_address_space
from small_files import Typed, encoder_folder, gguf_file, gguf_keys, other_tokenizers, wordlevel

SLOWEST_SECONDS = 2.0
MOST_GROWTH = 300 << 20  # maximum growth of a batch's process, in bytes
DEEP = "@deep@"  # replaced by JSON that is nested too deeply for json.dumps()
SURROGATE = "\ud800"
HOSTILE: list[Any] = [
    None, -1, 0, 2**31, 2**63, 10**400, 1e308, math.nan, "", "x", "x" * (1 << 20), SURROGATE, "a\0b", [], {}, {"x": {}}, True,
    "/////w==", DEEP,
]  # fmt: skip

Case = tuple[str, Callable[[], None]]  # (name, function that writes the broken file)


# ---------------------------------------------------------------- folders


def tokenizer_cases(folder: Path) -> Iterator[Case]:
    for kind, parts in other_tokenizers().items():
        for place in places(parts):
            for hostile in [*HOSTILE, "missing"]:
                changed = copy.deepcopy(wordlevel() | parts)
                replace(changed, place, hostile)
                name = f"tokenizer.json: ({kind}) {'.'.join(map(str, place))} = {short(hostile)}"
                yield name, lambda c=changed: (folder / "tokenizer.json").write_text(written(c))  # type: ignore[misc]


def decoder_folder(target: Path) -> Path:
    folder = random_models.make_folder("llama32", target)
    files = {
        "tokenizer.json": wordlevel(),
        "tokenizer_config.json": {
            "bos_token": "<s>",
            "eos_token": {"content": "</s>", "lstrip": False},
            "add_bos_token": True,
            "model_max_length": 512,
            "truncation_side": "right",
            "chat_template": "{% for m in messages %}{{ m.content }} {% endfor %}",
            "added_tokens_decoder": {"508": {"content": "<s>", "special": True}, "7": {"content": "w7", "special": True}},
            "additional_special_tokens": ["w9"],
            "tokenizer_class": "PreTrainedTokenizerFast",
        },
        "special_tokens_map.json": {"unk_token": "w0", "pad_token": {"content": "w1"}},
        "generation_config.json": {
            "do_sample": True, "temperature": 0.7, "top_k": 20, "top_p": 0.9, "min_p": 0.01, "typical_p": 0.9, "repetition_penalty": 1.1,
            "eos_token_id": [509, 3], "bos_token_id": 508, "max_new_tokens": 5,
        },
    }  # fmt: skip
    for name, value in files.items():
        (folder / name).write_text(json.dumps(value))
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"head_dim": 32, "eos_token_id": 509}))
    # Splits the weights into two shards.
    shapes = json.loads(random_models.golden_file("llama32", "shapes.json").read_text())
    names = sorted(shapes)
    (folder / "model.safetensors").unlink()
    shards = {"model-00001-of-00002.safetensors": names[::2], "model-00002-of-00002.safetensors": names[1::2]}
    for shard, held in shards.items():
        random_models.write_safetensors(folder / shard, {n: random_models.weights(n, tuple(shapes[n])) for n in held})
    index = {"metadata": {"total_size": 1}, "weight_map": {n: shard for shard, held in shards.items() for n in held}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder


def places(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yields the path to each value that is replaced in the tests: every field, the first elements of lists, and the first two words of
    vocabularies."""
    if at:
        yield at
    if isinstance(value, dict):
        for key in list(value)[: 2 if len(value) > 40 else None]:
            yield from places(value[key], (*at, key))
    elif isinstance(value, list):
        for i in range(min(len(value), 2)):
            yield from places(value[i], (*at, i))


def replace(holder: Any, place: tuple[Any, ...], hostile: Any) -> None:
    for key in place[:-1]:
        holder = holder[key]
    if hostile == "missing":
        del holder[place[-1]]
    else:
        holder[place[-1]] = hostile


def written(value: Any) -> str:
    return json.dumps(value).replace(f'"{DEEP}"', "[" * 5000 + "]" * 5000)


def short(value: Any) -> str:
    text = "infinite depth" if value == DEEP else "10**400" if value == 10**400 and not isinstance(value, float) else ascii(value)
    return text if len(text) < 40 else f"{text[:20]}... ({len(text)})"


def field_cases(folder: Path, name: str, part: str = "") -> Iterator[Case]:
    file = folder / name
    whole = json.loads(file.read_text())
    for place in places(whole):
        if part and place[0] != part:
            continue
        for hostile in [*HOSTILE, "missing"]:
            changed = copy.deepcopy(whole)
            replace(changed, place, hostile)
            yield f"{name}: {'.'.join(map(str, place))} = {short(hostile)}", lambda c=changed: file.write_text(written(c))  # type: ignore[misc]


def file_cases(folder: Path, name: str) -> Iterator[Case]:
    file = folder / name
    bytes_ = file.read_bytes()
    contents = {
        "empty": b"", "not UTF-8": b"\xff\xfe" + bytes_, "Latin-1": bytes_.replace(b"{", b'{"\xe9": 1, ', 1),
        "with a mark": b"\xef\xbb\xbf" + bytes_,
        "cut": bytes_[: len(bytes_) // 2], "null": b"null", "a list": b"[]", "a number": b"1e999", "a string": b'"x"', "zeros": bytes(4096),
        "twice": bytes_ * 2, "deep": b'{"a":' * 100_000, "long": b" " * (17 << 20), "digits": b'{"a":' + b"9" * 100_000 + b"}",
        "one key twice": bytes_.replace(b"{", b'{"a": 1, "a": 2, ', 1),
    }  # fmt: skip
    for what, content in contents.items():
        yield f"{name} is {what}", lambda c=content: file.write_bytes(c)  # type: ignore[misc]
    for what, make in {
        "missing": lambda: None,
        "a folder": file.mkdir,
        "a pipe": lambda: os.mkfifo(file),
        "a link to itself": lambda: file.symlink_to(file),
        "a link to nothing": lambda: file.symlink_to(folder / "nothing"),
        "a device": lambda: file.symlink_to("/dev/zero"),
    }.items():
        yield f"{name} is {what}", lambda m=make: (file.unlink(), m())  # type: ignore[misc]


def restore(file: Path, content: bytes) -> None:
    if file.is_dir() and not file.is_symlink():
        file.rmdir()
    else:
        file.unlink(missing_ok=True)
    file.write_bytes(content)


# ---------------------------------------------------------------- GGUF
GGUF_HOSTILE: list[Any] = [
    0, 1, 2**32 - 1, Typed(11, "q", -1), Typed(10, "Q", 2**63), Typed(11, "q", -(2**63)), Typed(0, "B", 255), math.nan, -math.inf,
    Typed(12, "d", 1e308), "", "x", b"\xff\xfe", "a\0b", "x" * (1 << 20), True, [], [""], ["x"] * 35, [b"\xff"] * 35, [0] * 35,
    [2**32 - 1] * 35, [Typed(0, "B", 255)] * 35, [math.nan] * 35, [True], [Typed(11, "q", -(2**63))] * 35, ["a"] * 3,
    [float(i) for i in range(35)], ["[UNK]", "[CLS]", "[SEP]"], [["x"], ["y"]],
    ["y" * 100_000] + [f"t{i}" for i in range(34)],
]  # fmt: skip


def gguf_cases(file: Path, kind: str) -> Iterator[Case]:
    whole = gguf_keys(kind)
    for key in [*whole, "tokenizer.ggml.precompiled_charsmap", "tokenizer.chat_template.x"]:
        if kind != "gpt2" and not key.startswith("tokenizer.ggml."):
            continue
        for hostile in [*GGUF_HOSTILE, "missing"]:
            changed = {**whole, key: hostile}
            if hostile == "missing":
                changed.pop(key)
            yield f"{kind}: {key} = {short(hostile)}", lambda c=changed: file.write_bytes(gguf_file(c))  # type: ignore[misc]


# ---------------------------------------------------------------- one process per batch

BATCHES = {
    "decoder config": ("decoder", ["config.json"]),
    "decoder tokenizer": ("decoder", ["tokenizer.json"]),
    "decoder side files": (
        "decoder",
        ["tokenizer_config.json", "special_tokens_map.json", "generation_config.json", "model.safetensors.index.json"],
    ),
    "encoder config": ("encoder", ["config.json", "tokenizer_config.json"]),
    "encoder types": ("encoder", ["tokenizer.json:post_processor"]),
    "other tokenizers": ("decoder", ["*"]),
    "encoder side files": (
        "encoder",
        ["modules.json", "1_Pooling/config.json", "sentence_bert_config.json", "config_sentence_transformers.json"],
    ),
    "gguf gpt2": ("gguf", ["gpt2"]),
    "gguf others": ("gguf", ["llama", "t5", "bert"]),
}
ALLOWED = (ValueError, OSError)  # allowed besides PumiceError and MemoryError


def use(pumice: Any, source: Path, kind: str) -> None:
    with pumice.load(source, device="cpu", threads=1) as model:
        if kind == "encoder":
            vectors = model.encode(["w1 w2 w3", "w4"])
            assert vectors.shape == (2, model.info["vector_size"])
            assert np.isfinite(vectors).all()
            return
        result = model.generate("a b" if kind == "gguf" else "w1 w2", max_new_tokens=2)
        assert isinstance(result.text, str)
        assert len(result.ids) <= 2
        try:
            model.chat("a" if kind == "gguf" else "w3", max_new_tokens=1)
        except pumice.ChatTemplateError:
            pass


def judge(pumice: Any, source: Path, kind: str, names: str) -> str | None:
    """Loads and uses a broken model. Returns what is wrong with the outcome, or None if it is right."""
    try:
        use(pumice, source, kind)
    except (pumice.PumiceError, *ALLOWED, MemoryError) as error:
        text = str(error)
        said = [
            "has no tokens",
            "nothing to encode",
            str(source),
            source.name,
            *names.split(),
            *names.partition(": ")[2].partition(" = ")[0].split("."),
        ]
        if not any(part and part in text for part in said):
            return f"{type(error).__name__} does not say where: {text[:300]!r}"
        if len(text) > 10_000:
            return f"{type(error).__name__} says {len(text)} characters"
    except BaseException as error:
        import traceback

        where = traceback.extract_tb(error.__traceback__)[-1]
        return f"{type(error).__name__}: {str(error)[:300]} in {Path(where.filename).name}:{where.lineno}"
    return None


def run_batch(batch: str, scratch: Path) -> None:
    import pumice

    warnings.simplefilter("ignore")
    kind, names = BATCHES[batch]
    if kind == "gguf":
        folder, source = scratch, scratch / "tiny.gguf"
        for name in names:
            source.write_bytes(gguf_file(gguf_keys(name)))
            use(pumice, source, kind)
        groups = [(source, gguf_cases(source, name)) for name in names]
    else:
        folder = source = (decoder_folder if kind == "decoder" else encoder_folder)(scratch)
        use(pumice, source, kind)
        groups = []
        for name in names:
            if name == "*":
                groups.append((folder / "tokenizer.json", tokenizer_cases(folder)))
            elif ":" in name:
                groups.append((folder / "tokenizer.json", field_cases(folder, *name.split(":"))))
            else:
                groups += [(folder / name, field_cases(folder, name)), (folder / name, file_cases(folder, name))]
    for parts in other_tokenizers().values() if names == ["*"] else []:
        (folder / "tokenizer.json").write_text(json.dumps(wordlevel() | parts))
        use(pumice, source, kind)
        (folder / "tokenizer.json").write_text(json.dumps(wordlevel()))
    for _ in range(3):
        use(pumice, source, kind)  # allocates everything that the process keeps for good
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    # Much more than any valid case needs. A huge allocation then raises MemoryError and does not use up the machine's memory.
    limit_address_space(8 << 30)
    for file, cases in groups:
        content = file.read_bytes()
        for name, make in list(cases):
            print(json.dumps({"begins": name}), flush=True)
            make()
            watch = Watch()
            wrong = judge(pumice, source, kind, name)
            seconds = watch.elapsed().work
            print(json.dumps({"wrong": wrong, "seconds": seconds}), flush=True)
            restore(file, content)
    use(pumice, source, kind)  # the hostile values have done no harm to the process
    print(json.dumps({"grown": (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024}), flush=True)


@pytest.mark.parametrize("batch", BATCHES)
def test_hostile(batch: str, tmp_path: Path) -> None:
    try:
        done = children.cases(__file__, batch, tmp_path, timeout=1200 * SLOWER)
    finally:
        shutil.rmtree(tmp_path, ignore_errors=True)
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    names = [line["begins"] for line in lines if "begins" in line]
    results = [line for line in lines if "wrong" in line]
    assert done.returncode == 0, f"the process died ({done.returncode}) in {names[-1] if names else 'its start'}:\n{done.stderr[-3000:]}"
    assert len(results) == len(names) >= 100
    bad = [f"{name}: {r['wrong']}" for name, r in zip(names, results, strict=True) if r["wrong"]]
    assert not bad, f"{len(bad)} of {len(names)} cases:\n" + "\n".join(bad[:40])
    slow = [f"{name}: {r['seconds']:.1f} s" for name, r in zip(names, results, strict=True) if r["seconds"] > SLOWEST_SECONDS * SLOWER]
    assert not slow, slow
    assert lines[-1]["grown"] < MOST_GROWTH * SLOWER, f"{lines[-1]['grown'] >> 20} MiB"


if __name__ == "__main__":
    run_batch(sys.argv[1], Path(sys.argv[2]))
