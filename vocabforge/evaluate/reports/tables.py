"""Content of evaluation reports: headline, figures with intervals, and main tables."""

from __future__ import annotations

from dataclasses import replace

from ...core.console import DataCell, DataTable
from ...decode.proposers.counts import phrase_of
from ..benchmarks import MT_BENCH
from ..results.intervals import Verdict, verdict_of
from ..results.schema import Figure, GroupFigures, MethodResults, Outputs, Results
from ..results.summary import MT_BENCH_TASK, OVERALL

PART_NAMES = {
    "prefill": "prefill",
    "head": "draft head",
    "layers": "draft layers",
    "draft": "rest of drafting",
    "verify": "verification",
    "cycle": "whole cycle (captured)",
    "other": "other",
}


_UNSURE: dict[Verdict, str] = {
    "no difference shown": " (no difference that this many questions can show)",
    "not compared": " (too few questions for an interval: no difference is shown)",
}


def figure_rows(results: Results) -> list[tuple[str, list[GroupFigures]]]:
    """Return named rows with the figures of every method: overall, tasks, categories of MT-bench."""
    summaries = [method.summary for method in results.methods]
    tasks, categories = summaries[0].tasks, summaries[0].categories
    rows = [(OVERALL, [summary.overall for summary in summaries])]
    # A single task is the whole benchmark, which the title already names.
    for task in () if len(tasks) == 1 and MT_BENCH_TASK not in tasks else tasks:
        rows.append((task, [summary.tasks[task] for summary in summaries]))
        for name in categories if task == MT_BENCH_TASK else ():
            if name in MT_BENCH:
                rows.append((f"· {name}", [summary.categories[name] for summary in summaries]))
    return rows


def number(value: float | None, digits: int = 2) -> str:
    """Format a value, without decimals from 1,000 on; None becomes a dash."""
    if value is None:
        return "–"
    return f"{value:,.{digits if abs(value) < 1000 else 0}f}"


def interval(figure: Figure, digits: int = 2) -> str:
    """Format an interval as ``1.79–1.90``; empty if there is none or its width is 0."""
    if figure.low is None or figure.high is None or figure.low == figure.high:
        return ""
    return f"{number(figure.low, digits)}–{number(figure.high, digits)}"


def deviation(figure: Figure, digits: int = 2) -> str:
    """Format a deviation as ``±0.02``; empty for a single run, or if it rounds to 0."""
    if figure.sd is None or not round(figure.sd, digits):
        return ""
    return f"±{number(figure.sd, digits if abs(figure.value or 0.0) < 1000 else 0)}"


def figure_cell(figure: Figure, digits: int = 2, unit: str = "", *, spread: bool = False) -> DataCell:
    """Return a figure with its interval below it; ``spread`` adds the deviation over runs."""
    under = [interval(figure, digits), deviation(figure, digits) if spread else ""]
    return DataCell(
        "–" if figure.value is None else number(figure.value, digits) + unit, " ".join(filter(None, under))
    )


def best_method(results: Results) -> MethodResults:
    """Return the method with the largest speed-up, or plain decoding if it is alone."""
    others = results.compared or results.methods
    return max(others, key=lambda method: method.summary.overall.speedup.value or 0.0)


def headline(results: Results) -> str:
    """Summarise the evaluation in one sentence about the method with the largest speed-up."""
    best = best_method(results)
    overall = best.summary.overall
    if len(results.methods) == 1 or not results.baseline:
        length = overall.accepted_length
        known = results.servers and length.value is not None
        at = f" at {_with(length)} tokens per verification" if known else ""
        speed = _with(overall.tokens_per_s, 1)
        return f"{best.name} generates {speed} tokens a second{at}; nothing was compared with it."
    speedup = overall.speedup
    if speedup.value is None:
        return f"{best.name} has no speed to compare with plain decoding's."
    if (verdict := verdict_of(speedup)) == "worse":
        said = f"{best.name} is slower than plain decoding, with {_with(speedup)} times its tokens a second"
    else:
        said = f"{best.name} generates {_with(speedup)} times as many tokens a second as plain decoding"
        said += _UNSURE.get(verdict, "")
    if overall.accepted_length.value is not None:
        said += f", at {_with(overall.accepted_length)} tokens per verification"
    outputs = best.summary.outputs
    if not best.lossless:
        return f"{said}; NOT lossless: the verifier {best.verifier} writes other texts than the target would."
    if outputs is None:
        return f"{said}; outputs are sampled and were not compared."
    differing = f" ({judged})" if (judged := judgements(outputs)) else ""
    return f"{said}; outputs identical in {outputs.identical:,} of {outputs.compared:,}{differing}."


