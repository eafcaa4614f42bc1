"""POST /completion and /infill, as the server of llama.cpp has them: https://github.com/ggml-org/llama.cpp/tree/master/tools/server."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..event_loops.streams import AsyncStream
from ..generate.gaps import gaps_of
from ..generate.generation import Chunk, Generation
from ..generate.settings import SamplingParams
from ..model.model import Model
from .calls import Call
from .chat_completions import event_of, failed
from .completions import NO_LIMIT
from .conversations import structured
from .dialects import send
from .failures import Refused
from .fields import ANY, FLAG, INTEGER, LIST, NUMBER, OBJECT, TEXT, TEXT_OR_TEXTS, Field, Fields, Read
from .prompt_scores import LEAST, check_count
from .sampling_fields import GRAMMAR, IDLE, INERT, LACKING, MODEL, STREAM, sampling_fields
from .settings import Settings

NO_SLOT = -1  # the id of llama.cpp's slots in answers, because this server has none
ANY_SEED = 2**32 - 1  # llama.cpp's seed for any other one, besides -1
# What llama.cpp calls the repository and the file of a gap, whose names its clients do not send.
REPOSITORY, FILE, OTHER_FILE = "myproject", "filename", "tmp"

# Sampler of llama.cpp -> its letter, and the keywords that turn it off. Those that a request's `samplers` does not list are off.
_SAMPLERS: dict[str, tuple[str, Mapping[str, float]]] = {
    "penalties": ("e", {"repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0}),
    "dry": ("d", {"dry_multiplier": 0.0}),
    "top_n_sigma": ("s", {"top_n_sigma": 0.0}),
    "top_k": ("k", {"top_k": 0}),
    "typ_p": ("y", {"typical_p": 1.0}),
    "top_p": ("p", {"top_p": 1.0}),
    "min_p": ("m", {"min_p": 0.0}),
    "xtc": ("x", {"xtc_probability": 0.0}),
    "temperature": ("t", {"temperature": 1.0}),
    "infill": ("i", {}),
    "adaptive_p": ("a", {}),
}
_OTHER_NAMES = {"temp": "temperature", "typ": "typ_p", "typical": "typ_p", "typical_p": "typ_p", "nucleus": "top_p"}


def _samplers(given: str | list[str]) -> list[str]:
    """Returns the names in `samplers`, which has letters or names."""
    letters = {letter: name for name, (letter, _) in _SAMPLERS.items()}
    names = [letters.get(each, each) for each in given] if isinstance(given, str) else [each.replace("-", "_") for each in given]
    names = [_OTHER_NAMES.get(name, name) for name in names]
    for name in names:
        if name not in _SAMPLERS:
            raise ValueError(f"there is no sampler {name[:80]!r}; known: {', '.join(_SAMPLERS)}")
    return names


def _biases(given: Any) -> dict[int | str, float]:
    """Converts logit_bias: [token, bias] pairs, or an object. A token is an id or a text; false forbids it."""
    pairs = given.items() if isinstance(given, dict) else given
    result: dict[int | str, float] = {}
    for pair in pairs:
        if not isinstance(pair, (list, tuple)) or len(pair) != 2:
            raise ValueError("an entry must be [token, bias]")
        token, bias = pair
        if isinstance(given, dict) and token.isascii() and token.isdecimal() and len(token) < 10:
            token = int(token)
        if isinstance(token, bool) or not isinstance(token, (int, str)):
            raise ValueError("a token must be an id or a text")
        if bias is True or not isinstance(bias, (bool, int, float)):
            raise ValueError(f"the bias of {str(token)[:80]} must be a number, or false")
        if token in result:
            raise ValueError(f"two entries are for the token {str(token)[:80]}; a token has one bias")
        result[token] = float("-inf") if bias is False else float(bias)
    return result


def _seed(value: int) -> int | None:
    return None if value in (-1, ANY_SEED) else value % 2**64 if -(2**63) <= value < 0 else value


_MOST_NEW = {"type": "integer", "minimum": NO_LIMIT}
# Fields that have another name or form than those of sampling_fields().
_OWN = (
    Field(
        "n_predict",
        _MOST_NEW,
        "Most new tokens. -1: what fits into the context. 0: none, but the prompt is computed and kept.",
        to="max_new_tokens",
    ),
    Field("max_tokens", _MOST_NEW, "The same.", to="max_new_tokens"),
    Field("max_completion_tokens", _MOST_NEW, "The same.", to="max_new_tokens"),
    Field("temperature", NUMBER, "0 or less chooses the likeliest token.", to="temperature", read=lambda value: max(0, value)),
    Field("top_n_sigma", NUMBER, "Tokens within so many standard deviations of the best one. -1 or 0: all.", to="top_n_sigma", idle=(-1,)),
    Field("repeat_penalty", NUMBER, "What divides the logits of tokens that have occurred.", to="repetition_penalty"),
    Field("dry_penalty_last_n", {"type": "integer", "minimum": -1}, "In how many last tokens DRY looks. -1: all. 0: it is off."),
    Field("dry_sequence_breakers", {"type": "array", "items": TEXT}, "generate()'s dry_breakers.", to="dry_breakers", idle=([],)),
    Field("mirostat", {"enum": [0, 2]}, "2: Mirostat 2, with mirostat_tau (5) and mirostat_eta (0.1)."),
    Field("mirostat_tau", NUMBER, "The target surprise of a token in bits.", to="mirostat_tau"),
    Field("mirostat_eta", NUMBER, "The rate at which it is approached.", to="mirostat_eta"),
    Field("samplers", TEXT_OR_TEXTS, "Filters by name, or by letter. Those that are not listed are off. Their order is pumice's own."),
    Field("seed", INTEGER, "Equal seeds give equal answers. -1: any.", to="seed", read=_seed),
    Field("logit_bias", {"anyOf": [OBJECT, LIST]}, "[token, bias] pairs. false forbids a token.", to="logit_bias", read=_biases),
    Field("n_probs", {"type": "integer", "minimum": 0}, "The log-probabilities of so many likeliest tokens.", idle=(0,)),
    Field("json_schema", ANY, "A JSON Schema that the answer follows.", idle=(None,), covers={"grammar": "json_schema"}),
    Field(GRAMMAR.name, GRAMMAR.schema, GRAMMAR.about, to="grammar", idle=("",)),
    Field("n_indent", {"type": "integer", "minimum": 0}, "The answer ends at a later line that is indented by less than this.", idle=(0,)),
    Field(
        "t_max_predict_ms",
        {"type": "integer", "minimum": -1},
        "The answer ends at the first line feed so many milliseconds after its first token.",
        idle=(0, -1),
    ),
    Field("return_tokens", FLAG, "True: `tokens` has the ids of a whole answer."),
    Field("timings_per_token", FLAG, "True: each event has the timings so far."),
    Field(
        "response_fields",
        {"type": "array", "items": TEXT},
        "The entries of an answer that are sent, as timings/prompt_n.",
        idle=([],),
    ),
    STREAM,
    MODEL,
)
_INERT = (
    *INERT, "id_slot", "n_keep", "n_discard", "n_cache_reuse", "repeat_last_n", "return_progress", "sse_ping_interval", "verbose",
    "t_max_prompt_ms", "adaptive_decay", "backend_sampling",
)  # fmt: skip
_REFUSED: dict[str, tuple[str, tuple[Any, ...]]] = {
    "post_sampling_probs": ("probabilities are those before sampling", (False,)),
    "min_keep": ("filters keep one token at least", (0, 1)),
    "lora": ("a model has the adapters with which it was loaded", ([],)),
    "image_data": ("prompts are text", ([],)),
    "adaptive_target": ("there is no such filter", (-1,)),
    "grammar_lazy": ("a grammar holds from the first token", (False,)),
}


def _table(settings: Settings, *asked: Field) -> Fields:
    own = {each.name for each in _OWN}
    shared = [each for each in sampling_fields(settings) if each.name not in own]
    for each in shared:
        if each.name == "n":
            shared.append(Field("n_cmpl", each.schema, each.about, to="n"))
            break
    return Fields(
        (*asked, *_OWN, *shared),
        inert=_INERT,
        refused={**{name: why for name, why in LACKING.items() if name not in own}, **{name: why for name, (why, _) in _REFUSED.items()}},
        idle={**IDLE, **{name: values for name, (_, values) in _REFUSED.items()}},
    )


def fields(settings: Settings) -> Fields:
    """Returns the fields of /completion."""
    token = {"type": "integer", "minimum": 0, "maximum": 2**31 - 1}
    mixed = {"type": "array", "items": {"anyOf": [TEXT, token]}, "minItems": 1}
    part = {"type": "object", "properties": {"prompt_string": TEXT}, "required": ["prompt_string"]}
    each = {"anyOf": [TEXT, token, mixed, part]}
    prompt = {"anyOf": [TEXT, part, {"type": "array", "items": each, "minItems": 1}]}
    return _table(settings, Field("prompt", prompt, "A text, or a list of token ids and texts; or a list of these.", needed=True))


def infill_fields(settings: Settings) -> Fields:
    """Returns the fields of /infill."""
    file = {"type": "object", "properties": {"filename": TEXT, "text": TEXT}, "required": ["text"]}
    return _table(
        settings,
        Field("input_prefix", TEXT, "The text before the gap.", needed=True, covers={"prefix": "input_prefix"}),
        Field("input_suffix", TEXT, "The text after the gap.", needed=True, covers={"suffix": "input_suffix"}),
        Field("prompt", TEXT, "More text before the gap, such as the beginning of its line.", covers={"prompt": "input_prefix"}),
        Field(
            "input_extra",
            {"type": "array", "items": file, "maxItems": settings.max_inputs},
            "Texts of other files; the most useful one is last. The first ones are left out where the context is too short.",
        ),
    )


class _Asked:
    """A checked request. options: keywords of the Python call. most: maximum number of new tokens; 0 only computes the prompt."""

    def __init__(self, call: Call, read: Read, model: Model) -> None:
        self.read, self.model, self.settings = read, model, call.server.settings
        self.context = int(model._info["n_ctx"])
        options = dict(read.keywords)
        most = options.pop("max_new_tokens", self.settings.max_answer)
        self.most = self.context if most == NO_LIMIT else most
        self.n = options.get("n", 1)
        self.top = read["n_probs"]
        if read["json_schema"] is not None:
            if "grammar" in options:
                raise Refused(400, "json_schema and grammar were both given; an answer has one form", param="grammar")
            options["grammar"] = structured({"json": read["json_schema"]}, "json_schema")
        elif "grammar" in options:
            options["grammar"] = structured({"grammar": options["grammar"]}, "grammar")
        if read["mirostat"] != 2:
            options = {name: value for name, value in options.items() if name not in ("mirostat_tau", "mirostat_eta")}
        else:
            options.setdefault("mirostat_tau", 5.0)
        if read["dry_penalty_last_n"] == 0:
            options["dry_multiplier"] = 0.0
        elif "dry_multiplier" in options and read["dry_penalty_last_n"] is not None:
            options["dry_range"] = max(0, read["dry_penalty_last_n"])
        if read["samplers"] is not None:
            try:
                listed = _samplers(read["samplers"])
            except ValueError as error:
                raise Refused(400, f"samplers: {error}", param="samplers") from None
            for name, (_, off) in _SAMPLERS.items():
                if name not in listed and not (name == "temperature" and options.get("temperature") == 0):
                    options |= off
        if self.top is not None:
            options["logprobs"] = self.top
            if read["stream"]:  # llama.cpp's events have one token, which its clients show with its probabilities
                options.setdefault("chunk_seconds", 0.0)
        if read["n_indent"] or read["t_max_predict_ms"]:  # the text is looked at while it is generated
            options.setdefault("chunk_seconds", self.settings.chunk_seconds)
        self.options = options
        self.timings = bool(read["timings_per_token"])

    @property
    def room(self) -> int:
        """The number of tokens that a prompt with a gap may have, so that its answer has room."""
        return self.context - min(max(self.most, 1), self.context // 2)

    def check(self, prompts: int) -> None:
        """Raises Refused if the answers would be too many or too large."""
        if prompts * self.n > self.settings.max_sequences:
            message = f"{prompts} prompts with {self.n} answers each are more than {self.settings.max_sequences}, the most of a request"
            raise Refused(400, message, param="prompt")
        if self.top is not None and not self.read["stream"]:
            check_count(0, prompts * self.n * self.most, self.top, self.settings, "n_probs")


def _prompts(model: Model, given: Any) -> tuple[list[Any], bool]:
    """Returns the ids of each prompt, and whether the request has a list of prompts."""
    single = not isinstance(given, list) or any(isinstance(each, int) for each in given)
    if single and isinstance(given, list) and not all(isinstance(each, (int, str)) for each in given):
        raise Refused(400, "prompt has token ids beside lists or objects; one prompt has ids and texts", param="prompt")
    found = []
    for each in [given] if single else given:
        if isinstance(each, dict):
            if each.get("multimodal_data"):
                raise Refused(400, "prompt has multimodal_data; prompts are text", param="prompt")
            each = each["prompt_string"]
        ids: list[Any] = []
        for i, part in enumerate(each if isinstance(each, list) else [each]):
            if isinstance(part, str) and i:
                ids += model._tokenizer.encode(part, add_special=False).tolist()
            elif isinstance(part, str) and (part or not isinstance(each, list)):
                ids += model._generator.prompt_ids([part], ["prompt"])[0].tolist()
            elif isinstance(part, int):
                ids.append(part)
        found.append(np.array(ids, np.int32))
    return found, not single


async def complete(call: Call) -> None:
    """Continues prompts, in llama.cpp's form."""
    read = await call.read()
    async with call.using(read) as served:
        model = served.generator()
        asked = await call.translated(_Asked, call, read, model)
        prompts, several = await call.server.aside(_prompts, model, read["prompt"])
        await _answered(call, asked, served.name, prompts, several)


