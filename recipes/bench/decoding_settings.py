"""Settings and prompts of ``decoding.py`` and ``load.py``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from pydantic import Field

from vocabforge.core.config import Positive
from vocabforge.core.errors import UsageError
from vocabforge.corpus.tokenizer.prompt_format import resolve_format
from vocabforge.decode.build.models import Models
from vocabforge.decode.build.recipe import DecodingRecipe
from vocabforge.decode.build.spec import MethodSpec
from vocabforge.evaluate.benchmarks import load_benchmark
from vocabforge.evaluate.run.prompts import PromptBuilder

# Story openings in the style of TinyStories, for small models trained on it; other models can continue them.
PROMPTS = (
    "Once upon a time, there was a little girl named Lily. She loved to",
    "One day, a boy named Tom went to the park with his",
    "The little bird was sad because it could not",
    "Sara and Ben are friends. They like to play in the",
    "Once there was a big, old tree. All the animals in the forest",
    "Max was a small dog. He had a red ball and he",
    "It was a sunny day and Mia wanted to",
    "The old man had a boat. Every morning he",
)


class PromptedRecipe(DecodingRecipe):
    """A decoding recipe and the prompts that its methods continue.

    Attributes:
        methods: as in a recipe, ``methods.NAME.drafter=DIR``; the default is ``tree: auto``, which suits the
            device.
        prompts: question file in Spec-Bench format, or a benchmark's name; None uses short story openings.
        questions: number of prompts.
        max_new_tokens: new tokens per run; there is no early stop.
        threads: number of VocabForge's threads.
    """

    methods: dict[str, MethodSpec] = Field(
        default_factory=lambda: {name: MethodSpec(proposer=name) for name in ("n-gram", "early-exit")}
    )
    prompts: Path | None = None
    questions: Positive = 8
    max_new_tokens: Positive = 128
    threads: Positive = 1


class DecodingBenchConfig(PromptedRecipe):
    """Settings of ``decoding.py``, given as ``key=value``: a decoding recipe and how it is timed.

    Attributes:
        their_threads: thread counts to try for transformers; VocabForge's passes are compiled for
            ``threads``.
        compile: whether to compile VocabForge's passes.
        temperature: above 0, only VocabForge is measured; every round samples the same tokens.
        tune_prompts: number of prompts used to tune transformers' settings.
    """

    their_threads: tuple[Positive, ...] = (1, 2)
    compile: bool = True
    temperature: Annotated[float, Field(ge=0)] = 0.0
    tune_prompts: Positive = 2


def read_prompts(config: PromptedRecipe, models: Models) -> list[list[int]]:
    """Return the token ids of the prompts.

    Raises:
        UsageError: a prompt and its new tokens do not fit the target's context.
    """
    if config.prompts is None:
        texts: Sequence[str] = PROMPTS[: config.questions]
    else:
        found = load_benchmark(str(config.prompts), config.questions)
        texts = [question.turns[0] for question in found.questions]
    form = resolve_format(models.tokenizer, "auto")
    prompts = [PromptBuilder(models.tokenizer, form).ask(text) for text in texts]
    longest, most = max(map(len, prompts)), models.model.config.max_positions
    if longest + config.max_new_tokens > most:
        raise UsageError(
            "a prompt does not fit the target's context",
            got=f"{longest} tokens and {config.max_new_tokens} new ones",
            expected=f"{most} at most",
            remedy="lower max_new_tokens, or choose other prompts",
        )
    return prompts
