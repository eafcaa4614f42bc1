"""Log-probabilities of a prompt's tokens in vLLM's form, and the limit of their number."""

from __future__ import annotations

from typing import Any

from ..model.model import Model
from .calls import Call
from .failures import Refused
from .fields import Field
from .settings import Settings

LEAST = -9999.0  # what -inf is in an answer, because JSON has no infinity
PROMPT_LOGPROBS = Field(
    "prompt_logprobs",
    {"type": "integer", "minimum": 0, "maximum": 20},
    "The log-probabilities of the prompt's tokens, and of so many likeliest ones, in vLLM's form.",
)


def token_text(data: bytes) -> str:
    """Returns a token's text in this endpoint's form. For a part of a character, this is OpenAI's spelling of its bytes, such as
    "bytes:\\xf0\\x9f", so that different parts have different texts."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return "bytes:" + data.decode("utf-8", "backslashreplace")


def token_names(model: Model, ids: Any, as_ids: bool) -> list[str]:
    """Returns how log-probabilities name tokens: their texts, or with `as_ids` "token_id:123", as vLLM has it."""
    return [f"token_id:{i}" for i in ids] if as_ids else [token_text(token) for token in model.token_bytes(ids)]


def check_count(echoed: int, new: int, top: int, settings: Settings, field: str) -> None:
    """Raises Refused (400) if an answer could have more log-probabilities than fit into the server's memory. echoed: number of tokens of
    the prompts that are echoed. new: maximum number of generated tokens. field: the field that asks for them."""
    most, count = settings.max_logprobs, (echoed + new) * (top + 1)
    if count > most:
        raise Refused(
            400,
            f"{field}: {echoed} tokens of echoed prompts and up to {new} new ones, with the log-probabilities of {top} likeliest tokens "
            f"beside their own, make {count} log-probabilities; at most {most} are given at once. Send fewer prompts in a request, or ask "
            f"for fewer likeliest tokens, fewer answers or a smaller max_tokens",
            param=field,
        )


async def prompt_logprobs(call: Call, model: Model, ids: Any, top: int) -> list[Any]:
    """Returns the log-probabilities of a prompt's tokens: for each token a dict, token id -> log-probability, rank and text. The first
    token has none. The rank of a token that is not among the likeliest ones is not known, and null. top: number of likeliest tokens."""
    scores = await model.ascore(ids, top=top or None)
    return await call.server.aside(_entries, model, ids, scores, top)


def _entries(model: Model, ids: Any, scores: Any, top: int) -> list[Any]:
    chances = scores.logprobs if top else scores
    likeliest = list(zip(scores.top_ids.tolist(), scores.top_logprobs.tolist(), strict=True)) if top else [([], [])] * len(chances)
    found: list[Any] = [None]
    for token, own, (others, theirs) in zip(ids[1:].tolist(), chances.tolist(), likeliest, strict=True):
        entries: dict[int, tuple[float, int | None]] = {token: (own, None)}
        entries |= {other: (chance, rank) for rank, (other, chance) in enumerate(zip(others, theirs, strict=True), 1)}
        texts = model.token_bytes(list(entries))
        found.append(
            {
                str(other): {"logprob": max(chance, LEAST), "rank": rank, "decoded_token": token_text(text)}
                for (other, (chance, rank)), text in zip(entries.items(), texts, strict=True)
            }
        )
    return found
