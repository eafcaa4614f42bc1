"""POST /v1/embeddings, as https://platform.openai.com/docs/api-reference/embeddings describes it."""

from __future__ import annotations

import base64
from typing import Any

import numpy as np

from ..model.model import Model
from .calls import Call, dumped
from .failures import Refused
from .fields import FLAG, TEXT, Field, Fields
from .sampling_fields import INERT, MODEL
from .settings import Settings


def truncation(given: bool | str) -> bool | str:
    """Returns the value of `truncate` for the Python calls."""
    return True if given in (True, "END") else "error"


def truncation_fields(default: str) -> tuple[Field, ...]:
    """Returns the fields for texts that are too long, with the names and values of vLLM, Cohere and Voyage. default: what happens without
    them, as part of a sentence."""
    about = f'true, "END": a text that is too long is cut. false, "NONE": it is an error. Without this field, {default}.'
    values = {"anyOf": [FLAG, {"enum": ["NONE", "END"]}]}
    return (
        Field("truncate", values, about, to="truncate", read=truncation),
        Field("truncation", FLAG, "The same.", to="truncate", read=truncation),
    )


def fields(settings: Settings) -> Fields:
    """Returns the table of the body's fields."""
    ids = {"type": "array", "items": {"type": "integer"}}
    return Fields(
        (
            MODEL,
            Field(
                "input",
                {
                    "anyOf": [
                        TEXT,
                        {
                            "type": "array",
                            "items": {"anyOf": [TEXT, {"type": "integer"}, ids]},
                            "minItems": 1,
                            "maxItems": settings.max_inputs,
                        },
                    ]
                },
                "A text or texts.",
                needed=True,
                covers={"inputs": "input", "ids": "input"},
            ),
            Field("encoding_format", {"enum": ["float", "base64"]}, "base64: float32, little-endian."),
            Field("dimensions", {"type": "integer", "minimum": 1}, "Keeps the first columns only.", to="truncate_dim"),
            Field("input_type", {"enum": ["query", "document"]}, "Uses the model's prompt and route for queries or documents."),
            Field("prompt_name", TEXT, "The name of one of the model's prompts.", to="prompt_name", idle=("",)),
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


# An answer with at most this many numbers is written in the event loop, which takes at most 0.4 ms. A thread writes larger answers. For
# smaller ones that is not worth it, because handing an answer to a thread takes some 0.1 ms.
NUMBERS_IN_PLACE = 8192
_OF_TOKENS = ("maxsim", "meanmaxsim")  # similarity measures of models that have one vector per token


def _texts(given: Any, model: Model, settings: Settings) -> list[str]:
    """Returns the texts in `input`. Token ids are refused, unless Settings.token_inputs is true; they then are ids of this model."""
    given = [given] if isinstance(given, str) else given
    if all(isinstance(text, str) for text in given):
        return list(given)
    rows = [given] if isinstance(given[0], int) else given
    if not all(isinstance(row, list) and all(isinstance(i, int) for i in row) for row in rows):
        raise Refused(400, "input mixes texts and token ids", param="input")
    if not settings.token_inputs:
        raise Refused(
            400,
            "input has token ids. Their meaning depends on the tokenizer, and clients that send them by default use another one than this "
            "model's. Send texts (LangChain: OpenAIEmbeddings(check_embedding_ctx_length=False)), or start the server with --token-inputs",
            param="input",
        )
    return [model.detokenize(row) for row in rows]


async def embed(call: Call) -> None:
    """Answers a request."""
    read = await call.read()
    async with call.using(read) as served:
        model = served.model
        assert model is not None
        if model._info.get("similarity") in _OF_TOKENS:
            raise Refused(
                400, f"{served.name!r} makes a vector of each token; this endpoint answers one vector a text. See /v1/rerank", param="model"
            )
        texts = await call.translated(_texts, read["input"], model, call.server.settings)
        encode = {"query": model.aencode_query, "document": model.aencode_document}.get(read["input_type"], model.aencode)
        found = await encode(texts, details=True, **{"truncate": "error", **read.keywords})
        call.begun = True
        tokens = int(found.tokens.sum())
        call.count_texts(len(texts), tokens)
        usage = {"prompt_tokens": tokens, "total_tokens": tokens}
        head: dict[str, Any] = {"object": "list", "model": served.name, "usage": usage, "pumice": {"ignored": read.ignored}}
        if found.cut.any():
            head["pumice"] |= {"cut_texts": int((found.cut > 0).sum()), "cut_tokens": int(found.cut.sum())}

        def written() -> bytes:
            return dumped({**head, "data": _data(found.vectors, read["encoding_format"] == "base64")})

        body = written() if found.vectors.size <= NUMBERS_IN_PLACE else await call.server.aside(written)
        await call.send(body, kind="application/json")


def _data(vectors: Any, packed: bool) -> list[dict[str, Any]]:
    rows = np.ascontiguousarray(vectors, "<f4")
    return [
        {"object": "embedding", "index": i, "embedding": base64.b64encode(row.tobytes()).decode() if packed else row}
        for i, row in enumerate(rows)
    ]
