"""The notebooks of examples/: every cell must run in a fresh kernel of this Python, and show what is stored in the file.

`python tests/python/package/test_notebook.py --write [name ...]` runs them (tour, inside, retrieval, search, structured) and stores what
they show now."""

from __future__ import annotations

import html
import math
import os
import platform
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

import nbformat
import pytest
from ipykernel.kernelspec import get_kernel_dict
from jupyter_client.kernelspec import KernelSpec, KernelSpecManager
from jupyter_client.manager import AsyncKernelManager
from nbclient import NotebookClient
from paths import ROOT
from servers import Command

NOTEBOOK = ROOT / "examples" / "tour.ipynb"
OTHERS = ("inside", "retrieval", "search", "structured")
ANY = "…"
WIDGET = "application/vnd.jupyter.widget-view+json"
LATE_BAR = re.compile(r".+: +\d+%\|.*(B/s|checks/s|s/ checks)\]$")  # a progress bar of load() or doctor()
BAR = re.compile(r"100%\|█+\| (\S+)/(\S+) \[")
ABSOLUTE_PATH = re.compile(r"(?<![\w./:<…])(?:/[A-Za-z][\w.-]*/|[A-Z]:\\)[\w.-]+")

# Texts that differ from run to run or from machine to machine.
VARIES = [
    r"(?<=\[)\d+:\d+<\d+:\d+, [^\]]+(?=\])",  # time and speed in a progress bar
    r"[\d.,]+(?= tokens/s)",
    r"(?<=seed )\d{6,}",  # random seeds (a seed that a cell sets is shorter)
    r"(?<=runs on cpu )\(.*?\)",
    r"[\d.]+ \wiB(?= for all sequences| of memory free)",
    r"(?<=scratch )[\d.]+ \wiB",  # depends on the instruction set
    r"(?<=kv budget )[\d.]+ \wi?B, kv reserved [\d.]+ \w+, kv used [\d.]+ \w+",
    r"(?<=hsl\()\d+",  # a colour that follows from a probability, which is compared itself
    r"(?<=cancelled after )\d+",  # depends on when the stop takes effect
]


class ThisPython(KernelSpecManager):  # type: ignore[misc]
    """Knows only one kernel, ipykernel in this Python, whatever kernels are installed on the machine."""

    def get_kernel_spec(self, kernel_name: str) -> KernelSpec:
        return KernelSpec(**get_kernel_dict())


# ---------------------------------------------------------------- a run of the notebook
def executed(path: Path = NOTEBOOK, line: str = "", instead: str = "") -> tuple[nbformat.NotebookNode, dict[str, Any]]:
    """Runs a notebook. Returns it with its new outputs, and the state of its widgets. Raises CellExecutionError if a cell fails.
    line: a line that only one cell has, in whose place `instead` runs."""
    notebook = nbformat.read(path, as_version=4)
    if line:
        (cell,) = (cell for cell in notebook.cells if line in cell.source.splitlines())
        cell.source = "\n".join(instead if each == line else each for each in cell.source.splitlines())
    # The folder has IPython's history and settings, and the kernel's address, so that the user's own are not touched.
    with tempfile.TemporaryDirectory() as folder:
        address = {"transport": "ipc", "ip": str(Path(folder) / "kernel"), "connection_file": str(Path(folder) / "kernel.json")}
        manager = AsyncKernelManager(kernel_spec_manager=ThisPython(), **address)
        client = NotebookClient(notebook, km=manager, timeout=600, coalesce_streams=True, record_timing=False)
        client.resources = {"metadata": {"path": str(NOTEBOOK.parent)}}
        client.execute(cleanup_kc=True, env={**os.environ, "IPYTHONDIR": folder})
        widgets = dict(client.widget_state)
    return notebook, widgets


def bar_text(view: Any, widgets: dict[str, Any]) -> str:
    """Returns the last state of a tqdm bar as text. Viewers without a kernel would show the empty bar of the beginning."""
    left, bar, right = (widgets[name.removeprefix("IPY_MODEL_")] for name in widgets[view["model_id"]]["children"])
    filled = round(10 * bar["value"] / bar["max"])
    plain = [html.unescape(re.sub(r"<[^>]*>", "", text["value"])).replace("\u2007", " ") for text in (left, right)]
    return f"{plain[0].strip()}|{'█' * filled:10}|{plain[1]}"


