"""The fault campaign: strike every command in every way, run it again, and print what became of it.

``python -m tests.faults.campaign`` (``make test-faults``) strikes each command at random operations; ``--short`` is the
part of ``make test``. The exit code is 1 if anything went wrong.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

os.environ |= {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1"}

from tests.faults.jobs import FORMS, JOBS, WRITERS, Job, check_whole, make_world, serving
from tests.faults.process import FORK, Child, Conditions, Ended, run
from vocabforge.core.console import markdown_table, say
from vocabforge.core.errors import VocabForgeError
from vocabforge.core.progress import ProgressBar

# Loaded in front of every fork; what else commands need is found by their undisturbed runs.
SLOW = ("vocabforge.train.capture.run", "vocabforge.train.loop", "transformers.models.llama.modeling_llama")
KILL, FAILING, QUOTA, RIVALS, CLOCK = "kill -9", "failing write", "file quota", "two writers", "clock back"
COUNTS = (
    (JOBS, {KILL: 20, FAILING: 8, QUOTA: 4, RIVALS: 3, CLOCK: 3}),
    (WRITERS, {KILL: 2, FAILING: 2, RIVALS: 2}),
    (FORMS, {KILL: 25}),
)
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
IDENTICAL, CLEAR, WRONG = "identical", "clear error", "WRONG"


class Wrong(Exception):
    """What must never happen."""


@dataclass
class Bench:
    """Where trials of one command run, and what they are compared with: an undisturbed run."""

    name: str
    job: Job
    world: Path
    base: Path
    reference: Mapping[str, str]
    operations: tuple[str, ...] = ()
    largest: int = 0

    def measure(self) -> Ended:
        with self.place("reference") as work:
            ended = self.run(work)
            if ended.code:
                raise Wrong(f"{self.name} fails undisturbed:\n{ended.text[-3000:]}")
            self.reference, self.operations = self.job.result(work), ended.operations
            self.largest = max(file.stat().st_size for file in work.rglob("*") if file.is_file())
        return ended

    @contextlib.contextmanager
    def place(self, name: str) -> Iterator[Path]:
        """A new folder to work in, with other people's files in it; removed if all was well."""
        work = self.base / f"{self.name.replace(' ', '')}-{name}" / "work"
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
                raise Wrong(f"destroyed {name}")
        try:
            check_whole(self.job, work)
        except VocabForgeError as error:
            raise Wrong(f"half-written under a final name: {error}") from error

    def check_end(self, work: Path) -> None:
        """The result is identical, and nothing is left beside it."""
        if not self.same(work):
            raise Wrong("ends in another result")
        names = [str(path.relative_to(work)) for path in work.rglob("*")]
        left = [name for name in names if any(mark in name for mark in MARKS) and name not in NEIGHBOURS]
        if left:
            raise Wrong(f"leaves {left}")

    def judge(self, work: Path, again: Ended, finished: bool) -> str:
        """What the run after a fault came to; ``finished``: the result was complete at the fault."""
        self.check_remains(work)
        if again.code == 0:
            self.check_end(work)
            return IDENTICAL
        check_error(again)
        if not finished or "exists already" not in again.text:
            raise Wrong(f"does not go on:\n{again.text[-2500:]}")
        if not self.same(work):
            raise Wrong("the finished result was changed")
        return CLEAR

    def killed(self, work: Path, at: int) -> bool:
        """Die at an operation (a run can end before so many); returns whether the result is complete."""
        ended = self.run(work, Conditions(at))
        if ended.code != -signal.SIGKILL and not (ended.code == 0 and len(ended.operations) < at):
            raise Wrong(f"was not killed (code {ended.code}):\n{ended.text[-1500:]}")
        self.check_remains(work)
        return self.same(work)


def check_error(ended: Ended) -> None:
    """One clear error: an exit code, one message, no traceback."""
    if ended.code not in (1, 2) or "Traceback" in ended.text or ended.text.count("Error: ") != 1:
        raise Wrong(f"no clear error (code {ended.code}):\n{ended.text[-2500:]}")


