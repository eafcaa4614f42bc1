"""Known answer formats, each with texts that identify it in a chat template. A new format needs only a new Row.

The response template of a Row is in transformers' format (version 1). It needs no start_anchor, because the answer begins where the
generation prompt begins. The first Row whose markers all occur in the chat template's text is used, so specific Rows come before general
ones.
"""

from __future__ import annotations

from .answer_forms import NAMED, Row, Thought, Written, shape
from .call_ids import RANDOM
from .list_forms import LIST_ROWS

_LLAMA = shape(
    text={"close": ["<|eom_id|>"]},
    open_pattern=r'(?:<\|python_tag\|>\s*)?\{\s*(?:"type"\s*:\s*"function"\s*,\s*)?"name"\s*:\s*"(?P<name>[^"\n]+)"\s*,\s*'
    r'"(?:parameters|arguments)"\s*:\s*(?=\{)',
    close_pattern=r"\}\s*(?:(?:;|<\|eom_id\|>|<\|eot_id\|>)\s*|$|(?=<\|python_tag\|>))",
    transform=NAMED,
)

_LLAMA_CALL = Written('{"name": "%name%", "parameters": %arguments%}', between="; ")
_DEEPSEEK = shape(
    open_pattern=r"(?:<｜tool▁calls▁begin｜>\s*)?<｜tool▁call▁begin｜>\s*(?:function<｜tool▁sep｜>)?(?P<name>[^<\s]+)\s*"
    r"(?:<｜tool▁sep｜>\s*)?(?:```(?:json)?\s*)?",
    close_pattern=r"\s*(?:```\s*)?<｜tool▁call▁end｜>(?:\s*<｜tool▁calls▁end｜>)?",
    transform=NAMED,
)

_COMMAND = shape(
    text={"close": ["<|START_RESPONSE|>", "<|END_RESPONSE|>", "<|START_TEXT|>", "<|END_TEXT|>"]},
    reasoning={"open": "<|START_THINKING|>", "close": "<|END_THINKING|>"},
    open="<|START_ACTION|>",
    close="<|END_ACTION|>",
    transform={"name": "{tool_name}", "arguments": "{parameters}"},
    transform_each=True,
)
_COMMAND_CALLS = Written("<|START_ACTION|>%calls%<|END_ACTION|>", keys=("tool_name", "parameters"))

# What may follow a channel's name in a header of harmony without a recipient: the type of the message's text.
_HARMONY_TYPE = r"[^<=]*(?:<\|constrain\|>[^<=]*)?<\|message\|>"

