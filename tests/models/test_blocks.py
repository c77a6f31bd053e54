"""Attention of a block of drafts: the reference loop, and flex attention's rule."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from vocabforge.models.ttt import flex as ttt_flex
from vocabforge.models.ttt.blocks import block_attention, block_positions, tokens_behind
from vocabforge.models.ttt.merged import Documents

HEADS, KEY_HEADS, WIDTH, SIZE = 4, 2, 16, 3
DOCUMENT = torch.tensor([[1] * 9 + [2] * 8 + [0] * 3, [1] * 20])
ANCHORS = torch.tensor([[8, 2, 12, -1], [0, 19, 7, 11]])


def case() -> tuple[Tensor, tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    torch.manual_seed(4)
    rows, length = ANCHORS.shape[1] * SIZE, DOCUMENT.shape[1]
    q = torch.randn(2, HEADS, rows, WIDTH, dtype=torch.float64)
    context, own = (
        tuple(torch.randn(2, KEY_HEADS, n, WIDTH, dtype=torch.float64) for _ in range(2))
        for n in (length, rows)
    )
    return q, context, own  # type: ignore[return-value]


def by_definition(
    q: Tensor, context: tuple[Tensor, Tensor], own: tuple[Tensor, Tensor], *, causal: bool
) -> Tensor:
    """One row, one head at a time."""
    out = torch.zeros_like(q)
    for b, a in [(b, a) for b in range(2) for a in range(ANCHORS.shape[1])]:
        anchor = int(ANCHORS[b, a])
        if anchor < 0:
            continue
        number = DOCUMENT[b, anchor]
        far = [s for s in range(anchor + 1) if DOCUMENT[b, s] == number]
        for j in range(SIZE):
            near = [a * SIZE + i for i in range(j + 1 if causal else SIZE)]
            for h in range(HEADS):
                g = h // (HEADS // KEY_HEADS)
                keys = torch.cat([context[0][b, g, far], own[0][b, g, near]])
                values = torch.cat([context[1][b, g, far], own[1][b, g, near]])
                row = q[b, h, a * SIZE + j]
                out[b, h, a * SIZE + j] = (keys @ row / WIDTH**0.5).softmax(0) @ values
    return out


def real(x: Tensor) -> Tensor:
    return x.unflatten(2, (ANCHORS.shape[1], SIZE)).transpose(1, 2)[ANCHORS >= 0]


@pytest.mark.filterwarnings("ignore:flex_attention called")
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("attention", ["eager", "flex"])
def test_a_block_sees_its_document_up_to_its_anchor_and_itself(attention, causal, monkeypatch):
    from torch.nn.attention.flex_attention import flex_attention

    monkeypatch.setattr(ttt_flex, "flex_kernel", lambda: flex_attention)  # uncompiled, a CPU runs it
    q, context, own = case()
    first = Documents.find(DOCUMENT).first
    with torch.no_grad():
        found = block_attention(q, context, own, ANCHORS, first, causal=causal, attention=attention)
    expected = by_definition(q, context, own, causal=causal)
    torch.testing.assert_close(real(found), real(expected), rtol=1e-6, atol=1e-6)


def test_positions_and_tokens_of_blocks() -> None:
    position = torch.cat([torch.arange(9), torch.arange(8), torch.zeros(3, dtype=torch.int64)])[None]
    anchors = torch.tensor([[8, 10, -1]])
    places = block_positions(anchors, position, 3, 10).unflatten(1, (3, 3))
    assert places[0, :2].tolist() == [[9, 9, 9], [2, 3, 4]], (
        "the last position of the table, then a document's own"
    )
    ids = torch.arange(100, 120)[None]
    assert tokens_behind(ids, torch.tensor([[8, 18]]), 1).tolist() == [[109, 119]]
    assert tokens_behind(ids, torch.tensor([[8, 18]]), 2).tolist() == [[110, 0]]