def _with(figure: Figure, digits: int = 2) -> str:
    between = interval(figure, digits)
    return number(figure.value, digits) + (f" [{between}]" if between else "")


def judgements(outputs: Outputs) -> str:
    """Count differing outputs by judgement, as in ``1 fault, 2 near-tied``; empty if all agree."""
    counted = (
        (outputs.faults, "fault" if outputs.faults == 1 else "faults"),
        (outputs.near_tied, "near-tied"),
        (outputs.not_judged, "not judged"),
    )
    return ", ".join(f"{count:,} {name}" for count, name in counted if count)


def divergence_line(method: MethodResults) -> str:
    """Describe how a method's outputs differ from plain decoding's; empty if they are equal."""
    outputs = method.summary.outputs
    if outputs is None or not outputs.divergences:
        return ""
    order = ("fault", "not judged", "near-tied")
    first = min(outputs.divergences, key=lambda row: order.index(row.judgement))
    return (
        f"{method.name} differs from plain decoding in {outputs.compared - outputs.identical:,} of "
        f"{outputs.compared:,} outputs ({judgements(outputs)}), first at question {first.question_id}, "
        f"turn {first.turn + 1}, {first.unit} {first.position + 1}"
    )


def distribution_line(method: MethodResults) -> str:
    """Return a warning if a method changes the target's distribution; otherwise an empty string."""
    if method.lossless:
        return ""
    return f"{method.name} is not lossless: the verifier {method.verifier} changes the target's distribution"


def alarms(results: Results) -> list[str]:
    """Return a warning for each method whose outputs have a fault or another distribution than the target's."""
    faults = [
        f"Fault. {divergence_line(method)}. Its speed is meaningless until this is explained."
        for method in results.methods[1:]
        if method.summary.outputs and method.summary.outputs.faults
    ]
    lossy = [
        f"Not lossless. {line}: do not compare its speed with that of lossless methods."
        for method in results.methods[1:]
        if (line := distribution_line(method))
    ]
    return faults + lossy


def parts_of(results: Results) -> list[str]:
    """Return the parts that took time in processing order; unknown parts come before ``other``."""
    spent = [part for method in results.methods for part, seconds in method.summary.time_s.items() if seconds]
    places = {part: place for place, part in enumerate(PART_NAMES)}
    return sorted(dict.fromkeys(spent), key=lambda part: places.get(part, places["other"] - 0.5))


def overview_table(results: Results, *, page: bool = False) -> DataTable:
    """Return a table with one row per method; ``page`` adds draft vocabulary and deviation over runs."""
    rows, unit = [], "×" if page else ""
    columns: list[str] = []
    judged = any(method.summary.outputs or not method.lossless for method in results.methods[1:])
    for place, method in enumerate(results.methods):
        figures = method.summary.overall
        row = {
            "method<": DataCell(method.name, look=place),
            "accepted length": figure_cell(figures.accepted_length, spread=page),
            "tokens/s": figure_cell(figures.tokens_per_s, 1, spread=page),
            "speed-up": figure_cell(figures.speedup, 2, unit, spread=page),
            "speed-up (re-tok.)": _plain(figure_cell(figures.speedup_retokenised, 2, unit), page),
            "forwards /token": _plain(figure_cell(figures.forwards_per_token, 3), page),
            "identical": "baseline"
            if results.baseline and not place and judged
            else _identical(method, page),
        } | ({"draft vocabulary": _vocabulary(method)} if page else {})
        rows.append(list(row.values()))
        columns = list(row)
    known = any(method.summary.overall.tokens_per_s.low is not None for method in results.methods)
    note = "under a figure: its 95% interval over questions" if known else ""
    if (fastest := _fastest(results)) is not None:
        note += "; in bold: the method whose speed-up's interval is above all others'"
    title = "" if page else f"{results.target.name} on {results.benchmark.name}"
    return DataTable(title, columns, rows, note, strong=fastest).without_empty_columns()


def _fastest(results: Results) -> int | None:
    """Return the index of the method whose speed-up's interval is above all others', or None."""
    figures = [method.summary.overall.speedup for method in results.methods]
    for place, figure in enumerate(figures):
        others = [other.high for other in figures if other is not figure]
        if (
            figure.low is not None
            and others
            and all(high is not None and high < figure.low for high in others)
        ):
            return place
    return None


