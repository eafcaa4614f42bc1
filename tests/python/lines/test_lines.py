"""The engine of lines, with a stand-in for the server: which lines are requests, what their answers look like, and that a run which was
stopped anywhere goes on so that each line has one answer."""

from __future__ import annotations

import asyncio
import io
import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from pumice.common.progress import LateBar
from pumice.common.stdio import OutputError
from pumice.errors import OverloadedError
from pumice.lines.answers import AnswerFile, Answers, Reply
from pumice.lines.line_reader import BLOCK, LineReader
from pumice.lines.requests import Ids, LineForm, Request
from pumice.lines.run import Run, scan

CHAT, EMBED = "/v1/chat/completions", "/v1/embeddings"
PATHS = {
    CHAT: {"messages", "seed", "temperature", "priority"},
    "/v1/completions": {"prompt", "seed"},
    EMBED: {"input", "model"},
}
RUN = "models_options_1.0"


def lines_of(data: bytes, most: int = 1 << 20, piece: int = BLOCK) -> list[Any]:
    source = io.BytesIO(data)
    return list(LineReader(lambda size: source.read(min(size, piece)), most, "IN"))


def formed(custom_id: Any, body: Any, url: str = CHAT, **more: Any) -> dict[str, Any]:
    return {"custom_id": custom_id, "method": "POST", "url": url, "body": body, **more}


def written(*lines: Any) -> bytes:
    return b"".join((line if isinstance(line, bytes) else json.dumps(line).encode()) + b"\n" for line in lines)


async def aside(work: Callable[..., Any], *args: Any) -> Any:
    await asyncio.sleep(0)
    return work(*args)


async def echo(request: Request) -> Reply:
    """A server whose answer is the request."""
    await asyncio.sleep(0)
    return Reply(200, b'{"path":%s,"asked":%s}' % (json.dumps(request.path).encode(), request.body), "req_1")


def run(
    data: bytes,
    path: Path,
    ask: Any = echo,
    *,
    errors: Path | None = None,
    in_order: bool = False,
    mixed: bool = False,
    fingerprint: str = RUN,
    at_once: int = 4,
    scans: bool = True,
    most: int = 1 << 20,
) -> Run:
    """Answers the lines of `data` in a file, as `pumice run` does."""

    def reader() -> LineReader:
        return LineReader(io.BytesIO(data).read, most, "IN")

    async def main() -> Run:
        if scans:
            scan(reader(), answers)
        made = Run(reader(), LineForm(PATHS), answers, ask, aside, at_once=at_once, most_bytes=1 << 16)
        await made.run()
        return made

    files = [AnswerFile(str(path)), None if errors is None else AnswerFile(str(errors))]
    answers = Answers(files[0], files[1], fingerprint, in_order)  # type: ignore[arg-type]
    try:
        answers.read_earlier(mixed)
        return asyncio.run(main())
    finally:
        answers.close()


def found(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def answered(*paths: Path) -> list[Any]:
    """Returns what the answers of files say, in the order of the lines, without ids that are new each time."""
    each = [line for path in paths for line in found(path)]
    return sorted(([line["pumice"]["line"], line["custom_id"], line["response"], line["error"]] for line in each), key=lambda line: line[0])


SIX = written(
    formed("a", {"messages": []}),
    {"prompt": "x"},
    b"{bad",
    b"",
    {"text": "y", "id": 7},
    formed("a", {"messages": [1]}),
    formed("ü", {"messages": ["漢"]}),
)


# ---------------------------------------------------------------- lines
@pytest.mark.parametrize("piece", [1, 2, 3, BLOCK])
@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", []),
        (b"\n", [b""]),
        (b"a", [b"a"]),
        (b"a\nb\n", [b"a", b"b"]),
        (b"a\r\nb\r\n\r\n", [b"a", b"b", b""]),
        (b"\xef\xbb\xbfa\n\xef\xbb\xbfb", [b"a", b"\xef\xbb\xbfb"]),
        (b"\xef\xbb\xbf" + b"x" * 9 + b"\r\n", [b"x" * 9]),
        (b"x" * 10 + b"\n" + b"y" * 9 + b"\nz", [None, b"y" * 9, b"z"]),
        (b"x" * 50, [None]),
    ],
)
def test_lines_of_files(data: bytes, expected: list[bytes | None], piece: int) -> None:
    read = lines_of(data, 9, piece)
    assert [line.data for line in read] == expected
    assert [line.number for line in read] == list(range(1, len(expected) + 1))
    assert [line.digest for line in read] == [line.digest for line in lines_of(data, 9)]


