"""What must be the same for two evaluations to be compared, and what a reader must know before believing figures.

Three kinds of facts: what decides the figures (runs that differ in one are refused), the machine (runs that differ in
it share no ratio of times), and the random streams (runs that differ in them are not paired).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ...core.errors import MismatchError
from ...decode.request import SamplingParams
from ..reports.tables import law_line
from ..results.schema import Results
from .results import OutputRow, RunRow
from .runs import SEPARATOR, EvaluationRun

# Facts of the environment that decide how long a pass takes, and that may move a logit's last bit.
MACHINE = ("processor", "cpu_count", "gpu", "device", "threads", "torch", "cuda")
_SHOWN = 44
Facts = dict[str, list[str]]


def deciding_facts(runs: Sequence[Results]) -> Facts:
    """Fact -> its text in each run, for all facts that must be the same.

    A target is known by the hash of its weights, by its name only if a run has no hash; a tokenizer whose hash a run
    did not record is left out.
    """
    return {name: [text for text, _ in values] for name, values in _deciding(runs).items()}


def _deciding(runs: Sequence[Results]) -> dict[str, list[tuple[str, Any]]]:
    """Fact -> its text for people and the value that decides, in each run."""
    hashed = all(one.target.fingerprint for one in runs)
    readers: dict[str, Callable[[Results], tuple[str, Any]]] = {
        "target": lambda one: (
            (f"{one.target.name} ({_digest(one.target.fingerprint)})", one.target.fingerprint)
            if hashed
            else (one.target.name, one.target.name)
        ),
        "target dtype": lambda one: (one.target.dtype, one.target.dtype),
        "questions asked": lambda one: (_asked(one), one.benchmark.asked),
        "prompt format": lambda one: (one.settings.prompt_format, one.settings.prompt_format),
        "system message": lambda one: (
            repr(one.settings.system) if one.settings.system else "none",
            one.settings.system or "",
        ),
        "max new tokens": lambda one: (str(one.settings.max_new_tokens), one.settings.max_new_tokens),
    }
    if all(one.target.tokenizer for one in runs):
        readers["tokenizer and template"] = lambda one: (_digest(one.target.tokenizer), one.target.tokenizer)
    facts = {name: [read(one) for one in runs] for name, read in readers.items()}
    for name in dict.fromkeys(name for one in runs for name in one.settings.sampling):
        # A run that knew nothing of a transform did without it.
        default = getattr(SamplingParams(), name, None)
        texts = [_number(one.settings.sampling.get(name, default)) for one in runs]
        facts[name.replace("_", " ")] = [(text, text) for text in texts]
    return facts


def differing(facts: Mapping[str, Sequence[Any]]) -> list[str]:
    """The facts that are not the same in all runs."""
    return [name for name, values in facts.items() if any(value != values[0] for value in values[1:])]


def refuse_incomparable(runs: Sequence[EvaluationRun]) -> None:
    """Refuse runs that differ in a deciding fact, naming all of them.

    Raises:
        MismatchError: with a table, one line a fact and one column a run.
    """
    facts = _deciding([run.results for run in runs])
    wrong = differing({name: [value for _, value in values] for name, values in facts.items()})
    if not wrong:
        return
    lines = [["", *(run.label for run in runs)]]
    lines += [
        [name, *(text if len(text) <= _SHOWN else f"{text[: _SHOWN - 1]}…" for text, _ in facts[name])]
        for name in wrong
    ]
    widths = [max(map(len, cells)) for cells in zip(*lines, strict=True)]
    table = "".join(
        "\n    " + "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )
    alike = "evaluate them again alike; or look at each alone: vocabforge report RUN"
    same = "evaluate both with the same --benchmark and --limit"
    raise MismatchError(
        "these runs cannot be compared",
        got=table,
        expected="runs that differ only in methods, seeds, repeats and machine",
        remedy=same if wrong == ["questions asked"] else alike,
    )


def machine_facts(runs: Sequence[Results]) -> Facts:
    """Fact of the machine -> its text in each run; those that no run has are left out."""
    return {
        name: [_number(one.environment.get(name)) for one in runs]
        for name in MACHINE
        if any(one.environment.get(name) is not None for one in runs)
    }


def machines(runs: Sequence[Results]) -> list[int]:
    """A number for each run's machine, from 0, the same for the same machine."""
    facts = machine_facts(runs)
    keys = [tuple(values[place] for values in facts.values()) for place in range(len(runs))]
    known = list(dict.fromkeys(keys))
    return [known.index(key) for key in keys]


def is_greedy(results: Results) -> bool:
    """Whether nothing was drawn."""
    return results.settings.sampling.get("temperature", 0.0) == 0


def same_streams(first: Results, second: Results) -> bool:
    """Whether both drew the same random numbers: greedy, or the same seeds."""
    return is_greedy(first) or set(first.settings.seeds) == set(second.settings.seeds)