def kill(bench: Bench, work: Path, at: int, number: int) -> str:
    """Die at an operation, and every fourth time at another one of the run after that."""
    finished = bench.killed(work, at)
    if number % 4 == 3 and not finished:
        finished = bench.killed(work, max(1, at // 2))
    return bench.judge(work, bench.run(work), finished)


def fail(bench: Bench, work: Path, at: int, number: int) -> str:
    """One operation fails with an error of the operating system."""
    error = ("EIO", "ENOSPC", "EDQUOT")[number % 3]
    return _after_error(bench, work, bench.run(work, Conditions(at, error)))


def quota(bench: Bench, work: Path, at: int, number: int) -> str:
    """No file may grow beyond a share of the largest one; safetensors' own writes meet it, too."""
    limit = max(1, int((0.3, 0.6, 0.9, 0.05)[number % 4] * bench.largest))
    return _after_error(bench, work, bench.run(work, Conditions(file_bytes=limit)))


def _after_error(bench: Bench, work: Path, ended: Ended) -> str:
    bench.check_remains(work)
    if ended.code == 0:  # it could do without what failed
        if not bench.same(work):
            raise Wrong("exit code 0, and another result")
        return IDENTICAL
    check_error(ended)
    finished = bench.same(work)
    bench.judge(work, bench.run(work), finished)
    return CLEAR


def two_writers(bench: Bench, work: Path, at: int, number: int) -> str:
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
    if len(refused) == 2:
        raise Wrong("neither writer finishes:\n" + "\n".join(ended.text[-1200:] for ended in ends))
    bench.check_remains(work)
    if refused and any(work.glob("*.partial")):  # its parts are kept for --overwrite
        run([*words, "--overwrite"], work)
    bench.check_end(work)
    return CLEAR if refused else IDENTICAL


def clock(bench: Bench, work: Path, at: int, number: int) -> str:
    """The wall clock goes back at every look, or by days between a kill and the next start."""
    if number == 0:
        return bench.judge(work, bench.run(work, Conditions(backwards=7.0)), finished=False)
    finished = bench.killed(work, at)
    now = time.time()
    for age, path in enumerate(sorted(work.rglob("*"))):  # the former files are of the future, youngest first
        os.utime(path, (now - age * 60, now - age * 60), follow_symlinks=False)
    return bench.judge(work, bench.run(work, Conditions(clock=-DAYS)), finished)


FAULTS = {KILL: kill, FAILING: fail, QUOTA: quota, RIVALS: two_writers, CLOCK: clock}


class Task(NamedTuple):
    """A fault that is to be tried."""

    bench: Bench
    fault: str
    at: int
    number: int

    def attempt(self) -> tuple[str, str]:
        """Try it; returns the verdict, and what went wrong."""
        try:
            with self.bench.place(f"{self.fault.replace(' ', '')}-{self.number}") as work:
                return FAULTS[self.fault](self.bench, work, self.at, self.number), ""
        except Wrong as wrong:
            note = str(wrong)
        except Exception:  # noqa: BLE001 (it is the verdict)
            note = traceback.format_exc()
        operations = self.bench.operations
        where = f"operation {self.at} of {len(operations)} ({operations[self.at - 1]}), trial {self.number}"
        return WRONG, f"WRONG: {self.bench.name}, {self.fault}, {where}:\n{note}"


def plan(counts: Mapping[str, Mapping[str, int]], seed: int, world: Path, base: Path) -> Iterator[Task]:
    """So many strikes of each fault, at random operations: the same ones on every machine."""
    for name, faults in counts.items():
        bench = Bench(name, (JOBS | WRITERS | FORMS)[name], world, base, {})
        load_modules(bench.measure().modules)
        for fault, count in faults.items():
            chance = random.Random(f"{seed} {fault} {name}")
            yield from (Task(bench, fault, bench.draw(chance), number) for number in range(count))


def load_modules(names: Sequence[str]) -> None:
    """Load what commands load, so that the next ones start quickly."""
    for name in names:
        if name not in sys.modules and name != "__main__":
            with contextlib.suppress(Exception):
                importlib.import_module(name)


def perform(tasks: Sequence[Task], jobs: int) -> Counter[tuple[str, str, str]]:
    """Try all, ``jobs`` at once, in forked processes without threads; count verdicts by fault and command."""
    counts = Counter[tuple[str, str, str]]()
    with ProcessPoolExecutor(jobs, FORK) as pool:
        tried = pool.map(Task.attempt, tasks)  # forks before the progress bar starts its thread
        with ProgressBar("faults", len(tasks), "trials") as bar:
            for task, (verdict, note) in zip(tasks, tried):
                counts.update((task.fault, command, verdict) for command in (task.bench.name, "**all**"))
                if note:
                    say(note)
                bar.update(1, note=f"{task.bench.name}, {task.fault}")
    return counts


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=2, help="trials at once (default: 2)")
    parser.add_argument("--short", action="store_true", help="a few faults of each kind")
    parser.add_argument("--only", nargs="+", choices=[*JOBS, *WRITERS, *FORMS], help="these commands")
    options = parser.parse_args()
    counts = SHORT if options.short else {name: faults for jobs, faults in COUNTS for name in jobs}
    counts = {name: faults for name, faults in counts.items() if name in (options.only or counts)}
    base = Path(tempfile.mkdtemp(prefix="vocabforge-faults-"))
    try:
        say("Making the inputs and measuring undisturbed runs")
        load_modules(SLOW)
        (base / "world").mkdir()
        # In a child, so that this process stays without threads and models.
        maker = FORK.Process(target=make_world, args=(base / "world",), kwargs={"short": options.short})
        maker.start()
        maker.join()
        if maker.exitcode:
            raise RuntimeError("the inputs cannot be made; see above")
        verdicts = perform(list(plan(counts, options.seed, base / "world", base)), options.jobs)
    finally:
        shutil.rmtree(base, ignore_errors=True)
    rows = [
        [*key, *(str(verdicts[(*key, verdict)]) for verdict in (IDENTICAL, CLEAR, WRONG))]
        for key in sorted({key[:2] for key in verdicts})
    ]
    print("\n".join(markdown_table(["fault", "command", IDENTICAL, CLEAR, WRONG], rows, text=2)))
    return int(not verdicts or any(verdict == WRONG for *_, verdict in verdicts))


if __name__ == "__main__":
    sys.exit(main())
