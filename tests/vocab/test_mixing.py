"""Addition and weighted mixture of frequency tables."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.vocab.table_factory import make_table
from vocabforge.core.errors import DataError, UsageError
from vocabforge.corpus.tokenizer.special_tokens import SpecialTokens
from vocabforge.vocab.counts.mixtures import (
    MIXTURE_TOTAL,
    TablePart,
    choose_domains,
    merge_tables,
    mix_tables,
)
from vocabforge.vocab.counts.table import load_counts, save_counts

V = 12
rows = st.lists(st.integers(0, 50), min_size=V, max_size=V).filter(any)
weights = st.floats(1e-3, 10, allow_nan=False)


@given(st.lists(rows, min_size=1, max_size=4), st.randoms())
def test_addition_commutes(counts, random):
    parts = [TablePart(f"t{n}", make_table(row)) for n, row in enumerate(counts)]
    merged = merge_tables(parts)
    np.testing.assert_array_equal(merged.counts, np.sum(counts, axis=0))
    assert (merged.documents, merged.bytes) == (len(parts), 10 * len(parts))
    random.shuffle(parts)
    np.testing.assert_array_equal(merge_tables(parts).counts, merged.counts)


@settings(deadline=None)
@given(st.lists(st.tuples(rows, weights), min_size=1, max_size=4))
def test_mixture_is_the_definition(given_parts):
    parts = [TablePart(f"t{n}", make_table(row), weight) for n, (row, weight) in enumerate(given_parts)]
    mixed = mix_tables(parts)
    total = sum(Fraction(repr(part.weight)) for part in parts)
    for token in range(V):
        exact = sum(
            Fraction(repr(part.weight)) / total * int(part.table.counts[token]) / part.table.tokens
            for part in parts
        )
        assert abs(exact * MIXTURE_TOTAL - int(mixed.counts[token])) <= Fraction(1, 2)
        assert (mixed.counts[token] > 0) == any(part.table.counts[token] > 0 for part in parts)
    assert abs(mixed.tokens - MIXTURE_TOTAL) <= V
    assert mixed.mode == "mixture"
    np.testing.assert_array_equal(mix_tables(parts[::-1]).counts, mixed.counts)


def test_round_trip_and_domains(tmp_path):
    a = make_table([3, 1, 0], {"x": [1, 1, 0], "y": [2, 0, 0]}, sources={"f": "1"})
    b = make_table([0, 4, 4], {"y": [0, 4, 4]}, sources={"f": "2"})
    c = make_table([1, 1, 1], sources={"h": "3"}, special=SpecialTokens(eos=(2,)))
    merged = merge_tables([TablePart("a", a), TablePart("b", b), TablePart("c", c)])
    assert {name: part.counts.tolist() for name, part in merged.domains.items()} == {
        "x": [1, 1, 0],
        "y": [2, 4, 4],
        "other": [1, 1, 1],
    }
    assert merged.sources == {"f": "1", "f (of b)": "2", "h": "3"}
    assert merged.special.eos == (0, 2)
    for name, table in {
        "merged": merged,
        "mixed": mix_tables([TablePart("a", a, 1), TablePart("b", b, 2)]),
    }.items():
        save_counts(table, tmp_path / name)
        again = load_counts(tmp_path / name)
        np.testing.assert_array_equal(again.counts, table.counts)
        assert (again.origin, list(again.domains)) == (table.origin, list(table.domains))
    named = merge_tables([TablePart("a", a), TablePart("b", b)], as_domains=True)
    assert {name: part.counts.tolist() for name, part in named.domains.items()} == {
        "a": [3, 1, 0],
        "b": [0, 4, 4],
    }


def test_refusals():
    table = make_table([1, 2, 0], sources={"a.txt": "same"})
    again = make_table([1, 2, 0], sources={"copy.txt": "same"})
    with pytest.raises(DataError, match=r"counted twice[\s\S]*copy.txt in b, a.txt in a"):
        merge_tables([TablePart("a", table), TablePart("b", again)])
    assert merge_tables([TablePart("a", table), TablePart("b", again)], allow_repeats=True).tokens == 6
    with pytest.raises(DataError, match="different modes"):
        merge_tables([TablePart("a", table), TablePart("b", make_table([1, 1, 1], mode="assistant"))])
    mixture = mix_tables([TablePart("a", table)])
    with pytest.raises(DataError, match="a mixture cannot be added"):
        merge_tables([TablePart("a", table), TablePart("b", mixture)])
    with pytest.raises(DataError, match="without tokens"):
        mix_tables([TablePart("a", make_table([0, 0, 0]))])
    for weight in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(UsageError, match="not positive"):
            mix_tables([TablePart("a", table, weight)])
    with pytest.raises(DataError, match="weight is too small"):
        mix_tables([TablePart("a", table, 1.0), TablePart("b", table, 1e-18)])


def test_choose_domains():
    table = make_table([5, 5, 1], {"code": [4, 0, 0], "wiki": [1, 5, 1]}, sources={"a": "1"})
    assert choose_domains(table, {"wiki": None}).counts.tolist() == [1, 5, 1]
    assert choose_domains(table, {"wiki": None, "code": None}).counts.tolist() == [5, 5, 1]
    mixed = choose_domains(table, {"wiki": 0.5, "code": 0.5})
    assert (mixed.counts / MIXTURE_TOTAL).tolist() == pytest.approx([0.5 / 7 + 0.5, 2.5 / 7, 0.5 / 7])
    with pytest.raises(UsageError, match="some have none"):
        choose_domains(table, {"wiki": 0.5, "code": None})
    with pytest.raises(UsageError, match="not positive"):
        choose_domains(table, {"wiki": 0.0})
