"""What is fuzzed in Python. Each target takes any bytes, makes an input of them, and gives it to pumice. Either it works, or it raises one
of the errors that the target names. atheris runs the targets for long (run.py), and tests/python/package/test_fuzz_targets.py runs each
for a moment.

If the input stands for the contents of a file, only PumiceError and MemoryError pass (OF_FILES), because the caller's arguments are right.
Otherwise TypeError and ValueError pass, too (OF_CALLS). What passes of public calls is in abuse.py, which makes their arguments."""

from __future__ import annotations

import contextlib
import copy
import json
import math
import os
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

sys.path.append(str(Path(__file__).parents[1] / "python" / "support"))

import abuse  # noqa: E402
from small_files import TOKENS, File, gguf_keys, other_tokenizers, wordlevel  # noqa: E402

from pumice.chats.chat_templates import ChatTemplate  # noqa: E402
from pumice.chats.response_parser import ResponseParser, ResponseTemplate  # noqa: E402
from pumice.chats.response_templates import ROWS  # noqa: E402
from pumice.errors import PumiceError  # noqa: E402
from pumice.generate.grammar import Grammar, Grammars  # noqa: E402
from pumice.tokens.decoding import _BYTES  # noqa: E402
from pumice.tokens.tokenizer_files import load_tokenizer  # noqa: E402
from pumice.tokens.tokenizers import Tokenizer  # noqa: E402

OF_FILES: tuple[type[BaseException], ...] = (PumiceError, MemoryError)
OF_CALLS: tuple[type[BaseException], ...] = (*OF_FILES, TypeError, ValueError)
MOST_SECONDS = 10.0  # of the processors, for one input


class Choices:
    """Reads decisions from the bytes of an input, one after another. After the last byte, every decision is 0."""

    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, 0

    def below(self, count: int) -> int:
        """Returns a number from 0 to count - 1."""
        size = 1 if count <= 256 else 2 if count <= 65536 else 4
        piece = self._data[self._at : self._at + size]
        self._at += size
        return int.from_bytes(piece, "little") % count if count > 1 else 0

    def once_in(self, count: int) -> bool:
        return self.below(count) == count - 1

    def one_of(self, items: Any) -> Any:
        return items[self.below(len(items))]

    def text(self) -> str:
        """Returns a text of up to 24 characters, or a longer one of few characters."""
        if self.once_in(12):
            return self.text()[:3] * self.one_of((10, 100, 1000))
        size = self.below(25)
        piece = self._data[self._at : self._at + size]
        self._at += size
        return piece.decode("utf-8", self.one_of(("replace", "ignore", "surrogateescape")))

    @property
    def left(self) -> int:
        return max(0, len(self._data) - self._at)


