"""The real code path, its real source of chance included: a million sampled tokens follow the target's law."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import pytest

from tests.decode import sampling_support
from tests.decode.markov import MarkovTarget
from tests.decode.mutants import MUTANTS, mistake
from tests.decode.probability import holm_rejections, p_value, upper_tail
from tests.decode.proofs import OWN, TRANSFORMS, Case, proposer_for, reference_law
from tests.decode.sampling_support import CONFIGURATIONS, LENGTH, Configuration, Sampler
from vocabforge.decode.engine import Decoder
from vocabforge.decode.sampling import SeededChance

pytestmark = pytest.mark.long

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
    check(SEQUENCES // 16)


@pytest.mark.proof
def test_a_million_tokens_of_the_real_verifiers() -> None:
    assert SEQUENCES * LENGTH >= 1_000_000
    check(SEQUENCES)


@pytest.mark.proof
def test_thirty_million_tokens_of_the_real_verifiers() -> None:
    check(10_000_000)


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
    "drawn from a part of the law": "residual",
    "the residual skipped": "residual",
    "q of another order": "residual",
    "q of before the draw": "residual",
    "siblings not removed": "point",
    "the whole mass stays 1": "point",
}


@pytest.mark.parametrize("name", [*POWER, "one uniform number for all decisions"])
def test_the_same_test_rejects_each_mistake(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    sampler = Sampler(Configuration("plain", "wide", POWER.get(name, "point"), "plain"))
    count = 3000 if name in POWER else 12_000
    assert sampler.p_value(count, 1) > LEVEL
    if name in POWER:
        mutant = MUTANTS[name]
        with mistake(mutant.module, mutant.right, mutant.wrong):
            value = sampler.p_value(count, 1)
    else:
        monkeypatch.setattr(sampling_support, "SeededChance", OneUniform)
        value = sampler.p_value(count, 1)
    assert value < LEVEL / len(CONFIGURATIONS), "Holm's strictest level"


def engine_value(name: str, sample: bool, transform: str, count: int) -> float:
    """p-value of sequences from a decoder of 32 rows, each with its own seed."""
    target = MarkovTarget("plain", 4, 6)
    decoder = Decoder(target, proposer_for(name, target, None, "static", sample=sample), rows=32)
    case = Case(TRANSFORMS[transform])
    results = decoder.generate_batch([case.request(seed) for seed in range(count)])
    law = {tokens: float(weight) for tokens, weight in reference_law(target, case).items()}
    return p_value(Counter(tuple(result.token_ids) for result in results), law)


def engine_values(count: int) -> dict[tuple[str, bool, str], float]:
    cases = [
        (name, sample, transform)
        for name in OWN
        for sample in (False, True)
        for transform in ("temperature", "all")
        if not (name == "n-gram" and sample)
    ]
    return {case: engine_value(*case, count) for case in cases}


def test_sequences_of_the_whole_engine() -> None:
    values = engine_values(60)
    assert not holm_rejections(list(values.values()), LEVEL), values


@pytest.mark.proof
def test_many_sequences_of_the_whole_engine() -> None:
    values = engine_values(20_000)
    assert not holm_rejections(list(values.values()), LEVEL), values
