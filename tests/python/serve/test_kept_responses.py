"""Responses that the server keeps: previous_response_id, references to items, GET, DELETE and lists of items; limits, keys and folders."""

from __future__ import annotations

import asyncio
import json
import os
import sqlite3
import threading
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
from asgi import Answer, Client
from scripted_model import ScriptedModel, served
from servers import form, jsonl
from tool_templates import TEMPLATES

from pumice.serve import Settings, kept_responses, response_memory
from pumice.serve.response_memory import FILE, Kept, ResponseMemory, name_of

PATH = "/v1/responses"
NOW = {"type": "function", "name": "now", "parameters": {"type": "object", "properties": {}}}
CALL = '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'


def with_memory(
    monkeypatch: pytest.MonkeyPatch,
    work: Callable[[Client, ScriptedModel], Coroutine[Any, Any, Any]],
    answer: str = "Yes.",
    **settings: Any,
) -> Any:
    """Returns the result of work(client, model), with a server of a model that gives `answer`."""
    model = ScriptedModel(TEMPLATES["hermes"], answer)

    async def main() -> Any:
        async with served(model, monkeypatch, **settings) as client:
            return await work(client, model)

    return asyncio.run(main())


async def responded(client: Client, body: dict[str, Any], **more: Any) -> dict[str, Any]:
    """Returns the response object of an answer, whole or streamed."""
    answer = await client.post(PATH, body, **more)
    assert answer.status == 200, answer.body
    found: dict[str, Any] = answer.events[-1]["response"] if body.get("stream") else answer.json
    return found


def asked(model: ScriptedModel) -> list[tuple[str, str]]:
    """Returns (role, content) of each message of the last request."""
    return [(message["role"], message["content"]) for message in model.asked[-1]["messages"]]


