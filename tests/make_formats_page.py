"""Writes docs/formats.md from the goldens, the sources and docs/results/formats.json (bench/formats.py). Takes seconds.

    python tests/make_formats_page.py

Needs the package. tests/python/package/test_formats_page.py checks that the page is as this program writes it."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent / "python" / "support")]

import formats_page  # noqa: E402

if __name__ == "__main__":
    formats_page.PAGE.write_text(formats_page.text(), encoding="utf-8")
