"""What an answer must look like: JSON of a schema, a regular expression, one of a few texts, a grammar.

The masks come from llguidance (extra [grammar]), called by the engine. Here a schema is made ready for it: nothing of it is dropped unless
`relax` asks for that by name, and what cannot be enforced is a GrammarError with its place.
"""

from __future__ import annotations

import contextlib
import json
import math
import re
import threading
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from fractions import Fraction
from typing import TYPE_CHECKING, Any, Literal, cast

import numpy as np

from .. import _core
from ..arguments import choice, did_you_mean, plain, shown, warn
from ..errors import GrammarError, GrammarWarning, TokenizerError
from ..interruptible import interruptible

if TYPE_CHECKING:
    from ..tokens.tokenizers import Tokenizer

MOST_BYTES = 256 << 10  # of a source: the engine's, too
MOST_DEPTH = 64  # of JSON
MOST_BITS = 2048  # of a number in it
MOST_GBNF_BYTES = 64 << 10  # its reader takes the square of that: 1 s
MOST_PATTERNS = 500  # of a schema: 5,000 take 0.2 s a token
MOST_MULTIPLE = (
    100_000  # least common multiple of a schema's multipleOf, in units of their last digit: an automaton has so many states (1 s)
)
MOST_JOINED = 10  # & and ~ in a Lark grammar: 14 take 0.1 s and are refused, 30 take gigabytes
MOST_COMPILED = 64  # of one model

Kind = Literal["json", "regex", "lark", "llguidance"]  # of what is compiled

# JSON Schema's words that llguidance enforces; the others below it refuses, and whatever else stands in a schema is an annotation.
ENFORCED = (
    "$ref", "additionalItems", "additionalProperties", "allOf", "anyOf", "const", "enum", "exclusiveMaximum", "exclusiveMinimum", "format",
    "items", "maxItems", "maxLength", "maxProperties", "maximum", "minItems", "minLength", "minProperties", "minimum", "multipleOf",
    "oneOf", "pattern", "patternProperties", "prefixItems", "properties", "required", "type",
)  # fmt: skip
FORMATS = ("date", "date-time", "duration", "email", "hostname", "ipv4", "ipv6", "time", "unknown", "uri", "uuid")
# Formats that say how a value is meant, and forbid none: OpenAPI's, and those that pydantic writes.
ANNOTATIONS = frozenset({
    "base64", "base64url", "binary", "byte", "decimal", "directory-path", "double", "file-path", "float", "float32", "float64", "int16",
    "int32", "int64", "int8", "json-string", "multi-host-uri", "password", "path", "uint16", "uint32", "uint64", "uint8",
})  # fmt: skip
# What relax= takes: without such a word a schema allows more, never less.
RELAXABLE = {
    name: (name, *more)
    for name, *more in (
        ("contains", "minContains", "maxContains"), ("dependencies",), ("dependentRequired",), ("dependentSchemas",), ("format",),
        ("if", "then", "else"), ("maxItems",), ("maxLength",), ("maxProperties",), ("minItems",), ("minLength",), ("minProperties",),
        ("multipleOf",), ("not",), ("oneOf",), ("pattern",), ("propertyNames",), ("unevaluatedItems",), ("unevaluatedProperties",),
        ("uniqueItems",),
    )
}  # fmt: skip
_WHITESPACE: dict[str, dict[str, Any]] = {
    "compact": {"whitespace_flexible": False},
    "free": {"whitespace_pattern": r"[\x20\x0A\x0D\x09]{1,20}"},  # at a place; without an end a model may write blanks for ever
}

_ONE = ("additionalItems", "additionalProperties", "contains", "else", "if", "items", "not", "propertyNames", "then", "unevaluatedItems",
        "unevaluatedProperties")  # fmt: skip
_LISTS = ("allOf", "anyOf", "items", "oneOf", "prefixItems")
_NAMED = ("$defs", "definitions", "dependencies", "dependentSchemas", "patternProperties", "properties")


