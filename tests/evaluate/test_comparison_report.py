"""A comparison on a terminal and as a page."""

from __future__ import annotations

import re

import pytest
from rich.console import Console

from tests.evaluate.comparison_support import Made, write_run
from vocabforge.evaluate.comparison.compare import compare_runs
from vocabforge.evaluate.comparison.report import comparison_tables, headline, render_comparison
from vocabforge.evaluate.comparison.results import RunComparison
from vocabforge.evaluate.comparison.runs import open_runs


@pytest.fixture(scope="module")
def comparison(tmp_path_factory: pytest.TempPathFactory) -> RunComparison:
    """Three runs: a slower machine with another method and another output, and another machine."""
    folder = tmp_path_factory.mktemp("runs")
    made = {
        "A": Made(),
        "B": Made(methods={"plain": (1,), "eagle3": (3, 3), "<b>&": (2,)}, machine=0.9, other_at={7: 5}),
        "C": Made(facts={"environment": {"processor": "Another one"}}),
    }
    runs = open_runs([f"{label}={write_run(folder / label, one)}" for label, one in made.items()])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("vocabforge.evaluate.results.intervals.RESAMPLES", 200)
        return compare_runs(runs)


def printed(comparison: RunComparison, width: int) -> str:
    console = Console(width=width, highlight=False)
    with console.capture() as capture:
        for table in comparison_tables(comparison).values():
            console.print(table)
    return capture.get()


def test_the_terminal_shows_every_table(comparison: RunComparison) -> None:
    text = printed(comparison, 200)
    assert "llama-3-8b-instruct on spec-bench: 40 questions in all of 3 runs" in text
    assert "differences to A:eagle3" in text
    row = comparison.differences_of("overall")["B:eagle3", "accepted_length"]
    assert row.difference is not None
    (line,) = re.findall(r"B:eagle3 +accepted length.*", text)
    assert f"{row.difference.value:+.2f}" in line
    assert f"[{row.difference.low:+.2f}, {row.difference.high:+.2f}]" in line
    assert line.rstrip().endswith("better")
    assert re.search(r"speed-up +– +– +– +not judged: measured on another machine", text)
    assert re.search(r"tokens/s .*not judged: the machine was not equally fast", text)
    assert re.search(r"A:plain +B:plain +39 of 40 +first at question 7, turn 1, token 6", text)
    assert re.search(r"processor +An 8-core processor +An 8-core processor +Another one", text)
    assert re.search(r"A:eagle3 .*80 of 80", text)
    assert "A:plain" in text
    assert "B:<b>&" in text
    (overall,) = re.findall(r"^ overall .*", text, re.MULTILINE)
    assert overall.count("▲") >= 1, "B:eagle3 accepts more"
    assert overall.count("▼") >= 2, "A:ngram accepts less and is slower"


def test_the_terminal_may_be_narrow(comparison: RunComparison) -> None:
    lines = printed(comparison, 60).splitlines()
    assert max(map(len, lines)) <= 60
    assert any("eagle3" in line for line in lines)


def test_the_page_stands_alone_and_shows_the_figures(comparison: RunComparison) -> None:
    page = render_comparison(comparison)
    assert not re.search(r"""(src|href)=["'](?!#|data:)""", page), "it loads something"
    assert "<script" not in page
    assert "<b>&" not in page.replace("&lt;b&gt;&amp;", "")
    for title in (
        "Methods",
        "Differences to A:eagle3",
        "By task",
        "Outputs between runs",
        "What differs between the runs",
        "How they were measured",
    ):
        assert re.search(rf"<h2[^>]*>{title}</h2>", page), title
    figure = next(row for row in comparison.methods if row.name == "B:eagle3").figures["overall"]["speedup"]
    assert f"{figure.value:.2f}×" in page
    assert f"{figure.low:.2f}–{figure.high:.2f}<" in page
    for warning in comparison.warnings:
        said = f"{warning[:1].upper()}{warning[1:]}"
        assert said.split(" (")[0].replace("&", "&amp;").replace("<b>", "&lt;b&gt;") in page
    assert page.count("; fewer is better<") == 1
    assert page.count("<svg") == 4, "a chart a figure"
    assert len(re.findall(r'\bid="([^"]+)"', page)) == len(set(re.findall(r'\bid="([^"]+)"', page)))
    assert all(f"{one.command}</pre>" in page for one in comparison.runs)
    assert '<td class="text good">better</td>' in page
    assert '<td class="text bad">worse</td>' in page
    for colour in (3, 4):
        assert re.search(rf"(fill|stroke): var\(--m{colour}\)", page)


def test_what_is_not_there_is_left_out(comparison: RunComparison) -> None:
    bare = comparison.model_copy(
        update={
            "outputs": [],
            "differing": {},
            "warnings": [],
            "differences": [],
            "groups": {"overall": 40, "qa": 40},
        }
    )
    page = render_comparison(bare)
    for title in ("Differences to", "By task", "Outputs between", "What differs"):
        assert not re.search(rf"<h2[^>]*>{title}", page), title
    assert 'class="told' not in page
    assert "Against A:eagle3: nothing to compare." in page
    assert "<svg" not in page
    text = printed(bare, 120)
    assert "differences" not in text
    assert "by task" not in text


def test_the_headline_says_what_is_sure(comparison: RunComparison) -> None:
    assert headline(comparison) == (
        "Against A:eagle3: A:ngram, B:<b>& are slower; B:eagle3 is not shown to differ in speed; "
        "C:eagle3, C:ngram are not compared in speed."
    )
