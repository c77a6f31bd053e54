"""Exports to, and imports from, the formats of other projects."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file

from tests.worlds import byte_tokenizer
from vocabforge.core.errors import DataError, UsageError
from vocabforge.corpus.tokenizer.tokenizer import load_tokenizer
from vocabforge.vocab.subset.maps import (
    EXPORTS,
    ExportInputs,
    exporters,
    read_fr_spec,
    subset_from_list,
)
from vocabforge.vocab.subset.subset import VocabSubset, make_subset


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    return load_tokenizer(byte_tokenizer(tmp_path_factory.mktemp("t")))


def inputs(tokenizer, counts, size, rows=None):
    subset = make_subset(counts, size, [257], fingerprint=tokenizer.fingerprint, fill="lowest-id")
    return ExportInputs(subset, counts, rows)


@settings(max_examples=10, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 261))
def test_round_trips(tokenizer, tmp_path_factory, seed, size):
    folder = tmp_path_factory.mktemp("x")
    counts = np.random.default_rng(seed).integers(0, 5, tokenizer.vocab_size)
    what = inputs(tokenizer, counts, size, rows=264)
    files = {path.name: path for path in (write(folder) for write in exporters(EXPORTS, what))}
    assert sorted(files) == sorted(["counts.txt", "d2t.safetensors", f"freq_{size}.pt"])

    listed = torch.load(files[f"freq_{size}.pt"], weights_only=True)
    assert type(listed) is list
    assert {type(token) for token in listed} == {int}
    assert listed == what.subset.ranked.tolist()
    again, missing = subset_from_list(read_fr_spec(files[f"freq_{size}.pt"]), tokenizer, source="x")
    assert again.digest() == what.subset.digest()
    assert missing == []

    maps = load_file(files["d2t.safetensors"])
    assert (maps["d2t"].dtype, maps["t2d"].dtype, maps["t2d"].shape) == (np.int64, np.bool_, (264,))
    np.testing.assert_array_equal(np.arange(size) + maps["d2t"], np.flatnonzero(maps["t2d"]))

    assert list(map(int, files["counts.txt"].read_text("ascii").split("\n")[:-1])) == counts.tolist()


def test_what_an_export_lacks(tokenizer):
    subset = VocabSubset.from_ranked(np.arange(261), vocab_size=261, fingerprint=tokenizer.fingerprint)
    with pytest.raises(UsageError, match="did you mean fr-spec"):
        exporters(["fr-spek"], ExportInputs(subset))
    with pytest.raises(UsageError, match="needs counts"):
        exporters(["counts-text"], ExportInputs(subset))


class Bomb:
    """Unpickling it would make a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return (Path.touch, (self.path,))


@pytest.mark.filterwarnings("ignore:Detected pickle protocol")
def test_a_pickle_that_would_run_code_is_refused(tmp_path):
    mark = tmp_path / "ran"
    torch.save([1, Bomb(mark)], tmp_path / "new.pt")
    torch.save([1, Bomb(mark)], tmp_path / "old.pt", _use_new_zipfile_serialization=False)
    (tmp_path / "bare.pt").write_bytes(pickle.dumps([1, Bomb(mark)]))
    for name in ("new.pt", "old.pt", "bare.pt"):
        with pytest.raises(DataError, match="more than a plain list") as caught:
            read_fr_spec(tmp_path / name)
        assert "weights_only" not in str(caught.value)  # torch advises to open it all the same
    assert not mark.exists()


@pytest.mark.parametrize(
    "value", [{"a": 1}, [1, 2.0], [True, 2], [], ["1"], torch.tensor([1, 2]), (1, 2), [[1]], 5, [1, 2**80]]
)
def test_what_is_no_list_of_ids(tmp_path, value):
    torch.save(value, tmp_path / "x.pt")
    with pytest.raises(DataError, match=r"no list of token ids|is not a token id|more than a plain list"):
        read_fr_spec(tmp_path / "x.pt")


def test_broken_lists(tmp_path):
    with pytest.raises(DataError, match="missing"):
        read_fr_spec(tmp_path / "none.pt")
    torch.save([1, 2], tmp_path / "x.pt")
    (tmp_path / "cut.pt").write_bytes((tmp_path / "x.pt").read_bytes()[:100])
    (tmp_path / "text.pt").write_text("1\n2\n")
    (tmp_path / "empty.pt").write_bytes(b"")
    for name in ("cut.pt", "text.pt", "empty.pt"):
        with pytest.raises(DataError):
            read_fr_spec(tmp_path / name)


def test_a_list_without_end_tokens_is_told(tokenizer):
    subset, missing = subset_from_list(np.array([5, 3, 257]), tokenizer, source="x")
    assert (subset.ranked.tolist(), missing) == ([5, 3, 257], [])
    assert subset_from_list(np.array([5, 3]), tokenizer, source="x")[1] == [257]
