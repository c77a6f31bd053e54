"""Benchmark of ``distinct_rows``: the ids of a draft step's shortlists, each once."""

from __future__ import annotations

import torch

from ...ops.distinct_rows import distinct_rows, distinct_rows_reference
from .types import Inputs, OpCase, Shape, distinct_ids, generator, shared_ids


def cases(shape: Shape) -> list[OpCase]:
    """Shortlists that all hidden states share, and shortlists of their own, at the figures' k."""
    return [_case(shape, k, kind) for k in shape.shortlists for kind in ("shared", "own")]


def _case(shape: Shape, k: int, kind: str) -> OpCase:
    rows, vocab = shape.rows, shape.vocab
    draw = shared_ids if kind == "shared" else distinct_ids

    def make(device: torch.device, dtype: torch.dtype, seed: int) -> Inputs:
        return {"ids": draw(vocab, (rows, k), generator(device, seed)).int()}

    return OpCase(
        name=f"distinct_rows N={rows} k={k} {kind}",
        op="distinct_rows",
        sizes={"N": rows, "k": k, "V": vocab},
        make=make,
        run=lambda inputs, backend: distinct_rows(inputs["ids"], vocab, backend=backend),
        reference=lambda inputs: distinct_rows_reference(inputs["ids"], vocab),
        floor_bytes=4.0 * (2 * rows * k + min(rows * k, vocab)),
        # torch.unique, the usual way, waits for the device to know its size: no graph can hold it.
        baselines={"torch, static shapes": lambda inputs: distinct_rows_reference(inputs["ids"], vocab)},
    )
