"""What an answer is made of."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Literal

Kind = Literal["content", "reasoning", "tool_call"]


@dataclass(frozen=True)
class ToolCall:
    """A function that a model wants called. id: ours; the answer's message carries it as tool_call_id. raw: what the model wrote."""

    id: str
    name: str
    arguments: dict[str, Any]
    raw: str = ""

    def to_openai(self) -> dict[str, Any]:
        arguments = json.dumps(self.arguments, ensure_ascii=False)
        return {"id": self.id, "type": "function", "function": {"name": self.name, "arguments": arguments}}
