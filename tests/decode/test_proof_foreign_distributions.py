"""The distribution that verification is told of each drafted token is that of the draws, and the drafter's own.

Enumerated in fractions: every way that a drafting can go, against the distribution that came with it, and against a
plain evaluation of the drafter, token by token. With real seeds and floats: chi-square.
"""

from __future__ import annotations

from collections import Counter

import pytest

from tests.decode.cross_vocab import (
    SITUATIONS,
    case_of,
    check_drafting,
    distributions_of,
    draft,
    fits,
    foreign_proposer,
    new_drafting,
    target_of,
)
from tests.decode.cross_vocab_mutants import MUTANTS
from tests.decode.probability import holm_rejections, p_value
from tests.decode.proofs import TRANSFORMS, exact_weights, sequences_p_value
from vocabforge.decode.sampling import SeededChance

LEVEL = 1e-6  # family-wise
DRAWN = ("tli, drawn chain", "slrs", "slrs, further ahead", "slrs, one token")
SOME = ("plain", "all", "top-p")
SHORT = ("tli, drawn chain", "slrs")


@pytest.mark.parametrize("way", SHORT)
@pytest.mark.parametrize("name", SITUATIONS)
def test_what_is_reported_is_what_is_drawn(name: str, way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    exact_weights(monkeypatch)
    check_drafting(name, way, TRANSFORMS[SOME[list(SITUATIONS).index(name) % len(SOME)]], "zeros")


@pytest.mark.proof
@pytest.mark.parametrize("way", DRAWN)
@pytest.mark.parametrize("name", SITUATIONS)
def test_what_is_reported_is_what_is_drawn_everywhere(name, way, monkeypatch):
    exact_weights(monkeypatch)
    for transform in SOME:
        for said in range(len(SITUATIONS[name].target)):
            check_drafting(name, way, TRANSFORMS[transform], "plain", said)


def drafting_values(count: int) -> dict[tuple[str, str], float]:
    """p-values of the first drafted token, real seeds and floats, against the reported distribution."""
    values = {}
    for name, way in (
        ("partial overlap", "tli, drawn chain"),
        ("several spellings", "slrs"),
        ("ends of both", "slrs"),
    ):
        drafting = new_drafting(name, way, "plain")
        seen: Counter[int] = Counter()
        for seed in range(count):
            tokens, distributions = draft(drafting, TRANSFORMS["plain"], SeededChance(seed))
            seen[tokens[0] if tokens else -1] += 1
        distribution = {
            token: float(weight)
            for token, weight in distributions_of(distributions, drafting.size)[0].items()
        }
        distribution[-1] = max(1 - sum(distribution.values()), 0.0)
        if distribution[-1] < 1e-12:
            del distribution[-1]
        values[name, way] = p_value(seen, distribution)
    return values


def test_real_draws_follow_the_reported_distribution() -> None:
    values = drafting_values(80)
    assert not holm_rejections(list(values.values()), LEVEL), values


def engine_values(count: int) -> dict[tuple[str, str], float]:
    """p-values of whole texts at temperature 1, real seeds and floats, 32 rows side by side."""
    values = {}
    for name, way in (
        ("partial overlap", "tli, drawn chain"),
        ("incomplete characters", "slem, static"),
        ("several spellings", "slrs"),
    ):
        assert fits(name, way)
        case = case_of(name, TRANSFORMS["plain"])
        proposer = foreign_proposer(name, way, ("plain", "plain"))
        values[name, way] = sequences_p_value(target_of(name, "plain"), proposer, case, count)
    return values


def test_texts_of_the_whole_engine() -> None:
    values = engine_values(64)
    assert not holm_rejections(list(values.values()), LEVEL), values


@pytest.mark.proof
def test_many_real_draws_and_texts() -> None:
    values = [*drafting_values(4_000).values(), *engine_values(3_000).values()]
    assert not holm_rejections(values, LEVEL), values


@pytest.mark.proof
@pytest.mark.parametrize(
    "name", ["drawn from another distribution than psi is of", "a distribution in the drafter's order"]
)
def test_the_same_test_rejects_mistakes(name: str) -> None:
    with MUTANTS[name].change():
        values = list(drafting_values(1_000).values())
    assert holm_rejections(values, LEVEL), values
