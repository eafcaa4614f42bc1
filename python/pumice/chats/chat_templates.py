"""Finds a model's chat template, and renders prompts with it."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..common.arguments import argument, plain, shown, shown_path
from ..common.forks import cached_property
from ..common.side_files import read_json, read_object, read_text, subfolder
from ..errors import ChatTemplateError
from ..tokens.control_tokens import ControlTokens, Marks, Prompt, texts_of, with_texts
from .template_messages import REASONING_KEYS, empty_contents, plain_messages, plain_value, spell_arguments, without_calls
from .template_sandbox import FIX, compile_template, run_template, variables_of

if TYPE_CHECKING:
    from .._core import ModelFile

# Names that have a fixed meaning in every template. template_kwargs must not redefine them.
RESERVED = frozenset(
    (
        "messages", "add_generation_prompt", "bos_token", "eos_token", "raise_exception", "strftime_now", "range", "dict", "namespace",
        "self", "caller", "loop", "varargs", "kwargs",
    )
)  # fmt: skip

# ---- control tokens in messages -----------------------------------------------------------------------------------

_GIVEN = ("messages", "tools", "documents")
_ROLES_OF_ALL = ("user", "assistant")
# Maximum number of messages that _check_left_out() checks one by one, because each check renders the whole conversation.
_MOST_UNSEEN = 4


def _without_roles(messages: list[Any]) -> list[Any]:
    """Returns the messages without their roles. Roles are not searched for control tokens, because templates build control tokens from
    roles (<|user|>)."""
    return [{name: value for name, value in message.items() if name != "role"} for message in messages]


def _marked(given: dict[str, Any], change: Callable[[str], str], assistant: bool = True) -> dict[str, Any]:
    def of(message: dict[str, Any]) -> Any:
        return message if message["role"] == "assistant" and not assistant else {**with_texts(message, change), "role": message["role"]}

    rest = {name: with_texts(value, change) for name, value in given.items() if name != "messages"}
    return {**rest, "messages": [of(message) for message in given["messages"]]}


# Ways to mark characters of the messages, so that they can be told from the template's own characters in the rendered text. The safest way
# comes first. ChatTemplate.prompt() uses the first way that leaves the rendered text unchanged, apart from the marks. The first way marks
# all characters that may become part of a control token. The second marks only the control tokens that a message spells. The third does the
# same, but not in the model's own messages, because some templates split these to find the reasoning.
_WAYS_OF_MARKING: tuple[Callable[[dict[str, Any], Marks], dict[str, Any]], ...] = (
    lambda given, marks: _marked(given, marks.every),
    lambda given, marks: _marked(given, marks.whole),
    lambda given, marks: _marked(given, marks.whole, assistant=False),
)


_UNCERTAIN = (
    "continue_final=True: the chat template {}, so that it is not certain where the answer goes on. "
    "Use generate() with a prompt of your own"
)


def _with_contents(messages: list[Any], contents: dict[int, str]) -> list[Any]:
    """Returns the messages with contents[i] as the content of message i."""
    return [{**message, "content": contents[i]} if i in contents else message for i, message in enumerate(messages)]


# ---- templates -------------------------------------------------------------------------------------------------


class ChatTemplate:
    """A compiled chat template. Any number of threads may render it."""

    def __init__(
        self, source: str, bos_token: str | None = None, eos_token: str | None = None, tool_use: str | None = None, **tokens: str
    ) -> None:
        """tokens: further special tokens by name, such as unk_token="<unk>", which some templates print. tool_use: the model's template for
        chats with tools, if it has a separate one, as in transformers."""
        if not isinstance(source, str):
            raise TypeError(f"a chat template must be str, found {type(source).__name__}")
        self.source = source
        named = {"bos_token": bos_token, "eos_token": eos_token, **tokens}
        self.tokens = {name: token for name, token in named.items() if token is not None}
        self._tool_use = tool_use
        self._template = compile_template(source)

    @property
    def text(self) -> str:
        """The texts of the template and of the separate template for tools, if any, joined."""
        return self.source + (self._tool_use or "")

    @cached_property
    def variables(self) -> frozenset[str]:
        """The names of the variables that the template uses and does not set itself. Other variables have no effect."""
        return variables_of(self.source) | (variables_of(self._tool_use) if self._tool_use else frozenset())

    def render(self, messages: Sequence[Mapping[str, Any]], add_generation_prompt: bool = True, **kwargs: Any) -> str:
        """Renders the prompt of a conversation. kwargs: further variables of the template, such as tools or enable_thinking. Raises
        ChatTemplateError if the template fails."""
        if self._tool_use is not None and kwargs.get("tools") is not None:
            return self._with_tools.render(messages, add_generation_prompt, **kwargs)
        return self._run(self._variables(messages, add_generation_prompt, kwargs), datetime.now())[0]

    def prompt(
        self, messages: Sequence[Mapping[str, Any]], control: ControlTokens | None, /, add_generation_prompt: bool = True, **kwargs: Any
    ) -> Prompt:
        """Renders the prompt, and finds out which control tokens in it the template wrote. A control token that messages, tools or
        documents spell counts as plain text, unless `control` is None.

        Raises ChatTemplateError as render() does, and also if the template leaves out tool calls, or a message because of its role. Many
        templates leave out messages with the role "developer", and older ones those with the role "tool"."""
        if self._tool_use is not None and kwargs.get("tools") is not None:
            return self._with_tools.prompt(messages, control, add_generation_prompt, **kwargs)
        return self._prompt(self._variables(messages, add_generation_prompt, kwargs), control, datetime.now())[0]

    def continued(
        self, messages: Sequence[Mapping[str, Any]], control: ControlTokens | None, keys: Sequence[str], /, **kwargs: Any
    ) -> Prompt:
        """Renders the prompt up to the end of the text that the last message has under one of `keys`. The model's answer continues this
        text. If the template drops blanks at the end of the text, the prompt ends before them.

        Raises ChatTemplateError as prompt() does, and also if the template does not print the text exactly once, or changes its end."""
        if self._tool_use is not None and kwargs.get("tools") is not None:
            return self._with_tools.continued(messages, control, keys, **kwargs)
        now = datetime.now()
        prompt, variables = self._prompt(self._variables(messages, False, kwargs), control, now)
        last = variables["messages"][-1]
        # The reasoning of the last message may be under another key than the caller gave.
        keys = [key for key in keys if key in last] or [key for key in REASONING_KEYS if key in last]
        return prompt.before(self._end_of_last(prompt.text, variables, keys, now))

    def _end_of_last(self, text: str, variables: dict[str, Any], keys: Sequence[str], now: datetime) -> int:
        """Returns where the last message's text ends in the rendered `text`. Two more renderings find this out: one with a mark at the end
        of the message's text, and one with the mark before the text's last character."""
        *others, last = variables["messages"]
        mark = next(ControlTokens.unused("".join([text, *texts_of(variables["messages"])])))

        def parts(change: Callable[[str], str]) -> list[str]:
            changed = {**last, **{key: change(last[key]) for key in keys}}
            return run_template(self._template, {**variables, "messages": [*others, changed]}, now).split(mark)

        def inside(said: str) -> str:
            last_one = len(said.rstrip()) - 1
            return said[:last_one] + mark + said[last_one:]

        whose = f"the last message's text ({' or '.join(map(repr, keys))})"
        before, *after = parts(lambda said: said + mark)
        if not after:
            raise ChatTemplateError(_UNCERTAIN.format(f"leaves {whose} out"))
        end = len(text) - len(after[0])
        certain = len(after) == 1 and end >= 0 and text.endswith(after[0]) and before.startswith(text[:end]) and not before[end:].strip()
        if certain and last[keys[0]].strip():
            sooner, *more = parts(inside)
            certain = len(more) == 1 and len(sooner) < end and text.startswith(sooner)
        if not certain:
            raise ChatTemplateError(_UNCERTAIN.format(f"changes or repeats {whose}"))
        return end

    def _prompt(self, variables: dict[str, Any], control: ControlTokens | None, now: datetime) -> tuple[Prompt, dict[str, Any]]:
        """Returns the prompt and the variables with which it was rendered."""
        text, variables = self._run(variables, now)
        self._check_left_out(variables, text, now)
        given = {name: variables[name] for name in _GIVEN}
        said = [_without_roles(variables["messages"]), given["tools"], given["documents"]]
        if control is None or not control.possible(texts_of(said)):
            return Prompt(text, ((text, True),)), variables
        marks = control.marks(text)
        for change in _WAYS_OF_MARKING:
            try:
                marked = run_template(self._template, {**variables, **change(given, marks)}, now)
            except ChatTemplateError:
                continue
            if marks.unmarked(marked) == text:
                # True if no character of a message is part of a control token. The whole text can then be tokenized as one part.
                own = control.find(marked) == control.find(text)
                return Prompt(text, ((text, True),) if own else tuple(marks.parts(marked))), variables
        raise ChatTemplateError(
            "the chat template takes control tokens apart that stand in the messages, so that it cannot be told which of those in the "
            "prompt are its own. Take them out of the messages, or pass parse_special=True: they then mean what they mean to the model"
        )

    def _run(self, variables: dict[str, Any], now: datetime) -> tuple[str, dict[str, Any]]:
        """Renders the template. Returns the text and the variables that were used. The variables differ from `variables` if the template
        accepts the arguments of calls only as JSON text, as DeepSeek's and Functionary's templates do, or no content that is None."""
        try:
            return self._with_content(variables, now)
        except ChatTemplateError:
            spelt = {**variables, "messages": spell_arguments(variables["messages"])}
            if spelt["messages"] == variables["messages"]:
                raise
            try:
                return self._with_content(spelt, now)
            except ChatTemplateError:
                pass
            raise

    def _with_content(self, variables: dict[str, Any], now: datetime) -> tuple[str, dict[str, Any]]:
        """Renders the template. A content that is None, which a message with calls may have, becomes an empty text if the template fails
        or prints the word None otherwise."""
        empty = {**variables, "messages": empty_contents(variables["messages"])}
        if empty["messages"] == variables["messages"]:
            return run_template(self._template, variables, now), variables
        try:
            text = run_template(self._template, variables, now)
        except ChatTemplateError:
            return run_template(self._template, empty, now), empty
        if "None" in text:
            try:
                emptied = run_template(self._template, empty, now)
            except ChatTemplateError:
                return text, variables
            if emptied.count("None") < text.count("None"):
                return emptied, empty
        return text, variables

    @cached_property
    def _with_tools(self) -> ChatTemplate:
        return ChatTemplate(self._tool_use or "", **self.tokens)

    def _check_left_out(self, variables: dict[str, Any], text: str, now: datetime) -> None:
        """Raises ChatTemplateError if the template leaves out calls, or a message. Some templates raise an error for an unknown role, but
        most leave out the message. A message was left out if another text in its place does not change the prompt."""
        messages = variables["messages"]
        called = next((i for i, message in enumerate(messages) if message.get("tool_calls")), None)
        if called is not None and self._changed(variables, without_calls(messages), now) == text:
            raise ChatTemplateError(
                f"the chat template leaves the tool_calls of messages[{called}] out: it has no place for calls. "
                "Describe them in the message's content, or pass chat_template= to load() with a template that prints calls"
            )
        asked = [
            i
            for i, message in enumerate(messages)
            if message["role"] not in _ROLES_OF_ALL and isinstance(message.get("content"), str) and message["content"].strip()
        ]
        if not asked:
            return
        # One rendering has a different mark at the end of each of these messages. A message whose mark is in it was printed. The others may
        # have been printed in a changed form, so they are replaced one by one.
        marks = dict(zip(asked, ControlTokens.unused(text), strict=False))
        marked = self._changed(variables, _with_contents(messages, {i: messages[i]["content"] + mark for i, mark in marks.items()}), now)
        unseen = [i for i in asked if marked is None or i not in marks or marks[i] not in marked]
        for i in unseen[:_MOST_UNSEEN]:
            if self._changed(variables, _with_contents(messages, {i: next(iter(marks.values()), "x")}), now) == text:
                raise ChatTemplateError(
                    f"the chat template leaves messages[{i}] out: it has no place for the role {messages[i]['role']!r}. "
                    "Give its text as another role's, such as system or user"
                )

    def _changed(self, variables: dict[str, Any], messages: list[Any], now: datetime) -> str | None:
        """Renders the template with changed messages. Returns None if the template raises an error. The error means that the template uses
        what was changed, because it raised none before the change."""
        try:
            return run_template(self._template, {**variables, "messages": messages}, now)
        except ChatTemplateError:
            return None

    def _variables(self, messages: Any, add_generation_prompt: bool, kwargs: dict[str, Any]) -> dict[str, Any]:
        taken = sorted(RESERVED & kwargs.keys() | {name for name in kwargs if name.startswith("_") or name in self.tokens})
        if taken:
            raise ValueError(f"template_kwargs cannot set {', '.join(taken)}: in a chat template these names have a meaning of their own")
        with argument("messages"):
            conversation = plain_messages(messages, self.source)
        return {
            "tools": None,
            "documents": None,
            **self.tokens,
            **{name: plain_value(value, name if name == "tools" else f"template_kwargs[{name!r}]") for name, value in kwargs.items()},
            "messages": conversation,
            "add_generation_prompt": bool(add_generation_prompt),
        }


# ---- finding a model's template --------------------------------------------------------------------------------


def find_template(file: ModelFile, override: str | ChatTemplate | None = None) -> ChatTemplate | None:
    """Returns the chat template of a model, or None if the model has none, because a missing template is never guessed. override: the text
    of a template, the path of a file with a template, or the name of one of the model's own templates."""
    if isinstance(override, ChatTemplate):
        return override
    if override is not None and not isinstance(override, str | Path):
        raise TypeError(f"chat_template must be a template's text or a path, found {type(override).__name__}")
    tokens = _gguf_tokens(file) if file.kind == "gguf" else _folder_tokens(_folder_of(file))
    named = _gguf_templates(file) if file.kind == "gguf" else _folder_templates(_folder_of(file))
    if override is not None:
        return ChatTemplate(_overriding(plain(os.fsdecode(override)), named), **tokens)
    if not named:
        return None
    if "default" not in named:
        raise ChatTemplateError(
            f"{shown_path(file.path)} has several chat templates and no default one. Pass chat_template= with one of: {', '.join(named)}."
        )
    try:
        named["default"].encode()
    except UnicodeEncodeError as error:
        raise ChatTemplateError(
            f"{shown_path(file.path)}: the chat template is not UTF-8 text (at character {error.start}). {FIX}"
        ) from None
    return ChatTemplate(named["default"], tool_use=named.get("tool_use"), **tokens)


