"""The real code path, its real source of chance included: a million sampled tokens follow the target's distribution."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.decode.markov import CHECK, NEVER, MarkovTarget, state_of, table
from tests.decode.mutants import MUTANTS
from tests.decode.probability import holm_rejections, p_value, upper_tail
from tests.decode.proofs import OWN, TRANSFORMS, Case, proposer_for, reference_distribution, sequences_p_value
from tests.shares import by_default
from vocabforge.decode.interface import Draw
from vocabforge.decode.request import SamplingParams
from vocabforge.decode.sampling import Chance, SeededChance, TokenHistory, target_weights
from vocabforge.decode.tree import DraftTree, build_tree
from vocabforge.decode.trees.fixed import ShapePolicy
from vocabforge.decode.trees.shapes import TreeShape
from vocabforge.decode.verify.registry import RowVerification, verify
from vocabforge.models.heads.exact import answer
from vocabforge.models.heads.registry import DraftState

LENGTH = 4
PROMPT = (2, 0, 1)
ROOT = (3,)
SHAPES = {
    "chain": TreeShape((0, 0, 1), (0, 0, 0)),
    "tree": TreeShape((0, 0, 0, 1, 1, 2), (0, 0, 1, 0, 1, 0)),
    "wide": TreeShape((0, 0, 0, 0), (0, 0, 1, 2)),
}


@dataclass(frozen=True)
class Configuration:
    """One way of verifying, sampled many times."""

    kind: str
    shape: str
    verifier: str
    transform: str

    @property
    def sampling(self) -> SamplingParams:
        return TRANSFORMS[self.transform]


CONFIGURATIONS = [
    Configuration(kind, shape, verifier, transform)
    for (kind, transform), shape, verifier in itertools.product(
        [("plain", "plain"), ("ties", "top-p"), ("plain", "all"), ("zeros", "temperature")],
        SHAPES,
        ("match", "point", "residual"),
    )
]


class TableHead:
    """A draft head whose hidden states are places in a table."""

    context_size, by_step = 0, False

    def __init__(self, rows: Tensor) -> None:
        self.rows, self.size, self.target_ids = rows, rows.shape[1], torch.arange(rows.shape[1])

    def scores(self, hidden: Tensor, k: int, state: DraftState | None = None) -> tuple[Tensor, Tensor]:
        return self.rows[hidden[:, 0]], self.target_ids

    def topk(self, hidden: Tensor, k: int, state: DraftState | None = None) -> tuple[Tensor, Tensor]:
        return answer(*self.scores(hidden, k, state), k)

    def log_probs(self, hidden: Tensor, state: DraftState | None = None) -> Tensor:
        return self.rows[hidden[:, 0]].log_softmax(-1)


class Sampler:
    """Sequences of ``LENGTH`` tokens: what one verification gives, cut or continued by plain sampling."""

    def __init__(
        self, configuration: Configuration, vocab: int = 4, source: Callable[[int], Chance] = SeededChance
    ) -> None:
        self.configuration, self.vocab, self.source = configuration, vocab, source
        self.shape = SHAPES[configuration.shape]
        self.target = MarkovTarget(configuration.kind, vocab, 4, layers=1)
        self.table = self.target.table.masked_fill(self.target.table == NEVER, float("-inf"))
        self.head = TableHead(table("plain", vocab, 5, vocab * CHECK))
        self._weights: dict[tuple[int, ...], Any] = {}
        self._states: dict[tuple[int, ...], int] = {}

    @property
    def case(self) -> Case:
        return Case(self.configuration.sampling, [*PROMPT, *ROOT], LENGTH)

    def counts(self, count: int, seed: int, batch: int = 250) -> Counter[tuple[int, ...]]:
        """How often each sequence came, in ``count`` of them."""
        chance, seen = self.source(seed), Counter[tuple[int, ...]]()
        for _ in range(-(-count // batch)):
            drawn = self.configuration.verifier == "residual"
            tree, logits = self.trees(batch if drawn else 1, chance)
            if not drawn:  # all alike
                tree = build_tree(
                    tree.tokens.repeat(batch, 1), tree.parents.repeat(batch, 1), self.shape.levels
                )
                logits = logits.expand(batch, -1, -1)
            rows = [
                RowVerification(self.configuration.sampling, chance, self.history()) for _ in range(batch)
            ]
            verdicts = verify(tree, logits, rows, self.shape.levels, self.configuration.verifier)
            for tokens in verdicts.tokens:
                seen[self.continued(tuple(tokens), chance)] += 1
        return seen

    def history(self) -> TokenHistory:
        """The prompt, and the root as the first token of the output."""
        return TokenHistory([*PROMPT, *ROOT], self.vocab)

    def trees(self, batch: int, chance: Chance) -> tuple[DraftTree, Tensor]:
        """Trees (B, N) as the real policy grows them, with the target's logits (B, N, V)."""
        roots = torch.full((batch,), ROOT[0])
        policy = ShapePolicy(self.shape, self.configuration.verifier == "residual")
        growth = policy.grow(batch, policy.plan, [Draw(self.configuration.sampling, chance)] * batch)
        contexts = [[ROOT] for _ in range(batch)]
        for level in itertools.count():
            hidden = torch.tensor([[[self.state(path)] for path in row] for row in contexts])
            tokens = roots.repeat_interleave(hidden.shape[1])
            state = DraftState(level, tokens, hidden.flatten(0, 1), batch)
            frontier = growth.add(self.head, hidden, state)
            if frontier is None:
                break
            steps = zip(contexts, frontier.parents.tolist(), frontier.tokens.tolist())
            contexts = [
                [(*row[parent], token) for parent, token in zip(parents, found)]
                for row, parents, found in steps
            ]
        tree = growth.finish(roots)
        parents = self.shape.parents
        states = []
        for row in tree.tokens.tolist():
            paths = [ROOT]
            for node in range(1, len(row)):
                paths.append((*paths[parents[node]], row[node]))
            states.append([self.state(path) for path in paths])
        return tree, self.table[torch.tensor(states)]

    def state(self, path: tuple[int, ...]) -> int:
        if path not in self._states:
            self._states[path] = state_of([*PROMPT, *path], self.vocab)
        return self._states[path]

    def continued(self, tokens: tuple[int, ...], chance: Chance) -> tuple[int, ...]:
        while len(tokens) < LENGTH:
            if tokens not in self._weights:
                history = self.history()
                history.add(tokens)
                logits = self.target.reference([*PROMPT, *ROOT, *tokens])
                self._weights[tokens] = target_weights(logits, self.configuration.sampling, history, [])
            tokens = (*tokens, chance.draw(self._weights[tokens]))
        return tokens[:LENGTH]

    def p_value(self, count: int, seed: int) -> float:
        distribution = {
            tokens: float(weight) for tokens, weight in reference_distribution(self.target, self.case).items()
        }
        return p_value(self.counts(count, seed), distribution)


