"""POST /v1/completions: prompts without a chat template, as https://platform.openai.com/docs/api-reference/completions describes it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import numpy as np

from ..errors import UnsupportedTaskError
from ..event_loops.streams import AsyncStream
from ..generate.gaps import Surroundings, gaps_of
from ..generate.generation import Chunk, Generation
from ..model.model import Model
from .calls import Call
from .chat_completions import DONE, cuts_of, event_of, failed, stop_text, usage_so_far
from .conversations import finish_of, grammar_of
from .dialects import send
from .failures import Refused, new_id
from .fields import FLAG, INTEGER, TEXT, Field, Fields, Read
from .prompt_scores import LEAST, PROMPT_LOGPROBS, check_count, prompt_logprobs, token_names
from .sampling_fields import (
    AS_IDS,
    GRAMMAR,
    IDLE,
    INERT,
    JSON_SCHEMA,
    LACKING,
    MODEL,
    STOP_SHOWN,
    STREAM,
    STREAM_OPTIONS,
    STRUCTURED,
    TOKEN_IDS,
    sampling_fields,
)
from .settings import Settings

NO_LIMIT = -1  # llama.cpp's max_tokens for an answer that may fill the context
_NO_EXTRAS = {"prompt_logprobs": None, "prompt_token_ids": None, "token_ids": None}  # what vLLM's choices have without these fields
OPENAI_TOKENS = 16  # maximum number of tokens that OpenAI generates if max_tokens is absent


def most_tokens(settings: Settings) -> int:
    """Returns the maximum number of tokens of an answer if the request has no max_tokens."""
    return min(OPENAI_TOKENS, settings.max_answer)


def fields(settings: Settings) -> Fields:
    """Returns the table of the body's fields."""
    ids = {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 2**31 - 1}, "minItems": 1}
    several = {"minItems": 1, "maxItems": settings.max_inputs}
    prompt = {"anyOf": [TEXT, ids, {"type": "array", "items": {"anyOf": [TEXT, ids]}, **several}]}
    return Fields(
        (
            MODEL,
            Field("prompt", prompt, "A text, token ids, or a list of these.", needed=True, covers={"prefix": "prompt"}),
            Field("suffix", TEXT, "The text after a gap, which the answer fills. The prompts are texts.", to="suffix", idle=("",)),
            STREAM,
            STREAM_OPTIONS,
            Field(
                "max_tokens",
                {"type": "integer", "minimum": -1},
                f"Most new tokens; {most_tokens(settings)} if it is not given. 0 together with echo. -1: what fits into the context.",
                to="max_new_tokens",
            ),
            *sampling_fields(settings),
            Field(
                "logprobs", {"type": "integer", "minimum": 0, "maximum": 20}, "Log-probabilities, and those of so many likeliest tokens."
            ),
            Field("echo", FLAG, "True: the answer's text begins with the prompt."),
            Field("best_of", INTEGER, "Must equal n."),
            Field(
                "truncate_prompt_tokens",
                {"anyOf": [{"type": "integer", "minimum": 1}, {"enum": [NO_LIMIT]}]},
                "Only so many last tokens of a prompt are kept. -1: what fits into the context. pumice.cut_tokens says how many were cut.",
            ),
            TOKEN_IDS,
            AS_IDS,
            STOP_SHOWN,
            PROMPT_LOGPROBS,
            STRUCTURED,
            JSON_SCHEMA,
            GRAMMAR,
        ),
        inert=INERT,
        refused={**LACKING, "add_special_tokens": "send token ids instead"},
        idle={**IDLE, "add_special_tokens": (True,)},
    )


def _prompts(given: Any) -> list[Any]:
    """Returns the prompts as a list. Each is a text or token ids."""
    if isinstance(given, str) or (given and isinstance(given[0], int)):
        given = [given]
    prompts = [each if isinstance(each, str) else np.array(each, np.int32) for each in given]
    if not prompts:
        raise Refused(400, "prompt is empty", param="prompt")
    return prompts


