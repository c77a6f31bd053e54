"""Static vocabularies of several sizes from one ranking."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.tune.support import make_place
from vocabforge.core.errors import ArtifactError, DataError
from vocabforge.corpus.tokenizer.tokenizer import load_tokenizer
from vocabforge.tune.space import cut_vocabs
from vocabforge.vocab.counts.table import FrequencyTable, save_counts
from vocabforge.vocab.subset.select import SpecialTokens
from vocabforge.vocab.subset.subset import VocabSubset, load_subset, save_subset


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Also ``counts`` of the target's tokenizer."""
    place = make_place(tmp_path_factory.mktemp("cutting"))
    tokenizer = load_tokenizer(place / "t")
    counts = np.zeros(tokenizer.vocab_size, dtype=np.int64)
    counts[10:110] = np.arange(100, 0, -1)
    table = FrequencyTable(
        counts, 1, 1, "corpus", tokenizer.fingerprint, {"x": "y"}, SpecialTokens.of(tokenizer)
    )
    save_counts(table, place / "counts")
    return place


def test_counts_give_the_most_frequent_ids_and_the_end_tokens(place: Path, tmp_path: Path) -> None:
    made = cut_vocabs(place / "counts", [40, 20, 40], place / "t", tmp_path)
    assert [name for name, _ in made] == ["r20", "r40"]
    small, large = (set(load_subset(path).ids.tolist()) for _, path in made)
    assert len(small) == 20
    assert len(large) == 40
    assert small < large
    assert set(load_tokenizer(place / "t").eos_ids) <= small
    assert {10, 11, 12} <= small


def test_what_is_there_stays_and_what_is_another_goes(place: Path, tmp_path: Path) -> None:
    ((_, path),) = cut_vocabs(place / "counts", [30], place / "t", tmp_path)
    before = (path / "manifest.json").stat().st_mtime_ns
    cut_vocabs(place / "counts", [30], place / "t", tmp_path)
    assert (path / "manifest.json").stat().st_mtime_ns == before
    other = VocabSubset.from_ranked(np.arange(30), vocab_size=261, fingerprint=load_subset(path).fingerprint)
    save_subset(other, path, overwrite=True)
    cut_vocabs(place / "counts", [30], place / "t", tmp_path)
    assert load_subset(path).digest() != other.digest()


def test_no_ranking_and_too_few_counts_are_refused(place: Path, tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="not a ranking"):
        cut_vocabs(place / "v", [8], place / "t", tmp_path)
    with pytest.raises(DataError) as found:
        cut_vocabs(place / "counts", [200], place / "t", tmp_path)
    assert "--fill" not in str(found.value.remedy)
