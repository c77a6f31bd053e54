"""A truncated or bit-flipped file of every kind of artefact is found, wherever the damage is."""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.cli_support import assert_user_error, invoke
from tests.cli.every_kind import kinds_of_the_package
from vocabforge.core.artifact import MANIFEST, open_artifact
from vocabforge.core.errors import ArtifactError

KINDS = sorted(kinds_of_the_package())


def is_whole(folder: Path, kind: str) -> bool:
    try:
        open_artifact(folder, kind)
    except ArtifactError:
        return False
    return True


def flipped(data: bytes, bit: int) -> bytes:
    changed = bytearray(data)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


def damages(name: str, data: bytes, chance: random.Random) -> Iterator[tuple[str, bytes]]:
    """Eight flipped bits (of a manifest 100), the first and the last one among them, and four other lengths."""
    yield "longer", data + b"\0"
    if data:
        bits = {
            0,
            8 * len(data) - 1,
            *(chance.randrange(8 * len(data)) for _ in range(98 if name == MANIFEST else 6)),
        }
        yield from ((f"bit {bit}", flipped(data, bit)) for bit in sorted(bits))
        # Behind a manifest's last brace there is a line break, which nobody misses.
        end = len(data) - (2 if name == MANIFEST else 1)
        yield from ((f"cut to {size}", data[:size]) for size in sorted({0, len(data) // 2, end}))


def test_every_kind_of_the_package_is_damaged_here(every_kind: Path) -> None:
    """A kind that is added to the package fails here until it can be made, and so damaged, too."""
    made = {open_artifact(folder).kind for folder in every_kind.iterdir() if (folder / MANIFEST).is_file()}
    assert made == set(KINDS)


@pytest.mark.parametrize("kind", KINDS)
def test_damage_of_any_file_is_found(every_kind: Path, kind: str, tmp_path: Path) -> None:
    work = tmp_path / kind
    shutil.copytree(every_kind / kind, work)
    assert is_whole(work, kind)
    missed: list[str] = []
    files = [
        work / name for name in (*open_artifact(work).manifest["files"], MANIFEST)
    ]  # README.md may be edited
    for file in files:
        whole = file.read_bytes()
        for name, spoilt in damages(file.name, whole, random.Random(kind)):
            file.write_bytes(spoilt)
            missed += [f"{file.name}, {name}"] if is_whole(work, kind) else []
        file.unlink()
        missed += [f"{file.name}, gone"] if is_whole(work, kind) else []
        file.write_bytes(whole)
    assert missed == []
    assert is_whole(work, kind), "what was damaged is as it was"
    largest = max((file for file in files if file.name != MANIFEST), key=lambda file: file.stat().st_size)
    largest.write_bytes(flipped(largest.read_bytes(), 4 * largest.stat().st_size))
    assert_user_error(invoke("inspect", work), 1, "Error: ", str(largest.name))
