"""Markers in text that comes piece by piece, such as <tool_call>, and the regular expressions that describe them.

Python's re cannot say that a text may still become a match, and takes exponential time over some patterns. So a pattern becomes an
automaton here that reads each character once: it finds what re would find (leftmost, the pattern's own order of choices), and knows at
every character whether more could follow. re itself only tells the groups of a text that is known to match.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

MAX_SOURCE = 1 << 10  # characters of a pattern
MAX_PROGRAM = 4096  # steps of its automaton
MAX_DEPTH = 50  # of groups in groups
MAX_FIRST = 24  # characters of a marker that re looks for before the automaton looks closer
MAX_MARKER = 1 << 9  # characters that a marker may have: what is held back at most
MAX_LEAD = 256  # blanks before a marker that belong to it
MAX_MOVES = 1 << 9  # remembered transitions of a state
WORK = 4  # steps that find_all() takes for a character of text, on average

# ---- patterns: what is read ------------------------------------------------------------------------------------

_ESCAPED = {"n": "\n", "r": "\r", "t": "\t", "f": "\f", "v": "\v"}
_QUANTIFIER = re.compile(r"(\*|\+|\?|\{\d{1,4}\}|\{\d{1,4},\d{0,4}\}|\{,\d{1,4}\})(\?|\+)?")
_NAMED = re.compile(r"\?P<([A-Za-z_]\w*)>")


@dataclass(frozen=True)
class _Node:
    """A part of a pattern: char (test, source), seq, alt, repeat (low, high, greedy), look, end."""

    kind: str
    parts: tuple[_Node, ...] = ()
    test: Callable[[str], object] | None = None
    source: str = ""
    low: int = 0
    high: int | None = None
    greedy: bool = True
    unbounded: bool = False  # it, or something in it, repeats without end


class _Reader:
    """The syntax: literals, classes, groups, |, quantifiers, (?=...) at the end, $. Everything else is refused with its place."""

    def __init__(self, source: str) -> None:
        self.source, self.at, self.depth = source, 0, 0
        self.python: list[str] = []  # the same for re
        self.names: list[str] = []

    def refuse(self, what: str) -> ValueError:
        return ValueError(f"the pattern {self.source!r} has {what} at character {self.at}, which is not run here")

    def read(self) -> _Node:
        node = self.choices()
        if self.at < len(self.source):
            raise self.refuse("a ) without its (")
        return node

    def choices(self) -> _Node:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise self.refuse(f"groups more than {MAX_DEPTH} deep")
        parts = [self.sequence()]
        while self.source[self.at : self.at + 1] == "|":
            self.at += 1
            self.python.append("|")
            parts.append(self.sequence())
        self.depth -= 1
        return parts[0] if len(parts) == 1 else _Node("alt", tuple(parts), unbounded=any(p.unbounded for p in parts))

    def sequence(self) -> _Node:
        parts: list[_Node] = []
        while self.at < len(self.source) and self.source[self.at] not in "|)":
            if parts and parts[-1].kind == "look":
                raise self.refuse("something behind a (?=...)")
            parts.append(self.quantified())
        return parts[0] if len(parts) == 1 else _Node("seq", tuple(parts), unbounded=any(p.unbounded for p in parts))

    def quantified(self) -> _Node:
        node = self.atom()
        found = _QUANTIFIER.match(self.source, self.at)
        if not found:
            return node
        if node.kind in ("look", "end") or found[2] == "+":
            raise self.refuse(f"the quantifier {found[0]}")
        low, high = {"*": (0, None), "+": (1, None), "?": (0, 1)}.get(found[1], (0, 0))
        if found[1][0] == "{":
            first, comma, last = found[1][1:-1].partition(",")
            low = int(first or 0)
            high = low if not comma else int(last) if last else None
        if high is None and node.unbounded:
            raise self.refuse("a repetition without end of another one")
        if high is not None and high < low:
            raise self.refuse(f"the quantifier {found[0]}")
        self.at = found.end()
        self.python.append(found[0])
        if _QUANTIFIER.match(self.source, self.at):
            raise self.refuse("two quantifiers in a row")
        return _Node("repeat", (node,), low=low, high=high, greedy=not found[2], unbounded=high is None or node.unbounded)

    def atom(self) -> _Node:
        c = self.source[self.at]
        if c == "(":
            return self.group()
        if c == "[":
            return self.character_class()
        if c == "\\":
            return self.escape()
        if c in "*+?" or c == "^" or (c == "{" and _QUANTIFIER.match(self.source, self.at)):
            raise self.refuse(f"a bare {c}")
        self.at += 1
        if c == "$":
            self.python.append(r"\Z")
            return _Node("end")
        if c == ".":
            self.python.append(c)
            return _Node("char", test=lambda _: True, source=".")
        return self.literal(c)

    def literal(self, c: str) -> _Node:
        source = re.escape(c)
        self.python.append(source)
        return _Node("char", test=c.__eq__, source=source)

    def group(self) -> _Node:
        self.at += 1
        look = False
        if self.source.startswith("?=", self.at):
            look = True
            self.at += 2
            self.python.append("(?=")
        elif self.source.startswith("?:", self.at):
            self.at += 2
            self.python.append("(?:")
        elif named := _NAMED.match(self.source, self.at):
            self.at = named.end()
            self.names.append(named[1])
            self.python.append(f"(?P<{named[1]}>")
        elif self.source.startswith("?", self.at):
            raise self.refuse(f"the group ({self.source[self.at : self.at + 2]}")
        else:
            self.python.append("(?:")
        node = self.choices()
        if self.source[self.at : self.at + 1] != ")":
            raise self.refuse("a ( without its )")
        self.at += 1
        self.python.append(")")
        return _Node("look", (node,), unbounded=node.unbounded) if look else node

    def character_class(self) -> _Node:
        end = self.at + 1
        end += self.source[end : end + 1] == "^"
        end += self.source[end : end + 1] == "]"
        while end < len(self.source) and self.source[end] != "]":
            end += 2 if self.source[end] == "\\" else 1
        source = self.source[self.at : end + 1]
        if end >= len(self.source):
            raise self.refuse("a [ without its ]")
        return self.one_of(source, end + 1)

    def one_of(self, source: str, end: int) -> _Node:
        try:
            test = re.compile(source, re.DOTALL).fullmatch
        except (re.error, FutureWarning) as error:
            raise self.refuse(f"{source} ({error})") from None
        self.at = end
        self.python.append(source)
        return _Node("char", test=test, source=source)

    def escape(self) -> _Node:
        c = self.source[self.at + 1 : self.at + 2]
        if c in tuple("sSwWdD"):
            return self.one_of(f"\\{c}", self.at + 2)
        if c in ("Z", "z"):
            self.at += 2
            self.python.append(r"\Z")
            return _Node("end")
        code = re.compile(r"x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})").match(self.source, self.at + 1)
        if code:
            self.at = code.end()
            return self.literal(chr(int(code[1] or code[2], 16)))
        if not c or (c.isalnum() and c not in _ESCAPED):
            raise self.refuse(f"\\{c}")
        self.at += 2
        return self.literal(_ESCAPED.get(c, c))


# ---- patterns: what runs ---------------------------------------------------------------------------------------


class State:
    """Where an automaton is: the places in its program that may come next, in the pattern's order of choices."""

    __slots__ = ("accepts", "at_end", "places", "moves")

    def __init__(self, places: tuple[int, ...], accepts: bool, at_end: bool) -> None:
        self.places, self.accepts, self.at_end = places, accepts, at_end
        self.moves: dict[str, State | None] = {}


