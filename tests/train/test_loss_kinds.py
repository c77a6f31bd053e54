"""Losses beside soft cross-entropy: their formulas, fused against naive, gradients, what they read."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tensor_memory import TensorMemory
from torch import Tensor

from tests.train.test_vocab_loss import FUSED, NAIVE, TRANSFORMS, SmallChunks, assert_same, case, double, run
from vocabforge.models.target.logits import IDENTITY, LogitFacts, LogitTransform
from vocabforge.train.loss.fused import LossInputs
from vocabforge.train.loss.kinds import KL, LOSSES
from vocabforge.train.loss.pace import label_chance, pace_weights
from vocabforge.train.loss.vocab import LossOptions, vocab_loss

MIXTURES = [*(((name, 1.0),) for name in LOSSES), (("ce", 0.1), ("tv", 1.8)), tuple((n, 0.3) for n in LOSSES)]
IDS = ["+".join(name for name, _ in mixture) for mixture in MIXTURES]
OTHERS = [mixture for mixture in MIXTURES if mixture != KL]
every_kind = pytest.mark.parametrize("mixture", MIXTURES, ids=IDS)


def labelled(seed: int, rows: int, positions: int, vocab: int, **changes: Any) -> dict[str, Any]:
    made = case(seed, rows, positions, vocab, **changes)
    label = torch.randint(0, vocab, (rows,), generator=torch.Generator().manual_seed(seed + 1))
    return {**made, "label": label}


def by_hand(x: dict[str, Any], i: int, z_of: Any, s_of: Any) -> tuple[dict[str, float], list[float]]:
    """Every kind's value of row i, term by term, and the draft logits."""
    ids = x["target_ids"].tolist()
    z = [z_of(v) for v in (x["target_head"] @ x["teacher"][x["teacher_row"][i]]).tolist()]
    s = [s_of(v) for v in (x["draft_head"] @ x["draft"][i]).tolist()]
    everything, own = sum(map(math.exp, z)), sum(map(math.exp, s))
    p, q = [math.exp(z[v]) / everything for v in ids], [math.exp(v) / own for v in s]
    mass, alpha = sum(p), sum(map(min, p, q))
    cross = -sum(a * math.log(b) for a, b in zip(p, q))
    share = math.exp(-3 * alpha)
    label = int(x["label"][i])
    return {
        "kl": cross / mass if z.index(max(z)) in ids else 0.0,
        "ce": -math.log(q[ids.index(label)]) if label in ids else 0.0,
        "reverse-kl": sum(b * math.log(b / a) for a, b in zip(p, q)),
        "tv": 1 - alpha,
        "nla": -math.log(alpha),
        "lk": share * (cross + sum(a * math.log(a) for a in p)) + (1 - share) * (1 - alpha),
    }, s


@pytest.mark.parametrize("options", [NAIVE, FUSED])
def test_every_kind_is_its_formula_row_by_row(options: LossOptions) -> None:
    x = labelled(3, 12, 5, 31, reduced=11)
    x |= {"transform": LogitTransform(0.5, 3.0), "draft_transform": LogitTransform(2.0)}
    x["label"][:6] = x["target_ids"][:6]
    for name in LOSSES:
        found = run(x | {"loss": ((name, 1.0),)}, options)[0]
        total = 0.0
        for i in range(12):
            values, _ = by_hand(x, i, lambda v: 3 * math.tanh(v / 6), lambda v: 2 * v)
            total += values[name] * float(x["weight"][i])
            assert float(found.losses[i]) == pytest.approx(values["kl"], rel=1e-4), "the figure stays"
            assert float(found.overlap[i]) == pytest.approx(1 - values["tv"], rel=1e-4)
        assert float(found.total.detach()) == pytest.approx(total, rel=1e-4), name
    assert 0 < int(found.outside.sum()) < 12, "the case must have rows of both kinds"


@every_kind
@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_fused_equals_naive(data: st.DataObject, mixture: Any) -> None:
    vocab = data.draw(st.integers(2, 200))
    reduced = data.draw(st.none() | st.integers(1, vocab))
    rows, positions = data.draw(st.integers(0, 50)), data.draw(st.integers(1, 20))
    x = labelled(data.draw(st.integers(0, 999)), rows, positions, vocab, reduced=reduced, own=7)
    x |= {"transform": data.draw(TRANSFORMS), "draft_transform": data.draw(TRANSFORMS), "loss": mixture}
    if data.draw(st.booleans()):
        x["facts"] = LogitFacts.of(x["teacher"], x["target_head"], x["transform"])
    with SmallChunks(data.draw(st.sampled_from([1, 4_000, 40_000, 1 << 22]))):
        assert_same(run(x, FUSED, -2.5), run(x, NAIVE, -2.5))


