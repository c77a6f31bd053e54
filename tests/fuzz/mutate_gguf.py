"""Ways to spoil a GGUF file: its numbers, lengths, types and names, found by walking through its header."""

from __future__ import annotations

import struct
from random import Random

_NUMBERS = (
    0,
    1,
    2,
    3,
    4,
    8,
    9,
    12,
    13,
    27,
    30,
    255,
    2**16,
    2**31 - 1,
    2**32 - 1,
    2**40,
    2**62,
    2**63,
    2**64 - 1,
)
_FLOATS = (0.0, -1.0, 0.5, 1e-30, 1e30, float("nan"), float("inf"))
_FORMATS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9


def gguf_number(data: bytes, draw: Random) -> bytes:
    """A length, count, type, size, offset or setting becomes another."""
    at, form = draw.choice(_places(data)[0])
    size = struct.calcsize(form)
    value = struct.pack(f"<{form}", draw.choice(_FLOATS)) if form in "fd" else _whole(draw, size)
    return data[:at] + value + data[at + size :]


def gguf_name(data: bytes, draw: Random) -> bytes:
    """A key, a tensor's name or a text becomes another of its length, or of bytes that are no text."""
    at, size = draw.choice([one for one in _places(data)[1] if one[1]])
    odd = draw.choice((b"x" * size, b"\xff" * size, b"\x00" * size, data[at : at + size][::-1]))
    return data[:at] + odd + data[at + size :]


def _whole(draw: Random, size: int) -> bytes:
    return (draw.choice(_NUMBERS) % 2 ** (8 * size)).to_bytes(size, "little")


def _places(data: bytes) -> tuple[list[tuple[int, str]], list[tuple[int, int]]]:
    """Offsets of numbers with their formats, and offsets of texts with their lengths."""
    numbers: list[tuple[int, str]] = []
    texts: list[tuple[int, int]] = []
    at = 4

    def number(form: str) -> int:
        nonlocal at
        value = struct.unpack_from(f"<{form}", data, at)[0]
        numbers.append((at, form))
        at += struct.calcsize(form)
        return int(value) if form not in "fd" else 0

    def text() -> None:
        nonlocal at
        size = number("Q")
        texts.append((at, size))
        at += size

    def value(kind: int) -> None:
        if kind == _STRING:
            text()
        elif kind == _ARRAY:
            inner, count = number("I"), number("Q")
            for _ in range(count):
                value(inner)
        else:
            number(_FORMATS[kind])

    number("I")
    tensors, pairs = number("Q"), number("Q")
    for _ in range(min(pairs, 1000)):
        text()
        value(number("I"))
    for _ in range(min(tensors, 1000)):
        text()
        for _ in range(number("I")):
            number("Q")
        number("I")
        number("Q")
    return numbers, texts
