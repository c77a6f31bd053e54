"""A text in the drafter's own tokens, whatever the target's cuts: nothing lost, little respelled."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken

from tests.decode import bridges as toy
from tests.vocab.family_tokenizers import ALPHABET, FAMILIES, TEXTS, loaded
from tests.vocab.overlap_support import Prepared, hand_made
from vocabforge.decode.cross_vocab.text import WORD_BYTES, DraftText, cut_incomplete
from vocabforge.vocab.overlap.bridge import Bridge, make_bridge

LARGE = (10**6, 10**6)
WORDS = st.lists(
    st.sampled_from(
        ["the", "sea", "shells", "dog,", "late.", "is", "naïve", "12", "don't", "a\n\nb", "x  y"]
    ),
    min_size=1,
    max_size=14,
).map(" ".join)
TRAINED = st.text(alphabet=st.sampled_from(ALPHABET), max_size=60)
UNICODE = st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=40)
CUTS = st.lists(st.integers(1, 4), min_size=1, max_size=6)
# Both ways between families; a drafter of the first list spells any text, one of the second what it was trained on.
WHOLE = [("byte_level", "sentencepiece"), ("sentencepiece", "byte_level"), ("unigram", "byte_level")]
TRAINED_ON = [("byte_level", "unigram"), ("sentencepiece", "unigram"), ("byte_level", "sentencepiece_plain")]


@pytest.fixture(scope="module")
def bridges(tmp_path_factory):
    folder = tmp_path_factory.mktemp("families")
    names = {name for pair in (*WHOLE, *TRAINED_ON) for name in pair} | {"word_piece", "suffix_bpe"}
    sides = {name: loaded(folder / name, FAMILIES[name]()) for name in sorted(names)}
    others = [("byte_level", "word_piece"), ("byte_level", "suffix_bpe"), ("word_piece", "byte_level")]
    return Prepared(
        {
            (a, b): (sides[a], make_bridge(sides[a], sides[b], LARGE))
            for a, b in (*WHOLE, *TRAINED_ON, *others)
        }
    )


def cycles(ids, cuts):
    """The ids cut into cycles of the lengths ``cuts``, again and again."""
    at = turn = 0
    while at < len(ids):
        yield ids[at : at + cuts[turn % len(cuts)]]
        at += cuts[turn % len(cuts)]
        turn += 1


def written(bridge: Bridge, text: DraftText) -> bytes:
    """What the ids behind the start stand for."""
    assert text.ids[: len(bridge.drafter.start)] == list(bridge.drafter.start)
    return b"".join(bridge.drafter.forms[token] or b"<?>" for token in text.ids[len(bridge.drafter.start) :])


def bytes_of(bridge: Bridge, ids) -> bytes:
    return b"".join(bridge.target.forms[token] or b"" for token in ids)


def opened(bridge: Bridge, text: bytes) -> bytes:
    opening = bridge.drafter.opening
    return text if text.startswith(opening) or not text else opening + text


def followed(bridge: Bridge, ids, cuts, prompt: int, drafter=None) -> DraftText:
    """Feed a text in cycles, the first ids as a prompt; every report of kept ids is checked."""
    text = DraftText(bridge)
    text.begin(ids[:prompt])
    for new in cycles(ids[prompt:], cuts):
        before = list(text.ids)
        kept = text.add(new, drafter(text) if drafter else ())
        same = next((at for at, (a, b) in enumerate(zip(before, text.ids)) if a != b), None)
        assert kept == (min(len(before), len(text.ids)) if same is None else same)
    return text


@pytest.mark.parametrize("names", WHOLE)
@given(content=UNICODE, cuts=CUTS, prompt=st.integers(0, 10))
@example("🙂 e\u0301 你好 世界\n\n  x", [1], 0)
@example("你" * 40 + "the", [1], 3)
@settings(max_examples=30)
def test_nothing_is_lost_where_the_drafter_spells_any_text(bridges, names, content, cuts, prompt):
    check_nothing_is_lost(bridges[names], content, cuts, prompt)


@pytest.mark.parametrize("names", TRAINED_ON)
@given(content=TRAINED, cuts=CUTS, prompt=st.integers(0, 10))
@settings(max_examples=20)
def test_nothing_is_lost_of_what_the_drafter_can_spell(bridges, names, content, cuts, prompt):
    check_nothing_is_lost(bridges[names], content, cuts, prompt, opens=True)


def check_nothing_is_lost(pair, content, cuts, prompt, opens: bool = False) -> None:
    target, bridge = pair
    ids = [token for token in target.encode(content) if bridge.target.forms[token] is not None]
    text = followed(bridge, ids, cuts, prompt)
    whole = bytes_of(bridge, ids)
    assert written(bridge, text) + text.held in [opened(bridge, whole), *([] if opens else [whole])]
    assert text.held == whole[len(cut_incomplete(whole)) :]


@pytest.mark.parametrize("names", [*WHOLE, *TRAINED_ON])
@given(content=WORDS, cuts=CUTS, prompt=st.integers(0, 6))
@example("the sea shells", [1], 0)
@settings(max_examples=20)
def test_ordinary_words_read_as_if_the_text_came_at_once(bridges, names, content, cuts, prompt):
    target, bridge = bridges[names]
    ids = target.encode(content)
    if None in [bridge.target.forms[token] for token in ids]:
        return  # Unigram has no line end
    text = followed(bridge, ids, cuts, prompt)
    (expected,) = bridge.drafter.speller.spell([opened(bridge, bytes_of(bridge, ids))])
    if expected:
        assert text.ids[len(bridge.drafter.start) :] == expected


@given(content=WORDS, cuts=CUTS, seed=st.integers(0, 99))
@settings(max_examples=30)
def test_any_drafted_paths_leave_the_text_whole(bridges, content, cuts, seed):
    """Paths that agree for a while, in the drafter's odd spellings too."""
    target, bridge = bridges["sentencepiece", "byte_level"]
    ids, draw = target.encode(content), random.Random(seed)
    whole = bytes_of(bridge, ids)

    def drafter(text: DraftText) -> list[list[int]]:
        done = len(written(bridge, text))
        paths = []
        for _ in range(draw.randint(0, 3)):
            rest = whole[done : done + draw.randint(0, 9)]
            letters = [bridge.drafter.speller.spell([rest[at : at + 1]])[0][0] for at in range(len(rest))]
            spelled = bridge.drafter.speller.spell([rest])[0] or []
            paths.append([*draw.choice([letters, spelled]), draw.randrange(300)])
        return paths

    text = followed(bridge, ids, cuts, 2, drafter)
    assert written(bridge, text) + text.held == whole


