"""agenerate, astream, achat, aencode and arank must give the results of the synchronous methods, in any event loop.

A caller may cancel or close them at any point."""

from __future__ import annotations

import asyncio
import gc
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import samples
import storm
from children import FORK, run
from patience import PATIENCE, Elapsed, Watch, report, until, wait_until
from small_files import gguf_file, gguf_keys

import pumice
from pumice.event_loops import pump, small_encodes, workers
from pumice.event_loops.pump import Call, Pump
from pumice.event_loops.workers import Pools, Workers, in_thread
from pumice.generate.generation import READ_AHEAD, Continuation, Run

TEXTS = [f"text {i} about {'stones ' * (i % 7)}" for i in range(24)]


def together(*calls: Coroutine[Any, Any, Any]) -> list[Any]:
    async def gather() -> list[Any]:
        return list(await asyncio.gather(*calls, return_exceptions=True))

    return asyncio.run(gather())


def wait_until_free(model: pumice.Model) -> None:
    """Waits until the model has no request and holds no page."""

    def has_none() -> bool:
        stats = model.stats()
        return stats["pages_in_use"] == 0 and stats["running"] + stats["waiting"] + stats["lagging"] == 0

    wait_until(has_none)


async def collect(stream: pumice.AsyncStream) -> tuple[str, Any]:
    chunks = [chunk async for chunk in stream]
    return "".join(chunk.text for chunk in chunks), stream.result


# ---------------------------------------------------------------- the same results as the synchronous methods
def test_agenerate(smollm2: pumice.Model) -> None:
    options: list[dict[str, Any]] = [
        {"temperature": 0},
        {"temperature": 0.8, "seed": 3, "n": 2, "logprobs": 2},
        {"temperature": 0, "stop": " the"},
        {"temperature": 0, "priority": 7},
    ]
    prompts: list[Any] = ["One, two, three,", ["Stones", "Rivers"], smollm2.tokenize("Basalt is")]
    cases = [(prompt, {**given, "max_new_tokens": 12}) for prompt in prompts for given in options]
    for (prompt, given), found in zip(cases, together(*(smollm2.agenerate(p, **o) for p, o in cases)), strict=True):
        expected = smollm2.generate(prompt, **given)
        for a, b in zip(found if isinstance(found, list) else [found], expected if isinstance(expected, list) else [expected], strict=True):
            assert (a.text, a.ids.tolist(), a.finish_reason) == (b.text, b.ids.tolist(), b.finish_reason)
            assert a.logprobs is None if b.logprobs is None else np.array_equal(a.logprobs, b.logprobs)
            assert a.params == replace(b.params, seed=a.seed)
    assert together(smollm2.agenerate([])) == [[]]
    wait_until_free(smollm2)


def test_astream(smollm2: pumice.Model) -> None:
    prompts = ["Rivers", "Chalk is", ["Basalt is", "A list:"]]
    given: dict[str, Any] = {"max_new_tokens": 40, "temperature": 0, "stop": ["\n\n"]}
    for prompt, (text, result) in zip(prompts, together(*(collect(smollm2.astream(p, **given)) for p in prompts)), strict=True):
        with smollm2.stream(prompt, **given) as stream:
            chunks = list(stream)
        if isinstance(prompt, str):
            assert text == "".join(chunk.text for chunk in chunks) == stream.result.text == result.text
        else:
            assert [g.text for g in stream.result] == [g.text for g in result]
    wait_until_free(smollm2)


@pytest.mark.parametrize("end", [StopIteration, StopAsyncIteration])
def test_a_callback_cannot_end_what_waits(end: type[Exception], smollm2: pumice.Model) -> None:
    """A Future refuses a StopIteration, and an iterator ends at it as if all had been read. The callers get a RuntimeError."""

    def fails(*_: Any) -> None:
        raise end

    def ends_at_the_third(ids: Any, logits: Any) -> None:
        if len(ids) >= first + 2:
            raise end

    class Bias(Mapping[int, float]):
        __getitem__ = __iter__ = __len__ = fails  # type: ignore[assignment]

    async def reads() -> None:
        async for _ in smollm2.astream("Rivers", logit_bias=Bias()):
            pass

    first = len(smollm2.tokenize("Rivers"))
    said = f"a callback raised {end.__name__}"
    errors = together(asyncio.wait_for(pumice.aload(samples.minilm(), progress=fails), PATIENCE), asyncio.wait_for(reads(), PATIENCE))
    assert [type(error) for error in errors] == [RuntimeError, RuntimeError]
    assert str(errors[0]) == said and str(errors[1]) in (said, f"generator raised {end.__name__}")
    with pytest.raises(RuntimeError, match=said) as caught, smollm2.stream("Rivers", logits_processor=ends_at_the_third) as stream:
        list(stream)
    assert type(caught.value.__cause__) is end
    with pytest.raises(end):
        smollm2.generate("Rivers", logits_processor=ends_at_the_third)


