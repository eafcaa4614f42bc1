"""Reads how sentence-transformers' module Transformer turns texts into tokens: sentence_bert_config.json, or a file of the same kind under
one of its older names. Source: base/modules/transformer.py of https://github.com/huggingface/sentence-transformers, 6.2."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from ..common.arguments import shown, shown_path
from ..common.side_files import field as json_field
from ..common.side_files import read_object
from ..errors import ModelFormatError, UnsupportedModelError
from .known_keys import first_of, unknown_keys

# The names of the file. The first one that is there and not empty is read.
NAMES = (
    "sentence_bert_config.json",
    *(f"sentence_{kind}_config.json" for kind in ("roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")),
)
# transformer_task -> the output of the model that it reads, and the name under which the module gives it.
_TASKS = {
    "feature-extraction": ("last_hidden_state", "token_embeddings"),
    "fill-mask": ("logits", "token_embeddings"),
    "sequence-classification": ("logits", "scores"),
    "text-generation": ("logits", "causal_logits"),
}
# Texts of templates that read a message's content as a list of parts.
_READS_PARTS = ("content[0]", ".type", "'type'", '"type"', "item.type", "message.content[")
_FLAT_TYPES = ("apertus", "deepseek_v3", "gpt_oss", "seed_oss")  # model types whose templates read a text, whatever they contain
# Keyword arguments of transformers that change no result here: how weights are loaded, where files are kept, how batches are padded.
_IDLE_ARGUMENTS = {
    "model": "torch_dtype dtype attn_implementation device_map low_cpu_mem_usage use_safetensors trust_remote_code revision token "
    "cache_dir local_files_only subfolder max_memory",
    "processor": "padding_side use_fast trust_remote_code revision token cache_dir local_files_only subfolder "
    "clean_up_tokenization_spaces padding max_pixels min_pixels",
    "config": "use_cache trust_remote_code revision token cache_dir local_files_only subfolder torch_dtype dtype output_hidden_states "
    "output_attentions return_dict attn_implementation",
}
_IDLE_PROCESSING = frozenset(("padding", "padding_side", "return_tensors", "pad_to_multiple_of", "return_attention_mask", "logits_to_keep"))


@dataclass(frozen=True)
class Messages:
    """How the chat template writes each text: as the message of a user, behind the prompt as the message of a system.

    form: "structured" if the template reads a content as a list of parts, "flat" if it reads a text, or "auto" if the template tells.
    variables: further variables of the template."""

    form: Literal["structured", "flat", "auto"] = "auto"
    variables: Mapping[str, Any] = field(default_factory=dict)

    def content(self, text: str, template: str, model_type: str) -> Any:
        """Returns a message's content that has a text, for a template of a model."""
        flat = self.form == "flat" or (
            self.form == "auto" and (model_type in _FLAT_TYPES or not any(part in template for part in _READS_PARTS))
        )
        return text if flat else [{"type": "text", "text": text}]


@dataclass(frozen=True)
class TransformerModule:
    """The settings of a Transformer module.

    values, file: the object in its file, and the file.
    task: transformer_task.
    pooled: whether the model itself gives one vector for a text.
    messages: how the chat template writes texts, or None if texts are tokenized as they are.
    max_tokens: the maximum number of tokens of a text, or None if the file does not say it.
    notes: what the file has that this version does not know, as in SentenceConfig."""

    values: dict[str, Any]
    file: Path
    task: str
    pooled: bool
    messages: Messages | None
    max_tokens: int | None
    notes: tuple[str, ...]


def transformer_module(folder: Path, kind: str = "Transformer") -> TransformerModule:
    """Returns the settings of the Transformer in a folder. kind: the class of the module. Raises ModelFormatError and
    UnsupportedModelError."""
    file, values = folder / NAMES[0], {}
    for name in NAMES:
        values = read_object(folder / name)
        if values:
            file = folder / name
            break
    default = "fill-mask" if kind == "MLMTransformer" else "feature-extraction"
    task = json_field(values, "transformer_task", str, file, default)
    if task not in _TASKS:
        raise UnsupportedModelError(f"{shown_path(file)}: transformer_task {shown(task)} is not run; this version has {', '.join(_TASKS)}")
    arguments, notes = _arguments(values, file)
    most, variables, more = _processing(values, file)
    modality, pooled = _modality(values, file, task, folder)
    if most is None and "model_max_length" in arguments:
        most = arguments["model_max_length"]
    elif most is None:
        most = json_field(values, "max_seq_length", int, file)
        if most is not None and most < 1:
            raise ModelFormatError(
                f"{shown_path(file)}: max_seq_length is {most}; it must be at least 1", file=str(file), field="max_seq_length"
            )
    messages = None if modality is None else Messages(modality, variables)
    if messages is not None and json_field(values, "do_lower_case", bool, file, False):
        raise UnsupportedModelError(f"{shown_path(file)}: do_lower_case with texts in the form of messages is not run")
    return TransformerModule(values, file, task, pooled, messages, most, (*unknown_keys("Transformer", values, file), *notes, *more))


