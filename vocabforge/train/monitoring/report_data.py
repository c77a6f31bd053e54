"""Read the log of a training run as series and facts for its report."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ...core.errors import DataError
from ...core.files import read_json
from ...core.journal import read_jsonl_log
from ..checkpoint import list_checkpoints

LOG, CONFIG = "metrics.jsonl", "config.json"
SCHEMA = 2
_TRAIN = ("loss", "ttt_loss", "lr", "grad_norm", "tokens_per_s")
_MOST_POINTS = 400

Rows = list[dict[str, Any]]


def read_run(folder: Path) -> dict[str, Any]:
    """Read series and facts of a finished or running training run as plain JSON values.

    Returns:
        ``train`` (means over at most 400 intervals of steps), ``heldout`` and ``live`` as columns with
        ``step``; ``heads``, the draft heads' report or None; ``resumed_at``, ``config``, ``facts``.

    Raises:
        DataError: the log is missing, invalid, or has no figures.
    """
    if not (folder / LOG).is_file():
        raise DataError(
            "there is no training run here",
            got=f"{folder} without {LOG}",
            expected="the output folder of train-drafter",
            remedy="check the path; a run that has just started writes it at its first logged step",
        )
    rows = read_jsonl_log(folder / LOG)
    kinds = {
        kind: _last_of_step(rows, kind) for kind in ("train", "heldout", "live", "heads", "start", "end")
    }
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
    results: dict[str, Any] = {
        "schema": SCHEMA,
        "name": folder.resolve().name,
        "created": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
        "state": "finished" if finished else "unfinished",
        "step": step,
        "steps": steps,
        "resumed_at": sorted(
            {int(row["step"]) for row in rows if row.get("kind") == "start" and row["step"]}
        ),
        "train": thinned(columns(kinds["train"], _TRAIN)),
        "heldout": columns(kinds["heldout"]),
        "live": columns(kinds["live"], without=("heads",)),
        "heads": kinds["heads"][-1]["heads"] if kinds["heads"] else None,
        "config": config,
    }
    results["facts"] = _facts(results, rows)
    return results


def _config(folder: Path) -> dict[str, Any]:
    """Read the run's resolved configuration; empty if it was not saved."""
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


def _last_of_step(rows: Iterable[Mapping[str, Any]], kind: str) -> Rows:
    """Return rows of a kind in order of step, the last row of each step."""
    found = {int(row["step"]): dict(row) for row in rows if row.get("kind") == kind and "step" in row}
    return [found[step] for step in sorted(found)]


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


def _facts(results: Mapping[str, Any], rows: Rows) -> dict[str, dict[str, str]]:
    """Summarise model, data and duration; all settings are in ``config``."""
    config, resumed = results["config"], results["resumed_at"]
    drafter, data = (config.get(key, {}) for key in ("drafter", "data"))
    kind = [str(drafter.get("kind", "–")), f"{drafter.get('head', 'target')} head"]
    kind += [f"draft vocabulary {_name(drafter['vocab'])}"] if drafter.get("vocab") else []
    kind += [f"from {_name(drafter['init'])}"] if drafter.get("init") else []
    of = f" of {results['steps']:,}" if results["steps"] else ""
    at = "at step " + ", ".join(f"{step:,}" for step in resumed)
    told = [row["facts"] for row in rows if row.get("kind") == "start" and row.get("facts")]
    return {
        "Run": {
            "target": _name(config.get("target")),
            "drafter": ", ".join(kind) + (" (frozen)" if drafter.get("freeze") else ""),
            "draft heads": ", ".join(name for name, one in config.get("heads", {}).items() if one) or "none",
            "data": ", ".join(_name(path) for path in data.get("train") or []) or _name(data.get("prepared")),
        },
        "Training": {
            "steps": f"{results['step']:,}{of}",
            "time": _duration(rows),
            "resumed": at if resumed else "never",
        },
        **({"Machine and data": {str(name): str(value) for name, value in told[-1].items()}} if told else {}),
    }


def _name(path: Any) -> str:
    return Path(str(path)).name if path else "–"


def _duration(rows: Rows) -> str:
    """Return the training time: gaps between rows, except those before a restart."""
    timed = [(row["time"], row.get("kind") == "start") for row in rows if row.get("time") is not None]
    spent = sum(now - before for (before, _), (now, start) in itertools.pairwise(timed) if not start)
    if not spent:
        return "–"
    hours, rest = divmod(round(spent), 3600)
    return f"{hours} h {rest // 60} min" if hours else f"{rest // 60} min {rest % 60} s"
