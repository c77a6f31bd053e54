"""The line after an evaluation, and what the progress bar says around one."""

from __future__ import annotations

from vocabforge.train.monitoring.heldout import eval_line

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
