"""Selection, the d2t/t2d pair, forced ids, schedules, and the artefact."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.worlds import byte_tokenizer, other_tokenizer
from vocabforge.core.errors import ArtifactError, DataError, MismatchError, UsageError
from vocabforge.corpus.tokenizer.special_tokens import SpecialTokens
from vocabforge.corpus.tokenizer.tokenizer import load_tokenizer
from vocabforge.vocab.counts.table import FrequencyTable
from vocabforge.vocab.subset.forced import forced_ids
from vocabforge.vocab.subset.schedule import SCHEDULES, schedule_sizes
from vocabforge.vocab.subset.select import select
from vocabforge.vocab.subset.subset import VocabSubset, load_subset, make_subset, save_subset


@st.composite
def cases(draw):
    counts = np.array(draw(st.lists(st.integers(0, 5), min_size=1, max_size=40)), dtype=np.int64)
    forced = draw(st.sets(st.integers(0, len(counts) - 1), max_size=6))
    size = draw(st.integers(max(1, len(forced)), len(counts)))
    return counts, size, forced


@given(cases())
def test_select(case):
    counts, size, forced = case
    ranked = select(counts, size, forced, fill="lowest-id").tolist()
    assert len(ranked) == len(set(ranked)) == size
    # The definition, written as a sort: forced first, then count descending, then the lower id.
    order = sorted(range(len(counts)), key=lambda token: (token not in forced, -counts[token], token))
    assert ranked == order[:size]
    available = len(forced | set(np.flatnonzero(counts).tolist()))
    if available >= size:
        assert select(counts, size, forced).tolist() == ranked
    else:
        with pytest.raises(DataError, match=rf"{available:,} ids with a count or forced"):
            select(counts, size, forced)


@given(cases())
def test_pair_of_maps(case):
    counts, size, forced = case
    subset = make_subset(counts, size, forced, fingerprint="f", fill="lowest-id")
    d2t, t2d = subset.d2t(), subset.t2d()
    assert (d2t.dtype, d2t.shape, t2d.dtype, t2d.shape) == (np.int64, (size,), np.bool_, (len(counts),))
    np.testing.assert_array_equal(np.arange(size) + d2t, np.flatnonzero(t2d))
    assert set(forced) <= set(subset.ids.tolist())
    np.testing.assert_array_equal(np.arange(size) + d2t, subset.ids)
    total = int(counts.sum())
    if total:
        assert subset.coverage == pytest.approx(sum(int(counts[token]) for token in subset.ids) / total)
    else:
        assert subset.coverage is None
    unexplained = [token for token in subset.ids.tolist() if counts[token] == 0 and token not in forced]
    assert subset.filled == len(unexplained)


def full(size, fingerprint):
    return VocabSubset.from_ranked(np.arange(size), vocab_size=size, fingerprint=fingerprint)


@pytest.mark.parametrize(
    ("size", "forced", "message"),
    [
        (0, (), "outside the vocabulary"),
        (6, (), "outside the vocabulary"),
        (2, (0, 1, 2), "below the number of forced ids"),
        (2, (5,), "not in the vocabulary"),
        (2, (-1,), "not in the vocabulary"),
    ],
)
def test_impossible_sizes(size, forced, message):
    with pytest.raises(UsageError, match=message):
        select(np.array([5, 4, 3, 2, 1]), size, forced)


@pytest.mark.parametrize("ids", [[0, 0], [3, 4], [-1, 1], [2, 1], [[0, 1]], []])
def test_ids_that_are_no_vocabulary(ids):
    with pytest.raises(DataError, match="not a valid draft vocabulary"):
        VocabSubset(np.array(ids, dtype=np.int64), np.array(ids, dtype=np.int64), 4, "f")


def test_subset_round_trip(tmp_path):
    subset = make_subset(np.array([0, 9, 3, 9, 0]), 3, [4], fingerprint="f")
    assert subset.ranked.tolist() == [4, 1, 3]
    save_subset(subset, tmp_path / "s", parents={"counts": "abc"})
    again = load_subset(tmp_path / "s")
    np.testing.assert_array_equal(again.ids, subset.ids)
    np.testing.assert_array_equal(again.ranked, subset.ranked)
    for name in ("vocab_size", "fingerprint", "forced", "coverage", "filled"):
        assert getattr(again, name) == getattr(subset, name)
    manifest = json.loads((tmp_path / "s" / "manifest.json").read_text())
    assert manifest["parents"] == {"counts": "abc"}
    (tmp_path / "s" / "subset.safetensors").unlink()
    with pytest.raises(ArtifactError, match="missing"):
        load_subset(tmp_path / "s")


@given(cases(), st.data())
def test_schedule(case, data):
    """Every V_t is the beginning of the ranking, and the forced ids are in it."""
    counts, size, forced = case
    least = data.draw(st.integers(max(1, len(forced)), size))
    schedule = (size, size, (size + least) // 2, least)
    subset = make_subset(counts, size, forced, fingerprint="f", fill="lowest-id", schedule=schedule)
    assert subset.schedule == schedule
    for expected in schedule:
        assert set(forced) <= set(subset.ranked[:expected].tolist())


def test_schedule_round_trip_and_refusals(tmp_path):
    counts = np.array([0, 9, 3, 9, 0])
    subset = make_subset(counts, 3, [4], fingerprint="f", schedule=(3, 3, 1))
    save_subset(subset, tmp_path / "s")
    assert load_subset(tmp_path / "s").schedule == (3, 3, 1)
    with pytest.raises(UsageError, match="schedule's smallest size is below the number of forced"):
        make_subset(counts, 3, [0, 4], fingerprint="f", schedule=(3, 1))
    for schedule in ((4, 3), (3, 0)):
        with pytest.raises(DataError, match="not a valid draft vocabulary"):
            VocabSubset(subset.ids, subset.ranked, 5, "f", schedule=schedule)
    with pytest.raises(DataError, match="lack some of the forced"):
        VocabSubset(subset.ids, np.array([1, 3, 4]), 5, "f", forced=(4,), schedule=(3, 2))
    assert full(5, "f").schedule == ()


def test_another_tokenizer_is_refused(tmp_path):
    tokenizer = load_tokenizer(byte_tokenizer(tmp_path))
    full(261, tokenizer.fingerprint).check_tokenizer(tokenizer.fingerprint, "t", source="here")
    with pytest.raises(MismatchError, match="different tokenizers"):
        full(261, "f").check_tokenizer(tokenizer.fingerprint, "t", source="here")


def table_of(tokenizer) -> FrequencyTable:
    counts = np.ones(tokenizer.vocab_size, dtype=np.int64)
    return FrequencyTable(counts, 1, 1, "corpus", tokenizer.fingerprint, {}, SpecialTokens.of(tokenizer))


def test_forced_ids(tmp_path):
    template = "{{ '<|user|>' + '<|assistant|>' }}{{ eos_token }}"
    folder = byte_tokenizer(tmp_path / "t", template=template)
    table = table_of(load_tokenizer(folder))
    assert forced_ids(table) == (257, 258, 259)
    assert forced_ids(table, (7,)) == (7, 257, 258, 259)
    (folder / "generation_config.json").write_text('{"eos_token_id": [257, 260]}')
    assert forced_ids(table, folder=folder) == (257, 258, 259, 260)


def test_forced_ids_of_a_target_without_tokenizer(tmp_path):
    table = table_of(load_tokenizer(byte_tokenizer(tmp_path / "t", eos_token=None, template=None)))
    table = FrequencyTable(**{**vars(table), "special": SpecialTokens()})
    with pytest.raises(DataError, match="no end token is known"):
        forced_ids(table)
    target = tmp_path / "m"
    with pytest.raises(DataError, match="target is missing"):
        forced_ids(table, folder=target)
    target.mkdir()
    with pytest.raises(DataError, match="neither generation_config"):
        forced_ids(table, folder=target)
    (target / "config.json").write_text('{"eos_token_id": 9, "vocab_size": 300}')
    assert forced_ids(table, folder=target) == (9,)
    (target / "config.json").write_text('{"eos_token_id": 9, "vocab_size": 200}')
    with pytest.raises(MismatchError, match="fewer rows"):
        forced_ids(table, folder=target)


def test_forced_ids_refuse_a_target_with_another_tokenizer(tmp_path):
    table = table_of(load_tokenizer(byte_tokenizer(tmp_path / "a")))
    other = other_tokenizer(tmp_path / "b")
    (other / "config.json").write_text("{}")
    (other / "generation_config.json").write_text('{"eos_token_id": 257}')
    with pytest.raises(MismatchError, match="different tokenizers"):
        forced_ids(table, folder=other)


@given(st.sampled_from(sorted(SCHEDULES)), st.integers(1, 200_000), st.data())
def test_bounds_and_fall(schedule, k_max, data):
    k_min = k_max if schedule == "constant" else data.draw(st.integers(1, k_max))
    steps = data.draw(st.integers(1, 12))
    sizes = schedule_sizes(schedule, k_max, k_min, steps)
    assert len(sizes) == steps
    assert sizes[:2] == (k_max, k_max)[:steps]
    assert all(k_min <= size <= k_max for size in sizes)
    assert list(sizes) == sorted(sizes, reverse=True)
    if schedule in ("linear", "geometric") and steps > 2:
        assert sizes[-1] == k_min


def test_the_schedules_by_hand():
    assert schedule_sizes("decay", 100, 20, 8) == (100, 100, 50, 33, 25, 20, 20, 20)
    assert schedule_sizes("linear", 100, 20, 6) == (100, 100, 80, 60, 40, 20)
    assert schedule_sizes("geometric", 160, 10, 6) == (160, 160, 80, 40, 20, 10)
    assert schedule_sizes("constant", 9, None, 3) == (9, 9, 9)


@pytest.mark.parametrize(
    ("schedule", "k_max", "k_min", "steps", "message"),
    [
        ("decay", 10, 11, 7, "not in order"),
        ("decay", 10, 0, 7, "not in order"),
        ("decay", 10, None, 7, "--k-min"),
        ("decay", 10, 5, 0, "at least one draft step"),
        ("constant", 10, 5, 7, "one size only"),
        ("decai", 10, 5, 7, "did you mean decay"),
    ],
)
def test_mistakes(schedule, k_max, k_min, steps, message):
    with pytest.raises(UsageError, match=message):
        schedule_sizes(schedule, k_max, k_min, steps)
