"""The early exit: lossless, in the target's cache, its states those of the target's first layers."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch

from tests.decode.node_support import (
    PROMPTS,
    SHAPES,
    Alternating,
    Watched,
    check_captured,
    check_paths,
    fresh,
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


@pytest.fixture(scope="module")
def expected(target: LeanModel) -> list[list[int]]:
    return plain(target, requests())


def made(target: LeanModel, shape: str = "chain", layers: int | None = 2) -> ModelProposer:
    return shaped(build, ProposerParts(target, options=MethodSpec(exit_layers=layers)), shape)


@pytest.mark.parametrize(("shape", "rows"), [*((shape, 3) for shape in SHAPES), ("chain", 1), ("dynamic", 1)])
def test_the_output_is_the_targets(
    shape: str, rows: int, target: LeanModel, expected: list[list[int]]
) -> None:
    results = Decoder(target, made(target, shape), rows=rows).generate_batch(requests())
    assert [one.token_ids for one in results] == expected
    lengths = {length for one in results for length in one.accept_lengths}
    assert len(lengths) > 1, "some drafts were accepted, some were not"


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


def test_drafted_logits_are_those_of_the_first_layers(target: LeanModel) -> None:
    proposer = made(target, "chain", 3)
    text = PROMPTS[2]
    decoder = Decoder(target, proposer)
    decoder.generate(text, max_new_tokens=1, stop_ids=())
    first = plain(target, [Request(text, 1)])[0][0]
    with torch.inference_mode():
        root = torch.tensor([first])
        step = proposer.backend.start(root)
        logprobs, ids = proposer.head.topk(step.hidden[0], 3)
        direct = target.logits(fresh(target, [*text, first], range(3))[0][-1]).log_softmax(-1)
    torch.testing.assert_close(logprobs[0], direct[ids[0]], rtol=1e-4, atol=1e-4)
    assert ids[0].tolist() == direct.topk(3).indices.tolist()


@pytest.mark.parametrize("shape", ["chain", "dynamic"])
def test_the_targets_cache_is_that_of_a_fresh_prefill(shape: str, target: LeanModel) -> None:
    """Drafting writes in it, behind what is committed."""
    proposer = made(target, shape)
    decoder = Decoder(target, proposer, rows=2, control=Alternating(proposer.plans(), (True, False, True)))
    passes = proposer.backend.passes
    decoder.generate_batch([Request(PROMPTS[0], 30), Request(PROMPTS[2], 40)])
    longer = plain(target, [Request(PROMPTS[0], 50), Request(PROMPTS[2], 50)])
    for row, (prompt, text) in enumerate(zip((PROMPTS[0], PROMPTS[2]), longer)):
        length = passes.lengths[row]
        # An idle row's first slots are written by passes over the other rows: the target's root lies in slot 0.
        start = 0 if row == 1 else 20
        cache = fresh(target, [*prompt, *text][:length])[1]
        found = passes.cache.k[:, row, :, start:length]
        torch.testing.assert_close(found, cache.k[:, 0, :, start:], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("context", [40, 41])
def test_a_row_that_ended_at_the_end_of_its_positions(context: int, target: LeanModel) -> None:
    """It idles there, beyond them by what was accepted last; its draft nodes still find room."""
    target = sharp(copy.deepcopy(target))
    options = MethodSpec(tree="dynamic", depth=3, topk=3, total_nodes=5)
    decoder = Decoder(
        target,
        build(ProposerParts(target, options=options.model_copy(update={"exit_layers": 5}))),
        context=context,
        rows=2,
    )
    asked = [Request(PROMPTS[0], 60), Request(PROMPTS[2], 60)]
    results = decoder.generate_batch(asked)
    assert [one.finish for one in results] == ["cache", "cache"]
    assert [one.token_ids for one in results] == plain(target, asked, context=context)


@pytest.mark.parametrize("shape", ["chain", "dynamic"])
def test_drafting_can_be_captured(shape: str, target: LeanModel) -> None:
    check_captured(target, lambda: made(target, shape))


def test_which_layers(target: LeanModel) -> None:
    proposer = make_proposer("early-exit", ProposerParts(target))
    assert proposer.backend.layers == 1
    assert proposer.plan.nodes == proposer.plan.levels + 1
    with pytest.raises(UsageError, match="does not lie within the target"):
        made(target, "chain", 6)
