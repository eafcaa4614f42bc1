"""Patterns of markers such as <tool_call>, which are found in text that arrives piece by piece (scanner.py). They are regular expressions.

Python's re cannot tell whether a text may still become a match. For some patterns it also takes exponential time, even if the text matches:
for the pattern (?:(?:a|a)*c|a*b) and a text of forty letters a and one b, it tries 2^40 paths. Therefore this module compiles a pattern
into an automaton that processes each character once. The automaton finds the same matches as re (the leftmost, and by the order of
alternatives in the pattern). After each character it knows whether a longer match is still possible.

The groups of a match come from a second pass over the compiled program, which tries each step at most once at each character (as RE2's
BitState does; Cox, "Regular Expression Matching: the Virtual Machine Approach", 2009). This module uses re only to test single characters,
and to find the positions where a match may begin.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

MAX_SOURCE = 1 << 10  # maximum length of a pattern in characters
MAX_PROGRAM = 2048  # maximum number of steps of a compiled pattern; the patterns in response_templates.py need at most 159
MAX_DEPTH = 50  # maximum nesting depth of groups
MAX_FIRST = 24  # re searches for the first characters of a marker, and for at most MAX_FIRST - 1 of them
MAX_MARKER = 1 << 9  # maximum length of a marker in characters, and thus the most text that a Scanner holds back
MAX_LEAD = 256  # maximum number of blanks before a marker that count as part of it
MAX_MOVES = 1 << 9  # maximum number of transitions that a state caches
MAX_TRIED = 1 << 26  # maximum of (program steps x characters of a match), which limits the memory of Pattern.parts()
WORK = 4  # maximum number of times that find_all() may examine a character of the text, on average
# Maximum number of program steps that a search may spend on computing transitions that are not cached. It is FREE_BUILDING, plus BUILDING
# per character of the text.
BUILDING = 64
FREE_BUILDING = 1 << 19

# ---- parsing of patterns ---------------------------------------------------------------------------------------

_ESCAPED = {"n": "\n", "r": "\r", "t": "\t", "f": "\f", "v": "\v"}
_QUANTIFIER = re.compile(r"(\*|\+|\?|\{\d{1,4}\}|\{\d{1,4},\d{0,4}\}|\{,\d{1,4}\})(\?|\+)?")
# Matches an escape, or a character that must be escaped in a class, because re warns that later versions may treat it as a set operator.
_SET_SIGN = re.compile(r"\\.|[\[&~|]", re.DOTALL)
_NAMED = re.compile(r"\?P<([A-Za-z_]\w*)>")


def _kept(sign: re.Match[str]) -> str:
    return sign[0] if len(sign[0]) > 1 else f"\\{sign[0]}"


@dataclass(frozen=True)
class _Node:
    """A node of a pattern's syntax tree. kind is "char" (a character or class, with test and source), "seq", "alt", "repeat" (with low,
    high, greedy), "named" (source is the group's name), "look" for (?=...), or "end" for $."""

    kind: str
    parts: tuple[_Node, ...] = ()
    test: Callable[[str], object] | None = None
    source: str = ""
    literal: str = ""  # the character, if the node is a single character and not a class; else ""
    low: int = 0
    high: int | None = None
    greedy: bool = True
    unbounded: bool = False  # whether the node is or contains a repetition without an upper limit
    looks: bool = False  # whether the node is or contains a (?=...)

    def steps(self) -> int:
        """Returns the number of program steps that this node compiles to."""
        inner = [part.steps() for part in self.parts]
        if self.kind == "alt":
            return sum(inner) + 2 * (len(inner) - 1)
        if self.kind != "repeat":
            return sum(inner) + {"char": 1, "end": 1, "look": 1, "named": 2}.get(self.kind, 0)
        # A repetition of the empty text changes nothing, so it needs no steps.
        if inner[0] == 0:
            return 0
        return self.low * inner[0] + (inner[0] + 2 if self.high is None else (self.high - self.low) * (inner[0] + 1))


class _Reader:
    """Parses a pattern of literals, classes, groups, |, quantifiers and $, with (?=...) allowed only at the end. Anything else raises a
    ValueError with its position."""

    def __init__(self, source: str) -> None:
        self.source, self.at, self.depth = source, 0, 0
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
            parts.append(self.sequence())
        self.depth -= 1
        return self.together("alt", parts)

    def sequence(self) -> _Node:
        parts: list[_Node] = []
        while self.at < len(self.source) and self.source[self.at] not in "|)":
            if parts and parts[-1].looks:
                raise self.refuse("something behind a (?=...)")
            parts.append(self.quantified())
        return self.together("seq", parts)

    @staticmethod
    def together(kind: str, parts: list[_Node]) -> _Node:
        if len(parts) == 1:
            return parts[0]
        return _Node(kind, tuple(parts), unbounded=any(p.unbounded for p in parts), looks=any(p.looks for p in parts))

    def quantified(self) -> _Node:
        node = self.atom()
        found = _QUANTIFIER.match(self.source, self.at)
        if not found:
            return node
        if node.looks or node.kind == "end" or found[2] == "+":
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
            return _Node("end")
        if c == ".":
            return _Node("char", test=lambda _: True, source=".")
        return self.literal(c)

    @staticmethod
    def literal(c: str) -> _Node:
        return _Node("char", test=c.__eq__, source=re.escape(c), literal=c)

    def group(self) -> _Node:
        self.at += 1
        kind, name = "", ""
        if self.source.startswith("?=", self.at):
            kind = "look"
            self.at += 2
        elif self.source.startswith("?:", self.at):
            self.at += 2
        elif named := _NAMED.match(self.source, self.at):
            kind, name = "named", named[1]
            if name in self.names:
                raise self.refuse(f"a second group {name}")
            self.at = named.end()
            self.names.append(name)
        elif self.source.startswith("?", self.at):
            raise self.refuse(f"the group ({self.source[self.at : self.at + 2]}")
        node = self.choices()
        if self.source[self.at : self.at + 1] != ")":
            raise self.refuse("a ( without its )")
        self.at += 1
        if not kind:
            return node
        if kind == "look" and node.looks:
            raise self.refuse("a (?=...) in another one")
        return _Node(kind, (node,), source=name, unbounded=node.unbounded, looks=kind == "look" or node.looks)

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
        if source[0] == "[":
            source = source[0] + _SET_SIGN.sub(_kept, source[1:])
        try:
            test = re.compile(source, re.DOTALL).fullmatch
        except re.error as error:
            raise self.refuse(f"{source} ({error})") from None
        self.at = end
        return _Node("char", test=test, source=source)

    def escape(self) -> _Node:
        c = self.source[self.at + 1 : self.at + 2]
        if c in tuple("sSwWdD"):
            return self.one_of(f"\\{c}", self.at + 2)
        if c in ("Z", "z"):
            self.at += 2
            return _Node("end")
        code = re.compile(r"x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})").match(self.source, self.at + 1)
        if code:
            self.at = code.end()
            return self.literal(chr(int(code[1] or code[2], 16)))
        if not c or (c.isalnum() and c not in _ESCAPED):
            raise self.refuse(f"\\{c}")
        self.at += 2
        return self.literal(_ESCAPED.get(c, c))


# ---- execution of patterns -------------------------------------------------------------------------------------


class State:
    """A state of an automaton. `places` are the addresses of the program steps that may come next, in the pattern's order of choices.
    accepts: whether a match ends here. at_end: whether a match ends here if the text ends here. moves: cached transitions."""

    __slots__ = ("accepts", "at_end", "places", "moves")

    def __init__(self, places: tuple[int, ...], accepts: bool, at_end: bool) -> None:
        self.places, self.accepts, self.at_end = places, accepts, at_end
        self.moves: dict[str, State | None] = {}


class Pattern:
    """A regular expression that is matched one character at a time. `.` matches every character."""

    def __init__(self, source: str) -> None:
        if len(source) > MAX_SOURCE:
            raise ValueError(f"the pattern {source[:40]!r}... has {len(source)} characters; at most {MAX_SOURCE} are run")
        reader = _Reader(source)
        tree = reader.read()
        self.source, self.names = source, tuple(reader.names)
        if tree.steps() >= MAX_PROGRAM:
            raise ValueError(f"the pattern {source!r} repeats too much: its automaton has over {MAX_PROGRAM} steps")
        self._plain = not (reader.names or tree.looks)  # whether the pattern has no groups and no (?=...)
        self.lead, rest = _without_lead(tree)
        start = self._compiled(rest)
        if self.lead is not None and start is not None and not self._stands_apart(self.lead, start):
            self.lead, start = None, self._compiled(tree)
        if start is None or start.accepts:
            raise ValueError(f"the pattern {source!r} matches an empty text; a marker has at least one character")
        self.start: State = start
        # A pattern with which `re` finds where a match may begin. It is "" if all alternatives begin with the anchor `$`.
        # Then there is no search, because no character can follow `$`.
        self.first = _Firsts(self).found()

    def _compiled(self, tree: _Node) -> State | None:
        self._program: list[tuple[Any, ...]] = []
        self._emit(tree)
        self._program.append(("match",))
        self._states: dict[tuple[tuple[int, ...], bool], State] = {}
        return self._state((0,))

    def _stands_apart(self, lead: _Node, start: State) -> bool:
        """Returns whether no match of the rest of the pattern begins with a character that `lead` matches. If so, each match of the rest
        begins where a run of `lead` characters ends, and it is safe to search for the rest alone."""
        assert lead.test is not None
        firsts = [step for step in map(self._program.__getitem__, start.places) if step[0] == "char"]
        return all(step[3] and lead.test(step[3]) in (None, False) for step in firsts)

    @classmethod
    def literals(cls, texts: Sequence[str]) -> Pattern:
        """Returns a pattern that matches any of several texts and prefers the longest."""
        return cls("|".join(re.escape(text) for text in sorted(set(texts), key=lambda t: (-len(t), t))))

    def _emit(self, node: _Node) -> None:
        program = self._program
        if node.kind == "char":
            program.append(("char", node.test, node.source, node.literal))
        elif node.kind == "end":
            program.append(("end",))
        elif node.kind == "named":
            program.append(("save", node.source, 0))
            self._emit(node.parts[0])
            program.append(("save", node.source, 1))
        elif node.kind in ("seq", "look"):
            # Saves the current position as the end of the match, because the text of a (?=...) is not part of the match.
            if node.kind == "look":
                program.append(("save", "", 1))
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
        if inner.steps() == 0:
            return
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

    def _reached(self, places: Sequence[int], past_end: bool = False) -> Iterator[int]:
        """Yields the addresses of the program steps that can be reached from `places` without consuming a character, in the pattern's order
        of choices. past_end: the text has ended, so `$` matches."""
        waiting, seen = list(reversed(places)), set[int]()
        while waiting:
            place = waiting.pop()
            if place in seen:
                continue
            seen.add(place)
            yield place
            step = self._program[place]
            if step[0] == "jump":
                waiting.append(step[1])
            elif step[0] == "split":
                waiting += (step[2], step[1])
            elif step[0] == "save" or (step[0] == "end" and past_end):
                waiting.append(place + 1)

    def _state(self, places: Sequence[int]) -> State | None:
        """Returns the state for all steps that can be reached from `places` without consuming a character. Returns None if no match can end
        there or continue from there."""
        kept: list[int] = []
        accepts = False
        for place in self._reached(places):
            kind = self._program[place][0]
            if kind == "match":
                # The remaining choices have a lower priority than this match, so they are dropped.
                accepts = True
                break
            if kind in ("char", "end"):
                kept.append(place)
        if not kept and not accepts:
            return None
        key = (tuple(kept), accepts)
        known = self._states.get(key)
        if known is None:
            if len(self._states) > MAX_PROGRAM:
                self._states.clear()
            known = self._states[key] = State(key[0], accepts, accepts or self._ends(kept))
        return known

    def _ends(self, places: Sequence[int]) -> bool:
        """Returns whether a match is complete at `places` if the text ends there."""
        behind = [place + 1 for place in places if self._program[place][0] == "end"]
        return any(self._program[place][0] == "match" for place in self._reached(behind, past_end=True))

    def move(self, state: State, character: str) -> State | None:
        """Returns the state that follows `state` after a character, or None if no match continues with this character. Caches the
        result."""
        program = self._program
        after = [p + 1 for p in state.places if program[p][0] == "char" and program[p][1](character) not in (None, False)]
        result = self._state(after) if after else None
        if len(state.moves) >= MAX_MOVES:
            state.moves.clear()
        state.moves[character] = result
        return result

    def takes_nothing(self) -> bool:
        """Returns whether a match may be empty, because the pattern can reach its (?=...) without consuming a character."""
        return any(self._program[place] == ("save", "", 1) for place in self._reached((0,)))

    def parts(self, text: str, start: int, end: int) -> tuple[int, dict[str, str]]:
        """Returns the end of a match without the characters of its (?=...), and the texts of the match's groups. start and end are the
        bounds that the automaton found, including the (?=...)."""
        if self._plain:
            return end, {}
        program, width = self._program, end - start + 1
        # One flag for each pair of program step and text position, so that a path that failed once is not tried again.
        tried = bytearray(len(program) * width)
        saved: dict[tuple[str, int], int] = {}
        waiting: list[tuple[Any, ...]] = [(0, start)]
        while waiting:
            place, at, *before = waiting.pop()
            # An entry with `before` undoes a "save" step, because all paths after the step have failed. before[0] is the position that
            # was saved before the step, or None.
            if before:
                saved.pop(place, None) if before[0] is None else saved.__setitem__(place, before[0])
                continue
            while not tried[place * width + at - start]:
                tried[place * width + at - start] = 1
                step = program[place]
                if step[0] == "char":
                    if at == end or step[1](text[at]) in (None, False):
                        break
                    at += 1
                elif step[0] == "end":
                    if at != len(text):
                        break
                elif step[0] == "match":
                    groups = {name: text[at : saved[name, 1]] for (name, side), at in saved.items() if side == 0 and (name, 1) in saved}
                    return saved.get(("", 1), at), groups
                elif step[0] == "save":
                    waiting.append((step[1:], 0, saved.get(step[1:])))
                    saved[step[1:]] = at
                elif step[0] == "split":
                    waiting.append((step[2], at))
                place = step[1] if step[0] in ("jump", "split") else place + 1
        return end, {}  # never reached, because the automaton has already found a match

    def find_all(self, text: str) -> Iterator[tuple[int, int, dict[str, str]]]:
        """Yields the begin, the end and the groups of each match in a text. Raises ValueError if the search takes too many steps."""
        if not self.first:
            return
        first = re.compile(self.first, re.DOTALL)
        work, building, at = WORK * len(text) + MAX_MARKER, BUILDING * len(text) + FREE_BUILDING, 0
        while (begin := first.search(text, at)) is not None:
            start = begin.start()
            state, end, place, alive = self.start, -1, start, True
            for place in range(start, len(text)):
                character = text[place]
                if character in state.moves:
                    after = state.moves[character]
                else:
                    after = self.move(state, character)
                    building -= len(state.places) + (len(after.places) if after is not None else 0)
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
            if work < 0 or building < 0 or (end - start) * len(self._program) > MAX_TRIED:
                raise ValueError(f"the pattern {self.source!r} reads the same text again and again")
            if end < 0:
                at = start + 1
                continue
            end, groups = self.parts(text, start, end)
            yield start, end, groups
            at = max(end, start + 1)


class _Firsts:
    """Builds a pattern for re that finds where matches of a Pattern may begin. re finds these positions faster than the automaton does."""

    MOST_WORK = 1 << 14  # maximum number of program steps to visit; visiting them takes some milliseconds

    def __init__(self, pattern: Pattern) -> None:
        self._pattern, self._work = pattern, 0

    def found(self) -> str:
        best = self._of(1, self._pattern.start.places)
        for depth in range(2, MAX_FIRST):
            longer = self._of(depth, self._pattern.start.places)
            if len(longer) > MAX_SOURCE or self._work > self.MOST_WORK:
                break
            best = longer
        return best

    def _of(self, depth: int, places: Sequence[int]) -> str:
        """Returns a pattern for the first `depth` characters of the matches that start at the program addresses `places`. For a match that
        is shorter than `depth`, the pattern has fewer characters."""
        by_source: dict[str, list[int]] = {}
        self._work += len(places)
        for place in places:
            if (step := self._pattern._program[place])[0] == "char":
                by_source.setdefault(step[2], []).append(place + 1)
        found, length = [], 0
        for source, after in by_source.items():
            rest = self._pattern._state(after) if depth > 1 and self._work <= self.MOST_WORK else None
            if rest is None or rest.accepts or rest.at_end:
                found.append(source)
            else:
                found.append(f"{source}(?:{self._of(depth - 1, rest.places)}|\\Z)")
            length += len(found[-1])
            if length > MAX_SOURCE:
                break
        return "|".join(found)


def _without_lead(tree: _Node) -> tuple[_Node | None, _Node]:
    """Splits off a class that is repeated without a limit at the beginning of a pattern, such as blanks before a marker. Returns the class
    and the rest. Only the rest is searched for, and each match is then extended backwards over characters of the class."""
    if tree.kind == "seq" and tree.parts and tree.parts[0].kind == "repeat":
        first = tree.parts[0]
        if first.low == 0 and first.high is None and first.greedy and first.parts[0].kind == "char":
            rest = tree.parts[1:]
            return first.parts[0], rest[0] if len(rest) == 1 else _Node("seq", rest)
    return None, tree
