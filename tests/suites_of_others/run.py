"""Runs test suites of other projects, unchanged, against `pumice serve` with the sample models.

python tests/suites_of_others/run.py --venvs .venv-suites-others   prints for each suite how many tests passed, failed and were skipped, and
why those failed whose reason is known (SUITES). Exit code 1 if a test failed for none of these reasons."""

from __future__ import annotations

import argparse
import collections
import contextlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ET
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
sys.path.insert(0, str(ROOT / "examples"))

import engines  # noqa: E402
import samples  # noqa: E402


@dataclass(frozen=True)
class Suite:
    """A suite. Its packages are those of NAME.txt beside this file, with pinned versions.

    tests: its files and folders, in the sdist or, if there is none, beside this file. sdist: the package of NAME.txt whose sdist on PyPI
    has the tests. environment: variables of the tests; {url} is the address of the server. options: further arguments of pytest.
    serve: further arguments of `pumice serve`, models first. known: a pattern for "the name of a test: its message" -> why such a test
    fails. The first pattern that matches gives the reason.

    engine: a package such as "vllm==0.33.0" whose sdist has the tests, if the suite tests a server of its own and starts it. In place of
    that server its tests start what stands beside this file; so they import pumice from this Python. place: the folder of the sdist in
    which the tests run. In `environment`, {here} is this folder, {start} a program that stands for the server, {python} this Python and
    {path} its PYTHONPATH."""

    tests: tuple[str, ...]
    sdist: str | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    options: tuple[str, ...] = ()
    serve: tuple[str, ...] = ()
    engine: str | None = None
    place: str = "."
    known: Mapping[str, str] = field(default_factory=dict)


# One event loop for all tests, because a client keeps its connections from one test to the next.
LOOP = tuple(
    part
    for name in ("asyncio_mode=auto", "asyncio_default_fixture_loop_scope=session", "asyncio_default_test_loop_scope=session")
    for part in ("-o", name)
)
# In place of the settings of an sdist, which run tests in several processes, although the server already uses all processors.
SDIST = ("-c", os.devnull, "--rootdir", ".", *LOOP)

# Reasons for failures, as they stand in docs/clients.md.
SMALL = "the small model's answer"
UNKNOWN_ID = "asks for an object whose id the test has made up: 404, as at the vendor"
ALL_FIELDS = "sends all fields at once, among them some that the server refuses on purpose"
KEPT = "files are for batches alone, and a response that is kept comes whole"
PATH = "a path of the vendor that the server does not have"

SUITES: dict[str, Suite] = {
    "langchain": Suite(
        tests=("langchain_models.py",),
        environment={"PUMICE_URL": "{url}"},
        options=(*LOOP, "-p", "no:cacheprovider"),
        serve=(f"other={samples.smollm2()}", "--load", f"other.chat-template={samples.tools_template()}"),
        known={
            r"test_agent_loop.*assert False": f"{SMALL}: it calls no tool",
            r"test_unicode_tool_call.*not found in": f"{SMALL}: another name than the prompt's",
            r"test_tool_calling.*assert \d+ == 1": f"{SMALL}: it repeats a call",
            r"test_(structured_output|json_mode).*(LengthFinishReasonError|[Vv]alidation ?[Ee]rror)": f"{SMALL}: other fields, or cut",
        },
    ),
    "openai": Suite(
        sdist="openai",
        tests=tuple(
            f"tests/api_resources/{name}"
            for name in (
                "chat", "test_completions.py", "test_embeddings.py", "test_responses.py", "responses", "test_models.py", "test_files.py",
                "test_batches.py",
            )
        ),
        environment={"TEST_API_BASE_URL": "{url}/v1"},
        options=SDIST,
        known={
            r"test_embeddings.*APIResponseValidationError": "the client asks for base64 by itself, and its strict form takes no base64",
            r"with_all_params.*Error code: 400": ALL_FIELDS,
            r"Error code: 40[04] - .*(not found|there is no (file|batch) )": UNKNOWN_ID,
            r"Error code: 400 - (purpose must be 'batch'|stream: a response that is kept)": KEPT,
            r"Error code: (404 - there is no path|405 - \w+ is not a method of)": PATH,
        },
    ),
    "anthropic": Suite(
        sdist="anthropic",
        tests=tuple(
            f"tests/api_resources/{name}"
            for name in ("test_messages.py", "test_models.py", "messages", "beta/test_messages.py", "beta/test_models.py", "beta/messages")
        ),
        environment={"TEST_API_BASE_URL": "{url}"},
        options=(*SDIST, "-p", "tests._alias_httpx"),
        known={
            r"with_all_params.*Error code: 400": ALL_FIELDS,
            r"Error code: (404 - .*there is no path|405 - \w+ is not a method of)": PATH,
        },
    ),
}  # fmt: skip
SUITES |= {name: Suite(**row) for name, row in engines.SUITES.items()}


