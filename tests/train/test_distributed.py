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
from unittest import mock

import pytest
import torch
import yaml
from safetensors.torch import load_file

from tests.processes import command, end, ranks, start
from tests.train.run_support import add_clusters, make_place, settings, signalled, write_config
from tests.worlds import ROOT, free_port
from vocabforge.core.config import parse_config
from vocabforge.core.errors import ConfigError
from vocabforge.core.files import read_json
from vocabforge.core.journal import read_jsonl_log
from vocabforge.train.checkpoint import list_checkpoints
from vocabforge.train.config import TrainConfig
from vocabforge.train.heads.router_config import RouterTrainConfig
from vocabforge.train.heads.router_setup import build_router_trainer
from vocabforge.train.loop import train
from vocabforge.train.parallel.deepspeed import deepspeed_config
from vocabforge.train.setup import build_trainer

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
    body = yaml.safe_load((ROOT / "recipes" / "accelerate" / f"{name}.yaml").read_text())
    body |= {"num_processes": 2, "main_process_port": free_port()}
    path = place / f"{name}.accelerate.yaml"
    path.write_text(yaml.safe_dump(body))
    return path


def launch(
    place: Path, accelerate: str, config: Path, trained: str = "train-drafter"
) -> subprocess.CompletedProcess[str]:
    """``accelerate launch``."""
    command = [sys.executable, "-m", "accelerate.commands.launch"]
    command += ["--config_file", str(recipe(accelerate, place))]
    command += ["-m", "vocabforge", trained, "--config", str(config)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    return subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=400, check=False, env=environment
    )


def fork(
    place: Path, accelerate: str, config: Path, trained: str = "train-drafter"
) -> subprocess.CompletedProcess[str]:
    """The processes of :func:`launch` in accelerate's own environment, without its start and torch's."""
    from accelerate.commands.launch import _validate_launch_command, launch_command_parser
    from accelerate.utils.launch import prepare_multi_gpu_env

    words = ["--config_file", str(recipe(accelerate, place)), "-m", "vocabforge"]
    arguments, _, _ = _validate_launch_command(launch_command_parser().parse_args(words))
    given, said = prepare_multi_gpu_env(arguments), config.with_suffix(".said")
    run = (trained, "--config", str(config))
    codes = end([start(command, *run, said=said, **{**given, **rank}) for rank in ranks()])
    return subprocess.CompletedProcess(words, max(map(abs, codes)), "", said.read_text("utf-8"))


def curve(folder: Path, key: str = "ttt_loss") -> list[float]:
    return [row[key] for row in read_jsonl_log(folder / "metrics.jsonl") if row["kind"] == "train"]


def head_losses(folder: Path) -> dict[str, list[float]]:
    steps = curve(folder, "heads")
    return {name: [step[name]["loss"] for step in steps] for name in steps[0]}


@pytest.fixture(scope="module")
def alone(place: Path) -> Path:
    """One process, the same batches."""
    body = settings(place, "alone", **sections(place))
    train(build_trainer(parse_config(TrainConfig, body, source="test")))
    return place / "alone"


@pytest.mark.parametrize(
    "accelerate",
    ["cpu_two", pytest.param("fsdp2", marks=proof), "zero2", pytest.param("zero3", marks=proof)],
)
def test_two_processes_give_the_single_process_curve(place: Path, alone: Path, accelerate: str) -> None:
    if accelerate.startswith("zero"):
        needs_deepspeed()
    config = write_config(place, accelerate, **sections(place))
    done = launch(place, accelerate, config)
    assert done.returncode == 0, done.stderr[-4000:]
    assert curve(place / accelerate) == pytest.approx(curve(alone), rel=1e-5)
    same_ends(place / accelerate, alone, 2e-5 if accelerate.startswith("zero") else 1e-5)


@pytest.mark.parametrize("accelerate", [pytest.param("cpu_two", marks=proof), "fsdp2"])
def test_muon_in_two_processes_gives_the_single_process_curve(place: Path, accelerate: str) -> None:
    """It iterates in bf16, so a last bit of a gradient becomes a thousandth of a step."""
    asked = {**SECTIONS, "drafter": {"head": "own"}, "optim": {**SECTIONS["optim"], "name": "muon"}}
    single, several = (place / f"muon-{name}" for name in ("alone", accelerate))
    if not single.exists():
        train(build_trainer(parse_config(TrainConfig, settings(place, single.name, **asked), source="test")))
    done = fork(place, accelerate, write_config(place, several.name, **asked))
    assert done.returncode == 0, done.stderr[-4000:]
    assert curve(several) == pytest.approx(curve(single), rel=5e-4)
    states = [
        load_file(list_checkpoints(f / "checkpoints")[-1] / "optimizer.safetensors")
        for f in (several, single)
    ]
    assert states[0].keys() == states[1].keys()
    assert "drafter.fc.weight/momentum_buffer" in states[0]


