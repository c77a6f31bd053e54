"""A captured cycle is few kernels: each costs a GPU more than a microsecond, whatever it computes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch import Tensor

from tests.decode.drafting import make_drafter
from tests.decode.recording import as_captured
from tests.kernel_counts import Kernels, counted
from tests.worlds import tiny_target
from vocabforge.decode.accelerate.graphs import GraphCapture
from vocabforge.decode.engine import Decoder
from vocabforge.decode.proposers.registry import ProposerParts, make_proposer
from vocabforge.decode.spec import MethodSpec
from vocabforge.models.heads.exact import FullHead
from vocabforge.models.lean.model import LeanModel, load_target
from vocabforge.models.target.hf import HFTarget

LAYERS = 2  # of the target
TREE = MethodSpec(tree="dynamic", depth=5, topk=10, total_nodes=60)
CHAIN = MethodSpec(tree="chain", depth=4)


class CountingRecorder:
    """Records nothing, but counts the kernels of a pass, and those of them that the target's layers are."""

    def __init__(self) -> None:
        self.total, self.target = Kernels(), Kernels()

    def warm_up(self, run: Callable[[], Any]) -> None:
        run()

    def record(self, function: Callable[..., Any], inputs: Sequence[Tensor | None]) -> Callable[[], Any]:
        layers = LeanModel._on_ops
        with as_captured(), counted() as self.total:

            def on_ops(*args: Any) -> Any:
                before = self.total.count.copy()
                found = layers(*args)
                self.target.count = self.total.count - before
                return found

            with patch.object(LeanModel, "_on_ops", on_ops):
                outputs = function(*inputs)
        return lambda: outputs


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_target(tmp_path_factory.mktemp("nodes"), num_hidden_layers=LAYERS)


def cycle(folder: Path, kind: str | None, options: MethodSpec, rows: int = 1) -> CountingRecorder:
    """The recorder of a whole greedy cycle in bf16, with the target's whole head."""
    target = load_target(folder, dtype=torch.bfloat16)
    proposer = None
    if kind is not None:
        from transformers import AutoModelForCausalLM

        hf = HFTarget(AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16))
        layers = {"aux_layers": (0, 1, 1)} if kind == "eagle3" else {}
        drafter = make_drafter(kind.replace("2", "1"), folder, hf, **layers).bfloat16()
        parts = ProposerParts(target, drafter, FullHead(target.lm_head_weight, ops=True), options)
        proposer = make_proposer(kind, parts)
    recorders: list[CountingRecorder] = []

    def recorder() -> CountingRecorder:
        recorders.append(CountingRecorder())
        return recorders[-1]

    capture = GraphCapture(recorder)
    Decoder(target, proposer, rows=rows, wrap=capture).generate([3, 5, 7], max_new_tokens=2, stop_ids=())
    assert [one.name.split(" of")[0] for one in capture.done] == ["cycle"]
    return recorders[-1]


@pytest.mark.parametrize(
    ("kind", "options", "rows", "most"),
    [
        (None, CHAIN, 1, 10),
        ("eagle3", TREE, 1, 110),
        ("eagle3", TREE, 3, 120),
        ("eagle3", CHAIN, 1, 81),
        ("eagle1", CHAIN, 1, 88),
        ("eagle2", TREE, 1, 119),
    ],
)
def test_a_cycle_is_few_kernels(
    kind: str | None, options: MethodSpec, rows: int, most: int, folder: Path
) -> None:
    """``most`` beside the target's layers, whose number follows from the model."""
    found = cycle(folder, kind, options, rows)
    beside = found.total.count - found.target.count
    assert beside.total() <= most, beside
    assert found.target.count.total() <= 11 * LAYERS, found.target.count
