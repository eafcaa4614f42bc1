"""The arguments speculate= and draft= of generate(). With them, the next tokens are guessed, so that one step can check several tokens.
Guesses do not change the generated tokens."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from .. import _core
from ..common.arguments import integer, shown, shown_path

if TYPE_CHECKING:
    from .base import ModelBase

# Default number of ids that must match in a lookup. A lookup finds where the last MATCHING ids occurred earlier, and guesses the ids that
# followed them there.
MATCHING = 3


def speculation(model: ModelBase, call: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the fields of GenerateParams for guesses, name -> value. Raises TypeError or ValueError. The message names speculate= or
    draft=."""
    how, draft = call.get("speculate"), call.get("draft")
    result: dict[str, Any] = {}
    if isinstance(how, Mapping):
        for key, value in how.items():
            if key not in ("lookup", "guesses", "mtp"):
                raise ValueError(f"speculate has an unknown entry {shown(key)}; there are 'lookup', 'mtp' and 'guesses'")
            if key == "mtp":
                if not isinstance(value, bool):
                    raise TypeError(f"speculate['mtp'] must be True or False, not {shown(value)}")
                result[key] = "on" if value else "off"
                continue
            setattr(_core.GenerateParams(), key, value)  # has no effect, but raises the engine's error if the value is wrong
            result[key] = integer(f"speculate[{shown(key)}]", value, 1)  # not 0, because 0 would turn lookups off
    elif how == "lookup":
        result["lookup"] = MATCHING
    elif how == "mtp":
        result["mtp"] = "on"
    elif how is not None and how != "off":
        raise (ValueError if isinstance(how, str) else TypeError)(
            f'speculate must be "lookup", "mtp", "off", or a dict with "lookup" (tokens that match), "mtp" (True or False) and "guesses" '
            f"(of a step), not {shown(how)}"
        )
    if how == "off":
        result["foreseen"], result["mtp"] = False, "off"
    own = result.get("mtp") == "on"
    if draft is None:
        if "guesses" in result and "lookup" not in result and not own:
            raise ValueError(
                'speculate={"guesses": ...} says how many, and not where guesses come from: add "lookup" or "mtp", or pass draft='
            )
        return result
    if own:
        raise ValueError('draft= and speculate="mtp" were both given, and a step takes guesses of one of them')
    if how == "off":
        raise ValueError('draft= and speculate="off" were both given')
    _check_draft(model, draft)
    return result | {"draft": draft._decoder("draft=")}


def _check_draft(model: ModelBase, draft: Any) -> None:
    if not isinstance(draft, type(model)):
        raise TypeError(f"draft must be a pumice.Model, not {type(draft).__name__}")
    if draft is model:
        raise ValueError("draft= is the model itself; guesses come from a smaller one with the same tokenizer")
    draft._decoder("draft=")
    if draft in model._drafts:
        return
    mine, its = (m._tokenizer.shared_copy.get_vocab(with_added_tokens=True) for m in (model, draft))
    if mine != its:
        differ = sum(its.get(token) != number for token, number in mine.items())
        raise ValueError(
            f"draft= {shown_path(draft.path.name)} has another tokenizer than {shown_path(model.path.name)}: {differ} of {len(mine)} "
            f"tokens have no or another id there. Guesses are token ids, so both must have the same vocabulary"
        )
    model._drafts.add(draft)
