"""Measures which share of its speed `pumice serve` keeps over HTTP: the same calls in process and over HTTP, in turns. bench/callers.py
--http runs it.

Three processes take part. One has the models and makes the calls in process: as many tasks of one event loop as there are clients. One is
`pumice serve` with the same models and threads. One is the client, with one connection a client, which does no more with an answer than to
find its first text, its end and its count of tokens. Their processor time is counted apart, because the client shares the processors
with the server.
"""

from __future__ import annotations

import asyncio
import json
import os
import platform
import re
import selectors
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

from serve import QUESTIONS, Kind, Running

TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Work:
    """What all clients do at once. kind: "streamed" or "whole" (chats), "floats" or "base64" (vectors of one text each). round: makes the
    texts new, so that no cache has them."""

    kind: str
    clients: int
    requests: int
    new: int
    chunk_seconds: float
    round: int

    def text(self, client: int, request: int) -> str:
        return f"{QUESTIONS[(client + request) % len(QUESTIONS)]} ({client}, {request}, {self.round})"

    @property
    def chats(self) -> bool:
        return self.kind in ("streamed", "whole")

    def body(self, client: int, request: int) -> tuple[str, dict[str, Any]]:
        """Returns the path and the body of a request."""
        text = self.text(client, request)
        if not self.chats:
            return "/v1/embeddings", {"model": "embed", "input": text, "encoding_format": self.kind.removesuffix("s")}
        body = {
            "model": "chat",
            "messages": [{"role": "user", "content": text}],
            "max_tokens": self.new,
            "temperature": 0,
            "ignore_eos": True,
        }
        if self.kind == "streamed":
            body |= {"stream": True, "stream_options": {"include_usage": True}}
        return "/v1/chat/completions", body


@dataclass
class Seen:
    """units: tokens or texts. firsts: the seconds of each stream until its first text. cpu: the seconds of processor time of the process
    that did the work, and loop: those of its event loop's thread; client: those of the client's process."""

    units: int
    seconds: float
    firsts: list[float] = field(default_factory=list)
    cpu: float = 0.0
    loop: float = 0.0
    client: float = 0.0


# ---------------------------------------------------------------- in process
def inside(chat: str, embed: str, threads: int) -> None:
    """Does the work that stands on standard input, one JSON line each, in process."""
    import pumice

    models = [pumice.load(each, threads=threads, progress=False, device="cpu") for each in (chat, embed)]
    for line in sys.stdin:
        work = Work(**json.loads(line))
        print(json.dumps(asyncio.run(_inside(work, *models)).__dict__), flush=True)


async def _inside(work: Work, chat: Any, embed: Any) -> Seen:
    firsts: list[float] = []

    async def client(number: int) -> int:
        units = 0
        for i in range(work.requests):
            text = work.text(number, i)
            if not work.chats:
                await embed.aencode(text)
                units += 1
                continue
            asked = [{"role": "user", "content": text}]
            options: dict[str, Any] = {"max_new_tokens": work.new, "temperature": 0, "ignore_eos": True}
            if work.kind == "whole":
                units += len((await chat.achat(asked, **options)).ids)
                continue
            started, waits = time.perf_counter(), True
            async for chunk in await chat.achat(asked, stream=True, chunk_seconds=work.chunk_seconds, **options):
                if waits and chunk.text:
                    firsts.append(time.perf_counter() - started)
                    waits = False
                units += len(chunk.ids)
        return units

    began, cpu, loop = time.perf_counter(), time.process_time(), time.thread_time()
    units = sum(await asyncio.gather(*map(client, range(work.clients))))
    return Seen(units, time.perf_counter() - began, firsts, time.process_time() - cpu, time.thread_time() - loop)


# ---------------------------------------------------------------- the client
_FIRST = re.compile(rb'"content":"[^"]')
_TOKENS = re.compile(rb'"completion_tokens":(\d+)')
_LENGTH = re.compile(rb"content-length: (\d+)", re.IGNORECASE)