class Pattern:
    """A regular expression that reads character by character. `.` is every character."""

    def __init__(self, source: str) -> None:
        if len(source) > MAX_SOURCE:
            raise ValueError(f"the pattern {source[:40]!r}... has {len(source)} characters; at most {MAX_SOURCE} are run")
        reader = _Reader(source)
        tree = reader.read()
        self.source, self.names = source, tuple(reader.names)
        try:
            self.regex = re.compile("".join(reader.python), re.DOTALL)
        except (re.error, OverflowError, RecursionError) as error:
            raise ValueError(f"{source!r} is no regular expression: {error}") from None
        self.lead, tree = _without_lead(tree)
        self._program: list[tuple[Any, ...]] = []
        self._emit(tree)
        self._program.append(("match",))
        self._states: dict[tuple[tuple[int, ...], bool], State] = {}
        start = self._state((0,))
        if start is None or start.accepts:
            raise ValueError(f"the pattern {source!r} matches an empty text; a marker has at least one character")
        self.start: State = start
        self.first = self._first(1)  # what a match begins with, for re; "": nothing but the end of a text
        for depth in range(2, MAX_FIRST):
            longer = self._first(depth)
            if len(longer) > MAX_SOURCE:
                break
            self.first = longer

    @classmethod
    def literals(cls, texts: Sequence[str]) -> Pattern:
        return cls("|".join(re.escape(text) for text in sorted(set(texts), key=lambda t: (-len(t), t))))

    def _first(self, depth: int, places: tuple[int, ...] | None = None) -> str:
        """The first so many characters of a match, or what of them a text has before it ends, as a regular expression."""
        found: dict[str, None] = {}
        for place in self.start.places if places is None else places:
            if self._program[place][0] != "char":
                continue
            rest = self._state((place + 1,)) if depth > 1 else None
            if rest is None or rest.accepts or rest.at_end:
                found[self._program[place][2]] = None
            else:
                found[f"{self._program[place][2]}(?:{self._first(depth - 1, rest.places)}|\\Z)"] = None
            if sum(map(len, found)) > MAX_SOURCE:
                break
        return "|".join(found)

    def _emit(self, node: _Node) -> None:
        program = self._program
        if len(program) > MAX_PROGRAM:
            raise ValueError(f"the pattern {self.source!r} repeats too much: its automaton has over {MAX_PROGRAM} steps")
        if node.kind == "char":
            program.append(("char", node.test, node.source))
        elif node.kind == "end":
            program.append(("end",))
        elif node.kind in ("seq", "look"):
            for part in node.parts:
                self._emit(part)
        elif node.kind == "alt":
            jumps = []
            for part in node.parts[:-1]:
                split = len(program)
                program.append(())
                self._emit(part)
                jumps.append(len(program))
                program.append(())
                program[split] = ("split", split + 1, len(program))
            self._emit(node.parts[-1])
            for jump in jumps:
                program[jump] = ("jump", len(program))
        else:
            self._emit_repeat(node)

    def _emit_repeat(self, node: _Node) -> None:
        program, (inner,) = self._program, node.parts
        for _ in range(node.low):
            self._emit(inner)

        def split(at: int, beyond: int) -> tuple[str, int, int]:
            return ("split", at + 1, beyond) if node.greedy else ("split", beyond, at + 1)

        if node.high is None:
            loop = len(program)
            program.append(())
            self._emit(inner)
            program.append(("jump", loop))
            program[loop] = split(loop, len(program))
            return
        splits = []
        for _ in range(node.high - node.low):
            splits.append(len(program))
            program.append(())
            self._emit(inner)
        for at in splits:
            program[at] = split(at, len(program))

    def _state(self, places: Sequence[int]) -> State | None:
        """What is reached from these places without a character; None: nothing."""
        program = self._program
        kept: list[int] = []
        seen: set[int] = set()
        accepts = False
        waiting = list(reversed(places))
        while waiting:
            place = waiting.pop()
            if place in seen:
                continue
            seen.add(place)
            step = program[place]
            if step[0] == "match":
                accepts = True  # what stands behind it in order would lose
                break
            if step[0] == "jump":
                waiting.append(step[1])
            elif step[0] == "split":
                waiting += (step[2], step[1])
            else:
                kept.append(place)
        if not kept and not accepts:
            return None
        key = (tuple(kept), accepts)
        known = self._states.get(key)
        if known is None:
            if len(self._states) > MAX_PROGRAM:
                self._states.clear()
            ends = [place + 1 for place in kept if program[place][0] == "end"]
            beyond = self._state(ends) if ends else None
            known = self._states[key] = State(key[0], accepts, accepts or (beyond is not None and beyond.at_end))
        return known

    def move(self, state: State, character: str) -> State | None:
        """The state behind a character; None: no match begins here."""
        program = self._program
        after = [p + 1 for p in state.places if program[p][0] == "char" and program[p][1](character) not in (None, False)]
        result = self._state(after) if after else None
        if len(state.moves) >= MAX_MOVES:
            state.moves.clear()
        state.moves[character] = result
        return result

    def find_all(self, text: str) -> Iterator[Mapping[str, str]]:
        """The groups of each match in a text, one behind the other. Raises ValueError where that takes too long."""
        if not self.first:
            return
        first = re.compile(self.first, re.DOTALL)
        work, at = WORK * len(text) + MAX_MARKER, 0
        while (begin := first.search(text, at)) is not None:
            start = begin.start()
            state, end, place, alive = self.start, -1, start, True
            for place in range(start, len(text)):
                character = text[place]
                after = state.moves[character] if character in state.moves else self.move(state, character)
                if after is None:
                    alive = False
                    break
                state = after
                if state.accepts:
                    end = place + 1
                    if not state.places:
                        break
            if alive and state.at_end and place == len(text) - 1:
                end = len(text)
            work -= place - start
            if work < 0:
                raise ValueError(f"the pattern {self.source!r} reads the same text again and again")
            if end < 0:
                at = start + 1
                continue
            found = self.regex.match(text, start)
            if found is None:  # never: the automaton has seen it match
                return
            yield {name: value or "" for name, value in found.groupdict().items()}
            at = max(end, start + 1)


