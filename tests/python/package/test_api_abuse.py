"""Wrong arguments that people pass by mistake. Each must be refused with an error that names it, and none may be silently taken for
something else."""

from __future__ import annotations

import copy
import math
import pickle
import re
import threading
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fake_core import fake, fake_model, write_model  # noqa: F401
from patience import PATIENCE, wait_until


# ---------------------------------------------------------------- streams
class SlowReader:
    """A stream and a thread that reads it. The steps of the stream wait until `go_on` is set. `errors` holds what the thread raised."""

    def __init__(self, model: Any) -> None:
        self.stream = model.stream("abcdef" * 8)
        self.inside, self.go_on = threading.Event(), threading.Event()
        self.chunks: list[str] = []
        self.errors: list[BaseException] = []
        self._advance = self.stream._run.advance
        self.stream._run.advance = self._slow
        self.thread = threading.Thread(target=self._read)
        self.thread.start()
        assert self.inside.wait(PATIENCE)

    def _slow(self, *args: Any) -> Any:
        self.inside.set()
        assert self.go_on.wait(PATIENCE)
        return self._advance(*args)

    def _read(self) -> None:
        try:
            self.chunks.extend(map(str, self.stream))
        except BaseException as error:
            self.errors.append(error)


def test_a_stream_read_by_several_threads(model: Any) -> None:
    """Each chunk must come exactly once, in order. A thread that asks for a chunk while another thread waits for one must get an error."""
    whole = model.generate("abcdef" * 8).text
    reader = SlowReader(model)
    for _ in range(3):
        with pytest.raises(ValueError, match="another thread is reading this stream"):
            next(reader.stream)
    reader.go_on.set()
    reader.thread.join(PATIENCE)
    assert not reader.errors
    assert "".join(reader.chunks) == whole == reader.stream.result.text


def test_a_stream_is_asked_for_more_while_another_thread_closes_it(model: Any) -> None:
    stream = model.stream("abcdef" * 8)
    ending, end = threading.Event(), stream._end

    def slow_end() -> None:
        ending.set()
        assert go_on.wait(PATIENCE)
        end()

    go_on = threading.Event()
    stream._end = slow_end
    closer = threading.Thread(target=stream.close)
    closer.start()
    assert ending.wait(PATIENCE)
    assert list(stream) == []  # the reader's loop ends without an error
    go_on.set()
    closer.join(PATIENCE)
    assert not closer.is_alive()
    assert stream.result.finish_reason == "cancelled"


def test_a_stream_closed_by_another_thread(model: Any) -> None:
    reader = SlowReader(model)
    stream = reader.stream
    closer = threading.Thread(target=stream.close)
    closer.start()
    wait_until(lambda: stream._closing)
    reader.go_on.set()
    reader.thread.join(PATIENCE)
    closer.join(PATIENCE)
    assert not reader.errors
    assert not reader.thread.is_alive() and not closer.is_alive()
    assert stream.result.finish_reason == "cancelled"
    assert stream.result.text.startswith("".join(reader.chunks))


@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy, pickle.dumps])
def test_streams_are_not_copied(model: Any, duplicate: Any) -> None:
    stream = model.stream("abc")
    with pytest.raises(TypeError, match="a Stream cannot be copied or pickled"):
        duplicate(stream)
    assert "".join(map(str, stream)) == "cba"


