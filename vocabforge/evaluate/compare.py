"""Is the output the same? Token ids of a method against plain decoding."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Divergence:
    """The first token at which two outputs differ; None stands for "the output had ended"."""

    question_id: int
    turn: int
    position: int
    expected: int | None
    got: int | None


@dataclass(frozen=True)
class Comparison:
    """Outputs compared question by question.

    Attributes:
        identical: questions whose turns all agree.
        compared: questions compared.
        cut: of the identical ones, those that could only be compared up to where one output met the end
            of the cache.
        first: the first divergence, in order of question id.
        divergent: ids of all questions that diverge.
    """

    identical: int
    compared: int
    cut: int
    first: Divergence | None
    divergent: list[int]


def compare_outputs(baseline: Sequence[Row], rows: Sequence[Row]) -> Comparison:
    """Compare detail rows of a method with those of plain decoding by token id (both sorted by id)."""
    expected = {row["question_id"]: row["choices"][0] for row in baseline}
    divergences: list[Divergence] = []
    compared = cut = 0
    for row in rows:
        question_id = row["question_id"]
        if question_id not in expected:
            continue
        compared += 1
        divergence, was_cut = _compare(question_id, expected[question_id], row["choices"][0])
        if divergence is not None:
            divergences.append(divergence)
        elif was_cut:
            cut += 1
    return Comparison(
        compared - len(divergences),
        compared,
        cut,
        divergences[0] if divergences else None,
        [divergence.question_id for divergence in divergences],
    )


def _compare(question_id: int, expected: Row, got: Row) -> tuple[Divergence | None, bool]:
    turns = zip(expected["token_ids"], got["token_ids"], expected["finish"], got["finish"], strict=True)
    for turn, (want, have, want_finish, have_finish) in enumerate(turns):
        shared = min(len(want), len(have))
        for position in range(shared):
            if want[position] != have[position]:
                return Divergence(question_id, turn, position, want[position], have[position]), False
        if len(want) == len(have):
            continue
        # An output that met the end of its cache says nothing about what would have followed, and the
        # next turn's prompt differs by it: the comparison ends here.
        if (want_finish if len(want) < len(have) else have_finish) == "cache":
            return None, True
        ended = (want[shared], None) if len(want) > shared else (None, have[shared])
        return Divergence(question_id, turn, shared, *ended), False
    return None, False
