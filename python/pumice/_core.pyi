"""The compiled engine: arrays and ids only. Everything that knows text lives in Python beside it.

Every call that works for long releases the GIL and sees Ctrl-C within 100 ms (KeyboardInterrupt). Errors are the classes of
pumice.errors, which registers them here with set_error_types().
"""

from collections.abc import Callable, Iterable, Sequence
from types import ModuleType
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

_Int32 = npt.NDArray[np.int32]
_Int64 = npt.NDArray[np.int64]
_Float32 = npt.NDArray[np.float32]

__version__: str
ops: ModuleType  # programs of any operations on arrays; for tests and bench (python/bindings/ops.cpp)

def set_error_types(types: dict[str, type[BaseException]]) -> None:
    """Maps kinds of error (the names of ErrorKind in cpp/core/error.h, and "base") to exception classes.

    A class of kind "model_format" is made with keyword arguments file, field and offset beside its message."""

def devices() -> list[dict[str, Any]]:
    """One dict per device: id, name, type, driver, memory_total, memory_free, features (list of str), usable, why_not."""

def build_info() -> dict[str, Any]:
    """version, compiler, isa (chosen), isas (runnable here), blas (library or why not), threads,
    huge_pages (always, madvise, never, unknown), formats (names), architectures."""

def self_test() -> list[dict[str, Any]]:
    """Every kernel of the chosen instruction set against the scalar one: dicts of name, ok, error (NMSE), limit, detail (str)."""

def spm_merges(tokens: Iterable[str], scores: _Float32, mergeable: npt.NDArray[np.bool_]) -> _Int32:
    """Pairs of token ids (m x 2) of a SentencePiece vocabulary, the most urgent merge first (cpp/text/spm_merges.h)."""

class GrammarLibrary:
    """The C functions of the llguidance library that Python has loaded from `path` (OSError: it has not)."""

    version: str
    missing: list[str]  # functions that the library lacks; if there are any, nothing may be made with it
    def __init__(self, path: str) -> None: ...

class GrammarTokens:
    """A vocabulary in the form that grammars need: the bytes of all tokens in sequence. A token of length 0 is never allowed, and one that
    begins with 0xFF is special."""

    words: int  # number of words in a mask, each for 32 tokens
    def __init__(self, library: GrammarLibrary, lengths: npt.NDArray[np.uint32], bytes: bytes, eos: Sequence[int]) -> None: ...
    def compile(self, kind: str, source: str) -> CompiledGrammar:
        """kind: "json" (a schema), "regex", "lark" or "llguidance" (JSON with several of them). Raises GrammarError."""

class CompiledGrammar:
    def filter(self) -> GrammarFilter: ...

class GrammarFilter:
    """One answer under a grammar, token by token; the engine makes its own. For tests."""

    def mask(self) -> npt.NDArray[np.uint32]:
        """Returns the tokens that may come next. Bit i % 32 of word i // 32 is set if token i may."""

    def clone(self) -> GrammarFilter: ...
    def accept(self, id: int) -> bool:
        """Adds a token. Returns False if the answer is complete and nothing can follow."""

class ModelFile:
    """An opened model file (also split) or safetensors folder (also sharded): metadata only, every number checked."""

    path: str
    kind: Literal["gguf", "safetensors"]
    size: int  # bytes of all its files
    architecture: str  # general.architecture, or the model_type of config.json
    tensors: list[tuple[str, str, tuple[int, ...], int]]  # name, format, shape (rows first, as numpy has it), bytes

    def metadata(self) -> dict[str, Any]:
        """GGUF: every key; arrays of numbers as numpy arrays, arrays of strings as lists (bytes that are no UTF-8: surrogateescape).
        Folder: config.json."""

    def get(self, key: str) -> Any:
        """One metadata value (fast: nothing else is converted), or None."""

    def keys(self) -> list[str]: ...
    def read(self, name: str) -> bytes:
        """A tensor as it lies in the file."""

def open_file(path: str) -> ModelFile: ...
def open_weights(path: str) -> ModelFile:
    """A .safetensors file by itself, without config.json."""

class NewFile:
    """A file that appears whole, in place of a plain one or of none, or not at all: without finish() nothing is left.

    OSError, before anything is made, where `path` leads to something else than a plain file, or the folder takes no file."""

    def __init__(self, path: str) -> None: ...
    def write(self, at: int, bytes: bytes | bytearray | memoryview) -> None:
        """Bytes from position `at` on."""

    def finish(self) -> None: ...

