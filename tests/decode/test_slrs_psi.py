"""psi against its definition: the sum over all draft texts, in fractions; and against what is really drawn."""

from __future__ import annotations

import functools
import math
from fractions import Fraction

import numpy as np
import pytest

from tests.decode.bridges import END, World
from vocabforge.decode.cross_vocab.slrs_psi import ChainLaws, Streams
from vocabforge.decode.sampling import SeededChance

WORLDS = range(7)


def laws_of(world: World) -> ChainLaws:
    return ChainLaws(world.trie, Streams(world.words, world.contexts, world.length), END)


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
            law = laws_of(world).along(before)[-1]
            found = {token: law.probability(token) for token in [*world.tokens.values(), END]}
            wanted = {token: world.chains.get((*before, token), Fraction(0)) / weight for token in found}
            assert found == wanted, (seed, before)
            nothing = sum(
                share for text, ended, share in world.texts if tuple(world.chain(text, ended)) == before
            )
            assert sum(found.values()) + nothing / weight == 1
            assert law.probability(77) == 0
            checked += len(found)
    assert checked > 200


def test_laws_along_a_chain_end_with_it() -> None:
    ended = [(world, chain) for world in map(World, WORLDS) for chain in world.chains if END in chain[2:]]
    world, chain = ended[0]
    laws = laws_of(world).along(chain)
    assert len(laws) == len(chain)  # behind the end there is nothing to be drawn
    assert math.prod(law.probability(token) for law, token in zip(laws, chain)) == world.chains[chain]


def test_floats_agree_with_fractions() -> None:
    world = World(5)
    exact = {before: laws_of(world).along(before)[-1] for before in world.chains if END not in before}
    for path in list(world.contexts._laws):
        law = world.contexts.make(path)
        world.contexts._laws[path] = type(law)(law.heights.astype(np.float64), law.words)
    rough = laws_of(world)
    for before, law in exact.items():
        for token in [*world.tokens.values(), END]:
            wanted = law.probability(token)
            assert rough.along(before)[-1].probability(token) == pytest.approx(float(wanted), abs=1e-14)


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


def test_a_drafter_of_bytes_needs_one_context_a_byte() -> None:
    from tests.decode.bridges import ToyContexts
    from vocabforge.decode.cross_vocab.slrs_trie import DraftWords

    words = DraftWords([bytes([byte]) for byte in range(256)], [])
    contexts = ToyContexts(words, 1)
    Streams(words, contexts, 6).begins([b"abcde"])
    assert sum(map(len, contexts.rounds)) <= 5


def test_psi_is_the_frequency_of_drafts() -> None:
    """Chi-square at the bound of one in a million, over tokens and nothing."""
    world, count = World(11), 4000
    weights = functools.cache(lambda path: world.contexts.make(path).weights.astype(np.float64))
    law = laws_of(world).along(())[0]
    chance = SeededChance(7)
    seen: dict[int | None, int] = {}
    for _ in range(count):
        path, text, ended = (), b"", False
        while len(path) < world.length and not ended:
            place = chance.draw(weights(path))
            ended = place >= len(world.words)
            if not ended:
                path, text = (*path, world.words.ids[place]), text + world.words.form(place)
        first = next(iter(world.chain(text, ended)), None)
        seen[first] = seen.get(first, 0) + 1
    shares = {token: float(law.probability(token)) for token in [*world.tokens.values(), END]}
    shares[None] = 1 - sum(shares.values())
    assert {token for token in seen if not shares[token] > 1e-12} == set()
    cells = [token for token, share in shares.items() if share > 1e-12]
    statistic = sum(
        (seen.get(token, 0) - count * shares[token]) ** 2 / (count * shares[token]) for token in cells
    )
    freedom = len(cells) - 1
    assert freedom >= 2
    assert statistic < freedom + 6 * (2 * freedom) ** 0.5 + 12