def _without_lead(tree: _Node) -> tuple[_Node | None, _Node]:
    """A pattern that begins with a class repeated without end (blanks before a marker) is looked for without it, and extended backwards."""
    if tree.kind == "seq" and tree.parts[0].kind == "repeat":
        first = tree.parts[0]
        if first.low == 0 and first.high is None and first.greedy and first.parts[0].kind == "char":
            rest = tree.parts[1:]
            return first.parts[0], rest[0] if len(rest) == 1 else _Node("seq", rest)
    return None, tree


# ---- finding them as text comes --------------------------------------------------------------------------------


class Watch:
    """Several patterns that are looked for together, with what each one means. Shared by all texts."""

    def __init__(self, marks: Sequence[tuple[Any, Pattern]]) -> None:
        self.marks = tuple(marks)
        firsts = [pattern.first for _, pattern in marks if pattern.first]
        self.first = re.compile("|".join(firsts), re.DOTALL) if firsts else None
        self.leads = [pattern.lead.test for _, pattern in marks if pattern.lead is not None and pattern.lead.test is not None]


@dataclass(frozen=True)
class Found:
    """A marker: what it means, its text and the named groups of its pattern."""

    mark: Any
    text: str
    groups: Mapping[str, str]


@dataclass
class _Attempt:
    mark: Any
    pattern: Pattern
    state: State | None
    end: int = -1


