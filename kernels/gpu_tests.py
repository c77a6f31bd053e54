"""Run the tests marked ``gpu``, one process per file: a hang, an abort or a lost device fails only one test.

If a process dies, its file is restarted after the test that was running. Failed tests run again with blocking
launches, so the error names the kernel.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "kernels"))
import gpu_test_journal as journals  # noqa: E402

# Folders in running order: ops before code that uses them, tests that compile with Inductor last.
_ORDER = ("tests/ops/", "tests/models/", "tests/train/", "tests/decode/")
_STARTS = 6  # maximum process starts per file
_NOT_DONE = "not done after"
_TAIL = 2000  # characters kept from a failed process's output
TOOLS = ("memcheck", "racecheck")


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
        tests: results by test: ``outcome``, ``seconds``, ``problem`` and, for a failed test, ``blocking``
            (the result with blocking launches).
        left: files and tests that did not run, with the reason.
    """

    tests: dict[str, dict[str, Any]] = field(default_factory=dict)
    left: dict[str, str] = field(default_factory=dict)

    def count(self, outcome: str) -> int:
        """Return the number of tests with this outcome."""
        return sum(one["outcome"] == outcome for one in self.tests.values())


def gpu_files(named: Sequence[str]) -> list[str]:
    """Return the files with tests marked ``gpu``, in running order; others may need missing packages."""
    if named:
        return list(named)
    files = [str(path.relative_to(ROOT)) for path in sorted((ROOT / "tests").rglob("test_*.py"))]
    place = {start: number for number, start in enumerate(_ORDER)}
    marked = [one for one in files if "mark.gpu" in (ROOT / one).read_text("utf-8")]
    return sorted(marked, key=lambda one: next((place[s] for s in _ORDER if one.startswith(s)), len(_ORDER)))


