"""Measures the turns of chats with hybrid models. Such a model has a recurrent state, which exists only after the last computed token.
    python bench/chats.py --python .venv/bin/python [--only qwen3.5-0.8b lfm2-1.2b] [--turns 20] [--chats 1 8] [--layers 8]

Each chat begins with --system tokens. In each turn the user adds --asked tokens, and the model answers with --thought tokens of thinking
and --said tokens. The model has random weights and a published shape (shapes.py). The next prompt has the answer without its thinking, as
chat templates of thinking models write it, so it differs from the tokens that were computed. For each turn, this prints how many tokens of
the prompt were computed, and the seconds until the first token. No more than the turn's new tokens and a few more should be computed.
llama.cpp runs one chat, by Llama.generate() of llama-cpp-python, which itself looks for a known prefix.
"""

from __future__ import annotations

import statistics
import sys
from typing import Any

import compare
from random_weights import written
from shapes import SHAPES
from turns import WORK, Worker


def chat(worker: Worker, **go: Any) -> dict[str, list[float]]:
    return worker.run(**go)  # type: ignore[return-value]


def lines(name: str, turns: dict[str, list[float]], new: int) -> None:
    computed, prompts, seconds = turns["computed"], turns["prompt"], turns["seconds"]
    last = len(computed) - 1
    print(
        f"  {name:24s} computed a turn and chat: first {computed[0]:.0f}, then {min(computed[1:]):.0f} to {max(computed[1:]):.0f} "
        f"(new: {new}; the last prompt has {prompts[last]:.0f}); seconds until the first token: first {seconds[0]:.2f}, "
        f"then median {statistics.median(seconds[1:]):.2f}, last {seconds[last]:.2f}",
        flush=True,
    )


def main() -> None:
    hybrids = [name for name, shape in SHAPES.items() if shape.model(shape.layers).state > 0]
    parser = compare.parser_of(__doc__, only=hybrids)
    parser.add_argument("--layers", type=int, help="measure so many layers of each shape")
    parser.add_argument("--turns", type=int, default=20)
    parser.add_argument("--chats", type=int, nargs="+", default=[1, 8], help="numbers of chats at once")
    for name, default in (("system", 64), ("asked", 24), ("thought", 16), ("said", 24)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--keep", action="store_true", help="leave the files in build/bench")
    given = parser.parse_args()
    b = compare.bench_of(given)
    print(compare.first_line(b), flush=True)
    for name in given.only or ["qwen3.5-0.8b", "lfm2-1.2b"]:
        shape = SHAPES[name]
        count = given.layers or (4 if given.quick else shape.measured)
        path = written(WORK / f"random-{name}-{count}.gguf", shape.model(count).write)
        go = {"turns": given.turns} | {part: getattr(given, part) for part in ("system", "asked", "thought", "said")}
        new = given.asked + given.said
        print(f"\n{shape.title}, {count} of {shape.layers} layers, {given.turns} turns")
        ours = b.worker("pumice", "chat", path)
        for chats in given.chats:
            lines(f"pumice, {chats} chat{'s' if chats > 1 else ''}", chat(ours, chats=chats, **go), new)
        ours.close()
        theirs = b.worker("llama.cpp", "chat", path)
        lines("llama.cpp, 1 chat", chat(theirs, chats=1, **go), new)
        theirs.close()
        if not given.keep:
            path.unlink()


if __name__ == "__main__":
    sys.exit(main())
