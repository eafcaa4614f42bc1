"""generate_formats.py LISTS SHADERS: writes the shaders' switch statements over weight formats and activations.

The build calls it as `generate_formats.py cpp/core build/shaders`. It reads formats.def and activations.def in LISTS, and writes
formats.glsl and activate.glsl to SHADERS. An output file that would not change is not touched.

Each switch has one case per format or activation, and each case uses a function or constant with the name of that format or activation. If
shaders/layout.h, shaders/weights.glsl or shaders/activations.glsl lacks one of these functions or constants, the shaders do not compile.
"""

import re
import sys
from pathlib import Path


def switch(head: str, cases: list[tuple[str, str]], tail: str = "", kind: str = "format") -> str:
    lines = "".join(f"    case {kind.upper()}_{name}: {action}\n" for name, action in cases)
    return f"{head} {{\n  switch ({kind}) {{\n{lines}  }}\n{tail}}}\n"


def constants(names: list[str], kind: str) -> list[str]:
    source = f"// Made from cpp/core/{kind}s.def by cmake/generate_formats.py.\n"
    return [source, *(f"#define {kind.upper()}_{name} {i}u\n" for i, name in enumerate(names))]


def format_switches(definitions: str) -> str:
    formats = re.findall(r"^PUMICE_FORMAT\((\w+),.*,\s*(true|false)\)$", definitions, re.MULTILINE)
    if not formats:
        raise SystemExit("generate_formats.py: no PUMICE_FORMAT(...) in the list of formats")
    names = [name for name, _ in formats]
    quantized = [name for name, flag in formats if flag == "true"]
    plain = [name for name, flag in formats if flag == "false"]
    parts = constants(names, "format")
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
            "uvec4 codes_of(uint format, Row row, uint k)", [(n, f"return codes_{n}(row, k);") for n in quantized], "  return uvec4(0);\n"
        )
    )
    parts.append(
        switch("vec2 scale_of(uint format, Row row, uint k)", [(n, f"return scale_{n}(row, k);") for n in quantized], "  return vec2(0);\n")
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


def activation_switch(definitions: str) -> str:
    names = re.findall(r"^PUMICE_ACTIVATION\((\w+)\)", definitions, re.MULTILINE)
    if not names:
        raise SystemExit("generate_formats.py: no PUMICE_ACTIVATION(...) in the list of activations")
    cases = [(name, f"return activate_{name}(x, alphas);") for name in names]
    # The engine never sends a number beyond the list. If it did, a NaN would make the error visible at once; an unchanged x would hide it.
    last = "  return uintBitsToFloat(0x7fc00000u);\n"
    head = "float activate(uint activation, float x, vec2 alphas)"
    return "".join([*constants(names, "activation"), switch(head, cases, last, "activation")])


def main() -> None:
    lists, shaders = Path(sys.argv[1]), Path(sys.argv[2])
    shaders.mkdir(parents=True, exist_ok=True)
    for source, target, generate in [
        (lists / "formats.def", shaders / "formats.glsl", format_switches),
        (lists / "activations.def", shaders / "activate.glsl", activation_switch),
    ]:
        text = generate(source.read_text())
        if not target.exists() or target.read_text() != text:
            target.write_text(text)


if __name__ == "__main__":
    main()
