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
    "sagemaker", "token_reward", "generative_scoring",
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
            r"there is no path|404 (==|Client)|server_load": PATHS,
            r"\bAbsent\b|failed on setup with|collection failure": "needs parts of vLLM or torch that are stand-ins",
            r"background|tool_output_tokens|metrics|channel|image_url|prompt_embeds|test_check_models|test_detokenize": OUTPUT,
            r"test_single_chat_session\[|test_anthropic_streaming_cache_usage": OUTPUT,
            r"unknown field '(kv_transfer_params|padding|truncation_side|late_chunking|embed_dtype|endianness)": SILENT,
            r"logprob_token_ids|use_beam_search|previous_input_messages|late_chunking|test_truncate_start|test_empty_input_error": SILENT,
            r"add_special_tokens|must be at least 0 and at most 20, not -1|test_(score|rerank)\[.*'detail'|_max_model_len": SILENT,
            r"test_chat_completion_stream_options\[|long_text|test_pooling_token_embed|without_chunking_match_pooling|matryoshka": SILENT,
            r"test_pooling_not_supported\[": "other tasks of a model than there, or more of them",
            r"BadRequestError.? ==|== 'BadRequestError'|literal_error|Regex pattern|bad2": ERRORS,
            r"Unsupported input_type|non-negative integer|out of range: it must be": ERRORS,
            r"test_request_wrong_content_type|greater_than_equal|test_(bigger|max)_truncation|test_background_error": ERRORS,
            r"test_basic(\[|:)|test_completion_request|test_chat_request\[|test_pooling_embed: .*768": HUB,
            r"test_rerank_api_(texts|top_n): .*relevance_score": HUB,
            r"test_echo_logprob|endoftext|test_tokenize_|translategemma_extra|test_pooling_token_classify|test_rerank_max_tokens": HUB,
            r"'max_tokens' == 'end_turn'|'incomplete' == 'completed'|JSONDecodeError|reasoning tokens|unique completions": SCRIPT,
            r"test_response_format|test_complex_message|test_structured_output|test_named_tool_use|test_gpt_oss|reasoning": SCRIPT,
            r"responses\.test_.*(assert '\w+' in |>= 2|Expected (message|function_call)|list index out of range)": SCRIPT,
            r"test_completion_(streaming|stream_options)|test_chat_streaming|ThinkingBlock|prompt_logprobs_chat|tool_use": SCRIPT,
            r"root_path|force_include_usage|show_version|test_\w*request_id_header|test_uds": OPTIONS,
            r"MCP tool call not found|Expected 1 system message|Python tool call": OUTPUT,
            r"emoji_and_token_ids|with_prompt_logprobs|return_tokens_as_token_ids": OUTPUT,
        },
    },
}
