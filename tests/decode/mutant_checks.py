"""Small checks of laws, texts and random numbers, each a second or less, that mutants are tried on."""

from __future__ import annotations

import itertools

import pytest

from tests.decode.markov import KINDS, MarkovTarget
from tests.decode.plain_transform import plain_transform
from tests.decode.proof_checks import SAMPLERS, TREES, FixedTree, check, targets
from tests.decode.proof_support import GREEDY, SHAPES, TRANSFORMS, Case, Walker, next_weights, proposer_for
from vocabforge.decode.engine import Decoder
from vocabforge.decode.proposers.ngram import NgramIndex
from vocabforge.decode.proposers.registry import ProposerParts, make_proposer
from vocabforge.decode.request import Request
from vocabforge.decode.sampling import SeededChance


def drawn() -> None:
    """Siblings drawn from an EAGLE-3 drafter, verified with their law."""
    proposer = proposer_for("eagle3", targets("plain"), None, "siblings", sample=True)
    check(Walker(targets("plain"), proposer, "residual"), "plain", [Case(TRANSFORMS["plain"], length=2)])


def drawn_chain() -> None:
    proposer = proposer_for("draft-model", targets("plain"), None, "chain", sample=True)
    check(Walker(targets("plain"), proposer, "residual"), "plain", [Case(TRANSFORMS["plain"], length=2)])


def drawn_with_penalties() -> None:
    proposer = proposer_for("draft-model", targets("plain"), None, "chain", sample=True)
    check(Walker(targets("plain"), proposer, "residual"), "plain", [Case(TRANSFORMS["frequency"])])


def any_trees() -> None:
    """Given trees, verified as point masses and greedily, with and without penalties."""
    cases = [Case(TRANSFORMS["temperature"]), Case(TRANSFORMS["all"])]
    for tree in TREES.values():
        for verifier in ("match", "point"):
            check(Walker(targets("plain"), FixedTree(*tree), verifier), "plain", cases)


def several_cycles() -> None:
    """Five tokens: what was accepted is read again."""
    for name in ("duplicates", "out of level order"):
        walker = Walker(targets("zeros"), FixedTree(*TREES[name]))
        check(walker, "zeros", [Case(TRANSFORMS["temperature"], length=5)])


def dead_nodes() -> None:
    """Padding is never accepted, not even where it happens to be right."""
    for sampling in (TRANSFORMS["plain"], GREEDY["greedy"], GREEDY["greedy, presence"]):
        walker = Walker(targets("zeros"), FixedTree((0, 0, 1, 2), (0, 0, 0, 0), (1, 2, 3)))
        check(walker, "zeros", [Case(sampling)])
        assert {length for result in walker.results for length in result.accept_lengths} == {1}


def greedy_trees() -> None:
    for kind in KINDS:
        for tree in TREES.values():
            walker = Walker(targets(kind), FixedTree(*tree))
            check(walker, kind, [Case(sampling, length=6) for sampling in GREEDY.values()])


def stops() -> None:
    for stop_ids in ((0,), (1,), (2,)):
        walker = Walker(targets("zeros"), FixedTree((0, 0, 1, 2, 0, 1), (0, 0, 0, 0, 1, 2)))
        check(walker, "zeros", [Case(TRANSFORMS["plain"], length=3, stop_ids=stop_ids)])


def limits() -> None:
    for length in (1, 2, 3):
        walker = Walker(targets("zeros"), FixedTree((0, 0, 1, 2, 0, 1), (0, 0, 0, 0, 1, 2)))
        check(walker, "zeros", [Case(TRANSFORMS["plain"], length=length)])


def early_exit_is_right() -> None:
    """All layers as the early exit: every draft is accepted."""
    target = MarkovTarget("plain", 3, 1, layers=1)
    for shape in ("chain", "static", "dynamic"):
        parts = ProposerParts(target, None, None, SHAPES[shape].model_copy(update={"exit_layers": 1}))
        walker = Walker(target, make_proposer("early-exit", parts))
        walker.laws([Case(GREEDY["greedy"], length=6)])
        assert {length for result in walker.results for length in result.accept_lengths} == {3}


def transform() -> None:
    """The package's transform against the one in plain Python."""
    target = MarkovTarget("ties", 5, 3, layers=1)
    for sampling in (*TRANSFORMS.values(), *GREEDY.values()):
        for output in [(a, b) for a in range(5) for b in range(5)]:
            case = Case(sampling)
            ours = next_weights(target, case, output)
            logits = target.reference([*case.prompt, *output]).tolist()
            plain = plain_transform(logits, sampling, case.prompt, output)
            for found, expected in zip(ours, plain):
                assert float(found / sum(ours)) == pytest.approx(expected / sum(plain), abs=1e-6)


def the_lowest_and_the_highest_uniform_number() -> None:
    """A number of exactly 0 accepts nothing impossible; one just below 1 draws nothing impossible."""
    target = targets("zeros")
    for uniform in (0.0, 1 - 2**-53):
        chance = SeededChance(0)
        chance._uniform = lambda uniform=uniform: uniform
        for tree, verifier in itertools.product(TREES.values(), SAMPLERS):
            decoder = Decoder(
                target, FixedTree(*tree), verifier=verifier, chance=lambda seed, chance=chance: chance
            )
            text = [1, 0, 2, 1, 0]
            for token in decoder.generate_batch([Request(text, 20, (), TRANSFORMS["plain"])])[0].token_ids:
                assert target.reference(text)[token] > -1e9, "an impossible token"
                text = [*text, token]


def fresh_numbers() -> None:
    """Decisions of one request are independent: pairs of them fill the square."""
    chance = SeededChance(5)
    pairs = [(chance.happens(0.5, 1.0), chance.happens(0.5, 1.0)) for _ in range(400)]
    for pair in ((False, False), (False, True), (True, False), (True, True)):
        assert 60 < pairs.count(pair) < 140


def repeated_texts_are_drafted() -> None:
    """N-gram drafts are what followed before, token id 0 as any other."""
    for text in ([0, 0, 0, 0, 0], [0, 1, 0, 1, 0], [2, 0, 0, 2, 0], [1, 2, 0, 1, 2]):
        index = NgramIndex(1, 2)
        index.add(text)
        period = next(n for n in range(1, 4) if text[n:] == text[:-n])
        longest = next(index.matches(), None)
        assert longest is not None
        assert index.continuation(longest, 4) == [text[(len(text) + i) % period] for i in range(4)]
