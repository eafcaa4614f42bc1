"""A stand-in for `pumice serve` with canned answers, for the tests of its page. It has no model: `python fake_server.py PORT` starts it.

What the last message contains chooses the answer: "long", "fence", "html", "links", "reason", "sample", "slow", "cut", "busy",
"break". Tools lead to calls, a schema to JSON. Unknown fields are refused as by the server, so that the page cannot come to depend on one
that does not exist. GET /fake/log gives what was asked, except for the page's files."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import re
import struct
import sys
from collections.abc import AsyncIterator
from math import log
from pathlib import Path
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

PAGE = Path(__file__).resolve().parents[2] / "python" / "pumice" / "serve" / "page"
HEADERS = [(b"content-security-policy", b"default-src 'self'"), (b"x-content-type-options", b"nosniff")]
KEY: str | None = None
N_CTX = 8192
MODELS = {"chat": ["generate", "encode"], "small": ["generate", "encode"], "embed": ["encode"], "ranker": ["classify"]}
FIELDS = {
    "model", "messages", "stream", "stream_options", "temperature", "top_p", "top_k", "min_p", "repetition_penalty", "seed", "max_tokens",
    "stop", "reasoning_effort", "response_format", "tools", "tool_choice", "logprobs", "top_logprobs", "continue_final_message",
}  # fmt: skip
LOG: list[dict[str, Any]] = []
COUNTS = {"requests": 0, "prompt": 0, "generated": 0, "running": 0}

SAMPLE = """Pumice is a **volcanic rock** that *floats*. It forms when lava full of gas cools quickly:

1. Gas leaves the melt.
2. The melt turns to glass.
   - with small bubbles
   - and thin walls

| Stone | Density | Floats |
|:--|--:|:-:|
| Pumice | 0.25 | yes |
| Basalt | 2.9 | no |

```python
def floats(density: float) -> bool:
    return density < 1.0
```

> It is used to smooth wood, and `skin`.
"""
HTML = """<script>window.broken = 1</script><img src=x onerror="window.broken = 1"> and **bold**

<b>not bold</b> &amp; [bad](javascript:alert(1)) [data](data:text/html,x) ![picture](https://example.com/a.png) <https://example.com/ok>
"""
LINKS = "See [the docs](https://example.com/a?b=(c)) and http://example.com/x. Not [this](ftp://example.com) or [that](/local)."


def chance(text: str) -> float:
    """Returns a number from 0 to 1 that the text alone decides."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big") / 2**32


def tokens_of(text: str) -> list[str]:
    return re.findall(r"\s?\w+|\s|[^\w\s]", text)


def logprob_of(p: float) -> float:
    return log(max(p, 1e-6))


def logprobs(token: str, place: int) -> dict[str, Any]:
    p = 0.35 + 0.65 * chance(f"{place}{token}")
    others = [(" other", (1 - p) * 0.6), (" word", (1 - p) * 0.3), ("", (1 - p) * 0.05)]
    entry = {"token": token, "logprob": logprob_of(p), "bytes": list(token.encode())}
    top = [entry] + [{"token": t, "logprob": logprob_of(q), "bytes": list(t.encode()) or [0xC3]} for t, q in others]
    return {**entry, "top_logprobs": top}


def answer_to(body: dict[str, Any]) -> tuple[str, str, list[dict[str, str]]]:
    """Returns the reasoning, the text and the calls of the answer."""
    last = body["messages"][-1]
    text = last.get("content") or ""
    if body.get("continue_final_message"):
        return "", " and goes on from there.", []
    if last["role"] == "tool":
        return "", f"The result was {text}.", []
    if body.get("tools"):
        names = [tool["function"]["name"] for tool in body["tools"]]
        return "", "", [{"id": "call_1", "name": names[0], "arguments": '{"city": "Naples"}'}]
    if body.get("response_format"):
        return "", '{"title": "Stone", "year": 79}', []
    if "long" in text:
        return "", "".join(f"## Part {i}\n\n{'Words of part ' * 20}**{i}** with `code`.\n\n- one\n- two\n\n" for i in range(340)), []
    if "fence" in text:
        return "", "```python\n" + "".join(f"line_{i} = {i}\n" for i in range(6500)) + "```\n\nThe end.", []
    if "html" in text:
        return "", HTML, []
    if "links" in text:
        return "", LINKS, []
    if "reason" in text:
        return "First I think.\n\nThen I think again.", "So the answer is 42.", []
    if "slow" in text or "cut" in text:
        return "", " ".join(f"word{i}" for i in range(200)), []
    if "sample" in text:
        return "", SAMPLE, []
    return "", f"{body['model']} says: {text}", []


