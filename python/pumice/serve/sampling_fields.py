"""The fields of all endpoints that generate text, with OpenAI's names and with the names of pumice's own keywords."""

from __future__ import annotations

from typing import Any

from .fields import ANY, FLAG, INTEGER, NUMBER, OBJECT, TEXT, Field
from .settings import Settings


def _seed(value: int) -> int | None:
    """Returns the seed for generate(), which has 64 bits without a sign. llama.cpp's clients send -1 for a random seed."""
    return None if value == -1 else value % 2**64 if -(2**63) <= value < 0 else value


def biases(given: dict[str, Any]) -> dict[int, float]:
    """Converts OpenAI's logit_bias, whose keys are token ids as text."""
    result: dict[int, float] = {}
    for key, value in given.items():
        if not (key.isascii() and key.isdecimal() and len(key) < 10):
            raise ValueError(f'the key {key[:80]!r} is not a token id, such as "1234"')
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise ValueError(f"the bias of {key} must be a number")
        if int(key) in result:
            raise ValueError(f"two keys are the token id {int(key)}, one of them {key!r}; a token has one bias")
        result[int(key)] = float("-inf") if value <= -100 else float(value)
    return result


def texts_in(given: str | list[str]) -> list[str]:
    """Returns the texts of a field that is a text or a list of texts. Empty texts, which clients send as defaults, are left out."""
    return [text for text in ([given] if isinstance(given, str) else given) if text]


def sampling_fields(settings: Settings) -> tuple[Field, ...]:
    """Returns the fields. Their limits are those of the server's settings."""
    stop = {"type": "string", "maxLength": settings.max_stop_length}
    texts = {"type": "array", "items": stop, "maxItems": settings.max_biases}
    number = dict.fromkeys(_NUMBERS, NUMBER) | dict.fromkeys(_INTEGERS, INTEGER)
    own = tuple(Field(name, schema, f"generate()'s {name}.", to=name, idle=_IDLE.get(name, ())) for name, schema in number.items())
    return (
        Field("temperature", NUMBER, "0 chooses the likeliest token.", to="temperature"),
        Field("top_p", NUMBER, "Samples from the likeliest tokens that have this probability together.", to="top_p"),
        Field("presence_penalty", NUMBER, "What is taken from the logits of tokens that have occurred.", to="presence_penalty"),
        Field("frequency_penalty", NUMBER, "The same for each occurrence.", to="frequency_penalty"),
        Field("seed", INTEGER, "Equal seeds give equal answers. -1: any.", to="seed", read=_seed),
        Field(
            "stop",
            {"anyOf": [stop, {"type": "array", "items": stop, "maxItems": settings.max_stops}]},
            "Texts before which the answer ends.",
            to="stop",
            read=texts_in,
            joins=True,
        ),
        Field(
            "stop_token_ids",
            {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 2**31 - 1}, "maxItems": settings.max_stops},
            "Tokens before which the answer ends.",
            to="stop",
            joins=True,
        ),
        Field("n", {"type": "integer", "minimum": 1, "maximum": settings.max_n}, "How many answers.", to="n"),
        Field(
            "logit_bias",
            {"type": "object", "maxProperties": settings.max_biases},
            "Token id -> what is added to its logit; -100 forbids it.",
            to="logit_bias",
            read=biases,
            idle=([],),
        ),
        Field(
            "max_reasoning_tokens", BUDGET, "The reasoning ends after this many tokens. -1: never.", to="max_reasoning_tokens", idle=(-1,)
        ),
        Field(
            "max_repeated_tokens",
            INTEGER,
            "The answer ends when this many of its last tokens repeat one phrase. 0: never.",
            to="max_repeated_tokens",
        ),
        Field("min_tokens", INTEGER, "vLLM's name of min_new_tokens.", to="min_new_tokens"),
        Field("ignore_eos", FLAG, "Goes on after end tokens.", to="ignore_eos"),
        Field("bad_words", {"anyOf": [stop, texts]}, "Texts that are never generated.", to="bad_words", read=texts_in),
        Field("dry_breakers", texts, "generate()'s dry_breakers.", to="dry_breakers", idle=([],)),
        Field("speculate", {"anyOf": [TEXT, OBJECT]}, 'Guesses of tokens: "off", "lookup" or "mtp".', to="speculate"),
        *own,
    )