# ---------------------------------------------------------------- sampling
@pytest.mark.parametrize(
    ("bad", "kind", "match"),
    [
        ({"repetition_penalty": 1e-45}, ValueError, "repetition_penalty=1e-45 is out of range: it must be at least 0.001 and at most 1000"),
        ({"repetition_penalty": 1e-300}, ValueError, "repetition_penalty=1e-300"),
        ({"repetition_penalty": 1e39}, ValueError, r"repetition_penalty=1e\+39"),
        ({"temperature": 1e39}, ValueError, r"temperature=1e\+39 is out of range: it must be at least 0 and at most 1000000"),
        ({"temperature": math.inf}, ValueError, "temperature=inf"),
        ({"presence_penalty": 101}, ValueError, r"presence_penalty=101 is out of range: it must be at least -100 and at most 100"),
        ({"frequency_penalty": -1e9}, ValueError, "frequency_penalty"),
        ({"stop": b"x"}, TypeError, "stop must be a string, a token id, or a list of them, not bytes"),
        ({"stop": bytearray(b"x")}, TypeError, "stop must be"),
        ({"stop": {"x": 1}}, TypeError, "stop must be"),
        ({"stop": range(3)}, TypeError, "stop must be"),
        ({"stop": iter("ab")}, TypeError, "stop must be"),
        ({"stop": [b"x"]}, TypeError, "stop holds bytes b'x'"),
        ({"stop": [None]}, TypeError, "stop holds NoneType None"),
        ({"stop": ["a", ["b"]]}, TypeError, "stop holds list"),
        ({"logit_bias": {"x" * 100_000: 1}}, ValueError, r"\(100000 characters\)"),
    ],
)
def test_sampling(model: Any, bad: dict[str, Any], kind: type[Exception], match: str) -> None:
    with pytest.raises(kind, match=match) as caught:
        model.generate("a", **bad)
    assert len(str(caught.value)) < 700


@pytest.mark.parametrize(
    ("prompt", "kind", "match"),
    [
        (b"ab", TypeError, "prompt must be a string, token ids, or a list of either, not bytes"),
        (bytearray(b"ab"), TypeError, "not bytearray"),
        (memoryview(b"ab"), TypeError, "not memoryview"),
        ([b"ab"], TypeError, "prompt 0 must be a string or a row of token ids, not bytes b'ab'"),
        ([memoryview(b"ab")], TypeError, "prompt 0 must be a string or a row of token ids, not memoryview"),
        ([bytearray(b"ab"), "x"], TypeError, "prompt 0 must be .*not bytearray"),
        ([{"a": 1}], TypeError, "prompt 0 must be .*not dict"),
        ([2**80], ValueError, "prompt: token 0 is 1208925819614629174706176; ids of this model are 0 to 257"),
        ([5, -(2**70)], ValueError, "prompt: token 1 is -1180591620717411303424"),
        ([1.5], TypeError, "prompt must be"),
        ([[1], ["a"]], TypeError, "prompt 1 must be"),
        ([1, True, 3], TypeError, "prompt: token 1 is a boolean"),
        ([[1], (np.bool_(False), 3)], TypeError, "prompt 1: token 0 is a boolean"),
        ([np.array([1, True], object)], TypeError, "prompt 0: token 1 is a boolean"),
        ([True, False], TypeError, "prompt must be"),
        (np.ma.array([1, 2, 3], mask=[0, 1, 0]), TypeError, "prompt is a masked array"),
        (np.ma.array([[1, 2], [3, 4]], mask=[[0, 1], [0, 0]]), TypeError, "prompt 0 is a masked array"),
        ([np.ma.array([1, 2, 3])], TypeError, "prompt 0 is a masked array"),
    ],
)
def test_prompts(model: Any, prompt: Any, kind: type[Exception], match: str) -> None:
    with pytest.raises(kind, match=match):
        model.generate(prompt)


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda m: m.encode("a", normalize="no"), "normalize must be True or False, not 'no'"),
        (lambda m: m.encode("a", normalize=0), "normalize must be True or False, not 0"),
        (lambda m: m.tokenize("a", add_special="no"), "add_special must be True or False"),
        (lambda m: m.detokenize([1], skip_special="no"), "skip_special must be True or False"),
        (lambda m: m.chat("a", stream="no"), "stream must be True or False"),
        (lambda m: m.chat("a", dry_run="no"), "dry_run must be True or False"),
        (lambda m: m.encode("a", prompt_name=5), "prompt_name must be a string, not int 5"),
        (lambda m: m.encode(memoryview(b"ab")), "inputs must be a string or an iterable of strings, not memoryview"),
        (lambda m: m.token_bytes(5), "ids must be a row of token ids, not int 5"),
        (lambda m: m.detokenize(5), "ids must be a row of token ids, not int 5"),
        (lambda m: m.detokenize("ab"), "ids must be a row of token ids, not str 'ab'"),
        (lambda m: m.detokenize(b"ab"), "ids must be a row of token ids, not bytes"),
        (lambda m: m.detokenize([97, True]), "ids: token 1 is a boolean"),
        (lambda m: m.logits([97, True]), "ids: token 1 is a boolean"),
        (lambda m: m.score(np.ma.array([97, 98])), "text_or_ids is a masked array"),
        (lambda m: m.similarity(np.ma.array([[1.0, 2.0]]), [[1.0, 2.0]]), "a is a masked array"),
        (lambda m: m.encode(["a"], out=np.ma.zeros((1, 8), np.float32)), "out is a masked array"),
    ],
)
def test_types(model: Any, call: Any, match: str) -> None:
    with pytest.raises(TypeError, match=match):
        call(model)


