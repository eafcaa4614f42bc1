"""The models of a server, by name. They are loaded at the start or when first requested, and unloaded when nobody uses them."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from typing import Any

import pumice

from ..common.arguments import check_text
from ..model.model import Model
from .failures import Refused
from .settings import Settings
from .template_habits import TemplateHabits, habits_of

logger = logging.getLogger("pumice.serve")

LOADING = "loading"  # status of a server that loads its models, and code of the error for requests in the meantime


class Served:
    """One model with its name. It may be in memory or not."""

    def __init__(self, name: str, source: Any, options: Mapping[str, Any]) -> None:
        self.name = name
        self.aliases: list[str] = []  # other names of the model
        self._source, self._options = source, dict(options)
        self.model: Model | None = source if isinstance(source, Model) else None
        self.kept = self.model is not None  # whether the model is never unloaded, because the caller has loaded it
        self.created = int(time.time())
        self.users = 0
        self.used = time.monotonic()  # time at which a request last used the model
        self.error: str | None = None  # error of the last load, or None
        self.loading: asyncio.Task[None] | None = None
        self.rate = Rate()
        self.known_habits: TemplateHabits | None = None  # those of habits(), once they are known

    @property
    def tasks(self) -> list[str] | None:
        """The tasks that the model can do, or None if it is not loaded."""
        return None if self.model is None else list(self.model._info["tasks"])

    @property
    def most(self) -> int | None:
        """The maximum number of tokens of a text or a conversation, or None if the model is not loaded. A text of an encoder may be shorter
        than the context of its layers (max_tokens)."""
        if self.model is None:
            return None
        return int(self.model._info["n_ctx" if "generate" in self.model._info["tasks"] else "max_tokens"])

    def generator(self) -> Model:
        """Returns the model, which must be in memory. Raises UnsupportedTaskError if it does not generate."""
        assert self.model is not None
        self.model._need("generate", "generate()")
        return self.model

    async def load(self, settings: Settings) -> None:
        """Loads the model. Several tasks may wait for the same load. It is stopped if all of them are cancelled."""
        try:
            model = await pumice.aload(self._source, **self._options)
        except (asyncio.CancelledError, KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # also catches a panic of a package written in Rust
            self.error = f"{type(error).__name__}: {error}"
            raise
        if "generate" in model._info["tasks"]:
            model.set_limits(running=settings.running, waiting=settings.waiting)
        self.model, self.error, self.used = model, None, time.monotonic()

    def habits(self) -> TemplateHabits:
        """Returns the properties of the model's chat template. The first call renders some short conversations to find them out."""
        assert self.model is not None
        if self.known_habits is None:
            self.known_habits = habits_of(self.model)
        return self.known_habits

    def described(self) -> dict[str, Any]:
        """Returns the entry of the model in /v1/models."""
        meta: dict[str, Any] = {"loaded": self.model is not None, "tasks": self.tasks, "aliases": self.aliases}
        if self.model is not None:
            info = self.model._info
            meta |= {key: info.get(key) for key in ("n_ctx", "max_tokens", "device", "architecture", "parameters", "vocab_size")}
            if "generate" in info["tasks"]:
                meta["sampling"] = info.get("sampling")
        if self.error is not None:
            meta["error"] = self.error
        # root and max_model_len are vLLM's.
        own = {"id": self.name, "object": "model", "created": self.created, "owned_by": "pumice", "root": self.name}
        return {**own, "max_model_len": self.most, "meta": meta}


