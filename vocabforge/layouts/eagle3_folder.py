"""Read the tensors of an EAGLE-3 drafter folder written by any tool, strictly, and rename them to ours.

Tools differ in tensor names and in the tensors they omit. Every variant that a server reads is accepted;
variants that no server reads or that compute something else are rejected.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..core.console import say
from ..core.errors import ArtifactError, ConfigError, DataError, MismatchError
from ..models.checkpoint import DTYPES, FLOATS, StoredTensor, checkpoint_files, load_stored, read_headers
from ..models.drafters.eagle3 import Eagle3Config
from ..models.drafters.interface import Drafter
from ..models.drafters.io import assemble, check_own_embedding
from ..models.heads.served import PREFIX
from ..models.target.head import TargetTensors
from .fields import CONFIG
from .layer_ids import LAYER_IDS, LayerReading

ARCHITECTURE = "LlamaForCausalLMEagle3"
LM_HEAD, EMBEDDING, D2T, T2D = "lm_head.weight", "embed_tokens.weight", "d2t", "t2d"
_STORED = (torch.float32, torch.bfloat16, torch.float16)
# Older names of the norms before fc, one per auxiliary layer.
_LEGACY = {"aux_norm_low": "fc_norm.0", "aux_norm_mid": "fc_norm.1", "aux_norm_high": "fc_norm.2"}


@dataclass(frozen=True)
class FolderTensors:
    """Contents of a drafter folder under our names.

    Parameters, the (V, H) embedding if stored, ``d2t`` (R,) offsets, and ``t2d`` (V,) marks of the draft
    tokens.
    """

    weights: Mapping[str, Tensor]
    embedding: Tensor | None = None
    d2t: Tensor | None = None
    t2d: Tensor | None = None


def our_name(name: str) -> str:
    """Return the drafter's parameter name for a stored tensor, without the prefix ``model.``."""
    name = re.sub(r"^layers\.0\.", "midlayer.", name.removeprefix("model."))
    for legacy, ours in _LEGACY.items():
        name = re.sub(rf"^{legacy}\.", f"{ours}.", name)
    return name


def read_folder(path: Path, rename: Callable[[str], str] = our_name) -> FolderTensors:
    """Read all weight files of a folder (one file, or shards with an index), in their stored dtype.

    Raises:
        DataError: the files are missing, damaged, quantised, or pickles of more than tensors.
        ArtifactError: a tensor is stored under two names.
    """
    stored = read_headers(checkpoint_files(path, pickles=True))
    stored = {name: item for name, item in stored.items() if not name.startswith(PREFIX)}  # draft head's
    refuse_packed(stored, path)
    names = {name: rename(name) for name in stored}
    doubled = sorted({ours for ours in names.values() if list(names.values()).count(ours) > 1})
    if doubled:
        raise ArtifactError(
            "the drafter holds a tensor under two names",
            got=", ".join(name for name, ours in names.items() if ours in doubled[:5]),
            expected="each tensor once",
            source=path,
            remedy="remove the names that do not belong to it",
        )
    tensors = {names[name]: tensor for name, tensor in load_stored(stored).items()}
    embedding, d2t, t2d = (tensors.pop(name, None) for name in (EMBEDDING, D2T, T2D))
    if d2t is not None and d2t.dtype == torch.int16:
        d2t = d2t.long()
    return FolderTensors(tensors, embedding, d2t, t2d)


def refuse_packed(stored: Mapping[str, StoredTensor], path: Path) -> None:
    """Reject packed or quantised weights: only the two maps may hold integers."""
    packed = [
        f"{name} ({item.dtype})"
        for name, item in stored.items()
        if item.dtype not in (DTYPES if our_name(name) in (D2T, T2D) else FLOATS)
    ]
    if packed:
        raise DataError(
            "the drafter's weights are packed or quantised",
            got=", ".join(packed[:5]),
            expected="floating point",
            source=path,
            remedy="give the drafter as it was before it was quantised",
        )


def assemble_folder(config: Any, folder: FolderTensors, shared: TargetTensors, source: Path) -> Drafter:
    """Build the drafter of a folder.

    A stored embedding must equal the target's. A drafter without an LM head shares the target's.

    Raises:
        ArtifactError: the tensors do not match the configuration, or the maps contradict each other.
        MismatchError: the drafter does not fit the target.
    """
    if folder.embedding is not None:
        check_own_embedding(folder.embedding, shared, source)
    config = replace(config, draft_vocab_size=_own_rows(config, folder))
    ids = target_ids(folder, config, source)
    cast = {name: tensor.to(shared.embedding.dtype) for name, tensor in folder.weights.items()}
    drafter: Drafter = assemble(config, cast, ids, shared, source=source)
    return drafter


def _own_rows(config: Any, folder: FolderTensors) -> int | None:
    """Return the number of rows of the drafter's own head; None if it shares the target's."""
    if LM_HEAD in folder.weights:
        return config.draft_vocab_size or config.vocab_size
    whole = config.draft_vocab_size in (None, config.vocab_size)
    return None if whole else config.draft_vocab_size  # a restricted drafter without a head is rejected later


def without_targets_head(folder: FolderTensors, shared: TargetTensors) -> FolderTensors:
    """Drop an LM head that equals the target's after rounding to the stored dtype."""
    head = folder.weights.get(LM_HEAD)
    if head is None or not rounded_alike(head, shared.head):
        return folder
    return replace(folder, weights={name: t for name, t in folder.weights.items() if name != LM_HEAD})