class _Asked:
    """A checked request.

    prompts: texts, or ids (T,). ids: the ids of each prompt, or an empty list if nothing needs them. most: maximum number of new tokens.
    cut: number of tokens that truncate_prompt_tokens has cut off. extras: for each prompt, further entries of its choices."""

    def __init__(self, call: Call, read: Read, model: Model, prompts: list[Any]) -> None:
        self.call, self.read, self.model, self.prompts = call, read, model, prompts
        self.n, self.echo, self.top, self.as_ids = read.get("n", 1), bool(read["echo"]), read["logprobs"], bool(read[AS_IDS.name])
        self.context = int(model._info["n_ctx"])
        self.most = read.get("max_tokens", most_tokens(call.server.settings))
        if self.most == NO_LIMIT:
            self.most = self.context
        self.ids: list[Any] = []
        self.cut = 0
        self.extras: list[dict[str, Any]] = [{} for _ in prompts]
        self._check()

    def _check(self) -> None:
        read, settings, count = self.read, self.call.server.settings, len(self.prompts)
        if read.get("best_of", self.n) != self.n:
            raise Refused(400, "best_of must equal n: answers are not ranked", param="best_of")
        if count * self.n > settings.max_sequences:
            message = f"{count} prompts with n={self.n} are more than {settings.max_sequences} answers, the most of a request"
            raise Refused(400, message, param="prompt")
        if self.most == 0 and not self.echo:
            raise Refused(400, "max_tokens: 0 generates nothing; it is taken together with echo", param="max_tokens")
        for name, other, why in (
            ("echo", "stream", "it comes whole"),
            ("prompt_logprobs", "stream", "it comes whole"),
            *((name, "suffix", "it is for prompts without a gap") for name in ("echo", "prompt_logprobs", "truncate_prompt_tokens")),
        ):
            if read[other] and read[name] is not None and read[name] is not False:
                raise Refused(400, f"{name} and {other} were both given; {why}", param=name)
        if read["suffix"] is not None:
            if not all(isinstance(each, str) for each in self.prompts):
                raise Refused(400, "suffix and token ids as the prompt were both given; the texts around a gap are texts", param="prompt")
            try:
                gaps_of(self.model._tokenizer, str(self.call.model))
            except UnsupportedTaskError as error:
                raise Refused(400, str(error), param="suffix") from None

    async def prepare(self) -> None:
        """Tokenizes and cuts the prompts where the request needs that, and computes their log-probabilities for `extras`."""
        read, aside = self.read, self.call.server.aside
        kept, scored = read["truncate_prompt_tokens"], read["prompt_logprobs"]
        if read["suffix"] is not None:
            if read["return_token_ids"]:
                gap = Surroundings.of(self.prompts, read["suffix"])
                self.ids = (await aside(self.model._gap_prompts, gap))[0]
        elif self.echo or kept is not None or scored is not None or read["return_token_ids"]:
            self.ids = await aside(self.model._generator.prompt_ids, self.prompts, ["prompt"] * len(self.prompts))
        if kept is not None:
            kept = self.context - 1 if kept == NO_LIMIT else kept
            self.cut = sum(max(0, len(ids) - kept) for ids in self.ids)
            self.prompts = [ids[-kept:] if len(ids) > kept else prompt for prompt, ids in zip(self.prompts, self.ids, strict=True)]
            self.ids = [ids[-kept:] for ids in self.ids]
        tokens = sum(map(len, self.ids))
        if scored is not None:
            check_count(tokens, 0, scored, self.call.server.settings, "prompt_logprobs")
        if self.top is not None and not read["stream"]:
            new = len(self.prompts) * self.n * self.most
            check_count(tokens if self.echo else 0, new, self.top, self.call.server.settings, "logprobs")
        for extra, ids in zip(self.extras, self.ids, strict=False):
            if read["return_token_ids"]:
                extra["prompt_token_ids"] = ids
            if scored is not None:
                extra["prompt_logprobs"] = await prompt_logprobs(self.call, self.model, ids, scored)

    def own(self, index: int, ids: Any, first: bool = True) -> dict[str, Any]:
        """Returns the further entries of the choice with this index. ids: its tokens, or those of a chunk of it. first: whether the entries
        of its prompt are wanted, which a stream has once."""
        prompt = self.extras[index // self.n] if first else {}
        return {**prompt, **({"token_ids": ids} if self.read[TOKEN_IDS.name] else {})}

    @property
    def report(self) -> dict[str, Any]:
        """The entry `pumice` of the answer."""
        return {"ignored": self.read.ignored, **({"cut_tokens": self.cut} if self.cut else {})}


async def complete(call: Call) -> None:
    """Answers a request."""
    read = await call.read()
    async with call.using(read) as served:
        model = served.generator()
        asked = _Asked(call, read, model, await call.translated(_prompts, read["prompt"]))
        form = await call.translated(grammar_of, read)
        await asked.prepare()
        head = {"id": new_id("cmpl-"), "object": "text_completion", "created": int(time.time()), "model": served.name}
        echoed: list[_Echo | None] = [None] * len(asked.prompts)
        if asked.echo:
            each_prompt = zip(asked.prompts, asked.ids, strict=True)
            echoed = [await _echo(asked, prompt, ids) for prompt, ids in each_prompt]
        if asked.most == 0:
            choices = [
                {"index": i, **said.choice("length"), **_NO_EXTRAS, **asked.own(i * asked.n, [])}
                for i, said in enumerate(echoed)
                if said is not None
            ]
            await call.answer({**head, "choices": choices, "usage": _usage(echoed), "pumice": asked.report})
            return
        options = {name: value for name, value in read.keywords.items() if name != "grammar"} | {"max_new_tokens": asked.most}
        if form is not None:
            options["grammar"] = form
        if asked.top is not None:
            options["logprobs"] = asked.top or True
        prompts = asked.prompts if len(asked.prompts) > 1 else asked.prompts[0]
        options["prompt" if read["suffix"] is None else "prefix"] = prompts
        stream = model.astream(**model._generator.answering({**call.sampling, **options}))
        await stream.begin()
        call.admitted(stream)
        await send(call, stream, _Written(asked, stream, head, echoed), read["stream"])


def usage_of(found: Sequence[Generation], n: int) -> dict[str, Any]:
    """Returns the numbers of tokens of a call. n: number of answers per prompt."""
    first = found[::n]
    prompt, new = sum(each.prompt_tokens for each in first), sum(len(each.ids) for each in found)
    cached = sum(each.reused_tokens for each in first)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": new,
        "total_tokens": prompt + new,
        "prompt_tokens_details": {"cached_tokens": cached},
    }


