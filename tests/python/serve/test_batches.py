"""Files and batches, as openai-python sends them (tests/clients calls that package itself), against a server of real models."""

from __future__ import annotations

import asyncio
import gc
import json
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from asgi import Answer, Client, running
from patience import PATIENCE, wait_until
from servers import form, jsonl, reply_of, request_bytes, serving

import pumice
from pumice.serve import app
from pumice.serve import files as files_module
from pumice.serve.calls import Endpoint

HELLO = [{"role": "user", "content": "Hello"}]
CHAT, EMBED = "/v1/chat/completions", "/v1/embeddings"


def line(custom_id: Any, url: str = EMBED, **body: Any) -> dict[str, Any]:
    return {"custom_id": custom_id, "method": "POST", "url": url, "body": {"model": "m", **body}}


async def uploaded(client: Client, content: bytes | None, fields: Mapping[str, str] | None = None) -> Answer:
    body, headers = form(content, {"purpose": "batch"} if fields is None else fields)
    return await client.post("/v1/files", body, headers=headers)


async def made(client: Client, *lines: Any, endpoint: str = EMBED) -> dict[str, Any]:
    """Makes a batch of these lines."""
    file = (await uploaded(client, jsonl(*lines))).json
    answer = await client.post("/v1/batches", {"input_file_id": file["id"], "endpoint": endpoint, "completion_window": "24h"})
    assert answer.status == 200, answer.body
    return answer.json  # type: ignore[no-any-return]


async def over(client: Client, batch: dict[str, Any]) -> dict[str, Any]:
    """Waits for the end of a batch."""
    while (now := (await client.get(f"/v1/batches/{batch['id']}")).json)["status"] in (
        "validating",
        "in_progress",
        "finalizing",
        "cancelling",
    ):
        await asyncio.sleep(0.01)
    return now  # type: ignore[no-any-return]


async def answers(client: Client, name: str) -> dict[Any, Any]:
    content = await client.get(f"/v1/files/{name}/content")
    assert content.status == 200
    return {each["custom_id"]: each for each in map(json.loads, content.body.splitlines())}


@pytest.fixture(name="serve")
def _serve(minilm: pumice.Model, tmp_path: Path) -> Iterator[Callable[..., Any]]:
    def run(work: Callable[[Client], Awaitable[Any]], model: Any = minilm, **settings: Any) -> Any:
        async def main() -> Any:
            async with running(app({"m": model}, **{"files": str(tmp_path / "files"), **settings})) as client:
                return await work(client)

        return asyncio.run(main())

    return run


def test_files(serve: Any) -> None:
    async def work(client: Client) -> None:
        content = jsonl(line("a", input="x"), b"\xff\r\n--x-2\r\n")
        first = (await uploaded(client, content)).json
        assert first == {
            "id": first["id"],
            "object": "file",
            "bytes": len(content),
            "created_at": first["created_at"],
            "filename": "in.jsonl",
            "purpose": "batch",
            "status": "processed",
        }
        second = (await uploaded(client, b"")).json
        assert (await client.get(f"/files/{first['id']}")).json == first
        answer = await client.get(f"/v1/files/{first['id']}/content")
        assert (answer.body, answer.headers["content-length"]) == (content, str(len(content)))
        assert (await client.get(f"/v1/files/{second['id']}/content")).body == b""
        listed = (await client.get("/v1/files")).json
        assert [each["id"] for each in listed["data"]] == [second["id"], first["id"]]
        assert (listed["object"], listed["has_more"], listed["first_id"]) == ("list", False, second["id"])
        page = (await client.get("/v1/files?limit=1&order=asc&purpose=batch")).json
        assert ([each["id"] for each in page["data"]], page["has_more"]) == ([first["id"]], True)
        page = (await client.get(f"/v1/files?order=asc&after={first['id']}")).json
        assert ([each["id"] for each in page["data"]], page["has_more"]) == ([second["id"]], False)
        assert (await client.get("/v1/files?purpose=batch_output")).json["data"] == []
        assert (await client.request("DELETE", f"/v1/files/{first['id']}")).json == {"id": first["id"], "object": "file", "deleted": True}
        assert (await client.get(f"/v1/files/{first['id']}")).status == 404
        assert (await client.get("/v1/files")).json["data"] == [second]

    serve(work)


