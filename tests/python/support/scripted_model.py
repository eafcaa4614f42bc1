"""A model for the server's tests that gives a fixed answer. Chat template, response parser and tools are the real ones; each token is one
character."""

from __future__ import annotations

import contextlib
import types
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from asgi import Client, running

import pumice
from pumice.chats.chat import Chats
from pumice.chats.chat_templates import ChatTemplate
from pumice.chats.questions import check_question
from pumice.generate.generation import Generation
from pumice.generate.settings import SamplingParams
from pumice.serve import app


class _Characters:
    """A tokenizer whose tokens are characters."""

    control = None
    has_bytes = False
    special_ids: frozenset[int] = frozenset()
    eos_ids: tuple[int, ...] = ()
    chat_bos = None
    added: Mapping[int, Any] = {}
    pending = False

    def encode_parts(self, parts: Any, add_special: bool = True) -> np.ndarray:
        return np.array([ord(c) for text, _ in parts for c in text], np.int32)

    def decode_stream(self, after: Any = ()) -> _Characters:
        return self

    def step(self, ids: Sequence[int]) -> str:
        return "".join(map(chr, ids))

    def flush(self) -> str:
        return ""


class _Stream:
    """The part of AsyncStream that the server uses."""

    def __init__(self, model: ScriptedModel, asked: Any, params: SamplingParams) -> None:
        self._asked, self._params, self._model = asked, params, model
        self.prompt_tokens = (len(asked.ids),)
        self.result: Any = None

    async def begin(self) -> _Stream:
        return self

    async def __aenter__(self) -> _Stream:
        return self

    async def __aexit__(self, *error: object) -> None:
        pass

    async def __aiter__(self) -> Any:
        answer = self._asked.continuation(self._model.tokenizer, self._params)
        text = self._model.answer[: self._params.max_new_tokens]
        reason = "length" if len(text) < len(self._model.answer) else "eos"
        for at in range(0, len(text), self._model.step):
            ids = [ord(c) for c in text[at : at + self._model.step]]
            answer.push({"ids": ids, "finish_reason": reason if at + self._model.step >= len(text) else None})
            for chunk in answer.chunks(0):
                if self._model.fails_after is not None and at >= self._model.fails_after:
                    raise RuntimeError("the script fails here")
                yield chunk
            if answer.finish_reason is not None:
                break
        found = Generation(
            text=answer.text,
            ids=np.array(answer.ids, np.int32),
            finish_reason=answer.finish_reason,
            prompt_tokens=len(self._asked.ids),
            reused_tokens=7,
            seed=1,
            params=self._params,
            logprobs=None,
            top_ids=None,
            top_logprobs=None,
            timings={},
            device="cpu",
            stopped_by=answer.stopped_by,
        )
        self.result = self._asked.result(found, answer)


class ScriptedModel:
    """Answers each conversation with `answer`, `step` characters a chunk. asked: the keywords of each chat() call."""

    def __init__(self, template: str, answer: str, step: int = 5, fails_after: int | None = None) -> None:
        self.answer, self.step, self.fails_after = answer, step, fails_after
        self.tokenizer = _Characters()
        self.info = self._info = {"tasks": ["generate"], "n_ctx": 1 << 20, "device": "cpu"}
        self.asked: list[dict[str, Any]] = []
        file = types.SimpleNamespace(kind="gguf", path="scripted.gguf")
        grammars: Any = types.SimpleNamespace(compiled=lambda grammar: None, tokens=lambda: None)
        self._chats = Chats(file, self.tokenizer, 0x110000, None, None, grammars)  # type: ignore[arg-type]
        self._chats._template = ChatTemplate(template, "<bos>", "</s>")

    def _need(self, task: str, what: str) -> None:
        assert task == "generate"

    def set_limits(self, **limits: int) -> None:
        pass

    def stats(self) -> dict[str, int]:
        return {"waiting": 0, "running": 0}

    def close(self) -> None:
        pass

    def _question(self, given: dict[str, Any]) -> tuple[Any, SamplingParams]:
        self.asked.append(given)
        names = ("tools", "tool_choice", "parallel_tool_calls", "template_kwargs", "response_format", "grammar")
        defaults = {"parallel_tool_calls": True}
        tools, choice, parallel, variables, form, grammar = (given.get(name, defaults.get(name)) for name in names)
        question = check_question(given["messages"], tools, choice, parallel, variables, False, form, grammar)
        stop = tuple(given.get("stop") or ())
        return self._chats.asked(question), SamplingParams(max_new_tokens=given["max_new_tokens"], stop=stop)

    def chat(self, *, dry_run: bool, **given: Any) -> Any:
        assert dry_run
        asked, params = self._question(given)
        return asked.nothing(device="cpu", prompt_tokens=len(asked.ids), reused_tokens=0, seed=0, params=params)

    async def achat(self, *, stream: bool, **given: Any) -> _Stream:
        assert stream
        return _Stream(self, *self._question(given))


@contextlib.asynccontextmanager
async def served(model: ScriptedModel, monkeypatch: pytest.MonkeyPatch, **settings: Any) -> AsyncIterator[Client]:
    """Runs a server of the model under the name "chat", and gives a client of it."""

    async def load(source: Any, **options: Any) -> ScriptedModel:
        return model

    monkeypatch.setattr(pumice, "aload", load, raising=False)
    async with running(app({"chat": "scripted"}, **settings)) as client:
        yield client
