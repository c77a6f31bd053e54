"""What share of each package's lines the tests ran: ``python .ci/coverage_table.py`` after a run with ``--cov``."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import coverage

PACKAGE = Path(__file__).resolve().parents[1] / "vocabforge"


def shares() -> dict[str, tuple[int, int]]:
    """Lines that can run and lines that did, by package, and of all of them."""
    data = coverage.Coverage(config_file=str(PACKAGE.parent / "pyproject.toml"))
    data.load()
    lines, ran = Counter[str](), Counter[str]()
    for file in sorted(PACKAGE.rglob("*.py")):
        _, able, _, missing, _ = data.analysis2(str(file))
        for name in (file.relative_to(PACKAGE).parts[0].removesuffix(".py"), "all"):
            lines[name] += len(able)
            ran[name] += len(able) - len(missing)
    return {name: (lines[name], ran[name]) for name in lines if lines[name]}


def main() -> None:
    found = shares()
    print(f"\n{'package':<12}{'lines':>9}{'run':>9}")
    for name, (lines, ran) in sorted(found.items(), key=lambda row: (row[0] == "all", row[0])):
        print(f"{name:<12}{lines:>9,}{ran / lines:>9.1%}")


if __name__ == "__main__":
    main()
