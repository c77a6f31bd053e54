"""JSON from outside, with a limit on how deep it nests: deeper values break recursive code everywhere."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from ..core.errors import DataError

DEEPEST = 100
"""Lists and objects within each other; schemas of tools and arguments of calls need about ten."""


def check_nesting(value: Any, what: str) -> None:
    """Look at every level of a value, without recursion.

    Raises:
        DataError: more than ``DEEPEST`` levels; ``what`` names the value.
    """
    level, depth = [value], 0
    while level := [one for one in level if isinstance(one, (Mapping, list, tuple))]:
        depth += 1
        if depth > DEEPEST:
            raise DataError(
                f"{what} is nested too deeply", got=f"more than {DEEPEST} levels", expected="less"
            )
        level = [part for one in level for part in (one.values() if isinstance(one, Mapping) else one)]


def load_nested(text: str, what: str) -> Any:
    """``json.loads`` of a text that may nest without end.

    Raises:
        ValueError: it is no JSON.
        DataError: it nests more than ``DEEPEST`` levels.
    """
    try:
        value = json.loads(text)
    except RecursionError as error:
        raise DataError(
            f"{what} is nested too deeply", got=f"more than {DEEPEST} levels", expected="less"
        ) from error
    check_nesting(value, what)
    return value
