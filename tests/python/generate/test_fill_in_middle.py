"""Prompts with a gap: the form of each family, the tokens that end a middle, texts that spell tokens, and generate() in all its ways."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import gap_models
import numpy as np
import pytest

import pumice
from pumice.tokens import gguf_tokenizer
from pumice.tokens.fill_in_middle import FORMS
from pumice.tokens.tokenizers import Tokenizer

P, S = "def f(x):\n  ", "\n  return y"
STAR = ("<fim_prefix>", "<fim_suffix>", "<fim_middle>", "<fim_pad>")
DEEPSEEK = ("<\uff5cfim\u2581begin\uff5c>", "<\uff5cfim\u2581hole\uff5c>", "<\uff5cfim\u2581end\uff5c>")
# Tokens of a vocabulary; the prompt of P and S; the prompt with a file, a repository and a path (None: the family has no token for names
# of repositories, and gets a file alone). From the pages that fill_in_middle.py names.
FAMILIES: dict[str, tuple[tuple[str, ...], str, str]] = {
    "Qwen2.5-Coder": (
        gap_models.QWEN,
        f"<|fim_prefix|>{P}<|fim_suffix|>{S}<|fim_middle|>",
        f"<|repo_name|>r\n<|file_sep|>a.py\nA<|file_sep|>b.py\n<|fim_prefix|>{P}<|fim_suffix|>{S}<|fim_middle|>",
    ),
    "CodeGemma": (
        ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>", "<|file_separator|>"),
        f"<|fim_prefix|>{P}<|fim_suffix|>{S}<|fim_middle|>",
        f"<|file_separator|>a.py\nA<|file_separator|>b.py\n<|fim_prefix|>{P}<|fim_suffix|>{S}<|fim_middle|>",
    ),
    "StarCoder": (
        (*STAR, "<reponame>", "<filename>"),
        f"<fim_prefix>{P}<fim_suffix>{S}<fim_middle>",
        f"<reponame>r<filename>a.py\nA<filename>b.py\n<fim_prefix>{P}<fim_suffix>{S}<fim_middle>",
    ),
    "Granite Code": (STAR, f"<fim_prefix>{P}<fim_suffix>{S}<fim_middle>", f"#a.py\nA\n<fim_prefix>{P}<fim_suffix>{S}<fim_middle>"),
    "StarCoder2": (
        (*STAR, "<repo_name>", "<file_sep>"),
        f"<fim_prefix>{P}<fim_suffix>{S}<fim_middle>",
        f"<repo_name>r<file_sep>a.py\nA<file_sep><fim_prefix>b.py\n{P}<fim_suffix>{S}<fim_middle>",
    ),
    "Mellum": (
        (*STAR, "<reponame>", "<filename>", "<assistant>"),
        f"<fim_suffix>{S}<fim_prefix>{P}<fim_middle>",
        f"<reponame>r<filename>a.py\nA<filename>b.py\n<fim_suffix>{S}<fim_prefix>{P}<fim_middle>",
    ),
    "SantaCoder": (
        ("<fim-prefix>", "<fim-suffix>", "<fim-middle>"),
        f"<fim-prefix>{P}<fim-suffix>{S}<fim-middle>",
        f"#a.py\nA\n<fim-prefix>{P}<fim-suffix>{S}<fim-middle>",
    ),
    "DeepSeek-Coder": (DEEPSEEK, "{}P{}S{}".format(*DEEPSEEK), "#a.py\nA\n{}P{}S{}".format(*DEEPSEEK)),
    "Codestral": (("[PREFIX]", "[SUFFIX]"), f"[SUFFIX]{S}[PREFIX]{P}", f"#a.py\nA\n[SUFFIX]{S}[PREFIX]{P}"),
    "Seed-Coder": (
        ("<[fim-prefix]>", "<[fim-suffix]>", "<[fim-middle]>"),
        f"<[fim-suffix]>{S}<[fim-prefix]>{P}<[fim-middle]>",
        f"#a.py\nA\n<[fim-suffix]>{S}<[fim-prefix]>{P}<[fim-middle]>",
    ),
    "GLM-4": (
        ("<|code_prefix|>", "<|code_suffix|>", "<|code_middle|>"),
        f"<|code_suffix|>{S}<|code_prefix|>{P}<|code_middle|>",
        f"#a.py\nA\n<|code_suffix|>{S}<|code_prefix|>{P}<|code_middle|>",
    ),
}


def prompt(tokenizer: Tokenizer, *texts: Any, **more: Any) -> str:
    assert tokenizer.gaps is not None
    return tokenizer.decode(tokenizer.gaps.ids(*texts, **more), skip_special=False)


@pytest.mark.parametrize("special", [True, False])
@pytest.mark.parametrize("family", FAMILIES)
def test_the_prompt_of_each_family(family: str, special: bool) -> None:
    tokens, alone, among = FAMILIES[family]
    tokenizer = Tokenizer(gap_models.backend(tokens, special=special))
    given = ("P", "S") if family == "DeepSeek-Coder" else (P, S)
    assert prompt(tokenizer, *given) == alone
    assert tokenizer.gaps is not None
    repository = None if tokenizer.gaps.repository is None else "r"
    assert prompt(tokenizer, *given, (("a.py", "A"),), repository, "b.py") == among
    assert {tokenizer.id(token) for token in (*tokens[:3], gap_models.END)} <= tokenizer.gaps.ends | {tokenizer.id("<assistant>")}


@pytest.mark.parametrize("bos", [True, False])
def test_code_llama_writes_one_space(bos: bool) -> None:
    """The prefix begins with the space of SentencePiece, and the suffix does not, as in infilling_prompt_tokens() of codellama."""
    tokenizer = Tokenizer(gap_models.backend(("\u2581<PRE>", "\u2581<SUF>", "\u2581<MID>", "\u2581<EOT>"), bos=bos, spaced=True))
    assert tokenizer.gaps is not None
    pieces = [tokenizer.token(i) for i in tokenizer.gaps.ids("ab", "cd\n")]
    assert pieces == [*["<s>"] * bos, "\u2581<PRE>", "\u2581", "a", "b", "\u2581<SUF>", "c", "d", "<0x0A>", "\u2581<MID>"]
    assert tokenizer.id("\u2581<EOT>") in tokenizer.gaps.ends


@pytest.mark.parametrize("special", [True, False])
def test_tokens_that_a_text_spells_are_text(special: bool) -> None:
    """Qwen2.5's tokens are not special in its tokenizer.json."""
    tokenizer = Tokenizer(gap_models.backend(gap_models.QWEN, special=special))
    assert tokenizer.gaps is not None
    hostile = f"{gap_models.END}<|fim_middle|><|fim_suffix|>"
    ids = tokenizer.gaps.ids(hostile, hostile, ((hostile, hostile),), hostile, hostile)
    added = [tokenizer.token(i) for i in ids if i in tokenizer.added]
    assert added == ["<|repo_name|>", "<|file_sep|>", "<|file_sep|>", "<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"]
    assert tokenizer.decode(ids, skip_special=False).count(hostile) == 6


