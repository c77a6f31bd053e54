"""Every random decision of every proposer x head x verifier x transform is walked: total variation exactly 0.

Weights are the real float weights as fractions, so distributions are compared with ``==``; the engine, its caches, its
rows and all verifiers are the real ones. What is added to the tables PROPOSERS, HEADS and VERIFIERS is covered by
itself, but for proposers over a bridge, which ``test_proof_foreign.py`` proves.
"""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from tests.decode.markov import KINDS, MarkovTarget
from tests.decode.proofs import (
    CASES,
    GREEDY,
    HEADLESS,
    HYBRIDS,
    OWN,
    PAIRS,
    SAMPLERS,
    SHAPES,
    TRANSFORMS,
    TREES,
    Case,
    FixedTree,
    Following,
    Switching,
    Walker,
    check,
    check_independent,
    check_transform,
    exact_weights,
    proposer_for,
    reference_distribution,
    targets,
)
from tests.shares import by_default
from vocabforge.decode.interface import Plan
from vocabforge.decode.proposers.registry import ProposerParts, make_proposer
from vocabforge.models.heads.registry import HEADS


@pytest.fixture(autouse=True)
def _exact(monkeypatch: pytest.MonkeyPatch) -> None:
    exact_weights(monkeypatch)


SOME = ("plain", "temperature", "top-p", "all")


# Two heads for each proposer, and every head.
DRAFTING = [name for name in OWN if name not in HEADLESS]
KINDS_OF_HEADS = list(HEADS)
SOME_PAIRS = [
    (DRAFTING[at % len(DRAFTING)], KINDS_OF_HEADS[(at + more) % len(HEADS)])
    for at in range(max(len(DRAFTING), len(HEADS)))
    for more in (0, 1)
]


@pytest.mark.parametrize("whole", [False, pytest.param(True, marks=pytest.mark.proof)])
@pytest.mark.parametrize(
    ("name", "head"), by_default(PAIRS, lambda pair: pair[0] in HEADLESS or pair in SOME_PAIRS)
)
def test_every_proposer_head_verifier_and_transform(name: str, head: str | None, whole: bool) -> None:
    """Trees of best children, three tokens; siblings drawn at random, two tokens, as draws have many outcomes."""
    proposer = proposer_for(name, targets("zeros"), head, "static")
    walker = Walker(targets("zeros"), proposer, "point")
    check(walker, "zeros", CASES)
    assert walker.accepted > 0, "the test needs accepted drafts"
    if name in HEADLESS:
        return
    for verifier in SAMPLERS:
        proposer = proposer_for(name, targets("zeros"), head, "siblings", sample=True)
        walker = Walker(targets("zeros"), proposer, verifier)
        some = (
            CASES
            if whole and verifier == "residual"
            else [Case(TRANSFORMS[one]) for one in (SOME if whole else SOME[::3])]
        )
        check(walker, "zeros", [replace(case, length=2) for case in some])
        assert walker.accepted > 0


@pytest.mark.proof
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("name", "head"), PAIRS)
def test_every_proposer_head_and_table(name: str, head: str | None, kind: str) -> None:
    """The long version: every table, all transforms, dynamic trees, three tokens behind drawn siblings."""
    for shape in ("static", "dynamic"):
        check(Walker(targets(kind), proposer_for(name, targets(kind), head, shape)), kind, CASES)
    for verifier in SAMPLERS if name not in HEADLESS else ():
        proposer = proposer_for(name, targets(kind), head, "siblings", sample=True)
        walker = Walker(targets(kind), proposer, verifier, rows=48)
        check(walker, kind, [replace(case, length=2) for case in CASES])
        check(walker, kind, [Case(TRANSFORMS["all"])])


