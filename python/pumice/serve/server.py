"""What all requests share: settings, models, figures and the tables of fields."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from ..common.forks import cached_property
from ..errors import DeviceLostError
from ..event_loops.workers import Workers, in_thread
from . import chat_completions, completions, embeddings, listings, messages, rerank, responses
from .failures import Refused
from .fields import Fields
from .metrics import Metrics
from .models import Models
from .settings import Settings

if TYPE_CHECKING:
    from .calls import Call
    from .worker_figures import WorkerFigures

logger = logging.getLogger("pumice.serve")
T = TypeVar("T")

THREADS, MOST_ASIDE = 8, 4096  # for work that takes longer than an event loop should be busy, and how much of it may wait


class Tables:
    """The table of fields of each endpoint, made once for the server's limits."""

    def __init__(self, settings: Settings) -> None:
        self.chat = chat_completions.fields(settings)
        self.completions = completions.fields(settings)
        self.responses = responses.fields(settings)
        self.messages = messages.fields(settings)
        self.count_tokens = messages.count_fields(settings)
        self.embeddings = embeddings.fields(settings)
        self.rerank = rerank.fields(settings)
        self.tokenize = listings.tokenize_fields(settings)
        self.detokenize = listings.detokenize_fields(settings)
        self.template = listings.template_fields(settings)

    def by_path(self) -> dict[str, Fields]:
        """Returns the tables by the paths that they describe."""
        return {
            "/v1/chat/completions": self.chat,
            "/v1/completions": self.completions,
            "/v1/responses": self.responses,
            "/v1/responses/input_tokens": self.responses,
            "/v1/messages": self.messages,
            "/v1/messages/count_tokens": self.count_tokens,
            "/v1/embeddings": self.embeddings,
            "/v1/rerank": self.rerank,
            "/rerank": self.rerank,
            "/v2/rerank": self.rerank,
            "/tokenize": self.tokenize,
            "/detokenize": self.detokenize,
            "/apply-template": self.template,
        }


class Server:
    """A server without its connections."""

    def __init__(
        self,
        sources: Mapping[str, Any],
        options: Mapping[str, Mapping[str, Any]],
        settings: Settings,
        paths: Sequence[tuple[str, str, Any, Any]],
    ) -> None:
        """paths: those of the application, for its description."""
        self.settings, self.paths = settings, paths
        self._threads = Workers(THREADS, MOST_ASIDE)
        self.models = Models(sources, options, settings, self.aside)
        self.metrics = Metrics(self.models)
        self.tables = Tables(settings)
        self.held_bytes = 0  # of bodies that wait or are at work
        self.calls: set[Call] = set()  # at work
        self.stopping = False
        self.lost: str | None = None  # what a driver said when a GPU was lost: its models do not run until the process starts again
        self.failed: BaseException | None = None  # why the models could not be loaded
        self.logs_failure = True  # False: `pumice serve` ends with this error as its one line
        self.workers: WorkerFigures | None = None  # of `--workers`, how this one asks the others for their figures
        self._starting: asyncio.Task[None] | None = None

    # ---------------------------------------------------------------- life
    async def start(self) -> None:
        """Begins to load the models. Requests are taken meanwhile, and /ready says 503."""
        self._starting = asyncio.create_task(self._load())

    async def _load(self) -> None:
        try:
            await self.models.start()
        except (asyncio.CancelledError, KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # also a panic of a package written in Rust, after which the server would load for ever
            self.failed = error
            if self.logs_failure:
                logger.error("the models could not be loaded: %s", error)

    async def stop(self) -> None:
        """Frees the models that the server loaded."""
        self.stopping = True
        if self._starting is not None:
            self._starting.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._starting
        await self.models.stop()
        self._threads.end()

    @property
    def not_ready(self) -> str | None:
        """Why requests are not taken, or None."""
        if self.stopping:
            return "stopping"
        if self.failed is not None:
            return f"failed: {self.failed}"
        if self.lost is not None:
            return f"a device was lost: {self.lost}"
        return None if self.models.ready else "loading"

    def end_calls(self) -> None:
        """Ends all requests at work with an error, because the server stops."""
        for call in list(self.calls):
            call.end(Refused(503, "this server stops", code="stopping", retry_after=5))

    # ---------------------------------------------------------------- help for requests
    async def aside(self, work: Callable[..., T], *args: Any) -> T:
        """Has a thread call work(*args), because it may take longer than an event loop should be busy (5 ms)."""
        return await in_thread(self._threads, lambda: work(*args))

    async def figures(self) -> bytes:
        """Returns the content of /metrics: of all workers, if there are some."""
        return await (self.aside(self.metrics.text) if self.workers is None else self.workers.text())

    def retry_after(self, model: str | None) -> int:
        """Returns in how many seconds a client should try again."""
        served = next((each for each in self.models if each.name == model), None)
        if served is None or served.model is None:
            return 1
        try:
            waiting = int(served.model.stats()["waiting"])
        except ValueError:  # it is closed in this moment
            return 1
        return served.rate.seconds_for(waiting)

    def log_failure(self, call: Call, failure: Refused, error: BaseException) -> None:
        """Writes a failure to the log, and remembers that a GPU was lost. The text of a request is never written."""
        if isinstance(error, DeviceLostError):
            self.lost = str(error)
        if failure is error:
            level = logging.WARNING if failure.status >= 500 else logging.DEBUG
            logger.log(level, "%s: %d %s", call.id, failure.status, failure.code or "", exc_info=error.__cause__)
        elif failure.status >= 500:
            logger.error("%s: %s %d", call.id, type(error).__name__, failure.status, exc_info=error)
        else:
            logger.debug("%s: %d", call.id, failure.status)

    @property
    def fingerprint(self) -> str:
        """OpenAI's system_fingerprint: equal seeds give equal answers while it is the same."""
        import pumice

        return f"pumice-{pumice.__version__}"

    @cached_property
    def description(self) -> dict[str, Any]:
        """The content of /openapi.json."""
        from .description import describe

        return describe(self)
