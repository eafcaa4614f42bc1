"""The trace of a request: in the log, and as spans."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from patience import wait_until
from servers import Here, serving

import pumice
from pumice.serve.settings import Settings
from pumice.serve.traces import Traces, trace_of

CHAT = "/v1/chat/completions"
TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
PARENT = f"00-{TRACE}-{SPAN}-01"


@pytest.mark.parametrize(
    ("given", "found"),
    [
        (PARENT, TRACE),
        (f"01-{TRACE}-{SPAN}-01-later", TRACE),
        (PARENT.upper(), None),
        (f"ff-{TRACE}-{SPAN}-01", None),
        (f"00-{'0' * 32}-{SPAN}-01", None),
        (f"00-{TRACE}-{'0' * 16}-01", None),
        (f"{PARENT}\n2026-01-01 ERROR forged", None),
        ("", None),
    ],
)
def test_traceparent(given: str, found: str | None) -> None:
    assert trace_of({"traceparent": given}) == found


def test_the_log_names_the_trace(smollm2: pumice.Model, caplog: pytest.LogCaptureFixture) -> None:
    with serving({"chat": smollm2}) as here, caplog.at_level(logging.INFO, "pumice.serve.access"):
        assert here.get("/v1/models", {"traceparent": PARENT}).status == 200
        wait_until(lambda: any(record.getMessage().endswith(f" trace={TRACE}") for record in caplog.records))


def test_the_extra_is_named(smollm2: pumice.Model, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    with pytest.raises(ImportError, match=r"pumice\[otel\]"):
        pumice.serve.app({"chat": smollm2}, otel=True)
    assert not Settings().otel  # nothing is sent unless asked


@pytest.fixture(scope="module")
def exporter() -> Any:
    """Keeps the spans of this process, which is given a TracerProvider here."""
    pytest.importorskip("opentelemetry.sdk")
    from opentelemetry import trace
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    trace.set_tracer_provider(provider)
    return exporter


@pytest.fixture(scope="module")
def traced(smollm2: pumice.Model, minilm: pumice.Model, exporter: Any) -> Iterator[Here]:
    with serving({"chat": smollm2, "embed": minilm}, otel=True) as here:
        yield here


def spans(exporter: Any) -> dict[str, Any]:
    """Returns the spans of the last request by name, once its own span has come, which is the last."""
    wait_until(lambda: any(span.kind.name == "SERVER" for span in exporter.get_finished_spans()))
    found = {span.name: span for span in exporter.get_finished_spans()}
    exporter.clear()
    return found


@pytest.mark.parametrize(("stream", "seed"), [(False, 7), (True, (1 << 64) - 1)])  # OTLP has no whole number of more than 63 bits
def test_a_chat(traced: Here, exporter: Any, stream: bool, seed: int) -> None:
    exporter.clear()
    body = {"model": "chat", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 3, "temperature": 0, "ignore_eos": True}
    headers = {"traceparent": PARENT, "tracestate": "a=b", "x-request-id": "mine"}
    reply = traced.post(CHAT, {**body, "stream": stream, "seed": seed}, headers)
    assert reply.status == 200
    found = spans(exporter)
    assert set(found) == {"chat chat", "prepare", "queue", "prompt", "decode"}
    span = found["chat chat"]
    assert f"{span.context.trace_id:032x}" == TRACE and f"{span.parent.span_id:016x}" == SPAN
    assert span.context.trace_state.get("a") == "b"
    told = dict(span.attributes)
    assert 0 < told.pop("gen_ai.server.time_to_first_token") < (span.end_time - span.start_time) / 1e9
    assert told.pop("gen_ai.usage.input_tokens") > 0 and told.get("gen_ai.request.seed") == (seed if seed < 1 << 63 else None)
    assert told["gen_ai.request.temperature"] == 0 and told["gen_ai.request.max_tokens"] == 3
    assert told["gen_ai.usage.output_tokens"] == 3 and told["gen_ai.response.finish_reasons"] == ("length",)
    assert told["gen_ai.operation.name"] == "chat" and told["gen_ai.response.model"] == "chat"
    assert told["http.response.status_code"] == 200 and told["pumice.request_id"] == "mine" and "error.type" not in told
    parts = [found[name] for name in ("prepare", "queue", "prompt", "decode")]
    assert all(part.parent.span_id == span.context.span_id for part in parts)
    assert all(one.end_time == two.start_time for one, two in zip(parts, parts[1:], strict=False))
    assert span.start_time == parts[0].start_time and parts[-1].end_time <= span.end_time


def test_vectors(traced: Here, exporter: Any) -> None:
    exporter.clear()
    assert traced.post("/v1/embeddings", {"model": "embed", "input": "Hi"}).status == 200
    found = spans(exporter)
    assert set(found) == {"embeddings embed"}
    assert found["embeddings embed"].attributes["gen_ai.usage.input_tokens"] == 3 and found["embeddings embed"].parent is None


@pytest.mark.parametrize(
    ("path", "body", "status", "error"),
    [
        (CHAT, {"model": "secret", "messages": [{"role": "user", "content": "private"}]}, 404, "model_not_found"),
        (CHAT, {"model": "chat", "messages": [{"role": "user", "content": "private"}], "temperature": "private"}, 400, None),
        ("/nothing", {}, 404, None),
    ],
)
def test_refused_requests(traced: Here, exporter: Any, path: str, body: Any, status: int, error: str | None) -> None:
    exporter.clear()
    assert traced.post(path, body).status == status
    (span,) = spans(exporter).values()
    assert span.attributes["http.response.status_code"] == status and span.name == "POST"
    assert error is None or span.attributes["error.type"] == error
    assert not any(word in str(value) for value in span.attributes.values() for word in ("private", "secret"))


def test_health_has_no_span(traced: Here, exporter: Any) -> None:
    exporter.clear()
    assert traced.get("/health").status == 200 and traced.get("/v1/models").status == 200
    assert set(spans(exporter)) == {"GET"}


def test_spans_of_the_program_stay_open(exporter: Any) -> None:
    """A server ends only the provider that it has made itself."""
    traces = Traces()
    traces.close()
    assert traces._own is None
