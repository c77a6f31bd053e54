"""Spherical k-means: planted groups, what always holds, seeds and rows that are equal."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vocabforge.core.errors import DataError, UsageError
from vocabforge.vocab.clusters.kmeans import KMeansOptions, UnitRows, spherical_kmeans, unit_rows


def groups(count=600, clusters=12, width=24, noise=0.4, seed=0):
    """Rows of different lengths around a few directions, and the direction of each."""
    rng = np.random.default_rng(seed)
    centres = rng.standard_normal((clusters, width))
    which = rng.integers(0, clusters, count)
    rows = centres[which] + noise * rng.standard_normal((count, width))
    return (rows * rng.uniform(0.1, 5.0, (count, 1))).astype(np.float32), which


def units(matrix) -> UnitRows:
    return unit_rows(np.array(matrix, dtype=np.float32), name="matrix")


def test_planted_groups_are_found_whatever_the_rows_lengths():
    matrix, which = groups(2000, 6, noise=0.1)
    result = spherical_kmeans(units(matrix), KMeansOptions(6, seed=1))
    pairs = {(int(a), int(b)) for a, b in zip(which, result.assignment, strict=True)}
    assert len(pairs) == 6
    assert result.history[-1] > 0.98
    assert result.converged


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    count=st.integers(2, 60),
    share=st.floats(0.05, 1.0),
    distinct=st.integers(1, 40),
)
def test_what_always_holds(seed, count, share, distinct):
    """Also with fewer directions than clusters, as for the equal rows of unused tokens."""
    rng = np.random.default_rng(seed)
    matrix = rng.standard_normal((distinct, 5))[rng.integers(0, distinct, count)] * rng.uniform(
        0.5, 2, (count, 1)
    )
    clusters = max(1, int(share * count))
    result = spherical_kmeans(units(matrix), KMeansOptions(clusters, 8, seed=seed))
    assert sorted(set(result.assignment.tolist())) == list(range(clusters)), "no cluster is empty"
    np.testing.assert_allclose(np.linalg.norm(result.centroids, axis=1), 1.0, atol=1e-4)
    unit = matrix / np.linalg.norm(matrix, axis=1, keepdims=True)
    cosine = np.einsum("nd,nd->n", unit, result.centroids[result.assignment])
    np.testing.assert_allclose(result.history[-1], cosine.mean(), atol=1e-4)
    means = [cosine[result.assignment == m].mean() for m in range(clusters)]
    np.testing.assert_allclose(result.cosine, means, atol=1e-4)


def test_a_seed_decides_and_no_row_is_left_out():
    matrix = np.random.default_rng(0).standard_normal((3000, 16))  # faiss would sample 256 rows a cluster
    first, again, other = (
        spherical_kmeans(units(matrix), KMeansOptions(4, 6, seed=seed)) for seed in (0, 0, 1)
    )
    np.testing.assert_array_equal(first.assignment, again.assignment)
    assert first.history == again.history
    assert not np.array_equal(first.assignment, other.assignment)
    unit = matrix / np.linalg.norm(matrix, axis=1, keepdims=True)
    sums = np.stack([unit[first.assignment == m].sum(0) for m in range(4)])
    np.testing.assert_allclose(first.centroids, sums / np.linalg.norm(sums, axis=1, keepdims=True), atol=1e-5)
    assert first.history[-1] >= first.history[0]
    assert len(first.history) == 7


def test_equal_rows_share_no_more_clusters_than_are_needed():
    matrix, _ = groups(400, 8, noise=0.2)
    matrix[100:300] = matrix[100]
    result = spherical_kmeans(units(matrix), KMeansOptions(30, 25))
    assert len(set(result.assignment[100:300].tolist())) <= 2
    assert (np.bincount(result.assignment) > 0).all()


def test_more_clusters_than_rows_are_refused():
    with pytest.raises(UsageError, match="fewer rows than clusters"):
        spherical_kmeans(units(np.eye(3)), KMeansOptions(4))


def test_two_packages_that_provide_faiss_are_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The module would be that of the package installed last, whatever its GPU support."""
    for name in ("faiss-gpu-cu12", "faiss-cpu"):
        info = tmp_path / f"{name.replace('-', '_')}-1.14.2.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.14.2\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(
        UsageError, match=r"several packages(.|\n)*faiss-cpu, faiss-gpu-cu12(.|\n)*pip uninstall"
    ):
        spherical_kmeans(units(np.eye(4)), KMeansOptions(2))


def test_a_missing_faiss_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "faiss", None)
    with pytest.raises(UsageError, match=r"needs faiss(.|\n)*pip install faiss-cpu"):
        spherical_kmeans(units(np.eye(3)), KMeansOptions(2))


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_rows_that_are_not_finite_are_named(bad):
    matrix, _ = groups(50)
    matrix[7, 3] = bad
    with pytest.raises(DataError, match="row 7"):
        units(matrix)
