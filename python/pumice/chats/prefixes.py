"""Model.save_prefix() and load_prefix(): prompts whose keys and values are kept in files."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ..common.arguments import plain, shown, shown_path, warn
from ..common.interruptible import interruptible
from ..errors import FallbackWarning
from ..generate.prompts import prompt_list
from .chat import check_question

if TYPE_CHECKING:
    from ..model.chat_calls import ChatCalls

Int32 = npt.NDArray[np.int32]


def path_of(given: Any) -> str:
    if not isinstance(given, (str, os.PathLike)):
        raise TypeError(f"path must be a string or a path, not {type(given).__name__}")
    path = plain(os.fsdecode(given))
    if "\0" in path:
        raise ValueError(f"path is {shown(path)}: no file's name holds a NUL character")
    return path


def is_conversation(given: Any) -> bool:
    return isinstance(given, Sequence) and not isinstance(given, (str, bytes)) and len(given) > 0 and isinstance(given[0], Mapping)


def save(model: ChatCalls, path: Any, given: Any, tools: Any, template_kwargs: Any) -> Int32:
    """The ids whose keys and values are in the file now."""
    target = path_of(path)
    if is_conversation(given):
        question = check_question(given, tools, None, True, template_kwargs, False)
        ids = interruptible(lambda: model._chats.asked(question)).ids
    elif tools is not None or template_kwargs is not None:
        raise TypeError("tools and template_kwargs belong to a conversation: give a list of messages, each a dict")
    else:
        prompts, single = prompt_list(given)
        if not single:
            raise TypeError("prompt must be one string, one row of token ids or one list of messages: a file holds one prefix")
        ids = model._prompt_ids(prompts, ["prompt"])[0]
    model._layers("save_prefix()").save_prefix(target, ids)
    return ids


def load(model: ChatCalls, path: Any) -> Int32:
    source = path_of(path)
    ids, recomputed = model._layers("load_prefix()").load_prefix(source)
    if recomputed:
        warn(
            FallbackWarning,
            f"{shown_path(source)}: its {len(ids)} tokens were computed again, because {recomputed}. save_prefix() makes a file that "
            f"loads as it is",
        )
    return ids
