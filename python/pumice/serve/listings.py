"""GET /v1/models, /health, /ready, /metrics and /openapi.json; POST /tokenize, /detokenize and /apply-template."""

from __future__ import annotations

import datetime
from typing import Any

from prometheus_client import CONTENT_TYPE_LATEST

from ..chats.chat import Asked
from ..chats.questions import check_question
from ..common.arguments import argument
from ..errors import ChatTemplateError
from ..model.model import Model
from .calls import Call
from .conversations import messages_for
from .failures import Refused
from .fields import FLAG, LIST, OBJECT, TEXT, Field, Fields, Read
from .models import LOADING, Served
from .sampling_fields import MODEL
from .settings import Settings

# Maximum number of tokens in an answer that has their texts (with_pieces). Such an answer takes about 0.4 KiB of memory per token, and a
# body may have 32 million tokens.
MOST_PIECES = 1 << 17


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
    return {"type": "model", "id": served.name, "display_name": served.name, "created_at": created}


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


def tokenize_fields(settings: Settings) -> Fields:
    """Returns the fields of /tokenize."""
    return Fields(
        (
            MODEL,
            Field("content", TEXT, "A text."),
            Field("messages", {"type": "array", "items": OBJECT, "minItems": 1}, "Or a conversation."),
            Field("add_special", FLAG, "Whether special tokens are put around a text."),
            Field("with_pieces", FLAG, f"True: also the text and the bytes of each token, of at most {MOST_PIECES}."),
        )
    )


def detokenize_fields(settings: Settings) -> Fields:
    """Returns the fields of /detokenize."""
    ids = {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 2**31 - 1}}
    return Fields((MODEL, Field("tokens", ids, "Token ids.", needed=True, covers={"ids": "tokens"})))


def template_fields(settings: Settings) -> Fields:
    """Returns the fields of /apply-template."""
    return Fields(
        (
            MODEL,
            Field("messages", {"type": "array", "items": OBJECT, "minItems": 1}, "A conversation.", needed=True),
            Field("tools", LIST, "Functions that the model may call."),
            Field(
                "chat_template_kwargs",
                OBJECT,
                "Further variables of the chat template.",
                covers={"template_kwargs": "chat_template_kwargs"},
            ),
        )
    )


async def tokenize(call: Call) -> None:
    """Turns a text or a conversation into token ids."""
    read = await call.read()
    async with call.using(read) as served:
        model = served.model
        assert model is not None
        if (read["content"] is None) == (read["messages"] is None):
            raise Refused(400, "one of content and messages must be given", param="content")
        if read["content"] is not None:
            ids = await call.server.aside(model.tokenize, read["content"], read.get("add_special", True))
        else:
            ids = (await _rendered(call, served, read)).ids
        answer: dict[str, Any] = {"tokens": ids, "count": len(ids), "max_model_len": model._info.get("n_ctx")}
        if read["with_pieces"]:
            if len(ids) > MOST_PIECES:
                raise Refused(400, f"with_pieces takes at most {MOST_PIECES} tokens; the text has {len(ids)}", param="with_pieces")
            answer["pieces"] = await call.server.aside(_pieces, model, ids)
        await call.answer(answer)


def _pieces(model: Model, ids: Any) -> list[dict[str, Any]]:
    pieces = zip(ids.tolist(), model.token_bytes(ids), strict=True)
    return [{"id": i, "text": piece.decode("utf-8", "replace"), "bytes": list(piece)} for i, piece in pieces]


async def detokenize(call: Call) -> None:
    """Turns token ids into text."""
    read = await call.read()
    async with call.using(read) as served:
        model = served.model
        assert model is not None
        await call.answer({"content": await call.server.aside(model.detokenize, read["tokens"])})


async def _rendered(call: Call, served: Served, read: Read) -> Asked:
    model = served.model
    assert model is not None

    def render() -> Asked:
        messages = messages_for(read["messages"], served.habits())
        return model._chats.asked(check_question(messages, read["tools"] or None, None, True, read["chat_template_kwargs"], False))

    with argument("messages", ChatTemplateError):
        return await call.server.aside(render)


async def apply_template(call: Call) -> None:
    """Renders a conversation."""
    read = await call.read()
    async with call.using(read) as served:
        rendered = await _rendered(call, served, read)
        await call.answer({"prompt": rendered.prompt, "prompt_tokens": len(rendered.ids)})
