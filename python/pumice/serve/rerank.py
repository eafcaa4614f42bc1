"""POST /v1/rerank, /rerank (Jina's and Cohere's first form) and /v2/rerank (Cohere's): documents sorted by how well they fit a query.

https://jina.ai/reranker and https://docs.cohere.com/reference/rerank describe the forms."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..encode.similarity import similarity
from .calls import Call
from .failures import Refused, new_id
from .fields import FLAG, TEXT, Field, Fields
from .sampling_fields import INERT, MODEL
from .settings import Settings


def fields(settings: Settings) -> Fields:
    """Returns the table of fields."""
    document = {"anyOf": [TEXT, {"type": "object", "properties": {"text": TEXT}, "required": ["text"]}]}
    return Fields(
        (
            MODEL,
            Field("query", TEXT, "The query.", needed=True),
            Field(
                "documents", {"type": "array", "items": document, "minItems": 1, "maxItems": settings.max_documents}, "Texts.", needed=True
            ),
            Field("top_n", {"type": "integer", "minimum": 1}, "How many documents are returned."),
            Field("return_documents", FLAG, "True: results have the texts."),
            Field("max_tokens_per_doc", {"type": "integer", "minimum": 1}, "Documents are cut to so many tokens."),
        ),
        inert=(*INERT, "rank_fields", "truncation", "truncate", "return_embeddings"),
    )


async def rerank(call: Call) -> None:
    """Answers a request. A cross-encoder scores pairs; another encoder compares vectors, which `meta` says."""
    read = await call.read(call.server.tables.rerank)
    async with call.using(read) as served:
        model = served.model
        assert model is not None
        query = read["query"]
        texts = [each if isinstance(each, str) else each["text"] for each in read["documents"]]
        if "classify" in model.info["tasks"]:
            ranked = await model.arank(query, texts, details=True, max_document_tokens=read["max_tokens_per_doc"])
            order = [(hit.index, hit.score) for hit in ranked.hits]
            tokens, cut, scores = ranked.tokens, ranked.cut, "cross-encoder"
        elif "encode" in model.info["tasks"]:
            if read["max_tokens_per_doc"] is not None:
                raise Refused(400, "max_tokens_per_doc needs a cross-encoder; this model compares vectors", param="max_tokens_per_doc")
            asked = await model.aencode_query([query], details=True)
            given = await model.aencode_document(texts, details=True)
            # Always the cosine, which is between 0 and 1 but for texts that have nothing in common. The measure of some models is a
            # distance or a dot product, of which only the order would have a meaning.
            found = np.clip(similarity(asked.vectors, given.vectors, "cosine")[0].astype(np.float64), 0, 1)
            order = [(int(i), float(found[i])) for i in np.argsort(-found, kind="stable")]
            tokens, cut, scores = given.tokens, given.cut, "cosine"
        else:
            raise Refused(400, f"the model {served.name!r} neither scores pairs nor makes vectors", param="model")
        call.begun = True
        call.count_texts(len(texts), int(tokens.sum()))
        results: list[dict[str, Any]] = []
        for index, score in order[: read.get("top_n", len(texts))]:
            one: dict[str, Any] = {"index": index, "relevance_score": score}
            if read["return_documents"]:
                one["document"] = {"text": texts[index]}
            results.append(one)
        total = int(tokens.sum())
        meta = {
            "scores": scores,
            "cut_documents": int((cut > 0).sum()),
            "billed_units": {"search_units": 1},
            "tokens": {"input_tokens": total},
        }
        usage, report = {"total_tokens": total, "prompt_tokens": total}, {"pumice": {"ignored": read.ignored}}
        await call.answer({"id": new_id("rerank-"), "model": served.name, "results": results, "usage": usage, "meta": meta, **report})
