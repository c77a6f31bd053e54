"""Selection of the source of target states: the target itself, a server, or a cache on disk."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

from ...core.errors import MismatchError
from ...corpus.prepared.packing import PackedRows
from ...models.target.head import TargetHead
from ...models.target.hf import HFTarget
from ...models.target.load import dtype_name, dtype_of
from .cache import CachedCapture, CaptureKey, cache_key, open_cache, rows_digest
from .config import CaptureConfig
from .online import CaptureSource, OnlineCapture
from .server import ServerCapture


def load_capture_target(
    path: Path,
    settings: CaptureConfig,
    *,
    aux_layers: Sequence[int] | None,
    device: torch.device,
    layers: bool = False,
) -> HFTarget | TargetHead:
    """Load the target for training: the full model, or only embedding and LM head with a cache or server.

    Args:
        aux_layers: layers that the drafter reads; None if it reads none (then any cache of the target works).
        layers: load the layers in any case.

    Raises:
        VocabForgeError: a file is missing or damaged, or the target cannot be loaded.
        MismatchError: ``capture.dtype`` differs from the cache's dtype.
    """
    dtype: str = settings.dtype
    if settings.cache is not None:
        made_with = cache_key(open_cache(settings.cache))
        if dtype not in ("auto", made_with.target_dtype):
            raise MismatchError(
                "the cache of captured states was made in another dtype",
                got=f"capture.dtype {dtype}",
                expected=f"{made_with.target_dtype} or auto",
                source=settings.cache,
                remedy="leave capture.dtype at auto",
            )
        dtype = made_with.target_dtype
        aux_layers = made_with.aux_layers if aux_layers is None else aux_layers
    if settings.elsewhere and not layers:
        read = None if aux_layers is None else tuple(aux_layers)
        return TargetHead.load(path, aux_layers=read, dtype=dtype_of(path, dtype, device), device=device)
    return HFTarget.load(
        path,
        aux_layers=aux_layers,
        dtype=dtype,
        device=device,
        device_map=settings.device_map,
        tp_plan=settings.tp_plan,
    )


def build_capture(
    settings: CaptureConfig,
    target: HFTarget | TargetHead,
    *,
    rows: Mapping[str, PackedRows],
    path: Path,
    fingerprint: str,
    owner: str,
    reduced: bool = False,
) -> CaptureSource:
    """Create the source of states: online, the server in ``settings``, or the cache if it matches this run.

    Args:
        rows: split (``train``, ``heldout``) -> packed rows, indexed by the row numbers of keys.
        path: folder of the target.
        owner: identifies this process among the clients of a server; the same when the command is repeated.
        reduced: the drafter has a draft vocabulary, so keeping logit facts saves work for repeated rows.

    Raises:
        ArtifactError: the cache is damaged.
        MismatchError: the cache was made with another target, other layers or other rows.
    """
    if settings.cache is None:
        memory = int(settings.memory_gb * 2**30)
        if settings.server is not None:
            return ServerCapture(settings.server, target, path, fingerprint, rows, owner, memory)
        assert isinstance(target, HFTarget)
        return OnlineCapture(target, memory, facts=reduced and memory > 0)
    cached = CachedCapture(settings.cache)
    cached.check(
        CaptureKey(
            target=fingerprint,
            aux_layers=tuple(target.aux_layers),
            hidden_size=target.hidden_size,
            dtype=cached.key.dtype,
            target_dtype=dtype_name(target.dtype),
            rows={split: rows_digest(packed) for split, packed in rows.items()},
        )
    )
    return cached