def test_a_line_is_known_again_whatever_its_end() -> None:
    assert [line.digest for line in lines_of(b"a\nb")] == [line.digest for line in lines_of(b"\xef\xbb\xbfa\r\nb\r\n")]
    long, other = b"x" * 40, b"x" * 39 + b"y"
    assert lines_of(long, 9)[0].digest != lines_of(other, 9)[0].digest


def test_utf_16_is_refused() -> None:
    with pytest.raises(ValueError, match="IN is UTF-16 text.*iconv"):
        lines_of('{"prompt": "x"}\n'.encode("utf-16"))


# ---------------------------------------------------------------- requests
@pytest.mark.parametrize(
    ("line", "path", "body"),
    [
        (formed("a", {"messages": [], "seed": 3}), CHAT, {"messages": [], "seed": 3}),
        ({"custom_id": "a", "url": CHAT, "body": {"seed": 0}}, CHAT, {"seed": 0}),
        (formed("a", {"input": "x"}, EMBED), EMBED, {"input": "x"}),
        ({"text": "x", "id": "a"}, EMBED, {"input": "x"}),
        ({"text": ["x", "y"], "model": "m"}, EMBED, {"input": ["x", "y"], "model": "m"}),
        ({"prompt": "x", "seed": 1}, "/v1/completions", {"prompt": "x", "seed": 1}),
        ({"messages": [], "seed": 1, "custom_id": 9}, CHAT, {"messages": [], "seed": 1}),
    ],
)
def test_requests(line: Any, path: str, body: Any) -> None:
    _, request = LineForm(PATHS).read(lines_of(written(line))[0])
    assert isinstance(request, Request)
    assert (request.path, json.loads(request.body)) == (path, body)


BAD: list[tuple[Any, str, str]] = [
    (b"{bad", "invalid_json_line", "not JSON"),
    (b'{"prompt": "\xff"}', "invalid_json_line", "byte 0xff at place 12"),
    (b'{"prompt": "x", "temperature": NaN}', "invalid_json_line", "NaN"),
    (b'{"prompt": "x", "temperature": 1e999}', "invalid_json_line", "larger than a double holds"),
    (b"[" * 100_000, "invalid_json_line", "nested too deep"),
    (b'{"prompt": ' + b"9" * 5000 + b"}", "invalid_json_line", "not JSON"),
    (b"[]", "invalid_json_line", "must be a JSON object, not []"),
    (b"null", "invalid_json_line", "must be a JSON object"),
    ({"prompt": "x" * 2000}, "line_too_long", "2014 bytes"),
    ({}, "invalid_line", "no url, prompt, text or messages"),
    ({"prompt": "x", "text": "y"}, "invalid_line", "prompt and text"),
    ({"input": "x"}, "invalid_line", "no url"),
    (formed("a", {}, meta=1), "invalid_line", "unknown key 'meta'"),
    (formed("a", {}, method="GET"), "invalid_method", "'GET'"),
    (formed("a", {}, method=None), "invalid_method", "None"),
    (formed("a", {}, "/v1/chat/completion"), "invalid_url", "did you mean '/v1/chat/completions'"),
    (formed("a", {}, "https://api.openai.com/v1/embeddings"), "invalid_url", "there is no path"),
    (formed("a", {}, 7), "invalid_url", "there is no path 7"),  # type: ignore[arg-type]
    ({"custom_id": "a", "body": {}}, "invalid_url", "no url"),
    (formed("a", []), "invalid_body", "must be an object, not []"),
    ({"custom_id": "a", "url": CHAT}, "invalid_body", "must be an object, not None"),
    (formed("a", {"stream": True}), "invalid_body", "stream"),
    (formed("", {}), "invalid_custom_id", "0 characters"),
    (formed("x" * 513, {}), "invalid_custom_id", "513 characters"),
    (formed(True, {}), "invalid_custom_id", "not True"),
    (formed(1.5, {}), "invalid_custom_id", "not 1.5"),
    (formed(["a"], {}), "invalid_custom_id", "must be a text"),
    ({"text": "x", "id": "a", "custom_id": "a"}, "invalid_custom_id", "both"),
]


