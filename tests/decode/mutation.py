"""Mistakes put into the package's own source for the length of a test."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Iterator
from contextlib import contextmanager
from types import CodeType, FunctionType, ModuleType
from typing import Any


def find_module(right: str, package: str = "vocabforge.decode") -> str:
    """The one module of a package, or that module itself, in whose source ``right`` stands, exactly once."""
    found = importlib.import_module(package)
    names = [package]
    if hasattr(found, "__path__"):
        names = [info.name for info in pkgutil.walk_packages(found.__path__, f"{package}.")]
    counts = {name: inspect.getsource(importlib.import_module(name)).count(right) for name in names}
    places = {name: count for name, count in counts.items() if count}
    assert list(places.values()) == [1], f"{right!r} should stand once in {package}, and stands in {places}"
    return next(iter(places))


@contextmanager
def mistake(module_name: str, right: str, wrong: str) -> Iterator[None]:
    """Replace one snippet in the source of a module, or of the one module of a package that has it.

    The functions keep their identity and take the code of the changed source, so whoever imported them meets it.
    """
    module = importlib.import_module(find_module(right, module_name))
    source = inspect.getsource(module)
    changed = ModuleType(module.__name__)
    changed.__dict__.update({"__package__": module.__package__, "__file__": module.__file__})
    code = compile(source.replace(right, wrong), str(module.__file__), "exec", dont_inherit=True)
    exec(code, changed.__dict__)
    theirs = dict(_functions(changed))
    swapped: list[tuple[FunctionType, CodeType, CodeType]] = [
        (function, function.__code__, theirs[name].__code__)
        for name, function in _functions(module)
        if theirs[name].__code__ != function.__code__
    ]
    assert swapped, "the mistake changes no function"
    try:
        for function, _, new in swapped:
            function.__code__ = new
        yield
    finally:
        for function, old, _ in swapped:
            function.__code__ = old


def _functions(module: ModuleType) -> Iterator[tuple[str, FunctionType]]:
    """Functions and methods that a module defines, with their qualified names."""
    for found in list(vars(module).values()):
        if isinstance(found, type) and found.__module__ == module.__name__:
            for member in vars(found).values():
                yield from _unwrapped(member, module)
        else:
            yield from _unwrapped(found, module)


def _unwrapped(member: Any, module: ModuleType) -> Iterator[tuple[str, FunctionType]]:
    if isinstance(member, (staticmethod, classmethod)):
        member = member.__func__
    if isinstance(member, property):
        member = member.fget
    member = inspect.unwrap(member) if callable(member) else member
    if isinstance(member, FunctionType) and member.__code__.co_filename == module.__file__:
        yield member.__qualname__, member
