"""`pumice run`: a line must get the answer that its body gets over HTTP, and a run that a signal ended must go on as if nothing was."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import samples
from asgi import Client, with_server
from paths import ROOT
from patience import PATIENCE, wait_until

import pumice.serve
from pumice.__main__ import main
from pumice.serve.models import Models

MODELS = ("--model", "chat=CHAT", "--model", "embed=EMBED")


@pytest.fixture(name="loaded")
def _loaded(smollm2: pumice.Model, minilm: pumice.Model, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    """Lets CHAT and EMBED be models that are loaded already."""
    models = {"CHAT": smollm2, "EMBED": minilm}

    async def load(source: Any, **options: Any) -> Any:
        if source not in models:
            raise FileNotFoundError(f"there is no {source}")
        return models[source]

    async def unload(self: Any, served: Any) -> None:
        served.model = None

    monkeypatch.setattr(pumice, "aload", load)
    monkeypatch.setattr(Models, "unload", unload)
    before = smollm2.set_limits()
    yield {"chat": smollm2, "embed": minilm}
    smollm2.set_limits(**before)


@pytest.fixture(name="cli")
def _cli(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[int, str, str]]:
    def run(*words: Any, stdin: bytes = b"") -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        try:
            code = main(["run", *map(str, words)])
        except SystemExit as stop:
            code = int(stop.code or 0)
        return (code, *capsys.readouterr())

    return run


def line(custom_id: str, url: str, **body: Any) -> dict[str, Any]:
    return {"custom_id": custom_id, "method": "POST", "url": url, "body": body}


def written(path: Path, lines: Any) -> Path:
    path.write_text("".join(json.dumps(each) + "\n" for each in lines))
    return path


def found(data: str) -> dict[Any, Any]:
    """Returns custom_id -> line."""
    return {each["custom_id"]: each for each in map(json.loads, data.splitlines())}


# New for each answer, or dependent on the tokens that the model still has from requests before.
NEW = ("id", "created", "created_at", "completed_at", "request_id", "usage", "timings", "seed")


def lasting(value: Any) -> Any:
    """Returns what must be equal in two answers to one body."""
    if isinstance(value, dict):
        return {key: lasting(each) for key, each in value.items() if key not in NEW}
    return [lasting(each) for each in value] if isinstance(value, list) else value


HELLO = [{"role": "user", "content": "Hello"}]
BODIES = [
    line("chat", "/v1/chat/completions", model="chat", messages=HELLO, max_tokens=6, temperature=0),
    line("seeded", "/v1/chat/completions", model="chat", messages=HELLO, max_tokens=6, temperature=1.5, seed=3, n=2, logprobs=True),
    line("completion", "/v1/completions", model="chat", prompt=["One", "Two"], max_tokens=4, seed=5),
    line("responses", "/v1/responses", model="chat", input="Hello", max_output_tokens=6, temperature=0),
    line("count", "/v1/responses/input_tokens", model="chat", input="Hello"),
    line("messages", "/v1/messages", model="chat", messages=HELLO, max_tokens=6, temperature=0),
    line("embed", "/v1/embeddings", model="embed", input=["Hello", "You"], encoding_format="base64"),
    line("cohere", "/v2/embed", model="embed", texts=["Hello"], input_type="search_query"),
    line("rerank", "/v1/rerank", model="embed", query="Hello", documents=["You", "Me"]),
    line("score", "/v1/score", model="embed", text_1="Hello", text_2="You"),
    line("tokenize", "/tokenize", model="chat", content="Hello"),
    line("unknown", "/v1/chat/completions", model="chat", messages=HELLO, temprature=0),
    line("model", "/v1/chat/completions", model="other", messages=HELLO),
    line("long", "/v1/chat/completions", model="chat", messages=[{"role": "user", "content": "word " * 9000}]),
    line("anthropic", "/v1/messages", model="chat", messages=HELLO),
    line("task", "/v1/chat/completions", model="embed", messages=HELLO),
]


def test_a_line_gets_the_answer_that_its_body_gets_over_http(loaded: Any, cli: Any, tmp_path: Path) -> None:
    code, out, err = cli(written(tmp_path / "in", BODIES), "-o", tmp_path / "out", *MODELS)
    assert (code, err) == (0, "")
    assert f"{tmp_path}/out: 16 answers, 5 of them errors, " in out
    assert " tokens/s" in out

    async def asked(client: Client) -> dict[str, Any]:
        return {each["custom_id"]: await client.post(each["url"], each["body"]) for each in BODIES}

    expected = with_server(loaded, asked, max_responses=0)
    lines = found((tmp_path / "out").read_text())
    assert len(lines) == 16
    for name, answer in expected.items():
        response = lines[name]["response"]
        assert response["status_code"] == answer.status, name
        assert lasting(response["body"]) == lasting(answer.json), name
        assert lines[name]["error"] is None
        assert response["request_id"].startswith("req_")
    assert {name: answer.status for name, answer in expected.items() if answer.status != 200} == {
        "unknown": 400,
        "model": 404,
        "long": 400,
        "anthropic": 400,
        "task": 400,
    }


def test_plain_lines_with_seeds_of_their_own(loaded: Any, cli: Any, tmp_path: Path) -> None:
    prompts = written(tmp_path / "in", [{"prompt": "The sea is", "max_tokens": 8, "temperature": 2}] * 4)

    def texts(*words: Any) -> list[str]:
        (tmp_path / "out").unlink(missing_ok=True)
        code, _, err = cli(prompts, "-o", tmp_path / "out", "--model", "CHAT", "--in-order", *words)
        assert (code, err) == (0, "")
        return [each["response"]["body"]["choices"][0]["text"] for each in map(json.loads, (tmp_path / "out").read_text().splitlines())]

    first = texts()
    assert len(set(first)) == 4  # equal prompts, and a seed each
    assert texts("--at-once", 1) == first
    assert not set(texts("--seed", 1)) & set(first)


def test_standard_input_and_output(loaded: Any, cli: Any, tmp_path: Path) -> None:
    lines = b'\xef\xbb\xbf{"text": "Hello", "id": "a"}\r\n\r\n{"text": "You", "id": "b"}\r\nbad'
    code, out, err = cli("-", "-o", "-", "--model", "EMBED", "--in-order", stdin=lines)
    assert code == 0
    assert [each["custom_id"] for each in map(json.loads, out.splitlines())] == ["a", "b", None]
    assert err.startswith("standard output: 3 answers, 1 of them errors")
    code, out, err = cli("-", "-o", tmp_path / "out", "--model", "EMBED", stdin=lines)
    assert (code, err) == (0, "")
    code, out, _ = cli("-", "-o", tmp_path / "out", "--model", "EMBED", stdin=lines + b'\n{"text": "More"}\n')
    assert out.startswith(f"{tmp_path}/out: 4 answers, 3 of them from an earlier run")


def test_nothing_to_do(loaded: Any, cli: Any, tmp_path: Path) -> None:
    (tmp_path / "in").write_bytes(b"")
    assert cli(tmp_path / "in", "-o", tmp_path / "out", *MODELS) == (0, f"{tmp_path}/out: 0 answers\n", "")
    written(tmp_path / "in", [{"text": "Hello", "model": "embed"}])
    cli(tmp_path / "in", "-o", tmp_path / "out", *MODELS)
    before = (tmp_path / "out").read_bytes()
    assert cli(tmp_path / "in", "-o", tmp_path / "out", *MODELS) == (
        0,
        f"{tmp_path}/out: 1 answers, 1 of them from an earlier run\n",
        "",
    )
    assert (tmp_path / "out").read_bytes() == before


def test_a_run_with_other_settings_does_not_go_on(loaded: Any, cli: Any, tmp_path: Path) -> None:
    out = tmp_path / "out"
    given = (written(tmp_path / "in", [{"text": "Hello"}]), "-o", out)
    cli(*given, "--model", "EMBED")
    before = out.read_bytes()
    assert cli(*given, "--model", "EMBED", "--at-once", 3, "--threads", 2)[0] == 0  # these change no answer
    for words, what in (
        (("other=EMBED",), "other models and other options"),
        (("EMBED", "--n-ctx", 64), "other options"),
        (("EMBED", "--seed", 1), "other options"),
    ):
        code, _, err = cli(*given, "--model", *words)
        assert (code, len(err.splitlines())) == (1, 1)
        assert f"out has answers of {what}: name another file" in err
        assert out.read_bytes() == before
    assert cli(*given, "--model", "other=EMBED", "--mixed")[0] == 0
    assert out.read_bytes() == before
    code, _, err = cli(*given, "--model", "other=NONE", "--overwrite")
    assert (code, "NONE" in err) == (1, True)
    assert out.read_bytes() == before  # the model could not be loaded
    code, told, _ = cli(*given, "--model", "other=EMBED", "--overwrite")
    assert told.startswith(f"{out}: 1 answers, ")
    assert out.read_bytes() != before


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("IN", "-o", "IN", "--model", "EMBED"), "is a file that is read"),
        (("IN", "-o", "OUT", "--errors", "OUT", "--model", "EMBED"), "they are two files"),
        (("IN", "-o", "FOLDER", "--model", "EMBED"), "cannot write .*Is a directory"),
        (("NONE", "-o", "OUT", "--model", "EMBED"), "No such file"),
        (("FOLDER", "-o", "OUT", "--model", "EMBED"), "cannot read .*Is a directory"),
        (("IN", "-o", "OUT"), "required: --model"),
        (("IN", "-o", "OUT", "--model", "EMBED", "--at-once", "0"), "0 is not at least 1"),
        (("IN", "-o", "OUT", "--model", "EMBED", "--overwrite", "--mixed"), "not allowed with"),
        (("IN", "-o", "OUT", "--model", "a=EMBED", "--model", "a=CHAT"), "two models have the name 'a'"),
        (("IN", "-o", "OUT", "--model", "EMBED", "--temperature", "-1"), "temperature"),
        (("IN", "-o", "NOTES", "--model", "EMBED"), "is no answer that a run has written"),
        (("UTF16", "-o", "OUT", "--model", "EMBED"), "is UTF-16 text"),
    ],
)
def test_what_cannot_begin_is_one_line(words: Any, message: str, loaded: Any, cli: Any, tmp_path: Path) -> None:
    written(tmp_path / "IN", [{"text": "Hello"}])
    (tmp_path / "FOLDER").mkdir()
    (tmp_path / "NOTES").write_text("notes\n")
    (tmp_path / "UTF16").write_text('{"text": "Hello"}', encoding="utf-16")
    code, out, err = cli(*(str(tmp_path / word) if word in ("IN", "OUT", "FOLDER", "NONE", "NOTES", "UTF16") else word for word in words))
    assert (code, out, len(err.splitlines())) == (1, "", 1)
    assert re.search(message, err), err
    assert (tmp_path / "NOTES").read_text() == "notes\n"


def test_missing_packages_are_named(cli: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "pumice.serve.run_command", raising=False)
    monkeypatch.delattr(pumice.serve, "run_command", raising=False)
    monkeypatch.setitem(sys.modules, "starlette", None)
    monkeypatch.delitem(sys.modules, "pumice.serve.application", raising=False)
    monkeypatch.setitem(sys.modules, "starlette.applications", None)
    code, _, err = cli(tmp_path / "in", "-o", tmp_path / "out", "--model", "EMBED")
    assert code == 1
    assert "pumice run needs the packages of the extra serve: pip install 'pumice[serve]'" in err


def started(*words: Any) -> subprocess.Popen[str]:
    paths = os.pathsep.join(filter(None, [str(ROOT / "examples"), os.environ.get("PYTHONPATH", "")]))
    return subprocess.Popen(
        [sys.executable, "-m", "pumice", "run", *map(str, words)],
        env={**os.environ, "PYTHONPATH": paths},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.alone
def test_a_run_that_was_stopped_and_killed_ends_like_one_that_was_not(smollm2: pumice.Model, loaded: Any, cli: Any, tmp_path: Path) -> None:
    """Ctrl-C, then SIGKILL, each when some lines are answered; the last run then answers the others."""
    count = 12
    lines = written(tmp_path / "in", [{"prompt": f"Story {i}:", "max_tokens": 12, "temperature": 1} for i in range(count)])
    model = samples.smollm2()
    given = (lines, "-o", tmp_path / "out", "--model", f"chat={model}", "--at-once", 2)

    def answers() -> int:
        return (tmp_path / "out").read_bytes().count(b"\n") if (tmp_path / "out").exists() else 0

    with started(*given) as process:
        wait_until(lambda: answers() > 2 or process.poll() is not None)
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE) == 1
        kept = answers()
        assert process.stderr is not None
        told = process.stderr.read()
        assert (
            told
            == f"pumice: interrupted: {kept} of {count} lines are answered in {tmp_path}/out; the same command goes on with the others\n"
        )
    with started(*given) as process:
        wait_until(lambda: answers() > kept + 1 or process.poll() is not None)
        process.kill()
        process.wait()
    kept = answers()
    assert 4 < kept < count
    with (tmp_path / "out").open("ab") as file:
        file.write(b'{"id":"batch_req_torn')
    # This run names the model differently, which --mixed allows.
    code, told, _ = cli(lines, "-o", tmp_path / "out", "--model", "chat=CHAT", "--mixed")
    assert code == 0
    assert f"{count} answers, {kept} of them from an earlier run" in told
    assert cli(lines, "-o", tmp_path / "whole", "--model", "chat=CHAT")[0] == 0
    stopped, whole = (found((tmp_path / name).read_text()) for name in ("out", "whole"))
    assert len(stopped) == answers() == count
    assert {name: lasting(each["response"]) for name, each in stopped.items()} == {
        name: lasting(each["response"]) for name, each in whole.items()
    }
