"""The reference: every text through the tokenizers library."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..corpus.cutting import CutRule, NoCut
from ..corpus.tokenizer import TextTokenizer
from .engine_parts import count_rows, groups
from .table import Counts


class PlainEngine:
    """``encode_batch_fast`` and a bincount; long texts go in parts at proven cuts, so that memory is bounded."""

    name = "plain"

    def __init__(self, tokenizer: TextTokenizer, rule: CutRule | NoCut) -> None:
        self._tokenizer = tokenizer
        self._rule = rule

    def count(self, texts: Sequence[str], begins: Sequence[bool]) -> Counts:
        """Counts of a batch: (V,). ``begins`` is False for texts that stand behind a cut."""
        counts = np.zeros(self._tokenizer.vocab_size, np.int64)
        for parts, flags in groups(texts, begins, self._rule):
            counts += count_rows(self.rows(parts, flags), len(counts))
        return counts

    def rows(self, texts: Sequence[str], begins: Sequence[bool]) -> list[list[int]]:
        """Ids of each text."""
        if all(begins) or not isinstance(self._rule, CutRule):
            return self._tokenizer.encode_batch(texts)
        rows: list[list[int]] = [[] for _ in texts]
        for wanted in (True, False):
            chosen = [at for at, begin in enumerate(begins) if bool(begin) is wanted]
            for at, ids in zip(chosen, self._rule.encode([texts[at] for at in chosen], wanted)):
                rows[at] = ids
        return rows


def make(tokenizer: TextTokenizer, rule: CutRule | NoCut, sample: Sequence[str]) -> PlainEngine:
    """Any tokenizer is suited."""
    return PlainEngine(tokenizer, rule)
