"""The line after an evaluation, and what the progress bar says around one."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.train.run_support import make_place, settings
from vocabforge.train import loop
from vocabforge.train.config import TrainConfig
from vocabforge.train.heldout import eval_line
from vocabforge.train.setup import build_trainer

HELDOUT = {
    "accuracy": [0.712, 0.58],
    "drafter_wrong": [0.25, 0.4],
    "out_of_vocabulary": [0.038, 0.02],
    "chain_accepted_length": 2.114,
    "sampled_accepted_length": 1.9,
}
LIVE = {
    "accepted_length": 2.5,
    "chain_accepted_length": 2.09,
    "identical": 4,
    "prompts": 4,
    "heads": {"low_rank": {"share_of_full": 0.9731}},
}


def test_all_that_there_is() -> None:
    assert eval_line(50, 1200, HELDOUT, LIVE, best=True) == (
        "*   50/1200 | accuracy 71 58% (wrong 25%, outside 4%) | simulated 2.11, 1.90 at T=1 | "
        "decoded 2.50, chain 2.09 | low-rank 97.3% of it"
    )


def test_what_is_absent_is_left_out_and_a_divergence_is_not() -> None:
    whole = {**HELDOUT, "out_of_vocabulary": [0.0, 0.0]}
    assert eval_line(9, 9, whole) == "  9/9 | accuracy 71 58% (wrong 25%) | simulated 2.11, 1.90 at T=1"
    line = eval_line(9, 9, whole, {"accepted_length": 2.0, "identical": 3, "prompts": 4})
    assert line.endswith("decoded 2.00 | IDENTICAL ONLY 3 OF 4")


def test_the_bar_says_evaluating_no_longer_than_it_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    notes: list[str] = []

    class Noted(loop.ProgressBar):
        def update(self, advance: float = 0, note: str | None = None) -> None:
            notes.extend([note] if note is not None else [])
            super().update(advance, note)

    monkeypatch.setattr(loop, "ProgressBar", Noted)
    run = {"trackers": [], "log_every": 4, "eval_every": 2, "eval_rows": 2, "live": {"prompts": 0}}
    config = TrainConfig(**settings(make_place(tmp_path), "run", optim={"steps": 4}, run=run))
    loop.train(build_trainer(config))
    assert [note.split()[0] if note else "" for note in notes] == [
        "evaluating",
        "",
        "loss",
        "evaluating",
        "loss",
    ]