VALUES: list[Any] = [
    None,
    True,
    False,
    0,
    1,
    -1,
    2,
    7,
    255,
    2**31,
    2**63,
    -(2**63),
    10**30,
    0.5,
    -0.0,
    1e308,
    math.inf,
    math.nan,
    "",
    "a",
    "\0",
    "</s>",
    "<s>",
    "\u2581",
    "##",
    "(",
    "[^",
    "\\p{L}+",
    "{x}",
    "$",
    "#",
    [],
    {},
    [[]],
    {"a": {}},
    "Isolated",
    "always",
    "string",
    "object",
]


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Returns the path of each value in a JSON value, the value itself included."""
    found = [path]
    if isinstance(value, (dict, list)):
        for key in value if isinstance(value, dict) else range(len(value)):
            found += places(value[key], (*path, key))
    return found


def edited(choices: Choices, base: Any) -> Any:
    """Returns a JSON value with up to five changes: a value is replaced, left out, put twice, or put at another place."""
    root = {"": copy.deepcopy(base)}
    for _ in range(choices.below(6)):
        all_places = [path for path in places(root) if path]
        *path, last = choices.one_of(all_places)
        parent: Any = root
        for key in path:
            parent = parent[key]
        other: Any = root
        for key in choices.one_of(all_places):
            other = other[key]
        kind = choices.below(6)
        if kind == 0 and path:
            del parent[last]
        elif kind == 1:
            parent[last] = choices.text()
        elif kind == 2:
            parent[last] = copy.deepcopy(other)
        elif kind == 3 and isinstance(parent, list):
            parent.insert(last, copy.deepcopy(other))
        elif kind == 4 and isinstance(parent, dict) and path:
            parent[choices.text()] = copy.deepcopy(other)
        else:
            parent[last] = copy.deepcopy(choices.one_of(VALUES))
    return root[""]


# ---------------------------------------------------------------- tokenizers
def use_tokenizer(tokenizer: Tokenizer, choices: Choices) -> None:
    """Encodes texts and decodes ids. A text that a caller gives may be refused only if it is no valid str."""
    special = len(tokenizer.encode(""))  # ids of the template; a text that may have no other id is refused
    for _ in range(3):
        text = choices.text()
        try:
            ids = tokenizer.encode(text, not choices.once_in(2), not choices.once_in(2))
            tokenizer.encode_batch([text, "a"], truncate_to=choices.one_of((None, special + 4, special + 64)))
        except ValueError:
            if all(not 0xD800 <= ord(c) < 0xE000 for c in text):
                raise
            continue
        with contextlib.suppress(ValueError):  # the template of a file may add ids that have no token
            tokenizer.decode(ids, skip_special=choices.once_in(2))
        stream = tokenizer.decode_stream()
        for index in ids[:32].tolist():
            stream.step(index)
        stream.flush()
    for index in range(min(len(tokenizer), 40)):
        tokenizer.piece(index)


def numbers(value: Any) -> Any:
    """Lists of numbers are arrays in the metadata of GGUF files, whose items have one type."""
    if isinstance(value, list) and value and all(isinstance(v, (int, float)) and not isinstance(v, bool) for v in value):
        whole = all(isinstance(v, int) and -(2**31) <= v < 2**31 for v in value)
        return np.asarray(value, np.int32 if whole else np.float32)
    if isinstance(value, list):
        return [v for v in value if isinstance(v, str)]
    return value


def gguf_tokenizer(choices: Choices) -> None:
    keys = edited(choices, gguf_keys(choices.one_of(sorted(TOKENS))))
    values = {key: numbers(value) for key, value in keys.items()} if isinstance(keys, dict) else {}
    use_tokenizer(load_tokenizer(File(values)), choices)  # type: ignore[arg-type]


@cache
def tokenizer_files() -> list[dict[str, Any]]:
    """A tokenizer.json of each kind."""
    return [wordlevel(), *(wordlevel() | parts for parts in other_tokenizers().values())]


@cache
def folder() -> Path:
    made = tempfile.TemporaryDirectory(prefix="pumice-fuzz-")
    globals()["_kept"] = made  # is removed at the end of the process
    return Path(made.name)


TOKENIZER_CONFIG = {
    "bos_token": "<s>",
    "eos_token": {"content": "</s>", "lstrip": False},
    "add_bos_token": True,
    "model_max_length": 512,
    "added_tokens_decoder": {"508": {"content": "<s>", "special": True}, "7": {"content": "w7", "special": True}},
    "additional_special_tokens": ["w9"],
    "tokenizer_class": "PreTrainedTokenizerFast",
    "do_lower_case": True,
    "cls_token": "<s>",
}


def tokenizer_json(choices: Choices) -> None:
    for name, base in (("tokenizer.json", choices.one_of(tokenizer_files())), ("tokenizer_config.json", TOKENIZER_CONFIG)):
        (folder() / name).write_text(json.dumps(edited(choices, base)))
    use_tokenizer(load_tokenizer(File({}, str(folder()), "safetensors")), choices)  # type: ignore[arg-type]


# ---------------------------------------------------------------- chats
TEMPLATES = [
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m['content'] | trim }}{{ m.tool_calls }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}",
    "{{ bos_token }}{% for m in messages if m.role != 'x' %}{%- if loop.first and m.role == 'system' %}{% set ns.a = 1 %}{% endif %}"
    "{{ m.content.split('b')[-1] ~ (m | tojson) }}{% endfor %}",
    "{% macro f(x, n=2) %}{{ x * n }}{% endmacro %}{% set ns = namespace(a=0) %}{% for m in messages[::-1] %}"
    "{{ f(m.content) ~ m.tool_calls }}"
    "{% set ns.a = ns.a + loop.index %}{% endfor %}{{ '%s' % ns.a }}{{ raise_exception('no') if ns.a > 3 }}",
    "{% for t in tools or [] %}{{ t.function.name }}{{ t | tojson(indent=2) }}{% endfor %}{% for i in range(messages | length) %}"
    "{{ messages[i].content ~ messages[i].tool_calls }}{% endfor %}{% generation %}{{ strftime_now('%Y') }}{% endgeneration %}",
]
PIECES = [
    "{{",
    "}}",
    "{%",
    "%}",
    "{% for i in range(9999) %}",
    "{% endfor %}",
    "{% if",
    "messages",
    "messages[0]",
    ".content",
    "|",
    "tojson",
    "* 99999",
    "** 999",
    "loop",
    "namespace()",
    "self",
    "__class__",
    "''.join",
    "|attr('x')",
    "%",
    "~",
    "[",
    "]",
    "(",
    ")",
    "'",
    "not",
    "is defined",
    "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "{% set x = [1] %}{% set _ = x.append(x) %}{{ x }}",
    "|length",
    "|map(attribute='a')",
    "|join",
    "{{ 'a'.ljust(99999999) }}",
    "{{ '%999999999d' % 1 }}",
    "{{ 'a'.format }}",
    "{#",
    "#}",
    "-%}",
    "|format",
    "|batch(0)",
    "|slice(0)",
    "|indent(-1)",
    "|tojson(indent=-1)",
    "{{ range(99999)|list|tojson }}",
    "cycler()",
    "lipsum()",
    "joiner()",
    "dict(a=1)",
]
MESSAGES = [
    {"role": "system", "content": "You help."},
    {"role": "user", "content": [{"type": "text", "text": "Hello"}]},
    {
        "role": "assistant",
        "content": None,
        "reasoning_content": "thinks",
        "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}],
    },
    {"role": "tool", "tool_call_id": "c1", "content": "42"},
    {"role": "user", "content": "<|im_end|> and </s>"},
]
TOOLS = [
    {
        "type": "function",
        "function": {"name": "f", "description": "d", "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}}},
    }
]


def chat_template(choices: Choices) -> None:
    source = choices.one_of(TEMPLATES)
    for _ in range(choices.below(6)):
        at = choices.below(len(source) + 1)
        end = at + (choices.below(12) if choices.once_in(2) else 0)
        source = source[:at] + (choices.one_of(PIECES) if choices.once_in(2) else choices.text()) + source[end:]
    template = ChatTemplate(source, bos_token="<s>", eos_token="</s>")
    assert isinstance(template.variables, frozenset)
    messages, tools = edited(choices, MESSAGES), edited(choices, TOOLS)
    text = template.render(messages, add_generation_prompt=choices.once_in(2), tools=tools)
    assert isinstance(text, str)
    template.prompt(messages, small_tokenizer().control, tools=tools)


@cache
def small_tokenizer() -> Tokenizer:
    return load_tokenizer(File(gguf_keys("gpt2")))  # type: ignore[arg-type]


CALLS = [
    '{"name": "f", "arguments": {"a": 1}}',
    "<function=f>\n<parameter=a>\n1\n</parameter>\n</function>",
    'f(a=1, b="x")',
    "[f(a=[1])]",
    "\n",
    " ",
    '"a": "',
    "\\",
    "{",
    "}",
    "[",
    "]",
    "'''",
    "1e999",
    "\\u12",
    "None",
    "True",
    "-",
    ",",
    "é",
    "\U0001f642",
]


def markers_of(value: Any) -> list[str]:
    """Returns the texts in a response template, of which answers are made."""
    found = []
    for path in places(value):
        here: Any = value
        for key in path:
            here = here[key]
        if isinstance(here, str):
            found.append(here)
    return found


def response_template(choices: Choices) -> None:
    base = json.loads(json.dumps(choices.one_of(ROWS).template))
    spec = edited(choices, base)
    template = ResponseTemplate(spec)
    words = [*markers_of(base), *CALLS]
    pieces = [choices.one_of(words) if choices.below(4) else choices.text() for _ in range(choices.below(16))]
    parser = ResponseParser(template, TOOLS, calls=not choices.once_in(4))
    for piece in pieces:
        parser.feed(piece)
    parser.finish()
    assert isinstance(parser.content, str)
    parser.kinds_at(range(0, parser.length, 7))


# ---------------------------------------------------------------- schemas and grammars
SCHEMAS: list[Any] = [
    {
        "type": "object",
        "properties": {
            "a": {"type": "integer", "minimum": 0, "maximum": 100, "multipleOf": 5},
            "b": {"type": "string", "pattern": "^[a-z]+$", "maxLength": 9},
            "c": {"type": "array", "items": {"$ref": "#/$defs/d"}, "minItems": 1, "maxItems": 3},
            "e": {"anyOf": [{"type": "null"}, {"const": 1}, {"enum": ["x", 2, None]}]},
            "f": {"type": "number", "exclusiveMinimum": -1.5},
            "g": {"type": "string", "format": "date-time"},
        },
        "required": ["a", "b"],
        "additionalProperties": False,
        "$defs": {"d": {"type": ["boolean", "null"]}},
    },
    {
        "oneOf": [{"prefixItems": [{}], "uniqueItems": True}, {"minProperties": 1, "patternProperties": {"^x": {}}}],
        "allOf": [{"not": False}],
        "if": {"contains": {"type": "string"}},
        "then": {"dependentRequired": {"a": ["b"]}},
        "propertyNames": {"maxLength": 3},
    },
]
SOURCES = {
    "regex": ["[a-z]+@(b|c){2,5}", "(?i:ab)*|\\d{3}", "[^\\x00-\\x1f]{0,1000}"],
    "lark": ['start: "a" b* | /[0-9]+/\nb: "x" start', 'start: %json {"type": "integer"}\n', "start[max_tokens=3]: X\nX: /a{1,9}/"],
    "gbnf": ['root ::= "a" ws | [0-9]+\nws ::= [ \\t]*', 'root ::= ("x" root)?'],
}


@cache
def grammars() -> Grammars:
    keys = gguf_keys("gpt2")  # with a token for each byte, so that any text can be spelt
    tokens = ["<unk>", "<s>", "</s>", *_BYTES]
    types = np.asarray([2, 3, 3] + [1] * len(_BYTES), np.int32)
    keys |= {"tokenizer.ggml.tokens": tokens, "tokenizer.ggml.token_type": types, "tokenizer.ggml.merges": []}
    tokenizer = load_tokenizer(File(keys))  # type: ignore[arg-type]
    return Grammars(tokenizer, len(tokenizer), lambda: [2])


def grammar(choices: Choices) -> None:
    kind = choices.one_of(("schema", "schema", "free", "choices", *SOURCES))
    if kind in ("schema", "free"):
        made = Grammar.json_schema(edited(choices, choices.one_of(SCHEMAS)), whitespace="compact" if kind == "schema" else "free")
    elif kind == "choices":
        made = Grammar.choices(edited(choices, ["a", "b", "ab"]))
    else:
        source = choices.one_of(SOURCES[kind])
        for _ in range(choices.below(5)):
            at, end = choices.below(len(source) + 1), choices.below(len(source) + 1)
            source = source[:at] + choices.text() + source[end:]
        made = getattr(Grammar, kind)(source)
    grammars().compiled(made)


# ---------------------------------------------------------------- public calls
class Drawn(random.Random):
    """Takes the decisions of abuse.py from the bytes of an input. After the last byte, every number is 0, and every float is nearly 1,
    at which abuse.py does nothing unusual."""

    def __init__(self, choices: Choices) -> None:
        super().__init__(0)
        self._choices = choices

    def getrandbits(self, count: int) -> int:
        return self._choices.below(1 << count)

    def random(self) -> float:
        return 1 - (self._choices.below(65536) + 1) / 65537


ANSWERS_EVERY = 500  # calls; comparing takes as long as some calls


class Calls:
    """The small models of abuse.py and the public calls, in a folder of their own, where a hostile path that is a valid name is written."""

    def __init__(self) -> None:
        self._folder = folder() / "calls"
        self._folder.mkdir()
        with self._inside():
            self.world = abuse.World(self._folder)
        self._functions = abuse.public_calls()
        self._names = list(self._functions)
        self._weights = [abuse.RARE.get(name, 1.0) for name in self._names]
        self._made = 0

    @contextlib.contextmanager
    def _inside(self) -> Iterator[None]:
        before, hub = os.getcwd(), os.environ.get("HF_HUB_OFFLINE")
        os.chdir(self._folder)
        os.environ["HF_HUB_OFFLINE"] = "1"
        try:
            yield
        finally:
            os.chdir(before)
            os.environ.pop("HF_HUB_OFFLINE") if hub is None else os.environ.update(HF_HUB_OFFLINE=hub)

    def make(self, drawn: Drawn) -> bool:
        name = drawn.choices(self._names, self._weights)[0]
        with self._inside():
            call = abuse.make_call(self.world, drawn, name, self._functions[name], long=100_000)
            outcome, wrong = abuse.judge(self.world, call, self._functions[name])
        assert not wrong, f"{call}: {wrong}"
        self._made += 1
        if name == "Model.set_limits" or self._made % ANSWERS_EVERY == 0:
            self.world.decoder.set_limits(running=64, waiting=1000, step_seconds=0.1)
        if self._made % ANSWERS_EVERY == 0:
            assert self.world.right_answers() == self.world.answers, f"after {call} or a call before it, the models answer differently"
        return outcome == "result"


@cache
def calls() -> Calls:
    return Calls()


class Refused(Exception):
    """A public call raised a documented error."""


def public_call(choices: Choices) -> None:
    if not calls().make(Drawn(choices)):
        raise Refused


class Target(NamedTuple):
    run: Callable[[Choices], None]
    passes: tuple[type[BaseException], ...]


TARGETS = {
    "gguf_tokenizer": Target(gguf_tokenizer, OF_FILES),
    "tokenizer_json": Target(tokenizer_json, OF_FILES),
    "chat_template": Target(chat_template, OF_CALLS),
    "response_template": Target(response_template, OF_CALLS),
    "grammar": Target(grammar, OF_CALLS),
    "public_call": Target(public_call, (Refused,)),
}


def run(name: str, data: bytes) -> bool:
    """Runs a target on the bytes, and returns whether pumice took the input. Raises an error that the target must not raise."""
    target, begin = TARGETS[name], time.process_time()
    try:
        target.run(Choices(data))
        taken = True
    except target.passes:
        taken = False
    took = time.process_time() - begin
    assert took < MOST_SECONDS, f"took {took:.1f} s of the processors"
    return taken
