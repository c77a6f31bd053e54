"""Two tokenizers on the same texts: tokens, shared tokens in use, common boundaries, round trips."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
from tokenizers import Encoding, Tokenizer

from ...core.errors import DataError
from ...corpus.sources.sources import Document
from ..subset.select import Ids
from .overlap import ComparedVocabulary, histogram

_BATCH_CHARACTERS = 1 << 18
_SHOWN_FAILURES = 5


@dataclass
class _Tally:
    counts: Ids
    boundaries: int = 0
    exact: int = 0
    failures: list[dict[str, Any]] = field(default_factory=list)


def compare_on_corpus(
    a: ComparedVocabulary, b: ComparedVocabulary, documents: Iterable[Document]
) -> dict[str, Any]:
    """Figures of both tokenizers over documents.

    Returns:
        ``documents``, ``bytes``, ``boundaries_shared`` and, under ``a`` and ``b``: ``tokens``,
        ``bytes_per_token``, ``shared`` (occurrences of tokens whose bytes are a token of the other side),
        ``needed`` (occurrences by how many tokens of the other side they need), ``boundaries`` (places between
        two characters, inside a document, where a token ends), ``exact`` (documents that encoding and decoding
        give back unchanged), ``failures`` (the first few that they do not).

    Raises:
        DataError: there are no documents.
    """
    sides = (a, b)
    backends = [_plain_offsets(side) for side in sides]
    tallies = [_Tally(np.zeros(len(side.forms.forms), dtype=np.int64)) for side in sides]
    number = size = common = 0
    for batch in _batches(documents):
        texts = [text for text, _ in batch]
        number += len(texts)
        size += sum(len(text.encode("utf-8", "surrogatepass")) for text in texts)
        rows = [backend.encode_batch(texts, add_special_tokens=False) for backend in backends]
        for tally, side, encoded in zip(tallies, sides, rows, strict=True):
            _count(tally, side, batch, encoded)
        for text, one, other in zip(texts, *rows, strict=True):
            ends, theirs = _ends(one, len(text)), _ends(other, len(text))
            tallies[0].boundaries += len(ends)
            tallies[1].boundaries += len(theirs)
            common += len(ends & theirs)
    if not number:
        raise DataError("the corpus has no text to compare on", remedy="check --input and --text-field")
    return {
        "documents": number,
        "bytes": size,
        "boundaries_shared": common,
        "a": _figures(tallies[0], a, b, size),
        "b": _figures(tallies[1], b, a, size),
    }


def _batches(documents: Iterable[Document]) -> Iterator[list[tuple[str, str]]]:
    """(text, where it stands) of documents that are not empty."""
    batch: list[tuple[str, str]] = []
    held = 0
    for document in documents:
        text = document.plain_text()
        if not text:
            continue
        batch.append((text, f"{document.source}:{document.line}"))
        held += len(text)
        if held >= _BATCH_CHARACTERS:
            yield batch
            batch, held = [], 0
    if batch:
        yield batch


def _plain_offsets(side: ComparedVocabulary) -> Tokenizer:
    """The tokenizer without its post-processor, which may trim spaces off the offsets."""
    content = json.loads(side.tokenizer.backend.to_str())
    return Tokenizer.from_str(json.dumps({**content, "post_processor": None}))


def _count(
    tally: _Tally, side: ComparedVocabulary, batch: Sequence[tuple[str, str]], rows: list[Encoding]
) -> None:
    ids = np.concatenate([np.asarray(row.ids, dtype=np.int64) for row in rows])
    tally.counts += np.bincount(ids, minlength=len(tally.counts))
    for (text, place), row in zip(batch, rows, strict=True):
        decoded = side.tokenizer.decode(row.ids, skip_special=False)
        if decoded == text:
            tally.exact += 1
        elif len(tally.failures) < _SHOWN_FAILURES:
            tally.failures.append({"place": place, **_difference(text, decoded)})


def _difference(text: str, decoded: str, around: int = 12) -> dict[str, str]:
    """Both texts around the first place where they differ."""
    pairs = enumerate(zip(text, decoded, strict=False))
    at = next((at for at, (one, other) in pairs if one != other), min(len(text), len(decoded)))
    start = max(0, at - around)
    return {"text": text[start : at + around], "decoded": decoded[start : at + around]}


def _ends(row: Encoding, length: int) -> set[int]:
    """Places inside a text where a token ends; not those where it ends inside a character, offsets being whole."""
    return {
        end
        for (start, end), (following, _) in pairwise(row.offsets)
        if start < end <= following and end < length
    }


def _figures(tally: _Tally, one: ComparedVocabulary, other: ComparedVocabulary, size: int) -> dict[str, Any]:
    theirs = {form for form in other.forms.forms if form}
    shared = np.array([form in theirs for form in one.forms.forms], dtype=np.bool_)
    tokens = int(tally.counts.sum())
    # Only the tokens that occur need to be spelled.
    used = [form if count else None for form, count in zip(one.forms.forms, tally.counts, strict=True)]
    return {
        "tokens": tokens,
        "bytes_per_token": round(size / tokens, 4) if tokens else None,
        "shared": int(tally.counts[shared].sum()),
        "needed": list(histogram(other.speller.lengths(used), tally.counts)),
        "boundaries": tally.boundaries,
        "exact": tally.exact,
        "failures": tally.failures,
    }