def test_bad_uploads(serve: Any, tmp_path: Path) -> None:
    body, headers = form(b"{}\n", {"purpose": "batch"})
    twice = body.removesuffix(b"--x-1--\r\n") + form(b"{}", {})[0]
    table: list[tuple[bytes, dict[str, str], int, str]] = [
        (body, {}, 400, "multipart/form-data"),
        (body, {"content-type": "application/json"}, 400, "multipart/form-data"),
        (body, {"content-type": "multipart/form-data"}, 400, "multipart/form-data"),
        (b"hello", headers, 400, "is not multipart/form-data"),
        (b"", headers, 400, "ends before the boundary"),
        (body[:-9], headers, 400, "ends before the boundary"),
        (body[:-5], headers, 400, "ends before the boundary"),
        (form(b"{}", {"purpose": "batch"})[0][:9], headers, 400, "ends before the boundary"),
        (form(None, {"purpose": "batch"})[0].removesuffix(b"--x-1--\r\n") * 2, headers, 400, "two parts 'purpose'"),
        (b"--x-1\r\nContent-Disposition: form-data; name=other\r\n\r\n", headers, 400, "unknown field 'other'"),
        (twice, headers, 400, "two parts 'file'"),
        (form(None, {"purpose": "batch"})[0], headers, 400, "'file' is missing"),
        (form(b"{}", {})[0], headers, 400, "purpose must be 'batch', not ''"),
        (form(b"{}", {"purpose": "fine-tune"})[0], headers, 400, "not 'fine-tune'"),
        (form(b"{}", {"purpose": "batch", "color": "red"})[0], headers, 400, "unknown field 'color'"),
        (form(b"{}", {"purpose": "batch", "": "red"})[0], headers, 400, "has no name"),
        (form(b"{}", {"purpose": "x" * 70_000})[0], headers, 413, "beside the file"),
        (form(b"x" * 1001, {"purpose": "batch"})[0], headers, 413, "the file has 1001 bytes, and a file may have 1000"),
        (form(b"x" * 200_000, {"purpose": "batch"})[0], headers, 413, "larger than"),
        (b"--x-1\r\n" + b"A: b\r\n" * 50 + b"\r\n", headers, 400, "is not multipart/form-data"),
        (b"--x-1\r\nA: " + b"b" * 9000, headers, 400, "is not multipart/form-data"),
    ]

    async def work(client: Client) -> None:
        for data, given, status, message in table:
            answer = await client.post("/v1/files", data, headers=given)
            assert (answer.status, message in answer.error["message"]) == (status, True), (data[:80], answer.body)
        assert (await client.get("/v1/files")).json["data"] == []
        assert [path for folder in ("uploads", "files") for path in (tmp_path / "files" / folder).iterdir()] == []

    async def full(client: Client) -> None:
        assert (await uploaded(client, b"x" * 1000)).status == 200
        assert (await uploaded(client, b"x" * 600)).error["code"] == "storage_full"
        assert (await uploaded(client, b"x" * 100)).status == 200

    serve(work, max_file=1000)
    serve(full, max_files=1900)


def test_an_upload_that_does_not_arrive(minilm: pumice.Model, tmp_path: Path) -> None:
    body, headers = form(b"{}\n", {"purpose": "batch"})
    with serving({"m": minilm}, files=str(tmp_path / "files"), body_seconds=0.1) as here:
        half = request_bytes("POST", "/v1/files", body, headers)[:-20]
        reply = reply_of(here.raw(half))
        assert (reply.status, "no byte of the body arrived" in reply.error["message"]) == (408, True)
        with here.connect() as connection:  # a client that leaves
            connection.sendall(half)
        wait_until(lambda: not here.served.calls)
    assert [*(tmp_path / "files" / "uploads").iterdir()] == []


