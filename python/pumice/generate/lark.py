"""Builds grammars in llguidance's dialect of Lark, rule by rule."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import Any


def lark_text(text: str) -> str:
    """Returns a text as a Lark literal."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def lark_regex(pattern: str) -> str:
    """Returns a regular expression as it is written between the slashes of a Lark terminal."""
    return re.sub(r"\\(.)|/", lambda found: found[0] if found[1] else r"\/", pattern, flags=re.DOTALL).replace("\n", r"\n")


def anchored(pattern: Any) -> str | None:
    """Returns the part between the anchors of a regular expression ^(?:...)$, which matches whole texts, or None if it has another form."""
    if not isinstance(pattern, str) or not pattern.startswith("^(?:") or not pattern.endswith(")$"):
        return None
    depth, group = 0, pattern[1:-1]
    for found in re.finditer(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|[()]", group, re.DOTALL):
        depth += {"(": 1, ")": -1}.get(found[0], 0)
        if depth == 0 and found.end() < len(group):  # the first group ends before the last character
            return None
    return group if depth == 0 else None


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
