"""KV cache compaction after verification: moves the accepted nodes to the end of the prefix in all layers."""

from __future__ import annotations

from torch import Tensor

from .arguments import INT64, check_range, check_tensors, fitting_backend
from .backend import FLOATS, Op

MOST_PAIRS = 1024  # limit of the kernels


def compact_kv_reference(keys: Tensor, values: Tensor, source: Tensor, destination: Tensor) -> None:
    """Compute :func:`compact_kv` in PyTorch."""
    layers, _, heads, _, dim = keys.shape
    shape = (layers, -1, heads, -1, dim)
    taken, put = (slots[None, :, None, :, None].expand(shape) for slots in (source, destination))
    for cache in (keys, values):
        cache.scatter_(3, put, cache.gather(3, taken))


_OP = Op("compact_kv", compact_kv_reference, FLOATS)


def compact_kv(
    keys: Tensor, values: Tensor, source: Tensor, destination: Tensor, *, backend: str = "auto"
) -> None:
    """Copy cache slots from ``source`` to ``destination``, in place.

    All sources of a head are read before its first destination is written, so the two may overlap. Pairs of
    one row with the same destination must have the same source.

    Args:
        keys, values: (L, B, H, S, D) fp32, bf16 or fp16. The kernels need slots of a multiple of 16 bytes
            that are contiguous within a head; other dimensions may have any stride.
        source, destination: (B, P) int64 slots, 0 to S - 1; the kernels skip pairs out of range.
        backend: ``auto`` uses the reference if the kernels do not support the layout.
    """
    check_tensors(
        "compact_kv",
        ("keys", keys, "LBHSD", FLOATS),
        ("values", values, "LBHSD", {keys.dtype}),
        ("source", source, "BP", INT64),
        ("destination", destination, "BP", INT64),
    )
    check_range("compact_kv", "the number of pairs", source.numel(), 1, None)
    fits = _fits(keys) and _fits(values) and source.shape[1] <= MOST_PAIRS
    needs = f"contiguous slots of a multiple of 16 bytes, at most {MOST_PAIRS:,} pairs"
    backend = fitting_backend("compact_kv", backend, keys, fits, needs)
    _OP(backend, keys, values, source.contiguous(), destination.contiguous())


def _fits(cache: Tensor) -> bool:
    """Return whether the kernels can copy 16 bytes at a time: slots contiguous and aligned."""
    dim, size = cache.shape[4], cache.element_size()
    return (
        cache.stride()[3:] == (dim, 1)
        and all(step * size % 16 == 0 for step in (dim, *cache.stride()[:3]))
        and cache.data_ptr() % 16 == 0
    )
