"""Ends interpreters at random moments, while daemon threads and event loops are in public calls and streams are open.

    python tests/python/support/endings.py [--processes 200] [--seed 0] [--at-once 2]

Each process must end with the code that was asked for, print nothing on stderr, and not hang. One process of FRESH is a fresh interpreter.
The others are forks of one that has imported all modules, which takes two thirds of the time of a fresh one; they load their models and end
in the same way. A seed makes the same programs again; --show N prints the program of process N."""

from __future__ import annotations

import argparse
import os
import random
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import paths

sys.path[:0] = [str(paths.ROOT / "examples"), str(paths.TESTS)]

from small_files import encoder_folder, gguf_file, gguf_keys  # noqa: E402

import pumice  # noqa: E402

SECONDS = 300  # a process takes 0.4 s on a quiet machine; one that takes this long hangs
FRESH = 4

# A fresh interpreter that has imported what the programs import. For each line of its input, which is a folder, it forks a child that runs
# the program in the folder at the top level of __main__, as a script. So the child ends as a script does. Prints the child's exit status.
STEM = """
import asyncio, atexit, os, sys, threading, time
import numpy, tokenizers, pumice, pumice.model.model, pumice.model.load, pumice.tokens.tokenizer_files, pumice.gguf.quantization
import pumice.event_loops.async_calls, pumice.event_loops.streams, pumice.event_loops.workers, pumice.generate.grammar
print(flush=True)
while folder := sys.stdin.readline().strip():
    child = os.fork()
    if child == 0:
        os.dup2(os.open(f"{folder}/out", os.O_WRONLY | os.O_CREAT), 1)
        os.dup2(os.open(f"{folder}/err", os.O_WRONLY | os.O_CREAT), 2)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        break
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
else:
    os._exit(0)
exec(open(f"{folder}/program").read())
"""

HEAD = """
import atexit, os, sys, threading, time
os.sched_setaffinity(0, {cores})
import pumice
m = pumice.load({decoder!r}, device="cpu", threads={threads}, progress=False)
e = pumice.load({encoder!r}, device="cpu", threads={threads}, progress=False)
begun = []
def forever(work):
    def run():
        while True:
            work()
            begun.append(1)
    threading.Thread(target=run, daemon=True).start()
def loop(work):
    def run():
        import asyncio
        async def main():
            while True:
                await asyncio.gather(*(work() for _ in range(3)))
                begun.append(1)
        asyncio.run(main())
    threading.Thread(target=run, daemon=True).start()
async def chunks():
    async for _ in m.astream("a b", max_new_tokens=20):
        pass
def leave(code):
    raise SystemExit(code)
def call(work):
    print(type(work()).__name__, flush=True)
"""

