"""Builds the grammar that constrains an answer of chat(): free reasoning, followed by what response_format or tool_choice requires.

The rows in response_templates.py describe the models' formats. A Row's field `written` describes how the model writes tool calls, and its
field `template` how these calls are parsed. The schemas of the arguments come from the tools.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from ..common.arguments import shown
from ..common.exits import exit_waits
from ..errors import GrammarError
from ..generate.answers import DECODER
from ..generate.grammar import Grammar
from ..generate.lark import Lark, lark_regex, lark_text
from ..generate.reasoning import Marks
from ..generate.schema_rules import exact
from ..generate.schemas import closed, for_compiler, is_pydantic, places, prepared, schema_of_type, with_types
from .answer_forms import Row, Thought, Written
from .bare_arguments import BareArguments
from .keyword_arguments import KeywordArguments
from .text_arguments import TextArguments
from .tool_schemas import is_strict

if TYPE_CHECKING:
    from ..tokens.tokenizers import Tokenizer
    from .response_parser import ResponseTemplate

_BLANK = re.compile(r"((?<!\w)\s+|\s+(?!\w))")
_PLACE = re.compile(r"%(\w+)%")
# Some models write a space after the commas and colons of JSON, and others do not. Both forms are allowed.
_LOOSE = {"whitespace_flexible": False, "item_separator": ", ?", "key_separator": ": ?"}


# ---- response_format -------------------------------------------------------------------------------------------


def json_of(text: str) -> Any:
    """Parses an answer as JSON and returns the value.

    text: the answer's content.

    Raises a ValueError that refers to .content and quotes its beginning."""
    try:
        return DECODER.decode(text)
    except json.JSONDecodeError as error:
        why = f"is no JSON ({error})"
    except ValueError as error:
        why = f"cannot be read as JSON ({error})"
    except RecursionError:
        why = "cannot be read as JSON (it is nested too deep)"
    raise ValueError(f"the answer {why}: its text is in .content, {shown(text, 80)}")


def _validated(validate: Callable[[str], Any], text: str) -> Any:
    """Parses JSON text with a pydantic validator. json_of() refuses NaN and 1e999 first, because pydantic would accept them."""
    json_of(text)
    with exit_waits:
        return validate(text)


@dataclass(frozen=True)
class Format:
    """A checked response_format: its grammar, and the function that parses an answer's .content into .parsed."""

    grammar: Grammar
    parse: Callable[[str], Any] = json_of


# For each value of "type", the other keys that a response_format dict of this type may have.
_ENTRIES = {"text": (), "json_object": (), "json_schema": ("json_schema",)}


def check_response_format(given: Any) -> Format | None:
    """Checks the response_format argument of chat(). Returns None if it allows any text. Raises TypeError, ValueError or GrammarError if it
    is invalid."""
    if isinstance(given, Mapping) and isinstance(given.get("type"), str) and given["type"] in _ENTRIES:
        _only(given, "response_format", ("type", *_ENTRIES[given["type"]]))
    if given is None or (isinstance(given, Mapping) and given.get("type") == "text"):
        return None
    if isinstance(given, Grammar):
        return Format(given, json_of if given._made_for is None else parser_of(given._made_for))
    if is_pydantic(given):
        return Format(Grammar.json_schema(given), parser_of(given))
    kind = given.get("type") if isinstance(given, Mapping) else None
    if kind == "json_object":
        return Format(Grammar.json_object())
    if kind == "json_schema":
        inner = given.get("json_schema")
        if not isinstance(inner, Mapping) or "schema" not in inner:
            raise ValueError(
                f'response_format has no schema: it is {{"type": "json_schema", "json_schema": {{"name": ..., "schema": ...}}}}, '
                f"not {shown(given)}"
            )
        _only(inner, "response_format['json_schema']", ("name", "description", "schema", "strict"))
        schema, strict = inner["schema"], inner.get("strict")
        if strict is not None and not isinstance(strict, bool):
            raise TypeError(f"response_format['json_schema']['strict'] must be True or False, not {type(strict).__name__} {shown(strict)}")
        ready = with_types(schema_of_type(schema))
        return Format(Grammar.json_schema(closed(ready) if strict or is_pydantic(schema) else ready))
    if isinstance(given, Mapping) and ("properties" in given or "$ref" in given or "anyOf" in given):
        raise ValueError(
            "response_format is a bare JSON schema: write "
            '{"type": "json_schema", "json_schema": {"name": "answer", "schema": SCHEMA}}, or pumice.Grammar.json_schema(SCHEMA)'
        )
    raise (TypeError if not isinstance(given, Mapping) else ValueError)(
        f'response_format is {{"type": "text", "json_object" or "json_schema", ...}}, a pydantic model, a TypeAdapter '
        f"(for other types: pydantic.TypeAdapter(TYPE)) or a pumice.Grammar, not {shown(given)}"
    )


