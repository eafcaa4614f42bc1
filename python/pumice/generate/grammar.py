"""Grammars for answers. A grammar is made from a JSON schema, a regular expression, a list of texts to choose from, or the text of a
grammar.

The engine calls llguidance (installed with the extra [grammar]) to compute the masks of allowed tokens. This file prepares schemas for
llguidance, which the comments also call the compiler. No restriction of a schema is dropped unless `relax` names its keyword. If a
restriction cannot be enforced, a GrammarError names its position.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from .. import _core
from ..common.arguments import choice, plain, shown, warn
from ..common.forks import Lock
from ..common.interruptible import imported, interruptible
from ..errors import GrammarError, GrammarWarning, TokenizerError
from .lark import Lark, lark_text
from .lexeme_sizes import check_lexemes
from .schema_rules import exact, origin
from .schemas import (
    ENFORCED,
    FORMATS,
    MOST_BYTES,
    RELAXABLE,
    closed,
    for_compiler,
    is_pydantic,
    places,
    pointer,
    prepared,
    relaxed_words,
    schema_of_type,
)

if TYPE_CHECKING:
    from ..tokens.tokenizers import Tokenizer

MOST_GBNF_BYTES = 64 << 10  # maximum size of a GBNF grammar; llguidance's GBNF parser takes quadratic time, 1 s for this size
# Maximum number of & and ~ in a Lark grammar. llguidance refuses a grammar with 14 of them after 0.1 s. For 30, it takes gigabytes of
# memory.
MOST_JOINED = 10
MOST_COMPILED = 64  # maximum number of compiled grammars that a model keeps

Kind = Literal["json", "regex", "lark", "llguidance"]  # the languages that llguidance compiles

_WHITESPACE: dict[str, dict[str, Any]] = {
    "compact": {"whitespace_flexible": False},
    # Allows at most 20 whitespace characters in one place. Without a limit, a model could write whitespace for ever.
    "free": {"whitespace_pattern": r"[\x20\x0A\x0D\x09]{1,20}"},
}


class Grammar:
    """The form that an answer must have. A Grammar is immutable and is pickled as its source. It is compiled for a model when it is first
    used.

    relaxed: JSON pointers of the parts of a schema that are not enforced, because `relax` named them."""

    __slots__ = ("_kind", "_made_by", "_made_for", "_source", "_relaxed")
    _kind: Kind
    _source: str
    _made_by: str
    _made_for: Any
    _relaxed: tuple[str, ...]

    def __new__(cls) -> Grammar:
        """Raises TypeError, because an empty Grammar would fail later with an AttributeError."""
        raise TypeError(f"a Grammar is made by {', '.join(f'Grammar.{name}()' for name in _MAKERS)}")

    @classmethod
    def _make(cls, made_by: str, kind: Kind, source: str, relaxed: Sequence[str] = (), made_for: Any = None) -> Grammar:
        size = len(source.encode("utf-8", "surrogatepass"))
        if size > MOST_BYTES:
            raise GrammarError(f"the grammar has {size} bytes; at most {MOST_BYTES} are compiled")
        if any("\ud800" <= c <= "\udfff" for c in source):
            raise GrammarError("the grammar has half of a surrogate pair, which no text can have")
        check_lexemes(kind, source)
        self = object.__new__(cls)
        for name, value in zip(cls.__slots__, (kind, made_by, made_for, source, tuple(relaxed)), strict=True):
            object.__setattr__(self, name, value)
        return self

    @classmethod
    def json_schema(cls, schema: Any, *, whitespace: Literal["compact", "free"] = "compact", relax: Collection[str] = ()) -> Grammar:
        """Returns a grammar for the JSON values that match a schema.

        schema: a dict, a JSON text, a pydantic model or a pydantic TypeAdapter.
        whitespace: "compact" allows no whitespace between the tokens of JSON. "free" allows up to 20 whitespace characters in each place.
        relax: names of keywords that need not be enforced ("oneOf" is then treated as anyOf). A GrammarWarning and .relaxed report where
            the schema has them.

        Properties are written in the order of the schema. An object of a pydantic type has no other properties than the type's fields,
        unless the type allows extra ones. An object of any other schema may have others, unless additionalProperties is false.

        Raises GrammarError with the JSON pointer of the keyword that cannot be enforced."""
        choice("whitespace", whitespace, _WHITESPACE)
        plain_schema = schema_of_type(schema)
        ready, relaxed = prepared(closed(plain_schema) if is_pydantic(schema) else plain_schema, relaxed_words(relax))
        if relaxed:
            words = ", ".join(relaxed[:20]) + (f" and {len(relaxed) - 20} more" if len(relaxed) > 20 else "")
            warn(GrammarWarning, f"answers may break what relax leaves out: {words}")
        guidance = {**_WHITESPACE[whitespace], **({"coerce_one_of": True} if "oneOf" in relax else {})}
        made_for, made = schema if is_pydantic(schema) else None, Lark()
        if (start := exact(ready, guidance, made, "schema")) is not None:
            return cls._make("json_schema", "llguidance", made.source(start), relaxed, made_for)
        source = json.dumps(for_compiler(ready, guidance), ensure_ascii=False)
        return cls._make("json_schema", "json", source, relaxed, made_for)

    @classmethod
    def json_object(cls) -> Grammar:
        """Returns a grammar for any JSON object, written compactly."""
        source = json.dumps({"type": "object", "x-guidance": _WHITESPACE["compact"]})
        return cls._make("json_object", "json", source)

    @classmethod
    def regex(cls, pattern: str) -> Grammar:
        """Returns a grammar for texts that match a regular expression as a whole.

        pattern: the expression. The syntax is Rust's, which has no look-around and no back references.

        Raises GrammarError or TypeError. Errors of the syntax are found when a model first uses the grammar."""
        return cls._make("regex", "regex", _text("pattern", pattern))

    @classmethod
    def choices(cls, texts: Sequence[str]) -> Grammar:
        """Returns a grammar for one of several texts.

        texts: a list of strings. An answer is one of them.

        Raises GrammarError or TypeError."""
        if isinstance(texts, (str, bytes, Mapping)) or not isinstance(texts, Sequence):
            raise TypeError(f"choices takes a list of texts, not {type(texts).__name__} {shown(texts)}")
        checked = [_text(f"choice {i}", text) for i, text in enumerate(texts)]
        if not checked:
            raise GrammarError("choices is empty: there is nothing to choose from")
        return cls._make("choices", "lark", "start: CHOICE\nCHOICE: " + " | ".join(lark_text(text) for text in dict.fromkeys(checked)))

    @classmethod
    def lark(cls, text: str) -> Grammar:
        """Returns a grammar that is written in llguidance's dialect of Lark.

        text: the grammar. Its start rule must be named `start`.

        Raises GrammarError or TypeError. Errors of the syntax are found when a model first uses the grammar."""
        source = _text("a Lark grammar", text)
        if (joined := len(re.findall("[&~]", _LITERAL.sub("", source[: MOST_BYTES + 1])))) > MOST_JOINED:
            raise GrammarError(f"the Lark grammar joins or negates {joined} expressions by & and ~; at most {MOST_JOINED} are compiled")
        return cls._make("lark", "lark", source)

    @classmethod
    def gbnf(cls, text: str) -> Grammar:
        """Returns a grammar that is written in llama.cpp's GBNF.

        text: the grammar. Its start rule must be named `root`.

        Raises GrammarError, TypeError, and ImportError without the package llguidance."""
        source = _text("a GBNF grammar", text)
        if (size := len(source.encode("utf-8", "surrogatepass"))) > MOST_GBNF_BYTES:
            raise GrammarError(f"the GBNF grammar has {size} bytes; at most {MOST_GBNF_BYTES} are read")
        return cls._make("gbnf", "lark", _from_gbnf(source))

    @property
    def relaxed(self) -> tuple[str, ...]:
        """JSON pointers of the parts of the schema that are not enforced, because `relax` named them. () if all parts are enforced."""
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


_LITERAL = re.compile(r'"(?:[^"\\\n]|\\.)*"|//[^\n]*|/(?:[^/\\\n]|\\.)+/')  # matches a string, comment or regular expression of Lark
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


# Matches a string, a character class or a comment of GBNF. If the closing quote or bracket is missing, the match extends to the end of the
# grammar, so that the search does not read the rest of the grammar again and again.
_GBNF_PIECE = re.compile(r'"(?:[^"\\]|\\.)*"?|\[(?:[^\]\\]|\\.)*\]?|#[^\r\n]*', re.DOTALL)
_GBNF_ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|.)", re.DOTALL)


def _with_spelt_escapes(text: str) -> str:
    r"""Returns a GBNF grammar without the escapes \u and \U, because llguidance's converter drops the zeros at their beginning: \u00e9
    becomes \ue9, which is an error. Characters up to U+00FF become \x escapes, which are correct also in places where the character itself
    would be a sign of GBNF's syntax."""

    def spelt(found: re.Match[str]) -> str:
        if not (digits := found[1] or found[2]):
            return found[0]
        number = int(digits, 16)
        if number > 0x10FFFF:
            raise GrammarError(f"the GBNF grammar cannot be read: {found[0]} is no character; the last one is \\U0010FFFF")
        return f"\\x{number:02x}" if number <= 0xFF else chr(number)

    return _GBNF_PIECE.sub(lambda piece: piece[0] if piece[0][0] == "#" else _GBNF_ESCAPE.sub(spelt, piece[0]), text)


