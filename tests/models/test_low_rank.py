"""The low-rank scorer and its start from the target's head."""

from __future__ import annotations

import pytest
import torch

from vocabforge.models.low_rank import LowRankScorer, factor_head


def decaying_head(rows: int = 120, width: int = 24) -> torch.Tensor:
    """A head whose singular values fall by halves, with a mean row far from 0."""
    torch.manual_seed(0)
    u, _ = torch.linalg.qr(torch.randn(rows, width))
    v, _ = torch.linalg.qr(torch.randn(width, width))
    return u * (10.0 * 0.5 ** torch.arange(width)) @ v.T + 5.0 * torch.randn(width)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_factors_are_the_truncated_svd_of_the_centred_head(dtype) -> None:
    head = decaying_head().to(dtype)
    vocab, down = factor_head(head, 6, seed=3)
    centred = head.float() - head.float().mean(0)
    best = torch.linalg.svd(centred, full_matrices=False)
    error = (centred - vocab @ down).norm()
    torch.testing.assert_close(error, best.S[6:].norm(), rtol=1e-3, atol=0)
    torch.testing.assert_close(vocab.norm(), down.norm(), rtol=1e-4, atol=0)  # shared evenly


def test_taking_off_the_mean_row_changes_no_softmax_and_helps() -> None:
    head, hidden = decaying_head(), torch.randn(50, 24)
    vocab, down = factor_head(head, 24, seed=0)
    ours, full = hidden @ down.T @ vocab.T, hidden @ head.T
    torch.testing.assert_close(ours.log_softmax(-1), full.log_softmax(-1), rtol=0, atol=1e-3)


def test_the_start_repeats_itself_and_leaves_the_global_stream_alone() -> None:
    head = decaying_head()
    made = [LowRankScorer(24, 120, 5) for _ in range(3)]
    torch.manual_seed(9)
    expected = torch.rand(1)
    torch.manual_seed(9)
    made[0].init_from_head(head, 4)
    assert torch.equal(torch.rand(1), expected)
    made[1].init_from_head(head, 4)
    assert torch.equal(made[0].head_weight, made[1].head_weight)
    for scorer in made[1:]:
        scorer.init_random(7)
    assert torch.equal(made[1].down.weight, made[2].down.weight)
    assert 0.01 < float(made[1].head_weight.detach().std()) < 0.03


def test_scores_are_the_product_and_gradients_reach_both_factors() -> None:
    scorer, hidden = LowRankScorer(24, 120, 5), torch.randn(3, 7, 24)
    scores = scorer.scores(hidden)
    assert scores.shape == (3, 7, 120)
    torch.testing.assert_close(scores, hidden @ scorer.down.weight.T @ scorer.head_weight.T)
    scores.pow(2).sum().backward()
    assert all(p.grad is not None and bool(p.grad.abs().sum() > 0) for p in scorer.parameters())


def test_a_head_of_fewer_rows_than_the_rank_still_has_factors() -> None:
    head = decaying_head()[:4]
    vocab, down = factor_head(head, 9, seed=0)
    assert (vocab.shape, down.shape) == ((4, 9), (9, 24))
    torch.testing.assert_close(vocab @ down, head - head.mean(0), rtol=0, atol=1e-3)
