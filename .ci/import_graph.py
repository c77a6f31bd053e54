"""The import graph between the packages: read from the code, drawn as docs/plots/import-graph.svg.

A chart in which the packages stand on the diagonal in the order of data flow. What a package gives runs to the right
along its row; what a package takes comes down its column. The number where both meet is how many modules of the taking
package import from the giving one. `python .ci/import_graph.py` writes the file; a test compares it with the code.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
FILE = ROOT / "docs" / "plots" / "import-graph.svg"
NAME = "vocabforge"
ORDER = (
    "core",
    "ops",
    "corpus",
    "vocab",
    "models",
    "layouts",
    "decode",
    "demo",
    "evaluate",
    "train",
    "export",
    "serve",
    "doctor",
    "tune",
    "cli",
)
FREE = ("__main__", "__init__", "api")  # entry point and Python API stand above every package
_ROW = re.compile(rf"{NAME}(\.\w+)+:\w+")  # a row of an extension table

WIDE, HIGH, GAP = 66, 36, 8  # of a cell, and between the boxes
INK, LINE, BOX = "#1f2a37", "#9aa7b8", "#dfe7f5"


class Arrow(NamedTuple):
    """``source`` imports from ``target``, both packages; ``where`` is file:line."""

    source: str
    target: str
    where: str


def arrows(root: Path) -> list[Arrow]:
    """Every import between packages below ``root``, wherever in a file it stands, and every table row."""
    found = []
    for file in sorted(root.rglob("*.py")):
        parts = (NAME, *file.relative_to(root).with_suffix("").parts)
        if len(parts) == 2 and parts[1] in FREE:
            continue
        source = parts[1] if len(parts) > 2 or (root / parts[1]).is_dir() else ""
        package = parts[:-1]
        for node in ast.walk(ast.parse(file.read_text("utf-8"), str(file))):
            for module in imported(node, package):
                target = package_of(module, root)
                if target not in (None, source):
                    found.append(Arrow(source, str(target), f"{file}:{getattr(node, 'lineno', 0)}"))
    return found


def module_imports(root: Path) -> dict[str, set[str]]:
    """Module -> modules of ours that it imports when it runs.

    Imports for type checkers do not count, nor rows of a table, which name a module until it is wanted.
    """
    modules = {}
    for file in root.rglob("*.py"):
        parts = (NAME, *file.relative_to(root).with_suffix("").parts)
        modules[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = file, parts[:-1]
    return {
        module: {
            name
            for node in _running(ast.parse(file.read_text("utf-8"), str(file)))
            if not isinstance(node, ast.Constant)
            for base in imported(node, package)
            for name in (base, base.rpartition(".")[0])  # a module, or a name in one
            if name in modules and name not in (module, NAME)
        }
        for module, (file, package) in modules.items()
    }


def _running(tree: ast.AST) -> Iterator[ast.AST]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
            continue
        yield node
        yield from _running(node)


def circles(graph: Mapping[str, set[str]]) -> list[list[str]]:
    """Groups of two or more nodes of which each reaches all others (Tarjan 1972)."""
    number: dict[str, int] = {}
    lowest: dict[str, int] = {}
    path: list[str] = []
    found = []

    def visit(node: str) -> None:
        number[node] = lowest[node] = len(number)
        path.append(node)
        for following in graph.get(node, ()):
            if following not in number:
                visit(following)
                lowest[node] = min(lowest[node], lowest[following])
            elif following in path:
                lowest[node] = min(lowest[node], number[following])
        if lowest[node] == number[node]:
            group = path[path.index(node) :]
            del path[path.index(node) :]
            if len(group) > 1:
                found.append(sorted(group))

    for node in graph:
        if node not in number:
            visit(node)
    return found


def imported(node: ast.AST, package: tuple[str, ...]) -> Iterator[str]:
    """Absolute names of what a node imports; ``package`` is the importing module's package."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        above = package[: len(package) - node.level + 1] if node.level else ()
        base = ".".join([*above, *([node.module] if node.module else [])])
        yield from (f"{base}.{alias.name}" for alias in node.names)
    elif isinstance(node, ast.Constant) and isinstance(node.value, str) and _ROW.fullmatch(node.value):
        yield node.value.partition(":")[0]


