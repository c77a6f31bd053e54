"""Another draft vocabulary for a trained head: which rows it gets, bit for bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.contracts.drafter_support import make_drafter
from tests.support import tiny_drafter, tiny_target
from vocabforge.core.errors import MismatchError, UsageError
from vocabforge.export.prune import prune_head
from vocabforge.export.revocab import change_of, fitted_rows, head_drift, revocab_head
from vocabforge.export.row_fit import RowFit, drift_of, fit_rows, fit_states
from vocabforge.models.target import HFTarget
from vocabforge.vocab.subset import VocabSubset

V, H = 61, 32
SMALL = torch.tensor([0, 3, 9, 17, 41, 58])
LARGE = torch.tensor([0, 2, 3, 9, 10, 17, 18, 40, 41, 57, 58, 60])
FULL = torch.arange(V)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_target(tmp_path_factory.mktemp("target"))


@pytest.fixture(scope="module")
def target(folder: Path) -> HFTarget:
    return HFTarget.load(folder)


def trained(target: HFTarget, ids: torch.Tensor | None, *, seed: int = 5) -> Any:
    """A drafter whose own rows are not the target's; ``ids`` None shares the target's head."""
    drafter = tiny_drafter(target, own_head=None if ids is None else len(ids), target_ids=ids)
    if ids is not None:
        with torch.no_grad():
            drafter.lm_head.weight.add_(
                torch.randn(len(ids), H, generator=torch.Generator().manual_seed(seed))
            )
    return drafter


def same(one: Any, other: Any) -> bool:
    """Whether two drafters are the same in every bit and every id."""
    mine, theirs = one.state_dict(), other.state_dict()
    equal = mine.keys() == theirs.keys() and all(torch.equal(mine[name], theirs[name]) for name in mine)
    return equal and torch.equal(one.target_ids, other.target_ids) and one.config == other.config


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
    assert (change.before, change.after, change.kept, change.added, change.dropped) == (6, 3, 2, 1, 4)


@pytest.mark.parametrize("have", [None, LARGE, FULL])
def test_pruning_is_prune_head(target: HFTarget, have: torch.Tensor | None) -> None:
    drafter = trained(target, have)
    subset = VocabSubset.from_ranked(SMALL.numpy(), vocab_size=V, fingerprint="t")
    assert same(revocab_head(drafter, SMALL), prune_head(drafter, subset, source="s"))


@pytest.mark.parametrize("by_way_of", [LARGE, FULL])
def test_extending_and_pruning_again_changes_nothing(target: HFTarget, by_way_of: torch.Tensor) -> None:
    drafter = trained(target, SMALL)
    assert same(revocab_head(revocab_head(drafter, by_way_of), SMALL), drafter)
    fit = RowFit("offset", torch.ones(H, dtype=torch.float64), None, None, 0.5, 6)
    assert same(revocab_head(revocab_head(drafter, by_way_of, fit), SMALL), drafter), "fitted rows go again"


@pytest.mark.parametrize("have", [None, SMALL, FULL])
def test_the_same_vocabulary_is_the_same_drafter(target: HFTarget, have: torch.Tensor | None) -> None:
    drafter = trained(target, have)
    assert same(revocab_head(drafter, drafter.target_ids), drafter)


def test_a_shared_head_restricted_and_extended_again_is_shared(target: HFTarget) -> None:
    drafter = trained(target, None)
    small = revocab_head(drafter, SMALL)
    assert small.has_own_head
    back = revocab_head(small, FULL)
    assert not back.has_own_head
    assert same(back, drafter)
    assert revocab_head(trained(target, SMALL), FULL).has_own_head, "its own rows are not the target's"


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
    assert same(revocab_head(large, SMALL), small)


def test_the_dtype_stays_and_kept_rows_are_not_rounded_again(target: HFTarget) -> None:
    drafter = trained(target, SMALL).bfloat16()
    made = revocab_head(drafter, LARGE)
    assert {p.dtype for p in made.parameters()} == {torch.bfloat16}
    assert torch.equal(made.lm_head.weight[torch.isin(LARGE, SMALL)], drafter.lm_head.weight)


@pytest.mark.parametrize("wrong", [[3, 3, 5], [5, 3], [0, V], [-1, 4], []])
def test_lists_that_are_no_draft_vocabulary_are_refused(target: HFTarget, wrong: list[int]) -> None:
    with pytest.raises(MismatchError, match="no draft vocabulary"):
        revocab_head(trained(target, SMALL), torch.tensor(wrong, dtype=torch.int64))


def test_drift_tells_turned_from_longer_and_shifted(target: HFTarget) -> None:
    drafter = trained(target, LARGE)
    with torch.no_grad():
        drafter.lm_head.weight.copy_(2.0 * target.head_weight[LARGE])
        drafter.lm_head.weight[0].copy_(target.head_weight[0])
        drafter.lm_head.weight[1].neg_()
    drift = head_drift(drafter)
    assert drift is not None
    assert (drift.rows, drift.untouched) == (12, 1)
    assert drift.cosine.median == pytest.approx(1.0)
    assert drift.cosine.lowest == pytest.approx(-1.0)
    assert (drift.scale.lowest, drift.scale.highest) == (pytest.approx(1.0), pytest.approx(2.0))
    assert head_drift(trained(target, None)) is None
    shift = torch.ones(H)
    rows = target.head_weight[LARGE]
    mean_length = float(rows.norm(dim=-1).mean())
    assert drift_of(rows + shift, rows).offset == pytest.approx(float(shift.norm()) / mean_length, rel=1e-5)


def _rows(count: int, width: int, seed: int) -> torch.Tensor:
    return torch.randn(count, width, generator=torch.Generator().manual_seed(seed))


def test_a_linear_drift_is_found_and_applied_to_missing_rows() -> None:
    target, matrix, shift = _rows(400, 8, 0), 0.3 * _rows(8, 8, 1), _rows(1, 8, 2)
    own = target @ (torch.eye(8) + matrix) + shift
    fit = fit_rows(own[:300], target[:300])
    assert fit.form == "linear"
    assert fit.left < 1e-3
    assert torch.allclose(fit.apply(target[300:]), own[300:], atol=0.05)
    assert not torch.allclose(target[300:], own[300:], atol=0.5), "without it they are far off"


def test_a_common_shift_is_found_as_an_offset() -> None:
    target, shift = _rows(60, 32, 0), _rows(1, 32, 2)
    own = target + shift + 0.3 * _rows(60, 32, 3)
    fit = fit_rows(own, target)
    assert fit.form == "offset"
    assert 0.0 < fit.left < 0.3
    assert torch.allclose(fit.apply(target), target + shift, atol=0.3)


def test_noise_is_not_taken_for_a_drift() -> None:
    target = _rows(60, 32, 0)
    noise = _rows(60, 32, 1)
    fit = fit_rows(target + noise - noise.mean(dim=0), target)
    assert fit.form == "none"
    assert torch.equal(fit.apply(target), target)
    assert fit_rows(target, target).form == "none", "nothing has drifted"


def test_a_correction_needs_rows_to_fit_on(target: HFTarget) -> None:
    with pytest.raises(UsageError, match="too few rows") as error:
        fitted_rows(trained(target, SMALL))
    assert "--missing target" in str(error.value)
    assert fitted_rows(trained(target, None)) is None


def test_states_give_rows_that_predict_as_the_target_does() -> None:
    """The drafter reads turned states and scores them with rows of its own level."""
    turn = torch.linalg.qr(_rows(16, 16, 3))[0]
    hidden, head = _rows(600, 16, 0), 2.0 * _rows(40, 16, 1)
    read = hidden @ turn.T + 0.01 * _rows(600, 16, 2)
    level = 3.0 * turn[0]  # of no account in a softmax over the drafter's own rows
    own = head[:30] @ turn.T + level
    fit = fit_states(read, hidden, own, head[:30])
    assert fit.form == "states"
    assert fit.left < 0.01
    rows = torch.cat([own, fit.apply(head[30:])])  # (40, H)
    wanted = (hidden @ head.T).argmax(-1)
    assert float(((read @ rows.T).argmax(-1) == wanted).float().mean()) > 0.97
    plain = torch.cat([own, head[30:]])
    assert float(((read @ plain.T).argmax(-1) == wanted).float().mean()) < 0.8, (
        "the target's rows alone do not"
    )
    assert torch.allclose(fit.apply(head[30:]) - level, head[30:] @ turn.T, atol=0.3)


def test_states_must_be_more_than_the_hidden_size() -> None:
    with pytest.raises(UsageError, match="too few states") as error:
        fit_states(_rows(31, 16, 0), _rows(31, 16, 1), _rows(8, 16, 2), _rows(8, 16, 3))
    assert "at least 32" in str(error.value)


def test_fitted_rows_are_used_for_missing_tokens_alone(target: HFTarget) -> None:
    drafter = trained(target, SMALL)
    fit = RowFit("offset", torch.full((H,), 2.0, dtype=torch.float64), None, None, 0.5, 6)
    made = revocab_head(drafter, LARGE, fit)
    inside = torch.isin(LARGE, SMALL)
    assert torch.equal(made.lm_head.weight[inside], drafter.lm_head.weight)
    assert torch.allclose(made.lm_head.weight[~inside], target.head_weight[LARGE[~inside]] + 2.0)


def test_ids_of_numpy_subsets_go_in_as_they_are(target: HFTarget) -> None:
    subset = VocabSubset.from_ranked(
        np.array([41, 0, 9], dtype=np.int64), vocab_size=V, fingerprint="tokenizer"
    )
    made = revocab_head(trained(target, LARGE), torch.from_numpy(subset.ids))
    d2t = torch.from_numpy(subset.d2t())
    assert torch.equal(made.target_ids, torch.arange(3) + d2t)
