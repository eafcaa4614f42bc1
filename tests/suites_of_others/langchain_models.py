"""LangChain's standard integration tests (langchain-tests) with its clients of OpenAI's and Anthropic's interfaces. run.py runs this file
in an environment of its own."""

from __future__ import annotations

import os
from typing import Any

from langchain_anthropic import ChatAnthropic
from langchain_openai import ChatOpenAI, OpenAIEmbeddings
from langchain_tests.integration_tests import ChatModelIntegrationTests, EmbeddingsIntegrationTests

URL = os.environ["PUMICE_URL"]
OPENAI = {"base_url": f"{URL}/v1", "api_key": "none"}
# The small model repeats itself: its calls, of which the tests expect one, and its texts, which would take long.
BRIEF = {"model": "chat", "max_tokens": 128}
ONE_CALL = {"model_kwargs": {"parallel_tool_calls": False}}


class TestChatOpenAI(ChatModelIntegrationTests):
    """ChatOpenAI with /v1/chat/completions."""

    @property
    def chat_model_class(self) -> type[Any]:
        return ChatOpenAI

    @property
    def chat_model_params(self) -> dict[str, Any]:
        return {**OPENAI, **BRIEF, **ONE_CALL, "stream_usage": True}

    @property
    def supports_json_mode(self) -> bool:
        return True

    @property
    def supports_anthropic_inputs(self) -> bool:
        return True

    @property
    def model_override_value(self) -> str:
        return "other"


class TestChatOpenAIResponses(TestChatOpenAI):
    """ChatOpenAI with /v1/responses."""

    @property
    def chat_model_params(self) -> dict[str, Any]:
        return {**OPENAI, **BRIEF, **ONE_CALL, "use_responses_api": True}


class TestChatAnthropic(ChatModelIntegrationTests):
    """ChatAnthropic with /v1/messages."""

    @property
    def chat_model_class(self) -> type[Any]:
        return ChatAnthropic

    @property
    def chat_model_params(self) -> dict[str, Any]:
        return {**BRIEF, "base_url": URL, "api_key": "none"}

    @property
    def supports_anthropic_inputs(self) -> bool:
        return True

    @property
    def model_override_value(self) -> str:
        return "other"


class TestOpenAIEmbeddings(EmbeddingsIntegrationTests):
    """OpenAIEmbeddings with /v1/embeddings."""

    @property
    def embeddings_class(self) -> type[Any]:
        return OpenAIEmbeddings

    @property
    def embedding_model_params(self) -> dict[str, Any]:
        return {**OPENAI, "model": "embed", "check_embedding_ctx_length": False}
