"""The tokens that a vocabulary loss is estimated on: how often each is taken, and what it then stands for."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch

from vocabforge.core.errors import UsageError
from vocabforge.study.candidates import CandidateSampler
from vocabforge.train.loss.candidates import Candidates, rows_among

NOTHING = torch.zeros(0, dtype=torch.int64)


def zipf(size: int, seen: int, total: float = 1e5) -> np.ndarray:
    """Counts of ``size`` ids, of which the first ``seen`` occur."""
    counts = np.zeros(size, dtype=np.int64)
    counts[:seen] = (total / np.arange(1, seen + 1)).astype(np.int64) + 1
    return counts


def test_over_all_subsets_the_sum_has_the_exact_mean() -> None:
    """By enumeration of what can be drawn: weighted with their probability, estimates of Z add up to Z."""
    counts = np.array([40, 9, 5, 2, 1, 0, 0])
    chances = CandidateSampler(counts, 4, 7, 0).chances
    logits = torch.randn(7, generator=torch.Generator().manual_seed(1)).double().numpy()
    mean = 0.0
    for taken in itertools.product((False, True), repeat=7):
        weight = math.prod(pi if there else 1 - pi for pi, there in zip(chances, taken))
        mean += weight * sum(math.exp(logits[v] - math.log(chances[v])) for v in range(7) if taken[v])
    assert mean == pytest.approx(np.exp(logits).sum(), rel=1e-12)
    assert (chances < 1).sum() >= 5, "most tokens must be a matter of chance"


def test_chances_add_up_and_follow_the_counts() -> None:
    counts = zipf(1000, 600)
    chances = CandidateSampler(counts, 100, 1000, 0).chances
    assert chances.sum() == pytest.approx(100)
    assert (np.diff(chances[:600]) <= 1e-15).all()
    assert chances[0] == 1.0
    assert 0 < chances[-1] < chances[599] < chances[100] < 1
    assert np.unique(chances[600:]).size == 1
    assert (CandidateSampler(counts, 1000, 1000, 0).chances == 1).all()


def test_the_batch_is_always_there_and_stands_for_itself() -> None:
    sampler = CandidateSampler(zipf(500, 100), 20, 500, 0)
    batch = torch.tensor([[499, 3, 499], [498, 120, 0]])
    found = sampler.draw(7, batch)
    places = torch.searchsorted(found.ids, batch)
    assert torch.equal(found.ids[places], batch)
    assert not found.offset[places].any()
    assert (found.ids.diff() > 0).all(), "each once, ascending"
    assert (found.offset > 0).any()


def test_draws_are_a_function_of_seed_and_step() -> None:
    def ids(seed: int, step: int) -> list[int]:
        made = CandidateSampler(zipf(300, 200), 50, 300, seed)
        made.draw(9, NOTHING)  # what was drawn before changes nothing
        return made.draw(step, NOTHING).ids.tolist()

    assert ids(1, 4) == ids(1, 4)
    assert len({tuple(ids(seed, step)) for seed in (1, 2) for step in (3, 4)}) == 4
    alone = CandidateSampler(zipf(300, 200), 50, 300, 1).draw(4, torch.tensor([298, 299]))
    assert set(alone.ids.tolist()) == {*ids(1, 4), 298, 299}, "the batch does not change who else is drawn"


def test_rows_of_a_reduced_head() -> None:
    head = torch.randn(5, 3, requires_grad=True)
    ids = torch.tensor([1, 4, 6, 9, 12])  # the head's rows
    some = Candidates(torch.tensor([0, 4, 5, 9, 12, 15]), torch.zeros(6))
    rows, columns = rows_among(some, head, ids)
    assert columns is not None
    assert columns.tolist() == [1, 3, 4]
    assert torch.equal(rows, head[[1, 3, 4]])
    (rows * torch.tensor([[1.0], [2.0], [3.0]])).sum().backward()
    assert head.grad is not None
    assert head.grad[:, 0].tolist() == [0, 1, 0, 2, 3]
    with pytest.raises(UsageError, match=r"(?s)no candidate token.*draw more"):
        rows_among(Candidates(torch.tensor([0, 15]), torch.zeros(2)), head, ids)
