"""Bridges between vocabularies made by hand."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

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
