"""Writes tests/goldens/quantize.json: the formats that llama.cpp's llama-quantize chooses for each matrix of small files
(tests/python/support/quantize_cases.py), for every mix of pumice.quantize().

    python tests/make_quantize_goldens.py

Needs the package and llama-cpp-python."""

from __future__ import annotations

import ctypes
import json
import sys
import tempfile
from pathlib import Path

import llama_cpp

sys.path[:0] = [str(Path(__file__).parent / "python" / "support")]

from quantize_cases import CASES, GOLDEN, short, write  # noqa: E402

from pumice import _core  # noqa: E402
from pumice.gguf.mixes import MIXES  # noqa: E402
from pumice.gguf.packing import PLAIN  # noqa: E402


def formats(source: Path, file_type: int) -> dict[str, str]:
    target = source.with_name("quantized.gguf")
    settings = llama_cpp.llama_model_quantize_default_params()
    settings.ftype, settings.nthread = file_type, 1
    failed = llama_cpp.llama_model_quantize(str(source).encode(), str(target).encode(), ctypes.byref(settings))
    assert failed == 0, f"{source}: llama.cpp does not quantize it"
    return {name: kind for name, kind, _, _ in _core.open_file(str(target)).tensors}


def main() -> None:
    found: dict[str, dict[str, dict[str, str]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, case in CASES.items():
            source = write(case, Path(folder) / f"{name}.gguf")
            found[name] = {to: short(formats(source, mix.file_type)) for to, mix in MIXES.items() if mix.base not in PLAIN}
    cases = []
    for name, mixes in found.items():
        lines = [f"  {json.dumps(to)}: {json.dumps(kinds, separators=(',', ':'))}" for to, kinds in mixes.items()]
        cases.append(f" {json.dumps(name)}: {{\n" + ",\n".join(lines) + "\n }")
    GOLDEN.write_text("{\n" + f' "llama-cpp-python": {json.dumps(llama_cpp.__version__)},\n' + ",\n".join(cases) + "\n}\n")


if __name__ == "__main__":
    main()
