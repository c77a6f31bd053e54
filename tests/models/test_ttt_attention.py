"""Blockwise TTT attention against the eager reference: values, every gradient, and what is held."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tensor_memory import TensorMemory
from torch import Tensor

from vocabforge.core.errors import ConfigError, DataError
from vocabforge.models.target.documents import document_mask
from vocabforge.models.ttt import attention as ttt_attention_module
from vocabforge.models.ttt import flex as ttt_flex
from vocabforge.models.ttt.attention import EAGER_LENGTH, TTTState, choose_attention, ttt_attention
from vocabforge.models.ttt.merged import Documents, merge, merged_attention


@dataclass
class Case:
    """Queries, keys and values of an unroll's newest step, and the gradient of its output."""

    document: Tensor
    q: Tensor
    k: list[Tensor]
    v: list[Tensor]
    above: Tensor

    def run(self, attention: str) -> list[Tensor]:
        """Output and the gradients of q, all k and all v."""
        leaves = [x.detach().requires_grad_() for x in (self.q, *self.k, *self.v)]
        out = attend(attention, self.document, *leaves)
        return [out.detach(), *torch.autograd.grad(out, leaves, self.above.to(out.dtype))]


def attend(attention: str, document: Tensor, q: Tensor, *kv: Tensor) -> Tensor:
    """Attention of the newest of some steps: all keys, then all values."""
    keys, values = kv[: len(kv) // 2], kv[len(kv) // 2 :]
    state = TTTState(document, attention, list(keys[:-1]), list(values[:-1]))
    return ttt_attention(q, keys[-1], values[-1], state)


def case(
    document: Tensor,
    steps: int,
    *,
    heads: int = 4,
    kv: int = 2,
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
) -> Case:
    g = torch.Generator().manual_seed(seed)
    batch, length = document.shape

    def normal(count: int) -> Tensor:
        return torch.randn(batch, count, length, 8, generator=g, dtype=dtype)

    return Case(
        document,
        normal(heads),
        [normal(kv) for _ in range(steps)],
        [normal(kv) for _ in range(steps)],
        normal(heads),
    )


def packed(*rows: list[tuple[int, int]]) -> Tensor:
    """Document numbers (B, T) from (number, length) runs."""
    return torch.tensor([[number for number, length in row for _ in range(length)] for row in rows])


def assert_same(found: list[Tensor], expected: list[Tensor], tolerance: float = 1e-5) -> None:
    assert len(found) == len(expected)
    for a, b in zip(found, expected):
        torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)


PACKED = packed([(0, 3), (1, 14), (2, 9), (0, 4)], [(1, 1), (2, 22), (3, 7)], [(4, 1), (5, 22), (6, 7)])


@pytest.mark.parametrize("steps", [1, 2, 5])
@pytest.mark.parametrize("kv", [1, 2, 4])
def test_packed_padded_grouped_rows(steps: int, kv: int) -> None:
    rows = case(PACKED, steps, kv=kv)
    assert_same(rows.run("merged"), rows.run("eager"))


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_any_shape(data: st.DataObject) -> None:
    length = data.draw(st.integers(1, 70))
    rows = []
    for _ in range(data.draw(st.integers(1, 3))):
        cuts = sorted(data.draw(st.sets(st.integers(1, max(1, length - 1)), max_size=4)) | {length})
        numbers = [data.draw(st.sampled_from([0, i + 1])) for i in range(len(cuts))]
        rows.append([(n, b - a) for n, a, b in zip(numbers, [0, *cuts], cuts) if b > a])
    kv = data.draw(st.sampled_from([1, 3, 6]))
    made = case(
        packed(*rows), data.draw(st.integers(1, 8)), heads=6, kv=kv, seed=data.draw(st.integers(0, 99))
    )
    assert_same(made.run("merged"), made.run("eager"))


def test_large_scores_do_not_overflow() -> None:
    rows = case(PACKED, 3)
    rows.q *= 60
    found = rows.run("merged")
    assert all(torch.isfinite(x).all() for x in found)
    assert_same(found[:1], rows.run("eager")[:1], 1e-4)


@pytest.mark.parametrize("steps", [1, 2])
def test_gradcheck(steps: int) -> None:
    rows = case(packed([(1, 3), (0, 1), (2, 2)]), steps, heads=2, kv=1, dtype=torch.float64)
    leaves = [x.requires_grad_() for x in (rows.q, *rows.k, *rows.v)]
    assert torch.autograd.gradcheck(partial(attend, "merged", rows.document), leaves)


