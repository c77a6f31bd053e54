"""Mistakes in drafting over a bridge, put into the package one at a time: each must be noticed.

``foreign_mutants.py`` has the table of them and of the check that kills each. Without a mistake all checks pass.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.decode.cross_vocab_mutants import HARMLESS, MUTANTS
from tests.decode.proofs import exact_weights
from vocabforge.core.errors import VocabForgeError

pytestmark = pytest.mark.long

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
    with mutant.change(), pytest.raises(NOTICED):
        mutant.killer()


@pytest.mark.parametrize("name", HARMLESS)
def test_what_only_costs_acceptance_leaves_the_law(name: str) -> None:
    mutant = HARMLESS[name]
    with mutant.change():
        mutant.killer()
