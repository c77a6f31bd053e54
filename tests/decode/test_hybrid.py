"""Several proposers in one decoder: each drafts as it would alone, whoever drafted before."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.decode.build_support import grid_methods
from tests.decode.drafting import make_drafter
from tests.decode.node_support import PROMPTS, load_tiny, noisy, plain
from tests.shares import by_default
from tests.worlds import byte_tokenizer, tiny_drafter, tiny_target
from vocabforge.core.errors import UsageError
from vocabforge.corpus.tokenizer.tokenizer import load_tokenizer
from vocabforge.decode.build.recipe import DecodingRecipe
from vocabforge.decode.control.bandit import BanditControl
from vocabforge.decode.control.control import CycleFigures
from vocabforge.decode.engine import Decoder
from vocabforge.decode.interface import PLAIN_PLAN, Plan
from vocabforge.decode.proposers.hybrid import HybridProposer
from vocabforge.decode.proposers.registry import Proposer, ProposerParts, make_proposer
from vocabforge.decode.request import Request
from vocabforge.decode.spec import MethodSpec
from vocabforge.decode.tree import DraftTree
from vocabforge.models.drafters.io import save_drafter
from vocabforge.models.lean.model import LeanModel
from vocabforge.models.target.fingerprint import target_fingerprint
from vocabforge.models.target.hf import HFTarget
from vocabforge.vocab.subset.subset import VocabSubset, save_subset

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
            "draft-model": noisy(folder),
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


@pytest.mark.parametrize(
    ("names", "rows", "wrapped"),
    by_default(
        [(names, *way) for names in HYBRIDS for way in ((1, False), (3, True))],
        lambda case: case[1] == 3 or case[0] == HYBRIDS[0],
    ),
)
def test_rows_side_by_side_and_up_to_the_context(
    world: World, names: Sequence[str], rows: int, wrapped: bool
) -> None:
    asked = [Request(prompt, 70) for prompt in (*PROMPTS, [9, 8] * 5)]
    expected = plain(world.target, asked, context=64)
    hybrid = world.hybrid(names, CHAIN)
    wrap = (lambda name, function: function) if wrapped else None
    decoder = Decoder(world.target, hybrid, 64, rows=rows, control=Turns(hybrid.plans(), stay=3), wrap=wrap)
    results = decoder.generate_batch(asked)
    assert [one.token_ids for one in results] == expected
    assert {one.finish for one in results} == {"cache"}


def test_a_bandit_over_both_uses_both(world: World) -> None:
    """Whatever the clock says, greedy output stays, and every arm's cost is known after a while."""
    hybrid = world.hybrid(("eagle3", "n-gram"), CHAIN)
    control = BanditControl(hybrid.plans())
    decoder = Decoder(world.target, hybrid, rows=2, control=control)
    asked = [Request(prompt, 60) for prompt in PROMPTS]
    assert [one.token_ids for one in decoder.generate_batch(asked)] == plain(world.target, asked)
    assert {plan.by for plan in control.estimates()} == {"", "eagle3", "n-gram"}
    assert all(found.seconds > 0 for found in control.estimates().values())


def test_parts_that_do_not_go_together(world: World) -> None:
    for names in (["n-gram"], ["n-gram", "n-gram"], ["eagle3", "medusa"]):
        with pytest.raises(UsageError, match="make no hybrid"):
            world.hybrid(names, CHAIN)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """``t`` a target with tokenizer, ``run/drafter``, ``small`` a draft model, ``v`` a vocabulary."""
    place = tmp_path_factory.mktemp("place")
    for name, seed in (("t", 0), ("small", 4)):
        tiny_target(place / name, vocab_size=261, seed=seed)
        byte_tokenizer(place / name)
    fingerprint = load_tokenizer(place / "t").fingerprint
    meta = {"target_fingerprint": target_fingerprint(place / "t"), "tokenizer_fingerprint": fingerprint}
    drafter = tiny_drafter(HFTarget.load(place / "t"))
    save_drafter(place / "run" / "drafter", drafter, meta, config={"target": str(place / "t")})
    ids = np.arange(40, 120, 2, dtype=np.int64)
    save_subset(VocabSubset.from_ranked(ids, vocab_size=261, fingerprint=fingerprint), place / "v")
    return place


def test_a_command_line_of_hybrids(place: Path) -> None:
    drafters = [str(place / "run" / "drafter"), f"small={place / 'small'}"]
    asked = ["eagle3+n-gram", "draft-model+early-exit", "n-gram", "n-gram+early-exit"]
    methods = grid_methods(place / "t", drafters, [f"v={place / 'v'}"], proposer=asked, exit_layers=2)
    found = {method.name: method for method in methods}
    assert list(found) == ["plain", "n-gram", "n-gram+early-exit", "run", "run+v", "small", "small+v"]
    plans = {name: one.generator.proposer.plans() for name, one in found.items() if name != "plain"}
    assert {plan.by for plan in plans["run+v"]} == {"eagle3", "n-gram"}
    # Each has its own length: a chain of 5 by EAGLE-3 on a CPU, the n-gram proposer's 10.
    assert {plan.by: plan.levels for plan in plans["run"]} == {"eagle3": 5, "n-gram": 10}
    assert "EAGLE-3 + n-gram" in found["run"].description
    assert "40 tokens" in found["run+v"].description
    assert "bandit control" in found["run"].description
    assert "adaptive control" in found["n-gram"].description
    results = [one.generator.generate([72, 101] * 4, max_new_tokens=40, stop_ids=()) for one in methods]
    assert all(one.token_ids == results[0].token_ids for one in results)


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"proposer": ["n-gram+eagle9"]}, "no such proposer"),
        ({"proposer": ["n-gram+n-gram"]}, "make no hybrid"),
        ({"proposer": ["slem+n-gram"]}, "make no hybrid"),
        ({"proposer": ["n-gram+early-exit"], "control": "adaptive"}, "choice of the proposer"),
        ({"proposer": ["eagle3+n-gram"]}, "no drafter that drafts so"),
    ],
)
def test_what_makes_no_hybrid_is_refused(place: Path, asked: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        grid_methods(place / "t", **asked)


def test_a_recipe_of_a_hybrid(place: Path) -> None:
    spec = {"drafter": str(place / "run" / "drafter"), "proposer": "eagle3+n-gram", "control": "bandit"}
    recipe = DecodingRecipe.model_validate({"target": str(place / "t"), "methods": {"both": spec}})
    assert recipe.methods["both"].hybrid
    assert recipe.methods["both"].on("cpu", trained=True).control == "bandit"
    assert recipe.methods["both"].on("cuda", trained=True).control == "bandit"
