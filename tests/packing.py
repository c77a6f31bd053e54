"""Sequences packed into rows at once, for tests that need a few."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from vocabforge.corpus.prepared.packing import PackedRows, StreamPacker, TrainingSequence


def pack(
    sequences: Iterable[TrainingSequence], length: int, *, pad_id: int = 0, open_rows: int | None = None
) -> PackedRows:
    """What the stream packer makes of them, the longest first; longer ones than a row are cut."""
    rows: list[list[np.ndarray]] = []

    def write(*row: np.ndarray) -> None:
        rows.append([array.copy() for array in row])

    packer = StreamPacker(length, write, pad_id=pad_id, open_rows=open_rows)
    for sequence in sorted(sequences, key=lambda one: -len(one.ids)):
        if sequence.ids:
            packer.add(sequence.ids[:length], sequence.loss_mask[:length])
    packer.finish()
    return PackedRows(*(np.stack(array) for array in zip(*rows, strict=True)), tokens=packer.tokens)
