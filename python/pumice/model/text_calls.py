"""Model's calls between texts and token ids."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from ..common.arguments import DIRECT_CHARACTERS, check_text, checked_keywords, flag
from ..common.interruptible import interruptible
from ..generate.prompts import Ids, check_ids
from .base import ModelBase

if TYPE_CHECKING:
    import tokenizers

    from ..tokens.tokenizers import Tokenizer

Int32 = npt.NDArray[np.int32]


def text_ids(tokenizer: Tokenizer, text: str, add_special: bool = True) -> Int32:
    """A text's ids: int32 (T,). Ctrl-C is seen while a long one is read."""
    text = check_text(text, "text")
    work = functools.partial(tokenizer.encode, text, add_special=add_special)
    ids = interruptible(work) if len(text) > DIRECT_CHARACTERS else work()
    return np.ascontiguousarray(ids, np.int32)


class TextCalls(ModelBase):
    """Texts to token ids and back. They work on when the model is closed."""

    @checked_keywords()
    def tokenize(self, text: str, add_special: bool = True) -> Int32:
        """Token ids of a text: int32 (T,). add_special: with the tokens that the model wants around it."""
        return text_ids(self._tokenizer, text, flag("add_special", add_special))

    @checked_keywords()
    def detokenize(self, ids: Ids, skip_special: bool = True) -> str:
        """The text of token ids (bytes that make no character become U+FFFD)."""
        array = check_ids(ids, self.info["vocab_size"], "ids")
        skip_special = flag("skip_special", skip_special)
        return str(self._tokenizer.decode(array, skip_special=skip_special)) if array.size else ""

    def count_tokens(self, text: str) -> int:
        """How many tokens a text is, special ones included."""
        return len(text_ids(self._tokenizer, text))

    @property
    def tokenizer(self) -> tokenizers.Tokenizer:
        """A copy of the tokenizers.Tokenizer of this model, always the same one: what is changed in it (padding, truncation, added
        tokens) changes nothing that the model gives. load(tokenizer=) takes a changed one."""
        return self._tokenizer.shared_copy