class Scanner:
    """Text comes in; text that is no marker, and markers, go out. Where the text is cut into pieces changes nothing."""

    def __init__(self) -> None:
        self._text, self._at = "", 0
        self._watch = Watch(())
        self._forget()

    def watch(self, watch: Watch) -> None:
        """What to look for from here on."""
        self._watch = watch
        self._forget()

    def go_on(self, found: Found) -> None:
        """What was found is text: look for the same behind it. One of no characters would be found again."""
        self._forget()
        self._from += not found.text

    def _forget(self) -> None:
        self._from = self._at  # where a marker may begin
        self._attempts: list[_Attempt] | None = None
        self._start = self._seen = self._at

    def feed(self, text: str) -> None:
        gone, self._at = self._at, 0
        self._text = self._text[gone:] + text
        self._from -= gone
        self._start -= gone
        self._seen -= gone
        for attempt in self._attempts or ():
            attempt.end = max(attempt.end - gone, -1)

    def next(self, final: bool) -> tuple[str, Found | None]:
        """Text, and the marker behind it; None: nothing more is certain yet (final: there is none)."""
        text, watch = self._text, self._watch
        while True:
            if self._attempts is None:
                begin = watch.first.search(text, self._from) if watch.first else None
                if begin is None:
                    self._from = len(text)
                    return self._released(len(text), final), None
                self._start = self._seen = begin.start()
                self._attempts = [_Attempt(mark, pattern, pattern.start) for mark, pattern in watch.marks]
            self._advance(self._attempts, final)
            if any(attempt.state is not None for attempt in self._attempts):
                return self._released(self._start, final), None
            best = max(self._attempts, key=lambda attempt: attempt.end)  # the longest, of equals the first
            self._attempts = None
            if best.end < 0:
                self._from = self._start + 1
                continue
            return self._found(best)

    def _advance(self, attempts: list[_Attempt], final: bool) -> None:
        text, size = self._text, len(self._text)
        limit = self._start + MAX_MARKER
        for attempt in attempts:
            if attempt.state is None:
                continue
            state, pattern, alive = attempt.state, attempt.pattern, True
            for place in range(self._seen, min(size, limit)):
                character = text[place]
                after = state.moves[character] if character in state.moves else pattern.move(state, character)
                if after is None:
                    alive = False
                    break
                state = after
                if state.accepts:
                    attempt.end = place + 1
                    if not state.places:  # nothing could be longer
                        alive = False
                        break
            if alive and final and size <= limit and state.at_end:
                attempt.end = size
            attempt.state = state if alive and not final and size < limit else None
        self._seen = size

    def _found(self, best: _Attempt) -> tuple[str, Found]:
        text, start, lead = self._text, self._start, best.pattern.lead
        if lead is not None and lead.test is not None:
            start = self._back(start, [lead.test])
        match = best.pattern.regex.match(text, start, best.end)
        end = match.end() if match is not None else best.end
        groups = {name: value for name, value in match.groupdict().items() if value is not None} if match is not None else {}
        before, self._at = text[self._at : start], end
        self._from = self._seen = end
        return before, Found(best.mark, text[start:end], groups)

    def _released(self, end: int, final: bool) -> str:
        """What stands before `end`, without blanks that may belong to a marker."""
        if not final and self._watch.leads:
            end = self._back(end, self._watch.leads)
        out = self._text[self._at : end]
        self._at = max(self._at, end)
        return out

    def _back(self, end: int, tests: Sequence[Callable[[str], object]]) -> int:
        lowest = max(self._at, end - MAX_LEAD)
        while end > lowest and any(test(self._text[end - 1]) not in (None, False) for test in tests):
            end -= 1
        return end
