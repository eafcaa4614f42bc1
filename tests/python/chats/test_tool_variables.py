"""Some chat templates take the tools from other variables than `tools`."""

from __future__ import annotations

import json

import pytest
from tokenizers import AddedToken
from tool_templates import TOOLS, USER

from pumice.chats.chat_templates import ChatTemplate
from pumice.tokens.control_tokens import ControlTokens

FIREFUNCTION = "{{- 'functools[...] of ' + functions + ' on ' + datetime }}{%- for m in messages %}{{- m.content }}{%- endfor %}"


@pytest.mark.parametrize("name", ["custom_tools", "xml_tools"])
def test_tools_under_another_name(name: str) -> None:
    source = f"{{%- if {name} is defined %}}{{{{- {name} | tojson }}}}{{%- endif %}}{{{{- messages[0].content }}}}"
    template = ChatTemplate(source)
    assert json.loads(template.render([USER], tools=TOOLS).removesuffix(USER["content"])) == TOOLS
    assert template.render([USER]) == USER["content"]
    assert template.render([USER], tools=TOOLS, **{name: [1]}) == f"[1]{USER['content']}"  # the caller's value goes first


def test_tools_are_not_shown_as_functions_of_programs() -> None:
    """SmolLM3's python_tools are functions for programs in <code>, of which nothing here reads calls. Only the caller may set them."""
    template = ChatTemplate("{{- xml_tools | tojson if xml_tools }}{%- if python_tools %}{{- ' <code>' ~ python_tools[0] }}{%- endif %}")
    assert json.loads(template.render([USER], tools=TOOLS)) == TOOLS
    assert template.render([USER], python_tools=["def now() -> str"]) == " <code>def now() -> str"


def test_functions_as_a_text_with_the_date() -> None:
    said = ChatTemplate(FIREFUNCTION).render([USER], tools=TOOLS)
    functions, _, rest = said.removeprefix("functools[...] of ").partition(" on ")
    assert json.loads(functions) == [tool["function"] for tool in TOOLS] and rest[4] == rest[7] == "-"
    assert ChatTemplate(FIREFUNCTION).render([USER], datetime="today") == f"functools[...] of [] on today{USER['content']}"


@pytest.mark.parametrize("source", ["{{ functions }}{{ messages[0].content }}", "{{ functions }}{{ datetime }}{{ tools | length }}"])
def test_other_templates_get_no_functions(source: str) -> None:
    assert ChatTemplate(source).render([USER], tools=TOOLS) in (USER["content"], str(len(TOOLS)))


@pytest.mark.parametrize("source", ["{{ xml_tools | tojson }}", FIREFUNCTION])
def test_control_tokens_of_tools_under_another_name_are_text(source: str) -> None:
    tools = [{"type": "function", "function": {"name": "f", "description": "a STOP"}}]
    control = ControlTokens({3: AddedToken("STOP", special=True)})
    prompt = ChatTemplate(f"{source}{{{{ 'STOP' }}}}").prompt([USER], control, tools=tools)
    assert sum(text.count("STOP") for text, own in prompt.parts if own) == 1 and prompt.text.count("STOP") == 2
