"""Mistakes that others have made, put into the package one at a time: each must be noticed.

``mutants.py`` and ``cross_vocab_mutants.py`` have the tables of them and of the check that kills each. Without a
mistake all checks pass.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack

import pytest

from tests.decode import cross_vocab_mutants
from tests.decode.mutants import MUTANTS
from tests.decode.proofs import exact_weights
from tests.shares import by_default
from vocabforge.core.errors import VocabForgeError

# A wrong distribution or figure; or the package itself, or torch, refuses what the mistake leads to.
NOTICED = (AssertionError, LookupError, ValueError, RuntimeError, VocabForgeError)
ALL = {**MUTANTS, **cross_vocab_mutants.MUTANTS}
CHECKS = sorted({mutant.killer for mutant in ALL.values()}, key=lambda check: check.__name__)
assert len(ALL) == len(MUTANTS) + len(cross_vocab_mutants.MUTANTS)


@pytest.fixture(autouse=True)
def _exact(monkeypatch: pytest.MonkeyPatch) -> None:
    exact_weights(monkeypatch)


@pytest.mark.parametrize("killer", CHECKS, ids=lambda check: check.__name__)
def test_without_a_mistake_all_checks_pass(killer: Callable[[], None]) -> None:
    killer()


# The first mistake of each check by default.
FIRST = {mutant.killer: name for name, mutant in reversed(ALL.items())}


@pytest.mark.parametrize("name", by_default(ALL, lambda name: name in FIRST.values()))
def test_every_mistake_is_noticed(name: str) -> None:
    with ExitStack() as stack:
        stack.enter_context(
            ALL[name].change()
        )  # outside of the check: a mistake that cannot be made is no kill
        with pytest.raises(NOTICED):
            ALL[name].killer()
