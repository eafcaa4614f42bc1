"""Prompts to text: what the sampling parameters are, when text is final, where it stops, what comes back."""

from __future__ import annotations

import html
import math
import os
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypedDict

import numpy as np
import numpy.typing as npt

from . import _core
from .arguments import flag, integer, is_masked, listed, real, shown
from .display import html_lines, token_span
from .encoding import check_text
from .errors import ModelFormatError
from .response_parser import Kind, ToolCall
from .sampling import LogitsProcessor, bad_words, dry_breakers, logits_processor
from .side_files import read_object

if TYPE_CHECKING:
    from .grammar import Grammar
    from .model import Model
    from .tokenizers import Tokenizer

Int32 = npt.NDArray[np.int32]
Float32 = npt.NDArray[np.float32]
FinishReason = Literal["stop", "eos", "length", "grammar", "cancelled"]
Ids = Sequence[int] | npt.NDArray[np.integer[Any]]
Prompt = str | Ids


class Sampling(TypedDict, total=False):
    """The keywords of generate(), stream() and chat(). None: the model's own setting, else off."""

    max_new_tokens: int
    min_new_tokens: int
    ignore_eos: bool
    bad_words: str | Sequence[str | Sequence[int]] | None
    logits_processor: LogitsProcessor | None
    temperature: float | None
    top_k: int | None
    top_p: float | None
    min_p: float | None
    typical_p: float | None
    repetition_penalty: float | None
    presence_penalty: float | None
    frequency_penalty: float | None
    dry_multiplier: float | None
    dry_base: float | None
    dry_allowed_length: int | None
    dry_range: int | None
    dry_breakers: Sequence[str | int] | None
    top_n_sigma: float | None
    xtc_probability: float | None
    xtc_threshold: float | None
    mirostat_tau: float | None
    mirostat_eta: float | None
    logit_bias: Mapping[int | str, float] | None
    seed: int | None
    stop: str | int | Sequence[str | int] | None
    n: int
    logprobs: int | bool | None
    grammar: Grammar | str | Sequence[Grammar | str | None] | None
    priority: int
    speculate: str | Mapping[str, int] | None
    draft: Model | None


MOST_BIAS = 1e20  # the engine's, too

SAMPLING_DEFAULTS: dict[str, Any] = dict.fromkeys(Sampling.__annotations__) | {
    "max_new_tokens": 512,
    "min_new_tokens": 0,
    "ignore_eos": False,
    "n": 1,
    "priority": 0,
}


@dataclass(frozen=True)
class SamplingParams:
    """Resolved sampling values of a call: from the call, else from the model's own settings, else greedy.

    temperature (up to 1e6) 0 is greedy. top_k 0, top_p 1, min_p 0, typical_p 1, repetition_penalty (0.001 to 1000) 1 and the other
    penalties (-100 to 100) 0 are off, as are dry_multiplier, top_n_sigma, xtc_probability and mirostat_tau 0. logit_bias: token id ->
    number added to its logit (-1e20 to 1e20; -inf forbids it). bad_words: rows of token ids that never come whole. logprobs: how many
    alternatives per token, None for no log-probabilities. priority: higher calls go first.
    """

    max_new_tokens: int = 512
    min_new_tokens: int = 0
    ignore_eos: bool = False
    bad_words: tuple[tuple[int, ...], ...] = ()
    logits_processor: LogitsProcessor | None = None
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    typical_p: float = 1.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    dry_multiplier: float = 0.0
    dry_base: float = 1.75
    dry_allowed_length: int = 2
    dry_range: int = 0
    dry_breakers: tuple[int, ...] = ()
    top_n_sigma: float = 0.0
    xtc_probability: float = 0.0
    xtc_threshold: float = 0.1
    mirostat_tau: float = 0.0
    mirostat_eta: float = 0.1
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    seed: int | None = None
    stop: tuple[str, ...] = ()
    stop_ids: tuple[int, ...] = ()
    n: int = 1
    logprobs: int | None = None
    priority: int = 0


