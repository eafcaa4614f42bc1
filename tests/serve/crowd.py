"""Many clients of one server at once, some of which leave early or send what is hostile. Each answer must be the right one, nothing may be
left behind, and memory must come back.

    python tests/serve/crowd.py --requests 2000 --clients 256       # make test-serve-long; `make test` runs a short form
    python tests/serve/crowd.py --minutes 60                        # goes on for so long, and checks that nothing grows"""

from __future__ import annotations

import argparse
import json
import random
import socket
import statistics
import sys
import threading
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent.parent
sys.path[:0] = [str(ROOT / "examples"), str(ROOT / "tests"), str(ROOT / "tests" / "python" / "support")]

import numpy as np  # noqa: E402
import samples  # noqa: E402
from servers import Here, read_all, reply_of, request_bytes, serving  # noqa: E402

import pumice  # noqa: E402

WORDS = ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"]
LEAVES, HOSTILE = 0.1, 0.05  # shares of the requests
HOSTILE_BYTES = (
    b"GET / HTTP/1.1\r\nHost: evil.example\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
    b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    b"GET /health HTTP/1.1\r\nHost: localhost\r\nX: " + b"a" * 70000,
    request_bytes("POST", "/v1/chat/completions", b'{"messages": ' + b"[" * 5000),
    request_bytes("POST", "/v1/chat/completions", b'{"model": "chat", "messages": [{"role": "user", "content": "Hi"}], "n": 1000000}'),
    request_bytes("POST", "/v1/embeddings", json.dumps({"model": "embed", "input": ["a"] * 3000}).encode()),
    request_bytes("GET", "/../../etc/passwd"),
)


class Crowd:
    """The clients, and what they know of right answers."""

    def __init__(self, here: Here, chat: pumice.Model, embed: pumice.Model) -> None:
        self._here = here
        self.talks = [[{"role": "user", "content": f"Say {a}, {b}"}] for a in WORDS for b in WORDS[:3]]
        self.answers = [each.content for each in (chat.chat(talk, max_new_tokens=12, temperature=0) for talk in self.talks)]
        self.texts = [f"{a} {b}" for a in WORDS for b in WORDS]
        self.vectors = embed.encode(self.texts)
        self.lock = threading.Lock()
        self.wrong: list[str] = []
        self.done = {"chat": 0, "stream": 0, "embed": 0, "left": 0, "hostile": 0, "refused": 0}
        self.first: list[tuple[float, float]] = []  # when a stream began, and after how long its first text came

    def _note(self, kind: str, wrong: str | None = None) -> None:
        with self.lock:
            self.done[kind] += 1
            if wrong is not None:
                self.wrong.append(wrong)

    def one(self, rng: random.Random) -> None:
        """Sends one request and checks the answer."""
        with socket.create_connection(("127.0.0.1", self._here.port), timeout=300) as connection:
            if rng.random() < HOSTILE:
                try:
                    connection.sendall(rng.choice(HOSTILE_BYTES))
                    data = read_all(connection)
                except OSError:
                    data = b""
                self._note("hostile", f"hostile: {data[:200]!r}" if data[9:10] in (b"2", b"5") else None)
                return
            kind = rng.choice(("chat", "stream", "embed"))
            which = rng.randrange(len(self.texts if kind == "embed" else self.talks))
            body: dict[str, Any] = {"model": "chat", "messages": self.talks[which % len(self.talks)], "max_tokens": 12, "temperature": 0}
            if kind == "embed":
                body = {"model": "embed", "input": self.texts[which]}
            path = "/v1/embeddings" if kind == "embed" else "/v1/chat/completions"
            sent = time.monotonic()
            connection.sendall(request_bytes("POST", path, json.dumps(body | ({"stream": True} if kind == "stream" else {})).encode()))
            if rng.random() < LEAVES:
                time.sleep(rng.random() * 0.3)
                self._note("left")
                return
            head = b""
            while kind == "stream" and b'"content":"' not in head.replace(b'"content":""', b""):
                part = connection.recv(4096)
                head += part
                if not part:
                    break
            took = time.monotonic() - sent
            data = head + read_all(connection)
        reply = reply_of(data)
        if reply.status == 429:
            self._note("refused", None if 1 <= int(reply.headers["retry-after"]) <= 60 else "Retry-After")
            return
        if reply.status != 200:
            self._note(kind, f"{kind}: {reply.status} {reply.body[:300]!r}")
            return
        try:
            self._note(kind, self._check(kind, which, reply.body))
        except Exception as error:
            self._note(kind, f"{kind}: {type(error).__name__} {error}: {reply.body[-300:]!r}")
        if kind == "stream":
            with self.lock:
                self.first.append((sent, took))

    def _check(self, kind: str, which: int, body: bytes) -> str | None:
        if kind == "embed":
            vector = np.array(json.loads(body)["data"][0]["embedding"], np.float32)
            near = float(np.abs(vector - self.vectors[which]).max())
            return f"embed {which}: differs by {near}" if near > 1e-5 else None
        if kind == "chat":
            text = json.loads(body)["choices"][0]["message"]["content"]
        else:
            events = [line[6:] for line in body.decode().split("\n") if line.startswith("data: ")]
            if events[-1] != "[DONE]":
                return f"a stream without an end: {events[-1][:200]}"
            parts = [json.loads(event)["choices"] for event in events[:-1]]
            text = "".join(choices[0]["delta"].get("content") or "" for choices in parts if choices)
        return f"{kind} {which}: {text!r}, not {self.answers[which]!r}" if text != self.answers[which] else None

    def run(self, requests: int | None, seconds: float | None, clients: int, seed: int) -> None:
        """Runs the clients until so many requests are sent, or for so long."""
        left = iter(range(requests if requests is not None else 1 << 60))
        end = time.monotonic() + (seconds if seconds is not None else 1e9)

        def client(number: int) -> None:
            rng = random.Random(seed * 100_003 + number)
            while time.monotonic() < end and len(self.wrong) < 20:
                with self.lock:
                    if next(left, None) is None:
                        return
                try:
                    self.one(rng)
                except Exception as error:
                    with self.lock:
                        self.wrong.append(f"client: {type(error).__name__}: {error}")

        threads = [threading.Thread(target=client, args=(i,)) for i in range(clients)]
        for each in threads:
            each.start()
        for each in threads:
            each.join()


