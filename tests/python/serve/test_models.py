"""Several models in one server: loaded when they are asked for, unloaded when nobody uses them, and never in the middle of a request."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
import samples
from asgi import Client, running
from patience import until

import pumice
from pumice.serve import app
from pumice.serve.process import listen, serve

TINY = {"device": "cpu", "threads": 1}


def embed(client: Client, name: str | None, texts: int = 1, **more: Any) -> Any:
    return client.post("/v1/embeddings", {"model": name, "input": ["a short text"] * texts}, **more)


def loads(monkeypatch: pytest.MonkeyPatch, slowly: float = 0.0, first: float | None = None) -> list[str]:
    """Notes the loads that begin and those that are cancelled. slowly: the seconds by which each takes longer, but for the first one if
    `first` has those of that."""
    noted: list[str] = []
    real = pumice.aload

    async def aload(source: Any, **options: Any) -> Any:
        noted.append("load")
        try:
            await asyncio.sleep(first if first is not None and noted == ["load"] else slowly)
            return await real(source, **options)
        except asyncio.CancelledError:
            noted.append("cancelled")
            raise

    monkeypatch.setattr(pumice, "aload", aload)
    return noted


async def until_noted(noted: list[str], what: str) -> None:
    """Waits until loads() has noted something: "load" or "cancelled"."""
    await until(lambda: what in noted)


def server(names: str, **settings: Any) -> Any:
    path = samples.minilm()
    return app(dict.fromkeys(names, path), load=dict.fromkeys(names, TINY), **settings)


def test_models_are_loaded_once_when_they_are_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    noted = loads(monkeypatch, 0.2)

    async def main() -> None:
        async with running(server("ab", lazy=True)) as client:
            for path in ("/v1/models", "/metrics", "/health", "/ready", "/openapi.json", "/v1/models/a"):
                assert (await client.get(path)).status == 200
            assert noted == []  # what only looks loads nothing
            answers = await asyncio.gather(*(embed(client, "a") for _ in range(20)))
            assert {answer.status for answer in answers} == {200} and noted == ["load"]
            listed = {each["id"]: each["meta"]["loaded"] for each in (await client.get("/v1/models")).json["data"]}
            assert listed == {"a": True, "b": False}

    asyncio.run(main())


def test_a_load_ends_when_nobody_waits_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    noted = loads(monkeypatch, first=600.0)

    async def main() -> None:
        async with running(server("a", lazy=True)) as client:
            leave = [asyncio.Event() for _ in range(3)]
            asked = [asyncio.create_task(embed(client, "a", leave=each)) for each in leave]
            await until_noted(noted, "load")
            await asyncio.sleep(0.1)  # time for the others to join the load
            leave[0].set()
            leave[1].set()
            await asyncio.sleep(0.1)
            assert noted == ["load"]  # one still waits
            leave[2].set()
            await asyncio.gather(*asked)
            await until_noted(noted, "cancelled")
            assert noted == ["load", "cancelled"]
            assert (await embed(client, "a")).status == 200  # the next one begins anew

    asyncio.run(main())


def test_a_request_behind_a_cancelled_load_gets_a_load_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    noted = loads(monkeypatch, first=600.0)

    async def main() -> None:
        async with running(server("a", lazy=True)) as client:
            leave = asyncio.Event()
            first = asyncio.create_task(embed(client, "a", leave=leave))
            await until_noted(noted, "load")
            leave.set()
            await asyncio.sleep(0.01)  # the server hears that the client has left; a request before that would wait for the same load
            second = asyncio.create_task(embed(client, "a"))
            assert (await second).status == 200
            await first
            assert noted.count("load") == 2

    asyncio.run(main())


def test_the_longest_unused_model_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    noted = loads(monkeypatch)

    async def main() -> None:
        application = server("abc", lazy=True, max_loaded=2)
        models = {each.name: each for each in application.state.server.models}
        async with running(application) as client:
            for name in "abac":
                assert (await embed(client, name)).status == 200
            assert {name for name, each in models.items() if each.model} == {"a", "c"} and noted == ["load"] * 3
            # Models that requests hold stay.
            async with application.state.server.models.use("a"), application.state.server.models.use("c"):
                refused = await embed(client, "b")
                assert refused.status == 503 and 1 <= int(refused.headers["retry-after"]) <= 60
                assert (await embed(client, "a")).status == 200
            assert (await embed(client, "b")).status == 200
            assert sum(each.model is not None for each in models.values()) == 2
            # Requests for more models than there is room for, at once: each is answered, or told to come again.
            answers = await asyncio.gather(*(embed(client, name) for name in "abcabcabc"))
            assert {answer.status for answer in answers} <= {200, 503}
            assert sum(each.model is not None for each in models.values()) <= 2

    asyncio.run(main())


def test_an_unused_model_is_unloaded_and_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    noted = loads(monkeypatch)

    async def main() -> None:
        application = server("a", idle_unload=0.3)
        served = next(iter(application.state.server.models))
        async with running(application) as client:
            async with application.state.server.models.use("a"):
                await asyncio.sleep(1.0)
                assert served.model is not None  # a request holds it
                before = len(noted)
            await until(lambda: served.model is None)
            assert (await client.get("/ready")).status == 200
            assert (await embed(client, "a")).status == 200 and len(noted) == before + 1

    asyncio.run(main())


def test_an_error_of_an_unload_ends_no_other_one(monkeypatch: pytest.MonkeyPatch) -> None:
    loads(monkeypatch)
    tried: list[str] = []

    async def main() -> None:
        application = server("ab", idle_unload=0.1)
        models = application.state.server.models
        unload = models.unload

        async def fails_once(served: Any) -> None:
            tried.append(served.name)
            if len(tried) == 1:
                raise MemoryError
            await unload(served)

        monkeypatch.setattr(models, "unload", fails_once)
        async with running(application):
            await until(lambda: all(served.model is None for served in models))
            assert len(tried) == 3

    asyncio.run(main())


def test_a_model_of_the_caller_is_never_unloaded(minilm: pumice.Model) -> None:
    async def main() -> None:
        async with running(app({"mine": minilm, "a": samples.minilm()}, load={"a": TINY}, idle_unload=0.2, max_loaded=1)) as client:
            assert (await embed(client, "a")).status == 503  # the one place is taken
            await asyncio.sleep(0.5)
            assert (await embed(client, "mine")).status == 200

    asyncio.run(main())
    assert minilm.encode("a").shape == (384,)


def test_a_model_that_cannot_be_loaded(tmp_path: Path) -> None:
    (tmp_path / "broken.gguf").write_bytes(b"GGUF but no more")

    async def main() -> None:
        async with running(app({"bad": tmp_path / "broken.gguf", "a": samples.minilm()}, load={"a": TINY}, lazy=True)) as client:
            for _ in range(2):
                answer = await embed(client, "bad")
                assert answer.status == 503 and "could not be loaded" in answer.error["message"]
            assert (await embed(client, "a")).status == 200
            listed = {each["id"]: each["meta"] for each in (await client.get("/v1/models")).json["data"]}
            assert "ModelFormatError" in listed["bad"]["error"] and "error" not in listed["a"]

    asyncio.run(main())


def test_any_error_of_a_load_ends_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    class Panic(BaseException):
        """What a package written in Rust raises is not an Exception."""

    async def aload(source: Any, **options: Any) -> Any:
        raise Panic("at the disco")

    monkeypatch.setattr(pumice, "aload", aload)
    listening = listen("127.0.0.1", 0, None, 128)
    with listening, pytest.raises(Panic, match="at the disco"):
        serve(server("a"), listening, lambda: None, lambda: None)


def test_requests_while_models_are_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    loads(monkeypatch, 600.0)

    async def main() -> None:
        async with running(server("a"), ready=False) as client:
            answer, ready = await embed(client, "a"), await client.get("/ready")
            assert answer.status == ready.status == 503 and answer.error["code"] == "loading" and ready.json == {"status": "loading"}
            assert 1 <= int(answer.headers["retry-after"]) <= 60
            health = await client.get("/health")
            assert health.status == 503 and health.json == {"status": "loading"}

    asyncio.run(main())  # and the server can stop in the middle of a load


def test_a_lost_device_is_told(minilm: pumice.Model, monkeypatch: pytest.MonkeyPatch) -> None:
    async def lost(*_: Any, **__: Any) -> None:
        raise pumice.DeviceLostError("vulkan:0 was lost")

    async def main() -> None:
        async with running(app({"a": minilm})) as client:
            assert (await client.get("/ready")).status == 200
            monkeypatch.setattr(pumice.Model, "aencode", lost)
            answer = await embed(client, "a")
            assert answer.status == 500 and answer.headers["x-should-retry"] == "false"
            ready = await client.get("/ready")
            assert ready.status == 503 and "vulkan:0 was lost" in ready.json["status"]
            assert (await client.get("/health")).status == 200

    asyncio.run(main())


def test_aliases_and_names(minilm: pumice.Model) -> None:
    async def main() -> None:
        async with running(app({"a": minilm, "b": minilm}, aliases={"text-embedding-3-small": "a"})) as client:
            assert (await embed(client, "text-embedding-3-small")).json["model"] == "a"
            answer = await embed(client, "c")
            assert answer.status == 404 and "a, b, text-embedding-3-small" in answer.error["message"]
            assert (await client.post("/v1/embeddings", {"input": "a"})).status == 400  # which of the two?

    asyncio.run(main())


def test_one_model_answers_to_all_names(minilm: pumice.Model) -> None:
    async def main() -> None:
        models = {"a": minilm, "b": minilm}
        async with running(app(models, default_model="b", aliases={"text-embedding-3-small": "a"})) as client:
            for name, own in (("gpt-4o", "b"), ("", "b"), (None, "b"), ("b", "b"), ("a", "a"), ("text-embedding-3-small", "a")):
                assert (await embed(client, name)).json["model"] == own
            assert (await client.post("/v1/embeddings", {"input": "a"})).json["model"] == "b"
            assert (await client.get("/v1/models/gpt-4o")).json["id"] == "b"
            assert [each["id"] for each in (await client.get("/v1/models")).json["data"]] == ["a", "b"]
        async with running(app({"a": minilm}, default_model="a")) as client:
            assert (await embed(client, "gpt-4o")).json["model"] == "a"

    asyncio.run(main())
    with pytest.raises(ValueError, match="default_model='c' is not a model of this server"):
        app({"a": minilm}, default_model="c")


def test_retry_after() -> None:
    from pumice.serve.models import Rate

    rate = Rate()
    assert rate.seconds_for(100) == 5  # nothing is known
    for _ in range(60):
        rate.count()
    assert [rate.seconds_for(waiting) for waiting in (0, 1, 10, 60, 10**6)] == [1, 1, 10, 60, 60]
