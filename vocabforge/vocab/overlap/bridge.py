"""What a drafter needs to know to draft for a target with another vocabulary.

Texts go over as bytes: a target's tokens become bytes, and those the drafter's tokens, and back. Special tokens
stand for nothing and never go over, but for one pair of end tokens.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from itertools import islice

import numpy as np

from ...core.errors import MismatchError
from ...corpus.tokenizer.tokenizer import TextTokenizer
from ..subset.select import Ids
from .overlap import ComparedVocabulary, Overlap, pair_up, prepare
from .spelling import Speller
from .token_bytes import TokenForms


@dataclass(frozen=True, eq=False)
class BridgeSide:
    """One vocabulary, as far as its model can read and write it.

    Attributes:
        forms: bytes of every row of the model's LM head; None for special tokens and padded rows.
        eos: its end tokens, but for those that are text as well; first the one paired with the other side's.
        start: what stands before a text (its BOS, mostly); never empty.
        opening: bytes that its tokenizer puts before a text (the space of most SentencePiece vocabularies).
    """

    forms: tuple[bytes | None, ...]
    speller: Speller
    eos: tuple[int, ...]
    start: tuple[int, ...]
    opening: bytes = b""

    @cached_property
    def text_ids(self) -> Ids:
        """Ids that stand for bytes, ascending."""
        return np.array([token for token, form in enumerate(self.forms) if form], dtype=np.int64)

    @cached_property
    def characters(self) -> frozenset[str]:
        """Characters that occur in its tokens."""
        return frozenset("".join(form.decode("utf-8", "ignore") for form in self.forms if form))

    @cached_property
    def closings(self) -> frozenset[bytes]:
        """Two bytes each: a letter or mark and the white space that ends it within a token (``;`` and a line end)."""
        return frozenset(re.findall(rb"(?=([^ \n\t\r\0][ \n\t\r]))", b"\0".join(filter(None, self.forms))))

    @cached_property
    def mean_bytes(self) -> float:
        """Mean length of the tokens that people can read; single bytes kept for what has no token are left out."""
        forms = {form for form in self.forms if form}
        lengths = [len(form) for form in forms if _readable(form)] or [len(form) for form in forms]
        return sum(lengths) / max(len(lengths), 1)

    @cached_property
    def words(self) -> bool:
        """Whether words are tokens together with the space before them, so that none ends in a space of its own."""
        forms = [form for form in self.forms if form]
        return sum(form[:1] == b" " and len(form) > 2 for form in forms) * 20 >= len(forms) > 0


@dataclass(frozen=True, eq=False)
class Bridge:
    """Two vocabularies; ``pairs`` (n, 2) int64 are ids of target and drafter with the same bytes, one to one, ascending
    in the target's; ``eos`` is an end token of each that stand for each other.
    """

    target: BridgeSide
    drafter: BridgeSide
    pairs: Ids
    eos: tuple[int, int] | None

    @property
    def shared(self) -> float:
        """Share of the target's tokens that the drafter has, too."""
        return len(self.pairs) / max(len(self.target.text_ids), 1)

    def ends(self, token: int) -> bool:
        """Whether a drafter's token ends the text."""
        return token in self.drafter.eos


def make_bridge(
    target: TextTokenizer,
    drafter: TextTokenizer,
    rows: tuple[int, int],
    *,
    overlap: Overlap | None = None,
) -> Bridge:
    """Compare two tokenizers, or take a saved overlap (``vocabforge compare-vocab --output``).

    ``rows`` are those of the LM heads of target and drafter; ids beyond them do not exist for the models.

    Raises:
        MismatchError: the overlap is one of other tokenizers.
        DataError: a tokenizer's decoder is not one whose bytes are known.
    """
    sides = prepare(target), prepare(drafter)
    ends: tuple[int | None, int | None] = (None, None)  # the artefact may pair others than the first
    if overlap is None:
        pairs = pair_up(*sides)
    else:
        check_overlap(overlap, target, drafter)
        pairs, ends = overlap.pairs, overlap.eos_pair or ends
    kept = (pairs < np.array(rows)).all(1)
    a, b = (_side(*one) for one in zip(sides, rows, ends, strict=True))
    return Bridge(a, b, pairs[kept], (a.eos[0], b.eos[0]) if a.eos and b.eos else None)


def _readable(form: bytes) -> bool:
    try:
        text = form.decode()
    except UnicodeDecodeError:
        return False
    return all(character.isprintable() or character in "\n\r\t" for character in text)


def check_overlap(overlap: Overlap, target: TextTokenizer, drafter: TextTokenizer) -> None:
    """Refuse an overlap of other tokenizers.

    Raises:
        MismatchError: one of the two is another one.
    """
    for role, one, made in (("target", target, overlap.a), ("drafter", drafter, overlap.b)):
        if one.fingerprint != made.fingerprint:
            raise MismatchError(
                f"the overlap was made with another tokenizer than the {role}'s",
                got=f"{made.name} ({made.fingerprint[:12]})",
                expected=f"{one.fingerprint[:12]} of {one.source}",
                remedy="vocabforge compare-vocab TARGET DRAFTER --output DIR",
            )


def _side(one: ComparedVocabulary, rows: int, first: int | None) -> BridgeSide:
    """One side; ``first`` goes before its other end tokens."""
    forms = (*one.forms.forms[:rows], *[None] * (rows - len(one.forms.forms)))
    ends = one.ends if first is None else (first, *(token for token in one.ends if token != first))
    eos = tuple(token for token in ends if token < rows)
    opening = opening_of(one.tokenizer, one.forms)
    return BridgeSide(forms, one.speller.within(rows), eos, _start_of(one.tokenizer, rows), opening)


def _start_of(tokenizer: TextTokenizer, rows: int) -> tuple[int, ...]:
    """What its own prefix puts before a text, else its BOS, else its end token, else any."""
    bos = () if tokenizer.bos_id is None else (tokenizer.bos_id,)
    for ids in (tokenizer.prefix_ids, bos, tokenizer.eos_ids[:1]):
        if ids and max(ids) < rows:
            return ids
    return (0,)


def opening_of(tokenizer: TextTokenizer, forms: TokenForms) -> bytes:
    """What a tokenizer puts before a text: the space of most SentencePiece vocabularies, or nothing."""
    letters = (form.strip() for form in forms.forms if form)
    known = (form.decode() for form in letters if form.isalnum())  # ASCII
    for letter in ("a", *islice(known, 8)):
        whole = b"".join(forms.forms[token] or b"" for token in tokenizer.encode(letter))
        if whole.endswith(letter.encode()):
            before = whole.removesuffix(letter.encode())
            return before if before.isspace() else b""
    return b""