def by_hand(tmp_path, words, specials=(), target_eos="<end>", drafter_eos="</s>"):
    """A byte-level target of single bytes, special tokens behind them, and a drafter with words."""
    target = hand_made(tmp_path / "t", [], eos=target_eos).tokenizer
    target.backend.add_special_tokens([AddedToken(name) for name in specials])
    drafter = hand_made(tmp_path / "d", words, eos=drafter_eos).tokenizer
    target = loaded(tmp_path / "t2", target.backend, **({"eos_token": target_eos} if target_eos else {}))
    return target, drafter, make_bridge(target, drafter, LARGE)


def test_drafted_paths_are_taken_over_as_far_as_they_agree(tmp_path):
    target, drafter, bridge = by_hand(tmp_path, ["Ġthe", "Ġcat"])
    letters = {letter: drafter.backend.token_to_id(letter) for letter in "Ġthecat"}
    the, cat = (drafter.backend.token_to_id(word) for word in ("Ġthe", "Ġcat"))
    odd = [letters[letter] for letter in "Ġthe"]
    start = list(bridge.drafter.start)

    def after(text: str, *paths: list[int]) -> list[int]:
        one = DraftText(bridge)
        one.begin(target.encode("a"))
        assert one.add(target.encode(text), paths) == len(start) + 1
        return one.ids[len(start) + 1 :]

    assert after(" the cat") == [the, cat]
    assert after(" the cat", [*odd, the]) == [*odd, cat]  # its own spelling stays, its keys hold
    assert after(" the cat", [cat], odd) == [*odd, cat]
    # The furthest in bytes is taken, not the one of the most tokens.
    assert after(" the cat", odd[:3], [the, cat]) == [the, cat]
    assert after(" the cat", odd, [the, cat]) == [the, cat]
    # A word that goes on is spelled anew.
    assert after(" the cat", odd[:3]) == [the, cat]
    # The path is longer than what was accepted.
    assert after(" th", odd) == odd[:3]


def test_bytes_that_begin_no_character_are_not_waited_for(tmp_path):
    target, drafter, bridge = by_hand(tmp_path, ["Ġx"])
    text = DraftText(bridge)
    text.begin(target.encode("a"))
    text.add([target.encode("é")[1]])
    assert (text.held, text.ids[-1]) == (b"", drafter.encode("é")[1])
    text.add(target.encode("é")[:1])
    assert text.held == b"\xc3"
    text.add(target.encode("é")[1:], [drafter.encode("é")])  # what is held may be drafted
    assert (text.held, text.ids[-2:]) == (b"", drafter.encode("é"))


