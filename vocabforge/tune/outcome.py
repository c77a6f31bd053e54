"""``tune.json``: the figures of every candidate, the recommendation and its reasons, and the inputs."""

from __future__ import annotations

from typing import Any

from ..core.config import StrictModel
from ..decode.build.spec import MethodSpec
from ..evaluate.results.schema import Figure

TUNE = "tune.json"
RECIPE = "recipe.yaml"
REPORT = "report.html"
SCHEMA_VERSION = 2


class BatchRow(StrictModel):
    """Measurement with one batch size.

    Attributes:
        tokens_per_s: of all requests together, the prompts' passes included.
        speedup: over plain decoding in the same turns.
        cycle: seconds of a cycle, the prompts' passes included; None for several requests.
    """

    batch: int
    tokens_per_s: Figure
    speedup: Figure
    cycle: float | None


class CandidateRow(StrictModel):
    """One draft head with one draft tree.

    Attributes:
        head: name of the draft head; ``scores``: the tokens that it scores.
        state: of the search: ``measured``, ``stopped``, ``not reached``.
        groups: groups of prompts that it was measured on; ``different`` of them gave another output than plain
            decoding.
        accepted: tokens that a cycle commits for one request; None if nothing was decoded.
        method: as ``eval --recipe`` runs it.
    """

    name: str
    head: str
    scores: str
    state: str
    groups: int
    different: int
    accepted: Figure | None
    batches: list[BatchRow]
    method: MethodSpec

    def at(self, batch: int) -> BatchRow | None:
        """Return the row of a batch size."""
        return next((row for row in self.batches if row.batch == batch), None)


class Recommendation(StrictModel):
    """What to run with so many requests side by side.

    Attributes:
        method: name of a candidate, or ``plain``.
        speedup: over plain decoding.
        why: sentences.
        others: the best of each other draft head and the next tree of this one, the best first.
    """

    batch: int
    method: str
    speedup: Figure
    why: list[str]
    others: list[str]


class TuneResults(StrictModel):
    """All of ``tune.json``.

    Attributes:
        inputs: hashes by role.
        prompts: how many were ``measured`` on at most, and ``left_out`` as too long.
        plain: tokens a second of plain decoding by batch size, over all turns.
        remarks: warnings, such as time that ran out or outputs that differ.
    """

    schema_version: int = SCHEMA_VERSION
    version: str
    command: list[str]
    target: str
    drafter: str
    environment: dict[str, Any]
    inputs: dict[str, str]
    settings: dict[str, Any]
    prompts: dict[str, int]
    plain: dict[str, float | None]
    candidates: list[CandidateRow]
    recommendations: list[Recommendation]
    remarks: list[str]

    def row(self, name: str) -> CandidateRow:
        """Return a candidate by name."""
        return next(row for row in self.candidates if row.name == name)
