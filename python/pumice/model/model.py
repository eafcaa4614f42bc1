"""The class Model: its calls under an event loop, and its own state. Its other calls are in the files beside this one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from ..common.arguments import checked_keywords, shown_path
from ..common.display import count, formats, html_lines, size
from ..encode.encoding import ENCODE_DEFAULTS, EncodeKeywords, EncodeOptions, RankHit
from ..errors import ChatTemplateError
from ..generate.prompts import Prompt
from ..generate.settings import Sampling
from ..loading.placement import Plan
from .base import TASK_CALLS
from .chat_calls import ChatCalls
from .encode_calls import EncodeCalls
from .generate_calls import GenerateCalls
from .inside_calls import InsideCalls
from .text_calls import TextCalls

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ..event_loops.streams import AsyncStream


class Model(TextCalls, EncodeCalls, GenerateCalls, ChatCalls, InsideCalls):
    """A loaded model: texts to vectors (encode), prompts to text (generate, stream, chat), or both, as `info["tasks"]` says.

    Weights never change and threads may share one model. A Model pickles as its load arguments. `with pumice.load(...) as m:` closes it.
    """

    def _set_routes(self, routes: dict[str, Model], default: str | None) -> None:
        self._routes, self._default_route = routes, default
        self.info["routes"] = {name: f"{route.info['architecture']}, {route.info['vector_size']}" for name, route in routes.items()}

    # ------------------------------------------------------------ under an event loop
    async def agenerate(self, prompt: Prompt | Sequence[Prompt], **sampling: Unpack[Sampling]) -> Any:
        """generate(), awaited in an asyncio event loop. Cancelling the task ends the request; other calls go on.

        Takes what generate() takes. Raises what generate() raises, OverloadedError where more calls wait than set_limits() allows, and
        EventLoopError outside of asyncio."""
        from ..event_loops import async_calls

        return await async_calls.generate(self, prompt, sampling)

    def astream(self, prompt: Prompt | Sequence[Prompt], **sampling: Unpack[Sampling]) -> AsyncStream:
        """stream() for `async for`: `async for chunk in m.astream(p): ...`. Takes what stream() takes.

        A model that does not generate raises UnsupportedTaskError here. The first chunk raises everything else: the errors of stream(),
        OverloadedError, and EventLoopError outside of asyncio."""
        from ..event_loops import async_calls

        return async_calls.stream(self, prompt, sampling)

    async def achat(self, messages: str | Sequence[Mapping[str, Any]], **options: Any) -> Any:
        """chat(), awaited in an asyncio event loop; with stream=True an AsyncStream. Takes what chat() takes.

        Raises what chat() raises, OverloadedError where more calls wait than set_limits() allows, and EventLoopError outside of asyncio."""
        from ..event_loops import async_calls

        return await async_calls.chat(self, messages, options)

    @checked_keywords(ENCODE_DEFAULTS)
    async def aencode(self, inputs: str | Iterable[str], **options: Unpack[EncodeKeywords]) -> Any:
        """encode(), awaited in an asyncio event loop. Few texts are computed together with those of other calls. Takes what encode() takes.

        Raises what encode() raises, OverloadedError where too many calls wait, and EventLoopError outside of asyncio."""
        from ..event_loops import async_calls

        return await async_calls.encode(self, inputs, EncodeOptions(**options))

    @checked_keywords()
    async def arank(
        self,
        query: str,
        documents: Iterable[str],
        top_k: int | None = None,
        *,
        truncate: Literal[True, "error"] = True,
        show_progress_bar: bool | None = None,
    ) -> list[RankHit]:
        """rank(), awaited in an asyncio event loop. Takes what rank() takes.

        Raises what rank() raises, OverloadedError where too many calls wait, and EventLoopError outside of asyncio."""
        from ..event_loops import async_calls

        return await async_calls.stoppable(lambda cancel: self._rank(query, documents, top_k, truncate, show_progress_bar, cancel))

    # ------------------------------------------------------------ the model itself
    def memory(self) -> dict[str, int]:
        """Bytes by use: weights, kv_budget, kv_reserved, kv_used, scratch (planned for one run)."""
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
        if "encode" in i["tasks"][:1]:  # the model's first task is encode()
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
