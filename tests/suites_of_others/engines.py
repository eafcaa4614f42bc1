"""The suites of other servers: llama.cpp's and vLLM's own tests, as rows of run.py. Their tests start a server; here that is `pumice serve`
behind llama_server.py and vllm_stand_ins.py."""

from __future__ import annotations

import os
from typing import Any

# The files of llama.cpp's tests. Left out are those of slots, of the router, of adapters, of pictures, of MCP servers and tools that the
# server itself runs, of streams that outlive their clients, and of guesses: the server has none of these, or in another form.
LLAMA_CPP = (
    "basic", "chat_completion", "compat_anthropic", "compat_gcp", "compat_oai_responses", "completion", "ctx_shift", "embedding",
    "ignore_eos", "infill", "metrics", "rerank", "security", "sleep", "template", "tokenize", "tool_call",
)  # fmt: skip
VLLM = ("anthropic", "cohere", "generate", "openai", "pooling", "serve")
# Parts of the names of files whose subject the server lacks: pictures, sound, adapters that requests load, vectors as prompts, calls
# into the engine, decisions, one more form of metrics, and harnesses of other projects.
VLLM_LEFT_OUT = (
    "vision", "vlm", "audio", "video", "lora", "prompt_embeds", "collective_rpc", "tensorizer", "mteb", "lmeval", "orca", "decisions",
    "sagemaker", "late_interaction", "token_reward", "generative_scoring", "token_embed", "token_classify",
)  # fmt: skip

# Reasons for failures, as they stand in docs/clients.md.
HUB = "wants texts, token counts or sizes of a model of the hub"
SCRIPT = "the small model's answer: no reasoning that ends, no call, or cut"
PICTURES = "sends pictures"
PATHS = "a path that the server does not have"
OUTPUT = "an entry of answers, or a metric, that only the other server has"
ERRORS = "the other server's words, type or status of an error"
SILENT = "the other server takes what this one refuses, or the other way round"
OPTIONS = "an option of the other server's command that pumice serve does not have"

SUITES: dict[str, dict[str, Any]] = {
    "llama_cpp": {
        "engine": "llama_cpp_python==0.3.36",
        "place": "vendor/llama.cpp/tools/server/tests",
        "tests": tuple(f"unit/test_{name}.py" for name in LLAMA_CPP),
        "environment": {"LLAMA_SERVER_BIN_PATH": "{start}", "PORT": "18480"},
        "options": ("-c", "pytest.ini", "--rootdir", ".", "-m", "not slow", "--timeout", "60", "-o", "timeout_func_only=true"),
        "known": {
            r"test_chat_completion(_stream|_cached_tokens|_with_openai_library)?(\[|:)": HUB,
            r"__verbose|test_return_progress|telemetry|with_timings|test_metrics|test_server_sleep|ignore_eos|cancel_request": OUTPUT,
            r"test_apply_chat_template|reasoning\[deepseek.*400 == 200": "a chat template without a place for tools, or the name of one",
            r"test_invalid_chat_completion_req|empty_messages|embedding_pooling_none|test_logit_bias": SILENT,
            r"test_logprobs(_stream)?:|tool_call_fast": 'the first event has the content null there, and "" here, as at OpenAI',
            r"context_size_exceeded|prompt_too_long|long_prompt": ERRORS,
            r"cors_o|multiple_addresses|no_ui|aliases_and_tags|backend_sampling|post_sampling": OPTIONS,
            r"test_embedding_multiple_with_fa|test_rerank_usage|match_regex|test_infill_with|test_ctx_shift|test_completion": HUB,
            r"image|vision|local_media_file": PICTURES,
            r"static_assets|test_correct_api_key|gcp_predict|cors_proxy|slots": PATHS,
        },
    },
    "vllm": {
        "engine": "vllm==0.33.0",
        "tests": tuple(f"tests/entrypoints/{name}" for name in VLLM),
        "environment": {"PYTHONPATH": "{here}:{path}", "PUMICE_PYTHON": "{python}"},
        "options": (
            *("-c", os.devnull, "--rootdir", ".", "--noconftest", "-p", "vllm_stand_ins", "-p", "tests.entrypoints.conftest"),
            *("-p", "tests.entrypoints.openai.responses.conftest", "-o", "asyncio_mode=auto", "-W", "ignore", "--timeout", "120"),
            *("--continue-on-collection-errors", *(f"--ignore-glob=*{name}*" for name in VLLM_LEFT_OUT)),
        ),
        "known": {
            r"no path|404|not_found_error|the answer has no 'data'|KeyError: '(data|results|detail|token_strs)'": PATHS,
            r"TypeError: .*Absent|failed on setup with|collection failure|Absent object": "needs parts of vLLM or torch that are stand-ins",
            r"'(response|prompt)_(messages|embeds)'|background|tool_output_tokens|metrics|iteration_tokens|channel|image_url": OUTPUT,
            r"(zephyr|opt)[\w-]*-?lora": "an adapter that has a name of its own",
            r"use_beam_search|truncat|padding|embed_dtype|endianness|logprob_token_ids|kv_transfer|late_chunking|unknown field": SILENT,
            r"DID NOT RAISE|200 == 400|literal_error|Regex pattern|BadRequestError.? ==|bad2|top_logprobs must|Unsupported input": ERRORS,
            r"incomplete|[Rr]easoning|Unterminated|max_tokens|tool_calls|get_weather|function_call|unique completions|repeats": SCRIPT,
            r"assert \d+ == \d+|assert \[\d+|relevance_score|Spanish|JSONDecode|'result'|!= '|== '|assert 0 > 0|is not None": HUB,
            r"maximum context length|plain texts|root_path|force_include_usage|show_version|server_load|request.?id|content_type": OPTIONS,
            r"embeddings$|single_chat_session|test_detokenize|test_check_models|NoneType": OUTPUT,
            r"endoftext": HUB,
        },
    },
}
