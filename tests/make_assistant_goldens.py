"""Makes tests/goldens/assistants: how many guesses transformers' assistants of Gemma 4 make for small models, and how many are right.

    python tests/make_assistant_goldens.py [model ...]

Needs torch, transformers and safetensors. The tests need none of them.

transformers' own loop (SinglePositionMultiTokenCandidateGenerator in 5.24) also shows the assistant the keys and values of a guess that was
wrong, at the position of the last id, which has none yet. llama.cpp's does not, and pumice neither: here the assistant is called with the
keys and values of the positions before the last id. Its sliding layers see as many of them as the model's would at the position of the last
id; transformers' mask would show them two more.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests" / "python" / "support")]

import assistants  # noqa: E402
import random_models  # noqa: E402

MARGIN = 1e-4  # minimum gap between the two largest logits of a greedy step and of a guess


def assistant_config(name: str) -> Any:
    import transformers

    settings = random_models.VARIANTS[name].settings
    kept = ("num_key_value_heads", "head_dim", "global_head_dim", "sliding_window", "attention_k_eq_v", "num_global_key_value_heads")
    text = {key: settings[key] for key in kept} | {
        "vocab_size": settings["vocab_size"],
        "hidden_size": 48,
        "intermediate_size": 64,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "max_position_embeddings": settings["max_position_embeddings"],
        "hidden_size_per_layer_input": 0,
        "vocab_size_per_layer_input": 0,
        "layer_types": ["sliding_attention"] * 3 + ["full_attention"],
    }
    return transformers.Gemma4AssistantConfig(
        text_config=transformers.Gemma4TextConfig(**text), backbone_hidden_size=settings["hidden_size"]
    )


class Pair:
    """A model and its assistant in transformers."""

    def __init__(self, name: str) -> None:
        import torch
        import transformers
        from safetensors import safe_open

        settings = dict(random_models.VARIANTS[name].settings)
        self.window = settings["sliding_window"]
        self.model = transformers.Gemma4ForCausalLM(transformers.Gemma4TextConfig(**settings)).eval()
        self.assistant = transformers.Gemma4AssistantForCausalLM(assistant_config(name)).eval()
        with tempfile.TemporaryDirectory() as folder:
            self.assistant.save_pretrained(folder)
            self.config = json.loads((Path(folder) / "config.json").read_text())
            with safe_open(Path(folder) / "model.safetensors", "np") as file:
                self.shapes = {key: list(file.get_slice(key).get_shape()) for key in sorted(file.keys())}
        for module, tensors in (
            (self.model, assistants.model_tensors(name)),
            (self.assistant, assistants.assistant_tensors(name, self.shapes)),
        ):
            report = module.load_state_dict({key: torch.tensor(tensor) for key, tensor in tensors.items()}, strict=False)
            assert not report.unexpected_keys and set(report.missing_keys) <= {"lm_head.weight"}, report
            module.tie_weights()

    def greedy(self, prompt: list[int], count: int) -> list[int] | None:
        """Returns the generated ids, or None if two tokens are nearly equal somewhere. The small models have no end token."""
        ids = list(prompt)
        for _ in range(count):
            logits = self.run(ids)[0]
            first, second = np.sort(logits)[[-1, -2]]
            ids.append(int(logits.argmax()))
            if first - second < MARGIN:
                return None
        return ids[len(prompt) :]

    def run(self, ids: list[int]) -> tuple[np.ndarray, Any, Any]:
        """Returns the last row of logits, the last row after the final norm, and the keys and values for the assistant."""
        import torch

        with torch.no_grad():
            out = self.model(torch.tensor([ids]), output_hidden_states=True, return_shared_kv_states=True, use_cache=False)
        return out.logits[0, -1].numpy(), out.hidden_states[-1][:, -1:], out.shared_kv_states

    def guesses(self, ids: list[int], count: int) -> list[int] | None:
        """Returns the guesses that follow the ids, of which the last one is not computed yet."""
        import torch

        _, row, kept = self.run(ids[:-1])
        full, sliding = (kept[kind] for kind in ("full_attention", "sliding_attention"))
        shared = {"full_attention": full, "sliding_attention": tuple(x[:, :, -(self.window - 1) :] for x in sliding)}
        position, token = torch.tensor([[len(ids) - 1]]), torch.tensor([[ids[-1]]])
        found: list[int] = []
        with torch.no_grad():
            while len(found) < count:
                both = torch.cat([self.model.get_input_embeddings()(token), row], -1)
                out = self.assistant(inputs_embeds=both, position_ids=position, shared_kv_states=shared, use_cache=False)
                first, second = np.sort(out.logits[0, -1].numpy())[[-1, -2]]
                if first - second < MARGIN:
                    return None
                token, row = out.logits.argmax(-1), out.last_hidden_state
                found.append(int(token))
        return found

    def told(self, prompt: list[int], new: list[int], most: int) -> tuple[int, int] | None:
        """Returns how many guesses are made and how many are right, if each step has as many as it may, at most `most`."""
        ids, size, guessed, right = prompt + new, len(prompt) + 1, 0, 0
        while size < len(ids):
            found = self.guesses(ids[:size], min(most, len(ids) - size - 1))
            if found is None:
                return None
            taken = 0
            while taken < len(found) and found[taken] == ids[size + taken]:
                taken += 1
            guessed, right, size = guessed + len(found), right + taken, size + taken + 1
        return guessed, right


def make(name: str) -> None:
    pair = Pair(name)
    rng = np.random.default_rng(4)
    prompts, texts, counts = [], [], []
    while len(prompts) < assistants.PROMPTS:
        prompt = [int(i) for i in rng.integers(5, 500, int(rng.integers(1, 60)))]
        new = pair.greedy(prompt, assistants.NEW)
        told = [pair.told(prompt, new, most) for most in assistants.MOST] if new else [None]
        if new and None not in told:
            prompts.append(prompt), texts.append(new), counts.append(told)
            print(name, len(prompt), len(set(new)), told, flush=True)
    golden = {"config": pair.config, "shapes": pair.shapes, "prompts": prompts, "texts": texts, "counts": counts}
    assistants.GOLDENS.mkdir(exist_ok=True)
    (assistants.GOLDENS / f"{name}.json").write_text(json.dumps(golden) + "\n")


if __name__ == "__main__":
    import torch

    torch.set_num_threads(1)
    for each in sys.argv[1:] or assistants.MODELS:
        make(each)
