"""The two halves of a question file: acceptance is measured on one, predictions are checked on the other."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from ..core.errors import UsageError
from ..corpus.tokenizer.prompt_format import PromptFormat, resolve_format
from ..corpus.tokenizer.tokenizer import TextTokenizer
from ..evaluate.acceptance.prompts import LivePrompts
from ..evaluate.benchmarks import Benchmark, asked_sha256, load_benchmark, spread
from ..evaluate.run.prompts import PromptBuilder, system_of


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
    """Every other question for tuning, the rest for checking.

    Args:
        source: name of a benchmark, or a question file.
        limit: questions of both halves together, spread over the file.
        room: most positions of a prompt.

    Raises:
        DataError: the file cannot be read.
        UsageError: fewer than four questions that fit.
    """
    whole = load_benchmark(source)
    chosen = resolve_format(tokenizer, form)
    ids = {
        one.question_id: PromptBuilder(tokenizer, chosen, system_of(one, None)).ask(one.turns[0])
        for one in whole.questions
    }
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
    # First turns alone, which nothing scores.
    asked = tuple(replace(one, turns=one.turns[:1], reference=None, check=None) for one in kept[1::2])
    checking = replace(
        whole,
        name=f"{whole.name}, every other question",
        sha256=asked_sha256(asked),
        max_new_tokens=new_tokens,
        questions=asked,
        scorer=None,
        published=None,
        of=len(whole.questions),
    )
    tuning = LivePrompts([ids[one.question_id] for one in kept[::2]], tokenizer.eos_ids)
    return Halves(tuning, checking, chosen, len(whole.questions) - len(fitting))
