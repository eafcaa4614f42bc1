"""max_reasoning_tokens ends reasoning. Answers of all shapes parse wherever it is ended, forms and calls hold behind the end, and tokens
before it are those without a budget."""

from __future__ import annotations

import asyncio
import json
import re
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import guesses
import jsonschema
import numpy as np
import pytest
import samples
import tokenizers
from masks import may_come, only
from tool_answers import answers, expected, shape_of
from tool_templates import NO_REASONING, TEMPLATES, TOOLS, USER

import pumice
from pumice import _core
from pumice.chats import answer_grammars, response_templates
from pumice.chats.response_parser import ResponseParser
from pumice.errors import ChatTemplateError
from pumice.generate.generation import Generation
from pumice.generate.reasoning import Marks, ReasoningBudgets

THINKS: Any = {"template_kwargs": {"enable_thinking": True, "thinking": True}}
SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 12}, "days": {"type": "integer", "minimum": 0, "maximum": 9}},
    "required": ["city", "days"],
    "additionalProperties": False,
}
FORM = {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA}}
OWN = {"fields": {"content": {}, "reasoning_content": {"open": "<think>", "close": "</think>"}}}
REASONING = [name for name in TEMPLATES if name not in NO_REASONING]


@pytest.fixture(scope="module")
def thinker() -> Iterator[pumice.Model]:
    """SmolLM2 with a chat template that opens reasoning, which the model never ends by itself."""
    with pumice.load(samples.smollm2(), device="cpu", chat_template=TEMPLATES["hermes"], n_ctx=1024) as model:
        yield model


def marks_of(name: str) -> Marks:
    row = response_templates.row_of(TEMPLATES[name])
    found = answer_grammars.marks_of(shape_of(TEMPLATES[name]), row, TEMPLATES[name])
    assert found is not None
    return found


# ---------------------------------------------------------------- all shapes
@pytest.mark.parametrize("name", REASONING)
def test_answers_of_all_shapes_parse_wherever_reasoning_is_ended(name: str, smollm2: pumice.Model) -> None:
    tokenizer, marks = smollm2._tokenizer, marks_of(name)
    for kind in ("thought", "thought and calls"):
        opened, text = answers(name)[kind]
        before, close, rest = text.partition(marks.close)
        assert close, "the answer of this test has no end of its reasoning"
        content, thought, calls = expected(name, kind)
        ids = tokenizer.encode(before, add_special=False)
        inside = ResponseParser(shape_of(TEMPLATES[name]), prompt=opened).kind == "reasoning"
        for most in (*range(len(ids) + 2), 1000):
            budget = smollm2._generator._budgets.marks(marks).filter(most, inside)
            said: list[int] = []
            for token in map(int, ids):
                if only(budget.mask()) is not None:
                    break
                said.append(token)
                budget.accept(token)
            free = len(said)
            while (token := only(budget.mask())) is not None:  # type: ignore[assignment]
                said.append(token)
                budget.accept(token)
            cut = len(said) > free
            # The markers do not count.
            assert cut == (most < len(ids)) or abs(most - len(ids)) < 4 + max(8, len(tokenizer.encode(marks.open, add_special=False)))
            parser = ResponseParser(shape_of(TEMPLATES[name]), TOOLS, prompt=opened)
            parser.feed(tokenizer.decode(said, skip_special=False) + ("" if cut else close) + rest)
            parser.finish()
            assert parser.content == content, (kind, most)
            assert [(call.name, call.arguments) for call in parser.calls] == calls, (kind, most)
            assert (thought or "").startswith(parser.reasoning or ""), (kind, most)
            assert cut or parser.reasoning == thought, (kind, most)


