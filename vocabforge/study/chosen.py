"""How methods look in charts, and which of them stand for their families where all would be too many."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..evaluate.plots import METHOD_COLOURS
from .joined import CHAIN, ROOFLINE, SHAPE
from .results import MethodFigures, StudyResults

STATIC = 32_768  # the published size of static draft vocabularies
_STATIC_FAMILIES = "fr", "trim"
# Family -> number of its colour and marker (``plots.method_colour``): grey is what others are held against.
_LOOKS: Mapping[str, int] = {
    "full": 0,
    "fr": 1,
    "trim": 2,
    "ranker": 3,
    "router": 4,
    "hybrid": 5,
    "context": 6,
    "reduced": METHOD_COLOURS,
    "pa-fr": METHOD_COLOURS + 1,
    "low-rank": METHOD_COLOURS + 6,
}


def looks(methods: Sequence[MethodFigures]) -> dict[str, int]:
    """Method key -> number of its colour and marker: colours by family, markers by name within it."""
    names: dict[str, list[str]] = {}
    for one in methods:
        known = names.setdefault(one.family, [])
        if one.name not in known:
            known.append(one.name)
    return {
        one.key: _LOOKS.get(one.family, METHOD_COLOURS + 5)
        + METHOD_COLOURS * names[one.family].index(one.name)
        for one in methods
    }


def lines(methods: Sequence[MethodFigures]) -> dict[str, list[MethodFigures]]:
    """Methods that one line joins: those of one name, by what they score."""
    found: dict[str, list[MethodFigures]] = {}
    for one in methods:
        found.setdefault(one.name, []).append(one)
    return {name: sorted(members, key=lambda one: one.exact) for name, members in found.items()}


def main_shape(results: StudyResults) -> str:
    """The shape of charts and short tables: the largest tree, else the chain."""
    return max(results.shapes, key=lambda shape: (shape.key != CHAIN, shape.nodes)).key


def main_methods(results: StudyResults) -> list[MethodFigures]:
    """One method a family: the one that reaches the goal; static ones at :data:`STATIC` (else their largest below it,
    else their smallest); others as they are predicted to be quickest at the larger shape (else as they keep most)."""
    shape = main_shape(results)
    families: dict[str, list[MethodFigures]] = {}
    for one in results.methods:
        families.setdefault(one.family, []).append(one)
    goal, found = results.goals[0].method if results.goals else None, []
    for family, members in families.items():
        reaching = next((one for one in members if one.key == goal), None)
        if reaching is not None:
            found.append(reaching)
        elif family in _STATIC_FAMILIES:
            bound = STATIC / results.vocab_size
            below = [one for one in members if one.exact <= bound * (1 + 1e-9)]
            found.append(max(below, key=lambda one: one.exact) if below else min(members, key=_exact))
        else:
            found.append(max(members, key=lambda one: _worth(one, shape)))
    return found


def static_of(results: StudyResults, shape: str, column: str) -> MethodFigures | None:
    """The static vocabulary of :data:`STATIC` that speeds are held against: the faster of FR-Spec and VocabTrim."""
    found = []
    for one in results.methods:
        cell = one.at(shape)
        size = round(one.exact * results.vocab_size)
        if (
            one.family in _STATIC_FAMILIES
            and size == STATIC
            and cell is not None
            and column in cell.predicted
        ):
            found.append((cell.predicted[column].tokens_per_s, one))
    return max(found, key=lambda pair: pair[0])[1] if found else None


def _exact(method: MethodFigures) -> float:
    return method.exact


def _worth(method: MethodFigures, shape: str) -> tuple[float, float]:
    cell = method.at(shape)
    if cell is None:
        return 0.0, 0.0
    speed = next(
        (cell.predicted[column].tokens_per_s for column in (SHAPE, ROOFLINE) if column in cell.predicted), 0.0
    )
    return speed, cell.share.value or 0.0