_GBNF_START = re.compile(r"^[ \t]*root[ \t]*::=", re.MULTILINE)


def grammar_of_text(text: str) -> Grammar:
    """Returns the grammar that a text describes: in GBNF if it has a rule `root ::=`, which Lark cannot have, and otherwise in Lark."""
    return Grammar.gbnf(text) if _GBNF_START.search(text) else Grammar.lark(text)


def _from_gbnf(text: str) -> str:
    _need_llguidance()
    converter = imported("llguidance.gbnf_to_lark")
    spelt = _with_spelt_escapes(text)

    def convert() -> str:
        try:
            return str(converter.gbnf_to_lark(spelt))
        except converter.GbnfToLarkError as error:
            raise GrammarError(f"the GBNF grammar cannot be read: {error}") from None
        except RecursionError:
            raise GrammarError("the GBNF grammar is nested too deep") from None
        except Exception as error:  # llguidance's converter raises any kind of error for hostile texts
            raise GrammarError(f"the GBNF grammar cannot be read: {type(error).__name__}: {error}") from None

    return interruptible(convert)


# ---- error messages of the compiler ----------------------------------------------------------------------------

_KEYS = re.compile(r"Unimplemented keys: (\[.*?\])")
_FORMAT = re.compile(r"Unknown format: (.*)")