def _only(given: Mapping[str, Any], what: str, known: tuple[str, ...]) -> None:
    """Raises ValueError if `given` has a key that is not in `known`. Otherwise chat() would, for example, ignore a schema beside the type
    "json_object" without an error."""
    for name in given:
        if name not in known:
            where = '; a schema goes into {"type": "json_schema", "json_schema": {"name": ..., "schema": ...}}' if name == "schema" else ""
            raise ValueError(f"{what} has an unknown entry {shown(name)}; it takes {', '.join(map(repr, known))}{where}")


def parser_of(type_: Any) -> Callable[[str], Any]:
    """Returns a function that parses an answer's text with a pydantic model or TypeAdapter. The function can be pickled if the type can."""
    return functools.partial(_validated, type_.model_validate_json if hasattr(type_, "model_validate_json") else type_.validate_json)


# ---- answers ---------------------------------------------------------------------------------------------------


@dataclass
class AnswerGrammar(Lark):
    """Collects the rules of one answer's grammar, in llguidance's dialect of Lark."""

    tokenizer: Tokenizer = field(kw_only=True)

    def __post_init__(self) -> None:
        self._special = {self.tokenizer.added[i].content: i for i in self.tokenizer.special_ids}
        names = sorted(self._special, key=len, reverse=True)
        self._split = re.compile("(" + "|".join(map(re.escape, names)) + ")") if names else None

    def schema(self, name: str, schema: dict[str, Any]) -> str:
        """Adds a rule for JSON that matches a schema. The schema must come from prepared(). Returns the expression by which other rules
        refer to the new rule."""
        if (found := exact(schema, _LOOSE, self, name)) is not None:
            return found
        return self.other(name, json_schema={**for_compiler(schema, _LOOSE), "$comment": json.dumps({"#": "#"})})

    def belongs(self, begin: int, whose: str) -> None:
        """Changes the schemas that were added as others[begin:], so that error messages about them begin with `whose`."""
        for other in self.others[begin:]:
            if "json_schema" in other:
                origins = json.loads(other["json_schema"]["$comment"])
                other["json_schema"]["$comment"] = json.dumps({place: f"{whose}: {origin}" for place, origin in origins.items()})

    def grammar(self, name: str, body: Grammar) -> str:
        """Adds `body` under a name. Returns the expression by which rules refer to it."""
        if body._kind == "llguidance":
            (first, *others) = json.loads(body._source)["grammars"]
            self.others += [{**first, "name": name}, *others]
            return f"@{name}"
        return self.other(name, **_as_lark(body))

    def parts(self, text: str) -> list[tuple[str, int | None]]:
        """Splits a text into pieces of plain text and special tokens. Each special token is paired with its id, and each piece of plain
        text with None."""
        pieces = self._split.split(text) if self._split else [text]
        return [(piece, self._special.get(piece)) for piece in pieces if piece]

    def spelt(self, text: str) -> str:
        """Returns a text as a Lark expression. A run of whitespace in the text matches zero to four spaces or line feeds, unless it lies
        between two words."""
        found = []
        for piece, special in self.parts(text):
            if special is not None:
                found.append(f"<[{special}]>")
            else:
                found += ["BLANKS?" if part.isspace() else lark_text(part) for part in _BLANK.split(piece) if part]
        return " ".join(found)

    def until(self, name: str, text: str) -> str:
        """Adds a rule for any text up to and including the first occurrence of `text`."""
        (first, special), *rest = self.parts(text)
        more = "" if not rest else " " + self.spelt("".join(piece for piece, _ in rest))
        # The text before the special token must not spell this token, because the response parser would take the spelling for the token.
        if special is not None:
            self.rule(f"{name.upper()}_TEXT", f"/(?s:.+)/ & ~/(?s:.*){_lark_regex(first)}(?s:.*)/")
            return self.rule(name, f"{name.upper()}_TEXT? <[{special}]>{more}")
        begin = self.rule(f"{name}_begin", f"/(?s:.*){_lark_regex(first)}/", "[lazy]")
        return self.rule(name, begin + more)

    def marked(self, name: str, mark: str, least: int, most: int | None) -> str:
        """Returns an expression for `mark`, then a text of `least` to `most` characters that does not contain `mark`, then `mark` again."""
        if most == 0:
            return f"{self.spelt(mark)} {self.spelt(mark)}"
        text = self.behind(name, f"(?s:.{{{max(least, 1)},{'' if most is None else most}}})", mark)
        return f"{self.spelt(mark)} {text if least else f'({text} | {self.spelt(mark)})'}"

    def behind(self, name: str, pattern: str, mark: str, also: str = "") -> str:
        """Returns an expression for a text and the `mark` behind it. The text matches the regular expression `pattern`, and also the
        regular expression `also` if it is given. It ends at the first `mark`."""
        (first, special), *rest = self.parts(mark)
        escaped, more = _lark_regex(first), f" {self.spelt(''.join(piece for piece, _ in rest))}" if rest else ""
        text = f"{name.upper()}_TEXT"
        if also:
            also = f" & /{also}{escaped if special is None else ''}/"
        if special is None:
            self.rule(text, f"/{pattern}{escaped}/{also} & ~/(?s:.*){escaped}(?s:.+)/")
            return self.rule(name, text, "[lazy]") + more
        self.rule(text, f"/{pattern}/{also} & ~/(?s:.*){escaped}(?s:.*)/")
        return f"{text} <[{special}]>{more}"

    def marked_choice(self, name: str, mark: str, texts: Sequence[str]) -> str:
        """Returns an expression for one of several texts between two marks. None of the texts may contain the mark. All texts are
        alternatives of one terminal. As rules of their own they could be too many, because a row of llguidance's parser (an Earley item
        set) holds at most 2,000 items."""
        [(_, special), *_] = self.parts(mark)
        behind, end = ("", f" <[{special}]>") if special is not None else (mark, "")
        return f"{self.spelt(mark)} {self.rule(name.upper(), ' | '.join(lark_text(text + behind) for text in texts))}{end}"

    def source(self, start: str) -> str:
        """Returns the grammar as source text for llguidance, including the rules BLANKS and ANY, which all answers share."""
        self.rules += [r"BLANKS: /[ \n]{1,4}/", "ANY: /(?s:.+)/"]
        return super().source(start)


