"""Chroma: a model of pumice, in the same process, makes the vectors of a collection. Needs pumice and chromadb.

A collection that is opened again needs the function again: client.get_collection(name, embedding_function=PumiceFunction(model))."""

from __future__ import annotations

from typing import Any

from chromadb import Documents, EmbeddingFunction, Embeddings

import pumice


class PumiceFunction(EmbeddingFunction[Documents]):
    """The vectors of a model. Texts and queries get the prompts that the model has for each."""

    def __init__(self, model: pumice.Model) -> None:
        self.model = model

    def __call__(self, input: Documents) -> Embeddings:
        return list(self.model.encode_document(input))

    def embed_query(self, input: Documents) -> Embeddings:
        return list(self.model.encode_query(input))

    def default_space(self) -> Any:
        return "cosine"

    @staticmethod
    def name() -> str:
        return "pumice"

    def get_config(self) -> dict[str, Any]:
        return {"path": str(self.model.path)}

    @staticmethod
    def build_from_config(config: dict[str, Any]) -> PumiceFunction:
        return PumiceFunction(pumice.load(config["path"]))