# What daemon threads do.
WORKS = [
    'm.generate("a b c", max_new_tokens=30)', 'list(m.stream("a b", max_new_tokens=30))', 'next(m.stream("a b", max_new_tokens=30))',
    'm.generate([[3, 4], [5]], max_new_tokens=9, n=2)', 'm.score("a b c ab")', "m.logits([3, 4, 5])", 'm.chat("a b", max_new_tokens=9)',
    'm.perplexity("a b c d e f g", progress=False)', "m.hidden_states([3, 4, 5])", "m.attentions([3, 4, 5])", 'm.tokenize("a b " * 500)',
    'm.detokenize([3, 4, 5] * 50)', 'e.encode("w1 w2")', 'e.encode(["w1 w2 w3"] * 200)', 'e.encode("w%d" % i for i in range(2000))',
    'e.predict([("w1", "w2")] * 5)', 'e.search(e.encode(["w1"]), e.encode(["w2", "w3"]))', 'e.encode(["w1"] * 99, output="tokens")',
    "pumice.load({decoder!r}, device='cpu', threads=1, progress=lambda *_: sum(range(999))).close()",
    "pumice.load({encoder!r}, device='cpu', threads=2)",
    "pumice.plan({decoder!r}, device='cpu')",
    "pumice.quantize({decoder!r}, {output!r} + f'{threading.get_ident()}.gguf', to='q8_0', force=True, progress=False)",
    'pumice.Grammar.choices(["a", "b"])', 'm.generate("a", grammar=pumice.Grammar.regex("[ab]+"), max_new_tokens=5)',
    "repr(m.stats()) + str(m.summary())",
    "m.save_prefix({output!r} + str(threading.get_ident()), [3, 4, 5])", 'pumice.search([[1.0, 2]], [[1.0, 2]] * 999)',
    'm.generate("a b", max_new_tokens=9, logits_processor=lambda ids, logits: None)', 'm.encode(["a b"] * 9)',
]  # fmt: skip
LOOPS = [
    'm.agenerate("a b c", max_new_tokens=20)', 'e.aencode("w1 w2")', 'e.aencode(["w1 w2"] * 200)', "chunks()",
    'm.achat("a", max_new_tokens=5)',
    'm.ascore("a b c")', 'e.apredict([("w1", "w2")])', "pumice.aload({encoder!r}, device='cpu', threads=1, progress=False)",
]  # fmt: skip
OPEN = [
    "", "", "", 's = m.stream("a b", max_new_tokens=99); next(s)', 's = m.stream("a b", max_new_tokens=99)',
    's = m.astream("a b", max_new_tokens=99)',
    "m.close()", "del m", "c = m.agenerate('a'); c.close()", "t = threading.local(); t.m = m; m.itself = m",
]  # fmt: skip
AT_EXIT = [
    "", "", "", 'atexit.register(call, lambda: m.generate("a b", max_new_tokens=3))', 'atexit.register(call, lambda: e.encode("w1"))',
    'atexit.register(call, lambda: list(m.stream("a b", max_new_tokens=3)))', "atexit.register(m.close)",
]  # fmt: skip
# How a process ends -> the code that it must have.
ENDS = {
    "": 0, "sys.exit(3)": 3, "leave(4)": 4, "os._exit(5)": 5, "os._exit(0)": 0,
    'm.generate("a b", max_new_tokens=9, logits_processor=lambda *_: sys.exit(6))': 6,
    "pumice.load({encoder!r}, device='cpu', progress=lambda *_: sys.exit(7))": 7,
    'e.encode(iter(lambda: sys.exit(8), None))': 8, "import _thread; _thread.interrupt_main(); time.sleep(5)": 130,
}  # fmt: skip


class Program:
    def __init__(self, seed: int, folder: Path) -> None:
        self.seed, rng = seed, random.Random(seed)
        cores = sorted(os.sched_getaffinity(0))
        cores = cores[: rng.choice([1, 2, len(cores)])]
        names = {"decoder": str(folder / "decoder.gguf"), "encoder": str(folder / "encoder"), "output": str(folder / f"out-{seed}.gguf")}
        works = [f"forever(lambda: {rng.choice(WORKS)})" for _ in range(rng.choice([0, 1, 2, 4]))]
        loops = [f"loop(lambda: {rng.choice(LOOPS)})" for _ in range(rng.choice([0, 0, 1, 2]))]
        opened, at_exit, (end, self.code) = rng.choice(OPEN), rng.choice(AT_EXIT), rng.choice(list(ENDS.items()))
        if opened in ("m.close()", "del m"):  # the threads then get a ValueError or NameError, whose traceback is right
            works, loops, at_exit, end, self.code = [], [], "", "sys.exit(2)", 2
        wait = "while not begun: time.sleep(0.001)" if works + loops and rng.random() < 0.7 else ""
        self.out = ("Generation\n" if "generate" in at_exit else "ndarray\n" if "encode" in at_exit else "list\n") * (
            "call" in at_exit and "_exit(" not in end
        )
        if "m.close" in at_exit:  # daemon threads would see a closed model
            works, loops = [], []
            wait = ""
        lines = [
            *works,
            *loops,
            wait,
            opened,
            at_exit,
            f"time.sleep({rng.choice([0, rng.uniform(0, 0.02), rng.uniform(0, 0.06)]):.4f})",
            end,
        ]
        head = HEAD.replace("{cores}", str(cores)).replace("{threads}", str(rng.choice([1, 2, 4])))
        self.text = head + "\n".join(filter(None, lines))
        for name, value in names.items():
            self.text = self.text.replace(f"{{{name}!r}}", repr(value))

    def run(self, stem: Stem) -> str:
        """Returns what is wrong, or ""."""
        try:
            code, out, err = fresh(self.text) if self.seed % FRESH == 0 else stem.run(self.text)
        except TimeoutError as late:
            return f"no end after {SECONDS} s: {late}"
        # After Ctrl-C, Python prints the traceback of KeyboardInterrupt and ends itself with SIGINT, or with 1 where SIGINT was ignored.
        if self.code == 130:
            code, err = (130, "") if code in (1, -2) and err.endswith("KeyboardInterrupt\n") else (code, err)
        return (
            ""
            if (code, err, out) == (self.code, "", self.out)
            else f"code {code}, not {self.code}; stdout {out!r}, not {self.out!r}; stderr {err[-1500:]!r}"
        )


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(pumice.__file__).parents[1]), os.environ.get("PYTHONPATH", "")])}