async def infill(call: Call) -> None:
    """Fills a gap between two texts, in llama.cpp's form."""
    read = await call.read()
    async with call.using(read) as served:
        model = served.generator()
        asked = await call.translated(_Asked, call, read, model)
        gaps = gaps_of(model._tokenizer, served.name)
        files = [(each.get("filename") or OTHER_FILE, each["text"]) for each in read["input_extra"] or ()]
        named = None if gaps.repository is None else REPOSITORY, FILE
        prefix = read["input_prefix"] + (read["prompt"] or "")
        ids = await call.server.aside(gaps.ids, prefix, read["input_suffix"], files, *named, asked.room)
        if not asked.options.get("ignore_eos"):
            stops = asked.options.get("stop") or call.sampling.get("stop") or ()
            ends = sorted(i for i in gaps.ends if i < model._info["vocab_size"])
            asked.options["stop"] = [*([stops] if isinstance(stops, str) else stops), *ends]
        await _answered(call, asked, served.name, [np.array(ids, np.int32)], False)


async def _answered(call: Call, asked: _Asked, name: str, prompts: list[Any], several: bool) -> None:
    asked.check(len(prompts))
    options = {**asked.options, "max_new_tokens": max(asked.most, 1)}
    stream = asked.model.astream(prompts, **asked.model._generator.answering({**call.sampling, **options}))
    await stream.begin()
    call.admitted(stream)
    await send(call, stream, _Written(asked, stream, name, prompts, several), asked.read["stream"])