class Grammar:
    """What an answer must look like. It never changes, pickles as its source, and is compiled for a model at the first answer.

    relaxed: JSON pointers of what of a schema is not enforced, because `relax` said so."""

    __slots__ = ("_kind", "_made_by", "_made_for", "_source", "_relaxed")
    _kind: Kind
    _source: str
    _made_by: str
    _made_for: Any
    _relaxed: tuple[str, ...]

    def __init__(self) -> None:
        raise TypeError(f"a Grammar is made by {', '.join(f'Grammar.{name}()' for name in _MAKERS)}")

    @classmethod
    def _make(cls, made_by: str, kind: Kind, source: str, relaxed: Sequence[str] = (), made_for: Any = None) -> Grammar:
        size = len(source.encode("utf-8", "surrogatepass"))
        if size > MOST_BYTES:
            raise GrammarError(f"the grammar has {size} bytes; at most {MOST_BYTES} are compiled")
        if any("\ud800" <= c <= "\udfff" for c in source):
            raise GrammarError("the grammar has half of a surrogate pair, which no text can have")
        self = object.__new__(cls)
        for name, value in zip(cls.__slots__, (kind, made_by, made_for, source, tuple(relaxed)), strict=True):
            object.__setattr__(self, name, value)
        return self

    @classmethod
    def json_schema(cls, schema: Any, *, whitespace: Literal["compact", "free"] = "compact", relax: Collection[str] = ()) -> Grammar:
        """JSON of a schema: a dict or its text, a pydantic model, or a pydantic TypeAdapter.

        whitespace: "compact": none between what JSON is made of; "free": up to 20 characters at a place.
        relax: names of keywords that may go unenforced ("oneOf": as anyOf); GrammarWarning says where, and so does .relaxed.
        Properties come in the order of the schema; objects of a pydantic type have no others than its fields, unless it allows extra ones
        (those of a dict may, unless additionalProperties is false).
        Raises GrammarError with the JSON pointer of what cannot be enforced."""
        choice("whitespace", whitespace, _WHITESPACE)
        plain_schema = schema_of_type(schema)
        ready, relaxed = prepared(closed(plain_schema) if is_pydantic(schema) else plain_schema, _relaxed_words(relax))
        if relaxed:
            words = ", ".join(relaxed[:20]) + (f" and {len(relaxed) - 20} more" if len(relaxed) > 20 else "")
            warn(GrammarWarning, f"answers may break what relax leaves out: {words}")
        guidance = {**_WHITESPACE[whitespace], **({"coerce_one_of": True} if "oneOf" in relax else {})}
        source = json.dumps({**ready, "x-guidance": guidance}, ensure_ascii=False)
        return cls._make("json_schema", "json", source, relaxed, schema if is_pydantic(schema) else None)

    @classmethod
    def json_object(cls) -> Grammar:
        """Any JSON object, written compactly."""
        source = json.dumps({"type": "object", "x-guidance": _WHITESPACE["compact"]})
        return cls._make("json_object", "json", source)

    @classmethod
    def regex(cls, pattern: str) -> Grammar:
        """Texts that match a regular expression from begin to end: Rust's syntax, which has no look-around and no back references."""
        return cls._make("regex", "regex", _text("pattern", pattern))

    @classmethod
    def choices(cls, texts: Sequence[str]) -> Grammar:
        """One of a few texts."""
        if isinstance(texts, (str, bytes, Mapping)) or not isinstance(texts, Sequence):
            raise TypeError(f"choices takes a list of texts, not {type(texts).__name__} {shown(texts)}")
        checked = [_text(f"choice {i}", text) for i, text in enumerate(texts)]
        if not checked:
            raise GrammarError("choices is empty: there is nothing to choose from")
        return cls._make("choices", "lark", "start: CHOICE\nCHOICE: " + " | ".join(lark_text(text) for text in dict.fromkeys(checked)))

    @classmethod
    def lark(cls, text: str) -> Grammar:
        """A grammar in llguidance's dialect of Lark, whose first rule is `start`."""
        source = _text("a Lark grammar", text)
        if (joined := len(re.findall("[&~]", _LITERAL.sub("", source[: MOST_BYTES + 1])))) > MOST_JOINED:
            raise GrammarError(f"the Lark grammar joins or negates {joined} expressions by & and ~; at most {MOST_JOINED} are compiled")
        return cls._make("lark", "lark", source)

    @classmethod
    def gbnf(cls, text: str) -> Grammar:
        """A grammar in llama.cpp's GBNF, whose first rule is `root`."""
        source = _text("a GBNF grammar", text)
        if (size := len(source.encode("utf-8", "surrogatepass"))) > MOST_GBNF_BYTES:
            raise GrammarError(f"the GBNF grammar has {size} bytes; at most {MOST_GBNF_BYTES} are read")
        return cls._make("gbnf", "lark", _from_gbnf(source))

    @property
    def relaxed(self) -> tuple[str, ...]:
        return self._relaxed

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"a Grammar never changes: {name} cannot be set")

    __delattr__ = __setattr__  # type: ignore[assignment]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Grammar) and (self._kind, self._source) == (other._kind, other._source)

    def __hash__(self) -> int:
        return hash((self._kind, self._source))

    def __repr__(self) -> str:
        return f"<pumice.Grammar {self._made_by} {shown(self._source, 60)}>"

    def __reduce__(self) -> Any:
        return _unpickled, (self._made_by, self._kind, self._source, self._relaxed)


