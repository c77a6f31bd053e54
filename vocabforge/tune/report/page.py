"""One self-contained HTML page of a tuning run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ...decode.build.recipe import PLAIN
from ...evaluate.reports.page import render_page
from ...evaluate.reports.plots import WIDTH_IN
from .charts import WIDE_IN, ChartPoint, pareto_chart
from .outcome import BatchRow, CandidateRow, Recommendation, TuneResults

_SHOWN = 15  # rows before the others are folded away


@dataclass(frozen=True)
class BatchSection:
    """Everything about one batch size.

    Attributes:
        wide, narrow: the chart for a page and for a phone.
        rows: candidates with their prediction, the best first.
    """

    recommendation: Recommendation
    plain: BatchRow
    best: CandidateRow | None
    wide: str
    narrow: str
    rows: list[tuple[CandidateRow, BatchRow]]

    @property
    def shown(self) -> list[tuple[CandidateRow, BatchRow]]:
        return self.rows[:_SHOWN]

    @property
    def folded(self) -> list[tuple[CandidateRow, BatchRow]]:
        return self.rows[_SHOWN:]


def render_report(results: TuneResults) -> str:
    """HTML text; it loads nothing from anywhere."""
    heads = head_places(results)
    return render_page(
        "tune_report.html.j2",
        results=results,
        sections=[_section(results, one, heads) for one in results.recommendations],
        heads={name: (index, _scores(results, name)) for name, index in heads.items()},
        left=[row for row in results.candidates if not row.batches],
        check=results.check,
        facts=_facts(results),
        command=" ".join(results.command),
        plain_name=PLAIN,
    )


def head_places(results: TuneResults) -> dict[str, int]:
    """Name of each draft head -> number of its colour; 0 is plain decoding's."""
    names = dict.fromkeys(row.head for row in results.candidates)
    return {name: index for index, name in enumerate(names, start=1)}


def _section(results: TuneResults, one: Recommendation, heads: Mapping[str, int]) -> BatchSection:
    rows = [(row, found) for row in results.candidates if (found := row.at(one.batch)) is not None]
    rows.sort(key=lambda pair: -(pair[1].tokens_per_s.value or 0.0))
    base = next(row for row in results.plain if row.batch == one.batch)
    places = [
        ChartPoint(
            heads[row.head],
            row.name,
            found.cycle.value * 1e3,
            row.accepted.value,
            chain=row.tree.startswith("chain"),
            best=row.name == one.method,
        )
        for row, found in rows
        if row.accepted is not None and row.accepted.value is not None
    ]
    plain = ChartPoint(0, PLAIN, base.cycle.value * 1e3, 1.0, best=one.method == PLAIN)
    charts = [
        pareto_chart(f"pareto-{one.batch}-{name}", places, plain, batch=one.batch, width=width)
        for name, width in (("wide", WIDE_IN), ("narrow", WIDTH_IN))
    ]
    best = None if one.method == PLAIN else results.row(one.method)
    return BatchSection(one, base, best, charts[0], charts[1], rows)


def _scores(results: TuneResults, head: str) -> str:
    return next(row.scores for row in results.candidates if row.head == head)


def _facts(results: TuneResults) -> dict[str, Any]:
    latency, here = results.latency, results.environment
    there = latency["environment"]
    where = [there.get("gpu"), there.get("processor"), f"{there.get('threads')} threads", latency["dtype"]]
    facts = {
        "target": results.target,
        "drafter": results.drafter,
        "seconds from": ", ".join(str(one) for one in where if one)
        + (", cycles captured as graphs" if latency["graphs"] else ""),
        "typical error of cycles": f"{100 * latency['error']:.1f}%",
        "latency file": f"{latency['file']}, sha256 {latency['sha256'][:16]}",
        "accepted lengths from": f"{results.prompts['measured']} prompts of {results.settings['prompts']}, at most "
        f"{results.settings['new_tokens']} new tokens each, greedy, on {here.get('gpu') or here.get('processor')}",
        "versions": f"vocabforge {results.version}, torch {here.get('torch')}",
    }
    facts |= {f"hash of {role}": digest[:16] for role, digest in results.inputs.items()}
    return facts