# ---------------------------------------------------------------- answers
class _Lines:
    """The text of an answer that n_indent or t_max_predict_ms may end. text: what is kept of it. ended: whether it has ended."""

    def __init__(self, indent: int, milliseconds: int) -> None:
        self._indent, self._seconds = indent, milliseconds / 1000
        self._since: float | None = None  # when the first token came
        self._column: int | None = None  # blanks of the line so far, or None: the first line, or one that has begun with text
        self.text, self.ended = "", False

    def kept(self, piece: str, tokens: int) -> str:
        """Returns what of the next piece of text belongs to the answer. tokens: number of its tokens."""
        if self.ended:
            return ""
        if self._since is None and tokens:
            self._since = time.monotonic()
        end = self._line_end(piece) if self._indent else len(piece)
        piece = piece[:end]
        if self._seconds > 0 and self._since is not None and "\n" in piece and time.monotonic() - self._since > self._seconds:
            self.ended = True
        self.text += piece
        return piece

    def _line_end(self, piece: str) -> int:
        for i, character in enumerate(piece):
            if self._column is not None:
                if character in " \t":
                    self._column += 1
                    continue
                if self._column < self._indent:
                    self.ended = True
                    return i
                self._column = None
            if character == "\n":
                self._column = 0
        return len(piece)


