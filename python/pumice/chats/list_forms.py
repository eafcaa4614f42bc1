"""Answer formats in which a model writes all calls of an answer as one list, in JSON or in Python."""

from __future__ import annotations

from .answer_forms import NAMED, Row, Written, shape

LIST_ROWS: tuple[Row, ...] = (
    Row(
        "Apertus (<|tools_prefix|>[{name: ...}])",
        ("<|tools_prefix|>",),
        shape(
            reasoning={"open": "<|inner_prefix|>", "close": "<|inner_suffix|>"},
            open="<|tools_prefix|>",
            close="<|tools_suffix|>",
            content="json-by-name",
        ),
        Written('{"%json_name%": %arguments%}', before="<|tools_prefix|>[", between=", ", after="]<|tools_suffix|>"),
    ),
    Row(
        "Firefunction 2, Phi 4 mini (functools[...])",
        ("functools[",),
        shape(open_pattern=r"functools\s*(?=\[)"),
        Written("functools%calls%"),
    ),
    Row(
        "xLAM ([{name: ..., arguments: ...}])",
        ("single JSON array", '"arguments": '),
        shape(
            open_pattern=r'[\[,]\s*\{\s*"name"\s*:\s*"(?P<name>[^"\n]+)"\s*,\s*"arguments"\s*:\s*(?=\{)',
            close_pattern=r'\}\s*(?:\]\s*$|$|(?=,\s*\{\s*"name"\s*:\s*"[^"\n]+"\s*,\s*"arguments"\s*:))',
            transform=NAMED,
        ),
        Written('{"name": "%json_name%", "arguments": %arguments%}', before="[", between=", ", after="]", first=True),
    ),
    Row(
        "Llama 3.2 and 4, Gemma 3, ToolACE in Python ([f(a=1)])",
        ("[func_name1(",),
        shape(
            open_pattern=r"(?:<\|python_start\|>\s*)?\[\s*(?=[A-Za-z_][\w.-]*\s*\(\s*(?:\)|[A-Za-z_][\w-]*\s*=))",
            close_pattern=r"\]\s*(?:<\|python_end\|>|$)",
            content="python",
        ),
        Written("%name%(%keywords%)", before="[", between=", ", after="]", first=True),
    ),
)
