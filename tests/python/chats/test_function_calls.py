"""The functions and answers of the Berkeley function-calling leaderboard (bfcl-eval), in every known shape of answers. Each function must
be accepted as a tool or refused by name. Each right answer, written as the models of the shape write it, must be allowed by the grammar of
tool_choice="required" and be read back equal. An answer that does not fit its function's schema must not be allowed.

What is refused is listed with its reason in tests/goldens/suites/function_calls.json. `make test` takes every 100th question, `make
test-suites` all of them: 3,781 answers in 29 shapes, half an hour of a processor."""

from __future__ import annotations

import copy
import json
from collections import Counter
from types import SimpleNamespace
from typing import Any

import jsonschema
import pytest
from function_calls import Case, as_tools, cases, in_order
from suites import WHOLE, compiled, differences, table, takes_bytes
from tool_answers import shape_of, without_end
from tool_templates import TEMPLATES, USER

import pumice
from pumice.chats import response_templates
from pumice.chats.answer_forms import Written
from pumice.chats.answer_grammars import Asking, answer_grammar, thought_of, written_of
from pumice.chats.chat_templates import ChatTemplate
from pumice.chats.response_parser import ResponseParser
from pumice.chats.tool_schemas import check_tools

STEP = 1 if WHOLE else 100
# One shape for each form of arguments: JSON, JSON with bare keys, and one parameter after another.
FORMS = {"JSON": "hermes", "bare": "gemma4", "text": "qwen3-coder"}
# Shapes whose answers the grammar writes in another of the forms that the parser reads, and why.
OTHERWISE = {
    "mistral old": "ids of calls are left out",
    "command-r": "no more than four blanks in one place",
    "command-a": "ids of calls are left out",
    "command-a+": "ids of calls are left out",
    "hunyuan": "one call a line in place of a list",
    "lfm2": "a list in JSON in place of Python",
    "solar open": "the number of a call in place of its id",
}
# Shapes in which an answer has one call.
ONE_CALL = ("llama3", "llama4", "harmony", "muse glimmer", "gigachat", "gigachat 3.1")
# Shapes whose calls no grammar enforces, with the reason that their rows give.
NOT_ENFORCED = {
    "deepseek v3.2": "each parameter says whether its value is a text",
    "kimi k3": "each argument says the type of its value",
    "minimax m3": "arguments are nested tags",
}


class Shape:
    """A shape of answers: its grammars, and calls in it."""

    def __init__(self, name: str) -> None:
        source = TEMPLATES[name]
        self.name, self.parser, self.row = name, shape_of(source), response_templates.row_of(source)
        found = written_of(self.parser, self.row)
        assert isinstance(found, str) is (name in NOT_ENFORCED) and NOT_ENFORCED.get(name, found) == found
        self.written = found if isinstance(found, Written) else Written("", parameter="%value%")
        self.thought = thought_of(self.parser, self.row, source)
        self.template = ChatTemplate(source, "<bos>", "</s>")

    @property
    def form(self) -> str:
        """The form of arguments: a key of FORMS."""
        return "bare" if self.written.mark else "text" if self.written.parameter else "JSON"

    def grammar(self, tools: list[dict[str, Any]]) -> Any:
        """Returns the compiled grammar of an answer that must call one of the tools. The tokenizer has no special tokens."""
        asking = Asking(tools=tools, calls="must", thinks=self.thought is not None)
        made = answer_grammar(SimpleNamespace(added={}, special_ids=(), eos_ids=()), asking, self.thought, self.written)
        return compiled(made)

    def calls(self, case: Case, tools: list[dict[str, Any]]) -> list[tuple[str, dict[str, Any]]]:
        schemas = {tool["function"]["name"]: tool["function"]["parameters"] for tool in tools}
        found = [(name, in_order(given, schemas.get(name, {}), self.form == "bare")) for name, given in case.calls]
        return found[:1] if self.name in ONE_CALL else found

    def text(self, calls: list[tuple[str, dict[str, Any]]]) -> str:
        """Returns the calls as the chat template writes them, without what stands around the answer."""
        named = [
            {"id": f"a1B2c3D4{i % 10}", "type": "function", "function": {"name": name, "arguments": given}}
            for i, (name, given) in enumerate(calls)
        ]
        prompt = self.template.render([USER], True)
        text = self.template.render([USER, {"role": "assistant", "content": "", "tool_calls": named}], False)
        assert text.startswith(prompt)
        return without_end(text[len(prompt) :].strip()).strip()

    def text_of_grammar(self, calls: list[tuple[str, dict[str, Any]]]) -> str:
        """Returns the calls in the form that the grammar writes, for the shapes of OTHERWISE."""
        form = self.written
        ones = [json.dumps({form.keys[0]: name, form.keys[1]: given}, ensure_ascii=False) for name, given in calls]
        if "%calls%" in form.call:
            return form.before + form.call.replace("%calls%", f"[{', '.join(ones)}]") + form.after
        each = [
            form.call.replace("%call%", one).replace("%index%", str(i)).replace("%name%", name)
            .replace("%arguments%", json.dumps(given, ensure_ascii=False))
            for i, (one, (name, given)) in enumerate(zip(ones, calls, strict=True))
        ]  # fmt: skip
        return form.before + form.between.join(each) + form.after

    def read(self, text: str, tools: list[dict[str, Any]]) -> list[tuple[str, dict[str, Any]]]:
        parser = ResponseParser(self.parser, tools)
        parser.feed(text)
        parser.finish()
        return [(call.name, call.arguments) for call in parser.calls]