@pytest.mark.parametrize("name", REASONING)
def test_grammars_of_all_shapes_allow_the_end_anywhere(name: str, smollm2: pumice.Model) -> None:
    row = response_templates.row_of(TEMPLATES[name])
    shape, marks = shape_of(TEMPLATES[name]), marks_of(name)
    thought = answer_grammars.thought_of(shape, row, TEMPLATES[name])
    budgets = smollm2._generator._budgets.marks(marks)
    written = answer_grammars.written_of(shape, row)
    for asking in (
        answer_grammars.Asking(body=pumice.Grammar.json_schema(SCHEMA), opened=True, thinks=True),
        answer_grammars.Asking(tools=TOOLS, calls="must", opened=True, thinks=True),
        answer_grammars.Asking(tools=TOOLS, opened=True, thinks=True),
    )[: 1 if isinstance(written, str) else 3]:  # some shapes have no grammar of calls
        grammar = answer_grammars.answer_grammar(smollm2._tokenizer, asking, thought, written)
        assert grammar is not None
        form = smollm2._generator.grammars.compiled(grammar)
        text = 'So, "</thi" or {<|end\n: 21 °C and 5 €, 日本 [/TH'
        ids = smollm2._tokenizer.encode(text, add_special=False)
        for most in range(len(ids) + 1):
            grammar_filter, budget = form.filter(), budgets.filter(most, True)
            for token in map(int, ids):
                if only(budget.mask()) is not None:
                    break
                grammar_filter.accept(token)
                budget.accept(token)
            forced = 0
            while (token := only(budget.mask())) is not None:  # type: ignore[assignment]
                assert may_come(grammar_filter.mask(), token), (asking.calls, most)
                grammar_filter.accept(token)
                budget.accept(token)
                forced += 1
            assert forced


def test_shapes_without_reasoning_have_no_marks() -> None:
    for name in NO_REASONING:
        shape = shape_of(TEMPLATES[name])
        assert answer_grammars.marks_of(shape, response_templates.row_of(TEMPLATES[name]), TEMPLATES[name]) is None, name
    assert answer_grammars.marks_of(None, None, "") is None


# ---------------------------------------------------------------- one model
def cut_at(model: pumice.Model, result: Generation, most: int) -> None:
    """Checks that an answer whose prompt has opened the reasoning has at most `most` tokens before the end marker."""
    close = model._tokenizer.encode("</think>", add_special=False).tolist()
    assert result.reasoning_cut
    assert result.ids[most : most + len(close)].tolist() == close


def test_stops_do_not_end_reasoning_that_has_a_budget(thinker: pumice.Model) -> None:
    asking: Any = {"temperature": 0, "max_tokens": 60, "max_reasoning_tokens": 12, **THINKS}
    free = thinker.chat("What is two and two?", **asking)
    assert free.reasoning_cut and free.reasoning and free.content
    other = next(free.reasoning[i : i + 4] for i in range(len(free.reasoning)) if free.reasoning[i : i + 4] not in free.content)
    result = thinker.chat("What is two and two?", stop=other, **asking)
    assert (result.text, result.finish_reason, result.reasoning_cut) == (free.text, free.finish_reason, True)
    stop = free.content[2:6]
    with thinker.chat("What is two and two?", stop=stop, stream=True, **asking) as stream:
        texts = [(chunk.kind, chunk.text) for chunk in stream]
    content = free.content[: free.content.index(stop)]
    assert "".join(text for kind, text in texts if kind == "content") == content.rstrip()
    assert (stream.result.reasoning, stream.result.stopped_by) == (free.reasoning, stop)


def test_tokens_before_the_cut_are_those_without_a_budget(thinker: pumice.Model) -> None:
    for options in (
        {"temperature": 0},
        {"temperature": 0.9, "seed": 5},
        {"temperature": 1.2, "seed": 6, "min_p": 0.05, "frequency_penalty": 0.2},
    ):
        free = thinker.chat([USER], **THINKS, **options, max_tokens=30, logprobs=2)
        assert not free.reasoning_cut
        assert free.content == ""
        for most in (0, 7, 20):
            found = thinker.chat([USER], **THINKS, **options, max_tokens=30, logprobs=2, max_reasoning_tokens=most)
            cut_at(thinker, found, most)
            np.testing.assert_array_equal(found.ids[:most], free.ids[:most])
            np.testing.assert_array_equal(found.logprobs[:most], free.logprobs[:most])
            assert len(found.ids) == len(found.logprobs) and found.top_ids.shape == (len(found.ids), 2)
            assert (found.logprobs <= 0).all()
            assert "<think>" not in found.text
            assert found.content or found.finish_reason == "eos"
            assert found.kind_tokens["reasoning"] in (most + 3, most + 4) and sum(found.kind_tokens.values()) == len(found.ids)
            assert thinker.detokenize(found.ids[:most]).strip() == (found.reasoning or "")
        whole = thinker.chat([USER], **THINKS, **options, max_tokens=30, max_reasoning_tokens=30)
        np.testing.assert_array_equal(whole.ids, free.ids)
        assert not whole.reasoning_cut


