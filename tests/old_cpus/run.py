"""Runs small models with each instruction set of this machine, and on emulated older processors, and compares the results to the bit.

    python tests/old_cpus/run.py [--emulate]

Without --emulate, each instruction set is forced with PUMICE_ISA (3 s on a quiet machine). With it, a Python on an emulated Nehalem
(x86-64-v2, no AVX) and Haswell (AVX2) imports the package and runs the same models, so an instruction that these processors lack ends
it. This takes 15 s and needs Debian's qemu-user-static."""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "tests" / "python" / "support"), str(ROOT / "tests")]

# A model of every kind: dense, experts, recurrent, with a sliding window, with latent attention, with short convolutions, an encoder.
MODELS = ("llama3", "qwen3_moe", "mamba2", "gemma3", "deepseek_v3", "lfm2", "bert")
# Emulated processors -> the instruction set that must be chosen there.
PROCESSORS = {"Nehalem": "scalar", "Haswell": "avx2"}
QUANTIZE = (None, "q8_0", "q4_0")


def child(folder: str) -> None:
    """Prints the instruction set, and a digest of what each model gives."""
    import pumice

    print("isa", pumice.build_info()["isa"])
    for name in MODELS:
        for quantize in QUANTIZE if name == "llama3" else QUANTIZE[:1]:
            with pumice.load(Path(folder) / name, device="cpu", threads=1, quantize=quantize, progress=False) as model:
                digest = hashlib.sha256(model.encode(["w3 w4 w5", "w9"]).tobytes())
                if "generate" in model.info["tasks"]:
                    answer = model.generate([3, 4, 5, 6, 7], max_new_tokens=6, temperature=0, logprobs=2, ignore_eos=True)
                    assert answer.logprobs is not None
                    digest.update(answer.ids.tobytes() + answer.logprobs.tobytes())
                print(name, quantize, digest.hexdigest()[:16], flush=True)


def run(folder: str, command: list[str], isa: str = "") -> dict[str, str]:
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        "PUMICE_VULKAN_LIBRARY": "/none",
        "OMP_NUM_THREADS": "1",
    }
    if isa:
        environment["PUMICE_ISA"] = isa
    done = subprocess.run([*command, sys.executable, __file__, "--child", folder], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, f"{command} {isa}: ended with {done.returncode}: {done.stderr[-2000:]}"
    return dict(line.rsplit(" ", 1) for line in done.stdout.splitlines())


def compare(emulate: bool) -> list[str]:
    """Returns what differs."""
    import random_models

    import pumice

    wrong = []
    with tempfile.TemporaryDirectory() as folder:
        for name in MODELS:
            random_models.make_folder(name, Path(folder))
        wanted = run(folder, [])
        runs = {f"PUMICE_ISA={isa}": (isa, run(folder, [], isa)) for isa in pumice.build_info()["isas"]}
        if emulate:
            emulator = shutil.which("qemu-x86_64-static") or shutil.which("qemu-x86_64")
            if emulator is None:
                return ["not run: there is no qemu-x86_64-static (apt install qemu-user-static)"]
            for processor, isa in PROCESSORS.items():
                runs[processor] = isa, run(folder, [emulator, "-cpu", processor])
        for where, (isa, found) in runs.items():
            print(f"{where}: {found}")
            if found["isa"] != isa:
                wrong.append(f"{where}: the instruction set is {found['isa']}, not {isa}")
            wrong += [
                f"{where}: {model} gives {found[model]}, here {digest}"
                for model, digest in wanted.items()
                if model != "isa" and found[model] != digest
            ]
    return wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--emulate", action="store_true")
    parser.add_argument("--child", metavar="FOLDER", help="this process runs the models of a folder")
    given = parser.parse_args()
    if given.child:
        child(given.child)
        return 0
    wrong = compare(given.emulate)
    print(*wrong, sep="\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
