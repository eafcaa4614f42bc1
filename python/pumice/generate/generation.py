"""Converts generated tokens to text, finds where the text stops and which part of it is final, and builds the results for the caller."""

from __future__ import annotations

import html
import itertools
import math
import os
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from .. import _core
from ..common.callbacks import no_end
from ..common.display import html_lines, token_span
from .answers import CallDelta, Kind, ToolCall
from .reasoning import Reasoning
from .repetition import repeats
from .settings import SamplingParams, engine_params
from .stops import StopSearch

if TYPE_CHECKING:
    from ..tokens.tokenizers import Tokenizer

Int32 = npt.NDArray[np.int32]
Float32 = npt.NDArray[np.float32]
FinishReason = Literal["stop", "eos", "length", "grammar", "repetition", "cancelled"]
# Finish reasons of texts that are not complete -> what ended the text.
INCOMPLETE: Mapping[str | None, str] = {
    "length": "max_new_tokens or the context ended it",
    "repetition": "it only repeated itself",
    "cancelled": "it was cancelled",
}


# ---------------------------------------------------------------- results
# Results are compared by identity, because the comparison of two arrays gives no single truth value.
@dataclass(frozen=True, repr=False, eq=False)
class Generation:
    """The text that was generated after a prompt. str() of a Generation is the text.

    text: the text, cut before a stop string.
    ids: int32 (n,), the generated tokens without the end token and without tokens that a stop string cut off.
    finish_reason: "stop" (a stop string or stop id), "eos" (the model ended the answer), "grammar" (the grammar allows no further token),
        "length" (max_new_tokens or the context length was reached), "repetition" (max_repeated_tokens was reached), or "cancelled".
    prompt_tokens: number of tokens of the prompt, special tokens included.
    reused_tokens: number of tokens of the prompt whose keys and values were in the prefix cache.
    seed: the seed of the random numbers: the call's seed or, if the call gave none, a new one.
    params: the settings that the call used, a SamplingParams.
    logprobs: float32 (n,), the natural log-probability of each token. None if the call did not ask for it.
    top_ids: int32 (n, k), the k most likely tokens at each position. None if the call did not ask for them.
    top_logprobs: float32 (n, k), their natural log-probabilities. None if the call did not ask for them.
    timings: tokens, seconds and tokens per second of prefill and decode, for the whole call. queued_seconds is the time from the call's
        start to the step that computes the first row of its prompt. first_token_seconds is the time from the call's start to its first
        token, which may be the end token. With several prompts or samples, both are those of the last one. Each is absent if the call ended
        before that step or token.
    device: where the model is, "cpu" or "cpu + vulkan:0".
    pieces: the text of each token. Joined, they are `text`.
    stopped_by: the stop string or the stop id that ended the text, else None. If one token completes several stop strings, it is the one
        that begins first in the text. If several begin there, it is the one that was given first.
    reasoning_cut: whether max_reasoning_tokens ended the reasoning. The tokens of its end marker are then not the model's choice.
    """

    text: str
    ids: Int32
    finish_reason: FinishReason | None
    prompt_tokens: int
    reused_tokens: int
    seed: int
    params: SamplingParams
    logprobs: Float32 | None
    top_ids: Int32 | None
    top_logprobs: Float32 | None
    timings: Mapping[str, float]
    device: str
    pieces: tuple[str, ...] = ()
    stopped_by: str | int | None = None
    reasoning_cut: bool = False

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        text = self.text if len(self.text) <= 200 else self.text[:200] + "..."
        return f"{type(self).__name__}({text!r}, tokens={len(self.ids)}, finish_reason={self.finish_reason!r})"

    def _facts(self) -> str:
        speed = self.timings.get("decode_tokens_per_second", 0.0)
        facts = [f"{len(self.ids)} tokens", f"finish: {self.finish_reason}", f"seed {self.seed}", f"{speed:.1f} tokens/s", self.device]
        return " · ".join(facts)

    def _repr_html_(self) -> str:
        if self.logprobs is None:
            body = html.escape(self.text)
        else:
            chances = [math.exp(p) for p in self.logprobs.tolist()]
            body = "".join(token_span(piece, p, f"p = {p:.3f}") for piece, p in zip(self.pieces, chances, strict=False))
        facts = html_lines([self._facts()])
        return f'<div style="white-space:pre-wrap">{body}</div><div style="color:#777;font-size:smaller">{facts}</div>'


