"""Malformed inputs: one clear error each, no traceback, no hang, no blow-up of memory, nothing left behind.

FUZZ (``make test-fuzz``) is the number of inputs by chance over all readers, FUZZ_SEED draws other ones.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tests.fuzz import watch
from tests.fuzz.cases import CANARY, CASES, HARMLESS
from tests.fuzz.goods import copy_good, make_goods, replace, reseal
from tests.fuzz.readers import READERS, files_of
from tests.fuzz.spoil import spoil
from tests.fuzz.watch import watched
from vocabforge.core import artifact, files
from vocabforge.core.artifact import MANIFEST, open_artifact
from vocabforge.core.errors import DataError

pytestmark = pytest.mark.skipif(
    sys.platform == "win32", reason="needs os.fork and rlimits, which Windows lacks"
)

SEED = int(os.environ.get("FUZZ_SEED", 11))
EACH = int(os.environ.get("FUZZ", 4 * len(READERS))) // len(READERS)
SEALED_SHARE = 0.8


def make_input(name: str, number: int, goods: Path, place: Path) -> tuple[str, Path, bool]:
    """Make the input of that number in a folder of its own.

    Returns:
        What was done, its path, and whether its manifest lists other contents, so that it must be rejected.
    """
    reader = READERS[name]
    draw = Random(f"{SEED} {name} {number}")
    path = copy_good(goods / reader.good, place)
    file = draw.choice(files_of(reader, path))
    good = file.read_bytes()
    # README.md is not in a manifest: its reader may edit it.
    listed = reader.sealed and file.relative_to(path).as_posix() in open_artifact(path).manifest["files"]
    change, data = spoil(good, file.suffix, draw)
    replace(file, data)
    sealed = reader.sealed and draw.random() < SEALED_SHARE
    if sealed:
        reseal(path)
    return f"{change} of {file.name}", path, listed and not sealed and data != good


def faults(name: str, inputs: int, goods: Path, work: Path) -> Iterator[str]:
    """Spoil a reader's good example in so many ways and yield what was wrong with the reading."""
    made = [make_input(name, number, goods, work / f"{number}") for number in range(inputs)]
    tasks = [(path.parent, partial(READERS[name].read, path, goods)) for _, path, _ in made]
    for number, ((change, path, damaged), outcome) in enumerate(zip(made, watched(tasks), strict=True)):
        if damaged and outcome.verdict == "accepted":
            yield f"number {number}, {change}: accepted, though the manifest lists other hashes"
        if outcome.verdict == "wrong":
            yield f"number {number}, {change}: {outcome.said}"
        shutil.rmtree(path.parent)


@pytest.fixture(scope="session")
def goods(every_kind: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_goods(tmp_path_factory.mktemp("goods"), every_kind)


def test_good_examples_are_read(goods: Path, tmp_path: Path) -> None:
    tasks = []
    for name, reader in READERS.items():
        path = copy_good(goods / reader.good, tmp_path / name)
        tasks.append((path.parent, partial(reader.read, path, goods)))
    found = dict(zip(READERS, watched(tasks), strict=True))
    assert {name: outcome.said for name, outcome in found.items() if outcome.verdict != "accepted"} == {}


def test_every_named_input_is_one_clear_error(goods: Path, tmp_path: Path) -> None:
    tasks = []
    for number, (name, file, change, _) in enumerate(CASES):
        reader = READERS[name]
        path = copy_good(goods / reader.good, tmp_path / str(number))
        spoilt = path / file if file else path / MANIFEST if path.is_dir() else path
        content = change.encode() if isinstance(change, str) else change
        replace(spoilt, content(spoilt.read_bytes(), spoilt.suffix) if callable(content) else content)
        if reader.sealed:
            reseal(path)
        tasks.append((path.parent, partial(reader.read, path, goods)))
    wrong = []
    for number, ((name, file, _, words), outcome) in enumerate(zip(CASES, watched(tasks), strict=True)):
        expected = "accepted" if words.startswith(HARMLESS) else "rejected"
        said = " ".join(outcome.said.split())
        if outcome.verdict != expected or (expected == "rejected" and words not in said):
            wrong.append(
                f"{number}, {name} {file}: {outcome.verdict}, not {expected} ({words}): {said[-400:]}"
            )
    assert wrong == []
    assert not Path(CANARY).exists(), "a pickle was run"


@pytest.mark.parametrize("name", READERS)
def test_inputs_spoilt_by_chance(goods: Path, tmp_path: Path, name: str) -> None:
    assert list(faults(name, EACH, goods, tmp_path)) == []


@pytest.mark.parametrize(
    ("module", "name", "planted", "readers"),
    [
        (files, "_MISFITS", (), ["draft-head", "capture"]),
        (artifact, "_verify_files", lambda *_, **__: None, ["draft-head", "inspect evaluation"]),
    ],
    ids=["values of another type are not looked at", "hashes are not compared"],
)
def test_the_campaign_finds_a_planted_fault(
    goods: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    module: Any,
    name: str,
    planted: Any,
    readers: list,
) -> None:
    monkeypatch.setattr(module, name, planted)
    assert any(any(faults(reader, 60, goods, tmp_path / reader)) for reader in readers)


def test_hangs_memory_crashes_and_leftovers_are_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "CPU_S", 0.2)

    def hang() -> None:
        while True:
            pass

    def leave() -> None:
        (tmp_path / "half").touch()
        raise DataError("a clear error")

    tasks = [
        hang,
        lambda: bytearray(8 << 30),
        lambda: os.kill(os.getpid(), 9),
        lambda: {}["x"],
        leave,
        lambda: 1,
    ]
    found = list(watched([(tmp_path, task) for task in tasks]))
    assert [outcome.verdict for outcome in found] == ["wrong"] * 5 + ["accepted"]
