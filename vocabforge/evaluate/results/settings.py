"""Settings of an evaluation: limits, sampling, seeds and repeats."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace

from ...core.errors import UsageError
from ...corpus.tokenizer.prompt_format import PromptFormat
from ...decode.request import SamplingParams

WARMUP_RUNS = 3


@dataclass(frozen=True)
class EvaluationRun:
    """A pass over all questions: number from 1, seed, number of requests at once."""

    number: int
    seed: int
    concurrency: int = 1


@dataclass(frozen=True)
class RunSettings:
    """How every method is run; ``max_new_tokens`` is the limit per turn.

    Attributes:
        sampling: sampling settings with the seed of the first run; each turn derives its own seed.
        warmup: unmeasured runs of the first question per method.
        system: system message of conversations without their own.
        seeds: seeds of the passes over all questions, each repeated ``repeats`` times; empty means the
            sampling's seed.
        concurrency: number of requests at once; several for a load sweep. The first is used for the figures, the
            others only for the load's.

    Raises:
        UsageError: greedy decoding has several seeds, or a seed is repeated.
    """

    max_new_tokens: int
    sampling: SamplingParams = field(default_factory=SamplingParams)
    warmup: int = WARMUP_RUNS
    prompt_format: PromptFormat = "chat"
    system: str | None = None
    seeds: tuple[int, ...] = ()
    repeats: int = 1
    concurrency: tuple[int, ...] = (1,)

    def __post_init__(self) -> None:
        if len(set(self.seeds)) != len(self.seeds):
            raise UsageError(
                "a seed is given twice", got=list(self.seeds), source="--seed", expected="each seed once"
            )
        if len(self.seeds) > 1 and self.sampling.greedy:
            raise UsageError(
                "greedy decoding draws nothing: seeds change nothing",
                got=f"{len(self.seeds)} seeds",
                expected="one seed, or a temperature above 0",
                source="--seed",
                remedy="use --repeats to measure the time several times",
            )
        object.__setattr__(self, "seeds", self.seeds or (self.sampling.seed,))

    @property
    def temperature(self) -> float:
        """Temperature of the sampling; 0 is greedy."""
        return self.sampling.temperature

    @property
    def runs(self) -> tuple[EvaluationRun, ...]:
        """The main passes over the questions: all seeds, then all seeds again for each repeat."""
        return self.runs_at(self.concurrency[0])

    def runs_at(self, concurrency: int) -> tuple[EvaluationRun, ...]:
        """Return the same passes under another load."""
        seeds = self.seeds * self.repeats
        first = 1 + self.concurrency.index(concurrency) * len(seeds)
        return tuple(EvaluationRun(number, seed, concurrency) for number, seed in enumerate(seeds, first))

    @property
    def all_runs(self) -> tuple[EvaluationRun, ...]:
        """Return the passes under every load."""
        return tuple(run for level in self.concurrency for run in self.runs_at(level))

    def folder_of(self, kind: str, concurrency: int) -> str:
        """Return ``kind`` for the main load, and a subfolder ``concurrency_N`` for others."""
        return kind if concurrency == self.concurrency[0] else f"{kind}/concurrency_{concurrency}"

    def sampling_of(self, run: EvaluationRun) -> SamplingParams:
        """Return the sampling settings with the run's seed."""
        return replace(self.sampling, seed=run.seed)

    def to_dict(self) -> dict[str, object]:
        """Return all settings as plain values; those of the sampling, without seed, under ``sampling``."""
        values = asdict(self)
        values["seeds"], values["concurrency"] = list(self.seeds), list(self.concurrency)
        del values["sampling"]["seed"]
        return values


def file_names(methods: Sequence[str]) -> dict[str, str]:
    """Return ``{method: "<method>.jsonl"}``; characters that are unsafe in file names become ``-``.

    Raises:
        UsageError: two methods would share a file.
    """
    names: dict[str, str] = {}
    for method in methods:
        stem = re.sub(r"[^A-Za-z0-9._+-]+", "-", method).strip("-.") or "method"
        file = f"{stem}.jsonl"
        clash = next((other for other, taken in names.items() if taken.lower() == file.lower()), None)
        if clash is not None or method in names:
            raise UsageError(
                "two methods would have the same name",
                got=f"{clash or method} and {method}",
                expected="names that differ",
                source="--drafter, --vocab",
                remedy="give each its own label: --drafter LABEL=DIR",
            )
        names[method] = file
    return names


def run_files(kind: str, methods: Sequence[str], runs: int) -> dict[str, list[str]]:
    """Return each method's files of all runs, relative to the evaluation's folder.

    Args:
        kind: ``answers``, ``details``, ...
        runs: number of runs. A single run uses ``answers/METHOD.jsonl``, run i of several
            ``answers/run_i/METHOD.jsonl``.
    """
    folders = [kind] if runs == 1 else [f"{kind}/run_{number}" for number in range(1, runs + 1)]
    return {name: [f"{folder}/{file}" for folder in folders] for name, file in file_names(methods).items()}