class Lying(Sequence[Any]):
    """A container whose len() may differ from the number of its items."""

    def __init__(self, items: list[Any], length: Any) -> None:
        self.items, self.length = items, length

    def __len__(self) -> int:
        return self.length  # type: ignore[no-any-return]

    def __getitem__(self, index: Any) -> Any:
        return self.items[index]


USES: dict[str, Callable[[Any, Callable[[list[Any]], Any]], Any]] = {
    "encode": lambda m, lying: m.encode(lying(["a", "b", "c"])),
    "tokens": lambda m, lying: m.encode(lying(["a", "b", "c"]), output="tokens"),
    "out": lambda m, lying: m.encode(lying(["a", "b", "c"]), out=np.empty((3, 8), np.float32)),
    "prompts": lambda m, lying: m.generate(lying(["a", "b", "c"]), max_new_tokens=1),
    "ids": lambda m, lying: m.generate(lying([97, 98, 99]), max_new_tokens=1),
    "rows of ids": lambda m, lying: m.generate([lying([97, 98, 99])], max_new_tokens=1),
    "score": lambda m, lying: m.score(lying([97, 98, 99])),
    "detokenize": lambda m, lying: m.detokenize(lying([97, 98, 99])),
    "messages": lambda m, lying: m.chat(lying([{"role": "user", "content": "x"}]), dry_run=True),
    "parts": lambda m, lying: m.chat([{"role": "user", "content": lying([{"type": "text", "text": "x"}])}], dry_run=True),
    "stop": lambda m, lying: m.generate("a", stop=lying(["a"])),
}


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("length", [0, 2, 5, -1, 2**40, 2**62, 2**63, "x", 1.5, None])
def test_a_container_with_a_wrong_length(model: Any, use: str, length: Any) -> None:
    """The number of items must count, and not what len() returns. Where that is impossible, the error must be one of pumice's own."""
    said = ""
    try:
        USES[use](model, lambda items: Lying(items, length))
    except (ValueError, TypeError, MemoryError) as error:
        said = str(error)
    assert re.match("(inputs|out|prompt|ids|text_or_ids|the content of message|part 0|stop|messages|there is no room|$)", said), said


def test_a_pair_with_a_wrong_length(pumice: Any, tmp_path: Path) -> None:
    ranker = pumice.load(write_model(tmp_path / "r.gguf", tasks=["encode", "classify"]))
    right = ranker.predict([("a", "b")])
    assert (ranker.predict([Lying(["a", "b"], 7)]) == right).all()
    for items in (["a"], ["a", "b", "c"]):
        with pytest.raises(TypeError, match=r"pair 0 is .*; it must be two strings"):
            ranker.predict([Lying(items, 2)])


