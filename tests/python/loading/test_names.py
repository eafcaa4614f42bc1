"""Names in a model's files and names of outputs: what is read is a plain file of the model's own folder or of the hub's cache, and what is
replaced is a plain file. Nothing waits for a pipe."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import module_models
import numpy as np
import pytest
import random_models
import small_files

import pumice
from pumice import _core
from pumice.chats import chat_templates
from pumice.common.vector_file import VectorFile

pytestmark = pytest.mark.timeout(60)  # a read or a write that waits for a pipe
QUIET: dict[str, Any] = {"device": "cpu", "progress": False}
TYPED = (pumice.PumiceError, OSError, ValueError)


def pipe(path: Path) -> None:
    os.mkfifo(path)


def unix_socket(path: Path) -> None:
    made = socket.socket(socket.AF_UNIX)
    before = os.getcwd()
    os.chdir(path.parent)  # the name of a socket has at most 107 bytes
    try:
        made.bind(path.name)
    finally:
        os.chdir(before)
        made.close()


def device(path: Path) -> None:
    path.symlink_to("/dev/zero")


def to_a_pipe(path: Path) -> None:
    os.mkfifo(path.with_name("a pipe"))
    path.symlink_to("a pipe")


def outside(path: Path) -> None:
    path.symlink_to("../outside")


SPECIAL: list[Callable[[Path], None]] = [pipe, unix_socket, Path.mkdir, device, to_a_pipe]


@pytest.fixture(name="encoder")
def _encoder(tmp_path: Path) -> Path:
    (tmp_path / "outside").write_text("{}")
    return small_files.encoder_folder(tmp_path)


def vectors(folder: Path) -> np.ndarray[Any, Any]:
    with pumice.load(folder, **QUIET) as model:
        return model.encode(["w1 w2", "w3"])


# ---------------------------------------------------------------- shards
def shards(folder: Path, second: str) -> Path:
    """Divides the weights of a folder. The index has the name `second` for the second shard, which really is called b.safetensors."""
    tensors = random_models.tensors("bert_classifier")
    names = list(tensors)
    parts = {"a.safetensors": names[:9], second: names[9:]}
    (folder / "model.safetensors").unlink()
    for file, each in zip(("a.safetensors", "b.safetensors"), parts.values(), strict=True):
        random_models.write_safetensors(folder / file, {name: tensors[name] for name in each})
    weight_map = {name: file for file, each in parts.items() for name in each}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    return folder


def test_plain_names_and_hard_links_of_shards_load(encoder: Path) -> None:
    expected = vectors(encoder)
    shards(encoder, "b.safetensors")
    assert np.array_equal(vectors(encoder), expected)
    # A hard link is a plain file with another name: `cp -l` and caches make such folders. An index cannot make one.
    os.rename(encoder / "b.safetensors", encoder.parent / "b")
    os.link(encoder.parent / "b", encoder / "b.safetensors")
    assert np.array_equal(vectors(encoder), expected)


@pytest.mark.parametrize(
    "name",
    [
        "$HERE/b.safetensors", "../$NAME/b.safetensors", "./b.safetensors", "x/../b.safetensors", "b.safetensors\0",
        "b.safetensors\0.safetensors", "", ".", "..", "/dev/zero", "/dev/zero\0.safetensors", "../../../../../../dev/zero",
        "\\\\server\\b.safetensors", "C:\\b.safetensors", "b.bin", "config.json", "b.safetensors/", "file:///b.safetensors",
        "https://example.org/b.safetensors", "n" * 300 + ".safetensors", "~/b.safetensors", "$HOME/b.safetensors", "b.safetensors\n",
        "-b.safetensors",
    ],
)  # fmt: skip
def test_odd_names_of_shards_are_refused(name: str, encoder: Path) -> None:
    shards(encoder, name.replace("$HERE", str(encoder)).replace("$NAME", encoder.name))
    with pytest.raises((pumice.ModelFormatError, OSError), match=r"safetensors|weight_map") as caught:
        pumice.load(encoder, **QUIET)
    assert "\0" not in str(caught.value) and encoder.name in str(caught.value)


@pytest.mark.parametrize("make", [*SPECIAL, outside])
def test_shards_that_are_no_plain_files(make: Callable[[Path], None], encoder: Path) -> None:
    shards(encoder, "b.safetensors")
    (encoder / "b.safetensors").unlink()
    make(encoder / "b.safetensors")
    with pytest.raises((pumice.PumiceError, OSError), match=r"b\.safetensors"):
        pumice.load(encoder, **QUIET)


# ---------------------------------------------------------------- side files
FILES = [
    "config.json", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "generation_config.json", "modules.json",
    "1_Pooling/config.json", "sentence_bert_config.json", "config_sentence_transformers.json", "model.safetensors",
]  # fmt: skip


@pytest.mark.parametrize("make", SPECIAL)
def test_side_files_that_are_no_plain_files(make: Callable[[Path], None], encoder: Path) -> None:
    """Each is an error that names the file; none is taken for missing, because then another model would run."""
    for name in FILES:
        folder = encoder.with_name(f"copy of {name.replace('/', ' ')}")
        shutil.copytree(encoder, folder)
        (folder / name).unlink(missing_ok=True)
        make(folder / name)
        with pytest.raises(TYPED, match=name.rpartition("/")[2].replace(".", r"\.")):
            pumice.load(folder, **QUIET)


def refused(folder: Path) -> None:
    rule = "links may only lead to files in the same folder or below it, or in the hub cache's own blobs folder"
    with pytest.raises(OSError, match=rule):
        pumice.load(folder, **QUIET)


def test_links_out_of_the_folder(encoder: Path) -> None:
    """Each file that a model needs is refused if it is a link to another folder, although a plain file that would do is there. A link to a
    file of the same folder is taken."""
    for name in ("special_tokens_map.json", "generation_config.json"):
        (encoder / name).write_text("{}")
    expected = vectors(encoder)
    (encoder.parent / "elsewhere").mkdir()
    for name in FILES:
        folder = encoder.with_name(f"copy of {name.replace('/', ' ')}")
        shutil.copytree(encoder, folder)
        file, kept = folder / name, encoder.parent / "elsewhere" / name.replace("/", " ")
        shutil.move(file, kept)
        file.symlink_to(kept)
        refused(folder)
        file.unlink()
        shutil.copy(kept, file.with_name("kept"))
        file.symlink_to("kept")
        assert np.array_equal(vectors(folder), expected), name


def test_links_of_modules(encoder: Path, tmp_path: Path) -> None:
    """The weights of a module keep to the same rule, and its folder may not be a link that leads out of the model's."""
    modules = json.loads((encoder / "modules.json").read_text())
    modules.append({"idx": len(modules), "name": "d", "path": "2_Dense", "type": "sentence_transformers.models.Dense"})
    (encoder / "modules.json").write_text(json.dumps(modules))
    dense = encoder / "2_Dense"
    dense.mkdir()
    width = json.loads((encoder / "config.json").read_text())["hidden_size"]
    activation = "torch.nn.modules.linear.Identity"
    config = {"in_features": width, "out_features": 4, "bias": False, "activation_function": activation}
    (dense / "config.json").write_text(json.dumps(config))
    random_models.write_safetensors(dense / "model.safetensors", {"linear.weight": np.ones((4, width), np.float32)})
    assert vectors(encoder).shape == (2, 4)
    shutil.move(dense / "model.safetensors", tmp_path / "weights")
    (dense / "model.safetensors").symlink_to(tmp_path / "weights")
    refused(encoder)
    (dense / "model.safetensors").unlink()
    shutil.copy(tmp_path / "weights", dense / "model.safetensors")
    shutil.move(dense, tmp_path / "dense")
    dense.symlink_to(tmp_path / "dense")
    with pytest.raises(OSError, match=r"2_Dense is a link that leads out of the model's folder"):
        pumice.load(encoder, **QUIET)


