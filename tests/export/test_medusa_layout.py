"""The Medusa layout of vLLM 0.32: written, read strictly, refused where vLLM would compute something else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from tests.export.eagle3_cases import assert_same
from tests.folders import edit_folder
from vocabforge.core.artifact import MANIFEST
from vocabforge.core.errors import ArtifactError, DataError, MismatchError
from vocabforge.export.checked import write_checked
from vocabforge.layouts.eagle1 import Eagle
from vocabforge.layouts.eagle3 import SglangEagle3
from vocabforge.layouts.interface import Export
from vocabforge.layouts.medusa import Medusa
from vocabforge.layouts.registry import load_drafter
from vocabforge.models.drafters.medusa import MedusaConfig, MedusaDrafter
from vocabforge.models.target.head import TargetTensors
from vocabforge.models.target.load import read_target_config


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


@pytest.mark.parametrize(
    ("rows", "layers", "own"),
    [(None, 1, False), (61, 1, False), (61, 2, False), (61, 1, True), (61, 2, True)],
)
def test_written_and_read_again(rows, layers, own, folder, shared, tmp_path):
    """Names and sizes as vLLM 0.32's class has them."""
    forms = {"medusa_layers": layers, "medusa_own_heads": own}
    export, path = export_of(folder, shared, rows, **forms), tmp_path / "out"
    write_checked(Medusa, path, export, 3)
    wanted: dict[str, tuple[int, ...]] = {
        f"blocks.{i}.layers.{j}.{name}": shape
        for i in range(3)
        for j in range(layers)
        for name, shape in (("weight", (32, 32)), ("bias", (32,)))
    }
    heads = [f"lm_heads.{i}.weight" for i in range(3)] if own else ["lm_head.weight"]
    tensors = load_file(path / "model.safetensors")
    assert {name: tuple(one.shape) for name, one in tensors.items()} == wanted | dict.fromkeys(
        heads, (61, 32)
    )
    body = json.loads((path / "config.json").read_text("utf-8"))
    expected = {
        "model_type": "medusa",
        "architectures": ["MedusaModel"],
        "num_heads": 3,
        "num_hidden_layers": layers,
        "vocab_size": 61,
        "truncated_vocab_size": 61,
        "hidden_size": 32,
        "medusa_fc_bias": True,
        "original_lm_head": not own,
    }
    assert {key: body[key] for key in expected} == expected
    (path / MANIFEST).unlink()
    loaded, _ = load_drafter(path, shared, folder)
    assert_same(loaded, export.drafter)


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
def test_another_form_is_refused(fields, folder, shared, tmp_path):
    Medusa.write(tmp_path / "out", export_of(folder, shared))
    edit_folder(tmp_path / "out", **fields)
    with pytest.raises(DataError, match="not computed here") as error:
        Medusa.read(tmp_path / "out", shared, 3)
    named = "blocks a Medusa head" if fields == {"num_hidden_layers": 10**6} else next(iter(fields))
    assert named in str(error.value)


@pytest.mark.parametrize(
    "change",
    [
        {"original_lm_head": False},
        {"num_hidden_layers": 2},
        {"tensors": lambda tensors: tensors.pop("blocks.1.layers.0.bias")},
        {"tensors": lambda tensors: tensors.update({"fc.weight": torch.zeros(9)})},
        {"tensors": lambda tensors: tensors.update({"blocks.0.layers.0.weight": torch.zeros(32, 31)})},
    ],
)
def test_every_tensor_has_its_place(change, folder, shared, tmp_path):
    Medusa.write(tmp_path / "out", export_of(folder, shared))
    edit_folder(tmp_path / "out", **change)
    with pytest.raises(ArtifactError, match="not those of its configuration"):
        Medusa.read(tmp_path / "out", shared, 3)
