"""The operations that templates may use: operators, methods of texts and lists, and filters. Each is metered before it makes a large
value."""

from __future__ import annotations

import functools
import json
import operator
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import jinja2
from jinja2 import filters, nodes, runtime
from jinja2.exceptions import SecurityError
from markupsafe import Markup, escape

from .template_meter import MAX_CASED, MAX_ITEMS, MAX_REGEX_TEXT, MAX_WIDTH, MAX_WORK, Stop, current_meter


def _words(text: str) -> list[str]:
    return text.split()


# ---- guarded operations ----------------------------------------------------------------------------------------


_SIZED = (str, list, tuple)


def add(left: Any, right: Any) -> Any:
    """The operator +. The meter checks the size of sums of texts or lists."""
    if isinstance(left, _SIZED) and isinstance(right, _SIZED):
        current_meter().room(sys.getsizeof(left) + sys.getsizeof(right), "a sum")
        joined = current_meter().produced(operator.add(left, right))
        return joined if isinstance(joined, str) else current_meter().weigh(joined)
    return _number(left + right)


def multiply(left: Any, right: Any) -> Any:
    """The operator *. The meter checks the size of repetitions, and the size of integer products is limited."""
    for repeated, times in ((left, right), (right, left)):
        if isinstance(repeated, str | list | tuple) and isinstance(times, int):
            current_meter().room(max(len(repeated), 1) * max(times, 0) * (8 if not isinstance(repeated, str) else 1), "a repetition")
            result = current_meter().produced(repeated * times)
            return result if isinstance(result, str) else current_meter().weigh(result)
    if isinstance(left, int) and isinstance(right, int) and left.bit_length() + right.bit_length() > 4096:
        raise Stop("a product is too large")
    return left * right


def power(left: Any, right: Any) -> Any:
    """The operator **, with a limit for the size of integer powers."""
    if isinstance(left, int) and isinstance(right, int) and left.bit_length() * abs(right) > 4096:
        raise Stop("a power is too large")
    return left**right


def modulo(left: Any, right: Any) -> Any:
    """The operator %: a remainder, or the formatting of a text, whose size the meter checks."""
    if isinstance(left, str):
        _check_format(left, "%", right if isinstance(right, tuple) else (right,))
        return current_meter().produced(left % right)
    return left % right


def _number(value: Any) -> Any:
    if isinstance(value, int) and value.bit_length() > 4096:
        raise Stop("a number is too large")
    return value


def _check_format(text: str, mark: str, values: Iterable[Any]) -> None:
    """Checks the size of a formatted text before it is made, because formatting can repeat values and pad them."""
    if re.search(r"\d{4}|\*|\{[^{}]+\{", text.replace("{{", "")) and mark in text:
        raise Stop("a format has a width that is too large")
    escaped = 6 if isinstance(text, Markup) else 1  # a Markup escapes what is put into it
    total = sum(16 + escaped * (len(v) if isinstance(v, str) else len(current_meter().text(v))) for v in values)
    current_meter().room(len(text) + text.count(mark) * (total + 1000), "a formatted text")


def _check_replace(text: str, old: str, new: str, *_: Any) -> None:
    if isinstance(old, str) and isinstance(new, str):
        places = text.count(old) if old else len(text) + 1
        current_meter().room(len(text) + places * len(new), "a replacement")


def check_join(separator: str, items: Any) -> None:
    """Raises Stop if a join would take too much memory."""
    characters = len(items) if isinstance(items, str) else sum(len(i) for i in items if isinstance(i, str))
    current_meter().room(characters + len(separator) * len(items), "a join")


def _check_work(text: str, part: Any = None, *_: Any) -> None:
    """Limits the time of methods that may compare each character of a text with each character of `part`: strip(), and searches from the
    end."""
    if isinstance(part, str):
        work = len(text) * len(part)
        if work > MAX_WORK:
            raise Stop(f"a search compares more than {MAX_WORK} characters")
        current_meter().step(work >> 14)


