"""The compiled engine. It works only on arrays and token ids; all code that handles text is in Python, in the other files of the package.

Every long call releases the GIL, and Ctrl-C ends it within 100 ms (KeyboardInterrupt). The exceptions are classes of pumice.errors, which
`import pumice` registers here with set_error_types().
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
ops: ModuleType  # runs programs of any operations on arrays, for tests, bench and doctor() (python/bindings/ops.cpp)

def set_error_types(types: dict[str, type[BaseException]]) -> None:
    """Sets the exception class for each kind of error. The kinds are the names of ErrorKind in cpp/core/error.h, and "base".

    The class for "model_format" is called with the keyword arguments file, field and offset besides the message."""

def devices() -> list[dict[str, Any]]:
    """Returns one dict per device: id, name, type, driver, memory_total, memory_free, features (list of str), usable, why_not."""

def build_info() -> dict[str, Any]:
    """Returns a dict: version, compiler, isa (the instruction set in use), isas (those that this machine can run), blas (the library, or
    why there is none), threads, huge_pages ("always", "madvise", "never", "unknown", or "none" on macOS), formats (names), pack_formats
    (names of the formats to which load(quantize=) packs floats), architectures."""

def self_test() -> list[dict[str, Any]]:
    """Compares every kernel of the chosen instruction set with the scalar kernel. Returns one dict per kernel: name, ok, error (NMSE),
    limit, detail (str)."""

def spm_merges(tokens: Iterable[str], scores: _Float32, mergeable: npt.NDArray[np.bool_]) -> _Int32:
    """Returns the merges of a SentencePiece vocabulary as pairs of token ids (m x 2), ordered by descending priority
    (cpp/text/spm_merges.h)."""

class GrammarLibrary:
    """The C functions of the llguidance library at `path`. Raises OSError if Python has not loaded this library."""

    version: str
    missing: list[str]  # functions that the library lacks; no GrammarTokens must be made with a library that lacks one
    def __init__(self, path: str) -> None: ...

class TokenBytes:
    """The bytes of a vocabulary's tokens. `bytes` is the concatenation of all tokens' bytes, and `lengths` has the number of bytes of each
    token, 0 for an id without a token. A token whose first byte is 0xFF is special."""

    def __init__(self, lengths: npt.NDArray[np.uint32], bytes: bytes) -> None: ...

class ReasoningMarks:
    """The texts and token ids with which a model's answers mark reasoning. cpp/engine/reasoning_budget.h explains the arguments."""

    def __init__(
        self, tokens: TokenBytes, open: bytes, close: bytes, close_ids: Sequence[int], call: bytes, again: Sequence[int], leads: bool
    ) -> None: ...
    def filter(self, most: int, opened: bool) -> GrammarFilter: ...

class GrammarTokens:
    """A vocabulary in the form that grammars need. A token without bytes is never allowed."""

    words: int  # number of 32-bit words in a mask, which has one bit per token
    def __init__(self, library: GrammarLibrary, tokens: TokenBytes, eos: Sequence[int]) -> None: ...
    def compile(self, kind: str, source: str) -> CompiledGrammar:
        """Compiles a grammar. kind: "json" (a schema), "regex", "lark" or "llguidance" (JSON with several grammars). Raises
        GrammarError."""

class CompiledGrammar:
    def filter(self) -> GrammarFilter: ...

class GrammarFilter:
    """The state of a grammar, or of a budget for reasoning, in one answer. It advances token by token. For tests only, because the engine
    makes its own filters."""

    def mask(self) -> npt.NDArray[np.uint32]:
        """Returns the mask of tokens that are allowed next. Bit i % 32 of word i // 32 is set if token i is allowed."""

    def clone(self) -> GrammarFilter: ...
    def accept(self, id: int) -> bool:
        """Advances by one token. Returns False if the answer is complete and nothing can follow."""

