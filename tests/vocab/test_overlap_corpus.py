"""Two tokenizers on the same texts: tokens, boundaries, round trips."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokenizers import processors

from tests.vocab.family_tokenizers import ALPHABET, FAMILIES, loaded
from tests.vocab.overlap_support import documents, hand_made, prepared_families
from vocabforge.core.errors import DataError
from vocabforge.vocab.overlap.on_text import compare_on_corpus
from vocabforge.vocab.overlap.overlap import prepare


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return prepared_families(tmp_path_factory.mktemp("families"))


def test_a_special_token_spelled_in_a_text_comes_back(tmp_path):
    a = hand_made(tmp_path / "a", ["ab"], eos="<end>")
    figures = compare_on_corpus(a, a, documents("ab<end>ab"))["a"]
    assert (figures["exact"], figures["tokens"], figures["shared"]) == (1, 3, 2)
    assert sum(figures["needed"]) == 2  # the special token has no bytes to spell


def test_offsets_that_a_post_processor_trims_do_not_move_boundaries(tmp_path):
    backend = FAMILIES["byte_level"]()
    plain = prepare(loaded(tmp_path / "a", backend))
    backend.post_processor = processors.ByteLevel(trim_offsets=True)
    trimming = prepare(loaded(tmp_path / "b", backend))
    figures = compare_on_corpus(plain, trimming, documents("the  the \n  sea  "))
    assert figures["boundaries_shared"] == figures["a"]["boundaries"] == figures["b"]["boundaries"] > 4


def test_corpus_figures_by_hand(tmp_path):
    a = hand_made(tmp_path / "a", ["abc"])
    b = hand_made(tmp_path / "b", ["ab", "cc"])
    figures = compare_on_corpus(a, b, documents("abccc", "", "ab"))
    # A: abc|c|c, ab; B: ab|cc|c, ab. A's ends 3, 4; B's 2, 4.
    assert (figures["documents"], figures["bytes"], figures["boundaries_shared"]) == (2, 7, 1)
    assert {key: figures["a"][key] for key in ("tokens", "shared", "boundaries", "exact")} == {
        "tokens": 4,
        "shared": 3,
        "boundaries": 2,
        "exact": 2,
    }
    assert figures["a"]["needed"] == [0, 3, 1, 0, 0, 0, 0, 0, 0]  # abc is ab, c
    assert (figures["b"]["tokens"], figures["b"]["shared"]) == (4, 3)  # cc is not A's
    assert figures["a"]["bytes_per_token"] == 1.75
    assert figures["a"]["failures"] == []
    with pytest.raises(DataError, match="no text"):
        compare_on_corpus(a, b, documents("", ""))


@given(st.lists(st.text(alphabet=st.sampled_from(ALPHABET), max_size=30), min_size=1, max_size=4))
@settings(max_examples=40)
@example(["ïve"])  # the first token is half of a character
def test_boundaries_equal_the_joined_lengths_of_byte_forms(made, texts):
    """Naively: where the byte forms of two tokenizers that keep every character end."""
    if not any(texts):
        return
    sides = [made["byte_level"], made["sentencepiece"]]
    figures = compare_on_corpus(*sides, documents(*texts))
    common, mine = 0, [0, 0]
    for text in texts:
        ends = []
        for side in sides:
            sizes = [len(side.forms.forms[token]) for token in side.tokenizer.encode(text)]
            ends.append(set(np.cumsum(sizes).tolist()))
        starts = {len(text[:at].encode()) for at in range(1, len(text))}
        ends[0] &= starts
        mine[0] += len(ends[0])
        # SentencePiece trims and puts a space in front: only texts that this leaves alone are compared.
        if text == text.strip() and "  " not in text:
            ends[1] = {end - 1 for end in ends[1]} & starts
            common += len(ends[0] & ends[1])
    assert figures["a"]["boundaries"] == mine[0]
    if all(text == text.strip() and "  " not in text for text in texts):
        assert figures["boundaries_shared"] == common


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("byte_level", "e\u0301"),
        ("sentencepiece", " the dog "),
        ("sentencepiece_plain", "the 🙂"),
        ("word_piece", "The dog"),
    ],
)
def test_what_a_round_trip_changes_is_shown(made, name, text):
    side = made[name]
    figures = compare_on_corpus(side, side, documents("the dog", *[text] * 9))
    assert figures["a"]["exact"] == 1
    assert len(figures["a"]["failures"]) == 5, "only the first are shown"
    failure = figures["a"]["failures"][0]
    assert failure["place"] == "a.txt:2"
    assert failure["text"] != failure["decoded"]
