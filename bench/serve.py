"""Compares `pumice serve` with other servers over HTTP in one run. The servers are started in turn and get the same requests.

    python bench/serve.py --python .venv/bin/python [--llama-server PATH] [--llama-cpp-python PYTHON] [--infinity PYTHON] [--rounds 3]
                          [--clients 1 8 32] [--parts chat beside embed numbers] [--model FILE.gguf | gemma3 | 1b] [--new 64]

chat: --clients clients at once, each of which sends --requests requests one after another and gets streams. Measures tokens/s of all
    clients together, the time to the first token, the gaps between tokens (p50 and p99), and the server's memory.
beside: the time to the first token of short prompts, while another client sends prompts of 600 tokens one after another.
embed: --clients clients at once, with one text per request.
numbers: the largest gaps in 32 streams while other clients ask for 1,000 vectors as JSON numbers and send a prompt of 600 tokens.

What HTTP costs beside the same calls in process: bench/callers.py --http.

The client is this file: one process with one connection per client, and no HTTP library, because httpx takes more time than the servers do.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import socket
import statistics
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
QUESTIONS = [
    "Why does pumice float on water?", "Name three rocks and what they are used for.", "How is glass made?", "What is a volcano?",
    "Explain why the sky is blue.", "Write a short note to a friend about the sea.", "What is the use of basalt?", "How do rivers begin?",
]  # fmt: skip
LONG = " ".join(f"Sentence {i} tells of the stones that lie beside the river." for i in range(46))  # has about 600 tokens


# ---------------------------------------------------------------- a client
@dataclass
class Seen:
    """What a client measured: the number of tokens, the time to the first one, and the gaps between the following ones."""

    tokens: int = 0
    firsts: list[float] = field(default_factory=list)
    gaps: list[float] = field(default_factory=list)
    wrong: int = 0

    def add(self, other: Seen) -> None:
        self.tokens += other.tokens
        self.firsts += other.firsts
        self.gaps += other.gaps
        self.wrong += other.wrong


class Connection:
    """One HTTP connection, which a client uses for all its requests."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None

    async def send(self, path: str, body: Any) -> asyncio.StreamReader:
        """Sends a request. Returns a reader at the beginning of the answer's body. Sets `status`, `chunked` and `length`."""
        data = json.dumps(body).encode()
        head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
        while True:
            fresh = self._writer is None or self._writer.is_closing()
            if fresh:
                self._reader, self._writer = await asyncio.open_connection("127.0.0.1", self._port, limit=1 << 26)
            reader, writer = self._reader, self._writer
            assert reader is not None and writer is not None
            try:
                writer.write(head.encode() + data)
                head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
                break
            except (asyncio.IncompleteReadError, ConnectionError):
                if fresh:
                    raise
                self.close()  # the server has closed this connection while it was idle
        self.status = int(head.split(" ", 2)[1])
        self.chunked = "transfer-encoding: chunked" in head
        self.length = int(head.partition("content-length:")[2].split("\r\n")[0] or 0) if "content-length:" in head else 0
        return reader

    async def parts(self, path: str, body: Any) -> Any:
        """Yields the parts of the answer's body as they arrive."""
        reader = await self.send(path, body)
        if not self.chunked:
            yield await reader.readexactly(self.length)
            return
        while size := int(await reader.readline(), 16):
            yield (await reader.readexactly(size + 2))[:-2]
        await reader.readline()

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()


async def stream(connection: Connection, body: dict[str, Any]) -> Seen:
    """Sends one request for a stream, and measures its tokens."""
    seen, started, last = Seen(), time.perf_counter(), None
    rest = b""
    async for part in connection.parts("/v1/chat/completions" if "messages" in body else "/v1/completions", body):
        now = time.perf_counter()
        *lines, rest = (rest + part).split(b"\n")
        for line in lines:
            if not line.startswith(b"data: {"):
                continue
            event = json.loads(line[6:])
            choice = event["choices"][0] if event.get("choices") else {}
            delta = choice.get("delta", {})
            if event.get("usage"):
                seen.tokens = event["usage"]["completion_tokens"]
            if not (delta.get("content") or delta.get("reasoning_content") or choice.get("text")):
                continue
            if last is None:
                seen.firsts.append(now - started)
            else:
                seen.gaps.append(now - last)
            last = now
    seen.tokens = seen.tokens or len(seen.firsts) + len(seen.gaps)  # llama_cpp.server sends no usage in streams, but one event per token
    seen.wrong = connection.status != 200 or not seen.firsts
    return seen