def _lark_regex(text: str) -> str:
    return re.sub(r"([\\^$.|?*+()\[\]{}/])", r"\\\1", text).replace("\n", r"\n")


def _as_lark(grammar: Grammar) -> dict[str, Any]:
    if grammar._kind == "json":
        return {"json_schema": json.loads(grammar._source)}
    if grammar._kind == "regex":
        return {"lark_grammar": f"start: /{lark_regex(grammar._source)}/"}
    return {"lark_grammar": grammar._source}


@dataclass(frozen=True)
class Asking:
    """What an answer must or may contain.

    body: the grammar of the text, or None if any text is allowed.  tools: the tools that may be called.  calls: "must" allows only calls,
    so `body` has no effect. "free" allows text that contains calls or, if `body` is given, either the body or calls.  parallel: whether
    more than one call is allowed.  opened: whether the prompt already contains the marker that opens the reasoning.  thinks: whether the
    model may begin with reasoning."""

    body: Grammar | None = None
    tools: Sequence[Mapping[str, Any]] = ()
    calls: str = "free"
    parallel: bool = True
    opened: bool = False
    thinks: bool = False


def thought_of(shape: ResponseTemplate | None, row: Row | None, chat_template: str) -> Thought | None:
    """Returns the markers around reasoning and content. Returns None if the model does not reason, or if the markers are only known as
    patterns and not as plain texts."""
    if shape is None:
        return None
    found = row.thought if row is not None and row.template is shape.spec else None
    if found is None:
        given: Mapping[str, Any] = next(
            (value for name, value in shape.spec["fields"].items() if name in ("reasoning_content", "reasoning", "thinking")), {}
        )
        first, last = given.get("open"), given.get("close")
        if not isinstance(first, str) or not isinstance(last, str):
            return None
        found = Thought(first, last)
        if row is None or row.template is not shape.spec:  # the response template comes from the model's files or from the caller
            return found
    return found if _is_shown(found, chat_template) or found.text else None


def _is_shown(thought: Thought, chat_template: str) -> bool:
    return any(text in chat_template for text in ([thought.shown] if thought.shown else [thought.open, thought.close]))


def marks_of(shape: ResponseTemplate | None, row: Row | None, chat_template: str) -> Marks | None:
    """Returns the texts around reasoning, for max_reasoning_tokens. Returns None if the model does not reason, or if these texts are only
    known as patterns."""
    thought = thought_of(shape, row, chat_template)
    of_row = shape is not None and row is not None and row.template is shape.spec
    if thought is None or (of_row and not _is_shown(thought, chat_template)):
        return None
    written = written_of(shape, row)
    call = "" if isinstance(written, str) else _begin_beside(written, thought)
    return Marks(thought.open, thought.close, (thought.text, thought.aside), call, once=not thought.aside)


