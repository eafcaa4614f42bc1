"""Model's calls for event loops. What they do is in async_calls.py, which alone knows asyncio and is imported when first used."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from .chats.calls import ChatCalls
from .encode.calls import EncodeCalls
from .encode.encoding import RankHit
from .generate.prompts import Prompt
from .generate.settings import Sampling

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from .async_calls import AsyncStream


class AwaitedCalls(EncodeCalls, ChatCalls):
    async def agenerate(self, prompt: Prompt | Sequence[Prompt], **sampling: Unpack[Sampling]) -> Any:
        """generate(), awaited in an asyncio event loop. Cancelling the task ends the request; other calls go on.

        Raises what generate() raises, and OverloadedError where more calls wait than set_limits() allows."""
        from . import async_calls

        return await async_calls.generate(self, prompt, sampling)

    def astream(self, prompt: Prompt | Sequence[Prompt], **sampling: Unpack[Sampling]) -> AsyncStream:
        """stream() for `async for`: `async for chunk in m.astream(p): ...`. Wrong arguments are told with the first chunk."""
        from . import async_calls

        return async_calls.stream(self, prompt, sampling)

    async def achat(self, messages: str | Sequence[Mapping[str, Any]], **options: Any) -> Any:
        """chat(), awaited in an asyncio event loop; with stream=True an AsyncStream."""
        from . import async_calls

        return await async_calls.chat(self, messages, options)

    # ------------------------------------------------------------ prefixes on disk

    async def aencode(self, inputs: str | Iterable[str], **options: Any) -> Any:
        """encode(), awaited in an asyncio event loop. Few texts are run together with those of other calls that wait."""
        from . import async_calls

        return await async_calls.encode(self, inputs, options)

    async def arank(self, query: str, documents: Iterable[str], top_k: int | None = None, **options: Any) -> list[RankHit]:
        """rank(), awaited in an asyncio event loop, as aencode()."""
        from . import async_calls

        return await async_calls.stoppable(lambda: self.rank(query, documents, top_k, **options))
