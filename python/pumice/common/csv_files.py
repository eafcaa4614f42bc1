"""Reads a column of a CSV file for `pumice encode`."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator

from .arguments import did_you_mean, shown, shown_path

SUFFIXES = {".csv": ",", ".tsv": "\t"}  # file name suffix -> separator of the cells
# Maximum number of characters in one cell. Without this limit, an unclosed quotation mark would make the whole rest of the file one cell.
MOST_CHARACTERS = 64 << 20


def separator(path: str) -> str | None:
    """Returns the separator of the cells of a CSV file, by the suffix of its name. Returns None if the suffix is not one of SUFFIXES."""
    return next((mark for suffix, mark in SUFFIXES.items() if path.lower().endswith(suffix)), None)


def column(path: str, name: str) -> Iterator[str]:
    """Yields the cells of a column, row by row. The first row has the names of the columns. The file is UTF-8, with or without a byte order
    mark; cells may be quoted, also over several lines (RFC 4180). Rows without any cell are left out.

    Raises ValueError, which names the line, if the file has no such column, a row ends before it, or a line cannot be read."""
    before = csv.field_size_limit(MOST_CHARACTERS)
    with open(path, "rb") as file:
        text = io.TextIOWrapper(file, encoding="utf-8-sig", newline="")
        rows = csv.reader(text, delimiter=separator(path) or ",", strict=True)
        where = shown_path(path)
        try:
            names = next(rows, [])
            if names.count(name) != 1:
                found = ", ".join(map(shown, names[:20])) or "nothing"
                what, hint = ("has several columns", "") if name in names else ("has no column", did_you_mean(name, names))
                raise ValueError(f"{where} {what} {shown(name)}; its first line has {found}{hint}")
            at = names.index(name)
            for row in rows:
                if not row:
                    continue
                if len(row) <= at:
                    raise ValueError(f"line {rows.line_num} of {where} ends before the column {shown(name)}: it has {len(row)} cells")
                yield row[at]
        except csv.Error as error:
            raise ValueError(f"line {rows.line_num} of {where} is not CSV: {error}") from None
        except UnicodeDecodeError as error:
            byte = error.object[error.start]
            raise ValueError(f"{where} is not UTF-8 text: byte 0x{byte:02x} after line {rows.line_num}") from None
        finally:
            csv.field_size_limit(before)
