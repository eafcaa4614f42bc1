"""Checks the settings of generate(), stream() and chat(), which come from the call or from the model's own files."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

import numpy as np

from .. import _core
from ..common.arguments import argument, check_text, flag, integer, shown, shown_path
from ..common.side_files import read_object
from ..errors import ModelFormatError
from .repetition import LONGEST_PHRASE
from .token_settings import LogitsProcessor, bad_words, dry_breakers, logits_processor

if TYPE_CHECKING:
    from ..model.model import Model
    from ..tokens.tokenizers import Tokenizer
    from .grammar import Grammar


class Sampling(TypedDict, total=False):
    """The keyword arguments of generate(), stream() and chat(). None means the model's own setting. If the model has none, the setting is
    off."""

    max_new_tokens: int
    min_new_tokens: int
    ignore_eos: bool
    bad_words: str | Sequence[str | Sequence[int]] | None
    max_reasoning_tokens: int | None
    max_repeated_tokens: int | None
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
    max_seconds: float
    chunk_seconds: float
    speculate: str | Mapping[str, int] | None
    draft: Model | None


_OFF = _core.GenerateParams()  # the engine's defaults, which are also the defaults here

SAMPLING_DEFAULTS: dict[str, Any] = dict.fromkeys(Sampling.__annotations__) | {
    "max_new_tokens": _OFF.max_new_tokens,
    "min_new_tokens": _OFF.min_new_tokens,
    "ignore_eos": False,
    "n": _OFF.n,
    "priority": _OFF.priority,
    "max_seconds": _OFF.max_seconds,
    "chunk_seconds": _OFF.chunk_seconds,
}

# Settings of answers: of chat(), and of all requests of the server that generate text. CHAT_SAMPLING has the values of llama.cpp.
CHAT_SAMPLING: Mapping[str, Any] = {"temperature": 0.8, "top_k": 40, "top_p": 0.95, "min_p": 0.05}
CHAT_REPEATED_TOKENS = 512


@dataclass(frozen=True)
class SamplingParams:
    """The resolved sampling settings of a call. The value of a setting is that of the call. Otherwise it is that of the model's own
    settings. Otherwise it is that of CHAT_SAMPLING in an answer (chat(), the server), and off (greedy) in all other calls.
    docs/python/generate.md explains in which order filters apply.

    max_new_tokens: maximum number of generated tokens.
    min_new_tokens: the first `min_new_tokens` tokens are neither an end token nor one of `stop_ids`.
    ignore_eos: whether end tokens are treated like all other tokens.
    bad_words: sequences of token ids that are never generated as a whole.
    max_reasoning_tokens: the reasoning ends after this many tokens. None means no limit.
    max_repeated_tokens: the text ends when this many of its last tokens repeat one phrase (repetition.py). 0 is off.
    logits_processor: the caller's function that changes the logits of each token, or None.
    temperature: number by which logits are divided, at most 1e6. 0 is greedy.
    top_k: only this many most likely tokens can be sampled. 0 is off.
    top_p: only the most likely tokens that together have this probability can be sampled. 1 is off.
    min_p: only tokens with at least this fraction of the most likely token's probability can be sampled. 0 is off.
    typical_p: only the tokens nearest to the entropy that together have this probability can be sampled. 1 is off.
    repetition_penalty: for each token that came before, a positive logit is divided by it, a negative one multiplied; 0.001 to 1000. 1 is
        off.
    presence_penalty: number that is subtracted once from the logit of each token that the answer already has, -100 to 100. 0 is off.
    frequency_penalty: number that is subtracted from a token's logit for each time that the answer has this token, -100 to 100. 0 is off.
    dry_multiplier, dry_base, dry_allowed_length: DRY's penalty of a token that would repeat what followed the last n tokens earlier in the
        text: dry_multiplier * dry_base^(n - dry_allowed_length). dry_multiplier 0 is off.
    dry_range: the number of last tokens in which DRY looks for repetitions. 0 means all.
    dry_breakers: token ids that end a repetition, so that DRY does not look beyond them.
    top_n_sigma: only tokens whose logit is within this many standard deviations of the largest logit can be sampled. 0 is off.
    xtc_probability, xtc_threshold: with this probability, of all tokens that have at least the threshold's probability only the least
        likely one can be sampled. xtc_probability 0 is off.
    mirostat_tau, mirostat_eta: Mirostat 2: the target surprise of a token in bits, and the rate at which it is approached. mirostat_tau 0
        is off.
    logit_bias: token id -> number that is added to the token's logit (-1e20 to 1e20; -inf forbids the token).
    seed: the seed of the random numbers, 0 to 2^64 - 1, or None for a new one.
    stop: strings that end the text.
    stop_ids: token ids that end the text.
    n: number of samples for each prompt.
    logprobs: the number of alternatives per token, or None for no log-probabilities.
    priority: calls with a higher priority run first, -1000 to 1000.
    max_seconds: the call ends this long after its start and returns what was generated until then. 0 means no limit.
    chunk_seconds: least time between two chunks of a stream, except for the first and the last one.
    """

    max_new_tokens: int = _OFF.max_new_tokens
    min_new_tokens: int = _OFF.min_new_tokens
    ignore_eos: bool = False
    bad_words: tuple[tuple[int, ...], ...] = ()
    max_reasoning_tokens: int | None = _OFF.max_reasoning_tokens
    max_repeated_tokens: int = 0
    logits_processor: LogitsProcessor | None = None
    temperature: float = _OFF.temperature
    top_k: int = _OFF.top_k
    top_p: float = _OFF.top_p
    min_p: float = _OFF.min_p
    typical_p: float = _OFF.typical_p
    repetition_penalty: float = _OFF.repetition_penalty
    presence_penalty: float = _OFF.presence_penalty
    frequency_penalty: float = _OFF.frequency_penalty
    dry_multiplier: float = _OFF.dry_multiplier
    dry_base: float = _OFF.dry_base
    dry_allowed_length: int = _OFF.dry_allowed_length
    dry_range: int = _OFF.dry_range
    dry_breakers: tuple[int, ...] = ()
    top_n_sigma: float = _OFF.top_n_sigma
    xtc_probability: float = _OFF.xtc_probability
    xtc_threshold: float = _OFF.xtc_threshold
    mirostat_tau: float = _OFF.mirostat_tau
    mirostat_eta: float = _OFF.mirostat_eta
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    seed: int | None = _OFF.seed
    stop: tuple[str, ...] = ()
    stop_ids: tuple[int, ...] = ()
    n: int = _OFF.n
    logprobs: int | None = _OFF.logprobs
    priority: int = _OFF.priority
    max_seconds: float = _OFF.max_seconds
    chunk_seconds: float = _OFF.chunk_seconds


_MOST_IDS = 2**31  # more than the number of tokens of any vocabulary
_OURS = ("ignore_eos", "max_repeated_tokens", "stop", "logits_processor")  # settings that the loop in engine_params() skips


def engine_params(params: SamplingParams, eos_ids: Sequence[int] = ()) -> _core.GenerateParams:
    """Returns the settings for the engine. If the engine refuses a value, its TypeError or ValueError names the setting."""
    told = _core.GenerateParams()
    for each in fields(params):
        if each.name not in _OURS:
            setattr(told, each.name, getattr(params, each.name))
    told.logits_processor = params.logits_processor
    told.eos_ids = [] if params.ignore_eos else list(eos_ids)
    return told


# Settings that restrict which tokens can be sampled. If one of them is on and no temperature is set, the temperature is 1.
_FILTERS = ("top_k", "top_p", "min_p", "typical_p")
# Further settings of this kind, which generation_config.json cannot have.
_OWN_FILTERS = ("top_n_sigma", "xtc_probability", "mirostat_tau")
# Settings that need the tokenizer or are not a single number. All others are passed to the engine unchanged.
_READ = ("ignore_eos", "max_repeated_tokens", "bad_words", "logits_processor", "dry_breakers", "logit_bias", "stop", "stop_ids", "logprobs")

# Setting -> the other setting without which it has no effect. The other setting is 0 (off) by default.
_SWITCHES = {
    **dict.fromkeys(("dry_base", "dry_allowed_length", "dry_range", "dry_breakers"), "dry_multiplier"),
    "xtc_threshold": "xtc_probability",
    "mirostat_eta": "mirostat_tau",
}

# Key in GGUF files -> name of the setting. Source of the keys: Keys.General.SAMPLING_* in
# https://github.com/ggml-org/llama.cpp/blob/master/gguf-py/gguf/constants.py
_GGUF_KEYS = {
    "general.sampling.temp": "temperature",
    "general.sampling.top_k": "top_k",
    "general.sampling.top_p": "top_p",
    "general.sampling.min_p": "min_p",
    "general.sampling.penalty_repeat": "repetition_penalty",
    "general.sampling.xtc_probability": "xtc_probability",
    "general.sampling.xtc_threshold": "xtc_threshold",
}
# GGUF key for the version of Mirostat (1 or 2). If the file has no tau, llama.cpp uses a tau of 5.
_GGUF_MIROSTAT = "general.sampling.mirostat"


@dataclass(frozen=True)
class ModelSettings:
    """The generation settings in a model's own files. decides: whether the files say how tokens are chosen, be it greedily."""

    sampling: Mapping[str, Any] = field(default_factory=dict)
    decides: bool = False
    eos_ids: tuple[int, ...] = ()
    suppressed: tuple[int, ...] = ()  # ids of tokens that must not be generated
    bad_words: tuple[tuple[int, ...], ...] = ()
    ignored: tuple[str, ...] = ()  # "key=value" for each setting in the files that pumice does not support

    @property
    def chat_sampling(self) -> Mapping[str, Any]:
        """The settings with which tokens of answers are chosen if the call does not say it: none if the files decide."""
        return {} if self.decides else CHAT_SAMPLING


