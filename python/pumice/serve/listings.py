"""What tells about the server and its models: GET /v1/models, /health, /ready, /metrics, /version and /openapi.json."""

from __future__ import annotations

import datetime
from typing import Any

from prometheus_client import CONTENT_TYPE_LATEST

import pumice

from .calls import Call
from .models import LOADING, Served


async def models(call: Call) -> None:
    """Lists the models in OpenAI's form, or in Anthropic's for a client that sends an anthropic-version header. Loads nothing."""
    data = [_listed(call, served) for served in call.server.models]
    if _is_anthropic(call):
        ids = {"first_id": data[0]["id"], "last_id": data[-1]["id"]} if data else {"first_id": None, "last_id": None}
        await call.answer_small({"data": data, "has_more": False, **ids})
        return
    await call.answer_small({"object": "list", "data": data})


async def model(call: Call) -> None:
    """Describes one model, in the same two forms."""
    if _is_anthropic(call):
        call.dialect = "anthropic"  # so that the error for a name that is unknown has this form, too
    await call.answer_small(_listed(call, call.server.models.find(call.scope["path_params"]["name"])))


def _is_anthropic(call: Call) -> bool:
    return "anthropic-version" in call.headers


def _listed(call: Call, served: Served) -> dict[str, Any]:
    """Returns the entry of a model in the client's form."""
    if not _is_anthropic(call):
        return served.described()
    created = datetime.datetime.fromtimestamp(served.created, datetime.timezone.utc).isoformat().replace("+00:00", "Z")
    limits = {"max_input_tokens": served.most, "max_tokens": served.most}
    return {"type": "model", "id": served.name, "display_name": served.name, "created_at": created, "lifecycle": "active", **limits}


async def health(call: Call) -> None:
    """Says that the process answers: 503 while models are loaded."""
    loading = call.server.not_ready == LOADING
    await call.answer_small({"status": LOADING if loading else "ok"}, 503 if loading else 200)


async def ready(call: Call) -> None:
    """Says whether requests are taken: 503 while models are loaded, while the server stops, and after a GPU was lost."""
    reason = call.server.not_ready
    await call.answer_small({"status": reason or "ready"}, 503 if reason else 200)


async def metrics(call: Call) -> None:
    """Gives the figures in the form of Prometheus."""
    await call.send(await call.server.figures(), kind=CONTENT_TYPE_LATEST)


async def openapi(call: Call) -> None:
    """Gives the description of all paths."""
    await call.answer(call.server.description)


async def version(call: Call) -> None:
    """Gives the version of pumice."""
    await call.answer_small({"version": pumice.__version__})