# Range of each plain number: (check, arguments). One table for the call and for the model's files.
_RANGES: dict[str, Callable[[str, Any], Any]] = {
    "max_new_tokens": lambda name, v: integer(name, v, 1, 2**31 - 1),
    "min_new_tokens": lambda name, v: integer(name, v, 0, 2**31 - 1),
    "ignore_eos": flag,
    "temperature": lambda name, v: real(name, v, 0.0, 1e6),
    "top_k": lambda name, v: integer(name, v, 0, 2**31 - 1),
    "top_p": lambda name, v: real(name, v, 0.0, 1.0, open_low=True),
    "min_p": lambda name, v: real(name, v, 0.0, 1.0),
    "typical_p": lambda name, v: real(name, v, 0.0, 1.0, open_low=True),
    "repetition_penalty": lambda name, v: real(name, v, 1e-3, 1e3),
    "presence_penalty": lambda name, v: real(name, v, -100.0, 100.0),
    "frequency_penalty": lambda name, v: real(name, v, -100.0, 100.0),
    "dry_multiplier": lambda name, v: real(name, v, 0.0, 100.0),
    "dry_base": lambda name, v: real(name, v, 1.0, 100.0),
    "dry_allowed_length": lambda name, v: integer(name, v, 1, 2**31 - 1),
    "dry_range": lambda name, v: integer(name, v, 0, 2**31 - 1),
    "top_n_sigma": lambda name, v: real(name, v, 0.0, 1000.0),
    "xtc_probability": lambda name, v: real(name, v, 0.0, 1.0),
    "xtc_threshold": lambda name, v: real(name, v, 0.0, 1.0),
    "mirostat_tau": lambda name, v: real(name, v, 0.0, 100.0),
    "mirostat_eta": lambda name, v: real(name, v, 0.0, 1.0),
    "seed": lambda name, v: integer(name, v, 0, 2**64 - 1),
    "n": lambda name, v: integer(name, v, 1, 2**16),
    "priority": lambda name, v: integer(name, v, -1000, 1000),
}
_FILTERS = ("top_k", "top_p", "min_p", "typical_p")  # they choose among samples: without a temperature they mean temperature 1
_OWN_FILTERS = ("top_n_sigma", "xtc_probability", "mirostat_tau")  # likewise; no model's files name them

# Keys of GGUF files: https://github.com/ggml-org/llama.cpp/blob/master/gguf-py/gguf/constants.py (Keys.General.SAMPLING_*)
_GGUF_KEYS = {
    "general.sampling.temp": "temperature",
    "general.sampling.top_k": "top_k",
    "general.sampling.top_p": "top_p",
    "general.sampling.min_p": "min_p",
    "general.sampling.penalty_repeat": "repetition_penalty",
    "general.sampling.xtc_probability": "xtc_probability",
    "general.sampling.xtc_threshold": "xtc_threshold",
}
_GGUF_MIROSTAT = "general.sampling.mirostat"  # which of the two algorithms; llama.cpp's tau where the file has none is 5


@dataclass(frozen=True)
class ModelSettings:
    """What a model's own files say about generation."""

    sampling: Mapping[str, Any] = field(default_factory=dict)
    eos_ids: tuple[int, ...] = ()
    suppressed: tuple[int, ...] = ()  # tokens that are never to be generated
    bad_words: tuple[tuple[int, ...], ...] = ()
    ignored: tuple[str, ...] = ()  # "key=value" of what the files ask for and pumice does not do


_GGUF_SUPPRESSED = "tokenizer.ggml.suppress_tokens"
TOP_K_OF_SAMPLING = 50  # what transformers samples from when a generation_config.json that samples does not say


