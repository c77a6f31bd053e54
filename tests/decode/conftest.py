"""Models and folders that are made once for all tests of the decode loop, which only read them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:  # tests on a machine with a GPU do without transformers
    from tests.decode.drafting import Pair


@pytest.fixture(scope="session")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Pair]:
    from tests.decode.drafting import FAMILY_CASES, make_pair
    from tests.models.lean_support import build

    made = {}
    for case in FAMILY_CASES:
        folder = tmp_path_factory.mktemp(case)
        made[case] = make_pair(folder, build(case, folder))
    return made


@pytest.fixture(scope="session")
def pair(pairs: dict[str, Pair]) -> Pair:
    return pairs["llama"]


@pytest.fixture(scope="session")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tests.decode.build_support import make_place

    return make_place(tmp_path_factory.mktemp("place"))
