"""Cuts change no token: by property tests over every structure, and by the places that must not be cut."""

from __future__ import annotations

import re
import unicodedata

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.shares import by_default
from tests.vocab.engine_tokenizers import CROSSING, PROVEN, REFUSED, built
from tests.vocab.real_tokenizers import REAL, real
from tests.worlds import needs_data
from vocabforge.corpus.tokenizer.cut_parts import NOT_VISIBLE, PLAIN
from vocabforge.corpus.tokenizer.cuts import CutRule, NoCut, cut_rule

CHARACTERS = (
    st.sampled_from("  \n\nabcAB.,'!/0猫。名é▁ĠĊ")
    | st.sampled_from("\r\t\x0b\x1c\x85\xa0\u180e\u2003\u200b\u200d\u2028\u3000\ufeff\0")
    | st.sampled_from("\u0301\u0308\u093c\u094d\u0e33\u0e48\uff9e\u1100\u1161\u11a8가ﬁ½İſ")
    | st.sampled_from("क़ﭐیַיִﱞﹰͺ¨Å👩🏽🏻ßẞ")
    | st.characters(exclude_categories=["Cs"])
)
BITS = [
    "I'll 'S   \n\n  ", "\r\n\r\n", "!!\n\n", "//\n/", " the quick", "fox jumps", " \n \n", "字\n字", "。\n字",
    "def main\n    return", "zzz", " zzz", "\nzzz", "</s>", "</s> a", " </s>", "<s>", "<unk>", "<0x0A>",
    "``x''", "<mask>", " <mask> ", "<mask>\n", "<mask> x", " [MASK] b", "<|end|>", "<|end|> a",
    "\n<|end|>\n", "▁▁", " so", "é \ne\u0301", "the lazy dog and so on\nto be", "Größe über 12 猫 и небо",
]  # fmt: skip
TEXTS = st.lists(st.text(CHARACTERS, max_size=6) | st.sampled_from(BITS), max_size=8).map("".join)


def places(rule: CutRule, text: str) -> list[int]:
    found, at = [], rule.first(text)
    while at is not None:
        found.append(at)
        at = rule.first(text, at + 1)
    return found


def rule_of(name: str) -> CutRule:
    rule = cut_rule(built(name))
    assert isinstance(rule, CutRule)
    return rule


def check_cuts(rule: CutRule, texts: list[str]) -> int:
    """Every cut of every text, the text at a start and behind a cut; returns how many cuts there were."""
    cuts = [(at, text, place) for at, text in enumerate(texts) for place in places(rule, text)]
    interior = rule.encode([text[place:] for _, text, place in cuts], False)
    for begins in (True, False):
        whole = rule.encode(texts, begins)
        left = rule.encode([text[:place] for _, text, place in cuts], begins)
        for (at, text, place), before, behind in zip(cuts, left, interior):
            assert before + behind == whole[at], (text[:place], text[place:])
    return len(cuts)


@pytest.mark.parametrize("name", [*PROVEN, "no_space"])
def test_cuts_change_no_token(name: str) -> None:
    rule, seen = rule_of(name), 0

    @settings(max_examples=10, deadline=None)
    @given(st.lists(TEXTS, min_size=4, max_size=12))
    def run(texts: list[str]) -> None:
        nonlocal seen
        seen += check_cuts(rule, texts)
        for text in texts:
            found = places(rule, text)
            assert all(0 < place < len(text) for place in found)
            for place in found:  # a few characters on each side decide
                start = max(0, place - rule.margin)
                assert rule.first(text[start : place + rule.margin], place - start) == place - start
            assert "".join(rule.parts(text, 3)) == text

    run()
    assert seen > 10


@pytest.mark.parametrize("name", PROVEN)
def test_sentences_are_cut_often(name: str) -> None:
    rule = rule_of(name)
    text = "The quick brown fox was here and the dog was there to see it all\n" * 3
    assert len(places(rule, text)) >= 30