def test_links_of_texts_that_a_decoder_reads(tmp_path: Path) -> None:
    folder = random_models.make_folder("llama32", tmp_path)
    (tmp_path / "elsewhere").write_text("{{ messages[0].content }}")
    for name in ("chat_template.jinja", "additional_chat_templates/tool_use.jinja"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).symlink_to(tmp_path / "elsewhere")
        with pytest.raises(OSError, match="links may only lead"):
            chat_templates.find_template(_core.open_file(str(folder)))
        (folder / name).unlink()
    # A file that the user names may be a link that leads anywhere.
    (tmp_path / "link.jinja").symlink_to(tmp_path / "elsewhere")
    found = chat_templates.find_template(_core.open_file(str(folder)), str(tmp_path / "link.jinja"))
    assert found is not None and found.text == "{{ messages[0].content }}"


@pytest.mark.filterwarnings("ignore::pumice.IncompleteModelWarning")  # the tokenizer has fewer words than the model has rows
def test_a_tokenizer_that_the_user_names_may_be_a_link(encoder: Path, tmp_path: Path) -> None:
    expected = vectors(encoder)
    shutil.move(encoder / "tokenizer.json", tmp_path / "kept")
    (tmp_path / "given").mkdir()
    link = tmp_path / "given" / "tokenizer.json"
    link.symlink_to(tmp_path / "kept")
    with pumice.load(encoder, tokenizer=link, **QUIET) as model:
        assert np.array_equal(model.encode(["w1 w2", "w3"]), expected)
    with pytest.raises(OSError, match="links may only lead"):  # a file of a folder that the user names keeps to the rule
        pumice.load(encoder, tokenizer=link.parent, **QUIET)


