"""The fused vocabulary loss against the plain formula, and what it holds in memory."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tensor_memory import TensorMemory
from torch import Tensor
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

from vocabforge.models.target import logits
from vocabforge.models.target.logits import IDENTITY, LogitFacts, LogitTransform
from vocabforge.train.loss.fused import LossInputs
from vocabforge.train.loss.vocab import LossOptions, RowLoss, vocab_loss

NAIVE, FUSED = LossOptions("naive"), LossOptions("fused")
STATES = "draft", "draft_head", "teacher", "target_head"
TRANSFORMS = st.sampled_from([IDENTITY, LogitTransform(0.25), LogitTransform(1.5, 2.0)])


def case(
    seed: int,
    rows: int,
    positions: int,
    vocab: int,
    *,
    reduced: int | None = None,
    hidden: int = 12,
    own: int = 0,
) -> dict[str, Any]:
    """Random arguments of ``vocab_loss``; ``own`` is another draft state size."""
    g = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=g)

    size = vocab if reduced is None else reduced
    ids = None if reduced is None else torch.randperm(vocab, generator=g)[:reduced].sort().values
    return {
        "draft": normal(rows, own or hidden),
        "draft_head": normal(size, own or hidden),
        "teacher": normal(positions, hidden),
        "teacher_row": torch.randint(0, positions, (rows,), generator=g)
        if rows
        else torch.zeros(0, dtype=torch.int64),
        "target_head": normal(vocab, hidden),
        "target_ids": ids,
        "weight": torch.rand(rows, generator=g),
    }


def double(arguments: dict[str, Any]) -> dict[str, Any]:
    return {
        k: v.double() if torch.is_tensor(v) and v.is_floating_point() else v for k, v in arguments.items()
    }


def run(
    arguments: dict[str, Any], options: LossOptions, upstream: float = 1.0
) -> tuple[RowLoss, Tensor, Tensor]:
    """Result, gradient of the draft states, gradient of the draft head."""
    draft = arguments["draft"].clone().requires_grad_()
    head = arguments["draft_head"].clone().requires_grad_()
    result = vocab_loss(LossInputs(**{**arguments, "draft": draft, "draft_head": head}), options)
    (result.total * upstream).backward()
    assert draft.grad is not None
    assert head.grad is not None
    return result, draft.grad, head.grad


def assert_same(a: tuple[RowLoss, Tensor, Tensor], b: tuple[RowLoss, Tensor, Tensor]) -> None:
    for name in ("total", "losses", "overlap", "ceiling"):
        torch.testing.assert_close(getattr(a[0], name), getattr(b[0], name), rtol=1e-5, atol=1e-5)
    assert torch.equal(a[0].outside, b[0].outside)
    assert torch.equal(a[0].correct, b[0].correct)
    for ours, theirs in zip(a[1:], b[1:]):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)


@settings(max_examples=120, deadline=None)
@given(data=st.data())
def test_fused_equals_naive_and_kept_facts_change_nothing(data: st.DataObject) -> None:
    """With and without argmax and log-sum-exp of the teachers: the same loss, figures and gradients."""
    vocab = data.draw(st.integers(2, 300))
    reduced = data.draw(st.none() | st.integers(1, vocab))
    rows, positions = data.draw(st.integers(0, 60)), data.draw(st.integers(1, 20))
    x = case(data.draw(st.integers(0, 999)), rows, positions, vocab, reduced=reduced, own=7)
    x |= {"transform": data.draw(TRANSFORMS), "draft_transform": data.draw(TRANSFORMS)}
    facts = LogitFacts.of(x["teacher"], x["target_head"], x["transform"])
    with SmallChunks(data.draw(st.sampled_from([1, 4_000, 40_000, 1 << 22]))):
        plain = run(x, NAIVE, -2.5)
        assert_same(run(x, FUSED, -2.5), plain)
        assert_same(run(x | {"facts": facts}, data.draw(st.sampled_from([NAIVE, FUSED])), -2.5), plain)


@pytest.mark.parametrize("options", [NAIVE, FUSED])
def test_kept_facts_spare_the_logits_of_other_tokens(options: LossOptions) -> None:
    x = case(3, 56, 8, 500, reduced=40)
    x["facts"] = LogitFacts.of(x["teacher"], x["target_head"], IDENTITY)
    work = []
    for arguments in (x, x | {"facts": None}):
        with FlopCounterMode(display=False) as counted:
            run(arguments, options)
        work.append(counted.get_total_flops())
    assert work[1] - work[0] == 2 * 12 * 8 * (500 - 40)
    low = {name: x[name].bfloat16() for name in STATES}
    low["facts"] = LogitFacts.of(low["teacher"], low["target_head"], IDENTITY)
    assert_same(run(x | low, options), run(x | low | {"facts": None}, options))


def test_facts_of_logits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logits, "_LOGITS_BYTES", 2 * 4 * 50 * 3)  # three rows at once
    x, transform = case(5, 1, 10, 50), LogitTransform(0.5, 3.0)
    head = torch.cat([x["target_head"][:25], x["target_head"][:25]])  # every logit twice
    with TensorMemory() as memory:
        found = LogitFacts.of(x["teacher"], head, transform)
    z = transform(x["teacher"] @ head.T)
    assert torch.equal(found.best, z.argmax(-1)), "the first of equal maxima"
    torch.testing.assert_close(found.log_sum, z.logsumexp(-1))
    assert memory.largest == 3 * 50 * 4


class SmallChunks:
    """Bytes in the place of MiB, so that small shapes take many chunks."""

    def __init__(self, budget: int) -> None:
        self.budget = budget

    def __enter__(self) -> None:
        from vocabforge.train.loss import vocab as module

        self.module, self.before = module, module._MIB
        module._MIB = max(1, self.budget // 256)

    def __exit__(self, *_: object) -> None:
        self.module._MIB = self.before


def test_naive_is_the_formula_row_by_row() -> None:
    x = case(3, 9, 4, 31, reduced=11)
    found = run(x | {"transform": LogitTransform(0.5, 3.0), "draft_transform": LogitTransform(2.0)}, NAIVE)[0]
    total = 0.0
    ids = x["target_ids"].tolist()
    for i in range(9):
        z = [3 * math.tanh(v / 6) for v in (x["target_head"] @ x["teacher"][x["teacher_row"][i]]).tolist()]
        s = [2 * v for v in (x["draft_head"] @ x["draft"][i]).tolist()]
        everything = sum(math.exp(v) for v in z)
        some, own = sum(math.exp(z[v]) for v in ids), sum(math.exp(v) for v in s)
        p = [math.exp(z[v]) / some for v in ids]
        q = [math.exp(v) / own for v in s]
        best = z.index(max(z))
        loss = -sum(a * math.log(b) for a, b in zip(p, q)) if best in ids else 0.0
        total += loss * float(x["weight"][i])
        assert float(found.losses[i]) == pytest.approx(loss, rel=1e-4)
        assert bool(found.outside[i]) == (best not in ids)
        assert bool(found.correct[i]) == (ids[s.index(max(s))] == best)
        overlap = sum(min(math.exp(z[v]) / everything, b) for v, b in zip(ids, q))
        assert float(found.overlap[i]) == pytest.approx(overlap, rel=1e-4)
        assert float(found.ceiling[i]) == pytest.approx(some / everything, rel=1e-4)
    assert float(found.total.detach()) == pytest.approx(total, rel=1e-4)
    assert 0 < int(found.outside.sum()) < 9, "the case must have rows of both kinds"


@pytest.mark.parametrize("options", [NAIVE, FUSED])
def test_of_equal_maxima_the_first_decides(options: LossOptions) -> None:
    head = torch.eye(6)[[0, 1, 1, 2, 3, 4]]  # tokens 1 and 2 always tie
    x = case(0, 3, 1, 6, reduced=3, hidden=6)
    x |= {"target_head": head, "target_ids": torch.tensor([2, 3, 5]), "draft_head": head[[2, 3, 5]]}
    x |= {"teacher": head[1:2] * 9, "draft": head[[1, 1, 3]] * 9}
    found = run(x, options)[0]
    assert found.outside.all(), "token 1 is the first of the maxima, and it is no draft token"
    assert not found.correct.any()
    assert float(found.total.detach()) == 0.0
    x |= {"target_ids": None, "draft_head": head}
    assert run(x, options)[0].correct.tolist() == [True, True, False]


@pytest.mark.parametrize("transform", [IDENTITY, LogitTransform(0.5, 3.0)])
@pytest.mark.parametrize("reduced", [None, 9])
def test_gradients_in_float64(reduced: int | None, transform: LogitTransform) -> None:
    x = double(case(1, 7, 3, 17, reduced=reduced))
    draft, head = x.pop("draft").requires_grad_(), x.pop("draft_head").requires_grad_()

    def total(d: Tensor, h: Tensor) -> Tensor:
        return vocab_loss(LossInputs(d, h, **x, draft_transform=transform), FUSED).total

    assert torch.autograd.gradcheck(total, (draft, head))


@pytest.mark.parametrize("impl", ["naive", "fused"])
def test_bf16_is_accumulated_in_fp32(impl: Any) -> None:
    """Against fp64 on the same rounded inputs: the error is that of single roundings, not of sums in bf16."""
    x = case(2, 64, 16, 4000, hidden=64)
    x |= {name: (x[name] * 0.3).bfloat16() for name in STATES}
    found, truth = run(x, LossOptions(impl)), run(double(x), NAIVE)
    assert found[0].total.dtype == found[0].losses.dtype == torch.float32
    assert found[1].dtype == found[2].dtype == torch.bfloat16
    torch.testing.assert_close(found[0].losses, truth[0].losses, rtol=2e-3, atol=2e-3)
    for ours, theirs in zip(found[1:], truth[1:]):
        error = (ours.double() - theirs.double()).norm() / theirs.double().norm()
        assert float(error) < 1e-2


@pytest.mark.parametrize("reduced", [None, 30])
def test_autocast_is_the_same_for_both(reduced: int | None) -> None:
    x = case(4, 50, 10, 90, reduced=reduced)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        ours, theirs = run(x, FUSED), run(x, NAIVE)
    assert ours[1].dtype == torch.float32
    torch.testing.assert_close(ours[0].losses, theirs[0].losses, rtol=1e-5, atol=1e-5)
    for a, b in zip(ours[1:], theirs[1:]):  # one sums in fp32 what the other rounds
        assert float((a - b).norm() / b.norm()) < 1e-2
    plain = run(x, FUSED)
    assert 1e-4 < float((plain[0].losses - ours[0].losses).abs().max()) < 0.2, (
        "autocast must make a difference"
    )


def test_no_rows_is_a_zero_with_a_graph() -> None:
    for options in (NAIVE, FUSED, LossOptions()):
        result, draft, head = run(case(0, 0, 3, 20), options)
        assert float(result.total.detach()) == 0.0
        assert draft.shape == (0, 12)
        assert not head.any()


def test_frozen_head_gets_no_gradient_and_costs_none() -> None:
    x = case(6, 30, 8, 40)
    x["draft"].requires_grad_()
    vocab_loss(LossInputs(**x), FUSED).total.backward()
    assert x["draft_head"].grad is None
    expected = run({k: v.detach() if torch.is_tensor(v) else v for k, v in x.items()}, NAIVE)[1]
    torch.testing.assert_close(x["draft"].grad, expected, rtol=1e-5, atol=1e-5)


def test_twice_under_activation_checkpointing() -> None:
    """The loss of two steps, recomputed in the backward pass, with a graph that is walked twice."""
    x, y = case(7, 30, 8, 60), case(8, 30, 8, 60)
    layer = torch.nn.Linear(12, 12)
    head = x["draft_head"].requires_grad_()

    def loss(arguments: dict[str, Any], options: LossOptions) -> Tensor:
        inputs = {**arguments, "draft": layer(arguments["draft"]), "draft_head": head}
        return vocab_loss(LossInputs(**inputs), options).total

    def gradients(total: Tensor) -> list[Tensor]:
        wanted = [layer.weight, layer.bias, head]
        first = torch.autograd.grad(total, wanted, retain_graph=True)
        second = torch.autograd.grad(total * 2, wanted)
        return [a + b for a, b in zip(first, second)]

    plain = gradients(loss(x, NAIVE) + 3 * loss(y, NAIVE))
    kept: Tensor = checkpoint(loss, x, FUSED, use_reentrant=False) + 3 * checkpoint(
        loss, y, FUSED, use_reentrant=False
    )
    for ours, theirs in zip(gradients(kept), plain):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize(
    ("vocab", "reduced", "rows"), [(32_768, None, 300), (262_144, None, 48), (262_144, 32_000, 300)]
)
def test_nothing_of_rows_times_vocabulary_is_ever_held(vocab: int, reduced: int | None, rows: int) -> None:
    budget = 24
    x = case(9, rows, 16, vocab, reduced=reduced, hidden=4)
    x["draft"].requires_grad_()
    x["draft_head"].requires_grad_()
    with TensorMemory() as memory:
        vocab_loss(LossInputs(**x), LossOptions("fused", chunk_mb=budget)).total.backward()
    size = reduced or vocab
    assert memory.largest < rows * size * 4
    head_gradient = 2 * size * 4 * 4  # the sum, and what leaves as the gradient
    assert memory.peak <= (budget << 20) + head_gradient + (1 << 20)
    assert memory.peak > (budget << 20) // 3, "the workspace should be used"


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("reduced", [None, 700])
@pytest.mark.parametrize("compiled", [False, None])
def test_on_cuda(reduced: int | None, compiled: bool | None) -> None:
    x = case(3, 300, 60, 2000, reduced=reduced, hidden=64)
    x = {k: v.cuda() if torch.is_tensor(v) else v for k, v in x.items()}
    options = LossOptions("fused", chunk_mb=1, compiled=compiled)
    assert_same(run(x, options), run(x, NAIVE))
    low = x | {name: (x[name] * 0.3).bfloat16() for name in STATES}
    ours, truth = run(low, options), run(double(low), NAIVE)
    torch.testing.assert_close(ours[0].losses, truth[0].losses, rtol=1e-3, atol=1e-3)
    for a, b in zip(ours[1:], truth[1:]):
        assert float((a.double() - b).norm() / b.norm()) < 1e-2
