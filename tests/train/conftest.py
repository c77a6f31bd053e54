"""What most tests of training begin with. Imports stand in the fixtures: a GPU machine may lack pydantic."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a target and texts for runs."""
    from tests.train.run_support import make_place

    return make_place(tmp_path_factory.mktemp("place"))
