"""Packed rows taken apart into documents, so that attention inside a document needs no mask.

A document behind which nothing but padding stands is plain causal attention: padding comes after every real token
and none attends to it. No (T, T) mask is built, at any length, and attention kernels that know only "causal" serve.
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
    """The documents of (B, T) document numbers (0 is padding), in order; reads the tensor on the host."""
    return [
        DocumentSpan(row, start, stop)
        for row, numbers in enumerate(document.cpu().numpy())
        for start, stop, number in runs_of(numbers)
        if number != 0
    ]


def runs_of(row: npt.NDArray[np.integer[Any]]) -> Iterator[tuple[int, int, int]]:
    """(start, stop, value) of every run of equal values of (T,)."""
    cuts = np.flatnonzero(np.diff(row)) + 1
    for start, stop in itertools.pairwise([0, *cuts.tolist(), len(row)]):
        if stop > start:
            yield start, stop, int(row[start])


def plan_passes(spans: Iterable[DocumentSpan], tokens: int = PASS_TOKENS) -> Iterator[list[DocumentSpan]]:
    """Documents that go through the target together, padded to the longest of them; the longest come first.

    A pass holds at most ``tokens`` tokens, padding included (a longer document goes alone), and its padding stays below
    an eighth of its real tokens plus 128.
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
    """Token ids (G, L) of a pass, 0 behind each document."""
    ids = input_ids.new_zeros(len(group), len(group[0]))
    for place, span in enumerate(group):
        ids[place, : len(span)] = input_ids[span.row, span.start : span.stop]
    return ids


def scatter(target: Tensor, states: Tensor, group: list[DocumentSpan]) -> None:
    """Write states (G, L, d) of a pass to their places in (B, T, d); padding is left as it is."""
    for place, span in enumerate(group):
        target[span.row, span.start : span.stop] = states[place, : len(span)].to(target)


def document_mask(document: Tensor) -> Tensor:
    """Causal attention inside documents: (B, T) document numbers -> bool (B, 1, T, T), True = visible.

    Padding (document 0) sees itself only, so that no row of the softmax is empty.
    """
    length = document.shape[1]
    same = document[:, :, None] == document[:, None, :]  # (B, T, T)
    causal = torch.ones(length, length, dtype=torch.bool, device=document.device).tril()
    real = (document != 0)[:, :, None]
    itself = torch.eye(length, dtype=torch.bool, device=document.device)
    return ((same & causal & real) | itself)[:, None]


def restarts(position: Tensor, spans: Iterable[DocumentSpan]) -> bool:
    """Whether positions run 0, 1, 2, ... in every document."""
    values = position.cpu()
    return all(
        torch.equal(values[span.row, span.start : span.stop], torch.arange(len(span), dtype=values.dtype))
        for span in spans
    )
