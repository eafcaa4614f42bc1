"""Conversations. The model's chat template turns messages into a prompt, and the model's answer becomes a message."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import numpy as np
import numpy.typing as npt

from ..common.arguments import argument, check_text, flag, listed, plain, shown, shown_path
from ..common.forks import Lock, cached_property
from ..common.side_files import read_object
from ..errors import ChatTemplateError, GrammarError, ModelFormatError
from ..generate.answers import Kind, ToolCall
from ..generate.generation import Chunk, Continuation, Generation
from ..generate.grammar import Grammar, check_grammars, is_there
from ..generate.prompts import prompt_ids
from ..generate.reasoning import Marks
from ..generate.settings import SamplingParams
from . import answer_grammars, response_templates
from .response_parser import FIELDS, Event, ResponseParser, ResponseTemplate
from .tool_schemas import check_tools

if TYPE_CHECKING:
    from .. import _core
    from ..tokens.tokenizers import Tokenizer
    from .chat_templates import ChatTemplate

Int32 = npt.NDArray[np.int32]

# Template variables that chat() sets itself. ChatTemplate reserves more names (RESERVED in chat_templates.py).
_RESERVED = ("self", "messages", "add_generation_prompt")
# The prompt may already contain the beginning of the answer, such as "<think>". chat() looks for it in the last 256 characters of the
# prompt.
_OPENED = 256


# ---------------------------------------------------------------- results
def _kind_tokens(kinds: Sequence[Kind]) -> dict[str, int]:
    return {kind: kinds.count(kind) for kind in get_args(Kind)}


@dataclass(frozen=True, repr=False, eq=False)
class ChatResult(Generation):
    """A Generation that answers a conversation. Its `text` is the whole answer as the model wrote it, without control tokens.

    prompt: the text that the chat template rendered.
    content: the answer without reasoning and tool calls.
    reasoning: the model's reasoning, or None.
    tool_calls: the calls that the model asks for, each a ToolCall.
    tool_errors: one message for each call that cannot be parsed. The text of such a call stays in content.
    reasoning_key: the key under which the chat template expects reasoning in a message.
    parser: the function that turns `content` into `parsed`.
    kind_tokens: the number of tokens of "content", "reasoning" and "tool_call", together len(ids). A token counts for the kind of its first
        character, and a marker for the kind that it opens or closes."""

    prompt: str = ""
    content: str = ""
    reasoning: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    tool_errors: tuple[str, ...] = ()
    reasoning_key: str = "reasoning_content"
    parser: Callable[[str], Any] = answer_grammars.json_of
    kind_tokens: Mapping[str, int] = field(default_factory=lambda: _kind_tokens(()))

    @property
    def parsed(self) -> Any:
        """The answer in the form that response_format asked for: a pydantic object, or else the JSON value of .content.

        Raises ValueError if the answer is incomplete or is not JSON, and pydantic's ValidationError if the answer does not match the
        pydantic type."""
        if self.finish_reason in ("length", "cancelled"):
            why = "max_new_tokens or the context ended it" if self.finish_reason == "length" else "it was cancelled"
            raise ValueError(f"the answer is not complete: {why} after {len(self.ids)} tokens. It begins {shown(self.content, 80)}")
        return self.parser(self.content)

    @property
    def message(self) -> dict[str, Any]:
        """The answer as a message, to append to the conversation."""
        message: dict[str, Any] = {"role": "assistant", "content": self.content}
        if self.reasoning is not None:
            message[self.reasoning_key] = self.reasoning
        if self.tool_calls:
            message["tool_calls"] = [
                {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
                for call in self.tool_calls
            ]
        return message

    def to_openai(self) -> dict[str, Any]:
        """Returns the answer as a dict in the shape of an OpenAI chat completion."""
        reason = {"eos": "stop", "grammar": "stop", "cancelled": None}.get(self.finish_reason or "", self.finish_reason)
        message: dict[str, Any] = {"role": "assistant", "content": self.content}
        if self.reasoning is not None:
            message["reasoning_content"] = self.reasoning
        if self.tool_calls:
            message |= {"content": self.content or None, "tool_calls": [call.to_openai() for call in self.tool_calls]}
            reason = "tool_calls" if reason == "stop" else reason
        used = {"prompt_tokens": self.prompt_tokens, "completion_tokens": len(self.ids)}
        return {
            "object": "chat.completion",
            "created": int(time.time()),
            "choices": [{"index": 0, "message": message, "finish_reason": reason}],
            "usage": {**used, "total_tokens": sum(used.values())},
        }


class Answer(Continuation):
    """A sequence whose text is parsed while it arrives. Of the control tokens, the parser sees only those that its markers contain."""

    def __init__(self, tokenizer: Tokenizer, params: SamplingParams, parser: ResponseParser, heard: Mapping[int, str]) -> None:
        super().__init__(tokenizer, params)
        self._parser, self._heard = parser, heard
        self._read_text = 0
        self._places: list[int] = []  # for each token that was read, how many characters the parser was fed before it
        self._over = False

    def parsed(self) -> ResponseParser:
        """Parses the rest of the text and returns the parser. Must be called after the sequence has ended."""
        self._events(len(self.text), over=True)
        return self._parser

    def kind_tokens(self) -> dict[str, int]:
        """Returns the number of tokens of each kind. Must be called after the sequence has ended."""
        return _kind_tokens(self.parsed().kinds_at(self._places[: len(self.ids)]))  # a stop may have cut off tokens that were read

    def chunks(self, index: int) -> list[Chunk]:
        """Returns the chunk of take() split into chunks of one kind each: content, reasoning or tool calls."""
        chunk = self.take(index)
        if chunk is None:
            return []
        events = [event for event in self._events(self._sent_text, chunk.finish_reason is not None) if event]
        if len(events) == 1 and events[0] == Event("content", chunk.text):  # most chunks are like this
            return [chunk]
        if not events:
            return [replace(chunk, text="", kind=self._parser.kind)]
        nothing: dict[str, Any] = {"ids": np.empty(0, np.int32), "logprobs": None, "top_ids": None, "top_logprobs": None, "pieces": ()}
        nothing["reasoning_cut"] = False
        result = []
        for i, event in enumerate(events):
            last = chunk.finish_reason if i == len(events) - 1 else None
            tokens = {} if i == 0 else nothing  # the first chunk gets all of the tokens
            said: dict[str, Any] = {"text": event.text, "kind": event.kind, "calls": event.calls}
            said |= {"call_deltas": event.deltas, "call_errors": event.failed}
            result.append(replace(chunk, finish_reason=last, **said, **tokens))
        return result

    def _events(self, end: int, over: bool) -> list[Event]:
        """Parses the text between the last parsed position and `end`, and returns the events. over: the answer ends at `end`."""
        if self._over:
            return []
        pieces, at, fed = [], self._read_text, self._parser.length
        while len(self._places) < len(self.ids) and self.starts[len(self._places)] <= end:
            index = len(self._places)
            start = max(self.starts[index], at)
            fed += start - at
            pieces.append(self.text[at:start])
            self._places.append(fed)
            if (token := self._heard.get(self.ids[index])) is not None:
                pieces.append(token)
                fed += len(token)
            at = start
        pieces.append(self.text[at:end])
        self._read_text, self._over = max(at, end), over
        events = self._parser.feed("".join(pieces))
        return events + self._parser.finish() if over else events


# ---------------------------------------------------------------- what a model makes of a conversation
@dataclass(frozen=True)
class Question:
    """The checked arguments of one chat() call."""

    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]]
    variables: dict[str, Any]
    parse_special: bool
    choice: str = "auto"  # "auto", "required", or the name of a tool
    parallel: bool = True
    format: answer_grammars.Format | None = None
    continues: bool = False  # the answer goes on from the last message

    @property
    def continued(self) -> tuple[str, ...]:
        """The keys of the last message whose text the answer continues: its content or, if that is empty, its reasoning."""
        if not self.continues:
            return ()
        last = self.messages[-1]
        reasoning = tuple(key for key, kind in FIELDS.items() if kind == "reasoning" and isinstance(last.get(key), str) and last[key])
        return reasoning if reasoning and not last["content"] else ("content",)

    @property
    def must_call(self) -> bool:
        """Whether the answer has to call a tool."""
        return self.choice != "auto"


@dataclass(frozen=True)
class Asked:
    """The prompt of a conversation, and what is needed to parse the answer."""

    prompt: str
    ids: Int32
    shape: ResponseTemplate | None
    opened: str  # the beginning of the answer that the prompt already contains, or ""
    tools: list[dict[str, Any]]
    calls: bool
    heard: Mapping[int, str]  # control tokens that the parser sees: id -> text
    chat_template: str
    continues: bool = False  # `opened` ends with text that the answer continues
    grammar: Grammar | None = None
    parser: Callable[[str], Any] = answer_grammars.json_of
    reasons: bool = False  # `opened` ends inside of reasoning
    formed: bool = False  # the grammar describes all that comes behind the reasoning

    def continuation(self, tokenizer: Tokenizer, params: SamplingParams) -> Continuation:
        """Returns the object that collects the tokens of one answer."""
        if self.shape is None:
            return Continuation(tokenizer, params)
        prefix = response_templates.id_prefix(self.chat_template)
        parser = ResponseParser(self.shape, self.tools, prompt=self.opened, continues=self.continues, calls=self.calls, id_prefix=prefix)
        return Answer(tokenizer, params, parser, self.heard)

    def result(self, generation: Generation, answer: Continuation) -> ChatResult:
        """Returns the ChatResult for an answer. `answer` is the object that continuation() returned."""
        if not isinstance(answer, Answer):
            kinds = _kind_tokens(["content"] * len(generation.ids))
            return ChatResult(**vars(generation), prompt=self.prompt, content=generation.text, parser=self.parser, kind_tokens=kinds)
        found = answer.parsed()
        return ChatResult(
            **vars(generation),
            prompt=self.prompt,
            content=found.content,
            reasoning=found.reasoning,
            tool_calls=tuple(found.calls),
            tool_errors=tuple(found.errors),
            reasoning_key=response_templates.reasoning_key(self.chat_template),
            parser=self.parser,
            kind_tokens=answer.kind_tokens(),
        )

    def nothing(self, **known: Any) -> ChatResult:
        """Returns the ChatResult for dry_run=True, which has the prompt but no generated text."""
        empty: dict[str, Any] = dict.fromkeys(("finish_reason", "logprobs", "top_ids", "top_logprobs"))
        return ChatResult(text="", ids=np.empty(0, np.int32), timings={}, prompt=self.prompt, **known, **empty)


def check_given(file: _core.ModelFile, chat_template: Any, response_template: Any) -> None:
    """Parses the templates that were passed to load(), so that load() itself raises their errors, before it reads the weights. Raises
    ChatTemplateError and what ResponseTemplate raises."""
    if chat_template is not None:
        from .chat_templates import find_template

        find_template(file, chat_template)
    if response_template is not None and response_template is not False:
        ResponseTemplate(_given_shape(response_template))


class Chats:
    """One model's chat template and response template. Any number of threads may share a Chats object."""

    def __init__(self, file: _core.ModelFile, tokenizer: Tokenizer, vocab_size: int, chat_template: Any, response_template: Any) -> None:
        self._file, self._tokenizer, self._vocab_size = file, tokenizer, vocab_size
        self._given_template, self._given_shape = chat_template, response_template
        self._template: ChatTemplate | None = None
        self._lock = Lock()
        self._known_tokens: dict[bool, Mapping[int, str]] = {}

    def template(self) -> ChatTemplate:
        """Returns the model's chat template, which the first call compiles. Raises ChatTemplateError if the model has none."""
        if (template := self._found_template()) is None:
            raise ChatTemplateError(
                f"{shown_path(Path(self._file.path).name)} has no chat template, and a guessed one would silently give bad answers. "
                f"Pass chat_template= (Jinja text, or a file with it) to load(), or use generate() with a prompt of your own"
            )
        return template

    def _found_template(self) -> ChatTemplate | None:
        with self._lock():
            if self._template is None:
                from .chat_templates import find_template

                self._template = find_template(self._file, self._given_template)
            return self._template

    @cached_property
    def _own_shape(self) -> ResponseTemplate | None:
        """The response template that was passed to load(), or else the one in the model's own files, or None."""
        given = self._given_shape
        if given is False:
            return None
        if given is not None:
            return ResponseTemplate(_given_shape(given))
        if self._file.kind == "gguf":
            return None
        path = Path(self._file.path)
        source = (path if path.is_dir() else path.parent) / "tokenizer_config.json"
        own = read_object(source).get("response_template")
        if own is None:
            return None
        try:
            return ResponseTemplate(own)
        except ValueError as error:
            raise ModelFormatError(
                f"{shown_path(source)}: {error}. load(response_template=) takes another one, or False for answers as they come",
                file=str(source),
                field="response_template",
            ) from None

    @cached_property
    def _shown_shape(self) -> ResponseTemplate | None:
        """The response template of the first Row in response_templates.py whose markers are all in the chat template, or None."""
        row = response_templates.row_of(self.template().text)
        return None if row is None else ResponseTemplate(row.template)

    def shape(self) -> ResponseTemplate | None:
        """Returns the response template that parses the answers, or None if answers are not parsed."""
        if self._given_shape is False:
            return None
        return self._own_shape or self._shown_shape

    def asked(self, question: Question) -> Asked:
        """Renders a conversation and returns its prompt with what is needed to parse the answer. Raises ChatTemplateError if the chat
        template leaves the tools out, or if no response template can parse calls: its `argument` is then "tools"."""
        template, shape = self.template(), self.shape()
        tools, variables = question.tools, question.variables
        if tools:
            variables = {**variables, "tools": tools}
            with argument("tools", ChatTemplateError):
                self._check_calls(shape)
        text, ids = self.rendered(question.messages, variables, question.parse_special, question.continued)
        if tools:
            with argument("tools", ChatTemplateError):
                self._check_shown(template, question, text)
        calls = bool(variables.get("tools")) and shape is not None and shape.calls
        heard = {} if shape is None else self._heard(shape, calls)
        if question.continues:
            opened = "" if shape is None else self._continued(shape, template, question, variables, text, calls)
            begun = any(question.messages[-1][key].strip() for key in question.continued)
            reasons = _reasons(shape, opened, calls)
            return Asked(text, ids, shape, opened, tools, calls, heard, template.text, begun, reasons=reasons)
        opened = "" if shape is None else self._opened(shape, template, question.messages, variables, text)
        reasons = _reasons(shape, opened)
        grammar = self._grammar(question, template.text, shape, opened, reasons, variables)
        parser = answer_grammars.json_of if question.format is None else question.format.parse
        formed = question.format is not None or question.must_call
        return Asked(text, ids, shape, opened, tools, calls, heard, template.text, False, grammar, parser, reasons, formed)

    def marks(self, asked: Asked | None = None) -> Marks:
        """Returns how answers mark reasoning, for max_reasoning_tokens. Raises ChatTemplateError if that is not known. asked: the
        conversation that is answered, or None for generate()."""
        found, name = None, shown_path(Path(self._file.path).name)
        if self._given_shape is False:
            why = "response_template=False was given"
        elif self._own_shape is None and self._found_template() is None:
            why = f"{name} has no chat template"
        else:
            why = f"{name} has none as plain texts, in its chat template or its response template"
            template = "" if self._own_shape is not None else self.template().text
            found = answer_grammars.marks_of(self.shape(), response_templates.row_of(template), template)
        if found is None:
            raise ChatTemplateError(
                f"max_reasoning_tokens needs the texts around the reasoning, and {why}. Pass response_template= to load() with a field "
                f"reasoning_content whose open and close are texts (docs/python/tools.md), or leave max_reasoning_tokens out"
            )
        if asked is None:
            return found
        return replace(found, call=found.call if asked.calls else "", leads=asked.formed and found.once)

    def enforces_calls(self) -> bool:
        """Returns whether a grammar can enforce tool calls. Where none can, a call with tool_choice="auto" goes without."""
        written = answer_grammars.written_of(self.shape(), response_templates.row_of(self.template().text))
        return not isinstance(written, str) and is_there() and self._tokenizer.has_bytes and bool(self._tokenizer.eos_ids)

    def _grammar(
        self,
        question: Question,
        chat_template: str,
        shape: ResponseTemplate | None,
        opened: str,
        reasons: bool,
        variables: Mapping[str, Any],
    ) -> Grammar | None:
        """Returns the grammar of the answer, or None if any answer is allowed. If tool calls are optional and no grammar can enforce their
        form, the model generates them without a grammar."""
        enforced = question.must_call or not question.parallel
        row = response_templates.row_of(chat_template)
        written = answer_grammars.written_of(shape, row)
        tools = question.tools
        if question.choice not in ("auto", "required"):
            tools = [tool for tool in tools if tool["function"]["name"] == question.choice]
        if tools and not enforced and not self.enforces_calls():
            tools = []
        thought = answer_grammars.thought_of(shape, row, chat_template)
        off = any(variables.get(name) is False for name in ("enable_thinking", "thinking"))
        asking = answer_grammars.Asking(
            body=None if question.format is None else question.format.grammar,
            tools=tools,
            calls="must" if question.must_call else "free",
            parallel=question.parallel,
            opened=reasons,
            thinks=thought is not None and not off and thought.close not in opened,
        )
        enforcing = "tool_choice" if question.must_call else "parallel_tool_calls"
        with argument(enforcing if isinstance(written, str) else "tools", GrammarError):
            return answer_grammars.answer_grammar(self._tokenizer, asking, thought, written)

    def _heard(self, shape: ResponseTemplate, calls: bool) -> Mapping[int, str]:
        """Returns the control tokens (id -> text) that occur in the response template's markers. A vocabulary may have thousands of other
        control tokens."""
        if calls not in self._known_tokens:
            special = ((i, self._tokenizer.added[i].content) for i in self._tokenizer.special_ids)
            self._known_tokens[calls] = {i: token for i, token in special if shape.hears(token, calls)}
        return self._known_tokens[calls]

    def _check_calls(self, shape: ResponseTemplate | None) -> None:
        """Raises ChatTemplateError if calls of tools could not be read in an answer."""
        if self._given_shape is not False and (shape is None or not shape.calls):
            raise ChatTemplateError(
                f"{shown_path(Path(self._file.path).name)}: its chat template shows none of the known ways to call tools "
                f"({response_templates.known_shapes()}). Pass response_template= to load() with what calls look like, or False to read "
                f"them in the text yourself"
            )

    def _check_shown(self, template: ChatTemplate, question: Question, text: str) -> None:
        """Raises ChatTemplateError if the rendered conversation does not show the tools."""
        if self._same_without(template, question, text):
            raise ChatTemplateError(
                f"the chat template of {shown_path(Path(self._file.path).name)} leaves tools out: the model would not know of them. "
                f"Describe them in a message, or pass chat_template= to load() with one that has a place for them"
            )

    @staticmethod
    def _same_without(template: ChatTemplate, question: Question, text: str) -> bool:
        try:
            if question.continues:
                return template.continued(question.messages, None, question.continued, **question.variables).text == text
            return template.render(question.messages, True, **question.variables) == text
        except ChatTemplateError:
            return False

    @staticmethod
    def _continued(
        shape: ResponseTemplate, template: ChatTemplate, question: Question, variables: dict[str, Any], text: str, calls: bool
    ) -> str:
        """Returns the part of the prompt that belongs to the answer if the answer continues the last message. Raises ChatTemplateError if
        the response template does not find the message's text in it as what it is, content or reasoning."""
        *before, last = question.messages
        try:
            if shape.anchor is not None:
                opened = shape.last_part(text)
            else:
                # The prompt without the last message. If it is not the beginning of the prompt, the part that both share is used.
                opened = text[len(os.path.commonprefix([template.render(before, False, **variables), text])) :]
        except ChatTemplateError:  # the template refuses a conversation without the last message
            opened = text
        except ValueError as error:
            raise ChatTemplateError(
                f"the response template, over this prompt: {error}. load(response_template=) takes another one"
            ) from None
        key = question.continued[0]
        found = ResponseParser(shape, prompt=opened, calls=calls).kind
        # Content may itself contain the markers of reasoning, for models whose chat templates have no place for it.
        meant = "reasoning" if key != "content" else ResponseParser(shape, prompt=last["content"], calls=calls).kind
        if found == "tool_call":
            raise ChatTemplateError("continue_final=True: the last message ends inside of a tool call, which cannot be continued")
        if found != meant:
            raise ChatTemplateError(
                f"continue_final=True: the response template reads the end of the last message ({key!r}) as {found}, so that the answer "
                f"could not be read. load(response_template=) takes another one, or False for answers as they come"
            )
        return opened

    @staticmethod
    def _opened(
        shape: ResponseTemplate, template: ChatTemplate, messages: list[dict[str, Any]], variables: dict[str, Any], text: str
    ) -> str:
        """Returns the beginning of the answer that the prompt already contains, such as "<think>", or an empty string. If the response
        template has no start anchor, this is the text that add_generation_prompt adds to the prompt."""
        try:
            if shape.anchor is not None:
                return shape.last_part(text)
            if not shape.opens_in(text[-_OPENED:]):
                return ""
        except ValueError as error:
            raise ChatTemplateError(
                f"the response template, over this prompt: {error}. load(response_template=) takes another one"
            ) from None
        try:
            before = template.render(messages, False, **variables)
        except ChatTemplateError:
            return ""
        return text[len(before) :] if text.startswith(before) else ""

    def rendered(
        self, messages: list[dict[str, Any]], variables: dict[str, Any], parse_special: bool, continued: Sequence[str] = ()
    ) -> tuple[str, Int32]:
        """Renders a conversation and returns its text and its token ids. No special tokens are added, because the template writes them
        itself. continued: the keys of the last message whose text the answer continues, if it does."""
        control = None if parse_special else self._tokenizer.control
        if continued:
            prompt = self.template().continued(messages, control, continued, **variables)
        else:
            prompt = self.template().prompt(messages, control, add_generation_prompt=True, **variables)
        if not prompt.text:
            raise ChatTemplateError("the chat template renders nothing for these messages, and a model continues at least one token")
        ids = self._tokenizer.encode_parts(prompt.parts, add_special=False)
        with argument("messages"):
            return prompt.text, prompt_ids(ids, self._tokenizer, self._vocab_size, name="the rendered conversation")


