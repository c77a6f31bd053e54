"""The compiled library as it may be found: whole, cut short, rubbish; and what an op says when it refuses."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from vocabforge.core.errors import UsageError
from vocabforge.ops import arguments, backend
from vocabforge.ops.backend import FLOATS
from vocabforge.ops.tree_verify import tree_verify

SOME = torch.zeros(2, 3)


@pytest.fixture
def copied(native_cpu: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the built library, as the one that the package finds; not loaded yet."""
    library = tmp_path / backend.LIBRARY.name
    shutil.copy(backend.LIBRARY, library)
    shutil.copy(backend.LIBRARY.with_suffix(".json"), library.with_suffix(".json"))
    monkeypatch.setattr(backend, "LIBRARY", library)
    backend.library_facts.cache_clear()
    yield library
    backend.library_facts.cache_clear()


@pytest.mark.parametrize("damage", ["cut", "rubbish", "facts", "no facts"])
def test_a_damaged_library_is_refused_before_it_is_loaded(copied: Path, damage: str) -> None:
    if damage == "cut":
        copied.write_bytes(copied.read_bytes()[:20_000])
    if damage == "rubbish":
        copied.write_bytes(b"no library" * 1000)
    if damage == "facts":
        copied.with_suffix(".json").write_text('{"variant": ')
    if damage == "no facts":
        copied.with_suffix(".json").unlink()
    with pytest.raises(UsageError, match=r"cannot be loaded(.|\n)*kernels build"):
        backend.library_facts()


def test_without_a_library_native_is_an_error_and_auto_is_the_reference(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backend, "LIBRARY", tmp_path / "none.so")
    backend.library_facts.cache_clear()
    op = backend.Op("silu_mul", torch.neg)
    with pytest.raises(UsageError, match="no library at"):
        op("native", torch.ones(2))
    assert torch.equal(op("auto", torch.ones(2)), -torch.ones(2))
    backend.library_facts.cache_clear()


def test_a_kernels_refusal_names_the_op_and_no_source_file(native_cpu: None) -> None:
    words = torch.zeros(1, 3, dtype=torch.int64)
    tree = torch.eye(3, dtype=torch.bool)[None]
    with pytest.raises(UsageError, match="compiled silu_mul does not take") as found:
        backend.Op("silu_mul", torch.neg)("native", torch.zeros(2, 3, dtype=torch.int64))
    assert "binding.cpp" not in str(found.value)
    # Parents that do not exist are the root's children, wherever they point.
    wild = torch.tensor([[0, 2**40, -(2**40)]])
    path, numbers = tree_verify(
        words, wild, words, tree, words, torch.ones(1, 3, dtype=torch.bool), levels=2, backend="native"
    )
    assert 0 <= int(path.min()) <= int(path.max()) < 3
    assert int(numbers[0, 0]) <= 2


@pytest.mark.parametrize(
    ("check", "words"),
    [
        (lambda: arguments.check_tensors("op", ("x", SOME, "NHD", FLOATS)), "x has another shape"),
        (lambda: arguments.check_tensors("op", ("x", SOME, "ND", FLOATS), D=4), "x has another shape"),
        (
            lambda: arguments.check_tensors("op", ("x", SOME, "ND", FLOATS), ("y", SOME, "DD", FLOATS)),
            r"y has another shape\n.*\(2, 3\)\n.*\(3, 3\)",
        ),
        (lambda: arguments.check_tensors("op", ("x", SOME, "ND", arguments.INT64)), "x has another dtype"),
        (
            lambda: arguments.check_tensors(
                "op",
                ("x", SOME, "ND", FLOATS),
                ("y", None, "N", FLOATS),
                ("z", SOME.to("meta"), "ND", FLOATS),
            ),
            "devices",
        ),
        (lambda: arguments.check_range("op", "k", 65, 1, 64), "k is out of range"),
        (lambda: arguments.fitting_backend("op", "emulated", SOME, False, "d"), "these sizes"),
        (lambda: backend.Op("op", torch.neg)("opencl", torch.zeros(1)), "no such kernel backend"),
    ],
)
def test_what_every_op_refuses(check: Callable[[], object], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        check()