def _begin(written: Written) -> str:
    """Returns the first word that a model writes when it begins to call tools."""
    return (written.before or written.call).partition("%")[0].split()[0]


def _begin_beside(written: Written, thought: Thought) -> str:
    """Returns the first text of a call with which no reasoning, content or aside begins."""
    others = [text.lstrip() for text in (thought.open, thought.text, thought.aside)]
    first, *more = _PLACE.split(written.before or written.call)[::2]
    found = (_begin(written), first, *(text.split()[0] for text in more if text.split()))
    return next((begin for begin in found if not any(text.startswith(begin.lstrip()) for text in others)), found[0])


def written_of(shape: ResponseTemplate | None, row: Row | None) -> Written | str:
    """Returns how the model writes tool calls, or a sentence that says why no grammar can enforce them."""
    if shape is None or not shape.calls:
        return "its chat template shows none of the known ways to call tools"
    if row is not None and row.template is shape.spec:
        return row.written
    given = shape.spec["fields"]["tool_calls"]
    marks = given.get("open"), given.get("close")
    if all(isinstance(mark, str) for mark in marks) and given.get("content") == "json" and not given.get("transform"):
        return Written(f"{marks[0]}%call%{marks[1]}", between="\n")
    return "its response template has patterns, and says no other way how calls are written"


def answer_grammar(tokenizer: Tokenizer, asking: Asking, thought: Thought | None, written: Written | str) -> Grammar | None:
    """Returns the grammar of an answer, or None if any answer is allowed. Raises GrammarError if no grammar can enforce what `asking`
    requires."""
    if asking.body is None and not asking.tools:
        return None
    plain_body = asking.body is not None and not asking.tools
    thinks = thought is not None and (asking.opened or asking.thinks)
    if plain_body and not thinks and not (thought is not None and (thought.text or thought.end)):
        return asking.body
    made = AnswerGrammar(tokenizer=tokenizer)
    lead = ""
    if thinks and thought is not None:
        close = made.until("thinking", thought.close)
        if asking.opened:
            lead = f"{close} BLANKS? "
        elif thought.aside:
            lead = f"(({made.spelt(thought.open)} | {made.spelt(thought.aside)}) {close})* "
        else:
            lead = f"({made.spelt(thought.open)} {close} BLANKS?)? "
    said = ""
    if asking.body is not None and asking.calls != "must":
        before, behind = (made.spelt(thought.text), made.spelt(thought.end)) if thought is not None else ("", "")
        said = f"{before} {made.grammar('body', asking.body)} {behind}".strip()
    if not asking.tools:
        return Grammar._make("response_format", "llguidance", made.source(lead + said))
    if isinstance(written, str):
        raise GrammarError(f'tool calls of this model cannot be enforced: {written}. tool_choice="auto" goes without a grammar')
    if asking.calls == "free" and asking.body is None:
        if written.alone and thought is not None:
            said = f"{made.spelt(thought.text)} ANY?"
        elif written.first:
            text = rf"/[ \n]*[^ \n{_lark_regex(_begin(written)[0])}](?s:.*)/"
            said = f"{made.rule('SAID', text)}?"
        else:
            return Grammar._make("tool_choice", "llguidance", made.source(lead + _free(made, written, asking)))
    called = _calls(made, written, replace(asking, calls="must"), "")
    if asking.calls == "must":
        return Grammar._make("tool_choice", "llguidance", made.source(lead + called))
    return Grammar._make("tool_choice", "llguidance", made.source(f"{lead}({called} | {said})"))


def _calls(made: AnswerGrammar, written: Written, asking: Asking, skipped: str) -> str:
    """Adds a rule for one or more consecutive calls, and returns an expression for them. skipped: the beginning of the first call, which
    the rule leaves out because an earlier rule has already matched it."""
    # True if the rule matches only one call, because a call is the whole answer or because _free() repeats the rule.
    alone = written.alone or (asking.calls == "free" and not written.before)
    listed = "%calls%" in written.call
    first = "" if listed or written.before else skipped
    names = [made.rule(f"call_{i}", _without(_call(made, written, i, tool), first)) for i, tool in enumerate(asking.tools)]
    one = made.rule("call", " | ".join(names))
    if listed:
        begin, _, end = written.call.partition("%calls%")
        more = f' ("," BLANKS? {one})*' if asking.parallel else ""
        many = f'{made.spelt(begin)} "[" BLANKS? {one}{more} BLANKS? "]" {made.spelt(end)}'
    else:
        many = f"{one} ({made.spelt(written.between)} {one})*" if asking.parallel and not alone else one
    return made.rule(
        "calls", _without(f"{made.spelt(written.before)} {many} {made.spelt(written.after)}".strip(), "" if first else skipped)
    )