def is_conversation(given: Any) -> bool:
    """Returns whether an argument is a list of messages rather than a prompt."""
    return isinstance(given, Sequence) and not isinstance(given, (str, bytes)) and len(given) > 0 and isinstance(given[0], Mapping)


def check_response_template(given: Any) -> Any:
    """Checks the response_template argument of load(): None, False, a dict, or the path of a JSON file."""
    if given is None or given is False or isinstance(given, (Mapping, str, os.PathLike)):
        return given
    raise TypeError(f"response_template must be a dict, a path, False or None, not {type(given).__name__} {shown(given)}")


def _reasons(shape: ResponseTemplate | None, opened: str, calls: bool = True) -> bool:
    """Returns whether the beginning of an answer that the prompt already contains ends inside of reasoning."""
    return shape is not None and bool(opened) and ResponseParser(shape, prompt=opened, calls=calls).kind == "reasoning"


def _given_shape(given: Any) -> Mapping[str, Any]:
    if isinstance(given, Mapping):
        return given
    path = Path(plain(os.fsdecode(given)))
    if not path.is_file():
        raise FileNotFoundError(f"response_template={shown(str(path))} is no file. It takes a dict, or a JSON file with one")
    value = read_object(path, given=True)
    inner = value.get("response_template")
    return inner if isinstance(inner, dict) else value


