"""Claims against rows whose figures are known: each holds, fails, or cannot be judged."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.study.times_support import row, seeds_of, speed
from vocabforge.study.claim_rows import Table, largest, ratio
from vocabforge.study.claims import GOAL, Claim, claims, goal, reaching
from vocabforge.study.joined import ROOFLINE, SHAPE, Row

V = 151_936


def table() -> list[Row]:
    """Everything as published, and better: all claims hold."""

    def one(
        family: str,
        name: str,
        setting: str,
        accepted: float,
        tokens: int,
        tokens_per_s: float,
        head_s: float = 1e-4,
    ) -> Row:
        found = speed(tokens_per_s, head_s=head_s)
        values = {
            "predicted": {SHAPE: found, ROOFLINE: speed(1.0)},
            "scored": (float(tokens),),
        }
        return row(family, name, setting, accepted, tokens / V, **values)

    return [
        one("full", "full head", "V = 151,936", 5.0, V, 200.0, 9e-4),
        one("reduced", "EAGLE-3 reduced", "R = 32,768", 4.4, 32_768, 230.0),
        one("fr", "FR-Spec", "R = 32,768", 4.5, 32_768, 240.0),
        one("fr", "FR-Spec", "R = 8,192", 4.0, 8192, 250.0),
        one("trim", "VocabTrim", "R = 32,768", 4.6, 32_768, 245.0),
        one("pa-fr", "PA-FR", "decay 32,768 to 4,096", 4.48, 20_000, 246.0),
        one("ranker", "ranker d/8, joint", "k = 2,048", 4.95, 2048, 270.0),
        one("ranker", "ranker d/8, alone", "k = 2,048", 4.8, 2048, 260.0),
        one("ranker", "ranker d/16, joint", "k = 2,048", 4.93, 2048, 280.0),
        one("ranker", "ranker d/16, joint", "k = 4,096", 4.97, 4096, 275.0),
        one("low-rank", "low rank", "d/8", 4.8, 1, 220.0, 2e-4),
        one("router", "router of 1,024", "205 clusters", 4.93, 30_000, 250.0),
        one("router", "router of 1,024", "900 clusters", 4.99, 130_000, 205.0),
        one("context", "context", "core 512, text 1,024", 4.2, 1500, 236.0),
        one("context", "context", "core 4,096, text 1,024", 4.6, 5120, 239.0),
    ]


def with_rare(rows: list[Row], router: float, static: float) -> list[Row]:
    found = []
    for one in rows:
        if one.family in ("router", "fr"):
            rate = router if one.family == "router" else static
            found.append(replace(one, group="rare data", predicted={SHAPE: speed(rate)}))
    return [*rows, *found]


def changed(rows: list[Row], family: str, name: str = "", **values: object) -> list[Row]:
    if "accepted" in values:
        values = {"by_seed": seeds_of(float(str(values["accepted"]))), **values}
    return [
        replace(one, **values) if one.family == family and name in one.name else one  # type: ignore[arg-type]
        for one in rows
    ]


def by_words(found: list[Claim], words: str) -> Claim:
    chosen = [one for one in found if words in one.claim]
    assert len(chosen) == 1
    return chosen[0]


def test_all_hold() -> None:
    found = claims(with_rare(table(), 220.0, 190.0))
    assert len(found) == 17
    assert [one.claim for one in found if not one.held] == []
    assert found[-1].source == GOAL
    assert all(one.value is not None and one.value >= one.threshold for one in found)


def test_figures() -> None:
    found = claims(with_rare(table(), 220.0, 190.0))
    assert by_words(found, "keeps most").value == pytest.approx(0.9)
    assert by_words(found, "keeps most").threshold == 0.892
    assert by_words(found, "more than FR-Spec").value == pytest.approx(4.6 / 4.5)
    assert by_words(found, "98.4%").value == pytest.approx(4.93 / 5)  # the larger budget has too many tokens
    assert by_words(found, "a fourth to a fifth").value == pytest.approx(4.5)
    assert by_words(found, "fewer than 3,000").value == pytest.approx(236 / 200)
    assert by_words(found, "1.081").value == pytest.approx(280 / 230)
    assert by_words(found, "tokens are rare").value == pytest.approx(220 / 190)
    own = by_words(found, "a dynamic head keeps")
    assert own.value == pytest.approx(280 / 245)
    assert "ranker d/16, joint, k = 2,048" in own.found
    assert "VocabTrim, R = 32,768" in own.found


@pytest.mark.parametrize(
    ("family", "name", "values", "words"),
    [
        ("fr", "", {"share": 0.89}, "keeps most"),
        ("trim", "", {"accepted": 4.4}, "more than FR-Spec"),
        ("ranker", "d/8, joint", {"share": 0.95}, "95.2%"),
        ("reduced", "", {"accepted": 4.96}, "more than EAGLE-3 trained"),
        ("reduced", "", {"accepted": 4.51}, "pruning"),
        ("ranker", "d/16", {"accepted": 4.9}, "about as good"),
        ("ranker", "alone", {"accepted": 4.96}, "trained with its drafter"),
        ("router", "", {"share": 0.98}, "98.4%"),
        ("router", "", {"share": 0.9}, "scores fewer tokens"),
        ("pa-fr", "", {"accepted": 4.45}, "shrinks"),
        ("fr", "", {"predicted": {SHAPE: speed(220.0)}}, "1.12 times"),
        ("reduced", "", {"predicted": {SHAPE: speed(260.0)}}, "1.081"),
        ("context", "", {"predicted": {SHAPE: speed(230.0)}}, "fewer than 3,000"),
        ("low-rank", "", {"predicted": {SHAPE: speed(220.0, head_s=3e-4)}}, "a fourth to a fifth"),
        ("low-rank", "", {"predicted": {SHAPE: speed(214.0)}}, "end to end"),
        ("trim", "", {"predicted": {SHAPE: speed(256.0)}}, "a dynamic head keeps"),
    ],
)
def test_each_can_fail(family: str, name: str, values: dict, words: str) -> None:
    found = by_words(claims(changed(table(), family, name, **values)), words)
    assert found.held is False
    assert found.value is not None


def test_rare_tokens_can_fail() -> None:
    assert by_words(claims(with_rare(table(), 180.0, 190.0)), "tokens are rare").held is False


def test_what_is_missing_is_not_judged() -> None:
    found = claims(table())  # no group of rare tokens
    assert by_words(found, "tokens are rare").held is None
    assert "cannot be judged here" in by_words(found, "tokens are rare").found
    small = claims(table()[:1])
    assert {one.held for one in small} == {None}
    assert all(one.value is None for one in claims([]))


def test_without_measured_times_the_roofline_counts() -> None:
    found = [replace(one, predicted={ROOFLINE: speed(100.0 * one.share)}) for one in table()]
    claim = by_words(claims(found), "1.12 times")
    assert claim.value == pytest.approx(0.9)
    assert "roofline" in claim.found


class TestGoal:
    def test_who_reaches_it(self) -> None:
        found = reaching(table())
        assert [one.label for one in found] == [
            "ranker d/16, joint, k = 2,048",
            "ranker d/8, joint, k = 2,048",
        ]
        assert goal(table()).held

    def test_nobody_keeps_enough(self) -> None:
        rows = changed(table(), "ranker", share=0.98)
        assert reaching(rows) == []
        found = goal(rows)
        assert found.held is False
        assert "none keeps 98.5%" in found.found
        assert "98.0% with 1.35% of the logits" in found.found

    def test_without_a_static_vocabulary_of_that_size(self) -> None:
        assert goal(changed(table(), "fr", setting="R = 4"))  # VocabTrim is there
        rows = changed(changed(table(), "fr", setting="R = 4"), "trim", setting="R = 4")
        assert goal(rows).held is None

    def test_other_shapes(self) -> None:
        rows = [replace(one, shape="chain") for one in table()]
        assert goal(rows, shape="tree 60").held is None
        assert goal(rows, shape="chain").held
        assert goal([*rows, *table()[:1]], shape="chain").held


def test_the_largest_tree_is_the_shape() -> None:
    assert largest(["chain", "tree 30", "tree 60", "tree 4"]) == "tree 60"
    assert largest(["chain"]) == largest([]) == "chain"
    rows = [*table(), replace(table()[0], shape="tree 30"), replace(table()[0], temperature="drawn")]
    assert len(Table.of(rows).rows) == len(table())


class TestSeeds:
    def test_paired_differences_tell_what_deviations_hide(self) -> None:
        """Seeds that lie far apart, one row always above the other."""
        one, other = table()[4], table()[2]
        one = replace(one, by_seed=(4.1, 4.6, 5.1))
        other = replace(other, by_seed=(4.0, 4.49, 5.01))
        found = ratio(one, other, lambda row: row.accepted, "", lengths=True)
        assert found.told
        assert "+0.1000 ± 0.0058 over seeds" in found.words

    @pytest.mark.parametrize("by_seed", [(4.5, 4.4, 4.9), (4.6,)])
    def test_an_order_that_seeds_do_not_tell_is_not_judged(self, by_seed: tuple[float, ...]) -> None:
        found = by_words(claims(changed(table(), "trim", by_seed=by_seed)), "more than FR-Spec")
        assert found.held is None
        assert found.value is not None
        assert "difference" in found.found

    def test_a_threshold_needs_no_difference(self) -> None:
        rows = changed(table(), "ranker", by_seed=(4.9,))
        assert by_words(claims(rows), "about as good").held is True
