"""Tests of pumice.common.exits: the end of the process must wait for threads in `exit_waits` blocks, and must let no new block or thread
begin."""

from __future__ import annotations

import ast
import contextlib
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import samples
import tokenizers
from patience import PATIENCE
from pydantic import BaseModel

import pumice
from pumice.common import exits

PACKAGE = Path(pumice.__file__).parent

HEAD = """
import atexit, os, sys, threading, time
from pumice.common import exits
from pumice.common.exits import exit_waits, start_thread
def say(text):
    os.write(1, text.encode() + b" ")
def begin(work):
    threading.Thread(target=work, daemon=True).start()
"""


def ends(code: str, head: str = HEAD) -> tuple[int, str, str]:
    """Runs Python code in a new process. Returns the exit code, stdout and stderr. Fails if the process does not end: code that must not be
    waited for sleeps for longer."""
    done = subprocess.run([sys.executable, "-c", head + code], capture_output=True, text=True, timeout=PATIENCE)
    return done.returncode, done.stdout, done.stderr


def test_python_ends_after_the_blocks_that_threads_are_in() -> None:
    code, out, err = ends("""
inside = threading.Event()
def work():
    with exit_waits:
        with exit_waits:
            inside.set()
        time.sleep(0.3)
        say("left")
begin(work)
inside.wait()
sys.exit(3)
""")
    assert (code, out, err) == (3, "left ", "")


def test_a_block_that_comes_later_does_not_begin() -> None:
    code, out, err = ends("""
inside = threading.Event()
def first():
    with exit_waits:
        inside.set()
        while exits._ending is None:
            time.sleep(0.01)
        begin(second)
        time.sleep(0.3)
        with exit_waits:  # is in one already
            say("first")
def second():
    with exit_waits:
        say("second")
begin(first)
inside.wait()
""")
    assert (code, out, err) == (0, "first ", "")


def test_functions_of_atexit_may_wait_for_threads() -> None:
    """A function of atexit that was registered before the package was imported runs after the package's own function. It may wait for a
    thread, so that thread must still be able to enter a block."""
    code, out, err = ends(
        """
asked, done = threading.Event(), threading.Event()
def wait():
    asked.set()
    say(str(done.wait(100)))
atexit.register(wait)
"""
        + HEAD
        + """
def work():
    asked.wait()
    with exit_waits:
        done.set()
begin(work)
""",
        head="import atexit, threading\n",
    )
    assert (code, out, err) == (0, "True ", "")


def test_a_long_block_holds_up_the_end_for_a_while() -> None:
    code, out, err = ends("""
exits.MOST_SECONDS = 0.3
def work():
    with exit_waits:
        time.sleep(600)
begin(work)
time.sleep(0.1)
sys.exit(4)
""")
    assert (code, out, err) == (4, "", "")


def test_ctrl_c_ends_the_wait() -> None:
    code, out, err = ends("""
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)
exits.MOST_SECONDS = 600
def work():
    with exit_waits:
        while exits._ending is None:
            time.sleep(0.01)
        time.sleep(0.1)
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(600)
begin(work)
time.sleep(0.1)
sys.exit(5)
""")
    assert (code, out, err) == (5, "", "")


def test_a_thread_that_was_started_runs_before_the_end() -> None:
    """A thread whose start is delayed, as on a busy machine, must run before the interpreter ends."""
    code, out, err = ends("""
import _thread, types
def late(work, arguments):
    _thread.start_new_thread(lambda: (time.sleep(0.3), work(*arguments)), ())
exits._thread = types.SimpleNamespace(start_new_thread=late, get_ident=_thread.get_ident)
start_thread(lambda: say("ran"))
""")
    assert (code, out, err) == (0, "ran ", "")


def test_no_thread_starts_once_python_ends() -> None:
    """The thread that ends Python must do its work itself and must not start a thread, because a new thread would never run."""
    code, out, err = ends("""
from pumice.common.interruptible import Task, interruptible
class Last:
    def __del__(self):
        say(Task(lambda: "task").result() + " " + interruptible(lambda: "call"))
        try:
            start_thread(lambda: None)
        except RuntimeError as error:
            say(str(error))
last = Last()
""")
    assert (code, out, err) == (0, "task call Python ends, and a new thread would never run ", "")


def test_a_program_may_call_the_functions_of_atexit_itself() -> None:
    """A program that calls the functions of atexit itself must be able to go on. The next thread that enters a block is delayed once, but
    not at later blocks."""
    code, out, err = ends("""
exits.MOST_SECONDS = 0.1
def work():
    for _ in range(3):
        with exit_waits:
            say("block")
atexit._run_exitfuncs()
delays, sleep = [], exits._sleep
def delayed(me):
    begun = time.monotonic()
    sleep(me)
    delays.append(time.monotonic() - begun)
exits._sleep = delayed
thread = threading.Thread(target=work)
thread.start()
thread.join()
say(str(len(delays)) + " " + str(delays[0] > 0.5))
""")
    assert (code, out, err) == (0, "block block block 1 True ", "")