@dataclass(frozen=True, eq=False)
class Chunk:
    """A piece of a stream: text that is final, and its tokens. str() of a Chunk is the text.

    text: new text, which is final. It may be empty.
    ids: int32 (n,), the tokens of this chunk. A token comes when all of its text is final, so the beginning of the token's text may be in
        the previous chunk.
    index: the number of the sequence (prompt * n + sample).
    finish_reason: as in Generation, in the last chunk of a sequence. None in all others.
    logprobs, top_ids, top_logprobs, pieces: as in Generation, for the tokens of this chunk.
    kind: "content", "reasoning" or "tool_call", for the text of a chat.
    calls: the tool calls that end in this chunk.
    call_deltas: new text of the tool calls that the model is writing.
    call_errors: (index, reason) for each call whose deltas were sent and which turned out to be no call. Its index and id are not used
        again, and the result's tool_calls does not contain it.
    reasoning_cut: True in the chunk with the first token of the end marker with which max_reasoning_tokens ended the reasoning.
    stopped_by: as in Generation, in the last chunk of a sequence. None in all others."""

    text: str
    ids: Int32
    index: int
    finish_reason: FinishReason | None
    logprobs: Float32 | None
    top_ids: Int32 | None
    top_logprobs: Float32 | None
    kind: Kind = "content"
    calls: tuple[ToolCall, ...] = ()
    pieces: tuple[str, ...] = ()
    call_deltas: tuple[CallDelta, ...] = ()
    call_errors: tuple[tuple[int, str], ...] = ()
    reasoning_cut: bool = False
    stopped_by: str | int | None = None

    def __str__(self) -> str:
        return self.text


