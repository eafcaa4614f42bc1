"""Many callers at once (a short run of storm.py; `make test-storm` is the long run), and Ctrl-C at random points while other threads call
the model."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from children import run
from storm import POISON, poisonous, storm

import pumice


@pytest.mark.parametrize("seed", [1, 2])
def test_a_storm(seed: int) -> None:
    found = storm(requests=300, threads=48, seed=seed)
    print(found.counts)
    assert not found.wrong
    assert found.counts["finished"] > 100
    assert min(found.counts[kind] for kind in ("closed", "failed", "children", "preempted")) > 0


def test_one_poisoned_call_among_64_fails_alone(tmp_path: Path) -> None:
    with pumice.load(poisonous(tmp_path / "poisonous.gguf"), device="cpu", threads=2, progress=False) as model:
        prompts = [[3 + i % 20 + (i % 20 >= POISON - 3), 10, 11, 12 + i // 20] for i in range(64)]
        prompts[17][2] = POISON
        given = {"max_new_tokens": 40, "temperature": 0, "logit_bias": {POISON: -float("inf")}}

        async def main() -> list[object]:
            return list(await asyncio.gather(*(model.agenerate(p, **given) for p in prompts), return_exceptions=True))

        for i, answer in enumerate(asyncio.run(main())):
            if i == 17:
                assert isinstance(answer, pumice.NumericError)
            else:
                assert isinstance(answer, pumice.Generation)
                assert answer.ids.tolist() == model.generate(prompts[i], **given).ids.tolist()


def test_ctrl_c_at_random_points_beside_others() -> None:
    code = """
import random, signal
signal.signal(signal.SIGINT, signal.default_int_handler)
m = pumice.load(samples.smollm2(), n_ctx=512, threads=2)
prompts = [f"A list of {i} stones:" for i in range(3)]
alone = [m.generate(p, max_new_tokens=12, temperature=0).text for p in prompts]
wrong, stop = [], False
def others(i):
    while not stop:
        if m.generate(prompts[i], max_new_tokens=12, temperature=0).text != alone[i]:
            wrong.append(i)
threads = [threading.Thread(target=others, args=(i,)) for i in range(3)]
for thread in threads:
    thread.start()
rng, came, ended = random.Random(1), 0, 0
signal.signal(signal.SIGALRM, signal.default_int_handler)
for i in range(60):
    try:
        signal.setitimer(signal.ITIMER_REAL, rng.uniform(0.001, 0.08))
        if i % 2:
            m.generate("Once", max_new_tokens=400, temperature=1)
        else:
            for chunk in m.stream("Once", max_new_tokens=400, temperature=1):
                pass
        time.sleep(1)
    except KeyboardInterrupt:
        came += 1
stop = True
for thread in threads:
    thread.join()
wait_until(lambda: not m.stats()["pages_in_use"])
print(came, wrong, m.stats()["pages_in_use"])
"""
    ended = run(code)
    assert (ended.stdout, ended.stderr[-800:]) == ("60 [] 0\n", "")
