"""The metrics of /metrics, in Prometheus' format. Names and meanings follow vLLM's, with the prefix pumice_."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

if TYPE_CHECKING:
    from .calls import Call
    from .models import Models

# Metrics as plain values: a list of (name of the family, help text, type, samples), where a sample is (name, labels, value).
Families = list[tuple[str, str, str, list[tuple[str, dict[str, str], float]]]]

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)

# Key of Model.stats() or Model.cache_stats() -> (name, help text, whether the value only grows).
_OF_MODELS = {
    "running": ("requests_running", "requests that take part in steps", False),
    "waiting": ("requests_waiting", "requests that wait", False),
    "lagging": ("requests_lagging", "streams that their clients read too slowly", False),
    "prompt_tokens": ("prompt_tokens", "tokens of prompts that were computed", True),
    "reused_tokens": ("reused_tokens", "tokens of prompts that the prefix cache had", True),
    "decoded_tokens": ("generation_tokens", "tokens that were generated", True),
    "preempted": ("preempted_sequences", "sequences that gave up their pages", True),
    "steps": ("steps", "steps of the engine", True),
    "busy_seconds": ("busy_seconds", "time that the engine computed", True),
    "step_rows": ("step_rows", "rows of the last step", False),
    "pages_in_use": ("kv_pages_in_use", "pages of keys and values, each for 32 positions", False),
    "pages_cached": ("kv_pages_cached", "pages that hold prefixes", False),
    "pages_budget": ("kv_pages_budget", "the most pages", False),
    "texts": ("encoded_texts", "texts that an encoder read", True),
    "tokens": ("encoded_tokens", "tokens of texts that an encoder read", True),
    "runs": ("encoder_runs", "runs of the encoder", True),
}


class _OfModels:
    """Collects the models' own counts when /metrics is requested. Loads nothing."""

    def __init__(self, models: Models) -> None:
        self._models = models

    def collect(self) -> Iterable[Any]:
        loaded = GaugeMetricFamily("pumice_model_loaded", "1: the model is in memory", labels=["model"])
        users = GaugeMetricFamily("pumice_model_requests", "requests that hold the model", labels=["model"])
        families: dict[str, Any] = {}
        for served in self._models:
            loaded.add_metric([served.name], served.model is not None)
            users.add_metric([served.name], served.users)
            model = served.model
            if model is None:
                continue
            try:
                known = {**model.stats(), **(model.cache_stats() if "generate" in model._info["tasks"] else {})}
            except ValueError:  # the model was closed at this moment
                continue
            for key, (name, about, grows) in _OF_MODELS.items():
                if key in known:
                    kind = CounterMetricFamily if grows else GaugeMetricFamily
                    family = families.setdefault(key, kind(f"pumice_{name}", about, labels=["model"]))
                    family.add_metric([served.name], float(known[key]))
        return [loaded, users, *families.values()]

    def describe(self) -> Iterable[Any]:
        return []


class Metrics:
    """All metrics of a server."""

    def __init__(self, models: Models) -> None:
        self._registry = CollectorRegistry()
        self._registry.register(_OfModels(models))

        def made(kind: Any, name: str, about: str, labels: list[str], **more: Any) -> Callable[..., Any]:
            """Registers a metric. Returns the function from the values of its labels to its child with them. It keeps the children, because
            labels() takes longer than what is then counted, and a token is counted in two metrics."""
            return functools.cache(kind(name, about, labels, registry=self._registry, **more).labels)

        seconds: dict[str, Any] = {"buckets": _SECONDS}
        self._requests = made(Counter, "pumice_requests", "requests that were answered", ["endpoint", "code"])
        self._open = made(Gauge, "pumice_requests_open", "requests at work", ["endpoint"])
        self._seconds = made(Histogram, "pumice_request_seconds", "time of whole requests", ["endpoint"], **seconds)
        self._first = made(Histogram, "pumice_first_token_seconds", "time to the first token", ["model"], **seconds)
        self._between = made(Histogram, "pumice_token_seconds", "time between tokens", ["model"], **seconds)
        self._queue = made(Histogram, "pumice_queue_seconds", "time until a step began with the prompt", ["model"], **seconds)
        self._drafted = made(Counter, "pumice_drafted_tokens", "tokens that were guessed", ["model"])
        self._accepted = made(Counter, "pumice_accepted_tokens", "guesses that were right", ["model"])
        self._streamed = made(Counter, "pumice_streamed_tokens", "tokens that were sent to clients", ["model"])
        self._texts = made(Counter, "pumice_embedded_texts", "texts of requests to encoders", ["model"])
        self._text_tokens = made(Counter, "pumice_embedded_tokens", "tokens of texts of requests to encoders", ["model"])

    def begun(self, endpoint: str) -> None:
        """Counts the beginning of a request."""
        self._open(endpoint).inc()

    def ended(self, endpoint: str, call: Call) -> None:
        """Counts the end of a request."""
        self._open(endpoint).dec()
        self._requests(endpoint, str(call.status or 500)).inc()
        self._seconds(endpoint).observe(time.monotonic() - call.started)

    def tokens(self, model: str, count: int, seconds: float, first: bool) -> None:
        """Counts tokens of an answer that arrived `seconds` after the previous ones, or after the beginning of the request."""
        self._streamed(model).inc(count)
        if first:
            self._first(model).observe(seconds)
        else:
            self._between(model).observe(seconds / count)

    def generated(self, model: str, timings: Mapping[str, float]) -> None:
        """Counts a call of generate() or chat() that has ended. timings: those of its result."""
        self._drafted(model).inc(timings.get("drafted_tokens", 0))
        self._accepted(model).inc(timings.get("accepted_tokens", 0))
        if (queued := timings.get("queued_seconds")) is not None:
            self._queue(model).observe(queued)

    def texts(self, model: str, texts: int, tokens: int) -> None:
        """Counts texts that an encoder has computed."""
        self._texts(model).inc(texts)
        self._text_tokens(model).inc(tokens)

    def text(self) -> bytes:
        """Returns all metrics in Prometheus' format."""
        return generate_latest(self._registry)

    def families(self) -> Families:
        """Returns all metrics as plain values."""
        return [
            (family.name, family.documentation, family.type, [(each.name, each.labels, each.value) for each in family.samples])
            for family in self._registry.collect()
        ]


def text_of(workers: Mapping[int, Families | None]) -> bytes:
    """Returns the metrics of several workers in Prometheus' format, each with the number of its worker as the label `worker`. None means
    that the worker did not answer, which pumice_worker_up shows."""
    up = GaugeMetricFamily("pumice_worker_up", "1: the figures of the worker are here; 0: it did not answer", labels=["worker"])
    merged: dict[str, Metric] = {}
    for number, families in sorted(workers.items()):
        up.add_metric([str(number)], families is not None)
        for name, about, kind, samples in families or ():
            family = merged.setdefault(name, Metric(name, about, kind))
            for sample, labels, value in samples:
                family.add_sample(sample, {**labels, "worker": str(number)}, value)
    return generate_latest(_Ready([up, *merged.values()]))


class _Ready:
    """A registry of metrics that have been collected already."""

    def __init__(self, families: list[Metric]) -> None:
        self._families = families

    def collect(self) -> list[Metric]:
        return self._families
