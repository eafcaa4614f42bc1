"""What load() gives: a model and its calls, which are in encode/, generate/, chats/ and inside.py."""

from __future__ import annotations

import threading
import weakref
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from .. import _core
from ..chats.chat import Chats
from ..common.arguments import shown_path, warn
from ..common.display import count, formats, html_lines, size
from ..encode.encoding import Encoder
from ..encode.engine import Engine
from ..encode.sentence_config import SentenceConfig
from ..encode.static import StaticEngine
from ..errors import ChatTemplateError, DeviceLostError, FallbackWarning
from ..generate.grammar import Grammars
from ..loading.files import has_types, incomplete_parts, labels_of
from ..loading.options import engine_options
from ..loading.placement import Plan
from .awaited_calls import AwaitedCalls
from .base import TASK_CALLS
from .inside_calls import InsideCalls

if TYPE_CHECKING:
    from ..tokens.tokenizers import Tokenizer

Int32 = npt.NDArray[np.int32]


class Model(AwaitedCalls, InsideCalls):
    """A loaded model: texts to vectors (encode), prompts to text (generate, stream, chat), or both, as `info["tasks"]` says.

    Weights never change and threads may share one model. A Model pickles as its load arguments. `with pumice.load(...) as m:` closes it.
    """

    def __init__(
        self,
        path: Path,
        file: _core.ModelFile,
        engine: _core.Model | StaticEngine,
        tokenizer: Tokenizer,
        config: SentenceConfig,
        settings: Any,
        options: dict[str, Any],
    ) -> None:
        self._file, self._core, self._tokenizer, self._config, self._options = file, engine, tokenizer, config, options
        self._settings = settings
        self._incomplete = incomplete_parts(file, engine, tokenizer)
        self._closed = False
        self._chats = Chats(file, tokenizer, int(engine.info["vocab_size"]), options["chat_template"], options["response_template"])
        self.path = path
        self._grammars = Grammars(tokenizer, int(engine.info["vocab_size"]), lambda: self._eos_ids)
        # Both spellings of sentence-transformers' CrossEncoder, now and before version 4; config.json comes with dotted keys.
        named = (file.get("sentence_transformers.activation_fn"), file.get("sbert_ce_default_activation_function"), config.activation)
        self._activation = next((name for name in named if isinstance(name, str)), None)
        self._encoder = self._make_encoder(engine)
        self._routes: dict[str, Model] = {}
        self._default_route: str | None = None
        self._moving = threading.Lock()
        self._drafts: weakref.WeakSet[Model] = weakref.WeakSet()  # that have this model's tokenizer
        self.info: dict[str, Any] = {
            **engine.info,
            "lora": [*options["lora"]],
            "labels": labels_of(file, int(engine.info["labels"]), config),
            "path": str(path),
            "kind": file.kind,
            "normalize": config.normalize,
            "prompts": dict(config.prompts),
            "similarity": config.similarity,
            "max_tokens": self._encoder.max_tokens,
            "sampling": dict(settings.sampling),
            "special_tokens": dict(zip(("before", "after"), tokenizer.around, strict=True)),
        }

    def _make_encoder(self, engine: Engine) -> Encoder:
        render = self._pair_ids if self._config.score_ids else None
        return Encoder(engine, self._tokenizer, self._config, self._activation, has_types(self._file), render)

    def _pair_ids(self, query: str, document: str) -> Int32:
        """A pair as a causal reranker reads it: by its chat template, with the roles query and document (and its prompt as system's)."""
        prompt = self._config.prompts.get(self._config.default_prompt or "", "")
        messages = [{"role": "system", "content": prompt}] if prompt else []
        messages += [{"role": "query", "content": query}, {"role": "document", "content": document}]
        return self._chats.rendered(messages, {}, parse_special=False)[1]

    def _set_routes(self, routes: dict[str, Model], default: str | None) -> None:
        self._routes, self._default_route = routes, default
        self.info["routes"] = {name: f"{route.info['architecture']}, {route.info['vector_size']}" for name, route in routes.items()}

    # ------------------------------------------------------------ the model itself
    def _move_to_cpu(self, lost_core: Engine, lost: DeviceLostError) -> None:
        with self._moving:
            if self._core is not lost_core:  # another thread has done it
                return
            options = {**self._options, "device": "cpu", "gpu_layers": "auto"}
            core = _core.load(self._file, engine_options(self._file, options, self._config), None)
            self._core = core
            self._encoder = self._make_encoder(core)
            self.info.update({**core.info, "labels": self.info["labels"]})
            lost_core.close()
        warn(FallbackWarning, f'the model was loaded with device="auto"; it goes on on the CPU, because its GPU failed: {lost}')

    def memory(self) -> dict[str, int]:
        """Bytes: weights, kv_budget, kv_reserved, kv_used, scratch."""
        return self._core.memory()

    def _headline(self) -> str:
        i = self.info
        return f"{shown_path(self.path.name)}: {i['architecture']}, {count(i['parameters'])} parameters, {formats(i['formats'])}"

    def _devices(self) -> str:
        """cpu (avx2, 2 threads): 10 layers, vulkan:0 (name): 20 layers."""
        i = self.info
        devices = i["devices"]
        about = {d["id"]: f"{i['isa']}, {i['threads']} threads" if d["id"] == "cpu" else d["name"] for d in devices}
        layers = {d["id"]: f": {d['layers']} layers" if len(devices) > 1 else "" for d in devices}
        return ", ".join(f"{device} ({text}){layers[device]}" for device, text in about.items())

    def _log_line(self) -> str:
        i = self.info
        context = f"context {i['n_ctx']}" + (f" of the model's {i['n_ctx_model']}" if i["n_ctx"] < i["n_ctx_model"] else "")
        kv = self._core.memory().get("kv_budget", 0)
        notes = "".join(f"; {note}" for note in self._core.placement().get("notes") or ())
        return (
            f"Loaded {self._headline()}, {size(i['file_bytes'])} on {self._devices()}, "
            f"{i['layers']} layers, {context}{f', KV budget {size(kv)}' if kv else ''}, in {i['load_seconds']:.2f} s{notes}"
        )

    def summary(self) -> Plan:
        """What the model is and where each layer lives: prints as a table that folds equal layers, also in notebooks."""
        i = self.info
        tasks = ", ".join(TASK_CALLS.get(task, task) for task in i["tasks"])
        header = [
            self._headline(),
            f"file {shown_path(self.path)} ({size(i['file_bytes'])})",
            f"{i['layers']} layers, hidden {i['hidden_size']}, vocabulary {i['vocab_size']}; {tasks}",
        ]
        if "encode" in i["tasks"][:1]:  # what the model is for
            prompts = ", ".join(i["prompts"]) or "none"
            norm = "normalised" if i["normalize"] else "not normalised"
            pooling = f"{i['pooling']} pooling" if self._config.pools else "one for each token"
            behind = ", ".join(module["kind"].replace("_", " ") for module in self._config.modules)
            most = "of any length" if i["architecture"] == "static" else f"at most {i['max_tokens']} tokens a text"
            header.append(f"vectors: {pooling}, {behind + ', ' if behind else ''}{norm}, {most}; prompts: {prompts}")
        if "routes" in i:
            header.append("routes: " + ", ".join(f"{name} ({about})" for name, about in i["routes"].items()))
        if "generate" in i["tasks"]:
            settings = ", ".join(f"{k} {v:g}" for k, v in i["sampling"].items()) or "greedy"
            header.append(f"sampling: {settings}; chat template: {'yes' if self._has_template() else 'none'}")
        header.append(f"runs on {self._devices()}")
        if self._closed:
            return Plan({"rows": []}, header=[*header, "closed: all memory was given back"])
        used = self._core.memory()
        footer = ["memory: " + ", ".join(f"{name.replace('_', ' ')} {size(value)}" for name, value in used.items())]
        return Plan({**self._core.placement(), "incomplete": self._incomplete}, header=header, footer=footer)

    def _has_template(self) -> bool:
        try:
            self._chats.template()
        except ChatTemplateError:
            return False
        return True

    def __repr__(self) -> str:
        return f"<pumice.Model {self._headline()}{' (closed)' if self._closed else ''}>"

    def _repr_html_(self) -> str:
        if self._closed:
            return html_lines([f"{self._headline()} (closed)"])
        return self.summary()._repr_html_()

    def close(self) -> None:
        """Gives the model's memory back. Calls that run keep what they use until they end; later calls raise ValueError.

        The tokenizer stays: tokenize(), detokenize() and count_tokens() go on to work, as do similarity(), info and summary()."""
        if not self._closed:
            self._closed = True
            self._core.close()
            for route in self._routes.values():
                route.close()

    def __enter__(self) -> Model:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