# ---------------------------------------------------------------- conversations
def test_a_conversation_goes_on_without_a_new_message(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(client: Client, model: ScriptedModel) -> None:
        first = await responded(client, {"input": "a"})
        second = await responded(client, {"previous_response_id": first["id"]})
        assert asked(model) == [("user", "a"), ("assistant", "Yes.")]
        await responded(client, {"input": "b", "previous_response_id": second["id"]})
        assert asked(model) == [("user", "a"), ("assistant", "Yes.Yes."), ("user", "b")]
        items = (await client.get(f"{PATH}/{second['id']}/input_items")).json["data"]
        assert [item["role"] for item in items] == ["assistant", "user"]

    with_memory(monkeypatch, work)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("folder", [False, True])
def test_a_conversation_goes_on(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, stream: bool, folder: bool) -> None:
    """Each request continues from all before it. Instructions are those of the request alone."""

    async def work(client: Client, model: ScriptedModel) -> None:
        first = await responded(client, {"input": "a", "instructions": "Be brief.", "stream": stream})
        assert first["store"] is True and first["previous_response_id"] is None
        items = [{"role": "user", "content": [{"type": "input_text", "text": "b"}]}]
        second = await responded(client, {"input": items, "previous_response_id": first["id"], "stream": stream})
        assert second["previous_response_id"] == first["id"]
        assert asked(model) == [("user", "a"), ("assistant", "Yes."), ("user", "b")]
        body = {"input": "c", "previous_response_id": second["id"], "instructions": "Be long.", "store": False, "stream": stream}
        count = await client.post(f"{PATH}/input_tokens", {key: body[key] for key in body if key != "stream"})
        third = await responded(client, body)
        before = [("user", "a"), ("assistant", "Yes."), ("user", "b"), ("assistant", "Yes.")]
        assert asked(model) == [("system", "Be long."), *before, ("user", "c")]
        assert third["store"] is False and count.json["input_tokens"] == third["usage"]["input_tokens"]
        # another branch of the same conversation
        await responded(client, {"input": "d", "previous_response_id": first["id"], "stream": stream})
        assert asked(model) == [("user", "a"), ("assistant", "Yes."), ("user", "d")]
        for response, status in ((first, 200), (second, 200), (third, 404)):
            found = await client.get(f"{PATH}/{response['id']}")
            assert found.status == status and (status == 404 or found.json == response)

    with_memory(monkeypatch, work, **({"responses": str(tmp_path / "kept")} if folder else {}))


@pytest.mark.parametrize("stream", [False, True])
def test_calls_and_reasoning_are_kept(monkeypatch: pytest.MonkeyPatch, stream: bool) -> None:
    """A request may have only the outputs of the calls in the response before it."""

    async def work(client: Client, model: ScriptedModel) -> None:
        first = await responded(client, {"input": "a", "tools": [NOW], "stream": stream})
        [thought, call] = first["output"]
        output = {"type": "function_call_output", "call_id": call["call_id"], "output": "noon"}
        await responded(client, {"input": [output], "previous_response_id": first["id"], "tools": [NOW], "stream": stream})
        said = model.asked[-1]["messages"]
        assert [message["role"] for message in said] == ["user", "assistant", "tool"] and thought["type"] == "reasoning"
        assert said[1]["reasoning_content"] == "Time?" and said[1]["tool_calls"][0]["function"]["name"] == "now"
        assert (said[2]["name"], said[2]["content"]) == ("now", "noon")

    with_memory(monkeypatch, work, f"<think>Time?</think>{CALL}")


def test_text_that_is_no_call_is_kept_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stream has begun an item for a call that turned out to be none. Its text follows as content, and only that is continued."""
    answer = '<tool_call>\n{"name": "now", "arguments": {"a": nothing}}\n</tool_call>'

    async def work(client: Client, model: ScriptedModel) -> None:
        first = await responded(client, {"input": "a", "tools": [NOW], "stream": True})
        await responded(client, {"input": "b", "previous_response_id": first["id"], "tools": [NOW]})
        assert not any(message.get("tool_calls") for message in model.asked[-1]["messages"])
        assert [role for role, _ in asked(model)] == ["user", "assistant", "user"] and "nothing" in asked(model)[1][1]

    with_memory(monkeypatch, work, answer)


def test_references_to_items(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(client: Client, model: ScriptedModel) -> None:
        first = await responded(client, {"input": [{"role": "user", "content": "a"}]})
        given = (await client.get(f"{PATH}/{first['id']}/input_items")).json["data"]
        references = [{"type": "item_reference", "id": item["id"]} for item in (*given, first["output"][0])]
        await responded(client, {"input": [*references, {"role": "user", "content": "b"}]})
        assert asked(model) == [("user", "a"), ("assistant", "Yes."), ("user", "b")]
        for wrong in (first["output"][0]["id"][:-4] + "ffff", "msg_" + "0" * 28, "msg_../../x", "", None, 5, first["id"]):
            answer = await client.post(PATH, {"input": [{"type": "item_reference", "id": wrong}]})
            assert (answer.status, answer.error["code"], answer.error["param"]) == (404, "item_not_found", "input"), wrong

    with_memory(monkeypatch, work)


def test_items_are_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(client: Client, model: ScriptedModel) -> None:
        first = await responded(client, {"input": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b", "id": "mine"}]})
        second = await responded(client, {"input": "c", "previous_response_id": first["id"]})
        path = f"{PATH}/{second['id']}/input_items"
        every = (await client.get(f"{path}?order=asc&include[]=x")).json
        said = [(item["role"], item["content"][0]["type"], item["content"][0]["text"]) for item in every["data"]]
        part = "output_text"
        assert said == [("user", "input_text", "a"), ("assistant", part, "b"), ("assistant", part, "Yes."), ("user", "input_text", "c")]
        ids = [item["id"] for item in every["data"]]
        assert ids[1] == "mine" and len(set(ids)) == 4 and all(item["type"] == "message" for item in every["data"])
        assert (every["object"], every["first_id"], every["last_id"], every["has_more"]) == ("list", ids[0], ids[-1], False)
        assert [item["id"] for item in (await client.get(path)).json["data"]] == ids[::-1]
        page = (await client.get(f"{path}?limit=2&after={ids[-1]}")).json
        assert [item["id"] for item in page["data"]] == [ids[2], "mine"] and page["has_more"] is True
        last = (await client.get(f"{path}?limit=2&after=mine")).json
        assert [item["id"] for item in last["data"]] == [ids[0]] and last["has_more"] is False
        for query, param in (
            ("order=up", "order"),
            ("limit=0", "limit"),
            ("limit=101", "limit"),
            ("limit=x", "limit"),
            ("after=x", "after"),
        ):
            answer = await client.get(f"{path}?{query}")
            assert answer.status == 400 and answer.error["param"] == param, query
        assert (await client.get(f"{PATH}/{first['id']}?stream=true")).error["param"] == "stream"

    with_memory(monkeypatch, work)


# ---------------------------------------------------------------- what is not there
def test_a_deleted_response_ends_the_conversations_through_it(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(client: Client, model: ScriptedModel) -> None:
        first = await responded(client, {"input": "a"})
        second = await responded(client, {"input": "b", "previous_response_id": first["id"]})
        gone = await client.request("DELETE", f"{PATH}/{first['id']}")
        assert gone.json == {"id": first["id"], "object": "response", "deleted": True}
        assert (await client.request("DELETE", f"{PATH}/{first['id']}")).status == 404
        for response in (first, second):
            answer = await client.post(PATH, {"input": "c", "previous_response_id": response["id"]})
            assert answer.status == 404, answer.body
            assert answer.error == {
                "message": f"Previous response with id '{response['id']}' not found.",
                "type": "not_found_error",
                "param": "previous_response_id",
                "code": "previous_response_not_found",
            }
        assert (await client.get(f"{PATH}/{second['id']}")).status == 200

    with_memory(monkeypatch, work)


@pytest.mark.parametrize("folder", [False, True])
@pytest.mark.parametrize(
    "name", ["resp_x", "../../etc/passwd", "..%2f..%2fetc%2fpasswd", "%00", "'; DROP TABLE responses; --", "é", "x" * 5000, FILE]
)
def test_hostile_ids(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str, folder: bool) -> None:
    async def work(client: Client, model: ScriptedModel) -> list[Answer]:
        kept = await responded(client, {"input": "a"})
        found = [
            await client.request(method, f"{PATH}/{name}{more}") for method, more in (("GET", ""), ("DELETE", ""), ("GET", "/input_items"))
        ]
        found.append(await client.post(PATH, {"input": "b", "previous_response_id": name}))
        assert (await client.get(f"{PATH}/{kept['id']}")).json == kept
        return found

    settings = {"responses": str(tmp_path / "kept")} if folder else {}
    found = with_memory(monkeypatch, work, **settings)
    assert [answer.status for answer in found] == [404, 404, 404, 400 if len(name) > 256 else 404]
    assert sorted(path.name for path in tmp_path.rglob("*") if path.is_file()) == ([FILE] if folder else [])


def test_another_key_finds_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    own, other = {"authorization": "Bearer one"}, {"x-api-key": "two"}

    async def work(client: Client, model: ScriptedModel) -> None:
        while (await client.get("/ready", headers=own)).status != 200:
            await asyncio.sleep(0.01)
        first = await responded(client, {"input": "a"}, headers=own)
        [item], path = first["output"], f"{PATH}/{first['id']}"
        for method, where in (("GET", path), ("DELETE", path), ("GET", f"{path}/input_items")):
            assert (await client.request(method, where)).status == 401
            assert (await client.request(method, where, headers=other)).status == 404
        for body in ({"previous_response_id": first["id"], "input": "b"}, {"input": [{"type": "item_reference", "id": item["id"]}]}):
            assert (await client.post(PATH, body, headers=other)).status == 404
            assert (await client.post(PATH, body, headers=own)).status == 200
        # The same key in the other header is the same client.
        assert (await client.get(path, headers={"x-api-key": "one"})).json == first

    with_memory(monkeypatch, work, api_keys=("one", "two"))


# ---------------------------------------------------------------- limits
def test_the_longest_unused_responses_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """A response is used when a request continues it, and then all before it are, too."""

    async def work(client: Client, model: ScriptedModel) -> None:
        first = await responded(client, {"input": "a"})
        second = await responded(client, {"input": "b", "previous_response_id": first["id"]})
        others = [await responded(client, {"input": "x"})]
        third = await responded(client, {"input": "c", "previous_response_id": second["id"]})
        others += [await responded(client, {"input": "x"})]
        kept = [(await client.get(f"{PATH}/{each['id']}")).status == 200 for each in (first, second, third, *others)]
        assert kept == [True, True, True, False, True]

    with_memory(monkeypatch, work, max_responses=4)


def test_a_response_that_is_too_large_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(client: Client, model: ScriptedModel) -> None:
        for stream in (False, True):
            kept = await responded(client, {"input": "a", "stream": stream})
            large = await responded(client, {"input": "a" * 4000, "stream": stream})
            assert (kept["store"], large["store"]) == (True, False) and large["output"][0]["content"][0]["text"] == "Yes."
            assert (await client.get(f"{PATH}/{kept['id']}")).status == 200
            assert (await client.get(f"{PATH}/{large['id']}")).status == 404

    with_memory(monkeypatch, work, max_responses_bytes=4000)


def test_a_server_that_keeps_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(client: Client, model: ScriptedModel) -> None:
        found = await responded(client, {"input": "a", "store": True})
        assert found["store"] is False
        answer = await client.post(PATH, {"input": "b", "previous_response_id": found["id"]})
        assert answer.status == 404 and answer.error["code"] == "previous_response_not_found"
        assert "--max-responses 0" in answer.error["message"] and "whole conversation" in answer.error["message"]

    with_memory(monkeypatch, work, max_responses=0)


def test_a_conversation_counts_towards_the_bytes_of_its_request(monkeypatch: pytest.MonkeyPatch) -> None:
    """Short requests that continue a long conversation must not have the server hold many times --max-bodies."""

    async def work(client: Client, model: ScriptedModel) -> None:
        answer = await client.post(PATH, {"input": "a" * 2000})
        for _ in range(9):
            answer = await client.post(PATH, {"input": "a" * 2000, "previous_response_id": answer.json["id"]})
            if answer.status != 200:
                break
        assert answer.status == 413 and "earlier responses" in answer.error["message"], answer.body
        assert (await client.post(PATH, {"input": "b"})).status == 200  # the bytes of the other requests are free again

    with_memory(monkeypatch, work, max_body=11_000, max_bodies=11_000)


def test_an_answer_is_given_although_it_cannot_be_kept(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    def full(*_: Any) -> bool:
        raise sqlite3.OperationalError("database or disk is full")

    async def work(client: Client, model: ScriptedModel) -> None:
        monkeypatch.setattr(ResponseMemory, "keep", full)
        for stream in (False, True):
            found = await responded(client, {"input": "a", "stream": stream})
            assert found["store"] is False and found["status"] == "completed"

    with_memory(monkeypatch, work)
    assert "disk is full" in caplog.text


def test_values_that_json_can_hardly_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    """An item that is nested deep is kept or not, and half of a surrogate pair comes back, but the server never fails."""
    tool = {"type": "custom", "name": "now"}

    async def work(client: Client, model: ScriptedModel) -> None:
        for levels in (100, 300, 900):
            deep = json.loads("[" * levels + "]" * levels)
            first = await responded(client, {"input": [{"role": "user", "content": "a", "x": deep}]})
            found = await client.get(f"{PATH}/{first['id']}/input_items")
            assert (found.status, first["store"]) in ((200, True), (404, False))
            assert not first["store"] or found.json["data"][0]["x"] == deep
        half = await responded(client, {"input": "a", "tools": [tool]})
        assert half["store"] is True and half["output"][0]["input"] == "\ud83d"
        answer = await client.post(PATH, {"input": "b", "previous_response_id": half["id"]})
        assert answer.status in (200, 400), answer.body
        items = (await client.get(f"{PATH}/{half['id']}/input_items")).json["data"]
        assert [item["role"] for item in items] == ["user"]

    with_memory(monkeypatch, work, '<tool_call>\n{"name": "now", "arguments": {"input": "\\ud83d"}}\n</tool_call>')


def test_many_requests_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(client: Client, model: ScriptedModel) -> None:
        first = await responded(client, {"input": "a"})
        bodies = [{"input": str(i), "previous_response_id": first["id"], "stream": i % 2 == 0} for i in range(20)]
        found = await asyncio.gather(*(responded(client, body) for body in bodies))
        assert len({response["id"] for response in found}) == 20
        for body, response in zip(bodies, found, strict=True):
            items = (await client.get(f"{PATH}/{response['id']}/input_items?order=asc")).json["data"]
            assert [item["content"][0]["text"] for item in items] == ["a", "Yes.", body["input"]]
            assert (await client.request("DELETE", f"{PATH}/{response['id']}")).status == 200
        assert (await client.get(f"{PATH}/{first['id']}")).json == first

    with_memory(monkeypatch, work)


# ---------------------------------------------------------------- the database
def kept(memory: ResponseMemory, name: bytes, size: int = 12, previous: bytes | None = None) -> bool:
    """Has a response of some bytes kept."""
    return memory.keep(name, b"r" * (size - 2), Kept(0, b"[]"), previous)


@pytest.mark.parametrize("folder", [False, True])
def test_the_limits_of_the_database(tmp_path: Path, folder: bool) -> None:
    memory = ResponseMemory(str(tmp_path) if folder else None, most=5, most_bytes=100)
    names = [name_of(b"", str(i)) for i in range(20)]
    for name in names:
        assert kept(memory, name)
    assert [memory.read([name]) is not None for name in names] == [False] * 15 + [True] * 5
    assert kept(memory, names[0], 72)  # so that two others of 12 remain
    assert [name for name in names if memory.read([name])] == [names[0], *names[18:]]
    assert not kept(memory, names[1], 101) and memory.read([names[1]]) is None
    assert kept(memory, names[0], 3) and memory.response(names[0]) == b"r"  # replaced
    assert memory.delete(names[0]) and not memory.delete(names[0])
    counts = [memory._database.execute(f"SELECT count(*) FROM {table}").fetchone()[0] for table in ("responses", "contents")]
    assert counts == [2, 2]  # nothing of a response stays that was forgotten or deleted
    memory.close()


def test_a_circle_in_a_damaged_database_ends() -> None:
    memory = ResponseMemory(None, 10, 1000)
    a, b = name_of(b"", "a"), name_of(b"", "b")
    kept(memory, a, previous=b)
    kept(memory, b, previous=a)
    assert memory.chain(a) is None
    memory.close()


def test_a_folder_is_shared_and_private(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "b"
    mask = os.umask(0)
    try:
        memories = [ResponseMemory(str(folder), 1000, 1 << 20) for _ in range(2)]
        kept(memories[0], name_of(b"", "0"))
        assert memories[1].response(name_of(b"", "0")) == b"r" * 10
        assert {oct(path.stat().st_mode & 0o777) for path in folder.iterdir()} == {"0o600"}
        assert oct(folder.stat().st_mode & 0o777) == "0o700"
    finally:
        os.umask(mask)
    failures: list[BaseException] = []

    def work(number: int) -> None:
        try:
            memory, last = memories[number % 2], None
            for i in range(25):
                name = name_of(b"", f"{number}.{i}")
                assert kept(memory, name, previous=last)
                chain = memories[i % 2].chain(name)
                assert chain is not None and len(chain) == i + 1
                last = name
            assert memory.delete(last) and memory.chain(last) is None
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    for memory in memories:
        memory.close()
    again = ResponseMemory(str(folder), 1000, 1 << 20)  # after a restart
    assert again.chain(name_of(b"", "3.23")) is not None
    again.close()


def test_responses_of_batches_are_those_of_their_key(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    async def work(client: Client, model: ScriptedModel) -> None:
        keys = [{"authorization": f"Bearer {key}"} for key in ("one", "two")]

        async def answer(key: int, **body: Any) -> tuple[int, Any]:
            """Returns status and body of the answer to a batch of one line."""
            content, kind = form(jsonl({"custom_id": "a", "url": PATH, "body": body}), {"purpose": "batch"})
            file = (await client.post("/v1/files", content, headers={**keys[key], **kind})).json["id"]
            asks = {"input_file_id": file, "endpoint": PATH, "completion_window": "24h"}
            batch = (await client.post("/v1/batches", asks, headers=keys[key])).json
            while batch["status"] != "completed":
                await asyncio.sleep(0.005)
                batch = (await client.get(f"/v1/batches/{batch['id']}", headers=keys[key])).json
            name = batch["output_file_id"] or batch["error_file_id"]
            found = (await client.get(f"/v1/files/{name}/content", headers=keys[key])).json["response"]
            return found["status_code"], found["body"]

        status, first = await answer(0, input="secret", store=True)
        assert (status, first["store"]) == (200, True)
        assert [(await client.get(f"{PATH}/{first['id']}", headers=key)).status for key in keys] == [200, 404]
        for more in ({"previous_response_id": first["id"]}, {"input": [{"type": "item_reference", "id": f"msg_{first['id'][5:]}i0000"}]}):
            assert [(await answer(key, **more))[0] for key in (0, 1)] == [200, 404]

    with_memory(monkeypatch, work, files=str(tmp_path), api_keys=("one", "two"))


def test_a_database_that_another_program_locks(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    async def work(client: Client, model: ScriptedModel) -> None:
        first = await responded(client, {"input": "a"})
        other = sqlite3.connect(tmp_path / FILE, isolation_level=None)
        other.execute("BEGIN EXCLUSIVE")
        answer = await client.post(PATH, {"input": "b", "previous_response_id": first["id"]})
        assert (answer.status, answer.error["code"], "retry-after" in answer.headers) == (503, "responses_unavailable", True)
        assert "is locked" in answer.error["message"]
        assert (await client.request("DELETE", f"{PATH}/{first['id']}")).status == 503
        assert (await responded(client, {"input": "b"}))["store"] is False
        other.execute("ROLLBACK")
        other.close()
        await responded(client, {"input": "b", "previous_response_id": first["id"]})

    monkeypatch.setattr(response_memory, "BUSY_SECONDS", 0.01)
    with_memory(monkeypatch, work, responses=str(tmp_path))


def test_folders_that_cannot_be_used(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged" / FILE).write_bytes(b"no database" * 100)
    for name in ("file", "damaged"):
        with pytest.raises(OSError, match=f"the responses in .*{name} cannot be kept"):
            ResponseMemory(str(tmp_path / name), 10, 1000)
    for wrong in ("", "a\0b", 5):
        with pytest.raises(ValueError, match="responses must be the path of a folder"):
            Settings(responses=wrong)  # type: ignore[arg-type]


def test_ids_of_items_have_the_id_of_their_response() -> None:
    found = [kept_responses.item_id("resp_" + "ab" * 12, "msg", 7, given) for given in (False, True)]
    assert found == ["msg_abababababababababababab0007", "msg_ababababababababababababi0007"]


def test_a_database_that_is_a_link_is_refused(tmp_path: Path) -> None:
    """The rights of the file to which it leads must not change."""
    other = tmp_path / "other"
    other.write_text("")
    other.chmod(0o644)
    folder = tmp_path / "kept"
    folder.mkdir()
    (folder / "responses.sqlite").symlink_to(other)
    with pytest.raises(OSError, match="responses.sqlite in it is not a plain file"):
        ResponseMemory(str(folder), 1, 1 << 20)
    assert other.stat().st_mode & 0o777 == 0o644
