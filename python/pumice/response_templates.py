"""What answers look like, by the shape that a model's chat template shows. Data: a new shape is a row, a known one costs nothing.

A row's response template has transformers' form (version 1). It needs no start_anchor: what the generation prompt adds to a prompt is
where the answer begins. The first row whose markers all stand in the chat template's text is taken, so the more special ones come first.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple


class Row(NamedTuple):
    name: str  # what errors call it
    markers: tuple[str, ...]
    template: Mapping[str, Any]


_THINK: dict[str, Any] = {"open": "<think>", "close": "</think>"}
_NAMED = {"type": "function", "function": {"name": "{name}", "arguments": "{content}"}}


def _shape(text: Mapping[str, Any] | None = None, reasoning: Mapping[str, Any] | None = None, **calls: Any) -> dict[str, Any]:
    """text: what the field of the content says (it takes all that no other field opens); calls: what that of the tool calls says."""
    fields: dict[str, Any] = {"content": text or {}, "reasoning_content": reasoning or _THINK}
    if calls:
        fields["tool_calls"] = {"repeats": True, "content": "json", **calls}
    return {"version": 1, "defaults": {"role": "assistant"}, "fields": fields}


_LLAMA = _shape(
    text={"close": ["<|eom_id|>"]},
    open_pattern=r'(?:<\|python_tag\|>\s*)?\{\s*(?:"type"\s*:\s*"function"\s*,\s*)?"name"\s*:\s*"(?P<name>[^"\n]+)"\s*,\s*'
    r'"(?:parameters|arguments)"\s*:\s*(?=\{)',
    close_pattern=r"\}\s*(?:(?:;|<\|eom_id\|>|<\|eot_id\|>)\s*|$|(?=<\|python_tag\|>))",
    transform=_NAMED,
)

ROWS: tuple[Row, ...] = (
    Row(
        "gpt-oss (harmony channels)",
        ("<|channel|>", "<|message|>"),
        _shape(
            # Whatever else opens or ends a message: what stands in it is content.
            text={
                "close_pattern": r"(?:<\|end\|>|<\|return\|>)?(?:<\|start\|>assistant)?<\|channel\|>(?:final|commentary)"
                r"(?:\s*<\|constrain\|>\w*)?<\|message\|>|<\|end\|>|<\|return\|>|<\|start\|>assistant"
            },
            reasoning={"open_pattern": r"(?:<\|start\|>assistant)?<\|channel\|>analysis<\|message\|>", "close": ["<|end|>", "<|return|>"]},
            open_pattern=r"(?:<\|start\|>assistant)?(?:<\|channel\|>(?:commentary|analysis))? to=(?:functions\.)?(?P<name>[\w.-]+)\s*"
            r"(?:<\|channel\|>(?:commentary|analysis))?\s*(?:<\|constrain\|>)?\s*(?:json|code)?\s*<\|message\|>",
            close=["<|call|>", "<|end|>", "<|return|>"],
            transform=_NAMED,
        ),
    ),
    Row(
        "Gemma 4 (<|tool_call>call:)",
        ("<|tool_call>",),
        _shape(
            text={"close": ["<turn|>", "<|tool_response>"]},
            reasoning={"open_pattern": r"<\|channel>thought\n?", "close": "<channel|>"},
            open_pattern=r"<\|tool_call>\s*call:(?P<name>[\w.-]+)",
            close="<tool_call|>",
            content_args={"unquoted_keys": True, "string_delims": [['<|"|>', '<|"|>']]},
            transform=_NAMED,
        ),
    ),
    Row(
        "FunctionGemma (<start_function_call>call:)",
        ("<start_function_call>",),
        _shape(
            text={"close": ["<start_function_response>", "<end_of_turn>"]},
            open_pattern=r"<start_function_call>\s*call:(?P<name>[\w.-]+)",
            close="<end_function_call>",
            content_args={"unquoted_keys": True, "string_delims": [["<escape>", "<escape>"]]},
            transform=_NAMED,
        ),
    ),
    Row(
        "DeepSeek (<｜tool▁call▁begin｜>)",
        ("<｜tool▁call▁begin｜>",),
        _shape(
            open_pattern=r"(?:<｜tool▁calls▁begin｜>\s*)?<｜tool▁call▁begin｜>\s*(?:function<｜tool▁sep｜>)?(?P<name>[^<\s]+)\s*"
            r"(?:<｜tool▁sep｜>\s*)?(?:```(?:json)?\s*)?",
            close_pattern=r"\s*(?:```\s*)?<｜tool▁call▁end｜>(?:\s*<｜tool▁calls▁end｜>)?",
            transform=_NAMED,
        ),
    ),
    Row(
        "Kimi K2 (<|tool_call_begin|>)",
        ("<|tool_call_begin|>", "<|tool_call_argument_begin|>"),
        _shape(
            open_pattern=r"(?:<\|tool_calls_section_begin\|>\s*)?<\|tool_call_begin\|>\s*(?:functions\.)?(?P<name>[\w.-]+)(?::\d+)?\s*"
            r"<\|tool_call_argument_begin\|>",
            close_pattern=r"<\|tool_call_end\|>(?:\s*<\|tool_calls_section_end\|>)?",
            transform=_NAMED,
        ),
    ),
    Row(
        "Command A, R7B (<|START_ACTION|>)",
        ("<|START_ACTION|>",),
        _shape(
            text={"close": ["<|START_RESPONSE|>", "<|END_RESPONSE|>", "<|START_TEXT|>", "<|END_TEXT|>"]},
            reasoning={"open": "<|START_THINKING|>", "close": "<|END_THINKING|>"},
            open="<|START_ACTION|>",
            close="<|END_ACTION|>",
            transform={"name": "{tool_name}", "arguments": "{parameters}"},
            transform_each=True,
        ),
    ),
    Row(
        "Command R (Action: ```json)",
        ("Action:", "```json", "tool_name"),
        _shape(
            open_pattern=r"Action:\s*```json\s*",
            close_pattern=r"\s*```",
            transform={"name": "{tool_name}", "arguments": "{parameters}"},
            transform_each=True,
        ),
    ),
    Row(
        "Mistral, new ([TOOL_CALLS]name[ARGS])",
        ("[TOOL_CALLS]", "[ARGS]"),
        _shape(
            reasoning={"open": "[THINK]", "close": "[/THINK]"},
            open_pattern=r"\[TOOL_CALLS\]\s*(?P<name>[^\[\s{]+)\s*(?:\[CALL_ID\][^\[]*)?\[ARGS\]",
            close_pattern=r"\s*(?=\[TOOL_CALLS\])",
            transform=_NAMED,
        ),
    ),
    Row(
        "Mistral, old ([TOOL_CALLS] [...])",
        ("[TOOL_CALLS]",),
        _shape(reasoning={"open": "[THINK]", "close": "[/THINK]"}, open_pattern=r"\[TOOL_CALLS\]\s*"),
    ),
    Row(
        "MiniMax (<invoke name=)",
        ("<invoke name=", "<parameter name="),
        _shape(
            open_pattern=r'(?:<minimax:tool_call>\s*)?<invoke name="(?P<name>[^"\n]+)">',
            close_pattern=r"</invoke>(?:\s*</minimax:tool_call>)?",
            content="xml-inline",
            content_args={"tag_pattern": r'<parameter name="(?P<key>[^"\n]+)">\n?(?P<value>.*?)\n?</parameter>'},
            transform=_NAMED,
        ),
    ),
    Row(
        "GLM (<tool_call>name<arg_key>)",
        ("<arg_key>", "<arg_value>"),
        _shape(
            open_pattern=r"<tool_call>\s*(?P<name>[^\s<{]+)",
            close="</tool_call>",
            content="xml-inline",
            content_args={"tag_pattern": r"<arg_key>(?P<key>.*?)</arg_key>\s*<arg_value>(?P<value>.*?)</arg_value>"},
            transform=_NAMED,
        ),
    ),
    Row(
        "Qwen3-Coder (<function=name><parameter=)",
        ("<function=", "<parameter="),
        _shape(
            open_pattern=r"(?:<tool_call>\s*)?<function=(?P<name>[^>\n]+)>",
            close_pattern=r"</function>(?:\s*</tool_call>)?",
            content="xml-inline",
            content_args={"tag_pattern": r"<parameter=(?P<key>[^>\n]+)>\n?(?P<value>.*?)\n?</parameter>"},
            transform=_NAMED,
        ),
    ),
    Row(
        "Functionary 3.1 (<function=name>{...})",
        ("<function=", "</function>"),
        _shape(
            text={"close": "<|eom_id|>"},
            open_pattern=r"<function=(?P<name>[^>\n]+)>",
            close="</function>",
            transform=_NAMED,
        ),
    ),
    Row(
        "Nemotron (<TOOLCALL>[...])",
        ("<TOOLCALL>",),
        _shape(open="<TOOLCALL>", close="</TOOLCALL>"),
    ),
    Row(
        "Granite 3, Phi 4 mini (<|tool_call|>[...])",
        ("<|tool_call|>",),
        _shape(open_pattern=r"(?:<\|tool_call\|>|<tool_call>)\s*(?=\[)", close=["<|/tool_call|>", "</tool_call>", "<|end_of_text|>"]),
    ),
    Row(
        "Hermes, Qwen, Granite 4 (<tool_call>{...})",
        ("<tool_call>",),
        _shape(open="<tool_call>", close="</tool_call>"),
    ),
    Row(
        "Hunyuan, MiniMax M1 (<tool_calls>)",
        ("<tool_calls>",),
        _shape(open="<tool_calls>", close="</tool_calls>"),
    ),
    Row(
        "InternLM 2 (<|action_start|>)",
        ("<|action_start|>", "<|plugin|>"),
        _shape(open_pattern=r"<\|action_start\|>\s*<\|plugin\|>", close="<|action_end|>"),
    ),
    Row(
        "Granite 20B (<function_call>)",
        ("<function_call>",),
        _shape(open="<function_call>", close_pattern=r"</function_call>|\s*(?=<function_call>)"),
    ),
    Row('Llama 3 ({"name": ..., "parameters": ...})', ("<|start_header_id|>", '"parameters": '), _LLAMA),
    Row('Llama 4 ({"name": ..., "parameters": ...})', ("<|header_start|>", '"parameters": '), _LLAMA),
    Row("reasoning alone (<think>)", ("</think>",), _shape()),
)


def row_of(chat_template: str) -> Row | None:
    """What a chat template's text says of the answers that it was made for."""
    return next((row for row in ROWS if all(marker in chat_template for marker in row.markers)), None)


def known_shapes() -> str:
    return ", ".join(row.name for row in ROWS if "tool_calls" in row.template["fields"])


def id_prefix(chat_template: str) -> str:
    """What ids of calls begin with. Mistral's templates refuse ids that are not nine letters or digits."""
    return "" if "[TOOL_CALLS]" in chat_template else "call_"


def reasoning_key(chat_template: str) -> str:
    """What a message's reasoning is called by the template that reads it."""
    other = any(mark in chat_template for mark in (".thinking", "['thinking']", '["thinking"]'))
    return "thinking" if other and "reasoning_content" not in chat_template else "reasoning_content"
