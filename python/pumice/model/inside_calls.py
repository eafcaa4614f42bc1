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
    """What the model computes on the way to its answers."""

    def _some_ids(self, given: str | Ids) -> Int32:
        """The ids of a text, with the tokens that the model wants around it, or those that were given."""
        return text_ids(self._tokenizer, given) if isinstance(given, str) else check_ids(given, self.info["vocab_size"], "ids")

    @checked_keywords()
    @survives_its_device
    def logits(self, ids: str | Ids, positions: Literal["last", "all"] = "last") -> Float32:
        """The model's raw next-token scores: float32 (V,) after the last token, or (T, V) after each of T tokens."""
        engine = self._decoder("logits()")
        choice("positions", positions, ("last", "all"))
        return engine.logits(self._generator.prompt_ids([ids], ["ids"])[0], positions == "all")

    @checked_keywords()
    @survives_its_device
    def score(self, text_or_ids: str | Ids) -> Float32:
        """The natural log-probability of each token after the first, given those before it: float32 (T-1,)."""
        return self._decoder("score()").score(self._generator.prompt_ids([text_or_ids], ["text_or_ids"])[0])

    @checked_keywords()
    @survives_its_device
    def hidden_states(self, ids: str | Ids, layers: int | Sequence[int] | None = None) -> Float32:
        """The rows of a text inside the model: float32 (layers, T, hidden_size), or (T, hidden_size) for a single layer.

        ids: a text (with the tokens that the model wants around it), or token ids.
        layers: 0 is what the first layer reads (embeddings), n what the n-th layer gives, info["layers"] the last, after the final norm
            where the model has one; -1 is the last, -2 the one before. None: all, from 0 on, as output_hidden_states=True of transformers.

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
        """What each token of a text looks at in one layer: float32 (heads, T, T), where [h, i, j] is how much of token j's value head h of
        token i takes; each row adds up to 1.

        ids: a text (with the tokens that the model wants around it), or token ids.  layer: 1 is the first, info["layers"] or -1 the last
            (attention in layer n reads hidden_states(layers=n - 1)).

        For small texts: the softmax is computed beside the model, from its queries and keys in double, by one thread (about 1 s for 512
        tokens and 12 heads), and the result takes 4 * heads * T * T bytes. At most 4096 tokens. Raises ContextLengthError for more."""
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
