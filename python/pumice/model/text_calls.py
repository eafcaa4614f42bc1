"""Model's methods that convert texts to token ids, and token ids to texts."""

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
    """Returns the token ids of a text, int32 (T,). Ctrl-C can interrupt the call if the text is long."""
    text = check_text(text, "text")
    work = functools.partial(tokenizer.encode, text, add_special=add_special)
    ids = interruptible(work) if len(text) > DIRECT_CHARACTERS else work()
    return np.ascontiguousarray(ids, np.int32)


class TextCalls(ModelBase):
    """tokenize(), detokenize(), token_bytes(), count_tokens() and the tokenizer itself. They also work on a closed model."""

    @checked_keywords()
    def tokenize(self, text: str, add_special: bool = True) -> Int32:
        """Returns the token ids of a text, int32 (T,).

        text: a string.
        add_special: whether to add the special tokens that the model needs around a text.

        Raises TypeError or ValueError if `text` is not a valid string."""
        return text_ids(self._tokenizer, text, flag("add_special", add_special))

    @checked_keywords()
    def detokenize(self, ids: Ids, skip_special: bool = True) -> str:
        """Returns the text of token ids. Bytes that do not form a character become U+FFFD.

        ids: a sequence of token ids, or an array of integers (T,).
        skip_special: whether to leave special tokens out.

        Raises TypeError, and ValueError for ids that the model does not have."""
        array = check_ids(ids, self._info["vocab_size"], "ids")
        skip_special = flag("skip_special", skip_special)
        return str(self._tokenizer.decode(array, skip_special=skip_special)) if array.size else ""

    @checked_keywords()
    def token_bytes(self, ids: Ids) -> list[bytes]:
        """Returns the bytes of each token. Joined, the bytes of a text's ids are the text in UTF-8, also if a character is split over
        several tokens.

        ids: a sequence of token ids, or an array of integers (T,).

        The bytes are those that the token has after another token. If a tokenizer puts a space before a text, the bytes therefore include
        this space. The bytes of a control token are its text. An id without a token has those of U+FFFD. A WordPiece tokenizer does not
        keep spaces: a token that begins a word gets one space, and the bytes of ids are not exactly the text. Raises TypeError or
        ValueError for ids that the model does not have."""
        return [self._tokenizer.token_bytes(i) for i in check_ids(ids, self._info["vocab_size"], "ids").tolist()]

    @checked_keywords()
    def count_tokens(self, text: str) -> int:
        """Returns the number of tokens of a text, special tokens included.

        text: a string.

        Raises TypeError or ValueError if `text` is not a valid string."""
        return len(text_ids(self._tokenizer, text))

    @property
    def tokenizer(self) -> tokenizers.Tokenizer:
        """A copy of this model's tokenizers.Tokenizer, the same object at every access. Changes to the copy (padding, truncation, added
        tokens) have no effect on the model. To use a changed tokenizer, pass it to load(tokenizer=)."""
        return self._tokenizer.shared_copy
