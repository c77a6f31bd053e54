"""Spherical k-means against brute force, its parts and invariants, and agreement of thread counts."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.vocab.kmeans_support import groups, units
from vocabforge.core.errors import DataError
from vocabforge.vocab.clusters import kmeans
from vocabforge.vocab.clusters import rows as kmeans_rows
from vocabforge.vocab.clusters.kmeans import (
    KMeansOptions,
    plus_plus,
    spherical_kmeans,
    sweep_rows,
    torch_search,
)


def plain_kmeans(matrix, centroids, iterations):
    """The textbook: every product in float64, no blocks, no backend."""
    x = matrix / np.linalg.norm(matrix, axis=1, keepdims=True)
    for _ in range(iterations):
        labels = (x @ centroids.T).argmax(1)
        sums = np.stack([x[labels == m].sum(0) for m in range(len(centroids))])
        centroids = sums / np.linalg.norm(sums, axis=1, keepdims=True)
    return labels, centroids, np.einsum("nd,nd->n", x, centroids[labels])


def test_the_textbook_gives_the_same(monkeypatch):
    monkeypatch.setattr(kmeans_rows, "_BLOCK_ROWS", 37)  # several blocks, the last one short
    matrix, _ = groups()
    rows = units(matrix)
    options = KMeansOptions(12, iterations=4, seed=3)
    start = plus_plus(rows, 12, np.random.default_rng([3, 0]))
    result = spherical_kmeans(rows, options)
    labels, centroids, cosine = plain_kmeans(matrix.astype(np.float64), start.astype(np.float64), 4)
    assert result.refilled == 0, "the case is one without dead clusters"
    np.testing.assert_array_equal(result.assignment, labels)
    np.testing.assert_allclose(result.centroids, centroids, atol=1e-6)
    np.testing.assert_allclose(result.objective, cosine.mean(), atol=1e-6)
    np.testing.assert_allclose(result.cosine, [cosine[labels == m].mean() for m in range(12)], atol=1e-6)


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    count=st.integers(2, 60),
    share=st.floats(0.05, 1.0),
    distinct=st.integers(1, 40),
)
def test_what_always_holds(seed, count, share, distinct):
    """Also with fewer directions than clusters, where clusters die all the time."""
    rng = np.random.default_rng(seed)
    matrix = rng.standard_normal((distinct, 5))[rng.integers(0, distinct, count)] * rng.uniform(
        0.5, 2, (count, 1)
    )
    clusters = max(1, int(share * count))
    result = spherical_kmeans(units(matrix), KMeansOptions(clusters, 8, seed=seed))
    assert sorted(set(result.assignment.tolist())) == list(range(clusters)), "no cluster is empty"
    np.testing.assert_allclose(np.linalg.norm(result.centroids, axis=1), 1.0, atol=1e-5)
    assert (np.diff(result.history) > -1e-6).all(), "the objective never falls"
    unit = matrix / np.linalg.norm(matrix, axis=1, keepdims=True)
    cosine = np.einsum("nd,nd->n", unit, result.centroids[result.assignment])
    np.testing.assert_allclose(result.objective, cosine.mean(), atol=1e-5)


def fingerprint(result):
    return hashlib.sha256(result.assignment.tobytes() + result.centroids.tobytes()).hexdigest()


def noisy(centroids):
    rng = np.random.default_rng(0)

    def search(rows):
        scores = rows.astype(np.float64) @ centroids.T
        scores += rng.uniform(-2e-6, 2e-6, scores.shape)  # what another summation order may do
        ids = np.argsort(-scores, axis=1)[:, :2]
        return ids, np.take_along_axis(scores, ids, 1).astype(np.float32)

    return search


def test_float32_noise_changes_nothing(monkeypatch):
    def sampled(rows, clusters, rng, step):  # starts that die, unlike those of k-means++
        return rows.pick(np.sort(rng.choice(len(rows), size=clusters, replace=False)))

    monkeypatch.setattr(kmeans, "plus_plus", sampled)
    matrix, _ = groups(500, 10, width=8, noise=1.5)
    matrix[50:80] = matrix[50]
    twice = np.concatenate([matrix, matrix])  # also exact ties between rows that are re-seeded
    options = KMeansOptions(60, 12)
    expected = spherical_kmeans(units(twice), options)
    assert expected.refilled > 0
    assert fingerprint(spherical_kmeans(units(twice), options, noisy)) == fingerprint(expected)


def test_runs_and_thread_counts_agree_bit_by_bit():
    rows = units(np.random.default_rng(0).standard_normal((3000, 96)))
    before, told = torch.get_num_threads(), set()
    try:
        for threads in (1, 1, 2, 3):
            torch.set_num_threads(threads)
            result = spherical_kmeans(rows, KMeansOptions(50, 6))
            told.add((fingerprint(result), result.history))
    finally:
        torch.set_num_threads(before)
    assert len(told) == 1


@pytest.mark.parametrize("ties", [(0, 1), (3, 7)])
def test_exact_ties_go_to_the_lower_cluster(ties):
    centroids = np.linalg.qr(np.random.default_rng(1).standard_normal((8, 8)))[0].astype(np.float32)
    centroids[ties[1]] = centroids[ties[0]]
    rows = units(centroids[[ties[0]] * 5])
    sweep = sweep_rows(rows, centroids, torch_search(centroids))
    assert sweep.labels.tolist() == [ties[0]] * 5


def test_dead_clusters_take_the_farthest_different_rows():
    axes = np.eye(6, dtype=np.float32)
    near = axes[0] + 0.05 * axes[1:3]
    far = np.stack([axes[0] + axes[3], axes[0] + axes[3], axes[0] + 0.9 * axes[4]])
    rows = units(np.concatenate([np.repeat(axes[:1], 5, 0), near, far]))
    centroids = np.stack([axes[0], axes[5], -axes[0]])
    sweep = sweep_rows(rows, centroids, torch_search(centroids))
    assert sweep.sizes.tolist() == [10, 0, 0]
    assert kmeans.refill(rows, centroids, sweep) == 2
    assert sweep.labels.tolist() == [0] * 7 + [1, 0, 2], "the second copy of the farthest row is passed over"
    assert sweep.sizes.tolist() == [8, 1, 1]
    block = rows.block(0, 10)
    np.testing.assert_allclose(sweep.sums, [block[sweep.labels == m].sum(0) for m in range(3)], atol=1e-6)


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


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_rows_that_are_not_finite_are_named(bad):
    matrix, _ = groups(50)
    matrix[7, 3] = bad
    with pytest.raises(DataError, match="row 7"):
        units(matrix)
