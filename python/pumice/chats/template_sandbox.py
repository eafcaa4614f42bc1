"""Runs untrusted Jinja templates in a sandbox that also limits time, memory and output.

Jinja's sandbox keeps a template from reaching Python, but it limits neither time nor memory (as its documentation states). Here a meter is
called at each loop step, call, filter, test, comparison and operator, and before any value that can be large is made. The meter counts
steps and the processor time of the current thread. So it works in any thread, and stops a template no earlier if the machine is busy.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from types import BuiltinMethodType
from typing import Any, NoReturn

import jinja2
from jinja2 import ext, meta, nodes, runtime, sandbox, tests, visitor
from jinja2.exceptions import SecurityError

from ..errors import ChatTemplateError
from .template_filters import (
    METHODS,
    OVER_SEQUENCES,
    OVER_VALUES,
    STRING_METHODS,
    Format,
    Namespace,
    add,
    check_join,
    metered,
    modulo,
    multiply,
    power,
    wrap,
)
from .template_meter import MAX_CALL_DEPTH, Meter, Stop, current_meter, rendering

FIX = "Pass chat_template= with the text of a Jinja template (or a path to one)."

MAX_SOURCE = 256 << 10  # maximum size of a template in bytes
MAX_OUTPUT = 8 << 20  # maximum number of characters of a rendered text
MAX_TREE_DEPTH = 100
# Maximum number of tokens of the source. They are counted before the source is parsed, because parsing takes longer.
MAX_TOKENS = 60_000
MAX_TREE_NODES = 20_000  # maximum number of nodes of the syntax tree; compiling so many takes half a second


# ---- the environment -------------------------------------------------------------------------------------------


class _Generation(ext.Extension):
    """Supports {% generation %}, which marks the assistant's words for training. Its contents are rendered as if the tags were not
    there."""

    tags = {"generation"}

    def parse(self, parser: Any) -> nodes.Node:
        line = next(parser.stream).lineno
        return nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True), lineno=line)


_JINJA_KEYWORDS = ("_loop_vars", "_block_vars")  # keyword arguments that compiled templates add to calls inside loops and blocks


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
            **{name: wrap(f, sequence=False) for name, f in OVER_VALUES.items()},
            **{name: wrap(f, sequence=True) for name, f in OVER_SEQUENCES.items()},
        }
        known: dict[str, Any] = dict(tests.TESTS)
        self.tests = {name: wrap(f, sequence=False) for name, f in known.items()}
        self.globals = {
            "range": sandbox.safe_range,  # yields at most 100,000 numbers
            "dict": lambda *args, **kwargs: current_meter().weigh(dict(*args, **kwargs)),
            "namespace": Namespace,
            "raise_exception": _raise_exception,
            "strftime_now": _strftime_now,
        }
        self.binop_table.update({"+": add, "*": multiply, "**": power, "%": modulo})

    def call_binop(self, context: runtime.Context, operator: str, left: Any, right: Any) -> Any:
        current_meter().step()
        return self.binop_table[operator](left, right)

    def call(__self, __context: runtime.Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805
        meter = current_meter()
        meter.step()
        if meter.depth >= MAX_CALL_DEPTH:
            raise Stop(f"its macros call each other more than {MAX_CALL_DEPTH} deep")
        if isinstance(__obj, BuiltinMethodType) and isinstance(__obj.__self__, str):
            check = STRING_METHODS.get(__obj.__name__)
            if check is check_join and args and not isinstance(args[0], str | list | tuple):
                # A view or an iterator may have no length, so its items are counted while they are copied to a list.
                args = (list(metered(args[0])), *args[1:])
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
        return any(isinstance(obj, kind) and attr in names for kind, names in METHODS)

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        wrapped = super().wrap_str_format(value)
        if wrapped is None:
            return None
        text = str(value.__self__)
        return Format(text, wrapped)

    # Compiled templates call the following methods, because _Metering inserts the calls into the syntax tree.

    def each(self, items: Any, cost: int) -> Iterator[Any]:
        meter = current_meter()
        for item in items:
            meter.step()
            meter.volume += cost
            meter.room(0, "its text")
            yield item

    def concat_checked(self, *parts: Any) -> str:
        texts = [part if isinstance(part, str) else current_meter().text(part) for part in parts]
        current_meter().room(sum(map(len, texts)), "a text")
        return "".join(texts)

    def slice_checked(self, value: Any, start: Any, stop: Any, step: Any) -> Any:
        if isinstance(value, runtime.Undefined | str | list | tuple | range):
            return value[start:stop:step]
        return self.undefined(obj=value, name="slice")

    def tick(self, value: Any) -> Any:
        return value

    def weighed(self, value: Any) -> Any:
        return current_meter().weigh(value)


@jinja2.pass_context
def _finalize(context: runtime.Context, value: Any) -> Any:
    meter = current_meter()
    meter.step()
    text = value if isinstance(value, str) else meter.text(value)
    return meter.produced(text)


def _raise_exception(message: Any) -> NoReturn:
    raise jinja2.TemplateError(current_meter().text(message)[:2000])


def _strftime_now(pattern: str) -> str:
    if len(pattern) > 256:
        raise Stop("a date has a pattern of more than 256 characters")
    return rendering.now.strftime(pattern)  # type: ignore[no-any-return]


_FORBIDDEN = (nodes.Include, nodes.Import, nodes.FromImport, nodes.Extends)


class _Metering(visitor.NodeTransformer):
    """Inserts calls of the meter into the syntax tree at places where Jinja has no hooks."""

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
    """Returns the names of the variables that a template uses and does not set itself. compile_template() must accept the template."""
    return frozenset(meta.find_undeclared_variables(_ENVIRONMENT.parse(source)))


@dataclass(frozen=True)
class Compiled:
    """A compiled template, and the names of the variables that it uses and does not set itself."""

    template: jinja2.Template
    names: frozenset[str]


def compile_template(source: str) -> Compiled:
    """Compiles a template so that it calls the meter. Raises ChatTemplateError if the template is invalid or too large."""
    size = len(source.encode("utf-8", "surrogatepass"))
    if size > MAX_SOURCE:
        raise ChatTemplateError(f"the chat template has {size} bytes; at most {MAX_SOURCE} are read. {FIX}")
    rendering.meter = Meter()
    try:
        for number, _ in enumerate(_ENVIRONMENT.lexer.tokeniter(source, None)):
            if number > MAX_TOKENS:
                raise Stop(f"it has more than {MAX_TOKENS} words")
        tree = _ENVIRONMENT.parse(source)
        level: list[nodes.Node] = [tree]
        depth = count = 0
        while level:
            depth += 1
            count += len(level)
            if depth > MAX_TREE_DEPTH:
                raise Stop(f"it is nested more than {MAX_TREE_DEPTH} deep")
            if count > MAX_TREE_NODES:
                raise Stop(f"it has more than {MAX_TREE_NODES} parts")
            for node in level:
                if isinstance(node, _FORBIDDEN):
                    raise Stop(f"line {node.lineno} reads another template ({type(node).__name__.lower()})")
            level = [child for node in level for child in node.iter_child_nodes()]
        names = frozenset(meta.find_undeclared_variables(tree))
        code = _ENVIRONMENT.compile(_Metering().visit(tree), filename=_FILE)
        return Compiled(jinja2.Template.from_code(_ENVIRONMENT, code, _ENVIRONMENT.make_globals(None)), names)
    except jinja2.TemplateSyntaxError as error:
        raise ChatTemplateError(f"the chat template is no Jinja template: {error.message} in line {error.lineno}. {FIX}") from None
    except RecursionError:
        raise ChatTemplateError(f"the chat template is nested too deep. {FIX}") from None
    except Exception as error:
        raise ChatTemplateError(f"the chat template cannot be used: {error}. {FIX}") from None
    finally:
        rendering.meter = None


def _tools_as(names: frozenset[str], tools: Any, now: datetime) -> dict[str, Any]:
    """Returns the tools under the other names from which some templates take them: Llama's, SmolLM3's, and those of Firefunction 2, which
    takes a text, and the date beside it."""
    found = {name: tools for name in ("custom_tools", "xml_tools") if tools and name in names}
    if {"functions", "datetime"} <= names and "tools" not in names:
        functions = [tool.get("function", tool) for tool in tools or ()]
        found |= {"functions": json.dumps(functions, ensure_ascii=False, indent=4), "datetime": f"{now:%Y-%m-%d}"}
    return found


def run_template(compiled: Compiled, variables: dict[str, Any], now: datetime) -> str:
    """Renders a compiled template and returns the text. now: the time that strftime_now() formats. Raises ChatTemplateError if the template
    fails."""
    template = compiled.template
    variables = {**_tools_as(compiled.names, variables.get("tools"), now), **variables}
    rendering.meter, rendering.now = Meter(), now
    try:
        parts, size = [], 0
        for part in template.root_render_func(template.new_context(variables)):
            size += len(part)
            if size > MAX_OUTPUT:
                raise Stop(f"it writes more than {MAX_OUTPUT} characters")
            rendering.meter.step()
            parts.append(part)
        return "".join(parts)
    except Stop as error:
        raise ChatTemplateError(f"the chat template was stopped{_line(template, error)}: {error}. {FIX}") from None
    except (jinja2.UndefinedError, SecurityError) as error:
        raise ChatTemplateError(f"the chat template failed{_line(template, error)}: {error}. {FIX}") from None
    except jinja2.TemplateError as error:
        raise ChatTemplateError(f"the chat template refuses these messages{_line(template, error)}: {error}") from None
    except Exception as error:
        raise ChatTemplateError(f"the chat template failed{_line(template, error)}: {type(error).__name__}: {error}. {FIX}") from None
    finally:
        rendering.meter = None


def _line(template: jinja2.Template, error: BaseException) -> str:
    """Returns " in line N" for the template line that raised an error, or an empty string. The line comes from the innermost stack frame
    that belongs to the template."""
    found, trace = "", error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == _FILE:
            found = f" in line {template.get_corresponding_lineno(trace.tb_lineno)}"
        trace = trace.tb_next
    return found
