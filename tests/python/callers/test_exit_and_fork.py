"""While threads are still at work, the interpreter must end without an error, and a forked child must be able to use pumice."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from children import FORK, run
from patience import PATIENCE
from small_files import encoder_folder, gguf_file, gguf_keys

import pumice
from pumice.common.forks import Lock


@pytest.mark.parametrize(
    "work",
    [
        'm.generate("Hi", max_new_tokens=50)',
        'list(m.stream("Hi", max_new_tokens=50))',
        'm.score("One, two, three")',
        'e.encode("a short text")',
        'e.encode(["a b c" * 30] * 500)',
        'e.encode(["a b c" * 30] * 50, show_progress_bar=True)',
        "pumice.load(samples.minilm(), progress=lambda *_: sum(range(10000)))",
    ],
)
def test_the_interpreter_ends_while_daemon_threads_work(work: str) -> None:
    load = "m = pumice.load(samples.smollm2(), n_ctx=512)" if "m." in work.replace("pumice.", "") else "e = pumice.load(samples.minilm())"
    code = f"{load}\nstart(lambda: {work}, threads=2)\ntime.sleep(.4)\n"
    ended = run(code)  # once each: endings.py, which test_endings.py runs, ends hundreds of processes that have smaller models
    assert ended.returncode == 0, ended.stderr[-500:]
    if "progress_bar" not in work:
        assert (ended.stdout, ended.stderr) == ("", "")


# ends(work, times) forks children, each of which calls work(i) and then exits normally, and prints how often each exit code occurred. The
# children need not import anything, because the parent has done so. All run on one CPU, so that the other threads of a child are likely
# to wait for the GIL when the child ends.
ENDS = """
import collections, numpy, pumice.model.model
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
def ends(work, times):
    codes = collections.Counter()
    for i in range(times):
        pid = os.fork()
        if pid == 0:
            work(i)
            sys.exit(0)
        codes[os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])] += 1
    print(dict(codes))
"""


def broken_heads(folder: Path) -> list[Path]:
    """Writes files that have a valid tokenizer and invalid attention heads. Loading such a file fails at once."""
    paths = []
    for name in ("head_count", "head_count_kv", "key_length"):
        paths.append(folder / f"{name}.gguf")
        paths[-1].write_bytes(gguf_file({**gguf_keys("llama"), f"llama.attention.{name}": 0}))
    return paths


def test_a_process_ends_behind_a_load_that_failed(tmp_path: Path) -> None:
    """When the load fails, another thread is still building the tokenizer. The end of Python used to unwind that thread, and one process in
    five ended with SIGABRT."""
    paths = list(map(str, broken_heads(tmp_path)))
    ended = run(
        f"{ENDS}\npaths = {paths}\n"
        """
def load(i):
    try:
        pumice.load(paths[i % 3])
    except pumice.ModelFormatError:
        return
    os._exit(3)
ends(load, 100)
""",
        timeout=400,
    )
    assert (ended.stdout, ended.stderr[-500:]) == ("{0: 100}\n", "")


@pytest.mark.parametrize(
    "work",
    [
        "failing(paths[0])",
        "failing_slowly(paths[1])",
        "core.open_file(folder).metadata()",
        "core.load(core.open_file(folder), core.LoadOptions(device='cpu'), lambda *_: sum(range(3000)))",
        "core.open_file(paths[0]).get('tokenizer.ggml.scores')",
        "model.encode(['a b c' * 30] * 20, show_progress_bar=True)",
        "model.encode(['a b c' * 1000] * 20)",
        "model.tokenize('a b c ' * 20000)",
        "model.encode('%x' % (i % 65536) for i in itertools.count())",
        "model._tokenizer.encode_batch([os.urandom(3).hex() for _ in range(300)])",
    ],
)
def test_a_process_ends_while_threads_of_its_own_are_in_the_engine(tmp_path: Path, work: str) -> None:
    """A process must exit with code 0 even if its threads are at a point where C++ calls Python or takes the GIL back. Python must not
    unwind a thread there."""
    paths = list(map(str, broken_heads(tmp_path)))
    ended = run(
        f"{ENDS}\npaths = {paths}\n"
        f"""
import itertools
from pumice import _core as core
folder = str(samples.minilm())
model = pumice.load(folder, threads=2)
sys.setswitchinterval(1e-5)
def failing(path):
    try:
        pumice.load(path)
    except pumice.ModelFormatError:
        pass
