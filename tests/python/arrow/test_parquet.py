"""`pumice encode` of Parquet files: each row exactly once, with the bits of one encode(), also if the process is killed on its way."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import samples
from patience import process_seconds

import pumice
from pumice.__main__ import main
from pumice.arrow import Encode
from pumice.arrow.parquet import ParquetEncoder

# `make test-kills` kills whole commands that encode so many rows. `make test` kills forked children that encode a few.
KILLS_OF_COMMANDS = int(os.environ.get("PUMICE_TEST_KILLS", "0"))


def texts(first: int, count: int) -> list[str]:
    words = ["stone", "river", "boat", "bank", "money", "rate", "sky", "cloud", "music", "note", "paper", "letter"]
    return [" ".join(words[(i * k + k) % len(words)] for k in range(1, 4 + i % 9)) + f" {i}" for i in range(first, first + count)]


def write(folder: Path, files: int, rows: int, row_group: int = 37) -> Path:
    folder.mkdir(parents=True)
    for k in range(files):
        first = k * rows
        tags = pa.array([f"tag {i % 3}" for i in range(rows)]).dictionary_encode()
        columns = {
            "id": list(range(first, first + rows)),
            "text": texts(first, rows),
            "tag": tags,
            "where": [{"x": i} for i in range(rows)],
        }
        pq.write_table(pa.table(columns), folder / f"part-{k}.parquet", row_group_size=row_group)
    return folder


def vectors_of(folder: Path) -> tuple[list[int], np.ndarray[Any, Any]]:
    """Returns the ids and the vectors of all files, sorted by id."""
    found = pa.concat_tables([pq.read_table(path) for path in sorted(folder.glob("*.parquet"))]).sort_by("id")
    column = found["vector"].combine_chunks()
    return found["id"].to_pylist(), np.asarray(column.flatten()).reshape(len(column), -1)


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Any:
    def call(*words: Any) -> tuple[int, str, str]:
        try:
            code = main(["encode", str(samples.minilm()), *map(str, words), "--device", "cpu"])
        except SystemExit as stop:
            code = int(stop.code or 0)
        return (code, *capsys.readouterr())

    return call


def test_files_with_a_column_more(run: Any, tmp_path: Path, minilm: pumice.Model) -> None:
    source, out = write(tmp_path / "in", 2, 90), tmp_path / "new" / "out"
    pq.write_table(pq.read_table(source / "part-0.parquet").slice(0, 0), source / "none.parquet")
    code, said, err = run(source, "-o", out, "--text-column", "text", "--rows", 40)
    assert (code, err) == (0, "")
    assert said.splitlines()[1] == f"{out}/part-0.parquet: 90 rows, fixed_size_list<item: float>[384]"
    assert sorted(path.name for path in out.iterdir()) == ["none.parquet", "part-0.parquet", "part-1.parquet"]
    ids, vectors = vectors_of(out)
    assert ids == list(range(180)) and vectors.tobytes() == minilm.encode(texts(0, 180)).tobytes()
    for path in sorted(source.iterdir()):
        before, after = pq.read_table(path), pq.read_table(out / path.name)
        assert after.schema.names == [*before.schema.names, "vector"]
        assert after.select(before.schema.names).equals(before)
    groups = pq.ParquetFile(out / "part-0.parquet").metadata
    assert [groups.row_group(i).num_rows for i in range(groups.num_row_groups)] == [40, 40, 10]


def test_a_second_run_leaves_what_is_complete(run: Any, tmp_path: Path) -> None:
    source, out = write(tmp_path / "in", 3, 10), tmp_path / "out"
    words = (source, "-o", out, "--text-column", "text")
    assert run(*words)[0] == 0
    (out / "part-1.parquet").unlink()
    times = {path.name: path.stat().st_mtime_ns for path in out.iterdir()}
    code, said, err = run(*words, "--rows", 3)  # how rows are grouped does not change them
    assert (code, err) == (0, "") and [line.endswith(", complete before") for line in said.splitlines()] == [True, False, True]
    assert {name: (out / name).stat().st_mtime_ns for name in times} == times
    assert vectors_of(out)[0] == list(range(30))


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (["--truncate-dim", "64"], "its vectors are of another model, prompt, normalisation, width or device"),
        (["--precision", "ubinary"], "precision: 'float32' there, 'ubinary' now"),
        (["--null", "empty"], "null: 'error' there, 'empty' now"),
        (["--columns", "id,tag"], r"columns: ['id', 'text', 'tag', 'where'] there, ['id', 'tag'] now"),
        (["--vector-column", "v"], "vector_column: 'vector' there, 'v' now"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_outputs_of_another_run_are_an_error(run: Any, tmp_path: Path, options: list[str], why: str) -> None:
    source, out = write(tmp_path / "in", 2, 6), tmp_path / "out"
    words = (source, "-o", out, "--text-column", "text")
    assert run(*words)[0] == 0
    before = (out / "part-0.parquet").read_bytes()
    (out / "part-1.parquet").unlink()
    code, said, err = run(*words, *options)
    assert (code, said) == (1, "") and why in err and "(--overwrite)" in err and len(err.splitlines()) == 1
    assert (out / "part-0.parquet").read_bytes() == before and not (out / "part-1.parquet").exists()
    code, _, err = run(*words, *options, "--overwrite")
    assert (code, err) == (0, "") and (out / "part-0.parquet").read_bytes() != before
    code, said, _ = run(*words, *options, "--overwrite")
    assert code == 0 and said.count("complete before") == 2


def test_an_input_that_has_changed(run: Any, tmp_path: Path) -> None:
    source, out = write(tmp_path / "in", 1, 6), tmp_path / "out"
    words = (source / "part-0.parquet", "-o", out, "--text-column", "text")
    assert run(*words)[0] == 0
    pq.write_table(pq.read_table(source / "part-0.parquet").slice(1), source / "part-0.parquet")
    code, _, err = run(*words)
    assert code == 1 and "the input has changed since" in err and "rows: 6 there, 5 now" in err
    (out / "part-0.parquet").write_text("something of the user's")
    code, _, err = run(*words)
    assert code == 1 and "it is no Parquet file of pumice encode" in err
    assert (out / "part-0.parquet").read_text() == "something of the user's"


def test_an_input_that_changes_while_it_is_read(tmp_path: Path, minilm: pumice.Model) -> None:
    source = write(tmp_path / "in", 1, 60)
    files = ParquetEncoder(Encode(minilm), [source], tmp_path / "out", rows=10)

    def change(done: int, total: int) -> None:
        if done == 30:
            (source / "part-0.parquet").unlink()
            pq.write_table(pa.table({"text": texts(5, 60)}), source / "part-0.parquet")

    with pytest.raises(OSError, match="has changed while it was read"):
        list(files.run(change))
    assert list((tmp_path / "out").iterdir()) == []


@pytest.mark.parametrize(
    ("words", "match"),
    [
        (["$IN/part-0.parquet", "-o", "$OUT", "--text-column", "txt"], "in/part-0.parquet: the table has no column 'txt'"),
        (["$IN/part-0.parquet", "-o", "$OUT", "--text-column", "id"], "values of type int64, not strings"),
        (
            ["$IN", "-o", "$OUT", "--text-column", "text", "--columns", "id,tags"],
            "has no column 'tags'; its columns are 'id', 'text', 'tag'",
        ),
        (["$IN", "-o", "$IN", "--text-column", "text"], "would replace its own input"),
        (["$IN", "$IN/part-0.parquet", "-o", "$OUT", "--text-column", "text"], "would both become"),
        (["$OUT", "-o", "$OUT", "--text-column", "text"], "No such file or directory"),
        (["$IN/..", "-o", "$OUT", "--text-column", "text"], "there is no file *.parquet in"),
        (["-o", "$OUT", "--text-column", "text"], "no Parquet file is named"),
        (["$IN/part-0.parquet", "-o", "$OUT"], "is a Parquet file: --text-column says which"),
        (["a", "-o", "$OUT", "--columns", "x"], "--columns is for Parquet files: --text-column says which"),
        (["a", "b", "-o", "$OUT"], "2 inputs, and a .npy file has the texts of one"),
        (["$IN", "-o", "$OUT", "--text-column", "text", "--precision", "int8"], 'precision="int8" needs precision_ranges='),
        (["$IN", "-o", "$OUT", "--text-column", "text", "--precision-ranges", __file__], "is not a .npy file of numbers"),
        (["$IN", "-o", "$OUT", "--text-column", "text", "--prompt-name", "passage"], "prompt_name='passage' is not a prompt"),
    ],
    ids=lambda value: None if isinstance(value, str) else " ".join(value).replace(__file__, "FILE"),
)
def test_errors_are_one_line(run: Any, tmp_path: Path, words: list[str], match: str) -> None:
    names = {"$IN": str(write(tmp_path / "in", 2, 5)), "$OUT": str(tmp_path / "out")}
    for name, path in names.items():
        words = [word.replace(name, path) for word in words]
    code, said, err = run(*words)
    assert (code, said) == (1, "") and match in err and len(err.splitlines()) == 1
    assert not list((tmp_path / "out").glob("*"))


def test_nulls_and_ranges(run: Any, tmp_path: Path, minilm: pumice.Model) -> None:
    (tmp_path / "in").mkdir()
    pq.write_table(pa.table({"id": [0, 1, 2], "text": ["a", None, "b"]}), tmp_path / "in" / "a.parquet")
    words = (tmp_path / "in", "-o", tmp_path / "out", "--text-column", "text")
    code, _, err = run(*words)
    assert code == 1 and "column 'text' has 1 nulls, the first in row 1" in err and list((tmp_path / "out").iterdir()) == []
    assert run(*words, "--null", "null")[0] == 0
    assert [value.is_valid for value in pq.read_table(tmp_path / "out" / "a.parquet")["vector"]] == [True, False, True]
    vectors = minilm.encode(texts(0, 20))
    ranges = np.stack([vectors.min(0), vectors.max(0)])
    np.save(tmp_path / "ranges.npy", ranges)
    assert run(*words, "--null", "empty", "--overwrite", "--precision", "int8", "--precision-ranges", tmp_path / "ranges.npy")[0] == 0
    found = vectors_of(tmp_path / "out")[1]
    assert np.array_equal(found, minilm.encode(["a", "", "b"], precision="int8", precision_ranges=ranges))


# ---------------------------------------------------------------- kill -9
def killed(start: Any, seconds: float) -> bool:
    """Runs start(), which returns the id of a new process, and kills that process when it has used so much processor time. Returns whether
    it was still running."""
    child = start()
    while process_seconds(child) < seconds:
        if os.waitpid(child, os.WNOHANG) != (0, 0):
            return False
        time.sleep(0.002)
    os.kill(child, signal.SIGKILL)
    return os.WIFSIGNALED(os.waitpid(child, 0)[1])


def complete(out: Path, rows: int) -> int:
    """Returns the number of files in the output, each of which must be complete."""
    found = list(out.glob("*.parquet"))
    assert all(pq.read_table(path).num_rows == rows for path in found)
    return len(found)


def moments(seconds: float, times: int) -> Iterator[float]:
    rng = random.Random(7)
    for _ in range(times):
        yield rng.uniform(0, seconds)


@pytest.mark.alone
def test_a_run_that_is_killed_goes_on(tmp_path: Path, minilm: pumice.Model) -> None:
    source, out, rows = write(tmp_path / "in", 5, 60), tmp_path / "out", 60

    def encode(folder: Path) -> list[Any]:
        return list(ParquetEncoder(Encode(minilm), [source], folder, rows=16).run(None))

    def start() -> int:
        child = os.fork()
        if child == 0:
            try:
                encode(out)
                os._exit(0)
            finally:
                os._exit(1)
        return child

    def seconds_of(folder: Path) -> float:
        started = time.process_time()
        encode(folder)
        return time.process_time() - started

    seconds, stopped, grown = min(seconds_of(tmp_path / "unbroken"), seconds_of(tmp_path / "again")), 0, [0]
    for moment in moments(0.6 * seconds, 10):
        stopped += killed(start, moment)
        grown.append(complete(out, rows))
    assert stopped >= 3 and grown == sorted(grown)
    last = encode(out)
    assert sum(done.earlier for done in last) == grown[-1]
    ids, vectors = vectors_of(out)
    assert ids == list(range(300)) and vectors.tobytes() == minilm.encode(texts(0, 300)).tobytes()
    assert sorted(path.name for path in out.iterdir()) == [f"part-{k}.parquet" for k in range(5)]


@pytest.mark.alone
@pytest.mark.skipif(not KILLS_OF_COMMANDS, reason="not run here: `make test-kills` kills whole commands")
def test_commands_that_are_killed(tmp_path: Path, minilm: pumice.Model) -> None:
    files, rows = 10, KILLS_OF_COMMANDS // 10
    source, out = write(tmp_path / "in", files, rows, row_group=1000), tmp_path / "out"
    words = [str(samples.minilm()), str(source), "--text-column", "text", "--rows", "512", "--device", "cpu"]
    paths = os.pathsep.join(filter(None, [str(Path(pumice.__file__).parent.parent), os.environ.get("PYTHONPATH", "")]))

    def start() -> int:
        command = [sys.executable, "-m", "pumice", "encode", *words, "-o", str(out)]
        return subprocess.Popen(command, env={**os.environ, "PYTHONPATH": paths}, stdout=subprocess.DEVNULL).pid

    started = time.process_time()
    minilm.encode(texts(0, rows))
    a_file = time.process_time() - started
    stopped, grown = 0, [0]
    for moment in moments(4 * a_file + 2, 10):
        stopped += killed(start, moment)
        grown.append(complete(out, rows))
        print(f"killed after {moment:.2f} s of processor time: {grown[-1]} of {files} files")
    assert stopped >= 3 and grown == sorted(grown)
    os.waitpid(start(), 0)
    ids, vectors = vectors_of(out)
    assert ids == list(range(files * rows)) and vectors.tobytes() == minilm.encode(texts(0, files * rows)).tobytes()
    assert len(list(out.iterdir())) == files