# What transformers' generate() would do otherwise for a file that says so, and the values that mean off. Lengths (max_new_tokens,
# max_length) are the call's.
_NOT_DONE: dict[str, tuple[Any, ...]] = {
    "min_new_tokens": (0,),
    "min_length": (0,),
    "begin_suppress_tokens": ([],),
    "no_repeat_ngram_size": (0,),
    "encoder_no_repeat_ngram_size": (0,),
    "encoder_repetition_penalty": (1,),
    "sequence_bias": ({}, []),
    "forced_bos_token_id": (),
    "forced_eos_token_id": (),
    "exponential_decay_length_penalty": (),
    "num_beams": (1,),
    "num_beam_groups": (1,),
    "penalty_alpha": (0,),
    "stop_strings": ([], ""),
    "guidance_scale": (1,),
    "epsilon_cutoff": (0,),
    "eta_cutoff": (0,),
    "top_h": (),
    "watermarking_config": ({},),
}
_GGUF_NOT_DONE = {_GGUF_MIROSTAT: (0, 2)}


def _ignored(get: Callable[[str], Any], keys: Mapping[str, tuple[Any, ...]]) -> tuple[str, ...]:
    return tuple(f"{key}={shown(value)}" for key, off in keys.items() if (value := get(key)) is not None and value not in off)


def model_settings(file: _core.ModelFile) -> ModelSettings:
    """general.sampling.* of a GGUF file; generation_config.json (then config.json for eos_token_id) of a folder."""
    if file.kind == "gguf":
        found = {name: value for key, name in _GGUF_KEYS.items() if (value := file.get(key)) is not None}
        if file.get(_GGUF_MIROSTAT) == 2:
            found["mirostat_tau"] = file.get(f"{_GGUF_MIROSTAT}_tau") or 5.0
            if (eta := file.get(f"{_GGUF_MIROSTAT}_eta")) is not None:
                found["mirostat_eta"] = eta
        suppressed = _token_ids(file.get(_GGUF_SUPPRESSED), _GGUF_SUPPRESSED, file.path)
        ignored = _ignored(file.get, _GGUF_NOT_DONE)
        return ModelSettings(_checked_settings(found, file.path), suppressed=suppressed, ignored=ignored)
    path = Path(file.path)
    source = (path if path.is_dir() else path.parent) / "generation_config.json"
    values = read_object(source)
    # transformers samples only when do_sample says so, and ignores temperature, top_k ... otherwise.
    samples = values.get("do_sample")
    if samples is not None and not isinstance(samples, bool):
        raise ModelFormatError(f"{source}: do_sample is {shown(samples)}, not true or false", file=str(source), field="do_sample")
    names = ["repetition_penalty"]
    found = {"temperature": 1.0, "top_k": TOP_K_OF_SAMPLING} if samples else {}
    if found:
        names += ["temperature", *_FILTERS]
    found |= {name: values[name] for name in names if values.get(name) is not None}
    eos = values.get("eos_token_id")
    if eos is None:
        eos = file.get("eos_token_id")
    suppressed = _token_ids(values.get("suppress_tokens"), "suppress_tokens", str(source))
    eos_ids = _token_ids(eos, "eos_token_id", str(source))
    given = values.get("bad_words_ids")
    if given is not None and not isinstance(given, list):
        raise ModelFormatError(f"{source}: bad_words_ids is {shown(given)}, not a list of lists", file=str(source), field="bad_words_ids")
    words = {_token_ids(word, "bad_words_ids", str(source)) for word in given or ()}
    words -= {(), *((end,) for end in eos_ids)}  # transformers leaves these out, too
    ignored = _ignored(values.get, _NOT_DONE)
    return ModelSettings(_checked_settings(found, str(source)), eos_ids, suppressed, tuple(sorted(words)), ignored)


def _token_ids(value: Any, name: str, file: str) -> tuple[int, ...]:
    """An id, several, or none; -1 and the like mean none."""
    value = value.tolist() if isinstance(value, np.ndarray) else value
    ids = [] if value is None else value if isinstance(value, list) else [value]
    if not all(isinstance(i, int) and not isinstance(i, bool) for i in ids):
        raise ModelFormatError(f"{file}: {name} is {value!r}, not token ids"[:300], file=file, field=name)
    return tuple(i for i in ids if i >= 0)


