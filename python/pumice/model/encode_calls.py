"""The calls of Model from texts to vectors and scores."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from .. import _core
from ..common.arguments import check_text, checked_keywords, choice, integer, listed
from ..encode import vectors
from ..encode.encoding import ENCODE_DEFAULTS, EncodeKeywords, EncodeOptions, Prediction, Prepared, RankHit
from ..encode.rows import Precision
from ..encode.windows import items_of
from ..errors import UnsupportedTaskError
from .base import ModelBase, survives_its_device

if TYPE_CHECKING:
    from typing_extensions import Unpack

Float32 = npt.NDArray[np.float32]


class EncodeCalls(ModelBase):
    """Texts to vectors and scores."""

    @checked_keywords(ENCODE_DEFAULTS)
    def encode(self, inputs: str | Iterable[str], **options: Unpack[EncodeKeywords]) -> Any:
        """Vectors of texts: float32 (d,) for one string, (n, d) C-contiguous for an iterable of n, in its order.

        inputs: a string, or any iterable of strings (list, generator, numpy array, pandas Series, Arrow array). A million texts need
            memory for their vectors and one window of 4096 texts.
        prompt, prompt_name: text put before each text, or the name of one of the model's prompts.
        batch_size: texts of the greatest length that a micro-batch may hold; token_budget: the same in tokens. They change speed and
            memory, never the result (on a GPU its last bits may differ).
        normalize: to length 1; None: as the model's files say.  truncate_dim: the first columns only (cut, then normalised).
        precision: "float32", "int8", "uint8" (255 steps of each column's range), "binary", "ubinary" (signs, packed).
        precision_ranges: (2, d): the lowest and highest value of each column for int8 and uint8; None: those of this call.
        output: "sentence"; "tokens": the vector of every token, a list of (tokens, d); "both": a pair of the two (texts run twice).
        truncate: True cuts texts over the model's length and warns with numbers; "error" raises ContextLengthError.
        show_progress_bar: True, False, or None: when the logger "pumice" is at INFO.
        out: a float32 array (also a memmap) of the result's shape to fill and return.

        Raises TypeError or ValueError naming the argument or the text, UnsupportedTaskError. KeyboardInterrupt carries the rows
        done so far as .partial.
        """
        return self._encode(inputs, EncodeOptions(**options))

    @survives_its_device
    def _encode(
        self,
        inputs: Any,
        options: EncodeOptions,
        role: str | None = None,
        cancel: _core.Cancel | None = None,
    ) -> Any:
        """Runs encode() on this model. If `role` is given, this model is the route with that name. Otherwise the default route is used."""
        self._check_encode(role)
        return self._encoder.encode(inputs, options, role, cancel)

    def _prepare_encode(self, inputs: Any, options: EncodeOptions) -> Prepared:
        """Does everything in encode() that does not need the engine. Requires `options.takes_few(inputs)`."""
        self._check_encode(None)
        return self._encoder.prepare(inputs, options)

    def _check_encode(self, role: str | None) -> None:
        if role is None and self._routes and self._default_route is None and len({id(route) for route in self._routes.values()}) > 1:
            raise ValueError(
                f"this model encodes by routes ({', '.join(self._routes)}) and names none as its default: use encode_query() or "
                f"encode_document()"
            )
        self._need("encode", "encode()")

    @checked_keywords(ENCODE_DEFAULTS)
    def encode_query(self, inputs: str | Iterable[str], **options: Unpack[EncodeKeywords]) -> Any:
        """encode() by the model's route "query" and with its prompt "query", where it has them. Takes what encode() takes."""
        return self._encode_as(("query",), inputs, EncodeOptions(**options))

    @checked_keywords(ENCODE_DEFAULTS)
    def encode_document(self, inputs: str | Iterable[str], **options: Unpack[EncodeKeywords]) -> Any:
        """encode() by the model's route "document" and with its prompt "document", "passage" or "corpus", where it has them. Takes what
        encode() takes."""
        return self._encode_as(("document", "passage", "corpus"), inputs, EncodeOptions(**options))

    def _encode_as(self, names: Sequence[str], inputs: Any, options: EncodeOptions) -> Any:
        if options.prompt is None and options.prompt_name is None:
            options = replace(options, prompt_name=next((name for name in names if name in self._config.prompts), None))
        route = next((self._routes[name] for name in names if name in self._routes), None)
        if route is None and self._routes:
            return self._encode(inputs, options)
        if route is not None and route is not self:
            return route._encode_as(names, inputs, options)
        return self._encode(inputs, options, names[0])

    def similarity(self, a: Any, b: Any) -> Float32:
        """(n, m) float32: each row of `a` against each of `b` by the model's own measure (info["similarity"]); larger is nearer. Where
        that is "maxsim" or "meanmaxsim", `a` and `b` are lists of token vectors: encode_query(), encode_document(output="tokens")."""
        return vectors.similarity(a, b, self._config.similarity)

    @checked_keywords()
    def similarity_pairwise(self, a: Any, b: Any) -> Float32:
        """(n,) float32: row i of `a` against row i of `b` by the model's own measure; larger is nearer."""
        return vectors.similarity_pairwise(a, b, self._config.similarity)

    @checked_keywords()
    def search(
        self,
        queries: npt.ArrayLike,
        corpus: npt.ArrayLike,
        top_k: int = 10,
        *,
        precision: Precision = "float32",
        precision_ranges: npt.ArrayLike | None = None,
        show_progress_bar: bool | None = None,
    ) -> vectors.SearchResult:
        """The nearest rows of `corpus` for each query: pumice.search() by the model's own measure."""
        return vectors.search(
            queries,
            corpus,
            top_k,
            similarity=self._config.similarity,
            precision=precision,
            precision_ranges=precision_ranges,
            show_progress_bar=show_progress_bar,
        )

    @checked_keywords()
    @survives_its_device
    def predict(
        self,
        pairs: str | Sequence[str] | Iterable[tuple[str, str] | str],
        *,
        activation: Literal["none", "sigmoid", "softmax", "tanh"] | None = None,
        output: Literal["scores", "labels"] = "scores",
        truncate: Literal[True, "error"] = True,
        show_progress_bar: bool | None = None,
    ) -> Any:
        """Scores of (query, document) pairs, or of single texts, by a classifier: float32 (n,), or (n, labels) when it has several labels.

        pairs: an iterable of pairs, or of strings. One string, or a tuple or list of exactly two (a pair), gives one result.
        activation: "none", "sigmoid", "softmax" or "tanh" of the logits. None: the one that the model's config names, else a sigmoid for
            one label and none for several.
        output: "scores", or "labels": Predictions with a label's name (info["labels"]) and its probability. By `activation`; None: softmax
            of several labels, a sigmoid of one, and of each where config.json says multi_label_classification.
        truncate: True: longer texts are cut, with one TruncationWarning. "error": ContextLengthError.
        show_progress_bar: True, False, or None: when the logger `pumice` is at INFO.

        Raises UnsupportedTaskError, ContextLengthError, NumericError, TypeError and ValueError."""
        self._need("classify", "predict()")
        choice("output", output, ("scores", "labels"))
        pair = isinstance(pairs, (tuple, list)) and len(pairs) == 2 and all(isinstance(text, str) for text in pairs)
        single = pair or isinstance(pairs, str)
        items: Iterable[Any] = [tuple(pairs)] if pair else [pairs] if single else pairs
        if output == "labels" and activation is None:
            several = len(self.info["labels"]) > 1 and self._file.get("problem_type") != "multi_label_classification"
            activation = "softmax" if several else "sigmoid"
        scores = self._encoder.classify(items, truncate, show_progress_bar, activation)
        if output == "labels":
            found = [self._prediction(row) for row in scores.tolist()]
            return found[0] if single else found
        result: Float32 = scores[:, 0] if scores.shape[1] == 1 else scores
        return result[0] if single else result

    def _prediction(self, row: list[float]) -> Prediction:
        by_name = dict(zip(self.info["labels"], row, strict=True))
        label = max(by_name, key=lambda name: by_name[name])
        return Prediction(label, by_name[label], by_name)

    @checked_keywords()
    def rank(
        self,
        query: str,
        documents: Iterable[str],
        top_k: int | None = None,
        *,
        truncate: Literal[True, "error"] = True,
        show_progress_bar: bool | None = None,
    ) -> list[RankHit]:
        """The documents as RankHit(index, score, document), by a cross-encoder's score for the query, best first; ties keep their order.

        query: a text.  documents: an iterable of texts.  top_k: the best so many; None: all.
        truncate, show_progress_bar: as in predict().

        Raises UnsupportedTaskError (also for a model with several labels), ContextLengthError, TypeError and ValueError."""
        return self._rank(query, documents, top_k, truncate, show_progress_bar)

    @survives_its_device
    def _rank(
        self,
        query: str,
        documents: Iterable[str],
        top_k: int | None,
        truncate: Literal[True, "error"],
        show_progress_bar: bool | None,
        cancel: _core.Cancel | None = None,
    ) -> list[RankHit]:
        self._need("classify", "rank()")
        query = check_text(query, "query")
        texts = listed(items_of(documents, "documents")[0])
        limit = len(texts) if top_k is None else integer("top_k", top_k, 1)
        scores = self._encoder.classify([(query, text) for text in texts], truncate, show_progress_bar, cancel=cancel)
        if scores.shape[1] != 1:
            raise UnsupportedTaskError(f"rank() needs one score per pair; this model has {scores.shape[1]} labels. predict() gives them")
        order = np.argsort(-scores[:, 0], kind="stable")[:limit]
        return [RankHit(int(i), float(scores[i, 0]), texts[i]) for i in order]
