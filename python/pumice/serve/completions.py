"""POST /v1/completions: prompts without a chat template, as https://platform.openai.com/docs/api-reference/completions describes it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import numpy as np

from ..generate.generation import Generation
from ..model.model import Model
from .calls import Call
from .chat_completions import DONE, cut_of, event_of, failed
from .conversations import finish_of, grammar_of
from .failures import Refused, new_id
from .fields import FLAG, INTEGER, TEXT, Field, Fields
from .sampling_fields import GRAMMAR, IDLE, INERT, LACKING, MODEL, STREAM, STREAM_OPTIONS, STRUCTURED, sampling_fields
from .settings import Settings

NO_LIMIT = -1  # llama.cpp's max_tokens for an answer that may fill the context
LEAST = -9999.0  # what -inf is in an answer, because JSON has no infinity
OPENAI_TOKENS = 16  # maximum number of tokens that OpenAI generates if max_tokens is absent


def fields(settings: Settings) -> Fields:
    """Returns the table of the body's fields."""
    ids = {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 2**31 - 1}, "minItems": 1}
    several = {"minItems": 1, "maxItems": settings.max_inputs}
    prompt = {"anyOf": [TEXT, ids, {"type": "array", "items": {"anyOf": [TEXT, ids]}, **several}]}
    return Fields(
        (
            MODEL,
            Field("prompt", prompt, "A text, token ids, or a list of these.", needed=True),
            STREAM,
            STREAM_OPTIONS,
            Field(
                "max_tokens",
                {"type": "integer", "minimum": -1},
                "Most new tokens; 16 if it is not given. 0 together with echo. -1: what fits into the context.",
                to="max_new_tokens",
            ),
            *sampling_fields(settings),
            Field(
                "logprobs", {"type": "integer", "minimum": 0, "maximum": 20}, "Log-probabilities, and those of so many likeliest tokens."
            ),
            Field("echo", FLAG, "True: the answer's text begins with the prompt."),
            Field("best_of", INTEGER, "Must equal n."),
            STRUCTURED,
            GRAMMAR,
        ),
        inert=INERT,
        refused={**LACKING, "suffix": "text is continued at its end only", "add_special_tokens": "send token ids instead"},
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


async def complete(call: Call) -> None:
    """Answers a request."""
    read = await call.read()
    async with call.using(read) as served:
        model = served.model
        assert model is not None
        model._need("generate", "generate()")
        prompts = await call.translated(_prompts, read["prompt"])
        n, echo, top = read.get("n", 1), bool(read["echo"]), read["logprobs"]
        if read.get("best_of", n) != n:
            raise Refused(400, "best_of must equal n: answers are not ranked", param="best_of")
        if len(prompts) * n > call.server.settings.max_sequences:
            most = call.server.settings.max_sequences
            raise Refused(400, f"{len(prompts)} prompts with n={n} are more than {most} answers, the most of a request", param="prompt")
        head = {"id": new_id("cmpl-"), "object": "text_completion", "created": int(time.time()), "model": served.name}
        most = read.get("max_tokens", OPENAI_TOKENS)
        if most == NO_LIMIT:
            most = int(model._info["n_ctx"])
        if most == 0 and not echo:
            raise Refused(400, "max_tokens: 0 generates nothing; it is taken together with echo", param="max_tokens")
        if echo and read["stream"]:
            raise Refused(400, "echo and stream were both given; an echo comes whole", param="echo")
        form = await call.translated(grammar_of, read)
        ids = await call.server.aside(model._generator.prompt_ids, prompts, ["prompt"] * len(prompts)) if echo else []
        if top is not None and not read["stream"]:
            _check_logprobs(sum(map(len, ids)), len(prompts) * n * most, top, call.server.settings)
        echoed: list[_Echo | None] = [None] * len(prompts)
        if echo:
            echoed = [await _echo(call, model, prompt, its, top) for prompt, its in zip(prompts, ids, strict=True)]
        if most == 0:
            await call.answer(
                {
                    **head,
                    "choices": [{"index": i, **said.choice("length")} for i, said in enumerate(echoed) if said],
                    "usage": _usage(echoed),
                    "pumice": {"ignored": read.ignored},
                }
            )
            return
        options = {name: value for name, value in read.keywords.items() if name != "grammar"} | {"max_new_tokens": most}
        if form is not None:
            options["grammar"] = form
        if top is not None:
            options["logprobs"] = top or True
        stream = model.astream(prompts if len(prompts) > 1 else prompts[0], **{**call.sampling, **options})
        await stream.begin()
        call.admitted(stream)
        if read["stream"]:
            usage = bool((read["stream_options"] or {}).get("include_usage"))
            await _stream(call, model, stream, head, usage, read.ignored)
            return
        async with stream:
            async for chunk in stream:
                call.count(chunk)
        found = stream.result if isinstance(stream.result, list) else [stream.result]
        choices = await call.server.aside(lambda: [_choice(i, each, model, echoed[i // n]) for i, each in enumerate(found)])
        await call.answer({**head, "choices": choices, "usage": usage_of(found, n), "pumice": {"ignored": read.ignored}})


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


def _check_logprobs(echoed: int, new: int, top: int, settings: Settings) -> None:
    """Raises Refused (400) if an answer could have more log-probabilities than fit into the server's memory. echoed: number of tokens of
    the prompts that are echoed. new: maximum number of generated tokens."""
    most, count = settings.max_logprobs, (echoed + new) * (top + 1)
    if count > most:
        raise Refused(
            400,
            f"logprobs: {echoed} tokens of echoed prompts and up to {new} new ones, with the log-probabilities of {top} likeliest tokens "
            f"beside their own, make {count} log-probabilities; at most {most} are given at once. Send fewer prompts in a request, or ask "
            f"for fewer likeliest tokens, fewer answers or a smaller max_tokens",
            param="logprobs",
        )


async def _echo(call: Call, model: Model, prompt: Any, ids: Any, top: int | None) -> _Echo:
    text = prompt if isinstance(prompt, str) else await call.server.aside(model.detokenize, prompt)
    if top is None:
        return _Echo(text, ids, None)
    scores = await model.ascore(prompt, top=top or None)

    def logprobs() -> dict[str, Any]:
        chances, top_ids, top_chances = (scores.logprobs, scores.top_ids, scores.top_logprobs) if top else (scores, None, None)
        pieces = prompt_pieces(model, prompt, ids)
        first = legacy_logprobs(model, ids[:1], [None], None, None, pieces[:1], 0)
        rest = legacy_logprobs(model, ids[1:], chances, top_ids, top_chances, pieces[1:], len(pieces[0]))
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


def token_text(data: bytes) -> str:
    """Returns a token's text in this endpoint's form. For a part of a character, this is OpenAI's spelling of its bytes, such as
    "bytes:\\xf0\\x9f", so that different parts have different texts."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return "bytes:" + data.decode("utf-8", "backslashreplace")


def legacy_logprobs(
    model: Model, ids: Any, logprobs: Any, top_ids: Any, top_logprobs: Any, pieces: Sequence[str], start: int = 0
) -> dict[str, Any]:
    """Returns log-probabilities in this endpoint's form: lists of tokens, of their log-probabilities, of the most likely tokens, and of the
    tokens' offsets in the text, in characters. pieces: the text of each token. start: the offset of the first token."""
    tokens = [token_text(token) for token in model.token_bytes(ids)]
    offsets = list(accumulate(map(len, pieces), initial=start))[:-1]
    tops: list[Any] = [None] * len(tokens)
    if top_ids is not None:
        tops = [_likeliest(model, row, chances) for row, chances in zip(top_ids, top_logprobs, strict=True)]
    chances = [None if p is None else max(float(p), LEAST) for p in logprobs]
    return {"tokens": tokens, "token_logprobs": chances, "top_logprobs": tops, "text_offset": offsets}


def _likeliest(model: Model, ids: Any, chances: Any) -> dict[str, float]:
    """Returns token -> log-probability. ids: the likeliest tokens, the first the most. Of tokens with one text, the likeliest counts."""
    found: dict[str, float] = {}
    for token, chance in zip(model.token_bytes(ids), chances, strict=True):
        found.setdefault(token_text(token), max(float(chance), LEAST))
    return found


def _choice(index: int, each: Generation, model: Model, echoed: _Echo | None) -> dict[str, Any]:
    logprobs = None
    if each.logprobs is not None:
        start = len(echoed.text) if echoed else 0
        logprobs = legacy_logprobs(model, each.ids, each.logprobs, each.top_ids, each.top_logprobs, each.pieces, start)
    if echoed is not None and echoed.logprobs is not None and logprobs is not None:
        logprobs = {name: echoed.logprobs[name] + logprobs[name] for name in logprobs}
    text = (echoed.text if echoed else "") + each.text
    return {
        "index": index,
        "text": text,
        "logprobs": logprobs,
        "finish_reason": finish_of(each.finish_reason, False),
        **cut_of(each.reasoning_cut),
    }


async def _stream(call: Call, model: Model, stream: Any, head: dict[str, Any], usage: bool, ignored: Sequence[str]) -> None:
    more: dict[str, Any] = {"usage": None} if usage else {}
    # The ignored fields are reported in the first event, or in the event with the usage if there is one.
    told: dict[str, Any] = {"pumice": {"ignored": ignored}} if ignored and not usage else {}
    # Sequence -> number of characters of the tokens that were sent. A chunk may have text whose tokens come with the next one.
    lengths: dict[int, int] = {}
    async with stream, call.events(failed) as out:
        async for chunk in stream:
            logprobs = None
            if chunk.logprobs is not None and len(chunk.ids):
                start = lengths.get(chunk.index, 0)
                logprobs = legacy_logprobs(model, chunk.ids, chunk.logprobs, chunk.top_ids, chunk.top_logprobs, chunk.pieces, start)
                lengths[chunk.index] = start + sum(map(len, chunk.pieces))
            finish = finish_of(chunk.finish_reason, False)
            choice = {
                "index": chunk.index,
                "text": chunk.text,
                "logprobs": logprobs,
                "finish_reason": finish,
                **cut_of(chunk.reasoning_cut),
            }
            call.count(chunk)
            await out.send(event_of({**head, "choices": [choice], **more, **told}))
            told = {}
        found = stream.result if isinstance(stream.result, list) else [stream.result]
        report = {"usage": usage_of(found, found[0].params.n), "pumice": {"ignored": ignored}}
        last = event_of({**head, "choices": [], **report}) if usage else b""
        await out.send(last + DONE)
