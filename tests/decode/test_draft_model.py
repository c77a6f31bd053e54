"""The draft model: lossless, its cache that of a fresh prefill, its tree states those of each path."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.decode.node_support import (
    PROMPTS,
    SHAPES,
    Alternating,
    Watched,
    check_paths,
    fresh,
    load_tiny,
    noisy,
    plain,
    requests,
    shaped,
    sharp,
)
from tests.models.lean_support import build as build_family
from vocabforge.decode.engine import Decoder
from vocabforge.decode.proposers import draft_model as proposer_draft_model
from vocabforge.decode.proposers.draft_model import build, head_base
from vocabforge.decode.proposers.model import ModelProposer
from vocabforge.decode.proposers.registry import ProposerParts
from vocabforge.decode.request import Request
from vocabforge.decode.spec import MethodSpec
from vocabforge.models.lean.model import LeanModel, load_target


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> LeanModel:
    return load_tiny(tmp_path_factory.mktemp("target"))


@pytest.fixture(scope="module")
def drafter(tmp_path_factory: pytest.TempPathFactory) -> LeanModel:
    return noisy(tmp_path_factory.mktemp("drafter"))


@pytest.fixture(scope="module")
def expected(target: LeanModel) -> list[list[int]]:
    return plain(target, requests())


def made(target: LeanModel, drafter: LeanModel, shape: str | MethodSpec = "chain") -> ModelProposer:
    return shaped(build, ProposerParts(target, drafter), shape)


@torch.inference_mode()
def check_cache(proposer: ModelProposer, texts: Sequence[Sequence[int]]) -> None:
    """The keys and values of what was read are those of a fresh prefill of the same tokens."""
    backend: Any = proposer.backend
    for row, text in enumerate(texts):
        length = backend.passes.lengths[row]
        assert length == backend.passes.committed[row] <= len(text)
        length -= backend._unread[row]
        cache = fresh(backend.drafter, text[:length], reach=backend.passes.reach)[1]
        for ours, theirs in ((backend.passes.cache.k, cache.k), (backend.passes.cache.v, cache.v)):
            torch.testing.assert_close(
                ours[:, row, :, :length], theirs[:, 0, :, :length], rtol=1e-3, atol=5e-4
            )


@pytest.mark.parametrize(("shape", "rows"), [*((shape, 3) for shape in SHAPES), ("chain", 1), ("dynamic", 1)])
def test_the_output_is_the_targets(
    shape: str, rows: int, target: LeanModel, drafter: LeanModel, expected: list[list[int]]
) -> None:
    results = Decoder(target, made(target, drafter, shape), rows=rows).generate_batch(requests())
    assert [one.token_ids for one in results] == expected
    lengths = {length for one in results for length in one.accept_lengths}
    assert lengths == set(range(1, SHAPES[shape].depth + 3)), "every accepted length was met"


@pytest.mark.parametrize("shape", [*SHAPES, "stem"])
def test_the_cache_is_that_of_a_fresh_prefill(shape: str, target: LeanModel, drafter: LeanModel) -> None:
    """After compaction, catch-up and plain cycles, in rows of different lengths."""
    proposer = made(target, drafter, shape)
    decoder = Decoder(
        target,
        proposer,
        rows=3,
        control=Alternating(proposer.plans(), (True, False, None, True, True, False)),
    )
    asked = [Request(prompt, 28) for prompt in PROMPTS[:3]]
    longer = plain(target, [Request(prompt, 36) for prompt in PROMPTS[:3]])
    results = decoder.generate_batch(asked)
    assert [one.token_ids for one in results] == [text[:28] for text in longer]
    check_cache(proposer, [[*prompt, *text] for prompt, text in zip(PROMPTS, longer)])


@pytest.mark.parametrize("shape", ["chain", "dynamic", "static", "stem"])
@pytest.mark.parametrize("window", [None, "mistral-window"])
def test_tree_states_are_those_of_their_paths(
    shape: str, window: str | None, target: LeanModel, drafter: LeanModel, tmp_path: Path
) -> None:
    if window is not None:
        build_family(window, tmp_path)
        target = drafter = load_target(tmp_path)
    proposer = made(target, drafter, shape)
    watched = Watched(proposer)
    control = Alternating(proposer.plans(), (True, True, False, None))
    result = Decoder(target, proposer, control=control).generate_batch([Request(PROMPTS[0], 24)])[0]
    longer = plain(target, [Request(PROMPTS[0], 30)])[0]
    assert result.token_ids == longer[:24]
    assert check_paths(watched, drafter, [*PROMPTS[0], *longer]) > 12


def test_a_window_narrower_than_the_tree(tmp_path: Path) -> None:
    build_family("mistral-head-dim", tmp_path)
    target = load_target(tmp_path)
    assert target.config.sliding_window == 4
    proposer = made(target, target, MethodSpec(tree="dynamic", depth=6, topk=2, total_nodes=14))
    watched = Watched(proposer)
    result = Decoder(target, proposer).generate_batch([Request(PROMPTS[0], 14)])[0]
    longer = plain(target, [Request(PROMPTS[0], 24)])[0]
    assert result.token_ids == longer[:14]
    assert check_paths(watched, target, [*PROMPTS[0], *longer]) > 12


def test_long_plain_phases_are_read_in_parts(
    target: LeanModel, drafter: LeanModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A row far behind and one that has just begun read on together."""
    monkeypatch.setattr(proposer_draft_model, "CATCH_UP", 8)
    proposer = made(target, drafter, "dynamic")
    pattern = (True, *(False,) * 20, True, *(False,) * 6)
    control = Alternating(proposer.plans(), pattern)
    asked = [Request(PROMPTS[2], 56), Request(PROMPTS[1], 10), Request(PROMPTS[3], 40)]
    results = Decoder(target, proposer, rows=2, control=control).generate_batch(asked)
    assert [one.token_ids for one in results] == plain(target, asked)
    longer = plain(target, [Request(one.prompt_ids, 64) for one in asked])
    texts = [[*one.prompt_ids, *text] for one, text in zip(asked, longer)]
    check_cache(proposer, [texts[0], texts[2]])


