"""The text of docs/formats.md: every packing of folders and every type of GGUF files, what they become, and what that costs.
tests/make_formats_page.py writes the page, and test_formats_page.py checks it.

Everything on the page but the speeds follows from the goldens and from the sources. Speeds are those of docs/results/formats.json, which
bench/formats.py writes."""

from __future__ import annotations

import json
import re
import struct
import tempfile
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import packed_models
import random_gguf
import random_models
from paths import GOLDENS, ROOT
from random_gguf import Packed

import pumice
from pumice import _core

PAGE = ROOT / "docs" / "formats.md"
SPEEDS = ROOT / "docs" / "results" / "formats.json"
PACKED = GOLDENS / "packed"
# Formats that only matrices with rows of whole blocks of 128 columns become, and a packing whose matrices do so in a wide model.
WIDE = {"F8_E4M3": "fp8", "A4": "awq_128"}
ASKED = "Q8_0"  # what `quantize="q8_0"` makes of a matrix that no format holds
HEAD = """# Weights: packed folders and GGUF types
For each packing of a safetensors folder and each type of a GGUF file: as which format its matrices are read, whether that holds every
weight exactly, and how much memory and time it takes. [Packed folders](python/files.md#packed-folders) has the rules. Made by
`python tests/make_formats_page.py`.

- **goldens**: what expanded packed matrices for the tests, whose weights ours must equal, and how many, if more than one. `numpy, by the
  layout`: no program at hand expands this type, so that the tests do as its layout says.
- **exact**: `yes` if the format holds every weight. If none does, the reason; such a matrix is read only if `quantize=` asks for it, and
  its row says what `quantize="q8_0"` makes of it.
- **bits**: of memory for each weight on the CPU, scales included. The models that were counted are small. 16 rows together are padded to a
  multiple of 64 bytes, so that A4 has 4.24 bits there and 4.19 in large models.
- **decode**: how many times as many tokens as with F16 in equal time of one processor, {processor}, with one format in all matrices
  (`python bench/formats.py`).
"""


# ---------------------------------------------------------------- memory and time
SIZES = {
    "embedding_length": 1024, "feed_forward_length": 2048, "block_count": 1, "vocab_size": 64, "attention.head_count": 8,
    "context_length": 64,
}  # fmt: skip
MATRICES = {
    "attn_q": (1024, 1024), "attn_k": (1024, 1024), "attn_v": (1024, 1024), "attn_output": (1024, 1024), "ffn_gate": (2048, 1024),
    "ffn_up": (2048, 1024), "ffn_down": (1024, 2048),
}  # fmt: skip


def layer_bits(plan: pumice.Plan, weights: int) -> float:
    """Returns the bits of a weight in the first layer of a plan, whose matrices have so many weights."""
    return 8 * int(next(row for row in plan.rows if row["name"] == "layer 0")["weights"]) / weights


@cache
def bits(form: str) -> float:
    """Returns the bits of a weight in memory. They are those that plan() counts for a small model with this format in all matrices."""
    source = next((kind for kind in gguf_types() if kind.becomes == form), None)
    with tempfile.TemporaryDirectory() as target:
        if source is None:
            how = WIDE.get(form) or next(how for how, packing in packed_models.PACKINGS.items() if packing.becomes == form)
            matrices = [w for name, w in random_models.tensors("llama_wide").items() if ".layers.0." in name and w.ndim == 2]
            folder, _ = packed_models.packed_folder("llama_wide", how, Path(target))
            return layer_bits(pumice.plan(folder, device="cpu"), sum(matrix.size for matrix in matrices))
        keys = {"general.architecture": "llama", "llama.attention.layer_norm_rms_epsilon": 1e-5}
        keys |= {f"llama.{key}": number for key, number in SIZES.items()}
        ends = {name: np.zeros((64, 1024), np.float32) for name in ("token_embd.weight", "output.weight")}
        norms = {name: np.ones(1024, np.float32) for name in ("output_norm.weight", "blk.0.attn_norm.weight", "blk.0.ffn_norm.weight")}
        packed = {}
        for name, shape in MATRICES.items():
            packed[f"blk.0.{name}.weight"] = Packed(source.id, shape, bytes(shape[0] * shape[1] // source.block * source.size))
        path = random_gguf.write(Path(target) / "model.gguf", keys, ends | norms | packed)
        return layer_bits(pumice.plan(path, device="cpu"), sum(rows * columns for rows, columns in MATRICES.values()))


def speeds() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(SPEEDS.read_text())
    return found


def cells(form: str, exact: str) -> str:
    """Returns the columns from `exact` to the last one."""
    ratio = speeds()["decode"].get(form)
    assert ratio is not None, f"{SPEEDS.name} has no speed of {form}: python bench/formats.py {form} measures it"
    return f"{exact} | {form} | {round(bits(form), 4):g} | {ratio:.2f} |"


# ---------------------------------------------------------------- packed folders
def schemes() -> list[str]:
    """Returns the names of all schemes."""
    listed = (ROOT / "cpp" / "files" / "schemes" / "schemes.def").read_text()
    return re.findall(r'^PUMICE_SCHEME\(\w+, *"([^"]+)"', listed, re.MULTILINE)


def golden_tensors(name: str) -> dict[str, tuple[str, list[int], bytes]]:
    """Returns dtype, shape and bytes of the tensors of a golden."""
    data = (PACKED / f"{name}.safetensors").read_bytes()
    (size,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + size])
    return {
        tensor: (said["dtype"], said["shape"], data[8 + size + said["data_offsets"][0] : 8 + size + said["data_offsets"][1]])
        for tensor, said in header.items()
    }


def packed_label(packing: str, config: dict[str, Any], tensors: dict[str, Any]) -> str:
    """Returns what tells a row from others: the packing without the sizes of its groups, and what its zeros or scales are like."""
    label = re.sub(r", (groups of \d+|one group a row|blocks of [\d x]+|one scale( an? \w+)?)", "", packing)
    settings = config.get("quantization_config", {})
    if any(name.startswith("m.experts.") for name in tensors):
        label += ", all experts in one tensor"
    if "scale_fmt" in settings or any(dtype == "F8_E8M0" for dtype, _, _ in tensors.values()):
        return f"{label}, scales that are powers of two"
    if packing.startswith(("GPTQ", "compressed-tensors")) and re.search(r"\d bits, (groups|one group)", packing):
        zeros = not settings["sym"] if "sym" in settings else "m.weight_zero_point" in tensors
        return label + (", zero points" if zeros else ", symmetric")
    return label


def packed_rows() -> list[str]:
    made_by: dict[str, str] = json.loads((PACKED / "sources.json").read_text())
    rows: dict[tuple[str, str, str], list[str]] = {}
    seen = set()
    for path in sorted(PACKED.glob("*.safetensors")):
        tensors = golden_tensors(path.stem)
        _, shape, exact = tensors.pop("exact")
        config = json.loads((PACKED / f"{path.stem}.config.json").read_text())
        with tempfile.TemporaryDirectory() as target:
            write_folder(Path(target), config, tensors)
            file = _core.open_file(target)
            ((made, form, _, _),) = file.tensors
            packing = file.packing(made)
            values = _core.ops.unpack(form, file.read(made)).reshape(-1, shape[1])
        assert packing is not None, path
        how, why = packing
        step = 1 if len(values) == shape[0] else 3  # goldens of 32 rows have every third one
        assert np.array_equal(values[::step], np.frombuffer(exact, np.float32).reshape(shape)), f"{path}: other weights"
        seen.add(how.partition(",")[0])
        label = packed_label(how, config, tensors)
        if "floats of 8 bits" in how and form not in WIDE:
            label += ", columns no multiple of 128"
        if form == "A4":
            label += ", groups of 128 columns or a multiple"
        rows.setdefault((label, ASKED if why else form, why), []).append(made_by[path.stem])
    assert seen == set(schemes()), "every scheme has goldens"
    lines = []
    for (label, form, why), packages in sorted(rows.items(), key=lambda row: row[0][0].lower()):
        lines.append(f"| {label} | {sources_of(packages)} | {cells(form, f'no: {why}' if why else 'yes')}")
    return lines


def sources_of(packages: list[str]) -> str:
    return ", ".join(package + (f" ({n})" if (n := packages.count(package)) > 1 else "") for package in dict.fromkeys(packages))


def write_folder(target: Path, config: dict[str, Any], tensors: dict[str, tuple[str, list[int], bytes]]) -> None:
    header, data = {}, b""
    for name, (dtype, shape, raw) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header).encode()
    (target / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + data)
    (target / "config.json").write_text(json.dumps(config))


