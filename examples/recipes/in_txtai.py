"""txtai: an index of texts whose vectors a model of pumice makes, in the same process. Needs pumice and txtai.

txtai installs torch, which this recipe does not use: `pip install --no-deps txtai` leaves it out (then also `pip install msgpack regex
huggingface-hub`). backend: numpy compares with every vector; "faiss" needs faiss-cpu."""

from __future__ import annotations

from typing import Any

import numpy as np
from txtai.embeddings import Embeddings

import pumice


def index(model: pumice.Model, **config: Any) -> Embeddings:
    """Returns an empty index. Its texts and queries are encoded by a model that has no prompts, or the same one for both."""

    def transform(texts: list[str]) -> np.ndarray:
        return model.encode([str(text) for text in texts])

    return Embeddings({"method": "external", "transform": transform, "backend": "numpy", "content": True, **config})