@pytest.mark.parametrize("path", ["/etc", "../outside", "..", "1_Pooling/../../x", "1_Pooling\0", "/dev", "~", "1_Pooling/config.json"])
def test_odd_paths_of_modules(path: str, encoder: Path) -> None:
    modules = json.loads((encoder / "modules.json").read_text())
    modules[1]["path"] = path
    (encoder / "modules.json").write_text(json.dumps(modules))
    with pytest.raises(TYPED, match=r"modules\.json|Pooling"):
        pumice.load(encoder, **QUIET)


def test_the_hubs_cache_loads(encoder: Path) -> None:
    """Each file of a snapshot is a link to ../../blobs, and in a subfolder to ../../../blobs."""
    expected = vectors(encoder)
    hub = encoder.with_name("hub") / "models--x--y"
    snapshot = hub / "snapshots" / "c0ffee"
    (hub / "blobs").mkdir(parents=True)
    for number, file in enumerate(sorted(path for path in encoder.rglob("*") if path.is_file())):
        shutil.move(file, hub / "blobs" / f"{number:040x}")
        link = snapshot / file.relative_to(encoder)
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(os.path.relpath(hub / "blobs" / f"{number:040x}", link.parent))
    assert np.array_equal(vectors(snapshot), expected)


def test_a_link_to_a_lone_file(encoder: Path, tmp_path: Path) -> None:
    """The user names the link, so it is followed where it leads. The files beside the weights are looked for beside what it leads to."""
    expected = vectors(encoder)
    links = tmp_path / "links"
    links.mkdir()
    for name in ("current", "model.safetensors"):
        (links / name).symlink_to(encoder / "model.safetensors")
        (links / f"to {name}").symlink_to(name)
        assert np.array_equal(vectors(links / name), expected)
        assert np.array_equal(vectors(links / f"to {name}"), expected)
        assert pumice.plan(links / name, device="cpu")
    weights = encoder / "model.safetensors"  # in a folder of its own, the folder of the link is the model's
    shutil.move(weights, tmp_path / "blob.safetensors")
    weights.symlink_to(tmp_path / "blob.safetensors")
    assert np.array_equal(vectors(weights), expected)
    with pytest.raises(pumice.ModelFormatError, match=f"^{re.escape(str(tmp_path))}: is not a model: it has no config.json"):
        vectors(links / "current")


# ---------------------------------------------------------------- outputs
SCRATCH = Path()  # what the writers read is made here


def save_prefix(path: Path) -> None:
    with pumice.load(random_models.make_folder("llama32", SCRATCH), n_ctx=64, **QUIET) as model:
        model.save_prefix(path, list(range(20)))


def convert(path: Path) -> None:
    folder = random_models.make_folder("llama32", SCRATCH)
    pumice.convert(folder, path, to="f16", tokenizer="none", force=True, progress=False)


def quantize(path: Path) -> None:
    source = SCRATCH / "source.gguf"
    source.write_bytes(small_files.gguf_file(small_files.gguf_keys("gpt2")))
    pumice.quantize(source, path, to="q8_0", force=True, progress=False)


def save_vectors(path: Path) -> None:
    VectorFile(str(path)).save(np.ones((3, 2), np.float32))


WRITERS = [save_prefix, convert, quantize, save_vectors]


@pytest.fixture(name="out")
def _out(tmp_path: Path) -> Path:
    global SCRATCH
    SCRATCH = tmp_path
    (tmp_path / "out").mkdir()
    return tmp_path / "out"


@pytest.mark.parametrize("write", WRITERS)
def test_outputs_replace_plain_files_alone(write: Callable[[Path], None], out: Path) -> None:
    makers = [unix_socket, Path.mkdir]
    if write is not save_vectors:  # writes the bytes to pipes and devices, as the command line promises
        makers += [pipe, device, to_a_pipe]
    for make in makers:
        target = out / f"{make.__name__}.gguf"
        make(target)
        kind = target.lstat().st_mode
        with pytest.raises(TYPED, match=target.name):
            write(target)
        assert target.lstat().st_mode == kind
    names = {path.name for path in out.iterdir()}
    for name in ("", ".", "..", "a\0b", "no/such/file.gguf"):
        with pytest.raises(TYPED):
            write(Path(name) if name in ("", ".", "..") else out / name)
    assert {path.name for path in out.iterdir()} == names


