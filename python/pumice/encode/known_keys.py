"""The keys of the JSON files of a sentence-transformers folder, of versions 0.3 to 6.2, and of PyLate. A key is read, or it changes no
result here. A test compares the table with the classes of sentence-transformers. Source: `config_keys` of its modules,
https://github.com/huggingface/sentence-transformers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ..common.arguments import shown


class Keys(NamedTuple):
    """The known keys of one file. read: the keys whose values sentence_config.py uses or refuses.  idle: the keys that change no result."""

    read: frozenset[str]
    idle: frozenset[str] = frozenset()


def _keys(read: str, idle: str = "") -> Keys:
    return Keys(frozenset(read.split()), frozenset(idle.split()))


_POOLINGS = "cls_token max_tokens mean_tokens mean_sqrt_len_tokens weightedmean_tokens lasttoken"
_WIDTHS = "word_embedding_dimension embedding_dimension"
PYLATE = (
    "query_length document_length query_expansion do_query_expansion attend_to_expansion_tokens attend_to_mask_tokens query_prefix "
    "document_prefix skiplist_words"
)

# Kind of file -> its keys. A kind is the class of a module, or the name of the file.
KNOWN: Mapping[str, Keys] = {
    "config_sentence_transformers.json": _keys(
        f"prompts default_prompt_name similarity_fn_name activation_fn max_active_dims truncate_dim model_type {PYLATE}",
        # The versions that wrote the folder; the precision in which torch keeps some modules; what PyLate pads to and how it trains.
        "__version__ keep_in_fp32_modules pad_to_multiple_of num_labels",
    ),
    "Transformer": _keys(
        "transformer_task modality_config module_output_name processing_kwargs max_seq_length do_lower_case query_length document_length "
        "query_expansion model_args model_kwargs tokenizer_args processor_kwargs config_args config_kwargs tokenizer_name_or_path",
        "unpad_inputs backend cache_dir",
    ),
    "Pooling": _keys(f"pooling_mode include_prompt {' '.join(f'pooling_mode_{mode}' for mode in _POOLINGS.split())}", _WIDTHS),
    "Dense": _keys("in_features out_features bias activation_function use_residual module_input_name module_output_name"),
    "LayerNorm": _keys("dimension"),
    "Normalize": _keys("module_input_name module_output_name"),
    "Dropout": _keys("", "dropout"),
    "LogitScore": _keys("true_token_id false_token_id module_input_name"),
    "MultiVectorMask": _keys("skiplist_words skiplist_tasks keep_only_token_ids"),
    "SpladePooling": _keys("pooling_strategy activation_function", f"{_WIDTHS} chunk_size"),
    "SparseStaticEmbedding": _keys("", "frozen"),
    "Router": _keys("types structure parameters", "default_route allow_empty_key"),
}


def unknown_keys(kind: str, values: Mapping[str, Any], file: Path) -> tuple[str, ...]:
    """Returns a note for a file that has keys which KNOWN lacks, or () if it has none."""
    known = KNOWN[kind]
    unknown = [key for key in values if key not in known.read and key not in known.idle]
    if not unknown:
        return ()
    keys = "a key that this version does not know" if len(unknown) == 1 else "keys that this version does not know"
    return (f"has {keys} in {file.parent.name}/{file.name} ({first_of(unknown)}): results may differ from the original's",)


def first_of(keys: Sequence[str]) -> str:
    """Returns the first eight keys as text for a note, and how many more there are."""
    return ", ".join(shown(key, 80) for key in keys[:8]) + (f" and {len(keys) - 8} more" if len(keys) > 8 else "")
