"""What tests of ops need: the emulated kernels of one op, built where they are not, and scheduling seeds."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator

import pytest
import torch

from tests.ops.kernels_build import load_build
from tests.shares import by_default
from vocabforge.core.errors import UsageError
from vocabforge.ops.backend import library_facts


@pytest.fixture(scope="session")
def emulated() -> Callable[[str], None]:
    """Load an op's emulated kernels: ``emulated("target_choice")``; the name is that of its folder."""
    loaded: set[str] = set()

    def load(folder: str) -> None:
        if folder in loaded:
            return
        if shutil.which(os.environ.get("CXX") or "g++") is None:
            pytest.skip("no C++ compiler: the emulated kernels cannot be built")
        for library in load_build().build_emulated([folder]):
            torch.ops.load_library(str(library))
        loaded.add(folder)

    return load


@pytest.fixture(params=by_default([1, 2, 3], lambda seed: seed == 1))
def schedule(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """A seed of the emulator's order of blocks and threads: what no barrier orders differs under another seed."""
    monkeypatch.setenv("VOCABFORGE_EMULATOR_SEED", str(request.param))
    return int(request.param)


@pytest.fixture
def set_threads() -> Iterator[Callable[[int], None]]:
    """``torch.set_num_threads``, undone after the test."""
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def native_cpu() -> None:
    """The compiled library with the CPU implementations: built by `make kernels` or `make kernels-cpu`, else here."""
    if shutil.which(os.environ.get("CXX") or "g++") is None:
        pytest.skip("no C++ compiler: the CPU implementations cannot be built")
    try:
        facts = library_facts()
    except UsageError:  # cut short, or of a build before this one
        facts = None
    if facts is None:
        build = load_build()
        build.build("cpu" if build.find_nvcc() is None else "native")
        library_facts.cache_clear()
    assert library_facts() is not None


@pytest.fixture(scope="session")
def native_cuda() -> None:
    """The compiled CUDA kernels and a device to run them on."""
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    facts = library_facts()
    if facts is None or facts["variant"] != "native":
        pytest.fail("the CUDA kernels are not built: run `make kernels` first")