@pytest.mark.parametrize(
    ("name", "kind"),
    by_default(
        itertools.product(OWN, KINDS),
        lambda case: (
            case[1] in ("hidden", "ties")
            and (case[0] == "eagle3" or (case[1] == "ties") == bool(OWN.index(case[0]) % 2))
        ),
    ),
)
def test_every_table_and_shape(name: str, kind: str) -> None:
    """Ties, zeros, near certainty, and a static head without the argmax; chains and dynamic trees."""
    head = "static" if kind == "hidden" and name not in HEADLESS else None
    for shape, transforms in (("chain", ["all"]), ("dynamic", ["all", "top-k"])):
        walker = Walker(targets(kind), proposer_for(name, targets(kind), head, shape))
        check(walker, kind, [Case(TRANSFORMS[one]) for one in transforms])
    if name not in HEADLESS:
        walker = Walker(targets(kind), proposer_for(name, targets(kind), head, "siblings", sample=True))
        check(walker, kind, [Case(TRANSFORMS["plain"], length=2)])


@pytest.mark.parametrize(
    ("name", "verifier"),
    by_default(
        itertools.product(DRAFTING, SAMPLERS),
        lambda case: case[0] == "eagle3" or case[1] == SAMPLERS[DRAFTING.index(case[0]) % len(SAMPLERS)],
    ),
)
def test_drawn_chains(name: str, verifier: str) -> None:
    """Two levels drawn one below the other."""
    walker = Walker(
        targets("zeros"), proposer_for(name, targets("zeros"), None, "chain", sample=True), verifier
    )
    many = "plain" if verifier == "residual" else "top-k"
    check(walker, "zeros", [Case(TRANSFORMS["all"]), Case(TRANSFORMS[many])])
    assert max(length for result in walker.results for length in result.verified_lengths) == 3


@pytest.mark.parametrize("name", OWN)
def test_several_cycles(name: str) -> None:
    """Five tokens: what was accepted and compacted is read again, by target and drafter."""
    walker = Walker(targets("zeros"), proposer_for(name, targets("zeros"), None, "static"))
    check(walker, "zeros", [Case(TRANSFORMS[one], length=5) for one in ("temperature", "all")])
    assert any(result.verified_lengths[0] > 1 < len(result.verified_lengths) for result in walker.results)


@pytest.mark.parametrize("name", OWN)
def test_stops_and_limits_inside_drafts(name: str) -> None:
    """A stop token is kept, nothing follows it, and a cut output has the distribution of a shorter request."""
    for sample in [False] if name in HEADLESS else [False, True]:
        settings = [TRANSFORMS["plain"]] if sample else [TRANSFORMS["plain"], TRANSFORMS["all"]]
        cases = [
            Case(sampling, length=length, stop_ids=stop_ids)
            for sampling in settings
            for length, stop_ids in ((1, ()), (2, ()), (2, (0,)), (3 if sample else 4, (1, 2)))
        ]
        proposer = proposer_for(name, targets("zeros"), None, "chain", sample=sample)
        walker = Walker(targets("zeros"), proposer)
        check(walker, "zeros", cases)
        assert {result.finish for result in walker.results} == {"stop", "length"}
        cut = [r for r in walker.results if sum(r.accept_lengths) < sum(r.verified_lengths)]
        assert cut, "the test needs drafts beyond a stop or a limit"


@pytest.mark.parametrize("sample", [False, True])
@pytest.mark.parametrize("name", ["draft-model", "eagle3", "medusa"])
def test_rows_are_independent(name: str, sample: bool) -> None:
    target = targets("zeros")
    proposer = proposer_for(name, target, None, "siblings" if sample else "static", sample=sample)
    cases = [
        Case(TRANSFORMS["temperature"], (1, 0, 2, 1, 0), 2 if sample else 3),
        Case(TRANSFORMS["all"], (2, 2), 2),
    ]
    check_independent(target, proposer, cases)


@pytest.mark.parametrize(
    ("name", "sample"),
    [(name, sample) for name in OWN for sample in (False, True) if not (sample and name in HEADLESS)],
)
def test_plans_that_change_change_no_distribution(name: str, sample: bool) -> None:
    target = targets("zeros")
    proposer = proposer_for(name, target, None, "siblings" if sample else "static", sample=sample)
    walker = Walker(target, proposer, rows=64, control=Switching([Plan(1, 2), *proposer.plans()]))
    # All ways of a wave are in the same cycle, as there are rows enough for them.
    check(walker, "zeros", [Case(TRANSFORMS["temperature"], length=3 if sample else 4)])
    assert walker.accepted > 0