def failing_slowly(path, init=pumice.ModelFormatError.__init__):
    # The error's own constructor runs under the handler of the C++ exception: nothing there may catch the end of the thread.
    pumice.ModelFormatError.__init__ = lambda *args, **given: (sum(range(1000000)), init(*args, **given))[1]
    failing(path)
def begin(i):
    sys.stderr = open(os.devnull, "w")  # progress bars
    start(lambda: {work}, threads=3)
    time.sleep(0.01 + i % 7 * 0.003)
ends(begin, 10)
"""
    )
    assert (ended.stdout, ended.stderr[-500:]) == ("{0: 10}\n", "")


def test_a_process_ends_behind_a_load_that_was_interrupted(tmp_path: Path) -> None:
    """The process must exit with code 0 while threads of the interrupted load still build the tokenizer and pack the weights."""
    ended = run(
        ENDS
        + """
import signal
def interrupted(i):
    signal.signal(signal.SIGALRM, signal.default_int_handler)
    signal.setitimer(signal.ITIMER_REAL, 0.002 + i * 0.002)
    try:
        pumice.load(samples.smollm2() if i % 2 else samples.minilm())
        signal.setitimer(signal.ITIMER_REAL, 0)
    except KeyboardInterrupt:
        pass
ends(interrupted, 40)
"""
    )
    assert (ended.stdout, ended.stderr[-500:]) == ("{0: 40}\n", "")


def test_a_child_encodes_while_a_thread_of_its_parent_did() -> None:
    ended = run(
        FORK
        + """
e = pumice.load(samples.minilm(), threads=2)
big = ["abc def " * 20] * 20
expected = e.encode(big)
start(lambda: e.encode(big))
in_children(lambda: (e.encode(big) == expected).all(), 8)
"""
    )
    assert ended.returncode == 0, (ended.returncode, ended.stdout, ended.stderr[-500:])


def test_a_child_generates_while_threads_of_its_parent_did() -> None:
    """The child must be able to generate even if threads of the parent held the whole KV budget at the fork. The budget has room for two
    sequences."""
    ended = run(
        FORK
        + """
m = pumice.load(samples.smollm2(), n_ctx=512, threads=2, kv_budget=24 << 20)
expected = m.generate("One, two, three,", max_new_tokens=5, temperature=0).text
paused = m.stream("A list of stones:", max_new_tokens=8, temperature=0)
whole = m.generate("A list of stones:", max_new_tokens=8, temperature=0).text
first = next(paused).text
start(lambda: m.generate("One, two, three,", max_new_tokens=60, temperature=0), threads=3)
def work():
    same = all(m.generate("One, two, three,", max_new_tokens=5, temperature=0).text == expected for _ in range(3))
    return same and first + "".join(c.text for c in paused) == whole and m.memory()["kv_used"] <= m.memory()["kv_budget"]
in_children(work, 8)
"""
    )
    assert ended.returncode == 0, (ended.returncode, ended.stdout, ended.stderr[-500:])


# Workers of each kind encode with a model of their parent, which is in use while they start. A DataLoader of torch does what load_data()
# does: its workers read indices from a queue each and put batches into one queue.
WORKERS = """
import importlib.util, multiprocessing, os, sys, threading, time
import numpy as np
import pumice

def begin(given):
    global model
    model = given

def work(text):
    start = time.process_time()
    row = model.encode(text)
    return row, time.process_time() - start

class Rows:  # a dataset that holds the model
    def __init__(self, model):
        self.model = model
    def __len__(self):
        return len(texts)
    def __getitem__(self, i):
        begin(self.model)
        return work(texts[i])

def worker(rows, asked, done):
    while (i := asked.get()) is not None:
        done.put((i, rows[i]))

def load_data(rows, method):
    context = multiprocessing.get_context(method)
    done, asked = context.Queue(), [context.Queue() for _ in range(2)]
    processes = [context.Process(target=worker, args=(rows, each, done), daemon=True) for each in asked]
    for process in processes:
        process.start()
    for i in range(len(rows)):
        asked[i % 2].put(i)
    found = dict(done.get(timeout=60) for _ in range(len(rows)))
    for each in asked:
        each.put(None)
    for process in processes:
        process.join(60)
        assert process.exitcode == 0, process.exitcode
    return [found[i] for i in range(len(rows))]

