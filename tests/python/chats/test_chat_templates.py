"""Chat templates must render as in transformers (goldens: make_tokenizer_goldens.py), and errors must say what to do."""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from paths import GOLDENS

from pumice.chats.chat_templates import ChatTemplate, find_template
from pumice.errors import ChatTemplateError

GOLDEN: dict[str, Any] = json.loads((GOLDENS / "tokenizers" / "chat_templates.json").read_text())
CHAT = [{"role": "user", "content": "Hi"}]


class File:
    """Stands in for ModelFile, with only the attributes that find_template() uses."""

    def __init__(self, values: dict[str, Any], path: str = "model.gguf", kind: str = "gguf") -> None:
        self.values, self.path, self.kind = values, path, kind

    def get(self, key: str) -> Any:
        return self.values.get(key)

    def keys(self) -> list[str]:
        return list(self.values)


@pytest.mark.parametrize("name", sorted(GOLDEN["templates"]))
def test_renders_as_transformers_does(name: str) -> None:
    template = ChatTemplate(GOLDEN["templates"][name], "<bos>", "</s>")
    cases = [case for case in GOLDEN["cases"] if case[0] == name]
    assert len(cases) >= 12
    for _, chat, variant, expected in cases:
        arguments = GOLDEN["variants"][variant]
        if expected is None:
            with pytest.raises(ChatTemplateError):
                template.render(GOLDEN["chats"][chat], **arguments)
        else:
            assert template.render(GOLDEN["chats"][chat], **arguments) == expected


def render(source: str, messages: Any = CHAT, **kwargs: Any) -> str:
    return ChatTemplate(source, "<s>", "</s>").render(messages, **kwargs)


def test_generation_tag_keeps_its_own_variables() -> None:
    assert render("{% set x = 1 %}{% generation %}{% set x = 2 %}{{ x }}{% endgeneration %}{{ x }}") == "21"


def test_a_missing_token_prints_nothing() -> None:
    assert ChatTemplate("[{{ bos_token }}]").render(CHAT) == "[]"
    assert ChatTemplate("{{ unk_token }}", unk_token="<unk>").render(CHAT) == "<unk>"


def test_strftime_now_and_variables() -> None:
    assert len(render("{{ strftime_now('%Y-%m-%d') }}")) == 10
    assert render("{{ style }}{{ flags.a[0] }}", style="brief", flags={"a": (1, 2)}) == "brief1"
    assert render("{{ tools is none }}{{ documents is none }}") == "TrueTrue"


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("m.content.replace('i', 'o')", "Ho"),
        ("'-'.join(['a', 'b'])", "a-b"),
        ("m.content.center(4)", " Hi "),
        ("m.content.split('i')[0]", "H"),
        ("m.content.zfill(3)", "0Hi"),
    ],
)
def test_methods_work_inside_loops_and_blocks(expression: str, expected: str) -> None:
    """Methods of texts must work in loops, macros and blocks, where Jinja adds keyword arguments of its own to calls. Nemotron Nano v2's
    template needs this."""
    assert render("{% for m in messages %}{{ " + expression + " }}{% endfor %}") == expected
    assert render("{% set m = messages[0] %}{% macro f() %}{{ " + expression + " }}{% endmacro %}{{ f() }}") == expected
    assert render("{% set m = messages[0] %}{% block b scoped %}{{ " + expression + " }}{% endblock %}") == expected


def test_arguments_of_tool_calls_are_parsed() -> None:
    source = "{% for c in messages[0].tool_calls %}{% set c = c.function or c %}"
    source += "{{ c.arguments is mapping }} {{ c.arguments | tojson }};{% endfor %}"

    def calls(*arguments: Any, inner: bool = True) -> list[dict[str, Any]]:
        functions = [{"name": "f", "arguments": given} for given in arguments]
        return [{"role": "assistant", "content": "", "tool_calls": [{"function": f} if inner else f for f in functions]}]

    assert render(source, calls('{"a": [1, "\u00e9"]}', {"b": 2})) == 'True {"a": [1, "\u00e9"]};True {"b": 2};'
    assert render(source, calls('{"a":1}', inner=False)) == 'True {"a": 1};'
    given = calls('{"a": 1}')
    render(source, given)
    assert given == calls('{"a": 1}')  # the caller's messages are not touched


