"""Converts a Lark grammar to one regular expression. The text of a custom tool is written as a JSON string, or between a model's own marks.
There, only a regular expression can be enforced. The grammar may have rules, terminals, regular expressions, ranges, repetitions and
%import common.X. A rule that contains itself has no regular expression, so it is refused."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

MOST_CHARACTERS = 64 << 10  # maximum length of a regular expression, which may be much longer than its grammar
_MOST_IN_ALL = 1 << 20  # maximum number of characters in the regular expressions of all rules together
_MOST_READ = 256 << 10  # maximum number of characters in a grammar

# Terminal that a grammar can import from Lark's `common` -> its regular expression. Source of the names:
# https://github.com/lark-parser/lark/blob/master/docs/grammar.md
_COMMON = {
    "DIGIT": "[0-9]",
    "HEXDIGIT": "[0-9a-fA-F]",
    "INT": "[0-9]+",
    "SIGNED_INT": "[+-]?[0-9]+",
    "DECIMAL": r"(?:[0-9]+\.[0-9]*|\.[0-9]+)",
    "FLOAT": r"(?:[0-9]+[eE][+-]?[0-9]+|(?:[0-9]+\.[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)",
    "SIGNED_FLOAT": r"[+-]?(?:[0-9]+[eE][+-]?[0-9]+|(?:[0-9]+\.[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)",
    "NUMBER": r"(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?",
    "SIGNED_NUMBER": r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?",
    "ESCAPED_STRING": r'"(?:[^"\\\n]|\\.)*"',
    "LCASE_LETTER": "[a-z]",
    "UCASE_LETTER": "[A-Z]",
    "LETTER": "[a-zA-Z]",
    "WORD": "[a-zA-Z]+",
    "CNAME": "[a-zA-Z_][a-zA-Z0-9_]*",
    "WS_INLINE": "[ \\t]+",
    "WS": "[ \\t\\f\\r\\n]+",
    "CR": "\\r",
    "LF": "\\n",
    "NEWLINE": "(?:\\r?\\n)+",
}

_TOKEN = re.compile(
    r"""(?P<skipped>\s+|//[^\n]*)
    |(?P<text>"(?:[^"\\\n]|\\.)*"i?)
    |(?P<pattern>/(?!/)(?:[^/\\\n]|\\.)+/[imslux]*)
    |(?P<name>[?!]?_?[a-z][a-z0-9_]*|_?[A-Z][A-Z0-9_]*)
    |(?P<directive>%[a-z]+)
    |(?P<sign>->|\.\.|[()\[\]|*+?~:.,{}])
    |(?P<number>[0-9]+|-[0-9]+)""",
    re.VERBOSE,
)
_SPECIAL = re.compile(r"[\\^$.|?*+()\[\]{}/]")


class _Token(NamedTuple):
    kind: str
    text: str
    at: int


def pattern_of(grammar: str) -> str:
    """Returns a regular expression for the texts of a Lark grammar, in Rust's syntax and without anchors. Raises ValueError that names the
    problem in the grammar and its position."""
    if len(grammar) > _MOST_READ:
        raise ValueError(f"it has {len(grammar)} characters; at most {_MOST_READ} are read")
    try:
        return _Reader(grammar).pattern("start", ())
    except RecursionError:
        raise ValueError("it is nested too deep") from None


def escaped(text: str) -> str:
    """Returns a regular expression that matches exactly this text."""
    return _SPECIAL.sub(lambda found: "\\" + found[0], text).replace("\n", "\\n").replace("\r", "\\r").replace("\t", "\\t")


def _checked(length: int) -> int:
    if length > MOST_CHARACTERS:
        raise ValueError(f"as one regular expression it has more than {MOST_CHARACTERS} characters")
    return length


class _Reader:
    """Parses the rules of a grammar, and expands them one after another."""

    def __init__(self, grammar: str) -> None:
        self._grammar = grammar
        self._rules: dict[str, list[_Token]] = {}
        self._made: dict[str, str] = {}
        self._tokens: list[_Token] = []
        self._in_all = 0
        self._at = 0
        self._split([*self._read()])

    def _read(self) -> Iterator[_Token]:
        at = 0
        while at < len(self._grammar):
            found = _TOKEN.match(self._grammar, at)
            if found is None:
                raise self._wrong("a Lark grammar cannot have", at, self._grammar[at : at + 20])
            if found.lastgroup != "skipped":
                yield _Token(str(found.lastgroup), found[0], at)
            at = found.end()

    def _wrong(self, what: str, at: int, text: str = "") -> ValueError:
        line = self._grammar.count("\n", 0, at) + 1
        return ValueError(f"line {line}: {what}{f' {text!r}' if text else ''}")

    # ---- statements
    def _split(self, tokens: list[_Token]) -> None:
        """Finds the rules. A rule ends where the next one begins, because only the beginning of a rule has a name and a colon."""
        at = 0
        while at < len(tokens):
            token = tokens[at]
            if token.kind == "directive":
                at = self._directive(tokens, at)
                continue
            body = self._body_at(tokens, at)
            if body is None:
                raise self._wrong("expected a rule such as name: ..., found", token.at, token.text)
            end = body
            while end < len(tokens) and tokens[end].kind != "directive" and self._body_at(tokens, end) is None:
                end += 1
            name = token.text.lstrip("?!")
            if name in self._rules or name in self._made:
                raise self._wrong("this name is defined twice:", token.at, name)
            self._rules[name] = tokens[body:end]
            at = end

    @staticmethod
    def _body_at(tokens: list[_Token], at: int) -> int | None:
        """Returns the position of the body of the rule that begins at `at`, or None if no rule begins there. A priority is skipped."""
        if tokens[at].kind != "name":
            return None
        at += 1
        if [token.text for token in tokens[at : at + 1]] == ["."] and at + 1 < len(tokens) and tokens[at + 1].kind == "number":
            at += 2
        return at + 1 if at < len(tokens) and tokens[at].text == ":" else None

    def _directive(self, tokens: list[_Token], at: int) -> int:
        """Processes %import common.X, %import common.X -> Y or %import common (X, Y). Returns the position of the next statement."""
        first = tokens[at]
        texts = [token.text for token in tokens[at + 1 :]]
        if first.text != "%import":
            raise self._wrong("this directive cannot be enforced inside of a call:", first.at, first.text)
        names: list[tuple[str, str]] = []
        used = 0
        if texts[:2] == ["common", "."] and len(texts) > 2:
            names, used = [(texts[2], texts[2])], 3
            if texts[3:4] == ["->"] and len(texts) > 4:
                names, used = [(texts[2], texts[4])], 5
        elif texts[:2] == ["common", "("] and ")" in texts:
            used = texts.index(")") + 1
            names = [(name, name) for name in texts[2 : used - 1] if name != ","]
        for name, own in names:
            if name not in _COMMON:
                raise self._wrong("common has no", first.at, name)
            self._made[own] = _COMMON[name]
        if not names:
            raise self._wrong("expected %import common.NAME; other grammars cannot be imported", first.at)
        return at + 1 + used

    # ---- rules
    def pattern(self, name: str, inside: tuple[str, ...], at: int = 0) -> str:
        """Returns the regular expression of a rule. inside: the rules that are being expanded."""
        if name in self._made:
            return self._made[name]
        if name in inside:
            way = " -> ".join([*inside[inside.index(name) :], name])
            raise ValueError(
                f"the rule {name!r} leads back to itself ({way}). Inside of a call only grammars without recursion can be enforced"
            )
        if name not in self._rules:
            raise self._wrong("there is no rule", at, name)
        kept = self._tokens, self._at
        self._tokens, self._at = self._rules[name], 0
        found = self._choice((*inside, name))
        if self._at < len(self._tokens):
            token = self._tokens[self._at]
            raise self._wrong("cannot read", token.at, token.text)
        self._tokens, self._at = kept
        self._made[name] = found
        self._in_all += len(found)
        if self._in_all > _MOST_IN_ALL:
            raise ValueError(f"the regular expressions of its rules have more than {_MOST_IN_ALL} characters")
        return found

    def _peek(self, ahead: int = 0) -> str:
        at = self._at + ahead
        return self._tokens[at].text if at < len(self._tokens) else ""

    def _next(self) -> _Token:
        if self._at >= len(self._tokens):
            raise ValueError("the grammar ends in the middle of a rule")
        self._at += 1
        return self._tokens[self._at - 1]

    def _choice(self, inside: tuple[str, ...]) -> str:
        options = [self._row(inside)]
        length = len(options[0])
        while self._peek() == "|":
            self._at += 1
            options.append(self._row(inside))
            length = _checked(length + len(options[-1]))
        return options[0] if len(options) == 1 else f"(?:{'|'.join(options)})"

    def _row(self, inside: tuple[str, ...]) -> str:
        parts: list[str] = []
        length = 0
        while self._at < len(self._tokens) and self._peek() not in ("|", ")", "]", "->"):
            parts.append(self._repeated(inside))
            length = _checked(length + len(parts[-1]))
        if self._peek() == "->":  # a name for the branch follows, which does not change the texts
            self._at += 1
            self._next()
        return "".join(parts)

    def _repeated(self, inside: tuple[str, ...]) -> str:
        one = self._one(inside)
        while self._peek() in ("*", "+", "?", "~"):
            sign = self._next().text
            if sign == "~":
                least = most = self._number()
                if self._peek() == "..":
                    self._at += 1
                    most = self._number()
                sign = f"{{{least},{most}}}"
                if not least <= most:
                    raise ValueError(f"~{least}..{most} repeats nothing")
            one = f"(?:{one}){sign}"
            _checked(len(one))
        return one

    def _number(self) -> int:
        token = self._next()
        if token.kind != "number" or token.text.startswith("-") or len(token.text) > 4:
            raise self._wrong("expected a number of repetitions up to 9999, found", token.at, token.text)
        return int(token.text)

    def _one(self, inside: tuple[str, ...]) -> str:
        token = self._next()
        if token.text in ("(", "["):
            found = self._choice(inside)
            end = self._next()
            if end.text != {"(": ")", "[": "]"}[token.text]:
                raise self._wrong("expected the end of a group, found", end.at, end.text)
            return f"(?:{found})" if token.text == "(" else f"(?:{found})?"
        if token.kind == "name":
            if self._peek() == "{":
                raise self._wrong("templates cannot be enforced inside of a call:", token.at, token.text)
            return self.pattern(token.text.lstrip("?!"), inside, token.at)
        if token.kind == "text":
            text = self._said(token)
            if self._peek() == "..":
                self._at += 1
                last = self._said(self._next())
                if len(text) != 1 or len(last) != 1 or text > last:
                    raise self._wrong("a range goes from one character to a later one, found", token.at, f"{text}..{last}")
                return "[" + "-".join(f"\\x{{{ord(c):x}}}" for c in (text, last)) + "]"
            return f"(?i:{escaped(text)})" if token.text.endswith("i") else escaped(text)
        if token.kind == "pattern":
            body, _, flags = token.text[1:].rpartition("/")
            flags = "".join(flag for flag in dict.fromkeys(flags) if flag in "imsx")
            return f"(?{flags}:{body.replace(chr(92) + '/', '/')})"
        raise self._wrong("cannot read", token.at, token.text)

    def _said(self, token: _Token) -> str:
        """Returns the text that a string token stands for."""
        if token.kind != "text":
            raise self._wrong("expected a text, found", token.at, token.text)

        def one(found: re.Match[str]) -> str:
            known = {"n": "\n", "t": "\t", "r": "\r", "f": "\f"}
            spelt = found[1]
            return chr(int(spelt[1:], 16)) if len(spelt) > 1 else known.get(spelt, spelt)

        return re.sub(r"\\(x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|.)", one, token.text.removesuffix("i")[1:-1])
