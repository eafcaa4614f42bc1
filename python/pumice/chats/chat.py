"""Conversations. The model's chat template turns messages into a prompt, and the model's answer becomes a message."""

from __future__ import annotations

import hashlib
import os
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ..common.arguments import argument, plain, shown, shown_path
from ..common.forks import Lock, cached_property
from ..common.side_files import read_object
from ..errors import ChatTemplateError, GrammarError, ModelFormatError
from ..generate.generation import Continuation, Generation
from ..generate.grammar import Grammar, Grammars, is_there
from ..generate.prompts import prompt_ids
from ..generate.reasoning import Marks
from ..generate.settings import SamplingParams
from . import answer_grammars, response_templates, template_messages
from .call_ids import MakeId, ids_after, with_ids
from .forced_calls import Forced, forced
from .questions import Question, check_choice
from .response_parser import ResponseParser, ResponseTemplate
from .results import Answer, ChatResult, kind_tokens_of
from .tool_schemas import check_tools, is_strict

if TYPE_CHECKING:
    from .. import _core
    from ..tokens.tokenizers import Tokenizer
    from .chat_templates import ChatTemplate

Int32 = npt.NDArray[np.int32]

# Number of characters at the end of a prompt in which chat() searches for the beginning of the answer. The prompt may already contain this
# beginning, such as "<think>".
_OPENED = 256
_MOST_FORCED = 16  # number of lists of forced tools for which a model keeps what can be enforced


