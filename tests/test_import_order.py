"""Data flows one way: a package imports only from the packages to its left."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.worlds import ROOT


def load_graph() -> Any:
    """The program that reads the imports and draws them; it stands outside the package, beside its other tools."""
    spec = importlib.util.spec_from_file_location("import_graph", ROOT / ".ci" / "import_graph.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


graph = load_graph()
NAME, ORDER, Arrow, arrows = graph.NAME, graph.ORDER, graph.Arrow, graph.arrows


def violations(found: list[Any]) -> list[str]:
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


def cycles(found: list[Any]) -> list[list[str]]:
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


@pytest.fixture(scope="module")
def ours() -> list[Any]:
    return arrows(ROOT / NAME)


def test_the_package_keeps_the_order(ours: list[Any]) -> None:
    assert {arrow.source for arrow in ours} > {"cli", "decode", "train"}, "the graph was read"
    assert violations(ours) == []


@pytest.fixture(scope="module")
def imports() -> dict[str, Any]:
    found: dict[str, Any] = graph.module_imports(ROOT / NAME)
    return found


def test_no_two_modules_import_each_other(imports: dict[str, Any]) -> None:
    assert len(imports) > 300, "the modules were read"
    assert graph.circles(imports) == []


def test_the_api_and_the_commands_are_siblings(imports: dict[str, Any]) -> None:
    assert not [name for name in imports["vocabforge.api"] if name.startswith("vocabforge.cli")]
    users = [name for name, used in imports.items() if "vocabforge.api" in used]
    assert users == []


def test_a_planted_circle_of_modules_is_found(tmp_path: Path) -> None:
    files = {
        "core/a.py": "def f():\n    from .b import x",
        "core/b.py": "from . import c",
        "core/c.py": "from vocabforge.core.a import f",
        "core/d.py": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from .e import x",
        "core/e.py": "from .d import y",
    }
    plant(tmp_path, files)
    ring = ["vocabforge.core.a", "vocabforge.core.b", "vocabforge.core.c"]
    assert graph.circles(graph.module_imports(tmp_path / NAME)) == [ring]


def folders(imports: dict[str, Any]) -> dict[str, set[str]]:
    """Imports between folders inside packages; the modules of a package's root belong to no folder."""
    parents = {name.rpartition(".")[0] for name in imports}
    found: dict[str, set[str]] = {}
    for name, used in imports.items():
        for one in (name, *used):
            found.setdefault(one if one in parents else one.rpartition(".")[0], set())
        source = name if name in parents else name.rpartition(".")[0]
        found[source] |= {one if one in parents else one.rpartition(".")[0] for one in used} - {source}
    inner = {name for name in found if name.count(".") > 1}
    return {name: found[name] & inner for name in inner}


def test_no_two_folders_inside_packages_import_each_other(imports: dict[str, Any]) -> None:
    between = folders(imports)
    assert between["vocabforge.decode.build"] > {"vocabforge.decode.proposers"}, "the folders were read"
    assert graph.circles(between) == []


def test_a_planted_circle_of_folders_is_found(tmp_path: Path) -> None:
    files = {
        "train/heads/a.py": "from ..loss.b import x\nfrom ..loop import y",
        "train/loss/b.py": "",
        "train/loss/c.py": "def f():\n    from ..heads.d import z",
        "train/heads/d.py": "",
        "train/loop.py": "from .heads.d import z",
    }
    plant(tmp_path, files)
    between = folders(graph.module_imports(tmp_path / NAME))
    assert graph.circles(between) == [["vocabforge.train.heads", "vocabforge.train.loss"]]


def test_there_is_no_cycle_between_packages(ours: list[Any]) -> None:
    assert cycles(ours) == []


def test_every_package_is_in_the_order() -> None:
    packages = {p.parent.name for p in (ROOT / NAME).glob("*/__init__.py")}
    assert packages <= set(ORDER)


def test_the_root_loads_nothing_of_the_package_until_it_is_used() -> None:
    code = "import sys, vocabforge; print([name for name in sys.modules if name.startswith(('vocabforge.', 'torch'))])"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def plant(root: Path, files: dict[str, str]) -> list[Any]:
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


def test_packages_outside_the_order_are_caught(tmp_path: Path) -> None:
    found = plant(tmp_path, {"extras/x.py": "from ..core import y", "core/y.py": ""})
    assert "extras is not in the order" in violations(found)[0]


def test_longer_rings_are_found() -> None:
    ring = [Arrow(a, b, "") for a, b in (("a", "b"), ("b", "c"), ("c", "a"), ("c", "d"))]
    assert cycles(ring) == [["a", "b", "c"]]


def test_the_drawn_graph_is_what_the_code_says(ours: list[Any]) -> None:
    """After an import came or went: python .ci/import_graph.py"""
    assert graph.FILE.read_text("utf-8") == graph.drawing(graph.modules_between(ours))


def test_the_drawing_counts_modules_and_not_lines() -> None:
    found = [
        Arrow("vocab", "core", "a.py:1"),
        Arrow("vocab", "core", "a.py:9"),
        Arrow("vocab", "core", "b.py:1"),
    ]
    numbers = graph.modules_between(
        [*found, Arrow("vocab", "", "a.py:3"), Arrow("", "core", "__init__.py:1")]
    )
    assert numbers == {("core", "vocab"): 2}
    assert "vocab imports core: 2 modules" in graph.drawing(numbers)
    assert graph.drawing(numbers) != graph.drawing({("core", "vocab"): 3})
