"""Builds grammars in llguidance's dialect of Lark, rule by rule."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


def lark_text(text: str) -> str:
    """Returns a text as a Lark literal."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def lark_regex(pattern: str) -> str:
    """Returns a regular expression in the form in which it stands between the slashes of a Lark terminal."""
    return re.sub(r"\\(.)|/", lambda found: found[0] if found[1] else r"\/", pattern, flags=re.DOTALL).replace("\n", r"\n")


# Escape -> the characters that it matches in JSON Schema (ECMA-262), as ranges. ecma() replaces these escapes, because they match other
# characters in Rust: \d and \w match characters of all scripts, and \s matches U+0085 and not U+FEFF. In JSON schemas only _BLANKS are
# replaced, because there the compiler treats \d and \w as ECMA-262 does.
_BLANKS = {
    "s": r"\t-\r\x20\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000\ufeff",
    "S": r"\x00-\x08\x0e-\x1f!-\x9f\xa1-\u167f\u1681-\u1fff\u200b-\u2027\u202a-\u202e\u2030-\u205e\u2060-\u2fff\u3001-\ufefe"
    r"\uff00-\U0010ffff",
}
_WORDS = {"d": "0-9", "D": r"\x00-/:-\U0010ffff", "w": "0-9A-Z_a-z", "W": r"\x00-/:-@\[-\^`{-\U0010ffff"}
_PIECE = re.compile(r"\\(.)|\[\^?|\]|&&|--|~~", re.DOTALL)


def ecma(pattern: str, classes: Mapping[str, str] = _BLANKS) -> str:
    """Converts a regular expression of JSON Schema to the compiler's syntax. \\s and \\S are written out as ranges. In a class, the signs [
    and && and -- and ~~ are characters, as in ECMA-262; in Rust they would nest and combine classes. classes: the escapes to write out ->
    their ranges."""
    begin = -1  # position after the [ or [^ of the current class, or -1 outside of classes

    def spelt(found: re.Match[str]) -> str:
        nonlocal begin
        part, at = found[0], found.start()
        if found[1] in classes:
            return classes[found[1]] if begin >= 0 else f"[{classes[found[1]]}]"
        if found[1] is not None or (begin < 0 and part[0] != "["):
            return part
        if begin < 0:
            begin = found.end()
            return part
        if part == "]" and at > begin:
            begin = -1
            return part
        # The second sign of a pair such as -- is escaped. At the beginning of a class, the first one is escaped instead, because [--a] is
        # the range from - to a.
        if part[0] in "[]" or at == begin:
            return f"\\{part}"
        return f"{part[0]}\\{part[1]}"

    return _PIECE.sub(spelt, pattern)


# Matches a part of a regular expression that stands for one character: a class, an escape or a single character.
_ATOM = re.compile(
    r"\[\^?(?:\\.|[^\\\]])*\]|\\(?:[pP]\{[^{}]{0,64}\}|[pP].|[ux]\{[0-9a-fA-F]{1,8}\}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|x[0-9a-fA-F]{2}|.)|.",
    re.DOTALL,
)
_ITEM = re.compile(
    r"\\u\{([0-9a-fA-F]{1,8})\}|\\x\{([0-9a-fA-F]{1,8})\}|\\u([0-9a-fA-F]{4})|\\U([0-9a-fA-F]{8})|\\x([0-9a-fA-F]{2})|"
    r"\\([pP])(?:\{([^{}]{0,64})\}|(.))|\\(.)|(.)",
    re.DOTALL,
)
_NUL, _QUOTES = "\0", '"\\'
# Unicode property -> which of the characters NUL, " and \ have it. These three characters have no property that is not listed.
_PROPERTIES = {"C": _NUL, "Cc": _NUL, "Other": _NUL, "Control": _NUL, "P": _QUOTES, "Po": _QUOTES, "Punctuation": _QUOTES,
               "Other_Punctuation": _QUOTES, "Pattern_Syntax": _QUOTES, "Any": _NUL + _QUOTES, "ASCII": _NUL + _QUOTES,
               "Assigned": _NUL + _QUOTES, "Common": _NUL + _QUOTES, "Zyyy": _NUL + _QUOTES}  # fmt: skip
_ESCAPES = {"0": 0, "a": 7, "b": 8, "t": 9, "n": 10, "v": 11, "f": 12, "r": 13}