def resident() -> float:
    """Returns the process's memory in MiB."""
    return next(int(line.split()[1]) for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmRSS")) / 1024


def leftovers(here: Here, chat: pumice.Model) -> list[str]:
    """Returns what requests have left behind."""
    end = time.monotonic() + 60

    def found() -> dict[str, float]:
        stats, cache = chat.stats(), chat.cache_stats()
        return {
            "requests": len(here.served.calls),
            "bytes": here.served.held_bytes,
            "users": sum(served.users for served in here.served.models),
            "running": stats["running"] + stats["waiting"] + stats["lagging"],
            "pages": cache["pages_in_use"],
        }

    while any(found().values()) and time.monotonic() < end:
        time.sleep(0.02)
    return [f"{value} {name} are left" for name, value in found().items() if value]


def slope(pairs: list[tuple[float, float]]) -> float:
    """Returns by how much the second number grows with the first, as a share of its median over the whole time."""
    x, y = np.array(pairs, np.float64).T
    return float(np.polyfit(x - x[0], y, 1)[0] * (x[-1] - x[0]) / max(statistics.median(y), 1e-9))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--clients", type=int, default=256)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--minutes", type=float)
    arguments = parser.parse_args()
    # kv_budget is small, so that sequences are preempted.
    with (
        pumice.load(samples.smollm2(), n_ctx=256, device="cpu", kv_budget=96 << 20) as chat,
        pumice.load(samples.minilm(), device="cpu") as embed,
        serving({"chat": chat, "embed": embed}, connections=1024) as here,
    ):
        crowd = Crowd(here, chat, embed)
        begun, memory = time.monotonic(), []
        if arguments.minutes is None:
            crowd.run(arguments.requests, None, arguments.clients, arguments.seed)
        else:  # in rounds, after each of which nothing may be left
            while time.monotonic() - begun < arguments.minutes * 60 and not crowd.wrong:
                crowd.run(None, min(60.0, arguments.minutes * 10), 16, arguments.seed + len(memory))
                crowd.wrong += leftovers(here, chat)
                memory.append((time.monotonic(), resident()))
        crowd.wrong += leftovers(here, chat)
        print(f"{crowd.done} in {time.monotonic() - begun:.0f} s, {resident():.0f} MiB at the end")
        if len(memory) > 4:
            settled = memory[len(memory) // 4 :]  # the first rounds fill caches
            grown, slower = slope(settled), slope([pair for pair in crowd.first if pair[0] >= settled[0][0]])
            print(f"memory grew by {grown:.1%}, the time to the first token by {slower:.1%}")
            if grown > 0.02:
                crowd.wrong.append("memory grows")
            if slower > 0.25:
                crowd.wrong.append("the first token comes later and later")
        print("\n".join(crowd.wrong))
    return 1 if crowd.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
