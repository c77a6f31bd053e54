"""``vocabforge eval``: benchmark a drafter against plain decoding."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from pydantic import AfterValidator, BeforeValidator, Field

from ...core.config import ModelPath, Positive, ResultOptions, StrictModel, TokenizerPath, option
from ...core.console import say
from ...core.errors import UsageError
from ...decode.spec import MethodGrid, MethodSpec
from .decoding_options import ManyMethods, PassOptions, SamplingOptions, wrap_for
from .results import print_results

if TYPE_CHECKING:
    from ...corpus.tokenizer.prompt_format import PromptFormat
    from ...decode.build.models import Models
    from ...decode.build.recipe import DecodingRecipe
    from ...evaluate.benchmarks import Benchmark
    from ...evaluate.results.settings import RunSettings


def _loads(text: Any) -> Any:
    return tuple(int(load) for load in text.split(",")) if isinstance(text, str) else text


Loads = Annotated[
    tuple[Annotated[int, Field(ge=1)], ...],
    BeforeValidator(_loads),
    AfterValidator(lambda loads: tuple(dict.fromkeys(loads))),
]
# Options that a recipe determines, by parameter name.
_RECIPES_OWN = ("tokenizer", "dtype", "target_backend", *MethodSpec.model_fields)

# Options that only apply to decoding in this process, and to servers.
_SERVER_ONLY = ("model", "concurrency", "api_key_env", "timeout", "start_timeout")
_LOCAL_ONLY = ("recipe", "method", "rows", *MethodSpec.model_fields, *PassOptions.model_fields)


def _given(context: typer.Context, names: Sequence[str]) -> str:
    sources = {name: context.get_parameter_source(name) for name in names}
    given = [name for name, source in sources.items() if source is not None and source.name == "COMMANDLINE"]
    return " and ".join("--" + name.replace("_", "-") for name in given)


class MethodOptions(StrictModel):
    """The methods, from the command line or a recipe."""

    target: ModelPath | None = option(
        None, "Target: a folder, a GGUF file, or a name of the Hub; instead of a recipe's."
    )
    recipe: Path | None = option(
        None,
        "Evaluate the methods of this YAML file, as written by `tune`, with its target, drafters and trees.",
        "FILE",
    )
    method: tuple[str, ...] = option((), "Evaluate only these methods (`plain` always runs).", many=True)

    def check(self, context: typer.Context, grid: MethodGrid) -> None:
        """Raise UsageError without a target or drafter, and for options that the recipe determines."""
        from ...decode.proposers.registry import with_drafter

        if self.recipe is not None:
            if given := _given(context, _RECIPES_OWN):
                raise UsageError(
                    "a recipe already determines all methods",
                    got=f"{given} and --recipe {self.recipe}",
                    expected="one of them",
                    remedy="change the recipe, or leave --recipe out",
                )
        elif self.target is None:
            raise UsageError("there is no target", expected="--target DIR, or --recipe FILE that names one")
        elif not grid.drafters and all(map(with_drafter, grid.proposers)):
            raise UsageError(
                "there is nothing to compare with plain decoding",
                expected="--drafter DIR, or --proposer n-gram or early-exit",
            )


class BenchmarkOptions(StrictModel):
    """The questions of an evaluation."""

    benchmark: str = option(
        ...,
        "spec-bench, human-eval, mbpp, gsm8k, math-500, speed-bench, scrolls-TASK, sample (part of VocabForge), or a "
        "file with rows as in one of these, ShareGPT or messages.",
    )
    data: Path | None = option(
        None, "Folder with benchmark files [default: VOCABFORGE_DATA, data, the cache]."
    )
    limit: Positive | None = option(None, "Use only N questions, spread evenly over the benchmark.")

    def load(self) -> Benchmark:
        """Load the questions."""
        from ...evaluate.benchmarks import load_benchmark

        return load_benchmark(self.benchmark, self.limit, data=self.data)


class RunOptions(StrictModel):
    """How questions are asked, and how often."""

    seed: tuple[Annotated[int, Field(ge=0, lt=2**63)], ...] = option(
        (), "Random seeds [default: 0]. Every question runs with each seed.", "N", many=True
    )
    repeats: Positive = option(1, "Repetitions, to see how much times vary.")
    max_new_tokens: Positive | None = option(
        None, "Limit of one turn [default: the benchmark's, 256 to 1,024]."
    )
    rows: Loads = option(
        (1,),
        "Requests decoded side by side, besides one by one; `4,16` sweeps the load of this machine.",
        "N,N",
    )
    warmup: Annotated[int, Field(ge=0)] = option(3, "Unmeasured runs of the first question, per method.")
    tokenizer: TokenizerPath | None = option(None, "Tokenizer folder [default: the target's].")
    prompt_format: str = option("auto", "auto, chat or raw; auto uses the chat template if there is one.")
    system: str | None = option(None, "System message for conversations without one.")

    def settings(
        self,
        benchmark: Benchmark,
        prompt_format: PromptFormat,
        sampling: SamplingOptions,
        concurrency: tuple[int, ...] = (1,),
    ) -> RunSettings:
        """Return the settings of the runner."""
        from ...evaluate.results.settings import RunSettings

        seeds = self.seed or (0,)
        return RunSettings(
            max_new_tokens=self.max_new_tokens or benchmark.max_new_tokens,
            sampling=sampling.with_seed(seeds[0]),
            warmup=self.warmup,
            prompt_format=prompt_format,
            system=self.system,
            seeds=seeds,
            repeats=self.repeats,
            concurrency=concurrency,
        )


class ServerOptions(StrictModel):
    """Servers to evaluate instead of decoding in this process."""

    server: tuple[str, ...] = option(
        (),
        "Measure this OpenAI-compatible server instead of decoding here; `plain=URL` is the baseline "
        "without speculation.",
        "[LABEL=]URL",
        many=True,
    )
    start: tuple[str, ...] = option(
        (),
        "Start this server (no shell; `{port}` is replaced), measure it and stop it. Several run one after another.",
        "[LABEL=]COMMAND",
        many=True,
    )
    model: str | None = option(None, "Model name at the servers [default: the model they serve].", "NAME")
    concurrency: Loads = option((1,), "Concurrent questions at a server; `1,2,4,8` sweeps the load.", "N,N")
    api_key_env: str | None = option(None, "Environment variable with the servers' API key.", "VARIABLE")
    timeout: Annotated[float, Field(ge=0.1)] = option(
        600.0, "Seconds without a byte after which a server counts as hung.", "S"
    )
    start_timeout: Annotated[float, Field(ge=1)] = option(
        1800.0, "Maximum seconds for a server to start.", "S"
    )

    @property
    def wanted(self) -> bool:
        """Whether servers are evaluated."""
        return bool(self.server or self.start)

    def check(self, context: typer.Context) -> None:
        """Raise UsageError for local decoding options with a server, and for server options without one."""
        if given := _given(context, _LOCAL_ONLY if self.wanted else _SERVER_ONLY):
            raise UsageError(
                "a server decides how it decodes" if self.wanted else "there is no server to ask",
                got=f"{given} with --server or --start" if self.wanted else given,
                remedy="leave the option out" if self.wanted else "add --server URL or --start COMMAND",
            )


class OutcomeOptions(StrictModel):
    """Output of answers and figures."""

    output: Path = option(..., "Output folder for answers, figures and report.")
    fresh: bool = option(False, "Start over instead of resuming an interrupted run.")


def evaluate(
    context: typer.Context,
    methods: MethodOptions,
    grid: ManyMethods,
    questions: BenchmarkOptions,
    sampling: SamplingOptions,
    runs: RunOptions,
    passes: PassOptions,
    servers: ServerOptions,
    outcome: OutcomeOptions,
    ending: ResultOptions,
) -> None:
    """Measure accepted length and speed-up over plain decoding, and check that the output is the same.

    Every question runs with all methods before the next one. Writes answers in Spec-Bench's format, token
    ids and times, `results.json` and a self-contained `report.html`. Re-run the command to resume an
    interrupted run. `--recipe FILE` evaluates methods with different trees and heads, as written by
    `vocabforge tune`. `--server URL` measures a server instead.

    Example: `vocabforge eval --target Qwen/Qwen3-0.6B --drafter run/drafter --benchmark spec-bench --output
        results`
    """
    from ...core.artifact import check_output
    from ...corpus.tokenizer.prompt_format import resolve_format
    from ...corpus.tokenizer.tokenizer import load_tokenizer
    from ...decode.build.methods import recipe_models
    from ...evaluate.evaluation import evaluate_methods
    from ...evaluate.run.prompts import check_system
    from ...evaluate.run.recipe import evaluation_of
    from ...models.device import choose_device, synchroniser

    servers.check(context)
    if servers.wanted:
        from .eval_servers import evaluate_servers

        evaluate_servers(methods.target, servers, questions.load(), sampling, runs, outcome, ending)
        return
    methods.check(context, grid)
    recipe, models, sampled = None, None, sampling.temperature > 0
    if methods.recipe is not None:
        from ...decode.build.recipe import read_recipe

        recipe = read_recipe(methods.recipe, methods.target)
    target, tokenizer = (
        (methods.target, runs.tokenizer) if recipe is None else (recipe.target, recipe.tokenizer)
    )
    assert target is not None
    check_output(outcome.output, overwrite=ending.overwrite)
    benchmark = questions.load()
    text_tokenizer = load_tokenizer(tokenizer or target)
    form = resolve_format(text_tokenizer, runs.prompt_format)
    check_system(text_tokenizer, form, runs.system, benchmark.questions)
    settings = runs.settings(benchmark, form, sampling, tuple(dict.fromkeys((1, *runs.rows))))
    if (asked := max(runs.rows)) > len(benchmark.questions):
        say(f"Warning: --rows {asked}, but only {len(benchmark.questions)} questions can be side by side.")
    device = str(choose_device(passes.device))
    wrap = wrap_for(passes.compile, passes.graphs, device)
    if recipe is None:
        recipe, models = _recipe_of(grid, target, tokenizer, passes, device=device, sampled=sampled)
    models = models or recipe_models(recipe, device=device, device_map=passes.device_map)
    evaluation = evaluation_of(recipe, models, benchmark, settings, only=methods.method, wrap=wrap)
    results = evaluate_methods(
        outcome.output,
        evaluation,
        overwrite=ending.overwrite,
        fresh=outcome.fresh,
        synchronise=synchroniser(device),
    )
    print_results(results, outcome.output, as_json=ending.as_json)


def _recipe_of(
    grid: MethodGrid, target: Path, tokenizer: Path | None, passes: PassOptions, *, device: str, sampled: bool
) -> tuple[DecodingRecipe, Models]:
    import torch

    from ...decode.build.grid import check_grid
    from ...decode.build.methods import grid_specs, kind_of
    from ...decode.build.models import Models
    from ...decode.build.recipe import DecodingRecipe
    from ...models.target.load import decoding_dtype

    dtype = decoding_dtype(target, passes.dtype, torch.device(device))
    # Check before loading models.
    check_grid(grid, [kind_of(path) for _, path in grid.drafters], sampled=sampled)
    models = Models(
        target,
        tokenizer,
        device=device,
        dtype=dtype,
        backend=passes.target_backend,
        device_map=passes.device_map,
    )
    specs = grid_specs(models, grid, sampled=sampled)
    values = {
        "target": target,
        "tokenizer": tokenizer,
        "dtype": dtype,
        "target_backend": passes.target_backend,
        "methods": specs,
    }
    return DecodingRecipe.model_validate(values), models
