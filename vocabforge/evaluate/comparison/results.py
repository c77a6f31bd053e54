"""The result of ``vocabforge report A B``, as ``--json`` prints it."""

from __future__ import annotations

from typing import Literal

from ..results.schema import Figure, Strict, VocabularyFacts
from .figures import KINDS, Verdict


class RunRow(Strict):
    """One evaluation.

    Attributes:
        label: its name here. hash: of the artefact.
        machine: runs with the same number were measured on the same one, as far as their facts tell.
        answered: questions that all its methods answered.
        machine_facts, noted_facts: what may differ between runs, as texts.
        plain_tokens_per_s: of plain decoding over the compared questions.
        drift: plain decoding's tokens/s less that of the reference's run; None for that run, and for another machine
            unless machines were to be compared.
        drift_verdict: ``better`` (faster), ``worse``, ``no difference shown``, or ``not judged`` without a drift.
    """

    label: str
    folder: str
    hash: str
    created: str
    vocabforge: str
    command: str
    machine: int
    seeds: list[int]
    repeats: int
    answered: int
    machine_facts: dict[str, str]
    noted_facts: dict[str, str]
    plain_tokens_per_s: Figure
    drift: Figure | None
    drift_verdict: Verdict


class MethodRow(Strict):
    """One method of one run over the compared questions.

    Attributes:
        name: ``RUN:METHOD``.
        baseline: whether it is its run's plain decoding.
        figures: group (``overall``, then tasks) -> figure -> value with spread and interval.
        compared, identical, near_tied, faults: outputs against its own plain decoding; None if they were
            sampled. They count the whole run.
    """

    name: str
    run: str
    method: str
    baseline: bool
    description: str
    vocabulary: VocabularyFacts | None
    figures: dict[str, dict[str, Figure]]
    compared: int | None
    identical: int | None
    near_tied: int | None
    faults: int | None


class DifferenceRow(Strict):
    """A method's figure less the reference's.

    Attributes:
        group: ``overall`` or a task.
        difference: with its 95% bootstrap interval over questions; None if it was not to be formed.
        relative: difference / the reference's figure.
        verdict: ``better`` and ``worse`` only if the interval excludes 0.
        reason: why it was not judged, or what weakens the verdict; else empty.
    """

    method: str
    group: str
    figure: str
    difference: Figure | None
    relative: float | None
    paired: bool
    verdict: Verdict
    reason: str


class OutputRow(Strict):
    """Greedy outputs of one method in two runs, by token id.

    Attributes:
        first, second: ``RUN:METHOD``.
        question_id, turn, position: of the first divergence, turn and position from 0; None without one.
        expected, got: the token of ``first`` and of ``second``; None: its output had ended.
    """

    first: str
    second: str
    compared: int
    identical: int
    question_id: int | None = None
    turn: int | None = None
    position: int | None = None
    expected: int | None = None
    got: int | None = None

    @property
    def place(self) -> str:
        """Where the two outputs differ first, counted from 1."""
        if self.question_id is None or self.turn is None or self.position is None:
            return "nowhere"
        return f"first at question {self.question_id}, turn {self.turn + 1}, token {self.position + 1}"


class RunComparison(Strict):
    """Several evaluations side by side.

    Attributes:
        questions: answered by every method of every run; all figures count only these.
        groups: group -> questions in it.
        reference: ``RUN:METHOD`` that the others are compared with.
        differing: facts of machine or protocol that are not the same in all runs -> text by run.
    """

    schema_version: Literal[1] = 1
    vocabforge: str
    target: str
    benchmark: str
    greedy: bool
    settings: dict[str, str]
    questions: int
    groups: dict[str, int]
    reference: str
    across_machines: bool
    runs: list[RunRow]
    methods: list[MethodRow]
    differences: list[DifferenceRow]
    outputs: list[OutputRow]
    differing: dict[str, dict[str, str]]
    warnings: list[str]

    @property
    def reference_run(self) -> str:
        """Label of the run that the reference belongs to."""
        return next(row.run for row in self.methods if row.name == self.reference)

    def kinds(self) -> list[str]:
        """The figures that some method has, in the order of ``KINDS``."""
        return [name for name in KINDS if any(name in row.figures["overall"] for row in self.methods)]

    def differences_of(self, group: str) -> dict[tuple[str, str], DifferenceRow]:
        """(method, figure) -> its difference in one group."""
        return {(row.method, row.figure): row for row in self.differences if row.group == group}
