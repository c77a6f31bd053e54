"""Drafting over a bridge between vocabularies is lossless: every random decision is walked, total variation exactly 0.

Hand-made vocabularies (``cross_vocab.py``), the real engine, proposers and verifiers, weights as fractions.
"""

from __future__ import annotations

import pytest

from tests.decode.cross_vocab import (
    SITUATIONS,
    WAYS,
    case_of,
    check_distribution,
    fits,
    foreign_proposer,
    target_of,
)
from tests.decode.proofs import (
    GREEDY,
    TRANSFORMS,
    Case,
    Switching,
    Walker,
    check_independent,
    exact_weights,
    reference_distribution,
)
from tests.shares import by_default
from vocabforge.decode.cross_vocab.slrs import proposer as proposer_slrs
from vocabforge.decode.engine import Decoder
from vocabforge.decode.proposers.registry import FOREIGN
from vocabforge.decode.verify import lazy as verify_lazy

BEST = ("tli, chain", "slem, static", "tli, dynamic", "slem, chain", "tli, static", "slem, dynamic")
DRAWN = ("tli, drawn chain", "tli, drawn siblings")
LAZY = ("slrs", "slrs, one token", "slrs, further ahead")
SOME = ("plain", "temperature", "top-k", "top-p", "all")
# Where three tokens of SLRS, and so the distribution of a second drafted token, take few branches.
SMALL = ("drafter inside target", "lower case")


@pytest.fixture(autouse=True)
def _exact(monkeypatch: pytest.MonkeyPatch) -> None:
    exact_weights(monkeypatch)


def turn(ways: tuple[str, ...], name: str, place: int) -> str:
    """One of some ways, another one for each situation, that the situation has tokens enough for."""
    number = list(SITUATIONS).index(name) + place
    found = [ways[(number + step) % len(ways)] for step in range(len(ways))]
    return next(way for way in found if fits(name, way))


def test_every_proposer_over_a_bridge_is_here() -> None:
    assert {proposer for proposer, _ in WAYS.values()} == set(FOREIGN)


@pytest.mark.parametrize("name", SITUATIONS)
def test_best_drafts(name: str) -> None:
    """Chains, static and dynamic trees of TLI and SLEM; three tokens, end tokens among them."""
    for place in range(0, 6, 3):  # one of each proposer
        transform = TRANSFORMS[SOME[(list(SITUATIONS).index(name) + place) % len(SOME)]]
        check_distribution(name, turn(BEST, name, place), [transform])


@pytest.mark.parametrize("name", SITUATIONS)
def test_drawn_drafts(name: str) -> None:
    """TLI draws from the drafter's distribution over what both have, and is verified with exactly that."""
    check_distribution(name, turn(DRAWN, name, 0), [TRANSFORMS["plain"]], 2)
    check_distribution(name, turn(DRAWN, name, 1), [TRANSFORMS["all"]], 2)


