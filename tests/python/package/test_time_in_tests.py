"""A slow or shared machine must not fail a test (tests/README.md, "Time in tests"). So no test compares a wall time, and none waits
less than a minute for what must happen; ALLOWED names exceptions and their reasons."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterator

import patience
import pytest
from paths import ROOT
from patience import Elapsed, Watch, report

TESTS = ROOT / "tests"
LEAST = 60.0  # seconds

# A file, a part of a line, and why a slow machine cannot make a test fail there.
ALLOWED = [
    ("arm/run.py", "last > PROGRESS", "prints how far it is"),
    ("cpp/engine/fork_test.cpp", "waited < 50", "goes on in any case: the fork may wait for a lock of this thread"),
    ("cpp/engine/scheduler_test.cpp", "watch.wall() / 0.06", "a slow machine allows more chunks"),
    ("cpp/engine/scheduler_test.cpp", "EXPECT_GE(watch.wall(), seconds)", "a deadline is not early; it may be late"),
    ("cpp/engine/scheduler_test.cpp", "waited < 500", "goes on in any case: 80 such steps take 40 s"),
    ("python/callers/test_aload.py", "asyncio.wait_for(", "the limit is to pass"),
    ("python/callers/test_async.py", "max_new_tokens=4000), 0.05)", "the limit is to pass"),
    ("python/callers/test_exit_and_fork.py", "acquire(timeout=0.1)", "nobody holds the locks of the child"),
    ("python/callers/test_threads.py", "< took", "the caller measures at least what pumice tells"),
    ("python/callers/test_threads.py", "took / 0.1", "a slow machine allows more chunks"),
    (
        "python/encode/test_async_encoders.py",
        "time.monotonic() - start",
        "the caller measures at least what pumice tells",
    ),
    ("python/scale/test_ray.py", "over.wait(0.2)", "looks again"),
    ("serve/crowd.py", "", "a load for the time that the command line names; no part of `make test` but 200 requests"),
]

CLOCK = re.compile(r"\b(?:perf_counter|monotonic|time\.time)\(\)|Clock::now\(\)|steady_clock::now\(\)|\.wall(?:\(\))?(?!\w)")
SCOPE = re.compile(r"(?:async )?def |class |TEST(?:_F|_P)?\(|[A-Z_]+ = ")  # at the beginning of a line
ASSIGNED = re.compile(r"\b([a-z]\w*)(?:: [\w:\[\], ]+)? = (.*)")
COMPARED = re.compile(r" [<>]=? |\b(?:EXPECT|ASSERT)_(?:LT|LE|GT|GE)\(")
PATIENT = re.compile(r"\bk?PATIENCE\b|asserts_walls|\bWALLS\b", re.IGNORECASE)  # waits for long, or only `make soak` asserts it
NUMBER = r"(\d+(?:\.\d+)?)"
LIMITS = [
    re.compile(pattern)
    for pattern in (
        rf"\btimeout={NUMBER}(?![\d.]| \*)",
        rf"(?<!while not stop)(?<!while not done)\.(?:wait|join|acquire|communicate)\({NUMBER}\)",
        rf"\bwait_for\(.*, {NUMBER}\)",
        rf"\balarm\({NUMBER}\)",
    )
]
COUNTED = re.compile(rf"\bwaited < {NUMBER}|(?:EXPECT|ASSERT)_TRUE\(\w+->wait\(\w+, {NUMBER}\)")  # in milliseconds


def suspicious(text: str) -> Iterator[tuple[int, str]]:
    """Gives the lines of a test that compare a wall time or wait for less than a minute, with their numbers."""
    times, ends = set[str](), set[str]()  # names of this scope: those that have a wall time, and those of ends that are far away
    before = ""  # the line before
    for number, line in enumerate(text.splitlines(), 1):
        opened = before.endswith(("{", ":")) and PATIENT.search(before)
        before = line
        if SCOPE.match(line):
            times.clear()
            ends.clear()
        code = re.split(r"  #|\s//", line)[0]
        assigned = ASSIGNED.search(code)
        if assigned and has_time(assigned[2], times):
            later = re.search(rf"\+ {NUMBER}$", assigned[2])
            patient = PATIENT.search(assigned[2]) or (later and float(later[1]) >= LEAST)
            (ends if patient else times).add(assigned[1])
        limits = [float(found[1]) for pattern in LIMITS for found in pattern.finditer(code)]
        limits += [float(found[1] or found[2]) / 1000 for found in COUNTED.finditer(code)]
        compared = has_time(code, times) and COMPARED.search(code) and not (PATIENT.search(code) or opened or has_word(code, ends))
        if compared or any(limit < LEAST for limit in limits):
            yield number, line.strip()


def has_time(code: str, times: set[str]) -> bool:
    return CLOCK.search(code) is not None or has_word(code, times)


def has_word(code: str, words: set[str]) -> bool:
    return bool(words) and re.search(rf"\b(?:{'|'.join(words)})\b", code) is not None


def test_no_test_depends_on_the_speed_of_its_machine() -> None:
    found, used = [], set()
    for path in sorted(path for kind in ("py", "cpp", "h") for path in TESTS.rglob(f"*.{kind}")):
        name = path.relative_to(TESTS).as_posix()
        if path.stem == "patience" or name == "python/package/test_time_in_tests.py":
            continue
        for number, line in suspicious(path.read_text()):
            reasons = [each for each in ALLOWED if each[0] == name and each[1] in line]
            used.update(reasons)
            if not reasons:
                found.append(f"tests/{name}:{number}: {line}")
    assert not found, "use tests/python/support/patience.py or tests/cpp/patience.h:\n" + "\n".join(found)
    assert set(ALLOWED) - used == set(), "these are not needed any more"


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("begun = time.monotonic()\nwork()\nassert time.monotonic() - begun < 5", [3]),
        ("took = time.perf_counter() - begun\nassert took < 5", [2]),
        ("took = time.perf_counter() - begun\nif WALLS:\n    assert took < 5", []),
        ("begun = time.process_time()\nassert time.process_time() - begun < 5", []),
        ("end = time.monotonic() + 5\nwhile time.monotonic() < end:", [2]),
        ("end = time.monotonic() + PATIENCE\nwhile time.monotonic() < end:", []),
        ("end = time.monotonic() + 60\nwhile time.monotonic() < end:", []),
        ("def test_a():\n    took = time.perf_counter()\ndef test_b(took):\n    assert took < 5", []),
        ("assert watch.elapsed().wall < 5", [1]),
        ("assert done.wait(10)\nassert done.wait(PATIENCE)\nassert done.wait(60)", [1]),
        ("await asyncio.wait_for(work(), 9)\nsubprocess.run(words, timeout=30)\nwait_until(ready)", [1, 2]),
        ("  const auto late = Clock::now() - asked;\n  EXPECT_LT(late, limit);", [2]),
        ("  EXPECT_LT(watch.wall(), 5);\n  EXPECT_LT(watch.process(), 5);  // and the .wall() is longer", [1]),
        ("  for (int waited = 0; !go && waited < 5000; ++waited) sleep();\n  EXPECT_TRUE(g->wait(5, 5000));\n  ::alarm(20);", [1, 2, 3]),
        ("  EXPECT_FALSE(g->wait(5, 50));\n  EXPECT_TRUE(g->wait(5, patience::kPatienceMs));", []),
    ],
)  # fmt: skip
def test_what_counts_as_a_wall_time(text: str, lines: list[int]) -> None:
    assert [number for number, _ in suspicious(text)] == lines


def test_a_watch_has_the_processor_time_of_threads_that_have_ended_and_no_sleep() -> None:
    def work() -> None:
        while time.thread_time() < 0.05:
            pass

    watch = Watch()
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert 0.045 < watch.elapsed().work < watch.elapsed().wall
    watch = Watch()
    time.sleep(0.1)
    assert watch.elapsed().work < 0.1 <= watch.elapsed().wall


def test_a_report_fails_for_processor_time_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patience, "WALLS", False)
    monkeypatch.setattr(patience, "SLOWER", 1)
    report("fast", [Elapsed(0.01, 0.01)] * 3, 0.1)
    report("on a busy machine", [Elapsed(0.01, 100.0)] * 3, 0.1)
    for slow in ([Elapsed(0.01, 0.6)] * 8 + [Elapsed(0.51, 0.6)], [Elapsed(0.21, 0.3)] * 2):
        with pytest.raises(AssertionError):
            report("slow", slow, 0.1)
