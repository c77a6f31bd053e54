"""A widened pair computes what the narrow one computes."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.contracts.drafter_support import head_of, make_drafter
from tests.models.lean_support import build
from tests.support import tiny_target
from vocabforge.core.errors import UsageError
from vocabforge.decode.engine import Decoder
from vocabforge.decode.proposers import tree_proposer
from vocabforge.decode.tree import TreeSettings
from vocabforge.evaluate.bench_decoding_settings import DecodingBenchConfig, modes_of
from vocabforge.evaluate.widen import widen_drafter, widen_target
from vocabforge.models.kv_cache import causal_mask
from vocabforge.models.lean import LeanModel, load_target
from vocabforge.models.target import HFTarget


def logits(model: LeanModel, ids: list[int]) -> torch.Tensor:
    slots = torch.arange(len(ids))
    mask = causal_mask(slots, slots)
    out = model.forward(torch.tensor([ids]), slots[None], cache=model.new_cache(32), slots=slots, mask=mask)
    return model.logits(out.hidden)


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


@pytest.mark.parametrize("head", ["target", "own", "reduced"])
def test_a_wider_drafter_drafts_the_same(head: str, tmp_path: Path) -> None:
    narrow = load_target(tiny_target(tmp_path))
    drafter = make_drafter("eagle3", tmp_path, HFTarget.load(tmp_path), head)
    wide = widen_target(narrow, 2)
    other = widen_drafter(drafter, wide, 2)
    results = []
    for model, one in ((narrow, drafter), (wide, other)):
        proposer = tree_proposer(model, one, head_of(one), TreeSettings(3, 2, 12))
        results.append(Decoder(model, proposer).generate([3, 17, 8, 44], max_new_tokens=40, stop_ids=()))
    assert results[0].token_ids == results[1].token_ids
    assert results[0].accept_lengths == results[1].accept_lengths


def test_only_what_can_be_widened_is(tmp_path: Path) -> None:
    config = DecodingBenchConfig(target=tmp_path, draft_model=tmp_path, drafter=tmp_path, widen=2)
    assert modes_of(config) == ("plain", "eagle3")
    with pytest.raises(UsageError, match="cannot be widened"):
        modes_of(config.model_copy(update={"modes": ("n-gram",)}))
