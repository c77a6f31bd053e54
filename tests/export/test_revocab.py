"""Another draft vocabulary for a trained head: which rows it gets, bit for bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.decode.drafting import make_drafter
from tests.export.eagle3_cases import assert_same
from tests.worlds import tiny_drafter
from vocabforge.core.errors import MismatchError
from vocabforge.models.drafters.revocab import change_of, end_tokens, head_drift, prune_head, revocab_head
from vocabforge.models.target.hf import HFTarget
from vocabforge.models.target.logits import LogitTransform
from vocabforge.vocab.subset.subset import VocabSubset

V, H = 61, 32
SMALL = torch.tensor([0, 3, 9, 17, 41, 58])
LARGE = torch.tensor([0, 2, 3, 9, 10, 17, 18, 40, 41, 57, 58, 60])
FULL = torch.arange(V)
RANKED = np.array([41, 0, 9, 3, 17, 58], dtype=np.int64)  # SMALL by rank


def subset(ranked: np.ndarray = RANKED) -> VocabSubset:
    return VocabSubset.from_ranked(ranked, vocab_size=V, fingerprint="tokenizer")


def trained(target: HFTarget, ids: torch.Tensor | None, *, seed: int = 5) -> Any:
    """A drafter whose own rows are not the target's; ``ids`` None shares the target's head."""
    drafter = tiny_drafter(target, own_head=None if ids is None else len(ids), target_ids=ids)
    if ids is not None:
        with torch.no_grad():
            drafter.lm_head.weight.add_(
                torch.randn(len(ids), H, generator=torch.Generator().manual_seed(seed))
            )
    return drafter


def body_of(drafter: Any) -> dict[str, torch.Tensor]:
    return {name: tensor for name, tensor in drafter.state_dict().items() if name != "lm_head.weight"}


def test_extending_keeps_every_row_and_fills_with_the_targets(target: HFTarget) -> None:
    drafter = trained(target, SMALL)
    made = revocab_head(drafter, LARGE)
    assert made.target_ids.tolist() == LARGE.tolist()
    for row, token in enumerate(LARGE.tolist()):
        if token in SMALL.tolist():
            mine = drafter.lm_head.weight[SMALL.tolist().index(token)]
        else:
            mine = target.head_weight[token]
        assert torch.equal(made.lm_head.weight[row], mine), token
    assert all(torch.equal(body_of(made)[name], tensor) for name, tensor in body_of(drafter).items())


def test_remapping_finds_rows_by_target_id_not_by_place(target: HFTarget) -> None:
    drafter = trained(target, SMALL)
    wanted = torch.tensor([3, 4, 58])
    made = revocab_head(drafter, wanted)
    assert torch.equal(made.lm_head.weight[0], drafter.lm_head.weight[1])
    assert torch.equal(made.lm_head.weight[1], target.head_weight[4])
    assert torch.equal(made.lm_head.weight[2], drafter.lm_head.weight[5])
    change = change_of(drafter, made)
    assert [change[name] for name in ("before", "after", "kept", "added", "dropped")] == [6, 3, 2, 1, 4]


def test_pruned_rows_are_those_of_d2t(target: HFTarget) -> None:
    for rows in (None, 61):
        drafter = tiny_drafter(target, own_head=rows)
        if rows:
            with torch.no_grad():
                drafter.lm_head.weight.normal_()
        pruned = prune_head(drafter, subset(), source="s")
        d2t = torch.from_numpy(subset().d2t())
        assert torch.equal(pruned.lm_head.weight, drafter.head_weight[torch.arange(len(d2t)) + d2t])
        assert not torch.equal(pruned.lm_head.weight, drafter.head_weight[d2t]), "offsets are no row numbers"
        assert pruned.target_ids.tolist() == sorted(RANKED)
        g = torch.randn(5, 32)
        assert torch.allclose(pruned.logits(g), drafter.logits(g)[:, sorted(RANKED)], atol=1e-5)
        shared = {name for name in drafter.state_dict() if name != "lm_head.weight"}
        assert all(torch.equal(pruned.state_dict()[name], drafter.state_dict()[name]) for name in shared)


def test_a_reduced_head_can_be_pruned_further_but_not_extended(target: HFTarget) -> None:
    ids = torch.tensor(sorted([*RANKED.tolist(), 5, 60]))
    drafter = tiny_drafter(target, own_head=len(ids), target_ids=ids)
    pruned = prune_head(drafter, subset(), source="s")
    kept = [ids.tolist().index(token) for token in sorted(RANKED)]
    assert torch.equal(pruned.lm_head.weight, drafter.lm_head.weight[kept])
    with pytest.raises(MismatchError, match="does not score every token") as error:
        prune_head(drafter, subset(np.array([0, 4, 5], dtype=np.int64)), source="s")
    assert "[4]" in str(error.value)


def test_a_shared_head_restricted_and_extended_again_is_shared(target: HFTarget) -> None:
    drafter = trained(target, None)
    small = revocab_head(drafter, SMALL)
    assert small.has_own_head
    back = revocab_head(small, FULL)
    assert not back.has_own_head
    assert_same(back, drafter)
    assert revocab_head(trained(target, SMALL), FULL).has_own_head, "its own rows are not the target's"


def test_rows_of_a_target_that_scales_its_logits_are_scaled(target: HFTarget) -> None:
    drafter = trained(target, None)
    drafter.target_transform = LogitTransform(scale=0.25)
    small, g = revocab_head(drafter, SMALL), torch.randn(4, H)
    assert torch.allclose(small.logits(g), drafter.logits(g)[:, SMALL], atol=1e-5)
    pruned = prune_head(drafter, subset(), source="s")
    assert torch.allclose(pruned.logits(g), drafter.logits(g)[:, SMALL], atol=1e-5)
    large = revocab_head(small, LARGE)
    assert torch.allclose(large.logits(g), drafter.logits(g)[:, LARGE], atol=1e-5)
    assert not revocab_head(large, FULL).has_own_head


@pytest.mark.parametrize("kind", ["eagle1", "medusa"])
def test_other_kinds_of_drafters(target: HFTarget, folder: Path, kind: str) -> None:
    drafter = make_drafter(kind, folder, target)
    small = revocab_head(drafter, SMALL)
    g = torch.randn(4, H)
    assert torch.allclose(small.logits(g), drafter.logits(g)[:, SMALL], atol=1e-5)
    with torch.no_grad():
        small.lm_head.weight.add_(1.0)
    large = revocab_head(small, LARGE)
    inside = torch.isin(LARGE, SMALL)
    assert torch.equal(large.lm_head.weight[inside], small.lm_head.weight)
    assert torch.equal(large.lm_head.weight[~inside], target.head_weight[LARGE[~inside]])
    assert_same(revocab_head(large, SMALL), small)


def test_drift_tells_turned_from_longer_rows(target: HFTarget) -> None:
    drafter = trained(target, LARGE)
    with torch.no_grad():
        drafter.lm_head.weight.copy_(2.0 * target.head_weight[LARGE])
        drafter.lm_head.weight[0].copy_(target.head_weight[0])
        drafter.lm_head.weight[1].neg_()
    assert head_drift(drafter) == {"cosine": pytest.approx(1.0), "scale": pytest.approx(2.0)}
    with torch.no_grad():
        drafter.lm_head.weight.neg_()
    assert head_drift(drafter) == {"cosine": pytest.approx(-1.0), "scale": pytest.approx(2.0)}
    assert head_drift(trained(target, None)) is None


def test_end_tokens_by_what_becomes_of_them() -> None:
    before, after = torch.tensor([1, 2, 7]), torch.tensor([2, 5])
    assert end_tokens(before, after, (1, 2, 5, 9)) == {
        "kept": [2],
        "lost": [1],
        "gained": [5],
        "outside": [9],
    }
