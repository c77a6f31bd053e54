"""Write an export layout, read it back strictly, and publish it only if it computes the same logits."""

from __future__ import annotations

import copy
import dataclasses
import os
import shutil
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..core.artifact import check_output
from ..core.errors import ArtifactError, MismatchError
from ..core.files import disk_errors, fsync_path
from ..core.folders import put_in_place, sibling
from ..layouts.interface import Export, Layout
from ..models.drafters.interface import Drafter
from ..models.drafters.parallel import is_parallel
from ..models.target.load import dtype_name
from ..models.ttt.attention import TTTState
from ..models.ttt.blocks import every_anchor

_TOKENS, _STEPS = 6, 2
# Tolerance relative to the largest logit. Not 0: a head that equals the target's is read back as the target's
# own.
_TOLERANCE = {torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 3e-2}


def write_checked(layout: type[Layout], path: Path, export: Export, num_layers: int) -> None:
    """Write a layout to a temporary folder, verify it on random states, and rename it into place.

    Raises:
        MismatchError: the layout cannot express the drafter, or a weight is not finite.
        ArtifactError: the written folder computes different logits.
        UsageError: the output must not be replaced.
    """
    check_output(path, overwrite=export.overwrite)
    _check_finite(export)
    final = Path(os.path.realpath(path))
    temporary = sibling(final, "tmp")
    try:
        with disk_errors(path):
            final.parent.mkdir(parents=True, exist_ok=True)
            layout.write(temporary, dataclasses.replace(export, overwrite=False))
            check_written(layout, temporary, export, num_layers)
            check_output(path, overwrite=export.overwrite)  # another process may have written it meanwhile
            put_in_place(temporary, final, overwrite=export.overwrite)
            fsync_path(final.parent)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _check_finite(export: Export) -> None:
    for name, parameter in export.drafter.named_parameters():
        if not bool(parameter.to(export.dtype).isfinite().all()):
            before = bool(parameter.isfinite().all())
            raise MismatchError(
                "the drafter has non-finite weights",
                got=f"{name}, beyond what {dtype_name(export.dtype)} holds" if before else name,
                expected="finite numbers",
                remedy="write another dtype" if before else "train it again: its training failed",
            )


def check_written(layout: type[Layout], path: Path, export: Export, num_layers: int) -> None:
    """Compare a written folder with the drafter it was written from, both rounded to the same dtype.

    Raises:
        VocabForgeError: the folder cannot be read, or its draft tokens, auxiliary layers or logits differ.
    """
    loaded, meant = layout.read(path, export.shared, num_layers), rounded(export)
    if loaded.config.aux_layers != meant.config.aux_layers:
        raise _differs(
            "auxiliary layers", list(loaded.config.aux_layers), list(meant.config.aux_layers), layout
        )
    read, window = (getattr(drafter.config, "sliding_window", None) for drafter in (loaded, meant))
    if read != window:
        raise _differs("sliding window", read, window, layout)
    if not torch.equal(loaded.target_ids.cpu(), meant.target_ids.cpu()):
        got, expected = (f"{len(drafter.target_ids):,} tokens" for drafter in (loaded, meant))
        raise _differs("draft tokens", got, expected, layout)
    ours, theirs = random_logits(meant), random_logits(loaded)
    gap = float((theirs - ours).abs().max() / ours.abs().max().clamp(min=1e-6))
    if not gap <= _TOLERANCE[export.dtype]:
        raise _differs("logits", f"a difference of {gap:.3g} of the largest", "the same", layout)


def rounded(export: Export) -> Drafter:
    """Return the drafter with its parameters rounded to the written dtype, stored in the target's dtype."""
    memo = {id(tensor): tensor for tensor in export.drafter.buffers()}  # share the target's tensors
    copied: Any = copy.deepcopy(export.drafter, memo)
    with torch.no_grad():
        for parameter in copied.parameters():
            parameter.copy_(parameter.to(export.dtype))
    moved: Drafter = copied.to(export.shared.embedding.dtype).eval()
    return moved


@torch.no_grad()
def random_logits(drafter: Drafter) -> Tensor:
    """Return draft logits (steps * T, rows) of a few steps over fixed random tokens and states."""
    stream = torch.Generator().manual_seed(0)
    like, size = drafter.embedding, drafter.config.hidden_size
    width = size * (len(drafter.config.aux_layers) or 1)
    features = torch.randn(1, _TOKENS, width, generator=stream).to(like)
    tokens = torch.randint(drafter.config.vocab_size, (1, _TOKENS + _STEPS), generator=stream).to(like.device)
    document = torch.ones(1, _TOKENS, dtype=torch.int64, device=like.device)
    last = max(int(drafter.config.max_position_embeddings) - 1 - _STEPS, _TOKENS - 1)
    drafter.ensure_positions(last + _STEPS + 1)
    # Use both ends of the position range so that wrong RoPE scaling is detected.
    position = torch.linspace(0, last, _TOKENS, device=like.device).long()[None]
    g, state = drafter.fuse(features), TTTState(document, "eager")
    if is_parallel(drafter):
        fed = tokens[:, :_TOKENS]
        drafts = drafter.draft_blocks(g, fed, position, document, every_anchor(fed), "eager")
        return torch.cat([drafter.logits(states)[0].float() for states in drafts])
    rows = []
    for step in range(min(_STEPS, drafter.max_steps or _STEPS)):
        g = drafter.ttt_step(tokens[:, step : step + _TOKENS], g, position + step, state)
        rows.append(drafter.logits(g, step)[0].float())
    return torch.cat(rows)


def _differs(what: str, got: object, expected: object, layout: type[Layout]) -> ArtifactError:
    return ArtifactError(
        f"the layout {layout.NAME} does not read as it was written: other {what}; nothing was kept",
        got=got,
        expected=expected,
        remedy="this is a mistake of VocabForge: please report it; --format native writes the drafter as it is",
    )