def test_numpy_booleans_are_booleans(model: Any) -> None:
    assert model.tokenize("a", add_special=np.bool_(False)).tolist() == [97]
    assert np.linalg.norm(model.encode("abc", normalize=np.bool_(True))) == pytest.approx(1)


def test_any_batch_size_is_taken(model: Any) -> None:
    model.encode(["a"], batch_size=2**40)
    assert model._core.encode_calls[-1]["token_budget"] == 1 << 20
    with pytest.raises(ValueError, match="token_budget=1048577 is out of range: it must be at least 1 and at most 1048576"):
        model.encode(["a"], token_budget=(1 << 20) + 1)


# ---------------------------------------------------------------- chat
@pytest.mark.parametrize(
    ("messages", "kind", "match"),
    [
        ([{"role": "user", "content": None}], TypeError, "the content of message 0 is None; it must be a string"),
        ([{"role": "user", "content": "a"}, {"role": "user", "content": 5}], TypeError, "the content of message 1 is int 5"),
        ([{"role": "user", "content": {"a": 1}}], TypeError, "the content of message 0 is dict"),
        (
            [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "image_url", "image_url": {}}]}],
            ValueError,
            "part 1 of the content of message 0 is 'image_url': this version reads text only",
        ),
        ([{"role": "user", "content": [5]}], ValueError, "part 0 of the content of message 0 is 5"),
        (
            [[{"role": "user", "content": "a"}]],
            TypeError,
            r"message 0 is a list, .*one conversation; several calls, from threads or",
        ),
        (["a", "b"], TypeError, r"message 0 is a str, not a dict with role and content. A call takes one conversation"),
        ([{"role": 5, "content": "a"}], TypeError, 'message 0: "role" is 5; it must be a string'),
        ([{"role": "\ud800", "content": "a"}], ValueError, "the role of message 0 has a lone surrogate"),
        ([{"role": "user", "content": [{"type": "text", "text": "\ud800"}]}], ValueError, "part 0 of the content of message 0 has a lone"),
    ],
)
def test_messages(model: Any, messages: Any, kind: type[Exception], match: str) -> None:
    with pytest.raises(kind, match=match):
        model.chat(messages)


def test_parts_of_text_are_joined(model: Any) -> None:
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    assert model.chat([{"role": "user", "content": parts}], dry_run=True).prompt == "<user>one\ntwo<assistant>"
    calls = [{"role": "assistant", "content": None, "tool_calls": [{"name": "f"}]}]
    assert model.chat(calls, dry_run=True).prompt == "<assistant>None<assistant>"


@pytest.mark.parametrize(
    ("variables", "match"),
    [
        ([("a", 1)], "template_kwargs must be a dict from the name of a variable to its value, not list"),
        ("think", "template_kwargs must be a dict"),
        ({1: 2}, "template_kwargs has the key 1; names of variables are strings"),
        ({"messages": []}, "template_kwargs cannot set 'messages'"),
        ({"add_generation_prompt": False}, "template_kwargs cannot set 'add_generation_prompt'"),
        ({"self": 1}, "template_kwargs cannot set 'self'"),
    ],
)
def test_template_kwargs(model: Any, variables: Any, match: str) -> None:
    with pytest.raises(TypeError, match=match):
        model.chat("Hi", template_kwargs=variables)


def test_a_dry_run_has_no_stream(model: Any) -> None:
    with pytest.raises(ValueError, match="dry_run=True and stream=True were both given"):
        model.chat("Hi", dry_run=True, stream=True)


def test_a_template_that_renders_nothing(model: Any, pumice: Any) -> None:
    model._chats.template().render = lambda *a, **k: ""
    with pytest.raises(pumice.ChatTemplateError, match="renders nothing"):
        model.chat("Hi")


