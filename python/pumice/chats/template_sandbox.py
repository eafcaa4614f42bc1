"""Runs untrusted Jinja templates in a sandbox that also limits time, memory and output.

Jinja's sandbox keeps a template from reaching Python, but it limits neither time nor memory (its documentation says so). Here a meter is
called at each loop step, call, filter, test, comparison and operator, and before any value that can be large is made. The meter counts
steps and the processor time of the current thread. So it works in any thread, and a busy machine does not make it stop a template earlier.
"""

from __future__ import annotations

import functools
import json
import operator
import re
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from types import BuiltinMethodType
from typing import Any, NoReturn

import jinja2
from jinja2 import ext, filters, meta, nodes, runtime, sandbox, tests, visitor
from jinja2.exceptions import SecurityError
from markupsafe import escape

from ..errors import ChatTemplateError

FIX = "Pass chat_template= with the text of a Jinja template (or a path to one)."

MAX_SOURCE = 256 << 10  # bytes
MAX_OUTPUT = 8 << 20  # characters
MAX_VOLUME = 48 << 20  # bytes of all strings and lists that a rendering makes
# Maximum weight of one value. The weight is the number of characters plus ITEM_WEIGHT per item, as if the value were written out in full.
MAX_WEIGHT = 16 << 20
ITEM_WEIGHT = 64  # about the size of one item in bytes
MAX_ITEMS = 1 << 18  # maximum number of pieces that one split may make
MAX_STEPS = 1_000_000
MAX_SECONDS = 1.0  # processor time of the rendering thread
MAX_CALL_DEPTH = 64
MAX_TREE_DEPTH = 100
# Maximum number of tokens of the source. They are counted before the parser runs, because parsing takes longer.
MAX_TOKENS = 60_000
MAX_TREE_NODES = 20_000  # compiling a tree of this size takes half a second
# Maximum length in characters of a text that a filter searches with regular expressions.
MAX_REGEX_TEXT = 1 << 18
# Maximum number of comparisons of characters in one search from the end of a text, or one strip: 0.05 s.
MAX_WORK = 1 << 28
# Maximum length of a text with characters beyond ASCII of which the case is changed. Python takes up to 12 bytes a character for it.
MAX_CASED = 1 << 22
MAX_WIDTH = 4096  # maximum padding or indentation in characters


def _words(text: str) -> list[str]:
    return text.split()


class _Stop(jinja2.TemplateError):
    """Raised when a limit is reached."""


class _Meter:
    """Counts the steps, memory and time of one rendering, and raises _Stop when a limit is reached."""

    def __init__(self) -> None:
        self.steps = 0
        self.volume = 0
        self.depth = 0
        self.end = time.thread_time() + MAX_SECONDS

    def step(self, count: int = 1) -> None:
        before = self.steps
        self.steps += count
        if self.steps > MAX_STEPS:
            raise _Stop(f"it takes more than {MAX_STEPS} steps")
        if before >> 5 != self.steps >> 5 and time.thread_time() > self.end:
            raise _Stop(f"it takes more than {MAX_SECONDS:g} s")

    def room(self, size: int, what: str) -> None:
        """Raises _Stop if there is no room for a new value of `size` bytes. Must be called before the value is made."""
        if size > MAX_WEIGHT or self.volume + size > MAX_VOLUME:
            raise _Stop(f"{what} would take {size} bytes")

    def produced(self, value: Any) -> Any:
        """Adds the size of a new value to the template's total and returns the value. Raises _Stop if the total exceeds MAX_VOLUME."""
        if isinstance(value, str | list | tuple | dict):
            self.volume += sys.getsizeof(value)
            if self.volume > MAX_VOLUME:
                raise _Stop(f"it makes more than {MAX_VOLUME} bytes of text and lists")
        return value

    def weigh(self, value: Any) -> Any:
        """Refuses values that are small in memory but huge when written out, such as a list that contains a second list twice, which
        contains a third list twice, and so on. Returns the value."""
        weight, items, waiting = 0, 0, [value]
        while waiting:
            item = waiting.pop()
            weight += ITEM_WEIGHT
            items += 1
            if not items & 63:
                self.step(8)
            if isinstance(item, str):
                weight += len(item)
            else:
                waiting += _inside(item)
            if weight + ITEM_WEIGHT * len(waiting) > MAX_WEIGHT:
                raise _Stop(f"it makes a value of more than {MAX_WEIGHT} characters")
        return value

    def text(self, value: Any) -> str:
        """Returns str(value). Raises _Stop before, if the text is too long."""
        if isinstance(value, str):
            return str(value)
        self.weigh(value)
        size, waiting = 0, [value]
        while waiting:
            item = waiting.pop()
            if isinstance(item, str):
                # A character may be written as up to ten, such as \U000e0001.
                size += len(item) + item.count("\\") + item.count("'") if item.isprintable() else 10 * len(item)
            elif callable(item) and not isinstance(item, _PRINTABLE):
                raise SecurityError("a function cannot be printed")  # its text may have an address of the process's memory
            else:
                waiting += _inside(item)
        self.room(size, "a text")
        return str(value)


