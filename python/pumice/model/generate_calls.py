"""Model's calls from prompts to text."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ..common.arguments import DIRECT_CHARACTERS, checked_keywords, integer, real
from ..common.interruptible import interruptible
from ..generate.generation import READ_AHEAD, Begin, Continuation, Generation, Run, Stream, run_to_end
from ..generate.grammar import Grammar, Grammars, check_grammars
from ..generate.prompts import Prompt, prompt_ids, prompt_list
from ..generate.settings import SAMPLING_DEFAULTS, Sampling, resolve_params
from ..generate.speculation import speculation
from ..generate.token_settings import each_prompt
from .base import Loaded, survives_its_device

if TYPE_CHECKING:
    from typing_extensions import Unpack


Int32 = npt.NDArray[np.int32]


class GenerateCalls(Loaded):
    _grammars: Grammars

    @checked_keywords(SAMPLING_DEFAULTS)
    @survives_its_device
    def generate(
        self, prompt: Prompt | Sequence[Prompt], *, sampling: Sequence[Mapping[str, Any] | None] | None = None, **options: Unpack[Sampling]
    ) -> Any:
        """What follows a prompt: a Generation. A list of them for a list of prompts, or n > 1 (each prompt's samples together).

        prompt: a string (the model's special tokens are added; a first token that it spells out is not doubled), token ids (taken as
            they are), or a list of either; a list runs as one batch.
        sampling: for a list of prompts: a dict of the settings below for each, or None; the call's keywords count where it says nothing.
        max_new_tokens: at most so many tokens.  stop: strings (found across token borders, cut off with all that follows) or token ids.
        min_new_tokens: before so many, no end token and no token id of `stop` comes.  ignore_eos: end tokens are tokens like others.
        bad_words: strings, or lists of token ids, that never come.
        logits_processor: a function of (ids, row): all token ids so far, int32, and the logits of the next one, float32, which it
            changes in place (-inf forbids a token). It is called in this thread; what it raises ends the call.
        temperature (0: greedy), top_k, top_p, min_p, typical_p, repetition_penalty, presence_penalty, frequency_penalty: None takes the
            model's own setting, else it is off. A filter without a temperature means temperature 1.
        dry_multiplier, dry_base, dry_allowed_length, dry_range, dry_breakers: against repetitions (DRY). top_n_sigma, xtc_probability,
            xtc_threshold, mirostat_tau, mirostat_eta: more filters; docs/python.md says what they do, and in which order.
        logit_bias: token id, or the text of one token, -> number added to its logit (-inf forbids it).
        seed: None: fresh, and reported in the result.  n: samples per prompt.
        logprobs: True, or how many alternatives per token, for log-probabilities.
        grammar: what the answer must look like: a Grammar, a Lark grammar as text, or a list with one for each prompt (None: free).
        speculate: "lookup" guesses the next tokens from what followed the same tokens before, so that a step may give several;
            {"lookup": 3, "guesses": 8}: how many must match, and how many are guessed. draft: a smaller Model with the same tokenizer
            that guesses. The tokens stay the same; it stops where it does not pay.

        Raises GrammarError, ContextLengthError, UnsupportedTaskError, TypeError and ValueError that name the argument. KeyboardInterrupt
        carries what there is as .partial.
        """
        return self._generate(prompt, options, stream=False, sampling=sampling)

    @checked_keywords(SAMPLING_DEFAULTS)
    def stream(
        self, prompt: Prompt | Sequence[Prompt], *, sampling: Sequence[Mapping[str, Any] | None] | None = None, **options: Unpack[Sampling]
    ) -> Stream:
        """generate() as an iterator of Chunks: `for chunk in m.stream(p): print(chunk, end="")`.

        Text comes in whole characters, and never a part of a stop string. Closing the iterator cancels; its .result is then the
        Generation. Nothing is locked between chunks: other calls on the model go on."""
        return self._generate(prompt, options, stream=True, sampling=sampling)  # type: ignore[no-any-return]

    def _generate(self, prompt: Any, options: Mapping[str, Any], stream: bool, sampling: Any = None) -> Any:
        self._need("generate", "stream()" if stream else "generate()")
        prompts, single = prompt_list(prompt)
        names = ["prompt"] if single else [f"prompt {i}" for i in range(len(prompts))]
        settings = None if sampling is None else each_prompt(options, sampling, len(prompts), single, SAMPLING_DEFAULTS)
        grammars = check_grammars(options.get("grammar"), len(prompts), single, sampling)
        ids = self._prompt_ids(prompts, names)
        params = self._params(options)
        single = single and params.n == 1
        each = params if settings is None else [self._params(s, f"sampling[{i}]: ") for i, s in enumerate(settings)]
        guessed = speculation(self, options)
        return self._start(ids, each, lambda found: found[0] if single else found, stream, speculation=guessed, grammars=grammars)

    def _prompt_ids(self, prompts: Sequence[Any], names: Sequence[str]) -> list[Int32]:
        convert = functools.partial(prompt_ids, tokenizer=self._tokenizer, vocab_size=self.info["vocab_size"])

        def all_ids() -> list[Int32]:
            return [convert(prompt, name=name) for prompt, name in zip(prompts, names, strict=True)]

        long = sum(len(p) for p in prompts if isinstance(p, str)) > DIRECT_CHARACTERS
        return interruptible(all_ids) if long else all_ids()

    def _params(self, options: Mapping[str, Any], where: str = "") -> Any:
        try:
            return resolve_params(SAMPLING_DEFAULTS | dict(options), self._settings, self._tokenizer, self.info["vocab_size"])
        except (TypeError, ValueError) as error:
            if not where:
                raise
            raise type(error)(f"{where}{error}") from None

    def _start(
        self,
        ids: list[Int32],
        params: Any,
        finish: Callable[[list[Generation]], Any],
        stream: bool,
        begin: Begin = Continuation,
        speculation: Mapping[str, Any] | None = None,
        grammars: Sequence[Grammar | None] = (),
    ) -> Any:
        if not ids:
            if stream:
                raise ValueError("prompt is an empty list: there is nothing to stream")
            return finish([])
        compiled = [None if grammar is None else self._grammars.compiled(grammar) for grammar in grammars]
        run = Run(
            self._layers("generate()"),
            self._tokenizer,
            ids,
            params,
            self._eos_ids,
            begin,
            READ_AHEAD if stream else 0,
            speculation,
            compiled,
        )
        return Stream(run, finish) if stream else run_to_end(run, finish)

    @functools.cached_property
    def _eos_ids(self) -> list[int]:
        ends = {*map(int, self._tokenizer.eos_ids), *self._settings.eos_ids}
        return sorted(i for i in ends if i < self.info["vocab_size"])  # files also name tokens that the weights have no row for

    def cache_stats(self) -> dict[str, int]:
        """Prefix reuse since load: prompt_tokens, reused_tokens, pages_in_use, pages_cached, pages_evicted."""
        return self._core.cache_stats()

    def stats(self) -> dict[str, Any]:
        """What the batch of all callers does. Requests: running (they have pages), waiting, lagging (their readers do). Of the last step:
        step_rows. Since load: steps, prompt_tokens (computed), decoded_tokens, preempted (sequences that gave their pages to others),
        busy_seconds. Pages of 32 positions: pages_in_use, pages_cached, pages_budget."""
        self._need("generate", "stats()")
        return self._layers("stats()").stats()

    @checked_keywords()
    def set_limits(self, *, running: int | None = None, waiting: int | None = None, step_seconds: float | None = None) -> dict[str, Any]:
        """Changes what is given, and says all: at most `running` requests take part in steps, `waiting` more may wait before agenerate(),
        achat() and astream() raise OverloadedError (generate() and its like always wait); a step that reads a prompt while another request
        gets tokens takes about step_seconds."""
        self._need("generate", "set_limits()")
        return self._layers("set_limits()").set_limits(
            None if running is None else integer("running", running, 1, 2**31 - 1),
            None if waiting is None else integer("waiting", waiting, 0, 2**31 - 1),
            None if step_seconds is None else real("step_seconds", step_seconds, 0.0, 1e6, open_low=True),
        )
