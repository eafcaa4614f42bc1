"""Files and limits that broke an earlier version, tested on real models: names, links, tokenizers, address space, and a bias on every
token."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import samples
from paths import ROOT

import pumice


def folder(tmp_path: Path, name: str | bytes = "model") -> Path:
    """Returns a copy of MiniLM's folder, in which a test can replace files."""
    made = Path(os.fsdecode(os.fsencode(tmp_path) + b"/" + os.fsencode(name)))
    made.mkdir()
    for file in Path(samples.minilm()).rglob("*"):
        to = made / file.relative_to(samples.minilm())
        to.parent.mkdir(exist_ok=True)
        if file.is_file():
            same(file, to)
    return made


def same(file: Path, to: Path | str) -> None:
    try:
        os.link(file.resolve(), to)
    except OSError:  # the copy is on another file system
        shutil.copy(file, to)


def test_names_that_are_no_utf8(tmp_path: Path, minilm: pumice.Model) -> None:
    with pumice.load(folder(tmp_path, b"\xffmodel")) as model:
        assert np.array_equal(model.encode("stone"), minilm.encode("stone"))
        assert "\\udcff" in repr(model) and model.path.name == "\udcffmodel"
        repr(model).encode()
    gguf = os.fsdecode(os.fsencode(tmp_path) + b"/\xff.gguf")
    same(Path(samples.smollm2()), gguf)
    with pumice.load(gguf, n_ctx=64) as model:
        assert model.generate("One, two,", max_new_tokens=2, temperature=0).text
    with pytest.raises(pumice.ModelFormatError) as caught:
        empty = os.fsdecode(os.fsencode(tmp_path) + b"/\xff\x1b.gguf")
        Path(empty).write_bytes(b"")
        pumice.load(empty)
    assert "\x1b" not in str(caught.value) and str(caught.value).encode()


@pytest.mark.parametrize(
    ("option", "suffix", "content"),
    [
        ("response_template", ".json", "{"),
        ("response_template", ".json", "[]"),
        ("chat_template", ".json", "{}"),
        ("tokenizer", ".json", "{"),
        ("tokenizer", ".json", '{"precompiled_charsmap": "?"}'),
    ],
)
def test_errors_of_files_whose_names_are_no_utf8_can_be_printed(tmp_path: Path, option: str, suffix: str, content: str) -> None:
    file = Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff" + suffix.encode()))
    file.write_text(content)
    with pytest.raises((pumice.PumiceError, OSError)) as caught:
        pumice.load(samples.smollm2(), n_ctx=64, **{option: str(file)}).chat("Hi", dry_run=True)
    assert "\\udcff" in str(caught.value), ascii(str(caught.value))
    str(caught.value).encode()


def test_errors_of_folders_whose_names_are_no_utf8_can_be_printed(tmp_path: Path) -> None:
    copy = Path(folder(tmp_path, b"\xffmodel"))
    for name in ("config.json", "tokenizer.json", "modules.json", "tokenizer_config.json", "sentence_bert_config.json"):
        whole = (copy / name).read_bytes()
        (copy / name).unlink()
        (copy / name).write_text("[{}]")
        with pytest.raises(pumice.PumiceError) as caught:
            pumice.load(copy).encode("stone")
        str(caught.value).encode()
        (copy / name).write_bytes(whole)


def dangling(path: Path) -> None:
    path.symlink_to(path.parent / "gone")


def endless(path: Path) -> None:
    path.symlink_to("/dev/zero")


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir, dangling, endless])
def test_a_tokenizer_file_that_cannot_be_read(tmp_path: Path, make: Callable[[Any], None]) -> None:
    """A tokenizer.json that cannot be read must be an error. vocab.txt must not be used in its place, because it might hold other
    tokens."""
    made = folder(tmp_path)
    (made / "tokenizer.json").unlink()
    make(made / "tokenizer.json")
    with pytest.raises(OSError, match="tokenizer.json: is (not a regular file|a link to )"):
        pumice.load(made)


@pytest.mark.parametrize(("given", "kind"), [("", ValueError), ("/dev/zero", pumice.TokenizerError), ("/no/such", FileNotFoundError)])
def test_a_tokenizer_that_is_none(given: str, kind: type[Exception]) -> None:
    with pytest.raises(kind, match="tokenizer="):
        pumice.load(samples.minilm(), tokenizer=given)