def rounded_alike(own: Tensor, targets: Tensor) -> bool:
    """Return whether the rows equal the target's after rounding to a storage dtype."""
    own, targets = own.detach().float().cpu(), targets.detach().float().cpu()
    return any(torch.equal(own, targets.to(dtype).float()) for dtype in _STORED)


def target_ids(folder: FolderTensors, config: Eagle3Config, source: object) -> Tensor | None:
    """Return the (R,) target ids of the head's rows, arange(R) + d2t; None if the head scores every token.

    Raises:
        MismatchError: the offsets do not yield R ascending target ids.
        ArtifactError: ``t2d`` marks other tokens.
    """
    rows, offsets = config.draft_vocab_size or config.vocab_size, folder.d2t
    if offsets is None and rows == config.vocab_size:
        return None
    if offsets is None or offsets.shape != (rows,) or offsets.dtype not in (torch.int64, torch.int32):
        raise MismatchError(
            "the drafter's draft vocabulary has no d2t of its size",
            got="no d2t" if offsets is None else f"d2t of shape {tuple(offsets.shape)}, {offsets.dtype}",
            expected=f"{rows} offsets, int64",
            source=source,
            remedy="fetch or create the drafter again"
            if folder.t2d is None
            else "add d2t = t2d.nonzero().flatten() - arange(R) to its weights",
        )
    ids = torch.arange(len(offsets)) + offsets.long()
    marked = None if folder.t2d is None else _marked(folder.t2d, config, source)
    if marked is None and rows < config.vocab_size and not bool(offsets.any()):
        raise MismatchError(
            "the drafter's d2t is all zeros, as before it is filled",
            got=f"the target's first {rows:,} ids",
            expected="offsets of the tokens that it was trained with, or a t2d that marks these",
            source=source,
            remedy="fetch or create the drafter again",
        )
    _check_ids(ids, offsets, marked, config, source)
    return None if rows == config.vocab_size else ids


def _marked(t2d: Tensor, config: Eagle3Config, source: object) -> Tensor:
    if t2d.shape != (config.vocab_size,):
        raise ArtifactError(
            "the drafter's t2d does not mark the target's tokens",
            got=f"shape {tuple(t2d.shape)}",
            expected=f"({config.vocab_size},)",
            source=source,
            remedy="give the target that it was trained for, or fetch the drafter again",
        )
    return t2d.nonzero().flatten()


def _check_ids(
    ids: Tensor, offsets: Tensor, marked: Tensor | None, config: Eagle3Config, source: object
) -> None:
    if marked is not None and torch.equal(offsets.long(), marked) and not torch.equal(ids, marked):
        raise MismatchError(
            "the drafter's d2t holds target ids, not offsets",
            got="d2t equal to the tokens that t2d marks",
            expected="arange(R) + d2t equal to them",
            source=source,
            remedy="subtract arange(R) from d2t",
        )
    if not bool((ids.diff() > 0).all()) or int(ids[0]) < 0 or int(ids[-1]) >= config.vocab_size:
        raise MismatchError(
            "the drafter's d2t is not a list of offsets to ascending target ids",
            got=f"ids {int(ids.min())} to {int(ids.max())} as arange(R) + d2t",
            expected=f"ascending within 0 to {config.vocab_size - 1}",
            source=source,
            remedy="fetch or create the drafter again",
        )
    if marked is not None and not torch.equal(marked, ids):
        common = int(torch.isin(ids, marked).sum())
        raise ArtifactError(
            "the drafter's t2d and d2t name different tokens",
            got=f"{len(marked)} tokens in t2d, {len(ids)} in d2t, {common} in both",
            expected="the same tokens",
            source=source,
            remedy="they belong to different drafters: fetch or create the drafter again",
        )


def checked_layers(reading: LayerReading, path: Path) -> tuple[int, ...]:
    """Return the auxiliary layers, ascending; print a note if the folder allows two readings."""
    layers = reading.layers
    if min(layers) < 0 or list(layers) != sorted(set(layers)):
        raise DataError(
            "the drafter's auxiliary layers are not ascending layers of a target",
            got=f"outputs of layers {list(layers)} ({reading.rule})",
            expected="ascending, 0 or above",
            source=path / CONFIG,
            remedy=f"list the layers that it was trained with in config.json ({LAYER_IDS})",
        )
    if reading.other is not None:
        say(
            f"{path.name}: reads the outputs of layers {list(layers)} ({reading.rule}); in the other numbering "
            f"it would be {list(reading.other)}. vocabforge doctor --drafter {path} decides by acceptance."
        )
    return layers


def eagle3_config(
    fields: Mapping[str, Any], rows: Any, layers: tuple[int, ...], source: object
) -> Eagle3Config:
    """Build the drafter's configuration and check its sizes."""
    if rows is not None and type(rows) is not int:
        raise DataError(
            "the drafter's draft_vocab_size is not a number",
            got=repr(rows),
            source=source,
            remedy="write the number of rows of its LM head, or null without one",
        )
    try:
        return Eagle3Config(draft_vocab_size=rows, aux_layers=layers, **fields)
    except ConfigError as error:
        raise DataError(
            "the drafter's config.json has no valid sizes",
            got=error.got,
            source=source,
            remedy="correct config.json, or fetch or export the drafter again",
        ) from error
