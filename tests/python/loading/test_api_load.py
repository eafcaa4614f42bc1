"""load(), plan() and the class Model: sources, options, logs, progress, hub ids, pickling, closing."""

from __future__ import annotations

import contextlib
import importlib
import json
import logging
import os
import pickle
import pickletools
import signal
import subprocess
import sys
import threading
import types
from pathlib import Path
from typing import Any

import pytest
from fake_core import CONTEXT, fake, fake_core, fake_model, installed, write_model  # noqa: F401
from paths import ROOT, SUPPORT
from patience import PATIENCE, Watch, report


@pytest.mark.alone
def test_import_is_cheap_and_brings_nothing_heavy() -> None:
    """Checks what `import pumice` imports and how much processor time it takes, with an empty module in place of the engine."""
    code = (
        "import sys, types, time; sys.path[:0] = sys.argv[1:]; core = types.ModuleType('pumice._core')\n"
        "core.set_error_types = lambda types: None; core.__version__ = '0'; sys.modules['pumice._core'] = core\n"
        "start = time.process_time(); import pumice; took = time.process_time() - start\n"
        "heavy = {'numpy', 'tokenizers', 'jinja2', 'tqdm', 'huggingface_hub', 'torch'} & set(sys.modules)\n"
        "assert not heavy, heavy; assert 'load' in dir(pumice); print(took)"
    )
    package = str(ROOT / "python")
    runs = [subprocess.run([sys.executable, "-c", code, package], capture_output=True, text=True, check=True) for _ in range(3)]
    assert min(float(done.stdout) for done in runs) < 0.15


def test_lazy_names_exist(pumice: Any) -> None:
    for name in pumice.__all__:
        assert getattr(pumice, name) is not None
    assert callable(pumice.plan)
    import importlib

    importlib.import_module("pumice.loading.placement")
    assert callable(pumice.plan)
    assert callable(pumice.devices)
    with pytest.raises(AttributeError, match="no attribute 'lod'"):
        _ = pumice.lod


def test_options_reach_the_engine(pumice: Any, tmp_path: Path) -> None:
    path = write_model(tmp_path / "m.gguf")
    with pumice.load(path) as model:
        options = vars(model._core.options)
        assert options == {
            "device": "auto",
            "gpu_layers": None,
            "gpu_layers_each": [],
            "gpu_experts": None,
            "quantize": None,
            "n_ctx": None,
            "kv_dtype": "f16",
            "kv_budget": None,
            "expert_cache": None,
            "compute": "auto",
            "threads": None,
            "pooling": [],
            "modules": [],
            "mlm_head": "maybe",
            "score_ids": [],
            "task": None,
            "lora": [],
            "sketch": True,
            "mtp": True,
            "allow_unread": False,
            "assistant": None,
        }
    given: dict[str, Any] = {"device": "cpu", "gpu_layers": "all", "gpu_experts": 3, "quantize": "q8_0", "n_ctx": 99, "kv_dtype": "q8_0"}
    given |= {"kv_budget": 1 << 20, "expert_cache": 1 << 21, "threads": 3, "sketch": False, "mtp": False, "unread_tensors": "warn"}
    with pumice.load(path, **given, compute="float32", pooling="last") as model:
        options = vars(model._core.options)
        behind: dict[str, Any] = {
            "gpu_layers_each": [],
            "modules": [],
            "mlm_head": "maybe",
            "score_ids": [],
            "task": None,
            "lora": [],
            "assistant": None,
        }
        given["allow_unread"] = given.pop("unread_tensors") == "warn"
        assert options == {**given, "gpu_layers": -1, "compute": "float32", "pooling": ["last"], **behind}
    with pumice.load(path, compute="float32") as model:  # makes keys and values float32, too, unless kv_dtype is given
        assert model._core.options.kv_dtype == "f32"
    with pumice.load(path, compute="float32", kv_dtype="f16") as model:
        assert model._core.options.kv_dtype == "f16"