class _Echo:
    """A prompt in the form of an answer: its text and, if the request wants them, the log-probabilities of its tokens."""

    def __init__(self, text: str, ids: Any, logprobs: dict[str, Any] | None) -> None:
        self.text, self.ids, self.logprobs = text, ids, logprobs

    def choice(self, finish: str) -> dict[str, Any]:
        return {"text": self.text, "logprobs": self.logprobs, "finish_reason": finish}


def _usage(echoed: Sequence[_Echo | None]) -> dict[str, Any]:
    prompt = sum(len(each.ids) for each in echoed if each is not None)
    return {"prompt_tokens": prompt, "completion_tokens": 0, "total_tokens": prompt}


async def _echo(asked: _Asked, prompt: Any, ids: Any) -> _Echo:
    call, model, top = asked.call, asked.model, asked.top
    text = prompt if isinstance(prompt, str) else await call.server.aside(model.detokenize, prompt)
    if top is None:
        return _Echo(text, ids, None)
    scores = await model.ascore(prompt, top=top or None)

    def logprobs() -> dict[str, Any]:
        chances, top_ids, top_chances = (scores.logprobs, scores.top_ids, scores.top_logprobs) if top else (scores, None, None)
        pieces = prompt_pieces(model, prompt, ids)
        first = legacy_logprobs(model, ids[:1], [None], None, None, pieces[:1], 0, asked.as_ids)
        rest = legacy_logprobs(model, ids[1:], chances, top_ids, top_chances, pieces[1:], len(pieces[0]), asked.as_ids)
        joined = {name: first[name] + rest[name] for name in first}
        # A tokenizer that changes the text (its case, its spaces) may read more characters than the prompt has.
        return {**joined, "text_offset": [min(offset, len(text)) for offset in joined["text_offset"]]}

    return _Echo(text, ids, await call.server.aside(logprobs))


def prompt_pieces(model: Model, prompt: Any, ids: Any) -> list[str]:
    """Returns the text of each token of a prompt. The tokens that the tokenizer itself puts around a text have none. A character of
    several tokens belongs to the last of them.

    prompt: a text or token ids. ids: the ids of the prompt. If `prompt` is ids itself, special tokens have no text."""
    written = isinstance(prompt, str)
    stream = model._tokenizer.decode_stream(skip_special=not written)
    before, after = (model._info["special_tokens"][side] if written else () for side in ("before", "after"))
    first = 0 if written and prompt.startswith("".join(before)) else len(before)
    last = len(ids) - len(after)
    pieces = ["" if not first <= i < last else stream.step([token]) for i, token in enumerate(ids.tolist())]
    pieces[max(last - 1, 0)] += stream.flush()
    return pieces


