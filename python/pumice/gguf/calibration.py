"""Calibration for quantize(): the codes of the layers' matrices are chosen by the activations that texts produce."""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt

from .. import _core
from ..common.arguments import DIRECT_CHARACTERS, argument, shown_path
from ..common.interruptible import interruptible
from ..errors import NumericError
from ..generate.prompts import BYTES, Ids, prompt_ids
from ..tokens.tokenizer_files import load_tokenizer
from ..tokens.tokenizers import Tokenizer
from ..tokens.windows import WINDOW, windows_of
from .weights import Part, Unit, searched

log = logging.getLogger("pumice")

Int32 = npt.NDArray[np.int32]
Text = str | os.PathLike[str] | Ids
Texts = Text | Iterable[Text]

TOKENS = 16_384
LEAST_TOKENS = 1_024
_HELD = 10  # every tenth window is held back to judge the codes


@dataclass(frozen=True)
class Windows:
    """Texts, divided into windows of token ids. seen: the windows by which codes are chosen. held: the windows by which the codes are
    judged."""

    seen: list[Int32]
    held: list[Int32]

    @property
    def tokens(self) -> int:
        """Number of tokens in all windows."""
        return sum(map(len, (*self.seen, *self.held)))

    def key(self) -> str:
        """Returns a hash of the windows' ids."""
        found = hashlib.sha256()
        for part in (self.seen, self.held):
            found.update(f"{len(part)}:".encode())
            for window in part:
                found.update(f"{len(window)}:".encode() + window.astype("<i4").tobytes())
        return found.hexdigest()


def read_windows(file: _core.ModelFile, texts: Texts, tokens: int) -> Windows:
    """Tokenizes texts, and divides them into windows of 512 tokens (or of the model's context, if that is smaller). Returns windows with
    about `tokens` tokens, spread evenly over all texts. Raises ValueError if the texts have too few tokens, or ids that the model does not
    have. Also raises TypeError, TokenizerError and OSError."""
    context = file.get(f"{file.architecture}.context_length")
    size = min(WINDOW, int(context)) if isinstance(context, int) and context > 0 else WINDOW
    found: list[Int32] = []
    read = 0
    for ids, bos in _ids_of(file, texts):
        read += len(ids)
        found += windows_of(ids, size, bos)
    total = sum(map(len, found))
    count = min(len(found), max(2, len(found) * tokens // max(total, 1)))
    chosen = [found[i * len(found) // count] for i in range(count)]
    held = range(_HELD - 1, count, _HELD) if count >= _HELD else [count - 1]
    windows = Windows([window for i, window in enumerate(chosen) if i not in held], [chosen[i] for i in held if i >= 0])
    if count < 2 or windows.tokens < LEAST_TOKENS:
        raise ValueError(
            f"texts have {read} tokens, of which {total} are in whole windows; calibration needs at least {LEAST_TOKENS} tokens in two "
            f"windows of {size} or two texts, and {TOKENS} of mixed texts are better"
        )
    return windows


def _ids_of(file: _core.ModelFile, texts: Texts) -> Iterator[tuple[Int32, int | None]]:
    """Yields for each text its ids, and the id of the bos token if the ids begin with it (else None)."""
    vocabulary = next((shape[0] for name, _, shape, _ in file.tensors if name == "token_embd.weight"), 2**31 - 1)
    tokenizer: Tokenizer | None = None
    with argument("texts"):
        for number, text in enumerate(_several(texts)):
            given = _contents(text)
            if isinstance(given, str) and tokenizer is None:
                tokenizer = interruptible(partial(load_tokenizer, file))
            work = partial(prompt_ids, given, tokenizer, vocabulary, name=f"texts[{number}]")  # type: ignore[arg-type]
            ids = interruptible(work) if isinstance(given, str) and len(given) > DIRECT_CHARACTERS else work()
            yield ids, tokenizer.bos_id if tokenizer is not None and ids[0] == tokenizer.bos_id else None


def listed_texts(texts: Texts) -> list[Text]:
    """Returns all texts in a list, so that they can be iterated over twice. Raises TypeError."""
    return list(_several(texts))


def _several(texts: Texts) -> Iterable[Text]:
    if isinstance(texts, str | os.PathLike):
        return [texts]
    if isinstance(texts, np.ndarray) and texts.ndim == 1 and texts.dtype.kind in "iu":
        return [texts]
    if not isinstance(texts, Iterable) or isinstance(texts, (*BYTES, Mapping)):
        raise TypeError(f"texts must be a text, token ids, the path of a file, or several of these, not {type(texts).__name__}")
    return texts  # type: ignore[return-value]


def _contents(text: Text) -> str | Ids:
    if not isinstance(text, os.PathLike):
        return text
    path = Path(text)
    try:
        return path.read_text("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(
            f"texts: {shown_path(path)} is not UTF-8 text: byte 0x{error.object[error.start]:02x} at place {error.start}"
        ) from None


class Calibration:
    """The tensors whose codes are chosen by texts, and the units that pack these tensors."""

    def __init__(self, file: _core.ModelFile, windows: Windows, units: Sequence[Unit]) -> None:
        self.file, self.windows = file, windows
        self.cancel = _core.Cancel()  # stops the work on a unit
        wanted = [(tensor.name, tensor.format) for tensor in searched(units)]
        self._engine = _core.Calibration(file, windows.seen, windows.held, wanted)
        self._places = self._engine.places

    @property
    def places(self) -> Mapping[str, tuple[int, int]]:
        """For each of the tensors: (index of its layer, index of the layer's input by which the tensor is multiplied)."""
        return self._places

    @property
    def tensors(self) -> tuple[str, ...]:
        """The names of the tensors whose codes are chosen by texts."""
        return tuple(self._places)

    @property
    def memory(self) -> int:
        """The maximum number of bytes that the engine allocates."""
        return self._engine.memory

    def key(self) -> str:
        """Returns a text that changes whenever the bytes of the units may change."""
        info = _core.build_info()
        return f"{self.windows.key()} {info['isa']} {info['blas']}"

    def units(self, units: Sequence[Unit]) -> list[Unit]:
        """Returns all units. Those of calibrated tensors are replaced by units that calibrate, and come last, in the order of the model's
        layers."""
        others = [unit for unit in units if unit.tensors[0].name not in self._places]
        calibrated = [unit for unit in units if unit.tensors[0].name in self._places]
        calibrated.sort(key=lambda unit: self._places[unit.tensors[0].name])
        return [*others, *(replace(unit, pieces=1, make=self._make(unit)) for unit in calibrated)]

    def _make(self, unit: Unit) -> Callable[[int], Iterator[Part]]:
        tensor = unit.tensors[0]

        def make(piece: int) -> Iterator[Part]:
            try:
                data, searched, fed_back = self._engine.pack(tensor.name, tensor.format, self.cancel)
            except NumericError as error:
                raise NumericError(f"{tensor.name}: {error}") from None
            taken = "" if fed_back < searched else ": not better, so those of the search stay"
            log.info("%s: loss of %s codes %.4g, of searched ones %.4g%s", tensor.name, tensor.format, fed_back, searched, taken)
            yield Part(0, 0, data)

        return make
