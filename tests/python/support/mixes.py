"""The quantization mixes and the limits of docs/mixes.md. tests/make_mix_table.py writes that page, and test_mixes.py checks it."""

from __future__ import annotations

import re

import random_models
from random_gguf import WRITTEN
from random_models import VARIANTS

# Name of a mix -> its value in llama.cpp's enum llama_ftype.
MIXES = {"F16": 1, "Q8_0": 7, "Q6_K": 18, "Q4_K_M": 15, "IQ4_XS": 30, "Q3_K_M": 12}
COLUMNS = 256  # every matrix has a multiple of 256 columns, the block size of K-quants and IQ4_XS
TEXTS, TOKENS = 24, 64  # texts, tokens per text; with only three texts, the ratio of a row varied by 0.02 to 0.06 either way
# In a mixture of experts, a few rows choose other experts once they are rounded, and these rows make up most of a cell. With 24 texts the
# ratios of Q8_0 lay between 0.86 and 1.07, with 150 texts between 0.98 and 1.02.
TEXTS_OF_MIXTURES = 150
MORE_TEXTS = {"mellum_wide": 400, "qwen3_5_moe_wide": 600, "qwen3_next_wide": 600}  # small models whose ratios still vary by more than 0.02
ENTROPY = 3.0  # entropy of the distributions of the next token, in nats
SAME = 1e-5  # largest allowed divergence of two float32 runs of the same model, in nats
RATIO = 1.02  # largest allowed ratio of pumice's divergence to llama.cpp's
# The same ratio for encoders. In F16, where both engines round alike, nomic-bert's ratio moved by 0.06 either way from three texts to three
# other texts.
ENCODERS_RATIO = 1.05

WIDE = [variant.name for variant in VARIANTS.values() if variant.kind == "mix" and variant.family in WRITTEN]
ENCODERS = [variant.name for variant in VARIANTS.values() if variant.kind == "encoder_mix" and variant.family in WRITTEN]
# Families, and small models, that cannot be compared with llama.cpp, and why. They have no row on the page.
NOT_COMPARED = {
    "deepseek_v2_wide": "llama.cpp loads a file without attention.q_lora_rank only if it has 26 or 27 layers",
    "gemma4_26b_wide": "llama.cpp's GELU is a table of float16, so that some rows choose other experts there: half of all rows differ by"
    " less than 2e-6 nats, and one in 100 by more than 1.6e-2",
    "nomic_bert_moe": "llama.cpp's GELU is a table of float16, so that some rows choose other experts there: 6e-5 apart in float32, where"
    " BERT's rows are 5e-8 apart",
    "neobert": "llama.cpp takes the rows of attn_qkv as all q, all k and all v; the file has q, k and v of each head side by side",
}
COMPARED = [name for name in WIDE if name not in NOT_COMPARED]  # the decoders with a row on the page
ENCODERS_TITLE = "## Encoders\n"  # the heading of the encoders' table, on the same page


def is_mixture(name: str) -> bool:
    """Whether the small model has experts: its tensors say so."""
    return any(re.search(r"expert|_moe\.", tensor) for tensor in random_models.tensors(name))
