"""Report of a training run: a self-contained HTML page, and its figures as JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ...core.console import DataTable, FactList, percent
from ...core.errors import DataError
from ...core.files import atomic_write, atomic_write_json, form_errors
from ...evaluate.reports.page import (
    Block,
    CodeBlock,
    Folded,
    PageCard,
    PageChart,
    PageSection,
    ReportPage,
    line_chart,
    render_report_page,
)
from ...evaluate.reports.plots import Trace
from ..heads.report import report_table
from .report_data import LOG, read_run

REPORT_HTML, REPORT_JSON = "report.html", "report.json"
Series = Mapping[str, Sequence[Any]]
RunResults = Mapping[str, Any]


def write_report(folder: Path) -> Path:
    """Write ``report.html`` and ``report.json`` into a run folder; also works while the run is in progress.

    Returns:
        Path of the page.

    Raises:
        DataError: the folder has no run, or the run has no figures yet.
    """
    with form_errors("the log of the training run cannot be read", folder / LOG, kind=DataError):
        results = read_run(folder)
        page = render_training(results)
    atomic_write_json(folder / REPORT_JSON, results)
    atomic_write(folder / REPORT_HTML, page)
    return folder / REPORT_HTML


def render_training(results: RunResults) -> str:
    """Render the results of ``read_run`` as a self-contained HTML page."""
    config, facts = results["config"], results["facts"]
    heads: list[Block] = [report_table(results["heads"])] if results["heads"] else []
    about: list[Block] = [FactList(some, title) for title, some in facts.items()]
    if config:
        about.append(Folded("All settings, resolved", [CodeBlock(json.dumps(config, indent=2))]))
    return render_report_page(
        ReportPage(
            "training",
            results["name"],
            [
                PageSection("Acceptance", _length_charts(results), "acceptance"),
                PageSection("By draft step", _step_table(results), "steps"),
                PageSection("Draft heads", heads, "heads"),
                PageSection("Training", _training_charts(results), "training"),
                PageSection("About this run", about, "about"),
            ],
            about=_about(results),
            cards=_cards(results),
        )
    )


def _about(results: RunResults) -> str:
    step, steps, run = results["step"], results["steps"], results["facts"]["Run"]
    of = f" of {steps:,}" if steps else ""
    finished = ", finished" if results["state"] == "finished" else ""
    parts = [f"{run['drafter']} for {run['target']}: step {step:,}{of}{finished}."]
    if results["resumed_at"]:
        where = ", ".join(f"{one:,}" for one in results["resumed_at"])
        parts.append(f"Resumed at step {where}: the dotted upright lines.")
    if not results["heldout"]["step"] and not results["live"]["step"]:
        first = results["config"].get("run", {}).get("eval_every")
        comes = f": the first comes at step {min(first, steps or first):,}" if first else ""
        parts.append(f"No evaluation yet{comes}.")
    return " ".join([*parts, f"Written {results['created']}."])


def _cards(results: RunResults) -> list[PageCard]:
    found, heldout, live = [], last_row(results["heldout"]), last_row(results["live"])
    if live.get("accepted_length") is not None:
        note = "tokens per cycle that the real decoder commits, on held-out prompts"
        found.append(PageCard("Accepted length", f"{live['accepted_length']:.2f}", note))
    if heldout.get("chain_accepted_length") is not None:
        note = "predicted from held-out text for a greedy chain"
        found.append(PageCard("Simulated length", f"{heldout['chain_accepted_length']:.2f}", note))
    if heldout.get("accuracy"):
        note = "of first draft tokens are the target's, over the whole vocabulary"
        found.append(PageCard("Accuracy", f"{heldout['accuracy'][0]:.1%}", note))
    if live.get("prompts"):
        tone = "good" if live.get("identical") == live["prompts"] else "bad"
        note = "live outputs equal plain decoding, token by token"
        found.append(PageCard("Lossless", f"{live.get('identical')} of {live['prompts']}", note, tone))
    return found


def last_row(series: Series) -> dict[str, Any]:
    """Return the last entry of every column; empty without rows."""
    return {name: values[-1] for name, values in series.items()} if series["step"] else {}


def column(series: Series, name: str, place: int | None = None) -> list[Any]:
    """Return a column, or one draft step of a column of lists; None for missing values."""
    values = series.get(name) or [None] * len(series["step"])
    if place is None:
        return list(values)
    return [value[place] if value is not None and place < len(value) else None for value in values]


def _length_charts(results: RunResults) -> list[PageChart]:
    """Return charts of decoded accepted lengths, with the lengths predicted from held-out rows."""
    wanted = [
        ("live", "accepted_length", 3, False, "decoded, draft tree"),
        ("live", "chain_accepted_length", 1, False, "decoded, chain"),
        ("heldout", "chain_accepted_length", 1, True, "simulated, chain"),
        ("heldout", "sampled_accepted_length", 2, True, "simulated at temperature 1"),
    ]
    traces = [
        Trace(colour, results[kind]["step"], column(results[kind], key), text, dashed=dashed)
        for kind, key, colour, dashed, text in wanted
    ]
    note = "Tokens that one verification commits, the target's own included; 1 is plain decoding"
    how = {"marks": results["resumed_at"], "bottom": 1.0}
    return line_chart("len", "Accepted length", note, ("step", "tokens"), traces, **how)


def _step_table(results: RunResults) -> list[DataTable]:
    last, live = last_row(results["heldout"]), last_row(results["live"])
    steps = len(last.get("accuracy") or ())
    if not steps:
        return []
    names = {
        "accuracy": "accuracy",
        "conditional acceptance": "conditional_acceptance",
        "drafter wrong": "drafter_wrong",
        "outside the vocabulary": "out_of_vocabulary",
        "acceptance at temperature 1": "acceptance",
    }
    shares = {title: last.get(name) for title, name in names.items()}
    shares["decoded tree: conditional"] = live.get("conditional_by_position")
    shown = {title: [percent(one, 1) for one in values] for title, values in shares.items() if values}
    shown |= {"loss": [f"{one:.3f}" for one in last["loss"]]} if last.get("loss") else {}
    rows = [
        [str(at + 1), *(values[at] if at < len(values) else None for values in shown.values())]
        for at in range(steps)
    ]
    note = f"At the last evaluation, step {last['step']:,}, over held-out text"
    if live.get("conditional_by_position"):
        note += f"; of the decoded tree: the real decoder's own cycles at step {live['step']:,}"
    return [DataTable("", ["draft step<", *shown], rows, note + ".")]


def _training_charts(results: RunResults) -> list[PageChart]:
    train, heldout = results["train"], results["heldout"]
    steps = train["step"]
    loss = Trace(0, steps, column(train, "loss"), "training", marked=False)
    held = Trace(1, heldout["step"], column(heldout, "loss", 0), "held out")
    note, marks = "Soft cross-entropy at the first draft step", results["resumed_at"]
    charts = line_chart("loss", "Loss", note, ("step", "nats"), [loss, held], marks=marks)
    minimised = "Weighted sum over draft steps, which training minimises"
    share = results["config"].get("ttt", {}).get("warmup_fraction") or 0.0
    if share and results["steps"]:
        minimised += f" (one step only up to step {round(share * results['steps']):,})"
    for key, name, title, note, label, bottom in (
        ("ttt", "ttt_loss", "TTT loss", minimised, "nats", None),
        ("norm", "grad_norm", "Gradient norm", "Before clipping", "norm", 0.0),
        ("speed", "tokens_per_s", "Speed", "Real tokens a second, evaluation left out", "tokens/s", 0.0),
    ):
        curve = [Trace(1, steps, column(train, name), marked=False)]
        charts += line_chart(key, title, note, ("step", label), curve, marks=marks, bottom=bottom)
    return charts
