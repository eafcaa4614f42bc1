"""What /v1/responses remembers: previous_response_id, references to items, and the paths that give, list and delete responses.
response_memory.py stores them."""

from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import parse_qsl

import orjson

from ..common.arguments import shown
from .calls import Call, dumped, logger
from .failures import Refused
from .fields import Read
from .response_memory import Kept, ResponseMemory, name_of

# An item's id is its kind, the id of its response without "resp_", "i" for an item of the request, and its place. So the response of an
# item is found without an index of all items.
_ITEM_ID = re.compile(r"[a-z]{2,4}_([0-9a-f]{24})i?[0-9a-f]{4,8}")
# Type of an item -> its kind, which begins its id.
_KINDS = {
    "message": "msg", "reasoning": "rs", "function_call": "fc", "function_call_output": "fco", "custom_tool_call": "ctc",
    "custom_tool_call_output": "ctco",
}  # fmt: skip
_MOST_LISTED = 100


@dataclass(frozen=True)
class Remembered:
    """What the server remembers for a request, and where it stores the response. stores: whether the response is to be stored. previous:
    the id of the response before, or None. history: the items of the conversation before the request. own: the field `input`, with items in
    place of references to them."""

    memory: ResponseMemory
    owner: bytes
    stores: bool
    previous: str | None
    history: list[dict[str, Any]]
    own: Any

    def keep(self, response: dict[str, Any], output: list[dict[str, Any]]) -> dict[str, Any]:
        """Stores a response that has ended, if the request wants it. Returns the response, whose entry `store` is false if it is not
        stored. May wait for a disk, so that it must run in a thread. output: the items of the answer that later requests continue."""
        if not self.stores:
            return response
        given = [{"role": "user", "content": self.own}] if isinstance(self.own, str) else self.own
        items = [*(_stored(item, response["id"], place) for place, item in enumerate(given)), *output]
        previous = None if self.previous is None else name_of(self.owner, self.previous)
        try:
            if self.memory.keep(name_of(self.owner, response["id"]), dumped(response), Kept(len(given), dumped(items)), previous):
                return response
            logger.info("%s is not kept, because it is larger than --max-responses-bytes", response["id"])
        # For example, the disk is full, or an item is nested too deep to be written as JSON. The answer itself is whole.
        except (sqlite3.Error, ValueError) as error:
            logger.error("%s could not be kept: %s", response["id"], error)
        return {**response, "store": False}


def item_id(response_id: str, kind: str, place: int, given: bool = False) -> str:
    """Returns the id of an item. kind: such as "msg". place: its index among the items of the answer or, if `given`, of the request."""
    return f"{kind}_{response_id.partition('_')[2]}{'i' if given else ''}{place:04x}"


def _stored(item: dict[str, Any], response_id: str, place: int) -> dict[str, Any]:
    """Returns an item of a request as it is stored: with a type and an id, and with a text as a list of parts."""
    kind = item.get("type", "message")
    item = {**item, "type": kind, "id": item.get("id") or item_id(response_id, _KINDS.get(kind, "item"), place, given=True)}
    if kind == "message" and isinstance(item.get("content"), str):
        part = "output_text" if item.get("role") == "assistant" else "input_text"
        item["content"] = [{"type": part, "text": item["content"]}]
    return item


def _items(kept: Kept) -> list[dict[str, Any]]:
    try:
        found: list[dict[str, Any]] = orjson.loads(kept.items)
    except orjson.JSONDecodeError:  # half of a surrogate pair, which dumped() writes and orjson does not read
        found = json.loads(kept.items)
    return found


# ---------------------------------------------------------------- before an answer
async def remembered(call: Call, read: Read) -> Read:
    """Adds what the server remembers to a checked body of /v1/responses. Raises Refused (404) if it does not remember a response or an
    item, or that is another client's."""
    memory, previous = call.server.memory, read["previous_response_id"]
    own = read.get("input", "" if previous is None else [])  # a conversation that goes on needs no new message
    history: list[dict[str, Any]] = []
    if previous is not None:
        for kept in await _chain(call, previous, "previous_response_id", "Previous response"):
            history += await call.server.aside(_items, kept)
    if isinstance(own, list) and any(item.get("type") == "item_reference" for item in own):
        own = [await _referred(call, item, i) if item.get("type") == "item_reference" else item for i, item in enumerate(own)]
    stores = bool(memory.most and read.get("store", True))
    return replace(read, memory=Remembered(memory, call.owner, stores, previous, history, own))


