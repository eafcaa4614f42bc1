"""Runs transformer models from GGUF and safetensors files in the Python process. The models convert texts to vectors (numpy arrays), or
continue prompts with text.

    model = pumice.load("path/to/model")      # a .gguf file, a folder with config.json, or a hub id
    vectors = model.encode(texts)             # float32 (n, d)
    answer = model.generate("Once upon a time", max_new_tokens=64)

All names except the errors are imported at their first use, so that `import pumice` is fast.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from . import _core, errors
from .common.exits import exit_waits
from .errors import (
    ChatTemplateError,
    ContextLengthError,
    DeviceError,
    DeviceLostError,
    DeviceNotFoundError,
    EventLoopError,
    FallbackWarning,
    ForkedDeviceError,
    GrammarBusyError,
    GrammarError,
    GrammarWarning,
    IncompleteCallError,
    IncompleteModelWarning,
    ModelFormatError,
    NumericError,
    OutOfDeviceMemoryError,
    OverloadedError,
    PumiceError,
    TokenizerError,
    TruncationWarning,
    UnsupportedModelError,
    UnsupportedTaskError,
)

if TYPE_CHECKING:
    from .chats.results import ChatResult
    from .chats.tool_runs import ToolResult, ToolRun
    from .encode.encoding import Encoded, Predicted, Prediction, Ranked, RankHit
    from .encode.sparse import SparseVectors
    from .encode.token_labels import LabeledSpan, TokenLabels
    from .encode.vectors import SearchResult, maxsim, quantize_vectors, search, similarity_pairwise
    from .event_loops.streams import AsyncStream
    from .event_loops.tool_runs import AsyncToolStream
    from .generate.answers import CallDelta, ToolCall
    from .generate.generation import Chunk, Generation, Stream
    from .generate.grammar import Grammar
    from .generate.settings import SamplingParams
    from .gguf.conversion import convert
    from .gguf.plans import ConversionPlan
    from .gguf.quantization import quantize
    from .loading.placement import Plan, plan
    from .machine.diagnostics import Report, doctor
    from .machine.hardware import DeviceInfo, DeviceList, devices
    from .model.inside_calls import Scores
    from .model.load import aload, load
    from .model.model import Model
    from .model.perplexity import Comparison, Perplexity
    from .model.tool_runs import ToolStream, arun_tools, run_tools

_core.set_error_types(errors.BY_KIND)
__version__: str = _core.__version__

# Public name -> its module, which is imported at the first use of the name. No module has the name of a function, because importing the
# module would hide the function.
_HOME = {
    "load": "model.load",
    "aload": "model.load",
    "Model": "model.model",
    "Scores": "model.inside_calls",
    "Perplexity": "model.perplexity",
    "Comparison": "model.perplexity",
    "AsyncStream": "event_loops.streams",
    "run_tools": "model.tool_runs",
    "arun_tools": "model.tool_runs",
    "ToolRun": "chats.tool_runs",
    "ToolResult": "chats.tool_runs",
    "ToolStream": "model.tool_runs",
    "AsyncToolStream": "event_loops.tool_runs",
    "Generation": "generate.generation",
    "ChatResult": "chats.chat",
    "ToolCall": "generate.answers",
    "CallDelta": "generate.answers",
    "Chunk": "generate.generation",
    "Stream": "generate.generation",
    "SamplingParams": "generate.settings",
    "Grammar": "generate.grammar",
    "Encoded": "encode.encoding",
    "RankHit": "encode.encoding",
    "Ranked": "encode.encoding",
    "Predicted": "encode.encoding",
    "Prediction": "encode.encoding",
    "LabeledSpan": "encode.token_labels",
    "TokenLabels": "encode.token_labels",
    "SparseVectors": "encode.sparse",
    "SearchResult": "encode.vectors",
    "search": "encode.vectors",
    "similarity_pairwise": "encode.vectors",
    "maxsim": "encode.vectors",
    "quantize_vectors": "encode.vectors",
    "convert": "gguf.conversion",
    "ConversionPlan": "gguf.plans",
    "quantize": "gguf.quantization",
    "devices": "machine.hardware",
    "DeviceInfo": "machine.hardware",
    "DeviceList": "machine.hardware",
    "plan": "loading.placement",
    "Plan": "loading.placement",
    "doctor": "machine.diagnostics",
    "Report": "machine.diagnostics",
}

__all__ = [
    "AsyncStream",
    "AsyncToolStream",
    "CallDelta",
    "ChatResult",
    "ChatTemplateError",
    "Chunk",
    "Comparison",
    "ContextLengthError",
    "ConversionPlan",
    "DeviceError",
    "DeviceInfo",
    "DeviceList",
    "DeviceLostError",
    "DeviceNotFoundError",
    "Encoded",
    "EventLoopError",
    "FallbackWarning",
    "ForkedDeviceError",
    "Generation",
    "Grammar",
    "GrammarBusyError",
    "GrammarError",
    "GrammarWarning",
    "IncompleteCallError",
    "IncompleteModelWarning",
    "LabeledSpan",
    "Model",
    "ModelFormatError",
    "NumericError",
    "OutOfDeviceMemoryError",
    "OverloadedError",
    "Perplexity",
    "Plan",
    "Predicted",
    "Prediction",
    "PumiceError",
    "RankHit",
    "Ranked",
    "Report",
    "SamplingParams",
    "Scores",
    "SearchResult",
    "SparseVectors",
    "Stream",
    "TokenLabels",
    "TokenizerError",
    "ToolCall",
    "ToolResult",
    "ToolRun",
    "ToolStream",
    "TruncationWarning",
    "UnsupportedModelError",
    "UnsupportedTaskError",
    "__version__",
    "aload",
    "arun_tools",
    "build_info",
    "convert",
    "devices",
    "doctor",
    "load",
    "maxsim",
    "plan",
    "quantize",
    "quantize_vectors",
    "run_tools",
    "search",
    "similarity_pairwise",
]


def build_info() -> dict[str, Any]:
    """Returns how the engine was built, and what it has chosen on this machine: version, compiler, isa, isas, blas, threads, huge_pages,
    formats, pack_formats (those of load(quantize=)), architectures."""
    return _core.build_info()


def __getattr__(name: str) -> Any:
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module 'pumice' has no attribute {name!r}")
    with exit_waits:
        value = getattr(importlib.import_module(f"{__name__}.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
