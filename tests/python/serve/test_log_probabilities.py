"""Log-probabilities of /v1/completions: offsets in the text, texts of tokens, prompts that are echoed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from asgi import Answer, with_server

import pumice
from pumice.serve.completions import legacy_logprobs, prompt_pieces
from pumice.serve.prompt_scores import token_text

PATH = "/v1/completions"
PUMICE = "so 🪨 ok"


def post(model: pumice.Model, body: Any) -> Answer:
    return with_server({"chat": model}, lambda client: client.post(PATH, {"temperature": 0, **body}))


def check(text: str, logprobs: dict[str, Any]) -> None:
    """Checks that the offsets are those of the tokens in the text."""
    offsets = logprobs["text_offset"]
    assert len(offsets) == len(logprobs["tokens"]) and offsets == sorted(offsets) and offsets[-1] <= len(text)
    for token, offset in zip(logprobs["tokens"], offsets, strict=True):
        assert token.startswith(("bytes:", "<bos>")) or text.startswith(token, offset), (token, offset, text)


@pytest.mark.parametrize(("top", "as_ids", "most"), [(0, False, 0), (5, False, 3), (1, True, 0)])
@pytest.mark.parametrize("name", ["smollm2", "gemma3"])
def test_echoes_of_prompts(request: pytest.FixtureRequest, name: str, top: int, as_ids: bool, most: int) -> None:
    model = request.getfixturevalue(name)
    prompts = [PUMICE, "é🪨", "<bos>The stone", "stone", "<|im_start|>user\nHi"]
    ids = model._generator.prompt_ids(prompts, prompts)
    given = [each.tolist() for each in ids] if as_ids else prompts
    answer = post(model, {"prompt": given, "echo": True, "logprobs": top, "max_tokens": most})
    assert answer.status == 200, answer.body
    for its, choice in zip(ids, answer.json["choices"], strict=True):
        found = choice["logprobs"]
        assert found["token_logprobs"][0] is None and len(found["tokens"]) >= len(its)
        assert np.allclose(found["token_logprobs"][1 : len(its)], model.score(its), atol=1e-3)
        # The token itself is always among them, with logprobs: 0 alone.
        each_token = zip(found["tokens"], found["token_logprobs"], found["top_logprobs"], strict=True)
        for token, chance, likeliest in each_token:
            assert likeliest is None if chance is None else max(top, 1) <= len(likeliest) <= top + 1 and likeliest[token] >= chance
        if not as_ids:
            check(choice["text"], found)


@pytest.mark.parametrize(
    ("prompt", "offsets"),
    [
        (PUMICE, [0, 2, 4]),
        ("The capital of France", [0, 3, 11, 14]),
    ],
)
def test_offsets_count_characters_and_no_bos(smollm2: pumice.Model, gemma3: pumice.Model, prompt: str, offsets: list[int]) -> None:
    for model in (smollm2, gemma3):
        answer = post(model, {"prompt": prompt, "echo": True, "logprobs": 0, "max_tokens": 0})
        logprobs = answer.json["choices"][0]["logprobs"]
        whole = [offset for token, offset in zip(logprobs["tokens"], logprobs["text_offset"], strict=True) if token[:1].strip() != "<"]
        assert set(offsets) <= set(whole) and whole[-1] == offsets[-1], logprobs
        assert logprobs["text_offset"][:2] == ([0, 0] if logprobs["tokens"][0] == "<bos>" else [0, offsets[1]])


@pytest.mark.parametrize("stop", [None, " stone"])
def test_offsets_of_a_stream_are_those_of_the_whole_answer(smollm2: pumice.Model, stop: str | None) -> None:
    body = {"prompt": "Repeat: 🪨 so 🪨 stone 🪨. Repeat: 🪨", "max_tokens": 24, "logprobs": 5, "stop": stop}
    whole = post(smollm2, body).json["choices"][0]
    check(whole["text"], whole["logprobs"])
    chunks = [event["choices"][0] for event in post(smollm2, {**body, "stream": True}).events[:-1]]
    joined: dict[str, list[Any]] = {name: [] for name in whole["logprobs"]}
    for chunk in chunks:
        for name, values in (chunk["logprobs"] or {}).items():
            joined[name] += values
    assert joined["text_offset"] == whole["logprobs"]["text_offset"] and joined["tokens"] == whole["logprobs"]["tokens"]


def test_parts_of_characters_have_texts_of_their_own(smollm2: pumice.Model) -> None:
    ids = smollm2.tokenize("🪨 🦜 ж")
    parts = [i for i in dict.fromkeys(ids.tolist()) if token_text(smollm2.token_bytes([i])[0]).startswith("bytes:")]
    assert len(parts) > 2
    found = legacy_logprobs(smollm2, ids[:1], [-1.0], [parts], [[-float(k) for k in range(len(parts))]], ["a"])
    assert list(found["top_logprobs"][0].values()) == [-float(k) for k in range(len(parts))]


@pytest.mark.parametrize(
    ("data", "text"),
    [(b" ok", " ok"), (b"\xf0\x9f", r"bytes:\xf0\x9f"), (b" \xf0\x9f", r"bytes: \xf0\x9f"), ("é".encode(), "é"), (b"", "")],
)
def test_texts_of_tokens(data: bytes, text: str) -> None:
    assert token_text(data) == text


def test_the_likelier_of_two_tokens_with_one_text_counts() -> None:
    class Same:
        def token_bytes(self, ids: Any) -> list[bytes]:
            return [b"a"] * len(ids)

    found = legacy_logprobs(Same(), [1], [-0.5], [[1, 2]], [[-0.5, -3.0]], ["a"])  # type: ignore[arg-type]
    assert found["top_logprobs"] == [{"a": -0.5}]


@pytest.mark.parametrize("prompt", [PUMICE, "", "é", "Half a character: "])
def test_pieces_of_a_prompt_are_its_text(smollm2: pumice.Model, gemma3: pumice.Model, prompt: str) -> None:
    for model in (smollm2, gemma3):
        ids = model.tokenize(prompt)
        if ids.size:
            assert "".join(prompt_pieces(model, prompt, ids)) == prompt
    ids = smollm2.tokenize("🪨")[:-1]
    assert "".join(prompt_pieces(smollm2, ids, ids)) == smollm2.detokenize(ids)


@pytest.mark.parametrize("top", [0, 2])
def test_log_probabilities_of_a_prompt(smollm2: pumice.Model, top: int) -> None:
    prompts, n = ["Pumice is a stone.", PUMICE], 2
    found = post(smollm2, {"prompt": prompts, "prompt_logprobs": top, "n": n, "max_tokens": 1, "return_token_ids": True}).json["choices"]
    for i, choice in enumerate(found):
        ids = smollm2.tokenize(prompts[i // n])
        first, *rest = choice["prompt_logprobs"]
        assert first is None and choice["prompt_token_ids"] == ids.tolist() and len(choice["token_ids"]) == 1
        own = [each[str(token)]["logprob"] for each, token in zip(rest, ids[1:].tolist(), strict=True)]
        assert np.allclose(own, smollm2.score(ids), atol=1e-3)
        for each in rest:
            ranked = sorted((entry["rank"], entry["logprob"]) for entry in each.values() if entry["rank"] is not None)
            assert [rank for rank, _ in ranked] == list(range(1, top + 1)) and top <= len(each) <= top + 1
            assert [chance for _, chance in ranked] == sorted((chance for _, chance in ranked), reverse=True)


def test_ids_of_a_stream(smollm2: pumice.Model) -> None:
    body = {"prompt": ["One, two,", "A"], "max_tokens": 6, "return_token_ids": True}
    whole = post(smollm2, body).json["choices"]
    joined: list[list[int]] = [[], []]
    begun: list[Any] = [None, None]
    for event in post(smollm2, {**body, "stream": True}).events[:-1]:
        choice = event["choices"][0]
        assert ("prompt_token_ids" in choice) == (begun[choice["index"]] is None)
        begun[choice["index"]] = begun[choice["index"]] or choice["prompt_token_ids"]
        joined[choice["index"]] += choice["token_ids"]
    assert joined == [each["token_ids"] for each in whole] and begun == [each["prompt_token_ids"] for each in whole]


@pytest.mark.parametrize("stream", [False, True])
def test_prompts_that_are_cut(smollm2: pumice.Model, stream: bool) -> None:
    long = "One, two, three, four, five,"
    ids = smollm2.tokenize(long)
    body = {"prompt": [long, ids.tolist(), "a"], "truncate_prompt_tokens": 4, "max_tokens": 3, "return_token_ids": True, "stream": stream}
    found = post(smollm2, body)
    events = found.events[:-1] if stream else [found.json]
    assert events[0]["pumice"]["cut_tokens"] == 2 * (len(ids) - 4)
    given = {c["index"]: c["prompt_token_ids"] for event in events for c in event["choices"] if "prompt_token_ids" in c}
    assert given == {0: ids[-4:].tolist(), 1: ids[-4:].tolist(), 2: smollm2.tokenize("a").tolist()}
    fits = post(smollm2, {"prompt": "stone " * 9000, "truncate_prompt_tokens": -1, "max_tokens": 0, "echo": True}).json
    assert fits["usage"]["prompt_tokens"] == smollm2.info["n_ctx"] - 1
    assert "cut_tokens" not in post(smollm2, {"prompt": "a", "truncate_prompt_tokens": 4, "max_tokens": 1}).json["pumice"]


def test_usage_of_each_event(smollm2: pumice.Model) -> None:
    body = {"prompt": "One, two,", "max_tokens": 5, "stream": True}
    options = {"include_usage": True, "continuous_usage_stats": True}
    events = post(smollm2, {**body, "stream_options": options}).events[:-1]
    counts = [event["usage"]["completion_tokens"] for event in events]
    assert counts == sorted(counts) and counts[-1] == 5 and all(each["usage"]["prompt_tokens"] == 4 for each in events)
    assert post(smollm2, {**body, "stream_options": {"include_usage": True}}).events[0]["usage"] is None


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"stream": True, "prompt_logprobs": 0}, "prompt_logprobs"),
        ({"stream": True, "echo": True}, "echo"),
        ({"truncate_prompt_tokens": 0}, "truncate_prompt_tokens"),
        ({"truncate_prompt_tokens": -2}, "truncate_prompt_tokens"),
        ({"prompt_logprobs": 21}, "prompt_logprobs"),
    ],
)
def test_what_is_refused(smollm2: pumice.Model, change: dict[str, Any], param: str) -> None:
    found = post(smollm2, {"prompt": "a", **change})
    assert found.status == 400 and found.error["param"] == param, found.body


def test_log_probabilities_of_prompts_have_a_most(smollm2: pumice.Model) -> None:
    body = {"prompt": "Pumice is a stone.", "max_tokens": 1, "prompt_logprobs": 1}
    count = 2 * smollm2.count_tokens(body["prompt"])
    for most, status in ((count, 200), (count - 1, 400)):
        found = with_server({"chat": smollm2}, lambda client: client.post(PATH, body), max_logprobs=most)
        assert found.status == status and (status == 200 or found.error["param"] == "prompt_logprobs")
