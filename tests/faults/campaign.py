"""The fault campaign: strikes every command in every way, and prints what became of it.

``python -m tests.faults.campaign`` (``make test-faults``) strikes each command at random operations; ``--short`` is the
part of ``make test``. The exit code is 1 if anything went wrong.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

os.environ |= {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1"}

from tests.faults import trials
from tests.faults.faults_world import JOBS, make_fault_world
from tests.faults.forking import isolated, load_modules
from tests.faults.forms import FORMS, make_forms_world
from tests.faults.injection import Strike
from tests.faults.judging import Bench, Trial, Wrong
from tests.faults.servers import serving
from tests.faults.writers import WRITERS, make_writers_world
from vocabforge.core.console import markdown_table, say
from vocabforge.core.progress import ProgressBar

# Loaded once, in front of every fork; what else commands need is found by their undisturbed runs.
SLOW = (
    "vocabforge.train.capture.run",
    "vocabforge.train.monitoring.live",
    "transformers.models.llama.modeling_llama",
)
LAUNCHED = ("capture", "train-drafter")
KILL, FAILING, QUOTA, RIVALS, CLOCK = "kill -9", "failing write", "file quota", "two writers", "clock back"
RANKS = "one rank of two"
FURTHER = {KILL: 25}  # for commands in further forms
FULL = {KILL: 20, FAILING: 8, QUOTA: 4, RIVALS: 3, CLOCK: 3}
SMALL = {KILL: 2, FAILING: 2, RIVALS: 2}  # for the commands that make their output in one go
SHORT = {
    "count-freq": {KILL: 1, FAILING: 1, RIVALS: 1},
    "capture": {KILL: 1, QUOTA: 1, CLOCK: 1},
    "train-drafter": {KILL: 1},
    "export": {KILL: 1, FAILING: 1},
    "eval": {KILL: 1},
}


@dataclass(frozen=True)
class Task:
    """A fault that is to be tried."""

    bench: Bench
    fault: str
    where: str
    act: Callable[[Path], tuple[str, str]]


def tasks_of(bench: Bench, counts: dict[str, int], seed: int) -> Iterator[Task]:
    """So many strikes of each fault, at random operations: the same ones on every machine."""
    for fault, count in counts.items():
        chance = random.Random(f"{seed} {fault} {bench.job.name}")
        for number in range(count):
            at = bench.draw(chance)
            where = bench.named(at)
            if fault == KILL:
                again = bench.draw(chance) if number % 4 == 3 else None
                act = partial(trials.kill_at, bench, at=at, then=again)
                where += f", then {again}" if again else ""
            elif fault == FAILING:
                error = ("EIO", "ENOSPC", "EDQUOT")[number % 3]
                act, where = partial(trials.fail_at, bench, at=at, error=error), f"{error} at {where}"
            elif fault == QUOTA:
                share = (0.3, 0.6, 0.9, 0.05)[number]
                act, where = partial(trials.quota, bench, share=share), f"room for {share:.0%}"
            elif fault == RIVALS:
                act = partial(trials.two_writers, bench, at=at)
            else:
                way = "between" if number else "running"
                act = partial(trials.clock, bench, at=at, way=way)
                where = f"3 days, after a kill at {where}" if number else "while running"
            yield Task(bench, fault, where, act)


def rank_tasks(bench: Bench, count: int, seed: int) -> Iterator[Task]:
    """Rank 0 dies at a write, rank 1 (which writes nothing in training) at a step or a write."""
    chance = random.Random(f"{seed} ranks {bench.job.name}")
    for number in range(count):
        victim = number % 2
        steps = bench.job.name == "train-drafter" and victim == 1
        at = chance.randrange(1, 7) if steps else bench.draw(chance)
        act = partial(trials.one_rank, bench, victim=victim, strike=Strike(at, steps=steps))
        yield Task(bench, RANKS, f"rank {victim} at {'step' if steps else 'operation'} {at}", act)


def attempt(task: Task, name: str) -> Trial:
    """Try one; what goes wrong is the trial's verdict."""
    began = time.monotonic()
    phase, verdict, note = "", "WRONG", ""
    try:
        with task.bench.place(name) as work:
            phase, verdict = task.act(work)
    except Wrong as wrong:
        note = str(wrong)
    except Exception:  # noqa: BLE001 (it is the verdict)
        note = traceback.format_exc()
    seconds = time.monotonic() - began
    return Trial(task.bench.job.name, task.fault, task.where, phase, verdict, note, seconds)


