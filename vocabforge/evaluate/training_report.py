"""The report of a training run: one self-contained HTML page and its figures as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ..core.errors import DataError
from ..core.files import atomic_write, atomic_write_json, form_errors
from .page import render_page
from .training_cards import Results, cards, column, last_row, reduced
from .training_plots import Curve, progress_chart, share_bars
from .training_results import LOG, read_run

REPORT_HTML, REPORT_JSON = "report.html", "report.json"
Legend = list[tuple[int, str, bool]]

_RIGHT, _WRONG, _OUTSIDE = 1, 2, 4  # colours of the causes


@dataclass(frozen=True)
class Panel:
    """A chart with its headings; the legend names colour number, text, and whether the line is dashed."""

    title: str
    note: str
    legend: Legend
    svg: str


def write_report(folder: Path) -> Path:
    """Write ``report.html`` and ``report.json`` into a run folder from what it holds; works while it runs.

    Returns:
        the page's path.

    Raises:
        DataError: no run there, or one without figures.
    """
    with form_errors("the log of the training run cannot be read", folder / LOG, kind=DataError):
        results = read_run(folder)
        page = render_training(results)
    atomic_write_json(folder / REPORT_JSON, results)
    atomic_write(folder / REPORT_HTML, page)
    return folder / REPORT_HTML


def render_training(results: Results) -> str:
    """HTML text of ``read_run``'s results; loads nothing from anywhere."""
    heldout, live = results["heldout"], results["live"]
    sections = [
        ("Acceptance", "pair", [*length_panels(results), *share_panels(results)]),
        ("By draft step", "trio", step_panels(results)),
        ("Draft heads", "pair", head_panels(results)),
        ("Training", "pair", loss_panels(results)),
        ("", "trio", training_panels(results)),
    ]
    return render_page(
        "training_report.html.j2",
        results=results,
        cards=cards(results),
        sections=[one for one in sections if one[2] or (one[0] == "Draft heads" and results["heads"])],
        last=last_row(heldout),
        live=last_row(live),
        heads=results["heads"],
        reduced=reduced(results),
        first_look=results["config"].get("run", {}).get("eval_every"),
    )


def length_panels(results: Results) -> list[Panel]:
    """Decoded accepted lengths beside those that the held-out rows predict."""
    heldout, live = results["heldout"], results["live"]
    wanted = [
        (live, "accepted_length", 3, False, "decoded, draft tree"),
        (live, "chain_accepted_length", 1, False, "decoded, chain"),
        (heldout, "chain_accepted_length", 1, True, "simulated, chain"),
        (heldout, "sampled_accepted_length", 2, True, "simulated at temperature 1"),
    ]
    curves, legend = [], []
    for series, key, colour, dashed, text in wanted:
        values = column(series, key)
        if any(value is not None for value in values):
            curves.append(Curve(series["step"], values, colour, dashed=dashed, dots=True))
            legend.append((colour, text, dashed))
    if not curves:
        return []
    note = "Tokens that one verification commits, the target's own included; 1 is plain decoding"
    svg = progress_chart("len", "tokens", curves, marks=results["resumed_at"], bottom=1.0)
    return [Panel("Accepted length", note, legend, svg)]


def share_panels(results: Results) -> list[Panel]:
    """Where drafts are lost, at the last evaluation by draft step and over training."""
    heldout = results["heldout"]
    last = last_row(heldout)
    if last is None or not last.get("drafter_wrong"):
        return []
    rows = [str(step) for step in range(1, len(last["accuracy"]) + 1)]
    legend = [(_RIGHT, "right", False), (_WRONG, "drafter wrong", False)]
    outside = [(_OUTSIDE, "outside the draft vocabulary", False)] if reduced(results) else []
    at = f"step {heldout['step'][-1]:,}"
    panels = []
    for key, title, note, names in (
        (
            "miss",
            "Greedy drafts, by draft step",
            f"Share of held-out rows at {at}",
            ("accuracy", "drafter_wrong", "out_of_vocabulary"),
        ),
        (
            "mass",
            "At temperature 1, by draft step",
            f"Expected acceptance at {at}, and what is lost",
            ("acceptance", "lost_wrong", "lost_outside"),
        ),
    ):
        if all(last.get(name) is not None for name in names):
            parts = [(colour, last[name]) for colour, name in zip((_RIGHT, _WRONG, _OUTSIDE), names)]
            svg = share_bars(key, "%", rows, parts)
            panels.append(Panel(title, note, [*legend, *outside], svg))
    if outside:  # with a whole vocabulary it would be the accuracy turned upside down
        curves = [
            Curve(heldout["step"], _percent(column(heldout, name, 0)), colour, dots=True)
            for colour, name in ((_WRONG, "drafter_wrong"), (_OUTSIDE, "out_of_vocabulary"))
        ]
        svg = progress_chart("lost", "rows missed, %", curves, marks=results["resumed_at"], bottom=0.0)
        note = "Why the first draft token is not the target's"
        panels.insert(0, Panel("What is missed", note, [legend[1], *outside], svg))
    return panels


