"""pumice.arrow.Encode and Generate: the columns that they add must hold what encode() and generate() return, however a table is cut."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import samples
from patience import wait_until

import pumice
from pumice.arrow import Encode, Generate
from pumice.arrow.columns import fixed_size_lists

TEXTS = ["A stone that floats.", "", "Der Fluß trägt Boote.", "one more", "河は海へ流れる", "one more"]
CPU = {"device": "cpu"}


@pytest.fixture(scope="module")
def encode() -> Encode:
    return Encode(samples.minilm(), load=CPU)


def rows_of(column: Any) -> np.ndarray[Any, Any]:
    chunks = [np.asarray(chunk.flatten()).reshape(len(chunk), -1) for chunk in column.chunks]
    return np.concatenate(chunks)


def table(*kinds: Any) -> pa.Table:
    return pa.table({"id": list(range(len(TEXTS))), "text": pa.array(TEXTS, *kinds)})


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.string_view(), "dictionary"], ids=str)
def test_vectors_are_those_of_encode(encode: Encode, minilm: pumice.Model, kind: Any) -> None:
    given = table(pa.large_string() if kind == "dictionary" else kind)
    if kind == "dictionary":
        given = given.set_column(1, "text", given["text"].dictionary_encode())
    found = encode(given)
    assert found.schema.names == ["id", "text", "vector"]
    assert found["vector"].type == pa.list_(pa.float32(), 384)
    assert found["text"].equals(given["text"])
    wanted = minilm.encode(TEXTS)
    assert rows_of(found["vector"]).tobytes() == wanted.tobytes()
    # The same bits, however the table is cut: in batches, in chunks, from the middle.
    parts = [encode(batch) for batch in given.to_batches(max_chunksize=2)]
    assert all(isinstance(part, pa.RecordBatch) for part in parts)
    assert rows_of(pa.Table.from_batches(parts)["vector"]).tobytes() == wanted.tobytes()
    chunked = pa.concat_tables([given.slice(0, 1), given.slice(1, 4), given.slice(5)])
    assert rows_of(encode(chunked)["vector"]).tobytes() == wanted.tobytes()
    assert rows_of(encode(given.slice(2, 3))["vector"]).tobytes() == wanted[2:5].tobytes()


def test_the_column_is_the_memory_of_the_vectors() -> None:
    rows = np.arange(12, dtype=np.float32).reshape(4, 3)
    lists = fixed_size_lists(rows)
    assert lists.values.to_numpy(zero_copy_only=True).ctypes.data == rows.ctypes.data
    assert lists.to_pylist() == rows.tolist()


def test_a_table_without_rows_gets_the_same_columns(encode: Encode) -> None:
    assert encode(table().slice(0, 0)).schema == encode(table()).schema
    none = Generate(samples.smollm2(), prompt="text", finish_reason="why", load=CPU)(table().slice(0, 0))
    assert (none.num_rows, none.schema.names) == (0, ["id", "text", "generated", "why"])


def test_precisions(minilm: pumice.Model) -> None:
    vectors = minilm.encode(TEXTS)
    ranges = np.stack([vectors.min(0), vectors.max(0)])
    for precision, kind, width in (
        ("int8", pa.int8(), 384),
        ("uint8", pa.uint8(), 384),
        ("binary", pa.int8(), 48),
        ("ubinary", pa.uint8(), 48),
    ):
        options: dict[str, Any] = {"precision": precision} | ({"precision_ranges": ranges} if width == 384 else {})
        found = Encode(minilm, **options)(table())["vector"]
        assert found.type == pa.list_(kind, width)
        assert rows_of(found).tobytes() == minilm.encode(TEXTS, **options).tobytes()
    with pytest.raises(ValueError, match=r"precision_ranges=, because the ranges of a batch"):
        Encode(minilm, precision="int8")(table())


def test_options_reach_encode(minilm: pumice.Model) -> None:
    found = Encode(minilm, vector="v", prompt="query: ", truncate_dim=32, role="query")(table())
    assert rows_of(found["v"]).tobytes() == minilm.encode_query(TEXTS, prompt="query: ", truncate_dim=32).tobytes()


def test_nulls(minilm: pumice.Model) -> None:
    given = pa.table({"text": pa.chunked_array([["a", "b"], ["c", None, "d"]])})
    with pytest.raises(ValueError, match=r"column 'text' has 1 nulls, the first in row 3"):
        Encode(minilm)(given)
    with_empty = Encode(minilm, null="empty")(given)["vector"]
    assert rows_of(with_empty).tobytes() == minilm.encode(["a", "b", "c", "", "d"]).tobytes()
    with_null = Encode(minilm, null="null")(given)["vector"]
    assert [value.is_valid for value in with_null] == [True, True, True, False, True]
    assert np.array_equal(with_null.drop_null().combine_chunks().flatten(), minilm.encode(["a", "b", "c", "d"]).ravel())
    in_dictionary = pa.table({"text": pa.DictionaryArray.from_arrays([0, 1, 0], ["a", None])})
    assert [value.is_valid for value in Encode(minilm, null="null")(in_dictionary)["vector"]] == [True, False, True]
    only_nulls = Encode(minilm, null="null")(pa.table({"text": pa.nulls(2)}))["vector"]
    assert only_nulls.type == pa.list_(pa.float32(), 384) and only_nulls.null_count == 2


def test_arrays_alone(encode: Encode, minilm: pumice.Model) -> None:
    found = encode.array(pa.chunked_array([TEXTS[:2], TEXTS[2:]]))
    assert isinstance(found, pa.FixedSizeListArray) and found.flatten().to_numpy().tobytes() == minilm.encode(TEXTS).tobytes()
    with pytest.raises(TypeError, match="a pyarrow.Array or ChunkedArray, not list"):
        encode.array(TEXTS)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="values of type int64, not strings"):
        encode.array(pa.array([1]))


def test_a_model_is_loaded_once_in_a_process(encode: Encode) -> None:
    again = pickle.loads(pickle.dumps(encode))
    assert again.model is encode.model is Encode(samples.minilm(), text="other", load=dict(CPU)).model
    assert Encode(samples.minilm(), load={**CPU, "threads": 1}).model is not encode.model


def test_a_model_that_is_given_is_used_and_pickles_as_its_path(minilm: pumice.Model) -> None:
    encode = Encode(minilm)
    assert encode.model is minilm
    pickled = pickle.dumps(encode)
    assert len(pickled) < 2000
    other = pickle.loads(pickled)
    assert other.model is not minilm
    assert other(table()).equals(encode(table()))


def test_relative_paths_are_those_of_the_process_that_made_them(tmp_path: Path) -> None:
    """A worker process may have another current folder."""
    old = os.getcwd()
    os.chdir(samples.minilm().parent)
    try:
        pickled = pickle.dumps(Encode(samples.minilm().name, load=CPU))
    finally:
        os.chdir(old)
    (tmp_path / "encode").write_bytes(pickled)
    code = "import pickle, pyarrow as pa; print(pickle.load(open('encode', 'rb')).array(pa.array(['a'])).type)"
    paths = os.pathsep.join(filter(None, [str(Path(pumice.__file__).parent.parent), os.environ.get("PYTHONPATH", "")]))
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env={**os.environ, "PYTHONPATH": paths}, capture_output=True, text=True
    )
    assert (done.returncode, done.stdout) == (0, "fixed_size_list<item: float>[384]\n"), done.stderr


@pytest.mark.parametrize(
    ("given", "error", "match"),
    [
        ({"text": "txt"}, ValueError, r"no column 'txt' \(text=\); its columns are 'id', 'text'; did you mean 'text'\?"),
        ({"text": "id"}, TypeError, r"column 'id' \(text=\) has values of type int64, not strings"),
        ({"vector": "id"}, ValueError, r"a column 'id' already: give the new one another name by vector="),
        ({"vector": "text"}, ValueError, r"text='text', vector='text' must be different columns"),
        ({"vector": ""}, ValueError, "vector is empty: it must name a column"),
        ({"text": 3}, TypeError, "text is a int, not a string"),
        ({"null": "drop"}, ValueError, r"null='drop' is not one of 'error', 'empty', 'null'"),
        ({"role": "passage"}, ValueError, r"role='passage' is not one of None, 'query', 'document'"),
        ({"precision": "int4"}, ValueError, r"precision='int4' is not one of"),
        ({"normalise": True}, TypeError, r"pumice.arrow.Encode\(\) has no argument 'normalise'; did you mean 'normalize'\?"),
        ({"output": "tokens"}, TypeError, r"has no argument 'output'"),
        ({"details": True}, TypeError, r"pumice.arrow.Encode\(\) has no argument 'details'"),
        ({"load": {"devic": "cpu"}}, TypeError, r"load\(\) has no argument 'devic'; did you mean 'device'\?"),
        ({"load": "cpu"}, TypeError, r"load must be a dict with options of pumice.load\(\), not 'cpu'"),
        ({"load": {"progress": lambda *_: None}}, TypeError, r"an option of load= cannot be pickled"),
        ({"source": 3}, TypeError, r"source must be a path, a hub id or a Model, not int 3"),
    ],
)  # fmt: skip
def test_wrong_arguments_are_named(given: dict[str, Any], error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        Encode(**{"source": samples.minilm(), "load": CPU, **given})(table())


def test_wrong_tables(encode: Encode, minilm: pumice.Model) -> None:
    with pytest.raises(TypeError, match=r"maps a pyarrow.Table or RecordBatch, not dict \(Ray Data: map_batches"):
        encode({"text": ["a"]})  # type: ignore[type-var]
    twice = pa.Table.from_arrays([pa.array(["a"]), pa.array(["b"])], names=["text", "text"])
    with pytest.raises(ValueError, match=r"2 columns 'text' \(text=\)"):
        encode(twice)
    with pytest.raises(TypeError, match=r"load=.* was given beside a Model"):
        Encode(minilm, load=CPU)
    with pytest.raises(FileNotFoundError, match="no/such/model"):
        Encode("/no/such/model")(table())


def test_check_takes_a_schema(encode: Encode) -> None:
    for given in (None, table(), {"text": "string"}):
        with pytest.raises(TypeError, match=r"^schema must be a pyarrow.Schema, not "):
            encode.check(given)


def test_strings_that_are_no_utf8(encode: Encode, minilm: pumice.Model, smollm2: pumice.Model) -> None:
    offsets = np.array([0, 1, 2, 4], np.int32)
    bad = pa.Array.from_buffers(pa.string(), 3, [None, pa.py_buffer(offsets), pa.py_buffer(b"abc\xff")])
    says = r"has text that is not UTF-8 in row {}: byte 0xff at place 1 of the text$"
    with pytest.raises(ValueError, match="^inputs " + says.format(2)) as caught:
        minilm.encode(bad)
    assert caught.value.argument == "inputs"  # type: ignore[attr-defined]
    for array in (bad, bad.cast(pa.large_string()), bad.dictionary_encode()):
        with pytest.raises(ValueError, match="^the array of texts " + says.format(2)):
            encode.array(array)
    behind_a_null = pa.chunked_array([pa.array([None], pa.string()), bad])
    for job in (Encode(minilm, null="null"), Generate(smollm2, prompt="text", null="null")):
        with pytest.raises(ValueError, match="^column 'text' " + says.format(3)):
            job(pa.table({"text": behind_a_null}))
    unused = pa.DictionaryArray.from_arrays(pa.array([0, 1]), bad)
    assert encode.array(unused).to_pylist() == minilm.encode(["a", "b"]).tolist()


# ---------------------------------------------------------------- Generate
def test_texts_are_those_of_generate(smollm2: pumice.Model) -> None:
    prompts = ["The capital of France is", "Once upon a time"]
    generate = Generate(smollm2, text="answer", finish_reason="why", max_new_tokens=5, temperature=0)
    found = generate(pa.table({"prompt": prompts}))
    wanted = smollm2.generate(prompts, max_new_tokens=5, temperature=0)
    assert found.to_pydict() == {"prompt": prompts, "answer": [g.text for g in wanted], "why": [g.finish_reason for g in wanted]}


def test_chats_and_nulls(smollm2: pumice.Model) -> None:
    generate = Generate(smollm2, chat=True, null="null", finish_reason="why", max_new_tokens=4, temperature=0)
    found = generate(pa.table({"prompt": ["Say yes.", None, "Say no."]})).to_pylist()
    asked = [smollm2.chat(text, max_new_tokens=4, temperature=0).text for text in ("Say yes.", "Say no.")]
    assert [row["generated"] for row in found] == [asked[0], None, asked[1]]
    assert found[1]["why"] is None


def test_chats_end_with_an_error_of_one(smollm2: pumice.Model) -> None:
    generate = Generate(smollm2, chat=True, max_new_tokens=7000, temperature=0, min_p=0.0, ignore_eos=True)
    before = smollm2.cache_stats()["pages_in_use"]
    with pytest.raises(pumice.PumiceError, match="tokens"):
        generate(pa.table({"prompt": ["stone " * 20000, "Say yes.", "Say no."]}))
    wait_until(lambda: smollm2.cache_stats()["pages_in_use"] == before)


def test_what_generate_does_not_take(smollm2: pumice.Model) -> None:
    with pytest.raises(TypeError, match=r"pumice.arrow.Generate\(\) has no argument 'n'"):
        Generate(smollm2, n=2)
    with pytest.raises(TypeError, match="chat must be True or False"):
        Generate(smollm2, chat="yes")  # type: ignore[arg-type]
    with pytest.raises(pumice.UnsupportedTaskError, match=r"generate\(\) needs a decoder"):
        Generate(samples.minilm(), prompt="text", load=CPU)(table())


def test_without_pyarrow_the_error_says_what_to_install() -> None:
    code = "import sys; sys.modules['pyarrow'] = None; import pumice; import pumice.arrow"
    paths = os.pathsep.join(filter(None, [str(Path(pumice.__file__).parent.parent), os.environ.get("PYTHONPATH", "")]))
    done = subprocess.run([sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": paths}, capture_output=True, text=True)
    assert 'ImportError: pumice.arrow needs the package pyarrow: pip install "pumice[arrow]"' in done.stderr
