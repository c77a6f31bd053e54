"""What a study says in a sentence."""

from __future__ import annotations

from .claim_looks import FASTER, KEPT
from .joined import EVERYTHING, ROOFLINE, SHAPE
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
    return f"{goal.shape}, {'greedy' if goal.temperature == 'greedy' else 'temperature 1'}"


def listed(names: list[str]) -> str:
    """``a; b and c``."""
    return " and ".join(filter(None, ("; ".join(names[:-1]), names[-1])))


def _found(results: StudyResults, goal: Goal) -> str:
    best = results.method(goal.method)
    cell = None if best is None else best.at(goal.shape, EVERYTHING, goal.temperature)
    if best is None or cell is None or cell.share.value is None or goal.claim.value is None:
        return goal.claim.found
    column = next((one for one in (SHAPE, ROOFLINE) if one in cell.predicted), ROOFLINE)
    return (
        f"{best.label} keeps {cell.share.value:.1%} of the full head's accepted length (goal {KEPT:.1%}) with "
        f"{best.exact:.2%} of exact logits, and is predicted to be {goal.claim.value:.2f} times as fast as a static "
        f"vocabulary of 32,768 at the 8B shape (goal {FASTER:.2f}; {COLUMN_WORDS[column]})"
    )