BUDGET = {"type": "integer", "minimum": 0}
_INTEGERS = ("top_k", "min_new_tokens", "dry_allowed_length", "dry_range", "priority")
_IDLE = {"top_k": (-1,)}  # names of numbers -> values with which other servers turn them off
_NUMBERS = (
    "min_p",
    "typical_p",
    "repetition_penalty",
    "dry_multiplier",
    "dry_base",
    "top_n_sigma",
    "xtc_probability",
    "xtc_threshold",
    "mirostat_tau",
    "mirostat_eta",
    "max_seconds",
    "chunk_seconds",
)

STREAM = Field("stream", FLAG, "True: the answer comes as server-sent events.")
STREAM_OPTIONS = Field(
    "stream_options",
    {"type": "object", "properties": {"include_usage": FLAG, "include_obfuscation": FLAG, "continuous_usage_stats": FLAG}},
    "include_usage: a last event with the numbers of tokens. continuous_usage_stats, together with it: each event has those so far.",
)
MODEL = Field("model", TEXT, "The name of a model of /v1/models. A server of one model needs none.")
# Fields of vLLM, for the endpoints that have choices.
TOKEN_IDS = Field("return_token_ids", FLAG, "True: the ids of the prompt's tokens (prompt_token_ids), and of an answer's (token_ids).")
AS_IDS = Field("return_tokens_as_token_ids", FLAG, "True: log-probabilities have the ids of tokens (token_id:123) in place of their texts.")
STOP_SHOWN = Field("include_stop_str_in_output", FLAG, "True: the text ends with the stop text. Its tokens are not in the answer.")
# Fields that clients send and that have no effect on answers here. vLLM's request_id is for its log; here that is the header x-request-id.
INERT = (
    "user", "store", "metadata", "service_tier", "safety_identifier", "prompt_cache_key", "prompt_cache_options", "prompt_cache_retention",
    "client_metadata", "cache_prompt", "request_id",
)  # fmt: skip
GRAMMAR = Field("grammar", TEXT, "A grammar that the answer follows, in Lark (from rule `start`) or GBNF (from rule `root`).", to="grammar")
STRUCTURED = Field(
    "structured_outputs",
    {
        "type": "object",
        "properties": {"json": ANY, "regex": TEXT, "choice": {"type": "array", "items": TEXT, "minItems": 1}, "grammar": TEXT},
    },
    "The form of the answer, as vLLM has it: one of json (a schema), regex, choice (texts), grammar (Lark or GBNF).",
    covers={"grammar": "structured_outputs"},
)
JSON_SCHEMA = Field("json_schema", OBJECT, "llama.cpp's field: a JSON schema that the answer follows.", covers={"grammar": "json_schema"})

# Fields of other servers for what this one does not do -> why, and the values that request nothing of the kind.
_LACKING: dict[str, tuple[str, tuple[Any, ...]]] = {
    "use_beam_search": ("there is no beam search", (False,)),
    "length_penalty": ("there is no beam search", (1,)),
    "early_stopping": ("there is no beam search", (False,)),
    "skip_special_tokens": ("the text of an answer has no special tokens", (True,)),
    "spaces_between_special_tokens": ("the text of an answer has no special tokens", (True, False)),
    "include_stop_str_in_output": ("an answer ends before its stop text", (False,)),
    "return_tokens_as_token_ids": ("log-probabilities have the texts of tokens", (False,)),
    "dynatemp_range": ("the temperature of an answer is fixed", (0,)),
    "dynatemp_exponent": ("the temperature of an answer is fixed", (1,)),
    "mirostat": ("mirostat_tau turns Mirostat on", (0,)),
    "tfs_z": ("see typical_p", (1,)),
}
LACKING = {name: why for name, (why, _) in _LACKING.items()}
IDLE = {name: values for name, (_, values) in _LACKING.items()}