def explained(grammar: Grammar, told: str) -> GrammarError:
    """Returns the error for the compiler's message about a grammar. The error names the position of the problem and a remedy."""
    told = told.strip()
    if told.startswith("NoExtension"):
        return GrammarError(f"the {grammar._made_by} grammar cannot be met: no text does")
    if "Current row has" in told or "Too many items" in told:
        told = f"it has too many things that may come at one place ({told.partition(';')[0]})"
    source: Any = json.loads(grammar._source) if grammar._kind in ("json", "llguidance") else {}
    for schema in (
        [source] if grammar._kind == "json" else [other["json_schema"] for other in source.get("grammars", ()) if "json_schema" in other]
    ):
        where, hint = _place(schema, told)
        if where != "#" or grammar._kind == "json":
            return GrammarError(f"{origin(schema, where)}: the schema cannot be enforced: {told}. {hint}".rstrip())
    return GrammarError(f"the {grammar._made_by} grammar cannot be enforced: {told}")


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
    if found := re.search(r"required property '(.*)' is unsatisfiable", told):
        return first(["required"], lambda value: isinstance(value, list) and found[1] in value), ""
    if found := re.search(r"Invalid type: ?(.*)", told):
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


# ---- the llguidance library ------------------------------------------------------------------------------------

_MISSING = 'grammars need the package llguidance: pip install "pumice[grammar]"'
_lock = Lock()
_library: _core.GrammarLibrary | None = None


