"""Jinja with an end: what one rendering may compute, counted in steps, since templates come from other people.

Jinja's sandbox keeps a template from files and from Python; it does not keep it from taking all time and memory
(nested loops, ``"x" * 10**9``, texts that double). Here every turn of a loop, call, filter, product and text that is
put together costs steps, and large texts cost by their length, before they are made.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from jinja2 import nodes, pass_context
from jinja2.compiler import CodeGenerator
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

from .template_costs import (
    COMPARISONS,
    DEEP,
    FLAT,
    HOLDERS,
    check_braces,
    check_percent,
    growth,
    length_of,
    paid,
    spend,
    total_of,
)


@pass_context
def _step(context: Context, characters: int) -> bool:
    spend(characters)
    return True


@pass_context
def _concat(context: Context, parts: Sequence[object]) -> str:
    spend(sum(map(total_of, parts)))
    return "".join(map(str, parts))


@pass_context
def _shown(context: Context, value: Any) -> Any:
    spend(total_of(value))
    return value


@pass_context
def _weighed(context: Context, value: Any) -> Any:
    """A side of a comparison: of texts and numbers it costs nothing to speak of, of lists of lists without end."""
    if isinstance(value, HOLDERS):
        spend(total_of(value))
    return value


def _comparing(test: Callable[..., Any]) -> Callable[..., Any]:
    @pass_context
    def run(context: Context, *sides: Any) -> Any:
        return test(*(_weighed(context, side) for side in sides))

    return run


def _counted(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """A filter that pays first; it sees the context, so that it is never computed while compiling."""
    passed = getattr(getattr(function, "jinja_pass_arg", None), "name", None)

    @functools.wraps(function)
    def run(context: Context, value: Any = None, *arguments: Any, **named: Any) -> Any:
        given = [*arguments, *named.values()]
        deep = name not in FLAT
        if name == "format":
            check_percent(value)
        if deep and isinstance(value, Iterator):
            value = paid(value, max([0, *map(total_of, given)]))
        if name == "sum" and any(isinstance(one, HOLDERS) for one in given):  # copies all at every place
            value = list(value)
            spend(len(value) * sum(map(length_of, value)))
        spend(growth(name, value, given, deep=deep, named=bool(named)))
        first = {"context": context, "eval_context": context.eval_ctx, "environment": context.environment}
        return function(*([first[passed]] if passed else []), value, *arguments, **named)

    return pass_context(run)


class _Marker(NodeTransformer):
    """Puts a step into every loop and macro, and sends ``~`` through a filter that counts."""

    def visit_For(self, node: nodes.For) -> nodes.For:
        step = _step_of(node.body)
        if node.test is not None:
            node.test = nodes.And(_step_of([]), node.test)
        return self._with_step(node, step)

    def visit_Macro(self, node: nodes.Macro) -> nodes.Macro:
        return self._with_step(node, _step_of(node.body))

    def visit_CallBlock(self, node: nodes.CallBlock) -> nodes.CallBlock:
        return self._with_step(node, _step_of(node.body))

    def visit_Concat(self, node: nodes.Concat) -> nodes.Filter:
        self.generic_visit(node)
        return nodes.Filter(nodes.List(node.nodes), "_concat", [], [], None, None, lineno=node.lineno)

    def visit_Compare(self, node: nodes.Compare) -> nodes.Compare:
        self.generic_visit(node)
        sides = [node.expr, *(one.expr for one in node.ops)]
        if any(nodes.Const not in map(type, pair) for pair in itertools.pairwise(sides)):
            node.expr = _weight_of(node.expr)
            for one in node.ops:
                one.expr = _weight_of(one.expr)
        return node

    def _with_step(self, node: Any, step: nodes.Filter) -> Any:
        self.generic_visit(node)
        node.body.insert(0, nodes.ExprStmt(step, lineno=node.lineno))
        return node


def _step_of(body: Sequence[nodes.Node]) -> nodes.Filter:
    written = sum(len(data.data) for part in body for data in part.find_all(nodes.TemplateData))
    return nodes.Filter(nodes.Const(written), "_step", [], [], None, None, lineno=0)


def _weight_of(side: nodes.Expr) -> nodes.Filter:
    return nodes.Filter(side, "_weighed", [], [], None, None, lineno=side.lineno)


class _Generator(CodeGenerator):
    def visit_Template(self, node: nodes.Template, frame: Any = None) -> None:
        super().visit_Template(_Marker().visit(node), frame)


class BoundedEnvironment(ImmutableSandboxedEnvironment):
    """Jinja's immutable sandbox in which everything that can repeat or grow is counted (within :func:`bounded`)."""

    code_generator_class = _Generator
    intercepted_binops = frozenset({"*", "**", "%", "+"})

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings, finalize=_shown)
        del self.globals["lipsum"]

    def seal(self) -> None:
        """Count every filter; to be called when all are there."""
        self.filters = {name: _counted(name, one) for name, one in self.filters.items()}
        self.filters |= {"_step": _step, "_concat": _concat, "_weighed": _weighed}
        self.tests = {
            name: _comparing(one) if name in COMPARISONS else one
            for name, one in dict[str, Any](self.tests).items()
        }

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        """The sandbox's own ``str.format``, for formats that ask for no great width."""
        wrapped = super().wrap_str_format(value)
        if wrapped is None:
            return None

        @functools.wraps(wrapped)
        def run(*arguments: Any, **named: Any) -> str:
            text = value.__self__
            check_braces(text)
            spend(len(text) + text.count("{") * sum(map(total_of, (*arguments, *named.values()))))
            return wrapped(*arguments, **named)

        return run

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        """Call what the template calls, paid for by the lengths of a method's object and arguments."""
        owner = getattr(__obj, "__self__", None)
        name = getattr(__obj, "__name__", "")
        if isinstance(owner, (str, list, tuple, dict)):
            each = len(owner) if name == "join" else 0
            args = tuple(paid(one, each) if isinstance(one, Iterator) else one for one in args)
            given = [*args, *kwargs.values()]
            deep = name in DEEP and not isinstance(owner, dict)
            spend(growth(name, owner, given, deep=deep, named=bool(kwargs)))
        else:
            spend(1)
        return super().call(__context, __obj, *args, **kwargs)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """An arithmetic operator, refused where its result would be too long."""
        if isinstance(left, int) and isinstance(right, int):
            bits = {"**": left.bit_length() * max(right, 0), "*": left.bit_length() + right.bit_length()}
            spend(bits.get(operator, 1))
        elif operator == "%" and isinstance(left, str):
            check_percent(left)
            spend(len(left) + left.count("%") * total_of(right))
        elif operator == "*":
            text, times = (right, left) if isinstance(left, int) else (left, right)
            spend(length_of(text) * max(times, 0) if isinstance(times, int) else 1)
        else:
            spend(length_of(left) + length_of(right))
        return super().call_binop(context, operator, left, right)