def data_loader(rows, method):
    if not torch:
        return load_data(rows, method)
    from torch.utils.data import DataLoader
    return list(DataLoader(rows, batch_size=None, num_workers=2, multiprocessing_context=method, collate_fn=list))

def pool(rows, method):
    with multiprocessing.get_context(method).Pool(2, begin, (model,)) as workers:
        return workers.map(work, texts, chunksize=1)

torch = importlib.util.find_spec("torch") is not None
texts = [f"w{i} w3 " * (i + 1) for i in range(8)]
if __name__ == "__main__":
    model = pumice.load(sys.argv[1], device="cpu", threads=2, progress=False)
    wanted = model.encode(texts)
    def forever():
        while True:
            model.encode(texts)
    threading.Thread(target=forever, daemon=True).start()
    for way, call in (("pool", pool), ("DataLoader", data_loader)):
        for method in ("fork", "spawn", "forkserver"):
            rows, seconds = zip(*call(Rows(model), method))
            print(way, method, np.array_equal(np.stack(rows), wanted), max(seconds) < 5, flush=True)
    print("torch" if torch else "without torch", flush=True)
"""


def test_workers_of_every_start_method(tmp_path: Path) -> None:
    """A child must give the bits of its parent within a second (5 s of processor time are allowed), whichever way it was started. Where
    torch is installed (`make test-torch`), its own DataLoader starts the workers."""
    script = tmp_path / "workers.py"
    script.write_text(WORKERS)
    ended = subprocess.run(
        [sys.executable, script, encoder_folder(tmp_path / "model")], capture_output=True, text=True, timeout=5 * PATIENCE
    )
    ways = [f"{way} {method} True True" for way in ("pool", "DataLoader") for method in ("fork", "spawn", "forkserver")]
    *found, torch = ended.stdout.splitlines() or [""]
    assert (ended.returncode, found, ended.stderr) == (0, ways, "")
    print(f"\n  {torch}" + (", whose DataLoader was not run: its workers were started as it does" if torch == "without torch" else ""))
    assert torch == "torch" or not os.environ.get("PUMICE_TEST_TORCH")


def test_a_stream_that_another_thread_was_reading_is_an_error_in_the_child() -> None:
    ended = run(
        FORK
        + """
m = pumice.load(samples.smollm2(), n_ctx=512, threads=1)
stream = m.stream("One, two, three,", max_new_tokens=400, temperature=1, seed=1)
threading.Thread(target=lambda: list(stream), daemon=True).start()
time.sleep(0.3)
def work():
    try:
        next(stream)
    except (pumice.ForkedDeviceError, ValueError, StopIteration):
        pass  # an error, unless the fork came between two chunks
    return bool(m.generate("Stones", max_new_tokens=2, temperature=0).text)
in_children(work, 4)
"""
    )
    assert ended.returncode == 0, (ended.returncode, ended.stdout, ended.stderr[-500:])


def test_a_fork_inside_of_a_progress_function() -> None:
    """After a fork inside a progress function, load() must raise ForkedDeviceError in the child and go on in the parent."""
    ended = run(
        """
seen = []
def fork(done, total):
    if not seen:
        seen.append(os.fork())
try:
    pumice.load(samples.minilm(), progress=fork).encode("a")
except pumice.ForkedDeviceError:
    os._exit(5)
print(os.waitstatus_to_exitcode(os.waitpid(seen[0], 0)[1]) if seen[0] else "the child went on")
"""
    )
    assert (ended.returncode, ended.stdout) == (0, "5\n"), ended.stderr[-500:]


def test_an_error_of_a_progress_function_after_a_fork_inside_of_it() -> None:
    """The child got a ForkedDeviceError for the thread that builds the tokenizer in the parent, and not the function's own error."""
    ended = run(
        """
from pumice.tokens import tokenizer_files
real = tokenizer_files.load_tokenizer
def slow(*given):
    time.sleep(1)
    return real(*given)
tokenizer_files.load_tokenizer = slow
seen = []
def fork(done, total):
    if not seen:
        seen.append(os.fork())
    if seen == [0]:
        raise KeyError("its own")
try:
    pumice.load(samples.minilm(), progress=fork).encode("a")
except KeyError as error:
    os._exit(5 if error.args == ("its own",) else 6)
print(os.waitstatus_to_exitcode(os.waitpid(seen[0], 0)[1]) if seen[0] else "the child went on")
"""
    )
    assert (ended.returncode, ended.stdout) == (0, "5\n"), ended.stderr[-500:]


