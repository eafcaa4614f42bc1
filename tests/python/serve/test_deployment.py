"""What packaging/ and docs/serving.md name must exist."""

from __future__ import annotations

import argparse
import json
import re

from paths import ROOT
from servers import serving

import pumice
from pumice.__main__ import parser

PACKAGING = ROOT / "packaging"


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
    page = (ROOT / "docs" / "serving.md").read_text().partition("## Figures")[2].partition("##")[0]
    for name in set(re.findall(r"`(pumice_\w+)", page)) - {"pumice_"}:
        assert name in there or f"{name}_bucket" in there, name
