"""A widened pair computes what the narrow one computes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.decode.drafting import VARIANTS, head_of, make_drafter
from tests.models.lean_support import build
from tests.worlds import tiny_target
from vocabforge.bench.decoding.modes import widen_drafter, widen_target
from vocabforge.bench.decoding.settings import DecodingBenchConfig, modes_of
from vocabforge.core.errors import UsageError
from vocabforge.decode.engine import Decoder
from vocabforge.decode.proposers.registry import tree_proposer
from vocabforge.decode.tree import TreeSettings
from vocabforge.models.kv_cache import KVCache, causal_mask
from vocabforge.models.lean.model import LeanModel, load_target
from vocabforge.models.target.hf import HFTarget


def logits(model: LeanModel, ids: list[int]) -> torch.Tensor:
    slots = torch.arange(len(ids))
    mask = causal_mask(slots, slots)
    out = model.forward(torch.tensor([ids]), slots[None], cache=model.new_cache(32), slots=slots, mask=mask)
    return model.logits(out.hidden)


@torch.inference_mode()
def draft_logits(drafter: Any, states: torch.Tensor) -> torch.Tensor:
    """Of the first step at N rows with states (N, .)."""
    c, slots = drafter.config, torch.arange(len(states))
    cache = KVCache(1, 1, c.num_kv_heads, len(states), c.head_dim)
    g = drafter.extend(
        slots[None] + 7,
        drafter.fuse(states)[None],
        slots[None],
        cache=cache,
        slots=slots,
        mask=causal_mask(slots, slots),
    )
    return drafter.logits(g)


@pytest.mark.parametrize("case", ["llama", "llama-tied", "qwen3", "olmo2", "bitnet"])
@torch.inference_mode()
def test_a_wider_target_has_the_same_logits(case: str, tmp_path: Path) -> None:
    build(case, tmp_path)
    narrow = load_target(tmp_path)
    wide = widen_target(narrow, 3)
    assert wide.config.hidden_size == 3 * narrow.config.hidden_size
    sizes = [sum(p.numel() for p in model.layers.parameters()) for model in (narrow, wide)]
    assert sizes[1] > 6 * sizes[0]
    torch.testing.assert_close(
        logits(wide, [3, 1, 4, 1, 5, 9, 2, 6]), logits(narrow, [3, 1, 4, 1, 5, 9, 2, 6]), rtol=0, atol=2e-4
    )


@pytest.mark.parametrize(
    ("case", "head"),
    [
        ("eagle3", "target"),
        ("eagle3", "own"),
        ("eagle3", "reduced"),
        *((case, "reduced") for case in VARIANTS),
    ],
)
def test_a_wider_drafter_drafts_the_same(case: str, head: str, tmp_path: Path) -> None:
    narrow = load_target(tiny_target(tmp_path))
    drafter = make_drafter(case, tmp_path, HFTarget.load(tmp_path), head)
    wide = widen_target(narrow, 2)
    other = widen_drafter(drafter, wide, 2)
    results = []
    for model, one in ((narrow, drafter), (wide, other)):
        proposer = tree_proposer(model, one, head_of(one), TreeSettings(3, 2, 12))
        results.append(Decoder(model, proposer).generate([3, 17, 8, 44], max_new_tokens=40, stop_ids=()))
    assert results[0].token_ids == results[1].token_ids
    assert results[0].accept_lengths == results[1].accept_lengths
    states = torch.randn(5, len(drafter.config.aux_layers), 32)
    torch.testing.assert_close(
        draft_logits(other, states.repeat(1, 1, 2).flatten(1)),  # every layer's states twice
        draft_logits(drafter, states.flatten(1)),
        rtol=1e-4,
        atol=1e-3,
    )


def test_only_what_can_be_widened_is(tmp_path: Path) -> None:
    config = DecodingBenchConfig(target=tmp_path, draft_model=tmp_path, drafter=tmp_path, widen=2)
    assert modes_of(config) == ("plain", "eagle3")
    with pytest.raises(UsageError, match="cannot be widened"):
        modes_of(config.model_copy(update={"modes": ("n-gram",)}))
    with pytest.raises(UsageError, match="cannot be widened"):
        modes_of(config.model_copy(update={"draft_tokens": {"n-gram": 3}}))
