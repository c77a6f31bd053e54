"""The code of a guide as modules, its rows in the tables, and the contract checks that then are about a newcomer."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import inspect
import itertools
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from _pytest.mark import ParameterSet

from tests.worlds import ROOT
from vocabforge.models.lean.config import FamilyTraits

GUIDES = ROOT / "docs" / "guides"
_BLOCK = re.compile(r"^```(\w+)\n(?:#|//) (\S+)(?: ([^\n]*))?\n(.*?)^```$", re.M | re.S)
_ROW = re.compile(r'^ *"([\w-]+)": (.+),$', re.M)


@dataclass(frozen=True)
class Guide:
    """A guide's blocks of code that begin with a comment on where they belong.

    Attributes:
        files: path in the repository -> its text.
        rows: table -> the rows that a reader adds to it: name -> value.
    """

    files: Mapping[str, str]
    rows: Mapping[str, Mapping[str, Any]]


def read_guide(name: str) -> Guide:
    """``docs/guides/<name>.md``: blocks that begin with ``# path`` or ``# a row of TABLE in path``."""
    files: dict[str, str] = {}
    rows: dict[str, dict[str, Any]] = {}
    for _, place, rest, text in _BLOCK.findall((GUIDES / f"{name}.md").read_text("utf-8")):
        if place == "a" and rest.startswith("row of "):
            found = _ROW.findall(text)
            assert found, f"no row in the block about {rest}"
            for key, value in found:
                rows.setdefault(rest.split()[2], {})[key] = eval_row(value)
        else:
            files[place] = text
    return Guide(files, rows)


def eval_row(value: str) -> Any:
    """A literal: a string, or a tuple; of an op's benchmark a function's name, of a target family its traits."""
    if value.startswith("FamilyTraits("):
        call = ast.parse(value, mode="eval").body
        assert isinstance(call, ast.Call)
        named = {str(one.arg): ast.literal_eval(one.value) for one in call.keywords}
        return FamilyTraits(*map(ast.literal_eval, call.args), **named)
    return value if re.fullmatch(r"\w+\.\w+", value) else ast.literal_eval(value)


def install(guide: Guide, folder: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, ModuleType]:
    """Write the guide's files under a folder; the Python ones become modules of the names that their places give."""
    made: dict[str, ModuleType] = {}
    for place, text in guide.files.items():
        name = place.removesuffix(".py").removeprefix("kernels/").replace("/", ".")
        file = folder / place
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        if file.suffix != ".py":
            continue
        spec = importlib.util.spec_from_file_location(name, file)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, name, module)
        spec.loader.exec_module(module)
        made[name] = module
    return made


def fresh(name: str, monkeypatch: pytest.MonkeyPatch, *helpers: str) -> ModuleType:
    """A module of the tests imported anew, and its helpers: what they read of the tables, they read again."""
    for one in (name, *helpers):
        monkeypatch.delitem(sys.modules, one, raising=False)
    module = importlib.import_module(name)
    for one in (name, *helpers):  # gone again at the end
        monkeypatch.setitem(sys.modules, one, sys.modules[one])
    return module


@dataclass(frozen=True)
class Check:
    """A test function and the arguments of one of its cases."""

    name: str
    function: Any
    arguments: Mapping[str, Any]


def checks_of(module: ModuleType, newcomer: str | None) -> Iterator[Check]:
    """Every case of a test module's tests that names the newcomer; None: every case of all."""
    for name, function in vars(module).items():
        if not name.startswith("test_") or not inspect.isfunction(function):
            continue
        marks = [mark for mark in getattr(function, "pytestmark", ()) if mark.name == "parametrize"]
        if any(mark.name == "proof" for mark in getattr(function, "pytestmark", ())):
            continue
        for chosen in itertools.product(*(_cases(mark.args[0], mark.args[1]) for mark in marks)):
            arguments = {key: value for one in chosen for key, value in one.items()}
            if newcomer is None or any(
                isinstance(value, str) and value == newcomer for value in arguments.values()
            ):
                yield Check(name, function, arguments)


def _cases(names: str | Sequence[str], values: Sequence[Any]) -> list[dict[str, Any]]:
    """What one ``parametrize`` lists, without what is marked as a long version."""
    keys = [one.strip() for one in names.split(",")] if isinstance(names, str) else list(names)
    found = []
    for value in values:
        given, marks = value, ()
        if isinstance(value, ParameterSet):
            given, marks = value.values, value.marks
        elif len(keys) == 1:
            given = (value,)
        if all(getattr(mark, "name", "") != "proof" for mark in marks):
            found.append(dict(zip(keys, given)))
    return found


def run(check: Check, **fixtures: Any) -> None:
    """One case, with the fixtures that it asks for."""
    wanted = inspect.signature(check.function).parameters
    try:
        check.function(**check.arguments, **{k: v for k, v in fixtures.items() if k in wanted})
    except Exception as error:
        raise AssertionError(f"{check.name}{dict(check.arguments)}: {error}") from error