_LITERAL = re.compile(r'"(?:[^"\\\n]|\\.)*"|//[^\n]*|/(?:[^/\\\n]|\\.)+/')  # of Lark: texts, comments and expressions
_MAKERS = ("json_schema", "json_object", "regex", "choices", "lark", "gbnf")


def _unpickled(made_by: str, kind: Kind, source: str, relaxed: tuple[str, ...]) -> Grammar:
    return Grammar._make(made_by, kind, source, relaxed)


def _text(name: str, given: Any) -> str:
    if not isinstance(given, str):
        raise TypeError(f"{name} must be a text, not {type(given).__name__} {shown(given)}")
    if not given:
        raise GrammarError(f"{name} is empty: no answer would have a token")
    if "\0" in given:
        raise GrammarError(f"{name} has a NUL character; write it as an escape")
    return plain(given)


def lark_text(text: str) -> str:
    """A text as a Lark grammar spells it."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _from_gbnf(text: str) -> str:
    _need_llguidance()
    from llguidance.gbnf_to_lark import GbnfToLarkError, gbnf_to_lark

    def convert() -> str:
        try:
            return gbnf_to_lark(text)
        except GbnfToLarkError as error:
            raise GrammarError(f"the GBNF grammar cannot be read: {error}") from None
        except RecursionError:
            raise GrammarError("the GBNF grammar is nested too deep") from None
        except Exception as error:  # their converter is no parser of hostile texts
            raise GrammarError(f"the GBNF grammar cannot be read: {type(error).__name__}: {error}") from None

    return interruptible(convert)


# ---- schemas ---------------------------------------------------------------------------------------------------


def is_pydantic(given: Any) -> bool:
    """A pydantic model, or a TypeAdapter: recognised by what they can do, for pydantic is never imported."""
    model = isinstance(given, type) and callable(getattr(given, "model_json_schema", None))
    return model or (
        not isinstance(given, (type, Mapping)) and callable(getattr(given, "json_schema", None)) and hasattr(given, "validate_json")
    )


def schema_of_type(given: Any) -> dict[str, Any]:
    """A schema as a dict of plain JSON."""
    if isinstance(given, str):
        try:
            given = json.loads(given)
        except RecursionError:
            raise GrammarError(f"the schema is nested deeper than {MOST_DEPTH} levels") from None
        except ValueError as error:
            raise GrammarError(f"the schema is no JSON: {error}") from None
    elif is_pydantic(given):
        make = given.model_json_schema if hasattr(given, "model_json_schema") else given.json_schema
        try:
            given = make()
        except Exception as error:  # pydantic's own classes for types that have no JSON
            raise GrammarError(f"{shown(given)} has no JSON schema: {error}") from error
    if given is True:
        return {}
    if given is False:
        raise GrammarError("the schema is false, which no answer can meet")
    if not isinstance(given, Mapping):
        raise TypeError(f"a schema is a dict, its text, a pydantic model or a TypeAdapter, not {type(given).__name__} {shown(given)}")
    return cast(dict[str, Any], _plain_json(given))


def closed(schema: dict[str, Any]) -> dict[str, Any]:
    """With no other properties than those that objects name, where nothing is said of others (changed in place)."""
    for _, here in list(places(schema)):
        if "properties" in here and not here.keys() & {
            "additionalProperties",
            "patternProperties",
            "unevaluatedProperties",
            "allOf",
            "$ref",
        }:
            here["additionalProperties"] = False
    return schema


def _plain_json(given: Any) -> Any:
    """A copy of plain dicts and lists. Raises GrammarError for what is no JSON, is nested deeper than 64 levels, or is too large."""
    room = MOST_BYTES  # a value takes a byte at least

    def copy(value: Any, path: str, depth: int) -> Any:
        nonlocal room
        room -= 1 + (len(value) if isinstance(value, str) else 0)
        if depth > MOST_DEPTH:
            raise GrammarError(f"the schema is nested deeper than {MOST_DEPTH} levels, at {shown(path, 100)}")
        if room < 0:
            raise GrammarError(f"the schema has more than {MOST_BYTES} bytes; at most so many are compiled")
        if isinstance(value, Mapping):
            for key in value:
                if not isinstance(key, str):
                    raise GrammarError(f"the schema has the key {shown(key)} at {path}; keys are texts")
                room -= len(key)
            return {plain(key): copy(item, pointer(path, key), depth + 1) for key, item in value.items()}
        if isinstance(value, (list, tuple)):
            return [copy(item, pointer(path, i), depth + 1) for i, item in enumerate(value)]
        if isinstance(value, str):
            return plain(value)
        if isinstance(value, int) and value.bit_length() > MOST_BITS:
            raise GrammarError(f"the schema has a number of {value.bit_length()} bits at {path}; {MOST_BITS} are the most")
        if value is None or isinstance(value, (bool, int)) or (isinstance(value, float) and value - value == 0):
            return value
        raise GrammarError(f"the schema has {shown(value, 80)} at {path}, which is no JSON")

    return copy(given, "#", 0)


def pointer(path: str, key: str | int) -> str:
    return f"{path}/{str(key).replace('~', '~0').replace('/', '~1')}"


def places(schema: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every schema in a schema with its JSON pointer, what references name among them."""
    waiting: list[tuple[str, Any]] = [("#", schema)]
    seen: set[int] = set()
    while waiting:
        path, here = waiting.pop()
        if not isinstance(here, dict) or id(here) in seen:
            continue
        seen.add(id(here))
        yield path, here
        found: list[tuple[str, Any]] = [(pointer(path, name), here.get(name)) for name in _ONE]
        for name in _LISTS:
            if isinstance(items := here.get(name), list):
                found += [(pointer(pointer(path, name), i), item) for i, item in enumerate(items)]
        for name in _NAMED:
            if isinstance(named := here.get(name), dict):
                found += [(pointer(pointer(path, name), key), item) for key, item in named.items()]
        if isinstance(ref := here.get("$ref"), str) and ref.startswith("#/"):
            found.append((ref, schema_at(schema, ref)))
        waiting += reversed(found)


