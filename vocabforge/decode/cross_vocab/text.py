"""The text of one request in a drafter's own tokens, kept up by bytes as the target writes on.

Only what is new is spelled, and the word that it may belong to: the text before stays as the drafter has read it,
so that its keys stay valid. How a text is spelled costs or gains acceptance and never touches the output.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import accumulate, groupby

from ...vocab.overlap.bridge import Bridge

WORD_BYTES = 48  # most bytes before a new piece that are spelled anew with it
_WHITE = b" \n\t\r"
_WORDS = re.compile(rb"\s*\S+|\s+")

Pairs = list[tuple[int, int]]  # (token, where its bytes end in the text that was spelled)


class DraftText:
    """One text, as the drafter reads it: ``ids``, its start token first, and the last bytes ``held``, which no token
    covers: a character that is not complete yet, and with ``hold_space`` a space, which the drafter writes with the
    word that follows."""

    def __init__(self, bridge: Bridge, hold_space: bool = False) -> None:
        self._bridge, self._hold_space = bridge, hold_space
        self._forms = bridge.drafter.forms
        self._closings = bridge.drafter.closings
        self._opening = bridge.drafter.opening  # what the drafter's tokenizer puts before a text
        self.begin(())

    def begin(self, prompt_ids: Sequence[int]) -> None:
        """A new text, from the target's tokens."""
        self.ids = list(self._bridge.drafter.start)
        self.held = b""
        self._size = 0  # bytes of the text so far, but for those held
        self._ends = [0] * len(self.ids)  # bytes of the text up to each token's end
        self._recent = b""  # the last of them; none from before a special token
        self._first, self._begun = len(self.ids), 0  # token and byte behind the last special token
        # The target's own start is the drafter's already; where it is an end token, too, it would go over once more.
        begun = [
            token for token in prompt_ids[:1] if token in self._bridge.target.start and not self._form(token)
        ]
        self.add(prompt_ids[len(begun) :])

    def _form(self, token: int) -> bytes | None:
        """Bytes of a token of the target."""
        forms = self._bridge.target.forms
        return forms[token] if token < len(forms) else None

    def add(self, tokens: Sequence[int], drafted: Iterable[Sequence[int]] = ()) -> int:
        """Append tokens of the target; returns how many of the leading ids are as they were.

        Of ``drafted``, paths of drafter's tokens that may continue ``ids``, what agrees with the text of the one that
        agrees furthest is taken over.
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
        """Keep the last ``most`` ids only, at least one."""
        lost = max(len(self.ids) - max(most, 1), 0)
        del self.ids[:lost], self._ends[:lost]
        self._first -= lost

    def _pieces(self, tokens: Sequence[int]) -> list[bytes | int]:
        """The target's tokens: those that stand for bytes joined, special ones between them."""
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
        """A special token: an end goes over as the drafter's own, others leave no trace."""
        self.held = self._recent = b""
        if self._bridge.eos is not None and token == self._bridge.eos[0]:
            self.ids.append(self._bridge.eos[1])
            self._ends.append(self._size)
        self._first, self._begun = len(self.ids), self._size

    def _extend(self, new: bytes, drafted: Iterable[Sequence[int]]) -> int:
        """More bytes; how many leading ids are as they were."""
        kept, pending = len(self.ids), self.held + new
        path = max((self._agreeing(one, pending) for one in drafted), key=_reach, default=Pairs())
        taken = _reach(path)
        self._append(path, pending[:taken])
        complete = cut_incomplete(pending[taken:])
        if self._hold_space and complete[-1:] == b" " and complete[-2:] != b"  ":
            complete = complete[:-1]
        self.held = pending[taken + len(complete) :]
        return min(kept, self._write(complete)) if complete else kept

    def _agreeing(self, path: Sequence[int], pending: bytes) -> Pairs:
        """The tokens at the beginning of a path whose bytes the text has."""
        found, at = Pairs(), 0
        for token in path:
            form = self._forms[token]
            if not form or not pending.startswith(form, at):
                break
            at += len(form)
            found.append((token, at))
        return found

    def _write(self, new: bytes) -> int:
        """Spell bytes together with the beginning of their word; how many leading ids are as they were."""
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
        """Where the tokens of the word that goes on begin, and its bytes: 0 where none does, or out of reach."""
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
        """Tokens behind the text, and the bytes that they and what is left out between them cover."""
        self.ids += [token for token, _ in pairs]
        self._ends += [self._size + end for _, end in pairs]
        self._size += len(covered)
        self._recent = (self._recent + covered)[-WORD_BYTES:]

    def _spell(self, text: bytes) -> Pairs:
        """The drafter's tokens for bytes; what it has no tokens for is left out."""
        spell = self._bridge.drafter.speller.spell
        (whole,) = spell([text])
        if whole:
            return self._ended(whole, 0)
        words, pairs = list(_WORDS.finditer(text)), Pairs()
        for word, ids in zip(words, spell([word[0] for word in words]), strict=True):
            pairs += self._ended(ids, word.start()) if ids else self._parts(word[0], word.start())
        return pairs

    def _parts(self, word: bytes, at: int) -> Pairs:
        """A word by its longest parts of letters that the drafter has, else letter by letter."""
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
    """Whether a word starts behind the first byte: with the white space before it."""
    return text[0] not in _WHITE and text[1] in _WHITE


def cut_incomplete(text: bytes) -> bytes:
    """Bytes without the beginning of a UTF-8 character at their end; bytes that begin none stay."""
    for back in range(1, min(3, len(text)) + 1):
        byte = text[-back]
        if byte < 0x80:
            break
        if byte >= 0xC0:  # begins a character of 2, 3 or 4 bytes
            needed = 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
            return text[:-back] if byte < 0xF8 and needed > back else text
    return text
