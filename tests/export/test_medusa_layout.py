"""The Medusa layout of vLLM 0.32: written, read strictly, refused where vLLM would compute something else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.worlds import tiny_target
from vocabforge.core.artifact import MANIFEST
from vocabforge.core.errors import ArtifactError, DataError, MismatchError
from vocabforge.export.checked import write_checked
from vocabforge.layouts.eagle1 import Eagle
from vocabforge.layouts.eagle3 import SglangEagle3
from vocabforge.layouts.interface import Export
from vocabforge.layouts.medusa import Medusa
from vocabforge.layouts.registry import load_drafter
from vocabforge.models.drafters.io import TargetTensors
from vocabforge.models.drafters.medusa import MedusaConfig, MedusaDrafter
from vocabforge.models.target.hf import read_target_config


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_target(tmp_path_factory.mktemp("medusa") / "tiny-61")


def export_of(folder: Path, shared: TargetTensors, rows: int | None = None, **forms: Any) -> Export:
    """Three random heads; with ``rows`` an LM head of its own."""
    torch.manual_seed(5)
    config = MedusaConfig(32, 61, rows, 256, 3, **forms)
    ids = None if rows in (None, 61) else torch.arange(rows or 0)
    drafter = MedusaDrafter(config, shared.embedding, shared.head, ids).eval()
    with torch.no_grad():
        for parameter in drafter.parameters():
            parameter.normal_(0.0, 0.3)
    return Export(drafter, read_target_config(folder), shared, str(folder), torch.float32)


def edit(path: Path, change: Any) -> None:
    tensors = load_file(path / "model.safetensors")
    change(tensors)
    save_file(tensors, path / "model.safetensors")


@pytest.mark.parametrize("rows", [None, 61])
def test_written_and_read_again(
    rows: int | None, folder: Path, shared: TargetTensors, tmp_path: Path
) -> None:
    export, path = export_of(folder, shared, rows), tmp_path / "out"
    write_checked(Medusa, path, export, 3)
    tensors = load_file(path / "model.safetensors")
    blocks = {
        f"blocks.{i}.layers.0.{n}": s for i in range(3) for n, s in (("weight", (32, 32)), ("bias", (32,)))
    }
    assert {name: tuple(one.shape) for name, one in tensors.items()} == blocks | {"lm_head.weight": (61, 32)}
    body = json.loads((path / "config.json").read_text("utf-8"))
    wanted = {
        "model_type": "medusa",
        "architectures": ["MedusaModel"],
        "num_heads": 3,
        "num_hidden_layers": 1,
    }
    wanted |= {"vocab_size": 61, "truncated_vocab_size": 61, "hidden_size": 32}
    wanted |= {"medusa_fc_bias": True, "original_lm_head": True}
    assert {key: body[key] for key in wanted} == wanted
    (path / MANIFEST).unlink()
    loaded, _ = load_drafter(path, shared, folder)
    assert loaded.config == export.drafter.config
    for name, parameter in export.drafter.named_parameters():
        assert torch.equal(dict(loaded.named_parameters())[name], parameter), name


def test_what_vllm_does_not_load_is_refused(folder: Path, shared: TargetTensors, tmp_path: Path) -> None:
    with pytest.raises(MismatchError, match="no place for a draft vocabulary"):
        Medusa.write(tmp_path / "out", export_of(folder, shared, 9))
    for layout in (SglangEagle3, Eagle):
        with pytest.raises(MismatchError, match=r"--format medusa, which vLLM 0\.32 reads"):
            layout.write(tmp_path / "out", export_of(folder, shared))
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "fields",
    [
        {"medusa_fc_bias": False},
        {"original_lm_head": "yes"},
        {"num_hidden_layers": None},
        {"num_hidden_layers": 10**6},
        {"truncated_vocab_size": 9},
        {"num_heads": None},
    ],
)
def test_another_form_is_refused(
    fields: dict[str, Any], folder: Path, shared: TargetTensors, tmp_path: Path
) -> None:
    Medusa.write(tmp_path / "out", export_of(folder, shared))
    file = tmp_path / "out" / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text("utf-8")) | fields), "utf-8")
    with pytest.raises(DataError, match="not computed here") as error:
        Medusa.read(tmp_path / "out", shared, 3)
    named = "blocks a Medusa head" if fields == {"num_hidden_layers": 10**6} else next(iter(fields))
    assert named in str(error.value)


@pytest.mark.parametrize("fields", [{"original_lm_head": False}, {"num_hidden_layers": 2}])
def test_a_form_without_its_tensors_is_refused(
    fields: dict[str, Any], folder: Path, shared: TargetTensors, tmp_path: Path
) -> None:
    Medusa.write(tmp_path / "out", export_of(folder, shared))
    file = tmp_path / "out" / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text("utf-8")) | fields), "utf-8")
    with pytest.raises(ArtifactError, match="not those of its configuration"):
        Medusa.read(tmp_path / "out", shared, 3)


@pytest.mark.parametrize(("layers", "own"), [(2, False), (1, True), (2, True)])
def test_blocks_and_own_heads_come_back(
    layers: int, own: bool, folder: Path, shared: TargetTensors, tmp_path: Path
) -> None:
    """Names and sizes as vLLM 0.32's class has them."""
    forms = {"medusa_layers": layers, "medusa_own_heads": own}
    export, path = export_of(folder, shared, 61, **forms), tmp_path / "out"
    write_checked(Medusa, path, export, 3)
    tensors = load_file(path / "model.safetensors")
    wanted = {
        f"blocks.{i}.layers.{j}.{n}" for i in range(3) for j in range(layers) for n in ("weight", "bias")
    }
    wanted |= {f"lm_heads.{i}.weight" for i in range(3)} if own else {"lm_head.weight"}
    assert set(tensors) == wanted
    body = json.loads((path / "config.json").read_text("utf-8"))
    assert (body["num_hidden_layers"], body["original_lm_head"]) == (layers, not own)
    (path / MANIFEST).unlink()
    loaded, _ = load_drafter(path, shared, folder)
    assert loaded.config == export.drafter.config
    for name, parameter in export.drafter.named_parameters():
        assert torch.equal(dict(loaded.named_parameters())[name], parameter), name


@pytest.mark.parametrize(
    "change",
    [
        lambda tensors: tensors.pop("blocks.1.layers.0.bias"),
        lambda tensors: tensors.update({"fc.weight": torch.zeros(9)}),
        lambda tensors: tensors.update({"blocks.0.layers.0.weight": torch.zeros(32, 31)}),
    ],
)
def test_every_tensor_has_its_place(change: Any, folder: Path, shared: TargetTensors, tmp_path: Path) -> None:
    Medusa.write(tmp_path / "out", export_of(folder, shared))
    edit(tmp_path / "out", change)
    with pytest.raises(ArtifactError):
        Medusa.read(tmp_path / "out", shared, 3)
