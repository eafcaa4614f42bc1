"""Model's methods for conversations: chat(), and save_prefix() and load_prefix() for the beginnings of prompts."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ..chats.chat import is_conversation
from ..chats.questions import check_question
from ..common.arguments import argument, checked_keywords, flag, path_of, shown_path, warn
from ..common.interruptible import interruptible
from ..errors import ChatTemplateError, ContextLengthError, FallbackWarning, GrammarError, GrammarWarning, UnsupportedTaskError
from ..generate.generation import Continuation, Generation
from ..generate.prompts import Prompt, prompt_list
from ..generate.settings import SAMPLING_DEFAULTS, Sampling, check_setting
from .base import ModelBase, survives_its_device
from .speculation import speculation

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ..tokens.tokenizers import Tokenizer

Int32 = npt.NDArray[np.int32]


class ChatCalls(ModelBase):
    """chat(), and save_prefix() and load_prefix() for files with the computed beginnings of prompts."""

    @checked_keywords(SAMPLING_DEFAULTS | {"max_tokens": None})
    @survives_its_device
    def chat(
        self,
        messages: str | Sequence[Mapping[str, Any]],
        *,
        stream: bool = False,
        response_format: Any = None,
        tools: Sequence[Mapping[str, Any] | Callable[..., Any]] | None = None,
        tool_choice: str | Mapping[str, Any] | None = None,
        parallel_tool_calls: bool = True,
        continue_final: bool = False,
        dry_run: bool = False,
        template_kwargs: Mapping[str, Any] | None = None,
        parse_special: bool = False,
        **sampling: Unpack[Sampling],
    ) -> Any:
        """Answers a conversation. Returns a ChatResult (a list of them for n > 1), or a Stream of Chunks with stream=True.

        messages: dicts with "role" and "content", or one string, which is a single user message. The model's chat template converts them to
            a prompt. If the model has no template, raises ChatTemplateError with a remedy, because no template is guessed.
        stream: True returns a Stream.
        tools: functions that the model may call. They are Python functions (the schema comes from the signature and the docstring), or
            dicts in OpenAI's format. The result's .tool_calls has the calls that the model asks for; chat() does not run them.
        tool_choice: "auto"; "none" (the prompt does not mention the tools); "required" (the model must call a tool); or the name of the
            tool that the model must call.
        parallel_tool_calls: False allows at most one call.
        response_format: the form that the answer must have, which is also the form of the result's .parsed. {"type": "json_object"},
            {"type": "json_schema", "json_schema": {"name": ..., "schema": ...}}, a pydantic model, a TypeAdapter or a Grammar.
        continue_final: True means that the last message is the assistant's and that the answer continues it. The prompt ends with the text
            of this message: its content or, if that is empty, its reasoning. The result has only the new text.
        dry_run: True only renders the prompt. The ChatResult then has .prompt and .prompt_tokens, and no text.
        template_kwargs: further variables for the template, such as documents or enable_thinking.
        parse_special: False (the default) means that only the template's own text can contain control tokens. If messages, tools or
            documents spell a control token, it is plain text.
        max_tokens: another name of max_new_tokens.

        All other keywords are those of generate(). Where neither the call nor the model's files have a value, answers are sampled: with
        temperature 0.8, top_k 40, top_p 0.95 and min_p 0.05, and max_repeated_tokens is 512 unless ignore_eos is set.

        Raises ChatTemplateError (also if continue_final=True and it is not certain where the
        last message's text ends in the prompt), GrammarError if the requirements for the answer cannot be enforced, and what generate()
        raises.
        """
        options: dict[str, Any] = dict(sampling)
        if (max_tokens := options.pop("max_tokens", None)) is not None:
            if "max_new_tokens" in options:
                raise TypeError("max_tokens and max_new_tokens were both given; they are the same")
            check_setting("max_new_tokens", max_tokens, "max_tokens")
            options["max_new_tokens"] = max_tokens
        engine = self._decoder("chat()")
        if flag("dry_run", dry_run) and flag("stream", stream):
            raise ValueError("dry_run=True and stream=True were both given; there is nothing to stream when nothing is generated")
        stream = flag("stream", stream)
        grammar = options.pop("grammar", None)
        question = check_question(
            messages,
            tools,
            tool_choice,
            parallel_tool_calls,
            template_kwargs,
            parse_special,
            response_format,
            grammar,
            continue_final,
        )
        params, guesses = self._generator.params(self._generator.answering(options)), speculation(self, options)
        with argument("messages", ChatTemplateError):
            asked = interruptible(lambda: self._chats.asked(question))
        if asked.left_out:
            places = "; ".join(asked.left_out[:20]) + (f" and {len(asked.left_out) - 20} more" if len(asked.left_out) > 20 else "")
            warn(GrammarWarning, f"calls may break what no grammar of this model's calls can enforce: {places}")
        reasoning = []
        if params.max_reasoning_tokens is not None:
            reasoning = [self._generator.reasoning(self._chats.marks(asked), asked.ids, asked.reasons)]
        if dry_run:
            known = {"prompt_tokens": len(asked.ids), "reused_tokens": 0, "seed": params.seed or 0, "params": params}
            return asked.nothing(device=str(self._info.get("device", "")), **known)
        answers: list[Continuation] = []

        def begin(tokenizer: Tokenizer, params: Any, prompt: Int32) -> Continuation:
            answers.append(asked.continuation(tokenizer, params))
            return answers[-1]

        def finish(found: list[Generation]) -> Any:
            results = [asked.result(g, answer) for g, answer in zip(found, answers, strict=True)]
            return results[0] if params.n == 1 else results

        form = "grammar" if grammar is not None else "response_format" if response_format is not None else "tools"
        with argument("messages", ContextLengthError), argument(form, GrammarError), argument("speculate", UnsupportedTaskError):
            return self._generator.start(engine, [asked.ids], params, finish, stream, begin, guesses, [asked.grammar], reasoning)

    @checked_keywords()
    @survives_its_device
    def save_prefix(
        self,
        path: str | os.PathLike[str],
        prompt_or_messages: Prompt | Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any] | Callable[..., Any]] | None = None,
        template_kwargs: Mapping[str, Any] | None = None,
    ) -> Int32:
        """Computes a prefix, the common beginning of several prompts, and writes its keys and values to a file. Returns the prefix's token
        ids, int32 (T,).

        path: a new name, or that of a plain file, which is replaced once the new file is complete.
        prompt_or_messages: the prefix. A string or token ids as in generate(), or messages as in chat().
        tools, template_kwargs: as in chat(), for messages only.

        Raises OSError, ContextLengthError, MemoryError, and what generate() and chat() raise for a prompt."""
        engine, target = self._decoder("save_prefix()"), path_of(path)
        if is_conversation(prompt_or_messages):
            question = check_question(prompt_or_messages, tools, None, True, template_kwargs, False, name="prompt_or_messages")
            with argument("prompt_or_messages", ChatTemplateError):
                ids = interruptible(lambda: self._chats.asked(question)).ids
        elif tools is not None or template_kwargs is not None:
            raise TypeError("tools and template_kwargs belong to a conversation: give a list of messages, each a dict")
        else:
            with argument("prompt_or_messages"):
                prompts, single = prompt_list(prompt_or_messages)
                if not single:
                    raise TypeError("prompt must be one string, one row of token ids or one list of messages: a file holds one prefix")
                ids = self._generator.prompt_ids(prompts, ["prompt"])[0]
        with argument("prompt_or_messages", ContextLengthError):
            engine.save_prefix(target, ids)
        return ids

    @checked_keywords()
    @survives_its_device
    def load_prefix(self, path: str | os.PathLike[str]) -> Int32:
        """Loads a file of save_prefix() into the prefix cache, so that calls whose prompt begins with this prefix need not compute it.
        Returns the prefix's token ids, int32 (T,).

        path: a file of save_prefix().

        Results have the same bits as without the cache. If the file was written with other settings (another device, kv_dtype, quantize,
        lora or version of pumice), the prefix is computed again from its ids, with a FallbackWarning that says what differs. Raises
        ModelFormatError if the file is damaged, cut or of another model, ContextLengthError, MemoryError if kv_budget cannot hold the
        prefix, and OSError."""
        engine, source = self._decoder("load_prefix()"), path_of(path)
        ids, recomputed = engine.load_prefix(source)
        if recomputed:
            warn(
                FallbackWarning,
                f"{shown_path(source)}: its {len(ids)} tokens were computed again, because {recomputed}. save_prefix() makes a file that "
                f"loads as it is",
            )
        return ids
