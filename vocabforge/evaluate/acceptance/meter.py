"""Held-out prompts, and accepted lengths pooled over them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...core.errors import UsageError
from ...corpus.tokenizer.prompt_format import PromptFormat, resolve_format
from ...decode.request import Generation
from ..benchmarks import load_benchmark, spread
from ..results.intervals import share_of
from ..run.prompts import PromptBuilder

if TYPE_CHECKING:
    from ...corpus.tokenizer.tokenizer import TextTokenizer


@dataclass(frozen=True)
class LivePrompts:
    """Token ids of held-out prompts, and the stop tokens of an answer."""

    prompts: Sequence[Sequence[int]]
    stop_ids: tuple[int, ...]


def read_prompts(
    source: str | Path, tokenizer: TextTokenizer, *, form: str, limit: int, room: int, least: int = 1
) -> tuple[LivePrompts, PromptFormat, int]:
    """Return the first turns of a question file, their format, and how many were too long.

    Args:
        source: name of a benchmark, or a question file.
        limit: maximum number of questions, evenly spread over those that fit.
        room: maximum number of positions of a prompt.
        least: minimum number of questions that must fit.

    Raises:
        DataError: the file cannot be read.
        UsageError: too few questions fit, or a chat format has no template.
    """
    questions, chosen = load_benchmark(str(source)).questions, resolve_format(tokenizer, form)
    ids = [PromptBuilder(tokenizer, chosen, question.system).ask(question.turns[0]) for question in questions]
    fitting = [prompt for prompt in ids if 0 < len(prompt) <= room]
    if len(fitting) < least:
        raise UsageError(
            "too few questions are short enough",
            got=f"{len(fitting)} of {len(ids)} with at most {room:,} tokens, the shortest of {min(map(len, ids)):,}",
            expected=f"{least} or more",
            source=source,
            remedy="give more questions, or lower the number of new tokens",
        )
    return LivePrompts(spread(fitting, limit), tokenizer.eos_ids), chosen, len(ids) - len(fitting)


def pooled(made: Sequence[Generation]) -> dict[str, Any]:
    """Compute metrics over all prompts' verification cycles.

    Returns:
        ``accepted_length``: mean output tokens per cycle, including the target's own; 1 without a cycle.
        ``reached_by_position``: share of cycles that accept draft token 1, 2, ...; like all keys below, this
        includes tokens after a stop token. ``conditional_by_position``: the same, relative to the cycles that
        accepted the previous token. ``drafted``, ``accepted``: number of draft tokens verified and accepted.
        ``cycles``, ``tokens``, ``prompts``.
    """
    cycles = sum(len(generation.accept_lengths) for generation in made)
    committed = sum(sum(generation.accept_lengths) for generation in made)
    depth = max((len(generation.accepted_by_depth) for generation in made), default=0)
    reached = [
        sum(generation.accepted_by_depth[at] for generation in made if at < len(generation.accepted_by_depth))
        for at in range(depth)
    ]
    return {
        "accepted_length": committed / cycles if cycles else 1.0,
        "reached_by_position": [share_of(count, cycles) for count in reached],
        "conditional_by_position": [
            share_of(count, before) for count, before in zip(reached, [cycles, *reached])
        ],
        "drafted": sum(generation.drafted for generation in made),
        "accepted": sum(reached),
        "cycles": cycles,
        "tokens": sum(len(generation.token_ids) for generation in made),
        "prompts": len(made),
    }
