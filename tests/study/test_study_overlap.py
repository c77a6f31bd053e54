"""Overlap of training texts with what is held out: planted runs are found, at every border, and nothing else is."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vocabforge.study.sources.overlap import HeldoutOverlap, _units

WORDS = [f"word{number}" for number in range(40)]
HANZI = [chr(0x4E00 + number) for number in range(40)]
LENGTHS = st.integers(min_value=1, max_value=6)


def runs(units: list[str], length: int) -> set[tuple[str, ...]]:
    return {tuple(units[at : at + length]) for at in range(len(units) - length + 1)}


@settings(max_examples=200, deadline=None)
@given(
    held=st.lists(st.sampled_from(WORDS[:6]), max_size=14),
    text=st.lists(st.sampled_from(WORDS[:6]), max_size=14),
    length=LENGTHS,
)
def test_words_meet_where_a_run_is_shared_and_nowhere_else(
    held: list[str], text: list[str], length: int
) -> None:
    overlap = HeldoutOverlap({"held": [[" ".join(held)]]}, length)
    shared = bool(runs(held, length) & runs(text, length))
    short = len(held) < length and held == text and 3 * len(held) >= length
    assert bool(overlap.met([" ".join(text)])) == (shared or short)


@settings(max_examples=100, deadline=None)
@given(
    held=st.lists(st.sampled_from(HANZI[:5]), max_size=16),
    text=st.lists(st.sampled_from(HANZI[:5]), max_size=16),
    length=st.integers(min_value=1, max_value=4),
)
def test_characters_of_scripts_without_spaces_need_twice_as_many(
    held: list[str], text: list[str], length: int
) -> None:
    overlap = HeldoutOverlap({"held": [["".join(held)]]}, length)
    shared = bool(runs(held, 2 * length) & runs(text, 2 * length))
    short = len(held) < 2 * length and held == text and 3 * len(held) >= 2 * length
    assert bool(overlap.met(["，".join(text)])) == (shared or short)


@settings(max_examples=100, deadline=None)
@given(seed=st.integers(min_value=0, max_value=2**32), length=st.integers(min_value=2, max_value=30))
def test_a_planted_run_is_found_at_any_place(seed: int, length: int) -> None:
    """Of a held-out text of its own words: at its beginning, inside, at its end, cased and pointed otherwise."""
    chance = random.Random(seed)
    held = [f"h{number}" for number in range(length + chance.randrange(20))]
    start = chance.randrange(len(held) - length + 1)
    planted = held[start : start + length]
    before = [f"t{number}" for number in range(chance.randrange(5))]
    behind = [f"u{number}" for number in range(chance.randrange(5))]
    spoken = [chance.choice([word, word.upper(), f"{word},", f'"{word}"']) for word in planted]
    overlap = HeldoutOverlap({"held": [[" ".join(held)]], "other": [["nothing of this"]]}, length)
    assert overlap.met([" ".join([*before, *spoken, *behind])]) == ("held",)
    broken = [*planted[:-1], "else"]
    assert overlap.met([" ".join([*before, *broken, *behind])]) == ()


@pytest.mark.parametrize("cut", range(1, 8))
def test_a_run_is_found_across_the_texts_of_a_conversation(cut: int) -> None:
    overlap = HeldoutOverlap({"held": [[" ".join(WORDS[:8])]]}, 8)
    assert overlap.met([" ".join(WORDS[:cut]), " ".join(WORDS[cut:8])]) == ("held",)
    parted = HeldoutOverlap({"held": [[" ".join(WORDS[:cut]), " ".join(WORDS[cut:8])]]}, 8)
    assert parted.met([" ".join(WORDS[:8])]) == ("held",)


def test_every_set_that_is_met_is_named_in_order() -> None:
    sets = {"b": [[" ".join(WORDS[:8])]], "a": [[" ".join(WORDS[2:12])]], "c": [[" ".join(WORDS[20:30])]]}
    overlap = HeldoutOverlap(sets, 5)
    assert overlap.met([" ".join(WORDS[:20])]) == ("b", "a")
    assert overlap.met([" ".join(WORDS[24:])]) == ("c",)
    assert HeldoutOverlap({}, 5).met([" ".join(WORDS)]) == ()
    assert HeldoutOverlap({"none": [], "empty": [[]]}, 5).met([" ".join(WORDS)]) == ()


def test_a_short_question_is_found_by_its_whole_and_a_greeting_is_not() -> None:
    overlap = HeldoutOverlap({"q": [["Who sang the song of the summer of 1969?", "Hi there!"]]}, 24)
    assert overlap.met(["Hello.", "who sang the song of the summer of 1969", "Nobody knows."]) == ("q",)
    assert overlap.met(["Tell me who sang the song of the summer of 1969"]) == ()
    assert overlap.met(["Hi there!"]) == ()


def test_words_are_whole_in_scripts_with_vowel_signs() -> None:
    assert _units("हिन्दी में, ÉTÉ!") == (["हिन्दी", "में", "été"], [])
    assert _units("GPT是什么？ok") == (["gpt", "ok"], ["是", "什", "么"])
    assert _units("e\u0301") == _units("\u00e9")
