"""Prompts with a gap: a model of code gets the text before and after the gap, and writes the text in the middle.

Tokens of the vocabulary mark the two texts. Their spelling and order are what the model was trained with, so each kind of models has a row
in FORMS. A prompt is a list of ids, because a token of a form that a caller's text spells must stay plain text."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .tokenizers import Tokenizer


@dataclass(frozen=True)
class Form:
    """The prompt of one kind of models. Tokens are spelt as in the vocabulary.

    prefix, suffix: the tokens before the two texts. middle: the token after both of them, or None if the middle follows the last text.
    suffix_first: whether the suffix comes before the prefix. also: further tokens by which the kind is known.
    repository: tokens before a repository's name, of which the first in the vocabulary is used. file: likewise, before the path of each
    file. name_line: whether a repository's name is a line of its own. path_inside: whether the path of the file with the gap comes after
    the prefix token, not before it.
    ends: further tokens that end a middle. All tokens of the form do so, too."""

    prefix: str
    suffix: str
    middle: str | None
    suffix_first: bool = False
    also: tuple[str, ...] = ()
    repository: tuple[str, ...] = ()
    file: tuple[str, ...] = ()
    name_line: bool = False
    path_inside: bool = False
    ends: tuple[str, ...] = ()

    @property
    def needed(self) -> tuple[str, ...]:
        """The tokens without which there is no such prompt."""
        return self.prefix, self.suffix, *(() if self.middle is None else (self.middle,))

    @property
    def tokens(self) -> tuple[str, ...]:
        """All tokens that mean something in a prompt of this form, or end its middle."""
        return *self.needed, *self.repository, *self.file, *self.ends


# The kinds of models. The first row counts whose tokens are all in a vocabulary. The spellings are also those of
# https://github.com/ggml-org/llama.cpp/blob/master/src/llama-vocab.cpp (FIM_PRE and so on).
_STAR = ("<fim_prefix>", "<fim_suffix>", "<fim_middle>")
FORMS: tuple[Form, ...] = (
    # Mellum 4B. https://huggingface.co/JetBrains/Mellum-4b-base: the suffix is first. It has StarCoder's tokens, and roles of chats.
    Form(*_STAR, suffix_first=True, also=("<assistant>",), repository=("<reponame>",), file=("<filename>",), ends=("<fim_pad>",)),
    # StarCoder 2. https://arxiv.org/abs/2402.19173, section 5.1: <file_sep><fim_prefix>path\ncode.
    Form(*_STAR, also=("<file_sep>",), repository=("<repo_name>",), file=("<file_sep>",), path_inside=True, ends=("<fim_pad>",)),
    # StarCoder, Granite Code, Granite 3.3, Refact, StableCode, Yi-Coder. https://arxiv.org/abs/2305.06161, https://arxiv.org/abs/2405.04324.
    Form(*_STAR, repository=("<reponame>",), file=("<filename>",), ends=("<fim_pad>",)),
    # SantaCoder. https://arxiv.org/abs/2301.03988.
    Form("<fim-prefix>", "<fim-suffix>", "<fim-middle>", ends=("<fim-pad>",)),
    # Qwen2.5-Coder and later Qwen (https://arxiv.org/abs/2409.12186, figure 4), CodeGemma (https://ai.google.dev/gemma/docs/codegemma),
    # Granite 4.
    Form(
        "<|fim_prefix|>",
        "<|fim_suffix|>",
        "<|fim_middle|>",
        repository=("<|repo_name|>", "<|reponame|>"),
        file=("<|file_sep|>", "<|file_separator|>", "<|filename|>"),
        name_line=True,
        ends=("<|fim_pad|>",),
    ),
    # Code Llama. https://github.com/meta-llama/codellama/blob/main/llama/generation.py: infilling_prompt_tokens().
    Form("\u2581<PRE>", "\u2581<SUF>", "\u2581<MID>", ends=("\u2581<EOT>",)),
    Form("<PRE>", "<SUF>", "<MID>", ends=("<EOT>",)),
    # DeepSeek-Coder and DeepSeek V2, V3. https://github.com/deepseek-ai/DeepSeek-Coder: "Code Insertion".
    Form("<\uff5cfim\u2581begin\uff5c>", "<\uff5cfim\u2581hole\uff5c>", "<\uff5cfim\u2581end\uff5c>"),
    # Codestral and other models of Mistral. https://github.com/mistralai/mistral-common: encode_fim(). The middle follows the prefix.
    Form("[PREFIX]", "[SUFFIX]", None, suffix_first=True, ends=("[MIDDLE]",)),
    # Seed-Coder. https://arxiv.org/abs/2506.03524, section 3.1: the suffix is first.
    Form("<[fim-prefix]>", "<[fim-suffix]>", "<[fim-middle]>", suffix_first=True),
    # GLM-4 and later. https://github.com/zai-org/CodeGeeX4, guides/Infilling_guideline.md: the suffix is first.
    Form("<|code_prefix|>", "<|code_suffix|>", "<|code_middle|>", suffix_first=True),
    # Falcon-H1-Tiny-Coder.
    Form("<|prefix|>", "<|suffix|>", "<|middle|>"),
)
# Role in Tokenizer.special -> the place in Form.needed. GGUF files name the tokens by keys of these roles (gguf_tokenizer.py).
ROLES = ("fim_pre", "fim_suf", "fim_mid")
# The spellings of all tokens that mark a gap. Some vocabularies have them as tokens that are not special (Qwen2.5).
MARKS = frozenset(token for form in FORMS for token in form.needed)


def form_of(id_of: Callable[[str], int | None], named: Mapping[str, str]) -> Form | None:
    """Returns the form of the prompts of a vocabulary, or None if it has no tokens for a gap. id_of: returns the id of a token, or None.
    named: role in ROLES -> spelling of the token that the file names for it."""
    rows = FORMS
    if named.keys() >= {"fim_pre", "fim_suf"}:
        rows = tuple(form for form in FORMS if form.needed[:2] == (named["fim_pre"], named["fim_suf"]))
        rows = (*rows, Form(named["fim_pre"], named["fim_suf"], named.get("fim_mid")))
    return next((form for form in rows if all(id_of(token) is not None for token in (*form.needed, *form.also))), None)


class Gaps:
    """Makes the prompts with a gap of one tokenizer, whose form is `form`. ends: ids of the tokens that end a middle."""

    def __init__(self, tokenizer: Tokenizer, form: Form, end_texts: Iterable[str]) -> None:
        """end_texts: the texts of tokens that end a text in any vocabulary."""
        self.form, self._tokenizer = form, tokenizer
        others = (i for text in end_texts if (i := tokenizer.id(text)) in tokenizer.special_ids)
        own = (i for text in form.tokens if (i := tokenizer.id(text)) is not None)
        self.ends = frozenset(i for i in (*others, *own) if i is not None)
        # SentencePiece puts a space before each text. Models learned suffixes without it: the ids of such a text are those that it has
        # after this character, which is a word of its own. (Code Llama and mistral-common use the same character.)
        self._before = self._plain("\u263a")
        inside = self._plain("\u263aa")[len(self._before) :]
        self._spaced = self._plain("a") != inside

    @property
    def repository(self) -> int | None:
        """The token before a repository's name, or None."""
        return self._first(self.form.repository)

    def ids(
        self,
        prefix: str,
        suffix: str,
        files: Sequence[tuple[str, str]] = (),
        repository: str | None = None,
        path: str | None = None,
        most: int | None = None,
    ) -> list[int]:
        """Returns the ids of a prompt.

        prefix, suffix: the texts before and after the gap. files: (path, text) of other files, of which the most useful is last.
        repository: its name. path: the path of the file with the gap.
        most: maximum number of ids. If there are more, the first files are left out. Then the beginning of the prefix is cut off, and the
        end of the suffix, so that three quarters of the ids are the prefix's. None: nothing is cut."""
        form, file = self.form, self._first(self.form.file)
        heads = list(self._tokenizer.around_ids[0])
        if repository is not None and self.repository is not None:
            heads += [self.repository, *self._inside(repository + "\n" * form.name_line)]
        others = [self._file(name, text, file) for name, text in files]
        opened = [] if file is None or (path is None and not files and repository is None) else [file]
        line = "" if path is None or file is None else f"{path}\n"
        before = self._plain(prefix)
        if line and form.path_inside:
            before, line = self._plain(line + prefix), ""
        opened += self._inside(line)
        after = self._inside(suffix)
        if most is not None:
            room = most - len(heads) - len(opened) - len(form.needed)
            while others and sum(map(len, others)) + len(before) + len(after) > room:
                del others[0]
            if len(before) + len(after) > room:
                kept = max(0, min(len(after), room // 4 if len(before) > room - room // 4 else room - len(before)))
                after = after[:kept]
                before = before[len(before) - max(0, min(len(before), room - kept)) :]
        first, second = [self._id(form.prefix), *before], [self._id(form.suffix), *after]
        if form.suffix_first:
            first, second = second, first
        middle = [] if form.middle is None else [self._id(form.middle)]
        return [*heads, *(i for other in others for i in other), *opened, *first, *second, *middle]

    def _file(self, path: str, text: str, token: int | None) -> list[int]:
        """Returns the ids of another file. In a vocabulary without a token for files, the path is a comment, as in DeepSeek-Coder."""
        return self._inside(f"#{path}\n{text}\n") if token is None else [token, *self._inside(f"{path}\n{text}")]

    def _inside(self, text: str) -> list[int]:
        """Returns the ids of a text that follows other tokens."""
        if not self._spaced or not text:
            return self._plain(text)
        return self._plain("\u263a" + text)[len(self._before) :]

    def _plain(self, text: str) -> list[int]:
        ids: list[int] = self._tokenizer.encode(text, add_special=False, parse_special=False).tolist() if text else []
        return ids

    def _first(self, tokens: Sequence[str]) -> int | None:
        return next((i for token in tokens if (i := self._tokenizer.id(token)) is not None), None)

    def _id(self, token: str) -> int:
        found: Any = self._tokenizer.id(token)
        return int(found)
