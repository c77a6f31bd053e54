"""Small random vocabularies, toy draft laws, and SLRS by its definition: every draft text, one after the other."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence
from fractions import Fraction
from functools import cached_property

import numpy as np

from vocabforge.decode.cross_vocab.slrs_contexts import Path, StreamLaw, stream_law
from vocabforge.decode.cross_vocab.slrs_trie import DraftWords, TargetTrie

END = 99  # the target's end token
Text = tuple[bytes, bool, Fraction]  # bytes of a draft text, whether it ended, and its probability


def some_forms(draw: random.Random, count: int, longest: int, alphabet: bytes = b"ab") -> list[bytes]:
    """Different bytes, in any order."""
    every = [bytes(draw.choice(alphabet) for _ in range(draw.randint(1, longest))) for _ in range(8 * count)]
    return list(dict.fromkeys(every))[:count]


class Spells:
    """A speller: the longest token at each place."""

    def __init__(self, forms: Sequence[bytes | None]) -> None:
        self._ids = {form: token for token, form in reversed(list(enumerate(forms))) if form}

    def spell(self, wanted: Sequence[bytes | None]) -> list[list[int] | None]:
        return [self._spell(form) if form else None for form in wanted]

    def _spell(self, form: bytes) -> list[int]:
        ids: list[int] = []
        while form:
            fitting = [one for one in self._ids if form.startswith(one)]
            if not fitting:
                return []
            ids.append(self._ids[max(fitting, key=len)])
            form = form[len(max(fitting, key=len)) :]
        return ids


class ToyContexts:
    """A drafter whose law behind each path is random, of short fractions; some tokens never follow.

    Attributes:
        rounds: the paths of each evaluation.
    """

    def __init__(self, words: DraftWords, seed: int) -> None:
        self._words, self._seed = words, seed
        self._laws: dict[Path, StreamLaw] = {}
        self.rounds: list[set[Path]] = []

    def known(self, path: Path) -> StreamLaw | None:
        return self._laws.get(path)

    def evaluate(self, paths: Iterable[Path]) -> None:
        self.rounds.append(set(paths))
        for path in self.rounds[-1]:
            self._laws[path] = self.make(path)

    def make(self, path: Path) -> StreamLaw:
        draw = random.Random(f"{self._seed} {path}")
        size = len(self._words) + len(self._words.eos)
        weights = [draw.choice([0, 1, 1, 2, 5]) for _ in range(size)]
        weights[draw.randrange(size)] += 1
        return stream_law(np.array([Fraction(weight) for weight in weights], dtype=object), len(self._words))


class World:
    """A target vocabulary, a drafter with laws, and all texts of ``length`` draft tokens.

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
        law = self.contexts.make(path)
        for place, share in enumerate(law.weights):
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
