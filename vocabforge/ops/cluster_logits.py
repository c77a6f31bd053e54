"""Logits over the vocabulary clusters opened by a router, from a head sorted by cluster."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from .arguments import BOOL, INT32, check_range, check_tensors, fitting_backend
from .backend import FLOATS, Op

TILE = 64  # rows per tile
MOST_ROWS = 64  # hidden states per call


def tiles_bound(sizes: Iterable[int], clusters: int) -> int:
    """Return the maximum number of tiles in ``clusters`` opened clusters.

    Args:
        sizes: rows of each cluster.
        clusters: maximum number of clusters opened by the rows of a call together.
    """
    check_range("tiles_bound", "the number of opened clusters", clusters, 1, None)
    tiles = sorted((-(-size // TILE) for size in sizes), reverse=True)
    bound = sum(tiles[:clusters])
    check_range("tiles_bound", "the tiles of all clusters", bound, 1, None)
    return bound


def _tiles(offsets: Tensor, opened: Tensor, most_tiles: int) -> tuple[Tensor, Tensor]:
    """Return the rows (t, 64) of each tile, padded with -1, and its cluster (t,)."""
    sizes = offsets.diff()
    tiles = ((sizes + TILE - 1) // TILE).masked_fill(~opened.any(0), 0)  # (M,)
    ends = tiles.cumsum(0)  # (M,)
    place = torch.arange(most_tiles, device=offsets.device)  # (t,)
    cluster = torch.searchsorted(ends, place, right=True).clamp(max=len(sizes) - 1)  # (t,)
    first = offsets[cluster] + TILE * (place - ends[cluster] + tiles[cluster])  # (t,)
    rows = first[:, None] + torch.arange(TILE, device=offsets.device)  # (t, 64)
    real = (rows < offsets[cluster + 1][:, None]) & (place < ends[-1])[:, None]
    return rows.masked_fill(~real, -1), cluster


def cluster_logits_reference(
    hidden: Tensor, weight: Tensor, offsets: Tensor, opened: Tensor, most_tiles: int
) -> tuple[Tensor, Tensor]:
    """Compute :func:`cluster_logits` in PyTorch."""
    rows, cluster = _tiles(offsets, opened, most_tiles)
    flat = rows.flatten()  # (t * 64,)
    logits = hidden.float() @ weight[flat.clamp(min=0)].float().T  # (N, t * 64)
    seen = (opened[:, cluster, None] & (rows >= 0)).flatten(1)
    return logits.masked_fill(~seen, -torch.inf), flat.to(torch.int32)


_OP = Op("cluster_logits", cluster_logits_reference)


def cluster_logits(
    hidden: Tensor, weight: Tensor, offsets: Tensor, opened: Tensor, *, most_tiles: int, backend: str = "auto"
) -> tuple[Tensor, Tensor]:
    """Compute the fp32 logits of each hidden row over the clusters it opened.

    Clusters opened by any row are processed in ascending order. Each cluster is a slab of the sorted head,
    split into tiles of 64 rows (the last one may be shorter); a tile gives 64 columns. Each weight row is
    read once for all N hidden rows.

    Args:
        hidden: (N, d) bf16, fp16 or fp32; N at most 64.
        weight: (V', d) of the same dtype, sorted by cluster.
        offsets: (M + 1,) int32, ascending from 0 to V': cluster c has rows offsets[c] to offsets[c + 1] - 1.
        opened: (N, M) bool; rows may share memory (``expand``).
        most_tiles: maximum number of tiles, from ``tiles_bound``. Further tiles are dropped without an error,
            which avoids a host synchronisation.
        backend: the kernel needs d to be a multiple of 8.

    Returns:
        logits (N, most_tiles * 64) fp32, -inf for columns without a row and for clusters that the hidden row
        did not open; rows (most_tiles * 64,) int32, each column's row of ``weight`` or -1.
    """
    op = "cluster_logits"
    clusters = offsets.numel() - 1
    sizes = check_tensors(
        op,
        ("hidden", hidden, "Nd", FLOATS),
        ("weight", weight, "Vd", (hidden.dtype,)),
        ("offsets", offsets, "E", INT32),
        ("opened", opened, "NM", BOOL),
        M=clusters,
    )
    check_range(op, "the number of hidden rows", sizes["N"], 1, MOST_ROWS)
    check_range(op, "the number of weight rows", sizes["V"], 1, 2**31 - 1)
    check_range(op, "the number of clusters", clusters, 1, None)
    check_range(op, "most_tiles", most_tiles, 1, 2**24 - 1)
    backend = fitting_backend(op, backend, hidden, sizes["d"] % 8 == 0, "d a multiple of 8")
    opened = opened if opened.stride(1) == 1 else opened.contiguous()
    logits, rows = _OP(backend, hidden.contiguous(), weight, offsets.contiguous(), opened, most_tiles)
    return logits, rows
