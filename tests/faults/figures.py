"""The figures of a campaign, as a table for people."""

from __future__ import annotations

from collections.abc import Sequence

from tests.faults.judging import Trial

_COLUMNS = (
    "fault",
    "command",
    "trials",
    "before",
    "middle",
    "after",
    "identical",
    "clear error",
    "wrong",
    "s",
)


def table(found: Sequence[Trial], seconds: float) -> str:
    """Rows of fault and command: trials, when they struck, how they ended; Markdown."""
    rows = []
    for fault in dict.fromkeys(trial.fault for trial in found):
        mine = [trial for trial in found if trial.fault == fault]
        for command in dict.fromkeys(trial.command for trial in mine):
            rows.append(_row(fault, command, [trial for trial in mine if trial.command == command]))
        rows.append(_row(fault, "**all**", mine))
    cells = [_COLUMNS, *rows]
    widths = [max(len(row[at]) for row in cells) for at in range(len(_COLUMNS))]
    lines = [
        "| " + " | ".join(_placed(row[at], widths[at], at) for at in range(len(_COLUMNS))) + " |"
        for row in cells
    ]
    rule = (
        "|" + "|".join("-" * (width + 1) + ("-" if at < 2 else ":") for at, width in enumerate(widths)) + "|"
    )
    wrong = sum(trial.verdict == "WRONG" for trial in found)
    return "\n".join(
        [lines[0], rule, *lines[1:], "", f"{len(found)} trials, {wrong} wrong, {seconds:.0f} s in all"]
    )


def _placed(text: str, width: int, at: int) -> str:
    return text.ljust(width) if at < 2 else text.rjust(width)


def _row(fault: str, command: str, trials: Sequence[Trial]) -> tuple[str, ...]:
    phases = [sum(trial.phase == phase for trial in trials) for phase in ("before", "middle", "after")]
    ends = [sum(trial.verdict == end for trial in trials) for end in ("identical", "clear error", "WRONG")]
    seconds = sum(trial.seconds for trial in trials)
    return (fault, command, *map(str, (len(trials), *phases, *ends)), f"{seconds:.0f}")
