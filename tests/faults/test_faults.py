"""Commands that are struck. FAULTS_SEED (``make test-faults``) strikes all of them, otherwise a few."""

from __future__ import annotations

import functools
import importlib
import json
import os
from pathlib import Path

import pytest

from tests.docs.doc_parse import check_ours
from tests.faults.campaign import KILL, SHORT, WHOLE, Bench, struck
from tests.faults.jobs import FORMS, JOBS, URLS, WRITERS, make_world
from tests.faults.process import FORK
from vocabforge.core import folders

SEED = int(os.environ.get("FAULTS_SEED", 0))
COUNTS = WHOLE if "FAULTS_SEED" in os.environ else SHORT
# Loaded in front of every fork; what else commands need is found by their undisturbed runs.
SLOW = ("vocabforge.train.capture.run", "vocabforge.train.loop", "transformers.models.llama.modeling_llama")
linux = pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="open files are looked up in /proc")


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The inputs, made in a child, so that this process stays without threads and models."""
    for name in SLOW:
        importlib.import_module(name)
    place = tmp_path_factory.mktemp("world")
    maker = FORK.Process(target=make_world, args=(place,), kwargs={"short": COUNTS is SHORT})
    maker.start()
    maker.join()
    assert maker.exitcode == 0, "the inputs cannot be made"
    return place


@functools.cache
def bench_of(name: str, world: Path) -> Bench:
    return Bench((JOBS | WRITERS | FORMS)[name], world, world.parent)


@pytest.mark.parametrize("name", WHOLE)
def test_the_commands_of_the_whole_campaign_can_be_read(name: str, tmp_path: Path) -> None:
    (tmp_path / URLS).write_text(
        json.dumps(dict.fromkeys(("states", "fetched", "vllm", "plain", "chat"), "http://127.0.0.1:1"))
    )
    check_ours((JOBS | WRITERS | FORMS)[name].words(tmp_path, tmp_path / "work"))


@linux
@pytest.mark.slow
@pytest.mark.parametrize(("name", "fault"), [(name, fault) for name in COUNTS for fault in COUNTS[name]])
def test_every_struck_command_ends_in_a_clear_error_or_the_identical_result(
    world: Path, name: str, fault: str
) -> None:
    assert list(struck(bench_of(name, world), name, fault, COUNTS[name][fault], SEED)) == []


@linux
@pytest.mark.slow
def test_the_campaign_finds_a_planted_fault(world: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the clearing up of killed runs, the next run leaves their hidden folders."""
    bench = bench_of("export", world)
    monkeypatch.setattr(folders, "leftovers", lambda *_, **__: [])
    assert any("leaves [" in wrong for wrong in struck(bench, "export", KILL, 4, 0))
