"""Encodes a column of Parquet files. Each file becomes a new file. If a run was stopped, the next run skips the files that are complete."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from .. import _core
from ..common.arguments import did_you_mean, shown_path
from .columns import Encode

KEY = b"pumice.encode"  # the key under which written files have _Job.record() in their metadata
ROWS = 8192  # default number of rows per row group; so many vectors of 384 columns take 12 MiB
# Key of _Job.record() -> what an error message says if an existing file has another value. The values are hashes, so showing them would not
# help.
_MEANING = {
    "footer": "the input has changed since",
    "vectors": "its vectors are of another model, prompt, normalisation, width or device",
    "precision_ranges": "other precision_ranges",
}


@dataclass(frozen=True)
class Written:
    """One output file: its path, its number of rows, the type of its vectors, and whether an earlier run wrote it."""

    path: Path
    rows: int
    vectors: pa.DataType
    earlier: bool


@dataclass(frozen=True)
class _Job:
    """One input file, and the output file that is made from it."""

    source: Path
    target: Path
    rows: int
    about: dict[str, Any]  # the entries of record() that identify the input
    columns: list[str]  # the columns that are copied to the output, in the order of the input

    def record(self, options: dict[str, Any]) -> dict[str, Any]:
        """Returns what the output's metadata say about the run that writes the output. Runs with equal records write equal rows."""
        return {**self.about, **options, "columns": self.columns}


class ParquetEncoder:
    """Encodes Parquet files. The constructor reads only the files' metadata, and raises an error if something is wrong with them. run()
    loads the model and writes."""

    def __init__(
        self,
        encode: Encode,
        inputs: Sequence[str | os.PathLike[str]],
        folder: str | os.PathLike[str],
        *,
        columns: Sequence[str] | None = None,
        rows: int = ROWS,
        overwrite: bool = False,
    ) -> None:
        """inputs: Parquet files or folders. A folder stands for its files *.parquet.
        folder: the folder of the outputs, which have the names of the inputs. It is made if it is missing.
        columns: the columns of the input that are copied to the output. None means all.
        rows: how many rows are in memory at a time. They are one row group of the output.
        overwrite: whether an existing file may be replaced if its record differs from that of this run.

        Raises OSError, ValueError or TypeError, whose message names the file."""
        self._encode, self._folder, self._rows, self._overwrite = encode, Path(folder), rows, overwrite
        self._jobs = [self._job(path, columns) for path in _files(inputs)]
        names: dict[str, Path] = {}
        for job in self._jobs:
            if (other := names.setdefault(job.target.name, job.source)) is not job.source:
                raise ValueError(
                    f"{shown_path(other)} and {shown_path(job.source)} would both become {shown_path(job.target)}: encode them in two runs"
                )
            if job.target.exists() and job.target.samefile(job.source):
                raise ValueError(f"{shown_path(job.target)} would replace its own input: name another folder for the output")
        self.total = sum(job.rows for job in self._jobs)  # number of rows of all inputs

    def _job(self, path: Path, columns: Sequence[str] | None) -> _Job:
        with _open(path) as file:
            schema, rows = file.schema_arrow, file.metadata.num_rows
        try:
            self._encode.check(schema)
        except (ValueError, TypeError) as error:
            raise type(error)(f"{shown_path(path)}: {error}") from None
        for name in columns or ():
            if name not in schema.names:
                there = ", ".join(map(repr, schema.names[:50]))
                raise ValueError(f"{shown_path(path)} has no column {name!r}; its columns are {there}{did_you_mean(name, schema.names)}")
        kept = [name for name in schema.names if columns is None or name in columns]
        about = {"input": path.name, "bytes": path.stat().st_size, "rows": rows, "footer": _footer(path)}
        return _Job(path, self._folder / path.name, rows, about, kept)

    def run(self, progress: Callable[[int, int], None] | None) -> Iterator[Written]:
        """Yields each output when it is complete on the disk. If an earlier run with the same inputs, options and model wrote the output,
        the file is kept. progress: a function that is called after each row group with the number of finished rows and of all rows.

        Raises ValueError before anything is written if overwrite=False and a file at an output's path has another record. Also raises what
        encode() and writing raise. An error or a kill leaves no part of a file behind."""
        self._folder.mkdir(parents=True, exist_ok=True)
        options = self._encode.record()
        before = {job.target: self._earlier(job, job.record(options)) for job in self._jobs}
        done = 0
        for job in self._jobs:
            earlier = before[job.target]
            if earlier is not None:
                if progress:
                    progress(done + job.rows, self.total)
                yield Written(job.target, job.rows, earlier, True)
            else:
                yield Written(job.target, job.rows, self._write(job, job.record(options), progress, done), False)
            done += job.rows

    def _earlier(self, job: _Job, record: dict[str, Any]) -> pa.DataType | None:
        """Returns the type of the vectors in a complete output with this record, or None if the output must be written."""
        if not job.target.exists():
            return None
        why = "it is no Parquet file of pumice encode"
        try:
            found = pq.read_schema(job.target)
            known = json.loads((found.metadata or {})[KEY])
            differing = [name for name in {**record, **known} if record.get(name) != known.get(name)]
            if not differing:
                return found.field(record["vector_column"]).type
            why = ", ".join(_MEANING.get(name) or f"{name}: {known.get(name)!r} there, {record.get(name)!r} now" for name in differing)
        except (pa.ArrowInvalid, KeyError, ValueError, TypeError):
            pass
        if self._overwrite:
            return None
        raise ValueError(
            f"{shown_path(job.target)} is there, and this run would not have written it: {why}. Name another folder, or allow it to be "
            f"replaced (--overwrite)"
        )

    def _write(self, job: _Job, record: dict[str, Any], progress: Callable[[int, int], None] | None, done: int) -> pa.DataType:
        """Writes one output and returns the type of its vectors. done: the number of rows in the files that were written before it."""
        text, vector = record["text_column"], record["vector_column"]
        sink = _Sink(job.target)
        writer: pq.ParquetWriter | None = None
        rows = 0
        with _open(job.source) as file:
            # Dictionaries are only built for the input columns. Vectors hardly ever repeat, so their dictionary would be built and then
            # dropped.
            repeating = [file.schema.column(i).path for i in range(len(file.schema.names))]
            wanted = [name for name in file.schema_arrow.names if name in job.columns or name == text]
            empty = file.schema_arrow.empty_table().select(wanted)
            try:
                for part in _tables(file.iter_batches(batch_size=self._rows, columns=wanted), self._rows):
                    table = self._encode(part).select([*job.columns, vector])
                    writer = writer or self._writer(sink, table.schema, record, repeating)
                    writer.write_table(table, row_group_size=max(1, table.num_rows))
                    rows += table.num_rows
                    if progress:
                        progress(done + rows, self.total)
                if writer is None:
                    writer = self._writer(sink, self._encode(empty).select([*job.columns, vector]).schema, record, repeating)
                kind = writer.schema.field(vector).type
            finally:
                if writer is not None:
                    writer.close()
        if rows != job.rows or job.about["footer"] != _footer(job.source):
            raise OSError(f"{shown_path(job.source)} has changed while it was read: run the command again")
        sink.finish()
        return kind

    def _writer(self, sink: _Sink, schema: pa.Schema, record: dict[str, Any], repeating: list[str]) -> pq.ParquetWriter:
        schema = schema.with_metadata({**(schema.metadata or {}), KEY: json.dumps(record, ensure_ascii=False).encode()})
        return pq.ParquetWriter(pa.PythonFile(sink, mode="w"), schema, compression="zstd", use_dictionary=repeating)


