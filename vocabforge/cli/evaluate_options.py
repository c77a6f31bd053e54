"""What ``vocabforge eval`` is asked for: methods, runs, and what becomes of the figures."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .app import ResultOptions
from .decode_options import PromptFormatOption, TokenizerOption
from .eval_recipe import RecipeOption
from .head_options import HeadOptions

if TYPE_CHECKING:
    from ..corpus.tokenizer import TextTokenizer
    from ..evaluate.benchmarks import Benchmark
    from ..evaluate.settings import RunSettings
    from .sampling_options import SamplingOptions


class Dialect(str, Enum):
    """Others' formats of answer rows beside Spec-Bench's."""

    fr_spec = "fr-spec"


@dataclass(frozen=True, kw_only=True)
class MethodOptions:
    """What is compared with plain decoding."""

    target: Annotated[
        Path | None, typer.Option("--target", help="Folder of the target model (safetensors).")
    ] = None
    recipe: RecipeOption = None
    drafter: Annotated[
        list[str] | None,
        typer.Option(
            "--drafter",
            help="Trained drafter, or a smaller model of any vocabulary, as DIR or LABEL=DIR. Repeatable.",
        ),
    ] = None
    proposer: Annotated[
        list[str] | None,
        typer.Option(
            "--proposer",
            help="n-gram, early-exit, draft-model, tli, slem, slrs, medusa, eagle1, eagle2 or eagle3. The first two "
            "need no drafter; the others say how --drafter drafts [default: by its kind and vocabulary]. Repeatable.",
        ),
    ] = None
    method: Annotated[
        list[str] | None,
        typer.Option("--method", help="Evaluate only these methods (`plain` always runs). Repeatable."),
    ] = None
    vocab: Annotated[
        list[str] | None,
        typer.Option(
            "--vocab", help="Subset artefact, as DIR or LABEL=DIR: also draft with this vocabulary."
        ),
    ] = None
    heads: HeadOptions

    def checked_target(self) -> Path:
        """The target, where there is no recipe to name one.

        Raises:
            UsageError: there is none, or nothing drafts.
        """
        from ..core.errors import UsageError
        from ..decode.proposers import ALONE

        if self.target is None:
            raise UsageError("there is no target", expected="--target DIR, or --recipe FILE that names one")
        if not self.drafter and not set(self.proposer or ()) & set(ALONE):
            raise UsageError(
                "there is nothing to compare with plain decoding",
                expected=f"--drafter DIR, or --proposer {' or '.join(ALONE)}",
            )
        return self.target


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """How every question is asked, and how often."""

    seed: Annotated[
        list[int] | None,
        typer.Option(
            "--seed",
            metavar="N",
            min=0,
            max=2**63 - 1,
            help="Start of the random streams [default: 0]. Repeatable: every question with each of them.",
        ),
    ] = None
    repeats: Annotated[
        int, typer.Option("--repeats", min=1, help="Runs of everything, to see how much the time varies.")
    ] = 1
    max_new_tokens: Annotated[
        int | None,
        typer.Option(
            "--max-new-tokens", min=1, help="Limit of one turn [default: the benchmark's, 1024 or 512]."
        ),
    ] = None
    warmup: Annotated[
        int, typer.Option("--warmup", min=0, help="Unmeasured runs of the first question, per method.")
    ] = 3
    tokenizer: TokenizerOption = None
    prompt_format: PromptFormatOption = "auto"
    system: Annotated[
        str | None,
        typer.Option("--system", help="System message of conversations that bring none of their own."),
    ] = None

    def settings(
        self, benchmark: Benchmark, tokenizer: TextTokenizer, sampling: SamplingOptions
    ) -> RunSettings:
        """The same as the runner takes it.

        Raises:
            UsageError: a value out of its range, or a prompt that the tokenizer cannot render so.
        """
        from ..evaluate.prompts import check_system, resolve_format
        from ..evaluate.settings import RunSettings

        seeds = tuple(self.seed or [0])
        settings = RunSettings(
            max_new_tokens=self.max_new_tokens or benchmark.max_new_tokens,
            sampling=sampling.with_seed(seeds[0]),
            warmup=self.warmup,
            prompt_format=resolve_format(tokenizer, self.prompt_format),
            system=self.system,
            seeds=seeds,
            repeats=self.repeats,
        )
        check_system(tokenizer, settings.prompt_format, self.system, benchmark.questions)
        return settings


@dataclass(frozen=True, kw_only=True)
class OutcomeOptions:
    """What becomes of answers and figures."""

    output: Annotated[Path, typer.Option("--output", help="Folder to make for answers, figures and report.")]
    dialect: Annotated[
        Dialect | None,
        typer.Option("--dialect", help="Also write the answers in this dialect: fr-spec."),
    ] = None
    allow_code_execution: Annotated[
        bool,
        typer.Option(
            "--allow-code-execution",
            help="human-eval: run the programs that the model wrote, each in a sandbox, and score them.",
        ),
    ] = False
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Begin anew where an interrupted run could go on.")
    ] = False
    result: ResultOptions
