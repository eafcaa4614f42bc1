"""Calls everything public with right and hostile arguments, in child processes, so that a death is seen.

    python tests/python/support/abuse.py [--calls 20000] [--seed 0] [--processes 2]

The list of calls comes from the package itself: its functions, and the methods of its classes. Each parameter has right values in RIGHT; a
parameter without them is an error, so a new call or keyword must get a row. A call has right values but for one or a few parameters, which
get hostile ones: of another type, dtype, shape or size, objects whose methods lie or raise, huge texts, ids outside of the vocabulary. Each
call must return, without a NaN, or raise a documented error with a message of some lines. Afterwards the models must answer as before. A
seed makes the same calls again. The message about a failure says how to repeat that call alone (--child SEED --only NUMBER)."""

from __future__ import annotations

import argparse
import array
import asyncio
import collections
import contextlib
import dataclasses
import datetime
import decimal
import enum
import fractions
import gc
import inspect
import io
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
import types
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import paths

sys.path[:0] = [str(paths.ROOT / "examples"), str(paths.TESTS)]

import random_models  # noqa: E402
import token_label_models  # noqa: E402
from sanitized import SLOWER, limit_address_space  # noqa: E402
from small_files import encoder_folder, gguf_file, gguf_keys  # noqa: E402

import pumice  # noqa: E402

MOST_SECONDS = 5.0  # of all threads, for one call, beside what allowed_seconds() adds for much work
MOST_MEMORY = 6 << 30  # bytes of address space; a call that needs more gets a MemoryError
MOST_MESSAGE = 4000  # characters
BATCH = 2500  # calls of one child

TEMPLATE = (
    "{% if tools %}<tools>{{ tools | tojson }}</tools>{% endif %}{% for m in messages %}<s>{{ m.role }}: {{ m.content }}</s>{% endfor %}"
    "{% if add_generation_prompt %}<s>assistant: {% endif %}"
)


class Raised(Exception):
    """What the hostile objects of this file raise. It may leave any call."""


# Errors that docs/python/errors.md has.
DOCUMENTED = (pumice.PumiceError, TypeError, ValueError, OSError, MemoryError, ImportError, KeyboardInterrupt, Raised)


# ---------------------------------------------------------------- the public calls
# Classes whose objects the package makes. Their constructors are not called by users.
RESULTS = {
    "AsyncStream", "AsyncToolStream", "CallDelta", "ChatResult", "Chunk", "Comparison", "ConversionPlan", "DeviceInfo", "DeviceList",
    "Encoded", "Generation", "Grammar", "LabeledSpan", "Model", "Perplexity", "Plan", "Predicted", "Prediction", "RankHit", "Ranked",
    "Report", "SamplingParams", "Scores", "SearchResult", "Stream", "TokenLabels", "ToolCall", "ToolResult", "ToolRun", "ToolStream",
}  # fmt: skip
CONSTRUCTED = {"SparseVectors"}


def public_calls() -> dict[str, Callable[..., Any]]:
    """Returns the public calls: "load" -> the function, "Model.encode" -> the unbound method, "SparseVectors" -> the class."""
    found: dict[str, Callable[..., Any]] = {}
    for name in pumice.__all__:
        value = getattr(pumice, name)
        if isinstance(value, type) and not issubclass(value, BaseException):
            assert name in RESULTS | CONSTRUCTED, f"{name}: is it made by the package (RESULTS) or by its users (CONSTRUCTED)?"
            if name in CONSTRUCTED:
                found[name] = value
            fields = {field.name for field in dataclasses.fields(value)} if dataclasses.is_dataclass(value) else set()
            for method in dir(value):
                function = inspect.getattr_static(value, method)
                if isinstance(function, property):
                    function = function.fget
                function = getattr(function, "__func__", function)
                if (
                    not method.startswith("_")
                    and method not in fields
                    and (getattr(function, "__module__", None) or "").startswith("pumice")
                ):
                    found[f"{name}.{method}"] = getattr(value, method)
        elif inspect.isfunction(value):
            found[name] = value
    return found


def parameters(call: str, function: Any) -> list[inspect.Parameter]:
    """Returns the parameters of a call without self. Async calls that take what another one takes have the parameters of that one."""
    like = {"Model.agenerate": "generate", "Model.astream": "generate", "Model.achat": "chat"}
    if isinstance(function, property):
        return []
    found = list(inspect.signature(getattr(pumice.Model, like[call]) if call in like else function).parameters.values())
    if call == "plan":
        found = [found[0], *(p for p in inspect.signature(pumice.load).parameters.values() if p.kind is p.KEYWORD_ONLY)]
    return [each for each in found if each.name != "self"]


