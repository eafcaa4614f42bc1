"""The command line: pumice doctor | devices | info | plan | encode | generate | chat | run | serve | bench |
perplexity | convert | quantize.

Exit code 0, or 1 with one line on stderr."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import itertools
import json
import os
import platform
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import pumice

from .chats.terminal import FIRST, Terminal, history_path, visible
from .common.command_options import (
    LOADING,
    LOADING_CHATS,
    Parser,
    add_encode_options,
    add_perplexity_options,
    add_quantize_options,
    add_sampling_options,
    add_writing_options,
    count,
    utf8_text,
)
from .common.progress import LateBar
from .common.stdio import (
    OutputError,
    complain,
    finish,
    give_up_output,
    input_bytes,
    input_file,
    on_screen,
    prepare,
    say,
)
from .common.vector_file import VectorFile
from .machine.peer_worker import PEERS
from .serve.command import add_options as add_serve_options
from .serve.command import add_run_options

_LOADING_READ = {name: read for name, (read, _) in LOADING_CHATS.items()}  # option of loading -> function that parses its value
ROUNDS = 5  # default number of rounds of `pumice bench --against`


def _add_bench_options(command: Parser) -> None:
    command.add_argument("--sentences", type=count, default=1000, help="sentences to encode (default 1000)")
    command.add_argument("--tokens", type=count, default=128, help="tokens to generate (default 128)")
    command.add_argument("--prompt-tokens", type=count, default=512, help="tokens of the prompt (default 512)")
    command.add_argument("--against", choices=tuple(PEERS), help="measure this peer too, in turn, if it is installed")
    command.add_argument("--rounds", type=count, help=f"with --against: how often each works (default {ROUNDS})")
    command.add_argument("--peer-python", metavar="PYTHON", help="with --against: a Python that has the peer (default: this one)")


def parser() -> Parser:
    """Returns the parser of the command line, with all commands and their options. The parsed arguments have an attribute `run`, the
    function that runs the command."""
    top = Parser(prog="pumice", description="Texts to vectors and prompts to text from GGUF and safetensors models.")
    top.add_argument("--version", action="version", version=f"pumice {pumice.__version__}")
    commands = top.add_subparsers(dest="command", required=True, parser_class=Parser, metavar="COMMAND")

    def command(name: str, run: Any, about: str, model: str | None = None) -> Parser:
        sub: Parser = commands.add_parser(name, help=about, description=about)
        sub.set_defaults(run=run)
        if model:
            sub.add_argument("model", metavar=model, help="a .gguf file, a folder with config.json and safetensors, or org/name[:file]")
        return sub

    doctor = command("doctor", run_doctor, "check this installation")
    doctor.add_argument("--json", action="store_true", help="print JSON")
    doctor.add_argument("--quick", action="store_true", help="leave out the operations and formats of GPUs, which take most of the time")
    command("devices", run_devices, "list the devices")
    info = command("info", run_info, "show what a model file says of itself", "FILE")
    info.add_argument("--tensors", action="store_true", help="list every tensor")
    plan = command("plan", run_plan, "show where each layer would live, without loading", "FILE")
    encode = command(
        "encode",
        run_encode,
        "encode the lines of a file or a column of a CSV file into a .npy array, or a column of Parquet files",
        "MODEL",
    )
    add_encode_options(encode)
    generate = command("generate", run_generate, "continue a prompt", "MODEL")
    generate.add_argument("prompt", type=utf8_text, help='the prompt; "-" reads it from standard input')
    chat = command("chat", run_chat, "talk to a model, one line a turn (end with Ctrl-D)", "MODEL")
    chat.add_argument("--system", type=utf8_text, help="a system message to begin with")
    chat.add_argument("--timings", action="store_true", help="after each answer, print its tokens and tokens/s on standard error")
    chat.add_argument("--no-history", action="store_true", help="do not keep the messages that were typed for later calls")
    run = command("run", run_run, "answer a file of requests, one a line, and go on after any stop (needs the extra [serve])")
    add_run_options(run)
    serve = command("serve", run_serve, "serve models to clients of OpenAI's and Anthropic's interfaces (needs the extra [serve])")
    add_serve_options(serve)
    bench = command("bench", run_bench, "measure sentences/s or tokens/s of a model", "MODEL")
    _add_bench_options(bench)
    perplexity = command(
        "perplexity", run_perplexity, "measure how well a model predicts a text, or how far it is from another model", "MODEL"
    )
    add_perplexity_options(perplexity)
    convert = command("convert", run_convert, "write a safetensors folder as a GGUF file", "FOLDER")
    convert.add_argument(
        "--to",
        default="auto",
        help='"f32", "f16", "bf16", "q8_0", "q4_0", a mix: "q4_k_m", ..., or a size: "4.5bpw"; default: the folder\'s own formats, exactly',
    )
    convert.add_argument("--no-tokenizer", action="store_true", help="leave the tokenizer out")
    quantize = command("quantize", run_quantize, "write a GGUF file with its weights in other formats", "FILE")
    add_quantize_options(quantize)
    for sub in (convert, quantize):
        add_writing_options(sub)
    for sub in (plan, encode, generate, chat, run, serve, bench, perplexity):
        load = sub.add_argument_group("loading")
        for name, (read, about) in (LOADING_CHATS if sub in (chat, run, serve) else LOADING).items():
            load.add_argument(f"--{name.replace('_', '-')}", type=read, help=about)
    for sub in (generate, chat, run, serve):
        add_sampling_options(sub, limits=sub in (generate, chat))
    return top


def _given(arguments: argparse.Namespace, *names: str) -> dict[str, Any]:
    """Returns those of the named options that the command has and the command line sets."""
    return {name: value for name in names if (value := getattr(arguments, name, None)) is not None}


def _load_options(arguments: argparse.Namespace) -> dict[str, Any]:
    return _given(arguments, *LOADING_CHATS)


def _sampling(arguments: argparse.Namespace) -> dict[str, Any]:
    return _given(
        arguments, "max_new_tokens", "max_reasoning_tokens", "temperature", "top_k", "top_p", "min_p", "repetition_penalty", "seed", "stop"
    )


def run_doctor(arguments: argparse.Namespace) -> int:
    """`pumice doctor`: prints the report. Returns 1 if a line of the report has the level FAIL."""
    from .common.interruptible import left_behind

    try:
        report = pumice.doctor(quick=arguments.quick)
    except KeyboardInterrupt:
        if not left_behind():
            raise
        complain("pumice: interrupted")
        os._exit(1)  # ends at once; Python's normal end would wait some seconds for a driver that is compiling
    say(json.dumps(report.to_dict(), indent=2) if arguments.json else report)
    return 0 if report.ok else 1


def run_devices(arguments: argparse.Namespace) -> int:
    """`pumice devices`: prints the table of devices."""
    say(pumice.devices())
    return 0


def run_info(arguments: argparse.Namespace) -> int:
    """`pumice info`: prints the information in a model file, even if pumice does not run the model's family."""
    from . import _core
    from .common.display import size, text_table
    from .encode.sentence_config import read_layout
    from .loading.families import explain
    from .loading.files import describe_file, open_layout
    from .loading.hub import resolve

    path = resolve(arguments.model)
    # True if `path` is a folder with modules.json but without config.json. The model is then in the folder of one of the modules.
    apart = path.is_dir() and not (path / "config.json").exists() and (path / "modules.json").exists()
    layout = read_layout(path) if apart else None
    file = open_layout(layout) if layout else _core.open_file(str(path))
    say(describe_file(file))
    # The model_type of the text part of a multimodal model, else None.
    half = file.get("text_config.model_type") if file.kind == "safetensors" else None
    static = bool(layout and layout.static) or file.architecture == "model2vec"
    say(f"  {'static: a table of vectors, which this version runs' if static else explain(file.architecture, file.kind, half)}")
    for key in file.keys():
        if not key.startswith("tokenizer.") or not isinstance(file.get(key), list):
            value = file.get(key)
            shown = repr(value) if not hasattr(value, "shape") else f"array of {value.shape[0]} {value.dtype}"
            say(f"  {key} = {shown if len(shown) <= 120 else shown[:117] + '...'}")
    if arguments.tensors:
        rows = [(name, kind, " x ".join(map(str, shape)), size(bytes_)) for name, kind, shape, bytes_ in file.tensors]
        say(text_table(["tensor", "format", "shape", "size"], rows, right=["size"]))
    else:
        say(f"  {len(file.tensors)} tensors (--tensors lists them)")
    return 0


