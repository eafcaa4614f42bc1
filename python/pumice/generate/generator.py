"""The part that a model's generate(), stream() and chat() share. It converts prompts to ids, resolves settings, and runs requests."""

from __future__ import annotations

import functools
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from .. import _core
from ..common.arguments import DIRECT_CHARACTERS
from ..common.forks import cached_property
from ..common.interruptible import interruptible
from .generation import READ_AHEAD, Begin, Continuation, Finish, Run, Stream, run_to_end
from .grammar import Grammar, Grammars
from .prompts import prompt_ids
from .reasoning import Marks, Reasoning, ReasoningBudgets
from .settings import SAMPLING_DEFAULTS, ModelSettings, SamplingParams, resolve_params, with_chat_defaults

if TYPE_CHECKING:
    from ..tokens.tokenizers import Tokenizer

Int32 = npt.NDArray[np.int32]


class Generator:
    """One model's tokenizer, settings and grammars. Each call passes the engine, because a model may move to another device and so get
    another engine."""

    def __init__(self, tokenizer: Tokenizer, settings: ModelSettings, vocab_size: int) -> None:
        self._tokenizer, self._settings, self._vocab_size = tokenizer, settings, vocab_size
        self.grammars = Grammars(tokenizer, vocab_size, lambda: self.eos_ids)
        self._budgets = ReasoningBudgets(tokenizer, self.grammars.token_bytes)

    @cached_property
    def eos_ids(self) -> list[int]:
        """The ids that end an answer, in ascending order. They come from the tokenizer and from the model's files. Ids that have no row in
        the weights are left out."""
        return sorted(i for i in {*map(int, self._tokenizer.eos_ids), *self._settings.eos_ids} if i < self._vocab_size)

    def prompt_ids(self, prompts: Sequence[Any], names: Sequence[str]) -> list[Int32]:
        """Returns the ids of each prompt. A prompt is a text or a sequence of ids. names: the names of the prompts in error messages."""

        def all_ids() -> list[Int32]:
            convert = functools.partial(prompt_ids, tokenizer=self._tokenizer, vocab_size=self._vocab_size)
            return [convert(prompt, name=name) for prompt, name in zip(prompts, names, strict=True)]

        long = sum(len(p) for p in prompts if isinstance(p, str)) > DIRECT_CHARACTERS
        return interruptible(all_ids) if long else all_ids()

    def params(self, options: Mapping[str, Any], where: str = "") -> SamplingParams:
        """Returns the settings of a call. Raises TypeError or ValueError that names the wrong setting. `where` is prepended to the error
        message."""
        try:
            return resolve_params(SAMPLING_DEFAULTS | dict(options), self._settings, self._tokenizer, self._vocab_size)
        except (TypeError, ValueError) as error:
            if not where:
                raise
            raise type(error)(f"{where}{error}") from None

    @property
    def chat_sampling(self) -> Mapping[str, Any]:
        """The settings with which tokens of answers are chosen if neither the call nor the model's files say it."""
        return self._settings.chat_sampling

    def answering(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the keywords of an answer, with the defaults of answers where neither the call nor the model's files have a value."""
        return with_chat_defaults(options, self._settings)

    def reasoning(self, marks: Marks, ids: Int32, opened: bool | None = None) -> Reasoning:
        """Returns the data that a request with max_reasoning_tokens needs for one prompt. opened: whether the reasoning begins in the
        prompt. If it is None, the prompt's ids decide. Raises TokenizerError if the tokenizer cannot spell the marks."""
        if opened is None:
            opened = marks.opened_in(self._tokenizer.decode(ids, skip_special=False))
        return Reasoning(self._budgets.marks(marks), opened)

    def start(
        self,
        engine: _core.Model,
        ids: list[Int32],
        params: SamplingParams | Sequence[SamplingParams],
        finish: Finish,
        stream: bool,
        begin: Begin = Continuation,
        speculation: Mapping[str, Any] | None = None,
        grammars: Sequence[Grammar | None] = (),
        reasoning: Sequence[Reasoning] = (),
        ends: Collection[int] = (),
    ) -> Any:
        """Starts a request. Returns a Stream if `stream` is true. Otherwise runs the request to its end and returns finish(results).

        params: settings for all prompts, or one element per prompt.  begin: a function that makes the object which collects the tokens of a
        sequence. speculation: fields of GenerateParams by name.  grammars: empty, or one element (which may be None) per prompt.
        reasoning: one element per prompt, or empty if no prompt has max_reasoning_tokens. ends: further tokens that end an answer."""
        if not ids:
            if stream:
                raise ValueError("prompt is an empty list: there is nothing to stream")
            return finish([])
        compiled = [None if grammar is None else self.grammars.compiled(grammar) for grammar in grammars]
        eos_ids = sorted({*self.eos_ids, *(i for i in ends if i < self._vocab_size)}) if ends else self.eos_ids
        run = Run(engine, self._tokenizer, ids, params, eos_ids, begin, READ_AHEAD if stream else 0, speculation, compiled, reasoning)
        return Stream(run, finish) if stream else run_to_end(run, finish)