class ModelFile:
    """An open GGUF file (which may be split) or safetensors folder (which may be sharded). Opening it reads and checks only metadata."""

    path: str
    kind: Literal["gguf", "safetensors"]
    size: int  # number of bytes of all files of the model
    architecture: str  # general.architecture in GGUF, or model_type in config.json
    tensors: list[tuple[str, str, tuple[int, ...], int]]  # (name, format, shape in numpy's order, number of bytes)

    def metadata(self) -> dict[str, Any]:
        """Returns all keys of a GGUF file, or the contents of a folder's config.json. In GGUF, arrays of numbers become numpy arrays, and
        arrays of strings become lists. Bytes that are not UTF-8 become surrogate escapes."""

    def get(self, key: str) -> Any:
        """Returns the value of one key, or None. This is faster than metadata(), because no other value is converted."""

    def keys(self) -> list[str]: ...
    def format(self, name: str) -> str:
        """Returns the format in which read() returns a tensor. It is the tensor's format in the file or, if read() converts the tensor
        (IQ2_XXS in GGUF files), the format to which it is converted. Raises UnsupportedModelError if the tensor holds no weights (I32)."""

    def read(self, name: str, offset: int = 0, count: int | None = None) -> bytes:
        """Returns `count` bytes of a tensor from `offset` on (None: all bytes after `offset`), in the format that format() returns."""

    def packing(self, name: str) -> tuple[str, str] | None:
        """For a tensor that read() converts, returns (how it is packed in the file, why no format of pumice holds its weights exactly). The
        first is, for example, "AWQ, 4 bits, groups of 128" or "IQ2_XXS". The second is "" if a format holds them exactly. Returns None if
        read() does not convert the tensor."""

def open_file(path: str) -> ModelFile: ...
def open_weights(path: str) -> ModelFile:
    """Opens a .safetensors file of a model's folder, without a config.json."""

def allow_links(folder: str) -> None:
    """Lets the links in a folder lead anywhere, for as long as the process runs. Raises OSError."""

def read_file(path: str, most: int, given: bool = False) -> bytes:
    """Returns the bytes of a regular file of at most `most` bytes. If the path is a link, it must lead to a file in the same folder or
    below it or in the blobs folder of the hub's cache, unless the user named this path (`given`) or allow_links() was called.

    Raises OSError, also if a link leads elsewhere or the path is no regular file. Raises ModelFormatError if the file is larger."""

class NewFile:
    """A new file, which appears at `path` only when it is complete and finish() is called. It then replaces a regular file at this path.
    Without finish(), nothing changes at `path`.

    The constructor raises OSError if there is something other than a regular file at `path`, or if no file can be made in the folder."""

    def __init__(self, path: str) -> None: ...
    def write(self, at: int, bytes: bytes | bytearray | memoryview) -> None:
        """Writes bytes to the file, the first one at position `at`."""

    def finish(self) -> None: ...

class Calibration:
    """Packs the matrices of a model's layers and chooses the codes by the activations that texts produce (cpp/engine/calibration.h). Runs
    on the CPU."""

    # Name of a wanted tensor -> (layer, index of the layer's input by which the tensor is multiplied). Wanted tensors without an entry
    # cannot be packed here.
    places: dict[str, tuple[int, int]]
    memory: int  # maximum number of bytes that pack() allocates
    def __init__(
        self,
        file: ModelFile,
        seen: Sequence[_Int32],  # token ids of the texts for which codes are chosen
        held: Sequence[_Int32],  # token ids of the texts that judge the codes
        wanted: Sequence[tuple[str, str]],  # (name of a tensor, format to which it is packed)
        threads: int | None = None,
    ) -> None: ...
    def pack(self, tensor: str, format: str, cancel: Cancel | None = None) -> tuple[bytes, float, float]:
        """Returns (packed rows of a tensor in `places`, loss with the codes that a search chooses, loss with the codes of error feedback).
        The rows have the codes with the smaller loss. Both losses are measured on the texts `held`. Calls are fastest in the order of
        `places`."""

    def products(self, tensor: str, cancel: Cancel | None = None) -> list[tuple[int, _Float32, _Float32]]:
        """Returns a tuple for each block of columns of the tensor's input: the block's first column, the sums over the texts `seen` of the
        products of two columns, and the same sums over `held`. Only the lower triangles of both matrices are defined. For tests."""

