"""What `make sanitize` counts as a report of pumice (tests/sanitize/reports.py)."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[2] / "sanitize"))

import reports  # noqa: E402

OURS = "    #1 0x7f in pumice::files::open(std::string const&) (/x/pumice/_core.cpython-311-x86_64-linux-gnu.so+0x1234)\n"
ENDED_THREAD = "    #2 __GI__dl_deallocate_tls ../elf/dl-tls.c:682 (ld-linux-x86-64.so.2+0x11785)\n"
THEIRS = "    #1 0x7f in PyMem_Malloc (/usr/bin/python3.11+0x1234)\n"
LEAKS = "\n=====\n==7==ERROR: LeakSanitizer: detected memory leaks\n\n"
PROBE = "Direct leak of 4242 byte(s) in 1 object(s) allocated from:\n" + THEIRS
LINE = "==================\n"
RACE = LINE + "WARNING: ThreadSanitizer: data race (pid=7)\n  Write of size 8\n{}\n  Previous read of size 8\n{}" + LINE


@pytest.mark.parametrize(
    ("text", "ours", "others"),
    [
        (LEAKS + PROBE, 0, 1),
        (LEAKS + PROBE + "\nIndirect leak of 8 byte(s) in 1 object(s) allocated from:\n" + THEIRS + OURS + "\nSUMMARY: ", 1, 1),
        (RACE.format(THEIRS, THEIRS) + RACE.format(THEIRS, OURS), 1, 1),
        (RACE.format(ENDED_THREAD, OURS), 0, 1),
        ("=====\n==7==ERROR: AddressSanitizer: heap-use-after-free on address 0x6\n" + THEIRS, 1, 0),
        ("x.cpp:7:3: runtime error: shift exponent 64 is too large\n" + THEIRS, 1, 0),
        ("==7==LeakSanitizer has encountered a fatal error.\n", 1, 0),
    ],
)
def test_reports_of_pumice_are_told_from_others(text: str, ours: int, others: int) -> None:
    found = reports.split(text)
    assert (len(found[0]), len(found[1])) == (ours, others)


def test_a_report_of_pumice_and_a_missing_probe_fail(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "asan.1").write_text(LEAKS + PROBE)
    assert reports.main(tmp_path, "leak of 4242 byte") == 0
    assert reports.main(tmp_path, "leak of 4243 byte") == 1
    (tmp_path / "asan.2").write_text(LEAKS + PROBE.replace("4242", "8") + OURS)
    capsys.readouterr()
    assert reports.main(tmp_path, "leak of 4242 byte") == 1
    assert "pumice::files::open" in capsys.readouterr().out
