"""results.json of a study: every figure of its report, and what it was made from."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pydantic import AliasChoices, AliasPath, ConfigDict, Field, model_validator

from ...core.records import read_versioned
from ...evaluate.results.schema import Figure, Strict

RESULTS = "results.json"
SCHEMA_VERSION = 4
RARE = "rare data"  # the group of rare tokens: the set ``rare``, HumanEval, and the category coding
CHAIN = "chain"
EVERYTHING = "all"
GREEDY, DRAWN = "greedy", "drawn"


class _Read(Strict):
    """What earlier versions held beside these fields is left out."""

    model_config = ConfigDict(extra="ignore")


class QuestionGroup(_Read):
    """Questions that figures are given for; ``sets``: where they are from, ``questions``: how many."""

    key: str
    sets: list[str]
    questions: int


class DraftShape(_Read):
    """A draft shape: ``chain`` or ``tree N``; nodes are counted with the root, levels below it."""

    key: str
    nodes: int
    levels: int
    width: int


class Cell(_Read):
    """One method with one shape at one temperature over one group of questions.

    Attributes:
        accepted: tokens that a cycle commits, the target's own among them: mean and sample deviation over seeds, 95%
            interval over questions.
        share: of the full head's with the same seed; its interval is paired: both answer the questions that are drawn.
        tokens_per_s: by the byte roofline of the larger shape; None for other groups than all questions.
    """

    accepted: Figure
    share: Figure
    tokens_per_s: float | None = Field(
        default=None,
        validation_alias=AliasChoices(
            "tokens_per_s", AliasPath("predicted", "roofline", "tokens_per_s")
        ),  # up to version 3
    )


class MethodFigures(_Read):
    """One way of drafting.

    Attributes:
        key, family, name, setting: as in ``methods.StudyMethod``.
        exact: share of the V logits that are computed exactly, mean over draft steps.
        cells: temperature -> shape -> group.
    """

    key: str
    family: str
    name: str
    setting: str
    exact: float
    cells: dict[str, dict[str, dict[str, Cell]]]

    @property
    def label(self) -> str:
        return f"{self.name}, {self.setting}"

    def at(self, shape: str = CHAIN, group: str = EVERYTHING, temperature: str = GREEDY) -> Cell | None:
        """Its figures there; None if the study has none."""
        return self.cells.get(temperature, {}).get(shape, {}).get(group)


class Decoded(_Read):
    """One way of decoding in the check, all methods and seeds: of its ``outputs`` some are ``identical`` to plain
    decoding's, some part where rounding decides (``near_tied``), some otherwise (``faults``). ``equal_cycles`` of the
    ``cycles`` commit what the replay says; 0 if it has none.
    """

    mode: str
    outputs: int
    identical: int
    near_tied: int
    faults: int
    cycles: int
    equal_cycles: int


class Checked(_Read):
    """The decoder itself on a sample: ``check.json``.

    Attributes:
        lengths: method key -> mode -> tokens that a cycle commits, mean over the checked seeds.
        questions: of the sample.
        where: device and number format. settings: of the check.
    """

    modes: list[Decoded]
    lengths: dict[str, dict[str, float]]
    questions: int
    where: str
    settings: dict[str, int]


class StudyResults(_Read):
    """The whole file; ``checked`` may be None in a file of an earlier version."""

    schema_version: Literal[1, 2, 3, 4] = 4
    vocabforge: str
    created: str
    size: str
    seeds: list[int]
    command: str
    vocab_size: int
    shapes: list[DraftShape] = Field(min_length=1)
    groups: list[QuestionGroup]
    methods: list[MethodFigures]
    checked: Checked | None
    facts: dict[str, str]
    config: dict[str, Any]

    @model_validator(mode="after")
    def _has_a_full_head(self) -> StudyResults:
        if all(one.family != "full" for one in self.methods):
            raise ValueError("methods: none is of the family 'full', which all are compared with")
        return self

    @property
    def main_shape(self) -> str:
        """The shape of charts and short tables: the largest tree, else the chain."""
        return max(self.shapes, key=lambda shape: (shape.key != CHAIN, shape.nodes)).key

    @property
    def full(self) -> MethodFigures:
        """The full head, which all others are compared with."""
        return next(one for one in self.methods if one.family == "full")

    @property
    def main_methods(self) -> list[MethodFigures]:
        """One method a family: the one that is predicted to be quickest at the main shape."""

        def speed(method: MethodFigures) -> float:
            cell = method.at(self.main_shape)
            return (cell and cell.tokens_per_s) or 0.0

        families: dict[str, list[MethodFigures]] = {}
        for one in self.methods:
            families.setdefault(one.family, []).append(one)
        return [max(members, key=speed) for members in families.values()]


def read_study(file: Path) -> StudyResults:
    """Read the ``results.json`` of a report.

    Raises:
        DataError: missing file, another version, or a value that the schema does not allow.
    """
    return read_versioned(
        file,
        StudyResults,
        SCHEMA_VERSION,
        what="results file of the study",
        remedy="run the stage report again",
        older=(1, 2, 3),
    )