class LoadOptions:
    """Plain values; see pumice.load for their meaning. None means automatic."""

    def __init__(
        self,
        *,
        device: str = "auto",
        gpu_layers: int | None = None,  # None means auto, -1 means all
        quantize: str | None = None,
        n_ctx: int | None = None,
        kv_dtype: str = "f16",
        kv_budget: int | None = None,
        compute: str = "auto",
        threads: int | None = None,
        # of mean, cls, last, max, mean_sqrt_len, weighted_mean, side by side; []: the file (GGUF), else last of decoders, mean
        pooling: Sequence[str] = [],
        # behind the layers: kind (dense, layer_norm, normalize), on_tokens, and of those with weights file (safetensors), in_features,
        # out_features, bias, residual, activation
        modules: Sequence[dict[str, Any]] = [],
        score_ids: Sequence[int] = [],  # a causal reranker: its labels are the logits of these tokens after the last one
        task: str | None = None,  # whose adapters are merged (jina v3)
        lora: Sequence[dict[str, Any]] = [],  # file, modules: (matrix, tensor a, tensor b, scale, layout) as lora.py makes them
    ) -> None: ...

def plan(file: ModelFile, options: LoadOptions) -> dict[str, Any]:
    """Placement from metadata alone, also of a model that does not fit: rows (list of dicts: name, device, weights, kv, formats, why it is
    not on the GPU), devices (those that take part: dicts of id, name, weights, scratch, kv_page, memory_free), weights, scratch and
    memory_free (bytes, all devices together), kv_budget, kv_page (bytes of a page of positions), n_ctx, notes (list of str: what did not
    fit and why), incomplete (list of str: what its file "lacks ..." of the model or "has ..." that is not run), fallback (str: why the
    GPU that is there has no part in it), problem (None, or what load() raises)."""

def load(file: ModelFile, options: LoadOptions, progress: Callable[[int, int], None] | None = None) -> Model:
    """progress(bytes_done, bytes_total) is called on the calling thread, about ten times a second."""

class Model:
    info: dict[str, Any]
    """architecture, tasks (subset of ["encode", "generate", "classify"]), parameters, layers, hidden_size, vector_size (of a pooled
    row behind its modules), vocab_size, heads, kv_heads, head_dim, n_ctx, n_ctx_model, formats (dict name -> bytes), file_bytes, labels,
    pooling, isa, threads (None: no layer is on the CPU), device ("cpu", "cpu + vulkan:0"), devices (list of dicts: id, name, layers),
    gpu_layers."""

    def placement(self) -> dict[str, Any]:
        """As plan(), of the loaded model."""

    def memory(self) -> dict[str, int]:
        """Bytes: weights, kv_budget, kv_reserved, kv_used, scratch."""

    def cache_stats(self) -> dict[str, int]:
        """Since load: prompt_tokens, reused_tokens, pages_in_use, pages_cached, pages_evicted."""

    def stats(self) -> dict[str, Any]:
        """running, waiting, lagging (requests), step_rows (of the last step), steps, prompt_tokens, decoded_tokens, preempted,
        busy_seconds (since load), pages_in_use, pages_cached, pages_budget."""

    def set_limits(self, running: int | None = None, waiting: int | None = None, step_seconds: float | None = None) -> dict[str, Any]:
        """Those that are given; all of them, as they are then."""

    def encode(
        self,
        ids: _Int32,
        offsets: _Int64,
        types: _Int32 | None,
        out: _Float32,
        normalize: bool,
        token_budget: int,
        progress: Callable[[int], None] | None = None,
        prompt: int = 0,
        cancel: Cancel | None = None,
    ) -> None:
        """Pools text i, ids[offsets[i]:offsets[i + 1]], to out[i] (n x d; d <= vector_size: cut to d, then normalised). Its
        first `prompt` tokens stay out of the pool.

        Texts are run in micro-batches of at most token_budget tokens (a longer text alone), longest first; token_budget 0: automatic.
        progress(texts_done) is called on the calling thread.

        With `cancel`, here and below: for any thread but the main one, from another one of which it may be stopped (KeyboardInterrupt).
        Few texts (token_budget 0) are then run together with those of others who wait."""

    def encode_several(
        self, calls: Sequence[tuple[_Int32, _Int64, _Int32 | None, _Float32, bool, int]], cancels: Sequence[Cancel]
    ) -> list[bool]:
        """Computes several small encode() calls (ids, offsets, types, out, normalize, prompt) with `cancels`, in as few runs as possible.
        Returns which of them are done. A call that failed raises its error when it is made alone."""

    def encode_tokens(
        self, ids: _Int32, offsets: _Int64, types: _Int32 | None, unseen: _Int32 | None = None, cancel: Cancel | None = None
    ) -> _Float32:
        """The last hidden state of every token (total x hidden_size)."""

    def classify(self, ids: _Int32, offsets: _Int64, types: _Int32 | None, cancel: Cancel | None = None) -> _Float32:
        """Logits of a sequence classifier or cross-encoder (n x labels)."""

    def hidden_states(self, ids: _Int32, layers: _Int32) -> _Float32:
        """(layers, T, D): rows after each of `layers`, 0 being what the first layer reads."""

    def save_prefix(self, path: str, ids: _Int32) -> int:
        """Writes the keys and values of ids to a file, atomically. Returns the file's size in bytes."""

    def load_prefix(self, path: str) -> tuple[_Int32, str]:
        """Makes cached prefixes of the pages in a file. Returns the file's ids, and why they were computed anew (empty if they were
        not)."""

    def attentions(self, ids: _Int32, layer: int) -> _Float32:
        """Returns the attention weights of a layer (heads x ids x ids)."""

    def logits(self, ids: _Int32, all_positions: bool) -> _Float32:
        """(V,) of the last position, or (T, V)."""

    def score(self, ids: _Int32) -> _Float32:
        """(T-1,) log-probability of each token after the first."""

    def request(self, prompts: Sequence[_Int32], params: Sequence[GenerateParams]) -> Request:
        """params: one of all prompts, or one for each (n, read_ahead, priority and max_seconds are the same in all).
        Sequence s belongs to prompt s // n. Nothing is computed before the first advance() or start()."""

    def close(self) -> None:
        """Frees all memory. Later calls raise. Does not wait, because running calls keep what they use until they end."""

