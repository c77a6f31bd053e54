"""Jinja with an end: what one rendering may compute, counted in steps, since templates come from other people.

Jinja's sandbox keeps a template from files and from Python; it does not keep it from taking all time and memory
(nested loops, ``"x" * 10**9``, texts that double). Here every turn of a loop, call, filter, product and text that is
put together costs steps, and large texts cost by their length, before they are made.
"""

from __future__ import annotations

import functools
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from jinja2 import TemplateRuntimeError, nodes, pass_context
from jinja2.compiler import CodeGenerator
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

STEPS, STEPS_PER_CHARACTER = 2_000_000, 20
CPU_S = 60.0
_CHARACTERS_A_STEP = 64
_LOOK_EVERY = 1024
# What makes its result as long as a number says.
_WIDTHS = {
    "center",
    "ljust",
    "rjust",
    "zfill",
    "expandtabs",
    "indent",
    "batch",
    "slice",
    "tojson",
    "wordwrap",
}
_WIDE_FORMAT = re.compile(r"\d{5}|%[^a-zA-Z%]*\*|\{[^{}]*:[^{}]*\{")


class TooMuch(TemplateRuntimeError):
    """The template computes more than any conversation needs."""


class _Budget:
    def __init__(self, steps: int) -> None:
        self._left = steps
        self._looks = _LOOK_EVERY
        self._end = time.thread_time() + CPU_S

    def spend(self, steps: int) -> None:
        self._left -= steps
        self._looks -= 1
        if self._left < 0:
            raise TooMuch("it computes too much (a loop without end, or a text without end)")
        if self._looks < 0:
            self._looks = _LOOK_EVERY
            if time.thread_time() > self._end:
                raise TooMuch(f"it takes more than {CPU_S:g} s")


_BUDGET: ContextVar[_Budget | None] = ContextVar("budget", default=None)


@contextmanager
def bounded(messages: Sequence[Mapping[str, Any]]) -> Iterator[None]:
    """Within it, a template's steps are counted; a long conversation is given more of them."""
    size = sum(_length(value) for message in messages for value in message.values())
    token = _BUDGET.set(_Budget(STEPS + STEPS_PER_CHARACTER * size))
    try:
        yield
    finally:
        _BUDGET.reset(token)


def _spend(characters: int) -> None:
    budget = _BUDGET.get()
    if budget is not None:
        budget.spend(1 + characters // _CHARACTERS_A_STEP)


def _length(value: object) -> int:
    return len(value) if isinstance(value, (str, bytes, list, tuple, dict, range)) else 1


def _before(name: str, value: object, arguments: Iterable[object]) -> None:
    """Pay for what a method or filter may make: the value's length times its largest argument."""
    given = list(arguments)
    widths = [abs(one) for one in given if isinstance(one, int)] if name in _WIDTHS else []
    _spend((1 + _length(value)) * max([1, *map(_length, given), *widths]))
    if name == "format" and isinstance(value, str):
        _check_format(value)


def _check_format(text: str) -> None:
    if _WIDE_FORMAT.search(text):
        raise TooMuch("a format asks for a width of its own or of many characters")


@pass_context
def _step(context: Context, characters: int) -> bool:
    _spend(characters)
    return True


@pass_context
def _concat(context: Context, parts: Sequence[object]) -> str:
    texts = [str(part) for part in parts]
    _spend(sum(map(len, texts)))
    return "".join(texts)


@pass_context
def _shown(context: Context, value: Any) -> Any:
    _spend(_length(value))
    return value


def _counted(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """A filter that pays first; it sees the context, so that it is never computed while compiling."""
    passed = getattr(getattr(function, "jinja_pass_arg", None), "name", None)

    @functools.wraps(function)
    def run(context: Context, value: Any = None, *arguments: Any, **named: Any) -> Any:
        _before(name, value, [*arguments, *named.values()])
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

    def _with_step(self, node: Any, step: nodes.Filter) -> Any:
        self.generic_visit(node)
        node.body.insert(0, nodes.ExprStmt(step, lineno=node.lineno))
        return node


def _step_of(body: Sequence[nodes.Node]) -> nodes.Filter:
    written = sum(len(data.data) for part in body for data in part.find_all(nodes.TemplateData))
    return nodes.Filter(nodes.Const(written), "_step", [], [], None, None, lineno=0)


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
        self.filters |= {"_step": _step, "_concat": _concat}

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        """The sandbox's own ``str.format``, for formats that ask for no great width."""
        wrapped = super().wrap_str_format(value)
        if wrapped is None:
            return None

        @functools.wraps(wrapped)
        def run(*arguments: Any, **named: Any) -> str:
            _check_format(value.__self__)
            return wrapped(*arguments, **named)

        return run

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        """Call what the template calls, paid for by the lengths of a method's object and arguments."""
        owner = getattr(__obj, "__self__", None)
        name = getattr(__obj, "__name__", "")
        if isinstance(owner, (str, list, tuple, dict)):
            _before(name, owner, [*args, *kwargs.values()])
        else:
            _spend(1)
        return super().call(__context, __obj, *args, **kwargs)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """An arithmetic operator, refused where its result would be too long."""
        if isinstance(left, int) and isinstance(right, int):
            bits = {"**": left.bit_length() * max(right, 0), "*": left.bit_length() + right.bit_length()}
            _spend(bits.get(operator, 1))
        elif operator == "%" and isinstance(left, str):
            _check_format(left)
            _spend(len(left) + sum(map(_length, right if isinstance(right, tuple) else (right,))))
        elif operator == "*":
            text, times = (right, left) if isinstance(left, int) else (left, right)
            _spend(_length(text) * max(times, 0) if isinstance(times, int) else 1)
        else:
            _spend(_length(left) + _length(right))
        return super().call_binop(context, operator, left, right)