class Rate:
    """The number of requests that ended in each of the last 60 seconds, from which Retry-After is computed."""

    def __init__(self) -> None:
        self._ends: dict[int, int] = {}

    def count(self) -> None:
        """Counts a request that ends now."""
        now = int(time.monotonic())
        self._ends = {second: n for second, n in self._ends.items() if second > now - 60}
        self._ends[now] = self._ends.get(now, 0) + 1

    def seconds_for(self, waiting: int) -> int:
        """Returns the time in seconds, 1 to 60, in which `waiting` requests will end if they end at the rate of the last minute."""
        now = int(time.monotonic())
        ended = sum(n for second, n in self._ends.items() if second > now - 60)
        return min(60, max(1, -(-waiting * 60 // ended))) if ended else 5


class Models:
    """All models of a server."""

    def __init__(
        self,
        sources: Mapping[str, Any],
        options: Mapping[str, Mapping[str, Any]],
        settings: Settings,
        aside: Callable[[Callable[[], None]], Awaitable[None]],
    ) -> None:
        """sources: name -> a Model, or the source that load() takes. options: name -> keywords of load(). aside: Server.aside()."""
        self._settings, self._aside = settings, aside
        for name in sources:
            check_text(name, "the name of a model")
        self._served = {name: Served(name, source, options.get(name, {})) for name, source in sources.items()}
        for served in self._served.values():
            if served.model is not None and "generate" in served.model._info["tasks"]:
                served.model.set_limits(running=settings.running, waiting=settings.waiting)
        for alias, name in settings.aliases.items():
            if name not in self._served:
                raise ValueError(f"the alias {alias!r} names {name!r}, which is not a model of this server ({', '.join(self._served)})")
            if alias in self._served:
                raise ValueError(f"{alias!r} is an alias and a model of this server")
            self._served[name].aliases.append(alias)
        if settings.default_model is not None and settings.default_model not in self._served:
            raise ValueError(f"default_model={settings.default_model!r} is not a model of this server ({', '.join(self._served)})")
        self._room = asyncio.Lock()
        self._watch: asyncio.Task[None] | None = None
        self._started = False

    def __iter__(self) -> Iterator[Served]:
        return iter(self._served.values())

    def find(self, name: str | None) -> Served:
        """Returns a model by its name or alias, else Settings.default_model. None means the default or the only one. Raises Refused, which
        lists the names: 404 if there is no such model, and 400 if the name is None and there are several models."""
        default = None if self._settings.default_model is None else self._served[self._settings.default_model]
        if name is None and len(self._served) == 1:
            return next(iter(self._served.values()))
        known = self._served.get(self._settings.aliases.get(name or "", name or ""), default)
        if known is None:
            names = ", ".join([*self._served, *self._settings.aliases])
            what = "the field 'model' is missing" if name is None else f"there is no model {name[:200]!r}"
            raise Refused(400 if name is None else 404, f"{what}; this server has {names}", param="model", code="model_not_found")
        return known

    @contextlib.asynccontextmanager
    async def use(self, name: str | None) -> AsyncIterator[Served]:
        """Finds a model, loads it if it is not in memory, and keeps it in memory until the block ends."""
        served = self.find(name)
        served.users += 1
        try:
            if served.model is None:
                if not self._started and not self._settings.lazy:
                    raise Refused(503, "this server is loading its models; try again later", code=LOADING, retry_after=2)
                await self._load(served)
            yield served
            served.rate.count()
        finally:
            served.users -= 1
            served.used = time.monotonic()

    async def _load(self, served: Served) -> None:
        """Loads a model, or waits for the load that another request has begun."""
        if served.loading is None:
            served.loading = asyncio.create_task(self._load_with_room(served))
            served.loading.add_done_callback(lambda done: _forget(served, done))
        loading = served.loading
        try:
            await asyncio.shield(loading)
        except asyncio.CancelledError:
            if served.users == 1 and not loading.done():  # no other request waits for this load
                served.loading = None  # so that the next request begins another load
                loading.cancel()
            raise
        except Refused:
            raise
        except Exception as error:
            raise Refused(503, f"the model {served.name!r} could not be loaded: {error}", param="model", retry_after=10) from error

    async def _load_with_room(self, served: Served) -> None:
        """Loads a model. Models are loaded one at a time, so that max_loaded is kept and two loads do not allocate memory at once."""
        async with self._room:
            if served.model is not None:
                return
            most = self._settings.max_loaded
            while most is not None and len(loaded := [other for other in self if other.model is not None]) >= most:
                free = [other for other in loaded if other.users == 0 and not other.kept]
                if not free:
                    message = f"{most} models are in memory, which is the most, and all are in use; try again later"
                    raise Refused(503, message, param="model", code="models_in_use", retry_after=5)
                await self.unload(min(free, key=lambda other: other.used))
            logger.info("loading %s", served.name)
            await served.load(self._settings)

    async def unload(self, served: Served) -> None:
        """Frees a model's memory."""
        model, served.model = served.model, None
        if model is not None:
            await self._aside(model.close)
            logger.info("unloaded %s", served.name)

    @property
    def ready(self) -> bool:
        """Whether start() has loaded all models that it should load."""
        return self._started

    async def start(self) -> None:
        """Loads the models one after another: all of them, or the first max_loaded ones. Does nothing if they are loaded when first
        requested (lazy). Raises the errors of load()."""
        if not self._settings.lazy:
            for served in list(self)[: self._settings.max_loaded]:
                if served.model is None:
                    await self._load_with_room(served)
        if self._settings.idle_unload is not None:
            self._watch = asyncio.create_task(self._unload_idle(self._settings.idle_unload))
        self._started = True

    async def _unload_idle(self, seconds: float) -> None:
        while True:
            await asyncio.sleep(min(seconds / 4, 5.0))
            for served in self:
                if served.model is not None and not served.kept and served.users == 0 and time.monotonic() - served.used > seconds:
                    async with self._room:
                        if served.users == 0:  # no request has begun to use the model in the meantime
                            try:
                                await self.unload(served)
                            except Exception:  # for example, no thread can be started; the other models must still be unloaded
                                logger.exception("%s could not be unloaded", served.name)

    async def stop(self) -> None:
        """Frees all models that this server has loaded."""
        if self._watch is not None:
            self._watch.cancel()
        for served in self:
            if served.loading is not None:
                served.loading.cancel()
            if not served.kept:
                await self.unload(served)


def _forget(served: Served, done: asyncio.Task[None]) -> None:
    """Clears `served.loading` after a load has ended. If the load has failed, the next request then begins another one, while the requests
    that waited for the load get its error."""
    if served.loading is done:
        served.loading = None
    if not done.cancelled():
        done.exception()