# ---------------------------------------------------------------- one sequence
class Continuation:
    """Collects the tokens of one sequence while they arrive. Keeps their text (whole characters only), the first stop, and the length of
    the text that is final."""

    def __init__(
        self, tokenizer: Tokenizer, params: SamplingParams, prompt: Int32 | Sequence[int], stops: StopSearch | None = None
    ) -> None:
        """prompt: the ids that the sequence continues.  stops: the search for params.stop, if it does not search the whole text."""
        self._decoder = tokenizer.decode_stream(after=prompt)
        self._stops = StopSearch(params.stop) if stops is None else stops
        self._stop_ids = frozenset(params.stop_ids)
        self._most_repeated, self._least = params.max_repeated_tokens, params.min_new_tokens
        self._asked = () if params.logprobs is None else ("logprobs", "top_ids", "top_logprobs")[: 3 if params.logprobs else 1]
        self.text = ""
        self.ids: list[int] = []
        self.starts: list[int] = []  # for each token, the position in `text` at which it begins
        self.logprobs: list[Any] = []
        self.top_ids: list[Any] = []
        self.top_logprobs: list[Any] = []
        self.finish_reason: FinishReason | None = None
        self.stopped_by: str | int | None = None
        # Index in `ids` of the token with which the engine ends the reasoning because of max_reasoning_tokens, or None. The index may be
        # known before the token arrives.
        self._cut: int | None = None
        self._sent_text = self._sent_ids = 0

    def push(self, news: Mapping[str, Any]) -> None:
        """Adds new tokens of this sequence from the engine."""
        ids = np.asarray(news["ids"]).tolist()
        self._cut = news.get("reasoning_cut", self._cut)
        for k, token in enumerate(ids):
            if token in self._stop_ids:
                self._end("stop", token)
                return
            self.ids.append(token)
            self.starts.append(len(self.text))
            for name in self._asked:
                getattr(self, name).append(news[name][k])
            piece = self._decoder.step([token])
            if self._extend(piece, self._stops.feed(piece, token)):
                return
            if self._most_repeated and len(self.ids) >= self._least and repeats(self.ids, self._most_repeated):
                self._end("repetition")
                return
        if news.get("finish_reason") is not None:
            self._end(news["finish_reason"])

    @property
    def reasoning_cut(self) -> bool:
        """Whether a token has arrived that ended the reasoning because its budget was used up."""
        return self._cut is not None and self._cut < len(self.ids)

    def cancel(self) -> None:
        """Ends the sequence here, unless it has already ended."""
        if self.finish_reason is None:
            self._end("cancelled")

    def _end(self, reason: FinishReason, stop_id: int | None = None) -> None:
        piece = self._decoder.flush()  # U+FFFD if the last bytes are no whole character
        if not self._extend(piece, self._stops.finish(piece)):
            self.finish_reason, self.stopped_by = reason, stop_id

    def _extend(self, piece: str, stop: tuple[int, str] | None) -> bool:
        """Adds text. If there is a stop string, cuts the text off before it and returns True. stop: its place and the string."""
        self.text += piece
        if stop is None:
            return False
        cut, self.stopped_by = stop
        kept = sum(start < cut for start in self.starts)  # a token that begins before the cut stays, even if its end is cut off
        self.text = self.text[:cut]
        for row in (self.ids, self.starts, self.logprobs, self.top_ids, self.top_logprobs):
            del row[kept:]
        self.finish_reason = "stop"
        return True

    def _final(self) -> int:
        """Returns the length of the text that can no longer become part of a stop string."""
        return len(self.text) - (0 if self.finish_reason is not None else self._stops.held)

    def take(self, index: int) -> Chunk | None:
        """Returns the text and tokens that have become final since the last chunk, or None if there are none."""
        end = max(self._final(), self._sent_text)
        last = self._whole(end)
        if end == self._sent_text and last == self._sent_ids and self.finish_reason is None:
            return None
        rows = slice(self._sent_ids, last)
        chunk = Chunk(
            self.text[self._sent_text : end],
            np.array(self.ids[rows], np.int32),
            index,
            self.finish_reason,
            *self.arrays(rows),
            pieces=self.pieces(rows),
            reasoning_cut=self._cut is not None and self._sent_ids <= self._cut < last,
            stopped_by=self.stopped_by,
        )
        self._sent_text, self._sent_ids = end, last
        return chunk

    def _whole(self, end: int) -> int:
        """Returns the number of tokens whose text is final and ends at `end` or before. A token without text is only counted when later
        text comes, because it is often the first byte of a character."""
        if self.finish_reason is not None:
            return len(self.ids)
        last = self._sent_ids
        while last < len(self.ids):
            newest = last + 1 == len(self.ids)
            if self.starts[last] >= end or (len(self.text) if newest else self.starts[last + 1]) > end:
                break
            if newest and self._decoder.pending:  # flush() may still add text to this token
                break
            last += 1
        return last

    def chunks(self, index: int) -> list[Chunk]:
        """Returns the chunk of take() in a list, or an empty list. The subclass for chats splits the chunk by kind."""
        chunk = self.take(index)
        return [] if chunk is None else [chunk]

    def arrays(self, rows: slice | None = None) -> tuple[Float32 | None, Int32 | None, Float32 | None]:
        """Returns logprobs (n,), top_ids (n, k) and top_logprobs (n, k) for some or all tokens. An array is None if the call did not ask
        for it."""
        rows = slice(None) if rows is None else rows
        return (
            np.array(self.logprobs[rows], np.float32) if self.logprobs else None,
            np.array(self.top_ids[rows], np.int32) if self.top_ids else None,
            np.array(self.top_logprobs[rows], np.float32) if self.top_logprobs else None,
        )

    def pieces(self, rows: slice | None = None) -> tuple[str, ...]:
        """Returns the text of each token, for some or all tokens."""
        first, last, _ = (rows or slice(None)).indices(len(self.ids))
        edges = [*self.starts[first : last + 1], len(self.text)][: last - first + 1]
        return tuple(self.text[a:b] for a, b in itertools.pairwise(edges))


# ---------------------------------------------------------------- one call
Finish = Callable[[list[Generation]], Any]
Begin = Callable[["Tokenizer", SamplingParams, Int32], Continuation]


READ_AHEAD = 32  # a stream pauses when this many of its tokens wait to be taken


