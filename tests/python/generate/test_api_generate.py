"""generate(), stream() and chat() on a toy engine: stops, whole characters, parameters, results, cancelling."""

from __future__ import annotations

import json
import math
import re
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fake_core import BOS, EOS, GenerateParams, fake, fake_core, fake_model, write_model  # noqa: F401


def test_text_ids_and_facts(model: Any, pumice: Any) -> None:
    result = model.generate("abc")
    assert isinstance(result, pumice.Generation)
    assert (str(result), result.finish_reason, result.prompt_tokens) == ("cba", "eos", 5)
    assert result.ids.dtype == np.int32
    assert bytes(result.ids.tolist()) == b"cba"
    assert result.timings["decode_tokens_per_second"] == 40.0
    assert result.timings["prefill_tokens_per_second"] == 100.0
    assert result.device == "cpu"
    assert result.seed == 1234
    assert result.logprobs is None


def test_length(model: Any) -> None:
    result = model.generate("abcdef", max_new_tokens=2)
    assert (result.text, result.finish_reason) == ("fe", "length")


@pytest.mark.parametrize("stop", ["\nUser:", ["Bot", "\nUser:"], ("x", "\nUser:", "ser: hi")])
def test_stop_string_across_tokens_cuts_text_and_ids(model: Any, core: Any, stop: Any) -> None:
    result = model.generate("story", stop=stop)
    assert result.text == "Once upon a time."
    assert result.finish_reason == "stop"
    assert bytes(result.ids.tolist()).decode() == "Once upon a time."
    assert result.params.stop == ((stop,) if isinstance(stop, str) else tuple(stop))


def test_stop_ends_the_sequence_in_the_engine(model: Any) -> None:
    made: list[Any] = []
    engine = model._core
    original = engine.request
    engine.request = lambda *a: made.append(original(*a)) or made[-1]
    model.generate("story", stop="Once")
    assert made[0].finished == {0}
    assert made[0].places[0] == 4  # no token was made after the stop string
    assert made[0].closed


def test_stop_inside_of_a_token_keeps_the_token(pumice: Any) -> None:
    from pumice.generate.generation import Continuation
    from pumice.generate.settings import SamplingParams

    class Words:
        pending = False
        words = ["Hello", " world.\nUs", "er: hi"]

        def step(self, ids: list[int]) -> str:
            return self.words[ids[0]]

        def flush(self) -> str:
            return ""

    tokenizer = type("T", (), {"decode_stream": lambda self, after: Words()})()
    c = Continuation(tokenizer, SamplingParams(stop=("\nUser:",), logprobs=0), [])
    c.push({"ids": np.array([0, 1]), "finish_reason": None, "logprobs": np.array([-1.0, -2.0])})
    first = c.take(0)
    assert first is not None
    assert first.text == "Hello world."  # "\nUs" is held back, because it may become the stop string
    assert first.ids.tolist() == [0] and first.pieces == ("Hello",)  # the text of token 1 is not final yet
    c.push({"ids": np.array([2]), "finish_reason": None, "logprobs": np.array([-3.0])})
    assert (c.text, c.ids, c.logprobs, c.finish_reason) == ("Hello world.", [0, 1], [-1.0, -2.0], "stop")
    last = c.take(0)
    assert last is not None
    assert (last.text, last.ids.tolist(), last.pieces, last.finish_reason) == ("", [1], (" world.",), "stop")


def test_the_stop_that_is_complete_first_wins(model: Any) -> None:
    assert model.generate("story", stop=["time", "a t", "upon a time"]).text == "Once upon "
    assert model.generate("story", stop=["e u", "ce u", "pon"]).text == "On"  # "e u" and "ce u" end at the same token: the longer wins


def test_stop_ids(model: Any) -> None:
    result = model.generate("story", stop=[ord("."), "\n"])
    assert (result.text, result.finish_reason) == ("Once upon a time", "stop")
    assert result.params.stop_ids == (ord("."),)


