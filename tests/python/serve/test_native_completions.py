"""/completion and /infill in llama.cpp's form, and suffix of /v1/completions: what editors send, answers, streams and wrong values."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gap_models
import pytest
from asgi import Answer, with_server

import pumice
from pumice.serve.native_completions import _Lines, fields, infill_fields
from pumice.serve.settings import Settings

GREEDY: dict[str, Any] = {"sampling": {"temperature": 0}}
COUNT = "One, two, three,"


@pytest.fixture(scope="module")
def coder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[pumice.Model]:
    with pumice.load(gap_models.folder(tmp_path_factory.mktemp("coder")), device="cpu", n_ctx=256) as found:
        yield found


def post(model: pumice.Model, path: str, body: Any, **settings: Any) -> Answer:
    return with_server({"chat": model}, lambda client: client.post(path, body), **{**GREEDY, **settings})


def streamed(answer: Answer) -> tuple[list[Any], list[Any]]:
    """Returns the events before the end of a stream, and those at its end."""
    assert answer.status == 200, answer.body
    return [e for e in answer.events if not e["stop"]], [e for e in answer.events if e["stop"]]


# ---------------------------------------------------------------- /completion
def test_an_answer_whole_and_streamed(coder: pumice.Model) -> None:
    body = {"prompt": COUNT, "n_predict": 6, "return_tokens": True, "seed": 3, "ignore_eos": True}
    want = coder.generate(COUNT, max_new_tokens=6, temperature=0, ignore_eos=True)
    whole = post(coder, "/completion", body).json
    assert (whole["content"], whole["tokens"], whole["stop"]) == (want.text, want.ids.tolist(), True)
    assert (whole["tokens_predicted"], whole["tokens_evaluated"]) == (6, want.prompt_tokens)
    assert (whole["stop_type"], whole["stopping_word"], whole["truncated"], whole["has_new_line"]) == (
        "limit",
        "",
        False,
        "\n" in want.text,
    )
    assert (whole["prompt"], whole["model"], whole["index"]) == (COUNT, "chat", 0)
    settings = whole["generation_settings"]
    assert [settings[n] for n in ("n_predict", "max_tokens", "seed", "temperature", "top_k", "stop")] == [6, 6, 3, 0, 40, []]
    timings = whole["timings"]
    assert timings["prompt_n"] + timings["cache_n"] == want.prompt_tokens and timings["predicted_n"] == 6
    assert timings["predicted_ms"] > 0 and timings["predicted_per_second"] > 0

    parts, (last,) = streamed(post(coder, "/completion", {**body, "stream": True, "timings_per_token": True}, chunk_seconds=0))
    assert "".join(e["content"] for e in parts) == want.text and [i for e in parts for i in e["tokens"]] == want.ids.tolist()
    assert parts[-1]["tokens_predicted"] == 6 and all("predicted_ms" in e["timings"] for e in parts)
    assert (last["content"], last["tokens"], last["stop_type"], last["tokens_predicted"]) == ("", [], "limit", 6)
    assert last["generation_settings"]["stream"] is True


def test_forms_of_a_prompt(coder: pumice.Model) -> None:
    ids = coder.tokenize(COUNT).tolist()
    head, tail = coder.tokenize("One, two,").tolist(), " three,"
    forms = [COUNT, ids, [*head, tail], ["One, two,", *coder.tokenize(tail).tolist()], {"prompt_string": COUNT}]
    want = coder.generate(COUNT, max_new_tokens=3, temperature=0, ignore_eos=True).text
    for form in forms:
        found = post(coder, "/completion", {"prompt": form, "n_predict": 3, "ignore_eos": True}).json
        assert (found["content"], found["prompt"]) == (want, COUNT), form
    several = post(
        coder, "/completion", {"prompt": [COUNT, ids, {"prompt_string": COUNT}, [*head, tail]], "n_predict": 3, "ignore_eos": True}
    ).json
    assert [(e["index"], e["content"]) for e in several] == [(i, want) for i in range(4)]
    assert [e["content"] for e in post(coder, "/completion", {"prompt": [COUNT], "n_predict": 3, "ignore_eos": True}).json] == [want]
    assert len(post(coder, "/completion", {"prompt": COUNT, "n_predict": 3, "ignore_eos": True, "n_cmpl": 2}).json) == 2
    parts, last = streamed(post(coder, "/completion", {"prompt": [COUNT, "A"], "n_predict": 3, "ignore_eos": True, "stream": True}))
    assert {e["index"] for e in parts} == {0, 1} and [e["index"] for e in last] == [0, 1]


def test_how_an_answer_ends(coder: pumice.Model) -> None:
    form = {"grammar": 'root ::= "ab, cd"'}
    word = post(coder, "/completion", {"prompt": COUNT, "n_predict": 9, "stop": ["zz", " c"], **form}).json
    assert (word["stop_type"], word["stopping_word"], word["content"]) == ("word", " c", "ab,")
    whole = post(coder, "/completion", {"prompt": COUNT, "n_predict": 9, **form}).json
    assert (whole["stop_type"], whole["content"], whole["truncated"]) == ("eos", "ab, cd", False)
    full = post(coder, "/completion", {"prompt": COUNT, "n_predict": -1, "logit_bias": [["q", 1e6]], "max_repeated_tokens": 0}).json
    assert (full["stop_type"], full["truncated"], full["tokens_predicted"]) == ("limit", True, 256 - len(COUNT))
    end = post(coder, "/completion", {"prompt": COUNT, "n_predict": 9, "logit_bias": [[gap_models.END, 1e6]]}).json
    assert (end["stop_type"], end["content"], end["tokens_predicted"]) == ("eos", "", 0)
    nothing = post(coder, "/completion", {"prompt": COUNT, "n_predict": 0}).json
    assert (nothing["content"], nothing["tokens_predicted"], nothing["stop_type"]) == ("", 0, "limit")
    assert nothing["generation_settings"]["n_predict"] == 0
    parts, (last,) = streamed(post(coder, "/completion", {"prompt": COUNT, "n_predict": 0, "stream": True}))
    assert parts == [] and last["tokens_predicted"] == 0


def test_probabilities(coder: pumice.Model) -> None:
    want = coder.generate(COUNT, max_new_tokens=3, temperature=0, logprobs=2, ignore_eos=True)
    body = {"prompt": COUNT, "n_predict": 3, "ignore_eos": True, "n_probs": 2}
    whole = post(coder, "/completion", body).json["completion_probabilities"]
    assert [e["id"] for e in whole] == want.ids.tolist()
    assert [e["logprob"] for e in whole] == pytest.approx(want.logprobs.tolist())
    assert [[t["id"] for t in e["top_logprobs"]] for e in whole] == want.top_ids.tolist()
    assert all(bytes(e["bytes"]).decode("utf-8", "replace") == e["token"] for e in whole)
    parts, _ = streamed(post(coder, "/completion", {**body, "stream": True}))
    assert [e for part in parts for e in part["completion_probabilities"]] == whole
    assert (
        "completion_probabilities"
        not in post(coder, "/completion", {"prompt": COUNT, "n_predict": 3, "ignore_eos": True, "n_probs": 0}).json
    )
    assert post(coder, "/completion", {**body, "n_predict": 4000}, max_logprobs=1000).error["param"] == "n_probs"


def test_forms_of_an_answer(coder: pumice.Model) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"], "additionalProperties": False}
    for form in (
        {"json_schema": schema},
        {"json_schema": schema, "grammar": ""},
        {"grammar": 'root ::= "{\\"a\\":" ("true" | "false") "}"'},
    ):
        found = post(coder, "/completion", {"prompt": COUNT, "n_predict": 20, **form}).json
        assert isinstance(json.loads(found["content"])["a"], bool), form
    both = post(coder, "/completion", {"prompt": COUNT, "json_schema": schema, "grammar": 'root ::= "a"'})
    assert both.status == 400 and both.error["param"] == "grammar"
    wrong = post(coder, "/completion", {"prompt": COUNT, "json_schema": {"type": 1}})
    assert wrong.status == 400 and wrong.error["param"] == "json_schema", wrong.body


def test_only_the_wanted_entries(coder: pumice.Model) -> None:
    wanted = ["content", "timings/prompt_n", "generation_settings/top_k", "never", "timings/never", "content/never"]
    found = post(coder, "/completion", {"prompt": COUNT, "n_predict": 2, "response_fields": wanted}).json
    assert list(found) == ["content", "timings/prompt_n", "generation_settings/top_k"]


# Settings of a request -> settings of the answer. The first two are what llama.cpp's own page and llama.vim send.
SAMPLING: tuple[tuple[dict[str, Any], dict[str, Any]], ...] = (
    (
        {"samplers": "edkypmxt", "temperature": 0.8, "dynatemp_range": 0, "dynatemp_exponent": 1, "top_k": 40, "top_p": 0.95, "min_p": 0.05,
         "typical_p": 1, "xtc_probability": 0, "xtc_threshold": 0.1, "repeat_last_n": 64, "repeat_penalty": 1, "presence_penalty": 0,
         "frequency_penalty": 0, "dry_multiplier": 0, "dry_base": 1.75, "dry_allowed_length": 2, "dry_penalty_last_n": -1,
         "max_tokens": -1, "timings_per_token": False},
        {"temperature": 0.8, "top_k": 40, "min_p": 0.05, "max_tokens": 256, "mirostat": 0},
    ),
    (
        {"samplers": ["top_k", "top_p", "infill"], "top_k": 40, "top_p": 0.99},
        {"temperature": 1, "top_k": 40, "top_p": 0.99, "min_p": 0, "repeat_penalty": 1},
    ),
    ({"samplers": ["top-k", "temp", "typ"], "top_p": 0.5}, {"temperature": 0, "top_p": 1, "min_p": 0}),
    ({"samplers": [], "temperature": 0}, {"temperature": 0, "top_k": 0}),
    ({"mirostat": 0, "mirostat_tau": 5, "mirostat_eta": 0.1}, {"mirostat": 0, "mirostat_tau": 0}),
    ({"mirostat": 2}, {"mirostat": 2, "mirostat_tau": 5}),
    ({"temperature": -1}, {"temperature": 0}),
    ({"top_n_sigma": -1.0, "top_k": -1}, {"top_n_sigma": 0}),
    ({"dry_multiplier": 0.8, "dry_penalty_last_n": 0}, {"dry_multiplier": 0}),
    ({"dry_multiplier": 0.8, "dry_penalty_last_n": 32}, {"dry_multiplier": pytest.approx(0.8), "dry_penalty_last_n": 32}),
    ({"repeat_penalty": 1.5, "max_completion_tokens": 2}, {"repeat_penalty": 1.5, "n_predict": 2}),
)  # fmt: skip


@pytest.mark.parametrize(("given", "told"), SAMPLING, ids=lambda case: "-".join(case)[:40])
def test_names_of_settings(coder: pumice.Model, given: dict[str, Any], told: dict[str, Any]) -> None:
    most = {} if any("max_" in name for name in given) else {"n_predict": 2}
    found = post(coder, "/completion", {"prompt": "ab", "logit_bias": [[gap_models.END, 1e6]], **most, **given})
    assert found.status == 200, found.body
    settings = found.json["generation_settings"]
    assert {name: settings[name] for name in told} == {name: pytest.approx(v) if isinstance(v, float) else v for name, v in told.items()}


def test_biases(coder: pumice.Model) -> None:
    q = coder._tokenizer.id("q")
    for bias in ([[q, 1e6]], [["q", 1e6]], {"q": 1e6}, {str(q): 1e6}, [["q", 1e6], ["r", False]], [["r", False], [q, 1000]]):
        assert post(coder, "/completion", {"prompt": COUNT, "n_predict": 1, "logit_bias": bias}).json["content"] == "q", bias


# ---------------------------------------------------------------- /infill, and suffix
# What editors send, from their sources: llama.vim (autoload/llama.vim), llama.vscode (src/llama-server.ts: a request, and one that only
# prepares the next one), Continue (core/llm/llms/LlamaCpp.ts), and OpenAI's clients.
EXTRA = [{"text": "A", "time": [1, 2], "filename": "a.py"}, {"text": "B"}]
VIM_FIELDS = ["content", "timings/prompt_n", "timings/prompt_ms", "timings/prompt_per_token_ms", "timings/prompt_per_second",
              "timings/predicted_n", "timings/predicted_ms", "timings/predicted_per_token_ms", "timings/predicted_per_second", "truncated",
              "tokens_cached"]  # fmt: skip
EDITORS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama.vim": (
        "/infill",
        {"input_prefix": "def f():\n", "input_suffix": "\n  return x\n", "input_extra": EXTRA, "prompt": "  x =", "n_predict": 4,
         "n_indent": 2, "top_k": 40, "top_p": 0.99, "stream": False, "samplers": ["top_k", "top_p", "infill"], "cache_prompt": True,
         "t_max_prompt_ms": 500, "t_max_predict_ms": 1000, "response_fields": VIM_FIELDS},
    ),
    "llama.vscode": (
        "/infill",
        {"input_prefix": "def f():\n", "input_suffix": "\n  return x\n", "input_extra": EXTRA, "prompt": "  x =", "n_predict": 4,
         "top_k": 40, "top_p": 0.99, "stream": False, "samplers": ["top_k", "top_p", "infill"], "cache_prompt": True, "n_indent": 2,
         "t_max_prompt_ms": 500, "t_max_predict_ms": 1000},
    ),
    "llama.vscode, before": (
        "/infill",
        {"input_prefix": "", "input_suffix": "", "input_extra": EXTRA, "prompt": "", "n_predict": 0, "samplers": [], "cache_prompt": True,
         "t_max_prompt_ms": 500, "t_max_predict_ms": 1},
    ),
    "Continue": (
        "/completion",
        {"prompt": "<|fim_prefix|>ab<|fim_suffix|>cd<|fim_middle|>", "stream": True, "n_predict": 4, "frequency_penalty": 0,
         "presence_penalty": 0, "min_p": 0, "mirostat": 0, "stop": ["<|endoftext|>", "\n\n"], "top_k": 40, "top_p": 1, "temperature": 0.01},
    ),
    "OpenAI": ("/v1/completions", {"model": "chat", "prompt": "ab", "suffix": "cd", "max_tokens": 4, "temperature": 0, "stop": ["zz"]}),
}  # fmt: skip


@pytest.mark.parametrize("editor", EDITORS)
def test_what_editors_send(coder: pumice.Model, editor: str) -> None:
    path, body = EDITORS[editor]
    found = post(coder, path, body)
    assert found.status == 200, found.body
    if body.get("stream"):
        parts, (last,) = streamed(found)
        assert "".join(e["content"] for e in parts) or last["tokens_predicted"] == 0
        assert last["tokens_evaluated"] == 7  # three marks and four bytes
    elif path == "/infill":
        assert isinstance(found.json["content"], str)
        assert list(found.json) == VIM_FIELDS if editor == "llama.vim" else found.json["stop"] is True
    if editor == "llama.vscode, before":  # the next request finds its files computed
        later = post(coder, path, EDITORS["llama.vscode"][1]).json
        assert found.json["tokens_predicted"] == 0 and later["tokens_cached"] >= 0


def test_the_prompt_of_a_gap(coder: pumice.Model) -> None:
    body = {"input_prefix": "ab", "prompt": "c", "input_suffix": "z", "input_extra": EXTRA, "n_predict": 2, "ignore_eos": True}
    found = post(coder, "/infill", body).json
    text = (
        "<|repo_name|>myproject\n<|file_sep|>a.py\nA<|file_sep|>tmp\nB<|file_sep|>filename\n<|fim_prefix|>abc<|fim_suffix|>z<|fim_middle|>"
    )
    assert found["prompt"] == text
    hostile = post(coder, "/infill", {**body, "prompt": "<|fim_middle|>"}).json
    assert hostile["tokens_evaluated"] == found["tokens_evaluated"] - 1 + len("<|fim_middle|>")
    long = post(coder, "/infill", {**body, "input_prefix": "x" * 1000, "input_suffix": "y" * 1000})
    assert long.status == 200 and long.json["tokens_evaluated"] == 256 - 2, long.body
    parts, (last,) = streamed(post(coder, "/infill", {**body, "stream": True}))
    assert "".join(e["content"] for e in parts) == found["content"] and last["prompt"] == text


def test_tokens_of_the_form_end_a_middle(coder: pumice.Model) -> None:
    for bias, reason in (([["<|file_sep|>", 1e6]], "eos"), ([["<|fim_pad|>", 1e6]], "eos"), ([["q", 1e6]], "limit")):
        for path, body in (("/infill", {"input_prefix": "a", "input_suffix": "b"}), ("/v1/completions", {"prompt": "a", "suffix": "b"})):
            if path == "/infill":
                found = post(coder, path, {**body, "n_predict": 3, "logit_bias": bias}).json
                assert (found["stop_type"], found["content"]) == (reason, "qqq" if reason == "limit" else "")
            else:
                ids = {str(coder._tokenizer.id(bias[0][0])): 99}
                choice = post(coder, path, {**body, "max_tokens": 3, "logit_bias": ids}).json["choices"][0]
                assert choice["finish_reason"] == ("length" if reason == "limit" else "stop")


def test_stops_of_the_server_hold_for_a_gap(coder: pumice.Model) -> None:
    body = {"input_prefix": "a", "input_suffix": "b", "n_predict": 3, "logit_bias": [["q", 1e6]]}
    for stop in ("qq", ["qq"]):
        found = post(coder, "/infill", body, sampling={"temperature": 0, "stop": stop}).json
        assert (found["stop_type"], found["stopping_word"], found["content"]) == ("word", "qq", "")
    own = post(coder, "/infill", {**body, "stop": ["zz"]}, sampling={"temperature": 0, "stop": "qq"}).json
    assert own["content"] == "qqq"


def test_suffix_of_completions(coder: pumice.Model) -> None:
    want = coder.generate(prefix=["ab", "abc"], suffix="z", max_new_tokens=4, temperature=0)
    body = {"prompt": ["ab", "abc"], "suffix": "z", "max_tokens": 4, "return_token_ids": True, "logprobs": 1}
    found = post(coder, "/v1/completions", body).json
    assert [c["text"] for c in found["choices"]] == [each.text for each in want]
    assert coder._tokenizer.decode(found["choices"][0]["prompt_token_ids"], False) == "<|fim_prefix|>ab<|fim_suffix|>z<|fim_middle|>"
    assert found["usage"]["prompt_tokens"] == sum(each.prompt_tokens for each in want)
    events = post(coder, "/v1/completions", {**body, "stream": True}).events
    assert "".join(e["choices"][0]["text"] for e in events[:-1] if e["choices"][0]["index"] == 0) == want[0].text
    for more, param in (({"echo": True}, "echo"), ({"prompt_logprobs": 1}, "prompt_logprobs"), ({"prompt": [1, 2]}, "prompt"),
                        ({"truncate_prompt_tokens": 3}, "truncate_prompt_tokens"), ({"suffix": 1}, "suffix")):  # fmt: skip
        refused = post(coder, "/v1/completions", {**body, **more})
        assert refused.status == 400 and refused.error["param"] == param, refused.body


def test_models_without_tokens_for_a_gap(tmp_path: Path) -> None:
    with pumice.load(gap_models.folder(tmp_path, ()), device="cpu", n_ctx=64) as plain:
        found = post(plain, "/infill", {"input_prefix": "a", "input_suffix": "b"})
    assert found.status == 400 and "<fim_prefix>" in found.error["message"]


# ---------------------------------------------------------------- lines
@pytest.mark.parametrize(
    ("indent", "pieces", "kept"),
    [
        (2, ["x\n  y\nz"], "x\n  y\n"),
        (2, ["x\n", " ", " y", "\n", " ", "z", "q"], "x\n  y\n "),
        (2, ["x\n  y\n\t\tz\n  "], "x\n  y\n\t\tz\n  "),
        (2, ["x\n\n  y"], "x\n"),
        (4, ["a", "b"], "ab"),
    ],
)
def test_lines_that_are_less_indented(indent: int, pieces: list[str], kept: str) -> None:
    lines = _Lines(indent, 0)
    assert "".join(lines.kept(piece, 1) for piece in pieces) == kept == lines.text
    assert lines.ended == (kept != "".join(pieces))


def test_the_time_of_an_answer_ends_at_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr("pumice.serve.native_completions.time.monotonic", lambda: now)
    lines = _Lines(0, 1000)
    assert lines.kept("a\n", 1) == "a\n"
    now = 2.0
    assert (lines.kept("b", 1), lines.ended) == ("b", False)
    assert (lines.kept("c\nd", 1), lines.ended, lines.kept("e", 1), lines.text) == ("c\nd", True, "", "a\nbc\nd")


@pytest.mark.parametrize("stream", [False, True])
def test_a_line_ends_the_call(coder: pumice.Model, stream: bool) -> None:
    body = {"input_prefix": "a", "input_suffix": "b", "n_indent": 1, "n_predict": 200, "grammar": 'root ::= "x\\n" "y"*',
            "ignore_eos": True, "logit_bias": [["y", 100]], "stream": stream}  # fmt: skip
    found = post(coder, "/infill", body)
    if stream:
        parts, (last,) = streamed(found)
        content = "".join(e["content"] for e in parts)
    else:
        last, content = found.json, found.json["content"]
    assert (content, last["stop_type"]) == ("x\n", "limit") and last["tokens_predicted"] < 200


# ---------------------------------------------------------------- wrong values
ODD: list[Any] = [
    True,
    False,
    -3,
    2**31,
    10**30,
    0.5,
    "x",
    [],
    {},
    [None],
    [True],
    [[]],
    [{}],
    {"a": 1},
    [["a", "b"]],
    [[1, None]],
    [1, []],
]


@pytest.mark.parametrize("path", ["/completion", "/infill"])
def test_wrong_values_are_refused_by_name(coder: pumice.Model, path: str) -> None:
    """A value of a type that a field's schema does not have gets 400, whose `param` is the field; no value gets 500."""
    table = (fields if path == "/completion" else infill_fields)(Settings())
    base: dict[str, Any] = {"prompt": "a"} if path == "/completion" else {"input_prefix": "a", "input_suffix": "b"}

    async def work(client: Any) -> list[tuple[str, Any, Answer]]:
        found = []
        for each in table.fields:
            for value in ODD:
                if each.name not in ("n_predict", "max_tokens", "max_completion_tokens") or value != 2**31:
                    given = {**base, "n_predict": 1, each.name: value}
                    found.append((each.name, value, await client.post(path, given)))
        return found

    found = with_server({"chat": coder}, work)
    for name, value, answer in found:
        assert answer.status in (200, 400, 404), (name, value, answer.body)
        if answer.status == 400:
            assert answer.error["type"] == "invalid_request_error" and answer.error["param"], (name, value, answer.body)
    refused = {(name, json.dumps(value)) for name, value, answer in found if answer.status == 400}
    for each in table.fields:
        kinds = {"string": "x", "number": 0.5, "integer": 2**31, "boolean": True, "array": [None], "object": {"a": 1}}
        kind = each.schema.get("type")
        if kind in kinds:
            wrong = [value for other, value in kinds.items() if other != kind and not (kind == "number" and other == "integer")]
            assert {(each.name, json.dumps(value)) for value in wrong} <= refused, each.name
    unknown = post(coder, path, {**base, "n_predikt": 1})
    assert unknown.status == 400 and "n_predict" in unknown.error["message"]
    for name in (next(iter(base)), *[each.name for each in table.fields if each.needed]):
        missing = post(coder, path, {key: value for key, value in base.items() if key != name})
        assert missing.status == 400 and missing.error["param"] == name