def _checked_settings(found: dict[str, Any], file: str) -> dict[str, Any]:
    checked = {}
    for name, value in found.items():
        if name in ("top_p", "typical_p") and value == 0:
            value = 1.0  # some files write 0 for "off"
        try:
            checked[name] = _RANGES[name](name, value)
        except (TypeError, ValueError) as error:
            raise ModelFormatError(f"{file}: {error}", file=file, field=name) from None
    return checked


def resolve_params(call: Mapping[str, Any], model: ModelSettings, tokenizer: Tokenizer, vocab_size: int) -> SamplingParams:
    """The call's values, else the model's, else off (greedy). Raises TypeError or ValueError that names the argument."""
    values: dict[str, Any] = dict(model.sampling)
    for name, check in _RANGES.items():
        if call.get(name) is not None:
            values[name] = check(name, call[name])
    off = SamplingParams()
    if "temperature" not in values and any(
        values.get(name, getattr(off, name)) != getattr(off, name) for name in (*_FILTERS, *_OWN_FILTERS)
    ):
        values["temperature"] = 1.0
    suppressed = {i: -math.inf for i in model.suppressed if i < vocab_size}
    values["logit_bias"] = suppressed | _logit_bias(call.get("logit_bias"), tokenizer, vocab_size)
    values["logits_processor"] = logits_processor(call.get("logits_processor"))
    if values.get("dry_multiplier", 0.0) > 0:
        values["dry_breakers"] = dry_breakers(call.get("dry_breakers"), tokenizer, vocab_size)
    of_the_model = tuple(word for word in model.bad_words if max(word) < vocab_size)
    values["bad_words"] = bad_words(call["bad_words"], tokenizer, vocab_size) if call.get("bad_words") is not None else of_the_model
    values["stop"], values["stop_ids"] = _stops(call.get("stop"), vocab_size)
    logprobs = call.get("logprobs")
    if logprobs is not None and logprobs is not False:
        values["logprobs"] = 0 if logprobs is True else integer("logprobs", logprobs, 0, vocab_size)
    params = SamplingParams(**values)
    if params.min_new_tokens > params.max_new_tokens:
        raise ValueError(f"min_new_tokens={params.min_new_tokens} is more than max_new_tokens={params.max_new_tokens}")
    return params


def _logit_bias(bias: Any, tokenizer: Tokenizer, vocab_size: int) -> dict[int, float]:
    if bias is None:
        return {}
    if not isinstance(bias, Mapping):
        raise TypeError(f"logit_bias must be a dict from token id (or the text of one token) to a number, not {type(bias).__name__}")
    result = {}
    for key, value in bias.items():
        if isinstance(key, str):
            ids = tokenizer.encode(check_text(key, "a key of logit_bias"), add_special=False)
            if len(ids) != 1:
                raise ValueError(f"logit_bias: {shown(key)} is {len(ids)} tokens, not one; tokenize() shows their ids")
            token = int(ids[0])
        else:
            token = integer("a token id in logit_bias", key, 0, vocab_size - 1)
        infinite = isinstance(value, (float, np.floating)) and value == -math.inf  # forbids the token
        try:
            result[token] = -math.inf if infinite else real(f"logit_bias[{shown(key)}]", value, -MOST_BIAS, MOST_BIAS)
        except ValueError as error:
            raise ValueError(f"{error}; -inf forbids the token") from None
    return result


def _stops(stop: Any, vocab_size: int) -> tuple[tuple[str, ...], tuple[int, ...]]:
    if stop is None:
        return (), ()
    if not isinstance(stop, (str, int, np.integer, list, tuple, np.ndarray)):
        raise TypeError(f"stop must be a string, a token id, or a list of them, not {type(stop).__name__} {shown(stop)}")
    entries = [stop] if isinstance(stop, (str, int, np.integer)) else list(stop)
    texts, ids = [], []
    for entry in entries:
        if isinstance(entry, str):
            if not entry:
                raise ValueError("stop holds an empty string, which would stop before the first token")
            texts.append(check_text(entry, "a stop string"))
        elif not isinstance(entry, (int, np.integer)):
            raise TypeError(f"stop holds {type(entry).__name__} {shown(entry)}; it takes strings and token ids")
        else:
            ids.append(integer("a token id in stop", entry, 0, vocab_size - 1))
    return tuple(texts), tuple(ids)


