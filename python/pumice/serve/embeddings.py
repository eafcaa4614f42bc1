"""Vectors of texts: POST /v1/embeddings, as https://platform.openai.com/docs/api-reference/embeddings describes it, /embed in the form of
text-embeddings-inference, and /v1/embed and /v2/embed in Cohere's two forms."""

from __future__ import annotations

import base64
import itertools
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ..chats.content import part_text
from ..common.arguments import argument
from ..encode.encoding import Encoded
from ..encode.rows import quantize_rows
from ..model.model import Model
from .calls import Call, dumped
from .failures import Refused, new_id
from .fields import FLAG, OBJECT, TEXT, Field, Fields, Read
from .models import Served
from .sampling_fields import INERT, MODEL
from .settings import Settings
from .token_calls import RENDERING, rendered


def truncation(given: bool | str) -> bool | str:
    """Returns the value of `truncate` for the Python calls."""
    return True if given in (True, "END") else "error"


def activation_of(use: bool) -> str | None:
    """Returns predict()'s activation for vLLM's use_activation. None means the one by which a model's numbers become scores."""
    return None if use else "none"


def truncation_fields(default: str) -> tuple[Field, ...]:
    """Returns the fields for texts that are too long, with the names and values of vLLM, Cohere and Voyage. default: what happens without
    them, as part of a sentence."""
    about = f'true, "END": a text that is too long is cut. false, "NONE": it is an error. Without this field, {default}.'
    values = {"anyOf": [FLAG, {"enum": ["NONE", "END"]}]}
    return (
        Field("truncate", values, about, to="truncate", read=truncation),
        Field("truncation", FLAG, "The same.", to="truncate", read=truncation),
        Field(
            "truncate_prompt_tokens",
            {"type": "integer", "minimum": -1},
            "A text is cut to so many tokens, special tokens included. -1: to as many as the model takes.",
            to="truncate",
            read=lambda count: True if count == -1 else count,
        ),
        Field("truncation_side", {"enum": ["right"]}, "The end of a text is cut."),
    )


# Value of input_type -> the method that encodes such texts. The first two are Voyage's, the others Cohere's.
_ROLES = {
    "query": "aencode_query",
    "document": "aencode_document",
    "search_query": "aencode_query",
    "search_document": "aencode_document",
    "classification": "aencode",
    "clustering": "aencode",
}


def conversation_fields(settings: Settings) -> tuple[Field, ...]:
    """Returns the fields for texts that are encoded, and for a conversation in their place."""
    number: dict[str, Any] = {"type": "integer"}
    parts = {"type": "object", "properties": {"prompt_string": TEXT, "content": {"type": "array", "items": OBJECT}}}
    mixed = {"type": "array", "items": {"anyOf": [TEXT, number]}}
    several = {"type": "array", "items": {"anyOf": [TEXT, number, parts, mixed]}, "minItems": 1, "maxItems": settings.max_inputs}
    return (
        Field(
            "input",
            {"anyOf": [TEXT, parts, several]},
            "A text or texts. As in llama.cpp, a text may be an object with prompt_string or with parts (content). With --token-inputs "
            "it may also be a list of token ids, between which texts may stand.",
            covers={"inputs": "input", "ids": "input", "pairs": "input", "texts": "input"},
        ),
        Field(
            "messages",
            {"type": "array", "items": OBJECT, "minItems": 1},
            "In place of input: a conversation. Its text is that of the model's chat template.",
        ),
        *RENDERING,
    )


def fields(settings: Settings) -> Fields:
    """Returns the table of the body's fields."""
    return Fields(
        (
            MODEL,
            *conversation_fields(settings),
            Field("encoding_format", {"enum": ["float", "base64"]}, "base64: float32, little-endian."),
            Field("dimensions", {"type": "integer", "minimum": 1}, "Keeps the first columns only.", to="truncate_dim"),
            Field("input_type", {"enum": [*_ROLES]}, "Uses the model's prompt and route for queries or documents."),
            Field("prompt_name", TEXT, "The name of one of the model's prompts.", to="prompt_name", idle=("",)),
            Field("use_activation", FLAG, "vLLM's name of what /embed calls normalize.", to="normalize"),
            *truncation_fields("it is an error"),
        ),
        inert=(*INERT, "priority"),
        refused={
            "output_dtype": "vectors are float32; see encoding_format",
            "late_chunking": "each text is encoded alone",
            "add_special_tokens": "a model's special tokens are a part of its vectors",
        },
        idle={"output_dtype": ("float",), "add_special_tokens": (True,)},
    )


