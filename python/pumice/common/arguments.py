"""Checks arguments. The error for an unknown name suggests the nearest valid name, and the error for a wrong value gives the valid
range."""

from __future__ import annotations

import contextlib
import difflib
import functools
import inspect
import itertools
import math
import operator
import os
import re
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, ParamSpec, TypeVar

import numpy as np

from ..errors import ChatTemplateError, ModelFormatError, PumiceError, UnsupportedTaskError

# Maximum number of characters that are tokenised in the caller's thread, because this takes less time than to start a thread. More
# characters are tokenised in another thread, so that Ctrl-C can interrupt the caller.
DIRECT_CHARACTERS = 1 << 14

# Maximum number of items of a sequence that is copied. No real input is longer, because a Python list of so many texts, ids or vectors
# would take gigabytes.
MOST_ITEMS = 1 << 26

_FIRST_WORD = re.compile(r"[A-Za-z_]\w*")

P = ParamSpec("P")
R = TypeVar("R")

# Argument name of another package -> the argument here that means the same, or None if there is none.
KNOWN_ELSEWHERE = {
    "bad_words_ids": "bad_words",
    "convert_to_numpy": None,
    "convert_to_tensor": None,
    "do_sample": "temperature (0 is greedy)",
    "max_length": "max_new_tokens",
    "logits_processors": "logits_processor",
    "max_tokens": "max_new_tokens",
    "min_tokens": "min_new_tokens",
    "n_batch": "token_budget",
    "n_cpu_moe": "gpu_experts (the number of layers whose experts are on the GPU)",
    "n_gpu_layers": "gpu_layers",
    "n_threads": "threads",
    "normalize_embeddings": "normalize",
    "num_return_sequences": "n",
    "num_threads": "threads",
    "reasoning_budget": "max_reasoning_tokens",
    "repeat_penalty": "repetition_penalty",
    "response_format": "grammar (for a schema: pumice.Grammar.json_schema(schema))",
    "stop_strings": "stop",
    "thinking_budget": "max_reasoning_tokens",
    "thinking_token_budget": "max_reasoning_tokens",
    "typical": "typical_p",
}


def plain(text: str) -> str:
    """Returns a str as a plain str with the same characters. str() is not used, because a subclass (such as an Enum of strings) may
    override it."""
    return str.__str__(text)


def shown(value: object, most: int = 200) -> str:
    """Returns a value as text for error messages: its repr, cut after `most` characters."""
    try:
        if isinstance(value, (str, bytes, bytearray)) and len(value) > most:
            return f"{value[:most]!r}... ({len(value)} characters)"
        text = repr(value)
    except Exception:  # such as an int of 4301 digits, or a __repr__ that fails
        return f"a {type(value).__name__}"
    return text if len(text) <= most else f"{text[:most]}..."


def shown_path(path: object) -> str:
    """Returns a path as text for error messages. A long path is cut, and characters that do not print are escaped."""
    text = str(path)
    return text if text.isprintable() and len(text) <= 500 else shown(text, 500)


def did_you_mean(name: object, valid: Iterable[str]) -> str:
    """Returns '; did you mean "x"?' if a valid name is similar, else ''."""
    if not isinstance(name, str) or len(name) > 200:
        return ""
    valid = list(valid)
    near = [each for each in valid if each.lower() == name.lower()] or difflib.get_close_matches(name, valid, n=1, cutoff=0.5)
    return f"; did you mean {near[0]!r}?" if near else ""


def unknown_keyword(function: str, name: str, valid: Iterable[str]) -> TypeError:
    """Returns the TypeError for an unknown keyword argument. The message suggests the nearest valid keyword or, if the name comes from
    another package (KNOWN_ELSEWHERE), the keyword that means the same here."""
    valid = [v for v in valid if v != "self"]
    error = TypeError(_unknown(function, name, valid))
    _set_argument(error, name)
    return error


def _unknown(function: str, name: str, valid: list[str]) -> str:
    elsewhere = KNOWN_ELSEWHERE.get(name)
    hint = f"; here it is {elsewhere}" if elsewhere and elsewhere.split()[0] in valid else did_you_mean(name, valid)
    return f"{function}() has no argument {shown(name)}{hint or ' (valid: ' + ', '.join(valid) + ')'}"


@contextlib.contextmanager
def argument(name: str, kind: type[Exception] | None = None) -> Iterator[None]:
    """Sets the attribute `argument` of errors in this block to `name`. checked_keywords() prefers the argument name with which an error
    message begins, so this block is needed only for other messages, such as "message 3 has no role".

    kind: the class of the errors that are changed. An error of this class that an inner block has changed keeps its name. If `kind` is
    None, each TypeError and ValueError that is not about the model or its files is changed, even if an inner block has changed it."""
    try:
        yield
    except (TypeError, ValueError, PumiceError) as error:
        if kind is None:
            about = isinstance(error, (TypeError, ValueError)) and not isinstance(error, (UnsupportedTaskError, ModelFormatError))
        else:
            about = isinstance(error, kind) and getattr(error, "argument", None) is None
        if about:
            _set_argument(error, name)
        raise


