"""A tiny target, as its folder, loaded, and the tensors that a drafter shares with it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.worlds import tiny_target
from vocabforge.models.drafters.io import TargetTensors, load_target_tensors
from vocabforge.models.target.hf import HFTarget


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_target(tmp_path_factory.mktemp("target"))


@pytest.fixture(scope="module")
def target(folder: Path) -> HFTarget:
    return HFTarget.load(folder)


@pytest.fixture(scope="module")
def shared(folder: Path) -> TargetTensors:
    return load_target_tensors(folder)
