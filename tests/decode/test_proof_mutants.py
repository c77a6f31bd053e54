"""Mistakes that others have made, put into the package's source one at a time: each must be noticed.

The table names the check that kills each mutant. Without a mistake all checks pass.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import pytest

from tests.decode.markov import KINDS, MarkovTarget
from tests.decode.mutation import mistake
from tests.decode.proof_checks import TREES, FixedTree, check, targets
from tests.decode.proof_support import (
    GREEDY,
    SHAPES,
    TRANSFORMS,
    Case,
    Walker,
    exact_weights,
    next_weights,
    plain_transform,
    proposer_for,
)
from vocabforge.core.errors import VocabForgeError
from vocabforge.decode.chance import SeededChance
from vocabforge.decode.engine import Decoder
from vocabforge.decode.proposer_ngram import NgramIndex
from vocabforge.decode.proposers import ProposerParts, make_proposer
from vocabforge.decode.request import Request


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
        check(Walker(targets("plain"), FixedTree(*tree)), "plain", cases)


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
        parts = ProposerParts(target, None, None, replace(SHAPES[shape], layers=1))
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
        for tree in TREES.values():
            decoder = Decoder(target, FixedTree(*tree), chance=lambda seed, chance=chance: chance)
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


class Mutant(NamedTuple):
    module: str
    right: str
    wrong: str
    killer: Callable[[], None]


DECODE = "vocabforge.decode"  # or the module, where a snippet stands in several
DRAWS = "found = draw_children(law, len(children), draw.chance)"
MUTANTS = {
    # The mistakes of METHODS section 10, and those of the issue.
    "one uniform number for all decisions": Mutant(
        DECODE,
        "self._uniform = np.random.Generator(np.random.Philox(key=seed)).random",
        "number = np.random.Generator(np.random.Philox(key=seed)).random(); self._uniform = lambda: number",
        fresh_numbers,
    ),
    "the best tokens verified as if drawn": Mutant(
        DECODE,
        DRAWS,
        "found = law.ids[np.argsort(-law.weights, kind='stable')[: len(children)]].tolist()",
        drawn,
    ),
    "drawn, then only the best kept": Mutant(
        DECODE,
        DRAWS,
        "found = sorted(draw_children(law, len(children) + 1, draw.chance),"
        " key=lambda token: -law.weights[list(law.ids).index(token)])[: len(children)]",
        drawn,
    ),
    "drawn from a part of the law": Mutant(
        DECODE,
        DRAWS,
        "found = draw_children(DraftLaw(law.ids[1:], law.weights[1:]), len(children), draw.chance)",
        drawn,
    ),
    "<= for <": Mutant(
        DECODE, "* total < weight", "* total <= weight", the_lowest_and_the_highest_uniform_number
    ),
    "a draw that takes weights of 0": Mutant(
        DECODE, 'side="right"', 'side="left"', the_lowest_and_the_highest_uniform_number
    ),
    "the residual skipped": Mutant(DECODE + ".verify_residual", "p = rest / rest.sum()", "p = p", drawn),
    "no residual outside the law's ids": Mutant(
        DECODE + ".verify_residual", "rest = p.copy()\n", "rest = 0 * p\n", drawn_chain
    ),
    "q of another order": Mutant(
        DECODE + ".verify_residual",
        "q = law.weights / law.weights.sum()",
        "q = (law.weights / law.weights.sum())[::-1]",
        drawn,
    ),
    "q of before the draw": Mutant(DECODE + ".verify_residual", "q = _without(q, place)", "q = q", drawn),
    "drawn siblings not removed": Mutant(
        DECODE,
        "weights[place] = 0 * weights[place]",
        "weights[place] = weights[place]",
        drawn,
    ),
    "siblings not removed": Mutant(
        DECODE + ".verify_sampling", "weights[token] = 0 * weight", "weights[token] = weight", any_trees
    ),
    "the whole mass stays 1": Mutant(
        DECODE + ".verify_sampling",
        "happens(weight, weights.sum())",
        "happens(weight, 3 * weights.max())",
        any_trees,
    ),
    "EOS dropped": Mutant(
        DECODE,
        "            ids.append(token)\n",
        "            ids.extend([] if token in request.stop_ids else [token])\n",
        stops,
    ),
    "tokens after EOS": Mutant(
        DECODE,
        "            if self.finish is not None:\n                break",
        "            pass",
        stops,
    ),
    "one token too many": Mutant(
        DECODE, "elif len(ids) == self.room:", "elif len(ids) == self.room + 1:", limits
    ),
    "token 0 lost": Mutant(
        DECODE + ".proposer_ngram",
        "for token in tokens:",
        "for token in filter(None, tokens):",
        repeated_texts_are_drafted,
    ),
    "a mask without the last committed slot": Mutant(
        DECODE, "(behind < 0)[:, None] |", "(behind < -1)[:, None] |", any_trees
    ),
    "a mask that shows siblings": Mutant(
        DECODE, "(inside & ((behind", "((inside | ~inside) & ((behind", any_trees
    ),
    "positions by slot": Mutant(
        DECODE,
        "self.committed[:, None] + depths,\n                cache",
        "slots,\n                cache",
        any_trees,
    ),
    "compaction from the slot before": Mutant(
        DECODE,
        "self.committed[:, None] + path, self",
        "self.committed[:, None] + path - 1, self",
        any_trees,
    ),
    "no compaction": Mutant(DECODE, "if not tree.chain:", "if False:", several_cycles),
    "compaction one slot late": Mutant(
        DECODE,
        "self.committed[:, None] + self._slots[: path.shape[1]]",
        "self.committed[:, None] + self._slots[1 : path.shape[1] + 1]",
        several_cycles,
    ),
    "rows that move each other's slots": Mutant(
        "vocabforge.models.kv_cache",
        "cache[:, self.rows, :, destination] = cache[:, self.rows, :, source]",
        "cache[:, self.rows, :, destination] = cache[:, self.rows.flip(0), :, source]",
        several_cycles,
    ),
    "an early exit that overwrites the root": Mutant(
        DECODE,
        "slots = (self.committed[:, None] + 1) + self.slots[used",
        "slots = self.committed[:, None] + self.slots[used",
        early_exit_is_right,
    ),
    "one slot too few committed": Mutant(
        DECODE,
        "self.committed = self.committed + counts",
        "self.committed = self.committed + counts - 1",
        any_trees,
    ),
    "dead nodes alive": Mutant(DECODE, "if alive is None or alive[node]:", "if True:", dead_nodes),
    "dead nodes alive, greedily": Mutant(
        DECODE + ".verify", "agrees &= tree.alive", "agrees &= True", dead_nodes
    ),
    "greedy penalties without the path": Mutant(
        DECODE + ".verify", "row.history, path_tokens)", "row.history, [])", greedy_trees
    ),
    "penalties without the path": Mutant(
        DECODE + ".verify_sampling", "row.history, path_tokens)", "row.history, [])", any_trees
    ),
    "drawn, penalties without the path": Mutant(
        DECODE + ".verify_residual", "row.history, path_tokens)", "row.history, [])", drawn_with_penalties
    ),
    "penalties without the output": Mutant(
        DECODE, "one.judge.history.add(verdicts.tokens[row])", "pass", any_trees
    ),
    "penalties without the first token": Mutant(DECODE, "history.add([first])", "pass", any_trees),
    "top-p without the token that reaches it": Mutant(
        DECODE, "sampling.top_p * mass[-1])) + 1]", "sampling.top_p * mass[-1]))]", transform
    ),
    "top-k that keeps one more": Mutant(DECODE, 'kind="stable")][:k]', 'kind="stable")][:k + 1]', transform),
    "a repetition penalty that favours": Mutant(
        DECODE,
        "touched > 0, touched / factor, touched * factor",
        "touched > 0, touched * factor, touched / factor",
        transform,
    ),
    "a frequency penalty once": Mutant(
        DECODE, "often.astype(np.float32)", "(often > 0).astype(np.float32)", transform
    ),
}
# A wrong law or figure; or the package itself, or torch, refuses what the mistake leads to.
NOTICED = (AssertionError, LookupError, ValueError, RuntimeError, VocabForgeError)
CHECKS = sorted({mutant.killer for mutant in MUTANTS.values()}, key=lambda check: check.__name__)


@pytest.fixture(autouse=True)
def _exact(monkeypatch: pytest.MonkeyPatch) -> None:
    exact_weights(monkeypatch)


@pytest.mark.parametrize("killer", CHECKS, ids=lambda check: check.__name__)
def test_without_a_mistake_all_checks_pass(killer: Callable[[], None]) -> None:
    killer()


@pytest.mark.parametrize("name", MUTANTS)
def test_every_mistake_is_noticed(name: str) -> None:
    mutant = MUTANTS[name]
    with (
        mistake(mutant.module, mutant.right, mutant.wrong),
        pytest.raises(NOTICED),
    ):
        mutant.killer()
