"""A client that leaves frees its request at once, wherever it is: in the queue, in the prompt, in the stream, or behind a whole answer.

PUMICE_LEAVING sets how often each case runs (3), `make test-serve-long` sets 100. The promise is one step of the engine and 50 ms; because
test machines are busy, five times as much is allowed."""

from __future__ import annotations

import contextlib
import importlib.util
import itertools
import json
import os
import socket
import statistics
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import samples
from patience import PATIENCE, Elapsed, Watch, wait_until
from servers import LOOPS, At, Here, read_all, reply_of, request_bytes, serving

import pumice
from pumice.event_loops.workers import Pools, Workers

TIMES = int(os.environ.get("PUMICE_LEAVING", "3"))
CHAT = "/v1/chat/completions"


@pytest.fixture(scope="module", params=LOOPS)
def here(request: pytest.FixtureRequest) -> Iterator[Here]:
    options = {"device": "cpu", "threads": 1}
    with (
        pumice.load(samples.smollm2(), n_ctx=2048, **options) as chat,
        pumice.load(samples.minilm(), **options) as embed,
        serving({"chat": chat, "embed": embed}, loop=request.param, running=1) as found,
    ):
        yield found


def model(here: Here, name: str) -> pumice.Model:
    found = here.served.models.find(name).model
    assert found is not None
    return found


def chat(text: str, **more: Any) -> dict[str, Any]:
    return {"model": "chat", "messages": [{"role": "user", "content": text}], "ignore_eos": True, "max_tokens": 1500, **more}


def is_free(here: Here) -> bool:
    stats = model(here, "chat").stats()
    return not here.served.calls and not stats["running"] and not stats["waiting"] and not here.served.held_bytes


def leave(connection: socket.socket, abruptly: bool) -> None:
    if abruptly:  # a reset in place of the usual end
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


NUMBERS = itertools.count()  # a prompt that begins with a new number has no pages of one before it


def freed(true: Callable[[], Any]) -> Elapsed:
    """Waits until something is true. Returns what passed meanwhile."""
    watch = Watch()
    wait_until(true)
    return watch.elapsed()


def assert_prompt(here: Here, times: list[Elapsed]) -> None:
    """The median of the times must be less than five times what a step with a prompt takes, both as processor time."""
    words, watch = f"{next(NUMBERS)} " + "word " * 400, Watch()
    assert here.post(CHAT, chat(words, max_tokens=1)).status == 200
    step, work = watch.elapsed(), statistics.median(each.work for each in times)
    print(f"median {work:.3f} s of processor time, {statistics.median(each.wall for each in times):.3f} s; a step with a prompt: {step}")
    assert work <= 5 * (step.work + 0.05)
    assert here.post(CHAT, chat("Hi", max_tokens=1)).status == 200


def in_the_stream(here: Here) -> tuple[socket.socket, Callable[[], bool]]:
    connection = here.begun(CHAT, chat("Hi", stream=True))
    while b"content" not in connection.recv(4096).replace(b'"content":""', b""):
        pass
    return connection, lambda: is_free(here)


def behind_a_whole_answer(here: Here) -> tuple[socket.socket, Callable[[], bool]]:
    connection = here.begun(CHAT, chat("Hi"))
    before = model(here, "chat").stats()["decoded_tokens"]
    wait_until(lambda: model(here, "chat").stats()["decoded_tokens"] > before)
    return connection, lambda: is_free(here)


def in_the_prompt(here: Here) -> tuple[socket.socket, Callable[[], bool]]:
    before = model(here, "chat").stats()["steps"]
    connection = here.begun(CHAT, chat(f"{next(NUMBERS)} " + "word " * 1500, stream=True, max_tokens=5))
    wait_until(lambda: model(here, "chat").stats()["running"] or model(here, "chat").stats()["steps"] > before)
    return connection, lambda: is_free(here)


def in_an_embedding(here: Here) -> tuple[socket.socket, Callable[[], bool]]:
    connection = here.begun("/v1/embeddings", {"model": "embed", "input": [f"the text {i} " * 20 for i in range(2048)]})
    wait_until(lambda: here.served.calls and not any(call.work is None for call in here.served.calls))
    time.sleep(0.3)
    assert here.served.calls

    def free() -> bool:
        return not here.served.calls and not here.served.held_bytes

    return connection, free


@pytest.mark.parametrize("case", [in_the_stream, behind_a_whole_answer, in_the_prompt, in_an_embedding])
def test_leaving(here: Here, case: Callable[[Here], tuple[socket.socket, Callable[[], bool]]]) -> None:
    times, before = [], model(here, "embed").stats().get("texts", 0)
    for i in range(TIMES):
        connection, free = case(here)
        leave(connection, abruptly=i % 2 == 1)
        times.append(freed(free))
    assert_prompt(here, times)
    if case is in_an_embedding:  # the encoder must be free, too
        assert here.post("/v1/embeddings", {"model": "embed", "input": "a"}).status == 200
        assert model(here, "embed").stats()["texts"] - before < 2048 * TIMES


def test_leaving_the_queue(here: Here) -> None:
    """One request runs, and takes the only place. Others wait behind it and leave."""
    first = here.begun(CHAT, chat("Hi", stream=True))
    try:
        first.recv(100)
        stats = model(here, "chat").stats
        times = []
        for i in range(TIMES):
            waiting = here.begun(CHAT, chat("Hi", stream=i % 2 == 0))
            wait_until(lambda: stats()["waiting"] == 1)
            leave(waiting, abruptly=i % 2 == 1)
            times.append(freed(lambda: stats()["waiting"] == 0))
            assert sum(stats()[name] for name in ("running", "waiting", "lagging")) >= 1  # the first one goes on
    finally:
        first.close()
    wait_until(lambda: is_free(here))
    assert_prompt(here, times)


