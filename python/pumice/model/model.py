"""The class Model. This file has its asynchronous methods, and the methods about the model itself. The other methods are in the base
classes, in the other files of this folder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..common.arguments import shown_path
from ..common.display import count, formats, html_lines, size
from ..encode.static import N_CTX
from ..errors import ChatTemplateError
from ..generate.gaps import WithGap
from ..generate.prompts import Prompt
from ..loading.placement import Plan
from .async_forms import awaited
from .base import TASK_CALLS
from .chat_calls import ChatCalls
from .encode_calls import EncodeCalls
from .generate_calls import GenerateCalls
from .inside_calls import InsideCalls
from .label_calls import LabelCalls
from .text_calls import TextCalls

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ..event_loops.streams import AsyncStream

_OVERLOADED = "OverloadedError if more calls wait than set_limits() allows"


class Model(TextCalls, EncodeCalls, LabelCalls, GenerateCalls, ChatCalls, InsideCalls):
    """A loaded model. It converts texts to vectors (encode), continues prompts with text (generate, stream, chat), or does both;
    `info["tasks"]` tells which.

    The weights never change, and threads may share a model. A pickle of a Model has only the arguments of load(). `with pumice.load(...) as
    m:` closes the model at the end of the block.

    path: the path from which the model was loaded.
    """

    def _set_routes(self, routes: dict[str, Model], default: str | None) -> None:
        self._routes, self._default_route = routes, default
        width = {name: "sparse" if route._config.sparse.head == "always" else route._info["vector_size"] for name, route in routes.items()}
        self._info["routes"] = {name: f"{route._info['architecture']}, {width[name]}" for name, route in routes.items()}

    # ------------------------------------------------------------ under an event loop
    agenerate = awaited(GenerateCalls.generate, "generate", "Cancelling the task ends its request. Other calls continue.", _OVERLOADED)
    achat = awaited(ChatCalls.chat, "chat", "With stream=True it returns an AsyncStream.", _OVERLOADED)
    aencode = awaited(EncodeCalls.encode, "encode", "A call with few texts is computed together with other such calls that are waiting.")
    aencode_query = awaited(EncodeCalls.encode_query, "encode", "It is computed as in aencode().")
    aencode_document = awaited(EncodeCalls.encode_document, "encode", "It is computed as in aencode().")
    apredict = awaited(LabelCalls.predict, "stoppable", "")
    arank = awaited(LabelCalls.rank, "stoppable", "")
    alabel_tokens = awaited(LabelCalls.label_tokens, "stoppable", "")
    ascore = awaited(InsideCalls.score, "stoppable", "Cancelling the task stops the computation of its text.")

    def astream(self, prompt: Prompt | Sequence[Prompt] | None = None, **sampling: Unpack[WithGap]) -> AsyncStream:
        """Like stream(), with the same arguments, but for `async for`: `async for chunk in m.astream(p): ...`.

        If the model cannot generate, this call raises UnsupportedTaskError. All other errors are raised when the first chunk is requested:
        those of stream(), OverloadedError, and EventLoopError outside of asyncio."""
        from ..event_loops import async_calls

        return async_calls.stream(self, prompt, sampling)

    # ------------------------------------------------------------ the model itself
    def memory(self) -> dict[str, int]:
        """Returns the number of bytes for each use: weights, kv_budget, kv_reserved, kv_used, scratch (planned for one run)."""
        return self._core.memory()

    def stats(self) -> dict[str, Any]:
        """Returns counts of all calls on this model, and on the models of its routes. Totals count from load() on.

        For every model that encodes: waiting (number of calls of encode(), predict(), rank(), label_tokens() and their asynchronous forms
        that have not begun to run, because other calls run), texts and tokens (totals that were computed; a pair is one text), runs (total
        number of runs of the model; a run computes one micro-batch), busy_seconds (total time during which at least one run was active).

        For a model that generates, also the state of the batch in which all calls run. Numbers of requests: running (they have pages),
        lagging (paused, because nobody takes the tokens of their stream). Rows in the last step: step_rows. Totals: steps, prompt_tokens
        (computed ones), decoded_tokens, preempted (sequences that lost their pages to others). Numbers of pages, each for 32 positions:
        pages_in_use, pages_cached, pages_budget. Numbers of states of recurrent layers: states_in_use, states_cached, states_budget (0 in a
        model without such layers). waiting also counts requests that wait, and busy_seconds is the time of steps plus that of runs.

        Raises ValueError if the model is closed."""
        if self._closed:
            raise ValueError(f"This model ({shown_path(self.path.name)}) is closed")
        found: dict[str, Any] = self._layers("stats()").stats() if "generate" in self._info["tasks"] else {}
        for model in {id(each): each for each in (self, *self._routes.values())}.values():
            counts = model._core.encode_stats()
            counts["waiting"] += len(model._small_calls)
            for name, value in counts.items():
                found[name] = found.get(name, 0) + value
        return found

    def _headline(self) -> str:
        i = self._info
        return f"{shown_path(self.path.name)}: {i['architecture']}, {count(i['parameters'])} parameters, {formats(i['formats'])}"

    def _devices(self) -> str:
        """Returns a text such as "cpu (avx2, 2 threads): 10 layers, vulkan:0 (name): 20 layers"."""
        i = self._info
        devices = i["devices"]
        about = {d["id"]: f"{i['isa']}, {i['threads']} threads" if d["id"] == "cpu" else d["name"] for d in devices}
        layers = {d["id"]: f": {d['layers']} layers" if len(devices) > 1 else "" for d in devices}
        return ", ".join(f"{device} ({text}){layers[device]}" for device, text in about.items())

    def _sampling(self) -> str:
        """Returns a text such as "temperature 0.6", or "greedy, chat() temperature 0.8" if the model's files do not decide."""

        def shown(settings: Mapping[str, float]) -> str:
            return ", ".join(f"{name} {value:g}" for name, value in settings.items())

        chats = self._generator.chat_sampling if self._has_template() else {}
        return (shown(self._info["sampling"]) or "greedy") + (f", chat() {shown(chats)}" if chats else "")

    def _log_line(self) -> str:
        i = self._info
        context = f"context {i['n_ctx']}" + (f" of the model's {i['n_ctx_model']}" if i["n_ctx"] < i["n_ctx_model"] else "")
        kv = self._core.memory().get("kv_budget", 0)
        notes = "".join(f"; {note}" for note in self._placement()["notes"])
        return (
            f"Loaded {self._headline()}, {size(i['file_bytes'])} on {self._devices()}, "
            f"{i['layers']} layers, {context}{f', KV budget {size(kv)}' if kv else ''}, in {i['load_seconds']:.2f} s{notes}"
        )

    def summary(self) -> Plan:
        """Returns a description of the model, and on which device each layer is. The result prints as a table, also in notebooks.
        Successive equal layers share a row of the table."""
        i = self._info
        tasks = ", ".join(TASK_CALLS.get(task, task) for task in i["tasks"])
        header = [
            self._headline(),
            f"file {shown_path(self.path)} ({size(i['file_bytes'])})",
            f"{i['layers']} layers, hidden {i['hidden_size']}, vocabulary {i['vocab_size']}; {tasks}",
        ]
        if "encode" in i["tasks"][:1]:  # true if encode() is the model's main task
            prompts = ", ".join(i["prompts"]) or "none"
            norm = "normalised" if i["normalize"] else "not normalised"
            alone = f"sparse ({self._config.sparse.module})" if self._config.sparse.head == "always" else "one for each token"
            pooling = f"{i['pooling']} pooling" if self._config.pools else alone
            behind = ", ".join(module["kind"].replace("_", " ") for module in self._config.modules)
            most = "of any length" if i["max_tokens"] == N_CTX else f"at most {i['max_tokens']} tokens a text"
            header.append(f"vectors: {pooling}, {behind + ', ' if behind else ''}{norm}, {most}; prompts: {prompts}")
        if "routes" in i:
            header.append("routes: " + ", ".join(f"{name} ({about})" for name, about in i["routes"].items()))
        if "generate" in i["tasks"]:
            header.append(f"sampling: {self._sampling()}; chat template: {'yes' if self._has_template() else 'none'}")
        if i.get("lora"):
            header.append("adapters: " + ", ".join(f"{shown_path(path)} ({scale:g})" for path, scale in i["lora"]))
        header.append(f"runs on {self._devices()}")
        if self._closed:
            return Plan({"rows": []}, header=[*header, "closed: all memory was given back"])
        used = self._core.memory()
        footer = ["memory: " + ", ".join(f"{name.replace('_', ' ')} {size(value)}" for name, value in used.items())]
        return Plan({**self._placement(), "incomplete": self._incomplete}, header=header, footer=footer)

    def _placement(self) -> dict[str, Any]:
        placement = self._core.placement()
        return {**placement, "notes": [*(placement.get("notes") or ()), *self._notes]}

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
        """Frees the model's memory. Running calls keep the memory that they use until they end. Later calls raise ValueError.

        Methods that need no weights still work: tokenize(), detokenize(), count_tokens(), similarity(), info and summary()."""
        if not self._closed:
            self._closed = True
            self._core.close()
            if self._pools is not None:
                self._pools.end()
            for route in self._routes.values():
                route.close()

    def __enter__(self) -> Model:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
