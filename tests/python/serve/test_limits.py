"""What a server does with requests that are too large, too slow, broken, or made to deceive it. Bytes go over real connections."""

from __future__ import annotations

import asyncio
import json
import resource
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from types import SimpleNamespace
from typing import Any

import pytest
import samples
from asgi import Client, running
from patience import PATIENCE, Watch, thread_seconds, until, wait_until
from servers import LOOPS, Command, Here, Reply, read_all, reply_of, request_bytes, serving

import pumice
from pumice.serve import app, connections
from pumice.serve.calls import Events

CHAT = "/v1/chat/completions"
HI = [{"role": "user", "content": "Hi"}]


@pytest.fixture(scope="module")
def here(smollm2: pumice.Model, minilm: pumice.Model) -> Iterator[Here]:
    with serving({"chat": smollm2, "embed": minilm}, max_body=1 << 20, max_bodies=2 << 20, connections=40) as found:
        yield found
        # A client has its answer before the server has tidied up.
        wait_until(lambda: not found.served.calls and found.served.held_bytes == 0)


@pytest.fixture(scope="module")
def hasty(smollm2: pumice.Model, minilm: pumice.Model) -> Iterator[Here]:
    """A server whose clocks are short."""
    clocks = {"header_seconds": 2.0, "body_seconds": 2.0, "write_seconds": 1.0}
    with serving({"chat": smollm2, "embed": minilm}, **clocks) as found:
        yield found
        wait_until(lambda: not found.served.calls and found.served.held_bytes == 0)


def is_well(here: Here) -> bool:
    return here.post(CHAT, {"model": "chat", "messages": HI, "max_tokens": 1}).status == 200


# ---------------------------------------------------------------- headers and connections
def test_large_headers(here: Here) -> None:
    for data in (
        b"GET /health HTTP/1.1\r\nHost: localhost\r\nX: " + b"a" * 70000,
        b"GET /" + b"a" * 70000,
        b"GET /health HTTP/1.1\r\nHost: localhost\r\n" + b"".join(b"X%d: %s\r\n" % (i, b"y" * 100) for i in range(1000)),
    ):
        reply = reply_of(here.raw(data))
        assert reply.status == 431 and "65536 bytes" in reply.error["message"] and reply.headers["connection"] == "close"
    assert is_well(here)


def test_headers_that_do_not_end(hasty: Here) -> None:
    with hasty.connect() as half, hasty.connect() as silent, hasty.connect() as slow:
        half.sendall(b"GET /health HTTP/1.1\r\nHost: loc")
        for _ in range(4):  # a byte now and then does not help
            slow.sendall(b"G")
            time.sleep(0.1)
        reply = reply_of(read_all(half))
        assert reply.status == 408 and "2 s" in reply.error["message"]
        assert reply_of(read_all(slow)).status == 408
        assert read_all(silent) == b""  # browsers open connections that they may not use: there is no request to answer


def test_a_connection_is_kept_between_requests_and_its_next_headers_have_a_clock(hasty: Here) -> None:
    request = request_bytes("GET", "/health", headers={"Connection": "keep-alive"})
    with hasty.connect() as connection:
        for pause in (0.0, 3.0):  # longer than the clock for headers, which does not run between requests
            time.sleep(pause)
            connection.sendall(request)
            answer = b""
            while not answer.endswith(b'{"status":"ok"}'):  # the body may come apart from the headers
                part = connection.recv(65536)
                assert part, answer
                answer += part
            assert answer.startswith(b"HTTP/1.1 200")
        connection.sendall(request[:20])
        assert reply_of(read_all(connection)).status == 408


