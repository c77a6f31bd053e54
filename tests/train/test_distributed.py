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

from tests.processes import command, end, ranks, start
from tests.train.run_support import (
    add_clusters,
    assert_same,
    config,
    curve,
    log_rows,
    make_place,
    signalled,
    state,
    trainer,
    write_config,
)
from tests.worlds import ROOT, free_port
from vocabforge.core.errors import ConfigError
from vocabforge.train.checkpoint import list_checkpoints
from vocabforge.train.loop import train
from vocabforge.train.parallel.deepspeed import deepspeed_config

pytestmark = pytest.mark.long

proof = pytest.mark.proof  # each strategy is launched once here: from the start, or in the middle of a run
SECTIONS: dict[str, dict[str, Any]] = {
    "optim": {"batch_size": 4, "micro_batch_size": 1},
    "run": {"device": "cpu", "live": {"prompts": 0}, "trackers": []},
}
HEADS: dict[str, Any] = {
    "ranker": {"shortlist": 16},
    "small_ranker": {"rank": 3, "shortlist": 12},
    "low_rank": {"rank": 5},
}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A target, texts and clusters."""
    place = make_place(tmp_path_factory.mktemp("place"))
    add_clusters(place)
    return place


def sections(place: Path) -> dict[str, dict[str, Any]]:
    """An own head and every draft head."""
    router = {"clusters": str(place / "clusters"), "top_n": 3, "detach": False}
    return {**SECTIONS, "drafter": {"head": "own"}, "heads": {**HEADS, "router": router}}


def needs_deepspeed() -> None:
    """DeepSpeed builds a small operation with the C++ compiler at its first start on a CPU."""
    if importlib.util.find_spec("deepspeed") is None:
        pytest.skip("the extra deepspeed is not installed (make test-deepspeed)")
    if shutil.which("c++") is None and shutil.which("g++") is None:
        pytest.skip("no C++ compiler for DeepSpeed's CPU communication")


def recipe(name: str, place: Path) -> Path:
    """An accelerate recipe for two processes on this machine's CPU, with a free port."""
    file = "zero2" if name == "zero1" else name
    body = yaml.safe_load((ROOT / "recipes" / "accelerate" / f"{file}.yaml").read_text())
    body |= {"num_processes": 2, "main_process_port": free_port()}
    if name == "zero1":  # not shipped: stage 2 holds less
        (place / "zero1.json").write_text('{"zero_optimization": {"stage": 1}}')
        body["deepspeed_config"]["deepspeed_config_file"] = str(place / "zero1.json")
    path = place / f"{name}.accelerate.yaml"
    path.write_text(yaml.safe_dump(body))
    return path


def launch(place: Path, accelerate: str, *words: str) -> subprocess.CompletedProcess[str]:
    """``accelerate launch`` of a command."""
    command = [sys.executable, "-m", "accelerate.commands.launch"]
    command += ["--config_file", str(recipe(accelerate, place)), "-m", "vocabforge", *words]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    return subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=400, check=False, env=environment
    )


def fork(place: Path, accelerate: str, *words: str) -> subprocess.CompletedProcess[str]:
    """The processes of :func:`launch` in accelerate's own environment, without its start and torch's."""
    said, given = Path(words[-1]).with_suffix(".said"), launched(accelerate, place)
    codes = end([start(command, *words, said=said, **{**given, **rank}) for rank in ranks()])
    return subprocess.CompletedProcess(words, max(map(abs, codes)), "", said.read_text("utf-8"))


def launched(accelerate: str, place: Path) -> dict[str, str]:
    """Accelerate's variables for a recipe; none for ``torchrun``."""
    from accelerate.commands.launch import _validate_launch_command, launch_command_parser
    from accelerate.utils.launch import prepare_deepspeed_cmd_env, prepare_multi_gpu_env

    if accelerate == "torchrun":
        return {}
    words = ["--config_file", str(recipe(accelerate, place)), "-m", "vocabforge"]
    arguments, defaults, _ = _validate_launch_command(launch_command_parser().parse_args(words))
    if not accelerate.startswith("zero"):
        return prepare_multi_gpu_env(arguments)
    arguments.deepspeed_fields_from_accelerate_config = ",".join(defaults.deepspeed_config)
    return prepare_deepspeed_cmd_env(arguments)[1]