def run_files(
    files: Sequence[str], limits: TestLimits, folder: Path, sanitize: str | None = None
) -> Outcomes:
    """Run the files' tests, print a line for each finished test, and write logs to ``folder``."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    end, outcomes = time.monotonic() + limits.all, Outcomes()
    with ThreadPoolExecutor(1 if sanitize else limits.jobs) as pool:
        for one in pool.map(lambda file: _run_file(file, limits, end, folder, sanitize), files):
            outcomes.tests |= one.tests
            outcomes.left |= one.left
    return outcomes


def _run_file(file: str, limits: TestLimits, end: float, folder: Path, sanitize: str | None) -> Outcomes:
    journal = folder / f"{file.removesuffix('.py').replace('/', '-')}.jsonl"
    found, end = Outcomes(), min(end, time.monotonic() + limits.file)
    why: _Death | None = _Death(124, "no time left")
    for _ in range(_STARTS):
        if (left := end - time.monotonic()) <= 0:
            break
        known = len(found.tests)
        why = _process(file, journal, left, limits.test, {}, sanitize)
        found.tests, at = journals.read(journal)
        if why is None:
            break
        if why.code != journals.LOST:  # otherwise the test reported the error
            name = at or f"{file}: between tests"
            journals.append(journal, test=name, outcome="failed", seconds=0.0, problem=why.text)
            _say("failed", name, why.text.splitlines()[0])
            found.tests = journals.read(journal)[0]
            if at is None and len(found.tests) == known + 1:  # a restart would fail in the same way
                break
    if why is not None:
        found.left[file] = "the rest did not run: " + why.text.splitlines()[0]
    for name, one in list(found.tests.items()):
        missing = (
            one["problem"].rpartition("ModuleNotFoundError: ")[2] if one.get("collected") is False else ""
        )
        if missing.startswith("No module named"):
            found.left[name] = missing.splitlines()[0]
            del found.tests[name]
    failed = [
        name
        for name, one in found.tests.items()
        if one["outcome"] == "failed" and "::" in name and not one["problem"].startswith(_NOT_DONE)
    ]
    if failed and not sanitize:
        _again(file, failed, journal, max(end - time.monotonic(), limits.test), limits, found)
    return found


def _again(
    file: str, failed: Sequence[str], journal: Path, seconds: float, limits: TestLimits, found: Outcomes
) -> None:
    """Run failed tests again, each in a process with blocking launches."""
    end = time.monotonic() + seconds
    for number, name in enumerate(failed):
        if (left := end - time.monotonic()) <= 0:
            return
        own = journal.with_suffix(f".blocking-{number}.jsonl")
        test = f"{file}::{name.partition('::')[2]}"  # pytest picks the folder that its names are relative to
        why = _process(test, own, left, limits.test, {"CUDA_LAUNCH_BLOCKING": "1"}, None, quiet=True)
        one = journals.read(own)[0].get(name)
        found.tests[name]["blocking"] = (
            {"outcome": one["outcome"], "problem": one["problem"]}
            if one
            else {"outcome": "failed", "problem": why.text if why else "it did not run"}
        )


@dataclass(frozen=True)
class _Death:
    code: int
    text: str


def _process(
    chosen: str,
    journal: Path,
    seconds: float,
    test_seconds: float,
    environment: Mapping[str, str],
    sanitize: str | None,
    *,
    quiet: bool = False,
) -> _Death | None:
    """Run pytest on a file or a test; return how it died, or None if it finished."""
    arguments = [sys.executable, "-m", "pytest", "-q", "-m", "gpu", "-p", "no:cacheprovider"]
    arguments += ["-p", journals.__name__, "--continue-on-collection-errors", chosen]
    path = os.pathsep.join([str(ROOT / "kernels"), str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    ours = {
        journals.JOURNAL: str(journal),
        journals.LIMIT: str(seconds if sanitize else min(test_seconds, seconds)),
        "PYTHONPATH": path,
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",  # ignore plugins installed on a shared machine
    }
    if sanitize:
        tool = shutil.which("compute-sanitizer") or "/usr/local/cuda/bin/compute-sanitizer"
        arguments = [tool, "--tool", sanitize, "--error-exitcode", "99", *arguments]
        if sanitize == "memcheck":
            # torch's caching allocator hides out-of-bounds accesses; without it, graphs cannot be captured.
            ours["PYTORCH_NO_CUDA_MEMORY_CACHING"] = "1"
            arguments += ["-k", "not graph and not capture"]
    log = journal.with_suffix(".log")
    said = len(journals.read(journal)[0])
    end = time.monotonic() + seconds
    with log.open("ab") as output:
        begun = output.tell()
        process = subprocess.Popen(
            arguments,
            cwd=ROOT,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, **ours, **environment},
            start_new_session=True,
        )
        try:
            while (code := process.poll()) is None and time.monotonic() < end:
                time.sleep(0.1)
                said = said if quiet else _report(journal, said)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
    if not quiet:
        _report(journal, said)
    if code in (0, 1, 5) and journals.read(journal)[1] is None:  # the watchdog also exits with 1
        return None
    trace = journal.with_suffix(".trace")
    hung = trace.read_text("utf-8", "replace").strip() if trace.is_file() else ""
    trace.unlink(missing_ok=True)
    last = log.read_bytes()[begun:].decode("utf-8", "replace").strip()[-_TAIL:]
    if code is None:
        return _Death(124, f"{_NOT_DONE} {seconds:.0f} s\n{last}")
    if code == 99 and sanitize:
        return _Death(99, f"{sanitize} found errors\n{last}")
    if hung:
        return _Death(code, f"hung for {test_seconds:.0f} s\n{hung[:_TAIL]}")
    return _Death(code, f"the process ended with {code}\n{last}")


def _report(journal: Path, said: int) -> int:
    """Print tests that ended since the last report and return the total number of ended tests."""
    ended = list(journals.read(journal)[0].values())
    for one in ended[said:]:
        _say(one["outcome"], one["test"], f"{one.get('seconds', 0.0):.1f} s")
    return len(ended)


def _say(outcome: str, test: str, more: str) -> None:
    print(f"[gpu-check] {outcome:7} {test}  {more}", file=sys.stderr, flush=True)
