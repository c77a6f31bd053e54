"""Two processes give the single process's curve, whatever the strategy, and can go on from each other's work."""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from safetensors.torch import load_file

from tests.train.run_support import settings, signalled, write_config
from tests.worlds import ROOT, free_port
from vocabforge.core.config import parse_config
from vocabforge.core.errors import ConfigError
from vocabforge.core.journal import read_jsonl_log
from vocabforge.train.checkpoint import list_checkpoints
from vocabforge.train.config import TrainConfig
from vocabforge.train.loop import train
from vocabforge.train.parallel.deepspeed import deepspeed_config
from vocabforge.train.setup import build_trainer

pytestmark = pytest.mark.long

proof = pytest.mark.proof  # each strategy is launched once here: from the start, or in the middle of a run
SECTIONS: dict[str, dict[str, Any]] = {
    "optim": {"batch_size": 4, "micro_batch_size": 1},
    "heads": {"ranker": {"shortlist": 16}},
    "run": {"device": "cpu", "live": {"prompts": 0}, "trackers": []},
}
OWN_HEAD: dict[str, dict[str, Any]] = {"drafter": {"head": "own"}}


def needs_deepspeed() -> None:
    """DeepSpeed builds a small operation with the C++ compiler at its first start on a CPU."""
    if importlib.util.find_spec("deepspeed") is None:
        pytest.skip("the extra deepspeed is not installed (make test-deepspeed)")
    if shutil.which("c++") is None and shutil.which("g++") is None:
        pytest.skip("no C++ compiler for DeepSpeed's CPU communication")


def recipe(name: str, place: Path) -> Path:
    """An accelerate recipe for two processes on this machine's CPU, with a free port."""
    body = yaml.safe_load((ROOT / "recipes" / "accelerate" / f"{name}.yaml").read_text())
    body |= {"num_processes": 2, "main_process_port": free_port()}
    path = place / f"{name}.accelerate.yaml"
    path.write_text(yaml.safe_dump(body))
    return path


def launch(place: Path, name: str, accelerate: str, config: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "accelerate.commands.launch"]
    command += ["--config_file", str(recipe(accelerate, place))]
    command += ["-m", "vocabforge", "train-drafter", "--config", str(config)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    return subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=400, check=False, env=environment
    )


def curve(folder: Path) -> list[float]:
    return [row["ttt_loss"] for row in read_jsonl_log(folder / "metrics.jsonl") if row["kind"] == "train"]


@pytest.fixture(scope="module")
def alone(place: Path) -> Path:
    """One process, the same batches."""
    body = settings(place, "alone", **SECTIONS, **OWN_HEAD)
    train(build_trainer(parse_config(TrainConfig, body, source="test")))
    return place / "alone"


@pytest.mark.parametrize(
    "accelerate",
    ["cpu_two", pytest.param("fsdp2", marks=proof), "zero2", pytest.param("zero3", marks=proof)],
)
def test_two_processes_give_the_single_process_curve(place: Path, alone: Path, accelerate: str) -> None:
    if accelerate.startswith("zero"):
        needs_deepspeed()
    config = write_config(place, accelerate, **SECTIONS, **OWN_HEAD)
    done = launch(place, accelerate, accelerate, config)
    assert done.returncode == 0, done.stderr[-4000:]
    assert curve(place / accelerate) == pytest.approx(curve(alone), rel=1e-5)
    same_ends(place / accelerate, alone)


def same_ends(ours_at: Path, theirs_at: Path) -> None:
    """Two finished runs: weights, optimiser state, held-out figures, artefacts."""
    last = list_checkpoints(ours_at / "checkpoints")[-1]
    single = list_checkpoints(theirs_at / "checkpoints")[-1]
    for file in ("weights.safetensors", "optimizer.safetensors"):
        ours, theirs = load_file(last / file), load_file(single / file)
        assert ours.keys() == theirs.keys()
        for name, value in ours.items():
            torch.testing.assert_close(value, theirs[name], rtol=1e-3, atol=2e-5, msg=name)
    heldout = [
        [row for row in read_jsonl_log(folder / "metrics.jsonl") if row["kind"] == "heldout"][-1]
        for folder in (ours_at, theirs_at)
    ]
    assert heldout[0]["rows"] == heldout[1]["rows"]
    assert heldout[0]["loss"] == pytest.approx(heldout[1]["loss"], rel=1e-4)
    assert (ours_at / "drafter" / "manifest.json").is_file()
    assert (ours_at / "heads" / "ranker" / "manifest.json").is_file()


