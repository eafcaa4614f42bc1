"""Runs one target of python_targets.py under atheris, with libFuzzer's options. Usage: atheris_main.py TARGET [OPTION ...] [FOLDER ...]"""

from __future__ import annotations

import logging
import sys
import warnings

import atheris

with atheris.instrument_imports(include=["pumice", "jinja2"]):
    import python_targets


def main() -> None:
    name = sys.argv.pop(1)
    warnings.simplefilter("ignore")  # warnings about files are part of what the targets make, and would fill the log
    logging.disable()
    atheris.Setup(sys.argv, lambda data: python_targets.run(name, data) and None)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
