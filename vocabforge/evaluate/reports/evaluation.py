"""HTML page of an evaluation: headline, charts, tables, evidence, and how to reproduce it."""

from __future__ import annotations

from collections.abc import Sequence

from ...core.console import DataTable, FactList
from ...decode.proposers.counts import phrase_of
from ..results.schema import Results
from .page import Block, CodeBlock, Folded, PageChart, PageSection, line_chart, render_page
from .plots import Bar, Panel, Trace, bar_rows
from .tables import (
    PART_NAMES,
    alarms,
    category_table,
    figure_rows,
    headline,
    load_table,
    number,
    overview_table,
    parts_of,
    position_table,
)

_MEANINGS = {
    "accepted length": "Tokens that one verification commits, the target's own included, over all verifications. Plain "
    "decoding: 1.",
    "tokens per second": "New tokens over seconds of each question, prefill included, then the mean over questions and "
    "over runs. Batch 1, device synchronised.",
    "speed-up": "A method's tokens per second over plain decoding's. Re-tokenised, as the public Spec-Bench scorer "
    "counts it: plain decoding's tokens are those of its text tokenised again, less one a turn.",
    "forwards per token": "Forward passes of the target over new tokens; it does not depend on the machine.",
    "95% interval": "Bootstrap over questions, paired with plain decoding's answers of the same question and run.",
    "±": "Standard deviation over runs: how much the machine, or the seed, moves the figure.",
    "identical": "All turns of a question have the same token ids as plain decoding's; only greedy outputs are "
    "compared.",
    "near-tied": "At the first differing token the target's two logits are closer than its own rounding moves them, so "
    "either token is its argmax.",
    "fault": "The target's rounding does not explain the token: the output is wrong, and the method is not lossless "
    "here.",
}


def render_report(results: Results, answers: Sequence[Block] = (), ratios: Sequence[Block] = ()) -> str:
    """Render the results as a self-contained HTML page without scripts.

    Args:
        ratios: comparison of the methods with one of them.
    """
    described = {
        method.name: method.description
        + (f". It counted {counted}" if (counted := phrase_of(method.summary.counts)) else "")
        for method in results.methods
    }
    tasks = [category_table(results)] if results.baseline and len(figure_rows(results)) > 1 else []
    positions = position_table(results)
    sections = [
        PageSection("Methods", [overview_table(results, page=True), FactList(described)], "methods"),
        PageSection("Methods against each other", ratios, "ratios"),
        PageSection("Speed", [*_speed_chart(results), *_time_chart(results)], "speed"),
        PageSection("Acceptance", _acceptance(results), "acceptance"),
        PageSection("Answers", answers, "answers"),
        PageSection("Load", _load(results), "load"),
        PageSection("By task", tasks, "tasks"),
        PageSection("By length of the text", [] if positions is None else [positions], "positions"),
        PageSection("Failures", _failures(results), "failures"),
        PageSection("Run it again", _again(results), "again"),
        PageSection("What the figures mean", [FactList(_MEANINGS)], "meanings"),
    ]
    return render_page(
        f"{results.target.name} on {results.benchmark.name}",
        sections,
        lead=headline(results),
        about=_about(results),
        alarms=alarms(results),
        warnings=_warnings(results),
    )


def _about(results: Results) -> str:
    asked, runs = results.benchmark, results.runs
    temperature = results.settings.sampling["temperature"]
    parts = [
        f"{results.answered:,} questions"
        + (f" of the benchmark's {asked.of:,}" if asked.questions != asked.of else ""),
        f"{len(results.methods)} method{'s' if len(results.methods) > 1 else ''}",
        f"{runs} run{'s' if runs > 1 else ''} each",
        "greedy decoding" if temperature == 0 else f"temperature {temperature}",
        f"at most {results.settings.max_new_tokens:,} new tokens a turn",
        f"requests at once: {', '.join(map(str, results.settings.concurrency))}",
        ", ".join(
            dict.fromkeys(" ".join(filter(None, (server.kind, server.version))) for server in results.servers)
        )
        or str(results.environment.get("gpu") or results.environment.get("device", "unknown device")),
        results.target.dtype,
    ]
    when = results.created.replace("T", " ").replace("Z", " UTC")
    means = "Ranges are 95% intervals over questions"
    means += "; ± is the standard deviation over runs" if runs > 1 else ""
    return f"{', '.join(parts)}. Measured {when}. {means}."


