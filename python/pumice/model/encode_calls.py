"""Model's methods that convert texts to vectors, and compare vectors."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ..common.arguments import argument, checked_keywords, integer, shown
from ..encode import sparse, vectors
from ..encode.encoding import ENCODE_DEFAULTS, EncodeKeywords, EncodeOptions, Prepared
from ..encode.rows import Precision
from .base import ModelBase, survives_its_device

if TYPE_CHECKING:
    from typing_extensions import Unpack

Float32 = npt.NDArray[np.float32]

# Method -> the names of its route and its prompt, in the order in which they are searched for, or None if it has none.
ROLES = {"encode": None, "encode_query": ("query",), "encode_document": ("document", "passage", "corpus")}


class EncodeCalls(ModelBase):
    """encode() and its variants, similarity and search."""

    @checked_keywords(ENCODE_DEFAULTS)
    def encode(self, inputs: str | Iterable[str], **options: Unpack[EncodeKeywords]) -> Any:
        """Returns the vectors of texts: float32 (d,) for one string, or C-contiguous float32 (n, d) for an iterable of n strings, in its
        order.

        inputs: a string, or any iterable of strings (list, generator, numpy array, pandas Series, Arrow array). A million texts from a
            generator need memory only for their vectors and for one window of 4096 texts.
        prompt, prompt_name: a text that is prepended to each text, or the name of one of the model's prompts.
        batch_size, token_budget: the maximum size of a micro-batch, in texts of the maximum length or in tokens. Both change speed and
            memory, but not the result (on a GPU its last bits may differ).
        normalize: whether vectors are scaled to length 1. None means the setting of the model's files.
        truncate_dim: the number of columns to keep, the first ones. Vectors are cut, and then normalised.
        precision: "float32", "int8", "uint8" (255 steps of each column's range), "binary" or "ubinary" (packed signs).
        precision_ranges: (2, d), the lowest and the highest value of each column for int8 and uint8. None means the ranges in this call.
        output: "sentence" returns one vector per text. "tokens" returns the vectors of all tokens, as a list of (tokens, d). "both" returns
            a pair of the two, and runs each text twice. "sparse" returns SparseVectors with a column for each token of the vocabulary
            (SPLADE, https://arxiv.org/abs/2109.10086); it needs a model whose info["tasks"] has "sparse".
        max_active_dims: for "sparse", the maximum number of values per text; the largest are kept. None means the setting of the model's
            files, or all.
        truncate: True cuts texts that are longer than the model's limit, and issues a warning that counts them. "error" raises
            ContextLengthError. A number cuts texts to this number of tokens, special tokens and prompt included, without a warning.
        show_progress_bar: True, False, or None, which shows the bar if the logger "pumice" is at INFO.
        out: a float32 array of the result's shape, which is filled and returned. It may be a memmap.
        details: True returns an Encoded, which has the vectors, and for each text how many tokens it has and how many were cut off. No
            warning is issued then.
        parse_special: whether control tokens that the texts spell ("[SEP]", "<|im_end|>") are control tokens. False makes them plain text,
            which is right for texts of strangers. None means what the tokenizer's files say (split_special_tokens; mostly they are control
            tokens), or False if a chat template writes the texts.

        Raises UnsupportedTaskError, and TypeError or ValueError, whose message names the argument or the text. A KeyboardInterrupt has the
        rows done so far as .partial.
        """
        return self._encode(inputs, EncodeOptions(**options))

    @survives_its_device
    def _encode(
        self,
        inputs: Any,
        options: EncodeOptions,
        role: str | None = None,
    ) -> Any:
        """Does the work of encode(), encode_query() and encode_document(). role: "query" or "document" if the caller has already chosen
        this model as the route for that role, else None."""
        self._check_encode(role)
        with argument("inputs"):
            return self._encoder.encode(inputs, options, role)

    def _prepare_encode(self, inputs: Any, options: EncodeOptions, role: str | None) -> Prepared:
        """Does the part of _encode() that does not need the engine. `options.takes_few(inputs)` must be true."""
        self._check_encode(role)
        with argument("inputs"):
            return self._encoder.prepare(inputs, options, role)

    def _check_encode(self, role: str | None) -> None:
        if role is None and self._routes and self._default_route is None and len({id(route) for route in self._routes.values()}) > 1:
            raise ValueError(
                f"this model encodes by routes ({', '.join(self._routes)}) and names none as its default: use encode_query() or "
                f"encode_document()"
            )
        self._need("encode", "encode()")

    @checked_keywords(ENCODE_DEFAULTS)
    def encode_query(self, inputs: str | Iterable[str], **options: Unpack[EncodeKeywords]) -> Any:
        """Like encode(), with the same arguments, but uses the model's route "query" and its prompt "query" if it has them."""
        return self._encode_as("encode_query", inputs, EncodeOptions(**options))

    @checked_keywords(ENCODE_DEFAULTS)
    def encode_document(self, inputs: str | Iterable[str], **options: Unpack[EncodeKeywords]) -> Any:
        """Like encode(), with the same arguments, but uses the model's route "document" and its prompt "document", "passage" or "corpus" if
        it has them."""
        return self._encode_as("encode_document", inputs, EncodeOptions(**options))

    def _encode_as(self, method: str, inputs: Any, options: EncodeOptions) -> Any:
        model, options, role = self._for_method(method, options)
        return model._encode(inputs, options, role)

    def _for_method(self, method: str, options: EncodeOptions) -> tuple[EncodeCalls, EncodeOptions, str | None]:
        """Returns the arguments of _encode() for a method: the model, the options, and the role. method: a key of ROLES."""
        names = ROLES[method]
        return (self, options, None) if names is None else self._for_role(names, options)

    def _for_role(self, names: Sequence[str], options: EncodeOptions) -> tuple[EncodeCalls, EncodeOptions, str | None]:
        """Returns the arguments of _encode() for encode_query() or encode_document(): the model (of the route, if this model has one for
        the role), the options with the prompt of the role, and the role. names: a value of ROLES."""
        if options.prompt is None and options.prompt_name is None:
            options = replace(options, prompt_name=next((name for name in names if name in self._config.prompts), None))
        route = next((self._routes[name] for name in names if name in self._routes), None)
        if route is None and self._routes:
            return self, options, None
        if route is not None and route is not self:
            return route._for_role(names, options)  # type: ignore[no-any-return]
        return self, options, names[0]

    @checked_keywords()
    def similarity(self, a: Any, b: Any) -> Float32:
        """Returns the similarity of each row of `a` to each row of `b`, float32 (n, m). Larger is nearer. The measure is the model's own,
        info["similarity"]; for SparseVectors it is the one that the model's files name, or "dot".

        a, b: vectors (d,), or (n, d) and (m, d), or SparseVectors. If one of them is a single sparse vector, the result lacks its axis. If
            the measure is "maxsim" or "meanmaxsim", they are lists of token vectors, as encode_query() and encode_document() return them
            with output="tokens".

        Raises TypeError or ValueError; the message names the argument."""
        return vectors.similarity(a, b, self._measure(a, b))

    @checked_keywords()
    def similarity_pairwise(self, a: Any, b: Any) -> Float32:
        """Returns the similarity of row i of `a` to row i of `b` for every i, float32 (n,). Larger is nearer. The measure is the model's
        own, as in similarity().

        a, b: vectors (n, d), or SparseVectors. If the measure is "maxsim" or "meanmaxsim", they are lists of token vectors.

        Raises TypeError or ValueError; the message names the argument."""
        return vectors.similarity_pairwise(a, b, self._measure(a, b))

    def _measure(self, *given: Any) -> str:
        """Returns the name of the model's similarity measure for these vectors."""
        return self._config.sparse.similarity if any(map(sparse.is_sparse, given)) else self._config.similarity

    @checked_keywords()
    def sparse_tokens(self, vectors: sparse.SparseVectors, top_k: int | None = None) -> Any:
        """Returns the tokens and values of sparse vectors: a list of (token, value) for a single vector, or a list of such lists. The
        largest values come first. Equal values are in the order of the token ids. Tokens are spelt as in the vocabulary: "##s" or
        "\u2581stone".

        vectors: SparseVectors of this model, as encode(output="sparse") returns them.
        top_k: maximum number of pairs for each vector. None means all.

        Raises TypeError or ValueError; the message names the argument."""
        if not isinstance(vectors, sparse.SparseVectors):
            raise TypeError(f"vectors must be SparseVectors, not {shown(vectors)}")
        size = int(self._info["vocab_size"])
        if vectors.shape[-1] != size:
            raise ValueError(f"vectors have {vectors.shape[-1]} columns, and this model has {size} tokens: they are another model's")
        most = None if top_k is None else integer("top_k", top_k, 1)

        def pairs(first: int, last: int) -> list[tuple[str, float]]:
            ids, values = vectors.indices[first:last], vectors.values[first:last]
            order = np.argsort(-values, kind="stable")[:most]
            return [(self._token(i), value) for i, value in zip(ids[order].tolist(), values[order].tolist(), strict=True)]

        ends = vectors.offsets.tolist()
        found = [pairs(a, b) for a, b in zip(ends[:-1], ends[1:], strict=True)]
        return found[0] if vectors.single else found

    def _token(self, token_id: int) -> str:
        """Returns a token as the vocabulary spells it. Models may have ids that their tokenizer lacks; such an id is shown as "#508"."""
        text: str | None = self._tokenizer.backend.id_to_token(token_id)
        return f"#{token_id}" if text is None else text

    @checked_keywords()
    def search(
        self,
        queries: Any,
        corpus: Any,
        top_k: int = 10,
        *,
        precision: Precision = "float32",
        precision_ranges: npt.ArrayLike | None = None,
        show_progress_bar: bool | None = None,
    ) -> vectors.SearchResult:
        """Like pumice.search(), with the same arguments except `similarity`: the measure is the model's own, as in similarity(). Returns
        the nearest rows of `corpus` for each query, a SearchResult."""
        return vectors.search(
            queries,
            corpus,
            top_k,
            similarity=self._measure(queries, corpus),
            precision=precision,
            precision_ranges=precision_ranges,
            show_progress_bar=show_progress_bar,
        )