@pytest.mark.parametrize(
    ("bad", "kind", "match"),
    [
        ({"device": "cpu:0"}, ValueError, "device='cpu:0' is not one of 'auto', 'cpu', 'vulkan'"),
        ({"device": "vulcan"}, ValueError, "did you mean 'vulkan'"),
        ({"device": 0}, TypeError, "device must be a string"),
        ({"unread_tensors": "no"}, ValueError, "unread_tensors='no' is not one of 'error', 'warn'"),
        ({"sketch": 1}, TypeError, "sketch must be True or False, not 1"),
        ({"gpu_layers": -1}, ValueError, 'gpu_layers=-1 is out of range: for all layers it is "all"'),
        ({"gpu_layers": -2}, ValueError, "gpu_layers=-2 is out of range: it must be at least 0"),
        ({"device": "cuda:0"}, ValueError, 'device=\'cuda:0\': GPUs are "vulkan", "vulkan:0", .* here; pumice.devices'),
        ({"device": "GPU"}, ValueError, "device='GPU': GPUs are \"vulkan\""),
        ({"gpu_layers": True}, TypeError, "gpu_layers=True is neither 'auto' nor 'all' nor a whole number"),
        ({"kv_budget": "2 GiB"}, ValueError, "kv_budget='2 GiB' is neither 'auto' nor a whole number"),
        ({"threads": 1025}, ValueError, "threads=1025 is out of range: it must be at least 1 and at most 1024"),
        ({"gpu_layers": "al"}, ValueError, "did you mean 'all'"),
        ({"quantize": "q4_k_m"}, ValueError, "did you mean 'q4_k'"),
        ({"quantize": "f16"}, ValueError, "quantize='f16' is not one of None, "),
        ({"n_ctx": 0}, ValueError, "n_ctx=0"),
        ({"kv_dtype": "f8"}, ValueError, "kv_dtype='f8'"),
        ({"kv_budget": "1 GiB"}, ValueError, "kv_budget"),
        ({"compute": "f32"}, ValueError, "compute='f32' is not one of 'auto', 'float32'"),
        ({"threads": 1.5}, TypeError, "threads must be an integer"),
        ({"pooling": "avg"}, ValueError, "pooling='avg'"),
        ({"prompts": ["query"]}, TypeError, "prompts must be a dict"),
        ({"prompts": {"query": 3}}, TypeError, r"prompts\['query'\] is a int"),
        ({"progress": 7}, TypeError, "progress must be"),
        ({"n_gpu_layers": 3}, TypeError, r"load\(\) has no argument 'n_gpu_layers'; here it is gpu_layers"),
        ({"quantise": "q8_0"}, TypeError, "did you mean 'quantize'"),
    ],
)
def test_wrong_options(pumice: Any, tmp_path: Path, bad: dict[str, Any], kind: type[Exception], match: str) -> None:
    path = write_model(tmp_path / "m.gguf")
    for call in (pumice.load, pumice.plan):
        with pytest.raises(kind, match=match.replace("load", call.__name__)):
            call(path, **bad)


def test_a_named_device_never_falls_back(pumice: Any, tmp_path: Path) -> None:
    with pytest.raises(pumice.DeviceNotFoundError, match="no Vulkan"):
        pumice.load(write_model(tmp_path / "m.gguf"), device="vulkan:1")


def test_no_such_file(pumice: Any, tmp_path: Path) -> None:
    write_model(tmp_path / "smollm2-q4.gguf")
    with pytest.raises(FileNotFoundError, match=r"^'https://example.org/y.gguf' is a URL, and none is read"):
        pumice.load("https://example.org/y.gguf")
    with pytest.raises(FileNotFoundError, match=r"No such file or folder: .*did you mean 'smollm2-q4.gguf'"):
        pumice.load(tmp_path / "smollm-q4.gguf")
    with pytest.raises(FileNotFoundError, match="models in that folder: smollm2-q4.gguf"):
        pumice.load(str(tmp_path / "xyzzy"))
    with pytest.raises(FileNotFoundError, match="nor its folder"):
        pumice.load("/no/such/folder/model.gguf")
    for wrong, kind in ((3, TypeError), (b"m.gguf", TypeError), ("", ValueError), ("a\0b", ValueError)):
        with pytest.raises(kind):
            pumice.load(wrong)


