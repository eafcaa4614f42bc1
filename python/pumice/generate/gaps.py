"""Checks the texts of a call that fills a gap: those before and after it, and those of other files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ..common.arguments import check_text, listed, shown
from ..errors import UnsupportedTaskError
from ..tokens.fill_in_middle import FORMS, ROLES
from .settings import Sampling

if TYPE_CHECKING:
    from ..tokens.fill_in_middle import Gaps
    from ..tokens.tokenizers import Tokenizer

Int32 = npt.NDArray[np.int32]
Files = Mapping[str, str] | Sequence[tuple[str, str]]


class WithGap(Sampling, total=False):
    """The keyword arguments of agenerate() and astream(): those of generate() and stream()."""

    prefix: str | Sequence[str] | None
    suffix: str | Sequence[str] | None
    files: Files | None
    repository: str | None
    path: str | None
    sampling: Sequence[Mapping[str, Any] | None] | None


def gaps_of(tokenizer: Tokenizer, model: str) -> Gaps:
    """Returns the object that makes prompts with a gap. Raises UnsupportedTaskError that names what was looked for. model: its name."""
    if tokenizer.gaps is None:
        texts = ", ".join(dict.fromkeys(token for form in FORMS for token in form.needed[:1]))
        keys = ", ".join(f"tokenizer.ggml.{role}_token_id" for role in ROLES)
        raise UnsupportedTaskError(
            f"suffix= needs a model whose vocabulary has tokens that mark a gap, and {model} has none. Looked for: {texts} and the tokens "
            f"that belong to each; in GGUF files also {keys}. Models of code have them (Qwen2.5-Coder, StarCoder2, Codestral, ...); with "
            "other models, chat() can be asked for the text"
        )
    return tokenizer.gaps


@dataclass(frozen=True)
class Surroundings:
    """The checked texts around one gap, or around several gaps of one repository.

    pairs: (prefix, suffix) of each gap. single: whether the call gave one gap, not a list. The others are as in Gaps.ids()."""

    pairs: tuple[tuple[str, str], ...]
    single: bool
    files: tuple[tuple[str, str], ...] = ()
    repository: str | None = None
    path: str | None = None

    @classmethod
    def of(cls, prefix: Any, suffix: Any, files: Any = None, repository: Any = None, path: Any = None) -> Surroundings | None:
        """Returns the texts of a call, or None if it gave none of them."""
        if prefix is None and suffix is None:
            for name, value in (("files", files), ("repository", repository), ("path", path)):
                if value is not None:
                    raise TypeError(f"{name} belongs to a text with a gap: give prefix and suffix, too")
            return None
        before, after = _texts("prefix", prefix), _texts("suffix", suffix)
        count = max(1 if isinstance(each, str) else len(each) for each in (before, after))
        if not isinstance(before, str) and not isinstance(after, str) and len(before) != len(after):
            raise ValueError(f"suffix has {len(after)} texts and prefix {len(before)}; each gap needs one of both (one text is for all)")
        if [] in (before, after):
            count = 0
        each = [[text] * count if isinstance(text, str) else text for text in (before, after)]
        given = {name: None if value is None else check_text(value, name) for name, value in (("repository", repository), ("path", path))}
        single = isinstance(before, str) and isinstance(after, str)
        return cls(tuple(zip(*each, strict=True)), single, _files(files), **given)

    @property
    def characters(self) -> int:
        """The number of characters of all texts."""
        return sum(len(a) + len(b) for a, b in (*self.pairs, *self.files * len(self.pairs)))

    def ids(self, gaps: Gaps, vocab_size: int) -> list[Int32]:
        """Returns the prompt of each gap. Raises ValueError if the model has no token for a repository's name."""
        if self.repository is not None and gaps.repository is None:
            raise ValueError("repository was given, but the vocabulary of this model has no token for the name of a repository")
        found = [np.array(gaps.ids(*pair, self.files, self.repository, self.path), np.int32) for pair in self.pairs]
        for ids in found:
            if (ids >= vocab_size).any():
                raise ValueError(f"suffix: the vocabulary has the token {int(ids.max())}, but the model only {vocab_size} rows")
        return found


def _texts(name: str, given: Any) -> str | list[str]:
    if given is None:
        return ""
    if isinstance(given, str):
        return check_text(given, name)
    if not isinstance(given, Sequence) or isinstance(given, (bytes, bytearray, memoryview)):
        raise TypeError(f"{name} must be a string or a list of strings, not {type(given).__name__} {shown(given)}")
    return [check_text(text, f"{name} {i}") for i, text in enumerate(listed(given))]


def _files(given: Any) -> tuple[tuple[str, str], ...]:
    if given is None:
        return ()
    if not isinstance(given, (Mapping, list, tuple)):
        raise TypeError(f"files must be a dict from path to text, or a list of (path, text), not {type(given).__name__} {shown(given)}")
    found = []
    for i, each in enumerate(given.items() if isinstance(given, Mapping) else given):
        if not isinstance(each, (tuple, list)) or len(each) != 2:
            raise TypeError(f"files[{i}] must be (path, text), not {type(each).__name__} {shown(each)}")
        found.append((check_text(each[0], f"files[{i}]: its path"), check_text(each[1], f"files[{i}]: its text")))
    return tuple(found)