def test_a_batch(serve: Any) -> None:
    async def work(client: Client) -> None:
        lines = [line("a", input="x"), line("b", input=3), b"{bad", line("c", CHAT, messages=HELLO), line("d", input="y", dimensions=2)]
        batch = await made(client, *lines)
        assert (batch["object"], batch["status"], batch["endpoint"], batch["completion_window"]) == ("batch", "validating", EMBED, "24h")
        assert set(batch) == set(await over(client, batch))
        batch = await over(client, batch)
        assert batch["status"] == "completed"
        assert batch["request_counts"] == {"total": 5, "completed": 2, "failed": 3}
        assert batch["created_at"] <= batch["in_progress_at"] <= batch["finalizing_at"] <= batch["completed_at"]
        output, errors = await answers(client, batch["output_file_id"]), await answers(client, batch["error_file_id"])
        assert set(output) == {"a", "d"}
        expected = (await client.post(EMBED, {"model": "m", "input": "x"})).json
        assert output["a"]["response"]["body"]["data"] == expected["data"]
        assert errors["b"]["response"]["status_code"] == 400
        assert errors["c"]["error"]["code"] == "mismatched_url"
        assert errors[None]["error"]["code"] == "invalid_json_line"
        assert (await client.get(f"/v1/files/{batch['output_file_id']}")).json["purpose"] == "batch_output"
        assert [each["id"] for each in (await client.get("/v1/batches")).json["data"]] == [batch["id"]]
        answer = await client.post(f"/v1/batches/{batch['id']}/cancel", None)
        assert (answer.status, answer.error["code"]) == (409, "batch_over")
        assert (await client.request("DELETE", f"/v1/files/{batch['input_file_id']}")).status == 200

    serve(work)


def test_an_empty_batch_has_no_files(serve: Any) -> None:
    async def work(client: Client) -> None:
        batch = await over(client, await made(client, b"", b"  "))
        assert (batch["status"], batch["output_file_id"], batch["error_file_id"]) == ("completed", None, None)
        assert batch["request_counts"] == {"total": 0, "completed": 0, "failed": 0}

    serve(work)


def test_bad_batches(serve: Any) -> None:
    async def work(client: Client) -> None:
        file = (await uploaded(client, jsonl(line("a", input="x")))).json["id"]
        good = {"input_file_id": file, "endpoint": EMBED, "completion_window": "24h"}
        for change, message in [
            ({"input_file_id": "file-none"}, "there is no file 'file-none'"),
            ({"input_file_id": "../lock"}, "there is no file"),
            ({"input_file_id": None}, "'input_file_id' is missing"),
            ({"endpoint": "/v1/batches"}, "endpoint must be one of"),
            ({"endpoint": "/v1/models"}, "endpoint must be one of"),
            ({"completion_window": "1h"}, "'24h'"),
            ({"window": "1h"}, "unknown field 'window'"),
            ({"metadata": {str(i): "" for i in range(17)}}, "at most 16"),
            ({"metadata": {"a": ["x" * 20_000]}}, "more than 16384 bytes"),
            ({"output_expires_after": {"seconds": 3600}}, "is not supported"),
        ]:
            answer = await client.post("/v1/batches", {**good, **change})
            assert (answer.status, message in answer.error["message"]) == (400, True), answer.body
        batch = await over(client, (await client.post("/batches", {**good, "metadata": {"a": "b"}})).json)
        assert batch["metadata"] == {"a": "b"}
        answer = await client.post("/v1/batches", {**good, "input_file_id": batch["output_file_id"]})
        assert "no input" in answer.error["message"]
        for method, path in (("GET", "/v1/batches/batch_no"), ("POST", "/v1/batches/..%2Flock/cancel"), ("GET", "/v1/files/lock/content")):
            assert (await client.request(method, path)).status == 404
        for query in ("limit=0", "limit=x", "limit=101", "limit=99999999999999999999", "order=up"):
            assert (await client.get(f"/v1/batches?{query}")).status == 400
        assert (await client.get("/v1/batches?after=batch_no")).status == 404

    serve(work)


