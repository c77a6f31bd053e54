"""Files of at most 300 lines, functions of at most 60, at most 8 parameters; exceptions are named, with a reason."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FILE_LINES = 300
FUNCTION_LINES = 60
PARAMETERS = 8

_SCHEMA = "the schema of the compiled op, held equal to the C++ one argument by argument"

LONG_FILES: dict[str, str] = {}
LONG_FUNCTIONS: dict[str, str] = {}
MANY_PARAMETERS = {
    "vocabforge/models/lean.py LeanModel.forward": "one pass over a cache; few callers give the last two",
    "vocabforge/ops/rope_store.py rope_store": _SCHEMA,
    "vocabforge/ops/rope_store.py rope_store_reference": _SCHEMA,
    "vocabforge/ops/tree_attention.py tree_attention": _SCHEMA,
    "vocabforge/ops/tree_verify.py tree_verify": _SCHEMA,
}


def functions(node: ast.AST, owner: str = "") -> Iterator[tuple[str, int, int]]:
    """(Qualified name, lines with decorators left out, parameters without self and cls) of every function."""
    for child in ast.iter_child_nodes(node):
        inside = owner
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            inside = f"{owner}{child.name}."
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            spec = child.args
            names = [each.arg for each in (*spec.posonlyargs, *spec.args, *spec.kwonlyargs)]
            extra = (spec.vararg is not None) + (spec.kwarg is not None)
            own = isinstance(node, ast.ClassDef) and names[:1] in (["self"], ["cls"])
            lines = (child.end_lineno or child.lineno) - child.lineno + 1
            yield inside[:-1], lines, len(names) - own + extra
        yield from functions(child, inside)


@pytest.fixture(scope="module")
def measured() -> dict[str, set[str]]:
    found: dict[str, set[str]] = {"files": set(), "functions": set(), "parameters": set()}
    sources = [*ROOT.joinpath("vocabforge").rglob("*.py"), *ROOT.joinpath("kernels").glob("*.py")]
    assert len(sources) > 300  # the folders were found
    for source in sources:
        text = source.read_text(encoding="utf-8")
        path = source.relative_to(ROOT).as_posix()
        if len(text.splitlines()) > FILE_LINES:
            found["files"].add(path)
        for name, lines, parameters in functions(ast.parse(text)):
            if lines > FUNCTION_LINES:
                found["functions"].add(f"{path} {name}")
            if parameters > PARAMETERS:
                found["parameters"].add(f"{path} {name}")
    return found


@pytest.mark.parametrize(
    ("what", "excepted"),
    [("files", LONG_FILES), ("functions", LONG_FUNCTIONS), ("parameters", MANY_PARAMETERS)],
)
def test_only_what_is_named_is_over_the_limit(
    measured: dict[str, set[str]], what: str, excepted: dict[str, str]
) -> None:
    new = sorted(measured[what] - set(excepted))
    stale = sorted(set(excepted) - measured[what])
    assert not new, f"over the limit: {new}"
    assert not stale, f"no longer over the limit, so take them out of the table: {stale}"


def test_a_function_is_measured_by_its_lines_and_parameters() -> None:
    source = "class A:\n    def f(self, a, /, b, *c, d=1, **e):\n        def g(): ...\n        return g\n"
    assert list(functions(ast.parse(source))) == [("A.f", 3, 5), ("A.f.g", 1, 0)]