def test_what_is_left_out_of_a_long_prompt() -> None:
    tokenizer = Tokenizer(gap_models.backend(gap_models.QWEN))
    files = (("a", "A" * 20), ("b", "B" * 20))
    whole = prompt(tokenizer, "p" * 30, "s" * 10, files)
    assert tokenizer.gaps is not None
    length = len(tokenizer.gaps.ids("p" * 30, "s" * 10, files))
    assert prompt(tokenizer, "p" * 30, "s" * 10, files, most=length) == whole
    assert prompt(tokenizer, "p" * 30, "s" * 10, files, most=length - 1) == whole.replace("<|file_sep|>a\n" + "A" * 20, "")
    for prefix, suffix, kept in ((30, 30, (15, 5)), (30, 2, (18, 2)), (4, 30, (4, 16)), (30, 0, (20, 0)), (0, 30, (0, 20))):
        text = prompt(tokenizer, "0" * (prefix - 1) + "p" * (prefix > 0), "s" * (suffix > 0) + "0" * (suffix - 1), most=23)
        before, after = text.removeprefix("<|fim_prefix|>").removesuffix("<|fim_middle|>").split("<|fim_suffix|>")
        assert (len(before), len(after)) == kept
        assert before[-1:] in ("p", "") and after[:1] in ("s", "")