def environment(folder: Path, name: str, suite: Suite) -> tuple[Path, Path]:
    """Makes a virtual environment with the packages of NAME.txt, and unpacks the sdist that has the tests, unless both are there. Returns
    (the environment's Python, the folder in which the tests run)."""
    home, listed = folder / name, HERE / f"{name}.txt"
    python, made, sources, wanted = home / "bin" / "python", home / ".made", home / "sdist", listed.read_text()
    if not made.exists() or made.read_text() != wanted:
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(home)], check=True)
        pip = [str(python), "-m", "pip", "--disable-pip-version-check"]
        subprocess.run([*pip, "install", "-q", "-r", str(listed)], check=True)
        if suite.engine is not None:
            subprocess.run([str(python), str(HERE / "fetch_sdist.py"), suite.engine, str(sources)], check=True)
            paths = os.environ.get("PYTHONPATH", "")
            (home / "start").write_text(f'#!/bin/sh\nexec env PYTHONPATH={paths} {sys.executable} {HERE / "llama_server.py"} "$@"\n')
            (home / "start").chmod(0o755)
            (packages,) = home.glob("lib/*/site-packages")
            (packages / "pumice.pth").write_text("\n".join(path for path in sys.path if path))
        if suite.sdist is not None:
            pinned = next(line for line in wanted.splitlines() if re.match(rf"{suite.sdist}(\[.*\])?==", line))
            subprocess.run([*pip, "download", "-q", "--no-deps", "--no-binary", ":all:", "-d", str(sources), pinned], check=True)
            shutil.unpack_archive(next(sources.glob("*.tar.gz")), sources)
        made.write_text(wanted)
    if suite.sdist is None and suite.engine is None:
        return python, HERE
    return python, next(path for path in sources.iterdir() if path.is_dir()) / suite.place


@contextlib.contextmanager
def served(arguments: Sequence[str], log: Path) -> Iterator[str]:
    """Serves the sample models: "chat" is SmolLM2 with a chat template that has a place for tools, and greedy answers. It answers requests
    for all names that are not served, too. "embed" is all-MiniLM-L6-v2. The context's value is the address of the server."""
    models = [f"chat={samples.smollm2()}", f"embed={samples.minilm()}", *arguments]
    template = ["--load", f"chat.chat-template={samples.tools_template()}"]
    # Without the penalty, the small model repeats one phrase in a JSON string until the answer is cut.
    options = ["--port", "0", "--default-model", "chat", "--temperature", "0", "--repetition-penalty", "1.1", "--max-answer", "128"]
    aliases = [f"--alias={name}=embed" for name in ("text-embedding-3-small", "text-embedding-ada-002")]
    command = [sys.executable, "-m", "pumice", "serve", *models, *template, *options, *aliases, "--files"]
    with (
        tempfile.TemporaryDirectory() as files,
        log.open("w") as errors,
        subprocess.Popen([*command, files], stdout=subprocess.PIPE, stderr=errors, text=True) as server,
    ):
        try:
            assert server.stdout is not None
            found = re.search(r"http://\S+:\d+", server.stdout.readline())
            if found is None:
                raise RuntimeError(f"the server did not start:\n{log.read_text()}")
            yield found[0]
        finally:
            server.terminate()


def outcomes(report: Path) -> Iterator[tuple[str, str, str]]:
    """Yields ("passed", "failed" or "skipped", name, message) of each test of a JUnit report."""
    for case in ET.parse(report).iter("testcase"):
        name = f"{case.get('classname')}::{case.get('name')}"
        wrong = next((child for child in case if child.tag in ("failure", "error", "skipped")), None)
        if wrong is None:
            yield "passed", name, ""
        else:
            yield ("skipped" if wrong.tag == "skipped" else "failed"), name, wrong.get("message") or ""


def ran(folder: Path, name: str, chosen: Sequence[str]) -> bool:
    """Runs a suite, and prints its figures. chosen: further arguments of pytest. Returns whether the reason of each failure is known."""
    suite = SUITES[name]
    python, place = environment(folder, name, suite)
    report, log = folder / f"{name}.xml", folder / f"{name}.log"
    server = served(suite.serve, folder / f"{name}-server.log") if suite.engine is None else contextlib.nullcontext("")
    with server as url, log.open("w") as out:
        told = {
            "url": url,
            "here": HERE,
            "start": folder / name / "start",
            "python": sys.executable,
            "path": os.environ.get("PYTHONPATH", ""),
        }
        variables = {key: value.format(**told) for key, value in suite.environment.items()}
        # The tests get nothing of the environment in which pumice runs.
        environ = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"} | variables
        command = [str(python), "-m", "pytest", *suite.tests, *suite.options, *chosen, "-q", "--tb=short", f"--junitxml={report}"]
        report.unlink(missing_ok=True)
        subprocess.run(command, cwd=place, stdout=out, stderr=subprocess.STDOUT, env=environ, check=False)
    if not report.exists():
        print(f"{name}: pytest ended before its report:\n{log.read_text()[-2000:]}")
        return False
    counts, reasons = collections.Counter[str](), collections.Counter[str]()
    unknown: dict[str, list[str]] = collections.defaultdict(list)
    for outcome, test, message in outcomes(report):
        counts[outcome] += 1
        if outcome == "failed":
            reason = next((why for pattern, why in suite.known.items() if re.search(pattern, f"{test}: {message}", re.DOTALL)), None)
            reasons[reason or "for a reason that is not known"] += 1
            if reason is None:
                unknown[re.sub(r"'request_id': '\w+'", "", message.partition("\n")[0])[:300]].append(test)
    print(f"{name}: {counts['passed']} passed, {counts['failed']} failed, {counts['skipped']} skipped (output: {log})")
    for reason, count in reasons.most_common():
        print(f"  {count:4} {reason}")
    for message, tests in unknown.items():
        print(f"    {message}: {len(tests)}, of which {', '.join(tests[:3])}")
    sys.stdout.flush()
    return not unknown and counts["passed"] > 0


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--venvs", type=Path, default=ROOT / ".venv-suites-others", help="where the environments and reports are")
    parser.add_argument("--only", action="append", choices=list(SUITES), help="only this suite (may be given several times)")
    parser.add_argument("-k", help="only tests that match this expression of pytest's -k")
    options = parser.parse_args(arguments)
    chosen = ["-k", options.k] if options.k else []
    results = [ran(options.venvs.resolve(), name, chosen) for name in options.only or SUITES]
    return int(not all(results))


if __name__ == "__main__":
    sys.exit(main())
