"""Encode and Generate, which map a pyarrow.Table to a table with one more column."""

from __future__ import annotations

import copyreg
import functools
import hashlib
import os
import pickle
from collections.abc import Mapping
from typing import Any, ClassVar, Literal, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ..common.arguments import check_text, choice, did_you_mean, flag, shown, unknown_keyword
from ..common.forks import Lock
from ..common.pools import Pool
from ..encode.encoding import ENCODE_DEFAULTS
from ..encode.rows import PRECISIONS
from ..encode.windows import arrow_values
from ..generate.generation import Run, run_to_end
from ..generate.settings import SAMPLING_DEFAULTS
from ..loading.options import check_load_options
from ..model.load import load as load_model
from ..model.model import Model

Null = Literal["error", "empty", "null"]
NULLS = ("error", "empty", "null")
ROLES = (None, "query", "document")
CHATS_AT_ONCE = 64  # maximum number of calls of chat() at a time, each in its own thread

Bools = npt.NDArray[np.bool_]
T = TypeVar("T", pa.Table, pa.RecordBatch)

# The keywords of encode() that Encode takes too. `show_progress_bar` is left out, because a job with many batches would show many bars. The
# others that are left out decide where the result goes or what it contains.
ENCODE_OPTIONS = tuple(name for name in ENCODE_DEFAULTS if name not in ("out", "output", "max_active_dims", "details", "show_progress_bar"))
# The keywords of generate() that Generate takes too. `n` is left out, because it gives several texts per row. `logprobs` is left out,
# because there is no column for them.
GENERATE_OPTIONS = tuple(name for name in SAMPLING_DEFAULTS if name not in ("n", "logprobs"))

_models: dict[bytes, Model] = {}  # pickled call that loads a model -> the model, for all objects of this process
_loading = Lock()


class _Source:
    """A model that is loaded at the first use in each process. A pickled _Source contains only the pickled call that loads the model."""

    def __init__(self, owner: str, source: str | os.PathLike[str] | Model, load: Mapping[str, Any] | None) -> None:
        """owner: the name of the class that has this source, for error messages."""
        self._model: Model | None = None
        if isinstance(source, Model):
            if load is not None:
                raise TypeError(f"{owner}: load={shown(load)} was given beside a Model, which is loaded already: give one of them")
            self._model = source
            function, arguments = copyreg.dispatch_table[Model](source)  # type: ignore[misc]
            call = functools.partial(function, *arguments)
        elif isinstance(source, (str, os.PathLike)):
            if load is not None and not isinstance(load, Mapping):
                raise TypeError(f"{owner}: load must be a dict with options of pumice.load(), not {shown(load)}")
            options = dict(load or {})
            check_load_options("load", options)
            name = os.fsdecode(source)
            # A path is made absolute, because the process that loads the model may have another current folder. Other names, such as hub
            # ids, stay as they are.
            call = functools.partial(load_model, os.path.abspath(name) if os.path.exists(name) else name, **options)
        else:
            raise TypeError(f"{owner}: source must be a path, a hub id or a Model, not {type(source).__name__} {shown(source)}")
        try:
            self._call = pickle.dumps(call)
        except Exception as error:
            raise TypeError(f"{owner}: an option of load= cannot be pickled, so no other process could load the model: {error}") from None

    def __getstate__(self) -> dict[str, Any]:
        return {"_call": self._call, "_model": None}

    def model(self) -> Model:
        """Returns the model. Loads it unless an object of this process has loaded it before."""
        if self._model is None:
            with _loading():
                if self._call not in _models:
                    _models[self._call] = pickle.loads(self._call)()
                self._model = _models[self._call]
        return self._model


