"""The calls of Model from prompts to text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..common.arguments import checked_keywords, integer, real
from ..generate.generation import Stream
from ..generate.grammar import check_grammars
from ..generate.prompts import Prompt, prompt_list
from ..generate.settings import SAMPLING_DEFAULTS, Sampling
from ..generate.token_settings import each_prompt
from .base import ModelBase, survives_its_device
from .speculation import speculation

if TYPE_CHECKING:
    from typing_extensions import Unpack


class GenerateCalls(ModelBase):
    """Prompts to text, and the state of the batch of all calls."""

    @checked_keywords(SAMPLING_DEFAULTS)
    @survives_its_device
    def generate(
        self, prompt: Prompt | Sequence[Prompt], *, sampling: Sequence[Mapping[str, Any] | None] | None = None, **options: Unpack[Sampling]
    ) -> Any:
        """The text that follows a prompt: a Generation. For a list of prompts, or n > 1, a list of them, prompt by prompt.

        prompt: a string (the model's special tokens are added; a first token that the string spells is not doubled), token ids (used as
            they are), or a list of either, which runs as one batch.
        sampling: settings for each prompt of a list: dicts of keywords below, or None; the call's keywords count where one says nothing.
        max_new_tokens: the most tokens that are generated.
        min_new_tokens: before so many tokens, no end token and no token id of `stop` is generated.
        ignore_eos: end tokens are tokens like others.
        stop: strings or token ids. Strings are found across token borders, and cut off with all that follows.
        bad_words: strings, or lists of token ids, that are never generated.
        temperature (0: greedy), top_k, top_p, min_p, typical_p, repetition_penalty, presence_penalty, frequency_penalty: None means the
            model's own setting, else off. A filter without a temperature means temperature 1.
        dry_multiplier, dry_base, dry_allowed_length, dry_range, dry_breakers: against repetitions (DRY).
        top_n_sigma, xtc_probability, xtc_threshold, mirostat_tau, mirostat_eta: more filters; docs/python.md has them in their order.
        logit_bias: token id, or the text of one token, -> number added to its logit (-inf forbids the token).
        logits_processor: a function of (ids, row): all token ids so far, int32, and the logits of the next token, float32, which it
            changes in place (-inf forbids a token). It is called in this thread; an error that it raises ends the call.
        seed: None: a fresh one, which the result names.
        n: samples of each prompt.
        logprobs: True: log-probabilities of the chosen tokens. A number: also those of so many likeliest tokens.
        grammar: what the answer must look like: a Grammar, a Lark grammar as text, or a list with one for each prompt (None: free).
        priority: among the calls on a model, higher ones go first.
        speculate: "lookup" guesses the next tokens from the text that followed the same tokens before, so that a step may give several;
            {"lookup": 3, "guesses": 8} says how many tokens must match, and how many are guessed. "off": no guesses.
        draft: a smaller Model with the same tokenizer, which guesses. The tokens stay the same; guessing stops where it does not pay.

        Raises GrammarError, ContextLengthError, UnsupportedTaskError, and TypeError and ValueError that name the argument. A
        KeyboardInterrupt has the result so far as .partial.
        """
        return self._generate(prompt, options, stream=False, sampling=sampling)

    @checked_keywords(SAMPLING_DEFAULTS)
    def stream(
        self, prompt: Prompt | Sequence[Prompt], *, sampling: Sequence[Mapping[str, Any] | None] | None = None, **options: Unpack[Sampling]
    ) -> Stream:
        """generate() as an iterator of Chunks: `for chunk in m.stream(p): print(chunk, end="")`. Takes what generate() takes.

        Text comes in whole characters, and no chunk has a part of a stop string. Closing the iterator cancels the rest; its .result is then
        the Generation so far. No lock is held between chunks, so other calls on the model go on."""
        return self._generate(prompt, options, stream=True, sampling=sampling)  # type: ignore[no-any-return]

    def _generate(self, prompt: Any, options: Mapping[str, Any], stream: bool, sampling: Any = None) -> Any:
        engine = self._decoder("stream()" if stream else "generate()")
        prompts, single = prompt_list(prompt)
        names = ["prompt"] if single else [f"prompt {i}" for i in range(len(prompts))]
        settings = None if sampling is None else each_prompt(options, sampling, len(prompts), single, SAMPLING_DEFAULTS)
        grammars = check_grammars(options.get("grammar"), len(prompts), single, sampling)
        generator = self._generator
        ids = generator.prompt_ids(prompts, names)
        params = generator.params(options)
        single = single and params.n == 1
        each = params if settings is None else [generator.params(s, f"sampling[{i}]: ") for i, s in enumerate(settings)]
        return generator.start(
            engine,
            ids,
            each,
            lambda found: found[0] if single else found,
            stream,
            speculation=speculation(self, options),
            grammars=grammars,
        )

    def cache_stats(self) -> dict[str, int]:
        """Prefix reuse since load: prompt_tokens, reused_tokens, pages_in_use, pages_cached, pages_evicted."""
        return self._core.cache_stats()

    def stats(self) -> dict[str, Any]:
        """The state of the batch of all calls.

        Requests: running (they have pages), waiting, lagging (paused, because their stream is not read). The last step: step_rows. Since
        load: steps, prompt_tokens (computed), decoded_tokens, preempted (sequences that gave up their pages), busy_seconds. Pages of 32
        positions: pages_in_use, pages_cached, pages_budget."""
        return self._decoder("stats()").stats()

    @checked_keywords()
    def set_limits(self, *, running: int | None = None, waiting: int | None = None, step_seconds: float | None = None) -> dict[str, Any]:
        """Sets the limits that are given, and returns all of them.

        running: the most requests that take part in steps.
        waiting: so many more requests may wait; beyond them agenerate(), achat() and astream() raise OverloadedError. Calls that block wait
            in any case.
        step_seconds: the time of a step that reads a prompt while another request gets tokens. Smaller is smoother for streams, and prompts
            take longer."""
        return self._decoder("set_limits()").set_limits(
            None if running is None else integer("running", running, 1, 2**31 - 1),
            None if waiting is None else integer("waiting", waiting, 0, 2**31 - 1),
            None if step_seconds is None else real("step_seconds", step_seconds, 0.0, 1e6, open_low=True),
        )
