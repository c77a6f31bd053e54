"""The real code path, its real source of chance included: a million sampled tokens follow the target's law."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.decode.chi_square import holm_rejections, p_value, upper_tail
from tests.decode.markov import MarkovTarget
from tests.decode.proof_support import TRANSFORMS, Case, proposer_for, reference_law
from tests.decode.sampling_support import CONFIGURATIONS, LENGTH, Sampler
from vocabforge.decode.engine import Decoder
from vocabforge.decode.proposers import PROPOSERS

LEVEL = 1e-6  # family-wise: one such test of a million fails by chance
SEQUENCES = 330_000  # of three tokens


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
    each = -(-count // len(CONFIGURATIONS))
    values = [Sampler(one).p_value(each, seed) for seed, one in enumerate(CONFIGURATIONS)]
    rejected = [(CONFIGURATIONS[i], values[i]) for i in holm_rejections(values, LEVEL)]
    assert not rejected
    assert each * len(CONFIGURATIONS) * LENGTH >= 3 * count


def test_a_million_tokens_of_the_real_verifiers() -> None:
    check(SEQUENCES)


@pytest.mark.proof
def test_thirty_million_tokens_of_the_real_verifiers() -> None:
    check(10_000_000)


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
        for name in PROPOSERS
        for sample in (False, True)
        for transform in ("temperature", "all")
        if not (name == "n-gram" and sample)
    ]
    return {case: engine_value(*case, count) for case in cases}


def test_sequences_of_the_whole_engine() -> None:
    values = engine_values(600)
    assert not holm_rejections(list(values.values()), LEVEL), values


@pytest.mark.proof
def test_many_sequences_of_the_whole_engine() -> None:
    values = engine_values(20_000)
    assert not holm_rejections(list(values.values()), LEVEL), values