def _overriding(given: str, named: dict[str, str]) -> str:
    if given in named:
        return named[given]
    if "{" in given or "\n" in given:
        return given
    path = Path(given)
    if len(given) > 4096 or "\0" in given or not path.is_file():
        known = f" The model's own are named {', '.join(named)}." if named else ""
        raise ChatTemplateError(f"chat_template={shown(given)} is neither a Jinja template (it has no '{{') nor a file.{known}")
    if path.suffix == ".json":
        found = _named(read_object(path, given=True).get("chat_template"), path)
        if "default" not in found:
            raise ChatTemplateError(f"{shown_path(path)} has no chat_template")
        return found["default"]
    return read_text(path, given=True) or ""


def _named(value: Any, where: Any) -> dict[str, str]:
    """Returns a dict of templates by name. `value` is one template's text, a list of {"name": ..., "template": ...}, or a dict from name to
    text."""
    if value is None:
        return {}
    if isinstance(value, str):
        return {"default": value}
    if isinstance(value, dict):
        value = [{"name": k, "template": v} for k, v in value.items()]
    if not isinstance(value, list) or not all(
        isinstance(v, dict) and isinstance(v.get("name"), str) and isinstance(v.get("template"), str) for v in value
    ):
        raise ChatTemplateError(f"{shown_path(where)}: chat_template is neither a text nor a list of named ones. {FIX}")
    return {v["name"]: v["template"] for v in value}