def legacy_logprobs(
    model: Model,
    ids: Any,
    logprobs: Any,
    top_ids: Any,
    top_logprobs: Any,
    pieces: Sequence[str],
    start: int = 0,
    as_ids: bool = False,
) -> dict[str, Any]:
    """Returns log-probabilities in this endpoint's form: lists of tokens, of their log-probabilities, of the most likely tokens, and of the
    tokens' offsets in the text, in characters. The most likely tokens always have the token itself, as at OpenAI, and with logprobs: 0 it
    alone. pieces: the text of each token. start: the offset of the first token. as_ids: as for token_names()."""
    tokens = token_names(model, ids, as_ids)
    offsets = list(accumulate(map(len, pieces), initial=start))[:-1]
    chances = [None if p is None else max(float(p), LEAST) for p in logprobs]
    tops: list[Any] = [None if chance is None else {token: chance} for token, chance in zip(tokens, chances, strict=True)]
    if top_ids is not None:
        for top, row, theirs in zip(tops, top_ids, top_logprobs, strict=True):
            for token, chance in zip(token_names(model, row, as_ids), theirs, strict=True):
                top[token] = max(float(chance), top.get(token, LEAST))  # of tokens with one text, the likeliest counts
    return {"tokens": tokens, "token_logprobs": chances, "top_logprobs": tops, "text_offset": offsets}


def _choice(index: int, each: Generation, asked: _Asked, echoed: _Echo | None) -> dict[str, Any]:
    """Returns one whole answer as a choice."""
    logprobs = None
    if each.logprobs is not None:
        start = len(echoed.text) if echoed else 0
        logprobs = legacy_logprobs(asked.model, each.ids, each.logprobs, each.top_ids, each.top_logprobs, each.pieces, start, asked.as_ids)
    if echoed is not None and echoed.logprobs is not None and logprobs is not None:
        logprobs = {name: echoed.logprobs[name] + logprobs[name] for name in logprobs}
    text = (echoed.text if echoed else "") + each.text + stop_text(asked.read, each)
    return {
        "index": index,
        "text": text,
        "logprobs": logprobs,
        "finish_reason": finish_of(each.finish_reason, False),
        **cuts_of(each.reasoning_cut, each.finish_reason),
    }


class _Written:
    """Answers in this endpoint's form. echoed: for each prompt its echo, or None."""

    def __init__(self, asked: _Asked, stream: AsyncStream, head: dict[str, Any], echoed: Sequence[_Echo | None]) -> None:
        self._asked, self._stream, self._head, self._echoed = asked, stream, head, echoed
        options = asked.read["stream_options"] or {}
        self._usage = bool(options.get("include_usage"))
        self._steadily = self._usage and bool(options.get("continuous_usage_stats"))
        # What was ignored or cut is reported in the first event, or in the event with the usage if there is one.
        self._told: dict[str, Any] = {"pumice": asked.report} if (asked.report["ignored"] or asked.cut) and not self._usage else {}
        # Sequence -> number of characters of the tokens that were sent. A chunk may have text whose tokens come with the next one.
        self._lengths: dict[int, int] = {}
        self._begun: set[int] = set()  # the sequences of which a chunk was sent
        self._new = 0  # number of new tokens that were sent

    def opening(self) -> bytes:
        return b""

    def events(self, chunk: Chunk) -> bytes:
        logprobs = None
        if chunk.logprobs is not None and len(chunk.ids):
            asked, start = self._asked, self._lengths.get(chunk.index, 0)
            logprobs = legacy_logprobs(
                asked.model, chunk.ids, chunk.logprobs, chunk.top_ids, chunk.top_logprobs, chunk.pieces, start, asked.as_ids
            )
            self._lengths[chunk.index] = start + sum(map(len, chunk.pieces))
        choice = {
            "index": chunk.index,
            "text": chunk.text + stop_text(self._asked.read, chunk),
            "logprobs": logprobs,
            "finish_reason": finish_of(chunk.finish_reason, False),
            **cuts_of(chunk.reasoning_cut, chunk.finish_reason),
            **self._asked.own(chunk.index, chunk.ids, first=chunk.index not in self._begun),
        }
        self._begun.add(chunk.index)
        self._new += len(chunk.ids)
        more: dict[str, Any] = {"usage": None} if self._usage else {}
        if self._steadily:
            more = {"usage": usage_so_far(self._stream, self._new)}
        event = event_of({**self._head, "choices": [choice], **more, **self._told})
        self._told = {}
        return event

    def closing(self, results: list[Generation]) -> bytes:
        report = {"usage": usage_of(results, self._asked.n), "pumice": self._asked.report}
        return (event_of({**self._head, "choices": [], **report}) if self._usage else b"") + DONE

    def gather(self, chunk: Chunk) -> None:
        """Keeps nothing, because a whole answer is made from the results."""

    def whole(self, results: list[Generation]) -> dict[str, Any]:
        asked = self._asked
        choices = [
            {**_choice(i, each, asked, self._echoed[i // asked.n]), **_NO_EXTRAS, **asked.own(i, each.ids)}
            for i, each in enumerate(results)
        ]
        return {**self._head, "choices": choices, "usage": usage_of(results, asked.n), "pumice": asked.report}

    def failed(self, failure: Refused) -> bytes:
        return failed(failure)
