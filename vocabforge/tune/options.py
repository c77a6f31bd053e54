"""What a search is given and how it goes."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from ..core.errors import UsageError
from .proposing import HeadInputs
from .space import TreeGrid

Dtype = Literal["float32", "bfloat16", "float16"]


@dataclass(frozen=True)
class TuneInputs:
    """What is tuned.

    Attributes:
        target: Hugging Face folder.
        drafter: trained drafter of any layout.
        prompts: question file, or name of a benchmark.
        tokenizer: folder; None is the target's.
        heads: draft heads beside the drafter's own.
        ranking, sizes: static vocabularies that are cut from a frequency table or a subset.
        what_if: latency file of another machine; None measures here.
    """

    target: Path
    drafter: Path
    prompts: str
    tokenizer: Path | None = None
    heads: HeadInputs = field(default_factory=HeadInputs)
    ranking: Path | None = None
    sizes: tuple[int, ...] = ()
    what_if: Path | None = None

    def __post_init__(self) -> None:
        if bool(self.sizes) != (self.ranking is not None):
            raise UsageError(
                "vocabularies are cut from a ranking in some sizes",
                got="--size without --ranking" if self.sizes else "--ranking without --size",
                expected="both",
            )


@dataclass(frozen=True)
class TuneOptions:
    """How a search goes.

    Attributes:
        grid: sizes of draft trees.
        batches: requests side by side that something is recommended for.
        new_tokens: limit of an answer.
        limit: questions used, both halves together; None: all.
        form: of prompts: ``auto``, ``chat`` or ``raw``.
        budget: seconds for measuring; a tenth of them for latency (60 if there is no end), the rest for acceptance.
        check: configurations compared with ``eval`` on the other half of the prompts; 0: none.
        device: None: CUDA where there is one.
    """

    grid: TreeGrid = field(default_factory=TreeGrid)
    batches: tuple[int, ...] = (1,)
    new_tokens: int = 128
    limit: int | None = None
    form: str = "auto"
    budget: float = 600.0
    check: int = 0
    device: str | None = None
    dtype: Dtype = "float32"

    @property
    def latency_seconds(self) -> float:
        return 60.0 if math.isinf(self.budget) else self.budget / 10

    def __post_init__(self) -> None:
        if not self.batches or min(self.batches) < 1 or len(set(self.batches)) != len(self.batches):
            raise UsageError(
                "batch sizes stand once each, from 1 up",
                got=self.batches,
                expected="numbers from 1 up, each once",
                source="--batch",
            )
        if self.check and 1 not in self.batches:
            raise UsageError(
                "eval runs one request at a time", got=self.batches, expected="--batch 1", source="--check"
            )
        if self.check and self.check < 4:
            raise UsageError(
                "a check compares four configurations or more",
                got=self.check,
                expected="4 or more, or 0 for no check",
                source="--check",
            )
