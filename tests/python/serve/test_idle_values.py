"""Values that change nothing, which clients send as defaults: each dialect takes them, and gives the same answer as without them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from asgi import Answer, running, with_server

import pumice
from pumice.serve import app
from pumice.serve.sampling_fields import IDLE, LACKING

HI = [{"role": "user", "content": "Say hello."}]
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": HI, "max_tokens": 4},
    "/v1/completions": {"prompt": "One, two,", "max_tokens": 4},
    "/v1/responses": {"input": "Say hello.", "max_output_tokens": 4},
    "/v1/messages": {"messages": HI, "max_tokens": 4},
    "/completion": {"prompt": "One, two,", "n_predict": 4},
}
# Values that all dialects which generate text take.
COMMON: tuple[dict[str, Any], ...] = (
    {"top_k": -1},
    {"top_k": 0, "top_p": 1, "min_p": 0, "typical_p": 1, "repetition_penalty": 1},
    {"seed": -1},
    {"seed": -12345},
    {"bad_words": ""},
    {"bad_words": []},
    {"dry_breakers": []},
    {"dry_multiplier": 0, "dry_base": 1.75, "dry_allowed_length": 2, "dry_range": 0},
    {"xtc_probability": 0, "xtc_threshold": 0.1},
    {"mirostat_tau": 0, "mirostat_eta": 0.1},
    {"max_reasoning_tokens": -1},
    {"min_tokens": 0},
    {"length_penalty": 1, "use_beam_search": False, "early_stopping": False},
    {"skip_special_tokens": True, "spaces_between_special_tokens": True, "include_stop_str_in_output": False},
    {"spaces_between_special_tokens": False},
    {"dynatemp_range": 0.0, "dynatemp_exponent": 1.0, "tfs_z": 1.0, "mirostat": 0},
    {"cache_prompt": True, "return_tokens_as_token_ids": False},
    {"a_field_of_another_server": None},
    {"stream": False, "stream_options": None},
)
OPENAI: tuple[dict[str, Any], ...] = (
    {"request_id": "mine"},
    {"stop": ""},
    {"stop": []},
    {"stop": ["", "never"]},
    {"stop_token_ids": []},
    {"stop": "never", "stop_token_ids": [49000]},
    {"logit_bias": {}},
    {"logit_bias": []},
    {"n": 1, "best_of": 1},
    {"presence_penalty": 0, "frequency_penalty": 0.0},
    {"stream_options": {"include_usage": False}},
    {"user": "", "logprobs": None},
)
OF_DIALECT: dict[str, tuple[dict[str, Any], ...]] = {
    "/v1/chat/completions": (
        *OPENAI,
        {"max_tokens": None, "max_completion_tokens": 4},
        {"max_completion_tokens": -1},
        {"modalities": ["text"], "audio": None, "prediction": None},
        {"audio": {"voice": "alloy", "format": "wav"}, "prediction": {"type": "content", "content": "Hello."}},
        {"prompt_cache_options": {"mode": "implicit"}},
        {"functions": [], "function_call": "none"},
        {"function_call": "auto"},
        {"tools": [], "tool_choice": "auto"},
        {"tool_choice": "none", "parallel_tool_calls": True},
        {"response_format": {"type": "text"}},
        {"logprobs": False, "top_logprobs": 0},
        {"reasoning": {}, "thinking_token_budget": -1},
        {"reasoning": {"max_tokens": None, "effort": None}},
        {"chat_template_kwargs": {}},
        {"add_generation_prompt": True, "continue_final_message": False, "add_special_tokens": False, "echo": False},
        {"include_reasoning": True, "prompt_logprobs": None, "return_token_ids": False, "truncate_prompt_tokens": None},
        {"web_search_options": None, "verbosity": "low"},
    ),
    "/completion": (
        {"stop": [], "logit_bias": [], "grammar": "", "json_schema": None, "n_probs": 0, "response_fields": [], "samplers": None},
        {"mirostat": 0, "mirostat_tau": 5.0, "mirostat_eta": 0.1, "repeat_penalty": 1.0, "repeat_last_n": 64, "top_n_sigma": -1},
        {"dry_multiplier": 0, "dry_base": 1.75, "dry_penalty_last_n": -1, "dry_sequence_breakers": []},
        {"n_keep": 0, "n_discard": 0, "n_cache_reuse": 0, "n_indent": 0, "id_slot": -1, "t_max_predict_ms": 0, "min_keep": 0, "n_cmpl": 1},
        {"lora": [], "image_data": [], "post_sampling_probs": False, "adaptive_target": -1.0, "adaptive_decay": 0.9, "seed": 2**32 - 1},
    ),
    "/v1/completions": (*OPENAI, {"suffix": ""}, {"echo": False}, {"add_special_tokens": True}),
    "/v1/responses": (
        {"truncation": "disabled", "background": False, "previous_response_id": "", "conversation": None, "prompt": None},
        {"tools": [], "tool_choice": "auto", "parallel_tool_calls": True},
        {"include": [], "text": {}, "reasoning": {}},
        {"text": {"format": {"type": "text"}}, "reasoning": {"effort": None, "summary": None}},
        {"instructions": "", "metadata": {}, "top_logprobs": 0, "max_tool_calls": None, "moderation": None},
        {"access_programs": {"cyber": "standard"}, "personality": "friendly"},
    ),
    "/v1/messages": (
        {"stop_sequences": []},
        {"stop_sequences": [""]},
        {"system": ""},
        {"system": []},
        {"tools": [], "tool_choice": {"type": "auto"}},
        {"tool_choice": {"type": "none"}},
        {"mcp_servers": [], "container": None, "thread": None, "output_config": {}, "context_management": None},
    ),
}


def rows() -> Iterator[Any]:
    for path, own in OF_DIALECT.items():
        for change in (*COMMON, *own):
            yield pytest.param(path, change, id=f"{path}-{'-'.join(change)}"[:80])


def text_of(answer: Answer) -> Any:
    assert answer.status == 200, answer.body
    found = answer.json
    if "choices" in found:
        return [choice.get("text", choice.get("message", {}).get("content")) for choice in found["choices"]]
    if "output" in found:
        return [part["text"] for item in found["output"] for part in item["content"]]
    return found["content"] if isinstance(found["content"], str) else found["content"][0]["text"]


@pytest.fixture(scope="module")
def plain(smollm2: pumice.Model) -> dict[str, Any]:
    """The answer of each path to its body."""

    async def main() -> dict[str, Any]:
        async with running(app({"chat": smollm2}, sampling={"temperature": 0}, max_answer=4)) as client:
            return {path: text_of(await client.post(path, body)) for path, body in BODIES.items()}

    return asyncio.run(main())


@pytest.mark.parametrize(("path", "change"), list(rows()))
def test_values_that_change_nothing(smollm2: pumice.Model, plain: dict[str, Any], path: str, change: dict[str, Any]) -> None:
    body = {**BODIES[path], **change}
    if "max_completion_tokens" in change:
        body.pop("max_tokens", None)
    answer = with_server({"chat": smollm2}, lambda client: client.post(path, body), sampling={"temperature": 0}, max_answer=4)
    assert text_of(answer) == plain[path]
    assert not answer.json.get("pumice", {}).get("ignored")


@pytest.mark.parametrize(
    ("path", "change"),
    [
        *((path, {name: "other"}) for path in BODIES for name in LACKING),
        *((path, {"skip_special_tokens": False}) for path in BODIES),
        *((path, {"include_stop_str_in_output": True}) for path in ("/v1/responses", "/v1/messages")),
        ("/v1/chat/completions", {"modalities": ["text", "audio"]}),
        ("/v1/chat/completions", {"truncate_prompt_tokens": 5}),
        ("/v1/chat/completions", {"function_call": {"name": "f"}}),
        ("/v1/chat/completions", {"best_of": 2}),
        ("/v1/chat/completions", {"web_search_options": {}}),
        ("/v1/chat/completions", {"moderation": {"model": "m"}}),
        ("/v1/chat/completions", {"max_tokens": -2}),
        ("/v1/completions", {"suffix": "x"}),
        ("/v1/completions", {"add_special_tokens": False}),
        ("/v1/completions", {"top_k": -2}),
        ("/v1/completions", {"seed": -(2**63) - 1}),
        ("/v1/responses", {"background": True}),
        ("/completion", {"lora": [{"id": 0, "scale": 1}]}),
        ("/completion", {"post_sampling_probs": True}),
        ("/completion", {"mirostat": 1}),
        ("/completion", {"samplers": ["top_q"]}),
        ("/completion", {"n_predict": -2}),
    ],
)
def test_values_that_would_change_something(smollm2: pumice.Model, path: str, change: dict[str, Any]) -> None:
    answer = with_server({"chat": smollm2}, lambda client: client.post(path, {**BODIES[path], **change}))
    assert answer.status == 400, answer.body
    assert answer.error.get("param", *change) in change and next(iter(change)) in answer.error["message"]


def test_negative_seeds_are_seeds(smollm2: pumice.Model) -> None:
    def texts(seed: int) -> Any:
        body = {"prompt": "One", "temperature": 2, "seed": seed, "max_tokens": 12}
        return text_of(with_server({"chat": smollm2}, lambda client: client.post("/v1/completions", body)))

    assert texts(-5) == texts(-5) == texts(2**64 - 5) != texts(-6)


def test_tokens_that_end_an_answer(smollm2: pumice.Model) -> None:
    body = {"prompt": "One, two, three,", "temperature": 0, "max_tokens": 6}
    whole = smollm2.generate(body["prompt"], max_new_tokens=6, temperature=0)
    change = {"stop": ["never"], "stop_token_ids": [int(whole.ids[3])]}
    for path_body in ({**body, **change}, {**change, **body}):
        found = with_server({"chat": smollm2}, lambda client, given=path_body: client.post("/v1/completions", given)).json["choices"][0]
        first = whole.ids.tolist().index(whole.ids[3])
        assert (found["text"], found["finish_reason"]) == (smollm2.detokenize(whole.ids[:first]), "stop")


def test_an_answer_without_a_limit(smollm2: pumice.Model) -> None:
    body = {"prompt": "One", "temperature": 0, "max_tokens": -1, "grammar": "start: /[0-9]{30}/"}
    found = with_server({"chat": smollm2}, lambda client: client.post("/v1/completions", {**body, "logprobs": 0}))
    assert found.status == 200 and found.json["usage"]["completion_tokens"] == 30, found.body


@pytest.mark.parametrize(
    "change",
    [
        {"truncation": True},
        {"truncation": False},
        {"truncate": "NONE"},
        {"truncate": "END"},
        {"encoding_format": "float", "output_dtype": "float"},
        {"dimensions": 384},
        {"dimensions": None, "prompt_name": "", "input_type": None},
        {"late_chunking": False, "add_special_tokens": True, "priority": 0, "user": "", "task": None},
    ],
)
def test_values_that_change_no_vector(minilm: pumice.Model, change: dict[str, Any]) -> None:
    def vectors(body: dict[str, Any]) -> Any:
        return with_server({"embed": minilm}, lambda client: client.post("/v1/embeddings", {"input": "a stone", **body})).json["data"]

    assert vectors(change) == vectors({})


def test_texts_of_embeddings_are_cut_if_asked(minilm: pumice.Model) -> None:
    for change, status in (({"truncation": True}, 200), ({"truncate": "END"}, 200), ({"truncation": False}, 400), ({}, 400)):
        body = {"input": "stone " * 500, **change}
        found = with_server({"embed": minilm}, lambda client, body=body: client.post("/v1/embeddings", body))
        assert found.status == status and (status == 400 or found.json["pumice"]["cut_texts"] == 1)
    both = {"input": "a", "truncate": True, "truncation": True}
    assert with_server({"embed": minilm}, lambda client: client.post("/v1/embeddings", both)).status == 400


def test_each_idle_value_is_one_of_a_refused_field() -> None:
    assert set(IDLE) == set(LACKING)