@pytest.mark.parametrize("write", WRITERS)
def test_outputs_over_links(write: Callable[[Path], None], out: Path) -> None:
    """A file with a second name is replaced under the one that is named, and keeps its bytes under the other."""
    (out / "kept").write_bytes(b"precious")
    os.link(out / "kept", out / "hard.gguf")
    write(out / "hard.gguf")
    assert (out / "kept").read_bytes() == b"precious" and (out / "hard.gguf").stat().st_size > 20
    assert sorted(path.name for path in out.iterdir()) == ["hard.gguf", "kept"]


def test_a_link_to_nothing_is_not_a_missing_file(encoder: Path, tmp_path: Path) -> None:
    pooling = encoder / "1_Pooling" / "config.json"
    pooling.unlink()
    pooling.symlink_to("gone")
    with pytest.raises(OSError, match=r"1_Pooling/config.json: is a link to a file that does not exist"):
        pumice.load(encoder, **QUIET)
    adapter = tmp_path / "adapter"
    adapter.mkdir()
    (adapter / "adapter_config.json").symlink_to("gone")
    with pytest.raises(OSError, match=r"adapter_config.json: is a link to a file that does not exist"):
        pumice.load(random_models.make_folder("llama32", tmp_path), lora=adapter, **QUIET)


def test_a_file_in_place_of_a_folder_of_templates(tmp_path: Path) -> None:
    folder = random_models.make_folder("llama32", tmp_path)
    (folder / "additional_chat_templates").write_text("")
    with pumice.load(folder, **QUIET) as model, pytest.raises(OSError, match="additional_chat_templates is not a folder"):
        model.chat("w1")


def test_the_folder_of_a_user_that_does_not_exist() -> None:
    with pytest.raises(FileNotFoundError, match="^source='~no-such-user-here/m': this system has no such user"):
        pumice.load("~no-such-user-here/m")


def test_a_path_with_half_of_a_surrogate_pair() -> None:
    with pytest.raises(ValueError, match="^source='.ud800' is not a path: it has half of a surrogate pair"):
        pumice.load("\ud800")


def linked(real: Path, folder: Path) -> Path:
    """Makes a folder whose entries are links to those of `real`, as `ln -s real/* folder` does. Returns it."""
    folder.mkdir()
    for entry in real.iterdir():
        (folder / entry.name).symlink_to(entry)
    return folder


def test_links_of_folders_that_are_trusted(tmp_path: Path) -> None:
    """Nix, Bazel and `ln -s` make folders of links. They are read if the user says so, also the folders of modules."""
    real = module_models.make_folder("dense", tmp_path / "store")
    with pumice.load(real, **QUIET) as model:
        wanted = model.encode("one two")
    folder = linked(real, tmp_path / "links")
    for call in (pumice.load, pumice.plan):
        with pytest.raises(OSError, match=r"is a link .*load\(follow_links=True\)"):
            call(folder, device="cpu")
    assert pumice.plan(folder, device="cpu", follow_links=True).rows
    with pumice.load(folder, follow_links=True, **QUIET) as model:
        np.testing.assert_array_equal(model.encode("one two"), wanted)
    for module in [entry for entry in folder.iterdir() if entry.is_dir()]:  # real folders of modules, in which files are links
        target = module.resolve()
        module.unlink()
        linked(target, module)
    with pumice.load(folder, follow_links=True, **QUIET) as model:
        np.testing.assert_array_equal(model.encode("one two"), wanted)
    with pytest.raises(TypeError, match="follow_links"):
        pumice.load(folder, follow_links=1, **QUIET)


def test_links_into_the_tree_of_a_folder_are_read(tmp_path: Path) -> None:
    """Kubernetes mounts files as links by way of ..data, a link to a folder beside them."""
    made = module_models.make_folder("dense", tmp_path / "made")
    folder = tmp_path / "mounted"
    folder.mkdir()
    real = made.rename(folder / "..2026_11_30")
    (folder / "..data").symlink_to(real.name, target_is_directory=True)
    for entry in real.iterdir():
        (folder / entry.name).symlink_to(Path("..data") / entry.name)
    with pumice.load(folder, **QUIET) as model:
        assert model.encode("one two").shape == (16,)
