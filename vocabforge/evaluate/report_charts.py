"""The charts of an evaluation's report, made from its results."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from .plots import dot_chart
from .report_plots import Bar, Trace, bar_rows, histogram_rows, size_points, stacked_rows, trace_lines
from .report_text import PART_NAMES, figure_of, number, parts_of, row_keys
from .results import Figure, MethodResults, Results

# A share of fewer verifications than these is chance and is not drawn; the table has it.
FEWEST = 10


@dataclass(frozen=True)
class Panel:
    """A chart with its words.

    Attributes:
        legend: places of the methods that need one to be told apart; empty where their names stand in the chart.
        parts: number of a colour and what it stands for, where colours are no methods.
    """

    title: str
    note: str
    svg: str
    legend: tuple[int, ...] = ()
    parts: tuple[tuple[int, str], ...] = ()


def report_charts(results: Results) -> dict[str, list[Panel]]:
    """Charts by section of the page: speed, acceptance, tasks, vocabulary; sections without any are empty."""
    return {
        "speed": [*_speed(results), *_time(results), *_drift(results)],
        "acceptance": [*_lengths(results), *_depths(results)],
        "tasks": _tasks(results),
        "vocabulary": _vocabularies(results),
    }


def _bar(index: int, method: MethodResults, figure: Figure, text: str, x: float = 0.0) -> Bar:
    return Bar(index, method.name, text, figure.value, figure.low, figure.high, x)


def _speed(results: Results) -> list[Panel]:
    bars = []
    for index, method in enumerate(results.methods):
        overall = method.summary.overall
        times = f" · {number(overall.speedup.value)}×" if index and overall.speedup.value is not None else ""
        bars.append(_bar(index, method, overall.tokens_per_s, number(overall.tokens_per_s.value, 1) + times))
    note = "Mean over questions; the whisker is the 95% interval"
    return [Panel("Tokens per second", note, bar_rows("tps", "tokens per second", bars))]


def _time(results: Results) -> list[Panel]:
    parts = parts_of(results)
    rows: list[tuple[str, str]] = []
    columns: dict[str, list[float]] = {part: [] for part in parts}
    for method in results.methods:
        tokens = method.summary.overall.new_tokens
        spent = {
            part: 1e3 * method.summary.time_s.get(part, 0.0) / tokens if tokens else 0.0 for part in parts
        }
        rows.append((method.name, f"{sum(spent.values()):,.2f} ms"))
        for part in parts:
            columns[part].append(spent[part])
    shown = [part for part in parts if any(columns[part])]
    if not shown:
        return []
    # Colour 0 is grey: it goes to what is neither draft nor target.
    named = [part for part in shown if part != "other"]
    colours = {"other": 0} | {part: place for place, part in enumerate(named, start=1)}
    svg = stacked_rows(
        "time", "ms for one new token", rows, [(colours[part], columns[part]) for part in shown]
    )
    legend = tuple((colours[part], PART_NAMES.get(part, part)) for part in shown)
    return [Panel("Where the time goes", "Time for one new token, all questions and runs", svg, parts=legend)]


def _drift(results: Results) -> list[Panel]:
    """Each run's speed against the method's own mean: what moves all methods alike is the machine."""
    traces = []
    for index, method in enumerate(results.methods):
        speeds = [run.tokens_per_s for run in method.summary.runs]
        known = [speed for speed in speeds if speed]
        if len(known) > 1:
            mean = sum(known) / len(known)
            shares = [None if speed is None else 100 * speed / mean for speed in speeds]
            traces.append(Trace(index, [run.run for run in method.summary.runs], shares))
    if not traces:
        return []
    labels = ("run", "tokens/s, % of the mean")
    note = "Each method against its own mean over runs; what all do alike is the machine's doing"
    svg = trace_lines("runs", labels, traces, level=100.0)
    return [Panel("Tokens per second by run", note, svg, tuple(trace.index for trace in traces))]


def _drafting(results: Results) -> list[tuple[int, MethodResults]]:
    return list(enumerate(results.methods))[1:]


def _lengths(results: Results) -> list[Panel]:
    series = []
    for index, method in _drafting(results):
        mean = method.summary.overall.accepted_length
        if method.summary.accept_length_histogram:
            bar = _bar(index, method, mean, f"mean {number(mean.value)}")
            series.append((bar, method.summary.accept_length_histogram))
    if not series:
        return []
    note = "Share of verifications that commit so many tokens, in %"
    svg = histogram_rows("his", "tokens committed by one verification", series)
    return [Panel("Accepted length", note, svg)]


def _depths(results: Results) -> list[Panel]:
    panels = []
    for name, title, note, label, value in (
        (
            "dep",
            "Acceptance by position",
            "Share of all verifications that accept a draft token at this position",
            "accepted, %",
            "reached",
        ),
        (
            "con",
            "Acceptance given the one before",
            f"Share of those whose tokens before this position were accepted; from {FEWEST} such verifications on",
            "accepted, %",
            "conditional",
        ),
    ):
        traces = []
        for index, method in _drafting(results):
            rows = method.summary.depths
            enough = [
                value != "conditional" or before >= FEWEST
                for before in [FEWEST, *(row.accepted for row in rows)][: len(rows)]
            ]
            shares = [
                None if (share := getattr(row, value)) is None or not there else 100 * share
                for row, there in zip(rows, enough, strict=True)
            ]
            if any(share is not None for share in shares):
                traces.append(Trace(index, [row.depth for row in rows], shares))
        if traces:
            svg = trace_lines(name, ("position of the draft token", label), traces, whole=True)
            panels.append(Panel(title, note, svg, tuple(trace.index for trace in traces)))
    return panels


def _tasks(results: Results) -> list[Panel]:
    drafting = _drafting(results)
    keys = row_keys(results)
    if not drafting or len(keys) == 1:
        return []
    shown = [name for _, _, name in keys]

    def lines(figure: str) -> dict[int, list[float | None]]:
        return {index: [figure_of(method, key, figure).value for key in keys] for index, method in drafting}

    legend = tuple(index for index, _ in drafting)
    speedup = dot_chart("spd", "times plain decoding", shown, lines("speedup"), reference=1.0, from_zero=True)
    accepted = dot_chart("acc", "tokens per verification", shown, lines("accepted_length"), reference=1.0)
    return [
        Panel("Speed-up by task", "Over plain decoding, the dashed line", speedup, legend),
        Panel(
            "Accepted length by task",
            "Tokens that a verification commits; plain decoding: 1",
            accepted,
            legend,
        ),
    ]


def _drafters(methods: Sequence[MethodResults]) -> list[list[int]]:
    """Places of the methods that are one drafter with several vocabularies, `eagle3` and `eagle3+32k`."""
    groups: dict[str, list[int]] = {}
    for place, method in enumerate(methods):
        if method.vocabulary is not None and method.vocabulary.kind in ("full", "static"):
            groups.setdefault(method.name.partition("+")[0], []).append(place)
    return [places for places in groups.values() if len(places) > 1]


def _vocabularies(results: Results) -> list[Panel]:
    """Speed and accepted length against the size of the draft vocabulary, where sizes differ."""
    sized = [
        (index, method, method.vocabulary.size)
        for index, method in _drafting(results)
        if method.vocabulary is not None and method.vocabulary.size > 0
    ]
    if len({size for _, _, size in sized}) < 2:
        return []
    baseline = results.methods[0].summary.overall.tokens_per_s.value

    def points(figure: Callable[[MethodResults], Figure]) -> Sequence[Bar]:
        return [_bar(index, method, figure(method), "", float(size)) for index, method, size in sized]

    legend = tuple(index for index, _, _ in sized)
    lines = _drafters([method for _, method, _ in sized])
    speed = points(lambda method: method.summary.overall.tokens_per_s)
    length = points(lambda method: method.summary.overall.accepted_length)
    return [
        Panel(
            "Speed by vocabulary size",
            "Tokens per second; the dashed line is plain decoding, a thin line joins one drafter",
            size_points("vsp", "tokens per second", speed, level=baseline, lines=lines),
            legend,
        ),
        Panel(
            "Accepted length by vocabulary size",
            "What a smaller vocabulary costs in accepted tokens",
            size_points("val", "tokens per verification", length, lines=lines),
            legend,
        ),
    ]