@pytest.mark.parametrize(("line", "code", "message"), BAD)
def test_a_bad_line_is_an_error_line(line: Any, code: str, message: str, tmp_path: Path) -> None:
    made = run(written({"text": "before"}, line, {"text": "behind"}), tmp_path / "out", most=1000 if code == "line_too_long" else 1 << 20)
    before, bad, behind = sorted(found(tmp_path / "out"), key=lambda each: each["pumice"]["line"])
    assert bad["response"] is None
    assert bad["error"]["code"] == code
    assert bad["error"]["message"].startswith("line 2: ")
    assert message in bad["error"]["message"]
    assert (before["error"], behind["response"]["status_code"]) == (None, 200)
    assert (made.counts.done, made.counts.failed) == (3, 1)


def test_an_id_counts_once(tmp_path: Path) -> None:
    run(written(*(formed(name, {}) for name in ("a", "b", "a", 1, "1", 1))), tmp_path / "out")
    assert [line[3] and line[3]["code"] for line in answered(tmp_path / "out")] == [
        None,
        None,
        "duplicate_custom_id",
        None,
        None,
        "duplicate_custom_id",
    ]


def test_ids_are_found_again_after_they_were_sorted() -> None:
    ids = Ids()
    ids._RECENT = 64  # type: ignore[misc]
    assert all(ids.add(i) for i in range(1000))
    assert not any(ids.add(i) for i in range(1000))
    assert ids.add("0")


def test_a_seed_depends_on_the_custom_id_alone() -> None:
    def seeds(data: bytes, seed: int = 0) -> dict[Any, int]:
        read = [LineForm(PATHS, seed=seed).read(line) for line in lines_of(data)]
        return {name: json.loads(request.body)["seed"] for name, request in read if isinstance(request, Request)}

    a, b, plain = formed("a", {"messages": [1]}), formed("b", {}), {"prompt": "x"}
    both = seeds(written(a, b, plain, plain))
    assert len(set(both.values())) == 4
    assert all(0 <= seed < 2**53 for seed in both.values())
    assert seeds(written(b, a)) == {name: both[name] for name in ("b", "a")}
    assert not set(seeds(written(a, b), seed=1).values()) & set(both.values())


def test_defaults_and_the_path_of_a_batch() -> None:
    form = LineForm(PATHS, defaults={"priority": -1000}, only=CHAT)
    read = [
        form.read(line)[1]
        for line in lines_of(written(formed("a", {}), formed("b", {"priority": 3}), {"text": "x"}, formed("c", {}, EMBED)))
    ]
    assert [json.loads(each.body)["priority"] for each in read if isinstance(each, Request)] == [-1000, 3]
    assert [each.code for each in read if not isinstance(each, Request)] == ["mismatched_url"] * 2


# ---------------------------------------------------------------- answers
def test_answers(tmp_path: Path) -> None:
    made = run(SIX, tmp_path / "out")
    lines = answered(tmp_path / "out")
    assert [line[:2] for line in lines] == [[1, "a"], [2, "line-2"], [3, None], [5, 7], [6, "a"], [7, "ü"]]
    assert lines[0][2] == {"status_code": 200, "request_id": "req_1", "body": {"path": CHAT, "asked": lines[0][2]["body"]["asked"]}}
    assert lines[5][2]["body"]["asked"]["messages"] == ["漢"]
    assert [line[3] is None for line in lines] == [True, True, False, True, False, True]
    assert all(line["id"].startswith("batch_req_") for line in found(tmp_path / "out"))
    assert (made.counts.done, made.counts.failed, made.counts.earlier) == (6, 2, 0)


