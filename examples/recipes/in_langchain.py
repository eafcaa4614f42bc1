"""LangChain: a model of pumice as embeddings and as a chat model, in the same process. Needs pumice and langchain-core.

A server for LangChain's OpenAI classes is another way: docs/serving.md."""

from __future__ import annotations

from typing import Any

from langchain_core.embeddings import Embeddings
from langchain_core.language_models import SimpleChatModel
from langchain_core.messages import BaseMessage, convert_to_openai_messages

import pumice


class PumiceEmbeddings(Embeddings):
    """The vectors of a model, for vector stores and retrievers."""

    def __init__(self, model: pumice.Model) -> None:
        self.model = model

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        return self.model.encode_document(texts).tolist()

    def embed_query(self, text: str) -> list[float]:
        return self.model.encode_query(text).tolist()


class PumiceChat(SimpleChatModel):
    """Answers of a model: invoke(), batch() in threads, whose calls share the model's steps, and the async forms of both."""

    model: Any  # a pumice.Model

    @property
    def _llm_type(self) -> str:
        return "pumice"

    def _call(self, messages: list[BaseMessage], stop: list[str] | None = None, run_manager: Any = None, **options: Any) -> str:
        return self.model.chat(convert_to_openai_messages(messages), stop=stop or (), **options).content
