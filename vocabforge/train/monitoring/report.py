"""Report of a training run: its figures as JSON, a PNG plot, and tables for a terminal."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ...core.console import DataTable, percent
from ...core.errors import DataError
from ...core.files import atomic_write, atomic_write_json, form_errors, read_json
from ...core.journal import read_jsonl_log
from ...evaluate.reports.plots import Panel, Trace, render_png
from ..checkpoint import list_checkpoints
from ..heads.report import report_table

LOG, CONFIG = "metrics.jsonl", "config.json"
REPORT_PNG, REPORT_JSON = "report.png", "report.json"
SCHEMA = 3
_TRAIN = ("loss", "ttt_loss", "lr", "grad_norm", "tokens_per_s")
_MOST_POINTS = 400

Rows = list[dict[str, Any]]
Series = Mapping[str, Sequence[Any]]
RunResults = Mapping[str, Any]


def write_report(folder: Path) -> tuple[Path, dict[str, Any]]:
    """Write ``report.png`` and ``report.json`` into a run folder; also works while the run is in progress.

    Returns:
        Path of the plot, and the results of :func:`read_run`.

    Raises:
        DataError: the folder has no run, or the run has no figures yet.
    """
    with form_errors("the log of the training run cannot be read", folder / LOG, kind=DataError):
        results = read_run(folder)
        plot = render_training(results)
        report_tables(results)  # a figure of another type fails here, not while it is printed
    atomic_write_json(folder / REPORT_JSON, results)
    atomic_write(folder / REPORT_PNG, plot)
    return folder / REPORT_PNG, results


def read_run(folder: Path) -> dict[str, Any]:
    """Read series and facts of a finished or running training run as plain JSON values.

    Returns:
        ``train`` (means over at most 400 intervals of steps), ``heldout`` and ``live`` as columns with
        ``step``; ``heads``, the draft heads' report or None; ``resumed_at``, ``seconds``, ``machine``,
        ``config``.

    Raises:
        DataError: the log is missing, invalid, or has no figures.
    """
    if not (folder / LOG).is_file():
        raise DataError(
            "no training run here",
            got=f"{folder} without {LOG}",
            expected="the output folder of train-drafter",
            remedy="check the path; a run that has just started writes it at its first logged step",
        )
    rows = read_jsonl_log(folder / LOG)
    kinds = {kind: _last_of_step(rows, kind) for kind in ("train", "heldout", "live", "heads")}
    if not kinds["train"] and not kinds["heldout"]:
        raise DataError(
            "the training run has no figures yet",
            expected="a row of training or of held-out figures",
            source=folder / LOG,
            remedy="wait for the first logged step",
        )
    config = _config(folder)
    step = _last_step(folder, rows)
    steps = config.get("optim", {}).get("steps")
    finished = (folder / "drafter" / "manifest.json").is_file() and step == (steps or step)
    starts = [row for row in rows if row.get("kind") == "start"]
    machines = [row["facts"] for row in starts if row.get("facts")]
    return {
        "schema": SCHEMA,
        "name": folder.resolve().name,
        "created": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
        "state": "finished" if finished else "unfinished",
        "step": step,
        "steps": steps,
        "resumed_at": sorted({int(row["step"]) for row in starts if row["step"]}),
        "seconds": _seconds(rows),
        "machine": machines[-1] if machines else {},
        "train": thinned(columns(kinds["train"], _TRAIN)),
        "heldout": columns(kinds["heldout"]),
        "live": columns(kinds["live"], without=("heads",)),
        "heads": kinds["heads"][-1]["heads"] if kinds["heads"] else None,
        "config": config,
    }


def _config(folder: Path) -> dict[str, Any]:
    config = read_json(folder / CONFIG, "run configuration") if (folder / CONFIG).is_file() else {}
    if not isinstance(config, dict) or not isinstance(config.get("optim", {}), dict):
        raise DataError(
            "the run's config.json is not a configuration",
            expected="the JSON object that train-drafter writes, with a section optim",
            source=folder / CONFIG,
        )
    return config


def _last_step(folder: Path, rows: Rows) -> int:
    """Return the last known step: rows are written every few steps, checkpoints also at interruptions."""
    kept = [int(path.name.removeprefix("step-")) for path in list_checkpoints(folder / "checkpoints")]
    return max([*kept, *(int(row["step"]) for row in rows if "step" in row)])


def _seconds(rows: Rows) -> float:
    """Return the training time: gaps between rows, except those before a restart."""
    timed = [(row["time"], row.get("kind") == "start") for row in rows if row.get("time") is not None]
    return float(sum(now - before for (before, _), (now, start) in itertools.pairwise(timed) if not start))


def _last_of_step(rows: Iterable[Mapping[str, Any]], kind: str) -> Rows:
    """Return rows of a kind in order of step, the last row of each step."""
    by_step = {int(row["step"]): dict(row) for row in rows if row.get("kind") == kind and "step" in row}
    return [by_step[step] for step in sorted(by_step)]


def columns(
    rows: Rows, names: Sequence[str] | None = None, without: Sequence[str] = ()
) -> dict[str, list[Any]]:
    """Convert rows to columns, None for missing keys; ``names``: by default all except ``without``."""
    if names is None:
        names = list(dict.fromkeys(key for row in rows for key in row))
    kept = [name for name in names if name not in ("kind", "step", *without)]
    return {"step": [int(row["step"]) for row in rows]} | {
        name: [row.get(name) for row in rows] for name in kept
    }


def thinned(series: dict[str, list[Any]], most: int = _MOST_POINTS) -> dict[str, list[Any]]:
    """Average over equal intervals if there are more than ``most`` points; keep each interval's last step."""
    count = len(series["step"])
    if count <= most:
        return series
    cuts = [round(place * count / most) for place in range(most + 1)]
    return {
        name: [
            values[end - 1] if name == "step" else _mean(values[start:end])
            for start, end in itertools.pairwise(cuts)
        ]
        for name, values in series.items()
    }


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def last_row(series: Series) -> dict[str, Any]:
    """Return the last entry of every column; empty without rows."""
    return {name: values[-1] for name, values in series.items()} if series["step"] else {}


