"""Log-probabilities of /v1/completions: offsets in the text, texts of tokens, prompts that are echoed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from asgi import Answer, with_server

import pumice
from pumice.serve.completions import legacy_logprobs, prompt_pieces, token_text

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
        assert all(each is None or len(each) == top for each in found["top_logprobs"])
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