def places() -> dict[str, str]:
    """Returns the texts that would name this machine in a stored output, with their replacements."""
    import samples

    import pumice

    folders = [samples.minilm().parent.parent, samples.smollm2().parent.parent, Path(pumice.__file__).parent.parent, NOTEBOOK.parent]
    names = {str(path) for folder in folders for path in (folder, folder.resolve())}
    return dict.fromkeys(sorted(names, key=len, reverse=True), ANY) | {platform.release(): ANY}


def portable(notebook: nbformat.NotebookNode, widgets: dict[str, Any]) -> nbformat.NotebookNode:
    """Returns the notebook as it is stored, with progress bars as text and without the names of this machine's folders."""
    found = places()

    def clean(text: str) -> str:
        for name, stand_in in found.items():
            text = text.replace(name, stand_in)
        return text

    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            if output.output_type == "stream":
                output.text = clean(output.text)
                continue
            if WIDGET in output.data:
                output.data = {"text/plain": bar_text(output.data[WIDGET], widgets)}
            output.data = {kind: clean(text) for kind, text in output.data.items()}
    notebook.metadata.pop("widgets", None)
    return notebook


# ---------------------------------------------------------------- comparison
def shown(cell: Any) -> list[tuple[str, str]]:
    """Returns (stream name or media type, text) for each output below a cell, except the progress bars that a slow load() or doctor() shows
    by itself."""
    result: list[tuple[str, str]] = []
    for output in cell.outputs:
        if "progress=True" not in cell.source and LATE_BAR.match(output.get("data", {}).get("text/plain", "")):
            continue
        result += [(output.name, output.text)] if output.output_type == "stream" else sorted(output.data.items())
    return result


def difference(now: str, stored: str) -> str:
    """Returns the first lines that differ, or '' if none do. Probabilities and scores may differ by 0.02."""

    def parts(text: str) -> tuple[str, list[float]]:
        for pattern in VARIES:
            text = re.sub(pattern, ANY, text)
        return re.sub(r"\d+\.\d+", "#", text), [float(number) for number in re.findall(r"\d+\.\d+", text)]

    (a, numbers_a), (b, numbers_b) = parts(now), parts(stored)
    if a != b:
        lines = next((pair for pair in zip(a.splitlines(), b.splitlines(), strict=False) if pair[0] != pair[1]), (a[-200:], b[-200:]))
        return f"now    {lines[0]}\nstored {lines[1]}"
    wrong = [(x, y) for x, y in zip(numbers_a, numbers_b, strict=True) if not math.isclose(x, y, abs_tol=0.02)]
    return f"now {wrong[0][0]}, stored {wrong[0][1]}" if wrong else ""


@pytest.fixture(scope="module")
def stored() -> nbformat.NotebookNode:
    return nbformat.read(NOTEBOOK, as_version=4)


def below(notebook: nbformat.NotebookNode, code: str) -> list[tuple[str, str]]:
    """Returns the outputs of the only cell that ends with `code`."""
    (cell,) = (cell for cell in notebook.cells if cell.cell_type == "code" and cell.source.strip().endswith(code))
    return shown(cell)


def test_difference_sees_what_matters() -> None:
    assert difference("p = 0.531, 21.9 tokens/s", "p = 0.520, 3.5 tokens/s") == ""
    assert difference("p = 0.561", "p = 0.520")
    assert difference("28 tokens", "29 tokens")
    assert difference("a\nb c", "a\nb d") == "now    b c\nstored b d"
    assert difference("a", "a\nb")


