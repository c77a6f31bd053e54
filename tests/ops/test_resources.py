"""What the CUDA compiler makes of the kernels: they compile, within the registers written down."""

from __future__ import annotations

import json
import re
import shutil
import subprocess

import pytest

from tests.ops.kernels_build import load_build, load_script


@pytest.fixture(scope="module")
def architectures() -> list[str]:
    """What the library that is built here was compiled for: both targets, or those of ``make kernels ARCH=...``."""
    facts = load_script("ptxas_table").FACTS
    found: list[str] = json.loads(facts.read_text())["architectures"] if facts.is_file() else []
    if load_build().find_nvcc() is None or not found:
        pytest.skip("the CUDA sources are not compiled here: make kernels, which needs nvcc")
    return found


@pytest.fixture(scope="module")
def compiled(architectures: list[str]) -> dict[str, dict[str, list[int]]]:
    load_build().build()
    table: dict[str, dict[str, list[int]]] = load_script("ptxas_table").resources()
    return table


def test_every_kernel_compiles_for_every_target(
    compiled: dict[str, dict[str, list[int]]], architectures: list[str]
) -> None:
    assert compiled
    for name, targets in compiled.items():
        assert sorted(targets) == sorted(architectures), name


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
    expected = {name: {one: table["kernels"][name][one] for one in found} for name, found in compiled.items()}
    changed = {name: (found, expected[name]) for name, found in compiled.items() if found != expected[name]}
    assert not changed, remedy


_INSTRUCTION = re.compile(r"/\*([0-9a-f]{4,})\*/\s+(?:@!?U?P\w+\s+)?([A-Z]\w*)([^;]*);")
_TOUCHES = {"LD", "LDG", "LDGSTS", "ST", "STG", "RED", "REDG", "ATOM", "ATOMG", "EXIT"}


def before_the_wait(code: str) -> str | None:
    """What a kernel's machine code does before ACQBULK (griddepcontrol.wait) that it must not; None: nothing."""
    farthest = -1
    for address, name, rest in _INSTRUCTION.findall(code):
        if name == "ACQBULK":
            return "a jump past the wait" if farthest > int(address, 16) else None
        if name in _TOUCHES:
            return f"{name} at {address}"
        if name in ("BRA", "CALL", "JMP", "BRX"):
            targets = re.findall(r"0x([0-9a-f]+)", rest)
            farthest = max(farthest, int(targets[-1], 16) if targets else 1 << 30)
    return "no wait"


def test_machine_code_before_the_wait_is_judged() -> None:
    wait, load = "/*0050*/ ACQBULK ;", "/*0040*/ @P0 LDG.E.128.CONSTANT R4, desc[UR4][R14.64] ;"
    assert before_the_wait(f"/*0010*/ LDC R1, c[0x0][0x28] ; /*0020*/ @!P0 BRA 0x10 ; {wait} {load}") is None
    assert before_the_wait(f"{load} {wait}") == "LDG at 0040"
    assert before_the_wait(f"/*0010*/ @!P0 BRA 0x60 ; {wait}") == "a jump past the wait"
    assert before_the_wait(f"/*0010*/ @P0 EXIT ; {wait}") == "EXIT at 0010"
    assert before_the_wait("/*0010*/ LDC R1, c[0x0][0x28] ;") == "no wait"


@pytest.mark.slow
def test_compiled_kernels_wait_before_they_touch_device_memory(compiled: dict[str, object]) -> None:
    """The compiler may move a load of memory that it holds to be constant: sources alone do not tell."""
    if shutil.which("cuobjdump") is None:
        pytest.skip("no cuobjdump (of the CUDA toolkit, or of PyPI)")
    command = ["cuobjdump", "-sass", "-arch", "sm_90a", str(load_build().NATIVE)]
    listing = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found = {part.split()[0]: before_the_wait(part) for part in listing.split("Function : ")[1:]}
    assert len(found) == len(compiled)
    # Products of contiguous rows copy their weights early; the emulator watches those.
    assert {name: fault for name, fault in found.items() if fault and "14ContiguousRows" not in name} == {}
