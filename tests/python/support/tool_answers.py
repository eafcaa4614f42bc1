"""Answers of every known shape: their texts, and what the parser must make of them."""

from __future__ import annotations

from functools import cache
from typing import Any

from tool_templates import ANSWERS, ENDS, NO_CONTENT_BESIDE_CALLS, NO_REASONING, TEMPLATES, TOOLS, chats, golden

from pumice.chats import response_templates
from pumice.chats.chat_templates import ChatTemplate
from pumice.chats.response_parser import ResponseTemplate

GOLDEN = list(golden())
SHAPES = {row.name: ResponseTemplate(row.template) for row in response_templates.ROWS}


def shape_of(source: str) -> ResponseTemplate:
    row = response_templates.row_of(source)
    assert row is not None
    return SHAPES[row.name]


@cache
def answers(name: str) -> dict[str, tuple[str, str]]:
    """Returns a dict from each kind of answer to two texts as the template writes them: the beginning of the answer that is already part of
    the prompt, and the rest of the answer."""
    found: dict[str, tuple[str, str]] = {}
    prompts = []
    for (template, kind, messages, variables), text in zip(chats(), GOLDEN, strict=True):
        if template != name or text is None:
            continue
        if not kind:
            prompts.append(text)
        elif not variables:
            prompt = max((p for p in prompts if text.startswith(p)), key=len)
            before = ChatTemplate(TEMPLATES[name], "<bos>", "</s>").render(messages[:1], False, tools=TOOLS)
            body = text[len(prompt) :].removesuffix("\n")
            found[kind] = prompt[len(before) :] if prompt.startswith(before) else "", without_end(body)
    return found


def without_end(text: str) -> str:
    return next((text.removesuffix(end) for end in ENDS if text.endswith(end)), text)


def expected(name: str, kind: str) -> tuple[str, str | None, list[tuple[str, Any]]]:
    answer = ANSWERS[kind]
    calls = [(call["function"]["name"], call["function"]["arguments"]) for call in answer.get("tool_calls", [])]
    content = "" if calls and name in NO_CONTENT_BESIDE_CALLS else answer["content"]
    return content, None if name in NO_REASONING else answer.get("reasoning_content"), calls