BYTES = (bytes, bytearray, memoryview)


def check_ids(given: Any, vocab_size: int, name: str, needed: str = "a row of token ids") -> Int32:
    """Ids as int32, each checked against the vocabulary."""
    if is_masked(given):
        raise TypeError(f"{name} is a masked array, and masked ids are none; .compressed() leaves them out, .filled(id) gives them a value")
    try:
        array = np.asarray(None if isinstance(given, BYTES) else given)
    except ValueError:  # rows of different lengths
        array = np.asarray(None)
    if array.dtype == object and array.ndim == 1 and all(isinstance(i, int) for i in given):  # some are beyond 64 bits
        array = np.array([i if 0 <= i < vocab_size else -1 for i in given], np.int64)
    if array.ndim != 1 or (array.dtype.kind not in "iu" and array.size):
        found = f"an array of {array.dtype} with shape {array.shape}" if isinstance(given, np.ndarray) else type(given).__name__
        raise TypeError(f"{name} must be {needed}, not {found}{'' if isinstance(given, np.ndarray) else ' ' + shown(given)}")
    if isinstance(given, Sequence) or (isinstance(given, np.ndarray) and given.dtype == object):  # numpy takes them for 0 and 1
        boolean = next((i for i, token in enumerate(given) if isinstance(token, (bool, np.bool_))), None)
        if boolean is not None:
            raise TypeError(f"{name}: token {boolean} is a boolean, not an id")
    wrong = np.flatnonzero((array < 0) | (array >= vocab_size)) if array.size else array
    if wrong.size:
        i = int(wrong[0])
        raise ValueError(f"{name}: token {i} is {shown(int(given[i]))}; ids of this model are 0 to {vocab_size - 1}")
    return np.ascontiguousarray(array, np.int32)


def prompt_ids(prompt: Any, tokenizer: Tokenizer, vocab_size: int, *, name: str = "prompt", add_special: bool = True) -> Int32:
    """A prompt as int32 ids: a str through the tokenizer, ids checked against the vocabulary.

    A text that begins with the first token spelt out does not get a second one."""
    if isinstance(prompt, str):
        ids = np.ascontiguousarray(tokenizer.encode(check_text(prompt, name), add_special=add_special), np.int32)
        if add_special and len(ids) > 1 and ids[0] == ids[1] == tokenizer.bos_id:
            ids = ids[1:]
    else:
        ids = check_ids(prompt, vocab_size, name, "a string or a row of token ids")
    if not ids.size:
        raise ValueError(f"{name} has no tokens, and a model continues at least one")
    return ids


def prompt_list(prompt: Any) -> tuple[list[Any], bool]:
    """The prompts in an argument, and whether it was one alone. One: a str, or a row of ids."""
    if isinstance(prompt, str):
        return [prompt], True
    if isinstance(prompt, np.ndarray):
        if prompt.ndim == 0:
            return [prompt.item()], True
        if prompt.ndim == 1 and prompt.dtype.kind != "O":
            return (prompt.tolist(), False) if prompt.dtype.kind in "UT" else ([prompt], True)
        return list(prompt), False
    if isinstance(prompt, (*BYTES, Mapping)) or not isinstance(prompt, Sequence):
        raise TypeError(f"prompt must be a string, token ids, or a list of either, not {type(prompt).__name__}")
    prompts = listed(prompt)
    if prompts and all(
        not isinstance(p, (str, Sequence, Mapping, *BYTES, np.ndarray)) or (isinstance(p, np.ndarray) and p.ndim == 0) for p in prompts
    ):
        return [prompts], True
    return prompts, False


