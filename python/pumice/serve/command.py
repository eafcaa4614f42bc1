"""The options of `pumice serve` and `pumice run`, and the settings that they stand for. Only the standard library is imported before the
command runs."""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import re
import shlex
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import Field, fields
from pathlib import Path
from typing import Any

from ..common.command_options import count
from ..errors import GrammarWarning
from .settings import Settings

AT_ONCE = 256  # default of --at-once
HOST, PORT = "127.0.0.1", 8000
KEY_VARIABLE = "PUMICE_API_KEY"


def _whole(text: str) -> int:
    if not re.fullmatch(r"\d{1,15}", text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number")
    return int(text)


def _some(text: str) -> int:
    if (number := _whole(text)) == 0:
        raise argparse.ArgumentTypeError("0 is not at least 1")
    return number


def _seconds(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not 0 <= number <= 1e9:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds, from 0 to 1e9")
    return number


# Type of a setting -> function that parses the text of its option.
_READ: Mapping[str, Callable[[str], Any]] = {
    "int": _whole,
    "int | None": _whole,
    "float": _seconds,
    "float | None": _seconds,
    "str | None": str,
}


def flags() -> list[Field[Any]]:
    """Returns the settings that have an option of their own name."""
    return [each for each in fields(Settings) if "group" in each.metadata]


def flag_name(setting: str) -> str:
    """Returns the option of a setting, such as --max-body."""
    return "--" + setting.replace("_", "-")


def add_options(command: argparse.ArgumentParser) -> None:
    """Adds the options of `pumice serve`, except those of loading and sampling, which other commands have, too."""
    command.add_argument(
        "models",
        nargs="+",
        metavar="[NAME=]MODEL",
        help="a .gguf file, a folder with config.json and safetensors, or org/name[:file], and the name that requests give it "
        "(default: that of the file or folder)",
    )
    command.add_argument("--load", action="append", default=[], metavar="NAME.OPTION=VALUE", help="a loading option of one model alone")
    where = command.add_argument_group("where it listens, and who may ask")
    where.add_argument("--host", help=f"the address (default {HOST}); another one than this machine's own needs a key")
    where.add_argument("--port", type=_port, help=f"the port (default {PORT}); 0 takes a free one")
    where.add_argument("--uds", metavar="PATH", help="listen at a socket in the file system instead")
    where.add_argument("--api-key", action="append", default=[], metavar="KEY", help="a key that requests must have; other users of this "
                       f"machine can see it, so better --api-key-file or {KEY_VARIABLE}")  # fmt: skip
    where.add_argument("--api-key-file", metavar="FILE", help="a file of keys, one a line")
    where.add_argument("--no-auth", action="store_true", help="take requests from other machines without a key")
    where.add_argument("--host-name", action="append", default=[], metavar="NAME", help="a name that the Host header may have, beside "
                       'localhost and IP addresses; "*" allows all')  # fmt: skip
    where.add_argument("--cors-origin", action="append", default=[], metavar="ORIGIN", help='a site whose pages may use this server, such '
                       'as https://example.org; "localhost" allows the pages of this machine, "*" all')  # fmt: skip
    models, other = add_setting_options(command, ("models", "batches", "load", "sizes"))
    models.add_argument("--lazy", action="store_true", help="load models when they are first asked for")
    models.add_argument("--workers", type=_some, default=1, help="processes that share the weights (CPU only)")
    other.add_argument("--otel", action="store_true", help="send spans of requests to the collector of OTEL_EXPORTER_OTLP_ENDPOINT (needs "
                       "the extra [otel]); without it nothing is sent")  # fmt: skip
    other.add_argument("--log-level", choices=["debug", "info", "warning", "error"], default="info", help="info (the default) has a line "
                       "for each request, without its text")  # fmt: skip


def add_setting_options(command: argparse.ArgumentParser, titles: Sequence[str], left_out: Sequence[str] = ()) -> tuple[Any, Any]:
    """Adds the options of the names of models and of the settings with these headings, and those that say what bodies may have. left_out:
    settings that get no option. Returns the groups of the options of models and of the last ones."""
    models = command.add_argument_group("models")
    models.add_argument("--alias", action="append", default=[], metavar="ALIAS=NAME", help="another name of a model")
    models.add_argument("--default-model", metavar="NAME", help="the model that answers requests for any other name, too")
    for title in titles:
        group = models if title == "models" else command.add_argument_group(title)
        for each in flags():
            if each.metadata["group"] == title and each.name not in left_out:
                default = each.default
                said = "" if default is None else f" (default {default:g})" if isinstance(default, float) else f" (default {default})"
                group.add_argument(flag_name(each.name), type=_READ[str(each.type)], help=each.metadata["about"] + said)
    other = command.add_argument_group("other")
    other.add_argument("--ignore-unknown-fields", action="store_true", help="ignore fields that are not known; without it they are errors")
    other.add_argument("--token-inputs", action="store_true", help="take token ids in /v1/embeddings: those of the model, not of OpenAI's")
    return models, other


def add_run_options(command: argparse.ArgumentParser) -> None:
    """Adds the options of `pumice run`, except those of loading and sampling, which other commands have, too."""
    command.add_argument(
        "input",
        metavar="IN.jsonl",
        help='the requests, one a line: {"custom_id", "method", "url", "body"} as for OpenAI\'s batches, or {"prompt"}, {"text"} or '
        '{"messages"} with further fields of the request; "-" is standard input',
    )
    command.add_argument(
        "-o",
        "--output",
        required=True,
        metavar="OUT.jsonl",
        help='the answers, one a line, each as it ends; "-" is standard output. If the file has answers of a run that was stopped, this '
        "run goes on with the lines that have none",
    )
    command.add_argument(
        "--model",
        action="append",
        required=True,
        metavar="[NAME=]MODEL",
        help="a .gguf file, a folder with config.json and safetensors, or org/name[:file], and the name that requests give it (default: "
        "that of the file or folder); may be given several times",
    )
    command.add_argument("--load", action="append", default=[], metavar="NAME.OPTION=VALUE", help="a loading option of one model alone")
    command.add_argument("--errors", metavar="ERRORS.jsonl", help="a file of its own for the answers that are errors")
    command.add_argument("--in-order", action="store_true", help="write the answers in the order of the lines")
    command.add_argument("--at-once", type=count, default=AT_ONCE, help=f"most lines at work (default {AT_ONCE})")
    old = command.add_mutually_exclusive_group()
    old.add_argument("--overwrite", action="store_true", help="begin anew: remove the answers that the output has")
    old.add_argument("--mixed", action="store_true", help="go on even if the answers so far are of other models, options or versions")
    add_setting_options(command, ("sizes",), ("max_headers", "max_bodies", "responses", "max_responses", "max_responses_bytes"))


def _port(text: str) -> int:
    number = _whole(text)
    if number > 65535:
        raise argparse.ArgumentTypeError(f"{number} is more than 65535, the largest port")
    return number


# ---------------------------------------------------------------- what the options mean
def models_of(given: list[str]) -> dict[str, str]:
    """Returns the models by name. Raises ValueError if two models have the same name."""
    found: dict[str, str] = {}
    for text in given:
        name, equals, source = text.partition("=")
        if not equals or not re.fullmatch(r"[\w.:/-]{1,200}", name) or os.path.exists(text):
            name, source = name_of(text), text
        if not source:
            raise ValueError(f"{text!r} names no model: NAME=MODEL is meant")
        if name in found:
            raise ValueError(f"two models have the name {name!r}: give one of them another, as in NAME={source}")
        found[name] = source
    return found


def name_of(source: str) -> str:
    """Returns the name of a model for which the user gave none: that of its file or folder, or of its repository. Bytes that are not UTF-8
    are written as "\\xff", because requests and metrics need a name that is text."""
    return os.fsencode(_file_name(source)).decode("utf-8", "backslashreplace")


def _file_name(source: str) -> str:
    path = Path(source)
    if path.exists():
        path = path.resolve()
    elif ":" in source:  # a hub id of the form org/name:file
        return path.name.partition(":")[0]
    return re.sub(r"(-\d{5}-of-\d{5})?\.gguf$", "", path.name)


def keys_of(arguments: argparse.Namespace) -> tuple[str, ...]:
    """Returns the API keys. Raises ValueError for a key that no header can carry, and for a key file that is empty or not UTF-8."""
    from ..common.arguments import shown_path

    keys = list(arguments.api_key)
    if arguments.api_key_file is not None:
        where = f"--api-key-file {shown_path(arguments.api_key_file)}"
        content = Path(arguments.api_key_file).read_bytes()
        try:
            lines = [line.strip() for line in content.decode("utf-8").splitlines()]
        except UnicodeDecodeError as error:  # the error's own message is not shown, because it contains bytes of a key
            line = content.count(b"\n", 0, error.start) + 1
            raise ValueError(f"{where} is not UTF-8 text: see line {line}") from None
        read = [line for line in lines if line and not line.startswith("#")]
        if not read:
            raise ValueError(f"{where} has no keys: one a line is meant")
        keys += read
    if os.environ.get(KEY_VARIABLE):
        keys.append(os.environ[KEY_VARIABLE])
    for key in keys:
        if not re.fullmatch(r"[!-~]+", key):
            raise ValueError("a key has a character that a header cannot carry: printable ASCII without spaces is meant")
    return tuple(keys)


def _pairs(given: list[str], option: str) -> dict[str, str]:
    pairs = dict(text.split("=", 1) for text in given if "=" in text)
    if (wrong := next((text for text in given if "=" not in text), None)) is not None:
        raise ValueError(f"{option} {shlex.quote(wrong)}: NAME=VALUE is meant")
    return pairs


def address_of(arguments: argparse.Namespace) -> tuple[str, int]:
    """Returns the host and the port. Raises ValueError if one of them is given in addition to --uds. Also raises it if --uds is empty,
    because the system would then choose a name that no client knows."""
    if arguments.uds is not None:
        if not arguments.uds:
            raise ValueError("--uds is empty: it must name a socket in the file system")
        for option, value in (("--host", arguments.host), ("--port", arguments.port)):
            if value is not None:
                raise ValueError(f"{option} {value} and --uds {arguments.uds} were both given: a server listens at one of them")
    return HOST if arguments.host is None else arguments.host, PORT if arguments.port is None else arguments.port


def is_own(host: str) -> bool:
    """Returns whether an address is a loopback address, which other machines cannot reach."""
    return host == "localhost" or host == "::1" or re.fullmatch(r"127(\.\d{1,3}){3}", host) is not None


def given_settings(arguments: argparse.Namespace) -> dict[str, Any]:
    """Returns the settings that have an option of their own name and that the command line gives."""
    return {each.name: value for each in flags() if (value := getattr(arguments, each.name, None)) is not None}


def _common_settings(arguments: argparse.Namespace, sampling: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the settings that have options in both commands, by name."""
    return {
        "aliases": _pairs(arguments.alias, "--alias"),
        "default_model": arguments.default_model,
        "sampling": dict(sampling),
        "ignore_unknown_fields": arguments.ignore_unknown_fields,
        "token_inputs": arguments.token_inputs,
        **given_settings(arguments),
    }


def settings_of(arguments: argparse.Namespace, sampling: Mapping[str, Any]) -> Settings:
    """Returns the settings of a command line. Raises ValueError if other machines could use the server without a key."""
    keys = keys_of(arguments)
    host, _ = address_of(arguments)
    own = arguments.uds is not None or is_own(host)
    if not own and not keys and not arguments.no_auth:
        raise ValueError(
            f"--host {host} lets other machines use this server, and there is no key: "
            f"--api-key-file FILE or {KEY_VARIABLE} sets one, --no-auth goes without"
        )
    hosts = tuple(arguments.host_name)
    # Without --host-name, all names are allowed at a socket in the file system, and also at an address of the network if there is a key. A
    # key protects better than a check of the Host header, and the name of this machine on the network is not known here.
    hosts = ("*",) if not hosts and (arguments.uds is not None or (not own and keys)) else ("localhost", host, *hosts)
    return Settings(
        api_keys=keys,
        hosts=tuple(dict.fromkeys(name.lower() for name in hosts)),
        cors_origins=tuple(arguments.cors_origin),
        lazy=arguments.lazy,
        otel=arguments.otel,
        **_common_settings(arguments, sampling),
    )


def load_options_of(
    given: list[str], models: Mapping[str, str], common: Mapping[str, Any], read: Mapping[str, Callable[[str], Any]]
) -> dict[str, dict[str, Any]]:
    """Returns the keywords of load() for each model: those for all models, and those of --load.  read: option -> function that parses its
    value."""
    found = {name: dict(common) for name in models}
    for text, value in _pairs(given, "--load").items():
        name, _, option = text.rpartition(".")
        option = option.replace("-", "_")
        if name not in models:
            raise ValueError(f"--load {text}: there is no model {name!r}, but {', '.join(models)}")
        if option not in read:
            raise ValueError(f"--load {text}: {option!r} is not an option of loading, which are {', '.join(read)}")
        try:
            found[name][option] = read[option](value)
        except (ValueError, argparse.ArgumentTypeError):
            raise ValueError(f"--load {text}={value}: {value!r} is not a value of {option}") from None
    return found


# ---------------------------------------------------------------- the run
def run(arguments: argparse.Namespace, common: Mapping[str, Any], sampling: Mapping[str, Any], read: Mapping[str, Any]) -> int:
    """Serves until the process is told to stop. Returns 0. Raises an error if something cannot be served.

    common: the loading options for all models. sampling: sampling settings for requests that do not set them. read: option of loading ->
    function that parses its value."""
    models = models_of(arguments.models)
    settings = settings_of(arguments, sampling)
    options = load_options_of(arguments.load, models, common, read)
    with _extra("serve"):
        from . import process, workers
        from .application import app
    _prepare_log(arguments.log_level)
    _allow_files(settings.connections, arguments.workers)
    listening = process.listen(*address_of(arguments), arguments.uds, settings.connections)
    names = ", ".join(models)

    def ready() -> None:
        from ..common.stdio import say

        say(f"pumice serves {names} at {process.address_of(listening)} (Ctrl-C stops)")

    def leave() -> None:
        listening.close()
        if arguments.uds is not None:
            Path(arguments.uds).unlink(missing_ok=True)

    try:
        if arguments.workers > 1:
            if settings.files is not None:
                raise ValueError("--files needs one process: batches are the work of one, and --workers starts several")
            return workers.run(models, options, settings, arguments.workers, listening, ready)
        given = {field.name: getattr(settings, field.name) for field in fields(settings)}
        return process.serve(app(models, load=options, **given), listening, ready, leave)
    finally:
        leave()


def run_lines(arguments: argparse.Namespace, common: Mapping[str, Any], sampling: Mapping[str, Any], read: Mapping[str, Any]) -> int:
    """Answers the lines of `pumice run`. Returns 0. Raises an error if the run cannot begin or go on. Arguments: as in run()."""
    models = models_of(arguments.model)
    load = load_options_of(arguments.load, models, common, read)
    given = given_settings(arguments)
    settings = Settings(
        # A seed for all lines would give equal answers to equal prompts. So it only changes the seed that each line gets.
        **_common_settings(arguments, {name: value for name, value in sampling.items() if name != "seed"}),
        running=arguments.at_once,
        waiting=arguments.at_once,
        max_bodies=max(Settings.max_bodies, 2 * given.get("max_body", Settings.max_body)),
        max_responses=0,  # an answer that depends on another line would depend on the order of the work
    )
    with _extra("run"):
        from . import run_command
    _prepare_log("error")
    return run_command.run(arguments, models, load, settings, sampling.get("seed", 0))


@contextlib.contextmanager
def _extra(command: str) -> Iterator[None]:
    """In this block, explains how to install the packages that a command needs."""
    try:
        yield
    except ImportError as error:
        if (error.name or "").startswith("pumice"):
            raise
        raise ImportError(f"pumice {command} needs the packages of the extra serve: pip install 'pumice[serve]' ({error})") from None


def _prepare_log(level: str) -> None:
    """Sends the log to standard error, from this level on."""
    warnings.simplefilter("ignore", GrammarWarning)  # each answer names in pumice.ignored what the warning would say
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    for name, least in (("pumice", level), ("uvicorn", "warning")):
        logger = logging.getLogger(name)
        logger.handlers[:] = [handler]
        logger.propagate = False
        logger.setLevel(max(getattr(logging, least.upper()), getattr(logging, level.upper())))


def _allow_files(connections: int, workers: int) -> None:
    """Raises the limit of open files, which is 1,024 on many systems, to the number that each process needs. Raises ValueError if the
    system does not even allow the number that the workers need before the first connection."""
    import resource

    from .connections import LINGERING

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    # `least` is the number of open files that are needed before the first connection: 256 for model files, event loops and other sockets,
    # and 3 sockets of the parent for each worker. `needed` counts each connection twice, because asyncio may accept as many connections
    # above the maximum before the server refuses the first of these.
    least = 3 * workers + 256
    needed = least + 2 * connections + LINGERING
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return
    allowed = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
    if workers > 1 and allowed < least:
        raise ValueError(f"--workers {workers} needs {least} open files, and the system allows {allowed} (ulimit -Hn)")
    resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