def render_training(results: RunResults) -> bytes:
    """Plot the results of :func:`read_run` as a PNG file; dotted lines mark where the run was resumed."""
    train, heldout, live = results["train"], results["heldout"], results["live"]
    resumed = [(step, "" if at else "resumed") for at, step in enumerate(results["resumed_at"])]

    def curve(
        index: int,
        series: Series,
        name: str,
        label: str = "",
        *,
        place: int | None = None,
        dashed: bool = False,
    ) -> Trace:
        values = series.get(name) or [None] * len(series["step"])
        if place is not None:
            values = [row[place] if row is not None and place < len(row) else None for row in values]
        return Trace(index, series["step"], values, label, dashed)

    def by_step(name: str) -> list[Trace]:
        steps = max((len(row) for row in heldout.get(name, ()) if row is not None), default=0)
        return [curve(at + 1, heldout, name, f"draft step {at + 1}", place=at) for at in range(steps)]

    def panel(title: str, label: str, traces: Sequence[Trace], bottom: float | None = 0.0) -> Panel:
        return Panel(title, ("step", label), traces, bottom=bottom, marks=resumed)

    losses = [
        curve(0, train, "loss", "training, 1st draft step"),
        curve(1, heldout, "loss", "held out, 1st draft step", place=0),
        curve(2, train, "ttt_loss", "training, weighted sum over draft steps", dashed=True),
    ]
    lengths = [
        curve(3, live, "accepted_length", "decoded, draft tree"),
        curve(1, live, "chain_accepted_length", "decoded, chain"),
        curve(1, heldout, "chain_accepted_length", "simulated, chain", dashed=True),
        curve(2, heldout, "sampled_accepted_length", "simulated at temperature 1", dashed=True),
    ]
    share = "share of positions"
    panels = [
        panel("Loss", "nats", losses, None),
        panel("Accepted length", "tokens per cycle", lengths, 1.0),
        panel("Held-out accuracy", share, by_step("accuracy")),
        panel("Outside the draft vocabulary", share, by_step("out_of_vocabulary")),
        panel("Learning rate", "learning rate", [curve(1, train, "lr")]),
        panel("Gradient norm before clipping", "norm", [curve(1, train, "grad_norm")]),
        panel("Speed, evaluation left out", "real tokens/s", [curve(1, train, "tokens_per_s")]),
    ]
    return render_png(run_line(results), panels)


def run_line(results: RunResults) -> str:
    """Describe the state of the run in a line."""
    step, steps, seconds = results["step"], results["steps"], round(results["seconds"])
    hours, rest = divmod(seconds, 3600)
    spent = f"{hours} h {rest // 60} min" if hours else f"{rest // 60} min {rest % 60} s"
    parts = [
        f"{results['name']}: step {step:,}" + (f" of {steps:,}" if steps else ""),
        results["state"],
        *([spent] if seconds else []),
    ]
    if results["resumed_at"]:
        parts.append("resumed at step " + ", ".join(f"{step:,}" for step in results["resumed_at"]))
    if not results["heldout"]["step"] and not results["live"]["step"]:
        first = results["config"].get("run", {}).get("eval_every")
        due = f" (the first comes at step {min(first, steps or first):,})" if first else ""
        parts.append(f"no evaluation yet{due}")
    return ", ".join(parts)


def report_tables(results: RunResults) -> list[DataTable]:
    """Return the figures of the last evaluation by draft step, and those of the draft heads."""
    last, live = last_row(results["heldout"]), last_row(results["live"])
    tables = []
    if steps := len(last.get("accuracy") or ()):
        shares = {
            "accuracy": last["accuracy"],
            "conditional acceptance": last.get("conditional_acceptance"),
            "drafter wrong": last.get("drafter_wrong"),
            "outside the vocabulary": last.get("out_of_vocabulary"),
            "acceptance at temperature 1": last.get("acceptance"),
            "decoded tree: conditional": live.get("conditional_by_position"),
        }
        shown = {name: [percent(share, 1) for share in values] for name, values in shares.items() if values}
        shown |= {"loss": [f"{loss:.3f}" for loss in last["loss"]]} if last.get("loss") else {}
        rows = [
            [str(at + 1), *(values[at] if at < len(values) else None for values in shown.values())]
            for at in range(steps)
        ]
        title = f"Held-out text by draft step, at step {last['step']:,}"
        tables.append(DataTable(title, ["draft step<", *shown], rows))
    return [*tables, report_table(results["heads"])] if results["heads"] else tables
