"""Target tokens of a drafted text: which are settled, and which id stands for a form."""

from __future__ import annotations

import itertools
import random

import numpy as np

from tests.decode.cross_vocab import longest_matches
from vocabforge.decode.cross_vocab.slrs.trie import TargetTrie, target_ids
from vocabforge.vocab.overlap.bridge import Bridge, BridgeSide


def some_forms(draw: random.Random, count: int, longest: int, alphabet: bytes = b"ab") -> list[bytes]:
    """Different bytes, in any order."""
    every = [bytes(draw.choice(alphabet) for _ in range(draw.randint(1, longest))) for _ in range(8 * count)]
    return list(dict.fromkeys(every))[:count]


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
