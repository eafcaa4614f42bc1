"""`pumice serve --workers N`: N processes that share one copy of the weights and one listening socket.

The models are loaded in this process, which then forks. Weights are only read, so the processes continue to share their memory. Each
process has its own batch, its own keys and values, and 1/N of the threads. A process that dies is replaced, and the requests of the others
continue."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import select
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from types import FrameType
from typing import Any

import pumice

from .. import _core
from ..model.model import Model
from .application import app
from .process import LAST_SECONDS, Process
from .response_memory import ResponseMemory
from .settings import Settings
from .worker_figures import FigureSockets, WorkerFigures

logger = logging.getLogger("pumice.serve")

# A worker that lived for less than SHORT seconds is replaced PAUSE seconds later, so that a worker that always dies does not keep the
# machine busy. If a worker could not be started, the next try is PAUSE seconds later, too.
SHORT, PAUSE = 5.0, 1.0


class Worker(Process):
    """The server in a forked process. It stops when its parent tells it to, when its parent has died, and at SIGTERM. A terminal sends
    Ctrl-C to all processes, but only the parent acts on it."""

    def __init__(self, parent: socket.socket, **given: Any) -> None:
        super().__init__(**given)
        self._parent = parent

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begins to listen for requests, and to the parent's socket. Any byte from the parent, or the end of the socket, means that the
        worker must stop."""
        # asyncio accepts up to `backlog` connections at once. With more than 1, if several connections arrive together, the worker that
        # wakes first would accept all of them. The listen() below makes the system's own queue of connections long again.
        self.config.backlog = 1
        await super().startup(sockets)
        if self.served.workers is not None:
            self.served.workers.listen()
        for each in sockets or ():
            each.listen(self.served.settings.connections)
        loop = asyncio.get_running_loop()

        def told() -> None:
            loop.remove_reader(self._parent.fileno())
            self.stop()

        loop.add_reader(self._parent.fileno(), told)

    def stop(self) -> None:
        """Tells the process to stop. Further calls do nothing, because the parent kills a worker that must end at once."""
        if not self.stops:
            super().stop()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Handles SIGTERM, and ignores Ctrl-C."""
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, lambda *_: self.stop())
        yield


@dataclass
class Child:
    """The parent's record of a worker."""

    number: int
    pid: int
    link: socket.socket
    started: float