def _without(body: str, first: str) -> str:
    return body.removeprefix(lark_text(first)).lstrip() if first else body


def _call(made: AnswerGrammar, written: Written, index: int, tool: Mapping[str, Any]) -> str:
    function = tool["function"]
    text = written.call
    if "%call%" in text or "%calls%" in text:
        name, arguments = written.keys
        one = f'{{ "{name}": "%json_name%", "{arguments}": %arguments% }}'
        text = one if "%calls%" in text else text.replace("%call%", one)
    found, begin = [], len(made.others)
    for i, part in enumerate(_PLACE.split(text)):
        if i % 2 == 0:
            found.append(made.spelt(part))
        elif part == "name":
            found.append(lark_text(function["name"]))
        elif part == "json_name":
            found.append(lark_text(json.dumps(function["name"], ensure_ascii=False)[1:-1]))
        elif part == "index":
            found.append("/[0-9]{1,3}/")
        elif part == "bare":
            with _of_tool(function["name"]):
                found.append(BareArguments(made, written.mark, f"bare_{index}", arguments_schema(tool)).whole())
        elif part == "arguments":
            with _of_tool(function["name"]):
                found.append(made.schema(f"arguments_{index}", arguments_schema(tool)))
        elif part == "keywords":
            with _of_tool(function["name"]):
                found.append(_parameters(KeywordArguments(made, f"value_{index}", arguments_schema(tool), _LOOSE), tool))
        else:
            with _of_tool(function["name"]):
                found.append(_parameters(TextArguments(made, written.parameter, f"value_{index}", arguments_schema(tool), _LOOSE), tool))
    made.belongs(begin, whose(function["name"]))
    return " ".join(part for part in found if part)


@contextmanager
def _of_tool(name: str) -> Iterator[None]:
    try:
        yield
    except GrammarError as error:
        raise GrammarError(f"{whose(name)}: {error}") from None


def whose(name: str) -> str:
    """Returns the words with which messages name the schema of a tool."""
    return f"the parameters of the tool {shown(name)}"


def arguments_schema(tool: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the schema of a call's arguments. If the function is not strict, the schema allows any object."""
    function = tool["function"]
    if not is_strict(function):
        return {"type": "object"}
    schema, _ = prepared(closed(with_types(schema_of_type(function.get("parameters") or {}))))
    for _, here in list(places(schema)):
        # Replaces "nullable" by an anyOf with null. "nullable" is a keyword of OpenAPI and not of JSON Schema. pumice itself uses it in the
        # schemas that it makes from Python functions.
        if here.get("nullable") is True and here.keys() & {"type", "anyOf"}:
            inner = {key: value for key, value in here.items() if key != "nullable"}
            here.clear()
            here["anyOf"] = [inner, {"type": "null"}]
    return {"type": "object", **schema}


def _parameters(arguments: TextArguments | KeywordArguments, tool: Mapping[str, Any]) -> str:
    """Returns an expression for arguments that the model writes one by one, each with its key."""
    function = tool["function"]
    if is_strict(function):
        return arguments.strict()
    return arguments.free(list((function.get("parameters") or {}).get("properties") or {}))


def _free(made: AnswerGrammar, written: Written, asking: Asking) -> str:
    """Returns an expression for text that may contain calls. After the first word of a call, the model must complete the call. If only one
    call is allowed, the first word of a call cannot come again."""
    (first, special), *_ = made.parts(_begin(written))
    heard = sorted(i for i in made.tokenizer.special_ids if i != special and i not in made.tokenizer.eos_ids)
    text = f"(ANY | <[{','.join(map(str, heard))}]>)*" if heard else "ANY?"
    if special is not None:
        called = _calls(made, written, asking, "")
        return f"({text} {called}){'*' if asking.parallel else '?'} {text}"
    made.rule("trigger", f"/(?s:.*){_lark_regex(first)}/", "[lazy]")
    called = f"trigger {_calls(made, written, asking, first)}"
    if asking.parallel:
        return f"({called})* ANY?"
    made.rule("REST", f"/(?s:.+)/ & ~/(?s:.*){_lark_regex(first)}(?s:.*)/")
    return f"({called} REST? | ANY?)"