# ---------------------------------------------------------------- results
@dataclass(frozen=True, repr=False, eq=False)  # arrays have no single truth: compared by identity
class Generation:
    """The text that followed a prompt. str() of it is the text.

    ids: int32 (n,), without the end token and without what a stop string cut off.
    finish_reason: "stop" (a stop string or id), "eos" (the model ended), "grammar" (nothing can follow), "length" (max_new_tokens or the
    context), "cancelled".
    logprobs: float32 (n,) natural log-probability of each token; top_ids int32 and top_logprobs float32 (n, k): the k likeliest
    tokens at each place; None when not asked for. timings: tokens, seconds and tokens per second of the whole call's prefill and decode.
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
    pieces: tuple[str, ...] = ()  # the text of each token

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
    """News of a stream: text that is final, and the tokens it came with. str() of it is the text.

    index: which sequence (prompt * n + sample). finish_reason: set in a sequence's last chunk. Arrays as in Generation.
    kind: of a chat's text: what the model says, thinks, or writes to call a tool. calls: the tool calls that are complete with it."""

    text: str
    ids: Int32
    index: int
    finish_reason: FinishReason | None
    logprobs: Float32 | None
    top_ids: Int32 | None
    top_logprobs: Float32 | None
    kind: Kind = "content"
    calls: tuple[ToolCall, ...] = ()

    def __str__(self) -> str:
        return self.text


# ---------------------------------------------------------------- one sequence
class Continuation:
    """Tokens of one sequence as they come: their text (whole characters only), the first stop, and how much of it is final."""

    def __init__(self, tokenizer: Tokenizer, params: SamplingParams) -> None:
        self._decoder = tokenizer.decode_stream()
        self._stops = params.stop
        self._stop_ids = frozenset(params.stop_ids)
        self._longest = max(map(len, params.stop), default=0)
        self._asked = () if params.logprobs is None else ("logprobs", "top_ids", "top_logprobs")[: 3 if params.logprobs else 1]
        self.text = ""
        self.ids: list[int] = []
        self.starts: list[int] = []  # where in the text each token begins
        self.logprobs: list[Any] = []
        self.top_ids: list[Any] = []
        self.top_logprobs: list[Any] = []
        self.finish_reason: FinishReason | None = None
        self._sent_text = self._sent_ids = 0

    def push(self, news: Mapping[str, Any]) -> None:
        """Takes what the engine said of this sequence."""
        ids = np.asarray(news["ids"]).tolist()
        for k, token in enumerate(ids):
            if token in self._stop_ids:
                self._end("stop")
                return
            self.ids.append(token)
            self.starts.append(len(self.text))
            for name in self._asked:
                getattr(self, name).append(news[name][k])
            if self._extend(self._decoder.step([token])):
                return
        if news.get("finish_reason") is not None:
            self._end(news["finish_reason"])

    def cancel(self) -> None:
        if self.finish_reason is None:
            self._end("cancelled")

    def _end(self, reason: FinishReason) -> None:
        if not self._extend(self._decoder.flush()):  # bytes that never became a character
            self.finish_reason = reason

    def _extend(self, piece: str) -> bool:
        """Adds text; True when it completes a stop string, which is cut off with all that follows."""
        if not piece:
            return False
        before = max(0, len(self.text) - self._longest + 1)
        self.text += piece
        found = [place for stop in self._stops if (place := self.text.find(stop, before)) >= 0]
        if not found:
            return False
        cut = min(found)
        kept = sum(start < cut for start in self.starts)  # a token that begins before the cut stays, even when its end is cut off
        self.text = self.text[:cut]
        for row in (self.ids, self.starts, self.logprobs, self.top_ids, self.top_logprobs):
            del row[kept:]
        self.finish_reason = "stop"
        return True

    def _final(self) -> int:
        """How much of the text can no longer become part of a stop string."""
        if self.finish_reason is not None:
            return len(self.text)
        held = 0
        for stop in self._stops:
            for length in range(min(len(stop) - 1, len(self.text)), held, -1):
                if self.text.endswith(stop[:length]):
                    held = length
                    break
        return len(self.text) - held

    def take(self, index: int) -> Chunk | None:
        """What became final since the last chunk, or None."""
        end = max(self._final(), self._sent_text)
        last = len(self.ids) if self.finish_reason is not None else sum(s < end for s in self.starts[self._sent_ids :]) + self._sent_ids
        if end == self._sent_text and last == self._sent_ids and self.finish_reason is None:
            return None
        rows = slice(self._sent_ids, last)
        chunk = Chunk(self.text[self._sent_text : end], np.array(self.ids[rows], np.int32), index, self.finish_reason, *self.arrays(rows))
        self._sent_text, self._sent_ids = end, last
        return chunk

    def chunks(self, index: int) -> list[Chunk]:
        """take() as chunks of one kind each."""
        chunk = self.take(index)
        return [] if chunk is None else [chunk]

    def arrays(self, rows: slice | None = None) -> tuple[Float32 | None, Int32 | None, Float32 | None]:
        """logprobs (n,), top_ids (n, k), top_logprobs (n, k) of all tokens or some; None for what was not asked."""
        rows = slice(None) if rows is None else rows
        return (
            np.array(self.logprobs[rows], np.float32) if self.logprobs else None,
            np.array(self.top_ids[rows], np.int32) if self.top_ids else None,
            np.array(self.top_logprobs[rows], np.float32) if self.top_logprobs else None,
        )

    def pieces(self) -> tuple[str, ...]:
        ends = [*self.starts[1:], len(self.text)]
        return tuple(self.text[a:b] for a, b in zip(self.starts, ends, strict=False))