def test_functions_of_atexit_that_are_dropped_end_nothing() -> None:
    """If the functions of atexit are dropped without being called, Python must not count as ending. Child processes of multiprocessing drop
    the functions that they inherit from their parent."""
    code, out, err = ends("atexit._clear()\nsay(str(exits._ending))")
    assert (code, out, err) == (0, "None ", "")


def test_the_child_of_a_fork_waits_for_no_thread_of_its_parent() -> None:
    code, out, err = ends("""
exits.MOST_SECONDS = 600
def work():
    with exit_waits:
        time.sleep(600)
begin(work)
time.sleep(0.1)
pid = os.fork()
if pid == 0:
    sys.exit(6)
say(str(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])))
os._exit(0)
""")
    assert (code, out, err) == (0, "6 ", "")


# ---------------------------------------------------------------- calls that must be in a block
def in_a_block(node: ast.AST, parents: dict[ast.AST, ast.AST]) -> bool:
    while node in parents:
        node = parents[node]
        if isinstance(node, ast.With) and any(ast.unparse(item.context_expr) == "exit_waits" for item in node.items):
            return True
    return False


# Calls that start a thread. to_thread() and run_in_executor() do it in asyncio's own code, where no block is; event_loops/workers.py has
# threads for event loops.
STARTERS = ("start_new_thread", "tqdm", "ThreadPoolExecutor", "Timer", "to_thread", "run_in_executor")


def test_threads_start_in_blocks_alone() -> None:
    """Each call in the package that starts a thread must be in an `exit_waits` block. A progress bar of tqdm starts a thread, too."""
    found = []
    for path in sorted(PACKAGE.rglob("*.py")):
        tree = ast.parse(path.read_text())
        parents = {child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)}
        for node in ast.walk(tree):
            if isinstance(node, ast.Call):
                name = ast.unparse(node.func).rpartition(".")[2]
                if name in STARTERS or ast.unparse(node.func) == "thread.start":
                    found.append((path.name, name, in_a_block(node, parents)))
                if name == "Thread":
                    assert ast.unparse(parents[node]).startswith("thread = "), f"{path.name}: as `thread`, which the line above looks for"
    assert {name for name, _, _ in found} >= {"exits.py", "pump.py", "progress.py"}
    assert [each for each in found if not each[2]] == []


# Methods of tokenizers.Tokenizer that must be called in an `exit_waits` block, because they release the GIL or create objects that the
# garbage collector tracks (so that a garbage collection may start, in which the GIL can be released, too).
CALLS = ("encode", "encode_batch", "encode_batch_fast", "decode", "from_str", "from_buffer", "to_str", "add_tokens", "add_special_tokens",
         "get_vocab", "get_added_tokens_decoder")  # fmt: skip


@pytest.fixture(name="outside")
def _outside(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Yields a list of the methods in CALLS that were called outside an `exit_waits` block. After the test, checks that the test called the
    methods that it is meant to cover."""
    found: list[str] = []
    called: set[str] = set()

    def watched(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            called.add(name)
            if threading.get_ident() not in exits._inside:
                found.append(name)
            return function(*arguments, **named)

        return call

    for name in CALLS:
        call = watched(name, getattr(tokenizers.Tokenizer, name))
        monkeypatch.setattr(tokenizers.Tokenizer, name, staticmethod(call) if name.startswith("from_") else call)
    yield found
    assert called >= {"encode", "encode_batch_fast", "decode", "from_str", "from_buffer", "to_str", "add_tokens"}


class Answer(BaseModel):
    text: str


def test_calls_of_tokenizers_are_in_blocks(outside: list[str]) -> None:
    with pumice.load(samples.minilm(), threads=1) as encoder:
        encoder.encode(["stones", "and rivers"])
        encoder.encode(f"text {i}" for i in range(5000))
        encoder.encode("stones " * 20000, truncate=True)
        encoder.detokenize(encoder.tokenize("stones and rivers"))
        encoder.tokenizer.get_vocab_size()
    with pumice.load(samples.smollm2(), threads=1, n_ctx=512) as decoder:
        decoder.generate("One, two,", max_new_tokens=2)
        decoder.chat([{"role": "user", "content": "One <|im_start|> two"}], max_new_tokens=4)
        decoder.chat([{"role": "user", "content": "a"}], max_new_tokens=30, response_format=Answer)
        decoder.score("One, two, three")
        decoder.tokenize("One, two " * 9000)
    assert outside == []


def test_a_block_is_left_by_an_error() -> None:
    with contextlib.suppress(ValueError), exits.exit_waits:
        raise ValueError
    assert threading.get_ident() not in exits._inside
