"""Keys, the Host and Origin headers, CORS, and what the log says of requests."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest
from asgi import Answer, Client, with_server
from patience import wait_until
from servers import Here, request_bytes, serving

import pumice
from pumice.serve.calls import Call
from pumice.serve.metrics import Metrics
from pumice.serve.settings import Settings

CHAT = "/v1/chat/completions"
SITE = "https://example.org"


@pytest.fixture(scope="module")
def keyed(smollm2: pumice.Model) -> Iterator[Here]:
    with serving({"chat": smollm2}, api_keys=("first-secret", "second-secret"), cors_origins=(SITE,)) as here:
        yield here


@pytest.fixture(scope="module")
def plain(smollm2: pumice.Model) -> Iterator[Here]:
    with serving({"chat": smollm2}) as here:
        yield here


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 401),
        ({"Authorization": "Bearer first-secret"}, 200),
        ({"Authorization": "bearer  second-secret "}, 200),
        ({"x-api-key": "second-secret"}, 200),
        ({"x-api-key": "first-secre"}, 401),
        ({"x-api-key": "first-secret2"}, 401),
        ({"Authorization": "Basic first-secret"}, 401),
        ({"Authorization": "Bearer"}, 401),
        ({"Authorization": "Bearer \xff\xfe"}, 401),
        ({"Authorization": "Bearer wrong", "x-api-key": ""}, 401),
    ],
)
def test_keys(keyed: Here, headers: dict[str, str], status: int) -> None:
    sent = request_bytes("GET", "/v1/models").replace(
        b"\r\n\r\n", b"".join(b"\r\n%s: %s" % (k.encode(), v.encode("latin-1")) for k, v in headers.items()) + b"\r\n\r\n"
    )
    data = keyed.raw(sent)
    assert int(data.split(b" ")[1]) == status
    if status == 401:
        assert b"www-authenticate: Bearer" in data and b"secret" not in data.partition(b"\r\n\r\n")[2]


@pytest.mark.parametrize(
    "path", ["/v1/models", "/metrics", "/openapi.json", "/tokenize", CHAT, "/nothing", "//health", "/health/", "/v1/health"]
)
def test_every_path_but_a_few_needs_a_key(keyed: Here, path: str) -> None:
    assert keyed.get(path).status == 401
    assert keyed.post(path, {}).status == 401


def test_the_open_paths(keyed: Here) -> None:
    for path in ("/health", "/ready"):
        assert keyed.get(path).status == 200
    for path, status in ((CHAT, 405), ("/nothing", 404)):  # browsers send no key with OPTIONS
        assert keyed.request("OPTIONS", path).status == status


def test_all_keys_are_compared(keyed: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    """The time of a refusal must not tell which key came near. All are compared, also after one that fits."""
    from pumice.serve import guard

    compared = []
    real = guard.hmac.compare_digest
    monkeypatch.setattr(guard.hmac, "compare_digest", lambda a, b: compared.append(b) or real(a, b))
    assert keyed.get("/v1/models", {"x-api-key": "first-secret"}).status == 200
    assert compared == [b"first-secret", b"second-secret"] * 2  # for each of the two headers


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost", 200),
        ("LOCALHOST:80", 200),
        ("127.0.0.1:8000", 200),
        ("[::1]:8000", 200),
        ("192.168.0.7", 200),  # no page has an address that it does not come from
        ("evil.example", 403),
        ("localhost.evil.example", 403),
        ("evil.example:80@localhost", 403),
        ("127.0.0.1.evil.example", 403),
        ("", 403),
    ],
)
def test_hosts(plain: Here, host: str, status: int) -> None:
    """A page whose name resolves to this machine must not reach the server under that name."""
    assert plain.get("/health", {"Host": host}).status == status


@pytest.mark.parametrize(
    ("target", "status"),
    [
        ("http://localhost/health", 200),
        ("HTTP://127.0.0.1:8000/v1/models?a=1", 200),
        ("http://localhost", 200),
        ("http://localhost?a=1", 200),
        ("http://localhost//health", 404),
        ("http://localhost/http://localhost/health", 404),
        ("http://evil.example/health", 403),
        ("http:///health", 403),
        ("http://localhost%2fhealth", 403),
        ("http://localhost/%68ealth", 200),
        ("http%3a//localhost/health", 404),
        ("ftp://localhost/health", 404),
    ],
)
def test_a_whole_url_as_target(plain: Here, target: str, status: int) -> None:
    assert plain.get(target).status == status
    # The URL's host counts, and not the Host header.
    assert plain.get(target, {"Host": "other.example"}).status == (status if target.lower().startswith("http:") else 403)


@pytest.mark.parametrize(
    ("origin", "allowed"),
    [
        ("http://localhost", True),
        ("http://localhost:3000", True),
        ("https://127.0.0.1:8080", True),
        ("http://[::1]:3000", True),
        ("http://localhost.evil.example", False),
        ("http://notlocalhost", False),
        ("http://127.0.0.1.evil.example:80", False),
        ("http://localhost:3000.evil.example", False),
        ("null", False),
    ],
)
def test_pages_of_this_machine(smollm2: pumice.Model, origin: str, allowed: bool) -> None:
    async def work(client: Client) -> tuple[Answer, Answer]:
        asked = {"origin": origin, "access-control-request-method": "POST"}
        return await client.request("OPTIONS", CHAT, headers=asked), await client.get("/version", headers={"origin": origin})

    before, found = with_server({"chat": smollm2}, work, cors_origins=("localhost",))
    told = [answer.headers.get("access-control-allow-origin") for answer in (before, found)]
    assert (found.status, told) == ((200, [origin] * 2) if allowed else (403, [None] * 2))


def test_pages_of_other_sites(plain: Here, keyed: Here) -> None:
    body = b'{"model": "chat", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1}'
    simple = {"Content-Type": "text/plain"}  # a page may send this to any server without being allowed to
    assert plain.request("POST", CHAT, body, {**simple, "Origin": "https://evil.example"}).status == 403
    assert plain.request("POST", CHAT, body, {**simple, "Origin": "null"}).status == 403
    assert plain.request("POST", CHAT, body, {**simple, "Origin": "http://localhost"}).status == 200  # the server's own page
    reply = plain.get("/health", {"Origin": "https://evil.example"})
    assert "access-control-allow-origin" not in reply.headers
    key = {"x-api-key": "first-secret"}
    asked = {"Origin": SITE, "Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization,content-type"}
    assert keyed.request("OPTIONS", CHAT, headers=asked).headers["access-control-allow-origin"] == SITE
    for headers, status in ((key, 200), ({}, 401)):  # a page can read why it was refused
        reply = keyed.get("/v1/models", {"Origin": SITE, **headers})
        assert (reply.status, reply.headers["access-control-allow-origin"]) == (status, SITE)
    assert keyed.request("OPTIONS", CHAT, headers={**asked, "Origin": "https://evil.example"}).status == 400


def test_headers_for_browsers(plain: Here) -> None:
    for path in ("/health", "/nothing"):
        headers = plain.get(path).headers
        assert headers["content-security-policy"].startswith("default-src 'self'") and headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] == "no-referrer" and "server" not in headers


def test_html_in_a_request_is_never_html_in_an_answer(plain: Here) -> None:
    for reply in (plain.get("/<script>alert(1)</script>"), plain.post(CHAT, {"<script>": 1}), plain.get("/v1/models/<b>")):
        assert reply.headers["content-type"] == "application/json"


def test_request_ids(plain: Here) -> None:
    assert plain.get("/health", {"x-request-id": "mine-1"}).headers["x-request-id"] == "mine-1"
    for given in ("a b", "x" * 129, "<b>", "a\tb"):
        assert plain.get("/health", {"x-request-id": given}).headers["x-request-id"].startswith("req_")


def test_the_log_has_neither_texts_nor_keys(keyed: Here, caplog: pytest.LogCaptureFixture) -> None:
    key = {"Authorization": "Bearer first-secret"}
    body = {"model": "chat", "messages": [{"role": "user", "content": "private words"}], "max_tokens": 2}
    with caplog.at_level(logging.DEBUG, "pumice"):
        assert keyed.post(CHAT, body, key).status == 200
        assert keyed.post(CHAT, {**body, "model": "first-secret-model"}, key).status == 404
        assert keyed.post(CHAT, {**body, "temperature": "private words"}, key).status == 400
        assert keyed.post(CHAT + "?key=second-secret", body).status == 401
        assert keyed.get("/%0a2026-01-01 ERROR forged", key).status in (400, 404)
    lines = [record.getMessage() for record in caplog.records]
    assert not any(word in line for line in lines for word in ("private", "secret", "\n"))
    ours = [line for record in caplog.records if record.name == "pumice.serve.access" and CHAT in (line := record.getMessage())]
    assert len(ours) == 4
    assert " 200 " in ours[0] and ours[0].endswith(" chat")


def test_the_log_has_the_traceback_of_a_500_under_the_clients_id(plain: Here, caplog: pytest.LogCaptureFixture, monkeypatch: Any) -> None:
    def broken(*_: Any, **__: Any) -> None:
        raise RuntimeError("this is broken")

    body = {"model": "chat", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2}

    def logged() -> list[logging.LogRecord]:
        return [record for record in caplog.records if record.exc_info and record.getMessage().startswith("mine-1: RuntimeError 500")]

    places = {"parsed": (Call, "_parsed"), "streamed": (Metrics, "tokens"), "ended": (Metrics, "ended")}
    for where, (owner, name) in places.items():
        caplog.clear()
        with monkeypatch.context() as patched:
            patched.setattr(owner, name, broken)
            path = "/v1/models" if where == "ended" else CHAT
            sent = {**body, "stream": where == "streamed"}
            told = {"x-request-id": "mine-1"}
            reply = plain.get(path, told) if where == "ended" else plain.post(path, sent, told)
            wait_until(lambda: not plain.served.calls and logged())  # an answer may be sent before what fails behind it is logged
        lines = logged()
        assert len(lines) == 1 and lines[0].exc_info is not None and "broken" in str(lines[0].exc_info[1]), where
        if where == "parsed":
            assert reply.status == 500 and reply.error["code"] == "internal_error" and reply.headers["x-request-id"] == "mine-1"
        if where == "streamed":
            assert reply.headers["x-request-id"] == "mine-1" and b"internal_error" in reply.body and reply.body.endswith(b"[DONE]\n\n")


def test_settings_are_checked(smollm2: pumice.Model) -> None:
    from pumice.serve import app

    wrong: list[dict[str, Any]] = [
        {"max_n": 0},
        {"running": -1},
        {"waiting": -1},
        {"grace": -1.0},
        {"grace": float("nan")},
        {"max_body": "1"},
        {"api_keys": "secret"},
        {"api_keys": ("",)},
        {"api_keys": ("a b",)},
        {"hosts": "localhost"},
        {"idle_unload": 0},
        {"chunk_seconds": -1.0},
        {"chunk_seconds": 61.0},
        {"chunk_seconds": "1"},
        {"sampling": {"temperatur": 1}},
        {"sampling": {"stop_ids": [1]}},
        {"aliases": {"": "chat"}},
        {"aliases": {"\udcff": "chat"}},
        {"aliases": {"a": "nothing"}},
    ]
    for given in wrong:
        with pytest.raises((ValueError, TypeError), match=next(iter(given)) if "aliases" not in given else "alias"):
            app({"chat": smollm2}, **given)
    with pytest.raises(TypeError, match="max_n"):
        app({"chat": smollm2}, max_m=1)
    with pytest.raises(ValueError, match="the name of a model has a lone surrogate"):
        app({"m\udcff": smollm2})
    assert Settings().max_n == 16