def fits(calls: list[tuple[str, dict[str, Any]]], tools: list[dict[str, Any]]) -> bool:
    schemas = {tool["function"]["name"]: tool["function"]["parameters"] for tool in tools}
    return bool(calls) and all(name in schemas and jsonschema.Draft202012Validator(schemas[name]).is_valid(given) for name, given in calls)


def listed(part: str, name: str) -> dict[str, str]:
    """Returns a dict from the listed questions to their reasons."""
    return {ident: reason for reason, idents in table("function_calls")[part].get(name, {}).items() for ident in idents}


def test_functions_are_tools_or_refused_by_name() -> None:
    count = Counter[str]()
    for case in cases():
        for function in case.functions:
            (tool,) = as_tools([function])
            check_tools([tool])
            count["accepted"] += 1
            with pytest.raises(ValueError, match="parameters is a schema of type 'dict'; a call's arguments are an object"):
                check_tools([function])
    print(f"\n{count['accepted']} functions: accepted with JSON Schema's types, and refused by name with the leaderboard's own")
    assert count["accepted"] > 8000


@pytest.mark.parametrize("form", FORMS)
def test_functions_are_enforced_or_refused_by_name(form: str) -> None:
    shape, known, refused = Shape(FORMS[form]), listed("refused", form), {}
    idents = []
    for case in [case for case in cases() if case.functions][::STEP]:
        tools = as_tools(case.functions)
        before = copy.deepcopy(tools)
        idents.append(case.ident)
        try:
            shape.grammar(tools)
        except pumice.GrammarError as error:
            refused[case.ident] = str(error)
        assert tools == before
    assert differences({ident for ident in known if ident in idents}, refused) == "", refused
    for ident, message in refused.items():
        assert known[ident] in message
        assert "the parameters of the tool '" in message, message


@pytest.mark.parametrize("name", TEMPLATES)
def test_right_answers_are_allowed_and_read_back(name: str) -> None:
    shape = Shape(name)
    refused, count = listed("refused", shape.form), Counter[str]()
    unlike: list[str] = []
    for case in [case for case in cases() if case.calls][::STEP]:
        if case.ident in refused:
            count["refused"] += 1
            continue
        tools = as_tools(case.functions)
        calls = shape.calls(case, tools)
        text = shape.text(calls)
        read = shape.read(text, tools)
        if fits(calls, tools) and read != calls:
            unlike.append(f"{case.ident}: read as {read}")
        if name in NOT_ENFORCED:
            count["right" if fits(calls, tools) else "wrong"] += 1
            continue
        try:
            made = shape.grammar(tools)
        except pumice.GrammarError as error:
            unlike.append(f"{case.ident}: {error}")
            continue
        if name in OTHERWISE:
            assert not takes_bytes(made, text), f"{name} is not otherwise: {text}"
            text = shape.text_of_grammar(calls)
            read = shape.read(text, tools)
        # Some shapes write null as the text None, which is a string where the schema has one: what is read decides.
        good = fits(read, tools)
        if takes_bytes(made, text) is not good:
            unlike.append(f"{case.ident}: {'refused' if good else 'allowed'}: {text}")
        count["right" if good else "wrong"] += 1
    assert unlike == []
    assert count["right"] > 0.85 * sum(count.values())
    print(f"\n{name}: {dict(count)}")