def load_table(results: Results) -> DataTable:
    """Return a table with one row per method and load."""
    names = [method.name for method in results.methods]
    asked = results.answered * results.runs
    rows = [
        [
            DataCell(load.method, look=names.index(load.method)),
            load.concurrency,
            number(load.tokens_per_s, 1),
            number(load.speedup),
            number(load.accepted_length),
            None if load.identical is None else f"{load.identical:,} of {asked:,}",
            *(
                number(None if value is None else 1e3 * value, 1)
                for quantiles in (load.first_token_s, load.token_s)
                for value in (quantiles.median, quantiles.p95)
            ),
        ]
        for load in results.load
    ]
    columns = ["method<", "requests at once", "tokens/s", "speed-up", "accepted length", "identical"]
    columns += ["first token, ms", "p95", "between tokens, ms", "p95"]
    note = "tokens/s: all tokens over the seconds in which a request was in progress, unlike the mean over questions; "
    note += "times are medians and 95th percentiles (p95)"
    return DataTable("latency and throughput by load", columns, rows, note).without_empty_columns()


def _plain(cell: DataCell, page: bool) -> DataCell:
    return cell if page else replace(cell, under="")


def _identical(method: MethodResults, page: bool) -> DataCell:
    same = method.summary.outputs
    if not method.lossless:
        return DataCell("not lossless", tone="bad")
    if same is None:
        return DataCell("–")
    tone = "bad" if same.faults else "good" if same.identical == same.compared else ""
    return DataCell(f"{same.identical:,} of {same.compared:,}", judgements(same) if page else "", tone)


def _vocabulary(method: MethodResults) -> DataCell:
    vocabulary = method.vocabulary
    if vocabulary is None:
        return DataCell("–")
    return DataCell(f"{vocabulary.size:,}", f"{vocabulary.kind}, {vocabulary.size / vocabulary.of:.1%}")


def position_table(results: Results) -> DataTable | None:
    """Return a table of accepted lengths by the length of the text; None if all texts are short."""
    methods = [method for method in results.methods[int(results.baseline) :] if method.summary.positions]
    ranges = sorted({(span.start, span.stop or 0) for method in methods for span in method.summary.positions})
    if not ranges or ranges[-1][0] == 0:
        return None
    rows: list[list[object]] = []
    for start, stop in ranges:
        in_range = [
            next((span for span in method.summary.positions if span.start == start), None)
            for method in methods
        ]
        cells = [
            DataCell("–")
            if figures is None
            else DataCell(number(figures.accepted_length), f"{figures.verifications:,}")
            for figures in in_range
        ]
        rows.append([f"{start:,} to {stop - 1:,}" if stop else f"from {start:,}", *cells])
    names = [method.name for method in methods]
    note = "under an accepted length: verifications; the length of the text counts the prompt"
    return DataTable("accepted length by length of the text", ["tokens<", *names], rows, note)


def category_table(results: Results) -> DataTable:
    """Return a table with one row per task: accepted length and speed-up of every method but the baseline."""
    rows: list[list[object]] = []
    for name, (plain, *others) in figure_rows(results):
        cells = [
            DataCell(
                f"{number(figures.accepted_length.value)}  {number(figures.speedup.value)}×",
                "  ".join(filter(None, (interval(figures.accepted_length), interval(figures.speedup)))),
            )
            for figures in others
        ]
        rows.append([name, plain.questions, *cells])
    names = [method.name for method in results.methods[1:]]
    return DataTable("accepted length and speed-up by task", ["task<", "questions", *names], rows, strong=0)


def main_tables(results: Results) -> list[DataTable]:
    """Return the tables for a terminal: figures, tasks, lengths of texts and loads, as far as there are any."""
    tables = [overview_table(results)]
    if results.baseline and len(results.methods) > 1 and len(results.methods[0].summary.categories) > 1:
        tables.append(category_table(results))
    if (positions := position_table(results)) is not None:
        tables.append(positions)
    return [*tables, load_table(results)] if results.load else tables


def count_lines(results: Results) -> list[str]:
    """Return a sentence for each method whose proposer reports the cost of drafting."""
    counted = [(method.name, phrase_of(method.summary.counts)) for method in results.methods]
    return [f"{name}: {phrase}" for name, phrase in counted if phrase]


def divergence_lines(results: Results) -> list[str]:
    """Return a sentence for each method whose greedy output differs from plain decoding's."""
    return [line for method in results.methods[1:] if (line := divergence_line(method))]
