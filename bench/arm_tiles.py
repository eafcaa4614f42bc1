"""arm_tiles.py BUILD [--mca PROGRAM] [--llama FOLDER]: figures of the ARM kernels by their instructions, without an ARM machine.

BUILD is a build for 64-bit ARM (`make test-arm` makes build/arm). For each tile of the table below, the script finds the loop over blocks
in the compiled function, counts its instructions, and asks llvm-mca (LLVM 19 or later) how many cycles a pass takes on a Neoverse core
whose data all lie in the L1 cache. These figures compare kernels; no time was measured.

FOLDER has the sources of llama.cpp. With it, a second table compares the products of one token with those of llama.cpp for weights that it
repacked, compiled by the same compiler. Everything is counted that a kernel does for a block of the format (Q4_K: 256 columns).

The exit code is 1 if a loop is slower than `least` says, or uses the stack more often than `stack` says.
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

# The cores of llvm-mca, and how many operations they start in a cycle. Without a number, llvm-mca's model of the core says it. By Arm's
# optimisation guides, N1 and V2 start 8.
CORES: dict[str, int | None] = {"neoverse-n1": 8, "neoverse-n2": None, "neoverse-v1": None, "neoverse-v2": 8}

MULTIPLY_ADDS = {"sdot": 16, "smmla": 32, "fmla": 4}  # of one instruction


@dataclass(frozen=True)
class Tile:
    name: str
    file: str
    function: str  # a pattern of its name, in which {Q8_0} stands for the number of that format
    instruction: str  # the one that multiplies weights by activations
    products: int  # how many of its multiply-adds one multiply-add of the result takes
    least: tuple[float | None, ...]  # multiply-adds in a cycle on each of CORES; None: the core does not run it
    stack: int  # accesses of the stack in a pass
    repeats: int = 1  # passes of the loops inside of it


# The least figures are the best that are known: of these loops, or of loops in assembly that were written to find out what is possible. A
# loop may have 3 % less, because those were counted over whole products.
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


# One token, with all that a kernel does for a block of the format. First ours, then llama.cpp's for processors with dot products, and those
# that it prefers for processors that also have i8mm.
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
    """Returns the instructions of one pass of the loop over blocks: the shortest loop with most of the tile's instructions. Branches have
    `.` as their target. Loops inside of it that multiply are repeated; others run seldom (they prefetch) and count once."""
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
    """Returns the cycles of a pass, in the mean of many."""
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
                inner = 4 if ours.repeats > 1 else 1  # passes over two sub-blocks of 32 columns
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
        apple = macs / max(vector / 4, memory / 3, len(loop) / 8)  # M1 to M3: 4 vector instructions, 3 loads and stores, 8 in all
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
