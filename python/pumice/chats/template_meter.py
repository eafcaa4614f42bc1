"""The limits of a template's work, and the meter that counts the work of one rendering.

The meter counts steps and the processor time of the current thread. So it works in any thread, and stops a template no earlier if the
machine is busy.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterable
from typing import Any

import jinja2
from jinja2 import runtime
from jinja2.exceptions import SecurityError

MAX_VOLUME = 48 << 20  # maximum number of bytes of all strings and lists that a rendering makes
# Maximum weight of one value. The weight is the number of characters plus ITEM_WEIGHT per item. Parts that occur several times count each
# time.
MAX_WEIGHT = 16 << 20
ITEM_WEIGHT = 64  # weight of one item, about its size in bytes
MAX_ITEMS = 1 << 18  # maximum number of pieces that one split may make, and of lines that one indent may change
MAX_STEPS = 1_000_000
MAX_SECONDS = 1.0  # maximum processor time of the rendering thread
MAX_CALL_DEPTH = 64


# Maximum number of characters of a text that a filter searches with regular expressions.
MAX_REGEX_TEXT = 1 << 18
# Maximum number of character comparisons in one strip, or in one search from the end of a text. So many comparisons take 0.05 s.
MAX_WORK = 1 << 28
# Maximum number of characters of a text for upper() and similar functions, if not all characters are ASCII. Python then allocates up to 12
# bytes per character.
MAX_CASED = 1 << 22
MAX_WIDTH = 4096  # maximum padding or indentation in characters


class Stop(jinja2.TemplateError):
    """Raised when the work of a template reaches a limit."""


class Meter:
    """Counts the steps, memory and time of one rendering, and raises Stop when a limit is reached."""

    def __init__(self) -> None:
        self.steps = 0
        self.volume = 0
        self.depth = 0
        self.end = time.thread_time() + MAX_SECONDS

    def step(self, count: int = 1) -> None:
        """Counts `count` steps. Raises Stop if there were too many steps, or if they took too long."""
        before = self.steps
        self.steps += count
        if self.steps > MAX_STEPS:
            raise Stop(f"it takes more than {MAX_STEPS} steps")
        if before >> 5 != self.steps >> 5 and time.thread_time() > self.end:
            raise Stop(f"it takes more than {MAX_SECONDS:g} s")

    def room(self, size: int, what: str) -> None:
        """Raises Stop if the limits do not allow a new value of `size` bytes. Must be called before the value is made."""
        if size > MAX_WEIGHT or self.volume + size > MAX_VOLUME:
            raise Stop(f"{what} would take {size} bytes")

    def produced(self, value: Any) -> Any:
        """Adds the size of a new value to the rendering's total, and returns the value. Raises Stop if the total exceeds MAX_VOLUME."""
        if isinstance(value, str | list | tuple | dict):
            self.volume += sys.getsizeof(value)
            if self.volume > MAX_VOLUME:
                raise Stop(f"it makes more than {MAX_VOLUME} bytes of text and lists")
        return value

    def weigh(self, value: Any) -> Any:
        """Returns the value. Raises Stop if it is small in memory but huge when written out, such as a list that contains a second list
        twice, which contains a third list twice, and so on."""
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
                waiting += inside(item)
            if weight + ITEM_WEIGHT * len(waiting) > MAX_WEIGHT:
                raise Stop(f"it makes a value of more than {MAX_WEIGHT} characters")
        return value

    def text(self, value: Any) -> str:
        """Returns str(value). If the text would be too long, raises Stop before making it."""
        if isinstance(value, str):
            return str(value)
        self.weigh(value)
        size, waiting = 0, [value]
        while waiting:
            item = waiting.pop()
            if isinstance(item, str):
                # repr() may write a single character as up to ten characters, such as \U000e0001.
                size += len(item) + item.count("\\") + item.count("'") if item.isprintable() else 10 * len(item)
            elif callable(item) and not isinstance(item, PRINTABLE):
                raise SecurityError("a function cannot be printed")  # the text of a function may contain a memory address of the process
            else:
                waiting += inside(item)
        self.room(size, "a text")
        return str(value)


LISTS: tuple[type, ...] = (list, tuple, type({}.keys()), type({}.values()), type({}.items()))
# Types of callable objects that may be printed, because their texts contain only names (and no memory addresses).
PRINTABLE = (runtime.Macro, runtime.LoopContext, runtime.TemplateReference, runtime.Undefined)


def inside(value: Any) -> Iterable[Any]:
    """Returns the values inside a value that are part of its text."""
    if isinstance(value, dict):
        return [*value.keys(), *value.values()]
    if isinstance(value, jinja2.utils.Namespace):
        return inside(value._Namespace__attrs)
    held: Iterable[Any] = value if isinstance(value, LISTS) else ()  # type: ignore[assignment]
    return held


rendering = threading.local()


def current_meter() -> Meter:
    """Returns the meter of the rendering that runs in this thread."""
    return rendering.meter  # type: ignore[no-any-return]