class Run:
    """One call: a request with one or more prompts. After the first advance() or start(), the engine's own thread computes the request, in
    one batch with the requests of other calls. A sequence pauses when `read_ahead` of its tokens wait to be taken; 0 means that it never
    pauses."""

    def __init__(
        self,
        engine: _core.Model,
        tokenizer: Tokenizer,
        prompts: Sequence[Int32],
        params: SamplingParams | Sequence[SamplingParams],
        eos_ids: Sequence[int],
        begin: Begin = Continuation,
        read_ahead: int = 0,
        speculation: Mapping[str, Any] | None = None,
        grammars: Sequence[_core.CompiledGrammar | None] = (),
        reasoning: Sequence[Reasoning] = (),
    ) -> None:
        """params: settings for all prompts, or one element per prompt, all with the same `n`.  grammars, reasoning: empty, or one element
        per prompt."""

        def told(
            params: SamplingParams, grammar: _core.CompiledGrammar | None = None, reasons: Reasoning | None = None
        ) -> _core.GenerateParams:
            result = engine_params(params, eos_ids)
            result.read_ahead, result.grammar = read_ahead, grammar
            if reasons is not None:
                result.reasoning, result.reasoning_opened = reasons.marks, reasons.opened
            for name, value in (speculation or {}).items():
                setattr(result, name, value)
            return result

        self.engine, self.prompts = engine, prompts
        self._device = str(engine.info.get("device", ""))
        self.prompt_tokens = [len(ids) for ids in prompts]
        each_prompt = [params] * len(prompts) if isinstance(params, SamplingParams) else params
        if isinstance(params, SamplingParams) and not any(grammars) and not reasoning:
            self._request = engine.request(list(prompts), [told(params)])
        else:
            none = [None] * len(prompts)
            each = zip(each_prompt, grammars if any(grammars) else none, reasoning or none, strict=True)
            self._request = engine.request(list(prompts), [told(*one) for one in each])
        self._n = each_prompt[0].n
        each_answer = [(p, ids) for p, ids in zip(each_prompt, prompts, strict=True) for _ in range(p.n)]
        # The settings of each sequence, with its own seed: the answers to a prompt have different ones.
        self.params = [replace(p, seed=int(seed)) for (p, _), seed in zip(each_answer, self._request.seeds, strict=True)]
        self.sequences = [begin(tokenizer, p, ids) for p, (_, ids) in zip(self.params, each_answer, strict=True)]

    @property
    def done(self) -> bool:
        """Whether all sequences have ended."""
        return all(s.finish_reason is not None for s in self.sequences)

    def advance(self, steps: int, max_ms: float) -> list[int]:
        """Waits until `steps` steps have new tokens, but at most max_ms milliseconds. Returns the indices of the sequences that have new
        tokens."""
        return self.hear(self._request.advance(steps, max_ms))

    def start(self, tag: int, steps: int) -> None:
        """Starts the request. From then on, the engine's Pump delivers new tokens with this tag, after every `steps` steps."""
        self._request.start(tag, self._steps(steps))

    def hold(self, held: bool) -> None:
        """Stops (True) or resumes (False) the delivery of new tokens. While it is stopped, a sequence pauses when 32 of its tokens wait."""
        self._request.hold(held)

    def hear(self, all_news: Sequence[Mapping[str, Any]]) -> list[int]:
        """Adds new tokens from the engine to their sequences, and returns the indices of these sequences."""
        changed = []
        for news in all_news:
            index = int(news["sequence"])
            sequence = self.sequences[index]
            if sequence.finish_reason is not None:
                continue
            sequence.push(news)
            changed.append(index)
            if sequence.finish_reason is not None and news.get("finish_reason") is None:
                self._request.finish(index)
        if not changed and self._request.done:
            for sequence in self.sequences:  # the engine has ended the request, so the remaining sequences end, too
                sequence.cancel()
        return changed

    def _steps(self, most: int) -> int:
        """Returns how many steps to wait for at a time. It is 1 if the call has stops, because all steps that the engine computes after a
        stop are in vain. Otherwise it is `most`, because waking a thread takes longer than decoding a token."""
        return 1 if any(p.stop or p.stop_ids for p in self.params) else most

    def to_end(self) -> None:
        """Waits until all sequences have ended. Raises the error that ended the request."""
        while not self.done:
            self.advance(self._steps(8), 100.0)

    def close(self) -> None:
        """Ends the request. Sequences that have not ended get the finish_reason "cancelled"."""
        for sequence in self.sequences:
            sequence.cancel()
        self.stop()

    def stop(self) -> None:
        """Ends the request, but does not change its sequences, because another thread may be adding tokens to them. May be called in any
        thread. to_end() in another thread then returns."""
        self._request.close()

    def timings(self) -> dict[str, float]:
        """Returns tokens and seconds of prefill and decode so far."""
        return dict(self._request.timings())

    def results(self) -> list[Generation]:
        """Returns a Generation for each sequence, in the order of the prompts."""
        reused = list(self._request.reused_tokens)
        timings = with_speeds(self._request.timings())
        result = []
        for index, s in enumerate(self.sequences):
            prompt = index // self._n
            params = self.params[index]
            logprobs, top_ids, top_logprobs = s.arrays()
            if params.logprobs is not None and logprobs is None:  # the sequence has no tokens
                logprobs = np.empty(0, np.float32)
            if params.logprobs and top_ids is None:
                top_ids, top_logprobs = np.empty((0, params.logprobs), np.int32), np.empty((0, params.logprobs), np.float32)
            result.append(
                Generation(
                    text=s.text,
                    ids=np.array(s.ids, np.int32),
                    finish_reason=s.finish_reason,
                    prompt_tokens=self.prompt_tokens[prompt],
                    reused_tokens=int(reused[prompt]),
                    seed=params.seed or 0,
                    params=params,
                    logprobs=logprobs,
                    top_ids=top_ids,
                    top_logprobs=top_logprobs,
                    timings=timings,
                    device=self._device,
                    pieces=s.pieces(),
                    stopped_by=s.stopped_by,
                    reasoning_cut=s.reasoning_cut,
                )
            )
        return result


