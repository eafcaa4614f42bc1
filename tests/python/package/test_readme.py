"""README.md and docs/: the examples must print what the pages say, the tables must say what the engine says, and every public name must be
described."""

from __future__ import annotations

import contextlib
import inspect
import io
import re
from typing import Any

import make_models_table
import pytest
from paths import API_PAGES, ROOT

import pumice

README = (ROOT / "README.md").read_text(encoding="utf-8")
MODELS = (ROOT / "docs" / "models.md").read_text(encoding="utf-8")
API = [str(path.relative_to(ROOT)) for path in API_PAGES]
FROM = [str(path.relative_to(ROOT)) for path in sorted((ROOT / "docs" / "from").glob("*.md"))]
ANY = "…"


def blocks(page: str) -> list[tuple[str, str]]:
    """Returns each block of Python code, together with the text block right below it."""
    found = re.findall(r"^```python\n(.*?)^```\n```text\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    assert len(found) == page.count("```python\n")
    return found


def run(code: str, names: dict[str, Any]) -> str:
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(compile(code, names["__file__"], "exec", dont_inherit=True), names)  # without this file's annotations from __future__
    return out.getvalue()


def matches(line: str, pattern: str) -> bool:
    return re.fullmatch(".*".join(map(re.escape, pattern.split(ANY))), line) is not None


def table(page: str, first: str) -> list[list[str]]:
    """Returns the rows of the table whose first heading is `first`. A row is a list of cells."""
    text = re.search(rf"^\| {first} \|.*\n\|[-|]+\|\n((?:\|.*\n)+)", page, re.MULTILINE)
    assert text, f"there is no table of {first}"
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in text[1].splitlines()]


def test_marks_match_only_what_differs() -> None:
    assert matches("28 tokens, eos, 24 tokens/s", "28 tokens, eos, … tokens/s")
    assert not matches("29 tokens, eos, 24 tokens/s", "28 tokens, eos, … tokens/s")
    assert not matches("(x.y)", "(xzy)")


def has_examples(page: str) -> bool:
    return "```python\n" in (ROOT / page).read_text(encoding="utf-8")


@pytest.mark.parametrize("page", ["README.md", "docs/tour.md", *filter(has_examples, API), *FROM, "docs/recipes.md", "docs/sizes.md"])
def test_examples_print_what_the_page_says(page: str) -> None:
    names: dict[str, Any] = {"__name__": "tour", "__file__": str(ROOT / page)}
    found = blocks((ROOT / page).read_text(encoding="utf-8"))
    for code, expected in found:
        printed, wanted = run(code, names).splitlines(), expected.splitlines()
        wrong = [(a, b) for a, b in zip(printed, wanted, strict=False) if not matches(a, b)]
        assert not wrong, f"{page} says otherwise:\n" + "\n".join(f"  printed {a!r}\n  page    {b!r}" for a, b in wrong)
        assert len(printed) == len(wanted)
        assert len(expected) >= 20 * expected.count(ANY), "too little of the output is compared"


def test_the_first_pages_are_short() -> None:
    """README.md is for somebody who has two minutes."""
    assert len(README.encode()) <= 10_240
    assert len(blocks(README)[0][0].splitlines()) <= 8
    assert 18 <= len(blocks((ROOT / "docs" / "tour.md").read_text(encoding="utf-8"))[0][0].splitlines()) <= 26


def test_table_of_architectures() -> None:
    families = pumice.build_info()["architectures"]
    rows = table(MODELS, "architecture")
    assert [row[0] for row in rows] == list(families)
    assert make_models_table.HEAD + "\n".join(make_models_table.rows()) + "\n" in MODELS, "run tests/make_models_table.py"
    for name, _, gguf, model_types in rows:
        said = {"gguf": gguf, "model_type": model_types}
        for kind, names in families[name].items():
            assert [word for word in said[kind].split(", ") if word and not word.startswith("(")] == names, (name, kind)


def test_table_of_formats() -> None:
    rows = table(MODELS, "format")
    assert [row[0] for row in rows] == pumice.build_info()["formats"]
    listed = (ROOT / "cpp" / "core" / "formats.def").read_text(encoding="utf-8")
    blocks_of = {
        name: (int(weights), int(size), number)
        for name, number, weights, size in re.findall(r"^PUMICE_FORMAT\((\w+), *(\w+), *(\d+), *(\d+),", listed, re.MULTILINE)
    }
    read_as: dict[str, list[str]] = {}  # format -> the GGUF formats that are read as it
    expanded = (ROOT / "cpp" / "files" / "gguf_formats.cpp").read_text(encoding="utf-8")
    for name, target in re.findall(r'^    {\d+, "(\w+)", \d+, \d+, Format::(\w+),', expanded, re.MULTILINE):
        read_as.setdefault(target, []).append(name)
    for name, bits, gguf, safetensors, quantize in rows:
        weights, size, number = blocks_of[name]
        assert float(bits) == 8 * size / weights, name
        own = "" if number == "kNoGgufId" else "yes"
        assert gguf == ", ".join(filter(None, [own, *read_as.get(name, [])])), name
        assert (safetensors == "yes") == (weights == 1), name
        packs = name in pumice.build_info()["pack_formats"]
        assert quantize == (name.lower() if packs else ""), name
        if packs:
            plan = pumice.plan(__import__("samples").minilm(), device="cpu", quantize=quantize)
            assert any(name in row["formats"] for row in plan.rows), name
    with pytest.raises(ValueError, match="quantize='mxfp4' is not one of None, 'q4_0', "):
        pumice.plan(__import__("samples").minilm(), quantize="mxfp4")


def test_page_lists_the_formats_of_quantize() -> None:
    page = (ROOT / "docs" / "python" / "load.md").read_text(encoding="utf-8")
    row = next(line for line in page.splitlines() if line.startswith("| `quantize` |")).partition(":")[0]
    assert re.findall(r'`"(\w+)"`', row) == [name.lower() for name in pumice.build_info()["pack_formats"]]


def code_in(page: str) -> str:
    """Returns the texts between backticks, one per line, except those in code blocks."""
    text = re.sub(r"^```.*?^```$", "", (ROOT / page).read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    return "\n".join(re.findall(r"`([^`]*)`", text))


def test_every_public_name_is_described() -> None:
    described = set(re.findall(r"\w+", "\n".join(map(code_in, API))))
    public = {f"pumice.{name}": getattr(pumice, name) for name in pumice.__all__}
    for owner in (pumice.Model, pumice.Stream):
        public |= {f"{owner.__name__}.{name}": getattr(owner, name) for name in dir(owner) if not name.startswith("_")}
    wanted = {name: name.rpartition(".")[2] for name in public}
    for name, value in public.items():
        if inspect.isclass(value):  # for a dataclass, its fields
            wanted |= {f"{name}.{field}": field for field in getattr(value, "__dataclass_fields__", {})}
        elif callable(value):
            kinds = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
            parameters = [p.name for p in inspect.signature(value).parameters.values() if p.kind not in kinds and p.name != "self"]
            wanted |= {f"{name}({parameter})": parameter for parameter in parameters}
    assert len(wanted) > 150
    missing = [name for name, word in wanted.items() if word not in described]
    assert not missing, f"docs/python.md and docs/python lack {missing}"


def test_load_defaults_are_those_of_the_page() -> None:
    rows = {
        row[0].strip("`"): row[1].strip("`") for row in table((ROOT / "docs" / "python" / "load.md").read_text(encoding="utf-8"), "option")
    }
    parameters = inspect.signature(pumice.load).parameters
    assert list(rows) == [name for name in parameters if name not in ("source", "options")]
    assert {name: eval(default) for name, default in rows.items()} == {name: parameters[name].default for name in rows}


def test_recipes_are_short() -> None:
    found = blocks((ROOT / "docs" / "recipes.md").read_text(encoding="utf-8"))
    assert len(found) == 7
    assert max(len(code.splitlines()) for code, _ in found) <= 40
