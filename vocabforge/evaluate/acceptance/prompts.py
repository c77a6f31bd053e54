"""Held-out prompts for live acceptance."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ...core.errors import UsageError
from ...corpus.tokenizer.prompt_format import resolve_format
from ...corpus.tokenizer.tokenizer import TextTokenizer
from ...train.config import LiveConfig
from ..benchmarks import read_questions, spread
from ..run.prompts import PromptBuilder


@dataclass(frozen=True)
class LivePrompts:
    """Token ids of held-out prompts, and the stop tokens of an answer."""

    prompts: Sequence[Sequence[int]]
    stop_ids: tuple[int, ...]


def read_prompts(path: Path, tokenizer: TextTokenizer, config: LiveConfig, context: int) -> LivePrompts:
    """Read the first turns of a question file, evenly sampled from those that fit the context.

    Raises:
        DataError: the file cannot be read.
        UsageError: a chat format has no template, or no prompt is short enough.
    """
    form = resolve_format(tokenizer, config.prompt_format)
    questions = read_questions(path)
    rendered = [
        PromptBuilder(tokenizer, form, question.system).ask(question.turns[0]) for question in questions
    ]
    most = min(config.max_prompt_tokens, context - config.max_new_tokens - config.total)
    fitting = [prompt for prompt in rendered if 0 < len(prompt) <= most]
    if not fitting:
        raise UsageError(
            "no held-out prompt is short enough for live acceptance",
            got=f"{len(rendered)} prompts, the shortest of {min(map(len, rendered)):,} tokens",
            expected=f"at most {most:,} tokens",
            source=path,
            remedy="raise run.live.max_prompt_tokens, or lower run.live.max_new_tokens",
        )
    return LivePrompts(spread(fitting, config.prompts), tokenizer.eos_ids)
