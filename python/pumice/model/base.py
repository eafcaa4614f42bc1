"""The base class of Model. It has what all calls of a model share: the engine, the tokenizer, an object for each task, and the move to the
CPU if a GPU is lost."""

from __future__ import annotations

import copy
import functools
import weakref
from collections.abc import Callable, Iterator, Sequence, Sized
from pathlib import Path
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

import numpy as np
import numpy.typing as npt

from .. import _core
from ..chats.chat import Chats
from ..common.arguments import shown_path, warn
from ..common.forks import Lock
from ..encode.encoding import Encoder
from ..encode.engine import Engine
from ..encode.sentence_config import SentenceConfig
from ..encode.static import StaticEngine
from ..errors import ChatTemplateError, DeviceLostError, FallbackWarning, UnsupportedTaskError
from ..generate.generator import Generator
from ..generate.settings import ModelSettings
from ..loading.files import has_types, incomplete_parts, labels_of
from ..loading.options import engine_options

if TYPE_CHECKING:
    from ..event_loops.workers import Pools
    from ..tokens.tokenizers import Tokenizer

Int32 = npt.NDArray[np.int32]

_TASK_NEEDS = {
    "sparse": "an encoder with a head that predicts masked tokens",
    "encode": "an encoder, or a decoder that gives hidden states",
    "generate": "a decoder with an output head",
    "classify": "a classifier or cross-encoder: a model with a classifier head, or a reranker with LogitScore",
    "label": "a classifier of tokens (a model of a class ...ForTokenClassification)",
}
TASK_CALLS = {
    "encode": "encode()",
    "sparse": 'encode(output="sparse")',
    "generate": "generate()",
    "classify": "predict() and rank()",
    "label": "label_tokens()",
}

P = ParamSpec("P")
R = TypeVar("R")
B = TypeVar("B", bound="ModelBase")


def survives_its_device(method: Callable[Concatenate[B, P], R]) -> Callable[Concatenate[B, P], R]:
    """A decorator for methods of a model. If the GPU is lost during a call of such a method, and the model was loaded with device="auto",
    the call issues a warning, moves the model to the CPU, and starts again there."""

    @functools.wraps(method)
    def call(self: B, /, *args: P.args, **kwargs: P.kwargs) -> R:
        engine = self._core
        try:
            return method(self, *args, **kwargs)
        except DeviceLostError as lost:
            if self._options["device"] != "auto":
                raise
            self._move_to_cpu(engine, lost)
            # The first attempt may have consumed an iterator among the arguments, so the call cannot start again.
            if any(isinstance(arg, Iterator) for arg in (*args, *kwargs.values())):
                raise
            return method(self, *args, **kwargs)

    return call