def test_a_child_closes_a_stream_that_its_parents_event_loop_reads() -> None:
    """aclose() and the deletion of the stream waited for ever if the thread that delivers tokens had the call's lock at the fork."""
    ended = run(
        FORK
        + """
import asyncio
from pumice.generate.generation import Run
m = pumice.load(samples.smollm2(), n_ctx=512, threads=1)
inside, real = threading.Event(), Run.hear
def hear(self, news):
    inside.set()
    time.sleep(1)
    return real(self, news)
Run.hear = hear
async def main():
    stream = await m.astream("Once", max_new_tokens=100, ignore_eos=True).begin()
    inside.wait()
    in_children(lambda: stream._close() is None, 1)
asyncio.run(main())
"""
    )
    assert ended.returncode == 0, (ended.returncode, ended.stdout, ended.stderr[-500:])


@pytest.mark.parametrize("work", ["pool.submit(time.sleep, 1)", "Task(lambda: time.sleep(1))"])
def test_work_of_a_thread_that_is_left_behind_is_an_error_in_the_child(work: str) -> None:
    """In the child of a fork, which a signal handler may have made, one wait had no end, and the other one ended as if all were well."""
    ended = run(
        FORK
        + f"""
from pumice.common.interruptible import Task
from pumice.common.pools import Pool
pool = Pool(1)
left = {work}
def result():
    try:
        left.result()
    except pumice.ForkedDeviceError as error:
        return "call again in the child" in str(error)
in_children(result, 1)
"""
    )
    assert ended.returncode == 0, (ended.returncode, ended.stdout, ended.stderr[-500:])


def test_locks_that_another_thread_held_are_free_in_the_child() -> None:
    """The first grammar of a child waited for ever if the fork came while another thread looked for the package llguidance."""
    ended = run(
        FORK
        + """
import gc
from pumice.common.forks import Lock
m = pumice.load(samples.smollm2(), n_ctx=512, threads=1)
locks = [each for each in gc.get_objects() if isinstance(each, Lock)]
def hold(lock):
    with lock():
        time.sleep(5)
for lock in locks:
    threading.Thread(target=hold, args=(lock,), daemon=True).start()
in_children(lambda: len(locks) >= 6 and all(lock().acquire(timeout=0.1) for lock in locks), 1)
"""
    )
    assert ended.returncode == 0, (ended.returncode, ended.stdout, ended.stderr[-500:])


def test_a_property_that_another_thread_computes_during_a_fork_is_free_in_the_child() -> None:
    """Before Python 3.12 the lock of functools.cached_property stays locked in the child, which waited for it for ever."""
    ended = run(
        FORK
        + """
from pumice.common.forks import cached_property
parent, inside = os.getpid(), threading.Event()
class Slow:
    @cached_property
    def value(self):
        if os.getpid() == parent:
            inside.set()
            time.sleep(5)
        return 7
slow = Slow()
threading.Thread(target=lambda: slow.value, daemon=True).start()
inside.wait(PATIENCE)
in_children(lambda: inside.is_set() and slow.value == 7 and slow.__dict__ == {"value": 7}, 1)
"""
    )
    assert ended.returncode == 0, (ended.returncode, ended.stdout, ended.stderr[-500:])


def test_a_block_that_is_at_work_during_a_fork_ends_in_both_processes() -> None:
    lock = Lock()
    with lock():
        pid = os.fork()
    if pid == 0:
        os._exit(lock().locked())
    assert os.waitpid(pid, 0)[1] == 0 and not lock().locked()


def test_each_lock_is_known_at_a_fork() -> None:
    """The other files make their locks anew in the child, or do not wait for them there."""
    package = Path(pumice.__file__).parent
    sources = {path: path.read_text() for path in package.rglob("*.py")}
    assert not [path for path, source in sources.items() if re.search(r"functools import .*cached_property|@functools\.cached_p", source)]
    made = {path.name for path, source in sources.items() if re.search(r"threading\.R?Lock\(", source)}
    assert made == {"forks.py", "generation.py", "pump.py", "small_encodes.py", "static.py", "workers.py"}
