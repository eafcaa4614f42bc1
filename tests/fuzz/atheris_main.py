"""Runs one target of python_targets.py under atheris, with libFuzzer's options. Usage: atheris_main.py TARGET [OPTION ...] [FOLDER ...]"""

from __future__ import annotations

import logging
import resource
import sys
import warnings

import atheris

with atheris.instrument_imports(include=["pumice", "jinja2"]):
    import python_targets

    python_targets.abuse.public_calls()  # imports all modules that public names are in


def main() -> None:
    name = sys.argv.pop(1)
    most = python_targets.abuse.MOST_MEMORY
    resource.setrlimit(resource.RLIMIT_AS, (most, most))  # a call that asks for terabytes gets a MemoryError, not the system's memory
    warnings.simplefilter("ignore")  # warnings about files are part of what the targets make, and would fill the log
    logging.disable()
    atheris.Setup(sys.argv, lambda data: python_targets.run(name, data) and None)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
