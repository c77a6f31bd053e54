"""The vocabulary loss estimated on candidates: formula, expectation, and one training step."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.train.test_vocab_loss import FUSED, NAIVE, SmallChunks, case
from tests.train.ttt_reference import DECAY, REDUCED, STEPS, capture, documents, pack
from tests.worlds import tiny_drafter
from vocabforge.capture.online import CapturedBatch
from vocabforge.models.target.hf import HFTarget
from vocabforge.study.candidates import CandidateSampler
from vocabforge.train.config import HeadsConfig
from vocabforge.train.heads.draft_heads import make_heads
from vocabforge.train.loss.candidates import Candidates
from vocabforge.train.loss.fused import LossInputs
from vocabforge.train.loss.vocab import LossOptions, RowLoss, vocab_loss
from vocabforge.train.step import StepSettings, TrainStep
from vocabforge.train.ttt import rows_by_step

VOCAB = 61


def sampled(seed: int, rows: int, positions: int, vocab: int, **changes: Any) -> dict[str, Any]:
    """Random arguments of ``LossInputs`` with offsets."""
    made = case(seed, rows, positions, vocab, **changes)
    offset = torch.rand(vocab, generator=torch.Generator().manual_seed(seed + 1)) * 6
    return {**made, "offset": torch.where(offset < 2, 0.0, offset)}


def run(arguments: dict[str, Any], options: LossOptions) -> tuple[RowLoss, Tensor, Tensor]:
    draft, head = (arguments[name].clone().requires_grad_() for name in ("draft", "draft_head"))
    found = vocab_loss(LossInputs(**{**arguments, "draft": draft, "draft_head": head}), options)
    found.total.backward()
    return found, draft.grad, head.grad


@pytest.mark.parametrize("reduced", [None, 1, 40])
@pytest.mark.parametrize("budget", [3_000, 30_000, 1 << 22])
def test_fused_equals_naive_with_offsets(reduced: int | None, budget: int) -> None:
    x = sampled(3, 70, 21, 150, reduced=reduced, own=7)
    naive = run(x, NAIVE)
    with SmallChunks(budget):
        fused = run(x, FUSED)
    torch.testing.assert_close(fused[0].losses, naive[0].losses, rtol=1e-5, atol=1e-5)
    assert torch.equal(fused[0].correct, naive[0].correct)
    assert torch.equal(fused[0].outside, naive[0].outside)
    for ours, theirs in zip(fused[1:], naive[1:]):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)
    assert all(found[0].overlap.isnan().all() and found[0].ceiling.isnan().all() for found in (fused, naive))


def test_the_formula_row_by_row() -> None:
    x = sampled(5, 9, 4, 31, reduced=11)
    found = run(x, NAIVE)[0]
    ids, offset = x["target_ids"].tolist(), x["offset"].tolist()
    for i in range(9):
        z = (x["target_head"] @ x["teacher"][x["teacher_row"][i]]).tolist()
        s = (x["draft_head"] @ x["draft"][i]).tolist()
        weight = {v: math.exp(offset[v]) for v in ids}  # how many tokens v stands for
        some = sum(weight[v] * math.exp(z[v]) for v in ids)
        own = sum(weight[v] * math.exp(a) for v, a in zip(ids, s))
        inside = z.index(max(z)) in ids
        loss = -sum(weight[v] * math.exp(z[v]) / some * (a - math.log(own)) for v, a in zip(ids, s))
        assert float(found.losses[i]) == pytest.approx(loss if inside else 0.0, rel=1e-4)
        assert bool(found.outside[i]) != inside
        assert bool(found.correct[i]) == (ids[s.index(max(s))] == z.index(max(z)))
    assert 0 < int(found.outside.sum()) < 9, "the case must have rows of both kinds"


@pytest.mark.parametrize("reduced", [None, 12])
def test_gradients_in_float64(reduced: int | None) -> None:
    x = sampled(1, 4, 2, 25, reduced=reduced, hidden=4)
    x = {k: v.double() if torch.is_tensor(v) and v.is_floating_point() else v for k, v in x.items()}
    draft, head = x.pop("draft").requires_grad_(), x.pop("draft_head").requires_grad_()

    def total(d: Tensor, h: Tensor) -> Tensor:
        return vocab_loss(LossInputs(draft=d, draft_head=h, **x), FUSED).total

    assert torch.autograd.gradcheck(total, (draft, head))


def test_the_expected_loss_and_gradient_are_near_the_exact_ones() -> None:
    """Over many draws: log Z is concave, so a small bias stays; it must be far below what one draw is off."""
    vocab, rows = 600, 8
    counts = torch.arange(1, vocab + 1).flip(0).numpy() ** 2
    x = case(4, rows, rows, vocab, hidden=24)
    # Likely tokens are mostly frequent ones, as in language.
    for name in ("target_head", "draft_head"):
        x[name] *= 0.3
    x["target_head"][:, 0] = x["draft_head"][:, 0] = torch.linspace(3, -3, vocab)
    x["teacher"][:, 0] = x["draft"][:, 0] = 1.0
    x["weight"] = torch.full((rows,), 1 / rows)
    exact, gradient = one(x, None)
    sampler = CandidateSampler(counts, 200, vocab, 0)
    draws = [one(x, sampler.draw(step, torch.arange(0))) for step in range(300)]
    loss = torch.stack([a for a, _ in draws])
    gradients = torch.stack([b for _, b in draws])
    apart = float((gradients - gradient).norm(dim=(1, 2)).mean() / gradient.norm())
    bias = float((gradients.mean(0) - gradient).norm() / gradient.norm())
    assert 0.1 < apart < 1.0, "a single draw must be an estimate"
    assert bias < 0.15 * apart
    assert abs(float(loss.mean() - exact)) < 0.15 * float(loss.std()) + 0.01
    assert float(loss.std()) > 0.01


def one(x: dict[str, Any], some: Candidates | None) -> tuple[Tensor, Tensor]:
    """Loss and gradient of the draft states, exact or on candidates."""
    draft = x["draft"].clone().requires_grad_()
    heads = {name: x[name] if some is None else x[name][some.ids] for name in ("draft_head", "target_head")}
    total = vocab_loss(
        LossInputs(**{**x, **heads, "draft": draft, "offset": None if some is None else some.offset}), NAIVE
    ).total
    total.backward()
    assert draft.grad is not None
    return total.detach(), draft.grad


@pytest.fixture(scope="module")
def batch(target: HFTarget) -> CapturedBatch:
    first, second, third = documents(2, [9, 6, 11])
    return capture(target, pack([[first, second], [third]], 18))


def everything() -> Candidates:
    return Candidates(torch.arange(VOCAB), torch.zeros(VOCAB))


def train_step(target: HFTarget, drafter: Any, loss: LossOptions = NAIVE) -> TrainStep:
    """A step with a ranker and a low-rank head."""
    asked = HeadsConfig.model_validate({"ranker": {"rank": 6}, "low_rank": {"init": "random"}})
    heads = make_heads(asked, target.head_weight, seed=0)
    weights = (("ranker", 0.3), ("low_rank", 0.2))
    return TrainStep(drafter, heads, target.head_weight, StepSettings(DECAY, head_weights=weights, loss=loss))


def own_drafter(target: HFTarget, whose: str) -> Any:
    if whose == "target":
        return tiny_drafter(target)
    ids = REDUCED if whose == "reduced" else None
    return tiny_drafter(target, own_head=VOCAB if ids is None else len(ids), target_ids=ids)


@pytest.mark.parametrize("whose", ["target", "own", "reduced"])
def test_on_all_tokens_it_is_the_exact_loss(target: HFTarget, batch: CapturedBatch, whose: str) -> None:
    def both(candidates: Candidates | None) -> tuple[Tensor, dict[str, Tensor]]:
        step = train_step(target, own_drafter(target, whose))
        counts = rows_by_step(batch.loss_mask, batch.document, STEPS)
        loss = step(batch, STEPS, counts, None, candidates)[0]
        loss.backward()
        gradients = {name: p.grad for name, p in step.named_parameters() if p.grad is not None}
        return loss.detach(), gradients

    exact, estimate = both(None), both(everything())
    torch.testing.assert_close(estimate[0], exact[0])
    assert estimate[1].keys() == exact[1].keys()
    for name, gradient in exact[1].items():
        torch.testing.assert_close(estimate[1][name], gradient, rtol=1e-4, atol=1e-6, msg=name)
    assert ("drafter.lm_head.weight" in exact[1]) == (whose != "target")


@pytest.mark.parametrize("whose", ["own", "reduced"])
def test_only_rows_of_candidates_learn(target: HFTarget, batch: CapturedBatch, whose: str) -> None:
    some = Candidates(torch.tensor([0, 3, 5, 7, 21, 33, 50]), torch.rand(7) * 3)
    step = train_step(target, own_drafter(target, whose))
    step(batch, STEPS, rows_by_step(batch.loss_mask, batch.document, STEPS), None, some)[0].backward()
    among = set(some.ids.tolist())
    ids = REDUCED.tolist() if whose == "reduced" else list(range(VOCAB))
    learnt = step.drafter.lm_head.weight.grad.abs().amax(-1) > 0
    assert {v for v, moved in zip(ids, learnt.tolist()) if moved} == among & {*ids}
    vocab = step.heads["ranker"].head_weight.grad.abs().amax(-1) > 0
    assert set(vocab.nonzero().flatten().tolist()) == among


def test_looking_costs_no_head_and_is_exact(target: HFTarget, batch: CapturedBatch) -> None:
    step = train_step(target, tiny_drafter(target))
    counts = rows_by_step(batch.loss_mask, batch.document, STEPS)
    trained = step(batch, STEPS, counts)
    with torch.no_grad():
        loss, figures, heads = step.eval()(batch, STEPS, counts)
    assert heads == {}
    assert set(trained[2]) == {"ranker", "low_rank"}
    for ours, theirs in zip(figures, trained[1]):
        torch.testing.assert_close(ours.loss_sum, theirs.loss_sum)
        torch.testing.assert_close(ours.overlap_sum, theirs.overlap_sum)
    expected = sum(DECAY**k * float(f.loss_sum) / float(counts[k]) for k, f in enumerate(figures))
    assert float(loss) == pytest.approx(expected, rel=1e-5)
