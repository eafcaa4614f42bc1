"""What all calls of a Model share: its engine, its tokenizer, what it can do, and the way to the CPU when its GPU is lost."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

import numpy as np
import numpy.typing as npt

from .. import _core as core
from ..common.arguments import DIRECT_CHARACTERS, check_text, checked_keywords, flag, shown_path
from ..common.interruptible import interruptible
from ..encode.engine import Engine
from ..encode.static import StaticEngine
from ..errors import DeviceLostError, UnsupportedTaskError
from ..generate.prompts import Ids, check_ids

if TYPE_CHECKING:
    import tokenizers

    from ..encode.sentence_config import SentenceConfig
    from ..generate.settings import ModelSettings
    from ..tokens.tokenizers import Tokenizer

Int32 = npt.NDArray[np.int32]

_TASK_NEEDS = {
    "encode": "an encoder, or a decoder that gives hidden states",
    "generate": "a decoder with an output head",
    "classify": "a classifier or cross-encoder: a model with a classifier head, or a reranker with LogitScore",
}
TASK_CALLS = {"encode": "encode()", "generate": "generate()", "classify": "predict() and rank()"}

P = ParamSpec("P")
R = TypeVar("R")
L = TypeVar("L", bound="Loaded")


def survives_its_device(method: Callable[Concatenate[L, P], R]) -> Callable[Concatenate[L, P], R]:
    """With device="auto", a call whose GPU is lost warns, moves the model to the CPU and is done again there."""

    @functools.wraps(method)
    def call(self: L, /, *args: P.args, **kwargs: P.kwargs) -> R:
        engine = self._core
        try:
            return method(self, *args, **kwargs)
        except DeviceLostError as lost:
            if self._options["device"] != "auto":
                raise
            self._move_to_cpu(engine, lost)
            if any(isinstance(arg, Iterator) for arg in args):  # it has been read, and cannot be read again
                raise
            return method(self, *args, **kwargs)

    return call


class Loaded:
    """What Model's __init__ sets, and what does not belong to a task."""

    path: Path
    info: dict[str, Any]
    _core: core.Model | StaticEngine
    _file: core.ModelFile
    _tokenizer: Tokenizer
    _config: SentenceConfig
    _settings: ModelSettings
    _options: dict[str, Any]
    _closed: bool
    _drafts: weakref.WeakSet[Any]  # models that have this one's tokenizer

    def _move_to_cpu(self, lost_core: Engine, lost: DeviceLostError) -> None:
        raise NotImplementedError

    def _layers(self, call: str) -> core.Model:
        """The engine of a model with layers."""
        if isinstance(self._core, StaticEngine):
            raise UnsupportedTaskError(f"{call} needs a model with layers; this one is a table of vectors (static). It can do encode()")
        return self._core

    def _need(self, task: str, call: str) -> None:
        if self._closed:
            raise ValueError(f"This model ({shown_path(self.path.name)}) is closed")
        tasks = list(self.info["tasks"])
        if task not in tasks:
            can = " and ".join(TASK_CALLS[t] for t in tasks if t in TASK_CALLS)
            raise UnsupportedTaskError(
                f"{call} needs {_TASK_NEEDS[task]}; {shown_path(self.path.name)} is {self.info['architecture']!r}. It can do {can}"
            )

    # ------------------------------------------------------------ tokens
    @checked_keywords()
    def tokenize(self, text: str, add_special: bool = True) -> Int32:
        """Token ids of a text: int32 (T,). add_special: with the tokens that the model wants around it."""
        text = check_text(text, "text")
        add_special = flag("add_special", add_special)
        work = functools.partial(self._tokenizer.encode, text, add_special=add_special)
        ids = interruptible(work) if len(text) > DIRECT_CHARACTERS else work()
        return np.ascontiguousarray(ids, np.int32)

    @checked_keywords()
    def detokenize(self, ids: Ids, skip_special: bool = True) -> str:
        """The text of token ids (bytes that make no character become U+FFFD)."""
        array = check_ids(ids, self.info["vocab_size"], "ids")
        skip_special = flag("skip_special", skip_special)
        return str(self._tokenizer.decode(array, skip_special=skip_special)) if array.size else ""

    def count_tokens(self, text: str) -> int:
        """How many tokens a text is, special ones included."""
        return len(self.tokenize(text))

    @property
    def tokenizer(self) -> tokenizers.Tokenizer:
        """A copy of the tokenizers.Tokenizer of this model, always the same one: what is changed in it (padding, truncation, added
        tokens) changes nothing that the model gives. load(tokenizer=) takes a changed one."""
        return self._tokenizer.shared_copy
