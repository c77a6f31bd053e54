"""A folder of an EAGLE-1/2 drafter, whoever wrote it, read strictly; and the list of draft tokens beside it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ...core.errors import DataError, MismatchError
from ...models.checkpoint import checkpoint_files, fill, read_headers
from ...models.drafters.eagle1 import Eagle1Config, Eagle1Drafter
from ...models.drafters.interface import Drafter
from ...models.drafters.io import TargetTensors, assemble, check_own_embedding
from ...vocab.subset.maps import read_fr_spec
from ...vocab.subset.subset import VocabSubset
from ..revocab import prune_head
from .eagle3_folder import EMBEDDING, LM_HEAD, check_rows, refuse_packed
from .fields import CONFIG, read_config, read_sizes

FC, FC_BIAS = "fc.weight", "fc.bias"
_STORED = (torch.float32, torch.bfloat16, torch.float16)


def is_eagle_folder(path: Path) -> bool:
    """Whether a folder that calls itself a language model holds an EAGLE drafter: it has ``fc``."""
    try:
        return FC in read_headers(checkpoint_files(path))
    except DataError:
        return False


def token_map(path: Path) -> Path | None:
    """The list of draft tokens beside a drafter; None where there is none.

    Raises:
        DataError: several, of which a server would be given one.
    """
    found = sorted(path.glob("freq_*.pt"))
    if len(found) > 1:
        raise DataError(
            "there are several lists of draft tokens beside the drafter",
            got=", ".join(file.name for file in found),
            expected="one",
            source=path,
            remedy="move the others away",
        )
    return found[0] if found else None


def ranked_ids(path: Path) -> tuple[int, ...] | None:
    """Ids of the draft vocabulary beside a drafter in rank order; None where there is none."""
    found = token_map(path)
    return None if found is None else tuple(read_fr_spec(found).tolist())


def read_eagle(path: Path, shared: TargetTensors) -> Eagle1Drafter:
    """The drafter of a folder over the target's head, every tensor in its place.

    Raises:
        DataError: files missing, damaged or pickled; a form that is not computed here.
        ArtifactError: tensors that are not those of the configuration.
        MismatchError: it does not fit the target.
    """
    body = read_config(path)
    stored = read_headers(checkpoint_files(path))
    refuse_packed(stored, path)
    tensors = {name: torch.empty(item.shape) for name, item in stored.items()}
    fill(stored, {name: (tensor,) for name, tensor in tensors.items()})
    _check_head(tensors.pop(LM_HEAD, None), shared, path)
    embedding = tensors.pop(EMBEDDING, None)
    if embedding is not None:
        check_own_embedding(embedding, shared, path)
    biased = FC_BIAS in tensors
    if isinstance(body.get("bias"), bool) and body["bias"] != biased:
        raise DataError(
            "the drafter's config.json contradicts its weights",
            got=f"bias {str(body['bias']).lower()}, and {'an' if biased else 'no'} {FC_BIAS}",
            source=path / CONFIG,
            remedy="the bias is that of fc: correct config.json, or fetch the weights again",
        )
    fields = read_sizes({**body, "bias": None}, path / CONFIG)  # here it is the one of fc
    config = Eagle1Config(draft_vocab_size=None, fc_bias=biased, **fields)
    check_rows(config, tensors, path)
    cast = {name: tensor.to(shared.embedding.dtype) for name, tensor in tensors.items()}
    drafter: Eagle1Drafter = assemble(config, cast, None, shared, source=path)
    return drafter


def rounded_alike(own: Tensor, targets: Tensor) -> bool:
    """Rows that are the target's, up to the rounding of what was stored."""
    own, targets = own.detach().float().cpu(), targets.detach().float().cpu()
    return any(torch.equal(own, targets.to(dtype).float()) for dtype in _STORED)


def _check_head(head: Tensor | None, shared: TargetTensors, path: Path) -> None:
    """SGLang skips a head of the drafter's own, vLLM takes it: only the target's means the same to both."""
    if head is None:
        return
    if head.shape != shared.head.shape or not rounded_alike(head, shared.head):
        raise MismatchError(
            "the EAGLE-1/2 drafter brings an LM head of its own",
            got=f"shape {tuple(head.shape)}, other values than the target's",
            expected="none: servers draft with the target's",
            source=path,
            remedy="give the target that it was trained for, or remove lm_head.weight from its weights",
        )


def restricted(drafter: Drafter, file: Path) -> Drafter:
    """The drafter over a list of draft tokens, with the target's rows.

    Raises:
        DataError: no such list, or one of other ids than the target's.
    """
    ids = read_fr_spec(file)
    size = drafter.config.vocab_size
    values = np.unique(ids)
    if len(values) < len(ids) or values[0] < 0 or values[-1] >= size:
        raise DataError(
            "the list of draft tokens beside the drafter is not one of this target's ids",
            got=f"{len(ids):,} ids, {len(values):,} different, {values[0]} to {values[-1]}",
            expected=f"each once, 0 to {size - 1:,}",
            source=file,
            remedy="make the list again",
        )
    return prune_head(drafter, VocabSubset.from_ranked(ids, vocab_size=size, fingerprint=""), source=file)