def test_streams_batches_event_loops_and_samples_give_the_same(thinker: pumice.Model) -> None:
    options: Any = {**THINKS, "temperature": 0.8, "seed": 3, "max_tokens": 40, "max_reasoning_tokens": 9}
    whole = thinker.chat([USER], **options)
    cut_at(thinker, whole, 9)
    with thinker.chat([USER], stream=True, **options) as stream:
        chunks = list(stream)
    assert "".join(c.text for c in chunks if c.kind == "reasoning") == whole.reasoning
    assert "".join(c.text for c in chunks if c.kind == "content") == whole.content
    [cut] = [chunk for chunk in chunks if chunk.reasoning_cut]
    at = sum(len(chunk.ids) for chunk in chunks[: chunks.index(cut)])
    assert at <= 9 < at + len(cut.ids)
    assert stream.result.reasoning_cut and stream.result.kind_tokens == whole.kind_tokens
    samples_of = thinker.chat([USER], **options, n=3)
    assert samples_of[0].ids.tolist() == whole.ids.tolist()
    for each in samples_of:
        cut_at(thinker, each, 9)

    async def together() -> list[Any]:
        return await asyncio.gather(*(thinker.achat([USER], **{**options, "max_reasoning_tokens": most}) for most in (9, 3, 14)))

    for most, found in zip((9, 3, 14), asyncio.run(together()), strict=True):
        cut_at(thinker, found, most)
    assert found.ids[:9].tolist() == whole.ids[:9].tolist()


def test_guesses_change_nothing(thinker: pumice.Model) -> None:
    prompt = [{"role": "user", "content": "Repeat: one, two, three, one, two, three, one, two, three, one, two, three."}]
    options: Any = {**THINKS, "temperature": 0, "max_tokens": 40}
    for most in (0, 5, 23):
        plain = thinker.chat(prompt, **options, max_reasoning_tokens=most, speculate="off")
        cut_at(thinker, plain, most)
        found = thinker.chat(prompt, **options, max_reasoning_tokens=most, speculate={"lookup": 2, "guesses": 16})
        assert found.ids.tolist() == plain.ids.tolist()


@pytest.mark.usefixtures("always_guesses")
def test_guesses_of_a_smaller_model_change_nothing(thinker: pumice.Model) -> None:
    form: Any = {"response_format": FORM, "temperature": 1.1, "seed": 4, "n": 3}
    guessed = right = 0
    with pumice.load(samples.smollm2(), device="cpu", quantize="q8_0", n_ctx=1024) as draft:
        for most in (0, 5, 17):
            for options in ({"temperature": 0, "max_tokens": most + 20}, {**form, "max_tokens": most + 60}):
                plain = thinker.chat([USER], **THINKS, **options, max_reasoning_tokens=most, speculate="off")
                found = thinker.chat([USER], **THINKS, **options, max_reasoning_tokens=most, draft=draft, speculate={"guesses": 4})
                pairs = zip(found, plain, strict=True) if "n" in options else [(found, plain)]
                for a, b in pairs:
                    cut_at(thinker, a, most)
                    assert a.ids.tolist() == b.ids.tolist()
                    guessed += a.timings["drafted_tokens"]
                    right += a.timings["accepted_tokens"]
                    if "n" in options:
                        jsonschema.validate(a.parsed, SCHEMA)
    assert 0 < right < guessed