# ---------------------------------------------------------------- GGUF
class GgufType(NamedTuple):
    id: int
    name: str
    block: int  # weights
    size: int  # bytes
    becomes: str  # the format in memory; "" if the type is refused


@cache
def gguf_types() -> list[GgufType]:
    """Returns all types of GGUF files, by id."""
    own = (ROOT / "cpp" / "core" / "formats.def").read_text()
    found = [
        GgufType(int(number), name, int(block), int(size), name)
        for name, number, block, size in re.findall(r"^PUMICE_FORMAT\((\w+), *(\d+), *(\d+), *(\d+),", own, re.MULTILINE)
    ]
    others = (ROOT / "cpp" / "files" / "gguf_formats.cpp").read_text()
    found += [
        GgufType(int(number), name, int(block), int(size), becomes)
        for number, name, block, size, becomes in re.findall(
            r'^    {(\d+), "(\w+)", (\d+), (\d+), (?:{}|Format::(\w+), \S+)},', others, re.MULTILINE
        )
    ]
    return sorted(found)


def gguf_weights(kind: GgufType, packed: bytes) -> Any:
    with tempfile.TemporaryDirectory() as target:
        path = Path(target) / "model.gguf"
        random_gguf.write(path, {"general.architecture": "llama"}, {"w": Packed(kind.id, (len(packed) // kind.size * kind.block,), packed)})
        return _core.ops.unpack(kind.becomes, _core.open_file(str(path)).read("w"))


def gguf_rows() -> list[str]:
    cases = {}
    for file in ("formats", "gguf_formats"):
        cases |= {case["format"]: case for case in json.loads((GOLDENS / f"{file}.json").read_text())["cases"]}
    rows = []
    for kind in gguf_types():
        if not kind.becomes:
            continue
        case = cases[kind.name]
        expected = np.frombuffer(bytes.fromhex(case["floats"]), np.float32)
        assert np.array_equal(gguf_weights(kind, bytes.fromhex(case["packed"])), expected), f"{kind.name}: other weights"
        rows.append(f"| {kind.id} | {kind.name} | {8 * kind.size / kind.block:g} | {case['from']} | {cells(kind.becomes, 'yes')}")
    return rows


def text() -> str:
    refused = ", ".join(f"{kind.name} ({kind.id})" for kind in gguf_types() if not kind.becomes)
    lines = [
        HEAD.format(**speeds()),
        "## Packed folders",
        "",
        "| packing | goldens | exact | in memory | bits | decode |",
        "|---|---|---|---|---|---|",
        *packed_rows(),
        "",
        "## GGUF",
        "",
        "| id | type | bits in the file | goldens | exact | in memory | bits | decode |",
        "|---|---|---|---|---|---|---|---|",
        *gguf_rows(),
        "",
        f"Refused by name where a model needs such a tensor: {refused}.",
        "",
    ]
    return "\n".join(lines)
