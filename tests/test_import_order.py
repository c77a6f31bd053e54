"""Data flows one way: a package imports only from the packages to its left."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.support import ROOT

ORDER = (
    "core",
    "ops",
    "corpus",
    "vocab",
    "models",
    "capture",
    "train",
    "export",
    "decode",
    "evaluate",
    "tune",
    "study",
    "cli",
)
NAME = "vocabforge"
FREE = ("__main__",)  # the entry point stands above every package
_ROW = re.compile(rf"{NAME}(\.\w+)+:\w+")  # a row of an extension table


class Arrow(NamedTuple):
    """``source`` and ``target`` are packages; ``where`` is file:line."""

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


def violations(found: list[Arrow]) -> list[str]:
    """Arrows to the right, packages outside the order, and imports of the root's modules from a package."""
    place = {name: index for index, name in enumerate(ORDER)}
    wrong = []
    for source, target, where in found:
        if target == "":
            continue  # vocabforge/__init__.py: the version, which imports nothing
        unknown = [name for name in (source, target) if name and name not in place]
        if unknown:
            wrong.append(f"{where}: the package {unknown[0]} is not in the order")
        elif not source or place[target] > place[source]:
            wrong.append(f"{where}: {source or NAME} imports {target}")
    return wrong


def cycles(found: list[Arrow]) -> list[list[str]]:
    """Rings of packages, each once."""
    edges: dict[str, set[str]] = {}
    for source, target, _ in found:
        edges.setdefault(source, set()).add(target)
    rings: dict[frozenset[str], list[str]] = {}

    def walk(path: list[str]) -> None:
        for following in sorted(edges.get(path[-1], ())):
            if following in path:
                ring = path[path.index(following) :]
                rings.setdefault(frozenset(ring), ring)
            else:
                walk([*path, following])

    for start in sorted(edges):
        walk([start])
    return list(rings.values())


def test_the_package_keeps_the_order() -> None:
    found = arrows(ROOT / NAME)
    assert {arrow.source for arrow in found} > {"cli", "decode", "train"}, "the graph was read"
    assert violations(found) == []


def test_there_is_no_cycle_between_packages() -> None:
    assert cycles(arrows(ROOT / NAME)) == []


def test_every_package_is_in_the_order() -> None:
    packages = {p.parent.name for p in (ROOT / NAME).glob("*/__init__.py")}
    assert packages <= set(ORDER)


def test_the_root_imports_nothing() -> None:
    tree = ast.parse((ROOT / NAME / "__init__.py").read_text("utf-8"))
    assert not [node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)]


def plant(root: Path, files: dict[str, str]) -> list[Arrow]:
    for name, text in files.items():
        file = root / NAME / name
        file.parent.mkdir(parents=True, exist_ok=True)
        (file.parent / "__init__.py").touch()
        file.write_text(text, "utf-8")
    return arrows(root / NAME)


PLANTED = {
    "relative": "from ..train import loop",
    "relative module": "from ..train.loop import Trainer",
    "of the root": "from .. import train",
    "absolute": "import vocabforge.train.loop as x",
    "absolute from": "from vocabforge.train.loop import Trainer",
    "absolute root": "from vocabforge import train",
    "in a function": "def f():\n    from ..train import loop",
    "in a method": "class A:\n    def f(self):\n        if True:\n            import vocabforge.train",
    "for types": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from ..train.loop import Trainer",
    "in a try": "try:\n    from ..train import loop\nexcept ImportError:\n    loop = None",
    "a table's row": 'TABLE = {"x": "vocabforge.train.loop:Trainer"}',
}


@pytest.mark.parametrize("kind", PLANTED)
def test_a_planted_arrow_to_the_right_is_caught(tmp_path: Path, kind: str) -> None:
    found = plant(tmp_path, {"models/x.py": PLANTED[kind], "train/loop.py": "from ..models import x"})
    (wrong,) = violations(found)
    assert "models imports train" in wrong
    assert "x.py:" in wrong
    assert cycles(found) == [["models", "train"]]


def test_allowed_imports_are_not_caught(tmp_path: Path) -> None:
    files = {
        "core/errors.py": "import os\nfrom .. import __version__\nfrom . import files\nfrom .files import x",
        "core/files.py": "import vocabforge.core.errors",
        "train/loop.py": "from ..core.errors import E\nfrom ..models import x\nimport torch",
        "models/x.py": "from ..core import errors",
    }
    found = plant(tmp_path, files)
    assert violations(found) == []
    assert {(a.source, a.target) for a in found} == {
        ("core", ""),
        ("train", "core"),
        ("train", "models"),
        ("models", "core"),
    }


def test_packages_outside_the_order_and_imports_by_the_root_are_caught(tmp_path: Path) -> None:
    found = plant(tmp_path, {"extras/x.py": "from ..core import y", "core/y.py": ""})
    assert "extras is not in the order" in violations(found)[0]
    found = plant(tmp_path, {"__init__.py": "from .core import y"})
    assert any("vocabforge imports core" in line for line in violations(found))


def test_longer_rings_are_found() -> None:
    ring = [Arrow(a, b, "") for a, b in (("a", "b"), ("b", "c"), ("c", "a"), ("c", "d"))]
    assert cycles(ring) == [["a", "b", "c"]]
