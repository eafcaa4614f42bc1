"""The command line: results must go to stdout, an error must be one line on stderr, and the exit code must be 0 or 1."""

from __future__ import annotations

import io
import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import samples
from fake_core import fake, fake_core, write_model  # noqa: F401


@pytest.fixture(name="cli")
def _cli(pumice: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Any:
    def run(*words: Any, stdin: str | bytes = "") -> tuple[int, str, str]:
        from pumice.__main__ import main

        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin if isinstance(stdin, bytes) else stdin.encode())))
        try:
            code = main([str(word) for word in words])
        except SystemExit as stop:
            code = int(stop.code or 0)
        return (code, *capsys.readouterr())

    return run


@pytest.fixture(name="path")
def _path(tmp_path: Path) -> Path:
    return write_model(tmp_path / "m.gguf", vocab=["a"] * 50, **{"tokenizer.ggml.tokens": ["x"] * 100})


def test_doctor(cli: Any, core: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    code, out, err = cli("doctor")
    assert (code, err) == (0, "")
    assert "PASS kernels" in out
    code, out, _ = cli("doctor", "--json", "--quick")
    assert json.loads(out)["ok"] is True
    monkeypatch.setattr(core, "self_test", lambda: [{"name": "dot", "ok": False, "error": 1.0, "limit": 0.1}])
    code, out, _ = cli("doctor")
    assert code == 1
    assert "FAIL kernel dot" in out


def test_devices_info_plan(cli: Any, path: Path) -> None:
    assert "Toy <CPU>" in cli("devices")[1]
    code, out, err = cli("info", path)
    assert (code, err) == (0, "")
    assert "m.gguf: toy, 2.1 k parameters" in out
    assert "model_type = 'toy'" in out
    assert "tokenizer.ggml.tokens" not in out
    assert "token_embd.weight" in cli("info", path, "--tensors")[1]
    assert "layer 0-2" in cli("plan", path, "--n-ctx", 32)[1]


def test_encode(cli: Any, path: Path, tmp_path: Path) -> None:
    texts, out_file = tmp_path / "texts.txt", tmp_path / "rows.npy"
    texts.write_text("eins\nzwei\r\n\ndrü", encoding="utf-8")
    code, out, err = cli("encode", path, texts, "-o", out_file)
    assert (code, err) == (0, "")
    assert "float32 4 x 8" in out
    rows = np.load(out_file)
    assert rows.shape == (4, 8)
    assert np.linalg.norm(rows, axis=1) == pytest.approx(1)
    code, _, _ = cli("encode", path, "-o", tmp_path / "again", "--raw", "--truncate-dim", 3, stdin="eins\nzwei\n\ndrü\n")
    raw = np.load(tmp_path / "again")
    np.testing.assert_allclose(
        raw / np.linalg.norm(raw, axis=1, keepdims=True), rows[:, :3] / np.linalg.norm(rows[:, :3], axis=1, keepdims=True), rtol=1e-6
    )


def test_encode_a_column_of_a_csv_file(cli: Any, pumice: Any, path: Path, tmp_path: Path) -> None:
    texts = ["A stone, that floats.", "two\nlines", "", 'a "quoted" word']
    table, lines, rows = tmp_path / "in.CSV", tmp_path / "lines.txt", tmp_path / "rows.npy"
    cells = ['"A stone, that floats."', '"two\nlines"', "", '"a ""quoted"" word"']
    table.write_bytes(("\ufeffbody,id\r\n" + "".join(f"{cell},{i}\r\n" for i, cell in enumerate(cells)) + "\r\n").encode())
    code, out, err = cli("encode", path, table, "--text-column", "body", "-o", rows)
    assert (code, err) == (0, "")
    assert out == f"{rows}: float32 4 x 8\n"
    with pumice.load(path) as model:
        np.testing.assert_array_equal(np.load(rows), model.encode(texts))
    tabs = tmp_path / "in.tsv"
    tabs.write_text("id\tbody\n1\ta, b\n")
    assert cli("encode", path, tabs, "--text-column", "body", "-o", rows)[0] == 0
    lines.write_text("a, b\n")
    assert cli("encode", path, lines, "-o", tmp_path / "again.npy")[0] == 0
    np.testing.assert_array_equal(np.load(rows), np.load(tmp_path / "again.npy"))


BODY = ("--text-column", "body")


@pytest.mark.parametrize(
    ("content", "more", "said"),
    [
        (b"id,body\n1,a\n", (), "in.csv is a CSV file: --text-column says which of its columns has the texts. Its lines as they are:"),
        (b"id,body\n1,a\n", ("--text-column", "bodi"), "has no column 'bodi'; its first line has 'id', 'body'; did you mean 'body'?"),
        (b"id;body\n1;a\n", BODY, "has no column 'body'; its first line has 'id;body'"),
        (b"body,body\n1,a\n", BODY, "has several columns 'body'; its first line has 'body', 'body'\n"),
        (b"", BODY, "has no column 'body'; its first line has nothing"),
        (b"id,body\n1,a\n2\n", BODY, "line 3 of "),
        (b'id,body\n1,"a"b\n', BODY, "line 2 of "),
        (b'id,body\n1,"a\n2,b\n', BODY, "is not CSV: unexpected end of data"),
        (b"id,body\n1,\xff\n", BODY, "is not UTF-8 text: byte 0xff"),
        (b"id,body\n1,a\n", (*BODY, "--columns", "id"), "--columns is for Parquet files"),
    ],
)
def test_encode_csv_files_that_do_not_work(cli: Any, path: Path, tmp_path: Path, content: bytes, more: tuple[str, ...], said: str) -> None:
    table = tmp_path / "in.csv"
    table.write_bytes(content)
    code, out, err = cli("encode", path, table, *more, "-o", tmp_path / "out.npy")
    assert (code, out) == (1, "")
    assert said in err
    assert err.count("\n") == 1
    assert not (tmp_path / "out.npy").exists()


@pytest.mark.parametrize("name", ["texts.txt", "t.csv", "-", "m.gguf", "link.gguf", "ranges.npy", "folder/tokenizer.json"])
def test_encode_does_not_replace_what_it_reads(
    cli: Any, core: Any, path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    (tmp_path / "texts.txt").write_text("a\nb\n")
    (tmp_path / "t.csv").write_text("id,text\n1,a\n")
    (tmp_path / "link.gguf").symlink_to(path)
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "tokenizer.json").write_text("{}")
    np.save(tmp_path / "ranges.npy", np.zeros((2, 8), np.float32))
    monkeypatch.setattr(core, "load", lambda *_: pytest.fail("the model was loaded"))
    words = {
        "t.csv": [tmp_path / "t.csv", "--text-column", "text"],
        "ranges.npy": [tmp_path / "texts.txt", "--precision", "int8", "--precision-ranges", tmp_path / "ranges.npy"],
    }.get(name, [tmp_path / "texts.txt"])
    output = tmp_path / ("texts.txt" if name == "-" else name)
    before = output.read_bytes()
    if name == "-":
        words = []
        monkeypatch.setattr("pumice.__main__.input_file", lambda: [os.open(output, os.O_RDONLY)])
    code, out, err = cli("encode", tmp_path / "folder" if "folder" in name else path, *words, "-o", output)
    assert (code, out, err) == (1, "", f"pumice: {output} is a file that is read; the output needs another name\n")
    assert output.read_bytes() == before


def test_encode_replaces_what_it_wrote_into_the_folder_of_the_model(cli: Any, path: Path, tmp_path: Path) -> None:
    for _ in range(2):
        assert cli("encode", path, "-o", tmp_path / "rows.npy", stdin="a\n")[0] == 0


@pytest.mark.parametrize("content", [b"", b"0.1 0.2\n", b"\x93NUMPY\x01\x00", b"PK\x03\x04"])
def test_precision_ranges_that_are_no_array(cli: Any, path: Path, tmp_path: Path, content: bytes) -> None:
    ranges = tmp_path / "ranges.txt"
    ranges.write_bytes(content)
    words = ("encode", path, "-", "-o", tmp_path / "out.npy", "--precision", "int8", "--precision-ranges", ranges)
    assert cli(*words, stdin="a") == (
        1,
        "",
        f"pumice: --precision-ranges {ranges} is not a .npy file of numbers, as numpy.save() writes it\n",
    )


def test_encode_warns_in_one_line(cli: Any, path: Path, tmp_path: Path) -> None:
    code, _, err = cli("encode", path, "-o", tmp_path / "x.npy", stdin="a" * 100)
    assert code == 0
    assert err.startswith("pumice: warning: 1 of 1 texts were cut")
    assert err.count("\n") == 1


def test_generate(cli: Any, path: Path) -> None:
    assert cli("generate", path, "abc") == (0, "cba\n", "")
    assert cli("generate", path, "-", "--max-new-tokens", 2, stdin="abc")[1] == "cb\n"
    assert cli("generate", path, "story", "--stop", "\nUser:", "--stop", "zzz")[1] == "Once upon a time.\n"
    assert cli("generate", path, "ab", "--temperature", 0.5, "--seed", 3)[1] == "bad\n"
    code, out, err = cli("generate", path, "ab", "--max-reasoning-tokens", 3)
    assert (code, out) == (1, "") and err.startswith("pumice: max_reasoning_tokens needs the texts around the reasoning")


def test_chat_keeps_the_conversation(cli: Any, path: Path) -> None:
    code, out, err = cli("chat", path, "--system", "S", "--max-new-tokens", 3, stdin="Hi\n\nthere\n")
    assert (code, out, err) == (0, ">tn\n>tn\n", "")


def test_chat_says_that_an_answer_repeats_itself(cli: Any, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fake_core.CONTEXT", 4096)
    code, out, err = cli("chat", path, "--max-new-tokens", 700, stdin="a" * 600)
    assert (code, err) == (0, "(the answer ends here, because it only repeated itself)\n")
    assert out.startswith(">tnatsissa<aaa") and len(out) < 600


def test_chat_with_a_model_that_cannot(cli: Any, tmp_path: Path) -> None:
    code, out, err = cli("chat", write_model(tmp_path / "e.gguf", tasks=["encode"]), stdin="")
    assert (code, out) == (1, "")
    assert err.startswith("pumice: pumice chat needs a decoder")


def test_input_that_is_no_text(cli: Any, path: Path, tmp_path: Path) -> None:
    texts = tmp_path / "texts.txt"
    texts.write_bytes(b"one\ntwo \xff\n")
    code, _, err = cli("encode", path, texts, "-o", tmp_path / "x.npy")
    assert (code, err) == (1, f"pumice: line 2 of {texts} is not UTF-8 text: byte 0xff at place 4\n")
    for words in (["encode", path, "-o", tmp_path / "x.npy"], ["generate", path, "-"]):
        code, _, err = cli(*words, stdin=b"\xffone")
        assert (code, err) == (1, "pumice: line 1 of standard input is not UTF-8 text: byte 0xff at place 0\n")


def test_bench(cli: Any, path: Path, tmp_path: Path) -> None:
    _, out, _ = cli("bench", path, "--tokens", 4, "--prompt-tokens", 20)
    assert "prefill: 100.0 tokens/s\ndecode: 40.0 tokens/s\n" in out
    code, out, err = cli("bench", write_model(tmp_path / "e.gguf", tasks=["encode"]), "--sentences", 10)
    assert code == 0
    assert "sentences/s" in out


@pytest.mark.parametrize(
    ("words", "match"),
    [
        (["generate", "/no/such.gguf", "x"], "pumice: No such file or folder: /no/such.gguf"),
        (["generate", "MODEL", "x", "--top-k", "-1"], "pumice: top_k=-1 is out of range"),
        (["plan", "MODEL", "--device", "vulcan"], "did you mean 'vulkan'"),
        (["generate", "MODEL", "x", "--device", "vulkan"], "pumice: This version has no Vulkan"),
        (["encode", "MODEL", "/no/texts", "-o", "/tmp/x.npy"], "No such file or directory: '/no/texts'"),
        (["generate", "MODEL"], "required: prompt"),
        (["generat"], "invalid choice"),
        ([], "required: COMMAND"),
        (["bench", "MODEL", "--tokens", "0"], "0 is not at least 1"),
        (["generate", "MODEL", "x", "--max-new-tokens", ""], "argument --max-new-tokens: '' is not a whole number of at most 15 digits"),
        (
            ["generate", "MODEL", "x", "--max-new-tokens", "many"],
            "argument --max-new-tokens: 'many' is not a whole number of at most 15 digits",
        ),
        (["plan", "MODEL", "--gpu-layers=--5"], "gpu_layers='--5'"),
        (["bench", "MODEL", "--rounds", "3"], "--rounds is for --against"),
        (["bench", "MODEL", "--peer-python", "python3"], "--peer-python is for --against"),
    ],
)
def test_errors_are_one_line_and_exit_code_1(cli: Any, path: Path, words: list[str], match: str) -> None:
    code, out, err = cli(*[path if word == "MODEL" else word for word in words])
    assert (code, out) == (1, "")
    assert match in err
    assert err.startswith("pumice: ")
    assert err.count("\n") == 1


def test_a_model_that_cannot_do_it(cli: Any, tmp_path: Path) -> None:
    """The message names what the user typed, and not the method that the command calls."""
    encoder, decoder = write_model(tmp_path / "e.gguf", tasks=["encode"]), write_model(tmp_path / "d.gguf", tasks=["generate"])
    for words in (["generate", encoder, "x"], ["chat", encoder], ["encode", decoder, "-", "-o", tmp_path / "x.npy"]):
        code, out, err = cli(*words, stdin="a")
        assert (code, out) == (1, "")
        assert err.startswith(f"pumice: pumice {words[0]} needs a") and "(" not in err.partition(";")[0], err


def test_options_of_loading() -> None:
    """Commands that hold conversations take a chat template and an adapter, and others do not."""
    from pumice.__main__ import _load_options, parser

    for command in ("chat", "serve"):
        arguments = parser().parse_args([command, "m", "--chat-template", "t.jinja", "--n-ctx", "64", "--lora", "a.gguf"])
        assert _load_options(arguments) == {"chat_template": "t.jinja", "n_ctx": 64, "lora": "a.gguf"}
    for command in ("plan", "bench"):
        assert _load_options(parser().parse_args([command, "m", "--n-ctx", "64"])) == {"n_ctx": 64}
        with pytest.raises(SystemExit):
            parser().parse_args([command, "m", "--chat-template", "t.jinja"])


def test_interrupt(cli: Any, core: Any, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(core.Request, "advance", interrupted)
    assert cli("generate", path, "abc") == (1, "", "pumice: interrupted\n")


def test_version(cli: Any) -> None:
    assert cli("--version") == (0, "pumice 0.0.test\n", "")


# ---------------------------------------------------------------- streams that are closed, full, broken or of an old encoding
@pytest.fixture(name="shell", scope="module", params=["", "1"], ids=["buffered", "unbuffered"])
def _shell(request: pytest.FixtureRequest) -> Any:
    def run(line: str, **environment: str) -> tuple[int, str, str]:
        """Runs a line of bash, in which `pumice` is the command, and $ENCODER and $DECODER are paths of models. Returns the exit code,
        stdout and stderr."""
        names = {"ENCODER": str(samples.minilm()), "DECODER": str(samples.smollm2()), "PYTHONUNBUFFERED": request.param, **environment}
        define = f'set -o pipefail; pumice() {{ "{sys.executable}" -m pumice "$@"; }}\n'
        done = subprocess.run(["bash", "-c", define + line], env={**os.environ, **names}, capture_output=True, text=True, timeout=120)
        return done.returncode, done.stdout, done.stderr

    return run


@pytest.mark.parametrize("command", ['encode "$ENCODER" -o "$OUT"', 'generate "$DECODER" -', 'chat "$DECODER"'])
def test_a_closed_input(shell: Any, tmp_path: Path, command: str) -> None:
    code, out, err = shell(f"pumice {command} <&-", OUT=str(tmp_path / "x.npy"))
    assert (code, out, err) == (1, "", "pumice: standard input is closed, and the text was to come from there\n")


@pytest.mark.parametrize("command", ['encode "$ENCODER" -o /dev/null', 'generate "$DECODER" -', 'chat "$DECODER"'])
def test_an_input_that_cannot_be_read(shell: Any, command: str) -> None:
    assert shell(f"pumice {command} 0>/dev/null") == (1, "", "pumice: standard input cannot be read: Bad file descriptor\n")


C_LOCALE = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}


@pytest.mark.parametrize("locale", [{}, C_LOCALE], ids=["any", "C"])
def test_texts_are_utf8_in_every_locale(shell: Any, locale: dict[str, str]) -> None:
    """The lines of a conversation and the arguments of a command must be read as UTF-8 in every locale, like the input of `encode` and
    `generate -`."""
    options = "--max-new-tokens 4 --temperature 0"
    talk = f"printf 'caf\\303\\251\\n' | pumice chat \"$DECODER\" --system 'Sch\u00f6n' {options}"
    line = f"{talk}; pumice generate \"$DECODER\" 'caf\u00e9' --stop '\u00fc' {options}"
    code, out, err = shell(line, **locale)
    assert (code, err) == (0, "") and out.count("\n") >= 2
    assert shell(line, PYTHONUTF8="1")[1].encode("ascii", "backslashreplace").decode() == out.encode("ascii", "backslashreplace").decode()
    code, out, err = shell("printf 'a\\ncaf\\351\\n' | pumice chat \"$DECODER\" --max-new-tokens 1", **locale)
    assert (code, err) == (1, "pumice: line 2 of standard input is not UTF-8 text: byte 0xe9 at place 3\n")
    code, out, err = shell("pumice generate \"$DECODER\" $'caf\\351'", **locale)
    assert code == 1 and "argument prompt: it is not UTF-8 text: byte 0xe9 at place 3" in err and err.count("\n") == 1


@pytest.mark.parametrize("command", ["devices", 'info "$ENCODER"', "--help", "--version", 'generate "$DECODER" a'])
def test_a_closed_output(shell: Any, command: str) -> None:
    code, out, err = shell(f"pumice {command} >&-")
    assert (code, out, err) == (1, "", "pumice: standard output is closed; send it to /dev/null where it is not wanted\n")


@pytest.mark.parametrize("command", ["devices", 'info "$ENCODER" --tensors', "--help", "--version", 'generate "$DECODER" a'])
def test_a_full_disk(shell: Any, command: str) -> None:
    code, out, err = shell(f"pumice {command} >/dev/full")
    assert (code, out, err) == (1, "", "pumice: cannot write to standard output: No space left on device\n")


@pytest.mark.parametrize(
    "command", ["devices", 'info "$ENCODER" --tensors', "--help", 'generate "$DECODER" a', 'encode "$ENCODER" -o /dev/stdout <<< hello']
)
def test_a_reader_that_has_gone(shell: Any, command: str) -> None:
    """If the reader of the output has gone, no message must be printed, but the exit code must be 1, because not all output was read."""
    assert shell(f"(sleep 0.3; pumice {command}) | true") == (1, "", "")


def test_vectors_to_a_pipe(shell: Any, tmp_path: Path) -> None:
    code, out, err = shell('echo hello | pumice encode "$ENCODER" -o /dev/stdout | cat > "$OUT"', OUT=str(tmp_path / "x.npy"))
    assert (code, out, err) == (0, "", "/dev/stdout: float32 1 x 384\n")
    assert np.load(tmp_path / "x.npy").shape == (1, 384)
    code, out, err = shell('echo hello | pumice encode "$ENCODER" -o /dev/full')
    assert (code, out, err) == (1, "", "pumice: cannot write /dev/full: No space left on device\n")


def test_vectors_to_what_is_no_plain_file(shell: Any, tmp_path: Path) -> None:
    """A folder or a socket must be refused as output before the model is loaded. A pipe, the target of a link, and standard output must be
    written to, as a shell does."""
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "folder" / "rows.npy")
    os.mkfifo(tmp_path / "pipe")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "socket"))
        for name, said in (("folder", "is a folder"), ("socket", "is a socket"), ("folder/no/x", "No such file or directory")):
            code, out, err = shell('pumice encode /no/such/model -o "$OUT" < /dev/null', OUT=str(tmp_path / name))
            assert (code, out) == (1, "") and said in err and str(tmp_path / name) in err
    code, _, err = shell(
        'cat "$OUT" > "$ROWS" & echo a | pumice encode "$ENCODER" -o "$OUT"; wait', OUT=str(tmp_path / "pipe"), ROWS=str(tmp_path / "r")
    )
    assert (code, err) == (0, "") and np.load(tmp_path / "r").shape == (1, 384) and (tmp_path / "pipe").is_fifo()
    code, out, _ = shell('echo a | pumice encode "$ENCODER" -o "$OUT"', OUT=str(tmp_path / "link"))
    assert code == 0 and (tmp_path / "link").is_symlink() and np.load(tmp_path / "folder" / "rows.npy").shape == (1, 384)
    # What other commands write before and after the vectors must stay.
    line = '(echo before; echo a | pumice encode "$ENCODER" -o /dev/stdout; echo behind) >> "$OUT"'
    code, _, err = shell(line, OUT=str(tmp_path / "all"))
    assert (code, err) == (0, "/dev/stdout: float32 1 x 384\n")
    text = (tmp_path / "all").read_bytes()
    assert text.startswith(b"before\n\x93NUMPY") and text.endswith(b"behind\n")