def chat_body(question: str, new: int, more: dict[str, Any]) -> dict[str, Any]:
    """Returns a request of /v1/chat/completions. If more["prompts"] is true (the model has no chat template), it is one of
    /v1/completions."""
    asked: dict[str, Any] = {"messages": [{"role": "user", "content": question}]}
    if more.get("prompts"):
        asked, more = {"prompt": question}, {name: value for name, value in more.items() if name != "prompts"}
    common = {"model": "chat", "max_tokens": new, "temperature": 0, "stream": True, "stream_options": {"include_usage": True}}
    return {**asked, **common, **more}


async def clients(port: int, count: int, requests: int, new: int, more: dict[str, Any]) -> tuple[Seen, float]:
    """Runs `count` clients at once. Returns what they measured together, and the seconds until the last one has ended."""

    async def one(number: int) -> Seen:
        seen, connection = Seen(), Connection(port)
        for i in range(requests):
            question = QUESTIONS[(number + i) % len(QUESTIONS)] + f" ({number}, {i})"
            seen.add(await stream(connection, chat_body(question, new, more)))
        connection.close()
        return seen

    started = time.perf_counter()
    all_seen = Seen()
    for seen in await asyncio.gather(*(one(i) for i in range(count))):
        all_seen.add(seen)
    return all_seen, time.perf_counter() - started


async def beside(port: int, more: dict[str, Any], seconds: float) -> list[float]:
    """Returns the times to the first token of short prompts, while another client sends long prompts."""
    end = time.perf_counter() + seconds

    async def long() -> None:
        connection, i = Connection(port), 0
        while time.perf_counter() < end:
            i += 1
            await stream(connection, chat_body(f"{i} {time.time()}: {LONG}", 2, more))

    async def short() -> list[float]:
        connection, firsts, i = Connection(port), [], 0
        while time.perf_counter() < end:
            i += 1
            firsts += (await stream(connection, chat_body(f"{i}: {QUESTIONS[i % 8]}", 8, more))).firsts
        return firsts

    return (await asyncio.gather(long(), short()))[1]


async def numbers(port: int, more: dict[str, Any]) -> tuple[Seen, Seen]:
    """Returns the measurements of 32 streams that run alone, and of 32 streams beside a large answer of numbers and a long prompt."""
    alone, _ = await clients(port, 32, 1, 48, more)

    async def large() -> None:
        connection = Connection(port)
        body = {"model": "embed", "input": [f"{QUESTIONS[i % 8]} {i}" for i in range(1000)]}
        async for _ in connection.parts("/v1/embeddings", body):
            pass
        await stream(connection, chat_body(f"{time.time()}: {LONG}", 2, more))

    (beside_it, _), _ = await asyncio.gather(clients(port, 32, 1, 48, more), large())
    return alone, beside_it


async def embeds(port: int, count: int, requests: int, base64: bool) -> float:
    """Returns the texts/s of all clients together, each with one text per request."""

    async def one(number: int) -> None:
        connection = Connection(port)
        for i in range(requests):
            text = f"{QUESTIONS[(number + i) % 8]} The number of this text is {number}, {i}."
            body = {"model": "embed", "input": text} | ({"encoding_format": "base64"} if base64 else {})
            async for _ in connection.parts("/v1/embeddings", body):
                pass
            assert connection.status == 200
        connection.close()

    started = time.perf_counter()
    await asyncio.gather(*(one(i) for i in range(count)))
    return count * requests / (time.perf_counter() - started)


# ---------------------------------------------------------------- servers
@dataclass(frozen=True)
class Kind:
    """A kind of server: its command for a port, and what its requests need beyond those of other servers."""

    name: str
    command: Callable[[int], list[str]]
    ready: str
    more: dict[str, Any] = field(default_factory=dict)
    env: dict[str, str] = field(default_factory=dict)


