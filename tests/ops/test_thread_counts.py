"""The ops for CPUs give the same bits with any number of threads: decoding may change it while it goes on."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from vocabforge.ops.few_rows import MOST_ROWS, linear

pytestmark = pytest.mark.usefixtures("native_cpu")


@pytest.fixture(autouse=True)
def _same_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("rows", range(1, MOST_ROWS + 1))
@pytest.mark.parametrize(("depth", "columns"), [(256, 4096), (771, 1301)])
@torch.inference_mode()
def test_a_product_does_not_depend_on_the_threads(rows: int, depth: int, columns: int) -> None:
    random = torch.Generator().manual_seed(rows)
    x, w = torch.randn(rows, depth, generator=random), torch.randn(columns, depth, generator=random)
    found = []
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        found.append(linear(x, w, backend="native"))
    assert all(torch.equal(found[0], one) for one in found[1:])
