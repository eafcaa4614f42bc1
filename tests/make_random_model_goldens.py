"""Makes tests/goldens/random_models: the results of transformers on the small models of tests/random_models. For families that transformers
does not have, they are the results of tests/reference_models.py.

    python tests/make_random_model_goldens.py [variant or family ...]

Needs torch, transformers and safetensors. The tests need none of them.
"""

from __future__ import annotations

import copy
import json
import re
import sys
import tempfile
import traceback
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests" / "python" / "support")]

import draft_heads  # noqa: E402
import random_models  # noqa: E402
from random_models import MIXES, VARIANTS, Variant, golden_file  # noqa: E402

PROMPT = 20  # number of ids before the greedy text
GREEDY = 64  # number of ids in the greedy text
MARGIN = 1e-3  # minimum gap between the two largest logits of a greedy step; if it is smaller, correct engines may choose other tokens
DISTINCT = 12  # minimum number of distinct ids in a greedy text, because a text that repeats itself proves little
REPEATED = 20  # maximum number of times that a greedy text may have the same id
SEEDS = range(7, 31)
KEPT = 6400  # number of logits that are kept, of all rows together and in addition to the whole last row; they take 24 KB

AUTO = {
    "decoder": "AutoModelForCausalLM",
    "encoder": "AutoModel",
    "classifier": "AutoModelForSequenceClassification",
    "masked": "AutoModelForMaskedLM",
    "refused": "AutoModelForCausalLM",
    "mix": "AutoModelForCausalLM",
    "encoder_mix": "AutoModel",
}


def auto_class(variant: Variant) -> Any:
    import transformers

    return getattr(transformers, variant.auto or AUTO[variant.kind])


def write_config(variant: Variant, config: dict[str, Any]) -> None:
    golden_file(variant.name, "config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")


def write_folder_files(variant: Variant) -> None:
    """Writes config.json and the names and shapes of the tensors. They are as save_pretrained() writes them, so the tensors have the names
    that they have on the hub."""
    import transformers
    from safetensors import safe_open

    config = getattr(transformers, variant.config)(**copy.deepcopy(variant.settings))  # a copy, because the config adds keys to its dicts
    cls = auto_class(variant)
    model = (cls.from_config if hasattr(cls, "from_config") else cls._from_config)(config, attn_implementation="eager")
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        written = json.loads((Path(folder) / "config.json").read_text())
        if variant.as_given:
            written = {key: written[key] for key in ("architectures", "model_type")} | variant.settings
        with safe_open(Path(folder) / "model.safetensors", "np") as file:
            shapes = {key: list(file.get_slice(key).get_shape()) for key in sorted(file.keys())}
    for key, shape in shapes.items():  # save_pretrained() cuts OLMo Hybrid's joined taps in thirds, whatever the widths of q, k and v
        if part := re.fullmatch(r"(.*\.[qkv])_conv1d\.weight", key):
            shape[0] = shapes[f"{part[1]}_proj.weight"][0]
    if variant.settings.get("mtp_num_hidden_layers"):  # transformers does not have the draft head, whose tensors are in files of the hub
        shapes |= draft_heads.shapes(shapes)
    if variant.bare:
        shapes = {key.removeprefix(model.base_model_prefix + "."): shape for key, shape in shapes.items()}
    write_config(variant, written)
    golden_file(variant.name, "shapes.json").write_text(json.dumps(shapes))


def load(variant: Variant, folder: Path) -> Any:
    import torch

    model, report = auto_class(variant).from_pretrained(
        folder, dtype=torch.float32, attn_implementation=variant.attention, output_loading_info=True
    )
    wrong = {key: value for key, value in report.items() if value}
    assert not wrong, f"{variant.name}: transformers does not find its own tensors: {wrong}"
    scan_by_steps(model)
    run_llama_4_without_pictures(model)
    return model.eval()


def scan_by_steps(model: Any) -> None:
    """Has the gated delta rule computed token by token, as transformers does while it generates. For whole texts it has another form, in
    chunks, whose results are up to 1.5e-4 away from those in float64; steps are ten times nearer."""
    for part in model.modules():
        code = sys.modules[type(part).__module__]
        if hasattr(code, "torch_chunk_gated_delta_rule"):
            code.torch_chunk_gated_delta_rule = code.torch_recurrent_gated_delta_rule


def run_llama_4_without_pictures(model: Any) -> None:
    """Lets Llama 4's class for pictures and text run on text alone. transformers 5.24 asks the result of its text half for image_outputs,
    which that result does not have."""
    code = sys.modules[type(model).__module__]
    if hasattr(code, "Llama4CausalLMOutputWithPast"):
        code.MoeCausalLMOutputWithPast.image_outputs = None


def some_ids(seed: int, count: int) -> list[int]:
    return [1] + [int(x) for x in np.random.RandomState(seed).randint(3, 500, count - 1)]


