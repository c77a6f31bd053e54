"""Undisturbed runs, and what is wrong about what a struck command left."""

from __future__ import annotations

import contextlib
import random
import shutil
import signal
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tests.faults.faults_world import Job, litter, whole_artefacts
from tests.faults.forking import Conditions, Ended, run
from tests.faults.injection import Strike
from vocabforge.core.errors import VocabForgeError

NEIGHBOURS = {"neighbour/notes.txt": "keep", "out.notes": "keep", ".out.tmp-notes": "keep"}


class Wrong(Exception):
    """What must never happen."""


@dataclass(frozen=True)
class Trial:
    """What became of one fault.

    Attributes:
        phase: ``before`` anything was written, in the ``middle``, ``after`` the end.
        verdict: ``identical``, ``clear error`` or ``WRONG``.
    """

    command: str
    fault: str
    where: str
    phase: str
    verdict: str
    note: str = ""
    seconds: float = 0.0


@dataclass
class Bench:
    """Where trials of one command run, and what they are compared with.

    Attributes:
        reference: result of an undisturbed run. operations: its operations. largest: bytes of its largest file.
    """

    job: Job
    world: Path
    base: Path
    reference: Mapping[str, str] = field(default_factory=dict)
    operations: tuple[str, ...] = ()
    largest: int = 0

    def words(self, work: Path) -> list[str]:
        return self.job.words(self.world, work)

    def measure(self) -> Ended:
        """An undisturbed run."""
        with self.place("reference") as work:
            ended = run(self.words(work), work)
            if ended.code:
                raise Wrong(f"{self.job.name} fails undisturbed:\n{ended.text[-3000:]}")
            sizes = [file.stat().st_size for file in work.rglob("*") if file.is_file()]
            self.reference, self.operations = dict(self.job.result(work)), ended.operations
            self.largest = max(sizes)
        return ended

    @contextlib.contextmanager
    def place(self, name: str) -> Iterator[Path]:
        """A new folder to work in, with other people's files in it; removed where all was well."""
        work = self.base / f"{self.job.name}-{name}" / "work"
        work.mkdir(parents=True)
        for file, text in NEIGHBOURS.items():
            (work / file).parent.mkdir(parents=True, exist_ok=True)
            (work / file).write_text(text)
        yield work
        shutil.rmtree(work.parent, ignore_errors=True)

    def draw(self, chance: random.Random) -> int:
        """A random operation; each kind of stretch is as likely (one stretch of equal writes counts once)."""
        starts = [at for at, name in enumerate(self.operations) if not at or self.operations[at - 1] != name]
        pick = chance.randrange(len(starts))
        end = starts[pick + 1] if pick + 1 < len(starts) else len(self.operations)
        return chance.randrange(starts[pick], end) + 1

    def named(self, at: int) -> str:
        return f"operation {at} of {len(self.operations)} ({self.operations[at - 1]})"


def check_remains(bench: Bench, work: Path) -> None:
    """Whatever stands under a final name is whole, and nothing else was destroyed."""
    for name, text in NEIGHBOURS.items():
        if not (work / name).is_file() or (work / name).read_text() != text:
            raise Wrong(f"destroyed {name}")
    try:
        whole_artefacts(bench.job, work)
    except VocabForgeError as error:
        raise Wrong(f"half-written under a final name: {error}") from error


def check_killed(ended: Ended, strike: Strike) -> None:
    """Killed, or at its end before so many operations; a strike that never falls shows nothing."""
    missed = ended.code == 0 and len(ended.operations) < strike.at
    if ended.code != -signal.SIGKILL and not missed:
        raise Wrong(f"was not killed (code {ended.code}):\n{ended.text[-1500:]}")


def check_error(ended: Ended) -> None:
    """One clear error: an exit code, one message, no traceback."""
    if ended.code not in (1, 2) or "Traceback" in ended.text or ended.text.count("Error: ") != 1:
        raise Wrong(f"no clear error (code {ended.code}):\n{ended.text[-2500:]}")


def same(bench: Bench, work: Path) -> bool:
    """Whether the finished result is that of the undisturbed run."""
    try:
        return dict(bench.job.result(work)) == dict(bench.reference)
    except (VocabForgeError, OSError, AssertionError, ValueError):
        return False


def phase_of(bench: Bench, work: Path) -> str:
    found = {str(path.relative_to(work)) for path in work.rglob("*") if path.is_file()}
    if found <= set(NEIGHBOURS):
        return "before"
    return "after" if same(bench, work) else "middle"


def go_on(bench: Bench, work: Path, phase: str, conditions: Conditions | None = None) -> str:
    """Run the same command again; returns the verdict."""
    again = run(bench.words(work), work, conditions)
    return judge(bench, work, again, phase)


def judge(bench: Bench, work: Path, again: Ended, phase: str) -> str:
    check_remains(bench, work)
    if again.code == 0:
        if not same(bench, work):
            raise Wrong(f"ends in another result:\n{differences(bench, work)}\n{again.text[-1500:]}")
        left = [name for name in litter(work) if name not in NEIGHBOURS]
        if left:
            raise Wrong(f"leaves {left}")
        return "identical"
    check_error(again)
    if phase != "after" or "exists already" not in again.text:
        raise Wrong(f"does not go on:\n{again.text[-2500:]}")
    if not same(bench, work):
        raise Wrong("the finished result was changed")
    return "clear error"


def differences(bench: Bench, work: Path) -> str:
    try:
        found = dict(bench.job.result(work))
    except (VocabForgeError, OSError, AssertionError, ValueError) as error:
        return str(error)
    return ", ".join(
        sorted(key for key in {*found, *bench.reference} if found.get(key) != bench.reference.get(key))
    )
