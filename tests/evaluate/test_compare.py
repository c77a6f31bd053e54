from __future__ import annotations

from vocabforge.evaluate.compare import Divergence, compare_outputs


def row(number: int, tokens: list[list[int]], finish: list[str] | None = None) -> dict:
    choice = {"token_ids": tokens, "finish": finish or ["stop"] * len(tokens)}
    return {"question_id": number, "choices": [choice]}


PLAIN = [row(1, [[5, 6, 2], [7, 2]]), row(2, [[5, 2]]), row(3, [[9, 9, 9]], ["length"])]


def test_equal_outputs() -> None:
    result = compare_outputs(PLAIN, PLAIN)
    assert (result.identical, result.compared, result.first, result.divergent) == (3, 3, None, [])


def test_the_first_divergence_is_named_by_question_turn_and_position() -> None:
    got = [row(1, [[5, 6, 2], [8, 2]]), row(2, [[5, 2]]), row(3, [[9, 9, 8]], ["length"])]
    result = compare_outputs(PLAIN, got)
    assert result.identical == 1
    assert result.first == Divergence(question_id=1, turn=1, position=0, expected=7, got=8)
    assert result.divergent == [1, 3]


def test_an_output_that_ends_early_or_late_diverges() -> None:
    early = compare_outputs(PLAIN, [row(2, [[5]], ["length"])])
    assert early.first == Divergence(2, 0, 1, 2, None)
    late = compare_outputs(PLAIN, [row(2, [[5, 2, 4]])])
    assert late.first == Divergence(2, 0, 2, None, 4)


def test_an_output_cut_by_its_cache_is_compared_as_far_as_it_goes() -> None:
    got = [row(1, [[5, 6], [1, 1]], ["cache", "stop"])]
    result = compare_outputs(PLAIN, got)
    assert (result.identical, result.cut, result.first) == (1, 1, None)
    wrong = compare_outputs(PLAIN, [row(1, [[5, 4], [7, 2]], ["cache", "stop"])])
    assert wrong.first == Divergence(1, 0, 1, 6, 4)
