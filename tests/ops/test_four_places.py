"""Every op stands in four places: interface and reference, kernel, test, benchmark (docs/architecture.md)."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest
from bench.cases import OP_BENCHES
from bench.cases.types import SMALL

from tests.ops.kernels_build import KERNELS
from vocabforge.ops.backend import Op

ROOT = KERNELS.parent
OPS = ROOT / "vocabforge" / "ops"


def defined() -> dict[str, Path]:
    """Op -> the folder whose binding registers it."""
    found: dict[str, Path] = {}
    for path in sorted(KERNELS.glob("*/binding.cpp")):
        for name in re.findall(r'm\.def\(\s*"(\w+)\(', path.read_text()):
            found[name] = path.parent
    return found


def interfaces() -> dict[str, tuple[str, Op]]:
    """Op -> the module of vocabforge.ops that holds its ``Op``, and that."""
    found: dict[str, tuple[str, Op]] = {}
    for path in sorted(OPS.glob("*.py")):
        module = importlib.import_module(f"vocabforge.ops.{path.stem}")
        for value in vars(module).values():
            if isinstance(value, Op):
                found[value.name] = (path.stem, value)
    return found


def test_kernels_and_interfaces_name_the_same_ops() -> None:
    assert sorted(defined()) == sorted(interfaces())


@pytest.mark.parametrize("name", sorted(defined()))
def test_an_op_stands_in_all_places(name: str) -> None:
    folder, (module, op) = defined()[name], interfaces()[name]
    assert any(folder.glob("*.cu")) != op.host, "CUDA source of an op for CPUs, or none of another"
    assert (folder / ("base.cpp" if op.host else "cpu.cpp")).is_file(), "no CPU implementation"
    tests = [
        path
        for path in (ROOT / "tests" / "ops").glob("test_*.py")
        if f"ops.{module} import" in path.read_text()
    ]
    text = "".join(path.read_text() for path in tests)
    for backend in ('"native"',) if op.host else ('"emulated"', '"native"', "pytest.mark.gpu"):
        assert backend in text or "parity(" in text, f"no test of {name} with {backend}"
    if op.host:
        return
    benched = {case.name.split()[0] for cases_of in OP_BENCHES.values() for case in cases_of(SMALL)}
    assert name in benched, "no row in OP_BENCHES with a case of it"


@pytest.mark.parametrize("name", sorted(defined()))
def test_interface_and_library_agree_on_their_arguments(name: str) -> None:
    """The schema's arguments are the reference's, in number and in order."""
    import inspect

    folder, (_, op) = defined()[name], interfaces()[name]
    schema = re.search(
        r'm\.def\(\s*((?:"[^"]*"\s*)+)\)', (folder / "binding.cpp").read_text()[_place(folder, name) :]
    )
    assert schema is not None
    text = "".join(re.findall(r'"([^"]*)"', schema[1]))
    inside = text[text.index("(") + 1 : text.rindex(") ->")]
    names = [part.strip().split(" ")[-1].split("=")[0] for part in inside.split(",") if part.strip() != "*"]
    assert names == list(inspect.signature(op.reference).parameters)


def _place(folder: Path, name: str) -> int:
    found = re.search(rf'm\.def\(\s*"{name}\(', (folder / "binding.cpp").read_text())
    assert found is not None
    return found.start()
