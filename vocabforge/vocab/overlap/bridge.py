"""Bridge for a drafter whose vocabulary differs from the target's.

Texts are exchanged as bytes: the target's tokens become bytes, which become the drafter's tokens, and vice
versa. Special tokens have no bytes and are not exchanged, except for one pair of end tokens.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from itertools import islice

import numpy as np

from ...core.errors import MismatchError
from ...corpus.tokenizer.token_bytes import TokenForms
from ...corpus.tokenizer.tokenizer import TextTokenizer
from ..subset.select import Ids
from .overlap import ComparedVocabulary, Overlap, pair_up, prepare
from .spelling import Speller


@dataclass(frozen=True, eq=False)
class BridgeSide:
    """One vocabulary, restricted to the rows of its model.

    Attributes:
        forms: bytes of every row of the model's LM head; None for special tokens and padded rows.
        eos: end tokens, except those that are also text; the token paired with the other side comes first.
        start: ids before a text (usually BOS), never empty.
        opening: bytes that the tokenizer adds before a text (the space of most SentencePiece vocabularies).
    """

    forms: tuple[bytes | None, ...]
    speller: Speller
    eos: tuple[int, ...]
    start: tuple[int, ...]
    opening: bytes = b""

    @cached_property
    def text_ids(self) -> Ids:
        """Ids with bytes, ascending."""
        return np.array([token for token, form in enumerate(self.forms) if form], dtype=np.int64)

    @cached_property
    def characters(self) -> frozenset[str]:
        """Characters that occur in its tokens."""
        return frozenset("".join(form.decode("utf-8", "ignore") for form in self.forms if form))

    @cached_property
    def closings(self) -> frozenset[bytes]:
        """Two-byte strings within tokens: a letter or mark and the white space after it (``;``, line end)."""
        return frozenset(re.findall(rb"(?=([^ \n\t\r\0][ \n\t\r]))", b"\0".join(filter(None, self.forms))))

    @cached_property
    def mean_bytes(self) -> float:
        """Mean length in bytes of the readable tokens; tokens of single fallback bytes are excluded."""
        forms = {form for form in self.forms if form}
        lengths = [len(form) for form in forms if _readable(form)] or [len(form) for form in forms]
        return sum(lengths) / max(len(lengths), 1)

    @cached_property
    def words(self) -> bool:
        """Whether tokens of words include the preceding space, so that words do not end in a space."""
        forms = [form for form in self.forms if form]
        return sum(form[:1] == b" " and len(form) > 2 for form in forms) * 20 >= len(forms) > 0


@dataclass(frozen=True, eq=False)
class Bridge:
    """Two vocabularies and their common tokens.

    Attributes:
        pairs: (n, 2) int64, ids of target and drafter with the same bytes, one to one, ascending by target.
        eos: equivalent end tokens of target and drafter.
    """

    target: BridgeSide
    drafter: BridgeSide
    pairs: Ids
    eos: tuple[int, int] | None

    @property
    def shared(self) -> float:
        """Share of the target's tokens that the drafter also has."""
        return len(self.pairs) / max(len(self.target.text_ids), 1)

    def ends(self, token: int) -> bool:
        """Return whether a drafter's token ends the text."""
        return token in self.drafter.eos


def make_bridge(
    target: TextTokenizer, drafter: TextTokenizer, rows: tuple[int, int], *, overlap: Overlap | None = None
) -> Bridge:
    """Compare two tokenizers, or use a saved overlap (``vocabforge compare-vocab --output``).

    ``rows`` are the rows of the LM heads of target and drafter; the models do not have ids beyond them.

    Raises:
        MismatchError: the overlap was made with other tokenizers.
        DataError: a tokenizer's decoder is not supported.
    """
    sides = prepare(target), prepare(drafter)
    # The artefact may pair other end tokens than the first.
    ends: tuple[int | None, int | None] = (None, None)
    if overlap is None:
        pairs = pair_up(*sides)
    else:
        check_overlap(overlap, target, drafter)
        pairs, ends = overlap.pairs, overlap.eos_pair or ends
    kept = (pairs < np.array(rows)).all(1)
    a, b = (_side(*side) for side in zip(sides, rows, ends, strict=True))
    return Bridge(a, b, pairs[kept], (a.eos[0], b.eos[0]) if a.eos and b.eos else None)


def _readable(form: bytes) -> bool:
    try:
        text = form.decode()
    except UnicodeDecodeError:
        return False
    return all(character.isprintable() or character in "\n\r\t" for character in text)


def check_overlap(overlap: Overlap, target: TextTokenizer, drafter: TextTokenizer) -> None:
    """Check that an overlap was made with these tokenizers.

    Raises:
        MismatchError: one of the tokenizers differs.
    """
    for role, tokenizer, made in (("target", target, overlap.a), ("drafter", drafter, overlap.b)):
        if tokenizer.fingerprint != made.fingerprint:
            raise MismatchError(
                f"the overlap was made with another tokenizer than the {role}'s",
                got=f"{made.name} ({made.fingerprint[:12]})",
                expected=f"{tokenizer.fingerprint[:12]} of {tokenizer.source}",
                remedy="vocabforge compare-vocab TARGET DRAFTER --output DIR",
            )


def _side(vocab: ComparedVocabulary, rows: int, first: int | None) -> BridgeSide:
    """Return one side; ``first`` is moved before its other end tokens."""
    forms = (*vocab.forms.forms[:rows], *[None] * (rows - len(vocab.forms.forms)))
    ends = vocab.ends if first is None else (first, *(token for token in vocab.ends if token != first))
    eos = tuple(token for token in ends if token < rows)
    opening = opening_of(vocab.tokenizer, vocab.forms)
    return BridgeSide(forms, vocab.speller.within(rows), eos, _start_of(vocab.tokenizer, rows), opening)


def _start_of(tokenizer: TextTokenizer, rows: int) -> tuple[int, ...]:
    """Return the tokenizer's prefix, else its BOS, else its first end token, else id 0."""
    bos = () if tokenizer.bos_id is None else (tokenizer.bos_id,)
    for ids in (tokenizer.prefix_ids, bos, tokenizer.eos_ids[:1]):
        if ids and max(ids) < rows:
            return ids
    return (0,)


def opening_of(tokenizer: TextTokenizer, forms: TokenForms) -> bytes:
    """Return the bytes that a tokenizer adds before a text (a space in most SentencePiece vocabularies)."""
    letters = (form.strip() for form in forms.forms if form)
    known = (form.decode() for form in letters if form.isalnum())  # ASCII
    for letter in ("a", *islice(known, 8)):
        whole = b"".join(forms.forms[token] or b"" for token in tokenizer.encode(letter))
        if whole.endswith(letter.encode()):
            before = whole.removesuffix(letter.encode())
            return before if before.isspace() else b""
    return b""