@dataclass(frozen=True)
class Asked:
    """The prompt of a conversation, and the data for parsing its answer."""

    prompt: str
    ids: Int32
    shape: ResponseTemplate | None
    opened: str  # the beginning of the answer that the prompt already contains, or ""
    tools: list[dict[str, Any]]
    calls: bool
    heard: Mapping[int, str]  # id -> text of the control tokens that the parser receives as text
    chat_template: str
    make_id: MakeId
    continues: bool = False  # whether `opened` ends with text that the answer continues
    grammar: Grammar | None = None
    parser: Callable[[str], Any] = answer_grammars.json_of
    reasons: bool = False  # whether `opened` ends inside the reasoning
    formed: bool = False  # whether the grammar describes everything after the reasoning
    left_out: tuple[str, ...] = ()  # the places of the tools' schemas that the grammar does not enforce, although calls are forced

    def continuation(self, tokenizer: Tokenizer, params: SamplingParams) -> Continuation:
        """Returns the object that collects the tokens of one answer."""
        if (shape := self.shape) is None:
            return Continuation(tokenizer, params, self.ids)

        def parser() -> ResponseParser:
            return ResponseParser(
                shape,
                self.tools,
                prompt=self.opened,
                continues=self.continues,
                calls=self.calls,
                make_id=self.make_id,
                control=frozenset(self.heard.values()),
            )

        return Answer(tokenizer, params, self.ids, parser, self.heard)

    def result(self, generation: Generation, answer: Continuation) -> ChatResult:
        """Returns the ChatResult for an answer. `answer` is the object that continuation() returned."""
        if not isinstance(answer, Answer):
            kinds = kind_tokens_of(["content"] * len(generation.ids))
            return ChatResult(**vars(generation), prompt=self.prompt, content=generation.text, parser=self.parser, kind_tokens=kinds)
        found = answer.parsed()
        return ChatResult(
            **vars(generation),
            prompt=self.prompt,
            content=found.content,
            reasoning=found.reasoning,
            tool_calls=tuple(found.calls),
            tool_errors=tuple(found.errors),
            reasoning_key=template_messages.reasoning_key(self.chat_template),
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

    def __init__(
        self,
        file: _core.ModelFile,
        tokenizer: Tokenizer,
        vocab_size: int,
        chat_template: Any,
        response_template: Any,
        grammars: Grammars,
    ) -> None:
        self._file, self._tokenizer, self._vocab_size, self._grammars = file, tokenizer, vocab_size, grammars
        self._given_template, self._given_shape = chat_template, response_template
        self._template: ChatTemplate | None = None
        self._lock = Lock()
        self._known_tokens: dict[bool, Mapping[int, str]] = {}
        self._forced: OrderedDict[str, Forced] = OrderedDict()

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
        """The response template that was passed to load(), or the one in the model's own files, or None if there is neither."""
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
        """Renders a conversation. Returns its prompt with the data for parsing the answer. Raises ChatTemplateError if the chat template
        leaves the tools out, or if no response template can parse calls. The error's `argument` is "tools" then."""
        template, shape = self.template(), self.shape()
        tools, variables = question.tools, question.variables
        if tools:
            variables = {**variables, "tools": tools}
            with argument("tools", ChatTemplateError):
                self._check_calls(shape)
        form = response_templates.id_form(template.text)
        question, make_id = replace(question, messages=with_ids(question.messages, form)), ids_after(question.messages, form)
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
            return Asked(text, ids, shape, opened, tools, calls, heard, template.text, make_id, begun, reasons=reasons)
        opened = "" if shape is None else self._opened(shape, template, question.messages, variables, text)
        reasons = _reasons(shape, opened)
        with argument("tools", GrammarError):
            callable_ = self.forced(question.tools, question.choice)
        grammar = self._grammar(question, callable_.tools, template.text, shape, opened, reasons, variables)
        parser = answer_grammars.json_of if question.format is None else question.format.parse
        formed = question.format is not None or question.must_call
        left_out = callable_.left_out
        return Asked(
            text, ids, shape, opened, tools, calls, heard, template.text, make_id, False, grammar, parser, reasons, formed, left_out
        )

    def marks(self, asked: Asked | None = None) -> Marks:
        """Returns the markers of reasoning in answers, for max_reasoning_tokens. Raises ChatTemplateError if they are not known. asked: the
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
        """Returns whether a grammar can enforce tool calls. If none can, a call with tool_choice="auto" runs without a grammar."""
        written = answer_grammars.written_of(self.shape(), response_templates.row_of(self.template().text))
        return not isinstance(written, str) and is_there() and self._tokenizer.has_bytes and bool(self._tokenizer.eos_ids)

    def forced(self, tools: list[dict[str, Any]], choice: str) -> Forced:
        """Returns the tools that may be called, as the grammar of an answer needs them. If a call is forced, they are strict, as far as
        their schemas can be enforced. choice: as in Question."""
        if choice == "auto":
            return Forced(tools)
        if choice != "required":
            tools = [tool for tool in tools if tool["function"]["name"] == choice]
        written = answer_grammars.written_of(self.shape(), response_templates.row_of(self.template().text))
        if isinstance(written, str) or not is_there():  # the answer's grammar raises the error
            return Forced(tools)
        key = hashlib.sha256(repr([(is_strict(tool["function"]), tool) for tool in tools]).encode("utf-8", "surrogatepass")).hexdigest()
        with self._lock():
            if (known := self._forced.get(key)) is not None:
                self._forced.move_to_end(key)
                return known

        def check(made: list[dict[str, Any]]) -> None:
            asking = answer_grammars.Asking(tools=made, calls="must")
            if (grammar := answer_grammars.answer_grammar(self._tokenizer, asking, None, written)) is not None:
                self._grammars.compiled(grammar)

        self._grammars.tokens()  # made before, because forced() takes the time of each check
        found = forced(tools, check)
        with self._lock():
            self._forced[key] = found
            while len(self._forced) > _MOST_FORCED:
                self._forced.popitem(last=False)
        return found

    def not_enforced(self, tools: Any, tool_choice: Any) -> tuple[str, ...]:
        """Returns what chat() with these arguments warns of: the places of the tools' schemas that no grammar can enforce, although a call
        is forced. Raises the errors of chat() for the arguments."""
        if tool_choice in (None, "auto", "none"):
            return ()
        with argument("tools"):
            known = check_tools(tools)
        choice = check_choice(tool_choice, known)
        with argument("tools", GrammarError):
            return self.forced(known, choice).left_out

    def _grammar(
        self,
        question: Question,
        tools: list[dict[str, Any]],
        chat_template: str,
        shape: ResponseTemplate | None,
        opened: str,
        reasons: bool,
        variables: Mapping[str, Any],
    ) -> Grammar | None:
        """Returns the grammar of the answer, or None if any answer is allowed. If tool calls are optional and no grammar can enforce their
        form, the model generates them without a grammar. tools: the tools that may be called."""
        enforced = question.must_call or not question.parallel
        row = response_templates.row_of(chat_template)
        written = answer_grammars.written_of(shape, row)
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
        """Returns the control tokens (id -> text) that occur in the response template's markers. The parser does not need the others, of
        which a vocabulary may have thousands."""
        if calls not in self._known_tokens:
            special = ((i, self._tokenizer.added[i].content) for i in self._tokenizer.special_ids)
            self._known_tokens[calls] = {i: token for i, token in special if shape.hears(token, calls)}
        return self._known_tokens[calls]

    def _check_calls(self, shape: ResponseTemplate | None) -> None:
        """Raises ChatTemplateError if the tool calls of an answer could not be parsed."""
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
        """Returns the end of the prompt that belongs to the answer, if the answer continues the last message. Raises ChatTemplateError if
        the response template would parse the message's text as another kind than it is, for example content as reasoning."""
        *before, last = question.messages
        try:
            if shape.anchor is not None:
                opened = shape.last_part(text)
            else:
                # `text` without the beginning that it shares with the rendered conversation before the last message.
                opened = text[len(os.path.commonprefix([template.render(before, False, **variables), text])) :]
        except ChatTemplateError:  # the template refuses a conversation without the last message
            opened = text
        except ValueError as error:
            raise ChatTemplateError(
                f"the response template, over this prompt: {error}. load(response_template=) takes another one"
            ) from None
        key = question.continued[0]
        found = ResponseParser(shape, prompt=opened, calls=calls).kind
        # The kind of text that should be found at the end of the message. If the chat template has no key for reasoning, the content may
        # contain reasoning between its markers, so the content is parsed to find out whether it ends inside reasoning.
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
        template has no start anchor, the beginning is the text that add_generation_prompt adds to the prompt."""
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
        self,
        messages: list[dict[str, Any]],
        variables: Mapping[str, Any],
        parse_special: bool,
        continued: Sequence[str] = (),
        answered: bool = True,
    ) -> tuple[str, Int32]:
        """Renders a conversation. Returns its text and its token ids. The template itself writes the special tokens. Only the bos token is
        added to the ids, if a GGUF file asks for one and the template does not write it.

        continued: the keys of the last message whose text the answer continues, or an empty sequence.  answered: whether the text ends with
        the beginning of an answer (add_generation_prompt)."""
        control = None if parse_special else self._tokenizer.control
        if continued:
            prompt = self.template().continued(messages, control, continued, **variables)
        else:
            prompt = self.template().prompt(messages, control, add_generation_prompt=answered, **variables)
        if not prompt.text:
            raise ChatTemplateError("the chat template renders nothing for these messages, and a model continues at least one token")
        ids = self._tokenizer.encode_parts(prompt.parts, add_special=False)
        bos = self._tokenizer.chat_bos
        if bos is not None and (not len(ids) or ids[0] != bos):
            ids = np.concatenate([np.array([bos], np.int32), ids])
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
    """Returns whether `opened`, the beginning of the answer that the prompt already contains, ends inside the reasoning."""
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
