"""Grammar rules for arguments as Gemma models write them: JSON with unquoted keys, and with strings between marks
({city:<|"|>Köln<|"|>,days:3})."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..common.arguments import shown
from ..errors import GrammarError
from ..generate.lark import anchored, lark_regex, lark_text, matches_nothing
from ..generate.number_texts import between
from ..generate.schema_rules import SchemaRules, sizes
from ..generate.schemas import pointer

if TYPE_CHECKING:
    from .answer_grammars import AnswerGrammar

_BARE = re.compile(r"[\w.$-]+")  # matches a key of the schema, if the model writes it without quotes
_FREE = re.compile(r"[\w.$/-]+")  # matches a key that is not in the schema; the model always writes such keys without quotes


class BareArguments(SchemaRules):
    """Builds the rules for the arguments of one call. made: the grammar to which the rules are added. mark: the text before and after each
    string."""

    of_kind = {**SchemaRules.of_kind, "string": ("minLength", "maxLength", "pattern")}

    def __init__(self, made: AnswerGrammar, mark: str, name: str, schema: Mapping[str, Any]) -> None:
        super().__init__(made, name, schema)
        self._answer, self._mark = made, mark
        self._texts: dict[tuple[int, int | None], str] = {}
        self._any = ""

    def _refusal(self, path: str, word: str, beside: str) -> GrammarError:
        return GrammarError(
            f"{pointer(path, word)}: the keyword cannot be enforced{f' beside {beside}' if beside else ''} in the arguments "
            f"of this model's calls, which are no plain JSON (bare keys, and texts between marks)"
        )

    def _in_order(self, keys: Sequence[str]) -> list[str]:
        """Returns the keys in alphabetical order without regard to case, as the chat templates of these models write them."""
        return sorted(keys, key=str.lower)

    # ---- fixed values and keys

    def _choice(self, values: Sequence[Any], path: str) -> str:
        texts = [self._free_of_mark(value, path) for value in values if isinstance(value, str) and value]
        found = [self._written(value, path) for value in values if not isinstance(value, str) or not value]
        if texts:
            found.append(self._answer.marked_choice(self._new(), self._mark, texts))
        return self._one_of(found, path)

    def _free_of_mark(self, text: str, path: str) -> str:
        if self._mark in text:
            raise GrammarError(f"{path}: the text {shown(text)} has {self._mark}, which ends this model's texts")
        return text

    def _written_text(self, text: str, path: str) -> str:
        mark = self._answer.spelt(self._mark)
        return f"{mark} {lark_text(self._free_of_mark(text, path))} {mark}" if text else f"{mark} {mark}"

    def _key(self, key: str, path: str) -> str:
        return lark_text(key) if _BARE.fullmatch(key) else self._written_text(key, path)

    # ---- values of a type

    def _text(self, here: Mapping[str, Any], path: str) -> str:
        if "pattern" in here:
            if (pattern := anchored(here["pattern"])) is None or here.keys() & {"minLength", "maxLength"}:
                raise self._refusal(path, "pattern", "")
            mark = self._answer.spelt(self._mark)
            text = self._answer.behind(self._new(), lark_regex(pattern), self._mark, "(?s:.+)")
            return self._rule(f"{mark} ({text} | {mark})" if matches_nothing(pattern) else f"{mark} {text}")
        return self._marked(*sizes(here, "minLength", "maxLength", path))

    def _marked(self, least: int, most: int | None) -> str:
        """Returns a rule for a text of `least` to `most` characters between two marks. The text cannot contain the mark, because the
        response parser would end the text there."""
        if (least, most) not in self._texts:
            self._texts[least, most] = self._rule(self._answer.marked(self._new(), self._mark, least, most))
        return self._texts[least, most]

    def _anything(self) -> str:
        if not self._any:
            name = self._any = self._new()
            pair = self._rule(f"{self._free_key(())} {self.colon} {name}")
            kinds = [self._marked(0, None), f"/{between({}, False, '#')}/", *(self._written(word, "#") for word in (True, False, None))]
            inside = (f'"{{" ({pair} ("," {pair})*)? "}}"', f'"[" ({name} ("," {name})*)? "]"')
            self._made.rule(name, " | ".join([*kinds, *inside]))
        return self._any

    def _free_key(self, others: Sequence[str]) -> str:
        known = "|".join(re.sub(r"([.$/-])", r"\\\1", key) for key in others if _FREE.fullmatch(key))
        but = f" & ~/{known}/" if known else ""
        return self._made.rule(self._new().upper(), rf"/[\p{{L}}_$\/][\p{{L}}\p{{Nd}}_.$\/-]{{0,63}}/{but}")
