"""Other libraries beside our ops: skipped with the reason if absent, compared with the reference if not."""

from __future__ import annotations

import builtins
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from types import ModuleType
from typing import Any

import pytest
import torch
from bench import run as bench_kernels
from bench.cases import OP_BENCHES, op_cases, target_sample
from bench.cases.types import SMALL, TRITON, OpCase, outputs_of
from bench.ops import library_figures, measure_library
from bench.parts import FigureJournal
from bench.table import markdown
from bench.timing import DeviceCeilings
from torch import Tensor
from torch.nn import functional as F

from vocabforge.ops.target_sample import target_weights_reference

OPTIONS = replace(bench_kernels.SMALL, ceilings=DeviceCeilings(1e9, 1e9, 1e-6), measure=1e-4)
CPU = torch.device("cpu")


def case_of(op: str, word: str = "") -> OpCase:
    return next(one for one in op_cases(op, SMALL) if one.libraries and word in one.name)


def shown(*rows: dict[str, Any]) -> str:
    parts = {"libraries": {str(number): row for number, row in enumerate(rows)}}
    return markdown({"ceilings": DeviceCeilings(1e9, 1e9, 1e-6).to_dict(), "parts": parts, "open": {}})


@pytest.fixture
def absent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "triton", None)
    monkeypatch.setitem(sys.modules, "flashinfer", None)
    monkeypatch.delitem(sys.modules, TRITON, raising=False)


@pytest.mark.usefixtures("absent")
def test_an_absent_library_is_skipped_with_the_reason() -> None:
    figures = dict(library_figures(OPTIONS))
    assert {name.partition(",")[0] for name in figures} == {"Triton", "FlashInfer", "torch._scaled_mm"}
    journal = FigureJournal()
    for name, make in figures.items():
        assert callable(make)
        if not name.startswith("torch"):
            journal.measure(name, make)
    assert journal.open == {}
    assert bench_kernels.failures({"libraries": journal}) == {}
    assert all("import of " in row["skipped"] and "timing" not in row for row in journal.rows.values())
    text = shown(*journal.rows.values())
    count = sum(row["library"] == "Triton" for row in journal.rows.values())
    assert f"| {count} cases | Triton | – | – | – | skipped: import of triton" in text
    assert text.count("skipped: ") == 2


def test_every_op_that_another_library_computes_is_compared() -> None:
    found = {(library, op) for op in OP_BENCHES for case in op_cases(op, SMALL) for library in case.libraries}
    assert found == {
        *(("Triton", op) for op in ("indexed_logits", "union_logits", "draft_topk")),
        *(("FlashInfer", op) for op in ("tree_attention", "target_sample")),
        ("torch._scaled_mm", "ranker_select"),
    }


class FakeAttention(ModuleType):
    """What FlashInfer's wrapper promises of one request, in torch; ``wrong`` leaves out the mask."""

    def __init__(self, *, wrong: bool) -> None:
        super().__init__("flashinfer")
        self.calls: list[str] = []
        module = self

        class BatchPrefillWithPagedKVCacheWrapper:
            def __init__(self, workspace: Tensor, kv_layout: str) -> None:
                assert (workspace.dtype, kv_layout) == (torch.uint8, "HND")

            def plan(
                self, query: Tensor, pages: Tensor, page: Tensor, last: Tensor, heads: int, kv_heads: int,
                size: int, page_size: int, *, custom_mask: Tensor | None, sm_scale: float, q_data_type: Any,
            ) -> None:  # fmt: skip
                module.calls.append("plan")
                assert (pages.tolist(), page.tolist()) == ([0, 1], [0])
                self.last, self.scale = int(last), sm_scale
                shape = (int(query[1]), self.last)
                self.mask = None if custom_mask is None or wrong else custom_mask.view(shape)

            def run(self, q: Tensor, cache: tuple[Tensor, Tensor]) -> Tensor:
                module.calls.append("run")
                keys, values = (part[:, :, : self.last] for part in cache)
                found = F.scaled_dot_product_attention(
                    q.transpose(0, 1)[None], keys, values, self.mask, scale=self.scale, enable_gqa=True
                )
                return found[0].transpose(0, 1)

        self.BatchPrefillWithPagedKVCacheWrapper = BatchPrefillWithPagedKVCacheWrapper


