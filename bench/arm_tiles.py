"""arm_tiles.py BUILD [--mca PROGRAM]: figures of the ARM kernels by their instructions, without an ARM machine.

BUILD is a build for 64-bit ARM (`make test-arm` makes build/arm). For each tile of the table below, the script finds the loop over blocks
in the compiled function, counts its instructions, and asks llvm-mca (LLVM 19 or later) how many cycles a pass takes on a Neoverse core
whose data all lie in the L1 cache. These figures compare kernels; no time was measured.

The exit code is 1 if a loop is slower than `least` says, or uses the stack more often than `stack` says.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

OBJECTS = "cpp/cpu/CMakeFiles/pumice_cpu.dir/isa"

# The cores of llvm-mca, and how many operations they start in a cycle. Without a number, llvm-mca's model of the core says it. By Arm's
# optimisation guides, N1 and V2 start 8.
CORES: dict[str, int | None] = {"neoverse-n1": 8, "neoverse-n2": None, "neoverse-v1": None, "neoverse-v2": 8}

MULTIPLY_ADDS = {"sdot": 16, "smmla": 32, "fmla": 4}  # of one instruction


@dataclass(frozen=True)
class Tile:
    name: str
    file: str
    function: str  # a pattern of its name
    instruction: str  # the one that multiplies weights by activations
    products: int  # how many of its multiply-adds one multiply-add of the result takes
    least: tuple[float | None, ...]  # multiply-adds in a cycle on each of CORES; None: the core does not run it
    stack: int  # accesses of the stack in a pass
    repeats: int = 1  # passes of the loops inside of it


# The least figures are those of loops that were written in assembly to find out what is possible. A loop may have 3 % less, because they
# were counted over whole products.
TILES = (
    Tile("Q8_0, SDOT, 4 tokens", "matrix_legacy_neon_dot", r"Quantized512<.*\)7>::tile_of<4>", "sdot", 1, (19.4, 21.2, 42.2, 42.2), 15),
    Tile("Q4_K, SDOT, 4", "matrix_k_neon_dot", r"Quantized512<.*\)10>::tile_of<4>", "sdot", 1, (16.8, 18.7, 37.3, 37.2), 22),
    Tile("fixed point, SDOT, 4", "matrix_fixed_neon_dot", r"tile_of<.*OfFloats, 4>", "sdot", 3, (8.2, 8.4, 16.8, 16.7), 40, 4),
    Tile("F32, FMLA, 6", "matrix_float_neon_dot", r"tile<.*\)0, 1, 6, false>", "fmla", 1, (7.9, 8.0, 15.9, 15.9), 0),
    Tile("Q8_0, SDOT, 1", "matrix_legacy_neon_dot", r"Quantized512<.*\)7>::few_tokens<1>", "sdot", 1, (16, 16, 32, 32), 0),
    Tile("Q4_K, SDOT, 1", "matrix_k_neon_dot", r"Quantized512<.*\)10>::few_tokens<1>", "sdot", 1, (8.7, 8.8, 16, 18), 0),
    Tile("F16, FMLA, 1", "matrix_float_neon_dot", r"tile<.*\)1, \d, 1, ", "fmla", 1, (2, 2, 4, 4), 0),
    Tile("BF16, FMLA, 1", "matrix_float_neon_dot", r"tile<.*\)2, \d, 1, ", "fmla", 1, (4, 4, 8, 8), 0),
    Tile("Q8_0, SMMLA, 6", "matrix_legacy_neon_i8mm", r"QuantizedI8mm<.*\)[357]>::tile_of<3>", "smmla", 1, (None, 31.8, 63.2, 63.2), 36),
    Tile("Q4_K, SMMLA, 6", "matrix_k_neon_i8mm", r"QuantizedI8mm<.*\)10>::tile_of<3>", "smmla", 1, (None, 26.4, 52.9, 52.6), 35),
    Tile("fixed point, SMMLA, 6", "matrix_fixed_neon_i8mm", r"tile_of<.*OfFloats, 3>", "smmla", 3, (None, 13.8, 27.8, 27.4), 102, 4),
)


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
    for part in re.split(r"\n(?=[0-9a-f]+ <)", listing):
        if not re.search(tile.function, part.split("\n", 1)[0]):
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
        sys.exit(f"{file} has no loop in a function {tile.function}")
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


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("build", type=Path)
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
    if below:
        sys.exit("\n".join(below))


if __name__ == "__main__":
    main()
