"""What the CUDA compiler makes of the kernels: they compile for every target, and no register is spilled."""

from __future__ import annotations

import json
import re
import shutil
import subprocess

import pytest

from tests.ops.kernels_build import load_build

_ENTRY = re.compile(r"Compiling entry function '(\S+)' for 'sm_(\w+)'")
_STACK = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")


@pytest.fixture(scope="module")
def architectures() -> list[str]:
    """What the library that is built here was compiled for: both targets, or those of ``make kernels ARCH=...``."""
    facts = load_build().NATIVE.with_suffix(".json")
    found: list[str] = json.loads(facts.read_text())["architectures"] if facts.is_file() else []
    if load_build().find_nvcc() is None or not found:
        pytest.skip("the CUDA sources are not compiled here: make kernels, which needs nvcc")
    return found


@pytest.fixture(scope="module")
def compiled(architectures: list[str]) -> dict[tuple[str, str], list[int]]:
    """(kernel, architecture) -> bytes on the stack and spilled, as ptxas reports them."""
    build, found = load_build(), {}
    build.build()
    for source in build.ROOT.glob("*/*.cu"):  # logs of sources that are gone may lie there, too
        kernel = ("", "")
        log = build.Unit(source, "native", ()).object.with_suffix(".log")
        for line in log.read_text().splitlines():
            if entry := _ENTRY.search(line):
                kernel = entry.groups()
            elif frame := _STACK.search(line):
                found[kernel] = [int(frame[1]), int(frame[2]) + int(frame[3])]
    return found


def test_every_kernel_compiles_for_every_target_and_nothing_spills(
    compiled: dict[tuple[str, str], list[int]], architectures: list[str]
) -> None:
    """A spilled register or an array with an index known only at run time goes through memory."""
    assert {kernel: numbers for kernel, numbers in compiled.items() if any(numbers)} == {}
    names = {name for name, _ in compiled}
    assert compiled.keys() == {(name, target) for name in names for target in architectures}
    assert len(names) > 30


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
    assert len(found) == len({name for name, _ in compiled})
    # Products of contiguous rows copy their weights early; the emulator watches those.
    assert {name: fault for name, fault in found.items() if fault and "14ContiguousRows" not in name} == {}
