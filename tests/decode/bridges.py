"""Bridges between vocabularies made by hand, and SLRS by its definition: every draft text, one after the other."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence
from fractions import Fraction
from functools import cached_property

import numpy as np

from vocabforge.decode.cross_vocab.slrs.contexts import Path, StreamDistribution, stream_distribution
from vocabforge.decode.cross_vocab.slrs.trie import DraftWords, TargetTrie
from vocabforge.vocab.overlap.bridge import Bridge, BridgeSide

Forms = Sequence[bytes | None]


class LongestMatch:
    """Spells bytes with the longest token that fits, again and again."""

    def __init__(self, forms: Forms) -> None:
        self._ids: dict[bytes, int] = {}
        for token, form in enumerate(forms):
            if form:
                self._ids.setdefault(form, token)
        self._most = max(map(len, self._ids), default=0)

    def spell(self, wanted: Sequence[bytes | None]) -> list[list[int] | None]:
        return [self._spelled(one) if one else None for one in wanted]

    def _spelled(self, text: bytes) -> list[int]:
        found, at = [], 0
        while at < len(text):
            sizes = range(min(self._most, len(text) - at), 0, -1)
            size = next((size for size in sizes if text[at : at + size] in self._ids), 0)
            if not size:
                return []
            found.append(self._ids[text[at : at + size]])
            at += size
        return found


def side(
    forms: Forms, *, eos: Sequence[int] = (), start: Sequence[int] = (0,), opening: bytes = b""
) -> BridgeSide:
    return BridgeSide(tuple(forms), LongestMatch(forms), tuple(eos), tuple(start), opening)


def bridge(target: BridgeSide, drafter: BridgeSide) -> Bridge:
    """Equal byte forms paired one to one, lower ids first, and the first end tokens."""
    ids: list[dict[bytes, list[int]]] = [{}, {}]
    for found, one in zip(ids, (target, drafter)):
        for token, form in enumerate(one.forms):
            if form:
                found.setdefault(form, []).append(token)
    pairs = sorted(pair for form in ids[0].keys() & ids[1].keys() for pair in zip(ids[0][form], ids[1][form]))
    eos = (target.eos[0], drafter.eos[0]) if target.eos and drafter.eos else None
    return Bridge(target, drafter, np.array(pairs, dtype=np.int64).reshape(-1, 2), eos)


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
        tokens, at = list[int](), 0
        while at < len(text):
            fitting = [form for form in self.trie.ids if text.startswith(form, at)]
            if not fitting:
                return tokens
            longest = max(fitting, key=len)
            tokens.append(self.tokens[longest])
            at += len(longest)
        return [*tokens, END] if ended else tokens

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
