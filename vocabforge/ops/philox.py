"""Counter-based random numbers: any number of numpy's Philox stream by its place, without those before it.

Philox4x64-10 of Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3". ``kernels/common/philox.cuh`` is
the same in C++.
"""

from __future__ import annotations

import torch
from torch import Tensor

_LOW = 0xFFFFFFFF
_ROUNDS = 10


def _signed(word: int) -> int:
    """A 64-bit word as the int64 of the same bits."""
    return word - (1 << 64) if word >> 63 else word


_MULTIPLIERS = tuple(map(_signed, (0xD2E7470EE14C6C93, 0xCA5A826395121157)))
_STEPS = tuple(map(_signed, (0x9E3779B97F4A7C15, 0xBB67AE8584CAA73B)))


def philox_uniform(seeds: Tensor, places: Tensor) -> Tensor:
    """The numbers that ``numpy.random.Generator(numpy.random.Philox(key=seed)).random()`` gives.

    Args:
        seeds: int64, 0 or above.
        places: int64, 0 or above, of a shape that fits ``seeds``: the first number has place 0.

    Returns:
        float64 in [0, 1), a multiple of 2^-53, of the common shape.
    """
    seeds, places = torch.broadcast_tensors(seeds, places)
    # numpy counts before it draws, and four words come from one count.
    words = [(places >> 2) + 1, *(torch.zeros_like(places) for _ in range(3))]
    keys = [seeds, torch.zeros_like(seeds)]
    for number in range(_ROUNDS):
        if number:
            keys = [key + step for key, step in zip(keys, _STEPS)]
        first, second = (_multiply(words[2 * i], _MULTIPLIERS[i]) for i in (0, 1))
        words = [second[0] ^ words[1] ^ keys[0], second[1], first[0] ^ words[3] ^ keys[1], first[1]]
    word = torch.stack(words).gather(0, (places & 3)[None])[0]
    return _shifted(word, 11).double() * 2.0**-53


def _shifted(word: Tensor, by: int) -> Tensor:
    """A right shift that fills with zeros."""
    return (word >> by) & ((1 << (64 - by)) - 1)


def _multiply(word: Tensor, factor: int) -> tuple[Tensor, Tensor]:
    """The high and the low 64 bits of an unsigned product; int64 products wrap, which keeps the low bits."""
    high, low = _shifted(word, 32), word & _LOW
    factor_high, factor_low = factor >> 32 & _LOW, factor & _LOW
    middle = high * factor_low + _shifted(low * factor_low, 32)
    cross = low * factor_high + (middle & _LOW)
    return high * factor_high + _shifted(middle, 32) + _shifted(cross, 32), word * factor
