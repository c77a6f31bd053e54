"""Dependent launches (VOCABFORGE_PDL=1) change no bit: kernels wait for the former one before they read or write."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from tests.shares import by_default
from vocabforge.ops.add_rms_norm import add_rms_norm
from vocabforge.ops.draft_topk import draft_topk
from vocabforge.ops.indexed_logits import indexed_logits
from vocabforge.ops.ranker_select import ranker_select
from vocabforge.ops.silu_mul import silu_mul
from vocabforge.ops.target_choice import target_choice

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("add_rms_norm", "silu_mul", "ranker_select", "indexed_logits", "target_choice", "draft_topk")
D = 128


def weights(vocab: int, device: str = "cpu") -> tuple[Tensor, Tensor, Tensor]:
    """Norm, the ranker's rows and the head's."""
    stream = torch.Generator().manual_seed(0)
    rows = [torch.randn(size, generator=stream) for size in ((2 * D,), (vocab, D), (vocab, D))]
    norm, ranker, head = (one.bfloat16().to(device) for one in rows)
    return norm, ranker, head


def states(seed: int, device: str = "cpu") -> tuple[Tensor, Tensor]:
    """Hidden states and residual of 12 rows."""
    stream = torch.Generator().manual_seed(seed)
    x, residual = (torch.randn(12, 2 * D, generator=stream).bfloat16().to(device) for _ in range(2))
    return x, residual


def chain(x: Tensor, residual: Tensor, given: tuple[Tensor, Tensor, Tensor], backend: str) -> list[Tensor]:
    """Ops each of which reads what the one before has just written."""
    norm, ranker, head = given
    normed, total = add_rms_norm(x, residual, norm, 1e-5, backend=backend)
    hidden = silu_mul(normed, backend=backend)
    ids = ranker_select(hidden, ranker, 64, backend=backend)
    logits = indexed_logits(hidden, head, ids, backend=backend)
    best = draft_topk(logits, 8, ids=ids, backend=backend)
    return [total, ids, logits, *best, *target_choice(logits, backend=backend)]


def same(some: list[Tensor], others: list[Tensor]) -> bool:
    return all(torch.equal(one, other) for one, other in zip(some, others, strict=True))


def test_emulated_kernels_give_the_same_bits(
    emulated: Callable[[str], None], schedule: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder in FOLDERS:
        emulated(folder)
    given, answers = weights(300), []
    for switch in ("0", "1"):
        monkeypatch.setenv("VOCABFORGE_PDL", switch)
        answers.append(chain(*states(1), given, "emulated"))
    assert same(*answers)


@pytest.mark.parametrize(
    ("rows", "rank"),
    by_default([(1, 8), (1, 3000), (9, 72), (20, 200), (40, 512), (64, 1208)], lambda case: case[1] < 1000),
)
def test_a_ring_whose_weights_come_first_gives_the_same_bits(
    emulated: Callable[[str], None], monkeypatch: pytest.MonkeyPatch, rows: int, rank: int
) -> None:
    """Tiles of one stage to many, fewer stages than the ring's, hidden rows that stay in shared memory or do not."""
    emulated("ranker_select")
    monkeypatch.setenv("VOCABFORGE_EMULATED_SMS", "2")
    stream = torch.Generator().manual_seed(rank)
    hidden = torch.randn(rows, rank, generator=stream).bfloat16()
    vocab = torch.randn(200, rank, generator=stream).bfloat16()
    answers = []
    for switch in ("0", "1"):
        monkeypatch.setenv("VOCABFORGE_PDL", switch)
        answers.append(ranker_select(hidden, vocab, 50, backend="emulated"))
    assert torch.equal(*answers)
    assert torch.equal(answers[0].sort().values, ranker_select(hidden, vocab, 50).sort().values)


def digest() -> str:
    """SHA-256 of what the chain gives on a GPU for many inputs in the same memory: launch by launch, and replayed."""
    given, (x, residual) = weights(32_000, "cuda"), states(0, "cuda")
    chain(x, residual, given, "native")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        replayed = chain(x, residual, given, "native")
    found = hashlib.sha256()
    for seed in range(50):
        for old, new in zip((x, residual), states(seed, "cuda"), strict=True):
            old.copy_(new)
        graph.replay()
        launched = chain(x, residual, given, "native")
        assert same(launched, replayed)
        for one in launched:
            found.update(one.cpu().view(torch.uint8).numpy().tobytes())
    return found.hexdigest()


@pytest.mark.gpu
def test_cuda_kernels_give_the_same_bits(native_cuda: None) -> None:
    """The switch is read once, so each setting has its own process."""
    program = "from tests.ops.test_dependent_launch import digest; print(digest())"
    found = []
    for switch in ("0", "1"):
        done = subprocess.run(
            [sys.executable, "-c", program],
            capture_output=True,
            text=True,
            cwd=ROOT,
            env={**os.environ, "VOCABFORGE_PDL": switch},
        )
        assert done.returncode == 0, done.stderr
        found.append(done.stdout)
    assert found[0] == found[1]
