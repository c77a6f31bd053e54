"""One fault each: strike a command, look at what is left, run it again, compare; each returns phase and verdict."""

from __future__ import annotations

import os
import time
from pathlib import Path

from tests.faults.faults_world import litter
from tests.faults.forking import Child, Conditions, Ended, run
from tests.faults.injection import Strike
from tests.faults.judging import (
    NEIGHBOURS,
    Bench,
    Wrong,
    check_error,
    check_killed,
    check_remains,
    differences,
    go_on,
    judge,
    phase_of,
    same,
)
from tests.worlds import free_port

DAYS = 3 * 86_400.0
BESIDE_S = 20.0


def kill_at(bench: Bench, work: Path, at: int, then: int | None = None) -> tuple[str, str]:
    """Die at an operation; ``then``: the second run at another one, too."""
    phase = "before"
    for one in (at, then):
        if one is None:
            continue
        ended = run(bench.words(work), work, Conditions(Strike(one)))
        check_killed(ended, Strike(one))
        check_remains(bench, work)
        phase = phase_of(bench, work)
        if phase == "after":
            break
    return phase, go_on(bench, work, phase)


def fail_at(bench: Bench, work: Path, at: int, error: str) -> tuple[str, str]:
    """One operation fails with an error of the operating system."""
    return _failed(bench, work, run(bench.words(work), work, Conditions(Strike(at, error))))


def quota(bench: Bench, work: Path, share: float) -> tuple[str, str]:
    """No file may grow beyond a share of the largest one (RLIMIT_FSIZE); safetensors' own writes meet it, too."""
    limit = max(1, int(share * bench.largest))
    return _failed(bench, work, run(bench.words(work), work, Conditions(file_bytes=limit)))


def _failed(bench: Bench, work: Path, ended: Ended) -> tuple[str, str]:
    check_remains(bench, work)
    if ended.code == 0:  # it could do without what failed
        if not same(bench, work):
            raise Wrong(f"says that all is well, and ends in another result:\n{differences(bench, work)}")
        return "after", "identical"
    check_error(ended)
    phase = phase_of(bench, work)
    go_on(bench, work, phase)
    return phase, "clear error"


def two_writers(bench: Bench, work: Path, at: int) -> tuple[str, str]:
    """The first stands still before an operation while the second runs; then the first goes on."""
    first = Child(bench.words(work), work, Conditions(Strike(at, "stop")))
    stood = first.stopped()
    second = Child(bench.words(work), work)
    waits = False
    if stood:
        waits = not second.over(BESIDE_S)  # it may wait for the first one's lock
        first.let_go()
    ends = [first.ended(), second.ended()]
    for ended in ends:
        if ended.code:
            check_error(ended)
    if all(ended.code for ended in ends):
        raise Wrong("neither writer finishes:\n" + "\n".join(ended.text[-1200:] for ended in ends))
    check_remains(bench, work)
    if not same(bench, work):
        raise Wrong(f"two writers end in another result: {differences(bench, work)}")
    left = [name for name in litter(work) if name not in NEIGHBOURS]
    if left:
        raise Wrong(f"two writers leave {left}; codes {[e.code for e in ends]}\n{ends[1].text[-600:]}")
    both = all(ended.code == 0 for ended in ends)
    return "waited" if waits else "beside", "identical" if both else "clear error"


def clock(bench: Bench, work: Path, at: int, way: str) -> tuple[str, str]:
    """The wall clock goes back between start and resume (``between``), or at every look (``running``)."""
    if way == "running":
        ended = run(bench.words(work), work, Conditions(backwards=7.0))
        return "after", judge(bench, work, ended, "middle")
    ended = run(bench.words(work), work, Conditions(Strike(at)))
    check_killed(ended, Strike(at))
    check_remains(bench, work)
    phase = phase_of(bench, work)
    now = time.time()
    for number, path in enumerate(
        sorted(work.rglob("*"))
    ):  # the former files are of the future, youngest first
        os.utime(path, (now - number * 60, now - number * 60), follow_symlinks=False)
    return phase, go_on(bench, work, phase, Conditions(clock=-DAYS))


def launch(bench: Bench, work: Path, strikes: tuple[Strike, Strike] | None = None) -> list[Child]:
    """Two launched processes, as ``torchrun --nproc_per_node 2`` starts them."""
    port = free_port()
    children = []
    for rank in range(2):
        ranks = {"RANK": rank, "WORLD_SIZE": 2, "LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": 2}
        place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        strike = strikes[rank] if strikes else Strike()
        named = {key: str(value) for key, value in (ranks | place).items()}
        children.append(Child(bench.words(work), work, Conditions(strike, ranks=named)))
    return children


def one_rank(bench: Bench, work: Path, victim: int, strike: Strike) -> tuple[str, str]:
    """One of two processes is killed; the other one ends by itself, and both go on when started again."""
    strikes = (strike, Strike()) if victim == 0 else (Strike(), strike)
    ends = [child.ended() for child in launch(bench, work, strikes)]
    check_killed(ends[victim], strike)
    survivor = ends[1 - victim]
    check_remains(bench, work)
    if survivor.code:
        check_error(survivor)
    phase = phase_of(bench, work)
    again = [child.ended() for child in launch(bench, work)]
    for ended in again:
        # Shards of `capture` have no order: one process may finish the output before the other one begins.
        judge(bench, work, ended, "after" if same(bench, work) else phase)
    return phase, "clear error" if survivor.code else "identical"
