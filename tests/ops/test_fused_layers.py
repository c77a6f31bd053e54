"""Layers of target and drafter on ``fused_linear`` and ``fused_qkv`` give what they give on the ops replaced."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from unittest.mock import patch

import pytest
import torch
from torch import Tensor

from tests.decode.drafting import make_drafter
from tests.kernel_counts import counted
from tests.models.lean_support import build
from tests.models.test_layers_on_ops import FORMS, passes
from vocabforge.models.kv_cache import TreeMask
from vocabforge.models.lean.model import LeanModel, load_target
from vocabforge.models.target.hf import HFTarget
from vocabforge.ops import backend as backends
from vocabforge.ops.fused_linear import layers_backend

TARGETS = [
    "llama-bias",
    "llama-head-dim",
    "mistral-window",
    "qwen2",
    "qwen3-bias-window",
    "qwen3-moe-some-layers",
]


@contextmanager
def switched(backend: str | None) -> Iterator[None]:
    """Layers take the fused ops with this backend."""
    with patch.object(backends, "FUSED_LAYERS", backend):
        yield


@torch.no_grad()
def forward(model: LeanModel, batch: int = 2) -> list[Tensor]:
    """Nine positions of each row, then three nodes of a tree; hidden states, two layers' outputs, the cache."""
    random, cache, found = torch.Generator().manual_seed(7), model.new_cache(20, batch), []
    for count, start in ((9, 0), (3, 9)):
        slots = torch.arange(start, start + count).expand(batch, -1)
        mask = TreeMask.chain(slots)
        if start:  # a root and two siblings
            words = torch.tensor([[[1], [3], [5]]]).expand(batch, -1, -1)
            places = torch.tensor([[9, 10, 10]]).expand(batch, -1)
            mask = TreeMask(slots[:, 0].contiguous(), words, places)
        ids = torch.randint(model.config.vocab_size, (batch, count), generator=random)
        out = model(ids, mask.positions, cache=cache, slots=slots, mask=mask, aux_layers=(0, 2))
        assert out.aux is not None
        found += [out.hidden, out.aux]
    return [*found, cache.k, cache.v]


@pytest.mark.parametrize("case", TARGETS)
def test_a_target_is_computed(case: str, tmp_path: Path) -> None:
    build(case, tmp_path)
    model = load_target(tmp_path)
    expected = forward(model)
    with switched("reference"):
        for got, other in zip(forward(model), expected):
            torch.testing.assert_close(got, other, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("form", FORMS)
def test_a_drafter_is_computed(form: str, tiny_folder: Path) -> None:
    drafter = make_drafter(form, tiny_folder, HFTarget.load(tiny_folder), seed=2)
    expected = passes(drafter, True)
    with switched("reference"):
        for got, other in zip(passes(drafter, True), expected):
            torch.testing.assert_close(got, other, rtol=1e-5, atol=1e-5)


def as_near(emulated: list[Tensor], plain: list[Tensor], exact: list[Tensor]) -> None:
    """Both are computed in bf16: neither may be much farther from what fp32 gives."""
    for ours, theirs, true in zip(emulated, plain, exact):
        assert ours.isfinite().all()
        far, usual = float((ours.float() - true).norm()), float((theirs.float() - true).norm())
        assert far < 1.25 * usual + 1e-3 * float(true.norm())


@pytest.mark.parametrize("case", ["llama-bias", "qwen3-bias-window"])
def test_a_target_is_computed_on_the_emulator(
    emulated: Callable[[str], None], schedule: int, case: str, tmp_path: Path
) -> None:
    emulated("fused_linear")
    build(case, tmp_path)
    model = load_target(tmp_path, dtype=torch.bfloat16)
    plain, exact = forward(model), forward(load_target(tmp_path))
    with switched("emulated"):
        as_near(forward(model), plain, exact)


@pytest.mark.parametrize("form", ["eagle1", "eagle3"])
def test_a_drafter_is_computed_on_the_emulator(
    emulated: Callable[[str], None], schedule: int, form: str, tiny_folder: Path
) -> None:
    emulated("fused_linear")
    drafter = make_drafter(form, tiny_folder, HFTarget.load(tiny_folder), seed=2).bfloat16()
    plain, exact = passes(drafter, True), passes(drafter.float(), True)
    drafter.bfloat16()
    with switched("emulated"):
        as_near(passes(drafter, True), plain, exact)


def fewer(run: Callable[[], object]) -> int:
    """Kernels that the switch saves; an op is one."""
    counts = []
    for backend in (None, "reference"):
        with switched(backend):
            run()  # merges the matrices
            with counted() as kernels:
                run()
            counts.append(kernels.count.total())
    return counts[0] - counts[1]


def test_a_layer_is_five_kernels_in_place_of_nine(tiny_folder: Path, tmp_path: Path) -> None:
    """Of two passes: two norms, rotation and SwiGLU of each layer, and sums that no norm makes."""
    build("llama", tmp_path)
    target = load_target(tmp_path)
    assert fewer(lambda: forward(target)) == 2 * (3 * 4 + 2)
    for form, saved in (("eagle1", 4), ("eagle3", 3)):  # EAGLE-3 norms and joins before its layer
        drafter = make_drafter(form, tiny_folder, HFTarget.load(tiny_folder))
        assert fewer(partial(passes, drafter, True)) == 2 * saved


def test_many_rows_keep_the_ops_that_are_replaced() -> None:
    for rows, d, taken in ((64, 8, True), (65, 8, False), (3, 12, False)):
        for backend in (None, "reference"):
            with switched(backend):
                found = layers_backend(torch.empty(rows, d))
            assert found == (backend if taken else None)