def _need_llguidance() -> Any:
    try:
        return imported("llguidance")
    except ImportError as error:
        raise ImportError(f"{_MISSING} ({error})", name="llguidance") from None


def is_there() -> bool:
    """Returns whether the package llguidance is installed."""
    try:
        library()
    except ImportError:
        return False
    return True


def library() -> _core.GrammarLibrary:
    """Returns llguidance's C functions, which are looked up once. Raises ImportError if the package is missing, has a wrong version, or
    lacks functions."""
    global _library
    with _lock():
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
    """The compiled grammars of one model. Any number of threads may share a Grammars object."""

    def __init__(self, tokenizer: Tokenizer, vocab_size: int, eos_ids: Callable[[], list[int]]) -> None:
        self._tokenizer, self._vocab_size, self._eos_ids = tokenizer, vocab_size, eos_ids
        self._bytes: _core.TokenBytes | None = None
        self._tokens: _core.GrammarTokens | None = None
        self._compiled: OrderedDict[Grammar, _core.CompiledGrammar] = OrderedDict()
        self._making, self._lock = Lock(), Lock()

    def compiled(self, grammar: Grammar) -> _core.CompiledGrammar:
        """Returns a grammar compiled for the model. Raises GrammarError if it cannot be compiled, GrammarBusyError if it cannot be compiled
        at the moment, and ImportError if llguidance is missing."""
        with self._lock():
            if (known := self._compiled.get(grammar)) is not None:
                self._compiled.move_to_end(grammar)
                return known
        tokens = self.tokens()
        try:
            made = tokens.compile(grammar._kind, grammar._source)
        except GrammarError as error:
            raise explained(grammar, str(error)) from None
        with self._lock():
            self._compiled[grammar] = made
            while len(self._compiled) > MOST_COMPILED:
                self._compiled.popitem(last=False)
        return made

    def tokens(self) -> _core.GrammarTokens:
        """Returns the model's vocabulary in llguidance's form, which is made once. Raises GrammarError if the model has no end token."""
        found, eos_ids = library(), self._eos_ids()
        if not eos_ids:
            raise GrammarError("the model names no end token, and an answer that is complete would have no end")
        tokens = self.token_bytes()
        with self._making():
            if self._tokens is None:
                self._tokens = _core.GrammarTokens(found, tokens, eos_ids)
            return self._tokens

    def token_bytes(self) -> _core.TokenBytes:
        """Returns the bytes of the model's tokens, which are made once."""
        with self._making():
            if self._bytes is None:
                pieces = interruptible(lambda: token_bytes(self._tokenizer, self._vocab_size, self._eos_ids()))
                self._bytes = _core.TokenBytes(np.fromiter(map(len, pieces), np.uint32, len(pieces)), b"".join(pieces))
            return self._bytes


def token_bytes(tokenizer: Tokenizer, vocab_size: int, eos_ids: Collection[int]) -> list[bytes]:
    """Returns the bytes that each token adds to a text. For a special token, these are 0xFF and the token's name, as llguidance requires.
    An id without a token has no bytes, because it must never be generated."""
    if not tokenizer.has_bytes:
        raise TokenizerError(
            "grammars and max_reasoning_tokens need a tokenizer whose tokens have bytes of their own, and this one joins its tokens in "
            "another way"
        )
    special = {*tokenizer.special_ids, *eos_ids}
    return [b"" if (piece := tokenizer.piece(i)) is None else b"\xff" + piece if i in special else piece for i in range(vocab_size)]


def check_grammars(
    given: Any, prompts: int, single: bool, sampling: Sequence[Mapping[str, Any] | None] | None = None
) -> list[Grammar | None]:
    """Checks the grammar argument of generate() and returns one grammar or None per prompt. If the prompt's entry of `sampling` has a
    grammar, that grammar is returned instead."""

    def one(value: Any, name: str) -> Grammar | None:
        if value is None or isinstance(value, Grammar):
            return value
        if isinstance(value, str):
            return grammar_of_text(value)
        raise TypeError(
            f"{name} must be a pumice.Grammar, a grammar in Lark or GBNF as text, or None, not {type(value).__name__} {shown(value)}"
        )

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
