"""POST /tokenize, /detokenize and /apply-template, in the forms of llama.cpp and vLLM; GET /tokenizer_info (vLLM's) and /props
(llama.cpp's)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from urllib.parse import parse_qsl

import numpy as np

from ..chats.questions import check_question
from ..common.arguments import argument
from ..errors import ChatTemplateError
from ..model.model import Model
from .calls import Call
from .conversations import messages_for
from .failures import Refused
from .fields import FLAG, LIST, OBJECT, TEXT, Field, Fields, Read
from .models import Served
from .native_completions import settings_of
from .sampling_fields import MODEL
from .settings import Settings

# Maximum number of tokens in an answer that has their texts (with_pieces). Such an answer takes about 0.4 KiB of memory per token, and a
# body may have 32 million tokens.
MOST_PIECES = 1 << 17

RENDERING = (
    Field("tools", LIST, "Functions that the model may call."),
    Field("chat_template_kwargs", OBJECT, "Further variables of the chat template.", covers={"template_kwargs": "chat_template_kwargs"}),
    Field("add_generation_prompt", FLAG, "Whether the text ends with the beginning of an answer."),
    Field(
        "continue_final_message",
        FLAG,
        "The last message is the assistant's, and the prompt ends in it.",
        covers={"continue_final": "continue_final_message"},
    ),
)


def tokenize_fields(settings: Settings) -> Fields:
    """Returns the fields of /tokenize."""
    return Fields(
        (
            MODEL,
            Field("content", TEXT, "A text.", to="text"),
            Field("prompt", TEXT, "vLLM's name of content.", to="text"),
            Field("messages", {"type": "array", "items": OBJECT, "minItems": 1}, "Or a conversation."),
            *RENDERING,
            Field("add_special", FLAG, "Whether special tokens are put around a text. Without it: around a prompt.", to="add_special"),
            Field("add_special_tokens", FLAG, "The same.", to="add_special"),
            Field("parse_special", FLAG, "False: control tokens that the text spells out are text."),
            Field("with_pieces", FLAG, f"True: each token, of at most {MOST_PIECES}, has its id and its text or bytes."),
            Field("return_token_strs", FLAG, "True: also each token as the vocabulary spells it, of as many at most."),
        )
    )


def detokenize_fields(settings: Settings) -> Fields:
    """Returns the fields of /detokenize."""
    ids = {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 2**31 - 1}}
    return Fields((MODEL, Field("tokens", ids, "Token ids.", needed=True, covers={"ids": "tokens"})))


def template_fields(settings: Settings) -> Fields:
    """Returns the fields of /apply-template."""
    return Fields((MODEL, Field("messages", {"type": "array", "items": OBJECT, "minItems": 1}, "A conversation.", needed=True), *RENDERING))


async def tokenize(call: Call) -> None:
    """Turns a text or a conversation into token ids."""
    read = await call.read()
    async with call.using(read) as served:
        model = served.model
        assert model is not None
        text = read.keywords.get("text")
        if (text is None) == (read["messages"] is None):
            raise Refused(400, "one of content and messages must be given", param="content")
        if text is not None:
            special = read.keywords.get("add_special", read["content"] is None)
            ids = await call.server.aside(model._tokenizer.encode, text, special, read.get("parse_special", True))
        else:
            prompt, ids = await rendered(call, served, read)
            if read.keywords.get("add_special"):  # around the rendered text, where a template may have written them already, as vLLM does
                ids = await call.server.aside(model._tokenizer.encode, prompt, True)
        answer: dict[str, Any] = {"tokens": ids, "count": len(ids), "max_model_len": model._info.get("n_ctx"), "token_strs": None}
        told: tuple[tuple[str, str, Callable[[Model, Any], Any]], ...] = (
            ("with_pieces", "tokens", _pieces),
            ("return_token_strs", "token_strs", _spelt),
        )
        for name, key, make in told:
            if read[name]:
                if len(ids) > MOST_PIECES:
                    raise Refused(400, f"{name} takes at most {MOST_PIECES} tokens; the text has {len(ids)}", param=name)
                answer[key] = await call.server.aside(make, model, ids)
        await call.answer(answer)


def _pieces(model: Model, ids: Any) -> list[dict[str, Any]]:
    pieces = zip(ids.tolist(), model.token_bytes(ids), strict=True)
    return [{"id": i, "piece": list(piece) if _is_part(piece) else piece.decode()} for i, piece in pieces]


def _is_part(piece: bytes) -> bool:
    """Returns whether the bytes of a token are a part of a character."""
    try:
        piece.decode()
    except UnicodeDecodeError:
        return True
    return False


def _spelt(model: Model, ids: Any) -> list[str]:
    return [model._tokenizer.token(i) for i in ids.tolist()]


async def detokenize(call: Call) -> None:
    """Turns token ids into text."""
    read = await call.read()
    async with call.using(read) as served:
        model = served.model
        assert model is not None
        text = await call.server.aside(model.detokenize, read["tokens"])
        await call.answer({"content": text, "prompt": text})


async def rendered(call: Call, served: Served, read: Read, begins: bool = True) -> tuple[str, Any]:
    """Returns the prompt of a conversation and its token ids. begins: the value of add_generation_prompt for a body without this field."""
    model = served.model
    assert model is not None

    def render() -> tuple[str, Any]:
        messages, goes_on = messages_for(read["messages"], served.habits()), bool(read["continue_final_message"])
        question = check_question(messages, read["tools"] or None, None, True, read["chat_template_kwargs"], False, continue_final=goes_on)
        if goes_on or read.get("add_generation_prompt", begins):
            asked = model._chats.asked(question)
            return asked.prompt, asked.ids
        variables = {**question.variables, **({"tools": question.tools} if question.tools else {})}
        prompt = model._chats.template().prompt(question.messages, model._tokenizer.control, add_generation_prompt=False, **variables)
        return prompt.text, np.asarray(model._tokenizer.encode_parts(prompt.parts, add_special=False))

    with argument("messages", ChatTemplateError):
        return await call.server.aside(render)


async def apply_template(call: Call) -> None:
    """Renders a conversation."""
    read = await call.read()
    async with call.using(read) as served:
        prompt, ids = await rendered(call, served, read)
        await call.answer({"prompt": prompt, "prompt_tokens": len(ids)})


# ---------------------------------------------------------------- what clients read before they send prompts
def _of_query(call: Call) -> str | None:
    """Returns the model that a request without a body names in its query, as in /props?model=NAME."""
    query: bytes = call.scope["query_string"]
    return dict(parse_qsl(query.decode("latin-1"))).get("model")


def _template_of(model: Model) -> str | None:
    try:
        return model._chats.template().text
    except ChatTemplateError:
        return None


def _special_tokens(model: Model) -> dict[str, str | None]:
    """Returns the special tokens as the vocabulary spells them. None: the model has no such token."""
    tokenizer = model._tokenizer
    ids = {role: tokenizer.special.get(role) for role in ("bos", "eos", "unk", "pad")}
    return {f"{role}_token": None if i is None else tokenizer.token(i) for role, i in ids.items()}


async def tokenizer_info(call: Call) -> None:
    """Describes the tokenizer of a model, for clients that count and render by themselves."""
    async with call.server.models.use(_of_query(call)) as served:
        model = served.model
        assert model is not None

        def told() -> dict[str, Any]:
            return {
                "tokenizer_class": type(model._tokenizer.backend.model).__name__,
                "model_max_length": model._info["n_ctx"],
                "vocab_size": model._tokenizer.vocab_size,
                "add_bos_token": bool(model._info["special_tokens"]["before"]),
                **_special_tokens(model),
                "chat_template": _template_of(model),
            }

        await call.answer(await call.server.aside(told))


async def props(call: Call) -> None:
    """Describes a model and the settings of its requests."""
    async with call.server.models.use(_of_query(call)) as served:
        model = served.model
        assert model is not None
        settings = call.server.settings

        def told() -> dict[str, Any]:
            tokens, params = _special_tokens(model), {}
            if "generate" in model._info["tasks"]:
                options = {**settings.sampling, "max_new_tokens": settings.max_answer}
                params = settings_of(model._generator.params(model._generator.answering(options)))
            return {
                "default_generation_settings": {"n_ctx": model._info["n_ctx"], "params": params},
                "model_path": model.path.name,
                "is_sleeping": False,
                "total_slots": settings.running,
                "model_alias": served.name,
                "modalities": {"vision": False, "audio": False},
                "chat_template": _template_of(model) or "",
                "bos_token": tokens["bos_token"] or "",
                "eos_token": tokens["eos_token"] or "",
                "build_info": call.server.fingerprint,
            }

        await call.answer(await call.server.aside(told))