# ---------------------------------------------------------------- checks
def check_question(
    messages: Any,
    tools: Any,
    tool_choice: Any,
    parallel_tool_calls: Any,
    template_kwargs: Any,
    parse_special: Any,
    response_format: Any = None,
    grammar: Any = None,
    continue_final: Any = False,
    name: str = "messages",
) -> Question:
    """Checks the arguments of chat() and save_prefix(). Raises TypeError or ValueError that names the wrong argument. name: what the
    argument with the messages is called."""
    with argument(name):
        conversation = check_messages(messages)
    variables = check_template_kwargs(template_kwargs)
    with argument("tools"):
        known = check_tools(tools)
    if known and variables.get("tools") is not None:
        raise TypeError("tools was given twice: as tools= and in template_kwargs")
    chosen = _check_choice(tool_choice, known)
    parallel = flag("parallel_tool_calls", parallel_tool_calls)
    if chosen == "none":
        known, chosen = [], "auto"
    if grammar is not None and response_format is not None:
        raise TypeError("response_format and grammar were both given; an answer has one form")
    with argument("response_format"):
        form = answer_grammars.check_response_format(response_format)
    if grammar is not None:
        with argument("grammar"):
            only = check_grammars(grammar, 1, True)[0]
        form = None if only is None else answer_grammars.Format(only)
    if form is not None and chosen != "auto":
        asked = "grammar" if grammar is not None else "response_format"
        raise ValueError(f"tool_choice={shown(tool_choice)} and {asked} were both given: the answer would have to be both")
    continues = flag("continue_final", continue_final)
    special = flag("parse_special", parse_special)
    question = Question(conversation, known, variables, special, chosen, parallel or not known, form, continues)
    if continues:
        _check_continued(question, "grammar" if grammar is not None else "response_format")
    return question


