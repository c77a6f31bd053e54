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
        tokens_per_s: throughput of all requests together, including the prompts' passes.
        speedup: ratio to plain decoding in the same turns.
        cycle: seconds per cycle, including the prompts' passes; None for several requests.
    """

    batch: int
    tokens_per_s: Figure
    speedup: Figure
    cycle: float | None


class CandidateRow(StrictModel):
    """A draft head with a draft tree.

    Attributes:
        head: name of the draft head; ``scores``: number of tokens that it scores.
        state: state of the search: ``measured``, ``stopped``, ``not reached``.
        groups: number of groups of prompts measured; the output of ``different`` of them differs from plain
            decoding.
        accepted: tokens per cycle of one request; None if nothing was decoded.
        method: the method as ``eval --recipe`` runs it.
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
    """The method to use for a number of concurrent requests.

    Attributes:
        method: name of a candidate, or ``plain``.
        speedup: ratio to plain decoding.
        why: reasons, one sentence each.
        others: the best method of each other draft head and this head's next tree, best first.
    """

    batch: int
    method: str
    speedup: Figure
    why: list[str]
    others: list[str]


class TuneResults(StrictModel):
    """Content of ``tune.json``.

    Attributes:
        inputs: role -> hash.
        prompts: maximum number ``measured``, and number ``left_out`` as too long.
        plain: tokens/s of plain decoding by batch size, over all turns.
        remarks: warnings, such as a time limit reached or outputs that differ.
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
