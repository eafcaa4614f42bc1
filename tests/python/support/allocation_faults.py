"""The Nth allocation of the C++ module fails, for Ns in the life of a model in Python: load, encode, generate with a grammar, stream,
compute logits, save and load a prefix, close.

A process that starts with allocation_faults.cpp in LD_PRELOAD runs this file as a script. Its arguments are an empty folder, the first N
and the stride. It prints each N before it tries it, and what is wrong in lines that begin with "!"."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from pathlib import Path
from typing import Any

SUPPORT = Path(__file__).parent
FOR_GOOD = 1 << 62


def library(folder: Path) -> Path:
    made = folder / "allocation_faults.so"
    command = ["c++", "-std=c++20", "-O1", "-shared", "-fPIC", str(SUPPORT / "allocation_faults.cpp"), "-o", str(made), "-ldl"]
    subprocess.run(command, check=True, capture_output=True)
    return made


def main(scratch: Path, begin: int, stride: int) -> None:
    import small_files

    import pumice

    faults = ctypes.CDLL(None)
    faults.allocation_faults_calls.restype = faults.allocation_faults_failed.restype = ctypes.c_long

    def watch(call: int, count: int) -> None:
        faults.allocation_faults_watch(ctypes.c_long(call), ctypes.c_long(count))

    gguf = scratch / "m.gguf"
    gguf.write_bytes(small_files.gguf_file(small_files.gguf_keys("gpt2")))
    encoder = small_files.encoder_folder(scratch)
    quiet: dict[str, Any] = {"device": "cpu", "progress": False}
    prompt = list(range(3, 28)) * 2

    def life() -> list[Any]:
        with pumice.load(gguf, n_ctx=128, **quiet) as model:
            result: list[Any] = [model.generate("abc", max_new_tokens=6, temperature=0, grammar=pumice.Grammar.regex("[a-f]{4}")).text]
            result.append("".join(chunk.text for chunk in model.stream(prompt, max_new_tokens=4, temperature=0)))
            result.append(model.logits(prompt).tobytes())
            model.save_prefix(scratch / "p", prompt)
            result.append(model.load_prefix(scratch / "p").tolist())
            result.append([r.ids.tolist() for r in model.generate([prompt, prompt[:20]], max_new_tokens=3, temperature=0)])
        with pumice.load(encoder, **quiet) as model:
            result.append(model.encode(["w1 w2", "w3", "w4 w5 w6"]).tobytes())
        return result

    def tried(call: int, count: int) -> tuple[BaseException | None, int]:
        watch(call, count)
        try:
            found = life()
            error = None
        except Exception as raised:
            error, found = raised, None
        watch(-1, 0)
        if error is None and found != expected:
            print(f"! call {call}: other results", flush=True)
        if error is not None and not isinstance(error, MemoryError):
            print(f"! call {call}: {type(error).__name__}: {error}", flush=True)
        return error, int(faults.allocation_faults_failed())

    expected = life()
    watch(FOR_GOOD, 1)
    life()
    calls = int(faults.allocation_faults_calls())
    watch(-1, 0)
    print(f"calls {calls}", flush=True)
    errors = 0
    for number, call in enumerate(range(begin, calls, stride)):
        print(f"call {call}", flush=True)
        error, failed = tried(call, 1 if number % 2 == 0 else 1000)
        errors += error is not None
        if failed and number % 10 == 0 and life() != expected:
            print(f"! after call {call}: other results", flush=True)
    print(f"errors {errors}", flush=True)


if __name__ == "__main__":
    sys.path[:0] = [str(SUPPORT), str(SUPPORT.parents[2] / "examples")]
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