def event(data: Any) -> bytes:
    return f"data: {json.dumps(data)}\n\n".encode()


async def stream(body: dict[str, Any]) -> AsyncIterator[bytes]:
    reasoning, text, calls = answer_to(body)
    last = str(body["messages"][-1].get("content") or "")
    head = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": body["model"]}

    def chunk(delta: dict[str, Any], finish: str | None = None, **more: Any) -> bytes:
        return event({**head, "choices": [{"index": 0, "delta": delta, "finish_reason": finish, **more}]})

    COUNTS["running"] += 1
    try:
        yield b": begin\n\n" + chunk({"role": "assistant", "content": ""})
        for piece in tokens_of(reasoning):
            yield chunk({"reasoning_content": piece, "reasoning": piece})
        pieces = tokens_of(text) if len(text) < 20_000 else re.findall(r"(?s).{1,24}", text)
        for i, piece in enumerate(pieces):
            more = {"logprobs": {"content": [logprobs(piece, i)]}} if body.get("logprobs") else {}
            yield chunk({"content": piece}, **more)
            COUNTS["generated"] += 1
            await asyncio.sleep(0.05 if "slow" in last else 0.002 if len(text) < 20_000 else 0)
            if "cut" in last and i == 20:
                raise ConnectionResetError("as asked")
            if "break" in last and i == 3:
                yield event({"error": {"message": "The device was lost.", "type": "server_error", "code": "device_lost"}})
                yield b"data: [DONE]\n\n"
                return
        for i, call in enumerate(calls):
            function = {"name": call["name"], "arguments": ""}
            yield chunk({"tool_calls": [{"index": i, "id": call["id"], "type": "function", "function": function}]})
            for part in re.findall(r".{1,4}", call["arguments"]):
                yield chunk({"tool_calls": [{"index": i, "function": {"arguments": part}}]})
        yield chunk({}, "tool_calls" if calls else "stop")
        prompt = sum(len(tokens_of(str(m.get("content") or ""))) for m in body["messages"])
        usage = {
            "prompt_tokens": prompt,
            "completion_tokens": len(pieces),
            "total_tokens": prompt + len(pieces),
            "prompt_tokens_details": {"cached_tokens": prompt // 2},
        }
        COUNTS["prompt"] += prompt
        timings = {"decode_tokens_per_second": 48.5}
        ignored = ["reasoning_effort"] if "reasoning_effort" in body else []
        yield event({**head, "choices": [], "usage": usage, "pumice": {"seed": 7, "timings": timings, "ignored": ignored}})
        yield b"data: [DONE]\n\n"
    finally:
        COUNTS["running"] -= 1


def error(status: int, message: str, param: str | None = None, **headers: str) -> JSONResponse:
    body = {"error": {"message": message, "type": "invalid_request_error", "param": param, "code": None}}
    return JSONResponse(body, status, {"x-request-id": "req-1", **headers})


async def chat(request: Request) -> Response:
    body = await request.json()
    COUNTS["requests"] += 1
    unknown = sorted(set(body) - FIELDS)
    if unknown:
        return error(400, f"{unknown[0]} is not a field of this endpoint", unknown[0])
    if body["model"] not in MODELS:
        return error(404, f"there is no model {body['model']!r}; there are {', '.join(MODELS)}", "model")
    if "busy" in str(body["messages"][-1].get("content")):
        return error(429, "256 requests wait already.", **{"retry-after": "3"})
    return StreamingResponse(stream(body), media_type="text/event-stream")


def vector(text: str) -> list[float]:
    words = re.findall(r"\w+", text.lower())
    return [sum(chance(f"{word}{i}") - 0.5 for word in words) for i in range(16)]


async def embeddings(request: Request) -> Response:
    body = await request.json()
    texts = [body["input"]] if isinstance(body["input"], str) else body["input"]
    assert body["encoding_format"] == "base64"
    data = [
        {"object": "embedding", "index": i, "embedding": base64.b64encode(struct.pack("<16f", *vector(t))).decode()}
        for i, t in enumerate(texts)
    ]
    return JSONResponse({"object": "list", "data": data, "model": body["model"], "usage": {"prompt_tokens": 1, "total_tokens": 1}})


async def rerank(request: Request) -> Response:
    body = await request.json()
    scored = [{"index": i, "relevance_score": chance(body["query"] + text)} for i, text in enumerate(body["documents"])]
    return JSONResponse({"model": body["model"], "results": sorted(scored, key=lambda item: -item["relevance_score"]), "meta": {}})


async def tokenize(request: Request) -> Response:
    body = await request.json()
    pieces = tokens_of(body["prompt"])
    ids = [int(chance(piece) * 50_000) for piece in pieces]
    told = [{"id": i, "piece": piece} for i, piece in zip(ids, pieces, strict=True)]
    return JSONResponse({"tokens": told if body.get("with_pieces") else ids, "count": len(ids)})


async def apply_template(request: Request) -> Response:
    body = await request.json()
    return JSONResponse({"prompt": "".join(f"<|{m['role']}|>{m.get('content') or ''}\n" for m in body["messages"]) + "<|assistant|>"})


async def models(_: Request) -> Response:
    known = {"object": "model", "created": 1, "owned_by": "pumice"}
    meta = {"n_ctx": N_CTX, "device": "cpu", "loaded": True}
    data = [{"id": name, **known, "meta": {"tasks": tasks, **meta}} for name, tasks in MODELS.items()]
    return JSONResponse({"object": "list", "data": data})


async def metrics(_: Request) -> Response:
    text = f"""# HELP pumice_requests_total Requests by endpoint and status.
# TYPE pumice_requests_total counter
pumice_requests_total{{endpoint="/v1/chat/completions",code="200"}} {COUNTS["requests"]}.0
# HELP pumice_running Requests that run.
# TYPE pumice_running gauge
pumice_running{{model="chat"}} {COUNTS["running"]}
pumice_running{{model="small"}} 0
# HELP pumice_tokens_total Tokens by kind.
# TYPE pumice_tokens_total counter
pumice_tokens_total{{model="chat",kind="prompt"}} {COUNTS["prompt"]}
pumice_tokens_total{{model="chat",kind="generated"}} {COUNTS["generated"]}
# HELP pumice_first_token_seconds Time to the first token.
# TYPE pumice_first_token_seconds histogram
pumice_first_token_seconds_bucket{{model="chat",le="0.1"}} {COUNTS["requests"]}
pumice_first_token_seconds_bucket{{model="chat",le="+Inf"}} {COUNTS["requests"]}
pumice_first_token_seconds_sum{{model="chat"}} {COUNTS["requests"] * 0.05}
pumice_first_token_seconds_count{{model="chat"}} {COUNTS["requests"]}
"""
    return PlainTextResponse(text)


async def change(request: Request) -> Response:
    """Sets the key of this server, for the test of the page's key dialog."""
    global KEY
    KEY = (await request.json())["key"]
    return JSONResponse({})


class Rules:
    """Logs requests, asks for the key, and sends the headers that the server sends."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        path = scope["path"]
        is_page = path == "/" or path.startswith("/page/") or path.startswith("/fake/")
        body = b""

        async def read() -> Message:
            nonlocal body
            message = await receive()
            body += message.get("body", b"")
            if entry is not None and body and not message.get("more_body"):
                entry["body"] = json.loads(body)
            return message

        async def write(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], *HEADERS]
            await send(message)

        entry: dict[str, Any] | None = None
        if not is_page:
            entry = {"method": scope["method"], "path": path, "query": scope["query_string"].decode(), "body": None}
            LOG.append(entry)
        headers = dict(scope["headers"])
        if KEY and not is_page and path != "/health" and headers.get(b"authorization") != f"Bearer {KEY}".encode():
            return await error(401, "A key is needed: send it as Authorization: Bearer.")(scope, receive, write)
        return await self.app(scope, read, write)


async def health(_: Request) -> Response:
    return JSONResponse({"status": "ok"})


async def asked(_: Request) -> Response:
    return JSONResponse(LOG)


async def index(_: Request) -> Response:
    return FileResponse(PAGE / "index.html")


app = Rules(
    Starlette(
        routes=[
            Route("/", index),
            Mount("/page", StaticFiles(directory=PAGE)),
            Route("/v1/chat/completions", chat, methods=["POST"]),
            Route("/v1/embeddings", embeddings, methods=["POST"]),
            Route("/v1/rerank", rerank, methods=["POST"]),
            Route("/tokenize", tokenize, methods=["POST"]),
            Route("/apply-template", apply_template, methods=["POST"]),
            Route("/v1/models", models),
            Route("/metrics", metrics),
            Route("/health", health),
            Route("/fake/log", asked),
            Route("/fake/key", change, methods=["POST"]),
        ]
    )
)

if __name__ == "__main__":
    uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[1]), log_level="critical")
