"""A tiny target, as its folder, loaded, and the tensors that a drafter shares with it."""

from __future__ import annotations

from pathlib import Path

import pytest

from vocabforge.models.target.head import TargetTensors, load_target_tensors


@pytest.fixture(scope="module")
def shared(folder: Path) -> TargetTensors:
    return load_target_tensors(folder)
