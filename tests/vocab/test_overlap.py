"""Comparing vocabularies: pairs, spellings, the artefact."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from tests.vocab.family_tokenizers import ALPHABET, FAMILIES, TEXTS, loaded
from tests.vocab.overlap_support import hand_made, prepared_families
from vocabforge.core.errors import ArtifactError, UsageError
from vocabforge.vocab.overlap.overlap import compare, load_overlap, prepare, save_overlap


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return prepared_families(tmp_path_factory.mktemp("families"))


def test_pairs_by_hand(tmp_path):
    """``abc`` brings ab, abc; ``abd`` brings ab, abd: 256 bytes and ab are shared."""
    a = hand_made(tmp_path / "a", ["abc", "Ġx"], eos="<end>")
    b = hand_made(tmp_path / "b", ["Ġx", "abd"], eos="</s>")
    overlap = compare(a, b)
    # a: 256 ab, 257 abc, 258 Ġx, 259 <end>; b: 256 Ġx, 257 ab, 258 abd, 259 </s>
    expected = [[token, token] for token in range(256)] + [[256, 257], [258, 256]]
    assert overlap.pairs.tolist() == expected
    assert overlap.pairs.dtype == np.int64
    assert overlap.eos_pair == (259, 259)
    assert (overlap.forms, overlap.a.shared, overlap.b.shared) == (258, 258, 258)
    assert (overlap.a.text_tokens, overlap.a.special, overlap.a.duplicates) == (259, 1, 0)
    assert (overlap.a.name, overlap.b.name) == ("a", "b")


def test_special_tokens_are_never_paired_and_equal_end_tokens_only_as_end_tokens(tmp_path):
    sides = [hand_made(tmp_path / name, ["ab"], eos="<end>") for name in "ab"]
    overlap = compare(*sides)
    assert 257 not in overlap.pairs
    assert overlap.eos_pair == (257, 257)
    assert compare(sides[0], hand_made(tmp_path / "c", [])).eos_pair is None


@pytest.mark.parametrize("name", sorted(FAMILIES))
def test_a_vocabulary_is_wholly_in_itself(made, name):
    overlap = compare(made[name], made[name])
    known = [token for token, form in enumerate(made[name].forms.forms) if form]
    assert sorted(overlap.pairs.tolist()) == [[token, token] for token in known]
    assert overlap.a.shared == overlap.a.text_tokens == len(known)


def test_of_two_ids_with_the_same_bytes_the_one_that_is_written_is_paired(made):
    """SentencePiece has ``a`` and ``<0x61>``, here the lower id, which it never writes for a text."""
    sentencepiece, plain = made["sentencepiece"], made["byte_level"]
    backend = sentencepiece.tokenizer.backend
    written, fallback = backend.token_to_id("a"), backend.token_to_id("<0x61>")
    assert fallback < written
    overlap = compare(plain, sentencepiece)
    pairs = dict(overlap.pairs.tolist())
    assert pairs[plain.tokenizer.backend.token_to_id("a")] == written
    assert fallback not in pairs.values()
    assert overlap.b.duplicates == sum(ord(letter) < 128 and letter != "_" for letter in set("".join(TEXTS)))
    # Against itself, both are paired, each with its own.
    own = dict(compare(sentencepiece, sentencepiece).pairs.tolist())
    assert (own[written], own[fallback]) == (written, fallback)


@given(form=st.text(alphabet=st.sampled_from([*ALPHABET, "\n", "🙂"]), min_size=1, max_size=12))
@settings(max_examples=60)
def test_a_spelling_has_exactly_the_bytes(made, form):
    for name, side in made.items():
        (ids,) = side.speller.spell([form.encode()])
        assert b"".join(side.forms.forms[token] for token in ids) == (form.encode() if ids else b"")
        if side.forms.family == "byte-level" or name == "sentencepiece":
            assert ids, "any text can be spelled"
    if not form.isspace():  # the library's own ids, where nothing is put before a text
        assert made["byte_level"].speller.spell([form.encode()]) == [
            made["byte_level"].tokenizer.encode(form)
        ]


def test_the_model_spells_behind_text_without_a_space_put_in_front(tmp_path):
    """By its own rule: Unigram by likelihood (ab cd, not the longest match abc d), GPT-2 cut before digits."""
    pieces = [("<unk>", 0.0), ("▁", -5.0), ("abc", -9.0), ("d", -9.0), ("ab", -1.0), ("cd", -1.0)]
    backend = Tokenizer(models.Unigram(pieces, unk_id=0))
    backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    backend.decoder = decoders.Metaspace(prepend_scheme="always")
    assert prepare(loaded(tmp_path / "u", backend)).speller.spell([b"abcd", b" abcd"]) == [[4, 5], [1, 4, 5]]
    backend = hand_made(tmp_path / "g", ["a1"]).tokenizer.backend
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    assert prepare(loaded(tmp_path / "h", backend)).speller.spell([b"a1", b" a1"]) == [[97, 49], [32, 97, 49]]


def test_the_artefact_comes_back_whole(made, tmp_path):
    overlap = compare(made["byte_level"], made["unigram"])
    save_overlap(overlap, tmp_path / "o")
    again = load_overlap(tmp_path / "o")
    np.testing.assert_array_equal(again.pairs, overlap.pairs)
    assert again.to_json() == overlap.to_json()
    assert (again.a, again.b) == (overlap.a, overlap.b)
    with pytest.raises(UsageError, match="exists already"):
        save_overlap(overlap, tmp_path / "o")


@pytest.mark.parametrize(
    ("pairs", "changes", "message"),
    [
        ([[0, 0], [1, 0]], {}, "one to one"),
        ([[0, 0], [1, 10**6]], {}, "one to one"),
        ([[0, 0]], {}, "one to one"),
        ([[0, 0], [1, 1]], {"a": {}}, "cannot be read"),
        ([[0, 0], [1, 1]], {"eos_pair": [1]}, "cannot be read"),
    ],
)
def test_arrays_that_do_not_fit_their_manifest_are_refused(made, tmp_path, pairs, changes, message):
    from safetensors.numpy import save_file

    from vocabforge.core.artifact import write_artifact

    overlap = compare(made["byte_level"], made["unigram"])
    meta = json.loads(json.dumps({**overlap.to_json(), "pairs": 2, **changes}))
    with write_artifact(tmp_path / "o", "overlap", meta) as folder:
        save_file({"pairs": np.array(pairs, dtype=np.int64)}, folder / "overlap.safetensors")
    with pytest.raises(ArtifactError, match=message):
        load_overlap(tmp_path / "o")
