"""Model's methods that convert prompts to text."""

from __future__ import annotations

import functools
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..common.arguments import DIRECT_CHARACTERS, argument, checked_keywords, integer, real, shown_path
from ..common.interruptible import interruptible
from ..errors import ContextLengthError, GrammarError, UnsupportedTaskError
from ..generate.gaps import Files, Surroundings, gaps_of
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
    """generate() and stream(), counts of the prefix cache, and limits of the batch in which all calls run."""

    @checked_keywords(SAMPLING_DEFAULTS)
    @survives_its_device
    def generate(
        self,
        prompt: Prompt | Sequence[Prompt] | None = None,
        *,
        prefix: str | Sequence[str] | None = None,
        suffix: str | Sequence[str] | None = None,
        files: Files | None = None,
        repository: str | None = None,
        path: str | None = None,
        sampling: Sequence[Mapping[str, Any] | None] | None = None,
        **options: Unpack[Sampling],
    ) -> Any:
        """Continues a prompt. Returns a Generation, or a list of them for a list of prompts or for n > 1, with the samples of the first
        prompt first.

        prompt: a string, token ids, or a list of either, which runs as one batch. Token ids are used as they are. A string gets the model's
            special tokens; if it already begins with the first special token, the token is not added again.
        prefix, suffix: in place of `prompt`, the texts before and after a gap: the model writes what belongs between them. One of them may
            be missing. Lists of strings run as one batch; a string beside a list is for all gaps. The model's vocabulary must have tokens
            that mark a gap (docs/python/generate.md lists the models). Such tokens in the texts are plain text.
        files: beside prefix and suffix, other files that the model reads first: a dict from path to text, or a list of (path, text). The
            most useful file is last.
        repository, path: the name of the repository, and the path of the file that has the gap. repository needs a model with a token for
            it.
        sampling: for a list of prompts, a list with the settings of each prompt. Each entry is None, or a dict of the keywords below. The
            call's own keywords apply where a dict does not have them.
        max_new_tokens: maximum number of generated tokens.
        min_new_tokens: the first `min_new_tokens` tokens are neither an end token nor a token id in `stop`.
        ignore_eos: True treats end tokens like all other tokens.
        stop: strings or token ids that end the text. A string is found even across token borders. The text is cut before the string. chat()
            finds strings in the content only. A string in the reasoning or in a tool call does not end the answer.
        bad_words: strings, or lists of token ids, that are never generated.
        max_reasoning_tokens: after this many tokens, the model's reasoning ends: the tokens of its end marker come next, and the answer
            continues. The result's .reasoning_cut tells whether that happened. None means no limit.
        max_repeated_tokens: the text ends, with finish_reason "repetition", when this many of its last tokens (64 or more) are one phrase
            of at most 32 tokens over and over. None and 0 mean never.
        temperature (0: greedy), top_k, top_p, min_p, typical_p, repetition_penalty, presence_penalty, frequency_penalty: None means the
            model's own setting, or off if it has none. If a filter is given and no temperature, the temperature is 1.
        dry_multiplier, dry_base, dry_allowed_length, dry_range, dry_breakers: settings of the DRY penalty for repetitions.
        top_n_sigma, xtc_probability, xtc_threshold, mirostat_tau, mirostat_eta: settings of further filters. docs/python/generate.md
            says in which order filters apply.
        logit_bias: a dict from a token id, or from the text of a single token, to a number that is added to the token's logit. -inf forbids
            the token.
        logits_processor: a function of (ids, row). ids (int32) has all token ids so far, and row (float32) the logits of the next token,
            which the function changes in place. -inf forbids a token. The function is called in the caller's thread. An exception in it
            ends the call.
        seed: None means a new seed, which the result reports.
        n: number of samples for each prompt.
        logprobs: True returns the log-probabilities of the chosen tokens. A number also returns those of this many likeliest tokens.
        grammar: the form that the answer must have. A Grammar, a grammar in Lark or GBNF as text, or a list with one of them (or
            None: any text) for each prompt.
        priority: calls on a model with a higher priority run first.
        max_seconds: the call ends this long after its start, with finish_reason "cancelled" and what was generated until then. 0 means no
            limit.
        chunk_seconds: least time between two chunks of a stream, except for the first and the last one.
        speculate: "lookup" guesses the next tokens: those that followed the same tokens earlier in the text. A step may then generate
            several tokens. {"lookup": 3, "guesses": 8} also sets how many tokens must match and how many are guessed. "mtp": the model's
            own layer for draft tokens, or its assistant, makes the guesses. This is the default if neither speculate nor draft is given.
            "off": no guesses.
        draft: a smaller Model with the same tokenizer, which guesses the next tokens. Guesses do not change the generated tokens, and
            guessing stops if it does not save time.

        Raises ChatTemplateError if max_reasoning_tokens is given and the markers of reasoning are not known, GrammarError,
        GrammarBusyError, ContextLengthError, UnsupportedTaskError, and TypeError or ValueError, whose message names the argument. A
        KeyboardInterrupt has the result so far as .partial.
        """
        gap = Surroundings.of(prefix, suffix, files, repository, path)
        return self._generate(prompt, options, stream=False, sampling=sampling, gap=gap)

    @checked_keywords(SAMPLING_DEFAULTS)
    def stream(
        self,
        prompt: Prompt | Sequence[Prompt] | None = None,
        *,
        prefix: str | Sequence[str] | None = None,
        suffix: str | Sequence[str] | None = None,
        files: Files | None = None,
        repository: str | None = None,
        path: str | None = None,
        sampling: Sequence[Mapping[str, Any] | None] | None = None,
        **options: Unpack[Sampling],
    ) -> Stream:
        """Like generate(), with the same arguments, but returns an iterator of Chunks: `for chunk in m.stream(p): print(chunk, end="")`.

        Chunks have whole characters, and no part of a stop string. Closing the iterator cancels the rest of the generation. Its .result is
        then the Generation so far. No lock is held between chunks, so other calls on the model continue."""
        gap = Surroundings.of(prefix, suffix, files, repository, path)
        return self._generate(prompt, options, stream=True, sampling=sampling, gap=gap)  # type: ignore[no-any-return]

    def _generate(
        self, prompt: Any, options: Mapping[str, Any], stream: bool, sampling: Any = None, gap: Surroundings | None = None
    ) -> Any:
        engine = self._decoder("stream()" if stream else "generate()")
        if (prompt is None) == (gap is None):
            both = "and also prefix or suffix was" if gap is not None else "nor prefix and suffix were"
            raise TypeError(f"prompt was {'not ' if gap is None else ''}given, {both} given; a call has one of the two")
        ends: Collection[int] = ()
        if gap is not None:
            prompt, ends = self._gap_prompts(gap)
        prompts, single = prompt_list(prompt)
        names = ["prompt"] if single else [f"prompt {i}" for i in range(len(prompts))]
        settings = None if sampling is None else each_prompt(options, sampling, len(prompts), single, SAMPLING_DEFAULTS)
        with argument("grammar"):
            grammars = check_grammars(options.get("grammar"), len(prompts), single, sampling)
        generator = self._generator
        ids = generator.prompt_ids(prompts, names)
        params = generator.params(options)
        single = single and params.n == 1
        each = params if settings is None else [generator.params(s, f"sampling[{i}]: ") for i, s in enumerate(settings)]
        reasoning = []
        if any(p.max_reasoning_tokens is not None for p in (each if isinstance(each, list) else [each])):
            marks = self._chats.marks()
            reasoning = [generator.reasoning(marks, each_ids) for each_ids in ids]
        given = "prompt" if gap is None else "prefix"
        with argument(given, ContextLengthError), argument("grammar", GrammarError), argument("speculate", UnsupportedTaskError):
            return generator.start(
                engine,
                ids,
                each,
                lambda found: found[0] if single else found,
                stream,
                speculation=speculation(self, options),
                grammars=grammars,
                reasoning=reasoning,
                ends=ends,
            )

    def _gap_prompts(self, gap: Surroundings) -> tuple[Any, Collection[int]]:
        """Returns the prompts of gaps in the form of generate()'s `prompt`, and the further tokens that end their answers."""
        gaps = gaps_of(self._tokenizer, shown_path(self.path.name))
        vocab_size = int(self._info["vocab_size"])
        ids = (
            interruptible(functools.partial(gap.ids, gaps, vocab_size)) if gap.characters > DIRECT_CHARACTERS else gap.ids(gaps, vocab_size)
        )
        return ids[0] if gap.single else ids, gaps.ends

    def cache_stats(self) -> dict[str, int]:
        """Returns counts of the prefix cache: prompt_tokens and reused_tokens (of all prompts since load()), pages_in_use, pages_cached,
        pages_evicted (since load()), and, for a model with recurrent layers, states_in_use and states_cached.

        If not all experts of a mixture are in memory (expert_cache=), expert_hits counts how often a step found a needed expert in memory,
        and expert_reads how often it read one from the file."""
        return self._core.cache_stats()

    @checked_keywords()
    def set_limits(self, *, running: int | None = None, waiting: int | None = None, step_seconds: float | None = None) -> dict[str, Any]:
        """Sets those limits that are given. Returns all limits.

        running: maximum number of requests that take part in steps.
        waiting: maximum number of further requests that wait. If there are more, agenerate(), achat() and astream() raise OverloadedError.
            Blocking calls such as generate() wait without a limit.
        step_seconds: maximum duration of a step that computes rows of a prompt while another request decodes. A smaller value makes streams
            smoother, but prompts take longer."""
        return self._decoder("set_limits()").set_limits(
            None if running is None else integer("running", running, 1, 2**31 - 1),
            None if waiting is None else integer("waiting", waiting, 0, 2**31 - 1),
            None if step_seconds is None else real("step_seconds", step_seconds, 0.0, 1e6, open_low=True),
        )