def compare(run: nbformat.NotebookNode, stored: nbformat.NotebookNode) -> int:
    """Compares the stored outputs with those of a run, and returns their number."""
    compared = 0
    for now, before in zip(run.cells, stored.cells, strict=True):
        if now.cell_type != "code":
            continue
        new, old = shown(now), shown(before)
        assert [kind for kind, _ in new] == [kind for kind, _ in old], now.source
        if "differs" in now.metadata.get("tags", []):  # the output depends on this Python or this machine
            assert new
            continue
        for (kind, text), (_, expected) in zip(new, old, strict=True):
            wrong = difference(text, expected)
            assert not wrong, (
                f"{kind} below this cell:\n{now.source}\n{wrong}\nIf it is meant: python tests/python/package/{Path(__file__).name} --write"
            )
            compared += 1
    return compared


def test_the_tour_shows_what_is_stored(stored: nbformat.NotebookNode) -> None:
    """Each notebook runs in one test, and not in a fixture that several tests share: with several processes of pytest, each process would
    run it."""
    notebook, widgets = executed()
    bars_end_full(widgets)
    run = portable(notebook, widgets)
    assert compare(run, stored) >= 20
    tour_shows(run)


@pytest.mark.parametrize("name", OTHERS)
def test_other_notebooks(name: str) -> None:
    path = NOTEBOOK.parent / f"{name}.ipynb"
    stored, run = nbformat.read(path, as_version=4), portable(*executed(path))
    assert compare(run, stored) >= 2
    for notebook in (stored, run):
        {"inside": inside_shows, "retrieval": retrieval_shows, "search": search_shows, "structured": structured_shows}[name](notebook)


def test_retrieval_through_a_server() -> None:
    """The notebook must show the same if one line has it ask a server."""
    import samples

    path = NOTEBOOK.parent / "retrieval.ipynb"
    with Command(f"chat={samples.smollm2()}", f"embed={samples.minilm()}", "--device", "cpu") as server:
        server.wait_ready()
        asks = f'models = Served("http://127.0.0.1:{server.port}")'
        run = portable(*executed(path, "models = Library()", asks))
        assert asks in run.cells[1].source
        assert compare(run, nbformat.read(path, as_version=4)) >= 4
        retrieval_shows(run)
        answered = re.findall(r'pumice_requests_total\{code="200",endpoint="(/v1/[\w/]+)"\} (\d+)', server.get("/metrics").body.decode())
        assert {"/v1/chat/completions", "/v1/embeddings"} <= {path for path, count in answered if int(count) > 4}


def inside_shows(notebook: nbformat.NotebookNode) -> None:
    assert dict(below(notebook, "heat_map(weights[sharp], tokens)"))["image/svg+xml"].count("<rect") > 100


def retrieval_shows(notebook: nbformat.NotebookNode) -> None:
    """Checks each quote of the notebook's table against the documents."""
    table = dict(below(notebook, '"quote", "where"])'))["text/html"]
    rows = [re.findall(r"<td>(.*?)</td>", row) for row in table.split("<tr>")[1:]]
    quotes = {html.unescape(quote): place for _, quote, place in (row for row in rows if len(row) == 3) if quote}
    assert len(quotes) >= 4
    for quote, place in quotes.items():
        name, line = re.fullmatch(r"(\w+\.md), line (\d+)", place).groups()  # type: ignore[union-attr]
        assert quote in (NOTEBOOK.parent / "handbook" / name).read_text(encoding="utf-8").splitlines()[int(line) - 1]
    assert ">The documents do not say.</td>" in table


def search_shows(notebook: nbformat.NotebookNode) -> None:
    """Checks the figures of the notebook within wide bounds. They vary, because the notebook searches the docstrings of the Python that
    runs it."""
    outputs = [output for cell in notebook.cells if cell.cell_type == "code" for output in shown(cell)]
    cloud, bars = (text for kind, text in outputs if kind == "image/svg+xml")
    assert cloud.count("h0") > 5_000  # one for each point that no other point covers
    assert cloud.count("<path") == 1 + 5
    found = dict(below(notebook, "*quality(found.indices)))"))["stdout"]
    assert int(found.split()[0]) > 200
    (rows,) = (text for _, text in outputs if "tokens of 50" in text)
    places = [float(line.split()[-1]) for line in rows.splitlines()[1:]]
    assert places[1] > places[0] - 0.01 > 0.08  # mean of 1 / rank: ranking by vectors of tokens is no worse
    recalls = [float(number) for number in re.findall(r">(\d\.\d{3})<", bars)]
    assert len(recalls) == 4
    assert recalls[0] == 1
    assert recalls[1] > 0.98
    assert 0.6 < recalls[2] < recalls[3]
    assert recalls[3] > 0.95


