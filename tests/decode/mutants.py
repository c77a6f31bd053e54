"""Mistakes that others have made, put into the package's source one at a time, and the check that notices each."""

from __future__ import annotations

import importlib
import inspect
import itertools
import pkgutil
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from types import CodeType, FunctionType, ModuleType
from typing import Any, NamedTuple

import pytest

from tests.decode.markov import KINDS, MarkovTarget
from tests.decode.probability import plain_transform
from tests.decode.proofs import (
    GREEDY,
    SAMPLERS,
    SHAPES,
    TRANSFORMS,
    TREES,
    Case,
    FixedTree,
    Walker,
    check,
    next_weights,
    proposer_for,
    reference_distribution,
    targets,
)
from vocabforge.decode.build.spec import MethodSpec
from vocabforge.decode.engine import Decoder
from vocabforge.decode.proposers.ngram import NgramIndex
from vocabforge.decode.proposers.registry import ProposerParts, make_proposer
from vocabforge.decode.request import Request
from vocabforge.decode.sampling import SeededChance


def find_module(right: str, package: str = "vocabforge.decode") -> str:
    """The one module of a package, or that module itself, in whose source ``right`` stands, exactly once."""
    found = importlib.import_module(package)
    names = [package]
    if hasattr(found, "__path__"):
        names = [info.name for info in pkgutil.walk_packages(found.__path__, f"{package}.")]
    counts = {name: inspect.getsource(importlib.import_module(name)).count(right) for name in names}
    places = {name: count for name, count in counts.items() if count}
    assert list(places.values()) == [1], f"{right!r} should stand once in {package}, and stands in {places}"
    return next(iter(places))


@contextmanager
def mistake(module_name: str, right: str, wrong: str) -> Iterator[None]:
    """Replace one snippet in the source of a module, or of the one module of a package that has it.

    The functions keep their identity and take the code of the changed source, so whoever imported them meets it.
    """
    module = importlib.import_module(find_module(right, module_name))
    source = inspect.getsource(module)
    changed = ModuleType(module.__name__)
    changed.__dict__.update({"__package__": module.__package__, "__file__": module.__file__})
    code = compile(source.replace(right, wrong), str(module.__file__), "exec", dont_inherit=True)
    exec(code, changed.__dict__)
    theirs = dict(_functions(changed))
    swapped: list[tuple[FunctionType, CodeType, CodeType]] = [
        (function, function.__code__, theirs[name].__code__)
        for name, function in _functions(module)
        if theirs[name].__code__ != function.__code__
    ]
    assert swapped, "the mistake changes no function"
    try:
        for function, _, new in swapped:
            function.__code__ = new
        yield
    finally:
        for function, old, _ in swapped:
            function.__code__ = old


def _functions(module: ModuleType) -> Iterator[tuple[str, FunctionType]]:
    """Functions and methods that a module defines, with their qualified names."""
    for found in list(vars(module).values()):
        if isinstance(found, type) and found.__module__ == module.__name__:
            for member in vars(found).values():
                yield from _unwrapped(member, module)
        else:
            yield from _unwrapped(found, module)


def _unwrapped(member: Any, module: ModuleType) -> Iterator[tuple[str, FunctionType]]:
    if isinstance(member, (staticmethod, classmethod)):
        member = member.__func__
    if isinstance(member, property):
        member = member.fget
    member = inspect.unwrap(member) if callable(member) else member
    if isinstance(member, FunctionType) and member.__code__.co_filename == module.__file__:
        yield member.__qualname__, member


def drawn() -> None:
    """Siblings drawn from an EAGLE-3 drafter, verified with their distribution."""
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
        assert {length for result in walker.results for length in result.verified_lengths} == {1}


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
        walker.distributions([Case(GREEDY["greedy"], length=6)])
        assert {length for result in walker.results for length in result.verified_lengths} == {3}


def first_layers_of_drafting() -> None:
    """Verification takes what an early exit's drafting computed: states that notice wrong keys, masks, positions."""
    sizes = {"chain": {}, "static": {"topk": 3, "total_nodes": 12}, "dynamic": {"topk": 3, "total_nodes": 12}}
    for (tree, size), seed in itertools.product(sizes.items(), (1, 2)):
        target = MarkovTarget("plain", 3, seed, layers=3)
        options = MethodSpec(tree=tree, depth=2, exit_layers=2, **size)
        walker = Walker(target, make_proposer("early-exit", ProposerParts(target, None, None, options)))
        cases = [Case(GREEDY["greedy"], length=12), Case(TRANSFORMS["temperature"])]
        assert walker.distributions(cases) == [reference_distribution(target, case) for case in cases]


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


class Mutant(NamedTuple):
    change: Callable[[], AbstractContextManager[None]]
    killer: Callable[[], None]


