"""What k-means is made of: unit rows and first centroids."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest

from tests.vocab.kmeans_support import ArrayRows, groups, units
from vocabforge.core.errors import DataError
from vocabforge.vocab.clusters.kmeans import plus_plus
from vocabforge.vocab.clusters.rows import unit_rows


def test_plus_plus_spreads():
    """50 rows of one direction and one each of seven others: k-means++ takes all eight directions."""
    rows = units(np.eye(8)[[0] * 50 + list(range(1, 8))])
    for seed in range(5):
        start = plus_plus(rows, 8, np.random.default_rng(seed))
        assert len({tuple(row) for row in start.tolist()}) == 8


def test_plus_plus_draws_by_distance():
    """With one row at cosine 0.9 and one at 0.1 to the first, they are second in the ratio 0.1 : 0.9."""
    matrix = np.array([[1, 0], [0.9, np.sqrt(1 - 0.81)], [0.1, -np.sqrt(0.99)]])
    rows, seen = units(matrix), np.zeros(3)
    for seed in range(600):
        start = plus_plus(rows, 2, np.random.default_rng(seed))
        pair = [int(np.abs(matrix - row).sum(1).argmin()) for row in start]
        if pair[0] == 0:
            seen[pair[1]] += 1
    assert seen[0] == 0
    assert seen[1] / seen.sum() == pytest.approx(0.1, abs=0.06)


def test_zero_rows_are_left_out():
    matrix, _ = groups(50)
    matrix[[3, 17]] = 0.0
    matrix[20] = 1e-35  # too small for float32 to have a direction
    rows = units(matrix)
    assert rows.zero_ids.tolist() == [3, 17, 20]
    assert len(rows) == 47
    np.testing.assert_allclose(np.linalg.norm(rows.block(0, 47), axis=1), 1.0, atol=1e-6)
    np.testing.assert_array_equal(rows.block(2, 5), rows.pick(np.array([2, 3, 4])))
    np.testing.assert_allclose(rows.block(3, 4)[0], matrix[4] / np.linalg.norm(matrix[4]), atol=1e-6)


def test_rows_beyond_the_count_are_never_read():
    matrix, _ = groups(20)
    padded = np.concatenate([matrix, np.full((4, matrix.shape[1]), np.nan, dtype=np.float32)])
    digests = [hashlib.sha256(), hashlib.sha256()]
    unit_rows(ArrayRows(padded), 20, name="x", digest=digests[0])
    unit_rows(ArrayRows(matrix), 20, name="x", digest=digests[1])
    assert digests[0].hexdigest() == digests[1].hexdigest() == hashlib.sha256(matrix.tobytes()).hexdigest()


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_rows_that_are_not_finite_are_named(bad):
    matrix, _ = groups(50)
    matrix[7, 3] = bad
    with pytest.raises(DataError, match="row 7"):
        units(matrix)
