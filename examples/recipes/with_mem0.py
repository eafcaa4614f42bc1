"""mem0: a memory of conversations whose model and vectors are those of `pumice serve`. Needs mem0ai; the server needs pumice[serve].

`pumice serve chat=MODEL embed=MODEL` serves at http://127.0.0.1:8000. The model that finds the facts should have some billion parameters;
with memory.add(..., infer=False) messages are kept as they are, and no model is asked."""

from __future__ import annotations

import os
from pathlib import Path

os.environ.setdefault("MEM0_TELEMETRY", "False")  # read when mem0 is imported; without it each call is reported to its makers

from mem0 import Memory  # noqa: E402


def memory(url: str, folder: Path, dimensions: int = 384) -> Memory:
    """Returns a memory in a folder. dimensions: those of the vectors of the model "embed"."""
    place = {"openai_base_url": f"{url}/v1", "api_key": "none"}
    store = {"collection_name": "memories", "path": str(folder / "qdrant"), "on_disk": True, "embedding_model_dims": dimensions}
    return Memory.from_config(
        {
            "llm": {"provider": "openai", "config": {"model": "chat", "temperature": 0, "max_tokens": 1000, **place}},
            "embedder": {"provider": "openai", "config": {"model": "embed", **place}},
            "vector_store": {"provider": "qdrant", "config": store},
            "history_db_path": str(folder / "history.db"),
        }
    )
