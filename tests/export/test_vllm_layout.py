"""``--format vllm``: the drafter with its draft head in one folder, read back as it was written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.worlds import tiny_drafter
from vocabforge.core.errors import ArtifactError
from vocabforge.core.registry import resolve
from vocabforge.export.checked import write_checked
from vocabforge.layouts.interface import Export
from vocabforge.layouts.registry import load_drafter
from vocabforge.layouts.vllm import VllmEagle3
from vocabforge.models.heads.interface import DraftState, HeadOptions, HeadSizes
from vocabforge.models.heads.registry import HEADS, base_of
from vocabforge.models.heads.served import KEY, PREFIX, ServedHead, read_served
from vocabforge.models.target.head import load_target_tensors
from vocabforge.models.target.hf import HFTarget
from vocabforge.models.target.logits import LogitTransform

SIZES = {
    "ranker": HeadSizes(32, 61, rank=8),
    "low-rank": HeadSizes(32, 61, rank=8),
    "router": HeadSizes(32, 61, clusters=6, width=8, depth=1),
}
OPTIONS = {
    "ranker": HeadOptions(shortlist=9),
    "low-rank": HeadOptions(),
    "router": HeadOptions(budgets=(3, 1)),
}


@pytest.fixture(scope="module")
def drafter(folder: Path) -> Any:
    return tiny_drafter(HFTarget.load(folder))


def head_of(kind: str) -> ServedHead:
    torch.manual_seed(3)
    module = resolve(HEADS, kind, "draft head").new_module(SIZES[kind])
    for parameter in module.parameters():
        torch.nn.init.normal_(parameter)
    return ServedHead(kind, module.eval(), OPTIONS[kind], LogitTransform())


def export_of(drafter: Any, folder: Path, head: ServedHead | None) -> Export:
    config = json.loads((folder / "config.json").read_text("utf-8"))
    return Export(drafter, config, load_target_tensors(folder), "target", torch.float32, head=head)


@pytest.mark.parametrize("kind", SIZES)
def test_a_head_answers_after_reading_as_before(kind, drafter, folder, tmp_path):
    head, output = head_of(kind), tmp_path / "served"
    write_checked(VllmEagle3, output, export_of(drafter, folder, head), 5)
    body = json.loads((output / "config.json").read_text("utf-8"))
    tensors = load_file(output / "model.safetensors")
    own = {name: tensor for name, tensor in tensors.items() if name.startswith(PREFIX)}
    assert body["architectures"] == ["VocabForgeLlamaEagle3"]
    read = read_served(body[KEY], own, output)
    hidden = torch.randn(7, 32, generator=torch.Generator().manual_seed(0))
    state = DraftState(1, torch.arange(7), hidden.flip(0), requests=7)
    base = base_of(drafter)
    for ours, theirs in zip(head.over(base).topk(hidden, 4, state), read.over(base).topk(hidden, 4, state)):
        assert torch.equal(ours, theirs)
    again, _ = load_drafter(output, load_target_tensors(folder), folder)
    assert {name: tuple(one.shape) for name, one in again.named_parameters()} == {
        name: tuple(one.shape) for name, one in drafter.named_parameters()
    }


def test_a_head_of_a_removed_kind_is_an_error() -> None:
    body = {"kind": "hybrid", "sizes": None, "options": {}, "transform": {}}
    with pytest.raises(ArtifactError, match=r"(?s)kind hybrid.*export it again"):
        read_served(body, {}, "folder")


def test_a_lost_tensor_is_an_error(drafter: Any, folder: Path, tmp_path: Path) -> None:
    output = tmp_path / "served"
    write_checked(VllmEagle3, output, export_of(drafter, folder, head_of("router")), 5)
    tensors = load_file(output / "model.safetensors")
    del tensors[f"{PREFIX}assignment"]
    save_file(tensors, output / "model.safetensors")
    with pytest.raises(ArtifactError, match="draft head's tensors"):
        VllmEagle3.read(output, load_target_tensors(folder), 5)
