"""Extension tables: a literal ``name -> "module:attr"`` mapping, resolved when a name is used."""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Mapping
from typing import Any

from .errors import UsageError


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
        close = [row for row in table if name and row.endswith(name)] or difflib.get_close_matches(
            name, table, n=1
        )
        raise UsageError(
            f"there is no {what} of this name",
            got=name,
            expected=", ".join(table),
            remedy=f"did you mean {close[0]}?" if close else None,
        )
    return load_attribute(table[name])
