"""Splitting of packed rows into documents, so that attention within a document needs no mask.

A document followed only by padding needs just causal attention, since no real token attends to the padding
after it. No (T, T) mask is built at any length, and causal-only attention kernels can be used.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

PASS_TOKENS = 16_384
_FREE_PADDING = 128


@dataclass(frozen=True)
class DocumentSpan:
    """One document: tokens ``start`` to ``stop`` of row ``row``."""

    row: int
    start: int
    stop: int

    def __len__(self) -> int:
        return self.stop - self.start


def document_spans(document: Tensor) -> list[DocumentSpan]:
    """List the documents of (B, T) document numbers (0 is padding), in order. Copies them to the host."""
    return [
        DocumentSpan(row, start, stop)
        for row, numbers in enumerate(document.cpu().numpy())
        for start, stop, number in runs_of(numbers)
        if number != 0
    ]


def runs_of(row: npt.NDArray[np.integer[Any]]) -> Iterator[tuple[int, int, int]]:
    """Yield (start, stop, value) of every run of equal values in (T,)."""
    cuts = np.flatnonzero(np.diff(row)) + 1
    for start, stop in itertools.pairwise([0, *cuts.tolist(), len(row)]):
        if stop > start:
            yield start, stop, int(row[start])


def plan_passes(spans: Iterable[DocumentSpan], tokens: int = PASS_TOKENS) -> Iterator[list[DocumentSpan]]:
    """Yield groups of documents to run in one pass, padded to the longest; the longest documents come first.

    A pass has at most ``tokens`` tokens including padding (a longer document is run alone), and its padding
    is at most an eighth of its real tokens plus 128.
    """
    group: list[DocumentSpan] = []
    real = 0
    for span in sorted(spans, key=len, reverse=True):
        if group:
            padded = (len(group) + 1) * len(group[0])
            total = real + len(span)
            if padded > tokens or padded - total > total // 8 + _FREE_PADDING:
                yield group
                group, real = [], 0
        group.append(span)
        real += len(span)
    if group:
        yield group


def gather(input_ids: Tensor, group: list[DocumentSpan]) -> Tensor:
    """Gather the token ids (G, L) of a pass, padded with 0."""
    ids = input_ids.new_zeros(len(group), len(group[0]))
    for place, span in enumerate(group):
        ids[place, : len(span)] = input_ids[span.row, span.start : span.stop]
    return ids


def scatter(target: Tensor, states: Tensor, group: list[DocumentSpan]) -> None:
    """Write the states (G, L, d) of a pass to their positions in (B, T, d), leaving padding unchanged."""
    for place, span in enumerate(group):
        target[span.row, span.start : span.stop] = states[place, : len(span)].to(target)


def document_mask(document: Tensor) -> Tensor:
    """Return the causal mask within documents: (B, T) document numbers -> bool (B, 1, T, T), True = visible.

    A padding token (document 0) attends only to itself, so that no row of the softmax is empty.
    """
    length = document.shape[1]
    same = document[:, :, None] == document[:, None, :]  # (B, T, T)
    causal = torch.ones(length, length, dtype=torch.bool, device=document.device).tril()
    real = (document != 0)[:, :, None]
    itself = torch.eye(length, dtype=torch.bool, device=document.device)
    return ((same & causal & real) | itself)[:, None]


def restarts(position: Tensor, spans: Iterable[DocumentSpan]) -> bool:
    """Return whether positions run 0, 1, 2, ... in every document."""
    values = position.cpu()
    return all(
        torch.equal(values[span.row, span.start : span.stop], torch.arange(len(span), dtype=values.dtype))
        for span in spans
    )
