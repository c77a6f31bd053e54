"""Both vocabularies by bytes, for SLRS: the target's tokens as a trie, the drafter's in sorted order."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ....vocab.overlap.bridge import Bridge


class Segments(NamedTuple):
    """A text cut into target tokens, with the longest match at each position.

    Further bytes cannot change the first ``settled`` tokens. The tokens cover the first ``written`` bytes.
    """

    tokens: list[int]
    settled: int
    written: int


class TargetTrie:
    """The target's tokens by their bytes (one id each), without those far longer than their kept prefixes.

    A token is kept if no token is a proper prefix of it, or if its longest kept prefix is at most
    ``look_ahead`` bytes shorter. This limits how far the longest match has to read beyond a token. ``forms``
    are the kept tokens by id.
    """

    def __init__(self, ids: Mapping[bytes, int], look_ahead: int) -> None:
        self._longer: dict[bytes, list[bytes]] = {}
        above: list[bytes] = []  # kept prefixes of the current form, shortest first
        kept: list[bytes] = []
        for form in sorted(ids):  # a prefix is sorted before its extensions
            while above and not form.startswith(above[-1]):
                above.pop()
            if above and len(form) - len(above[-1]) > look_ahead:
                continue
            if above:
                self._longer.setdefault(above[-1], []).append(form)
            kept.append(form)
            above.append(form)
        self.ids = {form: ids[form] for form in kept}
        self.forms = {token: form for form, token in self.ids.items()}
        self._sorted = kept
        self._look_ahead = look_ahead
        self._longest = max(map(len, kept), default=0)

    def longer(self, form: bytes) -> Sequence[bytes]:
        """Return the shortest longer tokens that begin with a token; none is a prefix of another."""
        return self._longer.get(form, ())

    def match(self, text: bytes, start: int = 0) -> bytes:
        """Return the longest token of the text at ``start``; empty if there is none."""
        matched, end = b"", start
        most = min(len(text), start + self._longest)
        while end < most:
            end += 1
            piece = text[start:end]
            if piece in self.ids:
                matched = piece
            elif matched and len(piece) - len(matched) >= self._look_ahead:
                break
        return matched

    def segment(self, text: bytes, most: int) -> Segments:
        """Cut a text, from its beginning, into at most ``most`` tokens."""
        tokens: list[int] = []
        settled, at, final = 0, 0, True
        while len(tokens) < most and (form := self.match(text, at)):
            final = final and not self._goes_on(text[at:])
            settled += final
            tokens.append(self.ids[form])
            at += len(form)
        return Segments(tokens, settled, at)

    def _goes_on(self, rest: bytes) -> bool:
        if len(rest) >= self._longest:
            return False
        place = bisect_left(self._sorted, rest)
        place += place < len(self._sorted) and self._sorted[place] == rest
        return place < len(self._sorted) and self._sorted[place].startswith(rest)


class DraftWords:
    """The drafter's tokens of bytes, sorted by them (``ids``), and its end tokens.

    End tokens represent the end regardless of their bytes, and come last in a joint array. ``longest`` is in
    bytes.
    """

    def __init__(self, forms: Sequence[bytes | None], eos: Sequence[int]) -> None:
        named = sorted((form, token) for token, form in enumerate(forms) if form and token not in set(eos))
        self._forms = [form for form, _ in named]
        self.ids = [token for _, token in named]
        self.eos = list(eos)
        self.longest = max(map(len, self._forms), default=0)
        self._same: dict[bytes, tuple[int, int]] = {}
        for place, form in enumerate(self._forms):
            self._same[form] = self._same.get(form, (place,))[0], place + 1

    def __len__(self) -> int:
        return len(self.ids)

    def form(self, place: int) -> bytes:
        return self._forms[place]

    def same(self, form: bytes) -> tuple[int, int]:
        """Return the range of indices of the tokens that are exactly these bytes."""
        return self._same.get(form, (0, 0))

    def beginning(self, start: bytes) -> tuple[int, int]:
        """Return the range of indices of the tokens that begin with these bytes."""
        if len(start) > self.longest:
            return 0, 0
        end = _behind(start)
        last = len(self._forms) if end is None else bisect_left(self._forms, end)
        return bisect_left(self._forms, start), last


def _behind(start: bytes) -> bytes | None:
    """Return the first bytes after all that begin with ``start``; None if there are none."""
    short = start.rstrip(b"\xff")
    return short[:-1] + bytes([short[-1] + 1]) if short else None


def target_ids(bridge: Bridge) -> dict[bytes, int]:
    """Return one target id for each byte form.

    By preference: the id paired with a drafter's token, the id that the target's tokenizer uses, the lowest
    id. End tokens are left out, because they represent the end.
    """
    side = bridge.target
    ids: dict[bytes, int] = {}
    several: dict[bytes, set[int]] = {}
    for token, form in enumerate(side.forms):
        if not form or token in side.eos:
            continue
        if form in ids:
            several.setdefault(form, {ids[form]}).add(token)
        else:
            ids[form] = token
    for form, spelled in zip(several, side.speller.spell(list(several)) if several else (), strict=True):
        if spelled and len(spelled) == 1 and spelled[0] in several[form]:
            ids[form] = spelled[0]
    paired = set(bridge.pairs[:, 0].tolist())
    for token in bridge.pairs[:, 0].tolist():
        form = side.forms[token]
        if form and form in several and ids[form] not in paired:
            ids[form] = token
    return ids
