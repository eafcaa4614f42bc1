"""`pumice serve` as a process: its options, its start, its stop, its workers."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import signal
import socket
import time
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import samples
from children import run
from paths import ROOT
from patience import wait_until
from servers import Command, children_of, pss, read_all, reply_of, request_bytes

from pumice.__main__ import main, parser
from pumice.serve import command
from pumice.serve.settings import Settings

CHAT = "/v1/chat/completions"
LONG = {"messages": [{"role": "user", "content": "Hi"}], "ignore_eos": True, "max_tokens": 8000}
QUICK = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 3}


def parsed(*arguments: str) -> argparse.Namespace:
    return parser().parse_args(["serve", *arguments])


def options() -> list[str]:
    """Returns all options of `pumice serve`."""
    sub = next(action for action in parser()._actions if isinstance(action, argparse._SubParsersAction)).choices["serve"]
    return [name for action in sub._actions for name in action.option_strings if name.startswith("--")]


# ---------------------------------------------------------------- options
def test_every_setting_has_an_option() -> None:
    others = {
        "api_keys": "--api-key",
        "hosts": "--host-name",
        "cors_origins": "--cors-origin",
        "aliases": "--alias",
        "sampling": "--temperature",
    }
    for each in fields(Settings):
        assert others.get(each.name, "--" + each.name.replace("_", "-")) in options(), each.name


def test_the_page_has_every_option() -> None:
    page = (ROOT / "docs" / "serving.md").read_text()
    told = set(re.findall(r"`(--[a-z-]+)", page))
    assert set(options()) - {"--help"} <= told, set(options()) - told
    assert len(command.flags()) > 20
    for each in command.flags():
        name, default = command.flag_name(each.name), each.default
        row = next(line for line in page.splitlines() if line.startswith(f"| `{name}`"))
        if isinstance(default, (int, float)):
            number = f"{default:g}" if isinstance(default, float) else f"{default:,}"
            assert number in row, (name, row)


def test_names_of_models(tmp_path: Path) -> None:
    file = tmp_path / "Some-Model.Q4_K_M.gguf"
    file.touch()
    (tmp_path / "a=b").mkdir()
    assert command.models_of([str(file)]) == {"Some-Model.Q4_K_M": str(file)}
    assert command.models_of([f"chat={file}"]) == {"chat": str(file)}
    assert command.models_of([str(tmp_path / "a=b")]) == {"a=b": str(tmp_path / "a=b")}
    assert command.models_of(["x/y-00001-of-00003.gguf"]) == {"y": "x/y-00001-of-00003.gguf"}
    assert command.models_of(["org/name", "org/other:file.gguf"]) == {"name": "org/name", "other": "org/other:file.gguf"}
    latin = os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9\xc3\xa9.gguf")
    Path(latin).touch()
    assert command.models_of([latin]) == {"caf\\xe9é": latin}  # requests can give this name, and /metrics can write it
    with pytest.raises(ValueError, match="two models have the name 'a'"):
        command.models_of(["a=x", "a=y"])
    with pytest.raises(ValueError, match="names no model"):
        command.models_of(["a="])


def test_keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(command.KEY_VARIABLE, raising=False)
    file = tmp_path / "keys"
    file.write_text("# ours\none\n\n two \n")
    assert command.keys_of(parsed("m")) == ()
    assert command.keys_of(parsed("m", "--api-key", "zero", "--api-key-file", str(file))) == ("zero", "one", "two")
    monkeypatch.setenv(command.KEY_VARIABLE, "three")
    assert command.keys_of(parsed("m", "--api-key", "zero")) == ("zero", "three")
    file.write_text("# none\n")
    with pytest.raises(ValueError, match="has no keys"):
        command.keys_of(parsed("m", "--api-key-file", str(file)))
    file.write_bytes(b"one\ntwo\xff\n")
    with pytest.raises(ValueError, match=f"^--api-key-file {file} is not UTF-8 text: see line 2$"):
        command.keys_of(parsed("m", "--api-key-file", str(file)))
    with pytest.raises(ValueError, match="a header cannot carry") as raised:
        command.keys_of(parsed("m", "--api-key", "my secret"))
    assert "my secret" not in str(raised.value)


def test_who_may_ask(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(command.KEY_VARIABLE, raising=False)

    def hosts(*arguments: str) -> tuple[str, ...]:
        return command.settings_of(parsed("m", *arguments), {}).hosts

    for host in ("0.0.0.0", "::", "192.168.0.7", "example.org", "127.evil.example"):
        with pytest.raises(ValueError, match="--no-auth goes without"):
            hosts("--host", host)
        assert hosts("--host", host, "--api-key", "secret") == ("*",)
        assert "*" not in hosts("--host", host, "--no-auth")
        assert "mine" in hosts("--host", host, "--api-key", "secret", "--host-name", "mine")
    for host in ("127.0.0.1", "localhost", "::1", "127.1.2.3"):
        assert "localhost" in hosts("--host", host)
    assert hosts("--uds", "/tmp/x") == ("*",)  # no page reaches a socket in the file system


def test_options_of_one_model() -> None:
    read: dict[str, Any] = {"n_ctx": int, "device": str}
    models = {"chat": "x", "a.b": "y"}
    found = command.load_options_of(["chat.n-ctx=4096", "a.b.device=cpu"], models, {"device": "auto"}, read)
    assert found == {"chat": {"device": "auto", "n_ctx": 4096}, "a.b": {"device": "cpu"}}
    for wrong, says in (
        (["no.n_ctx=1"], "no model 'no'"),
        (["chat.x=1"], "not an option"),
        (["chat.n_ctx=a"], "not a value"),
        (["chat"], "VALUE"),
    ):
        with pytest.raises(ValueError, match=says):
            command.load_options_of(wrong, models, {}, read)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["m", "--host", "0.0.0.0"], "--no-auth"),
        (["m", "--max-n", "0"], "max_n=0 is out of range"),
        (["m", "--port", "65536"], "65535"),
        (["m", "--grace", "-1"], "'-1' is not a number of seconds, from 0 to 1e9"),
        (["m", "--chunk-seconds", "nan"], "'nan' is not a number of seconds"),
        (["m", "--chunk-seconds", "61"], "chunk_seconds=61 is out of range"),
        (["m", "--temperature", "nan"], "temperature=nan is out of range"),
        (["m", "--temperature", "-1"], "temperature=-1 is out of range"),
        (["m", "--top-p", "0"], "top_p=0 is out of range"),
        (["m", "--min-p", "2"], "min_p=2 is out of range"),
        (["m", "--seed", "-5"], "seed=-5 is out of range"),
        (["m", "--repetition-penalty", "0"], "repetition_penalty=0 is out of range"),
        (["m", "--top-k", "99999999999"], "top_k=99999999999 is out of range"),
        (["m", "--max-answer", "99999999999"], "max_answer=99999999999 is out of range"),
        (["m", "--max-answer", "0"], "max_answer=0 is out of range"),
        (["m", "--stop", ""], "stop holds an empty string"),
        (["m", "--alias", ""], "--alias '': NAME=VALUE is meant"),
        (["m", "--alias", "=m"], "an alias of 'm' is empty"),
        (["m", "--load", ""], "--load '': NAME=VALUE is meant"),
        (["m", "--uds", ""], "--uds is empty"),
        (["m", "--uds", "/tmp/x", "--port", "8000"], "--port 8000 and --uds /tmp/x were both given"),
        (["m", "--uds", "/tmp/x", "--host", "localhost"], "--host localhost and --uds /tmp/x were both given"),
        (["m", "--max-wait", "0"], "more than 0"),
        (["chat=m", "chat=m"], "two models"),
        (["m", "--load", "x.n-ctx=1"], "no model 'x'"),
        (["m", "--load", "m.n-ctx=0"], "'0' is not a value of n_ctx"),
        (["m", "--api-key-file", "/nothing/here"], "/nothing/here"),
        ([], "MODEL"),
    ],
)
def test_a_wrong_command_line_is_one_line(arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    try:
        code = main(["serve", *arguments])
    except SystemExit as ended:  # of the parser
        code = int(str(ended.code))
    out, errors = capsys.readouterr()
    assert (code, out) == (1, "") and errors.count("\n") == 1 and errors.startswith("pumice: ") and says in errors


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["{}", "--alias", "a=b"], "alias 'a' names 'b'"),
        (["{}", "--default-model", "b"], "default_model='b' is not a model"),
        (["/nothing/here.gguf"], "here.gguf"),
        (["{}", "--workers", "2", "--lazy"], "--lazy and --workers"),
        (["{}", "--responses", "/dev/null/x"], "/dev/null"),
        (["{}", "--responses", "/dev/null/x", "--workers", "2"], "/dev/null"),
        (["{}", "--uds", "/nothing/here/socket"], "cannot listen at /nothing/here/socket"),
        (["{}", "--host", "no.such.name.invalid", "--no-auth"], "no.such.name.invalid"),
    ],
)
def test_what_cannot_be_served_is_one_line(arguments: list[str], says: str) -> None:
    port = None if "--uds" in arguments else 0
    with Command(*(each.format(samples.minilm()) for each in arguments), "--log-level", "error", port=port) as server:
        assert server.end() == 1
        assert server.errors.count("\n") == 1 and server.errors.startswith("pumice: ") and says in server.errors, server.errors
        assert server.out == ""


def test_more_workers_than_files_can_be_open() -> None:
    limit = "import resource\nresource.setrlimit(resource.RLIMIT_NOFILE, (512, 1000))"
    with Command(str(samples.minilm()), "--workers", "300", first=limit) as server:
        assert server.end() == 1
        assert server.errors == "pumice: --workers 300 needs 1156 open files, and the system allows 1000 (ulimit -Hn)\n"


def test_a_port_in_use_is_one_line() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with Command(str(samples.minilm()), port=port) as server:
            assert server.end() == 1
            assert server.errors == f"pumice: cannot listen at 127.0.0.1:{port}: Address already in use\n"


def test_without_the_extra_one_sentence_says_what_to_install() -> None:
    ended = run(
        "import builtins\nreal = builtins.__import__\n"
        "def without(name, *more):\n"
        "    if name.startswith('uvicorn'):\n"
        "        raise ModuleNotFoundError('No module named uvicorn', name='uvicorn')\n"
        "    return real(name, *more)\n"
        "builtins.__import__ = without\n"
        "import pumice.__main__\n"
        "sys.exit(pumice.__main__.main(['serve', str(samples.minilm())]))\n"
    )
    assert ended.returncode == 1 and ended.stderr.count("\n") == 1 and "pip install 'pumice[serve]'" in ended.stderr, ended.stderr


def test_the_parser_does_not_import_the_server() -> None:
    ended = run(
        "import pumice.__main__ as m\nm.parser()\nprint([n for n in sys.modules if n.split('.')[0] in ('uvicorn', 'starlette', 'numpy')])"
    )
    assert ended.stdout == "[]\n", ended.stderr


# ---------------------------------------------------------------- life
def begun(server: Command, body: dict[str, Any]) -> socket.socket:
    return server.begun(CHAT, body)


def test_start_answer_stop() -> None:
    with Command(f"chat={samples.smollm2()}", f"embed={samples.minilm()}", "--grace", "8", "--alias", "gpt-4o=chat") as server:
        assert server.wait_ready().out == f"pumice serves chat, embed at http://127.0.0.1:{server.port} (Ctrl-C stops)\n"
        assert server.post(CHAT, {"model": "gpt-4o", **QUICK}).json["model"] == "chat"
        stream, whole = begun(server, {"model": "chat", **LONG, "stream": True}), begun(server, {"model": "chat", **LONG})
        stream.recv(100)
        wait_until(lambda: b'requests_running{model="chat"} 2' in server.get("/metrics").body)
        server.tell()
        wait_until(lambda: server.get("/ready").status == 503)
        refused = server.post(CHAT, {"model": "chat", **QUICK})
        assert (refused.status, refused.error["code"]) == (503, "stopping") and server.get("/health").status == 200
        events = read_all(stream).decode()
        assert '"code":"stopping"' in events and "data: [DONE]\n\n" in events
        answer = reply_of(read_all(whole))
        assert (answer.status, answer.error["code"]) == (503, "stopping")
        assert server.end() == 0
        assert "Traceback" not in server.errors


def test_requests_at_work_may_end_within_the_grace() -> None:
    with Command(f"chat={samples.smollm2()}", "--grace", "600", "--n-ctx", "512") as server:
        server.wait_ready()
        asked = begun(server, {**LONG, "max_tokens": 300})
        wait_until(lambda: b'requests_running{model="chat"} 1' in server.get("/metrics").body)
        server.tell(signal.SIGINT)
        assert reply_of(read_all(asked)).json["usage"]["completion_tokens"] == 300
        assert server.end() == 0


def test_a_second_signal_ends_at_once() -> None:
    with Command(f"chat={samples.smollm2()}", "--grace", "600") as server:
        server.wait_ready()
        asked = begun(server, LONG)
        wait_until(lambda: b'requests_running{model="chat"} 1' in server.get("/metrics").body)
        server.tell()
        wait_until(lambda: server.get("/ready").status == 503)
        server.tell()
        assert server.end() == 0  # long before the grace
        asked.close()


@pytest.mark.parametrize("workers", [1, 2])
def test_a_second_signal_removes_the_socket_from_the_file_system(tmp_path: Path, workers: int) -> None:
    path = tmp_path / "socket"
    arguments = (f"chat={samples.smollm2()}", "--uds", str(path), "--grace", "600", "--workers", str(workers))
    with Command(*arguments, port=None) as server, socket.socket(socket.AF_UNIX) as connection:
        server.wait_ready()
        connection.connect(str(path))
        connection.sendall(request_bytes("POST", CHAT, json.dumps({**LONG, "stream": True}).encode(), {"Host": "any.name"}))
        connection.recv(100)
        server.tell()
        time.sleep(1)
        assert server.process.poll() is None and path.exists()  # the stream goes on
        server.tell()
        assert server.end() == 0 and not path.exists()


def test_a_signal_while_models_are_loaded() -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        with Command(f"chat={samples.smollm2()}", "--log-level", "debug") as server:
            wait_until(lambda: "loading chat" in server.errors)
            server.tell(number)
            assert server.end() == 0 and "Traceback" not in server.errors, server.errors


def test_a_load_that_takes_long_without_standard_error() -> None:
    """A daemon may have no standard error, on which a load shows its bar after a second: here, at once."""
    first = "import sys; sys.stderr = None; from pumice.common import progress; progress.BAR_AFTER_SECONDS = -1.0"
    with Command(f"embed={samples.minilm()}", first=first) as server:
        assert server.wait_ready().get("/health").status == 200
        server.tell()
        assert server.end() == 0


def test_a_socket_in_the_file_system(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    for killed in (True, False):  # what a killed server leaves does not keep the next one from starting
        with Command(f"embed={samples.minilm()}", "--uds", str(path), port=None) as server:
            server.wait_ready()
            with socket.socket(socket.AF_UNIX) as connection:
                connection.connect(str(path))
                connection.sendall(request_bytes("GET", "/health", headers={"Host": "any.name"}))
                assert reply_of(read_all(connection)).status == 200
            with Command(f"embed={samples.minilm()}", "--uds", str(path), port=None) as second:
                assert second.end() == 1 and "cannot listen" in second.errors
            server.tell(signal.SIGKILL if killed else signal.SIGTERM)
            assert server.end() == (-signal.SIGKILL if killed else 0)
            assert path.exists() == killed


# ---------------------------------------------------------------- workers
def sockets_of(pid: int) -> int:
    """Returns how many sockets a process has open. The process may close a file while they are counted: it then counts as closed."""
    count = 0
    for name in os.listdir(f"/proc/{pid}/fd"):
        with contextlib.suppress(FileNotFoundError):
            count += os.readlink(f"/proc/{pid}/fd/{name}").startswith("socket")
    return count


def test_workers_share_the_weights_and_are_replaced() -> None:
    with Command(f"chat={samples.smollm2()}", "--n-ctx", "512") as one:
        one.wait_ready()
        one.post(CHAT, QUICK)
        alone = pss(one.process.pid)
    with Command(f"chat={samples.smollm2()}", "--n-ctx", "512", "--workers", "2", "--grace", "0.5") as server:
        server.wait_ready()
        wait_until(lambda: len(children_of(server.process.pid)) == 2)
        for _ in range(6):
            assert server.post(CHAT, QUICK).status == 200
        # Another worker would not find a response, so none is kept without --responses.
        assert server.post("/v1/responses", {"input": "Hi", "max_output_tokens": 1}).json["store"] is False
        pids = children_of(server.process.pid)
        together = sum(map(pss, [server.process.pid, *pids]))
        weights = 94 << 20
        assert together < alone + weights // 1.3, (alone >> 20, together >> 20)  # a second copy of the weights would be more

        # The streams of the others go on where one worker is killed.
        before = {pid: sockets_of(pid) for pid in pids}
        streams: list[socket.socket] = []
        while len(streams) < 120 and any(sockets_of(pid) <= before[pid] for pid in pids):  # until both have some
            more = [begun(server, {**LONG, "max_tokens": 400, "stream": True}) for _ in range(12)]
            for each in more:
                each.recv(100)
            streams += more
        fewest, most = sorted(pids, key=sockets_of)
        assert sockets_of(fewest) > before[fewest]
        os.kill(fewest, signal.SIGKILL)
        ended = [read_all(each).endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n") for each in streams]
        assert any(ended) and not all(ended)
        wait_until(lambda: len(children_of(server.process.pid)) == 2)
        assert most in children_of(server.process.pid)
        wait_until(lambda: "another one takes its place" in server.errors)
        assert all(server.post(CHAT, QUICK).status == 200 for _ in range(4))

        # A worker that is told to stop ends and is replaced; the parent's stop ends all.
        os.kill(most, signal.SIGTERM)
        wait_until(lambda: most not in children_of(server.process.pid) and len(children_of(server.process.pid)) == 2)
        last = children_of(server.process.pid)
        server.tell()
        assert server.end() == 0
        assert not any(Path(f"/proc/{pid}").exists() for pid in last)
        assert "Traceback" not in server.errors, server.errors


def test_workers_find_the_responses_of_each_other(tmp_path: Path) -> None:
    body = {"input": "Hi", "max_output_tokens": 1}
    options = ("--n-ctx", "512", "--workers", "2", "--grace", "0.1", "--responses", str(tmp_path / "kept"))
    with Command(f"chat={samples.smollm2()}", *options) as server:
        server.wait_ready()
        wait_until(lambda: len(children_of(server.process.pid)) == 2)
        first = server.post("/v1/responses", body).json
        path = f"/v1/responses/{first['id']}"
        for _ in range(6):
            assert server.get(path).json == first
            assert server.post("/v1/responses", {**body, "previous_response_id": first["id"]}).status == 200
        for pid in children_of(server.process.pid):
            os.kill(pid, signal.SIGKILL)
        wait_until(lambda: server.errors.count("another one takes its place") == 2)
        assert server.get(path).json == first
        assert server.request("DELETE", path).status == 200
        assert {server.get(path).status for _ in range(6)} == {404}


NO_SECOND_WORKER = """
import errno, os, sys, time
from pumice.serve import workers
workers.PAUSE = 4.0
fork, calls = os.fork, []
def failing():
    calls.append(time.monotonic())
    if len(calls) in (3, 4):
        print("pause", calls[-1] - calls[-2], file=sys.stderr)
    if len(calls) in (2, 3):
        raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))
    return fork()