@pytest.mark.parametrize("accelerate", ["cpu_two", pytest.param("fsdp2", marks=proof)])
def test_a_block_drafter_of_two_processes_is_that_of_one(place: Path, accelerate: str) -> None:
    """What blocks are drawn of a row does not depend on the process that has it."""
    drafter = {"kind": "dspark", "num_layers": 2, "block_size": 3, "markov_rank": 4, "head": "own"}
    asked = {**SECTIONS, "drafter": drafter, "ttt": {"anchors": 6, "loss": {"ce": 0.1, "tv": 1.8}}}
    single, several = (place / f"dspark-{name}" for name in ("alone", accelerate))
    if not single.exists():
        train(build_trainer(parse_config(TrainConfig, settings(place, single.name, **asked), source="test")))
    done = fork(place, accelerate, write_config(place, several.name, **asked))
    assert done.returncode == 0, done.stderr[-4000:]
    assert curve(several) == pytest.approx(curve(single), rel=1e-5)
    same_weights(several, single)


def same_ends(ours_at: Path, theirs_at: Path, within: float = 1e-5) -> None:
    """Two finished runs: losses of every draft head, weights, optimiser state, held-out figures, artefacts."""
    ours, theirs = head_losses(ours_at), head_losses(theirs_at)
    assert ours.keys() == theirs.keys() == {*HEADS, "router"}
    for name, losses in ours.items():
        assert losses == pytest.approx(theirs[name], rel=1e-5), name
    same_weights(ours_at, theirs_at, within)
    heldout = [
        [row for row in read_jsonl_log(folder / "metrics.jsonl") if row["kind"] == "heldout"][-1]
        for folder in (ours_at, theirs_at)
    ]
    assert heldout[0]["rows"] == heldout[1]["rows"]
    assert heldout[0]["loss"] == pytest.approx(heldout[1]["loss"], rel=1e-4)
    assert (ours_at / "drafter" / "manifest.json").is_file()
    for name in ("ranker", "small-ranker", "low-rank", "router"):
        assert (ours_at / "heads" / name / "manifest.json").is_file()


def same_weights(ours_at: Path, theirs_at: Path, within: float = 1e-5) -> None:
    """Weights and optimiser state of the last checkpoints."""
    last = list_checkpoints(ours_at / "checkpoints")[-1]
    single = list_checkpoints(theirs_at / "checkpoints")[-1]
    for file in ("weights.safetensors", "optimizer.safetensors"):
        ours, theirs = load_file(last / file), load_file(single / file)
        assert ours.keys() == theirs.keys()
        for name, value in ours.items():
            torch.testing.assert_close(value, theirs[name], rtol=within, atol=within, msg=name)


@pytest.mark.parametrize(
    "accelerate",
    [pytest.param("cpu_two", marks=proof), "fsdp2", "zero2"],
)
def test_a_run_goes_on_under_another_number_of_processes(place: Path, alone: Path, accelerate: str) -> None:
    """Six steps alone, the rest by two: the curve is that of one run, and the change is reported."""
    if accelerate.startswith("zero"):
        needs_deepspeed()
    name = f"moved-{accelerate}"
    body = settings(place, name, **sections(place))
    run = build_trainer(parse_config(TrainConfig, body, source="test"))
    with pytest.raises(KeyboardInterrupt), signalled(5):
        train(run)
    start_two = launch if accelerate.startswith("zero") else fork
    done = start_two(place, accelerate, write_config(place, name, **sections(place)))
    if accelerate.startswith("zero"):
        assert done.returncode != 0
        assert "cannot be resumed under DeepSpeed" in " ".join(done.stderr.split())
        return
    assert done.returncode == 0, done.stderr[-4000:]
    assert "Resuming at step 6" in done.stderr
    assert "continues as 2" in done.stderr
    assert curve(place / name) == pytest.approx(curve(alone), rel=1e-5)
    same_ends(place / name, alone)


@pytest.fixture(scope="module")
def routed(place: Path, alone: Path) -> Path:
    """A router that one process trains on the drafter of ``alone``, in the same batches."""
    build_router_trainer(parse_config(RouterTrainConfig, routing(place, "routed"), source="test")).run()
    return place / "routed"


def routing(place: Path, output: str) -> dict[str, Any]:
    body = settings(place, output)
    return {
        **{name: str(place / name) for name in ("target", "clusters")},
        "drafter": str(place / "alone" / "drafter"),
        "output": body["output"],
        "data": body["data"],
        "router": {"top_n": 3, "steps": 3},
        "optim": {"steps": 12, "batch_size": 4, "micro_batch_size": 1, "lr": 1e-2},
        "run": {"device": "cpu", "log_every": 1, "eval_every": 6, "checkpoint_every": 4},
    }


