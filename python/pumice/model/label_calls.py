"""Model's methods for classifiers: scores of texts and of pairs, and labels of tokens."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Literal

import numpy as np

from ..common.arguments import argument, check_text, checked_keywords, choice, did_you_mean, flag, integer, listed, real, shown
from ..common.forks import cached_property
from ..encode.encoding import Predicted, Prediction, Ranked, RankHit
from ..encode.token_labels import AGGREGATIONS, OUTSIDE, Aggregation, LabeledSpan, SpanReader, TokenLabels
from ..encode.windows import items_of
from ..errors import UnsupportedTaskError
from ..loading.files import viterbi_biases
from .base import ModelBase, survives_its_device


class LabelCalls(ModelBase):
    """predict(), rank() and label_tokens()."""

    @checked_keywords()
    @survives_its_device
    def predict(
        self,
        pairs: str | Sequence[str] | Iterable[tuple[str, str] | str],
        *,
        activation: Literal["none", "sigmoid", "softmax", "tanh"] | None = None,
        output: Literal["scores", "labels"] = "scores",
        prompt: str | None = None,
        prompt_name: str | None = None,
        truncate: Literal[True, "error"] | int = True,
        show_progress_bar: bool | None = None,
        details: bool = False,
        parse_special: bool | None = None,
    ) -> Any:
        """Returns a classifier's scores of (query, document) pairs or of single texts: float32 (n,), or (n, labels) if it has several
        labels.

        pairs: an iterable of pairs or of strings. A single string, or a single pair (a tuple or list of exactly two strings), gives a
            single result.
        activation: "none", "sigmoid", "softmax" or "tanh", which is applied to the logits. None means the activation that the model's
            config names. If it names none, one label gets a sigmoid, and several labels get no activation.
        output: "scores" returns numbers. "labels" returns a Prediction for each text, with the name of the most likely label (of
            info["labels"]) and probabilities. The probabilities are computed by `activation`. If it is None, they are a softmax over
            several labels, or a sigmoid of each label if there is only one or if config.json sets multi_label_classification.
        prompt, prompt_name: a text that is prepended to the first text of each pair, or to each text, or the name of one of the model's
            prompts. None means the model's default prompt, if it has one. A chat template gets it as the message of a system.
        truncate: True cuts texts that are too long, with one TruncationWarning. "error" raises ContextLengthError. A number cuts them to
            this number of tokens, special tokens included, without a warning.
        show_progress_bar: True, False, or None, which shows the bar if the logger "pumice" is at INFO.
        details: True returns a Predicted, which has the scores, and for each pair how many tokens it has and how many were cut off. No
            warning is issued then.
        parse_special: as in encode().

        Raises UnsupportedTaskError, ContextLengthError, NumericError, TypeError and ValueError."""
        self._need("classify", "predict()")
        flag("details", details)
        choice("output", output, ("scores", "labels"))
        pair = isinstance(pairs, (tuple, list)) and len(pairs) == 2 and all(isinstance(text, str) for text in pairs)
        single = pair or isinstance(pairs, str)
        items: Iterable[Any] = [tuple(pairs)] if pair else [pairs] if single else pairs
        if output == "labels" and activation is None:
            several = len(self._info["labels"]) > 1 and self._file.get("problem_type") != "multi_label_classification"
            activation = "softmax" if several else "sigmoid"
        with argument("pairs"):
            reading = prompt, prompt_name, parse_special
            logits, cuts = self._encoder.classify(items, truncate, show_progress_bar, activation, details, None, *reading)
        scores = self._encoder.scores(logits, activation)
        result: Any = scores[:, 0] if scores.shape[1] == 1 else scores
        if output == "labels":
            result = [self._prediction(row) for row in scores.tolist()]
        if single:
            result = result[0]
        if not details:
            return result
        tokens, cut = cuts.details()
        return Predicted(result, int(tokens[0]), int(cut[0])) if single else Predicted(result, tokens, cut)

    def _prediction(self, row: list[float]) -> Prediction:
        by_name = dict(zip(self._info["labels"], row, strict=True))
        label = max(by_name, key=lambda name: by_name[name])
        return Prediction(label, by_name[label], by_name)

    @checked_keywords()
    @survives_its_device
    def label_tokens(
        self,
        texts: str | Iterable[str],
        *,
        aggregation: Aggregation | None = None,
        threshold: float = 0.0,
        ignore_labels: Iterable[str] = (OUTSIDE,),
        output: Literal["spans", "tokens"] = "spans",
        truncate: Literal[True, "error"] | int = True,
        show_progress_bar: bool | None = None,
        parse_special: bool | None = None,
    ) -> Any:
        """Returns the parts of texts that a classifier of tokens labels: a list of LabeledSpan for one string, or a list of such lists for
        an iterable of strings.

        texts: a string, or any iterable of strings, as for encode().
        aggregation: how tokens are joined to spans. "none", "simple", "first", "average" and "max" are as in transformers'
            pipeline("token-classification"). "viterbi" takes the most probable sequence of labels in which spans are whole (B I ... E, or
            S), with the numbers of viterbi_calibration.json if the model has this file. None means "viterbi" if the labels begin with B-,
            I-, E- and S-, and otherwise "simple".
        threshold: spans with a smaller score are left out.
        ignore_labels: spans with these labels are left out. A label is named as the aggregation gives it: with "none" as in
            info["labels"], such as B-PER, and otherwise without the part up to its first "-", such as PER.
        output: "spans", or "tokens", which returns a TokenLabels for each text, with the probabilities of all labels for each token.
        truncate: True cuts texts that are longer than the model's limit, and issues a warning that counts them. "error" raises
            ContextLengthError. A number cuts texts to this number of tokens, special tokens and prompt included, without a warning.
        show_progress_bar: True, False, or None, which shows the bar if the logger "pumice" is at INFO.
        parse_special: as in encode().

        Raises UnsupportedTaskError, ContextLengthError, NumericError, TypeError and ValueError. A KeyboardInterrupt has the results so far
        as .partial."""
        self._need("label", "label_tokens()")
        reader = self._spans
        choice("output", output, ("spans", "tokens"))
        how: Aggregation = reader.default if aggregation is None else choice("aggregation", aggregation, AGGREGATIONS)
        reader.check(how)
        least = real("threshold", threshold, 0, 1)
        if isinstance(ignore_labels, str) or not isinstance(ignore_labels, Iterable):
            raise TypeError(f"ignore_labels must be a list of labels, not {shown(ignore_labels)}")
        ignored = listed(ignore_labels)
        names = reader.names(how)
        for label in ignored:
            if label != OUTSIDE and label not in names:
                some = ", ".join(names[:20]) + (", ..." if len(names) > 20 else "")
                raise ValueError(
                    f"ignore_labels: with aggregation={how!r} no span has the label {shown(label)}, but one of {some}"
                    f"{did_you_mean(label, names)}"
                )

        def read(text: str, tokens: TokenLabels) -> list[LabeledSpan] | TokenLabels:
            if output == "tokens":
                return tokens
            return [span for span in reader.read(text, tokens, how) if span.label not in ignored and span.score >= least]

        single = isinstance(texts, str)
        with argument("texts"):
            found = self._encoder.label_tokens([texts] if single else texts, truncate, show_progress_bar, read, parse_special)
        return found[0] if single else found

    @cached_property
    def _spans(self) -> SpanReader:
        return SpanReader(self._info["labels"], self._tokenizer, viterbi_biases(self._file))

    @checked_keywords()
    @survives_its_device
    def rank(
        self,
        query: str,
        documents: Iterable[str],
        top_k: int | None = None,
        *,
        max_document_tokens: int | None = None,
        activation: Literal["none", "sigmoid", "softmax", "tanh"] | None = None,
        prompt: str | None = None,
        prompt_name: str | None = None,
        truncate: Literal[True, "error"] | int = True,
        show_progress_bar: bool | None = None,
        details: bool = False,
        parse_special: bool | None = None,
    ) -> Any:
        """Returns a list of the documents as RankHit(index, score, document), sorted by a cross-encoder's score for the query, best first.
        Documents with equal scores keep their order.

        query: a text.
        documents: an iterable of texts.
        top_k: maximum number of documents to return. None means all.
        max_document_tokens: the end of each document with more tokens is cut off before the pair is made, without a warning. Special tokens
            are not counted. If only some tokens of a character would remain, the whole character is cut off.
        activation, prompt, prompt_name, truncate, show_progress_bar, parse_special: as in predict(), for the pair. The order is that
            of the logits, whatever the activation.
        details: True returns a Ranked, which has this list, and for each pair how many tokens it has and how many were cut off. No warning
            is issued then.

        Raises UnsupportedTaskError (also for a model with several labels), ContextLengthError, TypeError and ValueError."""
        self._need("classify", "rank()")
        flag("details", details)
        most = None if max_document_tokens is None else integer("max_document_tokens", max_document_tokens, 1)
        query = check_text(query, "query")
        if isinstance(documents, str):
            raise TypeError("documents must be an iterable of texts, not one str, whose characters would be the documents")
        texts = listed(items_of(documents, "documents")[0])
        limit = len(texts) if top_k is None else integer("top_k", top_k, 1)
        pairs = [(query, text) for text in texts]
        with argument("documents"):
            reading = prompt, prompt_name, parse_special
            logits, cuts = self._encoder.classify(pairs, truncate, show_progress_bar, activation, details, most, *reading)
        if logits.shape[1] != 1:
            raise UnsupportedTaskError(f"rank() needs one score per pair; this model has {logits.shape[1]} labels. predict() gives them")
        order = np.argsort(-logits[:, 0], kind="stable")[:limit]  # scores of large logits are equal: 1 is the sigmoid of 21 and of 42
        scores = self._encoder.scores(logits, activation)
        hits = [RankHit(int(i), float(scores[i, 0]), texts[i]) for i in order]
        return Ranked(hits, *cuts.details()) if details else hits
