"""What a reader must know before the figures of a comparison are believed, one sentence each."""

from __future__ import annotations

from collections.abc import Sequence

from ..report_text import law_line
from . import checks
from .results import RunRow
from .runs import EvaluationRun


def run_warnings(
    runs: Sequence[EvaluationRun],
    run_rows: Sequence[RunRow],
    reference: str,
    questions: int,
    across_machines: bool,
) -> list[str]:
    """Of machines, drift, random numbers and questions left out.

    Args:
        runs, run_rows: in the same order.
        reference: label of the run that the others are compared with.
        questions: how many are compared.
    """
    at = [row.label for row in run_rows].index(reference)
    found = []
    for row, run in zip(run_rows, runs, strict=True):
        if row.label != reference:
            found += _pair_warnings((runs[at], run), (run_rows[at], row), across_machines)
    found += [
        f"{row.label}: {line}; figures of methods that keep that law are not comparable with its own"
        for row, run in zip(run_rows, runs, strict=True)
        for method in run.results.methods
        if (line := law_line(method))
    ]
    asked = max(run.results.benchmark.questions for run in runs)
    if questions < asked:
        found.append(
            f"{asked - questions} of {asked} questions were not answered by every method of every run; no figure "
            "here contains them"
        )
    if not all(run.results.target.fingerprint for run in runs):
        found.append("not every run recorded the hash of its target: the target is compared by name alone")
    if not all(run.results.target.tokenizer for run in runs):
        found.append("not every run recorded its tokenizer: whether it is the same is not known")
    return found


def _pair_warnings(
    runs: tuple[EvaluationRun, EvaluationRun], rows: tuple[RunRow, RunRow], across_machines: bool
) -> list[str]:
    """Of the reference's run and another."""
    home, other = rows
    results = [run.results for run in runs]
    found = []
    if other.machine != home.machine:
        facts = checks.machine_facts(results)
        what = "; ".join(f"{name}: {' / '.join(facts[name])}" for name in checks.differing(facts))
        then = "times are compared because you asked for it" if across_machines else "times are not compared"
        found.append(f"{home.label} and {other.label} were measured on different machines ({what}): {then}")
    elif other.drift is not None and other.drift_verdict in ("better", "worse"):
        found.append(_drift(home, other))
    how = checks.noted_facts(results)["passes"]
    if how[0] != how[1]:
        found.append(
            f"passes of {home.label} ran {how[0]}, those of {other.label} {how[1]}: times differ by that, too"
        )
    if not checks.same_streams(*results):
        found.append(
            f"{home.label} and {other.label} drew other random numbers (other seeds): comparable in distribution, "
            "but not paired; the intervals are wider for it"
        )
    if other.hash == home.hash:
        found.append(f"{home.label} and {other.label} hold the same files: one is a copy of the other")
    return found


def _drift(home: RunRow, other: RunRow) -> str:
    now, before = other.plain_tokens_per_s.value or 0.0, home.plain_tokens_per_s.value or 0.0
    share = now / before - 1 if before else 0.0
    return (
        f"the machine was not equally fast: plain decoding made {now:,.1f} tokens/s in {other.label}, {before:,.1f} in "
        f"{home.label} ({share:+.1%}); compare the speed-ups, not the tokens/s"
    )
