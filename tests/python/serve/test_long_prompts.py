"""A text that is longer than a model's context: the error by which each dialect's clients know that they have to shorten it."""

from __future__ import annotations

import re
from typing import Any

import pytest
from asgi import with_server

import pumice
from pumice.errors import ContextLengthError
from pumice.serve.failures import TooLong, body_of, failure_of

LONG = "stone " * 9000
CHAT = [{"role": "user", "content": LONG}]


@pytest.mark.parametrize(
    ("path", "body", "context"),
    [
        ("/v1/chat/completions", {"model": "chat", "messages": CHAT}, 8192),
        ("/v1/chat/completions", {"model": "chat", "messages": CHAT, "stream": True}, 8192),
        ("/v1/completions", {"model": "chat", "prompt": LONG}, 8192),
        ("/v1/completions", {"model": "chat", "prompt": ["short", [5] * 9000]}, 8192),
        ("/v1/completions", {"model": "chat", "prompt": LONG, "echo": True, "logprobs": 1, "max_tokens": 0}, 8192),
        ("/v1/responses", {"model": "chat", "input": LONG}, 8192),
        ("/v1/messages", {"model": "chat", "messages": CHAT, "max_tokens": 5}, 8191),
        ("/v1/messages", {"model": "chat", "messages": CHAT, "max_tokens": 5, "stream": True}, 8191),
        ("/v1/embeddings", {"model": "embed", "input": ["short", LONG]}, 256),
        ("/v1/rerank", {"model": "embed", "query": "a", "documents": [LONG], "truncation": False}, 256),
        ("/v1/rerank", {"model": "embed", "query": LONG, "documents": ["a"], "truncate": "NONE"}, 256),
    ],
)
def test_clients_know_that_a_prompt_is_too_long(
    smollm2: pumice.Model, minilm: pumice.Model, path: str, body: dict[str, Any], context: int
) -> None:
    found = with_server({"chat": smollm2, "embed": minilm}, lambda client: client.post(path, body))
    assert found.status == 400, found.body
    message = found.error["message"]
    if path == "/v1/messages":
        assert re.match(rf"prompt is too long: 9\d\d\d tokens > {context} maximum: ", message), message
        assert found.error["type"] == "invalid_request_error"
    else:
        assert message.startswith(f"This model's maximum context length is {context} tokens: ") and re.search(r"9\d\d\d tokens", message)
        assert found.error["code"] == "context_length_exceeded"


@pytest.mark.parametrize(
    ("message", "numbers"),
    [
        ("prompt 3 has 8192 tokens, the context holds 8192 and needs room for one more: shorten it", (8192, 8192, 8191)),
        ("the text has 9000 tokens, the context holds 8192: shorten it", (9000, 8192, 8192)),
        ("text 0 has 700 tokens, the model takes 512: shorten it", (700, 512, 512)),
        ("document 12 has 700 tokens and this model takes 256. Split it", (700, 256, 256)),
        ("9 tokens do not fit into the context of 8", (9, 8, 8)),
    ],
)
def test_numbers_of_a_text_that_is_too_long(message: str, numbers: tuple[int, int, int]) -> None:
    assert TooLong.of(ContextLengthError(message)) == TooLong(*numbers)


def test_an_error_without_numbers_keeps_its_words() -> None:
    failure = failure_of(ContextLengthError("too much"), begun=False)
    assert body_of(failure, "openai", "r")["error"]["message"] == "too much" and failure.code == "context_length_exceeded"
