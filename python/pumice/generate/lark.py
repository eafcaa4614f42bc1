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
    """Returns a regular expression as it is written between the slashes of a Lark terminal."""
    return re.sub(r"\\(.)|/", lambda found: found[0] if found[1] else r"\/", pattern, flags=re.DOTALL).replace("\n", r"\n")


# The characters of classes as JSON Schema (ECMA-262) means them, as ranges of a regular expression. In Rust, \d and \w have characters of
# all scripts, and \s has U+0085 and lacks U+FEFF. The compiler reads \d and \w of a JSON schema as ECMA-262 does, and those of Lark as Rust
# does.
_BLANKS = {
    "s": r"\t-\r\x20\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000\ufeff",
    "S": r"\x00-\x08\x0e-\x1f!-\x9f\xa1-\u167f\u1681-\u1fff\u200b-\u2027\u202a-\u202e\u2030-\u205e\u2060-\u2fff\u3001-\ufefe"
    r"\uff00-\U0010ffff",
}
_WORDS = {"d": "0-9", "D": r"\x00-/:-\U0010ffff", "w": "0-9A-Z_a-z", "W": r"\x00-/:-@\[-\^`{-\U0010ffff"}
_PIECE = re.compile(r"\\(.)|\[\^?|\]|&&|--|~~", re.DOTALL)


def ecma(pattern: str, classes: Mapping[str, str] = _BLANKS) -> str:
    """Returns a regular expression of JSON Schema as the compiler must read it. \\s and \\S are written out. In a class, the signs [ and &&
    and -- and ~~ are characters, as in ECMA-262. In Rust they would nest and combine classes. classes: what to write out, as ranges."""
    begin = -1  # the place behind the [ or [^ of the class that is being read, or -1 outside of classes

    def spelt(found: re.Match[str]) -> str:
        nonlocal begin
        part = found[0]
        if found[1] in classes:
            return classes[found[1]] if begin >= 0 else f"[{classes[found[1]]}]"
        if found[1] is not None or (begin < 0 and part[0] != "["):
            return part
        if begin < 0:
            begin = found.end()
            return part
        if part == "]" and found.start() > begin:
            begin = -1
            return part
        return f"{part[:-1]}\\{part[-1]}" if part[0] != "[" else f"\\{part}"

    return _PIECE.sub(spelt, pattern)


_CLASS = re.compile(r"\\P(?:\{[^}]*\}|.)|\\.|\[(?:\\.|[^\\\]])*\]", re.DOTALL)
_PROPERTY = re.compile(r"\\([pP])(?:\{[^}]*\}|.)", re.DOTALL)


def without_nul(pattern: str) -> str:
    """Returns a regular expression that comes from ecma(), with classes that leave out the NUL character if they leave out " or \\ too.
    Raises ValueError with the class if it cannot be written in this way.

    For every class that has all control characters, the compiler (llguidance 1.9, in its package derivre) allows JSON's escapes of " and
    \\, also for one without these two characters, such as [^"]."""

    def spelt(found: re.Match[str]) -> str:
        part = found[0]
        if part.startswith("\\P"):
            return f"[^\\x00\\p{part[2:]}]"
        if part[0] == "\\" or not _has_nul_without_escapes(part):
            return part
        if not part.startswith("[^"):
            raise ValueError(part)
        return f"[^\\x00{part[2:]}"

    return _CLASS.sub(spelt, pattern)


def _has_nul_without_escapes(class_: str) -> bool:
    """Returns whether a class [...] has the NUL character, but not both of " and \\."""
    negated = class_.startswith("[^")
    # Which characters a property has is not looked up: one that is left out may have " and \, and one that is not may lack them.
    plain = _PROPERTY.sub(lambda found: r"\x00" if found[1] == "P" else r"\"\\" if negated else "", class_)
    try:
        compiled = re.compile(plain)
    except (re.error, RecursionError, OverflowError):
        return negated
    return compiled.fullmatch("\0") is not None and not all(map(compiled.fullmatch, '"\\'))


def anchored(pattern: Any) -> str | None:
    """Returns the part between the anchors of a regular expression ^(?:...)$ of JSON Schema, as Lark reads it. Returns None if the
    expression has another form. One of this form matches whole texts."""
    if not isinstance(pattern, str) or not pattern.startswith("^(?:") or not pattern.endswith(")$"):
        return None
    depth, group = 0, pattern[1:-1]
    for found in re.finditer(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|[()]", group, re.DOTALL):
        depth += {"(": 1, ")": -1}.get(found[0], 0)
        if depth == 0 and found.end() < len(group):  # the first group ends before the last character
            return None
    return ecma(group, {**_BLANKS, **_WORDS}) if depth == 0 else None


def matches_nothing(pattern: str) -> bool:
    """Returns whether a regular expression matches the empty text. One that Python cannot read counts as not matching."""
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
        """Adds a rule and returns its name. options: the text between name and body, such as "[capture]"."""
        self.rules.append(f"{name}{options}: {body}")
        return name

    def other(self, name: str, **source: Any) -> str:
        """Adds a grammar of another kind (json_schema=..., lark_grammar=...). Returns the text with which rules refer to it."""
        self.others.append({"name": name, **source})
        return f"@{name}"

    def source(self, start: str) -> str:
        """Returns the JSON text that llguidance compiles. start: the body of the start rule."""
        lark = "\n".join([f"start: {start}", *self.rules])
        return json.dumps({"grammars": [{"name": "answer", "lark_grammar": lark}, *self.others]}, ensure_ascii=False)