def byte_tokens(count: int) -> tokenizers.Tokenizer:
    """Returns a tokenizer with a token for each byte, and others that no text has."""
    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {text: i for i, text in enumerate([*alphabet, *(f"<other {i}>" for i in range(len(alphabet), count))])}
    made = tokenizers.Tokenizer(tokenizers.models.BPE(vocabulary, []))
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    made.decoder = tokenizers.decoders.ByteLevel()
    return made


@pytest.mark.usefixtures("always_guesses")
@pytest.mark.parametrize("name", guesses.MODELS)
def test_guesses_of_a_models_own_head_change_nothing(name: str, tmp_path: Path) -> None:
    """The guesses are those of a draft head (qwen3_5) or of an assistant (gemma4)."""
    folder = guesses.write_folder(name, tmp_path)
    count = json.loads((folder / "config.json").read_text())
    count = count.get("text_config", count)["vocab_size"]
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": count - 1}))  # answers with a grammar need an end
    texts = ["<think>" + bytes(ids % 26 + 97 for ids in prompt).decode() for prompt in guesses.prompts(6)]
    digits = pumice.Grammar.regex(r"[^<]*</think>[0-9]{3}[a-f]{4}")
    guessed = right = 0
    with guesses.load(folder, device="cpu", tokenizer=byte_tokens(count), response_template=OWN) as model:
        close = model._tokenizer.encode("</think>", add_special=False).tolist()
        for options in ({"temperature": 0}, {"temperature": 0.3, "seed": 5}, {"temperature": 0, "grammar": digits}):
            free = model.generate(texts, **options, max_new_tokens=40, speculate="off")
            for most in (0, 4, 11):
                plain = model.generate(texts, **options, max_new_tokens=40, max_reasoning_tokens=most, speculate="off")
                found = model.generate(texts, **options, max_new_tokens=40, max_reasoning_tokens=most, speculate="mtp")
                for a, b, c in zip(found, plain, free, strict=True):
                    assert a.ids.tolist() == b.ids.tolist()
                    if not a.reasoning_cut:
                        assert a.finish_reason == "eos" and a.ids.tolist() == c.ids.tolist()
                        continue
                    # Random bytes may be the beginning of a character of UTF-8, which three more tokens may complete.
                    first = next(n for n in range(most, most + 4) if a.ids[n : n + len(close)].tolist() == close)
                    assert a.ids[:first].tolist() == c.ids[:first].tolist()
                    guessed += a.timings["drafted_tokens"]
                    right += a.timings["accepted_tokens"]
                    if "grammar" in options:
                        assert re.fullmatch("[0-9]{3}[a-f]{4}", model.detokenize(a.ids[first + len(close) :]))
    # The draft head of this small model guesses nothing right behind such texts; test_guessed_tokens.py has right guesses of it.
    assert guessed > right and (right > 0 or name == guesses.HEAD)


def test_the_model_opens_reasoning_itself() -> None:
    """A model that writes nothing but <think> does so once, and its second <think> behind the cut is forbidden."""
    with pumice.load(samples.smollm2(), device="cpu", n_ctx=512, response_template=OWN) as model:
        spelt = model._tokenizer.encode("<think>", add_special=False).tolist()
        calls: list[int] = []

        def opens(ids: Any, row: Any) -> None:
            calls.append(len(ids))
            if len(calls) <= len(spelt):
                row[spelt[len(calls) - 1]] = 1e4
            elif len(calls) > 15:
                row[spelt[(len(calls) - 1) % len(spelt)]] = 1e4

        found = model.chat([USER], temperature=0, max_tokens=60, max_reasoning_tokens=4, logits_processor=opens)
        close = model._tokenizer.encode("</think>", add_special=False).tolist()
        first = len(spelt) + 4
        assert found.ids[: len(spelt)].tolist() == spelt
        assert found.ids[first : first + len(close)].tolist() == close
        assert found.reasoning_cut and found.reasoning == model.detokenize(found.ids[len(spelt) : first]).strip()
        assert "<think>" not in model.detokenize(found.ids[first:])
        quiet = model.chat([USER], temperature=0, max_tokens=12, max_reasoning_tokens=0)  # a model that does not reason
        assert quiet.ids.tolist() == model.chat([USER], temperature=0, max_tokens=12).ids.tolist()
        assert not quiet.reasoning_cut and quiet.reasoning is None