LEVEL = 1e-6  # family-wise: one such test of a million fails by chance
SEQUENCES = 252_000  # of four tokens
SHARES = {"match": 8, "point": 4, "residual": 1}


def test_the_distribution_function_is_that_of_the_tables() -> None:
    for statistic, freedom, expected in (
        (3.841, 1, 0.05001368),
        (37.7, 15, 9.990844e-4),
        (124.3, 100, 0.05026640),
        (200.0, 100, 1.178450e-8),
        (5.0, 10, 0.89117802),
        (60.0, 4, 2.900863e-12),
    ):
        assert upper_tail(statistic, freedom) == pytest.approx(expected, rel=1e-6)
    assert holm_rejections([0.01, 0.04, 0.03, 0.005], 0.05) == [3, 0]
    assert p_value({"a": 5, "never": 1}, {"a": 0.5, "b": 0.5}) == 0.0


def check(count: int) -> None:
    """More of what costs less."""
    each = count / sum(SHARES[one.verifier] for one in CONFIGURATIONS)
    values = [
        Sampler(one).p_value(math.ceil(each * SHARES[one.verifier]), seed)
        for seed, one in enumerate(CONFIGURATIONS)
    ]
    rejected = [(CONFIGURATIONS[i], values[i]) for i in holm_rejections(values, LEVEL)]
    assert not rejected


def test_many_tokens_of_the_real_verifiers() -> None:
    check(SEQUENCES // 40)


@pytest.mark.proof
def test_a_million_tokens_of_the_real_verifiers() -> None:
    assert SEQUENCES * LENGTH >= 1_000_000
    check(SEQUENCES)


class OneUniform(SeededChance):
    """The mistake of one number for all decisions of a verification: it changes after every draw only."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self._number, self._next = 0.5, self._uniform

    def happens(self, weight: float, total: float) -> bool:
        return self._number * total < weight

    def draw(self, weights: Any) -> int:
        self._number = self._next()
        return super().draw(weights)


POWER = {
    "the best tokens verified as if drawn": "residual",
    "drawn, then only the best kept": "residual",
    "drawn from a part of the distribution": "residual",
    "the residual skipped": "residual",
    "q of another order": "residual",
    "q of before the draw": "residual",
    "siblings not removed": "point",
    "the whole mass stays 1": "point",
}


SOME = ("the residual skipped", "siblings not removed", "one uniform number for all decisions")


@pytest.mark.parametrize(
    "name", by_default([*POWER, "one uniform number for all decisions"], lambda name: name in SOME)
)
def test_the_same_test_rejects_each_mistake(name: str) -> None:
    sampler = Sampler(Configuration("plain", "wide", POWER.get(name, "point"), "plain"))
    count = 3000 if name in POWER else 12_000
    assert sampler.p_value(count, 1) > LEVEL
    if name in POWER:
        mutant = MUTANTS[name]
        with mutant.change():
            value = sampler.p_value(count, 1)
    else:
        value = Sampler(sampler.configuration, source=OneUniform).p_value(count, 1)
    assert value < LEVEL / len(CONFIGURATIONS), "Holm's strictest level"


def engine_values(
    count: int, transforms: tuple[str, ...] = ("temperature", "all")
) -> dict[tuple[str, bool, str], float]:
    cases = [
        (name, sample, transform)
        for name in OWN
        for sample in (False, True)
        for transform in transforms
        if not (name == "n-gram" and sample)
    ]
    target = MarkovTarget("plain", 4, 6)
    return {
        (name, sample, transform): sequences_p_value(
            target,
            proposer_for(name, target, None, "static", sample=sample),
            Case(TRANSFORMS[transform]),
            count,
        )
        for name, sample, transform in cases
    }


def test_sequences_of_the_whole_engine() -> None:
    values = engine_values(32, ("all",))
    assert not holm_rejections(list(values.values()), LEVEL), values


@pytest.mark.proof
def test_many_sequences_of_the_whole_engine() -> None:
    values = engine_values(20_000)
    assert not holm_rejections(list(values.values()), LEVEL), values
