"""Writes tests/goldens/lora: the results of peft with random adapters on the small models of random_models.py.

    PYTHONPATH=tests/python/support python tests/make_lora_goldens.py [NAME ...]        needs torch, transformers, peft

For each case of tests/lora_cases.json it writes the adapter_config.json that peft writes, the names and shapes of the adapter's tensors,
and the logits (of a decoder) or last hidden rows (of an encoder) for IDS. The adapter's weights are not stored, because
random_models.weights() makes them from the names of the tensors.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

import numpy as np
import random_models
from make_random_model_goldens import load

GOLDENS = Path(__file__).parent / "goldens" / "lora"
IDS = [1, 17, 200, 31, 5, 499, 42, 17, 88, 301, 6, 250]


def make(name: str, case: dict) -> None:
    import peft
    import torch
    from safetensors import safe_open

    variant = random_models.VARIANTS[case["variant"]]
    with tempfile.TemporaryDirectory() as target:
        folder = random_models.make_folder(variant.name, Path(target))
        adapter = Path(target) / "adapter"
        made = peft.get_peft_model(load(variant, folder), peft.LoraConfig(**case["settings"]))
        made.save_pretrained(adapter, save_embedding_layers=False)
        with safe_open(adapter / "adapter_model.safetensors", "np") as file:
            shapes = {key: list(file.get_slice(key).get_shape()) for key in sorted(file.keys())}
        weights = {key: random_models.weights(key, tuple(shape)) for key, shape in shapes.items()}
        random_models.write_safetensors(adapter / "adapter_model.safetensors", weights)
        model = peft.PeftModel.from_pretrained(load(variant, folder), adapter).eval()
        config = json.loads((adapter / "adapter_config.json").read_text()) | {"base_model_name_or_path": None}
        with torch.no_grad():
            plain, found = (
                (out.logits if hasattr(out, "logits") else out.last_hidden_state)[0].float().numpy()
                for out in (load(variant, folder)(torch.tensor([IDS])), model(torch.tensor([IDS])))
            )
    (GOLDENS / f"{name}.adapter_config.json").write_text(json.dumps(config, sort_keys=True, indent=1) + "\n")
    (GOLDENS / f"{name}.shapes.json").write_text(json.dumps(shapes) + "\n")
    np.savez_compressed(GOLDENS / f"{name}.npz", rows=found)
    print(f"{name}: {len(shapes)} tensors; rows differ from those without by up to {np.abs(found - plain).max():.2f}", flush=True)


if __name__ == "__main__":
    cases = json.loads((Path(__file__).parent / "lora_cases.json").read_text())
    for each in sys.argv[1:] or cases:
        make(each, cases[each])
