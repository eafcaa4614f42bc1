"""Traces of requests: the trace that a client names in `traceparent` (https://www.w3.org/TR/trace-context/), and, if Settings.otel is set,
spans with the attributes of OpenTelemetry's conventions for generative models. Spans are made when a request is over, from times that
were noted anyway, so a request takes no longer until then.

The packages of OpenTelemetry are only imported if Settings.otel is set."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .calls import Call

# version, trace id, span id, flags; a later version may append more
_PARENT = re.compile(r"(?!ff)[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}(?:-.{0,200})?")
# The last part of a path -> gen_ai.operation.name, where the conventions have a name for what the path does.
_OPERATIONS = {
    "completions": "text_completion", "responses": "chat", "messages": "chat", "embeddings": "embeddings", "embed": "embeddings",
}  # fmt: skip
_SETTINGS = {"temperature": "temperature", "top_p": "top_p", "top_k": "top_k", "max_new_tokens": "max_tokens", "seed": "seed"}
FLUSH_SECONDS = 5.0  # maximum time in seconds for which the end of the server waits for spans that are not sent yet


def trace_of(headers: Mapping[str, str]) -> str | None:
    """Returns the id of the trace in the header traceparent, 32 hexadecimal digits, or None if there is none or it is malformed."""
    found = _PARENT.fullmatch(headers.get("traceparent", ""))
    return None if found is None else found[1]


def check_packages() -> None:
    """Raises ImportError, which names the extra, if a package that sends spans is missing."""
    try:
        from opentelemetry import trace

        if isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider):
            import opentelemetry.exporter.otlp.proto.http.trace_exporter  # noqa: F401
    except ImportError as error:
        raise ImportError(f"otel needs the packages of its extra: pip install 'pumice[otel]' ({error})", name=error.name) from None


class Traces:
    """Sends a span for each request, with child spans for its parts. If the program has set a TracerProvider of its own, spans go there.
    Else they go to the collector that the OTEL_ variables of the environment name."""

    def __init__(self) -> None:
        from opentelemetry import trace
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        import pumice

        provider: Any = trace.get_tracer_provider()
        self._own: Any = None
        if isinstance(provider, trace.ProxyTracerProvider):  # the program has set none
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
            from opentelemetry.sdk.resources import OTELResourceDetector, Resource
            from opentelemetry.sdk.trace import TracerProvider
            from opentelemetry.sdk.trace.export import BatchSpanProcessor

            # What the environment says comes last, and replaces the name.
            resource = Resource.create({"service.name": "pumice"}).merge(OTELResourceDetector().detect())
            provider = self._own = TracerProvider(resource=resource)
            provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
        self._api, self._propagator = trace, TraceContextTextMapPropagator()
        self._tracer = provider.get_tracer("pumice.serve", pumice.__version__)

    def close(self) -> None:
        """Sends the spans that are left. Takes at most FLUSH_SECONDS, and some time for the exporter's end."""
        if self._own is not None:
            self._own.force_flush(int(FLUSH_SECONDS * 1000))
            self._own.shutdown()

    def ended(self, scope: Mapping[str, Any], headers: Mapping[str, str], status: int, started: float, call: Call | None) -> str:
        """Makes the spans of a request that is over. started: time.monotonic() at its beginning. call: the request, or None if it had no
        endpoint. Returns the id of the trace."""
        now = time.monotonic()
        shift = time.time_ns() - int(now * 1e9)  # what turns a time of the monotonic clock to one of the wall clock

        def at(moment: float) -> int:
            return int(moment * 1e9) + shift

        told = {"http.request.method": scope["method"][:20], "url.path": scope["path"][:200], "http.response.status_code": status}
        name = str(told["http.request.method"])
        parts: list[tuple[str, float, float]] = []
        if call is not None:
            told |= {key: value for key, value in _attributes(call) if value is not None}
            parts = _parts(call, started)
            if "gen_ai.request.model" in told:
                name = f"{told['gen_ai.operation.name']} {told['gen_ai.request.model']}"
        span = self._tracer.start_span(
            name, self._propagator.extract(headers), self._api.SpanKind.SERVER, attributes=told, start_time=at(started)
        )
        inside = self._api.set_span_in_context(span)
        for part, begin, end in parts:
            self._tracer.start_span(part, inside, start_time=at(begin)).end(at(end))
        if status >= 500 or "error.type" in told and status < 400:
            span.set_status(self._api.StatusCode.ERROR)
        span.end(at(now))
        return f"{span.get_span_context().trace_id:032x}"


def _attributes(call: Call) -> Iterator[tuple[str, Any]]:
    """Yields the attributes of a request to a model (https://opentelemetry.io/docs/specs/semconv/gen-ai/)."""
    yield "pumice.request_id", call.id
    yield "error.type", call.failed_with
    if call.asked_model is None:
        return
    last = str(call.scope["path"]).rstrip("/").rpartition("/")[2]
    yield "gen_ai.operation.name", "chat" if call.scope["path"].endswith("/chat/completions") else _OPERATIONS.get(last, last)
    yield "gen_ai.provider.name", "pumice"
    yield "gen_ai.request.model", call.asked_model[:200]
    yield "gen_ai.response.model", call.model
    yield "gen_ai.server.time_to_first_token", call.first_seconds
    if call.text_tokens is not None:
        yield "gen_ai.usage.input_tokens", call.text_tokens
    if results := call.results:
        yield "gen_ai.usage.input_tokens", sum(each.prompt_tokens for each in results[:: results[0].params.n])
        yield "gen_ai.usage.output_tokens", sum(len(each.ids) for each in results)
        yield "gen_ai.response.finish_reasons", [str(each.finish_reason) for each in results]
        for setting, attribute in _SETTINGS.items():
            value = getattr(results[0].params, setting)
            yield f"gen_ai.request.{attribute}", value if value is None or value < 1 << 63 else None  # OTLP has no larger whole numbers


def _parts(call: Call, started: float) -> list[tuple[str, float, float]]:
    """Returns the parts of a request that generated text: (name, beginning, end), by the monotonic clock. If the request has several
    prompts, the engine's times are those of the last one."""
    results, began = call.results, call.admitted_at
    if not results or began is None:
        return []
    timings = results[0].timings
    edges = [began + timings[name] for name in ("queued_seconds", "first_token_seconds") if name in timings]
    edges = [started, began, *edges, *([max(edges[-1], call.heard or 0.0)] if len(edges) == 2 else [])]
    return list(zip(("prepare", "queue", "prompt", "decode"), edges, edges[1:], strict=False))
