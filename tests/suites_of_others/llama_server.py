"""A program that takes the options of llama-server and serves the sample models with `pumice serve`, for llama.cpp's own tests of its
server.

The tests ask for models of the hub, which are not there. Generation gets a part of SmolLM2, vectors and ranking get all-MiniLM-L6-v2. An
option of llama-server that has no counterpart is left out here, so that the test which needs it fails by itself."""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent.parent / "examples"))

import samples  # noqa: E402

MODEL = Path(__file__).parent.parent.parent / "build" / "suites_of_others" / "small.gguf"

# Options of llama-server that have a value and no counterpart.
LEFT_OUT = (
    "hf-repo", "hf-file", "model-url", "model-draft", "models-dir", "models-max", "models-preset", "batch-size", "ubatch-size",
    "n-gpu-layers", "tags", "slot-save-path", "grp-attn-n", "grp-attn-w", "lora", "spec-type", "spec-draft-n-max", "spec-draft-n-min",
    "spec-synth-len", "spec-synth-rates", "reasoning-format", "mmproj-url", "media-path", "cache-ram", "tools",
    "tools-runtime", "threads", "mcp-servers-config", "mcp-servers-json",
)  # fmt: skip
# Chat templates that llama.cpp has names for -> the file of one that writes the same, in the folder models/templates of its sources.
NAMED = {"llama3": "meta-llama-Llama-3.1-8B-Instruct.jinja"}
CHATML = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def parsed(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    for name in LEFT_OUT:
        parser.add_argument(f"--{name}")
    for name in (
        "host",
        "port",
        "reasoning",
        "temp",
        "seed",
        "alias",
        "api-key",
        "pooling",
        "chat-template",
        "chat-template-file",
        "cors-origins",
    ):
        parser.add_argument(f"--{name}")
    for name in ("ctx-size", "parallel", "n-predict", "sleep-idle-seconds"):
        parser.add_argument(f"--{name}", type=int)
    for name in ("embedding", "reranking", "kv-unified"):
        parser.add_argument(f"--{name}", action="store_true")
    parser.add_argument("--model")
    return parser.parse_known_args(arguments)[0]


def template_file(given: argparse.Namespace) -> str:
    """Returns the file of the chat template, with the variables that llama-server gives to all templates. The default can render tools."""
    text = given.chat_template
    named = f"../../../models/templates/{NAMED[text]}" if text in NAMED else samples.tools_template()
    if given.chat_template_file is not None or text is None or text in NAMED:
        text = Path(given.chat_template_file or named).read_text()
    thinking = str(given.reasoning != "off").lower()
    given_to_all = {"enable_thinking": thinking, "date_string": "strftime_now('%d %b %Y')", "datetime": "strftime_now('%b %d %Y')"}
    head = "".join(f"{{% if {name} is not defined %}}{{% set {name} = {value} %}}{{% endif %}}" for name, value in given_to_all.items())
    path = Path(tempfile.mkdtemp()) / "template.jinja"
    path.write_text(head + (CHATML if text == "chatml" else text))
    return str(path)


def command(given: argparse.Namespace) -> list[str]:
    """Returns the arguments of `pumice serve` that mean the same."""
    names = (given.alias or "model").split(",")
    vectors = given.embedding or given.reranking
    options = ["--host", given.host.split(",")[0], "--port", given.port, "--default-model", names[0], "--ignore-unknown-fields"]
    options += [f"--alias={alias}={names[0]}" for alias in names[1:]]
    for option, value in (("--api-key", given.api_key), ("--cors-origin", given.cors_origins), ("--idle-unload", given.sleep_idle_seconds)):
        options += [] if value is None else [option, str(value)]
    if vectors:
        pooling = [] if given.pooling is None else ["--pooling", given.pooling]
        return [f"{names[0]}={samples.minilm()}", *options, "--token-inputs", *pooling]
    # The context of llama-server is shared by its slots.
    slots = 1 if given.kv_unified else given.parallel or 1
    options += ["--temperature", given.temp, "--chat-template", template_file(given)]
    options += [] if given.parallel is None else ["--running", str(given.parallel)]
    options += [] if given.ctx_size is None else ["--n-ctx", str(given.ctx_size // slots)]
    options += [] if given.seed is None else ["--seed", given.seed]
    options += ["--max-answer", str(given.n_predict)] if (given.n_predict or -1) > 0 else []
    return [f"{names[0]}={MODEL}", *options]


# ---------------------------------------------------------------- processes
# A new Python takes a second of a processor to import the server, and the tests start hundreds of servers. So the first one starts a
# process that has imported it, and all servers are forks of that process. It ends when no server was wanted for IDLE seconds.
SOCKET, IDLE = MODEL.parent / "llama_server.socket", 120


def keep_forking() -> None:
    """Forks a server for each connection."""
    from pumice.__main__ import main
    from pumice.serve import application, process  # noqa: F401

    SOCKET.unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(SOCKET))
        listening.listen()
        listening.settimeout(IDLE)
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        while True:
            try:
                connection, _ = listening.accept()
            except TimeoutError:
                return
            if os.fork():
                connection.close()
                continue
            connection.setblocking(True)
            listening.close()
            data, handles, _, _ = socket.recv_fds(connection, 1 << 16, 2)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for place, handle in enumerate(handles, 1):
                os.dup2(handle, place)
            wanted = json.loads(data)
            os.chdir(wanted["folder"])
            threading.Thread(target=follow, args=(connection,), daemon=True).start()
            code = 1
            try:
                code = main(["serve", *wanted["arguments"]])
            finally:
                sys.stdout.flush()
                os._exit(code)


def follow(connection: socket.socket) -> None:
    """Stops this process when the one at the other end is told to stop, or has ended."""
    connection.recv(1)
    os.kill(os.getpid(), signal.SIGTERM)


def forked(arguments: list[str]) -> None:
    """Has a server forked. Returns when it has ended."""
    with socket.socket(socket.AF_UNIX) as connection:
        for attempt in range(600):
            try:
                connection.connect(str(SOCKET))
                break
            except OSError:
                if attempt == 0:
                    with SOCKET.with_suffix(".log").open("w") as log:
                        subprocess.Popen([sys.executable, __file__, "--keep-forking"], start_new_session=True, stdout=log, stderr=log)
                time.sleep(0.1)
        signal.signal(signal.SIGTERM, lambda *_: connection.send(b"."))
        socket.send_fds(connection, [json.dumps({"arguments": arguments, "folder": os.getcwd()}).encode()], [1, 2])
        connection.recv(1)


if __name__ == "__main__":
    MODEL.parent.mkdir(parents=True, exist_ok=True)
    if sys.argv[1:] == ["--keep-forking"]:
        if not MODEL.exists():
            import small_model

            small_model.write(samples.smollm2(), MODEL)
        keep_forking()
    else:
        forked(command(parsed(sys.argv[1:])))