def _check_continued(question: Question, form: str) -> None:
    """Raises ValueError if an answer cannot continue the last message. form: the name of the argument that gave question.format."""
    last = question.messages[-1]
    if last["role"] != "assistant":
        raise ValueError(
            f"continue_final=True: the answer continues the last message, which must be the assistant's; its role is {shown(last['role'])}"
        )
    if last.get("tool_calls"):
        raise ValueError("continue_final=True: the last message has tool_calls, and calls cannot be continued")
    whole = {form: question.format is not None, "tool_choice": question.must_call, "parallel_tool_calls": not question.parallel}
    for name, given in whole.items():
        if given:
            raise ValueError(
                f"continue_final=True and {name} were both given: {name} describes a whole answer, and the beginning of this one is there "
                f"already"
            )


def _check_choice(given: Any, tools: Sequence[Mapping[str, Any]]) -> str:
    if given is None:
        return "auto"
    if isinstance(given, Mapping):
        function = given.get("function")
        name = function.get("name") if isinstance(function, Mapping) else given.get("name")
    else:
        name = given
    names = [tool["function"]["name"] for tool in tools]
    if not isinstance(name, str) or name not in ("auto", "none", "required", *names):
        raise ValueError(
            f"tool_choice={shown(given)} is neither 'auto', 'none' or 'required' nor one of the tools ({', '.join(names) or 'none'})"
        )
    if name == "required" and not tools:
        raise ValueError("tool_choice='required' without tools: there is nothing to call")
    return name


