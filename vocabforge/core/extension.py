"""Extension tables: a literal ``name -> "module:attr"`` mapping, resolved when a name is used."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
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
    if name not in table:
        ending = next((row for row in table if name and row.endswith(name)), None)
        raise UsageError(
            f"there is no {what} of this name",
            got=name,
            expected=", ".join(table),
            remedy=f"did you mean {ending}?" if ending else did_you_mean(name, table),
        )
    return load_attribute(table[name])