def _missing(call: Call, what: str, response_id: Any, param: str | None, code: str) -> Refused:
    """Returns the error for something that is not kept. Its words and its code are OpenAI's, by which clients know it."""
    why = "" if call.server.memory.most else (
        " This server keeps no responses, because of --max-responses 0, or of --workers without --responses; send the whole conversation"
        " as input."
    )  # fmt: skip
    return Refused(404, f"{what} with id {shown(response_id, 100)} not found.{why}", param=param, code=code)


async def _chain(call: Call, response_id: str, param: str | None, what: str) -> list[Kept]:
    """Returns a response and all before it, the first one first, and counts their bytes as those of the request. Raises Refused (404) if
    one of them is not there."""
    memory, code = call.server.memory, "previous_response_not_found" if param else "response_not_found"
    chain = await call.server.aside(memory.chain, name_of(call.owner, response_id))
    if chain is not None:
        call.hold(sum(size for _, size in chain))
        if (found := await call.server.aside(memory.read, [name for name, _ in chain])) is not None:
            return found
    raise _missing(call, what, response_id, param, code)


async def _referred(call: Call, item: dict[str, Any], index: int) -> dict[str, Any]:
    """Returns the item to which input[index] refers."""
    given = item.get("id")
    found = _ITEM_ID.fullmatch(given) if isinstance(given, str) else None
    kept = None if found is None else await call.server.aside(call.server.memory.read, [name_of(call.owner, f"resp_{found[1]}")])
    if kept is not None:
        call.hold(len(kept[0].items))
        for each in await call.server.aside(_items, kept[0]):
            if each["id"] == given:
                return dict(each)
    raise _missing(call, f"input[{index}]: Item", given, "input", "item_not_found")


# ---------------------------------------------------------------- afterwards
def _id_of(call: Call) -> str:
    return str(call.scope["path_params"]["name"])


async def response(call: Call) -> None:
    """Gives a response that is kept."""
    if _query(call).get("stream", "false").lower() not in ("false", "0"):
        raise Refused(400, "stream: a response that is kept comes whole", param="stream")
    if (found := await call.server.aside(call.server.memory.response, name_of(call.owner, _id_of(call)))) is None:
        raise _missing(call, "Response", _id_of(call), None, "response_not_found")
    await call.send(found, kind="application/json")


async def delete(call: Call) -> None:
    """Deletes a response that is kept."""
    if not await call.server.aside(call.server.memory.delete, name_of(call.owner, _id_of(call))):
        raise _missing(call, "Response", _id_of(call), None, "response_not_found")
    await call.answer_small({"id": _id_of(call), "object": "response", "deleted": True})


async def input_items(call: Call) -> None:
    """Lists the items of the conversation that a response answers, those before previous_response_id included."""
    query = _query(call)
    order, limit, after = query.get("order", "desc"), query.get("limit", "20"), query.get("after")
    if order not in ("asc", "desc"):
        raise Refused(400, f"order must be 'asc' or 'desc', not {shown(order, 80)}", param="order")
    if not re.fullmatch(r"\d{1,3}", limit, re.ASCII) or not 1 <= int(limit) <= _MOST_LISTED:
        raise Refused(400, f"limit must be a whole number from 1 to {_MOST_LISTED}, not {shown(limit, 80)}", param="limit")
    chain = await _chain(call, _id_of(call), None, "Response")
    await call.answer_made(lambda: _listed(chain, order == "desc", int(limit), after))


def _listed(chain: Sequence[Kept], backwards: bool, limit: int, after: str | None) -> dict[str, Any]:
    items = [item for kept in chain[:-1] for item in _items(kept)] + _items(chain[-1])[: chain[-1].inputs]
    if backwards:
        items.reverse()
    first = 0
    if after is not None:
        place = next((i for i, item in enumerate(items) if item["id"] == after), None)
        if place is None:
            raise Refused(400, f"after: the response has no item with the id {shown(after, 100)}", param="after")
        first = place + 1
    data = items[first : first + limit]
    ids = {"first_id": data[0]["id"], "last_id": data[-1]["id"]} if data else {"first_id": None, "last_id": None}
    return {"object": "list", "data": data, **ids, "has_more": first + limit < len(items)}


def _query(call: Call) -> dict[str, str]:
    query: bytes = call.scope["query_string"]
    return dict(parse_qsl(query.decode("latin-1")))
