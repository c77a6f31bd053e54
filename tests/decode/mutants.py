"""Mistakes that others have made, put into the package's source one at a time, and the check that notices each."""

from __future__ import annotations

import importlib
import inspect
import itertools
import pkgutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from types import CodeType, FunctionType, ModuleType
from typing import Any, NamedTuple

from tests.decode.markov import KINDS, MarkovTarget
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
    check_transform,
    proposer_for,
    reference_distribution,
    targets,
)
from vocabforge.decode.engine import Decoder
from vocabforge.decode.proposers.ngram import NgramIndex
from vocabforge.decode.proposers.registry import ProposerParts, make_proposer
from vocabforge.decode.request import Request
from vocabforge.decode.sampling import SeededChance
from vocabforge.decode.spec import MethodSpec


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
        for output in itertools.product(range(5), repeat=2):
            check_transform(target, Case(sampling), output)


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


def mutants_of(
    mistakes: Mapping[tuple[str, Callable[[], None]], Mapping[str, tuple[str, str]]], package: str = ""
) -> dict[str, Mutant]:
    return {
        name: Mutant(partial(mistake, package + module, *snippets), killer)
        for (module, killer), rows in mistakes.items()
        for name, snippets in rows.items()
    }


EXITS = "vocabforge.decode.exit_states"
DECODE = "vocabforge.decode"  # or the module, where a snippet stands in several
MATCH, POINT, RESIDUAL = (f"{DECODE}.verify.{name}" for name in ("match", "point", "residual"))
DRAWS = "tokens = draw_children(distribution, len(children), draw.chance)"
# Module (or package) whose source changes, and the check that notices the change: name -> right and wrong snippet.
MISTAKES: dict[tuple[str, Callable[[], None]], dict[str, tuple[str, str]]] = {
    (DECODE, fresh_numbers): {
        "one uniform number for all decisions": (
            "self._uniform = np.random.Generator(np.random.Philox(key=seed)).random",
            "number = np.random.Generator(np.random.Philox(key=seed)).random(); self._uniform = lambda: number",
        )
    },
    (DECODE, drawn): {
        "the best tokens verified as if drawn": (
            DRAWS,
            "tokens = distribution.ids[np.argsort(-distribution.weights, kind='stable')[: len(children)]].tolist()",
        ),
        "drawn, then only the best kept": (
            DRAWS,
            "tokens = sorted(draw_children(distribution, len(children) + 1, draw.chance),"
            " key=lambda token: -distribution.weights[list(distribution.ids).index(token)])[: len(children)]",
        ),
        "drawn from a part of the distribution": (
            DRAWS,
            "tokens = draw_children(DraftDistribution(distribution.ids[1:], distribution.weights[1:]), "
            "len(children), draw.chance)",
        ),
        "drawn siblings not removed": (
            "weights[place] = 0 * weights[place]",
            "weights[place] = weights[place]",
        ),
        "drawn in one order, tried in another": (DRAWS, DRAWS.replace(" = ", " = list(reversed(") + "))"),
    },
    (DECODE, the_lowest_and_the_highest_uniform_number): {
        "<= for <": ("* total < weight", "* total <= weight"),
        "a draw that takes weights of 0": ('side="right"', 'side="left"'),
    },
    (RESIDUAL, drawn): {
        "the residual skipped": ("p = rest / rest.sum()", "p = p"),
        "q of another order": (
            "q = distribution.weights / distribution.weights.sum()",
            "q = (distribution.weights / distribution.weights.sum())[::-1]",
        ),
        "q of before the draw": ("q = _without(q, place)", "q = q"),
        "the residual is the target's distribution": ("rest = _residual(p, q, distribution)", "rest = p"),
        "the rejected distribution taken out altogether": (
            "np.maximum(p[distribution.ids] - q, 0 * q)",
            "0 * q",
        ),
        "q not renormalised": ("return rest / rest.sum() if rest.any() else rest", "return rest"),
        "accepted with min(p, q) of p + q": ("happens(min(p, q), q)", "happens(min(p, q), q + p)"),
        "accepted whatever q is": ("happens(min(p, q), q)", "happens(p, p + 1)"),
        "p of another total": ("p = weights / weights.sum()", "p = weights / weights.max() / len(weights)"),
    },
    (RESIDUAL, drawn_chain): {
        "no residual outside the distribution's ids": ("rest = p.copy()\n", "rest = 0 * p\n")
    },
    (POINT, any_trees): {
        "siblings not removed": ("weights[token] = 0 * weight", "weights[token] = weight"),
        "the whole mass stays 1": ("happens(weight, weights.sum())", "happens(weight, 3 * weights.max())"),
        "a rejected sibling that stays": (
            "weights[token] = 0 * weight  # keeps fractions exact",
            "return False",
        ),
        "no renormalisation after a rejection": (
            "happens(weight, weights.sum())",
            "happens(weight, 1 + 0 * weight)",
        ),
        "accepted half as often": ("happens(weight, weights.sum())", "happens(weight / 2, weights.sum())"),
        "penalties count the root twice": (
            "row.history, path_tokens)",
            "row.history, [row.tokens[0], *path_tokens])",
        ),
        "penalties without the path": ("row.history, path_tokens)", "row.history, [])"),
    },
    (DECODE, stops): {
        "EOS dropped": (
            "            ids.append(token)\n",
            "            ids.extend([] if token in request.stop_ids else [token])\n",
        ),
        "tokens after EOS": (
            "            if self.finish is not None:\n                break",
            "            pass",
        ),
    },
    (DECODE, limits): {
        "one token too many": ("elif len(ids) == self.room:", "elif len(ids) == self.room + 1:")
    },
    ("vocabforge.decode.proposers.ngram", repeated_texts_are_drafted): {
        "token 0 lost": ("for token in tokens:", "for token in filter(None, tokens):")
    },
    (DECODE, any_trees): {
        "a mask without the last committed slot": ("(behind < 0)[:, None] |", "(behind < -1)[:, None] |"),
        "a mask that shows siblings": ("(inside & ((behind", "((inside | ~inside) & ((behind"),
        "positions by slot": (
            "positions = slots if tree.chain else self.committed[:, None] + tree.depths",
            "positions = slots",
        ),
        "compaction from the slot before": (
            "self.committed[:, None] + path, self",
            "self.committed[:, None] + path - 1, self",
        ),
        "penalties without the output": ("active.judge.history.add(verdicts.tokens[row])", "pass"),
        "penalties without the first token": ("history.add([first])", "pass"),
    },
    (DECODE, several_cycles): {
        "no compaction": ("if not tree.chain:", "if False:"),
        "compaction one slot late": (
            "self.committed[:, None] + self._slots[: path.shape[1]]",
            "self.committed[:, None] + self._slots[1 : path.shape[1] + 1]",
        ),
    },
    ("vocabforge.models.kv_cache", several_cycles): {
        "rows that move each other's slots": (
            "cache[:, self.rows, :, destination] = cache[:, self.rows, :, source]",
            "cache[:, self.rows, :, destination] = cache[:, self.rows.flip(0), :, source]",
        )
    },
    (DECODE, early_exit_is_right): {
        "an early exit that overwrites the root": (
            "slots = (self.committed[:, None] + 1) + self.slots[used",
            "slots = self.committed[:, None] + self.slots[used",
        )
    },
    (EXITS, first_layers_of_drafting): {
        "a leaf without the first layers": ("if not most:", "if True:"),
        "drafted keys where drafting left them": ("nodes.slots, root + places)", "nodes.slots, nodes.slots)"),
        "drafted states in drafting's order": (
            "self.states.gather(1, places.",
            "self.states.gather(1, places.sort(1)[0].",
        ),
        "a drafted state by its token alone": ("matches = same & (places", "matches = same | (places"),
        "the exit layer twice": ("above = range(self.layers,", "above = range(self.layers - 1,"),
    },
    ("vocabforge.decode.target_side", any_trees): {
        "one slot too few committed": ("self.committed.add_(counts)", "self.committed.add_(counts - 1)")
    },
    (DECODE, dead_nodes): {"dead nodes alive": ("if alive is None or alive[node]:", "if True:")},
    ("vocabforge.ops.tree_verify", dead_nodes): {
        "dead nodes alive, greedily": ("agrees = agrees & alive", "agrees = agrees & True")
    },
    (MATCH, greedy_trees): {
        "greedy penalties without the path": ("row.history, path_tokens)", "row.history, [])")
    },
    (MATCH, any_trees): {
        "matched, penalties without the path": ("row.history, path_tokens)", "row.history, [])"),
        "any child a match": ("if row.tokens[child] == token", "if True"),
    },
    (RESIDUAL, drawn_with_penalties): {
        "drawn, penalties without the path": ("row.history, path_tokens)", "row.history, [])")
    },
    (DECODE, transform): {
        "top-p without the token that reaches it": (
            "sampling.top_p * mass[-1])) + 1]",
            "sampling.top_p * mass[-1]))]",
        ),
        "top-k that keeps one more": ('kind="stable")][:k]', 'kind="stable")][:k + 1]'),
        "a repetition penalty that favours": (
            "touched > 0, touched / factor, touched * factor",
            "touched > 0, touched * factor, touched / factor",
        ),
        "a frequency penalty once": ("often.astype(np.float32)", "(often > 0).astype(np.float32)"),
    },
}
MUTANTS = mutants_of(MISTAKES)