def _folder_of(file: ModelFile) -> Path:
    path = Path(file.path)
    return path if path.is_dir() else path.parent


def _folder_templates(folder: Path) -> dict[str, str]:
    """Returns a dict of the templates in a folder, by name. As in transformers, chat_template.jinja has priority over chat_template.json,
    which has priority over tokenizer_config.json. The folder may also have additional templates."""
    found = _named(read_object(folder / "tokenizer_config.json").get("chat_template"), folder / "tokenizer_config.json")
    separate = read_json(folder / "chat_template.json")
    if isinstance(separate, dict):
        found.update(_named(separate.get("chat_template"), folder / "chat_template.json"))
    files = {"default": folder / "chat_template.jinja"}
    files |= {path.stem: path for path in sorted(subfolder(folder, "additional_chat_templates").glob("*.jinja"))}
    for name, path in files.items():
        if (text := read_text(path)) is not None:
            found[name] = text
    return found


def _folder_tokens(folder: Path) -> dict[str, str]:
    config = {**read_object(folder / "special_tokens_map.json"), **read_object(folder / "tokenizer_config.json")}
    tokens = {}
    for role in ("bos", "eos", "unk", "sep", "pad", "cls", "mask"):
        token = config.get(f"{role}_token")
        token = token.get("content") if isinstance(token, dict) else token
        if isinstance(token, str):
            tokens[f"{role}_token"] = token
    return tokens


def _gguf_templates(file: ModelFile) -> dict[str, str]:
    found = _named(file.get("tokenizer.chat_template"), file.path)
    for key in file.keys():
        name = key.removeprefix("tokenizer.chat_template.")
        value = file.get(key) if name != key else None
        if isinstance(value, str):
            found[name] = value
    return found


def _gguf_tokens(file: ModelFile) -> dict[str, str]:
    words = file.get("tokenizer.ggml.tokens")
    tokens = {}
    for role, key in (("bos", "bos"), ("eos", "eos"), ("unk", "unknown"), ("pad", "padding")):
        index = file.get(f"tokenizer.ggml.{key}_token_id")
        if isinstance(words, list) and isinstance(index, int | np.integer) and 0 <= int(index) < len(words):
            tokens[f"{role}_token"] = words[int(index)]
    return tokens
