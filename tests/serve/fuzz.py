"""Sends a server requests that are nearly right: valid ones of each dialect, of which a part was changed. None may end the server, and none
may be answered with 500.

    python tests/serve/fuzz.py --requests 100000        # make test-serve-long; `make test` runs a short form

--schemathesis also has schemathesis make requests from /openapi.json."""

from __future__ import annotations

import argparse
import copy
import json
import random
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent.parent
sys.path[:0] = [str(ROOT / "examples"), str(ROOT / "tests"), str(ROOT / "tests" / "python" / "support")]

import samples  # noqa: E402
from servers import Here, read_all, reply_of, request_bytes, serving  # noqa: E402

import pumice  # noqa: E402

TOOL = {"name": "weather", "description": "The weather.", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"enum": ["x", "y"]}}, "required": ["a"]}
TALK = [{"role": "system", "content": "Be short."}, {"role": "user", "content": "Hi"}]
VALID: dict[str, list[dict[str, Any]]] = {
    "/v1/chat/completions": [
        {"model": "chat", "messages": TALK, "max_tokens": 3, "temperature": 0.7, "top_p": 0.9, "seed": 1, "stop": ["\n"], "n": 2},
        {"model": "chat", "messages": TALK, "max_tokens": 3, "stream": True, "stream_options": {"include_usage": True}, "logprobs": True},
        {"model": "chat", "messages": TALK, "max_tokens": 3, "top_logprobs": 2, "logprobs": True, "logit_bias": {"5": -100, "7": 1.5}},
        {
            "model": "chat",
            "messages": [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}],
            "max_tokens": 3,
            "response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA, "strict": True}},
        },
        {"model": "chat", "messages": TALK, "max_tokens": 3, "tools": [{"type": "function", "function": TOOL}], "tool_choice": "auto"},
        {"model": "chat", "messages": TALK, "max_tokens": 3, "structured_outputs": {"regex": "[ab]{3}"}, "presence_penalty": 0.5},
        {"model": "chat", "messages": TALK, "max_tokens": 3, "grammar": 'start: "a" | "b"', "reasoning_effort": "low", "user": "me"},
    ],
    "/completion": [
        {
            "model": "chat",
            "prompt": [[1, "a"], "b"],
            "n_predict": 3,
            "n_probs": 2,
            "samplers": ["top_k", "temperature"],
            "logit_bias": [["a", 1]],
            "json_schema": SCHEMA,
            "response_fields": ["content", "timings/prompt_n"],
        },
        {"model": "chat", "prompt": {"prompt_string": "a"}, "n_predict": 3, "stream": True, "n_indent": 1, "t_max_predict_ms": 9},
    ],
    "/infill": [{"model": "chat", "input_prefix": "a", "input_suffix": "b", "input_extra": [{"filename": "c", "text": "d"}]}],
    "/v1/completions": [
        {"model": "chat", "prompt": "One, two,", "max_tokens": 3, "logprobs": 2, "echo": True},
        {"model": "chat", "prompt": ["One", [1, 2, 3]], "max_tokens": 2, "stream": True},
    ],
    "/v1/responses": [
        {"model": "chat", "input": "Hi", "max_output_tokens": 3, "instructions": "Be short.", "stream": True},
        {
            "model": "chat",
            "input": [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Hi"}]}],
            "max_output_tokens": 3,
            "tools": [{"type": "function", **TOOL}],
            "text": {"format": {"type": "json_schema", "name": "a", "schema": SCHEMA}},
            "reasoning": {"effort": "low"},
        },
    ],
    "/v1/messages": [
        {"model": "chat", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 3, "system": "Be short.", "stream": True},
        {
            "model": "chat",
            "messages": [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}],
            "max_tokens": 3,
            "tools": [{"name": "weather", "input_schema": TOOL["parameters"]}],
            "tool_choice": {"type": "auto"},
            "thinking": {"type": "enabled", "budget_tokens": 1024},
        },
    ],
    "/v1/messages/count_tokens": [{"model": "chat", "messages": [{"role": "user", "content": "Hi"}], "system": "Be short."}],
    "/v1/chat/completions/input_tokens": [{"model": "chat", "messages": [{"role": "user", "content": "Hi"}]}],
    "/v1/responses/input_tokens": [{"model": "chat", "input": "Hi", "instructions": "Be short."}],
    "/v1/embeddings": [
        {"model": "embed", "input": ["one", "two"], "encoding_format": "base64", "dimensions": 8, "input_type": "query"},
        {"model": "embed", "input": "one", "encoding_format": "float", "truncate": True},
    ],
    "/v1/rerank": [{"model": "embed", "query": "one", "documents": ["one", {"text": "two"}], "top_n": 1, "return_documents": True}],
    "/tokenize": [{"model": "chat", "content": "one", "with_pieces": True}, {"model": "chat", "messages": TALK}],
    "/detokenize": [{"model": "chat", "tokens": [1, 2, 3]}],
    "/apply-template": [{"model": "chat", "messages": TALK, "tools": [{"type": "function", "function": TOOL}]}],
}
# Values that programs trip over. They replace parts of valid requests.
ODD: list[Any] = [
    None, True, False, 0, -1, 1, 2**31, 2**63, -(2**63) - 1, 10**40, 0.5, -0.0, 1e308, -1e-308, "", " ", "a", "\x00", "\u202e", "😀" * 50,
    "a" * 5000, "<|im_end|>", "{{ 1/0 }}", "{% for x in range(10**9) %}", "../../etc/passwd", "null", "NaN", "-1", "1e999", [], {}, [[]],
    [None], [1, "a"], {"a": 1}, {"": ""}, {"type": "text"}, {"type": "text", "text": 1}, {"role": "user"}, [0] * 200, ["a"] * 40,
    {"type": "json_schema", "json_schema": {"schema": {"$ref": "#"}}}, {"type": "object", "properties": {"a": {"$ref": "#/a"}}},
    {"anyOf": [{}] * 50}, {"pattern": "(a+)+$", "type": "string"}, {"type": "integer", "multipleOf": 1e-9}, {"const": {"a": [1]}},
]  # fmt: skip


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Returns the paths of all parts of a JSON value."""
    found = [path] if path else []
    if isinstance(value, dict):
        for key, inner in value.items():
            found += places(inner, (*path, key))
    elif isinstance(value, list):
        for i, inner in enumerate(value):
            found += places(inner, (*path, i))
    return found


def mutated(rng: random.Random, body: dict[str, Any]) -> dict[str, Any]:
    """Returns a valid body with one to three parts changed."""
    body = copy.deepcopy(body)
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        *path, last = rng.choice(places(body) or [("model",)])
        holder: Any = body
        for key in path:
            holder = holder[key]
        what = rng.randrange(6)
        if what <= 2:
            holder[last] = copy.deepcopy(rng.choice(ODD))
        elif what == 3 and isinstance(holder, dict):
            holder.pop(last, None)  # a body without fields has none to leave out
        elif what == 4 and isinstance(holder, dict):
            holder[rng.choice(("extra", "", "temperature", "n", "stream", "type", "content", "$ref"))] = copy.deepcopy(rng.choice(ODD))
        else:  # a part of another request
            other = rng.choice(VALID[rng.choice(list(VALID))])
            holder[last] = copy.deepcopy(rng.choice(list(other.values())))
    return body


def data_of(rng: random.Random) -> tuple[str, bytes, dict[str, str]]:
    """Returns a path, a body and headers."""
    path = rng.choice(list(VALID))
    body = rng.choice(VALID[path])
    data = json.dumps(mutated(rng, body) if rng.random() < 0.95 else body, allow_nan=True).encode()
    headers: dict[str, str] = {}
    if rng.random() < 0.1 and data:  # bytes
        changed = bytearray(data)
        for _ in range(rng.randrange(1, 4)):
            changed[rng.randrange(len(changed))] = rng.randrange(256)
        data = bytes(changed[: rng.randrange(1, len(changed) + 1)] if rng.random() < 0.3 else changed)
    if rng.random() < 0.05:
        headers[rng.choice(("Content-Type", "Accept", "anthropic-version", "x-request-id", "Accept-Encoding", "X-Odd"))] = rng.choice(
            ("", "text/plain", "application/json; charset=utf-16", "*/*;q=x", "a" * 500, "2023-06-01")
        )
    return path, data, headers


def fuzz(here: Here, requests: int, seed: int, threads: int = 16) -> tuple[Counter[int], list[str]]:
    """Sends requests. Returns how often each status came, and what was wrong."""
    statuses: Counter[int] = Counter()
    wrong: list[str] = []
    lock = threading.Lock()
    left = iter(range(requests))

    def work() -> None:
        while True:
            with lock:
                number = next(left, None)
            if number is None or len(wrong) > 20:
                return
            rng = random.Random(seed * 1_000_003 + number)
            path, data, headers = data_of(rng)
            try:
                with socket.create_connection(("127.0.0.1", here.port), timeout=120) as connection:
                    connection.sendall(request_bytes("POST", path, data, headers))
                    if rng.random() < 0.03:  # leaves
                        time.sleep(rng.random() * 0.1)
                        continue
                    came = read_all(connection)
                reply = reply_of(came)
            except Exception as error:
                with lock:
                    wrong.append(f"{seed}/{number}: {path} {data[:500]!r}: {type(error).__name__}: {error}")
                continue
            with lock:
                statuses[reply.status] += 1
                said = reply.body[-2000:]
                if reply.status >= 500 or b'"server_error"' in said or b'"api_error"' in said:
                    wrong.append(f"{seed}/{number}: {path} {data[:500]!r}: {reply.status} {said[-300:]!r}")
                elif reply.status >= 400 and not reply.json.get("error", {}).get("message"):
                    wrong.append(f"{seed}/{number}: {path} {data[:500]!r}: no message: {said!r}")

    workers = [threading.Thread(target=work) for _ in range(threads)]
    for each in workers:
        each.start()
    for each in workers:
        each.join()
    end = time.monotonic() + 60
    while here.served.calls and time.monotonic() < end:
        time.sleep(0.01)
    if here.served.calls or here.served.held_bytes:
        wrong.append(f"{len(here.served.calls)} requests and {here.served.held_bytes} bytes are left")
    return statuses, wrong


def by_schemathesis(here: Here, examples: int) -> int:
    """Has schemathesis send requests that it makes from /openapi.json. Returns its exit code."""
    program = Path(sys.executable).parent / "schemathesis"
    where = f"http://127.0.0.1:{here.port}/openapi.json"
    checks = ["--checks", "not_a_server_error", "--request-timeout", "60", "--suppress-health-check", "all"]
    with tempfile.TemporaryDirectory() as folder:  # it writes what it saw to the current one
        return subprocess.run([program, "run", where, "--max-examples", str(examples), *checks], cwd=folder).returncode


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--schemathesis", type=int, metavar="EXAMPLES", help="also schemathesis, with so many examples of each path")
    arguments = parser.parse_args()
    with (
        pumice.load(samples.smollm2(), n_ctx=160, device="cpu") as chat,
        pumice.load(samples.minilm(), device="cpu") as embed,
        serving({"chat": chat, "embed": embed}, max_answer=8, sampling={"max_seconds": 1.0}) as here,
    ):
        begun = time.monotonic()
        statuses, wrong = fuzz(here, arguments.requests, arguments.seed)
        print(f"{sum(statuses.values())} requests in {time.monotonic() - begun:.0f} s: {dict(sorted(statuses.items()))}")
        print("\n".join(wrong))
        code = by_schemathesis(here, arguments.schemathesis) if arguments.schemathesis else 0
    return 1 if wrong or code else 0


if __name__ == "__main__":
    sys.exit(main())
