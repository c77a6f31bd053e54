"""A model that drafts for itself is always right if its caches, positions and masks are: in any tree and history."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.decode.node_support import (
    PROMPTS,
    SHAPES,
    Alternating,
    check_always_right,
    load_tiny,
    plain,
    shaped,
    sharp,
)
from tests.folders import edit_folder
from tests.models.lean_support import build as build_family
from tests.worlds import tiny_target
from vocabforge.decode.engine import Decoder
from vocabforge.decode.proposers import draft_model as proposer_draft_model
from vocabforge.decode.proposers.draft_model import build
from vocabforge.decode.proposers.model import ModelProposer
from vocabforge.decode.proposers.registry import ProposerParts
from vocabforge.decode.request import Request
from vocabforge.decode.spec import MethodSpec
from vocabforge.models.lean.model import LeanModel, load_target


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> LeanModel:
    return sharp(load_tiny(tmp_path_factory.mktemp("target")))


def made(target: LeanModel, drafter: LeanModel, shape: str | MethodSpec = "chain") -> ModelProposer:
    return shaped(build, ProposerParts(target, drafter), shape)


@pytest.mark.parametrize("shape", [*SHAPES, "stem"])
@pytest.mark.parametrize("family", [None, "mistral-window", "mistral-head-dim"])
def test_it_is_right_after_any_cycles(shape, family, target, tmp_path):
    """Compaction, plain cycles and smaller trees, in rows of different lengths; windows narrower than a tree."""
    if family is not None:
        build_family(family, tmp_path)
        target = sharp(load_target(tmp_path))
    proposer = made(target, target, shape)
    control = Alternating(proposer.plans(), (True, False, None, True, True, False))
    asked = [Request(prompt, 24 + 5 * at) for at, prompt in enumerate(PROMPTS)]
    check_always_right(Decoder(target, proposer, rows=3, control=control), asked)


def test_long_plain_phases_are_read_in_parts(target: LeanModel, monkeypatch: pytest.MonkeyPatch) -> None:
    """A row far behind and one that has just begun read on together."""
    monkeypatch.setattr(proposer_draft_model, "CATCH_UP", 8)
    proposer = made(target, target, "dynamic")
    control = Alternating(proposer.plans(), (True, *(False,) * 20, True, *(False,) * 6))
    asked = [Request(PROMPTS[2], 56), Request(PROMPTS[1], 10), Request(PROMPTS[3], 40)]
    check_always_right(Decoder(target, proposer, rows=2, control=control), asked)


def test_beyond_its_context_it_sees_its_last_positions(tmp_path: Path) -> None:
    """As many as the sliding window of a target of the same weights."""
    short = sharp(load_tiny(tmp_path / "short", max_position_embeddings=24))
    window = {"architectures": ["MistralForCausalLM"], "model_type": "mistral", "sliding_window": 24}
    target = sharp(load_target(edit_folder(tiny_target(tmp_path / "window"), **window)))
    asked = [Request(PROMPTS[2], 30), Request(PROMPTS[0], 50)]
    for shape in ("chain", "dynamic"):
        check_always_right(Decoder(target, made(target, short, shape), rows=2), asked)


@pytest.mark.parametrize("size", [50, 61, 70])
def test_padded_vocabularies(size: int, target: LeanModel, tmp_path: Path) -> None:
    """Of ids that only one of the models has, none is proposed and none does harm."""
    proposer = made(target, load_tiny(tmp_path, seed=4, vocab_size=size), "dynamic")
    assert proposer.head.size == min(size, 61)
    asked = [Request([60, 3, 55], 20), Request([2, 60], 20)]
    seen = []
    propose = proposer.propose
    proposer.propose = lambda *given: seen.append(propose(*given)) or seen[-1]  # type: ignore[method-assign]
    results = Decoder(target, proposer, rows=2).generate_batch(asked)
    assert [one.token_ids for one in results] == plain(target, asked)
    assert max(int(tree.tokens[:, 1:].max()) for tree in seen) < min(size, 61)


@pytest.mark.parametrize("context", [40, 41])
def test_a_row_that_ended_at_the_end_of_its_positions(context: int, target: LeanModel) -> None:
    """It idles there, beyond them by what was accepted last; its draft nodes still find room."""
    options = MethodSpec(tree="dynamic", depth=3, topk=3, total_nodes=5)
    decoder = Decoder(target, made(target, target, options), context=context, rows=2)
    asked = [Request(PROMPTS[0], 60), Request(PROMPTS[2], 60)]
    results = decoder.generate_batch(asked)
    assert [one.finish for one in results] == ["cache", "cache"]
    assert [one.token_ids for one in results] == plain(target, asked, context=context)
