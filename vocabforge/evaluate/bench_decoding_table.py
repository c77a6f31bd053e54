"""The table of ``vocabforge bench decoding``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

COLUMNS = (
    "mode",
    "tokens/s",
    "transformers",
    "ratio",
    "over plain",
    "accepted",
    "equal",
    "compiled, s",
)


def cells(row: Mapping[str, Any]) -> tuple[str, ...]:
    """One mode as text, in the order of :data:`COLUMNS`."""
    ours, theirs = row["ours"], row["theirs"]
    outputs = row.get("outputs") or row.get("as_plain")
    return (
        row["mode"],
        f"{ours['tokens_per_s']['median']:.0f}",
        "-" if theirs is None else f"{theirs['tokens_per_s']['median']:.0f}",
        "-" if row["ratio"] is None else _spread(row["ratio"], ".2f"),
        "-" if row.get("over_plain") is None else _spread(row["over_plain"], ".2f"),
        _length(ours) if theirs is None else f"{_length(ours)} / {_length(theirs)}",
        "-" if outputs is None else _equal(outputs),
        f"{ours['compile_s']:.0f}",
    )


def remarks(result: Mapping[str, Any]) -> list[str]:
    """What stands below the table: settings, where the time goes, and outputs that differ."""
    lines = [
        "tokens/s: median of the rounds. ratio: VocabForge to transformers, round by round (lowest to highest); over "
        "plain: to VocabForge's own plain decoding. accepted: tokens a pass of the target, VocabForge / transformers. "
        "equal: outputs that are transformers', or plain decoding's. Modes over a draft model with another "
        "tokenizer share transformers' side."
    ]
    for row in result["modes"]:
        ours, theirs = row["ours"], row["theirs"]
        parts = ", ".join(f"{part} {ms:.3f}" for part, ms in ours["part_ms_per_token"].items() if ms >= 5e-4)
        told = f"{row['mode']}: {_settings(ours)}; ms a token: {parts}"
        lines.append(told + ("" if theirs is None else f"; transformers: {_settings(theirs)}"))
        lines += _remarks_of(row)
    return lines


def _remarks_of(row: Mapping[str, Any]) -> list[str]:
    """What drafting counted, what transformers refused, and outputs that differ."""
    lines, mode = [], row["mode"]
    if counts := row["ours"]["counts"]:
        told = ", ".join(f"{name} {count:,}" for name, count in counts.items())
        if counts.get("psi"):
            told += f"; {counts['psi_contexts'] / counts['psi']:.2f} drafter contexts a psi"
        lines.append(f"{mode}: {told}")
    if refused := row.get("refused"):
        lines.append(f"{mode}: transformers refused every setting: {refused[0]['error']}")
    compared = (
        ("outputs", mode, "transformers'"),
        ("as_plain", mode, "plain decoding's"),
        ("theirs_as_plain", f"transformers for {mode}", "plain decoding's"),
    )
    for key, which, other in compared:
        for one in (row.get(key) or {}).get("divergences", ()):
            why = "a tie within rounding" if one["tie"] else "WRONG"
            lines.append(
                f"{which}: prompt {one['prompt'] + 1} differs from {other} output at token "
                f"{one['token'] + 1}, where the target's two best logits are {one['margin']:.2g} apart: {why}"
            )
    return lines


def _settings(side: Mapping[str, Any]) -> str:
    named = [f"{key} {value}" for key, value in side["settings"].items()]
    threads = side["threads"]
    return ", ".join([*named, f"{threads} thread" + "s" * (threads > 1)])


def _spread(values: Mapping[str, float], form: str) -> str:
    median, lowest, highest = (format(values[key], form) for key in ("median", "lowest", "highest"))
    return median if lowest == highest else f"{median} ({lowest}–{highest})"


def _length(side: Mapping[str, Any]) -> str:
    length = side["accepted_length"]
    return "-" if length is None else f"{length:.2f}"


def _equal(outputs: Mapping[str, Any]) -> str:
    return f"{outputs['equal']} of {outputs['compared']}"
