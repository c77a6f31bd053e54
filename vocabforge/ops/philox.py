"""Counter-based random numbers: random access into numpy's Philox stream.

Philox4x64-10 of Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3".
``kernels/common/philox.cuh`` is the C++ version.
"""

from __future__ import annotations

import torch
from torch import Tensor

_LOW = 0xFFFFFFFF
_ROUNDS = 10


def _signed(word: int) -> int:
    """Reinterpret a 64-bit word as int64."""
    return word - (1 << 64) if word >> 63 else word


_MULTIPLIERS = tuple(map(_signed, (0xD2E7470EE14C6C93, 0xCA5A826395121157)))
_STEPS = tuple(map(_signed, (0x9E3779B97F4A7C15, 0xBB67AE8584CAA73B)))


def philox_uniform(seeds: Tensor, places: Tensor) -> Tensor:
    """Return numbers of ``numpy.random.Generator(numpy.random.Philox(key=seed)).random()``.

    Args:
        seeds: int64, at least 0.
        places: int64 positions in the stream, starting at 0; broadcastable with ``seeds``.

    Returns:
        float64 multiples of 2^-53 in [0, 1), of the broadcast shape.
    """
    seeds, places = torch.broadcast_tensors(seeds, places)
    # numpy increments the counter before drawing; one count gives four words.
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
    """Shift right, filling with zeros."""
    return (word >> by) & ((1 << (64 - by)) - 1)


def _multiply(word: Tensor, factor: int) -> tuple[Tensor, Tensor]:
    """Return the high and low 64 bits of an unsigned product; the low bits survive int64 wrap-around."""
    high, low = _shifted(word, 32), word & _LOW
    factor_high, factor_low = factor >> 32 & _LOW, factor & _LOW
    middle = high * factor_low + _shifted(low * factor_low, 32)
    cross = low * factor_high + (middle & _LOW)
    return high * factor_high + _shifted(middle, 32) + _shifted(cross, 32), word * factor
