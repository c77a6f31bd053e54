"""What the CUDA compiler makes of the kernels: they compile for both targets, within the registers written down."""

from __future__ import annotations

import json

import pytest

from tests.ops.kernels_build import load_build, load_script


@pytest.fixture(scope="module")
def compiled() -> dict[str, dict[str, list[int]]]:
    build = load_build()
    if build.find_nvcc() is None:
        pytest.skip("no nvcc: the CUDA sources cannot be compiled here")
    build.build()
    table: dict[str, dict[str, list[int]]] = load_script("ptxas_table").resources()
    return table


def test_every_kernel_compiles_for_both_targets(compiled: dict[str, dict[str, list[int]]]) -> None:
    assert compiled
    for name, targets in compiled.items():
        assert sorted(targets) == ["80", "90a"], name


def test_nothing_spills(compiled: dict[str, dict[str, list[int]]]) -> None:
    """A spilled register or an array with an index known only at run time goes through memory."""
    bad = {
        f"{name} sm_{target}": numbers
        for name, targets in compiled.items()
        for target, numbers in targets.items()
        if numbers[2] or numbers[3]
    }
    assert not bad


def test_registers_and_shared_memory_are_those_of_the_table(
    compiled: dict[str, dict[str, list[int]]],
) -> None:
    build = load_build()
    table = json.loads(load_script("ptxas_table").TABLE.read_text())
    if table["nvcc"] != build.nvcc_version(build.find_nvcc()):
        pytest.skip(f"the table is of nvcc {table['nvcc']}")
    remedy = "if the change is meant: python kernels/ptxas_table.py --write"
    assert sorted(compiled) == sorted(table["kernels"]), remedy
    expected = table["kernels"]
    changed = {name: (found, expected[name]) for name, found in compiled.items() if found != expected[name]}
    assert not changed, remedy
