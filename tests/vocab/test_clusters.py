"""The clusters artefact: canonical order, verification, figures."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vocabforge.core.artifact import open_artifact
from vocabforge.core.errors import ArtifactError, MismatchError
from vocabforge.vocab.clusters.clusters import (
    Clusters,
    canonical,
    cluster_figures,
    disagreement,
    load_clusters,
    make_clusters,
    save_clusters,
    separation,
)
from vocabforge.vocab.clusters.kmeans import KMeansOptions, unit_rows


def made(count=200, clusters=10, width=6, zeros=(), seed=0) -> Clusters:
    matrix = np.random.default_rng(seed).standard_normal((count, width)).astype(np.float32)
    matrix[list(zeros)] = 0.0
    rows = unit_rows(matrix, name="matrix")
    head = {"digest": "ab" * 32, "rows": count + 3, "padded": 3, "width": width, "dtype": "F32"}
    chosen = KMeansOptions(clusters, 5, seed=seed)
    return make_clusters(rows, chosen, fingerprint="f" * 64, head=head)


@settings(max_examples=60, deadline=None)
@given(labels=st.lists(st.integers(0, 9), min_size=1, max_size=80))
def test_the_canonical_order(labels):
    _, assignment = np.unique(labels, return_inverse=True)  # every cluster is in use
    count = int(assignment.max()) + 1
    order, permutation, offsets = canonical(assignment, count)
    assert sorted(permutation.tolist()) == list(range(len(labels)))
    slabs = [permutation[a:b].tolist() for a, b in pairwise(offsets)]
    assert [set(slab) for slab in slabs] == [set(np.flatnonzero(assignment == old)) for old in order]
    assert all(slab == sorted(slab) and slab for slab in slabs)
    assert [slab[0] for slab in slabs] == sorted(slab[0] for slab in slabs)
    inverse = np.argsort(permutation)
    assert (permutation[inverse] == np.arange(len(labels))).all()
    assert (inverse[permutation] == np.arange(len(labels))).all()


def test_a_cluster_is_a_slab_of_the_permuted_head():
    made_ = made()
    head = np.random.default_rng(0).standard_normal((200, 6)).astype(np.float32)
    slabs = head[made_.permutation]
    for cluster in range(len(made_)):
        a, b = made_.offsets[cluster], made_.offsets[cluster + 1]
        np.testing.assert_array_equal(slabs[a:b], head[made_.assignment == cluster])
        np.testing.assert_array_equal(made_.permutation[a:b], np.flatnonzero(made_.assignment == cluster))
        unit = slabs[a:b] / np.linalg.norm(slabs[a:b], axis=1, keepdims=True)
        mean = unit.sum(0)
        np.testing.assert_allclose(made_.centroids[cluster], mean / np.linalg.norm(mean), atol=1e-5)
        assert made_.cosine[cluster] == pytest.approx((unit @ made_.centroids[cluster]).mean(), abs=1e-5)
    assert made_.sizes.sum() == made_.vocab_size == 200
    assert sorted(made_.permutation.tolist()) == list(range(200))


def test_zero_rows_share_one_cluster():
    made_ = made(zeros=(4, 11, 150))
    assert made_.zero_cluster is not None
    assert np.flatnonzero(made_.assignment == made_.zero_cluster).tolist() == [4, 11, 150]
    assert len(made_) == 10
    assert (made_.centroids[made_.zero_cluster] == 0).all()
    assert (np.linalg.norm(np.delete(made_.centroids, made_.zero_cluster, 0), axis=1) > 0.99).all()
    assert disagreement(made_, 10, 200) is None
    assert made().zero_cluster is None
    figures = cluster_figures(made_)
    assert (figures["zero_rows"], figures["padded_rows"]) == (3, 3)
    assert figures["mean_cosine"] == pytest.approx(made_.origin["objective"], abs=1e-6)
    assert cluster_figures(made())["zero_rows"] == 0


def test_round_trip_and_record(tmp_path):
    before = made(zeros=(7,))
    save_clusters(before, tmp_path / "c", config={"run": {"seconds": 1.0}})
    after = load_clusters(tmp_path / "c")
    for name in ("permutation", "offsets", "assignment", "centroids", "cosine"):
        left, right = getattr(before, name), getattr(after, name)
        assert left.dtype == right.dtype
        np.testing.assert_array_equal(left, right)
    assert (after.zero_cluster, after.fingerprint) == (before.zero_cluster, before.fingerprint)
    assert after.head == before.head
    assert after.origin == json.loads(json.dumps(before.origin))
    again = made(zeros=(7,))
    save_clusters(again, tmp_path / "d", config={"run": {"seconds": 2.0}})
    hashes = {open_artifact(tmp_path / name, "clusters").content_hash for name in "cd"}
    assert len(hashes) == 1, "the same content, whatever a run took"


def test_another_head_is_refused():
    made().check_head("ab" * 32, "model")
    with pytest.raises(MismatchError, match="another LM head"):
        made().check_head("cd" * 32, "model")


def _swap(array, a, b):
    out = array.copy()
    out[[a, b]] = out[[b, a]]
    return out


DAMAGE = {
    "permutation doubled": lambda c: {"permutation": np.where(c.permutation == 3, 4, c.permutation)},
    "permutation swapped in a cluster": lambda c: {"permutation": _swap(c.permutation, 0, 1)},
    "permutation swapped across clusters": lambda c: {"permutation": _swap(c.permutation, 0, 199)},
    "permutation of another type": lambda c: {"permutation": c.permutation.astype(np.int32)},
    "offsets fall": lambda c: {"offsets": _swap(c.offsets, 3, 4)},
    "offsets end early": lambda c: {"offsets": np.where(c.offsets == 200, 199, c.offsets)},
    "empty cluster": lambda c: {"offsets": np.concatenate([c.offsets[:2], c.offsets[1:-2], c.offsets[-1:]])},
    "assignment changed": lambda c: {"assignment": _swap(c.assignment, 0, c.permutation[c.offsets[1]])},
    "too few centroids": lambda c: {"centroids": c.centroids[:-1]},
    "narrow centroids": lambda c: {"centroids": np.ascontiguousarray(c.centroids[:, :-1])},
    "centroids not finite": lambda c: {"centroids": c.centroids * np.float32(np.nan)},
    "zero cluster out of range": lambda c: {"zero_cluster": 10},
    "another order of clusters": lambda c: {"assignment": 9 - c.assignment},
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_arrays_that_do_not_belong_together_are_refused(tmp_path, kind):
    whole = made()
    assert disagreement(whole, 10, 200) is None
    broken = replace(whole, **DAMAGE[kind](whole))
    save_clusters(broken, tmp_path / "c")
    with pytest.raises(ArtifactError, match="cannot be read"):
        load_clusters(tmp_path / "c")


def test_separation_tells_planted_groups_from_noise():
    rng = np.random.default_rng(0)
    centres = np.eye(8, 16)
    labels = np.repeat(np.arange(8), 30)
    apart = unit_rows((centres[labels] + 0.1 * rng.normal(size=(240, 16))).astype(np.float32), name="x").units
    noise = unit_rows(rng.normal(size=(240, 16)).astype(np.float32), name="x").units
    good, bad = separation(apart, labels), separation(noise, labels)
    assert good["silhouette"] > 0.7 > 0.05 > bad["silhouette"]
    assert good["calinski_harabasz"] > 20 * bad["calinski_harabasz"]
    assert separation(apart, np.zeros(240, np.int64)) == {}