class GenerateParams:
    """What a request is told. A value of the wrong type is a TypeError, one out of its range a ValueError; both name it. The ranges are in
    cpp/engine/settings.cpp; the defaults, and what each setting means, in cpp/engine/sampler.h, sequence.h and speculation.h."""

    max_new_tokens: int
    min_new_tokens: int
    n: int  # sequences per prompt
    read_ahead: int  # a sequence pauses when this many of its tokens wait to be taken; 0: no limit
    priority: int  # higher ones go first
    max_seconds: float  # after the start it ends, "cancelled", with what there is; 0: no limit
    eos_ids: list[int]  # end a sequence; not given out
    stop_ids: list[int]  # as eos_ids before min_new_tokens; given out after
    bad_words: list[list[int]]
    temperature: float  # 0: greedy. Here and below: kept as float32, read as the shortest number that means it
    top_k: int
    top_p: float
    min_p: float
    typical_p: float
    repetition_penalty: float
    presence_penalty: float
    frequency_penalty: float
    dry_multiplier: float
    dry_base: float
    dry_allowed_length: int
    dry_range: int
    dry_breakers: list[int]  # ascending, in whatever order they were given
    top_n_sigma: float
    xtc_probability: float
    xtc_threshold: float
    mirostat_tau: float
    mirostat_eta: float
    logit_bias: dict[int, float]
    seed: int | None  # None: the system's
    logprobs: int | None  # alternatives a token; None: no log-probabilities, not even the chosen token's
    lookup: int  # number of ids that must match when guesses are looked up; 0: no lookup
    guesses: int  # maximum number of guesses per step
    foreseen: bool  # whether to guess tokens for which a grammar leaves no choice
    always: bool  # guesses whether they pay or not. For tests and bench, as is `replay`
    replay: list[list[int]]  # the guesses for each sequence
    draft: Model | None  # a smaller model that guesses
    grammar: CompiledGrammar | None
    logits_processor: Callable[[_Int32, _Float32], None] | None  # called by advance(); changes the row and returns None
    def __init__(self) -> None: ...
    def check(self, vocab_size: int) -> None:
        """Raises ValueError where ids are not in the vocabulary or settings contradict each other. request() does so, too."""

class Cancel:
    """Stops a call from another thread."""

    def __init__(self) -> None: ...
    def request(self) -> None: ...
    def check(self) -> None:
        """Raises KeyboardInterrupt once it was requested."""

class Pump:
    """Delivers the new tokens of a model's started requests. It keeps the model's memory as long as it lives."""

    def __init__(self, model: Model) -> None: ...
    def wait(self, max_ms: float) -> list[tuple[int, list[dict[str, Any]], bool]]:
        """Until there are news, wake() was called, or so long: (tag, what Request.advance() would give, whether nothing more will come)
        of each request that has some. Request.advance(1, 0) raises what ended one of which nothing more will come."""

    def wake(self) -> None: ...

class Request:
    sequences: int
    prompt_tokens: list[int]  # per prompt
    reused_tokens: list[int]  # per prompt: taken from the prefix cache
    seeds: list[int]  # per prompt

    def advance(self, steps: int, max_ms: float) -> list[dict[str, Any]]:
        """Waits until there are tokens of so many steps that nobody has taken, max_ms have passed, or all has ended; takes what there is.
        The engine's thread computes on meanwhile, and between the calls. Raises what ended the request when all else has been taken.

        One dict per sequence with news: sequence, ids (int32: the new tokens), finish_reason (None, "eos", "length" or
        "grammar"), and when asked
        for logprobs (float32 n), top_ids (int32 n x k), top_logprobs (float32 n x k). An eos token is not among the ids."""

    def start(self, tag: int, steps: int) -> None:
        """From now on Pump.wait() delivers new tokens, whenever there are those of `steps` steps. OverloadedError if too many wait."""

    def hold(self, held: bool) -> None:
        """Pauses the delivery of tokens (True) or resumes it (False)."""

    def finish(self, sequence: int) -> None:
        """Ends a sequence early (a stop string was found)."""

    @property
    def done(self) -> bool: ...
    def timings(self) -> dict[str, float]:
        """prefill_tokens, prefill_seconds, decode_tokens, decode_seconds."""

    def close(self) -> None: ...