class LoadOptions:
    """The options of load() and plan(), as plain values. pumice.load() explains them. None means automatic."""

    def __init__(
        self,
        *,
        device: str = "auto",
        gpu_layers: int | None = None,
        gpu_layers_each: Sequence[int] = [],  # number of layers on each GPU; None means automatic, -1 means all
        gpu_experts: int | None = None,  # number of layers whose experts are on the GPU; None means automatic, -1 means all
        quantize: str | None = None,
        n_ctx: int | None = None,
        kv_dtype: str = "f16",
        kv_budget: int | None = None,
        expert_cache: int | None = None,
        compute: str = "auto",
        threads: int | None = None,
        # Names of poolings: mean, cls, last, max, mean_sqrt_len, weighted_mean. The vectors of several poolings are concatenated. [] means
        # the pooling that a GGUF file names. If it names none, it is "last" for a decoder and "mean" for an encoder.
        pooling: Sequence[str] = [],
        # The modules after the layers. Each dict has kind (dense, layer_norm or normalize) and on_tokens. A module with weights also has
        # file (safetensors), in_features, out_features, bias, residual and activation.
        modules: Sequence[dict[str, Any]] = [],
        score_ids: Sequence[int] = [],  # for a causal reranker: its labels are the logits of these ids at the last token of a text
        task: str | None = None,  # the task whose adapters are merged into the weights (jina v3)
        # Low-rank adapters. Each dict has file, and modules, a list of (matrix, tensor a, tensor b, scale, layout). loading/lora.py makes
        # these dicts.
        lora: Sequence[dict[str, Any]] = [],
        sketch: bool = True,  # whether a CPU makes a sketch of the output head (cpp/cpu/sketch.h) if that makes decoding faster
        mtp: bool = True,  # whether the layer that predicts draft tokens is loaded, if the file has one
        assistant: ModelFile | None = None,  # the file of the model's assistant, which predicts draft tokens
        # Whether to load an encoder's MLM head, for sparse vectors. "never": no. "maybe": if config.json names a class ...ForMaskedLM and
        # the file has the head. "always": yes, and a missing head is an error.
        mlm_head: str = "maybe",
        allow_unread: bool = False,  # whether unused tensors in layers cause only a warning; if false, they are an error
    ) -> None: ...

def plan(file: ModelFile, options: LoadOptions) -> dict[str, Any]:
    """Returns on which device each part of a model would be. Reads only metadata. Also works for a model that does not fit.

    The result is a dict with these keys:
    rows: a list with a dict for each part of the model: name, device, weights (bytes), kv (bytes), formats, and why it is not on the GPU.
    devices: a list with a dict for each device that is used: id, name, weights, scratch, kv_page, memory_free.
    weights, scratch, memory_free: bytes on all devices together.
    kv_budget: bytes.  kv_page: bytes of one page of positions.  n_ctx: maximum number of tokens per sequence.
    notes: a list of str about what did not fit, and why.
    incomplete: a list of str. Each begins with "lacks" and names a part that the file lacks, or with "has" and names a part that pumice
    does not run.
    fallback: a str that tells why a GPU of this machine is not used.
    problem: None, or the error that load() would raise."""

def config_differences(file: ModelFile, other: ModelFile) -> list[tuple[str, str]]:
    """Returns the fields in which the configurations of two model files differ, and the values of both: ("Attention::window", "layer 3:
    4096 and 0"). Reads only metadata."""

def gguf_parts(folder: ModelFile) -> dict[str, list[dict[str, Any]]]:
    """Returns, for each tensor of a folder by name, the tensors of the GGUF file that it becomes. Of the matrices of a layer's experts,
    only the first one has an entry. A tensor without an entry does not exist in GGUF files of the family. Reads only metadata.

    Each dict has the fields of GgufPart in cpp/model/gguf_form.h: name, taps, transposed, whole, rows, columns, matrices, turned, width,
    plus_one, pairs, minus_exp, normalised, factors. rows and columns are arrays of indices, or None. factors is a list of arrays."""

def gguf_head(folder: ModelFile) -> dict[str, Any]:
    """Returns the metadata for the GGUF file of a folder. Reads only metadata, and tensors with a single number (xIELU).

    family: str.  architecture: general.architecture, or "" if llama.cpp has none for this model.
    keys: the metadata that describe the model, by key.  tensors: arrays that are not made from a tensor of the folder, by name.
    folded: a list of fields, named as by config_differences(), that differ between the folder and the GGUF file, because tensors of the
    GGUF file were multiplied by their values.
    generates: whether the model's family generates text."""

