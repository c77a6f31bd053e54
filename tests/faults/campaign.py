"""Commands that are struck: where, with what, and what may come of it."""

from __future__ import annotations

import contextlib
import importlib
import os
import random
import shutil
import signal
import sys
import time
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

from tests.faults.jobs import FORMS, JOBS, WRITERS, Job, check_whole, serving
from tests.faults.process import Child, Conditions, Ended, run
from vocabforge.core.errors import VocabForgeError

KILL, FAILING, QUOTA, RIVALS, CLOCK = "kill -9", "failing write", "file quota", "two writers", "clock back"
WHOLE = {
    **{name: {KILL: 20, FAILING: 8, QUOTA: 4, RIVALS: 3, CLOCK: 3} for name in JOBS},
    **{name: {KILL: 2, FAILING: 2, RIVALS: 2} for name in WRITERS},
    **{name: {KILL: 25} for name in FORMS},
}
SHORT = {
    "count-freq": {KILL: 1, FAILING: 1, RIVALS: 1},
    "capture": {KILL: 1, QUOTA: 1, CLOCK: 1},
    "train-drafter": {KILL: 1},
    "export": {KILL: 1, FAILING: 1},
    "eval": {KILL: 1},
}
NEIGHBOURS = {"neighbour/notes.txt": "keep", "out.notes": "keep", ".out.tmp-notes": "keep"}
MARKS = (".tmp-", ".old-", ".lock", ".partial")
DAYS = 3 * 86_400.0
BESIDE_S = 20.0


class Bench:
    """Where trials of one command run, and what they are compared with: an undisturbed run."""

    def __init__(self, job: Job, world: Path, base: Path) -> None:
        self.job, self.world, self.base = job, world, base
        with self.place("reference") as work:
            ended = self.run(work)
            assert ended.code == 0, f"fails undisturbed:\n{ended.text[-3000:]}"
            self.reference, self.operations = job.result(work), ended.operations
            self.largest = max(file.stat().st_size for file in work.rglob("*") if file.is_file())
        for name in ended.modules:  # so that the next ones start quickly
            if name not in sys.modules and name != "__main__":
                with contextlib.suppress(Exception):
                    importlib.import_module(name)

    @contextlib.contextmanager
    def place(self, name: str) -> Iterator[Path]:
        """A new folder to work in, with other people's files in it; removed if all was well."""
        work = self.base / name.replace(" ", "") / "work"
        for file, text in NEIGHBOURS.items():
            (work / file).parent.mkdir(parents=True, exist_ok=True)
            (work / file).write_text(text)
        with serving(self.job, self.world, work):
            yield work
        shutil.rmtree(work.parent, ignore_errors=True)

    def run(self, work: Path, conditions: Conditions | None = None) -> Ended:
        return run(self.job.words(self.world, work), work, conditions)

    def draw(self, chance: random.Random) -> int:
        """Draw an operation; each stretch of equal operations is as likely."""
        numbers = range(1, len(self.operations) + 1)
        stretches = [list(stretch) for _, stretch in groupby(numbers, lambda at: self.operations[at - 1])]
        return chance.choice(chance.choice(stretches))

    def same(self, work: Path) -> bool:
        """Whether the finished result is that of the undisturbed run."""
        try:
            return self.job.result(work) == self.reference
        except (VocabForgeError, OSError, ValueError):
            return False

    def check_remains(self, work: Path) -> None:
        """Whatever stands under a final name is whole, and nothing else was destroyed."""
        for name, text in NEIGHBOURS.items():
            if not (work / name).is_file() or (work / name).read_text() != text:
                raise AssertionError(f"destroyed {name}")
        try:
            check_whole(self.job, work)
        except VocabForgeError as error:
            raise AssertionError(f"half-written under a final name: {error}") from error

    def check_end(self, work: Path) -> None:
        """The result is identical, and nothing is left beside it."""
        assert self.same(work), "ends in another result"
        names = [str(path.relative_to(work)) for path in work.rglob("*")]
        left = [name for name in names if any(mark in name for mark in MARKS) and name not in NEIGHBOURS]
        assert left == [], f"leaves {left}"

    def judge(self, work: Path, again: Ended, finished: bool) -> None:
        """Check what the run after a fault came to; ``finished``: the result was complete at the fault."""
        self.check_remains(work)
        if again.code == 0:
            self.check_end(work)
            return
        check_error(again)
        assert finished, f"does not go on:\n{again.text[-2500:]}"
        assert "exists already" in again.text, again.text[-2500:]
        assert self.same(work), "the finished result was changed"

    def killed(self, work: Path, at: int) -> bool:
        """Die at an operation (a run can end before so many); returns whether the result is complete."""
        ended = self.run(work, Conditions(at))
        over = ended.code == 0 and len(ended.operations) < at
        assert over or ended.code == -signal.SIGKILL, f"not killed ({ended.code}):\n{ended.text[-1500:]}"
        self.check_remains(work)
        return self.same(work)


