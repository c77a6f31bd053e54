"""Every error of a user says what would have been right, or what to do: read from the syntax trees of all sources."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.support import ROOT

BASE = "VocabForgeError"
GUIDING = {"expected", "remedy"}
FIELDS = {"got", "expected", "source", "remedy"}
# (file, message as written): why it can say neither. What is missing or empty needs no ``got``, the rest is here.
SILENT = {
    (
        "vocabforge/bench/counting.py",
        "f'{method} failed'",
    ): "got is the child's own error, which says what to do",
    (
        "vocabforge/evaluate/run/runner.py",
        "'not one question could be answered'",
    ): "got is the first question's own failure",
}


def family(trees: Mapping[str, ast.Module]) -> set[str]:
    """Names of the error classes: the base, and whatever derives from it anywhere."""
    classes = [node for tree in trees.values() for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    found = {BASE}
    while new := {one.name for one in classes if found & {ast.unparse(base) for base in one.bases}} - found:
        found |= new
    return found


def calls(tree: ast.Module, names: set[str]) -> list[ast.Call]:
    """Where an error is made."""
    made = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    return [one for one in made if ast.unparse(one.func).rpartition(".")[2] in names]


def silent(trees: Mapping[str, ast.Module]) -> dict[tuple[str, str], str]:
    """(file, message) -> place of every error that guides nobody."""
    names, found = family(trees), {}
    for name, tree in trees.items():
        for call in calls(tree, names):
            if not GUIDING & {word.arg for word in call.keywords}:
                message = ast.unparse(call.args[0]) if call.args else ""
                found[name, message] = f"{name}:{call.lineno}"
    return found


@pytest.fixture(scope="module")
def trees() -> dict[str, ast.Module]:
    files: list[Path] = sorted((ROOT / "vocabforge").rglob("*.py"))
    return {path.relative_to(ROOT).as_posix(): ast.parse(path.read_text("utf-8")) for path in files}


def test_every_error_guides(trees: dict[str, ast.Module]) -> None:
    found = silent(trees)
    new = {place: key[1] for key, place in found.items() if key not in SILENT}
    assert new == {}, "give expected=... or remedy=..."
    assert set(SILENT) <= set(found), "an exception that nothing needs any more"


def test_the_family_is_seen_whole(trees: dict[str, ast.Module]) -> None:
    names = family(trees)
    assert {BASE, "UsageError", "ConfigError", "DataError", "ArtifactError", "MismatchError"} <= names
    assert sum(len(calls(tree, names)) for tree in trees.values()) > 700


def test_no_field_is_an_exception(trees: dict[str, ast.Module]) -> None:
    """``source`` is a place; an error that was caught belongs into ``got``."""
    names = family(trees)
    wrong = [
        f"{name}:{call.lineno}"
        for name, tree in trees.items()
        for call in calls(tree, names)
        for word in call.keywords
        if word.arg in FIELDS - {"got"} and isinstance(word.value, ast.Name) and word.value.id == "error"
    ]
    assert wrong == []


def test_a_silent_error_is_found() -> None:
    text = (
        "class OwnError(DataError): ...\nclass DataError(VocabForgeError): ...\n"
        "raise OwnError('a', got=1)\nraise errors.DataError('b', source=2)\nraise DataError('c', remedy='d')\n"
    )
    assert set(silent({"x.py": ast.parse(text)})) == {("x.py", "'a'"), ("x.py", "'b'")}