class Workers:
    """The parent of all workers. It computes nothing itself."""

    def __init__(
        self, models: Mapping[str, Model], settings: Settings, count: int, listening: socket.socket, ready: Callable[[], None]
    ) -> None:
        self._models, self._settings, self._count, self._listening, self._ready = models, settings, count, listening, ready
        self._children: dict[int, Child] = {}  # number of a worker -> its record
        self._due: dict[int, float] = {}  # number of a worker -> time at which it is to be started
        self._stops = 0
        self._figures = FigureSockets(count)

    def run(self) -> int:
        """Runs the workers until SIGTERM or Ctrl-C. Returns 0."""
        waker, woken = socket.socketpair()
        waker.setblocking(False)
        woken.setblocking(False)
        signal.set_wakeup_fd(waker.fileno(), warn_on_full_buffer=False)
        for each in (signal.SIGINT, signal.SIGTERM):
            signal.signal(each, self._told)
        self._due = dict.fromkeys(range(self._count), 0.0)
        told = False
        kill: float | None = None  # time at which workers that still run are killed, or None before the first stop
        while self._due or self._children:
            now = time.monotonic()
            if self._stops:
                self._due = {}
                if kill is None:
                    kill = now + self._settings.grace + 2 * LAST_SECONDS
                    for child in self._children.values():
                        with contextlib.suppress(OSError):
                            child.link.send(b"s")
                if self._stops > 1 or now > kill:
                    for child in self._children.values():
                        os.kill(child.pid, signal.SIGKILL)
            for number in [number for number, due in self._due.items() if due <= now]:
                del self._due[number]
                self._start(number)
            links = {child.link: child for child in self._children.values()}
            heard, _, _ = select.select([woken, *links], [], [], 0.1 if self._stops or self._due else 5.0)
            for link in heard:
                with contextlib.suppress(OSError):
                    if link.recv(4096) and link is not woken and not told:
                        told = True
                        self._ready()
            self._reap()
        signal.set_wakeup_fd(-1)
        self._figures.close()
        return 0

    def _told(self, _: int, __: FrameType | None) -> None:
        self._stops += 1

    def _reap(self) -> None:
        """Removes workers that have ended, and schedules a successor for each."""
        for child in list(self._children.values()):
            ended, status = os.waitpid(child.pid, os.WNOHANG)
            if not ended:
                continue
            del self._children[child.number]
            child.link.close()
            if not self._stops:
                code, now = os.waitstatus_to_exitcode(status), time.monotonic()
                how = f"signal {-code}" if code < 0 else f"exit code {code}"
                logger.error("worker %d (process %d) ended with %s; another one takes its place", child.number, child.pid, how)
                self._due[child.number] = now + (PAUSE if now - child.started < SHORT else 0.0)

    def _start(self, number: int) -> None:
        """Forks a worker. If the system cannot (EAGAIN, ENOMEM, EMFILE), logs this, and tries again after PAUSE seconds."""
        with contextlib.ExitStack() as opened:
            try:
                mine, its = map(opened.enter_context, socket.socketpair())
                pid = os.fork()
            except OSError as error:
                limits = "The system may limit memory, processes (ulimit -u) or open files (ulimit -n)"
                logger.error("worker %d could not be started: %s; next try in %g s. %s", number, error, PAUSE, limits)
                self._due[number] = time.monotonic() + PAUSE
                return
            opened.pop_all()
        if pid:
            its.close()
            self._children[number] = Child(number, pid, mine, time.monotonic())
            return
        code = 1
        try:
            signal.set_wakeup_fd(-1)
            mine.close()
            for child in self._children.values():
                # otherwise the other workers would not notice the parent's death, because this process would keep their sockets open
                child.link.close()
            given = {field.name: getattr(self._settings, field.name) for field in fields(self._settings)}

            def ready() -> None:
                with contextlib.suppress(OSError):  # if the parent has died, the worker notices that and stops
                    its.send(b"r")

            worker = Worker(its, application=app(self._models, **given), ready=ready)
            worker.served.workers = WorkerFigures(worker.served, self._figures, number)
            worker.run(sockets=[self._listening])
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            with contextlib.suppress(Exception):
                sys.stderr.flush()
            os._exit(code)  # and not sys.exit(), which would also run what the parent does at its end


def run(
    sources: Mapping[str, Any],
    options: Mapping[str, Mapping[str, Any]],
    settings: Settings,
    count: int,
    listening: socket.socket,
    ready: Callable[[], None] = lambda: None,
) -> int:
    """Loads models and serves them with `count` processes, until SIGTERM or Ctrl-C. Returns 0.

    sources: name -> the source that load() takes. options: name -> keywords of load(). Raises ValueError for settings and models that
    processes cannot share, and the errors of load()."""
    for name in ("lazy", "idle_unload", "max_loaded"):
        if getattr(settings, name):
            raise ValueError(
                f"--{name.replace('_', '-')} and --workers {count} were both given: workers share models that are loaded before"
            )
    if settings.responses is None:
        logger.info("responses are not kept, because each worker has a memory of its own: --responses FOLDER keeps them for all")
        settings = replace(settings, max_responses=0)
    ResponseMemory(settings.responses, settings.max_responses, settings.max_responses_bytes).close()  # raises the errors of the folder
    stopped = signal.signal(signal.SIGTERM, signal.default_int_handler)  # lets SIGTERM interrupt a load
    models = {}
    try:
        for name, source in sources.items():
            threads = int(options[name].get("threads") or _core.build_info()["threads"])
            model = models[name] = pumice.load(source, **{**options[name], "threads": max(1, threads // count)})
            used = [each["id"] for each in model.info["devices"]]
            if used != ["cpu"]:
                raise ValueError(
                    f"{name} is on {', '.join(used)}, and processes can share the memory of CPU models alone: "
                    "--device cpu, or leave --workers out"
                )
            logger.info("loaded %s", name)
    except KeyboardInterrupt:
        return 0
    finally:
        signal.signal(signal.SIGTERM, stopped)
    if (others := threading.active_count() - 1) > 0:
        logger.debug("%d other threads run at the fork", others)
    gc.collect()
    gc.freeze()  # keeps the workers' garbage collectors from writing to existing objects, whose memory pages are shared until then
    return Workers(models, settings, count, listening, ready).run()