# ---------------------------------------------------------------- right values
class World:
    """The models and values of one child."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        decoder, self.encoder_path = folder / "decoder.gguf", encoder_folder(folder / "encoder")
        decoder.write_bytes(gguf_file({**gguf_keys("gpt2"), "tokenizer.chat_template": TEMPLATE}))
        self.decoder_path = decoder
        self.labels_path = token_label_models.make_folder("bert_tokens", folder / "labels")
        self.source = random_models.make_folder("llama3", folder / "source")
        given: dict[str, Any] = {"device": "cpu", "threads": 2, "progress": False}
        self.decoder = pumice.load(decoder, pooling="mean", **given)
        self.encoder = pumice.load(self.encoder_path, **given)
        self.labels = pumice.load(self.labels_path, **given)
        self.models = (self.decoder, self.encoder, self.labels)
        self.prefix = folder / "prefix.bin"
        self.decoder.save_prefix(self.prefix, [3, 4, 5, 6])
        self.loop = asyncio.new_event_loop()
        self.vectors = np.random.default_rng(0).normal(size=(5, 8)).astype(np.float32)
        self.sparse = pumice.SparseVectors(
            np.array([1, 3, 2], np.int32), np.array([0.5, 1, 2], np.float32), np.array([0, 2, 3], np.int64), (2, 35)
        )
        self.grammar = pumice.Grammar.choices(["ab", "a b c"])
        self.answers = self.right_answers()

    def right_answers(self) -> list[bytes]:
        texts = ["a b c", "w1 w2", "", "ab " * 30]
        return [
            self.encoder.encode(["w1 w2 w3", "w4", "w5 " * 40]).tobytes(),
            self.encoder.predict([("w1", "w2")]).tobytes(),
            self.decoder.generate([3, 4, 5], max_new_tokens=12, temperature=0, ignore_eos=True).ids.tobytes(),
            self.decoder.generate("a b c", max_new_tokens=12, temperature=1, seed=4, ignore_eos=True).ids.tobytes(),
            self.decoder.score("a b c ab").tobytes(),
            self.decoder.encode(texts[:2]).tobytes(),
            repr(self.labels.label_tokens("Anna lives in Rome")).encode(),
            *(self.decoder.tokenize(text).tobytes() for text in texts),
        ]


Right = Callable[[World, random.Random], Any]


def one_of(*values: Any) -> Right:
    return lambda world, rng: rng.choice(values)


def path_in(*names: str) -> Right:
    return lambda world, rng: world.folder / rng.choice(names)


TEXT = one_of("a b c", "w1 w2", "", "ab", "Anna lives in Rome", "é ü ß 漢字", "<s>a</s>", "a " * 200)
TEXTS = one_of("a b", ["a b c", "w1 w2", ""], ["w1"] * 9, (), ("a", "b"))
IDS = one_of([3, 4, 5], (3,), [5, 6] * 20, np.array([3, 9, 4], np.int64), np.array([3, 9], np.uint16), "a b c")
PROMPT = one_of("a b c", [3, 4, 5], ["a", "b c"], [[3, 4], "a"], np.array([3, 9, 4], np.int32))


def made(*values: Callable[[World], Any]) -> Right:
    return lambda world, rng: rng.choice(values)(world)


VECTORS = made(
    lambda world: world.vectors, lambda world: world.vectors[:2], lambda world: world.vectors[0], lambda world: world.vectors.tolist(),
    lambda world: world.vectors.astype("f8"),
)  # fmt: skip
NOTHING = one_of(None)
BOOL = one_of(True, False)
MESSAGES = one_of(
    "Hi", [{"role": "user", "content": "a b"}], [{"role": "system", "content": "a"}, {"role": "user", "content": "b"}],
    [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}, {"role": "user", "content": "c"}],
)  # fmt: skip
TOOL = {"type": "function", "function": {"name": "now", "description": "The time.", "parameters": {"type": "object", "properties": {}}}}
SCHEMA: dict[str, Any] = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"], "additionalProperties": False}
RESPONSE = {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA}}
GRAMMAR = made(lambda world: None, lambda world: None, lambda world: world.grammar, lambda world: 'root ::= "a" | "b"')
SOURCE = made(
    lambda world: world.decoder_path,
    lambda world: world.encoder_path,
    lambda world: str(world.decoder_path),
    lambda world: world.labels_path,
)

# The name of a parameter, or CALL.parameter where the name alone means several things -> its right values.
RIGHT: dict[str, Right] = {
    # texts and ids
    "inputs": TEXTS, "texts": TEXTS, "text": TEXT, "query": TEXT, "prompt": PROMPT, "ids": IDS, "text_or_ids": IDS,
    "documents": one_of(["a b", "c"], ["w1"], []), "pairs": one_of([("a", "b")], [("w1", "w2"), ("", "")], ["a"], "a"),
    "messages": MESSAGES, "prompt_or_messages": one_of("a b", [3, 4], [{"role": "user", "content": "a"}]),
    "add_special": BOOL, "skip_special": BOOL, "Grammar.choices.texts": one_of(["a", "b"], ("ab",)),
    "perplexity.texts": one_of("a b c d e f g h", ["a b c d", "e f g"]), "quantize.texts": one_of(None, ["a b c"] * 3, [[3, 4, 5]] * 3),
    # encode()
    **dict.fromkeys(("predict.prompt", "rank.prompt"), one_of(None, "a ", "")),
    **dict.fromkeys(("encode.prompt", "prompt_name"), one_of(None, None, None, "query")), "batch_size": one_of(None, 1, 7),
    "token_budget": one_of(None, 1, 64), "normalize": one_of(None, True, False), "truncate_dim": one_of(None, 2, 8),
    "precision": one_of("float32", "int8", "binary"), "precision_ranges": NOTHING,
    "output": one_of("sentence", "tokens"), "max_active_dims": one_of(None, 3), "truncate": one_of(True, "error", 4),
    "show_progress_bar": one_of(None, False), "out": NOTHING, "details": BOOL,
    "activation": one_of(None, "sigmoid", "none"), "predict.output": one_of("scores", "labels"), "top_k": one_of(None, 1, 3),
    "max_document_tokens": one_of(None, 4), "aggregation": one_of(None, "simple", "none"), "threshold": one_of(0.0, 0.5),
    "ignore_labels": one_of(("O",), ()), "label_tokens.output": one_of("spans", "tokens"),
    # vectors
    **dict.fromkeys(("a", "b", "queries", "corpus", "vectors"), VECTORS), "maxsim.documents": lambda world, rng: [world.vectors,
    world.vectors[:2]],
    "similarity": one_of("cosine", "dot", "euclidean"), "search.top_k": one_of(1, 3, 10), "quantize_vectors.precision": one_of("int8",
    "binary"),
    "sparse_tokens.vectors": lambda world, rng: world.sparse, "matrix": lambda world, rng: world.sparse.to_scipy(),
    "indices": one_of(np.array([1, 3, 2], np.int32)), "values": one_of(np.array([0.5, 1, 2], np.float32)),
    "offsets": one_of(np.array([0, 2, 3], np.int64)), "shape": one_of((2, 9), (2, 35)),
    # inside
    "positions": one_of("last", "all"), "top": one_of(None, 0, 3), "window": one_of(None, 4, 16), "layers": one_of(None, 0, -1, [0]),
    "layer": one_of(0, -1), "reference": lambda world, rng: world.decoder,
    # generate(); most values are those that stop soon
    "prefix": one_of(None, None, "a"), "suffix": one_of(None, None, "b", ["a", "b"]), "files": one_of(None, None, {"a": "b"}),
    "repository": NOTHING, "generate.path": one_of(None, None, "a.py"),
    "sampling": one_of(None, None, [{"temperature": 0}, None]), "max_new_tokens": one_of(0, 1, 2, 4), "min_new_tokens": one_of(0, 1),
    "ignore_eos": BOOL, "bad_words": one_of(None, "ab", ["a", [3, 4]]), "max_reasoning_tokens": NOTHING,
    "max_repeated_tokens": one_of(None, 0, 64),
    "logits_processor": one_of(None, None, None, lambda ids, logits: None), "temperature": one_of(None, 0, 0.7), "top_p": one_of(None, 0.5,
    1),
    "generate.top_k": one_of(None, 0, 5), "min_p": one_of(None, 0.1), "typical_p": one_of(None, 0.5),
    **dict.fromkeys(("repetition_penalty", "presence_penalty", "frequency_penalty"), one_of(None, 1.1)),
    "dry_multiplier": one_of(None, 0.8), "dry_base": one_of(None, 1.75), "dry_allowed_length": one_of(None, 2), "dry_range": one_of(None,
    9),
    "dry_breakers": one_of(None, ["a"]), "top_n_sigma": one_of(None, 1.0), "xtc_probability": one_of(None, 0.5),
    "xtc_threshold": one_of(None, 0.1), "mirostat_tau": one_of(None, None, 5.0), "mirostat_eta": one_of(None, 0.1),
    "logit_bias": one_of(None, {3: 1.0}, {"a": -1.0}), "seed": one_of(None, 0, 7), "stop": one_of(None, "ab", ["a", 3]), "n": one_of(1, 1,
    2),
    "logprobs": one_of(None, 0, 2, True), "grammar": GRAMMAR, "priority": one_of(0, 1), "max_seconds": one_of(0.0, 5.0),
    "chunk_seconds": one_of(0.0, 0.01), "speculate": one_of(None, None, "prompt"), "draft": NOTHING, "max_tokens": one_of(None, 2),
    # chat()
    "stream": BOOL, "response_format": one_of(None, None, RESPONSE), "tools": one_of(None, None, [TOOL], []),
    "tool_choice": one_of(None, "auto"),
    "parallel_tool_calls": BOOL, "continue_final": one_of(False, False, True), "dry_run": BOOL, "template_kwargs": one_of(None, {"x": 1}),
    "parse_special": BOOL,
    # run_tools(); the hostile values of `tools` become calls of nothing, because these models write none
    "model": lambda world, rng: world.decoder, "max_rounds": one_of(1, 2), "in_turn": BOOL,
    **dict.fromkeys(("run_tools.tools", "arun_tools.tools"), one_of([], [], [(TOOL, str)], [str.upper])),
    # files
    "path": path_in("prefix.bin", "new-prefix.bin"), "source": SOURCE, "output_path": path_in("out-1.gguf", "out-2.gguf"),
    "convert.source": lambda world, rng: world.source, "convert.output": path_in("out-1.gguf"), "quantize.output": path_in("out-2.gguf"),
    "to": one_of("auto", "f16", "q8_0"), "quantize.to": one_of("q8_0", "q4_0"), "tokenizer": NOTHING, "convert.tokenizer": one_of("none"),
    "split": NOTHING, "force": one_of(True, True, False), "keep": one_of(None, {"output.weight": "f16"}), "requantize": BOOL,
    "tokens": one_of(64, 256), "importance": NOTHING,
    "progress": one_of(False, None, lambda done, total: None), "convert.dry_run": one_of(True, False), "quantize.dry_run": one_of(True,
    False),
    # load()
    "device": one_of("cpu", "auto"), "gpu_layers": one_of("auto", 0), "gpu_experts": one_of("auto"), "quantize": one_of(None, "q8_0"),
    "n_ctx": one_of(None, 32), "kv_dtype": one_of(None, "f16", "q8_0"), "kv_budget": one_of("auto", 1 << 20),
    "expert_cache": one_of("auto"),
    "compute": one_of("auto", "float32"), "threads": one_of(1, 2, None), "chat_template": one_of(None, TEMPLATE),
    "response_template": one_of(None, False),
    "pooling": one_of(None, "mean", ["mean", "cls"]), "task": NOTHING, "lora": NOTHING, "sketch": BOOL, "mtp": BOOL,
    "unread_tensors": one_of("error", "warn"), "follow_links": BOOL,
    "prompts": one_of(None, {"q": "a "}),
    "quick": one_of(True),
    # grammars, limits
    "schema": one_of(SCHEMA, {"type": "string", "maxLength": 3}, {"enum": [1, "a", None]}), "whitespace": one_of("compact", "free"),
    "relax": one_of((), ["uniqueItems"]), "pattern": one_of("a+b", "[ab]{2}"), "Grammar.gbnf.text": one_of('root ::= "a" | "b"'),
    "Grammar.lark.text": one_of('start: "a" "b"?'), "running": one_of(None, 1, 64), "waiting": one_of(None, 100),
    "step_seconds": one_of(None, 0.1),
}  # fmt: skip
RIGHT["load.quantize"] = RIGHT["aload.quantize"] = RIGHT["plan.quantize"] = RIGHT["quantize"]

# Calls that take milliseconds or more -> how much rarer they are than others.
RARE = {
    "doctor": 0.01, "devices": 0.1, "load": 0.3, "aload": 0.3, "plan": 0.3, "convert": 0.1, "quantize": 0.1, "Model.close": 0.05,
    "Model.compare": 0.3, "Grammar.json_schema": 0.5, "Grammar.lark": 0.3, "Grammar.regex": 0.3, "Grammar.gbnf": 0.3, "build_info": 0.1,
}  # fmt: skip


def right_for(call: str, parameter: str) -> Right | None:
    """Returns the right values of a parameter: those of its call, of calls that end alike ("Model.aencode_query" as "encode"), or those of
    its name."""
    last = call.rpartition(".")[2]
    base = last.removeprefix("a") if call.startswith("Model.a") and last not in ("attentions",) else last
    base = {"encode_query": "encode", "encode_document": "encode", "stream": "generate", "chat": "generate"}.get(base, base)
    return next((RIGHT[key] for key in (f"{call}.{parameter}", f"{base}.{parameter}", parameter) if key in RIGHT), None)


def without_values() -> list[str]:
    return [f"{c}.{p.name}" for c, f in public_calls().items() for p in parameters(c, f) if right_for(c, p.name) is None]


# ---------------------------------------------------------------- hostile values
class Lying(list):  # type: ignore[type-arg]
    def __len__(self) -> int:
        return 10**6


class Negative(list):  # type: ignore[type-arg]
    def __len__(self) -> int:
        return -1


class Loud:
    """Raises whatever is asked of it."""

    def _raise(self, *_: Any) -> Any:
        raise Raised("asked")

    __iter__ = __len__ = __index__ = __int__ = __float__ = __bool__ = __str__ = __repr__ = __hash__ = __eq__ = _raise  # type: ignore[assignment]
    __getitem__ = __contains__ = __array__ = __fspath__ = __call__ = __lt__ = __add__ = __format__ = _raise  # type: ignore[assignment]


class Liar:
    """Answers with something of another type."""

    __index__ = lambda self: 10**30  # noqa: E731
    __float__ = lambda self: float("nan")  # noqa: E731
    __array__ = lambda self, *_, **__: [1, 2, 3]  # noqa: E731
    __fspath__ = lambda self: b"\xff\xfe"  # noqa: E731
    __iter__ = lambda self: iter([self])  # noqa: E731
    __len__ = lambda self: 2**62  # noqa: E731
    __getitem__ = lambda self, key: self  # noqa: E731
    __call__ = lambda self, *_, **__: self  # noqa: E731


class Text(str):
    """A str whose methods lie."""

    def encode(self, *_: Any) -> bytes:  # type: ignore[override]
        raise Raised("encode")

    def __len__(self) -> int:
        return 2**40

    def __str__(self) -> str:
        return "\ud800"


class Kind(enum.Enum):
    A = "a"


def breaks_off(items: list[Any]) -> Iterator[Any]:
    yield from items
    raise Raised("in the middle")


def nested(depth: int, kind: str) -> Any:
    value: Any = "a"
    for _ in range(depth):
        value = [value] if kind == "list" else {"a": value}
    return value


def itself(kind: str) -> Any:
    if kind == "list":
        items: list[Any] = []
        items.append(items)
        return items
    table: dict[str, Any] = {}
    table["a"] = table
    return table


def masked() -> Any:
    return np.ma.masked_array([3, 4, 5], [0, 1, 0])


def arrays(rng: random.Random) -> Any:
    dtype = rng.choice(["i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", "f2", "f4", "f8", "c8", "?", "O", "S3", "U3", "M8[s]", ">i4",
    ">f4", "V4",
                        [("a", "i4"), ("b", "f4")]])  # fmt: skip
    shape = rng.choice([(), (0,), (1,), (3,), (7,), (0, 5), (5, 0), (2, 3), (3, 8), (1, 1, 3), (1,) * 30, (64,), (300,)])
    values = np.zeros(shape, dtype)
    if values.size and values.dtype.kind in "iuf":
        low, high = rng.choice([(0, 9), (3, 30), (-5, 5), (100, 127)])
        if values.dtype.kind == "u":
            low = abs(low)
        values[...] = np.array([rng.randint(min(low, high), max(low, high)) for _ in range(values.size)]).reshape(shape)
        if values.dtype.kind == "f" and rng.random() < 0.3:
            values.reshape(-1)[0] = rng.choice([np.nan, np.inf, -np.inf, 65504, 5e-8])
        if values.dtype.itemsize >= 4 and rng.random() < 0.3:
            values.reshape(-1)[-1] = rng.choice([2**31 - 1, 2**30]) * (1 if values.dtype.kind == "u" else rng.choice([1, -1]))
    if values.dtype == object and values.size:
        values.reshape(-1)[0] = rng.choice([None, "a", 3, 10**40, Loud(), itself("list")])
    way = rng.randrange(8)
    if way == 0 and values.ndim:
        values = values[::-2]
    elif way == 1 and values.ndim:
        values = (
            np.broadcast_to(values[:1], (rng.choice([5, 40, 10**6]), *values.shape[1:])) if values.shape[0] and values.size < 70 else values
        )
    elif way == 2:
        values = np.asfortranarray(values)
    elif way == 3:
        values.flags.writeable = False
    elif way == 4:
        values = values.view(np.recarray) if rng.random() < 0.5 and values.dtype.names else np.ma.masked_array(values)
    elif way == 5 and values.ndim == 1 and values.dtype.itemsize > 1 and values.dtype.kind in "iuf":
        values = np.frombuffer(b"\0" + values.tobytes() + b"\0" * (values.dtype.itemsize - 1), np.uint8)[1:][: values.nbytes].view(
            values.dtype
        )  # unaligned
    return values


LONG = [
    lambda n: "a" * n, lambda n: "ab " * (n // 3), lambda n: " " * n, lambda n: "\n" * n, lambda n: "\0" * n, lambda n: "é" * n,
    lambda n: "\u0301" * n, lambda n: "漢" * n, lambda n: "😀" * n, lambda n: "</s>" * (n // 4), lambda n: "<s>" * (n // 3),
    lambda n: "\ufffd" * n,
    lambda n: "(" * n, lambda n: "[" * n, lambda n: "{%" * (n // 2), lambda n: '{"a":' * (n // 5), lambda n: "\\" * n, lambda n: "1" * n,
    lambda n: "a|" * (n // 2), lambda n: "".join(map(chr, range(32, 0xD000)))[:n],
]  # fmt: skip
NUMBERS = [
    0, -1, 1, 2, 7, 63, 128, 129, 255, 256, 4096, 2**15, 2**16, 2**20, 2**31 - 1, 2**31, 2**32, 2**53 + 1, 2**62, 2**63 - 1, 2**63, 2**64,
    10**30, 10**5000,
    -2, -(2**31), -(2**63), -(10**30), 0.0, -0.0, 0.5, 1.0, 1.5, -0.5, 2.0**31, 1e30, 1e300, -1e300, 5e-324, 1e-30, float("nan"),
    float("inf"), -float("inf"),
    1j, complex("nan"), decimal.Decimal("NaN"), decimal.Decimal("1.5"), fractions.Fraction(1, 3), True, False,
]  # fmt: skip


def hostile(world: World, rng: random.Random, right: Any, long: int) -> Any:
    """Returns a hostile value. right: a right value, from which some hostile ones are made.  long: the length of long texts."""
    kind = rng.randrange(12)
    if kind == 0:
        return rng.choice(NUMBERS)
    if kind == 1:
        number = rng.choice(NUMBERS)
        with contextlib.suppress(TypeError, ValueError, OverflowError):
            return rng.choice([np.int8, np.uint8, np.int32, np.int64, np.uint64, np.float16, np.float32, np.float64, np.bool_, np.array])(
                number
            )
        return number
    if kind == 2:
        return rng.choice(
            ["", " ", "\0", "a\0b", "\ud800", "a\udfffb", "\ud83d\ude00", "é", "😀", "\u202e", "<s>", "</s>", "<unk>", "a/b", "a" * 300,
            "../a", "-", "nan",
             "cpu", "auto", "all", "mean", "q8_0", "float32", "{{ messages }}", "{% for x in range(10**9) %}a{% endfor %}", "{", "(a+)+$",
             "a{1000000000}",
             "\x1b[31m", "1e999", "0", "true", "__class__"])  # fmt: skip
    if kind == 3:
        return arrays(rng)
    if kind == 4:
        return rng.choice(
            [None, b"", b"a b", b"\xff", bytearray(b"abc"), memoryview(b"abc"), memoryview(b"abcd").cast("f"), array.array("i", [3, 4]),
            [], (), {}, set(),
             [[]], [None], [()], {"a": 1}, {1: 2}, {None: None}, {"role": "user"}, range(3), range(10**9), ..., NotImplemented, object(),
             int, str,
             len, lambda *a: a, lambda **k: k, print, types, Kind.A, datetime.datetime(2026, 1, 1), Path("/nowhere"), io.StringIO("a"),
             io.BytesIO(b"a")])  # fmt: skip
    if kind == 5:
        return rng.choice(
            [Loud, Liar, lambda: Text("a b"), lambda: Lying(["a"]), lambda: Negative([3]), lambda: breaks_off(["a", "b"]),
            lambda: breaks_off([3]),
             lambda: (x for x in ["a", "b", 3]), lambda: iter([]), threading.Lock, lambda: world.encoder, lambda: world.decoder,
             lambda: world.grammar,
             lambda: world.sparse, masked, lambda: collections.deque(["a"]), lambda: collections.UserString("a"),
             lambda: collections.UserList([3]),
             lambda: types.MappingProxyType({"a": 1}), lambda: np.matrix([[1, 2]]), lambda: np.float32,
             lambda: np.random.default_rng(0)])()  # fmt: skip
    if kind == 6:
        form = rng.choice(["list", "dict"])
        return rng.choice([lambda: nested(rng.choice([2, 30, 999, 100_000]), form), lambda: itself(form)])()
    if kind == 7:
        return rng.choice(LONG)(rng.choice([1000, long // 10, long]) if rng.random() < 0.3 else 300)
    if kind == 8:  # rows of a wrong kind
        inner = [hostile(world, rng, right, 300) for _ in range(rng.randrange(4))]
        return rng.choice([inner, tuple(inner), {str(i): each for i, each in enumerate(inner)}])
    if kind == 9 and isinstance(right, (list, tuple)):  # one element of the right value is wrong
        items = list(right)
        items.insert(rng.randint(0, len(items)), hostile(world, rng, right, 300))
        return rng.choice([items, tuple(items)])
    if kind == 9 and isinstance(right, dict):
        table = dict(right)
        key = rng.choice([*table, "new"])
        table[key] = hostile(world, rng, table.get(key), 300)
        return table
    if kind == 10 and isinstance(right, list) and right and isinstance(right[0], dict):  # messages, tools
        items = [dict(item) for item in right if isinstance(item, dict)]
        changed = rng.choice(items)
        changed[rng.choice([*changed, "tool_calls", "name"])] = hostile(world, rng, None, 300)
        return items
    if kind == 11 and isinstance(right, (str, list, np.ndarray)) and len(right):
        return rng.choice([lambda: [right], lambda: (right,), lambda: {"a": right}, lambda: right * 2, lambda: iter(right),
        lambda: right[:0],
                           lambda: np.array(right, object), lambda: [right, right]])()  # fmt: skip
    return rng.choice([None, -1, "", [], right])


# ---------------------------------------------------------------- one call
@dataclasses.dataclass
class Call:
    name: str
    subject: Any  # the object whose method it is
    given: dict[str, Any]  # the arguments by name
    unknown: dict[str, Any]  # keywords that no call has

    def __str__(self) -> str:
        def shown(value: object) -> str:
            try:
                text = repr(value)
            except BaseException:
                text = f"a {type(value).__name__}"
            return text if len(text) < 200 else f"{text[:200]}... ({len(text)} characters)"

        return f"{self.name}({', '.join(f'{name}={shown(value)}' for name, value in {**self.given, **self.unknown}.items())})"


# Parameters that always get a value, because the default takes long or has no effect here.
ALWAYS = {"tokenizer", "max_new_tokens", "threads", "progress", "device", "force", "quick"}


def make_call(world: World, rng: random.Random, name: str, function: Any, long: int) -> Call:
    every = parameters(name, function)
    given: dict[str, Any] = {}
    for each in every:
        right = right_for(name, each.name)
        assert right is not None
        if each.default is each.empty or each.name in ALWAYS or rng.random() < 0.15:
            given[each.name] = right(world, rng)
    for _ in range(rng.choice([0, 1, 1, 1, 2]) if every else 0):
        each = rng.choice(every)
        right = right_for(name, each.name)
        assert right is not None
        given[each.name] = hostile(world, rng, right(world, rng), long)
    if rng.random() < 0.02 and given:
        del given[rng.choice(list(given))]
    unknown = {rng.choice(["foo", "Temperature", "max_length", "a\0", ""]): 1} if rng.random() < 0.02 else {}
    return Call(name, subject_of(world, rng, name), given, unknown)


def subject_of(world: World, rng: random.Random, name: str) -> Any:
    owner, _, method = name.rpartition(".")
    if owner == "Model":
        if method == "close":
            return pumice.load(world.decoder_path, device="cpu", threads=1, progress=False)
        fits = {"encoder": ("predict", "rank"), "labels": ("label",)}
        fit = next((getattr(world, model) for model, names in fits.items() if any(each in method for each in names)), None)
        encodes = "encode" in method or method in ("search", "similarity", "similarity_pairwise")
        return rng.choice(world.models) if rng.random() < 0.1 else fit or (rng.choice(world.models) if encodes else world.decoder)
    if owner in ("ToolStream", "AsyncToolStream"):
        given: dict[str, Any] = {"tools": [], "stream": True, "max_new_tokens": 3}
        if owner == "ToolStream":
            return pumice.run_tools(world.decoder, "a b", **given)
        return world.loop.run_until_complete(pumice.arun_tools(world.decoder, "a b", **given))
    if owner in ("Stream", "AsyncStream"):
        stream = world.decoder.stream("a b", max_new_tokens=3) if owner == "Stream" else world.decoder.astream("a b", max_new_tokens=3)
        for _ in range(rng.randrange(5)):
            if owner == "Stream":
                next(stream, None)
            else:
                world.loop.run_until_complete(first_of(stream))
        return stream
    made: dict[str, Callable[[], Any]] = {
        "ChatResult": lambda: world.decoder.chat("a", max_new_tokens=2), "ToolCall": lambda: pumice.ToolCall("1", "now", {"a": [1]}),
        "ToolRun": lambda: pumice.run_tools(world.decoder, "a", tools=[], max_new_tokens=2),
        "ToolResult": lambda: pumice.ToolResult(pumice.ToolCall("1", "now", {}), 0, "", 0.0),
        "SparseVectors": lambda: world.sparse, "ConversionPlan": lambda: pumice.convert(world.source, world.folder / "p.gguf",
        tokenizer="none", dry_run=True),
        "Plan": lambda: pumice.plan(world.decoder_path), "Grammar": lambda: world.grammar, "Report": lambda: pumice.doctor(quick=True,
        progress=False),
    }  # fmt: skip
    return made[owner]() if owner else None


async def first_of(stream: Any) -> None:
    async for _ in stream:
        return


async def all_of(stream: Any) -> list[Any]:
    return [each async for each in stream]


def run(world: World, call: Call, function: Any) -> Any:
    owner, _, method = call.name.rpartition(".")
    given = {**call.given, **call.unknown}
    if isinstance(function, property):
        return getattr(call.subject, method)
    result = getattr(call.subject, method)(**given) if owner and owner != "Grammar" or call.name == "Grammar.relaxed" else function(**given)
    if inspect.isawaitable(result):
        result = world.loop.run_until_complete(result)
    if isinstance(result, (pumice.Stream, pumice.ToolStream)):
        return list(result)
    if isinstance(result, (pumice.AsyncStream, pumice.AsyncToolStream)) and method != "begin":
        return world.loop.run_until_complete(all_of(result))
    if isinstance(result, pumice.Model):
        with result as model:
            if "generate" in model.info["tasks"]:
                return model.generate([3, 4], max_new_tokens=1, temperature=0).ids
            return model.encode("w1")
    return result


# Calls whose numbers may be infinite, because the caller's vectors are what they are computed from, or as logits that forbid a token.
INFINITE = {"similarity", "similarity_pairwise", "search", "maxsim", "to_dense", "to_scipy", "SparseVectors", "from_scipy", "memory"}


def not_finite(value: Any, depth: int = 3) -> bool:
    if isinstance(value, np.ndarray):
        return value.dtype.kind == "f" and not bool(np.isfinite(value).all())
    if isinstance(value, (float, np.floating)):
        return not np.isfinite(value)
    if depth and dataclasses.is_dataclass(value) and not isinstance(value, type):
        return any(not_finite(getattr(value, field.name), depth - 1) for field in dataclasses.fields(value) if field.name != "params")
    return bool(depth) and isinstance(value, (list, tuple)) and any(not_finite(each, depth - 1) for each in value[:50])


def items(value: Any, depth: int = 3) -> int:
    """Returns the number of characters, numbers and rows of arrays in a value. Deeper ones do not count."""
    if isinstance(value, np.ndarray) and value.ndim:
        return len(value)
    if type(value) is str:
        return len(value)
    if type(value) in (list, tuple, dict) and depth:
        return sum(items(each, depth - 1) for each in (value.values() if type(value) is dict else value))
    return 1


def allowed_seconds(call: Call) -> float:
    """Returns the processor time that a call may take. Beside MOST_SECONDS it is 10 us for each character, number and row that is given,
    and 2 ms for each answer that is asked for (n=): 65,536 answers and texts of a million characters are much work, not a fault."""
    given = call.given.get("n")
    answers = given.item() if isinstance(given, (np.integer, np.ndarray)) and given.size == 1 else given
    count = answers if type(answers) is int and 1 <= answers <= 2**16 else 1
    return (MOST_SECONDS + 1e-5 * sum(items(value) for value in call.given.values()) + 2e-3 * count) * SLOWER


def judge(world: World, call: Call, function: Any) -> tuple[str, str]:
    """Makes a call. Returns its outcome ("result" or the name of the error's class), and what is wrong with it, or ""."""
    begin = time.process_time()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            warnings.simplefilter("ignore", UserWarning)
            result = run(world, call, function)
        outcome, wrong = "result", ""
        if call.name.rpartition(".")[2] not in INFINITE and not_finite(result):
            wrong = "its result holds a NaN or an infinity"
    except DOCUMENTED as error:
        outcome, wrong = type(error).__name__, ""
        if not isinstance(error, Raised):
            try:
                message = str(error)
            except Exception as failed:
                message, wrong = "", f"the message of {outcome} raises {failed!r}"
            # The system's own errors have the whole path.
            if not wrong and len(message) > MOST_MESSAGE and not isinstance(error, OSError):
                wrong = f"{outcome} has a message of {len(message)} characters: {message[:200]}"
            if not wrong and not message and not isinstance(error, (KeyboardInterrupt, MemoryError)):
                wrong = f"{outcome} has no message"
    except BaseException as error:
        import traceback

        outcome, wrong = type(error).__name__, "".join(traceback.format_exception(error)[-6:])
    if not wrong and time.process_time() - begin > allowed_seconds(call):
        wrong = f"took {time.process_time() - begin:.1f} s of the processors"
    return outcome, wrong


# ---------------------------------------------------------------- a child and its parent
BAR = re.compile(r"[^\r\n]*\d+%\|[^\r\n]*|[^\r\n]*\d+ ?\w+ \[[^\r\n]*")  # a progress bar on stderr


def child(seed: int, calls: int, only: int | None, long: int) -> int:
    """Makes the calls of one seed. Prints each wrong one, and last "done" with the counts of outcomes. What the calls print (print() is one
    of the callbacks) goes nowhere."""
    reports, sys.stdout = sys.stdout, open(os.devnull, "w")  # noqa: SIM115
    os.environ["HF_HUB_OFFLINE"] = "1"
    limit_address_space(MOST_MEMORY)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)  # where a hostile path that is a valid name is written
        Path("note").write_text("")
        note = os.open(os.environ.get("PUMICE_ABUSE_NOTE", "note"), os.O_WRONLY | os.O_CREAT)
        world = World(Path(folder))
        functions = public_calls()
        names = list(functions)
        weights = [RARE.get(name, 1.0) for name in names]
        counts: collections.Counter[str] = collections.Counter()
        slowest = (0.0, "")
        for i in range(calls) if only is None else [only]:
            rng = random.Random(seed * 10_000_019 + i)
            name = rng.choices(names, weights)[0]
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # numpy warns of numbers that a type does not hold
                call = make_call(world, rng, name, functions[name], long)
            os.pwrite(note, f"{seed} {i} {call}".encode(errors="replace")[:4000].ljust(4000), 0)
            begin = time.process_time()
            outcome, wrong = judge(world, call, functions[name])
            took = time.process_time() - begin
            slowest = max(slowest, (took, f"{i} {call}"))
            counts[outcome] += 1
            if wrong:
                print(f"--child {seed} --only {i}: {call}\n  {wrong}", file=reports, flush=True)
            if i % 500 == 499 or only is not None:
                gc.collect()
                world.decoder.set_limits(running=64, waiting=1000, step_seconds=0.1)
                if world.right_answers() != world.answers:
                    print(f"--child {seed}: after call {i} the models answer differently", file=reports, flush=True)
                left = {name: world.decoder.stats()[name] for name in ("running", "waiting", "lagging")}
                if any(left.values()):
                    print(f"--child {seed}: after call {i} there are {left}", file=reports, flush=True)
        world.loop.close()
        shown = " ".join(slowest[1][:300].split())  # in one line, because abuse() reads the last one
        print("done", sum(counts.values()), dict(counts), f"slowest {slowest[0]:.2f} s: {shown}", file=reports, flush=True)
    return 0


