"""The tables that end an evaluation on a terminal."""

from __future__ import annotations

import io

from rich.console import Console

from tests.evaluate.results_sample import sample_results
from vocabforge.evaluate.reports.tables import count_lines, divergence_lines, overview_table


def shown(what: object, width: int = 80) -> str:
    console = Console(width=width, file=io.StringIO(), record=True)
    console.print(what)
    return console.export_text()


def test_overview_fits_a_terminal_and_shows_intervals() -> None:
    results = sample_results(3, 2)
    text = shown(overview_table(results))
    assert "1.84" in text
    assert "1.81–1.87" in text
    assert "957 of" in text
    assert "baseline" in text
    assert "95% interval over questions" in text
    assert "…" not in text, "a figure is cut"
    assert "interval" not in shown(overview_table(sample_results(2, 1, categories={"qa": 1})))


def test_lines_of_what_differs_and_what_was_counted() -> None:
    results = sample_results(3, 2)
    assert divergence_lines(results) == [
        "eagle3+freq-32k differs from plain decoding in 3 of 960 outputs (1 fault, 2 near-tied), first at "
        "question 103, turn 1, token 28"
    ]
    tied = sample_results(2, 1, faults=0)
    assert "(2 near-tied), first at question 101" in divergence_lines(tied)[0]
    assert divergence_lines(sample_results(2, 1, temperature=1.0)) == []
    method = results.methods[1]
    counted = method.model_copy(
        update={"summary": method.summary.model_copy(update={"counts": {"drafted": 1200}})}
    )
    changed = results.model_copy(update={"methods": [results.methods[0], counted]})
    assert count_lines(changed) == ["eagle3: 1,200 tokens of the drafter drawn"]
    assert count_lines(results) == []