class _NewColumns:
    """Maps a table with a column of texts to a table with more columns."""

    _owner: ClassVar[str]  # name of the class, for error messages

    def __init__(
        self,
        source: str | os.PathLike[str] | Model,
        columns: Mapping[str, str | None],
        null: Null,
        load: Mapping[str, Any] | None,
        options: dict[str, Any],
        valid: tuple[str, ...],
    ) -> None:
        """columns: name of an argument -> name of the column that it names, or None if it names no column. The first entry is the column of
        texts.
        options: the keywords for the model's call.
        valid: the keywords that this call takes."""
        for name in options:
            if name not in valid:
                raise unknown_keyword(self._owner, name, (*columns, "null", "load", *valid))
        for argument, column in columns.items():
            if column is not None and not check_text(column, argument):
                raise ValueError(f"{argument} is empty: it must name a column")
        named = [column for column in columns.values() if column is not None]
        if len(set(named)) < len(named):
            given = ", ".join(f"{argument}={column!r}" for argument, column in columns.items())
            raise ValueError(f"{self._owner}: {given} must be different columns")
        self._columns, self._null, self._options = dict(columns), choice("null", null, NULLS), options
        self._source = _Source(self._owner, source, load)

    @property
    def model(self) -> Model:
        """The model. It is loaded at the first use, once in each process: objects with the same path and the same load= share it. It then
        stays loaded until the process ends. If the object was made with a Model, this process uses that Model, and only other processes
        load it again."""
        return self._source.model()

    def check(self, schema: pa.Schema) -> None:
        """Checks the columns of tables without loading the model.

        schema: a pyarrow.Schema.

        Raises ValueError if a table with this schema lacks the column of texts, or has a column with the name of a new one, and TypeError
        if the column of texts has no strings, or if `schema` is not a pyarrow.Schema."""
        if not isinstance(schema, pa.Schema):
            raise TypeError(f"schema must be a pyarrow.Schema, not {type(schema).__name__} {shown(schema)}")
        (argument, column), *new = self._columns.items()
        places = schema.get_all_field_indices(column)
        if len(places) != 1:
            there = ", ".join(map(repr, schema.names[:50])) or "none"
            found = f"{len(places)} columns" if places else "no column"
            hint = "" if places else did_you_mean(column, schema.names)
            raise ValueError(f"the table has {found} {column!r} ({argument}=); its columns are {there}{hint}")
        if not _holds_strings(kind := schema.field(places[0]).type):
            raise TypeError(f"column {column!r} ({argument}=) has values of type {kind}, not strings")
        for argument, column in new:
            if column in schema.names:
                raise ValueError(f"the table has a column {column!r} already: give the new one another name by {argument}=")

    def __call__(self, table: T) -> T:
        """Returns the table or record batch with the new columns after its own columns. The own columns are not copied. Raises what check()
        and the model's call raise, ValueError for a null text (null="error"), and TypeError if `table` is neither a Table nor a
        RecordBatch."""
        if not isinstance(table, (pa.Table, pa.RecordBatch)):
            raise TypeError(
                f"{self._owner} maps a pyarrow.Table or RecordBatch, not {type(table).__name__} "
                f'(Ray Data: map_batches(batch_format="pyarrow"); pandas: pyarrow.Table.from_pandas())'
            )
        self.check(table.schema)
        (_, column), *new = self._columns.items()
        arrays = self._arrays(table.column(column), f"column {column!r}")
        for (_, name), values in zip(new, arrays, strict=True):
            if name is not None:
                table = table.append_column(pa.field(name, values.type), values)
        return table

    def array(self, texts: pa.Array | pa.ChunkedArray) -> pa.Array:
        """Returns the new column for a column of texts, for engines such as DuckDB that call functions of columns.

        texts: a pyarrow.Array or ChunkedArray of strings.

        Raises what a call with a table raises."""
        if not isinstance(texts, (pa.Array, pa.ChunkedArray)):
            raise TypeError(f"{self._owner}.array() takes a pyarrow.Array or ChunkedArray, not {type(texts).__name__}")
        if not _holds_strings(texts.type):
            raise TypeError(f"the texts have values of type {texts.type}, not strings")
        return self._arrays(texts, "the array of texts")[0]

    def _arrays(self, texts: pa.Array | pa.ChunkedArray, what: str) -> list[pa.Array]:
        """Returns the values of the new columns. what: a name of the texts for error messages."""
        raise NotImplementedError

    def _without_nulls(self, texts: pa.Array | pa.ChunkedArray, what: str) -> tuple[pa.Array | pa.ChunkedArray, Bools | None]:
        """Returns (rest, present). `rest` is `texts` with each null replaced (null="empty") or left out (null="null"). `present` is None if
        `rest` has a text for each row. Otherwise (null="null") `present` is an array that is True for each row that has a text. Raises
        ValueError for a text that is not UTF-8."""
        try:
            texts.validate(full=True)
        except pa.ArrowInvalid as error:
            if "UTF8" not in str(error):
                raise
            arrow_values(texts, what)  # raises an error that names the row, if a row uses the invalid text
        # A value of the dictionary may be null, and null_count does not count the rows that use it. So the dictionary is replaced by plain
        # texts.
        if pa.types.is_dictionary(texts.type):
            texts = texts.cast(pa.large_string())
        if not texts.null_count:
            return texts, None
        missing = np.asarray(texts.is_null())
        if self._null == "error":
            raise ValueError(
                f"{what} has {texts.null_count} nulls, the first in row {int(missing.argmax())}. "
                f'null="empty" takes them as empty texts, null="null" makes the new values null'
            )
        plain = texts.cast(pa.large_string())  # fill_null() does not take the type string_view
        return (plain.fill_null(""), None) if self._null == "empty" else (plain.drop_null(), ~missing)


