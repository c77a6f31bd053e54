"""Packed rows taken apart into documents, so that attention inside a document needs no mask.

A document behind which nothing but padding stands is plain causal attention: padding comes after every real token
and none attends to it. No (T, T) mask is built, at any length, and attention kernels that know only "causal" serve.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

PASS_TOKENS = 16_384
_FREE_PADDING = 128


@dataclass(frozen=True)
class Span:
    """One document: tokens ``start`` to ``stop`` of row ``row``."""

    row: int
    start: int
    stop: int

    def __len__(self) -> int:
        return self.stop - self.start


def document_spans(document: Tensor) -> list[Span]:
    """The documents of (B, T) document numbers (0 is padding), in order; reads the tensor on the host."""
    spans = []
    for row, numbers in enumerate(document.cpu().numpy()):
        edges = np.flatnonzero(np.diff(numbers)) + 1
        for start, stop in zip([0, *edges.tolist()], [*edges.tolist(), len(numbers)]):
            if stop > start and numbers[start] != 0:
                spans.append(Span(row, start, stop))
    return spans


def plan_passes(spans: Iterable[Span], tokens: int = PASS_TOKENS) -> Iterator[list[Span]]:
    """Documents that go through the target together, padded to the longest of them.

    The longest come first. A pass holds at most ``tokens`` tokens, padding included (a longer document goes alone),
    and its padding stays below an eighth of its real tokens plus 128. The passes depend on the lengths alone.
    """
    group: list[Span] = []
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


def gather(input_ids: Tensor, group: list[Span]) -> Tensor:
    """Token ids (G, L) of a pass, 0 behind each document."""
    ids = input_ids.new_zeros(len(group), len(group[0]))
    for place, span in enumerate(group):
        ids[place, : len(span)] = input_ids[span.row, span.start : span.stop]
    return ids


def scatter(target: Tensor, states: Tensor, group: list[Span]) -> None:
    """Write states (G, L, d) of a pass to their places in (B, T, d); padding is left as it is."""
    for place, span in enumerate(group):
        target[span.row, span.start : span.stop] = states[place, : len(span)].to(target)


def restarts(position: Tensor, spans: Iterable[Span]) -> bool:
    """Whether positions run 0, 1, 2, ... in every document."""
    values = position.cpu()
    return all(
        torch.equal(values[span.row, span.start : span.stop], torch.arange(len(span), dtype=values.dtype))
        for span in spans
    )
