"""``kernels/gpu_runs.py``: training figures and a study in pieces, both interrupted once and resumed, at tiny sizes."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner

from vocabforge.bench.training import SHAPES, TrainingShape
from vocabforge.cli.app import build_app
from vocabforge.cli.bench import bench
from vocabforge.cli.study import study
from vocabforge.core.artifact import open_artifact
from vocabforge.study.stages import target as stage_target

ROOT = Path(__file__).resolve().parents[2]
APP = build_app({"bench": bench, "study": study}, ["bench", "study"])


@pytest.fixture(scope="module")
def runs() -> Iterator[Any]:
    path = list(sys.path)
    spec = importlib.util.spec_from_file_location("gpu_runs", ROOT / "kernels" / "gpu_runs.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["gpu_runs"] = module  # dataclasses look themselves up
    spec.loader.exec_module(module)
    yield module
    sys.path[:] = path


class Commands:
    """Commands of ``vocabforge`` in this process, which starts at once; ``stop`` makes one of them end early."""

    def __init__(self, stop: Callable[[Sequence[str]], bool] = lambda arguments: False) -> None:
        self.made: list[list[str]] = []
        self.said: list[str] = []
        self._stop = stop

    def __call__(self, arguments: Sequence[str], seconds: float) -> int:
        assert seconds > 0
        self.made.append(list(arguments))
        if self._stop(arguments):
            return 130
        done = CliRunner().invoke(APP, list(arguments))
        self.said.append(done.output)
        assert done.exit_code in (0, 130), (done.output, done.exception)
        return done.exit_code


class TestTraining:
    SETTINGS = ("batch=1", "length=16", "steps=1", "loss_rows=64")

    @pytest.fixture(autouse=True)
    def least(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Of a few neurons."""
        for name in ("tiny", "tiny-long"):
            few = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 4}
            shape = TrainingShape("llama", {**SHAPES[name].sizes, **few}, batch=1, length=16)
            monkeypatch.setitem(SHAPES, name, shape)

    def call(self, runs: Any, folder: Path, commands: Commands, *settings: str) -> dict[str, Any]:
        shapes = ["--shapes", "tiny", "tiny-long", "--repeats", "1", "--device", "cpu"]
        code = runs.main(["training", *self.SETTINGS, *settings, *shapes, "--output", str(folder)], commands)
        assert code == 0
        return dict(json.loads((folder / "training.json").read_text()))

    def test_what_was_measured_is_not_again(self, runs: Any, tmp_path: Path) -> None:
        stopped = Commands(lambda arguments: "shapes=[tiny-long]" in arguments)
        assert set(self.call(runs, tmp_path, stopped)) == {"tiny"}
        assert len(stopped.made) == 2
        resumed = Commands()
        found = self.call(runs, tmp_path, resumed)
        assert [one[2] for one in resumed.made] == ["shapes=[tiny-long]"]
        assert set(found) == {"tiny", "tiny-long"}
        (shape,) = found["tiny"]["result"]["shapes"]
        assert all(row["tokens_per_s"] > 0 for row in shape["step"])
        assert {row["impl"] for row in shape["loss"]} == {"fused", "naive"}
        assert found["tiny"]["machine"]["device"] == "cpu"
        text = (tmp_path / "training.md").read_text()
        assert "## tiny: 1 rows of 16 tokens, K = 1" in text
        assert "tiny-long: vocabulary loss alone" in text

    def test_what_other_sources_gave_is_measured_again(self, runs: Any, tmp_path: Path) -> None:
        key = {"sources": "others", "settings": [*self.SETTINGS], "repeats": 1, "device": "cpu"}
        (tmp_path / "training.json").write_text(json.dumps({"tiny": {"key": key}}))
        stopped = Commands(lambda arguments: True)
        assert self.call(runs, tmp_path, stopped) == {"tiny": {"key": key}}
        assert [one[2] for one in stopped.made] == ["shapes=[tiny]"]


TINY = (
    "target.optim.steps=6", "target.checkpoint_every=2", "target.weights=bf16", "answers.train_prompts=4",
    "answers.train_tokens=8", "answers.tokens=6", "data.benchmarks={sample: 2}", "data.rare_questions=1",
    "drafters.full={steps: 2, batch_size: 2}", "drafters.reduced={steps: 2, batch_size: 2}",
    "drafters.alone={steps: 2, batch_size: 2}", "drafters.router={steps: 2, batch_size: 2}",
    "methods.static=[300]", "methods.position=['decay:300:200']", "methods.shortlists=[16]",
    "methods.clusters=[8]", "methods.budgets=[0.5]", "check={questions: 1, tokens: 5, tree_topk: 3, tree_depth: 1, "
    "tree_nodes: 6}",
)  # fmt: skip


