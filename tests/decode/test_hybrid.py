"""Several proposers in one decoder: each drafts as it would alone, whoever drafted before."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.decode.drafting import make_drafter
from tests.decode.node_support import load_tiny, noisy, plain
from tests.shares import by_default
from vocabforge.core.errors import UsageError
from vocabforge.decode.control.control import CycleFigures
from vocabforge.decode.engine import Decoder
from vocabforge.decode.interface import PLAIN_PLAN, Plan
from vocabforge.decode.proposers.hybrid import HybridProposer
from vocabforge.decode.proposers.registry import Proposer, ProposerParts, make_proposer
from vocabforge.decode.request import Request
from vocabforge.decode.spec import MethodSpec
from vocabforge.decode.tree import DraftTree
from vocabforge.models.lean.model import LeanModel
from vocabforge.models.target.hf import HFTarget

CHAIN = MethodSpec(tree="chain", depth=3)
TREE = MethodSpec(tree="dynamic", depth=2, topk=3, total_nodes=9)
HYBRIDS = [
    ("eagle3", "n-gram"),
    ("draft-model", "n-gram"),
    ("n-gram", "early-exit"),
    ("medusa", "early-exit"),
]


class Turns:
    """Every arm in turn, for ``stay`` cycles, plain decoding among them."""

    def __init__(self, plans: Sequence[Plan], stay: int = 2) -> None:
        self._plans, self._stay, self.cycles = [*plans, PLAIN_PLAN], stay, 0

    def begin(self) -> None:
        self.cycles = 0

    def plan(self, ready: object = None) -> Plan:
        return self._plans[self.cycles // self._stay % len(self._plans)]

    def observe(self, cycle: CycleFigures) -> None:
        self.cycles += 1


class World:
    """A target, and proposers over it by name."""

    def __init__(self, folder: Path) -> None:
        self.target: LeanModel = load_tiny(folder)
        hf = HFTarget.load(folder)
        self.drafters: dict[str, Any] = {
            "eagle3": make_drafter("eagle3", folder, hf),
            "medusa": make_drafter("medusa", folder, hf),
            "draft-model": noisy(load_tiny(folder)),
        }

    def proposer(self, name: str, options: MethodSpec) -> Proposer:
        if name == "n-gram":
            options = MethodSpec(ngram=(1, 3), depth=24)  # chains longer than all others
        if name == "medusa":
            options = MethodSpec(tree="static", depth=1, topk=2, total_nodes=5)
        if name == "early-exit":
            options = options.model_copy(update={"exit_layers": 3})
        return make_proposer(name, ProposerParts(self.target, self.drafters.get(name), options=options))

    def hybrid(self, names: Sequence[str], options: MethodSpec) -> HybridProposer:
        return HybridProposer([self.proposer(name, options) for name in names])


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return World(tmp_path_factory.mktemp("hybrid"))


def watch(proposer: Proposer) -> list[tuple[Plan, DraftTree]]:
    """What it proposes from now on."""
    propose, seen = proposer.propose, []

    def watched(roots: Any, plan: Plan, *rest: Any) -> DraftTree:
        tree = propose(roots, plan, *rest)
        seen.append((plan, tree))
        return tree

    proposer.propose = watched  # type: ignore[method-assign]
    return seen


@pytest.mark.parametrize(
    ("names", "options"),
    by_default(
        itertools.product(HYBRIDS, [CHAIN, TREE]),
        lambda case: case[1] is (CHAIN if HYBRIDS.index(case[0]) % 2 else TREE),
    ),
)
def test_each_drafts_as_it_would_alone(world: World, names: Sequence[str], options: MethodSpec) -> None:
    """After whatever the others drafted and the target committed: the same trees as behind a prompt of that text."""
    hybrid = world.hybrid(names, options)
    seen = watch(hybrid)
    control = Turns(hybrid.plans())
    prompt = [11, 12, 7] * 4
    result = Decoder(world.target, hybrid, control=control).generate_batch([Request(prompt, 70)])[0]
    assert result.token_ids == plain(world.target, [Request(prompt, 70)])[0]
    lengths = np.cumsum([0, *result.accept_lengths])
    drafted = [cycle for cycle, levels in enumerate(result.drafted_levels) if levels]
    compared = set()
    for cycle, (plan, tree) in list(zip(drafted, seen))[4:]:
        text = [*prompt, *result.token_ids][: len(prompt) + lengths[cycle] + 1]
        alone = watch(proposer := world.proposer(plan.by, options))
        own = Plan(plan.levels, plan.nodes)
        Decoder(world.target, proposer, control=Turns([own], 99)).generate_batch([Request(text[:-1], 2)])
        assert alone[0][1].tokens[0, 0] == text[-1]
        assert torch.equal(alone[0][1].tokens, tree.tokens), plan
        compared.add(plan.by)
    assert compared == set(names)


def test_parts_that_do_not_go_together(world: World) -> None:
    for names in (["n-gram"], ["n-gram", "n-gram"], ["eagle3", "medusa"]):
        with pytest.raises(UsageError, match="make no hybrid"):
            world.hybrid(names, CHAIN)
