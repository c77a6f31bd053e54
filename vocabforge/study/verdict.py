"""What a study says in a sentence."""

from __future__ import annotations

from .claim_looks import FASTER, KEPT
from .joined import EVERYTHING, GREEDY, ROOFLINE, SHAPE
from .results import Goal, StudyResults

COLUMN_WORDS = {SHAPE: "head times measured", ROOFLINE: "arithmetic: the byte roofline"}
_BEGINNINGS = {
    True: "The goal is reached",
    False: "The goal is not reached",
    None: "The goal could not be tried",
}


def verdict(results: StudyResults) -> str:
    """The goal with the largest tree, greedy; then with which others it is reached."""
    first, others = results.goals[0], results.goals[1:]
    said = f"{_BEGINNINGS[first.claim.held]} ({place(first)}): {_found(results, first)}."
    tried = [one for one in others if one.claim.held is not None and place(one) != place(first)]
    if tried:
        reached = [place(one) for one in tried if one.claim.held]
        failed = [place(one) for one in tried if not one.claim.held]
        words = [("reached", reached), ("not reached", failed)]
        said += f" It is {'; '.join(f'{word} with {listed(names)}' for word, names in words if names)}."
    return said


def place(goal: Goal) -> str:
    """``tree 60, greedy``."""
    return f"{goal.shape}, {'greedy' if goal.temperature == GREEDY else 'temperature 1'}"


def listed(names: list[str]) -> str:
    """``a; b and c``."""
    return " and ".join(filter(None, ("; ".join(names[:-1]), names[-1])))


def _found(results: StudyResults, goal: Goal) -> str:
    best = results.method(goal.method)
    cell = None if best is None else best.at(goal.shape, EVERYTHING, goal.temperature)
    if best is None or cell is None or cell.share.value is None or goal.claim.value is None:
        return goal.claim.found
    column = next((one for one in (SHAPE, ROOFLINE) if one in cell.predicted), ROOFLINE)
    kept = cell.share
    between = (
        "" if kept.low is None or kept.high is None else f", 95% interval {kept.low:.1%} to {kept.high:.1%}"
    )
    measured = results.facts.get("8B shape's times") if column == SHAPE else None
    return (
        f"{best.label} keeps {kept.value:.1%} of the full head's accepted length (goal {KEPT:.1%}{between}) with "
        f"{best.exact:.2%} of exact logits, and is predicted to be {goal.claim.value:.2f} times as fast as a static "
        f"vocabulary of 32,768 at the 8B shape (goal {FASTER:.2f}; {COLUMN_WORDS[column]}"
        f"{f' on {measured}' if measured else ''}){_smaller(results, goal, column)}"
    )


def _smaller(results: StudyResults, goal: Goal, column: str) -> str:
    """Names a static vocabulary of any size that is predicted to be faster than the goal's method."""
    speeds = {}
    for one in results.methods:
        cell = one.at(goal.shape, EVERYTHING, goal.temperature)
        if cell is not None and column in cell.predicted:
            speeds[one.key] = (cell.predicted[column].tokens_per_s, one, cell)
    mine = speeds.get(goal.method or "")
    static = [found for found in speeds.values() if found[1].family in ("fr", "trim", "pa-fr")]
    if mine is None or not static:
        return ""
    best = max(static, key=lambda found: found[0])
    if best[0] <= mine[0]:
        return "; no static vocabulary of another size is faster"
    kept = best[2].share.value
    return (
        f"; {best[1].label} is {best[0] / mine[0]:.2f} times as fast as that"
        f"{f' and keeps {kept:.1%}' if kept is not None else ''}"
    )
