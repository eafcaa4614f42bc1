"""Paths of the tests and their data, for tests in any folder."""

from __future__ import annotations

from pathlib import Path

SUPPORT = Path(__file__).parent
ROOT = SUPPORT.parents[2]
TESTS = ROOT / "tests"
GOLDENS = TESTS / "goldens"
API_PAGES = [ROOT / "docs" / "python.md", *sorted((ROOT / "docs" / "python").glob("*.md"))]  # what describes the public names