def perform(tasks: Sequence[Task], base: Path, jobs: int) -> list[Trial]:
    """Try all, ``jobs`` at once, each in a process of its own."""
    found: dict[int, Trial] = {}
    running: dict[int, int] = {}
    queue = list(enumerate(tasks))
    with ProgressBar("faults", len(tasks), "trials") as bar:
        while queue or running:
            while queue and len(running) < jobs:
                number, task = queue.pop(0)
                running[_spawn(task, number, base)] = number
            pid, _ = os.wait()
            number = running.pop(pid)
            task = tasks[number]
            record = base / f"trial-{number}.json"
            trial = Trial(
                task.bench.job.name, task.fault, task.where, "", "WRONG", "the trial itself was lost"
            )
            if record.is_file():
                trial = Trial(**json.loads(record.read_text()))
            found[number] = trial
            if trial.verdict == "WRONG":
                say(f"WRONG: {trial.command}, {trial.fault}, {trial.where}:\n{trial.note}")
            bar.update(1, note=f"{trial.command}, {trial.fault}")
    return [found[number] for number in range(len(tasks))]


def _spawn(task: Task, number: int, base: Path) -> int:
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid:
        return pid
    try:
        trial = attempt(task, str(number))
        (base / f"trial-{number}.json").write_text(json.dumps(asdict(trial)))
    finally:
        os._exit(0)


def measured(names: Sequence[str], world: Path, base: Path) -> dict[str, Bench]:
    """Undisturbed runs; what they loaded is loaded here, so that their successors start quickly."""
    benches = {name: Bench((JOBS | WRITERS | FORMS)[name], world, base) for name in names}
    for bench in benches.values():
        load_modules(bench.measure().modules)
    return benches


def launched(bench: Bench) -> Bench:
    """The same for two processes: their last bits may differ from those of one."""
    with bench.place("launched") as work:
        ends = [child.ended() for child in trials.launch(bench, work)]
        if any(ended.code for ended in ends):
            raise Wrong("two ranks fail undisturbed:\n" + "\n".join(ended.text[-2000:] for ended in ends))
        reference, operations = dict(bench.job.result(work)), min((e.operations for e in ends), key=len)
    if bench.job.name == "train-drafter":
        operations = ends[0].operations
    return Bench(bench.job, bench.world, bench.base, reference, operations)


def plan(options: argparse.Namespace, world: Path, base: Path) -> list[Task]:
    """All faults that are to be tried."""
    benches = measured([name for name in options.only or JOBS if name in JOBS], world, base)
    counts = SHORT if options.short else dict.fromkeys(benches, FULL)
    tasks = [task for name, bench in benches.items() for task in tasks_of(bench, counts[name], options.seed)]
    if not options.short:
        for name in set(LAUNCHED) & set(benches):
            tasks += rank_tasks(launched(benches[name]), 4, options.seed)
    if not options.short and not options.only:
        isolated(partial(make_writers_world, world))
        for bench in measured(list(WRITERS), world, base).values():
            tasks += tasks_of(bench, SMALL, options.seed)
    forms = [name for name in options.only or FORMS if name in FORMS]
    if forms and not options.short:
        isolated(partial(make_forms_world, world))
        for bench in measured(forms, world, base).values():
            tasks += tasks_of(bench, FURTHER, options.seed)
    return tasks


def table(found: Sequence[Trial]) -> str:
    """Rows of fault and command: trials, when they struck, how they ended; Markdown."""
    columns = ["before", "middle", "after", "identical", "clear error", "WRONG"]
    counts = Counter(
        (trial.fault, trial.command, fact)
        for trial in found
        for fact in ("trials", trial.phase, trial.verdict)
    )
    keys = dict.fromkeys((trial.fault, trial.command) for trial in found)
    rows = [[*key, *(str(counts[(*key, name)]) for name in ("trials", *columns))] for key in keys]
    return "\n".join(markdown_table(["fault", "command", "trials", *columns], rows, text=2))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=2, help="trials at once (default: 2)")
    parser.add_argument("--short", action="store_true", help="a few faults of each kind")
    parser.add_argument("--only", nargs="+", choices=[*JOBS, *FORMS], help="these commands")
    parser.add_argument("--json", type=Path, metavar="OUT", help="also write every trial")
    options = parser.parse_args()
    base = Path(tempfile.mkdtemp(prefix="vocabforge-faults-"))
    try:
        world = base / "world"
        world.mkdir()
        say("Making the inputs and measuring undisturbed runs")
        load_modules(SLOW)
        isolated(partial(make_fault_world, world))
        with serving(world):
            found = perform(plan(options, world, base), base, options.jobs)
    finally:
        shutil.rmtree(base, ignore_errors=True)
    print(table(found))
    if options.json:
        options.json.write_text(json.dumps([asdict(trial) for trial in found], indent=1))
    return int(not found or any(trial.verdict == "WRONG" for trial in found))


if __name__ == "__main__":
    sys.exit(main())
