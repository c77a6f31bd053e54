"""Tell a published drafter's kind by its tensors: the architecture is often a plain Llama, or a name of its own."""

from __future__ import annotations

import re
from pathlib import Path

from ..core.errors import DataError
from ..models.checkpoint import checkpoint_files, read_headers
from .eagle3_folder import D2T, T2D, our_name

EAGLE3, EAGLE1, MEDUSA = "sglang-eagle3", "eagle", "medusa"  # the layouts that evidence is sought for
_OWN = {D2T: EAGLE3, T2D: EAGLE3, "midlayer.hidden_norm.weight": EAGLE3}
_FC, _QUERY = "fc.weight", "midlayer.self_attn.q_proj.weight"
_MEDUSA = re.compile(r"((medusa_head\.)?\d+\.\d+\.linear|blocks\.\d+\.layers\.\d+)\.(weight|bias)")


def evidence(path: Path) -> dict[str, list[str]]:
    """Return the tensors that only one kind of drafter has, by layout; empty for any other model.

    EAGLE-3 joins embedding and state before the attention, EAGLE-1/2 before ``fc``, so that the inputs of the
    query projection are 2H or H. An ``fc`` of 3H inputs or more reads several states of the target.

    Raises:
        DataError: files are missing or damaged.
    """
    clues_by_layout: dict[str, list[str]] = {}
    stored = read_headers(checkpoint_files(path, pickles=True))
    shapes = {our_name(name): item.shape for name, item in stored.items()}
    for name in stored:
        if kind := MEDUSA if _MEDUSA.fullmatch(name) else _OWN.get(our_name(name)):
            clues_by_layout.setdefault(kind, []).append(name)
    fc, query = shapes.get(_FC, ()), shapes.get(_QUERY, ())
    if len(fc) == 2:
        size, inputs = fc[0], query[1] if len(query) == 2 else None
        clues = (
            (EAGLE3, _QUERY, inputs == 2 * size),
            (EAGLE3, _FC, fc[1] >= 3 * size),
            (EAGLE1, _QUERY, inputs == size),
        )
        for kind, name, holds in clues:
            if holds:
                clues_by_layout.setdefault(kind, []).append(f"{name} {list(shapes[name])}")
        if not clues_by_layout:
            clues_by_layout[EAGLE1] = [f"{_FC} {list(fc)}"]
    return clues_by_layout


def is_drafter_folder(path: Path) -> bool:
    """Return whether a language model's folder holds a drafter instead."""
    try:
        return bool(evidence(path))
    except DataError:
        return False


def ambiguous(clues_by_layout: dict[str, list[str]], path: Path) -> DataError:
    """Return the error for tensors of several kinds of drafters."""
    shown = (f"{kind}: {', '.join(names[:3])}" for kind, names in clues_by_layout.items())
    return DataError(
        "the tensors are those of several kinds of drafters",
        got="; ".join(shown),
        expected="tensors of one kind",
        source=path,
        remedy="fetch the drafter again; or name the architecture that it was trained as in config.json",
    )
