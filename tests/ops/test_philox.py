"""Counter-based random numbers are numpy's; sums of weights are the same in any order."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
import torch

from vocabforge.decode.sampling import SeededChance
from vocabforge.ops.masses import draw_by_height, mass_heights, mass_parts, mass_value
from vocabforge.ops.philox import philox_uniform

SEEDS = [0, 1, 5, 2**31 - 1, 2**31, 2**32 + 1, 2**40 + 7, 123_456_789_012_345_678, 2**63 - 1]


@pytest.mark.parametrize("seed", SEEDS)
def test_numbers_are_those_of_numpy(seed: int) -> None:
    expected = np.random.Generator(np.random.Philox(key=seed)).random(1001)
    got = philox_uniform(torch.tensor(seed), torch.arange(1001))
    assert got.tolist() == expected.tolist()


def test_many_seeds_and_far_places() -> None:
    seeds = np.random.default_rng(3).integers(2**63, size=200)
    got = philox_uniform(torch.from_numpy(seeds), torch.arange(200))
    for place, (seed, number) in enumerate(zip(seeds.tolist(), got.tolist())):
        chance = SeededChance(seed)
        assert [chance._uniform() for _ in range(place + 1)][-1] == number
    far = 2**40 + 3
    stream = np.random.Philox(key=11)
    stream.advance(far // 4)
    expected = np.random.Generator(stream).random(4)[far % 4]
    assert philox_uniform(torch.tensor(11), torch.tensor(far)).item() == expected


def test_masses_are_exact() -> None:
    weights = torch.rand(64, generator=torch.Generator().manual_seed(2)) ** 20
    high, low = mass_parts(weights)
    for weight, upper, lower in zip(weights.tolist(), high.tolist(), low.tolist()):
        kept = Fraction(upper, 2**42) + Fraction(lower, 2**84)
        assert 0 <= Fraction(weight) - kept < Fraction(1, 2**84)
    order = torch.randperm(64, generator=torch.Generator().manual_seed(3))
    assert torch.equal(mass_heights(weights)[-1], mass_heights(weights[order])[-1])
    assert mass_value(high.sum(), low.sum()).item() == pytest.approx(float(weights.double().sum()), rel=1e-15)


def test_draws_by_height_are_those_of_seeded_chance() -> None:
    weights = (torch.rand(9, generator=torch.Generator().manual_seed(4)) * 64).ceil() / 64
    weights[::3] = 0.0
    numbers = philox_uniform(torch.arange(300), torch.tensor(0))
    drawn = draw_by_height(weights.expand(300, -1), numbers)
    assert drawn.tolist() == [SeededChance(seed).draw(weights.double().numpy()) for seed in range(300)]
