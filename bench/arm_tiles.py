"""arm_tiles.py BUILD [--mca PROGRAM] [--llama FOLDER]: rates the ARM kernels by their instructions, without an ARM machine.

BUILD is a build for 64-bit ARM (`make test-arm` makes build/arm). For each tile of TILES, the script finds the loop over blocks in the
compiled function and counts its instructions. Then llvm-mca (LLVM 19 or later) estimates how many cycles one pass of the loop takes on each
Neoverse core of CORES if all data are in the L1 cache. These figures compare kernels; no time is measured.

FOLDER has the sources of llama.cpp. If it is given, a second table compares the products of one token with those of llama.cpp for repacked
weights, compiled by the same compiler. The table counts all instructions that a kernel needs for a block of the format (Q4_K: 256 columns).

The exit code is 1 if a loop is slower than its `least`, or accesses the stack more often than its `stack`.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

FORMATS = re.findall(r"^PUMICE_FORMAT\((\w+)", (Path(__file__).parents[1] / "cpp/core/formats.def").read_text(), re.MULTILINE)
OBJECTS = "cpp/cpu/CMakeFiles/pumice_cpu.dir/isa"

# Each core that llvm-mca simulates, and the number of operations that it starts in a cycle. If the number is None, llvm-mca uses its own
# number. N1 and V2 start 8 by Arm's optimisation guides.
CORES: dict[str, int | None] = {"neoverse-n1": 8, "neoverse-n2": None, "neoverse-v1": None, "neoverse-v2": 8}

MULTIPLY_ADDS = {"sdot": 16, "smmla": 32, "fmla": 4}  # number of multiply-adds of one instruction


@dataclass(frozen=True)
class Tile:
    name: str
    file: str
    function: str  # regular expression for the function's name, in which {Q8_0} stands for that format's number
    instruction: str  # the instruction that multiplies weights by activations
    products: int  # number of the instruction's multiply-adds that one multiply-add of the result needs
    least: tuple[float | None, ...]  # least multiply-adds per cycle on each of CORES; None if the core lacks the instruction
    stack: int  # maximum number of stack accesses in one pass
    repeats: int = 1  # number of passes of each inner loop that multiplies, per pass of the loop over blocks


# The numbers of `least` are the best known: of these loops, or of loops in assembly that were written to find out what is possible. A loop
# may be 3 % slower than its number, because the numbers were counted over whole products.
TILES = (
    Tile(
        "Q8_0, SDOT, 4 tokens", "matrix_legacy_neon_dot", r"Quantized512<.*\){Q8_0}>::tile_of<4>", "sdot", 1, (21.5, 21.9, 44.2, 43.5), 15
    ),
    Tile("Q4_K, SDOT, 4", "matrix_k_neon_dot", r"Quantized512<.*\){Q4_K}>::tile_of<4>", "sdot", 1, (20.9, 21.4, 43.5, 42.6), 22),
    Tile("fixed point, SDOT, 4", "matrix_fixed_neon_dot", r"tile_of<.*OfFloats, 4>", "sdot", 3, (8.6, 8.9, 17.8, 17.8), 17, 4),
    Tile("F32, FMLA, 6", "matrix_float_neon_dot", r"tile<.*\){F32}, 1, 6, false>", "fmla", 1, (7.9, 8.0, 15.9, 15.9), 0),
    Tile("Q8_0, SDOT, 1", "matrix_legacy_neon_dot", r"Quantized512<.*\){Q8_0}>::few_tokens<1>", "sdot", 1, (17.6, 17.6, 32, 32), 0),
    Tile("Q4_K, SDOT, 1", "matrix_k_neon_dot", r"Quantized512<.*\){Q4_K}>::few_tokens<1>", "sdot", 1, (9.7, 9.7, 19.2, 19.2), 0),
    Tile("F16, FMLA, 1", "matrix_float_neon_dot", r"tile<.*\){F16}, \d, 1, ", "fmla", 1, (2, 2, 4, 4), 0),
    Tile("BF16, FMLA, 1", "matrix_float_neon_dot", r"tile<.*\){BF16}, \d, 1, ", "fmla", 1, (4, 4, 8, 8), 0),
    Tile(
        "Q8_0, SMMLA, 6",
        "matrix_legacy_neon_i8mm",
        r"QuantizedI8mm<.*\)({A4}|{Q4_0}|{Q5_0}|{Q8_0})>::tile_of<3>",
        "smmla",
        1,
        (None, 31.8, 65.1, 63.1),
        36,
    ),
    Tile("Q4_K, SMMLA, 6", "matrix_k_neon_i8mm", r"QuantizedI8mm<.*\){Q4_K}>::tile_of<3>", "smmla", 1, (None, 31.8, 65.4, 63.0), 35),
    Tile("fixed point, SMMLA, 6", "matrix_fixed_neon_i8mm", r"tile_of<.*OfFloats, 3>", "smmla", 3, (None, 14.6, 28.9, 28.8), 53, 4),
)


# The products of one token, with all instructions that a kernel needs for a block of the format. Each row has our kernel, llama.cpp's
# kernel for processors with dot products, and the kernel that llama.cpp prefers on processors that also have i8mm.
ONE_TOKEN = (
    (Tile("Q4_0", "matrix_legacy_neon_dot", r"Quantized512<.*\){Q4_0}>::few_tokens<1>", "sdot", 1, (), 0), "q4_0_4x4", "q4_0_4x8"),
    (Tile("Q8_0", "matrix_legacy_neon_dot", r"Quantized512<.*\){Q8_0}>::few_tokens<1>", "sdot", 1, (), 0), "q8_0_4x4", "q8_0_4x8"),
    (Tile("Q4_K", "matrix_k_neon_dot", r"Quantized512<.*\){Q4_K}>::few_tokens<1>", "sdot", 1, (), 0, 8), "q4_K_8x4", "q4_K_8x8"),
)
LLAMA_OPTIONS = ("-std=c++17", "-O3", "-DNDEBUG", "-fPIC", "-march=armv8.2-a+dotprod+i8mm")


def loads_or_stores(text: str) -> bool:
    return re.match(r"(ld|st|prf)", text) is not None


def computes_vectors(text: str) -> bool:
    return not loads_or_stores(text) and re.search(r"\b[vqdsh]\d+\b", text) is not None


def one_pass(file: Path, tile: Tile) -> list[str]:
    """Returns the instructions of one pass of the loop over blocks. Of the loops that have most of the tile's instructions, this is the
    shortest. In the result, the target of each branch is `.`. Inner loops that multiply are repeated `tile.repeats` times. The other inner
    loops run seldom (they prefetch), so they count once."""
    command = ["aarch64-linux-gnu-objdump", "-d", "-C", "--no-show-raw-insn", file]
    listing = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found: list[list[str]] = []
    function = re.sub(r"\{([A-Z]\w*)\}", lambda name: str(FORMATS.index(name[1])), tile.function)
    for part in re.split(r"\n(?=[0-9a-f]+ <)", listing):
        if not re.search(function, part.split("\n", 1)[0]):
            continue
        lines = re.findall(r"^\s+([0-9a-f]+):\s+(.*)$", part, re.MULTILINE)
        texts = [re.sub(r"\s*//.*$", "", text.replace("\t", " ")) for _, text in lines]
        multiplies = [text.startswith(f"{tile.instruction} ") for text in texts]
        index = {int(at, 16): i for i, (at, _) in enumerate(lines)}
        loops = []
        for i, text in enumerate(texts):
            target = re.match(r"(?:b|b\.\w+|cbn?z|tbn?z) .*?\b([0-9a-f]+) <", text)
            if target and index.get(int(target[1], 16), i) < i:
                loops.append((index[int(target[1], 16)], i))
        texts = [re.sub(r"\b[0-9a-f]+ <.*>", ".", text) for text in texts]
        for first, last in loops:
            steps, at = [], first
            while at <= last:
                inner = next((end for begin, end in loops if begin == at and end < last and any(multiplies[begin : end + 1])), None)
                inner = None if tile.repeats == 1 else inner
                steps += texts[at : inner + 1] * tile.repeats if inner is not None else [texts[at]]
                at = at + 1 if inner is None else inner + 1
            found.append(steps)
    if not found:
        sys.exit(f"{file} has no loop in a function {function}")
    return max(found, key=lambda steps: (sum(text.startswith(f"{tile.instruction} ") for text in steps), -len(steps)))


def cycles(mca: str, core: str, dispatch: int | None, loop: list[str]) -> float:
    """Returns the mean number of cycles of one pass, over many passes."""
    passes = 32
    command = [mca, "-mtriple=aarch64", f"-mcpu={core}", f"-iterations={passes}", "-all-views=0", "-summary-view"]
    command += [f"-dispatch={dispatch}"] if dispatch else []
    said = subprocess.run(command, input="\n".join(loop) + "\n", capture_output=True, text=True, check=False)
    total = re.search(r"Total Cycles:\s+(\d+)", said.stdout)
    if total is None:
        sys.exit(f"{' '.join(command)} failed: {said.stderr[:2000]}")
    return int(total[1]) / passes


def compare_with_llama(build: Path, llama: Path, mca: str) -> None:
    ggml = llama / "ggml"
    print("\n| one token of | by | instructions for 16 weights | vector | loads, stores | " + " | ".join(CORES) + " |")
    print("|---" * (5 + len(CORES)) + "|")
    with tempfile.TemporaryDirectory() as folder:
        repack = Path(folder) / "repack.o"
        includes = [f"-I{ggml / name}" for name in ("include", "src", "src/ggml-cpu")]
        source = ggml / "src/ggml-cpu/arch/arm/repack.cpp"
        subprocess.run(["aarch64-linux-gnu-g++", *LLAMA_OPTIONS, *includes, "-c", source, "-o", repack], check=True)
        for ours, *theirs in ONE_TOKEN:
            kernels = [("pumice", build / OBJECTS / f"{ours.file}.cpp.o", ours)]
            for name in theirs:
                # number of passes of llama.cpp's inner loop, each of which computes two sub-blocks of 32 columns
                inner = 4 if ours.repeats > 1 else 1
                kernels.append((f"llama.cpp {name}", repack, replace(ours, function=f"<ggml_gemv_{name}_", repeats=inner)))
            for by, file, tile in kernels:
                loop = one_pass(file, tile)
                macs = sum(text.startswith("sdot ") for text in loop) * MULTIPLY_ADDS["sdot"]
                counts = [16 * count / macs for count in (len(loop), sum(map(computes_vectors, loop)), sum(map(loads_or_stores, loop)))]
                rates = [macs / cycles(mca, core, dispatch, loop) for core, dispatch in CORES.items()]
                figures = [f"{x:.2f}" for x in counts] + [f"{x:.1f}" for x in rates]
                print(f"| {ours.name} | {by} | {' | '.join(figures)} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("build", type=Path)
    parser.add_argument("--llama", type=Path, metavar="FOLDER", help="the sources of llama.cpp: compare products of one token")
    parser.add_argument("--mca", default=next(filter(shutil.which, ("llvm-mca-22", "llvm-mca-19", "llvm-mca")), "llvm-mca"))
    arguments = parser.parse_args()
    below = []
    print("| 16 rows by | multiply-adds of a pass | vector instructions | by each | loads, stores | stack |", end="")
    print("".join(f" {core} |" for core in CORES), "Apple, at most |")
    print("|---|" + "---|" * (len(CORES) + 6))
    for tile in TILES:
        loop = one_pass(arguments.build / OBJECTS / f"{tile.file}.cpp.o", tile)
        macs = sum(text.startswith(f"{tile.instruction} ") for text in loop) * MULTIPLY_ADDS[tile.instruction] / tile.products
        vector, memory = sum(map(computes_vectors, loop)), sum(map(loads_or_stores, loop))
        stack = sum(loads_or_stores(text) and "[sp" in text for text in loop)
        rates = {
            core: macs / cycles(arguments.mca, core, dispatch, loop)
            for (core, dispatch), least in zip(CORES.items(), tile.least, strict=True)
            if least is not None
        }
        # M1 to M3 start 4 vector instructions, 3 loads or stores, and 8 instructions in all per cycle
        apple = macs / max(vector / 4, memory / 3, len(loop) / 8)
        shown = [f"{rates[core]:.1f}" if core in rates else "-" for core in CORES]
        print(
            f"| {tile.name} | {macs:.0f} | {vector} | {macs / vector:.1f} | {memory} | {stack} | {' | '.join(shown)} | {apple:.1f} |",
            flush=True,
        )
        slow = [core for core, least in zip(CORES, tile.least, strict=True) if least is not None and rates[core] < 0.97 * least]
        below += [f"{tile.name}: slower on {', '.join(slow)}"] if slow else []
        below += [f"{tile.name}: {stack} accesses of the stack, at most {tile.stack}"] if stack > tile.stack else []
    if arguments.llama:
        compare_with_llama(arguments.build, arguments.llama, arguments.mca)
    if below:
        sys.exit("\n".join(below))


if __name__ == "__main__":
    main()