def schema_at(schema: Any, ref: str) -> Any:
    """What a JSON pointer names; None: nothing."""
    for part in ref[2:].split("/"):
        key = part.replace("~1", "/").replace("~0", "~")
        if isinstance(schema, dict):
            schema = schema.get(key)
        elif isinstance(schema, list) and key.isascii() and key.isdigit() and len(key) < 9 and int(key) < len(schema):
            schema = schema[int(key)]
        else:
            return None
    return schema


def _relaxed_words(relax: Any) -> tuple[str, ...]:
    if isinstance(relax, (str, bytes)) or not isinstance(relax, Collection):
        raise TypeError(f"relax is a list of keywords, not {type(relax).__name__} {shown(relax)}")
    for word in relax:
        if word not in RELAXABLE:
            raise ValueError(f"relax has {shown(word)}{did_you_mean(word, RELAXABLE)} (it takes {', '.join(RELAXABLE)})")
    return tuple(relax)


def prepared(schema: dict[str, Any], relax: Sequence[str] = ()) -> tuple[dict[str, Any], list[str]]:
    """A schema of plain JSON as the compiler takes it (changed in place), and where `relax` took something out."""
    if "x-guidance" in schema:
        raise GrammarError("#/x-guidance: it could silently leave out what the schema asks for. Use whitespace= and relax= in its place")
    relaxed = []
    patterns = 0
    multiple: Fraction | None = None
    for path, here in list(places(schema)):
        if isinstance(form := here.get("format"), str) and form in ANNOTATIONS:
            del here["format"]
        for word in relax:
            for name in RELAXABLE[word]:
                if name in here:
                    relaxed.append(pointer(path, name))
                    if name != "oneOf":  # the compiler takes it as anyOf
                        del here[name]
        named = here.get("patternProperties")
        patterns += ("pattern" in here) + ("format" in here) + (len(named) if isinstance(named, dict) else 0)
        if patterns > MOST_PATTERNS:
            raise GrammarError(f"the schema has more than {MOST_PATTERNS} patterns and formats, at {path}; their masks would take too long")
        if isinstance(given := here.get("multipleOf"), (int, float)) and given > 0:
            step = Fraction(repr(given))
            multiple = step if multiple is None else _common_multiple(multiple, step)
            if (states := _digits(multiple)) > MOST_MULTIPLE:
                raise GrammarError(
                    f"{pointer(path, 'multipleOf')}: the schema's multipleOf have {states} (without its point) as their common multiple; "
                    f"it may be at most {MOST_MULTIPLE}. relax=['multipleOf'] leaves it to you to check"
                )
    return schema, relaxed


