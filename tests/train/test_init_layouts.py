"""``drafter.init`` in every layout: training goes on as it does from the native artefact."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from tests.cli.cli_support import invoke, succeeds
from tests.decode.drafting import make_drafter
from tests.train.run_support import write_config
from vocabforge.core.artifact import MANIFEST
from vocabforge.core.journal import read_jsonl_log
from vocabforge.layouts.importing import folder_digest, import_drafter, is_native
from vocabforge.layouts.interface import Export
from vocabforge.layouts.registry import FORMATS, layout_of
from vocabforge.models.drafters.io import native_sizes
from vocabforge.models.target.head import load_target_tensors
from vocabforge.models.target.hf import HFTarget
from vocabforge.models.target.load import read_target_config

# What each layout is written from: kind or form of drafter, and its head. A new layout takes the first line's.
WRITTEN = {
    "sglang-eagle3": ("eagle3 layer norms, normed output", "reduced"),
    "speculators-eagle3": ("eagle3 normed residual, q and k", "reduced"),
    "speculators-block": ("dflash", "reduced"),
    "block": ("dflash", "target"),
    "eagle": ("eagle1", "target"),
    "fr-spec": ("eagle1", "reduced"),
    "medusa": ("medusa", "target"),
}
# vllm is the serving layout with a draft head, gguf needs a tokenizer: tests/export has both. mtp needs a target with a
# module: tests/pipeline has it.
FOREIGN = [name for name in FORMATS if name not in ("native", "vllm", "gguf", "mtp")]
_USUAL = ("sglang-eagle3", "medusa")  # the other layouts are long
TWO_STEPS: dict[str, Any] = {"steps": 2, "batch_size": 2}


@pytest.fixture(autouse=True)
def _no_report(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its plots take longer than the runs."""
    monkeypatch.setattr(
        "vocabforge.train.monitoring.report.write_report", lambda folder: (folder / "report.png", {})
    )


def written(place: Path, folder: Path, name: str) -> Path:
    """A random drafter in a layout, without the manifest: as another tool leaves it."""
    target = place / "target"
    case, head = WRITTEN.get(name, ("eagle3", "target"))
    drafter = make_drafter(case, target, HFTarget.load(target), head)
    if name == "fr-spec":  # holds rows of the target's head only
        drafter.lm_head.weight.data.copy_(drafter.target_head[drafter.target_ids])
    export = Export(
        drafter=drafter,
        target=read_target_config(target),
        shared=load_target_tensors(target),
        target_name=str(target),
        dtype=torch.float32,
    )
    layout_of(name).write(folder, export)
    if name != "native":
        (folder / MANIFEST).unlink()
    return folder


def config_of(place: Path, output: str, init: Path) -> Path:
    kind = WRITTEN.get(init.name, ("eagle3",))[0].split()[0]
    return write_config(
        place,
        output,
        drafter={"init": str(init), "kind": kind},
        optim=TWO_STEPS,
        run={"eval_every": 2, "checkpoint_every": 2, "live": {"prompts": 0}},
    )


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in _USUAL else pytest.mark.long) for name in FOREIGN]
)
def test_two_steps_from_a_layout_equal_two_from_the_native_artefact(name, place, tmp_path):
    folder = written(place, tmp_path / name, name)
    before = folder_digest(folder)
    native = tmp_path / "native" / name
    assert import_drafter(folder, place / "target", native)
    trained = []
    for run, init in ((f"{name}-native", native), (f"{name}-layout", folder)):
        succeeds("train-drafter", "--config", config_of(place, run, init))
        rows = [row for row in read_jsonl_log(place / run / "metrics.jsonl") if "loss" in row]
        trained.append((rows[0]["loss"], load_file(place / run / "drafter" / "drafter.safetensors")))
    assert trained[0][0] == trained[1][0], "the first step's loss"
    assert trained[0][1].keys() == trained[1][1].keys()
    assert all(torch.equal(trained[0][1][key], tensor) for key, tensor in trained[1][1].items())
    assert not (place / f"{name}-native" / "init").exists(), "a native artefact is read where it is"
    assert native_sizes(place / f"{name}-layout" / "drafter") == native_sizes(native)
    assert folder_digest(folder) == before, "what was read is left alone"


def test_it_is_converted_again_only_where_files_or_target_changed(place: Path, tmp_path: Path) -> None:
    folder, native = written(place, tmp_path / "sglang-eagle3", "sglang-eagle3"), tmp_path / "native"
    assert not is_native(folder)
    assert import_drafter(folder, place / "target", native)
    assert is_native(native)
    first = (native / MANIFEST).read_bytes()
    (folder / "README.md").write_text("about it")
    assert not import_drafter(folder, place / "target", native)
    assert (native / MANIFEST).read_bytes() == first
    body = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(body | {"rms_norm_eps": 1e-4}))
    assert import_drafter(folder, place / "target", native)
    assert native_sizes(native).rms_norm_eps == 1e-4
    (native / "drafter.safetensors").write_bytes(b"cut short")
    assert import_drafter(folder, place / "target", native), "a damaged copy is made again"


def test_a_run_goes_on_only_with_the_drafter_that_it_started_from(place: Path, tmp_path: Path) -> None:
    folder = written(place, tmp_path / "sglang-eagle3", "sglang-eagle3")
    config = config_of(place, "resumed", folder)
    assert invoke("train-drafter", "--config", config).exit_code == 0
    made = (place / "resumed" / "init" / MANIFEST).read_bytes()
    succeeds("train-drafter", "--config", config)
    assert (place / "resumed" / "init" / MANIFEST).read_bytes() == made
    body = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(body | {"norm_output": False}))
    changed = invoke("train-drafter", "--config", config)
    assert changed.exit_code != 0
    assert "has other settings or inputs" in " ".join(changed.output.split())
    succeeds("train-drafter", "--config", config, "--fresh")
    assert native_sizes(place / "resumed" / "drafter").norm_output is False


def test_capture_takes_the_layers_of_such_a_drafter(place: Path, tmp_path: Path) -> None:
    folder = written(place, tmp_path / "sglang-eagle3", "sglang-eagle3")
    body = json.loads((folder / "config.json").read_text())
    body["eagle_config"]["eagle_aux_hidden_state_layer_ids"] = [0, 1, 3]
    body["eagle_aux_hidden_state_layer_ids"] = [1, 2, 4]
    (folder / "config.json").write_text(json.dumps(body))
    config = config_of(place, "captured", folder)
    succeeds("capture", "-c", config, "--output", tmp_path / "cache", "--yes")
    assert "[0, 1, 3]" in str(json.loads((tmp_path / "cache" / MANIFEST).read_text())["meta"])
    succeeds("train-drafter", "--config", config, f"capture.cache={tmp_path / 'cache'}")


def test_a_drafter_of_another_kind_is_refused(place: Path, tmp_path: Path) -> None:
    folder = written(place, tmp_path / "sglang-eagle3", "sglang-eagle3")
    done = invoke("train-drafter", "--config", config_of(place, "kind", folder), "drafter.kind=eagle1")
    assert done.exit_code != 0
    assert "drafter.init is of another kind" in " ".join(done.output.split())
