"""Estimates llguidance's work for the lexemes of a grammar. A grammar that would take minutes and gigabytes is then refused before it is
compiled. llguidance cannot be interrupted, and its own limits do not count this work.

A lexeme is a terminal of a Lark grammar, or a regular expression. llguidance replaces each terminal's name in another terminal by the
terminal's text, so 30 lines of the form A: B B make a text of 2^30 parts. The time and the memory for a lexeme also grow with the square of
the number of its optional parts, such as x? and x*: 4,096 of them in a row take 0.2 to 0.7 s and 60 MiB, 16,384 take 3 to 11 s and 550 to
1,080 MiB."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from ..errors import GrammarError
from .schemas import MOST_BYTES

# Maximum number of optional parts in a grammar with one lexeme. With several lexemes, which have n1, n2, ... optional parts, the maximum of
# n1^2 + n2^2 + ... is the square of this number.
MOST_OPTIONAL = 4096


class Size(NamedTuple):
    """The size of a lexeme: the number of characters of its text, and the number of its optional parts."""

    characters: int
    optional: int


_ESCAPE = re.compile(r"\\.", re.DOTALL)
_CLASS = re.compile(r"\[\^?\]?[^\]]*\]")
_GROUP = re.compile(r"\(\?[^:)]*:?")  # matches the beginning of a group such as (?:, in which ? does not mean an optional part
# Matches the sign of an optional part: x?, x*, x{0,3}, an empty branch or an empty group.
_OPTIONAL = re.compile(r"[?*{]|(?<![^|(])(?=[|)])|(?<=\|)\Z")

_TOKEN = re.compile(
    r"""(?P<comment>(?://|\#)[^\n]*)
    |(?P<text>"(?:[^"\\\n]|\\.)*"i?)
    |(?P<pattern>/(?!/)(?:[^/\\\n]|\\.)+/[a-z]*)
    |(?P<begin>^[ \t]*[?!]?[A-Za-z_]\w*(?:[ \t]*\[[^\]\n]*\]|::\w+)*[ \t]*:(?!:))
    |(?P<name>\w+)
    |(?P<sign>[?*{|()~])""",
    re.VERBOSE | re.MULTILINE,
)


def size_of_regex(pattern: str) -> Size:
    """Returns the size of a regular expression."""
    bare = _GROUP.sub("(", _CLASS.sub("a", _ESCAPE.sub("a", pattern)))
    return Size(len(pattern), sum(1 for _ in _OPTIONAL.finditer(bare)))


class _Definition:
    """A rule or a terminal: the size of its own text, and the names in its text."""

    def __init__(self) -> None:
        self.own = Size(0, 0)
        self.patterns: list[Size] = []  # the size of each regular expression in it
        self.names: list[str] = []


def _definitions(source: str) -> dict[str, _Definition]:
    found: dict[str, _Definition] = {}
    here = _Definition()
    branch = True  # whether the next token begins a branch
    for token in _TOKEN.finditer(source):
        kind, text = str(token.lastgroup), token[0]
        characters = optional = 0
        if kind == "comment":
            continue
        if kind == "begin":
            # an empty last branch of the previous definition counts as an optional part
            here.own = Size(here.own.characters, here.own.optional + branch)
            here = found.setdefault(re.sub(r"[\s?!]|\[.*|:.*", "", text), _Definition())
        elif kind == "name":
            here.names.append(text)
        elif kind == "pattern":
            size = size_of_regex(text[1:].rpartition("/")[0])
            here.patterns.append(size)
            characters, optional = size
        elif kind == "text":
            characters, optional = len(text) - 2, text in ('""', '""i')
        else:
            optional = text in "?*{~" or (text in "|)" and branch)
        branch = kind == "begin" or (kind == "sign" and text in "|(")
        here.own = Size(here.own.characters + characters, here.own.optional + optional)
    here.own = Size(here.own.characters, here.own.optional + branch)
    return found


def _is_terminal(name: str) -> bool:
    return name.lstrip("_")[:1].isupper()


def lexemes_of_lark(source: str) -> Iterator[Size]:
    """Returns the sizes of the lexemes of a Lark grammar, in which the names of terminals are replaced by their texts."""
    definitions = _definitions(source)
    whole: dict[str, Size] = {}
    for first in filter(_is_terminal, definitions):
        # The terminals are visited in a loop, because recursion would fail for a chain of ten thousand terminals. A terminal that contains
        # itself is refused later.
        path = [] if first in whole else [(first, iter(definitions[first].names))]
        begun = {first}
        while path:
            name, names = path[-1]
            further = next((each for each in names if each in definitions and each not in whole and each not in begun), None)
            if further is not None:
                begun.add(further)
                path.append((further, iter(definitions[further].names)))
                continue
            here = definitions[name]
            sizes = [here.own, *(whole.get(each, Size(0, 0)) for each in here.names)]
            whole[name] = Size(sum(size.characters for size in sizes), sum(size.optional for size in sizes))
            path.pop()
    used = dict.fromkeys(each for name, rule in definitions.items() if not _is_terminal(name) for each in rule.names)
    yield from (whole[name] for name in used if name in whole)
    for name, rule in definitions.items():
        if not _is_terminal(name):
            yield from rule.patterns


def _lexemes_of_schema(schema: Any) -> Iterator[Size]:
    waiting = [schema]
    while waiting:
        here = waiting.pop()
        if isinstance(here, dict):
            if isinstance(here.get("pattern"), str):
                yield size_of_regex(here["pattern"])
            if isinstance(here.get("patternProperties"), dict):
                yield from map(size_of_regex, here["patternProperties"])
            waiting += here.values()
        elif isinstance(here, list):
            waiting += here


def _lexemes(kind: str, source: str) -> Iterator[Size]:
    if kind == "regex":
        yield size_of_regex(source)
    elif kind == "lark":
        yield from lexemes_of_lark(source)
    else:
        value = json.loads(source)
        for part in value["grammars"] if kind == "llguidance" else [{"json_schema": value}]:
            yield from lexemes_of_lark(part.get("lark_grammar") or "")
            yield from _lexemes_of_schema(part.get("json_schema"))


def check_lexemes(kind: str, source: str) -> None:
    """Raises GrammarError if llguidance would take too long for the lexemes of a grammar. kind, source: those of the Grammar."""
    squares = 0
    for size in _lexemes(kind, source):
        if size.characters > MOST_BYTES:
            raise GrammarError(
                f"with all terminals that it names written out, a terminal has {size.characters:.3g} characters; at most {MOST_BYTES} are "
                "compiled. Use rules (names in lower case), which are not written out"
            )
        squares += size.optional**2
        if squares > MOST_OPTIONAL**2:
            raise GrammarError(
                f"{size.optional:.6g} parts of a terminal or regular expression may be absent (x?, x*, an empty branch), or other ones "
                f"have as many; at most {MOST_OPTIONAL} are compiled. Use rules (names in lower case), or one repetition in place of many"
            )