@pytest.mark.parametrize("in_order", [False, True])
def test_a_file_that_was_cut_anywhere_is_completed(in_order: bool, tmp_path: Path) -> None:
    out, again = tmp_path / "out", tmp_path / "again"
    run(SIX, out, in_order=in_order)
    whole, expected = out.read_bytes(), answered(out)
    ends = [i + 1 for i, byte in enumerate(whole) if byte == 10]
    cuts = sorted({*range(0, len(whole), 61), *(end + near for end in ends for near in (-2, -1, 0, 1))} & {*range(len(whole) + 1)})
    for cut in cuts:
        again.write_bytes(whole[:cut])
        made = run(SIX, again, in_order=in_order)
        kept = sum(end <= cut for end in ends)
        assert (made.counts.earlier, made.counts.done) == (kept, 6 - kept), cut
        assert answered(again) == expected, cut
        assert again.read_bytes()[: ends[kept - 1] if kept else 0] == whole[: ends[kept - 1] if kept else 0]
        assert not in_order or [line["pumice"]["line"] for line in found(again)] == [1, 2, 3, 5, 6, 7]
    again.write_bytes(whole[: ends[2]] + b"\0" * 4096)  # a file system may leave this when the power fails
    run(SIX, again, in_order=in_order)
    assert answered(again) == expected


def test_a_run_that_fails_anywhere_goes_on(tmp_path: Path) -> None:
    data = written(*(formed(f"{i}", {"seed": i}) for i in range(40)))
    run(data, tmp_path / "whole")
    out, runs = tmp_path / "out", 0
    asked: list[str] = []
    while True:
        runs += 1
        left = [7]

        async def ask(request: Request, left: list[int] = left) -> Reply:
            left[0] -= 1
            if left[0] < 0:
                raise MemoryError("stopped here")
            reply = await echo(request)
            asked.append(str(request.custom_id))
            return reply

        try:
            run(data, out, ask, at_once=3)
        except MemoryError:
            assert runs < 40
            continue
        break
    assert runs > 4
    assert answered(out) == answered(tmp_path / "whole")


def test_two_files_in_order_are_completed_after_a_cut_of_either(tmp_path: Path) -> None:
    out, errors = tmp_path / "out", tmp_path / "errors"
    data = written(*([{"text": f"{i}"}, b"{bad"][i % 3 == 2] for i in range(12)))

    def numbers(path: Path) -> list[int]:
        return [line["pumice"]["line"] for line in found(path)]

    run(data, out, errors=errors, in_order=True)
    expected, wholes = answered(out, errors), [out.read_bytes(), errors.read_bytes()]
    assert (numbers(out), numbers(errors)) == ([1, 2, 4, 5, 7, 8, 10, 11], [3, 6, 9, 12])
    order: list[tuple[Path, bytes]] = []
    for number in range(1, 13):
        path = errors if number % 3 == 0 else out
        order.append((path, wholes[path is errors].splitlines(keepends=True)[numbers(path).index(number)]))
    for kept in range(12):  # the state after a kill behind each line
        for path in (out, errors):
            path.write_bytes(b"".join(line for at, line in order[:kept] if at is path))
        run(data, out, errors=errors, in_order=True)
        assert (answered(out, errors), numbers(out)) == (expected, [1, 2, 4, 5, 7, 8, 10, 11])


def test_slow_answers_do_not_change_the_order_and_bound_the_lines_at_work(tmp_path: Path) -> None:
    work, most, begun = 0, 0, 0

    async def ask(request: Request) -> Reply:
        nonlocal work, most, begun
        work, most, begun = work + 1, max(most, work + 1), begun + 1
        for _ in range(400 if request.custom_id == "line-1" else 1):
            await asyncio.sleep(0)
        if request.custom_id == "line-1":
            assert begun <= 4 * 4  # answers that wait for this one are bounded, too
        work -= 1
        return await echo(request)

    run(written(*({"text": f"{i}"} for i in range(100))), tmp_path / "out", ask, in_order=True)
    assert [line["pumice"]["line"] for line in found(tmp_path / "out")] == list(range(1, 101))
    assert most == 4


def test_large_lines_are_at_work_one_by_one(tmp_path: Path) -> None:
    work, most = 0, 0

    async def ask(request: Request) -> Reply:
        nonlocal work, most
        work, most = work + 1, max(most, work + 1)
        await asyncio.sleep(0)
        work -= 1
        return Reply(200, b"{}", "req_1")

    run(written(*({"text": "x" * 40_000} for i in range(9))), tmp_path / "out", ask)  # at most 64 KiB at work
    assert most == 1
    run(written(*({"text": "x" * 20_000} for i in range(9))), tmp_path / "more", ask)
    assert most == 3


