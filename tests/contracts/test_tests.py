"""No test without an assertion, and none that asserts on the time that passes."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import ROOT

# Fail by raising, in what is not called by its name.
RAISES = {
    "test_without_a_mistake_all_checks_pass": "calls a check that is its parameter",
    "test_what_only_costs_acceptance_leaves_the_law": "calls a check that is its parameter",
    "test_code_runs": "runs sample programs",
    "test_templates_that_show_it_are_fine": "check_system raises, or returns nothing",
    "test_rounding_of_another_engine_is_allowed": "the constructor compares, and raises",
}
ASSERTS = {"raises", "warns", "fail", "assert_close", "assert_allclose", "assert_array_equal", "assert_equal"}
CLOCKS = {"time", "monotonic", "perf_counter", "process_time", "perf_counter_ns", "monotonic_ns", "time_ns"}
CLOCK = re.compile(rf"\btime\.({'|'.join(CLOCKS)})\b")
Function = ast.FunctionDef | ast.AsyncFunctionDef


def functions(source: str) -> Iterator[Function]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, Function):
            yield node


def calls_of(function: Function) -> tuple[set[str], bool]:
    """Names of what is called, without what they are attributes of; whether anything is asserted."""
    names, found = set(), False
    for node in ast.walk(function):
        if isinstance(node, ast.Call):
            names.add(
                node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            )
        found |= isinstance(node, ast.Assert)
    return names, found or bool(names & ASSERTS)


def idle_tests(sources: list[str]) -> list[str]:
    """Tests that neither assert nor call a function of the tests that does, however far away."""
    calls: dict[str, set[str]] = defaultdict(set)
    sound: set[str] = set()
    tests: list[tuple[str, set[str]]] = []
    for function in (one for source in sources for one in functions(source)):
        names, found = calls_of(function)
        calls[function.name] |= names
        if found:
            sound.add(function.name)
        elif function.name.startswith("test"):
            tests.append((function.name, names))
    while more := {name for name in calls if name not in sound and calls[name] & sound}:
        sound |= more
    return [name for name, names in tests if not names & sound]


def reads_clock(node: ast.AST) -> bool:
    """Whether ``node`` calls ``time.monotonic()`` or the like."""
    calls = (one.func for one in ast.walk(node) if isinstance(one, ast.Call))
    return any(
        isinstance(call, ast.Attribute)
        and call.attr in CLOCKS
        and isinstance(call.value, ast.Name)
        and call.value.id == "time"
        for call in calls
    )


def timed_tests(source: str) -> list[str]:
    """Functions with an assertion on a clock, read in it or into a name that it holds."""
    found: list[str] = []
    if not CLOCK.search(source):
        return found
    for function in functions(source):
        nodes = list(ast.walk(function))
        names = {
            target.id
            for node in nodes
            if isinstance(node, ast.Assign) and reads_clock(node.value)
            for target in node.targets
            if isinstance(target, ast.Name)
        }
        checks = [node.test for node in nodes if isinstance(node, ast.Assert)]
        if any(
            reads_clock(check) or any(isinstance(n, ast.Name) and n.id in names for n in ast.walk(check))
            for check in checks
        ):
            found.append(function.name)
    return found


@pytest.fixture(scope="module")
def sources() -> dict[Path, str]:
    return {path: path.read_text("utf-8") for path in sorted((ROOT / "tests").rglob("*.py"))}


def test_every_test_asserts_something(sources: dict[Path, str]) -> None:
    assert set(idle_tests(list(sources.values()))) == set(RAISES)


def test_no_assertion_depends_on_wall_time(sources: dict[Path, str]) -> None:
    assert {str(path): found for path, text in sources.items() if (found := timed_tests(text))} == {}


def test_what_asserts_nothing_is_seen() -> None:
    text = "def check(a):\n    assert a\n\ndef deep(a):\n    check(a)\n\n"
    assert idle_tests([text, "def test_a():\n    deep(1)\n\ndef test_b():\n    print(2)\n"]) == ["test_b"]
    assert idle_tests(["def test_c():\n    with pytest.raises(ValueError):\n        f()\n"]) == []


def test_what_asserts_on_time_is_seen() -> None:
    begin = "def test_a():\n    start = time.monotonic()\n    f()\n"
    assert timed_tests(begin + "    assert time.monotonic() < 3\n") == ["test_a"]
    assert timed_tests(begin + "    assert start > 3\n") == ["test_a"]
    assert (
        timed_tests(begin + "    while time.monotonic() < start + 60:\n        f()\n    assert done\n") == []
    )