class ModelBase:
    """A loaded model without its public calls. These are in subclasses, one subclass per topic, in the other files of this folder."""

    def __init__(
        self,
        path: Path,
        file: _core.ModelFile,
        engine: _core.Model | StaticEngine,
        tokenizer: Tokenizer,
        config: SentenceConfig,
        settings: ModelSettings,
        options: dict[str, Any],
        notes: Sequence[str] = (),
    ) -> None:
        """settings: the generation settings in the model's files.  options: all options of load(), already checked.  notes: further notes
        for summary(), which also has the engine's notes."""
        self.path = path
        self._file, self._core, self._tokenizer, self._config, self._options = file, engine, tokenizer, config, options
        self._closed = False
        self._written_roles: set[tuple[str, ...]] = set()  # roles of messages that the chat template is known to write
        self._notes = tuple(notes)
        self._incomplete = [
            *incomplete_parts(file, engine, tokenizer, options["tokenizer"] is not None, bool(options["lora"])),
            *config.notes,
        ]
        self._encoder = self._make_encoder(engine)
        self._routes: dict[str, Any] = {}  # name of the route -> Model
        self._default_route: str | None = None
        vocab_size = int(engine.info["vocab_size"])
        self._generator = Generator(tokenizer, settings, vocab_size)
        templates = options["chat_template"], options["response_template"]
        self._chats = Chats(file, tokenizer, vocab_size, *templates, self._generator.grammars)
        self._drafts: weakref.WeakSet[ModelBase] = weakref.WeakSet()  # models whose vocabulary was found equal to this model's
        self._moving = Lock()
        self._pools: Pools | None = None  # the threads of asynchronous calls; made by the first such call
        self._small_calls: Sized = ()  # the calls of aencode() that wait to be tokenized; event_loops/small_encodes.py sets it
        self._info: dict[str, Any] = {
            **engine.info,
            "lora": [*options["lora"]],
            "labels": labels_of(file, int(engine.info["labels"]), config, "label" in engine.info["tasks"]),
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
        # The activation stands in config_sentence_transformers.json, or in config.json: at the first key since version 4 of
        # sentence-transformers' CrossEncoder, at the second one in earlier versions. A dot leads to a nested value.
        keys = ("sentence_transformers.activation_fn", "sbert_ce_default_activation_function")
        named = (self._config.activation, *map(self._file.get, keys))
        activation = next((name for name in named if isinstance(name, str)), None)
        render = None if self._config.messages is None else self._message_ids
        return Encoder(engine, self._tokenizer, self._config, activation, has_types(self._file), render)

    def _message_ids(self, texts: Sequence[str], prompt: str, parse_special: bool = False) -> Int32:
        """Returns the ids of one text, or of a pair of query and document, as the chat template writes them. A text is the message of a
        user; the texts of a pair have the roles "query" and "document"; a prompt is the message of a system before them.

        parse_special: as in Tokenizer.encode().

        Raises ChatTemplateError if the template does not write messages of these roles."""
        roles = ("user",) if len(texts) == 1 else ("query", "document")
        if roles not in self._written_roles:
            plain = [*zip(roles, "ab", strict=False)]
            for i, role in enumerate(roles):
                other = [*plain[:i], (role, "0 1 2 3"), *plain[i + 1 :]]
                if np.array_equal(self._rendered(plain), self._rendered(other)):
                    raise ChatTemplateError(
                        f"the model's files say that its chat template writes each text, and the template leaves out messages of the role "
                        f'"{role}". load(chat_template=) takes another template'
                    )
            self._written_roles.add(roles)
        return self._rendered([*([("system", prompt)] if prompt else []), *zip(roles, texts, strict=True)], parse_special)

    def _rendered(self, said: Sequence[tuple[str, str]], parse_special: bool = False) -> Int32:
        """Returns the ids of messages, each a pair of role and text, as the settings of the files have the chat template write them."""
        how = self._config.messages
        assert how is not None
        template, kind = self._chats.template().source, str(self._file.get("model_type"))
        variables = dict(how.variables)
        answered = bool(variables.pop("add_generation_prompt", False))
        messages = [{"role": role, "content": how.content(text, template, kind)} for role, text in said]
        return self._chats.rendered(messages, variables, parse_special, answered=answered)[1]

    @property
    def info(self) -> dict[str, Any]:
        """A dict of information from the file and about how it was loaded: tasks, n_ctx, max_tokens, prompts, ... docs/python/model.md
        lists its keys. Each access makes a new dict, so that changing it does not change the model."""
        return copy.deepcopy(self._info)

    def _need(self, task: str, call: str) -> None:
        if self._closed:
            raise ValueError(f"This model ({shown_path(self.path.name)}) is closed")
        tasks = list(self._info["tasks"])
        if task not in tasks:
            can = " and ".join(TASK_CALLS[t] for t in tasks if t in TASK_CALLS)
            raise UnsupportedTaskError(
                f"{call} needs {_TASK_NEEDS[task]}; {shown_path(self.path.name)} is {self._info['architecture']!r}. It can do {can}"
            )

    def _layers(self, call: str) -> _core.Model:
        """Returns the engine of a model with layers. Raises UnsupportedTaskError for other models."""
        if isinstance(self._core, StaticEngine):
            raise UnsupportedTaskError(f"{call} needs a model with layers; this one is a table of vectors (static). It can do encode()")
        return self._core

    def _decoder(self, call: str) -> _core.Model:
        """Returns the engine of a model that generates. Raises UnsupportedTaskError for other models, and ValueError if the model is
        closed."""
        self._need("generate", call)
        return self._layers(call)

    def _move_to_cpu(self, lost_core: Engine, lost: DeviceLostError) -> None:
        with self._moving():
            if self._core is not lost_core:  # another thread has already moved the model
                return
            options = {**self._options, "device": "cpu", "gpu_layers": "auto", "gpu_experts": "auto"}
            core = _core.load(self._file, engine_options(self._file, options, self._config), None)
            self._core = core
            self._encoder = self._make_encoder(core)
            self._info.update({**core.info, "labels": self._info["labels"]})
            lost_core.close()
        warn(FallbackWarning, f'the model was loaded with device="auto"; it goes on on the CPU, because its GPU failed: {lost}')
