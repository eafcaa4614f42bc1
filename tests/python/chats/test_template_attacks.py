"""Hostile chat templates must not reach Python's internals or the machine. A template that would take too much time or memory must be
stopped within a second and 128 MiB."""

# ruff: noqa: E501  (long templates stay on one line)

from __future__ import annotations

import resource
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from pumice.chats.chat_templates import ChatTemplate
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
]

LEAKS = ("class '", "<function", "built-in", "module", "object at 0x", "/root", "uid=", "subclasses", "<bound")


@pytest.mark.parametrize("source", ESCAPES)
def test_no_escape(source: str) -> None:
    try:
        text = ChatTemplate(source, "<s>", "</s>").render(MESSAGES)
    except ChatTemplateError:
        return
    assert not any(leak in text for leak in LEAKS), text
    assert MESSAGES == [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Hi"}]


def test_an_audit_hook_sees_nothing() -> None:
    """Rendering must not open, import, compile or execute anything. The test runs in a process of its own, because an audit hook cannot be
    removed."""
    program = """
import sys, time
from pumice.chats.chat_templates import ChatTemplate
from pumice.errors import ChatTemplateError
import test_template_attacks as attacks
messages = attacks.MESSAGES
def compiled(source):
    try:
        return ChatTemplate(source, "<s>", "</s>")
    except ChatTemplateError:
        return None
templates = [t for t in map(compiled, attacks.ESCAPES + ["{{ strftime_now('%Y') }}", "{{ messages|tojson(indent=1) }}"]) if t]
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
assert len(templates) > 80, len(templates)
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
    "dates": "{% for i in range(100000) %}{% for j in range(100) %}{{ strftime_now('%c') }}{% endfor %}{% endfor %}",
}


def run_bomb(source: str) -> tuple[float, str]:
    start = time.thread_time()
    with pytest.raises(ChatTemplateError) as caught:
        ChatTemplate(source, "<s>", "</s>").render(MESSAGES)
    return time.thread_time() - start, str(caught.value)


@pytest.mark.parametrize("name", BOMBS)
def test_a_bomb_ends(name: str) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    seconds, message = run_bomb(BOMBS[name])
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    assert seconds < 1.5, message
    assert grown < 128, message
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