def package_of(module: str, root: Path) -> str | None:
    """The package of ours that a dotted name lies in; "" is the root itself, None is somebody else's."""
    first, *rest = module.split(".")
    if first != NAME:
        return None
    return rest[0] if rest and (root / rest[0]).exists() else ""


def modules_between(found: list[Arrow]) -> dict[tuple[str, str], int]:
    """How many modules of ``taker`` import from ``giver``, by (giver, taker); the root's version is left out."""
    files: dict[tuple[str, str], set[str]] = {}
    for source, target, where in found:
        if source and target:
            files.setdefault((target, source), set()).add(where.rpartition(":")[0])
    return {pair: len(names) for pair, names in files.items()}


def drawing(numbers: Mapping[tuple[str, str], int], order: tuple[str, ...] = ORDER) -> str:
    """The chart as SVG text: equal numbers give equal bytes. It brings its own light ground."""
    size = len(order)
    width, height = size * WIDE + 2 * GAP, size * HIGH + 2 * GAP
    place = {name: index for index, name in enumerate(order)}
    taken = {name: [place[giver] for giver, taker in numbers if taker == name] for name in order}
    given = {name: [place[taker] for giver, taker in numbers if giver == name] for name in order}
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        'font-family="system-ui, sans-serif" font-size="12" text-anchor="middle" role="img">',
        "<title>Imports between the packages: data flow from the upper left to the lower right</title>",
        f'<rect width="{width}" height="{height}" rx="6" fill="#ffffff"/>',
    ]
    for name in order:
        x, y = _middle(place[name])
        if given[name]:
            end = _middle(max(given[name]))[0]
            lines.append(f'<path d="M{x} {y}H{end}" stroke="{LINE}" fill="none"/>')
        if taken[name]:
            start, tip = _middle(min(taken[name]))[1], y - HIGH // 2 + GAP // 2
            lines.append(f'<path d="M{x} {start}V{tip - 4}" stroke="{LINE}" fill="none"/>')
            lines.append(f'<path d="M{x - 4} {tip - 6}H{x + 4}L{x} {tip}Z" fill="{LINE}"/>')
    for (giver, taker), number in sorted(
        numbers.items(), key=lambda item: (place[item[0][0]], place[item[0][1]])
    ):
        lines += _number(
            _middle(place[taker])[0], _middle(place[giver])[1], f"{taker} imports {giver}", number
        )
    for name in order:
        lines += _box(*_middle(place[name]), name)
    return "\n".join([*lines, "</svg>", ""])


def _middle(index: int) -> tuple[int, int]:
    return GAP + index * WIDE + WIDE // 2, GAP + index * HIGH + HIGH // 2


def _number(x: int, y: int, title: str, number: int) -> list[str]:
    return [
        f'<g><title>{title}: {number} modules</title><circle cx="{x}" cy="{y}" r="11" fill="#ffffff" stroke="{LINE}"/>',
        f'<text x="{x}" y="{y + 4}" font-size="11" fill="{INK}">{number}</text></g>',
    ]


def _box(x: int, y: int, name: str) -> list[str]:
    left, top = x - WIDE // 2 + GAP // 4, y - HIGH // 2 + GAP // 2
    size = f'width="{WIDE - GAP // 2}" height="{HIGH - GAP}"'
    return [
        f'<rect x="{left}" y="{top}" {size} rx="4" fill="{BOX}" stroke="{LINE}"/>',
        f'<text x="{x}" y="{y + 4}" font-weight="600" fill="{INK}">{name}</text>',
    ]


if __name__ == "__main__":
    FILE.write_text(drawing(modules_between(arrows(ROOT / NAME))), "utf-8")