class Encode(_NewColumns):
    """Adds the vectors of a column of texts to a table. The vectors are a FixedSizeList over the memory of the array that encode() returns.

    encode = pumice.arrow.Encode("path/to/model", text="body", load={"device": "cpu"})
    table = encode(table)  # a pyarrow.Table or RecordBatch, now with the column "vector"

    The object can be pickled, and the model is loaded at its first use in each process. On the CPU, a row has the same bits however a table
    is divided into batches.

    source: a path or a hub id, as for pumice.load(), or a Model. A Model is pickled as its path, so the path must exist on every machine.
    text: the name of the column of texts. The texts are strings of any Arrow string type, also in a dictionary.
    vector: the name of the new column. Its type is float32[d], or int8[...] or uint8[...] with another `precision`.
    role: "query" and "document" encode as encode_query() and encode_document() do, None as encode().
    null: what a null text means. "error" raises ValueError, "empty" encodes an empty text, "null" makes the vector null.
    load: a dict with options of pumice.load(), for a path.
    options: the keywords of encode(), except out, output, max_active_dims, details and show_progress_bar. precision="int8" and "uint8" need
        precision_ranges, because ranges computed from each batch would depend on how the table is cut into batches.

    Raises TypeError and ValueError, which name the argument. A path that does not exist is an error of the first use.
    """

    _owner = "pumice.arrow.Encode"

    def __init__(
        self,
        source: str | os.PathLike[str] | Model,
        text: str = "text",
        vector: str = "vector",
        *,
        role: Literal["query", "document"] | None = None,
        null: Null = "error",
        load: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> None:
        super().__init__(source, {"text": text, "vector": vector}, null, load, options, ENCODE_OPTIONS)
        self._role = choice("role", role, ROLES)
        choice("precision", options.get("precision", "float32"), PRECISIONS)

    def _arrays(self, texts: pa.Array | pa.ChunkedArray, what: str) -> list[pa.Array]:
        texts, there = self._without_nulls(texts, what)
        model = self.model
        precision = self._options.get("precision", "float32")
        # Some models already return codes of 8 bits, which need no ranges for int8 (FlexibleQuantizer in docs/python/encode.md).
        needs_ranges = precision == "uint8" or (precision == "int8" and not model._config.codes)
        if needs_ranges and self._options.get("precision_ranges") is None:
            raise ValueError(
                f'precision="{precision}" needs precision_ranges=, because the ranges of a batch would depend on how the table is cut: '
                f"np.stack([v.min(0), v.max(0)]) of the float vectors v of some texts"
            )
        rows = self._rows(model, texts)
        if there is None:
            return [fixed_size_lists(rows)]
        all_rows = np.zeros((len(there), rows.shape[1]), rows.dtype)
        all_rows[there] = rows
        return [fixed_size_lists(all_rows, ~there)]

    def _rows(self, model: Model, texts: Any, **more: Any) -> npt.NDArray[Any]:
        call = {None: model.encode, "query": model.encode_query, "document": model.encode_document}[self._role]
        rows: npt.NDArray[Any] = call(texts, **{**self._options, "show_progress_bar": False, **more})
        return rows

    def record(self) -> dict[str, Any]:
        """Returns the values that decide what the new column contains, for JSON. Loads the model.

        "vectors" is a hash of the float32 vectors of some fixed texts. It changes with the weights, the tokenizer, a prompt, the pooling
        and the number of columns, and on a GPU also with the last bits of the vectors."""
        rows = self._rows(self.model, list(_PROBES), precision="float32", precision_ranges=None, truncate=True)
        ranges = self._options.get("precision_ranges")
        return {
            "text_column": self._columns["text"],
            "vector_column": self._columns["vector"],
            "null": self._null,
            "role": self._role,
            "truncate": self._options.get("truncate", True),
            "precision": self._options.get("precision", "float32"),
            "precision_ranges": None if ranges is None else _hash(np.asarray(ranges, np.float32)),
            "vectors": _hash(rows),
        }


# Texts whose vectors are hashed to recognise the model. They have several scripts and lengths, so that almost any change of the tokenizer
# changes some ids.
_PROBES = (
    "A stone that floats.",
    "Der Fluß trägt 1.250 Boote; ¿cuántos vuelven?",
    "Реки текут в море, а небо остаётся. 河は海へ流れ、空は残る。 강은 바다로 흐른다. النهر يجري إلى البحر 🌊",
    "def area(r):\n\treturn 3.14159 * r ** 2  # square metres " + "and one more word " * 20,
)


class Generate(_NewColumns):
    """Adds texts that continue a column of prompts to a table.

    generate = pumice.arrow.Generate("path/to/model.gguf", prompt="prompt", max_new_tokens=64, temperature=0)
    table = generate(table)  # a pyarrow.Table or RecordBatch, now with the column "generated"

    The prompts of a table run as one call of generate(). The object can be pickled, and the model is loaded at its first use in each
    process.

    source: a path or a hub id, as for pumice.load(), or a Model. A Model is pickled as its path, so the path must exist on every machine.
    prompt: the name of the column of prompts, which are strings. They are continued as they are, unless `chat` is True.
    text: the name of the new column of strings.
    chat: True takes each prompt as the message of a user, and answers it as chat() does, by the model's chat template.
    finish_reason: the name of a second new column, which says why each text ended ("eos", "length", ...), or None for no such column.
    null: what a null prompt means. "error" raises ValueError, "empty" continues an empty text, "null" makes the new values null.
    load: a dict with options of pumice.load(), for a path.
    options: the keywords of generate(), except n and logprobs.

    Raises TypeError and ValueError, which name the argument. A path that does not exist is an error of the first use.
    """

    _owner = "pumice.arrow.Generate"

    def __init__(
        self,
        source: str | os.PathLike[str] | Model,
        prompt: str = "prompt",
        text: str = "generated",
        *,
        chat: bool = False,
        finish_reason: str | None = None,
        null: Null = "error",
        load: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> None:
        columns = {"prompt": prompt, "text": text, "finish_reason": finish_reason}
        super().__init__(source, columns, null, load, options, GENERATE_OPTIONS)
        self._chat = flag("chat", chat)

    def _arrays(self, texts: pa.Array | pa.ChunkedArray, what: str) -> list[pa.Array]:
        texts, there = self._without_nulls(texts, what)
        found = self._results(texts.to_pylist())
        if there is not None:
            results = iter(found)
            found = [next(results) if filled else (None, None) for filled in there]
        return [pa.array([each[i] for each in found], pa.string()) for i in (0, 1)]

    def _results(self, prompts: list[str]) -> list[tuple[str | None, str | None]]:
        model = self.model
        if not prompts:
            return []
        if not self._chat:
            return [(each.text, each.finish_reason) for each in model.generate(prompts, **self._options)]
        # Up to CHATS_AT_ONCE threads call chat(), each for one prompt at a time. The model's steps compute the calls of all threads
        # together.
        running: set[Run] = set()
        left = False

        def answer(prompt: str) -> Any:
            run, finish = model.chat(prompt, stream=True, **self._options)._detach()
            running.add(run)
            if left:
                run.stop()
            return run_to_end(run, finish)

        pool = Pool(min(len(prompts), CHATS_AT_ONCE))
        try:
            answers = [work.result() for work in [pool.submit(answer, prompt) for prompt in prompts]]
        except BaseException:
            left = True
            for run in list(running):
                run.stop()
            raise
        finally:
            pool.end()
        return [(each.text, each.finish_reason) for each in answers]


def fixed_size_lists(rows: npt.NDArray[Any], null: Bools | None = None) -> pa.FixedSizeListArray:
    """Returns the rows of an array (n, d) as an Arrow array of n lists, without a copy. null: an array that is True for each null row."""
    mask = None if null is None else pa.array(null)
    return pa.FixedSizeListArray.from_arrays(pa.array(rows.reshape(-1)), rows.shape[1], mask=mask)


def _hash(numbers: npt.NDArray[np.float32]) -> str:
    return hashlib.sha256(repr(numbers.shape).encode() + numbers.tobytes()).hexdigest()[:32]


def _holds_strings(kind: pa.DataType) -> bool:
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    return any(is_kind(kind) for is_kind in (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view, pa.types.is_null))