def _common_multiple(a: Fraction, b: Fraction) -> Fraction:
    return Fraction(math.lcm(a.numerator, b.numerator), math.gcd(a.denominator, b.denominator))


def _digits(number: Fraction) -> int:
    """A decimal number without its point: 37 of 0.37."""
    places = next((k for k in range(400) if 10**k % number.denominator == 0), 400)
    return number.numerator * int(10**places) // number.denominator


# ---- what the compiler says ------------------------------------------------------------------------------------

_KEYS = re.compile(r"Unimplemented keys: (\[.*?\])")
_FORMAT = re.compile(r"Unknown format: (.*)")


def explained(grammar: Grammar, told: str) -> GrammarError:
    """What the compiler says of a grammar, with its place and what to do."""
    told = told.strip()
    if told.startswith("NoExtension"):
        return GrammarError(f"the {grammar._made_by} grammar cannot be met: no text does")
    if "Current row has" in told or "Too many items" in told:
        told = f"it has too many things that may come at one place ({told.partition(';')[0]})"
    if grammar._kind != "json":
        return GrammarError(f"the {grammar._made_by} grammar cannot be enforced: {told}")
    schema = json.loads(grammar._source)
    where, hint = _place(schema, told)
    return GrammarError(f"{where}: the schema cannot be enforced: {told}. {hint}".rstrip())


def _place(schema: dict[str, Any], told: str) -> tuple[str, str]:
    def first(words: Collection[str], fits: Any = lambda value: True) -> str:
        for path, here in places(schema):
            for word in here:
                if word in words and fits(here[word]):
                    return pointer(path, word)
        return "#"

    def relaxing(words: Sequence[str]) -> str:
        known = [word for word in RELAXABLE if any(name in words for name in RELAXABLE[word])]
        if not known:
            return ""
        return f"relax=[{', '.join(repr(word) for word in known)}] leaves it to you to check; .parsed of a pydantic type still does"

    if found := _KEYS.search(told):
        words = _words_of(found[1])
        return first(words), f"Enforced are {', '.join(ENFORCED)}. {relaxing(words)}"
    if found := _FORMAT.search(told):
        return first(["format"], lambda value: value == found[1]), f"Known formats are {', '.join(FORMATS)}. {relaxing(['format'])}"
    if "oneOf" in told:
        return first(["oneOf"]), f"Branches that may hold together are not enforced. {relaxing(['oneOf'])}"
    if "maxProperties" in told or "minProperties" in told:
        return first(["minProperties", "maxProperties"]), relaxing(["minProperties", "maxProperties"])
    if "regex parse error" in told or "regex" in told:
        source = told.partition("regex parse error:\n")[2].partition("\n")[0].strip()
        return first(
            ["pattern", "patternProperties"], lambda value: not source or source in json.dumps(value) or source in str(value)
        ), relaxing(["pattern"])
    if found := re.search(r"Invalid type: (.*)", told):
        return first(["type"], lambda value: found[1] in (value if isinstance(value, list) else [value])), ""
    if "Resource" in told or "Pointer" in told:
        return first(
            ["$ref"], lambda value: isinstance(value, str) and value.removeprefix("#") in told
        ), "References go into the schema itself"
    return "#", ""


def _words_of(text: str) -> list[str]:
    with contextlib.suppress(ValueError):
        return [word for word in json.loads(text) if isinstance(word, str)]
    return []


# ---- the library -----------------------------------------------------------------------------------------------

_MISSING = 'grammars need the package llguidance: pip install "pumice[grammar]"'
_lock = threading.Lock()
_library: _core.GrammarLibrary | None = None


def _need_llguidance() -> Any:
    try:
        import llguidance
    except ImportError as error:
        raise ImportError(f"{_MISSING} ({error})", name="llguidance") from None
    return llguidance


def is_there() -> bool:
    """Whether grammars can be enforced at all."""
    try:
        library()
    except ImportError:
        return False
    return True