def gguf(tokens: list[str], **keys: Any) -> Tokenizer:
    vocabulary = [*sorted(gap_models.pre_tokenizers.ByteLevel.alphabet()), *tokens]
    values = {"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "gpt-2", "tokenizer.ggml.tokens": vocabulary,
              "tokenizer.ggml.token_type": np.ones(len(vocabulary), np.int32), "tokenizer.ggml.merges": []}  # fmt: skip
    values |= {f"tokenizer.ggml.{key}_token_id": vocabulary.index(token) for key, token in keys.items()}
    built = gguf_tokenizer.build(values.get, "a.gguf")
    return Tokenizer(built.backend, bos_id=built.bos_id, eos_ids=built.eos_ids, special=built.special)


@pytest.mark.parametrize("names", [("fim_pre", "fim_suf", "fim_mid"), ("prefix", "suffix", "middle"), ()])
def test_tokens_that_a_gguf_file_names(names: tuple[str, ...]) -> None:
    """The types of all tokens in the file are those of plain text."""
    for tokens in (list(DEEPSEEK), ["<[fim-prefix]>", "<[fim-suffix]>", "<[fim-middle]>"], ["<a>", "<b>", "<c>"]):
        tokenizer = gguf([*tokens, "<|endoftext|>"], **dict(zip(names, tokens, strict=False)))
        if tokens[0] == "<a>" and not names:
            assert tokenizer.gaps is None
            continue
        assert tokenizer.gaps is not None
        first, second = (1, 0) if "fim-" in tokens[0] else (0, 1)
        texts = ["p", "s"]
        assert prompt(tokenizer, *texts) == f"{tokens[first]}{texts[first]}{tokens[second]}{texts[second]}{tokens[2]}"
        assert {tokenizer.id(token) for token in tokens} <= tokenizer.special_ids


# ---------------------------------------------------------------- calls
@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[pumice.Model]:
    with pumice.load(gap_models.folder(tmp_path_factory.mktemp("gaps")), device="cpu", n_ctx=256) as found:
        yield found


FREE: Any = {"max_new_tokens": 4, "temperature": 0}


def test_a_gap_is_its_prompt(model: pumice.Model) -> None:
    gaps = model._tokenizer.gaps
    assert gaps is not None
    files = {"a.py": "A", "c.py": "C"}
    prompts = [gaps.ids("ab", "cd"), gaps.ids("ab", ""), gaps.ids("", "cd"), gaps.ids("ab", "cd", tuple(files.items()), "r", "b.py")]
    ways: list[dict[str, Any]] = [{"prefix": "ab", "suffix": "cd"}, {"prefix": "ab"}, {"suffix": "cd"}]
    ways += [{"prefix": "ab", "suffix": "cd", "files": files, "repository": "r", "path": "b.py"}]
    for ids, way in zip(prompts, ways, strict=True):
        want = model.generate(ids, **FREE, ignore_eos=True)
        found = model.generate(**way, **FREE, ignore_eos=True)
        assert (found.ids.tolist(), found.prompt_tokens) == (want.ids.tolist(), len(ids))
        with model.stream(**way, **FREE, ignore_eos=True) as stream:
            assert "".join(map(str, stream)) == want.text

    async def main() -> tuple[Any, str]:
        whole = await model.agenerate(**ways[3], **FREE, ignore_eos=True)
        return whole, "".join([str(chunk) async for chunk in model.astream(**ways[3], **FREE, ignore_eos=True)])

    whole, streamed = asyncio.run(main())
    assert (whole.ids.tolist(), streamed) == (want.ids.tolist(), want.text)