def check_template_kwargs(given: Any) -> dict[str, Any]:
    """Checks template_kwargs and returns it as a dict. Raises TypeError if it is not a dict, if a name is not a string, or if chat() sets
    the variable itself."""
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise TypeError(
            f"template_kwargs must be a dict from the name of a variable to its value, not {type(given).__name__} {shown(given)}"
        )
    for name in given:
        if not isinstance(name, str):
            raise TypeError(f"template_kwargs has the key {shown(name)}; names of variables are strings")
        if name in _RESERVED:
            raise TypeError(f"template_kwargs cannot set {name!r}: chat() sets it itself")
    return dict(given)


def check_content(content: Any, where: str) -> Any:
    """Returns the content of a message as text. OpenAI's list of parts is accepted if all parts are text, and is joined with line feeds."""
    if isinstance(content, str):
        return check_text(content, where)
    if not isinstance(content, (list, tuple)):
        raise TypeError(f"{where} is {'None' if content is None else type(content).__name__ + ' ' + shown(content)}; it must be a string")
    texts = []
    for i, part in enumerate(content):
        if not isinstance(part, Mapping) or part.get("type") != "text" or not isinstance(part.get("text"), str):
            kind = part.get("type") if isinstance(part, Mapping) else part
            raise ValueError(
                f'{where}, part {i}, is {shown(kind)}: this version reads text only, as a string or as {{"type": "text", "text": "..."}}'
            )
        texts.append(check_text(part["text"], f"the text of part {i} of {where}"))
    return "\n".join(texts)