# ---------------------------------------------------------------- tasks, closing
def test_an_encoder_names_the_method_that_was_called(pumice: Any, tmp_path: Path) -> None:
    with pumice.load(write_model(tmp_path / "m.gguf", tasks=["encode"])) as model:
        calls = {
            "generate()": lambda: model.generate("a"),
            "stream()": lambda: model.stream("a"),
            "chat()": lambda: model.chat("a"),
            "logits()": lambda: model.logits("a"),
            "score()": lambda: model.score("a"),
            "rank()": lambda: model.rank("a", ["b"]),
            "predict()": lambda: model.predict([("a", "b")]),
        }
        for name, call in calls.items():
            with pytest.raises(pumice.UnsupportedTaskError) as caught:
                call()
            assert str(caught.value).startswith(f"{name} needs a "), caught.value


def test_the_tokenizer_outlives_close(pumice: Any, tmp_path: Path) -> None:
    model = pumice.load(write_model(tmp_path / "m.gguf"))
    model.close()
    assert model.detokenize(model.tokenize("abc")) == "abc"
    with pytest.raises(ValueError, match="closed"):
        model.encode("a")


# ---------------------------------------------------------------- similarity
@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("scale", [1e-38, 1e-30, 1e-3, 1.0, 1e19, 5e37])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_cosine_at_every_scale(pumice: Any, scale: float, dtype: Any) -> None:
    from pumice.encode.similarity import similarity

    a = (np.array([[3, 4, 0, 0], [0, 0, 1, 1]]) * scale).astype(dtype)
    assert similarity(a, [[3.0, 4, 0, 0], [0, 0, 0, 1]]) == pytest.approx(np.array([[1, 0], [0, 0.70710678]]), abs=1e-6)
    assert similarity(a, np.zeros((1, 4))).tolist() == [[0], [0]]


@pytest.mark.filterwarnings("error")
def test_other_measures_of_large_numbers(pumice: Any) -> None:
    from pumice.encode.similarity import similarity

    a, b = np.full((1, 4), 1e25, np.float32), np.full((1, 4), -1e25, np.float32)
    assert similarity(a, b, "euclidean") == pytest.approx(-4e25)
    assert similarity(a, b, "manhattan") == pytest.approx(-8e25)
    assert similarity(a, b, "dot").tolist() == [[-math.inf]]
    cancels = np.array([[1e20, 1e20]], np.float32), np.array([[1e20, -1e20]], np.float32)
    assert similarity(*cancels, "dot").tolist() == [[0]]


@pytest.mark.parametrize(
    ("a", "kind", "match"),
    [
        ("a", TypeError, r"a must be rows of numbers, not 'a' \(<U1\); encode_query\(\) and encode_document\(\) make vectors of texts"),
        ([None, 1.0], TypeError, "a must be rows of numbers"),
        ([[1.0, math.nan]], ValueError, "a: number 1 of row 0 is nan"),
        ([[1.0, 2.0], [math.inf, 1.0]], ValueError, "a: number 0 of row 1 is inf"),
        ([[1e300, 1.0]], ValueError, r"a: number 0 of row 0 is 1e\+300; finite float32"),
        ([1j, 2], TypeError, "complex128"),
        ([[1.0], [1.0, 2.0]], ValueError, "a is no array of numbers"),
        ([[[1.0, 2.0]]], ValueError, r"a has shape \(1, 1, 2\)"),
        ([1.0], ValueError, r"a has shape \(1, 1\) and b \(1, 2\)"),
        (np.ones((1, 2), np.uint8), TypeError, "a holds uint8: packed signs and quantized columns are no vectors"),
        (np.ones((1, 2), np.int8), TypeError, "a holds int8"),
    ],
)
@pytest.mark.filterwarnings("error")
def test_what_has_no_similarity(pumice: Any, a: Any, kind: type[Exception], match: str) -> None:
    from pumice.encode.similarity import similarity

    for measure in ("cosine", "dot", "euclidean"):
        with pytest.raises(kind, match=match):
            similarity(a, [[1.0, 2.0]], measure)


