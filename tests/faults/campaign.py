"""The fault campaign: strikes every command in every way, and prints what became of it.

``python -m tests.faults.campaign`` (``make test-faults``) strikes at 100 random instants and everywhere else;
``--short`` is the part of ``make test``. The exit code is 1 where anything went wrong.
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
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

os.environ |= {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1"}

from tests.faults import trials
from tests.faults.faults_world import JOBS, make_fault_world
from tests.faults.forking import isolated, load_modules, run_fresh
from tests.faults.injection import Strike
from tests.faults.judging import Bench, Trial, Wrong, same
from tests.faults.writers import WRITERS, make_writers_world
from vocabforge.core.console import ProgressBar, say

Act = Callable[[Path], tuple[str, str]]
# Loaded once, in front of every fork; what else commands need is found by their undisturbed runs.
SLOW = (
    "vocabforge.cli.data.capture_run",
    "vocabforge.evaluate.acceptance.live",
    "transformers.models.llama.modeling_llama",
)
LAUNCHED = ("capture", "train-drafter")
KILL, RANKS = "kill -9", "one rank of two"


@dataclass(frozen=True)
class Task:
    """A fault that is to be tried."""

    bench: Bench
    fault: str
    where: str
    act: Act


def kills(bench: Bench, count: int, seed: int, fresh: int) -> list[Task]:
    """Half of the instants are drawn from the time of a run, half from its operations; some of these die twice."""
    chance = random.Random(f"{seed} kills {bench.job.name}")
    tasks = []
    for number in range(count):
        if number < fresh:
            share = chance.random()
            act: Act = partial(trials.kill_in_time, bench, share=share, fresh=True)
            where = f"{share:.2f} of a new process's time"
        elif number < (count + fresh) // 2:
            share = chance.random()
            act, where = partial(trials.kill_in_time, bench, share=share), f"{share:.2f} of the time"
        else:
            at, again = bench.draw(chance), bench.draw(chance) if number % 4 == 3 else None
            act = partial(trials.kill_at, bench, at=at, then=again)
            where = bench.named(at) + (f", then {again}" if again else "")
        tasks.append(Task(bench, KILL, where, act))
    return tasks


def failing(bench: Bench, count: int, seed: int) -> list[Task]:
    """Single operations that fail, everywhere in turn with three errors."""
    chance = random.Random(f"{seed} failing {bench.job.name}")
    tasks = []
    for number in range(count):
        at, error = bench.draw(chance), ("EIO", "ENOSPC", "EDQUOT")[number % 3]
        act = partial(trials.fail_at, bench, at=at, error=error)
        tasks.append(Task(bench, "failing write", f"{error} at {bench.named(at)}", act))
    return tasks


def full(bench: Bench, shares: Sequence[float], *, mount: bool) -> list[Task]:
    """Disks and quotas that are too small."""
    tasks = []
    for share in shares:
        where = f"room for {share:.0%}"
        if mount:
            tasks.append(Task(bench, "full disk", where, partial(trials.full_disk, bench, share=share)))
        tasks.append(Task(bench, "file quota", where, partial(trials.quota, bench, share=share)))
    return tasks


def writers(bench: Bench, count: int, seed: int) -> list[Task]:
    chance = random.Random(f"{seed} writers {bench.job.name}")
    places = [bench.draw(chance) for _ in range(count)]
    return [
        Task(bench, "two writers", bench.named(at), partial(trials.two_writers, bench, at=at))
        for at in places
    ]


def clocks(bench: Bench, count: int, seed: int) -> list[Task]:
    chance = random.Random(f"{seed} clock {bench.job.name}")
    tasks = [Task(bench, "clock back", "while running", partial(trials.clock, bench, at=0, way="running"))]
    for _ in range(count - 1):
        at = bench.draw(chance)
        act = partial(trials.clock, bench, at=at, way="between")
        tasks.append(Task(bench, "clock back", f"3 days, after a kill at {bench.named(at)}", act))
    return tasks


def ranks(bench: Bench, count: int, seed: int) -> list[Task]:
    """Rank 0 dies at a write, rank 1 (which writes nothing in training) at a step or a write."""
    chance = random.Random(f"{seed} ranks {bench.job.name}")
    training = bench.job.name == "train-drafter"
    tasks = []
    for number in range(count):
        victim = number % 2
        steps = training and victim == 1
        at = chance.randrange(1, 7) if steps else bench.draw(chance)
        act = partial(trials.one_rank, bench, victim=victim, strike=Strike(at, steps=steps))
        where = f"rank {victim} at {'step' if steps else 'operation'} {at}"
        tasks.append(Task(bench, RANKS, where, act))
    return tasks


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
            lost = Trial(
                task.bench.job.name, task.fault, task.where, "", "WRONG", "the trial itself was lost"
            )
            found[number] = Trial(**json.loads(record.read_text())) if record.is_file() else lost
            if found[number].verdict == "WRONG":
                say(f"WRONG: {found[number].command}, {found[number].fault}, {found[number].where}:")
                say(found[number].note)
            bar.update(1, note=f"{task.bench.job.name}, {task.fault}")
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


def measured(
    names: Sequence[str], world: Path, base: Path, *, fresh: bool = False, operations_only: bool = False
) -> dict[str, Bench]:
    """Undisturbed runs; what they loaded is loaded here, so that their successors start quickly."""
    benches = {}
    for name in names:
        bench = Bench((JOBS | WRITERS)[name], world, base)
        load_modules(bench.measure().modules)
        if not operations_only:
            bench.measure()  # now as quick as it will be
        if fresh:
            with bench.place("fresh") as work:
                ended = run_fresh(bench.words(work))
                bench.fresh_seconds = ended.seconds
                if ended.code or not same(bench, work):
                    raise Wrong(f"{name} in a new process ends in another result:\n{ended.text[-2000:]}")
        benches[name] = bench
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
    return Bench(bench.job, bench.world, bench.base, reference, operations, bench.seconds)


def plan(options: argparse.Namespace, world: Path, base: Path) -> list[Task]:
    """All faults that are to be tried."""
    seed = options.seed
    every = options.only or list(JOBS)
    each = options.kills // len(JOBS)
    tasks: list[Task] = []
    struck = not options.faults or KILL in options.faults
    fresh = min(options.fresh, each) if struck else 0
    benches = measured(every, world, base, fresh=fresh > 0)
    mount = trials.can_mount(base / "mount")
    if not mount:
        say("No small file system can be mounted here: full disks are tried as file quotas only")
    for bench in benches.values():
        tasks += kills(bench, each, seed, fresh)
        tasks += failing(bench, options.others, seed)
        tasks += full(bench, (0.05, 0.3, 0.6, 0.9), mount=mount)
        tasks += writers(bench, 3, seed) + clocks(bench, 3, seed)
    for name in LAUNCHED:
        if name in benches and (not options.faults or RANKS in options.faults):
            tasks += ranks(launched(benches[name]), 4, seed)
    if not options.only:
        isolated(partial(make_writers_world, world))
        for bench in measured(list(WRITERS), world, base).values():
            tasks += writers(bench, 2, seed) + kills(bench, 2, seed, 0) + failing(bench, 2, seed)
    return [task for task in tasks if not options.faults or task.fault in options.faults]


def short_plan(options: argparse.Namespace, world: Path, base: Path) -> list[Task]:
    """A few faults of each kind, none of which depends on time."""
    benches = measured(list(JOBS), world, base, operations_only=True)
    mount = trials.can_mount(base / "mount")
    tasks = [task for bench in benches.values() for task in kills(bench, 2, options.seed, 0)[1:]]
    tasks += [task for name in ("count-freq", "export") for task in failing(benches[name], 3, options.seed)]
    tasks += full(benches["capture"], (0.6,), mount=mount) + full(benches["export"], (0.3,), mount=mount)
    tasks += writers(benches["export"], 1, options.seed) + writers(benches["count-freq"], 1, options.seed)
    return tasks + clocks(benches["capture"], 2, options.seed)


def main() -> int:
    from tests.faults.figures import table

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--kills", type=int, default=100, help="over the five commands (default: 100)")
    parser.add_argument("--others", type=int, default=8, help="failing writes of each command (default: 8)")
    parser.add_argument("--fresh", type=int, default=2, help="kills of each in new processes (default: 2)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=2, help="trials at once (default: 2)")
    parser.add_argument(
        "--short", action="store_true", help="a few faults of each kind, the same ones every time"
    )
    parser.add_argument("--only", nargs="+", choices=list(JOBS), help="these commands")
    parser.add_argument("--faults", nargs="+", help='these faults, such as "kill -9"')
    parser.add_argument("--json", type=Path, metavar="OUT", help="also write every trial")
    options = parser.parse_args()
    began = time.monotonic()
    base = Path(tempfile.mkdtemp(prefix="vocabforge-faults-"))
    try:
        world = base / "world"
        world.mkdir()
        say("Making the inputs and measuring undisturbed runs")
        load_modules(SLOW)
        isolated(partial(make_fault_world, world))
        found = perform((short_plan if options.short else plan)(options, world, base), base, options.jobs)
    finally:
        shutil.rmtree(base, ignore_errors=True)
    print(table(found, time.monotonic() - began))
    if options.json:
        options.json.write_text(json.dumps([asdict(trial) for trial in found], indent=1))
    return int(not found or any(trial.verdict == "WRONG" for trial in found))


if __name__ == "__main__":
    sys.exit(main())