_LISTS: tuple[type, ...] = (list, tuple, type({}.keys()), type({}.values()), type({}.items()))
_PRINTABLE = (runtime.Macro, runtime.LoopContext, runtime.TemplateReference, runtime.Undefined)  # callable, and printed by name


def _inside(value: Any) -> Iterable[Any]:
    """Returns the values that a value holds and that its text has."""
    if isinstance(value, dict):
        return [*value.keys(), *value.values()]
    if isinstance(value, jinja2.utils.Namespace):
        return _inside(value._Namespace__attrs)
    held: Iterable[Any] = value if isinstance(value, _LISTS) else ()  # type: ignore[assignment]
    return held


_rendering = threading.local()


def _meter() -> _Meter:
    return _rendering.meter  # type: ignore[no-any-return]


# ---- guarded operations ----------------------------------------------------------------------------------------


_SIZED = (str, list, tuple)


def _add(left: Any, right: Any) -> Any:
    if isinstance(left, _SIZED) and isinstance(right, _SIZED):
        _meter().room(sys.getsizeof(left) + sys.getsizeof(right), "a sum")
        joined = _meter().produced(operator.add(left, right))
        return joined if isinstance(joined, str) else _meter().weigh(joined)
    return _number(left + right)


def _multiply(left: Any, right: Any) -> Any:
    for repeated, times in ((left, right), (right, left)):
        if isinstance(repeated, str | list | tuple) and isinstance(times, int):
            _meter().room(max(len(repeated), 1) * max(times, 0) * (8 if not isinstance(repeated, str) else 1), "a repetition")
            result = _meter().produced(repeated * times)
            return result if isinstance(result, str) else _meter().weigh(result)
    if isinstance(left, int) and isinstance(right, int) and left.bit_length() + right.bit_length() > 4096:
        raise _Stop("a product is too large")
    return left * right


def _power(left: Any, right: Any) -> Any:
    if isinstance(left, int) and isinstance(right, int) and left.bit_length() * abs(right) > 4096:
        raise _Stop("a power is too large")
    return left**right


def _modulo(left: Any, right: Any) -> Any:
    if isinstance(left, str):
        _check_format(left, "%", right if isinstance(right, tuple) else (right,))
        return _meter().produced(left % right)
    return left % right


def _number(value: Any) -> Any:
    if isinstance(value, int) and value.bit_length() > 4096:
        raise _Stop("a number is too large")
    return value


def _check_format(text: str, mark: str, values: Iterable[Any]) -> None:
    """Checks the size of a text before formatting makes it, because formatting can repeat values and pad them."""
    if re.search(r"\d{4}|\*|\{[^{}]+\{", text.replace("{{", "")) and mark in text:
        raise _Stop("a format has a width that is too large")
    total = sum(16 + (len(v) if isinstance(v, str) else len(_meter().text(v))) for v in values)
    _meter().room(len(text) + text.count(mark) * (total + 1000), "a formatted text")


def _check_replace(text: str, old: str, new: str, *_: Any) -> None:
    if isinstance(old, str) and isinstance(new, str):
        places = text.count(old) if old else len(text) + 1
        _meter().room(len(text) + places * len(new), "a replacement")


def _check_join(separator: str, items: Any) -> None:
    characters = len(items) if isinstance(items, str) else sum(len(i) for i in items if isinstance(i, str))
    _meter().room(characters + len(separator) * len(items), "a join")


