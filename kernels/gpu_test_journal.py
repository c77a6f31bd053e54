"""Pytest plugin for ``gpu_tests.py``: records when tests start and end, and stops unusable processes.

A process is stopped if a test exceeds its time limit or the device is lost: after an illegal address every
later CUDA call fails.
"""

from __future__ import annotations

import faulthandler
import json
import os
from pathlib import Path
from typing import Any

JOURNAL, LIMIT = "VOCABFORGE_GPU_TESTS_JOURNAL", "VOCABFORGE_GPU_TESTS_LIMIT"
LOST = 70  # exit code after a sticky CUDA error
_STICKY = ("CUDA error", "CUBLAS_STATUS_EXECUTION_FAILED", "device-side assert")
_NOT_STICKY = ("out of memory", "invalid argument", "invalid configuration")
_TAIL = 3000  # characters kept from a failure


def read(path: Path) -> tuple[dict[str, dict[str, Any]], str | None]:
    """Return outcomes by test, and the test that started but did not end, or None."""
    ended: dict[str, dict[str, Any]] = {}
    begun = None
    for line in path.read_text("utf-8").splitlines() if path.is_file() else ():
        try:
            entry = json.loads(line)
        except json.JSONDecodeError:  # truncated by a kill
            continue
        if "outcome" in entry:
            if ended.get(entry["test"], {}).get("outcome") != "failed":
                ended[entry["test"]] = entry
        else:
            begun = entry["test"] if "begun" in entry else None
    return ended, begun


def append(path: Path, **entry: Any) -> None:
    """Append an entry as a JSON line."""
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(entry) + "\n")


def _note(**entry: Any) -> None:
    append(Path(os.environ[JOURNAL]), **entry)


def pytest_collection_modifyitems(items: list[Any]) -> None:
    """Deselect tests that have already ended."""
    done = read(Path(os.environ[JOURNAL]))[0]
    items[:] = [item for item in items if item.nodeid not in done]


def pytest_collectreport(report: Any) -> None:
    if report.failed:
        _note(test=report.nodeid, outcome="failed", collected=False, problem=report.longreprtext[-_TAIL:])


def pytest_runtest_logstart(nodeid: str) -> None:
    _note(test=nodeid, begun=True)
    trace = Path(os.environ[JOURNAL]).with_suffix(".trace").open("a", encoding="utf-8")
    faulthandler.dump_traceback_later(float(os.environ[LIMIT]), exit=True, file=trace)


def pytest_runtest_logreport(report: Any) -> None:
    if report.when != "call" and report.passed:
        return
    problem = report.longreprtext[-_TAIL:] if report.failed else ""
    _note(test=report.nodeid, outcome=report.outcome, seconds=round(report.duration, 2), problem=problem)
    if any(text in problem for text in _STICKY) and not any(text in problem for text in _NOT_STICKY):
        os._exit(LOST)


def pytest_runtest_logfinish(nodeid: str) -> None:
    faulthandler.cancel_dump_traceback_later()
    _note(test=nodeid, ended=True)
