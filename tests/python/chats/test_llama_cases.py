"""llama.cpp's own cases of Jinja and of answers of chats. Its templates must render to the same text in the sandbox, and the response
parser must read its answers as it does. What differs is listed with its reason in tests/goldens/suites/llama.json.

tests/make_suite_goldens.py reads the cases out of llama.cpp's C++ source."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any

import pytest
from suites import differences, table

from pumice.chats import response_templates
from pumice.chats.response_parser import ResponseParser, ResponseTemplate
from pumice.chats.template_sandbox import compile_template, run_template
from pumice.errors import ChatTemplateError

JINJA = table("llama_jinja")
CHATS = table("llama_chat")
ROWS = {row.name: ResponseTemplate(row.template) for row in response_templates.ROWS}


def listed(part: str) -> list[str]:
    return [case for cases in table("llama")[part].values() for case in cases]


def rendered(template: str, variables: dict[str, Any]) -> str:
    try:
        return run_template(compile_template(template), variables, datetime(2026, 1, 1))
    except ChatTemplateError as error:
        return f"ChatTemplateError: {error}"


def test_templates_render_as_in_llama_cpp() -> None:
    found = [name for name, template, variables, output in JINJA["cases"] if rendered(template, variables) != output]
    assert len(JINJA["cases"]) > 300
    assert differences(listed("jinja"), found) == ""


def read(case: dict[str, Any], shape: ResponseTemplate, cuts: int | None = None) -> dict[str, Any]:
    tools = [{"type": "function", "function": {"name": name, "parameters": CHATS["tools"][name]}} for name in case.get("tools", ())]
    parser = ResponseParser(shape, tools, prompt=case.get("opened", ""), calls=bool(tools))
    answer = case["answer"]
    for at in range(0, len(answer), cuts or max(len(answer), 1)):
        parser.feed(answer[at : at + (cuts or len(answer))])
    parser.finish()
    calls = [[call.name, call.arguments] for call in parser.calls]
    return {"content": parser.content, "reasoning": parser.reasoning or "", "calls": calls}


def expected(case: dict[str, Any]) -> dict[str, Any]:
    calls = [[name, json.loads(given) if given else {}] for name, given in case.get("calls", ())]
    return {"content": case.get("content", "").strip(), "reasoning": case.get("reasoning", "").strip(), "calls": calls}


@pytest.mark.parametrize("cuts", [None, 1], ids=["whole", "character by character"])
def test_answers_are_read_as_in_llama_cpp(cuts: int | None) -> None:
    found = []
    for name, template in CHATS["templates"].items():
        for place, case in enumerate(template["cases"]):
            if read(case, ROWS[template["shape"]], cuts) != expected(case):
                found.append(f"{name} {place}")
    assert differences(listed("chat"), found) == ""