def test_generate_reads_the_prompt(thinker: pumice.Model) -> None:
    prompts = ["<|im_start|>assistant\n<think>\nWell", "<|im_start|>assistant\n<think>\nWell\n</think>\n\nIt is", "Once"]
    free = thinker.generate(prompts, temperature=0, max_new_tokens=20)
    found = thinker.generate(prompts, temperature=0, max_new_tokens=20, max_reasoning_tokens=5)
    cut_at(thinker, found[0], 5)
    assert found[0].ids[:5].tolist() == free[0].ids[:5].tolist()
    for a, b in zip(found[1:], free[1:], strict=True):
        assert a.ids.tolist() == b.ids.tolist() and not a.reasoning_cut
    settings = [{"max_reasoning_tokens": 2}, None, {"max_reasoning_tokens": 0}]
    each = thinker.generate([prompts[0]] * 3, sampling=settings, temperature=0, max_new_tokens=20)
    cut_at(thinker, each[0], 2)
    assert each[1].ids.tolist() == free[0].ids.tolist()
    cut_at(thinker, each[2], 0)
    chunks = list(thinker.stream(prompts[0], temperature=0, max_new_tokens=20, max_reasoning_tokens=5))
    assert sum(chunk.reasoning_cut for chunk in chunks) == 1
    assert "".join(chunk.text for chunk in chunks) == found[0].text


def test_a_stop_id_before_the_cut_leaves_no_cut(thinker: pumice.Model) -> None:
    free = thinker.chat([USER], **THINKS, temperature=0, max_tokens=30)
    stop = int(next(i for i in free.ids[6:8] if i not in free.ids[:6]))
    found = thinker.chat([USER], **THINKS, temperature=0, max_tokens=30, max_reasoning_tokens=8, stop=stop)
    assert found.finish_reason == "stop" and not found.reasoning_cut
    found = thinker.chat([USER], **THINKS, temperature=0, max_tokens=8, max_reasoning_tokens=8)
    assert found.finish_reason == "length" and not found.reasoning_cut


def test_continued_reasoning(thinker: pumice.Model) -> None:
    begun = [USER, {"role": "assistant", "content": "", "reasoning_content": "Well, it"}]
    found = thinker.chat(begun, continue_final=True, temperature=0, max_tokens=24, max_reasoning_tokens=6)
    cut_at(thinker, found, 6)
    answered = [USER, {"role": "assistant", "content": "It is"}]
    found = thinker.chat(answered, continue_final=True, temperature=0, max_tokens=6, max_reasoning_tokens=2)
    assert not found.reasoning_cut and found.reasoning is None


