"""chat(continue_final=True): the prompt ends where the last message's text ends, and the answer goes on there, in content or in
reasoning."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import samples
from tool_answers import SHAPES, shape_of, without_end
from tool_templates import NO_REASONING, TEMPLATES, USER, reasons_as

import pumice
from pumice.chats.chat import Chats
from pumice.chats.chat_templates import ChatTemplate
from pumice.chats.questions import check_question
from pumice.chats.response_parser import ResponseParser, ResponseTemplate
from pumice.errors import ChatTemplateError

# Content with the beginnings of many markers, and with blanks. A cut in one of them must neither lose nor repeat a character.
TEXT = 'I <think so: {"name" is [THINK a <|channel key.\n\n  Next: [TOOL_CALLS <|START, </thi and }; end'
GEMMA = """{{ bos_token }}{% for m in messages %}{{ '<start_of_turn>' ~ ('model' if m.role == 'assistant' else m.role) ~ '\\n'
    ~ m.content | trim ~ '<end_of_turn>\\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<start_of_turn>model\\n' }}{% endif %}"""
CHATML = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ CONTENT }}<|im_end|>\n{% endfor %}"


def continued(template: ChatTemplate, shape: ResponseTemplate, last: dict[str, Any], calls: bool = False) -> tuple[str, ResponseParser]:
    """Returns the prompt that ends with the text of the message `last`, and the parser of the answer that goes on."""
    question = check_question([USER, {"role": "assistant", **last}], None, None, True, None, False, continue_final=True)
    text = template.continued(question.messages, None, question.continued).text
    opened = Chats._continued(shape, template, question, {}, text, calls)
    return text, ResponseParser(shape, prompt=opened, continues=True, calls=calls)


def goes_on(parser: ResponseParser, rest: str) -> None:
    for character in without_end(rest.removesuffix("\n")):
        parser.feed(character)
    parser.finish()


@pytest.mark.parametrize("name", TEMPLATES)
def test_content_goes_on_at_any_place(name: str) -> None:
    template, shape = ChatTemplate(TEMPLATES[name], "<bos>", "</s>"), shape_of(TEMPLATES[name])
    whole = template.render([USER, {"role": "assistant", "content": TEXT}], False)
    for cut in range(1, len(TEXT), 3):
        for calls in (False, True):
            text, parser = continued(template, shape, {"content": TEXT[:cut]}, calls)
            kept = TEXT[:cut] if text.endswith(TEXT[:cut]) else TEXT[:cut].rstrip()  # some templates drop blanks
            assert text == whole[: whole.index(TEXT)] + kept
            goes_on(parser, whole[len(text) :])
            assert (kept + parser.content, parser.reasoning, parser.calls) == (TEXT, None, []), cut


@pytest.mark.parametrize("name", [name for name in TEMPLATES if name not in NO_REASONING])
def test_reasoning_goes_on_at_any_place(name: str) -> None:
    template, shape = ChatTemplate(TEMPLATES[name], "<bos>", "</s>"), shape_of(TEMPLATES[name])
    thought, key = "Well, </thi or <|end <channel \n what? [/TH", reasons_as(name)
    whole = template.render([USER, {"role": "assistant", "content": "Yes.", key: thought}], False)
    for cut in range(1, len(thought), 2):
        text, parser = continued(template, shape, {"content": "", key: thought[:cut]})
        kept = thought[:cut] if text.endswith(thought[:cut]) else thought[:cut].rstrip()
        assert whole.startswith(text) and text.endswith(kept)
        goes_on(parser, whole[len(text) :])
        assert (kept + (parser.reasoning or ""), parser.content) == (thought, "Yes."), cut
    # Where the message has both, the reasoning is closed and the content goes on.
    text, parser = continued(template, shape, {"content": "Ye", key: thought})
    goes_on(parser, whole[len(text) :])
    assert (parser.reasoning, parser.content) == (None, "s.")


@pytest.mark.parametrize("name", NO_REASONING)
def test_reasoning_that_a_template_leaves_out(name: str) -> None:
    with pytest.raises(ChatTemplateError, match=r"continue_final=True.*leaves the last message's text \('reasoning_content'\) out"):
        continued(ChatTemplate(TEMPLATES[name], "<bos>", "</s>"), shape_of(TEMPLATES[name]), {"content": "", "reasoning_content": "Hm"})


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("m.content ~ m.content", "changes or repeats"),
        ("m.content | upper", ""),  # the mark has no case: the end of the text is certain
        ("m.content | tojson", ""),
        ("m.content | reverse | join", "changes or repeats"),
        ("m.content.split('s')[0] ~ '?'", "leaves .* out"),
        ("m.content[:3]", "leaves .* out"),
        ("'x'", "leaves .* out"),
        ("m.content ~ (m.content | length)", "changes or repeats"),
        ("m.content if m.content.endswith('l') else '-' ~ m.content", "changes or repeats"),
        ("m.content.split('i')[-1]", ""),
        ("m.content | trim", ""),
    ],
)
def test_the_end_of_the_text_must_be_certain(content: str, says: str) -> None:
    template, shape = ChatTemplate(CHATML.replace("CONTENT", content)), SHAPES["Hermes, Qwen, Granite 4 (<tool_call>{...})"]
    last = {"content": "It is well"}
    if says:
        with pytest.raises(ChatTemplateError, match=f"continue_final=True: the chat template {says}"):
            continued(template, shape, last)
        return
    text, _ = continued(template, shape, last)
    whole = template.render([USER, {"role": "assistant", **last}], False)
    assert whole.startswith(text) and whole[len(text) :] in ("<|im_end|>\n", '"<|im_end|>\n')
    trimmed = continued(ChatTemplate(CHATML.replace("CONTENT", "m.content | trim")), shape, {"content": " It is \n"})[0]
    assert trimmed.endswith("<|im_start|>assistant\nIt is")


def test_only_the_last_message_counts() -> None:
    """The same text stands in other messages, in the template and behind the message."""
    template = ChatTemplate(CHATML.replace("CONTENT", "m.content") + "Yes{% for m in messages %}{{ m.role }}{% endfor %}")
    text = template.continued([{"role": "user", "content": "Yes"}, {"role": "assistant", "content": "Yes"}], None, ["content"]).text
    assert text == "<|im_start|>user\nYes<|im_end|>\n<|im_start|>assistant\nYes"


def test_an_answer_that_could_not_be_read() -> None:
    hermes = SHAPES["Hermes, Qwen, Granite 4 (<tool_call>{...})"]
    template = ChatTemplate(CHATML.replace("CONTENT", "'Thought: ' ~ (m.reasoning_content or '') ~ '. ' ~ m.content"))
    with pytest.raises(ChatTemplateError, match=r"reads the end of the last message \('reasoning_content'\) as content"):
        continued(template, hermes, {"content": "", "reasoning_content": "Hm"})
    plain = ChatTemplate(CHATML.replace("CONTENT", "m.content"))
    with pytest.raises(ChatTemplateError, match="ends inside of a tool call"):
        continued(plain, hermes, {"content": 'Well\n<tool_call>{"name": "f", "arg'}, calls=True)
    # Reasoning in the content, for templates that have no other place for it.
    _, parser = continued(plain, hermes, {"content": "<think>\nI"})
    goes_on(parser, " see.</think>Good.")
    assert (parser.reasoning, parser.content) == (" see.", "Good.")
    alone = "{% if messages | length < 2 %}{{ raise_exception('two at least') }}{% endif %}" + CHATML.replace("CONTENT", "m.content")
    _, parser = continued(ChatTemplate(alone), hermes, {"content": "<think>\nI"})  # the template does not render the question alone
    goes_on(parser, " see.</think>Good.")
    assert (parser.reasoning, parser.content) == (" see.", "Good.")


# ---- models ------------------------------------------------------------------------------------------------------


def talk(**last: Any) -> list[dict[str, Any]]:
    return [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "", **last}]


def test_models_go_on_where_they_were(smollm2: Any) -> None:
    """An answer that is cut at the end of a token and continued is the whole answer, with the same bits."""
    question = [{"role": "user", "content": "What is the capital of France?"}]
    whole = smollm2.chat(question, max_tokens=16, temperature=0)
    begun = "".join(whole.pieces[:5])
    answer = smollm2.chat([*question, {"role": "assistant", "content": begun}], continue_final=True, max_tokens=11, temperature=0)
    assert answer.prompt == whole.prompt + begun
    assert answer.ids.tolist() == whole.ids.tolist()[5:]
    assert answer.prompt_tokens == whole.prompt_tokens + 5
    assert begun + answer.content == whole.text
    given = {"continue_final": True, "max_tokens": 11, "temperature": 0}
    awaited = asyncio.run(smollm2.achat([*question, {"role": "assistant", "content": begun}], **given))
    assert awaited.ids.tolist() == answer.ids.tolist()


def test_gemma_drops_blanks() -> None:
    with pumice.load(samples.gemma3(), device="cpu", n_ctx=512, chat_template=GEMMA) as gemma:
        asked = gemma.chat(talk(content=" It is \n"), continue_final=True, dry_run=True)
        assert asked.prompt.endswith("<start_of_turn>model\nIt is")
        begun = gemma.chat(talk()[:1], dry_run=True)
        assert asked.prompt == begun.prompt + "It is"
        assert asked.prompt_tokens == begun.prompt_tokens + 2
        spelt = gemma.chat(talk(content="It is<end_of_turn>"), continue_final=True, dry_run=True)
        assert spelt.prompt == asked.prompt + "<end_of_turn>"
        assert spelt.prompt_tokens > asked.prompt_tokens + 1  # what the message spells is no control token