@every_kind
@pytest.mark.parametrize("reduced", [None, 20])
@pytest.mark.parametrize("options", [NAIVE, FUSED])
def test_gradients_in_float64(mixture: Any, reduced: int | None, options: LossOptions) -> None:
    """Finite differences; ``lk`` holds its share of KL fixed, so its own gradient is that of the fixed share."""
    x = double(labelled(1, 7, 3, 40, reduced=reduced)) | {"draft_transform": LogitTransform(0.5, 3.0)}
    x["label"][:3] = 0 if reduced is None else x["target_ids"][:3]
    draft, head = x.pop("draft").requires_grad_(), x.pop("draft_head").requires_grad_()
    with torch.no_grad():
        alpha = vocab_loss(LossInputs(draft, head, **x), NAIVE).overlap.double()
    share = (-3 * alpha).exp()

    def total(d: Tensor, h: Tensor, weight: Tensor, loss: Any) -> Tensor:
        return vocab_loss(LossInputs(d, h, **x | {"weight": weight, "loss": loss}), options).total

    for name, factor in mixture:
        made = torch.autograd.grad(total(draft, head, x["weight"], ((name, factor),)), (draft, head))
        parts = [(x["weight"] * factor, name)]
        if name == "lk":
            parts = [(x["weight"] * factor * share, "whole-kl"), (x["weight"] * factor * (1 - share), "tv")]
        for at, grad in ((draft, made[0]), (head, made[1])):
            index = tuple(
                torch.randint(0, n, (6,), generator=torch.Generator().manual_seed(5)) for n in at.shape
            )
            for i, j in zip(*index):
                sides = []
                for sign in (1, -1):
                    with torch.no_grad():
                        at[i, j] += sign * 1e-6
                        sides.append(sum(plain(x, draft, head, name, w) for w, name in parts))
                        at[i, j] -= sign * 1e-6
                slope = (sides[0] - sides[1]) / 2e-6
                assert float(grad[i, j]) == pytest.approx(float(slope), rel=1e-5, abs=1e-7)


def plain(x: dict[str, Any], draft: Tensor, head: Tensor, name: str, weight: Tensor) -> Tensor:
    """The weighted sum of a kind, without what the package computes."""
    ids = slice(None) if x["target_ids"] is None else x["target_ids"]
    p = (x["target_head"] @ x["teacher"].T).T.softmax(-1)[x["teacher_row"]]
    best, p = p.argmax(-1), p[:, ids]
    log_q = x["draft_transform"](draft @ head.T).log_softmax(-1)
    q, tokens = log_q.exp(), torch.arange(len(x["target_head"]))[ids]
    alpha, cross = torch.minimum(p, q).sum(-1), -(p * log_q).sum(-1)
    values = {
        "kl": lambda: torch.where(torch.isin(best, tokens), cross / p.sum(-1), 0.0),
        "ce": lambda: -(log_q * (tokens == x["label"][:, None])).sum(-1),
        "reverse-kl": lambda: (q * (log_q - p.log())).sum(-1),
        "tv": lambda: 1 - alpha,
        "nla": lambda: -alpha.log(),
        "whole-kl": lambda: (p * p.log()).sum(-1) + cross,
    }
    return (values[name]() * weight).sum()


@pytest.mark.parametrize("options", [NAIVE, FUSED])
def test_below_the_least_acceptance_nla_is_constant(options: LossOptions) -> None:
    x = labelled(0, 4, 4, 12) | {"loss": (("nla", 1.0),)}
    x |= {"target_head": torch.eye(12), "draft_head": torch.eye(12)}
    x |= {"teacher": torch.eye(12)[:4] * 40, "draft": torch.eye(12)[4:8] * 40, "teacher_row": torch.arange(4)}
    found, draft, _ = run(x, options)
    assert float(found.total.detach()) == pytest.approx(float(x["weight"].sum()) * -math.log(1e-5), rel=1e-5)
    assert not draft.any()


@pytest.mark.parametrize("options", [NAIVE, FUSED])
def test_of_a_certain_target_nla_is_cross_entropy(options: LossOptions) -> None:
    x = labelled(0, 6, 3, 12, hidden=12) | {"target_head": torch.eye(12) * 200}
    x |= {"teacher": torch.eye(12)[[2, 5, 7]], "label": torch.tensor([2, 5, 7])[x["teacher_row"]]}
    x["draft"] *= 0.3
    nla, ce = (run(x | {"loss": ((name, 1.0),)}, options) for name in ("nla", "ce"))
    assert_same(nla, ce)


@pytest.mark.parametrize("mixture", [(("tv", 1.0),), MIXTURES[-1]])
def test_nothing_of_rows_times_vocabulary_is_ever_held(mixture: Any) -> None:
    budget, vocab, rows = 24, 65_536, 200
    x = labelled(9, rows, 16, vocab, hidden=4) | {"loss": mixture}
    x["draft"].requires_grad_()
    with TensorMemory() as memory:
        vocab_loss(LossInputs(**x), LossOptions("fused", chunk_mb=budget)).total.backward()
    assert memory.largest < rows * vocab * 4
    assert memory.peak <= (budget << 20) + (1 << 20)


