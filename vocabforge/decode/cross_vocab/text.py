"""The text of one request in a drafter's own tokens, updated byte by byte as the target continues it.

Only new text is spelled, with the word that it may continue. Earlier text stays as the drafter has read it,
so that its keys stay valid. The spelling of a text affects acceptance but never the output.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import accumulate, groupby

from ...vocab.overlap.bridge import Bridge

WORD_BYTES = 48  # maximum bytes before a new piece that are spelled again with it
_WHITE = b" \n\t\r"
_WORDS = re.compile(rb"\s*\S+|\s+")

Pairs = list[tuple[int, int]]  # (token, end of its bytes in the text that was spelled)


class DraftText:
    """One text as the drafter reads it.

    ``ids`` begin with the start token. ``held`` are the last bytes, which no token covers: an incomplete
    character and, with ``hold_space``, a space, which the drafter writes with the following word.
    """

    def __init__(self, bridge: Bridge, hold_space: bool = False) -> None:
        self._bridge, self._hold_space = bridge, hold_space
        self._forms = bridge.drafter.forms
        self._closings = bridge.drafter.closings
        self._opening = bridge.drafter.opening  # bytes that the drafter's tokenizer puts before a text
        self.begin(())

    def begin(self, prompt_ids: Sequence[int]) -> None:
        """Start a new text from the target's tokens."""
        self.ids = list(self._bridge.drafter.start)
        self.held = b""
        self._size = 0  # bytes of the text so far, without ``held``
        self._ends = [0] * len(self.ids)  # bytes of the text up to each token's end
        self._recent = b""  # the last of these bytes; none from before a special token
        self._first, self._begun = len(self.ids), 0  # token and byte after the last special token
        # Skip the target's start token, as ``ids`` has the drafter's; if it is also an end token, it would be
        # added again.
        begun = [
            token for token in prompt_ids[:1] if token in self._bridge.target.start and not self._form(token)
        ]
        self.add(prompt_ids[len(begun) :])

    def _form(self, token: int) -> bytes | None:
        forms = self._bridge.target.forms
        return forms[token] if token < len(forms) else None

    def add(self, tokens: Sequence[int], drafted: Iterable[Sequence[int]] = ()) -> int:
        """Append target tokens; return how many leading ids are unchanged.

        ``drafted`` are paths of drafter tokens that may continue ``ids``. The tokens of the path that agrees
        furthest with the text are reused as far as they agree.
        """
        kept = len(self.ids)
        for piece in self._pieces(tokens):
            if isinstance(piece, bytes):
                kept = min(kept, self._extend(piece, drafted))
            else:
                self._mark(piece)
            drafted = ()
        return kept

    def forget(self, most: int) -> None:
        """Keep only the last ``most`` ids, at least one."""
        lost = max(len(self.ids) - max(most, 1), 0)
        del self.ids[:lost], self._ends[:lost]
        self._first -= lost

    def _pieces(self, tokens: Sequence[int]) -> list[bytes | int]:
        pieces, run = list[bytes | int](), list[bytes]()
        for token in tokens:
            form = self._form(token)
            if form is not None:
                run.append(form)
                continue
            pieces += [b"".join(run), token]
            run = []
        return [*pieces, b"".join(run)]

    def _mark(self, token: int) -> None:
        """Append a special token: an end becomes the drafter's own, others are dropped."""
        self.held = self._recent = b""
        if self._bridge.eos is not None and token == self._bridge.eos[0]:
            self.ids.append(self._bridge.eos[1])
            self._ends.append(self._size)
        self._first, self._begun = len(self.ids), self._size

    def _extend(self, new: bytes, drafted: Iterable[Sequence[int]]) -> int:
        """Append bytes; return how many leading ids are unchanged."""
        kept, pending = len(self.ids), self.held + new
        path = max((self._agreeing(tokens, pending) for tokens in drafted), key=_reach, default=Pairs())
        taken = _reach(path)
        self._append(path, pending[:taken])
        complete = cut_incomplete(pending[taken:])
        if self._hold_space and complete[-1:] == b" " and complete[-2:] != b"  ":
            complete = complete[:-1]
        self.held = pending[taken + len(complete) :]
        return min(kept, self._write(complete)) if complete else kept

    def _agreeing(self, path: Sequence[int], pending: bytes) -> Pairs:
        """Return the leading tokens of a path whose bytes the text has."""
        pairs, at = Pairs(), 0
        for token in path:
            form = self._forms[token]
            if not form or not pending.startswith(form, at):
                break
            at += len(form)
            pairs.append((token, at))
        return pairs

    def _write(self, new: bytes) -> int:
        """Spell bytes with the beginning of their word; return how many leading ids are unchanged."""
        place, size = self._word(new)
        text = self._recent[len(self._recent) - size :] + new
        opening = b"" if size < self._size or text.startswith(self._opening) else self._opening
        pairs = [(token, max(end - len(opening), 0)) for token, end in self._spell(opening + text)]
        old = self.ids[place:]
        del self.ids[place:], self._ends[place:]
        self._size -= size
        self._recent = self._recent[: len(self._recent) - size]
        self._append(pairs, text)
        same = 0
        while same < min(len(pairs), len(old)) and pairs[same][0] == old[same]:
            same += 1
        return place + same

    def _word(self, new: bytes) -> tuple[int, int]:
        """Find the word that continues: its first token and size in bytes, 0 if absent or too long."""
        recent, last = self._recent, len(self.ids)
        if recent and _starts_word(recent[-1:] + new) and recent[-1:] + new[:1] not in self._closings:
            return last, 0
        for place in range(last, max(self._first, 1) - 1, -1):
            begins = place == self._first
            size = self._size - (self._begun if begins else self._ends[place - 1])
            if size > len(recent):
                break
            inside = 0 < size < len(recent)
            if begins or (
                inside and (_starts_word(recent[-size - 1 :]) or self._closes(self.ids[place - 1]))
            ):
                return place, size
        return last, 0

    def _closes(self, token: int) -> bool:
        return (self._forms[token] or b"")[-2:] in self._closings

    def _append(self, pairs: Pairs, covered: bytes) -> None:
        self.ids += [token for token, _ in pairs]
        self._ends += [self._size + end for _, end in pairs]
        self._size += len(covered)
        self._recent = (self._recent + covered)[-WORD_BYTES:]

    def _spell(self, text: bytes) -> Pairs:
        """Return the drafter's tokens for bytes; bytes without tokens are left out."""
        spell = self._bridge.drafter.speller.spell
        (whole,) = spell([text])
        if whole:
            return self._ended(whole, 0)
        words, pairs = list(_WORDS.finditer(text)), Pairs()
        for word, ids in zip(words, spell([word[0] for word in words]), strict=True):
            pairs += self._ended(ids, word.start()) if ids else self._parts(word[0], word.start())
        return pairs

    def _parts(self, word: bytes, at: int) -> Pairs:
        """Spell a word by its longest parts of letters that the drafter has, otherwise letter by letter."""
        spell, known = self._bridge.drafter.speller.spell, self._bridge.drafter.characters
        pairs = Pairs()
        for has, letters in groupby(word.decode("utf-8", "surrogateescape"), known.__contains__):
            parts = [letter.encode("utf-8", "surrogateescape") for letter in letters]
            whole = spell([b"".join(parts)])[0] if has else None
            if whole:
                pairs += self._ended(whole, at)
            else:
                for start, ids in zip(accumulate(map(len, parts), initial=at), spell(parts), strict=False):
                    pairs += self._ended(ids or [], start)
            at += sum(map(len, parts))
        return pairs

    def _ended(self, ids: Sequence[int], at: int) -> Pairs:
        lengths = (len(self._forms[token] or b"") for token in ids)
        return list(zip(ids, list(accumulate(lengths, initial=at))[1:], strict=True))


def _reach(pairs: Pairs) -> int:
    return pairs[-1][1] if pairs else 0


def _starts_word(text: bytes) -> bool:
    """Return whether a word, including the white space before it, starts after the first byte."""
    return text[0] not in _WHITE and text[1] in _WHITE


def cut_incomplete(text: bytes) -> bytes:
    """Remove an incomplete UTF-8 character from the end of bytes; invalid bytes stay."""
    for back in range(1, min(3, len(text)) + 1):
        byte = text[-back]
        if byte < 0x80:
            break
        if byte >= 0xC0:  # begins a character of 2, 3 or 4 bytes
            needed = 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
            return text[:-back] if byte < 0xF8 and needed > back else text
    return text
