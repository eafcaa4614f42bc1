"""LlamaIndex: a model of pumice as its embedding model, in the same process. Needs pumice and llama-index-core.

A server for LlamaIndex's OpenAI-like classes is another way: docs/serving.md."""

from __future__ import annotations

from typing import Any

from llama_index.core.base.embeddings.base import BaseEmbedding

import pumice


class PumiceEmbedding(BaseEmbedding):
    """The vectors of a model, for indexes and retrievers. Texts of a call are encoded together."""

    _model: Any

    def __init__(self, model: pumice.Model) -> None:
        super().__init__(model_name=model.path.name, embed_batch_size=2048)
        self._model = model

    def _get_query_embedding(self, query: str) -> list[float]:
        return self._model.encode_query(query).tolist()

    def _get_text_embedding(self, text: str) -> list[float]:
        return self._model.encode_document(text).tolist()

    def _get_text_embeddings(self, texts: list[str]) -> list[list[float]]:
        return self._model.encode_document(texts).tolist()

    async def _aget_query_embedding(self, query: str) -> list[float]:
        return (await self._model.aencode_query(query)).tolist()