def step_panels(results: Results) -> list[Panel]:
    """Accuracy and conditional acceptance of every draft step over training."""
    heldout = results["heldout"]
    panels = []
    for key, name, title, note in (
        ("acc", "accuracy", "Accuracy", "Held-out rows whose draft token is the target's"),
        (
            "cond",
            "conditional_acceptance",
            "Conditional acceptance",
            "Given that all earlier draft tokens were accepted",
        ),
        ("one", "acceptance", "Acceptance at temperature 1", "Mean overlap of drafter and target"),
    ):
        steps = max((len(row) for row in heldout.get(name, []) if row), default=0)
        curves = [
            Curve(
                heldout["step"],
                _percent(column(heldout, name, place)),
                1,
                strength=1.0 - 0.62 * place / max(steps - 1, 1),
                dots=True,
                width=2.2 if place == 0 else 1.6,
                end=str(place + 1),
            )
            for place in range(steps)
        ]
        if curves:
            svg = progress_chart(key, "%", curves, marks=results["resumed_at"], narrow=True)
            panels.append(Panel(title, note, [], svg))
    return panels


def head_panels(results: Results) -> list[Panel]:
    """Share of the exact head's accepted length that each draft head keeps, and its accuracy in training."""
    names = list(dict.fromkeys([*results["live_heads"], *results["train_heads"]]))
    panels = []
    for key, series, figure, title, note, label in (
        (
            "kept",
            results["live_heads"],
            "share_of_full",
            "Accepted length kept",
            "Decoded accepted length as a share of the exact head's" + _prompts(results),
            "% of the exact head",
        ),
        (
            "right",
            results["train_heads"],
            "accuracy",
            "Accuracy of the scores",
            "Training rows whose best score is the target's token, all draft steps" + _warm_up(results),
            "%",
        ),
    ):
        curves, legend = [], []
        for colour, name in enumerate(names, start=3):
            if name in series:
                values = _percent(series[name][figure])
                curves.append(Curve(series[name]["step"], values, colour, dots=True))
                legend.append((colour, name.replace("_", "-"), False))
        if curves:
            svg = progress_chart(key, label, curves, marks=results["resumed_at"])
            panels.append(Panel(title, note, legend, svg))
    return panels


def loss_panels(results: Results) -> list[Panel]:
    """Loss of training and held-out rows, and what is minimised."""
    train, heldout, marks = results["train"], results["heldout"], results["resumed_at"]
    loss = [Curve(train["step"], column(train, "loss"), 0, width=1.3)]
    held = column(heldout, "loss", 0)
    legend = [(0, "training", False)]
    if any(value is not None for value in held):
        loss.append(Curve(heldout["step"], held, 1, dots=True))
        legend.append((1, "held out", False))
    ttt = [Curve(train["step"], column(train, "ttt_loss"), 1, width=1.3)]
    return [
        Panel(
            "Loss",
            "Soft cross-entropy at the first draft step",
            legend,
            progress_chart("loss", "nats", loss, marks=marks),
        ),
        Panel(
            "TTT loss",
            "Weighted sum over draft steps: what is minimised" + _warm_up(results),
            [(1, "training", False)],
            progress_chart("ttt", "nats", ttt, marks=marks),
        ),
    ]


def training_panels(results: Results) -> list[Panel]:
    """Gradient norm, learning rate and speed."""
    train, panels = results["train"], []
    for key, name, title, note, label, colour in (
        ("norm", "grad_norm", "Gradient norm", "Before clipping", "norm", 6),
        ("rate", "lr", "Learning rate", "As scheduled", "", 5),
        ("speed", "tokens_per_s", "Speed", "Real tokens a second, evaluation left out", "tokens/s", 3),
    ):
        values = column(train, name)
        if any(value is not None for value in values):
            curves = [Curve(train["step"], values, colour, width=1.5)]
            svg = progress_chart(key, label, curves, marks=results["resumed_at"], bottom=0.0, narrow=True)
            panels.append(Panel(title, note, [], svg))
    return panels


def _prompts(results: Results) -> str:
    """How many prompts live figures are of: a share over two of them says little."""
    last = last_row(results["live"])
    number = last.get("prompts") if last else None
    return f", over {number:,} prompt{'s' if number != 1 else ''}" if number else ""


def _warm_up(results: Results) -> str:
    """Where curves over all draft steps jump: the end of the one-step warm-up."""
    share = results["config"].get("ttt", {}).get("warmup_fraction") or 0.0
    if not share or not results["steps"]:
        return ""
    return f" (one step only up to step {round(share * results['steps']):,})"


def _percent(values: Sequence[float | None]) -> list[float | None]:
    return [None if value is None else 100 * value for value in values]
