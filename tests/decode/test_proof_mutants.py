"""Mistakes that others have made, put into the package's source one at a time: each must be noticed.

``mutants.py`` has the table of them and of the check that kills each. Without a mistake all checks pass.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.decode.mutants import MUTANTS, mistake
from tests.decode.proofs import exact_weights
from vocabforge.core.errors import VocabForgeError

pytestmark = pytest.mark.long

# A wrong law or figure; or the package itself, or torch, refuses what the mistake leads to.
NOTICED = (AssertionError, LookupError, ValueError, RuntimeError, VocabForgeError)
CHECKS = sorted({mutant.killer for mutant in MUTANTS.values()}, key=lambda check: check.__name__)


@pytest.fixture(autouse=True)
def _exact(monkeypatch: pytest.MonkeyPatch) -> None:
    exact_weights(monkeypatch)


@pytest.mark.parametrize("killer", CHECKS, ids=lambda check: check.__name__)
def test_without_a_mistake_all_checks_pass(killer: Callable[[], None]) -> None:
    killer()


@pytest.mark.parametrize("name", MUTANTS)
def test_every_mistake_is_noticed(name: str) -> None:
    mutant = MUTANTS[name]
    with (
        mistake(mutant.module, mutant.right, mutant.wrong),
        pytest.raises(NOTICED),
    ):
        mutant.killer()
