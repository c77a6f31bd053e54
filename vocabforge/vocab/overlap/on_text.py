"""Comparison of two tokenizers on the same texts: tokens, shared tokens in use, round trips."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from ...core.errors import DataError
from ...corpus.prepared.dataset import batched
from ...corpus.sources.sources import Document
from ..counts.engines import count_rows
from ..subset.select import Ids
from .overlap import ComparedVocabulary, histogram


def compare_on_corpus(
    a: ComparedVocabulary, b: ComparedVocabulary, documents: Iterable[Document]
) -> dict[str, Any]:
    """Return statistics of both tokenizers on documents.

    Returns:
        ``documents``, ``bytes`` and, under ``a`` and ``b``: ``tokens``, ``bytes_per_token``, ``shared``
        (occurrences of tokens whose bytes are a token of the other side), ``needed`` (occurrences by the
        number of tokens they need on the other side), ``exact`` (documents unchanged after encoding and
        decoding).

    Raises:
        DataError: no documents.
    """
    sides = (a, b)
    counts = [np.zeros(len(side.forms.forms), dtype=np.int64) for side in sides]
    exact = [0, 0]
    number = size = 0
    for batch in batched(documents):
        texts = [text for document in batch if (text := document.plain_text())]
        number += len(texts)
        size += sum(len(text.encode("utf-8", "surrogatepass")) for text in texts)
        for at, side in enumerate(sides):
            rows = side.tokenizer.encode_batch(texts)
            counts[at] += count_rows(rows, len(counts[at]))
            exact[at] += sum(
                side.tokenizer.decode(ids, skip_special=False) == text for text, ids in zip(texts, rows)
            )
    if not number:
        raise DataError("the corpus has no text to compare on", remedy="check --input and --text-field")
    return {
        "documents": number,
        "bytes": size,
        "a": {**_figures(counts[0], a, b, size), "exact": exact[0]},
        "b": {**_figures(counts[1], b, a, size), "exact": exact[1]},
    }


def _figures(counts: Ids, one: ComparedVocabulary, other: ComparedVocabulary, size: int) -> dict[str, Any]:
    theirs = {form for form in other.forms.forms if form}
    shared = np.array([form in theirs for form in one.forms.forms], dtype=np.bool_)
    tokens = int(counts.sum())
    # Only the tokens that occur need to be spelled.
    used = [form if count else None for form, count in zip(one.forms.forms, counts, strict=True)]
    return {
        "tokens": tokens,
        "bytes_per_token": round(size / tokens, 4) if tokens else None,
        "shared": int(counts[shared].sum()),
        "needed": list(histogram(other.speller.lengths(used), counts)),
    }
