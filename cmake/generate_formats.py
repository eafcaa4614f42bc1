"""Writes the shaders' switches over weight formats: generate_formats.py formats.def formats.glsl.

Each switch names one function or constant per format of cpp/core/formats.def, so a format that shaders/layout.h or shaders/weights.glsl
does not know fails to compile. The output is touched only when it changes.
"""

import re
import sys
from pathlib import Path


def switch(head: str, cases: list[tuple[str, str]], tail: str = "") -> str:
    lines = "".join(f"    case FORMAT_{name}: {action}\n" for name, action in cases)
    return f"{head} {{\n  switch (format) {{\n{lines}  }}\n{tail}}}\n"


def generate(definitions: str) -> str:
    formats = re.findall(r"^PUMICE_FORMAT\((\w+),.*,\s*(true|false)\)$", definitions, re.MULTILINE)
    if not formats:
        raise SystemExit("generate_formats.py: no PUMICE_FORMAT(...) in the list of formats")
    names = [name for name, _ in formats]
    quantised = [name for name, flag in formats if flag == "true"]
    plain = [name for name, flag in formats if flag == "false"]
    parts = ["// Made from cpp/core/formats.def by cmake/generate_formats.py.\n"]
    parts += [f"#define FORMAT_{name} {i}u\n" for i, name in enumerate(names)]
    for function, constant in [
        ("code_kind", "Code"),
        ("codes_per_word", "Codes"),
        ("high_per_word", "High"),
        ("scales_per_word", "Scales"),
        ("supers_per_word", "Supers"),
    ]:
        parts.append(switch(f"uint {function}(uint format)", [(n, f"return k{constant}_{n};") for n in names], "  return 0;\n"))
    parts.append(
        switch(
            "uvec4 codes_of(uint format, Row row, uint k)", [(n, f"return codes_{n}(row, k);") for n in quantised], "  return uvec4(0);\n"
        )
    )
    parts.append(
        switch("vec2 scale_of(uint format, Row row, uint k)", [(n, f"return scale_{n}(row, k);") for n in quantised], "  return vec2(0);\n")
    )
    parts.append(
        switch(
            "void floats_of(uint format, Row row, uint k, out vec4 w[4])",
            [(n, f"floats_{n}(row, k, w); return;") for n in plain],
            "  for (uint i = 0; i < 4; ++i) w[i] = vec4(0);\n",
        )
    )
    parts.append(
        switch("float float_of(uint format, Row row, uint k)", [(n, f"return float_{n}(row, k);") for n in plain], "  return 0;\n")
    )
    return "".join(parts)


def main() -> None:
    source, target = Path(sys.argv[1]), Path(sys.argv[2])
    text = generate(source.read_text())
    if not target.exists() or target.read_text() != text:
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)


if __name__ == "__main__":
    main()