class Running:
    """A server process. It is started here, and ended by close()."""

    def __init__(self, kind: Kind) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.kind = kind
        started = time.perf_counter()
        log = open(f"/tmp/bench-serve-{kind.name}.log", "wb")  # noqa: SIM115
        self._process = subprocess.Popen(kind.command(self.port), stdout=log, stderr=log, env={**os.environ, **kind.env})
        while True:
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{self.port}{kind.ready}", timeout=1).read()
                break
            except OSError:
                if self._process.poll() is not None or time.perf_counter() - started > 300:
                    raise RuntimeError(f"{kind.name} did not start: see {log.name}") from None
                time.sleep(0.02)
        self.start_seconds = time.perf_counter() - started

    @property
    def pid(self) -> int:
        return self._process.pid

    def memory(self) -> float:
        """Returns the resident memory of the process and its children, in MiB."""
        total = 0
        for line in subprocess.run(["ps", "-eo", "pid=,ppid=,rss="], capture_output=True, text=True, check=True).stdout.splitlines():
            pid, parent, rss = map(int, line.split())
            if self._process.pid in (pid, parent):
                total += rss
        return total / 1024

    def close(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()


def percentile(values: list[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else float("nan")


def row(name: str, seen: list[tuple[Seen, float]], memory: float) -> str:
    rates = [each.tokens / seconds for each, seconds in seen]
    firsts = [first for each, _ in seen for first in each.firsts]
    gaps = [gap for each, _ in seen for gap in each.gaps]
    wrong = sum(each.wrong for each, _ in seen)
    return (
        f"{name:18} {statistics.median(rates):8.1f} ({min(rates):6.1f} to {max(rates):6.1f})   first {percentile(firsts, 0.5) * 1e3:7.0f} "
        f"{percentile(firsts, 0.99) * 1e3:7.0f}   gap {percentile(gaps, 0.5) * 1e3:6.1f} {percentile(gaps, 0.99) * 1e3:6.1f}   "
        f"{memory:6.0f} MiB{'   WRONG ' + str(wrong) if wrong else ''}"
    )


# ---------------------------------------------------------------- parts
FIND = """
import pathlib, sys
sys.path.insert(0, "../examples")
import random_weights, samples
name, folder = sys.argv[1], pathlib.Path(sys.argv[2])
known = {
    "smollm2": samples.smollm2, "gemma3": samples.gemma3, "1b": lambda: random_weights.made_with_tokenizer(folder, "1b", samples.smollm2())
}
print(known[name]() if name in known else pathlib.Path(name).resolve(), samples.minilm())
"""


# Measures inside the process what `numbers` measures over HTTP: the largest gap of 32 streams, alone and beside 1,000 texts and a long
# prompt.
INSIDE_GAPS = """
import asyncio, json, sys, time
import pumice
model = pumice.load(sys.argv[1], threads=int(sys.argv[2]), progress=False)
encoder = pumice.load(sys.argv[4], threads=int(sys.argv[2]), progress=False)
questions, long, gaps = json.loads(sys.argv[3]), sys.argv[5], []
async def one(text, new):
    last = None
    options = dict(max_new_tokens=new, temperature=0, ignore_eos=True, chunk_seconds=0.04)
    async for chunk in await model.achat([{"role": "user", "content": text}], stream=True, **options):
        now = time.perf_counter()
        if last is not None and new > 2:
            gaps.append(now - last)
        last = now
async def large():
    await encoder.aencode([f"{questions[i % 8]} {i}" for i in range(1000)])
    await one(long, 2)
async def streams(name):
    await asyncio.gather(*(one(f"{questions[i % 8]} ({i} {name})", 48) for i in range(32)))
async def main():
    await one("Hello", 8)
    await streams("alone")
    print(max(gaps))
    gaps.clear()
    await asyncio.gather(streams("beside"), large())
    print(max(gaps))
asyncio.run(main())
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", type=os.path.abspath, default=sys.executable)
    parser.add_argument("--llama-server", help="path of llama.cpp's server")
    parser.add_argument("--llama-cpp-python", help="a Python with llama_cpp.server")
    parser.add_argument("--infinity", help="a Python with infinity_emb")
    parser.add_argument(
        "--model",
        default="smollm2",
        help="a .gguf file, or smollm2 (default), gemma3, or 1b: the shape of Llama 3.2 1B with random weights and SmolLM2's tokenizer",
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--requests", type=int, default=3)
    parser.add_argument("--new", type=int, default=64)
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--parts", nargs="+", default=["chat", "beside", "embed"])
    given = parser.parse_args()
    command = [given.python, "-c", FIND, given.model, str(ROOT / "build" / "bench")]
    model, minilm = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, cwd=ROOT / "bench").stdout.split()
    threads = str(given.threads)
    with open("/proc/cpuinfo") as file:
        cpu = next((line.partition(":")[2].strip() for line in file if line.startswith("model name")), "unknown")
    print(f"{cpu}, {threads} threads, {given.rounds} rounds, {Path(model).name}, {given.new} new tokens a request\n", flush=True)

    chats = [
        Kind(
            "pumice",
            lambda port: [
                given.python,
                "-m",
                "pumice",
                "serve",
                f"chat={model}",
                f"embed={minilm}",
                "--port",
                str(port),
                "--threads",
                threads,
            ],
            "/ready",
            {"ignore_eos": True},
        )
    ]
    if given.llama_server:
        chats.append(
            Kind(
                "llama-server",
                lambda port: [
                    given.llama_server, "-m", model, "--port", str(port), "-t", threads, "-np", str(max(given.clients)), "-c",
                    str(2048 * max(given.clients)), "--alias", "chat",
                ],
                "/health",
                {"ignore_eos": True},
            )
        )  # fmt: skip
    if given.llama_cpp_python:
        chats.append(
            Kind(
                "llama_cpp.server",
                lambda port: [
                    given.llama_cpp_python, "-m", "llama_cpp.server", "--model", model, "--port", str(port), "--n_threads", threads,
                    "--n_ctx", "2048", "--model_alias", "chat", "--interrupt_requests", "false",
                ],
                "/v1/models",
            )
        )  # fmt: skip

    if given.model == "gemma3":  # Gemma 3 270M is a base model without a chat template
        for kind in chats:
            kind.more["prompts"] = True

    def in_turn(kinds: list[Kind], work: Callable[[Running], Coroutine[Any, Any, Any]], rounds: int) -> dict[str, tuple[list[Any], float]]:
        results: dict[str, tuple[list[Any], float]] = {}
        for _ in range(rounds):
            for kind in kinds:
                server = Running(kind)
                try:
                    got = asyncio.run(work(server))
                    all_got, memory = results.get(kind.name, ([], 0.0))
                    results[kind.name] = ([*all_got, got], max(memory, server.memory()))
                finally:
                    server.close()
        return results

    if "chat" in given.parts:
        for count in given.clients:

            async def chat(server: Running, count: int = count) -> Any:
                await clients(server.port, 1, 1, 8, server.kind.more)
                return await clients(server.port, count, given.requests, given.new, server.kind.more)

            print(f"{count} clients: tokens/s in all, median (lowest to highest); ms to the first token and between tokens: p50, p99")
            for name, (seen, memory) in in_turn(chats, chat, given.rounds).items():
                print("  " + row(name, seen, memory), flush=True)
    if "beside" in given.parts:
        print("\nfirst token of short prompts beside prompts of 600 tokens of another client, ms: p50, p99")
        for name, (lists, _) in in_turn(chats, lambda server: beside(server.port, server.kind.more, 12.0), given.rounds).items():
            firsts = [first for each in lists for first in each]
            print(
                f"  {name:18} {percentile(firsts, 0.5) * 1e3:7.0f} {percentile(firsts, 0.99) * 1e3:7.0f}   ({len(firsts)} prompts)",
                flush=True,
            )
    if "numbers" in given.parts:
        print("\n32 streams of pumice: largest gap and p99, ms")
        for _, (pairs, _) in in_turn(chats[:1], lambda server: numbers(server.port, server.kind.more), given.rounds).items():
            for i, name in enumerate(("alone", "beside 1,000 vectors in numbers and a prompt of 600")):
                gaps = [gap for pair in pairs for gap in pair[i].gaps]
                print(f"  {name:52} {max(gaps) * 1e3:7.0f} {percentile(gaps, 0.99) * 1e3:7.0f}", flush=True)
        inside: list[list[float]] = []
        for _ in range(given.rounds):
            arguments = [model, threads, json.dumps(QUESTIONS), minilm, LONG]
            out = subprocess.run([given.python, "-c", INSIDE_GAPS, *arguments], capture_output=True, text=True, check=True).stdout
            inside.append([float(line) * 1e3 for line in out.split()])
        for name, column in zip(("alone", "beside the same"), zip(*inside, strict=True), strict=True):
            print(f"  in process {name:41} {max(column):7.0f}", flush=True)
    if "embed" in given.parts:
        kinds = [chats[0]]
        if given.infinity:
            kinds.append(
                Kind(
                    "infinity",
                    lambda port: [
                        given.infinity, "-m", "infinity_emb.cli", "v2", "--model-id", minilm, "--served-model-name", "embed", "--port",
                        str(port), "--url-prefix", "/v1", "--device", "cpu", "--no-model-warmup",
                    ],
                    "/v1/models",
                    env={"OMP_NUM_THREADS": threads},
                )
            )  # fmt: skip
        for count in given.clients:

            async def embed(server: Running, count: int = count) -> Any:
                await embeds(server.port, 1, 2, True)
                return await embeds(server.port, count, 20, True)

            print(f"\n{count} clients, one text a request: texts/s")
            for name, (rates, memory) in in_turn(kinds, embed, given.rounds).items():
                print(f"  {name:18} {statistics.median(rates):8.1f} ({min(rates):.1f} to {max(rates):.1f})   {memory:6.0f} MiB", flush=True)


if __name__ == "__main__":
    main()
