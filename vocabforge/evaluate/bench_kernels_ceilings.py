"""What the device can do, measured before anything is compared with it: a copy, a product, the smallest kernel."""

from __future__ import annotations

import torch

from .bench_kernels_timing import Ceilings, Protocol, Timing, time_calls


def measure_ceilings(protocol: Protocol) -> Ceilings:
    """A large copy, a large bf16 product and the smallest kernel, on random data."""
    copied, edge = (1 << 31, 8192) if protocol.cuda else (1 << 22, 192)
    found = Ceilings(
        copy=2 * copied / _copy(protocol, copied).seconds,
        matmul=2 * edge**3 / _product(protocol, edge).seconds,
        node=_node(protocol).seconds,
        sizes={"copied_bytes": copied, "matmul_edge": edge},
    )
    if protocol.cuda:
        torch.cuda.empty_cache()  # other processes need the memory
    return found


def _copy(protocol: Protocol, count: int) -> Timing:
    random = torch.Generator(device=protocol.device).manual_seed(0)
    source = torch.randint(256, (count,), generator=random, device=protocol.device, dtype=torch.uint8)
    target = torch.empty_like(source)
    return time_calls([lambda: target.copy_(source)], protocol)


def _product(protocol: Protocol, edge: int) -> Timing:
    random = torch.Generator(device=protocol.device).manual_seed(1)
    a, b = (torch.randn((edge, edge), generator=random, device=protocol.device) for _ in range(2))
    a, b = a.to(torch.bfloat16), b.to(torch.bfloat16)
    out = torch.empty_like(a)
    return time_calls([lambda: torch.mm(a, b, out=out)], protocol)


def _node(protocol: Protocol) -> Timing:
    one = torch.ones(1, device=protocol.device)
    return time_calls([lambda: one.neg_()], protocol)