def test_stopped_by(model: Any, pumice: Any) -> None:
    """stopped_by must be the stop that ended the text, also if several are complete at once, and None if none did."""
    for stop, by in (
        ("\nUser:", "\nUser:"),
        ([ord("."), "\n"], ord(".")),
        (["time", "a t", "upon a time"], "a t"),
        (["e u", "ce u"], "ce u"),
        ("zzz", None),
        (None, None),
    ):
        result = model.generate("story", stop=stop)
        assert result.stopped_by == by and type(result.stopped_by) is type(by)
        stream = model.stream("story", stop=stop)
        assert list(stream) and stream.result.stopped_by == by
    assert model.generate("story", stop="time", max_new_tokens=5).stopped_by is None
    assert model.chat("Hi", stop="<").stopped_by == "<"
    both = model.generate(["story", "unicode"], stop=["zz", "n"])
    assert [(g.text, g.stopped_by) for g in both] == [("O", "n"), ("", "n")]
    from pumice.generate.generation import Continuation
    from pumice.generate.settings import SamplingParams

    class Words:
        pending = False

        def step(self, ids: list[int]) -> str:
            return "one\n\n"

        def flush(self) -> str:
            return ""

    for stops, by in ((("\n", "\n\n"), "\n"), (("\n\n", "\n"), "\n\n"), (("\n\n", "ne"), "ne")):  # one token completes both
        c = Continuation(type("T", (), {"decode_stream": lambda self, after: Words()})(), SamplingParams(stop=stops), [])
        c.push({"ids": np.array([0]), "finish_reason": None})
        assert c.stopped_by == by


def test_stop_at_the_first_token_gives_nothing(model: Any) -> None:
    result = model.generate("story", stop="O", logprobs=1)
    assert (result.text, result.ids.tolist(), result.finish_reason) == ("", [], "stop")
    assert result.logprobs.shape == (0,)
    assert result.top_ids.shape == (0, 1)


@pytest.mark.parametrize("stop", [None, "\nUser:", "Bottom", ["hi\nBottle", "zzz"]])
def test_stream_adds_up_to_generate(model: Any, stop: Any) -> None:
    whole = model.generate("story", stop=stop)
    chunks = list(model.stream("story", stop=stop))
    assert "".join(map(str, chunks)) == whole.text
    assert np.concatenate([c.ids for c in chunks]).tolist() == whole.ids.tolist()
    assert tuple(piece for c in chunks for piece in c.pieces) == whole.pieces and "".join(whole.pieces) == whole.text
    assert [c.finish_reason for c in chunks if c.finish_reason] == [whole.finish_reason]
    assert chunks[-1].finish_reason == whole.finish_reason


def test_stream_holds_back_only_what_may_stop(model: Any) -> None:
    texts = [chunk.text for chunk in model.stream("story", stop="\nBot")]
    assert "\nU" in texts  # "\n" was held back while it could become "\nBot", and came with the "U"
    assert not any(t.endswith("\n") for t in texts)


def test_stream_gives_whole_characters(model: Any) -> None:
    chunks = list(model.stream("unicode"))
    texts = [chunk.text for chunk in chunks]
    assert all(len(chunk.pieces) == len(chunk.ids) for chunk in chunks)
    assert [chunk.pieces for chunk in chunks if chunk.text == "🎉"] == [("", "", "", "🎉")]
    assert "".join(texts) == "naïve 日本 🎉 done"
    assert "🎉" in texts
    assert "\N{REPLACEMENT CHARACTER}" not in "".join(texts)


def test_bytes_that_never_become_a_character_are_shown_at_the_end(model: Any) -> None:
    assert model.generate("broken").text == "ab\N{REPLACEMENT CHARACTER}"
    chunks = list(model.stream("broken"))
    assert "".join(map(str, chunks)) == "ab\N{REPLACEMENT CHARACTER}"
    assert [piece for chunk in chunks for piece in chunk.pieces] == ["a", "b", "\N{REPLACEMENT CHARACTER}"]


def test_closing_a_stream_cancels(model: Any) -> None:
    stream = model.stream("story")
    first = [next(stream), next(stream)]
    stream.close()
    assert "".join(map(str, first)) == "On"
    assert list(stream) == []
    assert stream.result.finish_reason == "cancelled"
    assert stream.result.text == "On"
    assert stream._run._request.closed
    stream.close()
    with model.stream("story") as stream:
        next(stream)
    assert stream.result.text == "O"


def test_two_streams_in_turns(model: Any) -> None:
    pairs = list(zip(model.stream("abc"), model.stream("xyz"), strict=True))
    assert ["".join(map(str, side)) for side in zip(*pairs, strict=True)] == ["cba", "zyx"]


def test_many_prompts_and_samples(model: Any) -> None:
    results = model.generate(["ab", [1, 2, 3], np.array([50, 60])])
    assert [g.text for g in results] == ["ba", "\x03\x02\x01", "<2"]
    assert [g.prompt_tokens for g in results] == [4, 3, 2]
    samples = model.generate("ab", n=3, temperature=0.7, seed=0)
    assert [g.text for g in samples] == ["baa", "bab", "bac"]
    assert [g.text for g in model.generate(["a", "b"], n=2, temperature=1, seed=0)] == ["aa", "ab", "bc", "bd"]
    assert model.generate([]) == []
    index = {c.index for c in model.stream(["ab", "cd"])}
    assert index == {0, 1}


