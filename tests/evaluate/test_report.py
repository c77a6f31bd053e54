"""The HTML page of an evaluation: it stands alone, and it shows what the results say."""

from __future__ import annotations

import html
import re
from html.parser import HTMLParser

import pytest

from tests.evaluate.results_sample import sample_results
from tests.worlds import ROOT
from vocabforge.evaluate.reports.evaluation import render_report
from vocabforge.evaluate.reports.tables import headline, overview_table, parts_of
from vocabforge.evaluate.results.schema import Figure, Results

FEW = {"writing": 2, "qa": 3}
# Charts are made by our own code, whose texts are escaped.
CHARTS = re.compile(r"\bsvg\|safe")


class Page(HTMLParser):
    """What a browser would fetch and run, ids, links, and whether tags are balanced."""

    VOID = ("meta", "link", "br", "wbr", "path", "use", "rect", "circle", "line")

    def __init__(self, text: str) -> None:
        super().__init__()
        self.loads: list[str] = []
        self.ids: list[str] = []
        self.tags: list[str] = []
        self.svgs = 0
        self.feed(text)
        self.close()
        assert self.tags == []

    def handle_starttag(self, tag, attributes) -> None:
        found = dict(attributes)
        assert tag not in ("script", "iframe", "object", "embed", "img"), tag
        assert not [name for name in found if name.startswith("on")], found
        self.loads += [found[name] for name in ("src", "href", "xlink:href", "data") if found.get(name)]
        self.ids += [found["id"]] if "id" in found else []
        self.svgs += tag == "svg"
        if tag not in self.VOID:
            self.tags.append(tag)

    def handle_startendtag(self, tag, attributes) -> None:
        self.handle_starttag(tag, attributes)
        if tag not in self.VOID:
            self.tags.pop()

    def handle_endtag(self, tag) -> None:
        if tag not in self.VOID:
            assert self.tags.pop() == tag


@pytest.fixture(scope="module")
def many() -> Results:
    """Nine methods, so that colours begin again."""
    return sample_results(9, 2, categories=FEW)


def _undrawn(patch: pytest.MonkeyPatch) -> dict[str, tuple]:
    """Charts are not drawn; what they would show is kept by their names."""
    asked: dict[str, tuple] = {}

    def keep(name: str, *what, **more) -> str:
        asked[name] = (*what, more)
        return "<svg></svg>"

    for draw in ("evaluation.bar_rows", "page.line_svg"):
        patch.setattr(f"vocabforge.evaluate.reports.{draw}", keep)
    return asked


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> dict[str, tuple]:
    return _undrawn(monkeypatch)


@pytest.fixture(scope="module")
def page(many: Results) -> str:
    with pytest.MonkeyPatch.context() as patch:
        _undrawn(patch)
        return render_report(many)


def _words(text: str) -> str:
    """The text of a page without tags, with single spaces."""
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", text)).split())


def test_the_page_loads_nothing() -> None:
    results = sample_results(3, 2, categories={"qa": 3})
    page = render_report(results)
    parsed = Page(page)
    assert all(link.startswith(("#", "data:,")) for link in parsed.loads)
    assert {link[1:] for link in parsed.loads if link.startswith("#")} <= set(parsed.ids)
    assert len(parsed.ids) == len(set(parsed.ids)), "charts share ids"
    assert not re.search(r"https?:|@import|url\((?!#)", page)
    assert parsed.svgs == 3


def test_figures_stand_with_interval_and_deviation(many: Results, page: str) -> None:
    best = max(many.methods[1:], key=lambda method: method.summary.overall.speedup.value or 0)
    speedup = best.summary.overall.speedup
    assert best.name == "eagle3+router"
    assert f'1.92×<span class="spread">{speedup.low:.2f}–{speedup.high:.2f} ±{speedup.sd:.2f}</span>' in page
    group = best.summary.categories["writing"]
    assert f"{group.accepted_length.value:.2f}  {group.speedup.value:.2f}×<span" in page
    assert headline(many) in html.unescape(page)


def test_faults_are_said_first(many: Results, page: str) -> None:
    words = _words(page)
    last = many.methods[-1]
    assert "7 of 10" in words
    assert (
        f"Fault. {last.name} differs from plain decoding in 3 of 10 outputs (1 fault, 2 near-tied)" in words
    )
    assert "<b>" not in page


def test_plain_decoding_alone(undrawn) -> None:
    results = sample_results(1, 1, categories={"qa": 1}, failures=0)
    page = render_report(results)
    words = _words(page.partition('<h2 id="meanings">')[0])
    assert Page(page).svgs == 2
    assert "plain generates 41.5 tokens a second; nothing was compared with it." in words
    for absent in ("By task", "Failures", "±", "None", "nan"):
        assert absent not in words.replace("nano", ""), absent