def test_without_a_folder_there_are_no_files(serve: Any) -> None:
    async def work(client: Client) -> None:
        for method, path in (
            ("POST", "/v1/files"),
            ("GET", "/v1/files"),
            ("GET", "/v1/files/x/content"),
            ("POST", "/v1/batches"),
            ("GET", "/v1/batches"),
        ):
            answer = await client.request(method, path, {} if method == "POST" else None)
            assert (answer.status, answer.error["code"]) == (404, "no_files")
            assert "pumice serve --files FOLDER" in answer.error["message"]

    serve(work, files=None)


class _Gate:
    """Holds the requests of lines until it is opened."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, free: int) -> None:
        from pumice.serve.in_process import InProcess

        real = InProcess.__call__
        self.bodies: list[Any] = []
        self.free = free

        async def held(this: Any, request: Any) -> Any:
            self.bodies.append(json.loads(request.body))
            self.free -= 1
            while self.free < 0:
                await asyncio.sleep(0.01)
            return await real(this, request)

        monkeypatch.setattr(InProcess, "__call__", held)


async def until(check: Callable[[], Coroutine[Any, Any, bool]]) -> None:
    while not await check():
        await asyncio.sleep(0.01)


def test_a_batch_goes_on_after_a_restart(serve: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [line(f"{i}", input=f"text {i}") for i in range(20)]

    async def first(client: Client) -> dict[str, Any]:
        batch, later = await made(client, *lines), await made(client, line("later", input="x"))

        async def some() -> bool:
            counts = (await client.get(f"/v1/batches/{batch['id']}")).json["request_counts"]
            return bool(counts["completed"] == 7)

        await until(some)
        listed = (await client.get("/v1/batches")).json["data"]
        assert [(each["id"], each["status"]) for each in listed] == [(later["id"], "validating"), (batch["id"], "in_progress")]
        return batch

    async def second(client: Client) -> None:
        now = await over(client, batch)
        assert (now["status"], now["request_counts"]) == ("completed", {"total": 20, "completed": 20, "failed": 0})
        found = (await client.get(f"/v1/files/{now['output_file_id']}/content")).body.splitlines()
        assert len(found) == 20
        assert {json.loads(each)["custom_id"] for each in found} == {f"{i}" for i in range(20)}
        (later,) = [each for each in (await client.get("/v1/batches")).json["data"] if each["id"] != batch["id"]]
        assert (await over(client, later))["status"] == "completed"

    gate = _Gate(monkeypatch, 7)
    batch = serve(first, batch_lines=4)
    assert len(gate.bodies) <= 7 + 4
    gate.free = 1 << 20
    serve(second)
    assert len(gate.bodies) <= 20 + 4 + 1  # the lines that were at work were asked again


def test_a_server_that_stops_does_not_wait_for_batches(minilm: pumice.Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = _Gate(monkeypatch, 0)
    with serving({"m": minilm}, files=str(tmp_path / "files"), grace=1e6) as here:
        body, headers = form(jsonl(line("a", input="x")), {"purpose": "batch"})
        file = here.post("/v1/files", body, headers).json["id"]
        batch = here.post("/v1/batches", {"input_file_id": file, "endpoint": EMBED, "completion_window": "24h"}).json["id"]
        wait_until(lambda: len(gate.bodies) == 1)
    assert json.loads((tmp_path / "files" / "batches" / f"{batch}.json").read_bytes())["status"] == "in_progress"


def test_a_batch_that_is_cancelled_keeps_its_answers(serve: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = _Gate(monkeypatch, 2)

    async def work(client: Client) -> None:
        batch, waiting = await made(client, *(line(f"{i}", input="x") for i in range(9))), await made(client, line("w", input="x"))

        async def some() -> bool:
            return bool((await client.get(f"/v1/batches/{batch['id']}")).json["request_counts"]["completed"] == 2)

        await until(some)
        answer = await client.request("DELETE", f"/v1/files/{batch['input_file_id']}")
        assert (answer.status, answer.error["code"]) == (400, "file_in_use")
        assert (await client.post(f"/v1/batches/{waiting['id']}/cancel", None)).json["status"] == "cancelling"
        assert (await client.post(f"/v1/batches/{batch['id']}/cancel", None)).json["status"] == "cancelling"
        now = await over(client, batch)
        assert (now["status"], now["request_counts"]["completed"]) == ("cancelled", 2)
        assert len(await answers(client, now["output_file_id"])) == 2
        now = await over(client, waiting)
        assert (now["status"], now["output_file_id"]) == ("cancelled", None)
        gate.free = 9
        assert (await over(client, await made(client, line("more", input="x"))))["status"] == "completed"

    serve(work)


def test_lines_have_the_lowest_priority_and_a_seed(serve: Any, smollm2: pumice.Model, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = _Gate(monkeypatch, 9)

    async def work(client: Client) -> None:
        lines = [line("a", CHAT, messages=HELLO, max_tokens=3), line("b", CHAT, messages=HELLO, max_tokens=3, priority=5, seed=1)]
        batch = await over(client, await made(client, *lines, endpoint=CHAT))
        assert batch["request_counts"] == {"total": 2, "completed": 2, "failed": 0}

    serve(work, smollm2)
    assert {body.pop("store") for body in gate.bodies} == {False}
    a, b = sorted(gate.bodies, key=lambda body: body["priority"])
    assert (a["priority"], b["priority"], b["seed"]) == (-1000, 5, 1)
    assert a["seed"] > 1


def test_a_batch_whose_file_is_gone_fails_and_the_next_goes_on(serve: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = _Gate(monkeypatch, 0)

    async def first(client: Client) -> tuple[Any, Any]:
        made_batches = await made(client, line("a", input="x")), await made(client, line("b", input="x"))
        (tmp_path / "files" / "files" / made_batches[0]["input_file_id"]).unlink(missing_ok=True)
        return made_batches

    async def second(client: Client) -> None:
        now = await over(client, gone)
        assert (now["status"], now["errors"]["data"][0]["code"]) == ("failed", "FileNotFoundError")
        assert (await over(client, good))["status"] == "completed"

    gone, good = serve(first)
    gate.free = 9
    serve(second)


def test_a_file_is_not_deleted_while_a_batch_begins(serve: Any) -> None:
    async def work(client: Client) -> None:
        for _ in range(3):
            file = (await uploaded(client, jsonl(line("a", input="x")))).json["id"]
            body = {"input_file_id": file, "endpoint": EMBED, "completion_window": "24h"}
            made_, deleted = await asyncio.gather(client.post("/v1/batches", body), client.request("DELETE", f"/v1/files/{file}"))
            assert (made_.status, deleted.status) in ((200, 400), (400, 200))
            if made_.status == 200:
                assert (await over(client, made_.json))["status"] == "completed"

    serve(work)


def test_lines_that_fail_while_a_batch_is_cancelled_leave_no_error_in_the_log() -> None:
    begun = []

    async def handler(_: Any) -> None:
        begun.append(True)
        try:
            await asyncio.sleep(PATIENCE)
        except asyncio.CancelledError:
            raise ValueError("too late") from None

    async def main() -> None:
        told: list[Any] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context))
        path: Any = SimpleNamespace(path="/x", handler=handler, dialect="openai", fields=None, receive=None)
        call: Any = SimpleNamespace(gone=lambda: asyncio.sleep(PATIENCE), work=None)
        task = asyncio.create_task(Endpoint(SimpleNamespace(settings=None), path)._beside_client(call))  # type: ignore[arg-type]
        while not begun:
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        call.work = None
        del task
        await asyncio.sleep(0.01)  # the cancelled wait for the client ends
        gc.collect()
        assert told == []

    asyncio.run(main())


def test_files_and_batches_are_those_of_a_key(serve: Any) -> None:
    async def work(client: Client) -> None:
        keys = [{"authorization": f"Bearer {key}"} for key in ("one", "two")]
        body, kind = form(jsonl(line("a", input="x")), {"purpose": "batch"})
        file = (await client.post("/v1/files", body, headers={**keys[0], **kind})).json["id"]
        given = {"input_file_id": file, "endpoint": EMBED, "completion_window": "24h"}
        assert (await client.post("/v1/batches", given, headers=keys[1])).status == 400
        batch = (await client.post("/v1/batches", given, headers=keys[0])).json["id"]
        while (now := (await client.get(f"/v1/batches/{batch}", headers=keys[0])).json)["status"] != "completed":
            await asyncio.sleep(0.01)
        for path in (f"files/{file}", f"files/{file}/content", f"files/{now['output_file_id']}/content", f"batches/{batch}"):
            assert [(await client.get(f"/v1/{path}", headers=key)).status for key in keys] == [200, 404]
        assert (await client.post(f"/v1/batches/{batch}/cancel", None, headers=keys[1])).status == 404
        assert (await client.request("DELETE", f"/v1/files/{file}", headers=keys[1])).status == 404
        for path, count in (("files", 2), ("batches", 1)):
            assert [len((await client.get(f"/v1/{path}", headers=key)).json["data"]) for key in keys] == [count, 0]

    serve(work, api_keys=("one", "two"))


def test_two_servers_cannot_use_one_folder(serve: Any, minilm: pumice.Model, tmp_path: Path) -> None:
    async def work(client: Client) -> None:
        with pytest.raises(OSError, match="another server keeps its files in"):
            app({"m": minilm}, files=str(tmp_path / "files"))

    serve(work)
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(OSError, match="cannot keep files in .*file"):
        app({"m": minilm}, files=str(tmp_path / "file"))


@pytest.mark.parametrize("record", ["{", "[]", "[" * 100_000, '{"id": "batch_%s", "_owner": "", "created_at": 1}' % ("0" * 24), None])
def test_a_broken_record_is_named(serve: Any, tmp_path: Path, record: str | None) -> None:
    path = tmp_path / "files" / "batches" / f"batch_{'0' * 24}.json"
    path.parent.mkdir(parents=True)
    path.mkdir() if record is None else path.write_text(record)
    for _ in range(2):  # the folder is not locked by the server that could not begin
        with pytest.raises(ValueError, match="batch_0+.json is no record of this server"):
            serve(None)


def test_uploads_at_the_same_time_fit_together(serve: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files_module, "MEASURED", 1)

    async def work(client: Client) -> None:
        statuses = [each.status for each in await asyncio.gather(*(uploaded(client, b"x" * 600) for _ in range(8)))]
        assert set(statuses) <= {200, 413} and 413 in statuses
        sizes = [each["bytes"] for each in (await client.get("/v1/files")).json["data"]]
        assert sizes == [600] * statuses.count(200) and sum(sizes) <= 2200

    serve(work, max_files=2200)


def test_as_many_files_as_the_server_keeps(serve: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files_module, "MOST_RECORDS", 2)

    async def work(client: Client) -> None:
        file = (await uploaded(client, jsonl(line("a", input="x")))).json
        assert (await uploaded(client, b"")).status == 200
        assert (await uploaded(client, b"")).error["code"] == "storage_full"
        await client.request("DELETE", f"/v1/files/{file['id']}")
        assert (await uploaded(client, b"")).status == 200

    serve(work)