def _check_work(text: str, part: Any = None, *_: Any) -> None:
    """Checks the time of a method that may compare each character of a text with each one of `part`: searches from the end, and strip."""
    if isinstance(part, str):
        work = len(text) * len(part)
        if work > MAX_WORK:
            raise _Stop(f"a search compares more than {MAX_WORK} characters")
        _meter().step(work >> 14)


def _check_split(text: str, separator: Any = None, *_: Any, **named: Any) -> None:
    separator = named.get("sep", separator)
    pieces = text.count(separator) if isinstance(separator, str) and separator else len(text) // 4
    if pieces > MAX_ITEMS:
        raise _Stop(f"a split makes more than {MAX_ITEMS} pieces")
    _meter().room(len(text) + 50 * pieces, "a split")
    _meter().volume += len(text) + 50 * pieces


def _check_rsplit(text: str, separator: Any = None, *rest: Any, **named: Any) -> None:
    _check_work(text, named.get("sep", separator))
    _check_split(text, separator, *rest, **named)


def _check_case(text: str, *_: Any) -> None:
    if len(text) > MAX_CASED and not text.isascii():
        raise _Stop(f"the case of a text of more than {MAX_CASED} characters is changed")


def _check_width(text: str, width: Any = 0, *_: Any) -> None:
    if isinstance(width, int) and width > MAX_WIDTH:
        raise _Stop(f"a width is over {MAX_WIDTH}")


_STRING_METHODS: dict[str, Callable[..., None] | None] = {
    **dict.fromkeys(
        _words(
            "count endswith find index isalnum isalpha isascii isdecimal isdigit isidentifier islower isnumeric isprintable "
            "isspace istitle isupper partition removeprefix removesuffix startswith format format_map"
        )
    ),
    "replace": _check_replace,
    "join": _check_join,
    **dict.fromkeys(["strip", "lstrip", "rstrip", "rfind", "rindex", "rpartition"], _check_work),
    **dict.fromkeys(["capitalize", "casefold", "lower", "swapcase", "title", "upper"], _check_case),
    **dict.fromkeys(["split", "splitlines"], _check_split),
    "rsplit": _check_rsplit,
    **dict.fromkeys(["center", "ljust", "rjust", "zfill"], _check_width),
}
_METHODS: tuple[tuple[type | tuple[type, ...], frozenset[str]], ...] = (
    (str, frozenset(_STRING_METHODS)),
    (dict, frozenset({"get", "items", "keys", "values", "copy"})),
    ((list, tuple), frozenset({"count", "index", "copy"})),
    (
        runtime.LoopContext,
        frozenset(_words("index index0 revindex revindex0 first last length depth depth0 previtem nextitem cycle changed")),
    ),
    (runtime.Macro, frozenset({"name", "arguments"})),
    (filters._GroupTuple, frozenset({"grouper", "list"})),
)


class _Format:
    """The format method of a string, with a check of the size. A template may call it or pass it to a filter."""

    def __init__(self, text: str, format_safely: Callable[..., str]) -> None:
        self._text, self._format = text, format_safely

    def __call__(self, *args: Any, **kwargs: Any) -> str:
        _check_format(self._text, "{", (*args, *kwargs.values()))
        return self._format(*args, **kwargs)

    def __repr__(self) -> str:
        return "format"


class _Namespace(jinja2.utils.Namespace):
    """A namespace that refuses names with a leading underscore, because these belong to Python."""

    def __init__(*args: Any, **kwargs: Any) -> None:
        self, given = args[0], dict(*args[1:], **kwargs)
        for name in given:
            _Namespace._check(name)
        _meter().weigh(given)
        jinja2.utils.Namespace.__init__(self, given)

    def __setitem__(self, name: str, value: Any) -> None:
        _Namespace._check(name)
        super().__setitem__(name, value)

    @staticmethod
    def _check(name: Any) -> None:
        if not isinstance(name, str) or name.startswith("_"):
            raise SecurityError(f"a namespace cannot hold the name {name!r}")


# ---- filters ---------------------------------------------------------------------------------------------------


def _metered(items: Any) -> Iterator[Any]:
    meter = _meter()
    for item in items:
        meter.step()
        yield item