class _Sink:
    """A file that pyarrow writes. It appears at its path when finish() is called. If the process ends earlier, nothing remains of the
    file."""

    closed = False

    def __init__(self, path: Path) -> None:
        self._file, self._at = _core.NewFile(str(path)), 0

    def write(self, data: bytes) -> int:
        self._file.write(self._at, data)
        self._at += len(data)
        return len(data)

    def tell(self) -> int:
        return self._at

    def flush(self) -> None:
        """Does nothing, because write() buffers nothing."""

    def close(self) -> None:
        """Does nothing, because pyarrow closes a file also after an error, and then the file must not appear."""

    def finish(self) -> None:
        """Forces the file to the disk and moves it to its path."""
        self._file.finish()


def _files(inputs: Sequence[str | os.PathLike[str]]) -> Iterator[Path]:
    for path in map(Path, inputs):
        if not path.is_dir():
            yield path
            continue
        found = sorted(path.glob("*.parquet"))
        if not found:
            raise FileNotFoundError(f"there is no file *.parquet in {shown_path(path)}")
        yield from found


def _tables(batches: Iterator[pa.RecordBatch], rows: int) -> Iterator[pa.Table]:
    """Joins batches to tables of at least `rows` rows; only the last table may have fewer. A single batch may have fewer rows, because
    pyarrow ends a batch where a row group of the file ends."""
    waiting: list[pa.RecordBatch] = []
    for batch in batches:
        waiting.append(batch)
        if sum(each.num_rows for each in waiting) >= rows:
            yield pa.Table.from_batches(waiting)
            waiting = []
    if sum(each.num_rows for each in waiting):
        yield pa.Table.from_batches(waiting)


def _open(path: Path) -> pq.ParquetFile:
    try:
        return pq.ParquetFile(path)
    except pa.ArrowInvalid as error:
        raise ValueError(f"{shown_path(path)} is not a Parquet file that can be read: {error}") from None


def _footer(path: Path) -> str:
    """Returns a hash of a Parquet file's footer, which has the positions of the columns and, as a rule, their lowest and highest values."""
    with open(path, "rb") as file:
        file.seek(-8, os.SEEK_END)
        size = int.from_bytes(file.read(4), "little")
        file.seek(-8 - size, os.SEEK_END)
        return hashlib.sha256(file.read(size)).hexdigest()[:32]