def test_ids_are_checked(model: Any) -> None:
    with pytest.raises(ValueError, match="token 1 is 258; ids of this model are 0 to 257"):
        model.generate([1, 258])
    with pytest.raises(ValueError, match="token 0 is -1"):
        model.generate(np.array([-1]))
    with pytest.raises(ValueError, match="no tokens"):
        model.generate(np.array([], np.int32))
    with pytest.raises(TypeError, match="prompt must be a string or a row of token ids"):
        model.generate([1.5, 2.0])
    with pytest.raises(TypeError, match="array of float64 with shape"):
        model.generate(np.ones(3))
    with pytest.raises(TypeError, match="prompt 1"):
        model.generate(["a", [[1, 2], [3, 4]]])
    with pytest.raises(TypeError, match="not bytes"):
        model.generate(b"abc")
    with pytest.raises(ValueError, match="prompt has a lone surrogate"):
        model.generate("a\ud800")


def test_logprobs(model: Any) -> None:
    result = model.generate("abc", logprobs=2)
    assert result.logprobs.shape == (3,)
    assert result.logprobs.dtype == np.float32
    assert result.top_ids.shape == result.top_logprobs.shape == (3, 2)
    assert result.top_ids.dtype == np.int32
    only = model.generate("abc", logprobs=True)
    assert only.logprobs.shape == (3,)
    assert only.top_ids is None
    chunks = list(model.stream("abc", logprobs=1))
    assert sum(0 if c.top_ids is None else len(c.top_ids) for c in chunks) == 3
    assert model._core.request_params[0].logprobs == 2
    assert model._core.request_params[0].seed is None


# ---------------------------------------------------------------- parameters
def test_greedy_without_settings(model: Any) -> None:
    params = model.generate("a").params
    assert (params.temperature, params.top_k, params.top_p, params.min_p, params.max_new_tokens) == (0.0, 0, 1.0, 0.0, 512)
    assert params.seed == 1234


def test_call_over_gguf_keys(pumice: Any, tmp_path: Path) -> None:
    keys = {"general.sampling.temp": 0.6, "general.sampling.top_k": 20, "general.sampling.penalty_repeat": 1.1}
    with pumice.load(write_model(tmp_path / "m.gguf", **keys)) as model:
        params = model.generate("a", top_k=5).params
        assert (params.temperature, params.top_k, params.repetition_penalty) == (0.6, 5, 1.1)
        sent = model._core.request_params[-1]
        assert (sent.temperature, sent.top_k, sent.n) == (0.6, 5, 1)
        assert model.generate("a", temperature=0).params.temperature == 0.0


def test_gguf_keys_of_xtc_and_mirostat(pumice: Any, tmp_path: Path) -> None:
    keys = {"xtc_probability": 0.5, "xtc_threshold": 0.2, "mirostat": 2, "mirostat_eta": 0.3}
    with pumice.load(write_model(tmp_path / "m.gguf", **{f"general.sampling.{k}": v for k, v in keys.items()})) as model:
        params = model.generate("a").params
        assert (params.xtc_probability, params.xtc_threshold, params.mirostat_tau, params.mirostat_eta) == (0.5, 0.2, 5.0, 0.3)
        assert params.temperature == 1.0
    with pytest.warns(pumice.FallbackWarning, match="general.sampling.mirostat=1"):
        pumice.load(write_model(tmp_path / "one.gguf", **{"general.sampling.mirostat": 1})).close()


@pytest.mark.parametrize("sample", [True, False])
def test_generation_config(pumice: Any, tmp_path: Path, sample: bool) -> None:
    folder = write_model(tmp_path / "m", eos_token_id=7)
    values = {"do_sample": sample, "temperature": 0.7, "top_p": 0.9, "repetition_penalty": 1.2, "eos_token_id": [257, 9]}
    (folder / "generation_config.json").write_text(json.dumps(values))
    with pumice.load(folder) as model:
        params = model.generate("a").params
        assert (params.temperature, params.top_p) == ((0.7, 0.9) if sample else (0.0, 1.0))
        assert params.repetition_penalty == 1.2
        assert model._core.request_params[-1].eos_ids == [9, EOS]


def test_sampling_without_top_k_means_fifty(pumice: Any, tmp_path: Path) -> None:
    """If generation_config.json asks for sampling without top_k, top_k must be 50, which is the default of transformers."""
    for i, (values, expected) in enumerate(
        [({"do_sample": True}, 50), ({"do_sample": True, "top_k": 0}, 0), ({"do_sample": True, "top_k": 7}, 7), ({"do_sample": False}, 0)]
    ):
        folder = write_model(tmp_path / f"m{i}")
        (folder / "generation_config.json").write_text(json.dumps(values))
        with pumice.load(folder) as model:
            params = model.generate("a").params
            assert (params.top_k, params.temperature) == (expected, 1.0 if values["do_sample"] else 0.0)
            assert model.generate("a", top_k=3).params.top_k == 3