@pytest.mark.parametrize(
    "wrong",
    [
        {"tokenizer": "/no/such"}, {"tokenizer": 5}, {"tokenizer": "/dev/zero"}, {"chat_template": "no such file"},
        {"chat_template": "{% if"}, {"response_template": "/no/such.json"}, {"response_template": {"x": 1}}, {"lora": "/no/such"},
        {"mtp": "/no/such"}, {"task": "no such"}, {"n_ctx": 2**30}, {"kv_budget": 1}, {"gpu_layers": 3, "device": "cpu"},
        {"device": "vulkan:99"}, {"pooling": "no"}, {"quantize": "no"}, {"prompts": {"a": 1}}, {"expert_cache": 1},
    ],
)  # fmt: skip
def test_options_are_checked_before_the_weights_are_read(wrong: dict[str, Any]) -> None:
    seen: list[int] = []
    with pytest.raises((pumice.PumiceError, OSError, ValueError, TypeError, MemoryError)):
        pumice.load(samples.smollm2(), **{"device": "cpu", **wrong}, progress=lambda done, total: seen.append(done))
    assert max(seen, default=0) == 0


def test_a_template_of_special_tokens_that_are_not_defined(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    made = folder(tmp_path)
    file = made / "tokenizer.json"
    spec = json.loads(file.read_text())
    file.unlink()
    del spec["post_processor"]["special_tokens"]["[SEP]"]
    file.write_text(json.dumps(spec))
    with pytest.raises(pumice.TokenizerError, match=r"template uses '\[SEP\]', which its special_tokens lack"):
        pumice.load(made)
    assert capfd.readouterr().err == ""


def test_a_bias_against_every_token(smollm2: pumice.Model) -> None:
    vocab = smollm2.info["vocab_size"]
    for temperature in (0, 1.0):
        with pytest.raises(ValueError, match="logit_bias forbids every token: there is nothing left to draw"):
            smollm2.generate("Stones", max_new_tokens=2, temperature=temperature, logit_bias=dict.fromkeys(range(vocab), -np.inf))
        bias = dict.fromkeys(range(vocab), -np.inf)
        del bias[777]
        assert smollm2.generate("Stones", max_new_tokens=3, temperature=temperature, logit_bias=bias).ids.tolist() == [777] * 3


LIMITED = """
import numpy, tokenizers  # numpy has an OpenBLAS of its own
import resource, sys
import samples, pumice
def limit(mib):
    used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + (mib << 20), -1))
if sys.argv[2] == "before":
    limit(int(sys.argv[1]))
try:
    model = pumice.load(samples.minilm(), threads=2)
    if sys.argv[2] == "after":
        limit(int(sys.argv[1]))
    print(model.encode(["a b c " * 40] * 300).shape)
except MemoryError as error:
    print("MemoryError", error)
"""


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("mib", [60, 100, 200, 300, 500])
def test_little_address_space(mib: int, when: str) -> None:
    """With little address space, a call must give a result or raise MemoryError. Without pumice's own checks, the tokenizers package would
    abort the process, and OpenBLAS would retry its allocation for ever."""
    path = os.pathsep.join(filter(None, [str(ROOT / "examples"), os.environ.get("PYTHONPATH", "")]))
    command = [sys.executable, "-c", LIMITED, str(mib), when]
    ended = subprocess.run(command, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, timeout=60)
    assert ended.returncode == 0, (ended.returncode, ended.stderr[-1000:])
    assert ended.stdout.startswith(("(300, 384)", "MemoryError")), ended.stdout


SIDE_FILES = [
    "config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "generation_config.json",
    "modules.json",
    "1_Pooling/config.json",
    "sentence_bert_config.json",
    "config_sentence_transformers.json",
    "model.safetensors",
]


@pytest.mark.parametrize("name", SIDE_FILES)
def test_a_side_file_that_links_to_itself(tmp_path: Path, name: str) -> None:
    made = folder(tmp_path)
    (made / name).unlink(missing_ok=True)
    (made / name).symlink_to(Path(name).name)
    with pytest.raises((pumice.PumiceError, OSError), match=re.escape(name)) as caught:
        pumice.load(made, device="cpu")
    assert not str(caught.value).startswith("[Errno")
    if name != "1_Pooling/config.json":  # this file is reported as missing, because modules.json names it
        assert re.search("is a link .*(to itself|back to itself)", str(caught.value))


def test_a_chat_template_that_links_to_itself(tmp_path: Path) -> None:
    (tmp_path / "loop.jinja").symlink_to("loop.jinja")
    with pytest.raises(pumice.ChatTemplateError, match=r"loop\.jinja"):
        pumice.load(samples.smollm2(), device="cpu", chat_template=tmp_path / "loop.jinja")
    with pytest.raises((pumice.TokenizerError, FileNotFoundError), match=r"loop\.jinja"):
        pumice.load(samples.minilm(), device="cpu", tokenizer=tmp_path / "loop.jinja")