_GGUF_SUPPRESSED = "tokenizer.ggml.suppress_tokens"
TOP_K_OF_SAMPLING = 50  # transformers' top_k if a generation_config.json turns sampling on and has no top_k


# Settings of transformers' generate() that pumice does not support, each with the values that mean "off". Maximum lengths (max_new_tokens,
# max_length) are not listed, because the call sets them.
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
    """Returns the settings in general.sampling.* of a GGUF file, or in the generation_config.json of a folder. If generation_config.json
    has no eos_token_id, the eos_token_id of config.json is used."""
    if file.kind == "gguf":
        found = {name: value for key, name in _GGUF_KEYS.items() if (value := file.get(key)) is not None}
        if file.get(_GGUF_MIROSTAT) == 2:
            found["mirostat_tau"] = file.get(f"{_GGUF_MIROSTAT}_tau") or 5.0
            if (eta := file.get(f"{_GGUF_MIROSTAT}_eta")) is not None:
                found["mirostat_eta"] = eta
        suppressed = _token_ids(file.get(_GGUF_SUPPRESSED), _GGUF_SUPPRESSED, file.path)
        ignored = _ignored(file.get, _GGUF_NOT_DONE)
        decides = any(name in found for name in ("temperature", *_FILTERS, *_OWN_FILTERS))
        return ModelSettings(_checked_settings(found, file.path), decides, suppressed=suppressed, ignored=ignored)
    path = Path(file.path)
    source = (path if path.is_dir() else path.parent) / "generation_config.json"
    values = read_object(source)
    # transformers samples only if do_sample is true. Otherwise it ignores temperature, top_k and others.
    samples = values.get("do_sample")
    if samples is not None and not isinstance(samples, bool):
        raise ModelFormatError(
            f"{shown_path(source)}: do_sample is {shown(samples)}, not true or false", file=str(source), field="do_sample"
        )
    names = ["repetition_penalty"]
    found = {"temperature": 1.0, "top_k": TOP_K_OF_SAMPLING} if samples else {}
    if found:
        names += ["temperature", *_FILTERS]
    found |= {name: values[name] for name in names if values.get(name) is not None}
    eos = values.get("eos_token_id")
    if eos is None:
        eos = file.get("eos_token_id")
    if eos is None:
        eos = file.get("text_config.eos_token_id")  # the key that multimodal models have
    suppressed = _token_ids(values.get("suppress_tokens"), "suppress_tokens", str(source))
    eos_ids = _token_ids(eos, "eos_token_id", str(source))
    given = values.get("bad_words_ids")
    if given is not None and not isinstance(given, list):
        raise ModelFormatError(
            f"{shown_path(source)}: bad_words_ids is {shown(given)}, not a list of lists", file=str(source), field="bad_words_ids"
        )
    words = {_token_ids(word, "bad_words_ids", str(source)) for word in given or ()}
    words -= {(), *((end,) for end in eos_ids)}  # transformers also ignores empty lists and single end tokens
    ignored = _ignored(values.get, _NOT_DONE)
    return ModelSettings(_checked_settings(found, str(source)), samples is not None, eos_ids, suppressed, tuple(sorted(words)), ignored)


