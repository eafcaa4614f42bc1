"""Runs a peer of pumice in a process of its own, for `pumice bench --against`. This file imports nothing of pumice, so that the peer may be
installed for another Python.

    python peer_worker.py PEER MODEL THREADS

Prints one line of JSON with the versions when the model is loaded. Then, for each line of JSON on standard input, does the work once and
prints one line of JSON with its figures, or with the key "error".
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

Work = Callable[[dict[str, Any]], dict[str, float]]


def llama_cpp(model: str, threads: int) -> Work:
    """Returns a function that prefills the prompt "ids" and decodes "tokens" further tokens. These are given and not sampled, so the choice
    of a token takes no time."""
    llama = importlib.import_module("llama_cpp")
    loaded: dict[int, Any] = {}

    def work(asked: dict[str, Any]) -> dict[str, float]:
        ids, tokens = asked["ids"], asked["tokens"]
        size = len(ids) + tokens
        if size not in loaded:
            loaded.clear()
            loaded[size] = llama.Llama(model, n_ctx=size, n_threads=threads, n_threads_batch=threads, verbose=False)
        model_ = loaded[size]
        model_.reset()
        begin = time.perf_counter()
        model_.eval(ids)
        read = time.perf_counter()
        for i in range(tokens):
            model_.eval([ids[i % len(ids)]])
        return {"prefill": len(ids) / (read - begin), "decode": tokens / (time.perf_counter() - read)}

    return work


def sentence_transformers(model: str, threads: int) -> Work:
    """Returns a function that encodes the list "texts" with the package's own batch size."""
    importlib.import_module("torch").set_num_threads(threads)
    loaded = importlib.import_module("sentence_transformers").SentenceTransformer(model, device="cpu")

    def work(asked: dict[str, Any]) -> dict[str, float]:
        texts = asked["texts"]
        begin = time.perf_counter()
        loaded.encode(texts, show_progress_bar=False)
        return {"encode": len(texts) / (time.perf_counter() - begin)}

    return work


# Name of the peer -> the function that loads it, and the packages whose versions are reported.
PEERS = {
    "llama.cpp": (llama_cpp, ("llama-cpp-python",)),
    "sentence-transformers": (sentence_transformers, ("sentence-transformers", "torch")),
}


def main() -> None:
    """Loads the model, then answers each line of standard input until the end of the input."""
    peer, model, threads = sys.argv[1], sys.argv[2], int(sys.argv[3])
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # so that what a peer prints is not taken for an answer
    make, packages = PEERS[peer]

    def answer(what: Callable[[], dict[str, Any]]) -> None:
        try:
            found = what()
        except Exception as error:  # the process that sent the request reports any error of a peer
            found = {"error": f"{type(error).__name__}: {error}"}
        answers.write(json.dumps(found) + "\n")
        answers.flush()

    work: list[Work] = []

    def begin() -> dict[str, Any]:
        from importlib.metadata import version  # imported here because it takes 25 ms, and the `pumice` command reads PEERS at each start

        work.append(make(model, threads))
        return {"versions": [f"{name} {version(name)}" for name in packages]}

    answer(begin)
    for line in sys.stdin:
        asked = json.loads(line)
        answer(lambda asked=asked: work[0](asked))  # type: ignore[misc]


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt, BrokenPipeError):
        main()
