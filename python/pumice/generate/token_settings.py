"""Checks the settings of generate(), stream() and chat() that contain tokens, a function, or separate settings for each prompt."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ..common.arguments import check_text, did_you_mean, integer, listed, shown

if TYPE_CHECKING:
    from ..tokens.tokenizers import Tokenizer

LogitsProcessor = Callable[[npt.NDArray[np.int32], npt.NDArray[np.float32]], None]
DRY_BREAKERS = ("\n", ":", '"', "*")
MOST_BAD_WORDS = 10_000
# settings that are the same for all prompts of a call
OF_THE_CALL = ("n", "priority", "max_seconds", "chunk_seconds", "speculate", "draft")


def bad_words(given: Any, tokenizer: Tokenizer, vocab_size: int) -> tuple[tuple[int, ...], ...]:
    """Returns the bad_words argument as tuples of ids. A word in the form of text becomes two tuples: its tokens at the beginning of a
    text, and its tokens after a space."""
    if given is None:
        return ()
    if not isinstance(given, (str, list, tuple)):
        raise TypeError(f"bad_words must be a list of strings and of lists of token ids, not {type(given).__name__} {shown(given)}")
    words = [given] if isinstance(given, str) else list(given)
    if len(words) > MOST_BAD_WORDS:
        raise ValueError(f"bad_words holds {len(words)} words; {MOST_BAD_WORDS} are the most")
    rows: dict[tuple[int, ...], None] = {}
    for i, word in enumerate(words):
        name = f"bad_words[{i}]"
        if isinstance(word, str):
            text = check_text(word, name)
            if not text.strip():
                raise ValueError(f"{name} is {shown(word)}: a word has characters that are no blanks")
            for form in (text, " " + text.lstrip()):
                rows[tuple(int(token) for token in tokenizer.encode(form, add_special=False))] = None
        elif isinstance(word, (list, tuple, np.ndarray)):
            rows[tuple(integer(f"a token id in {name}", token, 0, vocab_size - 1) for token in listed(word))] = None
        else:
            raise TypeError(f"{name} is {type(word).__name__} {shown(word)}; it must be a string or a list of token ids")
        if () in rows:
            raise ValueError(f"{name} is {shown(word)}, which has no tokens")
    return tuple(rows)


def dry_breakers(given: Any, tokenizer: Tokenizer, vocab_size: int) -> tuple[int, ...]:
    """Returns the dry_breakers argument as ids. DRY counts no repetition across these tokens. A breaker in the form of text becomes the
    last token of this text, tokenized as it is after other text."""
    if given is None:
        given = DRY_BREAKERS
    if isinstance(given, str) or not isinstance(given, (list, tuple)):
        raise TypeError(f"dry_breakers must be a list of strings and token ids, not {type(given).__name__} {shown(given)}")
    ids = set()
    for i, breaker in enumerate(given):
        name = f"dry_breakers[{i}]"
        if isinstance(breaker, str):
            if not breaker:
                raise ValueError(f"{name} is an empty string")
            ids.add(int(tokenizer.encode("a" + check_text(breaker, name), add_special=False)[-1]))
        else:
            ids.add(integer(name, breaker, 0, vocab_size - 1))
    return tuple(sorted(ids))


def logits_processor(given: Any) -> LogitsProcessor | None:
    """Checks the logits_processor argument. Raises TypeError unless it is a function or None."""
    if given is not None and not callable(given):
        raise TypeError(f"logits_processor must be a function of (ids, row of logits), not {type(given).__name__} {shown(given)}")
    return given  # type: ignore[no-any-return]


def each_prompt(call: Mapping[str, Any], sampling: Any, prompts: int, single: bool, known: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Returns the settings of each prompt. A setting in the prompt's entry of `sampling` has priority over the call's setting."""
    if single:
        raise TypeError("sampling= holds settings for each prompt of a list; this is one prompt: give them as keywords")
    if isinstance(sampling, (str, Mapping)) or not isinstance(sampling, Sequence):
        raise TypeError(f"sampling must be a list with a dict of settings (or None) for each prompt, not {type(sampling).__name__}")
    if len(sampling) != prompts:
        raise ValueError(f"sampling has {len(sampling)} entries for {prompts} prompts; each prompt needs one (None: the call's own)")
    result = []
    for i, own in enumerate(sampling):
        if own is not None and not isinstance(own, Mapping):
            raise TypeError(f"sampling[{i}] must be a dict of settings or None, not {type(own).__name__} {shown(own)}")
        for name in own or ():
            if name in OF_THE_CALL:
                raise ValueError(f"sampling[{i}] has {name!r}, which is the same for all prompts of a call: give it as a keyword")
            if name not in known:
                raise TypeError(f"sampling[{i}] has no setting {shown(name)}{did_you_mean(name, known)}")
        result.append({**call, **(own or {})})
    return result
