"""Print ptxas resource usage per kernel of the last `make kernels`: registers, shared memory, stack, spills.

``python kernels/ptxas_table.py`` prints the table; ``--write`` updates ``resources.json``, which a test
checks.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent
TABLE = ROOT / "resources.json"
LOGS = ROOT / "build" / "native"
FACTS = ROOT.parent / "vocabforge" / "ops" / "lib" / "libvocabforge_ops.json"
COLUMNS = "registers, static shared bytes, stack bytes, spilled bytes"


def resources() -> dict[str, dict[str, list[int]]]:
    """Return the resource usage of each kernel in the last native build, as reported by ptxas.

    Returns:
        ``kernel -> architecture -> [registers, static shared bytes, stack bytes, spilled bytes]``.
    """
    table: dict[str, dict[str, list[int]]] = {}
    for log in sorted(LOGS.glob("*_cu.log")):
        for name, architecture, numbers in _read_log(log.read_text()):
            table.setdefault(name, {})[architecture] = numbers
    return {name: table[name] for name in sorted(table)}


_ENTRY = re.compile(r"Compiling entry function '(\S+)' for 'sm_(\w+)'")
_STACK = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
_USED = re.compile(r"Used (\d+) registers(?:.*?(\d+) bytes smem)?")


def _read_log(text: str) -> list[tuple[str, str, list[int]]]:
    found: list[tuple[str, str, list[int]]] = []
    name = architecture = ""
    stack = spilled = 0
    for line in text.splitlines():
        if entry := _ENTRY.search(line):
            name, architecture = entry.groups()
        elif frame := _STACK.search(line):
            stack, spilled = int(frame[1]), int(frame[2]) + int(frame[3])
        elif (used := _USED.search(line)) and name:
            found.append((name, architecture, [int(used[1]), int(used[2] or 0), stack, spilled]))
            name = ""
    names = _demangled([one[0] for one in found])
    return [(short, architecture, numbers) for short, (_, architecture, numbers) in zip(names, found)]


def _demangled(names: Sequence[str]) -> list[str]:
    """Demangle to ``kernel<arguments>`` as in the source, without namespaces and parameters."""
    if not names:
        return []
    filtered = subprocess.run(
        ["c++filt"], input="\n".join(names), capture_output=True, text=True, check=True
    ).stdout
    short = []
    for line in filtered.splitlines():
        line = line.replace("(anonymous namespace)::", "").replace("vf::", "").removeprefix("void ")
        depth, end = 0, len(line)
        for place, letter in enumerate(line):
            depth += (letter == "<") - (letter == ">")
            if letter == "(" and depth == 0 and not line[:place].endswith("operator"):
                end = place
                break
        short.append(line[:end])
    return short


def main() -> int:
    kernels = resources()
    if not kernels:
        sys.stderr.write("error: no build with nvcc here: run `make kernels` first\n")
        return 1
    for name, targets in kernels.items():
        for target, numbers in targets.items():
            sys.stdout.write(
                f"{name:60} sm_{target:4} " + " ".join(f"{number:6}" for number in numbers) + "\n"
            )
    if "--write" in sys.argv[1:]:
        body = {"nvcc": json.loads(FACTS.read_text())["nvcc"], "columns": COLUMNS, "kernels": kernels}
        text = json.dumps(body, indent=1)
        one_line = re.sub(r"\[\s+((?:\d+,\s+)*\d+)\s+\]", lambda row: f"[{' '.join(row[1].split())}]", text)
        TABLE.write_text(one_line + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
