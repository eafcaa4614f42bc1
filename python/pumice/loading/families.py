"""Names of model families that pumice does not run, for error messages and `pumice info`. build_info() lists the families that it runs."""

from __future__ import annotations

from dataclasses import dataclass

from .. import _core

EXPERTS = "a mixture of experts (its names and settings)"
STATE = "recurrent state or short convolutions beside keys and values"
LATENT = "multi-head latent attention (keys and values compressed into one row)"
DISENTANGLED = "disentangled attention with queries, keys and values in one tensor by heads"
REFUSED = "is not planned"


@dataclass(frozen=True)
class Unknown:
    """A family that pumice does not run: its usual name, and the feature of the family that pumice lacks."""

    name: str
    missing: str


# Names of a family in files, separated by spaces -> its usual name and the missing feature. The names in files are model_type in
# config.json (written by transformers) and general.architecture in GGUF (written by llama.cpp).
_NOT_RUN: dict[str, tuple[str, str]] = {
    "gemma3n": ("Gemma 3n", REFUSED),
    "mistral4": ("Mistral Small 4", LATENT),
    "mamba falcon_mamba": ("Mamba (Mamba-2 is run), Falcon Mamba", STATE),
    "bailing_moe_linear bailing_hybrid bailingmoe3": ("Ring-linear, Ling 2.5 and 3", "linear attention of their kinds"),
    "mt5 umt5": ("mT5, UMT5", "their defaults, and a table of biases for each layer"),
    "deberta": ("DeBERTa 1 (2 and 3 are run)", DISENTANGLED),
    "rwkv rwkv6 rwkv7 jamba xlstm bitnet phimoe grok dbrx arctic": ("RWKV, Jamba, xLSTM, BitNet, Phi-MoE, Grok, DBRX, Arctic", REFUSED),
}
NOT_RUN = {word: Unknown(name, missing) for words, (name, missing) in _NOT_RUN.items() for word in words.split()}


def _runs(architecture: str, kind: str) -> str:
    """Returns the families that have this name in files of this kind, joined by "or". In GGUF, "llama" may be a Llama or a Mixtral."""
    families = _core.build_info()["architectures"].items()
    found = (repr(family) for family, names in families if architecture in names["gguf" if kind == "gguf" else "model_type"])
    return " or ".join(found)


# name of an assistant's family in files -> family of the models that it assists
ASSISTANTS = {"gemma4_assistant": "Gemma 4", "gemma4_unified_assistant": "Gemma 4", "gemma4-assistant": "Gemma 4"}


def explain(architecture: str, kind: str, text_half: object = None) -> str:
    """Returns one sentence that tells whether pumice runs a family, knows it but does not run it, or does not know it. architecture: the
    family's name in the model's file.  kind: the kind of this file ("gguf" or "safetensors").  text_half: for a multimodal model, the
    family of its text half."""
    if architecture in ASSISTANTS:
        return f"this is an assistant of {ASSISTANTS[architecture]}: pumice runs it beside its model, as load(model, mtp=this path)"
    if isinstance(text_half, str) and architecture not in NOT_RUN and not _runs(architecture, kind):
        return f"of {architecture!r} the text half: {explain(text_half, kind)}"
    if family := _runs(architecture, kind):
        return f"pumice runs this family as {family}"
    if architecture in NOT_RUN:
        known = NOT_RUN[architecture]
        lacks = "this family is not planned" if known.missing == REFUSED else f"missing for it: {known.missing}"
        return f"this is {known.name}, which this version does not run; {lacks}"
    return f"{architecture!r} is not a family that pumice knows" if architecture else "the file does not say its family"
