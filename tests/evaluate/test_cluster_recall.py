"""Recall and mass of the first m clusters, against loops over tokens."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from tests.vocab.kmeans_support import ArrayRows
from vocabforge.evaluate.acceptance import cluster_recall as module
from vocabforge.evaluate.acceptance.cluster_recall import (
    RANKINGS,
    cluster_recall,
    ladder,
    tally,
)
from vocabforge.vocab.clusters.backends import choose_backend
from vocabforge.vocab.clusters.clusters import Clusters, make_clusters
from vocabforge.vocab.clusters.kmeans import KMeansOptions
from vocabforge.vocab.clusters.rows import unit_rows

V, D, M, N = 40, 6, 7, 11


@pytest.fixture(scope="module")
def case() -> tuple[np.ndarray, np.ndarray, Clusters]:
    """Head rows, two of them padding that would win every argmax; hidden states; clusters."""
    rng = np.random.default_rng(0)
    head = rng.standard_normal((V + 2, D)).astype(np.float32)
    head[V:] *= 100.0
    hidden = (2.0 * rng.standard_normal((N, D))).astype(np.float32)
    rows = unit_rows(ArrayRows(head), V, name="head")
    clusters = make_clusters(
        rows, KMeansOptions(M, 5), choose_backend("torch")[0], fingerprint="f", head={"width": D, "padded": 2}
    )
    return head, hidden, clusters


def brute_force(head, hidden, clusters, ranking, m):
    recall = mass = tokens = 0.0
    for h in hidden.astype(np.float64):
        z = [float(head[v].astype(np.float64) @ h) for v in range(V)]
        total = sum(np.exp(value) for value in z)
        p = [np.exp(value) / total for value in z]
        inside = [[v for v in range(V) if clusters.assignment[v] == c] for c in range(M)]
        key = {
            "logit": lambda c, z=z, inside=inside: max(z[v] for v in inside[c]),
            "mass": lambda c, p=p, inside=inside: sum(p[v] for v in inside[c]),
            "centroid": lambda c, h=h: float(clusters.centroids[c] @ h),
        }[ranking]
        chosen = sorted(range(M), key=lambda c, key=key: (-key(c), c))[:m]
        short = {v for c in chosen for v in inside[c]}
        recall += max(range(V), key=lambda v, z=z: z[v]) in short
        mass += sum(p[v] for v in short)
        tokens += len(short)
    return recall / len(hidden), mass / len(hidden), tokens / len(hidden)


def test_figures_equal_brute_force(case, monkeypatch):
    head, hidden, clusters = case
    monkeypatch.setattr(module, "_ROWS", 9)  # several blocks of rows
    monkeypatch.setattr(module, "_LOGIT_BYTES", 4 * V * 4)  # and batches of four contexts
    steps = tuple(range(1, M + 1))
    rows = cluster_recall(hidden, ArrayRows(head), clusters, steps)
    assert [(row["ranking"], row["m"]) for row in rows] == list(itertools.product(RANKINGS, steps))
    for row in rows:
        expected = brute_force(head, hidden, clusters, row["ranking"], row["m"])
        assert (row["recall"], row["mass"], row["tokens"]) == pytest.approx(expected, abs=1e-5)


def test_what_the_definitions_imply(case):
    head, hidden, clusters = case
    rows = {(row["ranking"], row["m"]): row for row in cluster_recall(hidden, ArrayRows(head), clusters)}
    steps = ladder(M)
    assert rows["logit", 1]["recall"] == 1.0, "by construction"
    assert rows["centroid", 1]["recall"] < 1.0, "the case tells rankings apart"
    for ranking in RANKINGS:
        last = rows[ranking, M]
        assert (last["recall"], last["mass"], last["tokens"]) == pytest.approx((1.0, 1.0, V))
        for less, more in itertools.pairwise(steps):
            assert rows[ranking, less]["mass"] < rows[ranking, more]["mass"]
            assert rows[ranking, less]["recall"] <= rows[ranking, more]["recall"]
        for m in steps:
            assert rows[ranking, m]["mass"] <= rows["mass", m]["mass"] + 1e-9, "no order has more mass"


def test_ties_go_to_the_lower_cluster():
    scores = np.array([[1.0, 2.0, 2.0, 0.0]])
    mass = np.array([[0.1, 0.2, 0.3, 0.4]])
    sizes = np.array([10, 20, 30, 40])
    table = tally(scores, mass, np.array([2]), sizes, (1, 2, 4))
    np.testing.assert_allclose(table, [[0, 0.2, 20], [1, 0.5, 50], [1, 1.0, 100]])