def test_the_advice_for_packed_signs_works(pumice: Any) -> None:
    from pumice.encode.rows import quantize_rows
    from pumice.encode.similarity import similarity

    rows = np.random.default_rng(1).normal(size=(5, 64)).astype(np.float32)
    signs = np.where(rows > 0, 1.0, -1.0)
    for precision in ("ubinary", "binary"):
        packed = quantize_rows(rows, precision)
        flip = 0x80 if packed.dtype == np.int8 else 0
        assert np.array_equal(2.0 * np.unpackbits(packed.view(np.uint8) ^ flip, axis=-1) - 1, signs)
    assert similarity(signs, signs).diagonal() == pytest.approx(1)


# ---------------------------------------------------------------- files
def test_long_values_make_short_messages(pumice: Any, tmp_path: Path) -> None:
    path = write_model(tmp_path / "m.gguf")
    long = "x" * 1_000_000
    for call in (
        lambda: pumice.load(long),
        lambda: pumice.load(f"/tmp/{long}.gguf"),
        lambda: pumice.load(path, device=long),
        lambda: pumice.load(path, kv_budget=long),
        lambda: pumice.load(path, threads=long),
        lambda: pumice.load(path, pooling=long),
        lambda: pumice.load(path, **{long: 1}),
        lambda: pumice.load(path).encode("a", prompt_name=long),
        lambda: pumice.load(path).encode("a", truncate=long),
        lambda: pumice.load(path).generate("a", temperature=long),
    ):
        with pytest.raises((ValueError, TypeError, OSError)) as caught:
            call()
        assert len(str(caught.value)) < 1000


def test_links_to_nothing_and_to_themselves(pumice: Any, tmp_path: Path) -> None:
    (tmp_path / "loop.gguf").symlink_to(tmp_path / "loop.gguf")
    (tmp_path / "nothing.gguf").symlink_to(tmp_path / "gone.gguf")
    with pytest.raises(FileNotFoundError, match=r"loop.gguf is a link that leads back to itself"):
        pumice.load(tmp_path / "loop.gguf")
    with pytest.raises(FileNotFoundError, match=r"nothing.gguf is a link to .*gone.gguf, which does not exist"):
        pumice.load(tmp_path / "nothing.gguf")
    with pytest.raises(ValueError, match="source='' is not a path"):
        pumice.load("")


def test_names_with_control_characters_are_escaped(pumice: Any, tmp_path: Path) -> None:
    with pumice.load(write_model(tmp_path / "a\x1b[31m\nb.gguf")) as model:
        assert "\x1b" not in repr(model) + str(model.summary()) + model._log_line()
        assert "\n" not in repr(model)
    with pytest.raises(FileNotFoundError) as caught:
        pumice.load(tmp_path / "c\x1b[31m.gguf")
    assert "\x1b" not in str(caught.value)


def test_a_named_pooling_folder_that_is_missing(pumice: Any, tmp_path: Path) -> None:
    folder = write_model(tmp_path / "m")
    (folder / "modules.json").write_text('[{"type": "a.Transformer", "path": ""}, {"type": "a.Pooling", "path": "1_Pooling"}]')
    with pytest.raises(pumice.ModelFormatError, match="names the folder '1_Pooling', and .*config.json is missing"):
        pumice.load(folder)


def test_work_without_a_thread_to_be_had(pumice: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from pumice.common import interruptible

    def refuse(*_: Any) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(interruptible, "start_thread", refuse)
    before = interruptible._running.copy()
    assert interruptible.Task(threading.get_ident).result() == threading.get_ident()
    with pytest.raises(KeyError):
        interruptible.Task(lambda: {}["a"]).result()

    def interrupted() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interruptible.Task(interrupted)
    assert interruptible._running <= before


def test_nothing_warns(model: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.similarity(np.full((2, 3), 3e38), np.full((1, 3), 1e-38))