@pytest.mark.parametrize(
    "accelerate",
    [pytest.param("cpu_two", marks=proof), "fsdp2", "zero2"],
)
def test_a_run_goes_on_under_another_number_of_processes(place: Path, alone: Path, accelerate: str) -> None:
    """Six steps alone, the rest by two: the curve is that of one run, and the change is reported."""
    if accelerate.startswith("zero"):
        needs_deepspeed()
    name = f"moved-{accelerate}"
    body = settings(place, name, **SECTIONS, **OWN_HEAD)
    run = build_trainer(parse_config(TrainConfig, body, source="test"))
    with pytest.raises(KeyboardInterrupt), signalled(5):
        train(run)
    done = launch(place, name, accelerate, write_config(place, name, **SECTIONS, **OWN_HEAD))
    if accelerate.startswith("zero"):
        assert done.returncode != 0
        assert "cannot be resumed under DeepSpeed" in " ".join(done.stderr.split())
        return
    assert done.returncode == 0, done.stderr[-4000:]
    assert "Resuming at step 6" in done.stderr
    assert "goes on as 2" in done.stderr
    assert curve(place / name) == pytest.approx(curve(alone), rel=1e-5)
    same_ends(place / name, alone)


def test_one_killed_rank_ends_the_run_and_the_next_goes_on(place: Path) -> None:
    sections = {**SECTIONS, "optim": {**SECTIONS["optim"], "steps": 60}}
    sections["run"] = {**SECTIONS["run"], "checkpoint_every": 3, "eval_every": 1000}
    config = write_config(place, "killed-rank", **sections)
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", "2"]
    command += [
        "--master_port",
        str(free_port()),
        "-m",
        "vocabforge",
        "train-drafter",
        "--config",
        str(config),
    ]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    folder = place / "killed-rank"
    with subprocess.Popen(
        command, cwd=ROOT, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, env=environment
    ) as child:
        deadline = time.monotonic() + 180
        while not list_checkpoints(folder / "checkpoints") and time.monotonic() < deadline:
            time.sleep(0.02)
            assert child.poll() is None
        victim = subprocess.run(
            ["pgrep", "-P", str(child.pid)], capture_output=True, text=True, check=True
        ).stdout.split()[-1]
        os.kill(int(victim), signal.SIGKILL)
        child.wait(timeout=120)
    assert child.returncode != 0
    assert not (folder / "drafter").exists()
    before = list_checkpoints(folder / "checkpoints")
    assert before, "a checkpoint survives"
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=400, check=False, env=environment
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert "Resuming at step" in done.stderr
    assert len(curve(folder)) == 60


def test_a_deepspeed_file_that_contradicts_the_recipe_is_refused(
    place: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    config = parse_config(TrainConfig, settings(place, "ds", **SECTIONS), source="test")
    found = deepspeed_config(config, 2)
    assert found["train_micro_batch_size_per_gpu"] == 1
    assert found["gradient_accumulation_steps"] == 2
    assert found["gradient_clipping"] == config.optim.clip
    for body, word in (
        ('{"zero_optimization": {"stage": 2}, "gradient_clipping": 9.0}', "gradient_clipping 9.0"),
        ('{"zero_optimization": {"stage": 0}}', "stage 0"),
        ('{"zero_optimization": {"stage": 2}, "fp16": {"enabled": true}}', "fp16"),
        ('{"zero_optimization": {"stage": 2}, "optimizer": {"type": "Adam"}}', "optimizer"),
        ('{"zero_optimization": {"stage": 2}, "train_batch_size": 64}', "train_batch_size 64"),
    ):
        file = tmp_path / "ds.json"
        file.write_text(body)
        monkeypatch.setenv("ACCELERATE_DEEPSPEED_CONFIG_FILE", str(file))
        with pytest.raises(ConfigError, match="does not go with") as error:
            deepspeed_config(config, 2)
        assert word in str(error.value)
        assert str(file) in str(error.value)


@pytest.mark.parametrize("name", ["zero2", "zero3"])
def test_the_deepspeed_recipes_are_accepted(place: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv(
        "ACCELERATE_DEEPSPEED_CONFIG_FILE", str(ROOT / "recipes" / "deepspeed" / f"{name}.json")
    )
    config = parse_config(TrainConfig, settings(place, "ds", **SECTIONS), source="test")
    assert deepspeed_config(config, 2)["zero_optimization"]["stage"] == int(name[-1])