def test_a_repetition_penalty_acts_in_greedy_mode(pumice: Any, tmp_path: Path) -> None:
    folder = write_model(tmp_path / "m")
    (folder / "generation_config.json").write_text('{"repetition_penalty": 1.05}')
    with pumice.load(folder) as model:
        model.generate("a")
        sent = model._core.request_params[-1]
        assert (sent.temperature, sent.repetition_penalty) == (0.0, 1.05)


def test_suppressed_tokens_are_forbidden(pumice: Any, tmp_path: Path) -> None:
    folder = write_model(tmp_path / "m")
    (folder / "generation_config.json").write_text('{"suppress_tokens": [5, 9, 100000, -1]}')
    for model in (pumice.load(folder), pumice.load(write_model(tmp_path / "m.gguf", **{"tokenizer.ggml.suppress_tokens": [5, 9]}))):
        with model:
            model.generate("a", logit_bias={7: 1.5})
            assert model._core.request_params[-1].logit_bias == {5: -math.inf, 9: -math.inf, 7: 1.5}
            assert model.generate("a", logit_bias={5: 0.0}).params.logit_bias == {5: 0.0, 9: -math.inf}  # the call's own value wins
    for wrong in ([1.5], {"a": 1}, "x", [True]):
        with pytest.raises(pumice.ModelFormatError, match="suppress_tokens"):
            pumice.load(write_model(tmp_path / "wrong.gguf", **{"tokenizer.ggml.suppress_tokens": wrong}))
    (folder / "generation_config.json").write_text('{"suppress_tokens": ["x"]}')
    with pytest.raises(pumice.ModelFormatError, match="suppress_tokens is .*not token ids") as caught:
        pumice.load(folder)
    assert caught.value.field == "suppress_tokens"


def test_the_first_token_is_not_doubled(pumice: Any, tmp_path: Path) -> None:
    class Spelt:
        """A tokenizer that reads "<bos>" at the beginning of a text as the bos token."""

        def __init__(self, inner: Any) -> None:
            self.inner, self.bos_id = inner, inner.bos_id

        def encode(self, text: str, add_special: bool = True) -> np.ndarray:
            ids = [self.bos_id, *text[5:].encode()] if text.startswith("<bos>") else list(text.encode())
            return np.array([self.bos_id, *ids] if add_special else ids, np.int32)

    from pumice.generate.prompts import prompt_ids

    with pumice.load(write_model(tmp_path / "m.gguf")) as model:
        tokenizer, size = Spelt(model._tokenizer), model.info["vocab_size"]
    bos = tokenizer.bos_id
    assert prompt_ids("a", tokenizer, size).tolist() == prompt_ids("<bos>a", tokenizer, size).tolist() == [bos, 97]
    assert prompt_ids("<bos>a", tokenizer, size, add_special=False).tolist() == [bos, 97]
    assert prompt_ids([bos, bos], tokenizer, size).tolist() == [bos, bos]  # ids are not changed


def test_eos_from_config_json(pumice: Any, tmp_path: Path) -> None:
    for i, ids in enumerate((7, [7, 8])):
        with pumice.load(write_model(tmp_path / f"m{i}", eos_token_id=ids)) as model:
            model.generate("a")
            assert model._core.request_params[-1].eos_ids == [7, *([8] if i else []), EOS]


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"no_repeat_ngram_size": 3, "num_beams": 4}, "asks for no_repeat_ngram_size=3, num_beams=4, which"),
        ({"stop_strings": ["x"]}, r"asks for stop_strings=\['x'\]"),
        ({"num_beams": 1, "no_repeat_ngram_size": 0, "guidance_scale": None, "max_length": 20, "stop_strings": []}, None),
    ],
)
def test_what_a_generation_config_asks_for_in_vain(pumice: Any, tmp_path: Path, values: dict[str, Any], said: str | None) -> None:
    folder = write_model(tmp_path / "m")
    (folder / "generation_config.json").write_text(json.dumps(values))
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        pumice.load(folder).close()
    texts = [str(w.message) for w in found if w.category.__name__ == "FallbackWarning"]
    assert (len(texts) == 1 and re.search(said, texts[0])) if said else not texts


def test_do_sample_is_true_or_false(pumice: Any, tmp_path: Path) -> None:
    folder = write_model(tmp_path / "m")
    (folder / "generation_config.json").write_text('{"do_sample": "true"}')
    with pytest.raises(pumice.ModelFormatError, match="do_sample is 'true'"):
        pumice.load(folder)