def formed(model: pumice.Model, count: int, most: int, first_seed: int = 0) -> None:
    """Checks `count` answers of a schema with a budget, in batches of 10 samples, against those without one."""
    for seed in range(first_seed, first_seed + count // 10):
        options: Any = {**THINKS, "temperature": 1.1, "seed": seed, "n": 10, "response_format": FORM}
        free = model.chat([USER], **options, max_tokens=most + 1)
        found = model.chat([USER], **options, max_tokens=most + 60, max_reasoning_tokens=most)
        for a, b in zip(found, free, strict=True):
            shared = min(most, len(b.ids))
            assert a.ids[:shared].tolist() == b.ids[:shared].tolist()
            assert a.reasoning_cut
            assert a.finish_reason in ("eos", "grammar"), a.text
            jsonschema.validate(a.parsed, SCHEMA)


def test_forms_hold_behind_the_cut(thinker: pumice.Model) -> None:
    for most in (0, 3, 12):
        formed(thinker, 10, most)


def test_calls_hold_behind_the_cut(thinker: pumice.Model) -> None:
    tools = [{**tool, "function": {**tool["function"], "strict": True}} for tool in TOOLS]
    tools[1]["function"]["parameters"] = {"type": "object", "properties": {}, "additionalProperties": False}
    for most in (0, 6):
        found = thinker.chat(
            [USER],
            **THINKS,
            tools=tools,
            tool_choice="now",
            parallel_tool_calls=False,
            temperature=0,
            max_tokens=120,
            max_reasoning_tokens=most,
        )
        assert [call.name for call in found.tool_calls] == ["now"] and found.reasoning_cut and found.content == ""
    with thinker.chat([USER], **THINKS, tools=tools, temperature=0, max_tokens=60, max_reasoning_tokens=6, stream=True) as stream:
        kinds = [chunk.kind for chunk in stream if chunk.text]
    assert kinds[0] == "reasoning" and stream.result.reasoning_cut and not stream.result.tool_errors


# ---------------------------------------------------------------- what is refused
def test_models_without_marks_refuse_a_budget(smollm2: pumice.Model) -> None:
    for call in (
        lambda: smollm2.chat([USER], max_reasoning_tokens=4),
        lambda: smollm2.chat([USER], max_reasoning_tokens=4, dry_run=True),
        lambda: smollm2.generate("a", max_reasoning_tokens=4),
        lambda: smollm2.generate(["a", "b"], sampling=[None, {"max_reasoning_tokens": 4}]),
        lambda: smollm2.stream("a", max_reasoning_tokens=4),
    ):
        with pytest.raises(
            ChatTemplateError, match="max_reasoning_tokens needs the texts around the reasoning, and .*response_template="
        ) as caught:
            call()
        assert caught.value.argument == "max_reasoning_tokens"
    options: Any = {"device": "cpu", "n_ctx": 256, "response_template": False, "chat_template": TEMPLATES["hermes"]}
    with pumice.load(samples.smollm2(), **options) as model, pytest.raises(ChatTemplateError, match="response_template=False was given"):
        model.chat([USER], max_reasoning_tokens=4)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_reasoning_tokens": -1}, "max_reasoning_tokens=-1 is out of range: it must be at least 0"),
        ({"max_reasoning_tokens": 2**40}, "max_reasoning_tokens=1099511627776 is out of range"),
        ({"max_reasoning_tokens": 1.5}, "max_reasoning_tokens must be an integer, not float 1.5"),
        ({"max_reasoning_tokens": True}, "max_reasoning_tokens must be an integer, not bool True"),
        ({"max_reasoning_tokens": "4"}, "max_reasoning_tokens must be an integer, not str '4'"),
        (
            {"max_reasoning_tokens": 4, "logit_bias": {"</": -np.inf}},
            "max_reasoning_tokens ends the reasoning with token .* which logit_bias forbids",
        ),
        ({"max_reasoning_tokens": 4, "bad_words": ["think>"]}, "which bad_words forbid"),
    ],
)
def test_values_that_are_refused(thinker: pumice.Model, options: Any, message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message) as caught:
        thinker.chat([USER], **options)
    assert caught.value.argument == "max_reasoning_tokens"  # type: ignore[union-attr]


def test_marks_need_tokens_that_spell_them() -> None:
    lossy = types.SimpleNamespace(encode=lambda text, add_special: [0] * len(text), token_bytes=lambda token: b"?")
    budgets = ReasoningBudgets(lossy, lambda: _core.TokenBytes(np.array([1], np.uint32), b"?"))  # type: ignore[arg-type]
    with pytest.raises(pumice.TokenizerError, match="max_reasoning_tokens needs tokens that spell the marker '<think>'"):
        budgets.marks(Marks("<think>", "</think>"))


def main() -> None:
    """Runs 200 answers, which takes minutes: PYTHONPATH=examples:tests/python/support python tests/python/chats/test_reasoning_budget.py"""
    with pumice.load(samples.smollm2(), device="cpu", chat_template=TEMPLATES["hermes"], n_ctx=1024) as model:
        for most in (0, 1, 5, 16, 40):
            formed(model, 40, most, first_seed=100 * most)
            print(f"40 answers with at most {most} tokens of reasoning fit the schema")


if __name__ == "__main__":
    main()