def test_too_many_connections(minilm: pumice.Model) -> None:
    with serving({"embed": minilm}, connections=10) as here:
        opened = [here.connect() for _ in range(30)]
        try:
            wait_until(lambda: len(here.process.server_state.connections) == 10)
            for each in opened[10:]:
                refused = reply_of(read_all(each))
                assert refused.status == 503 and refused.headers["retry-after"] == "1" and "10 connections" in refused.error["message"]
            opened[0].sendall(request_bytes("GET", "/health"))  # those that came first are served
            assert reply_of(read_all(opened[0])).status == 200
        finally:
            for each in opened:
                each.close()
        wait_until(lambda: not here.process.server_state.connections)
        assert here.get("/health").status == 200


def test_ten_thousand_connections() -> None:
    """All are open at the same time. The server keeps as many as it takes, and serves those that came first."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert hard == resource.RLIM_INFINITY or hard > 11_000, f"this test opens 10,000 sockets, and the hard limit of open files is {hard}"
    with Command("embed=" + str(samples.minilm()), "--header-seconds", "300") as server, ExitStack() as opened:  # so long none is closed
        server.wait_ready()
        resource.setrlimit(resource.RLIMIT_NOFILE, (11_000 if hard == resource.RLIM_INFINITY else hard, hard))
        opened.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        connections = [opened.enter_context(server.connect()) for _ in range(10_000)]
        kept, refused = connections[:2048], connections[2048:]
        for each in refused:
            reply = reply_of(read_all(each))
            assert reply.status == 503 and reply.headers["retry-after"] == "1"
        body = json.dumps({"model": "embed", "input": "a"}).encode()
        for each in (kept[0], kept[-1]):
            each.sendall(request_bytes("POST", "/v1/embeddings", body))
            assert reply_of(read_all(each)).status == 200
        for each in kept:
            each.close()
        wait_until(lambda: server.get("/health").status == 200)
        server.tell()
        assert server.end() == 0


# ---------------------------------------------------------------- bodies
def test_a_body_that_does_not_arrive(hasty: Here) -> None:
    for head in ("Content-Length: 100", "Transfer-Encoding: chunked"):
        sent = f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\n{head}\r\n\r\n".encode()
        reply = reply_of(hasty.raw(sent))
        assert reply.status == 408 and "2 s" in reply.error["message"]


def test_a_large_body(here: Here) -> None:
    said = reply_of(here.raw(f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {2 << 20}\r\n\r\n".encode()))
    chunk = b"%x\r\n%s\r\n" % (1 << 17, b"a" * (1 << 17))
    sent = f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n".encode() + chunk * 12
    for reply in (said, reply_of(here.raw(sent)), here.post(CHAT, b" " * ((1 << 20) + 1))):
        assert reply.status == 413 and "1048576 bytes" in reply.error["message"]
    endless = here.connect()
    try:  # the rest of a refused body is read for some seconds, so that the client can read why, and then the connection ends
        endless.sendall(f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n".encode())
        end = time.monotonic() + PATIENCE
        with pytest.raises((ConnectionResetError, BrokenPipeError)):
            while time.monotonic() < end:
                endless.sendall(chunk)
    finally:
        endless.close()
    assert is_well(here)


@pytest.mark.parametrize("loop", LOOPS)
def test_an_answer_to_a_request_that_is_still_sent_is_read(minilm: pumice.Model, loop: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The connection is not reset while the client sends the rest: a reset may drop the answer. The rest is read for REST_SECONDS."""
    requests = {
        413: f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: {2 << 20}\r\n\r\n".encode(),
        431: b"GET /" + b"a" * 70000,
        400: b"\x16\x03\x01 is no HTTP\r\n\r\n",
        408: b"GET /health HTTP/1.1\r\nHost: loc",
        503: request_bytes("GET", "/health"),
    }
    with serving({"embed": minilm}, loop, connections=10, max_body=1 << 20, header_seconds=4.0) as here, ExitStack() as opened:
        monkeypatch.setattr(connections, "REST_SECONDS", 600.0)
        for status, request in requests.items():
            if status == 503:
                for _ in range(10):
                    kept = opened.enter_context(here.connect())
                    kept.sendall(request_bytes("GET", "/health", headers={"Connection": "keep-alive"}))
                    assert kept.recv(65536).startswith(b"HTTP/1.1 200")
            with here.connect() as client:
                client.sendall(request)
                parts = []
                while part := client.recv(65536):  # raises ConnectionResetError if the connection is reset
                    parts.append(part)
                reply = reply_of(b"".join(parts))
                assert reply.status == status and reply.error["message"]
                for _ in range(20):
                    client.sendall(b"a" * 10000)
                    time.sleep(0.005)
                assert client.recv(1) == b""
        monkeypatch.setattr(connections, "REST_SECONDS", 0.3)
        with here.connect() as client, pytest.raises((ConnectionResetError, BrokenPipeError)):
            end = time.monotonic() + PATIENCE
            client.sendall(requests[503])
            while time.monotonic() < end:
                client.sendall(b"a" * 10000)
                time.sleep(0.01)
        wait_until(lambda: len(here.process.server_state.connections) == 10)


