"""Whether evaluations can be compared, and what a reader must know before believing the figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ...core.errors import MismatchError
from ...decode.request import SamplingParams
from ..reports.tables import law_line
from ..results.schema import Results
from .runs import EvaluationRun

# Facts of the environment that decide how long a pass takes, and that may move a logit's last bit.
MACHINE = ("processor", "cpu_count", "gpu", "device", "threads", "torch", "cuda")
_SHOWN = 44


def deciding_facts(runs: Sequence[EvaluationRun]) -> list[dict[str, str]]:
    """The facts of each run that must be the same: name -> text.

    A target is known by the hash of its weights, by its name only if a run has no hash; a tokenizer whose hash a run
    did not record is left out.
    """
    results = [run.results for run in runs]
    hashed = all(one.target.fingerprint for one in results)
    known_tokenizer = all(one.target.tokenizer for one in results)
    transforms = dict.fromkeys(name for one in results for name in one.settings.sampling)
    found = []
    for one in results:
        facts = {
            "target": _digest(one.target.fingerprint) if hashed else one.target.name,
            "target dtype": one.target.dtype,
            "questions asked": f"{one.benchmark.questions} ({_digest(one.benchmark.asked)})",
            "prompt format": one.settings.prompt_format,
            "system message": repr(one.settings.system) if one.settings.system else "none",
            "max new tokens": str(one.settings.max_new_tokens),
        }
        if known_tokenizer:
            facts["tokenizer and template"] = _digest(one.target.tokenizer)
        for name in transforms:
            # A run that knew nothing of a transform did without it.
            value = one.settings.sampling.get(name, getattr(SamplingParams(), name, None))
            facts[name.replace("_", " ")] = "none" if value is None else f"{value:g}"
        found.append(facts)
    return found


def refuse_incomparable(runs: Sequence[EvaluationRun]) -> dict[str, str]:
    """The deciding facts, which are the same in all runs.

    Raises:
        MismatchError: they are not; with a table, one line a fact and one column a run.
    """
    facts = deciding_facts(runs)
    wrong = [name for name in facts[0] if len({one[name] for one in facts}) > 1]
    if not wrong:
        return facts[0]
    lines = [["", *(run.label for run in runs)]]
    lines += [[name, *(_short(one[name]) for one in facts)] for name in wrong]
    widths = [max(map(len, cells)) for cells in zip(*lines, strict=True)]
    table = "".join(
        "\n    " + "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )
    alike = "evaluate them again alike; or look at each alone: vocabforge inspect RUN"
    same = "evaluate both with the same --benchmark and --limit"
    raise MismatchError(
        "these runs cannot be compared",
        got=table,
        expected="runs that differ only in methods, seeds, repeats and machine",
        remedy=same if wrong == ["questions asked"] else alike,
    )


def _short(text: str) -> str:
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 1]}…"


def _digest(value: str | None) -> str:
    return "no hash" if value is None else value[:12]


def machine_facts(results: Results) -> dict[str, str]:
    """What decides how fast the machine is."""
    return {name: str(results.environment.get(name)) for name in MACHINE}


def is_greedy(results: Results) -> bool:
    """Whether nothing was drawn."""
    return results.settings.sampling.get("temperature", 0.0) == 0


def same_streams(first: Results, second: Results) -> bool:
    """Whether both drew the same random numbers: greedy, or the same seeds."""
    return is_greedy(first) or set(first.settings.seeds) == set(second.settings.seeds)


def run_notes(runs: Sequence[EvaluationRun], home: EvaluationRun, questions: int) -> list[str]:
    """What differs between the runs and matters, one sentence each.

    Args:
        home: the run that the others are compared with.
        questions: how many are compared.
    """
    results = [run.results for run in runs]
    found = [line for run in runs if run is not home for line in _differences(home, run)]
    asked = max(one.benchmark.questions for one in results)
    if questions < asked:
        found.append(
            f"{asked - questions} of {asked} questions were not answered by every method of every run; no figure here "
            "includes them"
        )
    if not all(one.target.fingerprint for one in results):
        found.append("not every run recorded the hash of its target: the target is compared by name alone")
    if not all(one.target.tokenizer for one in results):
        found.append("not every run recorded its tokenizer: whether it is the same is not known")
    for run in runs:
        for method in run.results.methods:
            outputs = method.summary.outputs
            if line := law_line(method):
                found.append(
                    f"{run.label}: {line}; figures of lossless methods are not comparable with its own"
                )
            if outputs and outputs.faults:
                found.append(
                    f"{run.name_of(method)} is not plain decoding: {outputs.faults} of {outputs.compared} outputs "
                    "differ by a fault; its figures are not those of the same output"
                )
    return found


def _differences(home: EvaluationRun, other: EvaluationRun) -> list[str]:
    sides, found = (home.results, other.results), []
    machines = [machine_facts(one) for one in sides]
    if apart := _parted(*machines):
        found.append(
            f"{home.label} and {other.label} were measured on different machines ({apart}): times are not compared"
        )
    how = [{"passes": one.run_facts.get("passes", "unknown"), "VocabForge": one.vocabforge} for one in sides]
    if apart := _parted(*how):
        found.append(f"{home.label} and {other.label} also differ in {apart}: times may differ by that, too")
    if not same_streams(*sides):
        found.append(
            f"{home.label} and {other.label} drew other random numbers (other seeds): comparable in distribution, but "
            "not paired; the intervals are wider for it"
        )
    return found


def _parted(one: Mapping[str, str], other: Mapping[str, str]) -> str:
    return "; ".join(f"{name}: {one[name]} / {other[name]}" for name in one if one[name] != other[name])