def _check_split(text: str, separator: Any = None, *_: Any, **named: Any) -> None:
    separator = named.get("sep", separator)
    pieces = text.count(separator) if isinstance(separator, str) and separator else len(text) // 4
    if pieces > MAX_ITEMS:
        raise Stop(f"a split makes more than {MAX_ITEMS} pieces")
    current_meter().room(len(text) + 50 * pieces, "a split")
    current_meter().volume += len(text) + 50 * pieces


def _check_rsplit(text: str, separator: Any = None, *rest: Any, **named: Any) -> None:
    _check_work(text, named.get("sep", separator))
    _check_split(text, separator, *rest, **named)


def _check_case(text: str, *_: Any) -> None:
    if len(text) > MAX_CASED and not text.isascii():
        raise Stop(f"the case of a text of more than {MAX_CASED} characters is changed")


def _check_width(text: str, width: Any = 0, *_: Any) -> None:
    if isinstance(width, int) and width > MAX_WIDTH:
        raise Stop(f"a width is over {MAX_WIDTH}")


def _check_tabs(text: str, tabsize: Any = 8, *_: Any) -> None:
    _check_width(text, tabsize)
    if isinstance(tabsize, int):
        current_meter().room(len(text) + text.count("\t") * max(tabsize, 0), "a text without tabs")


STRING_METHODS: dict[str, Callable[..., None] | None] = {
    **dict.fromkeys(
        _words(
            "count endswith find index isalnum isalpha isascii isdecimal isdigit isidentifier islower isnumeric isprintable "
            "isspace istitle isupper partition removeprefix removesuffix startswith format format_map"
        )
    ),
    "replace": _check_replace,
    "join": check_join,
    **dict.fromkeys(["strip", "lstrip", "rstrip", "rfind", "rindex", "rpartition"], _check_work),
    **dict.fromkeys(["capitalize", "casefold", "lower", "swapcase", "title", "upper"], _check_case),
    **dict.fromkeys(["split", "splitlines"], _check_split),
    "rsplit": _check_rsplit,
    **dict.fromkeys(["center", "ljust", "rjust", "zfill"], _check_width),
    "expandtabs": _check_tabs,
}
# Methods that a template may call. Those that make bytes (encode, to_bytes), belong to a class (fromkeys, maketrans, from_bytes) or change
# their object (append, update) are not among them.
METHODS: tuple[tuple[type | tuple[type, ...], frozenset[str]], ...] = (
    (str, frozenset(STRING_METHODS)),
    (int, frozenset(_words("as_integer_ratio bit_count bit_length conjugate denominator imag is_integer numerator real"))),
    (float, frozenset(_words("as_integer_ratio conjugate hex imag is_integer real"))),
    (dict, frozenset({"get", "items", "keys", "values", "copy"})),
    ((list, tuple), frozenset({"count", "index", "copy"})),
    (range, frozenset({"count", "index", "start", "step", "stop"})),
    (
        runtime.LoopContext,
        frozenset(_words("index index0 revindex revindex0 first last length depth depth0 previtem nextitem cycle changed")),
    ),
    (runtime.Macro, frozenset({"name", "arguments"})),
    (filters._GroupTuple, frozenset({"grouper", "list"})),
)


class Format:
    """The format() method of a string, with a check of the result's size. A template may call it or pass it to a filter."""

    def __init__(self, text: str, format_safely: Callable[..., str]) -> None:
        self._text, self._format = text, format_safely

    def __call__(self, *args: Any, **kwargs: Any) -> str:
        _check_format(self._text, "{", (*args, *kwargs.values()))
        return self._format(*args, **kwargs)

    def __repr__(self) -> str:
        return "format"


class Namespace(jinja2.utils.Namespace):
    """A namespace that refuses names with a leading underscore, because these belong to Python."""

    def __init__(*args: Any, **kwargs: Any) -> None:
        self, given = args[0], dict(*args[1:], **kwargs)
        for name in given:
            Namespace._check(name)
        current_meter().weigh(given)
        jinja2.utils.Namespace.__init__(self, given)

    def __setitem__(self, name: str, value: Any) -> None:
        Namespace._check(name)
        super().__setitem__(name, value)

    @staticmethod
    def _check(name: Any) -> None:
        if not isinstance(name, str) or name.startswith("_"):
            raise SecurityError(f"a namespace cannot hold the name {name!r}")