def _tojson(value: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: bool = False) -> str:
    """Replaces Jinja's tojson. As in transformers, HTML is not escaped, and non-ASCII characters stay as they are."""
    _meter().weigh(value)
    width = indent if isinstance(indent, int) else len(indent) if isinstance(indent, str) else 0
    if width > 32:
        raise _Stop("tojson indents by more than 32")
    if separators is not None and sum(map(len, separators)) > 32:
        raise _Stop("tojson has long separators")
    size, waiting = 0, [(value, 1)]
    while waiting:
        item, depth = waiting.pop()
        size += width * depth
        if isinstance(item, str):
            size += _size_in_json(item, ensure_ascii)
        elif isinstance(item, dict):
            waiting += [(inner, depth + 1) for pair in item.items() for inner in pair]
        elif isinstance(item, list | tuple):
            waiting += [(inner, depth + 1) for inner in item]
    _meter().room(size, "JSON")
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _size_in_json(text: str, ensure_ascii: bool) -> int:
    """Returns at least as many characters as a text has in JSON."""
    if ensure_ascii and not text.isascii():
        return 12 * len(text)
    if text.isprintable():
        return len(text) + text.count('"') + text.count("\\")
    escaped = sum(text.count(chr(code)) for code in range(0x20))
    return len(text) + 5 * (escaped + text.count("\x7f")) + text.count('"') + text.count("\\")


def _replace(text: Any, old: Any, new: Any, count: int = -1) -> str:
    whole, old_text, new_text = map(_meter().text, (text, old, new))
    _check_replace(whole, old_text, new_text)
    return whole.replace(old_text, new_text, -1 if count is None else count)


def _sum(items: Any, attribute: Any = None, start: Any = 0) -> Any:
    total = start
    for item in _metered(items):
        if attribute is not None:
            item = _ENVIRONMENT.getitem(item, attribute)
        total = _add(total, item)
    return total


def _round(value: float, precision: int = 0, method: str = "common") -> float:
    if not isinstance(precision, int) or abs(precision) > 30:
        raise _Stop("round has a precision over 30")
    return filters.do_round(value, precision, method)  # type: ignore[arg-type]


def _int(value: Any, default: int = 0, base: int = 10) -> int:
    if isinstance(value, str) and len(value) > 4000:
        raise _Stop("a number has more than 4000 digits")
    return _number(filters.do_int(value, default, base))  # type: ignore[no-any-return]


_LINE_ENDS = "\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029"  # the characters at which str.splitlines() cuts


def _indent(text: Any, width: Any = 4, first: bool = False, blank: bool = False) -> str:
    text = _meter().text(text)
    size = width if isinstance(width, int) else len(_meter().text(width))
    _check_width(text, size)
    lines = 1 + sum(text.count(feed) for feed in _LINE_ENDS)
    if lines > MAX_ITEMS:
        raise _Stop(f"a text of more than {MAX_ITEMS} lines is indented")
    _meter().room(len(text) + lines * max(size, 0), "an indented text")
    return filters.do_indent(text, width, first, blank)


@jinja2.pass_eval_context
def _join(context: nodes.EvalContext, items: Any, separator: str = "", attribute: Any = None) -> str:
    parts = list(_metered(items))
    if attribute is not None:
        key = int(attribute) if isinstance(attribute, str) and attribute.isdigit() and len(attribute) < 9 else attribute
        parts = [_ENVIRONMENT.getitem(part, key) for part in parts]
    size = 0
    for part in parts:
        size += len(_meter().text(part))
        _meter().room(size, "a join")
    between = _meter().text(separator)
    _meter().room(size + len(between) * len(parts), "a join")
    return filters.sync_do_join(context, parts, between)


def _format(text: Any, *args: Any, **kwargs: Any) -> str:
    pattern = _meter().text(text)
    _check_format(pattern, "%", (*args, *kwargs.values()))
    return filters.do_format(pattern, *args, **kwargs)


def _from_json(text: Any) -> Any:
    """Implements the filter from_json. Neither Jinja nor transformers has it, but three templates for llama.cpp use it."""
    return _meter().weigh(json.loads(_regex_text(text)))