class _Client:
    """One connection, whose requests come one after another."""

    def __init__(self, port: int, number: int, work: Work) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._work = work
        self._requests = []
        for i in range(work.requests):
            path, body = work.body(number, i)
            data = json.dumps(body).encode()
            head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
            self._requests.append(head.encode() + data)
        self._requests.reverse()
        self.units, self.firsts = 0, []  # type: ignore[var-annotated]

    def send(self) -> bool:
        """Sends the next request. Returns False if there is none."""
        if not self._requests:
            return False
        self._parts: list[bytes] = []
        self._length, self._waits, self._began = 0, self._work.kind == "streamed", time.perf_counter()
        self.socket.sendall(self._requests.pop())
        return True

    def receive(self) -> bool:
        """Receives a part of the answer. Returns whether the answer has ended."""
        part = self.socket.recv(1 << 18)
        self._parts.append(part)
        if self._waits and _FIRST.search(part):
            self.firsts.append(time.perf_counter() - self._began)
            self._waits = False
        if self._work.kind == "streamed":
            ended = part.endswith(b"\r\n0\r\n\r\n") or part == b"0\r\n\r\n"
        else:
            if not self._length and (found := _LENGTH.search(part)):
                self._length = int(found[1]) + part.index(b"\r\n\r\n") + 4
            ended = self._length > 0 and sum(map(len, self._parts)) >= self._length
        if not part or (len(self._parts) == 1 and not part.startswith(b"HTTP/1.1 200")):
            raise RuntimeError(f"the server answered: {b''.join(self._parts)[:500]!r}")
        if ended:
            self.units += (
                int(_TOKENS.findall(self._parts[-1] if self._length else b"".join(self._parts[-3:]))[-1]) if self._work.chats else 1
            )
        return ended


def client(port: int) -> None:
    """Does the work that stands on standard input, one JSON line each, over HTTP."""
    for line in sys.stdin:
        work = Work(**json.loads(line))
        clients = [_Client(port, number, work) for number in range(work.clients)]
        with selectors.DefaultSelector() as selector:
            for each in clients:
                selector.register(each.socket, selectors.EVENT_READ, each)
            began, cpu, left = time.perf_counter(), time.process_time(), len(clients)
            for each in clients:
                each.send()
            while left:
                for key, _ in selector.select():
                    if key.data.receive() and not key.data.send():
                        left -= 1
            seconds, cpu = time.perf_counter() - began, time.process_time() - cpu
        for each in clients:
            each.socket.close()
        seen = Seen(sum(each.units for each in clients), seconds, [first for each in clients for first in each.firsts], client=cpu)
        print(json.dumps(seen.__dict__), flush=True)


