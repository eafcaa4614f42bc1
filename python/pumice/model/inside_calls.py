"""Model's calls that look inside: logits, log-probabilities, rows after a layer, what tokens look at."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
import numpy.typing as npt

from ..common.arguments import checked_keywords, choice, integer
from ..errors import ContextLengthError
from ..generate.prompts import Ids, check_ids
from .base import ModelBase, survives_its_device
from .text_calls import text_ids

Int32 = npt.NDArray[np.int32]
Float32 = npt.NDArray[np.float32]

_MOST_ATTENTION = 4096  # tokens


class InsideCalls(ModelBase):
    """Numbers inside of the model: logits, log-probabilities, hidden states, attention."""

    def _some_ids(self, given: str | Ids) -> Int32:
        """The ids of a text (with the special tokens that the model wants around it), or given ids, checked."""
        return text_ids(self._tokenizer, given) if isinstance(given, str) else check_ids(given, self.info["vocab_size"], "ids")

    @checked_keywords()
    @survives_its_device
    def logits(self, ids: str | Ids, positions: Literal["last", "all"] = "last") -> Float32:
        """Logits of the next token: float32 (V,), or (T, V).

        ids: a text, tokenized as a prompt is, or token ids.
        positions: "last": after the last token. "all": after each of T tokens, which takes 4 * T * V bytes.

        Raises ContextLengthError, UnsupportedTaskError, TypeError and ValueError."""
        engine = self._decoder("logits()")
        choice("positions", positions, ("last", "all"))
        return engine.logits(self._generator.prompt_ids([ids], ["ids"])[0], positions == "all")

    @checked_keywords()
    @survives_its_device
    def score(self, text_or_ids: str | Ids) -> Float32:
        """The natural log-probability of each token after the first, given the tokens before it: float32 (T - 1,).

        text_or_ids: a text, tokenized as a prompt is, or token ids. No array of tokens x vocabulary is made.

        Raises ContextLengthError, UnsupportedTaskError, TypeError and ValueError."""
        return self._decoder("score()").score(self._generator.prompt_ids([text_or_ids], ["text_or_ids"])[0])

    @checked_keywords()
    @survives_its_device
    def hidden_states(self, ids: str | Ids, layers: int | Sequence[int] | None = None) -> Float32:
        """The rows of a text inside the model: float32 (layers, T, hidden_size), or (T, hidden_size) for a single layer.

        ids: a text (with the tokens that the model wants around it), or token ids.
        layers: 0: the input of the first layer (embeddings). n: the output of layer n. info["layers"] or -1: the output of the last layer,
            after the final norm where the model has one. None: all, from 0 on, as with output_hidden_states=True of transformers.

        Computed without caches, so attention over T tokens takes memory for T rows of each layer at a time; T is at most info["n_ctx"].
        Raises ContextLengthError for longer texts, ValueError for layers that are not there."""
        count = self.info["layers"]
        if layers is None:
            wanted = list(range(count + 1))
        else:
            wanted = [integer("layers", layer, -count - 1, count) for layer in ([layers] if isinstance(layers, int) else layers)]
        at = np.array([layer % (count + 1) for layer in wanted], np.int32)
        rows = self._layers("hidden_states()").hidden_states(self._some_ids(ids), at)
        return rows[0] if isinstance(layers, int) else rows

    @checked_keywords()
    @survives_its_device
    def attentions(self, ids: str | Ids, layer: int = -1) -> Float32:
        """The attention weights of one layer: float32 (heads, T, T). [h, i, j] is the weight of token j's value in token i's output of head
        h; each row adds up to 1.

        ids: a text (with the special tokens that the model wants around it), or token ids.
        layer: 1 is the first, info["layers"] or -1 the last. Layer n reads hidden_states(layers=n - 1).

        For small texts: the softmax is computed beside the model, from its queries and keys in double, by the model's threads (0.1 s of
        processor time for 512 tokens and 12 heads of 32 columns). The result takes 4 * heads * T * T bytes. At most 4096 tokens. Raises
        ContextLengthError for more."""
        count = self.info["layers"]
        number = integer("layer", layer, -count, count)
        if number == 0:
            raise ValueError(f"layer=0 are the embeddings, which look at nothing; layers are 1 to {count}, or -1 to {-count} from the end")
        text = self._some_ids(ids)
        if len(text) > _MOST_ATTENTION:
            raise ContextLengthError(
                f"attentions() of {len(text)} tokens would take {len(text)} x {len(text)} numbers a head; {_MOST_ATTENTION} are the most"
            )
        return self._layers("attentions()").attentions(text, number - 1 if number > 0 else count + number)