def test_special_tokens_leave_no_trace_but_the_end_token(tmp_path):
    target, drafter, bridge = by_hand(tmp_path, ["Ġthe", "the"], specials=["<|user|>", "<s>"])
    ends = (target.backend.token_to_id("<end>"), drafter.backend.token_to_id("</s>"))
    assert bridge.eos == ends
    start, user = list(bridge.drafter.start), target.backend.token_to_id("<|user|>")
    assert start == [ends[1]]  # the drafter has no other
    text, the = DraftText(bridge), target.encode("the")
    text.begin([user, *the, ends[0], target.backend.token_to_id("<s>"), *the])
    assert text.ids == [*start, *drafter.encode("the"), ends[1], *drafter.encode("the")]
    # Nothing is spelled across one; half a character before one is lost.
    text.begin([*the[:2], user, *the[2:]])
    assert text.ids == [*start, *drafter.encode("th"), *drafter.encode("e")]
    text.begin([*target.encode("é")[:1], user])
    assert (text.ids, text.held) == (start, b"")
    # A text that looks like one is text.
    text.begin([token for letter in "<end></s>" for token in target.encode(letter)])
    assert ends[1] not in text.ids[1:]
    assert written(bridge, text) == b"<end></s>"
    assert DraftText(replace(bridge, eos=None)).add([ends[0]]) == 1


@pytest.mark.parametrize("cuts", [[1], [3, 1], [1000]])
def test_what_cannot_be_spelled_is_left_out_alone(bridges, cuts):
    target, bridge = bridges["byte_level", "sentencepiece_plain"]
    text = followed(bridge, target.encode("the дом dog 🙂shells, x漢y"), cuts, 1)
    assert written(bridge, text).replace(b"  ", b" ") == b" the dog shells, xy"
    target, bridge = bridges["byte_level", "word_piece"]
    text = followed(bridge, target.encode("the дом dog The shells漢"), cuts, 1)
    # A lower-casing vocabulary has no T; words in front of what is left out stay words.
    assert written(bridge, text).replace(b"  ", b" ").startswith(b" the dog")
    assert text.ids[-1] == bridge.drafter.speller.spell([b" shells"])[0][-1]
    assert b" shells" in written(bridge, text)


def test_the_beginning_can_be_forgotten(bridges):
    target, bridge = bridges["byte_level", "sentencepiece"]
    ids = target.encode(TEXTS[0])
    whole, text = DraftText(bridge), DraftText(bridge)
    whole.begin(ids)
    text.begin(ids[:30])
    for token in ids[30:]:
        text.forget(12)
        assert len(text.ids) <= 12
        assert text.add([token]) <= 12
    assert text.ids == whole.ids[-len(text.ids) :]
    text.forget(0)
    assert text.ids == whole.ids[-1:]
    text.add(target.encode(" the"))
    assert text.ids[1:] == bridge.drafter.speller.spell([b" the"])[0]


class Counting:
    """A speller that counts the bytes that it is asked for."""

    def __init__(self, speller) -> None:
        self.speller, self.bytes = speller, 0

    def spell(self, wanted):
        self.bytes += sum(map(len, wanted))
        return self.speller.spell(wanted)


@pytest.mark.parametrize("content", ["she sells 漢 shells ", "漢字", "abc", "\n", "🙂 "])
def test_a_cycle_spells_no_more_than_its_own_word(bridges, content):
    target, bridge = bridges["byte_level", "sentencepiece_plain"]  # which cannot spell all of it
    speller = Counting(bridge.drafter.speller)
    text = DraftText(replace(bridge, drafter=replace(bridge.drafter, speller=speller)))
    ids = target.encode(content * 200)
    text.begin(ids[:500])
    for new in cycles(ids[500:], [1, 2, 3]):
        speller.bytes = 0
        text.add(new)
        # As a whole, by words, by parts, by letters.
        assert speller.bytes <= 4 * (WORD_BYTES + len(bytes_of(bridge, new)) + 4)


def a_bridge(target_start: int) -> Bridge:
    """Letters under the same ids; token 0 is special, and begins and ends texts on both sides."""
    forms = (None, *(bytes([97 + place]) for place in range(6)), b" ", b" ab")
    return toy.bridge(toy.side(forms, eos=(0,), start=(target_start,)), toy.side(forms, eos=(0,), start=(0,)))


def test_a_start_that_is_an_end_as_well_goes_over_once():
    for start, prompt, ids in (
        (0, [0, 1, 2], [0, 1, 2]),
        (0, [1, 0, 2], [0, 1, 0, 2]),  # inside of a prompt it is an end
        (1, [1, 2], [0, 1, 2]),  # a model without a start token of its own: that is text
    ):
        text = DraftText(a_bridge(start))
        text.begin(prompt)
        assert text.ids == ids


def test_a_space_at_the_end_waits_for_its_word_where_that_is_asked_for():
    for hold, before, held in ((True, [0, 1], b" "), (False, [0, 1, 7], b"")):
        text = DraftText(a_bridge(0), hold)
        text.begin([0, 1, 7])
        assert (text.ids, text.held) == (before, held)
        text.add([1, 2])
        assert (text.ids, text.held) == ([0, 1, 8], b"")
        text.add([7, 7])  # two spaces begin no word
        assert (text.ids[-2:], text.held) == ([7, 7], b"")
