"""LiteLLM: answers and vectors of `pumice serve`, beside those of other providers. Needs litellm; the server needs pumice[serve].

`pumice serve chat=MODEL embed=MODEL` serves at http://127.0.0.1:8000. "openai/" before a model's name is LiteLLM's word for servers that
speak OpenAI's interface."""

from __future__ import annotations

from typing import Any

import litellm


def router(url: str) -> litellm.Router:
    """Returns a Router with the models "chat" and "embed" of a server. It sends a request again that the server refused because it is
    busy."""

    def model(name: str) -> dict[str, Any]:
        return {"model_name": name, "litellm_params": {"model": f"openai/{name}", "api_base": f"{url}/v1", "api_key": "none"}}

    return litellm.Router([model("chat"), model("embed")], num_retries=3)


def answer(models: litellm.Router, question: str, **options: Any) -> str:
    """Returns the answer of a model, which is written as it comes."""
    messages = [{"role": "user", "content": question}]
    chunks = models.completion("chat", messages, stream=True, **options)
    return "".join(chunk.choices[0].delta.content or "" for chunk in chunks)


def vectors(models: litellm.Router, texts: list[str]) -> list[list[float]]:
    """Returns a vector for each text."""
    return [each["embedding"] for each in models.embedding("embed", texts).data]