def library() -> _core.GrammarLibrary:
    global _library
    with _lock:
        if _library is None:
            package = _need_llguidance()
            named = str(getattr(package, "__version__", "of no version"))
            path = getattr(getattr(package, "_lib", None), "__file__", None)
            try:
                found = _core.GrammarLibrary(str(path))
            except OSError as error:
                raise ImportError(f"llguidance {named} has no library that could be used: {error}. {_MISSING}", name="llguidance") from None
            version = "no version" if found.missing and "llg_get_version" in found.missing else found.version
            numbers = tuple(int(n) for n in re.findall(r"\d+", version)[:2])
            if found.missing or not (1, 9) <= numbers < (2,):
                lacks = f", which lacks {', '.join(found.missing[:3])}" if found.missing else ""
                raise ImportError(
                    f"grammars need llguidance >= 1.9, < 2; found the package {named} with a library of {version}{lacks}. {_MISSING}",
                    name="llguidance",
                )
            _library = found
        return _library


class Grammars:
    """One model's compiled grammars. Any number of threads ask it."""

    def __init__(self, tokenizer: Tokenizer, vocab_size: int, eos_ids: Callable[[], list[int]]) -> None:
        self._tokenizer, self._vocab_size, self._eos_ids = tokenizer, vocab_size, eos_ids
        self._tokens: _core.GrammarTokens | None = None
        self._compiled: OrderedDict[Grammar, _core.CompiledGrammar] = OrderedDict()
        self._making, self._lock = threading.Lock(), threading.Lock()

    def compiled(self, grammar: Grammar) -> _core.CompiledGrammar:
        """Raises GrammarError, ImportError where llguidance is not there."""
        with self._lock:
            if (known := self._compiled.get(grammar)) is not None:
                self._compiled.move_to_end(grammar)
                return known
        tokens = self.tokens()
        try:
            made = tokens.compile(grammar._kind, grammar._source)
        except GrammarError as error:
            raise explained(grammar, str(error)) from None
        with self._lock:
            self._compiled[grammar] = made
            while len(self._compiled) > MOST_COMPILED:
                self._compiled.popitem(last=False)
        return made

    def tokens(self) -> _core.GrammarTokens:
        found = library()
        with self._making:
            if self._tokens is None:
                eos_ids = self._eos_ids()
                if not eos_ids:
                    raise GrammarError("the model names no end token, and an answer that is complete would have no end")
                pieces = interruptible(lambda: token_bytes(self._tokenizer, self._vocab_size, eos_ids))
                lengths = np.fromiter(map(len, pieces), np.uint32, len(pieces))
                self._tokens = _core.GrammarTokens(found, lengths, b"".join(pieces), eos_ids)
            return self._tokens


def token_bytes(tokenizer: Tokenizer, vocab_size: int, eos_ids: Collection[int]) -> list[bytes]:
    """What each token adds to a text. Special tokens have 0xFF before their name, as the compiler wants it; empty: never allowed."""
    if not tokenizer.has_bytes:
        raise TokenizerError("grammars need a tokenizer whose tokens have bytes of their own, and this one joins its tokens in another way")
    special = {*tokenizer.special_ids, *eos_ids}
    return [b"" if (piece := tokenizer.piece(i)) is None else b"\xff" + piece if i in special else piece for i in range(vocab_size)]


def check_grammars(
    given: Any, prompts: int, single: bool, sampling: Sequence[Mapping[str, Any] | None] | None = None
) -> list[Grammar | None]:
    """grammar= of generate() as one for each prompt; those in sampling= go before it."""

    def one(value: Any, name: str) -> Grammar | None:
        if value is None or isinstance(value, Grammar):
            return value
        if isinstance(value, str):
            return Grammar.lark(value)
        raise TypeError(f"{name} must be a pumice.Grammar, a Lark grammar as text, or None, not {type(value).__name__} {shown(value)}")

    if isinstance(given, (list, tuple)):
        if single or len(given) != prompts:
            raise ValueError(
                f"grammar is a list of {len(given)}, and there {'is one prompt' if prompts == 1 else f'are {prompts} prompts'}"
            )
        result = [one(value, f"grammar[{i}]") for i, value in enumerate(given)]
    else:
        result = [one(given, "grammar")] * prompts
    for i, own in enumerate(sampling or ()):
        if own is not None and "grammar" in own:
            result[i] = one(own["grammar"], f"sampling[{i}]: grammar")
    return result
