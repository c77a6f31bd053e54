"""Kills, full disks and rival writers around an artefact's final name."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import pytest

from tests.worlds import ROOT
from vocabforge.core import artifact as artifact_module
from vocabforge.core import folders as swap
from vocabforge.core.artifact import check_output, open_artifact, write_artifact
from vocabforge.core.errors import ArtifactError, UsageError, VocabForgeError

HEADER = """
    import os, signal, sys
    from pathlib import Path
    from vocabforge.core import artifact
    from vocabforge.core import folders as swap
    from vocabforge.core.artifact import write_artifact
    path = Path(sys.argv[1])
"""


def killed(code: str, path: Path) -> None:
    """Run a script that kills itself; nothing can be cleaned up in it."""
    script = textwrap.dedent(HEADER) + textwrap.dedent(code)
    done = subprocess.run([sys.executable, "-c", script, str(path)], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == -signal.SIGKILL, done.stderr


def write(path: Path, text: str, *, overwrite: bool = False) -> None:
    with write_artifact(path, "k", {"text": text}, overwrite=overwrite) as folder:
        (folder / "a").write_text(text)


def names(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.iterdir())


KILL_IN_BODY = """
    with write_artifact(path, "k", {}, overwrite=True) as folder:
        (folder / "half").write_text("half")
        os.kill(os.getpid(), signal.SIGKILL)
"""
KILL_BEFORE_MANIFEST = """
    artifact.atomic_write_json = lambda *a: os.kill(os.getpid(), signal.SIGKILL)
    with write_artifact(path, "k", {}, overwrite=True) as folder:
        (folder / "whole").write_text("whole")
"""
KILL_BETWEEN_RENAMES = """
    real, count = os.rename, []
    def rename(a, b):
        if count:
            os.kill(os.getpid(), signal.SIGKILL)
        count.append(1)
        real(a, b)
    swap.os.rename = rename
    with write_artifact(path, "k", {"text": "new"}, overwrite=True) as folder:
        (folder / "a").write_text("new")
"""
KILL_BEFORE_CLEANING = """
    swap.shutil.rmtree = lambda *a, **k: os.kill(os.getpid(), signal.SIGKILL)
    with write_artifact(path, "k", {"text": "new"}, overwrite=True) as folder:
        (folder / "a").write_text("new")
