"""Processes that share the tokens of their rows, as threads: attention, halo, the whole step, and what each holds."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from tensor_memory import TensorMemory
from torch import Tensor, nn

from tests.decode.drafting import CASES, VARIANTS, make_drafter
from tests.train.run_support import config, trainer
from tests.train.ttt_reference import capture, documents, pack
from vocabforge.core.distributed import Group
from vocabforge.core.errors import ConfigError, UsageError
from vocabforge.models.drafters.registry import drafter_class
from vocabforge.models.heads.router import Router
from vocabforge.models.target.hf import HFTarget
from vocabforge.models.ttt.attention import TTTState, ttt_attention
from vocabforge.train.capture.online import CapturedBatch, OnlineCapture
from vocabforge.train.config import HeadsConfig
from vocabforge.train.heads.draft_heads import make_heads
from vocabforge.train.loss.rows import take_rows
from vocabforge.train.loss.vocab import LossOptions
from vocabforge.train.metrics import TTTTotals
from vocabforge.train.parallel.sequence import SequenceShare, Swap, UlyssesExchange
from vocabforge.train.setup import read_basis
from vocabforge.train.step import StepSettings, TrainStep
from vocabforge.train.ttt import TTTStep, counted_rows, rows_by_step

STEPS = 3
PATIENCE_S = 60.0
CAPTURING = threading.Lock()  # one target, whose hooks keep the states of a pass


def together(size: int, work: Callable[[int, Swap], Any]) -> list[Any]:
    """``work(rank, swap)`` of ``size`` processes, each a thread: ``swap`` is their all-to-all."""
    barrier = threading.Barrier(size, timeout=PATIENCE_S)
    sent: list[Any] = [None] * size

    def run(rank: int) -> Any:
        def swap(parts: Tensor) -> Tensor:
            assert len(parts) == size
            sent[rank] = parts
            barrier.wait()
            received = torch.stack([other[rank] for other in sent])
            barrier.wait()
            return received

        finished = False
        try:
            made = work(rank, swap)
            finished = True
            return made
        finally:
            if not finished:
                barrier.abort()

    with ThreadPoolExecutor(size) as pool:
        running = [pool.submit(run, rank) for rank in range(size)]
    errors = [one.exception() for one in running]
    for error in errors:
        if error is not None and not isinstance(error, threading.BrokenBarrierError):
            raise error
    return [one.result() for one in running]


def attend(
    leaves: list[Tensor], document: Tensor, attention: str, exchange: UlyssesExchange | None
) -> list[Tensor]:
    """What three steps make of q, k and v of each."""
    state, made = TTTState(document, attention, exchange=exchange), []
    for q, k, v in zip(*[iter(leaves)] * 3):
        state.k.append(k)
        state.v.append(v)
        made.append(ttt_attention(q, state))
    return made


@pytest.mark.parametrize("attention", ["eager", "merged"])
@pytest.mark.parametrize(("size", "heads", "kv"), [(2, 4, 1), (4, 4, 2), (2, 6, 3)])
def test_attention_and_its_gradients_are_those_of_whole_rows(
    attention: str, size: int, heads: int, kv: int
) -> None:
    g = torch.Generator().manual_seed(0)
    document = torch.tensor([[0] * 3 + [1] * 17 + [2] * 9 + [0] * 3, [1] * 8 + [2] * 24])
    shapes = [(2, count, 32, 8) for count in (heads, kv, kv)] * STEPS
    leaves = [torch.randn(shape, generator=g).requires_grad_() for shape in shapes]
    above = [torch.randn(2, heads, 32, 8, generator=g) for _ in range(STEPS)]
    whole = attend(leaves, document, attention, None)
    expected = [*whole, *torch.autograd.grad(whole, leaves, above)]

    def work(rank: int, swap: Swap) -> list[Tensor]:
        mine = slice(rank * 32 // size, (rank + 1) * 32 // size)
        own = [leaf[:, :, mine].detach().requires_grad_() for leaf in leaves]
        made = attend(own, document, attention, UlyssesExchange(swap, size))
        return [*made, *torch.autograd.grad(made, own, [one[:, :, mine] for one in above])]

    for index, parts in enumerate(zip(*together(size, work))):
        torch.testing.assert_close(torch.cat(parts, 2), expected[index], rtol=1e-5, atol=1e-5)


def test_a_process_holds_an_equal_share_of_heads() -> None:
    def work(rank: int, swap: Swap) -> list[torch.Size]:
        q, k, v = UlyssesExchange(swap, 4).to_heads(*(torch.zeros(1, n, 3, 2) for n in (8, 2, 2)))
        return [q.shape, k.shape, v.shape]

    for shapes in together(4, work):
        assert [tuple(shape) for shape in shapes] == [(1, 2, 12, 2), (1, 1, 12, 2), (1, 1, 12, 2)]


@pytest.mark.parametrize("size", [2, 4, 16])  # of 16 shards each is shorter than its halo
def test_the_halo_makes_counted_rows_and_teachers_whole(target: HFTarget, size: int) -> None:
    first, second, third = documents(2, [19, 9, 30])
    batch = capture(target, pack([[first, second], [third]], 32))
    exchange = UlyssesExchange(lambda parts: parts, size)
    for k in range(STEPS):
        expected = counted_rows(batch.loss_mask, batch.document, k)
        taken = take_rows([TTTStep(k, batch.hidden, expected)], batch)
        teachers, labels = torch.zeros_like(batch.hidden), torch.zeros_like(batch.input_ids)
        teachers[expected], labels[expected] = taken.teacher[taken.teacher_row], taken.label
        for rank in range(size):
            shard = SequenceShare(rank, size, exchange).shard(batch.document, STEPS)
            own = slice(rank * shard.own, (rank + 1) * shard.own)
            assert (shard.tokens.start, shard.own) == (own.start, 32 // size)
            part = online(target, batch, shard.tokens)
            counted = counted_rows(part.loss_mask, part.document, k)[:, : shard.own]
            assert torch.equal(counted, expected[:, own])
            anchor = torch.arange(shard.own).expand(2, -1)
            mine = take_rows([TTTStep(k, part.hidden[:, : shard.own], counted, anchor)], part)
            assert torch.equal(mine.teacher[mine.teacher_row], teachers[:, own][counted])
            assert torch.equal(mine.label, labels[:, own][counted])


def online(target: HFTarget, batch: CapturedBatch, tokens: slice) -> CapturedBatch:
    """The states of some tokens, from a source that captures whole rows."""
    with CAPTURING:
        return OnlineCapture(target, 0)(batch, [("train", row) for row in range(len(batch.document))], tokens)


def step_of(drafter: Any, target: HFTarget, *, heads: tuple[str, ...] = (), **changes: Any) -> TrainStep:
    """A step with these draft heads."""
    options: dict[str, Any] = {"decay": 0.8, "head_weights": tuple((name, 0.1) for name in heads), **changes}
    every = make_heads(HeadsConfig(ranker={"shortlist": 16}), target.head_weight, seed=0)
    every["router"] = Router(target.hidden_size, torch.arange(target.vocab_size) % 7, 7)
    chosen = nn.ModuleDict({name: every[name] for name in heads})
    return TrainStep(drafter, chosen, target.head_weight, StepSettings(**options), target.transform).train()


Results = tuple[Tensor, Tensor, dict[str, Tensor]]


def results(step: TrainStep, *inputs: Any) -> Results:
    """Loss, sums of the figures, gradients."""
    loss, figures, _ = step(*inputs)
    loss.backward()
    totals = TTTTotals.zeros(len(figures))
    totals.add(figures)
    return loss.detach(), totals.sums, {n: p.grad for n, p in step.named_parameters() if p.grad is not None}


def compare(step: TrainStep, target: HFTarget, size: int, noise: Tensor | None = None) -> None:
    """Loss, figures and gradients, summed over the shards of one batch, are those of the batch."""
    first, second, third, fourth = documents(4, [19, 9, 7, 28])
    # The last quarter of the first row is padding: a process there counts no row of it.
    batch = capture(target, pack([[first, second], [third, fourth]], 40), facts=True)
    steps = step.drafter.max_steps or STEPS
    counts = rows_by_step(batch.loss_mask, batch.document, steps)
    copies = [copy.deepcopy(step) for _ in range(size)]
    expected = results(step, batch, steps, counts, noise)

    def work(rank: int, swap: Swap) -> Results:
        shard = SequenceShare(rank, size, UlyssesExchange(swap, size)).shard(batch.document, steps)
        part, own = (
            online(target, batch, shard.tokens),
            slice(shard.tokens.start, shard.tokens.start + shard.own),
        )
        mine = None if noise is None else noise[:, own]
        return results(copies[rank], part, steps, counts, mine, None, shard)

    losses, sums, gradients = zip(*together(size, work))
    torch.testing.assert_close(sum(losses), expected[0], rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(sum(sums), expected[1], rtol=1e-5, atol=1e-5)
    assert expected[2].keys() == gradients[0].keys() != set()
    for name, gradient in expected[2].items():
        summed = sum(one[name] for one in gradients)
        scale = float(gradient.abs().max())
        torch.testing.assert_close(summed, gradient, rtol=1e-4, atol=1e-5 * scale, msg=name)


KIND = {case: VARIANTS.get(case, (case, {}))[0] for case in CASES}
SEQUENTIAL = [case for case in CASES if not getattr(drafter_class(KIND[case]), "parallel", False)]


BOTH = ("ranker", "router")
OTHER_STEPS: dict[str, dict[str, Any]] = {
    "eager, naive": {"attention": "eager", "loss": LossOptions("naive"), "checkpointing": True},
    "merged, naive": {"attention": "merged", "loss": LossOptions("naive")},
    "merged, fused": {"attention": "merged", "loss": LossOptions("fused"), "checkpointing": True},
    "frozen": {"heads": BOTH, "freeze": True},
    "router": {"heads": BOTH, "router_detach": False, "router_top_n": 3},
    "labels and d-pace": {
        "heads": BOTH,
        "weighting": "d-pace",
        "token_loss": (("ce", 0.5), ("tv", 0.5)),
    },
}


@pytest.mark.parametrize(("case", "size"), [*((case, 2) for case in SEQUENTIAL), ("eagle3", 4)])
def test_the_shards_of_a_step_sum_to_the_step(case: str, size: int, folder: Path, target: HFTarget) -> None:
    compare(step_of(make_drafter(case, folder, target), target), target, size)


@pytest.mark.parametrize("changes", OTHER_STEPS.values(), ids=OTHER_STEPS)
def test_so_they_do_with_heads_and_other_losses(
    changes: dict[str, Any], folder: Path, target: HFTarget
) -> None:
    drafter = make_drafter("eagle3", folder, target)
    compare(step_of(drafter, target, **{"heads": ("ranker",), **changes}), target, 2)


def test_noise_and_the_loss_on_features(folder: Path, target: HFTarget) -> None:
    drafter = make_drafter("eagle1", folder, target)
    noise = torch.rand(2, 40, target.hidden_size, generator=torch.Generator().manual_seed(0)) - 0.5
    compare(step_of(drafter, target, feature_weight=1.0, token_weight=0.1), target, 2, noise)


def test_noise_does_not_depend_on_the_division(place: Path) -> None:
    sections: dict[str, Any] = {
        "drafter": {"kind": "eagle1"},
        "run": {"trackers": [], "live": {"prompts": 0}},
    }
    run, rows = trainer(place, "noise", **sections), [2, 0]
    batch, nothing = run.capture_part("train", rows, STEPS)
    assert nothing is None, "one process works on whole rows"
    whole = run.noise(batch, 5, rows)
    assert whole is not None
    for rank in range(4):
        shard = SequenceShare(rank, 4, UlyssesExchange(lambda parts: parts, 4)).shard(batch.document, STEPS)
        mine = run.noise(run.capture("train", rows, shard.tokens), 5, rows, shard)
        assert mine is not None
        assert torch.equal(mine, whole[:, rank * shard.own : (rank + 1) * shard.own])


@pytest.mark.parametrize("checkpointing", [False, True])
def test_what_a_process_holds_falls_with_their_number(
    folder: Path, target: HFTarget, checkpointing: bool
) -> None:
    """Bytes of tensors that live after the forward pass, and the peak up to the end of the backward pass."""
    drafter = make_drafter("eagle3", folder, target)
    step = step_of(drafter, target, attention="merged", checkpointing=checkpointing)
    batch = capture(target, pack([documents(4, [512])], 512))
    counts = rows_by_step(batch.loss_mask, batch.document, STEPS)
    held: dict[int, list[tuple[int, int]]] = {}
    for size in (1, 2, 4):
        copies = [copy.deepcopy(step) for _ in range(size)]

        def work(rank: int, swap: Swap, size: int = size, copies: list[TrainStep] = copies) -> Any:
            shard = SequenceShare(rank, size, UlyssesExchange(swap, size)).shard(batch.document, STEPS)
            part = online(target, batch, shard.tokens)
            with TensorMemory() as memory:
                loss, _, _ = copies[rank](part, STEPS, counts, None, None, shard)
                kept = memory.live
                loss.backward()
            return kept, memory.peak

        held[size] = together(size, work)
    (alone, peak), *_ = held[1]
    for size in (2, 4):
        assert max(kept for kept, _ in held[size]) < 1.25 * alone / size
        assert max(most for _, most in held[size]) < 1.3 * peak / size


@pytest.mark.parametrize(
    ("sections", "processes", "error", "word"),
    [
        (
            {"data": {"sequence_length": 63}},
            2,
            ConfigError,
            r"(?s)evenly.*sequence_length 63.*sequence_length=64",
        ),
        ({"drafter": {"num_heads": 3, "num_kv_heads": 1}}, 2, ConfigError, r"(?s)evenly.*3 heads"),
        ({}, 3, ConfigError, r"(?s)cannot form groups.*3 processes.*launch 4 processes"),
        ({}, 1, ConfigError, r"(?s)cannot form groups.*1 process,.*launch 2 processes"),
        ({"optim": {"batch_size": 3}}, 4, ConfigError, r"(?s)shared evenly.*2 groups of 2 processes"),
        ({"drafter": {"kind": "dflash"}}, 2, UsageError, "dflash"),
        ({"run": {"sequence_parallel": 2, "strategy": "deepspeed"}}, 2, UsageError, "DeepSpeed does not go"),
    ],
)
def test_what_cannot_be_shared_is_refused(
    place: Path, sections: dict[str, Any], processes: int, error: type[Exception], word: str
) -> None:
    every = {"run": {"sequence_parallel": 2}, "optim": {"batch_size": 4}, **sections}
    with pytest.raises(error, match=word):
        read_basis(config(place, "refused", **every), Group(0, processes))