def without_nul(pattern: str) -> str:
    """Changes a regular expression from ecma() so that each class without " or without \\ has no NUL character either. Raises ValueError
    with the part of the expression that cannot be written in this way.

    If a class has all control characters, the compiler (llguidance 1.9, in its package derivre) also allows JSON's escapes of " and \\,
    even if the class does not have these two characters, such as [^"]. It also joins several classes to one, for example in
    (?:[^"\\t]|\\t). Therefore each class without " or without \\ must not have NUL, no matter which other control characters it has."""

    def spelt(found: re.Match[str]) -> str:
        part = found[0]
        held = _held(part)
        if _NUL not in held or held.issuperset(_QUOTES):
            return part
        if part.startswith("[^"):
            # a - at the beginning of the class is escaped, because otherwise it would make a range with \x00
            return "[^\\x00" + ("\\" if part[2] == "-" else "") + part[2:]
        if part.startswith("\\P"):
            return f"[^\\x00\\p{part[2:]}]"
        raise ValueError(part)

    return _ATOM.sub(spelt, pattern)


def _held(part: str) -> set[str]:
    """Returns those of NUL, " and \\ that are among the characters of a class, of an escape or of a single character."""
    inner = part[2:-1] if part.startswith("[^") else part[1:-1] if part[0] == "[" and len(part) > 1 else part
    if part == ".":
        return {*_NUL, *_QUOTES}
    held: set[str] = set()
    # `first` is the code of the previous character if it may begin a range, else -1. `last` is equal to `first` if a - has followed and the
    # next character ends a range, else -1.
    first = last = -1
    for *codes, kind, name, letter, escape, plain in (found.groups() for found in _ITEM.finditer(inner)):
        if kind is not None:
            has = _PROPERTIES.get((name or letter).partition("=")[2] or name or letter, "")
            held.update(has if kind == "p" else {_NUL, *_QUOTES}.difference(has))
            first = last = -1
            continue
        if escape is not None and escape in "WDS":
            held.update(_NUL, _QUOTES)
        if escape is not None and escape in "wWdDsS":
            first = last = -1
            continue
        if plain == "-" and first >= 0 and last < 0:
            last = first
            continue
        digits = next((each for each in codes if each), None)
        code = int(digits, 16) if digits else _ESCAPES.get(escape, ord(escape)) if escape is not None else ord(plain)
        low = first if last >= 0 else code
        held.update(each for each in (_NUL, *_QUOTES) if low <= ord(each) <= code)
        first, last = (-1, -1) if last >= 0 else (code, -1)
    return {_NUL, *_QUOTES} - held if part.startswith("[^") else held


def anchored(pattern: Any) -> str | None:
    """If a regular expression of JSON Schema has the form ^(?:...)$ and so matches whole texts, returns the part between the anchors in
    Lark's syntax. Otherwise returns None."""
    if not isinstance(pattern, str) or not pattern.startswith("^(?:") or not pattern.endswith(")$"):
        return None
    depth, group = 0, pattern[1:-1]
    for found in re.finditer(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|[()]", group, re.DOTALL):
        depth += {"(": 1, ")": -1}.get(found[0], 0)
        if depth == 0 and found.end() < len(group):  # the first group ends before the end of the expression
            return None
    return ecma(group, {**_BLANKS, **_WORDS}) if depth == 0 else None


def matches_nothing(pattern: str) -> bool:
    """Returns whether a regular expression matches the empty text. An expression that Python cannot parse counts as not matching."""
    try:
        return re.fullmatch(pattern, "") is not None
    except (re.error, RecursionError):
        return False


@dataclass
class Lark:
    """A Lark grammar, and the other grammars to which its rules refer as @name."""

    rules: list[str] = field(default_factory=list)
    others: list[dict[str, Any]] = field(default_factory=list)

    def rule(self, name: str, body: str, options: str = "") -> str:
        """Adds a rule and returns its name. options: the text between the name and the colon, such as "[capture]"."""
        self.rules.append(f"{name}{options}: {body}")
        return name

    def other(self, name: str, **source: Any) -> str:
        """Adds a grammar of another kind (json_schema=..., lark_grammar=...). Returns the expression by which rules refer to it."""
        self.others.append({"name": name, **source})
        return f"@{name}"

    def source(self, start: str) -> str:
        """Returns the JSON text that llguidance compiles. start: the body of the start rule."""
        lark = "\n".join([f"start: {start}", *self.rules])
        return json.dumps({"grammars": [{"name": "answer", "lark_grammar": lark}, *self.others]}, ensure_ascii=False)
