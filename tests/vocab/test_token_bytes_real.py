"""Byte forms and spelling on every published tokenizer at hand, over texts in many scripts."""

from __future__ import annotations

import re
import unicodedata

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.vocab.real_tokenizers import real
from tests.vocab.test_token_bytes import golden, sentencepiece_text
from tests.worlds import needs_data
from vocabforge.vocab.overlap.overlap import prepare

pytestmark = needs_data
LOOKS_SPECIAL = [
    "<|im_end|>",
    "</s>",
    "<s>",
    "<unk>",
    "<|endoftext|>",
    "<|im_start|>",
    "x<|im_end|>y </s><s>z",
]
# Reading a large vocabulary takes seconds; the default run has one of each family.
NAMES = [
    "gpt2",
    "tok512",
    "tok105",
    *(pytest.param(name, marks=pytest.mark.proof) for name in ("qwen3", "o200k")),
]


@pytest.fixture(scope="module")
def prepared():
    found = {}

    def get(name):
        if name not in found:
            found[name] = prepare(real(name))
        return found[name]

    return get


def joined(side, ids) -> bytes:
    parts = [side.forms.forms[token] for token in ids]
    assert None not in parts
    return b"".join(parts)


def as_read(name: str, text: str) -> str:
    """A text as the tokenizer reads it."""
    if name.startswith("tok"):
        return sentencepiece_text(text)
    return unicodedata.normalize("NFC", text) if name == "qwen3" else text


@pytest.mark.parametrize("name", NAMES)
def test_golden_ids_stand_for_their_text(prepared, name):
    side, seen = prepared(name), 0
    for row in golden():
        assert side.tokenizer.encode(row["text"]) == row[name]
        if None not in [side.forms.forms[token] for token in row[name]]:
            assert joined(side, row[name]) == as_read(name, row["text"]).encode()
            seen += 1
    assert seen == (13 if name == "tok105" else 27)  # tok105 has no byte fallback


@pytest.mark.parametrize("name", NAMES)
def test_a_text_is_spelled_as_the_tokenizer_does(prepared, name):
    side = prepared(name)
    for row in golden():
        text = as_read(name, row["text"]).encode()
        (whole,) = side.speller.spell([text])
        if None in [side.forms.forms[token] for token in row[name]]:
            assert whole == []
            continue
        assert whole == row[name]
        # Cut where words begin, it is the same: a space belongs to the word behind it.
        words = re.findall(rb"\s*\S+|\s+$", text) if name.startswith("tok") else []
        assert [token for ids in side.speller.spell(words) for token in ids] == (row[name] if words else [])


@pytest.mark.parametrize("name", NAMES)
@given(piece=st.binary(min_size=1, max_size=20))
@settings(max_examples=60)
def test_any_bytes_are_spelled_exactly_or_not_at_all(prepared, name, piece):
    side = prepared(name)
    (ids,) = side.speller.spell([piece])
    if ids or name != "tok105":
        assert joined(side, ids) == piece


@pytest.mark.parametrize("name", NAMES)
def test_what_looks_special_is_text(prepared, name):
    side = prepared(name)
    for text, ids in zip(
        LOOKS_SPECIAL, side.speller.spell([text.encode() for text in LOOKS_SPECIAL]), strict=True
    ):
        assert not set(ids) & side.forms.special
        if name != "tok105" or "_" not in text:
            assert joined(side, ids) == text.encode()
    (beside,) = side.speller.spell([b" dog <s> dog"])
    (dog,) = side.speller.spell([b" dog"])
    # The words beside are spelled as ever.
    assert beside[: len(dog)] == beside[-len(dog) :] == dog