# ---- filters ---------------------------------------------------------------------------------------------------


def metered(items: Any) -> Iterator[Any]:
    """Yields the items. Each item counts as one step."""
    meter = current_meter()
    for item in items:
        meter.step()
        yield item


def _soft(value: Any) -> str:
    """Returns a value as text. A text stays as it is, so that a text marked as safe stays marked, as in Jinja."""
    return value if isinstance(value, str) else current_meter().text(value)


def _tojson(value: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: bool = False) -> str:
    """Replaces Jinja's tojson. As in transformers, HTML is not escaped, and non-ASCII characters are left unchanged."""
    current_meter().weigh(value)
    width = indent if isinstance(indent, int) else len(indent) if isinstance(indent, str) else 0
    if width > 32:
        raise Stop("tojson indents by more than 32")
    if separators is not None and sum(map(len, separators)) > 32:
        raise Stop("tojson has long separators")
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
    current_meter().room(size, "JSON")
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _size_in_json(text: str, ensure_ascii: bool) -> int:
    """Returns an upper bound of the number of characters of a text in JSON."""
    if ensure_ascii and not text.isascii():
        return 12 * len(text)
    if text.isprintable():
        return len(text) + text.count('"') + text.count("\\")
    escaped = sum(text.count(chr(code)) for code in range(0x20))
    return len(text) + 5 * (escaped + text.count("\x7f")) + text.count('"') + text.count("\\")


def _replace(text: Any, old: Any, new: Any, count: int = -1) -> str:
    whole, old_text, new_text = map(current_meter().text, (text, old, new))
    _check_replace(whole, old_text, new_text)
    return whole.replace(old_text, new_text, -1 if count is None else count)


@jinja2.pass_environment
def _sum(environment: jinja2.Environment, items: Any, attribute: Any = None, start: Any = 0) -> Any:
    if isinstance(start, str):
        raise TypeError("sum takes no texts; join does")
    of = filters.make_attrgetter(environment, attribute)
    return functools.reduce(add, map(of, metered(items)), start)


def _round(value: float, precision: Any = 0, method: str = "common") -> float:
    if isinstance(precision, int) and abs(precision) > 30:
        raise Stop("round has a precision over 30")
    return filters.do_round(value, precision, method)  # type: ignore[arg-type]


def _int(value: Any, default: int = 0, base: int = 10) -> int:
    if isinstance(value, str) and len(value) > 4000:
        raise Stop("a number has more than 4000 digits")
    return _number(filters.do_int(value, default, base))  # type: ignore[no-any-return]


_LINE_ENDS = "\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029"  # the characters at which str.splitlines() splits


def _indent(text: Any, width: Any = 4, first: bool = False, blank: bool = False) -> str:
    text = text + ""  # raises the error that Jinja's filter raises for a value that is no text
    size = width if isinstance(width, int) else len(current_meter().text(width))
    _check_width(text, size)
    lines = 1 + sum(text.count(feed) for feed in _LINE_ENDS)
    if lines > MAX_ITEMS:
        raise Stop(f"a text of more than {MAX_ITEMS} lines is indented")
    current_meter().room(len(text) + lines * max(size, 0), "an indented text")
    return filters.do_indent(text, width, first, blank)


@jinja2.pass_eval_context
def _join(context: nodes.EvalContext, items: Any, d: Any = "", attribute: Any = None) -> str:
    parts = list(map(filters.make_attrgetter(context.environment, attribute), metered(items)))
    size = 0
    for part in parts:
        size += len(current_meter().text(part))
        current_meter().room(size, "a join")
    between = current_meter().text(d)
    current_meter().room(size + len(between) * len(parts), "a join")
    return filters.sync_do_join(context, parts, between)


def _format(text: Any, *args: Any, **kwargs: Any) -> str:
    pattern = _soft(text)
    _check_format(pattern, "%", (*args, *kwargs.values()))
    return filters.do_format(pattern, *args, **kwargs)


def _from_json(text: Any) -> Any:
    """Implements the filter from_json. Neither Jinja nor transformers has it, but three templates for llama.cpp use it."""
    return current_meter().weigh(json.loads(_regex_text(text)))