def with_speeds(timings: Mapping[str, float]) -> dict[str, float]:
    """Returns `timings` with prefill_tokens_per_second and decode_tokens_per_second added. A speed is 0 if its phase took no time."""
    result = dict(timings)
    for phase in ("prefill", "decode"):
        seconds = timings.get(f"{phase}_seconds", 0.0)
        result[f"{phase}_tokens_per_second"] = timings.get(f"{phase}_tokens", 0.0) / seconds if seconds > 0 else 0.0
    return result


def run_to_end(run: Run, finish: Finish) -> Any:
    """Runs a call to its end and returns its result. If Ctrl-C interrupts the call, the KeyboardInterrupt has the result so far as
    .partial."""
    try:
        run.to_end()
        return finish(run.results())
    except KeyboardInterrupt as interrupt:
        for sequence in run.sequences:
            sequence.cancel()
        interrupt.partial = finish(run.results())  # type: ignore[attr-defined]
        raise
    finally:
        run.close()


class Stream(Iterator[Chunk]):
    """An iterator of Chunks. close() and the end of the `with` block cancel the rest. `result` then has what was generated until then.
    Deleting a Stream also cancels the rest, because the engine's request is deleted with it. (There is no __del__(), because Python would
    drop a KeyboardInterrupt that is raised in it.)

    Only one thread at a time may iterate, as with generators. Any thread may close the Stream."""

    def __init__(self, run: Run, finish: Finish) -> None:
        self._run, self._finish = run, finish
        self._ready: deque[Chunk] = deque()
        self._result: Any = None
        self._closed = self._closing = self._reading = False
        self._lock, self._process = threading.RLock(), os.getpid()

    def __iter__(self) -> Stream:
        return self

    def __next__(self) -> Chunk:
        if not self._lock.acquire(blocking=False):
            if self._closing:  # another thread is inside close(), and no more chunks will come
                raise StopIteration
            raise ValueError("another thread is reading this stream; chunks come to one thread at a time")
        try:
            if self._reading:  # this thread was inside this method when a signal handler called it again
                raise ValueError("this stream is being read already")
            self._reading = True
            try:
                return self._next()
            finally:
                self._reading = False
        finally:
            self._lock.release()

    def _next(self) -> Chunk:
        while not self._ready and not self._closed and not self._closing:
            if self._run.done:
                self._end()
                break
            try:
                changed = self._run.advance(1, 50.0)
            except BaseException as error:
                self._end()
                if isinstance(error, KeyboardInterrupt):
                    error.partial = self.result  # type: ignore[attr-defined]
                if (ended := no_end(error)) is not error:
                    raise ended from error
                raise
            self._ready.extend(chunk for i in changed or range(len(self._run.sequences)) for chunk in self._run.sequences[i].chunks(i))
        if not self._ready:
            raise StopIteration
        return self._ready.popleft()

    @property
    def result(self) -> Any:
        """The result that generate() or chat() would have returned. It is None until the stream has ended or was closed."""
        return self._result

    def close(self) -> None:
        """Cancels the sequences that have not ended. A second call does nothing."""
        self._closing = True  # makes a __next__() that runs in another thread return after its current step
        while not self._lock.acquire(timeout=0.05):
            if os.getpid() != self._process:  # the child of a fork, in which the thread that iterated does not exist
                return
        try:
            self._ready.clear()
            self._end()
        finally:
            self._lock.release()

    def _detach(self) -> tuple[Run, Finish]:
        """Hands the run over to another receiver of its tokens: an event loop, or run_to_end()."""
        self._closed = True
        return self._run, self._finish

    def _end(self) -> None:
        if self._closed:
            return
        self._closed = True
        for sequence in self._run.sequences:
            sequence.cancel()
        self._result = self._finish(self._run.results())
        self._run.close()

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __reduce__(self) -> Any:
        raise TypeError("a Stream cannot be copied or pickled: its chunks come once. Its .result can, and stream() starts another one")
