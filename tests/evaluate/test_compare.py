from __future__ import annotations

from typing import Any

import pytest

from vocabforge.evaluate.identity.compare import compare_outputs, first_difference, outputs_of
from vocabforge.evaluate.results.schema import DivergenceRow, Outputs


def row(number: int, tokens: list[list[int]], finish: list[str] | None = None) -> dict[str, Any]:
    choice = {"token_ids": tokens, "finish": finish or ["stop"] * len(tokens)}
    return {"question_id": number, "choices": [choice]}


def at(question_id: int, turn: int, position: int, expected: int | None, got: int | None) -> DivergenceRow:
    return DivergenceRow(
        run=1, question_id=question_id, turn=turn, position=position, expected=expected, got=got
    )


PLAIN = [row(1, [[5, 6, 2], [7, 2]]), row(2, [[5, 2]]), row(3, [[9, 9, 9]], ["length"])]


@pytest.mark.parametrize(
    ("one", "other", "place"),
    [([], [], None), ([5, 6], (5, 6), None), ([5, 6], [5, 7, 8], 1), ([5], [5, 7], 1), ([5, 7], [], 0)],
)
def test_where_two_outputs_part(one: list[int], other: list[int], place: int | None) -> None:
    assert first_difference(one, other) == first_difference(other, one) == place


def test_each_questions_first_divergence_is_named_by_turn_and_position() -> None:
    got = [row(3, [[9, 9, 8]], ["length"]), row(1, [[5, 6, 2], [8, 4]]), row(2, [[5, 2]])]
    result = compare_outputs(PLAIN, got, run=4)
    assert (result.identical, result.compared) == (1, 3)
    expected = [at(1, 1, 0, 7, 8), at(3, 0, 2, 9, 8)]
    assert result.divergences == [one.model_copy(update={"run": 4}) for one in expected]
    assert all(one.judgement == "not judged" for one in result.divergences)


def test_an_output_that_ends_early_or_late_diverges() -> None:
    early = compare_outputs(PLAIN, [row(2, [[5]], ["length"])])
    assert early.divergences == [at(2, 0, 1, 2, None)]
    late = compare_outputs(PLAIN, [row(2, [[5, 2, 4]])])
    assert late.divergences == [at(2, 0, 2, None, 4)]
    silent = compare_outputs(PLAIN, [row(2, [[]], ["length"])])
    assert silent.divergences == [at(2, 0, 0, 5, None)]


def test_an_output_cut_by_its_cache_is_compared_as_far_as_it_goes() -> None:
    got = [row(1, [[5, 6], [1, 1]], ["cache", "stop"])]
    result = compare_outputs(PLAIN, got)
    assert (result.identical, result.cut, result.divergences) == (1, 1, [])
    assert compare_outputs(got, PLAIN).cut == 1
    wrong = compare_outputs(PLAIN, [row(1, [[5, 4], [7, 2]], ["cache", "stop"])])
    assert (wrong.cut, wrong.divergences) == (0, [at(1, 0, 1, 6, 4)])
    # The end of the longer one's cache excuses nothing.
    longer = compare_outputs(PLAIN, [row(3, [[9, 9, 9, 9]], ["cache"])])
    assert (longer.cut, longer.divergences) == (0, [at(3, 0, 3, None, 9)])


def test_runs_are_summed_by_judgement() -> None:
    def judged(judgement: str, run: int) -> DivergenceRow:
        return DivergenceRow(**{**at(run, 0, 0, 5, 6).model_dump(), "judgement": judgement, "run": run})

    def of_run(compared: int, cut: int, run: int, *judgements: str) -> Outputs:
        rows = [judged(one, run) for one in judgements]
        counts = {"near_tied": 0, "faults": 0, "not_judged": len(rows)}
        return Outputs(compared=compared, identical=compared - len(rows), cut=cut, divergences=rows, **counts)

    one = of_run(9, 2, 1, "fault", "near-tied", "fault")
    two = of_run(8, 1, 2, "not judged", "near-tied", "fault")
    outputs = outputs_of([one, two])
    assert (outputs.compared, outputs.identical, outputs.cut) == (17, 11, 3)
    assert (outputs.faults, outputs.near_tied, outputs.not_judged) == (3, 2, 1)
    assert outputs.divergences == [*one.divergences, *two.divergences]
    assert outputs_of([]).compared == 0
