"""The part that all requests share: settings, models and metrics."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from ..common.forks import cached_property
from ..errors import DeviceLostError
from ..event_loops.workers import Workers, in_thread
from .failures import Refused
from .metrics import Metrics
from .models import LOADING, Models
from .response_memory import ResponseMemory
from .settings import Settings
from .traces import Traces, check_packages

if TYPE_CHECKING:
    from .batches import Batches
    from .calls import Call, Path
    from .files import FileStore
    from .worker_figures import WorkerFigures

logger = logging.getLogger("pumice.serve")
T = TypeVar("T")

# Number of threads for work that would block the event loop for too long, and maximum number of jobs that wait for one of these threads.
THREADS, MOST_ASIDE = 8, 4096


class Server:
    """A server without its connections."""

    def __init__(
        self,
        sources: Mapping[str, Any],
        options: Mapping[str, Mapping[str, Any]],
        settings: Settings,
        paths: Sequence[Path],
    ) -> None:
        """paths: the paths of the application, for its OpenAPI description."""
        self.settings, self.paths = settings, paths
        self._threads = Workers(THREADS, MOST_ASIDE)
        self.models = Models(sources, options, settings, self.aside)
        self.metrics = Metrics(self.models)
        self.memory = ResponseMemory(settings.responses, settings.max_responses, settings.max_responses_bytes)
        self.held_bytes = 0  # number of bytes of the bodies of all waiting and running requests
        self.calls: set[Call] = set()  # the running requests
        self.stopping = False
        # The driver's error if a GPU was lost, or None. Models on a lost GPU do not run until the process is started again.
        self.lost: str | None = None
        self.failed: BaseException | None = None  # the error because of which the models could not be loaded, or None
        self.logs_failure = True  # whether `failed` is logged; False for `pumice serve`, which itself prints the error when it ends
        self.workers: WorkerFigures | None = None  # with `--workers`, the object that collects the metrics of all workers
        self.store: FileStore | None = None  # the files of clients, if the server keeps some
        self.batches: Batches | None = None  # the batches of clients, if the server keeps files
        self.traces: Traces | None = None  # what makes spans of requests, once the server has started; None without Settings.otel
        self._starting: asyncio.Task[None] | None = None
        if settings.otel:
            check_packages()

    # ---------------------------------------------------------------- life
    async def start(self) -> None:
        """Begins to load the models. In the meantime, requests are accepted and /ready answers 503."""
        if self.settings.otel:  # not in the constructor, because threads that send spans do not survive the fork of a worker
            self.traces = Traces()
        self._starting = asyncio.create_task(self._load())
        if self.batches is not None:
            self.batches.start()

    async def _load(self) -> None:
        try:
            await self.models.start()
        except (asyncio.CancelledError, KeyboardInterrupt, SystemExit):
            raise
        # BaseException and not Exception, to catch panics of packages in Rust, too. Otherwise the server would seem to load for ever.
        except BaseException as error:
            self.failed = error
            if self.logs_failure:
                logger.error("the models could not be loaded: %s", error)

    async def stop(self) -> None:
        """Frees the models that the server has loaded."""
        self.stopping = True
        await self.stop_batches()
        if self._starting is not None:
            self._starting.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._starting
        await self.models.stop()
        await self.aside(self.memory.close)
        if self.traces is not None:
            await self.aside(self.traces.close)
        self._threads.end()
        if self.store is not None:
            self.store.close()

    async def stop_batches(self) -> None:
        """Stops the work on batches, with which the next start of the server goes on."""
        if self.batches is not None:
            await self.batches.stop()

    @property
    def not_ready(self) -> str | None:
        """The reason why requests are not accepted, or None."""
        if self.stopping:
            return "stopping"
        if self.failed is not None:
            return f"failed: {self.failed}"
        if self.lost is not None:
            return f"a device was lost: {self.lost}"
        return None if self.models.ready else LOADING

    def end_calls(self) -> None:
        """Ends all running requests with an error, because the server is stopping."""
        for call in list(self.calls):
            call.end(Refused(503, "this server stops", code="stopping", retry_after=5))

    # ---------------------------------------------------------------- help for requests
    async def aside(self, work: Callable[..., T], *args: Any) -> T:
        """Calls work(*args) in a thread, because it may take longer than the event loop may be blocked (5 ms)."""
        return await in_thread(self._threads, lambda: work(*args))

    async def figures(self) -> bytes:
        """Returns the content of /metrics. With several workers, it has the metrics of all of them."""
        return await (self.aside(self.metrics.text) if self.workers is None else self.workers.text())

    def retry_after(self, model: str | None) -> int:
        """Returns the time in seconds after which a client should try again."""
        served = next((each for each in self.models if each.name == model), None)
        if served is None or served.model is None:
            return 1
        try:
            waiting = int(served.model.stats()["waiting"])
        except ValueError:  # the model is being closed
            return 1
        return served.rate.seconds_for(waiting)

    def log_failure(self, call: Call, failure: Refused, error: BaseException) -> None:
        """Logs a failure, and remembers that a GPU was lost. The text of a request is never logged."""
        call.failed_with = failure.code or (str(failure.status) if failure is error else type(error).__name__)
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
        """OpenAI's system_fingerprint. As long as it is the same, equal seeds give equal answers."""
        import pumice

        return f"pumice-{pumice.__version__}"

    @cached_property
    def description(self) -> dict[str, Any]:
        """The content of /openapi.json."""
        from .description import describe

        return describe(self)
