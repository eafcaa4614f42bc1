"""What packaging/ and docs/serving.md name must exist."""

from __future__ import annotations

import argparse
import json
import re

from paths import ROOT, TESTS
from servers import serving

import pumice
from pumice.__main__ import parser
from pumice.serve import messages, responses
from pumice.serve.sampling_fields import LACKING
from pumice.serve.settings import Settings

PACKAGING = ROOT / "packaging"
PAGE = (ROOT / "docs" / "serving.md").read_text(encoding="utf-8")


def section(title: str) -> str:
    """Returns a section of docs/serving.md."""
    return PAGE.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def rows(text: str) -> list[list[str]]:
    """Returns the cells of the rows of a table, without its head."""
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("| ")][1:]


def options() -> set[str]:
    sub = next(action for action in parser()._actions if isinstance(action, argparse._SubParsersAction)).choices["serve"]
    return {name for action in sub._actions for name in action.option_strings}


def test_files_name_options_that_exist() -> None:
    for name, start in (("pumice.service", "ExecStart"), ("Containerfile", "ENTRYPOINT"), ("nginx.conf", "# Lines")):
        lines = [line for line in (PACKAGING / name).read_text().splitlines() if line.startswith(start)]
        named = set(re.findall(r"--[a-z][a-z-]+", "".join(lines)))
        assert named and named <= options(), (name, named - options())


def test_the_dashboard_shows_figures_that_exist(smollm2: pumice.Model, minilm: pumice.Model) -> None:
    dashboard = json.loads((PACKAGING / "grafana.json").read_text())
    asked = {name for panel in dashboard["panels"] for target in panel["targets"] for name in re.findall(r"pumice_\w+", target["expr"])}
    with serving({"chat": smollm2, "embed": minilm}) as here:
        hi = {"model": "chat", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 3, "stream": True}
        assert here.post("/v1/chat/completions", hi).status == 200
        assert here.post("/v1/embeddings", {"model": "embed", "input": "Hi"}).status == 200
        there = set(re.findall(r"^pumice_\w+", here.get("/metrics").body.decode(), re.MULTILINE))
    assert asked and asked <= there, asked - there
    for name in set(re.findall(r"`(pumice_\w+)", section("Figures"))) - {"pumice_"}:
        assert name in there or f"{name}_bucket" in there, name


def test_each_attack_has_a_test() -> None:
    """Each row of the table of attacks must name tests that pytest finds."""
    there = {
        name
        for file in TESTS.rglob("test_*.py")
        for name in re.findall(r"^def (test_\w+)\(", file.read_text(encoding="utf-8"), re.MULTILINE)
    }
    table = rows(section("Attacks"))
    assert len(table) > 20
    for attack, answer, tests in table:
        named = re.findall(r"`(\w+)`", tests)
        assert answer and named and set(named) <= there, (attack, set(named) - there)


def test_the_page_of_two_dialects_names_fields_that_exist() -> None:
    """Names in the table of /v1/responses and /v1/messages must be fields of theirs, or texts of their modules and tests."""
    tables = {"responses": responses.fields(Settings()), "messages": messages.fields(Settings())}
    known = "".join(
        file.read_text(encoding="utf-8")
        for folder in (ROOT / "python" / "pumice" / "serve", TESTS / "python" / "serve")
        for file in (*folder.glob("*.py"), *folder.glob("requests/*.json"), ROOT / "python" / "pumice" / "chats" / "content.py")
    )
    table = {what: dict(zip(tables, cells, strict=True)) for what, *cells in rows(section("Responses and Messages"))}
    for name, fields in tables.items():
        needed = {field.name for field in fields.fields if field.needed}
        assert set(re.findall(r"`(\w+)`", table["must be there"][name])) == needed
        refused = set(re.findall(r"`(\w+)`", table["refused with 400"][name])) - {"item_reference"}
        own = set(fields.refused) - set(LACKING)
        assert refused == own, (name, refused ^ own)
        inert = set(re.findall(r"`(\w+)`", table["taken, without effect on any answer"][name]))
        assert inert <= {*fields.inert, "metadata"}, (name, inert - {*fields.inert})
        for what, cells in table.items():
            for word in re.findall(r"`([a-z]\w+)", cells[name]):
                assert re.search(rf"\b{word}\b", known), (what, word)


def test_the_clients_of_the_page_are_run() -> None:
    """Each block of a client must name a version that tests/clients installs, and run.py must call that client."""
    folder = TESTS / "clients"
    pinned = {line for file in folder.glob("*.txt") for line in file.read_text().split()}
    calls, run = (folder / "calls.py").read_text(), (folder / "run.py").read_text()
    blocks = re.findall(r"^```python\n# (\S+) (\S+)\n", section("Clients"), re.MULTILINE)
    assert len(blocks) == section("Clients").count("```python")
    for name, version in blocks:
        assert f"{name}=={version}" in pinned, (name, version)
        assert f'documented("{name}")' in calls and f'"{name}"' in run, name
