"""The layer strikes where it is told to, and the judges see what is wrong: a suite that cannot fail shows nothing."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.faults import judging
from tests.faults.faults_world import JOBS
from tests.faults.forking import Ended
from tests.faults.injection import Layer, Strike
from tests.faults.judging import Bench, Wrong
from vocabforge.core.artifact import write_artifact


def in_child(act) -> int:
    """Exit status of a piece of work in a forked child."""
    pid = os.fork()
    if not pid:
        try:
            act()
        except OSError as error:
            os._exit(100 + (error.errno or 0) % 100)
        finally:
            os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def write(folder: Path, strike: Strike) -> None:
    layer = Layer(folder, strike)
    layer.install()
    (folder / "a").write_text("whole")  # open, write
    os.replace(folder / "a", folder / "b")
    (folder.parent / "elsewhere").write_text("not counted")


@pytest.mark.parametrize(("at", "left"), [(1, []), (2, ["a"]), (3, ["a"]), (4, ["b"])])
def test_a_kill_strikes_before_the_operation(tmp_path: Path, at: int, left: list[str]) -> None:
    folder = tmp_path / "w"
    folder.mkdir()
    status = in_child(lambda: write(folder, Strike(at)))
    assert status == (0 if at == 4 else -signal.SIGKILL)
    assert sorted(path.name for path in folder.iterdir()) == left
    if at == 2:
        assert (folder / "a").read_text() == "wh", "half of the bytes"


def test_an_error_strikes_once(tmp_path: Path) -> None:
    folder = tmp_path / "w"
    folder.mkdir()
    assert in_child(lambda: write(folder, Strike(3, "ENOSPC"))) == 128
    assert (folder / "a").read_text() == "whole"


def test_a_kill_strikes_at_a_training_step(tmp_path: Path) -> None:
    """A rank that writes nothing can be struck there alone."""
    from vocabforge.train import loop

    assert "take_step" in loop._run_steps.__code__.co_names, "the training loop takes its steps by this name"

    folder = tmp_path / "w"

    def train() -> None:
        loop.take_step = lambda *_: 0
        Layer(folder, Strike(2, steps=True)).install()
        loop.take_step(None, 0, None)
        (tmp_path / "first").write_text("done")
        loop.take_step(None, 1, None)

    assert in_child(train) == -signal.SIGKILL
    assert (tmp_path / "first").exists()


def bench(tmp_path: Path) -> tuple[Bench, Path]:
    work = tmp_path / "work"
    work.mkdir()
    judging.put_neighbours(work)
    with write_artifact(work / "out", "k", {}) as folder:
        (folder / "a").write_text("whole")
    made = Bench(JOBS["export"], tmp_path, tmp_path)
    made.reference = dict(made.job.result(work))
    return made, work


def test_damage_under_a_final_name_is_wrong(tmp_path: Path) -> None:
    made, work = bench(tmp_path)
    judging.check_remains(made, work)
    (work / "out" / "a").write_text("wh")
    with pytest.raises(Wrong, match="half-written"):
        judging.check_remains(made, work)


def test_a_destroyed_neighbour_is_wrong(tmp_path: Path) -> None:
    made, work = bench(tmp_path)
    (work / "out.notes").unlink()
    with pytest.raises(Wrong, match=r"destroyed out\.notes"):
        judging.check_remains(made, work)


@pytest.mark.parametrize(
    ("code", "text"),
    [(1, "Traceback (most recent call last)"), (0, "Error: x"), (1, "Error: x\nError: y"), (1, "")],
)
def test_what_is_no_clear_error_is_wrong(code: int, text: str) -> None:
    with pytest.raises(Wrong, match="no clear error"):
        judging.check_error(Ended(code, text, 0.0))


def test_a_kill_that_never_fell_is_wrong() -> None:
    for ended in (Ended(0, "", 0.0, ("write",) * 3), Ended(1, "Error: x", 0.0)):
        with pytest.raises(Wrong, match="was not killed"):
            judging.check_killed(ended, Strike(3))
    judging.check_killed(Ended(-signal.SIGKILL, "", 0.0), Strike(3))
    judging.check_killed(Ended(0, "", 0.0, ("write",) * 2), Strike(3))  # it had fewer operations this time


def test_another_result_or_something_left_is_wrong(tmp_path: Path) -> None:
    made, work = bench(tmp_path)
    assert judging.judge(made, work, Ended(0, "", 0.0), "middle") == "identical"
    (work / ".out.tmp-00000000-1-0").mkdir()
    with pytest.raises(Wrong, match="leaves"):
        judging.judge(made, work, Ended(0, "", 0.0), "middle")
    made.reference = {"out": "another"}
    with pytest.raises(Wrong, match="another result"):
        judging.judge(made, work, Ended(0, "", 0.0), "middle")