def test_broken_generation_config_names_file_and_field(pumice: Any, tmp_path: Path) -> None:
    folder = write_model(tmp_path / "m")
    (folder / "generation_config.json").write_text('{"do_sample": true, "temperature": "hot"}')
    with pytest.raises(pumice.ModelFormatError, match="temperature must be a number") as caught:
        pumice.load(folder)
    assert caught.value.field == "temperature"
    assert caught.value.file.endswith("generation_config.json")


def test_a_filter_alone_means_temperature_one(model: Any) -> None:
    assert model.generate("a", top_p=0.9).params.temperature == 1.0
    assert model.generate("a", top_p=1.0).params.temperature == 0.0
    assert model.generate("a", seed=3).params.temperature == 0.0


def test_logit_bias(model: Any) -> None:
    params = model.generate("a", logit_bias={65: 2, "B": -math.inf, np.int64(3): np.float32(0.5)}).params
    assert params.logit_bias == {65: 2.0, 66: -math.inf, 3: 0.5}
    with pytest.raises(ValueError, match="'AB' is 2 tokens"):
        model.generate("a", logit_bias={"AB": 1})
    with pytest.raises(ValueError, match="token id in logit_bias"):
        model.generate("a", logit_bias={999: 1})
    for bias in (math.nan, math.inf, 1e300, -1e300):
        with pytest.raises(ValueError, match=r"logit_bias\[1\]=.* at most 1e\+20; -inf forbids the token"):
            model.generate("a", logit_bias={1: bias})


@pytest.mark.parametrize(
    ("bad", "kind", "match"),
    [
        ({"temperature": -1}, ValueError, "temperature=-1 is out of range: it must be at least 0 and at most 1000000"),
        ({"temperature": math.nan}, ValueError, "temperature"),
        ({"temperature": "0.5"}, TypeError, "temperature must be a number, not str"),
        ({"top_p": 0}, ValueError, "top_p=0 is out of range: it must be more than 0 and at most 1"),
        ({"top_p": 1.5}, ValueError, "top_p"),
        ({"top_k": -1}, ValueError, "top_k=-1 is out of range"),
        ({"top_k": 1.5}, TypeError, "top_k must be an integer"),
        ({"top_k": 2**63}, ValueError, "top_k=9223372036854775808 is out of range: it must be at least 0 and at most 2147483647"),
        ({"top_k": -(2**53) - 1}, ValueError, "top_k=-9007199254740993 is out of range"),
        ({"top_k": 10**60}, ValueError, r"top_k=10{39}\.\.\. is out of range"),
        ({"top_k": -(10**9999)}, ValueError, "top_k=.* is out of range"),
        ({"max_new_tokens": 0}, ValueError, "max_new_tokens=0"),
        ({"n": 0}, ValueError, "n=0"),
        ({"n": True}, TypeError, "n must be an integer"),
        ({"seed": -1}, ValueError, "seed"),
        ({"seed": 2**64}, ValueError, "seed"),
        ({"stop": ""}, ValueError, "empty string"),
        ({"stop": [300]}, ValueError, "token id in stop"),
        ({"logprobs": -1}, ValueError, "logprobs"),
        ({"repetition_penalty": 0}, ValueError, "repetition_penalty"),
        ({"logit_bias": [1]}, TypeError, "logit_bias must be a dict"),
    ],
)
def test_wrong_values(model: Any, bad: dict[str, Any], kind: type[Exception], match: str) -> None:
    with pytest.raises(kind, match=match):
        model.generate("a", **bad)


@pytest.mark.parametrize("name", ["top_p", "typical_p"])
def test_shares_that_are_too_small_for_a_float(name: str) -> None:
    """They are above 0, as they must be, and are not rounded to a 0, which would be refused."""
    params = GenerateParams()
    setattr(params, name, 1e-300)
    params.check(200)
    assert 0 < getattr(params, name) < 1e-37


@pytest.mark.parametrize(
    ("name", "match"),
    [
        ("temperatur", "did you mean 'temperature'"),
        ("max_tokens", "here it is max_new_tokens"),
        ("response_format", r"here it is grammar \(for a schema: pumice.Grammar.json_schema"),
        ("num_return_sequences", "here it is n$"),
        ("do_sample", "temperature \\(0 is greedy\\)"),
        ("qqqq", "valid: prompt, prefix, suffix, files, repository, path, sampling, max_new_tokens"),
    ],
)
def test_unknown_keywords_name_the_nearest(model: Any, name: str, match: str) -> None:
    with pytest.raises(TypeError, match=match):
        model.generate("a", **{name: 1})
    with pytest.raises(TypeError, match=r"stream\(\) has no argument"):
        model.stream("a", **{name: 1})


def test_signature_shows_the_sampling_keywords(model: Any) -> None:
    import inspect

    names = inspect.signature(model.generate).parameters
    assert {"prompt", "temperature", "stop", "logprobs"} <= set(names)
    assert names["max_new_tokens"].default == 512


