"""``vocabforge eval``: benchmark a drafter against plain decoding."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from .app import print_json
from .benchmark_options import BenchmarkOptions
from .decode_options import DraftingOptions, PassOptions, build_options
from .eval_recipe import recipe_beside, recipe_facts, recipe_parents
from .eval_record import parents_of, print_tables, provenance_of
from .evaluate_options import MethodOptions, OutcomeOptions, RunOptions
from .sampling_options import SamplingOptions

if TYPE_CHECKING:
    from ..decode.build import Method
    from ..decode.build_options import BuildOptions
    from ..decode.recipe import DecodingRecipe


def evaluate(
    context: typer.Context,
    methods: MethodOptions,
    questions: BenchmarkOptions,
    sampling: SamplingOptions,
    runs: RunOptions,
    drafting: DraftingOptions,
    passes: PassOptions,
    outcome: OutcomeOptions,
) -> None:
    """Measure accepted length and speed-up over plain decoding, and check that the output is the same.

    Every question runs through all methods before the next one begins. Writes answer rows in Spec-Bench's
    format, a side file with token ids and times, `results.json` and a self-contained `report.html`. The same
    command again goes on where an interrupted one stopped. `--recipe FILE` runs methods that differ in their trees
    and heads over one target, as `vocabforge tune` writes them.
    """
    from ..core.artifact import check_output
    from ..corpus.tokenizer import load_tokenizer
    from ..evaluate.evaluation import Evaluation, OutputOptions, evaluate_methods
    from ..models.device import choose_device, synchroniser

    recipe = None if methods.recipe is None else recipe_beside(context, methods.recipe)
    if recipe is None:
        target, tokenizer = methods.checked_target(), runs.tokenizer
    else:
        target, tokenizer, passes = recipe.target, recipe.tokenizer, replace(passes, dtype=recipe.dtype)
    check_output(outcome.output, overwrite=outcome.result.overwrite)
    benchmark = questions.load()
    text_tokenizer = load_tokenizer(tokenizer or target)
    settings = runs.settings(benchmark, text_tokenizer, sampling)
    if outcome.allow_code_execution and benchmark.scorer == "human-eval":
        _describe_sandbox()
    device = str(choose_device(passes.device))
    options = build_options(
        drafting,
        methods.heads,
        replace(passes, device=device),
        tokenizer=tokenizer,
        proposers=methods.proposer or [],
        sampled=sampling.temperature > 0,
    )
    if recipe is None:
        made, parents, facts = _named_methods(target, methods, drafting, options)
    else:
        made, parents, facts = _recipes_methods(recipe, methods.method or [], options)
    provenance = provenance_of(target, text_tokenizer, made, parents, options, device=device, facts=facts)
    handling = OutputOptions(
        overwrite=outcome.result.overwrite,
        fresh=outcome.fresh,
        allow_code=outcome.allow_code_execution,
        dialect=None if outcome.dialect is None else outcome.dialect.value,
        synchronise=synchroniser(device),
    )
    evaluation = Evaluation(benchmark, made, text_tokenizer, settings, provenance)
    results = evaluate_methods(outcome.output, evaluation, handling)
    if outcome.result.as_json:
        print_json(results.model_dump(mode="json"))
    else:
        print_tables(results, outcome.output)


_Made = tuple[
    "list[Method]", Mapping[str, str], Mapping[str, str]
]  # plain first; hashes by role; further facts


def _named_methods(
    target: Path, methods: MethodOptions, drafting: DraftingOptions, options: BuildOptions
) -> _Made:
    """The methods of the command line."""
    from ..decode.build import build_methods

    drafters, vocabs = methods.drafter or [], methods.vocab or []
    made = build_methods(target, drafters, vocabs, methods.method or [], options)
    return made, parents_of(target, drafters, vocabs, methods.heads.head or [], drafting.overlap or []), {}


def _recipes_methods(recipe: DecodingRecipe, only: list[str], options: BuildOptions) -> _Made:
    """The methods of a recipe; ``only``: names of those that are wanted, none for all."""
    from ..decode.recipe_build import recipe_methods

    made = recipe_methods(recipe, only, device=options.device, wrap=options.wrap, sampled=options.sampled)
    names = [one.name for one in made[1:]]
    return made, recipe_parents(recipe, names), recipe_facts(recipe, names)


def _describe_sandbox() -> None:
    """Report how generated code is isolated.

    Raises:
        VocabForgeError: it cannot be run on this machine.
    """
    from ..core.progress import say
    from ..evaluate.quality import require_sandbox

    for name, fact in require_sandbox().items():
        say(f"Generated code, {name}: {fact}")