def run_plan(arguments: argparse.Namespace) -> int:
    """`pumice plan`: prints on which device each layer would be."""
    say(pumice.plan(arguments.model, **_load_options(arguments)))
    return 0


def _text(line: bytes, number: int, source: str) -> str:
    try:
        return line.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"line {number} of {source} is not UTF-8 text: byte 0x{line[error.start]:02x} at place {error.start}") from None


def _lines(path: str) -> Iterator[str]:
    with contextlib.nullcontext(input_bytes()) if path == "-" else open(path, "rb") as file:
        for number, line in enumerate(file, 1):
            yield _text(line, number, "standard input" if path == "-" else path).rstrip("\r\n")


def _encode_options(arguments: argparse.Namespace) -> dict[str, Any]:
    """Returns the keywords of encode() that the command line sets."""
    options = _given(arguments, "prompt_name", "truncate_dim", "precision")
    if arguments.raw:
        options["normalize"] = False
    if arguments.precision_ranges is not None:
        import numpy as np

        from .common.arguments import shown_path

        # np.load() is not used, because its errors recommend allowing pickles, which can run any code.
        with open(arguments.precision_ranges, "rb") as file:
            try:
                options["precision_ranges"] = np.lib.format.read_array(file, allow_pickle=False)
            except ValueError:
                where = shown_path(arguments.precision_ranges)
                raise ValueError(f"--precision-ranges {where} is not a .npy file of numbers, as numpy.save() writes it") from None
    return options