@every_kind
@pytest.mark.parametrize("options", [NAIVE, FUSED])
@pytest.mark.parametrize("frozen", [(), ("draft_head",), ("bias_head",), ("draft_head", "bias_head")])
def test_of_a_head_in_two_parts_the_trained_one_learns(mixture, options, frozen):
    x = labelled(2, 30, 8, 50, reduced=20) | {"loss": mixture}
    whole = run(x, NAIVE)
    parts = {"draft_head": x["draft_head"][:, :9].clone(), "bias_head": x["draft_head"][:, 9:].clone()}
    for name, part in parts.items():
        part.requires_grad_(name not in frozen)
    draft = x["draft"].clone().requires_grad_()
    found = vocab_loss(LossInputs(**x | parts | {"draft": draft}), options)
    found.total.backward()
    torch.testing.assert_close(found.total, whole[0].total, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(draft.grad, whole[1], rtol=1e-5, atol=1e-5)
    for (name, part), expected in zip(parts.items(), whole[2].split([9, 3], 1)):
        if name in frozen:
            assert part.grad is None
        else:
            torch.testing.assert_close(part.grad, expected, rtol=1e-5, atol=1e-5)


def test_chances_of_the_text() -> None:
    x = LossInputs(**labelled(3, 40, 8, 50, reduced=20), draft_transform=LogitTransform(0.5, 3.0))
    ids = x.target_ids.tolist()  # type: ignore[union-attr]
    for budget in (1, 4_000, 1 << 20):
        found = label_chance(x, budget)
        for i, label in enumerate(x.label.tolist()):  # type: ignore[union-attr]
            q = x.draft_transform(x.draft[i] @ x.draft_head.T).softmax(-1)
            expected = float(q[ids.index(label)]) if label in ids else 0.0
            assert float(found[i]) == pytest.approx(expected, rel=1e-5, abs=1e-8)
    assert bool((found > 0).any() and (found == 0).any())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert 0 < float((label_chance(x, 1 << 20) - found).abs().max()) < 0.1


def test_pace_weights_by_hand() -> None:
    """A block of three drafts, one whose second draft does not count, one of a single draft; rows in any order."""
    chance = torch.tensor([0.9, 0.5, 0.2, 0.8, 0.4, 0.6])
    step, place = torch.tensor([0, 1, 2, 0, 2, 0]), torch.tensor([4, 4, 4, 7, 7, 2])
    a, b, c = 0.95, 0.75, 0.6  # 0.5 q + 0.5
    d, e, f = 0.9, 0.7, 0.8
    expected = [a + a * b + a * b * c, a * b + a * b * c, a * b * c, d + d * e, d * e, f]
    order = torch.tensor([3, 0, 5, 4, 2, 1])
    found = pace_weights(chance[order], step[order], place[order])
    torch.testing.assert_close(found, torch.tensor(expected)[order])
    assert pace_weights(chance[:0], step[:0], place[:0]).shape == (0,)


def test_pace_weights_are_derivatives_of_the_expected_length() -> None:
    log_q = (
        torch.rand(4, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
        .log()
        .requires_grad_()
    )
    (expected,) = torch.autograd.grad(log_q.exp().cumprod(0).sum(), log_q)
    step, place = torch.meshgrid(torch.arange(4), torch.arange(6), indexing="ij")
    found = pace_weights(log_q.detach().exp().flatten(), step.flatten(), place.flatten(), smoothing=0.0)
    torch.testing.assert_close(found, expected.flatten())


def test_kl_with_another_weight_is_the_default_scaled() -> None:
    x = labelled(5, 40, 8, 50, reduced=20)
    once, twice = run(x, FUSED), run(x | {"loss": (("kl", 2.0),)}, FUSED)
    assert_same(once, (replace(twice[0], total=twice[0].total / 2), twice[1] / 2, twice[2] / 2))


@pytest.mark.parametrize(
    "mixture",
    [pytest.param(one, marks=[pytest.mark.proof][: one not in (OTHERS[0], OTHERS[-1])]) for one in OTHERS],
)
def test_it_compiles_in_one_piece(mixture: Any) -> None:
    from vocabforge.models.target.logits import scores
    from vocabforge.train.loss.fused import mixed_row_terms, mixed_teacher_terms
    from vocabforge.train.loss.kinds import TeacherLogs

    x = labelled(5, 8, 8, 50, reduced=20)
    z = scores(x["teacher"], x["target_head"], torch.float32)
    *logs, column = mixed_teacher_terms(z, x["target_ids"])
    rows = x["draft"] @ x["draft_head"].T, TeacherLogs(*logs), column, x["label"] % 20, mixture, IDENTITY
    compiled = torch.compile(mixed_row_terms, dynamic=True, backend="eager", fullgraph=True)
    for ours, theirs in zip(compiled(*rows), mixed_row_terms(*rows)):
        torch.testing.assert_close(ours, theirs)
