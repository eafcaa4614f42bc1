"""Writes tests/goldens/tools.json: the prompts that transformers renders for conversations with tools. Needs transformers.

python tests/make_tool_goldens.py
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import jinja2
from transformers.utils.chat_template_utils import render_jinja_template

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE / "python" / "support"))

from tool_templates import TEMPLATES, TOOLS, chats  # noqa: E402

OUT = HERE / "goldens" / "tools.json"


def main() -> None:
    prompts = []
    for name, _, messages, variables in chats():
        try:
            rendered, _ = render_jinja_template(
                [messages], tools=TOOLS, chat_template=TEMPLATES[name], bos_token="<bos>", eos_token="</s>", **variables
            )
            prompts.append(rendered[0])
        except jinja2.TemplateError:
            prompts.append(None)
    # For each prompt: how many characters at its beginning are those of the previous prompt, and the rest of the prompt. None if it raises.
    rows: list[tuple[int, str] | None] = []
    last = ""
    for prompt in prompts:
        shared = len(os.path.commonprefix([last, prompt or ""]))
        rows.append(None if prompt is None else (shared, prompt[shared:]))
        last = prompt or last
    OUT.write_text("[\n" + ",\n".join(json.dumps(row, ensure_ascii=False) for row in rows) + "\n]\n")


if __name__ == "__main__":
    main()
