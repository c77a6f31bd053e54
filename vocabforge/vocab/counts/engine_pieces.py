"""Counting distinct pieces: a text is cut wherever that is proven, and every distinct piece is encoded once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from itertools import chain

import numpy as np

from ...corpus.tokenizer.cuts import CutRule, NoCut
from ...corpus.tokenizer.tokenizer import TextTokenizer
from .engines import NotSuited, PlainEngine, groups
from .table import Counts

MAX_PIECES = 400_000  # remembered; about 100 MB
LONG_PIECE = 256  # characters; longer ones hardly come twice and are not remembered
CALL_COST = 16  # handing one piece to the library costs as much as this many characters of plain text
SPLIT_COST = 0.25  # splitting and counting a character, as a share of encoding it plainly
WORTH = 0.9  # pieces are used while they cost less than this share of the plain path
PIECES_GROUP = 1 << 20  # characters whose distinct pieces are held at once
HOPELESS = 1.1  # a sample whose pieces cost more than this share hardly repeats itself
SAMPLED = 1 << 16  # characters of a sample from which it can say that a text hardly repeats itself


class Remembered:
    """Ids of pieces that were encoded before; ``begins``: they stand at the start of a text."""

    def __init__(self, rule: CutRule, begins: bool) -> None:
        self._rule, self._begins = rule, begins
        self._ids: dict[str, list[int]] = {}

    def cost(self, pieces: Mapping[str, int]) -> int:
        """Characters of plain text that encoding the unknown ones among ``pieces`` is worth."""
        new = [piece for piece in pieces if piece not in self._ids]
        return sum(map(len, new)) + CALL_COST * len(new)

    def count(self, pieces: Mapping[str, int], vocab_size: int) -> Counts:
        """Counts of pieces with their multiplicity: (V,)."""
        rows = self.rows(pieces)
        lengths = np.fromiter(map(len, rows), np.int64, len(rows))
        weights = np.repeat(np.fromiter(pieces.values(), np.int64, len(rows)), lengths)  # (ids,)
        ids = np.fromiter(chain.from_iterable(rows), np.int64, len(weights))
        # Sums of whole numbers below 2**53 are exact in the float64 of bincount.
        return np.bincount(ids, weights=weights, minlength=vocab_size).astype(np.int64)

    def rows(self, pieces: Collection[str]) -> list[list[int]]:
        """Ids of each piece."""
        if len(self._ids) > MAX_PIECES:
            self._ids.clear()
        new = [piece for piece in dict.fromkeys(pieces) if piece not in self._ids]
        found = dict(zip(new, self._rule.encode(new, self._begins)))
        rows = [found[piece] if piece in found else self._ids[piece] for piece in pieces]
        self._ids.update((piece, ids) for piece, ids in found.items() if len(piece) <= LONG_PIECE)
        return rows


class PiecesEngine:
    """Distinct pieces, encoded once; a group of texts that hardly repeats itself takes the plain path."""

    name = "pieces"

    def __init__(self, tokenizer: TextTokenizer, rule: CutRule) -> None:
        self._rule = rule
        self._plain = PlainEngine(tokenizer, rule)
        self._vocab_size = tokenizer.vocab_size
        inner = Remembered(rule, False)
        # A text's first piece differs from the same piece inside only if the start is treated apart.
        first = inner if rule.interior is rule.backend else Remembered(rule, True)
        self._memory = {True: first, False: inner}

    def count(self, texts: Sequence[str], begins: Sequence[bool]) -> Counts:
        """Counts of a batch: (V,). ``begins`` is False for texts that stand behind a cut."""
        counts = np.zeros(self._vocab_size, np.int64)
        for parts, flags in groups(texts, begins, self._rule, PIECES_GROUP):
            counts += self._group(parts, flags)
        return counts

    def rows(self, texts: Sequence[str], begins: Sequence[bool]) -> list[list[int]]:
        """Ids of each text, put together from its pieces."""
        rows = []
        for text, begin in zip(texts, begins):
            pieces = self._rule.pieces(text)
            some = self._memory[bool(begin)].rows(pieces[:1]) + self._memory[False].rows(pieces[1:])
            rows.append(list(chain.from_iterable(some)))
        return rows

    def share(self, texts: Sequence[str]) -> float:
        """Cost of the pieces of ``texts``, nothing remembered, as a share of the plain path's."""
        pieces = Counter(piece for text in texts for piece in self._rule.pieces(text))
        return SPLIT_COST + Remembered(self._rule, False).cost(pieces) / max(1, sum(map(len, texts)))

    def _group(self, texts: Sequence[str], begins: Sequence[bool]) -> Counts:
        found: dict[bool, Counter[str]] = {True: Counter(), False: Counter()}
        for text, begin in zip(texts, begins):
            some = self._rule.pieces(text)
            found[bool(begin)].update(some[:1])
            found[False].update(some[1:])
        size = sum(map(len, texts))
        cost = sum(self._memory[begin].cost(pieces) for begin, pieces in found.items())
        if cost + SPLIT_COST * size > WORTH * size:
            return self._plain.count(texts, begins)
        counts = np.zeros(self._vocab_size, np.int64)
        for begin, pieces in found.items():
            counts += self._memory[begin].count(pieces, self._vocab_size)
        return counts


def make(tokenizer: TextTokenizer, rule: CutRule | NoCut, sample: Sequence[str]) -> PiecesEngine:
    """Suited to tokenizers with a cut rule, on text that repeats its pieces.

    Raises:
        NotSuited: nothing may be cut, or the sample hardly repeats itself.
    """
    if isinstance(rule, NoCut):
        raise NotSuited(rule.reason)
    engine = PiecesEngine(tokenizer, rule)
    if sum(map(len, sample)) >= SAMPLED and engine.share(sample) > HOPELESS:
        raise NotSuited("the sample hardly repeats a piece, so that the plain path is as fast")
    return engine