"""


@pytest.mark.parametrize("code", [KILL_IN_BODY, KILL_BEFORE_MANIFEST], ids=["body", "manifest"])
def test_kill_leaves_nothing_under_the_final_name_and_the_next_writer_clears_up(tmp_path, code: str) -> None:
    path = tmp_path / "x"
    killed(code, path)
    assert not path.exists()
    assert len(names(tmp_path)) == 1, "the hidden folder of the killed run"
    with pytest.raises(ArtifactError, match="not a VocabForge artefact"):
        open_artifact(path)
    write(path, "whole")
    assert open_artifact(path).meta["text"] == "whole"
    assert names(tmp_path) == ["x"]


def test_kill_between_the_two_renames_loses_nothing(tmp_path: Path) -> None:
    path = tmp_path / "x"
    write(path, "old")
    killed(KILL_BETWEEN_RENAMES, path)
    assert not path.exists()
    with pytest.raises(ArtifactError, match="killed while replacing") as caught:
        open_artifact(path)
    (aside,) = [p for p in tmp_path.iterdir() if ".old-" in p.name]
    assert str(aside) in str(caught.value), "the error says where the former artefact lies"
    assert open_artifact(aside).meta["text"] == "old"
    with pytest.raises(UsageError, match="exists already"):  # restored, and so in the way again
        check_output(path)
    assert open_artifact(path).meta["text"] == "old"
    assert names(tmp_path) == ["x"]


def test_kill_after_the_renames_leaves_the_new_one(tmp_path: Path) -> None:
    path = tmp_path / "x"
    write(path, "old")
    killed(KILL_BEFORE_CLEANING, path)
    assert open_artifact(path).meta["text"] == "new"
    check_mended = names(tmp_path)
    assert len(check_mended) == 2
    with pytest.raises(UsageError):
        check_output(path)
    assert names(tmp_path) == ["x"]
    assert open_artifact(path).meta["text"] == "new"


@pytest.mark.parametrize("error", [KeyboardInterrupt(), OSError(errno.EIO, "broken disk")])
def test_failing_between_the_renames_puts_the_former_back(tmp_path, monkeypatch, error) -> None:
    path = tmp_path / "x"
    write(path, "old")
    real = os.rename

    def rename(source, destination):
        if ".tmp-" in str(source):
            raise error
        real(source, destination)

    monkeypatch.setattr(swap.os, "rename", rename)
    with pytest.raises((KeyboardInterrupt, VocabForgeError)):
        write(path, "new", overwrite=True)
    assert open_artifact(path).meta["text"] == "old"
    assert names(tmp_path) == ["x"]


def test_siblings_of_living_and_of_unknown_runs_are_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "x"
    parent = os.getppid()
    living = tmp_path / f".x.tmp-{swap._machine()}-{parent}-0"
    elsewhere = tmp_path / f".x.tmp-00000000-{2**22 + 1}-0"
    another = tmp_path / f".xy.tmp-{swap._machine()}-{2**22 + 1}-0"
    dead = tmp_path / f".x.tmp-{swap._machine()}-{2**22 + 1}-0"  # beyond the largest process number
    own_number = tmp_path / f".x.tmp-{swap._machine()}-{os.getpid()}-999999"  # an earlier process's
    for folder in (living, elsewhere, another, dead, own_number):
        folder.mkdir()
    write(path, "new")
    assert names(tmp_path) == sorted([living.name, elsewhere.name, another.name, "x"])


def test_without_overwrite_the_first_writer_wins(tmp_path: Path) -> None:
    path = tmp_path / "x"
    with pytest.raises(UsageError, match="exists already"), write_artifact(path, "k", {"text": "slow"}):
        write(path, "quick")
    assert open_artifact(path).meta["text"] == "quick"
    assert names(tmp_path) == ["x"]


def test_without_overwrite_a_rename_onto_a_rivals_folder_is_refused(tmp_path, monkeypatch) -> None:
    """The last moment: the rival comes between the check and the rename."""
    path = tmp_path / "x"
    place = swap.put_in_place

    def late(*args, **options):
        monkeypatch.setattr(artifact_module, "put_in_place", place)
        write(path, "quick")
        place(*args, **options)

    monkeypatch.setattr(artifact_module, "put_in_place", late)
    with pytest.raises(UsageError, match="another run meanwhile"):
        write(path, "slow")
    assert open_artifact(path).meta["text"] == "quick"
    assert names(tmp_path) == ["x"]


def test_a_foreign_folder_that_appears_meanwhile_is_not_replaced(tmp_path: Path) -> None:
    path = tmp_path / "x"

    def work() -> None:
        with write_artifact(path, "k", {}, overwrite=True):
            path.mkdir()
            (path / "thesis.txt").write_text("keep")

    with pytest.raises(UsageError, match="not an artefact"):
        work()
    assert (path / "thesis.txt").read_text() == "keep"


def test_two_overwriting_writers_do_not_corrupt_each_other(tmp_path: Path) -> None:
    path = tmp_path / "x"
    write(path, "start")
    failures: list[BaseException] = []

    def work(name: str) -> None:
        try:
            for turn in range(25):
                write(path, f"{name}{turn}", overwrite=True)
        except BaseException as error:  # noqa: BLE001 (reported by the assertion)
            failures.append(error)

    threads = [threading.Thread(target=work, args=(name,)) for name in "ab"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert open_artifact(path).meta["text"] in {"a24", "b24"}
    assert names(tmp_path) == ["x"]