@pytest.mark.parametrize("status", [429, 503, 529])
def test_a_busy_server_is_asked_again(status: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)

    tries: dict[Any, int] = {}

    async def ask(request: Request) -> Reply:
        tries[request.custom_id] = tries.get(request.custom_id, 0) + 1
        return Reply(status, b'{"error":"busy"}', "req_1") if tries[request.custom_id] < 3 else Reply(200, b"{}", "req_1")

    monkeypatch.setattr("pumice.lines.run.asyncio.sleep", sleep)
    run(written({"text": "a"}, {"text": "b"}), tmp_path / "out", ask)
    assert [*tries.values()] == [3, 3]
    assert sum(pauses) == pytest.approx(2 * (0.2 + 0.4))

    async def never(request: Request) -> Reply:
        return Reply(status, b'{"error":"busy"}', "req_1")

    with pytest.raises(OverloadedError, match=f"line 1 could not be answered now.*{status}.*busy"):
        run(written({"text": "a"}), tmp_path / "never", never)
    assert (tmp_path / "never").read_bytes() == b""


def test_an_answer_that_is_an_error_goes_to_the_file_of_errors(tmp_path: Path) -> None:
    async def ask(request: Request) -> Reply:
        return Reply(400, b'{"error":{}}', "req_1") if request.custom_id == "b" else await echo(request)

    out, errors = tmp_path / "out", tmp_path / "errors"
    run(written(formed("a", {}), formed("b", {}), b"bad"), out, ask, errors=errors)
    assert [line["custom_id"] for line in found(out)] == ["a"]
    assert sorted(
        (line["custom_id"], line["response"] and line["response"]["status_code"]) for line in found(errors) if line["custom_id"]
    ) == [("b", 400)]
    assert run(written(formed("a", {}), formed("b", {}), b"bad"), out, ask, errors=errors).counts.done == 0


# ---------------------------------------------------------------- files of other runs
def test_lines_may_be_added_and_not_changed(tmp_path: Path) -> None:
    a, b, c = ({"text": name} for name in "abc")
    out = tmp_path / "out"
    run(written(a, b), out)
    assert run(written(a, b, c), out).counts.done == 1
    before = out.read_bytes()
    wrong = {
        written(a, c, b): "line 2 of the input has changed",
        written(b"", a, b, c): "line 2 of the input has changed",
        written(a): "answers line 3, and the input has 1 lines",
        b"": "answers line 3, and the input has 0 lines",
    }
    for data, message in wrong.items():
        for scans in (True, False):
            with pytest.raises(ValueError, match=message):
                run(data, out, scans=scans)
            assert [line[0] for line in answered(out)][:3] == [1, 2, 3]
        out.write_bytes(before)
    run(written(a, b, c).replace(b"\n", b"\r\n"), out)
    assert out.read_bytes() == before


@pytest.mark.parametrize(
    ("fingerprint", "message"),
    [
        ("else_options_1.0", "other models:"),
        ("models_else_1.0", "other options:"),
        ("else_else_2.0", "other models and other options and another version of pumice"),
        ("batch", "other models"),
    ],
)
def test_a_file_of_another_run_is_refused(fingerprint: str, message: str, tmp_path: Path) -> None:
    out = tmp_path / "out"
    run(SIX, out, fingerprint=fingerprint)
    out.write_bytes(b"".join(out.read_bytes().splitlines(keepends=True)[:3]))
    before = out.read_bytes()
    with pytest.raises(ValueError, match=message):
        run(SIX, out)
    assert out.read_bytes() == before
    run(SIX, out, mixed=True)
    assert len(answered(out)) == 6


@pytest.mark.parametrize(
    "content",
    [b"hello", b"hello\n", b'{"id": 1}\n', b'{"id":"batch_req_1"}\n', b"\n", written({"prompt": "x"}), b"\0\0\n"],
)
def test_a_file_that_no_run_has_written_is_refused_and_left_alone(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "out").write_bytes(content)
    with pytest.raises(ValueError, match="out is no (file of answers|answer that).*--overwrite"):
        run(SIX, tmp_path / "out")
    assert (tmp_path / "out").read_bytes() == content


