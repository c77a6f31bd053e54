"""``vocabforge eval``: benchmark a drafter against plain decoding."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

from . import benchmark_options as questions_from
from . import decode_options as decoding
from .app import JsonOption, OverwriteOption, print_json
from .eval_recipe import RecipeOption, recipe_beside, recipe_facts, recipe_parents
from .eval_record import parents_of, print_tables, provenance_of
from .head_options import (
    BudgetOption,
    DynamicOption,
    HeadOption,
    HeadRowsOption,
    RankerFp8Option,
    ShortlistOption,
    head_request,
)


class Dialect(str, Enum):
    """Others' formats of answer rows beside Spec-Bench's."""

    fr_spec = "fr-spec"


def evaluate(
    context: typer.Context,
    benchmark: questions_from.BenchmarkOption,
    output: Annotated[Path, typer.Option("--output", help="Folder to make for answers, figures and report.")],
    target: Annotated[
        Path | None, typer.Option("--target", help="Folder of the target model (safetensors).")
    ] = None,
    recipe: RecipeOption = None,
    drafter: Annotated[
        list[str] | None,
        typer.Option(
            "--drafter",
            help="Trained drafter, or a smaller model of any vocabulary, as DIR or LABEL=DIR. Repeatable.",
        ),
    ] = None,
    proposer: decoding.ProposerOption = None,
    method: Annotated[
        list[str] | None,
        typer.Option("--method", help="Evaluate only these methods (`plain` always runs). Repeatable."),
    ] = None,
    vocab: Annotated[
        list[str] | None,
        typer.Option(
            "--vocab",
            help="Subset artefact, as DIR or LABEL=DIR: also draft with this vocabulary.",
        ),
    ] = None,
    head: HeadOption = None,
    shortlist: ShortlistOption = None,
    budget: BudgetOption = None,
    head_rows: HeadRowsOption = None,
    ranker_fp8: RankerFp8Option = None,
    dynamic: DynamicOption = None,
    data: questions_from.DataOption = None,
    benchmark_format: questions_from.FormatOption = None,
    offline: questions_from.OfflineOption = False,
    list_benchmarks: questions_from.ListOption = False,
    limit: questions_from.LimitOption = None,
    temperature: decoding.TemperatureOption = 0.0,
    sampling_top_k: decoding.SamplingTopKOption = 0,
    top_p: decoding.TopPOption = 1.0,
    min_p: decoding.MinPOption = 0.0,
    repetition_penalty: decoding.RepetitionOption = 1.0,
    presence_penalty: decoding.PresenceOption = 0.0,
    frequency_penalty: decoding.FrequencyOption = 0.0,
    seed: Annotated[
        list[int] | None,
        typer.Option(
            "--seed",
            metavar="N",
            min=0,
            max=2**63 - 1,
            help="Start of the random streams [default: 0]. Repeatable: every question with each of them.",
        ),
    ] = None,
    repeats: Annotated[
        int, typer.Option("--repeats", min=1, help="Runs of everything, to see how much the time varies.")
    ] = 1,
    max_new_tokens: Annotated[
        int | None,
        typer.Option(
            "--max-new-tokens", min=1, help="Limit of one turn [default: the benchmark's, 1024 or 512]."
        ),
    ] = None,
    warmup: Annotated[
        int, typer.Option("--warmup", min=0, help="Unmeasured runs of the first question, per method.")
    ] = 3,
    tokenizer: Annotated[
        Path | None, typer.Option("--tokenizer", help="Tokenizer folder [default: the target's].")
    ] = None,
    prompt_format: Annotated[
        str,
        typer.Option(
            "--prompt-format", help="auto, chat or raw; auto uses the chat template where there is one."
        ),
    ] = "auto",
    system: Annotated[
        str | None,
        typer.Option("--system", help="System message of conversations that bring none of their own."),
    ] = None,
    tree: decoding.TreeOption = None,
    tree_file: decoding.TreeFileOption = None,
    draft_sampling: decoding.DraftSamplingOption = False,
    depth: decoding.DepthOption = None,
    topk: decoding.TopkOption = None,
    total_nodes: decoding.NodesOption = None,
    exit_layers: decoding.LayersOption = None,
    ngram: decoding.NgramOption = None,
    look_ahead: decoding.LookAheadOption = None,
    single_token: decoding.SingleOption = False,
    overlap: decoding.OverlapOption = None,
    drafter_tokenizer: decoding.DrafterTokenizerOption = None,
    control: decoding.ControlOption = decoding.ControlName.fixed,
    compiled: decoding.CompileOption = False,
    graphs: decoding.GraphsOption = None,
    dtype: Annotated[str, typer.Option("--dtype", help="float32, bfloat16 or float16.")] = "float32",
    device: Annotated[
        str | None, typer.Option("--device", help="cpu, cuda, cuda:1 … [default: cuda where there is one].")
    ] = None,
    dialect: Annotated[
        Dialect | None,
        typer.Option("--dialect", help="Also write the answers in this dialect: fr-spec."),
    ] = None,
    allow_code_execution: Annotated[
        bool,
        typer.Option(
            "--allow-code-execution",
            help="human-eval: run the programs that the model wrote, each in a sandbox, and score them.",
        ),
    ] = False,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Begin anew where an interrupted run could go on.")
    ] = False,
    as_json: JsonOption = False,
    overwrite: OverwriteOption = False,
) -> None:
    """Measure accepted length and speed-up over plain decoding, and check that the output is the same.

    Every question runs through all methods before the next one begins. Writes answer rows in Spec-Bench's
    format, a side file with token ids and times, `results.json` and a self-contained `report.html`. The same
    command again goes on where an interrupted one stopped. `--recipe FILE` runs methods that differ in their trees
    and heads over one target, as `vocabforge tune` writes them.
    """
    from ..core.artifact import check_output
    from ..core.progress import say
    from ..corpus.tokenizer import load_tokenizer
    from ..decode.build import build_methods
    from ..decode.build_options import BuildOptions
    from ..decode.recipe_build import recipe_methods
    from ..decode.request import SamplingParams
    from ..evaluate.benchmarks import load_benchmark
    from ..evaluate.evaluation import Evaluation, Handling, evaluate_methods
    from ..evaluate.prompts import check_system, resolve_format
    from ..evaluate.quality import require_sandbox
    from ..evaluate.settings import RunSettings
    from ..models.device import synchroniser

    written = None if recipe is None else recipe_beside(context, recipe)
    if written is not None:
        target, tokenizer, dtype = written.target, written.tokenizer, written.dtype
    else:
        target = _target_of(target)
        _check_something_drafts(drafter or [], proposer or [])
    check_output(output, overwrite=overwrite)
    questions = load_benchmark(benchmark, limit, data=data, format=benchmark_format, offline=offline)
    text_tokenizer = load_tokenizer(tokenizer or target)
    seeds = tuple(seed or [0])
    settings = RunSettings(
        max_new_tokens=max_new_tokens or questions.max_new_tokens,
        sampling=SamplingParams(
            temperature,
            sampling_top_k,
            top_p,
            min_p,
            repetition_penalty,
            presence_penalty,
            frequency_penalty,
            seeds[0],
        ),
        warmup=warmup,
        prompt_format=resolve_format(text_tokenizer, prompt_format),
        system=system,
        seeds=seeds,
        repeats=repeats,
    )
    check_system(text_tokenizer, settings.prompt_format, system, questions.questions)
    if allow_code_execution and questions.scorer == "human-eval":
        for name, fact in require_sandbox().items():
            say(f"Generated code, {name}: {fact}")
    device = device or _default_device()
    draft = decoding.draft_options(
        tree,
        ngram,
        sample=draft_sampling,
        depth=depth,
        topk=topk,
        total_nodes=total_nodes,
        tree_file=tree_file,
        layers=exit_layers,
        look_ahead=look_ahead,
        single=single_token,
    )
    options = BuildOptions(
        tokenizer=tokenizer,
        device=device,
        dtype=dtype,
        proposers=proposer or [],
        draft=draft,
        heads=head_request(head, shortlist, budget, head_rows, dynamic, ranker_fp8),
        control=control.value,
        wrap=decoding.wrap_for(compiled, graphs, device),
        sampled=temperature > 0,
        overlaps=overlap or [],
        drafter_tokenizer=drafter_tokenizer,
    )
    if written is not None:
        methods = recipe_methods(
            written, method or [], device=device, wrap=options.wrap, sampled=options.sampled
        )
        parents = recipe_parents(written, [one.name for one in methods[1:]])
    else:
        methods = build_methods(target, drafter or [], vocab or [], method or [], options)
        parents = parents_of(target, drafter or [], vocab or [], head or [], overlap or [])
    facts = None if written is None else recipe_facts(written, [one.name for one in methods[1:]])
    provenance = provenance_of(target, text_tokenizer, methods, parents, options, device=device, facts=facts)
    results = evaluate_methods(
        output,
        Evaluation(questions, methods, text_tokenizer, settings, provenance),
        Handling(
            overwrite=overwrite,
            fresh=fresh,
            allow_code=allow_code_execution,
            dialect=None if dialect is None else dialect.value,
            synchronise=synchroniser(device),
        ),
    )
    if as_json:
        print_json(results.model_dump(mode="json"))
    else:
        print_tables(results, output)


def _target_of(target: Path | None) -> Path:
    from ..core.errors import UsageError

    if target is None:
        raise UsageError("there is no target", expected="--target DIR, or --recipe FILE that names one")
    return target


def _check_something_drafts(drafters: Sequence[str], proposers: Sequence[str]) -> None:
    from ..core.errors import UsageError
    from ..decode.proposers import ALONE

    if not drafters and not set(proposers) & set(ALONE):
        raise UsageError(
            "there is nothing to compare with plain decoding",
            expected=f"--drafter DIR, or --proposer {' or '.join(ALONE)}",
        )


def _default_device() -> str:
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"
