"""Tables, cards of models, and reports, as text and as HTML."""

from __future__ import annotations

import html.parser
import json
import platform
import sys
from pathlib import Path
from typing import Any

import pytest
from fake_core import fake, fake_core, fake_model, write_model  # noqa: F401


class Balanced(html.parser.HTMLParser):
    """Parses HTML, and asserts that every tag that opens is closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.text = ""
        self.feed(text)
        assert not self.open

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.mark.parametrize(
    ("number", "text"), [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (200 << 20, "200 MiB"), (5 << 40, "5.0 TiB"), (None, "?")]
)
def test_size(pumice: Any, number: Any, text: str) -> None:
    from pumice.common.display import count, size

    assert size(number) == text
    assert count(134_515_008) == "134.5 M"
    assert count(999) == "999"


def test_devices(pumice: Any) -> None:
    found = pumice.devices()
    assert isinstance(found, list)
    assert found[0].id == "cpu"
    assert found[0].memory_free == 4 << 30
    assert "Toy <CPU>" in str(found)
    assert "4.0 GiB  8.0 GiB  avx2 fma  yes" in repr(found)
    assert "Toy <CPU>" in Balanced(found._repr_html_()).text


def test_device_that_cannot_be_used(pumice: Any, core: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    bad = {**core.devices()[0], "id": "vulkan:0", "usable": False, "why_not": "Vulkan 1.1"}
    monkeypatch.setattr(core, "devices", lambda: [bad])
    assert "no: Vulkan 1.1" in str(pumice.devices())


def test_plan_folds_equal_layers(pumice: Any, tmp_path: Path) -> None:
    plan = pumice.plan(write_model(tmp_path / "m.gguf"), n_ctx=64)
    text = str(plan)
    assert "m.gguf: toy, 2.1 k parameters, q4_k, f32" in text
    assert "layer 0-2" in text
    assert "1.0 MiB each" in text
    assert text.count("layer 3") == 1  # in a row of its own, because it has more bytes of weights
    assert "note: context capped by memory" in text
    assert (
        "context 64 tokens per sequence, KV budget 1.0 MiB for all sequences and cached prefixes, scratch 3.0 MiB, 4.0 GiB of memory"
        in text
    )
    assert plan.totals == {"cpu": {"weights": 7 << 20, "kv": 4 << 19}}
    assert "layer 0-2" in Balanced(plan._repr_html_()).text
    assert len(plan.rows) == 5


def test_fold_needs_consecutive_numbers_and_equal_rows(pumice: Any) -> None:
    from pumice.loading.placement import fold

    rows = [{"name": f"layer {i}", "device": d} for i, d in ((0, "cpu"), (1, "cpu"), (2, "gpu"), (3, "gpu"), (5, "gpu"))]
    rows += [{"name": "head", "device": "gpu"}, {"name": "head", "device": "gpu"}]
    assert [(r["name"], r["count"]) for r in fold(rows)] == [
        ("layer 0-1", 2),
        ("layer 2-3", 2),
        ("layer 5", 1),
        ("head", 1),
        ("head", 1),
    ]


def test_summary_and_card(model: Any) -> None:
    text = str(model.summary())
    for part in ("toy.gguf: toy", "layer 0-2", "mean pooling, normalised", "sampling: greedy, chat() temperature 0.8", "kv budget 1.0 MiB"):
        assert part in text
    assert "layer 0-2" in Balanced(model._repr_html_()).text
    model.close()
    assert "closed" in Balanced(model._repr_html_()).text


def test_generation_html(model: Any) -> None:
    plain = model.generate("<b>x")
    assert Balanced(plain._repr_html_()).text.startswith("x>b<")
    coloured = model.generate("ab<", logprobs=True)
    page = coloured._repr_html_()
    assert Balanced(page).text.startswith("<ba")
    assert page.count("<span") == 3
    assert 'title="p = 0.500"' in page
    assert "hsl(60 " in page
    assert repr(plain) == "Generation('x>b<', tokens=4, finish_reason='eos')"
    assert "finish: eos" in page


def test_pieces_are_the_text_of_each_token(model: Any) -> None:
    result = model.generate("unicode")
    assert "".join(result.pieces) == result.text
    assert len(result.pieces) == len(result.ids)


# ---------------------------------------------------------------- doctor
def test_doctor(pumice: Any) -> None:
    report = pumice.doctor()
    assert report.ok
    assert {c.level for c in report} <= {"PASS", "WARN"}
    text = str(report)
    assert "PASS kernels: 1 agree with the scalar ones" in text
    assert "WARN Vulkan: not built into this version" in text
    assert text.splitlines()[-1].startswith("ready: ")
    assert all(c.fix for c in report if c.level != "PASS")
    assert json.loads(json.dumps(report.to_dict()))["ok"] is True
    assert "kernels" in Balanced(report._repr_html_()).text


def test_doctor_checks_its_arguments(pumice: Any) -> None:
    assert str(pumice.doctor(quick=True, progress=False)) == str(pumice.doctor())  # without a GPU, quick=True has nothing to leave out
    for wrong in ({"quick": 1}, {"progress": "yes"}, {"qick": True}):
        with pytest.raises(TypeError, match=next(iter(wrong))):
            pumice.doctor(**wrong)


def test_doctor_finds_what_is_wrong(pumice: Any, core: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    info = core.build_info()
    monkeypatch.setattr(core, "build_info", lambda: {**info, "isa": "scalar", "huge_pages": "never", "blas": "not found: libopenblas"})
    monkeypatch.setattr(core, "self_test", lambda: [{"name": "dot q4_k", "ok": False, "error": 0.5, "limit": 1e-6, "detail": "row 3"}])
    report = pumice.doctor()
    assert not report.ok
    lines = {c.name: c for c in report}
    assert lines["kernel dot q4_k"].level == "FAIL"
    assert "0.5 over the limit 1e-06. row 3" in lines["kernel dot q4_k"].detail
    assert lines["instruction set"].level == lines["BLAS"].level == lines["huge pages"].level == "WARN"
    assert "transparent huge pages: never" in lines["huge pages"].detail and "madvise" in lines["huge pages"].fix
    assert str(report).splitlines()[-1].startswith("not ready: ")


@pytest.mark.parametrize(
    ("system", "machine", "said"),
    [
        ("linux", "x86_64", ""),
        ("linux", "aarch64", "under emulation only"),
        ("darwin", "arm64", "no Mac has run it"),
        ("freebsd14", "amd64", "not tested on this kind of machine"),
    ],
)
def test_doctor_says_what_was_proved_on_this_platform(
    pumice: Any, monkeypatch: pytest.MonkeyPatch, system: str, machine: str, said: str
) -> None:
    monkeypatch.setattr(sys, "platform", system)
    monkeypatch.setattr(platform, "machine", lambda: machine)
    line = next(c for c in pumice.doctor() if c.name == "python")
    monkeypatch.undo()
    assert line.level == ("WARN" if said else "PASS")
    assert said in line.fix and bool(line.fix) == bool(said)


def test_doctor_takes_a_system_without_huge_pages(pumice: Any, core: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    info = core.build_info()
    monkeypatch.setattr(core, "build_info", lambda: {**info, "huge_pages": "none"})
    assert next(c for c in pumice.doctor() if c.name == "huge pages").level == "PASS"


def test_doctor_survives_a_broken_check(pumice: Any, core: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> Any:
        raise RuntimeError("boom")

    monkeypatch.setattr(core, "self_test", broken)
    line = next(c for c in pumice.doctor() if c.name == "kernels")
    assert (line.level, line.detail) == ("FAIL", "the check broke: RuntimeError: boom")


def test_doctor_names_missing_and_old_packages(pumice: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from importlib import metadata

    def version(name: str) -> str:
        if name == "tqdm":
            raise metadata.PackageNotFoundError
        return {"jinja2": "3.1.5"}.get(name, "99.0")

    monkeypatch.setattr(metadata, "version", version)
    lines = {c.name: c for c in pumice.doctor()}
    assert (lines["jinja2"].level, lines["jinja2"].fix) == ("FAIL", 'pip install "jinja2>=3.1.6"')
    assert lines["tqdm"].level == "FAIL"
    assert lines["numpy"].level == "PASS"
