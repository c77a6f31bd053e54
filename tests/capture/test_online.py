"""Online capture: what is kept, and what may share a pass."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.capture.capture_support import packed
from tests.worlds import tiny_target
from vocabforge.models.target.hf import HFTarget
from vocabforge.train.capture.online import OnlineCapture, to_tensors

CPU = torch.device("cpu")
ROWS = packed([7, 20, 9, 31, 3, 14, 32, 28, 5, 11], 32)


class Counting(HFTarget):
    """Remembers how many rows each call had."""

    def capture(self, input_ids: torch.Tensor, *others: Any) -> Any:
        self.__dict__.setdefault("calls", []).append(len(input_ids))
        return super().capture(input_ids, *others)


@pytest.fixture
def target(tmp_path: Path) -> Any:
    return Counting.load(tiny_target(tmp_path / "t"))


def ask(source: OnlineCapture, split: str, rows: list[int]) -> Any:
    return source(to_tensors(ROWS, rows, CPU), [(split, row) for row in rows])


def test_row_by_row_keeps_rows_in_any_company(target: Any) -> None:
    source = OnlineCapture(target, 1 << 30)
    first = ask(source, "train", [0, 1, 2])
    second = ask(source, "train", [2, 3, 0])
    assert target.calls == [1, 1, 1, 1]
    assert torch.equal(first.features[0], second.features[2])
    again = ask(OnlineCapture(target, 0), "train", [2, 3, 0])
    assert torch.equal(again.features, second.features)
    assert torch.equal(again.hidden, second.hidden)


def test_the_budget_is_kept(target: Any) -> None:
    size = 32 * (3 * 32 + 32) * 4
    source = OnlineCapture(target, 2 * size)
    for _ in range(2):
        ask(source, "train", [0, 1, 2, 3])
    assert target.calls == [1] * 6


def test_together_is_a_function_of_the_batch_and_never_mixes(target: Any) -> None:
    source = OnlineCapture(target, 1 << 30, together=True)
    first = ask(source, "train", [0, 1, 2])
    assert target.calls == [3]
    # Rows seen before are computed again in their new company, as after a resume.
    mixed = ask(source, "train", [2, 3, 0])
    fresh = ask(OnlineCapture(target, 0, together=True), "train", [2, 3, 0])
    assert target.calls == [3, 3, 3]
    assert torch.equal(mixed.features, fresh.features)
    alone = ask(OnlineCapture(target, 0), "train", [0, 1, 2])
    scale = float(alone.features.abs().max())
    torch.testing.assert_close(first.features, alone.features, rtol=0, atol=1e-5 * scale)


def test_together_keeps_the_batches_of_evaluations(target: Any) -> None:
    source = OnlineCapture(target, 2 * 32 * (3 * 32 + 32) * 4, together=True)
    ask(source, "train", [0, 1])  # takes none of the memory, which holds one batch
    one = ask(source, "heldout", [0, 1])
    two = ask(source, "heldout", [0, 1])
    ask(source, "heldout", [1, 0])
    assert target.calls == [2, 2, 2]
    assert torch.equal(one.hidden, two.hidden)


def test_facts_of_what_may_teach_are_kept_with_the_states(target: Any) -> None:
    source = OnlineCapture(target, 1 << 30, facts=True)
    rows = to_tensors(ROWS, [0, 1, 2], CPU)
    rows.loss_mask[:, 5] = False
    keys = [("train", row) for row in range(3)]
    first, second = source(rows, keys), source(rows, keys)
    assert target.calls == [1, 1, 1]
    logits = target.logits(first.hidden)
    for b, t in itertools.product(range(3), range(32)):
        pair = slice(t, t + 2)
        document = rows.document[b, pair].tolist()
        teaches = t < 31 and bool(rows.loss_mask[b, pair].all()) and document == [max(document[0], 1)] * 2
        for batch in (first, second):
            assert int(batch.facts.best[b, t]) == (int(logits[b, t].argmax()) if teaches else 0)
            expected = logits[b, t].logsumexp(-1) if teaches else torch.tensor(0.0)
            torch.testing.assert_close(batch.facts.log_sum[b, t], expected)
    assert OnlineCapture(target, 1 << 30, facts=True, together=True)(rows, keys).facts is None, "seen once"


def test_row_by_row_is_the_default_on_a_cpu(target: Any) -> None:
    ask(OnlineCapture(target, 0), "train", [0, 1])
    assert target.calls == [1, 1]
