"""Run the tests marked ``gpu``, one process per file: a hang, an abort or a lost device fails only one test.

If a process dies, its file is restarted after the test that was running. In the processes this module is a plugin of
pytest, which writes a journal of started and ended tests and stops the process if a test exceeds its limit or the
device is lost: after an illegal address every later CUDA call fails.
"""

from __future__ import annotations

import faulthandler
import os
import re
import shutil
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gpu_process
from bench.parts import append, read_journal
from gpu_process import KILLED, ROOT

JOURNAL, LIMIT = "VOCABFORGE_GPU_TESTS_JOURNAL", "VOCABFORGE_GPU_TESTS_LIMIT"
LOST = 70  # exit code after a sticky CUDA error
_STICKY = ("CUDA error", "CUBLAS_STATUS_EXECUTION_FAILED", "device-side assert")
_NOT_STICKY = ("out of memory", "invalid argument", "invalid configuration")
# Folders in running order: ops before code that uses them, tests that compile with Inductor last.
_ORDER = ("tests/ops/", "tests/models/", "tests/train/", "tests/decode/")
_STARTS = 6  # maximum process starts per file
_TAIL = 3000  # characters kept from a failure or a failed process's output


def _note(**entry: Any) -> None:
    append(Path(os.environ[JOURNAL]), **entry)


def pytest_collection_modifyitems(items: list[Any]) -> None:
    """Deselect tests that have already ended."""
    done = read_journal(Path(os.environ[JOURNAL]))[0]
    items[:] = [item for item in items if item.nodeid not in done]


def pytest_collectreport(report: Any) -> None:
    if report.failed:
        _note(name=report.nodeid, outcome="failed", collected=False, problem=report.longreprtext[-_TAIL:])


def pytest_runtest_logstart(nodeid: str) -> None:
    _note(name=nodeid, begun=True)
    trace = Path(os.environ[JOURNAL]).with_suffix(".trace").open("a", encoding="utf-8")
    faulthandler.dump_traceback_later(float(os.environ[LIMIT]), exit=True, file=trace)


def pytest_runtest_logreport(report: Any) -> None:
    if report.when != "call" and report.passed:
        return
    problem = report.longreprtext[-_TAIL:] if report.failed else ""
    _note(name=report.nodeid, outcome=report.outcome, seconds=round(report.duration, 2), problem=problem)
    if any(text in problem for text in _STICKY) and not any(text in problem for text in _NOT_STICKY):
        os._exit(LOST)


def pytest_runtest_logfinish(nodeid: str) -> None:
    faulthandler.cancel_dump_traceback_later()
    _note(name=nodeid, ended=True)


@dataclass(frozen=True)
class TestLimits:
    """Limits in seconds for a test, a file and the whole run, and the number of parallel processes."""

    test: float = 30.0
    file: float = 90.0
    all: float = 200.0
    jobs: int = 4


@dataclass
class Outcomes:
    """Results of the tests.

    Attributes:
        tests: results by test: ``outcome``, ``seconds`` and ``problem``.
        left: files and tests that did not run, with the reason.
    """

    tests: dict[str, dict[str, Any]] = field(default_factory=dict)
    left: dict[str, str] = field(default_factory=dict)


def gpu_files(named: Sequence[str]) -> list[str]:
    """Return the files with tests marked ``gpu``, in running order; others may need missing packages."""
    if named:
        return list(named)
    files = [str(path.relative_to(ROOT)) for path in sorted((ROOT / "tests").rglob("test_*.py"))]
    place = {start: number for number, start in enumerate(_ORDER)}
    marked = [one for one in files if re.search(r"mark\.gpu|= parity\(", (ROOT / one).read_text("utf-8"))]
    return sorted(marked, key=lambda one: next((place[s] for s in _ORDER if one.startswith(s)), len(_ORDER)))


def run_files(files: Sequence[str], limits: TestLimits, folder: Path) -> Outcomes:
    """Run the files' tests, print a line for each finished test, and write logs to ``folder``."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    end, outcomes = time.monotonic() + limits.all, Outcomes()
    with ThreadPoolExecutor(limits.jobs) as pool:
        for one in pool.map(lambda file: _run_file(file, limits, end, folder), files):
            outcomes.tests |= one.tests
            outcomes.left |= one.left
    return outcomes


def _run_file(file: str, limits: TestLimits, end: float, folder: Path) -> Outcomes:
    journal = folder / f"{file.removesuffix('.py').replace('/', '-')}.jsonl"
    found, end = Outcomes(), min(end, time.monotonic() + limits.file)
    problem: str | None = "no time left"
    for _ in range(_STARTS):
        if (left := end - time.monotonic()) <= 0:
            break
        known = len(found.tests)
        code, problem = _process(file, journal, left, limits.test)
        found.tests, at = read_journal(journal)
        if problem is None:
            break
        if code != LOST:  # otherwise the test reported the error
            name = at or f"{file}: between tests"
            append(journal, name=name, outcome="failed", seconds=0.0, problem=problem)
            _say("failed", name, problem.splitlines()[0])
            found.tests = read_journal(journal)[0]
            if at is None and len(found.tests) == known + 1:  # a restart would fail in the same way
                break
    if problem is not None:
        found.left[file] = "the rest did not run: " + problem.splitlines()[0]
    for name, one in list(found.tests.items()):
        missing = one["problem"].rpartition("ModuleNotFoundError: ")[2]
        if one.get("collected") is False and missing.startswith("No module named"):
            found.left[name] = missing.splitlines()[0]
            del found.tests[name]
    return found


def _process(file: str, journal: Path, seconds: float, test_seconds: float) -> tuple[int, str | None]:
    """Run pytest on a file; return its exit code and how it died, or None if it finished."""
    arguments = [sys.executable, "-m", "pytest", "-q", "-m", "gpu", "-p", "no:cacheprovider"]
    arguments += ["-p", "gpu_tests", "--continue-on-collection-errors", file]
    environment = {
        JOURNAL: str(journal),
        LIMIT: str(min(test_seconds, seconds)),
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",  # ignore plugins installed on a shared machine
    }
    said = len(read_journal(journal)[0])

    def report() -> None:
        nonlocal said
        ended = list(read_journal(journal)[0].values())
        for one in ended[said:]:
            _say(one["outcome"], one["name"], f"{one.get('seconds', 0.0):.1f} s")
        said = len(ended)

    code, last = gpu_process.run(arguments, seconds, journal.with_suffix(".log"), environment, report)
    if code in (0, 1, 5) and read_journal(journal)[1] is None:  # the watchdog also exits with 1
        return code, None
    trace = journal.with_suffix(".trace")
    hung = trace.read_text("utf-8", "replace").strip() if trace.is_file() else ""
    trace.unlink(missing_ok=True)
    if code == KILLED:
        return code, f"not done after {seconds:.0f} s\n{last[-_TAIL:]}"
    if hung:
        return code, f"hung for {test_seconds:.0f} s\n{hung[:_TAIL]}"
    return code, f"the process ended with {code}\n{last[-_TAIL:]}"


def _say(outcome: str, test: str, more: str) -> None:
    print(f"[gpu-check] {outcome:7} {test}  {more}", file=sys.stderr, flush=True)
