"""Counting distinct pieces: a text is cut wherever that is proven, and every distinct piece is encoded once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import chain

import numpy as np
import numpy.typing as npt

from ...corpus.tokenizer.cuts import CutRule, NoCut
from ...corpus.tokenizer.tokenizer import TextTokenizer
from .engines import NotSuited, PlainEngine, groups
from .table import Counts

MAX_PIECES = 400_000  # remembered; about 40 MB of text and slots
MAX_IDS = 4_000_000  # remembered; 16 MB
LONG_PIECE = 256  # characters; longer ones hardly come twice
CALL_COST = 16  # handing one piece to the library costs as much as this many characters of plain text
SPLIT_COST = 0.25  # splitting and counting a character, as a share of encoding it plainly
WORTH = 0.9  # pieces are used while they cost less than this share of the plain path
PIECES_GROUP = 1 << 20  # characters whose distinct pieces are held at once
HOPELESS = 1.1  # a sample whose pieces cost more than this share hardly repeats itself
SAMPLED = 1 << 16  # characters of a sample from which it can say that a text hardly repeats itself


class Remembered:
    """Ids of pieces that were encoded before, in one pool, with a bound on its size.

    Args:
        rule: cuts the pieces.
        begins: the pieces stand at the start of a text.
    """

    def __init__(self, rule: CutRule, begins: bool) -> None:
        self._rule = rule
        self._begins = begins
        self._forget()

    def _forget(self) -> None:
        self._slots: dict[str, int] = {}
        self._starts = np.zeros(1, np.int64)  # (pieces + 1,): piece i has ids starts[i]:starts[i + 1]
        self._pool = np.zeros(0, np.uint32)

    def cost(self, pieces: Mapping[str, int]) -> int:
        """Characters of plain text that encoding the unknown ones among ``pieces`` is worth."""
        new = [piece for piece in pieces if piece not in self._slots]
        return sum(map(len, new)) + CALL_COST * len(new)

    def count(self, pieces: Mapping[str, int], vocab_size: int) -> Counts:
        """Counts of pieces with their multiplicity: (V,)."""
        counts = np.zeros(vocab_size, np.int64)
        long = [piece for piece in pieces if len(piece) > LONG_PIECE]
        for piece, row in zip(long, self._rule.encode(long, self._begins)):
            np.add.at(counts, row, pieces[piece])
        rest = {piece: times for piece, times in pieces.items() if len(piece) <= LONG_PIECE}
        if not rest:
            return counts
        ids, lengths = self._gather(rest)
        times = np.fromiter(rest.values(), np.int64, len(rest))
        # Sums of whole numbers below 2**53 are exact in the float64 of bincount.
        weights = np.repeat(times, lengths)  # (ids,)
        return counts + np.bincount(ids, weights=weights, minlength=vocab_size).astype(np.int64)

    def ids(self, pieces: Sequence[str]) -> list[int]:
        """Ids of pieces one after the other."""
        ids: list[int] = self._gather(pieces)[0].tolist()
        return ids

    def _gather(self, pieces: Collection[str]) -> tuple[npt.NDArray[np.uint32], npt.NDArray[np.int64]]:
        """(ids of the pieces one after the other, how many each has)."""
        self._learn(pieces)
        slots = np.fromiter(map(self._slots.__getitem__, pieces), np.int64, len(pieces))
        starts, lengths = self._starts[slots], np.diff(self._starts)[slots]
        ends = np.cumsum(lengths)
        shift = np.repeat(starts - ends + lengths, lengths)  # (ids,): from the place here to that in the pool
        return self._pool[shift + np.arange(len(shift))], lengths

    def _learn(self, pieces: Iterable[str]) -> None:
        if len(self._slots) > MAX_PIECES or len(self._pool) > MAX_IDS:
            self._forget()
        new = [piece for piece in dict.fromkeys(pieces) if piece not in self._slots]
        if not new:
            return
        rows = self._rule.encode(new, self._begins)
        self._slots.update(zip(new, range(len(self._slots), len(self._slots) + len(new))))
        fresh = np.fromiter(chain.from_iterable(rows), np.uint32)
        ends = self._starts[-1] + np.cumsum(np.fromiter(map(len, rows), np.int64, len(rows)))
        self._starts = np.concatenate([self._starts, ends])
        self._pool = np.concatenate([self._pool, fresh])


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
            head = self._memory[bool(begin)].ids(pieces[:1])
            rows.append(head + self._memory[False].ids(pieces[1:]))
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
