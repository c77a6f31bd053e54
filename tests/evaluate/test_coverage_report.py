"""The figures of a coverage study, its plot and its tables."""

from __future__ import annotations

import numpy as np
import pytest

from tests.vocab.table_factory import make_table
from vocabforge.core.errors import DataError, MismatchError, UsageError
from vocabforge.evaluate.reports.coverage import render_coverage
from vocabforge.evaluate.reports.coverage_data import measure_coverage
from vocabforge.vocab.counts.mixtures import TablePart
from vocabforge.vocab.subset.coverage import knee
from vocabforge.vocab.subset.subset import make_subset

COUNTS = [0, 50, 30, 10, 5, 3, 1, 1, 0, 0]


def study(**changes):
    table = make_table(
        COUNTS, {"a": [0, 50, 0, 10, 5, 3, 1, 1, 0, 0], "<b>": [0, 0, 30, 0, 0, 0, 0, 0, 0, 0]}
    )
    heldout = make_table([0, 5, 1, 0, 0, 0, 0, 0, 4, 0])
    subset = make_subset(table.counts, 4, [0], fingerprint="f", schedule=(4, 4, 2))
    settings = {"heldout": [TablePart("test", heldout)], "vocabs": {"r4": subset}, **changes}
    return measure_coverage(TablePart("counts", table), settings["heldout"], settings["vocabs"])


def test_figures_by_hand():
    results = study()
    assert results["forced"] == [0]
    texts = {text["name"]: text for text in results["texts"]}
    assert list(texts) == ["all counted", "a", "<b>", "test"]
    at = results["sizes"].index(4)  # the draft vocabulary's size is a row: ids 0, 1, 2, 3
    assert [texts[name]["coverage"][at] for name in texts] == pytest.approx([0.9, 60 / 70, 1.0, 0.6])
    assert [texts[name]["own_coverage"][at] for name in texts] == pytest.approx([0.95, 68 / 70, 1.0, 1.0])
    assert texts["test"]["without_count"] == 0.4
    assert texts["all counted"]["unseen_estimate"] == 0.02
    (vocab,) = results["vocabularies"]
    assert vocab["coverage"]["test"] == 0.6
    assert vocab["best"]["test"] == 1.0
    assert vocab["by_step"]["all counted"] == pytest.approx([0.9, 0.9, 0.5])


def test_plot() -> None:
    assert render_coverage(study()).startswith(b"\x89PNG")


def test_knee_by_hand():
    """Of eight ids the line has 1/3 of its rise behind 2 ids and 2/3 behind 4."""
    counts = np.array([30, 20, 20, 20, 4, 3, 2, 1])  # 4 ids: 0.9 inside, 0.3 + 0.7 * 2/3 = 0.77 on the line
    assert knee(np.arange(8), counts) == 4
    assert knee(np.arange(8), np.array([20, 40, 10, 10, 5, 5, 5, 5])) == 2
    assert knee(np.arange(1), np.array([3])) == 1


def test_refusals():
    empty = make_table([0] * 10)
    with pytest.raises(DataError, match="no tokens"):
        measure_coverage(TablePart("empty", empty))
    with pytest.raises(DataError, match="no tokens"):
        study(heldout=[TablePart("empty", empty)])
    with pytest.raises(MismatchError, match="different tokenizers"):
        study(heldout=[TablePart("other", make_table(COUNTS, fingerprint="g"))])
    with pytest.raises(MismatchError, match="different tokenizers"):
        study(vocabs={"v": make_subset(np.array(COUNTS), 3, [], fingerprint="g")})
    with pytest.raises(UsageError, match="one name"):
        study(heldout=[TablePart("a", make_table(COUNTS))])