# ---------------------------------------------------------------- one call
Finish = Callable[[list[Generation]], Any]
Begin = Callable[["Tokenizer", SamplingParams], Continuation]


READ_AHEAD = 32  # tokens of a stream that are computed before somebody reads them


class Run:
    """One call: a request of one or more prompts in the batch of all callers. The engine's own thread computes it, from the first
    advance() on; a sequence of which `read_ahead` tokens are unread sits out (0: never)."""

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
    ) -> None:
        """params: of all prompts, or one for each, of which `n` is the same. grammars: none, or one for each prompt."""

        def values(params: SamplingParams, grammar: _core.CompiledGrammar | None = None) -> dict[str, Any]:
            values = {f.name: getattr(params, f.name) for f in fields(params)}
            if values["logits_processor"] is None:
                del values["logits_processor"]
            ends = [] if values.pop("ignore_eos") else list(eos_ids)
            del values["stop"]
            values["logprobs"] = -1 if params.logprobs is None else params.logprobs
            if params.seed is None:
                del values["seed"]
            filtered = {} if grammar is None else {"grammar": grammar}
            return values | {"eos_ids": ends, "read_ahead": read_ahead, **(speculation or {}), **filtered}

        self.engine = engine
        self._device = str(engine.info.get("device", ""))
        self._prompt_tokens = [len(ids) for ids in prompts]
        one = isinstance(params, SamplingParams)
        each_prompt = [params] * len(prompts) if isinstance(params, SamplingParams) else params
        if one and not any(grammars):
            self._request = engine.request(list(prompts), values(each_prompt[0]))
        else:
            each_grammar = grammars if any(grammars) else [None] * len(prompts)
            self._request = engine.request(list(prompts), [values(p, g) for p, g in zip(each_prompt, each_grammar, strict=True)])
        self.params = [replace(p, seed=int(seed)) for p, seed in zip(each_prompt, self._request.seeds, strict=True)]
        self._n = self.params[0].n
        self.sequences = [begin(tokenizer, p) for p in self.params for _ in range(p.n)]

    @property
    def done(self) -> bool:
        return all(s.finish_reason is not None for s in self.sequences)

    def advance(self, steps: int, max_ms: float) -> list[int]:
        """Waits for the tokens of so many steps, or so long; the sequences that have news."""
        return self.hear(self._request.advance(steps, max_ms))

    def start(self, tag: int, steps: int) -> None:
        """From now on the news come by the engine's Pump, under this tag."""
        self._request.start(tag, self._steps(steps))

    def hold(self, held: bool) -> None:
        """Whether they have to wait."""
        self._request.hold(held)

    def hear(self, all_news: Sequence[Mapping[str, Any]]) -> list[int]:
        """Takes what the engine said; the sequences that it was about."""
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
            for sequence in self.sequences:  # the engine ended: no sequence may wait for ever
                sequence.cancel()
        return changed

    def _steps(self, most: int) -> int:
        """Steps past a stop string are wasted, so each step is looked at when there is one. Otherwise a few at once: waking a thread costs
        more than looking at a token."""
        return 1 if any(p.stop or p.stop_ids for p in self.params) else most

    def to_end(self) -> None:
        while not self.done:
            self.advance(self._steps(8), 100.0)

    def close(self) -> None:
        for sequence in self.sequences:
            sequence.cancel()
        self._request.close()

    def results(self) -> list[Generation]:
        reused = list(self._request.reused_tokens)
        timings = with_speeds(self._request.timings())
        result = []
        for index, s in enumerate(self.sequences):
            prompt = index // self._n
            params = self.params[prompt]
            logprobs, top_ids, top_logprobs = s.arrays()
            if params.logprobs is not None and logprobs is None:  # no token came
                logprobs = np.empty(0, np.float32)
            if params.logprobs and top_ids is None:
                top_ids, top_logprobs = np.empty((0, params.logprobs), np.int32), np.empty((0, params.logprobs), np.float32)
            result.append(
                Generation(
                    text=s.text,
                    ids=np.array(s.ids, np.int32),
                    finish_reason=s.finish_reason,
                    prompt_tokens=self._prompt_tokens[prompt],
                    reused_tokens=int(reused[prompt]),
                    seed=params.seed or 0,
                    params=params,
                    logprobs=logprobs,
                    top_ids=top_ids,
                    top_logprobs=top_logprobs,
                    timings=timings,
                    device=self._device,
                    pieces=s.pieces(),
                )
            )
        return result


