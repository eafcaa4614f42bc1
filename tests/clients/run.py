"""Starts a server of the sample models (server.py), and has real clients call it (calls.py), each in an environment of its own.

python tests/clients/run.py --venvs build/clients   prints a table of client, call and result. Exit code 1 if a call failed."""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
# Each environment, whose packages are those of NAME.txt, and the clients that it calls with. One environment cannot have all: openai 3.54
# needs jiter >= 0.16, and instructor an older one.
ENVIRONMENTS = {
    "openai": ("openai", "anthropic", "llm", "langchain-openai", "cohere"),
    "litellm": ("litellm", "openai"),
    "instructor": ("instructor",),
    "agents": ("openai-agents",),
    "llamaindex": ("llama-index-llms-openai-like",),
    "haystack": ("haystack-ai",),
}


def environment(folder: Path, name: str) -> Path:
    """Makes a virtual environment with the packages of NAME.txt, unless it is there. Returns its Python."""
    python, wanted, made = folder / name / "bin" / "python", (HERE / f"{name}.txt").read_text(), folder / name / ".made"
    if not made.exists() or made.read_text() != wanted:
        subprocess.run([sys.executable, "-m", "venv", str(folder / name)], check=True)
        subprocess.run([str(python), "-m", "pip", "install", "-q", "-r", str(HERE / f"{name}.txt")], check=True)
        made.write_text(wanted)
    return python


def ready(url: str) -> bool:
    """Returns whether the server has loaded its models."""
    try:
        with urllib.request.urlopen(f"{url}/ready", timeout=60) as answer:
            return bool(answer.status == 200)
    except urllib.error.URLError:
        return False


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--venvs", type=Path, default=ROOT / "build" / "clients", help="where the environments are")
    parser.add_argument("--only", action="append", choices=list(ENVIRONMENTS), help="only this environment (may be given several times)")
    options = parser.parse_args(arguments)
    names = options.only or list(ENVIRONMENTS)
    pythons = {name: environment(options.venvs.resolve(), name) for name in names}
    failed = 0
    with tempfile.TemporaryFile("w+") as log:
        server = subprocess.Popen([sys.executable, str(HERE / "server.py")], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        try:
            assert server.stdout is not None
            said = ""
            for line in server.stdout:
                said += line
                if found := re.search(r"http://[\d.]+:\d+", line):
                    break
            else:
                print(said)
                return 1
            threading.Thread(target=log.writelines, args=(server.stdout,), daemon=True).start()  # a full pipe would stop the server
            while not ready(found[0]):
                time.sleep(0.1)
            print(f"{'environment':12} {'client':18} {'call':45} result")
            for name in names:
                calls = [str(pythons[name]), str(HERE / "calls.py"), found[0], *ENVIRONMENTS[name]]
                with subprocess.Popen(calls, stdout=subprocess.PIPE, stderr=log, text=True) as client:
                    assert client.stdout is not None
                    for line in client.stdout:
                        row = json.loads(line)
                        failed += row["result"] != "ok"
                        print(f"{name:12} {row['client']:18} {row['call']:45} {row['result']}", flush=True)
                if client.returncode != 0:
                    failed += 1
                    print(f"{name:12} ended with {client.returncode}")
        finally:
            server.terminate()
            server.wait()
        if failed:
            log.seek(0)
            print(log.read(), file=sys.stderr)
    print(f"{failed} failed" if failed else "all as they should be")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
