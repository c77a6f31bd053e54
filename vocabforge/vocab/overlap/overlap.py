"""Overlap of two vocabularies: tokens with the same bytes.

The figures follow Timor et al. 2025 ("Accelerating LLM Inference with Lossless Speculative Decoding Algorithms
for Heterogeneous Vocabularies", tables 8 to 11). Tokens are compared by their byte forms; special tokens are
excluded, except for one pair of end tokens.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from pydantic.dataclasses import dataclass as record
from safetensors.numpy import load_file, save_file

from ...core.artifact import open_artifact, write_artifact
from ...core.config import RECORD
from ...core.errors import UsageError
from ...core.files import form_errors
from ...core.records import Count, read_record
from ...corpus.tokenizer.token_bytes import TokenForms, token_forms
from ...corpus.tokenizer.tokenizer import TextTokenizer
from ..subset.select import Ids
from .spelling import Speller

KIND = "overlap"
_FILE = "overlap.safetensors"


@dataclass(frozen=True, eq=False)
class ComparedVocabulary:
    """Tokenizer prepared for comparison; see :func:`prepare`."""

    tokenizer: TextTokenizer
    forms: TokenForms
    speller: Speller

    @property
    def ends(self) -> tuple[int, ...]:
        """End tokens without bytes."""
        return tuple(token for token in _eos(self.tokenizer) if self.forms.forms[token] is None)

    @cached_property
    def by_form(self) -> dict[bytes, list[int]]:
        """Ids of each byte form: first the id that the tokenizer itself produces, then ascending."""
        ids_by_form: defaultdict[bytes, list[int]] = defaultdict(list)
        for token, form in enumerate(self.forms.forms):
            if form:
                ids_by_form[form].append(token)
        repeated = [form for form, ids in ids_by_form.items() if len(ids) > 1]
        for form, spelled in zip(repeated, self.speller.spell(repeated), strict=True):
            if spelled is not None and len(spelled) == 1 and spelled[0] in ids_by_form[form]:
                ids_by_form[form].remove(spelled[0])
                ids_by_form[form].insert(0, spelled[0])
        return dict(ids_by_form)


def prepare(tokenizer: TextTokenizer) -> ComparedVocabulary:
    """Compute the byte forms and the speller of a tokenizer.

    Raises:
        DataError: the tokenizer's decoder is not supported.
    """
    forms = token_forms(tokenizer)
    return ComparedVocabulary(tokenizer, forms, Speller(tokenizer, forms))


@record(frozen=True, config=RECORD)
class VocabularySide:
    """Statistics of one of two vocabularies.

    Attributes:
        family: how the vocabulary represents bytes.
        vocab_size: highest id + 1.
        text_tokens: number of ids with bytes, including added tokens.
        special: number of special tokens and the unknown token.
        added: number of added tokens that are not special.
        unused: number of ids without a token.
        duplicates: number of ids beyond the first with the same bytes.
        single_bytes: how many of the 256 bytes have a token.
        shared: number of ids whose bytes are a token of the other side.
    """

    name: str
    fingerprint: str
    family: str
    vocab_size: Count
    text_tokens: Count
    special: Count
    added: Count
    unused: Count
    duplicates: Count
    single_bytes: Count
    eos: tuple[Count, ...]
    shared: Count


@dataclass(frozen=True, eq=False)
class Overlap:
    """Common tokens of two vocabularies.

    Attributes:
        pairs: (n, 2) int64, ids of A and B with the same bytes, one to one, ascending in A; among ids with
            the same bytes, the id that the tokenizer itself produces comes first, then the lower.
        forms: number of byte strings that are tokens of both.
        eos_pair: equivalent end tokens of A and B; None if a side has none.
    """

    pairs: Ids
    a: VocabularySide
    b: VocabularySide
    forms: int
    eos_pair: tuple[int, int] | None

    def to_json(self) -> dict[str, Any]:
        """Return all figures, without the pairs themselves."""
        return {
            "pairs": len(self.pairs),
            "forms": self.forms,
            "a": asdict(self.a),
            "b": asdict(self.b),
            "eos_pair": self.eos_pair,
        }


def compare(
    a: ComparedVocabulary, b: ComparedVocabulary, *, eos_pair: tuple[int, int] | None = None
) -> Overlap:
    """Compare two vocabularies; ``eos_pair`` are equivalent end tokens, by default the first of each side."""
    ends = a.ends, b.ends
    return Overlap(
        pair_up(a, b),
        _side(a, b),
        _side(b, a),
        len(a.by_form.keys() & b.by_form.keys()),
        eos_pair or ((ends[0][0], ends[1][0]) if all(ends) else None),
    )


def pair_up(a: ComparedVocabulary, b: ComparedVocabulary) -> Ids:
    """Return ``compare(a, b).pairs``, without the figures."""
    both = a.by_form.keys() & b.by_form.keys()
    pairs = sorted(pair for form in both for pair in zip(a.by_form[form], b.by_form[form], strict=False))
    return np.array(pairs, dtype=np.int64).reshape(-1, 2)


def end_token(vocab: ComparedVocabulary, named: str) -> int:
    """Return the special token with this text or id.

    Raises:
        UsageError: no such token.
    """
    tokenizer = vocab.tokenizer
    token = tokenizer.backend.token_to_id(named)
    if token not in vocab.forms.special and named.isdecimal():  # "2" may be the text of another token
        token = int(named)
    if token not in vocab.forms.special:
        raise UsageError(
            "this is not an end token",
            got=named,
            expected=f"text or id of a special token of {tokenizer.source}"
            + (f", such as {tokenizer.eos_ids[0]}" if tokenizer.eos_ids else ""),
            source="--eos",
        )
    return int(token)


def _eos(tokenizer: TextTokenizer) -> tuple[int, ...]:
    return tuple(token for token in tokenizer.eos_ids if token < tokenizer.vocab_size)


def _side(vocab: ComparedVocabulary, other: ComparedVocabulary) -> VocabularySide:
    forms, by_form = vocab.forms, vocab.by_form
    text_tokens = sum(map(len, by_form.values()))
    return VocabularySide(
        name=str(vocab.tokenizer.source.parent.resolve().name),
        fingerprint=vocab.tokenizer.fingerprint,
        family=forms.family,
        vocab_size=len(forms.forms),
        text_tokens=text_tokens,
        special=len(forms.special),
        added=len(forms.added),
        unused=len(forms.forms)
        - len(set(vocab.tokenizer.backend.get_vocab(with_added_tokens=True).values())),
        duplicates=text_tokens - len(by_form),
        single_bytes=sum(len(form) == 1 for form in by_form),
        eos=_eos(vocab.tokenizer),
        shared=sum(len(ids) for form, ids in by_form.items() if form in other.by_form),
    )


def save_overlap(
    overlap: Overlap, path: Path, *, config: Mapping[str, Any] | None = None, overwrite: bool = False
) -> None:
    """Write the artefact (kind ``overlap``): the pairs, with all figures in the manifest."""
    with write_artifact(path, KIND, overlap.to_json(), config=config, overwrite=overwrite) as folder:
        save_file({"pairs": np.ascontiguousarray(overlap.pairs)}, folder / _FILE)


def load_overlap(path: Path) -> Overlap:
    """Load and verify the artefact.

    Raises:
        ArtifactError: no such artefact, or its content does not match its manifest.
    """
    artifact = open_artifact(path, KIND)
    meta = artifact.meta
    with form_errors("the overlap cannot be read", path):
        pairs = load_file(artifact.file(_FILE))["pairs"]
        eos, forms = meta["eos_pair"], meta["forms"]
        if type(forms) is not int:
            raise TypeError(f"forms {forms!r}")
        # Artefacts of older versions have "needed".
        sides = [{key: value for key, value in meta[side].items() if key != "needed"} for side in "ab"]
        a, b = (read_record(VocabularySide, side) for side in sides)
        overlap = Overlap(pairs, a, b, forms, (eos[0], eos[1]) if eos is not None else None)
        if not _valid(overlap, int(meta["pairs"])):
            raise ValueError(
                f"pairs of {pairs.dtype} {pairs.shape}, not int64 ({meta['pairs']}, 2), one to one"
            )
    return overlap


def _valid(overlap: Overlap, count: int) -> bool:
    pairs = overlap.pairs
    if pairs.dtype != np.int64 or pairs.shape != (count, 2):
        return False
    sizes = (overlap.a.vocab_size, overlap.b.vocab_size)
    if overlap.eos_pair is not None and not all(
        type(token) is int and 0 <= token < size for token, size in zip(overlap.eos_pair, sizes, strict=True)
    ):
        raise ValueError(f"end tokens {overlap.eos_pair}")
    return all(
        len(np.unique(column)) == count and (not count or (column.min() >= 0 and column.max() < size))
        for column, size in zip(pairs.T, sizes, strict=True)
    )
