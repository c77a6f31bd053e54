"""Is the output the same? Token ids of a method against plain decoding."""

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

    Turns whose token ids a server did not tell are compared by the ``texts`` of the two sides' answer rows.

    Questions that only one of them has are left out. The result holds the first divergence of each question, in order
    of question id, not judged yet.
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
    return Outputs(
        compared=compared,
        identical=compared - len(divergences),
        cut=cut,
        near_tied=0,
        faults=0,
        not_judged=len(divergences),
        divergences=divergences,
    )


def first_difference(one: Sequence[int] | str, other: Sequence[int] | str) -> int | None:
    """Where two outputs part first, from 0: the end of the shorter one if it begins the other; None: they are equal."""
    shared = min(len(one), len(other))
    place = next((at for at in range(shared) if one[at] != other[at]), shared)
    return None if place == len(one) == len(other) else place


def _first_divergence(expected: Row, got: Row) -> tuple[tuple[int, int, int | None, int | None] | None, bool]:
    """Turn, position and the two tokens (None: its output had ended); and whether a cache cut the comparison."""
    turns = zip(expected["token_ids"], got["token_ids"], expected["finish"], got["finish"], strict=True)
    for turn, (want, have, want_finish, have_finish) in enumerate(turns):
        if want is None or have is None:
            continue
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


def _first_character(want: Sequence[str], have: Sequence[str]) -> tuple[int, int, None, None] | None:
    for turn, (one, other) in enumerate(zip(want, have, strict=True)):
        if (at := first_difference(one, other)) is not None:
            return turn, at, None, None
    return None


def outputs_of(runs: Sequence[Outputs]) -> Outputs:
    """The comparisons of all runs of one method in one, counted by the judgements that divergences have by now."""
    divergences = [row for run in runs for row in run.divergences]
    judged = Counter(row.judgement for row in divergences)
    return Outputs(
        compared=sum(run.compared for run in runs),
        identical=sum(run.identical for run in runs),
        cut=sum(run.cut for run in runs),
        near_tied=judged["near-tied"],
        faults=judged["fault"],
        not_judged=judged["not judged"],
        divergences=divergences,
    )
