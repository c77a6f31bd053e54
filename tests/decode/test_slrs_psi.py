"""psi against its definition: the sum over all draft texts, in fractions; and against what is really drawn."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest

from tests.decode.bridges import END, World
from vocabforge.decode.cross_vocab.slrs.psi import ChainDistributions, Streams

WORLDS = range(7)


def distributions_of(world: World) -> ChainDistributions:
    return ChainDistributions(world.trie, Streams(world.words, world.contexts, world.length), END)


@pytest.mark.parametrize("length", [1, 2, 3])
def test_beginnings_and_ends_of_texts(length: int) -> None:
    for seed in WORLDS:
        world = World(seed, length)
        streams = Streams(world.words, world.contexts, length)
        asked = [text[:size] for text, _, _ in world.texts for size in range(1, len(text) + 1)]
        asked += [b"a" * 9, b"abab", b"bb"]
        assert streams.begins(asked) == [
            sum(weight for text, _, weight in world.texts if text.startswith(one)) for one in asked
        ]
        for one in [b"", *asked[:20]]:
            assert streams.ends(one) == sum(
                weight for text, ended, weight in world.texts if ended and text == one
            )


@pytest.mark.parametrize("look_ahead", [0, 1, 2, 9])
def test_psi_is_the_sum_over_all_texts(look_ahead: int) -> None:
    checked = 0
    for seed in WORLDS:
        world = World(seed, 3, look_ahead)
        for before, weight in world.chains.items():
            if before and before[-1] == END:
                continue
            distribution = distributions_of(world).along(before)[-1]
            found = {token: distribution.probability(token) for token in [*world.tokens.values(), END]}
            wanted = {token: world.chains.get((*before, token), Fraction(0)) / weight for token in found}
            assert found == wanted, (seed, before)
            nothing = sum(
                share for text, ended, share in world.texts if tuple(world.chain(text, ended)) == before
            )
            assert sum(found.values()) + nothing / weight == 1
            assert distribution.probability(77) == 0
            checked += len(found)
    assert checked > 200


def test_distributions_along_a_chain_end_with_it() -> None:
    ended = [(world, chain) for world in map(World, WORLDS) for chain in world.chains if END in chain[2:]]
    world, chain = ended[0]
    distributions = distributions_of(world).along(chain)
    assert len(distributions) == len(chain)  # behind the end there is nothing to be drawn
    assert (
        math.prod(distribution.probability(token) for distribution, token in zip(distributions, chain))
        == world.chains[chain]
    )


def test_what_one_question_needs_is_evaluated_level_by_level() -> None:
    world = World(7, length=3)
    streams = Streams(world.words, world.contexts, 3)
    asked = [text for text, _, _ in world.texts]
    streams.begins(asked)
    rounds = [one for one in world.contexts.rounds if one]
    assert [{len(path) for path in one} for one in rounds] == [{0}, {1}, {2}]
    before = sum(map(len, rounds))
    streams.begins(asked)
    assert sum(map(len, world.contexts.rounds)) == before  # nothing twice
