"""POST /v1/rerank, /rerank (Jina's form and Cohere's first form, and with `texts` that of text-embeddings-inference) and /v2/rerank
(Cohere's): documents sorted by how well they match a query. POST /score (vLLM's): how well texts match.

https://api.jina.ai/redoc and https://docs.cohere.com/reference/rerank describe the forms."""

from __future__ import annotations

import time
from typing import Any, Literal

import numpy as np

from ..common.arguments import argument
from ..encode.vectors import similarity, similarity_pairwise
from ..model.model import Model
from .calls import Call
from .embeddings import OF_TOKENS, activation_of, truncation_fields
from .failures import Refused, new_id
from .fields import FLAG, TEXT, Field, Fields
from .models import Served
from .sampling_fields import INERT, MODEL
from .settings import Settings

_ACTIVATION = Field(
    "use_activation",
    FLAG,
    "False: a cross-encoder's scores are its own numbers (logits).",
    to="activation",
    read=activation_of,
    idle=(True,),
)
DOCUMENTS_A_UNIT = 100  # Cohere counts a query with up to this many documents as one search unit


def fields(settings: Settings) -> Fields:
    """Returns the table of the body's fields."""
    text = {"anyOf": [TEXT, {"type": "object", "properties": {"text": TEXT}, "required": ["text"]}]}
    return Fields(
        (
            MODEL,
            Field("query", text, "The query.", needed=True),
            Field("documents", {"type": "array", "items": text, "minItems": 1, "maxItems": settings.max_documents}, "Texts."),
            Field(
                "texts",
                {"type": "array", "items": TEXT, "minItems": 1, "maxItems": settings.max_documents},
                "In place of documents: the answer is a list, as that of text-embeddings-inference. Texts that are too long are an error "
                "unless truncate is true.",
            ),
            Field("return_text", FLAG, "With texts, true: results have the texts."),
            Field("top_n", {"type": "integer", "minimum": 1}, "How many documents are returned."),
            Field("return_documents", FLAG, "True: results have the texts."),
            Field(
                "max_tokens_per_doc",
                {"type": "integer", "minimum": 1},
                "Documents are cut to so many tokens.",
                covers={"max_document_tokens": "max_tokens_per_doc"},
                idle=(0,),
            ),
            _ACTIVATION,
            Field(
                "raw_scores", FLAG, "True: the same as use_activation: false.", to="activation", read=lambda raw: "none" if raw else None
            ),
            *truncation_fields("it is cut"),
            Field("rank_fields", {"type": "array", "items": {"enum": ["text"]}}, "Documents are ranked by their text alone."),
            Field("max_chunks_per_doc", {"enum": [1]}, "Documents are not divided; what is too long is cut."),
        ),
        inert=(*INERT, "priority"),
        refused={
            "return_embeddings": "/v1/embeddings gives vectors",
            "truncation_direction": "the end of a text is cut",
        },
        idle={"truncation_direction": ("Right", "right")},
    )


def _text(given: Any) -> str:
    return given if isinstance(given, str) else str(given["text"])


def _check_vectors(served: Served) -> None:
    """Raises Refused (400) if a model was neither made to encode texts nor loaded to do so. Any decoder can encode, but only a model that
    was trained for it has vectors that can be compared. The files of such a model, or load(pooling=), say how it pools."""
    model = served.model
    assert model is not None
    in_file = model._file.get(f"{model._file.architecture}.pooling_type") if model._file.kind == "gguf" else None
    named = model._options["pooling"] or model._config.pooling or model._config.late or in_file
    if "generate" in model._info["tasks"] and not named:
        raise Refused(
            400,
            f"{served.name!r} neither scores pairs nor was made for vectors: it generates text, and its files name no pooling, so its "
            f"scores would mean nothing. Name a reranker or an embedding model, or load this one with pooling=",
            param="model",
        )


def _no_activation(keywords: dict[str, Any]) -> None:
    """Raises ValueError if a body wants the numbers of a cross-encoder from a model that compares vectors."""
    if keywords.pop("activation", None) is not None:
        with argument("activation"):
            raise ValueError("activation needs a cross-encoder; this model compares vectors")


def _measure(model: Model) -> tuple[str, Literal["tokens", "sentence"]]:
    """Returns (the measure of similarity that gives scores, encode()'s output for it). Models with a vector of each token have their own.
    All others have the cosine, even if their files name another measure: a score should be between 0 and 1, and a distance or a dot
    product is not."""
    own = str(model._info.get("similarity"))
    return (own, "tokens") if own in OF_TOKENS else ("cosine", "sentence")


