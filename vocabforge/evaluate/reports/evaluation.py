"""The page of an evaluation: headline, charts, tables, evidence, how to run it again."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from ...core.console import DataCell, DataTable, FactList, percent
from ...decode.counts import phrase_of
from ..results.schema import DivergenceRow, Figure, MethodResults, Results
from .page import Block, CodeBlock, Folded, PageCard, PageChart, PageSection, ReportPage, render_report_page
from .plots import Bar, Trace, bar_rows, dot_chart, stacked_rows, trace_lines
from .tables import (
    PART_NAMES,
    divergence_line,
    figure_cell,
    figure_rows,
    headline,
    headline_method,
    interval,
    judgements,
    law_line,
    number,
    overview_table,
    parts_of,
    quality_table,
    worst_first,
)

# More divergences than these, a method, are left to results.json.
MOST_DIVERGENCES = 60
# A share of fewer verifications than these is chance and is not drawn; the table has it.
FEWEST = 10
_MOST_FAILURES = 12
# Tables by task: field, heading, digits, unit, whether it is unfolded.
_TASK_FIGURES = (
    ("speedup", "Speed-up", 2, "×", True),
    ("accepted_length", "Accepted length", 2, "", True),
    ("tokens_per_s", "Tokens per second", 1, "", False),
    ("forwards_per_token", "Target passes per token", 3, "", False),
    ("speedup_retokenised", "Speed-up, baseline re-tokenised", 2, "×", False),
    ("seconds_per_step", "Seconds per verification", 4, "", False),
)
_MEANINGS = {
    "accepted length": "Tokens that one verification commits, the target's own included: the mean over all "
    "verifications of all questions and runs. Plain decoding: 1.",
    "tokens per second": "New tokens over seconds of each question, prefill included, then the mean over questions and "
    "over runs. Batch 1, device synchronised.",
    "speed-up": "A method's tokens per second over plain decoding's, both counting the tokens that were generated.",
    "baseline re-tokenised": "The speed-up as the public Spec-Bench scorer counts it: plain decoding's tokens are "
    "those of its text tokenised again, less one a turn.",
    "target passes per token": "Forward passes of the target over new tokens; it does not depend on the machine.",
    "seconds per verification": "Seconds over decoding steps of each question, then the mean over questions, as the "
    "FR-Spec scorer prints it.",
    "95% interval": "Bootstrap over questions, paired with plain decoding's answers of the same question and run: how "
    "much another choice of such questions would move the figure.",
    "±": "Standard deviation over runs: how much the machine, or the seed, moves the figure.",
    "time": "Prefill: the target over the prompt. Draft head: scoring draft tokens. Draft layers: the drafter's other "
    "layers. Rest of drafting: building the tree. Verification: the target over the drafted tokens; for plain "
    "decoding, every step. Other: everything else that was timed.",
    "acceptance by position": "Position 1 is the first drafted token. Of all verifications: how many accept a token "
    "there. Given the one before: of those whose path came that far.",
    "draft vocabulary": "Tokens that the draft head scores exactly in one draft step, the largest of a schedule.",
    "identical": "All turns of a question have the same token ids as plain decoding's; only greedy outputs are "
    "compared.",
    "near-tied": "At the first differing token the target's two logits are closer than its own rounding moves them, so "
    "either token is its argmax.",
    "fault": "They are not: the output is wrong, and the method is not lossless here.",
}


def render_report(results: Results) -> str:
    """HTML text of the results; it loads nothing from anywhere and runs no script."""
    methods, charts = results.methods, report_charts(results)
    compared = len(methods) > 1 and methods[1].summary.outputs is not None
    by_task = len(figure_rows(results)) > 1
    described = {
        method.name: method.description
        + (f". It counted {counted}" if (counted := phrase_of(method.summary.counts)) else "")
        for method in methods
    }
    acceptance: list[Block] = [*charts["acceptance"]]
    if acceptance:
        acceptance.append(Folded("Acceptance by position, in numbers", [_depth_table(results)]))
    sections = [
        PageSection("Methods", [overview_table(results, page=True), FactList(described)], "methods"),
        PageSection("Speed", [*charts["speed"], *_time_tables(results)], "speed"),
        PageSection("Acceptance", acceptance, "acceptance"),
        PageSection(
            "By task" if by_task else "All figures", [*charts["tasks"], *_task_tables(results)], "tasks"
        ),
        PageSection("Vocabulary size", charts["vocabulary"], "vocabulary"),
        PageSection("Outputs", _outputs(results) if compared else [], "outputs"),
        PageSection("Quality", _quality(results), "quality"),
        PageSection("Failures", _failures(results), "failures"),
        PageSection("Run it again", _again(results), "again"),
        PageSection("What the figures mean", [FactList(_MEANINGS)], "meanings"),
    ]
    return render_report_page(
        ReportPage(
            "evaluation",
            f"{results.target.name} on {results.benchmark.name}",
            sections,
            lead=headline(results),
            about=_about(results),
            alarms=[
                *(
                    f"Fault. {divergence_line(method)}. Its speed means nothing until that is explained: see Outputs."
                    for method in methods[1:]
                    if method.summary.outputs and method.summary.outputs.faults
                ),
                *(
                    f"Not lossless. {line}: do not compare its speed with that of lossless methods."
                    for method in methods[1:]
                    if (line := law_line(method))
                ),
            ],
            warnings=_warnings(results),
            cards=_cards(results),
        )
    )


def _about(results: Results) -> str:
    asked, runs = results.benchmark, len(results.methods[0].summary.runs)
    temperature = results.settings.sampling["temperature"]
    parts = [
        f"{results.answered:,} questions"
        + (f" of the benchmark's {asked.of:,}" if asked.questions != asked.of else ""),
        f"{len(results.methods)} method{'s' if len(results.methods) > 1 else ''}",
        f"{runs} run{'s' if runs > 1 else ''} each",
        "greedy decoding" if temperature == 0 else f"temperature {temperature}",
        f"at most {results.settings.max_new_tokens:,} new tokens a turn",
        "batch 1",
        str(results.environment.get("gpu") or results.environment.get("device", "unknown device")),
        results.target.dtype,
    ]
    when = results.created.replace("T", " ").replace("Z", " UTC")
    means = "Ranges are 95% intervals over questions"
    means += "; ± is the standard deviation over runs" if runs > 1 else ""
    return f"{', '.join(parts)}. Measured {when}. {means}."


def _warnings(results: Results) -> list[str]:
    found = []
    if results.failures:
        left_out = len({row.question_id for row in results.failures})
        found.append(
            f"{left_out} of {results.benchmark.questions:,} questions could not be answered by every method and are "
            "left out of all figures: see Failures."
        )
    if results.benchmark.published is False:
        found.append(
            "The benchmark's file is not the published one: published figures are of other questions."
        )
    return found


def _cards(results: Results) -> list[PageCard]:
    best, several = headline_method(results), len(results.methods) > 1
    overall, outputs = best.summary.overall, best.summary.outputs
    plain = number(results.methods[0].summary.overall.tokens_per_s.value, 1)

    def note(figure: Figure, text: str) -> str:
        return "; ".join(filter(None, (interval(figure), text)))

    speed = number(overall.tokens_per_s.value, 1)
    card = PageCard("Tokens per second", speed, f"plain decoding: {plain}" if several else "plain decoding")
    if not several:
        return [card]
    cards = [
        PageCard(
            "Speed-up",
            f"{number(overall.speedup.value)}×",
            note(overall.speedup, f"{best.name} over plain decoding"),
        ),
        PageCard(
            "Accepted length",
            number(overall.accepted_length.value),
            note(overall.accepted_length, "tokens per verification, the target's own included"),
        ),
        card,
    ]
    if outputs is None:
        passes = number(overall.forwards_per_token.value)
        return [*cards, PageCard("Target passes", passes, "per new token; independent of the machine")]
    same = outputs.identical == outputs.compared
    share = percent(outputs.identical / outputs.compared if outputs.compared else None, 0 if same else 1)
    told = "; ".join(
        filter(None, (f"{outputs.identical:,} of {outputs.compared:,} by token id", judgements(outputs)))
    )
    return [
        *cards,
        PageCard("Identical outputs", share, told, "bad" if outputs.faults else "good" if same else ""),
    ]


def _named(results: Results) -> list[tuple[DataCell, MethodResults]]:
    return [(DataCell(method.name, look=at), method) for at, method in enumerate(results.methods)]


def _time_tables(results: Results) -> list[DataTable]:
    parts, rows = parts_of(results), []
    for name, method in _named(results):
        spent = sum(method.summary.time_s.values())
        seconds = [method.summary.time_s.get(part) for part in parts]
        cells = [DataCell(number(one), percent(one / spent, 1) if one and spent else "") for one in seconds]
        ended = ", ".join(f"{finish} {count:,}" for finish, count in method.summary.finish.items())
        rows.append([name, *cells, method.summary.overall.new_tokens, ended])
    names = [PART_NAMES.get(part, part) for part in parts]
    columns = ["seconds in all<", *names, "new tokens", "turns ended by<"]
    tables = [DataTable("Where the time goes", columns, rows)]
    runs = results.methods[0].summary.runs
    if len(runs) > 1:
        columns = ["method<", *(f"run {run.run}\nseed {run.seed}" for run in runs)]
        speeds = [
            [
                name,
                *(
                    DataCell(
                        number(run.tokens_per_s, 1),
                        f"{number(run.speedup)}×",
                        tip=f"{run.new_tokens:,} tokens in {number(run.wall_time_s, 1)} s",
                    )
                    for run in method.summary.runs
                ),
            ]
            for name, method in _named(results)
        ]
        tables.append(DataTable("Tokens per second, run by run", columns, speeds))
    return tables


def _depth_table(results: Results) -> DataTable:
    rows = [
        [
            name if row.depth == 1 else "",
            row.depth,
            row.offered,
            row.accepted,
            percent(row.reached, 1),
            percent(row.conditional, 1),
        ]
        for name, method in _named(results)[1:]
        for row in method.summary.depths
    ]
    columns = ["method<", "position", "verifications that offer it", "that accept it", "of all verifications"]
    return DataTable("", [*columns, "given the one before"], rows)


def _task_tables(results: Results) -> list[Block]:
    tables: list[Block] = []
    for field, title, digits, unit, open_ in _TASK_FIGURES:
        first = 1 if field.startswith("speedup") else 0
        methods = results.methods[first:]
        if not methods:
            continue
        rows = [
            [
                DataCell(name, f"{groups[0].questions:,} asked"),
                *(figure_cell(getattr(one, field), digits, unit, spread=True) for one in groups[first:]),
            ]
            for name, groups in figure_rows(results)
        ]
        columns = ["task<", *(method.name for method in methods)]
        table = DataTable(title if open_ else "", columns, rows, strong=0)
        tables.append(table if open_ else Folded(title, [table]))
    return tables


def _outputs(results: Results) -> list[Block]:
    rows, evidence = [], []
    for name, method in _named(results)[1:]:
        same = method.summary.outputs
        if same is None:
            continue
        faults = DataCell(str(same.faults), tone="bad" if same.faults else "")
        counts = (same.compared, same.identical, same.near_tied, faults, same.not_judged, same.cut)
        rows.append([name, *counts])
        if same.divergences:
            found = worst_first(same)
            more = len(found) - MOST_DIVERGENCES
            columns = ["question<", "judgement<", "run", "turn", "token", "plain decoding<", "here<"]
            evidence.append(
                DataTable(
                    f"Evidence: {method.name}",
                    [*columns, "gap of the logits", "noise", "why<"],
                    [_divergence(row) for row in found[:MOST_DIVERGENCES]],
                    f"{more} more are in results.json." if more > 0 else "",
                )
            )
    note = (
        "Token ids against plain decoding's in the same run. For each output that differs, the target judges the first "
        "differing token; runs, turns and tokens count from 1."
    )
    columns = [
        "method<",
        "compared",
        "identical",
        "near-tied",
        "faults",
        "not judged",
        "cut by the cache's end",
    ]
    return [note, DataTable("", columns, rows), *evidence]


def _divergence(row: DivergenceRow) -> list[object]:
    def side(token: int | None, text: str | None, logit: float | None) -> DataCell:
        shown = "ended" if token is None else str(token)
        if text is not None and token is not None:
            shown = f"{json.dumps(text, ensure_ascii=False)} {token}"  # spaces and line ends can be seen
        return DataCell(shown, "" if logit is None else f"logit {number(logit, 3)}")

    return [
        str(row.question_id),
        DataCell(row.judgement, tone="bad" if row.judgement == "fault" else ""),
        row.run,
        row.turn + 1,
        row.position + 1,
        side(row.expected, row.expected_text, row.expected_logit),
        side(row.got, row.got_text, row.got_logit),
        number(row.gap, 4),
        number(row.noise, 4),
        row.reason or "–",
    ]


def _quality(results: Results) -> list[Block]:
    table = quality_table(results)
    if table is None:
        return []
    quality = next(method.summary.quality for method in results.methods if method.summary.quality)
    facts = {name.replace("_", " "): value for name, value in quality.facts.items()}
    return [DataTable("", table.columns, table.rows), FactList({"scored by": quality.scorer, **facts})]


def _failures(results: Results) -> list[Block]:
    if not results.failures:
        return []
    rows = [
        [str(one.question_id), one.category, one.method, one.run, one.turn + 1, one.kind, one.reason]
        for one in results.failures
    ]
    columns = ["question<", "category<", "method<", "run", "turn", "error<", "why<"]
    table = DataTable("", columns, rows)
    note = "A method could not answer these questions; no method's figures include them."
    return [note, Folded(f"All {len(rows):,}", [table]) if len(rows) > _MOST_FAILURES else table]


def _again(results: Results) -> list[Block]:
    resumed, asked = results.resumed, results.benchmark
    run = dict(results.run_facts)
    if results.settings.system is not None:
        run["system message"] = results.settings.system
    run["interrupted"] = "never" if not resumed else f"resumed {resumed} time{'s' if resumed > 1 else ''}"
    published = {True: ", as published", False: ", not as published", None: ""}[asked.published]
    hashes = {
        "target's weights": results.target.fingerprint or "unknown",
        "tokenizer and template": results.target.tokenizer or "unknown",
        "benchmark file": f"{asked.file}{published}: {asked.sha256}",
        "questions asked": asked.asked,
        **results.parents,
    }
    files = {
        method.name: ", ".join(
            [
                *method.answers,
                *method.details,
                *(method.summary.quality.files if method.summary.quality else []),
            ]
        )
        for method in results.methods
    }
    environment = {name.replace("_", " "): value for name, value in results.environment.items()}
    return [
        CodeBlock(results.command, "Command"),
        FactList(run, "What was run"),
        FactList({"VocabForge": results.vocabforge, **environment}, "Environment"),
        Folded("Hashes of everything that decides the figures", [FactList(hashes)]),
        Folded("Files of the answers", [FactList(files)]),
    ]


def report_charts(results: Results) -> dict[str, list[PageChart]]:
    """Charts by section of the page: speed, acceptance, tasks, vocabulary; sections without any are empty."""
    return {
        "speed": [*_speed_chart(results), *_time_chart(results), *_drift_chart(results)],
        "acceptance": [*_length_chart(results), *_depth_charts(results)],
        "tasks": _task_charts(results),
        "vocabulary": _vocabulary_charts(results),
    }


def _legend(results: Results, traces: list[Trace]) -> list[tuple[int, str]]:
    return [(index, results.methods[index].name) for index in dict.fromkeys(trace.index for trace in traces)]


def _lines(
    results: Results,
    key: str,
    title: str,
    note: str,
    labels: tuple[str, str],
    traces: list[Trace],
    **axes: Any,
) -> list[PageChart]:
    if not traces:
        return []
    svg = trace_lines(key, labels, traces, **axes)
    return [PageChart(title, note, svg, _legend(results, traces))]


def _speed_chart(results: Results) -> list[PageChart]:
    bars = []
    for index, method in enumerate(results.methods):
        speed, speedup = method.summary.overall.tokens_per_s, method.summary.overall.speedup.value
        text = number(speed.value, 1) + (f" · {number(speedup)}×" if index and speedup is not None else "")
        bars.append(Bar(index, method.name, text, speed.value, speed.low, speed.high))
    note = "Mean over questions; the whisker is the 95% interval"
    return [PageChart("Tokens per second", note, bar_rows("tps", "tokens per second", bars))]


def _time_chart(results: Results) -> list[PageChart]:
    parts, rows = parts_of(results), []
    columns: dict[str, list[float]] = {part: [] for part in parts}
    for method in results.methods:
        tokens = method.summary.overall.new_tokens
        for part in parts:
            columns[part].append(1e3 * method.summary.time_s.get(part, 0.0) / tokens if tokens else 0.0)
        rows.append((method.name, f"{sum(columns[part][-1] for part in parts):,.2f} ms"))
    shown = [part for part in parts if any(columns[part])]
    if not shown:
        return []
    # Colour 0 is grey: it goes to what is neither draft nor target.
    named = [part for part in shown if part != "other"]
    colours = {"other": 0} | {part: place for place, part in enumerate(named, start=1)}
    svg = stacked_rows("time", "ms for one new token", rows, [(colours[one], columns[one]) for one in shown])
    legend = [(colours[part], PART_NAMES.get(part, part)) for part in shown]
    return [PageChart("Where the time goes", "Time for one new token, all questions and runs", svg, legend)]


def _drift_chart(results: Results) -> list[PageChart]:
    """Each run's speed against the method's own mean: what moves all methods alike is the machine."""
    traces = []
    for index, method in enumerate(results.methods):
        speeds = [run.tokens_per_s for run in method.summary.runs]
        known = [speed for speed in speeds if speed]
        if len(known) > 1:
            mean = sum(known) / len(known)
            shares = [None if speed is None else 100 * speed / mean for speed in speeds]
            traces.append(Trace(index, [run.run for run in method.summary.runs], shares))
    note = "Each method against its own mean over runs; what all do alike is the machine's doing"
    labels = ("run", "tokens/s, % of the mean")
    return _lines(results, "runs", "Tokens per second by run", note, labels, traces, level=100.0)


def _length_chart(results: Results) -> list[PageChart]:
    traces = []
    for index, method in list(enumerate(results.methods))[1:]:
        counts = {int(length): count for length, count in method.summary.accept_length_histogram.items()}
        lengths = range(1, max(counts, default=0) + 1)
        shares = [100 * counts.get(length, 0) / sum(counts.values()) for length in lengths]
        traces += [Trace(index, lengths, shares)] if counts else []
    labels = ("tokens committed by one verification", "verifications, %")
    note = "Share of verifications that commit so many tokens"
    return _lines(results, "his", "Accepted length", note, labels, traces, bottom=0)


def _depth_charts(results: Results) -> list[PageChart]:
    charts = []
    given = f"Share of those whose tokens before this position were accepted, of at least {FEWEST}"
    for name, title, note, value in (
        ("dep", "Acceptance by position", "Share of all verifications that accept this position", "reached"),
        ("con", "Acceptance given the one before", given, "conditional"),
    ):
        traces = []
        for index, method in list(enumerate(results.methods))[1:]:
            shares: list[float | None] = []
            before = FEWEST
            for row in method.summary.depths:
                share = getattr(row, value)
                drawn = share is not None and (value == "reached" or before >= FEWEST)
                shares.append(100 * share if drawn else None)
                before = row.accepted
            if any(share is not None for share in shares):
                traces.append(Trace(index, [row.depth for row in method.summary.depths], shares))
        labels = ("position of the draft token", "accepted, %")
        charts += _lines(results, name, title, note, labels, traces, bottom=0, top=102)
    return charts


def _task_charts(results: Results) -> list[PageChart]:
    methods, groups, charts = list(enumerate(results.methods))[1:], figure_rows(results), []
    if not methods or len(groups) == 1:
        return []
    for name, field, title, label, note in (
        (
            "spd",
            "speedup",
            "Speed-up by task",
            "times plain decoding",
            "Over plain decoding, the dashed line",
        ),
        (
            "acc",
            "accepted_length",
            "Accepted length by task",
            "tokens per verification",
            "Tokens that a verification commits; plain decoding: 1",
        ),
    ):
        series = {index: [getattr(each[index], field).value for _, each in groups] for index, _ in methods}
        shown = [name for name, _ in groups]
        svg = dot_chart(name, label, shown, series, reference=1.0, from_zero=field == "speedup")
        charts.append(PageChart(title, note, svg, [(index, method.name) for index, method in methods]))
    return charts


def _vocabulary_charts(results: Results) -> list[PageChart]:
    """Speed and accepted length against the size of the draft vocabulary, if sizes differ."""
    sized = [
        (index, method, method.vocabulary.size)
        for index, method in list(enumerate(results.methods))[1:]
        if method.vocabulary is not None and method.vocabulary.size > 0
    ]
    sizes = [size for _, _, size in sized]
    if len(set(sizes)) < 2:
        return []
    # Methods of one size stand a little apart, so that their whiskers can be told apart.
    at = [
        size * 1.07 ** (sizes[:place].count(size) - (sizes.count(size) - 1) / 2)
        for place, size in enumerate(sizes)
    ]

    def chart(
        name: str,
        title: str,
        label: str,
        note: str,
        figure: Callable[[MethodResults], Figure],
        level: float | None,
    ) -> PageChart:
        points: list[Trace] = []
        families: dict[str, list[tuple[float, float]]] = {}
        for (index, method, _), x in zip(sized, at, strict=True):
            found = figure(method)
            points.append(Trace(index, [x], [found.value], low=found.low, high=found.high))
            # One drafter with several static vocabularies, `eagle3` and `eagle3+32k`, is joined by a line.
            if method.vocabulary is not None and method.vocabulary.kind in ("full", "static") and found.value:
                families.setdefault(method.name.partition("+")[0], []).append((x, found.value))
        joined = [
            Trace(0, [x for x, _ in sorted(line)], [y for _, y in sorted(line)], marked=False)
            for line in families.values()
            if len(line) > 1
        ]
        labels = ("tokens scored in a draft step", label)
        svg = trace_lines(name, labels, [*joined, *points], log_x=True, level=level)
        return PageChart(title, note, svg, _legend(results, points))

    plain = results.methods[0].summary.overall.tokens_per_s.value
    return [
        chart(
            "vsp",
            "Speed by vocabulary size",
            "tokens per second",
            "Tokens per second; dashed: plain decoding; a thin line joins one drafter's vocabularies",
            lambda method: method.summary.overall.tokens_per_s,
            plain,
        ),
        chart(
            "val",
            "Accepted length by vocabulary size",
            "tokens per verification",
            "What a smaller vocabulary costs in accepted tokens",
            lambda method: method.summary.overall.accepted_length,
            None,
        ),
    ]