def test_model_format_error_has_its_place(pumice: Any, tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_text("no json")
    with pytest.raises(pumice.ModelFormatError, match="is no model") as caught:
        pumice.load(path)
    assert (caught.value.file, caught.value.field, caught.value.offset) == (str(path), "magic", 0)


def test_one_info_line(pumice: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="pumice"):
        pumice.load(write_model(tmp_path / "m.gguf")).close()
    assert len(caplog.records) == 1
    line = caplog.records[0].getMessage()
    assert line.startswith(
        "Loaded m.gguf: toy, 2.1 M parameters, q4_k, f32, 4.0 KiB on cpu (avx2, 2 threads), 4 layers, context 64 of the model's 128"
    )
    assert "KV budget 1.0 MiB" in line
    assert line.endswith("; context capped by memory")


def test_silence(pumice: Any, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with pumice.load(write_model(tmp_path / "m.gguf")) as model:
        model.encode(["a"] * 100)
        model.generate("abc")
    assert capfd.readouterr() == ("", "")


def test_warnings_of_the_log_do_not_reach_stderr_by_themselves() -> None:
    code = (
        "import sys; sys.path[:0] = sys.argv[1:]; import fake_core, logging\n"
        "with fake_core.installed() as pumice: pumice.load; logging.getLogger('pumice').warning('unseen')"
    )
    done = subprocess.run([sys.executable, "-c", code, str(SUPPORT)], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("", "")


def test_progress(pumice: Any, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = write_model(tmp_path / "m.gguf")
    seen: list[tuple[int, int]] = []
    pumice.load(path, progress=lambda done, total: seen.append((done, total))).close()
    assert seen == [(2048, 4096), (4096, 4096)]
    assert capfd.readouterr().err == ""
    pumice.load(path, progress=True).close()
    err = capfd.readouterr().err
    assert "m.gguf" in err
    assert "4.00k/4.00k" in err


class Broken:
    """Standard error in which nothing works."""

    def write(self, _: str) -> None:
        raise ZeroDivisionError

    flush = isatty = write


@pytest.mark.parametrize("stream", ["none", "closed", "full", "broken"])
def test_work_goes_on_where_no_bar_can_be_shown(pumice: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stream: str) -> None:
    path = write_model(tmp_path / "m.gguf")
    progress = importlib.import_module("pumice.common.progress")
    with open(os.devnull, "w") as closed:
        pass
    streams = {"none": None, "closed": closed, "full": open("/dev/full", "w"), "broken": Broken()}  # noqa: SIM115
    monkeypatch.setattr(sys, "stderr", streams[stream])

    def with_bars() -> None:
        with pumice.load(path, progress=True) as model:
            rows = model.encode(["a", "b"], show_progress_bar=True)
            assert len(model.search(rows, rows, show_progress_bar=True)) == 2
        bar = progress.LateBar(None, "m")  # the default
        bar._started -= 2
        bar.update(1, 10)
        bar.close()

    with_bars()
    # An error in a bar would leave tqdm's lock taken, and the bars of other threads would wait for it.
    found: list[str] = []
    thread = threading.Thread(target=lambda: (with_bars(), found.append("done")), daemon=True)
    thread.start()
    thread.join(PATIENCE)
    assert found == ["done"]

    def own(done: int, total: int) -> None:
        raise OSError("of the caller")

    with pytest.raises(OSError, match="of the caller"):
        pumice.load(path, progress=own)


def test_a_bar_appears_after_a_second(pumice: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    progress = importlib.import_module("pumice.common.progress")

    made: list[Any] = []
    monkeypatch.setattr("tqdm.auto.tqdm", lambda **options: made.append(options) or types.SimpleNamespace(n=0, update=int, close=bool))
    bar = progress.LateBar(None, "m")
    bar.update(1, 10)
    assert made == []
    bar._started -= 2
    bar.update(2, 10)
    assert made[0]["total"] == 10
    assert progress.LateBar(False, "m").update is None


def test_tokenizer_errors_come_out_of_load_and_free_the_engine(
    pumice: Any, core: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(file: Any, override: Any) -> Any:
        raise pumice.TokenizerError("no vocabulary")

    monkeypatch.setattr(sys.modules["pumice.tokens.tokenizer_files"], "load_tokenizer", broken)
    with pytest.raises(pumice.TokenizerError, match="no vocabulary"):
        pumice.load(write_model(tmp_path / "m.gguf"))
    assert core.opened[-1].closed


def test_close_and_context_manager(pumice: Any, tmp_path: Path) -> None:
    with pumice.load(write_model(tmp_path / "m.gguf")) as model:
        pass
    assert model._core.closed
    for call in (lambda: model.encode("a"), lambda: model.generate("a"), lambda: model.chat("a"), lambda: model.logits([1])):
        with pytest.raises(ValueError, match=r"This model \(m.gguf\) is closed"):
            call()
    model.close()
    assert "closed" in repr(model)
    assert "closed" in str(model.summary())


def test_pickles_as_its_load_arguments(pumice: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_model(tmp_path / "m.gguf")
    monkeypatch.chdir(tmp_path)
    with pumice.load("m.gguf", n_ctx=32, prompts={"q": "x"}, progress=lambda *_: None) as model:
        data = pickle.dumps(model)
    assert len(data) < 500
    # A pickle names only what docs/python/load.md promises, and no module inside the package, so that version 0.1.0 reads today's pickles.
    said = [argument for _, argument, _ in pickletools.genops(data) if isinstance(argument, str)]
    assert {"pumice", "load", "functools", "partial"} < set(said) and not [name for name in said if name.startswith("pumice.")]
    monkeypatch.chdir("/")
    with pickle.loads(data) as again:
        assert again._core.options.n_ctx == 32
        assert again.info["prompts"] == {"q": "x"}
        assert again.generate("abc").text == "cba"


def test_a_changed_info_does_not_change_the_model(model: Any) -> None:
    before = model.info
    taken = model.info
    taken["tasks"].clear()
    taken.clear()
    assert model.info == before and model.info is not before
    assert model.generate("abc").text == "cba"


def test_info(model: Any) -> None:
    assert model.info["architecture"] == "toy"
    assert model.info["n_ctx"] == CONTEXT
    assert model.info["special_tokens"] == {"before": ("<bos>",), "after": ("<eos>",)}
    assert model.info["load_seconds"] > 0
    assert model.memory()["weights"] == 1193
    assert "reused_tokens" in model.cache_stats()


# ---------------------------------------------------------------- interruptible
@pytest.mark.alone
def test_interruptible_wakes_for_signals(pumice: Any) -> None:
    from pumice.common.interruptible import Task, interruptible

    assert interruptible(lambda: 3) == 3
    with pytest.raises(ZeroDivisionError):
        interruptible(lambda: 1 / 0)
    assert Task(threading.current_thread).result() is not threading.main_thread()
    stop, watches = threading.Event(), []

    def interrupt() -> None:
        watches.append(Watch())
        os.kill(os.getpid(), signal.SIGINT)

    threading.Timer(0.1, interrupt).start()
    with pytest.raises(KeyboardInterrupt):
        interruptible(lambda: stop.wait(PATIENCE) or 1 / 0)
    report("Ctrl-C in interruptible()", [watches[0].elapsed()], 0.1)
    stop.set()
    found: list[bool] = []
    outer = threading.Thread(target=lambda: found.append(interruptible(threading.current_thread) is outer))
    outer.start()
    outer.join()
    assert found == [True]  # only the main thread gets signals, so in any other thread the work runs in place


# ---------------------------------------------------------------- hub
def test_choose_files(pumice: Any) -> None:
    from pumice.loading.hub import choose_files

    ggufs = ["m-Q4_K_M.gguf", "m-Q8_0.gguf", "m-Q4_K_S.gguf", "mmproj-f16.gguf", "README.md"]
    assert choose_files(ggufs, "q4_k_m", "o/r") == ["m-Q4_K_M.gguf"]
    assert choose_files(ggufs, "m-Q8_0.gguf", "o/r") == ["m-Q8_0.gguf"]
    with pytest.raises(ValueError, match=r'several GGUF files; name one, as in "o/r:m-Q4_K_M.gguf"'):
        choose_files(ggufs, None, "o/r")
    with pytest.raises(FileNotFoundError, match="no GGUF file called or quantized 'Q5_0'; it has m-Q4_K_M.gguf"):
        choose_files(ggufs, "Q5_0", "o/r")
    with pytest.raises(ValueError, match="could be"):
        choose_files(["a-Q8_0.gguf", "b-Q8_0.gguf"], "Q8_0", "o/r")
    assert choose_files(["only.gguf", "mmproj.gguf"], None, "o/r") == ["only.gguf"]
    split = [f"q8/m-Q8_0-0000{i}-of-00003.gguf" for i in (1, 2, 3)]
    assert choose_files([*split, "m-Q4_0.gguf"], "Q8_0", "o/r") == split
    with pytest.raises(FileNotFoundError, match="00002-of-00003.gguf is missing"):
        choose_files([split[0], split[2]], "Q8_0", "o/r")
    folder = ["config.json", "model.safetensors", "onnx/model.onnx", "pytorch_model.bin", "1_Pooling/config.json", "modules.json", "x.py"]
    assert choose_files(folder, None, "o/r") == ["config.json", "modules.json", "1_Pooling/config.json", "model.safetensors"]
    with pytest.raises(FileNotFoundError, match="neither a GGUF file nor .*pytorch_model.bin.*convert"):
        choose_files(["config.json", "pytorch_model.bin"], None, "o/r")


@pytest.fixture(name="hub")
def _hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Stands in for the huggingface_hub package. The hub has one repository with a model folder and one with GGUF files. The local cache is
    empty at first."""
    remote = {"org/folder": ["config.json", "model.safetensors", "model.bin"], "org/ggufs": ["m-Q4_0.gguf", "m-Q8_0.gguf"]}
    hub: Any = types.ModuleType("huggingface_hub")
    hub.calls, hub.offline, hub.remote = [], False, remote
    absent: set[tuple[str, str]] = set()  # (repository, name) of files that the client remembers as missing on the hub

    class LocalEntryNotFoundError(FileNotFoundError, ValueError):
        pass

    def snapshot_download(repo: str, local_files_only: bool) -> str:
        folder = tmp_path / repo
        if not folder.is_dir():
            raise LocalEntryNotFoundError("not cached")
        return str(folder)

    class HfApi:
        def list_repo_files(self, repo: str) -> list[str]:
            hub.calls.append(("list", repo))
            if hub.offline:
                raise ConnectionError("Name or service not known\nsecond line")
            return remote[repo]

    def hf_hub_download(repo: str, name: str) -> str:
        hub.calls.append(("get", name))
        if hub.offline:
            raise ConnectionError("Name or service not known")
        if name not in remote[repo]:
            absent.add((repo, name))
            raise LocalEntryNotFoundError(name)
        file = tmp_path / repo / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps({"model_type": "toy"}))
        return str(file)

    hub.snapshot_download, hub.HfApi, hub.hf_hub_download = snapshot_download, HfApi, hf_hub_download
    hub.try_to_load_from_cache = lambda repo, name: object() if (repo, name) in absent else None
    monkeypatch.setitem(sys.modules, "huggingface_hub", hub)
    return hub


def test_hub_downloads_once(pumice: Any, hub: Any) -> None:
    for _ in range(2):
        with pumice.load("org/folder") as model:
            assert model.path.is_dir()
        with pumice.load("org/ggufs:q8_0") as model:
            assert model.path.name == "m-Q8_0.gguf"
    assert hub.calls == [
        ("list", "org/folder"),
        ("get", "config.json"),
        ("get", "model.safetensors"),
        ("get", "modules.json"),  # the file does not exist, and the client remembers that
        ("list", "org/ggufs"),
        ("get", "m-Q8_0.gguf"),
    ]


def test_hub_offline(pumice: Any, hub: Any) -> None:
    hub.offline = True
    with pytest.raises(OSError, match=r"org/folder is neither a local path nor in the local cache.*Name or service not known\. Check"):
        pumice.load("org/folder")


def test_hub_is_not_touched_for_local_paths(pumice: Any, hub: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "org2").mkdir()
    write_model(tmp_path / "org2" / "folder")
    monkeypatch.chdir(tmp_path)
    with pumice.load("org2/folder") as model:
        assert model.path == tmp_path / "org2" / "folder"
    with pytest.raises(FileNotFoundError, match="No such file"):
        pumice.load("org2/model.gguf")
    assert hub.calls == []


def test_a_cache_that_was_cut_short_is_not_used(pumice: Any, hub: Any, tmp_path: Path) -> None:
    folder = tmp_path / "org" / "folder"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    (folder / "model-00001-of-00002.safetensors").write_text("")
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": "model-00002-of-00002.safetensors"}}))
    pumice.load("org/folder").close()
    assert ("list", "org/folder") in hub.calls


def test_a_cache_that_another_program_filled(pumice: Any, hub: Any, tmp_path: Path) -> None:
    """If transformers filled the cache, modules.json is missing, and vectors would silently be pooled in another way. load() must warn if
    it is offline, and must otherwise fetch the file."""
    folder = tmp_path / "org" / "folder"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps({"model_type": "toy"}))
    (folder / "model.safetensors").write_text("{}")
    hub.offline = True
    with pytest.warns(pumice.FallbackWarning, match=r"org/folder: what lies in the local cache has no modules\.json.*Name or service"):
        pumice.load("org/folder").close()
    hub.offline, hub.remote["org/folder"] = False, [*hub.remote["org/folder"], "modules.json", "1_Pooling/config.json"]
    with contextlib.suppress(pumice.PumiceError):  # the files of this hub are not valid
        pumice.load("org/folder")
    assert ("get", "1_Pooling/config.json") in hub.calls and (folder / "modules.json").is_file()


def test_a_cache_without_the_folder_of_a_module(pumice: Any, hub: Any, tmp_path: Path) -> None:
    folder = tmp_path / "org" / "folder"
    folder.mkdir(parents=True)
    for name in ("config.json", "model.safetensors"):
        (folder / name).write_text(json.dumps({"model_type": "toy"}))
    (folder / "modules.json").write_text(json.dumps([{"type": "Transformer", "path": ""}, {"type": "Pooling", "path": "1_Pooling"}]))
    with contextlib.suppress(pumice.PumiceError):
        pumice.load("org/folder")
    assert ("list", "org/folder") in hub.calls


def test_a_cache_without_the_empty_folder_of_normalize(pumice: Any, hub: Any, tmp_path: Path) -> None:
    """Normalize has no files, and git keeps no empty folders, so most repositories of sentence-transformers lack its folder."""
    folder = tmp_path / "org" / "folder"
    (folder / "1_Pooling").mkdir(parents=True)
    for name in ("config.json", "model.safetensors", "1_Pooling/config.json"):
        (folder / name).write_text(json.dumps({"model_type": "toy"}))
    kinds = {"": "Transformer", "1_Pooling": "Pooling", "2_Normalize": "Normalize"}
    modules = [{"type": f"sentence_transformers.models.{kind}", "path": path} for path, kind in kinds.items()]
    (folder / "modules.json").write_text(json.dumps(modules))
    with contextlib.suppress(pumice.PumiceError):
        pumice.load("org/folder")
    assert ("list", "org/folder") not in hub.calls


def test_without_the_hub_package(pumice: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(ImportError, match="pip install huggingface_hub"):
        pumice.load("org/name")


def test_fakes_leave_no_trace() -> None:
    before = {name for name in sys.modules if name.startswith("pumice")}
    with installed():
        pass
    assert {name for name in sys.modules if name.startswith("pumice")} == before
