"""Compare the token ids of a method with those of plain decoding."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from ..results.schema import DivergenceRow, Outputs

Row = Mapping[str, Any]


def compare_outputs(
    baseline: Sequence[Row],
    rows: Sequence[Row],
    run: int = 1,
    *,
    texts: tuple[Sequence[Row], Sequence[Row]] = ((), ()),
) -> Outputs:
    """Compare detail rows of a method with those of plain decoding by token id.

    If a server did not return token ids, the ``texts`` of the answer rows are compared instead. Questions
    that only one side has are skipped. The result lists the first divergence of each question by question id,
    not yet judged.
    """
    expected = {row["question_id"]: row["choices"][0] for row in baseline}
    want_texts, have_texts = (
        {row["question_id"]: row["choices"][0]["turns"] for row in one} for one in texts
    )
    divergences: list[DivergenceRow] = []
    compared = cut = 0
    for row in sorted(rows, key=lambda row: row["question_id"]):
        question_id = row["question_id"]
        if question_id not in expected:
            continue
        compared += 1
        plain, own = expected[question_id], row["choices"][0]
        place, was_cut = _first_divergence(plain, own)
        unit: Literal["token", "character"] = "token"
        if place is None and not was_cut and None in [*plain["token_ids"], *own["token_ids"]]:
            place, unit = _first_character(want_texts[question_id], have_texts[question_id]), "character"
        cut += was_cut
        if place is not None:
            turn, position, want, have = place
            divergences.append(
                DivergenceRow(
                    run=run,
                    question_id=question_id,
                    turn=turn,
                    position=position,
                    expected=want,
                    got=have,
                    unit=unit,
                )
            )
    return _counted(compared, cut, divergences)


def first_difference(one: Sequence[int] | str, other: Sequence[int] | str) -> int | None:
    """Return the first position where two outputs differ (the length of a prefix); None if they are equal."""
    shared = min(len(one), len(other))
    place = next((at for at in range(shared) if one[at] != other[at]), shared)
    return None if place == len(one) == len(other) else place


def _first_divergence(expected: Row, got: Row) -> tuple[tuple[int, int, int | None, int | None] | None, bool]:
    """Return turn, position and tokens (None: output ended), and whether a full cache cut it short."""
    turns = zip(expected["token_ids"], got["token_ids"], expected["finish"], got["finish"], strict=True)
    for turn, (want, have, want_finish, have_finish) in enumerate(turns):
        if want is None or have is None:
            continue
        position = first_difference(want, have)
        if position is None:
            continue
        if position < min(len(want), len(have)):
            return (turn, position, want[position], have[position]), False
        # Stop at an output that filled its cache: its continuation is unknown, and the prompt of the
        # next turn differs because of it.
        if (want_finish if len(want) < len(have) else have_finish) == "cache":
            return None, True
        ended = (want[position], None) if len(want) > position else (None, have[position])
        return (turn, position, *ended), False
    return None, False


def _first_character(want: Sequence[str], have: Sequence[str]) -> tuple[int, int, None, None] | None:
    for turn, (one, other) in enumerate(zip(want, have, strict=True)):
        if (at := first_difference(one, other)) is not None:
            return turn, at, None, None
    return None


def outputs_of(runs: Sequence[Outputs]) -> Outputs:
    """Merge the comparisons of all runs of a method, counting the current judgements of divergences."""
    divergences = [row for run in runs for row in run.divergences]
    return _counted(sum(run.compared for run in runs), sum(run.cut for run in runs), divergences)


def _counted(compared: int, cut: int, divergences: list[DivergenceRow]) -> Outputs:
    judged = Counter(row.judgement for row in divergences)
    return Outputs(
        compared=compared,
        identical=compared - len(divergences),
        cut=cut,
        near_tied=judged["near-tied"],
        faults=judged["fault"],
        not_judged=judged["not judged"],
        divergences=divergences,
    )
