"""Options whose text is read further: ``1,2,3`` and ``KEY=VALUE``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


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


def key_values(items: Sequence[str] | None, option: str, form: str = "KEY=VALUE") -> dict[str, Any]:
    """``KEY=VALUE`` options; values are read as YAML, so that ``false`` and ``20`` are what they look like.

    Raises:
        UsageError: no ``=``, or a value that is not YAML.
    """
    import yaml

    from ..core.errors import UsageError

    found = {}
    for item in items or ():
        key, separator, text = item.partition("=")
        if not separator or not key.strip():
            raise UsageError(
                f"{option} is not written like this", got=repr(item), expected=f"{option} {form}"
            )
        try:
            found[key.strip()] = yaml.safe_load(text)
        except (yaml.YAMLError, ValueError) as error:
            raise UsageError(
                f"cannot read a value of {option}",
                got=f"{item!r}: {error}",
                expected="a YAML value",
                source=option,
            ) from error
    return found