def test_connections_that_wait_for_their_clients_are_bounded(minilm: pumice.Model, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "REST_SECONDS", 600.0)
    monkeypatch.setattr(connections, "LINGERING", 5)
    with serving({"embed": minilm}, connections=4, header_seconds=300.0) as here, ExitStack() as opened:

        def some(count: int) -> list[socket.socket]:
            return [opened.enter_context(here.connect()) for _ in range(count)]

        def are_open() -> int:
            return len(here.process.server_state.connections)

        kept = some(4)
        wait_until(lambda: are_open() == 4)
        refused = some(20)
        assert all(reply_of(read_all(each)).status == 503 for each in refused)
        wait_until(lambda: are_open() == 9)
        kept[0].sendall(request_bytes("GET", "/health"))
        assert reply_of(read_all(kept[0])).status == 200
        kept[0].close()
        wait_until(lambda: are_open() == 8)
        assert here.get("/health").status == 200  # those that wait hold no place
        refused[0].close()
        wait_until(lambda: are_open() == 7)
        here.process.stop()
        wait_until(lambda: not are_open())  # a stop does not wait for them


def test_an_error_of_head_has_no_body(here: Here, caplog: pytest.LogCaptureFixture) -> None:
    broken = f"HEAD {CHAT} HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nno size\r\n".encode()
    head, _, body = here.raw(broken).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400") and body == b""
    assert is_well(here)
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


def test_bodies_of_all_requests_together(minilm: pumice.Model) -> None:
    head = f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {1 << 20}\r\n\r\n".encode()
    with serving({"embed": minilm}, body_seconds=300.0, max_body=1 << 20, max_bodies=2 << 20) as here, ExitStack() as opened:
        waits = [opened.enter_context(here.connect()) for _ in range(2)]
        for each in waits:
            each.sendall(head + b" " * 900_000)
        wait_until(lambda: here.served.held_bytes >= 1_800_000)
        refused = [opened.enter_context(here.connect()) for _ in range(2)]
        for each in refused:
            each.sendall(head + b" " * 900_000)
        assert [reply_of(read_all(each)).status for each in refused] == [503, 503]
        for each in waits:  # the others wait for their last bytes
            each.close()
        wait_until(lambda: here.served.held_bytes == 0)


@pytest.mark.parametrize(
    "body",
    [
        b'{"messages": [{"role": "user", "content": "Hi"}], "temperature": NaN}',
        b'{"messages": [{"role": "user", "content": "Hi"}], "temperature": 1e999}',
        b'{"messages": [{"role": "user", "content": "\\ud800"}]}',
        b'{"messages": [{"role": "user", "content": "\xff"}]}',
        b'{"a":' * 5000 + b"1" + b"}" * 5000,
        b"[" * 100000,
        b"",
        b"null",
        b"[1]",
        b'{"messages": [',
    ],
)
def test_json_that_is_none(here: Here, body: bytes) -> None:
    reply = here.post(CHAT, body)
    assert reply.status == 400 and reply.error["type"] == "invalid_request_error", reply.body


