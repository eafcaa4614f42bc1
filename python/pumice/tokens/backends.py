"""Safe calls of the `tokenizers` package, which panics in Rust where other packages raise errors, and starts its own threads."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain

from tokenizers import Tokenizer as Backend
from tokenizers import models

from ..common.arguments import shown
from ..common.exits import exit_waits, threads_start
from ..errors import TokenizerError
from . import gguf_tokenizer

LONG_TEXT = 1 << 14  # minimum number of characters of a text that ids_of() tokenizes as a batch of one


def copy_of(backend: Backend) -> Backend:
    """Returns a copy that shares nothing with the original. A copy made from the original's model, normalizer and other parts would share
    these parts."""
    with exit_waits:
        return Backend.from_str(backend.to_str())


def unknown_id(backend: Backend) -> int | None:
    """Returns the id of the token for text that no other token matches, or None if this kind of tokenizer has no such token."""
    with exit_waits:
        token = getattr(backend.model, "unk_token", None)
        if token is not None:
            return backend.token_to_id(token)
        return json.loads(backend.to_str())["model"].get("unk_id") if isinstance(backend.model, models.Unigram) else None


class Threads:
    """The threads in which the `tokenizers` package tokenizes batches. The package starts them at the first batch of the process. If it
    cannot start them, it panics, prints a Rust backtrace, and each later batch of the process panics as well. To prevent this, run() first
    starts and ends as many threads."""

    def __init__(self) -> None:
        self._started = False

    def run(self) -> bool:
        """Returns whether the package's threads run or can be started now. If not, the caller must tokenize texts one by one in its own
        thread."""
        if not self._started:
            # tries one thread more than needed, because the system may still count a thread that has just ended
            self._started = threads_start(self._count() + 1)
        return self._started

    @staticmethod
    def _count() -> int:
        """Returns the number of processors that this process may use, which is the number of threads that the package starts."""
        return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


threads = Threads()


def ids_of(backend: Backend, text: str) -> list[int]:
    """Returns the ids of a text. A long text is tokenized as a batch of one, for which the package does not compute the positions of
    tokens: 512 KiB of digits take 0.69 s instead of 1.09 s, and of punctuation 0.07 s instead of 0.20 s. A short text is not, because it
    would only wait for the package's threads."""
    if len(text) >= LONG_TEXT and threads.run():
        return backend.encode_batch_fast([text], add_special_tokens=False)[0].ids
    return backend.encode(text, add_special_tokens=False).ids


@contextmanager
def no_panic(doing: str) -> Iterator[None]:
    """A context manager for calls of the `tokenizers` package. A bare Exception or a panic (a BaseException, which `except Exception` does
    not catch) becomes a TokenizerError."""
    with exit_waits:
        try:
            yield
        except BaseException as error:
            if type(error) is not Exception and type(error).__name__ != "PanicException":
                raise
            raise TokenizerError(f"{doing} failed inside the tokenizers package: {error}. {gguf_tokenizer.FIX}") from None


def ends_at_spaces(backend: Backend) -> bool:
    """Returns whether no token contains a space, and a space does not change the tokens next to it. This is so for BERT's tokenizer,
    because its normalizer works character by character and its words end at spaces."""
    steps = [(part and json.loads(part.__getstate__()).get("type")) for part in (backend.normalizer, backend.pre_tokenizer)]
    bert = type(backend.model).__name__ == "WordPiece" and steps[0] in (None, "BertNormalizer") and steps[1] == "BertPreTokenizer"
    return bert and not any(" " in token.content for token in backend.get_added_tokens_decoder().values())


def check_template(backend: Backend) -> None:
    """Raises TokenizerError if the post-processor's template names a special token without defining it. With such a template, the
    tokenizers package panics and prints a message."""
    processor = backend.post_processor
    waiting = [json.loads(processor.__getstate__())] if processor is not None else []
    while waiting:
        step = waiting.pop()
        waiting += step.get("processors") or []
        if step.get("type") != "TemplateProcessing":
            continue
        for part in chain(step.get("single") or (), step.get("pair") or ()):
            name = (part.get("SpecialToken") or {}).get("id")
            if name is not None and name not in (step.get("special_tokens") or {}):
                raise TokenizerError(
                    f"the post-processor's template uses {shown(name)}, which its special_tokens lack. {gguf_tokenizer.FIX}"
                )