# ---------------------------------------------------------------- the measurement
class _Worker:
    """A process that does Works."""

    def __init__(self, *arguments: str) -> None:
        self._process = subprocess.Popen([sys.executable, __file__, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def do(self, work: Work) -> Seen:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps(work.__dict__) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the process {self._process.args} ended")
        return Seen(**json.loads(line))

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


class _Served:
    """`pumice serve` in a process of its own, and the client."""

    def __init__(self, chat: str, embed: str, threads: int, chunk_seconds: float) -> None:
        command = [sys.executable, "-m", "pumice", "serve", f"chat={chat}", f"embed={embed}", "--threads", str(threads), "--device", "cpu"]
        command += ["--chunk-seconds", str(chunk_seconds)]
        self._server = Running(Kind("pumice", lambda port: [*command, "--port", str(port)], "/ready"))
        self._client = _Worker("client", str(self._server.port))

    def do(self, work: Work) -> Seen:
        cpu, loop = self._all_seconds(), self._loop_seconds()
        seen = self._client.do(work)
        seen.cpu, seen.loop = self._all_seconds() - cpu, self._loop_seconds() - loop
        return seen

    def _all_seconds(self) -> float:
        user, system = Path(f"/proc/{self._server.pid}/stat").read_text().rpartition(")")[2].split()[11:13]
        return (int(user) + int(system)) / TICKS

    def _loop_seconds(self) -> float:
        """Returns the processor time of the event loop's thread, which is the main one."""
        return int(Path(f"/proc/{self._server.pid}/task/{self._server.pid}/schedstat").read_text().split()[0]) / 1e9

    def close(self) -> None:
        self._client.close()
        self._server.close()


def _busy() -> float:
    """Returns the processor time of the whole machine in seconds."""
    user, nice, system, _, _, irq, softirq, *_ = map(int, Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:])
    return (user + nice + system + irq + softirq) / TICKS


KINDS = {"streamed": "chat, streamed", "whole": "chat, whole", "floats": "embeddings", "base64": "embeddings, base64"}


def measure(chat: str, embed: str, threads: int, clients: list[int], rounds: int, new: int, chunk_seconds: float, kinds: list[str]) -> None:
    """Prints the table. chat, embed: the paths of the models. kinds: the keys of KINDS to measure."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    cpu = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())
    packages = ", ".join(f"{name} {version(name)}" for name in ("pumice", "uvicorn", "starlette", "h11", "orjson"))
    print(f"{cpu}, {os.cpu_count()} processors, {threads} threads; Python {platform.python_version()}, {packages}")
    print(f"{Path(chat).name}, {new} new tokens an answer; {Path(embed).name}; {rounds} rounds; chunk_seconds {chunk_seconds:g}")
    print("units: tokens or texts. first: ms to the first text, median. us: microseconds of processor time for each unit. others: how many")
    print("processors other programs used meanwhile\n")
    print(
        f"{'':26} {'in process':>10} {'over HTTP':>10} {'ratio':>6} {'(each round)':>16} | {'first':>7} {'HTTP':>7} | {'us':>7} "
        f"{'HTTP':>7} {'client':>7} | {'loop us':>7} {'HTTP':>7} | others"
    )
    ends: list[Any] = [_Worker("inside", chat, embed, str(threads)), _Served(chat, embed, threads, chunk_seconds)]
    try:
        for kind in kinds:
            for number, end in ((n, end) for n in (1, max(clients)) for end in ends):
                end.do(Work(kind, number, 1, min(new, 16), chunk_seconds, -1))
            for count in clients:
                seen: list[list[Seen]] = [[], []]
                began, busy, ours = time.perf_counter(), _busy(), 0.0
                for number in range(rounds):
                    work = Work(kind, count, requests_of(kind, count), new, chunk_seconds, number)
                    for i in (0, 1) if number % 2 == 0 else (1, 0):
                        seen[i].append(ends[i].do(work))
                        ours += seen[i][-1].cpu + seen[i][-1].client
                others = max(0.0, _busy() - busy - ours) / (time.perf_counter() - began)
                print(f"{KINDS[kind]:18} {count:3} {'' if count > 1 else ' '}   {_row(*seen)} | {others:5.2f}", flush=True)
    finally:
        for end in ends:
            end.close()


def requests_of(kind: str, clients: int) -> int:
    """Returns how many requests each client sends: enough for a second or more."""
    return max(2, min(6, 24 // clients)) if kind in ("streamed", "whole") else max(12, 120 // clients)


def _row(inside: list[Seen], over: list[Seen]) -> str:
    ratios = [(b.units / b.seconds) / (a.units / a.seconds) for a, b in zip(inside, over, strict=True)]

    def median(seen: list[Seen], value: Callable[[Seen], float]) -> float:
        return statistics.median(map(value, seen))

    def first(seen: list[Seen]) -> str:
        firsts = [each for one in seen for each in one.firsts]
        return f"{statistics.median(firsts) * 1e3:7.1f}" if firsts else f"{'-':>7}"

    speeds = [median(seen, lambda each: each.units / each.seconds) for seen in (inside, over)]
    used = [median(seen, lambda each: each.cpu / each.units * 1e6) for seen in (inside, over)]
    loops = [median(seen, lambda each: each.loop / each.units * 1e6) for seen in (inside, over)]
    client = median(over, lambda each: each.client / each.units * 1e6)
    return (
        f"{speeds[0]:10.1f} {speeds[1]:10.1f} {statistics.median(ratios):6.3f} {f'{min(ratios):.2f} to {max(ratios):.2f}':>16} | "
        f"{first(inside)} {first(over)} | {used[0]:7.0f} {used[1]:7.0f} {client:7.0f} | {loops[0]:7.0f} {loops[1]:7.0f}"
    )


if __name__ == "__main__":
    if sys.argv[1] == "client":
        client(int(sys.argv[2]))
    else:
        inside(sys.argv[2], sys.argv[3], int(sys.argv[4]))
