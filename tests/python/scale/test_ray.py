"""The recipes for Ray Data (examples/ray_encode.py) and Ray Serve (docs/scale-out.md) on a cluster of two nodes on this machine. `make
test-ray` installs Ray and runs this file. Elsewhere it is not run.

PUMICE_TEST_RAY is the number of sentences (2,000 if it is not given). The speeds are printed, and decide nothing."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import samples
from paths import ROOT

import pumice

ray = pytest.importorskip("ray", reason="not run here: `make test-ray` installs Ray")
pytest.importorskip("ray.data", reason="not run here: `make test-ray` installs Ray")

import ray_encode  # noqa: E402
import ray_lines  # noqa: E402
from ray.cluster_utils import Cluster  # noqa: E402

SENTENCES = int(os.environ.get("PUMICE_TEST_RAY", "2000"))
FILES = 8
WORDS = ["stone", "river", "boat", "bank", "money", "rate", "sky", "cloud", "music", "note", "paper", "letter", "harbour", "winter"]


def sentence(i: int) -> str:
    return " ".join(WORDS[(i * k + i // 7 + k * k) % len(WORDS)] for k in range(1, 6 + i % 11)) + f" {i}"


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("in")
    for part in np.array_split(np.arange(SENTENCES), FILES):
        table = pa.table({"id": part, "text": [sentence(int(i)) for i in part]})
        pq.write_table(table, folder / f"{part[0]:08}.parquet", row_group_size=1 << 14)
    return folder


@pytest.fixture(scope="module")
def wanted() -> tuple[np.ndarray[Any, Any], float]:
    """Returns the vectors of one encode() call of all sentences, and the seconds that it took."""
    sentences = [sentence(i) for i in range(SENTENCES)]
    with pumice.load(samples.minilm(), device="cpu", threads=2) as model:
        model.encode(sentences[:64])
        started = time.perf_counter()
        return model.encode(sentences), time.perf_counter() - started


@pytest.fixture
def cluster() -> Iterator[Any]:
    """A cluster of two nodes, which count as four processors each. One actor of one thread runs on each node, and the other processors are
    left for reading, writing and the checkpoint."""
    paths = os.pathsep.join([str(Path(pumice.__file__).parent.parent), str(ROOT / "examples")])
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [paths, os.environ.get("PYTHONPATH", "")]))
    os.environ.setdefault("RAY_DATA_DISABLE_PROGRESS_BARS", "1")
    # On a busy machine the first worker takes longer than Ray's 60 s, and ray.init() then waits for it for ever.
    os.environ.setdefault("RAY_worker_register_timeout_seconds", "600")
    nodes = Cluster()
    try:
        start_node(nodes, include_dashboard=False)
        nodes.second = start_node(nodes)
        ray.init(address=nodes.address, log_to_driver=False)
        while sum(node["Alive"] for node in ray.nodes()) < 2:
            time.sleep(0.1)
        yield nodes
    finally:
        ray.shutdown()
        nodes.shutdown()


def start_node(nodes: Any, **options: Any) -> Any:
    """Adds a node to a cluster, the head first. Tries five times, because Ray gives up after 30 s, which a busy machine may need."""
    for left in reversed(range(5)):
        try:
            return nodes.add_node(wait=False, num_cpus=4, object_store_memory=200 << 20, **options)
        except Exception as error:
            if not left or "timed out during startup" not in str(error):
                raise
            print("a node did not start within Ray's 30 s; once more")
    raise AssertionError


def rows_of(folder: Path) -> tuple[list[int], np.ndarray[Any, Any]]:
    """Returns the ids and vectors of all rows in a folder, sorted by id."""
    found = pa.concat_tables([pq.read_table(path) for path in sorted(folder.rglob("*.parquet"))]).sort_by("id")
    return found["id"].to_pylist(), np.asarray(found["vector"].combine_chunks().flatten()).reshape(found.num_rows, -1)


@pytest.mark.timeout(3600)
def test_two_nodes_give_the_bits_of_one_encode(cluster: Any, source: Path, wanted: Any, tmp_path: Path) -> None:
    small_blocks()
    seen: list[tuple[float, int]] = []
    over = threading.Event()
    watcher = threading.Thread(target=watch_rows, args=(tmp_path / "done", seen, over))
    watcher.start()
    started = time.perf_counter()
    try:
        ray_encode.encode(str(samples.minilm()), str(source), str(tmp_path / "out"), str(tmp_path / "done"), nodes=2, cpus=1, rows=256)
    finally:
        ended = time.perf_counter()
        over.set()
        watcher.join()
    ids, vectors = rows_of(tmp_path / "out")
    assert ids == list(range(SENTENCES))
    assert vectors.tobytes() == wanted[0].tobytes()
    first, written = seen[0]
    print(
        f"\n{SENTENCES} sentences: one process {SENTENCES / wanted[1]:.0f} sentences/s ({wanted[1]:.1f} s), "
        f"Ray Data {(SENTENCES - written) / (ended - first):.0f} sentences/s after the first {written} rows were written, "
        f"which took {first - started:.1f} of {ended - started:.1f} s"
    )


def small_blocks() -> None:
    """Makes Ray's blocks small: about 170 vectors. With its own sizes, from 1 MiB on, one actor would get all rows of these tests, and with
    blocks of 2,500 vectors 100,000 sentences took 1.5 times as long."""
    context = ray.data.DataContext.get_current()
    context.target_min_block_size, context.target_max_block_size = 1, 1 << 18


def watch_rows(checkpoint: Path, seen: list[tuple[float, int]], over: threading.Event) -> None:
    """Notes when the first rows were written, and how many."""
    while not over.wait(0.2):
        if not seen and (rows := rows_done(checkpoint)):
            seen.append((time.perf_counter(), rows))


def rows_done(checkpoint: Path) -> int:
    """Returns the number of rows that a checkpoint says are written."""
    return sum(pq.read_metadata(path).num_rows for path in checkpoint.glob("*.parquet") if not path.name.endswith(".pending.parquet"))


@pytest.mark.timeout(3600)
def test_a_node_that_dies(cluster: Any, source: Path, wanted: Any, tmp_path: Path) -> None:
    """A node is killed once some rows are written, and the job a little later. The same job must then write the missing rows on the node
    that is left, and no row twice."""
    out, done = tmp_path / "out", tmp_path / "done"
    command = [sys.executable, "-c", JOB, cluster.address, str(samples.minilm()), str(source), str(out), str(done)]
    job = subprocess.Popen([*command, "2"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while not rows_done(done) and job.poll() is None:
        time.sleep(0.05)
    assert job.poll() is None, "the job was done before the node could be killed: take more sentences"
    cluster.remove_node(cluster.second, allow_graceful=False)
    time.sleep(2)
    job.kill()
    job.wait()
    before = rows_done(done)
    print(f"\n{before} of {SENTENCES} rows were written when the node and the job were killed")
    assert 0 < before < SENTENCES
    again = subprocess.run([*command, "1"], capture_output=True, text=True)
    assert again.returncode == 0, again.stderr[-3000:]
    ids, vectors = rows_of(out)
    assert ids == list(range(SENTENCES))
    assert vectors.tobytes() == wanted[0].tobytes()


@pytest.mark.timeout(3600)
def test_lines_of_requests(cluster: Any, wanted: Any, tmp_path: Path) -> None:
    """All lines are answered once, with the vectors of one process, also after one file of answers was cut as by the death of its node."""
    lines = [{"custom_id": f"{i}", "url": "/v1/embeddings", "body": {"input": sentence(i)}} for i in range(300)]
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    given = (str(samples.minilm()), str(tmp_path / "in.jsonl"), str(tmp_path / "parts"))
    parts = ray_lines.run(*given, cpus=1, lines=100)
    os.truncate(parts[1], parts[1].stat().st_size // 2)
    assert ray_lines.run(*given, cpus=1, lines=100) == parts
    found = [json.loads(line) for part in parts for line in part.read_text().splitlines()]
    assert len(found) == 300
    for line in found:
        vector = line["response"]["body"]["data"][0]["embedding"]
        assert np.array(vector, np.float32).tobytes() == wanted[0][int(line["custom_id"])].tobytes()


@pytest.mark.timeout(3600)
def test_replicas_of_the_server(cluster: Any, wanted: Any) -> None:
    """The recipe for Ray Serve runs as the page has it, on fewer processors and with the sample model."""
    from ray import serve

    page = (ROOT / "docs" / "scale-out.md").read_text(encoding="utf-8").partition("\n## Ray Serve\n")[2]
    code = re.search(r"```python\n(.*?)```", page, re.DOTALL)[1]  # type: ignore[index]
    for old, new in {"/models/minilm": str(samples.minilm()), '"threads": 8': '"threads": 1', '"num_cpus": 8': '"num_cpus": 1'}.items():
        assert old in code
        code = code.replace(old, new)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{free.getsockname()[1]}"
    names: dict[str, Any] = {"__name__": "recipe"}
    exec(code, names)
    serve.start(http_options={"host": "127.0.0.1", "port": int(address.rpartition(":")[2])})
    try:
        serve.run(names["server"])
        for i in range(20):
            body = json.dumps({"model": "embed", "input": sentence(i)}).encode()
            request = urllib.request.Request(f"{address}/v1/embeddings", body, {"content-type": "application/json"})
            with urllib.request.urlopen(request, timeout=600) as answer:
                vector = json.load(answer)["data"][0]["embedding"]
            assert np.array(vector, np.float32).tobytes() == wanted[0][i].tobytes()
        with urllib.request.urlopen(f"{address}/", timeout=600) as answer:
            assert answer.read().startswith(b"<!doctype html>")
    finally:
        serve.shutdown()


JOB = """
import sys, ray, ray.data, ray_encode
context = ray.data.DataContext.get_current()
context.target_min_block_size, context.target_max_block_size = 1, 1 << 18
address, model, source, out, done, nodes = sys.argv[1:]
ray.init(address, log_to_driver=False)
ray_encode.encode(model, source, out, done, nodes=int(nodes), cpus=1, rows=128)
"""
