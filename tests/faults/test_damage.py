"""A truncated or bit-flipped file of every kind of artefact is found, wherever the damage is."""

from __future__ import annotations

import random
import re
import shutil
from pathlib import Path

import pytest

from tests.cli.cli_support import assert_user_error, invoke
from tests.cli.every_kind import kinds_of_the_package
from tests.worlds import ROOT
from vocabforge.cli.inspect import VIEWS
from vocabforge.core.artifact import MANIFEST, open_artifact, write_artifact
from vocabforge.core.errors import ArtifactError

# Parts of a larger artefact, of kinds of their own, that only their writer opens: ``inspect`` does not know them.
PARTS = ("study-replay-part",)
KINDS = sorted([*VIEWS, *PARTS])


@pytest.fixture(scope="module")
def every(every_kind: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("every")
    shutil.copytree(every_kind, folder, dirs_exist_ok=True)
    for part in PARTS:
        with write_artifact(folder / part, part, {"figures": {"rows": 3}}) as inside:
            (inside / "rows.bin").write_bytes(bytes(range(200)))
    return folder


def flip(file: Path, bit: int) -> None:
    data = bytearray(file.read_bytes())
    data[bit // 8] ^= 1 << bit % 8
    file.write_bytes(data)


def cut(file: Path, size: int) -> None:
    file.write_bytes(file.read_bytes()[:size])


def is_whole(folder: Path, kind: str) -> bool:
    try:
        open_artifact(folder, kind)
    except ArtifactError:
        return False
    return True


def damages(file: Path, chance: random.Random) -> list[tuple[str, object]]:
    """Eight flipped bits, the first and the last one among them, and four lengths; what a file of 0 bytes allows."""
    size = file.stat().st_size
    if not size:
        return [("longer", lambda f: f.write_bytes(b"\0"))]
    bits = {0, 8 * size - 1, *(chance.randrange(8 * size) for _ in range(6))}
    found: list[tuple[str, object]] = [
        (f"bit {bit}", lambda f, bit=bit: flip(f, bit)) for bit in sorted(bits)
    ]
    # Behind a manifest's last brace stands a line break, which nobody misses.
    sizes = sorted({0, size // 2, size - (2 if file.name == MANIFEST else 1)})
    found += [(f"cut to {length}", lambda f, length=length: cut(f, length)) for length in sizes]
    return [*found, ("longer", lambda f: f.write_bytes(f.read_bytes() + b"\0")), ("gone", Path.unlink)]


def test_every_kind_of_the_package_is_damaged_here(every: Path) -> None:
    """A kind that is added to the package fails here until it can be made, and so damaged, too."""
    found = kinds_of_the_package()
    for file in (ROOT / "vocabforge").rglob("*.py"):  # also several names in one line
        for names, values in re.findall(
            r"^([A-Z_, ]*KIND[A-Z_, ]*) = (.+)$", file.read_text("utf-8"), re.MULTILINE
        ):
            found |= set(re.findall(r'"([^"]+)"', values)) if "," in names else set()
    assert found == set(KINDS)
    made = {open_artifact(folder).kind for folder in every.iterdir() if (folder / MANIFEST).is_file()}
    assert made == set(KINDS)


@pytest.mark.parametrize("kind", KINDS)
def test_damage_of_any_file_is_found(every: Path, kind: str, tmp_path: Path) -> None:
    chance = random.Random(kind)
    work = tmp_path / kind
    shutil.copytree(every / kind, work)
    missed: list[str] = []
    assert is_whole(work, kind)
    for file in sorted(path for path in work.rglob("*") if path.is_file()):
        whole = file.read_bytes()
        for name, damage in damages(file, chance):
            damage(file)  # type: ignore[operator]
            if is_whole(work, kind):
                missed.append(f"{file.name}, {name}")
            file.write_bytes(whole)
    assert missed == []
    assert is_whole(work, kind), "what was damaged is as it was"


@pytest.mark.parametrize("kind", sorted(VIEWS))
def test_a_damaged_artefact_is_one_clear_error_of_the_command(every: Path, kind: str, tmp_path: Path) -> None:
    work = tmp_path / kind
    shutil.copytree(every / kind, work)
    largest = max((path for path in work.rglob("*") if path.is_file()), key=lambda path: path.stat().st_size)
    flip(largest, 8 * (largest.stat().st_size // 2))
    assert_user_error(invoke("inspect", work), 1, "Error: ", str(largest.name))


def test_any_bit_of_a_manifest_is_looked_at(every: Path, tmp_path: Path) -> None:
    """Whether it belongs to the content or to the record (parents, configuration, versions)."""
    work = tmp_path / "subset"
    shutil.copytree(every / "subset", work)
    file = work / MANIFEST
    whole = file.read_bytes()
    chance = random.Random(5)
    missed = []
    for bit in sorted(chance.sample(range(8 * len(whole)), 400)):
        flip(file, bit)
        if is_whole(work, "subset"):
            missed.append(bit)
        file.write_bytes(whole)
    assert missed == []
