"""Settings of ``vocabforge bench decoding``, and what they stand for: modes and prompts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from ...core.config import Positive, StrictModel
from ...core.errors import UsageError, did_you_mean
from ...corpus.tokenizer.tokenizer import load_tokenizer
from ...decode.verify.registry import chosen_verifier
from ...evaluate.benchmarks import load_benchmark
from ...evaluate.run.prompts import PromptBuilder, resolve_format
from ...models.lean.model import LeanModel
from .modes import MODES

# Openings in the manner of TinyStories, for small models trained on it; others continue them too.
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


WIDER = ("plain", "eagle3")  # modes of which ``modes.py: widen_target`` makes larger pairs


class DecodingBenchConfig(StrictModel):
    """Settings of ``vocabforge bench decoding``, given as ``key=value``.

    Attributes:
        target: Hugging Face folder.
        draft_model: folder of a smaller model with the target's tokenizer.
        drafter: folder of a trained drafter.
        foreign_drafter: folder of a smaller model with a tokenizer of its own, for tli, slem and slrs.
        modes: rows of ``bench_decoding_modes.MODES``; None takes all that the folders allow.
        prompts: question file in Spec-Bench format, or a benchmark's name; None takes short story openings.
        questions: how many of them.
        max_new_tokens: of every run; nothing ends one earlier.
        dtype: of all models.
        threads: VocabForge's; a compilation holds for one number of threads.
        their_threads: transformers gets the fastest of these.
        compile: VocabForge's passes.
        temperature: above 0 VocabForge alone is measured; every round draws the same tokens.
        verifier: VocabForge's, where the temperature is above 0; None chooses by tree.
        draft_tokens: VocabForge's chains, where the mode's own length is not wanted; one number, or one a mode
            (``draft_tokens.slem=8``). Of a draft model with another tokenizer they are its own tokens.
        layers: of an early exit of VocabForge.
        widen: repeat every unit of target and drafter so often (``modes.py``): the same outputs and accepted lengths
            at the cost of a larger pair; for modes that transformers has no part in, plain and eagle3.
        tune_prompts: prompts on which transformers' settings are tried.
    """

    target: Path
    draft_model: Path | None = None
    drafter: Path | None = None
    foreign_drafter: Path | None = None
    modes: tuple[str, ...] | None = None
    prompts: Path | None = None
    questions: Positive = 8
    max_new_tokens: Positive = 128
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    threads: Positive = 1
    their_threads: tuple[Positive, ...] = (1, 2)
    compile: bool = True
    temperature: Annotated[float, Field(ge=0)] = 0.0
    verifier: str | None = None
    draft_tokens: Positive | dict[str, Positive] | None = None
    layers: Positive | None = None
    widen: Positive = 1
    tune_prompts: Positive = 2


def modes_of(config: DecodingBenchConfig) -> tuple[str, ...]:
    """The modes to run.

    Raises:
        UsageError: an unknown mode, or one whose folder is not given.
    """
    if config.verifier is not None:
        chosen_verifier(config.verifier, sampled=config.temperature > 0)
    folders = {
        "draft_model": config.draft_model,
        "drafter": config.drafter,
        "foreign_drafter": config.foreign_drafter,
    }
    able = [name for name, mode in MODES.items() if mode.needs is None or folders[mode.needs] is not None]
    for name in (*(config.modes or ()), *_named(config.draft_tokens)):
        if name not in MODES:
            raise UsageError(
                "there is no such mode", got=name, expected=", ".join(MODES), remedy=did_you_mean(name, MODES)
            )
        if config.widen > 1 and name not in WIDER:
            raise UsageError(
                "this mode cannot be widened",
                got=name,
                expected=", ".join(WIDER),
                remedy="leave widen out, or choose other modes",
            )
        if name not in able:
            raise UsageError(f"the mode {name} needs a folder", expected=f"{MODES[name].needs}=DIR")
    if config.widen > 1:
        able = [name for name in able if name in WIDER]
    return config.modes or tuple(able)


def _named(draft_tokens: int | dict[str, int] | None) -> tuple[str, ...]:
    return tuple(draft_tokens) if isinstance(draft_tokens, dict) else ()


def read_prompts(config: DecodingBenchConfig, model: LeanModel) -> list[list[int]]:
    """Token ids of the prompts.

    Raises:
        UsageError: one does not fit the target's context with the new tokens.
    """
    tokenizer = load_tokenizer(config.target)
    if config.prompts is None:
        texts: Sequence[str] = PROMPTS[: config.questions]
    else:
        found = load_benchmark(str(config.prompts), config.questions)
        texts = [question.turns[0] for question in found.questions]
    form = resolve_format(tokenizer, "auto")
    prompts = [PromptBuilder(tokenizer, form).ask(text) for text in texts]
    most = model.config.max_positions - config.max_new_tokens
    if max(map(len, prompts)) > most:
        raise UsageError(
            "a prompt does not fit the target's context",
            got=f"{max(map(len, prompts))} tokens and {config.max_new_tokens} new ones",
            expected=f"{model.config.max_positions} at most",
            remedy="lower max_new_tokens, or choose other prompts",
        )
    return prompts