async def rerank(call: Call) -> None:
    """Answers a request. A cross-encoder scores pairs; another encoder compares vectors, which `meta` says."""
    read = await call.read()
    async with call.using(read) as served:
        model = served.model
        assert model is not None
        if (read["documents"] is None) == (read["texts"] is None):
            raise Refused(400, "one of documents and texts must be given", param="documents")
        query, texts = _text(read["query"]), [*map(_text, read["documents"] or read["texts"])]
        keywords = {**({} if read["texts"] is None else {"truncate": "error"}), **read.keywords}
        if "classify" in model._info["tasks"]:
            ranked = await model.arank(query, texts, details=True, max_document_tokens=read["max_tokens_per_doc"], **keywords)
            order = [(hit.index, hit.score) for hit in ranked.hits]
            total, cut = int(ranked.tokens.sum()), ranked.cut  # the query counts once for each pair
            about: dict[str, Any] = {"scores": "cross-encoder"}
        elif "encode" in model._info["tasks"]:
            _check_vectors(served)
            if read["max_tokens_per_doc"] is not None:
                raise Refused(400, "max_tokens_per_doc needs a cross-encoder; this model compares vectors", param="max_tokens_per_doc")
            _no_activation(keywords)
            measure, output = _measure(model)
            with argument("query"):
                asked = await model.aencode_query([query], details=True, output=output, **keywords)
            with argument("documents"):
                given = await model.aencode_document(texts, details=True, output=output, **keywords)
            found = (await call.server.aside(similarity, asked.vectors, given.vectors, measure))[0].astype(np.float64)
            most = 1 if measure == "cosine" else None  # a cosine below 0 becomes the score 0, but still decides the place of its document
            order = [(int(i), float(found[i].clip(0, most))) for i in np.argsort(-found, kind="stable")]
            total, cut = int(given.tokens.sum() + asked.tokens.sum()), given.cut
            about = {"scores": measure, "cut_query": bool(asked.cut.any())}
        else:
            raise Refused(400, f"the model {served.name!r} neither scores pairs nor makes vectors", param="model")
        call.begun = True
        call.count_texts(len(texts), total)
        order = order[: read.get("top_n", len(texts))]
        if read["texts"] is not None:
            hits = [{"index": index, "score": score, **({"text": texts[index]} if read["return_text"] else {})} for index, score in order]
            await call.answer(hits)
            return
        results: list[dict[str, Any]] = []
        for index, score in order:
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


def score_fields(settings: Settings) -> Fields:
    """Returns the table of the fields of /score."""
    texts = {"anyOf": [TEXT, {"type": "array", "items": TEXT, "minItems": 1, "maxItems": settings.max_documents}]}
    return Fields(
        (
            MODEL,
            Field("text_1", texts, "A text, which is compared with each of the others, or as many texts as there are others.", to="first"),
            Field("text_2", texts, "The other texts.", to="second"),
            Field("queries", texts, "vLLM's newer name of text_1.", to="first"),
            Field("documents", texts, "vLLM's newer name of text_2.", to="second"),
            Field("items", texts, "The same.", to="second"),
            Field("data_1", texts, "vLLM's other name of text_1.", to="first"),
            Field("data_2", texts, "vLLM's other name of text_2.", to="second"),
            _ACTIVATION,
            *truncation_fields("it is cut"),
        ),
        inert=(*INERT, "priority"),
    )


async def _pair_scores(call: Call, served: Served, first: list[str], second: list[str], keywords: dict[str, Any]) -> tuple[Any, Any, Any]:
    """Returns the scores of pairs, float (n,), the numbers of tokens of all texts that were computed, and of those that were cut off.
    first: one text, or as many as `second` has."""
    model = served.model
    assert model is not None
    if "classify" in model._info["tasks"]:
        if len(model._info["labels"]) > 1:
            raise Refused(400, f"{served.name!r} has several labels, and a score is one number", param="model")
        with argument("second"):
            pairs = zip(first * len(second) if len(first) == 1 else first, second, strict=True)
            found = await model.apredict(list(pairs), details=True, **keywords)
        return found.scores, found.tokens, found.cut
    if "encode" not in model._info["tasks"]:
        raise Refused(400, f"the model {served.name!r} neither scores pairs nor makes vectors", param="model")
    _check_vectors(served)
    _no_activation(keywords)
    measure, output = _measure(model)
    with argument("first"):
        one = await model.aencode_query(first, details=True, output=output, **keywords)
    with argument("second"):
        other = await model.aencode_document(second, details=True, output=output, **keywords)
    left = [*one.vectors] * len(second) if len(first) == 1 else one.vectors
    scores = await call.server.aside(similarity_pairwise, left, other.vectors, measure)
    return scores, np.concatenate([one.tokens, other.tokens]), np.concatenate([one.cut, other.cut])


async def score(call: Call) -> None:
    """Says how well texts match: a cross-encoder's scores of pairs, or the cosines of another encoder's vectors."""
    read = await call.read()
    keywords = dict(read.keywords)
    async with call.using(read) as served:
        for name, field in (("first", "text_1"), ("second", "text_2")):
            if name not in keywords:
                raise Refused(400, f"the field {field!r} is missing", param=field)
        first, second = ([given] if isinstance(given, str) else given for given in (keywords.pop("first"), keywords.pop("second")))
        if len(first) not in (1, len(second)):
            message = f"text_1 has {len(first)} texts and text_2 has {len(second)}; text_1 must have one, or as many"
            raise Refused(400, message, param="text_1")
        scores, tokens, cut = await _pair_scores(call, served, first, second, keywords)
        call.begun = True
        total = int(tokens.sum())
        call.count_texts(len(second), total)
        await call.answer(
            {
                "id": new_id("score-"),
                "object": "list",
                "created": int(time.time()),
                "model": served.name,
                "data": [{"index": i, "object": "score", "score": float(value)} for i, value in enumerate(scores)],
                "usage": {"prompt_tokens": total, "total_tokens": total},
                "pumice": {"ignored": read.ignored, "cut_texts": int((cut > 0).sum())},
            }
        )
