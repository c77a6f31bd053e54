"""Fixtures of the model tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tests.worlds import tiny_target
from vocabforge.models.target.hf import HFTarget


@pytest.fixture
def one_thread() -> Iterator[None]:
    """On tiny matrices a second thread only waits, for milliseconds where the machine is busy."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_target(tmp_path_factory.mktemp("target"))


@pytest.fixture(scope="module")
def target(folder: Path) -> HFTarget:
    return HFTarget.load(folder)