def check_error(ended: Ended) -> None:
    """One clear error: an exit code, one message, no traceback."""
    clear = ended.code in (1, 2) and "Traceback" not in ended.text and ended.text.count("Error: ") == 1
    assert clear, f"no clear error (code {ended.code}):\n{ended.text[-2500:]}"


def kill(bench: Bench, work: Path, at: int, number: int) -> None:
    """Die at an operation, and every fourth time at another one of the run after that."""
    finished = bench.killed(work, at)
    if number % 4 == 3 and not finished:
        finished = bench.killed(work, max(1, at // 2))
    bench.judge(work, bench.run(work), finished)


def fail(bench: Bench, work: Path, at: int, number: int) -> None:
    """One operation fails with an error of the operating system."""
    error = ("EIO", "ENOSPC", "EDQUOT")[number % 3]
    _after_error(bench, work, bench.run(work, Conditions(at, error)))


def quota(bench: Bench, work: Path, at: int, number: int) -> None:
    """No file may grow beyond a share of the largest one; safetensors' own writes meet it, too."""
    limit = max(1, int((0.3, 0.6, 0.9, 0.05)[number % 4] * bench.largest))
    _after_error(bench, work, bench.run(work, Conditions(file_bytes=limit)))


def _after_error(bench: Bench, work: Path, ended: Ended) -> None:
    bench.check_remains(work)
    if ended.code == 0:  # it could do without what failed
        assert bench.same(work), "exit code 0, and another result"
        return
    check_error(ended)
    finished = bench.same(work)
    bench.judge(work, bench.run(work), finished)


def two_writers(bench: Bench, work: Path, at: int, number: int) -> None:
    """The first stands still before an operation while the second runs; then the first goes on."""
    words = bench.job.words(bench.world, work)
    first = Child(words, work, Conditions(at, "stop"))
    stood = first.stopped()
    second = Child(words, work)
    if stood:
        second.over(BESIDE_S)  # it may wait for the first one's lock
        os.kill(first.pid, signal.SIGCONT)
    ends = [first.ended(), second.ended()]
    refused = [ended for ended in ends if ended.code]
    for ended in refused:
        check_error(ended)
    assert len(refused) < 2, "neither writer finishes:\n" + "\n".join(ended.text[-1200:] for ended in ends)
    bench.check_remains(work)
    if refused and any(work.glob("*.partial")):  # its parts are kept for --overwrite
        run([*words, "--overwrite"], work)
    bench.check_end(work)


def clock(bench: Bench, work: Path, at: int, number: int) -> None:
    """The wall clock goes back at every look, or by days between a kill and the next start."""
    if number == 0:
        bench.judge(work, bench.run(work, Conditions(backwards=7.0)), finished=False)
        return
    finished = bench.killed(work, at)
    now = time.time()
    for age, path in enumerate(sorted(work.rglob("*"))):  # the former files are of the future, youngest first
        os.utime(path, (now - age * 60, now - age * 60), follow_symlinks=False)
    bench.judge(work, bench.run(work, Conditions(clock=-DAYS)), finished)


FAULTS = {KILL: kill, FAILING: fail, QUOTA: quota, RIVALS: two_writers, CLOCK: clock}


def struck(bench: Bench, name: str, fault: str, count: int, seed: int) -> Iterator[str]:
    """Strike at random operations, the same ones on every machine; yield what went wrong."""
    chance = random.Random(f"{seed} {fault} {name}")
    for number in range(count):
        at = bench.draw(chance)
        try:
            with bench.place(f"{name}-{fault}-{number}") as work:
                FAULTS[fault](bench, work, at, number)
        except Exception as wrong:  # noqa: BLE001 (the other trials are made)
            where = f"operation {at} of {len(bench.operations)} ({bench.operations[at - 1]})"
            yield f"{where}, trial {number}: {type(wrong).__name__}: {wrong}"