def test_bf16_is_accumulated_in_fp32() -> None:
    """Against fp64 on the same rounded inputs: not worse than one rounding of inputs and output."""
    rows = case(packed([(1, 40), (2, 200)]), 4, dtype=torch.bfloat16)
    exact = Case(
        rows.document,
        rows.q.double(),
        *([x.double() for x in xs] for xs in (rows.k, rows.v)),
        rows.above.double(),
    )
    found, truth = rows.run("merged"), exact.run("eager")
    assert all(x.dtype == torch.bfloat16 for x in found)
    for ours, theirs in zip(found, truth):
        assert float((ours.double() - theirs).norm() / theirs.norm()) < 8e-3


def test_autocast_casts_the_newest_step_once() -> None:
    rows = case(packed([(1, 80)]), 2)
    before, state = rows.k[0], TTTState(rows.document, "eager")
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = attend("merged", rows.document, rows.q, rows.k[0], rows.v[0])
        ttt_attention(rows.q.bfloat16(), rows.k[0], rows.v[0], state)
    assert out.dtype == state.k[0].dtype == torch.bfloat16
    assert before.dtype == torch.float32


def test_a_value_that_is_not_finite_stays_visible() -> None:
    rows = case(packed([(1, 9), (2, 9)]), 2)
    rows.v[0][0, :, 3] = torch.nan
    out = rows.run("merged")[0]
    assert torch.isnan(out[0, :, 3:9]).all()
    assert torch.isfinite(out[0, :, 9:]).all(), "another document does not see it"


def test_no_score_matrix_is_held() -> None:
    """At T = 2,048 nothing of (T, T) is made, and what is kept grows with T alone."""
    length, heads, steps = 2048, 2, 3
    small = 16 * length * heads * 8 * 4  # a handful of (B, h, T, D) tensors
    with TensorMemory() as memory:
        rows = case(packed([(1, 1500), (2, 500), (0, 48)]), steps, heads=heads, kv=1)
        made = memory.live
        rows.run("merged")
    assert memory.largest <= length * heads * 8 * 4
    assert memory.peak - made < small < heads * length * length * 4 / 4


def test_a_document_in_two_places_is_refused() -> None:
    with pytest.raises(DataError, match="in two places"):
        Documents.find(packed([(1, 3), (2, 3), (1, 2)]))
    Documents.find(packed([(0, 1), (1, 3), (0, 3), (2, 2)]))


def test_neighbouring_rows_of_one_cut_are_taken_together() -> None:
    found = Documents.find(packed([(1, 5), (2, 3)], [(3, 5), (4, 3)], [(1, 5), (0, 3)]))
    assert [(s.rows.start, s.rows.stop, s.tokens.start, s.padding) for s in found.segments] == [
        (0, 2, 0, False),
        (0, 2, 5, False),
        (2, 3, 0, False),
        (2, 3, 5, True),
    ]
    assert found.first.tolist() == [[0] * 5 + [5] * 3] * 2 + [[0] * 5 + [5, 6, 7]]


def test_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    cpu, cuda = torch.device("cpu"), torch.device("cuda")
    assert choose_attention("auto", cpu, EAGER_LENGTH, 64) == "eager"
    assert choose_attention("auto", cpu, EAGER_LENGTH + 1, 64) == "merged"
    monkeypatch.setattr(ttt_attention_module, "has_triton", lambda: True)
    assert choose_attention("auto", cuda, 10, 64) == "flex"
    assert choose_attention("auto", cuda, 10, 8) == "eager", "flex takes no head this small"
    monkeypatch.setattr(ttt_attention_module, "has_triton", lambda: False)
    assert choose_attention("auto", cuda, 10, 64) == "eager"
    assert choose_attention("flex", cuda, 10, 64) == "flex"
    for asked, device in (("flex", cpu), ("merged", cuda)):
        with pytest.raises(ConfigError, match="does not train on this device"):
            choose_attention(asked, device, 10, 64)
    with pytest.raises(ConfigError, match="no such attention"):
        choose_attention("quick", cpu, 10, 64)