ROWS: tuple[Row, ...] = (
    Row(
        "gpt-oss (harmony channels)",
        ("<|channel|>", "<|message|>"),
        shape(
            # This pattern matches all markers except those that open reasoning or a call. So the text between the matched markers becomes
            # content.
            text={
                "close_pattern": r"(?:<\|end\|>|<\|return\|>)?(?:<\|start\|>assistant)?(?:<\|channel\|>[^\s<=]+" + _HARMONY_TYPE + ")"
                r"|(?:<\|start\|>assistant)?<\|message\|>|<\|end\|>|<\|return\|>|<\|start\|>assistant"
            },
            reasoning={
                "open_pattern": r"(?:<\|start\|>assistant)?<\|channel\|>analysis(?:\s[^<=]*)?(?:<\|constrain\|>[^<=]*)?<\|message\|>",
                "close": ["<|end|>", "<|return|>"],
            },
            # The recipient stands before or behind the channel, and before or behind the type.
            open_pattern=r"(?:<\|start\|>assistant)?(?:<\|channel\|>(?:commentary|analysis)(?:\s[^<=]*)?)?\sto=(?:functions\.)?"
            r"(?P<name>[\w.-]+)\s*(?:<\|channel\|>(?:commentary|analysis))?(?:\s[^<=]*)?(?:<\|constrain\|>[^<=]*)?<\|message\|>",
            close=["<|call|>", "<|end|>", "<|return|>"],
            transform=NAMED,
        ),
        # `Written` has no end marker for a call or for content, because the model itself ends the answer with <|call|>, <|return|> or
        # <|end|>.
        Written("<|channel|>commentary to=functions.%name% <|constrain|>json<|message|>%arguments%", alone=True),
        Thought(
            "<|channel|>analysis<|message|>",
            "<|end|><|start|>assistant",
            "<|channel|>final<|message|>",
            aside="<|channel|>commentary<|message|>",
        ),
    ),
    Row(
        "Gemma 4 (<|tool_call>call:)",
        ("<|tool_call>",),
        shape(
            text={"close": ["<turn|>", "<|tool_response>", "<channel|>"]},
            reasoning={"open_pattern": r"<\|channel>thought\n?", "close": "<channel|>"},
            open_pattern=r"<\|tool_call>\s*call:(?P<name>[\w.-]+)",
            close="<tool_call|>",
            content_args={"unquoted_keys": True, "string_delims": [['<|"|>', '<|"|>']]},
            transform=NAMED,
        ),
        Written("<|tool_call>call:%name%%bare%<tool_call|>", mark='<|"|>'),
        Thought("<|channel>thought\n", "<channel|>"),
    ),
    Row(
        "FunctionGemma (<start_function_call>call:)",
        ("<start_function_call>",),
        shape(
            text={"close": ["<start_function_response>", "<end_of_turn>"]},
            open_pattern=r"<start_function_call>\s*call:(?P<name>[\w.-]+)",
            close="<end_function_call>",
            content_args={"unquoted_keys": True, "string_delims": [["<escape>", "<escape>"]]},
            transform=NAMED,
        ),
        Written("<start_function_call>call:%name%%bare%<end_function_call>", mark="<escape>"),
    ),
    Row(
        "DeepSeek V3, R1 (<｜tool▁call▁begin｜>function)",
        ("<｜tool▁call▁begin｜>", "```json"),
        _DEEPSEEK,
        Written(
            "<｜tool▁call▁begin｜>function<｜tool▁sep｜>%name%\n```json\n%arguments%\n```<｜tool▁call▁end｜>",
            before="<｜tool▁calls▁begin｜>",
            between="\n",
            after="<｜tool▁calls▁end｜>",
        ),
    ),
    Row(
        "DeepSeek (<｜tool▁call▁begin｜>)",
        ("<｜tool▁call▁begin｜>",),
        _DEEPSEEK,
        Written(
            "<｜tool▁call▁begin｜>%name%<｜tool▁sep｜>%arguments%<｜tool▁call▁end｜>",
            before="<｜tool▁calls▁begin｜>",
            after="<｜tool▁calls▁end｜>",
        ),
    ),
    Row(
        "Kimi K2 (<|tool_call_begin|>)",
        ("<|tool_call_begin|>", "<|tool_call_argument_begin|>"),
        shape(
            open_pattern=r"(?:<\|tool_calls_section_begin\|>\s*)?<\|tool_call_begin\|>\s*(?:functions\.)?(?P<name>[\w.-]+)(?::\d+)?\s*"
            r"<\|tool_call_argument_begin\|>",
            close_pattern=r"<\|tool_call_end\|>(?:\s*<\|tool_calls_section_end\|>)?",
            transform=NAMED,
        ),
        Written(
            "<|tool_call_begin|>functions.%name%:%index%<|tool_call_argument_begin|>%arguments%<|tool_call_end|>",
            before="<|tool_calls_section_begin|>",
            after="<|tool_calls_section_end|>",
        ),
        ids="functions.%name%:%index%",  # the chat template prints a call's id in place of its name
    ),
    Row(
        "Command A+ (<|START_ACTION|>, <|START_TEXT|>)",
        ("<|START_ACTION|>", "<|START_TEXT|>"),
        _COMMAND,
        _COMMAND_CALLS,
        Thought("<|START_THINKING|>", "<|END_THINKING|>", "<|START_TEXT|>", "<|END_TEXT|>"),
    ),
    Row(
        "Command A, R7B (<|START_ACTION|>)",
        ("<|START_ACTION|>",),
        _COMMAND,
        _COMMAND_CALLS,
        Thought("<|START_THINKING|>", "<|END_THINKING|>", "<|START_RESPONSE|>", "<|END_RESPONSE|>"),
    ),
    Row(
        "Command R (Action: ```json)",
        ("Action:", "```json", "tool_name"),
        shape(
            open_pattern=r"Action:\s*```json\s*",
            close_pattern=r"\s*```",
            transform={"name": "{tool_name}", "arguments": "{parameters}"},
            transform_each=True,
        ),
        Written("Action: ```json\n%calls%\n```", keys=("tool_name", "parameters")),
    ),
    Row(
        "Mistral, new ([TOOL_CALLS]name[ARGS])",
        ("[TOOL_CALLS]", "[ARGS]"),
        shape(
            reasoning={"open": "[THINK]", "close": "[/THINK]"},
            open_pattern=r"\[TOOL_CALLS\]\s*(?P<name>[^\[\s{]+)\s*(?:\[CALL_ID\][^\[]*)?\[ARGS\]",
            close_pattern=r"\s*(?=\[TOOL_CALLS\])",
            transform=NAMED,
        ),
        Written("[TOOL_CALLS]%name%[ARGS]%arguments%"),
    ),
    Row(
        "Mistral, old ([TOOL_CALLS] [...])",
        ("[TOOL_CALLS]",),
        shape(reasoning={"open": "[THINK]", "close": "[/THINK]"}, open_pattern=r"\[TOOL_CALLS\]\s*"),
        Written("[TOOL_CALLS] %calls%"),
    ),
    Row(
        "Solar Open (<|tool_call:begin|>)",
        ("<|tool_call:begin|>", "<|tool_call:args|>"),
        shape(
            # This pattern matches all markers except those that open reasoning or a call. So the text between the matched markers becomes
            # content.
            text={"close_pattern": r"(?:<\|end\|>)?(?:<\|begin\|>assistant)?<\|content\|>|<\|end\|>|<\|begin\|>assistant"},
            reasoning={"open_pattern": r"(?:<\|begin\|>assistant)?<\|think\|>", "close": "<|end|>"},
            open_pattern=r"(?:<\|begin\|>assistant)?(?:<\|tool_calls\|>)?<\|tool_call:begin\|>[\w.-]*<\|tool_call:name\|>(?P<name>[\w.-]+)"
            r"<\|tool_call:args\|>",
            close_pattern=r"<\|tool_call:end\|>(?:<\|calls\|>)?",
            transform=NAMED,
        ),
        # `Written` has no end marker for all calls together or for content, because the model itself ends the answer with <|calls|> or
        # <|end|>.
        Written(
            "<|tool_call:begin|>%index%<|tool_call:name|>%name%<|tool_call:args|>%arguments%<|tool_call:end|>", before="<|tool_calls|>"
        ),
        Thought("<|think|>", "<|end|><|begin|>assistant", "<|content|>"),
    ),
    Row(
        "GigaChat 3.1 (<|function_call|>)",
        ("<|function_call|>",),
        shape(
            text={"close": "<|message_sep|>"},
            open="<|function_call|>",
            close_pattern=r"\s*(?:<\|message_sep\|>|$)",
        ),
        Written("<|function_call|>%call%", alone=True),
    ),
    Row(
        "GigaChat 3 (function call<|role_sep|>)",
        ("function call", "<|role_sep|>"),
        shape(
            text={"close": "<|message_sep|>"},
            open_pattern=r"(?:<\|message_sep\|>\s*)?function call<\|role_sep\|>\s*",
            close_pattern=r"\s*(?:<\|message_sep\|>|$)",
        ),
        Written("<|message_sep|>\n\nfunction call<|role_sep|>\n%call%", alone=True),
    ),
    Row(
        "DeepSeek V3.2, V4 (<｜DSML｜invoke name=)",
        ("｜DSML｜", "invoke name="),
        shape(
            open_pattern=r'(?:<｜DSML｜(?:function|tool)_calls>\s*)?<｜DSML｜invoke name="(?P<name>[^"\n]+)">',
            close_pattern=r"</｜DSML｜invoke>(?:\s*</｜DSML｜(?:function|tool)_calls>)?",
            content="xml-inline",
            content_args={
                "tag_pattern": r'<｜DSML｜parameter name="(?P<key>[^"\n]+)"(?: string="(?:true|false)")?>(?P<value>.*?)</｜DSML｜parameter>'
            },
            transform=NAMED,
        ),
        "each parameter says whether its value is a text",
    ),
    Row(
        "Kimi K3 (<|open|>call tool=)",
        ("<|open|>", "<|close|>", "<|sep|>"),
        shape(
            text={
                "close_pattern": r"<\|open\|>response<\|sep\|>|<\|close\|>(?:response|tools|message)<\|sep\|>|<\|open\|>tools<\|sep\|>|"
                r"<\|end_of_msg\|>"
            },
            reasoning={"open": "<|open|>think<|sep|>", "close": "<|close|>think<|sep|>"},
            open_pattern=r'(?:<\|open\|>tools<\|sep\|>\s*)?<\|open\|>call tool="(?P<name>[^"\n]+)"(?: index="\d+")?<\|sep\|>',
            close_pattern=r"<\|close\|>call<\|sep\|>(?:\s*<\|close\|>tools<\|sep\|>(?:<\|close\|>message<\|sep\|>)?)?",
            content="xml-inline",
            content_args={
                "tag_pattern": r'<\|open\|>argument key="(?P<key>[^"\n]+)"(?: type="\w+")?<\|sep\|>(?P<value>.*?)'
                r"<\|close\|>argument<\|sep\|>"
            },
            transform=NAMED,
        ),
        "each argument says the type of its value",
        Thought("<|open|>think<|sep|>", "<|close|>think<|sep|>", "<|open|>response<|sep|>", "<|close|>response<|sep|>", shown="'think'"),
    ),
    Row(
        "Muse Glimmer (<atem:invoke name=)",
        ("<atem:invoke name=", "<|message|>"),
        shape(
            text={"close_pattern": r"(?:<\|eom\|>)?(?:<\|start\|>assistant)?\s?to=user<\|message\|>|<\|eom\|>|<\|start\|>assistant"},
            reasoning={"open_pattern": r"(?:<\|eom\|>)?(?:<\|start\|>assistant)?\s?to=self<\|message\|>", "close": "<|eom|>"},
            open_pattern=r"(?:(?:<\|eom\|>)?(?:<\|start\|>assistant)?\s?to=[\w.-]+<\|message\|>\s*)?(?:<atem:function_calls>\s*)?"
            r'<atem:invoke name="(?P<name>[^"\n]+)">',
            close_pattern=r"</atem:invoke>(?:\s*</atem:function_calls>)?(?:<\|eom\|>)?",
            content="xml-inline",
            content_args={"tag_pattern": r'<atem:parameter name="(?P<key>[^"\n]+)">(?P<value>.*?)</atem:parameter>'},
            transform=NAMED,
        ),
        # `Written` has no end marker for a call, because the model itself ends the message with <|eom|> or <|eot|>.
        Written(
            ' to=%name%<|message|><atem:function_calls>\n<atem:invoke name="%name%">\n%parameters%</atem:invoke>\n</atem:function_calls>',
            parameter='<atem:parameter name="%key%">%value%</atem:parameter>\n',
            alone=True,
        ),
        Thought(" to=self<|message|>", "<|eom|><|start|>assistant", " to=user<|message|>"),
    ),
    Row(
        "Seed-OSS (<seed:tool_call><function=name>)",
        ("<seed:tool_call>", "<seed:think>"),
        shape(
            reasoning={"open": "<seed:think>", "close": "</seed:think>"},
            open_pattern=r"(?:<seed:tool_call>\s*)?<function=(?P<name>[^>\n]+)>",
            close_pattern=r"</function>(?:\s*</seed:tool_call>)?",
            content="xml-inline",
            content_args={"tag_pattern": r"<parameter=(?P<key>[^>\n]+)>(?P<value>.*?)</parameter>"},
            transform=NAMED,
        ),
        Written(
            "<seed:tool_call>\n<function=%name%>\n%parameters%</function>\n</seed:tool_call>",
            between="\n",
            parameter="<parameter=%key%>%value%</parameter>\n",
        ),
    ),
    Row(
        "MiniMax M3 (<mm:think>, <invoke name=)",
        ("<mm:think>", "]<]minimax[>["),
        shape(
            reasoning={"open": "<mm:think>", "close": "</mm:think>"},
            open_pattern=r'(?:\]<\]minimax\[>\[<tool_call>\s*)?\]<\]minimax\[>\[<invoke name="(?P<name>[^"\n]+)">',
            close_pattern=r"\]<\]minimax\[>\[</invoke>(?:\s*\]<\]minimax\[>\[</tool_call>)?",
            content="nested-tags",
            content_args={"mark": "]<]minimax[>["},
            transform=NAMED,
        ),
        "arguments are nested tags",
    ),
    Row(
        "Apriel ([BEGIN FINAL RESPONSE], <tool_calls>)",
        ("[BEGIN FINAL RESPONSE]", "<tool_calls>"),
        shape(
            reasoning={"open": "Here are my reasoning steps:\n", "close": "[BEGIN FINAL RESPONSE]"},
            open="<tool_calls>",
            close="</tool_calls>",
        ),
        Written("<tool_calls>%calls%</tool_calls>"),
    ),
    Row(
        "MiniCPM 5 (<function name=)",
        ('<function name="', '<param name="'),
        shape(
            open_pattern=r'<function name="(?P<name>[^"\n]+)">',
            close="</function>",
            content="xml-inline",
            content_args={
                "tag_pattern": r'<param name="(?P<key>[^"\n]+)">(?:<!\[CDATA\[(?P<cdata>.*?)\]\]>|(?P<value>.*?))</param>',
                "string_delims": [["<![CDATA[", "]]>"]],
            },
            transform=NAMED,
        ),
        Written('<function name="%name%">%parameters%</function>', between="\n", parameter='<param name="%key%">%value%</param>'),
    ),
    Row(
        "MiniMax (<invoke name=)",
        ("<invoke name=", "<parameter name="),
        shape(
            open_pattern=r'(?:<minimax:tool_call>\s*)?<invoke name="(?P<name>[^"\n]+)">',
            close_pattern=r"</invoke>(?:\s*</minimax:tool_call>)?",
            content="xml-inline",
            content_args={"tag_pattern": r'<parameter name="(?P<key>[^"\n]+)">\n?(?P<value>.*?)\n?</parameter>'},
            transform=NAMED,
        ),
        Written(
            '<invoke name="%name%">\n%parameters%</invoke>',
            before="<minimax:tool_call>\n",
            between="\n",
            after="\n</minimax:tool_call>",
            parameter='<parameter name="%key%">%value%</parameter>\n',
        ),
    ),
    Row(
        "GLM (<tool_call>name<arg_key>)",
        ("<arg_key>", "<arg_value>"),
        shape(
            open_pattern=r"<tool_call>\s*(?P<name>[^\s<{]+)",
            close="</tool_call>",
            content="xml-inline",
            content_args={"tag_pattern": r"<arg_key>(?P<key>.*?)</arg_key>\s*<arg_value>(?P<value>.*?)</arg_value>"},
            transform=NAMED,
        ),
        Written(
            "<tool_call>%name%\n%parameters%</tool_call>",
            between="\n",
            parameter="<arg_key>%key%</arg_key>\n<arg_value>%value%</arg_value>\n",
        ),
    ),
    Row(
        "Qwen3-Coder (<function=name><parameter=)",
        ("<function=", "<parameter="),
        shape(
            open_pattern=r"(?:<tool_call>\s*)?<function=(?P<name>[^>\n]+)>",
            close_pattern=r"</function>(?:\s*</tool_call>)?",
            content="xml-inline",
            content_args={"tag_pattern": r"<parameter=(?P<key>[^>\n]+)>\n?(?P<value>.*?)\n?</parameter>"},
            transform=NAMED,
        ),
        Written(
            "<tool_call>\n<function=%name%>\n%parameters%</function>\n</tool_call>",
            between="\n",
            parameter="<parameter=%key%>\n%value%\n</parameter>\n",
        ),
    ),
    Row(
        "Functionary 3.1 (<function=name>{...})",
        ("<function=", "</function>"),
        shape(
            text={"close": "<|eom_id|>"},
            open_pattern=r"<function=(?P<name>[^>\n]+)>",
            close="</function>",
            transform=NAMED,
        ),
        Written("<function=%name%>%arguments%</function>"),
    ),
    Row(
        "Nemotron (<TOOLCALL>[...])",
        ("<TOOLCALL>",),
        shape(open="<TOOLCALL>", close="</TOOLCALL>"),
        Written("<TOOLCALL>%calls%</TOOLCALL>"),
    ),
    Row(
        "Granite 3, Phi 4 mini (<|tool_call|>[...])",
        ("<|tool_call|>",),
        shape(open_pattern=r"(?:<\|tool_call\|>|<tool_call>)\s*(?=\[)", close=["<|/tool_call|>", "</tool_call>", "<|end_of_text|>"]),
        Written("<|tool_call|>%calls%"),
    ),
    Row(
        "ERNIE 4.5 Thinking (<response>, <tool_call>)",
        ("<response>", "<tool_call>"),
        shape(text={"close_pattern": r"<response>\n?|\n?</response>\n?"}, open="<tool_call>", close="</tool_call>"),
        Written("<tool_call>\n%call%\n</tool_call>", between="\n"),
        Thought("<think>", "</think>", "<response>\n", "\n</response>"),
    ),
    Row(
        "Hermes, Qwen, Granite 4 (<tool_call>{...})",
        ("<tool_call>",),
        shape(open="<tool_call>", close="</tool_call>"),
        Written("<tool_call>\n%call%\n</tool_call>", between="\n"),
    ),
    Row(
        "Hunyuan, MiniMax M1 (<tool_calls>)",
        ("<tool_calls>",),
        shape(open="<tool_calls>", close="</tool_calls>"),
        Written("%call%", before="<tool_calls>\n", between="\n", after="\n</tool_calls>"),
    ),
    Row(
        "InternLM 2 (<|action_start|>)",
        ("<|action_start|>", "<|plugin|>"),
        shape(open_pattern=r"<\|action_start\|>\s*<\|plugin\|>", close="<|action_end|>"),
        Written("<|action_start|><|plugin|>\n%call%<|action_end|>"),
    ),
    Row(
        "Granite 20B (<function_call>)",
        ("<function_call>",),
        shape(open="<function_call>", close_pattern=r"</function_call>|\s*(?=<function_call>)"),
        Written("<function_call> %call%", between="\n"),
    ),
    Row(
        "LFM2 (<|tool_call_start|>[f(a=1)])",
        ("List of tools: ", "|im_start|"),  # not the markers of calls, because some of LFM2's chat templates do not write calls
        shape(open="<|tool_call_start|>", close="<|tool_call_end|>", content="python"),
        # LFM2 writes calls in Python, or as a list in JSON. The grammar enforces the second form, which the parser for Python calls
        # accepts, too.
        Written("<|tool_call_start|>%calls%<|tool_call_end|>"),
    ),
    *LIST_ROWS,
    Row('Llama 3 ({"name": ..., "parameters": ...})', ("<|start_header_id|>", '"parameters": '), _LLAMA, _LLAMA_CALL),
    Row('Llama 4 ({"name": ..., "parameters": ...})', ("<|header_start|>", '"parameters": '), _LLAMA, _LLAMA_CALL),
    Row("reasoning alone (<think>)", ("</think>",), shape()),
)


def row_of(chat_template: str) -> Row | None:
    """Returns the first row whose markers all occur in a chat template's text, or None if there is no such row."""
    return next((row for row in ROWS if all(marker in chat_template for marker in row.markers)), None)


def known_shapes() -> str:
    """Returns the names of the formats that have tool calls, for error messages."""
    return ", ".join(row.name for row in ROWS if "tool_calls" in row.template["fields"])


def id_form(chat_template: str) -> str:
    """Returns the form of the ids of calls, as call_id() takes it. It is an empty prefix for Mistral, whose chat templates refuse ids that
    are not nine letters or digits."""
    row = row_of(chat_template)
    return "" if "[TOOL_CALLS]" in chat_template else RANDOM if row is None else row.ids
