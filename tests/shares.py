"""Which cases of a test run by default: the others are proofs (``make test-proof``)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest


def by_default(cases: Iterable[Any], wanted: Callable[[Any], bool]) -> list[Any]:
    """Those that are ``wanted`` as they are, the others marked ``proof``."""
    return [
        case
        if wanted(case)
        else pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=pytest.mark.proof)
        for case in cases
    ]