def abuse(calls: int, seed: int = 0, processes: int = 2, long: int = 1_000_000) -> tuple[int, list[str], dict[str, int], str]:
    """Makes calls in children. Returns how many were made, what was wrong, the counts of outcomes, and the slowest call."""
    wrong: list[str] = []
    counts: collections.Counter[str] = collections.Counter()
    slowest: list[str] = []
    todo = [(seed * 1000 + i, min(BATCH, calls - begin)) for i, begin in enumerate(range(0, calls, BATCH))][::-1]
    lock = threading.Lock()

    def work() -> None:
        while True:
            with lock:
                if not todo:
                    return
                number, count = todo.pop()
            with tempfile.NamedTemporaryFile() as note:
                environment = {
                    **os.environ, "PUMICE_ABUSE_NOTE": note.name, "PUMICE_VULKAN_LIBRARY": "/none",
                    "PYTHONPATH": os.pathsep.join([str(Path(pumice.__file__).parents[1]), os.environ.get("PYTHONPATH", "")]),
                }  # fmt: skip
                command = [
                    sys.executable,
                    "-X",
                    "faulthandler",
                    __file__,
                    "--child",
                    str(number),
                    "--calls",
                    str(count),
                    "--long",
                    str(long),
                ]
                try:
                    done = subprocess.run(command, env=environment, capture_output=True, text=True, errors="replace", timeout=600 + count)
                    code: int | str = done.returncode
                    out, err = done.stdout, done.stderr
                except subprocess.TimeoutExpired as late:
                    code, out, err = "no end", str(late.stdout or ""), str(late.stderr or "")
                last = Path(note.name).read_text(errors="replace").strip()
            lines = out.splitlines()
            with lock:
                if lines and lines[-1].startswith("done "):
                    found = lines.pop()
                    counts.update(eval(found[found.index("{") : found.index("}") + 1]))
                    slowest.append(found[found.index("slowest") :])
                err = BAR.sub("", err).strip()
                if code != 0 or err:
                    wrong.append(f"the child ended with {code}, its last call was (seed, number, call) {last}\n{err[-3000:]}")
                wrong.extend("\n".join(lines).split("\n--child ") if lines else [])

    threads = [threading.Thread(target=work) for _ in range(processes)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(counts.values()), wrong, dict(counts), max(slowest, default="", key=lambda text: float(text.split()[1]))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--long", type=int, default=1_000_000, help="characters of the longest texts")
    parser.add_argument("--child", type=int, help="the seed of the calls that this process makes itself")
    parser.add_argument("--only", type=int, help="with --child: make one call alone")
    given = parser.parse_args()
    if given.child is not None:
        return child(given.child, given.calls, given.only, given.long)
    begin = time.monotonic()
    made, wrong, counts, slowest = abuse(given.calls, given.seed, given.processes, given.long)
    print(f"{made} calls in {time.monotonic() - begin:.0f} s: {counts}\n{slowest}")
    for each in wrong[:50]:
        print(each)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