def noted_facts(runs: Sequence[Results]) -> Facts:
    """Facts that may differ and are reported when they do."""
    readers: dict[str, Callable[[Results], object]] = {
        "benchmark file": lambda one: f"{one.benchmark.file} ({_digest(one.benchmark.sha256)})",
        "questions answered": lambda one: one.answered,
        "seeds": lambda one: ", ".join(map(str, one.settings.seeds)),
        "repeats": lambda one: one.settings.repeats,
        "warm-up runs": lambda one: one.settings.warmup,
        "interruptions": lambda one: one.resumed,
        "passes": lambda one: one.run_facts.get("passes", "unknown"),
        "vocabforge": lambda one: one.vocabforge,
    }
    return {name: [str(read(one)) for one in runs] for name, read in readers.items()}


def _asked(results: Results) -> str:
    facts = results.benchmark
    count = f"{facts.questions}" if facts.questions == facts.of else f"{facts.questions} of {facts.of}"
    return f"{facts.name}, {count} ({_digest(facts.asked)})"


def _digest(value: str | None) -> str:
    return "no hash" if value is None else value[:12]


def _number(value: object) -> str:
    if value is None:
        return "none"
    return f"{value:g}" if isinstance(value, int | float) and not isinstance(value, bool) else str(value)


def run_warnings(
    runs: Sequence[EvaluationRun],
    rows: Sequence[RunRow],
    outputs: Sequence[OutputRow],
    reference: str,
    questions: int,
    across_machines: bool,
) -> list[str]:
    """What a reader must know before believing the figures, one sentence each.

    Args:
        runs, rows: in the same order.
        outputs: greedy outputs compared between runs.
        reference: label of the run that the others are compared with.
        questions: how many are compared.
    """
    at = [row.label for row in rows].index(reference)
    found = []
    for row, run in zip(rows, runs, strict=True):
        if row.label != reference:
            found += _pair_warnings((runs[at], run), (rows[at], row), across_machines)
    found += [
        f"{run.label}: {line}; figures of lossless methods are not comparable with its own"
        for run in runs
        for method in run.results.methods
        if (line := law_line(method))
    ]
    asked = max(run.results.benchmark.questions for run in runs)
    if questions < asked:
        found.append(
            f"{asked - questions} of {asked} questions were not answered by every method of every run; no figure here "
            "includes them"
        )
    if not all(run.results.target.fingerprint for run in runs):
        found.append("not every run recorded the hash of its target: the target is compared by name alone")
    if not all(run.results.target.tokenizer for run in runs):
        found.append("not every run recorded its tokenizer: whether it is the same is not known")
    plain = {f"{run.label}{SEPARATOR}{run.results.methods[0].name}" for run in runs}
    found += [
        f"{row.second} differs from {row.first} in {row.compared - row.identical} of {row.compared} questions, "
        f"{row.place}: another machine or version of PyTorch rounds differently, or the model differs"
        for row in outputs
        if row.first in plain and row.identical < row.compared
    ]
    found += [
        f"{run.label}{SEPARATOR}{method.name} is not plain decoding: {same.faults} of {same.compared} outputs differ "
        "by a fault; its figures are not those of the same output"
        for run in runs
        for method in run.results.methods
        if (same := method.summary.outputs) and same.faults
    ]
    return found


def _pair_warnings(
    runs: tuple[EvaluationRun, EvaluationRun], rows: tuple[RunRow, RunRow], across_machines: bool
) -> list[str]:
    """Of the reference's run and another."""
    home, other = rows
    results = [run.results for run in runs]
    found = []
    if other.machine != home.machine:
        facts = machine_facts(results)
        what = "; ".join(f"{name}: {' / '.join(facts[name])}" for name in differing(facts))
        then = "times are compared because you asked for it" if across_machines else "times are not compared"
        found.append(f"{home.label} and {other.label} were measured on different machines ({what}): {then}")
    elif other.drift is not None and other.drift_verdict in ("better", "worse"):
        now, before = other.plain_tokens_per_s.value or 0.0, home.plain_tokens_per_s.value or 0.0
        share = now / before - 1 if before else 0.0
        found.append(
            f"the machine was not equally fast: plain decoding made {now:,.1f} tokens/s in {other.label}, "
            f"{before:,.1f} in {home.label} ({share:+.1%}); compare the speed-ups, not the tokens/s"
        )
    how = noted_facts(results)["passes"]
    if how[0] != how[1]:
        found.append(
            f"passes of {home.label} ran {how[0]}, those of {other.label} {how[1]}: times differ by that, too"
        )
    if not same_streams(*results):
        found.append(
            f"{home.label} and {other.label} drew other random numbers (other seeds): comparable in distribution, but "
            "not paired; the intervals are wider for it"
        )
    if other.hash == home.hash:
        found.append(f"{home.label} and {other.label} hold the same files: one is a copy of the other")
    return found
