"""results.json of a study: every figure of its report, and what it was made from."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from ...core.records import read_versioned
from ...evaluate.results.schema import Figure, Strict

RESULTS = "results.json"
SCHEMA_VERSION = 2
RARE = "rare data"  # the group of rare tokens: the set ``rare``, HumanEval, and the category coding
CHAIN = "chain"
EVERYTHING = "all"
GREEDY, DRAWN = "greedy", "drawn"
MACHINE, ROOFLINE = COLUMNS = "machine", "roofline"

GroupKind = Literal["all", "set", "task", "category", "rare"]


class QuestionGroup(Strict):
    """Questions that figures are given for.

    Attributes:
        kind: ``all``: the headline's questions (all Spec-Bench where it is asked, else every set but ``rare``).
        sets: sets of questions that it draws from.
        questions: in it.
    """

    key: str
    kind: GroupKind
    sets: list[str]
    questions: int


class DraftShape(Strict):
    """A draft shape: ``chain`` or ``tree N``; nodes are counted with the root, levels below it."""

    key: str
    nodes: int
    levels: int
    width: int


class Speed(Strict):
    """Predicted speed of one request, without prefill.

    Attributes:
        tokens_per_s: with bounds ``low`` and ``high`` that combine those of the accepted length and of the times.
        plain: tokens/s of plain decoding.
        speedup: tokens_per_s / plain.
        cycle_s: seconds of a cycle; ``head_s``: those of its draft head.
        notes: where the times extrapolate beyond what was measured.
    """

    tokens_per_s: float
    low: float
    high: float
    plain: float
    speedup: float
    cycle_s: float
    head_s: float
    notes: list[str]


class Cell(Strict):
    """One method with one shape at one temperature over one group of questions.

    Attributes:
        accepted_by_seed: tokens that a cycle commits, the target's own among them, in the order of the seeds.
        accepted: mean over seeds, sample deviation over seeds, 95% interval over questions (main groups only).
        share_by_seed: of the full head's accepted length with the same seed, shape, temperature, and questions.
        share: as ``accepted``; its interval is paired: both heads answer the questions that are drawn.
        tokens, cycles: sums over questions and seeds.
        predicted: by column of :data:`COLUMNS`.
    """

    accepted_by_seed: list[float | None]
    accepted: Figure
    share_by_seed: list[float | None]
    share: Figure
    tokens: int
    cycles: int
    predicted: dict[str, Speed]


class MethodFigures(Strict):
    """One way of drafting.

    Attributes:
        key, family, name, setting, dynamic: as in ``methods.StudyMethod``.
        scored: mean tokens that get an exact logit, by draft step; None where no row was asked.
        exact: share of the V logits that are computed exactly, mean over draft steps.
        coverage: share of a held-out text's tokens inside its draft vocabulary, by text; empty for dynamic ones.
        conditional: temperature -> share of accepted draft tokens by draft step, of those whose predecessors were
            accepted, chain, questions of the group ``all``, pooled over seeds.
        cells: temperature -> shape -> group.
    """

    key: str
    family: str
    name: str
    setting: str
    dynamic: bool
    scored: list[float | None]
    exact: float
    coverage: dict[str, float]
    conditional: dict[str, list[float | None]]
    cells: dict[str, dict[str, dict[str, Cell]]]

    @property
    def label(self) -> str:
        return f"{self.name}, {self.setting}"

    def at(self, shape: str = CHAIN, group: str = EVERYTHING, temperature: str = GREEDY) -> Cell | None:
        """Its figures there; None where the study has none."""
        return self.cells.get(temperature, {}).get(shape, {}).get(group)


class Decoded(Strict):
    """One way of decoding in the check of the decoder itself, all methods and seeds.

    Attributes:
        outputs: of which ``identical`` are plain decoding's, ``near_tied`` part where rounding decides between two
            tokens, ``faults`` part otherwise, ``not_judged`` were too many.
        cycles: beside the replay's, of which ``equal_cycles`` commit the same; 0 where the replay has none.
        compared: outputs that these cycles are of: others are not the replayed answer.
    """

    mode: str
    outputs: int
    identical: int
    near_tied: int
    faults: int
    not_judged: int
    cycles: int
    equal_cycles: int
    compared: int = 0


class Checked(Strict):
    """The decoder itself on a sample, from ``check.json``.

    Attributes:
        modes: by way of decoding.
        lengths: method key -> mode -> tokens that a cycle commits, mean over the checked seeds.
        questions: of the sample.
        where: device and number format. settings: of the check.
    """

    modes: list[Decoded]
    lengths: dict[str, dict[str, float]]
    questions: int
    where: str
    settings: dict[str, int]

    @property
    def faults(self) -> int:
        return sum(mode.faults for mode in self.modes)


class StudyResults(Strict):
    """The whole file.

    Attributes:
        created: UTC, ISO 8601.
        vocab_size: V, rows of the LM head.
        columns: prediction columns that some cell has.
        checked: None where the decoder itself was not asked.
        facts: machine and inputs in words. missing: what this study lacks, in sentences.
        config: the resolved configuration.
    """

    schema_version: Literal[1, 2] = 2
    vocabforge: str
    created: str
    size: str
    seeds: list[int]
    command: str
    vocab_size: int
    columns: list[str]
    shapes: list[DraftShape]
    temperatures: list[str]
    groups: list[QuestionGroup]
    coverage_texts: list[str]
    methods: list[MethodFigures]
    checked: Checked | None
    facts: dict[str, str]
    missing: list[str]
    config: dict[str, Any]
    # Judgements of version 1, which are read and not kept.
    goals: list[Any] = Field(default=[], exclude=True, repr=False)
    claims: list[Any] = Field(default=[], exclude=True, repr=False)
    recommended: Any = Field(default=None, exclude=True, repr=False)

    def method(self, key: str | None) -> MethodFigures | None:
        """The method of this key; None where the study has none."""
        return next((one for one in self.methods if one.key == key), None)

    def group(self, key: str) -> QuestionGroup | None:
        """The group of this key; None where the study has none."""
        return next((one for one in self.groups if one.key == key), None)


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
        older=(1,),
    )