def test_the_result_is_there_when_the_last_chunk_was_read(smollm2: pumice.Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """The event loop must not see the end of a call, while the pump's thread still makes its result."""
    results = Run.results

    def slow(run: Run) -> Any:
        time.sleep(0.5)
        return results(run)

    monkeypatch.setattr(Run, "results", slow)

    async def read_slowly() -> tuple[str, Any]:
        stream, text = smollm2.astream("Rivers", max_new_tokens=4, temperature=0), ""
        async for chunk in stream:
            text += chunk.text
            await asyncio.sleep(0.1)  # the last chunk arrives meanwhile
        return text, stream.result

    text, result = asyncio.run(read_slowly())
    assert result is not None and result.text == text and len(result.ids) == 4


def test_achat(smollm2: pumice.Model) -> None:
    talk = [{"role": "user", "content": "Name a colour."}]

    async def streamed() -> tuple[str, Any]:
        return await collect(await smollm2.achat(talk, stream=True, max_tokens=8, temperature=0))

    plain, dry, (text, result) = together(
        smollm2.achat(talk, max_tokens=8, temperature=0), smollm2.achat(talk, dry_run=True, stream=False), streamed()
    )
    expected = smollm2.chat(talk, max_tokens=8, temperature=0)
    assert plain.message == expected.message == result.message
    assert text == expected.text
    assert dry.prompt == smollm2.chat(talk, dry_run=True).prompt
    wait_until_free(smollm2)


def test_aencode(minilm: pumice.Model) -> None:
    options: list[dict[str, Any]] = [{}, {"normalize": False}, {"truncate_dim": 32}, {"output": "tokens"}, {"token_budget": 50}]
    inputs: list[Any] = [TEXTS[0], TEXTS[:1], TEXTS, [], (t for t in TEXTS[:5])]
    cases = [(given, o) for o in options for given in inputs[:-1]] + [(inputs[-1], {})]
    found = together(*(minilm.aencode(given, **o) for given, o in cases))
    for (given, o), rows in zip(cases, found, strict=True):
        expected = minilm.encode(TEXTS[:5] if not isinstance(given, (list, str)) else given, **o)
        if isinstance(expected, list):
            assert all(np.array_equal(a, b) for a, b in zip(rows, expected, strict=True))
        else:
            assert rows.shape == expected.shape and np.array_equal(rows, expected)


def test_an_error_is_its_callers_alone(minilm: pumice.Model, smollm2: pumice.Model) -> None:
    calls = [minilm.aencode(text if i % 3 else 7) for i, text in enumerate(TEXTS)]
    for i, found in enumerate(together(*calls)):
        assert isinstance(found, np.ndarray) if i % 3 else isinstance(found, TypeError)
    wrong = together(
        smollm2.agenerate("x", temprature=1),
        smollm2.agenerate(np.zeros(9000, np.int32) + 5),
        smollm2.achat("x", stream=1),
        collect(smollm2.astream("x", n=0)),
        smollm2.agenerate("Stones", max_new_tokens=2, temperature=0),
        minilm.agenerate("x"),
        minilm.arank("x", ["y"]),
    )
    kinds = [type(error) for error in wrong]
    assert kinds[:4] == [TypeError, pumice.ContextLengthError, TypeError, ValueError]
    assert wrong[4].ids.size == 2
    assert kinds[5:] == [pumice.UnsupportedTaskError] * 2
    wait_until_free(smollm2)


def test_several_loops_in_several_threads(smollm2: pumice.Model, minilm: pumice.Model) -> None:
    expected = smollm2.generate("Rivers", max_new_tokens=16, temperature=0).text
    vectors = minilm.encode(TEXTS[:4])
    wrong: list[object] = []

    def loop() -> None:
        found = together(
            smollm2.agenerate("Rivers", max_new_tokens=16, temperature=0),
            collect(smollm2.astream("Rivers", max_new_tokens=16, temperature=0)),
            *(minilm.aencode(text) for text in TEXTS[:4]),
        )
        if found[0].text != expected or found[1][0] != expected or not np.array_equal(np.stack(found[2:]), vectors):
            wrong.append(found)

    threads = [threading.Thread(target=loop) for _ in range(6)]
    for thread in threads:
        thread.start()
    assert smollm2.generate("Rivers", max_new_tokens=16, temperature=0).text == expected
    for thread in threads:
        thread.join()
    assert not wrong
    wait_until_free(smollm2)


# ---------------------------------------------------------------- cancelled, closed, slow
def test_cancelled_tasks_give_their_pages_back(smollm2: pumice.Model) -> None:
    expected = smollm2.generate("Rivers", max_new_tokens=60, temperature=0).text
    wait_until_free(smollm2)

    async def main() -> None:
        rng = random.Random(1)
        steady = asyncio.create_task(smollm2.agenerate("Rivers", max_new_tokens=60, temperature=0))
        for i in range(40):
            call: Any = (
                smollm2.agenerate(f"{i} stones", max_new_tokens=4000) if i % 2 else collect(smollm2.astream("A", max_new_tokens=4000))
            )
            task = asyncio.create_task(call)
            await asyncio.sleep(rng.uniform(0, 0.02))
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(smollm2.agenerate("Once", max_new_tokens=4000), 0.05)
        stream = smollm2.astream("Once", max_new_tokens=4000)
        async with stream:
            async for chunk in stream:
                if chunk.ids.size:
                    break
        assert stream.result.finish_reason == "cancelled" and stream.result.ids.size
        async for _ in smollm2.astream("Once", max_new_tokens=4000):
            break  # drops the stream without closing it
        assert (await steady).text == expected

    asyncio.run(main())
    wait_until_free(smollm2)


def test_pages_are_free_within_a_step(smollm2: pumice.Model) -> None:
    async def main() -> list[Elapsed]:
        took = []
        for _ in range(10):
            stream = smollm2.astream("Once upon a time", max_new_tokens=4000, temperature=0)
            for _ in range(5):
                await anext(stream)
            watch = Watch()
            await stream.aclose()
            while smollm2.stats()["pages_in_use"]:
                await asyncio.sleep(0)
            took.append(watch.elapsed())
        return took

    report("closed to free", asyncio.run(main()), 0.1)


def test_a_slow_reader_sits_out(smollm2: pumice.Model) -> None:
    expected = smollm2.generate("Once", max_new_tokens=100, temperature=0).text

    async def main() -> str:
        stream = smollm2.astream("Once", max_new_tokens=100, temperature=0)
        text = (await anext(stream)).text
        await until(lambda: smollm2.stats()["lagging"])
        before = smollm2.stats()["decoded_tokens"]
        await asyncio.sleep(0.2)
        assert smollm2.stats()["decoded_tokens"] == before
        return text + "".join([chunk.text async for chunk in stream])

    assert asyncio.run(main()) == expected


def test_limits(smollm2: pumice.Model) -> None:
    before = smollm2.set_limits()
    assert before == {"running": 256, "waiting": 1024, "step_seconds": 0.1}
    try:
        assert smollm2.set_limits(running=1, waiting=2)["waiting"] == 2
        found = together(*(smollm2.agenerate("Once", max_new_tokens=30, temperature=0) for _ in range(12)))
        refused = [f for f in found if isinstance(f, pumice.OverloadedError)]
        assert 1 <= len(refused) <= 9
        assert "set_limits" in str(refused[0])
        texts = {f.text for f in found if not isinstance(f, Exception)}
        assert texts == {smollm2.generate("Once", max_new_tokens=30, temperature=0).text}
        for name, value in (("running", 0), ("waiting", -1), ("step_seconds", 0), ("step_seconds", float("nan"))):
            with pytest.raises(ValueError, match=name):
                smollm2.set_limits(**{name: value})
    finally:
        smollm2.set_limits(**before)
    wait_until_free(smollm2)


def longest_block(work: Callable[[], Coroutine[Any, Any, Any]]) -> Elapsed:
    """Runs work() in an event loop. Returns the longest time for which the loop could not run another task: because it did something
    itself, or because another thread held the GIL."""

    async def main() -> Elapsed:
        blocks = []
        task = asyncio.create_task(work())
        while not task.done():
            watch = Watch()
            await asyncio.sleep(0)
            blocks.append(watch.elapsed())
        await task
        return Elapsed(max(block.work for block in blocks), max(block.wall for block in blocks))

    return asyncio.run(main())


def test_the_loop_is_not_held_up(smollm2: pumice.Model, minilm: pumice.Model) -> None:
    """Long texts must be tokenised, and templates rendered, in other threads, so that the event loop stays free."""
    long = "stones and rivers " * 4000

    async def work() -> None:
        talk = [{"role": "user", "content": long}]
        await asyncio.gather(
            smollm2.achat(talk, dry_run=True), minilm.aencode([long] * 3, truncate=True), smollm2.agenerate("Once", max_new_tokens=8)
        )

    with pytest.warns(pumice.TruncationWarning):
        report("the loop stood still", [longest_block(work) for _ in range(3)], 0.05)


def test_small_calls_of_aencode_run_together(minilm: pumice.Model) -> None:
    """Small calls that are made together are computed as one. A cancelled call must not affect the others."""
    expected = minilm.encode(TEXTS)

    async def main() -> None:
        tasks = [asyncio.create_task(minilm.aencode(text)) for text in TEXTS]
        await asyncio.sleep(0.005)
        for i in range(0, len(tasks), 5):
            tasks[i].cancel()
        found = await asyncio.gather(*tasks, return_exceptions=True)
        for i, rows in enumerate(found):
            if not isinstance(rows, asyncio.CancelledError):
                assert np.array_equal(rows, expected[i])
            else:
                assert i % 5 == 0

    asyncio.run(main())


def test_a_cancelled_aencode_leaves_the_device(minilm: pumice.Model) -> None:
    expected = minilm.encode(TEXTS)

    async def stopped() -> None:
        before = minilm.stats()["texts"]
        task = asyncio.create_task(minilm.aencode(TEXTS * 1000))
        await until(lambda: minilm.stats()["texts"] > before)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert np.array_equal(minilm.encode(TEXTS), expected)
        assert minilm.stats()["texts"] - before < 1000 * len(TEXTS)

    asyncio.run(stopped())


def test_wrong_calls_beside_others_of_the_same_moment(tmp_path: Path) -> None:
    """Calls that are made together are computed as one. Each wrong call must get only the error that it causes, and each right call its
    vector."""
    with pumice.load(storm.poisonous(tmp_path / "poisonous.gguf", 3e38), device="cpu", threads=2, progress=False) as model:
        words = [model.detokenize([i]) for i in range(6, 29)]
        poison = model.detokenize([storm.POISON])
        long = "".join(words) * 20
        calls: list[Any] = []
        for i, word in enumerate(words):
            if i % 6 == 1:
                calls.append(model.aencode(["a" + word, poison + word]))
            elif i % 6 == 2:
                calls.append(model.aencode(long, truncate="error"))
            elif i % 6 == 3:
                calls.append(model.aencode(word, truncate_dim=10**6))
            elif i % 6 == 4:
                calls.append(model.aencode(long))
            else:
                calls.append(model.aencode(word))
        with pytest.warns(pumice.TruncationWarning):
            found = together(*calls)
        for i, (word, rows) in enumerate(zip(words, found, strict=True)):
            if i % 6 == 1:
                assert isinstance(rows, pumice.NumericError)
                assert "the result of text 1 holds" in str(rows)  # where it begins is looked for in one text of a run
            elif i % 6 == 2:
                assert isinstance(rows, pumice.ContextLengthError)
            elif i % 6 == 3:
                assert isinstance(rows, ValueError)
            elif i % 6 == 4:
                with pytest.warns(pumice.TruncationWarning):
                    assert np.array_equal(rows, model.encode(long))
            else:
                assert np.array_equal(rows, model.encode(word))


def test_small_calls_of_a_model_that_is_closed(tmp_path: Path) -> None:
    model = pumice.load(storm.poisonous(tmp_path / "poisonous.gguf"), device="cpu", threads=2, progress=False)
    expected = model.encode("a")

    async def main() -> list[Any]:
        tasks = [asyncio.create_task(model.aencode("a")) for _ in range(200)]
        await asyncio.sleep(0.002)
        model.close()
        return list(await asyncio.gather(*tasks, model.aencode("a"), return_exceptions=True))

    found = asyncio.run(main())
    assert all(isinstance(rows, ValueError) or np.array_equal(rows, expected) for rows in found)
    assert isinstance(found[-1], ValueError)


# ---------------------------------------------------------------- no loop, and other loops
def test_without_an_asyncio_loop(smollm2: pumice.Model, minilm: pumice.Model) -> None:
    """Without an asyncio event loop, for example under trio, each call must raise EventLoopError."""

    calls = [
        smollm2.agenerate("Stones"),
        smollm2.achat("Hi"),
        smollm2.achat("Hi", dry_run=True),
        smollm2.astream("Stones").__anext__(),
        smollm2.astream("Stones").begin(),
        minilm.aencode("stone"),
        minilm.aencode(TEXTS * 50),
    ]
    for call in calls:
        with pytest.raises(pumice.EventLoopError, match=r"need asyncio.*trio\.to_thread\.run_sync"):
            call.send(None)
    wait_until_free(smollm2)


def test_begin(smollm2: pumice.Model) -> None:
    """begin() must check and start a stream, say how long its prompts are, and leave all chunks to the reader."""
    given: dict[str, Any] = {"max_new_tokens": 12, "temperature": 0}

    async def main() -> None:
        stream = smollm2.astream(["One, two, three,", "Stones"], seed=7, n=2, **given)
        assert stream.prompt_tokens is None and stream.seeds is None
        assert await stream.begin() is stream
        assert stream.prompt_tokens == tuple(len(smollm2.tokenize(text)) for text in ("One, two, three,", "Stones"))
        assert stream.seeds is not None and len(stream.seeds) == 4 and stream.seeds[:2] == stream.seeds[2:]
        assert smollm2.stats()["running"] + smollm2.stats()["waiting"] + smollm2.stats()["lagging"] == 1 and stream.result is None
        assert await stream.begin() is stream
        text, result = await collect(stream)
        assert text and tuple(g.seed for g in result) == stream.seeds
        assert await stream.begin() is stream  # a stream that has ended stays as it is
        talk = await (await smollm2.achat("Hi", stream=True, **given)).begin()
        assert talk.prompt_tokens == (smollm2.chat("Hi", dry_run=True).prompt_tokens,)
        text, result = await collect(talk)
        assert text == result.text == smollm2.chat("Hi", **given).text and talk.seeds == (result.seed,)

    asyncio.run(main())
    wait_until_free(smollm2)


def test_begin_raises_what_the_first_chunk_would(smollm2: pumice.Model) -> None:
    cases: list[tuple[Any, dict[str, Any], type[Exception]]] = [
        (["Stones", 7], {}, TypeError),
        ("Stones", {"top_k": "5"}, TypeError),
        ("Stones", {"temperature": -1}, ValueError),
        ("Stones", {"tempereture": 1}, TypeError),
        ([], {}, ValueError),
        (np.full(smollm2.info["n_ctx"] + 1, 500, np.int32), {}, pumice.ContextLengthError),
        ("Stones", {"logits_processor": lambda ids, row: None}, TypeError),
    ]

    async def main() -> None:
        for prompt, given, kind in cases:
            with pytest.raises(kind) as begun:
                await smollm2.astream(prompt, **given).begin()
            with pytest.raises(kind) as read:
                await smollm2.astream(prompt, **given).__anext__()
            assert str(begun.value) == str(read.value) and type(begun.value) is type(read.value)
        with pytest.raises(ValueError, match="message 0"):
            await (await smollm2.achat([{"role": "user"}], stream=True)).begin()

    asyncio.run(main())
    old = smollm2.set_limits()
    smollm2.set_limits(running=1, waiting=0)

    async def full() -> None:
        first = await smollm2.astream("Stones", max_new_tokens=500, ignore_eos=True).begin()
        with pytest.raises(pumice.OverloadedError):
            await smollm2.astream("Rivers").begin()
        await first.aclose()

    try:
        asyncio.run(full())
    finally:
        smollm2.set_limits(**old)
    wait_until_free(smollm2)


def test_begin_that_is_cancelled_or_closed(smollm2: pumice.Model) -> None:
    """A cancelled begin() must close its stream, wherever the cancellation hits. The rules of loops and readers are those of chunks."""
    prompt = "Stones. " * 2000

    async def main() -> None:
        for delay in (0.0, 0.0005, 0.002, 0.01):
            stream = smollm2.astream(prompt[: smollm2.info["n_ctx"]], max_new_tokens=500, ignore_eos=True)
            task = asyncio.create_task(stream.begin())
            await asyncio.sleep(delay)
            if task.cancel():
                with pytest.raises(asyncio.CancelledError):
                    await task
                assert [chunk async for chunk in stream] == [] and await stream.begin() is stream
            await stream.aclose()
        stream = smollm2.astream(prompt, max_new_tokens=5)
        begun = asyncio.create_task(stream.begin())
        await asyncio.sleep(0)
        with pytest.raises(ValueError, match="another task"):
            await stream.begin()
        await begun
        await stream.aclose()
        closed = smollm2.astream("Stones")
        await closed.aclose()
        assert await closed.begin() is closed and closed.prompt_tokens is None and [chunk async for chunk in closed] == []

    asyncio.run(main())
    stream = smollm2.astream("One, two, three,", max_new_tokens=500)
    asyncio.run(stream.begin())  # type: ignore[arg-type]
    with pytest.raises(pumice.EventLoopError, match="another event loop"):
        asyncio.run(stream.begin())  # type: ignore[arg-type]
    asyncio.run(stream.aclose())
    wait_until_free(smollm2)


@pytest.fixture
def tiny(tmp_path: Path) -> Iterator[pumice.Model]:
    """A model whose steps take microseconds. With ThreadSanitizer, 400 tokens of SmolLM2 take more than a minute."""
    path = tmp_path / "tiny.gguf"
    path.write_bytes(gguf_file({**gguf_keys("gpt2"), "llama.context_length": 512}))
    with pumice.load(path, device="cpu", threads=1) as model:
        yield model


@pytest.mark.parametrize("taken", ["before the pause is known", "before the engine pauses"])
def test_a_pause_ends_if_all_chunks_are_taken_meanwhile(tiny: pumice.Model, monkeypatch: pytest.MonkeyPatch, taken: str) -> None:
    """The engine paused a stream for ever whose task took all chunks while the pump's thread was about to pause it."""
    unread, hold, seen = Call._unread, Run.hold, 0

    def all_taken(call: Call) -> None:
        for _ in range(100):  # at most: with a lock in the way, the task cannot take them
            if not call.chunks:
                break
            time.sleep(0.001)

    def slow_unread(self: Call) -> int:
        nonlocal seen
        count = unread(self)
        if count >= READ_AHEAD // 2 and threading.current_thread().name == "pumice-pump":
            seen += 1
            all_taken(self)
        return count

    def slow_hold(self: Run, held: bool) -> None:
        nonlocal seen
        if held and calls:  # the first pause may come before begin() returns
            seen += 1
            all_taken(calls[0])
        hold(self, held)

    if taken == "before the pause is known":
        monkeypatch.setattr(Call, "_unread", slow_unread)
    else:
        monkeypatch.setattr(Run, "hold", slow_hold)
    calls: list[Call] = []

    async def main() -> int:
        stream = await tiny.astream([3, 4], max_new_tokens=400, temperature=0, ignore_eos=True).begin()
        calls.append(stream._call)
        tokens, stop = 0, 40
        async for chunk in stream:
            tokens += len(chunk.ids)
            if tokens >= stop:
                stop += 100
                if not seen:
                    wait_until(lambda: seen)  # the chunks of many steps come meanwhile
                time.sleep(0.3)
        return tokens

    assert asyncio.run(asyncio.wait_for(main(), PATIENCE)) == 400
    assert seen > 0


class Panic(BaseException):
    """As a package written in Rust raises it."""


def fails_once(method: Any, error: BaseException) -> Any:
    """Returns a method that raises the error at its first call, in place of the real one."""
    failed: list[bool] = []

    def call(*args: Any) -> Any:
        if not failed:
            failed.append(True)
            raise error
        return method(*args)

    return call


@pytest.mark.parametrize("where", ["in wait()", "while it wakes the loop", "while a call ends"])
def test_an_error_in_the_thread_that_delivers_tokens(smollm2: pumice.Model, monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    """The error ends the calls of that moment. It used to end the thread, for which those calls and all later ones waited for ever."""
    error = Panic("while a call ends") if where == "while a call ends" else MemoryError(where)
    if where == "in wait()":
        wait_until(lambda: smollm2._core not in Pump._all or Pump.of(smollm2._core)._thread is None)
        source = pump._core.Pump

        class Source:
            def __init__(self, engine: Any) -> None:
                self.source = source(engine)
                self.wake = self.source.wake

            wait = fails_once(lambda self, most: self.source.wait(most), error)

        monkeypatch.setattr(pump._core, "Pump", Source)
    elif where == "while it wakes the loop":
        monkeypatch.setattr(Pump, "_deliver", fails_once(Pump._deliver, error))
    else:
        monkeypatch.setattr(Continuation, "push", fails_once(Continuation.push, error))
        monkeypatch.setattr(Continuation, "cancel", fails_once(Continuation.cancel, error))

    async def main() -> None:
        with pytest.raises(type(error), match=str(error).replace("()", "..")):
            await asyncio.wait_for(smollm2.agenerate("Once", max_new_tokens=3), PATIENCE)
        assert len((await asyncio.wait_for(smollm2.agenerate("Once", max_new_tokens=3, ignore_eos=True), PATIENCE)).ids) == 3

    asyncio.run(main())
    monkeypatch.undo()
    wait_until_free(smollm2)


def test_a_stream_is_read_in_one_loop(smollm2: pumice.Model) -> None:
    stream = smollm2.astream("One, two, three,", max_new_tokens=500, temperature=0)

    assert asyncio.run(stream.__anext__()).text
    for _ in range(2):
        with pytest.raises(pumice.EventLoopError, match="begun in another event loop"):
            asyncio.run(stream.__anext__())
    asyncio.run(stream.aclose())
    assert stream.result.finish_reason == "cancelled"
    wait_until_free(smollm2)


def test_a_stream_is_closed_in_another_loop(smollm2: pumice.Model) -> None:
    """Closing a stream in another event loop must end the `async for` that waits for the stream's next chunk."""
    for delay in (0.0, 0.05, 0.3):
        stream = smollm2.astream("Once", max_new_tokens=2000, temperature=0.9, seed=1, ignore_eos=True)
        reading = threading.Event()
        ended: list[Any] = []

        async def read(stream: pumice.AsyncStream, reading: threading.Event, ended: list[Any]) -> None:
            reading.set()
            async for _ in stream:
                pass
            ended.append(stream.result)

        thread = threading.Thread(target=lambda: asyncio.run(read(stream, reading, ended)), daemon=True)  # noqa: B023
        thread.start()
        assert reading.wait(PATIENCE)
        time.sleep(delay)
        asyncio.run(stream.aclose())
        thread.join(PATIENCE)
        assert not thread.is_alive()
        assert ended[0] is None or ended[0].finish_reason == "cancelled"
    wait_until_free(smollm2)


def test_a_stream_is_closed_in_another_loop_as_it_has_begun(smollm2: pumice.Model) -> None:
    """aclose() was lost if it ran just before begin() stored the call that it had started."""

    class Closed(pumice.AsyncStream):
        def __setattr__(self, name: str, value: Any) -> None:
            if isinstance(value, Call):
                thread = threading.Thread(target=lambda: asyncio.run(self.aclose()))
                thread.start()
                thread.join()
            super().__setattr__(name, value)

    async def main() -> int:
        stream = Closed(Pools.of(smollm2), lambda: smollm2.stream("Once", max_new_tokens=100, ignore_eos=True))
        await stream.begin()
        return sum([len(chunk.ids) async for chunk in stream])

    assert asyncio.run(asyncio.wait_for(main(), PATIENCE)) == 0
    wait_until_free(smollm2)


def test_a_stream_whose_prompt_is_still_read_is_closed_in_another_loop(smollm2: pumice.Model) -> None:
    """Closing a stream must wake its reader even while the prompt is computed, when no new token could wake the reader by chance."""
    prompt = np.full(6000, 500, np.int32)

    async def read(stream: pumice.AsyncStream) -> None:
        async for _ in stream:
            pass

    before = smollm2.stats()["prompt_tokens"]
    stream = smollm2.astream(prompt, max_new_tokens=2)  # the prompt takes seconds to compute
    thread = threading.Thread(target=lambda: asyncio.run(read(stream)), daemon=True)
    thread.start()
    wait_until(lambda: smollm2.stats()["prompt_tokens"] > before)
    asyncio.run(stream.aclose())
    thread.join(PATIENCE)
    assert not thread.is_alive()
    computed = smollm2.stats()["prompt_tokens"] - before
    print(f"{computed} tokens of {len(prompt)} were computed")
    assert computed < len(prompt)
    wait_until_free(smollm2)


# ---------------------------------------------------------------- threads
def os_threads() -> int:
    return len(os.listdir("/proc/self/task"))


def test_a_model_whose_calls_block_holds_up_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """The calls of one decoder and of one encoder block in every thread that their models may have. The calls of two other models must
    answer, and when the blocked calls go on and their models are closed, their threads must end."""
    load = {"device": "cpu", "threads": 2, "progress": False}
    decoders = [pumice.load(samples.smollm2(), n_ctx=256, **load) for _ in range(2)]
    encoders = [pumice.load(samples.minilm(), **load) for _ in range(2)]
    (stuck, other), (stuck_too, other_too) = decoders, encoders
    go_on = threading.Event()

    def blocking(method: Any) -> Any:
        def call(*args: Any, **options: Any) -> Any:
            assert go_on.wait(PATIENCE)
            return method(*args, **options)

        return call

    monkeypatch.setattr(stuck._chats, "asked", blocking(stuck._chats.asked))  # renders templates
    monkeypatch.setattr(stuck_too, "_encode", blocking(stuck_too._encode))  # large calls of aencode()
    monkeypatch.setattr(stuck_too, "_prepare_encode", blocking(stuck_too._prepare_encode))  # small calls of aencode()
    large: dict[str, Any] = {"batch_size": 1}  # with it, even a short text is computed as those of large calls are

    async def main() -> None:
        await asyncio.gather(other.achat("Hi", max_tokens=1), other_too.aencode("stone"))
        before = os_threads()
        calls = [stuck.achat("Hi", max_tokens=1) for _ in range(12)]
        calls += [stuck_too.aencode("stone", **large) for _ in range(70)] + [stuck_too.aencode("stone") for _ in range(3)]
        tasks = [asyncio.ensure_future(call) for call in calls]
        pools, pools_too = Pools.of(stuck), Pools.of(stuck_too)
        while pools.prepare._free > -4 or pools_too.encode._free > -6 or pools_too.together._threads < 1:
            await asyncio.sleep(0.005)
        assert (pools.prepare._threads, pools_too.encode._threads) == (8, 64)
        assert os_threads() > before + 40  # idle threads of tests before may end meanwhile
        answers = asyncio.gather(
            other.achat("Hi", max_tokens=2),
            other.agenerate("One", max_new_tokens=2),
            other_too.aencode("stone"),
            other_too.aencode("stone", **large),
        )
        answer, _, row, other_row = await asyncio.wait_for(answers, PATIENCE)
        assert len(answer.ids) == 2 and np.array_equal(row, other_row)
        assert not any(task.done() for task in tasks)
        go_on.set()
        done = await asyncio.gather(*tasks)
        assert all(len(answer.ids) == 1 for answer in done[:12])
        assert all(np.array_equal(vector, row) for vector in done[12:])
        stuck.close()
        stuck_too.close()
        ended = [each for pools in (pools, pools_too) for each in pools.each]
        await until(lambda: not any(each._threads for each in ended))
        with pytest.raises(ValueError, match="closed"):
            await stuck_too.aencode("stone")
        with pytest.raises(ValueError, match="closed"):
            await stuck.achat("Hi")
        await until(lambda: os_threads() <= before)  # threads of the other models end after 10 s without work

    asyncio.run(main())
    for model in (other, other_too):
        model.close()


def test_a_result_that_comes_with_the_cancellation_is_discarded() -> None:
    """The result must not be lost if the task is cancelled after the result has come and before the task runs again."""
    dropped: list[int] = []

    async def main() -> None:
        done = threading.Event()
        task = asyncio.create_task(in_thread(Workers(1, 1), lambda: done.set() or 3, discard=dropped.append))
        await asyncio.sleep(0)
        assert done.wait(PATIENCE)
        time.sleep(0.1)  # time for the thread to pass the result on, while the event loop stands still
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    wait_until(lambda: dropped == [3])


@pytest.mark.parametrize("early", [True, False], ids=["before the result", "with the result"])
@pytest.mark.parametrize("closed", ["coroutine", "loop"])
def test_a_result_that_nobody_waits_for_is_discarded(closed: str, early: bool) -> None:
    """A request whose coroutine or event loop was closed while it began used to stay in the engine for ever."""
    dropped: list[int] = []
    go_on, done = threading.Event(), threading.Event()
    pool = Workers(1, 1)

    def work() -> int:
        assert go_on.wait(PATIENCE)
        done.set()
        return 3

    async def leave() -> None:
        coroutine = in_thread(pool, work, discard=dropped.append)
        coroutine.send(None)
        if not early:
            go_on.set()
            assert done.wait(PATIENCE)
            time.sleep(0.1)  # the thread passes the result on, while the event loop stands still
        if closed == "coroutine":
            coroutine.close()
        else:
            left.append(coroutine)

    left: list[Any] = []
    loop = asyncio.new_event_loop()
    loop.run_until_complete(leave())
    loop.close()
    if early:
        go_on.set()
    else:
        left.clear()
    wait_until(lambda: dropped == [3])


def cannot_start(_: Any) -> None:
    raise RuntimeError("can't start new thread")


def test_jobs_of_two_threads_where_no_thread_can_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    """The job of the first of two threads was lost if both had been counted before one of them knew that it is alone."""
    counted = threading.Barrier(2)

    def wait(_: Any) -> None:
        counted.wait(PATIENCE)
        cannot_start(_)

    monkeypatch.setattr(workers, "start_thread", wait)
    pool, ran = Workers(8, 8), list[int]()
    threads = [threading.Thread(target=pool.run, args=(lambda i=i: ran.append(i),)) for i in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert sorted(ran) == [0, 1] and (pool._threads, pool._free) == (0, 0)


def test_a_job_that_another_thread_takes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no thread could be started, run() waited for its job for ever if a thread of a later call had done it."""
    pool, ran = Workers(8, 8), list[str]()
    start, do_all = workers.start_thread, pool._do_all

    def late() -> None:
        monkeypatch.setattr(workers, "start_thread", start)
        pool.run(lambda: ran.append("second"))
        wait_until(lambda: len(ran) == 2)
        do_all()

    monkeypatch.setattr(workers, "start_thread", cannot_start)
    monkeypatch.setattr(pool, "_do_all", late)
    thread = threading.Thread(target=pool.run, args=(lambda: ran.append("first"),), daemon=True)
    thread.start()
    thread.join(PATIENCE)
    assert not thread.is_alive() and ran == ["first", "second"]
    pool.end()
    wait_until(lambda: (pool._threads, pool._free) == (0, 0))


def test_a_thread_outlives_a_job_that_raises() -> None:
    pool, done = Workers(1, 8), threading.Event()

    def fails() -> None:
        raise Panic

    pool.run(fails)
    pool.run(done.set)
    assert done.wait(PATIENCE)
    pool.end()
    wait_until(lambda: (pool._threads, pool._free) == (0, 0))


def test_ctrl_c_while_a_job_is_counted() -> None:
    """The count then stayed one too low, and a thread that was to end looked for a job without a pause, for ever."""
    pool, done = Workers(8, 8), threading.Event()
    pool.run(done.set)
    assert done.wait(PATIENCE)
    wait_until(lambda: pool._free == 1)
    jobs: Any = pool._jobs

    class Interrupted:
        def put(self, _: Any) -> None:
            raise KeyboardInterrupt

    pool._jobs = Interrupted()  # type: ignore[assignment]
    with pytest.raises(KeyboardInterrupt):
        pool.run(done.set)
    pool._jobs = jobs
    pool.end()
    wait_until(lambda: pool._threads == 0)
    done.clear()
    pool.run(done.set)
    assert done.wait(PATIENCE)


def test_an_error_between_small_calls(minilm: pumice.Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error is that of the calls of the moment. It used to stop aencode() of the model for ever."""
    monkeypatch.setattr(small_encodes, "_tell_loops", fails_once(small_encodes._tell_loops, MemoryError("once")))

    async def main() -> None:
        with pytest.raises(MemoryError, match="once"):
            await asyncio.wait_for(minilm.aencode("stone"), PATIENCE)
        assert np.array_equal(await asyncio.wait_for(minilm.aencode("stone"), PATIENCE), minilm.encode("stone"))

    asyncio.run(main())


def test_threads_end_with_their_model() -> None:
    model = pumice.load(samples.minilm(), device="cpu", threads=2, progress=False)
    asyncio.run(model.aencode("stone", batch_size=1))
    pools = Pools.of(model)
    assert pools.encode._threads == 1
    del model
    gc.collect()
    wait_until(lambda: pools.encode._threads == 0)


# ---------------------------------------------------------------- Ctrl-C, close, exit, fork
def test_ctrl_c() -> None:
    code = """
import _thread, asyncio, signal
signal.signal(signal.SIGINT, signal.default_int_handler)
from patience import Watch, report
m = pumice.load(samples.smollm2(), n_ctx=512)
async def main():
    await asyncio.gather(*(m.agenerate("Once", max_new_tokens=400, ignore_eos=True) for _ in range(4)))
took, watch = [], None
def interrupt(delay):
    global watch
    time.sleep(delay)
    watch = Watch()
    os.kill(os.getpid(), signal.SIGINT)
for delay in (0.01, 0.05, 0.2):
    try:
        _thread.start_new_thread(interrupt, (delay,))
        asyncio.run(main())
    except KeyboardInterrupt:
        took.append(watch.elapsed())
assert len(took) == 3
report("Ctrl-C in asyncio.run()", took, 0.1)
wait_until(lambda: not m.stats()["pages_in_use"])
print(m.stats()["pages_in_use"], len(m.generate("Stones", max_new_tokens=3, temperature=0).ids))
"""
    ended = run(code)
    print(ended.stdout)
    assert (ended.stdout.splitlines()[1:], ended.stderr[-800:]) == (["0 3"], "")


@pytest.mark.parametrize("work", ["m.agenerate('Once', max_new_tokens=400)", "e.aencode(['a b c' * 30] * 500)", "e.aencode('stone')"])
def test_the_interpreter_ends_while_a_loop_of_a_daemon_thread_works(work: str) -> None:
    code = f"""
import asyncio
m, e = pumice.load(samples.smollm2(), n_ctx=512), pumice.load(samples.minilm())
async def main():
    while True:
        await asyncio.gather(*({work} for _ in range(3)))
start(lambda: asyncio.run(main()), threads=2)
time.sleep(.5)
"""
    ended = run(code)
    assert (ended.returncode, ended.stdout, ended.stderr[-800:]) == (0, "", "")


def test_a_function_of_atexit_awaits() -> None:
    """A function that was registered before pumice was imported runs after pumice's own ones. Its call used to wait for ever."""
    code = """
import asyncio, atexit
assert "pumice.event_loops.pump" not in sys.modules
def generate():
    print(asyncio.run(asyncio.wait_for(m.agenerate("Once", max_new_tokens=3), 120)).finish_reason)
atexit.register(generate)
m = pumice.load(samples.smollm2(), n_ctx=512, device="cpu")
generate()
"""
    ended = run(code)
    assert (ended.returncode, ended.stdout, ended.stderr[-800:]) == (0, "length\n" * 2, "")


def test_a_program_goes_on_after_the_functions_of_atexit() -> None:
    code = """
import asyncio, atexit
from pumice.common import exits
exits.MOST_SECONDS = 0.1
m = pumice.load(samples.smollm2(), n_ctx=512, device="cpu")
def generate():
    print(asyncio.run(asyncio.wait_for(m.agenerate("Once", max_new_tokens=3), 120)).finish_reason)
generate()
atexit._run_exitfuncs()
generate()
generate()
"""
    ended = run(code)
    assert (ended.returncode, ended.stdout, ended.stderr[-800:]) == (0, "length\n" * 3, "")


def test_a_child_awaits_while_its_parent_does() -> None:
    ended = run(
        FORK
        + """
import asyncio
m, e = pumice.load(samples.smollm2(), n_ctx=512, threads=2), pumice.load(samples.minilm(), threads=2)
expected, vector = m.generate("One, two, three,", max_new_tokens=5, temperature=0).text, e.encode("stone")
async def forever_():
    while True:
        await asyncio.gather(m.agenerate("Once", max_new_tokens=60), *(e.aencode(f"stone {i}") for i in range(4)))
threading.Thread(target=lambda: asyncio.run(forever_()), daemon=True).start()
async def both():
    return await asyncio.gather(m.agenerate("One, two, three,", max_new_tokens=5, temperature=0), e.aencode("stone"))
def work():
    answer, row = asyncio.run(both())
    return answer.text == expected and (row == vector).all()
in_children(work, 8)
"""
    )
    assert ended.returncode == 0, (ended.returncode, ended.stdout, ended.stderr[-800:])


def test_close_gives_memory_back_at_once() -> None:
    async def main() -> None:
        model = pumice.load(samples.smollm2(), device="cpu", n_ctx=512)
        task = asyncio.create_task(model.agenerate("Once", max_new_tokens=20, temperature=0))
        while not model.stats()["steps"] and not task.done():
            await asyncio.sleep(0.001)
        model.close()
        assert (await task).ids.size == 20
        with pytest.raises(ValueError, match="closed"):
            await model.agenerate("Once")

    asyncio.run(main())
    wait_until(lambda: not any(thread.name == "pumice-pump" for thread in threading.enumerate()))


def test_without_asyncio_nothing_of_it_is_imported() -> None:
    code = "import sys, pumice.model.model; print('asyncio' in sys.modules)"
    before = subprocess.run([sys.executable, "-c", "import sys, numpy, tokenizers; print('asyncio' in sys.modules)"], capture_output=True)
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, env=dict(os.environ))
    assert ended.stdout == before.stdout
    assert signal.getsignal(signal.SIGINT) is not None
