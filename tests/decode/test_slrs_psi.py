"""psi against its definition: the sum over all draft texts, in fractions; and against what is really drawn."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable, Iterator
from fractions import Fraction
from functools import cached_property

import numpy as np
import pytest

from tests.decode.cross_vocab import longest_matches, pruned
from vocabforge.decode.cross_vocab.slrs.contexts import Path, StreamDistribution, stream_distribution
from vocabforge.decode.cross_vocab.slrs.psi import ChainDistributions, Streams
from vocabforge.decode.cross_vocab.slrs.trie import DraftWords, TargetTrie, target_ids
from vocabforge.vocab.overlap.bridge import Bridge, BridgeSide

WORLDS = range(7)
END = 99  # the target's end token
Text = tuple[bytes, bool, Fraction]  # bytes of a draft text, whether it ended, and its probability


def some_forms(draw: random.Random, count: int, longest: int, alphabet: bytes = b"ab") -> list[bytes]:
    """Different bytes, in any order."""
    every = [bytes(draw.choice(alphabet) for _ in range(draw.randint(1, longest))) for _ in range(8 * count)]
    return list(dict.fromkeys(every))[:count]


class ToyContexts:
    """A drafter whose distribution behind each path is random, of short fractions; some tokens never follow.

    Attributes:
        rounds: the paths of each evaluation.
    """

    def __init__(self, words: DraftWords, seed: int) -> None:
        self._words, self._seed = words, seed
        self._distributions: dict[Path, StreamDistribution] = {}
        self.rounds: list[set[Path]] = []

    def known(self, path: Path) -> StreamDistribution | None:
        return self._distributions.get(path)

    def evaluate(self, paths: Iterable[Path]) -> None:
        self.rounds.append(set(paths))
        for path in self.rounds[-1]:
            self._distributions[path] = self.make(path)

    def make(self, path: Path) -> StreamDistribution:
        draw = random.Random(f"{self._seed} {path}")
        size = len(self._words) + len(self._words.eos)
        weights = [draw.choice([0, 1, 1, 2, 5]) for _ in range(size)]
        weights[draw.randrange(size)] += 1
        return stream_distribution(
            np.array([Fraction(weight) for weight in weights], dtype=object), len(self._words)
        )


class World:
    """A target vocabulary, a drafter with distributions, and all texts of ``length`` draft tokens.

    Duplicates among the drafter's forms, tokens without bytes and an end token are part of most worlds.
    """

    def __init__(self, seed: int, length: int = 3, look_ahead: int = 2) -> None:
        draw = random.Random(seed)
        self.length = length
        forms = some_forms(draw, draw.randint(2, 9), 5)
        self.tokens = dict(zip(forms, draw.sample(range(50), len(forms))))
        self.trie = TargetTrie(self.tokens, look_ahead)
        self.kept = pruned(self.tokens, look_ahead)
        own: list[bytes | None] = [*some_forms(draw, draw.randint(2, 4), 3), None, b""]
        own.append(own[0])
        draw.shuffle(own)
        self.words = DraftWords([*own, b"</s>"], [len(own)] if draw.random() < 0.7 else [])
        self.contexts = ToyContexts(self.words, seed)

    @cached_property
    def texts(self) -> list[Text]:
        return list(self._texts((), b"", Fraction(1)))

    def _texts(self, path: Path, written: bytes, weight: Fraction) -> Iterator[Text]:
        if len(path) == self.length:
            yield written, False, weight
            return
        distribution = self.contexts.make(path)
        for place, share in enumerate(distribution.weights):
            if share > 0 and place >= len(self.words):
                yield written, True, weight * share
            elif share > 0:
                longer = (*path, self.words.ids[place])
                yield from self._texts(longer, written + self.words.form(place), weight * share)

    def chain(self, text: bytes, ended: bool) -> list[int]:
        """The target tokens of a text, each the longest that fits."""
        tokens, covered = longest_matches(self.kept, text, len(text))
        return [*tokens, END] if ended and covered == len(text) else [*tokens]

    @cached_property
    def chains(self) -> dict[tuple[int, ...], Fraction]:
        """Every beginning of a chain, the empty one too, and its probability."""
        found: dict[tuple[int, ...], Fraction] = {}
        for text, ended, weight in self.texts:
            chain = self.chain(text, ended)
            for size in range(len(chain) + 1):
                key = tuple(chain[:size])
                found[key] = found.get(key, Fraction(0)) + weight
        return found


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


def test_settled_tokens_stay_whatever_follows() -> None:
    """A drafted text ends where its tokens are settled: one token less would change their distribution."""
    decided = 0
    endings = [bytes(more) for size in range(5) for more in itertools.product(b"ab", repeat=size)]
    for seed in range(40):
        forms = some_forms(random.Random(seed), 7, 4)
        trie = TargetTrie({form: token for token, form in enumerate(forms)}, 2)
        for text in map(bytes, itertools.product(b"ab", repeat=4)):
            found = trie.segment(text, 9)
            assert (tuple(found.tokens), found.written) == longest_matches(trie.ids, text, 9)
            assert trie.segment(text, 1).tokens == found.tokens[:1]
            longer = [trie.segment(text + more, 9).tokens for more in endings]
            sizes = range(1, len(found.tokens) + 1)
            same = sum(all(other[:size] == found.tokens[:size] for other in longer) for size in sizes)
            assert found.settled == same, (seed, text)
            decided += same
    assert decided > 100


class SpellsLast:
    """Writes everything as one token, the one it is told."""

    def __init__(self, token: int) -> None:
        self._token = token

    def spell(self, wanted: list[bytes | None]) -> list[list[int] | None]:
        return [[self._token] if form == b"b" else [] for form in wanted]


def test_one_id_stands_for_each_form() -> None:
    forms = (b"a", b"b", b"a", b"b", b"b", b"c", b"c", None, b"</s>")
    target = BridgeSide(forms, SpellsLast(3), eos=(8,), start=(7,))
    drafter = BridgeSide((b"a",), SpellsLast(0), eos=(), start=(0,))
    bridge = Bridge(target, drafter, np.array([[2, 0]]), None)
    assert target_ids(bridge) == {b"a": 2, b"b": 3, b"c": 5}
