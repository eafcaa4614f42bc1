"""Checks the prompts of a call. A prompt is a text or a sequence of token ids, and a call has one or more prompts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ..common.arguments import as_array, check_length, check_text, is_masked, listed, shown

if TYPE_CHECKING:
    from ..tokens.tokenizers import Tokenizer

Int32 = npt.NDArray[np.int32]
Ids = Sequence[int] | npt.NDArray[np.integer[Any]]
Prompt = str | Ids

BYTES = (bytes, bytearray, memoryview)


def check_ids(given: Any, vocab_size: int, name: str, needed: str = "a row of token ids") -> Int32:
    """Returns ids as int32. Raises TypeError and ValueError for values that are not ids of the vocabulary."""
    if is_masked(given):
        raise TypeError(f"{name} is a masked array, and masked ids are none; .compressed() leaves them out, .filled(id) gives them a value")
    check_length(given, name)
    try:
        array = as_array(None if isinstance(given, BYTES) else given, name)
    except ValueError:  # the rows have different lengths
        array = np.asarray(None)
    if array.dtype == object and array.ndim == 1 and all(isinstance(i, int) for i in given):  # some ids do not fit into 64 bits
        array = np.array([i if 0 <= i < vocab_size else -1 for i in given], np.int64)
    if array.ndim != 1 or (array.dtype.kind not in "iu" and array.size):
        found = f"an array of {array.dtype} with shape {array.shape}" if isinstance(given, np.ndarray) else type(given).__name__
        raise TypeError(f"{name} must be {needed}, not {found}{'' if isinstance(given, np.ndarray) else ' ' + shown(given)}")
    if not array.size:  # without ids any dtype is accepted, because numpy makes float64 of []
        return np.zeros(0, np.int32)
    # booleans are refused here, because numpy would convert them to the ids 1 and 0
    if isinstance(given, Sequence) or (isinstance(given, np.ndarray) and given.dtype == object):
        boolean = next((i for i, token in enumerate(given) if isinstance(token, (bool, np.bool_))), None)
        if boolean is not None:
            raise TypeError(f"{name}: token {boolean} is a boolean, not an id")
    wrong = np.flatnonzero((array < 0) | (array >= vocab_size))
    if wrong.size:
        i = int(wrong[0])
        raise ValueError(f"{name}: token {i} is {shown(int(given[i]))}; ids of this model are 0 to {vocab_size - 1}")
    return np.ascontiguousarray(array, np.int32)


def prompt_ids(prompt: Any, tokenizer: Tokenizer, vocab_size: int, *, name: str = "prompt", add_special: bool = True) -> Int32:
    """Returns a prompt as int32 ids. A str is tokenized. Ids are checked.

    If the str itself begins with the text of the bos token, no second bos token is added."""
    if isinstance(prompt, str):
        ids = np.ascontiguousarray(tokenizer.encode(check_text(prompt, name), add_special=add_special), np.int32)
        if add_special and len(ids) > 1 and ids[0] == ids[1] == tokenizer.bos_id:
            ids = ids[1:]
    else:
        ids = check_ids(prompt, vocab_size, name, "a string or a row of token ids")
    if not ids.size:
        raise ValueError(f"{name} has no tokens, and a model continues at least one")
    return ids


def prompt_list(prompt: Any) -> tuple[list[Any], bool]:
    """Returns the prompts in an argument, and whether the argument is a single prompt (a str, or one sequence of ids)."""
    if isinstance(prompt, str):
        return [prompt], True
    if isinstance(prompt, np.ndarray):
        if prompt.ndim == 0:
            return [prompt.item()], True
        if prompt.ndim == 1 and prompt.dtype.kind != "O":
            return (prompt.tolist(), False) if prompt.dtype.kind in "UT" else ([prompt], True)
        return list(prompt), False
    if isinstance(prompt, (*BYTES, Mapping)) or not isinstance(prompt, Sequence):
        raise TypeError(f"prompt must be a string, token ids, or a list of either, not {type(prompt).__name__}")
    prompts = listed(prompt)
    if prompts and all(
        not isinstance(p, (str, Sequence, Mapping, *BYTES, np.ndarray)) or (isinstance(p, np.ndarray) and p.ndim == 0) for p in prompts
    ):
        return [prompts], True
    return prompts, False