def test_several_gaps(model: pumice.Model) -> None:
    one = [model.generate(prefix=p, suffix="z", **FREE).ids.tolist() for p in ("ab", "abc")]
    assert [each.ids.tolist() for each in model.generate(prefix=["ab", "abc"], suffix="z", **FREE)] == one
    assert [each.ids.tolist() for each in model.generate(prefix=["ab", "abc"], suffix=["z", "z"], **FREE)] == one
    settings: Any = [{"max_new_tokens": 1}, None]
    assert [len(each.ids) for each in model.generate(prefix=["ab", "abc"], suffix="z", sampling=settings, **FREE, ignore_eos=True)] == [
        1,
        4,
    ]
    assert len(model.generate(prefix="ab", suffix="z", n=2, **FREE)) == 2
    assert model.generate(prefix=[], suffix="z") == [] == asyncio.run(model.agenerate(prefix=[], suffix="z"))


@pytest.mark.parametrize("token", ["<|fim_pad|>", "<|file_sep|>", "<|repo_name|>", "<|fim_middle|>", gap_models.END])
def test_tokens_that_end_a_middle(model: pumice.Model, token: str) -> None:
    bias: Any = {token: 1e6}
    found = model.generate(prefix="ab", suffix="z", **FREE, logit_bias=bias)
    assert (found.text, found.finish_reason) == ("", "eos")
    assert model.generate(prefix="ab", suffix="z", **FREE, logit_bias=bias, ignore_eos=True).finish_reason == "length"
    if token != gap_models.END:  # such tokens do not end other texts of this model
        assert model.generate("ab", **FREE, logit_bias=bias).finish_reason == "length"


@pytest.mark.parametrize(
    ("error", "says", "given"),
    [
        (TypeError, "prompt was not given", {}),
        (TypeError, "prompt was given", {"prompt": "a", "prefix": "b"}),
        (TypeError, "files belongs to", {"prompt": "a", "files": {"a": "b"}}),
        (TypeError, "repository belongs to", {"prompt": "a", "repository": "b"}),
        (TypeError, "prefix must be a string", {"prefix": 1}),
        (TypeError, "prefix must be a string", {"prefix": b"a"}),
        (TypeError, "suffix 1 is a int", {"prefix": "a", "suffix": ["a", 2]}),
        (ValueError, "suffix has 1 texts and prefix 2", {"prefix": ["a", "b"], "suffix": ["c"]}),
        (ValueError, "surrogate", {"prefix": "a\ud800"}),
        (TypeError, "files must be", {"prefix": "a", "files": "b"}),
        (TypeError, "files\\[0\\]", {"prefix": "a", "files": ["ab"]}),
        (TypeError, "files\\[0\\]: its text", {"prefix": "a", "files": {"b": 1}}),
        (TypeError, "path", {"prefix": "a", "path": 1}),
        (pumice.ContextLengthError, "256", {"prefix": "a" * 300, "suffix": "b"}),
    ],
)
def test_wrong_arguments(model: pumice.Model, error: type[Exception], says: str, given: dict[str, Any]) -> None:
    with pytest.raises(error, match=says):
        model.generate(**given, **FREE)
    with pytest.raises(error, match=says):
        asyncio.run(model.agenerate(**given, **FREE))


def test_models_without_such_tokens(smollm2: pumice.Model) -> None:
    with pytest.raises(pumice.UnsupportedTaskError, match="<fim_prefix>.*tokenizer.ggml.fim_pre_token_id") as caught:
        smollm2.generate(prefix="a", suffix="b")
    assert all(form.prefix in str(caught.value) for form in FORMS)


def test_a_family_without_a_token_for_repositories(tmp_path: Any) -> None:
    with pumice.load(gap_models.folder(tmp_path, DEEPSEEK), device="cpu") as model:
        assert len(model.generate(prefix="a", suffix="b", files=[("c", "d")], path="e", **FREE, ignore_eos=True).ids) == 4
        with pytest.raises(ValueError, match="repository"):
            model.generate(prefix="a", suffix="b", repository="c", **FREE)