def _warnings(results: Results) -> list[str]:
    warnings = list(results.warnings)
    if results.failures:
        left_out = len({row.question_id for row in results.failures})
        warnings.append(
            f"{left_out} of {results.benchmark.questions:,} questions could not be answered by every method and are "
            "left out of all figures: see Failures."
        )
    if results.benchmark.published is False:
        warnings.append(
            "The benchmark's file is not the published one: published figures are of other questions."
        )
    return warnings


def _failures(results: Results) -> list[Block]:
    if not results.failures:
        return []
    rows = [
        [
            str(failure.question_id),
            failure.category,
            failure.method,
            failure.run,
            failure.turn + 1,
            failure.kind,
            failure.reason,
        ]
        for failure in results.failures
    ]
    columns = ["question<", "category<", "method<", "run", "turn", "error<", "why<"]
    note = "A method could not answer these questions; no method's figures include them."
    return [note, Folded(f"All {len(rows):,}", [DataTable("", columns, rows)])]


def _again(results: Results) -> list[Block]:
    resumed, run = results.resumed, dict(results.run_facts)
    run["interrupted"] = "never" if not resumed else f"resumed {resumed} time{'s' if resumed > 1 else ''}"
    environment = {name.replace("_", " "): value for name, value in results.environment.items()}
    return [
        CodeBlock(results.command, "Command"),
        FactList(run, "What was run"),
        FactList({"VocabForge": results.vocabforge, **environment}, "Environment"),
        "results.json has the hashes of everything that decides the figures.",
    ]


def _speed_chart(results: Results) -> list[PageChart]:
    bars = []
    for index, method in enumerate(results.methods):
        speed, speedup = method.summary.overall.tokens_per_s, method.summary.overall.speedup.value
        text = number(speed.value, 1) + (f" · {number(speedup)}×" if index and speedup is not None else "")
        bars.append(Bar(method.name, text, [(index, speed.value or 0.0)], speed.low, speed.high))
    if all(method.summary.overall.tokens_per_s.value is None for method in results.methods):
        return []
    note = "Mean over questions; the whisker is the 95% interval"
    return [PageChart("Tokens per second", note, bar_rows("tps", "tokens per second", bars))]


def _time_chart(results: Results) -> list[PageChart]:
    if not (shown := parts_of(results)):
        return []
    # Colour 0 is grey, used for time that is neither drafting nor the target's.
    named = [part for part in shown if part != "other"]
    colours = {"other": 0} | {part: place for place, part in enumerate(named, start=1)}
    bars = []
    for method in results.methods:
        tokens, spent = method.summary.overall.new_tokens, method.summary.time_s
        parts = [(colours[part], 1e3 * spent.get(part, 0.0) / tokens if tokens else 0.0) for part in shown]
        bars.append(Bar(method.name, f"{sum(length for _, length in parts):,.2f} ms", parts))
    svg = bar_rows("time", "ms for one new token", bars)
    legend = [(colours[part], PART_NAMES.get(part, part)) for part in shown]
    return [PageChart("Where the time goes", "Time for one new token, all questions and runs", svg, legend)]


def _load(results: Results) -> list[Block]:
    if not results.load:
        return []
    chart: list[PageChart] = []
    if len(results.settings.concurrency) > 1:
        plain, traces = results.baseline, []
        for index, method in list(enumerate(results.methods))[int(plain) :]:
            own = [load for load in results.load if load.method == method.name]
            values = [load.speedup if plain else load.tokens_per_s for load in own]
            traces.append(Trace(index, [load.concurrency for load in own], values, method.name))
        labels = ("requests at once", "speed-up" if plain else "tokens per second")
        note = "Tokens of all requests per second in which one was under way"
        note += ", over plain decoding's; one measurement each, without intervals" if plain else ""
        level = 1.0 if plain else None
        panel = Panel("Speed under load", labels, traces, log_x=True, bottom=0, level=level)
        chart = line_chart("load", note, panel)
    return [*chart, load_table(results)]


def _acceptance(results: Results) -> list[PageChart]:
    traces = []
    for index, method in list(enumerate(results.methods))[int(results.baseline) :]:
        depths = method.summary.depths
        shares = [None if row.reached is None else 100 * row.reached for row in depths]
        traces.append(Trace(index, [row.depth for row in depths], shares, method.name))
    note = "Share of all verifications that accept this position"
    if results.servers:
        note += (
            ", by the servers' own counters, which include tokens after the end of an answer; accepted lengths of "
            "single cycles are not known"
        )
    labels = ("position of the draft token", "accepted, %")
    return line_chart("dep", note, Panel("Acceptance by position", labels, traces, bottom=0, top=102))