# (tokenizer, left, right): cutting here would change tokens, so the rule must not offer it.
UNSOUND = [
    ("llama3", "a.", "\nb"),  # punctuation takes the newlines behind it
    ("gpt2", "a\n\n", "b"),  # at the end of a text two newlines are one piece
    ("o200k", ".\n", "/b"),  # the slash belongs to the run
    ("gpt2", "a ", "the"),
    ("gpt2_stripped", "a\n", "b"),  # the end of a text is stripped
    ("gpt2_prefix", "a", "\nb"),  # a prefix space would be added
    ("sp_prepend", "</s>", " a"),  # a text begins anew behind an added token
    ("sp_first", "▁", " a"),  # a written ▁ is a space to the model
    ("added_rstrip", "<mask>", " a"),  # the token takes the space
    ("added_letter_lstrip", "a\n", "zzz"),  # the token takes the newline
]


@pytest.mark.parametrize(("name", "left", "right"), UNSOUND)
def test_unsound_places_are_not_offered(name: str, left: str, right: str) -> None:
    rule = rule_of(name)
    text = f"x y{left}{right} z"
    cut = 3 + len(left)
    assert cut not in places(rule, text)
    apart = rule.encode([text[:cut]], True)[0] + rule.encode([text[cut:]], False)[0]
    assert apart != rule.encode([text], True)[0], "the place is sound after all: the rule could offer it"


def test_a_letter_that_nfc_ends_with_a_mark_is_not_cut_before_a_newline() -> None:
    rule = rule_of("qwen2")
    text = (
        "a\u0958\nb"  # DEVANAGARI QA: NFC writes it as a letter and a mark, and a mark counts as punctuation
    )
    assert places(rule, text) == [3]
    normal = rule.backend.normalizer.normalize_str(text)
    pieces = [piece for piece, _ in rule.backend.pre_tokenizer.pre_tokenize_str(normal)]
    assert pieces[1].endswith("Ċ")
    assert places(rule, "aग\nb") == [2, 3]


@pytest.mark.parametrize("name", REFUSED)
def test_unknown_structures_are_not_cut(name: str) -> None:
    rule = cut_rule(built(name))
    assert isinstance(rule, NoCut)
    assert REFUSED[name][1] in rule.reason


def test_tokens_over_a_space_forbid_the_cut() -> None:
    crossing = cut_rule(built("crossing"))
    assert isinstance(crossing, NoCut)
    assert "'a▁'" in crossing.reason
    assert places(rule_of("no_space"), "a b\nc") == [3]  # an unknown space may be fused with its neighbour
    assert isinstance(cut_rule(built("sp_gemma_runs")), NoCut)
    assert CROSSING.keys() == {"crossing", "no_space", "sp_gemma_runs"}


def test_the_start_of_a_text_is_treated_apart_only_there() -> None:
    rule = rule_of("sp_stripped")
    assert rule.interior is not rule.backend
    assert rule.encode(["a"], False) != rule.encode(["a"], True)
    assert rule_of("qwen2").interior is built("qwen2").backend


def test_plain_characters_stay_letters_under_every_normal_form() -> None:
    plain = re.compile(f"[{PLAIN}]")
    hidden = re.compile(f"[{NOT_VISIBLE}]")
    count = 0
    for letter in map(chr, range(0x10000)):
        if plain.match(letter):
            count += 1
            assert not hidden.match(letter)
            for form in ("NFC", "NFKC"):
                image = unicodedata.normalize(form, letter)
                assert image[0].isalnum(), letter
                assert image[-1].isalnum(), letter
            assert not any(
                part.isspace() or part == "▁" for part in unicodedata.normalize("NFKD", letter).lower()
            )
        if letter.isspace():
            assert hidden.match(letter)
    assert count > 30_000


@needs_data
@pytest.mark.parametrize("name", by_default(REAL, lambda name: name != "o200k"))
def test_published_tokenizers_are_cut(name: str) -> None:
    rule = cut_rule(real(name))
    assert isinstance(rule, CutRule)
    bits = st.lists(TEXTS, min_size=30, max_size=40)

    @settings(max_examples=2, deadline=None)
    @given(bits)
    def run(texts: list[str]) -> None:
        check_cuts(rule, texts)

    run()