# ---------------------------------------------------------------- chat
def test_chat(model: Any, pumice: Any) -> None:
    result = model.chat([{"role": "user", "content": "Hi"}], max_tokens=4)
    assert isinstance(result, pumice.ChatResult)
    assert result.prompt == "<user>Hi<assistant>"
    assert result.prompt_tokens == len(result.prompt)  # no special tokens are added to those of the template
    assert result.text == ">tna"
    assert result.message == {"role": "assistant", "content": ">tna"}
    reply = result.to_openai()
    assert reply["choices"][0]["finish_reason"] == "length"
    assert reply["usage"]["total_tokens"] == result.prompt_tokens + 4
    assert model.chat("Hi").prompt == result.prompt
    assert model.chat("Hi", template_kwargs={"think": False}).prompt == "<user>Hi[think=False]<assistant>"
    assert [type(r) for r in model.chat("Hi", n=2)] == [pumice.ChatResult] * 2


def test_chat_dry_run_and_stream(model: Any, pumice: Any) -> None:
    dry = model.chat("Hi", dry_run=True, seed=7)
    assert (dry.prompt, dry.text, dry.prompt_tokens, dry.seed) == ("<user>Hi<assistant>", "", 19, 7)
    assert model._core.request_params == []
    stream = model.chat("Hi", stream=True, temperature=0)
    assert "".join(map(str, stream)) == "<user>Hi<assistant>"[::-1]
    assert isinstance(stream.result, pumice.ChatResult)
    assert stream.result.prompt == dry.prompt


def test_forms_without_their_package(model: Any) -> None:
    with pytest.raises(ImportError, match=r'pip install "pumice\[grammar\]"'):  # the toy engine has no grammars
        model.chat("Hi", response_format={"type": "json_object"})
    assert model.chat("Hi", response_format={"type": "text"}).text == model.chat("Hi").text


@pytest.mark.parametrize(
    ("messages", "kind", "match"),
    [
        ([], ValueError, "empty"),
        ({"role": "user"}, TypeError, "must be a list"),
        (["Hi"], TypeError, "message 0 is a str"),
        ([{"content": "x"}], ValueError, 'message 0 has no "role"'),
        ([{"role": "user"}], ValueError, 'message 0 has no "content"'),
        ([{"role": "assistant", "tool_calls": []}], ValueError, 'message 0 has no "content"'),
        ([{"role": "user", "content": "\udc00"}], ValueError, "the content of message 0"),
    ],
)
def test_wrong_messages(model: Any, messages: Any, kind: type[Exception], match: str) -> None:
    with pytest.raises(kind, match=match):
        model.chat(messages)


def test_both_names_of_max_new_tokens(model: Any) -> None:
    with pytest.raises(TypeError, match="both given"):
        model.chat("a", max_tokens=1, max_new_tokens=2)


def test_no_template(pumice: Any, tmp_path: Path) -> None:
    path = write_model(tmp_path / "m.gguf", **{"tokenizer.chat_template": None})
    with pumice.load(path) as model, pytest.raises(pumice.ChatTemplateError, match="chat_template="):
        model.chat("Hi")
    with pumice.load(path, chat_template="{{ messages }}") as model:
        assert model.chat("Hi", dry_run=True).prompt


# ---------------------------------------------------------------- interrupts
def test_interrupt_keeps_what_there_is(model: Any) -> None:
    model._core.interrupt_after = 2
    with pytest.raises(KeyboardInterrupt) as caught:
        model.generate("story")
    partial = caught.value.partial  # type: ignore[attr-defined]
    assert partial.text == "Once upon a time"
    assert partial.finish_reason == "cancelled"
    stream = model.stream("story")
    with pytest.raises(KeyboardInterrupt) as caught:
        list(stream)
    assert caught.value.partial.text == "On"  # type: ignore[attr-defined]
    model._core.interrupt_after = None
    assert model.generate("abc").text == "cba"


# ---------------------------------------------------------------- arrays and tokens
def test_logits_and_score(model: Any) -> None:
    assert model.logits([1, 2]).argmax() == 3
    assert model.logits("ab", positions="all").shape == (4, 258)
    assert model.score("ab").shape == (3,)
    assert model.score("ab", top=2).top_ids.tolist() == [[97, 97], [98, 98], [257, 257]]
    with pytest.raises(ValueError, match="positions='al' is not one of 'last', 'all'; did you mean 'all'"):
        model.logits([1], positions="al")


