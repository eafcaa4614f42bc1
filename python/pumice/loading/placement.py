"""pumice.plan(), and the table that Model.summary() returns: on which device each layer is, and how many bytes it takes."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from .. import _core
from ..common.display import formats, html_lines, html_table, size, text_table
from ..encode.sentence_config import Layout, read_layout
from ..errors import UnsupportedModelError
from . import eight_bits
from .files import describe_file, open_layout
from .hub import resolve
from .options import LoadKeywords, check_load_options, engine_options

if TYPE_CHECKING:
    from typing_extensions import Unpack

_COLUMNS = {"weights": "weights", "kv": "KV of a sequence", "state": "a state"}  # key of a size in `rows` -> heading of its column


class Plan:
    """Describes on which device each part of a model is, and how many bytes it takes. Prints as a table, in which successive equal layers
    share a row.

    rows: a dict for each part: name, device, weights (bytes), kv (bytes of keys and values of one sequence), state (bytes of one state of a
        recurrent layer), formats, and why the part is not on the GPU.
    devices: a dict for each device: id, name, weights, scratch, kv_page, memory_free (bytes).
    n_ctx: maximum number of tokens in a sequence. None if the model generates no text.
    scratch: bytes of working memory for one run, on all devices together.
    kv_budget: bytes for the keys, values and states of all sequences together.
    memory_free: bytes of free memory before loading, on all devices together.
    notes: what did not fit or is stored in another format than the file's, and why.
    problem: None, or the error that load() would raise."""

    def __init__(self, placement: Mapping[str, Any], header: list[str] | None = None, footer: list[str] | None = None) -> None:
        self.rows: list[dict[str, Any]] = [dict(row) for row in placement["rows"]]
        self.n_ctx: int | None = placement.get("n_ctx")
        self.scratch: int | None = placement.get("scratch")
        self.kv_budget: int | None = placement.get("kv_budget")
        self.memory_free: int | None = placement.get("memory_free")
        self.devices: list[dict[str, Any]] = [dict(device) for device in placement.get("devices") or ()]
        incomplete = (f"the file {what}" for what in placement.get("incomplete") or ())
        self.notes: list[str] = [str(note) for note in (*(placement.get("notes") or ()), *incomplete, placement.get("fallback")) if note]
        self.problem: str | None = placement.get("problem")
        self._header, self._footer = header or [], footer or []

    @property
    def totals(self) -> dict[str, dict[str, int]]:
        """A dict for each device, with sizes in bytes: "weights", "kv" for the keys and values of one sequence and, if the model has
        recurrent layers, "state" for one state of each of them."""
        result: dict[str, dict[str, int]] = {}
        for row in self.rows:
            total = result.setdefault(str(row["device"]), dict.fromkeys(self._sizes, 0))
            for name in total:
                total[name] += int(row.get(name) or 0)
        return result

    @property
    def _sizes(self) -> list[str]:
        """Returns the keys of the sizes in `rows`. "state" is left out if the model has no recurrent layers."""
        return [name for name in _COLUMNS if name != "state" or any(row.get("state") for row in self.rows)]

    @property
    def _headers(self) -> list[str]:
        return ["part", "device", *(_COLUMNS[name] for name in self._sizes), "formats"]

    def _table(self) -> list[list[str]]:
        table: list[list[str]] = []
        for row in fold(self.rows):
            each = " each" if row["count"] > 1 else ""
            sizes = [size(row.get(name) or 0) + each for name in self._sizes]
            table.append([str(row["name"]), str(row["device"]), *sizes, formats(row.get("formats"))])
        for device, total in self.totals.items():
            table.append(["total", device, *map(size, total.values()), ""])
        return table

    def _facts(self) -> list[str]:
        facts = []
        if self.n_ctx is not None:
            facts.append(f"context {self.n_ctx} tokens per sequence")
        if self.kv_budget:
            facts.append(f"KV budget {size(self.kv_budget)} for all sequences and cached prefixes")
        several = len(self.devices) > 1
        if self.scratch:
            facts.append(f"scratch {self._on_each('scratch') if several else size(self.scratch)}")
        if self.memory_free:
            facts.append(f"{self._on_each('memory_free') if several else size(self.memory_free)} of memory free before")
        problem = [f"does not fit: {self.problem}"] if self.problem else []
        return [*([", ".join(facts)] if facts else []), *self._footer, *problem, *(f"note: {note}" for note in self.notes)]

    def _on_each(self, name: str) -> str:
        return " and ".join(f"{size(device[name])} on {device['id']}" for device in self.devices)

    def __repr__(self) -> str:
        return "\n".join([*self._header, text_table(self._headers, self._table(), right=self._headers[2:-1]), *self._facts()])

    __str__ = __repr__

    def _repr_html_(self) -> str:
        return html_lines(self._header) + html_table(self._headers, self._table(), right=self._headers[2:-1]) + html_lines(self._facts())


def fold(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Joins successive rows that differ only in the number in their name: "layer 0", "layer 1", "layer 2" become "layer 0-2". Adds `count`,
    the number of joined rows, to each row.

    `why` may differ between joined rows, because it says how much memory is missing, and each layer lacks a little more than the previous
    one."""
    folded: list[dict[str, Any]] = []
    last_number = 0
    for row in rows:
        name = re.fullmatch(r"(.*?)(\d+)", str(row["name"]))
        shape = (name[1] if name else None, {k: v for k, v in row.items() if k not in ("name", "why")})
        if folded and name and folded[-1]["shape"] == shape and int(name[2]) == last_number + 1:
            folded[-1]["count"] += 1
            first = re.fullmatch(r"(.*?)(\d+)(?:-\d+)?", folded[-1]["first"])
            folded[-1]["name"] = f"{shape[0]}{first[2] if first else 0}-{name[2]}"
        else:
            folded.append({**row, "count": 1, "shape": shape, "first": str(row["name"])})
        last_number = int(name[2]) if name else -1
    return [{k: v for k, v in row.items() if k not in ("shape", "first")} for row in folded]