def _set_argument(error: Exception, name: str | None) -> None:
    with contextlib.suppress(AttributeError, TypeError):  # the caller's own code may raise an error whose class refuses attributes
        error.argument = name  # type: ignore[attr-defined]


def checked_keywords(extra: Mapping[str, Any] | None = None) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Returns a decorator that raises a TypeError for an unknown keyword. The error suggests the nearest valid keyword. For a coroutine
    function, the error is raised when the coroutine is awaited.

    Each TypeError, ValueError and ChatTemplateError that leaves the function has the attribute `argument`: the keyword that the error is
    about, or None. Most messages about an argument begin with its name ("top_k=-1 is out of range", "sampling[2] must be ..."), and the
    name is taken from there. For other messages, argument() sets it.

    extra: names and defaults of the keywords that the function takes through its ** parameter. The decorator shows them in the function's
    signature."""

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        signature = inspect.signature(function)
        named = [p for p in signature.parameters.values() if p.kind is not p.VAR_KEYWORD]
        more = [inspect.Parameter(k, inspect.Parameter.KEYWORD_ONLY, default=v) for k, v in (extra or {}).items()]
        names = {p.name: None for p in (*named, *more)}

        def check(given: Mapping[str, Any]) -> None:
            for name in given:
                if name not in names:
                    raise unknown_keyword(function.__name__, name, names)

        @contextlib.contextmanager
        def named_errors() -> Iterator[None]:
            try:
                yield
            except (TypeError, ValueError, ChatTemplateError) as error:
                message = error.args[0] if error.args and isinstance(error.args[0], str) else ""
                first = _FIRST_WORD.match(message)
                named = first is not None and first[0] != "self" and first[0] in names
                _set_argument(error, first[0] if first is not None and named else getattr(error, "argument", None))
                raise

        @functools.wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            with named_errors():
                check(kwargs)
                return function(*args, **kwargs)

        @functools.wraps(function)
        async def awaited(*args: P.args, **kwargs: P.kwargs) -> Any:
            with named_errors():
                check(kwargs)
                return await function(*args, **kwargs)  # type: ignore[misc]

        if inspect.iscoroutinefunction(function):
            call = awaited  # type: ignore[assignment]
        call.__signature__ = signature.replace(parameters=[*named, *more])  # type: ignore[attr-defined]
        return call

    return decorate


def path_of(given: Any) -> str:
    """Returns the `path` argument as a string. Raises TypeError if it is not a path, and ValueError if it is empty or contains a NUL
    character."""
    if not isinstance(given, (str, os.PathLike)):
        raise TypeError(f"path must be a string or a path, not {type(given).__name__}")
    path = plain(os.fsdecode(given))
    if not path:
        raise ValueError("path is empty: it must name a file")
    if "\0" in path:
        raise ValueError(f"path is {shown(path)}: no file's name holds a NUL character")
    return path


def refuse_to_replace(output: str | os.PathLike[str], read: Iterable[str | os.PathLike[str] | int]) -> None:
    """Raises ValueError if `output` is one of the files that are read, by the same name or another one (a link). read: the paths or
    file descriptors of the files that are read. Those that are not regular files, such as pipes, are ignored."""
    if os.path.isfile(output) and any(os.path.isfile(each) and os.path.samefile(each, output) for each in read):
        raise ValueError(f"{shown_path(output)} is a file that is read; the output needs another name")


def is_masked(value: Any) -> bool:
    """Returns whether a value is a numpy.ma.MaskedArray. The class is looked up in sys.modules and not as np.ma.MaskedArray, because
    numpy imports numpy.ma at the first access, and a fork() during this import leaves the child with an import that never ends."""
    masked = getattr(sys.modules.get("numpy.ma"), "MaskedArray", None)
    return masked is not None and isinstance(value, masked)


def choice(name: str, value: Any, allowed: Iterable[Any]) -> Any:
    """Returns `value`. Raises ValueError, which lists the allowed values, unless it equals one of `allowed` and has the same type."""
    allowed = list(allowed)
    if not (type(value) is str and value in allowed) and not any(value is a or (type(value) is type(a) and value == a) for a in allowed):
        hint = did_you_mean(value, [a for a in allowed if isinstance(a, str)])
        raise ValueError(f"{name}={shown(value)} is not one of {', '.join(map(repr, allowed))}{hint}")
    return value


def choice_or_integer(name: str, value: Any, words: Iterable[str], low: int, high: int = 2**63 - 1) -> Any:
    """Returns `value`. Raises TypeError or ValueError unless it is one of `words` or an integer from `low` to `high`."""
    words = list(words)
    if isinstance(value, (int, np.integer)) and not isinstance(value, bool):
        return integer(name, value, low, high)
    if not isinstance(value, str) or value not in words:
        kind = ValueError if isinstance(value, str) else TypeError
        raise kind(f"{name}={shown(value)} is neither {' nor '.join(map(repr, words))} nor a whole number{did_you_mean(value, words)}")
    return value


def flag(name: str, value: Any) -> bool:
    """Returns `value` as a bool. Raises TypeError unless it is True or False (a bool or a numpy.bool_)."""
    if not isinstance(value, (bool, np.bool_)):
        raise TypeError(f"{name} must be True or False, not {shown(value)}")
    return bool(value)


def integer(name: str, value: Any, low: int, high: int = 2**63 - 1) -> int:
    """Returns `value` as an int. Raises TypeError if it is not an integer (a bool is not), and ValueError if it is not between `low` and
    `high`."""
    try:
        if isinstance(value, bool):
            raise TypeError
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{name} must be an integer, not {type(value).__name__} {shown(value)}") from None
    if not low <= number <= high:
        found = str(number) if number.bit_length() < 1000 else f"a number of {number.bit_length()} bits"
        # `high` is left out of the message if it is the default 2**63 - 1 (the largest int64) and the number is too small.
        raise ValueError(f"{name}={found} is out of range: it must be {_range(low, high, None if number > high else 2**63 - 1)}")
    return number


def real(name: str, value: Any, low: float = -math.inf, high: float = math.inf, *, open_low: bool = False) -> float:
    """Returns `value` as a float. Raises TypeError if it is not a number, and ValueError if it is not finite or not between `low` and
    `high`. open_low: whether `low` itself is not allowed."""
    try:
        if isinstance(value, (bool, str, bytes)):
            raise TypeError
        number = float(value)
    except OverflowError:
        raise ValueError(f"{name} is out of range: it is a whole number beyond 1e308") from None
    except (TypeError, ValueError):
        raise TypeError(f"{name} must be a number, not {type(value).__name__} {shown(value)}") from None
    if not math.isfinite(number) or number < low or number > high or (open_low and number == low):
        bounds = _range(low, high, math.inf).replace("at least", "more than" if open_low else "at least")
        raise ValueError(f"{name}={number} is out of range: it must be {bounds if low > -math.inf else 'finite'}")
    return number


def _range(low: float, high: float, infinite: float | None) -> str:
    return f"at least {low}" if high == infinite else f"at least {low} and at most {high}"


def length(items: Any, name: str) -> int | None:
    """Returns len(items), or None if the items have no len(). The length may be wrong, because any class can define its own len(). Raises
    ValueError if len() fails."""
    try:
        return len(items)
    except TypeError:
        return None
    except (ValueError, OverflowError) as error:
        raise ValueError(f"{name} is a {type(items).__name__} whose len() fails: {error}") from error


def check_length(given: Any, name: str) -> None:
    """Raises ValueError if a container's len() is more than MOST_ITEMS. A range or a broadcast array of a billion numbers takes no memory,
    but a copy of it would take so much that the system ends the process."""
    try:
        count = len(given)
    except (TypeError, ValueError, OverflowError):  # the container has no len(), or an impossible one
        return
    if count > MOST_ITEMS:
        raise ValueError(f"{name} has {count} items; more than {MOST_ITEMS} are not taken")


def as_array(given: Any, name: str) -> np.ndarray[Any, Any]:
    """Returns np.asarray(given). Raises TypeError for a masked array, whose mask would be lost. Raises ValueError if a sequence, or a
    range inside a list or tuple, is too long to be copied."""
    if is_masked(given):
        raise TypeError(f"{name} is a masked array, and masked numbers have no value; .filled(0) gives them one")
    if not isinstance(given, np.ndarray):
        check_length(given, name)
        for row in given if isinstance(given, (list, tuple)) else ():
            if isinstance(row, range):
                check_length(row, name)
    return np.asarray(given)


def listed(items: Iterable[Any]) -> list[Any]:
    """Returns the items of a container as a list. Raises ValueError if there are more than MOST_ITEMS. list() is not used, because it would
    allocate memory for as many items as len() promises."""
    if isinstance(items, range):
        check_length(items, "the range")
    found = list(itertools.islice(iter(items), MOST_ITEMS + 1))
    if len(found) > MOST_ITEMS:
        raise ValueError(f"there are more than {MOST_ITEMS} items, which are not taken")
    return found


def warn(category: type[Warning], message: str) -> None:
    """Issues a warning that points at the caller's line, which is the innermost line outside this package."""
    level, frame, ours = 1, sys._getframe(), __name__.split(".")[0]
    while frame is not None and str(frame.f_globals.get("__package__")).split(".")[0] == ours and frame.f_back is not None:
        frame, level = frame.f_back, level + 1
    warnings.warn(message, category, stacklevel=level)


def check_text(text: object, name: str) -> str:
    """Returns `text` as a plain str. Raises TypeError if it is not a string, and ValueError for a lone surrogate, which UTF-8 cannot
    encode."""
    if not isinstance(text, str):
        hint = " (a missing value?)" if isinstance(text, float) or text is None else ""
        raise TypeError(f"{name} is a {type(text).__name__}{hint}, not a string")
    text = plain(text)
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise ValueError(
                f"{name} has a lone surrogate {text[error.start]!r} at character {error.start}: it is not valid Unicode text. "
                f'text.encode("utf-8", "replace").decode() mends it'
            ) from None
    return text