class _Written:
    """Answers in llama.cpp's form. prompts: the ids of each. several: whether the request has a list of prompts."""

    def __init__(self, asked: _Asked, stream: AsyncStream, name: str, prompts: Sequence[Any], several: bool) -> None:
        self._asked, self._stream, self._name, self._prompts, self._several = asked, stream, name, prompts, several
        limits = asked.read.get("n_indent", 0), asked.read.get("t_max_predict_ms", 0)
        count = len(prompts) * asked.n
        self._lines = [_Lines(*limits) for _ in range(count)] if any(limits) else []
        self._new = [0] * count  # number of tokens that were sent

    def opening(self) -> bytes:
        return b""

    def _kept(self, chunk: Chunk) -> str:
        """Returns the text of a chunk that belongs to its answer. Ends the call once all its answers have ended."""
        if not self._lines:
            return chunk.text
        text = self._lines[chunk.index].kept(chunk.text, len(chunk.ids))
        if all(each.ended for each in self._lines):
            self._stream._close()
        return text

    def gather(self, chunk: Chunk) -> None:
        self._kept(chunk)

    def events(self, chunk: Chunk) -> bytes:
        index = chunk.index
        if not self._asked.most or (self._lines and self._lines[index].ended):
            return b""
        text = self._kept(chunk)
        if not (text or len(chunk.ids)):
            return b""
        self._new[index] += len(chunk.ids)
        event: dict[str, Any] = {
            "index": index,
            "content": text,
            "tokens": chunk.ids,
            "stop": False,
            "id_slot": NO_SLOT,
            "tokens_predicted": self._new[index],
            "tokens_evaluated": len(self._prompts[index // self._asked.n]),
        }
        if chunk.logprobs is not None and len(chunk.ids):
            event["completion_probabilities"] = _probabilities(self._asked.model, chunk)
        if self._asked.timings:
            event["timings"] = _timings(self._stream.timings, event["tokens_evaluated"], 0, self._new[index])
        return event_of(event)

    def closing(self, results: list[Generation]) -> bytes:
        return b"".join(event_of(self._final(i, each, streamed=True)) for i, each in enumerate(results))

    def whole(self, results: list[Generation]) -> Any:
        found = [self._final(i, each) for i, each in enumerate(results)]
        return found if self._several or len(found) > 1 else found[0]

    def failed(self, failure: Refused) -> bytes:
        return failed(failure)

    def _final(self, index: int, each: Generation, streamed: bool = False) -> dict[str, Any]:
        asked, read = self._asked, self._asked.read
        lines, prompt = self._lines[index] if self._lines else None, self._prompts[index // asked.n]
        text, new = ("", 0) if not asked.most else (each.text if lines is None else lines.text, len(each.ids))
        over = not asked.most or (lines is not None and lines.ended)
        stopped = isinstance(each.stopped_by, str) and not over
        kind = "word" if stopped else "eos" if each.finish_reason in ("eos", "stop", "grammar") else "limit"
        report: dict[str, Any] = {"pumice": {"ignored": read.ignored}} if read.ignored else {}
        answer = {
            "index": index,
            "content": "" if streamed else text,
            "tokens": each.ids[:new] if read["return_tokens"] and not streamed else [],
            "id_slot": NO_SLOT,
            "stop": True,
            "model": self._name,
            "tokens_predicted": new,
            "tokens_evaluated": each.prompt_tokens,
            "generation_settings": {
                **settings_of(each.params),
                "n_predict": asked.most,
                "max_tokens": asked.most,
                "stream": streamed,
                "grammar": read.get("grammar", ""),
            },
            "prompt": asked.model._tokenizer.decode(prompt, skip_special=False),
            "has_new_line": "\n" in text,
            "truncated": each.finish_reason == "length" and each.prompt_tokens + len(each.ids) >= asked.context,
            "stop_type": "limit" if over else kind,
            "stopping_word": each.stopped_by if stopped else "",
            "tokens_cached": each.reused_tokens,
            "timings": _timings(each.timings, each.prompt_tokens, each.reused_tokens, new),
            **report,
        }
        if each.logprobs is not None and new and not streamed:
            answer["completion_probabilities"] = _probabilities(asked.model, each)
        wanted = read["response_fields"]
        return answer if wanted is None else _picked(answer, wanted)


def _picked(answer: Mapping[str, Any], wanted: Sequence[str]) -> dict[str, Any]:
    """Returns the entries of an answer with these names, in which a slash leads into an object."""
    found: dict[str, Any] = {}
    for name in wanted:
        value: Any = answer
        for key in name.split("/"):
            value = value.get(key) if isinstance(value, dict) else None
        if value is not None:
            found[name] = value
    return found


def settings_of(params: SamplingParams) -> dict[str, Any]:
    """Returns the settings of an answer under llama.cpp's names."""
    names = (
        "temperature", "top_k", "top_p", "min_p", "top_n_sigma", "xtc_probability", "xtc_threshold", "typical_p", "presence_penalty",
        "frequency_penalty", "dry_multiplier", "dry_base", "dry_allowed_length", "mirostat_tau", "mirostat_eta", "ignore_eos",
    )  # fmt: skip
    return {
        "seed": params.seed if params.seed is not None else ANY_SEED,
        **{name: getattr(params, name) for name in names},
        "dynatemp_range": 0.0,
        "dynatemp_exponent": 1.0,
        "repeat_last_n": -1,
        "repeat_penalty": params.repetition_penalty,
        "dry_penalty_last_n": params.dry_range or -1,
        "mirostat": 2 if params.mirostat_tau > 0 else 0,
        "stop": params.stop,
        "max_tokens": params.max_new_tokens,
        "n_predict": params.max_new_tokens,
        "n_keep": 0,
        "n_discard": 0,
        "n_probs": params.logprobs or 0,
        "min_keep": 0,
        "samplers": [name for name in _SAMPLERS if name not in ("infill", "adaptive_p")],
    }


def _timings(seconds: Mapping[str, float], prompt: int, cached: int, new: int) -> dict[str, float]:
    """Returns the timings of a call. Those of several answers are the times of the whole call."""
    found: dict[str, float] = {"cache_n": cached}
    for name, count, phase in (("prompt", prompt - cached, "prefill"), ("predicted", new, "decode")):
        took = 1000 * seconds.get(f"{phase}_seconds", 0.0)
        found |= {
            f"{name}_n": count,
            f"{name}_ms": took,
            f"{name}_per_token_ms": took / count if count else 0.0,
            f"{name}_per_second": 1000 * count / took if took else 0.0,
        }
    return found


def _probabilities(model: Model, each: Chunk | Generation) -> list[dict[str, Any]]:
    """Returns completion_probabilities: for each token its log-probability, and the likeliest tokens with theirs."""
    assert each.logprobs is not None and each.top_ids is not None and each.top_logprobs is not None

    def entries(ids: Any, chances: Any) -> list[dict[str, Any]]:
        rows = zip(ids.tolist(), model.token_bytes(ids), chances.tolist(), strict=True)
        return [{"id": i, "token": data.decode("utf-8", "replace"), "bytes": list(data), "logprob": max(p, LEAST)} for i, data, p in rows]

    rows = zip(entries(each.ids, each.logprobs), each.top_ids, each.top_logprobs, strict=True)
    return [{**own, "top_logprobs": entries(ids, chances)} for own, ids, chances in rows]
