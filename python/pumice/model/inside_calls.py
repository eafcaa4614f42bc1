"""Model's methods that return numbers from inside the model: logits, log-probabilities, perplexity, hidden states, attention weights."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from ..common.arguments import argument, checked_keywords, choice, integer
from ..common.cancels import current_cancel
from ..common.progress import Progress
from ..errors import ContextLengthError
from ..generate.prompts import Ids, check_ids
from .base import ModelBase, survives_its_device
from .perplexity import Comparison, Perplexity, Window, checked_window, compare_windows, measure, read_windows
from .text_calls import text_ids

Int32 = npt.NDArray[np.int32]
Float32 = npt.NDArray[np.float32]

_MOST_ATTENTION = 4096  # maximum number of tokens in attentions()


@dataclass(frozen=True, eq=False)
class Scores:
    """The result of score(top=k): the log-probabilities of a text's tokens, and the k most likely tokens at each position.

    Row i belongs to the token at position i + 1 of the text. The first token has no log-probability, so n is one less than the number of
    tokens.

    ids: int32 (n,), the text's tokens from the second one on.
    logprobs: float32 (n,), the natural log-probability of each of them, given all tokens before it.
    top_ids: int32 (n, k), the k most likely tokens at each position, the most likely first. Equally likely tokens are in the order of their
        ids.
    top_logprobs: float32 (n, k), their natural log-probabilities."""

    ids: Int32
    logprobs: Float32
    top_ids: Int32
    top_logprobs: Float32


class InsideCalls(ModelBase):
    """logits(), score(), perplexity(), compare(), hidden_states() and attentions()."""

    def _some_ids(self, given: str | Ids) -> Int32:
        """Returns the ids of a text, with the model's special tokens around it. If ids are given, checks and returns them."""
        with argument("ids"):
            return text_ids(self._tokenizer, given) if isinstance(given, str) else check_ids(given, self._info["vocab_size"], "ids")

    @checked_keywords()
    @survives_its_device
    def logits(self, ids: str | Ids, positions: Literal["last", "all"] = "last") -> Float32:
        """Returns the logits of the next token, float32 (V,) or (T, V).

        ids: a text, which is tokenized like a prompt, or token ids.
        positions: "last" returns the logits after the last token. "all" returns those after each of the T tokens, which takes 4 * T * V
            bytes.

        Raises ContextLengthError, UnsupportedTaskError, TypeError and ValueError."""
        engine = self._decoder("logits()")
        choice("positions", positions, ("last", "all"))
        with argument("ids", ContextLengthError):
            return engine.logits(self._generator.prompt_ids([ids], ["ids"])[0], positions == "all")

    @checked_keywords()
    @survives_its_device
    def score(self, text_or_ids: str | Ids, *, top: int | None = None) -> Any:
        """Returns the natural log-probability of each token after the first, given the tokens before it, float32 (T - 1,). Needs no memory
        for an array of tokens x vocabulary.

        text_or_ids: a text, which is tokenized like a prompt, or token ids.
        top: if given, the result is a Scores, which also has this many most likely tokens at each position. Its log-probabilities are
            computed like those of generated tokens, and may differ in their last bits from those of a call without `top`.

        Raises ContextLengthError, UnsupportedTaskError, TypeError and ValueError."""
        engine = self._decoder("score()")
        count = None if top is None else integer("top", top, 1, int(engine.info["vocab_size"]))
        with argument("text_or_ids", ContextLengthError):
            ids = self._generator.prompt_ids([text_or_ids], ["text_or_ids"])[0]
            found = engine.score(ids, count, current_cancel())
        return found if count is None else Scores(ids[1:].copy(), *found)

    @checked_keywords()
    @survives_its_device
    def perplexity(self, texts: str | Iterable[str], *, window: int | None = None, progress: Progress = None) -> Perplexity:
        """Returns the perplexity of the model on texts, as llama.cpp's llama-perplexity measures it.

        Each text is tokenized like a prompt and divided into windows. The model computes each window alone, from an empty context on. If
        the model's prompts begin with a bos token, each window begins with one, too, in place of its first token. Only the tokens in the
        second half of a window are scored. The tokens after the last whole window of a text are left out, but a text that is shorter than a
        window is a window.

        texts: one text or several.
        window: tokens of a window, at least 4. None means 512, or the context of the model if that is smaller.
        progress: as in load().

        Raises UnsupportedTaskError, ContextLengthError, NumericError, TypeError and ValueError. If a text causes an error, the error's
        message begins with the position of the text ("texts[3]: ...")."""
        engine = self._decoder("perplexity()")
        with argument("window", ContextLengthError):
            size = checked_window(window, int(self._info["n_ctx"]))
        return measure(engine, self._windows(texts, size), size, progress)

    @checked_keywords()
    @survives_its_device
    def compare(
        self, reference: ModelBase, texts: str | Iterable[str], *, window: int | None = None, progress: Progress = None
    ) -> Comparison:
        """Compares the predictions of this model with those of `reference`, a model with the same vocabulary, on the same texts. Both
        models compute the windows of perplexity(), and the same tokens are scored.

        It returns the perplexity of both models, the Kullback-Leibler divergence from the reference's probabilities, and how often both
        find the same token most likely. No file of logits is written. The logits of one window from each model are in memory: 8 * window *
        vocab_size bytes.

        reference: a loaded Model.
        texts, window, progress: as in perplexity().

        Raises what perplexity() raises, TypeError if `reference` is not a Model, and ValueError if its vocabulary differs."""
        if not isinstance(reference, InsideCalls):
            raise TypeError(f"reference must be a loaded model (pumice.Model), not {type(reference).__name__}")
        engines = self._decoder("compare()"), reference._decoder("compare()")
        with argument("window", ContextLengthError):
            size = checked_window(window, min(int(self._info["n_ctx"]), int(reference._info["n_ctx"])))
        given = texts if isinstance(texts, str) else list(texts)
        windows, other = self._windows(given, size), reference._windows(given, size)
        vocabularies = [model._info["vocab_size"] for model in (self, reference)]
        if vocabularies[0] != vocabularies[1]:
            raise ValueError(f"reference has a vocabulary of {vocabularies[1]} tokens, and this model one of {vocabularies[0]}")
        if len(windows) != len(other) or not all(np.array_equal(a.ids, b.ids) for a, b in zip(windows, other, strict=True)):
            raise ValueError("reference turns the texts into other token ids than this model, so their predictions cannot be compared")
        return compare_windows(*engines, windows, size, progress)

    def _windows(self, texts: Iterable[str], size: int) -> list[Window]:
        with argument("texts"):
            return read_windows(texts, self._tokenizer, size, lambda text, name: self._generator.prompt_ids([text], [name])[0])

    @checked_keywords()
    @survives_its_device
    def hidden_states(self, ids: str | Ids, layers: int | Sequence[int] | None = None) -> Float32:
        """Returns the hidden states of a text, float32 (layers, T, hidden_size), or (T, hidden_size) for a single layer.

        ids: a text, which gets the model's special tokens around it, or token ids.
        layers: one number or several. 0 is the input of the first layer (the embeddings). n is the output of layer n. info["layers"] or -1
            is the output of the last layer, after the final norm if the model has one. None means all, from 0 on, as in transformers with
            output_hidden_states=True.

        No cache is used, so all T tokens are computed at once, and each layer in turn needs memory for T rows. T is at most info["n_ctx"].
        Raises ContextLengthError for longer texts, and ValueError for layers that the model does not have."""
        count = self._info["layers"]
        if layers is None:
            wanted = list(range(count + 1))
        else:
            wanted = [integer("layers", layer, -count - 1, count) for layer in ([layers] if isinstance(layers, int) else layers)]
        at = np.array([layer % (count + 1) for layer in wanted], np.int32)
        with argument("ids", ContextLengthError):
            rows = self._layers("hidden_states()").hidden_states(self._some_ids(ids), at)
        return rows[0] if isinstance(layers, int) else rows

    @checked_keywords()
    @survives_its_device
    def attentions(self, ids: str | Ids, layer: int = -1) -> Float32:
        """Returns the attention weights of one layer, float32 (heads, T, T). [h, i, j] is the weight of token j's value in the output of
        head h for token i. Each row [h, i] adds up to 1.

        ids: a text, which gets the model's special tokens around it, or token ids.
        layer: 1 is the first layer, and info["layers"] or -1 the last. The input of layer n is hidden_states(layers=n - 1).

        This is meant for short texts. The model's threads compute the weights once more, in double, from the queries and keys of the layer
        (0.1 s of processor time for 512 tokens and 12 heads of 32 columns). The result takes 4 * heads * T * T bytes. Raises
        ContextLengthError for more than 4096 tokens."""
        count = self._info["layers"]
        number = integer("layer", layer, -count, count)
        if number == 0:
            raise ValueError(f"layer=0 are the embeddings, which look at nothing; layers are 1 to {count}, or -1 to {-count} from the end")
        text = self._some_ids(ids)
        with argument("ids", ContextLengthError):
            if len(text) > _MOST_ATTENTION:
                raise ContextLengthError(
                    f"attentions() of {len(text)} tokens would take {len(text)} x {len(text)} numbers a head; {_MOST_ATTENTION} are the "
                    f"most"
                )
            return self._layers("attentions()").attentions(text, number - 1 if number > 0 else count + number)