def test_tokens(model: Any) -> None:
    assert model.tokenize("ab").tolist() == [BOS, 97, 98, EOS]
    assert model.tokenize("ab", add_special=False).tolist() == [97, 98]
    assert model.count_tokens("ab") == 4
    assert model.detokenize(model.tokenize("näh")) == "näh"
    assert model.detokenize([]) == ""
    assert model.tokenizer.kind == "bytes"
    with pytest.raises(ValueError, match="ids: token 0 is 300"):
        model.detokenize([300])
    with pytest.raises(TypeError, match="text is a int"):
        model.tokenize(3)


def test_encoders_do_not_generate(pumice: Any, tmp_path: Path) -> None:
    path = write_model(tmp_path / "bert.gguf", tasks=["encode"], model_type="bert")
    with pumice.load(path) as model:
        with pytest.raises(pumice.UnsupportedTaskError, match=r"generate\(\) needs a decoder.*'bert'.*It can do encode\(\)") as caught:
            model.generate("a")
        assert isinstance(caught.value, TypeError)
    with pytest.raises(ValueError, match="closed"):
        model.encode("a")


def test_prompts_over_the_context(model: Any, pumice: Any) -> None:
    with pytest.raises(pumice.ContextLengthError, match="102 tokens and the context 64"):
        model.generate("a" * 100)


# ---------------------------------------------------------------- errors name the argument
WRONG: dict[str, Any] = {  # for each setting of SAMPLING_DEFAULTS, a wrong value
    "max_new_tokens": 0,
    "min_new_tokens": 5,  # more than max_new_tokens=2
    "ignore_eos": "no",
    "bad_words": [[999]],
    "max_reasoning_tokens": -1,
    "max_repeated_tokens": 63,
    "logits_processor": 3,
    "temperature": -1,
    "top_k": "many",
    "top_p": 2,
    "min_p": -0.5,
    "typical_p": math.nan,
    "repetition_penalty": 0,
    "presence_penalty": 1e9,
    "frequency_penalty": None.__class__,
    "dry_multiplier": -1,
    "dry_base": 2.0,  # does nothing without dry_multiplier
    "dry_allowed_length": 1.5,
    "dry_range": -5,
    "dry_breakers": "abc",
    "top_n_sigma": -1,
    "xtc_probability": 2,
    "xtc_threshold": 0.2,  # does nothing without xtc_probability
    "mirostat_tau": -1,
    "mirostat_eta": "x",
    "logit_bias": {999: 1},
    "seed": -1,
    "stop": [999],
    "n": 0,
    "logprobs": 10**6,
    "grammar": 5,
    "priority": "high",
    "max_seconds": -1,
    "chunk_seconds": 61,
    "speculate": "guess",
    "draft": "model",
}


def argument_of(call: Any) -> tuple[str | None, str]:
    """Returns the argument that the error of a call is about, and its message."""
    with pytest.raises((TypeError, ValueError)) as caught:
        call()
    return caught.value.argument, str(caught.value)  # type: ignore[attr-defined]


def test_errors_name_the_sampling_argument(model: Any, pumice: Any) -> None:
    from pumice.generate.settings import SAMPLING_DEFAULTS

    assert set(WRONG) == set(SAMPLING_DEFAULTS)
    for name, value in WRONG.items():
        given = {name: value, **({"max_new_tokens": 2} if name == "min_new_tokens" else {})}
        if name == "dry_breakers":
            given["dry_multiplier"] = 1.0
        for call in (model.generate, model.stream):
            assert argument_of(lambda: call("abc", **given))[0] == name, name  # noqa: B023
        assert argument_of(lambda: model.chat("abc", **given))[0] == name, name  # noqa: B023
        of_prompt = argument_of(lambda: model.generate(["abc"], sampling=[given]))[0]  # noqa: B023
        assert of_prompt == "sampling", name
    for name, value in (
        ("stop", ""),
        ("stop", [1.5]),
        ("stop", "\ud800"),
        ("logit_bias", {"AB": 1}),
        ("logit_bias", {1: math.nan}),
        ("bad_words", ["\ud800"]),
        ("logprobs", "all"),
        ("grammar", ["a", "b"]),
        ("grammar", ""),
        ("speculate", {"lookup": 0}),
        ("speculate", {"lookup": 3, "gueses": 1}),
        ("sampling", [None]),
        ("temprature", 1.0),
    ):
        assert argument_of(lambda: model.generate("abc", **{name: value}))[0] == name, name  # noqa: B023
    for prompt in (None, 5, [], ["a", 5], [999], "\ud800", b"abc", "x" * 100):
        assert argument_of(lambda: model.stream(prompt))[0] == "prompt", prompt  # noqa: B023
    assert isinstance(pumice.OverloadedError("x").argument, type(None))
    with pytest.raises(ValueError, match="is closed") as closed:
        model.close()
        model.generate("abc")
    assert closed.value.argument is None  # type: ignore[attr-defined]


