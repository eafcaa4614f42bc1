"""pydantic-ai: an agent over a model of `pumice serve`. Needs pydantic-ai-slim[openai]; the server needs pumice[serve].

`pumice serve chat=MODEL` serves at http://127.0.0.1:8000. NativeOutput sends the type's schema, which the server enforces."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel
from pydantic_ai import Agent, NativeOutput
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider


class Order(BaseModel):
    """An order in a mail."""

    count: int
    thing: Literal["stones", "maps", "tea"]


def model(url: str) -> OpenAIChatModel:
    """Returns the model "chat" of a server."""
    return OpenAIChatModel("chat", provider=OpenAIProvider(base_url=f"{url}/v1", api_key="none"))


def reader(url: str, **settings: Any) -> Agent[None, Order]:
    """Returns an agent that reads orders: reader(url).run_sync(mail).output. settings: those of answers, such as max_tokens."""
    return Agent(model(url), output_type=NativeOutput(Order), instructions="Read the order in the mail.", model_settings=settings)


def caller(url: str, *functions: Any, **settings: Any) -> Agent[None, str]:
    """Returns an agent that may call functions."""
    return Agent(model(url), tools=functions, model_settings=settings)
