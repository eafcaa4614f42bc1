"""Chat templates of our own that write tools and calls as known families of models do, and answers that such models would give.

Each template is small and has the markers of its family. tests/make_tool_goldens.py stores the prompts that transformers makes with it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from paths import GOLDENS

TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "The weather of a place.",
            "parameters": {
                "type": "object",
                "properties": {
                    "city": {"type": "string", "description": "Its name."},
                    "days": {"type": "integer"},
                    "exact": {"type": "boolean"},
                    "limits": {"type": "array", "items": {"type": "number"}},
                    "where": {"type": "object"},
                    "note": {"type": ["string", "null"]},
                },
                "required": ["city"],
            },
        },
    },
    {"type": "function", "function": {"name": "now", "description": "The time.", "parameters": {"type": "object", "properties": {}}}},
]

_CALLS = [
    {
        "id": "a1B2c3D4e",
        "type": "function",
        "function": {
            "name": "get_weather",
            "arguments": {"city": 'Köln "Süd"', "days": 3, "exact": True, "limits": [1.5, -2], "where": {"a": {"b": "}"}}, "note": None},
        },
    },
    {"id": "f5G6h7I8j", "type": "function", "function": {"name": "now", "arguments": {}}},
]
_THOUGHT = "The user asks\nfor weather."

USER = {"role": "user", "content": "What is the weather in Köln?"}
ANSWERS: dict[str, dict[str, Any]] = {
    "text": {"role": "assistant", "content": "It is <b>dry</b>.\n\nAnd warm: {1, 2} [x]."},
    "thought": {"role": "assistant", "content": "Dry.", "reasoning_content": _THOUGHT},
    "call": {"role": "assistant", "content": "", "tool_calls": _CALLS[:1]},
    "empty call": {"role": "assistant", "content": "", "tool_calls": _CALLS[1:]},
    "calls": {"role": "assistant", "content": "", "tool_calls": _CALLS},
    "thought and calls": {"role": "assistant", "content": "", "reasoning_content": _THOUGHT, "tool_calls": _CALLS},
    "all": {"role": "assistant", "content": "Let me look.", "reasoning_content": _THOUGHT, "tool_calls": _CALLS},
}

_CHATML = r"""
{%- if tools %}{{- '<|im_start|>system\n# Tools\n' }}{%- for tool in tools %}{{- tool | tojson ~ '\n' }}{%- endfor %}{{- '<|im_end|>\n' }}
    {%- endif %}
{%- for m in messages %}
    {%- if m.role == 'assistant' %}
        {{- '<|im_start|>assistant\n' }}
        {%- if m.reasoning_content %}{{- '<think>\n' ~ m.reasoning_content ~ '\n</think>\n\n' }}{%- endif %}
        {{- m.content or '' }}
        {%- for call in m.tool_calls or [] %}CALL{%- endfor %}
        {{- '<|im_end|>\n' }}
    {%- elif m.role == 'tool' %}{{- '<|im_start|>user\n<tool_response>\n' ~ m.content ~ '\n</tool_response><|im_end|>\n' }}
    {%- else %}{{- '<|im_start|>' ~ m.role ~ '\n' ~ m.content ~ '<|im_end|>\n' }}{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- if enable_thinking is defined %}
    {{- '<think>\n' if enable_thinking else '<think>\n\n</think>\n\n' }}{%- endif %}{%- endif %}"""

_VALUE = "{{- (v | string) if v is boolean or v is none else v | tojson if v is not string else v }}"

TEMPLATES: dict[str, str] = {
    "hermes": _CHATML.replace(
        "CALL",
        r"""{{- '\n<tool_call>\n{"name": "' ~ call.function.name ~ '", "arguments": ' ~ call.function.arguments | tojson
        ~ '}\n</tool_call>' }}""",
    ),
    "qwen3-coder": _CHATML.replace(
        "CALL",
        r"""{{- '\n\n<tool_call>\n<function=' ~ call.function.name ~ '>\n' }}
            {%- for k, v in call.function.arguments | items %}{{- '<parameter=' ~ k ~ '>\n' }}VALUE{{- '\n</parameter>\n' }}{%- endfor %}
            {{- '</function>\n</tool_call>' }}""".replace("VALUE", _VALUE),
    ),
    "glm": r"""[gMASK]<sop>{%- if tools %}{{- '<|system|>\n# Tools\n' }}{%- for tool in tools %}{{- tool | tojson ~ '\n' }}{%- endfor %}
        {%- endif %}
{%- for m in messages %}
    {%- if m.role == 'assistant' %}
        {{- '<|assistant|>\n<think>' ~ (m.reasoning_content or '') ~ '</think>' }}
        {%- if m.content %}{{- '\n' ~ m.content }}{%- endif %}
        {%- for call in m.tool_calls or [] %}
            {{- '\n<tool_call>' ~ call.function.name ~ '\n' }}
            {%- for k, v in call.function.arguments | items %}
                {{- '<arg_key>' ~ k ~ '</arg_key>\n<arg_value>' }}{{- v | tojson if v is not string else v }}{{- '</arg_value>\n' }}
            {%- endfor %}{{- '</tool_call>' }}
        {%- endfor %}
    {%- elif m.role == 'tool' %}{{- '<|observation|>\n<tool_response>\n' ~ m.content ~ '\n</tool_response>' }}
    {%- else %}{{- '<|' ~ m.role ~ '|>\n' ~ m.content }}{%- endif %}
{%- endfor %}{%- if add_generation_prompt %}{{- '<|assistant|>' }}{%- endif %}""",
    "llama3": r"""{{- bos_token }}{%- for m in messages %}
    {%- if m.tool_calls %}
        {%- if m.tool_calls | length != 1 %}{{- raise_exception('one call at a time') }}{%- endif %}
        {{- '<|start_header_id|>assistant<|end_header_id|>\n\n{"name": "' ~ m.tool_calls[0].function.name ~ '", "parameters": ' }}
        {{- m.tool_calls[0].function.arguments | tojson ~ '}<|eot_id|>' }}
    {%- else %}
        {{- '<|start_header_id|>' ~ ('ipython' if m.role == 'tool' else m.role) ~ '<|end_header_id|>\n\n' }}
        {%- if tools and m.role == 'user' %}{%- for tool in tools %}{{- tool | tojson(indent=4) ~ '\n\n' }}{%- endfor %}{%- endif %}
        {{- m.content | trim ~ '<|eot_id|>' }}
    {%- endif %}
{%- endfor %}{%- if add_generation_prompt %}{{- '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{%- endif %}""",
    "mistral old": r"""{{- bos_token }}{%- for m in messages %}
    {%- if m.role == 'user' %}
        {%- if tools %}{{- '[AVAILABLE_TOOLS] ' ~ tools | tojson ~ '[/AVAILABLE_TOOLS]' }}{%- endif %}
        {{- '[INST] ' ~ m.content ~ '[/INST]' }}
    {%- elif m.tool_calls %}
        {{- '[TOOL_CALLS] [' }}
        {%- for call in m.tool_calls %}
            {%- if call.id | length != 9 %}{{- raise_exception('ids have nine letters or digits') }}{%- endif %}
            {{- (call.function | tojson)[:-1] ~ ', "id": "' ~ call.id ~ '"}' }}{{- ', ' if not loop.last }}
        {%- endfor %}{{- ']' ~ eos_token }}
    {%- elif m.role == 'tool' %}{{- '[TOOL_RESULTS] {"content": ' ~ m.content ~ ', "call_id": "' ~ m.tool_call_id ~ '"}[/TOOL_RESULTS]' }}
    {%- else %}{{- ' ' ~ m.content ~ eos_token }}{%- endif %}
{%- endfor %}""",
    "mistral new": r"""{{- bos_token }}{%- if tools %}{{- '[AVAILABLE_TOOLS]' ~ tools | tojson ~ '[/AVAILABLE_TOOLS]' }}{%- endif %}
        {%- for m in messages %}
    {%- if m.role == 'user' %}{{- '[INST]' ~ m.content ~ '[/INST]' }}
    {%- elif m.role == 'tool' %}{{- '[TOOL_RESULTS]' ~ m.content ~ '[/TOOL_RESULTS]' }}
    {%- else %}
        {%- if m.reasoning_content %}{{- '[THINK]' ~ m.reasoning_content ~ '[/THINK]' }}{%- endif %}{{- m.content or '' }}
        {%- for call in m.tool_calls or [] %}{{- '[TOOL_CALLS]' ~ call.function.name ~ '[ARGS]' ~ call.function.arguments | tojson }}
        {%- endfor %}
        {{- eos_token }}
    {%- endif %}
{%- endfor %}""",
    "harmony": r"""{{- '<|start|>system<|message|># Valid channels: analysis, commentary, final.<|end|>' }}
{%- if tools %}{{- '<|start|>developer<|message|># Tools\n' ~ tools | tojson ~ '<|end|>' }}{%- endif %}
{%- for m in messages %}
    {%- if m.role == 'assistant' %}
        {%- if m.thinking %}{{- '<|start|>assistant<|channel|>analysis<|message|>' ~ m.thinking ~ '<|end|>' }}{%- endif %}
        {%- if m.tool_calls %}
            {%- if m.content %}{{- '<|start|>assistant<|channel|>commentary<|message|>' ~ m.content ~ '<|end|>' }}{%- endif %}
            {%- for call in m.tool_calls %}
                {{- '<|start|>assistant<|channel|>commentary to=functions.' ~ call.function.name ~ ' <|constrain|>json<|message|>' }}
                {{- call.function.arguments | tojson ~ '<|call|>' }}
            {%- endfor %}
        {%- else %}{{- '<|start|>assistant<|channel|>final<|message|>' ~ m.content ~ '<|return|>' }}{%- endif %}
    {%- elif m.role == 'tool' %}
        {{- '<|start|>functions.' ~ m.name ~ ' to=assistant<|channel|>commentary<|message|>' ~ m.content | tojson ~ '<|end|>' }}
    {%- else %}{{- '<|start|>' ~ m.role ~ '<|message|>' ~ m.content ~ '<|end|>' }}{%- endif %}
{%- endfor %}{%- if add_generation_prompt %}<|start|>assistant{%- endif %}""",
    "gemma4": r"""{{- bos_token }}{%- macro value(v) -%}
    {%- if v is string -%}{{- '<|"|>' ~ v ~ '<|"|>' }}
    {%- elif v is mapping -%}{{- '{' }}{%- for k, w in v | items -%}{{- k ~ ':' ~ value(w) }}{{- ',' if not loop.last }}{%- endfor -%}
        {{- '}' }}
    {%- elif v is iterable -%}{{- '[' }}{%- for w in v -%}{{- value(w) }}{{- ',' if not loop.last }}{%- endfor -%}{{- ']' }}
    {%- else -%}{{- v | tojson }}{%- endif -%}
{%- endmacro -%}
{%- if tools %}{{- '<|turn>system\n' }}{%- for tool in tools %}{{- '<|tool>' ~ tool | tojson ~ '<tool|>' }}{%- endfor %}{{- '<turn|>\n' }}
    {%- endif %}
{%- for m in messages %}
    {%- if m.role == 'tool' %}{{- '<|tool_response>' ~ m.content ~ '<tool_response|>' }}
    {%- else %}
        {{- '<|turn>' ~ ('model' if m.role == 'assistant' else m.role) ~ '\n' }}
        {%- if m.reasoning_content %}{{- '<|channel>thought\n' ~ m.reasoning_content ~ '<channel|>' }}{%- endif %}
        {{- m.content or '' }}
        {%- for call in m.tool_calls or [] %}
        {{- '<|tool_call>call:' ~ call.function.name ~ value(call.function.arguments) ~ '<tool_call|>' }}{%- endfor %}
        {{- '<turn|>\n' }}
    {%- endif %}
{%- endfor %}{%- if add_generation_prompt %}{{- '<|turn>model\n' }}{%- endif %}""",
    "functiongemma": r"""{{- bos_token }}{%- macro value(v) -%}
    {%- if v is string -%}{{- '<escape>' ~ v ~ '<escape>' }}
    {%- elif v is mapping -%}{{- '{' }}{%- for k, w in v | items -%}{{- k ~ ':' ~ value(w) }}{{- ',' if not loop.last }}{%- endfor -%}
        {{- '}' }}
    {%- elif v is iterable -%}{{- '[' }}{%- for w in v -%}{{- value(w) }}{{- ',' if not loop.last }}{%- endfor -%}{{- ']' }}
    {%- else -%}{{- v | tojson }}{%- endif -%}
{%- endmacro -%}
{%- if tools %}{{- '<start_of_turn>developer\n' }}{%- for tool in tools %}
    {{- '<start_function_declaration>' ~ tool.function.name ~ '<end_function_declaration>' }}{%- endfor %}{{- '<end_of_turn>\n' }}
        {%- endif %}
{%- for m in messages %}
    {%- if m.role == 'tool' %}{{- '<start_function_response>' ~ m.content ~ '<end_function_response>' }}
    {%- else %}
        {{- '<start_of_turn>' ~ ('model' if m.role == 'assistant' else m.role) ~ '\n' ~ (m.content or '') }}
        {%- for call in m.tool_calls or [] %}
            {{- '<start_function_call>call:' ~ call.function.name ~ value(call.function.arguments) ~ '<end_function_call>' }}
        {%- endfor %}
        {{- '<end_of_turn>\n' if not m.tool_calls }}
    {%- endif %}
{%- endfor %}{%- if add_generation_prompt %}{{- '<start_of_turn>model\n' }}{%- endif %}""",
    "deepseek r1": r"""{{- bos_token }}{%- if tools %}{{- '## Tools\n' ~ tools | tojson }}{%- endif %}
{%- for m in messages %}
    {%- if m.role == 'user' %}{{- '<｜User｜>' ~ m.content }}
    {%- elif m.role == 'tool' %}{{- '<｜tool▁outputs▁begin｜><｜tool▁output▁begin｜>' ~ m.content
        ~ '<｜tool▁output▁end｜><｜tool▁outputs▁end｜>' }}
    {%- else %}
        {{- '<｜Assistant｜>' }}{%- if m.reasoning_content %}{{- '<think>\n' ~ m.reasoning_content ~ '\n</think>\n\n' }}{%- endif %}
        {{- m.content or '' }}
        {%- for call in m.tool_calls or [] %}
            {{- '<｜tool▁calls▁begin｜>' if loop.first else '\n' }}
            {{- '<｜tool▁call▁begin｜>' ~ call.type ~ '<｜tool▁sep｜>' ~ call.function.name ~ '\n```json\n'
                ~ call.function.arguments | tojson
            ~ '\n```<｜tool▁call▁end｜>' }}
            {{- '<｜tool▁calls▁end｜>' if loop.last }}
        {%- endfor %}{{- '<｜end▁of▁sentence｜>' }}
    {%- endif %}
{%- endfor %}{%- if add_generation_prompt %}{{- '<｜Assistant｜>' }}{%- endif %}""",
    "deepseek v3.1": r"""{{- bos_token }}{%- if tools %}{{- '## Tools\n' ~ tools | tojson }}{%- endif %}
{%- for m in messages %}
    {%- if m.role == 'user' %}{{- '<｜User｜>' ~ m.content }}
    {%- elif m.role == 'tool' %}{{- '<｜tool▁output▁begin｜>' ~ m.content ~ '<｜tool▁output▁end｜>' }}
    {%- else %}
        {{- '<｜Assistant｜>' }}{%- if m.reasoning_content %}{{- '<think>' ~ m.reasoning_content }}{%- endif %}
        {{- '</think>' ~ (m.content or '') }}
        {%- for call in m.tool_calls or [] %}
            {{- '<｜tool▁calls▁begin｜>' if loop.first }}
            {{- '<｜tool▁call▁begin｜>' ~ call.function.name ~ '<｜tool▁sep｜>' ~ call.function.arguments | tojson
                ~ '<｜tool▁call▁end｜>' }}
            {{- '<｜tool▁calls▁end｜>' if loop.last }}
        {%- endfor %}{{- '<｜end▁of▁sentence｜>' }}
    {%- endif %}
{%- endfor %}{%- if add_generation_prompt %}{{- '<｜Assistant｜>' ~ ('<think>' if thinking else '</think>') }}{%- endif %}""",
    "granite": r"""{%- if tools %}{{- '<|start_of_role|>available_tools<|end_of_role|>' ~ tools | tojson ~ '<|end_of_text|>\n' }}
        {%- endif %}
{%- for m in messages %}
    {{- '<|start_of_role|>' ~ m.role ~ '<|end_of_role|>' }}
    {%- if m.reasoning_content %}{{- '<think>' ~ m.reasoning_content ~ '</think>' }}{%- endif %}{{- m.content or '' }}
    {%- if m.tool_calls %}
        {{- '<|tool_call|>[' }}{%- for call in m.tool_calls %}{{- call.function | tojson }}{{- ', ' if not loop.last }}{%- endfor %}
        {{- ']' }}
    {%- endif %}{{- '<|end_of_text|>\n' }}
{%- endfor %}{%- if add_generation_prompt %}{{- '<|start_of_role|>assistant<|end_of_role|>' }}{%- endif %}""",
    "command-r": r"""{{- bos_token }}{%- if tools %}
        {{- '<|START_OF_TURN_TOKEN|><|SYSTEM_TOKEN|>## Available Tools\n' ~ tools | tojson ~ '<|END_OF_TURN_TOKEN|>' }}{%- endif %}
{%- for m in messages %}
    {{- '<|START_OF_TURN_TOKEN|>' ~ {'user': '<|USER_TOKEN|>', 'assistant': '<|CHATBOT_TOKEN|>', 'tool': '<|SYSTEM_TOKEN|>'}[m.role]
        ~ (m.content or '') }}
    {%- if m.tool_calls %}
        {{- '\nAction: ```json\n[\n' }}
        {%- for call in m.tool_calls %}
            {{- '    {\n        "tool_name": "' ~ call.function.name ~ '",\n        "parameters": ' ~ call.function.arguments | tojson
            ~ '\n    }' }}{{- ',\n' if not loop.last }}
        {%- endfor %}{{- '\n]```' }}
    {%- endif %}{{- '<|END_OF_TURN_TOKEN|>' }}
{%- endfor %}{%- if add_generation_prompt %}{{- '<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>' }}{%- endif %}""",
    "command-a": r"""{{- bos_token }}{%- if tools %}
        {{- '<|START_OF_TURN_TOKEN|><|SYSTEM_TOKEN|>' ~ tools | tojson ~ '<|END_OF_TURN_TOKEN|>' }}{%- endif %}
{%- for m in messages %}
    {{- '<|START_OF_TURN_TOKEN|>' ~ {'user': '<|USER_TOKEN|>', 'assistant': '<|CHATBOT_TOKEN|>', 'tool': '<|SYSTEM_TOKEN|>'}[m.role] }}
    {%- if m.role != 'assistant' %}{{- m.content }}
    {%- else %}
        {%- if m.reasoning_content %}{{- '<|START_THINKING|>' ~ m.reasoning_content ~ '<|END_THINKING|>' }}{%- endif %}
        {%- if m.content %}{{- '<|START_RESPONSE|>' ~ m.content ~ '<|END_RESPONSE|>' }}{%- endif %}
        {%- if m.tool_calls %}
            {{- '<|START_ACTION|>[\n' }}
            {%- for call in m.tool_calls %}
                {{- '    {"tool_call_id": "' ~ loop.index0 ~ '", "tool_name": "' ~ call.function.name ~ '", "parameters": '
                ~ call.function.arguments | tojson ~ '}' }}{{- ',\n' if not loop.last }}
            {%- endfor %}{{- '\n]<|END_ACTION|>' }}
        {%- endif %}
    {%- endif %}{{- '<|END_OF_TURN_TOKEN|>' }}
{%- endfor %}{%- if add_generation_prompt %}{{- '<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>' }}{%- endif %}""",
    "kimi": r"""{%- if tools %}{{- '<|im_system|>tool_declare<|im_middle|>' ~ tools | tojson ~ '<|im_end|>' }}{%- endif %}
{%- for m in messages %}
    {{- '<|im_' ~ m.role ~ '|>' ~ m.role ~ '<|im_middle|>' }}
    {%- if m.reasoning_content %}{{- '<think>' ~ m.reasoning_content ~ '</think>' }}{%- endif %}{{- m.content or '' }}
    {%- if m.tool_calls %}
        {{- '<|tool_calls_section_begin|>' }}
        {%- for call in m.tool_calls %}
            {{- '<|tool_call_begin|>functions.' ~ call.function.name ~ ':' ~ loop.index0 ~ '<|tool_call_argument_begin|>'
            ~ call.function.arguments | tojson ~ '<|tool_call_end|>' }}
        {%- endfor %}{{- '<|tool_calls_section_end|>' }}
    {%- endif %}{{- '<|im_end|>' }}
{%- endfor %}{%- if add_generation_prompt %}{{- '<|im_assistant|>assistant<|im_middle|>' }}{%- endif %}""",
    "minimax": r"""{%- if tools %}{{- ']~b]system\n' ~ tools | tojson ~ '[e~[\n' }}{%- endif %}
{%- for m in messages %}
    {{- ']~b]' ~ ('ai' if m.role == 'assistant' else m.role) ~ '\n' }}
    {%- if m.reasoning_content %}{{- '<think>\n' ~ m.reasoning_content ~ '\n</think>\n\n' }}{%- endif %}{{- m.content or '' }}
    {%- if m.tool_calls %}
        {{- '\n<minimax:tool_call>\n' }}
        {%- for call in m.tool_calls %}
            {{- '<invoke name="' ~ call.function.name ~ '">\n' }}
            {%- for k, v in call.function.arguments | items %}{{- '<parameter name="' ~ k ~ '">' }}VALUE{{- '</parameter>\n' }}
            {%- endfor %}{{- '</invoke>\n' }}
        {%- endfor %}{{- '</minimax:tool_call>' }}
    {%- endif %}{{- '[e~[\n' }}
{%- endfor %}{%- if add_generation_prompt %}{{- ']~b]ai\n' }}{%- endif %}""".replace("VALUE", _VALUE),
    "nemotron": r"""{%- if tools %}{{- '<SPECIAL_10>System\n<AVAILABLE_TOOLS>' ~ tools | tojson ~ '</AVAILABLE_TOOLS>\n' }}{%- endif %}
{%- for m in messages %}
    {{- '<SPECIAL_11>' ~ m.role.replace('a', 'A', 1) ~ '\n' }}
    {%- if m.reasoning_content %}{{- '<think>\n' ~ m.reasoning_content ~ '\n</think>\n' }}{%- endif %}{{- m.content or '' }}
    {%- if m.tool_calls %}
        {{- '<TOOLCALL>[' }}{%- for call in m.tool_calls %}{{- call.function | tojson }}{{- ', ' if not loop.last }}{%- endfor %}
        {{- ']</TOOLCALL>' }}
    {%- endif %}{{- '\n' }}
{%- endfor %}{%- if add_generation_prompt %}{{- '<SPECIAL_11>Assistant\n' }}{%- endif %}""",
}

TEMPLATES |= {
    "llama4": TEMPLATES["llama3"].replace("<|start_header_id|>", "<|header_start|>").replace("_header_id|>", "|>").replace("eot_id", "eot"),
    **{
        name: _CHATML.replace("CALL", call)
        for name, call in (
            ("functionary", "{{- '<function=' ~ call.function.name ~ '>' ~ call.function.arguments | tojson ~ '</function>' }}"),
            (
                "hunyuan",
                "{{- ('<tool_calls>[' if loop.first else ', ') ~ call.function | tojson ~ (']</tool_calls>' if loop.last else '') }}",
            ),
            (
                "minimax m1",
                r"{{- '\n<tool_calls>\n' if loop.first }}{{- call.function | tojson ~ '\n' }}{{- '</tool_calls>' if loop.last }}",
            ),
            ("internlm 2", r"{{- '<|action_start|><|plugin|>\n' ~ call.function | tojson ~ '<|action_end|>' }}"),
            ("granite 20b", r"{{- '<function_call> ' ~ call.function | tojson ~ '\n' }}"),
            (
                "lfm2",
                r"""{{- '<|tool_call_start|>[' if loop.first else ', ' }}{{- call.function.name ~ '(' }}
            {%- for k, v in call.function.arguments | items %}{{- k ~ '=' }}
                {%- if v is string %}{{- "'" ~ v | replace('\\', '\\\\') | replace("'", "\\'") ~ "'" }}
                {%- else %}{{- v | tojson if v is mapping else v | string }}{%- endif %}{{- ', ' if not loop.last }}
            {%- endfor %}{{- ')' ~ (']<|tool_call_end|>' if loop.last else '') }}""",
            ),
        )
    },
}

TEMPLATES["command-a+"] = TEMPLATES["command-a"].replace("_RESPONSE|>", "_TEXT|>")
TEMPLATES["solar open"] = r"""{%- if tools %}{{- '<|begin|>system<|content|>## Tools\n' ~ tools | tojson ~ '<|end|>' }}{%- endif %}
{%- for m in messages %}
    {%- if m.role == 'assistant' %}
        {%- if m.reasoning %}{{- '<|begin|>assistant<|think|>' ~ m.reasoning ~ '<|end|>' }}{%- endif %}
        {%- if m.content %}{{- '<|begin|>assistant<|content|>' ~ m.content ~ '<|end|>' }}{%- endif %}
        {%- if m.tool_calls %}
            {{- '<|begin|>assistant<|tool_calls|>' }}
            {%- for call in m.tool_calls %}
                {{- '<|tool_call:begin|>' ~ call.id ~ '<|tool_call:name|>' ~ call.function.name ~ '<|tool_call:args|>' }}
                {{- call.function.arguments | tojson ~ '<|tool_call:end|>' }}
            {%- endfor %}{{- '<|calls|>' }}
        {%- endif %}
    {%- elif m.role == 'tool' %}{{- '<|begin|>tool<|tool_response|>' ~ m.content ~ '<|end|>' }}
    {%- else %}{{- '<|begin|>' ~ m.role ~ '<|content|>' ~ m.content ~ '<|end|>' }}{%- endif %}
{%- endfor %}{%- if add_generation_prompt %}{{- '<|begin|>assistant' }}{%- endif %}"""
TEMPLATES[
    "gigachat"
] = r"""{{- bos_token }}{%- if tools %}{{- 'function descriptions<|role_sep|>\n' ~ tools | tojson ~ '<|message_sep|>\n\n' }}
    {%- endif %}
{%- for m in messages %}
    {%- if m.tool_calls and m.tool_calls | length != 1 %}{{- raise_exception('one call at a time') }}{%- endif %}
    {{- ('function result' if m.role == 'tool' else m.role) ~ '<|role_sep|>\n' ~ (m.content or '') ~ '<|message_sep|>\n\n' }}
    {%- if m.tool_calls %}{{- 'function call<|role_sep|>\n' ~ m.tool_calls[0].function | tojson ~ '<|message_sep|>\n\n' }}{%- endif %}
{%- endfor %}{%- if add_generation_prompt %}{{- 'assistant<|role_sep|>\n' }}{%- endif %}"""
TEMPLATES["ernie thinking"] = TEMPLATES["hermes"].replace(
    "{{- m.content or '' }}", r"""{%- if m.content %}{{- '<response>\n' ~ m.content ~ '\n</response>\n' }}{%- endif %}"""
)
TEMPLATES["minicpm 5"] = _CHATML.replace(
    "CALL",
    r"""{{- '\n<function name="' ~ call.function.name ~ '">' }}{%- for k, v in call.function.arguments | items %}
        {{- '<param name="' ~ k ~ '">' }}VALUE{{- '</param>' }}{%- endfor %}{{- '</function>' }}""".replace("VALUE", _VALUE),
)
TEMPLATES["seed-oss"] = TEMPLATES["qwen3-coder"]
for _plain, _seed in (
    ("<think>\\n", "<seed:think>"), ("\\n</think>", "</seed:think>"), ("tool_call>", "seed:tool_call>"), ("</seed:", "</seed:"),
    (">\\n' }}{{- (v", ">' }}{{- (v"), ("\\n</parameter>", "</parameter>"),
):  # fmt: skip
    TEMPLATES["seed-oss"] = TEMPLATES["seed-oss"].replace(_plain, _seed)
TEMPLATES["deepseek v3.2"] = _CHATML.replace(
    "CALL",
    r"""{{- '\n\n<｜DSML｜function_calls>\n' if loop.first }}{{- '<｜DSML｜invoke name="' ~ call.function.name ~ '">\n' }}
            {%- for k, v in call.function.arguments | items %}
                {{- '<｜DSML｜parameter name="' ~ k ~ '" string="' ~ ('true' if v is string else 'false') ~ '">' }}
                {{- v if v is string else v | tojson }}{{- '</｜DSML｜parameter>\n' }}
            {%- endfor %}{{- '</｜DSML｜invoke>\n' }}{{- '</｜DSML｜function_calls>' if loop.last }}""",
)
TEMPLATES["apriel"] = _CHATML.replace(
    "CALL", "{{- ('\\n<tool_calls>[' if loop.first else ', ') ~ call.function | tojson ~ (']</tool_calls>' if loop.last else '') }}"
)
for _plain, _own in (("<think>\\n", "Here are my reasoning steps:\\n"), ("</think>\\n\\n", "[BEGIN FINAL RESPONSE]\\n")):
    TEMPLATES["apriel"] = TEMPLATES["apriel"].replace(_plain, _own)
TEMPLATES["gigachat 3.1"] = (
    TEMPLATES["gigachat"]
    .replace("'function call<|role_sep|>\\n'", "'<|function_call|>'")
    .replace("(m.content or '') ~ '<|message_sep|>\\n\\n' }}", "(m.content or '') }}{{- '<|message_sep|>\\n\\n' if not m.tool_calls }}")
)
TEMPLATES["lfm2"] = TEMPLATES["lfm2"].replace(r"# Tools\n", "List of tools: ")

_LISTED = r"""{{- '[' if loop.first else ', ' }}CALL{{- ']' if loop.last }}"""
TEMPLATES["pythonic"] = _CHATML.replace(
    "CALL",
    _LISTED.replace(
        "CALL",
        r"""{{- call.function.name ~ '(' }}{%- for k, v in call.function.arguments | items %}
            {{- k ~ '=' ~ v | tojson ~ (', ' if not loop.last else '') }}{%- endfor %}{{- ')' }}""",
    ),
).replace(r"# Tools\n", r"Write [func_name1(name=value)]\n")
TEMPLATES["xlam"] = _CHATML.replace(
    "CALL",
    _LISTED.replace(
        "CALL",
        r"""{{- '{"name": "' ~ call.function.name ~ '", "arguments": ' ~ call.function.arguments | tojson ~ '}' }}""",
    ),
).replace(r"# Tools\n", r"Write a single JSON array.\n")
_FUNCTOOLS = "{{- ' functools' if loop.first }}" + _LISTED.replace("CALL", "{{- call.function | tojson }}")
TEMPLATES["functools"] = _CHATML.replace("CALL", _FUNCTOOLS)
TEMPLATES["functools"] = TEMPLATES["functools"].replace(r"# Tools\n", r"Write functools[...]\n")
TEMPLATES["apertus"] = r"""{{- bos_token }}{%- if tools %}{{- '<|developer_start|>' ~ tools | tojson ~ '<|developer_end|>' }}{%- endif %}
{%- for m in messages %}
    {%- if m.role == 'assistant' %}
        {{- '<|assistant_start|>' }}
        {%- if m.reasoning_content %}{{- '<|inner_prefix|>' ~ m.reasoning_content ~ '<|inner_suffix|>' }}{%- endif %}{{- m.content or '' }}
        {%- for call in m.tool_calls or [] %}
            {{- '<|tools_prefix|>[' if loop.first else ', ' }}
            {{- '{"' ~ call.function.name ~ '": ' ~ call.function.arguments | tojson ~ '}' }}{{- ']<|tools_suffix|>' if loop.last }}
        {%- endfor %}{{- '<|assistant_end|>' }}
    {%- elif m.role == 'tool' %}{{- '[' ~ m.content ~ ']' }}
    {%- else %}{{- '<|user_start|>' ~ m.content ~ '<|user_end|>' }}{%- endif %}
{%- endfor %}{%- if add_generation_prompt %}{{- '<|assistant_start|>' }}{%- endif %}"""
TEMPLATES["kimi k3"] = r"""{%- macro open(tag) -%}{{- '<|open|>' ~ tag ~ '<|sep|>' }}{%- endmacro -%}
{%- macro close(tag) -%}{{- '<|close|>' ~ tag ~ '<|sep|>' }}{%- endmacro -%}
{%- macro kind(v) -%}{%- if v is boolean -%}boolean{%- elif v is none -%}null{%- elif v is number -%}number{%- elif v is string -%}string
    {%- elif v is mapping -%}object{%- else -%}array{%- endif -%}{%- endmacro -%}
{%- if tools %}{{- open('message role="system" type="tool-declare"') ~ tools | tojson ~ close('message') ~ '<|end_of_msg|>' }}{%- endif %}
{%- for m in messages %}
    {{- open('message role="' ~ m.role ~ '"') }}
    {%- if m.role == 'assistant' %}
        {{- open('think') ~ m.reasoning_content ~ close('think') if m.reasoning_content }}
        {{- open('response') ~ (m.content or '') ~ close('response') }}
        {%- for call in m.tool_calls or [] %}
            {{- open('tools') if loop.first }}{{- open('call tool="' ~ call.function.name ~ '" index="' ~ loop.index ~ '"') }}
            {%- for k, v in call.function.arguments | items %}
                {{- open('argument key="' ~ k ~ '" type="' ~ kind(v) ~ '"') ~ (v if v is string else v | tojson) ~ close('argument') }}
            {%- endfor %}{{- close('call') }}{{- close('tools') if loop.last }}
        {%- endfor %}
    {%- else %}{{- m.content }}{%- endif %}{{- close('message') ~ '<|end_of_msg|>' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- open('message role="assistant"') ~ open('think' if thinking else 'response') }}{%- endif %}"""
TEMPLATES["muse glimmer"] = r"""{{- '<|start|>system<|message|># Valid recipients: "self", "user".' }}{%- if tools %}{{- tools | tojson }}
    {%- endif %}{{- '<|eot|>' }}
{%- for m in messages %}
    {%- if m.role == 'assistant' %}
        {%- if m.reasoning_content %}{{- '<|start|>assistant to=self<|message|>' ~ m.reasoning_content ~ '<|eom|>' }}{%- endif %}
        {%- if m.content %}
            {{- '<|start|>assistant to=user<|message|>' ~ m.content ~ ('<|eom|>' if m.tool_calls else '<|eot|>') }}{%- endif %}
        {%- for call in m.tool_calls or [] %}
            {{- '<|start|>assistant to=' ~ call.function.name ~ '<|message|><atem:function_calls>\n<atem:invoke name="' }}
            {{- call.function.name ~ '">\n' }}
            {%- for k, v in call.function.arguments | items %}
                {{- '<atem:parameter name="' ~ k ~ '">' ~ (v if v is string else v | tojson) ~ '</atem:parameter>\n' }}
            {%- endfor %}{{- '</atem:invoke>\n</atem:function_calls>' ~ ('<|eot|>' if loop.last else '<|eom|>') }}
        {%- endfor %}
    {%- else %}{{- '<|start|>' ~ m.role ~ '<|message|>' ~ m.content ~ '<|eot|>' }}{%- endif %}
{%- endfor %}{%- if add_generation_prompt %}{{- '<|start|>assistant' }}{%- endif %}"""
TEMPLATES["minimax m3"] = r"""{%- set mark = ']<]minimax[>[' -%}
{%- macro tag(k, v) -%}
    {{- mark ~ '<' ~ k ~ '>' }}
    {%- if v is mapping %}{%- for name, w in v | items %}{{- tag(name, w) }}{%- endfor %}
    {%- elif v is string %}{{- v }}
    {%- elif v is iterable %}{%- for w in v %}{{- tag('item', w) }}{%- endfor %}
    {%- else %}{{- v | tojson }}{%- endif %}{{- mark ~ '</' ~ k ~ '>' }}
{%- endmacro -%}
{%- if tools %}{{- ']~b]system\n' ~ tools | tojson ~ '[e~[\n' }}{%- endif %}
{%- for m in messages %}
    {{- ']~b]' ~ ('ai' if m.role == 'assistant' else m.role) ~ '\n' }}
    {%- if m.reasoning_content %}{{- '<mm:think>' ~ m.reasoning_content ~ '</mm:think>' }}{%- endif %}{{- m.content or '' }}
    {%- for call in m.tool_calls or [] %}
        {{- mark ~ '<tool_call>\n' if loop.first }}{{- mark ~ '<invoke name="' ~ call.function.name ~ '">' }}
        {%- for k, v in call.function.arguments | items %}{{- tag(k, v) }}{%- endfor %}
        {{- mark ~ '</invoke>\n' }}{{- mark ~ '</tool_call>' if loop.last }}
    {%- endfor %}{{- '[e~[\n' }}
{%- endfor %}{%- if add_generation_prompt %}{{- ']~b]ai\n' }}{%- endif %}"""

# Tokens that end an answer. The engine stops at them, and they are not part of the text.
ENDS = (
    "<|im_end|>", "<|eot_id|>", "</s>", "<turn|>", "<end_of_turn>", "<｜end▁of▁sentence｜>", "<|end_of_text|>", "<|END_OF_TURN_TOKEN|>",
    "<|return|>", "<|call|>", "[e~[", "<|endoftext|>", "<|eot|>", "<|end|>", "<|calls|>", "<|message_sep|>",
    "<|assistant_end|>", "<|end_of_msg|>",
)  # fmt: skip

# Templates that do not write reasoning.
NO_REASONING = ("llama3", "llama4", "mistral old", "functiongemma", "command-r", "gigachat", "gigachat 3.1")
NO_CONTENT_BESIDE_CALLS = ("llama3", "llama4", "mistral old")


def reasons_as(name: str) -> str:
    return {"harmony": "thinking", "solar open": "reasoning"}.get(name, "reasoning_content")


def chats() -> Iterator[tuple[str, str, list[dict[str, Any]], dict[str, Any]]]:
    """Yields (template, kind of answer, messages, variables). The messages are a question, with an answer, and with what follows the answer
    (results of tools, or another question)."""
    for name in TEMPLATES:
        yield name, "", [USER], {"add_generation_prompt": True}
        yield name, "", [USER], {"add_generation_prompt": True, "enable_thinking": True, "thinking": True}
        yield name, "", [USER], {"add_generation_prompt": True, "enable_thinking": False}
        for kind, given in ANSWERS.items():
            answer = dict(given)
            if "reasoning_content" in answer:
                answer[reasons_as(name)] = answer.pop("reasoning_content")
            yield name, kind, [USER, answer], {}
            said = [
                {"role": "tool", "tool_call_id": call["id"], "name": call["function"]["name"], "content": "dry"}
                for call in answer.get("tool_calls", [])
            ]
            yield name, kind, [USER, answer, *said, *([] if said else [USER])], {"add_generation_prompt": True}


def golden() -> Iterator[str | None]:
    """Yields the prompt that transformers makes from each of chats(), or None if the template refuses the messages."""
    last = ""
    for row in json.loads((GOLDENS / "tools.json").read_text()):
        last = last if row is None else last[: row[0]] + row[1]
        yield None if row is None else last
