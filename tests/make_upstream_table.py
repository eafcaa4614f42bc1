"""Writes docs/upstream.md. transformers tests each of its models with a small configuration of its own (tests/models/*/test_modeling_*.py).
This program builds these models with random weights, saves them, and compares pumice's results with those of transformers.

    python tests/make_upstream_table.py [model_type ...]    # with names: prints the rows of these models and does not write the page

tests/upstream_configs.json has the configurations: "numbers" that several testers share, and for each model the file in transformers'
repository, the commit at which the file was read, the shared numbers ("like"), and the settings that differ ("settings"). "causal" are the
numbers of CausalLMModelTester (tests/causal_lm_tester.py, 2b6c089d5a0b). As in that tester, only the numbers that the configuration class
knows are used; a class that has another name for a number says so in its attribute_map. "also" has the names of "changes" with which the
same file tests the model once more. A multimodal model names the model that is its text half ("text"), or has text_config in its settings;
only text is compared. "adapted" has the names of those with which pumice runs a model that it refuses as it stands.
Two models differ from their testers because of defects in transformers (the text of the page names them): "attention" is the implementation
of attention, if it is not the eager one, and time_step_min of Nemotron-H is 1e-30.

Needs torch, transformers and the package. tests/python/families/test_upstream_page.py checks that the page has a row for each family.
"""

from __future__ import annotations

import copy
import inspect
import json
import sys
import tempfile
import warnings
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

from pumice import _core

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "upstream.md"
TESTERS = json.loads((ROOT / "tests" / "upstream_configs.json").read_text())
TOKENS = 60  # number of ids of a text, if the model has that many positions; longer than most windows in the configurations
DELTA_RULE = ("qwen3_5", "olmo_hybrid")  # the gated delta rule amplifies rounding, so these families have a wider limit
HEAD = """# Configurations of transformers' own tests
The configurations in [families.md](families.md) are ours. Those on this page were chosen by others: they are the small models with which
transformers tests itself (`tests/models/*/test_modeling_*.py` in its repository). transformers {version} wrote each model with random
float32 weights. Made by `python tests/make_upstream_table.py`; what the columns mean:
- **spread**: the standard deviation of transformers' results: the logits of a decoder, the last hidden rows of an encoder.
- **result**: the largest difference of any of pumice's results from transformers' in float32 on the CPU, or the error with which pumice
  refuses the model. The limit is 2e-4, and 5e-4 for models with a gated delta rule.

Words in brackets say what was changed: a setting that transformers' tests change, too, or, below an error, the setting that pumice does not
run. Two models differ from their tests because of defects in transformers. Its eager attention adds Falcon's ALiBi bias twice, so Falcon
runs with `sdpa`. For Nemotron-H, it raises the steps of the state space model to `time_step_min`, which is meant for initial weights
(huggingface/transformers#48989); `time_step_min` is 1e-30 here.

| family | model_type | spread | result |
|---|---|---|---|
"""


def settings(tester: dict[str, Any], config: Any) -> dict[str, Any]:
    """Returns the arguments with which transformers' tester calls the configuration class."""
    like, change = tester.get("like"), tester.get("change")
    if "text" in tester:
        half = next(t for t in TESTERS["models"] if t["model_type"] == tester["text"])
        text = settings(half | {"change": change}, transformers.CONFIG_MAPPING[tester["text"]])
        return copy.deepcopy(tester["settings"]) | {"text_config": text}
    numbers = copy.deepcopy(TESTERS["numbers"].get(like, {}) | tester.get("settings", {}) | TESTERS["changes"].get(change, {}))
    if like != "causal":
        return numbers
    known = [*inspect.signature(config.__init__).parameters, "pad_token_id"]
    other_names = {theirs: common for common, theirs in config.attribute_map.items()}
    return {name: numbers[key] for name in known for key in (name, other_names.get(name)) if key in numbers}


def cases(tester: dict[str, Any]) -> list[dict[str, Any]]:
    """Returns the tester as it stands, and once more for each of its changes."""
    return [tester, *(tester | {"change": change} for change in [*tester.get("also", []), *tester.get("adapted", [])])]


