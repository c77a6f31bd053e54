"""A whole cycle on another device than the CPU: the meta device, whose tensors compute nothing.

The tape (``recording.py``) cannot tell device from host: on a CPU a tensor that was made on the wrong one is a
tensor like any other.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from tests.decode.recording import TraceRecorder, as_captured
from vocabforge.decode.accelerate.graphs import GraphCapture
from vocabforge.decode.engine import Decoder
from vocabforge.decode.proposers.model import ModelProposer
from vocabforge.decode.proposers.registry import ProposerParts, make_proposer
from vocabforge.decode.spec import MethodSpec
from vocabforge.decode.trees.fixed import ShapePolicy
from vocabforge.models.drafters.eagle3 import Eagle3Config, Eagle3Drafter
from vocabforge.models.heads.registry import HeadOptions, HeadSizes, RankerHead, base_of, build_head
from vocabforge.models.lean.config import LeanConfig
from vocabforge.models.lean.model import LeanModel
from vocabforge.ops.distinct_rows import distinct_rows

SIZES = {"vocab_size": 40, "hidden_size": 16, "intermediate_size": 24, "head_dim": 8}
LLAMA = {
    **SIZES,
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 64,
}
TREE = MethodSpec(tree="dynamic", depth=1, topk=2, total_nodes=5)


class Elsewhere(Exception):
    """An operation on the host, or between the host and the device."""


class OnDevice(TorchDispatchMode):
    """Refuses tensors on the host; a 0-d one that fills a device tensor is a number."""

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = function(*args, **(kwargs or {}))
        name = function.overloadpacket.__name__
        for one in tree_leaves((args, kwargs, found)):
            if isinstance(one, Tensor) and not one.is_meta and not (name == "fill_" and one.dim() == 0):
                raise Elsewhere(f"{name} with {tuple(one.shape)} on {one.device}")
        return found


def proposer_of(name: str, target: LeanModel, dtype: torch.dtype, folder: Any) -> Any:
    if name == "draft-model":
        drafter = LeanModel(target.config, dtype=dtype, device="meta")
        return make_proposer(name, ProposerParts(target, drafter, options=TREE))
    if name == "early-exit":  # a line above a tree
        shape = folder / "shape.json"
        shape.write_text("[[0], [0, 0], [0, 1], [0, 0, 0], [0, 1, 0]]")
        return make_proposer(name, ProposerParts(target, options=MethodSpec(tree_file=shape)))
    more = {"draft_vocab_size": None, "aux_layers": (0, 1), "max_position_embeddings": 64}
    config = Eagle3Config(**SIZES, num_heads=2, num_kv_heads=1, **more)
    with torch.device("meta"):
        drafter = Eagle3Drafter(config, target.embedding, target.lm_head_weight).to(dtype).eval()
    head = None
    if name == "eagle3 with a ranker":
        module = RankerHead.new_module(HeadSizes(16, 40, rank=8)).to("meta", dtype)
        head = build_head(
            "ranker", base_of(drafter), module, HeadOptions(shortlist=8, rows="shared", ops=True)
        )
    return make_proposer("eagle3", ProposerParts(target, drafter, head, TREE))


@pytest.mark.parametrize("name", ["plain", "eagle3", "eagle3 with a ranker", "draft-model", "early-exit"])
@torch.no_grad()
def test_a_cycle_stays_on_its_device(name: str, tmp_path: Any) -> None:
    target = LeanModel(LeanConfig.from_hf_config(LLAMA), dtype=torch.bfloat16, device="meta")
    proposer = None if name == "plain" else proposer_of(name, target, torch.bfloat16, tmp_path)
    decoder = Decoder(target, proposer, rows=2, wrap=GraphCapture(TraceRecorder))
    cycle, capture = decoder.device_cycle, decoder._capture
    assert cycle is not None
    assert capture is not None
    capture.recording = True
    if isinstance(proposer, ModelProposer):
        proposer.prepare()
        if isinstance(proposer.policy, ShapePolicy):
            proposer.policy.layout(proposer.plan, target.device)  # made once, by the warm-up
    for sampled in (False, True):
        with as_captured(), OnDevice():
            path, numbers = cycle._cycle(sampled)
        assert path.is_meta
        assert numbers.shape == (2, cycle._plan.levels + 4)


def test_distinct_rows_can_be_captured() -> None:
    ids = torch.tensor([[3, 1, 3], [-1, 8, 1]])
    run = GraphCapture(TraceRecorder)("rows", lambda ids: distinct_rows(ids, 9))
    assert [sorted(run(one)[0].tolist()) for one in (ids, ids + 1)] == [
        [-1] * 3 + [1, 3, 8],
        [-1] * 3 + [0, 2, 4],
    ]
