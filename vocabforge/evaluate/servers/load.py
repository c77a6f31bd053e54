"""Figures under load, of servers or of the decoder, and descriptions of servers with warnings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..results.answers import MethodRows, read_method
from ..results.intervals import share_of
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


def describe_load(
    folder: Path,
    evaluation: Evaluation,
    methods: Sequence[MethodResults],
    windows: Sequence[Mapping[str, Any]],
) -> tuple[dict[str, Any], list[MethodResults]]:
    """Return the fields of ``Results`` about load and servers, and the methods with acceptance from their counters.

    Args:
        folder: folder with ``answers/`` and ``details/`` of all loads.
        windows: rows of the journal, as created by :meth:`LoadWindow.row`, with an empty ``server`` if the
            decoder answered. Questions that the decoder answered one by one have none.
    """
    facts = {window["method"]: window["server"] for window in reversed(windows)}  # of its first window
    servers = [EvaluatedServer(method=name, **facts[name]) for name in evaluation.names if facts.get(name)]
    load: list[LoadFigures] = []
    totals: dict[tuple[str, int], Speculation | None] = {}
    prompts: dict[str, dict[int, list[int | None]]] = {}
    reference: Sequence[MethodRows] = ()
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
            if not reference and evaluation.baseline and evaluation.settings.temperature == 0:
                reference = rows
            own = [
                window for window in windows if window["method"] == name and window["concurrency"] == level
            ]
            known = [
                Speculation(**window["speculation"]) for window in own if window["speculation"] is not None
            ]
            total = totals[name, level] = total_of(known)
            choices = [row["choices"][0] for run in rows for row in run.answers]
            turns = [turn for choice in choices for turn in zip(choice["new_tokens"], choice["wall_time"])]
            answered = sum(tokens for tokens, _ in turns)
            # The decoder keeps no window of questions one by one; a process may be killed before its window is kept.
            alone = {"new_tokens": answered, "seconds": sum(seconds for _, seconds in turns)}
            own = own or ([alone] if level == 1 else [])
            seconds = sum(window["seconds"] for window in own)
            # The tokens of questions that an interruption lost were generated in these seconds as well.
            speeds[name] = sum(window["new_tokens"] for window in own) / seconds if seconds else None
            base = speeds[evaluation.names[0]] if evaluation.baseline else None
            load.append(
                LoadFigures(
                    method=name,
                    concurrency=level,
                    turns=len(turns),
                    new_tokens=answered,
                    seconds=seconds,
                    tokens_per_s=speeds[name],
                    speedup=share_of(speeds[name], base),
                    **_latencies(rows),
                    **(_acceptance(rows) if total is None else _counted(total)),
                    identical=_identical(rows, reference),
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
    if not servers:
        return {"load": load}, made
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


def _identical(rows: Sequence[MethodRows], reference: Sequence[MethodRows]) -> int | None:
    """Count questions whose token ids are those of plain decoding in the same run of the first load."""
    if not reference:
        return None
    same = 0
    for run, plain in zip(rows, reference, strict=True):
        expected = {row["question_id"]: row["choices"][0]["token_ids"] for row in plain.details}
        for row in run.details:
            tokens = row["choices"][0]["token_ids"]
            if None in tokens:
                return None
            same += tokens == expected[row["question_id"]]
    return same


def _counted(total: Speculation) -> dict[str, Any]:
    length = share_of(total.verifications + total.accepted, total.verifications)
    return {"verifications": total.verifications, "accepted_length": length}


def _acceptance(rows: Sequence[MethodRows]) -> dict[str, Any]:
    turns = [turn for run in rows for row in run.details for turn in row["choices"][0]["accept_lengths"]]
    steps = sum(map(len, turns))
    return {"verifications": steps or None, "accepted_length": share_of(sum(map(sum, turns)), steps)}


def _latencies(rows: Sequence[MethodRows]) -> dict[str, Any]:
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
        known = [total for level in evaluation.settings.concurrency if (total := totals[name, level])]
        drafts = sum(total.verifications for total in known)
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
    for window in windows:
        foreign[window["method"]] = foreign.get(window["method"], 0) + window["foreign_tokens"]
    return [
        f"Others asked the server of {name} meanwhile ({tokens:,} tokens): its accepted length and times include "
        "them."
        for name, tokens in foreign.items()
        if tokens
    ]
