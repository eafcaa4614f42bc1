"""POST /invocations, the one path that Amazon SageMaker calls (vLLM has it too): a request of any other path, which its fields tell."""

from __future__ import annotations

from typing import Any

import orjson

from . import chat_completions, completions, embeddings, pooling, rerank
from .calls import Call, Handler
from .failures import Refused

# Field -> the handler and the table of a request that has this field. The first one counts.
_BY_FIELD: dict[str, tuple[Handler, Any]] = {
    "task": (pooling.pool, pooling.pooling_fields),
    "query": (rerank.rerank, rerank.fields),
    **dict.fromkeys(("queries", "text_1", "data_1"), (rerank.score, rerank.score_fields)),
    "prompt": (completions.complete, completions.fields),
}
_CHAT = chat_completions.chat, chat_completions.fields
# Task of a model -> the same for a request that has input or messages.
_BY_TASK: dict[str, tuple[Handler, Any]] = {
    "classify": (pooling.classify, pooling.classify_fields),
    "label": (pooling.pool, pooling.pooling_fields),
    "encode": (embeddings.embed, embeddings.fields),
}


async def invoke(call: Call) -> None:
    """Answers a request of another path."""
    try:
        body = await call.server.aside(orjson.loads, call.body)
    except orjson.JSONDecodeError as error:
        raise Refused(400, f"the body is not JSON: {error}", code="invalid_json") from None
    if not isinstance(body, dict):
        raise Refused(400, "the body must be a JSON object")
    found = next((way for field, way in _BY_FIELD.items() if body.get(field) is not None), None)
    if found is None and ("messages" in body or "input" in body):
        name = body.get("model")
        async with call.server.models.use(name if isinstance(name, str) else None) as served:
            tasks = served.tasks or []
        chats = "generate" in tasks and "messages" in body
        found = _CHAT if chats else next((way for task, way in _BY_TASK.items() if task in tasks), None)
    if found is None:
        raise Refused(400, "the body has none of messages, prompt, input, query, queries and task; its path is not known")
    handler, table = found
    call.table = table(call.server.settings)
    await handler(call)