@pytest.mark.parametrize("reach", [None, 70, 200])
@pytest.mark.parametrize("length", [100, 128, 300, 513])
def test_flex_block_mask_lists_what_is_visible(length: int, reach: int | None) -> None:
    g = torch.Generator().manual_seed(length)
    rows = []
    for _ in range(3):
        cuts = sorted({*torch.randint(1, length, (3,), generator=g).tolist(), length})
        rows.append([(i % 3, b - a) for i, (a, b) in enumerate(zip([0, *cuts], cuts))])
    rows[0] = [(1, length)]
    rows[1] = [(n or 9, m) for n, m in rows[1]]
    rows = [[(n and 10 * i + n, m) for i, (n, m) in enumerate(row)] for row in rows]
    document = packed(*rows)
    t = torch.arange(length)
    mask = ttt_flex.block_mask(Documents.find(document).first, reach)
    visible = document_mask(document)[:, 0]
    if reach is not None:
        visible = visible & (t[:, None] - t < reach)
    rule = mask.mask_mod(torch.arange(3)[:, None, None], torch.tensor(0), t[None, :, None], t[None, None])
    assert torch.equal(rule, visible)
    count = -(-length // ttt_flex.BLOCK)
    padded = torch.zeros(3, count * ttt_flex.BLOCK, count * ttt_flex.BLOCK, dtype=torch.bool)
    padded[:, :length, :length] = visible
    blocks = padded.unflatten(2, (count, -1)).unflatten(1, (count, -1))  # (B, Q, q, K, k)
    some, whole = blocks.any(dim=4).any(dim=2), blocks.all(dim=4).all(dim=2)
    listed = torch.zeros_like(some)
    full = torch.zeros_like(some)
    for counts, indices, into in (
        (mask.kv_num_blocks, mask.kv_indices, listed),
        (mask.full_kv_num_blocks, mask.full_kv_indices, full),
    ):
        for b in range(3):
            for i in range(count):
                into[b, i, indices[b, 0, i, : int(counts[b, 0, i])].long()] = True
    assert not (listed & full).any()
    assert (some <= (listed | full)).all(), "a visible block is missing"
    assert (full <= whole).all(), "a block that is not wholly visible is marked full"


def test_flex_merge_has_the_gradients_of_the_reference() -> None:
    """The merge after a kernel that gives (out, lse): the kernel is replaced by plain tensors here."""
    rows = case(PACKED, 3)
    leaves = [x.detach().requires_grad_() for x in (rows.q, *rows.k, *rows.v)]
    q, k, v = leaves[0], leaves[1:4], leaves[4:]
    score = q @ k[0].repeat_interleave(2, 1).transpose(-1, -2) * 8**-0.5
    score = score.masked_fill(~document_mask(rows.document), -torch.inf)
    lse = score.logsumexp(-1)
    attended = (score - lse[..., None]).exp() @ v[0].repeat_interleave(2, 1)
    out = ttt_flex._Merge.apply(q, attended, lse, *k[1:], *v[1:])
    found = [out.detach(), *torch.autograd.grad(out, leaves, rows.above)]
    assert_same(found, rows.run("eager"))
    assert torch.equal(merge(q, attended, lse, [], [])[0], attended)


@pytest.mark.filterwarnings("ignore:flex_attention called")
@pytest.mark.parametrize("steps", [1, 3])
def test_flex_forward_by_its_documented_interface(monkeypatch: pytest.MonkeyPatch, steps: int) -> None:
    """Uncompiled, a CPU runs the forward pass: rule, log-sum-exp and grouped heads are as the merge expects."""
    from torch.nn.attention.flex_attention import flex_attention

    monkeypatch.setattr(ttt_flex, "flex_kernel", lambda: flex_attention)
    rows = case(packed([(1, 190), (2, 90), (0, 20)], [(1, 300)]), steps)
    documents = Documents.find(rows.document)
    with torch.no_grad():
        found = [
            ttt_flex.flex_attention(rows.q, rows.k[:n], rows.v[:n], documents) for n in range(1, steps + 1)
        ]
        expected = [merged_attention(rows.q, rows.k[:n], rows.v[:n], documents) for n in range(1, steps + 1)]
    assert_same(found, expected)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="flex attention trains on CUDA only")
@pytest.mark.parametrize("steps", [1, 3])
def test_on_cuda(steps: int) -> None:
    document = packed([(1, 190), (2, 90), (0, 20)], [(1, 300)])
    made = case(document, steps)
    wide = [torch.randn(*x.shape[:3], 64) for x in (made.q, *made.k, *made.v, made.above)]
    on_device = [x.cuda() for x in wide]
    rows = Case(
        document.cuda(), on_device[0], on_device[1 : 1 + steps], on_device[1 + steps : -1], on_device[-1]
    )
    assert_same(rows.run("flex"), rows.run("eager"), 1e-3)