def load(file: ModelFile, options: LoadOptions, progress: Callable[[int, int], None] | None = None, stop: Cancel | None = None) -> Model:
    """Loads a model. progress(bytes_done, bytes_total) is called in the calling thread, about ten times per second. When `stop` is
    requested, the call raises KeyboardInterrupt within 20 ms."""

class Model:
    info: dict[str, Any]
    """architecture, tasks (subset of ["encode", "generate", "sparse", "classify", "label"]), parameters (without the assistant's),
    assistant_parameters, layers, hidden_size, vector_size (of a pooled row behind its modules), vocab_size, heads, kv_heads, head_dim,
    n_ctx, n_ctx_model, formats (dict name -> bytes), file_bytes, labels, pooling, isa, threads (None: no layer is on the CPU), device
    ("cpu", "cpu + vulkan:0"), devices (list of dicts: id, name, layers), gpu_layers and gpu_experts (numbers of layers)."""

    def placement(self) -> dict[str, Any]:
        """Returns the placement of the loaded model, in the form of plan()."""

    def memory(self) -> dict[str, int]:
        """Returns the number of bytes for each use: weights, kv_budget, kv_reserved, kv_used, scratch."""

    def cache_stats(self) -> dict[str, int]:
        """Returns counts of the prefix cache: prompt_tokens, reused_tokens and pages_evicted (since load()), pages_in_use, pages_cached,
        states_in_use and states_cached (now), and of the cache of experts: expert_hits and expert_reads (since load())."""

    def stats(self) -> dict[str, Any]:
        """Returns the state of the batch of all requests. Numbers of requests: running, waiting, and lagging (whose callers do not read
        tokens or do not answer with logits). Rows in the last step: step_rows. Totals since load(): steps, prompt_tokens, decoded_tokens,
        preempted, busy_seconds. Numbers of pages: pages_in_use, pages_cached, pages_budget. Numbers of states: states_in_use,
        states_cached, states_budget."""

    def set_limits(self, running: int | None = None, waiting: int | None = None, step_seconds: float | None = None) -> dict[str, Any]:
        """Sets those limits that are not None. Returns all limits."""

    def encode_stats(self) -> dict[str, Any]:
        """Returns counts of all calls of the methods below. waiting: number of calls that have not begun to run, because other calls run.
        Totals since load(): texts, tokens, runs (micro-batches), and busy_seconds, the time during which at least one run was active."""

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
        """Computes one vector per text. Text i is ids[offsets[i]:offsets[i + 1]], and its vector is written to out[i]. `out` is n x d with
        d <= vector_size; vectors are cut to d columns, and then normalised. The first `prompt` tokens of each text are left out of the
        pooling.

        Texts run in micro-batches of at most token_budget tokens, the longest texts first. A text with more tokens runs alone. token_budget
        0 means automatic. progress(texts_done) is called in the calling thread.

        Here and in the methods below, `cancel` lets another thread stop the call, which then raises KeyboardInterrupt. Only threads other
        than the main thread may pass it. With `cancel` and a token_budget of 0, a call with few texts is computed together with the waiting
        calls of other threads."""

    def encode_several(
        self, calls: Sequence[tuple[_Int32, _Int64, _Int32 | None, _Float32, bool, int]], cancels: Sequence[Cancel]
    ) -> list[bool]:
        """Computes several small encode() calls together, in as few runs as possible. Each call is (ids, offsets, types, out, normalize,
        prompt), and cancels[i] belongs to calls[i]. Returns for each call whether it succeeded. To get the error of a call that failed,
        repeat it with encode()."""

    def encode_tokens(
        self, ids: _Int32, offsets: _Int64, types: _Int32 | None, unseen: _Int32 | None = None, cancel: Cancel | None = None
    ) -> _Float32:
        """Returns the last hidden row of every token, (tokens of all texts) x hidden_size. unseen: for each text, the number of tokens at
        its end to which no token attends."""

    def encode_sparse(
        self,
        ids: _Int32,
        offsets: _Int64,
        types: _Int32 | None,
        most: int = 0,
        logs: int = 1,
        token_budget: int = 0,
        progress: Callable[[int], None] | None = None,
        cancel: Cancel | None = None,
    ) -> tuple[_Int32, _Float32, _Int64]:
        """Returns the sparse vectors of texts as CSR rows: (indices, values, offsets). Let x be the largest logit of a vocabulary's token
        over all rows of the text, computed by the MLM head. The token's value is y = log(1 + max(x, 0)), or log(1 + y) if `logs` is 2.
        Values of 0 are left out. most: the number of values that are kept, the largest; 0 means all."""

    def label_tokens(self, ids: _Int32, offsets: _Int64, types: _Int32 | None, cancel: Cancel | None = None) -> _Float32:
        """Returns the logits of a token classifier, (tokens of all texts) x labels."""

    def classify(self, ids: _Int32, offsets: _Int64, types: _Int32 | None, cancel: Cancel | None = None) -> _Float32:
        """Returns the logits of a sequence classifier or cross-encoder (n x labels)."""

    def hidden_states(self, ids: _Int32, layers: _Int32) -> _Float32:
        """Returns the hidden rows after each of `layers`, (layers, T, D). Layer 0 means the input of the first layer."""

    def save_prefix(self, path: str, ids: _Int32) -> int:
        """Writes the keys and values of ids to a file, atomically. Returns the file's size in bytes."""

    def load_prefix(self, path: str) -> tuple[_Int32, str]:
        """Loads a file of save_prefix() into the prefix cache. Returns the file's ids, and the reason why their keys and values were
        computed again ("" if they were not)."""

    def attentions(self, ids: _Int32, layer: int) -> _Float32:
        """Returns the attention weights of a layer (heads x ids x ids)."""

    def logits(self, ids: _Int32, all_positions: bool) -> _Float32:
        """Returns the logits after the last id (V,), or after each id (T, V)."""

    def score(self, ids: _Int32, top: int | None = None, cancel: Cancel | None = None) -> Any:
        """Returns the log-probability of each token after the first, (T - 1,). If `top` is given, returns a tuple of three arrays: these
        log-probabilities, the ids of the `top` most likely tokens at each position (T - 1, top), the most likely first, and the
        log-probabilities of these ids (T - 1, top)."""

    def request(self, prompts: Sequence[_Int32], params: Sequence[GenerateParams]) -> Request:
        """Makes a request. params: one element for all prompts, or one for each prompt. n, read_ahead, priority, max_seconds and
        chunk_seconds must be the same in all elements. Sequence s of the request continues prompt s // n. Nothing is computed before the
        first advance() or start()."""

    def close(self) -> None:
        """Frees the model's memory. Later calls raise ValueError. Does not wait for running calls; they keep the memory that they use until
        they end."""

