"""Options that hold a list: ``1,2,3``."""

from __future__ import annotations


def words_in(text: str | None) -> tuple[str, ...]:
    """The parts between commas; nothing gives nothing."""
    return tuple(part.strip() for part in (text or "").split(",") if part.strip())


def numbers_in(option: str, text: str | None, *, needed: bool = False) -> tuple[int, ...]:
    """The whole numbers between commas; nothing gives nothing.

    Raises:
        UsageError: something else is among them, or nothing where one is ``needed``.
    """
    from ..core.errors import UsageError

    words = words_in(text)
    if not all(word.isdecimal() for word in words) or (needed and not words):
        raise UsageError("the list of numbers cannot be read", got=text, expected="1,2,3", source=option)
    return tuple(map(int, words))