class Reference:
    """A decoder of tests/reference_models.py, with the same methods as Original."""

    def __init__(self, variant: Variant) -> None:
        import reference_models

        self.run = reference_models.decoder(variant.settings, random_models.tensors(variant.name))

    def logits(self, ids: list[int]) -> np.ndarray:
        return self.run(np.array(ids)).astype(np.float32)

    def greedy(self, prompts: list[list[int]]) -> tuple[np.ndarray, np.ndarray]:
        texts, margins = [], []
        for prompt in prompts:
            ids = list(prompt)
            gaps = []
            for _ in range(GREEDY):
                row = self.run(np.array(ids))[-1]
                best = np.sort(row)
                gaps.append(best[-1] - best[-2])
                ids.append(int(row.argmax()))
            texts.append(ids[PROMPT:])
            margins.append(min(gaps))
        return np.array(texts), np.array(margins)


class Original:
    def __init__(self, variant: Variant, folder: Path) -> None:
        self.model = load(variant, folder)

    def logits(self, ids: list[int]) -> np.ndarray:
        import torch

        with torch.no_grad():
            return self.model(torch.tensor([ids])).logits[0].float().numpy()

    def greedy(self, prompts: list[list[int]]) -> tuple[np.ndarray, np.ndarray]:
        import torch

        with torch.no_grad():
            result = self.model.generate(
                torch.tensor(prompts),
                attention_mask=torch.ones(len(prompts), PROMPT, dtype=torch.long),
                max_new_tokens=GREEDY,
                do_sample=False,
                eos_token_id=None,
                pad_token_id=0,
                output_logits=True,
                return_dict_in_generate=True,
            )
        best = torch.stack(result.logits).topk(2, dim=-1).values  # (steps, prompts, 2)
        return result.sequences[:, PROMPT:].numpy(), (best[..., 0] - best[..., 1]).min(0).values.numpy()


def decoder(variant: Variant, model: Original | Reference) -> dict[str, np.ndarray]:
    # There are fewer seeds for a Reference, which is slow because it has no cache.
    seeds = [variant.seed] if variant.seed is not None else list(SEEDS if variant.config else SEEDS[:6])
    texts, margins = model.greedy([some_ids(seed, variant.ids)[:PROMPT] for seed in seeds])
    distinct = np.array([len(set(text.tolist())) for text in texts])
    repeated = np.array([np.bincount(text).max() for text in texts])
    good = [i for i in range(len(seeds)) if margins[i] > MARGIN and distinct[i] >= DISTINCT and repeated[i] <= REPEATED]
    if variant.seed is None:
        best = f"{distinct.max()} distinct ids, {repeated.min()} times the same"
        assert good, f"{variant.name}: the greedy texts of {seeds} have near ties or are monotonous (at best {best}): change its scale"
    chosen = good[0] if good else 0
    ids = some_ids(seeds[chosen], variant.ids)
    logits = model.logits(ids)
    assert np.isfinite(logits).all()
    stride = int(2 ** np.ceil(np.log2(logits.size / KEPT)))
    wide = logits.astype(np.float64)
    peak = wide.max(1)
    print(
        f"{variant.name}: seed {seeds[chosen]}, logits' std {logits.std():.2f}, {distinct[chosen]} distinct greedy ids, "
        f"smallest margin {margins[chosen]:.1e}, {len(good)} of {len(seeds)} seeds would do",
        flush=True,
    )
    return dict(
        ids=np.int32(ids),
        logits=logits[:, ::stride],
        stride=np.int32(stride),
        last=logits[-1],
        log_sum_exp=(peak + np.log(np.exp(wide - peak[:, None]).sum(1))).astype(np.float32),
        targets=logits[np.arange(len(ids) - 1), ids[1:]],
        greedy=np.int32(texts[chosen]),
    )


def encoder_text(variant: Variant, number: int, length: int, padding: int | None) -> list[int]:
    """Returns the ids of a text. None of them is the padding id, because some families count only other ids as positions."""
    text = some_ids((variant.seed or SEEDS[0]) + number, length)
    text[0] = 0 if padding == text[0] else text[0]
    return text if variant.end is None else [*text[:-1], variant.end]


