"""The server that run.py starts: the sample models, SmolLM2 with a chat template that has a place for tools."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import uvicorn

sys.path.insert(0, str(Path(__file__).parent.parent.parent / "examples"))

import samples  # noqa: E402

from pumice.serve import app  # noqa: E402

if __name__ == "__main__":
    models = {"chat": samples.smollm2(), "embed": samples.minilm()}
    load = {"chat": {"chat_template": samples.tools_template()}}
    # Greedy, because the calls check answers that they do not sample themselves.
    with tempfile.TemporaryDirectory() as files:
        uvicorn.run(
            app(models, load=load, sampling={"temperature": 0}, files=files), port=0, http="h11", log_level="info", access_log=False
        )
