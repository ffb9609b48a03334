"""Sandbox: the jinja2 environment of chat templates, with limits of time and memory.

jinja2's own sandbox blocks access to Python's internals. This one also bounds a template's work,
because a template comes with a model and is not trusted. The time is checked in every iteration of
a loop and every call of a macro, filter or test. Operations that can create large values from small
ones (operators, filters, methods of texts, blocks) first charge their characters
(``template_budget``).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from functools import wraps
from types import BuiltinMethodType
from typing import Any, cast

from jinja2 import nodes
from jinja2.compiler import CodeGenerator, Frame
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context, Undefined
from jinja2.sandbox import ImmutableSandboxedEnvironment
from sglang.srt.tokenizer.template_budget import (
    PART,
    concat,
    nested,
    paid,
    pay,
    tick,
    weigh,
    weight,
)
from sglang.srt.tokenizer.template_operations import (
    FILTERS,
    METHODS,
    OPERATORS,
    TESTS,
    check_width,
)

_WITHOUT = (  # removed filters: chat templates do not need them, and they can create large values
    "batch", "center", "filesizeformat", "pprint", "random", "slice", "striptags", "urlencode",
    "urlize", "wordcount", "wordwrap", "xmlattr",
)  # fmt: skip
_CUTS = {"list", "max", "min", "sort", "title", "unique"}  # filters that cut a text into parts
_COLLECTS = {"groupby", "list"}  # filters whose list may contain one value many times
_NESTS = re.compile(r"\bgroupby\b|\bdict\b|\bnamespace\b.*\bnamespace\b", re.DOTALL)
# Filters and tests that cost next to nothing, whatever their arguments.
_QUICK_FILTERS = {"abs", "count", "first", "float", "int", "length"}
_QUICK_TESTS = {
    "boolean", "callable", "defined", "divisibleby", "even", "false", "float", "integer",
    "iterable", "mapping", "none", "number", "odd", "sameas", "sequence", "string", "true",
    "undefined",
}  # fmt: skip


class _Generation(Extension):
    """``{% generation %}``, which marks the model's own text for training; it has no effect."""

    tags = {"generation"}  # noqa: RUF012 (jinja2's own declaration)

    def parse(self, parser: Parser) -> nodes.Node | list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _Code(CodeGenerator):
    def visit_ExprStmt(self, node: nodes.ExprStmt, frame: Frame) -> None:
        if isinstance(node.node, nodes.EnvironmentAttribute):
            self.newline(node)
            self.write("environment.tick()")
        else:
            super().visit_ExprStmt(node, frame)

    def visit_Concat(self, node: nodes.Concat, frame: Frame) -> None:
        self.write("environment.tilde((")
        for part in node.nodes:
            self.visit(part, frame)
            self.write(", ")
        self.write("))")

    def visit_Compare(self, node: nodes.Compare, frame: Frame) -> None:
        self.write("(environment.tick() or ")
        super().visit_Compare(node, frame)
        self.write(")")

    def visit_List(self, node: nodes.List, frame: Frame) -> None:
        self._made(node, super().visit_List, frame)

    def visit_Tuple(self, node: nodes.Tuple, frame: Frame) -> None:
        if node.ctx == "load":
            self._made(node, super().visit_Tuple, frame)
        else:
            super().visit_Tuple(node, frame)

    def visit_Dict(self, node: nodes.Dict, frame: Frame) -> None:
        self._made(node, super().visit_Dict, frame)

    def _made(self, node: Any, visit: Callable[[Any, Frame], None], frame: Frame) -> None:
        """Write a literal. If it has non-constant parts, wrap it so that it stores its weight."""
        varies = _varies(node)
        self.write("environment.nested(" if varies else "")
        visit(node, frame)
        self.write(")" if varies else "")

    def visit_Getitem(self, node: nodes.Getitem, frame: Frame) -> None:
        cut = isinstance(node.arg, nodes.Slice)
        self.write("environment.paid(" if cut else "")
        super().visit_Getitem(node, frame)
        self.write(")" if cut else "")


class Sandbox(ImmutableSandboxedEnvironment):
    """The jinja2 environment of chat templates. Render inside ``with limited(...)``."""

    code_generator_class = _Code
    intercepted_binops = frozenset(("*", "**", "%", "+"))
    tick = staticmethod(tick)
    paid = staticmethod(paid)
    concat = staticmethod(concat)
    nested = staticmethod(nested)

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols],
            finalize=weigh,
        )  # fmt: skip
        for name in _WITHOUT:
            del self.filters[name]
        del self.globals["lipsum"]
        self.globals["dict"] = lambda *args, **kwargs: nested(dict(*args, **kwargs))
        self.filters.update(FILTERS)
        self.tests.update(TESTS)
        for table, quick in ((self.filters, _QUICK_FILTERS), (self.tests, _QUICK_TESTS)):
            for name in table.keys() - quick:
                table[name] = _measured(name, cast(Any, table[name]))
        self.binop_table.update(OPERATORS)
        self.nests = False

    @staticmethod
    def tilde(parts: Iterable[Any]) -> str:
        """Evaluate the operator ``~``: join the parts as texts."""
        return concat([str(weigh(part)) for part in parts])

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        tree = super()._parse(source, name, filename)
        for node in tree.find_all((nodes.For, nodes.Macro, nodes.CallBlock, nodes.Block)):
            look = nodes.EnvironmentAttribute("tick", lineno=node.lineno)
            body = cast(nodes.For, node).body
            body.insert(0, nodes.ExprStmt(look, lineno=node.lineno))
        self.nests = bool(_NESTS.search(source)) or any(
            map(_varies, tree.find_all((nodes.List, nodes.Tuple, nodes.Dict)))
        )
        return tree.set_environment(self)  # type: ignore[return-value]

    def unsafe_undefined(self, obj: Any, attribute: str) -> Undefined:
        raise SecurityError(f"{attribute!r} of a {type(obj).__name__} is not open to templates")

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        found = super().wrap_str_format(value)
        if found is None:
            return None

        def guarded(*args: Any, **kwargs: Any) -> str:
            check_width(value.__self__, *args, **kwargs)
            return found(*args, **kwargs)

        return guarded

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        if operator == "+" and type(left) is str and type(right) is str:
            return paid(left + right)
        return self.binop_table[operator](left, right)

    def getitem(self, obj: Any, argument: Any) -> Any:
        if isinstance(argument, tuple):  # hashing a tuple visits all of its parts
            tick()
        return super().getitem(obj, argument)

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        if not isinstance(__obj, BuiltinMethodType) or not isinstance(__obj.__self__, str):
            tick()
            return paid(super().call(__context, __obj, *args, **kwargs))
        guard = METHODS.get(__obj.__name__)
        if guard is not None:
            given = {name: value for name, value in kwargs.items() if name[0] != "_"}
            guard(__obj.__self__, *args, **given)
        return paid(__context.call(__obj, *args, **kwargs))


def _varies(literal: nodes.Node) -> bool:
    """Whether a literal has parts that are not constants."""
    return any(not isinstance(child, nodes.Const) for child in literal.iter_child_nodes())


def _measured(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the filter or test, extended by a time check and a charge for the texts it makes."""

    @wraps(function)
    def measured(*args: Any, **kwargs: Any) -> Any:
        tick()
        if name in _CUTS:
            pay(PART * sum(len(arg) for arg in args if isinstance(arg, str)))
        found = paid(function(*args, **kwargs))
        if name in _COLLECTS:
            weight(found)
        return found

    return measured