@pytest.mark.parametrize("name", by_default(SITUATIONS, list(SITUATIONS)[::2].__contains__))
def test_string_probabilities(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """SLRS, with its residual drawn lazily, and as a whole from the first or the second draw on."""
    number = list(SITUATIONS).index(name)
    monkeypatch.setattr(verify_lazy, "LAZY_DRAWS", (0, 1, 1000)[number % 3])
    check_distribution(name, LAZY[number // 3 % 2], [TRANSFORMS[SOME[number % len(SOME)]]], 2)


@pytest.mark.parametrize("name", SMALL)
def test_string_probabilities_of_several_tokens(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verify_lazy, "LAZY_DRAWS", 0)
    walker = check_distribution(name, "slrs", [TRANSFORMS["plain"]])
    assert walker.accepted > 0


@pytest.mark.parametrize("bounds", [(1, 1), (10**6, 1)])
def test_texts_that_grow_and_shrink_with_what_they_cost(bounds, monkeypatch):
    """The length of a drafted text depends on what earlier cycles took, and the distribution stays."""
    monkeypatch.setattr(verify_lazy, "LAZY_DRAWS", 0)
    monkeypatch.setattr(proposer_slrs, "CONTEXTS", bounds[0])
    monkeypatch.setattr(proposer_slrs, "FIRST_LENGTH", bounds[1])
    monkeypatch.setattr(proposer_slrs, "LONG_WORDS", 0.0)
    check_distribution(SMALL[0], "slrs", [TRANSFORMS["plain"]])


@pytest.mark.parametrize("name", SITUATIONS)
def test_greedy_tokens_are_plain_decodings(name: str) -> None:
    """At temperature 0, over several cycles; and with penalties, which plain verification of rows looks at."""
    cases = [case_of(name, GREEDY[one], 5) for one in ("greedy", "greedy, all")]
    target = target_of(name, "plain")
    requests = [case.request(0) for case in cases]
    plain = [one.token_ids for one in Decoder(target, rows=2).generate_batch(requests)]
    for way in (turn(BEST, name, 0), turn(BEST, name, 3), turn(LAZY, name, 0)):
        decoder = Decoder(target, foreign_proposer(name, way, ("plain", "plain")), rows=2)
        assert [one.token_ids for one in decoder.generate_batch(requests)] == plain, way


@pytest.mark.parametrize("way", WAYS)
def test_drafts_are_accepted(way: str) -> None:
    """Distributions of drafts that are never accepted would prove little."""
    assert accepted("ends of both", way, 2) > 0


@pytest.mark.proof
@pytest.mark.parametrize("way", WAYS)
def test_drafts_are_accepted_in_most_situations(way: str) -> None:
    counts = {name: accepted(name, way, 16) for name in SITUATIONS if fits(name, way)}
    assert sum(count > 0 for count in counts.values()) >= len(counts) - 1, counts


def accepted(name: str, way: str, requests: int) -> int:
    """Draft tokens that are accepted in texts of five tokens."""
    decoder = Decoder(target_of(name, "plain"), foreign_proposer(name, way, ("plain", "plain")), rows=2)
    asked = [case_of(name, TRANSFORMS["temperature"], 5).request(seed) for seed in range(requests)]
    return sum(sum(one.accepted_by_depth) for one in decoder.generate_batch(asked))


@pytest.mark.parametrize("way", ["tli, drawn chain", "slem, static", "slrs, one token"])
def test_plans_that_change_change_no_distribution(way: str) -> None:
    """A text that grew without drafts is read before the next; the same distribution, a smaller size included."""
    name = "lower case"
    proposer, case = foreign_proposer(name, way), case_of(name, TRANSFORMS["temperature"])
    # All ways of a wave are in the same cycle, as there are rows enough for them.
    walker = Walker(target_of(name, "zeros"), proposer, rows=64, control=Switching(proposer.plans()))
    assert walker.distribution(case) == reference_distribution(target_of(name, "zeros"), case)
    assert walker.accepted > 0


@pytest.mark.proof
@pytest.mark.parametrize(
    ("name", "way"), [(name, way) for name in SITUATIONS for way in WAYS if fits(name, way)]
)
def test_every_situation_and_way(name: str, way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The long version: all transforms; tables without zeros; a residual drawn lazily, or as a whole."""
    lazy = WAYS[way][0] == "slrs"
    drawn = lazy or WAYS[way][1].draft_sampling
    check_distribution(name, way, [*TRANSFORMS.values(), *GREEDY.values()], 2 if lazy else 3, rows=48)
    for kinds in (("plain", "zeros"),) if drawn else (("plain", "plain"), ("ties", "near")):
        check_distribution(
            name, way, [TRANSFORMS["plain"], TRANSFORMS["all"]], 2 if drawn else 3, kinds=kinds, rows=48
        )
    for draws in (0, 1) if lazy else ():
        monkeypatch.setattr(verify_lazy, "LAZY_DRAWS", draws)
        check_distribution(
            name, way, [TRANSFORMS["plain"], TRANSFORMS["all"]], 2, kinds=("plain", "zeros"), rows=48
        )


@pytest.mark.proof
@pytest.mark.parametrize("name", SITUATIONS)
def test_string_probabilities_of_three_tokens(name: str) -> None:
    walker = check_distribution(name, "slrs", [TRANSFORMS["plain"]], rows=48)
    assert walker.accepted > 0


@pytest.mark.proof
@pytest.mark.parametrize("name", SITUATIONS)
def test_texts_of_five_tokens(name: str) -> None:
    """Several cycles: what was accepted is read again, by target and drafter."""
    for way in BEST:
        if fits(name, way):
            walker = check_distribution(name, way, [TRANSFORMS["temperature"]], 5, rows=48)
            assert walker.accepted > 0


@pytest.mark.proof
@pytest.mark.parametrize("way", WAYS)
def test_other_prompts(way: str) -> None:
    """End and special tokens inside of the text, nothing but one, half a character first, and no stop tokens."""
    for name, prompt in (
        ("ends of both", (0, 1, 2, 3, 0)),
        ("ends of both", (1,)),
        ("special tokens", (3, 0)),
        ("incomplete characters", (0,)),
        ("incomplete characters", (3, 0)),
    ):
        target = target_of(name, "zeros")
        case = Case(TRANSFORMS["plain"], prompt, 2 if way == "slrs, further ahead" else 3)
        walker = Walker(target, foreign_proposer(name, way), rows=48)
        assert walker.distribution(case) == reference_distribution(target, case), (name, prompt)


@pytest.mark.proof
@pytest.mark.parametrize("way", ["tli, drawn chain", "slem, chain", "slrs, one token"])
def test_rows_are_independent(way: str) -> None:
    name = "lower case"
    cases = [
        Case(TRANSFORMS["temperature"], (0, 1, 3, 2), 2),
        Case(TRANSFORMS["all"], (2, 2), 3),
        Case(GREEDY["greedy"], (1, 2), 3),
    ]
    check_independent(target_of(name, "zeros"), foreign_proposer(name, way), cases)
