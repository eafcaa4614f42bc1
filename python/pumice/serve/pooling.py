"""POST /classify and /pooling, vLLM's paths for classifiers and for what else a model computes of a text
(https://docs.vllm.ai/en/latest/models/pooling_models.html)."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from ..model.model import Model
from .calls import Call, dumped
from .embeddings import OF_TOKENS, activation_of, conversation_fields, encoded, packed, texts_of, truncation_fields
from .failures import Refused, new_id
from .fields import FLAG, Field, Fields, Read
from .models import Served
from .sampling_fields import INERT, MODEL
from .settings import Settings


def classify_fields(settings: Settings) -> Fields:
    """Returns the table of the fields of /classify."""
    return Fields(
        (
            MODEL,
            *conversation_fields(settings),
            Field(
                "use_activation",
                FLAG,
                "False: the model's numbers (logits) in place of probabilities.",
                to="activation",
                read=activation_of,
            ),
            *truncation_fields("it is cut"),
        ),
        inert=(*INERT, "priority"),
        refused={"add_special_tokens": "a model's special tokens are a part of its input"},
        idle={"add_special_tokens": (True,)},
    )


def pooling_fields(settings: Settings) -> Fields:
    """Returns the table of the fields of /pooling."""
    table = classify_fields(settings)
    own = (
        Field(
            "task",
            {"enum": ["embed", "classify", "token_embed", "token_classify", "plugin"]},
            "What is computed of each text: one vector, a classifier's numbers, or one or the other of each token. Without it, what the "
            "model is for.",
        ),
        Field("encoding_format", {"enum": ["float", "base64"]}, "base64: float32, little-endian."),
        Field("use_activation", FLAG, "False: vectors as they are, and numbers of classifiers that are no probabilities."),
    )
    return Fields((*table.but("use_activation").fields, *own), table.inert, table.refused, table.idle)


async def _sent(call: Call, served: Served, read: Read, kind: str, tokens: int, data: list[dict[str, Any]]) -> None:
    """Sends an answer. kind: the beginning of its id. tokens: the number of tokens of all texts."""
    body = {
        "id": new_id(kind),
        "object": "list",
        "created": int(time.time()),
        "model": served.name,
        "data": data,
        "usage": {"prompt_tokens": tokens, "total_tokens": tokens, "completion_tokens": 0},
        "pumice": {"ignored": read.ignored},
    }
    await call.send(await call.server.aside(dumped, body), kind="application/json")


async def classify(call: Call) -> None:
    """Gives a classifier's label of each text, and the probabilities of all its labels."""
    read = await call.read()
    async with call.using(read) as served:
        model = served.model
        assert model is not None
        texts = iter(await texts_of(call, served, read))  # predict() takes a list of two texts for a pair
        found = await model.apredict(texts, details=True, output="labels", **read.keywords)
        call.begun = True
        tokens = int(found.tokens.sum())
        call.count_texts(len(found.scores), tokens)
        data = [
            {"index": i, "label": one.label, "probs": [*one.probabilities.values()], "num_classes": len(one.probabilities)}
            for i, one in enumerate(found.scores)
        ]
        await _sent(call, served, read, "classify-", tokens, data)


def _tasks(model: Model) -> list[str]:
    """Returns the tasks of /pooling that a model can do. The first is the one that it is for."""
    known, late = model._info["tasks"], model._info.get("similarity") in OF_TOKENS
    encodes = "encode" in known and not {"classify", "label"} & {*known}  # a classifier's layers were not trained for vectors
    able = {
        "classify": "classify" in known,
        "token_classify": "label" in known,
        "embed": encodes and not late,
        "token_embed": encodes,
    }
    return [task for task, can in able.items() if can]


async def pool(call: Call) -> None:
    """Gives what a model computes of each text: a vector, a classifier's numbers, or the same for each token."""
    read = await call.read()
    async with call.using(read) as served:
        model = served.model
        assert model is not None
        tasks = _tasks(model)
        task = read.get("task", tasks[0] if tasks else "embed")
        if task == "plugin":
            raise Refused(400, "No IOProcessor plugin installed. This server has none", param="task")
        if task not in tasks:
            able = f"supports {', '.join(tasks)}" if tasks else "only generates text"
            raise Refused(400, f"Unsupported task: {task!r}. The model {served.name!r} {able}", param="task")
        texts, use = await texts_of(call, served, read), read["use_activation"]
        packs = read["encoding_format"] == "base64"
        rows: list[Any]
        if task == "classify":
            activation: dict[str, Any] = {} if use is None else {"activation": activation_of(use)}
            found = await model.apredict(iter(texts), details=True, **activation, **read.keywords)
            rows, tokens = list(np.asarray(found.scores).reshape(len(texts), -1)), int(found.tokens.sum())
        elif task == "token_classify":
            if use is False:
                raise Refused(400, "use_activation: false is not supported for tokens, which get probabilities", param="use_activation")
            labels = await model.alabel_tokens(texts, output="tokens", **read.keywords)
            rows, tokens = [each.probabilities for each in labels], sum(len(each.ids) for each in labels)
        else:
            output = {"output": "tokens"} if task == "token_embed" else {}
            vectors = await encoded(call, served, texts, None, {"truncate": "error", "normalize": use, **output, **read.keywords})
            rows, tokens = list(vectors.vectors), int(vectors.tokens.sum())
        call.begun = True
        if task in ("classify", "token_classify"):  # encoded() has counted the others
            call.count_texts(len(texts), tokens)
        data = [
            {"index": i, "object": "pooling", "data": packed(row) if packs else np.ascontiguousarray(row, "<f4")}
            for i, row in enumerate(rows)
        ]
        await _sent(call, served, read, "pool-", tokens, data)
