"""What the counting engines share."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from ..corpus.cutting import CutRule, NoCut
from .table import Counts

PART = 1 << 16  # characters: enough work for one core, little memory
GROUP = 1 << 19  # characters encoded at once; a token of the tokenizers library takes about 100 bytes


class NotSuited(Exception):
    """An engine that is not proven for a tokenizer, or not installed; the text says why."""


def groups(
    texts: Sequence[str], begins: Sequence[bool], rule: CutRule | NoCut, size: int = GROUP
) -> Iterator[tuple[list[str], list[bool]]]:
    """The texts in their order, long ones in parts at proven cuts, in groups of about ``size`` characters."""
    parts: list[str] = []
    flags: list[bool] = []
    held = 0
    for text, begin in zip(texts, begins, strict=True):
        some = rule.parts(text, PART) if isinstance(rule, CutRule) else [text]
        for at, part in enumerate(some):
            parts.append(part)
            flags.append(begin and at == 0)
            held += len(part)
            if held >= size:
                yield parts, flags
                parts, flags, held = [], [], 0
    if parts:
        yield parts, flags


def count_rows(rows: Sequence[Sequence[int]], vocab_size: int) -> Counts:
    """How often each id occurs: (V,)."""
    if not rows:
        return np.zeros(vocab_size, np.int64)
    ids = np.concatenate([np.asarray(row, dtype=np.int64) for row in rows])
    return np.bincount(ids, minlength=vocab_size)
