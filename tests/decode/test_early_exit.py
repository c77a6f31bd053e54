"""The early exit: lossless, in the target's cache, its states those of the target's first layers."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.decode.node_support import (
    PROMPTS,
    Alternating,
    Watched,
    check_paths,
    load_tiny,
    plain,
    requests,
    shaped,
    sharp,
)
from tests.models.lean_support import build as build_family
from vocabforge.core.errors import UsageError
from vocabforge.decode.build.spec import MethodSpec
from vocabforge.decode.engine import Decoder
from vocabforge.decode.proposers.early_exit import build
from vocabforge.decode.proposers.model import ModelProposer
from vocabforge.decode.proposers.registry import ProposerParts, make_proposer
from vocabforge.decode.request import Request
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
    build_family(case, tmp_path)
    model = sharp(load_target(tmp_path))
    asked = requests(12, PROMPTS[:3])
    for layers in (1, 3):
        proposer = made(model, "dynamic", layers)
        results = Decoder(model, proposer, rows=2).generate_batch(asked)
        assert [one.token_ids for one in results] == plain(model, asked)
    assert all(set(one.accept_lengths) == {5} for one in results)


@pytest.mark.parametrize("layers", [1, 2, 4])
@pytest.mark.parametrize("shape", ["chain", "dynamic", "static", "stem"])
def test_states_are_those_of_the_first_layers(shape: str, layers: int, target: LeanModel) -> None:
    proposer = made(target, shape, layers)
    watched = Watched(proposer)
    control = Alternating(proposer.plans(), (True, True, False, None))
    result = Decoder(target, proposer, control=control).generate_batch([Request(PROMPTS[0], 24)])[0]
    longer = plain(target, [Request(PROMPTS[0], 30)])[0]
    assert result.token_ids == longer[:24]
    assert check_paths(watched, target, [*PROMPTS[0], *longer], range(layers)) > 12


def test_which_layers(target: LeanModel) -> None:
    proposer = make_proposer("early-exit", ProposerParts(target))
    assert proposer.backend.layers == 1
    assert proposer.plan.nodes == proposer.plan.levels + 1
    with pytest.raises(UsageError, match="does not lie within the target"):
        made(target, "chain", 6)