@pytest.mark.parametrize("rows", [1, SMALL.rows])
def test_flashinfer_attention_is_checked_and_timed_without_plan(
    monkeypatch: pytest.MonkeyPatch, rows: int
) -> None:
    fake = FakeAttention(wrong=False)
    monkeypatch.setitem(sys.modules, "flashinfer", fake)
    case = op_cases("tree_attention", replace(SMALL, rows=rows))[0]
    row = measure_library(case, "FlashInfer", OPTIONS)
    assert row["ratio"] == pytest.approx(row["timing"]["us"] / row["ours"]["us"])
    plans = 1 + OPTIONS.protocol().most_copies  # the check's inputs, then one a set of inputs
    assert fake.calls.count("plan") <= plans < fake.calls.count("run")
    assert "without plan()" in shown(row)


def test_a_wrong_library_is_named_and_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "flashinfer", FakeAttention(wrong=True))
    row = measure_library(case_of("tree_attention"), "FlashInfer", OPTIONS)
    assert row["problem"].startswith("wrong result: output 0: relative error")
    assert "timing" not in row
    assert "wrong result: output 0" in shown(row)


def test_a_library_that_raises_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "flashinfer", ModuleType("flashinfer"))
    row = measure_library(case_of("tree_attention"), "FlashInfer", OPTIONS)
    assert row["problem"].startswith("ImportError: cannot import name 'BatchPrefill")


class FakeSampling(ModuleType):
    """FlashInfer's sampling in torch: each step as its documentation defines it."""

    def __init__(self, forget: str = "") -> None:
        super().__init__("flashinfer")
        self.sampling, self.forget = self, forget
        self.calls: list[str] = []

    def softmax(self, logits: Tensor, temperature: Tensor) -> Tensor:
        return (logits / temperature[:, None]).softmax(-1)

    def _renormed(self, name: str, distribution: Tensor, keep: Tensor) -> Tensor:
        self.calls.append(name)
        distribution = distribution if name == self.forget else distribution.masked_fill(~keep, 0.0)
        return distribution / distribution.sum(-1, keepdim=True)

    def top_k_renorm_probs(self, distribution: Tensor, top_k: Tensor) -> Tensor:
        least = distribution.sort(-1, descending=True).values.gather(1, top_k[:, None].long() - 1)
        return self._renormed("top-k", distribution, distribution >= least)

    def top_p_renorm_probs(self, distribution: Tensor, top_p: Tensor) -> Tensor:
        ordered, order = distribution.sort(-1, descending=True)
        keep = ordered.cumsum(-1) - ordered < top_p[:, None]
        return self._renormed("top-p", distribution, torch.zeros_like(keep).scatter(1, order, keep))

    def top_p_sampling_from_probs(
        self, distribution: Tensor, top_p: Tensor, seed: Tensor, offset: Tensor
    ) -> Tensor:
        return self._drawn(self.top_p_renorm_probs(distribution, top_p))

    def min_p_sampling_from_probs(
        self, distribution: Tensor, min_p: Tensor, seed: Tensor, offset: Tensor
    ) -> Tensor:
        floor = distribution.amax(-1, keepdim=True) * min_p[:, None]
        return self._drawn(self._renormed("min-p", distribution, distribution >= floor))

    @staticmethod
    def _drawn(distribution: Tensor) -> Tensor:
        """The least probable token that is left: the hardest draw."""
        return distribution.masked_fill(distribution == 0, 2.0).argmin(-1).int()