def run_encode(arguments: argparse.Namespace) -> int:
    """`pumice encode`: writes the vectors of lines of text, or of a column of a CSV file, to a .npy file (rows, d). For Parquet files, adds
    the vectors of a column to copies of the files."""
    from .common.arguments import refuse_to_replace
    from .common.csv_files import column, separator
    from .loading.files import files_of

    tables = next((path for path in arguments.input if separator(path) is not None), None)
    if arguments.text_column is not None and tables is None:
        return _encode_tables(arguments)
    for name in ("vector_column", "null", "columns", "rows", "overwrite"):
        if getattr(arguments, name) is not None:
            raise ValueError(f"--{name.replace('_', '-')} is for Parquet files: --text-column says which of their columns has the texts")
    if parquet := [path for path in arguments.input if path.endswith(".parquet")]:
        raise ValueError(f"{parquet[0]} is a Parquet file: --text-column says which of its columns has the texts")
    if tables is not None and arguments.text_column is None:
        raise ValueError(
            f"{tables} is a CSV file: --text-column says which of its columns has the texts. Its lines as they are: "
            f"pumice encode MODEL -o FILE < {tables}"
        )
    if len(arguments.input) > 1:
        join = "" if tables else ". Join them: cat A B | pumice encode MODEL -o FILE"
        raise ValueError(f"{len(arguments.input)} inputs, and a .npy file has the texts of one{join}")
    source = arguments.input[0] if arguments.input else "-"
    file = VectorFile(arguments.output)
    read: list[str | int] = [*input_file()] if source == "-" else [source]
    if arguments.precision_ranges is not None:
        read.append(arguments.precision_ranges)
    refuse_to_replace(arguments.output, itertools.chain(read, files_of(arguments.model)))
    with pumice.load(arguments.model, **_load_options(arguments)) as model:
        model._need("encode", "pumice encode")
        texts = _lines(source) if tables is None else column(tables, arguments.text_column)
        vectors = model.encode(texts, **_encode_options(arguments), show_progress_bar=on_screen(sys.stderr))
    done = f"{arguments.output}: {vectors.dtype} {vectors.shape[0]} x {vectors.shape[1]}"
    file.save(vectors)
    (complain if file.is_output else say)(done)
    return 0


def _encode_tables(arguments: argparse.Namespace) -> int:
    from .arrow.columns import Encode
    from .arrow.parquet import ROWS, ParquetEncoder

    if not arguments.input:
        raise ValueError("no Parquet file is named: --text-column needs files or folders as input")
    encode = Encode(
        arguments.model,
        text=arguments.text_column,
        vector=arguments.vector_column if arguments.vector_column is not None else "vector",
        null=arguments.null or "error",
        load=_load_options(arguments),
        **_encode_options(arguments),
    )
    files = ParquetEncoder(
        encode,
        arguments.input,
        arguments.output,
        columns=None if arguments.columns is None else arguments.columns.split(","),
        rows=arguments.rows or ROWS,
        overwrite=bool(arguments.overwrite),
    )
    bar = LateBar(None, "encode", unit=" rows", unit_scale=True)
    try:
        for done in files.run(bar.update):
            say(f"{done.path}: {done.rows} rows, {done.vectors}{', complete before' if done.earlier else ''}")
    finally:
        bar.close()
    return 0