class GenerateParams:
    """The settings of a request. Setting a value of the wrong type raises TypeError, and setting a value outside its range raises
    ValueError; the message names the setting. cpp/engine/settings.cpp has the ranges. cpp/engine/sampler.h, sequence.h and speculation.h
    have the defaults and explain each setting."""

    max_new_tokens: int
    min_new_tokens: int
    n: int  # number of sequences per prompt
    read_ahead: int  # a sequence pauses when this many of its tokens wait to be taken; 0 means no limit
    priority: int  # requests with a higher priority are served first
    max_seconds: float  # the request ends after this time with the tokens so far and the finish_reason "cancelled"; 0 means no limit
    chunk_seconds: float  # minimum number of seconds between two deliveries of tokens; the first token is delivered at once
    eos_ids: list[int]  # each of these ids ends a sequence, and is not returned
    stop_ids: list[int]  # the caller ends a sequence at these ids; like eos_ids, they do not occur in the first min_new_tokens tokens
    bad_words: list[list[int]]  # sequences of ids that are never generated
    max_reasoning_tokens: int | None  # the reasoning ends after this many tokens; None means no limit
    reasoning: ReasoningMarks | None  # the markers of reasoning; a request with max_reasoning_tokens needs them
    reasoning_opened: bool  # whether the reasoning begins in the prompt
    # 0 means greedy. This and the other floats below are stored as float32. The getter returns the shortest decimal number for the float32.
    temperature: float
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
    dry_breakers: list[int]  # the getter returns the ids in ascending order
    top_n_sigma: float
    xtc_probability: float
    xtc_threshold: float
    mirostat_tau: float
    mirostat_eta: float
    logit_bias: dict[int, float]
    seed: int | None  # None means a random seed from the system
    # number of most likely tokens whose log-probabilities are returned, in addition to the chosen token's; None means none at all
    logprobs: int | None
    lookup: int  # number of ids that must match when guesses are looked up in the text; 0 means no lookups
    guesses: int  # maximum number of guesses per step
    mtp: str  # whether the model's layer for draft tokens makes guesses: "off", "auto" (if it exists and nothing else makes guesses), "on"
    foreseen: bool  # whether to guess tokens for which a grammar leaves no choice
    always: bool  # whether to guess even if it does not save time; for tests and bench
    replay: list[list[int]]  # the guesses to make for each sequence; for tests and bench
    draft: Model | None  # a smaller model that makes guesses
    grammar: CompiledGrammar | None
    logits_processor: Callable[[_Int32, _Float32], None] | None  # advance() calls it; it changes the row of logits and returns None
    def __init__(self) -> None: ...
    def check(self, vocab_size: int) -> None:
        """Raises ValueError if an id is not in the vocabulary, or if settings contradict each other. Model.request() checks this too."""

