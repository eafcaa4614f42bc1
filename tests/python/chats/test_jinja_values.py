"""The filters, tests and methods of chat templates give what Jinja's own give, for values of every type. Jinja's sandbox, set up as
transformers sets it up, renders each template beside ours."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pytest
from jinja2 import filters, sandbox, tests

from pumice.chats.template_sandbox import compile_template, run_template
from pumice.errors import ChatTemplateError

JINJA = sandbox.ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)

VALUES = (
    "none", "nothing", "{}.x", "0", "5", "-3", "2.5", "true", "false", "''", "'ab Cd\\n e'", "'12'", "'<a>&'", "('<b>'|safe)", "[]",
    "[3, 1, 2, 1]", "['b', 'A', 'a']", "[1, 'a', none]", "[[1, 2], [3]]", "[{'a': 1}, {'a': 2}]", "[{'a': {'b': 1}}, {'a': {'b': 5}}]",
    "{}", "{'b': 1, 'a': 2}", "(1, 2)", "range(4)", "{'a': 1}.items()",
)  # fmt: skip
MAKERS = {value: JINJA.compile_expression(value, undefined_to_none=False) for value in VALUES}
# Filters that templates do not have: they reach attributes by name, give other results each time, or work for longer than the meter can
# see.
LEFT_OUT = {"attr", "pprint", "random", "striptags", "urlize", "wordwrap", "xmlattr"}
# Filters whose iterators only a loop or a list reads. Ours give lists.
LAZY = {"batch", "items", "map", "reject", "rejectattr", "reverse", "select", "selectattr", "slice", "unique"}
# What a filter is called with, beside nothing. tojson is as in transformers, without HTML's escapes.
ARGUMENTS = {
    "batch": ("(2)", "(3, 'x')"),
    "center": ("(9)", "(none)"),
    "default": ("('z')", "('z', true)"),
    "groupby": ("('a')",),
    "indent": ("(2, true)", "('-', blank=true)"),
    "int": ("(7)", "(7, 16)"),
    "join": ("('-')", "(d='-')", "('-', attribute='a.b')", "(', ', 'a')", "(attribute=0)"),
    "map": ("(2)", "('upper')", "(attribute='a.b', default=7)", "('default', 'q')"),
    "reject": ("('none')", "('odd')"),
    "rejectattr": ("('a')", "('a.b', 'equalto', 1)"),
    "replace": ("('a', 'b')", "('a', 'b', 1)"),
    "round": ("(none)", "(1, 'floor')"),
    "select": ("('none')", "('odd')"),
    "selectattr": ("('a')", "('a.b', 'equalto', 1)", "(2)"),
    "slice": ("(2)", "(3, 'x')"),
    "sort": ("(true)", "(attribute='a')"),
    "sum": ("('a')", "('a.b')", "(start=[])", "(start='x')"),
    "trim": ("('a')",),
    "truncate": ("(4)", "(4, true, '.', 0)"),
    "unique": ("(attribute='a')",),
}


def jinja(template: str) -> str | None:
    """Returns what Jinja renders, or None if it raises an error."""
    try:
        return JINJA.from_string(template).render()
    except Exception:
        return None


def ours(template: str) -> str | None:
    try:
        return run_template(compile_template(template), {}, datetime(2026, 1, 1))
    except ChatTemplateError:
        return None


def differences(*expressions: str) -> dict[tuple[str, str], Any]:
    """Returns {(x, expression): (Jinja's text, ours)} of those that differ, where None is an error."""
    found = {}
    for expression in expressions:
        template = "{{ " + expression + " }}"
        theirs, own = JINJA.from_string(template), compile_template(template)
        for value, make in MAKERS.items():
            texts = []
            for render in (theirs.render, lambda given, own=own: run_template(own, given, datetime(2026, 1, 1))):
                try:
                    texts.append(render({"x": make()}))  # anew each time, because a filter of Jinja changes lists
                except Exception:
                    texts.append(None)
            if texts[0] != texts[1]:
                found[value, expression] = texts
    return found


@pytest.mark.parametrize("name", sorted({*filters.FILTERS} - LEFT_OUT - {"tojson"}))
def test_filters(name: str) -> None:
    lazy = " | list" if name in LAZY else ""
    assert differences(*(f"x | {name}{given}{lazy}" for given in ("", *ARGUMENTS.get(name, ())))) == {}
    template = "{{ (('<b>'|safe) | " + name + ") + '<' }}"
    assert ours(template) == jinja(template)


@pytest.mark.parametrize("name", sorted(name for name in tests.TESTS if name.isidentifier()))
def test_tests(name: str) -> None:
    assert differences(*(f"x is {name}{given}" for given in ("", "(2)", "(none)", "('a')", "([1])"))) == {}


@pytest.mark.parametrize(
    "expression",
    [
        "(5).bit_length()", "(5).real", "(5).numerator", "true.denominator", "(2.5).is_integer()", "(2.5).hex()", "(2.5).real",
        "range(4).count(1)", "range(4).index(1)", "range(1, 9, 2).start", "range(4).stop", "range(4).step", "'a\\tb'.expandtabs()",
        "'a\\tb'.expandtabs(tabsize=3)", "none.x", "none['x']", "nothing.x", "'ab'.nothing", "[1].x", "{}.x", "(5).x", "none[0]", "[1][5]",
        "'abc'[none:2]", "none[1:]", "none == nothing", "none ~ 1", "none + 1", "nothing + 1", "'a' in none", "'a' in nothing",
    ],
)  # fmt: skip
def test_methods_and_operators(expression: str) -> None:
    template = "{{ " + expression + " }}"
    assert ours(template) == jinja(template)


@pytest.mark.parametrize("name", sorted(LEFT_OUT))
def test_a_filter_that_is_left_out_is_named(name: str) -> None:
    with pytest.raises(ChatTemplateError, match=rf"No filter named '{name}'"):
        compile_template("{{ 'a' | " + name + " }}")


@pytest.mark.parametrize(
    "expression",
    [
        "[1] | batch(10**9, 'x')", "[1] | slice(10**9)", "'a' | center(10**9)", "('a' * 8000000) | urlencode | urlencode",
        "('\\t' * 8000000).expandtabs(4000)", "('<' * 8000000) | forceescape | forceescape",
        "(('%s' * 20000) | safe) | format('<' * 999999)",
    ],
)  # fmt: skip
def test_what_takes_too_much_is_stopped(expression: str) -> None:
    with pytest.raises(ChatTemplateError, match="was stopped"):
        run_template(compile_template("{{ " + expression + " }}"), {}, datetime(2026, 1, 1))