def _case(name: str) -> Callable[[Any], str]:
    """Returns the filter that calls a method of a text which changes its case."""

    def change(text: Any) -> str:
        whole = _meter().text(text)
        _check_case(whole)
        return getattr(whole, name)()  # type: ignore[no-any-return]

    return change


def _trim(text: Any, chars: str | None = None) -> str:
    whole = _meter().text(text)
    _check_work(whole, chars)
    return filters.do_trim(whole, chars)


def _title(text: Any) -> str:
    return filters.do_title(_regex_text(text))


def _wordcount(text: Any) -> int:
    return len(_regex_text(text).split())


def _regex_text(text: Any) -> str:
    whole = _meter().text(text)
    if len(whole) > MAX_REGEX_TEXT:
        raise _Stop(f"a filter would search more than {MAX_REGEX_TEXT} characters")
    return whole


def _escape(text: Any) -> Any:
    whole = text if isinstance(text, str) else _meter().text(text)  # Markup stays what it is
    _meter().room(6 * len(whole), "an escaped text")
    return escape(whole)


def _reverse(value: Any) -> Any:
    return value[::-1] if isinstance(value, str) else list(reversed(list(_metered(value))))


def _wrap(function: Callable[..., Any], sequence: bool) -> Callable[..., Any]:
    """Wraps a filter or test so that it calls the meter. If `sequence`, its argument is consumed item by item. A result that is an iterator
    becomes a list."""
    skipped = 1 if hasattr(function, "jinja_pass_arg") else 0

    @functools.wraps(function)
    def metered(*args: Any, **kwargs: Any) -> Any:
        meter = _meter()
        meter.step()
        if sequence and len(args) > skipped:
            args = (*args[:skipped], _metered(args[skipped]), *args[skipped + 1 :])
        result = function(*args, **kwargs)
        return meter.produced(list(result) if isinstance(result, Iterator) else result)

    return metered


_OVER_VALUES: dict[str, Callable[..., Any]] = {
    **{
        name: filters.FILTERS[name]
        for name in _words(
            "abs count d default dictsort float items last length safe"
        )
    },
    **{name: _case(name) for name in ("capitalize", "lower", "upper")},
    "string": lambda value: value if isinstance(value, str) else _meter().text(value), "trim": _trim,
    "tojson": _tojson, "replace": _replace, "sum": _sum, "round": _round, "int": _int, "indent": _indent, "join": _join, "format": _format,
    "reverse": _reverse, "title": _title, "wordcount": _wordcount, "escape": _escape, "e": _escape,
    "from_json": _from_json,
}  # fmt: skip
_OVER_SEQUENCES = {
    name: getattr(filters, f"sync_do_{name}", filters.FILTERS[name])
    for name in _words("first groupby list map max min reject rejectattr select selectattr sort unique")
}


# ---- the environment -------------------------------------------------------------------------------------------


class _Generation(ext.Extension):
    """Supports {% generation %}, which marks the assistant's words for training. Here the block is rendered like the text around it."""

    tags = {"generation"}

    def parse(self, parser: Any) -> nodes.Node:
        line = next(parser.stream).lineno
        return nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True), lineno=line)


_JINJA_KEYWORDS = ("_loop_vars", "_block_vars")  # keywords that compiled templates add to calls inside loops and blocks


