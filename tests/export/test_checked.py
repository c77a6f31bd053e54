"""What is written is read back and computed with before it takes its name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.export.test_eagle_layout import eagle1, export_of, subset
from tests.folders import edit_folder
from tests.worlds import tiny_drafter
from vocabforge.core.artifact import open_artifact
from vocabforge.core.errors import UsageError, VocabForgeError
from vocabforge.export.checked import random_logits, rounded, write_checked
from vocabforge.layouts.eagle1 import Eagle, FrSpec
from vocabforge.layouts.eagle3 import SglangEagle3
from vocabforge.layouts.layer_ids import LAYER_IDS
from vocabforge.layouts.native import Native
from vocabforge.layouts.registry import load_drafter
from vocabforge.layouts.speculators import SpeculatorsEagle3
from vocabforge.models.drafters.revocab import prune_head
from vocabforge.models.target.head import TargetTensors
from vocabforge.models.target.hf import HFTarget

LAYERS = 5
FINE, COARSE = 1e-5, 5e-3


def drafter_of(layout: Any, folder: Path, shared: TargetTensors) -> Any:
    if layout in (SglangEagle3, SpeculatorsEagle3):
        return tiny_drafter(HFTarget.load(folder), own_head=61)
    whole = eagle1(shared)
    return prune_head(whole, subset(), source="s") if layout is FrSpec else whole


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("layout", [Native, SglangEagle3, SpeculatorsEagle3, Eagle, FrSpec])
def test_every_layout_reads_as_it_was_written(layout, dtype, folder, shared, tmp_path):
    drafter = drafter_of(layout, folder, shared)
    before = {name: p.clone() for name, p in drafter.named_parameters()}
    write_checked(
        layout, tmp_path / "out", export_of(drafter, folder, shared, dtype=dtype, card="card"), LAYERS
    )
    assert [one.name for one in tmp_path.iterdir()] == ["out"], "nothing is left beside it"
    assert open_artifact(tmp_path / "out").kind == layout.KIND
    assert (tmp_path / "out" / "README.md").read_text() == "card"
    loaded, _ = load_drafter(tmp_path / "out", shared, folder)
    expected = random_logits(rounded(export_of(drafter, folder, shared, dtype=dtype)))
    # A head that is the target's is not rounded again when it is read.
    slack = expected.abs().max() * (FINE if dtype == torch.float32 else COARSE)
    assert (random_logits(loaded) - expected).abs().max() <= slack
    assert all(torch.equal(p, before[name]) for name, p in drafter.named_parameters()), "it was changed"


def broken(layout: Any, spoil: Any) -> Any:
    """A layout whose writer makes one mistake."""

    class Broken(layout):
        @staticmethod
        def write(path: Path, export: Any) -> None:
            layout.write(path, export)
            spoil(path)

    return Broken


def tensors_changed(change: Any) -> Any:
    return lambda path: edit_folder(path, change)


def config_changed(**fields: Any) -> Any:
    return lambda path: edit_folder(path, **fields)


def swap(tensors: dict[str, torch.Tensor]) -> None:
    a, b = (f"midlayer.mlp.{name}_proj.weight" for name in ("gate", "up"))
    tensors[a], tensors[b] = tensors[b].clone(), tensors[a].clone()


@pytest.mark.parametrize(
    ("layout", "spoil", "words"),
    [
        (SglangEagle3, tensors_changed(swap), "logits"),
        (SglangEagle3, tensors_changed(lambda t: t["fc.weight"].mul_(1.01)), "logits"),
        (SglangEagle3, config_changed(norm_output=True), "logits"),
        (SglangEagle3, config_changed(rms_norm_eps=0.5), "logits"),
        (SglangEagle3, tensors_changed(lambda t: t.pop("norm.weight")), "tensors are not those"),
        (SglangEagle3, config_changed(**{LAYER_IDS: [3, 4, 5], "eagle_config": {}}), "auxiliary layers"),
        (Eagle, tensors_changed(lambda t: t.pop("fc.bias")), "logits"),
        (FrSpec, lambda path: torch.save([1, 2, 3, 4, 5, 6], path / "freq_6.pt"), "draft tokens"),
        (FrSpec, lambda path: (path / "freq_6.pt").unlink(), "draft tokens"),
    ],
)
def test_a_mistake_in_writing_is_found_and_nothing_is_kept(layout, spoil, words, folder, shared, tmp_path):
    export = export_of(drafter_of(layout, folder, shared), folder, shared)
    with pytest.raises(VocabForgeError, match=words):
        write_checked(broken(layout, spoil), tmp_path / "out", export, LAYERS)
    assert not list(tmp_path.iterdir())


def test_what_is_there_stands_until_the_new_one_is_sound(folder, shared, tmp_path):
    export = export_of(eagle1(shared), folder, shared)
    write_checked(Eagle, tmp_path / "out", export, LAYERS)
    first = open_artifact(tmp_path / "out").content_hash
    with pytest.raises(UsageError, match="exists already"):
        write_checked(Eagle, tmp_path / "out", export, LAYERS)
    again = export_of(eagle1(shared), folder, shared, overwrite=True, dtype=torch.bfloat16)
    with pytest.raises(VocabForgeError):
        write_checked(
            broken(Eagle, tensors_changed(lambda t: t.pop("fc.bias"))), tmp_path / "out", again, LAYERS
        )
    assert open_artifact(tmp_path / "out").content_hash == first
    write_checked(Eagle, tmp_path / "out", again, LAYERS)
    assert open_artifact(tmp_path / "out").content_hash != first
    assert [one.name for one in tmp_path.iterdir()] == ["out"]