def test_deep_values_where_any_value_may_be(here: Here) -> None:
    """Deep values that JSON allows must not break what walks through them."""
    deep: Any = "x"
    for _ in range(300):
        deep = {"properties": {"a": deep}} if isinstance(deep, dict) else {"type": "string"}
    listed: Any = []
    for _ in range(900):
        listed = [listed]
    for more in (
        {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": deep}}},
        {"chat_template_kwargs": {"a": listed}},
        {"tools": [{"type": "function", "function": {"name": "a", "parameters": deep}}]},
        {"structured_outputs": {"json": {"anyOf": listed}}},
        {"logit_bias": {"1": listed}},
        {"messages": [{"role": "user", "content": listed}]},
    ):
        reply = here.post(CHAT, {"model": "chat", "messages": HI, "max_tokens": 1, **more})
        assert reply.status in (200, 400), (more, reply.body)
    assert is_well(here)


@pytest.mark.parametrize(
    ("path", "change", "param", "says"),
    [
        (CHAT, {"n": 17}, "n", "at most 16"),
        (CHAT, {"n": 10**30}, "n", None),
        (CHAT, {"stop": ["a"] * 17}, "stop", "at most 16"),
        (CHAT, {"stop": "a" * 257}, "stop", "at most 256"),
        (CHAT, {"logit_bias": {str(i): 1 for i in range(1025)}}, "logit_bias", "at most 1024"),
        (CHAT, {"tools": [{"type": "function", "function": {"name": f"f{i}"}} for i in range(257)]}, "tools", "at most 256"),
        (CHAT, {"tools": [{"type": "function", "function": {"name": "f", "description": "a" * 300000}}]}, "tools", "at most 262144"),
        (
            CHAT,
            {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": {"enum": ["a" * 300000]}}}},
            "response_format",
            "at most 262144",
        ),
        (CHAT, {"top_logprobs": 21, "logprobs": True}, "top_logprobs", "at most 20"),
        (CHAT, {"max_tokens": -2}, "max_tokens", "at least 1"),
        (CHAT, {"temperature": -1}, "temperature", None),
        ("/v1/embeddings", {"input": ["a"] * 2049}, "input", "at most 2048"),
        ("/v1/rerank", {"query": "a", "documents": ["a"] * 1025}, "documents", "at most 1024"),
    ],
)
def test_the_most_of_each_field(here: Here, path: str, change: dict[str, Any], param: str, says: str | None) -> None:
    body = {"model": "chat", "messages": HI, "max_tokens": 1, **change} if path == CHAT else {"model": "embed", **change}
    reply = here.post(path, json.dumps(body).encode())
    assert reply.status == 400, reply.body
    if says is not None:
        assert reply.error["param"] == param and says in reply.error["message"], reply.body


# ---------------------------------------------------------------- requests that take long
def served_meanwhile(chat: pumice.Model, body: dict[str, Any]) -> tuple[Reply, int]:
    """Sends a request, and others until it is answered. Returns its answer, and how many others were answered meanwhile. The event loop
    must have little to do for each of them: it does none of the work of the request."""
    with serving({"chat": chat}) as here, here.begun(CHAT, body) as slow:
        slow.setblocking(False)
        begun, data, others = thread_seconds(here.thread), b"", 0
        while not data:
            assert here.get("/health").status == 200
            others += 1
            with suppress(BlockingIOError):
                data = slow.recv(65536)
        slow.setblocking(True)
        each = (thread_seconds(here.thread) - begun) / others
        print(f"{others} requests meanwhile, {each * 1e3:.1f} ms of the event loop's processor time for each")
        assert each < 0.1, "the event loop was busy"
        return reply_of(data + read_all(slow)), others


def test_a_chat_template_that_works_for_long() -> None:
    """A request cannot bring a template, but its variables may have the model's own work for long."""
    template = "{% for i in range(count) %}{% for k in range(count) %}{% endfor %}{% endfor %}{{ messages[0].content }}"
    with pumice.load(samples.smollm2(), chat_template=template, device="cpu") as chat:
        body = {"model": "chat", "messages": HI, "max_tokens": 1, "chat_template_kwargs": {"count": 100_000}}
        watch = Watch()
        reply, others = served_meanwhile(chat, body)
    assert reply.status == 400 and "template" in reply.error["message"] and reply.error["param"] == "messages", reply.body
    assert watch.elapsed().work < 5 * 2  # a template is stopped after a second, and this may be the first that the process renders
    assert others > 3


def test_variables_of_the_chat_template(here: Here) -> None:
    def reply(**more: Any) -> Reply:
        return here.post(CHAT, {"model": "chat", "messages": HI, "max_tokens": 1, **more})

    for name in ("messages", "tools", "add_generation_prompt", "bos_token", "range", "raise_exception", "self"):
        tools = {"tools": [{"type": "function", "function": {"name": "f"}}]} if name == "tools" else {}
        found = reply(chat_template_kwargs={name: "x"}, **tools)
        assert found.status == 400, (name, found.body)
        assert found.error["param"] == ("tools" if name == "tools" else "chat_template_kwargs"), (name, found.body)
    deep: Any = "x"
    for _ in range(40):
        deep = {"a": deep}
    found = reply(chat_template_kwargs={"documents": deep})
    assert found.status == 400 and found.error["param"] == "chat_template_kwargs" and "32 deep" in found.error["message"], found.body
    found = reply(
        chat_template_kwargs={"chat_template": "{{ 1 }}", "unread": 1}
    )  # variables like any other, which the model's own does not read
    assert found.status == 200 and found.json["pumice"]["ignored"] == ["chat_template", "unread"]
    found = reply(chat_template="{{ 1 }}")
    assert found.status == 400 and found.error["param"] == "chat_template"


def test_a_schema_that_takes_long(smollm2: pumice.Model) -> None:
    kinds = [{"anyOf": [{"properties": {f"p{i}{k}": {"type": "integer"}}} for k in range(4)]} for i in range(12)]
    schema = {"name": "a", "schema": {"allOf": kinds}}
    body = {"model": "chat", "messages": HI, "max_tokens": 1, "response_format": {"type": "json_schema", "json_schema": schema}}
    watch = Watch()
    reply, others = served_meanwhile(smollm2, body)
    assert reply.status == 400 and reply.error["param"] == "response_format", reply.body
    assert watch.elapsed().work < 5 * 5
    assert others > 3


def test_grammars_while_others_are_compiled_in_the_background(smollm2: pumice.Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """The grammar may be right, so a client is not told that it is wrong, but when to try again."""

    def busy(grammar: pumice.Grammar) -> Any:
        raise pumice.GrammarBusyError("the compiler is busy")

    monkeypatch.setattr(smollm2._generator.grammars, "compiled", busy)  # type: ignore[union-attr]
    form = {"type": "json_schema", "schema": {"type": "object", "properties": {}, "additionalProperties": False}}
    asked = {
        CHAT: {"messages": HI, "max_tokens": 1, "structured_outputs": {"regex": "a+"}},
        "/v1/completions": {"prompt": "Hi", "max_tokens": 1, "grammar": 'start: "a"'},
        "/v1/responses": {"input": "Hi", "max_output_tokens": 1, "text": {"format": {**form, "name": "a"}}, "stream": True},
        "/v1/messages": {"messages": HI, "max_tokens": 1, "output_config": {"format": form}},
    }
    with serving({"chat": smollm2}) as here:
        for path, body in asked.items():
            reply = here.post(path, body)
            assert reply.status == 503 and int(reply.headers["retry-after"]) >= 5, (path, reply.body)
            assert reply.error["message"] == "the compiler is busy" and reply.error.get("code", "grammar_busy") == "grammar_busy"
        assert is_well(here)  # what needs no grammar is served


# ---------------------------------------------------------------- requests that deceive
def test_two_lengths(here: Here) -> None:
    """Where a proxy and a server believe different lengths, a client can hide a request in the body of another."""
    hidden = b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n"
    for headers in (
        f"Content-Length: {len(hidden)}\r\nTransfer-Encoding: chunked",
        f"Content-Length: {len(hidden)}\r\nContent-Length: 0",
        "Content-Length: 0, 5",
        "Content-Length: +0",
        "Content-Length: -1",
        "Transfer-Encoding: xchunked",
        "Transfer-Encoding: chunked, identity",
        "Transfer-Encoding : chunked",
        "Transfer-Encoding:\x0bchunked",
        "X: a\r\n Transfer-Encoding: chunked\r\nContent-Length : 3",
        "Host: other",
    ):
        # A connection on which the next request is in doubt is closed.
        data = here.raw(f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\n{headers}\r\n\r\n".encode() + b"0\r\n\r\n" + hidden)
        assert reply_of(data).status in (400, 501), (headers, data)
        assert b"HTTP/1.1 200" not in data, headers


def test_glued_requests_are_answered_in_their_order(here: Here) -> None:
    first = request_bytes("POST", "/tokenize", b'{"model":"chat","content":"one"}', {"Connection": "keep-alive"})
    second = request_bytes("GET", "/health", headers={"Connection": "keep-alive"})
    data = here.raw(first + second + request_bytes("GET", "/nothing"))
    statuses = [int(part.split(b" ")[0]) for part in data.split(b"HTTP/1.1 ")[1:]]
    assert statuses == [200, 200, 404]
    assert reply_of(data).json["count"] == 1


def test_a_body_is_not_a_request(here: Here) -> None:
    inner = request_bytes("GET", "/v1/models")
    for path in ("/health", "/nothing", CHAT):
        data = here.raw(request_bytes("POST", path, inner, {"Connection": "keep-alive"}) + request_bytes("GET", "/health"))
        assert data.count(b"HTTP/1.1 ") == 2 and data.count(b'"status":"ok"') == 1


@pytest.mark.parametrize(
    "data",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\x00" * 60 + b"\r\n\r\n",  # TLS
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"GET /health HTTP/3.0\r\n\r\n",
        b"GET /health\r\n\r\n",
        b"GET /health HTTP/1.1\r\n\r\n",  # no Host
        b"GET /\x00 HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET /health HTTP/1.1\r\nHost: localhost\r\nA\x00: b\r\n\r\n",
        b"GET /health HTTP/1.1\r\nHost: localhost\r\nA: b\x00\r\n\r\n",
    ],
)
def test_bytes_that_are_no_request(here: Here, data: bytes) -> None:
    assert reply_of(here.raw(data)).status in (400, 505)


@pytest.mark.parametrize(
    "path",
    [
        "/../etc/passwd",
        "/..%2f..%2fetc/passwd",
        "/page/../v1/models/../../etc/passwd",
        "//health",
        "/health%00",
        "/%2e%2e/health",
        "/v1/%63hat/completions/x",
        "http://localhost/../etc/passwd",
        "http://localhost/health%00",
        "/health;a=b",
        "/\\health",
    ],
)
def test_paths_that_are_none(here: Here, path: str) -> None:
    reply = here.get(path)
    assert reply.status in (404, 405) and "root:" not in reply.body.decode()


def test_other_methods(here: Here) -> None:
    assert here.get(CHAT).status == 405
    assert here.post("/health", {}).status == 405
    assert here.request("TRACE", "/health").status == 405
    assert here.raw(request_bytes("HEAD", "/health")).endswith(b"\r\n\r\n")
    assert here.request("PROPFIND", "/nothing").status == 404


# ---------------------------------------------------------------- clients that do not read
def test_a_client_that_reads_nothing(hasty: Here) -> None:
    """The connection must be closed, and its request must end."""
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.connect(("127.0.0.1", hasty.port))
    body = {"model": "embed", "input": ["a b c"] * 2048, "encoding_format": "float"}
    connection.sendall(request_bytes("POST", "/v1/embeddings", json.dumps(body).encode()))
    wait_until(lambda: hasty.served.calls)
    wait_until(lambda: not hasty.process.server_state.connections and not hasty.served.calls)
    connection.close()
    assert is_well(hasty)


def test_a_client_that_reads_slowly(smollm2: pumice.Model) -> None:
    """Its request pauses until it reads on, other requests do not wait for it, and in the end it has the whole answer."""
    application = app({"chat": smollm2})
    body = {"messages": HI, "max_tokens": 200, "ignore_eos": True, "temperature": 0, "stream": True}
    reads_on = asyncio.Event()

    async def slowly(scope: Any, receive: Any, send: Any) -> None:
        async def wait(message: Any) -> None:
            await send(message)
            if message["type"] == "http.response.body":
                await reads_on.wait()

        await application(scope, receive, wait)

    async def main() -> str:
        async with running(application) as others:
            slow = asyncio.create_task(Client(slowly).post(CHAT, body))
            await until(lambda: smollm2.stats()["lagging"])
            for _ in range(3):
                assert (await others.post(CHAT, {"messages": HI, "max_tokens": 4})).status == 200
            assert smollm2.stats()["lagging"] == 1 and not slow.done()
            reads_on.set()
            events = (await slow).events[:-1]
            return "".join(choice["delta"].get("content") or "" for event in events for choice in event["choices"])

    expected = smollm2.chat(HI, max_new_tokens=200, ignore_eos=True, temperature=0)
    assert asyncio.run(main()) == expected.content


@pytest.mark.parametrize("silent", [False, True])
def test_a_stream_that_nobody_reads(smollm2: pumice.Model, silent: bool) -> None:
    """The same under any ASGI server: send() does not return. silent: what blocks is a comment that keeps the connection alive."""
    application = app({"chat": smollm2}, write_seconds=0.4, ping_seconds=0.001 if silent else 15.0)
    sent: list[bytes] = []

    async def blocked(scope: Any, receive: Any, send: Any) -> None:
        async def stuck(message: Any) -> None:
            await send(message)
            sent.append(message.get("body", b""))
            if message["type"] == "http.response.body" and (b"ping" in message["body"]) == silent:
                await asyncio.Event().wait()

        await application(scope, receive, stuck)

    async def main() -> None:
        async with running(application):
            body = {"messages": HI, "max_tokens": 4000, "ignore_eos": True, "stream": True}
            answer = await Client(blocked).post(CHAT, body | ({"min_p": 0.1, "temperature": 1} if silent else {}))
            assert answer.status == 200 and not answer.whole
            assert not application.state.server.calls

    asyncio.run(main())
    assert (b": ping\n\n" in sent) == silent
    wait_until(lambda: not smollm2.stats()["running"])


def test_a_stream_that_ends_as_a_ping_was_sent() -> None:
    """On Python 3.10 and 3.11, the watch of the stream went on for ever: its cancellation was lost."""
    sent: list[bytes] = []

    async def main() -> None:
        pinged = asyncio.Event()

        async def send(message: Any) -> None:
            sent.append(message.get("body", b""))
            if sent[-1] == b"ping":
                pinged.set()

        settings = SimpleNamespace(write_seconds=1.0, ping_seconds=0.05)
        call: Any = SimpleNamespace(server=SimpleNamespace(settings=settings), ended_by=None, named=dict, send_message=send)
        async with Events(call, lambda failure: b"", b"ping"):
            await pinged.wait()
        await until(lambda: len(asyncio.all_tasks()) == 1)

    asyncio.run(main())
    assert sent == [b"", b"ping", b""]