def source(module: str, right: str, wrong: str, killer: Callable[[], None]) -> Mutant:
    """Another snippet in the source of a module, or of the one module of a package that has it."""
    return Mutant(lambda: mistake(module, right, wrong), killer)


EXITS = "vocabforge.decode.exit_states"
DECODE = "vocabforge.decode"  # or the module, where a snippet stands in several
DRAWS = "found = draw_children(distribution, len(children), draw.chance)"
MUTANTS = {
    # The mistakes of METHODS section 10, and those of the issue.
    "one uniform number for all decisions": source(
        DECODE,
        "self._uniform = np.random.Generator(np.random.Philox(key=seed)).random",
        "number = np.random.Generator(np.random.Philox(key=seed)).random(); self._uniform = lambda: number",
        fresh_numbers,
    ),
    "the best tokens verified as if drawn": source(
        DECODE,
        DRAWS,
        "found = distribution.ids[np.argsort(-distribution.weights, kind='stable')[: len(children)]].tolist()",
        drawn,
    ),
    "drawn, then only the best kept": source(
        DECODE,
        DRAWS,
        "found = sorted(draw_children(distribution, len(children) + 1, draw.chance),"
        " key=lambda token: -distribution.weights[list(distribution.ids).index(token)])[: len(children)]",
        drawn,
    ),
    "drawn from a part of the distribution": source(
        DECODE,
        DRAWS,
        "found = draw_children(DraftDistribution(distribution.ids[1:], distribution.weights[1:]), "
        "len(children), draw.chance)",
        drawn,
    ),
    "<= for <": source(
        DECODE, "* total < weight", "* total <= weight", the_lowest_and_the_highest_uniform_number
    ),
    "a draw that takes weights of 0": source(
        DECODE, 'side="right"', 'side="left"', the_lowest_and_the_highest_uniform_number
    ),
    "the residual skipped": source(DECODE + ".verify.residual", "p = rest / rest.sum()", "p = p", drawn),
    "no residual outside the distribution's ids": source(
        DECODE + ".verify.residual", "rest = p.copy()\n", "rest = 0 * p\n", drawn_chain
    ),
    "q of another order": source(
        DECODE + ".verify.residual",
        "q = distribution.weights / distribution.weights.sum()",
        "q = (distribution.weights / distribution.weights.sum())[::-1]",
        drawn,
    ),
    "q of before the draw": source(DECODE + ".verify.residual", "q = _without(q, place)", "q = q", drawn),
    "drawn siblings not removed": source(
        DECODE,
        "weights[place] = 0 * weights[place]",
        "weights[place] = weights[place]",
        drawn,
    ),
    "siblings not removed": source(
        DECODE + ".verify.point", "weights[token] = 0 * weight", "weights[token] = weight", any_trees
    ),
    "the whole mass stays 1": source(
        DECODE + ".verify.point",
        "happens(weight, weights.sum())",
        "happens(weight, 3 * weights.max())",
        any_trees,
    ),
    "drawn in one order, tried in another": source(
        DECODE, DRAWS, DRAWS.replace(" = ", " = list(reversed(") + "))", drawn
    ),
    "the residual is the target's distribution": source(
        DECODE + ".verify.residual", "rest = _residual(p, q, distribution)", "rest = p", drawn
    ),
    "the rejected distribution taken out altogether": source(
        DECODE + ".verify.residual", "np.maximum(p[distribution.ids] - q, 0 * q)", "0 * q", drawn
    ),
    "q not renormalised": source(
        DECODE + ".verify.residual", "return rest / rest.sum() if rest.any() else rest", "return rest", drawn
    ),
    "accepted with min(p, q) of p + q": source(
        DECODE + ".verify.residual", "happens(min(p, q), q)", "happens(min(p, q), q + p)", drawn
    ),
    "accepted whatever q is": source(
        DECODE + ".verify.residual", "happens(min(p, q), q)", "happens(p, p + 1)", drawn
    ),
    "p of another total": source(
        DECODE + ".verify.residual",
        "p = weights / weights.sum()",
        "p = weights / weights.max() / len(weights)",
        drawn,
    ),
    "a rejected sibling that stays": source(
        DECODE + ".verify.point",
        "weights[token] = 0 * weight  # a fraction stays a fraction",
        "return False",
        any_trees,
    ),
    "no renormalisation after a rejection": source(
        DECODE + ".verify.point",
        "happens(weight, weights.sum())",
        "happens(weight, 1 + 0 * weight)",
        any_trees,
    ),
    "accepted half as often": source(
        DECODE + ".verify.point",
        "happens(weight, weights.sum())",
        "happens(weight / 2, weights.sum())",
        any_trees,
    ),
    "penalties count the root twice": source(
        DECODE + ".verify.point",
        "row.history, path_tokens)",
        "row.history, [row.tokens[0], *path_tokens])",
        any_trees,
    ),
    "EOS dropped": source(
        DECODE,
        "            ids.append(token)\n",
        "            ids.extend([] if token in request.stop_ids else [token])\n",
        stops,
    ),
    "tokens after EOS": source(
        DECODE,
        "            if self.finish is not None:\n                break",
        "            pass",
        stops,
    ),
    "one token too many": source(
        DECODE, "elif len(ids) == self.room:", "elif len(ids) == self.room + 1:", limits
    ),
    "token 0 lost": source(
        DECODE + ".proposers.ngram",
        "for token in tokens:",
        "for token in filter(None, tokens):",
        repeated_texts_are_drafted,
    ),
    "a mask without the last committed slot": source(
        DECODE, "(behind < 0)[:, None] |", "(behind < -1)[:, None] |", any_trees
    ),
    "a mask that shows siblings": source(
        DECODE, "(inside & ((behind", "((inside | ~inside) & ((behind", any_trees
    ),
    "positions by slot": source(
        DECODE,
        "positions = slots if tree.chain else self.committed[:, None] + tree.depths",
        "positions = slots",
        any_trees,
    ),
    "compaction from the slot before": source(
        DECODE,
        "self.committed[:, None] + path, self",
        "self.committed[:, None] + path - 1, self",
        any_trees,
    ),
    "no compaction": source(DECODE, "if not tree.chain:", "if False:", several_cycles),
    "compaction one slot late": source(
        DECODE,
        "self.committed[:, None] + self._slots[: path.shape[1]]",
        "self.committed[:, None] + self._slots[1 : path.shape[1] + 1]",
        several_cycles,
    ),
    "rows that move each other's slots": source(
        "vocabforge.models.kv_cache",
        "cache[:, self.rows, :, destination] = cache[:, self.rows, :, source]",
        "cache[:, self.rows, :, destination] = cache[:, self.rows.flip(0), :, source]",
        several_cycles,
    ),
    "an early exit that overwrites the root": source(
        DECODE,
        "slots = (self.committed[:, None] + 1) + self.slots[used",
        "slots = self.committed[:, None] + self.slots[used",
        early_exit_is_right,
    ),
    "a leaf without the first layers": source(EXITS, "if not most:", "if True:", first_layers_of_drafting),
    "drafted keys where drafting left them": source(
        EXITS, "nodes.slots, root + places)", "nodes.slots, nodes.slots)", first_layers_of_drafting
    ),
    "drafted states in drafting's order": source(
        EXITS,
        "self.states.gather(1, places.",
        "self.states.gather(1, places.sort(1)[0].",
        first_layers_of_drafting,
    ),
    "a drafted state by its token alone": source(
        EXITS, "found = same & (places", "found = same | (places", first_layers_of_drafting
    ),
    "the exit layer twice": source(
        EXITS, "above = range(self.layers,", "above = range(self.layers - 1,", first_layers_of_drafting
    ),
    "one slot too few committed": source(
        DECODE + ".target_side",
        "self.committed.add_(counts)",
        "self.committed.add_(counts - 1)",
        any_trees,
    ),
    "dead nodes alive": source(DECODE, "if alive is None or alive[node]:", "if True:", dead_nodes),
    "dead nodes alive, greedily": source(
        "vocabforge.ops.tree_verify", "agrees = agrees & alive", "agrees = agrees & True", dead_nodes
    ),
    "greedy penalties without the path": source(
        DECODE + ".verify.match", "row.history, path_tokens)", "row.history, [])", greedy_trees
    ),
    "matched, penalties without the path": source(
        DECODE + ".verify.match", "row.history, path_tokens)", "row.history, [])", any_trees
    ),
    "any child a match": source(
        DECODE + ".verify.match", "if row.tokens[child] == token", "if True", any_trees
    ),
    "penalties without the path": source(
        DECODE + ".verify.point", "row.history, path_tokens)", "row.history, [])", any_trees
    ),
    "drawn, penalties without the path": source(
        DECODE + ".verify.residual", "row.history, path_tokens)", "row.history, [])", drawn_with_penalties
    ),
    "penalties without the output": source(
        DECODE, "one.judge.history.add(verdicts.tokens[row])", "pass", any_trees
    ),
    "penalties without the first token": source(DECODE, "history.add([first])", "pass", any_trees),
    "top-p without the token that reaches it": source(
        DECODE, "sampling.top_p * mass[-1])) + 1]", "sampling.top_p * mass[-1]))]", transform
    ),
    "top-k that keeps one more": source(DECODE, 'kind="stable")][:k]', 'kind="stable")][:k + 1]', transform),
    "a repetition penalty that favours": source(
        DECODE,
        "touched > 0, touched / factor, touched * factor",
        "touched > 0, touched * factor, touched / factor",
        transform,
    ),
    "a frequency penalty once": source(
        DECODE, "often.astype(np.float32)", "(often > 0).astype(np.float32)", transform
    ),
}
