"""Hostile chat templates must not reach Python's internals or the machine. A template that would take too much time or memory must be
stopped within a second and 128 MiB. So must the patterns of a hostile response template, whatever the model answers.

PUMICE_FUZZ=10000 is the number of generated escapes."""

# ruff: noqa: E501  (long templates stay on one line)

from __future__ import annotations

import contextlib
import os
import random
import re
import resource
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pumice.chats.chat_templates import ChatTemplate
from pumice.chats.response_parser import ResponseParser, ResponseTemplate
from pumice.errors import ChatTemplateError

MESSAGES = [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Hi"}]

# ---- escapes: published ones first

ESCAPES = [
    # CVE-2024-34359 (llama-cpp-python), CVE-2026-5760 and published examples of template injection
    "{% for x in ().__class__.__base__.__subclasses__() %}{% if 'warning' in x.__name__ %}{{ x()._module.__builtins__['__import__']('os')"
    ".popen('touch /tmp/pwned').read() }}{% endif %}{% endfor %}",
    "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "{{ ''['__class__']['__mro__'] }}",
    "{{ [].__class__.__base__ }}",
    "{{ {}.__class__ }}",
    "{{ (1).__class__ }}",
    "{{ self.__init__.__globals__ }}",
    "{{ self._TemplateReference__context.cycler.__init__.__globals__.os.popen('id').read() }}",
    "{{ self._TemplateReference__context.namespace.__init__.__globals__.os.popen('id').read() }}",
    "{{ cycler.__init__.__globals__.os.popen('id').read() }}",
    "{{ joiner.__init__.__globals__.os.popen('id').read() }}",
    "{{ lipsum.__globals__['os'].popen('id').read() }}",
    "{{ lipsum.__globals__.os }}",
    "{{ namespace.__init__.__globals__.os.popen('id').read() }}",
    "{{ range.__class__.__base__.__subclasses__() }}",
    "{{ dict.__base__.__subclasses__() }}",
    "{{ raise_exception.__globals__['jinja2'] }}",
    "{{ strftime_now.__globals__ }}",
    "{{ raise_exception.__code__.co_consts }}",
    "{{ messages.__class__.__init__.__globals__ }}",
    "{{ messages[0].__class__.__base__.__subclasses__()[40]('/etc/passwd').read() }}",
    "{{ request.application.__globals__.__builtins__.__import__('os').popen('id').read() }}",
    "{{ config.__class__.__init__.__globals__['os'].popen('ls').read() }}",
    "{{ get_flashed_messages.__globals__ }}",
    "{{ url_for.__globals__ }}",
    "{% macro m() %}{% endmacro %}{{ m.__globals__ }}",
    "{% macro m() %}{% endmacro %}{{ m._func.__globals__ }}",
    "{% macro m() %}{% endmacro %}{{ m._environment }}",
    "{% for x in [1] %}{{ loop.__init__.__globals__ }}{% endfor %}",
    "{% for x in [1] %}{{ loop._iterable.gi_frame.f_globals }}{% endfor %}",
    "{% for x in [1] %}{{ loop.__class__ }}{% endfor %}",
    "{% set n = namespace() %}{% set n.__class__ = 1 %}{{ n }}",
    "{% set n = namespace(__class__=1) %}{{ n.__class__ }}",
    "{% set n = namespace() %}{{ n._Namespace__attrs.__class__ }}",
    "{{ (x for x in [1]).gi_frame }}",
    "{{ messages|map('upper').gi_frame.f_back }}",
    # CVE-2024-56326 (a filter calls a stored str.format) and CVE-2025-27516 (the filter `attr` returns str.format)
    "{{ ['{0.__class__.__init__.__globals__}']|map('format', messages)|list }}",
    "{% set f = '{0.__class__}'.format %}{{ f(messages) }}",
    "{{ ['{0.__class__.__mro__}'.format]|map('string')|list }}",
    "{% set fs = ['{0.__class__.__mro__}'.format] %}{{ messages|map(fs[0])|list }}",
    "{{ '{0.__class__}'|attr('format')(messages) }}",
    "{{ ''|attr('__class__') }}",
    "{{ ''|attr('\\x5f\\x5fclass\\x5f\\x5f') }}",
    "{{ messages|map('attr', '__class__')|list }}",
    "{{ '{0.__class__.__mro__}'.format(messages) }}",
    "{{ '{x.__class__}'.format(x=messages) }}",
    "{{ '{x.__class__.__init__.__globals__}'.format_map({'x': messages}) }}",
    "{{ '{0[__class__]}'.format(messages[0]) }}",
    "{{ '{0.__init__.__globals__[os]}'|format(namespace()) }}",
    "{{ ('{0.__class__}'|safe).format(messages) }}",
    "{{ ('%s'|safe).__class__ }}",
    "{{ '%(x)s'|format(x=''.__class__) }}",
    # access to attributes through filters and tests
    "{{ [messages]|map(attribute='__class__')|list }}",
    "{{ [messages]|map(attribute='__class__.__base__')|list }}",
    "{{ [messages]|groupby('__class__') }}",
    "{{ [messages]|sort(attribute='__class__')|map(attribute='__class__')|first }}",
    "{{ [messages]|sum(attribute='__class__') }}",
    "{{ [messages]|selectattr('__class__')|map(attribute='__class__')|list }}",
    "{{ [messages]|join(attribute='__class__') }}",
    "{{ [messages]|unique(attribute='__class__')|map(attribute='__class__')|list }}",
    "{{ [messages]|min(attribute='__class__') }}{{ ''.__class__ }}",
    "{{ dict(a=1).__class__ }}",
    "{{ dict.fromkeys.__self__ }}",
    "{{ range(3).__class__ }}",
    # access to other templates, and changes to the caller's objects
    "{% include '/etc/passwd' %}",
    "{% import 'os' as os %}",
    "{% from 'os' import system %}",
    "{% extends 'base' %}",
    "{{ messages.append(1) }}",
    "{{ messages.clear() }}",
    "{{ messages[0].update({'role': 'system'}) }}",
    "{{ messages[0].pop('role') }}",
    "{{ messages[0].setdefault('x', 1) }}",
    "{{ messages.sort() }}",
    "{% do messages.append(1) %}",
    "{{ 'x'.encode() }}",
    "{{ (5).to_bytes(10, 'big') }}",
    "{{ (5).from_bytes }}{{ ''.__class__ }}",
    "{{ 'x'.translate({}) }}",
    "{% debug %}",
    "{{ ''|pprint.__class__ }}",
    "{{ self.__dict__ }}",
    "{{ self._TemplateReference__context.environment.__class__ }}",
    "{{ caller.__globals__ }}",
    "{{ varargs.__class__ }}{{ ''.__class__ }}",
    "{{ undefined_thing.__class__.__init__.__globals__ }}",
    "{{ (undefined_thing|default('')).__class__ }}",
    "{% set x = undefined_thing %}{{ x._fail_with_undefined_error.__globals__ }}",
    "{{ environment.__class__ }}",
    "{{ context.__class__ }}",
    "{{ environment.call }}{{ environment.filters.x }}",
    "{{ messages.__iter__ }}{{ messages.__len__() }}",
    "{{ messages.__getattribute__('__class__') }}",
    "{{ ''.join.__self__.__class__ }}",
    "{{ ''.format.__globals__ }}",
    "{{ ''.format.__wrapped__.__self__.__class__ }}",
    "{{ ''.format.__closure__ }}",
    "{{ range.__wrapped__ }}",
    "{% block b %}{{ self.b.__func__ }}{% endblock %}",
    "{% block b %}{{ super.__class__.x }}{% endblock %}",
    "{% block b %}{{ self.b._context.environment.filters.x.y }}{% endblock %}",
    "{{ messages|tojson.__globals__ }}",
    "{{ ''|safe.unescape }}{{ (''|safe).__html__.__self__.__class__ }}",
    "{{ ('x'|escape).__class__.escape.__func__.__globals__ }}",
    "{% autoescape true %}{{ ''.__class__ }}{% endautoescape %}",
    "{% generation %}{{ ''.__class__ }}{% endgeneration %}",
    "{% filter attr('__class__') %}x{% endfilter %}",
    "{% call raise_exception.__globals__() %}{% endcall %}",
    "{{ 1 is filter('x').__class__ }}{{ ''.__class__ }}",
    "{{ raise_exception }}",
    "{{ [range, dict, namespace, strftime_now] }}{{ ''.join }}{{ messages[0].items ~ '' }}{{ namespace(x=range) }}",
    # CVE-2016-10745 and CVE-2019-10906 (str.format and str.format_map), CVE-2024-22195 and CVE-2024-34064 (keys of xmlattr),
    # CVE-2024-56201 (code in a name that the compiler writes out), CVE-2025-27516 = GHSA-cpwx-vrp4-4pq7 (attr, also through map)
    "{{ '{0.__class__.__init__.__globals__[os]}'.format(cycler) }}",
    "{{ ''['format_map'].__call__({'x': 1}) }}",
    "{{ {'a onclick=1': 2}|xmlattr }}",
    "{% block x['__class__'] %}{% endblock %}",
    "{% set __builtins__ = 1 %}{{ __builtins__.__import__ }}",
    "{% macro __import__(x) %}{{ x.__class__ }}{% endmacro %}{{ __import__('os') }}",
    "{% for __class__ in [1] %}{{ __class__.__class__ }}{% endfor %}",
    "{{ ['{0.__class__}']|map('attr', 'format')|map('string')|list }}",
    "{{ ('{0.__class__.__base__}'|attr)('format')(1) }}",
    "{{ messages|map(attribute='items.__self__')|list }}",
    "{{ ['a']|map('format', __class__=1)|list }}",
    "{{ (messages|first).items.__self__.__class__ }}",
    "{{ ''.join.__self__.__class__.__mro__ }}",
    "{{ messages|sort(attribute='content.__class__')|list }}",
    "{{ messages|groupby('content.__class__.__name__') }}",
    "{{ messages|map(attribute='content.format.__self__')|list }}",
    "{{ messages|selectattr('content.__class__', 'equalto', 1)|list }}",
    "{{ range.__getattribute__(range, '__cl' ~ 'ass__') }}",
    "{{ namespace.__mro__ }}{{ namespace.mro() }}",
    "{{ strftime_now('%Y').__class__.__subclasses__() }}",
    "{{ raise_exception.__defaults__ }}{{ raise_exception.__kwdefaults__ }}",
    "{% call(x) raise_exception.__call__('a') %}{{ x.__class__ }}{% endcall %}",
    "{% set ns = namespace(f='{0.__class__}'.format) %}{{ ns.f(messages) }}",
    "{{ dict(f='{0.__class__}'.format).f(messages) }}",
    "{{ [''.format][0].__self__ }}{{ {'f': ''.format}.f.__func__ }}",
    "{{ loop.__class__ }}{{ self.__class__.__mro__ }}",
    "{% for m in messages recursive %}{{ loop.__call__.__globals__ }}{% endfor %}",
    "{{ joiner.__init__.__globals__ }}{{ cycler.next.__globals__ }}",
    "{{ ('__class__', '__base__')|map('extract', messages)|list }}",
    "{{ messages.copy.__self__.__class__ }}{{ messages[0].copy.__objclass__ }}",
]
# What generated escapes are made of: values, ways to an attribute of one, and attributes.
VALUES = (
    "''", "[]", "{}", "()", "1", "1.5", "true", "none", "messages", "messages[0]", "range", "range(3)", "dict", "namespace", "namespace(a=1)",
    "raise_exception", "strftime_now", "self", "''.join", "'{}'.format", "messages[0].items", "('a'|safe)", "(messages|map('length'))",
    "nothing", "cycler", "joiner", "lipsum", "bos_token", "(1 if 0)", "('a'|e)", "messages[0].items()", "(messages|first)", "[''.format][0]",
)  # fmt: skip
WAYS = (
    "{v}.{a}", "{v}['{a}']", "{v}|attr('{a}')", "[{v}]|map(attribute='{a}')|list", "'{{0.{a}}}'.format({v})", "'{{x.{a}}}'.format(x={v})",
    "'{{0.{a}}}'.format_map({{'0': {v}}})", "{v}['{h}' ~ '{t}']", "{v}[['{h}', '{t}']|join]", "{v}['{r}'|reverse]", "{v}['{x}']",
    "{v}['%s%s'|format('{h}', '{t}')]", "[{v}]|groupby('{a}')|list", "[{v}]|sort(attribute='{a}')|map(attribute='{a}')|list",
    "[{v}]|selectattr('{a}')|map(attribute='{a}')|list", "[{v}]|sum(attribute='{a}', start='')", "[{v}]|join('', attribute='{a}')",
    "[{v}]|unique(attribute='{a}')|list", "[{v}]|min(attribute='{a}')", "['{{0.{a}}}']|map('format', {v})|list",
    "['{{0.{a}}}'.format]|first", "dict(x={v}).x.{a}", "namespace(x={v}).x.{a}", "({v}, {v})[1].{a}", "{v}|first|attr('{a}')",
)  # fmt: skip
ATTRIBUTES = (
    "__class__", "__mro__", "__base__", "__bases__", "__subclasses__", "__init__", "__globals__", "__builtins__", "__dict__", "__code__",
    "__closure__", "__func__", "__self__", "__wrapped__", "__module__", "__reduce_ex__", "__getattribute__", "__doc__", "__call__",
    "__objclass__", "__format__", "__init_subclass__", "__class_getitem__", "gi_frame", "gi_code", "f_back", "f_globals", "cr_frame",
    "ag_frame", "tb_frame", "mro", "func_globals", "im_func", "im_self", "_TemplateReference__context", "_Namespace__attrs", "_environment",
    "environment", "_context", "eval_ctx", "exported_vars", "parent", "resolve", "get_all", "__slots__", "__weakref__", "append", "update",
    "clear", "pop", "setdefault", "encode", "decode", "translate", "maketrans", "from_bytes", "to_bytes", "fromkeys", "unescape", "__html__",
)  # fmt: skip


def generated(count: int, seed: int = 1) -> list[str]:
    """Returns templates that reach for an attribute, or for an attribute of it, in a way that a filter or a method may let through."""
    draw, found = random.Random(seed), []
    for _ in range(count):
        value = draw.choice(VALUES)
        for _ in range(draw.choice((1, 1, 2, 3))):
            name = draw.choice(ATTRIBUTES)
            half, spelt = len(name) // 2, "".join(f"\\\\x{ord(c):02x}" for c in name)
            way = draw.choice(WAYS).format(v=value, a=name, h=name[:half], t=name[half:], r=name[::-1], x=spelt)
            value = f"({way})"
        found.append("{{ " + draw.choice(("{}", "{}|string", "{}|list", "{}()", "{}|tojson", "{}|length", "[{}]")).format(value) + " }}")
    return found


FUZZ = int(os.environ.get("PUMICE_FUZZ", "1000"))

LEAKS = (
    "class '", "<function", "built-in", "module", "object at 0x", "/root", "uid=", "subclasses", "<bound", "<method", "<slot", "<code",
    "<frame", "<cell", "mappingproxy", "<Environment", "<attribute",
)  # fmt: skip


@pytest.mark.parametrize("source", ESCAPES)
def test_no_escape(source: str) -> None:
    try:
        text = ChatTemplate(source, "<s>", "</s>").render(MESSAGES)
    except ChatTemplateError:
        return
    assert not any(leak in text for leak in LEAKS), text
    assert MESSAGES == [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Hi"}]


def test_no_generated_escape() -> None:
    quiet = 0
    for source in generated(FUZZ):
        start = time.thread_time()
        try:
            text = ChatTemplate(source, "<s>", "</s>").render(MESSAGES)
            quiet += 1
        except ChatTemplateError:
            text = ""
        assert not any(leak in text for leak in LEAKS), (source, text)
        assert time.thread_time() - start < 5, source
    assert MESSAGES == [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Hi"}]
    assert quiet < 0.6 * FUZZ  # the others raise an error


def test_an_audit_hook_sees_nothing() -> None:
    """Rendering must not open, import, compile or execute anything. The test runs in a process of its own, because an audit hook cannot be
    removed."""
    program = """
import sys, time
from pumice.chats.chat_templates import ChatTemplate
from pumice.chats.response_parser import ResponseParser, ResponseTemplate
from pumice.errors import ChatTemplateError
import test_template_attacks as attacks
messages = attacks.MESSAGES
def compiled(source):
    try:
        return ChatTemplate(source, "<s>", "</s>")
    except ChatTemplateError:
        return None
templates = [t for t in map(compiled, attacks.ESCAPES + attacks.generated(attacks.FUZZ, seed=2) + ["{{ strftime_now('%Y') }}", "{{ messages|tojson(indent=1) }}"]) if t]
for template in templates:   # once before, so that what Python loads late is there
    try:
        template.render(messages)
    except ChatTemplateError:
        pass
seen = []
watching = False
def hook(event, args):
    if watching and event.split(".")[0] in ("exec", "compile", "open", "import", "socket", "os", "subprocess", "ctypes", "marshal", "pickle"):
        seen.append((event, str(args)[:200]))
sys.addaudithook(hook)
watching = True
for template in templates:
    try:
        template.render(messages)
    except ChatTemplateError:
        pass
watching = False
assert len(templates) > 80 + attacks.FUZZ // 2, len(templates)
assert seen == [], seen
print("quiet")
"""
    paths = [str(Path(__file__).parent), *sys.path]
    run = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path[:] = {paths!r}\n{_preload()}{program}"], capture_output=True, text=True, timeout=120
    )
    assert run.stdout.strip() == "quiet", run.stderr[-3000:]


def _preload() -> str:
    """Returns code that imports the compiled engine, if this process has it from outside the package. Returns "" otherwise."""
    plugin = sys.modules.get("plug")
    return f"sys.path.insert(0, {str(Path(plugin.__file__).parent)!r}); import plug\n" if plugin is not None and plugin.__file__ else ""


# ---- templates that would take too much time or memory

BOMBS = {
    "nested loops": "{% for a in range(100000) %}{% for b in range(100000) %}{% endfor %}{% endfor %}",
    "loops with output": "{% for a in range(100000) %}{% for b in range(100000) %}x{% endfor %}{% endfor %}",
    "one loop with much text": "{% for a in range(100000) %}" + "x" * 5000 + "{% endfor %}",
    "much text into a variable": "{% set v %}{% for a in range(100000) %}" + "x" * 5000 + "{% endfor %}{% endset %}",
    "range": "{% for a in range(10**9) %}{% endfor %}",
    "range into a list": "{{ range(10**12)|list }}",
    "string times": "{{ 'a' * 10**9 }}",
    "string times, other way": "{{ 10**9 * 'a' }}",
    "list times": "{{ [1] * 10**9 }}",
    "empty list times": "{{ [] * 10**9 }}{{ '' * 10**9 }}" + "{{ 'a' * 10**8 }}",
    "power": "{{ 9**99999 }}",
    "power of a negative": "{{ (-3)**(10**9) }}",
    "product": "{% set n = namespace(x=2**4000) %}{% for i in range(1000) %}{% set n.x = n.x * n.x %}{% endfor %}",
    "doubling a string": "{% set n = namespace(s='a') %}{% for i in range(60) %}{% set n.s = n.s + n.s %}{% endfor %}",
    "doubling with ~": "{% set n = namespace(s='a') %}{% for i in range(60) %}{% set n.s = n.s ~ n.s %}{% endfor %}",
    "doubling a list": "{% set n = namespace(s=[1]) %}{% for i in range(60) %}{% set n.s = n.s + n.s %}{% endfor %}",
    "doubling by nesting": "{% set n = namespace(s=[1]) %}{% for i in range(60) %}{% set n.s = [n.s, n.s] %}{% endfor %}{{ n.s }}",
    "doubling by nesting dicts": "{% set n = namespace(s=1) %}{% for i in range(60) %}{% set n.s = {1: n.s, 2: n.s} %}{% endfor %}{{ n.s }}",
    "doubling by nesting tuples": "{% set n = namespace(s=1) %}{% for i in range(60) %}{% set n.s = (n.s, n.s) %}{% endfor %}{{ n.s == n.s }}",
    "doubling by dict()": "{% set n = namespace(s=1) %}{% for i in range(60) %}{% set n.s = dict(a=n.s, b=n.s) %}{% endfor %}{{ n.s }}",
    "doubling by format": "{% set n = namespace(s='a') %}{% for i in range(60) %}{% set n.s = '%s%s' % (n.s, n.s) %}{% endfor %}",
    "doubling by .format": "{% set n = namespace(s='a') %}{% for i in range(60) %}{% set n.s = '{0}{0}'.format(n.s) %}{% endfor %}",
    "doubling by join": "{% set n = namespace(s='a') %}{% for i in range(60) %}{% set n.s = [n.s, n.s]|join %}{% endfor %}",
    "doubling by .join": "{% set n = namespace(s='a') %}{% for i in range(60) %}{% set n.s = ''.join([n.s, n.s]) %}{% endfor %}",
    "doubling by replace": "{% set n = namespace(s='a') %}{% for i in range(60) %}{% set n.s = n.s|replace('a', 'aa') %}{% endfor %}",
    "doubling by .replace": "{% set n = namespace(s='a') %}{% for i in range(60) %}{% set n.s = n.s.replace('a', 'aa') %}{% endfor %}",
    "doubling by set block": "{% set n = namespace(s='a') %}{% for i in range(60) %}{% set v %}{{ n.s }}{{ n.s }}{% endset %}{% set n.s = v %}"
    "{% endfor %}",
    "doubling by macro": "{% macro m(s) %}{{ s }}{{ s }}{% endmacro %}{% set n = namespace(s='a') %}{% for i in range(60) %}"
    "{% set n.s = m(n.s) %}{% endfor %}",
    "doubling by sum": "{% set n = namespace(s=['a']) %}{% for i in range(60) %}{% set n.s = [n.s, n.s]|sum(start=[]) %}{% endfor %}",
    "doubling a namespace": "{% set n = namespace(s=1) %}{% for i in range(60) %}{% set n = namespace(s=[n, n]) %}{% endfor %}{{ n }}"
    "{{ 'a' * 10**9 }}",
    "replace": "{% set s = 'a' * 1000000 %}{{ s|replace('a', s) }}",
    "replace of nothing": "{% set s = 'a' * 1000000 %}{{ s.replace('', s) }}",
    "join with a long separator": "{% set s = 'a' * 1000000 %}{{ range(10000)|join(s) }}",
    "join of a string": "{% set s = 'a' * 8000000 %}{{ s|join(s) }}",
    "% width": "{{ '%1000000000d' % 5 }}",
    "% star width": "{{ '%*d' % (1000000000, 5) }}",
    "|format width": "{{ '%1000000000d'|format(5) }}",
    ".format width": "{{ '{:1000000000}'.format(5) }}",
    ".format nested width": "{{ '{:{}}'.format(5, 1000000000) }}",
    ".format repeated": "{% set s = 'a' * 1000000 %}{{ ('{0}' * 10000).format(s) }}",
    "center": "{{ 'a'.center(1000000000) }}",
    "|center": "{{ 'a'|center(1000000000) }}",
    "zfill": "{{ 'a'.zfill(1000000000) }}",
    "ljust": "{{ 'a'.ljust(1000000000) }}",
    "expandtabs": "{{ '\\t'.expandtabs(1000000000) }}",
    "indent": "{{ 'a\\n'|indent(1000000000, true) }}",
    "indent many lines": "{{ ('a\\n' * 1000000)|indent(4000, true) }}",
    "tojson indent": "{{ [1]|tojson(indent=1000000000) }}",
    "batch": "{{ [1]|batch(1000000000, 'x')|list }}",
    "slice": "{{ [1]|slice(1000000000)|list }}",
    "wordwrap": "{{ ('a ' * 100000)|wordwrap(1) }}",
    "lipsum": "{{ lipsum(1000000000) }}",
    "round": "{{ 1.5|round(1000000000, 'ceil') }}",
    "int": "{{ ('9' * 1000000)|int }}",
    "split": "{{ ('a,' * 4000000).split(',')|length }}",
    "split on spaces": "{{ ('a ' * 4000000).split()|length }}",
    "splitlines": "{{ ('a\\n' * 4000000).splitlines()|length }}",
    "list of a string": "{{ ('a' * 8000000)|list }}",
    "sorting": "{{ ('ab' * 4000000)|sort|first }}",
    "unique": "{{ ('ab' * 4000000)|unique|list }}",
    "macro calls itself": "{% macro m(x) %}{{ m(x + 1) }}{% endmacro %}{{ m(1) }}",
    "macros call each other": "{% macro a() %}{{ b() }}{{ b() }}{% endmacro %}{% macro b() %}{{ a() }}{{ a() }}{% endmacro %}{{ a() }}",
    "macro tree": "{% macro m(d) %}{% if d %}{{ m(d - 1) }}{{ m(d - 1) }}{{ m(d - 1) }}{% endif %}{% endmacro %}{{ m(50) }}",
    "call block": "{% macro m() %}{{ caller() }}{{ caller() }}{% endmacro %}" + "{% call m() %}" * 60 + "x" + "{% endcall %}" * 60,
    "recursive loop": "{% for a in [range(10)] recursive %}{{ loop([a, a, a]) }}{% endfor %}",
    "block calls itself": "{% block b %}{{ self.b() }}{{ self.b() }}{% endblock %}",
    "macro as default": "{% macro m(x=[1]*100000) %}{% for y in x %}{{ m() }}{% endfor %}{% endmacro %}{{ m() }}",
    "comparing": "{% set a = 'x' * 8000000 %}{% set b = 'x' * 8000000 %}" + "{{ a == b }}" * 3000 + "{{ 'a' * 10**9 }}",
    "searching": "{% set a = 'x' * 4000000 %}" + "{{ (a ~ 'y') in a }}" * 5000,
    "slices": "{% set a = 'x' * 8000000 %}" + "{% set b = a[1:] %}" * 5000,
    "many variables": "{% set a = 'x' * 1000000 %}" + "".join(f"{{% set v{i} = a ~ {i} %}}" for i in range(5000)),
    "output": "{% set a = 'x' * 1000000 %}" + "{{ a }}" * 100,
    "output of a list": "{% set a = ['x' * 1000000] * 100 %}{{ a }}",
    "json": "{% set a = ['x' * 1000000] * 100 %}{{ a|tojson }}",
    "upper many": "{% set a = 'x' * 1000000 %}{{ ([a] * 1000)|map('upper')|join }}",
    "string of a list": "{% set a = ['x' * 1000000] * 100 %}{{ a|string|length }}",
    "strftime": "{{ strftime_now('%c' * 1000000) }}",
    "deep list": "{% set n = namespace(s=[]) %}{% for i in range(100000) %}{% set n.s = [n.s] %}{% endfor %}{{ n.s }}",
    "deep filters": "{% set n = namespace(s=[1]) %}{% for i in range(100000) %}{% set n.s = n.s|map('string') %}{% endfor %}{{ n.s|list }}"
    "{{ 'a' * 10**9 }}",
    "loop over a loop": "{% for a in range(1000) %}{% for b in range(1000) %}{% if loop.length %}{% endif %}{% endfor %}{% endfor %}"
    "{{ 'a' * 10**9 }}",
    "loop.cycle": "{% for a in range(100000) %}{{ loop.cycle(*range(100000)) }}{% endfor %}",
    "splat": "{{ dict(*[[1]] * 10**8) }}",
    "dictsort": "{% set n = namespace(d={}) %}{% for i in range(100000) %}{% set n.d = dict(n.d, **{i|string: 1}) %}{% endfor %}{{ n.d|dictsort }}",
    "title": "{{ ('a ' * 8000000)|title|title|title|title|title|title }}",
    "wordcount": "{{ ('a ' * 4000000)|wordcount }}" * 200 + "{{ 'a' * 10**9 }}",
    "join with itself": "{% set s = 'a' * 100000 %}{{ s.join(s) }}",
    "join of keys": "{% set s = 'a' * 8000000 %}{{ s.join(dict(a=1, b=2, c=3, d=4, e=5, f=6, g=7, h=8).keys()) }}",
    "join of items of items": "{% set s = 'a' * 8000000 %}{{ s.join(messages[0].items()|map('first')) }}{{ s.join(messages[0]) }}" * 9,
    "search from the end": "{{ ('a' * 8000000).rfind('ab' + 'a' * 4000000) }}",
    "index from the end": "{{ ('a' * 8000000).rindex('ab' + 'a' * 4000000) }}",
    "split from the end": "{{ ('a' * 1000000).rsplit('ab' + 'a' * 500000) }}",
    "partition from the end": "{{ ('a' * 8000000).rpartition('ab' + 'a' * 4000000) }}",
    "strip of many": "{{ ('a' * 8000000).strip('b' * 1000000 ~ 'a') }}",
    "|trim of many": "{{ ('a' * 8000000)|trim('b' * 1000000 ~ 'a') }}",
    "strips that add up": "{% for i in range(100000) %}{{ ('a' * 250000).strip('b' * 1000 ~ 'a') }}{% endfor %}",
    "upper of ligatures": "{{ ('\ufb03' * 16000000).upper()|length }}",
    "|upper of ligatures": "{{ ('\ufb03' * 16000000)|upper|length }}",
    "casefold of letters": "{{ ('\u0390' * 16000000).casefold()|length }}",
    "title of ligatures": "{{ ('\ufb03' * 16000000).title()|length }}",
    "indent of short lines": "{{ ('ab\\n' * 5000000)|indent(0) }}",
    "indent of other line ends": "{{ ('a\\r' * 200000)|indent(4000) }}",
    "indent of separators": "{{ ('a\u2028' * 200000)|indent(4000) }}",
    "tojson of controls": "{{ [('\x01' * 15000000)]|tojson }}",
    "tojson in ASCII": "{{ ['\u00e9' * 15000000]|tojson(ensure_ascii=true) }}",
    "tojson deep": "{% set n = namespace(s=range(20000)|list) %}{% for i in range(90) %}{% set n.s = [n.s] %}{% endfor %}{{ n.s|tojson(indent=32) }}",
    "tojson of tojson": "{% set n = namespace(s='\"') %}{% for i in range(60) %}{% set n.s = n.s|tojson %}{% endfor %}",
    "text of unprintable": "{{ ['\U000e0001' * 4000000]|string }}",
    "~ of unprintable": "{{ ['\U000e0001' * 4000000] ~ '' }}",
    "output of unprintable": "{{ ['\U000e0001' * 4000000] }}",
    "error of a list": "{{ raise_exception(['\U000e0001' * 4000000]) }}",
    "format of unprintable": "{{ '%s'|format(['\U000e0001' * 4000000]) }}",
    "precision": "{{ ('%.999f' * 40000) % ((1.0,) * 40000) }}",
    "power of a float": "{{ 2.5**(10**300) }}",
    "|center, |wordwrap, |truncate": "{{ 'a'|center(10**9)|wordwrap(1)|truncate(10**9) }}",
    "cycler": "{{ cycler(*range(10**9)) }}",
    "joiner": "{{ joiner('a' * 10**9) }}",
    "caller calls itself": "{% macro m() %}{{ caller() }}{% endmacro %}{% macro r() %}{% call m() %}{{ r() }}{% endcall %}{% endmacro %}{{ r() }}",
    "macro with a growing argument": "{% macro m(x) %}{{ m(x ~ x) }}{% endmacro %}{{ m('a') }}",
    "namespaces that double": "{% set n = namespace(x=1) %}{% for i in range(60) %}{% set n.x = namespace(x=n.x, y=n.x) %}{% endfor %}{{ n.x }}",
    "values of a dict": "{{ dict(a='\U000e0001' * 4000000).values() }}",
    "namespace in a namespace": "{% set n = namespace() %}{% for i in range(100000) %}{% set n.x = namespace(x=n.x, y=n.x) %}{% endfor %}{{ n.x }}"
    "{{ 'a' * 10**9 }}",
    "counting in a list": "{% set t = (1,) * 200000 %}{% for i in range(100000) %}{{ t.count(2) }}{% endfor %}",
    "searching in a list": "{% set t = [1] * 200000 %}{% for i in range(100000) %}{{ 2 in t }}{% endfor %}",
    "counting in a text": "{% set t = 'ab' * 4000000 %}{% for i in range(100000) %}{{ t.count('ba') }}{% endfor %}",
    "dates": "{% for i in range(100000) %}{% for j in range(100) %}{{ strftime_now('%c') }}{% endfor %}{% endfor %}",
}


def run_bomb(source: str) -> tuple[float, str]:
    start = time.thread_time()
    with pytest.raises(ChatTemplateError) as caught:
        ChatTemplate(source, "<s>", "</s>").render(MESSAGES)
    return time.thread_time() - start, str(caught.value)


@contextlib.contextmanager
def grown() -> Iterator[list[float]]:
    """Gives a list to which, at the end, the MiB are added by which the memory of the process had grown at its peak. On Linux the peak is
    counted anew; elsewhere an earlier peak may hide a smaller one."""

    def status(name: str) -> float:
        try:
            found = re.search(rf"{name}:\s*(\d+) kB", Path("/proc/self/status").read_text())
        except OSError:
            found = None
        return int(found[1]) / 1024 if found else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024

    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")
    result: list[float] = []
    before = status("VmRSS")
    yield result
    result.append(status("VmHWM") - before)


@pytest.mark.parametrize("name", BOMBS)
def test_a_bomb_ends(name: str) -> None:
    with grown() as more:
        seconds, message = run_bomb(BOMBS[name])
    assert seconds < 1.5, message
    assert more[0] < 128, message
    assert len(message) < 500


def test_a_bomb_ends_in_another_thread_too() -> None:
    results: list[float] = []
    threads = [threading.Thread(target=lambda: results.append(run_bomb(BOMBS["nested loops"])[0])) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 2
    assert max(results) < 1.5


# ---- sources that are too large or nested too deeply


@pytest.mark.parametrize(
    "source",
    [
        "x" * (257 << 10),
        "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}",
        "{{ " + "[" * 5000 + "]" * 5000 + " }}",
        "{{ " + "not " * 5000 + "1 }}",
        "{{ " + "-" * 5000 + "1 }}",
        "{{ " + "1+" * 50000 + "1 }}",
        "{{ " + "a." * 50000 + "a }}",
        "{{ a" + "[0]" * 50000 + " }}",
        "{{ a" + "|list" * 40000 + " }}",
        "{{ a" + "()" * 50000 + " }}",
        "{{ " + "1 if 1 else " * 15000 + "1 }}",
        "{% if 1 %}" * 10000,
        "{% for a in b %}" * 500 + "{% endfor %}" * 500,
        "{% if 1 %}" * 150 + "{% endif %}" * 150,
        "{% if 0 %}" + "{% elif 0 %}" * 15000 + "{% endif %}" + "{{ 'a' * 10**9 }}",
        "{{ a }}" * 30000,
        "{{ [" + "1," * 100000 + "] }}",
        "{{ {" + "1:1," * 60000 + "} }}",
        "{{" * 100000,
        "{%" * 100000,
        "{#" * 100000,
        "{{ '" + "a" * 250000,
        "{% raw %}" * 20000,
        "{% macro m(" + ",".join(f"a{i}" for i in range(30000)) + ") %}{% endmacro %}" + "{{ 'a' * 10**9 }}",
        "{{ f(" + "1," * 100000 + ") }}",
    ],
    ids=lambda source: f"{source[:12]}x{len(source)}",
)
def test_a_source_that_is_too_much_is_an_error(source: str) -> None:
    start = time.thread_time()
    with pytest.raises(ChatTemplateError) as caught:
        ChatTemplate(source, "<s>", "</s>").render(MESSAGES)
    assert time.thread_time() - start < 3.0
    assert len(str(caught.value)) < 500


def test_ordinary_work_is_far_from_the_limits() -> None:
    source = "{% for m in messages %}<|{{ m.role }}|>{{ m.content|trim }}{% if not loop.last %}\n{% endif %}{% endfor %}"
    chat = [{"role": "user", "content": "word " * 200} for _ in range(4000)]  # 4 MB of chat
    text = ChatTemplate(source).render(chat)
    assert text.count("<|user|>") == 4000


# ---- patterns of response templates

# The first are refused, the others must take time that grows with the length of the answer alone.
PATTERNS = (
    "(a+)+b", "(a*)*b", "(?:a+b?)+c", "(a|b|ab)*{2,9}c", "(?:a?){400}a{400}", "((a{1,50}){1,50}){1,50}", "(?:(?:a|a)*c|a*b)", "(?:a|a|a|a)*c",
    "a*a*a*a*a*a*c", ".*.*.*.*=.*", "(?:.|\\n)*?</x>", "(?:a|aa)*c", "[^b]*b[^c]*c[^d]*d", "(?:a.?){20}c", "a{1,400}c", "(?:ab?){0,200}c",
    "(?P<name>a*)(?:b|a)*c", "\\s*a\\s*a\\s*c", "(?:a*?b)?a*?c", "a(?=a)", "(?:a|b)*a(?:a|b){12}c",
)  # fmt: skip
# `make test` takes short answers and every second pattern, because a marker is looked for in up to 30,000 characters a second.
LENGTH = 60_000 if FUZZ >= 10_000 else 2_000
ANSWERS = [(text * LENGTH)[:LENGTH] for text in ("a", "ab", "<x>", "a\n")]


@pytest.mark.parametrize("place", ["open_pattern", "close_pattern", "tag_pattern"])
def test_patterns_that_make_backtracking_explode(place: str) -> None:
    refused, messages = 0, list[str]()
    for pattern in PATTERNS[:: 1 if FUZZ >= 10_000 else 2]:
        call: dict[str, Any] = {
            "open": "<t>",
            "close": "</t>",
            "content": "xml-inline",
            "content_args": {"tag_pattern": "<(?P<key>a)>(?P<value>a)"},
        }
        if place == "tag_pattern":
            call["content_args"] = {"tag_pattern": f"(?P<key>{pattern})=(?P<value>{pattern})"}
        else:
            del call[place.partition("_")[0]]
            call[place] = pattern
        try:
            shape = ResponseTemplate({"fields": {"content": {}, "tool_calls": call}})
        except ValueError as error:
            refused += 1
            messages.append(str(error))
            continue
        for answer in ANSWERS:
            said = answer if place == "open_pattern" else f"<t>{answer}</t>"
            for cuts in (len(said), 1000)[: 2 if FUZZ >= 10_000 else 1]:
                start = time.thread_time()
                parser = ResponseParser(shape)
                with grown() as more:
                    for at in range(0, len(said), cuts):
                        parser.feed(said[at : at + cuts])
                    parser.finish()
                assert time.thread_time() - start < 5, (pattern, answer[:9], cuts)
                assert more[0] < 128, (pattern, answer[:9], cuts)
    assert 2 <= refused < 9
    assert max(map(len, messages)) < 500