def run_generate(arguments: argparse.Namespace) -> int:
    """`pumice generate`: prints the continuation of a prompt while it is generated."""
    prompt = arguments.prompt
    if prompt == "-":
        prompt = _whole_text(prompt)
    with pumice.load(arguments.model, **_load_options(arguments)) as model:
        model._need("generate", "pumice generate")  # raises an error that names the command, if the model cannot generate
        with model.stream(prompt, **_sampling(arguments)) as stream:
            for chunk in stream:
                say(chunk, end="")
    say()
    return 0


def run_chat(arguments: argparse.Namespace) -> int:
    """`pumice chat`: answers each message until the input ends. A message is a line of the input. On a terminal, the user can edit the line
    (chats/terminal.py), and Ctrl-C ends an answer but not the conversation."""
    messages: list[dict[str, str]] = [{"role": "system", "content": arguments.system}] if arguments.system else []
    lines, talks, shows = input_bytes(), on_screen(sys.stdin), on_screen(sys.stdout)
    with pumice.load(arguments.model, **_load_options(arguments)) as model:
        # If the model cannot chat, this raises the error before the first line is read.
        model._need("generate", "pumice chat")
        model.chat([*messages, {"role": "user", "content": "Hello"}], dry_run=True, **_sampling(arguments))
        edits = talks and shows
        for text in Terminal(None if arguments.no_history else history_path()).messages() if edits else _messages(lines, talks):
            messages.append({"role": "user", "content": text})
            stream = model.chat(messages, stream=True, **_sampling(arguments))
            try:
                kind = None
                for chunk in stream:
                    if chunk.text and kind not in (None, chunk.kind):
                        say("\n")
                    kind = chunk.kind if chunk.text else kind
                    say(visible(chunk.text) if shows else chunk, end="")
            except KeyboardInterrupt:  # on a terminal, Ctrl-C ends the answer but not the conversation
                if not talks:
                    raise
                stream.close()
            say()
            if stream.result.finish_reason == "repetition":
                complain("(the answer ends here, because it only repeated itself)")
            if arguments.timings:
                complain(_figures(stream.result))
            messages.append(stream.result.message)
    return 0


def _messages(lines: Iterator[bytes], talks: bool) -> Iterator[str]:
    """Yields the lines that are not blank. talks: whether to print a prompt before each line."""
    for number in itertools.count(1):
        if talks:
            say(FIRST, end="")
        line = next(lines, b"")
        if not line:
            return
        if line.strip():
            yield _text(line, number, "standard input").rstrip("\r\n")


def _figures(result: pumice.ChatResult) -> str:
    """Returns the tokens and speeds of an answer in one line."""
    found = result.timings
    return (
        f"({result.prompt_tokens} tokens read, {result.reused_tokens} of them kept from before, in {found['prefill_seconds']:.2f} s; "
        f"{len(result.ids)} tokens written, {found['decode_tokens_per_second']:.1f} tokens/s)"
    )


def run_run(arguments: argparse.Namespace) -> int:
    """`pumice run`: answers the lines of a file."""
    from .serve.command import run_lines

    return run_lines(arguments, _load_options(arguments), _sampling(arguments), _LOADING_READ)


def run_serve(arguments: argparse.Namespace) -> int:
    """`pumice serve`: serves models until the process is told to stop."""
    from .serve.command import run

    return run(arguments, _load_options(arguments), _sampling(arguments), _LOADING_READ)


