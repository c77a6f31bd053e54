"""``tune.json``: every candidate's figures, what is recommended and why, and what it was made from."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from ..core.config import StrictModel
from ..decode.build.spec import MethodSpec
from ..evaluate.results.schema import Figure

TUNE = "tune.json"
RECIPE = "recipe.yaml"
REPORT = "report.html"
SCHEMA_VERSION = 1


class BatchRow(StrictModel):
    """What is predicted for one batch size.

    Attributes:
        tokens_per_s: of all requests together.
        speedup: over plain decoding of the same batch, both predicted.
        cycle: seconds at the prompts' mean prefix.
    """

    batch: int
    tokens_per_s: Figure
    speedup: float | None
    cycle: Figure
    warnings: list[str] = Field(default_factory=list)  # of earlier versions


class CandidateRow(StrictModel):
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
    state: str
    prompts: int
    identical: int
    accepted: Figure | None
    batches: list[BatchRow]
    method: MethodSpec

    def at(self, batch: int) -> BatchRow | None:
        """The prediction for a batch size."""
        return next((row for row in self.batches if row.batch == batch), None)


class Recommendation(StrictModel):
    """What to run with so many requests side by side.

    Attributes:
        method: name of a candidate, or ``plain``.
        speedup: over plain decoding, predicted.
        why: sentences.
        others: the best of each other draft head and the next tree of this one, the best first.
    """

    batch: int
    method: str
    tokens_per_s: Figure
    speedup: float | None
    why: list[str]
    others: list[str]


class CheckedPrediction(StrictModel):
    """A prediction and what ``eval`` measured.

    Attributes:
        error: predicted over measured, less 1.
        predicted_rank, measured_rank: from 1; 0 for plain decoding.
    """

    name: str
    predicted: Figure
    measured: Figure
    error: float
    predicted_rank: int
    measured_rank: int


class TuneCheck(StrictModel):
    """Predictions by rank compared with ``eval`` on the other half of the prompts, plain decoding last; ``evaluation``
    is its folder, ``mean_error`` of the sizes of the errors.
    """

    questions: int
    rows: list[CheckedPrediction]
    mean_error: float
    evaluation: str


class TuneResults(StrictModel):
    """All of ``tune.json``.

    Attributes:
        what_if: the latency file that seconds were taken from, of another machine; None: measured here.
        latency: facts of the latency table: machine, device, dtype.
        inputs: hashes by role.
        prompts: how many acceptance was ``measured`` on, are for ``checking``, and were ``left_out``.
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
