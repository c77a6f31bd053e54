"""What must be the same for two evaluations to be compared, and what is only told.

Three kinds of facts: what decides the figures (runs that differ in one are refused), the machine (runs that
differ in it share no ratio of times), and the random streams (runs that differ in them are not paired).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ...core.errors import MismatchError
from ...decode.request import SamplingParams
from ..results import Results
from .runs import EvaluationRun

# Facts of the environment that decide how long a pass takes, and that may move a logit's last bit.
MACHINE = ("processor", "cpu_count", "gpu", "device", "threads", "torch", "cuda")
_SHOWN = 44
Facts = dict[str, list[str]]


def deciding_facts(runs: Sequence[Results]) -> Facts:
    """Fact -> its text in each run, for all facts that must be the same.

    A target is known by the hash of its weights, by its name only where a run has none; a tokenizer whose hash
    a run did not record is left out.
    """
    hashed = all(one.target.fingerprint for one in runs)
    facts: Facts = {
        "target": [
            f"{one.target.name} ({_digest(one.target.fingerprint)})" if hashed else one.target.name
            for one in runs
        ],
        "target dtype": [one.target.dtype for one in runs],
        "questions asked": [_asked(one) for one in runs],
        "prompt format": [one.settings.prompt_format for one in runs],
        "system message": [repr(one.settings.system) if one.settings.system else "none" for one in runs],
        "max new tokens": [str(one.settings.max_new_tokens) for one in runs],
    }
    if all(one.target.tokenizer for one in runs):
        facts["tokenizer and template"] = [_digest(one.target.tokenizer) for one in runs]
    for name in dict.fromkeys(name for one in runs for name in one.settings.sampling):
        # A run that knew nothing of a transform did without it.
        default = getattr(SamplingParams(), name, None)
        facts[name.replace("_", " ")] = [_number(one.settings.sampling.get(name, default)) for one in runs]
    return facts


def _identity(runs: Sequence[Results]) -> dict[str, list[Any]]:
    """As ``deciding_facts``, the values that decide instead of texts for people."""
    hashed = all(one.target.fingerprint for one in runs)
    return {
        **deciding_facts(runs),
        "target": [one.target.fingerprint if hashed else one.target.name for one in runs],
        "questions asked": [one.benchmark.asked for one in runs],
        "tokenizer and template": [
            one.target.tokenizer if all(other.target.tokenizer for other in runs) else None for one in runs
        ],
    }


def differing(facts: Mapping[str, Sequence[Any]]) -> list[str]:
    """The facts that are not the same in all runs."""
    return [name for name, values in facts.items() if any(value != values[0] for value in values[1:])]


def refuse_incomparable(runs: Sequence[EvaluationRun]) -> None:
    """Refuse runs that differ in a deciding fact, naming all of them.

    Raises:
        MismatchError: with a table, one line a fact and one column a run.
    """
    results = [run.results for run in runs]
    wrong = differing(_identity(results))
    if not wrong:
        return
    facts = deciding_facts(results)
    raise MismatchError(
        "these runs cannot be compared",
        got="\n" + text_table([run.label for run in runs], {name: facts[name] for name in wrong}),
        expected="runs that differ only in methods, seeds, repeats and machine",
        remedy=_remedy(wrong),
    )


def _remedy(wrong: Sequence[str]) -> str:
    if wrong == ["questions asked"]:
        return "evaluate both with the same --benchmark and --limit"
    return "evaluate them again alike; or look at each alone: vocabforge report RUN"


def text_table(labels: Sequence[str], facts: Mapping[str, Sequence[str]]) -> str:
    """Aligned columns: the fact, then each run's value, shortened."""
    lines = [["", *labels], *([name, *map(_short, values)] for name, values in facts.items())]
    widths = [max(len(line[column]) for line in lines) for column in range(len(labels) + 1)]
    return "\n".join(
        "    " + "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
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
    """Facts that may differ and are told where they do."""
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


def _short(text: str) -> str:
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 1]}…"