def test_a_request_that_waits_for_too_long() -> None:
    with (
        pumice.load(samples.smollm2(), n_ctx=2048, device="cpu", threads=1) as chats,
        serving({"chat": chats}, running=1, waiting=2, max_wait=5.0) as here,
    ):
        first, _ = in_the_stream(here)
        whole, streamed = here.begun(CHAT, chat("Hi")), here.begun(CHAT, chat("Hi", stream=True))
        wait_until(lambda: chats.stats()["waiting"] == 2)
        full = here.post(CHAT, chat("Hi"))
        assert full.status == 429 and 1 <= int(full.headers["retry-after"]) <= 60 and full.error["type"] == "rate_limit_error"
        late = reply_of(read_all(whole))
        assert late.status == 503 and late.error["code"] == "waited_too_long" and 1 <= int(late.headers["retry-after"]) <= 60
        events = reply_of(read_all(streamed)).body.decode()
        assert "waited_too_long" in events and events.endswith("data: [DONE]\n\n")
        assert here.served.calls and chats.stats()["waiting"] == 0  # the first one goes on
        first.close()
        wait_until(lambda: not here.served.calls)


@pytest.fixture
def impatient() -> Iterator[Here]:
    options = {"device": "cpu", "threads": 1}
    with (
        pumice.load(samples.smollm2(), n_ctx=2048, **options) as chats,
        pumice.load(samples.minilm(), **options) as embed,
        serving({"chat": chats, "embed": embed}, running=1, max_wait=2.0) as here,
    ):
        yield here


def busy(workers: Workers, most: int) -> threading.Event:
    """Gives each thread of a pool a job that lasts until the event is set."""
    over, begun = threading.Event(), threading.Semaphore(0)

    def job() -> None:
        begun.release()
        over.wait(PATIENCE)

    for _ in range(most):
        workers.run(job)
    for _ in range(most):
        assert begun.acquire(timeout=PATIENCE)
    return over


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/embeddings", {"input": ["one text"]}),
        ("/v1/embeddings", {"input": ["many texts"] * 500}),
        ("/v1/rerank", {"query": "one", "documents": ["a", "b"]}),
    ],
)
def test_texts_that_wait_for_too_long(impatient: Here, path: str, body: Any) -> None:
    """The threads that tokenize and encode are busy, so the request cannot begin."""
    pools = Pools.of(model(impatient, "embed"))
    events = [busy(pools.together, 1), busy(pools.encode, 64)]
    try:
        late = impatient.post(path, {"model": "embed", **body})
        assert late.status == 503 and late.error["code"] == "waited_too_long" and 1 <= int(late.headers["retry-after"]) <= 60
        assert not impatient.served.calls
    finally:
        for over in events:
            over.set()
    assert impatient.post(path, {"model": "embed", **body}).status == 200


def test_an_echo_that_waits_for_too_long(impatient: Here) -> None:
    """A chat takes the only place among the running requests."""
    echo = {"model": "chat", "prompt": "one two three", "echo": True, "logprobs": 1, "max_tokens": 0}
    first, _ = in_the_stream(impatient)
    late = impatient.post("/v1/completions", echo)
    assert late.status == 503 and late.error["code"] == "waited_too_long"
    assert len(impatient.served.calls) == 1  # the chat goes on
    first.close()
    wait_until(lambda: not impatient.served.calls)
    assert impatient.post("/v1/completions", echo).status == 200


OTHER_SERVER = """
import asyncio, sys
import samples, pumice
from hypercorn.asyncio import serve
from hypercorn.config import Config
from pumice.serve import app
config = Config()
config.bind = ["127.0.0.1:" + sys.argv[1]]
config.graceful_timeout = 0.1
chat = pumice.load(samples.smollm2(), n_ctx=2048, device="cpu", threads=1)
asyncio.run(serve(app({"chat": chat, "embed": pumice.load(samples.minilm(), device="cpu", threads=1)}, running=1), config))
"""


def gauge(at: At, name: str) -> float:
    lines = at.get("/metrics").body.decode().splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(name + "{"))


@pytest.mark.skipif(importlib.util.find_spec("hypercorn") is None, reason="hypercorn is not installed; make test-serve-long installs it")
def test_leaving_under_another_server() -> None:
    """Hypercorn runs the same application, and has its own ways to tell that a client has left."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    path = os.pathsep.join(sys.path)
    process = subprocess.Popen([sys.executable, "-c", OTHER_SERVER, str(port)], env={**os.environ, "PYTHONPATH": path})
    at = At(port)
    try:

        def ready() -> bool:
            with contextlib.suppress(OSError):
                return at.get("/ready").status == 200
            return False

        wait_until(ready)
        requests = {
            "stream": (CHAT, chat("Hi", stream=True)),
            "whole": (CHAT, chat("Hi")),
            "prompt": (CHAT, chat("word " * 1500)),
            "embedding": ("/v1/embeddings", {"model": "embed", "input": [f"the text {i} " * 20 for i in range(2048)]}),
        }
        for path, body in list(requests.values()) * TIMES:
            connection = at.connect()
            connection.sendall(request_bytes("POST", path, json.dumps(body).encode()))
            time.sleep(0.5)
            connection.close()
            wait_until(lambda: gauge(at, "pumice_requests_running") == 0 and gauge(at, "pumice_model_requests") == 0)
        assert at.post(CHAT, chat("Hi", max_tokens=1)).status == 200
    finally:
        process.kill()
        process.wait()