os.fork = failing
"""


def test_a_worker_that_cannot_be_started_is_tried_again() -> None:
    told = "worker 1 could not be started"
    with Command(f"embed={samples.minilm()}", "--workers", "2", "--grace", "0.1", first=NO_SECOND_WORKER) as server:
        server.wait_ready()
        pid = server.process.pid
        wait_until(lambda: told in server.errors)
        sockets, first = sockets_of(pid), children_of(pid)
        assert server.post("/v1/embeddings", {"input": "one"}).status == 200 and len(first) == 1  # the other worker goes on
        wait_until(lambda: len(children_of(pid)) == 2)
        pauses = [float(seconds) for seconds in re.findall(r"^pause (.*)$", server.errors, re.MULTILINE)]
        assert len(pauses) == 2 and min(pauses) > 0.9 * 4.0
        assert server.errors.count(told) == 2 and "Resource temporarily unavailable" in server.errors
        assert first[0] in children_of(pid)
        wait_until(lambda: sockets_of(pid) == sockets + 1)  # one for each worker; what failed keeps none
        server.tell()
        assert server.end() == 0 and "Traceback" not in server.errors, server.errors


def figures(server: Command, name: str) -> dict[str, float]:
    """Returns the samples of a figure in /metrics, by what stands between its braces."""
    lines = re.findall(rf"^{name}\{{(.*)\}} (\S+)$", server.get("/metrics").body.decode(), re.MULTILINE)
    return {labels: float(value) for labels, value in lines}


def test_metrics_have_the_figures_of_all_workers() -> None:
    body = {"input": ["one", "two"]}
    with Command(f"embed={samples.minilm()}", "--workers", "2", "--grace", "0.1") as server:
        server.wait_ready()
        wait_until(lambda: len(figures(server, "pumice_model_loaded")) == 2)
        asked = 0
        counts: dict[str, float] = {}
        while len(counts) < 2:  # until both workers have answered some
            assert asked < 400
            assert server.post("/v1/embeddings", body).status == 200
            asked += 1
            counts = figures(server, "pumice_embedded_texts_total")
        for _ in range(5):  # whichever worker is asked
            counts = figures(server, "pumice_embedded_texts_total")
            assert set(counts) == {'model="embed",worker="0"', 'model="embed",worker="1"'} and sum(counts.values()) == 2 * asked
            requests = figures(server, "pumice_requests_total")
            assert sum(value for labels, value in requests.items() if "/v1/embeddings" in labels) == asked
        text = server.get("/metrics").body.decode()
        assert text.count("# TYPE pumice_request_seconds histogram") == 1  # each family is there once
        assert figures(server, "pumice_worker_up") == {'worker="0"': 1.0, 'worker="1"': 1.0}

        # A worker that does not answer is left out, and its successor begins again.
        first = children_of(server.process.pid)
        os.kill(first[1], signal.SIGSTOP)
        wait_until(lambda: Path(f"/proc/{first[1]}/stat").read_text().rpartition(")")[2].split()[0] == "T")  # else it may still accept
        try:
            up = figures(server, "pumice_worker_up")
            assert sorted(up.values()) == [0.0, 1.0]
            assert len(figures(server, "pumice_embedded_texts_total")) <= 1
        finally:
            os.kill(first[1], signal.SIGKILL)
        wait_until(lambda: len(set(children_of(server.process.pid)) - {first[1]}) == 2)
        wait_until(lambda: sum(figures(server, "pumice_worker_up").values()) == 2)
        assert sum(figures(server, "pumice_embedded_texts_total").values()) < 2 * asked
        assert "Traceback" not in server.errors, server.errors


def test_workers_end_with_their_parent() -> None:
    with Command(f"embed={samples.minilm()}", "--workers", "2", "--grace", "0.1") as server:
        pids = children_of(server.wait_ready().process.pid)
        server.tell(signal.SIGKILL)
        server.end()
        wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids))


def test_the_log_level_hides_the_lines_of_requests() -> None:
    for level, lines in (("info", 1), ("warning", 0)):
        with Command(f"embed={samples.minilm()}", "--log-level", level) as server:
            server.wait_ready()
            assert server.post("/v1/embeddings", {"input": "private"}).status == 200
            wait_until(lambda server=server, lines=lines: server.errors.count("/v1/embeddings") == lines)  # type: ignore[misc]
            assert "private" not in server.errors
            server.tell()
            assert server.end() == 0


def test_sampling_of_requests_that_do_not_say_it() -> None:
    with Command(f"chat={samples.smollm2()}", "--n-ctx", "512", "--max-answer", "2", "--temperature", "0") as server:
        server.wait_ready()
        body = {"messages": QUICK["messages"]}
        assert server.post(CHAT, body).json["usage"]["completion_tokens"] == 2
        assert server.post(CHAT, {**body, "max_tokens": 4}).json["usage"]["completion_tokens"] == 4
