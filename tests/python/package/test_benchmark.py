"""`pumice bench --against`: a peer that is installed works in turn with pumice. Small stand-ins take the places of the peers' packages."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import samples

from pumice.__main__ import main
from pumice.machine import benchmark

LLAMA = """
import sys
class Llama:
    def __init__(self, path, n_ctx, n_threads, n_threads_batch, verbose):
        assert path.endswith(".gguf") and n_ctx == 24 and n_threads == n_threads_batch == 1 and not verbose
        self.read = 0
        print("a line that is no answer")
    def reset(self):
        self.read = 0
    def eval(self, ids):
        self.read += len(ids)
        assert self.read <= 24
"""
TRANSFORMERS = """
class SentenceTransformer:
    def __init__(self, path, device):
        assert device == "cpu"
    def encode(self, texts, show_progress_bar):
        raise RuntimeError(f"no room for {len(texts)} texts")
"""


@pytest.fixture(name="peers")
def _peers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Returns a folder from which the peer's process imports."""
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(benchmark, "_ticks", lambda: (0, 0))
    for name, package in (("llama_cpp_python", "llama-cpp-python"), ("sentence_transformers", "sentence-transformers"), ("torch", "torch")):
        folder = tmp_path / f"{name}-1.2.3.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.2.3\n")
    (tmp_path / "torch.py").write_text("def set_num_threads(n):\n    assert n == 1\n")
    return tmp_path


def bench(*words: object) -> int:
    return main(["bench", *map(str, words), "--device", "cpu", "--threads", "1"])


def test_a_decoder(peers: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (peers / "llama_cpp.py").write_text(LLAMA)
    words = ("--against", "llama.cpp", "--prompt-tokens", 16, "--tokens", 8, "--rounds", 2)
    assert bench(samples.smollm2(), *words) == 0
    out = capsys.readouterr().out
    assert "2 rounds in turn" in out and "llama-cpp-python 1.2.3" in out
    rows = {line.split()[0]: line for line in out.splitlines() if line.endswith("tokens/s")}
    assert rows.keys() >= {"prefill", "decode"} and all(len(row.split()) == 10 for row in rows.values()), out


def test_a_peer_that_fails(peers: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (peers / "sentence_transformers.py").write_text(TRANSFORMERS)
    assert bench(samples.minilm(), "--against", "sentence-transformers", "--sentences", 5) == 1
    assert capsys.readouterr().err == "pumice: sentence-transformers: RuntimeError: no room for 5 texts\n"


@pytest.mark.parametrize(("worked", "said"), [(10, False), (90, True)])
def test_a_busy_machine(peers: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, worked: int, said: bool) -> None:
    ticks = iter([(1000, 1000), (1000 + worked, 1000 + 100 - worked)])
    monkeypatch.setattr(benchmark, "_ticks", lambda: next(ticks))
    (peers / "llama_cpp.py").write_text(LLAMA)
    assert bench(samples.smollm2(), "--against", "llama.cpp", "--prompt-tokens", 16, "--tokens", 8, "--rounds", 1) == 0
    err = capsys.readouterr().err
    assert ("pumice: warning: other programs keep 90 % of the processors busy. " in err) is said
    assert err.count("\n") == said


def test_busy_reads_what_linux_says() -> None:
    worked, idle = benchmark._ticks()
    assert worked > 0
    assert idle > 0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--against", "llama.cpp"), "ModuleNotFoundError: No module named 'llama_cpp'. Install llama-cpp-python for "),
        (("--against", "llama.cpp", "--peer-python", "/no/python"), "--peer-python /no/python is no program"),
        (("--against", "llama.cpp", "--peer-python", "/bin/false"), "llama.cpp ended with exit code 1 and without an answer"),
        (("--against", "sentence-transformers"), "sentence-transformers is compared for vectors, and this model gives text"),
    ],
)
def test_what_cannot_be_compared(peers: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], message: str) -> None:
    assert sys.path and peers.exists()
    assert bench(samples.smollm2(), *words, "--prompt-tokens", 4, "--tokens", 2) == 1
    assert message in capsys.readouterr().err