def train_two(place: Path, accelerate: str, name: str, started: Any = fork, **asked: Any) -> str:
    """Train a drafter in two processes; what they printed."""
    done = started(place, accelerate, "train-drafter", "--config", str(write_config(place, name, **asked)))
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stderr


@pytest.fixture(scope="module")
def alone(place: Path) -> Path:
    """One process, the same batches."""
    train(trainer(place, "alone", **sections(place)))
    return place / "alone"


@pytest.mark.parametrize(
    "accelerate", ["cpu_two", pytest.param("fsdp2", marks=proof), "zero2", pytest.param("zero3", marks=proof)]
)
def test_two_processes_give_the_single_process_curve(place: Path, alone: Path, accelerate: str) -> None:
    if accelerate.startswith("zero"):
        needs_deepspeed()
    train_two(place, accelerate, accelerate, launch, **sections(place))
    assert curve(place / accelerate) == pytest.approx(curve(alone), rel=1e-5)
    same_ends(place / accelerate, alone, 2e-5 if accelerate.startswith("zero") else 1e-5)
    if accelerate == "cpu_two":
        train_two(place, "torchrun", "torchrun", **sections(place))
        assert curve(place / "torchrun") == curve(place / accelerate)
        assert_same(state(place / "torchrun"), state(place / accelerate))


# Which blocks a row trains does not depend on its process. Muon iterates in bf16: a last bit of a gradient becomes a
# thousandth of a step.
DSPARK = {"kind": "dspark", "num_layers": 2, "block_size": 3, "markov_rank": 4, "head": "own"}
OTHER_RUNS: dict[str, dict[str, Any]] = {
    "dspark": {**SECTIONS, "drafter": DSPARK, "ttt": {"anchors": 6, "loss": {"ce": 0.1, "tv": 1.8}}},
    "muon": {**SECTIONS, "drafter": {"head": "own"}, "optim": {**SECTIONS["optim"], "name": "muon"}},
}


@pytest.mark.parametrize(
    ("run", "accelerate"),
    [
        ("dspark", "cpu_two"),
        pytest.param("dspark", "fsdp2", marks=proof),
        pytest.param("muon", "cpu_two", marks=proof),
        ("muon", "fsdp2"),
    ],
)
def test_other_drafters_and_optimisers_of_two_processes(place: Path, run: str, accelerate: str) -> None:
    single, several = place / f"{run}-alone", place / f"{run}-{accelerate}"
    if not single.exists():
        train(trainer(place, single.name, **OTHER_RUNS[run]))
    train_two(place, accelerate, several.name, **OTHER_RUNS[run])
    assert curve(several) == pytest.approx(curve(single), rel=5e-4 if run == "muon" else 1e-5)
    if run == "muon":
        assert state(several).keys() == state(single).keys() >= {"drafter.fc.weight/momentum_buffer"}
    else:
        same_weights(several, single)


def head_losses(folder: Path) -> dict[str, list[float]]:
    steps = curve(folder, "heads")
    return {name: [step[name]["loss"] for step in steps] for name in steps[0]}


def same_ends(ours_at: Path, theirs_at: Path, within: float = 1e-5) -> None:
    """Two finished runs: losses of every draft head, weights, optimiser state, held-out figures, artefacts."""
    ours, theirs = head_losses(ours_at), head_losses(theirs_at)
    assert ours.keys() == theirs.keys() == {*HEADS, "router"}
    for name, losses in ours.items():
        assert losses == pytest.approx(theirs[name], rel=1e-5), name
    same_weights(ours_at, theirs_at, within)
    heldout = [log_rows(folder, "heldout")[-1] for folder in (ours_at, theirs_at)]
    assert heldout[0]["rows"] == heldout[1]["rows"]
    assert heldout[0]["loss"] == pytest.approx(heldout[1]["loss"], rel=1e-4)
    for name in ("drafter", "heads/ranker", "heads/small-ranker", "heads/low-rank", "heads/router"):
        assert (ours_at / name / "manifest.json").is_file()


