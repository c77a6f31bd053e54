"""Tiny targets, and the tensors that a drafter shares with one."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.export.readers_support import Tiny, make_tiny
from vocabforge.models.target.head import TargetTensors, load_target_tensors


@pytest.fixture(scope="module")
def shared(folder: Path) -> TargetTensors:
    return load_target_tensors(folder)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Tiny:
    return make_tiny(tmp_path_factory.mktemp("tiny") / "target")
