"""The bos token of a chat's prompt. A GGUF file that asks for one gets exactly one, as in llama.cpp. In a folder the chat template alone
decides, as in transformers."""

from __future__ import annotations

from typing import Any

import pytest
from small_files import TOKENS, File, gguf_keys

from pumice.chats.chat import Chats
from pumice.tokens.tokenizer_files import load_tokenizer
from pumice.tokens.tokenizers import Tokenizer

BOS, EOS = 1, 2
PLAIN = "{% for m in messages %}{{ m.content }}{% endfor %}{% if add_generation_prompt %}{{ ' a' }}{% endif %}"
WRITTEN = "{{ bos_token }}" + PLAIN


def prompt(kind: str, template: str, content: str, wanted: bool | None, tokenizer: Any = None, **more: Any) -> list[int]:
    """Returns the ids of a chat's prompt. wanted: the file's add_bos_token, or None if the file does not have this key."""
    keys = {key: value for key, value in gguf_keys(kind).items() if key != "tokenizer.ggml.add_bos_token"}
    keys |= {} if wanted is None else {"tokenizer.ggml.add_bos_token": wanted}
    file: Any = File(keys)
    made = load_tokenizer(file, tokenizer)
    grammars: Any = None  # no call is forced here
    chats = Chats(file, made, made.vocab_size, template, None, grammars)
    return chats.rendered([{"role": "user", "content": content}], {}, False, **more)[1].tolist()


@pytest.mark.parametrize(
    ("kind", "wanted", "added"),
    [
        ("llama", True, True),
        ("llama", None, True),  # vocabularies of this kind have a bos token unless the file says otherwise
        ("llama", False, False),
        ("gpt2", True, True),
        ("gpt2", None, False),
        ("gpt2", False, False),
    ],
)
def test_a_file_that_asks_for_bos_gets_one(kind: str, wanted: bool | None, added: bool) -> None:
    for content in ("a b", TOKENS[kind][BOS] + " a", ""):  # a bos token that a user spells is text
        plain, written = (prompt(kind, template, content, wanted) for template in (PLAIN, WRITTEN))
        assert [plain.count(BOS), written.count(BOS)] == [int(added), 1]
        assert written[0] == BOS and plain == (written if added else written[1:])
    goes_on = prompt(kind, PLAIN, "a b", wanted, continued=["content"])
    assert goes_on.count(BOS) == int(added) == int(goes_on[0] == BOS)


def test_a_given_tokenizer_leaves_bos_to_the_template() -> None:
    built = load_tokenizer(File(gguf_keys("llama")))  # type: ignore[arg-type]
    given = Tokenizer(built.backend, bos_id=built.bos_id, eos_ids=built.eos_ids)
    assert given.encode("a").tolist()[0] == BOS
    assert prompt("llama", PLAIN, "a b", True, given).count(BOS) == 0
    assert prompt("llama", WRITTEN, "a b", True, given).count(BOS) == 1
