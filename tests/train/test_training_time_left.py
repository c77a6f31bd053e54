"""The time that is left of a training run with evaluations and checkpoints in between, over recorded durations."""

from __future__ import annotations

import itertools
from types import SimpleNamespace
from typing import Any

import torch

from tests.core.progress_support import Clock, Forecasts, fake_clock
from vocabforge.core.distributed import Group
from vocabforge.core.journal import MetricsLog
from vocabforge.train import loop
from vocabforge.train.capture.online import OnlineCapture

# Seconds of every 20 steps of the demo's drafter (900 steps, the first 360 with one draft step, then three; one thread
# of a busy machine, 2026-11-23). Evaluations and checkpoints after every 300 took 3 to 6 s.
RECORDED = [
    3.24, 3.1, 3.0, 3.93, 4.96, 4.57, 8.97, 4.04, 2.83, 2.81, 3.08, 2.41, 2.35, 2.15, 2.43, 2.9, 2.95, 3.01,
    5.11, 4.32, 4.16, 4.25, 4.38, 4.73, 4.9, 4.9, 4.43, 4.3, 4.98, 5.47, 4.6, 4.73, 4.72, 5.12, 5.18, 5.18,
    4.51, 3.95, 3.54, 3.51, 2.71, 2.84, 6.69, 6.64, 3.36,
]  # fmt: skip


class Steps:
    """Steps that take time on a clock only."""

    def __init__(
        self, clock: Clock, seconds: list[float], unrolled: list[int], look_s: float, fresh: int | None = None
    ) -> None:
        self.clock, self.seconds, self.counts, self.look_s = clock, seconds, unrolled, look_s
        self.fresh = len(seconds) if fresh is None else fresh  # steps before the target's states are kept

    def take_step(self, run: Any, step: int, window: loop.Window) -> int:
        self.clock.now += self.seconds[step]
        return 100

    def look(self, run: Any, done: int, log: MetricsLog, since: float) -> dict[str, Any]:
        self.clock.now += self.look_s
        return {}


def worst(monkeypatch, tmp_path, steps: Steps, every: int, *, start: int = 0) -> float:
    clock = steps.clock
    monkeypatch.setattr(loop, "keep", lambda run, step: setattr(clock, "now", clock.now + 0.3))
    monkeypatch.setattr(loop, "take_step", steps.take_step)
    monkeypatch.setattr(loop, "look", steps.look)
    optim = SimpleNamespace(
        steps=len(steps.seconds), batch_size=1, lr=1.0, warmup_fraction=0.0, schedule="constant", min_lr=0.1
    )
    often = SimpleNamespace(seed=0, log_every=20, eval_every=every, checkpoint_every=every)
    target: Any = SimpleNamespace(device=torch.device("cpu"))
    run: Any = SimpleNamespace(
        config=SimpleNamespace(optim=optim, run=often),
        group=Group(0, 1),
        data=SimpleNamespace(train=range(steps.fresh)),
        captured=OnlineCapture(target, 0),
        steps=1,
        steps_at=steps.counts.__getitem__,
        device=torch.device("cpu"),
    )
    monkeypatch.setattr(loop, "learning_rate", lambda step, config: 1.0)
    forecasts = Forecasts(monkeypatch, clock)
    loop.run_steps(run, start, MetricsLog(tmp_path / "m.jsonl"))
    return forecasts.worst("train-drafter")


def spread(recorded: list[float]) -> list[float]:
    return [seconds / 20 for seconds, _ in itertools.product(recorded, range(20))]


def test_one_draft_step_first_then_three(monkeypatch, tmp_path) -> None:
    clock = fake_clock(monkeypatch)
    steps = Steps(clock, spread(RECORDED), [1] * 360 + [3] * 540, 4.5)
    assert worst(monkeypatch, tmp_path, steps, 300) <= 2


def test_a_first_epoch_that_waits_for_the_target(monkeypatch, tmp_path) -> None:
    """As measured on SmolLM2-135M: its passes are most of the first epoch; later steps find the states in memory."""
    clock = fake_clock(monkeypatch)
    seconds = [5.4] * 304 + [2.2] * 4 + [6.5] * 132
    steps = Steps(clock, seconds, [1] * 308 + [4] * 132, 60.0, fresh=304)
    assert worst(monkeypatch, tmp_path, steps, 220) <= 1.5
