"""Small draft heads of every kind, for tests."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from vocabforge.core.extension import resolve
from vocabforge.models.heads import HEADS, DraftHead, DraftState, HeadBase, HeadOptions, HeadSizes, build_head

VOCAB, HIDDEN, CLUSTERS = 97, 16, 9


@dataclass(frozen=True)
class Case:
    """A head with rows to ask it about."""

    head: DraftHead
    base: HeadBase
    module: torch.nn.Module | None
    hidden: torch.Tensor
    state: DraftState


def make_base(ids: torch.Tensor | None = None, *, seed: int = 0, dtype=torch.float32) -> HeadBase:
    stream = torch.Generator().manual_seed(seed)
    weight = torch.randn(VOCAB, HIDDEN, generator=stream).to(dtype)
    embedding = torch.randn(VOCAB, HIDDEN, generator=stream).to(dtype)
    if ids is None:
        return HeadBase(weight, torch.arange(VOCAB), embedding)
    return HeadBase(weight[ids], ids, embedding)


def make_module(kind: str, *, seed: int = 0, dtype=torch.float32) -> torch.nn.Module | None:
    """The trainable part of a kind with random weights; clusters leave the last ids (padding) out."""
    torch.manual_seed(seed)
    sizes = HeadSizes(
        HIDDEN,
        VOCAB - 4 if kind == "router" else VOCAB,
        rank=6,
        clusters=CLUSTERS if kind == "router" else None,
        width=12,
        depth=2,
    )
    module = resolve(HEADS, kind, "draft head").new_module(sizes)
    if module is None:
        return None
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.normal_(0.0, 0.7)
        if kind == "router":
            module.assignment.copy_(torch.randint(0, CLUSTERS, (VOCAB - 4,)))
    return module.to(dtype).eval().requires_grad_(False)


def make_case(
    kind: str,
    *,
    options: HeadOptions | None = None,
    ids: torch.Tensor | None = None,
    rows: int = 7,
    step: int = 1,
    seed: int = 0,
    dtype=torch.float32,
) -> Case:
    base, module = make_base(ids, seed=seed, dtype=dtype), make_module(kind, seed=seed, dtype=dtype)
    stream = torch.Generator().manual_seed(seed + 1)
    hidden = torch.randn(rows, HIDDEN, generator=stream).to(dtype)
    state = DraftState(
        step,
        torch.randint(0, VOCAB, (rows,), generator=stream),
        torch.randn(rows, HIDDEN, generator=stream).to(dtype),
    )
    return Case(build_head(kind, base, module, options), base, module, hidden, state)
