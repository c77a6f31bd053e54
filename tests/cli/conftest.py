"""Fixtures of the command-line tests."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.cli.cli_support import World, make_world


@pytest.fixture(scope="session")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> World:
    """Made once; not to be changed."""
    return make_world(tmp_path_factory.mktemp("world"))


@pytest.fixture
def world(pristine: World, tmp_path: Path) -> World:
    """A copy to damage."""
    folder = tmp_path / "world"
    shutil.copytree(pristine.target.parent, folder)
    return World(*(folder / path.name for path in pristine))