def test_changed_answers_are_refused(tmp_path: Path) -> None:
    out = tmp_path / "out"
    run(SIX, out)
    lines = out.read_bytes().splitlines(keepends=True)
    for content, message in [
        (b"".join([*lines, lines[0]]), "answers line . twice"),
        (lines[0] + b"\n" + lines[1], "line 2 of .* is no answer"),
        (lines[0].replace(b'"line":', b'"line":99999999999'), "which no input has|is no answer"),
    ]:
        out.write_bytes(content)
        with pytest.raises(ValueError, match=message):
            run(SIX, out)
        assert out.read_bytes() == content


def test_answers_of_another_order_are_refused(tmp_path: Path) -> None:
    out = tmp_path / "out"
    run(SIX, out, in_order=True)
    lines = out.read_bytes().splitlines(keepends=True)
    for some in (lines[::-1], lines[1:]):
        out.write_bytes(b"".join(some))
        for scans in (True, False):
            with pytest.raises(ValueError, match="not in the order of the lines: go on without --in-order"):
                run(SIX, out, in_order=True, scans=scans)
        run(SIX, out)
        assert len(answered(out)) == 6


def test_two_runs_cannot_write_one_file(tmp_path: Path) -> None:
    file = AnswerFile(str(tmp_path / "out"))
    with pytest.raises(OSError, match="another run writes .*out"):
        AnswerFile(str(tmp_path / "out"))
    file.close()
    AnswerFile(str(tmp_path / "out")).close()


@pytest.mark.parametrize("room", [0, 1, 300, 1000])
def test_a_full_disk_leaves_whole_lines(room: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out, real = tmp_path / "out", os.pwrite

    def pwrite(fd: int, data: Any, at: int) -> int:
        if at >= room:
            raise OSError(28, "No space left on device")
        return real(fd, bytes(data[: min(len(data), room - at, 100)]), at)

    with monkeypatch.context() as full:
        full.setattr("pumice.lines.answers.os.pwrite", pwrite)
        with pytest.raises(OSError, match="cannot write .*out: No space left on device"):
            run(SIX, out)
    assert out.read_bytes()[-1:] in (b"", b"\n")
    run(SIX, tmp_path / "whole")
    run(SIX, out)
    assert answered(out) == answered(tmp_path / "whole")


@pytest.mark.parametrize("kind", ["folder", "missing"])
def test_what_cannot_be_written_is_named(kind: str, tmp_path: Path) -> None:
    with pytest.raises(OSError, match="cannot write .*: (Is a directory|No such file)"):
        AnswerFile(str(tmp_path if kind == "folder" else tmp_path / "no" / "out"))


def test_a_pipe_gets_the_answers(tmp_path: Path) -> None:
    read, write = os.pipe()
    file = AnswerFile(f"/proc/self/fd/{write}")
    os.close(write)
    answers: Sequence[tuple[bytes, bool]] = [(b"one\n", False), (b"two\n", True)]
    Answers(file, None, RUN).write(answers)
    assert not file.regular
    file.close()
    assert os.read(read, 100) == b"one\ntwo\n"
    os.close(read)


def test_a_pipe_whose_reader_has_gone_is_the_end_of_the_output(tmp_path: Path) -> None:
    read, write = os.pipe()
    file = AnswerFile(f"/proc/self/fd/{write}")
    for fd in (read, write):
        os.close(fd)
    with pytest.raises(OutputError):
        file.write(b"one\n")
    file.close()


def test_the_bar_shows_a_note_and_a_total_that_is_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    text = io.StringIO()
    monkeypatch.setattr("sys.stderr", text)
    for total, shown in ((None, "3 lines"), (9, "3/9")):
        bar = LateBar(True, "run", unit=" lines", mininterval=0)
        assert bar.update is not None
        bar.update(3, total, "70 tokens/s")
        bar.update(3, total, "80 tokens/s")  # no line has ended, and the note is another one
        told = text.getvalue()
        bar.close()
        assert shown in told and "70 tokens/s" in told and "80 tokens/s" in told, told
