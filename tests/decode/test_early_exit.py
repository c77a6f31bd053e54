"""The early exit on real models: right in every family, and no layer of a token runs twice."""

from __future__ import annotations

import inspect
import itertools
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.decode.node_support import (
    PROMPTS,
    Alternating,
    check_always_right,
    load_tiny,
    plain,
    requests,
    shaped,
    sharp,
)
from tests.models.lean_support import build as build_family
from tests.shares import by_default
from vocabforge.core.errors import UsageError
from vocabforge.decode.engine import Decoder
from vocabforge.decode.proposers.early_exit import build
from vocabforge.decode.proposers.model import ModelProposer
from vocabforge.decode.proposers.registry import ProposerParts, make_proposer
from vocabforge.decode.request import Request
from vocabforge.decode.spec import MethodSpec
from vocabforge.models.lean.model import LeanModel, load_target


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> LeanModel:
    """Later layers change little, so that the first ones often say the same."""
    model = load_tiny(tmp_path_factory.mktemp("target"))
    for layer in model.layers[2:]:
        for name in ("o", "down"):
            getattr(layer, name).mul_(0.1)
    return model


def made(target: LeanModel, shape: str = "chain", layers: int | None = 2) -> ModelProposer:
    return shaped(build, ProposerParts(target, options=MethodSpec(exit_layers=layers)), shape)


@pytest.mark.parametrize("case", ["mistral-window", "qwen2-layer-types", "olmo2"])
def test_other_families(case: str, tmp_path: Path) -> None:
    """One layer, or all of them, whose every draft is right."""
    build_family(case, tmp_path)
    model = sharp(load_target(tmp_path))
    every = model.config.num_layers
    for layers in (1, every):
        proposer = made(model, "dynamic", layers)
        control = Alternating(proposer.plans(), (True, True, False, None))
        decoder, asked = Decoder(model, proposer, rows=2, control=control), requests(12, PROMPTS[:3])
        if layers == every:
            check_always_right(decoder, asked)
        else:
            assert [one.token_ids for one in decoder.generate_batch(asked)] == plain(model, asked)


class Counted:
    """Counts the layers that a model runs, each once a token, by part: drafting or verification."""

    def __init__(self, model: LeanModel, monkeypatch: pytest.MonkeyPatch) -> None:
        self.work = Counter[str]()
        forward, every = model.forward, range(model.config.num_layers)

        def counted(ids: Tensor, *args: Any, layers: range | None = None, **more: Any) -> Any:
            inside = {frame.function for frame in inspect.stack(0)}
            part = next((name for name in ("prefill", "propose", "look") if name in inside), "other")
            self.work[part] += ids.numel() * len(every if layers is None else layers)
            return forward(ids, *args, layers=layers, **more)

        monkeypatch.setattr(model, "forward", counted)


@pytest.mark.parametrize(
    ("shape", "rows"),
    by_default(
        itertools.product(["one", "chain", "static", "stem", "dynamic"], [1, 3]),
        lambda case: case[1] == 3 or case[0] == "one",
    ),
)
def test_no_layer_runs_twice(shape, rows, target, monkeypatch):
    """A cycle of a chain runs E (first layers) and L - E for each node once; of a tree also E for dropped nodes."""
    exit_at, every = 2, target.config.num_layers
    proposer = made(target, shape, exit_at)
    asked = [Request(PROMPTS[0], 12) for _ in range(rows)]  # alike, so that no row idles
    expected = plain(target, asked)
    counted = Counted(target, monkeypatch)
    results = Decoder(target, proposer, rows=rows).generate_batch(asked)
    assert [one.token_ids for one in results] == expected
    cycles = len(results[0].accept_lengths)
    nodes = proposer.plan.nodes * cycles * rows
    assert set(counted.work) == {"prefill", "propose", "look"}
    first = counted.work["propose"] + counted.work["look"] - (every - exit_at) * nodes
    if shape == "dynamic":  # drafting expands nodes that are not in the tree
        dropped = exit_at * (proposer.policy.scratch + 1) * cycles * rows
        assert exit_at * nodes <= first < exit_at * nodes + dropped
        assert first < dropped + exit_at * nodes * 0.9, "some of the tree's nodes were drafted"
    else:
        assert first == exit_at * nodes


def test_captured_passes_and_a_drafter_of_all_layers_run_whole_passes(target: LeanModel) -> None:
    """Those keep nothing; see ``test_graphs.py`` for their outputs."""
    for layers, wrap, kept in (
        (2, None, True),
        (2, lambda name, function: function, False),
        (5, None, False),
    ):
        proposer = made(target, "chain", layers)
        decoder = Decoder(target, proposer, wrap=wrap)
        assert (
            decoder.generate_batch(requests(12, PROMPTS[:1]))[0].token_ids
            == plain(target, requests(12, PROMPTS[:1]))[0]
        )
        roots = torch.tensor([5])
        tree = proposer.propose(roots, proposer.plan, None, lambda part: None)
        assert (tree.exits is not None) == kept


def test_which_layers(target: LeanModel) -> None:
    proposer = make_proposer("early-exit", ProposerParts(target))
    assert proposer.backend.layers == 1
    assert proposer.plan.nodes == proposer.plan.levels + 1
    with pytest.raises(UsageError, match="does not lie within the target"):
        made(target, "chain", 6)