def same_weights(ours_at: Path, theirs_at: Path, within: float = 1e-5) -> None:
    """Weights and optimiser state of the last checkpoints."""
    ours, theirs = state(ours_at), state(theirs_at)
    assert ours.keys() == theirs.keys()
    for name, value in ours.items():
        torch.testing.assert_close(value, theirs[name], rtol=within, atol=within, msg=name)


@pytest.mark.parametrize(
    "accelerate", [pytest.param("cpu_two", marks=proof), "fsdp2", "zero2", pytest.param("zero3", marks=proof)]
)
def test_a_run_goes_on_under_another_number_of_processes(place: Path, alone: Path, accelerate: str) -> None:
    """Six steps alone, the rest by two: the curve is that of one run, and the change is reported."""
    zero = accelerate.startswith("zero")
    if zero:
        needs_deepspeed()
    name = f"moved-{accelerate}"
    with pytest.raises(KeyboardInterrupt), signalled(5):
        train(trainer(place, name, **sections(place)))
    said = train_two(place, accelerate, name, **sections(place))
    assert "Resuming at step 6" in said
    assert "continues as 2" in said
    assert curve(place / name) == pytest.approx(curve(alone), rel=1e-5)
    same_ends(place / name, alone, 2e-5 if zero else 1e-5)


BF16 = {"memory": {"weights": "bf16"}, "run": {**SECTIONS["run"], "mixed_precision": "bf16"}}


@pytest.mark.parametrize(
    ("accelerate", "weights"),
    [
        ("zero2", "fp32"),
        ("zero3", "bf16"),
        *(pytest.param(name, "fp32", marks=proof) for name in ("cpu_two", "fsdp2", "zero1", "zero3")),
        *(pytest.param(name, "bf16", marks=proof) for name in ("cpu_two", "fsdp2", "zero1", "zero2")),
    ],
)
def test_a_run_of_two_processes_goes_on_to_the_same_bits(place: Path, accelerate: str, weights: str) -> None:
    """A run without its last checkpoint goes on from step 8: losses, weights and moments are the same bits."""
    if accelerate.startswith("zero"):
        needs_deepspeed()
    name = f"resumed-{accelerate}-{weights}"
    asked, folder = {**sections(place), **(BF16 if weights == "bf16" else {})}, place / name
    train_two(place, accelerate, name, **asked)
    whole, losses = state(folder), curve(folder)
    shutil.rmtree(folder / "drafter")
    shutil.rmtree(list_checkpoints(folder / "checkpoints")[-1])
    said = train_two(place, accelerate, name, **asked)
    assert "Resuming at step 8" in said
    assert "continues as" not in said
    assert curve(folder) == losses
    assert_same(state(folder), whole)


@proof
def test_one_killed_rank_ends_the_run_and_the_next_goes_on(place: Path) -> None:
    longer = {**SECTIONS, "optim": {**SECTIONS["optim"], "steps": 60}}
    longer["run"] = {**SECTIONS["run"], "checkpoint_every": 3, "eval_every": 1000}
    path = write_config(place, "killed-rank", **longer)
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", "2"]
    command += ["--master_port", str(free_port()), "-m", "vocabforge", "train-drafter", "--config", str(path)]
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


def test_a_deepspeed_file_that_contradicts_the_recipe_is_refused(place, monkeypatch, tmp_path):
    asked = config(place, "ds", **SECTIONS)
    found = deepspeed_config(asked, 2)
    assert found["train_micro_batch_size_per_gpu"] == 1
    assert found["gradient_accumulation_steps"] == 2
    assert found["gradient_clipping"] == asked.optim.clip
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
            deepspeed_config(asked, 2)
        assert word in str(error.value)
        assert str(file) in str(error.value)
    for stage in (2, 3):
        file = ROOT / "recipes" / "deepspeed" / f"zero{stage}.json"
        monkeypatch.setenv("ACCELERATE_DEEPSPEED_CONFIG_FILE", str(file))
        assert deepspeed_config(asked, 2)["zero_optimization"]["stage"] == stage
