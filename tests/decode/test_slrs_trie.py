"""The target's trie and the drafter's sorted tokens, against the definition on random vocabularies."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest

from tests.decode.bridges import some_forms
from vocabforge.decode.cross_vocab.slrs.trie import DraftWords, TargetTrie, target_ids
from vocabforge.vocab.overlap.bridge import Bridge, BridgeSide


def kept(form: bytes, forms: set[bytes], look_ahead: int) -> bool:
    """Whether a chain of tokens leads to a form without too long a gap."""
    shorter = [form[:size] for size in range(1, len(form)) if form[:size] in forms]
    near = [one for one in shorter if len(form) - len(one) <= look_ahead]
    return not shorter or any(kept(one, forms, look_ahead) for one in near)


def longest_match(text: bytes, forms: set[bytes]) -> bytes:
    return max((text[:size] for size in range(len(text) + 1) if text[:size] in forms), key=len, default=b"")


@pytest.mark.parametrize("look_ahead", [0, 1, 2, 9])
def test_trie_against_its_definition(look_ahead: int) -> None:
    for seed in range(60):
        forms = some_forms(random.Random(seed), 12, 6)
        trie = TargetTrie({form: token for token, form in enumerate(forms)}, look_ahead)
        rest = {form for form in forms if kept(form, set(forms), look_ahead)}
        assert set(trie.ids) == rest
        assert trie.forms == {forms.index(form): form for form in rest}
        for form in rest:
            longer = {one for one in rest if one.startswith(form) and one != form}
            next_ones = {one for one in longer if not any(one.startswith(other) for other in longer - {one})}
            assert set(trie.longer(form)) == next_ones
            assert all(len(one) <= len(form) + look_ahead for one in next_ones)
        for text in map(bytes, itertools.product(b"ab", repeat=7)):
            for start in (0, 3):
                assert trie.match(text, start) == longest_match(text[start:], rest), (text, start)


def test_segments_are_longest_matches_and_settled_ones_stay() -> None:
    decided = 0
    for seed in range(40):
        forms = some_forms(random.Random(seed), 7, 4)
        trie = TargetTrie({form: token for token, form in enumerate(forms)}, 2)
        for text in map(bytes, itertools.product(b"ab", repeat=4)):
            found = trie.segment(text, 9)
            assert b"".join(trie.forms[token] for token in found.tokens) == text[: found.written]
            assert not longest_match(text[found.written :], set(trie.ids))
            endings = [bytes(more) for size in range(5) for more in itertools.product(b"ab", repeat=size)]
            longer = [trie.segment(text + more, 9).tokens for more in endings]
            same = sum(
                all(other[:size] == found.tokens[:size] for other in longer)
                for size in range(1, len(found.tokens) + 1)
            )
            assert found.settled == same, (seed, text)
            decided += found.settled
            assert trie.segment(text, 1).tokens == found.tokens[:1]
    assert decided > 100


def test_words_lie_side_by_side() -> None:
    for seed in range(40):
        draw = random.Random(seed)
        forms: list[bytes | None] = [*some_forms(draw, 9, 3, b"a\xfe\xff"), None, b"", b"a", b"</s>"]
        words = DraftWords(forms, [12] if len(forms) == 13 else [len(forms) - 1])
        assert sorted(words.ids) == [token for token, form in enumerate(forms[:-1]) if form]
        for start in map(bytes, itertools.product(b"a\xfe\xff", repeat=2)):
            for piece in (start, start[:1], start + b"\xff", start + b"aaa"):
                there = words.ids[slice(*words.beginning(piece))]
                assert set(there) == {token for token in words.ids if (forms[token] or b"").startswith(piece)}
                same = words.ids[slice(*words.same(piece))]
                assert set(same) == {token for token in words.ids if forms[token] == piece}
        assert all(words.form(place) == forms[token] for place, token in enumerate(words.ids))


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