def test_beyond_its_context_it_sees_its_last_positions(target: LeanModel, tmp_path: Path) -> None:
    short = noisy(tmp_path, max_position_embeddings=24)
    proposer = made(target, short, "dynamic")
    # Masks are only looked at where more slots than the limit are in view.
    assert proposer.backend.passes.reach == 24
    watched = Watched(proposer)
    request = Request(PROMPTS[2], 30)
    result = Decoder(target, proposer).generate_batch([request])[0]
    longer = plain(target, [Request(PROMPTS[2], 40)])[0]
    assert result.token_ids == longer[:30]
    assert len(PROMPTS[2]) < 24 < len(PROMPTS[2]) + 20
    assert check_paths(watched, short, [*PROMPTS[2], *longer], reach=24) > 50
    check_cache(proposer, [[*PROMPTS[2], *longer]])


@pytest.mark.parametrize("size", [50, 61, 70])
def test_padded_vocabularies(size: int, target: LeanModel, tmp_path: Path) -> None:
    """Of ids that only one of the models has, none is proposed and none does harm."""
    other = load_tiny(tmp_path, seed=4, vocab_size=size)
    proposer = made(target, other, "dynamic")
    assert proposer.head.size == min(size, 61)
    asked = [Request([60, 3, 55], 20), Request([2, 60], 20)]
    seen = []
    propose = proposer.propose
    proposer.propose = lambda *given: seen.append(propose(*given)) or seen[-1]  # type: ignore[method-assign]
    results = Decoder(target, proposer, rows=2).generate_batch(asked)
    assert [one.token_ids for one in results] == plain(target, asked)
    assert max(int(tree.tokens[:, 1:].max()) for tree in seen) < min(size, 61)
    base = head_base(target, other)
    assert len(base.weight) == len(base.target_ids) == min(size, 61)


@pytest.mark.parametrize("context", [40, 41])
def test_a_row_that_ended_at_the_end_of_its_positions(context: int, target: LeanModel) -> None:
    """It idles there, beyond them by what was accepted last; its draft nodes still find room."""
    target = sharp(copy.deepcopy(target))
    options = MethodSpec(tree="dynamic", depth=3, topk=3, total_nodes=5)
    decoder = Decoder(target, made(target, target, options), context=context, rows=2)
    asked = [Request(PROMPTS[0], 60), Request(PROMPTS[2], 60)]
    results = decoder.generate_batch(asked)
    assert [one.finish for one in results] == ["cache", "cache"]
    assert [one.token_ids for one in results] == plain(target, asked, context=context)