@pytest.mark.parametrize(
    ("kind", "steps"), [("R=12 top-p", ["top-p"]), ("R=12 top-k top-p min-p", ["top-k", "top-p", "min-p"])]
)
def test_flashinfer_sampling_draws_what_the_transform_leaves(
    monkeypatch: pytest.MonkeyPatch, kind: str, steps: list[str]
) -> None:
    fake = FakeSampling()
    monkeypatch.setitem(sys.modules, "flashinfer", fake)
    row = measure_library(case_of("target_sample", kind), "FlashInfer", OPTIONS)
    assert row["timing"]["us"] > 0
    assert fake.calls[: len(steps)] == steps
    for forgotten in steps:
        monkeypatch.setitem(sys.modules, "flashinfer", FakeSampling(forgotten))
        row = measure_library(case_of("target_sample", kind), "FlashInfer", OPTIONS)
        assert "outside of what top-k, top-p and min-p leave" in row["problem"], forgotten


def test_tokens_outside_of_the_vocabulary_are_found() -> None:
    case = case_of("target_sample", "R=12 top-p")
    inputs = case.inputs(CPU, torch.float32, 1)
    distribution = target_weights_reference(
        *(inputs[one] for one in ("logits", "temperature", "top_k", "top_p", "min_p"))
    )
    expected = (distribution.argmax(-1),)
    check = partial(target_sample._in_support, inputs, expected=expected)
    assert check((distribution.argmax(-1).int(),)) is None
    assert "no token" in str(check((distribution.argmax(-1) + 10_000,)))
    assert "12 of 12" in str(check((distribution.argmin(-1),)))


def scaled_product(precision: float) -> Callable[..., Tensor]:
    def product(
        left: Tensor, columns: Tensor, sizes: Tensor, scale: Tensor, *, out_dtype: Any, use_fast_accum: bool
    ) -> Tensor:
        assert left.dtype == columns.dtype == torch.float8_e4m3fn
        assert (sizes.shape, scale.shape) == ((len(left), 1), (1, columns.shape[1]))
        assert columns.stride() == (1, len(columns))  # the product wants the second one by columns
        found = left.float() @ columns.float() * sizes * scale
        return (found + precision * torch.randn_like(found)).to(out_dtype)

    return product


def test_fp8_products_of_torch_are_judged_by_recall(monkeypatch: pytest.MonkeyPatch) -> None:
    case = case_of("ranker_select", "r=16 k=64 fp8")
    monkeypatch.setattr(torch, "_scaled_mm", scaled_product(0.0))
    row = measure_library(case, "torch._scaled_mm", OPTIONS)
    assert row["timing"]["us"] > 0
    monkeypatch.setattr(torch, "_scaled_mm", scaled_product(100.0))
    row = measure_library(case, "torch._scaled_mm", OPTIONS)
    assert "recall of 0." in row["problem"]


@pytest.mark.parametrize("rows", [1, SMALL.rows, 20])
@pytest.mark.parametrize("op", ["indexed_logits", "union_logits", "draft_topk"])
def test_triton_ops_give_what_the_reference_gives(
    monkeypatch: pytest.MonkeyPatch, op: str, rows: int
) -> None:
    """In Triton's interpreter; compiled ones are checked on a GPU before they are timed."""
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    pytest.importorskip("triton", reason="no Triton: pip install triton runs these on a CPU")
    monkeypatch.delitem(sys.modules, TRITON, raising=False)
    shape = replace(SMALL, rows=rows, vocab=5003)
    if op == "draft_topk":
        shape = replace(shape, static=4100)  # more than two chunks
    cases = [one for one in op_cases(op, shape) if one.libraries]
    assert cases
    for case in cases:
        inputs = dict(case.inputs(CPU, torch.float32, 5))  # the interpreter has no bf16
        if op != "draft_topk":  # what is no row is no candidate
            listed = inputs["ids" if op == "indexed_logits" else "rows"]
            listed.view(-1)[[0, 3]] = torch.tensor([-1, 5003], dtype=listed.dtype)
        got = outputs_of(case.libraries["Triton"].prepare(inputs)())
        assert case.problem(inputs, got, outputs_of(case.reference(inputs))) is None


def test_nothing_is_imported_before_it_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    real = builtins.__import__

    def note(name: str, *rest: Any, **more: Any) -> Any:
        asked.append(name.partition(".")[0])
        return real(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", note)
    library_figures(OPTIONS)
    assert not {"triton", "flashinfer"} & set(asked)