def _case(name: str) -> Callable[[Any], str]:
    """Returns a filter that calls the text method `name`, which changes the case."""

    def change(text: Any) -> str:
        whole = _soft(text)
        _check_case(whole)
        return getattr(whole, name)()  # type: ignore[no-any-return]

    return change


def _trim(text: Any, chars: str | None = None) -> str:
    whole = _soft(text)
    _check_work(whole, chars)
    return filters.do_trim(whole, chars)


def _title(text: Any) -> str:
    return filters.do_title(_regex_text(text))


def _wordcount(text: Any) -> int:
    return filters.do_wordcount(_regex_text(text))


def _center(text: Any, width: Any = 80) -> str:
    whole = _soft(text)
    _check_width(whole, width)
    return whole.center(width)


def _urlencode(value: Any) -> str:
    # Each character has up to four bytes, and each byte becomes three characters.
    current_meter().room(12 * len(current_meter().text(value)), "an address")
    return filters.do_urlencode(value)


def _check_rows(count: Any) -> None:
    if isinstance(count, int) and count > MAX_ITEMS:
        raise Stop(f"a list is cut into more than {MAX_ITEMS} pieces")


def _batch(items: Any, linecount: Any, fill_with: Any = None) -> list[Any]:
    _check_rows(linecount)
    return current_meter().weigh(list(filters.do_batch(metered(items), linecount, fill_with)))  # type: ignore[no-any-return]


def _slice(items: Any, slices: Any, fill_with: Any = None) -> list[Any]:
    _check_rows(slices)
    return current_meter().weigh(list(metered(filters.sync_do_slice(list(metered(items)), slices, fill_with))))  # type: ignore[no-any-return]


def _regex_text(text: Any) -> str:
    whole = current_meter().text(text)
    if len(whole) > MAX_REGEX_TEXT:
        raise Stop(f"a filter would search more than {MAX_REGEX_TEXT} characters")
    return whole


def _escape(text: Any) -> Any:
    whole = _soft(text)
    current_meter().room(6 * len(whole), "an escaped text")
    return escape(whole)


def _forceescape(text: Any) -> Any:
    return _escape(current_meter().text(text))


def _reverse(value: Any) -> Any:
    return value[::-1] if isinstance(value, str) else list(reversed(list(metered(value))))


def wrap(function: Callable[..., Any], sequence: bool) -> Callable[..., Any]:
    """Wraps a filter or test so that it calls the meter. If `sequence` is true, each item of the value that is filtered counts as a step.
    A value that is false, such as none, is passed on as it is, because some filters make an empty list of it. If the result is an iterator,
    it becomes a list."""
    skipped = 1 if hasattr(function, "jinja_pass_arg") else 0

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        meter = current_meter()
        meter.step()
        if sequence and len(args) > skipped and args[skipped]:
            args = (*args[:skipped], metered(args[skipped]), *args[skipped + 1 :])
        result = function(*args, **kwargs)
        return meter.produced(list(result) if isinstance(result, Iterator) else result)

    return call


# Jinja's filters attr, pprint, random, striptags, urlize, wordwrap and xmlattr are left out: they reach attributes by name, give other
# results each time, or work for longer than the meter can see.
OVER_VALUES: dict[str, Callable[..., Any]] = {
    **{
        name: filters.FILTERS[name]
        for name in _words(
            "abs count d default dictsort filesizeformat float items last length safe truncate"
        )
    },
    **{name: _case(name) for name in ("capitalize", "lower", "upper")},
    "string": _soft, "trim": _trim, "center": _center, "urlencode": _urlencode, "batch": _batch, "slice": _slice,
    "tojson": _tojson, "replace": _replace, "sum": _sum, "round": _round, "int": _int, "indent": _indent, "join": _join, "format": _format,
    "reverse": _reverse, "title": _title, "wordcount": _wordcount, "escape": _escape, "e": _escape, "forceescape": _forceescape,
    "from_json": _from_json,
}  # fmt: skip
OVER_SEQUENCES = {
    name: getattr(filters, f"sync_do_{name}", filters.FILTERS[name])
    for name in _words("first groupby list map max min reject rejectattr select selectattr sort unique")
}
