"""How an evaluation runs: limits, sampling, seeds and repeats."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace

from ...core.errors import UsageError
from ...corpus.tokenizer.prompt_format import PromptFormat
from ...decode.request import SamplingParams

WARMUP_RUNS = 3


@dataclass(frozen=True)
class Run:
    """One pass over all questions: its number from 1, its seed, which repeat of that seed it is, and how many
    questions are under way at once (servers only)."""

    number: int
    seed: int
    repeat: int
    concurrency: int = 1


@dataclass(frozen=True)
class RunSettings:
    """How every method is run; ``max_new_tokens`` is the limit for one turn.

    Attributes:
        sampling: its seed is that of the first run; each turn of each question derives one of its own.
        warmup: runs of the first question per method before anything is measured.
        system: system message of every conversation that brings none of its own.
        seeds: one pass over all questions each, times ``repeats``; empty stands for the sampling's own seed.
        concurrency: questions under way at once, several for a sweep of a server's load; the first counts for the
            figures, the others for those of the load only.

    Raises:
        UsageError: several seeds of greedy decoding, a seed twice, or no repeat.
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
        if self.repeats < 1:
            raise UsageError(
                "there must be at least one repeat",
                got=self.repeats,
                expected="1 or more",
                source="--repeats",
            )
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
        """Of the sampling; 0 is greedy."""
        return self.sampling.temperature

    @property
    def runs(self) -> tuple[Run, ...]:
        """The passes over the questions that count: every seed, then every seed again."""
        return self.runs_at(self.concurrency[0])

    def runs_at(self, concurrency: int) -> tuple[Run, ...]:
        """The same under another load."""
        pairs = [(repeat, seed) for repeat in range(1, self.repeats + 1) for seed in self.seeds]
        first = 1 + self.concurrency.index(concurrency) * len(pairs)
        return tuple(
            Run(number, seed, repeat, concurrency) for number, (repeat, seed) in enumerate(pairs, start=first)
        )

    @property
    def all_runs(self) -> tuple[Run, ...]:
        """The passes under every load."""
        return tuple(run for level in self.concurrency for run in self.runs_at(level))

    def folder_of(self, kind: str, concurrency: int) -> str:
        """``kind`` for the load that counts, below it ``concurrency_N`` for another."""
        return kind if concurrency == self.concurrency[0] else f"{kind}/concurrency_{concurrency}"

    def sampling_of(self, run: Run) -> SamplingParams:
        """The sampling settings with the run's seed."""
        return replace(self.sampling, seed=run.seed)

    def to_dict(self) -> dict[str, object]:
        """All settings as plain values; those of the sampling, less its seed, under ``sampling``."""
        values = asdict(self)
        values["seeds"], values["concurrency"] = list(self.seeds), list(self.concurrency)
        del values["sampling"]["seed"]
        return values


def file_names(methods: Sequence[str]) -> dict[str, str]:
    """``{method: "<method>.jsonl"}``; characters that file systems dislike become ``-``.

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
    """Each method's files of all runs, relative to the evaluation's folder.

    Args:
        kind: ``answers``, ``details``, ...
        runs: one run lies at ``answers/METHOD.jsonl``; of several, run i at ``answers/run_i/METHOD.jsonl``.
    """
    folders = [kind] if runs == 1 else [f"{kind}/run_{number}" for number in range(1, runs + 1)]
    return {name: [f"{folder}/{file}" for folder in folders] for name, file in file_names(methods).items()}
