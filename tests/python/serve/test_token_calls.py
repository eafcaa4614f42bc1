"""Tokens, rendered conversations, and what clients read of a model before they send prompts: llama.cpp's and vLLM's forms."""

from __future__ import annotations

from typing import Any

import pytest
from asgi import Answer, with_server

import pumice
from pumice.serve.application import PATHS

TEXT = "Größe 🪨"
MESSAGES = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yes, I"}]


def post(model: pumice.Model, path: str, body: Any, **settings: Any) -> Answer:
    return with_server({"chat": model}, lambda client: client.post(path, body), **settings)


def get(model: pumice.Model, path: str, **settings: Any) -> Answer:
    return with_server({"chat": model}, lambda client: client.get(path), **settings)


@pytest.mark.parametrize("special", [None, True, False])
def test_tokens_of_a_prompt(gemma3: pumice.Model, special: bool | None) -> None:
    for text, flag in (("content", "add_special"), ("prompt", "add_special_tokens")):
        # llama.cpp's content has special tokens where the request says so, and vLLM's prompt where it does not deny them
        expected = gemma3.tokenize(TEXT, text == "prompt" if special is None else special).tolist()
        body = {text: TEXT, flag: special, "return_token_strs": True}
        found = post(gemma3, "/tokenize", body).json
        assert found["tokens"] == expected and found["count"] == len(expected) and found["max_model_len"] == gemma3.info["n_ctx"]
        assert found["token_strs"] == [gemma3.tokenizer.id_to_token(i) for i in expected]
    assert get(gemma3, "/tokenizer_info").json["bos_token"] == "<bos>"
    plain, token = (post(gemma3, "/tokenize", {"content": "<eos>", "parse_special": each}).json["count"] for each in (False, True))
    assert (plain > 1, token) == (True, 1)
    assert post(gemma3, "/detokenize", {"tokens": expected}).json == {"content": TEXT, "prompt": TEXT}


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "content"),
        ({"prompt": "a", "messages": MESSAGES}, "content"),
        ({"prompt": "a", "content": "a"}, "content"),
        ({"prompt": "a", "add_special": True, "add_special_tokens": True}, "add_special_tokens"),
    ],
)
def test_what_tokenize_refuses(smollm2: pumice.Model, body: Any, param: str) -> None:
    found = post(smollm2, "/tokenize", body)
    assert found.status == 400 and found.error["param"] == param, found.body


def test_rendered_conversations(smollm2: pumice.Model) -> None:
    whole = post(smollm2, "/apply-template", {"messages": MESSAGES}).json["prompt"]
    bare = post(smollm2, "/apply-template", {"messages": MESSAGES, "add_generation_prompt": False}).json
    goes_on = post(smollm2, "/apply-template", {"messages": MESSAGES, "continue_final_message": True, "add_generation_prompt": False}).json
    assert whole == bare["prompt"] + "<|im_start|>assistant\n"
    assert goes_on["prompt"].endswith("assistant\nYes, I") and bare["prompt"].startswith(goes_on["prompt"])
    for change in ({}, {"add_generation_prompt": False}, {"continue_final_message": True}):
        rendered = post(smollm2, "/apply-template", {"messages": MESSAGES, **change}).json
        tokens = post(smollm2, "/tokenize", {"messages": MESSAGES, **change}).json
        assert tokens["count"] == rendered["prompt_tokens"] == len(smollm2.tokenize(rendered["prompt"], False))
        special = post(smollm2, "/tokenize", {"messages": MESSAGES, **change, "add_special_tokens": True}).json
        assert special["tokens"] == smollm2.tokenize(rendered["prompt"], True).tolist() and special["token_strs"] is None


def test_descriptions_of_a_model(smollm2: pumice.Model, minilm: pumice.Model) -> None:
    info = get(smollm2, "/tokenizer_info").json
    assert info["eos_token"] == "<|im_end|>" and "im_start" in info["chat_template"] and info["vocab_size"] == 49152
    assert info["model_max_length"] == smollm2.info["n_ctx"] and info["add_bos_token"] is False
    props = get(smollm2, "/props", sampling={"temperature": 0.5}).json
    assert props["chat_template"] == info["chat_template"] and props["eos_token"] == "<|im_end|>" and props["model_alias"] == "chat"
    assert props["default_generation_settings"]["n_ctx"] == smollm2.info["n_ctx"]
    params = props["default_generation_settings"]["params"]
    assert (params["temperature"], params["top_k"], params["repeat_penalty"], params["n_predict"]) == (0.5, 40, 1, 4096)
    assert props["model_path"] == smollm2.path.name
    assert get(smollm2, "/version").json == {"version": pumice.__version__}
    assert get(minilm, "/tokenizer_info").json["chat_template"] is None

    async def named(client: Any) -> list[Answer]:
        return [await client.get(path) for path in ("/tokenizer_info?model=b", "/props?model=b", "/props", "/props?model=c")]

    found = with_server({"a": smollm2, "b": minilm}, named)
    assert [each.status for each in found] == [200, 200, 400, 404] and found[1].json["model_alias"] == "b"


@pytest.mark.parametrize(("name", "key"), [("smollm2", "n_ctx"), ("minilm", "max_tokens")])
def test_models_tell_their_length(request: pytest.FixtureRequest, name: str, key: str) -> None:
    model = request.getfixturevalue(name)
    one = get(model, "/v1/models").json["data"][0]
    assert one["max_model_len"] == model.info[key] and one["root"] == "chat"


def test_paths_without_v1(smollm2: pumice.Model) -> None:
    body = {"messages": MESSAGES[:1], "max_tokens": 2, "temperature": 0}
    plain, short = (post(smollm2, path, body).json["choices"] for path in ("/v1/chat/completions", "/chat/completions"))
    assert plain == short and get(smollm2, "/models/chat").json["id"] == "chat"
    known = {(path.method, path.path) for path in PATHS if path.dialect == "openai" and path.path.startswith("/v1/")}
    assert {(method, path.removeprefix("/v1")) for method, path in known} <= {(path.method, path.path) for path in PATHS}
    described = get(smollm2, "/openapi.json").json["paths"]
    assert described["/completions"]["post"]["requestBody"] == described["/v1/completions"]["post"]["requestBody"]
