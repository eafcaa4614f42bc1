"""tour.py OUT MODELS...: encodes texts or generates a few tokens with each model, and writes the results to OUT as JSON."""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path
from typing import Any

import pumice

TEXTS = [
    "A pumice stone floats on water.",
    "Ein Bimsstein schwimmt.",
    "Volcanoes make both glass and foam, and sometimes in one eruption. " * 4,
]


def results(model: pumice.Model) -> dict[str, Any]:
    if "generate" in model.info["tasks"]:
        generation = model.generate("Pumice is a rock that", max_new_tokens=8, temperature=0)
        return {"text": generation.text}
    vectors = model.encode(TEXTS)
    return {"shape": vectors.shape, "bits": hashlib.sha256(vectors.tobytes()).hexdigest(), "first": [float(x) for x in vectors[0, :4]]}


def main() -> None:
    out, *models = sys.argv[1:]
    found = []
    for path in models:
        with pumice.load(path, device="cpu", threads=2) as model:
            found.append(results(model))
            print(model.info["name"] if "name" in model.info else Path(path).name, found[-1], flush=True)
    Path(out).write_text(json.dumps(found))


if __name__ == "__main__":
    main()