def _token_ids(value: Any, name: str, file: str) -> tuple[int, ...]:
    """Returns the token ids in a value that is one id, a list of ids, or None. Negative numbers are left out, because they mean "none"."""
    value = value.tolist() if isinstance(value, np.ndarray) else value
    ids = [] if value is None else value if isinstance(value, list) else [value]
    if not all(isinstance(i, int) and not isinstance(i, bool) for i in ids):
        raise ModelFormatError(f"{shown_path(file)}: {name} is {value!r}, not token ids"[:300], file=file, field=name)
    return tuple(i for i in ids if i >= 0)


def _checked_settings(found: dict[str, Any], file: str) -> dict[str, Any]:
    checked: dict[str, Any] = {}
    for name, value in found.items():
        if name in ("top_p", "typical_p") and value == 0:
            value = 1.0  # some files write 0 for "off"
        try:
            checked |= _numbers({name: value})
        except (TypeError, ValueError) as error:
            raise ModelFormatError(f"{shown_path(file)}: {error}", file=file, field=name) from None
    return checked


def check_setting(name: str, value: Any, alias: str) -> None:
    """Checks the value of a numeric setting that the caller has passed under the name `alias`. An error message then uses that name."""
    try:
        _numbers({name: value})
    except (TypeError, ValueError) as error:
        raise type(error)(str(error).replace(name, alias, 1)) from None


