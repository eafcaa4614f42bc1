"""The mixes and limits of docs/mixes.md, which tests/make_mix_table.py writes and test_mixes.py holds to them."""

from __future__ import annotations

from random_gguf import FORMS
from random_models import VARIANTS

# Mix -> llama.cpp's enum llama_ftype.
MIXES = {"F16": 1, "Q8_0": 7, "Q6_K": 18, "Q4_K_M": 15, "IQ4_XS": 30, "Q3_K_M": 12}
COLUMNS = 256  # every matrix has a multiple of so many: K-quants and IQ4_XS have such blocks
TEXTS, TOKENS = 24, 64  # three texts moved a row's ratio by 0.02 to 0.06 either way
ENTROPY = 3.0  # nats
SAME = 1e-5  # nats between two float32 runs that compute the same
RATIO = 1.02  # the largest allowed ratio to llama.cpp's divergence
ENCODERS_RATIO = 1.05  # in F16, where both round alike, nomic-bert's moved by 0.06 either way from three texts to three others
WIDE = [variant.name for variant in VARIANTS.values() if variant.kind == "mix" and variant.family in FORMS]
ENCODERS = [variant.name for variant in VARIANTS.values() if variant.kind == "encoder_mix" and variant.family in FORMS]
ENCODERS_TITLE = "## Encoders\n"  # the heading of the encoders' table, on the same page
