"""A small stand-in for the compiled engine, its tokenizer and its chat templates: a toy model in numpy whose tokens are bytes.

It behaves as pumice/_core.pyi says, so that the Python side can be tested alone. The fixture fake() imports a fresh copy of the package on
top of it, and afterwards restores the modules that were imported before."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import json
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from paths import ROOT

from pumice._core import GenerateParams, read_file  # the real ones: settings with their ranges, and the rule for links

BOS, EOS, VOCAB, HIDDEN = 256, 257, 258, 8
CONTEXT = 64


# ---------------------------------------------------------------- tokenizer and template
class Batch:
    def __init__(self, rows: list[list[int]], lengths: list[int], types: list[list[int]] | None = None) -> None:
        self.ids = np.array([i for row in rows for i in row], np.int32)
        self.offsets = np.cumsum([0, *map(len, rows)]).astype(np.int64)
        self.types = None if types is None else np.array([i for row in types for i in row], np.int32)
        self.lengths_before_cut = np.array(lengths, np.int64)


class DecodeStream:
    def __init__(self) -> None:
        self.held = b""

    def step(self, ids: list[int]) -> str:
        self.held += bytes(i for i in ids if i < 256)
        for end in range(len(self.held), max(len(self.held) - 4, -1), -1):
            try:
                text = self.held[:end].decode()
            except UnicodeDecodeError:
                continue
            self.held = self.held[end:]
            return text
        return ""

    @property
    def pending(self) -> bool:
        return bool(self.held)

    def flush(self) -> str:
        text, self.held = self.held.decode(errors="replace"), b""
        return text


class Tokenizer:
    shared_copy = types.SimpleNamespace(kind="bytes")
    eos_ids = [EOS]
    bos_id = BOS
    chat_bos = None
    vocab_size = VOCAB
    has_bytes = True
    around = (("<bos>",), ())
    control = None
    added: dict[int, Any] = {}
    special_ids: frozenset[int] = frozenset()

    def __init__(self, file: ModelFile) -> None:
        self.ends = "encode" in file.tasks
        self.around = (("<bos>",), ("<eos>",) if self.ends else ())

    def encode(self, text: str, add_special: bool = True) -> np.ndarray:
        ids = list(text.encode())
        return np.array([BOS, *ids, *([EOS] if self.ends else [])] if add_special else ids, np.int32)

    def encode_parts(self, parts: Any, add_special: bool = True) -> np.ndarray:
        return self.encode("".join(text for text, _ in parts), add_special)

    def encode_batch(
        self, texts: list[str], add_special: bool = True, truncate_to: int | None = None, parse_special: bool | None = None
    ) -> Batch:
        rows = [self.encode(text, add_special).tolist() for text in texts]
        cut = [row if not truncate_to or len(row) <= truncate_to else [*row[: truncate_to - 1], EOS] for row in rows]
        return Batch(cut, [len(row) for row in rows])

    def encode_pairs(self, pairs: list[tuple[str, str]], truncate_to: int | None = None, parse_special: bool | None = None) -> Batch:
        parts = [([BOS, *a.encode(), EOS], [*b.encode(), EOS]) for a, b in pairs]
        rows = [a + b for a, b in parts]
        cut = [row[:truncate_to] for row in rows]
        kinds = [([0] * len(a) + [1] * len(b))[:truncate_to] for a, b in parts]
        return Batch(cut, [len(row) for row in rows], kinds)

    def decode(self, ids: Any, skip_special: bool = True) -> str:
        return bytes(int(i) for i in ids if i < 256).decode(errors="replace")

    def decode_stream(self, after: Any = ()) -> DecodeStream:
        return DecodeStream()


class ChatTemplate:
    """Writes messages and variables as they are. If the text of the template contains "deaf", it leaves out the tools."""

    def __init__(self, text: str = "") -> None:
        self.text = text

    def prompt(self, messages: list[dict[str, Any]], control: Any, **more: Any) -> Any:
        text = self.render(messages, **more)
        return types.SimpleNamespace(text=text, parts=((text, True),))

    def continued(self, messages: list[dict[str, Any]], control: Any, keys: Any, **more: Any) -> Any:
        text = self.render(messages[:-1], False, **more) + f"<assistant>{'<think>' if keys != ('content',) else ''}{messages[-1][keys[0]]}"
        return types.SimpleNamespace(text=text, parts=((text, True),))

    def render(self, messages: list[dict[str, Any]], add_generation_prompt: bool = True, **more: Any) -> str:
        text = "".join(f"<{m['role']}>{m['content']}" for m in messages)
        if "deaf" in self.text:
            more.pop("tools", None)
        return text + "".join(f"[{k}={v}]" for k, v in more.items()) + ("<assistant>" if add_generation_prompt else "")


# ---------------------------------------------------------------- engine
class ModelFile:
    """A model file of the toy engine. A .gguf file is JSON with the architecture, the tasks and the metadata. A folder has a config.json
    with the same contents."""

    def __init__(self, path: str) -> None:
        source = Path(path)
        self.kind = "safetensors" if source.is_dir() else "gguf"
        file = source / "config.json" if source.is_dir() else source
        try:
            self._values = json.loads(file.read_text())
        except ValueError:
            raise ERRORS["model_format"](f"{path} is no model", file=str(path), field="magic", offset=0) from None
        self.path, self.size = path, file.stat().st_size
        self.architecture = self._values.get("model_type", "toy")
        self.tasks = self._values.get("tasks", ["encode", "generate"])
        self.tensors = [("token_embd.weight", "q4_k", (VOCAB, HIDDEN), 1161), ("output_norm.weight", "f32", (HIDDEN,), 32)]
        if "classify" in self.tasks:
            self.tensors.append(("token_types.weight", "f32", (self._values.get("types", 2), HIDDEN), 64))

    def metadata(self) -> dict[str, Any]:
        return dict(self._values)

    def get(self, key: str) -> Any:
        value: Any = self._values
        for part in [key] if key in self._values else key.split("."):  # a dotted key leads into nested objects
            value = value.get(part) if isinstance(value, dict) else None
        numbers = isinstance(value, list) and value and all(isinstance(v, int) for v in value)
        return np.array(value) if numbers else value

    def keys(self) -> list[str]:
        return list(self._values)


class LoadOptions:
    def __init__(self, **values: Any) -> None:
        self.__dict__.update(values)


class Model:
    def __init__(self, file: ModelFile, options: LoadOptions) -> None:
        self.closed = False
        self.options = options
        self.encode_calls: list[dict[str, Any]] = []
        self.request_params: list[Any] = []  # the parameters of the first prompt of each request
        self.labels = file.get("labels") or 1
        self.info = {
            "architecture": file.architecture,
            "tasks": file.tasks,
            "parameters": 2_072_000,
            "assistant_parameters": 0,
            "layers": 4,
            "hidden_size": HIDDEN,
            "vector_size": HIDDEN,
            "vocab_size": VOCAB,
            "heads": 2,
            "kv_heads": 1,
            "head_dim": 4,
            "n_ctx": CONTEXT,
            "n_ctx_model": 2 * CONTEXT,
            "formats": {"q4_k": 1161, "f32": 32},
            "file_bytes": 4096,
            "labels": self.labels,
            "pooling": "+".join(options.pooling) or "mean",
            "threads": 2,
            "isa": "avx2",
            "device": "cpu",
            "devices": [{"id": "cpu", "name": "Toy <CPU>", "layers": 4}],
            "gpu_layers": 0,
        }
        self.interrupt_after: int | None = None  # number of texts or steps before KeyboardInterrupt; None: no interrupt

    def placement(self) -> dict[str, Any]:
        return plan_rows()

    def memory(self) -> dict[str, int]:
        return {"weights": 1193, "kv_budget": 1 << 20, "kv_reserved": 0, "kv_used": 0, "scratch": 2048}

    def cache_stats(self) -> dict[str, int]:
        return dict.fromkeys(
            ("prompt_tokens", "reused_tokens", "pages_in_use", "pages_cached", "pages_evicted", "states_in_use", "states_cached"), 0
        )

    def encode_stats(self) -> dict[str, Any]:
        return {"waiting": 0, "texts": 0, "tokens": 0, "runs": 0, "busy_seconds": 0.0}

    @staticmethod
    def rows(ids: np.ndarray, offsets: np.ndarray) -> np.ndarray:
        assert ids.dtype == np.int32
        assert offsets.dtype == np.int64
        assert offsets[0] == 0
        assert offsets[-1] == len(ids)
        return np.stack([np.bincount(ids[a:b] % HIDDEN, minlength=HIDDEN) for a, b in zip(offsets[:-1], offsets[1:], strict=True)])

    def encode(
        self,
        ids: Any,
        offsets: Any,
        types: Any,
        out: np.ndarray,
        normalize: bool,
        token_budget: int,
        progress: Any = None,
        prompt: int = 0,
        cancel: Any = None,
    ) -> None:
        assert out.flags.c_contiguous
        assert out.dtype == np.float32
        assert out.shape[0] == len(offsets) - 1
        if self.interrupt_after is not None:
            self.interrupt_after -= len(out)
            if self.interrupt_after < 0:
                raise KeyboardInterrupt
        self.encode_calls.append({"texts": len(out), "normalize": normalize, "token_budget": token_budget, "prompt": prompt})
        rows = self.rows(ids, offsets).astype(np.float32)[:, : out.shape[1]]
        out[:] = rows / np.linalg.norm(rows, axis=1, keepdims=True) if normalize else rows
        if progress:
            progress(len(out))

    def encode_several(self, calls: Any, cancels: Any) -> list[bool]:
        for ids, offsets, kinds, out, normalize, prompt in calls:
            self.encode(ids, offsets, kinds, out, normalize, 0, prompt=prompt)
        return [True] * len(calls)

    def encode_tokens(self, ids: np.ndarray, offsets: np.ndarray, types: Any, unseen: Any = None, cancel: Any = None) -> np.ndarray:
        return np.stack([ids % (k + 1) for k in range(1, HIDDEN + 1)], axis=1).astype(np.float32)

    def encode_sparse(
        self,
        ids: np.ndarray,
        offsets: np.ndarray,
        types: Any,
        most: int = 0,
        logs: int = 1,
        token_budget: int = 0,
        progress: Any = None,
        cancel: Any = None,
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        rows = [np.unique(ids[a:b])[: most or None] for a, b in zip(offsets[:-1], offsets[1:], strict=True)]
        indices = np.concatenate([np.empty(0, np.int32), *rows])
        return indices, np.ones(len(indices), np.float32), np.cumsum([0, *map(len, rows)], dtype=np.int64)

    def classify(self, ids: np.ndarray, offsets: np.ndarray, types: np.ndarray | None, cancel: Any = None) -> np.ndarray:
        self.types_given = types is not None
        types = ids * 0 if types is None else types
        scores = []
        for a, b in zip(offsets[:-1], offsets[1:], strict=True):
            query, document = (set(ids[a:b][types[a:b] == k].tolist()) for k in (0, 1))
            scores.append(len(query & document) - 3.0)
        return np.array(scores, np.float32)[:, None] * np.arange(1, self.labels + 1, dtype=np.float32)

    def label_tokens(self, ids: np.ndarray, offsets: np.ndarray, types: np.ndarray | None, cancel: Any = None) -> np.ndarray:
        return np.eye(self.labels, dtype=np.float32)[ids % self.labels]

    def logits(self, ids: np.ndarray, all_positions: bool) -> np.ndarray:
        rows = np.eye(VOCAB, dtype=np.float32)[(ids + 1) % VOCAB]
        return rows if all_positions else rows[-1]

    def score(self, ids: np.ndarray, top: int | None = None, cancel: Any = None) -> Any:
        scores = -np.abs(np.diff(ids)).astype(np.float32)
        if top is None:
            return scores
        return scores, np.repeat(ids[1:, None], top, axis=1), np.repeat(scores[:, None], top, axis=1)

    def request(self, prompts: list[np.ndarray], params: Any) -> Request:
        for ids in prompts:
            assert ids.dtype == np.int32
            if len(ids) > CONTEXT:
                raise ERRORS["context_length"](f"The prompt has {len(ids)} tokens and the context {CONTEXT}")
        self.request_params.append(params[0])
        return Request(self, prompts, params[0])

    def close(self) -> None:
        self.closed = True


CONTINUATIONS = {  # prompt -> the toy's answer; any other prompt is echoed backwards
    "story": "Once upon a time.\nUser: hi\nBot",
    "unicode": "naïve 日本 🎉 done",
    "broken": "ab\xff",
}


class Request:
    def __init__(self, model: Model, prompts: list[np.ndarray], params: Any) -> None:
        self.model, self.params = model, params
        self.seed = 1234 if params.seed is None else params.seed
        self.seeds = [self.seed + k for _ in prompts for k in range(params.n)]
        self.prompt_tokens = [len(p) for p in prompts]
        self.reused_tokens = [0] * len(prompts)
        self.sequences = len(prompts) * params.n
        self.closed, self.calls, self.finished = False, 0, set()
        self.scripts: list[list[int]] = []
        for s in range(self.sequences):
            prompt = bytes(i for i in prompts[s // params.n].tolist() if i < 256).decode(errors="replace")
            text = CONTINUATIONS.get(prompt, prompt[::-1])
            script = list(text.encode("latin-1" if prompt == "broken" else "utf-8"))
            if params.temperature > 0:
                script.append(ord("a") + (self.seed + s) % 26)
            self.scripts.append([*script, *params.eos_ids[:1]])
        self.places = [0] * self.sequences

    def advance(self, steps: int, max_ms: float) -> list[dict[str, Any]]:
        if self.model.interrupt_after is not None and self.calls >= self.model.interrupt_after:
            raise KeyboardInterrupt
        self.calls += 1
        news = []
        for s in range(self.sequences):
            if s in self.finished:
                continue
            ids: list[int] = []
            reason = None
            while len(ids) < steps and reason is None:
                token = self.scripts[s][self.places[s]]
                if token in self.params.eos_ids:
                    reason = "eos"
                    break
                ids.append(token)
                self.places[s] += 1
                if self.places[s] == self.params.max_new_tokens:
                    reason = "length"
            if reason:
                self.finished.add(s)
            entry = {"sequence": s, "ids": np.array(ids, np.int32), "finish_reason": reason}
            k = self.params.logprobs
            if k is not None:
                entry["logprobs"] = np.log(1 / (2 + np.arange(len(ids)))).astype(np.float32)
                rows = len(ids) if k else 0  # without alternatives, the arrays are 0 x 0
                entry["top_ids"] = np.tile(np.arange(k, dtype=np.int32), (rows, 1))
                entry["top_logprobs"] = np.full((rows, k), -1, np.float32)
            news.append(entry)
        return news

    def finish(self, sequence: int) -> None:
        self.finished.add(sequence)

    @property
    def done(self) -> bool:
        return self.closed or len(self.finished) == self.sequences

    def timings(self) -> dict[str, float]:
        return {"prefill_tokens": 10.0, "prefill_seconds": 0.1, "decode_tokens": 20.0, "decode_seconds": 0.5}

    def close(self) -> None:
        self.closed = True


class NewFile:
    def __init__(self, path: str) -> None:
        self.path, self.bytes = path, bytearray()

    def write(self, at: int, data: Any) -> None:
        self.bytes[at:] = bytes(data)

    def finish(self) -> None:
        Path(self.path).write_bytes(self.bytes)


def plan_rows() -> dict[str, Any]:
    layer = {"device": "cpu", "weights": 1 << 20, "kv": 1 << 19, "formats": "q4_k"}
    rows = [{**layer, "name": "embedding", "kv": 0}, *({**layer, "name": f"layer {i}"} for i in range(3))]
    rows.append({**layer, "name": "layer 3", "weights": 3 << 20})
    totals = {"weights": 7 << 20, "scratch": 3 << 20, "kv_budget": 1 << 20, "kv_page": 4096, "memory_free": 4 << 30}
    device = {"id": "cpu", "name": "Toy <CPU>", "weights": 7 << 20, "scratch": 3 << 20, "kv_page": 4096, "memory_free": 4 << 30}
    more = {"notes": ["context capped by memory"], "fallback": "", "problem": None}
    return {"rows": rows, "devices": [device], **totals, "n_ctx": CONTEXT, **more}


ERRORS: dict[str, type[BaseException]] = {}


def make_core() -> types.ModuleType:
    core = types.ModuleType("pumice._core")
    opened: list[Model] = []

    def load(file: ModelFile, options: LoadOptions, progress: Any = None, stop: Any = None) -> Model:
        if options.device.startswith("vulkan"):
            raise ERRORS["device_not_found"]("This version has no Vulkan: use device='cpu'")
        if progress:
            progress(2048, 4096)
            progress(4096, 4096)
        opened.append(Model(file, options))
        return opened[-1]

    def no_library(path: str) -> None:
        raise OSError("the toy has no grammars")

    core.__dict__.update(
        __version__="0.0.test",
        GrammarLibrary=no_library,
        set_error_types=ERRORS.update,
        devices=lambda: [
            {
                "id": "cpu",
                "name": "Toy <CPU>",
                "type": "cpu",
                "driver": "",
                "memory_total": 8 << 30,
                "memory_free": 4 << 30,
                "features": ["avx2", "fma"],
                "usable": True,
                "why_not": "",
            }
        ],
        build_info=lambda: {
            "version": "0.0.test",
            "compiler": "GCC 12",
            "isa": "avx2",
            "isas": ["scalar", "avx2"],
            "huge_pages": "madvise",
            "blas": "OpenBLAS 0.3",
            "threads": 2,
            "formats": ["f32", "q4_k"],
            "pack_formats": ["q8_0", "q4_k"],
            "architectures": {"toy": {"gguf": ["toy"], "model_type": ["toy"]}},
        },
        self_test=lambda: [{"name": "dot q4_k", "ok": True, "error": 1e-8, "limit": 1e-6, "detail": ""}],
        open_file=ModelFile,
        read_file=read_file,
        NewFile=NewFile,
        LoadOptions=LoadOptions,
        ModelFile=ModelFile,
        Model=Model,
        Request=Request,
        GenerateParams=GenerateParams,
        plan=lambda file, options: plan_rows(),
        load=load,
        opened=opened,
    )
    return core


def make_tokenizers() -> types.ModuleType:
    module = types.ModuleType("pumice.tokens.tokenizer_files")
    module.__dict__.update(load_tokenizer=lambda file, override: Tokenizer(file), check_given=lambda override: override)
    return module


def make_templates() -> types.ModuleType:
    module = types.ModuleType("pumice.chats.chat_templates")

    def find_template(file: ModelFile, override: Any) -> ChatTemplate | None:
        text = override or file.get("tokenizer.chat_template")
        return ChatTemplate(text) if text else None

    module.__dict__.update(find_template=find_template, ChatTemplate=ChatTemplate)
    return module


@contextlib.contextmanager
def installed() -> Iterator[Any]:
    """Imports a fresh copy of the package on top of the fakes. Afterwards, restores the modules that were imported before."""
    before = {name: sys.modules.pop(name) for name in list(sys.modules) if name == "pumice" or name.startswith("pumice.")}
    path = list(sys.path)
    if importlib.util.find_spec("pumice") is None:
        sys.path.insert(0, str(ROOT / "python"))
    sys.modules["pumice._core"] = make_core()
    sys.modules["pumice.tokens.tokenizer_files"] = make_tokenizers()
    sys.modules["pumice.chats.chat_templates"] = make_templates()
    try:
        yield importlib.import_module("pumice")
    finally:
        for name in [name for name in sys.modules if name == "pumice" or name.startswith("pumice.")]:
            del sys.modules[name]
        sys.modules.update(before)
        sys.path[:] = path


@pytest.fixture(scope="module", name="pumice")
def fake() -> Iterator[Any]:
    with installed() as package:
        yield package


@pytest.fixture(name="core")
def fake_core(pumice: Any) -> Any:
    return sys.modules["pumice._core"]


def write_model(path: Path, **values: Any) -> Path:
    """Writes a model file of the toy engine, or a folder if the name does not end with .gguf. Returns its path."""
    values = {"model_type": "toy", "tokenizer.chat_template": "toy", **values}
    if path.suffix == ".gguf":
        path.write_text(json.dumps(values))
    else:
        path.mkdir(exist_ok=True)
        (path / "config.json").write_text(json.dumps(values))
    return path


@pytest.fixture(name="model")
def fake_model(pumice: Any, tmp_path: Path) -> Iterator[Any]:
    with pumice.load(write_model(tmp_path / "toy.gguf"), progress=False) as model:
        yield model