def _with_speedup(results: Results, figure: Figure) -> Results:
    method = results.methods[1]
    overall = method.summary.overall.model_copy(update={"speedup": figure})
    changed = method.model_copy(update={"summary": method.summary.model_copy(update={"overall": overall})})
    return results.model_copy(update={"methods": [results.methods[0], changed]})


def test_headline() -> None:
    results = sample_results(2, 2, near_tied=0, faults=0)
    said = "eagle3 generates 1.61 [1.58–1.64] times as many tokens a second as plain decoding, "
    assert headline(results) == (
        f"{said}at 3.94 [3.88–4.01] tokens per verification; outputs identical in 960 of 960."
    )
    slower = _with_speedup(results, Figure(value=0.97, low=0.93, high=1.02))
    assert "(no difference that this many questions can show), at" in headline(slower)
    one_question = _with_speedup(results, Figure(value=0.5))
    assert "0.50 times as many tokens a second as plain decoding (too few questions" in headline(one_question)
    slowed = _with_speedup(results, Figure(value=0.5, low=0.4, high=0.6))
    assert headline(slowed).startswith(
        "eagle3 is slower than plain decoding, with 0.50 [0.40–0.60] times its tokens a second, at 3.94"
    )
    assert "has no speed to compare" in headline(_with_speedup(results, Figure()))
    exact = _with_speedup(results, Figure(value=2_000.5, low=2_000.5, high=2_000.5))
    assert "eagle3 generates 2,000 times as many" in headline(exact)
    unsure = sample_results(2, 1, near_tied=1, faults=1)
    assert headline(unsure).endswith("outputs identical in 478 of 480 (1 fault, 1 near-tied).")


def test_a_method_is_set_in_bold_only_if_its_interval_is_above_all_others() -> None:
    results = sample_results(3, 2)  # 1.61 and 1.84
    assert overview_table(results).strong == 2
    near = _with_speedup(results, Figure(value=1.83, low=1.79, high=1.86))
    assert (
        overview_table(near.model_copy(update={"methods": [*near.methods, results.methods[2]]})).strong
        is None
    )
    assert overview_table(_with_speedup(results, Figure(value=1.05, low=0.98, high=1.1))).strong is None


def test_what_was_not_measured_has_no_column(undrawn) -> None:
    page = render_report(sample_results(2, 1, categories=FEW, temperature=1.0, failures=0))
    words = _words(page.partition('<h2 id="meanings">')[0])
    for absent in ("identical", "near-tied", "fault", "±", "Failures", "Load"):
        assert absent not in words.replace("default", ""), absent


def test_a_page_of_figures_that_are_missing(undrawn) -> None:
    """A method that answered nothing in measurable time has dashes, not zeros."""
    page = render_report(_with_speedup(sample_results(2, 1, categories=FEW), Figure()))
    assert ">–</td>" in page
    assert "None" not in _words(page)


def test_charts_show_the_results_figures(undrawn) -> None:
    results = sample_results(3, 2, categories=FEW)
    render_report(results)
    best = results.methods[-1]
    overall = best.summary.overall
    bar, speed = undrawn["tps"][1][2], overall.tokens_per_s
    assert (bar.parts, bar.low, bar.high) == ([(2, speed.value)], speed.low, speed.high)
    assert bar.text == f"{speed.value:.1f} · 1.84×"
    bar = undrawn["time"][1][2]
    times = dict(zip(parts_of(results), (length for _, length in bar.parts)))
    assert times["verify"] == pytest.approx(1e3 * best.summary.time_s["verify"] / overall.new_tokens)
    assert bar.text == f"{sum(times.values()):,.2f} ms"
    assert undrawn["dep"][0].traces[1].y == [100 * row.reached for row in best.summary.depths]


def test_every_page_forbids_scripts_and_loading() -> None:
    page = (ROOT / "vocabforge/evaluate/reports/templates/page.html.j2").read_text("utf-8")
    policy = re.search(r'<meta http-equiv="Content-Security-Policy" content="([^"]+)">', page)
    assert policy is not None
    rules = dict(rule.strip().split(" ", 1) for rule in policy[1].split(";"))
    assert rules["default-src"] == "'none'"
    assert "script-src" not in rules
    assert set(rules) <= {"default-src", "style-src", "img-src", "base-uri", "form-action"}
    assert page.index("Content-Security-Policy") < page.index("<style>")
    assert not re.search(
        r"<script|\son\w+=|javascript:|<iframe|<object|<link(?! rel=\"icon\")|autoescape", page, re.IGNORECASE
    )
    assert not re.search(r"\|\s*safe", CHARTS.sub("", page))
