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
_PIECE = re.compile(r"\\(.)|\[\^?\]?|\]", re.DOTALL)


def with_blanks(pattern: str, classes: Mapping[str, str] = _BLANKS) -> str:
    """Returns a regular expression of JSON Schema in which \\s and \\S are written out. classes: the classes to write out, as ranges."""
    inside = False  # whether the place is between [ and ]

    def spelt(found: re.Match[str]) -> str:
        nonlocal inside
        if found[1] in classes:
            return classes[found[1]] if inside else f"[{classes[found[1]]}]"
        if found[1] is None and (found[0] == "]") == inside:
            inside = not inside
        return found[0]

    return _PIECE.sub(spelt, pattern)


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
    return with_blanks(group, {**_BLANKS, **_WORDS}) if depth == 0 else None


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
