"""The calls of Model between texts and token ids."""

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
    """Returns the ids of a text, int32 (T,). Ctrl-C can interrupt the tokenizing of a long text."""
    text = check_text(text, "text")
    work = functools.partial(tokenizer.encode, text, add_special=add_special)
    ids = interruptible(work) if len(text) > DIRECT_CHARACTERS else work()
    return np.ascontiguousarray(ids, np.int32)


class TextCalls(ModelBase):
    """Texts to token ids and back. These calls work on a closed model too."""

    @checked_keywords()
    def tokenize(self, text: str, add_special: bool = True) -> Int32:
        """The token ids of a text, int32 (T,). add_special: with the special tokens that the model wants around a text. Raises TypeError
        and ValueError for what is no text."""
        return text_ids(self._tokenizer, text, flag("add_special", add_special))

    @checked_keywords()
    def detokenize(self, ids: Ids, skip_special: bool = True) -> str:
        """The text of token ids; bytes that make no character become U+FFFD. skip_special: without special tokens. Raises ValueError for
        ids that the model does not have."""
        array = check_ids(ids, self.info["vocab_size"], "ids")
        skip_special = flag("skip_special", skip_special)
        return str(self._tokenizer.decode(array, skip_special=skip_special)) if array.size else ""

    def count_tokens(self, text: str) -> int:
        """The number of tokens of a text, special ones included."""
        return len(text_ids(self._tokenizer, text))

    @property
    def tokenizer(self) -> tokenizers.Tokenizer:
        """A copy of the tokenizers.Tokenizer of this model, always the same one: what is changed in it (padding, truncation, added
        tokens) changes nothing that the model gives. load(tokenizer=) takes a changed one."""
        return self._tokenizer.shared_copy
