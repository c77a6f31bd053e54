"""What the layouts of EAGLE-3 drafters have in common in writing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from ..core.errors import MismatchError
from ..models.drafter import Drafter
from ..models.eagle3 import Eagle3Drafter
from ..vocab.subset import VocabSubset
from .eagle3_folder import D2T, T2D

WEIGHTS = "model.safetensors"


def eagle3_only(drafter: Drafter, layout: str) -> Drafter:
    """The drafter, if it is an EAGLE-3 one.

    Args:
        layout: what is written, in words.

    Raises:
        MismatchError: another kind of drafter.
    """
    if drafter.kind != Eagle3Drafter.kind:
        raise MismatchError(
            f"{layout} holds EAGLE-3 drafters only",
            got=f"a drafter of kind {drafter.kind}",
            expected=Eagle3Drafter.kind,
            remedy="export --format native, which vocabforge eval and generate read",
        )
    return drafter


def parameters(drafter: Drafter, dtype: torch.dtype) -> dict[str, Tensor]:
    """The drafter's own parameters under their names, as they are to be stored."""
    return {name: p.detach().to("cpu", dtype).contiguous() for name, p in drafter.named_parameters()}


def token_maps(drafter: Drafter, meta: Mapping[str, Any]) -> dict[str, Tensor]:
    """``d2t`` (R,) int64 offsets and ``t2d`` (V,) bool; nothing where the head scores every token.

    vLLM has no place for a map between equal vocabularies, and refuses one.
    """
    vocab = drafter.config.vocab_size
    if drafter.config.draft_vocab_size in (None, vocab):
        return {}
    ids = drafter.target_ids.cpu().numpy()
    subset = VocabSubset(ids, ids.copy(), vocab, str(meta.get("tokenizer_fingerprint", "")))
    return {D2T: torch.from_numpy(subset.d2t()), T2D: torch.from_numpy(subset.t2d())}
