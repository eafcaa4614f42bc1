"""Formats tables, sizes and tokens as text, and as HTML for notebooks."""

from __future__ import annotations

import html
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

_CELL = "padding:2px 10px;text-align:{};border:none"


def size(count: float | None) -> str:
    """Formats a number of bytes: '1.5 KiB' for 1536, '?' for None."""
    if count is None:
        return "?"
    value = float(count)
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if abs(value) < 1024 or unit == "TiB":
            break
        value /= 1024
    return f"{value:.0f} {unit}" if unit == "B" or value >= 100 else f"{value:.1f} {unit}"


def count(number: float) -> str:
    """Formats a number in short form: '134.5 M' for 134515008."""
    for unit, scale in (("T", 1e12), ("B", 1e9), ("M", 1e6), ("k", 1e3)):
        if number >= scale:
            return f"{number / scale:.1f} {unit}"
    return f"{number:.0f}"


def duration(seconds: float) -> str:
    """Formats a time in seconds: '24 minutes' for 1450."""
    if seconds < 1.5:
        return "1 second"
    for unit, size, most in (("seconds", 1, 90), ("minutes", 60, 5400), ("hours", 3600, 172_800)):
        if seconds < most:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds / 86_400:.0f} days"


def formats(value: Any) -> str:
    """Returns the names of weight formats as one text. A dict of format -> bytes is ordered by bytes, largest first: {'f32': 1, 'q4_1': 9}
    becomes 'q4_1, f32'."""
    if isinstance(value, Mapping):
        return ", ".join(sorted(map(str, value), key=lambda name: -float(value[name])))
    return value if isinstance(value, str) else ", ".join(map(str, value or ()))


def text_table(headers: Sequence[str], rows: Iterable[Sequence[Any]], right: Iterable[str] = ()) -> str:
    """Returns a table as plain text, with two spaces between columns. right: the headers of the columns that are aligned to the right."""
    cells = [list(map(str, row)) for row in rows]
    widths = [max(len(line[i]) for line in (list(headers), *cells)) for i in range(len(headers))]
    to_right = {headers.index(name) for name in right}

    def line(row: Sequence[str]) -> str:
        return "  ".join(c.rjust(w) if i in to_right else c.ljust(w) for i, (c, w) in enumerate(zip(row, widths, strict=True))).rstrip()

    return "\n".join([line(headers), line(["-" * w for w in widths]), *map(line, cells)])


def html_table(headers: Sequence[str], rows: Iterable[Sequence[Any]], right: Iterable[str] = (), caption: str = "") -> str:
    """Returns the same table as text_table(), but as HTML and with a caption above it. All texts are escaped."""
    to_right = set(right)

    def cells(tag: str, row: Sequence[Any]) -> str:
        return "".join(
            f'<{tag} style="{_CELL.format("right" if h in to_right else "left")}">{html.escape(str(c))}</{tag}>'
            for h, c in zip(headers, row, strict=True)
        )

    top = f'<caption style="text-align:left;font-weight:bold">{html.escape(caption)}</caption>' if caption else ""
    body = "".join(f"<tr>{cells('td', row)}</tr>" for row in rows)
    head = f"<thead><tr>{cells('th', headers)}</tr></thead>"
    return f'<table style="border-collapse:collapse;margin:6px 0">{top}{head}<tbody>{body}</tbody></table>'


def html_lines(lines: Iterable[str]) -> str:
    """Returns lines of text as HTML. Each line is escaped and in its own block."""
    return "".join(f"<div>{html.escape(line)}</div>" for line in lines)


def token_span(text: str, probability: float, title: str) -> str:
    """Returns HTML that shows a token on a coloured background: red for probability 0, yellow for 0.5, green for 1."""
    hue = 120 * min(max(probability, 0.0), 1.0)
    return f'<span title="{html.escape(title)}" style="background:hsl({hue:.0f} 75% 80%);color:#111">{html.escape(text)}</span>'
