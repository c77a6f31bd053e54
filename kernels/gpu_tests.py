"""Run the tests marked ``gpu``, one process per file: a hang, an abort or a lost device fails only one test.

In the processes this module is a plugin of pytest that writes their journal.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from gpu_process import JOURNAL, ROOT, Entries, begin, end, leave_if_lost, note, read_journal, supervise

LIMIT = "VOCABFORGE_GPU_TEST_SECONDS"
# Folders in running order: ops before code that uses them, tests that compile with Inductor last.
_ORDER = ("tests/ops/", "tests/models/", "tests/train/", "tests/decode/")
_JOBS = 4  # files side by side
_TAIL = 3000  # characters kept from a failure


def _journal() -> Path:
    return Path(os.environ[JOURNAL])


def pytest_collection_modifyitems(items: list[Any]) -> None:
    """Deselect tests that have already ended."""
    done = read_journal(_journal())[0]
    items[:] = [item for item in items if item.nodeid not in done]


def pytest_collectreport(report: Any) -> None:
    if report.failed:
        text = report.longreprtext[-_TAIL:]
        missing = re.search(r"ModuleNotFoundError: (No module named .*)", text)
        outcome, problem = ("left", missing[1]) if missing else ("failed", text)
        note(_journal(), report.nodeid, outcome=outcome, problem=problem)


def pytest_runtest_logstart(nodeid: str) -> None:
    begin(_journal(), nodeid, float(os.environ[LIMIT]))


def pytest_runtest_logreport(report: Any) -> None:
    if report.when != "call" and report.passed:
        return
    problem = report.longreprtext[-_TAIL:] if report.failed else ""
    note(_journal(), report.nodeid, outcome=report.outcome, problem=problem)
    leave_if_lost(problem)


def pytest_runtest_logfinish(nodeid: str) -> None:
    end(_journal(), nodeid)


def gpu_files() -> list[str]:
    """Return the files with tests marked ``gpu``, in running order; others may need missing packages."""
    files = [str(path.relative_to(ROOT)) for path in sorted((ROOT / "tests").rglob("test_*.py"))]
    place = {start: number for number, start in enumerate(_ORDER)}
    marked = [one for one in files if re.search(r"mark\.gpu|= parity\(", (ROOT / one).read_text("utf-8"))]
    return sorted(marked, key=lambda one: next((place[s] for s in _ORDER if one.startswith(s)), len(_ORDER)))


def run_files(
    files: Sequence[str], seconds: float, folder: Path, *, test: float = 30.0, file: float = 90.0
) -> Entries:
    """Run the files' tests and write logs to ``folder``.

    Args:
        seconds: limit of the whole run; ``test`` and ``file`` are those of a test and of a file.

    Returns:
        Outcomes by test, and ``failed`` by file if the rest of it did not run.
    """
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    until = time.monotonic() + seconds

    def outcomes(name: str) -> Entries:
        journal = folder / f"{name.removesuffix('.py').replace('/', '-')}.jsonl"
        command = [sys.executable, "-m", "pytest", "-q", "-m", "gpu", "-p", "no:cacheprovider"]
        command += ["-p", "gpu_tests", "--continue-on-collection-errors", name]
        # Plugins installed on a shared machine are ignored.
        own = {LIMIT: str(test), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
        left = min(file, until - time.monotonic())
        found, problem = supervise(command, journal, left, done=(0, 1, 5), environment=own)
        count = sum(one["outcome"] == "passed" for one in found.values())
        print(f"[gpu-check] {name}: {count} of {len(found)} passed", file=sys.stderr, flush=True)
        return found if problem is None else found | {name: {"outcome": "failed", "problem": problem}}

    with ThreadPoolExecutor(_JOBS) as pool:
        return {name: one for found in pool.map(outcomes, files) for name, one in found.items()}


def judged(tests: Entries, device: str) -> dict[str, Any]:
    """Summarize a test run: files left out for a missing package are no failures; no test at all is, on a GPU."""
    kinds = {
        kind: {name: one["problem"] for name, one in tests.items() if one["outcome"] == kind}
        for kind in ("passed", "failed", "skipped", "left")
    }
    report: dict[str, Any] = {kind: len(kinds[kind]) for kind in ("passed", "failed", "skipped")}
    report |= {"failures": kinds["failed"], "left": kinds["left"]}
    if kinds["failed"]:
        lines = (f"{name}: {(why.strip().splitlines() or [''])[-1]}" for name, why in kinds["failed"].items())
        return {**report, "state": "failed", "problem": "\n".join(lines)}
    if not kinds["passed"]:
        return {**report, "state": "skipped" if device == "cpu" else "failed", "problem": "no test ran"}
    return {**report, "state": "passed"}
