"""Extension tables: a literal ``name -> "module:attr"`` mapping, resolved when a name is used."""

from __future__ import annotations

import importlib
from collections.abc import Collection, Mapping
from typing import Any

from .errors import UsageError, did_you_mean


def load_attribute(target: str) -> Any:
    """Import ``"module:attr"`` and return the attribute."""
    module, _, attribute = target.partition(":")
    return getattr(importlib.import_module(module), attribute)


def resolve(table: Mapping[str, str], name: str, what: str) -> Any:
    """The object a table lists under ``name``.

    Raises:
        UsageError: no such row; names the rows that there are.
    """
    check_known(name, table, what)
    return load_attribute(table[name])


def check_known(name: str, known: Collection[str], what: str, *, source: object = None) -> None:
    """Refuse a name that is not among those known, and say which one may be meant.

    Args:
        what: that has the name, in words. source: the option that it came from.

    Raises:
        UsageError: no such name; names those that there are.
    """
    if name in known:
        return
    ending = next((one for one in known if name and one.endswith(name)), None)
    raise UsageError(
        f"there is no {what} of this name",
        got=name,
        expected=", ".join(known),
        source=source,
        remedy=f"did you mean {ending}?" if ending else did_you_mean(name, known),
    )