def tei_fields(settings: Settings) -> Fields:
    """Returns the table of the fields of /embed."""
    several = {"type": "array", "items": TEXT, "minItems": 1, "maxItems": settings.max_inputs}
    return Fields(
        (
            MODEL,
            Field("inputs", {"anyOf": [TEXT, several]}, "A text or texts.", needed=True),
            Field("normalize", FLAG, "Whether vectors have the length 1. Without it, as the model's files say.", to="normalize"),
            Field("dimensions", {"type": "integer", "minimum": 1}, "Keeps the first columns only.", to="truncate_dim"),
            Field("prompt_name", TEXT, "The name of one of the model's prompts.", to="prompt_name", idle=("",)),
            *truncation_fields("it is an error"),
        ),
        refused={"truncation_direction": "the end of a text is cut"},
        idle={"truncation_direction": ("Right", "right")},
    )


def cohere_fields(settings: Settings) -> Fields:
    """Returns the table of the fields of /v1/embed and /v2/embed."""
    return Fields(
        (
            MODEL,
            Field("texts", {"type": "array", "items": TEXT, "minItems": 1, "maxItems": settings.max_inputs}, "Texts.", needed=True),
            Field("input_type", {"enum": [*_ROLES]}, "Uses the model's prompt and route for queries or documents."),
            Field(
                "embedding_types",
                {"type": "array", "items": {"enum": ["float", "base64", *_BITS]}, "minItems": 1},
                "The forms of the vectors. base64: float32, little-endian. binary, ubinary: the signs, 8 in a number.",
            ),
            Field("output_dimension", {"type": "integer", "minimum": 1}, "Keeps the first columns only.", to="truncate_dim"),
            *truncation_fields("it is cut"),
        ),
        inert=(*INERT, "priority"),
        refused={"images": "this server reads text only", "inputs": "send texts", "max_tokens": "a text is cut at the model's own limit"},
    )


# An answer with at most this many numbers is written in the event loop, which takes at most 0.4 ms. A thread writes larger answers. For
# smaller ones that is not worth it, because handing an answer to a thread takes some 0.1 ms.
NUMBERS_IN_PLACE = 8192
_BITS = ("binary", "ubinary")  # values of embedding_types that are bits
OF_TOKENS = ("maxsim", "meanmaxsim")  # similarity measures of models that have one vector per token


def _texts(given: Any, model: Model, settings: Settings) -> list[str]:
    """Returns the texts in `input`. Token ids are refused, unless Settings.token_inputs is true; they then are ids of this model."""
    one = not isinstance(given, list) or any(isinstance(each, int) for each in given)

    def text(entry: Any, where: str) -> str:
        if isinstance(entry, str):
            return entry
        if isinstance(entry, dict):
            if isinstance(entry.get("prompt_string"), str):
                return str(entry["prompt_string"])
            if not isinstance(entry.get("content"), list):
                raise Refused(400, f"{where} is an object; it must have prompt_string or content", param="input")
            with argument("input"):
                return "".join(part_text(part, f"part {i} of {where}") for i, part in enumerate(entry["content"]))
        if not settings.token_inputs:
            raise Refused(
                400,
                "input has token ids. Their meaning depends on the tokenizer, and clients that send them by default use another one than "
                "this model's. Send texts (LangChain: OpenAIEmbeddings(check_embedding_ctx_length=False)), or start the server with "
                "--token-inputs",
                param="input",
            )
        runs = itertools.groupby(entry, key=lambda each: isinstance(each, str))
        return "".join("".join(run) if texts else model.detokenize(list(run)) for texts, run in runs)

    return [text(given, "input")] if one else [text(entry, f"input[{i}]") for i, entry in enumerate(given)]


async def texts_of(call: Call, served: Served, read: Read) -> list[str]:
    """Returns the texts of a body: those of `input`, or the text of its conversation."""
    if (read["input"] is None) == (read["messages"] is None):
        raise Refused(400, "the field 'input' is missing" if read["input"] is None else "input and messages were both given", param="input")
    if read["messages"] is None:
        assert served.model is not None
        return await call.translated(_texts, read["input"], served.model, call.server.settings)
    if read["continue_final_message"] and read["add_generation_prompt"]:
        message = "Cannot set both `continue_final_message` and `add_generation_prompt` to True."
        raise Refused(400, message, param="add_generation_prompt")
    return [(await rendered(call, served, read, begins=False))[0]]