@pytest.mark.long
@pytest.mark.proof
def test_a_study_in_pieces(runs: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stopped within the target's training; then every command on a machine that has nothing but the pieces."""
    sent = tmp_path / "sent"
    monkeypatch.setattr(runs, "_GRACE", 0.0)

    def command(place: str, commands: Commands, *more: str) -> Path:
        """On a fresh machine; what comes back replaces what was sent."""
        folder = tmp_path / place
        options = [
            "--size",
            "ci",
            "--pieces",
            str(sent),
            "--out",
            str(folder / "out"),
            "--output",
            str(folder),
        ]
        assert runs.main(["study", *TINY, *options, *more, "--piece-mb", "0.05"], commands) == 0
        if commands.made:
            shutil.rmtree(sent, ignore_errors=True)
            shutil.copytree(folder / "out", sent)
        return folder / "study"

    real = stage_target.make_target_step

    def stopping(*arguments: Any) -> Any:
        step = real(*arguments)

        def once(number: int, batch: Any) -> Any:
            if number == 3:
                os.kill(os.getpid(), signal.SIGINT)
            return step(number, batch)

        return once

    with monkeypatch.context() as patched:
        patched.setattr(stage_target, "make_target_step", stopping)
        first = command("first", Commands())
    whole = first / "target.checkpoints" / "steps" / "step-00000004"
    assert load_file(whole / "optimizer.safetensors")
    assert not (first / "target").exists()
    assert len(list(sent.glob("*.piece"))) > 2

    resumed = Commands()
    second = command("second", resumed, "--only", "target", "answers", "vocab")
    assert [one[1] for one in resumed.made] == ["target", "answers", "vocab"]
    assert "Resuming at step 4 of 6" in resumed.said[0]
    metrics = [json.loads(line) for line in (second / "target" / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in metrics if row["kind"] == "train"][-1] == 6
    assert not (second / "target.checkpoints" / "steps").exists()
    weights = load_file(second / "target" / "model.safetensors")
    assert {one.dtype for one in weights.values()} == {torch.bfloat16}

    third = command("third", Commands(), "--only", "seed-1")
    assert (third / "seed-1" / "full").is_dir()
    last = Commands()
    fourth = command("fourth", last)
    assert [one[1] for one in last.made] == ["drafters", "report"]  # seed 0 with its check
    assert not (fourth / "seed-1").exists()  # replayed elsewhere, and its weights have not travelled
    assert json.loads((fourth / "report" / "results.json").read_text())["seeds"] == [0, 1]
    nothing = Commands()
    command("fifth", nothing)
    assert nothing.made == []
    assert open_artifact(tmp_path / "fifth" / "study" / "report").kind == "study-report"


class TestPieces:
    def made(self, folder: Path) -> list[Path]:
        torch.manual_seed(0)
        (folder / "a").mkdir(parents=True)
        save_file({"w": torch.randn(64, 1000).bfloat16()}, folder / "a" / "weights.safetensors")
        (folder / "a" / "text.json").write_text("[1, 2, 3] " * 5000)
        (folder / "same.json").write_text("[1, 2, 3] " * 5000)
        (folder / "empty").write_bytes(b"")
        (folder / "odd").write_bytes(bytes(range(255)) * 3)
        return sorted(path for path in folder.rglob("*") if path.is_file())

    def test_files_come_back_and_equal_ones_are_stored_once(self, runs: Any, tmp_path: Path) -> None:
        files = self.made(tmp_path / "in")
        index = runs.pieces.write_pieces(tmp_path / "in", files, tmp_path / "p", piece=20_000, limit=10**9)
        sizes = [path.stat().st_size for path in sorted((tmp_path / "p").glob("*.piece"))]
        assert max(sizes) <= 20_000
        assert sum(sizes) == index["bytes"] < 0.8 * 128_000  # the exponents of normal numbers are few
        assert index["files"]["same.json"] == index["files"]["a/text.json"]
        assert runs.pieces.read_pieces(tmp_path / "p", tmp_path / "out")
        for path in files:
            assert (tmp_path / "out" / path.relative_to(tmp_path / "in")).read_bytes() == path.read_bytes()

    def test_what_does_not_fit_is_named(self, runs: Any, tmp_path: Path) -> None:
        files = self.made(tmp_path / "in")
        index = runs.pieces.write_pieces(tmp_path / "in", files, tmp_path / "p", piece=9_000, limit=5_000)
        assert index["left"] == ["a/weights.safetensors"]
        runs.pieces.read_pieces(tmp_path / "p", tmp_path / "out")
        assert not (tmp_path / "out" / "a" / "weights.safetensors").exists()

    def test_an_older_writing_does_not_replace_a_newer_one(self, runs: Any, tmp_path: Path) -> None:
        files = self.made(tmp_path / "in")
        write = runs.pieces.write_pieces
        write(tmp_path / "in", files, tmp_path / "old", piece=10**6, limit=10**9)
        files[0].write_text("newer")
        write(tmp_path / "in", files, tmp_path / "new", piece=10**6, limit=10**9)
        assert runs.pieces.read_pieces(tmp_path / "new", tmp_path / "out")
        assert not runs.pieces.read_pieces(tmp_path / "old", tmp_path / "out")
        assert (tmp_path / "out" / files[0].relative_to(tmp_path / "in")).read_text() == "newer"

    def test_damage_is_found_before_anything_is_replaced(self, runs: Any, tmp_path: Path) -> None:
        files = self.made(tmp_path / "in")
        runs.pieces.write_pieces(tmp_path / "in", files, tmp_path / "p", piece=20_000, limit=10**9)
        sorted((tmp_path / "p").glob("*.piece"))[1].unlink()
        (tmp_path / "out").mkdir()
        (tmp_path / "out" / "here").write_text("kept")
        with pytest.raises(runs.pieces.PiecesError, match=r"piece is missing|cannot be read"):
            runs.pieces.read_pieces(tmp_path / "p", tmp_path / "out")
        assert (tmp_path / "out" / "here").read_text() == "kept"
        assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


@pytest.mark.parametrize("stubborn", [False, True])
def test_a_process_is_asked_to_stop_and_then_killed(
    runs: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, stubborn: bool
) -> None:
    package = tmp_path / "vocabforge"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "__main__.py").write_text(
        "import pathlib, signal, sys, time\n"
        "place = pathlib.Path(sys.argv[1])\n"
        "def note(*_):\n"
        f"    place.with_name('asked').touch()\n    {stubborn} or sys.exit(130)\n"
        "signal.signal(signal.SIGINT, note)\nplace.touch()\nwhile True:\n    time.sleep(0.05)\n"
    )

    class Patient(subprocess.Popen[bytes]):
        """Its time is over once it has begun, and its grace once it was asked to stop and has not."""

        def wait(self, timeout: float | None = None) -> int:
            if timeout is None:
                return super().wait()
            marks = [tmp_path / "begun"] if timeout == 1.0 else [tmp_path / "asked"]
            while not all(mark.exists() for mark in marks):
                assert self.poll() is None
                time.sleep(0.01)
            if timeout == 1.0 or stubborn:
                raise subprocess.TimeoutExpired("vocabforge", timeout)
            return super().wait()

    monkeypatch.setattr(subprocess, "Popen", Patient)
    monkeypatch.setattr(runs, "ROOT", tmp_path)
    assert runs.run_child([str(tmp_path / "begun")], 1.0) == runs.STOPPED


def test_a_missing_package_is_named(runs: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(runs, "NEEDED", ("json", "pydantic_of_nobody"))
    with pytest.raises(SystemExit, match="missing: pydantic_of_nobody"):
        runs.install_wheels(tmp_path)


def test_carried_wheels_are_found(runs: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import zipfile

    info = "carried_one-1.dist-info"
    with zipfile.ZipFile(tmp_path / "carried_one-1-py3-none-any.whl", "w") as wheel:
        wheel.writestr("carried_one.py", "ANSWER = 42\n")
        wheel.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: carried-one\nVersion: 1\n")
        wheel.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: t\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        wheel.writestr(f"{info}/RECORD", "")
    monkeypatch.setattr(runs, "NEEDED", ("carried_one",))
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setenv("PYTHONPATH", "")
    runs.install_wheels(tmp_path)
    assert importlib.util.find_spec("carried_one") is not None
    assert "gpu-runs-" in os.environ["PYTHONPATH"]