def test_vectors_replace_a_file_when_they_are_whole(shell: Any, tmp_path: Path) -> None:
    rows = tmp_path / "rows.npy"
    rows.write_text("what was there")
    code, _, err = shell('printf "a\\n\\xff" | pumice encode "$ENCODER" -o "$OUT"', OUT=str(rows))
    assert code == 1 and "UTF-8" in err and rows.read_text() == "what was there"
    code, _, err = shell('ulimit -f 8; yes | head -1000 | pumice encode "$ENCODER" -o "$OUT"', OUT=str(rows))
    assert (code, err) == (1, f"pumice: {rows}: cannot be written: File too large\n") and rows.read_text() == "what was there"
    assert [path.name for path in tmp_path.iterdir()] == ["rows.npy"]


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "ascii:surrogateescape", "ascii:strict"])
def test_an_output_that_cannot_write_a_character(shell: Any, tmp_path: Path, encoding: str) -> None:
    name = tmp_path / "日本.txt"
    code, out, err = shell('echo a | pumice encode "$ENCODER" -o "$OUT"', OUT=str(name), PYTHONIOENCODING=encoding)
    assert (code, err) == (0, "")
    assert out == str(tmp_path / "\\u65e5\\u672c.txt") + ": float32 1 x 384\n"


def test_a_closed_error_output(shell: Any) -> None:
    """Errors must not go to standard output if the error output is closed."""
    assert shell("pumice info /no/such 2>&-") == (1, "", "")
    assert shell("pumice nothing <&- 2>&-") == (1, "", "")
    assert shell("pumice info /no/such 2>/dev/full") == (1, "", "")
    assert shell("pumice nothing 2>/dev/full") == (1, "", "")
    assert shell("pumice info /no/such >/dev/full 2>&1") == (1, "", "")
    assert shell('echo hello | pumice encode "$ENCODER" -o /dev/stdout 2>/dev/full | wc -c') == (0, "1664\n", "")
