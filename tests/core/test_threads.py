"""The number of threads is chosen by measured seconds; a simulated machine stands in for the clock."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from tests.worlds import make_target
from vocabforge.core import threads
from vocabforge.core.threads import ThreadChoice, thread_counts, user_threads
from vocabforge.decode.build.models import Models
from vocabforge.train.config import TrainConfig
from vocabforge.train.machine import set_threads

Seconds = Callable[[int, float, int], float]  # of a unit, by threads, by when it begins, by its number


class Machine:
    """Runs units of work one after the other; a log of ``(when, threads)``."""

    def __init__(self, counts: list[int], seconds: Seconds) -> None:
        self.set: list[int] = []
        self.choice = ThreadChoice(counts, self.set.append)
        self.seconds, self.now, self.log = seconds, 0.0, list[tuple[float, int]]()

    def run(self, until: float) -> Machine:
        while self.now < until:
            count = self.choice.count
            passed = self.seconds(count, self.now, len(self.log))
            self.log.append((self.now, count))
            self.now += passed
            self.choice.observe(f"kind {len(self.log) % 2}", passed * (1 + len(self.log) % 2))
            self.now += passed * (len(self.log) % 2)
        return self

    def units(self, since: float = 0.0) -> int:
        return sum(when >= since for when, _ in self.log)

    def share(self, count: int, since: float = 0.0) -> float:
        later = [threads for when, threads in self.log if when >= since]
        return later.count(count) / len(later)


def best(seconds: Callable[[int], float], counts: list[int], until: float) -> float:
    """Units of the best fixed setting; every second unit counts double."""
    return until / (1.5 * min(map(seconds, counts)))


@pytest.mark.parametrize("unit", [0.001, 0.02, 0.5])
def test_two_threads_that_pay_lose_at_most_five_percent(unit: float) -> None:
    machine = Machine([1, 2], lambda n, *_: unit / (1.0, 1.6)[n - 1]).run(240)
    assert (machine.choice.count, machine.choice.settled) == (2, True)
    assert machine.units() >= 0.95 * 240 / (1.5 * unit / 1.6)


@pytest.mark.parametrize("unit", [0.001, 0.02])
def test_a_second_thread_that_gains_nothing_is_left_out(unit: float) -> None:
    machine = Machine([1, 2], lambda n, *_: unit).run(60)
    assert machine.share(1, since=5) > 0.9
    assert machine.units() >= 0.95 * 60 / (1.5 * unit)


@pytest.mark.parametrize("cliff", [1.5, 4.0, 37.0])
def test_beside_a_busy_process_one_thread_is_chosen_at_once(cliff: float) -> None:
    machine = Machine([1, 2], lambda n, *_: 0.005 * (1.0, cliff)[n - 1]).run(60)
    assert machine.choice.count == 1
    assert machine.units() >= 0.9 * 60 / (1.5 * 0.005)


def test_now_and_then_a_long_wait_counts_as_much_as_many_short_ones() -> None:
    """Most units of two threads are faster, but each tenth waits for a thread that lost its core."""
    machine = Machine([1, 2], lambda n, _, unit: 0.005 if n == 1 else 0.1 if unit % 10 == 0 else 0.003).run(
        60
    )
    assert machine.share(1, since=10) > 0.8


@pytest.mark.parametrize(("most", "pays"), [(64, 64), (64, 8), (6, 4), (64, 1)])
def test_many_processors(most: int, pays: int) -> None:
    """Up to ``pays`` threads share the work, each one more costs a little."""
    counts = thread_counts(most)

    def seconds(count: int, *_: object) -> float:
        return 0.02 * (0.1 + 0.9 / min(count, pays) + 0.01 * max(0, count - pays))

    machine = Machine(counts, seconds).run(120)
    assert machine.share(pays, since=20) > 0.8
    assert machine.units() >= 0.93 * best(seconds, counts, 120)


def test_counts() -> None:
    assert [thread_counts(n) for n in (1, 2, 3, 4, 6, 8)] == [
        [1],
        [1, 2],
        [1, 2, 3],
        [1, 2, 4],
        [1, 2, 4, 6],
        [1, 2, 4, 8],
    ]


@pytest.mark.parametrize("name", ["OMP_NUM_THREADS", "MKL_NUM_THREADS"])
def test_what_the_user_fixed_stays(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for one in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        monkeypatch.delenv(one, raising=False)
    assert not user_threads()
    monkeypatch.setenv(name, "2")
    assert user_threads()


def test_one_processor_leaves_nothing_to_choose() -> None:
    machine = Machine([1], lambda *_: 0.01).run(10)
    assert machine.set == []


def test_a_container_gets_the_threads_of_its_quota(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(threads, "usable_cores", lambda: 1.5)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        models = Models(make_target(tmp_path))
        assert torch.get_num_threads() == 1, "1.5 cores are one thread"
        torch.set_num_threads(2)
        asked = {"target": models.target, "output": tmp_path / "run", "data": {"train": [tmp_path]}}
        set_threads(
            TrainConfig.model_validate(asked | {"drafter": {"kind": "eagle3"}, "optim": {"steps": 1}})
        )
        assert torch.get_num_threads() == 1
        monkeypatch.setenv("OMP_NUM_THREADS", "2")
        torch.set_num_threads(2)
        Models(models.target)
        assert torch.get_num_threads() == 2, "the user's number stays"
    finally:
        torch.set_num_threads(before)