def check_one_vector(served: Served) -> None:
    """Raises Refused (400) if a model makes several vectors of a text."""
    assert served.model is not None
    if served.model._info.get("similarity") in OF_TOKENS:
        raise Refused(
            400, f"{served.name!r} makes a vector of each token; this endpoint needs one vector a text. See /v1/rerank", param="model"
        )


async def encoded(call: Call, served: Served, texts: list[str], role: str | None, keywords: Mapping[str, Any]) -> Encoded:
    """Returns the vectors of texts, and how many tokens each has. role: a value of input_type, or None. Counts the texts."""
    if keywords.get("output") != "tokens":
        check_one_vector(served)
    found: Encoded = await getattr(served.model, _ROLES.get(role or "", "aencode"))(texts, details=True, **keywords)
    call.begun = True
    call.count_texts(len(texts), int(found.tokens.sum()))
    return found


async def _send(call: Call, found: Encoded, answer: Callable[[], Any]) -> None:
    """Sends an answer that has vectors."""
    body = dumped(answer()) if found.vectors.size <= NUMBERS_IN_PLACE else await call.server.aside(lambda: dumped(answer()))
    await call.send(body, kind="application/json")


async def embed(call: Call) -> None:
    """Gives the vectors of texts."""
    read = await call.read()
    async with call.using(read) as served:
        texts = await texts_of(call, served, read)
        found = await encoded(call, served, texts, read["input_type"], {"truncate": "error", **read.keywords})
        tokens = int(found.tokens.sum())
        head: dict[str, Any] = {
            "id": new_id("embd-"),
            "object": "list",
            "created": int(time.time()),
            "model": served.name,
            "usage": {"prompt_tokens": tokens, "total_tokens": tokens, "completion_tokens": 0},
            "pumice": {"ignored": read.ignored},
        }
        if found.cut.any():
            head["pumice"] |= {"cut_texts": int((found.cut > 0).sum()), "cut_tokens": int(found.cut.sum())}
        await _send(call, found, lambda: {**head, "data": _data(found.vectors, read["encoding_format"] == "base64")})


async def tei_embed(call: Call) -> None:
    """Gives the vectors of texts as a list of lists of numbers, as text-embeddings-inference does."""
    read = await call.read()
    async with call.using(read) as served:
        texts = [read["inputs"]] if isinstance(read["inputs"], str) else read["inputs"]
        found = await encoded(call, served, texts, None, {"truncate": "error", **read.keywords})
        await _send(call, found, lambda: list(np.ascontiguousarray(found.vectors, "<f4")))


async def cohere_embed(call: Call) -> None:
    """Gives the vectors of texts in Cohere's form. In that of its first version, which names no types, they are one list."""
    read = await call.read()
    async with call.using(read) as served:
        texts, kinds = read["texts"], read["embedding_types"]
        found = await encoded(call, served, texts, read["input_type"], read.keywords)
        first = call.scope["path"].startswith("/v1/")
        meta: dict[str, Any] = {
            "api_version": {"version": "1" if first else "2"},
            "billed_units": {"input_tokens": int(found.tokens.sum()), "image_tokens": 0},
        }
        if found.cut.any():
            meta["warnings"] = [f"{int((found.cut > 0).sum())} texts were cut, by {int(found.cut.sum())} tokens in all"]
        head = {"id": new_id("embed-"), "texts": texts, "meta": meta, "pumice": {"ignored": read.ignored}}

        def answer() -> dict[str, Any]:
            rows = {
                kind: list(quantize_rows(found.vectors, kind)) if kind in _BITS else _rows(found.vectors, kind == "base64")
                for kind in kinds or ("float",)
            }
            if first and kinds is None:
                return {**head, "embeddings": rows["float"], "response_type": "embeddings_floats"}
            return {**head, "embeddings": rows, "response_type": "embeddings_by_type"}

        await _send(call, found, answer)


def packed(row: Any) -> str:
    """Returns the numbers of an array as float32, little-endian, in base64."""
    return base64.b64encode(np.ascontiguousarray(row, "<f4").tobytes()).decode()


def _rows(vectors: Any, as_text: bool) -> list[Any]:
    """Returns the vectors as rows of float32, or their bytes in base64."""
    return [packed(row) for row in vectors] if as_text else list(np.ascontiguousarray(vectors, "<f4"))


def _data(vectors: Any, as_text: bool) -> list[dict[str, Any]]:
    return [{"object": "embedding", "index": i, "embedding": row} for i, row in enumerate(_rows(vectors, as_text))]
