"""The ASGI application: its paths, and the middleware before all of them (keys, Host, browsers)."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Mapping
from dataclasses import fields
from typing import Any

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.routing import Route

from . import (
    batches,
    chat_completions,
    completions,
    embeddings,
    files,
    invocations,
    kept_responses,
    listings,
    messages,
    native_completions,
    page_files,
    pooling,
    rerank,
    responses,
    token_calls,
)
from .calls import Endpoint, Path
from .guard import LOCAL_ORIGINS, Guard
from .server import Server
from .settings import Settings

# Paths of OpenAI's interface. They are there with "/v1" and without it, because clients differ in whether their address ends with it.
_OPENAI: tuple[Path, ...] = (
    Path("POST", "/chat/completions", chat_completions.chat, "openai", chat_completions.fields),
    Path("POST", "/chat/completions/batch", chat_completions.batch, "vllm", chat_completions.batch_fields),
    Path("POST", "/chat/completions/input_tokens", chat_completions.input_tokens, "openai", chat_completions.fields),
    Path("POST", "/completions", completions.complete, "openai", completions.fields),
    Path("POST", "/responses", responses.respond, "openai", responses.fields),
    Path("POST", "/responses/input_tokens", responses.input_tokens, "openai", responses.fields),
    Path("GET", "/responses/{name}", kept_responses.response, "openai"),
    Path("DELETE", "/responses/{name}", kept_responses.delete, "openai"),
    Path("GET", "/responses/{name}/input_items", kept_responses.input_items, "openai"),
    Path("POST", "/embeddings", embeddings.embed, "openai", embeddings.fields),
    Path("POST", "/rerank", rerank.rerank, "openai", rerank.fields),
    Path("POST", "/score", rerank.score, "openai", rerank.score_fields),
    Path("GET", "/models", listings.models, "openai"),
    Path("GET", "/models/{name:path}", listings.model, "openai"),
    Path("POST", "/files", files.upload, "openai", receive=files.receive_upload),
    Path("GET", "/files", files.listed, "openai"),
    Path("GET", "/files/{id}", files.one, "openai"),
    Path("GET", "/files/{id}/content", files.content, "openai"),
    Path("DELETE", "/files/{id}", files.delete, "openai"),
    Path("POST", "/batches", batches.create, "openai", batches.fields, in_lines=False),
    Path("GET", "/batches", batches.listed, "openai"),
    Path("GET", "/batches/{id}", batches.one, "openai"),
    Path("POST", "/batches/{id}/cancel", batches.cancel, "openai"),
)
# All paths of the server.
PATHS: tuple[Path, ...] = (
    *(each._replace(path=prefix + each.path) for prefix in ("/v1", "") for each in _OPENAI),
    Path("POST", "/v1/messages", messages.messages, "anthropic", messages.fields),
    Path("POST", "/v1/messages/count_tokens", messages.count_tokens, "anthropic", messages.count_fields),
    Path("POST", "/v2/rerank", rerank.rerank, "openai", rerank.fields),
    Path("POST", "/embed", embeddings.tei_embed, "openai", embeddings.tei_fields),
    Path("POST", "/v1/embed", embeddings.cohere_embed, "openai", embeddings.cohere_fields),
    Path("POST", "/v2/embed", embeddings.cohere_embed, "openai", embeddings.cohere_fields),
    Path("POST", "/completion", native_completions.complete, "openai", native_completions.fields),
    Path("POST", "/infill", native_completions.infill, "openai", native_completions.infill_fields),
    Path("POST", "/classify", pooling.classify, "vllm", pooling.classify_fields),
    Path("POST", "/pooling", pooling.pool, "vllm", pooling.pooling_fields),
    Path("POST", "/invocations", invocations.invoke, "vllm"),
    Path("POST", "/tokenize", token_calls.tokenize, "openai", token_calls.tokenize_fields),
    Path("POST", "/detokenize", token_calls.detokenize, "openai", token_calls.detokenize_fields),
    Path("POST", "/apply-template", token_calls.apply_template, "openai", token_calls.template_fields),
    Path("GET", "/", page_files.page, "openai"),
    Path("GET", "/page/{name}", page_files.page, "openai"),
    Path("GET", "/tokenizer_info", token_calls.tokenizer_info, "openai"),
    Path("GET", "/props", token_calls.props, "openai"),
    Path("GET", "/version", listings.version, "openai"),
    Path("GET", "/health", listings.health, "openai"),
    Path("GET", "/ping", listings.health, "openai"),
    Path("GET", "/ready", listings.ready, "openai"),
    Path("GET", "/metrics", listings.metrics, "openai"),
    Path("GET", "/openapi.json", listings.openapi, "openai"),
)


def app(models: Mapping[str, Any], *, load: Mapping[str, Mapping[str, Any]] | None = None, **settings: Any) -> Starlette:
    """Returns the ASGI application that serves models.

    models: name -> a Model, or the source that load() takes (a path or a hub id).
    load: name -> keywords of load(), for models that are not loaded yet.
    settings: the fields of pumice.serve.Settings."""
    known = {each.name for each in fields(Settings)}
    for name in settings:
        if name not in known:
            from ..common.arguments import unknown_keyword

            raise unknown_keyword("app", name, ["models", "load", *sorted(known)])
    if not models:
        raise ValueError("models is empty: a server needs one model at least")
    server = Server(models, load or {}, Settings(**settings), PATHS)

    if server.settings.files is not None:
        server.store = files.FileStore(server.settings.files)
        server.batches = batches.Batches(server, server.store)

    @contextlib.asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        await server.start()
        try:
            yield
        finally:
            await server.stop()

    routes = [Route(path.path, Endpoint(server, path), methods=[path.method]) for path in PATHS]
    middleware = [Middleware(Guard, server=server)]
    if server.settings.cors_origins:  # runs before Guard, so that a page can read why it was refused
        origins = list(server.settings.cors_origins)
        methods = sorted({path.method for path in PATHS})
        local = LOCAL_ORIGINS.pattern if "localhost" in origins else None
        allowed: dict[str, Any] = {"allow_origins": origins, "allow_origin_regex": local, "allow_methods": methods, "allow_headers": ["*"]}
        middleware.insert(0, Middleware(CORSMiddleware, **allowed))
    application = Starlette(routes=routes, middleware=middleware, lifespan=lifespan)
    application.router.redirect_slashes = False  # a path with an additional slash at its end is another path, and gets 404
    application.state.server = server
    return application
