"""Malformed inputs: one clear error each, no traceback, no hang, no blow-up of memory, nothing left behind."""

from __future__ import annotations

import os
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.fuzz import watch
from tests.fuzz.campaign import campaign
from tests.fuzz.cases import CANARY, CASES, HARMLESS
from tests.fuzz.goods import copy_good, make_goods, replace, reseal
from tests.fuzz.readers import READERS
from tests.fuzz.watch import watched
from vocabforge.core import artifact, files
from vocabforge.core.artifact import MANIFEST
from vocabforge.core.errors import DataError

pytestmark = pytest.mark.skipif(
    sys.platform == "win32", reason="needs os.fork and rlimits, which Windows lacks"
)

SEED, EACH = 11, 4


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


def test_inputs_spoilt_by_chance(goods: Path, tmp_path: Path) -> None:
    """A short campaign; the long one is `make test-fuzz`."""
    found = list(campaign(list(READERS), EACH * len(READERS), SEED, goods, tmp_path))
    wrong = [f"{spoilt}: {outcome.said}" for spoilt, outcome in found if outcome.verdict == "wrong"]
    assert wrong == []
    assert sum(outcome.verdict == "rejected" for _, outcome in found) > len(found) / 2


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
    found = campaign(readers, 60 * len(readers), SEED, goods, tmp_path)
    assert any(outcome.verdict == "wrong" for _, outcome in found)


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