def check_messages(messages: Any) -> list[dict[str, Any]]:
    """Checks a conversation and returns it as a list of plain dicts. A single string becomes one user message."""
    if isinstance(messages, str):
        messages = [{"role": "user", "content": messages}]
    if isinstance(messages, (Mapping, bytes)) or not isinstance(messages, Sequence):
        raise TypeError(f'messages must be a list of {{"role": ..., "content": ...}} dicts, not {type(messages).__name__}')
    messages = listed(messages)
    if not messages:
        raise ValueError("messages is empty; a conversation has at least one message")
    for i, message in enumerate(messages):
        if not isinstance(message, Mapping):
            many = ". A call takes one conversation; several calls, from threads or with achat(), run in one batch"
            raise TypeError(
                f"message {i} is a {type(message).__name__}, not a dict with role and content"
                f"{many if isinstance(message, (list, str)) else ''}"
            )
        if not isinstance(message.get("role"), str):
            if "role" in message:
                raise TypeError(f'message {i}: "role" is {shown(message["role"])}; it must be a string such as "user"')
            raise ValueError(f'message {i} has no "role" (a string such as "user"); it has {shown(list(message))}')
        check_text(message["role"], f"the role of message {i}")
        if "content" not in message and not message.get("tool_calls"):
            raise ValueError(f'message {i} has no "content"; it has {shown(list(message))}')
    checked = []
    for i, message in enumerate(messages):
        content = message.get("content")
        if content is not None or not message.get("tool_calls"):  # a message with calls may have no content
            content = check_content(content, f"the content of message {i}")
        checked.append({**message, "role": plain(message["role"]), "content": content})
    return checked
