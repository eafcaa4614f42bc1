"""Builds grammars in llguidance's dialect of Lark, rule by rule."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any


def lark_text(text: str) -> str:
    """Returns a text as a Lark literal."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


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
