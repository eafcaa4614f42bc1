"""Options of the command line: their values, and those that belong to a command or that commands share."""

from __future__ import annotations

import argparse
import os
import re
import sys
from typing import Any, NoReturn

from .stdio import complain, say


class Parser(argparse.ArgumentParser):
    """An ArgumentParser whose errors are one line on standard error, with exit code 1."""

    # Overrides the method of argparse, which ignores errors when it writes.
    def _print_message(self, message: str, file: Any = None) -> None:
        (say if file is sys.stdout else complain)(message.removesuffix("\n"))

    def error(self, message: str) -> NoReturn:
        """Prints an error about the command line, and ends the process with exit code 1."""
        complain(f"pumice: {message} (pumice {self.prog.partition(' ')[2]} --help shows the usage)".replace("  ", " "))
        raise SystemExit(1)


def count(text: str) -> int:
    """Returns the positive whole number that a value spells."""
    if not re.fullmatch(r"-?\d{1,15}", text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at most 15 digits")
    if (number := int(text)) < 1:
        raise argparse.ArgumentTypeError(f"{number} is not at least 1")
    return number


def yes_or_no(text: str) -> bool:
    """Returns whether a value is "yes" and not "no"."""
    if text not in ("yes", "no"):
        raise argparse.ArgumentTypeError(f"{text!r} is neither yes nor no")
    return text == "yes"


def layers(text: str) -> int | str | list[int]:
    """Returns a number of layers, a list of such numbers, or the value itself, which is a word such as "auto"."""
    if re.fullmatch(r"\d{1,15}(,\d{1,15})+", text):
        return [int(part) for part in text.split(",")]
    return int(text) if re.fullmatch(r"-?\d{1,15}", text) else text


def utf8_text(text: str) -> str:
    """Returns a text of the command line, decoded as UTF-8 in every locale."""
    try:
        return os.fsencode(text).decode("utf-8")
    except UnicodeDecodeError as error:
        byte = os.fsencode(text)[error.start]
        raise argparse.ArgumentTypeError(f"it is not UTF-8 text: byte 0x{byte:02x} at place {error.start}") from None


# The options of the commands that load a model: keyword of load() -> (function that parses the value, help text).
LOADING: dict[str, tuple[Any, str | None]] = {
    "device": (str, '"auto", "cpu", "vulkan", "vulkan:1", "vulkan:0+vulkan:1"'),
    "gpu_layers": (layers, '"auto", "all" or how many; "10,22": of each GPU'),
    "gpu_experts": (layers, 'layers whose experts are on the GPU: "auto", "all" or how many'),
    "expert_cache": (int, "bytes of memory for experts on the CPU"),
    "threads": (count, None),
    "n_ctx": (count, "tokens per sequence"),
    "quantize": (str, '"q8_0", "q4_k", ...: pack float weights in this format while loading'),
    "compute": (str, '"auto" or "float32"'),
    "pooling": (str, 'how a text becomes one vector: "mean", "cls", "last", ...; with it, any decoder is an embedding model, too'),
    "unread_tensors": (str, '"error" or "warn": what a tensor of a layer is that the model does not read'),
    "follow_links": (yes_or_no, "yes: links in the model's folder may lead anywhere"),
}
# The options in LOADING, and those of the chat template and of an adapter, for the commands that hold conversations.
LOADING_CHATS: dict[str, tuple[Any, str | None]] = LOADING | {
    "chat_template": (str, "a file with a Jinja template, or the name of one of the model's own, in place of the model's"),
    "lora": (str, "an adapter that is added to the weights: a PEFT folder or a GGUF adapter"),
}


def add_encode_options(command: Parser) -> None:
    """Adds the options of `pumice encode` alone."""
    command.add_argument(
        "input",
        nargs="*",
        help="a UTF-8 text file, one text per line (default: standard input); with --text-column, a .csv or .tsv file, or Parquet files or "
        "folders",
    )
    command.add_argument(
        "-o", "--output", required=True, help="the .npy file to write, (lines, d); for Parquet files, a folder for one file per input"
    )
    command.add_argument("--text-column", type=utf8_text, metavar="NAME", help="the column of texts, of a CSV file or of Parquet files")
    command.add_argument("--prompt-name", type=utf8_text, help="one of the model's prompts, to put before each text")
    command.add_argument("--truncate-dim", type=count, help="the first columns only")
    command.add_argument("--raw", action="store_true", help="do not normalise")
    command.add_argument("--precision", choices=("float32", "int8", "uint8", "binary", "ubinary"), help="of the vectors (default float32)")
    command.add_argument(
        "--precision-ranges", metavar="FILE", help="a .npy file (2, d) for int8 and uint8: the least and the greatest values"
    )
    tables = command.add_argument_group("Parquet files (needs the extra [arrow])")
    tables.add_argument("--vector-column", type=utf8_text, metavar="NAME", help='the new column (default "vector")')
    tables.add_argument(
        "--null", choices=("error", "empty", "null"), help="a null text is an error (default), an empty text, or a null vector"
    )
    tables.add_argument("--columns", type=utf8_text, metavar="A,B", help="the columns to keep beside the vectors (default: all)")
    tables.add_argument("--rows", type=count, help="rows that are in memory at a time: one row group of the output (default 8192)")
    tables.add_argument("--overwrite", action="store_true", default=None, help="replace outputs of other inputs, options or models")


def add_perplexity_options(command: Parser) -> None:
    """Adds the options of `pumice perplexity` alone."""
    command.add_argument("--texts", required=True, metavar="FILE", help='a UTF-8 text file, which is one text; "-" is standard input')
    command.add_argument(
        "--against",
        metavar="REFERENCE",
        help="also run this model, and compare the predictions: KL divergence, same first token. It is loaded with the same options, but "
        "without --quantize",
    )
    command.add_argument("--window", type=int, help="tokens of a window, whose second half is scored (default 512)")
    command.add_argument("--json", action="store_true", help="print JSON")


def add_quantize_options(command: Parser) -> None:
    """Adds the options of `pumice quantize` alone."""
    command.add_argument(
        "--to",
        required=True,
        help='"q4_0", "q8_0", "f16", "bf16", "f32", a mix: "q4_k_m", "q3_k_m", ..., or a size: "4.5bpw" (docs/python/gguf.md)',
    )
    command.add_argument(
        "--keep",
        action="append",
        default=[],
        metavar="REGEX=FORMAT",
        help="the format of tensors whose names fit (may be repeated)",
    )
    command.add_argument("--requantize", action="store_true", help="round weights that are quantized already a second time")


def add_writing_options(command: Parser) -> None:
    """Adds the arguments that `pumice convert` and `pumice quantize` share."""
    command.add_argument(
        "--texts",
        action="append",
        metavar="FILE",
        help="choose codes by what matrices are multiplied with in this text (may be repeated; texts of all kinds that it is for)",
    )
    command.add_argument("--importance", metavar="FILE", help="choose codes by an importance matrix, a GGUF file of llama-imatrix")
    command.add_argument("--tokens", type=count, help="how many tokens of texts the model reads (default: 16384)")
    command.add_argument("output", help="the .gguf file to write")
    command.add_argument("--split", metavar="SIZE", help='the largest size of a file, such as "4G"; the model has several files then')
    command.add_argument("--plan", action="store_true", help="show what would be written, and write nothing")
    command.add_argument("--force", action="store_true", help="replace files that are there already")


def add_sampling_options(command: Parser, limits: bool) -> None:
    """Adds the options of generated texts. limits: whether with the one that limits the tokens of a text."""
    sampling = command.add_argument_group("sampling")
    if limits:
        sampling.add_argument("--max-new-tokens", type=count)
    sampling.add_argument("--max-reasoning-tokens", type=int, help="end the model's reasoning after this many tokens")
    sampling.add_argument("--top-k", type=int)
    sampling.add_argument("--seed", type=int)
    for name in ("temperature", "top-p", "min-p", "repetition-penalty"):
        sampling.add_argument(f"--{name}", type=float)
    sampling.add_argument("--stop", type=utf8_text, action="append", help="stop before this text (may be given several times)")