def randomise(model: torch.nn.Module, seed: int) -> None:
    """Gives a model weights that keep the size of a row. The weights with which transformers begins are so small that layers hardly
    change a row. A vector of equal numbers that are not 0 is the scale of a norm (0.002 in T5's tester). It becomes 1 plus noise."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if parameter.ndim > 1:
                parameter.copy_(noise / parameter.shape[-1] ** 0.5)
            elif parameter.numel() > 1 and parameter[0] != 0 and bool((parameter == parameter[0]).all()):
                parameter.copy_(1 + 0.1 * noise)
            else:
                parameter.add_(0.1 * noise)


def compare(tester: dict[str, Any]) -> tuple[float, float | str]:
    """Returns the standard deviation of transformers' results, and the largest difference or the error's first line."""
    config_class = transformers.CONFIG_MAPPING[tester["model_type"]]
    config = config_class(**settings(tester, config_class))
    encoder = tester.get("encoder")
    model_class = getattr(transformers, encoder or tester.get("decoder", "AutoModelForCausalLM"))
    make = model_class.from_config if hasattr(model_class, "from_config") else model_class._from_config
    model = make(config, attn_implementation=tester.get("attention", "eager"), experts_implementation="eager").float().eval()
    seed = zlib.crc32(tester["model_type"].encode())
    randomise(model, seed)
    text_config = config.get_text_config()
    named = [*config.to_dict().items(), *text_config.to_dict().items()]
    special = {value for key, value in named if key.endswith(("_token_id", "_token_index")) and isinstance(value, int)}
    plain = [i for i in range(3, text_config.vocab_size) if i not in special]
    places = next((getattr(text_config, key) for key in ("max_position_embeddings", "seq_length") if hasattr(text_config, key)), TOKENS)
    random = np.random.default_rng(seed)
    rope = TESTERS["changes"].get(tester.get("change"), {}).get("rope_parameters", {"rope_type": "default"})["rope_type"]
    # A dynamic rope changes only if the text is longer than the model's positions.
    length = min(TOKENS, places) if rope == "default" else places * 3 // 2 if rope == "dynamic" else places
    ids = random.choice(plain, length).astype(np.int32)
    inputs = {"input_ids": torch.tensor(ids[None].astype(np.int64))}
    types = None
    if encoder and getattr(config, "type_vocab_size", 0) > 1 and "token_type_ids" in inspect.signature(model.forward).parameters:
        types = random.integers(0, config.type_vocab_size, len(ids)).astype(np.int32)
        inputs["token_type_ids"] = torch.tensor(types[None].astype(np.int64))
    with torch.no_grad():
        result = model(**inputs)
    expected = (result.last_hidden_state if encoder else result.logits)[0].numpy()
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        try:
            loaded = _core.load(_core.open_file(folder), _core.LoadOptions(device="cpu", compute="float32", kv_dtype="f32", n_ctx=len(ids)))
            found = loaded.encode_tokens(ids, np.array([0, len(ids)]), types) if encoder else loaded.logits(ids, True)
        except Exception as error:
            return float(expected.std()), f"{type(error).__name__}: {str(error).splitlines()[0].removeprefix(f'{folder}: ')}"
    return float(expected.std()), float(np.abs(found - expected).max())


def row(family: str, tester: dict[str, Any]) -> tuple[str, bool]:
    """Returns a row of the table, and whether the result is within its limit. A refused model is."""
    spread, result = compare(tester)
    limit = 5e-4 if family in DELTA_RULE else 2e-4
    text = result if isinstance(result, str) else f"{result:.0e}"
    name = tester["model_type"] + (f" ({tester['change']})" if "change" in tester else "")
    return f"| {family} | {name} | {spread:.2f} | {text} |\n", isinstance(result, str) or result <= limit


def main(only: list[str]) -> None:
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    rows, good = "", True
    families = _core.build_info()["architectures"]
    # If several families have a model_type, the first of them is the one of transformers' own class.
    owners = {name: family for family, names in reversed(families.items()) for name in names["model_type"]}
    for family, names in families.items():
        testers = [t for t in TESTERS["models"] if owners.get(t["model_type"]) == family and (not only or t["model_type"] in only)]
        for case in (case for tester in testers for case in cases(tester)):
            text, within = row(family, case)
            print(text, end="" if within else "^^^ TOO LARGE\n", flush=True)
            rows, good = rows + text, good and within
        if not testers and not only:
            known = any(owners[name] == family and name in transformers.CONFIG_MAPPING for name in names["model_type"])
            why = "not in tests/upstream_configs.json" if known else "transformers has no class for it"
            rows += f"| {family} | {', '.join(names['model_type'])} |  | not compared: {why} |\n"
    if not only:
        PAGE.write_text(HEAD.format(version=transformers.__version__) + rows)
    sys.exit(not good)


if __name__ == "__main__":
    main(sys.argv[1:])
