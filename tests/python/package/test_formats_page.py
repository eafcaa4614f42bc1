"""docs/formats.md must say what the goldens and the sources say."""

from __future__ import annotations

import formats_page


def test_page_is_as_the_tests_find_it() -> None:
    """Also compares the weights of every golden with those that pumice reads."""
    said = formats_page.PAGE.read_text(encoding="utf-8")
    assert said == formats_page.text(), "python tests/make_formats_page.py writes the page anew"