def with_speeds(timings: Mapping[str, float]) -> dict[str, float]:
    """prefill_ and decode_tokens_per_second beside tokens and seconds (0 when no time was spent)."""
    result = dict(timings)
    for phase in ("prefill", "decode"):
        seconds = timings.get(f"{phase}_seconds", 0.0)
        result[f"{phase}_tokens_per_second"] = timings.get(f"{phase}_tokens", 0.0) / seconds if seconds > 0 else 0.0
    return result


def run_to_end(run: Run, finish: Finish) -> Any:
    """The results of a call; KeyboardInterrupt carries those so far as .partial."""
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
    """An iterator of Chunks. close(), leaving the `with` block, or dropping it cancels the rest; `result` then holds what there is.

    One thread at a time reads it, as with generators; any thread may close it."""

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
            if self._closing:  # close() holds the lock, in another thread: there is nothing more to read
                raise StopIteration
            raise ValueError("another thread is reading this stream; chunks come to one thread at a time")
        try:
            if self._reading:  # a signal handler inside of the same thread's step
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
                raise
            self._ready.extend(chunk for i in changed or range(len(self._run.sequences)) for chunk in self._run.sequences[i].chunks(i))
        if not self._ready:
            raise StopIteration
        return self._ready.popleft()

    @property
    def result(self) -> Any:
        """What generate() (or chat()) would have returned, once the stream has ended or was closed; None before."""
        return self._result

    def close(self) -> None:
        """Cancels what is not done yet. Nothing happens the second time."""
        self._closing = True  # another thread's __next__() ends after its step
        while not self._lock.acquire(timeout=0.05):
            if os.getpid() != self._process:  # forked while another thread read: it is not here
                return
        try:
            self._ready.clear()
            self._end()
        finally:
            self._lock.release()

    def _detach(self) -> tuple[Run, Finish]:
        """What somebody else reads in its place."""
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

    def __del__(self) -> None:
        try:
            if not self._closed:
                self._closed = True
                self._run.close()
        except Exception:  # also while the interpreter ends; a destructor has nobody to tell
            pass