def structured_shows(notebook: nbformat.NotebookNode) -> None:
    table = dict(below(notebook, "index=mails)"))["text/html"]
    for cell in ("7", "Dublin", "40", "Madrid", "2", "Vienna", "paper", "15", "Athens"):
        assert f">{cell}<" in table
    loop = dict(below(notebook, "print(ask(model, question))"))["stdout"]
    assert loop.count("->") >= 2
    assert dict(below(notebook, "file.unlink()"))["stdout"].endswith("True\n")


@pytest.mark.parametrize("name", OTHERS)
def test_other_stored_outputs_tell_of_no_machine(name: str) -> None:
    path = NOTEBOOK.parent / f"{name}.ipynb"
    tells_of_no_machine(path, nbformat.read(path, as_version=4))


def bars_end_full(widgets: dict[str, Any]) -> None:
    bars = [state for state in widgets.values() if state.get("_model_name") == "FloatProgressModel"]
    assert len(bars) >= 2  # bars of loaded bytes and of encoded texts, and one for each load() of over a second
    assert all(bar["value"] == bar["max"] and bar["bar_style"] == "success" for bar in bars)
    assert [bar["max"] for bar in bars].count(2000) == 1


def test_rich_outputs_are_stored(stored: nbformat.NotebookNode) -> None:
    tour_shows(stored)


def tour_shows(notebook: nbformat.NotebookNode) -> None:
    card = dict(below(notebook, "encoder"))["text/html"]
    assert "<table" in card
    assert "mean pooling, normalised" in card
    bar = dict(below(notebook, '{vectors.dtype}")'))
    assert BAR.search(bar["text/plain"])[1] == "2000"  # type: ignore[index]
    assert bar["stdout"] == "2,000 texts to 384 numbers each, float32\n"
    picture = dict(below(notebook, "heat_map(sentences, matrix.tolist())"))["image/svg+xml"]
    assert picture.count("<rect") == 37
    text = dict(below(notebook, 'print(chunk, end="", flush=True)'))["stdout"]
    assert len(text) > 100
    assert "text/markdown" in dict(below(notebook, 'view.update(Markdown(f"> {answer}"))'))
    coloured = dict(below(notebook, "seed=1, logprobs=3)"))["text/html"]
    assert coloured.count("<span") == 40
    assert len(set(re.findall(r"hsl\((\d+)", coloured))) > 10
    report = dict(below(notebook, "pumice.doctor()"))["text/html"]
    assert "FAIL" not in report
    errors = dict(below(notebook, '{error}\\n")'))["stdout"]
    assert "did you mean 'temperature'?" in errors
    assert "cancelled" in dict(below(notebook, '.text[:60]!r}...")'))["stdout"]


def test_stored_outputs_tell_of_no_machine(stored: nbformat.NotebookNode) -> None:
    assert ABSOLUTE_PATH.search("file /home/somebody/model.gguf (1 MiB)")
    tells_of_no_machine(NOTEBOOK, stored)


def tells_of_no_machine(path: Path, stored: nbformat.NotebookNode) -> None:
    assert path.stat().st_size < 300_000
    for i, cell in enumerate(cell for cell in stored.cells if cell.cell_type == "code"):
        assert cell.execution_count == i + 1, "the cells were not run in one go"
        for kind, text in shown(cell):
            assert kind != "stderr", text
            assert WIDGET not in kind
            found = ABSOLUTE_PATH.search(text)
            assert not found, f"{found[0]} below {cell.source}" if found else ""


if __name__ == "__main__":
    if sys.argv[1:2] != ["--write"] or not {*sys.argv[2:]} <= {"tour", *OTHERS}:
        sys.exit(f"{__doc__}")
    sys.path.insert(0, str(NOTEBOOK.parent))
    for name in sys.argv[2:] or ("tour", *OTHERS):
        path = NOTEBOOK.parent / f"{name}.ipynb"
        nbformat.write(portable(*executed(path)), path)
