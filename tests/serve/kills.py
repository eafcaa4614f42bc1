"""Kills `pumice run` with SIGKILL at random moments, and compares what it has written in the end with a run that was not killed.

python tests/serve/kills.py --lines 2000 --kills 20   prints a line for each kill. Exit code 1 if anything is lost, twice or different."""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent.parent
sys.path.insert(0, str(ROOT / "examples"))

import samples  # noqa: E402

# Keys whose values are new in each answer, or depend on which tokens the model still has from requests before.
NEW = ("id", "created", "request_id", "usage", "timings")


def lasting(value: Any) -> Any:
    """Returns what must be equal in the answers of two runs."""
    if isinstance(value, dict):
        return {key: lasting(each) for key, each in value.items() if key not in NEW}
    return [lasting(each) for each in value] if isinstance(value, list) else value


def answer_of(line: str) -> tuple[int, Any, Any, Any]:
    """Returns the number of the line that is answered, its id, and what must be equal in the answers of two runs."""
    each = json.loads(line)
    return each["pumice"]["line"], each["custom_id"], lasting(each["response"]), each["error"]


def make_lines(path: Path, count: int) -> None:
    """Writes sampled and greedy completions, chats, vectors, and lines that are wrong."""
    with path.open("w") as file:
        for i in range(count):
            kind = i % 8
            if kind == 7:
                file.write("{bad\n")
            elif kind in (3, 6):
                file.write(
                    json.dumps({"custom_id": f"v{i}", "url": "/v1/embeddings", "body": {"model": "embed", "input": f"text {i}"}}) + "\n"
                )
            elif kind == 5:
                messages = [{"role": "user", "content": f"Number {i}?"}]
                body = {"model": "chat", "messages": messages, "max_tokens": 4, "temperature": 0}
                file.write(json.dumps({"custom_id": i, "method": "POST", "url": "/v1/chat/completions", "body": body}) + "\n")
            else:
                file.write(json.dumps({"prompt": f"Number {i}", "model": "chat", "max_tokens": 4, "temperature": 1.5}) + "\n")


def command(source: Path, target: Path) -> list[str]:
    models = ["--model", f"chat={samples.smollm2()}", "--model", f"embed={samples.minilm()}"]
    return [sys.executable, "-m", "pumice", "run", str(source), "-o", str(target), *models, "--device", "cpu"]


def lines_of(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lines", type=int, default=2000)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(arguments)
    chance = random.Random(options.seed)
    with tempfile.TemporaryDirectory() as folder:
        source, out, whole = (Path(folder) / name for name in ("in.jsonl", "out.jsonl", "whole.jsonl"))
        make_lines(source, options.lines)
        began = time.monotonic()
        subprocess.run(command(source, whole), check=True)
        print(f"not killed: {lines_of(whole)} lines in {time.monotonic() - began:.1f} s", flush=True)
        for kill in range(1, options.kills + 1):
            # The kills are spread over the lines: each waits for a number of lines, and then for a moment within one.
            aim = options.lines * kill // (options.kills + 1)
            with subprocess.Popen(command(source, out)) as process:
                while process.poll() is None and lines_of(out) < aim:
                    time.sleep(0.005)
                time.sleep(chance.uniform(0.0, 0.05))
                process.kill()
            content = out.read_bytes()
            torn = len(content) - content.rfind(b"\n") - 1
            print(f"kill {kill}: {lines_of(out)} lines, and {torn} bytes of one more", flush=True)
            if chance.random() < 0.5:  # a kill within a write; one of so few bytes is hardly ever met by chance
                os.truncate(out, len(content) - chance.randrange(1, 400))
        subprocess.run(command(source, out), check=True)
        found, expected = (
            sorted((answer_of(line) for line in path.read_text().splitlines()), key=lambda each: each[0]) for path in (out, whole)
        )
    numbers = [each[0] for each in found]
    lost, twice = set(range(1, options.lines + 1)) - set(numbers), len(numbers) - len(set(numbers))
    different = sum(a != b for a, b in zip(found, expected)) if len(found) == len(expected) else -1
    print(f"{options.lines} lines, {options.kills} kills: {len(lost)} lost, {twice} twice, {different} different")
    return int(bool(lost or twice or different))


if __name__ == "__main__":
    sys.exit(main())
