"""Writes tests/goldens/convert: what convert() writes for each small model of tests/random_models, in the form of
tests/python/support/converted_models.py.

    python tests/make_convert_goldens.py [FAMILY ...]

pumice itself is the source. So a golden says what convert() wrote when it was made; that llama.cpp's converter writes the same, and that
llama.cpp runs it, tests/check_llama_cpp.py shows."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent / "python" / "support")]

import converted_models  # noqa: E402
from random_models import VARIANTS  # noqa: E402


def main() -> None:
    converted_models.GOLDENS.mkdir(exist_ok=True)
    for family in sys.argv[1:] or sorted({v.family for v in VARIANTS.values()}):
        with tempfile.TemporaryDirectory() as folder:
            found = {name: converted_models.described(name, Path(folder)) for name in converted_models.variants(family)}
        if any(found.values()):
            (converted_models.GOLDENS / f"{family}.txt").write_text(converted_models.text_of(found))


if __name__ == "__main__":
    main()