def _modality(values: dict[str, Any], file: Path, task: str, folder: Path) -> tuple[Literal["structured", "flat", "auto"] | None, bool]:
    """Returns the form of messages, or None if texts are no messages, and whether the model itself pools."""
    said = json_field(values, "modality_config", dict, file)
    if said is None:
        return None, False
    key = next((key for key in ("message", "text") if key in said), None)
    if key is None:
        raise UnsupportedModelError(
            f"{shown_path(file)}: modality_config has {', '.join(map(shown, said)) or 'nothing'}, and no text: this version reads texts"
        )
    entry = said[key] if isinstance(said[key], dict) else {}
    output, name = _TASKS[task]
    found = entry.get("method_output_name"), values.get("module_output_name", name)
    pooled = entry.get("method") == "get_text_features" and found == ("pooler_output", "sentence_embedding")
    if pooled and read_object(folder / "config.json").get("model_type") not in ("clip", "clip_text_model"):
        pooled = False
    if not pooled and (entry.get("method"), *found) not in (("forward", output, name), ("forward", [output], name)):
        raise UnsupportedModelError(
            f"{shown_path(file)}: modality_config gives a {key} the method {shown(entry.get('method'))} and its output "
            f"{shown(found[0])} as {shown(found[1])}. With the transformer_task {shown(task)} this version runs forward and {output} "
            f"as {name}; its vectors would be others"
        )
    if key == "text":
        return None, pooled
    form = entry.get("format", "auto")
    if form not in ("structured", "flat", "auto"):
        raise UnsupportedModelError(f"{shown_path(file)}: the format of messages {shown(form)} is not one of structured, flat, auto")
    return form, pooled


def _arguments(values: dict[str, Any], file: Path) -> tuple[dict[str, int], list[str]]:
    """Reads keyword arguments of transformers: those of the model, of the tokenizer (the processor) and of the configuration. Returns the
    ones that are used, and notes about unknown ones."""
    used: dict[str, int] = {}
    unknown: list[str] = []
    for kind, names in (
        ("model", ("model_args", "model_kwargs")),
        ("processor", ("tokenizer_args", "processor_kwargs")),
        ("config", ("config_args", "config_kwargs")),
    ):
        for name in names:
            given = json_field(values, name, dict, file, {})
            for key in given:
                if kind == "processor" and key == "model_max_length":
                    used[key] = _tokens(given, key, file, f"{name}.{key}")
                elif key not in _IDLE_ARGUMENTS[kind].split():
                    unknown.append(f"{name}.{key}")
    tokenizer = json_field(values, "tokenizer_name_or_path", str, file)
    if tokenizer is not None and tokenizer not in (".", "./"):
        unknown.append("tokenizer_name_or_path")
    return used, [_note(unknown, file)] if unknown else []


def _processing(values: dict[str, Any], file: Path) -> tuple[int | None, dict[str, Any], list[str]]:
    """Reads processing_kwargs. Returns the maximum number of tokens of a text or None, the variables of the chat template, and notes."""
    given = json_field(values, "processing_kwargs", dict, file, {})
    most: int | None = None
    variables: dict[str, Any] = {}
    unknown = [f"processing_kwargs.{key}" for key in given if key not in ("common", "text", "image", "audio", "video", "chat_template")]
    for part in ("common", "text", "chat_template"):  # the later ones override the earlier ones
        for key, value in json_field(given, part, dict, file, {}).items():
            where = f"processing_kwargs.{part}.{key}"
            if key == "max_length":
                most = _tokens(given[part], key, file, where)
            elif key == "truncation":
                if value not in (True, "longest_first", None):
                    raise UnsupportedModelError(f"{shown_path(file)}: {where} {shown(value)} is not run; texts are cut at their end")
            elif key == "restore_suffix" and part == "chat_template":
                if value is not True:
                    raise UnsupportedModelError(f"{shown_path(file)}: {where} {shown(value)} is not run; the template's end stays")
            elif part == "chat_template" and key not in ("tokenize", "return_dict", "continue_final_message", *_IDLE_PROCESSING):
                variables[key] = value
            elif key not in _IDLE_PROCESSING:
                unknown.append(where)
    return most, variables, [_note(unknown, file)] if unknown else []


def _tokens(values: dict[str, Any], key: str, file: Path, where: str) -> int:
    found = json_field(values, key, int, file)
    if found is None or not 1 <= found < 2**31:
        raise ModelFormatError(f"{shown_path(file)}: {where} is {shown(found)}; it must be 1 to 2147483647", file=str(file), field=key)
    return int(found)


def _note(unknown: list[str], file: Path) -> str:
    return f"has settings in {file.name} that this version does not use ({first_of(unknown)}): results may differ from the original's"
