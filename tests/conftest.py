"""Test-wide settings: two threads at most, no network, importable ``tests`` package."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tests.worlds import World

_ROOT = Path(__file__).resolve().parents[1]
# Scripts are imported as they are when they run: from their own folders.
sys.path[:0] = [
    str(_ROOT),
    *(str(_ROOT / folder) for folder in ("kernels", "recipes/bench", "recipes/study", "recipes/tiny")),
]
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("OMP_NUM_THREADS", "1")  # of the processes that tests start; see below


def pytest_configure() -> None:
    """One thread: the tests' tensors are tiny, and threads that spin for each other only slow them down.

    Training takes every core that it is allowed to run on, so a test worker keeps to one of them, and so do the
    processes that its tests start.
    """
    import torch

    try:
        from hypothesis import settings
    except ImportError:  # a machine that runs the GPU tests only
        pass
    else:
        # No limit on the time of an example, and the same examples for everybody; "explore" draws new ones.
        settings.register_profile("same", deadline=None, derandomize=True, max_examples=40)
        settings.register_profile("explore", deadline=None)
        settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "same"))
    torch.set_num_threads(1)
    worker = os.environ.get("PYTEST_XDIST_WORKER", "").removeprefix("gw")
    if worker.isdigit() and hasattr(os, "sched_setaffinity"):
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {cores[int(worker) % len(cores)]})


def pytest_collection_finish() -> None:
    """What is loaded by now stays: the garbage collector need not walk through a million objects again and again."""
    import gc

    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """A test that trains leaves its number of threads behind; the next one is not to run with it."""
    yield
    import torch

    if torch.get_num_threads() != 1:
        torch.set_num_threads(1)


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny target without a tokenizer; made once, not to be changed."""
    from tests.worlds import tiny_target

    return tiny_target(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="session")
def folder(tiny_folder: Path) -> Path:
    return tiny_folder


@pytest.fixture(scope="module")
def target(folder: Path) -> Any:
    """The tiny target, loaded; tests hook it and leave it as it was."""
    from vocabforge.models.target.hf import HFTarget

    return HFTarget.load(folder)


@pytest.fixture(scope="session")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> World:
    """A target with its tokenizer, a drafter and a draft vocabulary; made once, not to be changed."""
    from tests.worlds import make_world

    return make_world(tmp_path_factory.mktemp("world"))


@pytest.fixture
def world(pristine: World, tmp_path: Path) -> World:
    """A copy to damage."""
    folder = tmp_path / "world"
    shutil.copytree(pristine.target.parent, folder)
    from tests.worlds import World

    return World(*(folder / path.name for path in pristine))


@pytest.fixture(scope="session")
def every_kind(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One artefact of every kind under its kind's name, made once for all tests of a worker, which only read it."""
    from tests.cli.every_kind import make_every_kind

    return make_every_kind(tmp_path_factory.mktemp("every-kind"))
