"""How the bytes of an answer reach the socket."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from pumice.serve.connections import JOINED, Transport


class Wire:
    """An asyncio transport that keeps what is written, and whose connection answers one request after another."""

    def __init__(self) -> None:
        self.sent: list[bytes] = []
        self.connection: Any = SimpleNamespace(cycle=object(), may_linger=lambda: False)
        self.closed = False

    def write(self, data: bytes) -> None:
        assert not self.closed
        self.sent.append(data)

    def get_protocol(self) -> Any:
        return self.connection

    def get_write_buffer_size(self) -> int:
        return 0

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True


LARGE = bytes(JOINED + 1)


@pytest.mark.parametrize(
    ("writes", "sent"),
    [
        ([b"head", b"body", b""], [b"headbody"]),
        ([b"head", b"one", b"two"], [b"headone", b"two"]),
        ([b"head", b"", b"end"], [b"headend"]),
        ([b"head"], [b"head"]),  # a stream whose first token comes later
        ([b"head", LARGE], [b"head", LARGE]),  # a large body is not copied
    ],
)
@pytest.mark.parametrize("end", ["turn", "close", "close_at_once"])
def test_the_head_of_an_answer_is_sent_with_its_body(writes: list[bytes], sent: list[bytes], end: str) -> None:
    async def answered() -> None:
        wire = Wire()
        transport = Transport(wire, asyncio.get_running_loop())  # type: ignore[arg-type]
        for _ in range(2):  # two requests of one connection
            wire.connection.cycle = object()
            for data in writes:
                transport.write(data)
        if end == "turn":
            await asyncio.sleep(0)
        else:
            getattr(transport, end)()
        assert wire.sent == sent * 2
        await asyncio.sleep(0)  # nothing is written after the end

    asyncio.run(answered())
