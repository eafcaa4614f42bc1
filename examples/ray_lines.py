"""Ray: a file of requests, one a line, is answered by all nodes of a cluster. Needs pumice[serve] and ray.

`python examples/ray_lines.py MODEL IN.jsonl FOLDER` cuts the input into parts in FOLDER, and answers each with `pumice run`, into
FOLDER/NUMBER.answers. The model and FOLDER must be there under the same path on every node. If a node dies, another one goes on with its
part. If the job dies, the same command goes on. In both cases each line has one answer in the end."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from pathlib import Path

import ray


def cut(source: Path, folder: Path, lines: int) -> list[Path]:
    """Writes parts of so many lines, unless they are there, and returns their paths. Each line should have a custom_id. A line without one
    is named after its number, which begins anew in each part."""
    folder.mkdir(parents=True, exist_ok=True)
    parts = []
    with source.open("rb") as file:
        for number in itertools.count():
            content = list(itertools.islice(file, lines))
            if not content:
                return parts
            parts.append(folder / f"{number:06}.jsonl")
            if not parts[-1].exists():  # the parts of an earlier start must stay as they are, and appear whole
                whole = parts[-1].with_suffix(".new")
                whole.write_bytes(b"".join(content))
                os.replace(whole, parts[-1])
    return parts


@ray.remote(max_retries=-1)  # of a task whose node died; an error of pumice ends the job
def answer(part: Path, model: str, threads: int) -> Path:
    """Answers a part, and returns the path of its answers."""
    answers = part.with_suffix(".answers")
    command = [sys.executable, "-m", "pumice", "run", str(part), "-o", str(answers), "--model", model, "--threads", str(threads)]
    ended = subprocess.run(command, capture_output=True, text=True)
    if ended.returncode:
        raise RuntimeError(ended.stderr)
    return answers


def run(model: str, source: str, folder: str, *, cpus: int, lines: int = 10_000) -> list[Path]:
    """Answers all lines, and returns the files of the answers.

    cpus: the processors of a node, which has one part at a time. lines: the number of lines in a part. Each part loads the model, so the
        lines of a part should take minutes."""
    parts = cut(Path(source), Path(folder), lines)
    return ray.get([answer.options(num_cpus=cpus).remote(part, model, cpus) for part in parts])  # type: ignore[no-any-return]


if __name__ == "__main__":
    ray.init("auto")
    alive = [node for node in ray.nodes() if node["Alive"]]
    for path in run(*sys.argv[1:4], cpus=int(min(node["Resources"].get("CPU", 1) for node in alive))):
        print(path)
