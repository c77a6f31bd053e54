"""Is the output the same? Token ids of a method against plain decoding."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..results.schema import DivergenceRow, Outputs

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Comparison:
    """Outputs of one run compared question by question.

    Attributes:
        compared: questions compared.
        cut: of the identical ones, those that could only be compared up to where one output met the end
            of the cache.
        divergences: the first divergence of each other question, in order of question id.
    """

    compared: int
    cut: int
    divergences: tuple[DivergenceRow, ...]

    @property
    def identical(self) -> int:
        """Questions whose turns all agree."""
        return self.compared - len(self.divergences)


def compare_outputs(baseline: Sequence[Row], rows: Sequence[Row], run: int = 1) -> Comparison:
    """Compare detail rows of a method with those of plain decoding by token id.

    Args:
        baseline, rows: of the same run; questions that only one of them has are left out.
        run: number of that run, for the divergences.

    Returns:
        the comparison; its divergences are not judged yet.
    """
    expected = {row["question_id"]: row["choices"][0] for row in baseline}
    divergences: list[DivergenceRow] = []
    compared = cut = 0
    for row in sorted(rows, key=lambda row: row["question_id"]):
        question_id = row["question_id"]
        if question_id not in expected:
            continue
        compared += 1
        place, was_cut = _first_divergence(expected[question_id], row["choices"][0])
        cut += was_cut
        if place is not None:
            turn, position, want, have = place
            divergences.append(
                DivergenceRow(
                    run=run, question_id=question_id, turn=turn, position=position, expected=want, got=have
                )
            )
    return Comparison(compared, cut, tuple(divergences))


def first_difference(one: Sequence[int], other: Sequence[int]) -> int | None:
    """Where two outputs part first, from 0: the end of the shorter one if it begins the other; None: they are equal."""
    shared = min(len(one), len(other))
    place = next((at for at in range(shared) if one[at] != other[at]), shared)
    return None if place == len(one) == len(other) else place


def _first_divergence(expected: Row, got: Row) -> tuple[tuple[int, int, int | None, int | None] | None, bool]:
    """Turn, position and the two tokens (None: its output had ended); and whether a cache cut the comparison."""
    turns = zip(expected["token_ids"], got["token_ids"], expected["finish"], got["finish"], strict=True)
    for turn, (want, have, want_finish, have_finish) in enumerate(turns):
        position = first_difference(want, have)
        if position is None:
            continue
        if position < min(len(want), len(have)):
            return (turn, position, want[position], have[position]), False
        # An output that met the end of its cache says nothing about what would have followed, and the
        # next turn's prompt differs by it: the comparison ends here.
        if (want_finish if len(want) < len(have) else have_finish) == "cache":
            return None, True
        ended = (want[position], None) if len(want) > position else (None, have[position])
        return (turn, position, *ended), False
    return None, False


def outputs_of(comparisons: Sequence[Comparison]) -> Outputs:
    """The comparisons of all runs of one method, with the judgements that their divergences have by now."""
    divergences = [row for comparison in comparisons for row in comparison.divergences]
    judged = Counter(row.judgement for row in divergences)
    return Outputs(
        compared=sum(comparison.compared for comparison in comparisons),
        identical=sum(comparison.identical for comparison in comparisons),
        cut=sum(comparison.cut for comparison in comparisons),
        near_tied=judged["near-tied"],
        faults=judged["fault"],
        not_judged=judged["not judged"],
        divergences=divergences,
    )
