"""Additional results of server evaluations: server descriptions, figures under load, and warnings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..results.answers import MethodRows, read_method
from ..results.schema import EvaluatedServer, LoadFigures, MethodResults, Quantiles
from ..results.settings import run_files
from ..results.summary import with_totals
from .counters import Speculation, total_of

if TYPE_CHECKING:
    from ..evaluation import Evaluation

_TURN_ON = {
    "vllm": "start it with --speculative-config",
    "sglang": "start it with --speculative-algorithm and --speculative-draft-model-path",
}


def describe_servers(
    folder: Path,
    evaluation: Evaluation,
    methods: Sequence[MethodResults],
    windows: Sequence[Mapping[str, Any]],
) -> tuple[dict[str, Any], list[MethodResults]]:
    """Return the server fields of ``Results``, and the methods with acceptance from the windows' counters.

    Args:
        folder: folder with ``answers/`` and ``details/`` of all loads.
        windows: rows of the journal, as created by :meth:`LoadWindow.row`.
    """
    servers = [
        EvaluatedServer(method=name, **window["server"])
        for name in evaluation.names
        if (window := next((one for one in windows if one["method"] == name), None)) is not None
    ]
    load: list[LoadFigures] = []
    totals: dict[tuple[str, int], Speculation | None] = {}
    prompts: dict[str, dict[int, list[int | None]]] = {}
    for level in evaluation.settings.concurrency:
        count = len(evaluation.settings.runs)
        files = {
            kind: run_files(evaluation.settings.folder_of(kind, level), evaluation.names, count)
            for kind in ("answers", "details")
        }
        speeds: dict[str, float | None] = {}
        for name in evaluation.names:
            answers, details = files["answers"][name], files["details"][name]
            rows = read_method(folder, answers, details)
            own = [one for one in windows if one["method"] == name and one["concurrency"] == level]
            known = [_speculation(one["speculation"]) for one in own if one["speculation"] is not None]
            total = totals[name, level] = total_of(known)
            seconds, tokens = sum(one["seconds"] for one in own), sum(one["new_tokens"] for one in own)
            speeds[name] = tokens / seconds if seconds else None
            base = speeds[evaluation.names[0]] if evaluation.baseline else None
            load.append(
                LoadFigures(
                    method=name,
                    concurrency=level,
                    turns=sum(one["turns"] for one in own),
                    new_tokens=tokens,
                    seconds=seconds,
                    tokens_per_s=speeds[name],
                    speedup=_ratio(speeds[name], base),
                    **_latencies(rows),
                    verifications=None if total is None else total.verifications,
                    accepted_length=None
                    if total is None
                    else _ratio(total.verifications + total.accepted, total.verifications),
                    answers=answers,
                    details=details,
                )
            )
            for run in rows:
                for row in run.details:
                    prompts.setdefault(name, {})[row["question_id"]] = row["choices"][0]["prompt_tokens"][:1]
    first = evaluation.settings.concurrency[0]
    made = [
        method.model_copy(update={"summary": with_totals(method.summary, total)})
        if first > 1
        and method.summary.overall.accepted_length.value is None
        and (total := totals[method.name, first])
        else method
        for method in methods
    ]
    warnings = [
        *_speculation_lines(evaluation, servers, totals),
        *_other_model_lines(evaluation, servers, prompts),
        *_foreign_lines(windows),
    ]
    if not evaluation.baseline:
        warnings.append(
            "No plain server was asked: there is no speed-up and no check of the outputs. Add --server plain=URL."
        )
    return {"servers": servers, "load": load, "warnings": warnings}, made


def _speculation(found: Mapping[str, Any]) -> Speculation:
    values = {
        **found,
        "accepted_by_depth": tuple(found["accepted_by_depth"]),
        "offered": tuple(found["offered"]),
    }
    return Speculation(**values)


def _ratio(one: float | None, other: float | None) -> float | None:
    return None if one is None or not other else one / other


def _latencies(rows: Sequence[MethodRows]) -> dict[str, Quantiles]:
    """Compute latencies over all turns; a turn of one token has no time between tokens."""
    first: list[float] = []
    between: list[float] = []
    for run in rows:
        tokens = {row["question_id"]: row["choices"][0]["new_tokens"] for row in run.answers}
        for row in run.details:
            choice = row["choices"][0]
            first += choice["prefill_s"]
            turns = zip(choice["decode_s"], tokens[row["question_id"]], strict=True)
            between += [seconds / (count - 1) for seconds, count in turns if count > 1]
    return {"first_token_s": _quantiles(first), "token_s": _quantiles(between)}


def _quantiles(values: Sequence[float]) -> Quantiles:
    if not values:
        return Quantiles(median=None, p95=None)
    median, p95 = np.quantile(values, [0.5, 0.95])
    return Quantiles(median=float(median), p95=float(p95))


def _speculation_lines(
    evaluation: Evaluation,
    servers: Sequence[EvaluatedServer],
    totals: Mapping[tuple[str, int], Speculation | None],
) -> list[str]:
    lines = []
    for server in servers:
        name = server.method
        found = [total for level in evaluation.settings.concurrency if (total := totals[name, level])]
        drafts = sum(total.verifications for total in found)
        plain = evaluation.baseline and name == evaluation.names[0]
        if plain and drafts:
            lines.append(
                f"{name} is not a plain server: it verified {drafts:,} drafts. Speed-ups are meaningless."
            )
        elif not plain and not drafts:
            how = _TURN_ON.get(server.kind)
            lines.append(
                f"{name} has no speculation on: {how}."
                if how
                else f"{name} does not tell whether it speculates (a server of kind {server.kind})."
            )
    return lines


def _other_model_lines(
    evaluation: Evaluation,
    servers: Sequence[EvaluatedServer],
    prompts: Mapping[str, Mapping[int, list[int | None]]],
) -> list[str]:
    """Warn if prompt lengths differ between servers: tokenizers or chat templates must differ."""
    lines = []
    first = evaluation.names[0]
    for name in evaluation.names[1:]:
        for number, lengths in prompts.get(first, {}).items():
            others = prompts.get(name, {}).get(number, lengths)
            if lengths != others and None not in [*lengths, *others]:
                lines.append(
                    f"{name} and {first} serve different models or chat templates: question {number} has "
                    f"{others[0]} tokens for one and {lengths[0]} for the other."
                )
                break
    return lines


def _foreign_lines(windows: Sequence[Mapping[str, Any]]) -> list[str]:
    foreign: dict[str, int] = {}
    for one in windows:
        foreign[one["method"]] = foreign.get(one["method"], 0) + one["foreign_tokens"]
    return [
        f"Others asked the server of {name} meanwhile ({tokens:,} tokens): its accepted length and times include "
        "them."
        for name, tokens in foreign.items()
        if tokens
    ]