def fresh(text: str) -> tuple[int, str, str]:
    """Runs a program in a fresh interpreter. Returns its exit code, and what it wrote to stdout and stderr. Raises TimeoutError."""
    try:
        done = subprocess.run([sys.executable, "-c", text], env=environment(), capture_output=True, text=True, timeout=SECONDS)
    except subprocess.TimeoutExpired as late:
        raise TimeoutError(f"{late.stdout!r} {late.stderr!r}") from None
    return done.returncode, done.stdout, done.stderr


class Stem:
    """An interpreter whose forks run programs, one after another (STEM). The first program starts it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        self.process: subprocess.Popen[str] | None = None

    def _answer(self) -> str:
        assert self.process is not None and self.process.stdout is not None
        if not select.select([self.process.stdout], [], [], SECONDS)[0]:
            self.end()
            raise TimeoutError(f"{(self.folder / 'out').read_text()!r} {(self.folder / 'err').read_text()!r}")
        if not (line := self.process.stdout.readline()):
            self.end()
            raise RuntimeError("the interpreter that forks the others has ended")
        return line

    def run(self, text: str) -> tuple[int, str, str]:
        """Runs a program. Returns its exit code, and what it wrote to stdout and stderr. Raises TimeoutError."""
        for name in ("out", "err"):
            (self.folder / name).write_text("")
        (self.folder / "program").write_text(text)
        if self.process is None:
            # In a group of its own, so that a child that hangs is killed with it. From 3.12 on, Python warns of forks beside threads.
            command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", STEM]
            pipe = subprocess.PIPE
            self.process = subprocess.Popen(command, env=environment(), stdin=pipe, stdout=pipe, text=True, start_new_session=True)
            self._answer()
        assert self.process is not None and self.process.stdin is not None
        self.process.stdin.write(f"{self.folder}\n")
        self.process.stdin.flush()
        return int(self._answer()), (self.folder / "out").read_text(), (self.folder / "err").read_text()

    def end(self) -> None:
        """Ends the interpreter, and its child if that hangs."""
        if self.process is not None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.communicate()
            self.process = None


def make_models(folder: Path) -> None:
    encoder_folder(folder).rename(folder / "encoder")
    (folder / "decoder.gguf").write_bytes(gguf_file(gguf_keys("gpt2")))


def endings(processes: int, seed: int, at_once: int) -> list[str]:
    """Runs programs. Returns those that ended wrongly, with what was wrong."""
    wrong: list[str] = []
    ran = 0
    numbers = iter(range(seed * 1_000_000, seed * 1_000_000 + processes))
    lock = threading.Lock()
    with tempfile.TemporaryDirectory() as name:
        make_models(Path(name))

        def work(stem: Stem) -> None:
            nonlocal ran
            while True:
                with lock:
                    number = next(numbers, None)
                if number is None:
                    return stem.end()
                program = Program(number, Path(name))
                try:
                    found = program.run(stem)
                except (OSError, RuntimeError, ValueError) as error:  # the stem ended, and not the program
                    found = repr(error)
                    stem.end()
                with lock:
                    ran += 1
                    if found:
                        wrong.append(f"--show {number}: {found}\n{program.text.rpartition('flush=True)')[2]}")

        threads = [threading.Thread(target=work, args=(Stem(Path(name) / f"stem {i}"),)) for i in range(at_once)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert ran == processes
    return wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--at-once", type=int, default=2)
    parser.add_argument("--show", type=int, help="the number of a process, whose program is printed and not run")
    given = parser.parse_args()
    if given.show is not None:
        print(Program(given.show, Path(".")).text)
        return 0
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it, and so would each process
    begin = time.monotonic()
    wrong = endings(given.processes, given.seed, given.at_once)
    print(f"{given.processes} processes in {time.monotonic() - begin:.0f} s, {len(wrong)} ended wrongly")
    for each in wrong[:30]:
        print(each)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
