"""What tests of the products with head rows share."""

from __future__ import annotations

import torch
from torch import Tensor


def assert_logits_close(got: Tensor, expected: Tensor) -> None:
    """Both fp32 and summed in fp32, in another order; nothing where the other has nothing."""
    assert got.shape == expected.shape
    assert got.dtype == torch.float32
    assert torch.equal(got == -torch.inf, expected == -torch.inf)
    assert torch.allclose(got, expected, rtol=1e-4, atol=1e-3)
