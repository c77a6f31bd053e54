"""What a search is given and how it goes, and the two halves of its question file."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from ..core.errors import UsageError
from ..corpus.tokenizer.tokenizer import TextTokenizer
from ..evaluate.acceptance.prompts import LivePrompts
from ..evaluate.benchmarks import Benchmark, Question, asked_sha256, load_benchmark, spread
from ..evaluate.run.prompts import PromptBuilder, PromptFormat, resolve_format, system_of
from .search.proposers import HeadInputs
from .search.space import TreeGrid

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


@dataclass(frozen=True)
class Halves:
    """First turns of a question file.

    Attributes:
        tuning: token ids of those that acceptance is measured on.
        checking: the others, as questions.
        form: how they are rendered.
        left_out: questions that are too long for the target.
    """

    tuning: LivePrompts
    checking: Benchmark
    form: PromptFormat
    left_out: int


def read_halves(
    source: str, tokenizer: TextTokenizer, *, form: str, limit: int | None, room: int, new_tokens: int
) -> Halves:
    """Every other question for tuning, the rest for checking: both halves hold every kind in any order of a file.

    Args:
        source: name of a benchmark, or a question file.
        form: ``auto``, ``chat`` or ``raw``.
        limit: questions of both halves together, spread over the file.
        room: most positions of a prompt.
        new_tokens: limit of an answer, for the checking half.

    Raises:
        DataError: the file cannot be read.
        UsageError: fewer than four questions that fit.
    """
    whole = load_benchmark(source)
    chosen = resolve_format(tokenizer, form)
    ids = {one.question_id: _ids(one, tokenizer, chosen) for one in whole.questions}
    fitting = [one for one in whole.questions if 0 < len(ids[one.question_id]) <= room]
    kept = fitting if limit is None else spread(fitting, limit)
    if len(kept) < 4:
        raise UsageError(
            "too few questions to measure acceptance on one half and check on the other",
            got=f"{len(kept)} of {len(whole.questions)}, whose prompts have at most {room:,} tokens",
            expected="four or more",
            source=Path(source).name,
            remedy="give more questions, raise --limit, or lower --max-new-tokens",
        )
    tuning = [ids[one.question_id] for one in kept[::2]]
    return Halves(
        LivePrompts(tuning, tokenizer.eos_ids),
        _first_turns(whole, kept[1::2], new_tokens),
        chosen,
        len(whole.questions) - len(fitting),
    )


def _ids(question: Question, tokenizer: TextTokenizer, form: PromptFormat) -> Sequence[int]:
    return PromptBuilder(tokenizer, form, system_of(question, None)).ask(question.turns[0])


def _first_turns(whole: Benchmark, questions: Sequence[Question], new_tokens: int) -> Benchmark:
    """A benchmark of the first turns alone, which nothing scores."""
    asked = tuple(replace(one, turns=one.turns[:1], reference=None, check=None) for one in questions)
    return replace(
        whole,
        name=f"{whole.name}, every other question",
        sha256=asked_sha256(asked),
        max_new_tokens=new_tokens,
        questions=asked,
        scorer=None,
        published=None,
        of=len(whole.questions),
    )
