"""``tune.json``: every candidate's figures, what is recommended and why, and what it was made from."""

from __future__ import annotations

from typing import Any

from pydantic import ConfigDict, Field

from ...core.config import StrictModel
from ...decode.build.spec import MethodSpec
from ...evaluate.results.schema import Figure
from ..types import Seconds

TUNE = "tune.json"
RECIPE = "recipe.yaml"
REPORT = "report.html"
SCHEMA_VERSION = 1


class _Figures(StrictModel):
    """Figures of which files of earlier versions hold more."""

    model_config = ConfigDict(extra="ignore")


class Times(StrictModel):
    """Seconds with bounds."""

    value: float
    low: float
    high: float

    @classmethod
    def of(cls, seconds: Seconds) -> Times:
        return cls(value=seconds.value, low=seconds.low, high=seconds.high)


class BatchRow(StrictModel):
    """What is predicted for one batch size.

    Attributes:
        tokens_per_s: of all requests together.
        speedup: over plain decoding of the same batch, both predicted.
        cycle: seconds at the prompts' mean prefix.
        warnings: why its seconds rest on more than what was measured.
    """

    batch: int
    tokens_per_s: Figure
    speedup: float | None
    cycle: Times
    warnings: list[str] = Field(default_factory=list)


class CandidateRow(_Figures):
    """One draft head with one draft tree.

    Attributes:
        head: name of the draft head; ``scores`` says what it scores.
        state: of the search: ``measured``, ``stopped``, ``not reached``.
        prompts: that its acceptance was measured on; ``identical`` of them gave plain decoding's output.
        accepted: tokens a cycle commits; None if nothing was decoded.
        method: as ``eval --recipe`` runs it.
    """

    name: str
    head: str
    scores: str
    tree: str
    state: str
    prompts: int
    identical: int
    accepted: Figure | None
    batches: list[BatchRow]
    method: MethodSpec

    def at(self, batch: int) -> BatchRow | None:
        """The prediction for a batch size."""
        return next((row for row in self.batches if row.batch == batch), None)


class RunnerUp(_Figures):
    """What another way lacks, beside the recommended one.

    Attributes:
        tokens_per_s, accepted, cycle: its share of the recommended one's, less 1: -0.1 is a tenth less.
        sure: the intervals of the two do not overlap.
    """

    name: str
    tokens_per_s: float
    accepted: float
    cycle: float
    sure: bool


class Recommendation(StrictModel):
    """What to run with so many requests side by side.

    Attributes:
        method: name of a candidate, or ``plain``.
        speedup: over plain decoding, predicted.
        why: sentences.
        runner_ups: the best of each other draft head, the best other tree, and plain decoding.
    """

    batch: int
    method: str
    tokens_per_s: Figure
    speedup: float | None
    why: list[str]
    runner_ups: list[RunnerUp]


class CheckedPrediction(_Figures):
    """A prediction beside what ``eval`` measured.

    Attributes:
        error: predicted over measured, less 1.
        inside: the predicted interval and the measured one overlap.
    """

    name: str
    predicted: Figure
    measured: Figure
    error: float
    inside: bool
    predicted_rank: int
    measured_rank: int
    predicted_accepted: Figure
    measured_accepted: Figure


class TuneCheck(_Figures):
    """Predictions compared with ``eval`` on the other half of the prompts.

    Attributes:
        rows: configurations by predicted rank; ``plain`` beside them, unranked.
        mean_error, worst_error: of the sizes of the errors; ``speedup_error`` the mean size of those of speed-ups over
            plain decoding, in which a machine that was busier in one of the two measurements cancels.
        top: names of the best three as predicted; ``measured_top`` as measured.
        evaluation: folder of the evaluation.
    """

    questions: int
    rows: list[CheckedPrediction]
    plain: CheckedPrediction
    mean_error: float
    worst_error: float
    speedup_error: float
    top: list[str]
    measured_top: list[str]
    same_top: bool
    same_order: bool
    evaluation: str


class TuneResults(StrictModel):
    """All of ``tune.json``.

    Attributes:
        what_if: the latency file that seconds were taken from, of another machine; None: measured here.
        latency: facts of the latency table: machine, device, dtype.
        inputs: hashes by role.
        prompts: how many acceptance was ``measured`` on, how many are for ``checking``, and how many were ``left_out``.
        plain: plain decoding by batch size.
        remarks: what a reader must know: time that ran out, outputs that differ.
    """

    schema_version: int = SCHEMA_VERSION
    version: str
    command: list[str]
    target: str
    drafter: str
    what_if: str | None
    latency: dict[str, Any]
    environment: dict[str, Any]
    inputs: dict[str, str]
    settings: dict[str, Any]
    prompts: dict[str, int]
    plain: list[BatchRow]
    candidates: list[CandidateRow]
    recommendations: list[Recommendation]
    remarks: list[str]
    check: TuneCheck | None = None

    def row(self, name: str) -> CandidateRow:
        """A candidate by name."""
        return next(row for row in self.candidates if row.name == name)
