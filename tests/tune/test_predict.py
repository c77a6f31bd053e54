"""Tokens a second from acceptance and latency: by hand, with bounds."""

from __future__ import annotations

import numpy as np
import pytest

from tests.tune.support import FULL, Formula, row
from vocabforge.tune.search.predict import mean_prefix, predict, predict_plain, prefix_of
from vocabforge.tune.types import TreeSetting

TREE = TreeSetting(topk=2, depth=1, total=6)
CYCLE = 1e-2 + 6e-3 + 2 * 261e-5  # of the tree, by the formula


def test_one_request_is_the_mean_of_the_prompts_rates() -> None:
    rows = [row(31, 10, prompt=10), row(61, 30, prompt=50)]
    found = predict(rows, FULL, TREE, Formula())
    rates = [31 / (2e-3 + 10 * CYCLE), 61 / (1e-2 + 30 * CYCLE)]
    assert found.value == pytest.approx(np.mean(rates))
    assert found.cycle.value == pytest.approx(CYCLE)
    assert found.accepted.value == pytest.approx(90 / 40)


def test_requests_side_by_side_share_cycles_and_not_prompts() -> None:
    rows = [row(31, 10, prompt=10), row(61, 30, prompt=50)]
    found = predict(rows, FULL, TREE, Formula(), batch=4)
    cycle = 1e-2 + 4 * 6e-3 + 2 * 261e-5
    assert found.value == pytest.approx(92 / (2e-3 + 1e-2 + 40 * cycle / 4))


def test_plain_decoding_takes_a_step_a_token_behind_the_first() -> None:
    found = predict_plain([row(41, 40, prompt=100)], Formula())
    assert found.value == pytest.approx(41 / (1e-2 + 40 * 1e-2))
    assert found.accepted.value == 1.0


def test_each_prompt_has_its_own_prefix() -> None:
    rows = [row(40, 10, prompt=100), row(40, 10, prompt=1000)]
    assert [prefix_of(one) for one in rows] == [120, 1020]
    assert mean_prefix(rows) == 570
    found = predict(rows, FULL, TREE, Formula(by_prefix=1e-4, prompt=0.0))
    rates = [40 / (10 * (CYCLE + 1e-4 * prefix)) for prefix in (120, 1020)]
    assert found.value == pytest.approx(np.mean(rates))


def test_the_interval_holds_both_errors() -> None:
    rows = [row(31, cycles) for cycles in (8, 10, 12, 14, 9, 11)]
    widths = []
    for off in (0.0, 0.2):
        found = predict(rows, FULL, TREE, Formula(off=off)).tokens_per_s
        assert found.low is not None
        assert found.high is not None
        widths.append(found.high - found.low)
    alone = predict([row(31, 10)] * 6, FULL, TREE, Formula(off=0.2)).tokens_per_s
    assert alone.low is not None
    assert alone.high is not None
    both = alone.high - alone.low
    assert max(widths[0], both) < widths[1] < widths[0] + both + 1e-9