def _numbers(given: Mapping[str, Any]) -> dict[str, Any]:
    """Returns numeric settings after the engine has checked and rounded them."""
    told = _core.GenerateParams()
    for name, value in given.items():
        setattr(told, name, value)
    return {name: getattr(told, name) for name in given}


def _given_numbers(call: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the numeric settings of a call after the engine has checked and rounded them."""
    return _numbers(
        {each.name: call[each.name] for each in fields(SamplingParams) if each.name not in _READ and call.get(each.name) is not None}
    )


def check_without_model(call: Mapping[str, Any]) -> None:
    """Checks the settings of later calls before a model is loaded: numbers, ignore_eos and stop. The other settings need the model's
    tokenizer, so only resolve_params() checks them. Raises TypeError or ValueError that names the wrong argument."""
    _given_numbers(call)
    _ignore_eos(call)
    _repeated(call)
    _stops(call.get("stop"), _MOST_IDS)


def with_chat_defaults(call: Mapping[str, Any], model: ModelSettings) -> dict[str, Any]:
    """Returns the keywords of an answer (chat(), the server): the call's, and the defaults of answers where neither the call nor the
    model's files have a value. A call with ignore_eos wants a number of tokens, so no repetition ends it by default."""
    result = dict(model.chat_sampling)
    if not _ignore_eos(call):
        result["max_repeated_tokens"] = CHAT_REPEATED_TOKENS
    return result | {name: value for name, value in call.items() if value is not None}


def resolve_params(call: Mapping[str, Any], model: ModelSettings, tokenizer: Tokenizer, vocab_size: int) -> SamplingParams:
    """Returns the settings of a call. A setting has the call's value, or else the model's, or else is off (greedy). Raises TypeError or
    ValueError that names the wrong argument."""
    values = {**model.sampling, **_given_numbers(call)}
    for name, switch in _SWITCHES.items():
        if call.get(name) is not None and call.get(switch) is None and not values.get(switch):
            raise ValueError(f"{name}={shown(call[name])} does nothing without {switch}, which is 0 (off) unless given")
    if "temperature" not in values and any(
        values.get(name, getattr(_OFF, name)) != getattr(_OFF, name) for name in (*_FILTERS, *_OWN_FILTERS)
    ):
        values["temperature"] = 1.0
    values["ignore_eos"], values["max_repeated_tokens"] = _ignore_eos(call), _repeated(call)
    suppressed = {i: -math.inf for i in model.suppressed if i < vocab_size}
    with argument("logit_bias"):
        values["logit_bias"] = suppressed | _logit_bias(call.get("logit_bias"), tokenizer, vocab_size)
    values["logits_processor"] = logits_processor(call.get("logits_processor"))
    if values.get("dry_multiplier", 0.0) > 0:
        values["dry_breakers"] = dry_breakers(call.get("dry_breakers"), tokenizer, vocab_size)
    of_the_model = tuple(word for word in model.bad_words if max(word) < vocab_size)
    with argument("bad_words"):
        values["bad_words"] = bad_words(call["bad_words"], tokenizer, vocab_size) if call.get("bad_words") is not None else of_the_model
    with argument("stop"):
        values["stop"], values["stop_ids"] = _stops(call.get("stop"), vocab_size)
    logprobs = call.get("logprobs")
    values["logprobs"] = None if logprobs is None or logprobs is False else 0 if logprobs is True else logprobs
    told = engine_params(SamplingParams(**values))
    told.check(vocab_size)
    return SamplingParams(**values | {"logit_bias": told.logit_bias, "logprobs": told.logprobs})


def _ignore_eos(call: Mapping[str, Any]) -> bool:
    return flag("ignore_eos", call["ignore_eos"]) if call.get("ignore_eos") is not None else False


def _repeated(call: Mapping[str, Any]) -> int:
    given = call.get("max_repeated_tokens")
    most = 0 if given is None else integer("max_repeated_tokens", given, 0, 2**31 - 1)
    if 0 < most < 2 * LONGEST_PHRASE:
        raise ValueError(f"max_repeated_tokens={most} is out of range: it must be 0 (off) or at least {2 * LONGEST_PHRASE}")
    return most


def _logit_bias(bias: Any, tokenizer: Tokenizer, vocab_size: int) -> dict[int, Any]:
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
        if token in result:
            raise ValueError(f"logit_bias has two keys for the token {token}, one of them {shown(key)}; a token has one bias")
        result[token] = value
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
