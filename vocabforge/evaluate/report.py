"""One self-contained HTML page of an evaluation: headline, charts, tables, evidence, how to run it again."""

from __future__ import annotations

from ..decode.drafting_counts import phrase_of
from .page import render_page
from .report_charts import report_charts
from .report_text import (
    PART_NAMES,
    deviation,
    divergence_line,
    explained,
    figure_of,
    group_of,
    headline,
    headline_method,
    interval,
    judgements,
    law_line,
    number,
    parts_of,
    quoted,
    row_keys,
    worst_first,
)
from .results import Results

# More divergences than these, a method, are left to results.json.
MOST_DIVERGENCES = 60
# Tables by task: field, heading, digits, what stands behind the number, whether it is unfolded.
TASK_FIGURES = (
    ("speedup", "Speed-up", 2, "×", True),
    ("accepted_length", "Accepted length", 2, "", True),
    ("tokens_per_s", "Tokens per second", 1, "", False),
    ("forwards_per_token", "Passes of the target per token", 3, "", False),
    ("speedup_retokenised", "Speed-up, the baseline's text tokenised again", 2, "×", False),
    ("seconds_per_step", "Seconds per verification", 4, "", False),
)


def render_report(results: Results) -> str:
    """HTML text of the results; it loads nothing from anywhere and runs no script."""
    return render_page(
        "report.html.j2",
        results=results,
        methods=results.methods,
        baseline=results.methods[0],
        best=headline_method(results),
        headline=headline(results),
        charts=report_charts(results),
        rows=row_keys(results),
        task_figures=TASK_FIGURES,
        parts=parts_of(results),
        part_names=PART_NAMES,
        most=MOST_DIVERGENCES,
        figure_of=figure_of,
        group_of=group_of,
        explained=explained,
        interval=interval,
        deviation=deviation,
        shown=number,
        judgements=judgements,
        divergence_line=divergence_line,
        law_line=law_line,
        worst_first=worst_first,
        quoted=quoted,
        counted=phrase_of,
    )
