"""Checks of laws that several proofs share, and trees that no drafter would draft."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from tests.decode.enumeration import Law
from tests.decode.markov import MarkovTarget
from tests.decode.proof_support import GREEDY, OWN, TRANSFORMS, Case, Walker, reference_law
from vocabforge.core.registry import resolve
from vocabforge.decode.proposers.interface import Plan
from vocabforge.decode.request import SamplingParams
from vocabforge.decode.tree import DraftTree, build_tree
from vocabforge.decode.verify.registry import VERIFIERS
from vocabforge.models.heads.registry import HEADS

HEADLESS = ("n-gram",)
PAIRS: list[tuple[str, str | None]] = [
    (name, head) for name in OWN for head in ((None,) if name in HEADLESS else HEADS)
]
SAMPLERS = [
    name
    for name in VERIFIERS
    for found in [resolve(VERIFIERS, name, "verifier")]
    if found.samples and found.lossless
]
CASES = [Case(sampling) for sampling in (*TRANSFORMS.values(), *GREEDY.values())]


@functools.cache
def targets(kind: str, vocab: int = 3, layers: int = 2) -> MarkovTarget:
    return MarkovTarget(kind, vocab, 1, layers)


@functools.cache
def wanted(kind: str, sampling: SamplingParams, length: int, stop_ids: tuple[int, ...]) -> Law:
    return reference_law(targets(kind), Case(sampling, length=length, stop_ids=stop_ids))


def check(walker: Walker, kind: str, cases: Sequence[Case]) -> None:
    """Total variation 0, exactly."""
    for case, law in zip(cases, walker.laws(cases)):
        expected = wanted(kind, case.sampling, case.length, tuple(case.stop_ids))
        assert sum(law.values()) == 1
        assert law == expected, case.sampling


class FixedTree:
    """Proposes the same tree whatever was said: duplicates, impossible tokens, dead nodes, all of V."""

    kind = label = "fixed"
    reads, aux_layers, samples, head, scratch = "none", (), False, None, 0

    def __init__(self, tokens: Sequence[int], parents: Sequence[int], dead: Sequence[int] = ()) -> None:
        self._tokens, self._parents, self._dead = tokens, torch.tensor([parents]), list(dead)
        self.levels = int(build_tree(self._parents, self._parents, len(parents)).depths.max())
        self.plan = Plan(self.levels, len(parents))

    def plans(self) -> list[Plan]:
        return [self.plan]

    def allocate(self, rows: int, positions: int, cache: Any) -> None:
        pass

    begin = prefill = commit = lambda self, *_: None

    def propose(self, roots: Tensor, plan: Plan, draws: Any, lap: Any) -> DraftTree:
        rows = len(roots)
        tokens = torch.cat([roots[:, None], torch.tensor([self._tokens[1:]]).expand(rows, -1)], 1)
        tree = build_tree(tokens, self._parents.expand(rows, -1).contiguous(), self.levels)
        alive = torch.ones_like(tokens, dtype=torch.bool)
        alive[:, self._dead] = False
        return replace(tree, alive=alive if self._dead else None)


TREES = {
    "duplicates": ((0, 1, 1, 0, 1, 0, 0), (0, 0, 0, 1, 1, 2, 2), ()),
    "the whole vocabulary": ((0, 2, 0, 1, 1), (0, 0, 0, 0, 3), ()),
    "dead nodes": ((0, 1, 2, 0, 1, 2, 2), (0, 0, 0, 0, 1, 2, 4), (2, 5)),
    "out of level order": ((0, 1, 0, 2, 2, 0), (0, 0, 1, 2, 0, 4), ()),
}
