"""POST /v1/rerank, /rerank (Jina's form and Cohere's first form) and /v2/rerank (Cohere's): documents sorted by how well they match a
query.

https://api.jina.ai/redoc and https://docs.cohere.com/reference/rerank describe the forms."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..common.arguments import argument
from ..encode.similarity import similarity
from ..model.model import Model
from .calls import Call
from .embeddings import truncation_fields
from .failures import Refused, new_id
from .fields import FLAG, TEXT, Field, Fields
from .sampling_fields import INERT, MODEL
from .settings import Settings

DOCUMENTS_A_UNIT = 100  # Cohere counts a query with up to this many documents as one search unit


def fields(settings: Settings) -> Fields:
    """Returns the table of the body's fields."""
    text = {"anyOf": [TEXT, {"type": "object", "properties": {"text": TEXT}, "required": ["text"]}]}
    return Fields(
        (
            MODEL,
            Field("query", text, "The query.", needed=True),
            Field("documents", {"type": "array", "items": text, "minItems": 1, "maxItems": settings.max_documents}, "Texts.", needed=True),
            Field("top_n", {"type": "integer", "minimum": 1}, "How many documents are returned."),
            Field("return_documents", FLAG, "True: results have the texts."),
            Field(
                "max_tokens_per_doc",
                {"type": "integer", "minimum": 1},
                "Documents are cut to so many tokens.",
                covers={"max_document_tokens": "max_tokens_per_doc"},
            ),
            *truncation_fields("it is cut"),
            Field("rank_fields", {"type": "array", "items": {"enum": ["text"]}}, "Documents are ranked by their text alone."),
            Field("max_chunks_per_doc", {"enum": [1]}, "Documents are not divided; what is too long is cut."),
        ),
        inert=(*INERT, "priority"),
        refused={"return_embeddings": "/v1/embeddings gives vectors"},
    )


def _text(given: Any) -> str:
    return given if isinstance(given, str) else str(given["text"])


def _makes_vectors(model: Model) -> bool:
    """Returns whether a model was made to encode texts, or was loaded to do so. Any decoder can encode, but only a model that was
    trained for it has vectors that can be compared. The files of such a model, or load(pooling=), say how it pools."""
    if "generate" not in model._info["tasks"]:
        return True
    in_file = model._file.get(f"{model._file.architecture}.pooling_type") if model._file.kind == "gguf" else None
    return bool(model._options["pooling"] or model._config.pooling or model._config.late or in_file)


async def rerank(call: Call) -> None:
    """Answers a request. A cross-encoder scores pairs; another encoder compares vectors, which `meta` says."""
    read = await call.read()
    async with call.using(read) as served:
        model = served.model
        assert model is not None
        query, texts = _text(read["query"]), [*map(_text, read["documents"])]
        if "classify" in model._info["tasks"]:
            ranked = await model.arank(query, texts, details=True, max_document_tokens=read["max_tokens_per_doc"], **read.keywords)
            order = [(hit.index, hit.score) for hit in ranked.hits]
            total, cut = int(ranked.tokens.sum()), ranked.cut  # the query counts once for each pair
            about: dict[str, Any] = {"scores": "cross-encoder"}
        elif "encode" in model._info["tasks"]:
            if not _makes_vectors(model):
                raise Refused(
                    400,
                    f"{served.name!r} neither scores pairs nor was made for vectors: it generates text, and its files name no pooling, so "
                    f"the order of the documents would mean nothing. Name a reranker or an embedding model, or load this one with pooling=",
                    param="model",
                )
            if read["max_tokens_per_doc"] is not None:
                raise Refused(400, "max_tokens_per_doc needs a cross-encoder; this model compares vectors", param="max_tokens_per_doc")
            with argument("query"):
                asked = await model.aencode_query([query], details=True, **read.keywords)
            with argument("documents"):
                given = await model.aencode_document(texts, details=True, **read.keywords)
            # The score is the cosine, even if the model has another similarity measure. A score should be between 0 and 1, and a distance
            # or a dot product is not. A cosine below 0 becomes the score 0, but it still decides the place of its document.
            found = similarity(asked.vectors, given.vectors, "cosine")[0].astype(np.float64)
            order = [(int(i), float(found[i].clip(0, 1))) for i in np.argsort(-found, kind="stable")]
            total, cut = int(given.tokens.sum() + asked.tokens.sum()), given.cut
            about = {"scores": "cosine", "cut_query": bool(asked.cut.any())}
        else:
            raise Refused(400, f"the model {served.name!r} neither scores pairs nor makes vectors", param="model")
        call.begun = True
        call.count_texts(len(texts), total)
        results: list[dict[str, Any]] = []
        for index, score in order[: read.get("top_n", len(texts))]:
            one: dict[str, Any] = {"index": index, "relevance_score": score}
            if read["return_documents"]:
                one["document"] = {"text": texts[index]}
            results.append(one)
        meta = {
            **about,
            "cut_documents": int((cut > 0).sum()),
            "billed_units": {"search_units": -(-len(texts) // DOCUMENTS_A_UNIT)},
            "tokens": {"input_tokens": total},
        }
        usage, report = {"total_tokens": total, "prompt_tokens": total}, {"pumice": {"ignored": read.ignored}}
        await call.answer({"id": new_id("rerank-"), "model": served.name, "results": results, "usage": usage, "meta": meta, **report})
