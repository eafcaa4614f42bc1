"""Model's calls for event loops. What they do is in async_calls.py, which alone knows asyncio and is imported when first used."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from ..common.arguments import checked_keywords
from ..encode.encoding import ENCODE_DEFAULTS, EncodeKeywords, EncodeOptions, RankHit
from ..generate.prompts import Prompt
from ..generate.settings import Sampling
from .chat_calls import ChatCalls
from .encode_calls import EncodeCalls

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ..event_loops.async_calls import AsyncStream


class AwaitedCalls(EncodeCalls, ChatCalls):
    async def agenerate(self, prompt: Prompt | Sequence[Prompt], **sampling: Unpack[Sampling]) -> Any:
        """generate(), awaited in an asyncio event loop. Cancelling the task ends the request; other calls go on.

        Raises what generate() raises, and OverloadedError where more calls wait than set_limits() allows."""
        from ..event_loops import async_calls

        return await async_calls.generate(self, prompt, sampling)

    def astream(self, prompt: Prompt | Sequence[Prompt], **sampling: Unpack[Sampling]) -> AsyncStream:
        """stream() for `async for`: `async for chunk in m.astream(p): ...`. Wrong arguments are told with the first chunk."""
        from ..event_loops import async_calls

        return async_calls.stream(self, prompt, sampling)

    async def achat(self, messages: str | Sequence[Mapping[str, Any]], **options: Any) -> Any:
        """chat(), awaited in an asyncio event loop; with stream=True an AsyncStream."""
        from ..event_loops import async_calls

        return await async_calls.chat(self, messages, options)

    @checked_keywords(ENCODE_DEFAULTS)
    async def aencode(self, inputs: str | Iterable[str], **options: Unpack[EncodeKeywords]) -> Any:
        """encode(), awaited in an asyncio event loop. Few texts are run together with those of other calls that wait."""
        from ..event_loops import async_calls

        return await async_calls.encode(self, inputs, EncodeOptions(**options))

    @checked_keywords()
    async def arank(
        self,
        query: str,
        documents: Iterable[str],
        top_k: int | None = None,
        *,
        truncate: Literal[True, "error"] = True,
        show_progress_bar: bool | None = None,
    ) -> list[RankHit]:
        """rank(), awaited in an asyncio event loop, as aencode()."""
        from ..event_loops import async_calls

        return await async_calls.stoppable(lambda cancel: self._rank(query, documents, top_k, truncate, show_progress_bar, cancel))