def test_arguments_that_are_no_json_are_refused() -> None:
    """NaN and infinity in a dict of arguments must be refused, because a template would write them into the prompt."""
    source = "{{ messages[0].tool_calls[0].function.arguments | tojson }}"

    def call(arguments: Any) -> list[dict[str, Any]]:
        return [{"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "f", "arguments": arguments}}]}]

    for number in (float("nan"), float("inf"), np.float32("inf")):
        with pytest.raises(ValueError, match=r"messages\[0\]\.tool_calls\[0\]: the arguments have (nan|inf), which is no JSON"):
            render(source, call({"a": [1, {"b": number}]}))
    assert render(source, call({"a": 1e308})) == '{"a": 1e+308}'


def test_templates_that_want_arguments_as_text() -> None:
    """The templates of DeepSeek V3.1 and Functionary concatenate the arguments with a text. Such a template must get the arguments as text
    even if the caller gave a dict. (transformers passes on what the caller gave.)"""
    source = "{% for c in messages[0].tool_calls %}{{ c.function.name + c.function.arguments }}{% endfor %}"
    for arguments in ({"a": "\u00e9"}, '{"a": "\u00e9"}'):
        messages = [{"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "f", "arguments": arguments}}]}]
        assert render(source, messages) == 'f{"a": "\u00e9"}'
        assert ChatTemplate(source).prompt(messages, None).text == 'f{"a": "\u00e9"}'
    with pytest.raises(ChatTemplateError, match="refuses these messages"):
        render("{{ raise_exception('no') }}", messages)


def test_from_json() -> None:
    assert render("{{ ('{\"a\": [1, 2]}' | from_json).a[1] }}") == "2"
    with pytest.raises(ChatTemplateError, match="JSONDecodeError"):
        render("{{ 'x' | from_json }}")


def test_undefined_is_an_error_with_its_line() -> None:
    with pytest.raises(ChatTemplateError, match=r"line 3.*'nothing' is undefined.*chat_template="):
        render("a\nb\n{{ nothing.at.all }}")


def test_an_error_inside_a_macro_names_its_line() -> None:
    with pytest.raises(ChatTemplateError, match="line 2"):
        render("{% macro f(m) %}\n{{ m.content + 1 }}\n{% endmacro %}\n\n{{ f(messages[0]) }}")


def test_raise_exception_reaches_the_caller() -> None:
    with pytest.raises(ChatTemplateError, match=r"refuses these messages in line 2: roles must alternate$"):
        render("\n{{ raise_exception('roles must alternate') }}")


@pytest.mark.parametrize(
    "source", ["{{", "{% if %}", "{% endfor %}", "{{ x | nofilter }}", "{% for %}", "{{ 1 is notest }}", "{% nothing %}"]
)
def test_no_jinja(source: str) -> None:
    with pytest.raises(ChatTemplateError, match=r"no Jinja template.*chat_template="):
        ChatTemplate(source)


@pytest.mark.parametrize("name", ["messages", "bos_token", "raise_exception", "namespace", "range", "self", "_private", "strftime_now"])
def test_reserved_names(name: str) -> None:
    with pytest.raises((ValueError, TypeError), match=name):
        ChatTemplate("x", "<s>", "</s>").render(CHAT, **{name: 1})


@pytest.mark.parametrize(
    ("messages", "error", "said"),
    [
        ("Hi", TypeError, "found str"),
        ({"role": "user", "content": "Hi"}, TypeError, "messages must be"),
        (None, TypeError, "found NoneType"),
        (["Hi"], TypeError, r"messages\[0\]"),
        ([{"content": "Hi"}], ValueError, r"messages\[0\] has no role"),
        ([{"role": 1, "content": "Hi"}], ValueError, "no role"),
        ([{"role": "user", "content": object()}], TypeError, r"messages\[0\]\['content'\] is a object"),
        ([{"role": "user", "content": b"x"}], TypeError, "bytes"),
        ([{"role": "user", "content": [{"image": np.zeros(3)}]}], TypeError, "ndarray"),
    ],
)
def test_wrong_messages(messages: Any, error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        render("{{ messages[0].content }}", messages)


def test_messages_are_copies_of_plain_types() -> None:
    class Text(str):
        def upper(self) -> str:
            return "secret"

    messages = [OrderedDict(role="user", content=Text("hi"), count=np.int64(3), ok=np.bool_(False))]
    assert render("{{ messages[0].content.upper() }} {{ messages[0].count + 1 }} {{ 1 if messages[0].ok else 2 }}", messages) == "HI 4 2"
    deep: Any = "x"
    for _ in range(100):
        deep = [deep]
    with pytest.raises(ValueError, match="nested more than"):
        render("x", [{"role": "user", "content": deep}])


def test_threads_share_a_template() -> None:
    template = ChatTemplate(GOLDEN["templates"]["qwen"], "<bos>", "</s>")
    expected = [(c, GOLDEN["variants"][v], r) for n, c, v, r in GOLDEN["cases"] if n == "qwen" and r is not None]
    wrong: list[Any] = []

    def work() -> None:
        for _ in range(5):
            wrong.extend(c for c, a, r in expected if template.render(GOLDEN["chats"][c], **a) != r)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


# ---- finding the template of a model

TOKENS = {"tokenizer.ggml.tokens": ["<unk>", "<s>", "</s>"], "tokenizer.ggml.bos_token_id": 1, "tokenizer.ggml.eos_token_id": 2}


def test_gguf_template() -> None:
    template = find_template(File({**TOKENS, "tokenizer.chat_template": "{{ bos_token }}|{{ eos_token }}"}))
    assert template is not None
    assert template.render(CHAT) == "<s>|</s>"
    assert find_template(File(TOKENS)) is None


def test_several_gguf_templates() -> None:
    file = File({**TOKENS, "tokenizer.chat_template.rag": "rag", "tokenizer.chat_template": "plain"})
    assert find_template(file).render(CHAT) == "plain"  # type: ignore[union-attr]
    assert find_template(file, "rag").render(CHAT) == "rag"  # type: ignore[union-attr]
    del file.values["tokenizer.chat_template"]
    with pytest.raises(ChatTemplateError, match=r"chat_template= with one of: rag"):
        find_template(file)


def test_folder_templates(tmp_path: Path) -> None:
    file = File({}, str(tmp_path), "safetensors")
    assert find_template(file) is None
    config: dict[str, Any] = {"bos_token": {"content": "<b>"}, "eos_token": "<e>", "chat_template": "config{{ bos_token }}{{ eos_token }}"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    assert find_template(file).render(CHAT) == "config<b><e>"  # type: ignore[union-attr]
    config["chat_template"] = [{"name": "default", "template": "first"}, {"name": "tool_use", "template": "tools"}]
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    assert find_template(file).render(CHAT) == "first"  # type: ignore[union-attr]
    assert find_template(file, "tool_use").render(CHAT) == "tools"  # type: ignore[union-attr]
    assert find_template(file).render(CHAT, tools=[]) == "tools"  # type: ignore[union-attr]
    assert find_template(file).prompt(CHAT, None, tools=[{}]).text == "tools"  # type: ignore[union-attr]
    (tmp_path / "chat_template.jinja").write_text("file")
    assert find_template(file).render(CHAT) == "file"  # type: ignore[union-attr]
    (tmp_path / "additional_chat_templates").mkdir()
    (tmp_path / "additional_chat_templates" / "rag.jinja").write_text("with documents")
    assert find_template(file, "rag").render(CHAT) == "with documents"  # type: ignore[union-attr]
    for wrong in (3, [1], [{"name": "x"}]):
        (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": wrong}))
        with pytest.raises(ChatTemplateError, match="chat_template="):
            find_template(file)


def test_overrides(tmp_path: Path) -> None:
    file = File({**TOKENS, "tokenizer.chat_template": "own"})
    (tmp_path / "mine.jinja").write_text("from a file {{ bos_token }}")
    (tmp_path / "tokenizer_config.json").write_text('{"chat_template": "from json"}')
    assert find_template(file, "given {{ bos_token }}").render(CHAT) == "given <s>"  # type: ignore[union-attr]
    assert find_template(file, str(tmp_path / "mine.jinja")).render(CHAT) == "from a file <s>"  # type: ignore[union-attr]
    assert find_template(file, str(tmp_path / "tokenizer_config.json")).render(CHAT) == "from json"  # type: ignore[union-attr]
    ready = ChatTemplate("x")
    assert find_template(file, ready) is ready
    with pytest.raises(ChatTemplateError, match="neither a Jinja template"):
        find_template(file, "chatml")
    with pytest.raises(TypeError, match="found int"):
        find_template(file, 3)  # type: ignore[arg-type]