class _Environment(sandbox.ImmutableSandboxedEnvironment):
    intercepted_binops = frozenset({"+", "-", "*", "/", "//", "**", "%"})

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[_Generation, ext.loopcontrols],
            finalize=_finalize,
            optimized=False,  # with True, Jinja would run code of the template while compiling it
            cache_size=0,
        )
        self.filters = {
            **{name: _wrap(f, sequence=False) for name, f in _OVER_VALUES.items()},
            **{name: _wrap(f, sequence=True) for name, f in _OVER_SEQUENCES.items()},
        }
        known: dict[str, Any] = dict(tests.TESTS)
        self.tests = {name: _wrap(f, sequence=False) for name, f in known.items()}
        self.globals = {
            "range": sandbox.safe_range,  # yields at most 100,000 numbers
            "dict": lambda *args, **kwargs: _meter().weigh(dict(*args, **kwargs)),
            "namespace": _Namespace,
            "raise_exception": _raise_exception,
            "strftime_now": _strftime_now,
        }
        self.binop_table.update({"+": _add, "*": _multiply, "**": _power, "%": _modulo})

    def call_binop(self, context: runtime.Context, operator: str, left: Any, right: Any) -> Any:
        _meter().step()
        return self.binop_table[operator](left, right)

    def call(__self, __context: runtime.Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805
        meter = _meter()
        meter.step()
        if meter.depth >= MAX_CALL_DEPTH:
            raise _Stop(f"its macros call each other more than {MAX_CALL_DEPTH} deep")
        if isinstance(__obj, BuiltinMethodType) and isinstance(__obj.__self__, str):
            check = _STRING_METHODS.get(__obj.__name__)
            if check is _check_join and args and not isinstance(args[0], str | list | tuple):
                args = (list(_metered(args[0])), *args[1:])  # a view or an iterator has no length before it is read
            if check is not None:
                check(__obj.__self__, *args, **{name: value for name, value in kwargs.items() if name not in _JINJA_KEYWORDS})
        meter.depth += 1
        try:
            return meter.produced(super().call(__context, __obj, *args, **kwargs))
        finally:
            meter.depth -= 1

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        if not super().is_safe_attribute(obj, attr, value):
            return False
        if isinstance(obj, jinja2.utils.Namespace | runtime.Undefined | runtime.TemplateReference):
            return True
        return any(isinstance(obj, kind) and attr in names for kind, names in _METHODS)

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        wrapped = super().wrap_str_format(value)
        if wrapped is None:
            return None
        text = str(value.__self__)
        return _Format(text, wrapped)

    # The rewritten syntax tree calls the functions below.

    def each(self, items: Any, cost: int) -> Iterator[Any]:
        meter = _meter()
        for item in items:
            meter.step()
            meter.volume += cost
            meter.room(0, "its text")
            yield item

    def concat_checked(self, *parts: Any) -> str:
        texts = [part if isinstance(part, str) else _meter().text(part) for part in parts]
        _meter().room(sum(map(len, texts)), "a text")
        return "".join(texts)

    def slice_checked(self, value: Any, start: Any, stop: Any, step: Any) -> Any:
        if isinstance(value, runtime.Undefined | str | list | tuple | range):
            return value[start:stop:step]
        return self.undefined(obj=value, name="slice")

    def tick(self, value: Any) -> Any:
        return value

    def weighed(self, value: Any) -> Any:
        return _meter().weigh(value)


@jinja2.pass_context
def _finalize(context: runtime.Context, value: Any) -> Any:
    meter = _meter()
    meter.step()
    text = value if isinstance(value, str) else meter.text(value)
    return meter.produced(text)


def _raise_exception(message: Any) -> NoReturn:
    raise jinja2.TemplateError(_meter().text(message)[:2000])


def _strftime_now(pattern: str) -> str:
    if len(pattern) > 256:
        raise _Stop("a date has a pattern of more than 256 characters")
    return _rendering.now.strftime(pattern)  # type: ignore[no-any-return]


_FORBIDDEN = (nodes.Include, nodes.Import, nodes.FromImport, nodes.Extends)


class _Metering(visitor.NodeTransformer):
    """Inserts calls of the meter into the syntax tree where Jinja has no hooks."""

    def _call(self, name: str, *args: Any, line: int) -> nodes.Call:
        return nodes.Call(nodes.EnvironmentAttribute(name), list(args), [], None, None, lineno=line)

    def visit_For(self, node: nodes.For) -> nodes.Node:
        self.generic_visit(node)
        text = sum(len(data.data) for data in node.find_all(nodes.TemplateData))
        node.iter = self._call("each", node.iter, nodes.Const(text), line=node.lineno)
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        self.generic_visit(node)
        return self._call("concat_checked", *node.nodes, line=node.lineno)

    def visit_Compare(self, node: nodes.Compare) -> nodes.Node:
        self.generic_visit(node)
        node.expr = self._call("tick", node.expr, line=node.lineno)
        return node

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Node:
        self.generic_visit(node)
        if not isinstance(node.arg, nodes.Slice):
            return node
        ends = [end if end is not None else nodes.Const(None) for end in (node.arg.start, node.arg.stop, node.arg.step)]
        return self._call("slice_checked", node.node, *ends, line=node.lineno)

    def _container(self, node: nodes.Expr) -> nodes.Node:
        self.generic_visit(node)
        return self._call("weighed", node, line=node.lineno)

    visit_List = visit_Dict = _container

    def visit_Tuple(self, node: nodes.Tuple) -> nodes.Node:
        return self._container(node) if node.ctx == "load" else self.generic_visit(node)


_ENVIRONMENT = _Environment()


# ---- compiling and running ------------------------------------------------------------------------------------

_FILE = "<chat template>"


def variables_of(source: str) -> frozenset[str]:
    """Returns the names of the variables that a template reads and does not set itself. The template must be one that compile_template()
    accepts."""
    return frozenset(meta.find_undeclared_variables(_ENVIRONMENT.parse(source)))


def compile_template(source: str) -> jinja2.Template:
    """Compiles a template so that it calls the meter. Raises ChatTemplateError if the template is invalid or too large."""
    size = len(source.encode("utf-8", "surrogatepass"))
    if size > MAX_SOURCE:
        raise ChatTemplateError(f"the chat template has {size} bytes; at most {MAX_SOURCE} are read. {FIX}")
    _rendering.meter = _Meter()
    try:
        for number, _ in enumerate(_ENVIRONMENT.lexer.tokeniter(source, None)):
            if number > MAX_TOKENS:
                raise _Stop(f"it has more than {MAX_TOKENS} words")
        tree = _ENVIRONMENT.parse(source)
        level: list[nodes.Node] = [tree]
        depth = count = 0
        while level:
            depth += 1
            count += len(level)
            if depth > MAX_TREE_DEPTH:
                raise _Stop(f"it is nested more than {MAX_TREE_DEPTH} deep")
            if count > MAX_TREE_NODES:
                raise _Stop(f"it has more than {MAX_TREE_NODES} parts")
            for node in level:
                if isinstance(node, _FORBIDDEN):
                    raise _Stop(f"line {node.lineno} reads another template ({type(node).__name__.lower()})")
            level = [child for node in level for child in node.iter_child_nodes()]
        code = _ENVIRONMENT.compile(_Metering().visit(tree), filename=_FILE)
        return jinja2.Template.from_code(_ENVIRONMENT, code, _ENVIRONMENT.make_globals(None))
    except jinja2.TemplateSyntaxError as error:
        raise ChatTemplateError(f"the chat template is no Jinja template: {error.message} in line {error.lineno}. {FIX}") from None
    except RecursionError:
        raise ChatTemplateError(f"the chat template is nested too deep. {FIX}") from None
    except Exception as error:
        raise ChatTemplateError(f"the chat template cannot be used: {error}. {FIX}") from None
    finally:
        _rendering.meter = None


def run_template(template: jinja2.Template, variables: dict[str, Any], now: datetime) -> str:
    """Renders a compiled template and returns the text. now: the time that strftime_now() formats. Raises ChatTemplateError if the template
    fails."""
    _rendering.meter, _rendering.now = _Meter(), now
    try:
        parts, size = [], 0
        for part in template.root_render_func(template.new_context(variables)):
            size += len(part)
            if size > MAX_OUTPUT:
                raise _Stop(f"it writes more than {MAX_OUTPUT} characters")
            _rendering.meter.step()
            parts.append(part)
        return "".join(parts)
    except _Stop as error:
        raise ChatTemplateError(f"the chat template was stopped{_line(template, error)}: {error}. {FIX}") from None
    except (jinja2.UndefinedError, SecurityError) as error:
        raise ChatTemplateError(f"the chat template failed{_line(template, error)}: {error}. {FIX}") from None
    except jinja2.TemplateError as error:
        raise ChatTemplateError(f"the chat template refuses these messages{_line(template, error)}: {error}") from None
    except Exception as error:
        raise ChatTemplateError(f"the chat template failed{_line(template, error)}: {type(error).__name__}: {error}. {FIX}") from None
    finally:
        _rendering.meter = None


def _line(template: jinja2.Template, error: BaseException) -> str:
    """Returns " in line N" for the template line that raised an error, or an empty string. The line is in the innermost stack frame that
    belongs to the template."""
    found, trace = "", error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == _FILE:
            found = f" in line {template.get_corresponding_lineno(trace.tb_lineno)}"
        trace = trace.tb_next
    return found