@pytest.mark.parametrize("sample", [False, True])
@pytest.mark.parametrize("name", by_default(HYBRIDS, (HYBRIDS[0], HYBRIDS[-1]).__contains__))
def test_hybrids_change_no_distribution(name: str, sample: bool) -> None:
    """Whichever proposer drafts each cycle: another one every time, or what the past says."""
    target = targets("zeros")
    shape = "siblings" if sample else "static"
    proposer = proposer_for(name, target, None, shape, sample=sample)
    assert {plan.by for plan in proposer.plans()} == set(name.split("+"))
    for control in (Switching, Following):
        walker = Walker(target, proposer, rows=1, control=control(proposer.plans()))
        check(walker, "zeros", [Case(TRANSFORMS["temperature"], length=4 - sample)])
        check(walker, "zeros", [Case(sampling, length=8) for sampling in GREEDY.values()])
        assert walker.accepted > 0


@pytest.mark.parametrize("kind", by_default(KINDS, lambda kind: kind in ("zeros", "ties")))
@pytest.mark.parametrize("shape", TREES)
def test_any_tree_at_all(shape: str, kind: str) -> None:
    target = targets(kind)
    for verifier in SAMPLERS:
        walker = Walker(target, FixedTree(*TREES[shape]), verifier)
        check(walker, kind, [Case(TRANSFORMS["temperature"]), Case(TRANSFORMS["all"]), *CASES[-5:]])


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", ["draft-model", "early-exit"])
def test_a_drafter_that_is_the_target_is_always_right(name: str, shape: str) -> None:
    """p = q: every first draw is accepted, so a drafter's own cache is right as well."""
    target = MarkovTarget("plain", 3, 1, layers=1)
    options = SHAPES[shape].model_copy(update={"exit_layers": 1 if name == "early-exit" else None})
    for sample in [False] if shape == "dynamic" else [False, True]:
        drafter = MarkovTarget("plain", 3, 1, layers=1) if name == "draft-model" else None
        parts = ProposerParts(target, drafter, None, options.model_copy(update={"draft_sampling": sample}))
        walker = Walker(target, make_proposer(name, parts))
        cases = [Case(TRANSFORMS["temperature"] if sample else GREEDY["greedy"], length=6 - 3 * sample)]
        assert walker.distributions(cases) == [reference_distribution(target, case) for case in cases]
        levels = walker.decoder.levels
        assert all(set(result.verified_lengths) == {levels + 1} for result in walker.results)


@pytest.mark.parametrize("name", [*TRANSFORMS, *GREEDY])
def test_the_transform_is_what_its_settings_say(name: str) -> None:
    """Against a second one in plain Python, on every context of up to three tokens."""
    for kind, vocab in itertools.product(KINDS, (3, 5)):
        for length in range(3):
            for output in itertools.product(range(vocab), repeat=length):
                check_transform(targets(kind, vocab, 1), Case({**TRANSFORMS, **GREEDY}[name]), output)


def test_a_markov_target_notices_what_a_pass_sees() -> None:
    """Its own distribution in plain passes, another one behind a wrong mask, slot or position."""
    target, text = targets("plain"), [1, 0, 2, 2, 1, 0]
    slots = torch.arange(len(text))

    def last(mask: Tensor, positions: Tensor = slots, order: Tensor = slots) -> Tensor:
        output = target.forward(
            torch.tensor([text]), positions[None], cache=target.new_cache(8), slots=order, mask=mask
        )
        return target.logits(output.hidden[0, -1])

    mask = torch.ones(6, 6).tril().bool()
    broken = torch.tensor([40.0, -torch.inf, -torch.inf])
    assert torch.equal(last(mask), target.reference(text).to(torch.float64))
    order = torch.tensor([3, 1, 5, 0, 2, 4])
    assert torch.equal(last(mask[:, order.argsort()], order=order), last(mask))
    assert torch.equal(last(mask, order=order), broken.double())
    for i, j in ((5, 0), (5, 5), (3, 1)):
        hole = mask.clone()
        hole[i, j] = False
        assert torch.equal(last(hole), broken.double()), "whoever reads a broken state is broken"
    assert torch.equal(last(mask, positions=slots + 1), broken.double())
