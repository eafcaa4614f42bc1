"""quantize(), which writes a GGUF file with its weights in other formats."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from .. import _core
from ..common.arguments import checked_keywords, flag, integer, refuse_to_replace, shown, shown_path
from ..common.progress import Progress
from ..loading.files import gguf_parts
from ..loading.hub import resolve
from .calibration import LEAST_TOKENS, TOKENS, Calibration, Texts, read_windows
from .container import raw_metadata
from .estimates import seconds
from .importance import Importance
from .job import Job, source_key, split_size
from .mixes import MIXES, Chooser, Outline, file_type, outline
from .packing import PLAIN
from .plans import ConversionPlan, plan_of, target_path
from .sizes import bits_asked, sized
from .weights import Unit, file_units, searched


@checked_keywords()
def quantize(
    source: str | os.PathLike[str],
    output: str | os.PathLike[str],
    *,
    to: str,
    keep: Mapping[str, str] | None = None,
    requantize: bool = False,
    texts: Texts | None = None,
    importance: str | os.PathLike[str] | None = None,
    tokens: int = TOKENS,
    split: str | int | None = None,
    force: bool = False,
    dry_run: bool = False,
    progress: Progress = None,
) -> ConversionPlan:
    """Writes a GGUF file with its weights in other formats, and returns a plan that describes the new file. The metadata stay as they are.
    As with convert(), the file is written completely or not at all, and an interrupted call continues.

    source: the path of a GGUF file (of any part if the model is split), or a hub id.
    output: the path of the new file.
    to: a format, "f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "q5_0", "q5_1", or a mix of formats, "q2_k", "q3_k_s", "q3_k_m", "q3_k_l",
        "q4_k_s", "q4_k_m", "q5_k_s", "q5_k_m", "q6_k", "iq4_nl", "iq4_xs". Each tensor gets the format that it has in llama-quantize's
        files without an importance matrix. `to` may also be a size, "4.5bpw": the tensors then take at most this many bits per weight, and
        each matrix gets a format by its error and its kind (sizes.py). Scales are searched, as with load(quantize=), except those of Q8_0,
        which is rounded as llama.cpp rounds it. A tensor that has its format already keeps its bytes.
    keep: regular expression -> format ("f32", ..., "q4_k", "iq4_xs"), for tensors whose names match. The first match counts.
    requantize: whether weights that are already quantized may be rounded a second time. Those of Q8_0, and tensors of `keep`, always may.
    texts: for calibration, one text or several, each a str, its token ids, or the path of a UTF-8 file (a pathlib.Path). The model computes
        them, and the codes of the layers' matrices are chosen so that their products change least (GPTQ, arXiv 2210.17323, in the blocks of
        the same formats, then coordinate descent). A tenth of the texts is held back: a matrix that is not better on them gets the codes of
        the search. Embeddings, the head, stacks of experts and Q8_0 always get those. Give texts of all kinds for which the model is used.
    importance: in place of texts, the path of an importance matrix, a GGUF file of llama.cpp's llama-imatrix. In the search, the squared
        error of a weight is multiplied by the mean square of the inputs of its column. This applies to all tensors that the file names,
        stacks of experts too, but not to Q8_0. Tensors that the file does not name, and experts that its texts did not reach, are searched
        as without it.
    tokens: number of tokens of the texts that the model computes, at least 1,024. They are windows of 512 tokens, spread evenly over all
        texts.
    split, force, dry_run, progress: as in convert().

    Raises ValueError and TypeError for wrong arguments, for weights that would be rounded a second time, and for the importance matrix of
    another model; UnsupportedModelError for tensors that hold no weights (I32), and with texts for a model that pumice does not run;
    ModelFormatError, NumericError, TokenizerError, MemoryError, FileExistsError and OSError."""
    path, target = resolve(source), target_path(output)
    file = _core.open_file(str(path))
    if file.kind != "gguf":
        raise ValueError(f"{shown_path(path)} is no GGUF file; convert() makes one of a folder")
    if keep is not None and not (isinstance(keep, Mapping) and all(isinstance(each, str) for pair in keep.items() for each in pair)):
        raise TypeError("keep must be a dict from regular expressions to names of formats")
    if texts is not None and importance is not None:
        raise ValueError("importance: texts are given, too; codes are chosen by one of them, so leave the other out")
    weighted = None if importance is None else Importance(importance, file)
    bits = bits_asked(to)
    chooser = Chooser(to, _outline(file), keep or {}) if bits is None else sized(file, bits, _outline(file), keep or {})
    units = list(file_units(file, chooser.choose) if weighted is None else file_units(file, chooser.choose, weighted.columns))
    if not flag("requantize", requantize):
        _refuse_second_rounding(file, chooser, units)
    if unused := chooser.unused():
        raise ValueError(f"keep: {', '.join(map(shown, unused))} fits the name of no tensor (pumice info FILE --tensors lists them)")
    keys = {name: value for name, value in raw_metadata(gguf_parts(path)[0]).items() if not name.startswith("split.")}
    keys_written = {**keys, "general.file_type": file_type(units) if bits else MIXES[to].file_type, "general.quantization_version": 2}
    parts = gguf_parts(path)
    watched = parts if weighted is None else [*parts, weighted.path]
    read = source_key(file, watched)
    source_said = source_key(file, parts)
    calibration = None
    if texts is not None:
        windows = read_windows(file, texts, integer("tokens", tokens, LEAST_TOKENS))
        calibration = Calibration(file, windows, units)
        units = calibration.units(units)
        source_said += f"\n{calibration.key()}"
    by_importance: tuple[str, ...] = ()
    if weighted is not None:
        by_importance = weighted.used(searched(units))
        source_said += f"\n{weighted.key()}"
    cancel = None if calibration is None else calibration.cancel
    job = Job(
        target, keys_written, units, source_said, split_size(split), flag("force", force), cancel, lambda: source_key(file, watched) == read
    )
    for each in job.files:
        refuse_to_replace(each.path, watched)
    only_plan = flag("dry_run", dry_run)
    if not only_plan:
        job.run(progress)
    return plan_of(job, calibration, by_importance, seconds(units, calibration) if only_plan else None)


def _refuse_second_rounding(file: _core.ModelFile, chooser: Chooser, units: Sequence[Unit]) -> None:
    for (name, kind, _, _), unit in zip(file.tensors, units, strict=True):
        (tensor,), source = unit.tensors, file.format(name)
        if tensor.format != source and tensor.format not in PLAIN and source not in (*PLAIN, "Q8_0") and not chooser.kept(name):
            raise ValueError(
                f"{name} is {kind} already, and quantizing it to {tensor.format} would add a second rounding to the first. Take the file "
                f"with F16 or BF16 weights, keep the tensor with keep, or allow the second rounding with requantize=True (--requantize)"
            )


def _outline(file: _core.ModelFile) -> Outline:
    return outline(tuple(name for name, _, _, _ in file.tensors), file.architecture, file.get)