def encoder(variant: Variant, folder: Path) -> dict[str, np.ndarray]:
    """Makes the golden of an encoder. Each text runs by itself and without padding. A ragged batch must have the same results."""
    import inspect

    import torch

    if not variant.config:
        return own_encoder(variant)
    model = load(variant, folder)
    body = model.base_model if variant.kind in ("classifier", "masked") else model
    typed = "token_type_ids" in inspect.signature(body.forward).parameters and getattr(model.config, "type_vocab_size", 2) > 1
    ids, types, hidden, rows = [], [], [], []
    for number, length in enumerate(variant.texts):
        # MPNet's embeddings use another padding id than its config says.
        padding = getattr(getattr(body, "embeddings", None), "padding_idx", getattr(model.config, "pad_token_id", None))
        text = encoder_text(variant, number, length, padding)
        arguments = {"input_ids": torch.tensor([text])}
        if typed:
            types += [0] * (length // 2) + [1] * (length - length // 2)
            arguments["token_type_ids"] = torch.tensor([types[-length:]])
        if variant.bidirectional:
            arguments |= both_ways(body, length)
        with torch.no_grad():
            hidden.append(body(**arguments).last_hidden_state[0].float().numpy())
            if variant.kind == "classifier":
                rows.append(model(**arguments).logits[0].float().numpy())
            if variant.kind == "masked":  # SPLADE: https://arxiv.org/abs/2109.10086
                rows.append(torch.log1p(torch.relu(model(**arguments).logits[0])).max(0).values.float().numpy())
            if variant.kind == "projection":
                rows.append(model(**arguments).text_embeds[0].float().numpy())
        ids += text
    return encoder_golden(variant, ids, types, np.concatenate(hidden), rows)


def both_ways(body: Any, length: int) -> dict[str, Any]:
    """Returns the arguments with which a decoder's body attends in both directions: a mask of zeros, which is added to the scores in place
    of the causal mask. Also centres short convolutions, as Lfm2BidirectionalModel of the Hugging Face hub does."""
    import torch

    mask = torch.zeros(1, 1, length, length)
    code = sys.modules[type(body).__module__]
    if not hasattr(code, "Lfm2ShortConv"):
        return {"attention_mask": mask}

    def centred(x: Any, weight: Any, bias: Any, **_: Any) -> Any:
        width = weight.shape[-1]
        return torch.nn.functional.conv1d(x, weight[:, None], bias, padding=(width - 1) // 2, groups=x.shape[1])

    code.causal_conv1d_fn = centred
    return {"attention_mask": {"full_attention": mask, "conv": None}, "use_cache": False}


def own_encoder(variant: Variant) -> dict[str, np.ndarray]:
    import reference_models

    weights = random_models.tensors(variant.name)
    run = reference_models.encoder(variant.settings, weights)
    classify = reference_models.classifier(variant.settings, weights) if variant.kind == "classifier" else None
    ids, types, hidden, rows = [], [], [], []
    for number, length in enumerate(variant.texts):
        ids += encoder_text(variant, number, length, variant.settings["pad_token_id"])
        types += [0] * (length // 2) + [1] * (length - length // 2)
        hidden.append(run(np.array(ids[-length:]), np.array(types[-length:])))
        rows += [classify(hidden[-1]).astype(np.float32)] if classify else []
    typed = variant.settings.get("type_vocab_size", 0) > 1
    return encoder_golden(variant, ids, types if typed else [], np.concatenate(hidden).astype(np.float32), rows)


def encoder_golden(variant: Variant, ids: list[int], types: list[int], states: np.ndarray, rows: list[np.ndarray]) -> dict[str, np.ndarray]:
    assert np.isfinite(states).all()
    stride = max(1, int(2 ** np.ceil(np.log2(states.size / KEPT))))
    golden = dict(ids=np.int32(ids), offsets=np.int64(np.cumsum([0, *variant.texts])), hidden=states[:, ::stride], stride=np.int32(stride))
    if types:
        golden["types"] = np.int32(types)
    if rows:
        golden[{"classifier": "logits", "masked": "sparse"}.get(variant.kind, "embeddings")] = (
            np.concatenate(rows) if rows[0].ndim == 2 else np.stack(rows)
        )
    print(f"{variant.name}: hidden rows' std {states.std():.2f}", *(np.round(row[:4], 2) for row in rows), flush=True)
    return golden


def make(variant: Variant) -> None:
    golden_file(variant.name, "npz").parent.mkdir(parents=True, exist_ok=True)
    if variant.config:
        write_folder_files(variant)
    else:
        import reference_models

        write_config(variant, variant.settings)
        golden_file(variant.name, "shapes.json").write_text(json.dumps(reference_models.shapes(variant.settings)))
    if variant.kind in ("refused", *MIXES):
        print(f"{variant.name}: written, {f'to be refused for {variant.reason}' if variant.reason else 'to be quantized'}", flush=True)
        return
    with tempfile.TemporaryDirectory() as target:
        folder = random_models.make_folder(variant.name, Path(target))
        if variant.kind == "decoder":
            golden = decoder(variant, Original(variant, folder) if variant.config else Reference(variant))
        else:
            golden = encoder(variant, folder)
    np.savez_compressed(golden_file(variant.name, "npz"), **golden)
    if variant.hub_config:
        write_config(variant, variant.hub_config)


def main(chosen: list[str]) -> int:
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    failed = []
    for variant in VARIANTS.values():
        if chosen and variant.name not in chosen and variant.family not in chosen:
            continue
        try:
            make(variant)
        except Exception:  # goes on with the other variants; the last line and the exit status report the failure
            traceback.print_exc()
            failed.append(variant.name)
    if failed:
        print("FAILED:", *failed)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