def same_routers(ours_at: Path, theirs_at: Path) -> None:
    assert curve(ours_at, "rows") == curve(theirs_at, "rows")
    for key in ("loss", "grad_norm", "average_precision"):
        assert curve(ours_at, key) == pytest.approx(curve(theirs_at, key), rel=1e-5), key
    same_weights(ours_at, theirs_at)
    ours, theirs = (read_json(folder / "report.json", "report") for folder in (ours_at, theirs_at))
    assert ours["heads"]["router"]["overall"] == pytest.approx(theirs["heads"]["router"]["overall"], rel=1e-4)
    assert (ours_at / "router" / "manifest.json").is_file()


@pytest.mark.parametrize("accelerate", [pytest.param("cpu_two", marks=proof), "fsdp2"])
def test_a_router_of_two_processes_is_that_of_one(place: Path, routed: Path, accelerate: str) -> None:
    config = place / f"router-{accelerate}.yaml"
    config.write_text(yaml.safe_dump(routing(place, f"router-{accelerate}")))
    done = fork(place, accelerate, config, "train-router")
    assert done.returncode == 0, done.stderr[-4000:]
    same_routers(place / f"router-{accelerate}", routed)


@proof
@pytest.mark.parametrize("accelerate", ["cpu_two", "fsdp2"])
def test_a_router_goes_on_under_another_number_of_processes(
    place: Path, routed: Path, accelerate: str
) -> None:
    name = f"router-moved-{accelerate}"
    run = build_router_trainer(parse_config(RouterTrainConfig, routing(place, name), source="test"))
    step = run.take_step

    def signalled(number: int) -> int:
        if number == 5:
            os.kill(os.getpid(), signal.SIGTERM)
        return step(number)

    with pytest.raises(KeyboardInterrupt), mock.patch.object(run, "take_step", signalled):
        run.run()
    config = place / f"{name}.yaml"
    config.write_text(yaml.safe_dump(routing(place, name)))
    done = fork(place, accelerate, config, "train-router")
    assert done.returncode == 0, done.stderr[-4000:]
    assert "Resuming at step 6" in done.stderr
    assert "continues as 2" in done.stderr
    same_routers(place / name, routed)


def shared(place: Path) -> dict[str, dict[str, Any]]:
    body = sections(place)
    return {**body, "run": {**body["run"], "sequence_parallel": 2}}


@pytest.mark.parametrize("accelerate", ["cpu_two", pytest.param("fsdp2", marks=proof)])
def test_two_processes_share_the_tokens_of_each_row(place: Path, alone: Path, accelerate: str) -> None:
    name = f"shared-{accelerate}"
    done = fork(place, accelerate, write_config(place, name, **shared(place)))
    assert done.returncode == 0, done.stderr[-4000:]
    assert curve(place / name) == pytest.approx(curve(alone), rel=1e-5)
    same_ends(place / name, alone)


@proof
def test_a_shared_run_goes_on_as_it_was_and_alone(place: Path, alone: Path) -> None:
    """From the checkpoint of step 8: two processes give the same bits, one gives the same curve."""
    name = "shared-resumed"
    folder, kept = place / name, place / f"{name}-kept"
    config = write_config(place, name, **shared(place))
    done = fork(place, "cpu_two", config)
    assert done.returncode == 0, done.stderr[-4000:]
    last = list_checkpoints(folder / "checkpoints")[-1]
    weights = load_file(last / "weights.safetensors")
    shutil.rmtree(folder / "drafter")
    shutil.rmtree(last)
    shutil.copytree(folder, kept)
    done = fork(place, "cpu_two", config)
    assert done.returncode == 0, done.stderr[-4000:]
    assert "Resuming at step 8" in done.stderr
    assert "continues as" not in done.stderr
    again = load_file(last / "weights.safetensors")
    assert all(torch.equal(again[key], value) for key, value in weights.items())

    shutil.rmtree(folder)
    kept.rename(folder)
    train(build_trainer(parse_config(TrainConfig, settings(place, name, **sections(place)), source="test")))
    assert curve(folder) == pytest.approx(curve(alone), rel=1e-5)
    same_ends(folder, alone)


@proof  # make test-faults strikes ranks, too
def test_one_killed_rank_ends_the_run_and_the_next_goes_on(place: Path) -> None:
    longer = {**SECTIONS, "optim": {**SECTIONS["optim"], "steps": 60}}
    longer["run"] = {**SECTIONS["run"], "checkpoint_every": 3, "eval_every": 1000}
    config = write_config(place, "killed-rank", **longer)
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
