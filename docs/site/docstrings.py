"""Reads the docstrings of the package, and turns them into reStructuredText for Sphinx. The test of docstrings uses parse() too.

A docstring has paragraphs, indented blocks of code, and items, which explain arguments or fields:

    name: text, whose further lines
        are indented.
    one, other (0: off): text for two names.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Collection
from typing import Any

_ITEM = re.compile(r"(\w+(?: \([^)]*\))?(?:, \w+(?: \([^)]*\))?)*): +(\S.*)")
_NAME = re.compile(r"(\w+)(?: \([^)]*\))?(?:, )?")


@dataclasses.dataclass
class Block:
    """A paragraph (no names, text), an item (names, text) or code (no names, lines that keep their indentation)."""

    text: str
    names: tuple[str, ...] = ()
    head: str = ""  # the names as the docstring has them, with what is in brackets
    code: bool = False


def parse(docstring: str, names: Collection[str]) -> list[Block]:
    """Returns the blocks of a docstring. A line is the beginning of an item if all that stands before its colon is in `names`."""
    blocks: list[Block] = []
    open_block = False  # whether the next line may go on with the last block
    for line in docstring.splitlines():
        found = _ITEM.fullmatch(line)
        told = tuple(_NAME.findall(found[1])) if found else ()
        last = blocks[-1] if open_block else None
        if not line.strip():
            open_block = bool(blocks) and blocks[-1].code
            if open_block:
                blocks[-1].text += "\n"
        elif found and told and set(told) <= set(names):
            blocks.append(Block(found[2], told, found[1]))
            open_block = True
        elif line.startswith("    ") and last is not None and not last.code:
            last.text += " " + line.strip()
        elif line.startswith("    "):
            if last is None:
                blocks.append(Block(line, code=True))
            else:
                last.text += "\n" + line
            open_block = True
        elif last is not None and not last.code and not last.names:
            last.text += " " + line
        else:
            blocks.append(Block(line))
            open_block = True
    return blocks


def is_result(value: Any) -> bool:
    """Returns whether a value is a class that users do not construct: all but those of pumice.arrow."""
    return inspect.isclass(value) and not value.__module__.startswith("pumice.arrow")


def names_of(value: Any) -> list[str]:
    """Returns what items of the docstring may explain: the parameters of a call, or the fields and attributes of a result."""
    if not is_result(value):
        return [name for name in inspect.signature(value).parameters if name not in ("self", "cls")]
    found: list[str] = []
    for base in value.__mro__:
        if base.__module__.startswith("pumice"):
            found += [*vars(base).get("__annotations__", {}), *_set_in_init(base)]
    return [name for name in dict.fromkeys(found) if not name.startswith("_")]


def _set_in_init(value: type) -> list[str]:
    """Returns the attributes that __init__ sets."""
    initialiser = vars(value).get("__init__")
    if not inspect.isfunction(initialiser) or initialiser.__code__.co_filename.startswith("<"):  # that of a dataclass has no source
        return []
    return re.findall(r"self\.([a-z]\w*)(?:: [^=\n]+)? = ", inspect.getsource(initialiser))


# ---------------------------------------------------------------- reStructuredText
_SPAN = re.compile(
    r"`([^`]+)`"  # code
    r"|(?<![\w.\"'])((?:pumice\.)?[A-Za-z_]\w*\(\))"  # a call without arguments
    r"|(?<![\w.\"'])([A-Z]\w+)(?![\w\"'])"  # a word that may be a class
    r"|(docs/[\w/-]+\.md(?:#[\w-]+)?)"  # a page
    r"|([*_|\\])"  # what would be markup
)
_BEFORE, _AFTER = " -/'\"<([{", " .,;:!?-/'\")]}>"  # characters between which reStructuredText finds markup


def _targets() -> dict[str, str]:
    """Returns the full name of each public name, as the text of docstrings has it: load(), encode(), Generation."""
    import pumice

    found = {f"{name}()": f"pumice.Model.{name}" for name in dir(pumice.Model) if not name.startswith("_")}
    for name in pumice.__all__:
        value = getattr(pumice, name)
        found[f"pumice.{name}()"] = f"pumice.{name}"
        if inspect.isclass(value):
            found[name] = f"pumice.{name}"
        else:
            found.setdefault(f"{name}()", f"pumice.{name}")
    return found


class _Writer:
    def __init__(self) -> None:
        self._known = _targets()

    def inline(self, text: str, own: str) -> str:
        """Returns a text with what is code as code, and with links to pages and public names, but not to `own`."""

        def markup(found: re.Match[str]) -> str:
            code, call, name, page, special = found.groups()
            if code:
                return f"``{code}``"
            if page:
                file, _, anchor = page.partition(".md#")
                # A heading of Markdown is no target of reStructuredText. The pages with docstrings are in docs/reference.
                return f"`{page} <..{file.removeprefix('docs')}.html#{anchor}>`__" if anchor else f":doc:`{page} </{page[:-3]}>`"
            if special:
                return f"\\{special}"
            said = call or name
            full = self._known.get(said)
            if full and full != own:
                return f":py:obj:`{said} <{full}>`"
            return f"``{said}``" if call else said.replace("_", "\\_")

        def spaced(found: re.Match[str]) -> str:
            marked = markup(found)
            if not marked.endswith(("`", "`__")):
                return marked
            before, after = text[found.start() - 1 : found.start()], text[found.end() : found.end() + 1]
            return ("" if before in _BEFORE else "\\ ") + marked + ("" if after in _AFTER else "\\ ")

        return _SPAN.sub(spaced, text)

    def lines(self, docstring: str, value: Any, own: str) -> list[str]:
        """Returns the lines of a docstring as reStructuredText."""
        out: list[str] = []
        for block in parse(docstring, names_of(value) if callable(value) else ()):
            if block.code:
                out += ["::", "", *block.text.rstrip().splitlines(), ""]
            elif block.names and is_result(value):
                first, *others = block.names
                out += [f".. py:attribute:: {first}", *(f"                  {other}" for other in others), ""]
                out += [f"   {self.inline(block.text, own)}", ""]
            elif block.names:
                head = _NAME.sub(lambda m: m[0].replace(m[1], f"**{m[1]}**", 1), block.head)
                out += [head, f"    {self.inline(block.text, own)}", ""]
            else:
                out += [self.inline(block.text, own), ""]
        return out


def setup(app: Any) -> dict[str, Any]:
    writer: list[_Writer] = []

    def docstring(app: Any, what: str, name: str, value: Any, options: Any, lines: list[str]) -> None:
        writer[:] = writer or [_Writer()]
        about = value.fget if isinstance(value, property) else value
        lines[:] = writer[0].lines("\n".join(lines), about, name)

    def signature(app: Any, what: str, name: str, value: Any, options: Any, said: str, returned: str) -> tuple[str, str] | None:
        if said and is_result(value):
            return "", ""
        return (said, "") if returned == "Any" else None  # the docstring says more

    app.connect("autodoc-process-docstring", docstring)
    app.connect("autodoc-process-signature", signature)
    return {"parallel_read_safe": True}