def run_bench(arguments: argparse.Namespace) -> int:
    """`pumice bench`: measures and prints the sentences/s of an encoder, or the tokens/s of a decoder, alone or in turn with a peer."""
    from .machine.benchmark import UNITS, Load, Task, busy, compare

    for name in ("rounds", "peer_python"):
        if arguments.against is None and getattr(arguments, name) is not None:
            raise ValueError(f"--{name.replace('_', '-')} is for --against, which names the peer to measure")
    rounds = arguments.rounds or ROUNDS
    load = Load(arguments.sentences, arguments.prompt_tokens, arguments.tokens)
    others = busy()  # called before the benchmark begins, because it would count the benchmark's work, too
    if others is not None:
        complain(f"pumice: warning: {others}")
    with pumice.load(arguments.model, **_load_options(arguments)) as model:
        say(model.summary())
        if arguments.against is not None:
            bar = LateBar(None, "bench", unit=" rounds")
            try:
                found = compare(model, load, arguments.against, arguments.peer_python, rounds, bar.update)
            finally:
                bar.close()
            say(f"{model.info['devices'][0]['name']}, {rounds} rounds in turn")
            say(f"pumice {pumice.__version__}, {', '.join(found.versions)}, Python {platform.python_version()}")
            say(found)
            return 0
        task = Task(model, load)
        task.warm_up()
        for what, figure in task.run(task.asked(0)).items():
            say(f"{what}: {figure:.1f} {UNITS[what]}")
    return 0


def _whole_text(path: str) -> str:
    source = "standard input" if path == "-" else path
    with contextlib.nullcontext(input_bytes()) if path == "-" else open(path, "rb") as file:
        return "".join(_text(line, number, source) for number, line in enumerate(file, 1))


def run_perplexity(arguments: argparse.Namespace) -> int:
    """`pumice perplexity`: prints the perplexity of a model on a text, or compares the model's predictions with those of another model."""
    text, options = _whole_text(arguments.texts), _load_options(arguments)
    with contextlib.ExitStack() as models:
        model = models.enter_context(pumice.load(arguments.model, **options))
        found: Any
        if arguments.against is None:
            found = model.perplexity(text, window=arguments.window)
        else:
            plain = {name: value for name, value in options.items() if name != "quantize"}
            reference = models.enter_context(pumice.load(arguments.against, **plain))
            found = model.compare(reference, text, window=arguments.window)
    say(json.dumps(dataclasses.asdict(found), indent=2) if arguments.json else found)
    return 0


def run_convert(arguments: argparse.Namespace) -> int:
    """`pumice convert`: writes a safetensors folder as a GGUF file."""
    tokenizer: Literal["folder", "none"] = "none" if arguments.no_tokenizer else "folder"
    options = _given(arguments, "to", "split", "force", "tokens", "importance") | _texts_of(arguments)
    say(pumice.convert(arguments.model, arguments.output, tokenizer=tokenizer, dry_run=arguments.plan, **options))
    return 0


def _texts_of(arguments: argparse.Namespace) -> dict[str, Any]:
    return {} if arguments.texts is None else {"texts": [Path(path) for path in arguments.texts]}


def run_quantize(arguments: argparse.Namespace) -> int:
    """`pumice quantize`: writes a GGUF file with its weights in other formats."""
    keep = {}
    for rule in arguments.keep:
        pattern, equals, format = rule.rpartition("=")
        if not equals:
            raise ValueError(f"--keep {rule} has no '='; it must be REGEX=FORMAT, such as blk\\.0\\..*=q8_0")
        keep[pattern] = format
    options = _given(arguments, "to", "requantize", "split", "force", "tokens", "importance") | _texts_of(arguments)
    say(pumice.quantize(arguments.model, arguments.output, keep=keep, dry_run=arguments.plan, **options))
    return 0


def _show_warning(message: Warning | str, category: type[Warning], *_: Any) -> None:
    complain(f"pumice: warning: {' '.join(str(message).split())}")


def main(argv: list[str] | None = None) -> int:
    """Runs a command and returns the exit code. Errors are printed as one line on stderr."""
    try:
        prepare()
        arguments = parser().parse_args(argv)
        with warnings.catch_warnings():
            warnings.simplefilter("always", pumice.TruncationWarning)
            warnings.simplefilter("always", pumice.FallbackWarning)
            warnings.simplefilter("always", pumice.IncompleteModelWarning)
            warnings.showwarning = _show_warning  # type: ignore[assignment]
            return int(arguments.run(arguments))
    except KeyboardInterrupt:
        complain("pumice: interrupted")
    except OutputError as error:
        give_up_output()
        if str(error):
            complain(f"pumice: {error}")
    except (pumice.PumiceError, OSError, ValueError, TypeError, MemoryError, ImportError) as error:
        message = " ".join(str(error).split()) or type(error).__name__
        complain(f"pumice: {message}")
    finally:
        finish()
    return 1


if __name__ == "__main__":
    sys.exit(main())