def test_errors_name_the_argument_of_chat(model: Any) -> None:
    user = {"role": "user", "content": "Hi"}
    tool = {"type": "function", "function": {"name": "f", "parameters": {}}}
    for name, value in (
        ("messages", 5),
        ("messages", []),
        ("messages", "x" * 100),
        ("stream", "yes"),
        ("dry_run", 1),
        ("response_format", {"type": "yaml"}),
        ("response_format", {"type": "json_schema", "json_schema": {}}),
        ("response_format", 3),
        ("tools", 5),
        ("tools", [tool, tool]),
        ("tools", [lambda: 1]),
        ("tools", [{"type": "function"}]),
        ("tool_choice", "f"),
        ("tool_choice", 5),
        ("parallel_tool_calls", "no"),
        ("template_kwargs", 5),
        ("template_kwargs", {"messages": 1}),
        ("parse_special", "no"),
        ("max_tokens", 0),
        ("max_tokens", "many"),
        ("grammar", 5),
        ("max_token", 5),
    ):
        found, text = argument_of(lambda: model.chat(**{"messages": [user], name: value}))  # noqa: B023
        assert found == name, (name, value)
        assert "max_new_tokens" not in text
    for message in (5, {}, {"role": 5}, {"role": "user"}, {"role": "user", "content": 5}, {"role": "user", "content": [{"type": "image"}]}):
        found, text = argument_of(lambda: model.chat([user, message]))  # noqa: B023
        assert found == "messages" and "message 1" in text
    for options in ({"max_tokens": 5, "max_new_tokens": 5}, {"dry_run": True, "stream": True}, {"grammar": "a", "response_format": {}}):
        assert argument_of(lambda: model.chat([user], **options))[0] in options  # noqa: B023


def test_errors_name_the_argument_of_encode(model: Any) -> None:
    from pumice.encode.encoding import ENCODE_DEFAULTS

    wrong: dict[str, Any] = {
        "prompt": 5,
        "prompt_name": "none",
        "batch_size": 0,
        "token_budget": "x",
        "normalize": "yes",
        "truncate_dim": 10**6,
        "precision": "float16",
        "precision_ranges": [[0], [1]],
        "output": "words",
        "max_active_dims": 0,
        "truncate": "no",
        "show_progress_bar": "yes",
        "out": [1],
        "details": "yes",
        "parse_special": 2,
    }
    assert set(wrong) == set(ENCODE_DEFAULTS)
    for name, value in wrong.items():
        for call in (model.encode, model.encode_query, model.encode_document):
            assert argument_of(lambda: call(["abc"], **{name: value}))[0] == name, name  # noqa: B023
    for inputs in (None, 5, ["a", 5], "\ud800", [None], b"abc", np.zeros((2, 2))):
        assert argument_of(lambda: model.encode(inputs))[0] == "inputs", inputs  # noqa: B023
    assert argument_of(lambda: model.encode(["x" * 1000], truncate="error"))[0] == "inputs"
    for name, call in (
        ("text", lambda: model.tokenize(5)),
        ("add_special", lambda: model.tokenize("a", "yes")),
        ("text", lambda: model.count_tokens(5)),
        ("ids", lambda: model.detokenize([999])),
        ("ids", lambda: model.token_bytes(5)),
        ("ids", lambda: model.logits([999])),
        ("positions", lambda: model.logits("a", "first")),
        ("text_or_ids", lambda: model.score(5)),
        ("path", lambda: model.save_prefix("", "abc")),
        ("prompt_or_messages", lambda: model.save_prefix("x", ["a", "b"])),
        ("prompt_or_messages", lambda: model.save_prefix("x", [{"role": 5}])),
        ("a", lambda: model.similarity(np.zeros((2, 3)), np.zeros((2, 4)))),
    ):
        assert argument_of(call)[0] == name, name


def test_a_message_with_calls_needs_no_content(model: Any) -> None:
    call = {"function": {"name": "f", "arguments": {}}}
    talk = [{"role": "user", "content": "Hi"}, {"role": "assistant", "tool_calls": [call]}]
    assert model.chat(talk, dry_run=True).prompt == model.chat([talk[0], {**talk[1], "content": None}], dry_run=True).prompt


def test_an_error_of_the_caller_passes_as_it_is(model: Any) -> None:
    """checked_keywords() must not call methods of an error that a generator of texts raises, because they may fail."""

    class Odd(ValueError):
        __slots__ = ()

        def __str__(self) -> str:
            raise RuntimeError("no text")

    def texts() -> Any:
        yield "abc"
        raise Odd

    with pytest.raises(Odd) as caught:
        model.encode(texts())
    assert caught.value.argument == "inputs"  # type: ignore[attr-defined]
