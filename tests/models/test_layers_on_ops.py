"""A drafter's layers in few kernels, as a GPU runs them, give what PyTorch's calls give; and their number."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch import Tensor

from tests.decode.drafting import VARIANTS, make_drafter
from tests.kernel_counts import counted
from vocabforge.models.drafters.eagle_layers import DraftLayer
from vocabforge.models.kv_cache import CacheView, TreeMask
from vocabforge.models.target.hf import HFTarget

FORMS = ["eagle1", *(one for one in VARIANTS if one.startswith("eagle3")), "eagle3"]


def passes(drafter: Any, fits: bool) -> list[Tensor]:
    """Four committed positions in each of two rows, then two nodes of a tree behind each."""
    c, random = drafter.config, torch.Generator().manual_seed(5)
    dtype = next(drafter.parameters()).dtype
    cache = drafter.new_cache(2, 12)
    found: list[Tensor] = []
    with patch.object(DraftLayer, "fits", lambda self, x, mask: fits), torch.no_grad():
        for count, start in ((4, 0), (2, 4)):
            slots = torch.arange(start, start + count).expand(2, -1)
            mask = TreeMask.chain(slots)
            if start:  # siblings
                words = torch.tensor([[[1], [2]]]).expand(2, -1, -1)
                mask = TreeMask(slots[:, 0].contiguous(), words, torch.full((2, 2), 4))
            ids = torch.randint(0, c.vocab_size, (2, count), generator=random)
            g = torch.randn(2, count, c.hidden_size, generator=random).to(dtype)
            found += drafter.extend(ids, g, mask.positions, CacheView(cache, slots, mask))
    return [*found, cache.k, cache.v]


@pytest.mark.parametrize("form", FORMS)
def test_every_form_is_computed(form: str, tiny_folder: Path) -> None:
    drafter = make_drafter(form, tiny_folder, HFTarget.load(tiny_folder), seed=2)
    for ours, theirs in zip(passes(drafter, True), passes(drafter, False)):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("form", "most"), [("eagle1", 14), ("eagle3", 12)])
def test_a_step_is_few_kernels(form: str, most: int, tiny_folder: Path) -> None:
    drafter = make_drafter(form, tiny_folder, HFTarget.load(tiny_folder))
    passes(drafter, True)  # merges the matrices
    cache = drafter.new_cache(1, 4)
    slots = torch.zeros(1, 1, dtype=torch.int64)
    mask = TreeMask(slots[:, 0], torch.ones(1, 1, 1, dtype=torch.int64), slots)
    g = torch.zeros(1, 1, drafter.config.hidden_size)
    with torch.no_grad(), counted() as kernels:
        drafter.extend(slots, g, slots, CacheView(cache, slots, mask))
    assert kernels.count.total() <= most, kernels.count