class Cancel:
    """Lets a thread stop a call that another thread makes, and see whether the call's work has begun."""

    def __init__(self) -> None: ...
    begun: bool
    """False while the work waits for that of other calls. Always True once begin() was called."""

    def begin(self) -> None:
        """Records that the work has begun. The engine itself calls this."""
    def request(self) -> None: ...
    def check(self) -> None:
        """Raises KeyboardInterrupt if request() was called before."""

class Pump:
    """Delivers the new tokens of a model's started requests. The model stays in memory as long as this object exists."""

    def __init__(self, model: Model) -> None: ...
    def wait(self, max_ms: float) -> list[tuple[int, list[dict[str, Any]], bool]]:
        """Waits until there are new tokens, wake() is called, or max_ms milliseconds have passed. Returns a tuple for each request with new
        tokens: its tag, the new tokens as a list of dicts like that of Request.advance(), and whether the request has ended. If an error
        has ended the request, Request.advance(1, 0) raises the error."""

    def wake(self) -> None: ...

class Request:
    sequences: int
    prompt_tokens: list[int]  # number of tokens of each prompt
    reused_tokens: list[int]  # for each prompt, the number of its tokens that were in the prefix cache
    seeds: list[int]  # the seed of each prompt

    def advance(self, steps: int, max_ms: float) -> list[dict[str, Any]]:
        """Waits until `steps` steps have produced new tokens, until max_ms milliseconds have passed, or until all sequences have ended.
        Returns all new tokens. The engine's thread continues to compute during this call and between calls. If an error has ended the
        request, raises it once all tokens have been returned.

        There is one dict for each sequence that has new tokens or has ended: sequence, ids (int32: the new tokens), finish_reason (None,
        "eos", "length", "grammar" or "cancelled"). If max_reasoning_tokens ends the reasoning, the dict has reasoning_cut: the index, in
        the answer, of the first of the tokens that end the reasoning. A later call may return this token. If the request has logprobs, the
        dict also has logprobs (float32 n), top_ids (int32 n x k) and top_logprobs (float32 n x k). An eos token is not among the ids."""

    def start(self, tag: int, steps: int) -> None:
        """Starts the request. From then on, Pump.wait() delivers its new tokens whenever `steps` steps have produced some. Raises
        OverloadedError if too many requests wait."""

    def hold(self, held: bool) -> None:
        """Pauses the delivery of tokens (True) or resumes it (False)."""

    def finish(self, sequence: int) -> None:
        """Ends a sequence early, for example because a stop string was found."""

    @property
    def done(self) -> bool: ...
    def timings(self) -> dict[str, float]:
        """Returns prefill_tokens, prefill_seconds, decode_tokens, decode_seconds, drafted_tokens and accepted_tokens. Also returns
        queued_seconds and first_token_seconds once they are known."""

    def close(self) -> None: ...
