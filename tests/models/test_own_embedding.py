"""A drafter's stored input embedding against the target's, which is the one that is read."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from vocabforge.core.errors import MismatchError
from vocabforge.models.drafter_io import TargetTensors, check_own_embedding

DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def table() -> Tensor:
    """(V, H) fp32, from large values to ones below fp16's smallest normal."""
    torch.manual_seed(0)
    return torch.randn(50, 16) * torch.logspace(-9, 1, 50)[:, None]


def shared(embedding: Tensor) -> TargetTensors:
    return TargetTensors(embedding, embedding)


@pytest.mark.parametrize("kept", DTYPES)
@pytest.mark.parametrize("stored", DTYPES)
@pytest.mark.parametrize("target", DTYPES)
def test_roundings_of_one_table_are_equal(
    target: torch.dtype, stored: torch.dtype, kept: torch.dtype
) -> None:
    """Rounded by the target's checkpoint, by the drafter's, and then held in a third dtype that is no coarser."""
    if kept != torch.float32 and kept != target:
        return
    embedding = table().to(target).to(kept)
    check_own_embedding(table().to(stored), shared(embedding), "folder")


@pytest.mark.parametrize("stored", DTYPES)
@pytest.mark.parametrize("target", DTYPES)
def test_a_trained_embedding_is_refused(target: torch.dtype, stored: torch.dtype) -> None:
    other = table()
    other[[25, 40]] *= 1.05
    with pytest.raises(MismatchError, match=r"2 of 50 rows differ, by at most \d") as error:
        check_own_embedding(other.to(stored), shared(table().to(target)), "folder")
    assert "embedding of its own" in str(error.value)
    assert "folder" in str(error.value)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_single_value_one_step_away_is_refused(dtype: torch.dtype) -> None:
    other = table().to(dtype)
    other[40, 3] = torch.nextafter(other[40, 3], torch.tensor(1e3, dtype=dtype))
    with pytest.raises(MismatchError, match="1 of 50 rows differ"):
        check_own_embedding(other, shared(table().to(dtype)), "folder")


def test_another_targets_shape_is_refused() -> None:
    with pytest.raises(MismatchError, match="does not have the target's shape") as error:
        check_own_embedding(torch.zeros(51, 16), shared(table()), "folder")
    assert "(51, 16)" in str(error.value)
    assert "(50, 16)" in str(error.value)


def test_values_that_are_no_numbers_are_refused() -> None:
    other = table()
    other[3, 3] = float("nan")
    with pytest.raises(MismatchError, match="rows differ"):
        check_own_embedding(other, shared(table()), "folder")