def plan(source: str | os.PathLike[str], **load_options: Unpack[LoadKeywords]) -> Plan:
    """Returns on which device each layer would be if the model were loaded with these options. Reads only the file's metadata, and
    allocates nothing.

    source, load_options: the arguments of load().

    Raises DeviceNotFoundError, ValueError, OSError, and the errors of opening the file. If the model does not fit, the result has a table
    nevertheless, and its `problem` is the error that load() would raise."""
    options = check_load_options("plan", load_options)
    layout = read_layout(resolve(source), options["prompts"], options["follow_links"])
    file = open_layout(layout)
    if layout.static:
        from ..encode import static

        return Plan(static.plan(file), header=[describe_file(file)])
    placement = _core.plan(file, engine_options(file, options, layout.config))
    if eight_bits.may_apply(options, placement):
        placement["notes"] = [*(placement.get("notes") or ()), _note_of_floats(file, options, layout)]
    return Plan(placement, header=[describe_file(file)])


def _note_of_floats(file: _core.ModelFile, options: Mapping[str, Any], layout: Layout) -> str:
    """Returns a note: how many bytes load() may need for an encoder in addition to those of the plan (eight_bits.py)."""
    try:
        floats = _core.plan(file, engine_options(file, {**options, "quantize": None}, layout.config))
    except UnsupportedModelError:  # the file's own weights can only be loaded with rounding
        return "load() cannot compare 8-bit weights with the file's, which are only read rounded"
    most = size(sum(int(row["weights"]) for row in floats["rows"]))
    return (
        f"weights are at most {most}: load() also reads the file's own to compare vectors, and keeps these in place of 8-bit ones where "
        "the vectors differ too much"
    )
