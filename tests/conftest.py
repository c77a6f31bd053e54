"""Test-wide settings: two threads at most, no network, importable ``tests`` package."""

from __future__ import annotations

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("OMP_NUM_THREADS", "1")  # of the processes that tests start; see below


def pytest_configure() -> None:
    """One thread: the tests' tensors are tiny, and threads that spin for each other only slow them down."""
    import torch

    torch.set_num_threads(1)
